//! Moving a log to another log directory: what the copy is, what makes it void, and what a crash leaves.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use odradek_protocol::ids::{LeaderEpoch, Offset};
use odradek_storage::disk::Disk;
use odradek_storage::{
    Log, LogConfig, LogDirHealth, OpenHint, SimDisk, StampedBatch, StorageError, finish_relocation,
    was_moved,
};
use support::{NOW, batch, marker, producer_batch, verify};

/// Seeds of the power cut that are tried for every step.
const SEEDS_PER_STEP: u64 = 4;

fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 1200,
        index_interval_bytes: 150,
        file_delete_delay_ms: 10,
        ..LogConfig::default()
    }
}

fn old() -> PathBuf {
    PathBuf::from("a/topic-0")
}

fn future() -> PathBuf {
    PathBuf::from("b/topic-0.1f-future")
}

fn new() -> PathBuf {
    PathBuf::from("b/topic-0")
}

fn fresh_disk() -> SimDisk {
    let disk = SimDisk::new();
    for dir in ["a", "b"] {
        disk.create_dir_all(Path::new(dir)).unwrap();
    }
    disk.sync_dir(Path::new("")).unwrap();
    disk
}

fn open(disk: &SimDisk, dir: &Path, log_start: Offset) -> Result<Log, StorageError> {
    let hint = OpenHint {
        log_start: Some(log_start),
        ..OpenHint::none(LogDirHealth::new(dir.parent().unwrap()))
    };
    Log::open(disk.shared(), dir, Arc::new(config()), hint, NOW).map(|(log, _)| log)
}

fn append(log: &mut Log, bytes: Bytes) -> Result<(), StorageError> {
    let stamped = [StampedBatch {
        base_offset: log.next_offset(),
        leader_epoch: LeaderEpoch::new(1),
        bytes,
    }];
    if log.fitting(&stamped, NOW)? == 0 {
        log.roll(NOW)?;
    }
    log.append(&stamped).map(drop)
}

fn flush(log: &Log) -> Result<(), StorageError> {
    let synced = log.flush_target().sync();
    synced.map_err(|error| StorageError::UnusableBatch(error.to_string()))
}

/// All readable records.
fn content(log: &Log) -> Vec<u8> {
    content_from(log, log.log_start())
}

fn content_from(log: &Log, from: Offset) -> Vec<u8> {
    let read = log.reader().read(from, usize::MAX, log.next_offset(), true);
    read.unwrap().read().unwrap().to_vec()
}

/// What the outside knows of a move.
#[derive(Default)]
struct Told {
    /// What was flushed, from the log start.
    acknowledged: Vec<u8>,
    log_start: Offset,
    /// The move has been reported as done.
    moved: bool,
}

/// A move with everything that may happen to a log meanwhile.
fn run(disk: &SimDisk, told: &mut Told) -> Result<(), StorageError> {
    let mut log = open(disk, &old(), Offset::ZERO)?;
    let flushed = |log: &Log, told: &mut Told| {
        flush(log)?;
        told.acknowledged = content(log);
        Ok::<_, StorageError>(())
    };
    for i in 0..10 {
        append(&mut log, batch(2, 200, 100 + i))?;
    }
    append(&mut log, producer_batch(7, 0, 0, 3, true))?;
    append(&mut log, marker(7, 0, false))?;
    flushed(&log, told)?;
    let mut relocation = log.begin_relocation(&future())?;
    relocation.copy_some(1000)?;
    for i in 0..6 {
        append(&mut log, batch(2, 200, 200 + i))?;
    }
    flushed(&log, told)?;
    while relocation.copy_some(2000)? > 0 {}
    relocation.sync()?;
    // Retention takes what has been copied.
    told.log_start = Offset::new(8);
    told.acknowledged = content_from(&log, told.log_start);
    log.set_log_start(told.log_start, NOW)?;
    append(&mut log, producer_batch(8, 0, 0, 2, false))?;
    flushed(&log, told)?;
    log.close()?;
    assert!(!relocation.is_void(&log));
    relocation.finish()?;
    relocation.take_place(&new())?;
    let retired = finish_relocation(disk, &new(), Some(&old()), NOW)?;
    told.moved = true;
    disk.remove_dir_all(&retired.unwrap())
        .map_err(|error| StorageError::UnusableBatch(error.to_string()))
}

fn exists(disk: &SimDisk, dir: &Path) -> bool {
    disk.list(dir.parent().unwrap())
        .unwrap()
        .iter()
        .any(|entry| Some(entry.name.as_str()) == dir.file_name().and_then(|name| name.to_str()))
}

/// What a start does: which of the directories is the log.
fn settle(disk: &SimDisk, context: &str) -> PathBuf {
    let (is_old, is_new) = (exists(disk, &old()), exists(disk, &new()));
    let is_moved = is_new && was_moved(disk, &new()).unwrap();
    assert!(!(is_old && is_new && !is_moved), "{context}: both count");
    if is_moved {
        let old = old();
        finish_relocation(disk, &new(), is_old.then_some(&*old), NOW).unwrap();
        assert!(!exists(disk, &old), "{context}");
    }
    match is_new {
        true => new(),
        false => old(),
    }
}

#[test]
fn a_move_takes_everything_along() {
    let (disk, mut told) = (fresh_disk(), Told::default());
    run(&disk, &mut told).unwrap();
    assert!(exists(&disk, &new()) && !exists(&disk, &old()) && !exists(&disk, &future()));
    let log = open(&disk, &new(), told.log_start).unwrap();
    assert_eq!(content(&log), told.acknowledged);
    assert_eq!(verify::faults(&disk, &new()), Vec::<String>::new());
    assert!(!was_moved(&disk, &new()).unwrap());
}

#[test]
fn a_crash_at_any_step_leaves_one_whole_log() {
    let (disk, mut told) = (fresh_disk(), Told::default());
    run(&disk, &mut told).unwrap();
    let steps = disk.steps();
    let (mut stayed, mut moved) = (0, 0);
    for step in 1..=steps {
        for seed in 0..SEEDS_PER_STEP {
            let context = format!("step {step}, seed {seed}");
            let (disk, mut told) = (fresh_disk(), Told::default());
            disk.stop_at(step);
            let ended = run(&disk, &mut told);
            assert!(ended.is_err() || !disk.is_stopped(), "{context}");
            disk.power_cut(seed);
            let dir = settle(&disk, &context);
            assert!(!told.moved || dir == new(), "{context}: a move is undone");
            match dir == new() {
                true => moved += 1,
                false => stayed += 1,
            }
            let log = open(&disk, &dir, told.log_start)
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            let found = content(&log);
            assert!(
                found.starts_with(&told.acknowledged),
                "{context}: records are lost"
            );
            let faults = verify::faults(&disk, &dir);
            assert_eq!(faults, Vec::<String>::new(), "{context}");
        }
    }
    assert!(stayed > 0 && moved > 0, "{stayed} stayed, {moved} moved");
}

#[test]
fn a_copy_that_lags_says_how_far_it_has_come() {
    let disk = fresh_disk();
    let mut log = open(&disk, &old(), Offset::ZERO).unwrap();
    for i in 0..20 {
        append(&mut log, batch(1, 400, i)).unwrap();
    }
    let mut relocation = log.begin_relocation(&future()).unwrap();
    assert_eq!(relocation.copied_end(), Offset::ZERO);
    assert_eq!(relocation.copied_bytes(), 0);
    relocation.copy_some(1500).unwrap();
    let end = relocation.copied_end();
    assert!(end > Offset::ZERO && end < log.next_offset(), "{end}");
    while relocation.copy_some(1500).unwrap() > 0 {}
    assert_eq!(relocation.copied_end(), log.next_offset());
    assert_eq!(relocation.copied_bytes(), log.size_bytes());
    append(&mut log, batch(1, 400, 99)).unwrap();
    assert!(relocation.copied_end() < log.next_offset());
    relocation.discard().unwrap();
    assert!(!exists(&disk, &future()) && exists(&disk, &old()));
}

#[test]
fn a_log_that_was_cut_meanwhile_makes_the_copy_void() {
    let disk = fresh_disk();
    let mut log = open(&disk, &old(), Offset::ZERO).unwrap();
    for i in 0..6 {
        append(&mut log, batch(1, 100, i)).unwrap();
    }
    let mut relocation = log.begin_relocation(&future()).unwrap();
    while relocation.copy_some(1500).unwrap() > 0 {}
    assert!(!relocation.is_void(&log));
    log.truncate_to(Offset::new(4), NOW).unwrap();
    append(&mut log, batch(1, 100, 9)).unwrap();
    assert!(relocation.is_void(&log));
}
