//! `range`: each topic is cut into ranges, one for each of its subscribers in a fixed order, so that
//! partitions of the same number of topics of the same size come to the same member.
//!
//! Static members come first, in the order of their instance ids, so that a restart moves nothing.

use std::collections::BTreeMap;

use odradek_protocol::ids::{PartitionIndex, TopicId};

use super::{AssignorInput, Target};
use crate::groups::consumer::assignment::Partitions;
use crate::groups::names::{InstanceId, MemberId};

pub(super) fn assign(input: &AssignorInput) -> Target {
    let mut order: Vec<(&MemberId, Option<&InstanceId>)> = input
        .members
        .iter()
        .map(|(id, member)| (id, member.instance.as_ref()))
        .collect();
    order.sort_by_key(|(id, instance)| (instance.is_none(), *instance, *id));
    let mut subscribers = BTreeMap::<TopicId, i32>::new();
    for member in input.members.values() {
        for topic in &member.topics {
            *subscribers.entry(*topic).or_default() += 1;
        }
    }
    let mut cuts: BTreeMap<TopicId, Cut> = input
        .partition_counts
        .iter()
        .filter_map(|(topic, count)| Some((*topic, Cut::new(*count, *subscribers.get(topic)?))))
        .collect();
    let mut target = Target::new();
    for (id, _) in order {
        let mut partitions = Partitions::default();
        let topics = input.members.get(id).map(|member| &member.topics);
        for topic in topics.into_iter().flatten() {
            let range = cuts.get_mut(topic).map(Cut::next_range);
            for index in range.into_iter().flatten() {
                partitions.insert(*topic, PartitionIndex::new(index));
            }
        }
        target.insert(id.clone(), partitions);
    }
    target
}

/// A topic that is being cut.
struct Cut {
    quota: i32,
    /// The first so many members get one partition more.
    extra: i32,
    next: i32,
}

impl Cut {
    /// `members` is at least 1.
    fn new(partitions: i32, members: i32) -> Self {
        Self {
            quota: partitions.checked_div(members).unwrap_or(0),
            extra: partitions.checked_rem(members).unwrap_or(0),
            next: 0,
        }
    }

    fn next_range(&mut self) -> std::ops::Range<i32> {
        let size = self.quota + i32::from(self.extra > 0);
        self.extra = (self.extra - 1).max(0);
        let first = self.next;
        self.next += size;
        first..self.next
    }
}
