//! Clients that work on a topic while faults happen, and write down what they do and see.
//!
//! - [`producer`]: producers on plain sockets, idempotent or sending everything once;
//! - [`librdkafka`]: an idempotent producer of librdkafka;
//! - [`java`]: Kafka's own producer, idempotent as it comes, and its consumer;
//! - [`reader`]: readers that follow every partition, and askers for the latest offset at every node;
//! - [`copier`], [`librdkafka_copier`]: transactional producers that commit a group's offsets with what they write, to
//!   a topic of their own that [`committed_reader`]s read;
//! - [`member`]: members of groups of both protocols, and auditors that ask every node what is committed.
//!
//! All of them look for leaders themselves ([`Router`]), try again after every error, and stop when told to.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use kafka_protocol::messages::CreateTopicsRequest;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::NodeNumber;
use super::history::{
    CommittedTopic, FinalLog, FinalPartition, Partition, Promise, Recorder, Seen, SentAs,
};
use crate::requests::{
    EARLIEST, LATEST, Topic, creatable, fetch_request, first_partition, list_offset, metadata_of,
    records_of,
};
use crate::wire::Wire;

pub mod committed_reader;
pub mod coordinator;
pub mod copier;
pub mod holdings;
pub mod java;
pub mod librdkafka;
pub mod librdkafka_copier;
pub mod member;
pub mod producer;
pub mod reader;

use super::history::Name;
use copier::Dialect;

/// How long one question about leaders may take.
const ROUTE_PATIENCE: Duration = Duration::from_millis(500);
/// How long clients try to finish what they sent, once they were told to stop.
const FINISH_PATIENCE: Duration = Duration::from_secs(60);
/// How long reading the whole topic back may take.
const READING_PATIENCE: Duration = Duration::from_secs(120);

/// Pause after an error, so that nobody is flooded.
pub(super) const BACKOFF: Duration = Duration::from_millis(20);

/// Finds the leaders of a topic's partitions by asking one node after the other. Like any client it does not go back
/// to a leader of an older epoch.
pub struct Router {
    addresses: Vec<SocketAddr>,
    topic: Topic,
    next: usize,
    epochs: HashMap<Partition, i32>,
}

impl Router {
    /// A router that starts with a node drawn by `start`.
    pub fn new(addresses: &[SocketAddr], topic: &Topic, start: usize) -> Self {
        Self {
            addresses: addresses.to_vec(),
            topic: topic.clone(),
            next: start,
            epochs: HashMap::new(),
        }
    }

    /// The leader's node number, address and epoch, by the node that is next to be asked.
    pub fn leader(&mut self, partition: Partition) -> Result<(NodeNumber, SocketAddr, i32)> {
        let address = self.addresses[self.next % self.addresses.len()];
        self.next += 1;
        let mut wire = Wire::connect_within(address, ROUTE_PATIENCE)?;
        let answer = wire.call(9, &metadata_of(&self.topic.name))?;
        let row = answer
            .topics
            .iter()
            .flat_map(|topic| &topic.partitions)
            .find(|row| row.partition_index == partition)
            .context("no such partition")?;
        let known = self.epochs.entry(partition).or_insert(-1);
        ensure!(
            row.leader_epoch >= *known,
            "{address} knows epoch {} and not {known}",
            row.leader_epoch
        );
        *known = row.leader_epoch;
        let leader = answer
            .brokers
            .iter()
            .find(|broker| broker.node_id == row.leader_id)
            .with_context(|| format!("partition {partition} has no leader"))?;
        let address = format!("{}:{}", leader.host, leader.port).parse()?;
        Ok((leader.node_id.0, address, row.leader_epoch))
    }

    /// A connection to the leader.
    pub fn connect(&mut self, partition: Partition, patience: Duration) -> Result<Wire> {
        let (_, address, _) = self.leader(partition)?;
        Wire::connect_within(address, patience)
    }
}

/// Creates the topic with small segments, so that segments roll under load, and waits until every node knows all
/// leaders.
pub fn create_topic(
    addresses: &[SocketAddr],
    name: &str,
    partitions: i32,
    copies: i16,
    configs: &[(&str, &str)],
) -> Result<Topic> {
    let deadline = Instant::now() + FINISH_PATIENCE;
    let topic = creatable(name, partitions, configs).with_replication_factor(copies);
    let request = CreateTopicsRequest::default()
        .with_timeout_ms(20_000)
        .with_topics(vec![topic]);
    let mut next = 0;
    let topic = loop {
        let address = addresses[next % addresses.len()];
        next += 1;
        let created = Wire::connect(address).and_then(|mut wire| {
            let answer = wire.call(7, &request)?;
            let topic = answer.topics.into_iter().next();
            topic.context("no topic in the answer")
        });
        match created {
            Ok(created) if created.error_code == 0 => {
                break Topic {
                    name: name.to_owned(),
                    id: created.topic_id,
                };
            }
            other if Instant::now() >= deadline => bail!("creating {name}: {other:?}"),
            _ => std::thread::sleep(BACKOFF),
        }
    };
    for &address in addresses {
        let mut router = Router::new(&[address], &topic, 0);
        for partition in 0..partitions {
            while let Err(error) = router.leader(partition) {
                ensure!(
                    Instant::now() < deadline,
                    "{name}-{partition} has no leader at {address}: {error:#}"
                );
                std::thread::sleep(BACKOFF);
            }
        }
    }
    Ok(topic)
}

/// What the clients of a load share.
#[derive(Clone)]
pub struct Shared {
    /// Where the nodes are.
    pub addresses: Vec<SocketAddr>,
    /// What is worked on.
    pub topic: Topic,
    /// Its partitions.
    pub partitions: i32,
    /// Where everything is written down.
    pub recorder: Recorder,
    stop: Arc<AtomicBool>,
}

impl Shared {
    /// For these nodes and this topic.
    pub fn new(addresses: &[SocketAddr], topic: &Topic, partitions: i32) -> Self {
        Self {
            addresses: addresses.to_vec(),
            topic: topic.clone(),
            partitions,
            recorder: Recorder::default(),
            stop: Arc::default(),
        }
    }

    /// Tells all clients to stop.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether nothing new shall be begun.
    pub fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Makes the names of a producer's records.
struct Names {
    producer: u32,
    next_sequence: u64,
}

impl Names {
    fn new(recorder: &Recorder, promise: Promise) -> Self {
        Self {
            producer: recorder.new_producer(promise),
            next_sequence: 0,
        }
    }

    fn next(&mut self) -> Name {
        self.next_sequence += 1;
        Name {
            producer: self.producer,
            sequence: self.next_sequence - 1,
        }
    }
}

/// Running clients of all kinds.
pub struct Load {
    shared: Shared,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Load {
    /// For each partition an idempotent producer, one that sends everything once, and a reader; for each node an asker;
    /// and one producer of librdkafka. With `java`, Kafka's producer and consumer as well.
    pub fn start(shared: &Shared, seed: u64, java: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut threads = Vec::new();
        for partition in 0..shared.partitions {
            for promise in [Promise::Idempotent, Promise::SentOnce] {
                let producer =
                    producer::Producer::new(shared.clone(), partition, promise, rng.random());
                threads.push(std::thread::spawn(move || producer.run()));
            }
            let reader = reader::Reader::new(shared.clone(), partition, rng.random());
            threads.push(std::thread::spawn(move || reader.run()));
        }
        for (index, &address) in shared.addresses.iter().enumerate() {
            let asker = reader::Asker::new(shared.clone(), index, address);
            threads.push(std::thread::spawn(move || asker.run()));
        }
        let producer = librdkafka::Producer::new(shared.clone(), rng.random());
        threads.push(std::thread::spawn(move || producer.run()));
        if java {
            let client = java::Client::new(shared.clone(), rng.random());
            threads.push(std::thread::spawn(move || client.run()));
        }
        Self {
            shared: shared.clone(),
            threads,
        }
    }

    /// Tells all to stop and waits until they have finished what they began.
    pub fn finish(mut self) -> Result<()> {
        self.shared.stop();
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        end(&self.shared, &mut self.threads);
    }
}

/// Ends clients whose campaign has failed. The next cluster may have the addresses of this one, and whoever went on would
/// write into it what belongs here.
fn end(shared: &Shared, threads: &mut Vec<JoinHandle<Result<()>>>) {
    shared.stop();
    for thread in threads.drain(..) {
        // Why the campaign failed is known; what its clients say besides is of no interest.
        let _ = thread.join();
    }
}

/// Members of each group at a time.
const MEMBERS: usize = 2;
/// How copiers on plain sockets speak, one for each.
const COPIERS: [Dialect; 2] = [Dialect::ChangesEpochs, Dialect::AddsPartitions];
/// Number of the copier of librdkafka.
const LIBRDKAFKA_COPIER: u32 = COPIERS.len() as u32;

/// Running members of groups, copiers, and those who look at what they do.
pub struct Coordinated {
    shared: Shared,
    output: Topic,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Coordinated {
    /// Two members for each of two groups on the topic under load, an auditor for each node; copiers to
    /// `output`, which has as many partitions, and a reader of each of these.
    pub fn start(shared: &Shared, output: &Topic, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut threads = Vec::new();
        for index in 0..MEMBERS {
            let member = member::ClassicMember::new(shared.clone(), rng.random());
            threads.push(std::thread::spawn(move || member.run()));
            let name = format!("member-{index}");
            let member = member::ConsumerMember::new(shared.clone(), &name, rng.random());
            threads.push(std::thread::spawn(move || member.run()));
        }
        for (index, &address) in shared.addresses.iter().enumerate() {
            let auditor = member::Auditor::new(shared.clone(), index, address);
            threads.push(std::thread::spawn(move || auditor.run()));
        }
        let partitions = shared.partitions;
        for (number, dialect) in (0..).zip(COPIERS) {
            let (shared, seed) = (shared.clone(), rng.random());
            let copier = copier::Copier::new(shared, output, partitions, number, dialect, seed);
            threads.push(std::thread::spawn(move || copier.run()));
        }
        let number = LIBRDKAFKA_COPIER;
        let copier = librdkafka_copier::LibrdkafkaCopier::new(
            shared.clone(),
            output,
            partitions,
            number,
            rng.random(),
        );
        threads.push(std::thread::spawn(move || copier.run()));
        for partition in 0..partitions {
            let (shared, seed) = (shared.clone(), rng.random());
            let reader = committed_reader::CommittedReader::new(shared, output, partition, seed);
            threads.push(std::thread::spawn(move || reader.run()));
        }
        Self {
            shared: shared.clone(),
            output: output.clone(),
            threads,
        }
    }

    /// Waits until all, having been told to stop, have finished what they began; what is there then.
    pub fn finish(mut self) -> Result<CommittedTopic> {
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        let copiers = LIBRDKAFKA_COPIER + 1;
        let partitions = self.shared.partitions;
        committed_reader::read_committed(&self.shared, &self.output, partitions, copiers)
    }
}

impl Drop for Coordinated {
    fn drop(&mut self) {
        end(&self.shared, &mut self.threads);
    }
}

/// Reads the whole topic from its leaders.
pub fn read_all(shared: &Shared) -> Result<FinalLog> {
    let mut log = FinalLog::default();
    for partition in 0..shared.partitions {
        let deadline = Instant::now() + READING_PATIENCE;
        let mut router = Router::new(&shared.addresses, &shared.topic, 0);
        let read = loop {
            let read = router
                .connect(partition, Duration::from_secs(10))
                .and_then(|mut wire| read_partition(&mut wire, &shared.topic, partition));
            match read {
                Ok(read) => break read,
                Err(error) if Instant::now() >= deadline => {
                    return Err(error.context(format!("reading partition {partition} back")));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        };
        log.partitions.insert(partition, read);
    }
    Ok(log)
}

/// Reads a partition from its start to its end as the node at the other end of the connection has it.
pub fn read_partition(
    wire: &mut Wire,
    topic: &Topic,
    partition: Partition,
) -> Result<FinalPartition> {
    let bound = |wire: &mut Wire, timestamp| -> Result<i64> {
        let answer = list_offset(wire, topic, partition, timestamp)?;
        ensure!(answer.error_code == 0, "bound: error {}", answer.error_code);
        Ok(answer.offset)
    };
    let log_start = bound(wire, EARLIEST)?;
    let end = bound(wire, LATEST)?;
    let records = read_range(wire, topic, partition, log_start, end)?;
    Ok(FinalPartition {
        log_start,
        end,
        records,
    })
}

/// Reads the records from `from` up to `end` from one node, which need not be the leader.
pub fn read_range(
    wire: &mut Wire,
    topic: &Topic,
    partition: Partition,
    from: i64,
    end: i64,
) -> Result<Vec<Seen>> {
    let mut records = Vec::new();
    let mut next_offset = from;
    while next_offset < end {
        let request = fetch_request(12, topic, &[(partition, next_offset, 4 << 20)]);
        let data = first_partition(wire.call(12, &request)?)?;
        ensure!(
            data.error_code == 0,
            "fetch at {next_offset}: error {}",
            data.error_code
        );
        let before = next_offset;
        for seen in seen_in(data.records, next_offset)? {
            next_offset = seen.offset + 1;
            records.push(seen);
        }
        ensure!(next_offset > before, "nothing at {before} below {end}");
    }
    Ok(records)
}

/// The records of a fetch answer from an offset on.
pub fn seen_in(bytes: Option<bytes::Bytes>, from: i64) -> Result<Vec<Seen>> {
    Ok(records_of(bytes)?
        .into_iter()
        .filter(|record| record.offset >= from)
        .map(|record| Seen {
            offset: record.offset,
            name: record.value.as_deref().and_then(Name::parse),
            epoch: record.partition_leader_epoch,
            sent_as: (record.producer_id >= 0).then_some(SentAs {
                producer_id: record.producer_id,
                epoch: record.producer_epoch,
                sequence: record.sequence,
            }),
        })
        .collect())
}
