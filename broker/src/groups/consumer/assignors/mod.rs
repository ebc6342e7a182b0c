//! Assignors that the coordinator runs itself: who is meant to have which partition (KIP-848).
//!
//! Pure functions of the members' subscriptions, what they are meant to have now, and the sizes of
//! the topics. Neither looks at racks, as Kafka's do not since 4.0.
//!
//! Invariants of both: every partition of every topic that somebody is subscribed to has exactly one
//! owner, who is subscribed to the topic.

mod range;
mod sticky;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use odradek_protocol::ids::TopicId;

use super::assignment::Partitions;
use crate::groups::names::{InstanceId, MemberId};

/// A member as an assignor sees it.
#[derive(Clone, Debug)]
pub struct AssignedMember {
    /// Its `group.instance.id`, if static.
    pub instance: Option<InstanceId>,
    /// The topics that it is subscribed to and that exist.
    pub topics: BTreeSet<TopicId>,
    /// What it has been meant to have so far.
    pub current: Partitions,
}

/// Everything that an assignor decides by.
#[derive(Clone, Debug, Default)]
pub struct AssignorInput {
    /// The members, by their ids.
    pub members: BTreeMap<MemberId, AssignedMember>,
    /// Number of partitions of each topic that somebody is subscribed to.
    pub partition_counts: BTreeMap<TopicId, i32>,
}

impl AssignorInput {
    /// Whether everybody is subscribed to the same topics.
    fn is_homogeneous(&self) -> bool {
        let mut subscriptions = self.members.values().map(|member| &member.topics);
        match subscriptions.next() {
            Some(first) => subscriptions.all(|topics| topics == first),
            None => true,
        }
    }
}

/// What each member is meant to have.
pub type Target = BTreeMap<MemberId, Partitions>;

/// The assignors that there are, by the names that `group.consumer.assignors` and members use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Assignor {
    /// As even as can be with as few moves as can be.
    Uniform,
    /// Partitions of the same number of all topics together.
    Range,
}

impl Assignor {
    /// Every assignor.
    pub const ALL: [Self; 2] = [Self::Uniform, Self::Range];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Range => "range",
        }
    }

    /// The assignor of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|assignor| assignor.name() == name)
    }

    /// Computes what each member is meant to have.
    pub fn assign(self, input: &AssignorInput) -> Target {
        match self {
            Self::Uniform => sticky::assign(input),
            Self::Range => range::assign(input),
        }
    }
}
