//! What a leader tells of its voters is undone by nothing, and one that is left out leaves a group that goes on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use odradek_storage::SimDisk;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::failover::node;
use super::{
    eventually, for_seeds, group_spec, open_spec, produce, simulate, start_detecting_node,
};
use crate::memory_network::MemoryNetwork;
use crate::{Group, RaftError, RaftNode};

/// The first `count` nodes with the group of `voters`, in which the others have no part yet.
async fn start(
    network: &MemoryNetwork,
    count: i32,
    voters: &[i32],
) -> (Vec<Arc<RaftNode>>, Vec<Arc<Group>>) {
    let (mut nodes, mut groups) = (Vec::new(), Vec::new());
    for id in 1..=count {
        let started = start_detecting_node(id, &SimDisk::new(), network).unwrap();
        network.add(&started);
        let mut spec = group_spec(voters);
        if !voters.contains(&id) {
            spec.voters.clear();
            spec.bootstrap = false;
        }
        groups.push(open_spec(&started, spec).await.unwrap());
        nodes.push(started);
    }
    (nodes, groups)
}

/// Nodes 1 and 2 have a vote and 3 is given one. Whoever counts on three voters from when it is told of them
/// loses any one of them, here the leader, and the group goes on.
#[test]
fn a_voter_that_is_told_of_counts_whoever_is_lost_at_that_moment() {
    for_seeds(40, |seed| async move {
        let mut random = StdRng::seed_from_u64(seed);
        let network = MemoryNetwork::new();
        network.break_streams_after(Duration::from_secs(1));
        for one in 1..=3 {
            for other in 1..=3 {
                let delay = Duration::from_millis(random.random_range(1..40));
                network.delay(node(one), node(other), delay);
            }
        }
        let (nodes, groups) = start(&network, 3, &[1, 2]).await;
        let leader = groups[0].clone();
        eventually("the first leads", &groups, || leader.holds_lease()).await;
        produce(&leader, 1).await.unwrap();
        leader.add_learner(node(3)).await.unwrap();
        eventually("the third has the log", &groups, || {
            groups[2].offsets() == leader.offsets()
        })
        .await;
        let three: BTreeSet<_> = [1, 2, 3].map(node).into();
        let changing = leader.clone();
        let wanted = three.clone();
        tokio::spawn(async move { changing.change_voters(wanted).await });
        while leader.settled_voters() != three {
            assert_eq!(leader.settled_voters(), BTreeSet::from([1, 2].map(node)));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        network.remove(node(1));
        nodes[0].abandon().await;
        let left = &groups[1..];
        eventually("another leads", left, || {
            left.iter().any(|group| group.holds_lease())
        })
        .await;
        let successor = left.iter().find(|group| group.holds_lease()).unwrap();
        produce(successor, 2).await.unwrap();
        assert_eq!(successor.settled_voters(), three);
    });
}

/// Nodes 2, 3 and 4 are about to take the place of 1, 2 and 3, and while both sets decide 3, 4 and 5 are wanted instead.
/// The leader, 1, is in neither of them: it brings the first change to its end, and its successor makes the second.
#[test]
fn a_leader_that_two_changes_leave_out_finishes_the_one_that_is_under_way() {
    simulate(1, async {
        let network = MemoryNetwork::new();
        for one in 1..=5 {
            for other in 1..=5 {
                network.delay(node(one), node(other), Duration::from_millis(5));
            }
        }
        let (_nodes, groups) = start(&network, 5, &[1, 2, 3]).await;
        let leader = groups[0].clone();
        eventually("the first leads", &groups, || leader.holds_lease()).await;
        produce(&leader, 1).await.unwrap();
        for learner in [4, 5] {
            leader.add_learner(node(learner)).await.unwrap();
        }
        eventually("the learners have the log", &groups, || {
            groups[3..]
                .iter()
                .all(|group| group.offsets() == leader.offsets())
        })
        .await;
        let both_decide = async {
            while leader.membership().joint.is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            _ = leader.change_voters(BTreeSet::from([2, 3, 4].map(node))) => panic!("it is over"),
            () = both_decide => {}
        }
        let wanted = BTreeSet::from([3, 4, 5].map(node));
        let changed = leader.change_voters(wanted.clone()).await;
        assert!(
            matches!(changed, Err(RaftError::NotLeader { .. })),
            "it leads no more: {changed:?}"
        );
        eventually("another leads", &groups, || {
            groups[1..4].iter().any(|group| group.holds_lease())
        })
        .await;
        let successor = groups.iter().find(|group| group.holds_lease()).unwrap();
        successor.add_learner(node(5)).await.unwrap();
        successor.change_voters(wanted.clone()).await.unwrap();
        assert_eq!(successor.settled_voters(), wanted);
    });
}
