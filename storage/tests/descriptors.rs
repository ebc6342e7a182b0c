//! Running out of file descriptors: the log refuses what it cannot open the files for, loses nothing
//! and goes on when there are descriptors again. It is not a failed disk.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

use odradek_protocol::ids::Offset;
use odradek_storage::disk::Disk;
use odradek_storage::flush::{FlushTarget, Flusher, FlusherOptions};
use odradek_storage::{LogConfig, LogDirHealth, SimDisk, SyncFile};
use support::{Rig, batch, marker, producer_batch, verify};

fn small_segments() -> LogConfig {
    LogConfig {
        segment_bytes: 600,
        index_interval_bytes: 100,
        ..LogConfig::default()
    }
}

fn rig(disk: &SimDisk) -> Rig {
    Rig::on(disk.shared(), PathBuf::from("d/t-0"), small_segments()).unwrap()
}

/// Makes everything durable and closes every file, as it is with an idle partition.
fn let_rest(rig: &mut Rig) {
    if let Some((checkpoint, target)) = rig.log.begin_checkpoint() {
        target.sync().unwrap();
        rig.log.finish_checkpoint(checkpoint).unwrap();
    }
    rig.log.release_idle_files();
    rig.log.release_idle_files();
}

#[test]
fn an_append_that_finds_no_descriptor_is_refused_and_changes_nothing() {
    let disk = SimDisk::new();
    let mut rig = rig(&disk);
    rig.append(batch(2, 10, 1));
    let_rest(&mut rig);
    let steps = disk.steps();
    disk.set_openings_left(Some(0));
    let refused = rig.try_append(batch(2, 10, 1)).unwrap_err();
    assert!(refused.is_out_of_descriptors(), "{refused}");
    assert!(!rig.health.is_offline());
    assert!(rig.health.take_shortage() && !rig.health.take_shortage());
    assert_eq!(disk.steps(), steps, "the disk was not touched");
    disk.set_openings_left(None);
    assert_eq!(rig.append(batch(2, 10, 1)).get(), 2);
    assert_eq!(rig.read(0, 1 << 20, 4, true), [(0, 2), (2, 4)]);
}

/// However far an append, with the roll and the checkpoint that it may need, comes before the
/// descriptors are used up: tried again it does the whole of it, once.
#[test]
fn what_was_cut_short_by_want_of_descriptors_is_done_whole_when_it_is_tried_again() {
    for openings in 0..10 {
        let disk = SimDisk::new();
        let mut rig = rig(&disk);
        let mut refused = 0;
        for number in 0..30 {
            if number % 4 == 0 {
                let_rest(&mut rig);
            }
            disk.set_openings_left(Some(openings));
            let sent = producer_batch(7, 0, number * 3, 3, false);
            let appended = match rig.try_append(sent.clone()) {
                Ok(offset) => offset,
                Err(error) => {
                    assert!(error.is_out_of_descriptors(), "{openings} left: {error}");
                    refused += 1;
                    disk.set_openings_left(None);
                    rig.try_append(sent).unwrap()
                }
            };
            disk.set_openings_left(None);
            assert_eq!(appended.get(), i64::from(number) * 3);
        }
        assert!(!rig.health.is_offline());
        assert!(
            openings > 6 || refused > 0,
            "{openings} openings are enough"
        );
        assert!(rig.reader().segment_bases().len() > 3);
        rig.log.close().unwrap();
        assert_eq!(verify::faults(&disk, &rig.dir), [""; 0]);
        rig.reopen();
        assert_eq!(rig.report.cut, None);
        assert_eq!(rig.log.next_offset().get(), 90);
    }
}

/// The first aborted transaction of a segment makes its index file, for which there must be a descriptor, too.
#[test]
fn an_abort_that_finds_no_descriptor_is_in_the_index_once_it_is_tried_again() {
    for openings in 0..6 {
        let disk = SimDisk::new();
        let mut rig = rig(&disk);
        let mut aborted = Vec::new();
        for sequence in 0..20 {
            let first = rig.append(producer_batch(7, 0, sequence, 1, true));
            let_rest(&mut rig);
            let before = rig.log.next_offset();
            disk.set_openings_left(Some(openings));
            let ended = rig.try_append(marker(7, 0, false));
            disk.set_openings_left(None);
            let last = ended.unwrap_or_else(|error| {
                assert!(error.is_out_of_descriptors(), "{openings} left: {error}");
                let undecided = rig.reader().with_producers(|p| p.first_undecided_offset());
                assert_eq!(undecided, Some(first), "{openings} left");
                rig.append(marker(7, 0, false))
            });
            assert_eq!(last, before);
            aborted.push((first, last));
        }
        for _ in 0..2 {
            let found: Vec<_> = rig
                .reader()
                .aborted_transactions(Offset::ZERO, Offset::new(100))
                .unwrap()
                .iter()
                .map(|txn| (txn.first_offset, txn.last_offset))
                .collect();
            assert_eq!(found, aborted, "{openings} left");
            rig.restart();
        }
        assert!(rig.reader().segment_bases().len() > 2);
    }
}

#[test]
fn a_sync_waits_for_a_descriptor_instead_of_failing() {
    let disk = SimDisk::new();
    disk.create_dir_all("d".as_ref()).unwrap();
    let health = LogDirHealth::new("d");
    let flusher =
        Flusher::start(&disk.shared(), health.clone(), FlusherOptions::default()).unwrap();
    let file = SyncFile::create(disk.shared(), "d/f".into(), vec!["d".into()]).unwrap();
    file.write_at(b"x", 0).unwrap();
    disk.set_openings_left(Some(0));
    let mut target = FlushTarget::new();
    target.add(&file);
    let (sender, synced) = channel();
    flusher.submit(target, Box::new(move |result| sender.send(result).unwrap()));
    assert!(synced.recv_timeout(Duration::from_millis(100)).is_err());
    assert!(!health.is_offline());
    disk.set_openings_left(None);
    synced
        .recv_timeout(Duration::from_secs(20))
        .unwrap()
        .unwrap();
    assert!(!file.is_dirty());
}
