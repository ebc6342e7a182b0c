//! `uniform`: as even as the subscriptions allow, with as few moves as that takes.
//!
//! Where everybody is subscribed to the same topics, members differ by at most one partition, and
//! only what is above a member's share moves. Where they are not, partitions move from the fullest
//! subscriber of a topic to the emptiest until none of them has two more than another that could
//! take one; topics with many partitions for few subscribers come first, for they leave least choice.

use std::collections::{BTreeMap, BTreeSet};

use odradek_protocol::ids::{PartitionIndex, TopicId};

use super::{AssignorInput, Target};
use crate::groups::consumer::assignment::Partitions;
use crate::groups::names::MemberId;

/// Passes over all topics before what is left uneven stays so. One is nearly always enough.
const MAX_PASSES: usize = 16;

pub(super) fn assign(input: &AssignorInput) -> Target {
    match input.is_homogeneous() {
        true => assign_alike(input),
        false => Balancer::new(input).run(),
    }
}

/// Everybody is subscribed to the same topics.
fn assign_alike(input: &AssignorInput) -> Target {
    let mut free: BTreeSet<(TopicId, PartitionIndex)> = all_partitions(input).collect();
    let total = i64::try_from(free.len()).unwrap_or(i64::MAX);
    let members = i64::try_from(input.members.len()).unwrap_or(i64::MAX);
    let quota = total.checked_div(members).unwrap_or(0);
    let mut extras = total.checked_rem(members).unwrap_or(0);
    let mut target = Target::new();
    let mut left = members;
    let mut hungry = Vec::new();
    for (id, member) in &input.members {
        // One more than the share while some are left over: those who have it keep it.
        let mut most = quota + i64::from(extras > 0);
        let mut kept = Partitions::default();
        let held = member
            .current
            .iter()
            .filter(|(topic, _)| member.topics.contains(topic));
        for (topic, partition) in held {
            if most == 0 {
                break;
            }
            // Gone, or somebody else's by now, if it is not free.
            if free.remove(&(topic, partition)) {
                kept.insert(topic, partition);
                most -= 1;
            }
        }
        let mut has_extra = extras > 0;
        if has_extra && most > 0 && left > extras {
            most -= 1;
            has_extra = false;
        }
        extras -= i64::from(has_extra);
        left -= 1;
        if most > 0 {
            hungry.push((id.clone(), most));
        }
        target.insert(id.clone(), kept);
    }
    let mut free = free.into_iter();
    for (id, most) in hungry {
        let take = usize::try_from(most).unwrap_or(usize::MAX);
        if let Some(partitions) = target.get_mut(&id) {
            for (topic, partition) in free.by_ref().take(take) {
                partitions.insert(topic, partition);
            }
        }
    }
    target
}

/// The partitions of what everybody is subscribed to.
fn all_partitions(input: &AssignorInput) -> impl Iterator<Item = (TopicId, PartitionIndex)> {
    let subscribed = input.members.values().next().map(|member| &member.topics);
    let counts = input.partition_counts.iter();
    counts
        .filter(move |(topic, _)| subscribed.is_some_and(|topics| topics.contains(topic)))
        .flat_map(|(topic, count)| {
            (0..*count).map(move |index| (*topic, PartitionIndex::new(index)))
        })
}

/// A member by its place in the order of ids.
type Place = usize;

/// Members are subscribed to different topics.
struct Balancer<'a> {
    ids: Vec<&'a MemberId>,
    /// How many partitions each has.
    sizes: Vec<usize>,
    /// Who may have the partitions of a topic.
    subscribers: BTreeMap<TopicId, Vec<Place>>,
    /// Who has each partition.
    owners: BTreeMap<TopicId, Vec<Option<Place>>>,
}

impl<'a> Balancer<'a> {
    fn new(input: &'a AssignorInput) -> Self {
        let mut subscribers = BTreeMap::<TopicId, Vec<Place>>::new();
        for (place, member) in input.members.values().enumerate() {
            for topic in &member.topics {
                subscribers.entry(*topic).or_default().push(place);
            }
        }
        let owners = input.partition_counts.iter();
        let mut balancer = Self {
            ids: input.members.keys().collect(),
            sizes: vec![0; input.members.len()],
            owners: owners
                .filter(|(topic, _)| subscribers.contains_key(topic))
                .map(|(topic, count)| (*topic, vec![None; usize::try_from(*count).unwrap_or(0)]))
                .collect(),
            subscribers,
        };
        for (place, member) in input.members.values().enumerate() {
            let held = member
                .current
                .iter()
                .filter(|(topic, _)| member.topics.contains(topic));
            for (topic, partition) in held {
                if let Some(slot @ None) = balancer.slot(topic, partition) {
                    *slot = Some(place);
                    if let Some(size) = balancer.sizes.get_mut(place) {
                        *size += 1;
                    }
                }
            }
        }
        balancer
    }

    fn slot(&mut self, topic: TopicId, partition: PartitionIndex) -> Option<&mut Option<Place>> {
        let at = usize::try_from(partition.get()).ok()?;
        self.owners.get_mut(&topic)?.get_mut(at)
    }

    fn run(mut self) -> Target {
        let order = self.topics_in_order();
        for topic in &order {
            self.hand_out(*topic);
        }
        for _ in 0..MAX_PASSES {
            let moved: usize = order.iter().map(|topic| self.balance(*topic)).sum();
            if moved == 0 {
                break;
            }
        }
        let mut target: Target = self
            .ids
            .iter()
            .map(|id| ((*id).clone(), Partitions::default()))
            .collect();
        for (topic, owners) in &self.owners {
            for (owner, index) in owners.iter().zip(0..) {
                let id = owner.and_then(|place| self.ids.get(place));
                if let Some(partitions) = id.and_then(|id| target.get_mut(*id)) {
                    partitions.insert(*topic, PartitionIndex::new(index));
                }
            }
        }
        target
    }

    /// Most partitions for a subscriber first, then fewest subscribers.
    fn topics_in_order(&self) -> Vec<TopicId> {
        let mut order: Vec<(TopicId, usize, usize)> = self
            .owners
            .iter()
            .map(|(topic, owners)| {
                let subscribers = self.subscribers.get(topic).map_or(0, Vec::len);
                (*topic, owners.len(), subscribers)
            })
            .collect();
        // Fractions are compared crosswise.
        order.sort_by(|one, other| {
            (other.1 * one.2)
                .cmp(&(one.1 * other.2))
                .then(one.2.cmp(&other.2))
                .then(one.0.cmp(&other.0))
        });
        order.into_iter().map(|(topic, _, _)| topic).collect()
    }

    /// Gives what nobody has to the emptiest subscribers.
    fn hand_out(&mut self, topic: TopicId) {
        let mut by_size = self.subscribers_by_size(topic);
        let Some(owners) = self.owners.get_mut(&topic) else {
            return;
        };
        for slot in owners.iter_mut().filter(|slot| slot.is_none()) {
            let Some((size, place)) = by_size.pop_first() else {
                return;
            };
            *slot = Some(place);
            by_size.insert((size + 1, place));
            if let Some(held) = self.sizes.get_mut(place) {
                *held += 1;
            }
        }
    }

    fn subscribers_by_size(&self, topic: TopicId) -> BTreeSet<(usize, Place)> {
        let places = self.subscribers.get(&topic).into_iter().flatten();
        places
            .filter_map(|place| Some((*self.sizes.get(*place)?, *place)))
            .collect()
    }

    /// Moves partitions of one topic from the fullest to the emptiest; how many.
    fn balance(&mut self, topic: TopicId) -> usize {
        let mut by_size = self.subscribers_by_size(topic);
        let mut held = BTreeMap::<Place, Vec<usize>>::new();
        for (at, owner) in self.owners.get(&topic).into_iter().flatten().enumerate() {
            if let Some(owner) = owner {
                held.entry(*owner).or_default().push(at);
            }
        }
        let mut moved = 0;
        while let Some((most, from)) = by_size.pop_last() {
            let Some(&(least, to)) = by_size.first() else {
                break;
            };
            if most <= least + 1 {
                break;
            }
            // One that has nothing of this topic cannot give any, and is out of the game.
            let Some(at) = held.get_mut(&from).and_then(Vec::pop) else {
                continue;
            };
            by_size.pop_first();
            by_size.insert((most - 1, from));
            by_size.insert((least + 1, to));
            held.entry(to).or_default().push(at);
            let slot = self
                .owners
                .get_mut(&topic)
                .and_then(|owners| owners.get_mut(at));
            if let Some(slot) = slot {
                *slot = Some(to);
            }
            for (place, size) in [(from, most - 1), (to, least + 1)] {
                if let Some(held) = self.sizes.get_mut(place) {
                    *held = size;
                }
            }
            moved += 1;
        }
        moved
    }
}
