//! Bringing a group's log back from the disk.
//!
//! The journal says which batches belong to the log: those whose epoch is the term of the mark
//! before them. The segments say how far the log goes: marks behind their end stand for entries
//! that were never durable, and so never acknowledged. Each cuts the other to what both agree on.

use std::path::Path;
use std::sync::Arc;

use odradek_protocol::ids::{LeaderEpoch, Offset, TimestampMs};
use odradek_storage::Log;
use odradek_storage::LogDirHealth;
use odradek_storage::OpenHint;
use odradek_storage::disk::Disk;

use crate::emptied::{self, Part, Rebuilding};
use crate::entry_map::{EntryMap, Pending};
use crate::error::RaftError;
use crate::incarnation::{self, Entry, cut_of};
use crate::journal::{self, Journal, Opened};
use crate::log_core::carry_out;
use crate::node::{GroupSpec, bootstrap_membership};
use crate::types::{Incarnation, LogId, RaftIndex, epoch_of, node_id};

/// A group's log as it was found.
pub(crate) struct OpenedLog {
    pub(crate) log: Log,
    pub(crate) journal: Journal,
    pub(crate) map: EntryMap,
    pub(crate) applied: Option<LogId>,
    pub(crate) log_start: Offset,
    pub(crate) high_watermark: Offset,
    /// Whether this node has a vote and is the first to stand for election.
    pub(crate) preferred: bool,
    /// Whether this node is the only voter.
    pub(crate) sole_voter: bool,
    /// Whether it was made by this opening.
    pub(crate) made: bool,
    /// What part this replica takes.
    pub(crate) part: Part,
}

/// Opens or makes the log of a group. Waits for the disk.
pub(crate) fn open(
    disk: Arc<dyn Disk>,
    health: Arc<LogDirHealth>,
    spec: &GroupSpec,
    clean_shutdown: bool,
    me: u64,
    now: TimestampMs,
) -> Result<OpenedLog, RaftError> {
    let dir = spec.dir.as_path();
    prepare_directory(&*disk, spec, clean_shutdown)?;
    // A later incarnation is begun by its founder's log alone.
    let begins = spec.bootstrap && spec.key.incarnation == Incarnation::FIRST;
    let bootstrap = begins.then(|| bootstrap_membership(&spec.voters));
    let Opened {
        mut journal,
        mut map,
        torn_bytes,
        made,
    } = Journal::open(disk.clone(), dir, bootstrap, has_records(&*disk, dir)?)
        .map_err(|error| RaftError::io(format!("open the journal in {}", dir.display()), error))?;
    let entry = incarnation::entry(spec, &map, node_id(me))?;
    if matches!(entry, Entry::StartOver | Entry::Begin) {
        tracing::warn!(group = %spec.key, "a replica starts over");
        map = EntryMap::empty_in(spec.key.incarnation);
        if entry == Entry::Begin {
            incarnation::found(&mut map, spec.key.incarnation, me);
        }
        map.set_pending(Pending::Restart(Offset::ZERO));
        rewrite(&mut journal, &map)?;
    }
    if let Some(Pending::Restart(_)) = map.pending() {
        // Nothing of it is wanted, and half of it may be gone.
        odradek_storage::remove_log(&*disk, dir)?;
    }
    let rebuilding = rebuilding(&*disk, spec, &map)?;
    let membership = map.membership_at(RaftIndex::new(map.next_index().get().saturating_sub(1)));
    // One that is being rebuilt may have been the only voter long ago.
    let sole_voter = rebuilding.is_none() && membership.membership().voter_ids().eq([me]);
    // The only voter takes no batch before the first entry of its term is durable, so that every
    // whole batch in its log belongs to a term that the journal knows. If one does not, the
    // journal is damaged, and cutting the log would throw acknowledged records away. With
    // write.caching a power cut may leave such batches, and nothing was promised of them.
    let strict = sole_voter && !spec.log_config.write_caching;
    let log = open_log(
        disk.clone(),
        health,
        spec,
        clean_shutdown,
        &map,
        strict,
        now,
    )?;
    let mut opening = Opening {
        disk,
        spec,
        me,
        now,
        log,
        journal,
        map,
        rebuilding,
        sole_voter,
    };
    opening.finish_change()?;
    let kept_from = opening.map.purged().kept_from();
    opening.require_what_was_stored(kept_from)?;
    opening.cut_to_what_both_know(strict, torn_bytes)?;
    opening.log.set_log_start(kept_from, now)?;
    match entry {
        Entry::Stay | Entry::StartOver | Entry::Begin => {}
        Entry::Found => opening.found_incarnation()?,
        Entry::Join(kept_end) => opening.join_incarnation(kept_end)?,
    }
    let first = spec.voters.first().copied().map(crate::types::raft_id) == Some(me);
    let preferred = first && membership.voter_ids().any(|voter| voter == me);
    opening.opened(made, preferred)
}

/// Makes the directory, and has in it what is on the disk.
fn prepare_directory(
    disk: &dyn Disk,
    spec: &GroupSpec,
    clean_shutdown: bool,
) -> Result<(), RaftError> {
    let dir = spec.dir.as_path();
    disk.create_dir_all(dir)
        .map_err(|error| RaftError::io(format!("make {}", dir.display()), error))?;
    if odradek_storage::finish_adoption(disk, dir)? {
        tracing::info!(group = %spec.key, "a log that was received takes its place");
    }
    if !clean_shutdown {
        // Of a process that failed to sync it, the page cache may hold more than the disk.
        let journal = dir.join(journal::FILE_NAME);
        disk.settle_file(&journal)
            .map_err(|error| RaftError::io(format!("settle {}", journal.display()), error))?;
    }
    Ok(())
}

/// How far the replica is rebuilt, if it is.
fn rebuilding(
    disk: &dyn Disk,
    spec: &GroupSpec,
    map: &EntryMap,
) -> Result<Option<Rebuilding>, RaftError> {
    let found = emptied::read(disk, &spec.dir, spec.key)?;
    if found.is_some_and(|it| it.is_older_than(map.incarnation())) {
        // It was being rebuilt when it founded this incarnation, with what it had.
        emptied::remove(disk, &spec.dir)?;
        return Ok(None);
    }
    Ok(found)
}

/// A log on its way back.
struct Opening<'a> {
    disk: Arc<dyn Disk>,
    spec: &'a GroupSpec,
    me: u64,
    now: TimestampMs,
    log: Log,
    journal: Journal,
    map: EntryMap,
    rebuilding: Option<Rebuilding>,
    sole_voter: bool,
}

impl Opening<'_> {
    fn damaged(&self, detail: String) -> RaftError {
        RaftError::JournalDamaged {
            group: self.spec.key,
            detail,
        }
    }

    fn rewrite_journal(&mut self) -> Result<(), RaftError> {
        rewrite(&mut self.journal, &self.map)
    }

    /// Does to the segments what the journal says is to be done, and has it say so no more.
    fn finish_change(&mut self) -> Result<(), RaftError> {
        let Some(pending) = self.map.pending() else {
            return Ok(());
        };
        let log = &mut self.log;
        let is_done = match pending {
            Pending::Cut(offset) => log.next_offset() <= offset,
            Pending::Restart(offset) => log.next_offset() == offset && log.size_bytes() == 0,
        };
        if !is_done {
            carry_out(log, pending, self.now)?;
        }
        log.flush_target()
            .sync()
            .map_err(|error| RaftError::io("sync the log", error))?;
        self.map.is_carried_out();
        self.rewrite_journal()
    }

    /// Makes sure that the segments hold what the journal says was durable, from `kept_from` on.
    fn require_what_was_stored(&mut self, kept_from: Offset) -> Result<(), RaftError> {
        let start_offset = self.map.purged().start_offset;
        if self.log.next_offset() < start_offset && kept_from < start_offset {
            // Records that no entry stands for any more were durable before their entries went.
            return Err(self.damaged(format!(
                "records from {kept_from} to {start_offset} should be there, and the log ends at {}",
                self.log.next_offset()
            )));
        }
        if self.log.next_offset() < start_offset {
            // A crash came between the journal's word that the log starts here and the segments.
            self.log.restart_at(start_offset, self.now)?;
        }
        if self.log.log_start() > kept_from {
            return Err(self.damaged(format!(
                "the log starts at {}, the journal at {kept_from}",
                self.log.log_start()
            )));
        }
        let durable_end = self.map.durable_end();
        if self.log.next_offset() < durable_end && !self.spec.log_config.write_caching {
            return Err(RaftError::LogLost {
                group: self.spec.key,
                detail: format!(
                    "it ends at {}, and had been stored up to {durable_end}",
                    self.log.next_offset(),
                ),
            });
        }
        Ok(())
    }

    /// Cuts journal and segments to where both agree. `strict` if the segments may hold nothing durable that
    /// the journal does not know; `torn_bytes` are behind the journal's last whole record.
    fn cut_to_what_both_know(&mut self, strict: bool, torn_bytes: u64) -> Result<(), RaftError> {
        let dropped = self.map.drop_marks_beyond(self.log.next_offset());
        count_batches(&mut self.log, &mut self.map)?;
        let (known, end) = (self.map.next_offset(), self.log.next_offset());
        if known < end {
            if strict || known < self.log.recovery_point() {
                return Err(self.damaged(format!(
                    "it knows the log up to {known}, and the log holds durable records up to {end}; nothing was cut"
                )));
            }
            // Batches of a term whose first entry never became durable, in a part of the log that
            // recovery did not have to read.
            self.log.truncate_to(known, self.now)?;
        }
        if torn_bytes > 0 {
            tracing::warn!(group = %self.spec.key, torn_bytes, "cutting a torn tail off the journal");
            self.journal
                .cut_tail()
                .map_err(|error| RaftError::io("cut the journal", error))?;
        }
        match dropped {
            true => self.rewrite_journal(),
            false => Ok(()),
        }
    }

    fn found_incarnation(&mut self) -> Result<(), RaftError> {
        let mut all = self.log.flush_target();
        all.add(self.journal.file());
        all.sync()
            .map_err(|error| RaftError::io("sync the log", error))?;
        let from = self.map.incarnation();
        incarnation::found(&mut self.map, self.spec.key.incarnation, self.me);
        let end = self.map.next_offset();
        self.rewrite_journal()?;
        self.finish_change()?;
        if self.rebuilding.take().is_some() {
            emptied::remove(&*self.disk, &self.spec.dir)?;
        }
        self.sole_voter = true;
        tracing::warn!(
            group = %self.spec.key, %from, %end,
            "this replica begins a new incarnation: what others have beyond its end is given up"
        );
        Ok(())
    }

    fn join_incarnation(&mut self, kept_end: RaftIndex) -> Result<(), RaftError> {
        let incarnation = self.spec.key.incarnation;
        let begun = Rebuilding::until_begun(incarnation);
        emptied::write(&*self.disk, &self.spec.dir, begun)?;
        let (index, offset) = cut_of(&self.map, &self.log, kept_end, incarnation)?;
        let (from, end) = (self.map.incarnation(), self.map.next_offset());
        self.map.join(incarnation, index, offset);
        self.rewrite_journal()?;
        self.finish_change()?;
        self.rebuilding = Some(begun);
        self.sole_voter = false;
        tracing::warn!(
            group = %self.spec.key, %from, %end, kept = %offset,
            "this replica joins a new incarnation: what it has beyond what is shared is cut off"
        );
        Ok(())
    }

    fn opened(self, made: bool, preferred: bool) -> Result<OpenedLog, RaftError> {
        let Self {
            log, journal, map, ..
        } = self;
        let applied_end = committed_end(&map, self.sole_voter);
        let applied = applied_end
            .get()
            .checked_sub(1)
            .and_then(|last| map.log_id_at(RaftIndex::new(last)));
        let log_start = map.log_start_before(applied_end);
        let high_watermark = high_watermark(&map, applied_end);
        log.reader().begin_at_high_watermark(high_watermark)?;
        Ok(OpenedLog {
            log,
            journal,
            applied,
            log_start,
            high_watermark,
            sole_voter: self.sole_voter,
            made,
            part: emptied::part_found(self.rebuilding, map.last_log_id()),
            preferred,
            map,
        })
    }
}

fn rewrite(journal: &mut Journal, map: &EntryMap) -> Result<(), RaftError> {
    journal
        .rewrite(map)
        .map_err(|error| RaftError::io("rewrite the journal", error))
}

fn open_log(
    disk: Arc<dyn Disk>,
    health: Arc<LogDirHealth>,
    spec: &GroupSpec,
    clean_shutdown: bool,
    map: &EntryMap,
    keep_unknown_terms: bool,
    now: TimestampMs,
) -> Result<Log, RaftError> {
    // Segments that the journal has given up may still be there if a crash came in between; of
    // their terms it knows nothing any more.
    let start_offset = map.purged().start_offset;
    let known = |epoch: LeaderEpoch, offset: Offset| {
        keep_unknown_terms || offset < start_offset || epoch == epoch_of(map.term_at(offset))
    };
    let hint = OpenHint {
        health,
        clean_shutdown,
        log_start: Some(map.purged().kept_from()),
        known_epoch: &known,
    };
    let (log, report) = Log::open(disk, &spec.dir, spec.log_config.clone(), hint, now)?;
    if let Some(cut) = &report.cut {
        tracing::warn!(group = %spec.key, ?cut, "cut off what was not durable");
    }
    Ok(log)
}

/// Whether the directory has a journal.
pub(crate) fn has_journal(disk: &dyn Disk, dir: &Path) -> bool {
    disk.list(dir)
        .is_ok_and(|entries| entries.iter().any(|entry| entry.name == journal::FILE_NAME))
}

/// Whether a segment in `dir` holds anything.
fn has_records(disk: &dyn Disk, dir: &Path) -> Result<bool, RaftError> {
    let entries = disk
        .list(dir)
        .map_err(|error| RaftError::io(format!("list {}", dir.display()), error))?;
    Ok(entries
        .iter()
        .any(|entry| entry.name.ends_with(".log") && entry.len > 0))
}

/// Counts the batches behind the last mark, as far as they are of its term.
fn count_batches(log: &mut Log, map: &mut EntryMap) -> Result<(), RaftError> {
    let reader = log.reader();
    let (_, anchor) = map.anchor_after_last_mark();
    let epoch = epoch_of(map.last_term());
    for batch in reader.headers_from(anchor, reader.log_end())? {
        let header = batch?.header;
        if header.base_offset != map.next_offset() || header.partition_leader_epoch != epoch {
            break;
        }
        map.push_batch(i64::from(header.last_offset_delta) + 1);
    }
    Ok(())
}

/// Index of the first entry that is not known to be committed.
fn committed_end(map: &EntryMap, sole_voter: bool) -> RaftIndex {
    let end = map.next_index();
    if sole_voter {
        // What the only voter has on its disk is committed.
        return end;
    }
    let known = map
        .last_checkpoint()
        .map_or(RaftIndex::ZERO, |(_, end)| end);
    known.clamp(map.first_index().min(end), end)
}

fn high_watermark(map: &EntryMap, applied_end: RaftIndex) -> Offset {
    let start = map.purged().start_offset;
    if applied_end == map.next_index() {
        return map.next_offset();
    }
    map.last_checkpoint()
        .map_or(start, |(offset, _)| offset)
        .clamp(start, map.next_offset())
}
