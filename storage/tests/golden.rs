//! Pins the bytes on the disk that `docs/FORMAT.md` describes: a scripted log must leave exactly
//! the files under `tests/golden`, and opening those files must give that log.
//!
//! After a deliberate change of the format, `ODRADEK_BLESS=1 cargo test -p odradek-storage --test
//! golden` writes them anew.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use odradek_protocol::ids::Offset;
use odradek_storage::LogConfig;
use support::{Rig, batch, batch_of_timestamps, marker, producer_batch, verify};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/topic-0")
}

fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 1500,
        index_interval_bytes: 200,
        ..LogConfig::default()
    }
}

/// Two epochs, two producers, an aborted transaction and one that is open, timestamps out of
/// order, three segments.
fn script(rig: &mut Rig) {
    for i in 0..6 {
        rig.append(batch(2, 100, 1000 + i * 10));
    }
    rig.append(producer_batch(4001, 2, 0, 3, true));
    rig.append(batch_of_timestamps(&[1100, 1300, 1200]).build());
    rig.epoch = 5;
    rig.append(marker(4001, 2, false));
    rig.append(producer_batch(4001, 2, 3, 2, true));
    rig.append(producer_batch(4002, 0, 0, 2, false));
    for i in 0..10 {
        rig.append(batch(1, 150, 1500 - i * 10));
    }
    rig.log.close().unwrap();
}

fn read_dir(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn a_scripted_log_leaves_the_golden_files_byte_for_byte() {
    let mut rig = Rig::real(config());
    script(&mut rig);
    let written = read_dir(&rig.dir);
    if std::env::var_os("ODRADEK_BLESS").is_some() {
        let _ = fs::remove_dir_all(golden());
        fs::create_dir_all(golden()).unwrap();
        for (name, content) in &written {
            fs::write(golden().join(name), content).unwrap();
        }
    }
    let expected = read_dir(&golden());
    let names = |files: &[(String, Vec<u8>)]| -> Vec<String> {
        files.iter().map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(names(&written), names(&expected));
    for ((name, written), (_, expected)) in written.iter().zip(&expected) {
        assert_eq!(written, expected, "{name}");
    }
}

#[test]
fn the_golden_files_open_as_the_log_that_wrote_them() {
    let mut rig = Rig::real(config());
    script(&mut rig);
    let copy = tempfile::tempdir().unwrap();
    let dir = copy.path().join("topic-0");
    fs::create_dir_all(&dir).unwrap();
    for (name, content) in read_dir(&golden()) {
        fs::write(dir.join(name), content).unwrap();
    }
    let opened = Rig::on(rig.disk.clone(), dir.clone(), config()).unwrap();
    assert_eq!(opened.report.cut, None);
    assert_eq!(opened.report.rebuilt_indexes, 0);
    assert_eq!(
        verify::faults(rig.disk.as_ref(), &dir),
        Vec::<String>::new()
    );
    let (ours, theirs) = (rig.reader(), opened.reader());
    assert_eq!(ours.log_end(), theirs.log_end());
    assert_eq!(ours.segment_bases(), theirs.segment_bases());
    assert_eq!(ours.epochs(), theirs.epochs());
    let end = ours.log_end();
    assert_eq!(
        ours.aborted_transactions(Offset::ZERO, end).unwrap(),
        theirs.aborted_transactions(Offset::ZERO, end).unwrap()
    );
    // Which markers are committed is not on the disk.
    ours.on_high_watermark(end);
    theirs.on_high_watermark(end);
    assert_eq!(
        ours.with_producers(Clone::clone),
        theirs.with_producers(Clone::clone)
    );
    assert_eq!(
        ours.max_timestamp(Offset::ZERO, end).unwrap(),
        theirs.max_timestamp(Offset::ZERO, end).unwrap()
    );
}
