//! Validation of a producer's batch: everything that must be right before it gets an offset.
//!
//! In the order in which Kafka checks, so that a batch with several faults is refused for the same
//! one: format, allowed compression, number of batches, base offset, size, CRC, count, control and
//! sequence, then the records. Stricter than Kafka in two places, neither of which a client
//! reaches: bytes behind the batch are refused where Kafka drops them, and so are offset deltas
//! that do not count up from 0.

use std::ops::ControlFlow;

use super::error::{BatchError, RecordFault, RecordFaultCause};
use super::header::{BatchHeader, TimestampType};
use crate::compression::Compression;
use crate::ids::TimestampMs;
use crate::records::{ExpansionLimits, RecordStamp, record_timestamp, scan_stamps};

/// Faults of single records that an error lists; more are only counted.
const MAX_LISTED_FAULTS: usize = 1_024;

/// Who hands a batch in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchOrigin {
    /// A client's Produce request.
    Client,
    /// This broker's own coordinators, which may write control batches.
    Coordinator,
}

/// What a batch is measured against: the topic's configuration, the request's version, the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidationLimits {
    /// Who hands it in.
    pub origin: BatchOrigin,
    /// `max.message.bytes` of the topic.
    pub max_message_bytes: usize,
    /// How far compressed records may expand; `max.decompressed.message.bytes` of the topic is in
    /// here.
    pub expansion: ExpansionLimits,
    /// Whether the topic is compacted, so that every record needs a key.
    pub compacted: bool,
    /// `message.timestamp.type` of the topic.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms` of the topic.
    pub timestamp_before_max_ms: i64,
    /// `message.timestamp.after.max.ms` of the topic.
    pub timestamp_after_max_ms: i64,
    /// The broker's clock.
    pub now: TimestampMs,
    /// Whether zstd is allowed: from Produce v7 on.
    pub zstd_allowed: bool,
}

impl ValidationLimits {
    /// Kafka's defaults for a topic, for a client's batch at the time `now`.
    pub fn new(now: TimestampMs) -> Self {
        Self {
            origin: BatchOrigin::Client,
            max_message_bytes: 1_048_588,
            expansion: ExpansionLimits::default(),
            compacted: false,
            timestamp_type: TimestampType::CreateTime,
            timestamp_before_max_ms: i64::MAX,
            timestamp_after_max_ms: 3_600_000,
            now,
            zstd_allowed: true,
        }
    }
}

/// What validation found out about a batch that is in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSummary {
    /// The header as it came.
    pub header: BatchHeader,
    /// The timestamp type to append with: the topic's.
    pub timestamp_type: TimestampType,
    /// Largest timestamp of the records, −1 if none has one; with LogAppendTime the broker's clock.
    pub max_timestamp: TimestampMs,
    /// Offset of the first record with that timestamp, counted from the base offset.
    pub max_timestamp_offset_delta: i32,
    /// Whether the header says something else than `timestamp_type` and `max_timestamp`: then the
    /// batch has to go through [`super::restamp`] with them before it is appended.
    pub needs_restamp: bool,
}

/// The header of the one batch that a Produce request's `records` hold.
///
/// Checks the format and that there is exactly one whole batch, not the CRC.
pub fn single_batch(records: &[u8]) -> Result<BatchHeader, BatchError> {
    let header = BatchHeader::parse(records)?;
    let Some(rest) = records.get(header.size_in_bytes()..) else {
        return Err(BatchError::NoBatch { len: records.len() });
    };
    if rest.is_empty() {
        return Ok(header);
    }
    if rest.len() >= BatchHeader::SIZE {
        return Err(BatchError::MoreThanOneBatch);
    }
    Err(BatchError::BytesBehindBatch { len: rest.len() })
}

/// Checks the CRC-32C of a whole batch.
pub fn verify_crc(header: &BatchHeader, batch: &[u8]) -> Result<(), BatchError> {
    let covered = batch
        .get(BatchHeader::ATTRIBUTES_AT..header.size_in_bytes())
        .ok_or(BatchError::NoBatch { len: batch.len() })?;
    let computed = crc32c::crc32c(covered);
    if computed == header.crc {
        Ok(())
    } else {
        Err(BatchError::WrongCrc {
            computed,
            stored: header.crc,
        })
    }
}

/// Validates the one batch in `records`. Allocates only for a list of faults and, if the batch is
/// compressed, for the decompressor.
pub fn validate_batch(
    records: &[u8],
    limits: &ValidationLimits,
) -> Result<BatchSummary, BatchError> {
    let header = single_batch(records)?;
    let compression = header.compression()?;
    if compression == Compression::Zstd && !limits.zstd_allowed {
        return Err(BatchError::CompressionNotAllowed);
    }
    let client = limits.origin == BatchOrigin::Client;
    if client && header.base_offset.get() != 0 {
        return Err(BatchError::NonZeroBaseOffset {
            base_offset: header.base_offset.get(),
        });
    }
    if records.len() > limits.max_message_bytes {
        return Err(BatchError::TooLarge {
            len: records.len(),
            limit: limits.max_message_bytes,
        });
    }
    verify_crc(&header, records)?;
    check_count(&header)?;
    if client {
        check_producer(&header)?;
    }

    let mut check = RecordCheck::new(&header, limits);
    scan_stamps(&header, records, limits.expansion, |stamp| {
        check.record(stamp)
    })?;
    check.finish()
}

fn check_count(header: &BatchHeader) -> Result<(), BatchError> {
    let count = header.record_count;
    if count <= 0 {
        return Err(BatchError::NonPositiveCount { count });
    }
    if header.last_offset_delta != count - 1 {
        return Err(BatchError::CountMismatch {
            count,
            last_offset_delta: header.last_offset_delta,
        });
    }
    Ok(())
}

/// What only a client's batch must obey.
fn check_producer(header: &BatchHeader) -> Result<(), BatchError> {
    if header.is_control() {
        return Err(BatchError::ControlBatch);
    }
    if header.has_producer_id() && header.base_sequence.get() < 0 {
        return Err(BatchError::InvalidSequence {
            producer_id: header.producer_id.get(),
            sequence: header.base_sequence.get(),
        });
    }
    Ok(())
}

/// Collects what the records of a batch say, one after the other.
struct RecordCheck<'a> {
    header: &'a BatchHeader,
    limits: &'a ValidationLimits,
    /// Accepted timestamps.
    earliest: i64,
    latest: i64,
    index: i32,
    max_timestamp: TimestampMs,
    max_timestamp_offset_delta: i32,
    fatal: Option<BatchError>,
    faults: Vec<RecordFault>,
    fault_count: usize,
}

impl<'a> RecordCheck<'a> {
    fn new(header: &'a BatchHeader, limits: &'a ValidationLimits) -> Self {
        let now = limits.now.get();
        Self {
            header,
            limits,
            earliest: now.saturating_sub(limits.timestamp_before_max_ms),
            latest: now.saturating_add(limits.timestamp_after_max_ms),
            index: 0,
            max_timestamp: TimestampMs::NONE,
            max_timestamp_offset_delta: 0,
            fatal: None,
            faults: Vec::new(),
            fault_count: 0,
        }
    }

    #[inline]
    fn record(&mut self, stamp: RecordStamp) -> ControlFlow<()> {
        if stamp.offset_delta != self.index {
            self.fatal = Some(BatchError::WrongOffsetDelta {
                index: self.index,
                offset_delta: stamp.offset_delta,
            });
            return ControlFlow::Break(());
        }
        let timestamp = record_timestamp(self.header, stamp.timestamp_delta);
        if timestamp > self.max_timestamp {
            self.max_timestamp = timestamp;
            self.max_timestamp_offset_delta = self.index;
        }
        if let Some(cause) = self.fault(stamp, timestamp) {
            self.fault_count += 1;
            if self.faults.len() < MAX_LISTED_FAULTS {
                self.faults.push(RecordFault {
                    index: self.index,
                    cause,
                });
            }
        }
        self.index += 1;
        ControlFlow::Continue(())
    }

    #[inline]
    fn fault(&self, stamp: RecordStamp, timestamp: TimestampMs) -> Option<RecordFaultCause> {
        if self.limits.compacted && !stamp.has_key {
            return Some(RecordFaultCause::NullKey);
        }
        let create_time = self.limits.timestamp_type == TimestampType::CreateTime;
        if create_time && timestamp != TimestampMs::NONE {
            let timestamp = timestamp.get();
            if timestamp < self.earliest || timestamp > self.latest {
                return Some(RecordFaultCause::TimestampOutOfRange {
                    timestamp,
                    earliest: self.earliest,
                    latest: self.latest,
                });
            }
        } else if self.header.timestamp_type() == TimestampType::LogAppendTime {
            return Some(RecordFaultCause::TimestampTypeFromProducer);
        }
        None
    }

    fn finish(self) -> Result<BatchSummary, BatchError> {
        if let Some(error) = self.fatal {
            return Err(error);
        }
        if self.fault_count > 0 {
            return Err(BatchError::InvalidRecords {
                total: self.fault_count,
                faults: self.faults,
            });
        }
        let timestamp_type = self.limits.timestamp_type;
        let (max_timestamp, max_timestamp_offset_delta) = match timestamp_type {
            TimestampType::CreateTime => (self.max_timestamp, self.max_timestamp_offset_delta),
            // All records then have the same.
            TimestampType::LogAppendTime => (self.limits.now, 0),
        };
        Ok(BatchSummary {
            header: *self.header,
            timestamp_type,
            max_timestamp,
            max_timestamp_offset_delta,
            needs_restamp: self.header.timestamp_type() != timestamp_type
                || self.header.max_timestamp != max_timestamp,
        })
    }
}

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;
