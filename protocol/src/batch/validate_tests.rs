use bytes::Bytes;

use super::*;
use crate::batch::{BatchIter, patch_offsets, restamp};
use crate::error_code::ErrorCode;
use crate::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence};
use crate::records::{BatchBuilder, NewRecord, RecordWalker, expand};
use crate::test_data::{KafkaCase, kafka_cases};

const NOW: TimestampMs = TimestampMs::new(1_700_000_000_000);

fn limits(case: &KafkaCase) -> ValidationLimits {
    ValidationLimits {
        compacted: case.compacted,
        timestamp_type: if case.append_time {
            TimestampType::LogAppendTime
        } else {
            TimestampType::CreateTime
        },
        timestamp_before_max_ms: 3_600_000,
        timestamp_after_max_ms: 60_000,
        zstd_allowed: case.version >= 7,
        ..ValidationLimits::new(NOW)
    }
}

fn one_record(timestamp: i64, key: Option<&[u8]>) -> Bytes {
    BatchBuilder::new()
        .record(NewRecord {
            timestamp: TimestampMs::new(timestamp),
            key,
            value: Some(b"value"),
            headers: &[],
        })
        .build()
}

#[test]
fn kafkas_own_validation_answers_the_same_for_every_batch() {
    for case in kafka_cases() {
        let ours = validate_batch(&case.batch, &limits(&case));
        if case.name == "offset-delta" {
            // Kafka writes it into its log as it is, where offsets then contradict each other.
            assert!(matches!(ours, Err(BatchError::WrongOffsetDelta { .. })));
            continue;
        }
        match (ours, case.answer.as_str()) {
            (Ok(summary), "ok") => {
                assert_eq!(
                    summary.max_timestamp.get(),
                    case.max_timestamp,
                    "{}",
                    case.name
                );
                let mut batch = case.batch.clone();
                if summary.needs_restamp {
                    batch = restamp(batch, summary.timestamp_type, summary.max_timestamp);
                }
                let mut batch = batch.to_vec();
                patch_offsets(&mut batch, Offset::new(1000), LeaderEpoch::new(7));
                assert!(batch == case.appended, "{}", case.name);
            }
            // Kafka has no answer of its own here, and lets the exception through.
            (Err(error), "UNKNOWN_SERVER_ERROR") => {
                assert_eq!(
                    error.error_code(),
                    ErrorCode::InvalidRecord,
                    "{}",
                    case.name
                );
            }
            (Err(error), theirs) => {
                assert_eq!(error.error_code().name(), theirs, "{}", case.name);
                let indexes: Vec<i32> = error
                    .record_faults()
                    .iter()
                    .map(|fault| fault.index)
                    .collect();
                assert_eq!(indexes, case.fault_indexes, "{}", case.name);
            }
            (Ok(_), theirs) => panic!("{}: Kafka says {theirs}", case.name),
        }
    }
}

#[test]
fn what_validation_accepts_the_walker_reads_and_the_crc_fits_after_stamping() {
    for case in kafka_cases() {
        let Ok(summary) = validate_batch(&case.batch, &limits(&case)) else {
            continue;
        };
        let records = expand(&summary.header, &case.batch, 1 << 20).expect("expands");
        let walker = RecordWalker::new(&records, summary.header.record_count);
        let mut count = 0;
        for record in walker {
            record.expect("is well-formed");
            count += 1;
        }
        assert_eq!(count, summary.header.record_count);
        for batch in BatchIter::new(&case.appended) {
            let batch = batch.expect("has a header");
            verify_crc(&batch.header, batch.bytes).expect("Kafka's CRC is right");
        }
    }
}

#[test]
fn a_batch_over_max_message_bytes_is_too_large_before_its_crc_is_looked_at() {
    let mut batch = one_record(NOW.get(), Some(b"key")).to_vec();
    batch[20] ^= 1;
    let limits = ValidationLimits {
        max_message_bytes: batch.len() - 1,
        ..ValidationLimits::new(NOW)
    };
    let error = validate_batch(&batch, &limits).expect_err("too large");
    assert_eq!(error.error_code(), ErrorCode::MessageTooLarge);
}

#[test]
fn bytes_behind_the_batch_are_refused_and_so_is_a_second_batch() {
    let batch = one_record(NOW.get(), Some(b"key"));
    let tail = [&batch[..], b"tail"].concat();
    let limits = ValidationLimits::new(NOW);
    assert_eq!(
        validate_batch(&tail, &limits),
        Err(BatchError::BytesBehindBatch { len: 4 })
    );
    let many = batch.repeat(50_000);
    assert_eq!(
        validate_batch(&many, &limits),
        Err(BatchError::MoreThanOneBatch)
    );
}

#[test]
fn faults_of_single_records_are_listed_up_to_a_bound_and_all_counted() {
    let mut builder = BatchBuilder::new();
    for _ in 0..5_000 {
        builder.push(NewRecord {
            timestamp: NOW,
            ..NewRecord::default()
        });
    }
    let limits = ValidationLimits {
        compacted: true,
        ..ValidationLimits::new(NOW)
    };
    match validate_batch(&builder.build(), &limits) {
        Err(BatchError::InvalidRecords { total, faults }) => {
            assert_eq!(total, 5_000);
            assert_eq!(faults.len(), MAX_LISTED_FAULTS);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn coordinators_may_write_control_batches_at_any_offset_and_clients_may_not() {
    let batch = BatchBuilder::new()
        .base_offset(Offset::new(7))
        .producer(ProducerId::new(1), ProducerEpoch::new(0), Sequence::NONE)
        .transactional()
        .control()
        .record(NewRecord {
            timestamp: NOW,
            key: Some(&[0, 0, 0, 1]),
            value: Some(&[0; 6]),
            headers: &[],
        })
        .build();
    let mut limits = ValidationLimits::new(NOW);
    assert!(matches!(
        validate_batch(&batch, &limits),
        Err(BatchError::NonZeroBaseOffset { base_offset: 7 })
    ));
    limits.origin = BatchOrigin::Coordinator;
    assert!(validate_batch(&batch, &limits).is_ok());
}

#[test]
fn an_expansion_bomb_in_a_batch_is_refused_at_the_cap() {
    let value = vec![0; 20 << 20];
    for &codec in Compression::ALL {
        let mut builder = BatchBuilder::new();
        builder.push(NewRecord {
            timestamp: NOW,
            value: Some(&value),
            ..NewRecord::default()
        });
        let batch = builder.build_compressed(codec).expect("compresses");
        let mut limits = ValidationLimits {
            max_message_bytes: 64 << 20,
            ..ValidationLimits::new(NOW)
        };
        limits.expansion.max_batch_bytes = 1 << 20;
        let answer = validate_batch(&batch, &limits);
        if codec == Compression::None {
            assert!(answer.is_ok(), "nothing expands");
            continue;
        }
        let error = answer.expect_err("over the cap");
        assert!(
            matches!(error, BatchError::ExpandsTooFar { .. }),
            "{codec:?}"
        );
        assert_eq!(error.error_code(), ErrorCode::InvalidRecord);

        // The record's own length is checked before any of it is produced.
        limits.expansion.max_batch_bytes = 64 << 20;
        limits.expansion.max_record_bytes = 1 << 20;
        let error = validate_batch(&batch, &limits).expect_err("a record over the cap");
        assert!(
            matches!(error, BatchError::RecordTooLong { index: 0, .. }),
            "{codec:?}"
        );
        assert_eq!(error.error_code(), ErrorCode::InvalidRecord);
    }
}

#[test]
fn restamping_works_in_place_alone_and_on_a_copy_when_shared() {
    let batch = one_record(5, Some(b"key"));
    let shared = batch.clone();
    let stamped = restamp(shared, TimestampType::LogAppendTime, NOW);
    assert!(stamped != batch, "the original stays");
    let header = BatchHeader::parse(&stamped).expect("is a batch");
    assert_eq!(header.timestamp_type(), TimestampType::LogAppendTime);
    assert_eq!(header.max_timestamp, NOW);
    verify_crc(&header, &stamped).expect("has the right CRC");

    let at = batch.as_ptr();
    let stamped = restamp(batch, TimestampType::LogAppendTime, NOW);
    assert_eq!(stamped.as_ptr(), at, "nobody else held it");
}

#[test]
fn a_header_survives_being_written_and_read() {
    let batch = one_record(5, None);
    let header = BatchHeader::parse(&batch).expect("is a batch");
    assert_eq!(header.to_bytes(), batch[..BatchHeader::SIZE]);
    assert_eq!(header.size_in_bytes(), batch.len());
    for cut in 0..BatchHeader::SIZE {
        assert!(BatchHeader::parse(&batch[..cut]).is_err());
    }
}

#[test]
fn iteration_stops_before_a_torn_batch_and_at_an_impossible_header() {
    let batch = one_record(5, None);
    let torn = [&batch[..], &batch[..], &batch[..batch.len() - 1]].concat();
    let mut iter = BatchIter::new(&torn);
    assert_eq!(iter.by_ref().filter(Result::is_ok).count(), 2);
    assert_eq!(iter.rest().len(), batch.len() - 1);

    let mut bad = [&batch[..], &batch[..]].concat();
    bad[batch.len() + 16] = 9;
    let results: Vec<bool> = BatchIter::new(&bad).map(|batch| batch.is_ok()).collect();
    assert_eq!(results, [true, false]);
}
