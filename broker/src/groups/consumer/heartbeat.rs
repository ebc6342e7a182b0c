//! ConsumerGroupHeartbeat: members join, go on, and leave; and what their silence leads to.

use odradek_protocol::ids::{PartitionIndex, TimestampMs, TopicId};

use super::assignment::Partitions;
use super::context::{Context, Refusal};
use super::group::ConsumerGroup;
use super::member::{ConsumerMember, MemberState};
use super::reconcile::Surroundings;
use super::regexes::{self, Lookup};
use crate::groups::error::GroupError;
use crate::groups::member_memory::Claim;
use crate::groups::messages::{ConsumerHeartbeatReply, ConsumerHeartbeatRequest, GroupTimer};
use crate::groups::names::{Epoch, InstanceId, MemberId};
use crate::groups::records::consumer::{
    ConsumerRecord, GroupEpochValue, MemberValue, TargetEpochValue,
};

/// Who a heartbeat is from.
pub(super) struct Sender {
    /// The member as it is now, or as it begins.
    pub member: ConsumerMember,
    /// The one whose place it takes.
    pub replaces: Option<MemberId>,
}

/// What of a group a change of one member has changed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Changed {
    /// Its topics, or its regular expression.
    pub subscription: bool,
    /// Whether the group needs a new assignment.
    pub group: bool,
}

impl ConsumerGroup {
    /// A member joins or goes on.
    ///
    /// # Errors
    /// What the member has to do instead; nothing has changed then, unless the assignment is what is
    /// too large to be stored.
    pub(in crate::groups) fn heartbeat(
        &mut self,
        request: ConsumerHeartbeatRequest,
        cx: &mut Context<'_>,
    ) -> Result<ConsumerHeartbeatReply, Refusal> {
        self.check_room(&request.member, request.instance.as_ref(), cx)?;
        let sender = self.sender(&request)?;
        let before = sender.member.clone();
        let id = before.id.clone();
        let says = updated(&before.says, &request);
        self.check_regex(&before, &says)?;
        self.check_memory(&before, &says, cx)?;
        check_state(&before, request.owned.as_ref())?;
        if let Some(old) = &sender.replaces {
            self.replace(old, &before, cx);
        }
        let (changed, lookup) = self.subscribe(&before, says, cx);
        cx.renew_session(self, &id);
        self.refresh_metadata(changed.group, cx);
        self.assign(cx)?;
        self.reconcile(&id, changed.subscription, request.owned.as_ref(), cx)?;
        let member = self.member(&id).ok_or(GroupError::UnknownMember)?;
        let is_told = request.epoch == Epoch::JOINING
            || request.is_full()
            || member.at.assigned != before.at.assigned;
        let interval_ms = cx.config.consumer.heartbeat_interval_ms(&self.id, cx.image);
        Ok(ConsumerHeartbeatReply {
            epoch: member.at.epoch,
            heartbeat_interval_ms: i32::try_from(interval_ms).unwrap_or(i32::MAX),
            assignment: is_told.then(|| member.at.assigned.partitions()),
            member: id,
            lookup,
        })
    }

    /// Whether one more may join.
    pub(super) fn check_room(
        &self,
        member: &MemberId,
        instance: Option<&InstanceId>,
        cx: &Context<'_>,
    ) -> Result<(), Refusal> {
        let is_here = self.member(member).is_some()
            || instance.is_some_and(|instance| self.static_member(instance).is_some());
        let max_size = cx.config.consumer.max_size;
        if is_here || self.member_count() < max_size {
            return Ok(());
        }
        let message = format!("The consumer group has {max_size} members, which is the most.");
        Err(Refusal::new(GroupError::GroupFull, message))
    }

    fn sender(&self, request: &ConsumerHeartbeatRequest) -> Result<Sender, Refusal> {
        let joins = request.epoch == Epoch::JOINING;
        let Some(instance) = &request.instance else {
            let known = self.member(&request.member).cloned();
            let member = match known {
                Some(member) => member,
                None if joins => ConsumerMember::new(request.member.clone()),
                None => return Err(self.unknown(&request.member)),
            };
            check_epoch(&member, request)?;
            return Ok(Sender {
                member,
                replaces: None,
            });
        };
        match self.static_member(instance) {
            None if joins => {
                let known = self.member(&request.member).cloned();
                let fresh = || ConsumerMember::new(request.member.clone());
                Ok(Sender {
                    member: known.unwrap_or_else(fresh),
                    replaces: None,
                })
            }
            None => Err(self.unknown_instance(instance)),
            Some(held) if joins => {
                if held.at.epoch != Epoch::AWAY && !held.is_classic() {
                    let message = format!(
                        "Instance {instance} belongs to member {}, who is there.",
                        held.id
                    );
                    return Err(Refusal::new(GroupError::UnreleasedInstance, message));
                }
                Ok(Sender {
                    member: held.replaced_by(request.member.clone()),
                    replaces: Some(held.id.clone()),
                })
            }
            Some(held) => {
                self.check_instance(held, &request.member, instance)?;
                check_epoch(held, request)?;
                Ok(Sender {
                    member: held.clone(),
                    replaces: None,
                })
            }
        }
    }

    pub(super) fn unknown(&self, member: &MemberId) -> Refusal {
        let message = format!("There is no member {member} in group {}.", self.id);
        Refusal::new(GroupError::UnknownMember, message)
    }

    pub(super) fn unknown_instance(&self, instance: &InstanceId) -> Refusal {
        let message = format!("There is no instance {instance} in group {}.", self.id);
        Refusal::new(GroupError::UnknownMember, message)
    }

    pub(super) fn check_instance(
        &self,
        held: &ConsumerMember,
        member: &MemberId,
        instance: &InstanceId,
    ) -> Result<(), Refusal> {
        if held.id == *member {
            return Ok(());
        }
        let message = format!("Instance {instance} belongs to member {} by now.", held.id);
        Err(Refusal::new(GroupError::FencedInstance, message))
    }

    fn check_regex(&self, before: &ConsumerMember, says: &MemberValue) -> Result<(), Refusal> {
        let new = says.regex.as_deref().filter(|regex| !regex.is_empty());
        match new {
            Some(regex) if before.regex() != new && self.members_of_regex(regex) == 0 => {
                regexes::compile(regex).map(|_| ())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Whether there is memory, and room on the disk, for what a member brings, and whether it fits into a record.
    pub(super) fn check_memory(
        &self,
        before: &ConsumerMember,
        says: &MemberValue,
        cx: &Context<'_>,
    ) -> Result<(), Refusal> {
        let mut after = before.clone();
        after.says = says.clone();
        let held = match self.member(&before.id) {
            Some(_) => before.size_in_bytes(),
            None => 0,
        };
        let size = after.size_in_bytes();
        if cx.effects.is_scarce && (before.says != *says || held == 0) {
            return Err(GroupError::NotAvailable.into());
        }
        if size > cx.config.max_record_bytes {
            let message = "The subscription is too large to be stored.";
            return Err(Refusal::new(GroupError::RecordTooLarge, message));
        }
        let claim = Claim {
            host: &says.client_host,
            size,
            more: size.saturating_sub(held),
        };
        match cx.config.member_memory.has_room(claim) {
            true => Ok(()),
            false => {
                tracing::warn!(group = %self.id, "no memory for what a member brings along");
                Err(GroupError::NotAvailable.into())
            }
        }
    }

    /// A static member comes back, maybe under another id, for the partitions of `old`.
    pub(super) fn replace(
        &mut self,
        old: &MemberId,
        member: &ConsumerMember,
        cx: &mut Context<'_>,
    ) {
        tracing::info!(group = %self.id, %old, new = %member.id, "static member is replaced");
        let target = self.target_of(old).cloned().unwrap_or_default();
        cx.cancel_timers(self, old);
        self.write_removal(old, cx);
        for record in [
            ConsumerRecord::Member(member.id.clone(), Some(Box::new(member.says.clone()))),
            ConsumerRecord::Target(member.id.clone(), Some(target)),
            ConsumerRecord::Current(member.id.clone(), Some(member.at.clone())),
        ] {
            cx.write(self, record);
        }
    }

    fn write_removal(&mut self, id: &MemberId, cx: &mut Context<'_>) {
        for record in [
            ConsumerRecord::Current(id.clone(), None),
            ConsumerRecord::Target(id.clone(), None),
            ConsumerRecord::Member(id.clone(), None),
        ] {
            cx.write(self, record);
        }
        self.told_to_join.remove(id);
    }

    /// Takes account of what a member says of itself.
    pub(super) fn subscribe(
        &mut self,
        before: &ConsumerMember,
        says: MemberValue,
        cx: &mut Context<'_>,
    ) -> (Changed, Option<Lookup>) {
        let id = before.id.clone();
        let default = cx.config.consumer.default_assignor();
        let assignor = self.preferred_assignor().unwrap_or(default);
        let topics_changed = says.topics != before.says.topics;
        if says != before.says || self.member(&id).is_none() {
            if self.member(&id).is_none() {
                tracing::info!(group = %self.id, member = %id, "member joins");
            }
            cx.write(
                self,
                ConsumerRecord::Member(id.clone(), Some(Box::new(says))),
            );
        }
        let (old, new) = (
            before.regex().map(str::to_owned),
            self.member(&id)
                .and_then(ConsumerMember::regex)
                .map(str::to_owned),
        );
        let mut changed = Changed {
            subscription: topics_changed || old != new,
            group: topics_changed,
        };
        if old != new {
            if let Some(old) = old
                && self.members_of_regex(&old) == 0
                && self.resolved().contains_key(&old)
            {
                cx.write(self, ConsumerRecord::Regex(old, None));
            }
            // One that is yet to be looked up changes the group once it has been.
            changed.group |= new.is_none_or(|new| self.resolved().contains_key(&new));
        }
        changed.group |= self.preferred_assignor().unwrap_or(default) != assignor;
        (changed, self.due_lookup(cx))
    }

    /// Raises the epoch if the group, or what it is subscribed to, has changed.
    pub(super) fn refresh_metadata(&mut self, changed: bool, cx: &mut Context<'_>) {
        let newest = cx.image.next_offset();
        if !changed && self.metadata_seen.is_some_and(|seen| seen >= newest) {
            return;
        }
        self.metadata_seen = Some(newest);
        let metadata_hash = self.hash_with(cx.image);
        if changed || metadata_hash != self.metadata_hash {
            self.raise_epoch(metadata_hash, cx);
        }
        if self.has_partition_metadata {
            cx.write(self, ConsumerRecord::PartitionMetadata(None));
        }
    }

    pub(super) fn raise_epoch(&mut self, metadata_hash: i64, cx: &mut Context<'_>) {
        let epoch = self.epoch.next();
        tracing::info!(group = %self.id, %epoch, members = self.member_count(), "group has changed");
        let value = GroupEpochValue {
            epoch,
            metadata_hash,
        };
        cx.write(self, ConsumerRecord::Group(Some(value)));
    }

    /// Computes the target assignment for the group's epoch, unless there was one a moment ago.
    pub(super) fn assign(&mut self, cx: &mut Context<'_>) -> Result<(), Refusal> {
        if self.target_epoch >= self.epoch {
            return Ok(());
        }
        let interval_ms = cx
            .config
            .consumer
            .assignment_interval_ms(&self.id, cx.image);
        let computed_at = self.target_computed_at.get();
        if computed_at != 0 && cx.now.get() < computed_at.saturating_add(interval_ms) {
            return Ok(());
        }
        let default = cx.config.consumer.default_assignor();
        let assignor = self.preferred_assignor().unwrap_or(default);
        let target = assignor.assign(&self.assignor_input(cx.image));
        if target
            .values()
            .any(|target| size_of(target) > cx.config.max_record_bytes)
        {
            let message = "The assignment of a member is too large to be stored.";
            return Err(Refusal::new(GroupError::RecordTooLarge, message));
        }
        for (id, partitions) in target {
            if self.target_of(&id) != Some(&partitions) {
                cx.write(self, ConsumerRecord::Target(id, Some(partitions)));
            }
        }
        let value = TargetEpochValue {
            epoch: self.epoch,
            computed_at: cx.now,
        };
        tracing::info!(group = %self.id, epoch = %self.epoch, assignor = assignor.name(), "assigned");
        cx.write(self, ConsumerRecord::TargetEpoch(Some(value)));
        Ok(())
    }

    /// Lets a member take its next step towards its target.
    pub(super) fn reconcile(
        &mut self,
        id: &MemberId,
        subscription_changed: bool,
        owned: Option<&Partitions>,
        cx: &mut Context<'_>,
    ) -> Result<(), Refusal> {
        let Some(member) = self.member(id) else {
            return Ok(());
        };
        if !subscription_changed && member.is_reconciled_to(self.target_epoch) {
            return Ok(());
        }
        let subscribed = self.topics_of(member, cx.image);
        let none = Partitions::default();
        let is_held = |topic: TopicId, partition: PartitionIndex| {
            self.holder(topic, partition)
                .is_some_and(|holder| holder != id)
        };
        let surroundings = Surroundings {
            target_epoch: self.target_epoch,
            target: self.target_of(id).unwrap_or(&none),
            subscription_changed,
            is_subscribed: &|topic| subscribed.contains(&topic),
            is_held: &is_held,
            owned,
        };
        let next = surroundings.next(member).map_err(|_| must_rejoin())?;
        if next == member.at {
            return Ok(());
        }
        let timer = GroupTimer::Rebalance(self.id.clone(), id.clone());
        let timeout_ms = i64::from(member.says.rebalance_timeout_ms);
        match next.state {
            _ if member.is_classic() => {}
            MemberState::UnrevokedPartitions => cx.effects.set_timer(timer, timeout_ms),
            MemberState::Stable | MemberState::UnreleasedPartitions | MemberState::Unknown => {
                cx.effects.cancel_timer(timer);
            }
        }
        cx.write(self, ConsumerRecord::Current(id.clone(), Some(next)));
        Ok(())
    }

    /// Who leaves with this heartbeat; `None` for a static member that only goes away for a while,
    /// which is all done then.
    ///
    /// # Errors
    /// It is not there.
    pub(in crate::groups) fn leaving(
        &mut self,
        request: &ConsumerHeartbeatRequest,
        cx: &mut Context<'_>,
    ) -> Result<Option<MemberId>, Refusal> {
        let Some(instance) = &request.instance else {
            return match self.member(&request.member) {
                Some(member) => Ok(Some(member.id.clone())),
                None => Err(self.unknown(&request.member)),
            };
        };
        let held = self
            .static_member(instance)
            .ok_or_else(|| self.unknown_instance(instance))?;
        self.check_instance(held, &request.member, instance)?;
        let id = held.id.clone();
        if request.epoch != Epoch::AWAY {
            return Ok(Some(id));
        }
        tracing::info!(group = %self.id, member = %id, %instance, "static member goes away");
        let mut at = held.at.clone();
        at.epoch = Epoch::AWAY;
        at.assigned =
            super::assignment::Owned::all_since(&at.assigned.partitions(), Epoch::JOINING);
        at.revoking = super::assignment::Owned::default();
        cx.write(self, ConsumerRecord::Current(id, Some(at)));
        Ok(None)
    }

    /// Takes members out, whose partitions go to the others.
    pub(in crate::groups) fn remove(&mut self, ids: &[MemberId], cx: &mut Context<'_>) {
        for id in ids {
            let regex = self
                .member(id)
                .and_then(ConsumerMember::regex)
                .map(str::to_owned);
            cx.cancel_timers(self, id);
            self.write_removal(id, cx);
            if let Some(regex) = regex
                && self.members_of_regex(&regex) == 0
                && self.resolved().contains_key(&regex)
            {
                cx.write(self, ConsumerRecord::Regex(regex, None));
            }
        }
        let metadata_hash = self.hash_with(cx.image);
        self.raise_epoch(metadata_hash, cx);
        if self.is_empty() {
            let value = TargetEpochValue {
                epoch: self.epoch,
                computed_at: TimestampMs::new(0),
            };
            cx.write(self, ConsumerRecord::TargetEpoch(Some(value)));
        }
    }

    /// A new coordinator has read the group from the log: its members get a full session to show
    /// that they are alive.
    pub(in crate::groups) fn loaded(&mut self, cx: &mut Context<'_>) {
        let ids: Vec<MemberId> = self.members().map(|member| member.id.clone()).collect();
        for id in ids {
            cx.renew_session(self, &id);
            let unrevoked = self.member(&id).filter(|member| {
                member.at.state == MemberState::UnrevokedPartitions && !member.is_classic()
            });
            if let Some(member) = unrevoked {
                let timer = GroupTimer::Rebalance(self.id.clone(), id.clone());
                let timeout_ms = i64::from(member.says.rebalance_timeout_ms);
                cx.effects.set_timer(timer, timeout_ms);
            }
        }
    }

    /// Whether a member has to go now that `timer` has fired.
    pub(in crate::groups) fn is_overdue(&self, timer: &GroupTimer) -> bool {
        let (id, why) = match timer {
            GroupTimer::Session(_, id) => (id, "session of member timed out"),
            GroupTimer::Rebalance(_, id) => (id, "member did not let go of partitions in time"),
            GroupTimer::MemberJoin(_, id) => (id, "classic member did not join in time"),
            GroupTimer::MemberSync(_, id) => (id, "classic member did not sync in time"),
            GroupTimer::Join(_) | GroupTimer::Sync(_) | GroupTimer::OffsetRetention => {
                return false;
            }
        };
        let Some(member) = self.member(id) else {
            return false;
        };
        let is_due = match timer {
            GroupTimer::Rebalance(..) => member.at.state == MemberState::UnrevokedPartitions,
            // It may have gone over to the consumer protocol meanwhile.
            GroupTimer::MemberJoin(..) | GroupTimer::MemberSync(..) => member.is_classic(),
            _ => true,
        };
        if !is_due {
            return false;
        }
        tracing::info!(group = %self.id, member = %id, "{why}");
        true
    }
}

/// What a member says of itself after a heartbeat: what it leaves out stays as it was.
fn updated(before: &MemberValue, request: &ConsumerHeartbeatRequest) -> MemberValue {
    let or_before = |new: &Option<String>, old: &Option<String>| new.clone().or(old.clone());
    MemberValue {
        instance: request.instance.clone().or(before.instance.clone()),
        rack: or_before(&request.rack, &before.rack),
        client_id: request.client_id.clone(),
        client_host: request.client_host.clone(),
        topics: request.topics.clone().unwrap_or(before.topics.clone()),
        regex: or_before(&request.regex, &before.regex),
        rebalance_timeout_ms: request
            .rebalance_timeout_ms
            .unwrap_or(before.rebalance_timeout_ms),
        assignor: or_before(&request.assignor, &before.assignor),
        classic: None,
    }
}

/// A member may be one step behind, if the answer that told it of the step was lost: then it has
/// nothing that it should not have.
fn check_epoch(member: &ConsumerMember, request: &ConsumerHeartbeatRequest) -> Result<(), Refusal> {
    let (received, known) = (request.epoch, member.at.epoch);
    if received == Epoch::JOINING || received == known {
        return Ok(());
    }
    let has_only_its_own = || {
        let assigned = |(topic, partition)| member.at.assigned.contains(topic, partition);
        request
            .owned
            .as_ref()
            .is_some_and(|owned| owned.iter().all(assigned))
    };
    if received < known && received == member.at.previous_epoch && has_only_its_own() {
        return Ok(());
    }
    let message = format!(
        "The member is at epoch {received}, but the coordinator has it at {known}. \
         It has to give up its partitions and join again."
    );
    Err(Refusal::new(GroupError::FencedMemberEpoch, message))
}

fn check_state(member: &ConsumerMember, owned: Option<&Partitions>) -> Result<(), Refusal> {
    let is_known = member.at.state != MemberState::Unknown;
    match is_known || owned.is_some_and(Partitions::is_empty) {
        true => Ok(()),
        false => Err(must_rejoin()),
    }
}

fn must_rejoin() -> Refusal {
    let message = "The state of the member is not known. It has to give up its partitions and join \
                   again.";
    Refusal::new(GroupError::FencedMemberEpoch, message)
}

/// What the largest record takes that a member may get for a target.
fn size_of(target: &Partitions) -> usize {
    // Its own record has each partition with its epoch, and what is to be revoked besides.
    target.len() * 16 + target.topic_count() * 48
}
