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

/// Hands over every partition that another broker can lead, within `limit`. What no other replica will be
/// able to lead, since all of them are gone or going, is not waited for. Returns how many partitions with
/// other replicas this broker still leads then; they fail over when it is gone.
pub async fn hand_over_all(
    partitions: &PartitionManager,
    newest_image: impl Fn() -> Arc<MetadataImage>,
    limit: Duration,
) -> usize {
    let own = partitions.node_id();
    let handing_over = async {
        loop {
            let image = newest_image();
            let silent = partitions.silent_nodes();
            // A leadership may also come back meanwhile, before others know that this broker stops.
            let mut led = led_with_others(partitions);
            led.retain(|partition| {
                let mut heirs = heirs(partition, &image, own);
                heirs.any(|node| !silent.contains(&node))
            });
            if led.is_empty() {
                return;
            }
            let image = &*image;
            futures_util::stream::iter(led)
                .for_each_concurrent(AT_ONCE, |partition| async move {
                    hand_over_to_any(&partition, image, own).await;
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

/// Hands a partition over to another replica in sync if this broker leads it and there is one.
pub async fn give_away(partition: &Partition, image: &MetadataImage, own: NodeId) {
    if partition.leadership().is_ready_leader() {
        hand_over_to_any(partition, image, own).await;
    }
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

/// Who may take a partition over now: of its heirs those that are in sync and not fenced.
fn candidates(partition: &Partition, image: &MetadataImage, own: NodeId) -> Vec<NodeId> {
    let view = partition.replication();
    heirs(partition, image, own)
        .filter(|node| image.broker(*node).is_some_and(|broker| !broker.fenced))
        .filter(|node| view.as_ref().is_none_or(|view| view.in_sync.contains(node)))
        .collect()
}

/// Who may take a partition over sooner or later: voters whose brokers mean to stay, the preferred leader
/// first. One that is fenced may just be coming back.
fn heirs<'a>(
    partition: &Partition,
    image: &'a MetadataImage,
    own: NodeId,
) -> impl Iterator<Item = NodeId> + use<'a> {
    let key = partition.group().key();
    let topic = image.topic_by_id(key.topic_id);
    let state = topic.and_then(|topic| topic.partition(key.partition));
    let replicas = state
        .map(|state| state.replicas.clone())
        .unwrap_or_default();
    let voters = partition.group().membership().voters;
    let means_to_stay =
        move |node: NodeId| image.broker(node).is_some_and(|broker| !broker.stopping);
    replicas
        .into_iter()
        .filter(move |node| *node != own && voters.contains(node))
        .filter(move |node| means_to_stay(*node))
}
