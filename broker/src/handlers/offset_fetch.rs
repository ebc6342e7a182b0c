//! OffsetFetch (9): how far groups have read.
//!
//! One entry for every partition asked for, whether it exists or was ever committed; null topics
//! mean everything the group has committed (from version 2). From version 8 on several groups are
//! asked at once (KIP-709), from version 10 on topics are named by their ids (KIP-848). Offsets
//! are those of acknowledged commits always, so `require_stable` (KIP-447) asks for nothing more
//! as long as there are no transactions.

use odradek_protocol::ErrorCode;
use odradek_protocol::ids::{PartitionIndex, TopicId};
use odradek_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use odradek_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use odradek_protocol::messages::{OffsetFetchRequest, OffsetFetchResponse, StrBytes};

use super::Reply;
use crate::context::RequestContext;
use crate::groups::Service;
use crate::groups::error::GroupError;
use crate::groups::messages::{FetchRequest, FetchTopic, FetchedOffset, FetchedTopic};
use crate::groups::names::{GroupId, TopicName};
use crate::metadata::image::MetadataImage;

/// First version with an error for the whole group.
const FIRST_WITH_GROUP_ERROR: i16 = 2;
/// First version that asks for several groups.
const FIRST_WITH_GROUPS: i16 = 8;
/// First version that names topics by id.
const FIRST_WITH_TOPIC_IDS: i16 = 10;

/// Answers OffsetFetch.
pub async fn handle(
    context: RequestContext,
    request: OffsetFetchRequest,
) -> Reply<OffsetFetchResponse> {
    let version = context.api_version;
    let image = context.broker.metadata.image();
    let groups = &context.broker.groups;
    let mut response = OffsetFetchResponse::default();
    if version >= FIRST_WITH_GROUPS {
        for asked in &request.groups {
            let answer = fetch(groups, &image, version, asked).await;
            response.groups.push(answer);
        }
    } else {
        let answer = fetch(groups, &image, version, &only_group(&request)).await;
        response.error_code = answer.error_code;
        response.topics = answer.topics.into_iter().map(to_old_topic).collect();
    }
    Reply::Now(response)
}

/// The group of an old request, as later versions ask for it.
fn only_group(request: &OffsetFetchRequest) -> OffsetFetchRequestGroup {
    let mut group = OffsetFetchRequestGroup::default();
    group.group_id = request.group_id.clone();
    group.topics = request.topics.as_ref().map(|topics| {
        let asked = topics.iter().map(|topic| {
            let mut asked = OffsetFetchRequestTopics::default();
            asked.name = topic.name.clone();
            asked.partition_indexes = topic.partition_indexes.clone();
            asked
        });
        asked.collect()
    });
    group
}

fn to_old_topic(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic {
    let mut old = OffsetFetchResponseTopic::default();
    old.name = topic.name;
    old.partitions = topic
        .partitions
        .into_iter()
        .map(|partition| {
            let mut old = OffsetFetchResponsePartition::default();
            old.partition_index = partition.partition_index;
            old.committed_offset = partition.committed_offset;
            old.committed_leader_epoch = partition.committed_leader_epoch;
            old.metadata = partition.metadata;
            old.error_code = partition.error_code;
            old
        })
        .collect();
    old
}

async fn fetch(
    groups: &Service,
    image: &MetadataImage,
    version: i16,
    asked: &OffsetFetchRequestGroup,
) -> OffsetFetchResponseGroup {
    let mut answer = OffsetFetchResponseGroup::default();
    answer.group_id = asked.group_id.clone();
    let names = asked.topics.as_ref().map(|topics| {
        let names = topics.iter().map(|topic| name_of(image, version, topic));
        names.collect::<Vec<_>>()
    });
    let request = FetchRequest {
        group: GroupId::new(&asked.group_id),
        topics: asked.topics.as_ref().zip(names.as_ref()).map(wanted_topics),
    };
    let fetched = match groups.fetch(request).await {
        Ok(fetched) => fetched,
        Err(error) => return refuse(answer, version, asked, error),
    };
    let Some((topics, names)) = asked.topics.as_ref().zip(names) else {
        let topics = fetched
            .into_iter()
            .filter_map(|topic| committed_topic(image, version, topic));
        answer.topics = topics.collect();
        return answer;
    };
    let mut fetched = fetched.into_iter();
    for (topic, name) in topics.iter().zip(names) {
        let found = name.and_then(|_| fetched.next());
        answer.topics.push(match found {
            Some(found) => answer_topic(topic, found),
            None => missing_topic(topic, ErrorCode::UnknownTopicId),
        });
    }
    answer
}

/// The name of a topic asked for; `None` if its id is unknown.
fn name_of(
    image: &MetadataImage,
    version: i16,
    topic: &OffsetFetchRequestTopics,
) -> Option<TopicName> {
    if version >= FIRST_WITH_TOPIC_IDS {
        let known = image.topic_by_id(topic.topic_id.into())?;
        Some(TopicName::new(&known.name))
    } else {
        Some(TopicName::new(&topic.name))
    }
}

fn wanted_topics(
    (topics, names): (&Vec<OffsetFetchRequestTopics>, &Vec<Option<TopicName>>),
) -> Vec<FetchTopic> {
    let wanted = topics.iter().zip(names).filter_map(|(topic, name)| {
        let indexes = topic.partition_indexes.iter().copied();
        Some(FetchTopic {
            topic: name.clone()?,
            topic_id: topic.topic_id.into(),
            partitions: indexes.map(PartitionIndex::new).collect(),
        })
    });
    wanted.collect()
}

fn refuse(
    mut answer: OffsetFetchResponseGroup,
    version: i16,
    asked: &OffsetFetchRequestGroup,
    error: GroupError,
) -> OffsetFetchResponseGroup {
    let code = match error {
        // Consumers retry this API on NOT_COORDINATOR, but not all on COORDINATOR_NOT_AVAILABLE.
        GroupError::NotAvailable => ErrorCode::NotCoordinator,
        error => error.code(),
    };
    if version >= FIRST_WITH_GROUP_ERROR {
        answer.error_code = code.code();
    } else {
        let topics = asked.topics.iter().flatten();
        answer.topics = topics.map(|topic| missing_topic(topic, code)).collect();
    }
    answer
}

fn missing_topic(asked: &OffsetFetchRequestTopics, code: ErrorCode) -> OffsetFetchResponseTopics {
    let mut topic = OffsetFetchResponseTopics::default();
    topic.name = asked.name.clone();
    topic.topic_id = asked.topic_id;
    let entry = |index: &i32| {
        let mut entry = answer_partition(PartitionIndex::new(*index), None);
        entry.error_code = code.code();
        entry
    };
    topic.partitions = asked.partition_indexes.iter().map(entry).collect();
    topic
}

fn answer_topic(
    asked: &OffsetFetchRequestTopics,
    found: FetchedTopic,
) -> OffsetFetchResponseTopics {
    let mut topic = OffsetFetchResponseTopics::default();
    topic.name = asked.name.clone();
    topic.topic_id = asked.topic_id;
    topic.partitions = answer_partitions(found);
    topic
}

/// A topic the group has committed for, or `None` if it cannot be named in this version.
fn committed_topic(
    image: &MetadataImage,
    version: i16,
    found: FetchedTopic,
) -> Option<OffsetFetchResponseTopics> {
    let mut topic = OffsetFetchResponseTopics::default();
    if version >= FIRST_WITH_TOPIC_IDS {
        topic.topic_id = image.topic(found.topic.as_str())?.id.into();
    } else {
        topic.topic_id = TopicId::ZERO.into();
        topic.name = StrBytes::from(found.topic.as_str());
    }
    topic.partitions = answer_partitions(found);
    Some(topic)
}

fn answer_partitions(found: FetchedTopic) -> Vec<OffsetFetchResponsePartitions> {
    let partitions = found.partitions.into_iter();
    partitions
        .map(|(index, offset)| answer_partition(index, offset))
        .collect()
}

fn answer_partition(
    index: PartitionIndex,
    found: Option<FetchedOffset>,
) -> OffsetFetchResponsePartitions {
    let mut partition = OffsetFetchResponsePartitions::default();
    partition.partition_index = index.get();
    match found {
        Some(found) => {
            partition.committed_offset = found.offset.get();
            partition.committed_leader_epoch = found.leader_epoch.get();
            partition.metadata = Some(StrBytes::from(&*found.metadata));
        }
        None => {
            partition.committed_offset = -1;
            partition.committed_leader_epoch = -1;
            partition.metadata = Some(StrBytes::default());
        }
    }
    partition
}
