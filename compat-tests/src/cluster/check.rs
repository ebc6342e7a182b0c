//! Whether a history is one that a log without loss allows.
//!
//! Pure: a function of the history and of the logs at the end, when all faults are over. What must hold:
//! - an acknowledged record is in the log, at the offset that was acknowledged;
//! - a record of a producer that promises so is there once, and its records are in order within a partition;
//! - an offset names one record for ever: whoever saw one there, at any time, saw the same, with the same leader epoch;
//! - epochs do not go back along the log, and there are no holes in it;
//! - nothing is read at or above the high watermark of the same answer, and no high watermark or latest offset is
//!   beyond what is there at the end;
//! - latest offsets are linearizable: none is smaller than what was known to be committed before it was asked for, and
//!   none counts a record that was sent only after its answer;
//! - and for groups and transactions what [`coordination`] says.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use super::history::{FinalLog, History, Name, Partition, Promise, Seen};

pub mod coordination;

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which rule it breaks.
    pub rule: Rule,
    /// Where.
    pub partition: Partition,
    /// What was found.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (partition {}): {}",
            self.rule, self.partition, self.what
        )
    }
}

/// The rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// An acknowledged record is not at its offset, or nowhere.
    Lost,
    /// A record is there twice.
    Doubled,
    /// A producer's records are in another order than they were sent in.
    Disordered,
    /// An offset was seen with different records or epochs.
    Reused,
    /// What was read, or known as the end, is not there any more.
    Vanished,
    /// A record was read at or above the high watermark.
    AboveHighWatermark,
    /// Offsets are missing.
    Hole,
    /// Leader epochs go back along the log.
    EpochsGoBack,
    /// A value that nobody wrote.
    Foreign,
    /// A latest offset, or an acknowledgement, is behind what was known before.
    Stale,
    /// A latest offset counts records that were not sent yet.
    Early,
    /// A reader was sent away from an offset that it had reached.
    OutOfRange,
    /// Replicas differ on the disks.
    ReplicasDiffer,
    /// Two members had a partition at the same time.
    TwoOwners,
    /// A commit by a generation or a member that was over has landed.
    OldGeneration,
    /// An answered commit of an offset is gone.
    CommitLost,
    /// Of a transaction, or of what was committed with it, a part counts and another does not.
    HalfTransaction,
    /// A transaction whose end was answered has ended otherwise.
    EndUndone,
    /// A record counts that belongs to a transaction which nobody asked to be committed.
    AbortedSeen,
    /// A position of a copier counts twice, or before an earlier one.
    CopiedTwice,
    /// A read_committed reader was given something else than what counts.
    ReadUncommitted,
    /// A transaction stays open.
    Hanging,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lost => "acknowledged and lost",
            Self::Doubled => "doubled",
            Self::Disordered => "out of order",
            Self::Reused => "offset reused",
            Self::Vanished => "seen and gone",
            Self::AboveHighWatermark => "read above the high watermark",
            Self::Hole => "hole in the offsets",
            Self::EpochsGoBack => "epochs go back",
            Self::Foreign => "never written",
            Self::Stale => "stale",
            Self::Early => "counted before it was sent",
            Self::OutOfRange => "out of range",
            Self::ReplicasDiffer => "replicas differ",
            Self::TwoOwners => "two owners of a partition",
            Self::OldGeneration => "a commit by an old generation landed",
            Self::CommitLost => "an answered commit is lost",
            Self::HalfTransaction => "half a transaction",
            Self::EndUndone => "an answered end is undone",
            Self::AbortedSeen => "uncommitted and counted",
            Self::CopiedTwice => "copied twice",
            Self::ReadUncommitted => "read otherwise than committed",
            Self::Hanging => "a transaction hangs",
        })
    }
}

/// Every violation, those of one rule together.
pub fn check(history: &History, log: &FinalLog) -> Vec<Violation> {
    let mut checker = Checker {
        history,
        log,
        violations: Vec::new(),
        written: written(history),
    };
    checker.final_log();
    checker.writes();
    checker.reads();
    checker.latest();
    let mut violations = checker.violations;
    violations.sort_by_key(|violation| (violation.rule, violation.partition));
    violations
}

/// How many violations of each rule there are.
pub fn count(violations: &[Violation]) -> BTreeMap<Rule, usize> {
    let mut counts = BTreeMap::new();
    for violation in violations {
        *counts.entry(violation.rule).or_default() += 1;
    }
    counts
}

/// A text that names the first few violations of each rule.
pub fn describe(violations: &[Violation]) -> String {
    const SHOWN: usize = 5;
    let mut text = String::new();
    for (rule, number) in count(violations) {
        text.push_str(&format!("{number} × {rule}\n"));
        for violation in violations.iter().filter(|v| v.rule == rule).take(SHOWN) {
            text.push_str(&format!("    {violation}\n"));
        }
    }
    text
}

/// Where each record was sent to, and when first.
fn written(history: &History) -> HashMap<Name, (Partition, Duration)> {
    history
        .writes
        .iter()
        .flat_map(|write| {
            write
                .names
                .iter()
                .map(|name| (*name, (write.partition, write.invoked)))
        })
        .collect()
}

struct Checker<'a> {
    history: &'a History,
    log: &'a FinalLog,
    violations: Vec<Violation>,
    written: HashMap<Name, (Partition, Duration)>,
}

impl Checker<'_> {
    fn found(&mut self, rule: Rule, partition: Partition, what: String) {
        self.violations.push(Violation {
            rule,
            partition,
            what,
        });
    }

    fn end(&self, partition: Partition) -> i64 {
        self.log
            .partitions
            .get(&partition)
            .map_or(0, |partition| partition.end)
    }

    fn log_start(&self, partition: Partition) -> i64 {
        self.log
            .partitions
            .get(&partition)
            .map_or(0, |partition| partition.log_start)
    }

    fn at(&self, partition: Partition, offset: i64) -> Option<Seen> {
        let records = &self.log.partitions.get(&partition)?.records;
        let index = records
            .binary_search_by_key(&offset, |seen| seen.offset)
            .ok()?;
        records.get(index).copied()
    }

    /// The log at the end by itself: no hole, nothing foreign or doubled, all in order.
    fn final_log(&mut self) {
        let mut places: HashMap<Name, (Partition, Seen)> = HashMap::new();
        for (&partition, log) in &self.log.partitions {
            let mut next_offset = log.log_start;
            let mut epoch = i32::MIN;
            let mut last_of: HashMap<u32, (u64, i64)> = HashMap::new();
            for seen in &log.records {
                if seen.offset != next_offset {
                    let what = format!("{} where {next_offset} was due", seen.offset);
                    self.found(Rule::Hole, partition, what);
                }
                next_offset = seen.offset + 1;
                if seen.epoch < epoch {
                    let what = format!("epoch {} at {} after {epoch}", seen.epoch, seen.offset);
                    self.found(Rule::EpochsGoBack, partition, what);
                }
                epoch = seen.epoch;
                let place = seen
                    .name
                    .and_then(|name| Some((name, self.written.get(&name)?.0)));
                let Some((name, sent_to)) = place else {
                    let what = format!("{:?} at {}", seen.name, seen.offset);
                    self.found(Rule::Foreign, partition, what);
                    continue;
                };
                if sent_to != partition {
                    let what = format!("{name} at {} was sent to {sent_to}", seen.offset);
                    self.found(Rule::Foreign, partition, what);
                }
                if self.history.producers.get(&name.producer) == Some(&Promise::SentAgain) {
                    continue;
                }
                if let Some((elsewhere, first)) = places.insert(name, (partition, *seen)) {
                    let what = format!(
                        "{name} at {} as {:?} and at {elsewhere}@{} as {:?}",
                        seen.offset, seen.sent_as, first.offset, first.sent_as
                    );
                    self.found(Rule::Doubled, partition, what);
                } else if let Some((previous, at)) =
                    last_of.insert(name.producer, (name.sequence, seen.offset))
                    && previous > name.sequence
                {
                    let what = format!("{name} at {} after {previous} at {at}", seen.offset);
                    self.found(Rule::Disordered, partition, what);
                }
            }
            if next_offset != log.end {
                let what = format!("the log ends at {}, its records at {next_offset}", log.end);
                self.found(Rule::Hole, partition, what);
            }
        }
    }

    /// Every acknowledged record is where the acknowledgement says.
    fn writes(&mut self) {
        let mut somewhere: HashMap<(Partition, Name), i64> = HashMap::new();
        for (&partition, log) in &self.log.partitions {
            for seen in &log.records {
                if let Some(name) = seen.name {
                    somewhere.insert((partition, name), seen.offset);
                }
            }
        }
        for write in &self.history.writes {
            let Some((_, base_offset)) = write.acknowledged else {
                continue;
            };
            let partition = write.partition;
            for (index, name) in write.names.iter().enumerate() {
                let place = somewhere.get(&(partition, *name)).copied();
                let Some(base_offset) = base_offset else {
                    if place.is_none() && self.log_start(partition) == 0 {
                        self.found(Rule::Lost, partition, format!("{name} is nowhere"));
                    }
                    continue;
                };
                let offset = base_offset + i64::try_from(index).unwrap_or(i64::MAX);
                if offset < self.log_start(partition) {
                    continue;
                }
                let there = self.at(partition, offset);
                if there.and_then(|seen| seen.name) != Some(*name) {
                    let what = match (there, place) {
                        (Some(there), None) => {
                            format!("{name} was at {offset}, where {:?} is", there.name)
                        }
                        (_, Some(place)) => format!("{name} was at {offset} and is at {place}"),
                        (None, None) => format!(
                            "{name} was at {offset}, the log ends at {}",
                            self.end(partition)
                        ),
                    };
                    self.found(Rule::Lost, partition, what);
                }
            }
        }
    }

    /// What was read is still there, came without holes, and from below the high watermark.
    fn reads(&mut self) {
        let mut first_seen: HashMap<(Partition, i64), Seen> = HashMap::new();
        for read in &self.history.reads {
            let partition = read.partition;
            let mut next_offset = read.from;
            for seen in &read.records {
                if seen.offset != next_offset {
                    let what = format!("read {} where {next_offset} was due", seen.offset);
                    self.found(Rule::Hole, partition, what);
                }
                next_offset = seen.offset + 1;
                if read.high_watermark.is_some_and(|hw| seen.offset >= hw) {
                    let what = format!("{} with {:?}", seen.offset, read.high_watermark);
                    self.found(Rule::AboveHighWatermark, partition, what);
                }
                let before = first_seen.entry((partition, seen.offset)).or_insert(*seen);
                if differ(*before, *seen) {
                    let what = format!("{seen:?} after {before:?}, at {:?}", read.completed);
                    self.found(Rule::Reused, partition, what);
                }
                match self.at(partition, seen.offset) {
                    Some(there) if differ(there, *seen) => {
                        let what =
                            format!("{seen:?} at {:?}, {there:?} at the end", read.completed);
                        self.found(Rule::Reused, partition, what);
                    }
                    None if seen.offset >= self.log_start(partition) => {
                        let what = format!("{seen:?} at {:?}", read.completed);
                        self.found(Rule::Vanished, partition, what);
                    }
                    _ => {}
                }
            }
            if read
                .high_watermark
                .is_some_and(|hw| hw > self.end(partition))
            {
                let what = format!(
                    "high watermark {:?} at {:?}, the log ends at {}",
                    read.high_watermark,
                    read.completed,
                    self.end(partition)
                );
                self.found(Rule::Vanished, partition, what);
            }
        }
        for refusal in &self.history.out_of_range {
            let what = format!("{} at {:?}", refusal.offset, refusal.completed);
            self.found(Rule::OutOfRange, refusal.partition, what);
        }
    }

    /// Latest offsets against what was known before them and what was sent after them.
    fn latest(&mut self) {
        let mut known: BTreeMap<Partition, Vec<(Duration, i64, Source)>> = BTreeMap::new();
        for write in &self.history.writes {
            if let Some((completed, Some(base_offset))) = write.acknowledged {
                let end = base_offset + i64::try_from(write.names.len()).unwrap_or(0);
                known.entry(write.partition).or_default().push((
                    completed,
                    end,
                    Source::Acknowledgement,
                ));
            }
        }
        for read in &self.history.reads {
            let last = read.records.last().map(|seen| seen.offset + 1);
            if let Some(end) = last.max(read.high_watermark) {
                known
                    .entry(read.partition)
                    .or_default()
                    .push((read.completed, end, Source::Read));
            }
        }
        for answer in &self.history.latest {
            known.entry(answer.partition).or_default().push((
                answer.completed,
                answer.offset,
                Source::Latest(answer.node),
            ));
        }
        // At each time, the largest end that had been told until then.
        for events in known.values_mut() {
            events.sort();
            let mut largest = None;
            for event in events.iter_mut() {
                match largest {
                    Some(before) if event.1 <= before => event.1 = before,
                    _ => largest = Some(event.1),
                }
            }
        }
        let last_sent = self.last_sent();
        for answer in self.history.latest.clone() {
            let partition = answer.partition;
            let floor = known.get(&partition).and_then(|events| {
                let before = events.partition_point(|event| event.0 < answer.invoked);
                events.get(before.checked_sub(1)?).copied()
            });
            if let Some((when, floor, source)) = floor
                && answer.offset < floor
            {
                let what = format!(
                    "node {} said {} when asked at {:?}, {floor} was known at {when:?} ({source:?} then)",
                    answer.node, answer.offset, answer.invoked
                );
                self.found(Rule::Stale, partition, what);
            }
            if answer.offset > self.end(partition) {
                let what = format!(
                    "node {} said {} at {:?}, the log ends at {}",
                    answer.node,
                    answer.offset,
                    answer.completed,
                    self.end(partition)
                );
                self.found(Rule::Vanished, partition, what);
                continue;
            }
            let index = usize::try_from(answer.offset - self.log_start(partition)).unwrap_or(0);
            let sent = index
                .checked_sub(1)
                .and_then(|index| last_sent.get(&partition)?.get(index));
            if let Some(sent) = sent
                && *sent > answer.completed
            {
                let what = format!(
                    "node {} said {} at {:?}, a record below it was sent at {sent:?}",
                    answer.node, answer.offset, answer.completed
                );
                self.found(Rule::Early, partition, what);
            }
        }
    }

    /// For each record of the logs, when the last of those up to it was sent.
    fn last_sent(&self) -> BTreeMap<Partition, Vec<Duration>> {
        self.log
            .partitions
            .iter()
            .map(|(&partition, log)| {
                let mut last = Duration::ZERO;
                let times = log
                    .records
                    .iter()
                    .map(|seen| {
                        let sent = seen.name.and_then(|name| self.written.get(&name));
                        last = last.max(sent.map_or(Duration::ZERO, |(_, invoked)| *invoked));
                        last
                    })
                    .collect();
                (partition, times)
            })
            .collect()
    }
}

/// How an end became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Acknowledgement,
    Read,
    /// An answer of this node.
    Latest(i32),
}

/// Whether two sights of one offset are of different records; an epoch of −1 was not told.
fn differ(one: Seen, other: Seen) -> bool {
    one.name != other.name || (one.epoch != other.epoch && one.epoch >= 0 && other.epoch >= 0)
}

#[cfg(test)]
mod tests;
