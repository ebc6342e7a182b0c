//! ListOffsets (KIP-79, KIP-734, KIP-405, KIP-1005, KIP-1023): offsets by time and by sentinel.
//!
//! A lookup by timestamp reads batches, perhaps from a cold disk, and decompresses them: those run
//! on the blocking pool, one request on one thread. The latest offset of a partition whose only
//! replica is here waits for what this node has yet to sync.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{LeaderEpoch, PartitionIndex};
use odradek_protocol::message;
use odradek_protocol::messages::list_offsets_request::ListOffsetsPartition;
use odradek_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use odradek_protocol::messages::{ListOffsetsRequest, ListOffsetsResponse};

use crate::context::RequestContext;
use crate::fetch_plan::IsolationLevel;
use crate::fetch_sessions::TopicRef;
use crate::handlers::Reply;
use crate::partition::{FoundOffset, OffsetSpec, PartitionError};
use crate::partitions::PartitionManager;

/// First version whose answer has room for the leader epoch of the record (KIP-320).
const FIRST_LEADER_EPOCH_VERSION: i16 = 4;

/// First version that has OFFSET_NOT_AVAILABLE (KIP-207).
const FIRST_OFFSET_NOT_AVAILABLE_VERSION: i16 = 5;

/// How long the latest offset waits for a sync of this node. A disk that takes longer is behind, and
/// what is committed is a true answer too.
const OWN_COMMIT_PATIENCE: Duration = Duration::from_secs(1);

/// Looks every partition up.
pub async fn handle(
    context: RequestContext,
    request: ListOffsetsRequest,
) -> Reply<ListOffsetsResponse> {
    let version = context.api_version;
    let reads_records = request.topics.iter().any(|topic| {
        topic.partitions.iter().any(|partition| {
            OffsetSpec::from_wire(partition.timestamp, version)
                .is_some_and(OffsetSpec::reads_records)
        })
    });
    let partitions = Arc::clone(&context.broker.partitions);
    wait_for_own_commits(&partitions, &request, version).await;
    if !reads_records {
        return Reply::Now(answer(&partitions, &request, version));
    }
    let looked_up =
        tokio::task::spawn_blocking(move || answer(&partitions, &request, version)).await;
    match looked_up {
        Ok(response) => Reply::Now(response),
        Err(error) => {
            tracing::error!(%error, "a lookup by timestamp was cut short");
            Reply::Close
        }
    }
}

/// Waits where the latest offset is asked for, for all partitions together not longer than for one.
async fn wait_for_own_commits(
    partitions: &PartitionManager,
    request: &ListOffsetsRequest,
    version: i16,
) {
    let deadline = Instant::now() + OWN_COMMIT_PATIENCE;
    for topic in &request.topics {
        let reference = TopicRef::Name(topic.name.as_str().into());
        for row in &topic.partitions {
            if OffsetSpec::from_wire(row.timestamp, version) != Some(OffsetSpec::Latest) {
                continue;
            }
            let index = PartitionIndex::new(row.partition_index);
            // What is not here is refused when it is looked up.
            if let Ok(partition) = partitions.lookup(&reference, index) {
                let patience = deadline.saturating_duration_since(Instant::now());
                partition.wait_for_own_commit(patience).await;
            }
        }
    }
}

fn answer(
    partitions: &PartitionManager,
    request: &ListOffsetsRequest,
    version: i16,
) -> ListOffsetsResponse {
    let isolation = IsolationLevel::from_wire(request.isolation_level);
    let duplicates = duplicates(request);
    let mut refused: HashSet<(&str, i32)> = HashSet::new();
    let topics = request.topics.iter().map(|topic| {
        let reference = TopicRef::Name(topic.name.as_str().into());
        let rows = topic.partitions.iter().filter_map(|row| {
            let named = (topic.name.as_str(), row.partition_index);
            if !duplicates.contains(&named) {
                return Some(look_up(partitions, &reference, row, isolation, version));
            }
            let is_first = refused.insert(named);
            is_first.then(|| failed(row, ErrorCode::InvalidRequest))
        });
        let rows: Vec<_> = rows.collect();
        message!(ListOffsetsTopicResponse {
            name: topic.name.clone(),
            partitions: rows,
        })
    });
    message!(ListOffsetsResponse {
        topics: topics.collect(),
    })
}

fn look_up(
    partitions: &PartitionManager,
    topic: &TopicRef,
    row: &ListOffsetsPartition,
    isolation: IsolationLevel,
    version: i16,
) -> ListOffsetsPartitionResponse {
    let Some(spec) = OffsetSpec::from_wire(row.timestamp, version) else {
        return failed(row, ErrorCode::UnsupportedVersion);
    };
    let partition = match partitions.lookup(topic, PartitionIndex::new(row.partition_index)) {
        Ok(partition) => partition,
        Err(error) => return failed(row, error.error_code()),
    };
    let known_epoch = LeaderEpoch::new(row.current_leader_epoch);
    match partition.list_offset(spec, isolation, known_epoch) {
        Ok(found) => found_at(row, found, version),
        Err(error) => failed(row, error_code(&error, version)),
    }
}

/// Partitions that the request names more than once: which of the two is meant is not ours to say.
fn duplicates(request: &ListOffsetsRequest) -> HashSet<(&str, i32)> {
    let mut seen = HashSet::new();
    request
        .topics
        .iter()
        .flat_map(|topic| {
            let name = topic.name.as_str();
            topic
                .partitions
                .iter()
                .map(move |row| (name, row.partition_index))
        })
        .filter(|named| !seen.insert(*named))
        .collect()
}

fn error_code(error: &PartitionError, version: i16) -> ErrorCode {
    match error {
        PartitionError::NotReady if version >= FIRST_OFFSET_NOT_AVAILABLE_VERSION => {
            ErrorCode::OffsetNotAvailable
        }
        PartitionError::NotReady => ErrorCode::LeaderNotAvailable,
        error => error.error_code(),
    }
}

fn found_at(
    row: &ListOffsetsPartition,
    found: FoundOffset,
    version: i16,
) -> ListOffsetsPartitionResponse {
    let mut response = message!(ListOffsetsPartitionResponse {
        partition_index: row.partition_index,
        timestamp: found.timestamp.get(),
        offset: found.offset.get(),
    });
    if version >= FIRST_LEADER_EPOCH_VERSION {
        response.leader_epoch = found.leader_epoch.get();
    }
    response
}

fn failed(row: &ListOffsetsPartition, code: ErrorCode) -> ListOffsetsPartitionResponse {
    message!(ListOffsetsPartitionResponse {
        partition_index: row.partition_index,
        error_code: code.code(),
        timestamp: FoundOffset::NOTHING.timestamp.get(),
        offset: FoundOffset::NOTHING.offset.get(),
    })
}
