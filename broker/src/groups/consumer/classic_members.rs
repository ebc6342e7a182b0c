//! Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup
//! while an application moves from one protocol to the other (KIP-848, "online migration").
//!
//! To such a member its epoch is the generation, and a rebalance is whenever there is a new target for
//! it: it is told to join again, joining is its step towards the target, and what it has then comes
//! with the answer to its sync. Nobody leads, so nobody is asked to assign. A member that does not come
//! in time is taken out.

use bytes::Bytes;

use super::assignment::Partitions;
use super::context::{Context, Refusal};
use super::group::ConsumerGroup;
use super::heartbeat::Sender;
use super::member::{ConsumerMember, MemberState};
use crate::groups::consumer_protocol::{self, NamedPartitions, Subscription};
use crate::groups::error::GroupError;
use crate::groups::messages::{
    GroupTimer, HeartbeatRequest, JoinReply, JoinRequest, LeavingMember, SyncReply, SyncRequest,
};
use crate::groups::names::{GenerationId, InstanceId, MemberId, TopicName};
use crate::groups::records::consumer::{ClassicMemberValue, MemberValue};
use crate::metadata::image::MetadataImage;

/// What a join has led to.
pub(in crate::groups) struct Joined {
    pub reply: JoinReply,
    /// All members speak the classic protocol now, so the group may become a classic one; it needs a
    /// rebalance if so.
    pub downgrade: Option<bool>,
}

impl ConsumerGroup {
    /// A member of the classic protocol joins.
    ///
    /// # Errors
    /// What it has to do instead; nothing has changed then.
    pub(in crate::groups) fn join_classic(
        &mut self,
        request: &JoinRequest,
        cx: &mut Context<'_>,
    ) -> Result<Joined, Refusal> {
        let policy = cx.config.consumer.migration_policy;
        if !policy.allows_upgrade() && !policy.allows_downgrade() {
            return Err(GroupError::InconsistentProtocol.into());
        }
        let is_new = request.member.is_empty();
        let id = match is_new {
            true => request.fresh_member.clone(),
            false => request.member.clone(),
        };
        self.check_room(&id, request.instance.as_ref(), cx)?;
        let names: Vec<&str> = request.protocols.iter().map(|p| p.name.as_str()).collect();
        let first = request.protocols.first();
        let first = first.filter(|_| self.supports_classic(&request.protocol_type, &names));
        let first = first.ok_or(GroupError::InconsistentProtocol)?;
        if is_new && request.instance.is_none() && request.member_id_required {
            let reply = JoinReply::refused(GroupError::MemberIdRequired, id);
            return Ok(Joined {
                reply,
                downgrade: None,
            });
        }
        let sender = self.classic_sender(&id, is_new, request.instance.as_ref())?;
        let subscription = consumer_protocol::subscription(&first.metadata)
            .ok_or(GroupError::InconsistentProtocol)?;
        let before = sender.member.clone();
        let says = updated(&before.says, request, &subscription);
        self.check_memory(&before, &says, cx)?;
        let others_are_classic = sender.replaces.as_ref().is_some_and(|old| {
            let old_is_classic = self.member(old).is_some_and(ConsumerMember::is_classic);
            !old_is_classic && self.classic_member_count() == self.member_count() - 1
        });
        let downgrades = others_are_classic
            && policy.allows_downgrade()
            && self.member_count() <= cx.config.group_max_size;
        if let Some(old) = &sender.replaces {
            self.replace(old, &before, cx);
        }
        let (changed, _) = self.subscribe(&before, says, cx);
        cx.renew_session(self, &id);
        self.refresh_metadata(changed.subscription, cx);
        let owned = by_id(&subscription.owned, cx.image);
        let mut downgrade = None;
        if downgrades {
            let is_on_its_way =
                |one: &ConsumerMember| one.id != id && !one.is_reconciled_to(self.target_epoch);
            downgrade = Some(self.target_epoch < self.epoch || self.members().any(is_on_its_way));
        } else {
            self.assign(cx)?;
        }
        if downgrade != Some(true) {
            self.reconcile(&id, changed.subscription, Some(&owned), cx)?;
        }
        self.joined(&id, request, downgrade, cx)
    }

    fn joined(
        &mut self,
        id: &MemberId,
        request: &JoinRequest,
        downgrade: Option<bool>,
        cx: &mut Context<'_>,
    ) -> Result<Joined, Refusal> {
        self.told_to_join.remove(id);
        cx.effects
            .cancel_timer(GroupTimer::MemberJoin(self.id.clone(), id.clone()));
        let sync = GroupTimer::MemberSync(self.id.clone(), id.clone());
        cx.effects
            .set_timer(sync, i64::from(request.rebalance_timeout_ms));
        let member = self.member(id).ok_or(GroupError::UnknownMember)?;
        Ok(Joined {
            reply: JoinReply {
                error: None,
                generation: member.at.epoch.as_generation(),
                protocol_type: Some(super::CONSUMER_PROTOCOL_TYPE.to_owned()),
                protocol: chosen(member).map(|protocol| protocol.name.clone()),
                leader: MemberId::new(""),
                skip_assignment: false,
                member: id.clone(),
                members: Vec::new(),
            },
            downgrade,
        })
    }

    fn classic_sender(
        &self,
        id: &MemberId,
        is_new: bool,
        instance: Option<&InstanceId>,
    ) -> Result<Sender, Refusal> {
        let held = match instance {
            Some(instance) => self.static_member(instance),
            None => None,
        };
        let (member, replaces) = match (instance, held) {
            (Some(_), Some(held)) if is_new => {
                (held.replaced_by(id.clone()), Some(held.id.clone()))
            }
            (Some(instance), Some(held)) => {
                self.check_instance(held, id, instance)?;
                (held.clone(), None)
            }
            (Some(instance), None) if !is_new => return Err(self.unknown_instance(instance)),
            (Some(_) | None, _) => {
                let known = self.member(id).cloned();
                (
                    known.unwrap_or_else(|| ConsumerMember::new(id.clone())),
                    None,
                )
            }
        };
        Ok(Sender { member, replaces })
    }

    /// The classic member that a request is from.
    fn classic_member(
        &self,
        id: &MemberId,
        instance: Option<&InstanceId>,
        generation: GenerationId,
    ) -> Result<&ConsumerMember, GroupError> {
        let member = match instance {
            Some(instance) => {
                let held = self.static_member(instance);
                let held = held.ok_or(GroupError::UnknownMember)?;
                if held.id != *id {
                    return Err(GroupError::FencedInstance);
                }
                held
            }
            None => self.member(id).ok_or(GroupError::UnknownMember)?,
        };
        if !member.is_classic() {
            return Err(GroupError::UnknownMember);
        }
        if member.at.epoch.as_generation() != generation {
            return Err(GroupError::IllegalGeneration);
        }
        Ok(member)
    }

    /// A member of the classic protocol asks for its assignment.
    ///
    /// # Errors
    /// What it has to do instead.
    pub(in crate::groups) fn sync_classic(
        &mut self,
        request: &SyncRequest,
        cx: &mut Context<'_>,
    ) -> Result<SyncReply, GroupError> {
        let member = self.classic_member(
            &request.member,
            request.instance.as_ref(),
            request.generation,
        )?;
        let protocol = chosen(member).ok_or(GroupError::InconsistentProtocol)?;
        let is_ours = |theirs: &Option<String>, ours: &str| {
            theirs.as_deref().is_none_or(|theirs| theirs == ours)
        };
        if !is_ours(&request.protocol_type, super::CONSUMER_PROTOCOL_TYPE)
            || !is_ours(&request.protocol, &protocol.name)
        {
            return Err(GroupError::InconsistentProtocol);
        }
        if self.target_epoch > member.at.epoch
            && member.at.state != MemberState::UnrevokedPartitions
        {
            self.tell_to_join(&request.member, cx);
            return Err(GroupError::RebalanceInProgress);
        }
        let assignment = assignment_of(member, &member.at.assigned.partitions(), cx.image);
        let reply = SyncReply {
            protocol_type: request.protocol_type.clone(),
            protocol: request.protocol.clone(),
            assignment,
        };
        let timer = GroupTimer::MemberSync(self.id.clone(), request.member.clone());
        cx.effects.cancel_timer(timer);
        cx.renew_session(self, &request.member);
        Ok(reply)
    }

    /// A member of the classic protocol says that it is alive.
    ///
    /// # Errors
    /// What it has to do instead of going on.
    pub(in crate::groups) fn heartbeat_classic(
        &mut self,
        request: &HeartbeatRequest,
        cx: &mut Context<'_>,
    ) -> Result<(), GroupError> {
        let member = self.classic_member(
            &request.member,
            request.instance.as_ref(),
            request.generation,
        )?;
        let goes_on = match member.at.state {
            MemberState::UnrevokedPartitions => false,
            MemberState::UnreleasedPartitions => self.waits_for_others(member),
            MemberState::Stable | MemberState::Unknown => true,
        };
        let is_current = goes_on && member.at.epoch >= self.target_epoch;
        cx.renew_session(self, &request.member);
        if is_current {
            return Ok(());
        }
        self.tell_to_join(&request.member, cx);
        Err(GroupError::RebalanceInProgress)
    }

    /// A member has to join again, and has as long as a rebalance may take from the first time on that
    /// it is told so.
    fn tell_to_join(&mut self, id: &MemberId, cx: &mut Context<'_>) {
        let Some(member) = self.member(id) else {
            return;
        };
        let timeout_ms = i64::from(member.says.rebalance_timeout_ms);
        if self.told_to_join.insert(id.clone()) {
            let timer = GroupTimer::MemberJoin(self.id.clone(), id.clone());
            cx.effects.set_timer(timer, timeout_ms);
        }
    }

    /// Who of those that want to leave is there: one result each, and the ids of the good ones.
    pub(in crate::groups) fn leaving_classic(
        &self,
        leaving: &[LeavingMember],
    ) -> (Vec<Result<(), GroupError>>, Vec<MemberId>) {
        let mut ids = Vec::new();
        let find = |one: &LeavingMember| match &one.instance {
            None => self.member(&one.member).ok_or(GroupError::UnknownMember),
            Some(instance) => match self.static_member(instance) {
                None => Err(GroupError::UnknownMember),
                Some(held) if !one.member.is_empty() && held.id != one.member => {
                    Err(GroupError::FencedInstance)
                }
                Some(held) => Ok(held),
            },
        };
        let mut results = Vec::with_capacity(leaving.len());
        for one in leaving {
            results.push(find(one).map(|member| {
                tracing::info!(
                    group = %self.id, member = %member.id, reason = one.reason, "member leaves"
                );
                if !ids.contains(&member.id) {
                    ids.push(member.id.clone());
                }
            }));
        }
        (results, ids)
    }
}

/// The protocol that a classic member is told was chosen: its first.
fn chosen(member: &ConsumerMember) -> Option<&crate::groups::messages::MemberProtocol> {
    member.says.classic.as_ref()?.protocols.first()
}

fn updated(before: &MemberValue, request: &JoinRequest, said: &Subscription) -> MemberValue {
    let mut topics = said.topics.clone();
    topics.sort_unstable();
    topics.dedup();
    let rack = said.rack.clone().filter(|rack| !rack.is_empty());
    MemberValue {
        instance: request.instance.clone().or(before.instance.clone()),
        rack: rack.or(before.rack.clone()),
        client_id: request.client_id.clone(),
        client_host: request.client_host.clone(),
        topics,
        regex: Some(String::new()),
        rebalance_timeout_ms: request.rebalance_timeout_ms,
        assignor: before.assignor.clone(),
        classic: Some(ClassicMemberValue {
            session_timeout_ms: request.session_timeout_ms,
            protocols: request.protocols.clone(),
        }),
    }
}

/// Partitions by the ids of their topics, without topics that do not exist.
pub(super) fn by_id(named: &NamedPartitions, image: &MetadataImage) -> Partitions {
    let known = named.iter().filter_map(|(name, indexes)| {
        let topic = image.topic(name.as_str())?;
        Some(indexes.iter().map(|index| (topic.id, *index)))
    });
    known.flatten().collect()
}

/// Partitions as the classic protocol carries them, for `member`.
pub(super) fn assignment_of(
    member: &ConsumerMember,
    partitions: &Partitions,
    image: &MetadataImage,
) -> Bytes {
    let named: NamedPartitions = partitions
        .topics()
        .filter_map(|(id, indexes)| {
            let topic = image.topic_by_id(id)?;
            let indexes = indexes.iter().copied().collect();
            Some((TopicName::new(&topic.name), indexes))
        })
        .collect();
    let subscription = chosen(member)
        .and_then(|protocol| consumer_protocol::subscription(&protocol.metadata))
        .unwrap_or_default();
    consumer_protocol::encode_assignment(&named, subscription.version)
}
