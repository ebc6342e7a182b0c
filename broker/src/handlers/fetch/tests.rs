use std::time::Duration;

use futures_util::FutureExt;
use odradek_protocol::batch::BatchOrigin;
use odradek_protocol::fetch_response::RecordsPayload;
use odradek_protocol::message;
use odradek_protocol::messages::fetch_request::FetchPartition;
use tokio::time::timeout;

use super::*;
use crate::fetch_service::FetchLimits;
use crate::partition::{AppendOptions, Verification};
use crate::partitions::fixture::{Fixture, abort_marker, batch, topic_id, transactional_batch};

const VERSION: i16 = 18;
const CLIENT: AppendOptions = AppendOptions {
    origin: BatchOrigin::Client,
    zstd_allowed: true,
    wants_append: false,
    wants_in_sync: true,
    epoch: None,
    verification: Verification::Off,
};

struct Bench {
    fixture: Fixture,
    service: FetchService,
}

impl Bench {
    async fn new(partitions: i32) -> Self {
        let mut fixture = Fixture::new();
        fixture.create_topic("orders", 1, partitions).await;
        Self {
            fixture,
            service: FetchService::new(FetchLimits {
                max_bytes: 1 << 20,
                session_slots: 10,
                parked_partitions: 1_000,
            }),
        }
    }

    async fn fetch(&self, request: FetchRequest) -> FetchReply {
        let partitions = &self.fixture.manager;
        let limit = Duration::from_secs(20);
        timeout(
            limit,
            fetch(
                partitions,
                &self.service,
                VERSION,
                request,
                Reader::default(),
            ),
        )
        .await
        .expect("answers in time")
        .0
    }

    async fn produce(&self, index: i32, count: i32) {
        let partition = self.fixture.partition("orders", index);
        let appending = partition.append(batch(count), CLIENT).expect("accepted");
        appending.committed().await.expect("committed");
    }
}

fn request(offsets: &[(i32, i64)], max_wait_ms: i32) -> FetchRequest {
    let partitions = offsets.iter().map(|(partition, fetch_offset)| {
        message!(FetchPartition {
            partition: *partition,
            fetch_offset: *fetch_offset,
            current_leader_epoch: -1,
            last_fetched_epoch: -1,
            partition_max_bytes: 1 << 20,
        })
    });
    message!(FetchRequest {
        replica_id: -1,
        max_wait_ms,
        min_bytes: 1,
        max_bytes: 50 << 20,
        session_epoch: -1,
        topics: vec![message!(FetchTopic {
            topic_id: topic_id(1).into(),
            partitions: partitions.collect(),
        })],
    })
}

fn rows(reply: &FetchReply) -> Vec<(i32, ErrorCode, usize)> {
    let partitions = reply.topics.iter().flat_map(|topic| &topic.partitions);
    partitions
        .map(|answer| {
            (
                answer.index.get(),
                answer.error_code,
                usize::from(!answer.records.is_empty()),
            )
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_fetch_is_woken_by_the_partition_that_gets_records() {
    let bench = Bench::new(3).await;
    let started = Instant::now();
    let parked = bench.fetch(request(&[(0, 0), (1, 0), (2, 0)], 15_000));
    let produced = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        bench.produce(1, 3).await;
    };
    let (reply, ()) = tokio::join!(parked, produced);
    assert!(started.elapsed() < Duration::from_secs(10));
    let none = ErrorCode::None;
    assert_eq!(rows(&reply), [(0, none, 0), (1, none, 1), (2, none, 0)]);
    assert_eq!(bench.service.parking().used(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_waits_for_its_minimum_and_takes_what_there_is_at_its_deadline() {
    let bench = Bench::new(2).await;
    bench.produce(0, 1).await;
    let mut wants_more = request(&[(0, 0), (1, 0)], 300);
    wants_more.min_bytes = 100_000;
    let started = Instant::now();
    let reply = bench.fetch(wants_more).await;
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert_eq!(rows(&reply)[0].2, 1, "what there is goes out in the end");

    let mut wants_both = request(&[(0, 0), (1, 0)], 15_000);
    wants_both.min_bytes = 150;
    let started = Instant::now();
    let parked = bench.fetch(wants_both);
    let (reply, ()) = tokio::join!(parked, bench.produce(1, 1));
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(rows(&reply).iter().map(|row| row.2).sum::<usize>(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_is_answered_at_once_and_names_its_partition_only() {
    let bench = Bench::new(1).await;
    bench.produce(0, 1).await;
    let mut request = request(&[(0, 0), (7, 0)], 15_000);
    request.topics.push(message!(FetchTopic {
        topic_id: topic_id(9).into(),
        partitions: vec![message!(FetchPartition { partition: 0 })],
    }));
    request.min_bytes = 100_000;
    let reply = bench.fetch(request).await;
    assert_eq!(
        rows(&reply),
        [
            (0, ErrorCode::None, 1),
            (7, ErrorCode::UnknownTopicOrPartition, 0),
            (0, ErrorCode::UnknownTopicId, 0),
        ]
    );
    assert_eq!(reply.topics.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_fetch_of_a_deleted_topic_ends_with_an_error() {
    let mut bench = Bench::new(1).await;
    let waiting = request(&[(0, 0)], 15_000);
    let (manager, service) = (bench.fixture.manager.clone(), bench.service);
    let parked = tokio::spawn(async move {
        fetch(&manager, &service, VERSION, waiting, Reader::default()).await
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let gone = crate::metadata::records::MetadataRecord::RemoveTopic(topic_id(1));
    bench.fixture.change(vec![gone]).await;
    let reply = timeout(Duration::from_secs(10), parked)
        .await
        .expect("woken")
        .expect("answered");
    let code = reply.0.topics[0].partitions[0].error_code;
    assert!(
        matches!(
            code,
            ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId
        ),
        "{code:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_budget_covers_all_partitions_and_the_session_takes_turns() {
    let bench = Bench::new(3).await;
    for index in 0..3 {
        bench.produce(index, 20).await;
    }
    let size = rows_size(&bench.fetch(request(&[(0, 0)], 0)).await);
    let mut opening = request(&[(0, 0), (1, 0), (2, 0)], 0);
    (opening.session_epoch, opening.max_bytes) = (0, 1);
    let reply = bench.fetch(opening).await;
    assert_ne!(reply.session_id, 0);
    assert_eq!(
        rows(&reply).iter().map(|row| row.2).collect::<Vec<_>>(),
        [1, 0, 0]
    );
    assert_eq!(rows_size(&reply), size, "the first batch goes out whole");
    let mut served = Vec::new();
    for epoch in 1..4 {
        let mut next = request(&[], 0);
        next.topics.clear();
        next.session_id = reply.session_id;
        (next.session_epoch, next.max_bytes) = (epoch, 1);
        let reply = bench.fetch(next).await;
        let with_records: Vec<i32> = rows(&reply)
            .iter()
            .filter(|row| row.2 == 1)
            .map(|row| row.0)
            .collect();
        served.extend(with_records);
    }
    served.sort_unstable();
    assert_eq!(served, [0, 1, 2], "each had its turn");
}

fn rows_size(reply: &FetchReply) -> usize {
    let partitions = reply.topics.iter().flat_map(|topic| &topic.partitions);
    partitions.map(|answer| answer.records.len()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_faults_are_errors_of_the_whole_answer() {
    let bench = Bench::new(1).await;
    let mut unknown = request(&[(0, 0)], 0);
    (unknown.session_id, unknown.session_epoch) = (77, 3);
    let reply = bench.fetch(unknown).await;
    assert_eq!(reply.error_code, ErrorCode::FetchSessionIdNotFound);
    assert!(reply.topics.is_empty());
    let mut opening = request(&[(0, 0)], 0);
    opening.session_epoch = 0;
    let opened = bench.fetch(opening).await;
    let mut wrong = request(&[], 0);
    (wrong.session_id, wrong.session_epoch) = (opened.session_id, 9);
    let reply = bench.fetch(wrong).await;
    assert_eq!(reply.error_code, ErrorCode::InvalidFetchSessionEpoch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_go_out_as_regions_of_the_log_without_a_copy() {
    let bench = Bench::new(1).await;
    bench.produce(0, 5).await;
    let reply = bench.fetch(request(&[(0, 0)], 0)).await;
    let records = &reply.topics[0].partitions[0].records;
    assert!(matches!(records, RecordsPayload::Regions(regions) if regions.len() == 1));
    let response = FetchAnswer(reply)
        .encode(VERSION, CorrelationId::new(1))
        .expect("encoded");
    assert!(response.bytes_in_memory() < 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_room_to_wait_a_fetch_is_answered_with_what_there_is() {
    let bench = Bench::new(1).await;
    let service = FetchService::new(FetchLimits {
        max_bytes: 1 << 20,
        session_slots: 10,
        parked_partitions: 1,
    });
    let _full = service.parking().enter(5).expect("alone");
    let waiting = request(&[(0, 0)], 15_000);
    let answer = fetch(
        &bench.fixture.manager,
        &service,
        VERSION,
        waiting,
        Reader::default(),
    );
    assert!(answer.now_or_never().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_walk_that_was_interrupted_goes_on_where_it_stopped() {
    let bench = Bench::new(3).await;
    for index in 0..3 {
        bench.produce(index, 2).await;
    }
    let session = session_request(request(&[(0, 0), (1, 0), (9, 0), (2, 0)], 0), VERSION);
    let targets: Arc<[FetchTarget]> = session.targets.into();
    let entries = Entries::resolve(&targets, &bench.fixture.manager, -1, Reader::default());
    let wanted = Wanted::new(&request(&[], 0), &bench.service);
    let mut reading = Reading::new(wanted, Arc::new(entries));
    let mut steps = 1;
    while !reading.go_on(Some(Duration::ZERO)) {
        steps += 1;
    }
    assert_eq!(steps, 4, "one partition a step");
    let with_records: Vec<bool> = reading
        .answers
        .iter()
        .map(|answer| !answer.records.is_empty())
        .collect();
    assert_eq!(with_records, [true, true, false, true]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_read_committed_fetch_gets_the_aborted_list_with_the_data() {
    let bench = Bench::new(1).await;
    let partition = bench.fixture.partition("orders", 0);
    let epoch = partition.require_leader().expect("leads");
    let coordinator = AppendOptions::coordinator(epoch);
    let open = partition.append(transactional_batch(7, 3), coordinator);
    open.expect("accepted")
        .committed()
        .await
        .expect("committed");
    let mut waiting = request(&[(0, 0)], 15_000);
    waiting.isolation_level = 1;
    let started = Instant::now();
    let ended = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let marker = partition.append(abort_marker(7), coordinator);
        marker.expect("accepted").committed().await.expect("ok");
    };
    let (reply, ()) = tokio::join!(bench.fetch(waiting), ended);
    assert!(started.elapsed() < Duration::from_secs(10));
    let answer = &reply.topics[0].partitions[0];
    assert!(!answer.records.is_empty());
    let aborted = answer.aborted_transactions.as_deref().expect("listed");
    assert_eq!(aborted.len(), 1);
    assert_eq!(aborted[0].first_offset, Offset::ZERO);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_named_twice_is_answered_once() {
    let bench = Bench::new(2).await;
    bench.produce(0, 4).await;
    let reply = bench.fetch(request(&[(0, 9), (1, 0), (0, 0)], 0)).await;
    let none = ErrorCode::None;
    assert_eq!(rows(&reply), [(0, none, 1), (1, none, 0)]);
}
