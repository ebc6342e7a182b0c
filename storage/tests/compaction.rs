//! Compaction against a model: of every key the newest record stays, every offset can still be read
//! from, and a crash at any step leaves the old segments or the new ones.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use odradek_protocol::batch::{BatchHeader, BatchIter};
use odradek_protocol::compression::Compression;
use odradek_protocol::ids::{Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs};
use odradek_protocol::records::{BatchBuilder, NewRecord, RecordWalker, expand, record_timestamp};
use odradek_storage::disk::Disk as _;
use odradek_storage::{
    CompactionConfig, CompactionStats, Log, LogConfig, LogDirHealth, OpenHint, SimDisk,
    StampedBatch, StorageError,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::{NOW, Rig, marker, verify};

const HOUR_MS: i64 = 3_600_000;

fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 1500,
        index_interval_bytes: 200,
        compacted: true,
        delete_old_segments: false,
        retention_ms: None,
        file_delete_delay_ms: 0,
        ..LogConfig::default()
    }
}

fn compaction() -> CompactionConfig {
    CompactionConfig {
        min_dirty_ratio: 0.0,
        delete_retention_ms: HOUR_MS as u64,
        ..CompactionConfig::default()
    }
}

/// A record as a reader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    key: String,
    value: Option<String>,
    timestamp: i64,
}

fn keyed(records: &[(&str, Option<&str>, i64)]) -> BatchBuilder {
    let mut builder = BatchBuilder::new();
    for (key, value, timestamp) in records {
        builder.push(NewRecord {
            timestamp: TimestampMs::new(*timestamp),
            key: Some(key.as_bytes()),
            value: value.map(str::as_bytes),
            ..NewRecord::default()
        });
    }
    builder
}

fn keyed_by(id: i64, sequence: i32, records: &[(&str, Option<&str>)], txn: bool) -> Bytes {
    let mut builder = keyed(&[]).producer(
        ProducerId::new(id),
        ProducerEpoch::new(0),
        Sequence::new(sequence),
    );
    if txn {
        builder = builder.transactional();
    }
    for (key, value) in records {
        builder.push(NewRecord {
            timestamp: NOW,
            key: Some(key.as_bytes()),
            value: value.map(str::as_bytes),
            ..NewRecord::default()
        });
    }
    builder.build()
}

/// Everything in the log, with its offsets; control records are left out.
fn contents(log: &Log) -> BTreeMap<i64, Seen> {
    let reader = log.reader();
    let slice = reader
        .read(reader.log_start(), usize::MAX, log.next_offset(), true)
        .unwrap();
    let bytes = slice.read().unwrap();
    let mut seen = BTreeMap::new();
    let mut last = -1;
    for batch in BatchIter::new(&bytes) {
        let batch = batch.unwrap();
        let header = batch.header;
        assert!(header.base_offset.get() > last, "batches ascend");
        last = header.last_offset().get();
        if header.is_control() {
            continue;
        }
        let records = expand(&header, batch.bytes, 1 << 20).unwrap();
        for record in RecordWalker::new(&records, header.record_count) {
            let record = record.unwrap();
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            seen.insert(
                header.base_offset.get() + i64::from(record.offset_delta),
                Seen {
                    key: text(record.key.unwrap()),
                    value: record.value.map(text),
                    timestamp: record_timestamp(&header, record.timestamp_delta).get(),
                },
            );
        }
    }
    seen
}

fn headers(log: &Log) -> Vec<BatchHeader> {
    let reader = log.reader();
    let slice = reader
        .read(reader.log_start(), usize::MAX, log.next_offset(), true)
        .unwrap();
    let bytes = slice.read().unwrap();
    BatchIter::new(&bytes)
        .map(|batch| batch.unwrap().header)
        .collect()
}

/// Makes everything so far durable and closes the active segment.
fn seal(log: &mut Log, now: TimestampMs) -> Result<(), StorageError> {
    log.roll(now)?;
    sync(log)
}

fn sync(log: &mut Log) -> Result<(), StorageError> {
    if let Some((checkpoint, target)) = log.begin_checkpoint() {
        target
            .sync()
            .map_err(|error| StorageError::UnusableBatch(error.to_string()))?;
        log.finish_checkpoint(checkpoint)?;
    }
    Ok(())
}

/// Runs one compaction of what is sealed, if there is any. Returns where the next begins.
fn compact(
    log: &mut Log,
    clean_end: Offset,
    map_bytes: usize,
    now: TimestampMs,
) -> Result<Option<(Offset, CompactionStats)>, StorageError> {
    let bound = log.next_offset();
    let Some(compaction) = log.begin_compaction(clean_end, bound, &compaction(), now)? else {
        return Ok(None);
    };
    let compacted = compaction
        .run(map_bytes, &mut |_| ControlFlow::Continue(()))?
        .unwrap();
    let result = (compacted.clean_end, compacted.stats);
    log.finish_compaction(compacted, now)?;
    Ok(Some(result))
}

fn later(ms: i64) -> TimestampMs {
    TimestampMs::new(NOW.get() + ms)
}

fn newest(all: &BTreeMap<i64, Seen>) -> HashMap<String, i64> {
    all.iter()
        .map(|(offset, seen)| (seen.key.clone(), *offset))
        .collect()
}

#[test]
fn the_newest_record_of_every_key_stays_and_every_offset_can_be_read_from() {
    let seed = match std::env::var("ODRADEK_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => rand::random::<u64>(),
    };
    println!("ODRADEK_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut rig = Rig::real(config());
    let mut all = BTreeMap::new();
    let mut clean_end = Offset::ZERO;
    for round in 0..6 {
        for _ in 0..40 {
            let count = random.random_range(1..6);
            let mut records = Vec::new();
            for _ in 0..count {
                let key = format!("key-{}", random.random_range(0..30));
                let tombstone = random.random_bool(0.1);
                let value = (!tombstone).then(|| format!("value-{}", random.random::<u32>()));
                records.push((key, value, NOW.get() + random.random_range(-500..500)));
            }
            let views: Vec<_> = records
                .iter()
                .map(|(key, value, at)| (key.as_str(), value.as_deref(), *at))
                .collect();
            let compression = Compression::ALL[random.random_range(0..Compression::ALL.len())];
            let batch = keyed(&views).build_compressed(compression).unwrap();
            let base = rig.append(batch).get();
            for (offset, (key, value, timestamp)) in (base..).zip(records) {
                let seen = Seen {
                    key,
                    value,
                    timestamp,
                };
                all.insert(offset, seen);
            }
        }
        seal(&mut rig.log, NOW).unwrap();
        // Sometimes the map has no room for all keys.
        let map_bytes = if round % 2 == 0 { 1 << 20 } else { 300 };
        let end = rig.log.next_offset();
        while let Some((reached, _)) =
            compact(&mut rig.log, clean_end, map_bytes, later(HOUR_MS / 2)).unwrap()
        {
            assert!(reached > clean_end, "every run gets on");
            clean_end = reached;
            if reached >= end {
                break;
            }
        }
        let left = contents(&rig.log);
        for (offset, seen) in &left {
            assert_eq!(all.get(offset), Some(seen), "what is left is as it was");
        }
        for (key, offset) in newest(&all) {
            assert!(left.contains_key(&offset), "{key} at {offset} is gone");
        }
        if round == 5 && map_bytes > 300 {
            assert_eq!(left.len(), newest(&all).len(), "nothing else is left");
        }
        check_every_offset(&rig.log, &left);
        let faults = verify::faults(rig.disk.as_ref(), &rig.dir);
        assert_eq!(faults, Vec::<String>::new());
        if round % 2 == 1 {
            rig.restart();
        } else {
            rig.reopen();
        }
        assert_eq!(contents(&rig.log), left, "the same after a restart");
        check_every_offset(&rig.log, &left);
    }
}

/// A read from any offset begins with the first batch that ends at it or after it.
fn check_every_offset(log: &Log, left: &BTreeMap<i64, Seen>) {
    let reader = log.reader();
    let ends: Vec<_> = headers(log)
        .iter()
        .map(|header| header.last_offset())
        .collect();
    for offset in reader.log_start().get()..log.next_offset().get() {
        let wanted = Offset::new(offset);
        let slice = reader.read(wanted, 1, log.next_offset(), true).unwrap();
        let expected = ends.iter().find(|end| **end >= wanted);
        let bytes = slice.read().unwrap();
        let found = BatchIter::new(&bytes)
            .next()
            .map(|batch| batch.unwrap().header);
        assert_eq!(found.map(|header| header.last_offset()).as_ref(), expected);
    }
    assert!(!left.is_empty());
}

#[test]
fn a_tombstone_stays_for_its_retention_and_then_goes() {
    let mut rig = Rig::real(config());
    rig.append(keyed(&[("a", Some("1"), 0), ("b", Some("1"), 0)]).build());
    rig.append(keyed(&[("a", None, 0)]).build());
    seal(&mut rig.log, NOW).unwrap();
    let (end, _) = compact(&mut rig.log, Offset::ZERO, 1 << 16, NOW)
        .unwrap()
        .unwrap();
    let keys = |log: &Log| -> Vec<i64> { contents(log).into_keys().collect() };
    assert_eq!(keys(&rig.log), [1, 2], "the tombstone can be seen");
    let horizon = headers(&rig.log)[1];
    assert!(horizon.attributes.has_delete_horizon());
    assert_eq!(horizon.base_timestamp, later(HOUR_MS));

    rig.append(keyed(&[("c", Some("1"), 0)]).build());
    seal(&mut rig.log, NOW).unwrap();
    let (end, _) = compact(&mut rig.log, end, 1 << 16, later(HOUR_MS - 1))
        .unwrap()
        .unwrap();
    assert_eq!(keys(&rig.log), [1, 2, 3]);
    let horizon = headers(&rig.log)[1].base_timestamp;
    assert_eq!(horizon, later(HOUR_MS), "a horizon is set once");

    rig.append(keyed(&[("d", Some("1"), 0)]).build());
    seal(&mut rig.log, NOW).unwrap();
    compact(&mut rig.log, end, 1 << 16, later(HOUR_MS))
        .unwrap()
        .unwrap();
    assert_eq!(keys(&rig.log), [1, 3, 4]);
}

#[test]
fn aborted_records_go_at_once_and_overtake_nothing() {
    let mut rig = Rig::real(config());
    rig.append(keyed(&[("a", Some("old"), 0)]).build());
    rig.append(keyed_by(7, 0, &[("a", Some("aborted"))], true));
    rig.append(keyed_by(8, 0, &[("b", Some("committed"))], true));
    rig.append(marker(7, 0, false));
    rig.append(marker(8, 0, true));
    rig.append(keyed_by(7, 1, &[("c", Some("committed"))], true));
    rig.append(marker(7, 0, true));
    seal(&mut rig.log, NOW).unwrap();
    rig.append(keyed(&[("z", Some("1"), 0)]).build());
    let (end, _) = compact(&mut rig.log, Offset::ZERO, 1 << 16, NOW)
        .unwrap()
        .unwrap();
    let values = |log: &Log| -> Vec<String> {
        contents(log)
            .into_values()
            .filter_map(|seen| seen.value)
            .collect()
    };
    assert_eq!(values(&rig.log), ["old", "committed", "committed", "1"]);
    // The aborted transaction's marker stays for as long as a reader may have seen its records.
    let markers = |log: &Log| {
        headers(log)
            .iter()
            .filter(|header| header.is_control())
            .count()
    };
    assert_eq!(markers(&rig.log), 3);

    rig.append(keyed(&[("y", Some("1"), 0)]).build());
    seal(&mut rig.log, NOW).unwrap();
    let (end, _) = compact(&mut rig.log, end, 1 << 16, later(2 * HOUR_MS))
        .unwrap()
        .unwrap();
    rig.append(keyed(&[("x", Some("1"), 0)]).build());
    seal(&mut rig.log, NOW).unwrap();
    compact(&mut rig.log, end, 1 << 16, later(4 * HOUR_MS))
        .unwrap()
        .unwrap();
    assert_eq!(
        markers(&rig.log),
        2,
        "a marker goes once it decides nothing"
    );
    let aborted = rig
        .reader()
        .aborted_transactions(Offset::ZERO, rig.log.next_offset())
        .unwrap();
    assert_eq!(aborted, []);
}

#[test]
fn a_live_producer_is_known_after_its_last_batch_was_emptied() {
    let mut rig = Rig::real(config());
    rig.append(keyed_by(7, 0, &[("a", Some("1")), ("b", Some("1"))], false));
    rig.append(keyed(&[("a", Some("2"), 0), ("b", Some("2"), 0)]).build());
    seal(&mut rig.log, NOW).unwrap();
    compact(&mut rig.log, Offset::ZERO, 1 << 16, NOW)
        .unwrap()
        .unwrap();
    assert_eq!(contents(&rig.log).len(), 2);
    let empty = headers(&rig.log)[0];
    assert_eq!((empty.record_count, empty.last_offset().get()), (0, 1));
    let snapshot = rig.dir.join("00000000000000000004.snapshot");
    rig.disk.remove_file(&snapshot).unwrap();
    rig.reopen();
    let last = rig
        .reader()
        .with_producers(|producers| producers.get(ProducerId::new(7)).map(|p| p.last_sequence()));
    assert_eq!(last, Some(Sequence::new(1)));
}

#[test]
fn a_compacted_log_opens_after_its_policy_has_changed() {
    let mut rig = Rig::real(config());
    for round in 0..40 {
        rig.append(keyed(&[("a", Some(&format!("{round}")), 0)]).build());
    }
    seal(&mut rig.log, NOW).unwrap();
    compact(&mut rig.log, Offset::ZERO, 1 << 16, NOW)
        .unwrap()
        .unwrap();
    rig.append(keyed(&[("b", Some("1"), 0)]).build());
    let left = contents(&rig.log);
    assert_eq!(left.len(), 2);
    rig.config.compacted = false;
    rig.reopen();
    assert_eq!(contents(&rig.log), left);
    // Even when everything has to be read again.
    let epochs = rig.dir.join("leader-epoch-checkpoint");
    rig.disk.remove_file(&epochs).unwrap();
    rig.reopen();
    assert_eq!(contents(&rig.log), left);
}

#[test]
fn readers_of_the_old_segments_go_on_reading_them() {
    let mut rig = Rig::real(config());
    for round in 0..60 {
        rig.append(keyed(&[("a", Some(&format!("{round}")), 0)]).build());
    }
    seal(&mut rig.log, NOW).unwrap();
    let slice = rig
        .reader()
        .read(Offset::ZERO, usize::MAX, rig.log.next_offset(), true)
        .unwrap();
    let mut cursor = rig
        .reader()
        .headers_from(Offset::ZERO, rig.log.next_offset())
        .unwrap();
    let before = slice.read().unwrap();
    rig.log.release_idle_files();
    rig.log.release_idle_files();
    compact(&mut rig.log, Offset::ZERO, 1 << 16, NOW)
        .unwrap()
        .unwrap();
    rig.log.purge_deleted(later(1)).unwrap();
    assert_eq!(slice.read().unwrap(), before);
    assert_eq!(cursor.by_ref().map(Result::unwrap).count(), 60);
}

#[test]
fn a_run_that_is_ended_leaves_nothing_behind() {
    let mut rig = Rig::real(config());
    for round in 0..40 {
        rig.append(keyed(&[("a", Some(&format!("{round}")), 0)]).build());
    }
    seal(&mut rig.log, NOW).unwrap();
    let files = rig.files();
    let end = rig.log.next_offset();
    for stop_after in [0, 10, 45, 60] {
        let compaction = rig
            .log
            .begin_compaction(Offset::ZERO, end, &compaction(), NOW)
            .unwrap()
            .unwrap();
        let mut left = stop_after;
        let ended = compaction
            .run(1 << 16, &mut |_| {
                left -= 1;
                if left < 0 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
            .unwrap();
        assert!(ended.is_none());
        assert_eq!(rig.files(), files);
    }
}

#[test]
fn segments_that_were_dropped_meanwhile_do_not_come_back() {
    let mut rig = Rig::real(config());
    for round in 0..60 {
        rig.append(keyed(&[("a", Some(&format!("{round}")), 0)]).build());
    }
    seal(&mut rig.log, NOW).unwrap();
    let end = rig.log.next_offset();
    let compaction = rig
        .log
        .begin_compaction(Offset::ZERO, end, &compaction(), NOW)
        .unwrap()
        .unwrap();
    let compacted = compaction
        .run(1 << 16, &mut |_| ControlFlow::Continue(()))
        .unwrap()
        .unwrap();
    rig.log.set_log_start(end, NOW).unwrap();
    rig.log.finish_compaction(compacted, NOW).unwrap();
    assert_eq!(rig.reader().segment_bases(), [end]);
    rig.log.purge_deleted(later(1)).unwrap();
    assert!(!rig.files().iter().any(|name| name.ends_with(".cleaned")));
}

/// A log on a disk that stops: appended to, compacted, appended to and compacted again.
struct World {
    disk: SimDisk,
    log: Option<Log>,
    /// Every record that was ever acknowledged.
    all: BTreeMap<i64, Seen>,
}

impl World {
    fn new() -> Self {
        let disk = SimDisk::new();
        disk.create_dir_all(Path::new("data")).unwrap();
        disk.sync_dir(Path::new("")).unwrap();
        let mut world = Self {
            disk,
            log: None,
            all: BTreeMap::new(),
        };
        world.open().unwrap();
        world
    }

    fn open(&mut self) -> Result<(), StorageError> {
        self.log = None;
        let health = LogDirHealth::new("data");
        let (log, _) = Log::open(
            self.disk.shared(),
            &PathBuf::from("data/topic-0"),
            Arc::new(config()),
            OpenHint::none(health),
            NOW,
        )?;
        self.log = Some(log);
        Ok(())
    }

    fn append(&mut self, round: usize) -> Result<(), StorageError> {
        let log = self.log.as_mut().unwrap();
        let mut appended = Vec::new();
        for i in 0..24 {
            let (key, value) = (format!("key-{}", i % 5), format!("{round}-{i}"));
            let bytes = keyed(&[(&key, Some(&value), NOW.get())]).build();
            let base_offset = log.next_offset();
            let batch = [StampedBatch {
                base_offset,
                leader_epoch: odradek_protocol::ids::LeaderEpoch::new(0),
                bytes,
            }];
            if log.fitting(&batch, NOW)? == 0 {
                log.roll(NOW)?;
            }
            log.append(&batch)?;
            let seen = Seen {
                key,
                value: Some(value),
                timestamp: NOW.get(),
            };
            appended.push((base_offset.get(), seen));
        }
        seal(log, NOW)?;
        self.all.extend(appended);
        Ok(())
    }

    fn run(&mut self) -> Result<(), StorageError> {
        let mut clean_end = Offset::ZERO;
        for round in 0..2 {
            self.append(round)?;
            let log = self.log.as_mut().unwrap();
            if let Some((end, _)) = compact(log, clean_end, 1 << 16, NOW)? {
                clean_end = end;
            }
            log.purge_deleted(later(1))?;
        }
        Ok(())
    }

    fn check(&self, context: &str) {
        let log = self.log.as_ref().unwrap();
        let left = contents(log);
        for (key, offset) in newest(&self.all) {
            assert!(
                left.contains_key(&offset)
                    || left
                        .keys()
                        .any(|later| { *later > offset && left[later].key == key }),
                "{context}: {key} at {offset} is gone"
            );
        }
        for (offset, seen) in &left {
            if let Some(known) = self.all.get(offset) {
                assert_eq!(known, seen, "{context}");
            }
        }
        let dir = PathBuf::from("data/topic-0");
        let faults = verify::faults(self.disk.shared().as_ref(), &dir);
        assert_eq!(faults, Vec::<String>::new(), "{context}");
        let entries = self.disk.shared().list(&dir).unwrap();
        let leftover = entries
            .iter()
            .find(|entry| entry.name.ends_with(".cleaned") || entry.name.ends_with(".swap"));
        assert_eq!(leftover, None, "{context}");
    }
}

#[test]
fn a_crash_at_any_step_leaves_the_old_segments_or_the_new_ones() {
    let mut world = World::new();
    let first = world.disk.steps();
    world.run().unwrap();
    world.check("without a crash");
    let total = world.disk.steps() - first;
    for step in 1..=total {
        for round in 0..4 {
            let seed = step * 100 + round;
            let context = format!("stopped at step {step} of {total}, seed {seed}");
            let mut world = World::new();
            let first = world.disk.steps();
            world.disk.stop_at(first + step);
            assert!(world.run().is_err(), "{context}");
            world.disk.power_cut(seed);
            world
                .open()
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            world.check(&context);
            // Through a second cut right after the first opening, and on.
            world.disk.power_cut(seed);
            world
                .open()
                .unwrap_or_else(|error| panic!("{context}, again: {error}"));
            world.check(&context);
            world.append(9).unwrap();
            compact(world.log.as_mut().unwrap(), Offset::ZERO, 1 << 16, NOW).unwrap();
            world.check(&context);
        }
    }
}
