//! What a crash leaves of a log: the disk stops after every single step of a scripted workload,
//! loses or tears what was not synced, and the log is opened again.
//!
//! Whatever the step and the seed: opening works, every batch that was flushed is there, at its
//! offset and byte for byte; nothing is there that was never appended; indexes, epochs, producers
//! and aborted transactions are those of the batches.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use odradek_protocol::batch::{BatchIter, patch_offsets};
use odradek_protocol::ids::{LeaderEpoch, Offset, TimestampMs};
use odradek_storage::disk::Disk as _;
use odradek_storage::flush::Flusher;
use odradek_storage::producer_state::{EndTxnMarker, ProducerStates};
use odradek_storage::{
    AbortedTxn, Log, LogConfig, LogDirHealth, OpenHint, SimDisk, StampedBatch, StorageError,
};
use support::{NOW, batch, marker, producer_batch, verify};

/// Seeds of the power cut that are tried for every step.
const SEEDS_PER_STEP: u64 = 6;

fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 1200,
        index_interval_bytes: 150,
        file_delete_delay_ms: 10,
        retention_ms: None,
        retention_bytes: Some(4000),
        ..LogConfig::default()
    }
}

fn dir() -> PathBuf {
    PathBuf::from("data/topic-0")
}

/// A log on a simulated disk, and what the outside has been told of it.
struct World {
    disk: SimDisk,
    health: Arc<LogDirHealth>,
    log: Option<Log>,
    /// Every batch that was ever handed to the log at an offset, oldest attempt first.
    attempts: HashMap<Offset, Vec<Bytes>>,
    /// The batches that were flushed, by base offset.
    acknowledged: HashMap<Offset, Bytes>,
    acknowledged_end: Offset,
    /// The log start, as the layer above has written it down.
    log_start: Offset,
    epoch: i32,
    now: TimestampMs,
}

impl World {
    fn new() -> Self {
        let disk = SimDisk::new();
        // The log directory itself is the broker's to make.
        disk.create_dir_all(Path::new("data")).unwrap();
        disk.sync_dir(Path::new("")).unwrap();
        Self {
            disk,
            health: LogDirHealth::new("data"),
            log: None,
            attempts: HashMap::new(),
            acknowledged: HashMap::new(),
            acknowledged_end: Offset::ZERO,
            log_start: Offset::ZERO,
            epoch: 0,
            now: NOW,
        }
    }

    fn open(&mut self, clean_shutdown: bool) -> Result<(), StorageError> {
        self.log = None;
        let (log, _) = Log::open(
            self.disk.shared(),
            &dir(),
            Arc::new(config()),
            OpenHint {
                clean_shutdown,
                log_start: Some(self.log_start),
                ..OpenHint::none(self.health.clone())
            },
            self.now,
        )?;
        self.log = Some(log);
        Ok(())
    }

    fn log(&mut self) -> &mut Log {
        self.log.as_mut().unwrap()
    }

    fn append(&mut self, bytes: Bytes) -> Result<(), StorageError> {
        let (epoch, now) = (LeaderEpoch::new(self.epoch), self.now);
        let base_offset = self.log().next_offset();
        let mut stored = bytes.to_vec();
        patch_offsets(&mut stored, base_offset, epoch);
        let stamped = [StampedBatch {
            base_offset,
            leader_epoch: epoch,
            bytes,
        }];
        if self.log().fitting(&stamped, now)? == 0 {
            self.log().roll(now)?;
        }
        self.attempts
            .entry(base_offset)
            .or_default()
            .push(stored.into());
        self.log().append(&stamped)?;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StorageError> {
        let end = self.log().next_offset();
        let target = self.log().flush_target();
        let flusher = Flusher::inline(self.health.clone());
        let (sender, receiver) = std::sync::mpsc::channel();
        flusher.submit(target, Box::new(move |result| sender.send(result).unwrap()));
        receiver
            .recv()
            .unwrap()
            .map_err(|error| StorageError::UnusableBatch(error.to_string()))?;
        let reader = self.log().reader();
        let from = self.acknowledged_end.max(reader.log_start());
        let flushed = reader.read(from, usize::MAX, end, true)?.read().unwrap();
        for found in BatchIter::new(&flushed) {
            let found = found.unwrap();
            let stored = Bytes::copy_from_slice(found.bytes);
            self.acknowledged.insert(found.header.base_offset, stored);
        }
        self.acknowledged_end = end;
        Ok(())
    }

    fn truncate_to(&mut self, offset: i64) -> Result<(), StorageError> {
        let (offset, now) = (Offset::new(offset), self.now);
        self.acknowledged
            .retain(|_, bytes| header(bytes).next_offset() <= offset);
        let kept = self.acknowledged.values();
        let end = kept.map(|bytes| header(bytes).next_offset()).max();
        self.acknowledged_end = end.unwrap_or(Offset::ZERO);
        self.log().truncate_to(offset, now)?;
        Ok(())
    }

    fn set_log_start(&mut self, offset: Offset) -> Result<(), StorageError> {
        let now = self.now;
        self.log_start = offset;
        if self.log().needs_roll_for_start(offset) {
            self.log().roll(now)?;
        }
        self.log().set_log_start(offset, now)?;
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), StorageError> {
        let Some((checkpoint, target)) = self.log().begin_checkpoint() else {
            return Ok(());
        };
        target
            .sync()
            .map_err(|error| StorageError::UnusableBatch(error.to_string()))?;
        self.log().finish_checkpoint(checkpoint)
    }

    /// The workload: every operation that changes the disk, in an order that lets each meet what
    /// the others leave.
    fn run(&mut self) -> Result<(), StorageError> {
        self.open(false)?;
        for i in 0..6 {
            self.append(batch(2, 80, 100 + i))?;
        }
        self.flush()?;
        self.append(producer_batch(7, 0, 0, 3, true))?;
        self.append(batch(1, 500, 90))?;
        self.flush()?;
        self.epoch = 2;
        self.append(producer_batch(8, 0, 0, 1, true))?;
        self.append(marker(7, 0, false))?;
        self.flush()?;
        self.checkpoint()?;
        // Each of their entries in the transaction index is a write of its own, after a checkpoint.
        for producer in [0, 10, 11] {
            self.append(producer_batch(producer, 0, 0, 1, true))?;
            self.append(marker(producer, 0, false))?;
        }
        self.flush()?;
        for i in 0..8 {
            self.append(batch(3, 100, 200 - i))?;
        }
        self.flush()?;
        self.append(batch(1, 700, 300))?;
        self.append(batch(1, 700, 301))?;
        // A new leader takes back what was not committed, over a segment's border.
        let cut = self.log().next_offset().get() - 4;
        self.truncate_to(cut)?;
        self.epoch = 3;
        self.append(batch(1, 300, 400))?;
        self.append(marker(8, 0, false))?;
        self.flush()?;
        self.set_log_start(Offset::new(9))?;
        self.append(producer_batch(7, 0, 3, 2, false))?;
        self.flush()?;
        self.now = TimestampMs::new(NOW.get() + 20);
        let now = self.now;
        self.log().purge_deleted(now)?;
        for i in 0..12 {
            self.append(batch(2, 120, 500 + i))?;
            if i % 3 == 2 {
                self.flush()?;
            }
        }
        self.checkpoint()?;
        let high_watermark = self.acknowledged_end;
        if let Some(point) = self.log().retention_point(now, high_watermark)? {
            self.set_log_start(point)?;
        }
        self.append(batch(1, 10, 600))?;
        self.flush()?;
        self.log().close()?;
        self.open(true)?;
        self.append(batch(4, 10, 601))?;
        self.flush()?;
        let end = self.log().next_offset();
        self.set_log_start(end)?;
        self.append(batch(2, 10, 602))?;
        self.flush()?;
        self.now = TimestampMs::new(NOW.get() + 40);
        let now = self.now;
        self.log().purge_deleted(now)?;
        self.log().close()
    }

    /// The batches of the log, checked against what was handed to it.
    fn check_batches(&mut self, context: &str) -> Vec<Bytes> {
        let log_start = self.log_start;
        let log = self.log.as_ref().unwrap();
        assert!(
            log.next_offset() >= self.acknowledged_end,
            "{context}: log ends at {}, acknowledged up to {}",
            log.next_offset(),
            self.acknowledged_end
        );
        let first = log.reader().segment_bases()[0].max(Offset::ZERO);
        let from = log.log_start().max(log_start);
        let slice = log
            .reader()
            .read(from, usize::MAX, log.next_offset(), true)
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        let bytes = slice.read().unwrap();
        let mut batches = Vec::new();
        let mut expected = slice.base_offset;
        for found in BatchIter::new(&bytes) {
            let found = found.unwrap();
            let offset = found.header.base_offset;
            assert_eq!(offset, expected, "{context}: offsets follow each other");
            expected = found.header.next_offset();
            let stored = Bytes::copy_from_slice(found.bytes);
            assert!(
                self.attempts
                    .get(&offset)
                    .is_some_and(|attempts| attempts.contains(&stored)),
                "{context}: the batch at {offset} was never appended"
            );
            batches.push(stored);
        }
        assert_eq!(expected, log.next_offset(), "{context}");
        for (offset, stored) in &self.acknowledged {
            if *offset >= slice.base_offset && *offset >= first {
                assert!(
                    batches.contains(stored),
                    "{context}: the acknowledged batch at {offset} is not there"
                );
            }
        }
        batches
    }

    fn check(&mut self, context: &str) {
        let batches = self.check_batches(context);
        let faults = verify::faults(self.disk.shared().as_ref(), &dir());
        assert_eq!(faults, Vec::<String>::new(), "{context}");
        self.check_derived(context, &batches);
    }

    /// Epochs, producers and aborted transactions against those of the batches.
    fn check_derived(&mut self, context: &str, batches: &[Bytes]) {
        let reader = self.log().reader();
        let mut epochs: Vec<(i32, i64)> = Vec::new();
        let mut aborted: Vec<AbortedTxn> = Vec::new();
        // The producers' state reaches back before the log start; whatever was deleted was
        // appended only once.
        let mut states = ProducerStates::default();
        let first = batches
            .first()
            .map(|bytes| header(bytes).base_offset)
            .unwrap_or(self.log_start);
        let mut deleted: Vec<&Bytes> = self
            .attempts
            .iter()
            .filter(|(offset, _)| **offset < first)
            .filter_map(|(_, attempts)| attempts.last())
            .collect();
        deleted.sort_by_key(|bytes| header(bytes).base_offset);
        for bytes in deleted.into_iter().chain(batches) {
            let header = header(bytes);
            let marker = EndTxnMarker::parse(&header, bytes).filter(|_| header.is_control());
            if let Some(txn) = states.update(&header, marker)
                && txn.aborted
            {
                aborted.push(txn.into());
            }
        }
        for bytes in batches {
            let header = header(bytes);
            let epoch = header.partition_leader_epoch.get();
            if epochs.last().is_none_or(|(last, _)| *last != epoch) {
                let start = header.base_offset.max(self.log_start);
                epochs.push((epoch, start.get()));
            }
        }
        let found: Vec<_> = reader
            .epochs()
            .iter()
            // An epoch of which no record is left may be remembered or not.
            .filter(|entry| entry.start_offset < reader.log_end())
            .map(|entry| (entry.epoch.get(), entry.start_offset.get()))
            .collect();
        assert_eq!(found, epochs, "{context}: epochs");
        let first_segment = reader.segment_bases()[0];
        reader.with_producers(|found| {
            assert_eq!(
                found.first_undecided_offset(),
                states.first_undecided_offset(),
                "{context}: open transaction"
            );
            for (id, entry) in states
                .iter()
                .filter(|(_, entry)| entry.last_offset() >= first_segment)
            {
                let found = found
                    .get(id)
                    .unwrap_or_else(|| panic!("{context}: producer {id} is forgotten"));
                assert_eq!(found.last_sequence(), entry.last_sequence(), "{context}");
                assert_eq!(found.last_offset(), entry.last_offset(), "{context}");
            }
        });
        let expected: Vec<_> = aborted
            .into_iter()
            .filter(|txn| txn.last_offset >= first_segment)
            .collect();
        let found = reader
            .aborted_transactions(first_segment, Offset::new(i64::MAX))
            .unwrap();
        assert_eq!(found, expected, "{context}: aborted transactions");
    }
}

fn header(bytes: &[u8]) -> odradek_protocol::batch::BatchHeader {
    odradek_protocol::batch::BatchHeader::parse(bytes).unwrap()
}

/// Steps that the whole workload takes.
fn total_steps() -> u64 {
    let mut world = World::new();
    let first = world.disk.steps();
    world.run().unwrap();
    world.check("without a crash");
    world.disk.steps() - first
}

fn wanted_seed() -> Option<u64> {
    std::env::var("ODRADEK_SEED").ok()?.parse().ok()
}

#[test]
fn nothing_acknowledged_is_lost_wherever_the_power_is_cut() {
    let total = total_steps();
    assert!(total > 150, "the workload is worth cutting: {total} steps");
    for step in 1..=total {
        for round in 0..SEEDS_PER_STEP {
            let seed = wanted_seed().unwrap_or(step * 1000 + round);
            let context = format!("stopped at step {step} of {total}, ODRADEK_SEED={seed}");
            let mut world = World::new();
            let first = world.disk.steps();
            world.disk.stop_at(first + step);
            assert!(world.run().is_err(), "{context}");
            world.disk.power_cut(seed);
            world.health = LogDirHealth::new("data");
            world
                .open(false)
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            world.check(&context);
            // Life goes on, through a second cut right away.
            world.epoch = 9;
            world.append(batch(2, 30, 700)).unwrap();
            world.flush().unwrap();
            world.disk.power_cut(seed);
            world.open(false).unwrap();
            world.check(&context);
            world.log().close().unwrap();
            world.open(true).unwrap();
            world.check(&context);
        }
    }
}

#[test]
fn a_crash_of_the_process_alone_loses_nothing_that_was_written() {
    let total = total_steps();
    for step in 1..=total {
        let context = format!("failed at step {step} of {total}");
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::Other] {
            let mut world = World::new();
            let first = world.disk.steps();
            world.disk.fail_at(first + step, kind);
            if world.run().is_ok() {
                // A best-effort step, or one of the last.
                continue;
            }
            let written = world.attempts.len();
            if world.health.is_offline() && world.log.is_some() {
                let refused = world.append(batch(1, 1, 1));
                assert!(
                    matches!(refused, Err(StorageError::Offline { .. })),
                    "{context}: {refused:?}"
                );
                let faults = verify::faults(world.disk.shared().as_ref(), &dir());
                assert_eq!(faults, Vec::<String>::new(), "{context}: before recovery");
            }
            assert!(world.attempts.len() <= written + 1);
            world.health = LogDirHealth::new("data");
            world
                .open(false)
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            world.check(&context);
        }
    }
}
