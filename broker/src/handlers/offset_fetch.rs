//! OffsetFetch (9): how far groups have read.
//!
//! One entry for every partition asked for, whether it exists or was ever committed; null topics
//! mean everything the group has committed (from version 2). From version 8 on several groups are
//! asked at once (KIP-709), from version 10 on topics are named by their ids (KIP-848). Offsets
//! are those of acknowledged commits always; with `require_stable` (KIP-447) a partition of which an
//! open transaction may change the offset is answered with UNSTABLE_OFFSET_COMMIT.

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
use crate::groups::names::{Epoch, GroupId, MemberId, TopicName};
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
            let answer = fetch(groups, &image, version, request.require_stable, asked).await;
            response.groups.push(answer);
        }
    } else {
        let (stable, asked) = (request.require_stable, only_group(&request));
        let answer = fetch(groups, &image, version, stable, &asked).await;
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
    require_stable: bool,
    asked: &OffsetFetchRequestGroup,
) -> OffsetFetchResponseGroup {
    let mut answer = OffsetFetchResponseGroup::default();
    answer.group_id = asked.group_id.clone();
    let resolve = |topic| resolve(image, version, topic);
    let wanted: Option<Vec<_>> = asked
        .topics
        .as_ref()
        .map(|topics| topics.iter().map(resolve).collect());
    let request = FetchRequest {
        group: GroupId::new(&asked.group_id),
        member: member_of(asked),
        topics: wanted
            .as_ref()
            .map(|wanted| wanted.iter().flatten().cloned().collect()),
        require_stable,
    };
    let fetched = match groups.fetch(request).await {
        Ok(fetched) => fetched,
        Err(error) => return refuse(answer, version, asked, error),
    };
    let Some((topics, wanted)) = asked.topics.as_ref().zip(wanted) else {
        let topics = fetched
            .into_iter()
            .filter_map(|topic| committed_topic(image, version, topic));
        answer.topics = topics.collect();
        return answer;
    };
    let mut fetched = fetched.into_iter();
    for (topic, wanted) in topics.iter().zip(wanted) {
        let found = wanted.and_then(|_| fetched.next());
        answer.topics.push(match found {
            Some(found) => answer_topic(topic, found),
            None => missing_topic(topic, ErrorCode::UnknownTopicId),
        });
    }
    answer
}

/// The member that asks, if it says who it is, as members of consumer groups do from version 9 on.
fn member_of(asked: &OffsetFetchRequestGroup) -> Option<(MemberId, Epoch)> {
    const NO_EPOCH: i32 = -1;
    let says = asked.member_id.is_some() || asked.member_epoch > NO_EPOCH;
    says.then(|| {
        let member = asked.member_id.as_ref().map_or("", StrBytes::as_str);
        (MemberId::new(member), Epoch::new(asked.member_epoch))
    })
}

/// A topic asked for by name and id; `None` if its id is unknown. A name need not exist; if it
/// does, its id keeps apart what was committed for an earlier topic of that name.
fn resolve(
    image: &MetadataImage,
    version: i16,
    topic: &OffsetFetchRequestTopics,
) -> Option<FetchTopic> {
    let (name, id) = if version >= FIRST_WITH_TOPIC_IDS {
        let known = image.topic_by_id(topic.topic_id.into())?;
        (TopicName::new(&known.name), known.id)
    } else {
        let known = image.topic(&topic.name);
        let id = known.map_or(TopicId::ZERO, |known| known.id);
        (TopicName::new(&topic.name), id)
    };
    let indexes = topic.partition_indexes.iter().copied();
    Some(FetchTopic {
        topic: name,
        topic_id: id,
        partitions: indexes.map(PartitionIndex::new).collect(),
    })
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
        .map(|(index, offset)| {
            if !found.unstable.contains(&index) {
                return answer_partition(index, offset);
            }
            let mut unstable = answer_partition(index, None);
            unstable.error_code = ErrorCode::UnstableOffsetCommit.code();
            unstable
        })
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

#[cfg(test)]
mod tests {
    use odradek_protocol::ids::{LeaderEpoch, Offset};
    use odradek_protocol::messages::Uuid;

    use super::*;
    use crate::coordinator::hosting::Coordinators as _;
    use crate::groups::bench::{image_of, service};
    use crate::groups::messages::{CommitPartition, CommitRequest, CommitTopic};
    use crate::groups::names::GenerationId;

    async fn with_a_commit() -> (Service, MetadataImage) {
        let groups = service().await;
        let committed = groups.commit(CommitRequest {
            group: GroupId::new("g"),
            member: MemberId::new(""),
            instance: None,
            generation: GenerationId::new(-1),
            retention_ms: None,
            no_such_group: GroupError::GroupNotFound,
            knows_epochs: true,
            topics: vec![CommitTopic {
                topic: TopicName::new("a"),
                topic_id: TopicId::from_bytes([1; 16]),
                partitions: vec![CommitPartition {
                    partition: PartitionIndex::new(0),
                    offset: Offset::new(7),
                    leader_epoch: LeaderEpoch::new(4),
                    metadata: "note".to_owned(),
                }],
            }],
        });
        assert_eq!(committed.await, Ok(vec![vec![Ok(())]]));
        (groups, image_of(&[("a", 1, 2)]))
    }

    fn asked(group: &str, topics: Option<&[(&str, u8, &[i32])]>) -> OffsetFetchRequestGroup {
        let mut asked = OffsetFetchRequestGroup::default();
        asked.group_id = StrBytes::from(group);
        asked.topics = topics.map(|topics| {
            let topics = topics.iter().map(|(name, id, indexes)| {
                let mut topic = OffsetFetchRequestTopics::default();
                topic.name = StrBytes::from(*name);
                topic.topic_id = Uuid::from_bytes([*id; 16]);
                topic.partition_indexes = indexes.to_vec();
                topic
            });
            topics.collect()
        });
        asked
    }

    /// Topic, id's first byte, partition, error, offset, epoch, metadata.
    type Row = (String, u8, i32, i16, i64, i32, String);

    fn rows(answer: &OffsetFetchResponseGroup) -> Vec<Row> {
        assert_eq!(answer.error_code, 0);
        let topics = answer.topics.iter();
        let rows = topics.flat_map(|topic| {
            let partitions = topic.partitions.iter();
            partitions.map(|row| {
                (
                    topic.name.as_str().to_owned(),
                    topic.topic_id.as_bytes()[0],
                    row.partition_index,
                    row.error_code,
                    row.committed_offset,
                    row.committed_leader_epoch,
                    row.metadata
                        .as_ref()
                        .map_or("null", |text| text.as_str())
                        .to_owned(),
                )
            })
        });
        rows.collect()
    }

    fn row(name: &str, id: u8, index: i32, error: i16, found: Option<(i64, i32, &str)>) -> Row {
        let (offset, epoch, metadata) = found.unwrap_or((-1, -1, ""));
        (
            name.to_owned(),
            id,
            index,
            error,
            offset,
            epoch,
            metadata.to_owned(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn every_partition_asked_for_is_answered_whether_it_exists_or_not() {
        let (groups, image) = with_a_commit().await;
        let topics: &[(&str, u8, &[i32])] = &[("nowhere", 0, &[0]), ("a", 0, &[1, 0, 99])];
        for version in [1, 5, 8, 9] {
            let answer = fetch(&groups, &image, version, false, &asked("g", Some(topics))).await;
            assert_eq!(
                rows(&answer),
                [
                    row("nowhere", 0, 0, 0, None),
                    row("a", 0, 1, 0, None),
                    row("a", 0, 0, 0, Some((7, 4, "note"))),
                    row("a", 0, 99, 0, None),
                ]
            );
            let answer = fetch(
                &groups,
                &image,
                version,
                false,
                &asked("stranger", Some(topics)),
            )
            .await;
            assert_eq!(rows(&answer).len(), 4);
            assert!(rows(&answer).iter().all(|row| row.4 == -1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn version_10_answers_an_unknown_topic_id_with_an_error_of_its_partitions() {
        let (groups, image) = with_a_commit().await;
        let topics: &[(&str, u8, &[i32])] = &[("", 9, &[0, 1]), ("", 1, &[0])];
        let answer = fetch(&groups, &image, 10, false, &asked("g", Some(topics))).await;
        let unknown = ErrorCode::UnknownTopicId.code();
        assert_eq!(
            rows(&answer),
            [
                row("", 9, 0, unknown, None),
                row("", 9, 1, unknown, None),
                row("", 1, 0, 0, Some((7, 4, "note"))),
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn null_topics_mean_everything_and_an_empty_list_nothing() {
        let (groups, image) = with_a_commit().await;
        let everything = fetch(&groups, &image, 9, false, &asked("g", None)).await;
        assert_eq!(rows(&everything), [row("a", 0, 0, 0, Some((7, 4, "note")))]);
        let by_id = fetch(&groups, &image, 10, false, &asked("g", None)).await;
        assert_eq!(rows(&by_id), [row("", 1, 0, 0, Some((7, 4, "note")))]);
        let nothing = fetch(&groups, &image, 9, false, &asked("g", Some(&[]))).await;
        assert!(rows(&nothing).is_empty());
        let stranger = fetch(&groups, &image, 9, false, &asked("stranger", None)).await;
        assert!(rows(&stranger).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_topic_made_again_under_its_name_has_no_offset() {
        let (groups, _) = with_a_commit().await;
        let image = image_of(&[("a", 2, 2)]);
        let topics: &[(&str, u8, &[i32])] = &[("a", 0, &[0])];
        let answer = fetch(&groups, &image, 9, false, &asked("g", Some(topics))).await;
        assert_eq!(rows(&answer), [row("a", 0, 0, 0, None)]);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_coordinator_the_error_stands_where_the_version_has_it() {
        let (groups, image) = with_a_commit().await;
        groups.host().remove(PartitionIndex::new(0));
        let topics: &[(&str, u8, &[i32])] = &[("a", 0, &[0])];
        let old = fetch(&groups, &image, 1, false, &asked("g", Some(topics))).await;
        let not_here = ErrorCode::NotCoordinator.code();
        assert_eq!(rows(&old), [row("a", 0, 0, not_here, None)]);
        let new = fetch(&groups, &image, 2, false, &asked("g", Some(topics))).await;
        assert_eq!((new.error_code, new.topics.len()), (not_here, 0));
    }
}
