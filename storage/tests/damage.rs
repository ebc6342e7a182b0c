//! Damage that is done to a log's files by hand, and full disks.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use odradek_protocol::ids::Offset;
use odradek_storage::disk::Disk as _;
use odradek_storage::{LogConfig, LogDirHealth, SimDisk, StorageError};
use support::{NOW, Rig, batch, marker, producer_batch, verify};

fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 2000,
        index_interval_bytes: 200,
        ..LogConfig::default()
    }
}

/// A log of several segments, closed.
fn filled() -> Rig {
    let mut rig = Rig::real(config());
    for i in 0..60 {
        if i % 7 == 0 {
            rig.append(producer_batch(1, 0, i / 7, 1, false));
        } else {
            rig.append(batch(2, 50, 1000 + i64::from(i)));
        }
    }
    assert!(rig.reader().segment_bases().len() > 3);
    rig
}

fn with_suffix(rig: &Rig, suffix: &str) -> Vec<PathBuf> {
    let names = rig.files().into_iter();
    names
        .filter(|name| name.ends_with(suffix))
        .map(|name| rig.dir.join(name))
        .collect()
}

fn everything(rig: &Rig) -> Vec<(i64, i64)> {
    let start = rig.log.log_start().get();
    rig.read(start, usize::MAX, rig.log.next_offset().get(), true)
}

fn assert_sound(rig: &Rig) {
    assert_eq!(
        verify::faults(rig.disk.as_ref(), &rig.dir),
        Vec::<String>::new()
    );
}

#[test]
fn lost_torn_and_empty_index_files_are_rebuilt_after_a_crash_and_after_a_clean_stop() {
    for clean in [false, true] {
        for suffix in [".index", ".timeindex"] {
            for damage in 0..3 {
                let mut rig = filled();
                let before = everything(&rig);
                rig.log.close().unwrap();
                for path in with_suffix(&rig, suffix) {
                    match damage {
                        0 => fs::remove_file(path).unwrap(),
                        1 => {
                            let torn = fs::read(&path).unwrap();
                            fs::write(&path, &torn[..torn.len().saturating_sub(3)]).unwrap();
                        }
                        _ => fs::write(&path, [0xff; 48]).unwrap(),
                    }
                }
                rig.reopen_with(clean, None);
                assert_eq!(rig.report.cut, None);
                assert_eq!(everything(&rig), before, "{suffix} {damage} {clean}");
                assert_sound(&rig);
            }
        }
    }
}

#[test]
fn a_torn_tail_is_cut_at_the_last_whole_batch_and_the_log_goes_on() {
    let mut rig = Rig::real(LogConfig::default());
    for i in 0..20 {
        rig.append(batch(1, 300, i));
    }
    let log = with_suffix(&rig, ".log").remove(0);
    let whole = fs::read(&log).unwrap();
    let size = whole.len() / 20;
    for cut in [1, 30, 61, 62, size - 1] {
        fs::write(&log, &whole[..whole.len() - size + cut]).unwrap();
        rig.reopen();
        let report = rig.report.cut.clone().unwrap();
        assert_eq!(report.offset, Offset::new(19));
        assert_eq!(report.bytes, cut as u64);
        assert_eq!(rig.log.next_offset(), Offset::new(19));
        assert_sound(&rig);
        assert_eq!(rig.append(batch(1, 300, 19)), Offset::new(19));
    }
}

#[test]
fn a_flipped_bit_cuts_the_log_there_and_drops_the_segments_after_it() {
    let mut rig = filled();
    let logs = with_suffix(&rig, ".log");
    let mut content = fs::read(&logs[2]).unwrap();
    content[70] ^= 4;
    fs::write(&logs[2], &content).unwrap();
    let bases = rig.reader().segment_bases();
    rig.reopen();
    let cut = rig.report.cut.clone().unwrap();
    assert_eq!(cut.segment_base, bases[2]);
    assert_eq!(cut.segments, bases.len() - 3);
    assert!(cut.reason.contains("CRC"), "{}", cut.reason);
    assert_eq!(rig.log.next_offset(), bases[2]);
    assert_eq!(with_suffix(&rig, ".log").len(), 3);
    assert_sound(&rig);
    rig.append(batch(1, 1, 1));
}

#[test]
fn damage_below_the_recovery_point_is_reported_and_nothing_is_cut() {
    let mut rig = filled();
    rig.log.close().unwrap();
    let logs = with_suffix(&rig, ".log");
    let last = logs.last().unwrap();
    let mut content = fs::read(last).unwrap();
    let at = content.len() - 5;
    content[at] ^= 4;
    fs::write(last, &content).unwrap();
    let opened = Rig::on(rig.disk.clone(), rig.dir.clone(), config());
    assert!(matches!(opened, Err(StorageError::Corrupt { .. })));
    assert_eq!(fs::read(last).unwrap(), content);
}

#[test]
fn a_file_that_was_cut_off_below_the_recovery_point_is_reported() {
    let mut rig = filled();
    rig.log.close().unwrap();
    let last = with_suffix(&rig, ".log").pop().unwrap();
    fs::write(last, b"").unwrap();
    let opened = Rig::on(rig.disk.clone(), rig.dir.clone(), config());
    assert!(matches!(opened, Err(StorageError::Corrupt { .. })));
}

#[test]
fn half_written_and_lost_checkpoints_cost_a_longer_scan_and_nothing_else() {
    for name in ["leader-epoch-checkpoint", "recovery-point"] {
        for content in [None, Some(&b"0\n5\n"[..]), Some(b""), Some(b"\xff\xff")] {
            let mut rig = filled();
            let before = everything(&rig);
            rig.log.close().unwrap();
            let path = rig.dir.join(name);
            match content {
                None => fs::remove_file(path).unwrap(),
                Some(content) => fs::write(path, content).unwrap(),
            }
            rig.reopen();
            assert_eq!(rig.report.cut, None);
            assert_eq!(everything(&rig), before);
            assert_eq!(rig.reader().epochs().len(), 1);
            assert_sound(&rig);
        }
    }
}

#[test]
fn a_damaged_snapshot_is_dropped_and_the_producers_are_rebuilt() {
    let mut rig = filled();
    let producers = rig.reader().with_producers(Clone::clone);
    rig.log.close().unwrap();
    for path in with_suffix(&rig, ".snapshot") {
        let mut content = fs::read(&path).unwrap();
        *content.last_mut().unwrap() ^= 1;
        fs::write(path, content).unwrap();
    }
    rig.reopen_with(true, None);
    assert_eq!(rig.reader().with_producers(Clone::clone), producers);
}

#[test]
fn garbage_after_the_end_and_unknown_files_do_no_harm() {
    let mut rig = filled();
    let before = everything(&rig);
    let last = with_suffix(&rig, ".log").pop().unwrap();
    OpenOptions::new()
        .append(true)
        .open(last)
        .unwrap()
        .write_all(&[0; 4096])
        .unwrap();
    for name in ["partition.metadata", "raft.journal", "1.log", "x.index"] {
        fs::write(rig.dir.join(name), b"not ours").unwrap();
    }
    fs::write(rig.dir.join(format!("{:020}.index", 9999)), b"orphan").unwrap();
    fs::write(rig.dir.join(format!("{:020}.log.deleted", 0)), b"old").unwrap();
    rig.reopen();
    assert_eq!(everything(&rig), before);
    assert!(rig.report.cut.is_some());
    let files = rig.files();
    assert!(files.contains(&"raft.journal".to_string()));
    assert!(!files.iter().any(|name| name.ends_with(".deleted")));
    assert!(!files.contains(&format!("{:020}.index", 9999)));
}

#[test]
fn batches_of_an_unknown_epoch_are_cut() {
    let mut rig = Rig::real(config());
    rig.append(batch(2, 10, 1));
    rig.epoch = 4;
    rig.append(batch(2, 10, 1));
    let health = rig.health.clone();
    let (log, report) = odradek_storage::Log::open(
        rig.disk.clone(),
        &rig.dir,
        Arc::new(config()),
        odradek_storage::OpenHint {
            known_epoch: &|epoch, _| epoch.get() < 4,
            ..odradek_storage::OpenHint::none(health)
        },
        NOW,
    )
    .unwrap();
    assert_eq!(log.next_offset(), Offset::new(2));
    assert!(report.cut.unwrap().reason.contains("epoch 4"));
}

/// The marker of an aborted transaction and its place in the index are two writes. Whichever fails, readers are told of
/// nothing that is half done, and no offset is given twice.
#[test]
fn an_abort_whose_index_entry_cannot_be_written_leaves_the_transaction_undecided() {
    let undecided = |rig: &Rig| rig.reader().with_producers(|p| p.first_unstable_offset());
    let mut ended_before_the_failure = 0;
    for step in 1.. {
        let disk = SimDisk::new();
        disk.create_dir_all(Path::new("data")).unwrap();
        let mut rig = Rig::on(disk.shared(), "data/t-0".into(), config()).unwrap();
        rig.append(producer_batch(7, 0, 0, 3, true));
        rig.log.flush_target().sync().unwrap();
        rig.reader().on_high_watermark(Offset::new(3));
        disk.fail_at(disk.steps() + step, std::io::ErrorKind::Other);
        let Err(error) = rig.try_append(marker(7, 0, false)) else {
            break;
        };
        assert!(matches!(error, StorageError::Io { .. }), "{error}");
        assert!(rig.health.is_offline());
        assert_eq!(undecided(&rig), Some(Offset::ZERO), "step {step}");
        assert!(matches!(
            rig.try_append(batch(1, 1, 1)),
            Err(StorageError::Offline { .. })
        ));
        // A new start takes what is on the disk, the whole of it.
        rig.health = LogDirHealth::new("data");
        rig.reopen();
        let marker_is_there = rig.log.next_offset() == Offset::new(4);
        ended_before_the_failure += u32::from(marker_is_there);
        if !marker_is_there {
            assert_eq!(rig.log.next_offset(), Offset::new(3), "step {step}");
            assert_eq!(undecided(&rig), Some(Offset::ZERO), "step {step}");
            assert_eq!(rig.append(marker(7, 0, false)), Offset::new(3));
        }
        let aborted = rig
            .reader()
            .aborted_transactions(Offset::ZERO, Offset::new(9))
            .unwrap();
        assert_eq!(aborted.len(), 1, "step {step}");
        assert_eq!(aborted[0].last_offset, Offset::new(3));
        rig.reader().on_high_watermark(Offset::new(4));
        assert_eq!(undecided(&rig), None);
        assert_eq!(rig.append(batch(1, 1, 1)), Offset::new(4));
        assert_sound(&rig);
    }
    assert!(
        ended_before_the_failure > 0,
        "the index was never what failed"
    );
}

#[test]
fn a_full_disk_takes_the_log_offline_without_a_torn_index_and_nothing_flushed_is_lost() {
    for capacity in (500..9000).step_by(97) {
        let disk = SimDisk::new();
        disk.create_dir_all(Path::new("data")).unwrap();
        disk.set_capacity(Some(capacity));
        let Ok(mut rig) = Rig::on(disk.shared(), "data/t-0".into(), config()) else {
            continue;
        };
        let mut flushed = Offset::ZERO;
        let error = loop {
            match rig.try_append(batch(2, 100, 5)) {
                Ok(_) => {
                    rig.log.flush_target().sync().unwrap();
                    flushed = rig.log.next_offset();
                }
                Err(error) => break error,
            }
        };
        assert!(matches!(error, StorageError::Io { .. }), "{error}");
        assert!(rig.health.is_offline());
        assert!(matches!(
            rig.try_append(batch(1, 1, 1)),
            Err(StorageError::Offline { .. })
        ));
        let faults = verify::faults(rig.disk.as_ref(), &rig.dir);
        assert_eq!(faults, Vec::<String>::new(), "capacity {capacity}");
        assert_eq!(rig.log.next_offset(), flushed);
        // Room again, and a new start.
        disk.set_capacity(None);
        rig.health = LogDirHealth::new("data");
        rig.reopen();
        assert_eq!(rig.log.next_offset(), flushed);
        assert_sound(&rig);
        rig.append(batch(2, 100, 5));
    }
}
