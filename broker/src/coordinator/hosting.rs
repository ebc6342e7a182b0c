//! Keeps the coordinators of one kind where they belong: on the partitions of their topic that this
//! broker leads, for as long as it leads them.
//!
//! Follows the metadata for the topic and its number of partitions, and the leadership of every
//! partition of the topic that is held here; one whose log has moved to another log directory is another one.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::ids::PartitionIndex;
use odradek_raft::Leadership;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::host::Host;
use super::partition_log::PartitionLog;
use super::{CoordinatorLog, StateMachine};
use crate::metadata::image::{MetadataImage, Topic};
use crate::partition::Partition;
use crate::partitions::PartitionManager;

/// The coordinators of one kind on a broker.
pub trait Coordinators: Debug + Send + Sync + 'static {
    /// What they are.
    type Machine: StateMachine;
    /// What is kept beside each of them.
    type Beside;

    /// Those that run here.
    fn host(&self) -> &Host<Self::Machine, Self::Beside>;

    /// This broker leads `partition` from now on, in the term of `log`. Called within a runtime, on
    /// which the coordinator then loads.
    fn lead(&self, partition: PartitionIndex, log: Arc<dyn CoordinatorLog>);
}

/// See the module.
#[derive(Debug)]
pub struct Hosting<C> {
    topic: &'static str,
    coordinators: Arc<C>,
    partitions: Arc<PartitionManager>,
    commit_timeout: Duration,
    followed: HashMap<PartitionIndex, Followed>,
    reopened: watch::Receiver<u64>,
}

/// A partition whose leadership is followed.
#[derive(Debug)]
struct Followed {
    partition: Arc<Partition>,
    task: JoinHandle<()>,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<C: Coordinators> Hosting<C> {
    /// Hosts the coordinators whose topic is `topic`. Appends that take longer than
    /// `commit_timeout` are given up.
    pub fn new(
        topic: &'static str,
        coordinators: Arc<C>,
        partitions: Arc<PartitionManager>,
        commit_timeout: Duration,
    ) -> Self {
        Self {
            topic,
            coordinators,
            reopened: partitions.subscribe_reopened(),
            partitions,
            commit_timeout,
            followed: HashMap::new(),
        }
    }

    /// Takes account of the metadata.
    pub async fn attend(&mut self, image: &MetadataImage) {
        match image.topic(self.topic) {
            Some(topic) => self.follow(image, topic).await,
            None => {
                let host = self.coordinators.host();
                host.set_partition_count(None);
                self.followed.clear();
                for partition in host.led() {
                    host.remove(partition);
                }
            }
        }
    }

    /// Waits until there is something to take account of: other metadata, or another replica in the place of one
    /// that was here. An error once there will be no more metadata. Safe to drop.
    pub async fn changed(
        &mut self,
        images: &mut watch::Receiver<Arc<MetadataImage>>,
    ) -> Result<(), watch::error::RecvError> {
        tokio::select! {
            changed = images.changed() => changed,
            Ok(()) = self.reopened.changed() => Ok(()),
        }
    }

    async fn follow(&mut self, image: &MetadataImage, topic: &Topic) {
        let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
        self.coordinators.host().set_partition_count(Some(count));
        self.partitions
            .wait_until_reconciled(image.next_offset())
            .await;
        for (index, _) in topic.indexed() {
            let here = self.partitions.get(topic.id, index);
            if let Some(followed) = self.followed.get(&index) {
                let is_same = here
                    .as_ref()
                    .is_some_and(|here| Arc::ptr_eq(here, &followed.partition));
                if is_same {
                    continue;
                }
                // Others hold it, or it has come back as another replica.
                self.unfollow(index).await;
            }
            let Some(partition) = here else {
                continue;
            };
            let coordinators = Arc::clone(&self.coordinators);
            let following =
                follow_leadership(coordinators, Arc::clone(&partition), self.commit_timeout);
            let task = tokio::spawn(following);
            self.followed.insert(index, Followed { partition, task });
        }
    }

    /// Ends the coordinator of a partition that is not the one it was. What followed its leadership
    /// has ended before, and so starts none after.
    async fn unfollow(&mut self, index: PartitionIndex) {
        if let Some(mut followed) = self.followed.remove(&index) {
            followed.task.abort();
            let _ = (&mut followed.task).await;
            self.coordinators.host().remove(index);
        }
    }
}

/// Starts a coordinator when this broker begins to lead, and ends it when it no longer does.
async fn follow_leadership<C: Coordinators>(
    coordinators: Arc<C>,
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
                    coordinators.lead(index, Arc::new(log));
                }
                None => coordinators.host().remove(index),
            }
            led = current;
        }
        if leadership.changed().await.is_err() {
            coordinators.host().remove(index);
            return;
        }
    }
}
