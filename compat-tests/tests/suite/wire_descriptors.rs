//! A process that may open few files: connections cannot take from the log what it needs, and running out is not a
//! failed disk.

use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use compat_tests::batches::{BatchSpec, RecordSpec};
use compat_tests::broker::Broker;
use compat_tests::requests::{create_topic, produce, read_to_end, until_not_retriable};
use compat_tests::wire::Wire;

const NOW: i64 = 1_790_000_000_000;
/// Descriptors of the process.
const LIMIT: u32 = 128;
/// REQUEST_TIMED_OUT: what a producer is told whose batch waits for a descriptor for too long.
const REQUEST_TIMED_OUT: i16 = 7;

/// More than half a segment, so that nearly every batch makes a new one.
fn large_batch(round: usize) -> Result<Bytes> {
    let mut record = RecordSpec::keyed(format!("{round}"), vec![b'v'; 600 << 10]);
    record = record.at(NOW);
    BatchSpec::of(vec![record]).build()
}

fn produce_patiently(
    wire: &mut Wire,
    topic: &compat_tests::requests::Topic,
    partition: i32,
    batch: &Bytes,
) -> Result<()> {
    for _ in 0..5 {
        let answer = until_not_retriable(
            || produce(wire, topic, partition, batch.clone()),
            |answer| answer.error_code,
        )?;
        if answer.error_code == 0 {
            return Ok(());
        }
        ensure!(
            answer.error_code == REQUEST_TIMED_OUT,
            "partition {partition}: error {} {:?}",
            answer.error_code,
            answer.error_message
        );
    }
    anyhow::bail!("partition {partition} takes nothing any more")
}

/// Reads as a consumer does, which asks again after a KAFKA_STORAGE_ERROR: the files may be opened in turn.
fn read_patiently(
    wire: &mut Wire,
    topic: &compat_tests::requests::Topic,
    partition: i32,
) -> Result<usize> {
    let mut attempts_left = 20;
    loop {
        match read_to_end(wire, topic, partition, 0) {
            Ok(records) => return Ok(records.len()),
            Err(error) if attempts_left > 0 && error.to_string().contains("error 56") => {
                attempts_left -= 1;
                std::thread::sleep(Duration::from_millis(500));
            }
            Err(error) => return Err(error),
        }
    }
}

#[test]
fn a_flood_of_connections_takes_no_descriptor_from_the_log() -> Result<()> {
    let mut broker = Broker::options().file_limit(LIMIT).start()?;
    let mut wire = broker.connect()?;
    let small = [("segment.bytes", "1048576")];
    let topic = create_topic(&mut wire, "before", 8, &small)?;
    // Far more than the process could have open. Those that it does not take wait in the kernel, or give up.
    let address = broker.address();
    let flood: Vec<_> = (0..300)
        .filter_map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(20)).ok())
        .collect();
    ensure!(flood.len() > 60, "only {} connections", flood.len());
    let rounds = 6;
    for round in 0..rounds {
        let batch = large_batch(round)?;
        for partition in 0..8 {
            produce_patiently(&mut wire, &topic, partition, &batch)?;
        }
    }
    // New partitions find room as well.
    let later = create_topic(&mut wire, "during", 8, &small)?;
    for partition in 0..8 {
        produce_patiently(&mut wire, &later, partition, &large_batch(0)?)?;
    }
    let open = std::fs::read_dir(format!("/proc/{}/fd", broker.process().pid()))?.count();
    ensure!(open <= LIMIT as usize, "{open} descriptors are open");
    drop(flood);
    until_not_retriable(|| Ok(broker.connect()?.metadata_of_everything()?), |_| 0)?;
    broker.kill9()?;
    broker.start_again()?;
    let mut wire = broker.connect()?;
    for (topic, expected) in [(&topic, rounds), (&later, 1)] {
        for partition in 0..8 {
            let found = read_patiently(&mut wire, topic, partition)?;
            // A batch that was told to have timed out may be there twice.
            ensure!(found >= expected, "{found} of {expected}");
        }
    }
    Ok(())
}

/// More partitions than there are descriptors for all their files at once: those that rest hold none.
#[test]
fn more_partitions_than_descriptors_are_served_in_turn() -> Result<()> {
    let mut broker = Broker::options().file_limit(LIMIT).start()?;
    let mut wire = broker.connect()?;
    let topic = create_topic(&mut wire, "many", 60, &[])?;
    let batch = BatchSpec::small(3, NOW).build()?;
    for round in 0..2 {
        for partition in 0..60 {
            produce_patiently(&mut wire, &topic, partition, &batch)?;
        }
        if round == 0 {
            broker.kill9()?;
            broker.start_again()?;
            wire = broker.connect()?;
            compat_tests::requests::wait_for_leaders(&mut wire, &topic, 60)?;
        }
    }
    for partition in 0..60 {
        ensure!(read_patiently(&mut wire, &topic, partition)? >= 6);
    }
    Ok(())
}
