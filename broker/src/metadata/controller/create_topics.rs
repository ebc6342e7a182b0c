//! Creation of topics.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use odradek_protocol::ids::{LeaderEpoch, NodeId, PartitionIndex, TopicId};

use super::super::image::{ConfigMap, ConfigResource, MetadataImage};
use super::super::placement;
use super::super::records::{ConfigRecord, MetadataRecord, PartitionRecord, TopicRecord};
use super::super::refusal::{MAX_PARTITIONS_PER_REQUEST, Refusal};
use super::super::topic_name;

/// A topic that is asked for, as the request has it.
#[derive(Debug, Clone, Default)]
pub struct NewTopic {
    /// Name.
    pub name: String,
    /// Number of partitions; −1 is the default.
    pub partitions: i32,
    /// Number of replicas; −1 is the default.
    pub replication_factor: i16,
    /// Replicas of each partition, if the request chose them.
    pub assignments: Vec<(PartitionIndex, Vec<NodeId>)>,
    /// Settings that differ from the brokers'.
    pub configs: Vec<(String, Option<String>)>,
}

/// What a creation goes by besides the image.
pub struct CreationRules<'a> {
    /// `num.partitions`.
    pub default_partitions: i32,
    /// `default.replication.factor`.
    pub default_replication_factor: i16,
    /// Brokers that do not answer at this moment.
    pub silent: BTreeSet<NodeId>,
    /// Checks the settings of a topic and gives them in the form in which they are kept, or says
    /// what is wrong with them.
    pub check_configs: &'a dyn Fn(&ConfigMap) -> Result<ConfigMap, String>,
}

/// A topic that is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedTopic {
    /// Its id.
    pub topic_id: TopicId,
    /// Number of its partitions.
    pub partitions: usize,
    /// Number of replicas of its first partition.
    pub replication_factor: usize,
    /// Its own settings.
    pub configs: ConfigMap,
}

/// Answer for one name of a request.
pub type TopicOutcome = (String, Result<CreatedTopic, Refusal>);

/// Creates `topics`. Each is answered for itself, a name that stands in the request twice once and
/// last, and a refused one leaves the others alone.
pub fn create_topics(
    image: &MetadataImage,
    topics: &[NewTopic],
    rules: &CreationRules<'_>,
    mut next_topic_id: impl FnMut() -> TopicId,
) -> (Vec<MetadataRecord>, Vec<TopicOutcome>) {
    let duplicates = duplicate_names(topics);
    if total_partitions(topics, rules) > MAX_PARTITIONS_PER_REQUEST {
        let refused = topics
            .iter()
            .map(|topic| (topic.name.clone(), Err(Refusal::TooManyPartitions)))
            .collect();
        return (Vec::new(), refused);
    }
    // Names of this request, by what they collide on.
    let mut taken = HashMap::new();
    let mut records = Vec::new();
    let mut outcomes = Vec::new();
    for topic in topics {
        if duplicates.contains(topic.name.as_str()) {
            continue;
        }
        let outcome = create_topic(image, topic, rules, &taken, &mut next_topic_id);
        let outcome = outcome.map(|(created, of_topic)| {
            if topic_name::has_collision_chars(&topic.name) {
                let key = topic_name::collision_key(&topic.name).into_owned();
                taken.insert(key, topic.name.clone());
            }
            records.extend(of_topic);
            created
        });
        outcomes.push((topic.name.clone(), outcome));
    }
    let mut duplicates: Vec<&str> = duplicates.into_iter().collect();
    duplicates.sort_unstable();
    outcomes.extend(
        duplicates
            .into_iter()
            .map(|name| (name.to_owned(), Err(Refusal::DuplicateTopicName))),
    );
    (records, outcomes)
}

fn duplicate_names(topics: &[NewTopic]) -> HashSet<&str> {
    let mut seen = HashSet::new();
    topics
        .iter()
        .map(|topic| topic.name.as_str())
        .filter(|name| !seen.insert(*name))
        .collect()
}

fn total_partitions(topics: &[NewTopic], rules: &CreationRules<'_>) -> usize {
    topics
        .iter()
        .map(|topic| {
            if !topic.assignments.is_empty() {
                return topic.assignments.len();
            }
            let count = match topic.partitions {
                -1 => rules.default_partitions,
                count => count,
            };
            usize::try_from(count).unwrap_or(0)
        })
        .fold(0, usize::saturating_add)
}

fn create_topic(
    image: &MetadataImage,
    topic: &NewTopic,
    rules: &CreationRules<'_>,
    taken: &HashMap<String, String>,
    next_topic_id: &mut impl FnMut() -> TopicId,
) -> Result<(CreatedTopic, Vec<MetadataRecord>), Refusal> {
    if topic.name == topic_name::CLUSTER_METADATA {
        return Err(Refusal::ReservedTopic(topic.name.clone()));
    }
    topic_name::validate(&topic.name)?;
    if image.topic(&topic.name).is_some() {
        return Err(Refusal::TopicExists(topic.name.clone()));
    }
    if topic_name::has_collision_chars(&topic.name)
        && let Some(existing) = colliding(image, taken, &topic.name)
    {
        return Err(Refusal::NameCollision {
            name: topic.name.clone(),
            existing,
        });
    }
    let configs = own_configs(topic)?;
    let configs = (rules.check_configs)(&configs).map_err(Refusal::InvalidConfig)?;
    let replicas = replicas(image, topic, rules)?;
    let topic_id = next_topic_id();
    let created = CreatedTopic {
        topic_id,
        partitions: replicas.len(),
        replication_factor: replicas.first().map_or(0, Vec::len),
        configs,
    };
    let mut records = vec![MetadataRecord::Topic(TopicRecord {
        name: topic.name.clone(),
        topic_id,
    })];
    let resource = ConfigResource::topic(topic.name.as_str());
    records.extend(created.configs.iter().map(|(name, value)| {
        MetadataRecord::Config(ConfigRecord {
            resource_type: resource.kind.code(),
            resource_name: resource.name.clone(),
            name: name.clone(),
            value: Some(value.clone()),
        })
    }));
    records.extend(new_partitions(image, topic_id, 0, replicas));
    Ok((created, records))
}

/// The name that a new one collides with: one that exists, or one of the same request.
fn colliding(image: &MetadataImage, taken: &HashMap<String, String>, name: &str) -> Option<String> {
    let key = topic_name::collision_key(name);
    let existing = image.topic_colliding_on(&key).map(|name| name.to_string());
    existing.or_else(|| taken.get(&*key).cloned())
}

fn own_configs(topic: &NewTopic) -> Result<ConfigMap, Refusal> {
    let nulls: Vec<&str> = topic
        .configs
        .iter()
        .filter(|(_, value)| value.is_none())
        .map(|(name, _)| name.as_str())
        .collect();
    if !nulls.is_empty() {
        return Err(Refusal::NullTopicConfigs(nulls.join(",")));
    }
    Ok(topic
        .configs
        .iter()
        .filter_map(|(name, value)| Some((name.clone(), value.clone()?)))
        .collect())
}

/// Replicas of every partition, by index.
fn replicas(
    image: &MetadataImage,
    topic: &NewTopic,
    rules: &CreationRules<'_>,
) -> Result<Vec<Vec<NodeId>>, Refusal> {
    if !topic.assignments.is_empty() {
        return assigned_replicas(image, topic);
    }
    if topic.replication_factor < -1 || topic.replication_factor == 0 {
        return Err(Refusal::ReplicationFactorNotPositive);
    }
    if topic.partitions < -1 || topic.partitions == 0 {
        return Err(Refusal::PartitionsNotPositive);
    }
    let partitions = match topic.partitions {
        -1 => rules.default_partitions,
        count => count,
    };
    let replication_factor = match topic.replication_factor {
        -1 => rules.default_replication_factor,
        factor => factor,
    };
    let count = usize::try_from(partitions).map_err(|_| Refusal::PartitionsNotPositive)?;
    let replication_factor =
        usize::try_from(replication_factor).map_err(|_| Refusal::ReplicationFactorNotPositive)?;
    placement::place(image, &rules.silent, 0, count, replication_factor).map_err(|cause| {
        Refusal::CannotReplicate {
            replication_factor,
            cause: Box::new(cause),
        }
    })
}

fn assigned_replicas(image: &MetadataImage, topic: &NewTopic) -> Result<Vec<Vec<NodeId>>, Refusal> {
    if topic.replication_factor != -1 {
        return Err(Refusal::AssignmentWithReplicationFactor);
    }
    if topic.partitions != -1 {
        return Err(Refusal::AssignmentWithPartitionCount);
    }
    let mut by_index = BTreeMap::new();
    let mut expected = None;
    for (index, replicas) in &topic.assignments {
        if by_index.contains_key(index) {
            return Err(Refusal::PartitionAssignedTwice(*index));
        }
        placement::check_assignment(image, *index, replicas, expected)?;
        expected = Some(replicas.len());
        by_index.insert(*index, replicas.clone());
    }
    let consecutive = by_index
        .keys()
        .zip(0..)
        .all(|(index, expected)| index.get() == expected);
    if !consecutive {
        return Err(Refusal::AssignmentGap);
    }
    Ok(by_index.into_values().collect())
}

/// Records of partitions from index `first` on.
pub(super) fn new_partitions(
    image: &MetadataImage,
    topic_id: TopicId,
    first: i32,
    replicas: Vec<Vec<NodeId>>,
) -> impl Iterator<Item = MetadataRecord> {
    (first..).zip(replicas).map(move |(index, replicas)| {
        let isr: Vec<NodeId> = replicas
            .iter()
            .copied()
            .filter(|id| placement::is_active(image, *id))
            .collect();
        let directories = replicas
            .iter()
            .map(|id| image.only_directory(*id))
            .collect();
        MetadataRecord::Partition(PartitionRecord {
            topic_id,
            partition: PartitionIndex::new(index),
            leader: isr.first().copied(),
            isr,
            removing_replicas: Vec::new(),
            adding_replicas: Vec::new(),
            replicas,
            leader_epoch: LeaderEpoch::new(0),
            partition_epoch: 0,
            directories,
            begun: None,
        })
    })
}

#[cfg(test)]
mod tests {
    use odradek_protocol::error_code::ErrorCode;

    use super::super::super::test_support::{apply, image_with_brokers, topic_ids};
    use super::*;

    fn topic(name: &str, partitions: i32, replication_factor: i16) -> NewTopic {
        NewTopic {
            name: name.to_owned(),
            partitions,
            replication_factor,
            ..NewTopic::default()
        }
    }

    fn assigned(name: &str, assignments: &[(i32, &[i32])]) -> NewTopic {
        NewTopic {
            assignments: assignments
                .iter()
                .map(|(index, ids)| {
                    let ids = ids.iter().copied().map(NodeId::new).collect();
                    (PartitionIndex::new(*index), ids)
                })
                .collect(),
            ..topic(name, -1, -1)
        }
    }

    fn known_config(configs: &ConfigMap) -> Result<ConfigMap, String> {
        match configs.keys().find(|key| *key != "retention.ms") {
            Some(key) => Err(format!("Unknown topic config name: {key}")),
            None => Ok(configs.clone()),
        }
    }

    fn create(
        image: &MetadataImage,
        topics: &[NewTopic],
    ) -> (Vec<MetadataRecord>, Vec<TopicOutcome>) {
        let rules = CreationRules {
            default_partitions: 3,
            default_replication_factor: 1,
            silent: BTreeSet::new(),
            check_configs: &known_config,
        };
        create_topics(image, topics, &rules, topic_ids())
    }

    fn refusal(image: &MetadataImage, topic: NewTopic) -> (ErrorCode, String) {
        let (records, outcomes) = create(image, &[topic]);
        assert!(records.is_empty());
        let refusal = outcomes[0].1.clone().expect_err("refused");
        (refusal.code(), refusal.to_string())
    }

    #[test]
    fn a_topic_with_defaults_gets_the_brokers_numbers() {
        let image = image_with_brokers(&[1]);
        let (records, outcomes) = create(&image, &[topic("a", -1, -1)]);
        let created = outcomes[0].1.as_ref().expect("created");
        assert_eq!((created.partitions, created.replication_factor), (3, 1));
        assert_eq!(records.len(), 4);
        let mut image = image;
        apply(&mut image, &records);
        let topic = image.topic("a").expect("exists");
        assert_eq!(topic.id, created.topic_id);
        assert_eq!(topic.partitions[2].leader, Some(NodeId::new(1)));
    }

    #[test]
    fn settings_stand_between_the_topic_and_its_partitions() {
        let mut wanted = topic("a", 1, 1);
        wanted.configs = vec![("retention.ms".to_owned(), Some("5".to_owned()))];
        let (records, _) = create(&image_with_brokers(&[1]), &[wanted]);
        assert!(matches!(
            &records[..],
            [
                MetadataRecord::Topic(_),
                MetadataRecord::Config(_),
                MetadataRecord::Partition(_)
            ]
        ));
    }

    #[test]
    fn each_topic_of_a_request_is_answered_for_itself_and_a_duplicate_once() {
        let mut image = image_with_brokers(&[1]);
        let (records, _) = create(&image, &[topic("exists", 1, 1)]);
        apply(&mut image, &records);
        let (records, outcomes) = create(
            &image,
            &[
                topic("exists", 1, 1),
                topic("twice", 1, 1),
                topic("good", 1, 1),
                topic("twice", 2, 1),
            ],
        );
        let answers: Vec<_> = outcomes
            .iter()
            .map(|(name, outcome)| {
                let code = outcome.as_ref().err().map(Refusal::code);
                (name.as_str(), code)
            })
            .collect();
        assert_eq!(
            answers,
            [
                ("exists", Some(ErrorCode::TopicAlreadyExists)),
                ("good", None),
                ("twice", Some(ErrorCode::InvalidRequest)),
            ]
        );
        assert_eq!(records.len(), 2);
    }

    #[test]
    fn names_that_collide_are_refused_within_a_request_too() {
        let mut image = image_with_brokers(&[1]);
        let (records, outcomes) = create(&image, &[topic("a.b", 1, 1), topic("a_b", 1, 1)]);
        assert!(outcomes[0].1.is_ok());
        assert_eq!(
            outcomes[1].1.as_ref().map_err(Refusal::code),
            Err(ErrorCode::InvalidTopicException)
        );
        apply(&mut image, &records);
        assert_eq!(
            refusal(&image, topic("a_b", 1, 1)),
            (
                ErrorCode::InvalidTopicException,
                "Topic 'a_b' collides with existing topic: a.b".to_owned()
            )
        );
        assert!(create(&image, &[topic("a-b", 1, 1)]).1[0].1.is_ok());
    }

    #[test]
    fn refusals_carry_the_code_and_sentence_of_kafka() {
        let image = image_with_brokers(&[1]);
        let mut null = topic("n", 1, 1);
        null.configs = vec![("retention.ms".to_owned(), None)];
        let mut unknown = topic("u", 1, 1);
        unknown.configs = vec![("no.such".to_owned(), Some("1".to_owned()))];
        let with_count = NewTopic {
            partitions: 1,
            ..assigned("z", &[(0, &[1])])
        };
        let with_factor = NewTopic {
            replication_factor: 1,
            ..assigned("z", &[(0, &[1])])
        };
        for (topic, code, message) in [
            (
                topic("", 1, 1),
                ErrorCode::InvalidTopicException,
                "Topic name is invalid: the empty string is not allowed",
            ),
            (
                topic("__cluster_metadata", 1, 1),
                ErrorCode::InvalidRequest,
                "Creation of internal topic __cluster_metadata is prohibited.",
            ),
            (
                topic("p", 0, 1),
                ErrorCode::InvalidPartitions,
                "Number of partitions was set to an invalid non-positive value.",
            ),
            (
                topic("r", -2, -2),
                ErrorCode::InvalidReplicationFactor,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            ),
            (
                topic("r", 1, 2),
                ErrorCode::InvalidReplicationFactor,
                "Unable to replicate the partition 2 time(s): The target replication factor of 2 \
                 cannot be reached because only 1 broker(s) are registered or some brokers have all \
                 their log directories cordoned.",
            ),
            (
                null,
                ErrorCode::InvalidConfig,
                "Null value not supported for topic configs: retention.ms",
            ),
            (
                unknown,
                ErrorCode::InvalidConfig,
                "Unknown topic config name: no.such",
            ),
            (
                with_factor,
                ErrorCode::InvalidRequest,
                "A manual partition assignment was specified, but replication factor was not set to \
                 -1.",
            ),
            (
                with_count,
                ErrorCode::InvalidRequest,
                "A manual partition assignment was specified, but numPartitions was not set to -1.",
            ),
            (
                assigned("z", &[(1, &[1])]),
                ErrorCode::InvalidReplicaAssignment,
                "partitions should be a consecutive 0-based integer sequence",
            ),
            (
                assigned("z", &[(0, &[1]), (0, &[1])]),
                ErrorCode::InvalidReplicaAssignment,
                "Found multiple manual partition assignments for partition 0",
            ),
            (
                topic("big", 10_001, 1),
                ErrorCode::PolicyViolation,
                "Excessively large number of partitions per request.",
            ),
        ] {
            assert_eq!(refusal(&image, topic), (code, message.to_owned()));
        }
    }

    #[test]
    fn a_manual_assignment_counts_its_own_partitions() {
        let image = image_with_brokers(&[1, 2]);
        let (_, outcomes) = create(&image, &[assigned("a", &[(1, &[2, 1]), (0, &[1, 2])])]);
        let created = outcomes[0].1.as_ref().expect("created");
        assert_eq!((created.partitions, created.replication_factor), (2, 2));
    }
}
