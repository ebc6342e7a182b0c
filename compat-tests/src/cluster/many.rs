//! How long it takes until every partition that a killed node led takes records again.
//!
//! A topic has so many leaders on each node. One node is killed; from then on every partition that it led gets a record
//! with `acks=all`, and gets it again until it is acknowledged, all that are left in one request a leader. Records may
//! be doubled by that; what counts is when the last partition has acknowledged one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::ProduceRequest;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};

use super::clients::create_topic;
use super::{ClusterOptions, NodeNumber};
use crate::batches::BatchSpec;
use crate::requests::{Topic, metadata_of};
use crate::wire::Wire;

const PATIENCE: Duration = Duration::from_secs(120);
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
const BACKOFF: Duration = Duration::from_millis(20);
const PRODUCE_VERSION: i16 = 9;

/// What a round showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failover {
    /// Partitions that the killed node led.
    pub partitions: usize,
    /// From the kill to the acknowledgement of the first of them,
    pub first: Duration,
    /// and of the last.
    pub last: Duration,
}

/// Kills a node that leads about `leaders` partitions and measures how long these take no records.
pub fn measure(options: ClusterOptions, leaders: i32) -> Result<Failover> {
    let mut cluster = options.start()?;
    let addresses = cluster.addresses();
    let nodes = i32::try_from(addresses.len())?;
    let topic = create_topic(&addresses, "many", leaders * nodes, 3, &[])?;
    cluster.await_in_sync(PATIENCE)?;
    let survivor = *addresses.first().context("no node")?;
    let victim: NodeNumber = 2;
    let led = leaders_of(survivor, &topic)?;
    let mut left: BTreeSet<i32> = led
        .iter()
        .filter(|(_, leader)| leader.0 == victim)
        .map(|(&partition, _)| partition)
        .collect();
    let partitions = left.len();
    ensure!(partitions > 0, "node {victim} leads nothing");
    cluster.node(victim)?.kill9()?;
    let killed = Instant::now();
    let mut first = None;
    while !left.is_empty() {
        ensure!(
            killed.elapsed() < PATIENCE,
            "{} of {partitions} partitions take nothing after {PATIENCE:?}",
            left.len()
        );
        let mut by_leader: BTreeMap<SocketAddr, Vec<i32>> = BTreeMap::new();
        for (partition, (leader, address)) in leaders_of(survivor, &topic)? {
            if leader != victim && left.contains(&partition) {
                by_leader.entry(address).or_default().push(partition);
            }
        }
        for (address, partitions) in by_leader {
            for partition in write(address, &topic, &partitions).unwrap_or_default() {
                left.remove(&partition);
                first.get_or_insert_with(|| killed.elapsed());
            }
        }
        std::thread::sleep(BACKOFF);
    }
    let last = killed.elapsed();
    Ok(Failover {
        partitions,
        first: first.unwrap_or(last),
        last,
    })
}

/// Leader and its address of every partition that has one, as a node knows it.
fn leaders_of(
    address: SocketAddr,
    topic: &Topic,
) -> Result<BTreeMap<i32, (NodeNumber, SocketAddr)>> {
    let mut wire = Wire::connect_within(address, ANSWER_PATIENCE)?;
    let answer = wire.call(9, &metadata_of(&topic.name))?;
    let mut addresses = BTreeMap::new();
    for broker in &answer.brokers {
        let address: SocketAddr = format!("{}:{}", broker.host, broker.port).parse()?;
        addresses.insert(broker.node_id.0, address);
    }
    Ok(answer
        .topics
        .iter()
        .flat_map(|topic| &topic.partitions)
        .filter_map(|row| {
            let leader = row.leader_id.0;
            Some((row.partition_index, (leader, *addresses.get(&leader)?)))
        })
        .collect())
}

/// Writes a record to each of the partitions; those that acknowledged it.
fn write(address: SocketAddr, topic: &Topic, partitions: &[i32]) -> Result<Vec<i32>> {
    let batch = BatchSpec::small(1, 0).build()?;
    let data = partitions
        .iter()
        .map(|&partition| {
            PartitionProduceData::default()
                .with_index(partition)
                .with_records(Some(batch.clone()))
        })
        .collect();
    let request = ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(1_000)
        .with_topic_data(vec![
            TopicProduceData::default()
                .with_name(topic.name())
                .with_partition_data(data),
        ]);
    let mut wire = Wire::connect_within(address, ANSWER_PATIENCE)?;
    let answer = wire.call(PRODUCE_VERSION, &request)?;
    Ok(answer
        .responses
        .iter()
        .flat_map(|topic| &topic.partition_responses)
        .filter(|row| row.error_code == 0)
        .map(|row| row.index)
        .collect())
}
