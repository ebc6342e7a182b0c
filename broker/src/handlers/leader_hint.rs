//! Who leads a partition, for a client that asked the wrong node or knows the wrong epoch
//! (KIP-951): it is told with the error, and need not ask for metadata first.

use odradek_protocol::ids::{LeaderEpoch, NodeId};
use odradek_raft::Leadership;

use crate::context::RequestContext;
use crate::partition::Partition;

/// A partition's leader as this node knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeaderHint {
    pub(super) leader: NodeId,
    pub(super) epoch: LeaderEpoch,
}

impl LeaderHint {
    /// The leader of `partition`; `None` where nobody is known to lead it.
    pub(super) fn of(partition: &Partition, this_node: NodeId) -> Option<Self> {
        match partition.leadership() {
            Leadership::Leader { epoch, .. } => Some(Self {
                leader: this_node,
                epoch,
            }),
            Leadership::Follower { leader, epoch } => leader.map(|leader| Self { leader, epoch }),
            Leadership::Unknown => None,
        }
    }
}

/// This node as the client reaches it.
#[derive(Clone, Debug)]
pub(super) struct ThisNode {
    pub(super) node_id: NodeId,
    pub(super) host: String,
    pub(super) port: i32,
    pub(super) rack: Option<String>,
}

impl ThisNode {
    /// As the client of this request reaches it.
    pub(super) fn of(context: &RequestContext) -> Self {
        let identity = &context.broker.identity;
        Self {
            node_id: identity.node_id,
            host: context.connection.advertised_host.clone(),
            port: i32::from(context.connection.advertised_port),
            rack: identity.rack.clone(),
        }
    }
}
