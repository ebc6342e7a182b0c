//! What the tests of this crate share.
#![allow(dead_code, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use odradek_protocol::batch::BatchHeader;
use odradek_protocol::ids::{NodeId, Offset, PartitionIndex, TimestampMs, TopicId};
use odradek_protocol::records::{BatchBuilder, NewRecord};
use odradek_raft::network::NoNetwork;
use odradek_raft::{
    AppendOutcome, DataDir, Group, GroupKey, GroupSpec, NoObserver, Proposal, ProposeError,
    RaftNode, RaftNodeOptions,
};
use odradek_storage::LogConfig;
use odradek_storage::LogDirHealth;
use odradek_storage::RealDisk;
use odradek_storage::disk::Disk;
use odradek_storage::flush::{Flusher, FlusherOptions};
use tokio::sync::oneshot;

/// A group of topic `topic`.
pub fn key(topic: u8, partition: i32) -> GroupKey {
    GroupKey::new(
        TopicId::from_bytes([topic; 16]),
        PartitionIndex::new(partition),
    )
}

/// A batch of `records` records that all hold `value`.
pub fn batch(records: usize, value: &[u8]) -> Bytes {
    let mut builder = BatchBuilder::new();
    for _ in 0..records {
        builder.push(NewRecord {
            timestamp: TimestampMs::new(1_700_000_000_000),
            key: None,
            value: Some(value),
            headers: &[],
        });
    }
    builder.build()
}

/// The two answers that a proposal gets.
pub struct Ticket {
    pub appended: oneshot::Receiver<AppendOutcome>,
    pub committed: oneshot::Receiver<Result<AppendOutcome, ProposeError>>,
    /// What the call itself said.
    pub base_offset: Offset,
}

/// Proposes a batch.
pub fn propose(group: &Group, batch: Bytes) -> Result<Ticket, ProposeError> {
    let header = BatchHeader::parse(&batch).unwrap();
    let (appended_tx, appended) = oneshot::channel();
    let (committed_tx, committed) = oneshot::channel();
    let base_offset = group.propose(Proposal {
        batch,
        header,
        appended: Some(appended_tx),
        committed: committed_tx,
    })?;
    Ok(Ticket {
        appended,
        committed,
        base_offset,
    })
}

/// Proposes a batch and waits until it is committed.
pub async fn produce(group: &Group, batch: Bytes) -> Result<AppendOutcome, ProposeError> {
    let ticket = propose(group, batch)?;
    ticket.committed.await.unwrap()
}

/// A data directory with its own flusher.
pub fn data_dir(disk: &Arc<dyn Disk>, path: &Path, inline: bool) -> DataDir {
    let health = LogDirHealth::new(path);
    let flusher = if inline {
        Flusher::inline(health)
    } else {
        Flusher::start(disk, health, FlusherOptions::default()).unwrap()
    };
    DataDir {
        path: path.to_path_buf(),
        flusher: Arc::new(flusher),
    }
}

/// A node that is alone, on the real disk.
pub fn lone_node(path: &Path) -> Arc<RaftNode> {
    let disk = RealDisk::shared();
    let dir = data_dir(&disk, path, false);
    RaftNode::open(RaftNodeOptions::new(
        NodeId::new(1),
        disk,
        vec![dir],
        Arc::new(NoNetwork),
    ))
    .unwrap()
}

/// How a group of this node alone is opened.
pub fn lone_spec(key: GroupKey, data_dir: &Path, config: LogConfig) -> GroupSpec {
    GroupSpec {
        key,
        dir: group_dir(data_dir, key),
        log_config: Arc::new(config),
        voters: vec![NodeId::new(1)],
        bootstrap: true,
        succession: None,
    }
}

/// Directory of a group.
pub fn group_dir(data_dir: &Path, key: GroupKey) -> PathBuf {
    data_dir.join(format!(
        "topic{}-{}",
        key.topic_id.to_bytes()[0],
        key.partition
    ))
}

/// Opens a group of this node alone and waits until it takes writes.
pub async fn open_lone(
    node: &RaftNode,
    key: GroupKey,
    path: &Path,
    config: LogConfig,
) -> Arc<Group> {
    let group = node
        .open_group(lone_spec(key, path, config), Arc::new(NoObserver))
        .await
        .unwrap();
    group.wait_until_ready().await.unwrap();
    group
}

/// All bytes of the log.
pub fn log_bytes(group: &Group) -> Bytes {
    let reader = group.reader();
    let slice = reader
        .read(reader.log_start(), usize::MAX, reader.log_end(), true)
        .unwrap();
    slice.read().unwrap()
}
