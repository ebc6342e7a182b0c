//! Between records and the batches of the metadata log.

use bytes::Bytes;
use odradek_protocol::batch::{self, BatchError, BatchHeader, BatchIter};
use odradek_protocol::codec::EncodeError;
use odradek_protocol::compression::Compression;
use odradek_protocol::ids::{Offset, TimestampMs};
use odradek_protocol::records::{BatchBuilder, NewRecord, RecordWalker};

use super::image::{ImageError, MetadataImage};
use super::records::{MetadataRecord, RecordError};

/// Why a log cannot be replayed. The offset is that of the first record of the batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// A batch is damaged.
    #[error("metadata log at offset {offset}: {cause}")]
    Batch {
        /// Where.
        offset: Offset,
        /// What is wrong.
        cause: BatchError,
    },
    /// A batch does not follow the one before it.
    #[error("metadata log continues at offset {found}, not at {expected}")]
    Gap {
        /// Offset that should follow.
        expected: Offset,
        /// Offset that does.
        found: Offset,
    },
    /// A batch is compressed, which this log never is.
    #[error("metadata log at offset {offset}: the batch is compressed")]
    Compressed {
        /// Where.
        offset: Offset,
    },
    /// A record has no value.
    #[error("metadata log at offset {offset}: a record without a value")]
    NoValue {
        /// Where.
        offset: Offset,
    },
    /// A record is not one that this version understands.
    #[error("metadata log at offset {offset}: {cause}")]
    Record {
        /// Where.
        offset: Offset,
        /// What is wrong.
        cause: RecordError,
    },
    /// A record cannot follow the ones before it.
    #[error("metadata log at offset {offset}: {cause}")]
    Image {
        /// Where.
        offset: Offset,
        /// What is wrong.
        cause: ImageError,
    },
}

/// One batch of all `records`, of which there is at least one.
pub fn encode_batch(records: &[MetadataRecord], now: TimestampMs) -> Result<Bytes, EncodeError> {
    let mut batch = BatchBuilder::new();
    for record in records {
        let value = record.encode()?;
        batch.push(NewRecord {
            timestamp: now,
            key: None,
            value: Some(&value),
            headers: &[],
        });
    }
    Ok(batch.build())
}

/// Whether a batch that is to be appended could be read back and put on top of `image`: what is
/// committed is there for ever, and a log that cannot be replayed is a broker that does not start.
pub fn check_batch(
    image: &MetadataImage,
    header: &BatchHeader,
    batch: &[u8],
) -> Result<(), ReplayError> {
    let records = records(header, batch)?;
    let mut next = image.clone();
    next.apply(&records, image.next_offset())
        .map_err(|cause| ReplayError::Image {
            offset: image.next_offset(),
            cause,
        })
}

/// Puts whole batches on top of `image`, which they follow without a gap. Batches of control
/// records, with which Raft implementations mark their terms, change nothing.
pub fn apply_batches(image: &mut MetadataImage, batches: &[u8]) -> Result<(), ReplayError> {
    for batch in BatchIter::new(batches) {
        let expected = image.next_offset();
        let batch = batch.map_err(|cause| ReplayError::Batch {
            offset: expected,
            cause,
        })?;
        if batch.header.base_offset != expected {
            return Err(ReplayError::Gap {
                expected,
                found: batch.header.base_offset,
            });
        }
        let records = records(&batch.header, batch.bytes)?;
        image
            .apply(&records, batch.header.next_offset())
            .map_err(|cause| ReplayError::Image {
                offset: expected,
                cause,
            })?;
        let header = &batch.header;
        image.stands_at(header.next_offset(), header.partition_leader_epoch);
    }
    Ok(())
}

pub(super) fn records(
    header: &BatchHeader,
    batch: &[u8],
) -> Result<Vec<MetadataRecord>, ReplayError> {
    let offset = header.base_offset;
    let damaged = |cause| ReplayError::Batch { offset, cause };
    batch::verify_crc(header, batch).map_err(damaged)?;
    if header.is_control() {
        return Ok(Vec::new());
    }
    if header.compression().map_err(damaged)? != Compression::None {
        return Err(ReplayError::Compressed { offset });
    }
    RecordWalker::of_batch(header, batch)
        .map(|record| {
            let value = record
                .map_err(damaged)?
                .value
                .ok_or(ReplayError::NoValue { offset })?;
            MetadataRecord::decode(Bytes::copy_from_slice(value))
                .map_err(|cause| ReplayError::Record { offset, cause })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use odradek_protocol::batch::patch_offsets;
    use odradek_protocol::ids::{LeaderEpoch, TopicId};

    use super::super::records::TopicRecord;
    use super::*;

    fn topic(name: &str, number: u8) -> MetadataRecord {
        MetadataRecord::Topic(TopicRecord {
            name: name.to_owned(),
            topic_id: TopicId::from_bytes([number; 16]),
        })
    }

    fn batch_at(offset: i64, records: &[MetadataRecord]) -> BytesMut {
        let batch = encode_batch(records, TimestampMs::new(1)).expect("encodable");
        let mut batch = BytesMut::from(&batch[..]);
        patch_offsets(&mut batch, Offset::new(offset), LeaderEpoch::new(1));
        batch
    }

    #[test]
    fn batches_that_follow_one_another_add_up() {
        let mut log = batch_at(0, &[topic("a", 1), topic("b", 2)]);
        log.extend_from_slice(&batch_at(2, &[MetadataRecord::NoOp]));
        let mut image = MetadataImage::default();
        apply_batches(&mut image, &log).expect("applies");
        assert_eq!(image.next_offset(), Offset::new(3));
        assert_eq!(image.topics().count(), 2);
    }

    #[test]
    fn a_batch_that_could_not_be_replayed_is_found_before_it_is_appended() {
        let mut image = MetadataImage::default();
        let check = |image: &MetadataImage, record: MetadataRecord| {
            let batch = encode_batch(&[record], TimestampMs::new(1)).expect("encodable");
            let header = BatchHeader::parse(&batch).expect("sound");
            check_batch(image, &header, &batch)
        };
        assert_eq!(check(&image, topic("a", 1)), Ok(()));
        apply_batches(&mut image, &batch_at(0, &[topic("a", 1)])).expect("applies");
        assert!(matches!(
            check(&image, topic("a", 2)),
            Err(ReplayError::Image { .. })
        ));
        let too_long = "x".repeat(2 << 20);
        assert!(matches!(
            check(&image, topic(&too_long, 2)),
            Err(ReplayError::Record { .. })
        ));
    }

    #[test]
    fn a_gap_and_a_flipped_bit_are_found() {
        let mut image = MetadataImage::default();
        assert_eq!(
            apply_batches(&mut image, &batch_at(1, &[topic("a", 1)])),
            Err(ReplayError::Gap {
                expected: Offset::ZERO,
                found: Offset::new(1)
            })
        );
        let mut damaged = batch_at(0, &[topic("a", 1)]);
        if let Some(last) = damaged.last_mut() {
            *last ^= 1;
        }
        assert!(matches!(
            apply_batches(&mut image, &damaged),
            Err(ReplayError::Batch { .. })
        ));
    }
}
