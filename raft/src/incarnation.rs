//! A partition's next group, begun by one replica of the last.
//!
//! A group that has lost most of its voters for good can decide nothing more, not even that they are
//! gone. The metadata then gives the partition another *incarnation*: a new group, of which one
//! replica, the *founder*, is the first and only voter. What is in the founder's log is from then on
//! what was committed. Whatever others had acknowledged and the founder lacks is lost, and that is what
//! makes it unclean.
//!
//! The two groups are never merged, whoever of the old one is still at work:
//!
//! - The incarnation is part of the group's key: it is in every message, in the vote file and in the
//!   journal. A replica takes part in one incarnation at a time, and never in an earlier one than its
//!   journal says; messages of another one are for a group that it does not serve.
//! - A new incarnation begins at a term that is beyond all that were known, and keeps no entry of the old
//!   one from that term on. So term and index say what an entry is, across incarnations too: in a log of
//!   incarnation `n` entries of earlier terms than `n` are those of the groups before.
//! - The journal is replaced as a whole when a replica enters, so a crash leaves it in one or the other.
//!
//! Replicas other than the founder keep what the founder is known to share: entries that were committed
//! before it was chosen. The rest goes, and the new group's leader gives them its own. Until a replica has
//! an entry of the new incarnation it stands for no election, for the voters that it knows are those of
//! the old one, and it votes only for who has one (module [`crate::emptied`]). One that has dropped, by
//! retention, more than the founder is known to have had starts over with an empty log, as does one that
//! has missed an incarnation.
//!
//! Absent on purpose: choosing the founder. The metadata does that, by [`Standing`]s.

use std::collections::BTreeSet;

use odradek_protocol::ids::{NodeId, Offset};
use odradek_storage::Log;

use crate::emptied::Part;
use crate::entry_map::{EntryMap, Location, Pending, Purged};
use crate::error::RaftError;
use crate::group::Group;
use crate::log_core::nth_header;
use crate::node::{GroupSpec, bootstrap_membership};
use crate::types::{Incarnation, RaftIndex, StoredMembership, log_id, node_id, term_of};

/// How an incarnation came from the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Succession {
    /// The one before.
    pub predecessor: Incarnation,
    /// The replica whose log is the new group's.
    pub founder: NodeId,
    /// Entries before this index were committed on the founder when it was chosen: who has them has
    /// the same.
    pub kept_end: RaftIndex,
    /// Where the founder's log started then.
    pub log_start: Offset,
}

/// What entering an incarnation comes to for a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Nothing: its journal is of that incarnation.
    Stay,
    /// It begins the new group with its log.
    Found,
    /// It keeps what is shared.
    Join(RaftIndex),
    /// It keeps nothing.
    StartOver,
    /// It holds nothing, and nobody else ever will: it begins the group anew.
    Begin,
}

/// What a replica whose journal says `map` has to do to be opened as `spec` says.
pub(crate) fn entry(spec: &GroupSpec, map: &EntryMap, me: NodeId) -> Result<Entry, RaftError> {
    let (found, wanted) = (map.incarnation(), spec.key.incarnation);
    let is_empty = map.last_log_id().is_none();
    let is_all_there_is = spec.bootstrap && spec.voters == [me];
    if found > wanted {
        return Err(RaftError::LaterIncarnation {
            group: spec.key,
            found,
        });
    }
    if is_empty && is_all_there_is && wanted != Incarnation::FIRST {
        return Ok(Entry::Begin);
    }
    if found == wanted {
        // One that was starting over may have been stopped before its old records were gone.
        return Ok(match is_empty && wanted != Incarnation::FIRST {
            true => Entry::StartOver,
            false => Entry::Stay,
        });
    }
    let Some(succession) = spec.succession.filter(|_| !is_empty) else {
        return Ok(Entry::StartOver);
    };
    let founds = succession.founder == me;
    if succession.predecessor != found {
        // It has missed one, and knows nothing of what was given up then.
        return match founds {
            false => Ok(Entry::StartOver),
            true => Err(RaftError::OtherPredecessor {
                group: spec.key,
                found,
            }),
        };
    }
    if founds {
        return match map.last_term() < wanted.term() {
            true => Ok(Entry::Found),
            false => Err(RaftError::LaterIncarnation {
                group: spec.key,
                found: Incarnation::new(u32::try_from(map.last_term()).unwrap_or(u32::MAX)),
            }),
        };
    }
    let purged = map.purged();
    let is_shared = purged.last.is_none_or(|last| {
        last.index() < succession.kept_end.get()
            && term_of(&last) < wanted.term()
            && purged.log_start <= succession.log_start
    });
    Ok(match is_shared {
        true => Entry::Join(succession.kept_end),
        false => Entry::StartOver,
    })
}

/// Where the log of a replica that joins is cut off: the first entry that is not known to be shared,
/// and its offset.
pub(crate) fn cut_of(
    map: &EntryMap,
    log: &Log,
    kept_end: RaftIndex,
    incarnation: Incarnation,
) -> Result<(RaftIndex, Offset), RaftError> {
    let later_term = map.first_of_term(incarnation.term());
    let cut = kept_end
        .min(later_term.unwrap_or(kept_end))
        .clamp(map.first_index(), map.next_index());
    let offset = match map.locate(cut) {
        Location::NonData { offset, .. } => offset,
        Location::Batch {
            anchor_offset,
            ordinal,
            ..
        } => match ordinal.checked_sub(1) {
            None => anchor_offset,
            Some(before) => nth_header(&log.reader(), anchor_offset, before)?.next_offset(),
        },
        Location::Absent => map.next_offset(),
    };
    Ok((cut, offset))
}

/// Begins a group with all that a replica has.
///
/// Its log may end before where it starts: that of one which has been told of a log start and was not given
/// what comes before it. Whoever leads it gives it the rest, and a founder has nobody; but its next record
/// must not come to lie where nobody reads it. So it goes on at the log start. Others have the same entries
/// and go on elsewhere, and have to be told: the group's first entry is then one that has been dropped, which
/// nobody else has, so that all get a snapshot.
pub(crate) fn found(map: &mut EntryMap, incarnation: Incarnation, me: u64) {
    let alone = bootstrap_membership(&[node_id(me)]);
    let log_start = map.log_start_before(map.next_index());
    if map.next_offset() >= log_start {
        map.found(incarnation, alone);
        return;
    }
    let first = log_id(incarnation.term(), map.next_index().get());
    let skipped = Purged {
        last: Some(first),
        start_offset: log_start,
        log_start,
        membership: StoredMembership::new(Some(first), alone),
    };
    *map = EntryMap::starting_after(skipped).in_incarnation_of(&EntryMap::empty_in(incarnation));
    map.set_pending(Pending::Restart(log_start));
}

/// What a replica has and knows, for whoever has to choose a founder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Incarnation that the replica takes part in.
    pub incarnation: Incarnation,
    /// Whether it takes its full part: it is not one that waits to be given its log, or is being.
    pub is_whole: bool,
    /// Whether it leads and a majority of the voters answers it.
    pub leads: bool,
    /// The last term that it has voted in or heard of.
    pub term: u64,
    /// Term and index of its last entry; `None` for an empty log.
    pub last: Option<(u64, RaftIndex)>,
    /// Entries before this index are committed, as it knows.
    pub committed_end: RaftIndex,
    /// Where its log starts.
    pub log_start: Offset,
    /// The highest offset that it knows to be committed.
    pub high_watermark: Offset,
    /// Where its log ends.
    pub log_end: Offset,
    /// The sets of voters of each of which a majority decides, by its newest entry about that.
    pub voters: Vec<BTreeSet<NodeId>>,
}

impl Standing {
    /// Whether those voters of whom `counts` is true can decide.
    pub fn is_quorum(&self, counts: impl Fn(NodeId) -> bool) -> bool {
        !self.voters.is_empty()
            && self.voters.iter().all(|voters| {
                let counted = voters.iter().filter(|voter| counts(**voter)).count();
                counted > voters.len() / 2
            })
    }
}

impl Group {
    /// What this replica has and knows.
    pub fn standing(&self) -> Standing {
        let key = self.key();
        let vote = self.core.votes.get(key);
        let (applied, _) = self.core.applied_state();
        let last = self.core.last_log_id();
        let offsets = self.offsets();
        let raft_index = |id: &crate::types::LogId| RaftIndex::new(id.index());
        Standing {
            incarnation: key.incarnation,
            // One whose disk has failed neither votes nor stores anything.
            is_whole: self.emptied.part() == Part::Whole && self.offline_cause().is_none(),
            leads: self.leadership().is_ready_leader() && self.holds_lease(),
            term: vote.map_or(0, |vote| vote.leader_id.term),
            last: last.map(|id| (term_of(&id), raft_index(&id))),
            committed_end: applied.map_or(RaftIndex::ZERO, |id| raft_index(&id).next()),
            log_start: offsets.log_start.offset(),
            high_watermark: offsets.high_watermark.offset(),
            log_end: self.reader().log_end().max(offsets.log_start.offset()),
            voters: self.membership().configs().to_vec(),
        }
    }
}
