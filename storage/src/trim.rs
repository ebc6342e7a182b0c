//! Taking records away from either end of a log.
//!
//! From the end: a follower gives up records that were never committed. From the start: records
//! expire or are deleted; whole segments go, the rest is only hidden. Both leave offsets as they
//! are.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use odradek_protocol::ids::{Offset, TimestampMs};

use crate::deletion::remove_if_present;
use crate::error::StorageError;
use crate::file_names::{
    LOG_SUFFIX, OFFSET_INDEX_SUFFIX, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX,
    deleted_dir_name, offset_file,
};
use crate::index::{IndexBuilder, relative};
use crate::log::{Active, Log};
use crate::producer_state::ProducerStates;
use crate::segment::{Segment, SegmentEnd};

impl Log {
    /// Removes every batch that does not lie wholly below `offset`, and returns the new log end,
    /// which is `offset` if a batch begins there, but never below the log start. The cut is durable
    /// when this returns.
    ///
    /// Fails with [`StorageError::OffsetOutOfRange`] below the log start.
    pub fn truncate_to(
        &mut self,
        offset: Offset,
        now: TimestampMs,
    ) -> Result<Offset, StorageError> {
        self.check_usable()?;
        if offset >= self.next_offset() {
            return Ok(self.next_offset());
        }
        if offset < self.log_start() {
            return Err(StorageError::OffsetOutOfRange {
                requested: offset,
                log_start: self.log_start(),
                log_end: self.next_offset(),
            });
        }
        let health = self.health.clone();
        health.guard(self.truncate_inner(offset, now))
    }

    fn truncate_inner(&mut self, offset: Offset, now: TimestampMs) -> Result<Offset, StorageError> {
        let segments = self.shared.segments.load_full();
        let keep = segments
            .partition_point(|segment| segment.base_offset <= offset)
            .max(1);
        let (kept, dropped) = segments.split_at(keep);
        let Some(last) = kept.last() else {
            return Ok(self.next_offset());
        };
        let SegmentEnd {
            next_offset: log_end,
            size,
        } = last.end_below(offset, last.end())?;
        if log_end < self.log_start() {
            // The batch that holds the log start goes, and with it all there is to read.
            let log_start = self.log_start();
            self.restart_inner(log_start, now)?;
            return Ok(log_start);
        }
        self.cuts += 1;
        if self.clean_end > log_end {
            self.set_clean_end(log_end)?;
        }
        // A recovery after a crash halfway must not trust anything above the cut.
        if self.recovery_point.offset() > log_end {
            self.recovery_point
                .set(log_end, true)
                .map_err(|error| StorageError::io("write recovery point in", &self.dir, error))?;
        }
        self.shared.segments.store(Arc::new(kept.to_vec()));
        for segment in dropped.iter().rev() {
            for file in segment.files() {
                remove_if_present(self.disk.as_ref(), file.path())?;
            }
        }
        self.cut_segment(last, log_end, size)?;
        let beyond: Vec<Offset> = self.snapshots.range(log_end.plus(1)..).copied().collect();
        for snapshot in beyond {
            self.remove_snapshot(snapshot)?;
        }
        self.epochs_dirty |= self.shared.epochs.write().truncate_from_end(log_end);
        self.sealed_dirty.retain(|file| {
            segments_hold(kept, file.path()) || snapshot_is_kept(file.path(), log_end)
        });
        last.log
            .sync()
            .and_then(|()| self.disk.sync_dir(&self.dir))
            .map_err(|error| StorageError::io("sync", &self.dir, error))?;
        self.write_epochs()?;
        self.resume_active(last, now)?;
        self.reload_producers(None)?;
        Ok(log_end)
    }

    /// Cuts a segment's files off at a batch boundary.
    fn cut_segment(
        &self,
        segment: &Segment,
        log_end: Offset,
        size: u32,
    ) -> Result<(), StorageError> {
        let write = |error| StorageError::io("truncate", segment.log.path(), error);
        let relative_end = relative(segment.base_offset, log_end);
        segment.publish_end(log_end, size);
        segment.forget_hints();
        let offsets = segment
            .offset_index
            .count_below(relative_end)
            .map_err(write)?;
        segment.offset_index.truncate(offsets).map_err(write)?;
        let times = segment
            .time_index
            .count_below(relative_end)
            .map_err(write)?;
        segment.time_index.truncate(times).map_err(write)?;
        segment.txn_index.truncate(log_end).map_err(write)?;
        segment.log.set_len(u64::from(size)).map_err(write)
    }

    /// Sets up what the owner knows of the active segment from the segment itself: what its time
    /// index says, and the headers after its last offset entry.
    pub(crate) fn resume_active(
        &mut self,
        segment: &Segment,
        now: TimestampMs,
    ) -> Result<(), StorageError> {
        let end = segment.end();
        let read = |error| StorageError::io("read", segment.time_index.file().path(), error);
        let mut index = IndexBuilder::resume(
            segment.base_offset,
            segment.time_index.last().map_err(read)?,
        );
        let from = segment
            .offset_index
            .last()
            .map_or(0, |entry| entry.position);
        let mut entries = crate::index::IndexEntries::default();
        let mut scanner = segment.scan_headers(from, end.size)?;
        while let Some((header, position)) = segment.checked(scanner.next_header())? {
            if position == from && segment.offset_index.entries() > 0 {
                index.skip_indexed(&header);
            } else {
                let interval = self.config.index_interval_bytes;
                index.add(&header, position, interval, &mut entries);
            }
        }
        segment.append_index(&entries)?;
        segment.set_max_timestamp(index.max_timestamp());
        let mut first = segment.scan_headers(0, end.size)?;
        self.active = Active {
            index,
            first_timestamp: segment
                .checked(first.next_header())?
                .map(|(header, _)| header.max_timestamp),
            created: now,
        };
        Ok(())
    }

    /// Moves the log start up to `offset`, at most to the log end, and drops the segments that lie
    /// wholly below it. The active segment stays: to drop it too, [`Log::roll`] first (see
    /// [`Log::needs_roll_for_start`]). Returns how many segments went.
    ///
    /// A log start is not kept on the disk. Whoever decides it tells it at the next opening.
    pub fn set_log_start(
        &mut self,
        offset: Offset,
        now: TimestampMs,
    ) -> Result<usize, StorageError> {
        let log_start = offset.min(self.next_offset());
        if log_start <= self.log_start() {
            return Ok(0);
        }
        self.check_usable()?;
        self.shared
            .log_start
            .store(log_start.get(), Ordering::Release);
        self.epochs_dirty |= self.shared.epochs.write().truncate_from_start(log_start);
        self.shared.producers.lock().on_log_start(log_start);
        let health = self.health.clone();
        health.guard(self.drop_segments_below(log_start, now))
    }

    /// Whether everything in the active segment lies below `offset`, so that it can go once it has
    /// been rolled.
    pub fn needs_roll_for_start(&self, offset: Offset) -> bool {
        let active = self.active_segment();
        active.end().size > 0 && offset >= active.end().next_offset
    }

    /// Whether [`Log::set_log_start`] at `offset` would drop a segment.
    pub fn has_segment_below(&self, offset: Offset) -> bool {
        let segments = self.shared.segments.load();
        segments
            .get(1)
            .is_some_and(|second| second.base_offset <= offset)
    }

    pub(crate) fn drop_segments_below(
        &mut self,
        log_start: Offset,
        now: TimestampMs,
    ) -> Result<usize, StorageError> {
        let segments = self.shared.segments.load_full();
        let drop_count = segments
            .partition_point(|segment| segment.base_offset <= log_start)
            .saturating_sub(1);
        let (dropped, kept) = segments.split_at(drop_count);
        if dropped.is_empty() {
            return Ok(0);
        }
        self.shared.segments.store(Arc::new(kept.to_vec()));
        // The segment that remains must not be lost with those that go, if it is new.
        self.disk
            .sync_dir(&self.dir)
            .map_err(|error| StorageError::io("sync", &self.dir, error))?;
        for segment in dropped {
            self.delete_segment(segment, now)?;
        }
        // Snapshots serve to rebuild the state from the first segment on; older ones are of no use.
        let first = kept
            .first()
            .map_or(log_start, |segment| segment.base_offset);
        let older: Vec<Offset> = self.snapshots.range(..first).copied().collect();
        for snapshot in older {
            self.remove_snapshot(snapshot)?;
        }
        Ok(drop_count)
    }

    pub(crate) fn delete_segment(
        &mut self,
        segment: &Segment,
        now: TimestampMs,
    ) -> Result<(), StorageError> {
        let delay = i64::try_from(self.config.file_delete_delay_ms).unwrap_or(i64::MAX);
        let due = TimestampMs::new(now.get().saturating_add(delay));
        for file in segment.files() {
            // A file of a dropped segment needs no sync any more, and must not get one: once it is
            // renamed it cannot be opened by its name.
            self.sealed_dirty.retain(|dirty| !Arc::ptr_eq(dirty, file));
        }
        for suffix in [
            LOG_SUFFIX,
            OFFSET_INDEX_SUFFIX,
            TIME_INDEX_SUFFIX,
            TXN_INDEX_SUFFIX,
        ] {
            self.deletions
                .add(&offset_file(&self.dir, segment.base_offset, suffix), due)?;
        }
        Ok(())
    }

    /// Unlinks files that were taken out of the log longer than `file.delete.delay.ms` ago.
    /// Returns how many went.
    pub fn purge_deleted(&mut self, now: TimestampMs) -> Result<usize, StorageError> {
        self.deletions.run(now)
    }

    /// When [`Log::purge_deleted`] has something to do next.
    pub fn next_purge(&self) -> Option<TimestampMs> {
        self.deletions.next_due()
    }

    pub(crate) fn remove_snapshot(&mut self, offset: Offset) -> Result<(), StorageError> {
        let path = offset_file(&self.dir, offset, SNAPSHOT_SUFFIX);
        remove_if_present(self.disk.as_ref(), &path)?;
        self.snapshots.remove(&offset);
        self.sealed_dirty.retain(|file| file.path() != path);
        Ok(())
    }

    /// Removes snapshots that stand at no segment's base and are not the newest.
    pub(crate) fn remove_stray_snapshots(&mut self) -> Result<(), StorageError> {
        let segments = self.shared.segments.load_full();
        let Some(newest) = self.snapshots.last().copied() else {
            return Ok(());
        };
        let stray: Vec<Offset> = self
            .snapshots
            .iter()
            .copied()
            .filter(|offset| {
                *offset != newest
                    && segments
                        .binary_search_by_key(offset, |segment| segment.base_offset)
                        .is_err()
            })
            .collect();
        stray
            .into_iter()
            .try_for_each(|offset| self.remove_snapshot(offset))
    }

    /// Drops everything and goes on, empty, at `offset`: for a follower whose records are all
    /// below the log start of the others.
    pub fn restart_at(&mut self, offset: Offset, now: TimestampMs) -> Result<(), StorageError> {
        self.check_usable()?;
        let health = self.health.clone();
        health.guard(self.restart_inner(offset, now))
    }

    fn restart_inner(&mut self, offset: Offset, now: TimestampMs) -> Result<(), StorageError> {
        let old = self.shared.segments.load_full();
        self.cuts += 1;
        if self.clean_end > Offset::ZERO {
            self.set_clean_end(Offset::ZERO)?;
        }
        self.recovery_point
            .set(Offset::ZERO, true)
            .map_err(|error| StorageError::io("write recovery point in", &self.dir, error))?;
        for segment in old.iter() {
            self.delete_segment(segment, now)?;
        }
        self.sealed_dirty.clear();
        let snapshots: Vec<Offset> = self.snapshots.iter().copied().collect();
        for snapshot in snapshots {
            self.remove_snapshot(snapshot)?;
        }
        let segment = Segment::create(
            &self.disk,
            &self.dir,
            offset,
            std::slice::from_ref(&self.dir),
        )?;
        self.shared
            .segments
            .store(Arc::new(vec![Arc::new(segment)]));
        self.shared.log_start.store(offset.get(), Ordering::Release);
        *self.shared.epochs.write() = Default::default();
        *self.shared.producers.lock() = ProducerStates::default();
        self.epochs_dirty = true;
        self.active = Active::new(offset, now);
        self.disk
            .sync_dir(&self.dir)
            .map_err(|error| StorageError::io("sync", &self.dir, error))?;
        self.raise_recovery_point(offset)
    }

    /// Takes the whole partition out of the log directory by renaming its directory, which is
    /// returned: whoever calls removes it, at once or after `file.delete.delay.ms`. Whatever is asked of the log
    /// from then on is refused with [`StorageError::Deleted`]; readers that were made before read on.
    pub fn mark_deleted(&mut self, now: TimestampMs) -> Result<PathBuf, StorageError> {
        let name = self
            .dir
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let renamed = self
            .dir
            .with_file_name(deleted_dir_name(&name, unique(&self.dir, now)));
        self.disk
            .rename(&self.dir, &renamed)
            .map_err(|error| StorageError::io("rename", &self.dir, error))?;
        self.deleted = true;
        if let Some(parent) = self.dir.parent() {
            self.disk
                .sync_dir(parent)
                .map_err(|error| StorageError::io("sync", parent, error))?;
        }
        Ok(renamed)
    }
}

/// 128 bits that differ for every deletion of a directory.
pub(crate) fn unique(dir: &std::path::Path, now: TimestampMs) -> u128 {
    static DELETIONS: AtomicU64 = AtomicU64::new(0);
    let mut hasher = DefaultHasher::new();
    dir.hash(&mut hasher);
    std::process::id().hash(&mut hasher);
    DELETIONS.fetch_add(1, Ordering::Relaxed).hash(&mut hasher);
    u128::from(hasher.finish()) << 64 | u128::from(now.get().unsigned_abs())
}

fn segments_hold(segments: &[Arc<Segment>], path: &std::path::Path) -> bool {
    segments
        .iter()
        .any(|segment| segment.files().any(|file| file.path() == path))
}

fn snapshot_is_kept(path: &std::path::Path, log_end: Offset) -> bool {
    path.file_name()
        .and_then(|name| name.to_str())
        .and_then(|name| crate::file_names::parse_offset(name, SNAPSHOT_SUFFIX))
        .is_some_and(|offset| offset <= log_end)
}
