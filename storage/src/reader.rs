//! Reading a log while its owner appends to it.
//!
//! A reader takes no lock on the data path: it loads the list of segments and the published end of
//! a segment, both atomic, and everything before that end is in place. Invariant of every read:
//! only whole batches, all of whose offsets are below the `upper` that the caller gives.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
use odradek_protocol::batch::BatchHeader;
use odradek_protocol::ids::{LeaderEpoch, Offset};
use odradek_protocol::response::FileRegion;
use parking_lot::{Mutex, RwLock};

use crate::epoch_cache::{EpochCache, EpochEntry};
use crate::error::StorageError;
use crate::producer_state::ProducerStates;
use crate::scan::BatchScanner;
use crate::segment::Segment;
use crate::txn_index::AbortedTxn;

/// What a log's owner and its readers share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Oldest first, never empty.
    pub segments: ArcSwap<Vec<Arc<Segment>>>,
    pub log_start: AtomicI64,
    pub epochs: RwLock<EpochCache>,
    pub producers: Mutex<ProducerStates>,
    pub max_decompressed_bytes: AtomicUsize,
}

impl Shared {
    pub fn log_start(&self) -> Offset {
        Offset::new(self.log_start.load(Ordering::Acquire))
    }

    pub fn log_end(&self) -> Offset {
        match self.segments.load().last() {
            Some(segment) => segment.end().next_offset,
            None => self.log_start(),
        }
    }
}

/// Where a batch is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition {
    /// Base offset of the segment.
    pub segment_base: Offset,
    /// Position in the segment, in bytes.
    pub position: u32,
}

/// A run of whole batches.
#[derive(Clone, Debug)]
pub struct ReadSlice {
    /// Base offset of the first batch, which may lie before the offset that was asked for.
    /// The offset that was asked for, if the slice is empty.
    pub base_offset: Offset,
    /// Offset from which a read goes on after this one.
    pub next_offset: Offset,
    /// Where the bytes are, in order.
    pub regions: Vec<FileRegion>,
    /// Bytes in all regions.
    pub len: usize,
}

impl ReadSlice {
    /// Whether there is no batch.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the batches into memory.
    pub fn read(&self) -> std::io::Result<Bytes> {
        if let [region] = self.regions.as_slice() {
            return region.read();
        }
        let mut bytes = Vec::with_capacity(self.len);
        for region in &self.regions {
            bytes.extend_from_slice(&region.read()?);
        }
        Ok(bytes.into())
    }
}

/// A handle to read a log. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LogReader {
    shared: Arc<Shared>,
}

impl LogReader {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// First offset that can be read.
    pub fn log_start(&self) -> Offset {
        self.shared.log_start()
    }

    /// Offset of the next record. Not every record below it need be durable or committed.
    pub fn log_end(&self) -> Offset {
        self.shared.log_end()
    }

    /// Bytes of all segments.
    pub fn size_bytes(&self) -> u64 {
        let segments = self.shared.segments.load();
        segments
            .iter()
            .map(|segment| u64::from(segment.end().size))
            .sum()
    }

    /// Base offsets of the segments, oldest first.
    pub fn segment_bases(&self) -> Vec<Offset> {
        let segments = self.shared.segments.load();
        segments.iter().map(|segment| segment.base_offset).collect()
    }

    /// Reads whole batches from the one that holds `from` on: at most `max_bytes`, and only such
    /// as lie wholly below `upper`. If not even the first fits and `min_one` is set, it comes
    /// alone, however large (KIP-74).
    ///
    /// Fails with [`StorageError::OffsetOutOfRange`] if `from` is below the log start or above the
    /// log end.
    pub fn read(
        &self,
        from: Offset,
        max_bytes: usize,
        upper: Offset,
        min_one: bool,
    ) -> Result<ReadSlice, StorageError> {
        let segments = self.shared.segments.load();
        let log_end = self.check_range(from)?;
        let upper = upper.min(log_end);
        let mut slice = ReadSlice {
            base_offset: from,
            next_offset: from,
            regions: Vec::new(),
            len: 0,
        };
        let first = segments
            .partition_point(|segment| segment.base_offset <= from)
            .saturating_sub(1);
        for segment in segments.iter().skip(first) {
            if segment.base_offset >= upper {
                break;
            }
            let more = read_segment(segment, from, max_bytes, upper, min_one, &mut slice)
                .map_err(|error| self.gone(error, from))?;
            if !more {
                break;
            }
        }
        Ok(slice)
    }

    fn check_range(&self, offset: Offset) -> Result<Offset, StorageError> {
        let (log_start, log_end) = (self.log_start(), self.log_end());
        if offset < log_start || offset > log_end {
            return Err(StorageError::OffsetOutOfRange {
                requested: offset,
                log_start,
                log_end,
            });
        }
        Ok(log_end)
    }

    /// A file that is missing because its segment was deleted meanwhile means that the offset is
    /// out of range now.
    fn gone(&self, error: StorageError, requested: Offset) -> StorageError {
        match self.check_range(requested) {
            Err(out_of_range) if error.is_not_found() => out_of_range,
            _ => error,
        }
    }

    /// Walks over the headers of the batches from the one that holds `from` up to `upper`.
    pub fn headers_from(&self, from: Offset, upper: Offset) -> Result<HeaderCursor, StorageError> {
        let log_end = self.check_range(from)?;
        Ok(HeaderCursor {
            segments: self.shared.segments.load_full(),
            next_segment: None,
            current: None,
            from,
            upper: upper.min(log_end),
        })
    }

    /// Reads the whole batch of a header that [`LogReader::headers_from`] gave.
    pub fn read_batch(&self, batch: &BatchRef) -> Result<Bytes, StorageError> {
        let mut bytes = vec![0; batch.header.size_in_bytes()];
        batch
            .segment
            .log
            .read_exact_at(&mut bytes, u64::from(batch.position.position))
            .map_err(|error| StorageError::io("read", batch.segment.log.path(), error))?;
        Ok(bytes.into())
    }

    /// The largest epoch that is not above `epoch`, and the offset after its last record: what
    /// OffsetForLeaderEpoch answers. `None` if the epoch is above the newest.
    pub fn end_offset_for_epoch(&self, epoch: LeaderEpoch) -> Option<(LeaderEpoch, Offset)> {
        self.shared
            .epochs
            .read()
            .end_offset_for(epoch, self.log_end())
    }

    /// The epoch of the record at `offset`.
    pub fn epoch_at(&self, offset: Offset) -> Option<LeaderEpoch> {
        self.shared.epochs.read().epoch_at(offset)
    }

    /// The newest epoch that has appended anything.
    pub fn latest_epoch(&self) -> Option<LeaderEpoch> {
        self.shared.epochs.read().latest()
    }

    /// All epochs that have records, oldest first.
    pub fn epochs(&self) -> Vec<EpochEntry> {
        self.shared.epochs.read().entries().to_vec()
    }

    /// Calls `look` with the state of the producers at the log end. It holds a lock: `look` must
    /// be short and must not come back to the log.
    pub fn with_producers<T>(&self, look: impl FnOnce(&ProducerStates) -> T) -> T {
        look(&self.shared.producers.lock())
    }

    /// Lets the producers' state know that everything below `high_watermark` is committed; from
    /// there [`ProducerStates::first_unstable_offset`] moves on.
    pub fn on_high_watermark(&self, high_watermark: Offset) {
        self.shared
            .producers
            .lock()
            .on_high_watermark(high_watermark);
    }

    /// As [`LogReader::on_high_watermark`], for a log that has just been opened. Its producers' state is
    /// that of the log's end, and where a transaction began whose marker is there, but not committed, is
    /// forgotten: until the last such marker is committed, nothing is stable.
    ///
    /// # Errors
    /// The headers of the batches that are not committed cannot be read.
    pub fn begin_at_high_watermark(&self, high_watermark: Offset) -> Result<(), StorageError> {
        let (log_start, log_end) = (self.log_start(), self.log_end());
        let mut last_marker = None;
        if high_watermark < log_end {
            for batch in self.headers_from(high_watermark.max(log_start), log_end)? {
                let header = batch?.header;
                if header.is_control() && header.has_producer_id() {
                    last_marker = Some(header.base_offset);
                }
            }
        }
        let mut producers = self.shared.producers.lock();
        producers.on_high_watermark(high_watermark);
        if let Some(last_marker) = last_marker {
            producers.hold_back(log_start, last_marker);
        }
        Ok(())
    }

    /// Forgets idle producers; see [`ProducerStates::expire`].
    pub fn expire_producers(
        &self,
        now: odradek_protocol::ids::TimestampMs,
        expiration_ms: u64,
    ) -> usize {
        self.shared.producers.lock().expire(now, expiration_ms)
    }

    /// The aborted transactions that a read_committed consumer must know for records in
    /// `[from, upper)`.
    pub fn aborted_transactions(
        &self,
        from: Offset,
        upper: Offset,
    ) -> Result<Vec<AbortedTxn>, StorageError> {
        let segments = self.shared.segments.load();
        let first = segments
            .partition_point(|segment| segment.base_offset <= from)
            .saturating_sub(1);
        let mut found = Vec::new();
        for segment in segments.iter().skip(first) {
            for txn in segment.txn_index.read().map_err(|error| {
                StorageError::io("read transaction index of", segment.log.path(), error)
            })? {
                if txn.last_offset >= from && txn.first_offset < upper {
                    found.push(txn);
                }
                // Nothing that was still open then can reach below this bound.
                if txn.last_stable_offset >= upper {
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }
}

/// Adds what is wanted of one segment. Returns whether the next one should be looked at.
fn read_segment(
    segment: &Segment,
    from: Offset,
    max_bytes: usize,
    upper: Offset,
    min_one: bool,
    slice: &mut ReadSlice,
) -> Result<bool, StorageError> {
    let end = segment.end();
    let first = if slice.regions.is_empty() {
        segment.find_batch(from, end)?
    } else {
        segment.find_batch(segment.base_offset, end)?
    };
    let Some((header, start)) = first else {
        return Ok(true);
    };
    let whole = upper >= end.next_offset;
    let below = segment.end_below(upper, end)?;
    let stop = below.size;
    if stop <= start {
        return Ok(whole);
    }
    let room = max_bytes.saturating_sub(slice.len);
    let available = (stop - start) as usize;
    let (stop, next_offset, more) = if available <= room {
        (stop, below.next_offset, whole)
    } else {
        let limit = start + u32::try_from(room).unwrap_or(u32::MAX).min(stop - start);
        let (boundary, next_offset) = segment.boundary_before(start, limit, stop)?;
        match next_offset {
            Some(next_offset) if boundary > start => (boundary, next_offset, false),
            _ if slice.regions.is_empty() && min_one => {
                let stop = start + header.size_in_bytes() as u32;
                (stop, header.next_offset(), false)
            }
            _ => return Ok(false),
        }
    };
    let len = (stop - start) as usize;
    let region = segment
        .log
        .region(u64::from(start), len)
        .map_err(|error| StorageError::io("open", segment.log.path(), error))?;
    if slice.regions.is_empty() {
        slice.base_offset = header.base_offset;
    }
    slice.regions.push(region);
    slice.len += len;
    slice.next_offset = next_offset;
    segment.remember(next_offset, stop);
    Ok(more && slice.len < max_bytes)
}

/// A batch's header and where the batch is.
#[derive(Clone, Debug)]
pub struct BatchRef {
    /// The header.
    pub header: BatchHeader,
    /// Where the batch is.
    pub position: LogPosition,
    segment: Arc<Segment>,
}

/// Walks over batch headers; made by [`LogReader::headers_from`].
pub struct HeaderCursor {
    segments: Arc<Vec<Arc<Segment>>>,
    next_segment: Option<usize>,
    current: Option<(Arc<Segment>, BatchScanner)>,
    from: Offset,
    upper: Offset,
}

impl HeaderCursor {
    fn advance(&mut self) -> Result<Option<BatchRef>, StorageError> {
        loop {
            if let Some((segment, scanner)) = &mut self.current {
                while let Some((header, position)) = segment.checked(scanner.next_header())? {
                    if header.last_offset() >= self.upper {
                        return Ok(None);
                    }
                    if header.last_offset() >= self.from {
                        return Ok(Some(BatchRef {
                            header,
                            position: LogPosition {
                                segment_base: segment.base_offset,
                                position,
                            },
                            segment: segment.clone(),
                        }));
                    }
                }
            }
            let index = self.next_segment.unwrap_or_else(|| {
                self.segments
                    .partition_point(|segment| segment.base_offset <= self.from)
                    .saturating_sub(1)
            });
            let Some(segment) = self.segments.get(index) else {
                return Ok(None);
            };
            self.next_segment = Some(index + 1);
            let end = segment.end();
            let start = match segment.find_batch(self.from, end)? {
                Some((_, position)) => position,
                None => continue,
            };
            let scanner = segment.scan_headers(start, end.size)?;
            self.current = Some((segment.clone(), scanner));
        }
    }
}

impl Iterator for HeaderCursor {
    type Item = Result<BatchRef, StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().transpose()
    }
}
