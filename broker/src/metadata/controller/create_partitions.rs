//! More partitions for topics that exist.

use std::collections::{BTreeSet, HashSet};

use odradek_protocol::ids::{NodeId, PartitionIndex, TopicId};

use super::super::image::MetadataImage;
use super::super::placement;
use super::super::records::MetadataRecord;
use super::super::refusal::{MAX_PARTITIONS_PER_REQUEST, Refusal};
use super::create_topics::new_partitions;

/// A topic that is to grow, as the request has it.
#[derive(Debug, Clone)]
pub struct MorePartitions {
    /// Name of the topic.
    pub name: String,
    /// Number of partitions it is to have.
    pub count: i32,
    /// Replicas of each new partition, if the request chose them.
    pub assignments: Option<Vec<Vec<NodeId>>>,
}

/// A topic that has grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grown {
    /// The topic.
    pub topic_id: TopicId,
    /// Number of its partitions before.
    pub partitions_before: usize,
    /// Number of its partitions now.
    pub partitions: usize,
}

/// Answer for one name of a request.
pub type GrowthOutcome = (String, Result<Grown, Refusal>);

/// Gives topics more partitions. Each is answered for itself, a name that stands in the request
/// twice once and first.
pub fn create_partitions(
    image: &MetadataImage,
    topics: &[MorePartitions],
    silent: &BTreeSet<NodeId>,
) -> (Vec<MetadataRecord>, Vec<GrowthOutcome>) {
    let mut seen = HashSet::new();
    let duplicates: HashSet<&str> = topics
        .iter()
        .map(|topic| topic.name.as_str())
        .filter(|name| !seen.insert(*name))
        .collect();
    let mut names: Vec<&str> = duplicates.iter().copied().collect();
    names.sort_unstable();
    let mut outcomes: Vec<GrowthOutcome> = names
        .into_iter()
        .map(|name| (name.to_owned(), Err(Refusal::DuplicateTopicName)))
        .collect();
    let wanted: Vec<_> = topics
        .iter()
        .filter(|topic| !duplicates.contains(topic.name.as_str()))
        .collect();
    let additional = wanted
        .iter()
        .map(|topic| {
            let current = image
                .topic(&topic.name)
                .map_or(0, |topic| topic.partitions.len());
            usize::try_from(topic.count)
                .unwrap_or(0)
                .saturating_sub(current)
        })
        .fold(0, usize::saturating_add);
    let mut records = Vec::new();
    for topic in wanted {
        let outcome = if additional > MAX_PARTITIONS_PER_REQUEST {
            Err(Refusal::TooManyAdditionalPartitions)
        } else {
            grow(image, topic, silent, &mut records)
        };
        outcomes.push((topic.name.clone(), outcome));
    }
    (records, outcomes)
}

fn grow(
    image: &MetadataImage,
    wanted: &MorePartitions,
    silent: &BTreeSet<NodeId>,
    records: &mut Vec<MetadataRecord>,
) -> Result<Grown, Refusal> {
    let topic = image.topic(&wanted.name).ok_or(Refusal::UnknownTopic)?;
    let current = topic.partitions.len();
    let not_an_increase = || Refusal::NotAnIncrease {
        topic: wanted.name.clone(),
        current,
        asked: wanted.count,
    };
    let count = usize::try_from(wanted.count).map_err(|_| not_an_increase())?;
    if count == current {
        return Err(Refusal::SamePartitionCount(current));
    }
    if count < current {
        return Err(not_an_increase());
    }
    if topic.is_internal() {
        return Err(Refusal::CoordinatorsTopic(wanted.name.clone()));
    }
    let additional = count - current;
    let first = i32::try_from(current).map_err(|_| Refusal::TooManyAdditionalPartitions)?;
    let replication_factor = topic.replication_factor();
    let replicas = match &wanted.assignments {
        Some(assignments) => {
            if assignments.len() != additional {
                return Err(Refusal::AssignmentCount {
                    additional,
                    assignments: assignments.len(),
                });
            }
            for (index, replicas) in (first..).map(PartitionIndex::new).zip(assignments) {
                placement::check_assignment(image, index, replicas, Some(replication_factor))?;
            }
            assignments.clone()
        }
        None => placement::place(image, silent, current, additional, replication_factor)?,
    };
    records.extend(new_partitions(image, topic.id, first, replicas));
    Ok(Grown {
        topic_id: topic.id,
        partitions_before: current,
        partitions: count,
    })
}

#[cfg(test)]
mod tests {
    use odradek_protocol::error_code::ErrorCode;

    use super::super::super::records::TopicRecord;
    use super::super::super::test_support::{apply, image_with_brokers};
    use super::*;

    /// One broker, and a topic `t` of three partitions.
    fn image() -> MetadataImage {
        let mut image = image_with_brokers(&[1]);
        let topic_id = TopicId::from_bytes([7; 16]);
        let mut records = vec![MetadataRecord::Topic(TopicRecord {
            name: "t".to_owned(),
            topic_id,
        })];
        let replicas = vec![vec![NodeId::new(1)]; 3];
        records.extend(new_partitions(&image, topic_id, 0, replicas));
        apply(&mut image, &records);
        image
    }

    fn more(name: &str, count: i32, assignments: Option<&[&[i32]]>) -> MorePartitions {
        let nodes = |ids: &&[i32]| ids.iter().copied().map(NodeId::new).collect();
        MorePartitions {
            name: name.to_owned(),
            count,
            assignments: assignments.map(|lists| lists.iter().map(nodes).collect()),
        }
    }

    #[test]
    fn new_partitions_follow_the_old_ones() {
        let mut image = image();
        let (records, outcomes) =
            create_partitions(&image, &[more("t", 5, None)], &BTreeSet::new());
        assert_eq!(outcomes[0].1.as_ref().map(|grown| grown.partitions), Ok(5));
        apply(&mut image, &records);
        assert_eq!(
            image.topic("t").map(|topic| topic.partitions.len()),
            Some(5)
        );
    }

    #[test]
    fn refusals_carry_the_code_and_sentence_of_kafka() {
        for (wanted, code, message) in [
            (
                more("t", 3, None),
                ErrorCode::InvalidPartitions,
                "Topic already has 3 partition(s).",
            ),
            (
                more("t", 2, None),
                ErrorCode::InvalidPartitions,
                "The topic t currently has 3 partition(s); 2 would not be an increase.",
            ),
            (
                more("t", -1, None),
                ErrorCode::InvalidPartitions,
                "The topic t currently has 3 partition(s); -1 would not be an increase.",
            ),
            (
                more("t", 4, Some(&[])),
                ErrorCode::InvalidReplicaAssignment,
                "Attempted to add 1 additional partition(s), but only 0 assignment(s) were \
                 specified.",
            ),
            (
                more("t", 4, Some(&[&[7]])),
                ErrorCode::InvalidReplicaAssignment,
                "The manual partition assignment includes broker 7, but no such broker is \
                 registered.",
            ),
            (
                more("t", 10_004, None),
                ErrorCode::PolicyViolation,
                "Excessively large number of additional partitions per request.",
            ),
        ] {
            let (records, outcomes) = create_partitions(&image(), &[wanted], &BTreeSet::new());
            assert!(records.is_empty());
            let refusal = outcomes[0].1.clone().expect_err("refused");
            assert_eq!(
                (refusal.code(), refusal.to_string().as_str()),
                (code, message)
            );
        }
        let (_, outcomes) = create_partitions(&image(), &[more("none", 1, None)], &BTreeSet::new());
        assert_eq!(outcomes[0].1, Err(Refusal::UnknownTopic));
    }

    /// Offsets that were committed, and open transactions, belonged to other partitions at once, where nobody
    /// knew them.
    #[test]
    fn the_topics_of_coordinators_keep_their_number_of_partitions() {
        let mut image = image();
        for (number, name) in [(8, "__consumer_offsets"), (9, "__transaction_state")] {
            let topic_id = TopicId::from_bytes([number; 16]);
            let mut records = vec![MetadataRecord::Topic(TopicRecord {
                name: name.to_owned(),
                topic_id,
            })];
            records.extend(new_partitions(
                &image,
                topic_id,
                0,
                vec![vec![NodeId::new(1)]],
            ));
            apply(&mut image, &records);
            for (count, code) in [
                (2, ErrorCode::InvalidRequest),
                (1, ErrorCode::InvalidPartitions),
                (0, ErrorCode::InvalidPartitions),
            ] {
                let asked = [more(name, count, None), more("t", 4, None)];
                let (records, outcomes) = create_partitions(&image, &asked, &BTreeSet::new());
                assert_eq!(records.len(), 1, "the other topic alone grows");
                let refusal = outcomes[0].1.clone().expect_err("refused");
                assert_eq!(refusal.code(), code, "{name} {count}");
                assert!(outcomes[1].1.is_ok());
            }
        }
    }

    #[test]
    fn a_name_that_stands_twice_in_a_request_is_refused_once() {
        let (records, outcomes) = create_partitions(
            &image(),
            &[more("t", 4, None), more("x", 4, None), more("t", 5, None)],
            &BTreeSet::new(),
        );
        assert!(records.is_empty());
        assert_eq!(
            outcomes,
            [
                ("t".to_owned(), Err(Refusal::DuplicateTopicName)),
                ("x".to_owned(), Err(Refusal::UnknownTopic)),
            ]
        );
    }
}
