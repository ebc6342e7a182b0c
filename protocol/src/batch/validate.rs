//! Validation of a producer's batch.

use super::error::BatchError;
use super::header::{BatchHeader, TimestampType};
use crate::ids::TimestampMs;

/// Who hands a batch in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchOrigin {
    /// A client's Produce request.
    Client,
    /// This broker's own coordinators.
    Coordinator,
}

/// What a batch is measured against: the topic's configuration, the request's version, the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidationLimits {
    /// Who hands it in.
    pub origin: BatchOrigin,
    /// `max.message.bytes` of the topic.
    pub max_message_bytes: usize,
    /// Most bytes that the records may expand to.
    pub max_decompressed_bytes: usize,
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

/// What validation found out about a batch that is in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSummary {
    /// The header, as the batch has it now.
    pub header: BatchHeader,
    /// Largest timestamp of its records; with LogAppendTime the broker's clock.
    pub max_timestamp: TimestampMs,
    /// Offset of the first record with that timestamp, counted from the base offset.
    pub max_timestamp_offset_delta: i32,
    /// Timestamp type and largest timestamp are not what the header says: the batch has to go
    /// through [`super::restamp`] with them before it is appended.
    pub needs_restamp: bool,
}

/// The one batch of a Produce request's `records`.
pub fn single_batch(records: &[u8]) -> Result<BatchHeader, BatchError> {
    let header = BatchHeader::parse(records)?;
    if records.len() < header.size_in_bytes() {
        return Err(BatchError::NoBatch { len: records.len() });
    }
    Ok(header)
}

/// Checks the CRC-32C of a whole batch.
pub fn verify_crc(header: &BatchHeader, batch: &[u8]) -> Result<(), BatchError> {
    let computed = crc32c::crc32c(batch.get(BatchHeader::ATTRIBUTES_AT..).unwrap_or_default());
    if computed == header.crc {
        Ok(())
    } else {
        Err(BatchError::WrongCrc {
            computed,
            stored: header.crc,
        })
    }
}

/// Validates one whole batch.
pub fn validate_batch(batch: &[u8], limits: &ValidationLimits) -> Result<BatchSummary, BatchError> {
    let header = single_batch(batch)?;
    if header.size_in_bytes() > limits.max_message_bytes {
        return Err(BatchError::TooLarge {
            len: header.size_in_bytes(),
            limit: limits.max_message_bytes,
        });
    }
    verify_crc(&header, batch)?;
    Ok(BatchSummary {
        header,
        max_timestamp: header.max_timestamp,
        max_timestamp_offset_delta: header.last_offset_delta,
        needs_restamp: false,
    })
}
