//! Moving partitions to other brokers: start, change, cancel.
//!
//! A reassignment is what the metadata wants; the partition's leader carries it out and reports when
//! it is done. Cancelling one is a reassignment back to the replicas that there were, because the
//! partition's group may have changed its voters by then: nobody throws a replica away that it may
//! need.

use odradek_protocol::ids::{NodeId, PartitionIndex, TopicId};

use super::super::image::{MetadataImage, PartitionState};
use super::super::placement;
use super::super::records::{MetadataRecord, PartitionChangeRecord};
use super::super::refusal::Refusal;
use super::leader_reports::same_nodes;

/// What a request wants of one partition.
#[derive(Debug, Clone)]
pub struct Reassignment {
    /// Name of the topic.
    pub topic: String,
    /// The partition.
    pub partition: PartitionIndex,
    /// Where it is to go; `None` cancels.
    pub replicas: Option<Vec<NodeId>>,
}

/// Takes down reassignments, each answered for itself. `may_resize` says whether the number of
/// replicas may change.
pub fn alter_reassignments(
    image: &MetadataImage,
    wanted: &[Reassignment],
    may_resize: bool,
) -> (Vec<MetadataRecord>, Vec<Result<(), Refusal>>) {
    let mut records = Vec::new();
    let outcomes = wanted
        .iter()
        .map(|wanted| {
            let record = alter(image, wanted, may_resize)?;
            records.extend(record.map(MetadataRecord::PartitionChange));
            Ok(())
        })
        .collect();
    (records, outcomes)
}

fn alter(
    image: &MetadataImage,
    wanted: &Reassignment,
    may_resize: bool,
) -> Result<Option<PartitionChangeRecord>, Refusal> {
    let topic = image
        .topic(&wanted.topic)
        .ok_or_else(|| Refusal::NoSuchTopic(wanted.topic.clone()))?;
    let state = topic
        .partition(wanted.partition)
        .ok_or_else(|| Refusal::NoSuchPartition {
            topic: wanted.topic.clone(),
            partition: wanted.partition,
        })?;
    let target = match &wanted.replicas {
        Some(target) => {
            placement::check_assignment(image, wanted.partition, target, None)?;
            let (from, to) = (settled(state).len(), target.len());
            if !may_resize && from != to {
                return Err(Refusal::ReplicationFactorChanges { from, to });
            }
            target.clone()
        }
        None if state.is_reassigning() => settled(state),
        None => return Err(Refusal::NoReassignment),
    };
    Ok(change(image, topic.id, wanted.partition, state, target))
}

/// The replicas without those that are still on their way in.
fn settled(state: &PartitionState) -> Vec<NodeId> {
    without(&state.replicas, &state.adding_replicas)
}

fn without(nodes: &[NodeId], others: &[NodeId]) -> Vec<NodeId> {
    nodes
        .iter()
        .copied()
        .filter(|id| !others.contains(id))
        .collect()
}

/// The change that has the partition go to `target`; `None` if it is there or on its way.
fn change(
    image: &MetadataImage,
    topic_id: TopicId,
    partition: PartitionIndex,
    state: &PartitionState,
    target: Vec<NodeId>,
) -> Option<PartitionChangeRecord> {
    let adding = without(&target, &settled(state));
    let removing = without(&state.replicas, &target);
    let replicas = [target, removing.clone()].concat();
    let is_known = replicas == state.replicas
        && same_nodes(&adding, &state.adding_replicas)
        && same_nodes(&removing, &state.removing_replicas);
    if is_known {
        return None;
    }
    let directories = replicas
        .iter()
        .map(|id| {
            state
                .directory(*id)
                .unwrap_or_else(|| image.only_directory(*id))
        })
        .collect();
    Some(PartitionChangeRecord {
        replicas: Some(replicas),
        adding_replicas: Some(adding),
        removing_replicas: Some(removing),
        directories: Some(directories),
        ..PartitionChangeRecord::of(topic_id, partition)
    })
}

#[cfg(test)]
mod tests {
    use odradek_protocol::error_code::ErrorCode;

    use super::super::super::test_support::{apply, image_with_brokers, nodes, topic};
    use super::*;

    fn image() -> MetadataImage {
        let mut image = image_with_brokers(&[1, 2, 3, 4, 5]);
        apply(&mut image, &topic("t", 7, &[&[1, 2, 3]]));
        image
    }

    fn wanted(replicas: Option<&[i32]>) -> Reassignment {
        Reassignment {
            topic: "t".to_owned(),
            partition: PartitionIndex::new(0),
            replicas: replicas.map(nodes),
        }
    }

    fn ask(image: &mut MetadataImage, replicas: Option<&[i32]>) -> Result<(), Refusal> {
        let (records, outcomes) = alter_reassignments(image, &[wanted(replicas)], true);
        apply(image, &records);
        outcomes[0].clone()
    }

    fn shown(image: &MetadataImage) -> (Vec<NodeId>, Vec<NodeId>, Vec<NodeId>) {
        let state = &image.topic("t").expect("exists").partitions[0];
        (
            state.replicas.clone(),
            state.adding_replicas.clone(),
            state.removing_replicas.clone(),
        )
    }

    #[test]
    fn a_reassignment_keeps_the_old_replicas_until_it_is_done() {
        let mut image = image();
        ask(&mut image, Some(&[4, 2, 1])).expect("starts");
        assert_eq!(
            shown(&image),
            (nodes(&[4, 2, 1, 3]), nodes(&[4]), nodes(&[3]))
        );
        let (again, _) = alter_reassignments(&image, &[wanted(Some(&[4, 2, 1]))], true);
        assert_eq!(again, []);
    }

    #[test]
    fn a_reassignment_during_one_takes_its_place() {
        let mut image = image();
        ask(&mut image, Some(&[4, 2, 1])).expect("starts");
        ask(&mut image, Some(&[5, 2, 3])).expect("changes");
        assert_eq!(
            shown(&image),
            (nodes(&[5, 2, 3, 4, 1]), nodes(&[5]), nodes(&[4, 1]))
        );
    }

    #[test]
    fn a_cancelled_one_goes_back_and_throws_no_replica_away_before() {
        let mut image = image();
        assert_eq!(ask(&mut image, None), Err(Refusal::NoReassignment));
        ask(&mut image, Some(&[4, 2, 1])).expect("starts");
        ask(&mut image, None).expect("goes back");
        assert_eq!(
            shown(&image),
            (nodes(&[2, 1, 3, 4]), nodes(&[]), nodes(&[4]))
        );
    }

    #[test]
    fn the_same_replicas_in_another_order_are_done_at_once() {
        let mut image = image();
        ask(&mut image, Some(&[3, 2, 1])).expect("taken");
        assert_eq!(shown(&image), (nodes(&[3, 2, 1]), nodes(&[]), nodes(&[])));
    }

    #[test]
    fn refusals_carry_the_codes_of_kafka() {
        let image = image();
        let code = |wanted: Reassignment, may_resize| {
            let (records, outcomes) = alter_reassignments(&image, &[wanted], may_resize);
            assert_eq!(records, []);
            outcomes[0].clone().expect_err("refused").code()
        };
        assert_eq!(
            code(wanted(Some(&[1, 2, 9])), true),
            ErrorCode::InvalidReplicaAssignment
        );
        assert_eq!(
            code(wanted(Some(&[])), true),
            ErrorCode::InvalidReplicaAssignment
        );
        assert_eq!(
            code(wanted(Some(&[1, 2])), false),
            ErrorCode::InvalidReplicationFactor
        );
        let elsewhere = Reassignment {
            topic: "none".to_owned(),
            ..wanted(None)
        };
        assert_eq!(code(elsewhere, true), ErrorCode::UnknownTopicOrPartition);
        let beyond = Reassignment {
            partition: PartitionIndex::new(1),
            ..wanted(None)
        };
        assert_eq!(code(beyond, true), ErrorCode::UnknownTopicOrPartition);
    }
}
