//! Log compaction: of every key, only the newest record stays.
//!
//! A compaction is begun by the log's owner, run elsewhere while the log is read and appended to,
//! and finished by the owner: [`Log::begin_compaction`], [`Compaction::run`],
//! [`Log::finish_compaction`]. It walks twice: over the dirty part of the log, to learn the newest
//! offset of every key in a map of fixed size, and over everything below the plan's end, to write
//! new segments without the records that have been overtaken.
//!
//! What stays, beside the newest record of each key: everything that the map had no room for;
//! tombstones until their delete horizon has passed (KIP-534); markers until nothing of their
//! transaction is left and their horizon has passed; the last batch of a live producer, without
//! its records if need be; every offset, as a gap. Aborted records go, and so do records without a
//! key, which a compacted topic does not take. Nothing at or above the bound is touched.
//!
//! Absent on purpose: threads, throttling and the choice among logs; the layer above paces a run
//! and may end it at any batch.

pub(crate) mod clean_end;
mod cleaner;
mod key_map;
pub(crate) mod output;
mod plan;
pub(crate) mod swap;
mod transactions;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use odradek_protocol::ids::{Offset, ProducerEpoch, ProducerId, TimestampMs};

use crate::config::LogConfig;
use crate::disk::{Disk, OpenMode};
use crate::error::StorageError;
use crate::file_names::COMPACTED_MARKER;
use crate::log::Log;
use crate::segment::{MAX_SEGMENT, Segment, SegmentFiles};
use crate::txn_index::AbortedTxn;
pub use cleaner::Pace;
pub use plan::{CompactionConfig, CompactionPlan, SegmentFacts};
use swap::{CLEANED_SUFFIX, SWAP_SUFFIX};

/// The last batch of a producer that must not vanish, lest the producer be forgotten with it.
#[derive(Clone, Copy, Debug)]
struct LastBatch {
    epoch: ProducerEpoch,
    /// Offset of the last record of data, if any was seen.
    last_offset: Option<Offset>,
}

/// A compaction that has been begun.
pub struct Compaction {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    log_config: Arc<LogConfig>,
    config: CompactionConfig,
    plan: CompactionPlan,
    /// Everything below the plan's end.
    segments: Vec<Arc<Segment>>,
    facts: Vec<SegmentFacts>,
    aborted: Vec<AbortedTxn>,
    last_batches: HashMap<ProducerId, LastBatch>,
    now: TimestampMs,
    /// How often the log had been cut by then.
    cuts: u64,
}

/// New segments that wait to take the place of old ones.
pub struct Compacted {
    segments: Vec<NewSegment>,
    cuts: u64,
    /// Everything below is compacted now; the next compaction begins here.
    pub clean_end: Offset,
    /// What was done.
    pub stats: CompactionStats,
}

struct NewSegment {
    base: Offset,
    next_offset: Offset,
    files: SegmentFiles,
    replaces: Vec<Arc<Segment>>,
}

/// What a compaction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionStats {
    /// Bytes of batches read, both walks together.
    pub bytes_read: u64,
    /// Bytes of batches written.
    pub bytes_written: u64,
    /// Bytes of the segments that are replaced.
    pub bytes_before: u64,
    /// Records kept.
    pub records_kept: u64,
    /// Records dropped.
    pub records_dropped: u64,
}

impl Log {
    /// What a compaction could be planned on: the sealed segments, oldest first.
    pub fn sealed_segments(&self) -> Result<Vec<SegmentFacts>, StorageError> {
        let segments = self.shared.segments.load();
        let sealed = segments.len().saturating_sub(1);
        segments
            .iter()
            .take(sealed)
            .map(|segment| facts(segment))
            .collect()
    }

    /// Begins a compaction if one is due. Everything below `clean_end` was compacted before;
    /// nothing at or above `bound` may be touched: the smallest of the last stable offset, the
    /// high watermark, and the first batch whose place in the log is still counted on.
    pub fn begin_compaction(
        &self,
        clean_end: Offset,
        bound: Offset,
        config: &CompactionConfig,
        now: TimestampMs,
    ) -> Result<Option<Compaction>, StorageError> {
        self.check_usable()?;
        let sealed = self.sealed_segments()?;
        // Recovery reads what is not known to be durable, and takes gaps there for losses.
        let bound = bound.min(self.recovery_point.offset());
        let Some(plan) = plan::plan(&sealed, clean_end, bound, config, now) else {
            return Ok(None);
        };
        let segments = self.shared.segments.load();
        let count = sealed
            .iter()
            .take_while(|segment| segment.next_offset <= plan.end)
            .count();
        let reader = self.reader();
        let first = sealed
            .first()
            .map_or(reader.log_start(), |segment| segment.base_offset);
        let aborted = reader.aborted_transactions(first, plan.end)?;
        let last_batches = reader.with_producers(|producers| {
            let last = |entry: &crate::producer_state::ProducerEntry| LastBatch {
                epoch: entry.epoch,
                last_offset: Some(entry.last_offset()).filter(|offset| *offset != Offset::NONE),
            };
            producers
                .iter()
                .map(|(id, entry)| (id, last(entry)))
                .collect()
        });
        Ok(Some(Compaction {
            disk: self.disk.clone(),
            dir: self.dir.clone(),
            log_config: self.config.clone(),
            config: *config,
            plan,
            segments: segments.iter().take(count).cloned().collect(),
            facts: sealed.into_iter().take(count).collect(),
            aborted,
            last_batches,
            now,
            cuts: self.cuts,
        }))
    }

    /// Puts the new segments in the place of those they were made from. A segment whose originals
    /// were dropped or cut meanwhile is thrown away. Durable when it returns.
    pub fn finish_compaction(
        &mut self,
        compacted: Compacted,
        now: TimestampMs,
    ) -> Result<(), StorageError> {
        self.check_usable()?;
        let health = self.health.clone();
        let mut all = compacted.cuts == self.cuts;
        for segment in compacted.segments {
            all &= health.guard(self.replace(segment, now))?;
        }
        match all && compacted.clean_end > self.clean_end {
            true => health.guard(self.set_clean_end(compacted.clean_end)),
            false => Ok(()),
        }
    }

    /// Where the last compaction ended: everything below has been compacted.
    pub fn clean_end(&self) -> Offset {
        self.clean_end
    }

    pub(crate) fn set_clean_end(&mut self, end: Offset) -> Result<(), StorageError> {
        clean_end::write(self.disk.as_ref(), &self.dir, end)?;
        self.clean_end = end;
        Ok(())
    }

    /// Returns whether the new segment took its place.
    fn replace(&mut self, new: NewSegment, now: TimestampMs) -> Result<bool, StorageError> {
        let segments = self.shared.segments.load_full();
        let at = segments.iter().position(|segment| {
            new.replaces
                .first()
                .is_some_and(|first| Arc::ptr_eq(first, segment))
        });
        let is_current = at.is_some_and(|at| {
            let present = segments.iter().skip(at).take(new.replaces.len());
            // Never the active one.
            at + new.replaces.len() < segments.len()
                && present.zip(&new.replaces).all(|(a, b)| Arc::ptr_eq(a, b))
        });
        let Some(at) = at.filter(|_| is_current) else {
            return cleaner::discard(self.disk.as_ref(), &self.dir, new.base).map(|()| false);
        };
        // Whoever still reads an old segment keeps its descriptor: its name is about to mean
        // another file.
        for file in new.replaces.iter().flat_map(|segment| segment.files()) {
            file.file()
                .map_err(|error| StorageError::io("open", file.path(), error))?;
        }
        self.replacements += 1;
        let disk = self.disk.clone();
        self.mark_compacted()?;
        swap::rename_all(
            disk.as_ref(),
            &self.dir,
            new.base,
            CLEANED_SUFFIX,
            SWAP_SUFFIX,
        )?;
        for old in &new.replaces {
            self.delete_segment(old, now)?;
        }
        swap::sync_dir(disk.as_ref(), &self.dir)?;
        swap::rename_all(disk.as_ref(), &self.dir, new.base, SWAP_SUFFIX, "")?;
        let segment = Segment::open(
            &self.disk,
            &self.dir,
            new.base,
            new.files,
            new.next_offset,
            None,
        )?;
        let mut replaced = segments.as_ref().clone();
        replaced.splice(at..at + new.replaces.len(), [Arc::new(segment)]);
        self.shared.segments.store(Arc::new(replaced));
        Ok(true)
    }

    /// Has the next opening accept gaps between offsets; durable with the first new segment.
    fn mark_compacted(&self) -> Result<(), StorageError> {
        let path = self.dir.join(COMPACTED_MARKER);
        self.disk
            .open(&path, OpenMode::Create)
            .map(drop)
            .map_err(|error| StorageError::io("create", &path, error))
    }
}

impl Compaction {
    /// What is compacted.
    pub fn plan(&self) -> &CompactionPlan {
        &self.plan
    }

    fn groups(&self, end: Offset) -> Vec<std::ops::Range<usize>> {
        let count = self
            .facts
            .partition_point(|segment| segment.base_offset < end);
        let facts = self.facts.get(..count).unwrap_or_default();
        plan::group(facts, self.log_config.segment_bytes, MAX_SEGMENT)
    }
}

fn facts(segment: &Segment) -> Result<SegmentFacts, StorageError> {
    let end = segment.end();
    Ok(SegmentFacts {
        base_offset: segment.base_offset,
        next_offset: end.next_offset,
        size_bytes: u64::from(end.size),
        max_timestamp: segment.max_timestamp()?,
    })
}
