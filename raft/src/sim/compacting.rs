//! Groups that compact their logs: replicas that lack what was dropped are given the records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::ids::{Offset, TimestampMs};
use odradek_storage::SimDisk;

use super::failover::{Three, VOTERS, node};
use super::keyed::{self, compact, produce, records_of, state};
use super::{
    eventually, for_seeds, group_spec, open_spec, simulate, start_detecting_node, virtual_clock,
};
use crate::{Group, RaftNode};

/// Past every horizon.
const MUCH_LATER: TimestampMs = TimestampMs::new(1_800_000_000_000);
const NOW: TimestampMs = TimestampMs::new(1_700_000_000_000);

/// What is committed of batches `1..ids`, one after the other.
fn expected(ids: u64) -> BTreeMap<u64, (i64, u64)> {
    let records = (1..ids).flat_map(records_of);
    keyed::newest(&(0..).zip(records).collect())
}

/// Three voters with many records, the third of which was stopped long ago; the others have dropped
/// the entries that it lacks, and compacted.
async fn third_left_behind() -> Three {
    let three = Three::start().await;
    produce(&three.groups[0], 1..60).await;
    let groups = three.groups.clone();
    eventually("all have all", &groups, || in_step(&groups)).await;
    let end = groups[2].offsets().log_end.offset();
    three.network.remove(node(3));
    three.nodes[2].abandon().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    produce(&three.groups[0], 60..160).await;
    eventually("two have all", &groups[..2], || in_step(&groups[..2])).await;
    for group in &groups[..2] {
        let outcome = compact(group, NOW).await.unwrap();
        assert!(
            outcome.is_some_and(|outcome| outcome.stats.records_dropped > 20),
            "{outcome:?}"
        );
        assert!(group.core().first_entry_offset() > end);
        assert_eq!(state(group), expected(160));
    }
    three
}

fn in_step(groups: &[Arc<Group>]) -> bool {
    let end = groups[0].offsets();
    groups.iter().all(|group| {
        let offsets = group.offsets();
        offsets == end && offsets.high_watermark.get() == offsets.log_end.get()
    })
}

async fn start_third(three: &Three, bootstrap: bool) -> (Arc<RaftNode>, Arc<Group>) {
    let third = start_detecting_node(3, &three.disks[2], &three.network).unwrap();
    three.network.add(&third);
    let mut spec = group_spec(&VOTERS);
    spec.bootstrap = bootstrap;
    let group = open_spec(&third, spec).await.unwrap();
    (third, group)
}

fn assert_same(one: &Group, other: &Group) {
    assert_eq!(one.offsets(), other.offsets());
    assert_eq!(state(one), state(other));
    assert_eq!(one.reader().epochs(), other.reader().epochs());
}

#[test]
fn a_replica_that_was_away_while_entries_were_dropped_is_given_the_records() {
    simulate(1, async {
        let mut three = third_left_behind().await;
        let (third_node, third) = start_third(&three, true).await;
        let groups = three.groups.clone();
        eventually("the third has all", &groups, || {
            third.offsets() == groups[0].offsets()
        })
        .await;
        assert_same(&third, &groups[0]);
        assert_eq!(third.offsets().log_start.get(), 0);
        // It goes on with the others, and so it does after a crash.
        produce(&groups[0], 160..170).await;
        eventually("the third follows", &groups, || {
            third.offsets() == groups[0].offsets()
        })
        .await;
        three.network.remove(node(3));
        third_node.abandon().await;
        drop(third);
        three.disks[2].power_cut(7);
        let (third_node, third) = start_third(&three, true).await;
        eventually("the third is back", &groups, || {
            third.offsets() == groups[0].offsets()
        })
        .await;
        assert_same(&third, &groups[0]);
        assert_eq!(state(&third), expected(170));
        // It compacts by itself, and leads.
        compact(&third, NOW).await.unwrap().unwrap();
        assert_eq!(state(&third), expected(170));
        three.nodes[2] = third_node;
        three.groups[2] = third.clone();
        groups[0].transfer_leader(node(3)).await.unwrap();
        eventually("the third leads", &three.groups, || third.holds_lease()).await;
        produce(&third, 170..180).await;
        eventually("all have all", &three.groups, || in_step(&three.groups)).await;
        for group in &three.groups {
            assert_eq!(state(group), expected(180));
        }
    });
}

#[test]
fn a_replica_that_lost_its_disk_and_a_new_one_are_given_the_records() {
    simulate(1, async {
        let mut three = third_left_behind().await;
        three.disks[2] = SimDisk::new();
        let leader = three.groups[0].clone();
        let (_third_node, third) = start_third(&three, false).await;
        let fourth_disk = SimDisk::new();
        let fourth_node = start_detecting_node(4, &fourth_disk, &three.network).unwrap();
        three.network.add(&fourth_node);
        let mut spec = group_spec(&[]);
        spec.bootstrap = false;
        let fourth = open_spec(&fourth_node, spec).await.unwrap();
        leader.add_learner(node(4)).await.unwrap();
        let groups = [leader.clone(), third.clone(), fourth.clone()];
        eventually("the lost one is out", &groups, || {
            !leader.membership().voters.contains(&node(3))
        })
        .await;
        leader.add_learner(node(3)).await.unwrap();
        eventually("both have all", &groups, || in_step(&groups)).await;
        let voters: BTreeSet<_> = [1, 3, 4].map(node).into();
        leader.change_voters(voters.clone()).await.unwrap();
        assert!(leader.membership().is_settled_on(&voters));
        produce(&leader, 160..170).await;
        eventually("all have all", &groups, || in_step(&groups)).await;
        for group in &groups {
            assert_same(group, &leader);
            assert_eq!(state(group), expected(170));
        }
        assert!(third.may_stand().await && fourth.may_stand().await);
    });
}

/// The leader compacts again and tombstones expire, at every moment of the transfer in turn.
#[test]
fn nothing_comes_back_to_life_though_tombstones_go_while_records_are_given() {
    for after in (0..160).step_by(8) {
        simulate(after, async {
            let three = third_left_behind().await;
            let (_third_node, third) = start_third(&three, true).await;
            tokio::time::sleep(Duration::from_millis(after)).await;
            produce(&three.groups[0], 160..230).await;
            for group in &three.groups[..2] {
                for now in [NOW, MUCH_LATER, MUCH_LATER] {
                    compact(group, now).await.unwrap();
                }
            }
            let groups = [three.groups[0].clone(), third.clone()];
            eventually("the third has all", &groups, || in_step(&groups)).await;
            for group in &groups {
                assert_eq!(state(group), expected(230), "after {after} ms");
            }
        });
    }
}

/// Replicas that are in step, or that a leader waits for, are never offered what they must fetch.
#[test]
fn entries_stay_until_every_replica_within_reach_has_them() {
    simulate(1, async {
        let three = Three::start().await;
        produce(&three.groups[0], 1..100).await;
        let groups = three.groups.clone();
        eventually("all have all", &groups, || in_step(&groups)).await;
        let end = groups[0].offsets().log_end.offset();
        for group in &groups {
            assert!(group.droppable_end().await.unwrap() >= end, "all have it");
        }
        let fourth_disk = SimDisk::new();
        let fourth_node = start_detecting_node(4, &fourth_disk, &three.network).unwrap();
        three.network.add(&fourth_node);
        groups[0].add_learner(node(4)).await.unwrap();
        // It is within reach, and has no group yet.
        tokio::time::sleep(Duration::from_millis(400)).await;
        for group in &groups {
            assert_eq!(group.droppable_end().await.unwrap(), Offset::ZERO);
        }
        assert_eq!(compact(&groups[0], NOW).await.unwrap(), None);
        // It is not waited for without end.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(compact(&groups[0], NOW).await.unwrap().is_some());
        let mut spec = group_spec(&[]);
        spec.bootstrap = false;
        let fourth = open_spec(&fourth_node, spec).await.unwrap();
        let groups = [groups[0].clone(), fourth];
        eventually("the fourth has all", &groups, || in_step(&groups)).await;
        assert_same(&groups[0], &groups[1]);
    });
}

/// How many steps its disk takes until the third has all.
async fn steps_of_a_transfer() -> (u64, u64) {
    let three = third_left_behind().await;
    let before = three.disks[2].steps();
    let (_third_node, third) = start_third(&three, true).await;
    let groups = [three.groups[0].clone(), third];
    eventually("the third has all", &groups, || in_step(&groups)).await;
    (before, three.disks[2].steps())
}

#[test]
fn a_power_cut_after_any_step_of_a_transfer_loses_nothing() {
    let (first, last) = simulate(1, steps_of_a_transfer());
    assert!(last - first > 100, "{first} to {last}");
    let stride = match std::env::var("ODRADEK_SIM_SEEDS") {
        Ok(_) => 1,
        Err(_) => 3,
    };
    for step in (first + 1..=last).step_by(stride) {
        simulate(1, async {
            let three = third_left_behind().await;
            three.disks[2].stop_at(step);
            let started = start_detecting_node(3, &three.disks[2], &three.network);
            if let Ok(third_node) = started {
                three.network.add(&third_node);
                // Opening may be what the power cut falls into.
                let _third = open_spec(&third_node, group_spec(&VOTERS)).await;
                for _ in 0..400 {
                    if three.disks[2].is_stopped() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                three.network.remove(node(3));
                third_node.abandon().await;
            }
            three.disks[2].power_cut(step);
            let (_third_node, third) = start_third(&three, true).await;
            produce(&three.groups[0], 160..165).await;
            let groups = [three.groups[0].clone(), third];
            eventually(&format!("all have all after step {step}"), &groups, || {
                in_step(&groups)
            })
            .await;
            assert_same(&groups[0], &groups[1]);
            assert_eq!(state(&groups[1]), expected(165), "step {step}");
        });
    }
}

/// One that reads while entries are dropped and records compacted finds the newest of every key.
#[test]
fn every_replica_of_a_group_that_compacts_as_it_is_written_to_shows_the_newest_of_every_key() {
    for_seeds(4, |seed| async move {
        let three = Three::start().await;
        let clock = virtual_clock();
        let mut next = 1;
        for round in 0..12 {
            let more = 20 + (seed * 7 + round) % 13;
            produce(&three.groups[0], next..next + more).await;
            next += more;
            for group in &three.groups {
                compact(group, clock()).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(700)).await;
            for group in &three.groups {
                eventually("a replica has all", &three.groups, || {
                    state(group) == expected(next)
                })
                .await;
            }
        }
        let left: usize = three.groups[0].reader().segment_bases().len();
        assert!(left < 12, "{left} segments are left");
    });
}
