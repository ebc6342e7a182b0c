//! Committed offsets: a pure store, rebuilt from the log record by record.
//!
//! A later record for the same group, topic and partition replaces an earlier one, in live state
//! as in replay. Sorted vectors hold what a group has committed: most groups read a handful of
//! partitions, and a million offsets should not cost more than their own size.
//!
//! What is committed in transactions that are still open is kept beside it, see [`StagedOffsets`].

use std::collections::HashMap;

use odradek_protocol::ids::{PartitionIndex, ProducerId, TimestampMs, TopicId};

use super::classic::OffsetLifetime;
use super::group::Group;
use super::messages::{FetchTopic, FetchedOffset, FetchedTopic};
use super::names::{GroupId, TopicName};
use super::records::{GroupRecord, OffsetCommit, OffsetKey};
use super::staged::StagedOffsets;
use crate::coordinator::effects::ProducerIdentity;

/// A small map that is a sorted vector.
#[derive(Debug, Clone, PartialEq)]
struct Sorted<K, V>(Vec<(K, V)>);

impl<K: Ord, V> Sorted<K, V> {
    const fn new() -> Self {
        Self(Vec::new())
    }

    fn position(&self, key: &K) -> Result<usize, usize> {
        self.0.binary_search_by(|(held, _)| held.cmp(key))
    }

    fn get(&self, key: &K) -> Option<&V> {
        let at = self.position(key).ok()?;
        self.0.get(at).map(|(_, value)| value)
    }

    fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = self.position(key).ok()?;
        self.0.get_mut(at).map(|(_, value)| value)
    }

    /// Returns the value that was there.
    fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.position(&key) {
            Ok(at) => self
                .0
                .get_mut(at)
                .map(|(_, held)| std::mem::replace(held, value)),
            Err(at) => {
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.position(key).ok()?;
        Some(self.0.remove(at).1)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn iter(&self) -> impl Iterator<Item = &(K, V)> {
        self.0.iter()
    }
}

type Partitions = Sorted<PartitionIndex, OffsetCommit>;
type Topics = Sorted<TopicName, Partitions>;

/// The offsets that the groups of one shard have committed.
#[derive(Debug, Default)]
pub struct OffsetStore {
    groups: HashMap<GroupId, Topics>,
    count: usize,
    staged: StagedOffsets,
}

impl OffsetStore {
    /// Number of offsets held.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether no offset is held.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// What is committed in transactions that are still open.
    pub fn staged(&self) -> &StagedOffsets {
        &self.staged
    }

    /// Takes account of a commit in a transaction of `producer`.
    pub fn stage(&mut self, producer: ProducerIdentity, key: &OffsetKey, commit: OffsetCommit) {
        self.staged.stage(producer, key, commit);
    }

    /// Takes account of the end of a transaction: what it committed takes effect.
    pub fn end_transaction(&mut self, producer_id: ProducerId, committed: bool) {
        for (key, commit) in self.staged.end(producer_id, committed) {
            self.put(&key, commit);
        }
    }

    /// Takes account of a record: a commit, or `None` for a tombstone.
    pub fn apply(&mut self, key: &OffsetKey, commit: Option<OffsetCommit>) {
        match commit {
            Some(commit) => {
                self.staged.outdate(key);
                self.put(key, commit);
            }
            None => {
                self.staged.discard(key);
                self.remove(key);
            }
        }
    }

    fn put(&mut self, key: &OffsetKey, commit: OffsetCommit) {
        // Looked up before it is inserted, so that the many later commits of a group clone no name.
        let topics = match self.groups.get_mut(&key.group) {
            Some(topics) => topics,
            None => self
                .groups
                .entry(key.group.clone())
                .or_insert(Topics::new()),
        };
        let replaced = match topics.get_mut(&key.topic) {
            Some(partitions) => partitions.insert(key.partition, commit),
            None => {
                let first = Sorted(vec![(key.partition, commit)]);
                topics.insert(key.topic.clone(), first);
                None
            }
        };
        if replaced.is_none() {
            self.count += 1;
        }
    }

    fn remove(&mut self, key: &OffsetKey) {
        let Some(topics) = self.groups.get_mut(&key.group) else {
            return;
        };
        let Some(partitions) = topics.get_mut(&key.topic) else {
            return;
        };
        if partitions.remove(&key.partition).is_none() {
            return;
        }
        self.count -= 1;
        if partitions.is_empty() {
            topics.remove(&key.topic);
        }
        if topics.is_empty() {
            self.groups.remove(&key.group);
        }
    }

    /// The offset committed for `key`.
    pub fn get(&self, key: &OffsetKey) -> Option<&OffsetCommit> {
        self.groups
            .get(&key.group)?
            .get(&key.topic)?
            .get(&key.partition)
    }

    /// What `group` has committed for `topics`, one entry for every partition asked for. With
    /// `require_stable` it is told of which partitions an offset is staged.
    pub fn fetch(
        &self,
        group: &GroupId,
        topics: &[FetchTopic],
        require_stable: bool,
    ) -> Vec<FetchedTopic> {
        let held = self.groups.get(group);
        let fetch_topic = |wanted: &FetchTopic| {
            let partitions = held.and_then(|held| held.get(&wanted.topic));
            let fetch_partition = |partition: &PartitionIndex| {
                let commit = partitions
                    .and_then(|partitions| partitions.get(partition))
                    .filter(|commit| is_of_topic(commit, wanted.topic_id));
                (*partition, commit.map(to_fetched))
            };
            FetchedTopic {
                topic: wanted.topic.clone(),
                partitions: wanted.partitions.iter().map(fetch_partition).collect(),
                unstable: match require_stable {
                    true => self.unstable(group, &wanted.topic, wanted.partitions.iter()),
                    false => Vec::new(),
                },
            }
        };
        topics.iter().map(fetch_topic).collect()
    }

    /// The partitions for which an offset of `group` is staged.
    fn unstable<'a>(
        &self,
        group: &GroupId,
        topic: &TopicName,
        partitions: impl Iterator<Item = &'a PartitionIndex>,
    ) -> Vec<PartitionIndex> {
        if !self.staged.has_group(group) {
            return Vec::new();
        }
        partitions
            .copied()
            .filter(|partition| {
                self.staged.has(&OffsetKey {
                    group: group.clone(),
                    topic: topic.clone(),
                    partition: *partition,
                })
            })
            .collect()
    }

    /// Everything that `group` has committed, in the order of topics and partitions.
    pub fn fetch_all(&self, group: &GroupId, require_stable: bool) -> Vec<FetchedTopic> {
        let Some(topics) = self.groups.get(group) else {
            return Vec::new();
        };
        topics
            .iter()
            .map(|(topic, partitions)| FetchedTopic {
                topic: topic.clone(),
                partitions: partitions
                    .iter()
                    .map(|(partition, commit)| (*partition, Some(to_fetched(commit))))
                    .collect(),
                unstable: match require_stable {
                    true => {
                        let partitions = partitions.iter().map(|(partition, _)| partition);
                        self.unstable(group, topic, partitions)
                    }
                    false => Vec::new(),
                },
            })
            .collect()
    }

    /// Tombstones for everything that `group` has committed.
    pub fn tombstones_of_group(&self, group: &GroupId) -> Vec<GroupRecord> {
        let mut records = Vec::new();
        if let Some(topics) = self.groups.get(group) {
            records.extend(tombstones(group, topics, |_, _, _| true));
        }
        // A transaction that is committed later must not bring them back.
        let staged = self.staged.keys_of_group(group);
        let staged = staged.filter(|key| self.get(key).is_none());
        records.extend(staged.map(|key| GroupRecord::Offset(key.clone(), None)));
        records
    }

    /// Tombstones for everything committed for `deleted`. An offset committed under another id
    /// belongs to another topic of the same name and stays.
    pub fn tombstones_of_topics(&self, deleted: &[(TopicName, TopicId)]) -> Vec<GroupRecord> {
        let mut records = Vec::new();
        for (group, topics) in &self.groups {
            for (name, id) in deleted {
                let Some(partitions) = topics.get(name) else {
                    continue;
                };
                let gone = partitions
                    .iter()
                    .filter(|(_, commit)| is_of_topic(commit, *id));
                records.extend(
                    gone.map(|(partition, _)| tombstone(group.clone(), name.clone(), *partition)),
                );
            }
        }
        for (name, id) in deleted {
            let staged = self.staged.keys_of_topic(name, *id);
            let staged = staged.filter(|key| self.get(key).is_none());
            records.extend(staged.map(|key| GroupRecord::Offset(key.clone(), None)));
        }
        records
    }

    /// Tombstones for the offsets of `group` that have outlived their retention (KIP-211), and
    /// whether none is left.
    pub fn expire(
        &self,
        id: &GroupId,
        group: &Group,
        now: TimestampMs,
        retention_ms: i64,
    ) -> (Vec<GroupRecord>, bool) {
        let mut kept = self.staged.has_group(id);
        let Some(topics) = self.groups.get(id) else {
            return (Vec::new(), !kept);
        };
        let lifetime = group.offset_lifetime();
        let has_staged = kept;
        let expired = tombstones(id, topics, |topic, partition, commit| {
            let is_staged = || {
                self.staged.has(&OffsetKey {
                    group: id.clone(),
                    topic: topic.clone(),
                    partition,
                })
            };
            let goes = !group.is_subscribed_to(topic)
                && is_expired(commit, lifetime, now, retention_ms)
                && !(has_staged && is_staged());
            kept |= !goes;
            goes
        })
        .collect();
        (expired, !kept)
    }
}

fn tombstones<'a>(
    group: &'a GroupId,
    topics: &'a Topics,
    mut goes: impl FnMut(&TopicName, PartitionIndex, &OffsetCommit) -> bool + 'a,
) -> impl Iterator<Item = GroupRecord> + 'a {
    topics
        .iter()
        .flat_map(|(topic, partitions)| {
            partitions
                .iter()
                .map(move |(partition, commit)| (topic, *partition, commit))
        })
        .filter(move |(topic, partition, commit)| goes(topic, *partition, commit))
        .map(|(topic, partition, _)| tombstone(group.clone(), topic.clone(), partition))
}

fn tombstone(group: GroupId, topic: TopicName, partition: PartitionIndex) -> GroupRecord {
    let key = OffsetKey {
        group,
        topic,
        partition,
    };
    GroupRecord::Offset(key, None)
}

/// Whether the commit is for the topic with this id; an unknown id on either side is no contradiction.
fn is_of_topic(commit: &OffsetCommit, id: TopicId) -> bool {
    commit.topic_id.is_zero() || id.is_zero() || commit.topic_id == id
}

fn to_fetched(commit: &OffsetCommit) -> FetchedOffset {
    FetchedOffset {
        offset: commit.offset,
        leader_epoch: commit.leader_epoch,
        metadata: commit.metadata.clone(),
    }
}

fn is_expired(
    commit: &OffsetCommit,
    lifetime: OffsetLifetime,
    now: TimestampMs,
    retention_ms: i64,
) -> bool {
    let since = match lifetime {
        OffsetLifetime::Kept => return false,
        OffsetLifetime::SinceCommit => commit.committed_at,
        OffsetLifetime::Since(since) => since,
    };
    if commit.expires_at == TimestampMs::NONE {
        now.get().saturating_sub(since.get()) >= retention_ms
    } else {
        now >= commit.expires_at
    }
}
