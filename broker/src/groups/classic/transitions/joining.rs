//! Members join, for the first time or again.

use super::{Context, answer_waits, refuse_join};
use crate::coordinator::effects::RequestToken;
use crate::groups::classic::group::{ClassicGroup, State};
use crate::groups::classic::member::{Member, bytes_of_join, bytes_of_pending};
use crate::groups::error::GroupError;
use crate::groups::member_memory::{Claim, Share};
use crate::groups::messages::{GroupReply, JoinReply, JoinRequest};
use crate::groups::names::MemberId;

/// How long a new member may wait for its first generation. It sends no heartbeats yet, and a
/// client that gave up leaves no other trace than this.
const NEW_MEMBER_JOIN_TIMEOUT_MS: i64 = 300_000;

impl ClassicGroup {
    /// A member asks to join, for the first time or again.
    pub(in crate::groups) fn join(
        &mut self,
        token: RequestToken,
        request: JoinRequest,
        cx: &mut Context<'_>,
    ) {
        let member = request.member.clone();
        if !self.has_room_for(&member, cx.config.group_max_size) {
            let none = MemberId::new("");
            refuse_join(token, GroupError::GroupFull, none, cx);
            if self.members.contains_key(&member) || self.pending_joins.contains_key(&member) {
                cx.effects.cancel_timer(self.session_timer(&member));
                self.remove(&member, cx);
                self.complete_join_if_all_joined(cx);
            }
        } else if !self.supports(&request.protocol_type, &request.protocols) {
            refuse_join(token, GroupError::InconsistentProtocol, member, cx);
        } else if is_too_large(&request, cx.config.max_record_bytes) {
            tracing::warn!(group = %self.id, %member, "a subscription is too large to be stored");
            refuse_join(token, GroupError::RecordTooLarge, member, cx);
        } else if !self.has_memory_for(&request, cx) {
            tracing::warn!(group = %self.id, "no memory for what a member brings along");
            refuse_join(token, GroupError::NotAvailable, member, cx);
        } else if member.is_empty() {
            self.join_new(token, request, cx);
        } else if self.pending_joins.contains_key(&member) && request.instance.is_none() {
            self.add_member(member, token, request, cx);
        } else if let Err(error) = self.check_member(&member, request.instance.as_ref()) {
            refuse_join(token, error, member, cx);
        } else {
            self.rejoin(token, request, cx);
        }
    }

    /// Whether one more may join. During a rebalance those who have joined count, so that the last
    /// to come back are those who stay out should the bound have been lowered.
    fn has_room_for(&self, member: &MemberId, max_size: usize) -> bool {
        match self.state {
            State::Empty => true,
            State::PreparingRebalance { .. } => {
                let waits = |member: &Member| member.awaiting_join.is_some();
                self.members.get(member).is_some_and(waits) || self.awaiting_join < max_size
            }
            State::CompletingRebalance | State::Stable => {
                self.members.contains_key(member) || self.members.len() < max_size
            }
        }
    }

    /// Whether there is memory for what the member brings beyond what it holds already.
    fn has_memory_for(&self, request: &JoinRequest, cx: &Context<'_>) -> bool {
        let id = match &request.instance {
            Some(instance) => self.static_member(instance).unwrap_or(&request.member),
            None => &request.member,
        };
        let held = self.members.get(id).map_or(0, Member::size_in_bytes);
        let size = bytes_of_join(request);
        cx.config.member_memory.has_room(Claim {
            host: &request.client_host,
            size,
            more: size.saturating_sub(held),
        })
    }

    fn join_new(&mut self, token: RequestToken, request: JoinRequest, cx: &mut Context<'_>) {
        let fresh = request.fresh_member.clone();
        if let Some(instance) = &request.instance {
            match self.static_member(instance).cloned() {
                Some(old) => self.replace_static_member(&old, fresh, token, request, cx),
                None => self.add_member(fresh, token, request, cx),
            }
        } else if request.member_id_required {
            // The client may never learn this id. As long as it has not come back with it, the
            // member counts for nothing but the wait of a rebalance, and only for one session.
            let share = Share::new(
                &cx.config.member_memory,
                &request.client_host,
                bytes_of_pending(&fresh),
            );
            self.pending_joins.insert(fresh.clone(), share);
            cx.effects.set_timer(
                self.session_timer(&fresh),
                i64::from(request.session_timeout_ms),
            );
            refuse_join(token, GroupError::MemberIdRequired, fresh, cx);
        } else {
            self.add_member(fresh, token, request, cx);
        }
    }

    fn add_member(
        &mut self,
        id: MemberId,
        token: RequestToken,
        request: JoinRequest,
        cx: &mut Context<'_>,
    ) {
        tracing::info!(group = %self.id, member = %id, reason = request.reason, "member joins");
        if let State::PreparingRebalance {
            initial: Some(delay),
        } = &mut self.state
        {
            delay.newcomer = true;
        }
        if self.members.is_empty() {
            self.protocol_type = Some(request.protocol_type.clone());
        }
        cx.effects
            .set_timer(self.session_timer(&id), NEW_MEMBER_JOIN_TIMEOUT_MS);
        let memory = &cx.config.member_memory;
        self.insert(Member::joining(id, request, token, memory));
        self.rebalance_or_complete(cx, "a new member joins");
    }

    /// A member that is in the group joins again.
    fn rejoin(&mut self, token: RequestToken, request: JoinRequest, cx: &mut Context<'_>) {
        let id = request.member.clone();
        let unchanged = self
            .members
            .get(&id)
            .is_some_and(|member| member.protocols() == request.protocols);
        let repeated = match self.state {
            // It may not have received the answer to its first join.
            State::CompletingRebalance => unchanged,
            // A leader that joins wants a new assignment, say because topics have changed.
            State::Stable => unchanged && !self.is_leader(&id),
            State::PreparingRebalance { .. } | State::Empty => false,
        };
        if repeated {
            // It lives, also if nothing changes by it.
            self.renew_session(&id, cx);
            let reply = self.joined(&id);
            cx.effects.reply(token, GroupReply::Join(reply));
        } else {
            self.update_member(&id, token, request, cx);
            self.rebalance_or_complete(cx, "a member joins again");
        }
    }

    fn update_member(
        &mut self,
        id: &MemberId,
        token: RequestToken,
        request: JoinRequest,
        cx: &mut Context<'_>,
    ) {
        self.replace_protocols(id, request.protocols);
        let Some(member) = self.members.get_mut(id) else {
            return;
        };
        member.rebalance_timeout_ms = request.rebalance_timeout_ms;
        member.session_timeout_ms = request.session_timeout_ms;
        match member.awaiting_join.replace(token) {
            Some(superseded) => {
                refuse_join(superseded, GroupError::RebalanceInProgress, id.clone(), cx);
            }
            None => self.awaiting_join += 1,
        }
    }

    /// A static member comes back without its id (KIP-345): it takes the place and the assignment
    /// of `old`, who is fenced from now on.
    fn replace_static_member(
        &mut self,
        old: &MemberId,
        fresh: MemberId,
        token: RequestToken,
        request: JoinRequest,
        cx: &mut Context<'_>,
    ) {
        tracing::info!(group = %self.id, %old, new = %fresh, "static member is replaced");
        let was_leader = self.is_leader(old);
        let old_leader = self.leader.clone().unwrap_or_else(|| MemberId::new(""));
        let can_skip_assignment = request.can_skip_assignment;
        let Some(mut member) = self.take(old) else {
            return;
        };
        cx.effects.cancel_timer(self.session_timer(old));
        answer_waits(&mut member, GroupError::FencedInstance, old, cx);
        member.id = fresh.clone();
        member.is_new = false;
        self.insert(member);
        if was_leader {
            self.leader = Some(fresh.clone());
        }
        let session_timeout_ms = i64::from(request.session_timeout_ms);
        self.update_member(&fresh, token, request, cx);
        cx.effects
            .set_timer(self.session_timer(&fresh), session_timeout_ms);
        match self.state {
            State::Stable if self.select_protocol() == self.protocol => {
                cx.effects.records.push(self.to_record());
                self.answer_replacement(&fresh, old_leader, can_skip_assignment, cx);
            }
            State::Stable => self.prepare_rebalance(cx, "a static member changed the protocol"),
            // The leader has been told the old id, so its assignment would miss the new one.
            State::CompletingRebalance => {
                self.prepare_rebalance(cx, "a static member came back before the assignment");
            }
            State::PreparingRebalance { .. } | State::Empty => self.complete_if_all_joined(cx),
        }
    }

    /// Tells a replaced member of a stable group that everything stands.
    fn answer_replacement(
        &mut self,
        id: &MemberId,
        old_leader: MemberId,
        can_skip_assignment: bool,
        cx: &mut Context<'_>,
    ) {
        let mut reply = self.joined(id);
        if can_skip_assignment {
            reply.skip_assignment = self.is_leader(id);
        } else {
            // An old client that heard it leads would compute an assignment nobody waits for.
            // Told the id of its predecessor it takes itself for a follower.
            reply.leader = old_leader;
            reply.members = Vec::new();
        }
        let Some(member) = self.members.get_mut(id) else {
            return;
        };
        if let Some(token) = member.awaiting_join.take() {
            self.awaiting_join -= 1;
            cx.effects.reply(token, GroupReply::Join(reply));
        }
    }

    /// The answer to a successful join of `id`.
    pub(super) fn joined(&self, id: &MemberId) -> JoinReply {
        JoinReply {
            error: None,
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.leader.clone().unwrap_or_else(|| MemberId::new("")),
            skip_assignment: false,
            member: id.clone(),
            members: if self.is_leader(id) {
                self.joined_members()
            } else {
                Vec::new()
            },
        }
    }
}

/// Whether no record of the group could hold the member, whichever protocol is chosen. Kafka lets it in, and
/// no member of its group ever gets an assignment.
fn is_too_large(request: &JoinRequest, max_record_bytes: usize) -> bool {
    let smallest = request
        .protocols
        .iter()
        .map(|protocol| protocol.metadata.len())
        .min();
    smallest.is_some_and(|smallest| smallest > max_record_bytes)
}
