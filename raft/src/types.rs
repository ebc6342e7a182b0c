//! The types one Raft group is made of, in openraft's terms.
//!
//! The committed leader id is the term alone: two leaders of one term would share a Kafka leader
//! epoch. The runtime is named once, here, so that a deterministic one can take its place. There
//! is no serde on the data path: an entry of data carries one Kafka v2 batch as it came.

use std::fmt;

use bytes::Bytes;
use odradek_protocol::batch::BatchHeader;
use odradek_protocol::ids::{LeaderEpoch, NodeId, Offset, PartitionIndex, TopicId};
use openraft::impls::leader_id_std;
use openraft::vote::RaftLeaderId;

use crate::waiter::CommitWaiter;

/// The runtime every group runs on.
#[cfg(not(test))]
pub(crate) type Runtime = openraft_rt_tokio::TokioRuntime;
/// In the tests of this crate, its random numbers come from a seed.
#[cfg(test)]
pub(crate) type Runtime =
    openraft::rt::deterministic_rng::DeterministicRng<openraft_rt_tokio::TokioRuntime>;

/// openraft's view of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TypeConfig;

impl openraft::RaftTypeConfig for TypeConfig {
    type D = Command;
    type R = ();
    type NodeId = u64;
    type Node = ();
    type Term = u64;
    type LeaderId = leader_id_std::LeaderId<u64, u64>;
    type Vote = Vote;
    type Payload = Payload;
    type Entry = Entry;
    type AsyncRuntime = Runtime;
    type Responder<T>
        = NoResponder
    where
        T: openraft::OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: openraft::OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

/// Leader of a term, as log ids carry it.
pub(crate) type CommittedLeaderId = <leader_id_std::LeaderId<u64, u64> as RaftLeaderId>::Committed;
/// Term and index of an entry.
pub(crate) type LogId = openraft::LogId<CommittedLeaderId>;
/// A vote for a leader, given or won.
pub(crate) type Vote = openraft::Vote<leader_id_std::LeaderId<u64, u64>>;
/// A replicated entry.
pub(crate) type Entry = openraft::Entry<CommittedLeaderId, Payload>;
/// What an entry carries.
pub(crate) type Payload = openraft::EntryPayload<Command, u64, ()>;
/// The voters and learners of a group.
pub(crate) type Membership = openraft::Membership<u64, ()>;
/// A membership with the entry that brought it.
pub(crate) type StoredMembership = openraft::StoredMembership<CommittedLeaderId, u64, ()>;

/// Position of an entry in a Raft log, counted from 0. Not an offset: entries that are not batches
/// have an index but no offset, and a batch of many records has one index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RaftIndex(u64);

impl RaftIndex {
    /// The first entry of every log.
    pub const ZERO: Self = Self(0);

    /// Wraps openraft's number.
    pub const fn new(index: u64) -> Self {
        Self(index)
    }

    /// openraft's number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The entry after this one.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for RaftIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Builds a log id.
pub(crate) fn log_id(term: u64, index: u64) -> LogId {
    LogId::new_term_index(term, index)
}

/// Term of a log id.
pub(crate) fn term_of(id: &LogId) -> u64 {
    **id.committed_leader_id()
}

/// The Kafka leader epoch of a term. Terms beyond `i32` are clamped; a group would need a new
/// leader every second for 68 years to get there.
pub(crate) fn epoch_of(term: u64) -> LeaderEpoch {
    LeaderEpoch::new(i32::try_from(term).unwrap_or(i32::MAX))
}

/// Kafka's node id of an openraft node. Configuration keeps node ids within `0..=i32::MAX`.
pub(crate) fn node_id(raft_id: u64) -> NodeId {
    NodeId::new(i32::try_from(raft_id).unwrap_or(i32::MAX))
}

/// openraft's node of a Kafka node id.
pub(crate) fn raft_id(node: NodeId) -> u64 {
    u64::try_from(node.get()).unwrap_or(0)
}

/// Which of the groups that a partition has had one after the other: the leader epoch with which it
/// begins, 0 for the one that it was made with.
///
/// Another one is begun when most voters of the last are given up. Every
/// leader of it has a later epoch than the number, and no entry of it an earlier term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(u32);

impl Incarnation {
    /// The group that a partition was made with.
    pub const FIRST: Self = Self(0);

    /// The one of that number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Its number, which is the leader epoch that it begins with.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Term of its first entry.
    pub(crate) fn term(self) -> u64 {
        u64::from(self.0)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Which group: a partition of a topic, in one of its incarnations. What is said by or to a replica of
/// another incarnation therefore concerns another group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    /// Topic of the partition.
    pub topic_id: TopicId,
    /// Index of the partition within the topic.
    pub partition: PartitionIndex,
    /// Which of the partition's groups.
    pub incarnation: Incarnation,
}

impl GroupKey {
    /// The group that the partition was made with.
    pub const fn new(topic_id: TopicId, partition: PartitionIndex) -> Self {
        Self {
            topic_id,
            partition,
            incarnation: Incarnation::FIRST,
        }
    }

    /// The group of the same partition in another incarnation.
    pub const fn in_incarnation(self, incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            ..self
        }
    }
}

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic_id, self.partition)?;
        if self.incarnation != Incarnation::FIRST {
            write!(f, "@{}", self.incarnation)?;
        }
        Ok(())
    }
}

/// Where a batch landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendOutcome {
    /// Offset of the first record of the batch.
    pub base_offset: Offset,
    /// Offset of the last record of the batch.
    pub last_offset: Offset,
    /// Epoch of the leader that appended it.
    pub leader_epoch: LeaderEpoch,
    /// First readable offset at that moment.
    pub log_start: Offset,
}

/// What a group replicates besides blank entries and memberships.
pub enum Command {
    /// One Kafka v2 batch.
    Batch(Box<BatchCommand>),
    /// Everything below this offset is gone.
    LogStart(Offset),
    /// A batch seen by the apply path: it has been stored, so only its end is of interest.
    Applied(AppliedBatch),
}

/// A batch on its way into the log.
pub struct BatchCommand {
    /// The whole batch. On the leader its base offset and epoch are not yet those of the log.
    pub(crate) bytes: Bytes,
    /// The parsed first 61 bytes.
    pub(crate) header: BatchHeader,
    /// What its offset has to do with the log's.
    pub(crate) stamp: Stamp,
    /// Told when the batch is appended and when it is committed.
    pub(crate) waiter: Option<CommitWaiter>,
}

impl BatchCommand {
    /// Whether it was to get another offset than `next`, because of a batch before it.
    pub(crate) fn is_displaced(&self, next: Offset) -> bool {
        matches!(self.stamp, Stamp::Foreseen(offset) if offset != next)
    }
}

/// Where a batch's offset stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stamp {
    /// On the leader that proposes it: the offset that it gets unless a batch before it is refused,
    /// in which case it is refused as well.
    Foreseen(Offset),
    /// From a leader's log: offset and epoch stand in the header and are final.
    Final,
}

/// The stored batch as the state machine sees it.
pub struct AppliedBatch {
    /// End of the batch where it is known; the last entry of a range always knows it.
    pub(crate) outcome: Option<AppendOutcome>,
    /// Told that the batch is committed.
    pub(crate) waiter: Option<CommitWaiter>,
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Batch(batch) => write!(f, "batch of {} bytes", batch.bytes.len()),
            Self::LogStart(offset) => write!(f, "log start {offset}"),
            Self::Applied(_) => f.write_str("stored batch"),
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// openraft's per-write responder, unused: what waits for a batch travels inside the entry
/// ([`CommitWaiter`]), which saves an allocation and a queue per write.
pub struct NoResponder;

impl<T> openraft::raft::responder::Responder<TypeConfig, T> for NoResponder
where
    T: openraft::OptionalSend + 'static,
{
    fn on_complete(self, _result: T) {}
}
