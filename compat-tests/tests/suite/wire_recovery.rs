//! Files that a kill leaves torn, or that are gone: the next start makes them good, and nothing acknowledged is lost.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use compat_tests::batches::{BatchSpec, RecordSpec};
use compat_tests::broker::Broker;
use compat_tests::requests::{
    create_topic, init_producer_id, list_offset, produce_ok, read_to_end, until_not_retriable,
};

const NOW: i64 = 1_790_000_000_000;
const RECORDS_A_ROUND: i32 = 30;

/// The files of a partition whose names end so, in the order of their names.
fn files(directory: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(ending) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn active_segment(directory: &Path) -> Result<PathBuf> {
    files(directory, ".log")?.pop().context("no segment")
}

fn append(path: &Path, bytes: &[u8]) -> Result<()> {
    Ok(OpenOptions::new()
        .append(true)
        .open(path)?
        .write_all(bytes)?)
}

fn halve(directory: &Path, ending: &str) -> Result<()> {
    for path in files(directory, ending)? {
        let file = File::options().write(true).open(path)?;
        file.set_len(file.metadata()?.len() / 2)?;
    }
    Ok(())
}

fn remove(directory: &Path, ending: &str) -> Result<()> {
    files(directory, ending)?
        .iter()
        .try_for_each(|path| Ok(std::fs::remove_file(path)?))
}

/// A batch that no client ever got an answer for.
fn unacknowledged() -> Result<Vec<u8>> {
    Ok(BatchSpec::small(5, NOW).build()?.to_vec())
}

type Damage = (&'static str, fn(&Path) -> Result<()>);

const DAMAGES: &[Damage] = &[
    ("a batch that breaks off", |directory| {
        let batch = unacknowledged()?;
        append(&active_segment(directory)?, &batch[..batch.len() / 2])
    }),
    ("a few bytes of a header", |directory| {
        append(&active_segment(directory)?, &unacknowledged()?[..9])
    }),
    ("a batch with a wrong CRC", |directory| {
        let mut batch = unacknowledged()?;
        if let Some(last) = batch.last_mut() {
            *last ^= 1;
        }
        append(&active_segment(directory)?, &batch)
    }),
    ("zeros", |directory| {
        append(&active_segment(directory)?, &[0; 4096])
    }),
    ("no indexes", |directory| {
        remove(directory, ".index")?;
        remove(directory, ".timeindex")
    }),
    ("halves of indexes", |directory| {
        halve(directory, ".index")?;
        halve(directory, ".timeindex")
    }),
    ("no producer snapshots", |directory| {
        remove(directory, ".snapshot")
    }),
    ("halves of producer snapshots", |directory| {
        halve(directory, ".snapshot")
    }),
    ("no checkpoint of leader epochs", |directory| {
        remove(directory, "leader-epoch-checkpoint")
    }),
    ("half a checkpoint of leader epochs", |directory| {
        halve(directory, "leader-epoch-checkpoint")
    }),
    ("no recovery point", |directory| {
        remove(directory, "recovery-point")
    }),
    ("half a recovery point", |directory| {
        halve(directory, "recovery-point")
    }),
    ("everything but the records", |directory| {
        append(&active_segment(directory)?, &[0xff; 100])?;
        for ending in [".index", ".timeindex", ".snapshot", "-checkpoint", "-point"] {
            remove(directory, ending)?;
        }
        Ok(())
    }),
];

#[test]
fn torn_tails_and_lost_indexes_and_checkpoints_cost_nothing_acknowledged() -> Result<()> {
    let mut broker = Broker::start()?;
    let mut wire = broker.connect()?;
    // Several segments, each with several entries in its indexes.
    let configs = [
        ("segment.bytes", "1048576"),
        ("index.interval.bytes", "65536"),
    ];
    let topic = create_topic(&mut wire, "damaged", 1, &configs)?;
    let (producer, epoch) = init_producer_id(&mut wire)?;
    let mut written = Vec::new();
    let mut last_batch = None;
    let directory = broker.data_dir().join("damaged-0");
    for (name, damage) in DAMAGES {
        let mut check = || -> Result<()> {
            for _ in 0..RECORDS_A_ROUND {
                let number = i32::try_from(written.len())?;
                let record = RecordSpec::value(format!("{number}/{}", "x".repeat(50_000)));
                let batch = BatchSpec::of(vec![record.at(NOW + i64::from(number))])
                    .from_producer(producer, epoch, number)
                    .build()?;
                let offset = produce_ok(&mut wire, &topic, 0, batch.clone())?;
                ensure!(offset == i64::from(number), "{number} at {offset}");
                written.push(number);
                last_batch = Some(batch);
            }
            broker.kill9()?;
            damage(&directory)?;
            broker.start_again()?;
            wire = broker.connect()?;
            until_not_retriable(
                || list_offset(&mut wire, &topic, 0, NOW),
                |row| row.error_code,
            )?;
            let records = read_to_end(&mut wire, &topic, 0, 0)?;
            ensure!(records.len() == written.len(), "{} records", records.len());
            for (number, record) in written.iter().zip(&records) {
                let value = record.value.as_deref().unwrap_or_default();
                let begins = format!("{number}/");
                ensure!(
                    record.offset == i64::from(*number) && value.starts_with(begins.as_bytes()),
                    "{} at {}",
                    String::from_utf8_lossy(&value[..value.len().min(9)]),
                    record.offset
                );
            }
            for number in written.iter().step_by(7) {
                let row = list_offset(&mut wire, &topic, 0, NOW + i64::from(*number))?;
                ensure!(
                    row.offset == i64::from(*number),
                    "offset {} has the time of {number}",
                    row.offset
                );
            }
            // What the producer sent last is known, however its state was kept.
            let again = last_batch.clone().context("nothing was sent")?;
            let offset = produce_ok(&mut wire, &topic, 0, again)?;
            ensure!(
                Some(offset) == written.last().map(|last| i64::from(*last)),
                "sent again, at {offset}"
            );
            Ok(())
        };
        check().with_context(|| (*name).to_owned())?;
    }
    Ok(())
}
