//! The segmented log of one partition, seen by its single owner.
//!
//! The owner appends, rolls, truncates and moves the log start; [`LogReader`]s read meanwhile.
//! `log start ≤ base offset of the active segment ≤ log end`, and every batch begins where the one
//! before it ended. Nothing here waits for the disk's cache: what has been appended is durable
//! once the [`FlushTarget`] of [`Log::flush_target`] has been synced.
//!
//! The log never rolls by itself. A roll is an event that the layer above writes down first, so it
//! asks [`Log::fitting`] and calls [`Log::roll`].

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use odradek_protocol::batch::BatchHeader;
use odradek_protocol::ids::{LeaderEpoch, Offset, TimestampMs};

use crate::config::LogConfig;
use crate::deletion::Deletions;
use crate::disk::Disk;
use crate::error::StorageError;
use crate::file_names::{LEADER_EPOCH_CHECKPOINT, SNAPSHOT_SUFFIX, offset_file};
use crate::flush::FlushTarget;
use crate::health::LogDirHealth;
use crate::index::{IndexBuilder, IndexEntries, OffsetEntry, TimeEntry};
use crate::producer_snapshot;
use crate::producer_state::{EndTxnMarker, ProducerStates};
use crate::reader::{LogPosition, LogReader, Shared};
use crate::recovery_point::RecoveryPoint;
use crate::segment::{MAX_SEGMENT, Segment};
use crate::sync_file::SyncFile;

/// A batch with the offset and epoch it is to be stored with. Its bytes are written as they are,
/// but for the fields of the header that say these two.
#[derive(Clone, Debug)]
pub struct StampedBatch {
    /// Offset of the first record.
    pub base_offset: Offset,
    /// Epoch of the leader that appends it.
    pub leader_epoch: LeaderEpoch,
    /// One whole v2 batch, whose CRC has been checked.
    pub bytes: Bytes,
}

impl StampedBatch {
    /// What a marker says; `None` of other batches.
    fn end_marker(&self, header: &BatchHeader) -> Option<EndTxnMarker> {
        let is_control = header.is_control();
        is_control.then(|| EndTxnMarker::parse(header, &self.bytes))?
    }

    /// The header as it will stand in the log.
    pub fn header(&self) -> Result<BatchHeader, StorageError> {
        let mut header = BatchHeader::parse(&self.bytes)
            .map_err(|error| StorageError::UnusableBatch(error.to_string()))?;
        if header.size_in_bytes() != self.bytes.len() {
            return Err(StorageError::UnusableBatch(format!(
                "{} bytes, the header says {}",
                self.bytes.len(),
                header.size_in_bytes()
            )));
        }
        if header.last_offset_delta < 0 {
            return Err(StorageError::UnusableBatch(
                "negative last offset delta".into(),
            ));
        }
        header.base_offset = self.base_offset;
        header.partition_leader_epoch = self.leader_epoch;
        Ok(header)
    }
}

/// A recovery point that is on its way; see [`Log::begin_checkpoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    offset: Offset,
    cuts: u64,
}

/// What the owner alone knows of the active segment.
#[derive(Debug)]
pub(crate) struct Active {
    pub index: IndexBuilder,
    /// Largest timestamp of the segment's first batch, from which its age counts.
    pub first_timestamp: Option<TimestampMs>,
    pub created: TimestampMs,
}

impl Active {
    pub fn new(base_offset: Offset, now: TimestampMs) -> Self {
        Self {
            index: IndexBuilder::new(base_offset),
            first_timestamp: None,
            created: now,
        }
    }
}

/// A partition's log; see the module's documentation.
#[derive(Debug)]
pub struct Log {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    pub(crate) config: Arc<LogConfig>,
    pub(crate) health: Arc<LogDirHealth>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) active: Active,
    pub(crate) recovery_point: RecoveryPoint,
    /// Files of sealed segments, and snapshots, that have to be durable before the recovery point
    /// may pass them.
    pub(crate) sealed_dirty: Vec<Arc<SyncFile>>,
    pub(crate) epochs_dirty: bool,
    /// How often records were taken away from the end. A checkpoint that was begun before one of
    /// those is void.
    pub(crate) cuts: u64,
    /// How often segments were replaced by compacted ones.
    pub(crate) replacements: u64,
    /// Where the last compaction ended.
    pub(crate) clean_end: Offset,
    /// Offsets of the producer snapshots on the disk.
    pub(crate) snapshots: BTreeSet<Offset>,
    pub(crate) deletions: Deletions,
    /// Its directory has been taken away: see [`Log::mark_deleted`] and [`Log::mark_moved`].
    pub(crate) deleted: bool,
}

impl Log {
    /// A handle for readers.
    pub fn reader(&self) -> LogReader {
        LogReader::new(self.shared.clone())
    }

    /// An error if nothing may be written or begun any more. Who still holds a log that has been deleted must
    /// not look for its files, and take their absence for a failure of the disk.
    pub(crate) fn check_usable(&self) -> Result<(), StorageError> {
        if self.deleted {
            return Err(StorageError::Deleted {
                path: self.dir.clone(),
            });
        }
        self.health.check()
    }

    /// The partition's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The settings in force.
    pub fn config(&self) -> &Arc<LogConfig> {
        &self.config
    }

    /// Changes the settings, for appends and rolls from now on.
    pub fn set_config(&mut self, config: Arc<LogConfig>) {
        self.shared
            .max_decompressed_bytes
            .store(config.max_decompressed_bytes, Ordering::Relaxed);
        self.config = config;
    }

    /// First offset that can be read.
    pub fn log_start(&self) -> Offset {
        self.shared.log_start()
    }

    /// Offset of the next record.
    pub fn next_offset(&self) -> Offset {
        self.shared.log_end()
    }

    /// Offset below which a crash can lose nothing.
    pub fn recovery_point(&self) -> Offset {
        self.recovery_point.offset()
    }

    /// Bytes of all segments.
    pub fn size_bytes(&self) -> u64 {
        self.reader().size_bytes()
    }

    /// Base offset of the active segment.
    pub fn active_base(&self) -> Offset {
        self.active_segment().base_offset
    }

    pub(crate) fn active_segment(&self) -> Arc<Segment> {
        let segments = self.shared.segments.load();
        match segments.last() {
            Some(segment) => segment.clone(),
            None => unreachable!("a log has a segment from its opening on"),
        }
    }

    /// How many of `batches`, from the front, the active segment takes before it has to be rolled.
    /// 0 means that it has to be rolled first.
    pub fn fitting(
        &self,
        batches: &[StampedBatch],
        now: TimestampMs,
    ) -> Result<usize, StorageError> {
        let segment = self.active_segment();
        let index_bytes = self.config.segment_index_bytes as usize;
        // One place in the time index is kept for the entry that seals the segment.
        let full = segment.offset_index.entries() as usize >= index_bytes / OffsetEntry::SIZE
            || segment.time_index.entries() as usize + 1 >= index_bytes / TimeEntry::SIZE;
        let limit = u64::from(self.config.segment_bytes.min(MAX_SEGMENT));
        let mut size = u64::from(segment.end().size);
        for (count, batch) in batches.iter().enumerate() {
            let header = batch.header()?;
            let after = size + header.size_in_bytes() as u64;
            let too_far =
                header.last_offset().get() - segment.base_offset.get() >= i64::from(MAX_SEGMENT);
            let due = size > 0 && (after > limit || self.is_too_old(header.max_timestamp, now));
            if due || too_far && size > 0 || full && size > 0 {
                return Ok(count);
            }
            size = after;
        }
        Ok(batches.len())
    }

    /// Whether the active segment spans more than `segment.ms` once it holds a record of this
    /// timestamp. A first record from the future must not hold it open for ever: then the clock
    /// counts.
    fn is_too_old(&self, timestamp: TimestampMs, now: TimestampMs) -> bool {
        let age = match self.active.first_timestamp {
            Some(first) if first.get() >= 0 && first <= now => timestamp.get() - first.get(),
            _ => now.get() - self.active.created.get(),
        };
        let jitter = match self.config.segment_jitter_ms {
            0 => 0,
            max => {
                let seed = crc32c::crc32c(self.dir.as_os_str().as_encoded_bytes());
                u64::from(crc32c::crc32c_append(
                    seed,
                    &self.active_base().get().to_be_bytes(),
                )) % max
            }
        };
        let limit = self.config.segment_ms.saturating_sub(jitter);
        age > i64::try_from(limit).unwrap_or(i64::MAX)
    }

    /// Opens the files that the next append writes to. Once it has succeeded, and until
    /// [`Log::release_idle_files`] closes some again, an append needs no more descriptors. When there
    /// are none left, it fails with [`StorageError::is_out_of_descriptors`] and has changed nothing.
    pub fn hold_open(&self) -> Result<(), StorageError> {
        let active = self.active_segment();
        let opened = active.files().try_for_each(|file| {
            file.file()
                .map(|_| ())
                .map_err(|error| StorageError::io("open", file.path(), error))
        });
        self.health.guard(opened)
    }

    /// Appends batches to the active segment, all by one write. Each has to begin where the one
    /// before it ends. Returns where they are; they can be read at once, but are durable only once
    /// the flush target has been synced.
    ///
    /// Any I/O failure takes the log directory offline. That no descriptor is left is a refusal, and
    /// nothing has been written then.
    pub fn append(&mut self, batches: &[StampedBatch]) -> Result<Vec<LogPosition>, StorageError> {
        self.check_usable()?;
        self.settle()?;
        self.hold_open()?;
        let segment = self.active_segment();
        let start = segment.end();
        let headers = self.check_append(batches, start.next_offset)?;
        let Some(last) = headers.last() else {
            return Ok(Vec::new());
        };
        self.hold_txn_index_open(&segment, batches, &headers)?;
        let bytes: u64 = headers
            .iter()
            .map(|header| header.size_in_bytes() as u64)
            .sum();
        let size = u64::from(start.size) + bytes;
        let relative_end = last.next_offset().get() - segment.base_offset.get();
        if size > u64::from(MAX_SEGMENT) || relative_end > i64::from(MAX_SEGMENT) {
            return Err(StorageError::SegmentFull {
                base_offset: segment.base_offset,
            });
        }
        let written = self.write(&segment, start.size, batches, &headers);
        let positions = self.health.guard(written)?;
        segment.set_max_timestamp(self.active.index.max_timestamp());
        self.note_appended(&segment, batches, &headers, &positions)?;
        segment.publish_end(last.next_offset(), size as u32);
        if let Some(position) = positions.last() {
            segment.remember(last.base_offset, position.position);
        }
        segment.remember(last.next_offset(), size as u32);
        Ok(positions)
    }

    /// Makes the transaction index if a batch aborts a transaction and there is none. What its entry
    /// is made of is known only after the batch has been written, and then nothing may be refused for
    /// want of a descriptor any more.
    fn hold_txn_index_open(
        &self,
        segment: &Segment,
        batches: &[StampedBatch],
        headers: &[BatchHeader],
    ) -> Result<(), StorageError> {
        let markers = headers.iter().zip(batches);
        let mut markers = markers.filter_map(|(header, batch)| batch.end_marker(header));
        if !markers.any(|marker| marker.aborted) {
            return Ok(());
        }
        let made = segment.txn_index.make().map_err(|error| {
            StorageError::io("make transaction index of", segment.log.path(), error)
        });
        self.health.guard(made.map(drop))
    }

    /// The headers as they will stand, if the batches follow the log's end.
    fn check_append(
        &self,
        batches: &[StampedBatch],
        log_end: Offset,
    ) -> Result<Vec<BatchHeader>, StorageError> {
        let mut expected = log_end;
        let mut epoch = self.shared.epochs.read().latest();
        let mut headers = Vec::with_capacity(batches.len());
        for batch in batches {
            let header = batch.header()?;
            if header.base_offset != expected {
                return Err(StorageError::NotNext {
                    expected,
                    found: header.base_offset,
                });
            }
            if let Some(last) = epoch
                && header.partition_leader_epoch < last
            {
                return Err(StorageError::StaleEpoch {
                    last,
                    found: header.partition_leader_epoch,
                });
            }
            epoch = Some(header.partition_leader_epoch);
            expected = header.next_offset();
            headers.push(header);
        }
        Ok(headers)
    }

    /// Writes the bytes, then the index entries. If either fails, what was written is taken back
    /// as far as the disk lets us, so that no torn index is left for other tools.
    fn write(
        &mut self,
        segment: &Segment,
        position: u32,
        batches: &[StampedBatch],
        headers: &[BatchHeader],
    ) -> Result<Vec<LogPosition>, StorageError> {
        let stamped: Vec<_> = headers.iter().map(BatchHeader::to_bytes).collect();
        let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(batches.len() * 2);
        for (header, batch) in stamped.iter().zip(batches) {
            let (_, body) = batch.bytes.split_at(BatchHeader::SIZE);
            slices.push(IoSlice::new(header));
            slices.push(IoSlice::new(body));
        }
        let mut entries = IndexEntries::default();
        let mut positions = Vec::with_capacity(batches.len());
        let mut at = position;
        for header in headers {
            positions.push(LogPosition {
                segment_base: segment.base_offset,
                position: at,
            });
            let interval = self.config.index_interval_bytes;
            self.active.index.add(header, at, interval, &mut entries);
            at += header.size_in_bytes() as u32;
        }
        let written = segment
            .log
            .write_vectored_at(&mut slices, u64::from(position))
            .map_err(|error| StorageError::io("append to", segment.log.path(), error))
            .and_then(|()| segment.append_index(&entries));
        if let Err(error) = written {
            // Best effort: the directory goes offline, and recovery cuts whatever stays.
            let _ = segment.log.set_len(u64::from(position));
            return Err(error);
        }
        if self.active.first_timestamp.is_none() {
            self.active.first_timestamp = headers.first().map(|header| header.max_timestamp);
        }
        Ok(positions)
    }

    /// Brings epochs, producers and the transaction index up to the batches just written.
    fn note_appended(
        &mut self,
        segment: &Segment,
        batches: &[StampedBatch],
        headers: &[BatchHeader],
        positions: &[LogPosition],
    ) -> Result<(), StorageError> {
        debug_assert_eq!(headers.len(), positions.len());
        for (header, batch) in headers.iter().zip(batches) {
            if self.shared.epochs.read().latest() != Some(header.partition_leader_epoch) {
                self.epochs_dirty |= self
                    .shared
                    .epochs
                    .write()
                    .assign(header.partition_leader_epoch, header.base_offset);
            }
            if !header.has_producer_id() {
                continue;
            }
            let marker = batch.end_marker(header);
            let completed = self.shared.producers.lock().update(header, marker);
            if let Some(txn) = completed.filter(|txn| txn.aborted) {
                let appended = segment.txn_index.append(txn.into()).map_err(|error| {
                    StorageError::io("write transaction index of", segment.log.path(), error)
                });
                self.health.guard(appended)?;
            }
        }
        Ok(())
    }

    /// Closes the active segment and begins a new one at the log end. Returns its base offset.
    /// Does nothing if the active segment is empty. If it fails for want of descriptors, it can be
    /// tried again.
    pub fn roll(&mut self, now: TimestampMs) -> Result<Offset, StorageError> {
        self.check_usable()?;
        let health = self.health.clone();
        health.guard(self.roll_inner(now))
    }

    fn roll_inner(&mut self, now: TimestampMs) -> Result<Offset, StorageError> {
        let old = self.active_segment();
        let end = old.end();
        if end.size == 0 {
            return Ok(old.base_offset);
        }
        self.hold_open()?;
        self.seal_active(&old)?;
        self.take_snapshot_at_end()?;
        let segment = Arc::new(Segment::create(
            &self.disk,
            &self.dir,
            end.next_offset,
            std::slice::from_ref(&self.dir),
        )?);
        self.sealed_dirty
            .extend(old.files().filter(|file| file.is_dirty()).cloned());
        let mut segments = self.shared.segments.load().as_ref().clone();
        segments.push(segment);
        self.shared.segments.store(Arc::new(segments));
        self.active = Active::new(end.next_offset, now);
        Ok(end.next_offset)
    }

    /// Gives the active segment's time index its last entry.
    pub(crate) fn seal_active(&mut self, segment: &Segment) -> Result<(), StorageError> {
        if let Some(entry) = self.active.index.seal() {
            segment.append_index(&IndexEntries {
                offsets: Vec::new(),
                times: vec![entry],
            })?;
        }
        Ok(())
    }

    fn take_snapshot_at_end(&mut self) -> Result<(), StorageError> {
        let shared = self.shared.clone();
        let states = shared.producers.lock();
        self.take_snapshot(self.next_offset(), &states)
    }

    /// Writes the producers' state at `offset`, unless it is on the disk already.
    pub(crate) fn take_snapshot(
        &mut self,
        offset: Offset,
        states: &ProducerStates,
    ) -> Result<(), StorageError> {
        if offset == Offset::ZERO || self.snapshots.contains(&offset) {
            return Ok(());
        }
        let content = producer_snapshot::encode(states);
        let path = offset_file(&self.dir, offset, SNAPSHOT_SUFFIX);
        let file = SyncFile::create(self.disk.clone(), path.clone(), vec![self.dir.clone()])
            .and_then(|file| {
                file.set_len(0)?;
                file.write_at(&content, 0)?;
                Ok(file)
            })
            .map_err(|error| StorageError::io("write", &path, error))?;
        self.snapshots.insert(offset);
        self.sealed_dirty.push(file);
        Ok(())
    }

    /// What has to be synced for everything appended so far to be durable.
    pub fn flush_target(&self) -> FlushTarget {
        let mut target = FlushTarget::new();
        for file in &self.sealed_dirty {
            target.add(file);
        }
        target.add(&self.active_segment().log);
        target
    }

    /// What has to be synced for the recovery point to move up to the log end: the files of
    /// [`Log::flush_target`] and the indexes. Once that is done, the checkpoint is handed to
    /// [`Log::finish_checkpoint`]. `None` if the recovery point is there already, or the log deleted.
    pub fn begin_checkpoint(&self) -> Option<(Checkpoint, FlushTarget)> {
        let offset = self.next_offset();
        if self.deleted || offset <= self.recovery_point.offset() {
            return None;
        }
        let mut target = self.flush_target();
        let active = self.active_segment();
        for file in active.files() {
            if !Arc::ptr_eq(file, &active.log) {
                target.add(file);
            }
        }
        let checkpoint = Checkpoint {
            offset,
            cuts: self.cuts,
        };
        Some((checkpoint, target))
    }

    /// Raises the recovery point to that of a checkpoint whose target has been synced since. A
    /// checkpoint that is out of date by now changes nothing.
    pub fn finish_checkpoint(&mut self, checkpoint: Checkpoint) -> Result<(), StorageError> {
        if checkpoint.cuts != self.cuts {
            return Ok(());
        }
        self.raise_recovery_point(checkpoint.offset)
    }

    /// Raises the recovery point to an offset below which everything is durable.
    pub(crate) fn raise_recovery_point(&mut self, offset: Offset) -> Result<(), StorageError> {
        self.check_usable()?;
        if offset <= self.recovery_point.offset() {
            return Ok(());
        }
        let written = self.write_epochs().and_then(|()| {
            self.recovery_point
                .set(offset, false)
                .map_err(|error| StorageError::io("write recovery point in", &self.dir, error))
        });
        self.health.guard(written)
    }

    /// Moves the recovery point up to the active segment once everything before it is durable.
    fn settle(&mut self) -> Result<(), StorageError> {
        if self.sealed_dirty.is_empty() {
            return Ok(());
        }
        self.sealed_dirty.retain(|file| file.is_dirty());
        if !self.sealed_dirty.is_empty() {
            return Ok(());
        }
        self.raise_recovery_point(self.active_base())
    }

    /// Writes the epoch checkpoint if it has changed; durable when it returns.
    pub(crate) fn write_epochs(&mut self) -> Result<(), StorageError> {
        if !self.epochs_dirty {
            return Ok(());
        }
        let path = self.dir.join(LEADER_EPOCH_CHECKPOINT);
        let text = self.shared.epochs.read().to_text();
        self.disk
            .replace_file(&path, text.as_bytes())
            .map_err(|error| StorageError::io("write", &path, error))?;
        self.epochs_dirty = false;
        Ok(())
    }

    /// Makes everything durable, down to the indexes and the producers' state, so that the next
    /// opening has nothing to scan. The log can still be used afterwards.
    pub fn close(&mut self) -> Result<(), StorageError> {
        self.check_usable()?;
        let health = self.health.clone();
        health.guard(self.close_inner())
    }

    fn close_inner(&mut self) -> Result<(), StorageError> {
        let active = self.active_segment();
        let segments = self.shared.segments.load().len();
        if segments == 1 && active.end().size == 0 && self.sealed_dirty.is_empty() {
            // Nothing that anybody counts on; an empty log may as well be made anew.
            return Ok(());
        }
        self.seal_active(&active)?;
        self.take_snapshot_at_end()?;
        let checkpoint = self.begin_checkpoint();
        let target = match &checkpoint {
            Some((_, target)) => target.clone(),
            None => self.flush_target(),
        };
        target
            .sync()
            .map_err(|error| StorageError::io("sync", &self.dir, error))?;
        self.sealed_dirty.clear();
        self.remove_stray_snapshots()?;
        match checkpoint {
            Some((checkpoint, _)) => self.finish_checkpoint(checkpoint),
            None => self.write_epochs(),
        }
    }

    /// Closes the descriptors of files that were not used since the last call and that no sync is
    /// due for. To be called from time to time, so that idle partitions hold none.
    pub fn release_idle_files(&self) {
        for segment in self.shared.segments.load().iter() {
            for file in segment.files() {
                file.release_if_idle();
            }
        }
    }
}
