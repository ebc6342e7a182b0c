//! Keeps the coordinators where they belong: on the partitions of `__consumer_offsets` that this
//! broker leads, for as long as it leads them.
//!
//! Follows the metadata for the topic, its number of partitions, and topics that go away, whose
//! offsets go too; and follows the leadership of every partition of the topic that is held here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::ids::{PartitionIndex, TopicId};
use odradek_raft::Leadership;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Service;
use super::names::TopicName;
use super::partition_log::PartitionLog;
use super::service::OFFSETS_TOPIC;
use crate::metadata::image::{MetadataImage, Topic};
use crate::partition::Partition;
use crate::partitions::PartitionManager;

/// How soon coordinators that were busy are told again of topics that are gone.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Keeps the coordinators of a broker where they belong.
#[derive(Debug)]
pub struct Attendant {
    groups: Arc<Service>,
    partitions: Arc<PartitionManager>,
    commit_timeout: Duration,
    followed: HashMap<PartitionIndex, Followed>,
    /// Topics that are gone and of which not every coordinator knows.
    gone: Vec<(TopicName, TopicId)>,
}

/// A partition whose leadership is followed.
#[derive(Debug)]
struct Followed {
    topic_id: TopicId,
    task: JoinHandle<()>,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Attendant {
    /// An attendant of `groups`. `commit_timeout` is `offsets.commit.timeout.ms`.
    pub fn new(
        groups: Arc<Service>,
        partitions: Arc<PartitionManager>,
        commit_timeout: Duration,
    ) -> Self {
        Self {
            groups,
            partitions,
            commit_timeout,
            followed: HashMap::new(),
            gone: Vec::new(),
        }
    }

    /// Follows the metadata until its sender is gone.
    pub async fn run(mut self, mut images: watch::Receiver<Arc<MetadataImage>>) {
        let mut image = Arc::clone(&images.borrow_and_update());
        loop {
            self.attend(&image).await;
            let changed = if self.gone.is_empty() {
                images.changed().await
            } else {
                let changed = tokio::time::timeout(RETRY_DELAY, images.changed()).await;
                changed.unwrap_or(Ok(()))
            };
            if changed.is_err() {
                return;
            }
            let next = Arc::clone(&images.borrow_and_update());
            self.gone.extend(topics_gone(&image, &next));
            image = next;
        }
    }

    async fn attend(&mut self, image: &MetadataImage) {
        match image.topic(OFFSETS_TOPIC) {
            Some(topic) => self.follow(image, topic).await,
            None => {
                self.groups.set_partition_count(None);
                self.followed.clear();
                for partition in self.groups.led() {
                    self.groups.resign(partition);
                }
            }
        }
        if !self.gone.is_empty() && self.groups.topics_deleted(&self.gone).await {
            self.gone.clear();
        }
    }

    async fn follow(&mut self, image: &MetadataImage, topic: &Topic) {
        let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
        self.groups.set_partition_count(Some(count));
        self.partitions
            .wait_until_reconciled(image.next_offset())
            .await;
        for (index, _) in topic.indexed() {
            let known = self.followed.get(&index);
            if known.is_some_and(|followed| followed.topic_id == topic.id) {
                continue;
            }
            let Some(partition) = self.partitions.get(topic.id, index) else {
                continue;
            };
            let groups = Arc::clone(&self.groups);
            let task = tokio::spawn(follow_leadership(groups, partition, self.commit_timeout));
            let topic_id = topic.id;
            self.followed.insert(index, Followed { topic_id, task });
        }
    }
}

/// Starts a coordinator when this broker begins to lead, and ends it when it no longer does.
async fn follow_leadership(
    groups: Arc<Service>,
    partition: Arc<Partition>,
    commit_timeout: Duration,
) {
    let index = partition.index();
    let mut leadership = partition.group().subscribe_leadership();
    let mut led = None;
    loop {
        let current = match *leadership.borrow_and_update() {
            // Before it is ready, the log may end below what an earlier leader acknowledged.
            Leadership::Leader { epoch, ready } => ready.then_some(epoch),
            Leadership::Follower { .. } | Leadership::Unknown => None,
        };
        if current != led {
            match current {
                Some(epoch) => {
                    let log = PartitionLog::new(Arc::clone(&partition), epoch, commit_timeout);
                    groups.lead(index, Arc::new(log));
                }
                None => groups.resign(index),
            }
            led = current;
        }
        if leadership.changed().await.is_err() {
            groups.resign(index);
            return;
        }
    }
}

/// The topics of `before` that are not in `after`; one that was made again under its name has
/// another id.
fn topics_gone(before: &MetadataImage, after: &MetadataImage) -> Vec<(TopicName, TopicId)> {
    before
        .topics()
        .filter(|topic| after.topic_by_id(topic.id).is_none())
        .map(|topic| (TopicName::new(&topic.name), topic.id))
        .collect()
}
