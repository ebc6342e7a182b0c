//! What clients did to one topic and what they were told, with the times of both.
//!
//! Records name themselves (`producer/sequence/`), so that a record is recognised wherever it turns up. Times are those
//! of one clock of the test process, since the history's start. A write without an acknowledgement may or may not have
//! happened, now or later.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use coordination::{
    Attempt, AttemptName, Commit, CommittedRead, CommittedSeen, CommittedTopic, CommittedView,
    Fetched, Owned,
};

mod coordination;

/// Partition of the topic.
pub type Partition = i32;

/// What a record is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Who wrote it.
    pub producer: u32,
    /// Counted from 0 by the producer, over all partitions.
    pub sequence: u64,
}

impl Name {
    /// A record's value, so many bytes longer than it must be.
    pub fn value(self, padding: usize) -> String {
        format!(
            "{}/{}/{}",
            self.producer,
            self.sequence,
            "x".repeat(padding)
        )
    }

    /// The name in a record's value; none if it is nothing that [`Self::value`] made.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(value).ok()?.split('/');
        let producer = parts.next()?.parse().ok()?;
        let sequence = parts.next()?.parse().ok()?;
        let padding = parts.next()?;
        (padding.bytes().all(|b| b == b'x') && parts.next().is_none())
            .then_some(Self { producer, sequence })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.producer, self.sequence)
    }
}

/// What a producer promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Idempotent: every record at most once, and in order, however often it is sent again.
    Idempotent,
    /// Sends every record once, over one connection: at most once and in order as well.
    SentOnce,
    /// Sends again without idempotence: records may be doubled and overtake each other.
    SentAgain,
}

/// One request to write.
#[derive(Clone, Debug)]
pub struct Write {
    /// Where.
    pub partition: Partition,
    /// Its records, in order.
    pub names: Vec<Name>,
    /// When it was first sent.
    pub invoked: Duration,
    /// When it was acknowledged, and the offset of its first record if the answer told.
    pub acknowledged: Option<(Duration, Option<i64>)>,
}

/// A record that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Where it is.
    pub offset: i64,
    /// Its name; none if the value is nothing that was ever written.
    pub name: Option<Name>,
    /// Leader epoch of its batch; −1 if the client does not tell.
    pub epoch: i32,
    /// How an idempotent producer has sent it, if the client tells.
    pub sent_as: Option<SentAs>,
}

/// By what a broker knows a record of an idempotent producer again. The same record sent with another epoch is another one to
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentAs {
    /// The producer.
    pub producer_id: i64,
    /// Its epoch.
    pub epoch: i16,
    /// The record's sequence number.
    pub sequence: i32,
}

/// One answer to a reader.
#[derive(Clone, Debug)]
pub struct Read {
    /// Where.
    pub partition: Partition,
    /// When it was asked for.
    pub invoked: Duration,
    /// When it came.
    pub completed: Duration,
    /// The offset that was asked for.
    pub from: i64,
    /// What came, from that offset on.
    pub records: Vec<Seen>,
    /// The high watermark of the answer, if the client tells.
    pub high_watermark: Option<i64>,
}

/// One answer to the question where the log ends.
#[derive(Clone, Copy, Debug)]
pub struct Latest {
    /// Where.
    pub partition: Partition,
    /// When it was asked.
    pub invoked: Duration,
    /// When the answer came.
    pub completed: Duration,
    /// The answer: the offset after the last readable record.
    pub offset: i64,
    /// The node that answered.
    pub node: i32,
}

/// A reader was told that an offset, which it had reached by reading, is out of range.
#[derive(Clone, Copy, Debug)]
pub struct OutOfRange {
    /// Where.
    pub partition: Partition,
    /// The offset.
    pub offset: i64,
    /// When.
    pub completed: Duration,
}

/// Everything that the clients of a topic saw.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Every producer's promise.
    pub producers: BTreeMap<u32, Promise>,
    /// All writes.
    pub writes: Vec<Write>,
    /// Reads that brought records or a new high watermark.
    pub reads: Vec<Read>,
    /// All answers about ends.
    pub latest: Vec<Latest>,
    /// All refusals of readers.
    pub out_of_range: Vec<OutOfRange>,
    /// Idempotent producers that found no way on and started afresh, and why.
    pub given_up: Vec<String>,
    /// Producers of librdkafka that did not come back from a call.
    pub hung: usize,
    /// What transactional producers did.
    pub attempts: Vec<Attempt>,
    /// What read_committed readers were given.
    pub committed_reads: Vec<CommittedRead>,
    /// Which member of a group had which partition, and when.
    pub owned: Vec<Owned>,
    /// Commits of members.
    pub commits: Vec<Commit>,
    /// Answers to the question what is committed.
    pub fetched: Vec<Fetched>,
}

impl History {
    /// Number of records acknowledged.
    pub fn acknowledged(&self) -> usize {
        self.writes
            .iter()
            .filter(|write| write.acknowledged.is_some())
            .map(|write| write.names.len())
            .sum()
    }

    /// Number of records sent without an acknowledgement.
    pub fn unknown(&self) -> usize {
        self.writes
            .iter()
            .filter(|write| write.acknowledged.is_none())
            .map(|write| write.names.len())
            .sum()
    }
}

/// The whole of each partition as it is at the end, in the order of offsets.
#[derive(Clone, Debug, Default)]
pub struct FinalLog {
    /// Records from the log start on.
    pub partitions: BTreeMap<Partition, FinalPartition>,
}

/// One partition of a [`FinalLog`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FinalPartition {
    /// The first offset that can be read.
    pub log_start: i64,
    /// The offset after the last record.
    pub end: i64,
    /// All records.
    pub records: Vec<Seen>,
}

/// Shared by the clients that write down the history.
#[derive(Clone)]
pub struct Recorder {
    started: Instant,
    next_producer: Arc<AtomicU32>,
    history: Arc<Mutex<History>>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            next_producer: Arc::default(),
            history: Arc::default(),
        }
    }
}

impl Recorder {
    /// Time since the start.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Writes down something.
    pub fn note(&self, add: impl FnOnce(&mut History)) {
        add(&mut self.lock());
    }

    /// A number for a new producer.
    pub fn new_producer(&self, promise: Promise) -> u32 {
        let number = self.next_producer.fetch_add(1, Ordering::Relaxed);
        self.lock().producers.insert(number, promise);
        number
    }

    /// Writes down an attempt of a copier that is about to begin; the handle is for what becomes of it.
    pub fn attempt_begins(&self, name: AttemptName, partitions: Vec<Partition>) -> usize {
        let mut history = self.lock();
        history.attempts.push(Attempt {
            name,
            partitions,
            asked: None,
            answered: None,
        });
        history.attempts.len() - 1
    }

    /// Writes down that its end is about to be asked for, unless that was asked before.
    pub fn attempt_asked(&self, index: usize, committed: bool) {
        let now = self.now();
        if let Some(attempt) = self.lock().attempts.get_mut(index) {
            attempt.asked.get_or_insert((committed, now));
        }
    }

    /// Writes down that its end was answered without an error.
    pub fn attempt_answered(&self, index: usize) {
        let now = self.now();
        if let Some(attempt) = self.lock().attempts.get_mut(index) {
            attempt.answered = Some(now);
        }
    }

    /// Writes down a commit that is about to be sent, and gives it its offset; the handle is for the answer.
    pub fn commit_begins(
        &self,
        group: &str,
        (member, generation): (&str, i32),
        partition: Partition,
    ) -> (usize, i64) {
        let invoked = self.now();
        let mut history = self.lock();
        let index = history.commits.len();
        let offset = i64::try_from(index).unwrap_or(i64::MAX);
        history.commits.push(Commit {
            group: group.to_owned(),
            member: member.to_owned(),
            generation,
            partition,
            offset,
            invoked,
            answer: None,
        });
        (index, offset)
    }

    /// Writes down the answer to a commit.
    pub fn commit_ends(&self, index: usize, error_code: i16) {
        let now = self.now();
        if let Some(commit) = self.lock().commits.get_mut(index) {
            commit.answer = Some((error_code, now));
        }
    }

    /// What was written down so far.
    pub fn history(&self) -> History {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_again_in_a_value_and_in_nothing_else() {
        let name = Name {
            producer: 3,
            sequence: 17,
        };
        assert_eq!(Name::parse(name.value(5).as_bytes()), Some(name));
        assert_eq!(Name::parse(name.value(0).as_bytes()), Some(name));
        for bad in ["", "3/17", "3/17/xxy", "3/17/xx/", "3/17/x\0", "/17/"] {
            assert_eq!(Name::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
