//! Replicas that have lost something: their votes, their log, or both. None of them may vote, or
//! count, until it has been taken out of the group and rebuilt.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use odradek_storage::SimDisk;

use super::failover::{Three, VOTERS, node};
use super::{
    data_dir, eventually, group_dir, group_spec, open_spec, produce, simulate, start_detecting_node,
};
use crate::{Group, RaftError, RaftNode};

/// Three voters with some batches, the third of which has been stopped.
async fn without_the_third() -> Three {
    let three = Three::start().await;
    for id in 1..40 {
        produce(&three.groups[0], id).await.unwrap();
    }
    let groups = three.groups.clone();
    eventually("all have all", &groups, || {
        groups.iter().all(|it| it.offsets() == groups[0].offsets())
    })
    .await;
    three.network.remove(node(3));
    three.nodes[2].abandon().await;
    three
}

fn remove_all(disk: &SimDisk, dir: &Path, which: impl Fn(&str) -> bool) {
    let disk = disk.shared();
    let mut removed = 0;
    for entry in disk.list(dir).unwrap() {
        if which(&entry.name) {
            disk.remove_file(&dir.join(&entry.name)).unwrap();
            removed += 1;
        }
    }
    assert!(removed > 0);
    disk.sync_dir(dir).unwrap();
}

/// Starts the third again as it was, or to wait until it is added.
async fn restart(three: &Three, bootstrap: bool) -> Result<(Arc<RaftNode>, Arc<Group>), RaftError> {
    let third = start_detecting_node(3, &three.disks[2], &three.network).unwrap();
    three.network.add(&third);
    let mut spec = group_spec(&VOTERS);
    spec.bootstrap = bootstrap;
    let group = open_spec(&third, spec).await?;
    Ok((third, group))
}

#[test]
fn a_replica_without_its_votes_stays_closed() {
    simulate(1, async {
        let three = without_the_third().await;
        remove_all(&three.disks[2], data_dir(), |name| name == "raft.votes");
        for bootstrap in [true, false] {
            let refused = restart(&three, bootstrap).await;
            assert!(matches!(refused, Err(RaftError::VoteLost { .. })));
        }
    });
}

#[test]
fn a_replica_that_never_had_an_entry_and_lost_its_vote_stays_closed() {
    simulate(1, async {
        let three = Three::start().await;
        let disk = SimDisk::new();
        // It is made, and hears of nobody.
        let network = crate::memory_network::MemoryNetwork::new();
        let third = start_detecting_node(3, &disk, &network).unwrap();
        open_spec(&third, group_spec(&VOTERS)).await.unwrap();
        third.abandon().await;
        // It opens again as it is.
        let third = start_detecting_node(3, &disk, &network).unwrap();
        open_spec(&third, group_spec(&VOTERS)).await.unwrap();
        third.abandon().await;
        // Its vote may have been given meanwhile.
        remove_all(&disk, data_dir(), |name| name == "raft.votes");
        let third = start_detecting_node(3, &disk, &three.network).unwrap();
        let refused = open_spec(&third, group_spec(&VOTERS)).await;
        assert!(matches!(refused, Err(RaftError::VoteLost { .. })));
    });
}

#[test]
fn a_replica_that_has_voted_and_has_no_log_is_not_made_anew() {
    simulate(1, async {
        let three = without_the_third().await;
        remove_all(&three.disks[2], &group_dir(), |_| true);
        let refused = restart(&three, true).await;
        assert!(matches!(refused, Err(RaftError::LogLost { .. })));
    });
}

#[test]
fn a_replica_that_lost_its_segments_stays_closed() {
    simulate(1, async {
        let three = without_the_third().await;
        remove_all(&three.disks[2], &group_dir(), |name| name != "raft.journal");
        let refused = restart(&three, true).await;
        assert!(matches!(refused, Err(RaftError::LogLost { .. })));
    });
}

#[test]
fn a_replica_that_lost_everything_is_taken_out_and_added_again() {
    simulate(1, async {
        let mut three = without_the_third().await;
        let leader = three.groups[0].clone();
        three.disks[2] = SimDisk::new();
        leader
            .change_voters(BTreeSet::from([node(1), node(2)]))
            .await
            .unwrap();
        let (third, group) = restart(&three, false).await.unwrap();
        assert!(group.membership().voters.is_empty(), "it waits");
        leader.add_learner(node(3)).await.unwrap();
        let progress = || {
            let all = leader.replication().unwrap();
            all.into_iter().find(|it| it.node == node(3)).unwrap()
        };
        assert!(!progress().voter);
        let groups = three.groups.clone();
        eventually("the third has caught up", &groups, || {
            progress().matched == leader.offsets().log_end.offset()
        })
        .await;
        let all: BTreeSet<_> = VOTERS.into_iter().map(node).collect();
        leader.change_voters(all.clone()).await.unwrap();
        assert!(leader.membership().is_settled_on(&all));
        assert!(progress().voter);
        // Asking again changes nothing.
        leader.change_voters(all).await.unwrap();
        three.nodes[2] = third;
        three.groups[2] = group;
        // And it is as good as any: the second stops, and then the leader.
        three.network.remove(node(2));
        three.nodes[1].abandon().await;
        produce(&leader, 100).await.unwrap();
        let (second, group) = three.start_node(2).await;
        three.nodes[1] = second;
        three.groups[1] = group;
        tokio::time::sleep(Duration::from_secs(1)).await;
        three.network.remove(node(1));
        three.nodes[0].abandon().await;
        let (_, took) = three.successor_of(0).await;
        assert!(took < Duration::from_secs(1), "{took:?}");
    });
}

#[test]
fn a_leader_that_is_left_out_hands_over_to_a_voter() {
    simulate(1, async {
        let three = Three::start().await;
        let leader = three.groups[0].clone();
        let others = BTreeSet::from([node(2), node(3)]);
        leader.change_voters(others.clone()).await.unwrap();
        let (successor, took) = three.successor_of(0).await;
        assert!(took < Duration::from_millis(300), "{took:?}");
        assert!(three.groups[successor].membership().is_settled_on(&others));
        assert!(!leader.leadership().is_ready_leader());
        produce(&three.groups[successor], 1).await.unwrap();
    });
}
