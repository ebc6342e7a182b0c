//! Load whose every acknowledgement is remembered, and the check that nothing acknowledged is lost.
//!
//! Producers write records that name themselves (`producer/sequence`), several requests in flight
//! on one connection, and note the offset of each acknowledgement. After the broker has died and
//! come back, [`read_back`] reads the whole log and [`History::check`] compares.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{CreateTopicsRequest, FetchRequest, ProduceRequest, TopicName};
use kafka_protocol::records::RecordBatchDecoder;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::batches::{BatchSpec, RecordSpec};
use crate::requests::wait_until_all_answer;
use crate::wire::{Wire, WireError, text};

const PRODUCE_VERSION: i16 = 9;
const FETCH_VERSION: i16 = 12;
const CREATE_TOPICS_VERSION: i16 = 7;

/// Requests that a producer keeps in flight.
const IN_FLIGHT: usize = 8;

/// How long reading one partition back may take, waiting for its leader included.
const READING_PATIENCE: Duration = Duration::from_secs(60);

/// A record that the broker acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// Partition of the topic.
    pub partition: i32,
    /// The offset that the answer gave.
    pub offset: i64,
    /// The record's name for itself.
    pub name: String,
}

/// Everything acknowledged on one topic.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// In no particular order.
    pub acknowledged: Vec<Acknowledged>,
}

/// The records of a partition as they are read back: offset and value.
pub type ReadBack = BTreeMap<i32, Vec<(i64, String)>>;

/// Creates a topic with small segments, so that rolls happen under load, and waits for its leaders.
pub fn create_topic(address: SocketAddr, name: &str, partitions: i32) -> Result<()> {
    let request = CreateTopicsRequest::default()
        .with_timeout_ms(20_000)
        .with_topics(vec![
            CreatableTopic::default()
                .with_name(TopicName(text(name)))
                .with_num_partitions(partitions)
                .with_replication_factor(1)
                .with_configs(vec![
                    CreatableTopicConfig::default()
                        .with_name(text("segment.bytes"))
                        .with_value(Some(text("1048576"))),
                ]),
        ]);
    let answer = Wire::connect(address)?.call(CREATE_TOPICS_VERSION, &request)?;
    for topic in &answer.topics {
        ensure!(
            topic.error_code == 0,
            "creating {name}: error {}",
            topic.error_code
        );
    }
    // Reading waits until every partition is led, so that the load meets no error at its start.
    read_back(address, name, partitions)?;
    Ok(())
}

/// Sends one record with `acks=all`; its offset, or the error code of the answer.
pub fn produce_one(
    wire: &mut Wire,
    topic: &str,
    partition: i32,
    value: &str,
) -> Result<Result<i64, i16>> {
    let batch = BatchSpec {
        records: vec![RecordSpec::value(value.to_owned())],
        ..BatchSpec::default()
    }
    .build()?;
    let request = produce_request(topic, partition, batch);
    let correlation_id = wire.send(PRODUCE_VERSION, &request)?;
    let partition = receive_produced(wire, correlation_id)?;
    Ok(match partition.error_code {
        0 => Ok(partition.base_offset),
        code => Err(code),
    })
}

/// The one partition of the answer to a Produce request.
fn receive_produced(wire: &mut Wire, correlation_id: i32) -> Result<PartitionProduceResponse> {
    let answer = wire.receive::<ProduceRequest>(PRODUCE_VERSION, correlation_id)?;
    let mut partitions = answer
        .responses
        .into_iter()
        .flat_map(|topic| topic.partition_responses);
    partitions.next().context("an answer without a partition")
}

fn produce_request(topic: &str, partition: i32, batch: Bytes) -> ProduceRequest {
    let data = PartitionProduceData::default()
        .with_index(partition)
        .with_records(Some(batch));
    ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(10_000)
        .with_topic_data(vec![
            TopicProduceData::default()
                .with_name(TopicName(text(topic)))
                .with_partition_data(vec![data]),
        ])
}

/// Producers that run until they are stopped or the broker dies.
pub struct Load {
    stop: Arc<AtomicBool>,
    producers: Vec<JoinHandle<Vec<Acknowledged>>>,
}

impl Load {
    /// Starts `producers` threads on a topic.
    pub fn start(
        address: SocketAddr,
        topic: &str,
        partitions: i32,
        producers: u64,
        seed: u64,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let producers = (0..producers)
            .map(|number| {
                let producer = Producer {
                    address,
                    topic: topic.to_owned(),
                    partitions,
                    number,
                    rng: StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(number)),
                    stop: Arc::clone(&stop),
                    acknowledged: Vec::new(),
                };
                std::thread::spawn(move || producer.run())
            })
            .collect();
        Self { stop, producers }
    }

    /// Stops sending and gathers what was acknowledged.
    pub fn finish(self) -> Result<History> {
        self.stop.store(true, Ordering::Relaxed);
        let mut history = History::default();
        for producer in self.producers {
            let acknowledged = producer
                .join()
                .map_err(|_| anyhow::anyhow!("a producer panicked"))?;
            history.acknowledged.extend(acknowledged);
        }
        Ok(history)
    }
}

struct Producer {
    address: SocketAddr,
    topic: String,
    partitions: i32,
    number: u64,
    rng: StdRng,
    stop: Arc<AtomicBool>,
    acknowledged: Vec<Acknowledged>,
}

struct InFlight {
    correlation_id: i32,
    partition: i32,
    names: Vec<String>,
}

impl Producer {
    /// Ends at the first failure: what the broker did not acknowledge may or may not be there.
    fn run(mut self) -> Vec<Acknowledged> {
        if let Err(error) = self.produce()
            && !matches!(error.downcast_ref(), Some(WireError::Closed))
        {
            eprintln!("producer {} ends: {error:#}", self.number);
        }
        self.acknowledged
    }

    fn produce(&mut self) -> Result<()> {
        let mut wire = Wire::connect(self.address)?;
        wire.set_patience(Duration::from_secs(10))?;
        let mut in_flight = std::collections::VecDeque::new();
        let mut sequence = 0;
        loop {
            let stopping = self.stop.load(Ordering::Relaxed);
            if stopping && in_flight.is_empty() {
                return Ok(());
            }
            if !stopping && in_flight.len() < IN_FLIGHT {
                in_flight.push_back(self.send(&mut wire, &mut sequence)?);
                continue;
            }
            if let Some(oldest) = in_flight.pop_front() {
                self.receive(&mut wire, oldest)?;
            }
        }
    }

    fn send(&mut self, wire: &mut Wire, sequence: &mut u64) -> Result<InFlight> {
        let partition = self.rng.random_range(0..self.partitions);
        let mut names = Vec::new();
        let mut records = Vec::new();
        for _ in 0..self.rng.random_range(1..=10) {
            let name = format!("{}/{sequence}", self.number);
            *sequence += 1;
            let padding = self.rng.random_range(0..1500);
            records.push(RecordSpec::value(format!("{name}/{}", "x".repeat(padding))));
            names.push(name);
        }
        let batch = BatchSpec {
            records,
            ..BatchSpec::default()
        }
        .build()?;
        let request = produce_request(&self.topic, partition, batch);
        let correlation_id = wire.send(PRODUCE_VERSION, &request)?;
        Ok(InFlight {
            correlation_id,
            partition,
            names,
        })
    }

    fn receive(&mut self, wire: &mut Wire, sent: InFlight) -> Result<()> {
        let partition = receive_produced(wire, sent.correlation_id)?;
        ensure!(
            partition.error_code == 0,
            "produce: error {}",
            partition.error_code
        );
        for (offset, name) in (partition.base_offset..).zip(sent.names) {
            self.acknowledged.push(Acknowledged {
                partition: sent.partition,
                offset,
                name,
            });
        }
        Ok(())
    }
}

/// Reads every partition of a topic from its start to its end.
pub fn read_back(address: SocketAddr, topic: &str, partitions: i32) -> Result<ReadBack> {
    let mut wire = Wire::connect(address)?;
    // What is read may come from a node that does not lead yet; what is written next may not.
    wait_until_all_answer(&mut wire, topic, partitions)?;
    (0..partitions)
        .map(|partition| {
            let records = read_partition(&mut wire, topic, partition)
                .with_context(|| format!("reading {topic}-{partition}"))?;
            Ok((partition, records))
        })
        .collect()
}

fn read_partition(wire: &mut Wire, topic: &str, partition: i32) -> Result<Vec<(i64, String)>> {
    let mut records = Vec::new();
    let mut next_offset = 0;
    let deadline = Instant::now() + READING_PATIENCE;
    loop {
        ensure!(
            Instant::now() < deadline,
            "still reading after {READING_PATIENCE:?}, at offset {next_offset}"
        );
        let request = FetchRequest::default()
            .with_max_wait_ms(0)
            .with_min_bytes(0)
            .with_max_bytes(16 << 20)
            .with_session_epoch(-1)
            .with_topics(vec![
                FetchTopic::default()
                    .with_topic(TopicName(text(topic)))
                    .with_partitions(vec![
                        FetchPartition::default()
                            .with_partition(partition)
                            .with_fetch_offset(next_offset)
                            .with_partition_max_bytes(16 << 20),
                    ]),
            ]);
        let answer = wire.call(FETCH_VERSION, &request)?;
        ensure!(answer.error_code == 0, "fetch: error {}", answer.error_code);
        let data = answer
            .responses
            .first()
            .and_then(|topic| topic.partitions.first())
            .context("an answer without the partition")?;
        match data.error_code {
            0 => {}
            // The topic is not known yet or not led: UNKNOWN_TOPIC_OR_PARTITION,
            // LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER.
            3 | 5 | 6 => {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            code => bail!("fetch at {next_offset}: error {code}"),
        }
        if data.high_watermark == next_offset {
            return Ok(records);
        }
        let mut bytes: Bytes = data.records.clone().unwrap_or_default();
        ensure!(
            !bytes.is_empty(),
            "no records at {next_offset} below {}",
            data.high_watermark
        );
        for set in RecordBatchDecoder::decode_all(&mut bytes)? {
            for record in set.records {
                if record.offset < next_offset {
                    continue;
                }
                let value = record.value.context("a record without a value")?;
                records.push((record.offset, String::from_utf8(value.to_vec())?));
                next_offset = record.offset + 1;
            }
        }
    }
}

impl History {
    /// Adds another history of the same topic.
    pub fn extend(&mut self, other: History) {
        self.acknowledged.extend(other.acknowledged);
    }

    /// Number of acknowledged records that the log does not hold at their offsets.
    pub fn lost(&self, log: &ReadBack) -> usize {
        let index = index(log);
        self.acknowledged
            .iter()
            .filter(|record| !is_there(&index, record))
            .count()
    }

    /// Every acknowledged record is at its offset; offsets have no gaps; no record stands twice;
    /// each producer's records are in the order it sent them.
    pub fn check(&self, log: &ReadBack) -> Result<()> {
        let index = index(log);
        for record in &self.acknowledged {
            ensure!(
                is_there(&index, record),
                "acknowledged and gone: {record:?}; the partition holds offsets up to {:?}, there: {:?}",
                log.get(&record.partition)
                    .and_then(|records| records.last())
                    .map(|(offset, _)| offset),
                index.get(&(record.partition, record.offset))
            );
        }
        let mut seen = HashMap::new();
        for (partition, records) in log {
            let mut last_of_producer: HashMap<&str, u64> = HashMap::new();
            for (position, (offset, value)) in records.iter().enumerate() {
                ensure!(
                    *offset == position as i64,
                    "partition {partition}: offset {offset} at position {position}"
                );
                let (producer, sequence) = parse_name(value)?;
                if let Some(previous) = seen.insert((producer, sequence), (*partition, *offset)) {
                    bail!(
                        "{producer}/{sequence} stands at {previous:?} and at {partition}@{offset}"
                    );
                }
                if let Some(previous) = last_of_producer.insert(producer, sequence) {
                    ensure!(
                        previous < sequence,
                        "partition {partition}: {producer}/{sequence} after {previous}"
                    );
                }
            }
        }
        Ok(())
    }
}

fn parse_name(value: &str) -> Result<(&str, u64)> {
    let mut parts = value.split('/');
    let producer = parts.next().context("an empty value")?;
    let sequence = parts
        .next()
        .with_context(|| format!("no sequence in {value:.40}"))?;
    Ok((producer, sequence.parse()?))
}

fn index(log: &ReadBack) -> HashMap<(i32, i64), &str> {
    log.iter()
        .flat_map(|(partition, records)| {
            records
                .iter()
                .map(move |(offset, value)| ((*partition, *offset), value.as_str()))
        })
        .collect()
}

fn is_there(index: &HashMap<(i32, i64), &str>, record: &Acknowledged) -> bool {
    index
        .get(&(record.partition, record.offset))
        .is_some_and(|value| {
            value
                .strip_prefix(record.name.as_str())
                .is_some_and(|rest| rest.starts_with('/'))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(records: &[(i32, i64, &str)]) -> History {
        History {
            acknowledged: records
                .iter()
                .map(|(partition, offset, name)| Acknowledged {
                    partition: *partition,
                    offset: *offset,
                    name: (*name).to_owned(),
                })
                .collect(),
        }
    }

    fn log(records: &[(i64, &str)]) -> ReadBack {
        let records = records
            .iter()
            .map(|(offset, value)| (*offset, (*value).to_owned()))
            .collect();
        BTreeMap::from([(0, records)])
    }

    #[test]
    fn the_check_finds_loss_doubling_gaps_and_disorder() {
        let acknowledged = history(&[(0, 0, "0/0"), (0, 1, "0/1")]);
        acknowledged
            .check(&log(&[(0, "0/0/x"), (1, "0/1/"), (2, "0/2/")]))
            .unwrap();
        assert!(acknowledged.check(&log(&[(0, "0/0/x")])).is_err(), "loss");
        assert!(
            acknowledged
                .check(&log(&[(0, "0/0/x"), (1, "0/10/x")]))
                .is_err(),
            "another record"
        );
        let none = History::default();
        assert!(
            none.check(&log(&[(0, "0/0/"), (1, "0/0/")])).is_err(),
            "doubled"
        );
        assert!(
            none.check(&log(&[(0, "0/0/"), (2, "0/1/")])).is_err(),
            "gap"
        );
        assert!(
            none.check(&log(&[(0, "0/1/"), (1, "0/0/")])).is_err(),
            "disorder"
        );
    }
}
