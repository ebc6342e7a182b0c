//! Leaving records out of a batch that is in a log already, as compaction does.
//!
//! The batch keeps its place: base offset, last offset, leader epoch, producer and sequence numbers
//! stay as they are, so that offsets never move and an idempotent producer is still recognized.
//! What is left keeps its offset and its timestamp; the deltas are counted from a new base
//! timestamp. A delete horizon (KIP-534) takes the place of the base timestamp, and an attribute
//! says so.

use bytes::{BufMut, Bytes, BytesMut};

use super::builder::{nullable_len, put_nullable};
use super::scan::{expand, record_timestamp};
use super::varint;
use super::walker::{RecordView, RecordWalker};
use crate::batch::{BatchError, BatchHeader, TimestampType, seal};
use crate::compression::{Compression, compress};
use crate::ids::TimestampMs;

/// What is left of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rewritten {
    /// All of it: the bytes stay as they are.
    Unchanged,
    /// Some of it, or all of it with a new delete horizon.
    Changed(Bytes),
    /// No record.
    Emptied,
}

/// The delete horizon that a batch gets if it has none yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewHorizon {
    /// None.
    Never,
    /// This one.
    Set(TimestampMs),
    /// This one if a record that stays is a tombstone.
    IfTombstone(TimestampMs),
}

/// Makes a batch of those records of a whole batch that `keep` wants; it may be asked of a record
/// more than once. Compressed records are expanded to at most `max_expanded_bytes`, once, and
/// compressed again by the same codec.
///
/// Fails if the batch is not well-formed or expands too far.
pub fn rewrite(
    header: &BatchHeader,
    batch: &[u8],
    max_expanded_bytes: usize,
    delete_horizon: NewHorizon,
    keep: impl Fn(&RecordView<'_>) -> bool,
) -> Result<Rewritten, BatchError> {
    let expanded = expand(header, batch, max_expanded_bytes)?;
    let new_horizon = match delete_horizon {
        _ if header.attributes.has_delete_horizon() => None,
        NewHorizon::Never => None,
        NewHorizon::Set(horizon) => Some(horizon),
        NewHorizon::IfTombstone(horizon) => {
            has_tombstone(header, &expanded, &keep)?.then_some(horizon)
        }
    };
    let mut kept = 0_i32;
    let mut base_timestamp = match new_horizon {
        Some(horizon) => Some(horizon),
        None if header.attributes.has_delete_horizon() => Some(header.base_timestamp),
        None => None,
    };
    let mut max_timestamp = TimestampMs::NONE;
    let mut records = BytesMut::new();
    for record in RecordWalker::new(&expanded, header.record_count) {
        let record = record?;
        if !keep(&record) {
            continue;
        }
        let timestamp = record_timestamp(header, record.timestamp_delta);
        let base = *base_timestamp.get_or_insert(timestamp);
        max_timestamp = max_timestamp.max(timestamp);
        kept += 1;
        put_record(
            &mut records,
            &record,
            timestamp.get().wrapping_sub(base.get()),
        );
    }
    if kept == 0 {
        return Ok(Rewritten::Emptied);
    }
    if kept == header.record_count && new_horizon.is_none() {
        return Ok(Rewritten::Unchanged);
    }
    let mut left = *header;
    left.record_count = kept;
    left.base_timestamp = base_timestamp.unwrap_or(header.base_timestamp);
    left.attributes = header
        .attributes
        .with_delete_horizon(header.attributes.has_delete_horizon() || new_horizon.is_some());
    if header.timestamp_type() == TimestampType::CreateTime {
        left.max_timestamp = max_timestamp;
    }
    let compressed = match header.compression()? {
        Compression::None => records.freeze(),
        compression => compress(compression, &records)?,
    };
    assemble(left, &compressed).map(Rewritten::Changed)
}

/// Whether a record that stays is a tombstone.
fn has_tombstone(
    header: &BatchHeader,
    expanded: &[u8],
    keep: impl Fn(&RecordView<'_>) -> bool,
) -> Result<bool, BatchError> {
    for record in RecordWalker::new(expanded, header.record_count) {
        let record = record?;
        if record.value.is_none() && keep(&record) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A batch without any record in the place of another, for the sake of what its header says of its
/// producer.
pub fn emptied(header: &BatchHeader) -> Result<Bytes, BatchError> {
    let mut left = *header;
    left.record_count = 0;
    left.attributes = header
        .attributes
        .with_compression(Compression::None)
        .with_delete_horizon(false);
    left.base_timestamp = TimestampMs::NONE;
    assemble(left, &[])
}

fn assemble(mut header: BatchHeader, records: &[u8]) -> Result<Bytes, BatchError> {
    let size = BatchHeader::SIZE + records.len();
    // A batch whose new compression is much worse than the old one could grow past the field.
    header.batch_length = i32::try_from(size - BatchHeader::LOG_OVERHEAD).map_err(|_| {
        BatchError::Uncompressible {
            reason: format!("the batch would have {size} bytes"),
        }
    })?;
    let mut batch = BytesMut::with_capacity(size);
    batch.put_slice(&header.to_bytes());
    batch.put_slice(records);
    seal(&mut batch);
    Ok(batch.freeze())
}

/// Writes a record with another timestamp delta. A record's own attributes have no meaning and are
/// written as 0, as Kafka does.
fn put_record(out: &mut BytesMut, record: &RecordView<'_>, timestamp_delta: i64) {
    let offset_delta = i64::from(record.offset_delta);
    let header_count = i64::from(record.header_count);
    let body = 1
        + varint::len(timestamp_delta)
        + varint::len(offset_delta)
        + nullable_len(record.key)
        + nullable_len(record.value)
        + varint::len(header_count)
        + record.headers.len();
    out.reserve(varint::len(body as i64) + body);
    varint::put(out, body as i64);
    out.put_u8(0);
    varint::put(out, timestamp_delta);
    varint::put(out, offset_delta);
    put_nullable(out, record.key);
    put_nullable(out, record.value);
    varint::put(out, header_count);
    out.put_slice(record.headers);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::verify_crc;
    use crate::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence};
    use crate::records::{BatchBuilder, NewRecord};

    const CAP: usize = 1 << 20;

    fn builder(records: &[(&str, Option<&str>, i64)]) -> BatchBuilder {
        let mut builder = BatchBuilder::new()
            .base_offset(Offset::new(100))
            .leader_epoch(LeaderEpoch::new(3))
            .producer(ProducerId::new(7), ProducerEpoch::new(1), Sequence::new(40));
        for (key, value, timestamp) in records {
            builder.push(NewRecord {
                timestamp: TimestampMs::new(*timestamp),
                key: Some(key.as_bytes()),
                value: value.map(str::as_bytes),
                headers: &[("h", Some(b"1")), ("h", None)],
            });
        }
        builder
    }

    fn records_in(batch: &[u8]) -> Vec<(i64, String, Option<String>, i64)> {
        let header = BatchHeader::parse(batch).unwrap();
        verify_crc(&header, batch).unwrap();
        let records = expand(&header, batch, CAP).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        RecordWalker::new(&records, header.record_count)
            .map(|record| {
                let record = record.unwrap();
                assert_eq!(record.headers().count(), 2);
                (
                    header.base_offset.get() + i64::from(record.offset_delta),
                    text(record.key.unwrap()),
                    record.value.map(text),
                    record_timestamp(&header, record.timestamp_delta).get(),
                )
            })
            .collect()
    }

    fn changed(rewritten: Result<Rewritten, BatchError>) -> Bytes {
        match rewritten {
            Ok(Rewritten::Changed(bytes)) => bytes,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_left_keeps_offsets_timestamps_and_producer_when_the_first_record_goes() {
        for compression in Compression::ALL {
            let batch = builder(&[("a", Some("1"), 10), ("b", Some("2"), 30), ("c", None, 20)])
                .build_compressed(*compression)
                .unwrap();
            let header = BatchHeader::parse(&batch).unwrap();
            let left = changed(rewrite(&header, &batch, CAP, NewHorizon::Never, |record| {
                record.key != Some(b"a")
            }));
            let after = BatchHeader::parse(&left).unwrap();
            assert_eq!(
                records_in(&left),
                [
                    (101, "b".into(), Some("2".into()), 30),
                    (102, "c".into(), None, 20)
                ]
            );
            assert_eq!(after.base_offset, header.base_offset);
            assert_eq!(after.last_offset(), header.last_offset());
            assert_eq!(after.last_sequence(), header.last_sequence());
            assert_eq!(after.producer_id, header.producer_id);
            assert_eq!(after.partition_leader_epoch, LeaderEpoch::new(3));
            assert_eq!(after.max_timestamp, TimestampMs::new(30));
            assert_eq!(after.base_timestamp, TimestampMs::new(30));
            assert_eq!(after.compression().unwrap(), *compression);
        }
    }

    #[test]
    fn the_largest_timestamp_goes_with_its_record() {
        let batch = builder(&[("a", Some("1"), 30), ("b", Some("2"), 10)]).build();
        let header = BatchHeader::parse(&batch).unwrap();
        let left = changed(rewrite(&header, &batch, CAP, NewHorizon::Never, |record| {
            record.key != Some(b"a")
        }));
        let after = BatchHeader::parse(&left).unwrap();
        assert_eq!(after.max_timestamp, TimestampMs::new(10));
    }

    #[test]
    fn a_delete_horizon_is_set_once_and_moves_no_timestamp() {
        let batch = builder(&[("a", None, 10), ("b", Some("2"), 30)]).build();
        let header = BatchHeader::parse(&batch).unwrap();
        let horizon = NewHorizon::IfTombstone(TimestampMs::new(5_000));
        let marked = changed(rewrite(&header, &batch, CAP, horizon, |_| true));
        let header = BatchHeader::parse(&marked).unwrap();
        assert!(header.attributes.has_delete_horizon());
        assert_eq!(header.base_timestamp, TimestampMs::new(5_000));
        assert_eq!(
            records_in(&marked),
            [
                (100, "a".into(), None, 10),
                (101, "b".into(), Some("2".into()), 30)
            ]
        );
        let later = NewHorizon::Set(TimestampMs::new(9_000));
        let again = rewrite(&header, &marked, CAP, later, |_| true).unwrap();
        assert_eq!(again, Rewritten::Unchanged);
        let less = changed(rewrite(&header, &marked, CAP, later, |record| {
            record.key != Some(b"a")
        }));
        let header = BatchHeader::parse(&less).unwrap();
        assert_eq!(header.base_timestamp, TimestampMs::new(5_000));
        assert_eq!(records_in(&less), [(101, "b".into(), Some("2".into()), 30)]);
    }

    #[test]
    fn only_a_tombstone_that_stays_brings_a_delete_horizon() {
        let batch = builder(&[("a", None, 10), ("b", Some("2"), 30)])
            .build_compressed(Compression::Lz4)
            .unwrap();
        let header = BatchHeader::parse(&batch).unwrap();
        let horizon = NewHorizon::IfTombstone(TimestampMs::new(5_000));
        let without = changed(rewrite(&header, &batch, CAP, horizon, |record| {
            record.key != Some(b"a")
        }));
        let after = BatchHeader::parse(&without).unwrap();
        assert!(!after.attributes.has_delete_horizon());
        let with = changed(rewrite(&header, &batch, CAP, horizon, |record| {
            record.key != Some(b"b")
        }));
        let after = BatchHeader::parse(&with).unwrap();
        assert_eq!(after.base_timestamp, TimestampMs::new(5_000));
        assert_eq!(records_in(&with), [(100, "a".into(), None, 10)]);
    }

    #[test]
    fn an_emptied_batch_still_names_its_producer_and_its_offsets() {
        let batch = builder(&[("a", Some("1"), 10), ("b", Some("2"), 30)])
            .build_compressed(Compression::Zstd)
            .unwrap();
        let header = BatchHeader::parse(&batch).unwrap();
        assert_eq!(
            rewrite(&header, &batch, CAP, NewHorizon::Never, |_| false).unwrap(),
            Rewritten::Emptied
        );
        let empty = emptied(&header).unwrap();
        let after = BatchHeader::parse(&empty).unwrap();
        assert_eq!(records_in(&empty), []);
        assert_eq!(empty.len(), BatchHeader::SIZE);
        assert_eq!(after.base_offset, header.base_offset);
        assert_eq!(after.last_offset(), header.last_offset());
        assert_eq!(after.last_sequence(), header.last_sequence());
        assert_eq!(after.max_timestamp, header.max_timestamp);
    }

    #[test]
    fn a_batch_that_expands_too_far_is_refused() {
        let value = "v".repeat(4096);
        let batch = builder(&[("a", Some(&value), 10)])
            .build_compressed(Compression::Gzip)
            .unwrap();
        let header = BatchHeader::parse(&batch).unwrap();
        assert!(rewrite(&header, &batch, 1024, NewHorizon::Never, |_| true).is_err());
    }
}
