//! Changes to a batch that leave its records alone.

use bytes::{Bytes, BytesMut};

use super::header::{Attributes, BatchHeader, TimestampType};
use crate::ids::{LeaderEpoch, Offset, TimestampMs};

/// Writes the base offset and leader epoch into a batch or a copy of its header. Both stand
/// outside the CRC.
///
/// # Panics
/// If `batch` is shorter than a header.
pub fn patch_offsets(batch: &mut [u8], base_offset: Offset, leader_epoch: LeaderEpoch) {
    assert!(
        batch.len() >= BatchHeader::SIZE,
        "a batch is at least its header"
    );
    put(
        batch,
        BatchHeader::BASE_OFFSET_AT,
        &base_offset.get().to_be_bytes(),
    );
    put(
        batch,
        BatchHeader::LEADER_EPOCH_AT,
        &leader_epoch.get().to_be_bytes(),
    );
}

/// The batch with another timestamp type and largest timestamp, and the CRC that goes with them.
///
/// With [`TimestampType::LogAppendTime`] every record's timestamp is the batch's largest, whatever
/// its delta says, so this is all that such a topic needs. Works in place if nobody else holds
/// `batch`, otherwise on a copy.
///
/// # Panics
/// If `batch` is shorter than a header.
pub fn restamp(batch: Bytes, timestamp_type: TimestampType, max_timestamp: TimestampMs) -> Bytes {
    assert!(
        batch.len() >= BatchHeader::SIZE,
        "a batch is at least its header"
    );
    let mut batch = batch
        .try_into_mut()
        .unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    let at = BatchHeader::ATTRIBUTES_AT;
    let attributes = Attributes::from_bits(i16::from_be_bytes([batch[at], batch[at + 1]]))
        .with_timestamp_type(timestamp_type);
    put(&mut batch, at, &attributes.bits().to_be_bytes());
    put(
        &mut batch,
        BatchHeader::MAX_TIMESTAMP_AT,
        &max_timestamp.get().to_be_bytes(),
    );
    seal(&mut batch);
    batch.freeze()
}

/// Computes the CRC of a batch and writes it into its header.
pub(crate) fn seal(batch: &mut [u8]) {
    let crc = crc32c::crc32c(&batch[BatchHeader::ATTRIBUTES_AT..]);
    put(batch, BatchHeader::CRC_AT, &crc.to_be_bytes());
}

fn put(batch: &mut [u8], at: usize, value: &[u8]) {
    batch[at..at + value.len()].copy_from_slice(value);
}
