//! Offsets committed in transactions that are still open: a pure store beside that of the committed
//! ones.
//!
//! A staged offset takes effect when the marker of its transaction commits it, but only if no later
//! record for the same group, topic and partition stands in the log by then: the later record wins,
//! live as in replay. So every record has a number, in the order of the log, and what comes later
//! outdates what is staged. A tombstone deletes what is staged before it.

use std::collections::HashMap;

use odradek_protocol::ids::{ProducerEpoch, ProducerId, TopicId};

use super::names::{GroupId, TopicName};
use super::records::{OffsetCommit, OffsetKey};
use crate::coordinator::effects::ProducerIdentity;

#[derive(Debug)]
struct Staged {
    commit: OffsetCommit,
    /// Place in the order of the log.
    number: u64,
    /// A later record stands in the log.
    is_outdated: bool,
}

#[derive(Debug)]
struct OpenTxn {
    epoch: ProducerEpoch,
    offsets: HashMap<OffsetKey, Staged>,
}

/// The offsets staged in the open transactions of one shard.
#[derive(Debug, Default)]
pub struct StagedOffsets {
    transactions: HashMap<ProducerId, OpenTxn>,
    /// Producers with an offset staged, by what it is for.
    producers: HashMap<OffsetKey, Vec<ProducerId>>,
    /// Number of offsets staged, by group.
    groups: HashMap<GroupId, usize>,
    next_number: u64,
}

impl StagedOffsets {
    /// Whether `producer` has a transaction open here.
    pub fn is_open(&self, producer: ProducerIdentity) -> bool {
        self.transactions
            .get(&producer.id)
            .is_some_and(|open| open.epoch == producer.epoch)
    }

    /// Whether an offset is staged for `key`.
    pub fn has(&self, key: &OffsetKey) -> bool {
        !self.producers.is_empty() && self.producers.contains_key(key)
    }

    /// Whether an offset of `group` is staged.
    pub fn has_group(&self, group: &GroupId) -> bool {
        self.groups.contains_key(group)
    }

    /// What offsets of `group` are staged for, in no order.
    pub fn keys_of_group<'a>(&'a self, group: &'a GroupId) -> impl Iterator<Item = &'a OffsetKey> {
        let some = self.has_group(group).then_some(&self.producers);
        let keys = some.into_iter().flat_map(|producers| producers.keys());
        keys.filter(move |key| key.group == *group)
    }

    /// What offsets are staged for in the topic with this name and id, in no order.
    pub fn keys_of_topic<'a>(
        &'a self,
        topic: &'a TopicName,
        id: TopicId,
    ) -> impl Iterator<Item = &'a OffsetKey> {
        let is_of_topic = move |key: &OffsetKey, staged: &Staged| {
            key.topic == *topic
                && (staged.commit.topic_id.is_zero() || staged.commit.topic_id == id)
        };
        self.transactions
            .values()
            .flat_map(|open| open.offsets.iter())
            .filter(move |&(key, staged)| is_of_topic(key, staged))
            .map(|(key, _)| key)
    }

    /// Stages an offset in the transaction of `producer`.
    pub fn stage(&mut self, producer: ProducerIdentity, key: &OffsetKey, commit: OffsetCommit) {
        let number = self.next_number;
        self.next_number += 1;
        let open = self
            .transactions
            .entry(producer.id)
            .or_insert_with(|| OpenTxn {
                epoch: producer.epoch,
                offsets: HashMap::new(),
            });
        open.epoch = producer.epoch;
        let staged = Staged {
            commit,
            number,
            is_outdated: false,
        };
        if open.offsets.insert(key.clone(), staged).is_none() {
            let producers = self.producers.entry(key.clone()).or_default();
            producers.push(producer.id);
            *self.groups.entry(key.group.clone()).or_default() += 1;
        }
    }

    /// An offset for `key` has been committed outside of any transaction, which is later than all that
    /// is staged for it.
    pub fn outdate(&mut self, key: &OffsetKey) {
        if self.has(key) {
            self.outdate_before(key, self.next_number);
        }
    }

    /// What is committed for `key` has been deleted, and what is staged for it is gone with it. The transactions
    /// stay open.
    pub fn discard(&mut self, key: &OffsetKey) {
        for producer_id in self.producers.get(key).cloned().unwrap_or_default() {
            let open = self.transactions.get_mut(&producer_id);
            if open.is_some_and(|open| open.offsets.remove(key).is_some()) {
                self.forget(producer_id, key);
            }
        }
    }

    fn outdate_before(&mut self, key: &OffsetKey, number: u64) {
        let Some(producers) = self.producers.get(key) else {
            return;
        };
        for producer_id in producers {
            let open = self.transactions.get_mut(producer_id);
            let staged = open.and_then(|open| open.offsets.get_mut(key));
            if let Some(staged) = staged.filter(|staged| staged.number < number) {
                staged.is_outdated = true;
            }
        }
    }

    /// The transaction of the producer has ended. Returns the offsets that take effect now.
    pub fn end(
        &mut self,
        producer_id: ProducerId,
        committed: bool,
    ) -> Vec<(OffsetKey, OffsetCommit)> {
        let Some(open) = self.transactions.remove(&producer_id) else {
            return Vec::new();
        };
        let mut effective = Vec::new();
        for (key, staged) in open.offsets {
            self.forget(producer_id, &key);
            if committed && !staged.is_outdated {
                self.outdate_before(&key, staged.number);
                effective.push((key, staged.commit));
            }
        }
        effective
    }

    fn forget(&mut self, producer_id: ProducerId, key: &OffsetKey) {
        if let Some(producers) = self.producers.get_mut(key) {
            producers.retain(|known| *known != producer_id);
            if producers.is_empty() {
                self.producers.remove(key);
            }
        }
        if let Some(count) = self.groups.get_mut(&key.group) {
            *count -= 1;
            if *count == 0 {
                self.groups.remove(&key.group);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use odradek_protocol::ids::{LeaderEpoch, Offset, PartitionIndex, TimestampMs};

    use super::*;

    fn producer(id: i64) -> ProducerIdentity {
        ProducerIdentity {
            id: ProducerId::new(id),
            epoch: ProducerEpoch::new(0),
        }
    }

    fn key(partition: i32) -> OffsetKey {
        OffsetKey {
            group: GroupId::new("g"),
            topic: TopicName::new("t"),
            partition: PartitionIndex::new(partition),
        }
    }

    fn commit(offset: i64) -> OffsetCommit {
        OffsetCommit {
            offset: Offset::new(offset),
            leader_epoch: LeaderEpoch::NONE,
            metadata: Box::from(""),
            committed_at: TimestampMs::new(1),
            expires_at: TimestampMs::NONE,
            topic_id: TopicId::ZERO,
        }
    }

    fn ended(staged: &mut StagedOffsets, id: i64, committed: bool) -> Vec<i64> {
        let effective = staged.end(ProducerId::new(id), committed);
        let offsets = effective.iter().map(|(_, commit)| commit.offset.get());
        offsets.collect()
    }

    #[test]
    fn a_staged_offset_takes_effect_when_its_transaction_is_committed_and_not_when_aborted() {
        let mut staged = StagedOffsets::default();
        staged.stage(producer(1), &key(0), commit(10));
        assert!(staged.has(&key(0)) && staged.is_open(producer(1)));
        assert!(staged.has_group(&GroupId::new("g")));
        assert_eq!(ended(&mut staged, 1, true), [10]);
        assert!(!staged.has(&key(0)) && !staged.is_open(producer(1)));
        assert!(!staged.has_group(&GroupId::new("g")));
        staged.stage(producer(1), &key(0), commit(11));
        assert_eq!(ended(&mut staged, 1, false), [0_i64; 0]);
        assert_eq!(ended(&mut staged, 1, true), [0_i64; 0]);
    }

    #[test]
    fn a_plain_commit_that_comes_later_wins_over_a_staged_one() {
        let mut staged = StagedOffsets::default();
        staged.stage(producer(1), &key(0), commit(10));
        staged.outdate(&key(0));
        assert!(staged.has(&key(0)), "the transaction is open nevertheless");
        staged.stage(producer(1), &key(1), commit(12));
        assert_eq!(ended(&mut staged, 1, true), [12]);
    }

    #[test]
    fn what_is_deleted_is_not_staged_any_more_in_any_transaction() {
        let mut staged = StagedOffsets::default();
        staged.stage(producer(1), &key(0), commit(10));
        staged.stage(producer(2), &key(0), commit(20));
        staged.stage(producer(2), &key(1), commit(21));
        staged.discard(&key(0));
        assert!(!staged.has(&key(0)) && staged.has(&key(1)));
        assert!(staged.has_group(&GroupId::new("g")));
        assert!(staged.is_open(producer(1)) && staged.is_open(producer(2)));
        staged.discard(&key(1));
        assert!(!staged.has_group(&GroupId::new("g")));
        staged.stage(producer(1), &key(0), commit(11));
        assert_eq!(
            ended(&mut staged, 1, true),
            [11],
            "staged after it was deleted"
        );
        assert_eq!(ended(&mut staged, 2, true), [0_i64; 0]);
        assert!(!staged.has(&key(0)) && !staged.has_group(&GroupId::new("g")));
    }

    #[test]
    fn of_two_transactions_the_later_record_wins_whichever_ends_first() {
        for first_to_end in [1, 2] {
            let mut staged = StagedOffsets::default();
            staged.stage(producer(1), &key(0), commit(10));
            staged.stage(producer(2), &key(0), commit(20));
            let mut effective = ended(&mut staged, first_to_end, true);
            effective.extend(ended(&mut staged, 3 - first_to_end, true));
            assert_eq!(effective.last(), Some(&20), "{first_to_end} ended first");
        }
    }
}
