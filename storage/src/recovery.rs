//! Opening a log: finding its end, cutting what a crash tore, and rebuilding what is derived.
//!
//! After a clean shutdown only the tail behind the last index entry is looked at. Otherwise every
//! batch from the recovery point on is read and checked, and the log is cut at the first one that
//! is torn, fails its CRC, leaves a gap in the offsets, goes back in epochs, or is of an epoch
//! that the caller does not know. What remains is synced before [`Log::open`] returns, because a
//! batch that was only in the page cache must not be counted on. Nor must one that is only there
//! because its sync has failed, so what is checked is read from the disk. Indexes are rebuilt from where
//! they cannot be trusted; epochs and producers are brought up to the end from the last checkpoint
//! and snapshot.
//!
//! Damage below the recovery point is not something that a crash leaves. It is reported as
//! [`StorageError::Corrupt`], and nothing is cut.

mod listing;
mod producers;
mod trust;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize};

use arc_swap::ArcSwap;
use odradek_protocol::batch::BatchHeader;
use odradek_protocol::ids::{LeaderEpoch, Offset, TimestampMs};
use parking_lot::{Mutex, RwLock};

use crate::compaction::clean_end;
use crate::compaction::swap::finish_swaps;
use crate::config::LogConfig;
use crate::deletion::{Deletions, remove_if_present};
use crate::disk::{Disk, OpenMode};
use crate::epoch_cache::EpochCache;
use crate::error::StorageError;
use crate::file_names::{
    LEADER_EPOCH_CHECKPOINT, LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX,
    offset_file,
};
use crate::health::LogDirHealth;
use crate::index::{IndexBuilder, IndexEntries, OffsetEntry, TimeEntry};
use crate::log::{Active, Log};
use crate::producer_state::ProducerStates;
use crate::reader::Shared;
use crate::recovery_point::RecoveryPoint;
use crate::scan::ScanError;
use crate::segment::{Segment, SegmentFiles};
use crate::sync_file::NewEntry;
use listing::{Listing, list};
use trust::{Resume, find_tail, looks_sane, trusted_aborted, trusted_boundary};

/// Index entries that are gathered before they are written.
const INDEX_BATCH: usize = 4096;

/// What the caller knows of a log that is being opened.
pub struct OpenHint<'a> {
    /// State of the log directory.
    pub health: Arc<LogDirHealth>,
    /// Whether the process that last had the log open has closed it ([`Log::close`]).
    pub clean_shutdown: bool,
    /// Where the log starts, if that is known; also where an empty log begins.
    pub log_start: Option<Offset>,
    /// Whether a batch at this offset may be of this epoch. Not asked below the recovery point.
    pub known_epoch: &'a dyn Fn(LeaderEpoch, Offset) -> bool,
}

impl OpenHint<'_> {
    /// A hint that knows nothing: the log starts with its first segment, was not closed, and takes
    /// every epoch.
    pub fn none(health: Arc<LogDirHealth>) -> Self {
        Self {
            health,
            clean_shutdown: false,
            log_start: None,
            known_epoch: &|_, _| true,
        }
    }
}

/// What opening a log found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Log start after opening.
    pub log_start: Offset,
    /// Log end after opening.
    pub log_end: Offset,
    /// Offset from which batches were read and checked; the log end if none were.
    pub scanned_from: Offset,
    /// Bytes read and checked.
    pub scanned_bytes: u64,
    /// What was cut off.
    pub cut: Option<Cut>,
    /// Segments whose indexes were rebuilt although their batches were trusted.
    pub rebuilt_indexes: usize,
}

/// Something that was cut off the end of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Offset at which the log ends now.
    pub offset: Offset,
    /// Base offset of the segment that was cut.
    pub segment_base: Offset,
    /// Position in that segment from which bytes were cut.
    pub position: u32,
    /// Bytes cut, in that segment and in those after it, which are removed.
    pub bytes: u64,
    /// Segments removed.
    pub segments: usize,
    /// What was wrong.
    pub reason: String,
}

impl Log {
    /// Opens the log in `dir`, which is made if it does not exist.
    ///
    /// Fails on I/O errors, and with [`StorageError::Corrupt`] if batches that had been safe are
    /// damaged. A torn tail is no failure: it is cut, and the report says so.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        config: Arc<LogConfig>,
        hint: OpenHint<'_>,
        now: TimestampMs,
    ) -> Result<(Self, RecoveryReport), StorageError> {
        hint.health.check()?;
        finish_swaps(disk.as_ref(), dir)?;
        let mut listing = list(disk.as_ref(), dir)?;
        let recovery_point = RecoveryPoint::open(disk.clone(), dir)
            .map_err(|error| StorageError::io("read recovery point in", dir, error))?;
        let mut opening = Opening {
            disk,
            dir,
            may_have_gaps: config.compacted || listing.was_compacted,
            config,
            hint,
            now,
            report: RecoveryReport::default(),
            epochs: EpochCache::default(),
            epochs_dirty: false,
            checking: false,
            recovery_point,
            segments: Vec::new(),
            scanned: Vec::new(),
            entry: NewEntry::new(dirs_of(dir)),
        };
        opening.load_epochs(&listing)?;
        opening.settle(&mut listing.segments)?;
        opening.open_segments(&listing.segments)?;
        opening.finish(listing.snapshots)
    }
}

/// A log on its way to being open.
struct Opening<'a> {
    disk: Arc<dyn Disk>,
    dir: &'a Path,
    config: Arc<LogConfig>,
    /// Whether offsets may be missing because compaction took their records.
    may_have_gaps: bool,
    hint: OpenHint<'a>,
    now: TimestampMs,
    report: RecoveryReport,
    epochs: EpochCache,
    epochs_dirty: bool,
    /// Whether batches are being read and checked: true from the first that is not trusted on.
    checking: bool,
    recovery_point: RecoveryPoint,
    segments: Vec<Arc<Segment>>,
    /// Segments of which a part was read and checked, which have to be synced.
    scanned: Vec<Arc<Segment>>,
    /// The names of the files, where they may not be durable.
    entry: Arc<NewEntry>,
}

/// The directories that have to be synced for a new log to be found again.
fn dirs_of(dir: &Path) -> Vec<PathBuf> {
    [Some(dir), dir.parent()]
        .into_iter()
        .flatten()
        .map(Path::to_path_buf)
        .collect()
}

impl Opening<'_> {
    fn load_epochs(&mut self, listing: &Listing) -> Result<(), StorageError> {
        let path = self.dir.join(LEADER_EPOCH_CHECKPOINT);
        let loaded = if listing.has_epochs {
            let content = self
                .disk
                .read_file(&path, 64 << 20)
                .map_err(|error| StorageError::io("read", &path, error))?;
            std::str::from_utf8(&content)
                .ok()
                .and_then(EpochCache::parse)
        } else {
            None
        };
        match loaded {
            Some(epochs) => self.epochs = epochs,
            None if listing.segments.values().all(|files| files.log == 0) => {}
            None => {
                // Without the epochs of the part that is trusted there is no other way than to
                // read everything.
                self.hint.clean_shutdown = false;
                self.recovery_point
                    .set(Offset::ZERO, false)
                    .map_err(|error| {
                        StorageError::io("write recovery point in", self.dir, error)
                    })?;
            }
        }
        Ok(())
    }

    /// Has the segments that were not closed, as far as nothing vouches for them, be read from the
    /// disk: the process before this one may have failed to make them durable, and then the page
    /// cache holds what the disk does not.
    fn settle(&self, segments: &mut BTreeMap<Offset, SegmentFiles>) -> Result<(), StorageError> {
        if self.hint.clean_shutdown {
            return Ok(());
        }
        let recovery_point = self.recovery_point.offset();
        let bases: Vec<Offset> = segments.keys().copied().collect();
        for (index, (base, files)) in segments.iter_mut().enumerate() {
            let next_base = bases.get(index + 1).copied();
            if next_base.is_some_and(|next| next <= recovery_point) {
                continue;
            }
            let path = offset_file(self.dir, *base, LOG_SUFFIX);
            let settled = self.disk.open(&path, OpenMode::Write).and_then(|file| {
                file.settle()?;
                file.len()
            });
            files.log = settled.map_err(|error| StorageError::io("settle", &path, error))?;
        }
        Ok(())
    }

    fn open_segments(
        &mut self,
        segments: &BTreeMap<Offset, SegmentFiles>,
    ) -> Result<(), StorageError> {
        let bases: Vec<Offset> = segments.keys().copied().collect();
        let mut expected: Option<Offset> = None;
        for (index, (base, files)) in segments.iter().enumerate() {
            let next_base = bases.get(index + 1).copied();
            let gap = expected
                .filter(|expected| *base < *expected || *base > *expected && !self.may_have_gaps);
            let cut = match gap {
                Some(expected) if self.checking => Some(format!(
                    "segment {base} does not follow the log's end at {expected}"
                )),
                Some(expected) => {
                    return Err(StorageError::corrupt(
                        &offset_file(self.dir, *base, LOG_SUFFIX),
                        0,
                        format!("segment does not follow the one that ends at {expected}"),
                    ));
                }
                None => None,
            };
            if let Some(reason) = cut {
                self.cut_after(None, reason, segments.range(*base..))?;
                break;
            }
            let segment = Arc::new(self.open_segment(*base, *files, next_base)?);
            let end = segment.end();
            expected = Some(if self.may_have_gaps && !self.checking {
                next_base.unwrap_or(end.next_offset)
            } else {
                end.next_offset
            });
            self.segments.push(segment.clone());
            if self.checking {
                self.scanned.push(segment.clone());
            }
            if u64::from(end.size) < files.log {
                // The scan has stopped early; its reason stands in the report already.
                let after = segments.range(base.plus(1)..);
                self.cut_after(Some((&segment, files.log)), String::new(), after)?;
                break;
            }
        }
        if self.segments.is_empty() {
            let base = self.hint.log_start.unwrap_or(Offset::ZERO);
            let segment = Segment::create(&self.disk, self.dir, base, &dirs_of(self.dir))?;
            self.segments.push(Arc::new(segment));
        }
        Ok(())
    }

    fn open_segment(
        &mut self,
        base: Offset,
        files: SegmentFiles,
        next_base: Option<Offset>,
    ) -> Result<Segment, StorageError> {
        let recovery_point = self.recovery_point.offset();
        // After a crash of the process alone nothing tells whether the names of the files are
        // durable, nor for an empty segment after a clean stop, which syncs nothing for it.
        let entry = (!self.hint.clean_shutdown || files.log == 0).then(|| self.entry.clone());
        let trusted = !self.checking
            && (self.hint.clean_shutdown || next_base.is_some_and(|next| next <= recovery_point));
        let has_indexes = [
            (files.offset_index, OffsetEntry::SIZE),
            (files.time_index, TimeEntry::SIZE),
        ]
        .into_iter()
        .all(|(len, entry)| len.is_some_and(|len| len.is_multiple_of(entry as u64)));
        if let (true, Some(next_base)) = (trusted, next_base) {
            let segment = Segment::open(&self.disk, self.dir, base, files, next_base, entry)?;
            if !has_indexes || !looks_sane(&segment)? {
                self.rebuild_trusted(&segment)?;
            }
            return Ok(segment);
        }
        // The end is not known yet: an end past every offset lets the whole index be looked at.
        let segment = Segment::open(&self.disk, self.dir, base, files, base, entry)?;
        let size = segment.end().size;
        if trusted
            && has_indexes
            && let Some(end) = find_tail(&segment, size)?
        {
            segment.publish_end(end.next_offset, end.size);
            if looks_sane(&segment)? {
                return Ok(segment);
            }
        }
        let safe = if trusted {
            // Closed, and yet its tail or index is not as it was left: look at all of it.
            base
        } else {
            recovery_point
        };
        self.check_segment(&segment, size, safe, has_indexes)?;
        Ok(segment)
    }

    /// Reads and checks the batches of a segment, from the recovery point on if the index below it
    /// can be relied on, and rebuilds the index of what it reads. Publishes the end it finds.
    fn check_segment(
        &mut self,
        segment: &Segment,
        size: u32,
        safe: Offset,
        has_indexes: bool,
    ) -> Result<(), StorageError> {
        let io = |error| StorageError::io("recover", segment.log.path(), error);
        let resume = if has_indexes && safe > segment.base_offset {
            trusted_boundary(segment, size, safe)?
        } else {
            None
        };
        let Resume {
            offset_entries,
            time_entries,
            position,
            from,
        } = resume.unwrap_or(Resume {
            offset_entries: 0,
            time_entries: 0,
            position: 0,
            from: segment.base_offset,
        });
        segment.offset_index.truncate(offset_entries).map_err(io)?;
        segment.time_index.truncate(time_entries).map_err(io)?;
        let aborted = trusted_aborted(segment, position, from)?;
        segment.txn_index.keep(aborted).map_err(io)?;
        if !self.checking {
            self.checking = true;
            self.report.scanned_from = from;
            self.epochs_dirty |= self.epochs.truncate_from_end(from);
        }
        let last_time = segment.time_index.last().map_err(io)?;
        let mut index = IndexBuilder::resume(segment.base_offset, last_time);
        let mut entries = IndexEntries::default();
        let mut expected = from;
        let mut scanner = segment.scan_batches(position, size)?;
        let reason = loop {
            let at = scanner.position();
            let (header, body_position) = match scanner.next_batch() {
                Ok(Some(found)) => found,
                Ok(None) => break None,
                Err(ScanError::Io(error)) => return Err(io(error)),
                Err(ScanError::Malformed { what, .. }) => break Some((at, what)),
            };
            if let Some(what) = self.judge(&header, expected, segment.base_offset) {
                break Some((at, what));
            }
            if body_position == position && offset_entries > 0 {
                index.skip_indexed(&header);
            } else {
                let interval = self.config.index_interval_bytes;
                index.add(&header, body_position, interval, &mut entries);
            }
            if entries.offsets.len() >= INDEX_BATCH {
                segment.append_index(&entries)?;
                entries = IndexEntries::default();
            }
            self.epochs_dirty |= self
                .epochs
                .assign(header.partition_leader_epoch, header.base_offset);
            expected = header.next_offset();
        };
        let end = match &reason {
            Some((position, _)) => *position,
            None => size,
        };
        self.report.scanned_bytes += u64::from(end - position);
        // A segment that is followed by another was sealed; the active one is sealed when it is
        // rolled or closed. The entry does no harm there either.
        entries.times.extend(index.seal());
        segment.append_index(&entries)?;
        segment.set_max_timestamp(index.max_timestamp());
        segment.publish_end(expected, end);
        if let Some((position, what)) = reason {
            if expected < self.recovery_point.offset() {
                return Err(StorageError::corrupt(
                    segment.log.path(),
                    u64::from(position),
                    what,
                ));
            }
            self.report.cut = Some(Cut {
                offset: expected,
                segment_base: segment.base_offset,
                position,
                bytes: 0,
                segments: 0,
                reason: what,
            });
        }
        Ok(())
    }

    /// What is wrong with a batch whose CRC is right, if anything is.
    fn judge(&self, header: &BatchHeader, expected: Offset, base: Offset) -> Option<String> {
        let offset = header.base_offset;
        let follows = offset == expected || self.may_have_gaps && offset > expected;
        if !follows {
            return Some(format!("batch at offset {offset} where {expected} was due"));
        }
        let epoch = header.partition_leader_epoch;
        if let Some(latest) = self.epochs.latest()
            && epoch < latest
        {
            return Some(format!("batch of epoch {epoch} after one of {latest}"));
        }
        if header.last_offset().get() - base.get() >= i64::from(crate::segment::MAX_SEGMENT) {
            return Some(format!(
                "offset {offset} is too far from the segment's base"
            ));
        }
        if offset >= self.recovery_point.offset() && !(self.hint.known_epoch)(epoch, offset) {
            return Some(format!("epoch {epoch} at offset {offset} is unknown"));
        }
        None
    }

    /// Removes what comes after the log's new end.
    fn cut_after<'s>(
        &mut self,
        partial: Option<(&Segment, u64)>,
        reason: String,
        removed: impl Iterator<Item = (&'s Offset, &'s SegmentFiles)>,
    ) -> Result<(), StorageError> {
        let mut bytes = 0;
        if let Some((segment, len)) = partial {
            let size = u64::from(segment.end().size);
            bytes += len.saturating_sub(size);
            segment
                .log
                .set_len(size)
                .map_err(|error| StorageError::io("truncate", segment.log.path(), error))?;
        }
        let mut segments = 0;
        for (base, files) in removed {
            bytes += files.log;
            segments += 1;
            for suffix in [
                LOG_SUFFIX,
                OFFSET_INDEX_SUFFIX,
                TIME_INDEX_SUFFIX,
                TXN_INDEX_SUFFIX,
            ] {
                remove_if_present(self.disk.as_ref(), &offset_file(self.dir, *base, suffix))?;
            }
        }
        let end = self.segments.last().map(|segment| segment.end());
        let cut = self.report.cut.get_or_insert_with(|| Cut {
            offset: end.map_or(Offset::ZERO, |end| end.next_offset),
            segment_base: self
                .segments
                .last()
                .map_or(Offset::ZERO, |segment| segment.base_offset),
            position: end.map_or(0, |end| end.size),
            bytes: 0,
            segments: 0,
            reason,
        });
        cut.bytes += bytes;
        cut.segments += segments;
        Ok(())
    }

    /// Rebuilds the indexes of a segment whose batches are trusted, from their headers.
    fn rebuild_trusted(&mut self, segment: &Segment) -> Result<(), StorageError> {
        let io = |error| StorageError::io("rebuild index of", segment.log.path(), error);
        segment.offset_index.truncate(0).map_err(io)?;
        segment.time_index.truncate(0).map_err(io)?;
        let mut index = IndexBuilder::new(segment.base_offset);
        let mut entries = IndexEntries::default();
        let mut scanner = segment.scan_headers(0, segment.end().size)?;
        while let Some((header, position)) = segment.checked(scanner.next_header())? {
            let interval = self.config.index_interval_bytes;
            index.add(&header, position, interval, &mut entries);
        }
        entries.times.extend(index.seal());
        segment.append_index(&entries)?;
        segment.set_max_timestamp(index.max_timestamp());
        self.report.rebuilt_indexes += 1;
        Ok(())
    }

    /// Puts the log together, syncs what was checked, and brings the rest up to the end.
    fn finish(
        mut self,
        snapshots: BTreeSet<Offset>,
    ) -> Result<(Log, RecoveryReport), StorageError> {
        let first = self.segments.first().map(|segment| segment.base_offset);
        let first = first.unwrap_or(Offset::ZERO);
        let Some(active) = self.segments.last().cloned() else {
            unreachable!("a log without segments gets an empty one")
        };
        let log_end = active.end().next_offset;
        if !self.checking {
            self.report.scanned_from = log_end;
        }
        self.epochs_dirty |= self.epochs.truncate_from_end(log_end);
        let log_start = self.hint.log_start.unwrap_or(first).max(first).min(log_end);
        self.epochs_dirty |= self.epochs.truncate_from_start(log_start);
        let shared = Arc::new(Shared {
            segments: ArcSwap::from_pointee(self.segments),
            log_start: AtomicI64::new(log_start.get()),
            epochs: RwLock::new(self.epochs),
            producers: Mutex::new(ProducerStates::default()),
            max_decompressed_bytes: AtomicUsize::new(self.config.max_decompressed_bytes),
        });
        let mut log = Log {
            disk: self.disk.clone(),
            dir: self.dir.to_path_buf(),
            config: self.config,
            health: self.hint.health.clone(),
            shared,
            active: Active::new(active.base_offset, self.now),
            recovery_point: self.recovery_point,
            sealed_dirty: Vec::new(),
            epochs_dirty: self.epochs_dirty,
            cuts: 0,
            replacements: 0,
            clean_end: clean_end::read(self.disk.as_ref(), self.dir).min(log_end),
            snapshots,
            deletions: Deletions::new(self.disk),
            deleted: false,
        };
        if log_end < log.recovery_point.offset() {
            return Err(StorageError::corrupt(
                active.log.path(),
                u64::from(active.end().size),
                format!(
                    "the log ends at {log_end}, but had been safe up to {}",
                    log.recovery_point.offset()
                ),
            ));
        }
        sync_checked(&mut log, &self.scanned)?;
        let untrusted_from = self.checking.then_some(self.report.scanned_from);
        let snapshots_to = untrusted_from.unwrap_or(log_end);
        let beyond: Vec<Offset> = log
            .snapshots
            .range(snapshots_to.plus(1)..)
            .copied()
            .collect();
        for snapshot in beyond {
            log.remove_snapshot(snapshot)?;
        }
        log.remove_stray_snapshots()?;
        log.resume_active(&active, self.now)?;
        log.reload_producers(untrusted_from)?;
        match self.hint.log_start {
            Some(start) if start > log_end => log.restart_at(start, self.now)?,
            _ => {
                log.drop_segments_below(log_start, self.now)?;
            }
        }
        self.report.log_start = log.log_start();
        self.report.log_end = log.next_offset();
        Ok((log, self.report))
    }
}

/// Makes what was read and checked durable, as it may have been in the page cache only.
fn sync_checked(log: &mut Log, checked: &[Arc<Segment>]) -> Result<(), StorageError> {
    for segment in checked {
        if segment.end().next_offset <= log.recovery_point.offset() {
            continue;
        }
        for file in segment.files() {
            file.mark_written();
        }
        segment
            .log
            .sync()
            .map_err(|error| StorageError::io("sync", segment.log.path(), error))?;
    }
    let segments = log.shared.segments.load_full();
    if let Some((_, sealed)) = segments.split_last() {
        for segment in sealed {
            log.sealed_dirty.extend(
                segment
                    .files()
                    .filter(|file| file.has_dirty_data())
                    .cloned(),
            );
        }
    }
    Ok(())
}
