//! Everything that can go wrong in a group, by cause.

use std::sync::Arc;

use odradek_protocol::ids::{LeaderEpoch, NodeId, Offset};
use odradek_storage::StorageError;

use crate::types::{GroupKey, Incarnation};

/// Why a proposal was refused or its outcome is a failure.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProposeError {
    /// This node does not lead the group, or does not lead it any more. A batch that was already
    /// appended may still be committed by the next leader.
    #[error("not the leader; the leader is {leader:?}")]
    NotLeader {
        /// The leader as far as this node knows.
        leader: Option<NodeId>,
    },
    /// This node leads the group but has not yet committed the first entry of its term.
    #[error("the leader has not yet committed an entry of its term")]
    NotReady,
    /// As many batches as the group may hold are waiting to be committed.
    #[error("{in_flight} batches are already waiting to be committed")]
    QueueFull {
        /// Batches in flight.
        in_flight: usize,
    },
    /// The log directory failed earlier and takes no writes any more.
    #[error("the log directory is offline: {0}")]
    Offline(Arc<str>),
    /// The group is closed.
    #[error("the group is closed")]
    Closed,
    /// The header is not that of the batch, or counts no offsets.
    #[error("the batch and its header do not fit")]
    Malformed,
}

/// Failures of opening, changing or closing groups.
#[derive(Debug, thiserror::Error)]
pub enum RaftError {
    /// The log or the disk below it failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Reading or writing the journal or the votes failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, and to which file.
        what: String,
        /// The failure.
        source: std::io::Error,
    },
    /// The journal of a partition contradicts itself or the log.
    #[error("the journal of {group} is damaged: {detail}")]
    JournalDamaged {
        /// The group.
        group: GroupKey,
        /// What is wrong.
        detail: String,
    },
    /// The vote of a group with several voters is older than its log.
    #[error(
        "the vote of {group} is lost: its log was written in term {last_term}; take this replica \
         out of the group and add it again, for it might vote twice in one term"
    )]
    VoteLost {
        /// The group.
        group: GroupKey,
        /// Term of the last entry.
        last_term: u64,
    },
    /// The log of a group is gone, or the part of it that this replica had made durable.
    #[error(
        "the log of {group} is lost: {detail}; take this replica out of the group and add it again, \
         for others may count on what it has stored"
    )]
    LogLost {
        /// The group.
        group: GroupKey,
        /// What shows it.
        detail: String,
    },
    /// The replica takes part in a later incarnation than the one it is to be opened in, or holds
    /// entries of its terms: the metadata that says so is old.
    #[error("{group} is asked for, and the replica here is of incarnation {found}")]
    LaterIncarnation {
        /// The group that was to be opened.
        group: GroupKey,
        /// What the replica is of.
        found: Incarnation,
    },
    /// The replica was chosen to begin a group with its log, and its log is not that of the group
    /// before: it has been replaced since, or put back.
    #[error("{group} is to be begun here, with the log of another incarnation, {found}")]
    OtherPredecessor {
        /// The group that was to be opened.
        group: GroupKey,
        /// What the replica is of.
        found: Incarnation,
    },
    /// openraft handed in an entry that does not follow the last one.
    #[error("entry {found} does not follow: index {expected} after term {last_term} is next")]
    NotContiguous {
        /// The entry.
        found: String,
        /// Index that comes next.
        expected: u64,
        /// Term of the last entry.
        last_term: u64,
    },
    /// A leader's batch does not carry the offset and epoch that this replica's log would give it:
    /// the replicas have diverged.
    #[error(
        "batch stamped ({offset}, epoch {epoch}) where ({expected_offset}, epoch {expected_epoch}) is next"
    )]
    WrongStamp {
        /// Base offset of the batch.
        offset: Offset,
        /// Epoch of the batch.
        epoch: LeaderEpoch,
        /// Offset that comes next here.
        expected_offset: Offset,
        /// Epoch of the entry.
        expected_epoch: LeaderEpoch,
    },
    /// An entry that the log should hold is not there.
    #[error("entry {index} is missing from the log")]
    MissingEntry {
        /// Its index.
        index: u64,
    },
    /// A batch that the journal counts is not in the segments.
    #[error("batch {ordinal} after offset {anchor} is missing from the log")]
    MissingBatch {
        /// Offset at which counting started.
        anchor: Offset,
        /// How many batches further on it should be.
        ordinal: u64,
    },
    /// An entry of a kind that the log does not store.
    #[error("entry {0} cannot be stored")]
    UnusableEntry(String),
    /// The group is open already.
    #[error("{0} is open already")]
    AlreadyOpen(GroupKey),
    /// No such group is open here.
    #[error("{0} is not open on this node")]
    UnknownGroup(GroupKey),
    /// This node does not lead the group.
    #[error("not the leader; the leader is {leader:?}")]
    NotLeader {
        /// The leader as far as this node knows.
        leader: Option<NodeId>,
    },
    /// The node that was to lead did not take over.
    #[error("node {to} did not take over leadership")]
    TransferFailed {
        /// The node.
        to: NodeId,
    },
    /// The members of a group cannot be changed like that.
    #[error("the members of the group cannot be changed: {0}")]
    MembershipRefused(String),
    /// The log start can only move forward, and not beyond the high watermark.
    #[error("log start {requested} is outside {current}..={high_watermark}")]
    LogStartOutOfRange {
        /// What was asked for.
        requested: Offset,
        /// The log start as it is.
        current: Offset,
        /// The high watermark.
        high_watermark: Offset,
    },
    /// The group stopped: its log directory went offline, or one of its tasks failed.
    #[error("the group has stopped: {0}")]
    Stopped(Arc<str>),
    /// The group was closed in order.
    #[error("the group is closed")]
    Closed,
}

impl RaftError {
    /// Whether the cause is that nothing more can be opened at the moment: a refusal that has
    /// changed nothing.
    pub fn is_out_of_descriptors(&self) -> bool {
        match self {
            Self::Storage(error) => error.is_out_of_descriptors(),
            Self::Io { source, .. } => odradek_storage::disk::is_out_of_descriptors(source),
            _ => false,
        }
    }

    /// Wraps an I/O failure with what was being done.
    pub(crate) fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io {
            what: what.into(),
            source,
        }
    }
}
