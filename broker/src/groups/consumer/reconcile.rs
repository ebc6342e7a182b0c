//! The next step of a member towards its target assignment.
//!
//! A member first lets go of what it no longer gets, and only then takes the epoch of the
//! assignment; what others still have it gets once they have let go. So a partition has one owner at
//! a time, and members go forward each at its own pace (KIP-848).
//!
//! Invariants: what a member has been given and not yet let go of is in `assigned` or `revoking`;
//! `assigned ∩ revoking = ∅`; a partition enters `assigned` only while nobody has it.

use odradek_protocol::ids::{PartitionIndex, TopicId};

use super::assignment::{Owned, Partitions};
use super::member::{ConsumerMember, MemberState};
use crate::groups::names::Epoch;
use crate::groups::records::consumer::CurrentValue;

/// What the next step depends on besides the member.
pub(super) struct Surroundings<'a> {
    /// Epoch of the target assignment.
    pub target_epoch: Epoch,
    /// What the member is meant to have.
    pub target: &'a Partitions,
    /// Whether what the member is subscribed to has changed just now.
    pub subscription_changed: bool,
    /// Whether the member is subscribed to the topic.
    pub is_subscribed: &'a dyn Fn(TopicId) -> bool,
    /// Whether somebody has the partition or has not let go of it.
    pub is_held: &'a dyn Fn(TopicId, PartitionIndex) -> bool,
    /// What the member says it has, if it says so.
    pub owned: Option<&'a Partitions>,
}

/// The member must give up everything and join again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MustRejoin;

impl Surroundings<'_> {
    /// Where `member` stands after its next step; the same as before if there is none.
    ///
    /// # Errors
    /// A newer broker left it in a state that is not known here, and it still has partitions.
    pub fn next(&self, member: &ConsumerMember) -> Result<CurrentValue, MustRejoin> {
        let at = &member.at;
        match at.state {
            MemberState::Stable if at.epoch != self.target_epoch => {
                Ok(self.towards_target(at.epoch, at))
            }
            MemberState::Stable => Ok(self.without_unsubscribed(at)),
            MemberState::UnrevokedPartitions if self.still_has_any_of(&at.revoking) => {
                Ok(self.without_unsubscribed(at))
            }
            MemberState::UnrevokedPartitions | MemberState::UnreleasedPartitions => {
                Ok(self.towards_target(at.epoch, at))
            }
            MemberState::Unknown if self.owned.is_some_and(Partitions::is_empty) => {
                Ok(self.towards_target(self.target_epoch, at))
            }
            MemberState::Unknown => Err(MustRejoin),
        }
    }

    /// A member that does not say what it has may have anything.
    fn still_has_any_of(&self, revoking: &Owned) -> bool {
        match self.owned {
            Some(owned) => owned
                .iter()
                .any(|(topic, partition)| revoking.contains(topic, partition)),
            None => true,
        }
    }

    /// What the member is no longer subscribed to is taken at once, before there is a new target.
    fn without_unsubscribed(&self, at: &CurrentValue) -> CurrentValue {
        if !self.subscription_changed {
            return at.clone();
        }
        let (kept, lost) = at.assigned.split(|topic, _| (self.is_subscribed)(topic));
        if lost.is_empty() {
            return at.clone();
        }
        let revoking = at.revoking.merged(&lost);
        let mut next = CurrentValue {
            epoch: at.epoch,
            previous_epoch: at.epoch,
            state: at.state,
            assigned: kept,
            revoking: at.revoking.clone(),
        };
        if self.still_has_any_of(&revoking) {
            next.state = MemberState::UnrevokedPartitions;
            next.revoking = revoking;
        }
        next
    }

    fn towards_target(&self, epoch: Epoch, at: &CurrentValue) -> CurrentValue {
        let is_meant = |topic, partition| {
            self.target.contains(topic, partition) && (self.is_subscribed)(topic)
        };
        let (mut assigned, lost) = at.assigned.split(is_meant);
        if !lost.is_empty() && self.still_has_any_of(&lost) {
            return CurrentValue {
                epoch,
                previous_epoch: at.epoch,
                state: MemberState::UnrevokedPartitions,
                assigned,
                revoking: lost,
            };
        }
        let mut waits = false;
        for (topic, partition) in self.target.iter() {
            if assigned.contains(topic, partition) || !(self.is_subscribed)(topic) {
                continue;
            }
            let own = at.revoking.contains(topic, partition);
            if (self.is_held)(topic, partition) && !own {
                waits = true;
            } else {
                assigned.insert(topic, partition, self.target_epoch);
            }
        }
        CurrentValue {
            epoch: self.target_epoch,
            previous_epoch: at.epoch,
            state: match waits {
                true => MemberState::UnreleasedPartitions,
                false => MemberState::Stable,
            },
            assigned,
            revoking: Owned::default(),
        }
    }
}
