//! Rolling, retention, deletion, and what a log costs while nothing happens to it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use odradek_protocol::ids::{Offset, TimestampMs};
use odradek_storage::disk::Disk as _;
use odradek_storage::{
    Log, LogConfig, LogDirHealth, OpenHint, RealDisk, SegmentAge, SimDisk, StorageError,
    retention_point,
};
use support::{NOW, Rig, batch};

const YEAR_MS: i64 = 365 * 24 * 60 * 60 * 1000;

fn now() -> i64 {
    NOW.get()
}

/// A log whose disk knows the time.
fn rig(config: LogConfig) -> (Rig, SimDisk) {
    let disk = SimDisk::new();
    disk.create_dir_all(Path::new("data")).unwrap();
    disk.set_now(NOW);
    let rig = Rig::on(disk.shared(), "data/t-0".into(), config).unwrap();
    (rig, disk)
}

fn retain(rig: &mut Rig) -> Option<i64> {
    let end = rig.log.next_offset();
    let point = rig.log.retention_point(rig.now, end).unwrap()?;
    if rig.log.needs_roll_for_start(point) {
        rig.log.roll(rig.now).unwrap();
    }
    rig.log.set_log_start(point, rig.now).unwrap();
    Some(point.get())
}

#[test]
fn a_wholly_expired_active_segment_goes_and_the_log_is_empty() {
    let (mut rig, _disk) = rig(LogConfig {
        retention_ms: Some(1000),
        ..LogConfig::default()
    });
    rig.append(batch(3, 10, now()));
    assert_eq!(retain(&mut rig), None);
    rig.now = TimestampMs::new(now() + 1001);
    assert_eq!(retain(&mut rig), Some(3));
    assert_eq!(rig.log.log_start(), rig.log.next_offset());
    assert_eq!(rig.log.size_bytes(), 0);
    assert_eq!(rig.append(batch(1, 10, now())), Offset::new(3));
    rig.restart();
    assert_eq!(rig.log.log_start(), Offset::new(3));
    assert_eq!(rig.log.next_offset(), Offset::new(4));
}

#[test]
fn a_record_from_the_future_does_not_block_retention_for_ever() {
    let (mut rig, disk) = rig(LogConfig {
        retention_ms: Some(1000),
        ..LogConfig::default()
    });
    rig.append(batch(1, 10, now() + 10 * YEAR_MS));
    rig.now = TimestampMs::new(now() + 500);
    disk.set_now(rig.now);
    rig.append(batch(1, 10, now()));
    rig.now = TimestampMs::new(now() + 1400);
    assert_eq!(retain(&mut rig), None, "the last write is 900 ms old");
    rig.now = TimestampMs::new(now() + 1600);
    assert_eq!(retain(&mut rig), Some(2));
}

#[test]
fn a_first_record_from_the_future_does_not_keep_its_segment_open() {
    let (mut rig, _disk) = rig(LogConfig {
        segment_ms: 1000,
        ..LogConfig::default()
    });
    rig.append(batch(1, 10, now() + 10 * YEAR_MS));
    rig.now = TimestampMs::new(now() + 1500);
    rig.append(batch(1, 10, now() + 1500));
    assert_eq!(rig.log.active_base(), Offset::new(1));
}

#[test]
fn a_segment_rolls_by_the_timestamps_of_its_records() {
    let (mut rig, _disk) = rig(LogConfig {
        segment_ms: 1000,
        ..LogConfig::default()
    });
    rig.append(batch(1, 10, now() - 5000));
    rig.append(batch(1, 10, now() - 4000));
    assert_eq!(rig.log.active_base(), Offset::ZERO);
    rig.append(batch(1, 10, now() - 3999));
    assert_eq!(rig.log.active_base(), Offset::new(2));
    rig.restart();
    rig.append(batch(1, 10, now() - 2999));
    assert_eq!(rig.log.active_base(), Offset::new(2));
}

#[test]
fn age_and_size_both_count_whichever_comes_first() {
    let segment = |next, size, newest| SegmentAge {
        next_offset: Offset::new(next),
        size,
        newest: TimestampMs::new(newest),
    };
    let segments = [
        segment(10, 100, 0),
        segment(20, 100, 500),
        segment(30, 100, 900),
        segment(40, 50, 1000),
    ];
    let point = |ms, bytes, watermark, at| {
        let config = LogConfig {
            retention_ms: ms,
            retention_bytes: bytes,
            ..LogConfig::default()
        };
        retention_point(
            &config,
            &segments,
            Offset::new(watermark),
            TimestampMs::new(at),
        )
        .map(Offset::get)
    };
    assert_eq!(point(None, None, 40, 9999), None);
    assert_eq!(point(Some(400), None, 40, 1000), Some(20));
    assert_eq!(point(None, Some(250), 40, 1000), Some(10));
    assert_eq!(point(None, Some(251), 40, 1000), None);
    assert_eq!(point(Some(600), Some(150), 40, 1000), Some(20));
    assert_eq!(point(Some(1), Some(1), 40, 9999), Some(40));
    assert_eq!(point(Some(1), None, 25, 9999), Some(20));
    assert_eq!(point(None, Some(0), 40, 0), Some(40));
}

#[test]
fn deleted_files_stay_renamed_for_the_delay_and_then_go() {
    let (mut rig, _disk) = rig(LogConfig {
        segment_bytes: 200,
        file_delete_delay_ms: 100,
        ..LogConfig::default()
    });
    for _ in 0..6 {
        rig.append(batch(1, 80, now()));
    }
    let deleted = |rig: &Rig| {
        let files = rig.files().into_iter();
        files.filter(|name| name.ends_with(".deleted")).count()
    };
    let slice = rig
        .reader()
        .read(Offset::ZERO, 1 << 20, Offset::new(6), true)
        .unwrap();
    rig.log.set_log_start(Offset::new(5), NOW).unwrap();
    assert!(deleted(&rig) >= 3);
    assert_eq!(slice.read().unwrap().len(), slice.len, "readers go on");
    let due = rig.log.next_purge().unwrap();
    assert_eq!(due.get(), now() + 100);
    assert_eq!(
        rig.log.purge_deleted(TimestampMs::new(now() + 99)).unwrap(),
        0
    );
    assert!(rig.log.purge_deleted(due).unwrap() >= 3);
    assert_eq!(deleted(&rig), 0);
    assert_eq!(rig.log.next_purge(), None);
}

#[test]
fn a_deleted_partition_leaves_its_name_at_once() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path().join("t-0");
    let mut rig = Rig::on(RealDisk::shared(), dir.clone(), LogConfig::default()).unwrap();
    rig.append(batch(1, 80, now()));
    let target = rig.log.flush_target();
    let renamed = rig.log.mark_deleted(NOW).unwrap();
    assert!(!dir.exists());
    let name = renamed.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("t-0."));
    assert!(odradek_storage::file_names::is_deleted_dir(name));
    // A sync that was under way meanwhile is not a failure of the disk.
    target.sync().unwrap();
    rig.disk.remove_dir_all(&renamed).unwrap();
}

#[test]
fn what_still_holds_a_deleted_log_does_not_take_the_log_directory_offline() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path().join("t-0");
    let mut rig = Rig::on(RealDisk::shared(), dir, LogConfig::default()).unwrap();
    for _ in 0..3 {
        rig.append(batch(1, 80, now()));
        rig.log.roll(NOW).unwrap();
    }
    rig.append(batch(1, 80, now()));
    // As the cleaner does: the log goes while its indexes are synced.
    let (checkpoint, target) = rig.log.begin_checkpoint().unwrap();
    rig.log.mark_deleted(NOW).unwrap();
    target.sync().unwrap();
    let is_refused = |result: Result<(), StorageError>| {
        assert!(
            matches!(result, Err(StorageError::Deleted { .. })),
            "{result:?}"
        );
    };
    is_refused(rig.log.finish_checkpoint(checkpoint));
    assert!(rig.log.begin_checkpoint().is_none());
    is_refused(rig.log.roll(NOW).map(drop));
    is_refused(rig.log.truncate_to(Offset::new(1), NOW).map(drop));
    is_refused(rig.log.restart_at(Offset::new(9), NOW));
    is_refused(rig.log.set_log_start(Offset::new(2), NOW).map(drop));
    is_refused(rig.log.close());
    is_refused(rig.log.export(Offset::new(1)).map(drop));
    assert!(!rig.health.is_offline());
}

#[test]
fn a_log_can_start_over_at_a_later_offset() {
    let (mut rig, _disk) = rig(LogConfig::default());
    rig.append(batch(3, 10, now()));
    rig.log.restart_at(Offset::new(50), NOW).unwrap();
    assert_eq!(rig.log.log_start(), Offset::new(50));
    assert_eq!(rig.append(batch(3, 10, now())), Offset::new(50));
    rig.reopen();
    assert_eq!(rig.read(50, 1000, 53, true), [(50, 53)]);
    assert_eq!(rig.log.recovery_point(), Offset::new(50));
}

#[test]
fn a_log_that_lies_wholly_below_its_start_is_opened_empty() {
    let (mut rig, _disk) = rig(LogConfig::default());
    rig.append(batch(3, 10, now()));
    rig.reopen_with(false, Some(Offset::new(9)));
    assert_eq!(rig.log.log_start(), Offset::new(9));
    assert_eq!(rig.log.next_offset(), Offset::new(9));
}

/// Descriptors of this process that point into `dir`, by file name.
fn descriptors(dir: &Path) -> usize {
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .filter(|target| target.starts_with(dir))
        .count()
}

fn file_sizes(dir: &Path) -> BTreeMap<String, u64> {
    let mut sizes = BTreeMap::new();
    for partition in RealDisk.list(dir).unwrap() {
        for file in RealDisk.list(&dir.join(&partition.name)).unwrap() {
            sizes.insert(format!("{}/{}", partition.name, file.name), file.len);
        }
    }
    sizes
}

#[test]
fn a_thousand_partitions_keep_the_same_files_and_few_descriptors_over_ten_restarts() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path();
    let config = Arc::new(LogConfig::default());
    let health = LogDirHealth::new(root);
    let open = |clean_shutdown| -> Vec<Log> {
        (0..1000)
            .map(|index| {
                let hint = OpenHint {
                    clean_shutdown,
                    ..OpenHint::none(health.clone())
                };
                let dir = root.join(format!("t-{index}"));
                let disk = RealDisk::shared();
                Log::open(disk, &dir, config.clone(), hint, NOW).unwrap().0
            })
            .collect()
    };
    let mut logs = open(false);
    for log in logs.iter_mut().step_by(10) {
        let stamped = odradek_storage::StampedBatch {
            base_offset: Offset::ZERO,
            leader_epoch: odradek_protocol::ids::LeaderEpoch::new(0),
            bytes: batch(1, 10, now()),
        };
        log.append(&[stamped]).unwrap();
    }
    logs.iter_mut().for_each(|log| log.close().unwrap());
    drop(logs);
    let files = file_sizes(root);
    let mut most = 0;
    for round in 0..10 {
        let mut logs = open(round % 2 == 0);
        most = most.max(descriptors(root));
        // Twice: what was used for opening counts as used the first time.
        for _ in 0..2 {
            logs.iter().for_each(Log::release_idle_files);
        }
        if round % 2 == 0 {
            assert_eq!(descriptors(root), 0, "an idle log holds no descriptor");
        }
        logs.iter_mut().for_each(|log| log.close().unwrap());
        assert_eq!(file_sizes(root), files, "round {round}");
    }
    assert!(most <= 3000, "{most} descriptors for 1,000 partitions");
}
