//! Whether a history is one that correct coordinators allow.
//!
//! - *One owner*: no two members have a partition at the same time, each by what it was told and for no longer than its
//!   session can last without a heartbeat.
//! - *Old generations*: a commit by a generation of the classic protocol after a later one was given out, or by a member
//!   while another has the partition, is not acknowledged, and changes nothing; nor does one that was refused.
//! - *Commits*: what is committed never goes back behind what was acknowledged, or seen, before it was asked for.
//! - *Transactions*: all records of an attempt count or none; all, once its commit was answered; none, unless a commit
//!   was asked for. Every position up to where its group stands counts once, one after the other, and none beyond.
//! - *Readers* that see committed records only have seen just those that count in what they have read.
//! - Nothing stays open.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::{Rule, Violation};
use crate::cluster::history::{
    Attempt, AttemptName, Commit, CommittedTopic, Fetched, History, Owned, Partition,
};

/// Every violation, those of one rule together.
pub fn check(history: &History, topic: &CommittedTopic) -> Vec<Violation> {
    let mut violations = Vec::new();
    groups(history, &mut violations);
    transactions(history, topic, &mut violations);
    readers(history, topic, &mut violations);
    violations.sort_by_key(|violation| (violation.rule, violation.partition));
    violations
}

fn found(violations: &mut Vec<Violation>, rule: Rule, partition: Partition, what: String) {
    violations.push(Violation {
        rule,
        partition,
        what,
    });
}

/// Everything about one partition of one group.
#[derive(Default)]
struct Place<'a> {
    owned: Vec<&'a Owned>,
    commits: Vec<&'a Commit>,
    fetched: Vec<&'a Fetched>,
}

fn groups(history: &History, violations: &mut Vec<Violation>) {
    let mut places: BTreeMap<(&str, Partition), Place<'_>> = BTreeMap::new();
    for owned in &history.owned {
        let place = places.entry((&owned.group, owned.partition)).or_default();
        place.owned.push(owned);
    }
    for commit in &history.commits {
        let place = places.entry((&commit.group, commit.partition)).or_default();
        place.commits.push(commit);
    }
    for fetched in &history.fetched {
        let place = places
            .entry((&fetched.group, fetched.partition))
            .or_default();
        place.fetched.push(fetched);
    }
    for ((_, partition), mut place) in places {
        place.owned.sort_by_key(|owned| owned.from);
        place.fetched.sort_by_key(|fetched| fetched.completed);
        one_owner(&place, partition, violations);
        old_generations(&place, history, partition, violations);
        commits_stay(&place, partition, violations);
        owners_alone_commit(&place, partition, violations);
    }
}

fn one_owner(place: &Place<'_>, partition: Partition, violations: &mut Vec<Violation>) {
    for (index, one) in place.owned.iter().enumerate() {
        for other in &place.owned[index + 1..] {
            if other.from >= one.until {
                break;
            }
            if other.member != one.member {
                found(
                    violations,
                    Rule::TwoOwners,
                    partition,
                    format!("{one:?} and {other:?}"),
                );
            }
        }
    }
}

fn old_generations(
    place: &Place<'_>,
    history: &History,
    partition: Partition,
    violations: &mut Vec<Violation>,
) {
    for commit in &place.commits {
        let Some(acknowledged) = commit.acknowledged() else {
            continue;
        };
        let newer = history.owned.iter().find(|owned| {
            owned.classic
                && owned.group == commit.group
                && owned.generation > commit.generation
                && owned.from < commit.invoked
        });
        let other = place.owned.iter().copied().find(|owned| {
            owned.member != commit.member
                && owned.from < commit.invoked
                && acknowledged < owned.until
        });
        if let Some(owned) = newer.or(other) {
            found(
                violations,
                Rule::OldGeneration,
                partition,
                format!("{commit:?} was acknowledged, after {owned:?}"),
            );
        }
    }
}

/// What is committed goes forward only.
fn commits_stay(place: &Place<'_>, partition: Partition, violations: &mut Vec<Violation>) {
    let by_offset: HashMap<i64, &Commit> = place
        .commits
        .iter()
        .map(|commit| (commit.offset, *commit))
        .collect();
    // What was known to be committed, and since when.
    let mut known: Vec<(Duration, i64)> = place
        .commits
        .iter()
        .filter_map(|commit| Some((commit.acknowledged()?, commit.offset)))
        .chain(
            place
                .fetched
                .iter()
                .map(|seen| (seen.completed, seen.offset)),
        )
        .collect();
    known.sort_unstable();
    let mut largest = i64::MIN;
    for (_, offset) in &mut known {
        largest = largest.max(*offset);
        *offset = largest;
    }
    for fetched in &place.fetched {
        let commit = by_offset.get(&fetched.offset).copied();
        if fetched.offset >= 0 && commit.is_none_or(|commit| commit.invoked > fetched.completed) {
            let what = format!("{fetched:?}, which nobody had committed");
            found(violations, Rule::Foreign, partition, what);
            continue;
        }
        if let Some(commit) = commit
            && was_refused(commit)
        {
            let what = format!("{commit:?} was refused, and then {fetched:?}");
            found(violations, Rule::OldGeneration, partition, what);
        }
        let before = known.partition_point(|(at, _)| *at < fetched.invoked);
        let Some(&(_, floor)) = before.checked_sub(1).and_then(|index| known.get(index)) else {
            continue;
        };
        if fetched.offset >= floor {
            continue;
        }
        // A request that a member gave up may arrive after its next one, by another connection.
        let overtaken = by_offset
            .get(&floor)
            .zip(commit)
            .is_some_and(|(last, late)| {
                late.answer.is_none()
                    && late.member == last.member
                    && late.generation == last.generation
            });
        if !overtaken {
            let what = format!("{fetched:?} though {floor} was committed");
            found(violations, Rule::CommitLost, partition, what);
        }
    }
}

/// Whether the answer says for good that the commit does not count.
fn was_refused(commit: &Commit) -> bool {
    /// ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH, STALE_MEMBER_EPOCH.
    const FOR_GOOD: [i16; 5] = [22, 25, 82, 110, 113];
    commit
        .answer
        .is_some_and(|(code, _)| FOR_GOOD.contains(&code))
}

/// While a member has a partition, nobody else's commit comes to light that had not before.
fn owners_alone_commit(place: &Place<'_>, partition: Partition, violations: &mut Vec<Violation>) {
    let by_offset: HashMap<i64, &Commit> = place
        .commits
        .iter()
        .map(|commit| (commit.offset, *commit))
        .collect();
    for owned in &place.owned {
        let during = place
            .fetched
            .iter()
            .filter(|fetched| fetched.invoked > owned.from && fetched.completed < owned.until);
        let mut first: Option<&Fetched> = None;
        for fetched in during {
            let Some(first) = first else {
                first = Some(fetched);
                continue;
            };
            let is_its_own = by_offset
                .get(&fetched.offset)
                .is_some_and(|commit| commit.member == owned.member);
            if fetched.invoked > first.completed && fetched.offset != first.offset && !is_its_own {
                let what = format!("{first:?}, then {fetched:?}, while {owned:?}");
                found(violations, Rule::OldGeneration, partition, what);
            }
        }
    }
}

fn transactions(history: &History, topic: &CommittedTopic, violations: &mut Vec<Violation>) {
    let mut places: BTreeMap<AttemptName, Vec<Partition>> = BTreeMap::new();
    for (&partition, view) in &topic.partitions {
        if view.last_stable != view.end {
            let what = format!("decided up to {} of {}", view.last_stable, view.end);
            found(violations, Rule::Hanging, partition, what);
        }
        let mut last_of: HashMap<u32, AttemptName> = HashMap::new();
        for &(offset, name) in &view.records {
            let Some(name) = name else {
                let what = format!("nobody's record at {offset} of the copiers' topic");
                found(violations, Rule::Foreign, partition, what);
                continue;
            };
            places.entry(name).or_default().push(partition);
            if let Some(last) = last_of.insert(name.copier, name)
                && last.position >= name.position
            {
                let what = format!("{name} at {offset} after {last}");
                found(violations, Rule::CopiedTwice, partition, what);
            }
        }
    }
    let known: BTreeSet<AttemptName> = history
        .attempts
        .iter()
        .map(|attempt| attempt.name)
        .collect();
    for (name, partitions) in &places {
        if !known.contains(name) {
            let partition = partitions.first().copied().unwrap_or(0);
            found(violations, Rule::Foreign, partition, name.to_string());
        }
    }
    let none = Vec::new();
    for attempt in &history.attempts {
        let there = places.get(&attempt.name).unwrap_or(&none);
        all_or_nothing(attempt, there, topic, violations);
    }
    positions(&places, topic, violations);
}

/// `there` is where records of the attempt count.
fn all_or_nothing(
    attempt: &Attempt,
    there: &[Partition],
    topic: &CommittedTopic,
    violations: &mut Vec<Violation>,
) {
    let mut counted = there.to_vec();
    counted.sort_unstable();
    let mut sent = attempt.partitions.clone();
    sent.sort_unstable();
    let partition = sent.first().copied().unwrap_or(0);
    let rule = match attempt.asked {
        Some((true, _)) if counted == sent => return,
        Some((true, _)) if counted.is_empty() && attempt.answered.is_none() => return,
        Some((true, _)) if counted.is_empty() => Rule::EndUndone,
        Some((true, _)) => Rule::HalfTransaction,
        Some((false, _)) | None if counted.is_empty() => return,
        Some((false, _)) if attempt.answered.is_some() => Rule::EndUndone,
        Some((false, _)) | None => Rule::AbortedSeen,
    };
    let aborted = topic.partitions.iter().filter_map(|(partition, view)| {
        let of_it = view.aborted.iter();
        let (offset, _) = of_it
            .clone()
            .find(|(_, name)| *name == Some(attempt.name))?;
        Some(format!("{partition}@{offset}"))
    });
    let aborted: Vec<String> = aborted.collect();
    let what = format!("{attempt:?} counts in {counted:?}, is aborted in {aborted:?}");
    found(violations, rule, partition, what);
}

/// Every position up to where its copier stands counts in one attempt, and none beyond.
fn positions(
    places: &BTreeMap<AttemptName, Vec<Partition>>,
    topic: &CommittedTopic,
    violations: &mut Vec<Violation>,
) {
    for (&copier, &position) in &topic.positions {
        let mut attempts: BTreeMap<i64, Vec<AttemptName>> = BTreeMap::new();
        for name in places.keys().filter(|name| name.copier == copier) {
            attempts.entry(name.position).or_default().push(*name);
        }
        for (at, names) in &attempts {
            if names.len() > 1 {
                let what = format!("position {at} of copier {copier}: {names:?}");
                found(violations, Rule::CopiedTwice, 0, what);
            }
            if *at >= position {
                let what = format!("{names:?} count, and the group stands at {position}");
                found(violations, Rule::HalfTransaction, 0, what);
            }
        }
        for at in (0..position).filter(|at| !attempts.contains_key(at)) {
            let what = format!(
                "copier {copier}: no record of position {at} counts, and the group stands at {position}"
            );
            found(violations, Rule::HalfTransaction, 0, what);
        }
    }
}

fn readers(history: &History, topic: &CommittedTopic, violations: &mut Vec<Violation>) {
    for read in &history.committed_reads {
        let Some(view) = topic.partitions.get(&read.partition) else {
            continue;
        };
        let begin = view
            .records
            .partition_point(|(offset, _)| *offset < read.from);
        let end = view
            .records
            .partition_point(|(offset, _)| *offset < read.next);
        let counts = view.records.get(begin..end).unwrap_or_default();
        if counts != read.records {
            let what = format!("{read:?}, where {counts:?} counts");
            found(violations, Rule::ReadUncommitted, read.partition, what);
        }
    }
}

#[cfg(test)]
mod tests;
