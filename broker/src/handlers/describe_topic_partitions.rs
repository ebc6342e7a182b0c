//! DescribeTopicPartitions (KIP-966): topics in the order of their names, page by page.

use std::sync::Arc;

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::message;
use odradek_protocol::messages::describe_topic_partitions_request as ask;
use odradek_protocol::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use odradek_protocol::messages::{
    DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, StrBytes,
};

use super::admin_answers::ALL_TOPIC_OPERATIONS;
use super::{Reply, topic_view};
use crate::context::{BrokerContext, RequestContext};
use crate::metadata::image::{MetadataImage, Topic};
use crate::metadata::topic_name;

/// Answers DescribeTopicPartitions.
pub async fn handle(
    context: RequestContext,
    request: DescribeTopicPartitionsRequest,
) -> Reply<DescribeTopicPartitionsResponse> {
    let broker = &context.broker;
    let image = broker.metadata.image();
    let most = broker.config.load().max_request_partitions;
    let limit = usize::try_from(request.response_partition_limit)
        .unwrap_or(0)
        .clamp(1, most.max(1));
    let Some(topics) = topics(&image, &request, limit) else {
        return Reply::Now(refused(request.topics));
    };
    let start = request.cursor.as_ref().map(|cursor| {
        let index = usize::try_from(cursor.partition_index).unwrap_or(0);
        (cursor.topic_name.as_str(), index)
    });
    Reply::Now(page(broker, &image, topics, start, limit))
}

/// One topic of the answer.
enum Entry {
    Known(Arc<Topic>),
    Unknown(StrBytes),
}

/// Topics from the cursor on, in the order of their names; `None` if the cursor is not one. A page of
/// `limit` partitions has no more topics than that, and names the one after them.
fn topics(
    image: &MetadataImage,
    request: &DescribeTopicPartitionsRequest,
    limit: usize,
) -> Option<Vec<Entry>> {
    let from = match &request.cursor {
        Some(cursor) if cursor.partition_index < 0 => return None,
        Some(cursor) => cursor.topic_name.as_str(),
        None => "",
    };
    if request.topics.is_empty() {
        let page = image.topics_from(from).take(limit.saturating_add(1));
        return Some(page.map(Arc::clone).map(Entry::Known).collect());
    }
    let mut names: Vec<&StrBytes> = request.topics.iter().map(|topic| &topic.name).collect();
    names.sort_unstable();
    names.dedup();
    names.retain(|name| name.as_str() >= from);
    if request.cursor.is_some() && names.first().map(|name| name.as_str()) != Some(from) {
        return None;
    }
    let entry = |name: &StrBytes| match image.topic(name) {
        Some(topic) => Entry::Known(Arc::clone(topic)),
        None => Entry::Unknown(name.clone()),
    };
    Some(names.into_iter().map(entry).collect())
}

/// The answer to a cursor that the request does not go with.
fn refused(topics: Vec<ask::TopicRequest>) -> DescribeTopicPartitionsResponse {
    let topics = topics
        .into_iter()
        .map(|topic| {
            message!(DescribeTopicPartitionsResponseTopic {
                error_code: ErrorCode::InvalidRequest.code(),
                name: Some(topic.name),
            })
        })
        .collect();
    message!(DescribeTopicPartitionsResponse { topics })
}

fn page(
    broker: &BrokerContext,
    image: &MetadataImage,
    topics: Vec<Entry>,
    start: Option<(&str, usize)>,
    limit: usize,
) -> DescribeTopicPartitionsResponse {
    let mut response = DescribeTopicPartitionsResponse::default();
    let mut left = limit;
    for entry in topics {
        let name = match &entry {
            Entry::Known(topic) => StrBytes::from(&*topic.name),
            Entry::Unknown(name) => name.clone(),
        };
        if left == 0 {
            response.next_cursor = Some(cursor(name, 0));
            break;
        }
        let topic = match entry {
            Entry::Known(topic) => topic,
            Entry::Unknown(name) => {
                response.topics.push(unknown(name));
                continue;
            }
        };
        let first = match start {
            Some((at, index)) if at == &*topic.name => index,
            _ => 0,
        };
        let described = describe(broker, image, &topic, first, left);
        let next = first.saturating_add(described.partitions.len());
        left -= described.partitions.len();
        response.topics.push(described);
        if next < topic.partitions.len() {
            response.next_cursor = Some(cursor(name, next));
            break;
        }
    }
    response
}

fn cursor(topic_name: StrBytes, partition_index: usize) -> Cursor {
    message!(Cursor {
        topic_name,
        partition_index: i32::try_from(partition_index).unwrap_or(i32::MAX),
    })
}

fn unknown(name: StrBytes) -> DescribeTopicPartitionsResponseTopic {
    let error = match topic_name::validate(&name) {
        Ok(()) => ErrorCode::UnknownTopicOrPartition,
        Err(_) => ErrorCode::InvalidTopicException,
    };
    message!(DescribeTopicPartitionsResponseTopic {
        error_code: error.code(),
        is_internal: topic_name::is_internal(&name),
        name: Some(name),
        topic_authorized_operations: ALL_TOPIC_OPERATIONS,
    })
}

fn describe(
    broker: &BrokerContext,
    image: &MetadataImage,
    topic: &Topic,
    first: usize,
    count: usize,
) -> DescribeTopicPartitionsResponseTopic {
    let partitions = topic_view::partitions(broker, image, topic, first, count)
        .into_iter()
        .map(|partition| {
            message!(DescribeTopicPartitionsResponsePartition {
                partition_index: partition.index,
                leader_id: partition.leader,
                leader_epoch: partition.leader_epoch,
                replica_nodes: partition.replicas,
                isr_nodes: partition.isr,
                eligible_leader_replicas: Some(Vec::new()),
                last_known_elr: Some(Vec::new()),
                offline_replicas: partition.offline,
            })
        })
        .collect();
    message!(DescribeTopicPartitionsResponseTopic {
        name: Some(StrBytes::from(&*topic.name)),
        topic_id: topic.id.into(),
        is_internal: topic.is_internal(),
        partitions,
        topic_authorized_operations: ALL_TOPIC_OPERATIONS,
    })
}
