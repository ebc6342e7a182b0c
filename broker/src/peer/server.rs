//! The answering side: connections that other nodes have made.

use std::fmt;
use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use odradek_protocol::ids::NodeId;
use odradek_raft::RaftNode;

use super::{PeerIdentity, PeerReply, PeerRequest, Peers};

/// What the broker answers other nodes. Replication is not among it: that goes to the groups.
pub trait PeerService: Send + Sync + 'static {
    /// Answers a request of another node. Runs as a task of its own; at most
    /// `odradek.peer.requests` at a time for one connection.
    fn serve(&self, from: NodeId, request: PeerRequest) -> BoxFuture<'static, PeerReply>;

    /// Whether this node may connect; the reason if not. Asked once a connection, after cluster id
    /// and node id have been found to be right.
    fn admit(&self, node: &PeerIdentity) -> Result<(), String> {
        let _ = node;
        Ok(())
    }
}

/// See the module.
pub struct PeerServer {
    peers: Arc<Peers>,
    raft: Arc<RaftNode>,
    service: OnceLock<Arc<dyn PeerService>>,
}

impl fmt::Debug for PeerServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerServer").finish_non_exhaustive()
    }
}

impl PeerServer {
    /// Serves the groups of `raft`. `peers` is the same node's asking side.
    pub fn new(peers: Arc<Peers>, raft: Arc<RaftNode>) -> Arc<Self> {
        Arc::new(Self {
            peers,
            raft,
            service: OnceLock::new(),
        })
    }

    /// From now on requests that are not replication are answered too; before, they are told that
    /// the node is busy. The first call counts.
    pub fn set_service(&self, service: Arc<dyn PeerService>) {
        if self.service.set(service).is_err() {
            tracing::error!(node = %self.peers.local().node_id(), raft = %self.raft.node_id(), "a second peer service is ignored");
        }
    }
}
