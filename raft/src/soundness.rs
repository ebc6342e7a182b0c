//! What every message of a replica satisfies, whatever has happened to it.
//!
//! openraft takes these things for granted: in release builds it hands on what it is given, and the
//! log, which checks every entry, would take its group offline as if the disk had failed. Nodes are
//! not authenticated to each other, and one that is broken must not stop the others.
//!
//! Absent on purpose: whether what a message says is true.

use odradek_protocol::ids::Offset;

use crate::network::NetworkError;
use crate::rpc::{AppendRequest, SnapshotOffer, TransferRequest, VoteRequest};
use crate::types::{Command, Payload, term_of};

type Checked = Result<(), NetworkError>;

fn require(holds: bool, otherwise: &'static str) -> Checked {
    match holds {
        true => Ok(()),
        false => Err(NetworkError::Unsound(otherwise)),
    }
}

/// Entries follow each other without a gap, terms never fall and are none that the leader has not
/// seen, and a batch never begins a term.
pub(crate) fn append(request: &AppendRequest) -> Checked {
    require(request.vote.committed, "appends of nobody who was elected")?;
    let leader = request.vote.leader_id.term;
    let (mut next, mut term) = match &request.prev_log_id {
        Some(id) => (id.index() + 1, term_of(id)),
        None => (0, 0),
    };
    require(term <= leader, "appends behind a term of the future")?;
    for entry in &request.entries {
        let id = &entry.log_id;
        require(id.index() == next, "entries with a gap between them")?;
        require(term_of(id) >= term, "a term that goes back")?;
        require(term_of(id) <= leader, "an entry of the future")?;
        let is_batch = match &entry.payload {
            Payload::Normal(Command::Batch(_)) => true,
            Payload::Normal(Command::Applied(_)) => {
                return require(false, "an entry without its payload");
            }
            Payload::Normal(Command::LogStart(_)) | Payload::Blank | Payload::Membership(_) => {
                false
            }
        };
        let begins = term_of(id) != term || request.prev_log_id.is_none() && next == 0;
        require(!(is_batch && begins), "a batch that begins a term")?;
        (next, term) = (id.index() + 1, term_of(id));
    }
    Ok(())
}

/// A candidate has not been elected yet, and has no entry of a term beyond its own.
pub(crate) fn vote(request: &VoteRequest) -> Checked {
    require(!request.vote.committed, "a candidate that leads already")?;
    let last = request.last_log_id.as_ref().map_or(0, term_of);
    let own = request.vote.leader_id.term;
    require(last <= own, "a candidate from before its own entries")
}

/// A snapshot stands for entries that its leader knows to be committed, and was made by its members.
pub(crate) fn snapshot(offer: &SnapshotOffer) -> Checked {
    require(offer.vote.committed, "a snapshot of nobody who was elected")?;
    let meta = &offer.snapshot.meta;
    let Some(last) = &meta.last_log_id else {
        return require(false, "a snapshot of nothing");
    };
    let leader = offer.vote.leader_id.term;
    require(term_of(last) <= leader, "a snapshot of the future")?;
    let state = offer.snapshot.snapshot;
    require(
        state.start_offset >= Offset::ZERO && state.log_start >= Offset::ZERO,
        "a snapshot of negative offsets",
    )?;
    let members = meta.last_membership.log_id();
    require(
        *members <= Some(*last),
        "a snapshot from before its members",
    )
}

/// Only who has been elected hands over.
pub(crate) fn transfer(request: &TransferRequest) -> Checked {
    require(
        request.from_leader().committed,
        "a transfer by nobody who was elected",
    )
}
