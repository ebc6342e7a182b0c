//! A consumer group (KIP-848) as the records in its log say, and what can be told from them.
//!
//! Nothing changes a group but `ConsumerGroup::apply`, which live transitions and replay share: so
//! the live state is the replayed one, but for what the last section of fields says is not in the log.
//!
//! Invariants: every partition has at most one holder, who has it in `assigned` or `revoking`;
//! `target_epoch ≤ epoch`; a member's epoch is at most the target's, or says that it is away.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use odradek_protocol::ids::{Offset, PartitionIndex, TimestampMs, TopicId};

use super::assignment::Partitions;
use super::assignors::{AssignedMember, Assignor, AssignorInput};
use super::member::{ConsumerMember, MemberState};
use super::topics;
use crate::groups::member_memory::{MemberMemory, Share};
use crate::groups::names::{Epoch, GroupId, InstanceId, MemberId, TopicName};
use crate::groups::records::consumer::{ConsumerRecord, GroupEpochValue, RegexValue};
use crate::metadata::image::MetadataImage;

/// Where a group stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumerGroupState {
    /// No members.
    Empty,
    /// The group has changed and has no new target assignment yet.
    Assigning,
    /// Members are on their way to the target assignment.
    Reconciling,
    /// Every member has what it is meant to have.
    Stable,
}

impl ConsumerGroupState {
    /// The name as Kafka spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::Assigning => "Assigning",
            Self::Reconciling => "Reconciling",
            Self::Stable => "Stable",
        }
    }
}

/// A consumer group.
#[derive(Clone, Debug)]
pub struct ConsumerGroup {
    pub(super) id: GroupId,
    pub(super) epoch: Epoch,
    pub(super) metadata_hash: i64,
    members: BTreeMap<MemberId, (ConsumerMember, Share)>,
    pub(super) target_epoch: Epoch,
    pub(super) target_computed_at: TimestampMs,
    target: BTreeMap<MemberId, Partitions>,
    regexes: BTreeMap<String, RegexValue>,
    /// The log has a record of the topics that an older broker wrote.
    pub(super) has_partition_metadata: bool,

    // What follows is computed from the above.
    static_members: HashMap<InstanceId, MemberId>,
    holders: HashMap<(TopicId, PartitionIndex), MemberId>,
    named_topics: BTreeMap<TopicName, usize>,
    regex_members: BTreeMap<String, usize>,
    assignor_members: BTreeMap<String, usize>,
    classic_members: usize,

    // What follows is not in the log.
    /// Metadata below this offset is in the group's hash.
    pub(super) metadata_seen: Option<Offset>,
    /// Since when the regular expressions are being looked up, if they are.
    pub(super) resolving_since: Option<TimestampMs>,
    /// The metadata that was looked through last for what expressions match, and when.
    pub(super) looked_up: Option<(i64, TimestampMs)>,
    /// Classic members that have been told to join again.
    pub(super) told_to_join: BTreeSet<MemberId>,
}

impl ConsumerGroup {
    /// A group without members.
    pub fn new(id: GroupId) -> Self {
        Self {
            id,
            epoch: Epoch::FIRST,
            metadata_hash: 0,
            members: BTreeMap::new(),
            target_epoch: Epoch::FIRST,
            target_computed_at: TimestampMs::new(0),
            target: BTreeMap::new(),
            regexes: BTreeMap::new(),
            has_partition_metadata: false,
            static_members: HashMap::new(),
            holders: HashMap::new(),
            named_topics: BTreeMap::new(),
            regex_members: BTreeMap::new(),
            assignor_members: BTreeMap::new(),
            classic_members: 0,
            metadata_seen: None,
            resolving_since: None,
            looked_up: None,
            told_to_join: BTreeSet::new(),
        }
    }

    /// Takes account of a record. A tombstone of the group itself is its owner's business.
    pub(in crate::groups) fn apply(&mut self, record: &ConsumerRecord, memory: &Arc<MemberMemory>) {
        match record {
            ConsumerRecord::Group(value) => {
                let GroupEpochValue {
                    epoch,
                    metadata_hash,
                } = value.unwrap_or(GroupEpochValue {
                    epoch: Epoch::FIRST,
                    metadata_hash: 0,
                });
                (self.epoch, self.metadata_hash) = (epoch, metadata_hash);
            }
            ConsumerRecord::PartitionMetadata(value) => {
                self.has_partition_metadata = value.is_some();
            }
            ConsumerRecord::Member(id, Some(says)) => {
                let mut member = self.member_or_new(id);
                member.says = says.as_ref().clone();
                self.put(member, memory);
            }
            ConsumerRecord::Member(id, None) => {
                self.take(id);
            }
            ConsumerRecord::TargetEpoch(value) => {
                let (epoch, at) = match value {
                    Some(value) => (value.epoch, value.computed_at),
                    None => (Epoch::LEAVING, TimestampMs::new(0)),
                };
                (self.target_epoch, self.target_computed_at) = (epoch, at);
            }
            ConsumerRecord::Target(id, Some(partitions)) => {
                self.target.insert(id.clone(), partitions.clone());
            }
            ConsumerRecord::Target(id, None) => {
                self.target.remove(id);
            }
            ConsumerRecord::Current(id, Some(at)) => {
                let mut member = self.member_or_new(id);
                member.at = at.clone();
                self.put(member, memory);
            }
            ConsumerRecord::Current(id, None) => {
                if let Some(mut member) = self.member(id).cloned() {
                    member.at = ConsumerMember::new(id.clone()).at;
                    member.at.epoch = Epoch::LEAVING;
                    self.put(member, memory);
                }
            }
            ConsumerRecord::Regex(regex, Some(value)) => {
                self.regexes.insert(regex.clone(), value.clone());
            }
            ConsumerRecord::Regex(regex, None) => {
                self.regexes.remove(regex);
            }
        }
    }

    fn member_or_new(&self, id: &MemberId) -> ConsumerMember {
        let known = self.member(id).cloned();
        known.unwrap_or_else(|| ConsumerMember::new(id.clone()))
    }

    fn put(&mut self, member: ConsumerMember, memory: &Arc<MemberMemory>) {
        self.take(&member.id);
        for topic in &member.says.topics {
            *self.named_topics.entry(topic.clone()).or_default() += 1;
        }
        if let Some(regex) = member.regex() {
            *self.regex_members.entry(regex.to_owned()).or_default() += 1;
        }
        if let Some(assignor) = &member.says.assignor {
            *self.assignor_members.entry(assignor.clone()).or_default() += 1;
        }
        if let Some(instance) = &member.says.instance {
            self.static_members
                .insert(instance.clone(), member.id.clone());
        }
        self.classic_members += usize::from(member.is_classic());
        for owned in [&member.at.assigned, &member.at.revoking] {
            for (topic, partition, _) in owned.iter() {
                self.holders.insert((topic, partition), member.id.clone());
            }
        }
        let share = member.share(memory);
        self.members.insert(member.id.clone(), (member, share));
    }

    fn take(&mut self, id: &MemberId) {
        let Some((member, _)) = self.members.remove(id) else {
            return;
        };
        for topic in &member.says.topics {
            uncount(&mut self.named_topics, topic);
        }
        if let Some(regex) = member.regex() {
            uncount(&mut self.regex_members, regex);
        }
        if let Some(assignor) = &member.says.assignor {
            uncount(&mut self.assignor_members, assignor);
        }
        if let Some(instance) = &member.says.instance
            && self.static_members.get(instance) == Some(id)
        {
            self.static_members.remove(instance);
        }
        self.classic_members -= usize::from(member.is_classic());
        for owned in [&member.at.assigned, &member.at.revoking] {
            for (topic, partition, _) in owned.iter() {
                if self.holders.get(&(topic, partition)) == Some(id) {
                    self.holders.remove(&(topic, partition));
                }
            }
        }
    }

    /// Its id.
    pub fn id(&self) -> &GroupId {
        &self.id
    }

    /// The group's epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Epoch of the target assignment.
    pub fn target_epoch(&self) -> Epoch {
        self.target_epoch
    }

    /// The members, in the order of their ids.
    pub fn members(&self) -> impl Iterator<Item = &ConsumerMember> {
        self.members.values().map(|(member, _)| member)
    }

    /// Number of members.
    pub fn member_count(&self) -> usize {
        self.members.len()
    }

    /// Number of members that speak the classic protocol.
    pub fn classic_member_count(&self) -> usize {
        self.classic_members
    }

    /// The member of that id.
    pub fn member(&self, id: &MemberId) -> Option<&ConsumerMember> {
        self.members.get(id).map(|(member, _)| member)
    }

    /// The static member of that instance.
    pub fn static_member(&self, instance: &InstanceId) -> Option<&ConsumerMember> {
        self.member(self.static_members.get(instance)?)
    }

    /// Who has the partition, or has not let go of it.
    pub fn holder(&self, topic: TopicId, partition: PartitionIndex) -> Option<&MemberId> {
        self.holders.get(&(topic, partition))
    }

    /// What a member is meant to have, if it has been said.
    pub fn target_of(&self, id: &MemberId) -> Option<&Partitions> {
        self.target.get(id)
    }

    /// How many members are subscribed to a regular expression.
    pub(super) fn members_of_regex(&self, regex: &str) -> usize {
        self.regex_members.get(regex).copied().unwrap_or(0)
    }

    /// The regular expressions that members are subscribed to.
    pub(super) fn subscribed_regexes(&self) -> impl Iterator<Item = &String> {
        self.regex_members.keys()
    }

    /// What regular expressions have matched.
    pub fn resolved(&self) -> &BTreeMap<String, RegexValue> {
        &self.regexes
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Where the group stands.
    pub fn state(&self) -> ConsumerGroupState {
        if self.members.is_empty() {
            ConsumerGroupState::Empty
        } else if self.epoch > self.target_epoch {
            ConsumerGroupState::Assigning
        } else if self
            .members()
            .all(|member| member.is_reconciled_to(self.target_epoch))
        {
            ConsumerGroupState::Stable
        } else {
            ConsumerGroupState::Reconciling
        }
    }

    /// Whether a member may be reading `topic`.
    pub fn is_subscribed_to(&self, topic: &TopicName) -> bool {
        let matched = |value: &RegexValue| value.topics.binary_search(topic).is_ok();
        self.named_topics.contains_key(topic) || self.regexes.values().any(matched)
    }

    /// Every topic that a member is subscribed to, by name or by what expressions matched.
    pub(super) fn subscribed_topics(&self) -> BTreeSet<&TopicName> {
        let matched = self.regexes.values().flat_map(|value| &value.topics);
        self.named_topics.keys().chain(matched).collect()
    }

    /// The hash over the subscribed topics as `image` has them.
    pub(super) fn hash_with(&self, image: &MetadataImage) -> i64 {
        topics::hash_of(self.subscribed_topics(), image)
    }

    /// The ids of the topics that `member` is subscribed to.
    pub(super) fn topics_of(
        &self,
        member: &ConsumerMember,
        image: &MetadataImage,
    ) -> BTreeSet<TopicId> {
        let matched = member.regex().and_then(|regex| self.regexes.get(regex));
        let matched = matched.into_iter().flat_map(|value| &value.topics);
        topics::ids_of(member.says.topics.iter().chain(matched), image)
    }

    /// The assignor that most members prefer; the first in the order of names wins a tie.
    pub fn preferred_assignor(&self) -> Option<Assignor> {
        let most = self.assignor_members.values().copied().max()?;
        let (name, _) = self
            .assignor_members
            .iter()
            .find(|(_, count)| **count == most)?;
        Assignor::from_name(name)
    }

    /// Everything that an assignor decides by.
    pub(super) fn assignor_input(&self, image: &MetadataImage) -> AssignorInput {
        let mut input = AssignorInput::default();
        for member in self.members() {
            let subscribed = self.topics_of(member, image);
            for topic in &subscribed {
                input.partition_counts.entry(*topic).or_insert_with(|| {
                    let count = topics::partitions_of(*topic, image).count();
                    i32::try_from(count).unwrap_or(i32::MAX)
                });
            }
            let assigned = AssignedMember {
                instance: member.says.instance.clone(),
                topics: subscribed,
                current: self.target_of(&member.id).cloned().unwrap_or_default(),
            };
            input.members.insert(member.id.clone(), assigned);
        }
        input
    }

    /// Whether a member of the classic protocol with these protocols fits in.
    pub(super) fn supports_classic(&self, protocol_type: &str, names: &[&str]) -> bool {
        let everybody_knows = |name: &str| {
            self.members()
                .filter_map(|member| member.says.classic.as_ref())
                .all(|classic| classic.protocols.iter().any(|known| known.name == name))
        };
        protocol_type == super::CONSUMER_PROTOCOL_TYPE
            && names.iter().any(|name| everybody_knows(name))
    }

    /// Whether a member still has to wait for partitions that others have.
    pub(super) fn waits_for_others(&self, member: &ConsumerMember) -> bool {
        member.at.state == MemberState::UnreleasedPartitions
            && self.target_of(&member.id).is_some_and(|target| {
                target.iter().any(|(topic, partition)| {
                    !member.at.assigned.contains(topic, partition)
                        && self.holder(topic, partition).is_some()
                })
            })
    }

    /// The records that make the group as it stands, in an order in which each can be applied.
    pub(in crate::groups) fn to_records(&self) -> Vec<ConsumerRecord> {
        let mut records = Vec::new();
        for member in self.members() {
            records.push(ConsumerRecord::Member(
                member.id.clone(),
                Some(Box::new(member.says.clone())),
            ));
        }
        records.push(ConsumerRecord::Group(Some(GroupEpochValue {
            epoch: self.epoch,
            metadata_hash: self.metadata_hash,
        })));
        for (id, target) in &self.target {
            records.push(ConsumerRecord::Target(id.clone(), Some(target.clone())));
        }
        records.push(ConsumerRecord::TargetEpoch(Some(
            crate::groups::records::consumer::TargetEpochValue {
                epoch: self.target_epoch,
                computed_at: self.target_computed_at,
            },
        )));
        for member in self.members() {
            records.push(ConsumerRecord::Current(
                member.id.clone(),
                Some(member.at.clone()),
            ));
        }
        records
    }

    /// Tombstones for everything of the group that may be in the log, the group itself last.
    pub(in crate::groups) fn tombstones(&self) -> Vec<ConsumerRecord> {
        let ids = || self.members.keys().cloned();
        let mut records = Vec::new();
        records.extend(ids().map(|id| ConsumerRecord::Current(id, None)));
        // Those of whom there is a target and nothing else are remains of a write cut short.
        let targets: BTreeSet<MemberId> = ids().chain(self.target.keys().cloned()).collect();
        records.extend(
            targets
                .into_iter()
                .map(|id| ConsumerRecord::Target(id, None)),
        );
        records.push(ConsumerRecord::TargetEpoch(None));
        records.extend(ids().map(|id| ConsumerRecord::Member(id, None)));
        let regexes = self.regexes.keys().cloned();
        records.extend(regexes.map(|regex| ConsumerRecord::Regex(regex, None)));
        if self.has_partition_metadata {
            records.push(ConsumerRecord::PartitionMetadata(None));
        }
        records.push(ConsumerRecord::Group(None));
        records
    }
}

fn uncount<Q, K>(counts: &mut BTreeMap<K, usize>, key: &Q)
where
    K: std::borrow::Borrow<Q> + Ord,
    Q: Ord + ?Sized,
{
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
