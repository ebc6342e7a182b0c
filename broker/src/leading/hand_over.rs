//! Giving leaderships away: one to a named replica when an operator or the balance of leaders asks for
//! it, all of them before this broker stops.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use odradek_protocol::ids::NodeId;
use odradek_raft::{GroupKey, Leadership, RaftError};

use crate::metadata::image::MetadataImage;
use crate::partition::Partition;
use crate::partitions::PartitionManager;

/// Partitions that are handed over at the same time.
const AT_ONCE: usize = 64;
/// Pause before what could not be handed over is tried again.
const PAUSE: Duration = Duration::from_millis(50);

/// Why a partition is not handed over.
#[derive(Debug, thiserror::Error)]
pub enum HandOverError {
    /// This broker does not lead it.
    #[error("this node does not lead the partition; the leader is {leader:?}")]
    NotLeader {
        /// The leader, where it is known.
        leader: Option<NodeId>,
    },
    /// The node has no vote in the partition.
    #[error("node {0} is no voter of the partition")]
    NoVoter(NodeId),
    /// The node did not take over.
    #[error(transparent)]
    Failed(#[from] RaftError),
}

/// Hands a partition that this broker leads over to `to`. Nothing happens if that leads already.
pub async fn hand_over(
    partitions: &PartitionManager,
    key: GroupKey,
    to: NodeId,
) -> Result<(), HandOverError> {
    let partition = partitions.get(key.topic_id, key.partition);
    let Some(partition) = partition.filter(|partition| partition.group().key() == key) else {
        return Err(HandOverError::NotLeader { leader: None });
    };
    match partition.leadership() {
        Leadership::Leader { .. } if to == partitions.node_id() => return Ok(()),
        Leadership::Leader { .. } => {}
        Leadership::Follower { leader, .. } => return Err(HandOverError::NotLeader { leader }),
        Leadership::Unknown => return Err(HandOverError::NotLeader { leader: None }),
    }
    if !partition.group().membership().voters.contains(&to) {
        return Err(HandOverError::NoVoter(to));
    }
    Ok(partition.group().transfer_leader(to).await?)
}

/// Hands over every partition that another broker can lead, within `limit`. Returns how many of those
/// this broker still leads then; they fail over when it is gone.
pub async fn hand_over_all(
    partitions: &PartitionManager,
    image: &MetadataImage,
    limit: Duration,
) -> usize {
    let handing_over = async {
        loop {
            // A leadership may also come back meanwhile, before others know that this broker stops.
            let led = led_with_others(partitions);
            if led.is_empty() {
                return;
            }
            futures_util::stream::iter(led)
                .for_each_concurrent(AT_ONCE, |partition| async move {
                    hand_over_to_any(&partition, image, partitions.node_id()).await;
                })
                .await;
            tokio::time::sleep(PAUSE).await;
        }
    };
    if tokio::time::timeout(limit, handing_over).await.is_err() {
        tracing::warn!(?limit, "not every partition could be handed over in time");
    }
    led_with_others(partitions).len()
}

async fn hand_over_to_any(partition: &Partition, image: &MetadataImage, own: NodeId) {
    for to in candidates(partition, image, own) {
        match partition.group().transfer_leader(to).await {
            Ok(()) => return,
            Err(error) => tracing::debug!(?partition, %to, %error, "not handed over"),
        }
    }
}

fn led_with_others(partitions: &PartitionManager) -> Vec<Arc<Partition>> {
    let mut led = partitions.all();
    led.retain(|partition| {
        partition.leadership().is_ready_leader() && partition.group().membership().voters.len() > 1
    });
    led
}

/// Who may take a partition over: voters in sync whose brokers are there and mean to stay, the
/// preferred leader first.
fn candidates(partition: &Partition, image: &MetadataImage, own: NodeId) -> Vec<NodeId> {
    let key = partition.group().key();
    let topic = image.topic_by_id(key.topic_id);
    let state = topic.and_then(|topic| topic.partition(key.partition));
    let replicas = state
        .map(|state| state.replicas.clone())
        .unwrap_or_default();
    let voters = partition.group().membership().voters;
    let view = partition.replication();
    replicas
        .into_iter()
        .filter(|node| *node != own && voters.contains(node))
        .filter(|node| {
            let broker = image.broker(*node);
            broker.is_some_and(|broker| !broker.fenced && !broker.stopping)
        })
        .filter(|node| view.as_ref().is_none_or(|view| view.in_sync.contains(node)))
        .collect()
}
