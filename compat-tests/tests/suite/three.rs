//! A cluster with what tests ask of it again and again: who leads, a batch to whoever does, replicas that are the same.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use compat_tests::batches::BatchSpec;
use compat_tests::cluster::replicas;
use compat_tests::cluster::{Cluster, ClusterOptions, NodeNumber, Product};
use compat_tests::requests::{LATEST, Topic, creatable, list_offset, metadata_of, produce};
use compat_tests::wire::Wire;
use kafka_protocol::messages::create_topics_request::CreatableReplicaAssignment;
use kafka_protocol::messages::{BrokerId, CreateTopicsRequest};

/// How long anything may take that a cluster does by itself.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How soon to look again.
pub const PAUSE: Duration = Duration::from_millis(50);
const NOW: i64 = 1_790_000_000_000;

/// Three nodes of ours.
pub fn three() -> ClusterOptions {
    Cluster::options(Product::Odradek, 3)
}

/// A batch of so many records.
pub fn batch(count: usize) -> Result<Bytes> {
    BatchSpec::small(count, NOW).build()
}

/// What is asked of a cluster again and again.
pub struct Three {
    /// The nodes.
    pub cluster: Cluster,
}

impl Three {
    /// Starts the nodes.
    pub fn start(options: ClusterOptions) -> Result<Self> {
        Ok(Self {
            cluster: options.start()?,
        })
    }

    /// A connection to a node.
    pub fn wire(&mut self, node: NodeNumber) -> Result<Wire> {
        Wire::connect(self.cluster.node(node)?.addresses().broker)
    }

    /// A connection to any node that runs.
    pub fn any(&mut self) -> Result<Wire> {
        let running = self.cluster.running()?;
        let node = running.first().context("no node runs")?;
        self.wire(*node)
    }

    /// Creates a topic with these replicas by way of `node`.
    pub fn create(&mut self, node: NodeNumber, name: &str, replicas: &[&[i32]]) -> Result<Topic> {
        let assignments = (0..)
            .zip(replicas)
            .map(|(index, brokers)| {
                CreatableReplicaAssignment::default()
                    .with_partition_index(index)
                    .with_broker_ids(brokers.iter().copied().map(BrokerId).collect())
            })
            .collect();
        let topic = creatable(name, -1, &[])
            .with_replication_factor(-1)
            .with_assignments(assignments);
        let request = CreateTopicsRequest::default()
            .with_timeout_ms(20_000)
            .with_topics(vec![topic]);
        let answer = self.wire(node)?.call(7, &request)?;
        let created = answer.topics.first().context("no topic in the answer")?;
        ensure!(
            created.error_code == 0,
            "creating {name}: error {} {:?}",
            created.error_code,
            created.error_message
        );
        Ok(Topic {
            name: name.to_owned(),
            id: created.topic_id,
        })
    }

    /// The leader of a partition and its epoch, by whichever running node knows of the latest, once that takes
    /// requests in it.
    pub fn leader(&mut self, topic: &Topic, partition: i32) -> Result<(NodeNumber, i32)> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut newest = (-1, -1);
            for node in self.cluster.running()? {
                let Ok(answer) = self.wire(node)?.call(12, &metadata_of(&topic.name)) else {
                    continue;
                };
                let rows = answer
                    .topics
                    .iter()
                    .filter(|row| row.topic_id == topic.id)
                    .flat_map(|row| &row.partitions)
                    .filter(|row| row.partition_index == partition);
                for row in rows {
                    newest = newest.max((row.leader_epoch, row.leader_id.0));
                }
            }
            let (epoch, leader) = newest;
            if leader >= 0 && self.cluster.running()?.contains(&leader) {
                let mut wire = self.wire(leader)?;
                if list_offset(&mut wire, topic, partition, LATEST)
                    .is_ok_and(|row| row.error_code == 0)
                {
                    return Ok((leader, epoch));
                }
            }
            ensure!(
                Instant::now() < deadline,
                "{} {partition} gets no leader\n{}",
                topic.name,
                self.cluster.logs()
            );
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until another node than `last` leads.
    pub fn other_leader(
        &mut self,
        topic: &Topic,
        partition: i32,
        last: NodeNumber,
    ) -> Result<(NodeNumber, i32)> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (leader, epoch) = self.leader(topic, partition)?;
            if leader != last {
                return Ok((leader, epoch));
            }
            ensure!(Instant::now() < deadline, "{last} still leads");
            std::thread::sleep(PAUSE);
        }
    }

    /// Sends the batch to whoever leads until it is acknowledged, as a client with retries does.
    pub fn produce(&mut self, topic: &Topic, partition: i32, records: &Bytes) -> Result<i64> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (leader, _) = self.leader(topic, partition)?;
            let mut wire = self.wire(leader)?;
            let answer = produce(&mut wire, topic, partition, records.clone());
            match answer.map(|row| (row.error_code, row.base_offset)) {
                Ok((0, offset)) => return Ok(offset),
                Ok((3 | 5 | 6 | 7 | 19 | 20, _)) | Err(_) => {}
                Ok((code, _)) => bail!("produce: error {code}"),
            }
            ensure!(Instant::now() < deadline, "not acknowledged in time");
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until all replicas are in sync, and compares their files.
    pub fn require_identical(&mut self, topic: &Topic) -> Result<()> {
        self.cluster.await_in_sync(PATIENCE)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut dirs = BTreeMap::new();
            for number in self.cluster.numbers() {
                dirs.insert(number, self.cluster.node(number)?.data_dir().to_owned());
            }
            let placement = BTreeMap::from([(0, dirs.keys().copied().collect())]);
            let found = replicas::read(&dirs, &topic.name, &placement)?;
            let violations = replicas::compare(&found);
            if violations.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "replicas differ: {violations:?}");
            std::thread::sleep(PAUSE);
        }
    }
}

/// The other two of three nodes.
pub fn others(node: NodeNumber) -> (NodeNumber, NodeNumber) {
    match node {
        1 => (2, 3),
        2 => (1, 3),
        _ => (1, 2),
    }
}
