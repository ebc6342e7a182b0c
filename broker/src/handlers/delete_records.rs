//! DeleteRecords (KIP-107): moves the first readable offset of partitions forward.

use std::time::Duration;

use futures_util::future::join_all;
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{Offset, PartitionIndex};
use odradek_protocol::message;
use odradek_protocol::messages::delete_records_request::DeleteRecordsPartition;
use odradek_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use odradek_protocol::messages::{DeleteRecordsRequest, DeleteRecordsResponse};
use tokio::time::{Instant, timeout_at};

use crate::context::RequestContext;
use crate::fetch_sessions::TopicRef;
use crate::handlers::Reply;
use crate::metadata::topic_name;
use crate::partition::PartitionError;
use crate::partitions::PartitionManager;

/// Answers once the move has been replicated, or the request's time is up.
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
    let topics = request.topics.into_iter().map(|topic| async move {
        let reference = TopicRef::Name(topic.name.as_str().into());
        let is_internal = topic_name::is_internal(&topic.name);
        let results = join_all(topic.partitions.iter().map(|row| {
            let deleting = delete(partitions, &reference, is_internal, row);
            async move {
                let outcome = timeout_at(deadline, deleting).await;
                result(row, outcome.unwrap_or(Err(ErrorCode::RequestTimedOut)))
            }
        }));
        message!(DeleteRecordsTopicResult {
            partitions: results.await,
            name: topic.name,
        })
    });
    message!(DeleteRecordsResponse {
        topics: join_all(topics).await,
    })
}

async fn delete(
    partitions: &PartitionManager,
    topic: &TopicRef,
    is_internal: bool,
    row: &DeleteRecordsPartition,
) -> Result<Offset, ErrorCode> {
    if is_internal {
        return Err(ErrorCode::InvalidTopicException);
    }
    let partition = partitions
        .lookup(topic, PartitionIndex::new(row.partition_index))
        .map_err(|error| error.error_code())?;
    if !partition.settings().log.delete_old_segments {
        // A topic that is only compacted keeps the last record of every key for ever.
        return Err(ErrorCode::PolicyViolation);
    }
    partition
        .delete_records(Offset::new(row.offset))
        .await
        .map_err(|error: PartitionError| error.error_code())
}

fn result(
    row: &DeleteRecordsPartition,
    outcome: Result<Offset, ErrorCode>,
) -> DeleteRecordsPartitionResult {
    let (low_watermark, code) = match outcome {
        Ok(low_watermark) => (low_watermark, ErrorCode::None),
        Err(code) => (Offset::NONE, code),
    };
    message!(DeleteRecordsPartitionResult {
        partition_index: row.partition_index,
        low_watermark: low_watermark.get(),
        error_code: code.code(),
    })
}
