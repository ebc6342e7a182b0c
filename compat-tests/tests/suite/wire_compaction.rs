//! Compacted topics: what stays, what goes, and what a consumer sees of the gaps.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use compat_tests::batches::{BatchSpec, Codec, RecordSpec, TRANSACTIONAL};
use compat_tests::requests::{Topic, batches_of, create_topic, fetch, produce_ok, read_to_end};
use compat_tests::server::Server;
use compat_tests::transactions::TxnProducer;
use compat_tests::wire::Wire;
use kafka_protocol::records::Record;

use super::dump_log::{dump, files_ending_in};

const KEYS: usize = 40;
/// How long a compaction may take to come.
const PATIENCE: Duration = Duration::from_secs(60);

fn now() -> Result<i64> {
    Ok(i64::try_from(
        SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis(),
    )?)
}

/// A broker that looks for something to compact all the time, and a topic of small segments.
fn compacted_topic(configs: &[(&str, &str)]) -> Result<(Server, Wire, Topic)> {
    let server = Server::with(&[("log.cleaner.backoff.ms", "100")])?;
    let mut wire = server.connect()?;
    let common = [
        ("cleanup.policy", "compact"),
        ("segment.bytes", "1048576"),
        ("min.cleanable.dirty.ratio", "0.01"),
    ];
    let all: Vec<_> = common.into_iter().chain(configs.iter().copied()).collect();
    let topic = create_topic(&mut wire, "compacted", 1, &all)?;
    Ok((server, wire, topic))
}

fn noise(seed: usize) -> Vec<u8> {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..4000)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// Newest value of every key, with its offset.
type Newest = BTreeMap<Vec<u8>, (i64, Vec<u8>)>;

/// Fills more than three segments; returns the newest value of every key with its offset.
fn fill(wire: &mut Wire, topic: &Topic, round: usize) -> Result<Newest> {
    let mut newest = Newest::new();
    for batch in 0..100 {
        let codec = [Codec::None, Codec::Zstd, Codec::Gzip][batch % 3];
        let at = now()?;
        let records: Vec<_> = (0..10)
            .map(|i| {
                let key = format!("key-{}", (batch * 10 + i) % KEYS).into_bytes();
                (key, noise(round * 10_000 + batch * 10 + i))
            })
            .collect();
        // Out of order, so that a batch without its first record needs new deltas.
        let specs = records
            .iter()
            .enumerate()
            .map(|(i, (key, value))| {
                RecordSpec::keyed(key.clone(), value.clone()).at(at - (i as i64 % 3))
            })
            .collect();
        let base = produce_ok(
            wire,
            topic,
            0,
            BatchSpec::of(specs).compressed(codec).build()?,
        )?;
        for (offset, (key, value)) in (base..).zip(records) {
            newest.insert(key, (offset, value));
        }
    }
    Ok(newest)
}

fn until_compacted(
    wire: &mut Wire,
    topic: &Topic,
    is_done: impl Fn(&[Record]) -> bool,
) -> Result<Vec<Record>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = read_to_end(wire, topic, 0, 0)?;
        if is_done(&left) {
            return Ok(left);
        }
        ensure!(
            Instant::now() < deadline,
            "{} records are left, from {:?} on",
            left.len(),
            left.first().map(|record| record.offset)
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn check_newest(left: &[Record], newest: &Newest) -> Result<()> {
    for (key, (offset, value)) in newest {
        let record = left
            .iter()
            .find(|record| record.offset == *offset)
            .with_context(|| format!("{} at {offset} is gone", String::from_utf8_lossy(key)))?;
        ensure!(record.key.as_deref() == Some(key.as_slice()));
        ensure!(record.value.as_deref() == Some(value.as_slice()));
    }
    Ok(())
}

#[test]
fn the_newest_record_of_every_key_stays_over_kills_and_every_offset_can_be_fetched() -> Result<()> {
    let (mut server, mut wire, topic) = compacted_topic(&[])?;
    let mut newest = Newest::new();
    for round in 0..3 {
        newest.extend(fill(&mut wire, &topic, round)?);
        // Three segments of four are closed; of those at most one record a key is left.
        let left = until_compacted(&mut wire, &topic, |left| left.len() < 400)?;
        check_newest(&left, &newest)?;
        server.kill_and_restart()?;
        wire = server.connect()?;
        let again = until_compacted(&mut wire, &topic, |again| again.len() <= left.len())?;
        check_newest(&again, &newest)?;
    }
    let end = 3000;
    for offset in (0..end).step_by(37) {
        let data = fetch(&mut wire, &topic, 0, offset)?;
        ensure!(
            data.error_code == 0,
            "fetch at {offset}: {}",
            data.error_code
        );
        let bytes = data.records.context("no records")?;
        let first = *batches_of(&bytes).first().context("no batch")?;
        let base = i64::from_be_bytes(first[..8].try_into()?);
        let last = base + i64::from(i32::from_be_bytes(first[23..27].try_into()?));
        ensure!(
            last >= offset,
            "fetch at {offset} gave a batch that ends at {last}"
        );
    }
    let data_dir = server.data_dir().to_owned();
    server.process().terminate(Duration::from_secs(60))?;
    let logs = files_ending_in(&data_dir, ".log")?;
    dump(&["--deep-iteration"], &logs)?;
    dump(
        &["--index-sanity-check"],
        &files_ending_in(&data_dir, ".index")?,
    )?;
    Ok(())
}

#[test]
fn tombstones_are_seen_for_a_while_and_then_go() -> Result<()> {
    let (_server, mut wire, topic) = compacted_topic(&[("delete.retention.ms", "1000")])?;
    let at = now()?;
    let doomed = || RecordSpec::keyed("doomed", "value").at(at);
    let tombstone = RecordSpec {
        value: None,
        ..doomed()
    };
    produce_ok(&mut wire, &topic, 0, BatchSpec::of(vec![doomed()]).build()?)?;
    produce_ok(
        &mut wire,
        &topic,
        0,
        BatchSpec::of(vec![tombstone]).build()?,
    )?;
    let is_doomed = |record: &Record| record.key.as_deref() == Some(b"doomed");
    for round in 0..20 {
        fill(&mut wire, &topic, round)?;
        let left = read_to_end(&mut wire, &topic, 0, 0)?;
        if !left.iter().any(is_doomed) {
            return Ok(());
        }
        if let Some(value) = left.iter().find(|record| is_doomed(record)) {
            ensure!(
                value.offset <= 1,
                "the tombstone or what it deletes, and nothing else"
            );
        }
        std::thread::sleep(Duration::from_millis(700));
    }
    anyhow::bail!("the tombstone is still there")
}

/// The cleaner stops at the last stable offset: of what lies above it nobody knows yet what will stay.
#[test]
fn an_overwrite_takes_the_place_of_nothing_until_its_transaction_is_committed() -> Result<()> {
    const CONTESTED: &[u8] = b"contested";
    for commits in [false, true] {
        let (_server, mut wire, topic) = compacted_topic(&[])?;
        let at = now()?;
        let contested = |value: &str| {
            BatchSpec::of(vec![RecordSpec::keyed(CONTESTED, value.to_owned()).at(at)])
        };
        let places = |left: &[Record]| -> Vec<i64> {
            let data = left.iter().filter(|record| !record.control);
            data.filter(|record| record.key.as_deref() == Some(CONTESTED))
                .map(|record| record.offset)
                .collect()
        };
        let old = produce_ok(&mut wire, &topic, 0, contested("old").build()?)?;
        fill(&mut wire, &topic, 0)?;
        // The cleaner is at work.
        until_compacted(&mut wire, &topic, |left| left.len() < 400)?;

        let mine = TxnProducer::init(&mut wire, "overwriter")?;
        let mut batch = contested("new").from_producer(mine.producer_id, mine.epoch, 0);
        batch.attributes |= TRANSACTIONAL;
        let new = mine.produce(&mut wire, 12, &topic, 0, batch.build()?)?;
        // Three more segments, each key in them many times, all of it undecided.
        fill(&mut wire, &topic, 1)?;
        std::thread::sleep(Duration::from_secs(3));
        let left = read_to_end(&mut wire, &topic, 0, 0)?;
        assert_eq!(places(&left), [old, new], "nothing is decided");
        let undecided = left.iter().filter(|record| record.offset > new).count();
        assert_eq!(undecided, 1000, "something above the open transaction went");

        mine.end(&mut wire, 5, commits)?;
        let expected = if commits { [new] } else { [old] };
        until_compacted(&mut wire, &topic, |left| places(left) == expected)?;
    }
    Ok(())
}
