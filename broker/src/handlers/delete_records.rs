//! DeleteRecords (KIP-107): moves the first readable offset of partitions forward.
//!
//! Of a partition that is named twice the last row counts, and there is one answer, as in Kafka. What
//! names no partition of this node is answered on the spot; the others are moved so many at a time.
//!
//! The request's time is what other replicas may take: where there are none, a request without any is
//! carried out and answered all the same, as in Kafka.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{Offset, PartitionIndex};
use odradek_protocol::message;
use odradek_protocol::messages::delete_records_request::DeleteRecordsTopic;
use odradek_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use odradek_protocol::messages::{DeleteRecordsRequest, DeleteRecordsResponse, StrBytes};
use tokio::time::{Instant, timeout_at};

use super::ROWS_AT_ONCE;
use crate::context::RequestContext;
use crate::fetch_sessions::TopicRef;
use crate::handlers::Reply;
use crate::metadata::topic_name;
use crate::partition::Partition;
use crate::partitions::PartitionManager;

/// Answers once the move has been replicated, or the request's time is up. What is under way by then
/// happens none the less.
pub async fn handle(
    context: RequestContext,
    request: DeleteRecordsRequest,
) -> Reply<DeleteRecordsResponse> {
    Reply::Now(delete_records(&context.broker.partitions, request).await)
}

async fn delete_records(
    partitions: &PartitionManager,
    request: DeleteRecordsRequest,
) -> DeleteRecordsResponse {
    let timeout_ms = u64::try_from(request.timeout_ms).unwrap_or(0);
    let deadline = Instant::now() + Duration::from_millis(timeout_ms);
    let mut topics: Vec<DeleteRecordsTopicResult> = Vec::new();
    let mut moves = Vec::new();
    for wanted in last_of_each(request.topics) {
        let reference = TopicRef::Name(wanted.name.as_str().into());
        let is_internal = topic_name::is_internal(&wanted.name);
        let mut results = Vec::with_capacity(wanted.rows.len());
        for (index, offset) in wanted.rows {
            let outcome = match find(partitions, &reference, is_internal, index) {
                Ok(partition) => {
                    moves.push(Move {
                        place: (topics.len(), results.len()),
                        partition,
                        to: offset,
                    });
                    // Until it is known.
                    (Offset::NONE, ErrorCode::RequestTimedOut)
                }
                Err(code) => (Offset::NONE, code),
            };
            results.push(result(index, outcome));
        }
        topics.push(message!(DeleteRecordsTopicResult {
            name: wanted.name,
            partitions: results,
        }));
    }
    let mut moving = futures_util::stream::iter(moves)
        .map(|wanted| wanted.carry_out(deadline))
        .buffer_unordered(ROWS_AT_ONCE);
    while let Some(((topic, row), outcome)) = moving.next().await {
        let row = topics
            .get_mut(topic)
            .and_then(|topic| topic.partitions.get_mut(row));
        if let Some(row) = row {
            *row = result(PartitionIndex::new(row.partition_index), outcome);
        }
    }
    message!(DeleteRecordsResponse { topics })
}

/// The rows of one topic.
struct Wanted {
    name: StrBytes,
    rows: Vec<(PartitionIndex, Offset)>,
}

/// Each partition once, in the place of the first row that names it, with the offset of the last.
/// Topics without a partition are not answered.
fn last_of_each(topics: Vec<DeleteRecordsTopic>) -> Vec<Wanted> {
    let mut wanted: Vec<Wanted> = Vec::new();
    let mut topic_places: HashMap<StrBytes, usize> = HashMap::new();
    let mut places: HashMap<(usize, i32), usize> = HashMap::new();
    for topic in topics {
        if topic.partitions.is_empty() {
            continue;
        }
        let at = *topic_places.entry(topic.name.clone()).or_insert_with(|| {
            wanted.push(Wanted {
                name: topic.name,
                rows: Vec::new(),
            });
            wanted.len() - 1
        });
        let Some(kept) = wanted.get_mut(at) else {
            continue;
        };
        for row in topic.partitions {
            let last = (
                PartitionIndex::new(row.partition_index),
                Offset::new(row.offset),
            );
            let place = *places
                .entry((at, row.partition_index))
                .or_insert(kept.rows.len());
            match kept.rows.get_mut(place) {
                Some(earlier) => *earlier = last,
                None => kept.rows.push(last),
            }
        }
    }
    wanted
}

/// The partition, if records of it may be deleted here.
fn find(
    partitions: &PartitionManager,
    topic: &TopicRef,
    is_internal: bool,
    index: PartitionIndex,
) -> Result<Arc<Partition>, ErrorCode> {
    if is_internal {
        return Err(ErrorCode::InvalidTopicException);
    }
    let partition = partitions
        .lookup(topic, index)
        .map_err(|error| error.error_code())?;
    if !partition.settings().log.delete_old_segments {
        // A topic that is only compacted keeps the last record of every key for ever.
        return Err(ErrorCode::PolicyViolation);
    }
    Ok(partition)
}

/// Topic and partition of a row, by their places in the answer.
type Place = (usize, usize);

/// A log start that is to move.
struct Move {
    place: Place,
    partition: Arc<Partition>,
    to: Offset,
}

impl Move {
    /// Waits for it until `deadline`. Returns the low watermark with a code.
    async fn carry_out(self, deadline: Instant) -> (Place, (Offset, ErrorCode)) {
        let partition = &self.partition;
        let moving = partition.delete_records(self.to);
        let moved = match partition.group().membership().voters.len() {
            0 | 1 => Ok(moving.await),
            _ => timeout_at(deadline, moving).await,
        };
        let outcome = match moved {
            Ok(Ok(low_watermark)) => (low_watermark, ErrorCode::None),
            Ok(Err(error)) => (Offset::NONE, error.error_code()),
            // Kafka says with it how far it is.
            Err(_) => {
                let low_watermark = partition.offsets().log_start.offset();
                (low_watermark, ErrorCode::RequestTimedOut)
            }
        };
        (self.place, outcome)
    }
}

fn result(
    index: PartitionIndex,
    (low_watermark, code): (Offset, ErrorCode),
) -> DeleteRecordsPartitionResult {
    message!(DeleteRecordsPartitionResult {
        partition_index: index.get(),
        low_watermark: low_watermark.get(),
        error_code: code.code(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::AppendOptions;
    use crate::partitions::fixture::{Fixture, batch};
    use odradek_protocol::messages::delete_records_request::DeleteRecordsPartition;

    fn topic(name: &str, rows: &[(i32, i64)]) -> DeleteRecordsTopic {
        let rows = rows.iter().map(|(partition_index, offset)| {
            message!(DeleteRecordsPartition {
                partition_index: *partition_index,
                offset: *offset,
            })
        });
        message!(DeleteRecordsTopic {
            name: StrBytes::from(name),
            partitions: rows.collect(),
        })
    }

    async fn answer(
        fixture: &Fixture,
        topics: Vec<DeleteRecordsTopic>,
    ) -> Vec<(String, Vec<(i32, i16, i64)>)> {
        answer_within(fixture, topics, 20_000).await
    }

    async fn answer_within(
        fixture: &Fixture,
        topics: Vec<DeleteRecordsTopic>,
        timeout_ms: i32,
    ) -> Vec<(String, Vec<(i32, i16, i64)>)> {
        let request = message!(DeleteRecordsRequest { topics, timeout_ms });
        let response = delete_records(&fixture.manager, request).await;
        let topics = response.topics.into_iter().map(|topic| {
            let rows = topic
                .partitions
                .iter()
                .map(|row| (row.partition_index, row.error_code, row.low_watermark));
            (topic.name.as_str().to_owned(), rows.collect())
        });
        topics.collect()
    }

    /// Partitions 0 and 1 of "orders", ten records each.
    async fn ten_records_each() -> Fixture {
        let mut fixture = Fixture::new();
        fixture.create_topic("orders", 1, 2).await;
        for index in 0..2 {
            let partition = fixture.partition("orders", index);
            let epoch = partition.require_leader().expect("leads");
            let appending = partition.append(batch(10), AppendOptions::coordinator(epoch));
            let committed = appending.expect("accepted").committed().await;
            committed.expect("committed");
        }
        fixture
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn of_a_partition_named_again_the_last_row_counts_and_there_is_one_answer() {
        let fixture = ten_records_each().await;
        let unknown = ErrorCode::UnknownTopicOrPartition.code();
        let answered = answer(
            &fixture,
            vec![
                topic("orders", &[(0, 9), (7, 1), (1, 2), (0, 4), (7, 2)]),
                topic("nothing", &[]),
                topic("missing", &[(0, 1), (0, 1)]),
                topic("orders", &[(1, 3)]),
            ],
        )
        .await;
        let expected = [
            ("orders", vec![(0, 0, 4), (7, unknown, -1), (1, 0, 3)]),
            ("missing", vec![(0, unknown, -1)]),
        ];
        let expected = expected.map(|(name, rows)| (name.to_owned(), rows));
        assert_eq!(answered, expected);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn without_other_replicas_no_time_is_enough_time() {
        let fixture = ten_records_each().await;
        for (timeout_ms, offset) in [(0, 3), (-1, 5), (0, 5)] {
            let wanted = vec![topic("orders", &[(0, offset)])];
            let answered = answer_within(&fixture, wanted, timeout_ms).await;
            let expected = [("orders".to_owned(), vec![(0, 0, offset)])];
            assert_eq!(answered, expected, "within {timeout_ms} ms");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_hundred_thousand_rows_move_each_log_start_once() {
        let fixture = ten_records_each().await;
        let rows: Vec<(i32, i64)> = (0..100_000).map(|row| (row % 2, 1)).collect();
        let expected = [("orders".to_owned(), vec![(0, 0, 1), (1, 0, 1)])];
        let journal = fixture.dir.path().join("orders-0").join("raft.journal");
        let journal_bytes = || std::fs::metadata(&journal).map_or(0, |file| file.len());
        let before = journal_bytes();
        let begun = Instant::now();
        for _ in 0..2 {
            let answered = answer(&fixture, vec![topic("orders", &rows)]).await;
            assert_eq!(answered, expected);
        }
        assert!(begun.elapsed() < Duration::from_secs(10));
        // One move, and nothing for the second time.
        let grown = journal_bytes() - before;
        assert!((1..4_096).contains(&grown), "{grown} bytes");
    }
}
