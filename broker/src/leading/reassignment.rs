//! The next step towards the replicas that the metadata wants: a comparison, no I/O.
//!
//! The partition's leader takes the steps: a new replica first learns the log, then votes, then the
//! old one goes. Each step is decided afresh from what the group and the metadata say now, so that a
//! crash, another leader or another wish at any moment leaves nothing to undo: the next look goes on
//! from there.
//!
//! Invariants:
//! - nobody becomes a voter before it holds what the log held a moment ago;
//! - the voters never change to a set most of whose members are behind;
//! - the leader makes itself superfluous only after another has taken over.

use std::collections::BTreeSet;

use odradek_protocol::ids::NodeId;

/// What the metadata wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// All replicas, the coming and the going among them; the preferred leader first.
    pub replicas: Vec<NodeId>,
    /// Those on their way out.
    pub removing: Vec<NodeId>,
    /// Those on their way in.
    pub adding: Vec<NodeId>,
}

impl Assignment {
    /// The replicas when all is done, in order.
    pub fn target(&self) -> impl Iterator<Item = NodeId> {
        self.replicas
            .iter()
            .copied()
            .filter(|node| !self.removing.contains(node))
    }
}

/// Who is in the group now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Who votes; while a change is under way, both the old and the new.
    pub voters: BTreeSet<NodeId>,
    /// Who only learns.
    pub learners: BTreeSet<NodeId>,
    /// Whether a change of the voters is under way.
    pub is_joint: bool,
}

/// What the leader has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: the group is as it should be.
    Settled,
    /// Nothing yet: these have to catch up first.
    WaitFor(Vec<NodeId>),
    /// Begin to replicate to it.
    AddLearner(NodeId),
    /// Change who votes.
    ChangeVoters(BTreeSet<NodeId>),
    /// Hand over to the first of these that takes it.
    HandOver(Vec<NodeId>),
    /// Stop replicating to it.
    RemoveLearner(NodeId),
}

/// Decides the next step of the leader `leader`.
pub fn next_step(
    leader: NodeId,
    assignment: &Assignment,
    members: &Members,
    is_caught_up: impl Fn(NodeId) -> bool,
) -> Step {
    let target: Vec<NodeId> = assignment.target().collect();
    let wanted: BTreeSet<NodeId> = target.iter().copied().collect();
    if wanted.is_empty() {
        // Not something that the metadata says; nothing is done rather than the wrong thing.
        return Step::Settled;
    }
    let missing: Vec<NodeId> = wanted.difference(&members.voters).copied().collect();
    if let Some(node) = missing.iter().find(|node| !members.learners.contains(node)) {
        return Step::AddLearner(*node);
    }
    let holds_log = |node: &NodeId| *node == leader || is_caught_up(*node);
    let behind = |nodes: &[NodeId]| -> Vec<NodeId> {
        nodes
            .iter()
            .copied()
            .filter(|node| !holds_log(node))
            .collect()
    };
    let coming_behind = behind(&missing);
    if !coming_behind.is_empty() {
        return match overdue(assignment, members, &missing, &coming_behind) {
            Some(voters) if wanted.contains(&leader) && !is_mostly(&behind(&voters), &voters) => {
                Step::ChangeVoters(voters.into_iter().collect())
            }
            _ => Step::WaitFor(coming_behind),
        };
    }
    if wanted.contains(&leader) {
        if members.voters != wanted || members.is_joint {
            let late = behind(&target);
            if is_mostly(&late, &target) {
                return Step::WaitFor(late);
            }
            return Step::ChangeVoters(wanted);
        }
    } else if !missing.is_empty() {
        return Step::ChangeVoters(members.voters.union(&wanted).copied().collect());
    } else {
        let ready: Vec<NodeId> = target.iter().copied().filter(&holds_log).collect();
        if ready.is_empty() {
            return Step::WaitFor(target);
        }
        return Step::HandOver(ready);
    }
    let stray = members.learners.iter().find(|node| !wanted.contains(node));
    stray.map_or(Step::Settled, |node| Step::RemoveLearner(*node))
}

fn is_mostly(some: &[NodeId], all: &[NodeId]) -> bool {
    some.len() * 2 >= all.len()
}

/// The voters with those that should have a vote already and hold the log: replicas that had to be given
/// up, or had lost their log, and are back. They do not wait for others that may never be. New replicas do:
/// what they take the place of is still there.
fn overdue(
    assignment: &Assignment,
    members: &Members,
    missing: &[NodeId],
    behind: &[NodeId],
) -> Option<Vec<NodeId>> {
    let back = missing
        .iter()
        .filter(|node| !behind.contains(node) && !assignment.adding.contains(node));
    let voters: Vec<NodeId> = members.voters.iter().chain(back).copied().collect();
    (voters.len() > members.voters.len() && !members.is_joint).then_some(voters)
}

#[cfg(test)]
mod tests {
    use rand::Rng;
    use rand::rngs::StdRng;

    use super::*;
    use crate::test_random::seeded;

    fn node(id: i32) -> NodeId {
        NodeId::new(id)
    }

    fn set(ids: &[i32]) -> BTreeSet<NodeId> {
        ids.iter().copied().map(node).collect()
    }

    fn assignment(replicas: &[i32], removing: &[i32]) -> Assignment {
        let nodes = |ids: &[i32]| ids.iter().copied().map(node).collect();
        Assignment {
            replicas: nodes(replicas),
            removing: nodes(removing),
            adding: vec![],
        }
    }

    fn members(voters: &[i32], learners: &[i32]) -> Members {
        Members {
            voters: set(voters),
            learners: set(learners),
            is_joint: false,
        }
    }

    fn step(leader: i32, wish: &Assignment, members: &Members, caught_up: &[i32]) -> Step {
        next_step(node(leader), wish, members, |id| {
            caught_up.contains(&id.get())
        })
    }

    #[test]
    fn a_replica_learns_then_votes_and_only_then_the_old_one_goes() {
        let wish = assignment(&[1, 2, 4, 3], &[3]);
        let before = members(&[1, 2, 3], &[]);
        assert_eq!(step(1, &wish, &before, &[2, 3]), Step::AddLearner(node(4)));
        let learning = members(&[1, 2, 3], &[4]);
        assert_eq!(
            step(1, &wish, &learning, &[2, 3]),
            Step::WaitFor(vec![node(4)])
        );
        assert_eq!(
            step(1, &wish, &learning, &[2, 3, 4]),
            Step::ChangeVoters(set(&[1, 2, 4]))
        );
        assert_eq!(
            step(1, &wish, &members(&[1, 2, 4], &[]), &[2, 4]),
            Step::Settled
        );
    }

    #[test]
    fn a_replica_that_is_back_votes_without_waiting_for_one_that_may_never_be() {
        let wish = assignment(&[1, 2, 3], &[]);
        let alone = members(&[1], &[2, 3]);
        assert_eq!(
            step(1, &wish, &alone, &[2]),
            Step::ChangeVoters(set(&[1, 2]))
        );
        assert_eq!(
            step(1, &wish, &members(&[1, 2], &[3]), &[2]),
            Step::WaitFor(vec![node(3)])
        );
        // New ones come together: until then those that they follow are enough.
        let growing = Assignment {
            adding: vec![node(2), node(3)],
            ..wish
        };
        assert_eq!(
            step(1, &growing, &alone, &[2]),
            Step::WaitFor(vec![node(3)])
        );
    }

    #[test]
    fn a_leader_that_is_to_go_hands_over_first() {
        let wish = assignment(&[2, 3, 4, 1], &[1]);
        let learning = members(&[1, 2, 3], &[4]);
        assert_eq!(
            step(1, &wish, &learning, &[2, 3, 4]),
            Step::ChangeVoters(set(&[1, 2, 3, 4]))
        );
        let all = members(&[1, 2, 3, 4], &[]);
        assert_eq!(
            step(1, &wish, &all, &[3, 4]),
            Step::HandOver(vec![node(3), node(4)])
        );
        assert_eq!(
            step(3, &wish, &all, &[2, 4]),
            Step::ChangeVoters(set(&[2, 3, 4]))
        );
    }

    #[test]
    fn a_change_that_was_cut_short_is_taken_up_again() {
        let joint = Members {
            is_joint: true,
            ..members(&[1, 2, 3, 4], &[])
        };
        let wish = assignment(&[1, 2, 4, 3], &[3]);
        assert_eq!(
            step(2, &wish, &joint, &[1, 4]),
            Step::ChangeVoters(set(&[1, 2, 4]))
        );
    }

    #[test]
    fn a_wish_that_is_withdrawn_takes_the_new_replica_out_again() {
        let wish = assignment(&[1, 2, 3, 4], &[4]);
        assert_eq!(
            step(1, &wish, &members(&[1, 2, 3], &[4]), &[2, 3]),
            Step::RemoveLearner(node(4))
        );
        assert_eq!(
            step(1, &wish, &members(&[1, 2, 3, 4], &[]), &[2, 3]),
            Step::ChangeVoters(set(&[1, 2, 3]))
        );
    }

    #[test]
    fn a_dead_replica_can_be_replaced() {
        let wish = assignment(&[1, 2, 4, 3], &[3]);
        assert_eq!(
            step(1, &wish, &members(&[1, 2, 3], &[4]), &[2, 4]),
            Step::ChangeVoters(set(&[1, 2, 4]))
        );
    }

    #[test]
    fn the_voters_never_become_a_set_that_is_mostly_behind() {
        let wish = assignment(&[1, 2, 3, 4, 5], &[4, 5]);
        assert_eq!(
            step(1, &wish, &members(&[1, 2, 3, 4, 5], &[]), &[4, 5]),
            Step::WaitFor(vec![node(2), node(3)])
        );
        assert_eq!(
            step(1, &wish, &members(&[1, 2, 3, 4, 5], &[]), &[2, 4, 5]),
            Step::ChangeVoters(set(&[1, 2, 3]))
        );
    }

    #[test]
    fn nobody_wanted_is_nothing_to_do() {
        let wish = assignment(&[1], &[1]);
        assert_eq!(step(1, &wish, &members(&[1], &[]), &[]), Step::Settled);
    }

    /// Whatever is wished for next, with crashes of the leader between any two steps, the group ends
    /// up as wished, and what has voted has always held the log.
    #[test]
    fn random_wishes_and_leaders_always_end_settled() {
        let mut rng = seeded();
        for _ in 0..500 {
            one_random_group(&mut rng);
        }
    }

    fn one_random_group(rng: &mut StdRng) {
        let mut group = members(&[1, 2, 3], &[]);
        let mut caught_up = set(&[1, 2, 3]);
        let mut leader = node(1);
        let mut wish = assignment(&[1, 2, 3], &[]);
        for _ in 0..6 {
            wish = random_wish(rng, &wish);
            let mut steps = 0;
            loop {
                steps += 1;
                assert!(steps < 200, "{wish:?} {group:?}");
                if rng.random_bool(0.05) && steps < 100 {
                    // Withdrawn and replaced halfway.
                    wish = random_wish(rng, &wish);
                }
                if rng.random_bool(0.1) {
                    let ready: Vec<_> = group.voters.intersection(&caught_up).collect();
                    leader = *ready[rng.random_range(0..ready.len())];
                }
                let step = next_step(leader, &wish, &group, |id| caught_up.contains(&id));
                match step {
                    Step::Settled => break,
                    Step::WaitFor(nodes) => caught_up.extend(nodes),
                    Step::AddLearner(id) => {
                        caught_up.remove(&id);
                        assert!(group.learners.insert(id));
                    }
                    Step::ChangeVoters(voters) => {
                        assert!(voters.contains(&leader));
                        assert!(
                            voters
                                .difference(&group.voters)
                                .all(|id| caught_up.contains(id))
                        );
                        if rng.random_bool(0.2) {
                            group.is_joint = true;
                            group.voters.extend(&voters);
                        } else {
                            group.is_joint = false;
                            group.voters.clone_from(&voters);
                        }
                        group.learners.retain(|id| !group.voters.contains(id));
                    }
                    Step::HandOver(candidates) => {
                        assert!(candidates.iter().all(|id| group.voters.contains(id)));
                        leader = candidates[rng.random_range(0..candidates.len())];
                    }
                    Step::RemoveLearner(id) => assert!(group.learners.remove(&id)),
                }
            }
            let target: BTreeSet<_> = wish.target().collect();
            assert_eq!(group.voters, target);
            assert!(group.learners.is_empty() && !group.is_joint);
            assert!(target.contains(&leader));
        }
    }

    fn random_wish(rng: &mut StdRng, before: &Assignment) -> Assignment {
        let mut ids: Vec<i32> = (1..8).collect();
        for at in (1..ids.len()).rev() {
            ids.swap(at, rng.random_range(0..=at));
        }
        ids.truncate(rng.random_range(1..5));
        let removing: Vec<i32> = before
            .replicas
            .iter()
            .map(|id| id.get())
            .filter(|id| !ids.contains(id))
            .collect();
        let replicas: Vec<i32> = ids.iter().chain(&removing).copied().collect();
        assignment(&replicas, &removing)
    }
}
