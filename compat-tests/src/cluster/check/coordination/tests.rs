//! Each rule against a good history and one that breaks it.

use super::*;
use crate::cluster::history::{CommittedRead, CommittedView};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn owned(member: &str, generation: i32, from: u64, until: u64) -> Owned {
    Owned {
        group: "group".to_owned(),
        member: member.to_owned(),
        generation,
        classic: true,
        partition: 0,
        from: ms(from),
        until: ms(until),
    }
}

/// Sent at a time and answered 5 ms later.
fn commit(who: (&str, i32), offset: i64, at: u64, code: Option<i16>) -> Commit {
    Commit {
        group: "group".to_owned(),
        member: who.0.to_owned(),
        generation: who.1,
        partition: 0,
        offset,
        invoked: ms(at),
        answer: code.map(|code| (code, ms(at + 5))),
    }
}

fn fetched(offset: i64, at: u64) -> Fetched {
    Fetched {
        group: "group".to_owned(),
        partition: 0,
        invoked: ms(at),
        completed: ms(at + 5),
        offset,
        node: 1,
    }
}

/// Member `a` has the partition in generation 1 and commits 10 and 11, of which the last is not answered; then `b` has
/// it in generation 2, finds 11, and commits 12.
fn of_groups() -> History {
    History {
        owned: vec![owned("a", 1, 0, 100), owned("b", 2, 120, 300)],
        commits: vec![
            commit(("a", 1), 10, 20, Some(0)),
            commit(("a", 1), 11, 90, None),
            commit(("b", 2), 12, 150, Some(0)),
        ],
        fetched: vec![
            fetched(-1, 10),
            fetched(10, 30),
            fetched(11, 125),
            fetched(12, 160),
        ],
        ..History::default()
    }
}

fn rules(history: &History, topic: &CommittedTopic) -> Vec<Rule> {
    let mut rules: Vec<Rule> = check(history, topic)
        .into_iter()
        .map(|violation| violation.rule)
        .collect();
    rules.dedup();
    rules
}

fn rules_of_groups(change: impl FnOnce(&mut History)) -> Vec<Rule> {
    let mut history = of_groups();
    change(&mut history);
    rules(&history, &CommittedTopic::default())
}

#[test]
fn a_good_history_of_members_breaks_no_rule() {
    assert_eq!(rules_of_groups(|_| {}), []);
    // An unanswered commit may also never land.
    assert_eq!(
        rules_of_groups(|history| history.fetched[2].offset = 10),
        []
    );
    // A member may have its own late request arrive after its next one.
    let late = |history: &mut History| {
        history.commits[0].answer = None;
        history.commits[1].answer = Some((0, ms(95)));
        history.fetched.truncate(2);
        history.fetched.push(fetched(10, 97));
    };
    assert_eq!(rules_of_groups(late), []);
}

#[test]
fn two_members_with_one_partition_are_found() {
    let overlapping = |history: &mut History| history.owned[1].from = ms(99);
    assert_eq!(rules_of_groups(overlapping), [Rule::TwoOwners]);
    let the_same_again = |history: &mut History| history.owned[1].member = "a".to_owned();
    assert!(!rules_of_groups(the_same_again).contains(&Rule::TwoOwners));
}

#[test]
fn commits_of_old_generations_that_land_are_found() {
    let late = |history: &mut History| {
        history.commits.push(commit(("a", 1), 13, 170, Some(0)));
    };
    assert_eq!(rules_of_groups(late), [Rule::OldGeneration]);
    let refused = |history: &mut History| {
        history.commits.push(commit(("a", 1), 13, 170, Some(22)));
    };
    assert_eq!(rules_of_groups(refused), []);
    let refused_and_there = |history: &mut History| {
        history.commits[1].answer = Some((22, ms(95)));
    };
    assert_eq!(rules_of_groups(refused_and_there), [Rule::OldGeneration]);
    let coming_to_light = |history: &mut History| {
        history.fetched[2].offset = 10;
        history.fetched.insert(3, fetched(11, 135));
    };
    assert_eq!(rules_of_groups(coming_to_light), [Rule::OldGeneration]);
    let of_another_protocol = |history: &mut History| {
        for owned in &mut history.owned {
            owned.classic = false;
        }
        history.commits.push(commit(("a", 1), 13, 100, Some(0)));
        history.fetched[2].offset = 13;
        history.fetched[3].offset = 13;
    };
    assert_eq!(rules_of_groups(of_another_protocol), []);
}

#[test]
fn commits_that_are_lost_are_found() {
    let lost = |history: &mut History| history.fetched[3].offset = 11;
    assert_eq!(rules_of_groups(lost), [Rule::CommitLost]);
    let gone_back = |history: &mut History| {
        history.commits[2].answer = None;
        history.fetched.push(fetched(11, 170));
    };
    assert_eq!(rules_of_groups(gone_back), [Rule::CommitLost]);
    let nobodys = |history: &mut History| history.fetched[3].offset = 99;
    assert_eq!(
        rules_of_groups(nobodys),
        [Rule::Foreign, Rule::OldGeneration]
    );
}

fn name(position: i64, number: u32) -> AttemptName {
    AttemptName {
        copier: 0,
        position,
        number,
    }
}

/// The first attempt is aborted, the second committed, of the third nobody knows, the fourth was given up.
fn of_copiers() -> (History, CommittedTopic) {
    let attempt = |name, asked, answered: Option<u64>| Attempt {
        name,
        partitions: vec![1, 0],
        asked,
        answered: answered.map(ms),
    };
    let records = vec![(3, Some(name(0, 1))), (7, Some(name(1, 2)))];
    let view = CommittedView {
        records: records.clone(),
        last_stable: 9,
        end: 9,
        ..CommittedView::default()
    };
    let history = History {
        attempts: vec![
            attempt(name(0, 0), Some((false, ms(10))), Some(15)),
            attempt(name(0, 1), Some((true, ms(20))), Some(25)),
            attempt(name(1, 2), Some((true, ms(30))), None),
            attempt(name(2, 3), None, None),
        ],
        committed_reads: vec![CommittedRead {
            partition: 1,
            completed: ms(50),
            from: 4,
            next: 8,
            records: vec![records[1]],
        }],
        ..History::default()
    };
    let topic = CommittedTopic {
        partitions: BTreeMap::from([(0, view.clone()), (1, view)]),
        positions: BTreeMap::from([(0, 2)]),
    };
    (history, topic)
}

fn rules_of_copiers(change: impl FnOnce(&mut History, &mut CommittedTopic)) -> Vec<Rule> {
    let (mut history, mut topic) = of_copiers();
    change(&mut history, &mut topic);
    rules(&history, &topic)
}

/// Takes the records of an attempt out of a partition.
fn remove(topic: &mut CommittedTopic, partition: Partition, gone: AttemptName) {
    if let Some(view) = topic.partitions.get_mut(&partition) {
        view.records.retain(|(_, name)| *name != Some(gone));
    }
}

fn add(topic: &mut CommittedTopic, partition: Partition, offset: i64, name: AttemptName) {
    if let Some(view) = topic.partitions.get_mut(&partition) {
        view.records.push((offset, Some(name)));
        view.records.sort_unstable();
    }
}

#[test]
fn a_good_history_of_copiers_breaks_no_rule() {
    assert_eq!(rules_of_copiers(|_, _| {}), []);
    let without_the_third = |history: &mut History, topic: &mut CommittedTopic| {
        remove(topic, 0, name(1, 2));
        remove(topic, 1, name(1, 2));
        topic.positions.insert(0, 1);
        history.committed_reads[0].records.clear();
    };
    assert_eq!(rules_of_copiers(without_the_third), []);
}

#[test]
fn half_transactions_are_found() {
    let half = |_: &mut History, topic: &mut CommittedTopic| remove(topic, 0, name(1, 2));
    assert_eq!(rules_of_copiers(half), [Rule::HalfTransaction]);
    let without_its_offset = |_: &mut History, topic: &mut CommittedTopic| {
        topic.positions.insert(0, 1);
    };
    assert_eq!(
        rules_of_copiers(without_its_offset),
        [Rule::HalfTransaction]
    );
    let its_offset_alone = |_: &mut History, topic: &mut CommittedTopic| {
        topic.positions.insert(0, 3);
    };
    assert_eq!(rules_of_copiers(its_offset_alone), [Rule::HalfTransaction]);
}

#[test]
fn answered_ends_that_are_undone_are_found() {
    let lost = |_: &mut History, topic: &mut CommittedTopic| {
        remove(topic, 0, name(0, 1));
        remove(topic, 1, name(0, 1));
    };
    assert_eq!(
        rules_of_copiers(lost),
        [Rule::HalfTransaction, Rule::EndUndone]
    );
    let aborted = |history: &mut History, topic: &mut CommittedTopic| {
        add(topic, 0, 1, name(0, 0));
        history.attempts[0].partitions = vec![0];
    };
    assert_eq!(
        rules_of_copiers(aborted),
        [Rule::EndUndone, Rule::CopiedTwice]
    );
}

#[test]
fn records_that_nobody_committed_are_found() {
    let given_up = |_: &mut History, topic: &mut CommittedTopic| {
        add(topic, 0, 8, name(2, 3));
        topic.positions.insert(0, 3);
    };
    assert_eq!(rules_of_copiers(given_up), [Rule::AbortedSeen]);
    let nobodys = |_: &mut History, topic: &mut CommittedTopic| {
        if let Some(view) = topic.partitions.get_mut(&0) {
            view.records.push((8, None));
        }
    };
    assert_eq!(rules_of_copiers(nobodys), [Rule::Foreign]);
}

#[test]
fn positions_copied_twice_or_in_disorder_are_found() {
    let twice = |_: &mut History, topic: &mut CommittedTopic| add(topic, 0, 8, name(1, 2));
    let found = rules_of_copiers(twice);
    assert!(found.contains(&Rule::CopiedTwice), "{found:?}");
}

#[test]
fn readers_that_saw_something_else_are_found() {
    let missed = |history: &mut History, _: &mut CommittedTopic| {
        history.committed_reads[0].records.clear();
    };
    assert_eq!(rules_of_copiers(missed), [Rule::ReadUncommitted]);
    let saw_more = |history: &mut History, _: &mut CommittedTopic| {
        history.committed_reads[0].from = 0;
        history.committed_reads[0].records = vec![
            (1, Some(name(0, 0))),
            (3, Some(name(0, 1))),
            (7, Some(name(1, 2))),
        ];
    };
    assert_eq!(rules_of_copiers(saw_more), [Rule::ReadUncommitted]);
}

#[test]
fn a_transaction_that_stays_open_is_found() {
    let hangs = |_: &mut History, topic: &mut CommittedTopic| {
        if let Some(view) = topic.partitions.get_mut(&1) {
            view.last_stable = 8;
        }
    };
    assert_eq!(rules_of_copiers(hangs), [Rule::Hanging]);
}
