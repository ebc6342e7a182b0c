//! A group of either protocol, as far as both are asked the same.

use super::classic::{ClassicGroup, OffsetLifetime};
use super::consumer::ConsumerGroup;
use super::error::GroupError;
use super::messages::GroupListing;
use super::names::TopicName;

/// The kind of groups whose members assign among themselves.
pub const KIND_CLASSIC: &str = "classic";
/// The kind of groups whose coordinator assigns (KIP-848).
pub const KIND_CONSUMER: &str = "consumer";

/// A group.
#[derive(Clone, Debug)]
pub enum Group {
    /// Of the classic protocol.
    Classic(Box<ClassicGroup>),
    /// Of the consumer protocol.
    Consumer(Box<ConsumerGroup>),
}

impl Group {
    /// A group of the classic protocol.
    pub fn classic(group: ClassicGroup) -> Self {
        Self::Classic(Box::new(group))
    }

    /// A group of the consumer protocol.
    pub fn consumer(group: ConsumerGroup) -> Self {
        Self::Consumer(Box::new(group))
    }

    /// The group, if it is classic.
    pub fn as_classic(&self) -> Option<&ClassicGroup> {
        match self {
            Self::Classic(group) => Some(group),
            Self::Consumer(_) => None,
        }
    }

    /// The group, if it is classic.
    pub fn as_classic_mut(&mut self) -> Option<&mut ClassicGroup> {
        match self {
            Self::Classic(group) => Some(group),
            Self::Consumer(_) => None,
        }
    }

    /// The group, if it is a consumer group.
    pub fn as_consumer(&self) -> Option<&ConsumerGroup> {
        match self {
            Self::Consumer(group) => Some(group),
            Self::Classic(_) => None,
        }
    }

    /// Name of its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Classic(_) => KIND_CLASSIC,
            Self::Consumer(_) => KIND_CONSUMER,
        }
    }

    /// Name of its state, as Kafka spells it.
    pub fn state_name(&self) -> &'static str {
        match self {
            Self::Classic(group) => group.state_name(),
            Self::Consumer(group) => group.state().name(),
        }
    }

    /// The group as ListGroups shows it.
    pub fn listing(&self) -> GroupListing {
        match self {
            Self::Classic(group) => group.listing(),
            Self::Consumer(group) => GroupListing {
                group: group.id().clone(),
                protocol_type: super::consumer::CONSUMER_PROTOCOL_TYPE.to_owned(),
                state: group.state().name(),
                kind: KIND_CONSUMER,
            },
        }
    }

    /// Whether the group has no member.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Classic(group) => group.is_empty(),
            Self::Consumer(group) => group.is_empty(),
        }
    }

    /// Whether the group has nobody, not even a member that is about to join.
    pub fn is_deserted(&self) -> bool {
        match self {
            Self::Classic(group) => group.is_deserted(),
            Self::Consumer(group) => group.is_empty(),
        }
    }

    /// Whether a member may be reading `topic`. If the coordinator cannot tell, it says yes.
    pub fn is_subscribed_to(&self, topic: &TopicName) -> bool {
        match self {
            Self::Classic(group) => group.is_subscribed_to(topic),
            Self::Consumer(group) => group.is_subscribed_to(topic),
        }
    }

    /// Whether single offsets of the group may be deleted.
    ///
    /// # Errors
    /// A group with members of a kind whose subscriptions are opaque.
    pub fn check_offset_delete(&self) -> Result<(), GroupError> {
        match self {
            Self::Classic(group) => group.check_offset_delete(),
            Self::Consumer(_) => Ok(()),
        }
    }

    /// How long the group's offsets are kept (KIP-211). Those of a consumer group count from their
    /// commits, also once it is empty, as in Kafka.
    pub fn offset_lifetime(&self) -> OffsetLifetime {
        match self {
            Self::Classic(group) => group.offset_lifetime(),
            Self::Consumer(_) => OffsetLifetime::SinceCommit,
        }
    }
}
