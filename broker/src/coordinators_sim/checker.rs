//! The rules, checked from outside: by what clients were told and by what stands in the logs.
//!
//! 1. *one owner*: no partition is held by two members of a group at once;
//! 2. *commits stand*: a committed offset that was acknowledged is read from then on, or a later one;
//! 3. *fenced never commit*: no commit is acknowledged that was sent after another had taken the partition over;
//! 4. *never half*: a transaction has one outcome in all its partitions and offsets, which is what EndTxn said;
//! 5. *no aborted record is read*, nor one that is undecided, by whoever reads what is committed;
//! 6. *the last stable offset* passes no open transaction and never goes back;
//! 7. *zombies are fenced*: whoever has been replaced by InitProducerId writes, commits and ends nothing more;
//! 8. *transactions end*: once faults stop nothing stays undecided;
//! 9. *groups settle*: once faults stop every group is stable, and each of its partitions has an owner;
//! 10. *nothing is lost*: every acknowledged record of a committed transaction is there, once and in order.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use odradek_protocol::ids::ProducerId;

use crate::coordinator::effects::ProducerIdentity;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rule {
    OneOwner,
    CommitsStand,
    FencedNeverCommit,
    NeverHalf,
    NoAbortedRead,
    LastStableOffset,
    ZombiesFenced,
    TransactionsEnd,
    GroupsSettle,
    NothingLost,
}

const NEVER: i64 = i64::MAX;

/// A commit that a member has sent.
#[derive(Debug)]
pub(super) struct Commit {
    pub number: u64,
    pub group: String,
    pub partition: i32,
    /// Which process of which member.
    pub who: String,
    pub sent_ms: i64,
    acknowledged_ms: AtomicI64,
    /// When the last copy of it was dealt with.
    ended_ms: AtomicI64,
}

impl Commit {
    pub(super) fn end(&self, now_ms: i64) {
        self.ended_ms.store(now_ms, Ordering::Relaxed);
    }
}

/// What stands in the log of a partition with records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Logged {
    Record {
        offset: i64,
        producer: ProducerId,
        value: u64,
    },
    Marker {
        offset: i64,
        producer: ProducerId,
        committed: bool,
    },
}

/// How the transactions of the records in a log ended, by value; `None` for those that are open.
pub(super) fn outcomes(log: &[Logged]) -> BTreeMap<u64, Option<(bool, i64)>> {
    let mut open: BTreeMap<ProducerId, Vec<u64>> = BTreeMap::new();
    let mut outcomes = BTreeMap::new();
    for logged in log {
        match *logged {
            Logged::Record {
                producer, value, ..
            } => {
                open.entry(producer).or_default().push(value);
                outcomes.insert(value, None);
            }
            Logged::Marker {
                producer,
                committed,
                offset,
            } => {
                for value in open.remove(&producer).unwrap_or_default() {
                    outcomes.insert(value, Some((committed, offset)));
                }
            }
        }
    }
    outcomes
}

#[derive(Debug)]
struct Write {
    partition: i32,
    value: u64,
    acknowledged: bool,
}

#[derive(Debug)]
struct Txn {
    id: usize,
    writes: Vec<Write>,
    offset_acknowledged: bool,
    answered: Option<(bool, i64)>,
}

#[derive(Default)]
pub(super) struct Checker {
    violations: Vec<(Rule, String)>,
    trace: Vec<String>,
    keeps_trace: bool,
    digest: DefaultHasher,
    events: u64,
    next_number: u64,
    /// Until when each owner counts on a partition.
    held: BTreeMap<(String, i32), BTreeMap<String, i64>>,
    last_taken: BTreeMap<(String, i32), (String, i64)>,
    commits: BTreeMap<(String, i32), Vec<Arc<Commit>>>,
    txns: BTreeMap<u64, Txn>,
    txn_of: BTreeMap<u64, u64>,
    /// Offsets of transactions that were read, by the number of the transactional id.
    offsets_read: BTreeSet<(usize, u64)>,
    instances: BTreeMap<ProducerIdentity, (usize, u64)>,
    initialized: BTreeMap<usize, Vec<(u64, i64)>>,
    last_stable: BTreeMap<i32, i64>,
    pub counts: Counts,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub commits: u64,
    pub takeovers: u64,
    pub committed: u64,
    pub aborted: u64,
    pub records_read: u64,
    pub leaders: u64,
    pub fenced: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: Self) {
        self.commits += other.commits;
        self.takeovers += other.takeovers;
        self.committed += other.committed;
        self.aborted += other.aborted;
        self.records_read += other.records_read;
        self.leaders += other.leaders;
        self.fenced += other.fenced;
    }

    /// Whether everything that is to be seen was seen.
    pub(super) fn is_something(&self) -> bool {
        let all = [
            self.commits,
            self.takeovers,
            self.committed,
            self.aborted,
            self.records_read,
            self.leaders,
            self.fenced,
        ];
        all.iter().all(|count| *count > 100)
    }
}

impl Checker {
    pub(super) fn tracing(keeps_trace: bool) -> Self {
        Self {
            keeps_trace,
            ..Self::default()
        }
    }

    /// Something happened.
    pub(super) fn note(&mut self, now_ms: i64, what: &str) {
        (now_ms, what).hash(&mut self.digest);
        self.events += 1;
        if self.keeps_trace {
            self.trace.push(format!("{now_ms:>7} {what}"));
        }
    }

    pub(super) fn digest(&self) -> (u64, u64) {
        (self.events, self.digest.finish())
    }

    pub(super) fn trace(&self) -> &[String] {
        &self.trace
    }

    pub(super) fn violations(&self) -> &[(Rule, String)] {
        &self.violations
    }

    pub(super) fn violated(&mut self, rule: Rule, what: String) {
        if self.violations.len() < 16 {
            self.trace.push(format!("!!!!!!! {rule:?}: {what}"));
            self.violations.push((rule, what));
        }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    // Groups.

    /// A process has been given a partition; it counts on it until `until_ms` unless it lets go before.
    pub(super) fn take(
        &mut self,
        (group, partition): (&str, i32),
        (owner, who): (&str, &str),
        now_ms: i64,
        until_ms: i64,
    ) {
        self.counts.takeovers += 1;
        let key = (group.to_owned(), partition);
        let held = self.held.entry(key.clone()).or_default();
        let others = held
            .iter()
            .find(|(other, until)| *other != owner && **until > now_ms);
        let other = others.map(|(other, until)| (other.clone(), *until));
        held.insert(owner.to_owned(), until_ms);
        self.last_taken.insert(key, (who.to_owned(), now_ms));
        if let Some((other, until)) = other {
            let what = format!(
                "{now_ms}: {owner} takes {group}-{partition}, {other} holds it until {until}"
            );
            self.violated(Rule::OneOwner, what);
        }
    }

    pub(super) fn prolong(&mut self, group: &str, partition: i32, owner: &str, until_ms: i64) {
        let held = self.held.get_mut(&(group.to_owned(), partition));
        if let Some(until) = held.and_then(|held| held.get_mut(owner)) {
            *until = until_ms;
        }
    }

    /// What a static member's process before had is its own now.
    pub(super) fn succeed(&mut self, group: &str, owner: &str) {
        let of_group = self.held.iter_mut().filter(|((held, _), _)| held == group);
        for (_, held) in of_group {
            held.remove(owner);
        }
    }

    pub(super) fn let_go(&mut self, group: &str, partition: i32, owner: &str) {
        if let Some(held) = self.held.get_mut(&(group.to_owned(), partition)) {
            held.remove(owner);
        }
    }

    /// How many hold the partition.
    pub(super) fn holders(&self, group: &str, partition: i32, now_ms: i64) -> usize {
        let held = self.held.get(&(group.to_owned(), partition));
        held.map_or(0, |held| {
            held.values().filter(|until| **until > now_ms).count()
        })
    }

    pub(super) fn commit(
        &mut self,
        group: &str,
        partition: i32,
        who: &str,
        now_ms: i64,
    ) -> Arc<Commit> {
        let commit = Arc::new(Commit {
            number: self.number(),
            group: group.to_owned(),
            partition,
            who: who.to_owned(),
            sent_ms: now_ms,
            acknowledged_ms: AtomicI64::new(NEVER),
            ended_ms: AtomicI64::new(NEVER),
        });
        let key = (group.to_owned(), partition);
        self.commits
            .entry(key)
            .or_default()
            .push(Arc::clone(&commit));
        commit
    }

    pub(super) fn acknowledged(&mut self, commit: &Commit, now_ms: i64) {
        self.counts.commits += 1;
        commit.acknowledged_ms.store(now_ms, Ordering::Relaxed);
        let key = (commit.group.clone(), commit.partition);
        if let Some((who, at_ms)) = self.last_taken.get(&key)
            && *who != commit.who
            && *at_ms < commit.sent_ms
        {
            let what = format!("{who} has taken the partition at {at_ms}: {commit:?}");
            self.violated(Rule::FencedNeverCommit, what);
        }
    }

    /// The offset that is committed was read, by a question that was asked at `asked_ms`.
    pub(super) fn read(&mut self, group: &str, partition: i32, found: Option<u64>, asked_ms: i64) {
        let key = (group.to_owned(), partition);
        let commits = self.commits.get(&key).map_or(&[][..], Vec::as_slice);
        let read = found.and_then(|number| commits.iter().find(|commit| commit.number == number));
        let read_ended_ms = read.map_or(-1, |commit| commit.ended_ms.load(Ordering::Relaxed));
        let later = commits.iter().find(|commit| {
            let is_acknowledged = commit.acknowledged_ms.load(Ordering::Relaxed) < asked_ms;
            is_acknowledged && commit.sent_ms > read_ended_ms
        });
        if let Some(later) = later {
            let what = format!("asked at {asked_ms}, read {read:?} in spite of {later:?}");
            self.violated(Rule::CommitsStand, what);
        }
    }

    // Transactions.

    pub(super) fn begin(&mut self, id: usize) -> u64 {
        let number = self.number();
        let txn = Txn {
            id,
            writes: Vec::new(),
            offset_acknowledged: false,
            answered: None,
        };
        self.txns.insert(number, txn);
        number
    }

    /// A transaction is about to write a value of its own.
    pub(super) fn write(&mut self, txn: u64, partition: i32) -> u64 {
        let value = self.number();
        self.txn_of.insert(value, txn);
        if let Some(txn) = self.txns.get_mut(&txn) {
            txn.writes.push(Write {
                partition,
                value,
                acknowledged: false,
            });
        }
        value
    }

    pub(super) fn written(&mut self, txn: u64, value: u64) {
        if let Some(txn) = self.txns.get_mut(&txn) {
            for write in txn.writes.iter_mut().filter(|write| write.value == value) {
                write.acknowledged = true;
            }
        }
    }

    pub(super) fn offset_written(&mut self, txn: u64) {
        if let Some(txn) = self.txns.get_mut(&txn) {
            txn.offset_acknowledged = true;
        }
    }

    pub(super) fn ended(&mut self, txn: u64, committed: bool, now_ms: i64) {
        match committed {
            true => self.counts.committed += 1,
            false => self.counts.aborted += 1,
        }
        if let Some(txn) = self.txns.get_mut(&txn) {
            txn.answered = Some((committed, now_ms));
        }
    }

    /// The offset of a transactional id was read, where no open transaction may change it.
    pub(super) fn read_in_transaction(&mut self, id: usize, found: Option<u64>, asked_ms: i64) {
        let last = self.txns.iter().rev().find(|(_, txn)| {
            let is_committed = txn
                .answered
                .is_some_and(|(committed, at)| committed && at < asked_ms);
            txn.id == id && txn.offset_acknowledged && is_committed
        });
        let last = last.map(|(number, _)| *number);
        if last > found {
            let what =
                format!("asked at {asked_ms}: offset of {found:?} after that of {last:?}, id {id}");
            self.violated(Rule::CommitsStand, what);
        }
        if let Some(found) = found {
            self.offsets_read.insert((id, found));
        }
    }

    /// An instance of a producer goes by an identity from now on.
    pub(super) fn is_known_as(&mut self, id: usize, instance: u64, identity: ProducerIdentity) {
        let before = self.instances.insert(identity, (id, instance));
        if before.is_some_and(|before| before != (id, instance)) {
            let what = format!("{identity:?} is {before:?} and ({id}, {instance})");
            self.violated(Rule::ZombiesFenced, what);
        }
    }

    /// InitProducerId was answered.
    pub(super) fn initialized(&mut self, id: usize, instance: u64, now_ms: i64) {
        self.initialized
            .entry(id)
            .or_default()
            .push((instance, now_ms));
    }

    /// Something that was asked for by an instance at `asked_ms` has been done.
    pub(super) fn done_as(&mut self, identity: ProducerIdentity, asked_ms: i64, what: &str) {
        let Some((id, instance)) = self.instances.get(&identity).copied() else {
            return;
        };
        let newer = self.initialized.get(&id).and_then(|all| {
            all.iter()
                .find(|(other, at_ms)| *other > instance && *at_ms < asked_ms)
        });
        if let Some((newer, at_ms)) = newer.copied() {
            let what = format!(
                "{what} at {asked_ms} as {identity:?}, instance {instance} of {id}, after {newer} at {at_ms}"
            );
            self.violated(Rule::ZombiesFenced, what);
        }
    }

    // Records.

    /// A consumer that reads what is committed was given the log up to `stable`.
    pub(super) fn fetched(
        &mut self,
        partition: i32,
        log: &[Logged],
        stable: i64,
        given: &[u64],
        high_watermark: i64,
    ) {
        let before = self.last_stable.entry(partition).or_insert(0);
        let went_back = (stable < *before).then_some(*before);
        *before = stable.max(*before);
        if let Some(before) = went_back {
            let what = format!("partition {partition}: from {before} to {stable}");
            self.violated(Rule::LastStableOffset, what);
        }
        let outcomes = outcomes(log);
        for logged in log {
            let Logged::Record { offset, value, .. } = *logged else {
                continue;
            };
            let is_decided = outcomes[&value].is_some_and(|(_, marker)| marker < high_watermark);
            if offset < stable && !is_decided {
                let what = format!("partition {partition}: {stable} is beyond {logged:?}");
                self.violated(Rule::LastStableOffset, what);
            }
        }
        for value in given {
            self.counts.records_read += 1;
            if !matches!(outcomes.get(value), Some(Some((true, _)))) {
                let what = format!(
                    "partition {partition}: value {value}, {:?}",
                    outcomes.get(value)
                );
                self.violated(Rule::NoAbortedRead, what);
            }
        }
    }

    /// At the end: the logs of all partitions, everything of which is committed, and the offset that is
    /// committed of each transactional id.
    pub(super) fn finish(&mut self, logs: &[Vec<Logged>], offsets: &[Option<u64>]) {
        let mut ends: BTreeMap<u64, BTreeSet<bool>> = BTreeMap::new();
        let mut committed: Vec<Vec<u64>> = Vec::new();
        for (index, log) in logs.iter().enumerate() {
            let outcomes = outcomes(log);
            let mut values = Vec::new();
            for logged in log {
                let Logged::Record { value, .. } = logged else {
                    continue;
                };
                match outcomes[value] {
                    None => {
                        let what = format!("partition {index}: {logged:?} stays undecided");
                        self.violated(Rule::TransactionsEnd, what);
                    }
                    Some((is_committed, _)) => {
                        ends.entry(self.txn_of[value])
                            .or_default()
                            .insert(is_committed);
                        if is_committed {
                            values.push(*value);
                        }
                    }
                }
            }
            let distinct: BTreeSet<_> = values.iter().collect();
            if distinct.len() != values.len() {
                self.violated(
                    Rule::NothingLost,
                    format!("a record twice in partition {index}"),
                );
            }
            committed.push(values);
        }
        let mut found = Vec::new();
        for (number, txn) in &self.txns {
            let outcomes = ends.get(number).cloned().unwrap_or_default();
            if outcomes.len() > 1 {
                found.push((Rule::NeverHalf, format!("{number}: {txn:?}")));
            }
            let answer = txn.answered.map(|(committed, _)| committed);
            if let Some(answer) = answer
                && outcomes.contains(&!answer)
            {
                found.push((
                    Rule::NeverHalf,
                    format!("{number} ended otherwise: {txn:?}"),
                ));
            }
            let was_committed = answer == Some(true) || outcomes.contains(&true);
            if was_committed && txn.offset_acknowledged && offsets[txn.id] < Some(*number) {
                let what = format!("{number}: its offset is {:?}, {txn:?}", offsets[txn.id]);
                found.push((Rule::NeverHalf, what));
            }
            if answer == Some(true) {
                for (index, values) in (0..).zip(&committed) {
                    let wrote = txn.writes.iter().filter(|write| write.partition == index);
                    let wrote: Vec<_> = wrote
                        .filter(|write| write.acknowledged)
                        .map(|write| write.value)
                        .collect();
                    let there: Vec<_> = values
                        .iter()
                        .copied()
                        .filter(|value| wrote.contains(value))
                        .collect();
                    if wrote != there {
                        let what = format!("{number} in partition {index}: {there:?} of {txn:?}");
                        found.push((Rule::NothingLost, what));
                    }
                }
            }
        }
        for (id, number) in &self.offsets_read {
            let outcomes = ends.get(number).cloned().unwrap_or_default();
            let answered = self.txns[number].answered.map(|(committed, _)| committed);
            if outcomes.contains(&false) || answered == Some(false) {
                let what = format!("an offset of {number}, which was aborted, was read, id {id}");
                found.push((Rule::NeverHalf, what));
            }
        }
        for (rule, what) in found {
            self.violated(rule, what);
        }
    }
}
