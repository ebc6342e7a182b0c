//! Who a node is, to other nodes.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::NodeId;

use super::hello::PROTOCOL_MAX;

/// This node, as it introduces itself.
#[derive(Debug)]
pub struct LocalNode {
    node_id: NodeId,
    directory_id: String,
    incarnation: Uuid,
    cluster_id: ArcSwapOption<String>,
}

impl LocalNode {
    /// A node with its data in the directory of this id. `incarnation` is new at every start.
    /// `cluster_id` is `None` as long as the node belongs to no cluster.
    pub fn new(
        node_id: NodeId,
        directory_id: &str,
        incarnation: Uuid,
        cluster_id: Option<&str>,
    ) -> Arc<Self> {
        Arc::new(Self {
            node_id,
            directory_id: directory_id.to_owned(),
            incarnation,
            cluster_id: ArcSwapOption::from_pointee(cluster_id.map(str::to_owned)),
        })
    }

    /// `node.id`.
    pub fn node_id(&self) -> NodeId {
        self.node_id
    }

    /// Identity of the process.
    pub fn incarnation(&self) -> Uuid {
        self.incarnation
    }

    /// The cluster it belongs to, once that is known.
    pub fn cluster_id(&self) -> Option<Arc<String>> {
        self.cluster_id.load_full()
    }

    /// Makes the cluster known to which this node belongs; from then on nodes of others are refused.
    pub fn set_cluster_id(&self, cluster_id: &str) {
        self.cluster_id.store(Some(Arc::new(cluster_id.to_owned())));
    }

    /// This node, as it asks itself.
    pub fn as_caller(&self) -> Caller {
        Caller {
            node: self.node_id,
            directory_id: self.directory_id.as_str().into(),
            peer_protocol: PROTOCOL_MAX,
        }
    }

    /// The same as another node sees it.
    pub fn identity(&self) -> PeerIdentity {
        PeerIdentity {
            node_id: self.node_id,
            cluster_id: self.cluster_id().map(|id| id.as_ref().clone()),
            directory_id: self.directory_id.clone(),
            incarnation: self.incarnation,
        }
    }
}

/// Who asks something of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// `node.id`.
    pub node: NodeId,
    /// Id of its data directory.
    pub directory_id: Arc<str>,
    /// Highest version of the protocol between nodes that it speaks.
    pub peer_protocol: u16,
}

/// A node, as it has introduced itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    /// `node.id`.
    pub node_id: NodeId,
    /// Its cluster; `None` if it belongs to none yet.
    pub cluster_id: Option<String>,
    /// Id of its data directory; empty where a node answers. By its directory a node is told from another
    /// one of its id, so it is not for everybody who asks.
    pub directory_id: String,
    /// Identity of its process.
    pub incarnation: Uuid,
}

/// What a connection between nodes is for. Each has its own, so that none waits behind another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Small messages that must be quick: probes, votes, transfers of leadership.
    Control,
    /// Requests of one broker to another, of any size and duration.
    Requests,
    /// Log entries of all partitions.
    Append,
    /// Records that no log entry stands for any more.
    Records,
}

impl Purpose {
    /// Every purpose.
    pub const ALL: [Self; 4] = [Self::Control, Self::Requests, Self::Append, Self::Records];

    /// One word for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Requests => "requests",
            Self::Append => "append",
            Self::Records => "records",
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
