//! Partitions that a member is meant to have, and those that it has.
//!
//! Sorted, so that the same group always gives the same records and the same choices. Neither type
//! ever holds a topic without partitions.

use std::collections::{BTreeMap, BTreeSet};

use odradek_protocol::ids::{PartitionIndex, TopicId};

use crate::groups::names::Epoch;

/// Partitions, by topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partitions(BTreeMap<TopicId, BTreeSet<PartitionIndex>>);

impl Partitions {
    /// Adds a partition.
    pub fn insert(&mut self, topic: TopicId, partition: PartitionIndex) {
        self.0.entry(topic).or_default().insert(partition);
    }

    /// Takes a partition out; whether it was there.
    pub fn remove(&mut self, topic: TopicId, partition: PartitionIndex) -> bool {
        let Some(partitions) = self.0.get_mut(&topic) else {
            return false;
        };
        let removed = partitions.remove(&partition);
        if partitions.is_empty() {
            self.0.remove(&topic);
        }
        removed
    }

    /// Whether the partition is in it.
    pub fn contains(&self, topic: TopicId, partition: PartitionIndex) -> bool {
        self.0
            .get(&topic)
            .is_some_and(|partitions| partitions.contains(&partition))
    }

    /// Whether there is no partition.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of partitions.
    pub fn len(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }

    /// Number of topics.
    pub fn topic_count(&self) -> usize {
        self.0.len()
    }

    /// Topics with their partitions, in order.
    pub fn topics(&self) -> impl Iterator<Item = (TopicId, &BTreeSet<PartitionIndex>)> {
        self.0
            .iter()
            .map(|(topic, partitions)| (*topic, partitions))
    }

    /// Every partition, in order.
    pub fn iter(&self) -> impl Iterator<Item = (TopicId, PartitionIndex)> {
        self.topics().flat_map(|(topic, partitions)| {
            partitions.iter().map(move |partition| (topic, *partition))
        })
    }
}

impl FromIterator<(TopicId, PartitionIndex)> for Partitions {
    fn from_iter<I: IntoIterator<Item = (TopicId, PartitionIndex)>>(partitions: I) -> Self {
        let mut all = Self::default();
        for (topic, partition) in partitions {
            all.insert(topic, partition);
        }
        all
    }
}

/// Partitions that a member has, each with the epoch in which it got it (KIP-1251).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owned(BTreeMap<TopicId, BTreeMap<PartitionIndex, Epoch>>);

impl Owned {
    /// The partitions of `given`, all got in `epoch`.
    pub fn all_since(given: &Partitions, epoch: Epoch) -> Self {
        let mut owned = Self::default();
        for (topic, partition) in given.iter() {
            owned.insert(topic, partition, epoch);
        }
        owned
    }

    /// Adds a partition that was got in `epoch`.
    pub fn insert(&mut self, topic: TopicId, partition: PartitionIndex, epoch: Epoch) {
        self.0.entry(topic).or_default().insert(partition, epoch);
    }

    /// The epoch in which the partition was got, if it is held.
    pub fn since(&self, topic: TopicId, partition: PartitionIndex) -> Option<Epoch> {
        self.0.get(&topic)?.get(&partition).copied()
    }

    /// Whether the partition is held.
    pub fn contains(&self, topic: TopicId, partition: PartitionIndex) -> bool {
        self.since(topic, partition).is_some()
    }

    /// Whether there is no partition.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of topics.
    pub fn topic_count(&self) -> usize {
        self.0.len()
    }

    /// Number of partitions.
    pub fn len(&self) -> usize {
        self.0.values().map(BTreeMap::len).sum()
    }

    /// Topics with their partitions, in order.
    pub fn topics(&self) -> impl Iterator<Item = (TopicId, &BTreeMap<PartitionIndex, Epoch>)> {
        self.0
            .iter()
            .map(|(topic, partitions)| (*topic, partitions))
    }

    /// Every partition with its epoch, in order.
    pub fn iter(&self) -> impl Iterator<Item = (TopicId, PartitionIndex, Epoch)> {
        self.topics().flat_map(|(topic, partitions)| {
            partitions
                .iter()
                .map(move |(partition, epoch)| (topic, *partition, *epoch))
        })
    }

    /// The same partitions without their epochs.
    pub fn partitions(&self) -> Partitions {
        self.iter()
            .map(|(topic, partition, _)| (topic, partition))
            .collect()
    }

    /// These partitions and those of `other`.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        let mut merged = self.clone();
        for (topic, partition, epoch) in other.iter() {
            merged.insert(topic, partition, epoch);
        }
        merged
    }

    /// The partitions that `keeps` says yes to, and the rest.
    #[must_use]
    pub fn split(&self, keeps: impl Fn(TopicId, PartitionIndex) -> bool) -> (Self, Self) {
        let (mut kept, mut rest) = (Self::default(), Self::default());
        for (topic, partition, epoch) in self.iter() {
            let into = match keeps(topic, partition) {
                true => &mut kept,
                false => &mut rest,
            };
            into.insert(topic, partition, epoch);
        }
        (kept, rest)
    }
}
