//! Waiting until the partitions of a topic have leaders: those that this broker holds by the signal of their
//! groups, the others by what the metadata says.
//!
//! A partition of which this broker holds a replica has a leader when the group here knows one; if this broker
//! leads itself, when it takes writes. Of a partition elsewhere the metadata names the leader from the
//! beginning; it has one when that has told its epoch, which is above that of the beginning.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{LeaderEpoch, Offset, PartitionIndex, TopicId};
use tokio::sync::watch;

use super::image::{MetadataImage, PartitionState};
use crate::context::BrokerContext;
use crate::partitions::PartitionManager;

/// Longest wait for groups that may have to do without some of their voters.
const LED_AMONG_OTHERS: Duration = Duration::from_secs(1);

/// The epoch in which no group has elected a leader yet.
const NEVER_LED: LeaderEpoch = LeaderEpoch::new(0);

/// How long to wait for all topics of a request, and what it means if that is not long enough.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    deadline: Instant,
    too_late: Result<(), ErrorCode>,
}

impl Patience {
    /// Waits until `deadline` on a node on its own. Among other nodes it waits a moment and no longer: whether
    /// a group has a leader is not this broker's to say, and clients ask again for one that has none yet.
    pub fn until(broker: &BrokerContext, deadline: Instant) -> Self {
        match &broker.controllers {
            Some(_) => Self {
                deadline: deadline.min(Instant::now() + LED_AMONG_OTHERS),
                too_late: Ok(()),
            },
            None => Self {
                deadline,
                too_late: Err(ErrorCode::RequestTimedOut),
            },
        }
    }
}

/// Waits until this broker has carried out the metadata below `offset` and the partitions of the topic with
/// these indexes, as far as there are any, are led. Without patience it waits for nothing.
///
/// # Errors
/// REQUEST_TIMED_OUT; KAFKA_STORAGE_ERROR if the only replica of one of them cannot be used.
pub async fn wait_until_led(
    broker: &BrokerContext,
    offset: Offset,
    topic: TopicId,
    indexes: Range<usize>,
    patience: Option<Patience>,
) -> Result<(), ErrorCode> {
    let Some(patience) = patience else {
        return Ok(());
    };
    let images = broker.metadata.subscribe();
    let led = until_led(&broker.partitions, images, offset, topic, indexes);
    tokio::time::timeout_at(patience.deadline.into(), led)
        .await
        .unwrap_or(patience.too_late)
}

/// [`wait_until_led`] without an end.
pub(crate) async fn until_led(
    partitions: &PartitionManager,
    mut images: watch::Receiver<Arc<MetadataImage>>,
    offset: Offset,
    topic: TopicId,
    indexes: Range<usize>,
) -> Result<(), ErrorCode> {
    partitions.wait_until_reconciled(offset).await;
    let image = partitions.image();
    let Some(topic) = image.topic_by_id(topic) else {
        // Deleted meanwhile; there is nothing to wait for.
        return Ok(());
    };
    let wanted = topic
        .indexed()
        .skip(indexes.start)
        .take(indexes.len())
        .map(|(index, _)| index);
    for index in wanted {
        one_is_led(partitions, &mut images, topic.id, index).await?;
    }
    Ok(())
}

async fn one_is_led(
    partitions: &PartitionManager,
    images: &mut watch::Receiver<Arc<MetadataImage>>,
    topic: TopicId,
    index: PartitionIndex,
) -> Result<(), ErrorCode> {
    let node = partitions.node_id();
    let others_lead = |state: &PartitionState| {
        let has_begun = state.leader_epoch > NEVER_LED;
        has_begun && state.leader.is_some_and(|leader| leader != node)
    };
    if let Some(here) = partitions.get(topic, index) {
        let elsewhere =
            images.wait_for(|image| state_of(image, topic, index).is_none_or(others_lead));
        tokio::select! {
            biased;
            led = here.wait_until_led() => if led.is_ok() {
                return Ok(());
            },
            // What is being deleted is closed, and no fault of a disk.
            _ = elsewhere => return Ok(()),
        }
    }
    // It cannot be led here.
    let is_settled = |state: &PartitionState| state.replicas == [node] || others_lead(state);
    let settled = images.wait_for(|image| state_of(image, topic, index).is_none_or(is_settled));
    match settled.await {
        Ok(image) => match state_of(&image, topic, index) {
            Some(state) if state.replicas == [node] => Err(ErrorCode::KafkaStorageError),
            Some(_) | None => Ok(()),
        },
        // The broker stops.
        Err(_) => Err(ErrorCode::RequestTimedOut),
    }
}

fn state_of(
    image: &MetadataImage,
    topic: TopicId,
    index: PartitionIndex,
) -> Option<&PartitionState> {
    image.topic_by_id(topic)?.partition(index)
}

#[cfg(test)]
mod tests {
    use odradek_protocol::ids::NodeId;

    use super::*;
    use crate::leading::test_cluster::Cluster;
    use crate::metadata::records::MetadataRecord;
    use crate::metadata::test_support::{topic, topic_id};

    /// Longer than any election, shorter than a test may take.
    const LIMIT: Duration = Duration::from_secs(20);
    /// In which an election would have come to its end.
    const NEVER: Duration = Duration::from_secs(2);

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_waits_finds_all_partitions_led_whoever_holds_them() {
        let cluster = Cluster::new(3).await;
        let replicas: [&[i32]; 5] = [&[1], &[2], &[3], &[2, 3], &[1, 2, 3]];
        for (number, asked) in [(1, 1), (2, 2), (3, 3)] {
            let known = cluster.change(&topic(&format!("t{number}"), number, &replicas));
            let waiting = cluster.until_led(asked, known, number);
            let waited = tokio::time::timeout(LIMIT, waiting).await;
            assert_eq!(waited, Ok(Ok(())));
            for (index, replicas) in (0..).zip(replicas) {
                let state = cluster.state(number, index);
                if replicas.contains(&asked) {
                    let here = cluster.replica(asked, number, index).await;
                    here.wait_until_led().await.expect("it is led");
                } else {
                    assert!(state.leader_epoch > NEVER_LED, "{index}: {state:?}");
                    assert!(
                        replicas
                            .iter()
                            .any(|id| state.leader == Some(NodeId::new(*id)))
                    );
                }
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_waits_for_what_nobody_can_lead_waits_until_it_is_deleted() {
        let mut cluster = Cluster::new(3).await;
        cluster.kill(2).await;
        cluster.kill(3).await;
        for (number, replicas) in [(1, &[2, 3][..]), (2, &[1, 2, 3])] {
            let known = cluster.change(&topic(&format!("t{number}"), number, &[replicas]));
            let waiting = cluster.until_led(1, known, number);
            tokio::pin!(waiting);
            let led = tokio::time::timeout(NEVER, &mut waiting).await;
            assert!(led.is_err(), "{led:?}");
            cluster.change(&[MetadataRecord::RemoveTopic(topic_id(number))]);
            let ended = tokio::time::timeout(LIMIT, &mut waiting).await;
            assert_eq!(ended, Ok(Ok(())));
        }
    }
}
