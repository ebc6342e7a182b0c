use odradek_protocol::ids::CorrelationId;
use odradek_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use odradek_protocol::response::encode_message;

use super::*;
use crate::handlers::topic_view::BrokerView;
use crate::partitions::fixture::{Fixture, batch, producer_batch, topic_id, transactional_batch};

async fn bench() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.create_topic("orders", 1, 2).await;
    fixture
}

fn brokers() -> BrokerLookup {
    Box::new(|node| {
        Some(BrokerView {
            id: node.get(),
            host: "localhost".into(),
            port: 9092,
            rack: None,
            is_fenced: false,
        })
    })
}

fn request(acks: i16, batches: Vec<(i32, Option<Bytes>)>) -> ProduceRequest {
    let partitions = batches
        .into_iter()
        .map(|(index, records)| message!(PartitionProduceData { index, records }));
    message!(ProduceRequest {
        acks,
        timeout_ms: 10_000,
        topic_data: vec![message!(TopicProduceData {
            name: StrBytes::from("orders"),
            topic_id: topic_id(1).into(),
            partition_data: partitions.collect(),
        })],
    })
}

async fn answer(fixture: &Fixture, version: i16, request: ProduceRequest) -> ProduceResponse {
    match produce(
        &fixture.manager,
        None,
        brokers(),
        (version, Writer::Client),
        request,
    )
    .await
    {
        Reply::Now(response) => response,
        Reply::Later(response) => response.await,
        Reply::Silent | Reply::Close => panic!("an answer is owed"),
    }
}

fn rows(response: &ProduceResponse) -> Vec<(i32, ErrorCode, i64)> {
    let topics = response.responses.iter();
    topics
        .flat_map(|topic| &topic.partition_responses)
        .map(|row| {
            let code = ErrorCode::from_code(row.error_code).expect("known");
            (row.index, code, row.base_offset)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_partition_of_a_request_is_answered_for_itself() {
    let mut fixture = Fixture::new();
    fixture.create_topic("orders", 1, 8).await;
    let batches = vec![
        (0, Some(batch(3))),
        (1, None),
        (9, Some(batch(1))),
        (7, Some(Bytes::from_static(b"garbage"))),
        (6, Some(batch(2))),
    ];
    let response = answer(&fixture, 12, request(-1, batches)).await;
    assert_eq!(
        rows(&response),
        [
            (0, ErrorCode::None, 0),
            (1, ErrorCode::InvalidRecord, -1),
            (9, ErrorCode::UnknownTopicOrPartition, -1),
            (7, ErrorCode::InvalidRecord, -1),
            (6, ErrorCode::None, 0),
        ]
    );
    let row = &response.responses[0].partition_responses[0];
    assert_eq!((row.log_append_time_ms, row.log_start_offset), (-1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_partition_named_twice_the_last_batch_counts() {
    let fixture = bench().await;
    let batches = vec![
        (0, Some(batch(3))),
        (1, Some(batch(1))),
        (0, Some(batch(2))),
    ];
    let response = answer(&fixture, 12, request(-1, batches)).await;
    assert_eq!(
        rows(&response),
        [(1, ErrorCode::None, 0), (0, ErrorCode::None, 0)]
    );
    assert_eq!(fixture.partition("orders", 0).offsets().log_end.get(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_are_not_taken_are_answered_in_their_places_among_those_that_are() {
    let fixture = bench().await;
    let unknown = |from: i32| (from..from + 50_000).map(|index| (index, None));
    let mut batches: Vec<_> = unknown(2).collect();
    batches.push((1, Some(batch(3))));
    batches.extend(unknown(60_000));
    batches.push((0, Some(batch(2))));
    let asked: Vec<i32> = batches.iter().map(|(index, _)| *index).collect();
    let response = answer(&fixture, 12, request(-1, batches)).await;
    let rows = rows(&response);
    let answered: Vec<i32> = rows.iter().map(|(index, ..)| *index).collect();
    assert!(answered == asked, "a row has lost its place");
    for (index, code, offset) in rows {
        let expected = match index {
            0 | 1 => (ErrorCode::None, 0),
            _ => (ErrorCode::UnknownTopicOrPartition, -1),
        };
        assert_eq!((code, offset), expected, "partition {index}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_are_named_by_id_from_version_13_on() {
    let fixture = bench().await;
    let response = answer(&fixture, 13, request(-1, vec![(0, Some(batch(1)))])).await;
    assert_eq!(rows(&response), [(0, ErrorCode::None, 0)]);
    let mut unknown = request(-1, vec![(0, Some(batch(1)))]);
    unknown.topic_data[0].topic_id = topic_id(9).into();
    let response = answer(&fixture, 13, unknown).await;
    assert_eq!(rows(&response), [(0, ErrorCode::UnknownTopicId, -1)]);
    assert_eq!(TopicId::from(response.responses[0].topic_id), topic_id(9));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_three_kinds_of_acks_are_taken() {
    let fixture = bench().await;
    for acks in [-2, 2, i16::MAX] {
        let response = answer(&fixture, 9, request(acks, vec![(0, Some(batch(1)))])).await;
        assert_eq!(rows(&response), [(0, ErrorCode::InvalidRequiredAcks, -1)]);
    }
    assert_eq!(fixture.partition("orders", 0).offsets().log_end.get(), 0);
    let response = answer(&fixture, 9, request(1, vec![(0, Some(batch(4)))])).await;
    assert_eq!(rows(&response), [(0, ErrorCode::None, 0)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_acks_nothing_is_answered_and_a_refusal_closes_the_connection() {
    let fixture = bench().await;
    let taken = produce(
        &fixture.manager,
        None,
        brokers(),
        (9, Writer::Client),
        request(0, vec![(0, Some(batch(1)))]),
    )
    .await;
    assert!(matches!(taken, Reply::Silent));
    let refused = produce(
        &fixture.manager,
        None,
        brokers(),
        (9, Writer::Client),
        request(0, vec![(9, Some(batch(1)))]),
    )
    .await;
    assert!(matches!(refused, Reply::Close));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_one_connection_overlap_and_a_duplicate_gets_the_first_offset() {
    let fixture = bench().await;
    let send = |first| {
        let batch = producer_batch(5, 0, first, 1);
        produce(
            &fixture.manager,
            None,
            brokers(),
            (9, Writer::Client),
            request(-1, vec![(0, Some(batch))]),
        )
    };
    let mut replies = Vec::new();
    for first in [0, 1, 2, 1] {
        match send(first).await {
            Reply::Later(reply) => replies.push(reply),
            _ => panic!("answered later"),
        }
    }
    let offsets: Vec<i64> = join_all(replies)
        .await
        .iter()
        .map(|response| rows(response)[0].2)
        .collect();
    assert_eq!(offsets, [0, 1, 2, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_of_several_producers_in_one_request_are_refused_as_a_whole() {
    let fixture = bench().await;
    let mut several = request(
        -1,
        vec![
            (0, Some(transactional_batch(5, 1))),
            (1, Some(transactional_batch(6, 1))),
            (9, Some(batch(1))),
        ],
    );
    several.transactional_id = Some(StrBytes::from("orders-1"));
    let response = answer(&fixture, 12, several.clone()).await;
    let refused = |index| (index, ErrorCode::InvalidProducerIdMapping, -1);
    assert_eq!(rows(&response), [refused(0), refused(1), refused(9)]);
    let row = &response.responses[0].partition_responses[0];
    assert!(row.error_message.is_some());
    // One of them is for a partition that there is not.
    several.topic_data[0].partition_data[1].index = 8;
    several.topic_data[0].partition_data.truncate(2);
    let response = answer(&fixture, 12, several).await;
    let unknown = (8, ErrorCode::UnknownTopicOrPartition, -1);
    assert_eq!(rows(&response), [(0, ErrorCode::None, 0), unknown]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_at_fault_are_named_one_by_one() {
    let mut fixture = bench().await;
    fixture
        .set_config("orders", "message.timestamp.before.max.ms", "1000")
        .await;
    let old = crate::partitions::fixture::batch_at(2, TimestampMs::new(5));
    let response = answer(&fixture, 9, request(-1, vec![(0, Some(old))])).await;
    assert_eq!(rows(&response), [(0, ErrorCode::InvalidTimestamp, -1)]);
    let row = &response.responses[0].partition_responses[0];
    let at_fault: Vec<i32> = row.record_errors.iter().map(|e| e.batch_index).collect();
    assert_eq!(at_fault, [0, 1]);
    assert!(row.error_message.is_some());
    assert_eq!(row.log_start_offset, 0, "the log itself refused it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_larger_than_a_segment_is_refused_however_large_messages_may_be() {
    let mut fixture = bench().await;
    fixture
        .set_config("orders", "segment.bytes", "1048576")
        .await;
    fixture
        .set_config("orders", "max.message.bytes", "10000000")
        .await;
    let large = batch(70_000);
    assert!(large.len() > 1_048_576);
    let response = answer(&fixture, 9, request(-1, vec![(0, Some(large))])).await;
    assert_eq!(rows(&response), [(0, ErrorCode::RecordListTooLarge, -1)]);
}

#[test]
fn a_refusal_that_names_the_leader_can_be_encoded_at_every_version() {
    for version in 3..=13 {
        let mut row = refused(0, &Refusal::code(ErrorCode::NotLeaderOrFollower));
        row.current_leader = message!(LeaderIdAndEpoch {
            leader_id: 1,
            leader_epoch: 7,
        });
        let mut topic = message!(TopicProduceResponse {
            partition_responses: vec![row],
        });
        if version < FIRST_TOPIC_ID_VERSION {
            topic.name = StrBytes::from("orders");
        } else {
            topic.topic_id = topic_id(1).into();
        }
        let answer = with_endpoints(vec![topic], version, &brokers());
        let named = answer.node_endpoints.len();
        assert_eq!(named, usize::from(version >= FIRST_LEADER_VERSION));
        let encoded = encode_message(version, CorrelationId::new(1), &answer);
        assert!(encoded.is_ok(), "v{version}: {encoded:?}");
    }
}
