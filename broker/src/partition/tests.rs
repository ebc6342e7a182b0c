use std::time::Duration;

use odradek_protocol::batch::{BatchHeader, BatchOrigin, TimestampType};
use odradek_protocol::compression::Compression;
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{
    LeaderEpoch, Offset, PartitionIndex, ProducerEpoch, ProducerId, Sequence, TimestampMs,
};
use odradek_protocol::records::{BatchBuilder, NewRecord};

use odradek_storage::producer_state::EndTxnMarker;

use super::*;
use crate::coordinator::effects::ProducerIdentity;
use crate::fetch_plan::{IsolationLevel, ReadLimit};
use crate::fetch_sessions::{FetchKey, FetchTarget, TopicRef};
use crate::partitions::fixture::{
    Fixture, START, abort_marker, batch, batch_at, commit_marker, producer_batch,
    transactional_batch,
};

const CLIENT: AppendOptions = AppendOptions {
    origin: BatchOrigin::Client,
    zstd_allowed: true,
    wants_append: false,
    wants_in_sync: true,
    epoch: None,
    verification: Verification::Needed { bumps_epoch: false },
};
/// One that has its partitions added by what it writes (KIP-890).
const NEW_CLIENT: AppendOptions = AppendOptions {
    verification: Verification::Needed { bumps_epoch: true },
    ..CLIENT
};
const ALL: Option<ReadLimit> = Some(ReadLimit {
    max_bytes: 1 << 20,
    whole_first_batch: true,
});

async fn one_partition() -> (Fixture, Arc<Partition>) {
    let mut fixture = Fixture::new();
    fixture.create_topic("orders", 1, 1).await;
    let partition = fixture.partition("orders", 0);
    (fixture, partition)
}

async fn commit(partition: &Partition, batch: Bytes) -> Result<i64, ErrorCode> {
    let appending = partition
        .append(batch, CLIENT)
        .map_err(|error| error.error_code())?;
    let outcome = appending.committed().await;
    outcome
        .map(|outcome| outcome.base_offset.get())
        .map_err(|error| error.error_code())
}

fn target(offset: i64) -> FetchTarget {
    FetchTarget {
        key: FetchKey {
            topic: TopicRef::Name("orders".into()),
            partition: PartitionIndex::new(0),
        },
        current_leader_epoch: LeaderEpoch::NONE,
        fetch_offset: Offset::new(offset),
        last_fetched_epoch: LeaderEpoch::NONE,
        max_bytes: 1 << 20,
    }
}

fn fetched(partition: &Partition, offset: i64) -> Vec<BatchHeader> {
    let answer = partition.fetch(
        &target(offset),
        IsolationLevel::ReadUncommitted,
        ALL,
        &Reader::default(),
    );
    assert_eq!(answer.error_code, ErrorCode::None);
    let odradek_protocol::fetch_response::RecordsPayload::Regions(regions) = answer.records else {
        return Vec::new();
    };
    let bytes: Vec<u8> = regions
        .iter()
        .flat_map(|region| region.read().expect("read").to_vec())
        .collect();
    odradek_protocol::batch::BatchIter::new(&bytes)
        .map(|batch| batch.expect("whole").header)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_in_flight_are_acknowledged_in_order_and_duplicates_with_their_first_offset() {
    let (_fixture, partition) = one_partition().await;
    let mut waiting = Vec::new();
    for number in 0..5 {
        let batch = producer_batch(9, 0, number * 2, 2);
        waiting.push(partition.append(batch, CLIENT).expect("accepted"));
    }
    // The third comes again while it may still be in flight.
    let again = partition.append(producer_batch(9, 0, 4, 2), CLIENT);
    let again = again.expect("known").committed().await.expect("committed");
    assert_eq!(again.base_offset, Offset::new(4));
    for (number, appending) in (0..).zip(waiting) {
        let outcome = appending.committed().await.expect("committed");
        assert_eq!(outcome.base_offset, Offset::new(number * 2));
    }
    // And once more after everything has committed.
    assert_eq!(commit(&partition, producer_batch(9, 0, 4, 2)).await, Ok(4));
    assert_eq!(partition.offsets().log_end.get(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequence_gaps_and_fenced_epochs_are_refused_and_leave_no_trace() {
    let (_fixture, partition) = one_partition().await;
    assert_eq!(commit(&partition, producer_batch(9, 1, 0, 2)).await, Ok(0));
    assert_eq!(
        commit(&partition, producer_batch(9, 1, 3, 1)).await,
        Err(ErrorCode::OutOfOrderSequenceNumber)
    );
    assert_eq!(
        commit(&partition, producer_batch(9, 0, 2, 1)).await,
        Err(ErrorCode::InvalidProducerEpoch)
    );
    assert_eq!(
        commit(&partition, producer_batch(9, 2, 2, 1)).await,
        Err(ErrorCode::OutOfOrderSequenceNumber),
        "a new epoch begins at 0"
    );
    assert_eq!(commit(&partition, producer_batch(9, 2, 0, 1)).await, Ok(2));
    assert_eq!(partition.offsets().log_end.get(), 3);
}

/// Clients like librdkafka take a gap for a lost sequence, and send what is on its way under another epoch, though some of
/// it may be in the log already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_behind_one_that_was_refused_for_a_moment_is_refused_likewise() {
    let (_fixture, partition) = one_partition().await;
    assert_eq!(commit(&partition, producer_batch(9, 0, 0, 2)).await, Ok(0));
    let refuse_all = || partition.directory().check_reserve(0, 1 << 30);
    let take_all = || partition.directory().check_reserve(1 << 40, 1 << 30);
    for producer in [9, 10] {
        refuse_all();
        assert_eq!(
            commit(&partition, producer_batch(producer, 0, 2, 2)).await,
            Err(ErrorCode::KafkaStorageError)
        );
        take_all();
        assert_eq!(
            commit(&partition, producer_batch(producer, 0, 4, 2)).await,
            Err(ErrorCode::NotLeaderOrFollower),
            "producer 9 has a gap, and nothing is known of producer 10"
        );
        for sequence in [2, 4] {
            let taken = commit(&partition, producer_batch(producer, 0, sequence, 2)).await;
            assert!(taken.is_ok(), "{taken:?}");
        }
        assert_eq!(
            commit(&partition, producer_batch(producer, 0, 9, 2)).await,
            Err(ErrorCode::OutOfOrderSequenceNumber)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sequence_goes_on_at_zero_after_the_largest() {
    let (_fixture, partition) = one_partition().await;
    let last = producer_batch(9, 0, i32::MAX - 1, 2);
    assert_eq!(commit(&partition, last).await, Ok(0));
    assert_eq!(commit(&partition, producer_batch(9, 0, 0, 1)).await, Ok(2));
    let over_the_edge = producer_batch(8, 0, i32::MAX, 3);
    assert_eq!(commit(&partition, over_the_edge.clone()).await, Ok(3));
    assert_eq!(commit(&partition, over_the_edge).await, Ok(3));
    assert_eq!(commit(&partition, producer_batch(8, 0, 2, 1)).await, Ok(6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_idle_past_its_expiry_goes_on() {
    let (fixture, partition) = one_partition().await;
    assert_eq!(commit(&partition, producer_batch(9, 0, 0, 2)).await, Ok(0));
    fixture.clock.advance(Duration::from_secs(2 * 24 * 60 * 60));
    fixture.manager.expire_producers();
    assert!(
        partition
            .reader()
            .with_producers(|states| states.is_empty())
    );
    assert_eq!(commit(&partition, producer_batch(9, 0, 7, 1)).await, Ok(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_goes_on_after_its_records_were_deleted() {
    let (_fixture, partition) = one_partition().await;
    assert_eq!(commit(&partition, producer_batch(9, 0, 0, 2)).await, Ok(0));
    let start = partition.delete_records(Offset::NONE).await;
    assert_eq!(start.expect("moved"), Offset::new(2));
    assert_eq!(commit(&partition, producer_batch(9, 0, 2, 1)).await, Ok(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_broker_still_knows_what_a_producer_sent_last() {
    let (fixture, partition) = one_partition().await;
    for number in 0..4 {
        let batch = producer_batch(9, 0, number, 1);
        assert_eq!(commit(&partition, batch).await, Ok(i64::from(number)));
    }
    drop(partition);
    let fixture = fixture.restart().await;
    let partition = fixture.partition("orders", 0);
    assert_eq!(commit(&partition, producer_batch(9, 0, 3, 1)).await, Ok(3));
    assert_eq!(commit(&partition, producer_batch(9, 0, 4, 1)).await, Ok(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_a_transaction_is_taken_once_its_coordinator_was_asked_and_not_after_its_end() {
    let (_fixture, partition) = one_partition().await;
    let asked = |partition: &Partition| match partition.append(transactional_batch(9, 1), CLIENT) {
        Err(PartitionError::Unverified(asked)) => asked,
        other => panic!("{other:?}"),
    };
    let end = |coordinator_epoch| TxnEnd {
        producer: ProducerIdentity {
            id: ProducerId::new(9),
            epoch: ProducerEpoch::new(0),
        },
        marker: EndTxnMarker {
            aborted: true,
            coordinator_epoch,
        },
        bumps_epoch: false,
        started_at: TimestampMs::NONE,
    };
    let early = asked(&partition);
    assert_eq!(early.producer, end(1).producer);
    let marker = partition.append_marker(end(2)).expect("taken");
    marker.committed().await.expect("committed");
    let with = |asked: Unverified| AppendOptions {
        verification: Verification::Done(asked.guard),
        ..CLIENT
    };
    let late = partition.append(transactional_batch(9, 1), with(early));
    assert!(matches!(late, Err(PartitionError::NotInTransaction)));
    let verified = with(asked(&partition));
    let taken = partition.append(transactional_batch(9, 1), verified);
    let taken = taken.expect("taken").committed().await.expect("committed");
    assert_eq!(taken.base_offset, Offset::new(1));
    assert_eq!(partition.offsets().last_stable.get(), 1);
    // The same again is known, and needs no question.
    assert_eq!(commit(&partition, transactional_batch(9, 1)).await, Ok(1));
    let replaced = partition.append_marker(end(1));
    assert!(matches!(replaced, Err(PartitionError::FencedCoordinator)));
    let marker = partition.append_marker(end(2)).expect("taken");
    marker.committed().await.expect("committed");
    assert_eq!(partition.offsets().last_stable.get(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_coordinator_is_asked_about_a_batch_before_it_is_refused_for_what_is_in_it() {
    let (_fixture, partition) = one_partition().await;
    let mut damaged = transactional_batch(9, 1).to_vec();
    *damaged.last_mut().expect("bytes") ^= 1;
    let damaged = Bytes::from(damaged);
    let Err(PartitionError::Unverified(asked)) = partition.append(damaged.clone(), CLIENT) else {
        panic!("refused without a question");
    };
    let verified = AppendOptions {
        verification: Verification::Done(asked.guard),
        ..CLIENT
    };
    let refused = partition.append(damaged.clone(), verified);
    assert_eq!(
        refused.err().map(|error| error.error_code()),
        Some(ErrorCode::CorruptMessage)
    );
    // What is no batch is nobody's.
    let torn = damaged.slice(..damaged.len() - 1);
    let refused = partition.append(torn, CLIENT);
    assert_eq!(
        refused.err().map(|error| error.error_code()),
        Some(ErrorCode::InvalidRecord)
    );
}

/// The coordinator's first word is held up on its way, and it has been told once more since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_comes_late_ends_no_later_transaction_of_the_same_epoch() {
    let (_fixture, partition) = one_partition().await;
    let append = |sequence: i32| {
        let mut builder = BatchBuilder::new().transactional().producer(
            ProducerId::new(9),
            ProducerEpoch::new(0),
            Sequence::new(sequence),
        );
        builder.push(NewRecord {
            timestamp: START,
            key: None,
            value: Some(b"value"),
            headers: &[],
        });
        let batch = builder.build();
        let Err(PartitionError::Unverified(asked)) = partition.append(batch.clone(), CLIENT) else {
            panic!("taken without a question");
        };
        let verified = AppendOptions {
            verification: Verification::Done(asked.guard),
            ..CLIENT
        };
        let appending = partition.append(batch, verified).expect("taken");
        async { appending.committed().await.expect("committed") }
    };
    let end = |started_at| TxnEnd {
        producer: ProducerIdentity {
            id: ProducerId::new(9),
            epoch: ProducerEpoch::new(0),
        },
        marker: EndTxnMarker {
            aborted: false,
            coordinator_epoch: 2,
        },
        bumps_epoch: false,
        started_at: TimestampMs::new(started_at),
    };
    let tell = |end| {
        let appending = partition.append_marker(end);
        async {
            appending
                .expect("taken")
                .committed()
                .await
                .expect("committed")
        }
    };
    append(0).await;
    let first = tell(end(5)).await;
    assert_eq!(partition.offsets().last_stable.get(), 2);
    assert_eq!(tell(end(5)).await, first, "it is written once");
    append(1).await;
    assert_eq!(partition.offsets().last_stable.get(), 2, "the next is open");
    assert_eq!(tell(end(5)).await, first, "late");
    assert_eq!(partition.offsets().last_stable.get(), 2, "and still is");
    assert!(matches!(
        partition.check_marker(first.leader_epoch, end(5)),
        Ok(false)
    ));
    tell(end(6)).await;
    assert_eq!(partition.offsets().last_stable.get(), 4);
    append(2).await;
    let later = partition.append_marker(end(5));
    assert!(later.is_err(), "two transactions late");
    assert_eq!(partition.offsets().last_stable.get(), 4);
    // Who does not say which one ends the open one.
    tell(end(TimestampMs::NONE.get())).await;
    assert_eq!(partition.offsets().last_stable.get(), 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_asked_about_while_the_one_before_is_being_ended_is_taken() {
    let (_fixture, partition) = one_partition().await;
    let next = transactional_batch(9, 1);
    let Err(PartitionError::Unverified(asked)) = partition.append(next.clone(), NEW_CLIENT) else {
        panic!("taken without a question");
    };
    // The end of the transaction before carries the epoch of the next one already.
    let end = |bumps_epoch| TxnEnd {
        producer: asked.producer,
        marker: EndTxnMarker {
            aborted: false,
            coordinator_epoch: 1,
        },
        bumps_epoch,
        started_at: TimestampMs::NONE,
    };
    let marker = partition.append_marker(end(true)).expect("taken");
    marker.committed().await.expect("committed");
    let with = |asked: Unverified| AppendOptions {
        verification: Verification::Done(asked.guard),
        ..NEW_CLIENT
    };
    let taken = partition.append(next, with(asked)).expect("taken");
    assert_eq!(
        taken.committed().await.expect("committed").base_offset,
        Offset::new(1)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_read_back_whole_from_any_offset_in_it() {
    let (_fixture, partition) = one_partition().await;
    for _ in 0..2 {
        commit(&partition, batch(2)).await.expect("committed");
    }
    let starts = |offset| -> Vec<i64> {
        fetched(&partition, offset)
            .iter()
            .map(|header| header.base_offset.get())
            .collect()
    };
    assert_eq!(starts(0), [0, 2]);
    assert_eq!(starts(1), [0, 2]);
    assert_eq!(starts(3), [2]);
    assert!(starts(4).is_empty());
    let beyond = partition.fetch(
        &target(5),
        IsolationLevel::ReadUncommitted,
        ALL,
        &Reader::default(),
    );
    assert_eq!(beyond.error_code, ErrorCode::OffsetOutOfRange);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_epochs_of_clients_are_checked_on_every_fetch() {
    let (_fixture, partition) = one_partition().await;
    commit(&partition, batch(1)).await.expect("committed");
    let current = partition.require_leader().expect("leads");
    let with_epoch = |epoch: i32| {
        let mut target = target(0);
        target.current_leader_epoch = LeaderEpoch::new(epoch);
        partition
            .fetch(
                &target,
                IsolationLevel::ReadUncommitted,
                ALL,
                &Reader::default(),
            )
            .error_code
    };
    assert_eq!(with_epoch(current.get()), ErrorCode::None);
    assert_eq!(with_epoch(current.get() - 1), ErrorCode::FencedLeaderEpoch);
    assert_eq!(with_epoch(current.get() + 1), ErrorCode::UnknownLeaderEpoch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_append_time_topic_carries_the_brokers_time() {
    let (mut fixture, partition) = one_partition().await;
    fixture
        .set_config("orders", "message.timestamp.type", "LogAppendTime")
        .await;
    let appending = partition.append(batch_at(3, TimestampMs::new(5)), CLIENT);
    let appending = appending.expect("accepted");
    assert_eq!(appending.log_append_time(), Some(START));
    appending.committed().await.expect("committed");
    let headers = fetched(&partition, 0);
    assert_eq!(headers[0].timestamp_type(), TimestampType::LogAppendTime);
    assert_eq!(headers[0].max_timestamp, START);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compression_type_of_the_topic_rewrites_batches_of_another_codec() {
    let (mut fixture, partition) = one_partition().await;
    fixture
        .set_config("orders", "compression.type", "zstd")
        .await;
    let sent = producer_batch(9, 0, 0, 50);
    let sent_len = sent.len();
    assert_eq!(commit(&partition, sent).await, Ok(0));
    let header = fetched(&partition, 0)[0];
    assert_eq!(header.compression(), Ok(Compression::Zstd));
    assert_eq!(header.record_count, 50);
    assert_eq!(header.base_sequence.get(), 0);
    assert!(header.size_in_bytes() < sent_len);
    assert_eq!(commit(&partition, producer_batch(9, 0, 0, 50)).await, Ok(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rewritten_batch_is_packed_as_tightly_as_the_level_of_the_topic_says() {
    let (mut fixture, partition) = one_partition().await;
    let records = producer_batch(9, 0, 0, 5_000);
    let mut sizes = Vec::new();
    fixture
        .set_config("orders", "compression.type", "gzip")
        .await;
    for (number, level) in (0..).zip(["1", "9"]) {
        fixture
            .set_config("orders", "compression.gzip.level", level)
            .await;
        let offset = commit(&partition, producer_batch(number, 0, 0, 5_000)).await;
        let header = fetched(&partition, offset.expect("committed"))[0];
        assert_eq!(header.compression(), Ok(Compression::Gzip));
        sizes.push(header.size_in_bytes());
    }
    assert!(sizes[0] > sizes[1] && sizes[0] < records.len(), "{sizes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_offsets_finds_records_by_time_and_respects_the_log_start() {
    let (_fixture, partition) = one_partition().await;
    let at = |ms: i64| TimestampMs::new(START.get() + ms);
    let mut builder = BatchBuilder::new();
    for ms in [10, 30, 20] {
        builder.push(NewRecord {
            timestamp: at(ms),
            value: Some(b"v"),
            ..NewRecord::default()
        });
    }
    let gzip = builder.build_compressed(Compression::Gzip).expect("packed");
    commit(&partition, gzip).await.expect("committed");
    commit(&partition, batch_at(1, at(25))).await.expect("ok");
    let find = |spec| {
        let found = partition.list_offset(spec, IsolationLevel::ReadUncommitted, LeaderEpoch::NONE);
        let found = found.expect("answered");
        (found.offset.get(), found.timestamp.get() - START.get())
    };
    assert_eq!(find(OffsetSpec::MaxTimestamp), (1, 30));
    assert_eq!(find(OffsetSpec::Timestamp(at(15))), (1, 30));
    assert_eq!(find(OffsetSpec::Timestamp(at(10))), (0, 10));
    let nothing = partition
        .list_offset(
            OffsetSpec::Timestamp(at(31)),
            IsolationLevel::ReadUncommitted,
            LeaderEpoch::NONE,
        )
        .expect("answered");
    assert_eq!(nothing, FoundOffset::NOTHING);
    let offset_of = |spec| find(spec).0;
    assert_eq!(offset_of(OffsetSpec::Latest), 4);
    assert_eq!(offset_of(OffsetSpec::Earliest), 0);
    assert_eq!(offset_of(OffsetSpec::EarliestLocal), 0);
    assert_eq!(offset_of(OffsetSpec::LatestTiered), -1);
    partition.delete_records(Offset::new(2)).await.expect("ok");
    assert_eq!(offset_of(OffsetSpec::Earliest), 2);
    assert_eq!(find(OffsetSpec::Timestamp(at(10))), (2, 20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_records_are_out_of_range_and_more_cannot_be_deleted_than_is_committed() {
    let (_fixture, partition) = one_partition().await;
    commit(&partition, batch(10)).await.expect("committed");
    assert_eq!(
        partition.delete_records(Offset::new(4)).await.expect("ok"),
        Offset::new(4)
    );
    let below = partition.fetch(
        &target(3),
        IsolationLevel::ReadUncommitted,
        ALL,
        &Reader::default(),
    );
    assert_eq!(below.error_code, ErrorCode::OffsetOutOfRange);
    assert_eq!(
        partition.delete_records(Offset::new(2)).await.expect("ok"),
        Offset::new(4),
        "the log start never goes back"
    );
    for too_far in [11, -2] {
        let refused = partition.delete_records(Offset::new(too_far)).await;
        assert!(matches!(refused, Err(PartitionError::OffsetOutOfRange(_))));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acks_of_one_are_told_of_the_append_and_coordinators_only_write_in_their_term() {
    let (_fixture, partition) = one_partition().await;
    let options = AppendOptions {
        wants_append: true,
        ..CLIENT
    };
    let appending = partition.append(batch(2), options).expect("accepted");
    let outcome = appending.appended().await.expect("appended");
    assert_eq!(outcome.base_offset, Offset::ZERO);
    let epoch = partition.require_leader().expect("leads");
    let earlier = AppendOptions::coordinator(LeaderEpoch::new(epoch.get() - 1));
    assert!(matches!(
        partition.append(batch(1), earlier).err(),
        Some(PartitionError::NotLeader { .. })
    ));
    let now = AppendOptions::coordinator(epoch);
    let appending = partition.append(batch(1), now).expect("accepted");
    let outcome = appending.committed().await.expect("committed");
    assert_eq!(outcome.base_offset, Offset::new(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_by_time_moves_the_log_start_and_frees_the_wholly_expired_active_segment() {
    let (mut fixture, partition) = one_partition().await;
    fixture.set_config("orders", "retention.ms", "1000").await;
    commit(&partition, batch(3)).await.expect("committed");
    fixture.clock.advance(Duration::from_millis(500));
    fixture.manager.run_retention().await;
    assert_eq!(partition.offsets().log_start.get(), 0);
    fixture.clock.advance(Duration::from_secs(10));
    fixture.manager.run_retention().await;
    assert_eq!(partition.offsets().log_start.get(), 3);
    assert_eq!(commit(&partition, batch(1)).await, Ok(3));
}

async fn coordinate(partition: &Partition, batch: Bytes) {
    let epoch = partition.require_leader().expect("leads");
    let appending = partition.append(batch, AppendOptions::coordinator(epoch));
    let outcome = appending.expect("accepted").committed().await;
    outcome.expect("committed");
}

fn committed_view(partition: &Partition, offset: i64) -> (usize, Vec<(i64, i64)>) {
    let answer = partition.fetch(
        &target(offset),
        IsolationLevel::ReadCommitted,
        ALL,
        &Reader::default(),
    );
    assert_eq!(answer.error_code, ErrorCode::None);
    let aborted = answer.aborted_transactions.expect("listed");
    let aborted = aborted
        .iter()
        .map(|txn| (txn.producer_id.get(), txn.first_offset.get()));
    (answer.records.len(), aborted.collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_committed_sees_nothing_of_an_open_transaction_nor_anything_behind_it() {
    let (_fixture, partition) = one_partition().await;
    commit(&partition, batch(2)).await.expect("committed");
    let before = committed_view(&partition, 0).0;
    coordinate(&partition, transactional_batch(7, 3)).await;
    commit(&partition, batch(2)).await.expect("committed");
    assert_eq!(partition.offsets().last_stable.get(), 2);
    assert_eq!(partition.offsets().high_watermark.get(), 7);
    assert_eq!(committed_view(&partition, 0), (before, vec![]));
    assert_eq!(committed_view(&partition, 3), (0, vec![]));
    let list = |spec, isolation| {
        let found = partition.list_offset(spec, isolation, LeaderEpoch::NONE);
        found.expect("answered").offset.get()
    };
    assert_eq!(list(OffsetSpec::Latest, IsolationLevel::ReadCommitted), 2);
    assert_eq!(list(OffsetSpec::Latest, IsolationLevel::ReadUncommitted), 7);
    let later = OffsetSpec::Timestamp(TimestampMs::new(START.get() + 1));
    assert_eq!(list(later, IsolationLevel::ReadCommitted), -1);
    assert_eq!(fetched(&partition, 2).len(), 2, "others see all of it");

    coordinate(&partition, commit_marker(7)).await;
    assert_eq!(partition.offsets().last_stable.get(), 8);
    let (bytes, aborted) = committed_view(&partition, 0);
    assert!(bytes > before);
    assert!(aborted.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_open_over_a_restart_stays_unseen_by_read_committed() {
    let (fixture, partition) = one_partition().await;
    commit(&partition, batch(2)).await.expect("committed");
    let before = committed_view(&partition, 0).0;
    coordinate(&partition, transactional_batch(7, 3)).await;
    commit(&partition, batch(2)).await.expect("committed");
    drop(partition);
    let fixture = fixture.restart().await;
    let partition = fixture.partition("orders", 0);
    assert_eq!(partition.offsets().high_watermark.get(), 7);
    assert_eq!(partition.offsets().last_stable.get(), 2);
    assert_eq!(committed_view(&partition, 0), (before, vec![]));
    assert_eq!(committed_view(&partition, 2), (0, vec![]));
    coordinate(&partition, abort_marker(7)).await;
    assert_eq!(partition.offsets().last_stable.get(), 8);
    assert_eq!(committed_view(&partition, 0).1, [(7, 2)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aborted_transactions_come_with_the_data_and_stay_visible_to_read_uncommitted() {
    let (_fixture, partition) = one_partition().await;
    coordinate(&partition, transactional_batch(7, 3)).await;
    coordinate(&partition, transactional_batch(8, 2)).await;
    coordinate(&partition, abort_marker(7)).await;
    assert_eq!(partition.offsets().last_stable.get(), 3);
    assert_eq!(committed_view(&partition, 0).1, [(7, 0)]);
    coordinate(&partition, commit_marker(8)).await;
    assert_eq!(partition.offsets().last_stable.get(), 7);
    assert_eq!(committed_view(&partition, 0).1, [(7, 0)]);
    let records: Vec<i64> = fetched(&partition, 0)
        .iter()
        .map(|header| header.base_offset.get())
        .collect();
    assert_eq!(records, [0, 3, 5, 6]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn epochs_of_every_start_have_their_end_and_later_ones_are_unknown() {
    let (fixture, partition) = one_partition().await;
    let first = partition.require_leader().expect("leads");
    commit(&partition, batch(3)).await.expect("committed");
    drop(partition);
    let fixture = fixture.restart().await;
    let partition = fixture.partition("orders", 0);
    let second = partition.require_leader().expect("leads");
    assert!(second > first);
    commit(&partition, batch(2)).await.expect("committed");
    let end = |epoch: LeaderEpoch| partition.epoch_end(epoch);
    assert_eq!(end(first), Some((first, Offset::new(3))));
    assert_eq!(end(second), Some((second, Offset::new(5))));
    assert_eq!(end(LeaderEpoch::new(second.get() + 1)), None);
    assert_eq!(end(LeaderEpoch::NONE), None);
    let of_record = |offset_spec| {
        let isolation = IsolationLevel::ReadUncommitted;
        let found = partition.list_offset(offset_spec, isolation, second);
        found.expect("answered").leader_epoch
    };
    assert_eq!(of_record(OffsetSpec::Earliest), first);
    assert_eq!(of_record(OffsetSpec::Timestamp(START)), first);
    assert_eq!(of_record(OffsetSpec::Latest), second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_partition_has_the_epoch_of_its_leader() {
    let (fixture, partition) = one_partition().await;
    let first = partition.require_leader().expect("leads");
    assert_eq!(partition.epoch_end(first), Some((first, Offset::ZERO)));
    let earliest = partition.list_offset(
        OffsetSpec::Earliest,
        IsolationLevel::ReadUncommitted,
        LeaderEpoch::NONE,
    );
    assert_eq!(earliest.expect("answered").leader_epoch, first);
    drop(partition);
    let fixture = fixture.restart().await;
    let partition = fixture.partition("orders", 0);
    let second = partition.require_leader().expect("leads");
    assert_eq!(partition.epoch_end(second), Some((second, Offset::ZERO)));
    assert_eq!(partition.epoch_end(first), Some((first, Offset::ZERO)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetcher_whose_log_diverged_is_told_where() {
    let (fixture, partition) = one_partition().await;
    let first = partition.require_leader().expect("leads");
    commit(&partition, batch(3)).await.expect("committed");
    drop(partition);
    let fixture = fixture.restart().await;
    let partition = fixture.partition("orders", 0);
    commit(&partition, batch(2)).await.expect("committed");
    let mut target = target(4);
    target.last_fetched_epoch = first;
    let answer = partition.fetch(
        &target,
        IsolationLevel::ReadCommitted,
        ALL,
        &Reader::default(),
    );
    let diverging = answer
        .diverging_epoch
        .expect("its records 3 and 4 are not ours");
    assert_eq!(
        (diverging.epoch, diverging.end_offset),
        (first, Offset::new(3))
    );
    assert!(answer.records.is_empty());
    assert!(answer.aborted_transactions.is_none(), "nothing was read");
    target.fetch_offset = Offset::new(3);
    let answer = partition.fetch(
        &target,
        IsolationLevel::ReadUncommitted,
        ALL,
        &Reader::default(),
    );
    assert_eq!(answer.diverging_epoch, None);
    assert!(!answer.records.is_empty());
}
