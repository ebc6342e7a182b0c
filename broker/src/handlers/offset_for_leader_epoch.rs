//! OffsetForLeaderEpoch (KIP-101, KIP-320): where an epoch ends, so that a consumer notices when
//! what it has read was truncated.

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{LeaderEpoch, Offset, PartitionIndex};
use odradek_protocol::message;
use odradek_protocol::messages::offset_for_leader_epoch_request::OffsetForLeaderPartition;
use odradek_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use odradek_protocol::messages::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};

use crate::context::RequestContext;
use crate::fetch_sessions::TopicRef;
use crate::handlers::Reply;
use crate::partitions::PartitionManager;

/// Answers each partition from its epoch cache.
pub async fn handle(
    context: RequestContext,
    request: OffsetForLeaderEpochRequest,
) -> Reply<OffsetForLeaderEpochResponse> {
    Reply::Now(epoch_ends(&context.broker.partitions, request))
}

fn epoch_ends(
    partitions: &PartitionManager,
    request: OffsetForLeaderEpochRequest,
) -> OffsetForLeaderEpochResponse {
    let topics = request.topics.into_iter().map(|topic| {
        let reference = TopicRef::Name(topic.topic.as_str().into());
        let ends = topic
            .partitions
            .iter()
            .map(|row| epoch_end(partitions, &reference, row))
            .collect();
        message!(OffsetForLeaderTopicResult {
            topic: topic.topic,
            partitions: ends,
        })
    });
    message!(OffsetForLeaderEpochResponse {
        topics: topics.collect(),
    })
}

fn epoch_end(
    partitions: &PartitionManager,
    topic: &TopicRef,
    row: &OffsetForLeaderPartition,
) -> EpochEndOffset {
    let answer = |code: ErrorCode, (epoch, end): (LeaderEpoch, Offset)| {
        message!(EpochEndOffset {
            partition: row.partition,
            error_code: code.code(),
            leader_epoch: epoch.get(),
            end_offset: end.get(),
        })
    };
    let nothing = (LeaderEpoch::NONE, Offset::NONE);
    let partition = match partitions.lookup(topic, PartitionIndex::new(row.partition)) {
        Ok(partition) => partition,
        Err(error) => return answer(error.error_code(), nothing),
    };
    let known = LeaderEpoch::new(row.current_leader_epoch);
    // Where this leader's own epoch ends is its to say only as long as it leads.
    let found = partition.read_as_leader(known, |_| {
        Ok(partition.epoch_end(LeaderEpoch::new(row.leader_epoch)))
    });
    match found {
        Ok(end) => answer(ErrorCode::None, end.unwrap_or(nothing)),
        Err(error) => answer(error.error_code(), nothing),
    }
}
