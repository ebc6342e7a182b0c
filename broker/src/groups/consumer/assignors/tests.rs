//! What holds of every assignor, over random groups, and what each is for.

use std::collections::{BTreeMap, BTreeSet};

use odradek_protocol::ids::{PartitionIndex, TopicId};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::{AssignedMember, Assignor, AssignorInput, Target};
use crate::groups::consumer::assignment::Partitions;
use crate::groups::names::{InstanceId, MemberId};

fn topic(number: u8) -> TopicId {
    TopicId::from_bytes([number; 16])
}

fn member(topics: &[u8]) -> AssignedMember {
    AssignedMember {
        instance: None,
        topics: topics.iter().copied().map(topic).collect(),
        current: Partitions::default(),
    }
}

fn group(members: &[(&str, &[u8])], counts: &[(u8, i32)]) -> AssignorInput {
    AssignorInput {
        members: members
            .iter()
            .map(|(id, topics)| (MemberId::new(id), member(topics)))
            .collect(),
        partition_counts: counts
            .iter()
            .map(|(id, count)| (topic(*id), *count))
            .collect(),
    }
}

fn indexes(target: &Target, id: &str, number: u8) -> Vec<i32> {
    target[id]
        .iter()
        .filter(|(held, _)| *held == topic(number))
        .map(|(_, index)| index.get())
        .collect()
}

/// one-owner and subscribed-owner; every partition that can have an owner has one.
fn check(input: &AssignorInput, target: &Target, seed: u64) {
    let mut owners = BTreeMap::<(TopicId, PartitionIndex), &MemberId>::new();
    for (id, partitions) in target {
        for held in partitions.iter() {
            assert!(owners.insert(held, id).is_none(), "one-owner, seed {seed}");
            let subscribed = input.members[id].topics.contains(&held.0);
            assert!(subscribed, "subscribed-owner, seed {seed}");
        }
    }
    let wanted: BTreeSet<TopicId> = input
        .members
        .values()
        .flat_map(|member| member.topics.iter().copied())
        .collect();
    let all: i32 = input
        .partition_counts
        .iter()
        .filter(|(topic, _)| wanted.contains(topic))
        .map(|(_, count)| *count)
        .sum();
    assert_eq!(owners.len() as i32, all, "all-owned, seed {seed}");
}

#[test]
fn range_keeps_partitions_of_one_number_together_and_static_members_in_front() {
    let mut input = group(
        &[("a", &[1, 2]), ("b", &[1, 2]), ("c", &[1, 2])],
        &[(1, 4), (2, 4)],
    );
    let target = Assignor::Range.assign(&input);
    for number in [1, 2] {
        assert_eq!(indexes(&target, "a", number), [0, 1]);
        assert_eq!(indexes(&target, "b", number), [2]);
        assert_eq!(indexes(&target, "c", number), [3]);
    }
    let last = input.members.get_mut("c").expect("a member");
    last.instance = Some(InstanceId::new("i"));
    let target = Assignor::Range.assign(&input);
    assert_eq!(indexes(&target, "c", 1), [0, 1]);
    assert_eq!(indexes(&target, "a", 1), [2]);
}

#[test]
fn range_counts_only_the_subscribers_of_a_topic() {
    let input = group(
        &[("a", &[1]), ("b", &[1, 2]), ("c", &[2])],
        &[(1, 3), (2, 1)],
    );
    let target = Assignor::Range.assign(&input);
    assert_eq!(indexes(&target, "a", 1), [0, 1]);
    assert_eq!(indexes(&target, "b", 1), [2]);
    assert_eq!(indexes(&target, "b", 2), [0]);
    assert!(target["c"].is_empty());
}

#[test]
fn uniform_moves_nothing_that_need_not_move() {
    let mut input = group(&[("a", &[1]), ("b", &[1])], &[(1, 6)]);
    let first = Assignor::Uniform.assign(&input);
    assert_eq!((first["a"].len(), first["b"].len()), (3, 3));
    for (id, partitions) in &first {
        input.members.get_mut(id).expect("a member").current = partitions.clone();
    }
    input.members.insert(MemberId::new("c"), member(&[1]));
    let second = Assignor::Uniform.assign(&input);
    for id in ["a", "b"] {
        assert_eq!(second[id].len(), 2);
        let moved = second[id]
            .iter()
            .any(|(topic, index)| !first[id].contains(topic, index));
        assert!(!moved, "{id} keeps two of its three");
    }
    assert_eq!(second["c"].len(), 2);
}

#[test]
fn a_member_that_could_have_all_takes_only_what_makes_it_even() {
    let input = group(&[("a", &[1, 2]), ("b", &[1])], &[(1, 4), (2, 2)]);
    let target = Assignor::Uniform.assign(&input);
    assert_eq!((target["a"].len(), target["b"].len()), (3, 3));
    assert_eq!(indexes(&target, "a", 2), [0, 1]);
}

#[test]
fn random_groups_that_change_keep_the_rules_and_are_even() {
    for seed in 0..300 {
        let mut rng = StdRng::seed_from_u64(seed);
        let alike = rng.random_bool(0.5);
        let mut input = AssignorInput::default();
        for number in 1..=rng.random_range(1..6) {
            input
                .partition_counts
                .insert(topic(number), rng.random_range(0..12));
        }
        let all: Vec<TopicId> = input.partition_counts.keys().copied().collect();
        for round in 0..8 {
            for _ in 0..rng.random_range(0..3) {
                let id = MemberId::new(&format!("m{}", rng.random_range(0..9)));
                if input.members.remove(&id).is_none() {
                    let mut joined = member(&[]);
                    joined.topics = all.iter().copied().collect();
                    if !alike {
                        joined.topics.retain(|_| rng.random_bool(0.6));
                    }
                    input.members.insert(id, joined);
                }
            }
            if let Some(grown) = input.partition_counts.values_mut().next() {
                *grown += i32::from(round % 3 == 0);
            }
            for assignor in Assignor::ALL {
                let target = assignor.assign(&input);
                check(&input, &target, seed);
                if assignor == Assignor::Uniform {
                    check_even(&input, &target, seed);
                    for (id, partitions) in target {
                        input.members.get_mut(&id).expect("a member").current = partitions;
                    }
                }
            }
        }
    }
}

/// No member has two more than another that could take one of them.
fn check_even(input: &AssignorInput, target: &Target, seed: u64) {
    for (rich, more) in target {
        for (poor, less) in target {
            let could = more
                .iter()
                .any(|(topic, _)| input.members[poor].topics.contains(&topic));
            assert!(
                !could || more.len() <= less.len() + 1,
                "even, seed {seed}: {rich} has {} and {poor} {}",
                more.len(),
                less.len()
            );
        }
    }
}
