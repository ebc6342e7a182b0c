//! What happens to a classic group: members join, sync, beat, leave and fall silent.
//!
//! Every function takes the group from one consistent state to another and says in the effects
//! what the shell has to do for it. A request that has to wait is remembered by its token in the
//! member; a second request for the same wait answers the first one.
//!
//! `joining` is how members come in, `generations` how they get to a generation and its assignment; the rest
//! is here.

mod generations;
mod joining;

use odradek_protocol::ids::TimestampMs;

use super::group::{ClassicGroup, State};
use super::member::Member;
use crate::coordinator::effects::RequestToken;
use crate::groups::config::CoordinatorConfig;
use crate::groups::error::GroupError;
use crate::groups::messages::{
    CommitRequest, GroupEffects, GroupReply, GroupTimer, HeartbeatRequest, JoinReply, LeavingMember,
};
use crate::groups::names::MemberId;

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
