//! What a leader says of its partition, beside what the metadata says: a comparison, no I/O.

use std::collections::BTreeSet;

use odradek_protocol::ids::{LeaderEpoch, NodeId};
use odradek_raft::{GroupKey, GroupMembership};

use super::reassignment::{Assignment, Members, Step};
use crate::metadata::image::PartitionState;
use crate::metadata::leader_report::LeaderReport;

/// The members of a group as the reassignment sees them. A change that is not committed yet counts as
/// under way.
pub(super) fn members(membership: &GroupMembership) -> Members {
    Members {
        voters: membership.voters.clone(),
        learners: membership.learners.clone(),
        is_joint: membership.joint.is_some() || !membership.committed,
    }
}

/// What the metadata wants.
pub(super) fn assignment(state: &PartitionState) -> Assignment {
    Assignment {
        replicas: state.replicas.clone(),
        removing: state.removing_replicas.clone(),
        adding: state.adding_replicas.clone(),
    }
}

/// The report that brings the metadata to what is; `None` where it says so already, or knows of a
/// later term or of another incarnation. `step` is what remains to be done about the replicas.
pub(super) fn report(
    key: GroupKey,
    leader: NodeId,
    epoch: LeaderEpoch,
    in_sync: &[NodeId],
    step: &Step,
    state: &PartitionState,
) -> Option<LeaderReport> {
    if state.leader_epoch > epoch || state.incarnation() != key.incarnation {
        return None;
    }
    let set = |nodes: &[NodeId]| nodes.iter().copied().collect::<BTreeSet<_>>();
    let reassigned = (state.is_reassigning() && *step == Step::Settled)
        .then(|| assignment(state).target().collect());
    let is_known = state.leader == Some(leader)
        && state.leader_epoch == epoch
        && set(&state.isr) == set(in_sync)
        && reassigned.is_none();
    (!is_known).then(|| LeaderReport {
        topic_id: key.topic_id,
        partition: key.partition,
        incarnation: key.incarnation,
        leader,
        epoch,
        isr: in_sync.to_vec(),
        reassigned,
    })
}

#[cfg(test)]
mod tests {
    use odradek_protocol::ids::{PartitionIndex, TopicId};

    use super::*;

    fn nodes(ids: &[i32]) -> Vec<NodeId> {
        ids.iter().copied().map(NodeId::new).collect()
    }

    fn state(leader: i32, epoch: i32, isr: &[i32]) -> PartitionState {
        PartitionState {
            replicas: nodes(&[1, 2, 3]),
            isr: nodes(isr),
            removing_replicas: vec![],
            adding_replicas: vec![],
            leader: Some(NodeId::new(leader)),
            leader_epoch: LeaderEpoch::new(epoch),
            partition_epoch: 0,
            directories: vec![],
            begun: None,
        }
    }

    fn told(state: &PartitionState, epoch: i32, isr: &[i32], step: &Step) -> Option<LeaderReport> {
        let key = GroupKey::new(TopicId::from_bytes([1; 16]), PartitionIndex::new(0));
        let epoch = LeaderEpoch::new(epoch);
        report(key, NodeId::new(1), epoch, &nodes(isr), step, state)
    }

    #[test]
    fn only_what_the_metadata_does_not_say_is_told() {
        let settled = Step::Settled;
        assert_eq!(told(&state(1, 4, &[2, 1]), 4, &[1, 2], &settled), None);
        assert!(told(&state(2, 3, &[1, 2]), 4, &[1, 2], &settled).is_some());
        assert!(told(&state(1, 3, &[1, 2]), 4, &[1, 2], &settled).is_some());
        assert!(told(&state(1, 4, &[1, 2]), 4, &[1], &settled).is_some());
        assert_eq!(
            told(&state(2, 5, &[1, 2]), 4, &[1], &settled),
            None,
            "another has led since"
        );
    }

    #[test]
    fn a_reassignment_is_reported_once_nothing_remains_to_be_done() {
        let mut moving = state(1, 4, &[1, 2]);
        moving.replicas = nodes(&[1, 2, 4, 3]);
        moving.adding_replicas = nodes(&[4]);
        moving.removing_replicas = nodes(&[3]);
        let underway = Step::WaitFor(nodes(&[4]));
        assert_eq!(told(&moving, 4, &[1, 2], &underway), None);
        let done = told(&moving, 4, &[1, 2], &Step::Settled).expect("to be told");
        assert_eq!(done.reassigned, Some(nodes(&[1, 2, 4])));
    }
}
