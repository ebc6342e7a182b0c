//! What the leader of a partition tells the metadata leader: that it leads, who is in sync, and that a
//! reassignment is done.
//!
//! The partition's Raft group decides who leads, and the cluster's metadata learns it from these
//! reports, of which one message carries many. A report that is older than what the metadata knows
//! changes nothing, so they may be sent again and in any order.

use odradek_protocol::ids::{LeaderEpoch, NodeId, PartitionIndex, TopicId};
use odradek_raft::{GroupKey, Incarnation};

/// Most reports that are put into one message. One is under 100 bytes with a handful of replicas.
pub const MAX_REPORTS: usize = 2_000;

/// The state of one partition, as its leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderReport {
    /// Topic of the partition.
    pub topic_id: TopicId,
    /// Index in the topic.
    pub partition: PartitionIndex,
    /// Which of the partition's groups it leads.
    pub incarnation: Incarnation,
    /// The leader, which is the sender.
    pub leader: NodeId,
    /// Term of the group in which it leads.
    pub epoch: LeaderEpoch,
    /// Replicas in sync, the leader among them.
    pub isr: Vec<NodeId>,
    /// Once the group has no other voters and learners than these: a reassignment to them is done.
    /// The metadata drops `adding` and `removing` if that is what it asked for.
    pub reassigned: Option<Vec<NodeId>>,
}

impl LeaderReport {
    /// The group that it is about.
    pub fn group(&self) -> GroupKey {
        GroupKey::new(self.topic_id, self.partition).in_incarnation(self.incarnation)
    }
}
