//! OffsetCommit (8): a consumer says how far it has read.
//!
//! Every partition asked for is answered once, in the order asked. From version 10 on topics are
//! named by their ids (KIP-848).

use odradek_protocol::ErrorCode;
use odradek_protocol::message;
use odradek_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use odradek_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use odradek_protocol::messages::{OffsetCommitRequest, OffsetCommitResponse};

use super::Reply;
use super::commit_rows::{CommitRows, Named, commit_partition};
use super::group_answers::instance_of;
use crate::context::RequestContext;
use crate::groups::Service;
use crate::groups::error::GroupError;
use crate::groups::messages::{CommitPartition, CommitRequest, CommitTopic};
use crate::groups::names::{GenerationId, GroupId, MemberId};
use crate::metadata::image::MetadataImage;

/// First version that members of consumer groups may use (KIP-848).
const FIRST_WITH_EPOCHS: i16 = 9;
/// First version that names topics by id.
const FIRST_WITH_TOPIC_IDS: i16 = 10;
/// `retention_time_ms` of a client that leaves it to the broker.
const DEFAULT_RETENTION: i64 = -1;

/// Answers OffsetCommit.
pub async fn handle(
    context: RequestContext,
    request: OffsetCommitRequest,
) -> Reply<OffsetCommitResponse> {
    let image = context.broker.metadata.image();
    let groups = &context.broker.groups;
    Reply::Now(commit(groups, &image, context.api_version, request).await)
}

async fn commit(
    groups: &Service,
    image: &MetadataImage,
    version: i16,
    request: OffsetCommitRequest,
) -> OffsetCommitResponse {
    let mut rows = CommitRows::default();
    for topic in &request.topics {
        let named = match version {
            FIRST_WITH_TOPIC_IDS.. => Named::Id(topic.topic_id.into()),
            _ => Named::Name(&topic.name),
        };
        rows.push(image, named, topic.partitions.iter().map(to_commit));
    }
    let topics = rows.take_known();
    let results = match topics.is_empty() {
        true => Ok(Vec::new()),
        false => {
            let asked = asked(version, &request, topics);
            groups.commit(asked).await.map_err(GroupError::code)
        }
    };
    let topics = request.topics.iter().zip(rows.codes(&results));
    message!(OffsetCommitResponse {
        topics: topics.map(|(topic, codes)| answer(topic, codes)).collect(),
    })
}

fn asked(version: i16, request: &OffsetCommitRequest, topics: Vec<CommitTopic>) -> CommitRequest {
    CommitRequest {
        group: GroupId::new(&request.group_id),
        member: MemberId::new(&request.member_id),
        instance: instance_of(request.group_instance_id.as_ref()),
        generation: GenerationId::new(request.generation_id_or_member_epoch),
        retention_ms: Some(request.retention_time_ms).filter(|ms| *ms != DEFAULT_RETENTION),
        knows_epochs: version >= FIRST_WITH_EPOCHS,
        no_such_group: if version >= FIRST_WITH_EPOCHS {
            GroupError::GroupNotFound
        } else {
            GroupError::IllegalGeneration
        },
        topics,
    }
}

fn to_commit(partition: &OffsetCommitRequestPartition) -> CommitPartition {
    commit_partition(
        partition.partition_index,
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.committed_metadata.as_ref(),
    )
}

fn answer(asked: &OffsetCommitRequestTopic, codes: Vec<ErrorCode>) -> OffsetCommitResponseTopic {
    let rows = asked.partitions.iter().zip(codes).map(|(partition, code)| {
        message!(OffsetCommitResponsePartition {
            partition_index: partition.partition_index,
            error_code: code.code(),
        })
    });
    message!(OffsetCommitResponseTopic {
        name: asked.name.clone(),
        topic_id: asked.topic_id,
        partitions: rows.collect(),
    })
}

#[cfg(test)]
mod tests {
    use odradek_protocol::messages::{StrBytes, Uuid};

    use super::*;
    use crate::groups::bench::{image_of, service};

    fn partition(index: i32) -> OffsetCommitRequestPartition {
        let mut partition = OffsetCommitRequestPartition::default();
        partition.partition_index = index;
        partition.committed_offset = 5;
        partition
    }

    fn topic(name: &str, id: u8, partitions: &[i32]) -> OffsetCommitRequestTopic {
        let mut topic = OffsetCommitRequestTopic::default();
        topic.name = StrBytes::from(name);
        topic.topic_id = Uuid::from_bytes([id; 16]);
        topic.partitions = partitions.iter().copied().map(partition).collect();
        topic
    }

    fn request(topics: Vec<OffsetCommitRequestTopic>) -> OffsetCommitRequest {
        let mut request = OffsetCommitRequest::default();
        request.group_id = StrBytes::from("g");
        request.generation_id_or_member_epoch = -1;
        request.retention_time_ms = -1;
        request.topics = topics;
        request
    }

    fn rows(response: &OffsetCommitResponse) -> Vec<(&str, i32, i16)> {
        let topics = response.topics.iter();
        let rows = topics.flat_map(|topic| {
            let partitions = topic.partitions.iter();
            partitions.map(|row| (topic.name.as_str(), row.partition_index, row.error_code))
        });
        rows.collect()
    }

    #[tokio::test(start_paused = true)]
    async fn every_row_is_answered_once_in_the_order_asked_with_an_unknown_topic_among_them() {
        let groups = service().await;
        let image = image_of(&[("z", 1, 2), ("a", 2, 1), ("m", 3, 1)]);
        let topics = vec![
            topic("z", 0, &[1, 7, 0]),
            topic("nowhere", 0, &[0]),
            topic("a", 0, &[0]),
            topic("m", 0, &[0]),
        ];
        let response = commit(&groups, &image, 9, request(topics)).await;
        let unknown = ErrorCode::UnknownTopicOrPartition.code();
        assert_eq!(
            rows(&response),
            [
                ("z", 1, 0),
                ("z", 7, unknown),
                ("z", 0, 0),
                ("nowhere", 0, unknown),
                ("a", 0, 0),
                ("m", 0, 0),
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn version_10_names_topics_by_id_and_knows_when_an_id_is_unknown() {
        let groups = service().await;
        let image = image_of(&[("a", 2, 1)]);
        let topics = vec![topic("", 9, &[0]), topic("", 2, &[0])];
        let response = commit(&groups, &image, 10, request(topics)).await;
        let codes: Vec<_> = rows(&response).iter().map(|row| row.2).collect();
        assert_eq!(codes, [ErrorCode::UnknownTopicId.code(), 0]);
        assert_eq!(response.topics[0].topic_id, Uuid::from_bytes([9; 16]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_commit_leaves_the_rows_of_missing_topics_as_they_are() {
        let groups = service().await;
        let image = image_of(&[("a", 2, 1)]);
        let mut asked = request(vec![topic("nowhere", 0, &[0]), topic("a", 0, &[0])]);
        asked.generation_id_or_member_epoch = 3;
        for (version, refused) in [
            (8, ErrorCode::IllegalGeneration),
            (9, ErrorCode::GroupIdNotFound),
        ] {
            let response = commit(&groups, &image, version, asked.clone()).await;
            let codes: Vec<_> = rows(&response).iter().map(|row| row.2).collect();
            let unknown = ErrorCode::UnknownTopicOrPartition.code();
            assert_eq!(codes, [unknown, refused.code()]);
        }
    }
}
