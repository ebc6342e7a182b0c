//! Brokers in one process, for tests: real groups on temporary directories over a network in memory,
//! and metadata that is held by the test and takes what leaders report.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use odradek_protocol::codec::Uuid;
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{NodeId, Offset, PartitionIndex};
use odradek_raft::memory_network::MemoryNetwork;
use odradek_raft::{RaftNode, RaftNodeOptions};
use odradek_storage::RealDisk;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::metadata_leader::{MetadataLeader, ReportError};
use super::{Supervisor, SupervisorOptions};
use crate::clock::SystemClock;
use crate::config::{BrokerConfig, ConfigStore, Settings, Voter};
use crate::follower::Follower;
use crate::metadata::controller::leader_reports::apply_reports;
use crate::metadata::image::{MetadataImage, PartitionState};
use crate::metadata::leader_report::LeaderReport;
use crate::metadata::led;
use crate::metadata::records::{
    BrokerEndpoint, MetadataRecord, PartitionChangeRecord, RegisterBrokerRecord,
};
use crate::metadata::test_support::{nodes, topic, topic_id};
use crate::partition::{AppendOptions, Partition, PartitionError, Verification};
use crate::partitions::log_dir::{LogDirectories, LogDirectory};
use crate::partitions::{PartitionManager, PartitionManagerOptions};
use crate::raft_stack::OpenedDir;
use crate::server::{ConnectionLimits, Connections};
use odradek_protocol::batch::BatchOrigin;

/// Longest time that anything may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// An append of a producer that asks for `acks=all`.
pub(crate) const CLIENT: AppendOptions = AppendOptions {
    origin: BatchOrigin::Client,
    zstd_allowed: true,
    wants_append: false,
    wants_in_sync: true,
    epoch: None,
    verification: Verification::Off,
};

/// The cluster's metadata, in one place.
#[derive(Debug)]
pub(crate) struct Metadata {
    images: watch::Sender<Arc<MetadataImage>>,
    /// Messages that came, and whether they get through.
    calls: Mutex<(usize, bool)>,
}

impl Metadata {
    fn change(&self, records: &[MetadataRecord]) -> Offset {
        let mut end = Offset::ZERO;
        self.images.send_modify(|current| {
            let mut image = MetadataImage::clone(current);
            let count = i64::try_from(records.len()).expect("few");
            end = image.next_offset().plus(count);
            image.apply(records, end).expect("applies");
            *current = Arc::new(image);
        });
        end
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.lock().0
    }

    /// From now on nothing reaches the metadata, or everything does again.
    pub(crate) fn cut_off(&self, cut_off: bool) {
        self.calls.lock().1 = cut_off;
    }
}

impl MetadataLeader for Metadata {
    fn report(&self, reports: Vec<LeaderReport>) -> BoxFuture<'_, Result<Offset, ReportError>> {
        async move {
            let cut_off = {
                let mut calls = self.calls.lock();
                calls.0 += 1;
                calls.1
            };
            tokio::time::sleep(Duration::from_millis(1)).await;
            if cut_off {
                return Err(ReportError("cut off".to_owned()));
            }
            let records = apply_reports(&self.images.borrow(), &reports);
            Ok(self.change(&records))
        }
        .boxed()
    }
}

/// One broker.
pub(crate) struct Node {
    pub(crate) raft: Arc<RaftNode>,
    pub(crate) partitions: Arc<PartitionManager>,
    tasks: [JoinHandle<()>; 2],
}

/// See the module.
pub(crate) struct Cluster {
    pub(crate) network: MemoryNetwork,
    pub(crate) metadata: Arc<Metadata>,
    pub(crate) nodes: BTreeMap<i32, Node>,
    pub(crate) config: Arc<ConfigStore>,
    dirs: BTreeMap<i32, TempDir>,
}

impl Cluster {
    /// A cluster of brokers 1 to `count`, each in a rack of its own.
    pub(crate) async fn new(count: i32) -> Self {
        let metadata = Metadata {
            images: watch::Sender::new(Arc::new(MetadataImage::default())),
            calls: Mutex::new((0, false)),
        };
        let mut cluster = Self {
            network: MemoryNetwork::new(),
            metadata: Arc::new(metadata),
            nodes: BTreeMap::new(),
            config: settings(count),
            dirs: BTreeMap::new(),
        };
        for id in 1..=count {
            cluster.register(id, false);
        }
        for id in 1..=count {
            cluster.start(id).await;
        }
        cluster
    }

    /// Registers a broker, fenced or not.
    pub(crate) fn register(&self, id: i32, fenced: bool) {
        let endpoint = BrokerEndpoint {
            name: "PLAINTEXT".to_owned(),
            host: format!("host{id}"),
            port: 9092,
            security_protocol: 0,
        };
        let record = RegisterBrokerRecord {
            broker_id: NodeId::new(id),
            incarnation_id: Uuid::from_bytes([1; 16]),
            broker_epoch: 1,
            endpoints: vec![endpoint],
            features: vec![],
            rack: Some(format!("rack{id}")),
            fenced,
            log_dirs: vec![],
        };
        self.metadata
            .change(&[MetadataRecord::RegisterBroker(record)]);
    }

    /// Starts a broker on its directory, and waits until it has carried out the metadata.
    pub(crate) async fn start(&mut self, id: i32) {
        let dir = self
            .dirs
            .entry(id)
            .or_insert_with(|| tempfile::tempdir().expect("a directory"));
        let disk = RealDisk::shared();
        let OpenedDir { health, data_dir } = OpenedDir::of(dir.path()).expect("flusher starts");
        let node_id = NodeId::new(id);
        let network = Arc::new(self.network.clone());
        let mut options = RaftNodeOptions::new(node_id, Arc::clone(&disk), vec![data_dir], network);
        options.probes = Some(Arc::new(self.network.clone()));
        let raft = RaftNode::open(options).expect("raft opens");
        self.network.add(&raft);
        let partitions = PartitionManager::new(PartitionManagerOptions {
            node_id,
            raft: Arc::clone(&raft),
            disk,
            directories: LogDirectories::new(vec![LogDirectory::new(Arc::clone(&health))], health),
            config: Arc::clone(&self.config),
            clock: SystemClock::shared(),
        });
        let images = self.metadata.images.subscribe();
        let follower = Follower {
            node_id,
            config: ConfigStore::defaults(),
            partitions: Arc::clone(&partitions),
            connections: Connections::new(ConnectionLimits::of(&self.config.load())),
            throttles: None,
        };
        let supervisor = Supervisor::new(
            SupervisorOptions {
                partitions: Arc::clone(&partitions),
                config: Arc::clone(&self.config),
                metadata: Arc::clone(&self.metadata) as Arc<dyn MetadataLeader>,
            },
            images.clone(),
        );
        let tasks = [
            tokio::spawn(follower.run(images)),
            tokio::spawn(supervisor.run()),
        ];
        let known = self.image().next_offset();
        partitions.wait_until_reconciled(known).await;
        let node = Node {
            raft,
            partitions,
            tasks,
        };
        self.nodes.insert(id, node);
    }

    /// Takes a broker away at once, as a crash would; its directory stays.
    pub(crate) async fn kill(&mut self, id: i32) {
        self.network.remove(NodeId::new(id));
        let node = self.nodes.remove(&id).expect("it runs");
        for task in node.tasks {
            task.abort();
            let _ = task.await;
        }
        node.raft.abandon().await;
    }

    /// Where a broker keeps its data.
    pub(crate) fn dir(&self, id: i32) -> &std::path::Path {
        self.dirs.get(&id).expect("it was started").path()
    }

    /// Gives a broker that does not run an empty disk.
    pub(crate) fn replace_disk(&mut self, id: i32) {
        assert!(!self.nodes.contains_key(&id));
        self.dirs.remove(&id);
    }

    pub(crate) fn image(&self) -> Arc<MetadataImage> {
        Arc::clone(&self.metadata.images.borrow())
    }

    /// Writes to the metadata.
    pub(crate) fn change(&self, records: &[MetadataRecord]) -> Offset {
        self.metadata.change(records)
    }

    /// Waits until every broker has carried out the metadata up to now.
    pub(crate) async fn carried_out(&self) {
        let end = self.image().next_offset();
        for node in self.nodes.values() {
            node.partitions.wait_until_reconciled(end).await;
        }
    }

    pub(crate) async fn create_topic(&self, name: &str, number: u8, replicas: &[&[i32]]) {
        self.change(&topic(name, number, replicas));
        self.carried_out().await;
    }

    /// Asks for other replicas, as AlterPartitionReassignments does.
    pub(crate) fn reassign(&self, number: u8, index: i32, target: &[i32]) {
        let state = self.state(number, index);
        let target = nodes(target);
        let before = state.target_replicas();
        let all = state.replicas.iter().chain(&before);
        let mut replicas = target.clone();
        for node in all {
            if !replicas.contains(node) {
                replicas.push(*node);
            }
        }
        let adding: Vec<_> = target
            .iter()
            .copied()
            .filter(|node| !before.contains(node))
            .collect();
        let removing = replicas
            .iter()
            .copied()
            .filter(|node| !target.contains(node));
        self.change(&[MetadataRecord::PartitionChange(PartitionChangeRecord {
            topic_id: topic_id(number),
            partition: PartitionIndex::new(index),
            isr: None,
            leader: None,
            leader_epoch: None,
            removing_replicas: Some(removing.collect()),
            adding_replicas: Some(adding),
            replicas: Some(replicas),
            directories: None,
            begun: None,
        })]);
    }

    /// What the metadata says of a partition.
    pub(crate) fn state(&self, number: u8, index: i32) -> PartitionState {
        let image = self.image();
        let topic = image.topic_by_id(topic_id(number)).expect("exists");
        topic
            .partition(PartitionIndex::new(index))
            .expect("exists")
            .clone()
    }

    /// Has a broker wait until all partitions of a topic are led, which the metadata below `known` has.
    pub(crate) async fn until_led(
        &self,
        id: i32,
        known: Offset,
        number: u8,
    ) -> Result<(), ErrorCode> {
        let node = self.nodes.get(&id).expect("it runs");
        let images = self.metadata.images.subscribe();
        let (topic, all) = (topic_id(number), 0..usize::MAX);
        led::until_led(&node.partitions, images, known, topic, all).await
    }

    /// A broker's replica, once it is open.
    pub(crate) async fn replica(&self, id: i32, number: u8, index: i32) -> Arc<Partition> {
        let node = self.nodes.get(&id).expect("it runs");
        eventually("a replica is open", || {
            node.partitions
                .get(topic_id(number), PartitionIndex::new(index))
        })
        .await
    }

    /// The broker that leads and takes writes, and its replica.
    pub(crate) async fn leader(&self, number: u8, index: i32) -> (i32, Arc<Partition>) {
        eventually("a partition is led", || {
            let leading = self.nodes.iter().filter_map(|(id, node)| {
                let index = PartitionIndex::new(index);
                let partition = node.partitions.get(topic_id(number), index)?;
                let epoch = partition.require_ready_leader().ok()?;
                Some((epoch, *id, partition))
            });
            leading
                .max_by_key(|(epoch, ..)| *epoch)
                .map(|(_, id, partition)| (id, partition))
        })
        .await
    }

    /// Sends a batch to whoever leads until it is committed, as an idempotent producer does.
    pub(crate) async fn produce(&self, number: u8, index: i32, batch: Bytes) -> i64 {
        let producing = async {
            loop {
                let (_, leader) = self.leader(number, index).await;
                match append(&leader, batch.clone()).await {
                    Ok(offset) => return offset,
                    Err(error) if error.error_code().retriable() => {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                    Err(error) => panic!("refused: {error}"),
                }
            }
        };
        tokio::time::timeout(LIMIT, producing)
            .await
            .expect("produced in time")
    }

    /// Waits until the metadata says what `wanted` looks for.
    pub(crate) async fn until(
        &self,
        what: &str,
        number: u8,
        index: i32,
        wanted: impl Fn(&PartitionState) -> bool,
    ) -> PartitionState {
        eventually(what, || {
            let state = self.state(number, index);
            wanted(&state).then_some(state)
        })
        .await
    }

    /// Waits until these brokers hold the same bytes.
    pub(crate) async fn until_identical(&self, on: &[i32], number: u8, index: i32) {
        let mut replicas = Vec::new();
        for id in on {
            replicas.push(self.replica(*id, number, index).await);
        }
        eventually("replicas are identical", || {
            let logs: Vec<Bytes> = replicas.iter().map(|replica| log_of(replica)).collect();
            let same = logs.windows(2).all(|pair| pair[0] == pair[1]);
            (same && logs.iter().all(|log| !log.is_empty())).then_some(())
        })
        .await;
    }
}

/// Settings of a node that is not alone.
fn settings(nodes: i32) -> Arc<ConfigStore> {
    let mut config = BrokerConfig::defaults();
    let voter = |id| Voter {
        id: NodeId::new(id),
        host: format!("host{id}"),
        port: 9093,
    };
    config.cluster.voters = (1..=nodes).map(voter).collect();
    config.replication.rack_aware_reads = true;
    ConfigStore::new(Settings::new(), config)
}

fn log_of(partition: &Partition) -> Bytes {
    let reader = partition.reader();
    let slice = reader.read(reader.log_start(), usize::MAX, reader.log_end(), true);
    slice
        .ok()
        .and_then(|slice| slice.read().ok())
        .unwrap_or_default()
}

/// Appends a batch and waits for it, five seconds at most.
pub(crate) async fn append(partition: &Partition, batch: Bytes) -> Result<i64, PartitionError> {
    let appending = partition.append(batch, CLIENT)?;
    let outcome = appending.committed_within(Duration::from_secs(5)).await;
    outcome.map(|outcome| outcome.base_offset.get())
}

/// Waits until `look` finds something.
pub(crate) async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    match tokio::time::timeout(LIMIT, looking).await {
        Ok(found) => found,
        Err(_) => panic!("not in time: {what}"),
    }
}
