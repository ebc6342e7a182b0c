//! A partition's next group: begun by one replica, joined by the others, and never merged with the one
//! before it, whoever of that is still at work.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::ids::{LeaderEpoch, Offset};
use odradek_storage::SimDisk;

use super::failover::{Three, VOTERS, node};
use super::{
    batches, eventually, group_dir, group_spec, key, open_spec, produce, simulate,
    start_detecting_node,
};
use crate::entry_map::{EntryMap, Purged};
use crate::journal::Journal;
use crate::memory_network::MemoryNetwork;
use crate::node::bootstrap_membership;
use crate::types::{StoredMembership, log_id};
use crate::{
    Group, GroupSpec, Incarnation, Leadership, RaftError, RaftIndex, RaftNode, Standing, Succession,
};

const NEXT: Incarnation = Incarnation::new(1_005);

/// How a group of three is opened in the incarnation that the third begins.
fn next_spec(standing: &Standing) -> GroupSpec {
    let mut spec = group_spec(&VOTERS);
    spec.key = spec.key.in_incarnation(NEXT);
    spec.bootstrap = false;
    spec.succession = Some(Succession {
        predecessor: standing.incarnation,
        founder: node(3),
        kept_end: standing.committed_end,
        log_start: standing.log_start,
    });
    spec
}

fn contents(group: &Group) -> Vec<u64> {
    let from = group.reader().log_start();
    batches(group, from, group.reader().log_end())
        .into_values()
        .map(|(id, _)| id)
        .collect()
}

/// Three voters, of which the third is cut off from the others, who go on.
async fn split() -> (Three, Vec<u64>) {
    let three = Three::start().await;
    for id in 1..40 {
        produce(&three.groups[0], id).await.unwrap();
    }
    let groups = three.groups.clone();
    eventually("all have all", &groups, || {
        groups.iter().all(|it| it.offsets() == groups[0].offsets())
    })
    .await;
    let shared = contents(&three.groups[2]);
    three.network.cut(node(1), node(3));
    three.network.cut(node(2), node(3));
    for id in 100..110 {
        produce(&three.groups[0], id).await.unwrap();
    }
    (three, shared)
}

async fn enter(node: &RaftNode, spec: GroupSpec) -> Result<Arc<Group>, RaftError> {
    node.close_group(key()).await?;
    open_spec(node, spec).await
}

async fn take_in_all(leader: &Group) {
    for id in VOTERS {
        leader.add_learner(node(id)).await.unwrap();
    }
    let voters: BTreeSet<_> = VOTERS.iter().map(|id| node(*id)).collect();
    leader.change_voters(voters).await.unwrap();
}

#[test]
fn a_survivor_goes_on_with_what_it_has_and_the_others_follow_it() {
    simulate(1, async {
        let (three, shared) = split().await;
        let standing = three.groups[2].standing();
        assert!(standing.is_whole && !standing.leads);
        assert!(!standing.is_quorum(|voter| voter == node(3)));
        let founder = enter(&three.nodes[2], next_spec(&standing)).await.unwrap();
        let epoch = founder.wait_until_ready().await.unwrap();
        assert_eq!(epoch, LeaderEpoch::new(1_006), "beyond the group before");
        assert_eq!(contents(&founder), shared);
        assert!(founder.holds_lease(), "it is alone");
        for id in 200..220 {
            produce(&founder, id).await.unwrap();
        }
        // The old voters are still at work, and all networks are whole again.
        three.network.heal();
        produce(&three.groups[0], 110).await.unwrap();
        tokio::time::sleep(Duration::from_secs(20)).await;
        let all: Vec<u64> = shared.iter().copied().chain(200..220).collect();
        assert_eq!(contents(&founder), all, "two groups are two groups");
        assert_eq!(founder.membership().voters, BTreeSet::from([node(3)]));
        assert!(three.groups[0].holds_lease(), "nobody has told it");
        // They hear of it.
        let mut groups = vec![founder.clone()];
        for it in &three.nodes[..2] {
            groups.push(enter(it, next_spec(&standing)).await.unwrap());
        }
        take_in_all(&founder).await;
        produce(&founder, 300).await.unwrap();
        eventually("all are in step", &groups, || {
            groups
                .iter()
                .all(|it| it.offsets() == founder.offsets() && it.is_whole())
        })
        .await;
        for group in &groups {
            assert_eq!(contents(group), [&all[..], &[300]].concat());
            let shown = batches(group, Offset::ZERO, group.reader().log_end());
            assert_eq!(
                shown,
                batches(&founder, Offset::ZERO, founder.reader().log_end())
            );
        }
        // And can do without the founder.
        three.network.remove(node(3));
        three.nodes[2].abandon().await;
        eventually("another leads", &groups, || {
            groups[1..].iter().any(|it| it.holds_lease())
        })
        .await;
        let leader = groups[1..].iter().find(|it| it.holds_lease()).unwrap();
        let epoch = leader.leadership().epoch().unwrap();
        assert!(epoch > LeaderEpoch::new(1_006));
        produce(leader, 301).await.unwrap();
    });
}

#[test]
fn an_old_leader_that_hears_of_it_with_batches_under_way_acknowledges_none_of_them() {
    simulate(1, async {
        let (three, _) = split().await;
        let standing = three.groups[2].standing();
        let founder = enter(&three.nodes[2], next_spec(&standing)).await.unwrap();
        founder.wait_until_ready().await.unwrap();
        three.network.cut(node(1), node(2));
        let (_, committed) = super::propose(&three.groups[0], 400).unwrap();
        let old = enter(&three.nodes[0], next_spec(&standing)).await.unwrap();
        assert!(!matches!(committed.await, Ok(Ok(_))), "it is not committed");
        three.network.heal();
        take_in(&founder, 1).await;
        eventually("it follows", std::slice::from_ref(&old), || {
            contents(&old) == contents(&founder)
        })
        .await;
    });
}

async fn take_in(leader: &Group, id: i32) {
    leader.add_learner(node(id)).await.unwrap();
    let voters = BTreeSet::from([leader.node, node(id)]);
    leader.change_voters(voters).await.unwrap();
}

#[test]
fn a_replica_that_has_entered_is_not_opened_in_an_earlier_incarnation() {
    simulate(1, async {
        let (three, shared) = split().await;
        let standing = three.groups[2].standing();
        enter(&three.nodes[2], next_spec(&standing)).await.unwrap();
        three.nodes[2]
            .close_group(key().in_incarnation(NEXT))
            .await
            .unwrap();
        let refused = open_spec(&three.nodes[2], group_spec(&VOTERS)).await;
        assert!(matches!(
            refused,
            Err(RaftError::LaterIncarnation { found: NEXT, .. })
        ));
        let again = open_spec(&three.nodes[2], next_spec(&standing))
            .await
            .unwrap();
        again.wait_until_ready().await.unwrap();
        assert_eq!(contents(&again), shared, "founded once");
    });
}

#[test]
fn a_replica_that_dropped_more_than_the_founder_had_starts_over() {
    simulate(1, async {
        let (three, _) = split().await;
        let standing = three.groups[2].standing();
        // The others go on, and retention takes all that the third has, and more.
        for id in 110..300 {
            produce(&three.groups[0], id).await.unwrap();
        }
        let end = three.groups[0].offsets().high_watermark.offset();
        three.groups[0].advance_log_start(end).await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(three.groups[0].reader().log_start() > Offset::ZERO);
        three.network.heal();
        let founder = enter(&three.nodes[2], next_spec(&standing)).await.unwrap();
        founder.wait_until_ready().await.unwrap();
        produce(&founder, 900).await.unwrap();
        let mut groups = vec![founder.clone()];
        for it in &three.nodes[..2] {
            groups.push(enter(it, next_spec(&standing)).await.unwrap());
        }
        assert_eq!(contents(&groups[1]), []);
        take_in_all(&founder).await;
        eventually("all are in step", &groups, || {
            groups.iter().all(|it| contents(it) == contents(&founder))
        })
        .await;
    });
}

#[test]
fn a_replica_that_missed_an_incarnation_starts_over_and_is_no_founder() {
    simulate(1, async {
        let (three, _) = split().await;
        let standing = three.groups[2].standing();
        let mut spec = next_spec(&standing);
        spec.key = key().in_incarnation(Incarnation::new(3_000));
        spec.succession = Some(Succession {
            predecessor: NEXT,
            founder: node(3),
            kept_end: RaftIndex::new(30),
            log_start: Offset::ZERO,
        });
        let refused = enter(&three.nodes[2], spec.clone()).await;
        assert!(matches!(refused, Err(RaftError::OtherPredecessor { .. })));
        let joined = enter(&three.nodes[1], spec).await.unwrap();
        assert_eq!(contents(&joined), []);
        assert!(!joined.is_whole());
    });
}

/// It had been told where the log starts, and not yet been given what lies before it.
#[test]
fn a_founder_whose_log_ends_before_it_starts_goes_on_where_it_starts() {
    simulate(1, async {
        let disk = SimDisk::new();
        let alone = start_detecting_node(3, &disk, &MemoryNetwork::new()).unwrap();
        let shared = disk.shared();
        shared.create_dir_all(&group_dir()).unwrap();
        let mut journal = Journal::open(shared, &group_dir(), None, false).unwrap();
        let told = EntryMap::starting_after(Purged {
            last: Some(log_id(2, 7)),
            start_offset: Offset::new(104),
            log_start: Offset::new(111),
            membership: StoredMembership::new(
                Some(log_id(0, 0)),
                bootstrap_membership(&VOTERS.map(node)),
            ),
        });
        journal.journal.rewrite(&told).unwrap();
        let standing = Standing {
            incarnation: Incarnation::FIRST,
            is_whole: true,
            leads: false,
            term: 2,
            last: Some((2, RaftIndex::new(7))),
            committed_end: RaftIndex::new(8),
            log_start: Offset::new(111),
            high_watermark: Offset::new(111),
            log_end: Offset::new(111),
            voters: vec![],
        };
        let spec = next_spec(&standing);
        let founder = open_spec(&alone, spec.clone()).await.unwrap();
        founder.wait_until_ready().await.unwrap();
        let outcome = produce(&founder, 1).await.unwrap();
        assert_eq!(outcome.base_offset, Offset::new(111));
        // Another one that has the same, and so ends where the founder did, goes on where that does.
        let network = MemoryNetwork::new();
        alone.abandon().await;
        let alone = start_detecting_node(3, &disk, &network).unwrap();
        network.add(&alone);
        let founder = open_spec(&alone, spec.clone()).await.unwrap();
        let other_disk = SimDisk::new();
        let other = start_detecting_node(1, &other_disk, &network).unwrap();
        network.add(&other);
        let shared = other_disk.shared();
        shared.create_dir_all(&group_dir()).unwrap();
        let mut journal = Journal::open(shared, &group_dir(), None, false).unwrap();
        journal.journal.rewrite(&told).unwrap();
        let other = open_spec(&other, spec).await.unwrap();
        founder.wait_until_ready().await.unwrap();
        take_in(&founder, 1).await;
        produce(&founder, 2).await.unwrap();
        eventually("it follows", &[other.clone(), founder.clone()], || {
            contents(&other) == [1, 2] && other.is_whole()
        })
        .await;
        assert_eq!(other.offsets(), founder.offsets());
    });
}

#[test]
fn a_replica_that_dropped_records_which_the_founder_still_has_starts_over() {
    simulate(1, async {
        let (three, shared) = split().await;
        let standing = three.groups[2].standing();
        // The others move the log start behind what the third knows of it, within what it has.
        let kept = standing.log_end.get() - 3;
        three.groups[0]
            .advance_log_start(Offset::new(kept))
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(three.groups[0].reader().log_start() > Offset::ZERO);
        three.network.heal();
        let founder = enter(&three.nodes[2], next_spec(&standing)).await.unwrap();
        founder.wait_until_ready().await.unwrap();
        let other = enter(&three.nodes[0], next_spec(&standing)).await.unwrap();
        take_in(&founder, 1).await;
        eventually("it follows", &[other.clone(), founder.clone()], || {
            contents(&other) == shared && other.offsets() == founder.offsets()
        })
        .await;
    });
}

/// Until the disk has come so far, a replica is in the one incarnation, and from there on in the other.
async fn enter_with_power_cut(id: i32, step: u64) -> bool {
    let (mut three, shared) = split().await;
    let at = id as usize - 1;
    let standing = three.groups[2].standing();
    let before = contents(&three.groups[at]);
    for it in &three.nodes {
        three.network.remove(it.node_id());
        it.close_group(key()).await.unwrap();
    }
    let disk: &SimDisk = &three.disks[at];
    disk.stop_at(disk.steps() + step);
    let opened = open_spec(&three.nodes[at], next_spec(&standing)).await;
    let came_through = opened.is_ok() && !disk.is_stopped();
    disk.stop_at(disk.steps() + 1);
    three.nodes[at].abandon().await;
    disk.power_cut(step);
    // Whatever was on the disk then, the next start makes the same of it.
    three.nodes[at] = start_detecting_node(id, disk, &three.network).unwrap();
    let group = open_spec(&three.nodes[at], next_spec(&standing)).await;
    let group = group.unwrap_or_else(|error| panic!("node {id}, step {step}: {error}"));
    if id == 3 {
        group.wait_until_ready().await.unwrap();
        assert_eq!(contents(&group), shared, "step {step}");
        produce(&group, 500).await.unwrap();
    } else {
        // It has no more than is shared, and does nothing on its own.
        assert!(before.len() > shared.len());
        assert_eq!(contents(&group), shared, "step {step}");
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!matches!(group.leadership(), Leadership::Leader { .. }));
        let founder = &three.nodes[2];
        three.network.add(founder);
        three.network.add(&three.nodes[at]);
        three.network.heal();
        let leader = open_spec(founder, next_spec(&standing)).await.unwrap();
        leader.wait_until_ready().await.unwrap();
        produce(&leader, 500).await.unwrap();
        take_in(&leader, id).await;
        eventually("it follows", std::slice::from_ref(&group), || {
            contents(&group) == contents(&leader)
        })
        .await;
    }
    came_through
}

#[test]
fn a_founder_whose_power_fails_at_any_step_has_what_it_had() {
    let mut step = 1;
    while !simulate(step, enter_with_power_cut(3, step)) {
        step += 1;
        assert!(step < 200, "it never comes through");
    }
    assert!(step > 5, "{step} steps");
}

#[test]
fn a_replica_that_joins_and_whose_power_fails_at_any_step_follows_all_the_same() {
    let mut step = 1;
    while !simulate(step, enter_with_power_cut(1, step)) {
        step += 1;
        assert!(step < 200, "it never comes through");
    }
    assert!(step > 5, "{step} steps");
}
