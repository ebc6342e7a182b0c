//! A log given to another replica: what arrives is of one moment and whole, and a crash at any step
//! leaves the one log or the other.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use odradek_protocol::ids::{
    LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs,
};
use odradek_protocol::records::{BatchBuilder, NewRecord};
use odradek_storage::disk::Disk as _;
use odradek_storage::{
    AbortedTxn, CompactionConfig, EpochEntry, Export, Log, LogConfig, LogDirHealth, OpenHint,
    Received, SimDisk, StampedBatch, StorageError, TransferError, TransferKind, finish_adoption,
};
use support::{NOW, marker};

const GIVER: &str = "giver";
const TAKER: &str = "taker";
/// A file of the layer above.
const BESIDE: &str = "journal";

fn config() -> Arc<LogConfig> {
    Arc::new(LogConfig {
        segment_bytes: 1200,
        index_interval_bytes: 200,
        file_delete_delay_ms: 0,
        ..LogConfig::default()
    })
}

fn disk() -> SimDisk {
    let disk = SimDisk::new();
    for dir in [GIVER, TAKER] {
        disk.create_dir_all(Path::new(dir)).unwrap();
    }
    disk.sync_dir(Path::new("")).unwrap();
    disk
}

fn open(disk: &SimDisk, dir: &str) -> Result<Log, StorageError> {
    let path = Path::new(dir);
    finish_adoption(disk, path)?;
    let hint = OpenHint::none(LogDirHealth::new(dir));
    Ok(Log::open(disk.shared(), path, config(), hint, NOW)?.0)
}

fn keyed(key: &str, value: Option<&str>) -> BatchBuilder {
    let mut builder = BatchBuilder::new();
    builder.push(NewRecord {
        timestamp: NOW,
        key: Some(key.as_bytes()),
        value: value.map(str::as_bytes),
        ..NewRecord::default()
    });
    builder
}

fn append(log: &mut Log, epoch: i32, bytes: Bytes) {
    let stamped = StampedBatch {
        base_offset: log.next_offset(),
        leader_epoch: LeaderEpoch::new(epoch),
        bytes,
    };
    if log.fitting(std::slice::from_ref(&stamped), NOW).unwrap() == 0 {
        log.roll(NOW).unwrap();
    }
    log.append(&[stamped]).unwrap();
}

fn sync(log: &mut Log) {
    if let Some((checkpoint, target)) = log.begin_checkpoint() {
        target.sync().unwrap();
        log.finish_checkpoint(checkpoint).unwrap();
    }
}

fn compact(log: &mut Log, now: TimestampMs) {
    let config = CompactionConfig {
        min_dirty_ratio: 0.0,
        delete_retention_ms: 1000,
        ..CompactionConfig::default()
    };
    let end = log.next_offset();
    let begun = log.begin_compaction(log.clean_end(), end, &config, now);
    let Some(compaction) = begun.unwrap() else {
        return;
    };
    let compacted = compaction
        .run(1 << 16, &mut |_| ControlFlow::Continue(()))
        .unwrap()
        .unwrap();
    log.finish_compaction(compacted, now).unwrap();
}

fn transactional(id: i64, sequence: i32, key: &str) -> Bytes {
    keyed(key, Some("in a transaction"))
        .producer(
            ProducerId::new(id),
            ProducerEpoch::new(0),
            Sequence::new(sequence),
        )
        .transactional()
        .build()
}

/// A log of two epochs, half compacted, with producers and an aborted transaction in the other half.
fn given(disk: &SimDisk) -> Log {
    let mut log = open(disk, GIVER).unwrap();
    for i in 0..40 {
        append(
            &mut log,
            1,
            keyed(&format!("key-{}", i % 7), Some(&format!("{i}"))).build(),
        );
    }
    append(&mut log, 2, keyed("key-3", None).build());
    log.roll(NOW).unwrap();
    sync(&mut log);
    compact(&mut log, NOW);
    for i in 0..20 {
        append(
            &mut log,
            3,
            keyed(&format!("key-{}", i % 5), Some(&format!("new {i}"))).build(),
        );
    }
    append(&mut log, 3, transactional(9, 0, "aborted"));
    append(&mut log, 3, marker(9, 0, false));
    append(&mut log, 4, transactional(10, 0, "committed"));
    append(&mut log, 4, marker(10, 0, true));
    log.roll(NOW).unwrap();
    sync(&mut log);
    log
}

/// What is there of the taker before.
fn taker(disk: &SimDisk) -> Log {
    let mut log = open(disk, TAKER).unwrap();
    for i in 0..25 {
        append(&mut log, 1, keyed(&format!("old-{i}"), Some("old")).build());
    }
    sync(&mut log);
    disk.replace_file(&Path::new(TAKER).join(BESIDE), b"old")
        .unwrap();
    log
}

fn receive(log: &Log, export: &Export, piece_bytes: u32) -> Result<Received, TransferError> {
    let bounds = (export.log_start(), export.end());
    let mut incoming = log.begin_incoming(bounds, export.files())?;
    while let Some(piece) = incoming.wanted(piece_bytes)? {
        incoming.take(&export.read(piece).unwrap().unwrap())?;
    }
    incoming.finish()
}

/// All that a reader can tell of a log.
#[derive(Debug, PartialEq)]
struct Facts {
    start: Offset,
    end: Offset,
    bytes: Bytes,
    epochs: Vec<EpochEntry>,
    aborted: Vec<AbortedTxn>,
    producers: Vec<(i64, i64)>,
}

fn facts(log: &Log, end: Offset) -> Facts {
    let reader = log.reader();
    let slice = reader
        .read(reader.log_start(), usize::MAX, end, true)
        .unwrap();
    let mut producers = reader.with_producers(|producers| {
        let all = producers.iter();
        all.map(|(id, entry)| (id.get(), entry.last_offset().get()))
            .collect::<Vec<_>>()
    });
    producers.sort_unstable();
    Facts {
        start: reader.log_start(),
        end: reader.log_end(),
        bytes: slice.read().unwrap(),
        epochs: reader.epochs(),
        aborted: reader
            .aborted_transactions(reader.log_start(), end)
            .unwrap(),
        producers,
    }
}

fn adopt(log: &mut Log, received: Received) -> Result<(), StorageError> {
    log.adopt(received, received.log_start, &[(BESIDE, b"new")], NOW)
}

#[test]
fn a_log_that_was_received_in_pieces_of_any_size_is_the_same_and_goes_on() {
    for piece_bytes in [1, 7, 61, 500, 1 << 20] {
        let disk = disk();
        let from = given(&disk);
        let end = from.next_offset();
        let export = from.export(end).unwrap().unwrap();
        let expected = facts(&from, end);
        assert_eq!(expected.aborted.len(), 1);
        assert_eq!(expected.producers.len(), 2);
        let mut to = taker(&disk);
        let reader = to.reader();
        let before = facts(&to, to.next_offset());
        let received = receive(&to, &export, piece_bytes).unwrap();
        assert_eq!(
            facts(&to, to.next_offset()),
            before,
            "it does not count yet"
        );
        adopt(&mut to, received).unwrap();
        assert_eq!(facts(&to, end), expected);
        assert_eq!(reader.log_end(), end, "for readers of before too");
        assert_eq!(to.clean_end(), Offset::ZERO);
        let beside = disk.read_file(&Path::new(TAKER).join(BESIDE), 100).unwrap();
        assert_eq!(beside, b"new");
        append(&mut to, 5, keyed("more", Some("more")).build());
        sync(&mut to);
        drop(to);
        // A restart after a crash finds all of it, and may compact it.
        disk.power_cut(piece_bytes.into());
        let mut to = open(&disk, TAKER).unwrap();
        assert_eq!(facts(&to, end).bytes, expected.bytes);
        assert_eq!(to.next_offset(), end.plus(1));
        to.roll(NOW).unwrap();
        sync(&mut to);
        compact(&mut to, NOW);
        assert_eq!(to.clean_end(), end.plus(1));
    }
}

#[test]
fn where_no_segment_begins_nothing_is_given() {
    let disk = disk();
    let from = given(&disk);
    let inside = from.reader().segment_bases()[1].plus(1);
    assert!(from.export(inside).unwrap().is_none());
}

/// An old value is copied, then the tombstone behind it expires and goes: it must arrive all the same.
#[test]
fn what_is_given_is_of_one_moment_whatever_becomes_of_the_log() {
    let disk = disk();
    let mut from = given(&disk);
    let end = from.next_offset();
    let expected = facts(&from, end);
    let export = from.export(end).unwrap().unwrap();
    let to = taker(&disk);
    let bounds = (export.log_start(), export.end());
    let mut incoming = to.begin_incoming(bounds, export.files()).unwrap();
    let mut pieces = 0;
    while let Some(piece) = incoming.wanted(300).unwrap() {
        incoming
            .take(&export.read(piece).unwrap().unwrap())
            .unwrap();
        pieces += 1;
        if pieces == 3 {
            from.release_idle_files();
            from.release_idle_files();
            compact(&mut from, TimestampMs::new(NOW.get() + 10));
            compact(&mut from, TimestampMs::new(NOW.get() + 5_000));
            from.purge_deleted(TimestampMs::new(NOW.get() + 9_000))
                .unwrap();
        }
        if pieces == 6 {
            from.set_log_start(end, NOW).unwrap();
            from.purge_deleted(TimestampMs::new(NOW.get() + 9_000))
                .unwrap();
        }
    }
    assert!(pieces > 10);
    let received = incoming.finish().unwrap();
    let mut to = to;
    adopt(&mut to, received).unwrap();
    assert_eq!(facts(&to, end), expected);
}

#[test]
fn what_is_no_log_is_refused_and_leaves_no_trace() {
    let disk = disk();
    let from = given(&disk);
    let end = from.next_offset();
    let export = from.export(end).unwrap().unwrap();
    let to = taker(&disk);
    let before = facts(&to, to.next_offset());
    let bounds = (export.log_start(), export.end());
    // Files that cannot be.
    let mut swapped = export.files();
    swapped.reverse();
    assert!(to.begin_incoming(bounds, swapped).is_err());
    assert!(
        to.begin_incoming((Offset::new(-1), end), export.files())
            .is_err()
    );
    assert!(to.begin_incoming(bounds, Vec::new()).is_err());
    let mut huge = export.files();
    huge[0].len = 1 << 40;
    assert!(to.begin_incoming(bounds, huge).is_err());
    // Any byte of a segment that is another.
    for (index, file) in export.files().iter().enumerate() {
        if !matches!(file.kind, TransferKind::Segment { .. }) || file.len == 0 {
            continue;
        }
        for at in [0, 8, 16, 20, 40, 62, file.len - 1] {
            let mut incoming = to.begin_incoming(bounds, export.files()).unwrap();
            let outcome = loop {
                let Some(piece) = incoming.wanted(1 << 20).unwrap() else {
                    break Ok(());
                };
                let mut bytes = export.read(piece).unwrap().unwrap().to_vec();
                if piece.file as usize == index {
                    bytes[at as usize] ^= 0x80;
                }
                if let Err(error) = incoming.take(&bytes.into()) {
                    break Err(error);
                }
            };
            assert!(outcome.is_err(), "byte {at} of file {index}");
        }
    }
    // One that is not whole.
    let mut incoming = to.begin_incoming(bounds, export.files()).unwrap();
    let piece = incoming.wanted(1 << 20).unwrap().unwrap();
    incoming
        .take(&export.read(piece).unwrap().unwrap())
        .unwrap();
    assert!(incoming.finish().is_err());
    to.discard_incoming().unwrap();
    drop(to);
    let to = open(&disk, TAKER).unwrap();
    assert_eq!(facts(&to, to.next_offset()), before);
    let left = disk.list(Path::new(TAKER)).unwrap();
    assert!(!left.iter().any(|entry| entry.name.ends_with(".incoming")));
}

#[test]
fn nothing_is_received_into_what_a_disk_keeps_in_reserve() {
    let disk = disk();
    let from = given(&disk);
    let export = from.export(from.next_offset()).unwrap().unwrap();
    let bounds = (export.log_start(), export.end());
    drop(taker(&disk));
    let health = LogDirHealth::new(TAKER);
    let hint = OpenHint::none(health.clone());
    let to = Log::open(disk.shared(), Path::new(TAKER), config(), hint, NOW);
    let (to, _) = to.unwrap();
    let no_room = |error: &TransferError| matches!(error, TransferError::NoRoom { .. });
    health.set_spare_bytes(100);
    let refused = to.begin_incoming(bounds, export.files()).err().unwrap();
    assert!(no_room(&refused), "{refused}");
    health.set_spare_bytes(1 << 20);
    let mut incoming = to.begin_incoming(bounds, export.files()).unwrap();
    let piece = incoming.wanted(1000).unwrap().unwrap();
    health.set_spare_bytes(0);
    let refused = incoming
        .take(&export.read(piece).unwrap().unwrap())
        .unwrap_err();
    assert!(no_room(&refused), "{refused}");
    assert!(!health.is_offline());
}

#[test]
fn a_crash_at_any_step_leaves_the_one_log_or_the_other() {
    // The disk of the giver is another.
    let givers = disk();
    let from = given(&givers);
    let end = from.next_offset();
    let export = from.export(end).unwrap().unwrap();
    let new = facts(&from, end);
    let takers = disk();
    let mut to = taker(&takers);
    let old = facts(&to, to.next_offset());
    let first = takers.steps();
    let received = receive(&to, &export, 400).unwrap();
    adopt(&mut to, received).unwrap();
    let steps = takers.steps() - first;
    assert!(steps > 60, "{steps} steps");
    let mut adopted = 0;
    for step in 1..=steps {
        for fails in [false, true] {
            let disk = disk();
            let mut to = taker(&disk);
            let at = disk.steps() + step;
            match fails {
                true => disk.fail_at(at, std::io::ErrorKind::Other),
                false => disk.stop_at(at),
            }
            let done = receive(&to, &export, 400).is_ok_and(|it| adopt(&mut to, it).is_ok());
            assert!(!done, "step {step}");
            drop(to);
            disk.power_cut(step);
            // And again in the middle of what the opening does.
            disk.stop_at(disk.steps() + 1 + step % 9);
            drop(open(&disk, TAKER));
            disk.power_cut(step + 1);
            let to = open(&disk, TAKER).unwrap();
            let found = facts(&to, to.next_offset());
            let beside = disk.read_file(&Path::new(TAKER).join(BESIDE), 100).unwrap();
            match found.bytes == new.bytes {
                true => {
                    assert_eq!(beside, b"new", "step {step}");
                    assert_eq!(found, new, "step {step}");
                    adopted += 1;
                }
                false => {
                    assert_eq!(beside, b"old", "step {step}");
                    assert_eq!(found, old, "step {step}");
                }
            }
            let left = disk.list(Path::new(TAKER)).unwrap();
            assert!(
                !left.iter().any(|entry| entry.name.contains("incoming")),
                "step {step}"
            );
        }
    }
    assert!(adopted > 10, "{adopted} had been adopted");
}
