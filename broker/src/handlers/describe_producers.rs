//! DescribeProducers (KIP-664): which idempotent and transactional producers a partition remembers.

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{Offset, PartitionIndex};
use odradek_protocol::message;
use odradek_protocol::messages::describe_producers_response::{
    PartitionResponse, ProducerState, TopicResponse,
};
use odradek_protocol::messages::{DescribeProducersRequest, DescribeProducersResponse, StrBytes};

use crate::context::RequestContext;
use crate::fetch_sessions::TopicRef;
use crate::handlers::Reply;
use crate::partition::Partition;
use crate::partitions::PartitionManager;

/// Answers from the state of each partition's leader.
pub async fn handle(
    context: RequestContext,
    request: DescribeProducersRequest,
) -> Reply<DescribeProducersResponse> {
    Reply::Now(describe_producers(&context.broker.partitions, request))
}

fn describe_producers(
    partitions: &PartitionManager,
    request: DescribeProducersRequest,
) -> DescribeProducersResponse {
    let topics = request.topics.into_iter().map(|topic| {
        let reference = TopicRef::Name(topic.name.as_str().into());
        let described = topic
            .partition_indexes
            .iter()
            .map(|index| describe(partitions, &reference, *index))
            .collect();
        message!(TopicResponse {
            name: topic.name,
            partitions: described,
        })
    });
    message!(DescribeProducersResponse {
        topics: topics.collect(),
    })
}

fn describe(partitions: &PartitionManager, topic: &TopicRef, index: i32) -> PartitionResponse {
    let failed = |code: ErrorCode, reason: String| {
        message!(PartitionResponse {
            partition_index: index,
            error_code: code.code(),
            error_message: Some(StrBytes::from(reason)),
        })
    };
    let partition = match partitions.lookup(topic, PartitionIndex::new(index)) {
        Ok(partition) => partition,
        Err(error) => return failed(error.error_code(), error.to_string()),
    };
    match partition.require_leader() {
        Ok(_) => message!(PartitionResponse {
            partition_index: index,
            active_producers: active_producers(&partition),
        }),
        Err(error) => failed(error.error_code(), error.to_string()),
    }
}

fn active_producers(partition: &Partition) -> Vec<ProducerState> {
    partition.reader().with_producers(|states| {
        states
            .iter()
            .map(|(producer_id, producer)| {
                let transaction = producer.current_txn_first_offset.unwrap_or(Offset::NONE);
                message!(ProducerState {
                    producer_id: producer_id.get(),
                    producer_epoch: i32::from(producer.epoch.get()),
                    last_sequence: producer.last_sequence().get(),
                    last_timestamp: producer.last_timestamp.get(),
                    coordinator_epoch: producer.coordinator_epoch,
                    current_txn_start_offset: transaction.get(),
                })
            })
            .collect()
    })
}
