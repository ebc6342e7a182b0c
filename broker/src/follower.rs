//! What a change of the metadata means to this broker, in the order in which it must happen.
//!
//! For every image: dynamic settings count first, since partitions are opened and changed by them;
//! then the limits of connections; then partitions are opened, changed and removed; then the group
//! coordinators learn which partitions of `__consumer_offsets` there are and lead those that this
//! broker leads. Images that come meanwhile are skipped but for the last.

use std::collections::HashMap;
use std::sync::Arc;

use odradek_protocol::ids::{LeaderEpoch, NodeId, PartitionIndex, TopicId};
use odradek_raft::Leadership;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::ConfigStore;
use crate::groups::partition_log::PartitionLog;
use crate::groups::service::OFFSETS_TOPIC;
use crate::groups::{self};
use crate::metadata::image::{ConfigResource, MetadataImage};
use crate::partition::Partition;
use crate::partitions::PartitionManager;
use crate::server::{ConnectionLimits, LimitsHandle};

/// See the module.
pub struct Follower {
    node_id: NodeId,
    config: Arc<ConfigStore>,
    partitions: Arc<PartitionManager>,
    groups: Arc<groups::Service>,
    limits: LimitsHandle,
    /// A task for each partition of `__consumer_offsets` that is open here.
    coordinated: HashMap<(TopicId, PartitionIndex), Coordinated>,
}

/// A follower of the leadership of one partition. Dropping it ends the coordinator.
struct Coordinated {
    task: JoinHandle<()>,
    partition: PartitionIndex,
    groups: Arc<groups::Service>,
}

impl Drop for Coordinated {
    fn drop(&mut self) {
        self.task.abort();
        self.groups.resign(self.partition);
    }
}

impl Follower {
    /// A follower for the broker `node_id`.
    pub fn new(
        node_id: NodeId,
        config: Arc<ConfigStore>,
        partitions: Arc<PartitionManager>,
        groups: Arc<groups::Service>,
        limits: LimitsHandle,
    ) -> Self {
        Self {
            node_id,
            config,
            partitions,
            groups,
            limits,
            coordinated: HashMap::new(),
        }
    }

    /// Follows until there are no more images.
    pub async fn run(mut self, mut images: watch::Receiver<Arc<MetadataImage>>) {
        let mut before: Option<Arc<MetadataImage>> = None;
        loop {
            let image = Arc::clone(&images.borrow_and_update());
            self.apply(before.as_deref(), &image).await;
            before = Some(image);
            if images.changed().await.is_err() {
                return;
            }
        }
    }

    async fn apply(&mut self, before: Option<&MetadataImage>, image: &Arc<MetadataImage>) {
        self.apply_settings(before, image);
        self.partitions.reconcile(Arc::clone(image)).await;
        self.lead_coordinators(image);
        self.forget_deleted_topics(before, image).await;
    }

    fn apply_settings(&self, before: Option<&MetadataImage>, image: &MetadataImage) {
        let (all, own) = (
            ConfigResource::all_brokers(),
            ConfigResource::broker(self.node_id),
        );
        let unchanged = before.is_some_and(|before| {
            before.config(&all) == image.config(&all) && before.config(&own) == image.config(&own)
        });
        if unchanged {
            return;
        }
        let settings = |resource| image.config(resource).as_ref().clone();
        match self.config.set_dynamic(settings(&all), settings(&own)) {
            Ok(config) => self.limits.set(ConnectionLimits::of(&config)),
            // They were checked before they were stored, by a broker with other static settings.
            Err(error) => tracing::error!(%error, "dynamic settings are not applied"),
        }
    }

    fn lead_coordinators(&mut self, image: &MetadataImage) {
        let topic = image.topic(OFFSETS_TOPIC);
        let count = topic.map(|topic| i32::try_from(topic.indexed().count()).unwrap_or(i32::MAX));
        self.groups.set_partition_count(count);
        self.coordinated
            .retain(|(topic_id, _), _| topic.is_some_and(|topic| topic.id == *topic_id));
        let Some(topic) = topic else { return };
        for (index, _) in topic.indexed() {
            let key = (topic.id, index);
            if self.coordinated.contains_key(&key) {
                continue;
            }
            if let Some(partition) = self.partitions.get(topic.id, index) {
                let groups = Arc::clone(&self.groups);
                let follow = follow_leadership(partition, Arc::clone(&groups));
                let coordinated = Coordinated {
                    task: tokio::spawn(follow),
                    partition: index,
                    groups,
                };
                self.coordinated.insert(key, coordinated);
            }
        }
    }

    /// Offsets committed for a topic that is gone mean nothing to a new topic of its name.
    async fn forget_deleted_topics(&self, before: Option<&MetadataImage>, image: &MetadataImage) {
        let Some(before) = before else { return };
        let deleted: Vec<_> = before
            .topics()
            .filter(|topic| image.topic_by_id(topic.id).is_none())
            .map(|topic| (groups::names::TopicName::new(&*topic.name), topic.id))
            .collect();
        if !deleted.is_empty() && !self.groups.topics_deleted(&deleted).await {
            tracing::warn!("offsets of deleted topics could not be removed; they expire in time");
        }
    }
}

/// Has the coordinator of `partition` run for as long as this broker leads it.
async fn follow_leadership(partition: Arc<Partition>, groups: Arc<groups::Service>) {
    let index = partition.index();
    let mut leadership = partition.group().subscribe_leadership();
    let mut led: Option<LeaderEpoch> = None;
    loop {
        let now = match *leadership.borrow_and_update() {
            Leadership::Leader { epoch, ready: true } => Some(epoch),
            _ => None,
        };
        if now != led {
            if led.is_some() {
                groups.resign(index);
            }
            if let Some(epoch) = now {
                let log = PartitionLog::new(Arc::clone(&partition), epoch);
                groups.lead(index, Arc::new(log));
            }
            led = now;
        }
        if leadership.changed().await.is_err() {
            return;
        }
    }
}
