//! A restart of all nodes, one after the other, under a load of clients as they come: what of it they notice.
//!
//! librdkafka's idempotent producer and a consumer of it in a group, both with their defaults for retries, and
//! optionally Kafka's own producer. An error is one that the application is told; what a client tries again by itself
//! is none.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use rdkafka::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};

use super::Cluster;
use crate::requests::Topic;

/// Between two records.
const PACE: Duration = Duration::from_millis(2);
const RECORD_BYTES: usize = 1024;
/// The load goes on this long before and after.
const AROUND: Duration = Duration::from_secs(2);
const NODE_PATIENCE: Duration = Duration::from_secs(90);
/// How long what was produced may take to be delivered and read once no more is sent.
const FINISH_PATIENCE: Duration = Duration::from_secs(60);

/// What the clients noticed.
#[derive(Clone, Debug, Default)]
pub struct Noticed {
    /// Records that were acknowledged.
    pub acknowledged: usize,
    /// Errors that an application was told.
    pub errors: Vec<String>,
    /// The longest time from a send to its acknowledgement.
    pub longest_delivery: Duration,
    /// The longest time between two records at the consumer.
    pub longest_gap: Duration,
    /// Records that came to the consumer twice or not at all.
    pub missed_or_doubled: usize,
    /// How long the restarts took.
    pub took: Duration,
}

#[derive(Clone, Default)]
struct Shared {
    noticed: Arc<Mutex<Noticed>>,
    stop: Arc<AtomicBool>,
    /// Whatever was sent has been acknowledged or given up.
    all_told: Arc<AtomicBool>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Noticed> {
        self.noticed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Shared {
    fn log(&self, _: rdkafka::config::RDKafkaLogLevel, _: &str, _: &str) {}

    // Connections that broke; what comes of it is told by deliveries and by reading.
    fn error(&self, _: KafkaError, _: &str) {}
}

impl ConsumerContext for Shared {}

impl ProducerContext for Shared {
    type DeliveryOpaque = Box<Instant>;

    fn delivery(&self, result: &DeliveryResult<'_>, sent: Box<Instant>) {
        let mut noticed = self.lock();
        match result {
            Ok(_) => {
                noticed.acknowledged += 1;
                noticed.longest_delivery = noticed.longest_delivery.max(sent.elapsed());
            }
            Err((error, _)) => noticed.errors.push(format!("a delivery: {error}")),
        }
    }
}

/// Restarts the nodes one after the other, each once all before it are in sync again.
pub fn restart_all(cluster: &mut Cluster, topic: &Topic, partitions: i32) -> Result<Noticed> {
    let shared = Shared::default();
    let bootstrap = cluster.bootstrap();
    let clients = [
        std::thread::spawn({
            let (shared, bootstrap, name) = (shared.clone(), bootstrap.clone(), topic.name.clone());
            move || produce(&shared, &bootstrap, &name, partitions)
        }),
        std::thread::spawn({
            let (shared, name) = (shared.clone(), topic.name.clone());
            move || consume(&shared, &bootstrap, &name)
        }),
    ];
    std::thread::sleep(AROUND);
    let begun = Instant::now();
    let restarted = restart_each(cluster);
    let took = begun.elapsed();
    std::thread::sleep(AROUND);
    shared.stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().map_err(|_| anyhow!("a client panicked"))??;
    }
    restarted?;
    let mut noticed = shared.lock().clone();
    noticed.took = took;
    Ok(noticed)
}

fn restart_each(cluster: &mut Cluster) -> Result<()> {
    for number in cluster.numbers() {
        let status = cluster.node(number)?.terminate(NODE_PATIENCE)?;
        // Kafka's nodes end with 143 when asked to by a signal.
        ensure!(
            status.success() || status.code() == Some(143),
            "node {number} ended with {status}"
        );
        cluster.launch(number)?;
        cluster.await_members(NODE_PATIENCE)?;
        cluster.await_in_sync(NODE_PATIENCE)?;
    }
    Ok(())
}

fn produce(shared: &Shared, bootstrap: &str, topic: &str, partitions: i32) -> Result<()> {
    let producer: ThreadedProducer<Shared> = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("enable.idempotence", "true")
        .create_with_context(shared.clone())?;
    let value = vec![b'r'; RECORD_BYTES];
    for partition in (0..partitions).cycle() {
        if shared.stop.load(Ordering::Relaxed) {
            break;
        }
        let record: BaseRecord<'_, (), [u8], Box<Instant>> =
            BaseRecord::with_opaque_to(topic, Box::new(Instant::now()))
                .partition(partition)
                .payload(&value);
        match producer.send(record) {
            Ok(()) | Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {}
            Err((error, _)) => shared.lock().errors.push(format!("a send: {error}")),
        }
        std::thread::sleep(PACE);
    }
    producer.flush(FINISH_PATIENCE)?;
    shared.all_told.store(true, Ordering::Relaxed);
    Ok(())
}

/// Reads until all that was acknowledged has come.
fn consume(shared: &Shared, bootstrap: &str, topic: &str) -> Result<()> {
    let consumer: BaseConsumer<Shared> = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", "rolling")
        .set("auto.offset.reset", "earliest")
        .create_with_context(shared.clone())?;
    consumer.subscribe(&[topic])?;
    let mut next: BTreeMap<i32, i64> = BTreeMap::new();
    let mut read = 0;
    let mut last: Option<Instant> = None;
    let mut deadline = None;
    loop {
        if shared.all_told.load(Ordering::Relaxed) {
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + FINISH_PATIENCE);
            let acknowledged = shared.lock().acknowledged;
            if read >= acknowledged || Instant::now() >= deadline {
                shared.lock().missed_or_doubled += read.abs_diff(acknowledged);
                return Ok(());
            }
        }
        match consumer.poll(Duration::from_millis(100)) {
            None => {}
            Some(Ok(message)) => {
                read += 1;
                let next = next.entry(message.partition()).or_insert(0);
                let gap = last.map_or(Duration::ZERO, |last| last.elapsed());
                last = Some(Instant::now());
                let mut noticed = shared.lock();
                noticed.longest_gap = noticed.longest_gap.max(gap);
                if message.offset() != *next {
                    noticed.missed_or_doubled += 1;
                }
                *next = message.offset() + 1;
            }
            Some(Err(error)) if is_about_a_connection(&error) => {}
            Some(Err(error)) => shared.lock().errors.push(format!("a poll: {error}")),
        }
    }
}

/// librdkafka tells an application of connections that broke, and makes them again by itself.
fn is_about_a_connection(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::BrokerTransportFailure
                | RDKafkaErrorCode::AllBrokersDown
                | RDKafkaErrorCode::OperationTimedOut
        )
    )
}
