//! Replicas that have lost something: their votes, their log, or both. None of them may vote, or
//! count, until it has been taken out of the group and rebuilt.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use odradek_storage::SimDisk;

use super::failover::{Three, VOTERS, node};
use super::{
    data_dir, eventually, group_dir, group_spec, key, open_spec, produce, simulate,
    start_detecting_node,
};
use crate::rpc::VoteRequest;
use crate::types::{Membership, Vote};
use crate::{Group, GroupMembership, RaftError, RaftNode};

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

/// By the members alone it would not be listened to: its removal is committed before it has handed over.
#[test]
fn a_leader_that_is_left_out_is_taken_for_the_leader_until_it_has_handed_over() {
    simulate(1, async {
        let three = Three::start().await;
        let (leader, follower) = (three.groups[0].clone(), three.groups[2].clone());
        let term = leader.leadership().epoch().unwrap().get() as u64;
        let others = BTreeSet::from([node(2), node(3)]);
        let changing = leader.clone();
        let wanted = others.clone();
        tokio::spawn(async move { changing.change_voters(wanted).await });
        while !follower.membership().is_settled_on(&others) {
            assert!(follower.is_led_by(node(1), term) && follower.may_be_led_by(node(1)));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(follower.is_led_by(node(1), term) && !follower.may_be_led_by(node(1)));
        assert!(!follower.has_member(node(1)));
        // Nobody else led this term, and it leads no other.
        assert!(!follower.is_led_by(node(2), term) && !follower.is_led_by(node(3), term));
        assert!(!follower.is_led_by(node(1), term + 1));
        let (successor, _) = three.successor_of(0).await;
        let epoch = three.groups[successor].leadership().epoch().unwrap();
        eventually("the new leader is followed", &three.groups, || {
            follower.is_led_by(VOTERS.map(node)[successor], epoch.get() as u64)
        })
        .await;
        assert!(!follower.is_led_by(node(1), term));
    });
}

/// A candidate that fails has the leader that was left out vote in a later term; the voters must
/// hear nevertheless that it leads no more.
#[test]
fn a_leader_that_is_left_out_goes_on_offering_after_an_election_that_failed() {
    simulate(1, async {
        let three = Three::start().await;
        let leader = three.groups[0].clone();
        let term = leader.leadership().epoch().unwrap().get() as u64;
        let others = BTreeSet::from([node(2), node(3)]);
        let changing = leader.clone();
        let wanted = others.clone();
        tokio::spawn(async move { changing.change_voters(wanted).await });
        while !leader.membership().is_settled_on(&others) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The first offer is lost.
        three.network.cut(node(1), node(2));
        three.network.cut(node(1), node(3));
        tokio::time::sleep(Duration::from_millis(20)).await;
        let candidacy = VoteRequest::new(Vote::new(term + 1, 3), leader.core.last_log_id());
        let reply = three.nodes[0].serve_vote(key(), candidacy, false).await;
        assert!(reply.unwrap().vote_granted);
        three.network.heal();
        let (_, took) = three.successor_of(0).await;
        assert!(took < Duration::from_secs(4), "{took:?}");
    });
}

/// The third starts anew on an empty disk.
async fn restart_empty(three: &mut Three) -> Arc<Group> {
    three.disks[2] = SimDisk::new();
    let (third, group) = restart(three, false).await.unwrap();
    three.nodes[2] = third;
    three.groups[2] = group.clone();
    group
}

#[test]
fn a_voter_that_lost_everything_is_taken_out_by_the_leader() {
    simulate(1, async {
        let mut three = without_the_third().await;
        let leader = three.groups[0].clone();
        let third = restart_empty(&mut three).await;
        let all: BTreeSet<_> = VOTERS.into_iter().map(node).collect();
        let groups = three.groups.clone();
        eventually("it is a voter no more", &groups, || {
            let left = BTreeSet::from([node(1), node(2)]);
            leader.membership().is_settled_on(&left)
        })
        .await;
        assert!(!third.is_whole());
        assert_eq!(
            third.offsets().log_end.get(),
            0,
            "nothing was taken from it"
        );
        let refused = leader.change_voters(all.clone()).await;
        assert!(matches!(refused, Err(RaftError::MembershipRefused(_))));
        leader.add_learner(node(3)).await.unwrap();
        eventually("it is given the log again", &groups, || {
            third.offsets() == leader.offsets()
        })
        .await;
        leader.change_voters(all.clone()).await.unwrap();
        assert!(leader.membership().is_settled_on(&all));
        assert!(leader.lost_replicas().is_empty());
        assert!(third.may_stand().await && third.is_whole());
    });
}

/// What only the leader and the lost disk had must not be lost with the leader away.
#[test]
fn a_voter_that_lost_everything_elects_nobody_who_lacks_what_it_had_stored() {
    simulate(1, async {
        let mut three = Three::start().await;
        produce(&three.groups[0], 1).await.unwrap();
        three.network.cut(node(1), node(2));
        three.network.cut(node(3), node(2));
        let last = produce(&three.groups[0], 2).await.unwrap().last_offset;
        for index in [0, 2] {
            three.network.remove(node(VOTERS[index]));
            three.nodes[index].abandon().await;
        }
        let third = restart_empty(&mut three).await;
        three.network.heal();
        for _ in 0..200 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert!(!three.groups[1].leadership().is_ready_leader());
            assert_eq!(third.offsets().log_end.get(), 0);
        }
        let (first, group) = three.start_node(1).await;
        three.nodes[0] = first;
        three.groups[0] = group;
        let groups = three.groups.clone();
        eventually("the one that has everything leads", &groups, || {
            groups[0].holds_lease() && groups[1].offsets() == groups[0].offsets()
        })
        .await;
        assert!(groups[1].offsets().high_watermark.offset() > last);
    });
}

#[test]
fn a_voter_that_comes_late_to_a_new_group_is_given_the_log_in_place() {
    simulate(1, async {
        let mut three = Three::start().await;
        // It was never there: its disk is new, and nobody has heard of it.
        three.network.remove(node(3));
        three.nodes[2].abandon().await;
        let (first, second) = (three.groups[0].clone(), three.groups[1].clone());
        for index in [0, 1] {
            three.network.remove(node(VOTERS[index]));
            three.nodes[index].abandon().await;
            three.disks[index] = SimDisk::new();
        }
        drop((first, second));
        for index in [1, 0] {
            let (node, group) = three.start_node(VOTERS[index]).await;
            three.nodes[index] = node;
            three.groups[index] = group;
        }
        let leader = three.groups[0].clone();
        eventually("the first leads", &three.groups[..2], || {
            leader.holds_lease()
        })
        .await;
        produce(&leader, 1).await.unwrap();
        let third = restart_empty(&mut three).await;
        let groups = three.groups.clone();
        eventually("the third has the log", &groups, || {
            third.offsets() == leader.offsets()
        })
        .await;
        assert!(leader.membership().voters.contains(&node(3)));
        assert!(third.may_stand().await);
    });
}

#[test]
fn of_two_voters_one_that_lost_everything_is_given_it_in_place_whatever_was_restarted() {
    simulate(1, async {
        let network = crate::memory_network::MemoryNetwork::new();
        network.break_streams_after(Duration::from_secs(1));
        let disks = [SimDisk::new(), SimDisk::new()];
        let start = async |disk: &SimDisk, id: i32, bootstrap: bool| {
            let node = start_detecting_node(id, disk, &network).unwrap();
            network.add(&node);
            let mut spec = group_spec(&[1, 2]);
            spec.bootstrap = bootstrap;
            let group = open_spec(&node, spec).await.unwrap();
            (node, group)
        };
        let (second_node, _second) = start(&disks[1], 2, true).await;
        let (first_node, first) = start(&disks[0], 1, true).await;
        eventually("the first leads", std::slice::from_ref(&first), || {
            first.holds_lease()
        })
        .await;
        for id in 1..40 {
            produce(&first, id).await.unwrap();
        }
        let end = first.offsets().log_end;
        for (id, stopped) in [(1, first_node), (2, second_node)] {
            network.remove(node(id));
            stopped.abandon().await;
        }
        let empty = SimDisk::new();
        let (_second_node, second) = start(&empty, 2, false).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(second.offsets().log_end.get(), 0);
        let (_first_node, first) = start(&disks[0], 1, true).await;
        let groups = [first.clone(), second.clone()];
        eventually("both have all", &groups, || {
            first.holds_lease() && second.offsets() == first.offsets()
        })
        .await;
        assert_eq!(second.offsets().log_end, end);
        produce(&first, 100).await.unwrap();
        assert!(second.may_stand().await);
        // And it may take over.
        first.transfer_leader(node(2)).await.unwrap();
        eventually("the second leads", &groups, || second.holds_lease()).await;
        produce(&second, 101).await.unwrap();
    });
}

/// A voter that was left behind by a move must not clear anybody, however few voters it knows of.
#[test]
fn who_clears_in_place_is_in_every_majority_now_and_after_the_change() {
    let needs = |configs: &[&[u64]], id: i32| {
        let sets = configs.iter().map(|set| set.iter().copied().collect());
        let membership = Membership::new_with_defaults(sets.collect(), []);
        GroupMembership::of(&membership, true).needs(node(id))
    };
    assert!(needs(&[&[1]], 1));
    assert!(needs(&[&[1, 2]], 1));
    assert!(needs(&[&[1, 2], &[1, 3]], 1));
    assert!(!needs(&[&[1, 2], &[1, 3]], 2));
    assert!(!needs(&[&[2, 3], &[1, 4]], 2), "1 and 4 go on without it");
    assert!(!needs(&[&[1, 2, 3]], 1));
    assert!(!needs(&[&[1, 2]], 3));
}
