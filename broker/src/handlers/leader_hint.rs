//! Who leads a partition, for a client that asked the wrong node or knows the wrong epoch
//! (KIP-951): it is told with the error, and need not ask for metadata first.

use odradek_protocol::ids::{LeaderEpoch, NodeId, PartitionIndex};
use odradek_raft::Leadership;

use super::topic_view::{self, BrokerView};
use crate::context::RequestContext;
use crate::fetch_sessions::TopicRef;
use crate::metadata::image::PartitionState;
use crate::partition::Partition;
use crate::partitions::PartitionManager;

/// A partition's leader as this node knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaderHint {
    pub(crate) leader: NodeId,
    pub(super) epoch: LeaderEpoch,
}

impl LeaderHint {
    /// The leader of `partition`; `None` where nobody is known to lead it.
    pub(crate) fn of(
        partitions: &PartitionManager,
        topic: &TopicRef,
        index: PartitionIndex,
    ) -> Option<Self> {
        let known = partitions.state(topic, index);
        match partitions.lookup(topic, index) {
            Ok(partition) => Self::newest(&partition, partitions.node_id(), known.as_ref()),
            Err(_elsewhere) => Self::by_metadata(known.as_ref()?),
        }
    }

    /// What the group of a replica here says, unless the metadata knows of a later term.
    fn newest(
        partition: &Partition,
        this_node: NodeId,
        known: Option<&PartitionState>,
    ) -> Option<Self> {
        let (leader, epoch) = match partition.leadership() {
            // One that is cut off had better not send clients back to itself.
            Leadership::Leader { epoch, ready: true } => (
                partition.require_lease().is_ok().then_some(this_node),
                epoch,
            ),
            Leadership::Leader { epoch, .. } => (Some(this_node), epoch),
            Leadership::Follower { leader, epoch } => (leader, epoch),
            Leadership::Unknown => (None, LeaderEpoch::NONE),
        };
        match known {
            Some(known) if known.leader_epoch > epoch => Self::by_metadata(known),
            _ => leader.map(|leader| Self { leader, epoch }),
        }
    }

    fn by_metadata(known: &PartitionState) -> Option<Self> {
        known.leader.map(|leader| Self {
            leader,
            epoch: known.leader_epoch,
        })
    }
}

/// Finds a broker as the client of one request reaches it.
pub(super) type BrokerLookup = Box<dyn Fn(NodeId) -> Option<BrokerView> + Send + Sync>;

/// Brokers as the client of this request reaches them, by the metadata of the moment at which one is
/// looked up.
pub(super) fn brokers_of(context: RequestContext) -> BrokerLookup {
    Box::new(move |node| {
        let image = context.broker.metadata.image();
        topic_view::broker(&context, &image, node)
    })
}

/// The brokers that `leaders` name, each once.
pub(super) fn named(
    leaders: impl Iterator<Item = NodeId>,
    brokers: &BrokerLookup,
) -> Vec<BrokerView> {
    let mut found: Vec<BrokerView> = Vec::new();
    for node in leaders {
        if node.get() >= 0
            && !found.iter().any(|known| known.id == node.get())
            && let Some(broker) = brokers(node)
        {
            found.push(broker);
        }
    }
    found
}
