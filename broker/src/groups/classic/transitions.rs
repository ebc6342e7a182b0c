//! What happens to a classic group: members join, sync, beat, leave and fall silent.
//!
//! Every function takes the group from one consistent state to another and says in the effects
//! what the shell has to do for it. A request that has to wait is remembered by its token in the
//! member; a second request for the same wait answers the first one.

use std::collections::HashMap;

use bytes::Bytes;
use odradek_protocol::ids::TimestampMs;

use super::group::{ClassicGroup, InitialDelay, State};
use super::member::{Member, bytes_of_join, bytes_of_pending};
use crate::coordinator::LogRecord as _;
use crate::coordinator::effects::RequestToken;
use crate::groups::config::CoordinatorConfig;
use crate::groups::error::GroupError;
use crate::groups::member_memory::Share;
use crate::groups::messages::{
    CommitRequest, GroupEffects, GroupReply, GroupTimer, HeartbeatRequest, JoinReply, JoinRequest,
    LeavingMember, SyncReply, SyncRequest,
};
use crate::groups::names::MemberId;

/// How long a new member may wait for its first generation. It sends no heartbeats yet, and a
/// client that gave up leaves no other trace than this.
const NEW_MEMBER_JOIN_TIMEOUT_MS: i64 = 300_000;

/// What a transition sees of the world.
pub(in crate::groups) struct Context<'a> {
    pub config: &'a CoordinatorConfig,
    /// The time for records.
    pub now: TimestampMs,
    pub effects: &'a mut GroupEffects,
}

impl ClassicGroup {
    fn session_timer(&self, member: &MemberId) -> GroupTimer {
        GroupTimer::Session(self.id.clone(), member.clone())
    }

    fn join_timer(&self) -> GroupTimer {
        GroupTimer::Join(self.id.clone())
    }

    fn sync_timer(&self) -> GroupTimer {
        GroupTimer::Sync(self.id.clone())
    }

    /// A new coordinator has read the group from the log: its members get a full session to show
    /// that they are alive.
    pub(in crate::groups) fn loaded(&mut self, cx: &mut Context<'_>) {
        for member in self.members.values() {
            cx.effects.set_timer(
                GroupTimer::Session(self.id.clone(), member.id.clone()),
                i64::from(member.session_timeout_ms),
            );
        }
        if self.members.len() > cx.config.group_max_size {
            // The bound has been lowered: a rebalance lets members commit and the rest go.
            self.prepare_rebalance(cx, "the loaded group is larger than group.max.size");
        } else if !self.is_empty() && self.leader.is_none() {
            self.prepare_rebalance(cx, "the group has become a classic one");
        }
    }

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
        let more = bytes_of_join(request).saturating_sub(held);
        cx.config.member_memory.has_room(more)
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
            let share = Share::new(&cx.config.member_memory, bytes_of_pending(&fresh));
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
    fn joined(&self, id: &MemberId) -> JoinReply {
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

    fn rebalance_or_complete(&mut self, cx: &mut Context<'_>, reason: &str) {
        match self.state {
            State::PreparingRebalance { .. } => self.complete_if_all_joined(cx),
            State::Empty | State::CompletingRebalance | State::Stable => {
                self.prepare_rebalance(cx, reason);
            }
        }
    }

    /// Goes on if nobody is missing, but never cuts an initial rebalance short.
    fn complete_if_all_joined(&mut self, cx: &mut Context<'_>) {
        if self.state == (State::PreparingRebalance { initial: None }) && self.all_joined() {
            self.complete_join(cx);
        }
    }

    /// Goes on if nobody is missing, also in an initial rebalance: whoever was waited for is gone.
    fn complete_join_if_all_joined(&mut self, cx: &mut Context<'_>) {
        if matches!(self.state, State::PreparingRebalance { .. }) && self.all_joined() {
            self.complete_join(cx);
        }
    }

    pub(in crate::groups) fn prepare_rebalance(&mut self, cx: &mut Context<'_>, reason: &str) {
        tracing::info!(
            group = %self.id, generation = %self.generation, state = self.state_name(), reason,
            "rebalance begins"
        );
        if self.state == State::CompletingRebalance {
            self.clear_assignments();
            self.answer_syncs(Some(GroupError::RebalanceInProgress), cx);
        }
        self.pending_syncs.clear();
        cx.effects.cancel_timer(self.sync_timer());
        if self.state == State::Empty {
            let delay_ms = i64::from(cx.config.group_initial_rebalance_delay_ms);
            let initial = InitialDelay {
                delay_ms,
                remaining_ms: (self.rebalance_timeout_ms() - delay_ms).max(0),
                newcomer: false,
            };
            self.enter(
                State::PreparingRebalance {
                    initial: Some(initial),
                },
                cx.now,
            );
            cx.effects.set_timer(self.join_timer(), delay_ms);
        } else {
            self.enter(State::PreparingRebalance { initial: None }, cx.now);
            if self.all_joined() {
                self.complete_join(cx);
            } else {
                cx.effects
                    .set_timer(self.join_timer(), self.rebalance_timeout_ms());
            }
        }
    }

    /// The wait for members to join is over, or the first part of it.
    pub(in crate::groups) fn join_timer_fired(&mut self, cx: &mut Context<'_>) {
        let State::PreparingRebalance { initial } = &mut self.state else {
            return;
        };
        match initial {
            Some(initial) if initial.newcomer && initial.remaining_ms > 0 => {
                let most = i64::from(cx.config.group_initial_rebalance_delay_ms);
                let next = InitialDelay {
                    delay_ms: most.min(initial.remaining_ms),
                    remaining_ms: (initial.remaining_ms - initial.delay_ms).max(0),
                    newcomer: false,
                };
                *initial = next;
                cx.effects.set_timer(self.join_timer(), next.delay_ms);
            }
            Some(_) | None => self.complete_join(cx),
        }
    }

    /// Ends the joining phase with whoever is there.
    fn complete_join(&mut self, cx: &mut Context<'_>) {
        cx.effects.cancel_timer(self.join_timer());
        let missing: Vec<MemberId> = self
            .members
            .values()
            .filter(|member| member.awaiting_join.is_none() && member.instance.is_none())
            .map(|member| member.id.clone())
            .collect();
        for member in missing {
            tracing::info!(group = %self.id, %member, "member did not join in time");
            cx.effects.cancel_timer(self.session_timer(&member));
            self.remove(&member, cx);
        }
        if !self.members.is_empty() && !self.elect_leader() {
            // Only static members, none of whom has come back: they keep their places until
            // their sessions end.
            cx.effects
                .set_timer(self.join_timer(), self.rebalance_timeout_ms());
            return;
        }
        self.enter_next_generation(cx.now);
        tracing::info!(
            group = %self.id, generation = %self.generation, members = self.members.len(),
            protocol = self.protocol, "generation begins"
        );
        if self.state == State::Empty {
            cx.effects.records.push(self.to_record());
            return;
        }
        self.answer_joins(cx);
        cx.effects
            .set_timer(self.sync_timer(), self.rebalance_timeout_ms());
    }

    /// Makes sure that the leader is one who has joined. False if nobody has.
    fn elect_leader(&mut self) -> bool {
        let waits = |member: &Member| member.awaiting_join.is_some();
        let leader_waits = self
            .leader
            .as_ref()
            .and_then(|leader| self.members.get(leader))
            .is_some_and(waits);
        if leader_waits {
            return true;
        }
        match self.members.values().find(|member| waits(member)) {
            Some(member) => {
                self.leader = Some(member.id.clone());
                true
            }
            None => false,
        }
    }

    fn answer_joins(&mut self, cx: &mut Context<'_>) {
        let ids: Vec<MemberId> = self.members.keys().cloned().collect();
        for id in ids {
            let reply = self.joined(&id);
            let session_timer = self.session_timer(&id);
            let Some(member) = self.members.get_mut(&id) else {
                continue;
            };
            if let Some(token) = member.awaiting_join.take() {
                self.awaiting_join -= 1;
                cx.effects.reply(token, GroupReply::Join(reply));
            }
            member.is_new = false;
            cx.effects
                .set_timer(session_timer, i64::from(member.session_timeout_ms));
            self.pending_syncs.insert(id);
        }
    }

    /// A member asks for its assignment; the leader brings everybody's.
    pub(in crate::groups) fn sync(
        &mut self,
        token: RequestToken,
        request: SyncRequest,
        cx: &mut Context<'_>,
    ) {
        if let Err(error) = self.check_sync(&request) {
            cx.effects.reply(token, GroupReply::Sync(Err(error)));
            return;
        }
        if self.brings_too_much(&request, cx) {
            tracing::warn!(group = %self.id, "no memory for the assignment");
            let reply = GroupReply::Sync(Err(GroupError::NotAvailable));
            cx.effects.reply(token, reply);
            return;
        }
        self.pending_syncs.remove(&request.member);
        if self.pending_syncs.is_empty() {
            cx.effects.cancel_timer(self.sync_timer());
        }
        let protocol_type = self.protocol_type.clone();
        let protocol = self.protocol.clone();
        if self.state == State::Stable {
            self.renew_session(&request.member, cx);
        }
        let Some(member) = self.members.get_mut(&request.member) else {
            return;
        };
        if self.state == State::Stable {
            let reply = SyncReply {
                protocol_type,
                protocol,
                assignment: member.assignment().clone(),
            };
            cx.effects.reply(token, GroupReply::Sync(Ok(reply)));
            return;
        }
        if let Some(superseded) = member.awaiting_sync.replace(token) {
            let reply = GroupReply::Sync(Err(GroupError::RebalanceInProgress));
            cx.effects.reply(superseded, reply);
        }
        if self.is_leader(&request.member) {
            self.assign(request.assignments, cx);
        }
    }

    /// Whether there is no memory for the assignments that a leader brings.
    fn brings_too_much(&self, request: &SyncRequest, cx: &Context<'_>) -> bool {
        if self.state != State::CompletingRebalance || !self.is_leader(&request.member) {
            return false;
        }
        let brought: usize = request
            .assignments
            .iter()
            .map(|(_, bytes)| bytes.len())
            .sum();
        let held: usize = self
            .members
            .values()
            .map(|member| member.assignment().len())
            .sum();
        !cx.config
            .member_memory
            .has_room(brought.saturating_sub(held))
    }

    fn check_sync(&self, request: &SyncRequest) -> Result<(), GroupError> {
        let differs = |theirs: &Option<String>, ours: &Option<String>| {
            theirs.is_some() && ours.is_some() && theirs != ours
        };
        self.check_member(&request.member, request.instance.as_ref())?;
        if request.generation != self.generation {
            return Err(GroupError::IllegalGeneration);
        }
        if differs(&request.protocol_type, &self.protocol_type)
            || differs(&request.protocol, &self.protocol)
        {
            return Err(GroupError::InconsistentProtocol);
        }
        match self.state {
            State::PreparingRebalance { .. } => Err(GroupError::RebalanceInProgress),
            State::Empty => Err(GroupError::UnknownMember),
            State::CompletingRebalance | State::Stable => Ok(()),
        }
    }

    /// The leader's assignment makes the group stable. A member it does not mention gets nothing.
    fn assign(&mut self, assignments: Vec<(MemberId, Bytes)>, cx: &mut Context<'_>) {
        let mut assignments: HashMap<MemberId, Bytes> = assignments.into_iter().collect();
        for member in self.members.values_mut() {
            member.set_assignment(assignments.remove(&member.id).unwrap_or_default());
        }
        let since = self.state_since;
        self.enter(State::Stable, cx.now);
        let record = self.to_record();
        let value_size = record.encode_value().map_or(0, |value| value.len());
        let size = record.encode_key().len() + value_size;
        if size > cx.config.max_record_bytes {
            tracing::warn!(group = %self.id, size, "the assignment is too large to be stored");
            self.enter(State::CompletingRebalance, since);
            self.clear_assignments();
            self.answer_syncs(Some(GroupError::RecordTooLarge), cx);
            self.prepare_rebalance(cx, "the assignment is too large to be stored");
            return;
        }
        cx.effects.records.push(record);
        self.answer_syncs(None, cx);
    }

    /// Answers every member that waits for its assignment, and starts its session anew: it ran
    /// while the member could not beat.
    fn answer_syncs(&mut self, error: Option<GroupError>, cx: &mut Context<'_>) {
        for member in self.members.values_mut() {
            let Some(token) = member.awaiting_sync.take() else {
                continue;
            };
            let reply = match error {
                Some(error) => Err(error),
                None => Ok(SyncReply {
                    protocol_type: self.protocol_type.clone(),
                    protocol: self.protocol.clone(),
                    assignment: member.assignment().clone(),
                }),
            };
            cx.effects.reply(token, GroupReply::Sync(reply));
            cx.effects.set_timer(
                GroupTimer::Session(self.id.clone(), member.id.clone()),
                i64::from(member.session_timeout_ms),
            );
        }
    }

    /// Members that never asked for their assignment are taken out, and the rest rebalances.
    pub(in crate::groups) fn sync_timer_fired(&mut self, cx: &mut Context<'_>) {
        let overdue = match self.state {
            State::CompletingRebalance | State::Stable => std::mem::take(&mut self.pending_syncs),
            State::Empty | State::PreparingRebalance { .. } => return,
        };
        if overdue.is_empty() {
            return;
        }
        for member in overdue {
            tracing::info!(group = %self.id, %member, "member did not sync in time");
            cx.effects.cancel_timer(self.session_timer(&member));
            self.remove(&member, cx);
        }
        self.prepare_rebalance(cx, "members did not sync in time");
    }

    /// A member says that it is alive.
    ///
    /// # Errors
    /// What the member has to do instead of going on.
    pub(in crate::groups) fn heartbeat(
        &mut self,
        request: &HeartbeatRequest,
        cx: &mut Context<'_>,
    ) -> Result<(), GroupError> {
        self.check_member(&request.member, request.instance.as_ref())?;
        if request.generation != self.generation {
            return Err(GroupError::IllegalGeneration);
        }
        self.renew_session(&request.member, cx);
        match self.state {
            State::PreparingRebalance { .. } => Err(GroupError::RebalanceInProgress),
            State::Empty => Err(GroupError::UnknownMember),
            State::CompletingRebalance | State::Stable => Ok(()),
        }
    }

    fn renew_session(&self, member: &MemberId, cx: &mut Context<'_>) {
        if let Some(member) = self.members.get(member) {
            cx.effects.set_timer(
                self.session_timer(&member.id),
                i64::from(member.session_timeout_ms),
            );
        }
    }

    /// A session has ended.
    pub(in crate::groups) fn session_timer_fired(
        &mut self,
        member: &MemberId,
        cx: &mut Context<'_>,
    ) {
        if self.pending_joins.remove(member).is_some() {
            self.complete_join_if_all_joined(cx);
            return;
        }
        let Some(silent) = self.members.get(member) else {
            return;
        };
        if silent.is_excused() {
            return;
        }
        tracing::info!(group = %self.id, %member, "session of member timed out");
        self.remove(member, cx);
        match self.state {
            State::CompletingRebalance | State::Stable => {
                self.prepare_rebalance(cx, "the session of a member timed out");
            }
            State::PreparingRebalance { .. } => self.complete_join_if_all_joined(cx),
            State::Empty => {}
        }
    }

    /// Members leave, or an administrator removes them. One result a member.
    pub(in crate::groups) fn leave(
        &mut self,
        leaving: &[LeavingMember],
        cx: &mut Context<'_>,
    ) -> Vec<Result<(), GroupError>> {
        let results: Vec<_> = leaving
            .iter()
            .map(|member| self.leave_one(member, cx))
            .collect();
        if results.iter().any(Result::is_ok) {
            match self.state {
                State::CompletingRebalance | State::Stable => {
                    self.prepare_rebalance(cx, "members left");
                }
                State::PreparingRebalance { .. } => self.complete_if_all_joined(cx),
                State::Empty => {}
            }
        }
        results
    }

    fn leave_one(
        &mut self,
        leaving: &LeavingMember,
        cx: &mut Context<'_>,
    ) -> Result<(), GroupError> {
        let instance = leaving.instance.as_ref();
        let member = if leaving.member.is_empty() {
            instance
                .and_then(|instance| self.static_member(instance))
                .ok_or(GroupError::UnknownMember)?
                .clone()
        } else {
            if !self.pending_joins.contains_key(&leaving.member) {
                self.check_member(&leaving.member, instance)?;
            }
            leaving.member.clone()
        };
        tracing::info!(group = %self.id, %member, reason = leaving.reason, "member leaves");
        cx.effects.cancel_timer(self.session_timer(&member));
        self.remove(&member, cx);
        Ok(())
    }

    /// Whether a commit by `member` may land, and renews its session if so.
    ///
    /// # Errors
    /// A commit by somebody who is not a member of the current generation.
    pub(in crate::groups) fn accept_commit(
        &mut self,
        request: &CommitRequest,
        cx: &mut Context<'_>,
    ) -> Result<(), GroupError> {
        let outside = request.generation.get() < 0;
        if outside && self.is_empty() {
            return Ok(());
        }
        if outside && request.member.is_empty() && request.instance.is_none() {
            return Err(GroupError::UnknownMember);
        }
        self.check_member(&request.member, request.instance.as_ref())?;
        if request.generation != self.generation {
            return Err(GroupError::IllegalGeneration);
        }
        match self.state {
            State::CompletingRebalance => Err(GroupError::RebalanceInProgress),
            State::Stable | State::PreparingRebalance { .. } => {
                self.renew_session(&request.member, cx);
                Ok(())
            }
            State::Empty => Ok(()),
        }
    }

    /// Whether offsets may be committed in a transaction. Old clients say nothing of members.
    pub(in crate::groups) fn check_transactional_commit(
        &self,
        request: &CommitRequest,
    ) -> Result<(), GroupError> {
        let outside = request.generation.get() < 0;
        let says_nothing = outside && request.member.is_empty() && request.instance.is_none();
        if says_nothing || (outside && self.is_empty()) {
            return Ok(());
        }
        self.check_member(&request.member, request.instance.as_ref())?;
        if request.generation != self.generation {
            return Err(GroupError::IllegalGeneration);
        }
        Ok(())
    }

    /// Takes out a member and answers what it waits for; a client that is still there joins anew.
    fn remove(&mut self, member: &MemberId, cx: &mut Context<'_>) {
        if let Some(mut removed) = self.take(member) {
            let none = MemberId::new("");
            answer_waits(&mut removed, GroupError::UnknownMember, &none, cx);
        }
    }

    /// The group is becoming a consumer group: whoever waits for it has to join anew, and its timers
    /// are no longer its own.
    pub(in crate::groups) fn dissolve(&mut self, cx: &mut Context<'_>) {
        for member in self.members.values_mut() {
            let id = member.id.clone();
            answer_waits(member, GroupError::RebalanceInProgress, &id, cx);
        }
        self.awaiting_join = 0;
        for member in self.members.keys() {
            cx.effects.cancel_timer(self.session_timer(member));
        }
        cx.effects.cancel_timer(self.join_timer());
        cx.effects.cancel_timer(self.sync_timer());
        self.dismiss(cx);
    }

    /// The empty group is going away; whoever was given an id will find it unknown.
    pub(in crate::groups) fn dismiss(&mut self, cx: &mut Context<'_>) {
        for member in std::mem::take(&mut self.pending_joins).into_keys() {
            cx.effects.cancel_timer(self.session_timer(&member));
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

fn refuse_join(token: RequestToken, error: GroupError, member: MemberId, cx: &mut Context<'_>) {
    let reply = JoinReply::refused(error, member);
    cx.effects.reply(token, GroupReply::Join(reply));
}

/// Answers what `member` waits for with `error`; `id` is the one to tell it.
fn answer_waits(member: &mut Member, error: GroupError, id: &MemberId, cx: &mut Context<'_>) {
    if let Some(token) = member.awaiting_join.take() {
        refuse_join(token, error, id.clone(), cx);
    }
    if let Some(token) = member.awaiting_sync.take() {
        cx.effects.reply(token, GroupReply::Sync(Err(error)));
    }
}
