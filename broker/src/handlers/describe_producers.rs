//! DescribeProducers (KIP-664): which idempotent and transactional producers a partition remembers.

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{LeaderEpoch, Offset, PartitionIndex};
use odradek_protocol::message;
use odradek_protocol::messages::describe_producers_response::{
    PartitionResponse, ProducerState, TopicResponse,
};
use odradek_protocol::messages::{DescribeProducersRequest, DescribeProducersResponse, StrBytes};

use crate::context::RequestContext;
use crate::fetch_sessions::TopicRef;
use crate::handlers::Reply;
use crate::metadata::topic_name;
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
        let fault = topic_fault(partitions, &topic.name);
        let described = topic.partition_indexes.iter().map(|index| match &fault {
            Some((code, reason)) => failed(*index, *code, Some(reason.as_str())),
            None => describe(partitions, &reference, *index),
        });
        message!(TopicResponse {
            partitions: described.collect(),
            name: topic.name,
        })
    });
    message!(DescribeProducersResponse {
        topics: topics.collect(),
    })
}

/// Why nothing can be said of any partition of the topic.
fn topic_fault(partitions: &PartitionManager, name: &str) -> Option<(ErrorCode, String)> {
    if let Err(invalid) = topic_name::validate(name) {
        return Some((ErrorCode::InvalidTopicException, invalid.to_string()));
    }
    let unknown = ErrorCode::UnknownTopicOrPartition;
    (!partitions.knows_topic(name)).then(|| (unknown, unknown.message().to_owned()))
}

fn failed(index: i32, code: ErrorCode, reason: Option<&str>) -> PartitionResponse {
    message!(PartitionResponse {
        partition_index: index,
        error_code: code.code(),
        error_message: reason.map(StrBytes::from),
    })
}

fn describe(partitions: &PartitionManager, topic: &TopicRef, index: i32) -> PartitionResponse {
    let partition = match partitions.lookup(topic, PartitionIndex::new(index)) {
        Ok(partition) => partition,
        Err(error) => return failed(index, error.error_code(), None),
    };
    match partition.read_as_leader(LeaderEpoch::NONE, |_| Ok(active_producers(&partition))) {
        Ok(active_producers) => message!(PartitionResponse {
            partition_index: index,
            active_producers,
        }),
        Err(error) => failed(index, error.error_code(), None),
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
