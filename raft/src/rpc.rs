//! The messages between the replicas of a group.

use odradek_protocol::ids::{NodeId, Offset};
use odradek_storage::{Piece, TransferFile};

use crate::types::{CommittedLeaderId, LogId, TypeConfig, Vote, node_id};

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

/// Which records a replica wants that no entry stands for any more: those before the entry after
/// this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordsWanted(pub(crate) LogId);

/// Records that are given, of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordsSession {
    /// Number to read by.
    pub session: u64,
    /// First readable offset.
    pub log_start: Offset,
    /// Everything below is in the files.
    pub end: Offset,
    /// The files, in the order in which they are to be read.
    pub files: Vec<TransferFile>,
}

/// Answer to [`RecordsWanted`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordsOpened {
    /// Here they are.
    Open(RecordsSession),
    /// As many replicas as may be are given records already.
    Busy,
    /// The entries before which they are wanted are not the last that were dropped, or not any more.
    Gone,
}

/// Asks for a piece of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordsRead {
    /// Which session.
    pub session: u64,
    /// Which bytes. The answer may have fewer.
    pub piece: Piece,
}

impl RecordsRead {
    /// Asks for no byte, only whether the session goes on.
    #[must_use]
    pub fn of_nothing(self) -> Self {
        let piece = Piece {
            len: 0,
            ..self.piece
        };
        Self { piece, ..self }
    }
}

/// All that a snapshot holds: no records, only where they begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotState {
    /// Offset of the first batch after the dropped entries.
    pub start_offset: Offset,
    /// First readable offset. Below `start_offset` where records stay readable that no entry stands
    /// for; who takes the snapshot gets them before ([`RecordsWanted`]).
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

/// Whether a replica that holds nothing may take part in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearance {
    /// Not yet, as far as the node that answers knows.
    No,
    /// It may, for nobody counts on what it may have forgotten. Until its log has this entry, it stands
    /// for no election, and votes only for who has it.
    Until(LogId),
}

/// A message that a replica sends in its own name: a leader's or a candidate's.
pub trait Signed {
    /// The term in which it leads or stands.
    fn term(&self) -> u64;
    /// Who it says that it is.
    fn sender(&self) -> NodeId;
}

macro_rules! signed {
    ($($message:ty: |$it:ident| $vote:expr,)*) => {
        $(
            impl Signed for $message {
                fn term(&self) -> u64 {
                    let $it = self;
                    $vote.leader_id.term
                }

                fn sender(&self) -> NodeId {
                    let $it = self;
                    node_id($vote.leader_id.voted_for)
                }
            }
        )*
    };
}

signed! {
    AppendRequest: |it| it.vote,
    VoteRequest: |it| it.vote,
    SnapshotOffer: |it| it.vote,
    TransferRequest: |it| it.from_leader(),
}
