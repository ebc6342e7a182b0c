//! The messages between the replicas of a group.

use odradek_protocol::ids::Offset;

use crate::types::{CommittedLeaderId, TypeConfig, Vote};

/// Entries for a follower, or a heartbeat without any.
pub type AppendRequest = openraft::raft::AppendEntriesRequest<TypeConfig>;
/// What the follower says: up to where its log matches, durably, or why it does not take them.
pub type AppendResult = openraft::raft::StreamAppendResult<TypeConfig>;
/// A candidate's request.
pub type VoteRequest = openraft::raft::VoteRequest<TypeConfig>;
/// Its answer.
pub type VoteReply = openraft::raft::VoteResponse<TypeConfig>;
/// A leader's wish to be followed by another.
pub type TransferRequest = openraft::raft::TransferLeaderRequest<TypeConfig>;
/// Its answer.
pub type TransferReply = openraft::raft::TransferLeaderResponse<TypeConfig>;
/// Answer to a [`SnapshotOffer`].
pub type SnapshotReply = openraft::raft::SnapshotResponse<TypeConfig>;

/// All that a snapshot holds: no records, only where they begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotState {
    /// Offset of the first batch after the dropped entries.
    pub start_offset: Offset,
    /// First readable offset.
    pub log_start: Offset,
}

/// A snapshot with the entry and membership it stands for.
pub type Snapshot = openraft::Snapshot<CommittedLeaderId, u64, (), SnapshotState>;

/// A leader's snapshot for a replica that lacks entries which the leader has dropped.
pub struct SnapshotOffer {
    /// The leader.
    pub vote: Vote,
    /// The snapshot.
    pub snapshot: Snapshot,
}
