//! Transactions on the wire: what goes wrong elsewhere, and what is right.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use compat_tests::batches::BatchSpec;
use compat_tests::groups::{committed, coordinator_is_up, offset_commit, offset_fetch};
use compat_tests::requests::{
    LATEST, Topic, batches_of, create_topic, delete_topic, fetch_request, first_partition,
    list_offsets_request, produce_ok, records_of, until_not_retriable,
};
use compat_tests::server::Server;
use compat_tests::transactions::{
    TxnProducer, init_request, latest_stable, read_committed, state_of,
};
use compat_tests::wire::{Wire, text};
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::{
    DeleteGroupsRequest, DeleteRecordsRequest, GroupId, OffsetDeleteRequest,
};

const NOW: i64 = 1_700_000_000_000;
const MIB: i32 = 1024 * 1024;
const OUT_OF_ORDER: i16 = 45;
const UNSTABLE_OFFSET_COMMIT: i16 = 88;

fn fetch_committed(wire: &mut Wire, topic: &Topic, offset: i64) -> Result<PartitionData> {
    let request = fetch_request(12, topic, &[(0, offset, MIB)]).with_isolation_level(1);
    first_partition(wire.call(12, &request)?)
}

#[test]
fn read_committed_stops_at_an_open_transaction_and_is_told_of_aborted_ones_with_their_data()
-> Result<()> {
    let server = Server::start()?;
    let mut wire = server.connect()?;
    let topic = create_topic(&mut wire, "stable", 1, &[])?;
    produce_ok(&mut wire, &topic, 0, BatchSpec::small(2, NOW).build()?)?;
    let mine = TxnProducer::init(&mut wire, "stable")?;
    mine.add(&mut wire, "stable", &[0])?;
    let batch = mine.batch(0, 3, NOW)?;
    assert_eq!(mine.produce(&mut wire, 11, &topic, 0, batch)?, 2);
    produce_ok(&mut wire, &topic, 0, BatchSpec::small(1, NOW).build()?)?;
    assert_eq!(latest_stable(&mut wire, &topic)?, 2);
    let open = fetch_committed(&mut wire, &topic, 0)?;
    assert_eq!((open.last_stable_offset, open.high_watermark), (2, 6));
    let behind = fetch_committed(&mut wire, &topic, 2)?;
    ensure!(
        behind.records.is_none_or(|records| records.is_empty()),
        "records above the LSO"
    );

    // A fetch that waits is answered by the abort, with the list.
    let waiting = {
        let mut wire = server.connect()?;
        let request = fetch_request(12, &topic, &[(0, 2, MIB)])
            .with_isolation_level(1)
            .with_max_wait_ms(20_000)
            .with_min_bytes(1);
        std::thread::spawn(move || first_partition(wire.call(12, &request)?))
    };
    std::thread::sleep(Duration::from_millis(200));
    mine.end(&mut wire, 4, false)?;
    let answer = waiting.join().ok().context("the fetch panicked")??;
    ensure!(
        answer.records.is_some_and(|records| !records.is_empty()),
        "no data"
    );
    let aborted = answer.aborted_transactions.context("no list")?;
    let aborted: Vec<_> = aborted
        .iter()
        .map(|txn| (txn.producer_id.0, txn.first_offset))
        .collect();
    assert_eq!(aborted, [(mine.producer_id, 2)]);
    assert_eq!(latest_stable(&mut wire, &topic)?, 7);
    assert_eq!(
        read_committed(&server.bootstrap(), "stable", 1)?[0].len(),
        3
    );
    let everything = first_partition(wire.call(12, &fetch_request(12, &topic, &[(0, 0, MIB)]))?)?;
    ensure!(
        everything
            .aborted_transactions
            .is_none_or(|list| list.is_empty())
    );
    let records = records_of(everything.records)?;
    let data = records.iter().filter(|record| !record.control).count();
    assert_eq!(data, 6, "read_uncommitted sees what was aborted, too");
    Ok(())
}

/// While records come and transactions end, no answer shows a read_committed reader anything at or above the last
/// stable offset that it names, and that never goes back.
#[test]
fn read_committed_stays_below_the_last_stable_offset_while_the_log_grows() -> Result<()> {
    const ROUNDS: usize = 60;
    let server = Server::start()?;
    let mut wire = server.connect()?;
    let topic = create_topic(&mut wire, "growing", 1, &[])?;
    let mut mine = TxnProducer::init(&mut wire, "growing")?;
    let value = |text: String| compat_tests::batches::RecordSpec::value(text);
    let (writer_topic, stopped) = (topic.clone(), Arc::new(AtomicBool::new(false)));
    let ended = Arc::clone(&stopped);
    let writer = std::thread::spawn(move || -> Result<Vec<String>> {
        let mut expected = Vec::new();
        let mut last = (-1, -1);
        let mut sequence = 0;
        for round in 0..ROUNDS {
            if last != (mine.producer_id, mine.epoch) {
                (last, sequence) = ((mine.producer_id, mine.epoch), 0);
            }
            for part in 0..2 {
                let spec = BatchSpec::of(vec![value(format!("txn-{round}-{part}"))]);
                let mut spec = spec.from_producer(mine.producer_id, mine.epoch, sequence);
                spec.attributes |= compat_tests::batches::TRANSACTIONAL;
                sequence += 1;
                mine.produce(&mut wire, 12, &writer_topic, 0, spec.build()?)?;
                let plain = BatchSpec::of(vec![value(format!("plain-{round}-{part}"))]);
                produce_ok(&mut wire, &writer_topic, 0, plain.build()?)?;
                if round % 2 == 0 {
                    expected.push(format!("txn-{round}-{part}"));
                }
                expected.push(format!("plain-{round}-{part}"));
            }
            mine = mine.end(&mut wire, 5, round % 2 == 0)?;
        }
        ended.store(true, Ordering::Release);
        Ok(expected)
    });
    let mut reader = server.connect()?;
    let (mut position, mut stable, mut answers) = (0, 0, 0);
    loop {
        let done = stopped.load(Ordering::Acquire) || writer.is_finished();
        // Small answers, so that many begin between two ends of transactions.
        let request = fetch_request(12, &topic, &[(0, position, 150)])
            .with_isolation_level(1)
            .with_max_wait_ms(20)
            .with_min_bytes(1);
        let answer = first_partition(reader.call(12, &request)?)?;
        ensure!(answer.error_code == 0, "error {}", answer.error_code);
        ensure!(answer.last_stable_offset <= answer.high_watermark);
        ensure!(answer.last_stable_offset >= stable, "it goes back");
        stable = answer.last_stable_offset;
        for batch in batches_of(&answer.records.unwrap_or_default()) {
            let base = i64::from_be_bytes(batch[..8].try_into()?);
            let last = base + i64::from(i32::from_be_bytes(batch[23..27].try_into()?));
            ensure!(last < stable, "{last} is shown, and {stable} is stable");
            position = last + 1;
            answers += 1;
        }
        if done && position == stable {
            break;
        }
    }
    let expected = writer.join().ok().context("the writer panicked")??;
    ensure!(answers > ROUNDS, "{answers} batches were looked at");
    assert_eq!(
        read_committed(&server.bootstrap(), "growing", 1)?[0],
        expected
    );
    Ok(())
}

#[test]
fn a_sequence_behind_one_whose_verification_failed_is_held_back() -> Result<()> {
    let server = Server::start()?;
    let mut wire = server.connect()?;
    let topic = create_topic(&mut wire, "held", 1, &[])?;
    let mine = TxnProducer::init(&mut wire, "held")?;
    let produce = |wire: &mut Wire, sequence| -> Result<i16> {
        let request = mine.produce_request(11, &topic, 0, mine.batch(sequence, 1, NOW)?);
        let answer = until_not_retriable(
            || Ok(wire.call(11, &request)?),
            |answer| answer.responses[0].partition_responses[0].error_code,
        )?;
        Ok(answer.responses[0].partition_responses[0].error_code)
    };
    const ABORTABLE: i16 = 120;
    assert_eq!(
        produce(&mut wire, 0)?,
        ABORTABLE,
        "it is not part of the transaction"
    );
    mine.add(&mut wire, "held", &[0])?;
    assert_eq!(produce(&mut wire, 1)?, OUT_OF_ORDER);
    assert_eq!(produce(&mut wire, 0)?, 0);
    assert_eq!(produce(&mut wire, 1)?, 0);
    mine.end(&mut wire, 4, true)?;
    assert_eq!(produce(&mut wire, 2)?, ABORTABLE, "the transaction is over");
    Ok(())
}

#[test]
fn a_plain_commit_after_a_staged_one_wins_live_and_after_a_restart() -> Result<()> {
    let mut server = Server::start()?;
    let mut wire = server.connect()?;
    create_topic(&mut wire, "staged", 3, &[])?;
    coordinator_is_up(&mut wire, "staged")?;
    let plain = |wire: &mut Wire, partition, offset| -> Result<()> {
        let request = offset_commit(8, "staged", -1, "", &[("staged", partition, offset)]);
        let answer = wire.call(8, &request)?;
        assert_eq!(answer.topics[0].partitions[0].error_code, 0);
        Ok(())
    };
    let mine = TxnProducer::init(&mut wire, "staged")?;
    mine.commit(&mut wire, 5, "staged", ("staged", 0), 10)?;
    let stable = offset_fetch(7, "staged", Some(&[("staged", &[0])])).with_require_stable(true);
    let answer = wire.call(7, &stable)?;
    assert_eq!(
        answer.topics[0].partitions[0].error_code,
        UNSTABLE_OFFSET_COMMIT
    );
    plain(&mut wire, 0, 5)?;
    // And the other way round: what is staged later wins.
    plain(&mut wire, 1, 6)?;
    mine.commit(&mut wire, 5, "staged", ("staged", 1), 11)?;
    let mine = mine.end(&mut wire, 5, true)?;
    plain(&mut wire, 2, 7)?;
    mine.commit(&mut wire, 5, "staged", ("staged", 2), 12)?;
    mine.end(&mut wire, 5, false)?;
    let offsets = |wire: &mut Wire| -> Result<Vec<i64>> {
        (0..3)
            .map(|partition| Ok(committed(wire, "staged", "staged", partition)?.0))
            .collect()
    };
    assert_eq!(offsets(&mut wire)?, [5, 11, 7]);
    server.kill_and_restart()?;
    assert_eq!(offsets(&mut server.connect()?)?, [5, 11, 7]);
    Ok(())
}

/// Of a producer whose records were all deleted the log may hold nothing but a marker, which has no sequence.
#[test]
fn a_producer_of_which_only_the_marker_is_left_goes_on() -> Result<()> {
    let mut server = Server::start()?;
    for restarts in [false, true] {
        let mut wire = server.connect()?;
        let name = format!("marker-{restarts}");
        let topic = create_topic(&mut wire, &name, 1, &[])?;
        let mine = TxnProducer::init(&mut wire, &name)?;
        mine.add(&mut wire, &name, &[0])?;
        mine.produce(&mut wire, 11, &topic, 0, mine.batch(0, 3, NOW)?)?;
        mine.end(&mut wire, 4, true)?;
        let row = DeleteRecordsPartition::default()
            .with_partition_index(0)
            .with_offset(3);
        let rows = DeleteRecordsTopic::default()
            .with_name(topic.name())
            .with_partitions(vec![row]);
        let request = DeleteRecordsRequest::default()
            .with_topics(vec![rows])
            .with_timeout_ms(10_000);
        let answer = wire.call(2, &request)?;
        assert_eq!(answer.topics[0].partitions[0].low_watermark, 3);
        if restarts {
            server.kill_and_restart()?;
            wire = server.connect()?;
        }
        mine.add(&mut wire, &name, &[0])?;
        let batch = mine.batch(3, 2, NOW)?;
        assert_eq!(mine.produce(&mut wire, 11, &topic, 0, batch)?, 4);
        mine.end(&mut wire, 4, true)?;
        let read = read_committed(&server.bootstrap(), &name, 1)?;
        assert_eq!(read[0].len(), 2);
    }
    Ok(())
}

#[test]
fn a_topic_made_again_within_a_transaction_knows_nothing_of_it() -> Result<()> {
    let mut server = Server::start()?;
    for restarts in [false, true] {
        let mut wire = server.connect()?;
        let (first, second) = (format!("first-{restarts}"), format!("second-{restarts}"));
        let one = create_topic(&mut wire, &first, 1, &[])?;
        let other = create_topic(&mut wire, &second, 1, &[])?;
        let mine = TxnProducer::init(&mut wire, &first)?;
        for topic in [&one, &other] {
            mine.produce(&mut wire, 12, topic, 0, mine.batch(0, 1, NOW)?)?;
        }
        delete_topic(&mut wire, &first)?;
        let again = create_topic(&mut wire, &first, 1, &[])?;
        if restarts {
            server.kill_and_restart()?;
            wire = server.connect()?;
        }
        mine.end(&mut wire, 5, true)?;
        assert_eq!(latest_stable(&mut wire, &other)?, 2);
        assert_eq!(latest_stable(&mut wire, &again)?, 0, "no marker");
        produce_ok(&mut wire, &again, 0, BatchSpec::small(1, NOW).build()?)?;
        assert_eq!(read_committed(&server.bootstrap(), &first, 1)?[0].len(), 1);
    }
    Ok(())
}

#[test]
fn bad_requests_change_nothing() -> Result<()> {
    let server = Server::start()?;
    let mut wire = server.connect()?;
    let topic = create_topic(&mut wire, "bad", 1, &[])?;
    let mine = TxnProducer::init(&mut wire, "bad")?;
    mine.produce(&mut wire, 12, &topic, 0, mine.batch(0, 1, NOW)?)?;
    for epoch in [i16::MIN, -1, mine.epoch + 1, i16::MAX] {
        let other = mine.with_epoch(epoch);
        for version in [4, 5] {
            let answer = wire.call(version, &other.end_request(true))?;
            ensure!(answer.error_code != 0, "epoch {epoch} ends the transaction");
        }
    }
    for id in ["", "unknown", &"x".repeat(20_000)] {
        let stranger = TxnProducer {
            id: id.to_owned(),
            ..mine.clone()
        };
        let answer = wire.call(5, &stranger.end_request(true))?;
        ensure!(answer.error_code != 0, "a stranger ends the transaction");
    }
    let long = init_request("bad").with_transaction_timeout_ms(i32::MAX);
    assert_eq!(wire.call(4, &long)?.error_code, INVALID_TRANSACTION_TIMEOUT);
    let marker = mine
        .with_epoch(mine.epoch - 1)
        .markers_request(true, "bad", &[0], 100);
    let answer = wire.call(1, &marker)?;
    let code = answer.markers[0].topics[0].partitions[0].error_code;
    assert_eq!(code, INVALID_PRODUCER_EPOCH);
    assert_eq!(latest_stable(&mut wire, &topic)?, 0, "still open");
    assert_eq!(state_of(&mut wire, "bad")?, "Ongoing");
    mine.end(&mut wire, 5, true)?;
    assert_eq!(latest_stable(&mut wire, &topic)?, 2);
    Ok(())
}

const INVALID_PRODUCER_EPOCH: i16 = 47;
const INVALID_TRANSACTION_TIMEOUT: i16 = 50;

#[test]
fn a_transaction_whose_time_is_up_is_aborted_and_cannot_be_committed() -> Result<()> {
    let server = Server::with(&[(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "100",
    )])?;
    let mut wire = server.connect()?;
    let topic = create_topic(&mut wire, "late", 1, &[])?;
    coordinator_is_up(&mut wire, "late")?;
    TxnProducer::init(&mut wire, "late")?;
    let request = init_request("late").with_transaction_timeout_ms(2_000);
    let answer = wire.call(4, &request)?;
    let mine = TxnProducer {
        id: "late".to_owned(),
        producer_id: answer.producer_id.0,
        epoch: answer.producer_epoch,
    };
    mine.produce(&mut wire, 12, &topic, 0, mine.batch(0, 1, NOW)?)?;
    mine.commit(&mut wire, 5, "late", ("late", 0), 1)?;
    // Whoever goes on where the group stands has to wait for nothing but the time.
    let stands_at = |wire: &mut Wire| -> Result<(i16, i64)> {
        let stable = offset_fetch(7, "late", Some(&[("late", &[0])])).with_require_stable(true);
        let answer = wire.call(7, &stable)?;
        let row = &answer.topics[0].partitions[0];
        Ok((row.error_code, row.committed_offset))
    };
    assert_eq!(stands_at(&mut wire)?.0, UNSTABLE_OFFSET_COMMIT);
    let deadline = Instant::now() + Duration::from_secs(20);
    while state_of(&mut wire, "late")? != "CompleteAbort" {
        ensure!(Instant::now() < deadline, "it stays open");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(latest_stable(&mut wire, &topic)?, 2);
    assert_eq!(stands_at(&mut wire)?, (0, -1), "nothing is staged any more");
    let answer = wire.call(5, &mine.end_request(true))?;
    // It is one epoch behind, as after an end of its own whose answer was lost, but what it asks is not what happened.
    const INVALID_TXN_STATE: i16 = 48;
    assert_eq!(answer.error_code, INVALID_TXN_STATE);
    assert_eq!(read_committed(&server.bootstrap(), "late", 1)?[0].len(), 0);
    Ok(())
}

/// How a round of the test below ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Committed,
    Aborted,
    Unknown,
}

#[test]
fn the_coordinator_is_killed_in_the_middle_of_fifty_transactions_and_none_is_half() -> Result<()> {
    const ROUNDS: usize = 54;
    const PARTITIONS: i32 = 3;
    let mut server = Server::start()?;
    let mut wire = server.connect()?;
    let topic = create_topic(&mut wire, "killed", PARTITIONS, &[])?;
    coordinator_is_up(&mut wire, "killed")?;
    let mut known: BTreeMap<usize, Known> = BTreeMap::new();
    let mut offset_of = BTreeMap::new();
    let mut mine = TxnProducer::init(&mut wire, "killed")?;
    let (mut sequence, mut last_epoch) = (0, (mine.producer_id, mine.epoch));
    for round in 0..ROUNDS {
        let commits = round % 3 != 2;
        if (mine.producer_id, mine.epoch) != last_epoch {
            (sequence, last_epoch) = (0, (mine.producer_id, mine.epoch));
        }
        for partition in 0..PARTITIONS {
            let mut batch = BatchSpec::of(vec![compat_tests::batches::RecordSpec::value(format!(
                "{round}-{partition}"
            ))])
            .from_producer(mine.producer_id, mine.epoch, sequence);
            batch.attributes |= compat_tests::batches::TRANSACTIONAL;
            mine.produce(&mut wire, 12, &topic, partition, batch.build()?)?;
        }
        sequence += 1;
        mine.commit(&mut wire, 5, "killed", ("killed", 0), round as i64)?;
        offset_of.insert(round, round as i64);
        let outcome = match round % 6 {
            // Before the end is asked for.
            0 => Known::Unknown,
            // The end is asked for, and nobody hears the answer.
            1 => {
                wire.send(5, &mine.end_request(commits))?;
                std::thread::sleep(Duration::from_micros(300 * (round as u64 % 7)));
                Known::Unknown
            }
            // The answer is heard, and partitions may not know yet.
            _ => {
                let answer = wire.call(5, &mine.end_request(commits))?;
                match (answer.error_code, commits) {
                    (0, true) => Known::Committed,
                    (0, false) => Known::Aborted,
                    (code, _) => anyhow::bail!("EndTxn: error {code} in round {round}"),
                }
            }
        };
        known.insert(round, outcome);
        server.kill_and_restart()?;
        wire = server.connect()?;
        mine = TxnProducer::init(&mut wire, "killed")?;
    }
    mine.until_completed(&mut wire)?;
    let seen = read_committed(&server.bootstrap(), "killed", PARTITIONS)?;
    for (round, known) in &known {
        let present: Vec<_> = seen
            .iter()
            .zip(0..)
            .map(|(values, partition)| {
                let value = format!("{round}-{partition}");
                values.iter().filter(|seen| **seen == value).count()
            })
            .collect();
        let expected: &[&[usize]] = match known {
            Known::Committed => &[&[1, 1, 1]],
            Known::Aborted => &[&[0, 0, 0]],
            Known::Unknown => &[&[1, 1, 1], &[0, 0, 0]],
        };
        ensure!(
            expected.contains(&&present[..]),
            "round {round} is {known:?} and seen as {present:?}"
        );
    }
    for values in &seen {
        let rounds: Vec<usize> = values
            .iter()
            .filter_map(|value| value.split('-').next()?.parse().ok())
            .collect();
        ensure!(rounds.is_sorted(), "out of order: {rounds:?}");
    }
    let last = seen[0]
        .last()
        .and_then(|value| value.split('-').next()?.parse().ok());
    let last: usize = last.context("nothing was committed")?;
    let offset = committed(&mut wire, "killed", "killed", 0)?.0;
    assert_eq!(
        offset, offset_of[&last],
        "the offset of the last committed transaction"
    );
    for partition in 0..PARTITIONS {
        let request = list_offsets_request(7, &topic, partition, LATEST);
        let ends = |wire: &mut Wire, isolation| -> Result<i64> {
            let answer = wire.call(7, &request.clone().with_isolation_level(isolation))?;
            Ok(answer.topics[0].partitions[0].offset)
        };
        assert_eq!(ends(&mut wire, 0)?, ends(&mut wire, 1)?, "nothing hangs");
    }
    Ok(())
}

/// The topics of coordinators become part of a transaction by AddOffsetsToTxn and among brokers alone.
#[test]
fn clients_add_no_partitions_of_internal_topics() -> Result<()> {
    const AUTHORIZATION_FAILED: i16 = 29;
    const NOT_ATTEMPTED: i16 = 55;
    const UNKNOWN: i16 = 3;
    let (_server, mut wire, _topic) = Server::with_topic("internal", 2, &[])?;
    coordinator_is_up(&mut wire, "internal")?;
    let mine = TxnProducer::init(&mut wire, "internal")?;
    let rows = |wire: &mut Wire, version, mine: &TxnProducer, topics: &[(&str, &[i32])]| {
        let answer = wire.call(version, &mine.add_request(version, topics, false))?;
        let later = answer.results_by_transaction.into_iter();
        let later = later.flat_map(|transaction| transaction.topic_results);
        let topics = answer
            .results_by_topic_v3_and_below
            .into_iter()
            .chain(later);
        let rows = topics.flat_map(|topic| {
            let name = topic.name.0.to_string();
            let rows = topic.results_by_partition.into_iter();
            rows.map(move |row| {
                let row = (row.partition_index, row.partition_error_code);
                ((name.clone(), row.0), row.1)
            })
        });
        Ok::<BTreeMap<_, _>, anyhow::Error>(rows.collect())
    };
    let at = |name: &str, index| (name.to_owned(), index);
    for version in 0..=3 {
        // Also for a producer that is fenced: it is not looked at.
        for mine in [mine.clone(), mine.with_epoch(7)] {
            let topics: &[(&str, &[i32])] = &[
                ("__consumer_offsets", &[0, 99]),
                ("__share_group_state", &[0]),
                ("internal", &[0, 7]),
            ];
            let expected = BTreeMap::from([
                (at("__consumer_offsets", 0), AUTHORIZATION_FAILED),
                (at("__consumer_offsets", 99), AUTHORIZATION_FAILED),
                (at("__share_group_state", 0), AUTHORIZATION_FAILED),
                (at("internal", 0), NOT_ATTEMPTED),
                (at("internal", 7), UNKNOWN),
            ]);
            let found = rows(&mut wire, version, &mine, topics)?;
            assert_eq!(found, expected, "version {version}");
        }
    }
    for version in 4..=5 {
        let topics: &[(&str, &[i32])] = &[("__consumer_offsets", &[0]), ("internal", &[1])];
        let expected = BTreeMap::from([(at("__consumer_offsets", 0), 0), (at("internal", 1), 0)]);
        let found = rows(&mut wire, version, &mine, topics)?;
        assert_eq!(found, expected, "version {version}");
    }
    Ok(())
}

/// What a partition knows of a producer goes before what its coordinator would say of a transactional id, which
/// may be that there is none.
#[test]
fn an_old_epoch_is_refused_as_that_whatever_the_transactional_id() -> Result<()> {
    const INVALID_EPOCH: i16 = 47;
    const INVALID_MAPPING: i16 = 49;
    let (_server, mut wire, topic) = Server::with_topic("old-epoch", 2, &[])?;
    coordinator_is_up(&mut wire, "old-epoch")?;
    let old = TxnProducer::init(&mut wire, "old-epoch")?;
    old.produce(&mut wire, 12, &topic, 0, old.batch(0, 1, NOW)?)?;
    old.commit(&mut wire, 5, "old-epoch", ("old-epoch", 0), 3)?;
    let new = old.end(&mut wire, 5, true)?;
    assert_eq!(new.epoch, old.epoch + 1);
    let produce = |wire: &mut Wire, version, mine: &TxnProducer, partition| {
        let request = mine.produce_request(version, &topic, partition, mine.batch(1, 1, NOW)?);
        let answer = wire.call(version, &request)?;
        Ok::<_, anyhow::Error>(answer.responses[0].partition_responses[0].error_code)
    };
    let commit = |wire: &mut Wire, version, mine: &TxnProducer| {
        let request = mine.commit_request("old-epoch", "old-epoch", 0, 4);
        let answer = wire.call(version, &request)?;
        Ok::<_, anyhow::Error>(answer.topics[0].partitions[0].error_code)
    };
    let nobody = |mine: &TxnProducer| TxnProducer {
        id: "nobody".to_owned(),
        ..mine.clone()
    };
    for version in 9..=12 {
        for mine in [old.clone(), nobody(&old), nobody(&old).with_epoch(-1)] {
            let code = produce(&mut wire, version, &mine, 0)?;
            assert_eq!(code, INVALID_EPOCH, "Produce {version} of {mine:?}");
        }
        for mine in [nobody(&new), nobody(&old.with_producer_id(999_999))] {
            let code = produce(&mut wire, version, &mine, 0)?;
            assert_eq!(code, INVALID_MAPPING, "Produce {version} of {mine:?}");
        }
        // The other partition knows nothing of the producer.
        assert_eq!(
            produce(&mut wire, version, &nobody(&old), 1)?,
            INVALID_MAPPING
        );
        assert_eq!(produce(&mut wire, version, &old, 1)?, INVALID_EPOCH);
    }
    for version in 0..=5 {
        for mine in [old.clone(), nobody(&old), nobody(&old).with_epoch(-1)] {
            let code = commit(&mut wire, version, &mine)?;
            assert_eq!(code, INVALID_EPOCH, "TxnOffsetCommit {version} of {mine:?}");
        }
        for mine in [nobody(&new), nobody(&old.with_producer_id(999_999))] {
            let code = commit(&mut wire, version, &mine)?;
            assert_eq!(
                code, INVALID_MAPPING,
                "TxnOffsetCommit {version} of {mine:?}"
            );
        }
    }
    Ok(())
}

/// What a group has pending in a transaction goes with the group, or with the offset: nobody has to wait for the end of
/// the transaction to be told that there is nothing.
#[test]
fn offsets_that_are_deleted_while_a_transaction_is_open_are_gone_at_once() -> Result<()> {
    let (_server, mut wire, _topic) = Server::with_topic("pending", 2, &[])?;
    let group = "pending";
    coordinator_is_up(&mut wire, group)?;
    let stable = |wire: &mut Wire, partition| {
        let request = offset_fetch(7, group, Some(&[("pending", &[partition])]));
        let answer = wire.call(7, &request.with_require_stable(true))?;
        let row = &answer.topics[0].partitions[0];
        Ok::<_, anyhow::Error>((row.error_code, row.committed_offset))
    };
    let mine = TxnProducer::init(&mut wire, "pending")?;
    mine.commit(&mut wire, 5, group, ("pending", 0), 3)?;
    mine.commit(&mut wire, 5, group, ("pending", 1), 4)?;
    assert_eq!(stable(&mut wire, 0)?, (UNSTABLE_OFFSET_COMMIT, -1));
    let topic = OffsetDeleteRequestTopic::default()
        .with_name(compat_tests::requests::topic_name("pending"))
        .with_partitions(vec![
            OffsetDeleteRequestPartition::default().with_partition_index(0),
        ]);
    let delete = OffsetDeleteRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_topics(vec![topic]);
    let answer = wire.call(0, &delete)?;
    assert_eq!(
        (answer.error_code, answer.topics[0].partitions[0].error_code),
        (0, 0)
    );
    assert_eq!(stable(&mut wire, 0)?, (0, -1));
    assert_eq!(stable(&mut wire, 1)?, (UNSTABLE_OFFSET_COMMIT, -1));
    let delete = DeleteGroupsRequest::default().with_groups_names(vec![GroupId(text(group))]);
    assert_eq!(wire.call(2, &delete)?.results[0].error_code, 0);
    assert_eq!(stable(&mut wire, 1)?, (0, -1));
    // What is committed after that is another thing.
    mine.commit(&mut wire, 5, group, ("pending", 1), 5)?;
    assert_eq!(stable(&mut wire, 1)?, (UNSTABLE_OFFSET_COMMIT, -1));
    mine.end(&mut wire, 5, true)?;
    assert_eq!(stable(&mut wire, 0)?, (0, -1));
    assert_eq!(stable(&mut wire, 1)?, (0, 5));
    Ok(())
}
