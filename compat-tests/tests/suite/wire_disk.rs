//! A disk that is filled up takes nothing offline: what only adds is refused, what ends or deletes goes on for as long as
//! there is room for it, and with more room everything goes on.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use compat_tests::batches::{BatchSpec, RecordSpec};
use compat_tests::broker::Broker;
use compat_tests::groups::{committed, coordinator_is_up, join_request, joining, offset_commit};
use compat_tests::power::ForgetfulDirectory;
use compat_tests::requests::{Topic, creatable, create_topic, produce};
use compat_tests::transactions::{TxnProducer, find_coordinator, init_request};
use compat_tests::wire::{Wire, text};
use kafka_protocol::messages::{
    CreateTopicsRequest, DeleteGroupsRequest, DescribeLogDirsRequest, GroupId, OffsetCommitRequest,
};

const MIB: u64 = 1 << 20;
const NOW: i64 = 1_790_000_000_000;
/// The retriable codes that clients know from the APIs.
const COORDINATOR_NOT_AVAILABLE: i16 = 15;
const KAFKA_STORAGE_ERROR: i16 = 56;
/// Size of the disk. A twentieth of it is kept free.
const DISK_BYTES: u64 = 32 * MIB;
const PARTITIONS: i32 = 16;
const PATIENCE: Duration = Duration::from_secs(60);

/// A commit of one offset for all partitions, each with as much of a note as there may be.
fn large_commit(group: &str, offset: i64) -> OffsetCommitRequest {
    let rows: Vec<_> = (0..PARTITIONS).map(|index| ("t", index, offset)).collect();
    let mut request = offset_commit(8, group, -1, "", &rows);
    for row in &mut request.topics[0].partitions {
        row.committed_metadata = Some(text("m".repeat(4_000)));
    }
    request
}

fn commit(wire: &mut Wire, group: &str, offset: i64) -> Result<i16> {
    let answer = wire.call(8, &large_commit(group, offset))?;
    let rows = &answer.topics[0].partitions;
    let code = rows[0].error_code;
    ensure!(rows.iter().all(|row| row.error_code == code), "{rows:?}");
    Ok(code)
}

/// Commits until it is refused for good, and returns the last offset that was taken.
fn fill_with_commits(wire: &mut Wire) -> Result<i64> {
    let (mut last, mut refused) = (0, 0);
    let deadline = Instant::now() + PATIENCE;
    // What is free is looked at once a second.
    while refused < 15 {
        ensure!(Instant::now() < deadline, "commits are not refused");
        match commit(wire, "filling", last + 1)? {
            0 => (last, refused) = (last + 1, 0),
            COORDINATOR_NOT_AVAILABLE => {
                refused += 1;
                std::thread::sleep(Duration::from_millis(100));
            }
            code => anyhow::bail!("a commit: error {code}"),
        }
    }
    ensure!(last > 10, "{last} commits before the disk was full");
    Ok(last)
}

fn is_online(wire: &mut Wire) -> Result<()> {
    let answer = wire.call(4, &DescribeLogDirsRequest::default().with_topics(None))?;
    let codes: Vec<_> = answer.results.iter().map(|it| it.error_code).collect();
    assert_eq!(codes, [0], "the log directory went offline");
    Ok(())
}

/// What each API says that only adds something.
fn additions(
    wire: &mut Wire,
    topic: &Topic,
    open: &TxnProducer,
) -> Result<Vec<(&'static str, i16)>> {
    let record = RecordSpec::value(vec![b'v'; 100]).at(NOW);
    let batch = BatchSpec::of(vec![record]).build()?;
    let produced = produce(wire, topic, 0, batch)?.error_code;
    let create = CreateTopicsRequest::default()
        .with_topics(vec![creatable("more", 1, &[])])
        .with_timeout_ms(5_000);
    let added = wire.call(3, &open.add_request(3, &[("t", &[5])], false))?;
    let offsets = open.commit_request("in-transaction", "t", 1, 9);
    Ok(vec![
        ("Produce", produced),
        ("OffsetCommit", commit(wire, "another", 1)?),
        (
            "TxnOffsetCommit",
            wire.call(5, &offsets)?.topics[0].partitions[0].error_code,
        ),
        (
            "JoinGroup",
            wire.call(3, &join_request(3, "classic", "", "range"))?
                .error_code,
        ),
        (
            "ConsumerGroupHeartbeat",
            wire.call(1, &joining("consumer", "member", &["t"]))?
                .error_code,
        ),
        (
            "InitProducerId",
            wire.call(4, &init_request("fresh"))?.error_code,
        ),
        (
            "AddPartitionsToTxn",
            added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
        ),
        ("CreateTopics", wire.call(5, &create)?.topics[0].error_code),
    ])
}

fn code_of(name: &str) -> i16 {
    match name {
        "Produce" | "CreateTopics" => KAFKA_STORAGE_ERROR,
        _ => COORDINATOR_NOT_AVAILABLE,
    }
}

fn all_refused(wire: &mut Wire, topic: &Topic, open: &TxnProducer) -> Result<()> {
    for (name, code) in additions(wire, topic, open)? {
        assert_eq!(code, code_of(name), "{name}");
    }
    Ok(())
}

/// What was kept free on a disk was kept from Produce alone: commits used it up, and the directory went offline until a
/// restart.
#[test]
fn a_disk_that_commits_fill_up_goes_on_serving_and_takes_them_again_when_there_is_room()
-> Result<()> {
    let disk = ForgetfulDirectory::of(DISK_BYTES)?;
    let mut broker = Broker::options()
        .data_dir(&disk.path().join("data"))
        .set("offsets.topic.num.partitions", "1")
        .set("transaction.state.log.num.partitions", "1")
        .set("offsets.topic.segment.bytes", 8 * MIB)
        .start()?;
    let mut wire = broker.connect()?;
    let topic = create_topic(&mut wire, "t", PARTITIONS, &[])?;
    for group in ["filling", "gone", "in-transaction"] {
        coordinator_is_up(&mut wire, group)?;
    }
    find_coordinator(&mut wire, "open")?;
    assert_eq!(commit(&mut wire, "gone", 1)?, 0);
    let mine = TxnProducer::init(&mut wire, "open")?;
    mine.produce(&mut wire, 12, &topic, 0, mine.batch(0, 1, NOW)?)?;
    mine.commit(&mut wire, 5, "in-transaction", ("t", 0), 7)?;
    let other = TxnProducer::init(&mut wire, "also-open")?;
    other.produce(&mut wire, 12, &topic, 1, other.batch(0, 1, NOW)?)?;

    let last = fill_with_commits(&mut wire)?;
    all_refused(&mut wire, &topic, &mine)?;
    assert_eq!(committed(&mut wire, "filling", "t", 3)?.0, last);
    // What ends or deletes something goes on.
    mine.end(&mut wire, 5, true)?;
    assert_eq!(committed(&mut wire, "in-transaction", "t", 0)?.0, 7);
    let delete = DeleteGroupsRequest::default().with_groups_names(vec![GroupId(text("gone"))]);
    assert_eq!(wire.call(2, &delete)?.results[0].error_code, 0);
    is_online(&mut wire)?;

    // Somebody else fills the rest of the disk.
    let (used, _) = disk.mount().usage();
    disk.mount().set_capacity(used + (160 << 10));
    std::thread::sleep(Duration::from_millis(2_500));
    for _ in 0..20 {
        all_refused(&mut wire, &topic, &other)?;
        let ended = wire.call(5, &other.end_request(true))?;
        assert_eq!(ended.error_code, COORDINATOR_NOT_AVAILABLE);
    }
    assert_eq!(committed(&mut wire, "filling", "t", 3)?.0, last);
    is_online(&mut wire)?;

    disk.mount().set_capacity(2 * DISK_BYTES);
    let deadline = Instant::now() + PATIENCE;
    while commit(&mut wire, "filling", last + 1)? != 0 {
        ensure!(Instant::now() < deadline, "commits are still refused");
        std::thread::sleep(Duration::from_millis(100));
    }
    let record = RecordSpec::value(Bytes::from_static(b"v")).at(NOW);
    let batch = BatchSpec::of(vec![record]).build()?;
    assert_eq!(produce(&mut wire, &topic, 0, batch)?.error_code, 0);
    let next = other.end(&mut wire, 5, true)?;
    next.produce(&mut wire, 12, &topic, 0, next.batch(0, 1, NOW)?)?;
    next.end(&mut wire, 5, false)?;
    broker.restart()?;
    let mut wire = broker.connect()?;
    coordinator_is_up(&mut wire, "filling")?;
    assert_eq!(committed(&mut wire, "filling", "t", 3)?.0, last + 1);
    assert_eq!(committed(&mut wire, "in-transaction", "t", 0)?.0, 7);
    is_online(&mut wire)
}
