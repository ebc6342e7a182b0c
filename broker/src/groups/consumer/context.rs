//! What a transition of a consumer group sees of the world, and what it answers when it refuses.

use odradek_protocol::ids::TimestampMs;

use super::group::ConsumerGroup;
use crate::groups::config::CoordinatorConfig;
use crate::groups::error::GroupError;
use crate::groups::messages::{GroupEffects, GroupTimer};
use crate::groups::names::MemberId;
use crate::groups::records::GroupRecord;
use crate::groups::records::consumer::ConsumerRecord;
use crate::metadata::image::MetadataImage;

/// A refusal, by cause, and what is said to a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The cause.
    pub error: GroupError,
    /// The words.
    pub message: String,
}

impl Refusal {
    /// A refusal with its own words.
    pub fn new(error: GroupError, message: impl Into<String>) -> Self {
        Self {
            error,
            message: message.into(),
        }
    }
}

impl From<GroupError> for Refusal {
    fn from(error: GroupError) -> Self {
        Self::new(error, error.to_string())
    }
}

/// What a transition sees of the world.
pub(in crate::groups) struct Context<'a> {
    pub config: &'a CoordinatorConfig,
    /// The newest metadata.
    pub image: &'a MetadataImage,
    /// The time for records.
    pub now: TimestampMs,
    pub effects: &'a mut GroupEffects,
}

impl Context<'_> {
    /// Has a record written that changes the group here and now.
    pub fn write(&mut self, group: &mut ConsumerGroup, record: ConsumerRecord) {
        group.apply(&record, &self.config.member_memory);
        let record = GroupRecord::Consumer(group.id().clone(), record);
        self.effects.records.push(record);
    }

    /// Gives a member a full session from now on. A classic member has brought its own timeout.
    pub fn renew_session(&mut self, group: &ConsumerGroup, id: &MemberId) {
        let settings = &self.config.consumer;
        let classic = group
            .member(id)
            .and_then(|member| member.says.classic.as_ref());
        let timeout_ms = match classic {
            Some(classic) => i64::from(classic.session_timeout_ms),
            None => settings.session_timeout_ms(group.id(), self.image),
        };
        let timer = GroupTimer::Session(group.id().clone(), id.clone());
        self.effects.set_timer(timer, timeout_ms);
    }

    /// Cancels everything that was to happen to a member.
    pub fn cancel_timers(&mut self, group: &ConsumerGroup, id: &MemberId) {
        for timer in [
            GroupTimer::Session(group.id().clone(), id.clone()),
            GroupTimer::Rebalance(group.id().clone(), id.clone()),
            GroupTimer::MemberJoin(group.id().clone(), id.clone()),
            GroupTimer::MemberSync(group.id().clone(), id.clone()),
        ] {
            self.effects.cancel_timer(timer);
        }
    }
}
