//! Transactions per second: producers that write one small batch and commit, again and again, over
//! connections of their own, as clients since KIP-890 do.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::nodes::Kind;
use super::report::Report;
use super::workloads::Scale;
use crate::batches::BatchSpec;
use crate::requests::{Topic, create_topic};
use crate::transactions::TxnProducer;
use crate::wire::Wire;

const PARTITIONS: i32 = 6;
/// What a producer waits before it asks again while its last transaction is being completed, as the Java client does.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// COORDINATOR_LOAD_IN_PROGRESS, NOT_ENOUGH_REPLICAS, CONCURRENT_TRANSACTIONS.
const NOT_YET: [i16; 3] = [14, 19, 51];

/// `producers` at once.
pub fn transactions(report: &mut Report, kind: Kind, scale: Scale, producers: usize) -> Result<()> {
    let (mut node, _) = kind.start()?;
    let address: SocketAddr = node.bootstrap().parse()?;
    let mut wire = Wire::connect(address)?;
    let topic = create_topic(&mut wire, "transactions", PARTITIONS, &[])?;
    run(address, &topic, producers, Duration::from_secs(3))?;
    let cpu_before = node.process().cpu_time()?;
    let duration = Duration::from_secs(scale.paced_seconds);
    let committed = run(address, &topic, producers, duration)?;
    let cpu = node.process().cpu_time()? - cpu_before;
    let name = match producers {
        1 => "transactions, 1 producer".to_owned(),
        _ => format!("transactions, {producers} producers"),
    };
    let rate = committed as f64 / duration.as_secs_f64();
    report.add(&name, "transactions/s", kind, rate);
    let each = cpu.as_secs_f64() * 1e3 / committed.max(1) as f64;
    report.add(&format!("{name}: broker CPU"), "ms each", kind, each);
    Ok(())
}

/// Transactions that were committed.
fn run(address: SocketAddr, topic: &Topic, producers: usize, duration: Duration) -> Result<u64> {
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..producers)
            .map(|number| scope.spawn(move || one(address, topic, number, duration)))
            .collect();
        let mut committed = 0;
        for one in running {
            committed += one.join().ok().context("a producer panicked")??;
        }
        Ok(committed)
    })
}

fn one(address: SocketAddr, topic: &Topic, number: usize, duration: Duration) -> Result<u64> {
    let mut wire = Wire::connect(address)?;
    let mut producer = TxnProducer::init(&mut wire, &format!("bench-{number}"))?;
    let partition = (number % PARTITIONS as usize) as i32;
    let deadline = Instant::now() + duration;
    let mut committed = 0;
    while Instant::now() < deadline {
        let batch = BatchSpec::small(1, 1_790_000_000_000);
        let mut batch = batch.from_producer(producer.producer_id, producer.epoch, 0);
        batch.attributes |= crate::batches::TRANSACTIONAL;
        let request = producer.produce_request(12, topic, partition, batch.build()?);
        until_done("Produce", || {
            let answer = wire.call(12, &request)?;
            let row = answer
                .responses
                .first()
                .and_then(|topic| topic.partition_responses.first());
            Ok((row.context("no row")?.error_code, ()))
        })?;
        let request = producer.end_request(true);
        let (producer_id, epoch) = until_done("EndTxn", || {
            let answer = wire.call(5, &request)?;
            Ok((
                answer.error_code,
                (answer.producer_id.0, answer.producer_epoch),
            ))
        })?;
        (producer.producer_id, producer.epoch) = (producer_id, epoch);
        committed += 1;
    }
    Ok(committed)
}

fn until_done<T>(what: &str, mut ask: impl FnMut() -> Result<(i16, T)>) -> Result<T> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match ask()? {
            (0, answer) => return Ok(answer),
            (code, _) if NOT_YET.contains(&code) => {
                ensure!(Instant::now() < deadline, "{what}: still error {code}");
                sleep(RETRY_PAUSE);
            }
            (code, _) => bail!("{what}: error {code}"),
        }
    }
}
