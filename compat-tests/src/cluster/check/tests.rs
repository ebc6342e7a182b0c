//! Each rule against a good history and one that breaks it.

use super::*;
use crate::cluster::history::{FinalPartition, Latest, OutOfRange, Read, Write};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn name(producer: u32, sequence: u64) -> Name {
    Name { producer, sequence }
}

fn seen(offset: i64, producer: u32, sequence: u64, epoch: i32) -> Seen {
    Seen {
        offset,
        name: Some(name(producer, sequence)),
        epoch,
        sent_as: None,
    }
}

/// Partition 0 with these records.
fn log(records: &[Seen]) -> FinalLog {
    let end = records.last().map_or(0, |seen| seen.offset + 1);
    FinalLog {
        partitions: BTreeMap::from([(
            0,
            FinalPartition {
                log_start: 0,
                end,
                records: records.to_vec(),
            },
        )]),
    }
}

/// Producer 0 is idempotent, 1 sends once, 2 sends again; each wrote one record of partition 0 after the other, the
/// first at 10 ms, acknowledged 5 ms later at offsets 0 to 3.
fn history() -> History {
    let write = |producer, sequence, at: u64, offset| Write {
        partition: 0,
        names: vec![name(producer, sequence)],
        invoked: ms(at),
        acknowledged: Some((ms(at + 5), Some(offset))),
    };
    History {
        producers: BTreeMap::from([
            (0, Promise::Idempotent),
            (1, Promise::SentOnce),
            (2, Promise::SentAgain),
        ]),
        writes: vec![
            write(0, 0, 10, 0),
            write(0, 1, 20, 1),
            write(1, 0, 30, 2),
            write(2, 0, 40, 3),
        ],
        ..History::default()
    }
}

fn good() -> Vec<Seen> {
    vec![
        seen(0, 0, 0, 1),
        seen(1, 0, 1, 1),
        seen(2, 1, 0, 2),
        seen(3, 2, 0, 2),
    ]
}

fn read(at: u64, from: i64, records: &[Seen], high_watermark: i64) -> Read {
    Read {
        partition: 0,
        invoked: ms(at),
        completed: ms(at + 1),
        from,
        records: records.to_vec(),
        high_watermark: Some(high_watermark),
    }
}

fn latest(invoked: u64, completed: u64, offset: i64) -> Latest {
    Latest {
        partition: 0,
        invoked: ms(invoked),
        completed: ms(completed),
        offset,
        node: 1,
    }
}

#[track_caller]
fn expect(history: &History, log: &FinalLog, rules: &[Rule]) {
    let violations = check(history, log);
    let found: Vec<Rule> = count(&violations).into_keys().collect();
    assert_eq!(found, rules, "{}", describe(&violations));
}

#[test]
fn a_history_without_faults_passes() {
    let mut history = history();
    history.reads.push(read(50, 0, &good(), 4));
    // While the second write was under way either answer is right.
    history.latest.push(latest(21, 24, 1));
    history.latest.push(latest(21, 24, 2));
    history.latest.push(latest(50, 51, 4));
    expect(&history, &log(&good()), &[]);
}

#[test]
fn an_acknowledged_record_that_is_gone_or_elsewhere_is_lost() {
    expect(&history(), &log(&good()[..3]), &[Rule::Lost]);
    let mut moved = good();
    moved.swap(2, 3);
    (moved[2].offset, moved[3].offset) = (2, 3);
    expect(&history(), &log(&moved), &[Rule::Lost]);
}

#[test]
fn a_record_acknowledged_as_a_duplicate_must_be_somewhere() {
    let mut history = history();
    history.writes[3].acknowledged = Some((ms(45), None));
    expect(&history, &log(&good()), &[]);
    expect(&history, &log(&good()[..3]), &[Rule::Lost]);
}

#[test]
fn a_record_that_was_not_acknowledged_may_be_there_or_not() {
    let mut history = history();
    history.writes[3].acknowledged = None;
    expect(&history, &log(&good()), &[]);
    expect(&history, &log(&good()[..3]), &[]);
}

#[test]
fn a_record_twice_is_a_fault_unless_the_producer_sends_again() {
    for (producer, rules) in [(0, &[Rule::Doubled][..]), (1, &[Rule::Doubled]), (2, &[])] {
        let mut records = good();
        let sequence = u64::from(producer == 0);
        records.push(seen(4, producer, sequence, 2));
        expect(&history(), &log(&records), rules);
    }
}

#[test]
fn records_of_a_producer_in_another_order_are_a_fault() {
    let mut history = history();
    for write in &mut history.writes {
        write.acknowledged = None;
    }
    let records = [seen(0, 0, 1, 1), seen(1, 0, 0, 1)];
    expect(&history, &log(&records), &[Rule::Disordered]);
}

#[test]
fn an_offset_that_names_two_records_is_a_fault_whoever_saw_them() {
    let mut one_reader = history();
    one_reader.writes[3].acknowledged = None;
    one_reader.reads.push(read(46, 3, &[seen(3, 2, 0, 1)], 4));
    expect(&one_reader, &log(&good()), &[Rule::Reused]);
    // Two readers disagree about something that is gone at the end.
    let mut two_readers = history();
    two_readers.reads.push(read(50, 4, &[seen(4, 0, 0, 2)], 5));
    two_readers.reads.push(read(51, 4, &[seen(4, 0, 1, 2)], 5));
    expect(&two_readers, &log(&good()), &[Rule::Reused, Rule::Vanished]);
}

#[test]
fn what_was_read_must_stay_and_so_must_high_watermarks() {
    let mut history = history();
    history.writes[3].acknowledged = None;
    history.reads.push(read(46, 3, &[seen(3, 2, 0, 2)], 4));
    expect(&history, &log(&good()[..3]), &[Rule::Vanished]);
    history.reads.clear();
    history.reads.push(read(46, 3, &[], 4));
    expect(&history, &log(&good()[..3]), &[Rule::Vanished]);
}

#[test]
fn nothing_is_read_above_the_high_watermark() {
    let mut history = history();
    history.reads.push(read(50, 2, &good()[2..], 3));
    expect(&history, &log(&good()), &[Rule::AboveHighWatermark]);
}

#[test]
fn holes_are_found_in_reads_and_in_the_log() {
    let mut history = history();
    history.reads.push(read(50, 1, &good()[2..], 4));
    expect(&history, &log(&good()), &[Rule::Hole]);
    history.reads.clear();
    history.writes[1].acknowledged = None;
    let mut holed = good();
    holed.remove(1);
    expect(&history, &log(&holed), &[Rule::Hole]);
}

#[test]
fn epochs_do_not_go_back() {
    let mut records = good();
    records[3].epoch = 1;
    expect(&history(), &log(&records), &[Rule::EpochsGoBack]);
}

#[test]
fn values_that_nobody_wrote_are_found() {
    let mut records = good();
    records.push(seen(4, 7, 0, 2));
    expect(&history(), &log(&records), &[Rule::Foreign]);
    records[4].name = None;
    expect(&history(), &log(&records), &[Rule::Foreign]);
}

#[test]
fn a_latest_offset_behind_an_acknowledgement_a_read_or_another_answer_is_stale() {
    let mut after_acknowledgement = history();
    after_acknowledgement.latest.push(latest(26, 27, 1));
    expect(&after_acknowledgement, &log(&good()), &[Rule::Stale]);

    let mut after_read = history();
    after_read.reads.push(read(21, 1, &good()[1..2], 2));
    after_read.latest.push(latest(23, 24, 1));
    expect(&after_read, &log(&good()), &[Rule::Stale]);

    let mut after_answer = history();
    after_answer.latest.push(latest(21, 22, 2));
    after_answer.latest.push(latest(23, 24, 1));
    expect(&after_answer, &log(&good()), &[Rule::Stale]);
}

#[test]
fn a_latest_offset_that_counts_what_was_not_sent_yet_is_early_and_one_beyond_the_end_has_vanished()
{
    let mut early = history();
    early.latest.push(latest(16, 19, 2));
    expect(&early, &log(&good()), &[Rule::Early]);
    let mut beyond = history();
    beyond.latest.push(latest(50, 51, 5));
    expect(&beyond, &log(&good()), &[Rule::Vanished]);
}

#[test]
fn a_reader_sent_away_from_where_it_was_is_a_fault() {
    let mut history = history();
    history.out_of_range.push(OutOfRange {
        partition: 0,
        offset: 2,
        completed: ms(50),
    });
    expect(&history, &log(&good()), &[Rule::OutOfRange]);
}
