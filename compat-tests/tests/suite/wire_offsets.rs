//! Offsets, timestamps and fetching, over plain connections.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use compat_tests::batches::{BatchSpec, Codec, RecordSpec};
use compat_tests::broker::Broker;
use compat_tests::requests::{
    EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, MAX_TIMESTAMP, Topic, batches_of,
    create_topic, delete_topic, fetch, fetch_request, first_partition, list_offset,
    list_offsets_request, produce_ok, produce_request, read_to_end, records_of,
    wait_until_all_answer,
};
use compat_tests::server::Server;
use compat_tests::wire::Wire;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::fetch_request::FetchPartition;
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::{DeleteRecordsRequest, FetchRequest, OffsetForLeaderEpochRequest};

const NOW: i64 = 1_790_000_000_000;
const MIB: i32 = 1024 * 1024;
const OFFSET_OUT_OF_RANGE: i16 = 1;
const UNSUPPORTED_VERSION: i16 = 35;
const FENCED_LEADER_EPOCH: i16 = 74;
const UNKNOWN_LEADER_EPOCH: i16 = 75;
const UNKNOWN_TOPIC_ID: i16 = 100;

fn at(timestamps: &[i64]) -> BatchSpec {
    BatchSpec::of(
        timestamps
            .iter()
            .map(|timestamp| RecordSpec::value("v").at(NOW + timestamp))
            .collect(),
    )
}

#[test]
fn max_timestamp_is_the_records_not_the_batchs_last() -> Result<()> {
    let (_server, mut wire) = Server::connected()?;
    for codec in Codec::ALL
        .into_iter()
        .filter(|codec| *codec != Codec::Lz4Linked)
    {
        let topic = create_topic(&mut wire, &format!("max-{codec:?}"), 1, &[])?;
        produce_ok(
            &mut wire,
            &topic,
            0,
            at(&[10, 30, 20]).compressed(codec).build()?,
        )?;
        let found = list_offset(&mut wire, &topic, 0, MAX_TIMESTAMP)?;
        assert_eq!(
            (found.error_code, found.offset, found.timestamp),
            (0, 1, NOW + 30),
            "{codec:?}"
        );
    }
    Ok(())
}

#[test]
fn the_latest_offset_counts_what_the_leader_alone_has_acknowledged() -> Result<()> {
    const ACKS_OF_THE_LEADER: i16 = 1;
    const VERSION: i16 = 11;
    let (_server, mut wire, topic) = Server::with_topic("latest", 1, &[])?;
    for count in 1..=100 {
        let batch = at(&[count]).build()?;
        let request = produce_request(VERSION, &topic, 0, ACKS_OF_THE_LEADER, Some(batch));
        let answer = wire.call(VERSION, &request)?;
        let row = answer
            .responses
            .first()
            .and_then(|topic| topic.partition_responses.first())
            .context("no row")?;
        assert_eq!((row.error_code, row.base_offset), (0, count - 1));
        let found = list_offset(&mut wire, &topic, 0, LATEST)?;
        assert_eq!((found.error_code, found.offset), (0, count));
    }
    Ok(())
}

#[test]
fn special_timestamps_need_the_version_that_brought_them() -> Result<()> {
    let (_server, mut wire, topic) = Server::with_topic("special", 1, &[])?;
    produce_ok(&mut wire, &topic, 0, at(&[1, 2]).build()?)?;
    let mut ask = |version, timestamp| -> Result<(i16, i64)> {
        let answer = wire.call(
            version,
            &list_offsets_request(version, &topic, 0, timestamp),
        )?;
        let row = answer
            .topics
            .first()
            .and_then(|topic| topic.partitions.first())
            .context("no row")?;
        Ok((row.error_code, row.offset))
    };
    assert_eq!(ask(6, MAX_TIMESTAMP)?.0, UNSUPPORTED_VERSION);
    assert_eq!(ask(7, EARLIEST_LOCAL)?.0, UNSUPPORTED_VERSION);
    assert_eq!(ask(8, LATEST_TIERED)?.0, UNSUPPORTED_VERSION);
    assert_eq!(ask(7, MAX_TIMESTAMP)?, (0, 1));
    assert_eq!(ask(8, EARLIEST_LOCAL)?, (0, 0));
    assert_eq!(ask(9, LATEST_TIERED)?, (0, -1));
    Ok(())
}

#[test]
fn a_timestamp_past_the_newest_record_is_no_error() -> Result<()> {
    let (_server, mut wire, topic) = Server::with_topic("past", 1, &[])?;
    produce_ok(&mut wire, &topic, 0, at(&[1, 2]).build()?)?;
    let found = list_offset(&mut wire, &topic, 0, NOW + 3)?;
    assert_eq!(
        (found.error_code, found.offset, found.timestamp),
        (0, -1, -1)
    );
    Ok(())
}

#[test]
fn a_timestamp_finds_the_record_inside_its_batch() -> Result<()> {
    let (_server, mut wire) = Server::connected()?;
    for codec in [Codec::None, Codec::Zstd, Codec::Gzip] {
        let topic = create_topic(&mut wire, &format!("inside-{codec:?}"), 1, &[])?;
        produce_ok(&mut wire, &topic, 0, at(&[-5, -4]).build()?)?;
        produce_ok(
            &mut wire,
            &topic,
            0,
            at(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
                .compressed(codec)
                .build()?,
        )?;
        let found = list_offset(&mut wire, &topic, 0, NOW + 5)?;
        assert_eq!((found.offset, found.timestamp), (6, NOW + 5));
        let found = list_offset(&mut wire, &topic, 0, NOW)?;
        assert_eq!((found.offset, found.timestamp), (2, NOW + 1));
    }
    Ok(())
}

fn delete_records(wire: &mut Wire, topic: &Topic, offset: i64) -> Result<(i16, i64)> {
    let row = DeleteRecordsPartition::default()
        .with_partition_index(0)
        .with_offset(offset);
    let rows = DeleteRecordsTopic::default()
        .with_name(topic.name())
        .with_partitions(vec![row]);
    let answer = wire.call(
        2,
        &DeleteRecordsRequest::default()
            .with_topics(vec![rows])
            .with_timeout_ms(10_000),
    )?;
    let row = answer
        .topics
        .first()
        .and_then(|topic| topic.partitions.first())
        .context("no row")?;
    Ok((row.error_code, row.low_watermark))
}

#[test]
fn deleted_records_are_found_by_no_timestamp_and_read_by_nobody() -> Result<()> {
    let (mut server, mut wire, topic) = Server::with_topic("deleted", 1, &[])?;
    for i in 0..10 {
        let base = i * 100;
        let stamps: Vec<i64> = (base..base + 10).collect();
        produce_ok(&mut wire, &topic, 0, at(&stamps).build()?)?;
    }
    assert_eq!(delete_records(&mut wire, &topic, 55)?, (0, 55));
    for round in 0..2 {
        let found = list_offset(&mut wire, &topic, 0, NOW)?;
        ensure!(found.offset >= 55, "round {round}: offset {}", found.offset);
        assert_eq!(list_offset(&mut wire, &topic, 0, EARLIEST)?.offset, 55);
        let data = fetch(&mut wire, &topic, 0, 54)?;
        assert_eq!(data.error_code, OFFSET_OUT_OF_RANGE);
        let read = read_to_end(&mut wire, &topic, 0, 55)?;
        assert_eq!((read.len(), read[0].offset), (45, 55));
        // It is as true after a restart.
        server.restart()?;
        wire = server.connect()?;
        wait_until_all_answer(&mut wire, &topic.name, 1)?;
    }
    Ok(())
}

#[test]
fn a_fetch_inside_a_batch_gets_it_whole() -> Result<()> {
    let (_server, mut wire, topic) = Server::with_topic("whole", 1, &[])?;
    produce_ok(&mut wire, &topic, 0, at(&[1, 2]).build()?)?;
    produce_ok(
        &mut wire,
        &topic,
        0,
        at(&[3, 4]).compressed(Codec::Lz4).build()?,
    )?;
    for (offset, first) in [(0, 0), (1, 0), (2, 2), (3, 2)] {
        let records = records_of(fetch(&mut wire, &topic, 0, offset)?.records)?;
        assert_eq!(
            records.first().map(|record| record.offset),
            Some(first),
            "from {offset}"
        );
        assert_eq!(
            records.last().map(|record| record.offset),
            Some(3),
            "from {offset}"
        );
    }
    Ok(())
}

/// 30 records of 100 KB in batches of one, over several segments.
fn several_segments(wire: &mut Wire, name: &str) -> Result<Topic> {
    let topic = create_topic(wire, name, 1, &[("segment.bytes", "1048576")])?;
    for i in 0..30 {
        let record = RecordSpec::value(vec![b'x'; 100_000]).at(NOW + i);
        produce_ok(wire, &topic, 0, BatchSpec::of(vec![record]).build()?)?;
    }
    Ok(topic)
}

#[test]
fn small_fetches_skip_nothing_where_segments_meet() -> Result<()> {
    let (_server, mut wire) = Server::connected()?;
    let topic = several_segments(&mut wire, "segments")?;
    for max_bytes in [1, 150_000, 250_000] {
        let mut next = 0;
        while next < 30 {
            let answer = wire.call(12, &fetch_request(12, &topic, &[(0, next, max_bytes)]))?;
            let records = records_of(first_partition(answer)?.records)?;
            ensure!(!records.is_empty(), "nothing at {next} with {max_bytes}");
            for record in records {
                assert_eq!(record.offset, next, "with {max_bytes}");
                next += 1;
            }
        }
    }
    Ok(())
}

#[test]
fn only_the_first_partition_with_data_may_exceed_the_limits() -> Result<()> {
    let (_server, mut wire, topic) = Server::with_topic("exceeds", 4, &[])?;
    for partition in 1..4 {
        let record = RecordSpec::value(vec![b'x'; 50_000]).at(NOW);
        produce_ok(
            &mut wire,
            &topic,
            partition,
            BatchSpec::of(vec![record]).build()?,
        )?;
    }
    let all = [(0, 0, 10), (1, 0, 10), (2, 0, 10), (3, 0, 10)];
    let answer = wire.call(12, &fetch_request(12, &topic, &all).with_max_bytes(10))?;
    let mut sizes = Vec::new();
    for data in answer
        .responses
        .into_iter()
        .flat_map(|topic| topic.partitions)
    {
        sizes.push((
            data.partition_index,
            data.records
                .as_deref()
                .map_or(0, |bytes| batches_of(bytes).len()),
        ));
    }
    assert_eq!(sizes, [(0, 0), (1, 1), (2, 0), (3, 0)]);
    Ok(())
}

#[test]
fn a_fetch_of_many_partitions_keeps_to_one_budget() -> Result<()> {
    let (_server, mut wire) = Server::connected()?;
    let partitions = 200;
    let topic = create_topic(&mut wire, "many", partitions, &[])?;
    for partition in 0..partitions {
        let record = RecordSpec::value(vec![b'x'; 20_000]).at(NOW);
        produce_ok(
            &mut wire,
            &topic,
            partition,
            BatchSpec::of(vec![record]).build()?,
        )?;
    }
    let all: Vec<(i32, i64, i32)> = (0..partitions).map(|index| (index, 0, MIB)).collect();
    let answer = wire.call(12, &fetch_request(12, &topic, &all).with_max_bytes(200_000))?;
    let partitions = answer.responses.iter().flat_map(|topic| &topic.partitions);
    let bytes: usize = partitions
        .map(|data| data.records.as_ref().map_or(0, |bytes| bytes.len()))
        .sum();
    ensure!((150_000..=221_000).contains(&bytes), "{bytes} bytes");
    Ok(())
}

#[test]
fn a_topic_made_again_under_its_name_is_another() -> Result<()> {
    let (_server, mut wire) = Server::connected()?;
    let old = create_topic(&mut wire, "again", 1, &[])?;
    produce_ok(&mut wire, &old, 0, BatchSpec::small(12, NOW).build()?)?;
    delete_topic(&mut wire, "again")?;
    let deadline = Instant::now() + Duration::from_secs(20);
    let new = loop {
        match create_topic(&mut wire, "again", 1, &[]) {
            Ok(topic) => break topic,
            // Kafka needs a moment until the old one is gone everywhere.
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    ensure!(old.id != new.id, "the same id");
    let by_id = first_partition(wire.call(13, &fetch_request(13, &old, &[(0, 10, MIB)]))?)?;
    assert_eq!(by_id.error_code, UNKNOWN_TOPIC_ID);
    let by_name = first_partition(wire.call(12, &fetch_request(12, &new, &[(0, 10, MIB)]))?)?;
    assert_eq!(by_name.error_code, OFFSET_OUT_OF_RANGE);
    assert_eq!(list_offset(&mut wire, &new, 0, LATEST)?.offset, 0);
    Ok(())
}

#[test]
fn a_waiting_fetch_wakes_when_a_record_comes() -> Result<()> {
    let (server, mut wire, topic) = Server::with_topic("waits", 1, &[])?;
    let request = fetch_request(12, &topic, &[(0, 0, MIB)])
        .with_max_wait_ms(10_000)
        .with_min_bytes(1);
    let correlation_id = wire.send(12, &request)?;
    std::thread::sleep(Duration::from_millis(200));
    let begun = Instant::now();
    produce_ok(&mut server.connect()?, &topic, 0, at(&[1]).build()?)?;
    let data = first_partition(wire.receive::<FetchRequest>(12, correlation_id)?)?;
    assert_eq!(records_of(data.records)?.len(), 1);
    ensure!(
        begun.elapsed() < Duration::from_secs(3),
        "woke after {:?}",
        begun.elapsed()
    );
    Ok(())
}

#[test]
fn replies_come_in_request_order_whatever_waits() -> Result<()> {
    let server = Server::start()?;
    let topic = create_topic(&mut server.connect()?, "ordered", 1, &[])?;
    let mut wire = server.connect()?;
    let waits = fetch_request(12, &topic, &[(0, 0, MIB)])
        .with_max_wait_ms(1_500)
        .with_min_bytes(MIB);
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(wire.send(12, &waits)?);
        ids.push(wire.send(9, &compat_tests::requests::metadata_of("ordered"))?);
        let produce =
            compat_tests::requests::produce_request(11, &topic, 0, -1, Some(at(&[1]).build()?));
        ids.push(wire.send(11, &produce)?);
        ids.push(wire.send(2, &kafka_protocol::messages::ApiVersionsRequest::default())?);
    }
    let mut answered = Vec::new();
    for _ in &ids {
        let frame = wire.receive_frame()?;
        answered.push(i32::from_be_bytes(frame[..4].try_into()?));
    }
    assert_eq!(answered, ids);
    Ok(())
}

#[test]
fn leader_epochs_of_before_and_after_restarts_have_their_ends() -> Result<()> {
    let mut broker = Broker::start()?;
    let topic = create_topic(&mut broker.connect()?, "epochs", 1, &[])?;
    let mut ends: Vec<(i32, i64)> = Vec::new();
    for round in 1..=3 {
        let mut wire = broker.connect()?;
        wait_until_all_answer(&mut wire, &topic.name, 1)?;
        produce_ok(&mut wire, &topic, 0, BatchSpec::small(5, NOW).build()?)?;
        let latest = list_offset(&mut wire, &topic, 0, LATEST)?;
        assert_eq!(latest.offset, round * 5);
        ends.push((latest.leader_epoch, latest.offset));
        broker.kill9()?;
        broker.start_again()?;
    }
    let mut wire = broker.connect()?;
    wait_until_all_answer(&mut wire, &topic.name, 1)?;
    let epochs: Vec<i32> = ends.iter().map(|(epoch, _)| *epoch).collect();
    ensure!(
        epochs.windows(2).all(|pair| pair[0] < pair[1]),
        "a new term for each start: {epochs:?}"
    );
    let mut end_of = |current, epoch| -> Result<(i16, i32, i64)> {
        let row = OffsetForLeaderPartition::default()
            .with_partition(0)
            .with_current_leader_epoch(current)
            .with_leader_epoch(epoch);
        let rows = OffsetForLeaderTopic::default()
            .with_topic(topic.name())
            .with_partitions(vec![row]);
        let answer = wire.call(
            4,
            &OffsetForLeaderEpochRequest::default().with_topics(vec![rows]),
        )?;
        let row = answer
            .topics
            .first()
            .and_then(|topic| topic.partitions.first())
            .context("no row")?;
        Ok((row.error_code, row.leader_epoch, row.end_offset))
    };
    for &(epoch, end) in &ends {
        assert_eq!(end_of(-1, epoch)?, (0, epoch, end));
    }
    assert_eq!(end_of(-1, 1_000_000)?, (0, -1, -1));
    assert_eq!(end_of(epochs[0], epochs[0])?.0, FENCED_LEADER_EPOCH);
    assert_eq!(end_of(1_000_000, epochs[0])?.0, UNKNOWN_LEADER_EPOCH);
    let mut wire = broker.connect()?;
    let mut by_epoch = |current| -> Result<i16> {
        let mut request = list_offsets_request(9, &topic, 0, LATEST);
        for row in request
            .topics
            .iter_mut()
            .flat_map(|topic| &mut topic.partitions)
        {
            row.current_leader_epoch = current;
        }
        let answer = wire.call(9, &request)?;
        Ok(answer
            .topics
            .first()
            .and_then(|topic| topic.partitions.first())
            .context("no row")?
            .error_code)
    };
    assert_eq!(by_epoch(epochs[0])?, FENCED_LEADER_EPOCH);
    assert_eq!(by_epoch(1_000_000)?, UNKNOWN_LEADER_EPOCH);
    // A record's epoch is that of the time when it was written.
    assert_eq!(
        list_offset(&mut wire, &topic, 0, NOW)?.leader_epoch,
        epochs[0]
    );
    Ok(())
}

#[test]
fn the_leader_epoch_is_checked_in_every_fetch_of_a_session() -> Result<()> {
    let (_server, mut wire, topic) = Server::with_topic("session-epoch", 1, &[])?;
    produce_ok(&mut wire, &topic, 0, at(&[1]).build()?)?;
    let session = wire
        .call(
            12,
            &fetch_request(12, &topic, &[(0, 0, MIB)]).with_session_epoch(0),
        )?
        .session_id;
    let mut next = fetch_request(12, &topic, &[(0, 1, MIB)])
        .with_session_id(session)
        .with_session_epoch(1);
    for row in next
        .topics
        .iter_mut()
        .flat_map(|topic| &mut topic.partitions)
    {
        row.current_leader_epoch = 1_000_000;
    }
    let answer = wire.call(12, &next)?;
    assert_eq!(first_partition(answer)?.error_code, UNKNOWN_LEADER_EPOCH);
    next.topics.clear();
    next.session_epoch = 2;
    assert_eq!(
        first_partition(wire.call(12, &next)?)?.error_code,
        UNKNOWN_LEADER_EPOCH
    );
    Ok(())
}

#[test]
fn a_wholly_expired_active_segment_is_rolled_and_deleted() -> Result<()> {
    let server = Server::with(&[
        ("log.retention.check.interval.ms", "300"),
        ("log.initial.task.delay.ms", "300"),
    ])?;
    let mut wire = server.connect()?;
    let topic = create_topic(
        &mut wire,
        "expired",
        1,
        &[("retention.ms", "1000"), ("file.delete.delay.ms", "0")],
    )?;
    let now = i64::try_from(
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)?
            .as_millis(),
    )?;
    produce_ok(&mut wire, &topic, 0, BatchSpec::small(10, now).build()?)?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while list_offset(&mut wire, &topic, 0, EARLIEST)?.offset != 10 {
        ensure!(Instant::now() < deadline, "nothing was deleted");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(list_offset(&mut wire, &topic, 0, LATEST)?.offset, 10);
    assert_eq!(
        produce_ok(
            &mut wire,
            &topic,
            0,
            BatchSpec::small(1, now + 100_000).build()?
        )?,
        10
    );
    assert_eq!(read_to_end(&mut wire, &topic, 0, 10)?.len(), 1);
    Ok(())
}

#[test]
fn old_records_go_when_a_partition_is_too_large() -> Result<()> {
    let server = Server::with(&[
        ("log.retention.check.interval.ms", "300"),
        ("log.initial.task.delay.ms", "300"),
    ])?;
    let mut wire = server.connect()?;
    let config = [
        ("retention.bytes", "1500000"),
        ("segment.bytes", "1048576"),
        ("retention.ms", "-1"),
    ];
    let topic = create_topic(&mut wire, "too-large", 1, &config)?;
    for i in 0..60 {
        let record = RecordSpec::value(vec![b'x'; 100_000]).at(NOW + i);
        produce_ok(&mut wire, &topic, 0, BatchSpec::of(vec![record]).build()?)?;
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    // What is left is at least the limit and less than one segment more.
    loop {
        let start = list_offset(&mut wire, &topic, 0, EARLIEST)?.offset;
        if start >= 60 - 26 {
            ensure!(start <= 60 - 14, "too much is gone: {start}");
            break;
        }
        ensure!(Instant::now() < deadline, "the log still starts at {start}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

#[test]
fn partitions_of_a_session_answer_only_when_there_is_something_new() -> Result<()> {
    let (server, mut wire, topic) = Server::with_topic("session", 50, &[])?;
    let all: Vec<(i32, i64, i32)> = (0..50).map(|index| (index, 0, MIB)).collect();
    let begun = wire.call(12, &fetch_request(12, &topic, &all).with_session_epoch(0))?;
    assert_eq!(
        begun
            .responses
            .iter()
            .map(|topic| topic.partitions.len())
            .sum::<usize>(),
        50
    );
    let incremental = |epoch| {
        let mut request = fetch_request(12, &topic, &[])
            .with_session_id(begun.session_id)
            .with_session_epoch(epoch);
        request.topics.clear();
        request
    };
    ensure!(
        wire.call(12, &incremental(1))?.responses.is_empty(),
        "something new in nothing"
    );
    produce_ok(&mut server.connect()?, &topic, 31, at(&[1]).build()?)?;
    let answer = wire.call(12, &incremental(2))?;
    let partitions: Vec<i32> = answer
        .responses
        .iter()
        .flat_map(|topic| &topic.partitions)
        .map(|data| data.partition_index)
        .collect();
    assert_eq!(partitions, [31]);
    Ok(())
}

#[test]
fn a_fetch_of_a_partition_under_two_conditions_answers_both() -> Result<()> {
    let (_server, mut wire, topic) = Server::with_topic("mixed", 2, &[])?;
    produce_ok(&mut wire, &topic, 0, at(&[1]).build()?)?;
    let mut request = fetch_request(12, &topic, &[(0, 0, MIB), (1, 5, MIB)])
        .with_max_wait_ms(5_000)
        .with_min_bytes(MIB);
    for row in request.topics.iter_mut() {
        row.partitions.push(
            FetchPartition::default()
                .with_partition(9)
                .with_partition_max_bytes(MIB),
        );
    }
    // An error in one partition ends the wait.
    let begun = Instant::now();
    let answer = wire.call(12, &request)?;
    ensure!(
        begun.elapsed() < Duration::from_secs(3),
        "waited in spite of an error"
    );
    let codes: Vec<(i32, i16)> = answer
        .responses
        .iter()
        .flat_map(|topic| &topic.partitions)
        .map(|data| (data.partition_index, data.error_code))
        .collect();
    assert_eq!(codes, [(0, 0), (1, OFFSET_OUT_OF_RANGE), (9, 3)]);
    Ok(())
}
