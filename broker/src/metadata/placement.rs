//! Which brokers get the replicas of new partitions.
//!
//! Replicas and leaders go round the brokers that may lead, each partition starting one broker
//! further on than the one before. Racks are not looked at: a cluster of one node has none.

use odradek_protocol::ids::{NodeId, PartitionIndex};

use super::image::MetadataImage;
use super::refusal::Refusal;

/// Replicas of `count` partitions from index `first` on, the preferred leader first.
pub fn place(
    image: &MetadataImage,
    first: usize,
    count: usize,
    replication_factor: usize,
) -> Result<Vec<Vec<NodeId>>, Refusal> {
    let active: Vec<NodeId> = image
        .brokers()
        .filter(|(_, registration)| !registration.fenced)
        .map(|(id, _)| id)
        .collect();
    if active.is_empty() {
        return Err(Refusal::NoActiveBroker);
    }
    if replication_factor > active.len() {
        return Err(Refusal::TooFewBrokers {
            replication_factor,
            brokers: active.len(),
        });
    }
    let replicas = |start: usize| {
        let round = active.iter().cycle().skip(start % active.len());
        round.take(replication_factor).copied().collect()
    };
    Ok((first..first + count).map(replicas).collect())
}

/// Checks replicas that the request chose. `expected` is the number of replicas of the partitions
/// before this one.
pub fn check_assignment(
    image: &MetadataImage,
    partition: PartitionIndex,
    replicas: &[NodeId],
    expected: Option<usize>,
) -> Result<(), Refusal> {
    if replicas.is_empty() {
        return Err(Refusal::EmptyAssignment);
    }
    let mut sorted = replicas.to_vec();
    sorted.sort_unstable();
    let mut previous = None;
    for id in sorted {
        if image.broker(id).is_none() {
            return Err(Refusal::AssignmentToUnknownBroker(id));
        }
        if previous == Some(id) {
            return Err(Refusal::AssignmentRepeatsBroker(id));
        }
        previous = Some(id);
    }
    if let Some(expected) = expected
        && expected != replicas.len()
    {
        return Err(Refusal::UnevenAssignment {
            found: replicas.len(),
            expected,
        });
    }
    if !replicas.iter().any(|id| is_active(image, *id)) {
        return Err(Refusal::AssignmentToFencedBrokers(partition));
    }
    Ok(())
}

/// Whether the broker may lead.
pub fn is_active(image: &MetadataImage, id: NodeId) -> bool {
    image
        .broker(id)
        .is_some_and(|registration| !registration.fenced)
}

#[cfg(test)]
mod tests {
    use super::super::test_support::image_with_brokers;
    use super::*;

    fn nodes(ids: &[i32]) -> Vec<NodeId> {
        ids.iter().copied().map(NodeId::new).collect()
    }

    #[test]
    fn leaders_and_replicas_go_round_the_brokers() {
        let image = image_with_brokers(&[1, 2, 3]);
        assert_eq!(
            place(&image, 1, 3, 2),
            Ok(vec![nodes(&[2, 3]), nodes(&[3, 1]), nodes(&[1, 2])])
        );
    }

    #[test]
    fn more_replicas_than_brokers_are_refused() {
        assert_eq!(
            place(&image_with_brokers(&[1]), 0, 1, 2),
            Err(Refusal::TooFewBrokers {
                replication_factor: 2,
                brokers: 1
            })
        );
        assert_eq!(
            place(&image_with_brokers(&[]), 0, 1, 1),
            Err(Refusal::NoActiveBroker)
        );
    }

    #[test]
    fn a_manual_assignment_names_each_of_its_brokers_once() {
        let image = image_with_brokers(&[1, 2]);
        let check = |replicas: &[i32], expected| {
            check_assignment(&image, PartitionIndex::new(0), &nodes(replicas), expected)
        };
        assert_eq!(check(&[2, 1], Some(2)), Ok(()));
        assert_eq!(check(&[], None), Err(Refusal::EmptyAssignment));
        assert_eq!(
            check(&[9], None),
            Err(Refusal::AssignmentToUnknownBroker(NodeId::new(9)))
        );
        assert_eq!(
            check(&[1, 1], None),
            Err(Refusal::AssignmentRepeatsBroker(NodeId::new(1)))
        );
        assert_eq!(
            check(&[1], Some(2)),
            Err(Refusal::UnevenAssignment {
                found: 1,
                expected: 2
            })
        );
    }
}
