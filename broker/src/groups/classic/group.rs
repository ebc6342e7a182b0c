//! What a classic group is: its members, what they have in common, and its record.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use odradek_protocol::ids::TimestampMs;

use super::member::Member;
use super::subscription;
use crate::groups::error::GroupError;
use crate::groups::member_memory::{MemberMemory, Share};
use crate::groups::messages::{
    GroupDescription, GroupListing, JoinedMember, MemberDescription, MemberProtocol,
};
use crate::groups::names::{GenerationId, GroupId, InstanceId, MemberId, TopicName};
use crate::groups::records::{GroupMetadata, GroupRecord, MemberMetadata};

/// The kind of protocol whose subscriptions name topics.
const CONSUMER_PROTOCOL_TYPE: &str = "consumer";

/// Where a group stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No members.
    Empty,
    /// Members are joining. `initial` is there if the group was empty before: then it waits for
    /// latecomers instead of going on as soon as everybody known has joined.
    PreparingRebalance { initial: Option<InitialDelay> },
    /// The members wait for their leader's assignment.
    CompletingRebalance,
    /// The members have their assignments.
    Stable,
}

/// How long an initial rebalance still waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InitialDelay {
    /// The delay that runs now.
    pub delay_ms: i64,
    /// What may follow it if more members come.
    pub remaining_ms: i64,
    /// Whether a member came during the delay that runs now.
    pub newcomer: bool,
}

/// How long the offsets of a group are kept once their retention time counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetLifetime {
    /// They do not expire: members use them or may come back to them.
    Kept,
    /// Each from its own commit on.
    SinceCommit,
    /// All from the moment the group became empty.
    Since(TimestampMs),
}

/// A classic group.
#[derive(Clone, Debug)]
pub struct ClassicGroup {
    pub(super) id: GroupId,
    pub(super) state: State,
    pub(super) state_since: TimestampMs,
    pub(super) generation: GenerationId,
    pub(super) protocol_type: Option<String>,
    pub(super) protocol: Option<String>,
    pub(super) leader: Option<MemberId>,
    /// In the order of their ids, so that a history replays to the same choices.
    pub(super) members: BTreeMap<MemberId, Member>,
    /// How many members await their join; kept beside them because every join asks.
    pub(super) awaiting_join: usize,
    static_members: HashMap<InstanceId, MemberId>,
    /// New members that were given an id and have not come back with it.
    pub(super) pending_joins: BTreeMap<MemberId, Share>,
    /// Members of this generation that have not sent SyncGroup.
    pub(super) pending_syncs: BTreeSet<MemberId>,
    /// How many members support each protocol.
    supporters: HashMap<String, usize>,
    /// Topics of all members; `None` if the coordinator cannot tell.
    subscribed: Option<BTreeSet<TopicName>>,
}

impl ClassicGroup {
    /// An empty group, made by its first member or by a commit from outside a group.
    pub fn new(id: GroupId, now: TimestampMs) -> Self {
        Self {
            id,
            state: State::Empty,
            state_since: now,
            generation: GenerationId::new(0),
            protocol_type: None,
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            awaiting_join: 0,
            static_members: HashMap::new(),
            pending_joins: BTreeMap::new(),
            pending_syncs: BTreeSet::new(),
            supporters: HashMap::new(),
            subscribed: None,
        }
    }

    /// The group as its last record describes it.
    pub fn from_record(id: GroupId, record: GroupMetadata, memory: &Arc<MemberMemory>) -> Self {
        let mut group = Self::new(id, record.state_since);
        group.generation = record.generation;
        group.protocol_type = Some(record.protocol_type).filter(|name| !name.is_empty());
        group.protocol = record.protocol;
        for member in &record.members {
            let member = Member::from_record(member, group.protocol.as_deref(), memory);
            group.insert(member);
        }
        // Also if nobody leads.
        group.leader = record.leader;
        if !group.members.is_empty() {
            group.state = State::Stable;
        }
        group.subscribed = group.compute_subscribed();
        group
    }

    /// A stable group of consumers with these members, each with what it supports; what it brings for
    /// the chosen protocol is taken from there.
    pub fn of_consumers(
        id: GroupId,
        generation: GenerationId,
        members: Vec<(MemberMetadata, Vec<MemberProtocol>)>,
        now: TimestampMs,
        memory: &Arc<MemberMemory>,
    ) -> Self {
        let mut group = Self::new(id, now);
        group.generation = generation;
        group.protocol_type = Some(CONSUMER_PROTOCOL_TYPE.to_owned());
        for (metadata, protocols) in members {
            let mut member = Member::from_record(&metadata, None, memory);
            member.set_protocols(protocols);
            group.insert(member);
        }
        group.protocol = group.select_protocol();
        group.state = State::Stable;
        group.subscribed = group.compute_subscribed();
        group
    }

    /// Nobody leads the group until it has rebalanced, which it does under every coordinator.
    pub(in crate::groups) fn be_without_leader(&mut self) {
        self.leader = None;
    }

    /// Its id.
    pub fn id(&self) -> &GroupId {
        &self.id
    }

    /// What a member supports, the preferred first.
    pub fn protocols_of(&self, member: &MemberId) -> &[MemberProtocol] {
        self.members.get(member).map_or(&[], Member::protocols)
    }

    /// The record of the group as it stands.
    pub fn to_record(&self) -> GroupRecord {
        GroupRecord::Group(self.id.clone(), Some(self.metadata()))
    }

    /// The value of that record.
    pub fn metadata(&self) -> GroupMetadata {
        let protocol = self.protocol.as_deref();
        GroupMetadata {
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            generation: self.generation,
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            state_since: self.state_since,
            members: self
                .members
                .values()
                .map(|member| member.to_record(protocol))
                .collect(),
        }
    }

    /// Whether the group has nobody, not even a member that is about to join.
    pub fn is_deserted(&self) -> bool {
        self.state == State::Empty && self.pending_joins.is_empty()
    }

    /// Whether the group has no member.
    pub fn is_empty(&self) -> bool {
        self.state == State::Empty
    }

    /// Whether the record of the group, if it were written now, would say the same as the last one
    /// that was written: between rebalances it would, during one the log is behind.
    pub fn is_settled(&self) -> bool {
        matches!(self.state, State::Empty | State::Stable)
    }

    /// The state's name as Kafka spells it.
    pub fn state_name(&self) -> &'static str {
        match self.state {
            State::Empty => "Empty",
            State::PreparingRebalance { .. } => "PreparingRebalance",
            State::CompletingRebalance => "CompletingRebalance",
            State::Stable => "Stable",
        }
    }

    /// The generation, which only grows.
    pub fn generation(&self) -> GenerationId {
        self.generation
    }

    /// The group as ListGroups shows it.
    pub fn listing(&self) -> GroupListing {
        GroupListing {
            group: self.id.clone(),
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            state: self.state_name(),
            kind: crate::groups::group::KIND_CLASSIC,
        }
    }

    /// The group as DescribeGroups shows it.
    pub fn description(&self) -> GroupDescription {
        let chosen = match self.state {
            State::Stable => self.protocol.as_deref(),
            State::Empty | State::PreparingRebalance { .. } | State::CompletingRebalance => None,
        };
        let describe =
            |member: &Member| -> MemberDescription { member.describe(member.metadata_for(chosen)) };
        GroupDescription {
            state: self.state_name(),
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            protocol: chosen.unwrap_or_default().to_owned(),
            members: self.members.values().map(describe).collect(),
        }
    }

    /// How long the group's offsets are kept (KIP-211).
    pub fn offset_lifetime(&self) -> OffsetLifetime {
        if self.protocol_type.is_none() {
            return OffsetLifetime::SinceCommit;
        }
        match self.state {
            State::Empty if self.state_since == TimestampMs::NONE => OffsetLifetime::SinceCommit,
            State::Empty => OffsetLifetime::Since(self.state_since),
            State::Stable if self.subscribed.is_some() => OffsetLifetime::SinceCommit,
            State::Stable | State::PreparingRebalance { .. } | State::CompletingRebalance => {
                OffsetLifetime::Kept
            }
        }
    }

    /// Whether a member may be reading `topic`. If the coordinator cannot tell, it says yes.
    pub fn is_subscribed_to(&self, topic: &TopicName) -> bool {
        match &self.subscribed {
            Some(topics) => topics.contains(topic),
            None => self.uses_consumer_protocol(),
        }
    }

    /// Whether single offsets of the group may be deleted.
    ///
    /// # Errors
    /// A group with members of a kind whose subscriptions are opaque.
    pub fn check_offset_delete(&self) -> Result<(), GroupError> {
        if self.is_empty() || self.uses_consumer_protocol() {
            Ok(())
        } else {
            Err(GroupError::NonEmptyGroup)
        }
    }

    fn uses_consumer_protocol(&self) -> bool {
        self.protocol_type.as_deref() == Some(CONSUMER_PROTOCOL_TYPE)
    }

    pub(super) fn compute_subscribed(&self) -> Option<BTreeSet<TopicName>> {
        if !self.uses_consumer_protocol() {
            return None;
        }
        let mut topics = BTreeSet::new();
        for member in self.members.values() {
            let metadata = member.metadata_for(self.protocol.as_deref());
            topics.extend(subscription::topics(&metadata)?);
        }
        Some(topics)
    }

    /// Whether a member with these protocols fits into the group.
    pub(super) fn supports(&self, protocol_type: &str, protocols: &[MemberProtocol]) -> bool {
        if self.is_empty() {
            return !protocol_type.is_empty() && !protocols.is_empty();
        }
        let everybody = self.members.len();
        self.protocol_type.as_deref() == Some(protocol_type)
            && protocols.iter().any(|protocol| {
                self.supporters.get(&protocol.name).copied().unwrap_or(0) == everybody
            })
    }

    /// The protocol that most members prefer among those that all support. The first in the order
    /// of names wins a tie, so that the choice does not depend on chance.
    pub(super) fn select_protocol(&self) -> Option<String> {
        let mut votes = BTreeMap::<&str, usize>::new();
        for member in self.members.values() {
            let vote = member.vote(&self.supporters, self.members.len())?;
            *votes.entry(vote).or_default() += 1;
        }
        let most = votes.values().copied().max()?;
        let (winner, _) = votes.into_iter().find(|(_, count)| *count == most)?;
        Some(winner.to_owned())
    }

    pub(super) fn is_leader(&self, member: &MemberId) -> bool {
        self.leader.as_ref() == Some(member)
    }

    pub(super) fn static_member(&self, instance: &InstanceId) -> Option<&MemberId> {
        self.static_members.get(instance)
    }

    pub(super) fn all_joined(&self) -> bool {
        self.members.len() == self.awaiting_join && self.pending_joins.is_empty()
    }

    /// The longest time a member wants a rebalance to wait for it.
    pub(super) fn rebalance_timeout_ms(&self) -> i64 {
        self.members
            .values()
            .map(|member| i64::from(member.rebalance_timeout_ms))
            .fold(0, i64::max)
    }

    pub(super) fn joined_members(&self) -> Vec<JoinedMember> {
        self.members
            .values()
            .map(|member| JoinedMember {
                member: member.id.clone(),
                instance: member.instance.clone(),
                metadata: member.metadata_for(self.protocol.as_deref()),
            })
            .collect()
    }

    /// Whether `member`, under `instance` if it is static, is in the group.
    ///
    /// # Errors
    /// An unknown member, or a static one whose instance has been taken over.
    pub(super) fn check_member(
        &self,
        member: &MemberId,
        instance: Option<&InstanceId>,
    ) -> Result<(), GroupError> {
        if let Some(instance) = instance {
            match self.static_members.get(instance) {
                None => return Err(GroupError::UnknownMember),
                Some(holder) if holder != member => return Err(GroupError::FencedInstance),
                Some(_) => {}
            }
        }
        if self.members.contains_key(member) {
            Ok(())
        } else {
            Err(GroupError::UnknownMember)
        }
    }

    /// Takes in `member`; the first becomes the leader, and its kind of protocol the group's.
    pub(super) fn insert(&mut self, member: Member) {
        if let Some(instance) = &member.instance {
            self.static_members
                .insert(instance.clone(), member.id.clone());
        }
        for protocol in member.protocols() {
            *self.supporters.entry(protocol.name.clone()).or_default() += 1;
        }
        if member.awaiting_join.is_some() {
            self.awaiting_join += 1;
        }
        if self.leader.is_none() {
            self.leader = Some(member.id.clone());
        }
        self.pending_joins.remove(&member.id);
        self.members.insert(member.id.clone(), member);
    }

    /// Takes out `member`. Who leads if it led is the first of the rest.
    pub(super) fn take(&mut self, member: &MemberId) -> Option<Member> {
        self.pending_joins.remove(member);
        self.pending_syncs.remove(member);
        let removed = self.members.remove(member)?;
        self.uncount_protocols(removed.protocols());
        if removed.awaiting_join.is_some() {
            self.awaiting_join -= 1;
        }
        if let Some(instance) = &removed.instance
            && self.static_members.get(instance) == Some(member)
        {
            self.static_members.remove(instance);
        }
        if self.is_leader(member) {
            self.leader = self.members.keys().next().cloned();
        }
        Some(removed)
    }

    /// Gives `member` other protocols.
    pub(super) fn replace_protocols(&mut self, member: &MemberId, protocols: Vec<MemberProtocol>) {
        let Some(member) = self.members.get_mut(member) else {
            return;
        };
        for protocol in &protocols {
            *self.supporters.entry(protocol.name.clone()).or_default() += 1;
        }
        let old = member.set_protocols(protocols);
        self.uncount_protocols(&old);
    }

    fn uncount_protocols(&mut self, protocols: &[MemberProtocol]) {
        for protocol in protocols {
            if let Some(count) = self.supporters.get_mut(&protocol.name) {
                *count -= 1;
                if *count == 0 {
                    self.supporters.remove(&protocol.name);
                }
            }
        }
    }

    /// Enters the next generation with the members that are there.
    pub(super) fn enter_next_generation(&mut self, now: TimestampMs) {
        self.generation = self.generation.next();
        self.protocol = self.select_protocol();
        self.subscribed = self.compute_subscribed();
        self.pending_syncs.clear();
        self.enter(
            if self.members.is_empty() {
                State::Empty
            } else {
                State::CompletingRebalance
            },
            now,
        );
    }

    pub(super) fn enter(&mut self, state: State, now: TimestampMs) {
        self.state = state;
        self.state_since = now;
    }

    pub(super) fn clear_assignments(&mut self) {
        for member in self.members.values_mut() {
            member.set_assignment(Bytes::new());
        }
    }
}
