//! Which Raft entry is where: the arithmetic that lets segments hold nothing but batches.
//!
//! A log is batches plus a few *marks*. A mark says "the entry after me has this Raft index, and
//! the first batch after me has this offset". The index of a batch is that of the mark before it
//! plus the batch's ordinal after the mark. Entries that are not batches are marks themselves;
//! segment rolls and checkpoints are marks only so that less has to be counted.
//!
//! Invariants: `next_index` and `offset` of the marks never decrease; between two marks there are
//! at most as many batches as offsets; the term of a batch is that of the mark before it, because
//! every leader's first entry is a blank one. So terms, memberships and indexes are answered from
//! memory, and a batch of another term than its mark is not part of this log.
//!
//! No I/O here.

use std::collections::VecDeque;

use odradek_protocol::ids::Offset;

use crate::types::{Incarnation, LogId, Membership, RaftIndex, StoredMembership, log_id, term_of};

/// An entry that is not a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NonData {
    /// First entry of a leader's term.
    Blank,
    /// The voters and learners from here on.
    Membership(Membership),
    /// Everything below this offset is gone once this is committed.
    LogStart(Offset),
}

/// Everything up to and including `last` has been dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Purged {
    /// The last dropped entry; `None` while nothing is.
    pub(crate) last: Option<LogId>,
    /// Offset of the first batch that is still there, or will be.
    pub(crate) start_offset: Offset,
    /// First readable offset when the entries were dropped. Below `start_offset` where records stay
    /// readable that no entry stands for any more: those that may be compacted.
    pub(crate) log_start: Offset,
    /// Membership in effect at `last`.
    pub(crate) membership: StoredMembership,
}

impl Purged {
    /// Offset below which the segments hold nothing that is wanted.
    pub(crate) fn kept_from(&self) -> Offset {
        self.log_start.min(self.start_offset)
    }

    fn next_index(&self) -> RaftIndex {
        self.last
            .as_ref()
            .map_or(RaftIndex::ZERO, |id| RaftIndex::new(id.index()).next())
    }
}

/// What a mark is besides an anchor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MarkKind {
    /// The entry just before `next_index`.
    NonData(NonData),
    /// A segment begins at `offset`.
    SegmentRoll,
    /// Nothing else; `high_watermark` was committed when it was written.
    Checkpoint {
        /// End of what was committed, as an offset.
        high_watermark: Offset,
        /// End of what was committed, as an index: the first entry that was not.
        committed_end: RaftIndex,
    },
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Index of the first entry after the mark.
    pub(crate) next_index: RaftIndex,
    /// Offset of the first batch after the mark.
    pub(crate) offset: Offset,
    /// Term of the batches after the mark.
    pub(crate) term: u64,
    /// What else it is.
    pub(crate) kind: MarkKind,
}

/// Where an entry is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Location<'a> {
    /// Dropped, or never there.
    Absent,
    /// Not a batch; the log continues at `offset`.
    NonData {
        term: u64,
        offset: Offset,
        entry: &'a NonData,
    },
    /// The batch that is `ordinal` batches after the one at `anchor_offset`.
    Batch {
        term: u64,
        anchor_offset: Offset,
        ordinal: u64,
    },
}

/// A change of the segments that cannot be taken back: it is to be carried out before anything else is
/// made of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    /// They are cut off at this offset.
    Cut(Offset),
    /// All of them go, and the log goes on, empty, at this offset.
    Restart(Offset),
}

/// A mark that cannot follow those before it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "mark at index {next_index} and offset {offset} contradicts the one before it at index {last_index} and offset {last_offset}"
)]
pub(crate) struct Contradiction {
    next_index: RaftIndex,
    offset: Offset,
    last_index: RaftIndex,
    last_offset: Offset,
}

/// The marks of one log, and its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct EntryMap {
    incarnation: Incarnation,
    /// What is to be done to the segments, if that is not known to be done.
    pending: Option<Pending>,
    purged: Purged,
    marks: VecDeque<Mark>,
    next_index: RaftIndex,
    next_offset: Offset,
}

impl EntryMap {
    /// A log of which everything up to `purged.last` is gone and nothing has followed.
    pub(crate) fn starting_after(purged: Purged) -> Self {
        Self {
            next_index: purged.next_index(),
            next_offset: purged.start_offset,
            purged,
            marks: VecDeque::new(),
            ..Self::default()
        }
    }

    /// An empty log of that incarnation.
    pub(crate) fn empty_in(incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            ..Self::default()
        }
    }

    /// The same of that incarnation, and with the same to be done to the segments.
    pub(crate) fn in_incarnation_of(self, other: &Self) -> Self {
        Self {
            incarnation: other.incarnation,
            pending: other.pending,
            ..self
        }
    }

    /// Which of the partition's groups the log is of.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// What is to be done to the segments, if that is not known to be done.
    pub(crate) fn pending(&self) -> Option<Pending> {
        self.pending
    }

    /// This is to be done to the segments, of which the map is already what it makes of them.
    pub(crate) fn set_pending(&mut self, pending: Pending) {
        self.pending = Some(pending);
    }

    /// What was to be done to the segments has been done, durably.
    pub(crate) fn is_carried_out(&mut self) {
        self.pending = None;
    }

    /// Begins the next incarnation with all that there is. Its first entry says who votes.
    pub(crate) fn found(&mut self, incarnation: Incarnation, voters: Membership) {
        self.incarnation = incarnation;
        self.push_non_data(incarnation.term(), NonData::Membership(voters));
    }

    /// Enters an incarnation that another replica has begun, with what comes before `cut`, which is at
    /// `offset`. What is committed is to be told anew.
    pub(crate) fn join(&mut self, incarnation: Incarnation, cut: RaftIndex, offset: Offset) {
        self.truncate(cut, offset);
        self.marks
            .retain(|mark| !matches!(mark.kind, MarkKind::Checkpoint { .. }));
        self.incarnation = incarnation;
        self.set_pending(Pending::Cut(offset));
    }

    /// Index of the first entry of this term or a later one.
    pub(crate) fn first_of_term(&self, term: u64) -> Option<RaftIndex> {
        let mark = self
            .marks
            .iter()
            .find(|mark| matches!(mark.kind, MarkKind::NonData(_)) && mark.term >= term)?;
        Some(RaftIndex::new(mark.next_index.get().saturating_sub(1)))
    }

    pub(crate) fn purged(&self) -> &Purged {
        &self.purged
    }

    pub(crate) fn marks(&self) -> impl Iterator<Item = &Mark> {
        self.marks.iter()
    }

    /// Index of the entry that comes next.
    pub(crate) fn next_index(&self) -> RaftIndex {
        self.next_index
    }

    /// Offset of the batch that comes next.
    pub(crate) fn next_offset(&self) -> Offset {
        self.next_offset
    }

    /// Index of the first entry that is still there.
    pub(crate) fn first_index(&self) -> RaftIndex {
        self.purged.next_index()
    }

    /// Term of the last entry; 0 in an empty log.
    pub(crate) fn last_term(&self) -> u64 {
        self.marks
            .back()
            .map_or_else(|| self.purged_term(), |mark| mark.term)
    }

    /// The last entry, dropped ones included.
    pub(crate) fn last_log_id(&self) -> Option<LogId> {
        if self.next_index == self.first_index() {
            return self.purged.last;
        }
        Some(log_id(self.last_term(), self.next_index.get() - 1))
    }

    /// Counts one more batch that takes `records` offsets.
    pub(crate) fn push_batch(&mut self, records: i64) {
        assert!(records > 0, "a batch takes at least one offset");
        self.next_index = self.next_index.next();
        self.next_offset = self.next_offset.plus(records);
    }

    /// Adds an entry that is not a batch.
    pub(crate) fn push_non_data(&mut self, term: u64, entry: NonData) {
        assert!(term >= self.last_term(), "terms never decrease along a log");
        self.next_index = self.next_index.next();
        self.marks.push_back(Mark {
            next_index: self.next_index,
            offset: self.next_offset,
            term,
            kind: MarkKind::NonData(entry),
        });
    }

    /// Notes that a segment begins here.
    pub(crate) fn push_roll(&mut self) {
        self.push_anchor(MarkKind::SegmentRoll);
    }

    /// Notes where the log ends now.
    pub(crate) fn push_checkpoint(&mut self, high_watermark: Offset, committed_end: RaftIndex) {
        self.push_anchor(MarkKind::Checkpoint {
            high_watermark,
            committed_end,
        });
    }

    fn push_anchor(&mut self, kind: MarkKind) {
        self.marks.push_back(Mark {
            next_index: self.next_index,
            offset: self.next_offset,
            term: self.last_term(),
            kind,
        });
    }

    /// Adds a mark read back from the journal; the log's end moves to the mark.
    pub(crate) fn replay(&mut self, mark: Mark) -> Result<(), Contradiction> {
        let (last_index, last_offset) = self.anchor_after_last_mark();
        let is_entry = matches!(mark.kind, MarkKind::NonData(_));
        let entries = mark.next_index.get().checked_sub(last_index.get());
        let batches = entries.and_then(|count| count.checked_sub(u64::from(is_entry)));
        let offsets = mark.offset.get().checked_sub(last_offset.get());
        let possible = match (batches, offsets) {
            (Some(0), Some(0)) => true,
            (Some(batches), Some(offsets)) => {
                batches > 0 && u64::try_from(offsets).is_ok_and(|offsets| offsets >= batches)
            }
            _ => false,
        };
        if !possible || mark.term < self.last_term() {
            return Err(Contradiction {
                next_index: mark.next_index,
                offset: mark.offset,
                last_index,
                last_offset,
            });
        }
        self.next_index = mark.next_index;
        self.next_offset = mark.offset;
        self.marks.push_back(mark);
        Ok(())
    }

    /// Index and offset of the first batch after the last mark: where counting starts.
    pub(crate) fn anchor_after_last_mark(&self) -> (RaftIndex, Offset) {
        self.marks.back().map_or_else(
            || (self.purged.next_index(), self.purged.start_offset),
            |mark| (mark.next_index, mark.offset),
        )
    }

    /// Up to where the log was durable when these marks were written. A mark that begins something
    /// is synced, with the log before it, before any batch behind it is written; so it was, if a
    /// later mark stands behind such a batch.
    pub(crate) fn durable_end(&self) -> Offset {
        let Some(last) = self.marks.back() else {
            return self.purged.start_offset;
        };
        self.marks
            .iter()
            .rev()
            .find(|mark| {
                !matches!(mark.kind, MarkKind::Checkpoint { .. }) && mark.offset < last.offset
            })
            .map_or(self.purged.start_offset, |mark| mark.offset)
    }

    /// Forgets the marks that come after batches which the log does not have, and moves the end
    /// back to the last mark that is left. Returns whether any mark was dropped.
    pub(crate) fn drop_marks_beyond(&mut self, log_end: Offset) -> bool {
        let before = self.marks.len();
        while self.marks.back().is_some_and(|mark| mark.offset > log_end) {
            self.marks.pop_back();
        }
        (self.next_index, self.next_offset) = self.anchor_after_last_mark();
        self.marks.len() != before
    }

    /// The term that a batch at `offset` must have.
    pub(crate) fn term_at(&self, offset: Offset) -> u64 {
        let after = self.marks.partition_point(|mark| mark.offset <= offset);
        match after.checked_sub(1).and_then(|last| self.marks.get(last)) {
            Some(mark) => mark.term,
            None => self.purged_term(),
        }
    }

    /// Where the entry with this index is.
    pub(crate) fn locate(&self, index: RaftIndex) -> Location<'_> {
        if index < self.first_index() || index >= self.next_index {
            return Location::Absent;
        }
        // An entry's own mark is the first whose `next_index` is beyond it.
        let own = self.marks.partition_point(|mark| mark.next_index <= index);
        if let Some(mark) = self.marks.get(own)
            && mark.next_index == index.next()
            && let MarkKind::NonData(entry) = &mark.kind
        {
            return Location::NonData {
                term: mark.term,
                offset: mark.offset,
                entry,
            };
        }
        let (anchor_index, anchor_offset, term) =
            match own.checked_sub(1).and_then(|last| self.marks.get(last)) {
                Some(mark) => (mark.next_index, mark.offset, mark.term),
                None => (
                    self.purged.next_index(),
                    self.purged.start_offset,
                    self.purged_term(),
                ),
            };
        Location::Batch {
            term,
            anchor_offset,
            ordinal: index.get() - anchor_index.get(),
        }
    }

    /// Term and index of an entry that is there, or of the last dropped one.
    pub(crate) fn log_id_at(&self, index: RaftIndex) -> Option<LogId> {
        match self.locate(index) {
            Location::NonData { term, .. } | Location::Batch { term, .. } => {
                Some(log_id(term, index.get()))
            }
            Location::Absent => self.purged.last.filter(|id| id.index() == index.get()),
        }
    }

    /// Last entry of every term within `first..=last`: what openraft builds its own index from.
    /// (Its documentation of `get_key_log_ids` says the first of every term; its code, and every
    /// look-up in the result, takes the last.)
    pub(crate) fn key_log_ids(&self, first: LogId, last: LogId) -> Vec<LogId> {
        let mut ids = Vec::new();
        let mut term = term_of(&first);
        for mark in &self.marks {
            let index = mark.next_index.get().saturating_sub(1);
            if matches!(mark.kind, MarkKind::NonData(_))
                && mark.term > term
                && index > first.index()
                && index <= last.index()
            {
                ids.push(log_id(term, index - 1));
                term = mark.term;
            }
        }
        ids.push(last);
        ids
    }

    /// The membership in effect after the entry with this index.
    pub(crate) fn membership_at(&self, index: RaftIndex) -> StoredMembership {
        let (id, membership) = self.look_at_membership(index);
        StoredMembership::new(id, membership.clone())
    }

    /// The same, to look at: which entry says it, and what it says.
    pub(crate) fn look_at_membership(&self, index: RaftIndex) -> (Option<LogId>, &Membership) {
        let purged = &self.purged.membership;
        self.marks
            .iter()
            .rev()
            .filter(|mark| mark.next_index <= index.next())
            .find_map(|mark| match &mark.kind {
                MarkKind::NonData(NonData::Membership(membership)) => {
                    let id = log_id(mark.term, mark.next_index.get() - 1);
                    Some((Some(id), membership))
                }
                _ => None,
            })
            .unwrap_or_else(|| (*purged.log_id(), purged.membership()))
    }

    /// The furthest log start among the entries before `end`.
    pub(crate) fn log_start_before(&self, end: RaftIndex) -> Offset {
        self.marks
            .iter()
            .filter(|mark| mark.next_index <= end)
            .filter_map(|mark| match mark.kind {
                MarkKind::NonData(NonData::LogStart(offset)) => Some(offset),
                _ => None,
            })
            .fold(self.purged.log_start, Offset::max)
    }

    /// What the last checkpoint says was committed: `(high watermark, first uncommitted index)`.
    pub(crate) fn last_checkpoint(&self) -> Option<(Offset, RaftIndex)> {
        self.marks.iter().rev().find_map(|mark| match mark.kind {
            MarkKind::Checkpoint {
                high_watermark,
                committed_end,
            } => Some((high_watermark, committed_end)),
            _ => None,
        })
    }

    /// The last entry before the segment or mark that starts at or below `offset`: everything up
    /// to it can be dropped once nothing below `offset` is wanted. `None` when that is no progress.
    pub(crate) fn purge_point(&self, segment_base: Offset) -> Option<LogId> {
        let roll = self.marks.iter().rev().find(|mark| {
            matches!(mark.kind, MarkKind::SegmentRoll) && mark.offset <= segment_base
        })?;
        let last = roll.next_index.get().checked_sub(1).map(RaftIndex::new)?;
        self.log_id_at(last)
            .filter(|id| Some(id) > self.purged.last.as_ref())
    }

    /// Offset of the first batch at or after the entry that follows `last`, where a mark stands
    /// right there.
    pub(crate) fn offset_after(&self, last: RaftIndex) -> Option<Offset> {
        if last.next() == self.next_index {
            return Some(self.next_offset);
        }
        let after = self
            .marks
            .partition_point(|mark| mark.next_index < last.next());
        self.marks
            .get(after)
            .filter(|mark| mark.next_index == last.next())
            .map(|mark| mark.offset)
    }

    /// The mark that was added last.
    pub(crate) fn last_mark(&self) -> Option<&Mark> {
        self.marks.back()
    }

    /// Forgets every entry from `next_index` on; the caller knows at which offset that is.
    pub(crate) fn truncate(&mut self, next_index: RaftIndex, next_offset: Offset) {
        assert!(
            next_index >= self.first_index(),
            "dropped entries are committed"
        );
        assert!(
            next_index <= self.next_index,
            "truncation cannot extend a log"
        );
        while self
            .marks
            .back()
            .is_some_and(|mark| mark.next_index > next_index)
        {
            self.marks.pop_back();
        }
        // Only a checkpoint or roll can stand at the cut itself; its offset is then the cut's.
        self.next_index = next_index;
        self.next_offset = next_offset;
    }

    /// Drops everything up to and including `last`; the first batch left is at `start_offset`.
    /// Records from `log_start` on stay readable.
    pub(crate) fn purge(&mut self, last: LogId, start_offset: Offset, log_start: Offset) {
        let membership = self.membership_at(RaftIndex::new(last.index()));
        let next = RaftIndex::new(last.index()).next();
        while self
            .marks
            .front()
            .is_some_and(|mark| mark.next_index <= next)
        {
            self.marks.pop_front();
        }
        self.purged = Purged {
            last: Some(last),
            start_offset,
            log_start,
            membership,
        };
    }

    /// Notes how far the log start has come since entries were last dropped.
    pub(crate) fn raise_purged_log_start(&mut self, log_start: Offset) {
        self.purged.log_start = self.purged.log_start.max(log_start);
    }

    fn purged_term(&self) -> u64 {
        self.purged.last.as_ref().map_or(0, term_of)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn members(ids: &[u64]) -> Membership {
        Membership::new_with_defaults(vec![ids.iter().copied().collect::<BTreeSet<_>>()], [])
    }

    /// 0: membership, 1: blank of term 1, 2 and 3: batches of 10 and 5, 4: blank of term 3,
    /// 5: batch of 1, a roll, 6: log start, 7: batch of 2.
    fn sample() -> EntryMap {
        let mut map = EntryMap::default();
        map.push_non_data(0, NonData::Membership(members(&[1])));
        map.push_non_data(1, NonData::Blank);
        map.push_batch(10);
        map.push_batch(5);
        map.push_non_data(3, NonData::Blank);
        map.push_batch(1);
        map.push_roll();
        map.push_non_data(3, NonData::LogStart(Offset::new(12)));
        map.push_batch(2);
        map
    }

    fn batch_at(map: &EntryMap, index: u64) -> (u64, i64, u64) {
        match map.locate(RaftIndex::new(index)) {
            Location::Batch {
                term,
                anchor_offset,
                ordinal,
            } => (term, anchor_offset.get(), ordinal),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn index_of_a_batch_is_its_mark_plus_its_ordinal() {
        let map = sample();
        assert_eq!(batch_at(&map, 2), (1, 0, 0));
        assert_eq!(batch_at(&map, 3), (1, 0, 1));
        assert_eq!(batch_at(&map, 5), (3, 15, 0));
        assert_eq!(batch_at(&map, 7), (3, 16, 0));
        assert_eq!(
            map.locate(RaftIndex::new(6)),
            Location::NonData {
                term: 3,
                offset: Offset::new(16),
                entry: &NonData::LogStart(Offset::new(12))
            }
        );
        assert_eq!(map.locate(RaftIndex::new(8)), Location::Absent);
        assert_eq!(map.next_offset(), Offset::new(18));
        assert_eq!(map.last_log_id(), Some(log_id(3, 7)));
    }

    #[test]
    fn terms_and_key_log_ids_come_from_memory() {
        let map = sample();
        assert_eq!(map.term_at(Offset::new(14)), 1);
        assert_eq!(map.term_at(Offset::new(15)), 3);
        assert_eq!(map.log_id_at(RaftIndex::new(3)), Some(log_id(1, 3)));
        assert_eq!(
            map.key_log_ids(log_id(0, 0), log_id(3, 7)),
            [log_id(0, 0), log_id(1, 3), log_id(3, 7)]
        );
        assert_eq!(map.key_log_ids(log_id(1, 2), log_id(1, 3)), [log_id(1, 3)]);
        assert_eq!(
            map.key_log_ids(log_id(1, 3), log_id(3, 5)),
            [log_id(1, 3), log_id(3, 5)]
        );
    }

    #[test]
    fn a_journal_read_back_gives_the_same_marks() {
        let map = sample();
        let mut again = EntryMap::starting_after(map.purged().clone());
        for mark in map.marks() {
            again.replay(mark.clone()).unwrap();
        }
        again.push_batch(2);
        assert!(again.marks().eq(map.marks()));
        assert_eq!(again.next_index(), map.next_index());
        assert_eq!(again.next_offset(), map.next_offset());
    }

    #[test]
    fn marks_that_contradict_each_other_are_refused() {
        let mark = |next_index, offset, term, kind| Mark {
            next_index: RaftIndex::new(next_index),
            offset: Offset::new(offset),
            term,
            kind,
        };
        let blank = || MarkKind::NonData(NonData::Blank);
        for bad in [
            mark(0, 0, 1, blank()),
            mark(2, 0, 1, blank()),
            mark(1, 4, 1, blank()),
            mark(5, 3, 1, MarkKind::SegmentRoll),
        ] {
            assert!(EntryMap::default().replay(bad.clone()).is_err(), "{bad:?}");
        }
        let mut map = EntryMap::default();
        map.replay(mark(1, 0, 2, blank())).unwrap();
        assert!(map.replay(mark(2, 0, 1, blank())).is_err(), "terms fell");
    }

    #[test]
    fn marks_after_lost_batches_are_dropped() {
        let mut map = sample();
        assert!(map.drop_marks_beyond(Offset::new(15)));
        assert_eq!(
            map.anchor_after_last_mark(),
            (RaftIndex::new(5), Offset::new(15))
        );
        assert_eq!(map.last_log_id(), Some(log_id(3, 4)));
        assert!(!map.drop_marks_beyond(Offset::new(15)));
    }

    #[test]
    fn what_stands_before_a_mark_with_batches_behind_it_was_durable() {
        let mut map = sample();
        // The log start at 16 is the last mark; the blank of term 3 at 15 has a batch behind it.
        assert_eq!(map.durable_end(), Offset::new(15));
        map.push_checkpoint(Offset::new(18), RaftIndex::new(8));
        assert_eq!(map.durable_end(), Offset::new(16));
        map.push_batch(1);
        map.push_checkpoint(Offset::new(19), RaftIndex::new(9));
        assert_eq!(
            map.durable_end(),
            Offset::new(16),
            "checkpoints are not synced"
        );
        assert_eq!(EntryMap::default().durable_end(), Offset::ZERO);
    }

    #[test]
    fn truncation_forgets_marks_and_terms() {
        let mut map = sample();
        map.truncate(RaftIndex::new(3), Offset::new(10));
        assert_eq!(map.last_log_id(), Some(log_id(1, 2)));
        assert_eq!(map.next_offset(), Offset::new(10));
        map.push_non_data(4, NonData::Blank);
        assert_eq!(map.last_log_id(), Some(log_id(4, 3)));
    }

    #[test]
    fn purging_keeps_membership_and_log_start() {
        let mut map = sample();
        let last = map.purge_point(Offset::new(17)).unwrap();
        assert_eq!(last, log_id(3, 5));
        map.purge(last, Offset::new(16), Offset::new(16));
        assert_eq!(map.first_index(), RaftIndex::new(6));
        assert_eq!(map.purge_point(Offset::new(17)), None);
        assert_eq!(
            map.membership_at(RaftIndex::new(7)),
            StoredMembership::new(Some(log_id(0, 0)), members(&[1]))
        );
        assert_eq!(batch_at(&map, 7), (3, 16, 0));
        assert_eq!(map.log_id_at(RaftIndex::new(5)), Some(log_id(3, 5)));
        assert_eq!(map.last_log_id(), Some(log_id(3, 7)));
    }
}
