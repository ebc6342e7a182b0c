//! One segment: a run of batches in one file, with its indexes.
//!
//! Invariants: `base offset ≤ offset of every batch < next offset`, relative offsets and positions
//! fit 31 bits, and the published end lies on a batch boundary with all bytes before it in place.
//! Next offset and size are published together in one atomic word, so that a reader sees an end
//! that is of one piece.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use odradek_protocol::batch::BatchHeader;
use odradek_protocol::ids::{Offset, TimestampMs};

use crate::disk::Disk;
use crate::error::StorageError;
use crate::file_names::{
    LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, offset_file,
};
use crate::index::{IndexEntries, OffsetIndex, TimeIndex, relative};
use crate::scan::{BatchScanner, ScanError};
use crate::sync_file::{NewEntry, SyncFile};
use crate::txn_index::TxnIndex;

/// Largest size of a segment in bytes, and largest distance of an offset from its base.
pub(crate) const MAX_SEGMENT: u32 = i32::MAX as u32;

/// Positions that a segment remembers for readers that go on where they stopped.
const HINTS: usize = 8;

/// Stands for a largest timestamp that has not been looked up yet.
const UNKNOWN_TIMESTAMP: i64 = i64::MIN;

/// Lengths of a segment's files as a directory listing tells them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SegmentFiles {
    pub log: u64,
    pub offset_index: Option<u64>,
    pub time_index: Option<u64>,
    pub txn_index: Option<u64>,
}

/// A segment. Many threads may read; one at a time writes.
#[derive(Debug)]
pub(crate) struct Segment {
    pub base_offset: Offset,
    pub log: Arc<SyncFile>,
    pub offset_index: OffsetIndex,
    pub time_index: TimeIndex,
    pub txn_index: TxnIndex,
    /// `relative next offset << 32 | size`.
    end: AtomicU64,
    max_timestamp: AtomicI64,
    /// `relative offset << 32 | position` of batches that will likely be read next.
    hints: [AtomicU64; HINTS],
}

/// Where a segment ends at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentEnd {
    pub next_offset: Offset,
    pub size: u32,
}

impl Segment {
    /// Makes the files of an empty segment. `new_dirs` are the directories to sync with them.
    pub fn create(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        base_offset: Offset,
        new_dirs: &[std::path::PathBuf],
    ) -> Result<Self, StorageError> {
        let entry = NewEntry::new(new_dirs.to_vec());
        let create = |suffix: &str| {
            let path = offset_file(dir, base_offset, suffix);
            SyncFile::create_with(disk.clone(), path.clone(), entry.clone())
                .map_err(|error| StorageError::io("create", &path, error))
        };
        // The log comes last, so that wherever there is one it has its indexes.
        let offset_index = create(OFFSET_INDEX_SUFFIX)?;
        let time_index = create(TIME_INDEX_SUFFIX)?;
        let log = create(LOG_SUFFIX)?;
        Self::assemble(disk, dir, base_offset, log, offset_index, time_index, None)
    }

    /// A segment of files that exist, with everything in them taken to be valid up to
    /// `next_offset`. Missing index files are made empty. `entry` is given where the names of the
    /// files may not be durable.
    pub fn open(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        base_offset: Offset,
        files: SegmentFiles,
        next_offset: Offset,
        entry: Option<Arc<NewEntry>>,
    ) -> Result<Self, StorageError> {
        let open = |suffix: &str, exists: bool| {
            let path = offset_file(dir, base_offset, suffix);
            if exists {
                return Ok(SyncFile::existing_with(disk.clone(), path, entry.clone()));
            }
            SyncFile::create(disk.clone(), path.clone(), vec![dir.to_path_buf()])
                .map_err(|error| StorageError::io("create", &path, error))
        };
        let log = open(LOG_SUFFIX, true)?;
        let size = u32::try_from(files.log)
            .ok()
            .filter(|size| *size <= MAX_SEGMENT)
            .ok_or_else(|| StorageError::corrupt(log.path(), files.log, "segment is too large"))?;
        let index = |len: Option<u64>, suffix| {
            let file = open(suffix, len.is_some())?;
            Ok::<_, StorageError>((file, len.unwrap_or(0)))
        };
        let (offset_file, offset_len) = index(files.offset_index, OFFSET_INDEX_SUFFIX)?;
        let (time_file, time_len) = index(files.time_index, TIME_INDEX_SUFFIX)?;
        let mut segment = Self::assemble(
            disk,
            dir,
            base_offset,
            log,
            offset_file.clone(),
            time_file.clone(),
            files.txn_index,
        )?;
        segment.offset_index = OffsetIndex::open(offset_file.clone(), offset_len)
            .map_err(|error| StorageError::io("read", offset_file.path(), error))?;
        segment.time_index = TimeIndex::open(time_file, time_len);
        segment.publish_end(next_offset, size);
        segment
            .max_timestamp
            .store(UNKNOWN_TIMESTAMP, Ordering::Release);
        Ok(segment)
    }

    fn assemble(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        base_offset: Offset,
        log: Arc<SyncFile>,
        offset_index: Arc<SyncFile>,
        time_index: Arc<SyncFile>,
        txn_index_len: Option<u64>,
    ) -> Result<Self, StorageError> {
        let txn_path = offset_file(dir, base_offset, TXN_INDEX_SUFFIX);
        let offset_path = offset_index.path().to_path_buf();
        Ok(Self {
            base_offset,
            log,
            offset_index: OffsetIndex::open(offset_index, 0)
                .map_err(|error| StorageError::io("read", &offset_path, error))?,
            time_index: TimeIndex::open(time_index, 0),
            txn_index: TxnIndex::new(disk.clone(), txn_path, txn_index_len),
            end: AtomicU64::new(0),
            max_timestamp: AtomicI64::new(TimestampMs::NONE.get()),
            hints: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
        })
    }

    /// Where the segment ends now.
    pub fn end(&self) -> SegmentEnd {
        let end = self.end.load(Ordering::Acquire);
        SegmentEnd {
            next_offset: self.base_offset.plus((end >> 32) as i64),
            size: end as u32,
        }
    }

    /// Lets readers see everything up to here. Writer only.
    pub fn publish_end(&self, next_offset: Offset, size: u32) {
        let relative = u64::from(relative(self.base_offset, next_offset));
        self.end
            .store(relative << 32 | u64::from(size), Ordering::Release);
    }

    /// The files of the segment that exist.
    pub fn files(&self) -> impl Iterator<Item = &Arc<SyncFile>> {
        [&self.log, self.offset_index.file(), self.time_index.file()]
            .into_iter()
            .chain(self.txn_index.file())
    }

    /// Appends entries to both indexes. A failure takes back what was written of them, as far as
    /// the disk lets us, so that no torn index is left for other tools. Writer only.
    pub fn append_index(&self, entries: &IndexEntries) -> Result<(), StorageError> {
        let before = (self.offset_index.entries(), self.time_index.entries());
        let appended = self
            .offset_index
            .append(&entries.offsets)
            .map_err(|error| StorageError::io("write", self.offset_index.file().path(), error))
            .and_then(|()| {
                self.time_index.append(&entries.times).map_err(|error| {
                    StorageError::io("write", self.time_index.file().path(), error)
                })
            });
        if appended.is_err() {
            // The directory goes offline anyway, and recovery rebuilds whatever stays.
            let _ = self.offset_index.truncate(before.0);
            let _ = self.time_index.truncate(before.1);
        }
        appended
    }

    /// Largest timestamp of the segment's records, or −1. For a segment that was not written to
    /// since it was opened, it is read from the time index, whose last entry tells it.
    pub fn max_timestamp(&self) -> Result<TimestampMs, StorageError> {
        let known = self.max_timestamp.load(Ordering::Acquire);
        if known != UNKNOWN_TIMESTAMP {
            return Ok(TimestampMs::new(known));
        }
        let last = self
            .time_index
            .last()
            .map_err(|error| StorageError::io("read", self.time_index.file().path(), error))?;
        let timestamp = last.map_or(TimestampMs::NONE, |entry| entry.timestamp);
        self.set_max_timestamp(timestamp);
        Ok(timestamp)
    }

    /// Publishes the largest timestamp. Writer only.
    pub fn set_max_timestamp(&self, timestamp: TimestampMs) {
        self.max_timestamp.store(timestamp.get(), Ordering::Release);
    }

    /// Remembers that the batch which begins with `offset` is at `position`.
    pub fn remember(&self, offset: Offset, position: u32) {
        let relative = relative(self.base_offset, offset);
        if let Some(slot) = self.hints.get(relative as usize % HINTS) {
            slot.store(
                u64::from(relative) << 32 | u64::from(position),
                Ordering::Relaxed,
            );
        }
    }

    /// Forgets all remembered positions, when the segment is truncated. Writer only.
    pub fn forget_hints(&self) {
        for slot in &self.hints {
            slot.store(u64::MAX, Ordering::Relaxed);
        }
    }

    fn hint(&self, offset: Offset) -> Option<u32> {
        let relative = relative(self.base_offset, offset);
        let slot = self.hints.get(relative as usize % HINTS)?;
        let hint = slot.load(Ordering::Relaxed);
        (hint >> 32 == u64::from(relative)).then_some(hint as u32)
    }

    /// The first batch whose last offset is not below `offset`, with its position; `None` if the
    /// segment has no such batch before `end`.
    pub fn find_batch(
        &self,
        offset: Offset,
        end: SegmentEnd,
    ) -> Result<Option<(BatchHeader, u32)>, StorageError> {
        let from = match self.hint(offset) {
            Some(position) => position,
            None => self
                .offset_index
                .position_for(relative(self.base_offset, offset))
                .map_err(|error| {
                    StorageError::io("read", self.offset_index.file().path(), error)
                })?,
        };
        let mut scanner = self.scan_headers(from, end.size)?;
        while let Some((header, position)) = self.checked(scanner.next_header())? {
            if header.last_offset() >= offset {
                return Ok(Some((header, position)));
            }
        }
        Ok(None)
    }

    /// The end of what lies wholly below `offset`: the position of the first batch that reaches
    /// `offset` or beyond, and the offset at which to go on from there.
    pub fn end_below(&self, offset: Offset, end: SegmentEnd) -> Result<SegmentEnd, StorageError> {
        if offset >= end.next_offset {
            return Ok(end);
        }
        if offset <= self.base_offset {
            return Ok(SegmentEnd {
                next_offset: self.base_offset,
                size: 0,
            });
        }
        if let Some(position) = self.hint(offset) {
            return Ok(SegmentEnd {
                next_offset: offset,
                size: position.min(end.size),
            });
        }
        Ok(self
            .find_batch(offset, end)?
            .map_or(end, |(header, position)| SegmentEnd {
                next_offset: header.base_offset.min(offset),
                size: position,
            }))
    }

    /// The last batch boundary in `from..=limit`, both of which lie within the segment, and the
    /// offset after the batches before it. `from` is a boundary.
    pub fn boundary_before(
        &self,
        from: u32,
        limit: u32,
        end: u32,
    ) -> Result<(u32, Option<Offset>), StorageError> {
        let start = self
            .offset_index
            .boundary_at_or_before(limit)
            .map_err(|error| StorageError::io("read", self.offset_index.file().path(), error))?
            .max(from);
        let mut scanner = self.scan_headers(start, end)?;
        let mut boundary = (start, None);
        while let Some((header, position)) = self.checked(scanner.next_header())? {
            if scanner.position() > limit {
                // The batch at the boundary tells the offset there even if it does not fit.
                if position == boundary.0 {
                    boundary.1 = Some(header.base_offset);
                }
                break;
            }
            boundary = (scanner.position(), Some(header.next_offset()));
        }
        Ok(boundary)
    }

    /// A scan of the headers in `from..to`.
    pub fn scan_headers(&self, from: u32, to: u32) -> Result<BatchScanner, StorageError> {
        Ok(BatchScanner::headers(self.open_log()?, from, to))
    }

    /// A scan of the whole batches in `from..to`.
    pub fn scan_batches(&self, from: u32, to: u32) -> Result<BatchScanner, StorageError> {
        Ok(BatchScanner::batches(self.open_log()?, from, to))
    }

    fn open_log(&self) -> Result<Arc<dyn crate::disk::DiskFile>, StorageError> {
        self.log
            .file()
            .map_err(|error| StorageError::io("open", self.log.path(), error))
    }

    /// Names the segment in a scan's error.
    pub fn checked<T>(&self, result: Result<T, ScanError>) -> Result<T, StorageError> {
        result.map_err(|error| match error {
            ScanError::Io(error) => StorageError::io("read", self.log.path(), error),
            ScanError::Malformed { position, what } => {
                StorageError::corrupt(self.log.path(), u64::from(position), what)
            }
        })
    }
}
