//! Several log directories: where partitions are, what of them a failed disk takes away, and moving them between
//! directories.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use compat_tests::batches::{BatchSpec, RecordSpec};
use compat_tests::broker::Broker;
use compat_tests::cluster::admin::elect_preferred;
use compat_tests::forgetful::{Fault, FaultKind, store::Refusal};
use compat_tests::kafka;
use compat_tests::power::ForgetfulDirectory;
use compat_tests::requests::{
    LATEST, Topic, create_topic, list_offset, produce, produce_ok, read_to_end, topic_name,
    until_not_retriable,
};
use compat_tests::wire::{Wire, text};
use kafka_protocol::messages::alter_replica_log_dirs_request::{
    AlterReplicaLogDir, AlterReplicaLogDirTopic,
};
use kafka_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult,
};
use kafka_protocol::messages::{AlterReplicaLogDirsRequest, DescribeLogDirsRequest};
use tempfile::TempDir;

use super::three::{PATIENCE, Three, batch, three};

const NOW: i64 = 1_790_000_000_000;
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const NOT_LEADER_OR_FOLLOWER: i16 = 6;
const REPLICA_NOT_AVAILABLE: i16 = 9;
const INVALID_TOPIC: i16 = 17;
const KAFKA_STORAGE_ERROR: i16 = 56;
const LOG_DIR_NOT_FOUND: i16 = 57;

/// A broker with directories `a` and `b`, unless others are named.
struct Disks {
    broker: Broker,
    home: TempDir,
}

impl Disks {
    fn start() -> Result<Self> {
        let home = tempfile::tempdir()?;
        let second = home.path().join("b");
        Self::with(home, &second)
    }

    fn with(home: TempDir, second: &Path) -> Result<Self> {
        let dirs = format!("{},{}", home.path().join("a").display(), second.display());
        let broker = Broker::options().set("log.dirs", dirs).start()?;
        Ok(Self { broker, home })
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }
}

fn described(wire: &mut Wire) -> Result<Vec<DescribeLogDirsResult>> {
    let answer = wire.call(4, &DescribeLogDirsRequest::default().with_topics(None))?;
    Ok(answer.results)
}

/// The partitions of a topic in a directory.
fn partitions<'a>(
    dirs: &'a [DescribeLogDirsResult],
    dir: &Path,
    topic: &str,
) -> Result<BTreeMap<i32, &'a DescribeLogDirsPartition>> {
    let path = dir.to_str().context("a path that is text")?;
    let result = dirs.iter().find(|result| &*result.log_dir == path);
    let result = result.with_context(|| format!("no {path} in {dirs:?}"))?;
    let topics = result.topics.iter().filter(|row| &**row.name == topic);
    Ok(topics
        .flat_map(|row| &row.partitions)
        .map(|row| (row.partition_index, row))
        .collect())
}

#[test]
fn partitions_are_spread_over_the_log_directories_and_found_again() -> Result<()> {
    let mut disks = Disks::start()?;
    let mut wire = disks.broker.connect()?;
    let topic = create_topic(&mut wire, "spread", 6, &[])?;
    for partition in 0..6 {
        produce_ok(
            &mut wire,
            &topic,
            partition,
            BatchSpec::small(3, NOW).build()?,
        )?;
    }
    let paths = ["a", "b"].map(|name| disks.dir(name));
    let check = |wire: &mut Wire| -> Result<()> {
        let dirs = described(wire)?;
        assert_eq!(dirs.len(), 2);
        for path in &paths {
            let held = partitions(&dirs, path, "spread")?;
            assert_eq!(held.len(), 3, "{dirs:?}");
            ensure!(
                held.values()
                    .all(|row| row.partition_size > 0 && !row.is_future_key)
            );
        }
        ensure!(
            dirs.iter()
                .all(|dir| dir.error_code == 0 && dir.total_bytes > 0 && dir.usable_bytes > 0),
            "{dirs:?}"
        );
        Ok(())
    };
    check(&mut wire)?;
    let bootstrap = disks.broker.bootstrap();
    let arguments = ["--bootstrap-server", &bootstrap, "--describe"];
    let printed = kafka::LOG_DIRS.succeed(&arguments, "")?;
    for name in ["a", "b"] {
        let path = disks.dir(name).display().to_string();
        ensure!(printed.contains(&path), "{path} is not in\n{printed}");
        let meta = std::fs::read_to_string(disks.dir(name).join("meta.properties"))?;
        ensure!(
            meta.contains("cluster.id=") && meta.contains("directory.id="),
            "{meta}"
        );
    }
    disks.broker.kill9()?;
    disks.broker.start_again()?;
    let mut wire = disks.broker.connect()?;
    check(&mut wire)?;
    for partition in 0..6 {
        assert_eq!(read_to_end(&mut wire, &topic, partition, 0)?.len(), 3);
    }
    Ok(())
}

#[test]
fn a_partition_in_two_log_directories_keeps_the_broker_from_starting() -> Result<()> {
    let mut disks = Disks::start()?;
    create_topic(&mut disks.broker.connect()?, "twice", 1, &[])?;
    disks.broker.terminate()?;
    let (one, other) = (disks.dir("a/twice-0"), disks.dir("b/twice-0"));
    let (from, to) = if one.exists() {
        (&one, &other)
    } else {
        (&other, &one)
    };
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        std::fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    disks.broker.launch_again()?;
    let status = disks.broker.process().wait(Duration::from_secs(20))?;
    let log = disks.broker.process().log_text();
    ensure!(!status.success());
    for path in [&one, &other] {
        let path = path.display().to_string();
        ensure!(log.contains(&path), "{path} is not in\n{log}");
    }
    std::fs::remove_dir_all(to)?;
    disks.broker.start_again()
}

/// What a produce to the partition is answered with, once it is not one of the passing errors.
fn answered(wire: &mut Wire, topic: &Topic, partition: i32) -> Result<i16> {
    Ok(produce(wire, topic, partition, BatchSpec::small(1, NOW).build()?)?.error_code)
}

#[test]
fn a_failed_disk_takes_only_its_log_directory_offline() -> Result<()> {
    let disk = ForgetfulDirectory::new()?;
    let second = disk.mount().path().join("b");
    let mut disks = Disks::with(tempfile::tempdir()?, &second)?;
    let mut wire = disks.broker.connect()?;
    let topic = create_topic(&mut wire, "halves", 4, &[])?;
    for partition in 0..4 {
        produce_ok(
            &mut wire,
            &topic,
            partition,
            BatchSpec::small(1, NOW).build()?,
        )?;
    }
    let dirs = described(&mut wire)?;
    let lost: Vec<i32> = partitions(&dirs, &second, "halves")?.into_keys().collect();
    assert_eq!(lost.len(), 2);
    disk.mount().inject(Fault {
        kind: FaultKind::SyncFile,
        path_part: format!("halves-{}", lost[0]),
        skip: 0,
        times: 1,
        refusal: Refusal::Io,
    });
    assert_eq!(answered(&mut wire, &topic, lost[0])?, KAFKA_STORAGE_ERROR);
    disk.mount().clear_faults();
    // The other one in that directory as well, though nothing of its own has failed.
    for partition in 0..4 {
        let expected = if lost.contains(&partition) {
            KAFKA_STORAGE_ERROR
        } else {
            0
        };
        assert_eq!(
            answered(&mut wire, &topic, partition)?,
            expected,
            "{partition}"
        );
    }
    let dirs = described(&mut wire)?;
    let codes: BTreeMap<&str, i16> = dirs
        .iter()
        .map(|dir| (&*dir.log_dir, dir.error_code))
        .collect();
    assert_eq!(codes[second.to_str().context("text")?], KAFKA_STORAGE_ERROR);
    assert_eq!(codes[disks.dir("a").to_str().context("text")?], 0);
    let fresh = create_topic(&mut wire, "fresh", 2, &[])?;
    for partition in 0..2 {
        produce_ok(
            &mut wire,
            &fresh,
            partition,
            BatchSpec::small(1, NOW).build()?,
        )?;
    }
    assert_eq!(
        partitions(&described(&mut wire)?, &disks.dir("a"), "fresh")?.len(),
        2
    );
    disks.broker.kill9()?;
    disks.broker.start_again()?;
    let mut wire = disks.broker.connect()?;
    for partition in 0..4 {
        ensure!(!read_to_end(&mut wire, &topic, partition, 0)?.is_empty());
        assert_eq!(answered(&mut wire, &topic, partition)?, 0);
    }
    Ok(())
}

/// Three nodes, of which the first has another log directory, `second`.
fn three_with(second: &Path) -> Result<Three> {
    let mut cluster = three().prepare()?;
    let node = cluster.node(1)?;
    let dirs = format!("{},{}", node.data_dir().display(), second.display());
    node.set_for_next_start("log.dirs", dirs)?;
    for number in cluster.numbers() {
        cluster.launch(number)?;
    }
    cluster.await_members(PATIENCE)?;
    Ok(Three { cluster })
}

#[test]
fn what_a_failed_disk_led_is_led_by_others_while_its_broker_goes_on() -> Result<()> {
    let disk = ForgetfulDirectory::new()?;
    let second = disk.mount().path().join("b");
    let mut three = three_with(&second)?;
    let replicas: [&[i32]; 4] = [&[1, 2, 3]; 4];
    let topic = three.create(1, "led", &replicas)?;
    for partition in 0..4 {
        three.produce(&topic, partition, &batch(1)?)?;
    }
    let lost: Vec<i32> = partitions(&described(&mut three.wire(1)?)?, &second, "led")?
        .into_keys()
        .collect();
    assert_eq!(lost.len(), 2);
    disk.mount().inject(Fault {
        kind: FaultKind::SyncFile,
        path_part: format!("led-{}", lost[0]),
        skip: 0,
        times: 1,
        refusal: Refusal::Io,
    });
    let first = answered(&mut three.wire(1)?, &topic, lost[0])?;
    ensure!(
        [KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER].contains(&first),
        "{first}"
    );
    for partition in &lost {
        three.other_leader(&topic, *partition, 1)?;
        three.produce(&topic, *partition, &batch(1)?)?;
    }
    let mut kept: Vec<i32> = (0..4).collect();
    kept.retain(|partition| !lost.contains(partition));
    for partition in kept {
        assert_eq!(three.leader(&topic, partition)?.0, 1);
        three.produce(&topic, partition, &batch(1)?)?;
    }
    ensure!(
        three.cluster.running()?.contains(&1),
        "{}",
        three.cluster.logs()
    );
    Ok(())
}

fn alter(wire: &mut Wire, topic: &str, partition: i32, dir: &Path) -> Result<i16> {
    let path = dir.to_str().context("a path that is text")?;
    let row = AlterReplicaLogDirTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(vec![partition]);
    let dir = AlterReplicaLogDir::default()
        .with_path(text(path))
        .with_topics(vec![row]);
    let request = AlterReplicaLogDirsRequest::default().with_dirs(vec![dir]);
    let answer = wire.call(2, &request)?;
    let results = answer.results.iter().flat_map(|row| &row.partitions);
    let codes: Vec<i16> = results.map(|row| row.error_code).collect();
    match codes[..] {
        [code] => Ok(code),
        _ => bail!("{answer:?}"),
    }
}

/// Waits until the partition is in the directory and nowhere else.
fn await_moved(wire: &mut Wire, dir: &Path, topic: &str, partition: i32) -> Result<()> {
    let begun = Instant::now();
    loop {
        let dirs = described(wire)?;
        let there = partitions(&dirs, dir, topic)?;
        if there.get(&partition).is_some_and(|row| !row.is_future_key) {
            return Ok(());
        }
        ensure!(begun.elapsed() < Duration::from_secs(60), "{dirs:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn numbered(number: usize) -> Result<bytes::Bytes> {
    BatchSpec::of(vec![RecordSpec::value(format!(
        "{number}/{}",
        "x".repeat(2000)
    ))])
    .build()
}

/// The partition's records are those of the numbers below `written`, in order. A produce that was interrupted is sent
/// again, and may be there twice.
fn require_numbers(wire: &mut Wire, topic: &Topic, written: usize) -> Result<()> {
    let mut expected = 0;
    for record in read_to_end(wire, topic, 0, 0)? {
        let value = record.value.context("a value")?;
        let value = String::from_utf8_lossy(&value);
        let number: usize = value.split('/').next().context("a number")?.parse()?;
        ensure!(number <= expected, "{number} instead of {expected}");
        expected = expected.max(number + 1);
    }
    assert_eq!(expected, written);
    Ok(())
}

/// What is in a log directory of a partition, in whatever state.
fn names_in(dir: &Path, partition: &str) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(dir)?;
    Ok(entries
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .filter(|name| name.starts_with(partition))
        .collect())
}

fn await_nothing_in(dir: &Path, partition: &str) -> Result<()> {
    let begun = Instant::now();
    loop {
        let left = names_in(dir, partition)?;
        if left.is_empty() {
            return Ok(());
        }
        ensure!(begun.elapsed() < Duration::from_secs(20), "{left:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_log_moves_to_another_directory_while_it_is_written_to() -> Result<()> {
    let mut disks = Disks::start()?;
    let mut wire = disks.broker.connect()?;
    let topic = create_topic(&mut wire, "moved", 1, &[("segment.bytes", "1048576")])?;
    for number in 0..2000 {
        produce_ok(&mut wire, &topic, 0, numbered(number)?)?;
    }
    let (address, stop) = (disks.broker.address(), Arc::new(AtomicBool::new(false)));
    let writer = {
        let (topic, stop) = (topic.clone(), Arc::clone(&stop));
        std::thread::spawn(move || -> Result<usize> {
            let mut wire = Wire::connect(address)?;
            let mut number = 2000;
            while !stop.load(Ordering::Relaxed) {
                produce_ok(&mut wire, &topic, 0, numbered(number)?)?;
                number += 1;
            }
            Ok(number)
        })
    };
    // There and back, each while records come in.
    for name in ["b", "a", "b"] {
        let dir = disks.dir(name);
        assert_eq!(alter(&mut wire, "moved", 0, &dir)?, 0);
        await_moved(&mut wire, &dir, "moved", 0)?;
    }
    stop.store(true, Ordering::Relaxed);
    let written = writer
        .join()
        .map_err(|_| anyhow::anyhow!("the writer panicked"))??;
    ensure!(written > 2000, "nothing was written meanwhile");
    require_numbers(&mut wire, &topic, written)?;
    disks.broker.kill9()?;
    disks.broker.start_again()?;
    require_numbers(&mut disks.broker.connect()?, &topic, written)?;
    await_nothing_in(&disks.dir("a"), "moved-0")
}

/// Kills that the test below survives.
const KILLS: usize = 30;
/// Longest wait before a kill that is not aimed at a moment.
const KILL_WITHIN_MS: u64 = 250;

/// Writes numbered records one after the other, each until it is acknowledged, whatever becomes of the broker.
fn write_through_kills(
    address: std::net::SocketAddr,
    topic: &Topic,
    stop: &AtomicBool,
) -> Result<usize> {
    let begun = Instant::now();
    let (mut number, mut wire) = (0, None);
    while !stop.load(Ordering::Relaxed) {
        ensure!(begun.elapsed() < Duration::from_secs(400), "no end");
        let open = match wire.take() {
            Some(open) => Ok(open),
            None => Wire::connect(address),
        };
        let sent = open.and_then(|mut open| {
            let answer = produce(&mut open, topic, 0, numbered(number)?)?;
            Ok((open, answer.error_code))
        });
        match sent {
            Ok((open, code)) => {
                wire = Some(open);
                match code {
                    0 => number += 1,
                    UNKNOWN_TOPIC_OR_PARTITION | NOT_LEADER_OR_FOLLOWER => {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    code => bail!("produce: error {code}"),
                }
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    Ok(number)
}

#[test]
fn kills_at_any_moment_of_a_move_lose_nothing_and_leave_the_partition_in_one_directory()
-> Result<()> {
    const PARTITION: &str = "killed-0";
    let mut disks = Disks::start()?;
    let mut wire = disks.broker.connect()?;
    let topic = create_topic(&mut wire, "killed", 1, &[("segment.bytes", "1048576")])?;
    let (address, stop) = (disks.broker.address(), Arc::new(AtomicBool::new(false)));
    let writer = {
        let (topic, stop) = (topic.clone(), Arc::clone(&stop));
        std::thread::spawn(move || write_through_kills(address, &topic, &stop))
    };
    // Something to copy.
    while list_offset(&mut wire, &topic, 0, LATEST)?.offset < 5_000 {
        ensure!(!writer.is_finished(), "the writer has ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    let dirs = ["a", "b"].map(|name| disks.dir(name));
    let places = || dirs.each_ref().map(|dir| dir.join(PARTITION).exists());
    let (mut moved, mut stayed, mut half, mut both) = (0, 0, 0, 0);
    for round in 0..KILLS {
        let from = usize::from(places()[1]);
        let to = &dirs[1 - from];
        let mut wire = disks.broker.connect()?;
        let begun = Instant::now();
        // What was cut short has begun again, or it is asked for now.
        while alter(&mut wire, "killed", 0, to)? != 0 {
            ensure!(begun.elapsed() < Duration::from_secs(20), "not to be moved");
            std::thread::sleep(Duration::from_millis(5));
        }
        let begun = Instant::now();
        if round % 2 == 0 {
            let wait = (round as u64 * 7919) % KILL_WITHIN_MS;
            std::thread::sleep(Duration::from_millis(wait));
        } else {
            // As soon as the copy has the partition's name, which is when it begins to count.
            while !to.join(PARTITION).exists() {
                ensure!(
                    begun.elapsed() < Duration::from_secs(60),
                    "it does not move"
                );
            }
        }
        disks.broker.kill9()?;
        let left = names_in(to, PARTITION)?;
        half += usize::from(left.iter().any(|name| name.ends_with("-future")));
        both += usize::from(places() == [true, true]);
        ensure!(places() != [false, false], "round {round}: nowhere");
        disks.broker.start_again()?;
        ensure!(!writer.is_finished(), "the writer has ended");
        // A move that goes on has it in both for a moment.
        let begun = Instant::now();
        let in_b = loop {
            match places() {
                [in_a, in_b] if in_a != in_b => break in_b,
                found => ensure!(begun.elapsed() < PATIENCE, "round {round}: {found:?}"),
            }
        };
        match usize::from(in_b) == from {
            true => stayed += 1,
            false => moved += 1,
        }
    }
    stop.store(true, Ordering::Relaxed);
    let written = writer
        .join()
        .map_err(|_| anyhow::anyhow!("the writer panicked"))??;
    let seen =
        format!("{written} written, {moved} moved, {stayed} stayed, {half} half, {both} in both");
    println!("{seen}");
    ensure!(moved > 0 && stayed > 0 && half > 0, "{seen}");
    let (from, to) = match places()[1] {
        true => (&dirs[1], &dirs[0]),
        false => (&dirs[0], &dirs[1]),
    };
    let mut wire = disks.broker.connect()?;
    require_numbers(&mut wire, &topic, written)?;
    let asked = until_not_retriable(
        || alter(&mut wire, "killed", 0, to),
        |code| match *code {
            REPLICA_NOT_AVAILABLE => NOT_LEADER_OR_FOLLOWER,
            code => code,
        },
    )?;
    assert_eq!(asked, 0);
    await_moved(&mut wire, to, "killed", 0)?;
    await_nothing_in(from, PARTITION)?;
    disks.broker.restart()?;
    require_numbers(&mut disks.broker.connect()?, &topic, written)?;
    assert_eq!(names_in(to, PARTITION)?, [PARTITION]);
    assert_eq!(names_in(from, PARTITION)?, Vec::<String>::new());
    Ok(())
}

/// Has the first node lead.
fn lead_first(three: &mut Three, topic: &Topic, partition: i32) -> Result<()> {
    let begun = Instant::now();
    while three.leader(topic, partition)?.0 != 1 {
        ensure!(begun.elapsed() < PATIENCE, "{}", three.cluster.logs());
        elect_preferred(&mut three.any()?, topic, partition + 1)?;
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

#[test]
fn a_replica_moves_whether_it_leads_or_follows_and_stays_the_same_as_the_others() -> Result<()> {
    let home = tempfile::tempdir()?;
    let second = home.path().join("b");
    let mut three = three_with(&second)?;
    let topic = three.create(1, "replicated", &[&[1, 2, 3]])?;
    let first = three.cluster.node(1)?.data_dir().to_owned();
    let in_second = partitions(&described(&mut three.wire(1)?)?, &second, "replicated")?.len();
    let dirs = match in_second {
        0 => [second, first],
        _ => [first, second],
    };
    let mut written = 0;
    let write = |three: &mut Three, written: &mut usize| -> Result<()> {
        for _ in 0..20 {
            three.produce(&topic, 0, &numbered(*written)?)?;
            *written += 1;
        }
        Ok(())
    };
    write(&mut three, &mut written)?;
    for round in 0..4 {
        if round % 2 == 0 {
            lead_first(&mut three, &topic, 0)?;
        }
        let to = &dirs[round % 2];
        let mut wire = three.wire(1)?;
        assert_eq!(alter(&mut wire, "replicated", 0, to)?, 0);
        write(&mut three, &mut written)?;
        await_moved(&mut wire, to, "replicated", 0)?;
        write(&mut three, &mut written)?;
    }
    three.cluster.await_in_sync(PATIENCE)?;
    lead_first(&mut three, &topic, 0)?;
    require_numbers(&mut three.wire(1)?, &topic, written)
}

#[test]
fn an_empty_disk_in_the_place_of_a_failed_one_is_filled_by_the_other_nodes() -> Result<()> {
    let home = tempfile::tempdir()?;
    let second = home.path().join("b");
    let mut three = three_with(&second)?;
    let topic = three.create(1, "filled", &[&[1, 2, 3][..]; 4])?;
    for partition in 0..4 {
        for count in 1..4 {
            three.produce(&topic, partition, &batch(count)?)?;
        }
    }
    let held = |three: &mut Three| -> Result<Vec<i32>> {
        let dirs = described(&mut three.wire(1)?)?;
        Ok(partitions(&dirs, &second, "filled")?.into_keys().collect())
    };
    let lost = held(&mut three)?;
    assert_eq!(lost.len(), 2);
    three.cluster.node(1)?.kill9()?;
    std::fs::remove_dir_all(&second)?;
    for partition in &lost {
        three.other_leader(&topic, *partition, 1)?;
        three.produce(&topic, *partition, &batch(4)?)?;
    }
    three.cluster.launch(1)?;
    three.cluster.await_members(PATIENCE)?;
    three.cluster.await_in_sync(PATIENCE)?;
    for partition in &lost {
        lead_first(&mut three, &topic, *partition)?;
        let records = read_to_end(&mut three.wire(1)?, &topic, *partition, 0)?;
        assert_eq!(records.len(), 1 + 2 + 3 + 4);
    }
    let found = described(&mut three.wire(1)?)?;
    let all: usize = found
        .iter()
        .flat_map(|dir| &dir.topics)
        .filter(|row| &**row.name == "filled")
        .map(|row| row.partitions.len())
        .sum();
    assert_eq!(all, 4, "{found:?}");
    Ok(())
}

#[test]
fn what_cannot_be_moved_is_refused_as_kafka_does_and_what_is_not_here_is_remembered() -> Result<()>
{
    let disks = Disks::start()?;
    let mut wire = disks.broker.connect()?;
    create_topic(&mut wire, "here", 1, &[])?;
    let (a, b) = (disks.dir("a"), disks.dir("b"));
    assert_eq!(
        alter(&mut wire, "here", 0, Path::new("/nowhere"))?,
        LOG_DIR_NOT_FOUND
    );
    let long = "t".repeat(240);
    assert_eq!(alter(&mut wire, &long, 0, &b)?, INVALID_TOPIC);
    assert_eq!(alter(&mut wire, "here", 7, &b)?, UNKNOWN_TOPIC_OR_PARTITION);
    // As many in the one as in the other, so that by numbers they would be spread.
    for partition in 0..4 {
        let code = alter(&mut wire, "later", partition, &b)?;
        ensure!(
            [UNKNOWN_TOPIC_OR_PARTITION, REPLICA_NOT_AVAILABLE].contains(&code),
            "{code}"
        );
    }
    create_topic(&mut wire, "later", 4, &[])?;
    let dirs = described(&mut wire)?;
    assert_eq!(partitions(&dirs, &b, "later")?.len(), 4);
    assert_eq!(partitions(&dirs, &a, "later")?.len(), 0);
    Ok(())
}

#[test]
fn kafka_reassign_partitions_moves_logs_between_directories() -> Result<()> {
    let disks = Disks::start()?;
    let mut wire = disks.broker.connect()?;
    let topic = create_topic(&mut wire, "tooled", 2, &[])?;
    for partition in 0..2 {
        produce_ok(
            &mut wire,
            &topic,
            partition,
            BatchSpec::small(5, NOW).build()?,
        )?;
    }
    let b = disks.dir("b");
    let path = b.display();
    let row = |partition| {
        format!(
            "{{\"topic\":\"tooled\",\"partition\":{partition},\"replicas\":[1],\"log_dirs\":[\"{path}\"]}}"
        )
    };
    let json = format!("{{\"version\":1,\"partitions\":[{},{}]}}", row(0), row(1));
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), json)?;
    let file = file.path().display().to_string();
    let bootstrap = disks.broker.bootstrap();
    let tool = |action: &str| {
        let arguments = [
            "--bootstrap-server",
            &bootstrap,
            "--reassignment-json-file",
            &file,
            action,
        ];
        kafka::REASSIGN_PARTITIONS.succeed(&arguments, "")
    };
    let executed = tool("--execute")?;
    ensure!(executed.contains("Successfully started"), "{executed}");
    for partition in 0..2 {
        await_moved(&mut wire, &b, "tooled", partition)?;
    }
    let verified = tool("--verify")?;
    for partition in 0..2 {
        let expected =
            format!("Reassignment of replica tooled-{partition}-1 completed successfully");
        ensure!(
            verified.contains(&expected),
            "{expected} is not in\n{verified}"
        );
        assert_eq!(read_to_end(&mut wire, &topic, partition, 0)?.len(), 5);
    }
    Ok(())
}
