//! How a generation comes about: it is waited until all have joined, the leader assigns, and all are told.

use std::collections::HashMap;

use bytes::Bytes;

use super::Context;
use crate::coordinator::LogRecord as _;
use crate::coordinator::effects::RequestToken;
use crate::groups::classic::group::{ClassicGroup, InitialDelay, State};
use crate::groups::classic::member::Member;
use crate::groups::error::GroupError;
use crate::groups::member_memory::Claim;
use crate::groups::messages::{GroupReply, GroupTimer, SyncReply, SyncRequest};
use crate::groups::names::MemberId;

impl ClassicGroup {
    pub(super) fn rebalance_or_complete(&mut self, cx: &mut Context<'_>, reason: &str) {
        match self.state {
            State::PreparingRebalance { .. } => self.complete_if_all_joined(cx),
            State::Empty | State::CompletingRebalance | State::Stable => {
                self.prepare_rebalance(cx, reason);
            }
        }
    }

    /// Goes on if nobody is missing, but never cuts an initial rebalance short.
    pub(super) fn complete_if_all_joined(&mut self, cx: &mut Context<'_>) {
        if self.state == (State::PreparingRebalance { initial: None }) && self.all_joined() {
            self.complete_join(cx);
        }
    }

    /// Goes on if nobody is missing, also in an initial rebalance: whoever was waited for is gone.
    pub(super) fn complete_join_if_all_joined(&mut self, cx: &mut Context<'_>) {
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
        if self.is_assigned_by(&request) && cx.effects.is_scarce {
            let reply = GroupReply::Sync(Err(GroupError::NotAvailable));
            cx.effects.reply(token, reply);
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

    /// Whether the request brings the assignments that the group waits for.
    fn is_assigned_by(&self, request: &SyncRequest) -> bool {
        self.state == State::CompletingRebalance && self.is_leader(&request.member)
    }

    /// Whether there is no memory for the assignments that a leader brings.
    fn brings_too_much(&self, request: &SyncRequest, cx: &Context<'_>) -> bool {
        if !self.is_assigned_by(request) {
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
        let sizes = request.assignments.iter().map(|(_, bytes)| bytes.len());
        let leader = self.members.get(&request.member);
        !cx.config.member_memory.has_room(Claim {
            host: leader.map_or("", |leader| &leader.client_host),
            size: sizes.max().unwrap_or_default(),
            more: brought.saturating_sub(held),
        })
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
}
