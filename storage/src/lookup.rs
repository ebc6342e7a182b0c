//! Finding records by timestamp, as ListOffsets asks for them.
//!
//! The indexes narrow the search to a batch; the record within it is found by scanning its
//! records, through a decompressor if they are compressed. Results are bounded by the caller's `upper`: the high
//! watermark, or the last stable offset for read_committed.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use odradek_protocol::batch::BatchHeader;
use odradek_protocol::ids::{LeaderEpoch, Offset, TimestampMs};
use odradek_protocol::records::{ExpansionLimits, record_timestamp, scan_stamps};

use crate::error::StorageError;
use crate::index::relative;
use crate::reader::LogReader;
use crate::segment::Segment;

/// A record that was found by its timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimestampedOffset {
    /// Its offset.
    pub offset: Offset,
    /// Its timestamp.
    pub timestamp: TimestampMs,
    /// Epoch of the leader that appended it.
    pub leader_epoch: LeaderEpoch,
}

impl LogReader {
    /// The first record in `[lower, upper)` whose timestamp is at or after `timestamp`. The log's
    /// own start, which may lie below the one that clients see, bounds it too.
    pub fn lookup_timestamp(
        &self,
        timestamp: TimestampMs,
        lower: Offset,
        upper: Offset,
    ) -> Result<Option<TimestampedOffset>, StorageError> {
        let log_start = self.log_start().max(lower);
        let segments = self.shared().segments.load_full();
        for segment in segments.iter() {
            let end = segment.end();
            if segment.base_offset >= upper {
                break;
            }
            if end.next_offset <= log_start || segment.max_timestamp()? < timestamp {
                continue;
            }
            let from = position_for(segment, timestamp, log_start)?;
            let mut scanner = segment.scan_headers(from, end.size)?;
            while let Some((header, position)) = segment.checked(scanner.next_header())? {
                if header.base_offset >= upper {
                    break;
                }
                if header.max_timestamp < timestamp || header.last_offset() < log_start {
                    continue;
                }
                let found = self.first_record(segment, &header, position, |offset, ts| {
                    offset >= log_start && ts >= timestamp
                })?;
                if let Some(found) = found {
                    return Ok(Some(found).filter(|found| found.offset < upper));
                }
            }
        }
        Ok(None)
    }

    /// The first record in `[lower, upper)` that has the largest timestamp of them all; `None` if
    /// there is none, or none with a timestamp.
    pub fn max_timestamp(
        &self,
        lower: Offset,
        upper: Offset,
    ) -> Result<Option<TimestampedOffset>, StorageError> {
        let lower = self.log_start().max(lower);
        let segments = self.shared().segments.load_full();
        let mut best: Option<TimestampedOffset> = None;
        for segment in segments.iter() {
            let end = segment.end();
            if segment.base_offset >= upper {
                break;
            }
            let largest = segment.max_timestamp()?;
            if end.next_offset <= lower || !is_better(largest, best) {
                continue;
            }
            // The time index leads to the batch with the segment's largest timestamp. Only if that
            // one is out of bounds do the others matter.
            self.scan_for_largest(segment, largest, (lower, upper), &mut best)?;
            let bounded = segment.base_offset < lower || end.next_offset > upper;
            if bounded && is_better(largest, best) {
                let wanted = best.map_or(TimestampMs::NONE, |best| best.timestamp);
                let wanted = TimestampMs::new(wanted.get().saturating_add(1));
                self.scan_for_largest(segment, wanted, (lower, upper), &mut best)?;
            }
        }
        Ok(best)
    }

    /// Raises `best` to the first record within the bounds that has the largest timestamp, if that
    /// is `wanted` or later. Stops at the segment's largest.
    fn scan_for_largest(
        &self,
        segment: &Segment,
        wanted: TimestampMs,
        (lower, upper): (Offset, Offset),
        best: &mut Option<TimestampedOffset>,
    ) -> Result<(), StorageError> {
        let end = segment.end();
        let from = position_for(segment, wanted, lower)?;
        let mut scanner = segment.scan_headers(from, end.size)?;
        while let Some((header, position)) = segment.checked(scanner.next_header())? {
            if header.base_offset >= upper {
                break;
            }
            if header.max_timestamp < wanted
                || !is_better(header.max_timestamp, *best)
                || header.last_offset() < lower
            {
                continue;
            }
            let partial = header.base_offset < lower || header.last_offset() >= upper;
            let found = if partial {
                self.largest_record(segment, &header, position, |offset| {
                    offset >= lower && offset < upper
                })?
            } else {
                self.first_record(segment, &header, position, |_, timestamp| {
                    timestamp >= header.max_timestamp
                })?
            };
            if let Some(found) = found
                && found.timestamp >= wanted
                && is_better(found.timestamp, *best)
            {
                *best = Some(found);
            }
            if !is_better(segment.max_timestamp()?, *best) {
                break;
            }
        }
        Ok(())
    }

    fn first_record(
        &self,
        segment: &Segment,
        header: &BatchHeader,
        position: u32,
        wanted: impl Fn(Offset, TimestampMs) -> bool,
    ) -> Result<Option<TimestampedOffset>, StorageError> {
        let mut found = None;
        self.for_each_record(segment, header, position, |offset, timestamp| {
            if wanted(offset, timestamp) {
                found = Some((offset, timestamp));
            }
            found.is_none()
        })?;
        Ok(found.map(|(offset, timestamp)| TimestampedOffset {
            offset,
            timestamp,
            leader_epoch: header.partition_leader_epoch,
        }))
    }

    fn largest_record(
        &self,
        segment: &Segment,
        header: &BatchHeader,
        position: u32,
        counts: impl Fn(Offset) -> bool,
    ) -> Result<Option<TimestampedOffset>, StorageError> {
        let mut found: Option<(Offset, TimestampMs)> = None;
        self.for_each_record(segment, header, position, |offset, timestamp| {
            if counts(offset) && found.is_none_or(|(_, best)| timestamp > best) {
                found = Some((offset, timestamp));
            }
            true
        })?;
        Ok(found.map(|(offset, timestamp)| TimestampedOffset {
            offset,
            timestamp,
            leader_epoch: header.partition_leader_epoch,
        }))
    }

    /// Calls `visit` with offset and timestamp of the records of a batch until it returns false.
    fn for_each_record(
        &self,
        segment: &Segment,
        header: &BatchHeader,
        position: u32,
        mut visit: impl FnMut(Offset, TimestampMs) -> bool,
    ) -> Result<(), StorageError> {
        let malformed =
            |what: String| StorageError::corrupt(segment.log.path(), u64::from(position), what);
        let mut batch = vec![0; header.size_in_bytes()];
        segment
            .log
            .read_exact_at(&mut batch, u64::from(position))
            .map_err(|error| StorageError::io("read", segment.log.path(), error))?;
        let limits = ExpansionLimits {
            max_record_bytes: self.shared().max_decompressed_bytes.load(Ordering::Relaxed),
            ..ExpansionLimits::default()
        };
        scan_stamps(header, &batch, limits, |stamp| {
            let offset = header.base_offset.plus(i64::from(stamp.offset_delta));
            if visit(offset, record_timestamp(header, stamp.timestamp_delta)) {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })
        .map_err(|error| malformed(error.to_string()))
    }
}

/// Whether a record of this timestamp is better than the best so far. Without a timestamp it
/// never is.
fn is_better(timestamp: TimestampMs, best: Option<TimestampedOffset>) -> bool {
    timestamp > best.map_or(TimestampMs::NONE, |best| best.timestamp)
}

/// Position from which a scan finds the first batch of a timestamp at or after `timestamp`, or the
/// batch that holds `from` if that comes later.
fn position_for(
    segment: &Segment,
    timestamp: TimestampMs,
    from: Offset,
) -> Result<u32, StorageError> {
    let read = |error| StorageError::io("read index of", segment.log.path(), error);
    let older = segment.time_index.last_before(timestamp).map_err(read)?;
    let relative = older
        .map_or(0, |entry| entry.relative_offset)
        .max(relative(segment.base_offset, from.max(segment.base_offset)));
    segment.offset_index.position_for(relative).map_err(read)
}
