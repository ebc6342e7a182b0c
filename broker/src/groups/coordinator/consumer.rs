//! What of the coordinator is about consumer groups (KIP-848): their heartbeats, their classic
//! members, and the way of a group from one protocol to the other.

use std::sync::Arc;

use odradek_protocol::ids::TimestampMs;

use super::GroupCoordinator;
use crate::groups::classic;
use crate::groups::consumer::member::ConsumerMember;
use crate::groups::consumer::regexes::Found;
use crate::groups::consumer::{
    ConsumerGroup, Context, Refusal, downgrades_without, from_classic, to_classic,
};
use crate::groups::error::GroupError;
use crate::groups::group::Group;
use crate::groups::messages::{
    CommitRequest, ConsumerGroupDescription, ConsumerHeartbeatReply, ConsumerHeartbeatRequest,
    ConsumerMemberDescription, FetchRequest, GroupEffects, GroupTimer, JoinReply, JoinRequest,
    LeaveRequest,
};
use crate::groups::names::{Epoch, GroupId, MemberId};
use crate::groups::records::GroupRecord;
use crate::groups::records::consumer::ConsumerRecord;
use crate::metadata::image::MetadataImage;

impl GroupCoordinator {
    /// Takes account of a record of a consumer group from the log.
    pub(super) fn apply_consumer(&mut self, id: &GroupId, record: &ConsumerRecord) {
        if matches!(record, ConsumerRecord::Group(None)) {
            if self
                .groups
                .get(id)
                .is_some_and(|group| group.as_consumer().is_some())
            {
                self.groups.remove(id);
            }
            return;
        }
        let is_tombstone = record.is_tombstone();
        let group = match self.groups.get_mut(id) {
            Some(Group::Consumer(group)) => group,
            // What is left of a group that is gone makes none.
            Some(Group::Classic(_)) | None if is_tombstone => return,
            Some(Group::Classic(_)) | None => {
                let made = Group::consumer(ConsumerGroup::new(id.clone()));
                self.groups.insert(id.clone(), made);
                match self.groups.get_mut(id) {
                    Some(Group::Consumer(group)) => group,
                    Some(Group::Classic(_)) | None => return,
                }
            }
        };
        group.apply(record, &self.config.member_memory);
    }

    fn image(&self) -> Arc<MetadataImage> {
        self.config.metadata.load_full()
    }

    /// Lets something happen to a consumer group.
    fn with_consumer<T>(
        &mut self,
        id: &GroupId,
        now: TimestampMs,
        effects: &mut GroupEffects,
        event: impl FnOnce(&mut ConsumerGroup, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let image = self.image();
        let Some(Group::Consumer(group)) = self.groups.get_mut(id) else {
            return None;
        };
        let mut cx = Context {
            config: &self.config,
            image: &image,
            now,
            effects,
        };
        Some(event(group, &mut cx))
    }

    pub(super) fn start_consumer_groups(&mut self, now: TimestampMs, effects: &mut GroupEffects) {
        let (image, config) = (self.image(), self.config.clone());
        let mut cx = Context {
            config: &config,
            image: &image,
            now,
            effects,
        };
        for group in self.groups_in_order() {
            if let Group::Consumer(group) = group {
                group.loaded(&mut cx);
            }
        }
    }

    pub(super) fn wake_consumer(
        &mut self,
        id: &GroupId,
        timer: &GroupTimer,
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) {
        let Some(Group::Consumer(group)) = self.groups.get(id) else {
            return;
        };
        let overdue = match timer {
            GroupTimer::Session(_, member)
            | GroupTimer::Rebalance(_, member)
            | GroupTimer::MemberJoin(_, member)
            | GroupTimer::MemberSync(_, member)
                if group.is_overdue(timer) =>
            {
                member.clone()
            }
            _ => return,
        };
        self.remove_members(id, &[overdue], now, effects);
    }

    /// ConsumerGroupHeartbeat.
    pub(super) fn consumer_heartbeat(
        &mut self,
        request: ConsumerHeartbeatRequest,
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) -> Result<ConsumerHeartbeatReply, Refusal> {
        let id = request.group.clone();
        if matches!(request.epoch, Epoch::LEAVING | Epoch::AWAY) {
            return self.consumer_leaves(&request, now, effects);
        }
        let is_there = matches!(self.groups.get(&id), Some(Group::Consumer(_)));
        if effects.is_scarce && request.epoch == Epoch::JOINING && !is_there {
            return Err(GroupError::NotAvailable.into());
        }
        let mut fresh = self.ready_for(&request, now, effects)?;
        let image = self.image();
        let mut cx = Context {
            config: &self.config,
            image: &image,
            now,
            effects,
        };
        match &mut fresh {
            // A group that nobody gets into comes to nothing.
            Some(group) => {
                let before = (cx.effects.records.len(), cx.effects.timers.len());
                let reply = group.heartbeat(request, &mut cx).inspect_err(|_| {
                    cx.effects.records.truncate(before.0);
                    cx.effects.timers.truncate(before.1);
                })?;
                if let Some(Group::Classic(mut empty)) = self.groups.remove(&id) {
                    let mut cx = classic::Context {
                        config: &self.config,
                        now,
                        effects,
                    };
                    empty.dismiss(&mut cx);
                    effects
                        .records
                        .insert(0, GroupRecord::Group(id.clone(), None));
                }
                if let Some(group) = fresh {
                    self.groups.insert(id, Group::consumer(group));
                }
                Ok(reply)
            }
            None => match self.groups.get_mut(&id) {
                Some(Group::Consumer(group)) => group.heartbeat(request, &mut cx),
                Some(Group::Classic(_)) | None => Err(not_found(&id)),
            },
        }
    }

    /// The group that a member is about to make; `None` if there is one, which has been made into a
    /// consumer group if it was a classic one.
    fn ready_for(
        &mut self,
        request: &ConsumerHeartbeatRequest,
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) -> Result<Option<ConsumerGroup>, Refusal> {
        let id = &request.group;
        let joins = request.epoch == Epoch::JOINING;
        match self.groups.get(id) {
            Some(Group::Consumer(_)) => Ok(None),
            Some(Group::Classic(group)) if joins && !group.is_empty() => {
                self.upgrade(request, now, effects)?;
                Ok(None)
            }
            Some(Group::Classic(_)) | None if joins => Ok(Some(ConsumerGroup::new(id.clone()))),
            Some(Group::Classic(_)) | None => Err(not_found(id)),
        }
    }

    /// Makes a classic group with members into a consumer group.
    fn upgrade(
        &mut self,
        request: &ConsumerHeartbeatRequest,
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) -> Result<(), Refusal> {
        let id = &request.group;
        let image = self.image();
        let mut cx = Context {
            config: &self.config,
            image: &image,
            now,
            effects,
        };
        let Some(Group::Classic(classic)) = self.groups.get_mut(id) else {
            return Ok(());
        };
        let (mut group, records) = from_classic(classic, &cx)?;
        // Whoever the group is made for must get in.
        group.clone().heartbeat(
            request.clone(),
            &mut Context {
                effects: &mut GroupEffects::default(),
                ..cx
            },
        )?;
        tracing::info!(group = %id, "the classic group becomes a consumer group");
        classic.dissolve(&mut classic::Context {
            config: &self.config,
            now,
            effects: &mut *effects,
        });
        effects.records.push(GroupRecord::Group(id.clone(), None));
        let records = records.into_iter();
        let records = records.map(|record| GroupRecord::Consumer(id.clone(), record));
        effects.records.extend(records);
        cx = Context {
            config: &self.config,
            image: &image,
            now,
            effects,
        };
        group.loaded(&mut cx);
        self.groups.insert(id.clone(), Group::consumer(group));
        Ok(())
    }

    fn consumer_leaves(
        &mut self,
        request: &ConsumerHeartbeatRequest,
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) -> Result<ConsumerHeartbeatReply, Refusal> {
        let id = &request.group;
        let leaving = self
            .with_consumer(id, now, effects, |group, cx| group.leaving(request, cx))
            .ok_or_else(|| not_found(id))??;
        if let Some(member) = leaving {
            tracing::info!(group = %id, %member, "member leaves");
            self.remove_members(id, &[member], now, effects);
        }
        Ok(ConsumerHeartbeatReply {
            member: request.member.clone(),
            epoch: request.epoch,
            heartbeat_interval_ms: 0,
            assignment: None,
            lookup: None,
        })
    }

    /// Takes members out of a consumer group, which becomes a classic one if only classic members are
    /// left.
    fn remove_members(
        &mut self,
        id: &GroupId,
        members: &[MemberId],
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) {
        let Some(Group::Consumer(group)) = self.groups.get(id) else {
            return;
        };
        if members.is_empty() {
            return;
        }
        if downgrades_without(group, members, &self.config) {
            return self.downgrade(id, members, true, now, effects);
        }
        self.with_consumer(id, now, effects, |group, cx| group.remove(members, cx));
    }

    /// Makes a consumer group whose members are classic, but for those who leave, into a classic one.
    fn downgrade(
        &mut self,
        id: &GroupId,
        leaving: &[MemberId],
        rebalances: bool,
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) {
        let image = self.image();
        let Some(Group::Consumer(group)) = self.groups.get(id) else {
            return;
        };
        tracing::info!(group = %id, "the consumer group becomes a classic group");
        let cx = Context {
            config: &self.config,
            image: &image,
            now,
            effects: &mut *effects,
        };
        let mut cx = cx;
        for member in group.members() {
            cx.cancel_timers(group, &member.id);
        }
        let mut classic = to_classic(group, leaving, rebalances, &self.config, &image, now);
        let tombstones = group.tombstones().into_iter();
        let records = tombstones.map(|record| GroupRecord::Consumer(id.clone(), record));
        effects.records.extend(records);
        effects.records.push(classic.to_record());
        let mut cx = classic::Context {
            config: &self.config,
            now,
            effects,
        };
        classic.loaded(&mut cx);
        self.groups.insert(id.clone(), Group::classic(classic));
    }

    /// JoinGroup of a member of the classic protocol in a consumer group with members.
    pub(super) fn join_consumer(
        &mut self,
        request: JoinRequest,
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) -> JoinReply {
        let id = request.group.clone();
        let joined = self.with_consumer(&id, now, effects, |group, cx| {
            group.join_classic(&request, cx)
        });
        match joined {
            Some(Ok(joined)) => {
                if let Some(rebalances) = joined.downgrade {
                    self.downgrade(&id, &[], rebalances, now, effects);
                }
                joined.reply
            }
            Some(Err(refusal)) => {
                tracing::debug!(group = %id, message = refusal.message, "join is refused");
                JoinReply::refused(refusal.error, MemberId::new(""))
            }
            None => JoinReply::refused(GroupError::UnknownMember, request.member),
        }
    }

    /// Something that a member of the classic protocol asks of the consumer group that it is in.
    pub(super) fn ask_as_classic<T>(
        &mut self,
        id: &GroupId,
        now: TimestampMs,
        effects: &mut GroupEffects,
        ask: impl FnOnce(&mut ConsumerGroup, &mut Context<'_>) -> Result<T, GroupError>,
    ) -> Result<T, GroupError> {
        let answer = self.with_consumer(id, now, effects, ask);
        answer.unwrap_or(Err(GroupError::UnknownMember))
    }

    /// LeaveGroup in a consumer group: one result a member.
    pub(super) fn leave_consumer(
        &mut self,
        request: &LeaveRequest,
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) -> Vec<Result<(), GroupError>> {
        let Some(Group::Consumer(group)) = self.groups.get(&request.group) else {
            return Vec::new();
        };
        let (results, leaving) = group.leaving_classic(&request.members);
        self.remove_members(&request.group, &leaving, now, effects);
        results
    }

    /// What regular expressions match has been found.
    pub(super) fn looked_up(
        &mut self,
        id: &GroupId,
        found: Found,
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) {
        self.with_consumer(id, now, effects, |group, cx| group.looked_up(found, cx));
    }

    /// Whether a commit may land: the member is at its epoch, or the partitions have been its own
    /// since before the epoch that it believes in (KIP-1251).
    pub(super) fn check_consumer_commit(
        group: &ConsumerGroup,
        request: &CommitRequest,
    ) -> Result<(), GroupError> {
        let epoch = Epoch::new(request.generation.get());
        if epoch < Epoch::JOINING && group.is_empty() {
            return Ok(());
        }
        let member = group
            .member(&request.member)
            .ok_or(GroupError::UnknownMember)?;
        if !member.is_classic() && !request.knows_epochs {
            return Err(GroupError::UnsupportedVersion);
        }
        let owned_since = |epoch: Epoch| {
            request.topics.iter().all(|topic| {
                topic.partitions.iter().all(|partition| {
                    let since = member.owns_since(topic.topic_id, partition.partition);
                    since.is_some_and(|since| epoch >= since)
                })
            })
        };
        if epoch == member.at.epoch || (epoch < member.at.epoch && owned_since(epoch)) {
            return Ok(());
        }
        Err(stale(member))
    }

    /// Whether a member that asks for offsets is who it says and where it says.
    pub(super) fn check_fetch(&self, request: &FetchRequest) -> Result<(), GroupError> {
        let (Some((id, epoch)), Some(Group::Consumer(group))) =
            (&request.member, self.groups.get(&request.group))
        else {
            return Ok(());
        };
        let member = group.member(id).ok_or(GroupError::UnknownMember)?;
        match member.at.epoch == *epoch {
            true => Ok(()),
            false => Err(stale(member)),
        }
    }

    /// ConsumerGroupDescribe.
    pub(super) fn describe_consumer(&self, id: &GroupId) -> Option<ConsumerGroupDescription> {
        let group = self.groups.get(id)?.as_consumer()?;
        let default = self.config.consumer.default_assignor();
        let describe = |member: &ConsumerMember| ConsumerMemberDescription {
            member: member.id.clone(),
            instance: member.says.instance.clone(),
            rack: member.says.rack.clone(),
            epoch: member.at.epoch,
            client_id: member.says.client_id.clone(),
            client_host: member.says.client_host.clone(),
            topics: member.says.topics.clone(),
            regex: member.says.regex.clone(),
            assigned: member.at.assigned.merged(&member.at.revoking).partitions(),
            target: group.target_of(&member.id).cloned().unwrap_or_default(),
            is_classic: member.is_classic(),
        };
        Some(ConsumerGroupDescription {
            state: group.state().name(),
            epoch: group.epoch(),
            target_epoch: group.target_epoch(),
            assignor: group
                .preferred_assignor()
                .unwrap_or(default)
                .name()
                .to_owned(),
            members: group.members().map(describe).collect(),
        })
    }
}

fn stale(member: &ConsumerMember) -> GroupError {
    match member.is_classic() {
        true => GroupError::IllegalGeneration,
        false => GroupError::StaleMemberEpoch,
    }
}

fn not_found(id: &GroupId) -> Refusal {
    let message = format!("There is no consumer group {id}.");
    Refusal::new(GroupError::GroupNotFound, message)
}

/// Everything of a group that is in its log.
#[cfg(test)]
pub(super) fn records_of(group: &ConsumerGroup) -> Vec<ConsumerRecord> {
    let resolved = group.resolved().iter();
    let regexes = resolved.map(|(text, value)| (text.clone(), Some(value.clone())));
    let regexes = regexes.map(|(text, value)| ConsumerRecord::Regex(text, value));
    group.to_records().into_iter().chain(regexes).collect()
}
