//! What a group's log consists of, and changing it: appending in the right order, cutting off,
//! dropping, starting over.
//!
//! Everything here is done under the lock of [`Core`](super::Core) and does not wait, but for the
//! writes into the page cache and the rare rewrite of the journal.

use std::collections::VecDeque;

use odradek_protocol::ids::{Offset, TimestampMs};
use odradek_storage::flush::FlushTarget;
use odradek_storage::{Log, Received, StampedBatch};

use crate::entry_map::{EntryMap, NonData, Pending, Purged};
use crate::error::RaftError;
use crate::journal::{self, Journal};
use crate::membership::GroupMembership;
use crate::types::{
    AppendOutcome, BatchCommand, Command, Entry, LogId, Membership, Payload, RaftIndex, Stamp,
    epoch_of, term_of,
};
use crate::waiter::CommitWaiter;

/// Batches between two checkpoints in the journal: what has to be counted when a log is opened.
const CHECKPOINT_EVERY: u64 = 4096;
/// Batches that wait for their commit with their offsets in memory. Beyond it, which only a
/// follower without news of commits reaches, they are looked up in the log.
const UNAPPLIED_MAX: usize = 1 << 16;

pub(super) struct State {
    pub(super) log: Log,
    pub(super) journal: Journal,
    pub(super) map: EntryMap,
    pub(super) unapplied: VecDeque<Unapplied>,
    pub(super) applied: Option<LogId>,
    /// The last snapshot built, until it is purged up to.
    pub(super) snapshot: Option<Purged>,
    /// Counts truncations and resets: positions remembered before one are void.
    pub(super) generation: u64,
    pub(super) batches_since_checkpoint: u64,
    pub(super) purge_requested: bool,
    /// Entries of records below this offset may be dropped although the records stay, so that
    /// they can be compacted.
    pub(super) compactable_end: Offset,
    /// The journal has marks that must be durable before the next batch is written.
    pub(super) barrier: bool,
    /// A flush of what `write.caching` has left in the page cache is on its way.
    pub(super) flush_delayed: bool,
    /// What [`State::members`] says may be something else than it was.
    pub(super) members_changed: bool,
    /// Records that are beside the log, and wait for the offer that they belong to to be taken.
    pub(super) received: Option<ReceivedLog>,
}

/// The records below the entry after `last`, beside the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceivedLog {
    pub(crate) last: LogId,
    pub(crate) log: Received,
}

pub(super) struct Unapplied {
    pub(super) index: RaftIndex,
    pub(super) outcome: AppendOutcome,
    pub(super) waiter: Option<CommitWaiter>,
}

/// What [`State::append_some`] needs next.
pub(super) enum Step {
    Done {
        /// Whether what was appended may count as safe before it is durable.
        cached: bool,
    },
    /// These have to be durable before it goes on.
    Sync(FlushTarget),
}

/// Entries on their way into the log, in order.
pub(super) enum Work {
    Mark(u64, NonData),
    Batches(Run),
}

/// Batches without an entry of another kind between them.
#[derive(Default)]
pub(super) struct Run {
    pub(super) stamped: Vec<StampedBatch>,
    pub(super) waiting: VecDeque<Unapplied>,
    /// How many of `stamped` are in the log.
    pub(super) done: usize,
}

impl State {
    /// Who takes part, by the newest entry about that.
    pub(super) fn members(&self) -> GroupMembership {
        let (id, newest) = self.newest_membership();
        GroupMembership::of(newest, self.is_committed(id))
    }

    /// What the newest entry about who takes part says, and which that is.
    fn newest_membership(&self) -> (Option<LogId>, &Membership) {
        let last = self.map.next_index().get().saturating_sub(1);
        self.map.look_at_membership(RaftIndex::new(last))
    }

    /// Who took part before the newest entry about that, as long as it is not known to be committed. There is
    /// one such entry at most: whichever decides is one of the two.
    pub(super) fn membership_before(&self) -> Option<&Membership> {
        let (id, _) = self.newest_membership();
        let id = id.filter(|_| !self.is_committed(id))?;
        let before = id.index().checked_sub(1)?;
        Some(self.map.look_at_membership(RaftIndex::new(before)).1)
    }

    /// Whether this is so by any of the memberships that may decide.
    pub(super) fn may_be_so(&self, is_so: impl Fn(&Membership) -> bool) -> bool {
        let (_, newest) = self.newest_membership();
        is_so(newest) || self.membership_before().is_some_and(is_so)
    }

    fn is_committed(&self, id: Option<LogId>) -> bool {
        id.is_some() && id <= self.applied
    }

    pub(super) fn flush_target(&self) -> FlushTarget {
        let mut target = self.log.flush_target();
        target.add(self.journal.file());
        target
    }

    /// Gives batches their offsets, and checks that every entry follows the one before it: openraft
    /// does so in debug builds only, and a hole would silently shift every index behind it.
    pub(super) fn prepare(
        &self,
        entries: Vec<Entry>,
        log_start: Offset,
    ) -> Result<VecDeque<Work>, RaftError> {
        let mut work = VecDeque::new();
        let mut index = self.map.next_index();
        let mut next = self.map.next_offset();
        let mut last_term = self.map.last_term();
        for entry in entries {
            let id = entry.log_id;
            let term = term_of(&id);
            let is_batch = matches!(entry.payload, Payload::Normal(Command::Batch(_)));
            // A leader's first entry is a blank one, so a batch never begins a term.
            if id.index() != index.get() || term < last_term || (is_batch && term != last_term) {
                return Err(RaftError::NotContiguous {
                    found: id.to_string(),
                    expected: index.get(),
                    last_term,
                });
            }
            match entry.payload {
                // openraft refused a batch before this one, so it must not take that one's place:
                // the producer will send both again. The entry stays, empty.
                Payload::Normal(Command::Batch(batch)) if batch.is_displaced(next) => {
                    work.push_back(Work::Mark(term, NonData::Blank));
                }
                Payload::Normal(Command::Batch(batch)) => {
                    let (stamped, unapplied) = stamp(*batch, index, term, next, log_start)?;
                    next = unapplied.outcome.last_offset.plus(1);
                    if !matches!(work.back(), Some(Work::Batches(_))) {
                        work.push_back(Work::Batches(Run::default()));
                    }
                    if let Some(Work::Batches(run)) = work.back_mut() {
                        run.stamped.push(stamped);
                        run.waiting.push_back(unapplied);
                    }
                }
                payload => work.push_back(Work::Mark(term, non_data(&id, payload)?)),
            }
            index = index.next();
            last_term = term;
        }
        Ok(work)
    }

    /// Appends until everything is done or something has to be durable first.
    pub(super) fn append_some(
        &mut self,
        work: &mut VecDeque<Work>,
        now: TimestampMs,
        high_watermark: Offset,
    ) -> Result<Step, RaftError> {
        while let Some(next) = work.front_mut() {
            // Nothing may be left half done for want of a descriptor.
            self.log.hold_open()?;
            self.journal
                .hold_open()
                .map_err(|error| RaftError::io("open the journal", error))?;
            self.note_carried_out()?;
            match next {
                Work::Mark(term, entry) => {
                    self.map.push_non_data(*term, entry.clone());
                    self.members_changed |= matches!(entry, NonData::Membership(_));
                    self.barrier = true;
                    self.write_last_mark()?;
                }
                Work::Batches(run) => {
                    if self.barrier && self.journal.file().is_dirty() {
                        return Ok(Step::Sync(self.flush_target()));
                    }
                    self.barrier = false;
                    if !self.append_run(run, now, high_watermark)? {
                        continue;
                    }
                }
            }
            work.pop_front();
        }
        Ok(Step::Done {
            cached: !self.barrier && self.log.config().write_caching,
        })
    }

    /// Appends batches up to the end of the active segment, or begins a new one, of which the
    /// journal has to know before it gets its first batch. Returns whether the run is done.
    pub(super) fn append_run(
        &mut self,
        run: &mut Run,
        now: TimestampMs,
        high_watermark: Offset,
    ) -> Result<bool, RaftError> {
        let (_, rest) = run.stamped.split_at(run.done);
        let fitting = self.log.fitting(rest, now)?;
        if fitting == 0 && !rest.is_empty() {
            self.roll(now)?;
            return Ok(false);
        }
        let (batches, rest) = rest.split_at(fitting);
        let done = rest.is_empty();
        self.log.append(batches)?;
        run.done += fitting;
        for _ in 0..fitting {
            let Some(unapplied) = run.waiting.pop_front() else {
                break;
            };
            let outcome = unapplied.outcome;
            self.map
                .push_batch(outcome.last_offset.get() - outcome.base_offset.get() + 1);
            self.remember(unapplied);
        }
        self.batches_since_checkpoint += fitting as u64;
        if self.batches_since_checkpoint >= CHECKPOINT_EVERY {
            self.checkpoint(high_watermark)?;
        }
        Ok(done)
    }

    pub(super) fn roll(&mut self, now: TimestampMs) -> Result<(), RaftError> {
        self.log.roll(now)?;
        self.map.push_roll();
        self.barrier = true;
        if self.journal.wants_rewrite() {
            match self.rewrite_journal() {
                // The file is as it was, and takes the mark at its end.
                Err(error) if error.is_out_of_descriptors() => {}
                result => return result,
            }
        }
        self.write_last_mark()
    }

    pub(super) fn remember(&mut self, mut unapplied: Unapplied) {
        if let Some(waiter) = &mut unapplied.waiter {
            waiter.appended(unapplied.outcome);
        }
        if self.unapplied.len() >= UNAPPLIED_MAX && unapplied.waiter.is_none() {
            // Only the newest matter less: the oldest are applied first.
            return;
        }
        self.unapplied.push_back(unapplied);
    }

    pub(super) fn write_last_mark(&mut self) -> Result<(), RaftError> {
        let Some(mark) = self.map.last_mark() else {
            return Ok(());
        };
        self.journal
            .append([mark])
            .map_err(|error| RaftError::io("write the journal", error))
    }

    pub(super) fn checkpoint(&mut self, high_watermark: Offset) -> Result<(), RaftError> {
        let committed_end = self
            .applied
            .map_or(RaftIndex::ZERO, |id| RaftIndex::new(id.index()).next());
        self.map.push_checkpoint(high_watermark, committed_end);
        self.batches_since_checkpoint = 0;
        self.write_last_mark()
    }

    pub(super) fn truncate(
        &mut self,
        next: RaftIndex,
        now: TimestampMs,
    ) -> Result<(Vec<Unapplied>, FlushTarget), RaftError> {
        if next >= self.map.next_index() {
            return Ok((Vec::new(), self.flush_target()));
        }
        let offset = self.offset_of(next)?;
        let applied = self.applied.as_ref().map(|id| id.index());
        assert!(
            applied.is_none_or(|applied| applied < next.get()),
            "committed entries are never truncated: {applied:?} from {next}"
        );
        self.map.truncate(next, offset);
        self.members_changed = true;
        self.change_segments(Pending::Cut(offset), now)?;
        let first = self
            .unapplied
            .partition_point(|unapplied| unapplied.index < next);
        let given_up = self.unapplied.split_off(first).into();
        Ok((given_up, self.flush_target()))
    }

    pub(super) fn purge(
        &mut self,
        last: LogId,
        log_start: Offset,
        now: TimestampMs,
    ) -> Result<(), RaftError> {
        let start_offset = self.offset_of(RaftIndex::new(last.index()).next())?;
        self.map.purge(last, start_offset, log_start);
        self.rewrite_journal()?;
        self.log.set_log_start(self.map.purged().kept_from(), now)?;
        Ok(())
    }

    /// Whether a whole segment lies below `log_start` whose entries have been dropped before.
    pub(super) fn has_records_without_entries(&self, log_start: Offset) -> bool {
        let below = log_start.min(self.map.purged().start_offset);
        self.log.has_segment_below(below)
    }

    pub(super) fn drop_records_without_entries(
        &mut self,
        log_start: Offset,
        now: TimestampMs,
    ) -> Result<(), RaftError> {
        self.map.raise_purged_log_start(log_start);
        self.rewrite_journal()?;
        self.log.set_log_start(self.map.purged().kept_from(), now)?;
        Ok(())
    }

    /// Takes over where a leader's log starts, with the records that have been received if some stay
    /// readable. Returns who waits in vain from now on, and the first readable offset.
    pub(super) fn install(
        &mut self,
        snapshot: &Purged,
        now: TimestampMs,
    ) -> Result<(Vec<Unapplied>, Offset), RaftError> {
        let log_start = snapshot.log_start;
        let Some(last) = snapshot.last else {
            return Ok((Vec::new(), log_start));
        };
        self.members_changed = true;
        if self.map.log_id_at(RaftIndex::new(last.index())) == Some(last) {
            self.snapshot = Some(snapshot.clone());
            if self.applied.is_none_or(|applied| applied < last) {
                self.applied = Some(last);
            }
            return Ok((Vec::new(), log_start));
        }
        let log_start = if log_start < snapshot.start_offset {
            self.adopt(snapshot, last, now)?
        } else {
            self.map = EntryMap::starting_after(snapshot.clone()).in_incarnation_of(&self.map);
            self.change_segments(Pending::Restart(snapshot.start_offset), now)?;
            log_start
        };
        self.applied = Some(last);
        self.snapshot = Some(snapshot.clone());
        Ok((std::mem::take(&mut self.unapplied).into(), log_start))
    }

    /// Goes on with the records that have been received and the journal that belongs to them, in
    /// place of what is there. Returns the first readable offset.
    fn adopt(
        &mut self,
        snapshot: &Purged,
        last: LogId,
        now: TimestampMs,
    ) -> Result<Offset, RaftError> {
        let received = self
            .received
            .take()
            .filter(|received| received.last == last && received.log.end == snapshot.start_offset)
            .ok_or(RaftError::MissingEntry {
                index: last.index(),
            })?;
        let purged = Purged {
            log_start: snapshot.log_start.max(received.log.log_start),
            ..snapshot.clone()
        };
        let (log_start, kept_from) = (purged.log_start, purged.kept_from());
        let map = EntryMap::starting_after(purged).in_incarnation_of(&self.map);
        let content = journal::content_of(&map);
        let beside: [(&str, &[u8]); 1] = [(journal::FILE_NAME, &content)];
        self.log.adopt(received.log, kept_from, &beside, now)?;
        self.journal.was_replaced(content.len());
        self.map = map;
        self.generation += 1;
        Ok(log_start)
    }

    /// Makes of the segments what the map says already. The journal says so first: the batches that go
    /// are known by nothing but that they are not counted any more, and a start that finds them there
    /// would count them.
    fn change_segments(&mut self, pending: Pending, now: TimestampMs) -> Result<(), RaftError> {
        self.map.set_pending(pending);
        self.rewrite_journal()?;
        carry_out(&mut self.log, pending, now)?;
        // What is appended from here on would go with a start that does it again.
        self.barrier = true;
        self.generation += 1;
        match self.note_carried_out() {
            // The next append says so before anything else.
            Err(error) if error.is_out_of_descriptors() => Ok(()),
            noted => noted,
        }
    }

    /// Has the journal say that what was to be done to the segments is done, if it does not.
    fn note_carried_out(&mut self) -> Result<(), RaftError> {
        if self.map.pending().is_some() {
            self.journal
                .append_carried_out()
                .map_err(|error| RaftError::io("write the journal", error))?;
            self.map.is_carried_out();
        }
        Ok(())
    }

    pub(super) fn rewrite_journal(&mut self) -> Result<(), RaftError> {
        self.journal
            .rewrite(&self.map)
            .map_err(|error| RaftError::io("rewrite the journal", error))
    }
}

/// Does to the segments what the journal says is to be done. Durable on return.
pub(crate) fn carry_out(
    log: &mut Log,
    pending: Pending,
    now: TimestampMs,
) -> Result<(), RaftError> {
    match pending {
        Pending::Cut(offset) => log.truncate_to(offset, now).map(drop)?,
        Pending::Restart(offset) => log.restart_at(offset, now)?,
    }
    Ok(())
}

/// Gives a batch its offset and epoch. One that comes from a leader has them already, and they
/// must be the same.
fn stamp(
    batch: BatchCommand,
    index: RaftIndex,
    term: u64,
    next: Offset,
    log_start: Offset,
) -> Result<(StampedBatch, Unapplied), RaftError> {
    let leader_epoch = epoch_of(term);
    let header = &batch.header;
    if batch.stamp == Stamp::Final
        && (header.base_offset != next || header.partition_leader_epoch != leader_epoch)
    {
        return Err(RaftError::WrongStamp {
            offset: header.base_offset,
            epoch: header.partition_leader_epoch,
            expected_offset: next,
            expected_epoch: leader_epoch,
        });
    }
    let outcome = AppendOutcome {
        base_offset: next,
        last_offset: next.plus(i64::from(header.last_offset_delta)),
        leader_epoch,
        log_start,
    };
    let stamped = StampedBatch {
        base_offset: next,
        leader_epoch,
        bytes: batch.bytes,
    };
    let unapplied = Unapplied {
        index,
        outcome,
        waiter: batch.waiter,
    };
    Ok((stamped, unapplied))
}

fn non_data(id: &LogId, payload: Payload) -> Result<NonData, RaftError> {
    match payload {
        Payload::Blank => Ok(NonData::Blank),
        Payload::Membership(membership) => Ok(NonData::Membership(membership)),
        Payload::Normal(Command::LogStart(offset)) => Ok(NonData::LogStart(offset)),
        Payload::Normal(Command::Batch(_) | Command::Applied(_)) => {
            Err(RaftError::UnusableEntry(id.to_string()))
        }
    }
}
