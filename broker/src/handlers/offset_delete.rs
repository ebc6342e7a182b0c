//! OffsetDelete (47): single offsets of a group go away (KIP-496), unless a member reads the topic.

use odradek_protocol::ErrorCode;
use odradek_protocol::ids::PartitionIndex;
use odradek_protocol::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use odradek_protocol::messages::{OffsetDeleteRequest, OffsetDeleteResponse};

use super::Reply;
use super::group_answers::{code_of, code_of_result};
use crate::context::RequestContext;
use crate::groups::Service;
use crate::groups::messages::DeleteOffsetsRequest;
use crate::groups::names::{GroupId, TopicName};
use crate::metadata::image::MetadataImage;

/// Answers OffsetDelete.
pub async fn handle(
    context: RequestContext,
    request: OffsetDeleteRequest,
) -> Reply<OffsetDeleteResponse> {
    let image = context.broker.metadata.image();
    Reply::Now(delete(&context.broker.groups, &image, &request).await)
}

async fn delete(
    groups: &Service,
    image: &MetadataImage,
    request: &OffsetDeleteRequest,
) -> OffsetDeleteResponse {
    let exists = |topic: &str, index: i32| {
        let topic = image.topic(topic);
        topic.is_some_and(|topic| topic.partition(PartitionIndex::new(index)).is_some())
    };
    let topics = request.topics.iter().map(|topic| {
        let indexes = topic
            .partitions
            .iter()
            .map(|partition| partition.partition_index);
        let known = indexes.filter(|index| exists(&topic.name, *index));
        let known = known.map(PartitionIndex::new).collect();
        (TopicName::new(&topic.name), known)
    });
    let asked = DeleteOffsetsRequest {
        group: GroupId::new(&request.group_id),
        topics: topics.collect(),
    };
    let mut response = OffsetDeleteResponse::default();
    let results = match groups.delete_offsets(asked).await {
        Ok(results) => results,
        Err(error) => {
            response.error_code = code_of(Some(error));
            return response;
        }
    };
    for (topic, results) in request.topics.iter().zip(results) {
        let mut results = results.iter();
        let mut answer = OffsetDeleteResponseTopic::default();
        answer.name = topic.name.clone();
        for partition in &topic.partitions {
            let index = partition.partition_index;
            let result = exists(&topic.name, index).then(|| results.next()).flatten();
            let missing = ErrorCode::UnknownTopicOrPartition.code();
            let mut entry = OffsetDeleteResponsePartition::default();
            entry.partition_index = index;
            entry.error_code = result.map_or(missing, code_of_result);
            answer.partitions.push(entry);
        }
        response.topics.push(answer);
    }
    response
}
