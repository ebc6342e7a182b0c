//! One member of a consumer group, as its two records say.

use odradek_protocol::ids::{PartitionIndex, TopicId};

use super::assignment::Owned;
use crate::groups::member_memory::{MemberMemory, Share};
use crate::groups::names::{Epoch, MemberId};
use crate::groups::records::consumer::{CurrentValue, MemberValue};
use std::sync::Arc;

/// Roughly what a member takes beside its names and partitions.
const MEMBER_OVERHEAD_BYTES: usize = 512;
/// Roughly what a name or a partition takes in a set.
const ENTRY_BYTES: usize = 48;

/// What a member waits for, or has to do. The numbers are Kafka's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It has what it is meant to have at its epoch.
    Stable,
    /// It must let go of partitions before it goes on.
    UnrevokedPartitions,
    /// It has all it can get; others have not yet let go of the rest.
    UnreleasedPartitions,
    /// A newer broker has written what this one does not know.
    Unknown,
}

impl MemberState {
    /// Reads the number in a record.
    pub const fn from_code(code: i8) -> Self {
        match code {
            0 => Self::Stable,
            1 => Self::UnrevokedPartitions,
            2 => Self::UnreleasedPartitions,
            _ => Self::Unknown,
        }
    }

    /// The number in a record.
    pub const fn code(self) -> i8 {
        match self {
            Self::Stable => 0,
            Self::UnrevokedPartitions => 1,
            Self::UnreleasedPartitions => 2,
            Self::Unknown => 127,
        }
    }
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerMember {
    /// Its id, which the client chooses.
    pub id: MemberId,
    /// What it says of itself.
    pub says: MemberValue,
    /// Where it stands.
    pub at: CurrentValue,
}

impl ConsumerMember {
    /// A member of whom nothing is known yet.
    pub fn new(id: MemberId) -> Self {
        Self {
            id,
            says: MemberValue {
                instance: None,
                rack: None,
                client_id: String::new(),
                client_host: String::new(),
                topics: Vec::new(),
                regex: Some(String::new()),
                rebalance_timeout_ms: -1,
                assignor: None,
                classic: None,
            },
            at: CurrentValue {
                epoch: Epoch::JOINING,
                previous_epoch: Epoch::LEAVING,
                state: MemberState::Stable,
                assigned: Owned::default(),
                revoking: Owned::default(),
            },
        }
    }

    /// The same member under another id, with its epochs at the beginning.
    #[must_use]
    pub fn replaced_by(&self, id: MemberId) -> Self {
        let mut replacement = self.clone();
        replacement.id = id;
        replacement.at.epoch = Epoch::JOINING;
        replacement.at.previous_epoch = Epoch::JOINING;
        replacement
    }

    /// The regular expression that it is subscribed to.
    pub fn regex(&self) -> Option<&str> {
        self.says.regex.as_deref().filter(|regex| !regex.is_empty())
    }

    /// Whether it speaks the classic protocol.
    pub fn is_classic(&self) -> bool {
        self.says.classic.is_some()
    }

    /// Whether it has what the assignment of `epoch` gives it.
    pub fn is_reconciled_to(&self, epoch: Epoch) -> bool {
        self.at.state == MemberState::Stable && self.at.epoch == epoch
    }

    /// The epoch in which it got a partition that it has or still has.
    pub fn owns_since(&self, topic: TopicId, partition: PartitionIndex) -> Option<Epoch> {
        let at = &self.at;
        at.assigned
            .since(topic, partition)
            .or_else(|| at.revoking.since(topic, partition))
    }

    /// What it takes of the memory of all members, in bytes.
    pub fn size_in_bytes(&self) -> usize {
        let says = &self.says;
        let names: usize = says
            .topics
            .iter()
            .map(|topic| ENTRY_BYTES + topic.as_str().len())
            .sum();
        let classic: usize = says
            .classic
            .iter()
            .flat_map(|classic| &classic.protocols)
            .fold(0, |sum, protocol| {
                sum + ENTRY_BYTES + protocol.name.len() + protocol.metadata.len()
            });
        let texts = [&says.rack, &says.regex, &says.assignor];
        let texts: usize = texts.into_iter().flatten().map(String::len).sum();
        let owned = self.at.assigned.len() + self.at.revoking.len();
        MEMBER_OVERHEAD_BYTES
            + self.id.as_str().len()
            + says.client_id.len()
            + says.client_host.len()
            + names
            + classic
            + texts
            // What it has and what it is meant to have.
            + owned * 2 * ENTRY_BYTES
    }

    /// Its share of that memory.
    pub fn share(&self, memory: &Arc<MemberMemory>) -> Share {
        Share::new(memory, &self.says.client_host, self.size_in_bytes())
    }
}
