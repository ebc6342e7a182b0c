//! A broker's data path on a temporary directory, with real groups, for tests.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use odradek_protocol::ids::{
    NodeId, Offset, PartitionIndex, ProducerEpoch, ProducerId, Sequence, TimestampMs, TopicId,
};
use odradek_protocol::records::{BatchBuilder, NewRecord};
use odradek_raft::network::NoNetwork;
use odradek_raft::{RaftNode, RaftNodeOptions};
use odradek_storage::{LogDirHealth, RealDisk};
use tempfile::TempDir;

use super::log_dir::{LogDirectories, LogDirectory};
use super::{PartitionManager, PartitionManagerOptions};
use crate::clock::ManualClock;
use crate::config::ConfigStore;
use crate::metadata::image::{ConfigResource, MetadataImage};
use crate::metadata::records::{ConfigRecord, MetadataRecord};
pub(crate) use crate::metadata::test_support::topic_id;
use crate::metadata::test_support::{partition, topic};
use crate::partition::Partition;
use crate::raft_stack::OpenedDir;

/// The time at which every fixture starts.
pub(crate) const START: TimestampMs = TimestampMs::new(1_700_000_000_000);
const NODE: NodeId = NodeId::new(1);

/// See the module.
pub(crate) struct Fixture {
    pub(crate) dir: TempDir,
    pub(crate) others: Vec<TempDir>,
    pub(crate) clock: ManualClock,
    pub(crate) raft: Arc<RaftNode>,
    pub(crate) health: Arc<LogDirHealth>,
    pub(crate) manager: Arc<PartitionManager>,
    image: MetadataImage,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self::on(dir, Vec::new(), MetadataImage::default())
    }

    /// With so many log directories beside the first.
    pub(crate) fn with_others(count: usize) -> Self {
        let dir = || tempfile::tempdir().expect("a temporary directory");
        let others = std::iter::repeat_with(dir).take(count).collect();
        Self::on(dir(), others, MetadataImage::default())
    }

    fn on(dir: TempDir, others: Vec<TempDir>, image: MetadataImage) -> Self {
        let opened = |path: &Path| OpenedDir::of(path).expect("flusher starts");
        let disk = RealDisk::shared();
        let OpenedDir { health, data_dir } = opened(dir.path());
        let (mut data_dirs, mut directories) = (vec![data_dir], Vec::new());
        directories.push(LogDirectory::new(Arc::clone(&health)));
        for other in &others {
            let other = opened(other.path());
            data_dirs.push(other.data_dir);
            directories.push(LogDirectory::new(other.health));
        }
        let network = Arc::new(NoNetwork);
        let options = RaftNodeOptions::new(NODE, Arc::clone(&disk), data_dirs, network);
        let raft = RaftNode::open(options).expect("raft opens");
        let clock = ManualClock::starting_at(START);
        let manager = PartitionManager::new(PartitionManagerOptions {
            node_id: NODE,
            raft: Arc::clone(&raft),
            disk,
            directories: LogDirectories::new(directories, Arc::clone(&health)),
            config: ConfigStore::defaults(),
            clock: Arc::new(clock.clone()),
        });
        Self {
            dir,
            others,
            clock,
            raft,
            health,
            manager,
            image,
        }
    }

    /// The path of the directory beside the first.
    pub(crate) fn other(&self) -> &Path {
        self.others[0].path()
    }

    /// Has what is to be moved be moved, until the partition is served from the directory beside the first.
    pub(crate) async fn await_moved(&self, topic: &str, partition: i32) {
        let manager = Arc::clone(&self.manager);
        let mover = tokio::spawn(async move { manager.keep_moving().await });
        let moved = async {
            loop {
                let partition = self
                    .manager
                    .get_by_name(topic, PartitionIndex::new(partition));
                let is_there =
                    |partition: &Arc<Partition>| partition.directory().path() == self.other();
                if let Some(partition) = partition.filter(is_there) {
                    partition.group().wait_until_ready().await.expect("led");
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let moved = tokio::time::timeout(Duration::from_secs(30), moved).await;
        moved.expect("moved in time");
        mover.abort();
    }

    /// Moves a partition to the directory beside the first, if it is not there.
    pub(crate) async fn move_away(&self, topic: &str, partition: i32) {
        let index = PartitionIndex::new(partition);
        let altered = self.manager.alter_log_dir(topic, index, self.other());
        assert_eq!(altered, Ok(()));
        self.await_moved(topic, partition).await;
    }

    /// Stops everything in order and starts again on the same directory.
    pub(crate) async fn restart(self) -> Self {
        self.raft.shutdown().await.expect("closes");
        self.restart_as_left().await
    }

    /// Starts again on what is there; the raft node has been shut down already.
    pub(crate) async fn restart_as_left(self) -> Self {
        let fixture = Self::on(self.dir, self.others, self.image);
        fixture.carry_out().await;
        fixture
    }

    /// Starts again with all directories but the first offline; the raft node has been shut down already.
    pub(crate) async fn restart_with_failed_others(self) -> Self {
        let fixture = Self::on(self.dir, self.others, self.image);
        for directory in fixture.manager.directories().iter().skip(1) {
            directory.health().fail(&"torn off");
        }
        fixture.carry_out().await;
        fixture
    }

    /// Starts again on the same directory with metadata that does not know a topic; the raft node
    /// has been shut down already.
    pub(crate) async fn restart_without(mut self, gone: TopicId) -> Self {
        let next = self.image.next_offset().plus(1);
        self.image
            .apply(&[MetadataRecord::RemoveTopic(gone)], next)
            .expect("applies");
        let fixture = Self::on(self.dir, self.others, self.image);
        fixture.carry_out().await;
        fixture
    }

    pub(crate) async fn change(&mut self, records: Vec<MetadataRecord>) {
        let count = i64::try_from(records.len()).expect("few");
        let next = self.image.next_offset().plus(count);
        self.image.apply(&records, next).expect("applies");
        self.carry_out().await;
    }

    pub(crate) async fn carry_out(&self) {
        self.manager.reconcile(Arc::new(self.image.clone())).await;
        for partition in self.manager.all() {
            let ready = partition.group().wait_until_ready();
            tokio::time::timeout(Duration::from_secs(20), ready)
                .await
                .expect("leads in time")
                .expect("leads");
        }
    }

    pub(crate) fn image(&self) -> Arc<MetadataImage> {
        Arc::new(self.image.clone())
    }

    pub(crate) async fn create_topic(&mut self, name: &str, number: u8, partitions: i32) {
        self.change(topic_records(name, number, partitions)).await;
    }

    pub(crate) async fn set_config(&mut self, topic: &str, key: &str, value: &str) {
        let resource = ConfigResource::topic(topic);
        self.change(vec![MetadataRecord::Config(ConfigRecord {
            resource_type: resource.kind.code(),
            resource_name: topic.to_owned(),
            name: key.to_owned(),
            value: Some(value.to_owned()),
        })])
        .await;
    }

    pub(crate) fn partition(&self, topic: &str, index: i32) -> Arc<Partition> {
        self.manager
            .get_by_name(topic, PartitionIndex::new(index))
            .expect("open")
    }
}

/// A topic with so many partitions, all of the fixture's node.
pub(crate) fn topic_records(name: &str, number: u8, partitions: i32) -> Vec<MetadataRecord> {
    let here = [NODE.get()];
    topic(name, number, &vec![&here[..]; partitions as usize])
}

pub(crate) fn partition_record(topic_id: TopicId, index: i32) -> MetadataRecord {
    MetadataRecord::Partition(partition(topic_id, index, &[NODE.get()]))
}

fn records(count: i32, timestamp: TimestampMs, mut builder: BatchBuilder) -> Bytes {
    for number in 0..count {
        builder.push(NewRecord {
            timestamp,
            key: Some(b"key"),
            value: Some(format!("value {number}").as_bytes()),
            headers: &[],
        });
    }
    builder.build()
}

/// A batch of `count` records of no producer.
pub(crate) fn batch(count: i32) -> Bytes {
    batch_at(count, START)
}

/// A batch of `count` records with this timestamp.
pub(crate) fn batch_at(count: i32, timestamp: TimestampMs) -> Bytes {
    records(count, timestamp, BatchBuilder::new())
}

/// A batch of `count` records of an idempotent producer.
pub(crate) fn producer_batch(producer: i64, epoch: i16, first: i32, count: i32) -> Bytes {
    let builder = BatchBuilder::new().producer(
        ProducerId::new(producer),
        ProducerEpoch::new(epoch),
        Sequence::new(first),
    );
    records(count, START, builder)
}

/// A batch of `count` records in a transaction of `producer`, whose first it is.
pub(crate) fn transactional_batch(producer: i64, count: i32) -> Bytes {
    let builder = BatchBuilder::new().transactional().producer(
        ProducerId::new(producer),
        ProducerEpoch::new(0),
        Sequence::new(0),
    );
    records(count, START, builder)
}

/// The marker that commits the transaction of `producer`, as its coordinator writes it.
pub(crate) fn commit_marker(producer: i64) -> Bytes {
    marker(producer, 1)
}

/// The marker that aborts the transaction of `producer`.
pub(crate) fn abort_marker(producer: i64) -> Bytes {
    marker(producer, 0)
}

fn marker(producer: i64, kind: u8) -> Bytes {
    let mut builder = BatchBuilder::new().transactional().control().producer(
        ProducerId::new(producer),
        ProducerEpoch::new(0),
        Sequence::NONE,
    );
    builder.push(NewRecord {
        timestamp: START,
        key: Some(&[0, 0, 0, kind]),
        value: Some(&[0, 0, 0, 0, 0, 1]),
        headers: &[],
    });
    builder.build()
}

/// The offset as a plain number, for comparisons.
pub(crate) fn number(offset: Offset) -> i64 {
    offset.get()
}
