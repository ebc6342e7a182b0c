//! What members of groups and transactional producers did, and what they were told.
//!
//! A transactional producer, a copier, stands at a position: the offset that its group has committed. One attempt
//! writes records that name the position, and commits the position after it, in one transaction. A member commits
//! numbers that nobody commits twice and that grow with the time of the commit, so that every committed offset tells
//! whose it is.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::Partition;

/// What a record of a transaction is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptName {
    /// Who wrote it.
    pub copier: u32,
    /// Where the copier stood.
    pub position: i64,
    /// Of the attempt, counted from 0 by the copier.
    pub number: u32,
}

impl AttemptName {
    /// A record's value.
    pub fn value(self) -> String {
        format!("t{}/{}/{}", self.copier, self.position, self.number)
    }

    /// The name in a record's value; none if it is nothing that [`Self::value`] made.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(value)
            .ok()?
            .strip_prefix('t')?
            .split('/');
        let this = Self {
            copier: parts.next()?.parse().ok()?,
            position: parts.next()?.parse().ok()?,
            number: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(this)
    }
}

impl fmt::Display for AttemptName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.value())
    }
}

/// One transaction of a copier.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// What its records are called.
    pub name: AttemptName,
    /// Where one of them was sent to, whether or not it was acknowledged.
    pub partitions: Vec<Partition>,
    /// Whether it was asked to be committed (true) or aborted, and when first; none if its copier gave it up before.
    pub asked: Option<(bool, Duration)>,
    /// When that was answered without an error.
    pub answered: Option<Duration>,
}

/// What a read_committed reader made of one answer.
#[derive(Clone, Debug)]
pub struct CommittedRead {
    /// Where.
    pub partition: Partition,
    /// When the answer came.
    pub completed: Duration,
    /// The offset that was asked for.
    pub from: i64,
    /// The offset to ask for next.
    pub next: i64,
    /// What is between them and counts.
    pub records: Vec<CommittedSeen>,
}

/// A record that a read_committed reader was given: its offset and name, none if nobody wrote it.
pub type CommittedSeen = (i64, Option<AttemptName>);

/// One partition as a read_committed reader has it at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommittedView {
    /// All that counts.
    pub records: Vec<CommittedSeen>,
    /// All that belongs to aborted transactions.
    pub aborted: Vec<CommittedSeen>,
    /// The first offset that is not decided.
    pub last_stable: i64,
    /// The end of the log.
    pub end: i64,
}

/// The topic of the copiers as it is at the end.
#[derive(Clone, Debug, Default)]
pub struct CommittedTopic {
    /// Its partitions.
    pub partitions: BTreeMap<Partition, CommittedView>,
    /// Where each copier's group stands; 0 if nothing is committed.
    pub positions: BTreeMap<u32, i64>,
}

/// A member had a partition, by what its coordinator told it.
#[derive(Clone, Debug)]
pub struct Owned {
    /// The group.
    pub group: String,
    /// The member.
    pub member: String,
    /// Of the group; the member's epoch where the group is not of the classic protocol.
    pub generation: i32,
    /// Whether the group is of the classic protocol.
    pub classic: bool,
    /// What it had.
    pub partition: Partition,
    /// From when on it knew.
    pub from: Duration,
    /// Until when it knew: it let go, or its session may have ended by then.
    pub until: Duration,
}

/// An offset that a member committed, or tried to.
#[derive(Clone, Debug)]
pub struct Commit {
    /// The group.
    pub group: String,
    /// The member.
    pub member: String,
    /// Of the group, or the member's epoch.
    pub generation: i32,
    /// For what.
    pub partition: Partition,
    /// Committed by nobody else in the whole run, and more than anything that was committed before.
    pub offset: i64,
    /// When it was sent.
    pub invoked: Duration,
    /// The answer's error code and when it came; none without an answer.
    pub answer: Option<(i16, Duration)>,
}

impl Commit {
    /// When it was acknowledged.
    pub fn acknowledged(&self) -> Option<Duration> {
        self.answer.and_then(|(code, at)| (code == 0).then_some(at))
    }
}

/// What is committed, by one coordinator.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The group.
    pub group: String,
    /// For what.
    pub partition: Partition,
    /// When it was asked.
    pub invoked: Duration,
    /// When the answer came.
    pub completed: Duration,
    /// −1 for nothing.
    pub offset: i64,
    /// The node that answered.
    pub node: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_attempt_is_found_again_in_a_value_and_in_nothing_else() {
        let name = AttemptName {
            copier: 2,
            position: 40,
            number: 44,
        };
        assert_eq!(AttemptName::parse(name.value().as_bytes()), Some(name));
        for bad in ["", "2/40/44", "t2/40", "t2/40/44/", "t2/x/44", "t-1/0/0"] {
            assert_eq!(AttemptName::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
