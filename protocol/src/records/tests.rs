use std::ops::ControlFlow;

use super::*;
use crate::batch::{BatchError, BatchHeader, TimestampType, restamp};
use crate::compression::Compression;
use crate::ids::{Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs};
use crate::test_data::kafka_case;

const NOW: i64 = 1_700_000_000_000;

/// The records that `GoldenBatches.java` puts into its batches.
fn push_kafkas_records(builder: &mut BatchBuilder) {
    let long = "x".repeat(300);
    let at = TimestampMs::new;
    let record = |timestamp, key, value| NewRecord {
        timestamp: at(timestamp),
        key,
        value,
        headers: &[],
    };
    builder.push(record(NOW, Some(b"key"), Some(b"value")));
    builder.push(NewRecord {
        headers: &[("h", Some(b"1")), ("h", Some(b"2")), ("null", None)],
        ..record(NOW + 20, None, Some(long.as_bytes()))
    });
    builder.push(record(NOW - 5, Some(b"tombstone"), None));
    builder.push(record(NOW + 20, Some(b""), Some(b"")));
}

fn stamped(timestamps: &[i64]) -> BatchBuilder {
    let mut builder = BatchBuilder::new().base_offset(Offset::new(100));
    for &timestamp in timestamps {
        builder.push(NewRecord {
            timestamp: TimestampMs::new(timestamp),
            value: Some(b"value"),
            ..NewRecord::default()
        });
    }
    builder
}

#[test]
fn batches_are_built_byte_for_byte_as_kafka_builds_them() {
    let builder = |builder: BatchBuilder| {
        let mut builder = builder;
        push_kafkas_records(&mut builder);
        builder.build()
    };
    let producer = || {
        BatchBuilder::new().producer(
            ProducerId::new(4711),
            ProducerEpoch::new(3),
            Sequence::new(17),
        )
    };
    assert!(builder(BatchBuilder::new()) == kafka_case("good-none").batch);
    assert!(builder(producer()) == kafka_case("idempotent").batch);
    assert!(builder(producer().transactional()) == kafka_case("transactional").batch);
}

#[test]
fn records_of_every_compression_are_read_as_kafka_wrote_them() {
    let mut expected = BatchBuilder::new();
    push_kafkas_records(&mut expected);
    let expected = expected.build();
    let expected_header = BatchHeader::parse(&expected).expect("is a batch");
    for codec in Compression::ALL {
        let case = kafka_case(&format!("good-{}", codec.name()));
        let header = BatchHeader::parse(&case.batch).expect("is a batch");
        assert_eq!(header.compression(), Ok(*codec));
        let records = expand(&header, &case.batch, 1 << 20).expect("expands");
        let theirs: Vec<_> = RecordWalker::new(&records, 4)
            .map(|record| record.expect("is well-formed"))
            .collect();
        let ours: Vec<_> = RecordWalker::of_batch(&expected_header, &expected)
            .map(|record| record.expect("is well-formed"))
            .collect();
        assert_eq!(theirs, ours);
    }
}

#[test]
fn headers_keep_their_order_and_repeated_keys() {
    let case = kafka_case("good-none");
    let header = BatchHeader::parse(&case.batch).expect("is a batch");
    let record = RecordWalker::of_batch(&header, &case.batch)
        .nth(1)
        .expect("has a second record")
        .expect("is well-formed");
    let headers: Vec<_> = record.headers().map(|h| (h.key, h.value)).collect();
    assert_eq!(
        headers,
        [
            (&b"h"[..], Some(&b"1"[..])),
            (b"h", Some(b"2")),
            (b"null", None)
        ]
    );
}

#[test]
fn scanning_shows_offsets_and_timestamps_of_every_record_until_it_is_told_to_stop() {
    for &codec in Compression::ALL {
        let batch = stamped(&[10, 30, 20, 30])
            .build_compressed(codec)
            .expect("compresses");
        let header = BatchHeader::parse(&batch).expect("is a batch");
        let scan = |header: &BatchHeader, batch: &[u8], until: i64| {
            let mut seen = Vec::new();
            scan_stamps(header, batch, ExpansionLimits::default(), |stamp| {
                let timestamp = record_timestamp(header, stamp.timestamp_delta).get();
                seen.push((stamp.offset_delta, timestamp));
                if timestamp >= until {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
            .expect("is well-formed");
            seen
        };
        let all = [(0, 10), (1, 30), (2, 20), (3, 30)];
        assert_eq!(scan(&header, &batch, 99), all);
        assert_eq!(scan(&header, &batch, 30), all[..2]);

        // With LogAppendTime, all have the batch's.
        let batch = restamp(batch, TimestampType::LogAppendTime, TimestampMs::new(77));
        let header = BatchHeader::parse(&batch).expect("is a batch");
        let all = [(0, 77), (1, 77), (2, 77), (3, 77)];
        assert_eq!(scan(&header, &batch, 99), all);
    }
}

/// Walker and scanner must agree on what is well-formed, however the bytes are bent.
#[test]
fn walker_and_scanner_agree_on_damaged_records() {
    let mut builder = BatchBuilder::new();
    push_kafkas_records(&mut builder);
    let whole = builder.build();
    let header = BatchHeader::parse(&whole).expect("is a batch");
    let records = &whole[BatchHeader::SIZE..];
    for at in 0..records.len() {
        for bend in [1, 0x40, 0x80, 0xff] {
            let mut bent = records.to_vec();
            bent[at] ^= bend;
            let walked: Result<Vec<_>, _> = RecordWalker::new(&bent, 4)
                .map(|record| record.map(|r| (r.offset_delta, r.timestamp_delta, r.key.is_some())))
                .collect();

            let packed = crate::compression::compress(Compression::Lz4, &bent).expect("compresses");
            let mut header = header;
            header.attributes = header.attributes.with_compression(Compression::Lz4);
            header.batch_length =
                (BatchHeader::SIZE - BatchHeader::LOG_OVERHEAD + packed.len()) as i32;
            let batch = [&header.to_bytes()[..], &packed[..]].concat();
            let mut seen = Vec::new();
            let scanned = scan_stamps(&header, &batch, ExpansionLimits::default(), |stamp| {
                seen.push((stamp.offset_delta, stamp.timestamp_delta, stamp.has_key));
                ControlFlow::Continue(())
            });
            assert_eq!(walked.is_ok(), scanned.is_ok(), "byte {at} bent by {bend}");
            if let Ok(walked) = walked {
                assert_eq!(walked, seen);
            }
        }
    }
}

#[test]
fn an_integer_longer_than_five_bytes_is_refused_by_walker_and_scanner_alike() {
    // Length, attributes, timestamp delta, offset delta 0 in six bytes, nulls, no headers.
    let record = [24, 0, 0, 0x80, 0x80, 0x80, 0x80, 0x80, 0, 1, 1, 0, 0];
    let malformed = Err(BatchError::MalformedRecord { index: 0 });
    let walked = RecordWalker::new(&record, 1).next();
    assert_eq!(
        walked.map(|record| record.map(|_| ())),
        Some(malformed.clone())
    );
    let packed = crate::compression::compress(Compression::Gzip, &record).expect("compresses");
    let mut header = BatchHeader::parse(&stamped(&[1]).build()).expect("is a batch");
    header.attributes = header.attributes.with_compression(Compression::Gzip);
    header.batch_length = (BatchHeader::SIZE - BatchHeader::LOG_OVERHEAD + packed.len()) as i32;
    let batch = [&header.to_bytes()[..], &packed[..]].concat();
    let scanned = scan_stamps(&header, &batch, ExpansionLimits::default(), |_| {
        ControlFlow::Continue(())
    });
    assert_eq!(scanned, malformed);
}

#[test]
fn a_count_of_headers_that_the_record_cannot_hold_ends_early() {
    // Length 10, attributes, deltas, null key and value, 2³⁰ headers.
    let mut record = vec![20, 0, 0, 0, 1, 1];
    record.extend_from_slice(&[0x80, 0x80, 0x80, 0x80, 0x08]);
    let mut walker = RecordWalker::new(&record, 1);
    assert_eq!(
        walker.next(),
        Some(Err(BatchError::MalformedRecord { index: 0 }))
    );
    assert_eq!(walker.next(), None);
}
