//! The coordinators of one kind on a broker: which there are, and whom a key belongs to.
//!
//! A key, which is a group's id or a transactional id, belongs to the partition of the topic that it hashes to, and to
//! the broker that leads that. How many partitions there really are is told by whoever watches the metadata; a later
//! change of the configured number moves no key.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use odradek_protocol::ids::PartitionIndex;
use parking_lot::RwLock;

use super::partitioner::partition_of;
use super::{Shard, ShardError, StateMachine};

/// How often to look whether a coordinator has come up.
const START_POLL: Duration = Duration::from_millis(5);

/// A coordinator, and what ends with it.
struct Hosted<S: StateMachine, B> {
    shard: Shard<S>,
    _beside: B,
}

/// The coordinators of one kind. `B` is kept beside each of them and dropped with it.
pub struct Host<S: StateMachine, B = ()> {
    /// Partitions of the topic; 0 as long as there is no topic.
    partition_count: AtomicI32,
    hosted: RwLock<HashMap<PartitionIndex, Hosted<S, B>>>,
    /// Told how many there are whenever that changes.
    gauge: fn(usize),
}

impl<S: StateMachine, B> fmt::Debug for Host<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("partition_count", &self.partition_count)
            .field("led", &self.led())
            .finish_non_exhaustive()
    }
}

impl<S: StateMachine, B> Host<S, B> {
    /// None yet. `gauge` is told how many there are.
    pub fn new(gauge: fn(usize)) -> Self {
        Self {
            partition_count: AtomicI32::new(0),
            hosted: RwLock::new(HashMap::new()),
            gauge,
        }
    }

    /// The topic has so many partitions; `None` if it does not exist.
    pub fn set_partition_count(&self, count: Option<i32>) {
        self.partition_count
            .store(count.unwrap_or(0), Ordering::Release);
    }

    /// The coordinator of `partition` runs here from now on; one that was there before ends.
    pub fn insert(&self, partition: PartitionIndex, shard: Shard<S>, beside: B) {
        let mut hosted = self.hosted.write();
        let new = Hosted {
            shard,
            _beside: beside,
        };
        if let Some(earlier) = hosted.insert(partition, new) {
            earlier.shard.resign();
        }
        (self.gauge)(hosted.len());
    }

    /// The coordinator of `partition` no longer runs here.
    pub fn remove(&self, partition: PartitionIndex) {
        let mut hosted = self.hosted.write();
        if let Some(hosted) = hosted.remove(&partition) {
            hosted.shard.resign();
        }
        (self.gauge)(hosted.len());
    }

    /// The partitions whose coordinator runs here.
    pub fn led(&self) -> Vec<PartitionIndex> {
        self.hosted.read().keys().copied().collect()
    }

    /// The partition that `key` belongs to; `None` as long as the topic does not exist.
    pub fn partition_of(&self, key: &str) -> Option<PartitionIndex> {
        match self.partition_count.load(Ordering::Acquire) {
            0 => None,
            count => Some(partition_of(key, count)),
        }
    }

    /// Waits until the coordinator of `partition` answers.
    pub async fn wait_until_active(&self, partition: PartitionIndex) {
        let is_active = || {
            let hosted = self.hosted.read();
            hosted
                .get(&partition)
                .is_some_and(|hosted| hosted.shard.is_active())
        };
        while !is_active() {
            tokio::time::sleep(START_POLL).await;
        }
    }

    /// All coordinators that run here.
    pub fn shards(&self) -> Vec<Shard<S>> {
        let hosted = self.hosted.read();
        hosted.values().map(|hosted| hosted.shard.clone()).collect()
    }

    /// The coordinator of a partition.
    ///
    /// # Errors
    /// It does not run here.
    pub fn shard(&self, partition: PartitionIndex) -> Result<Shard<S>, ShardError> {
        let hosted = self.hosted.read();
        let hosted = hosted.get(&partition).ok_or(ShardError::NotCoordinator)?;
        Ok(hosted.shard.clone())
    }

    /// Asks the coordinator of a key. `take` takes the reply apart; a shard answers in kind.
    ///
    /// # Errors
    /// The coordinator does not run here, or it does not answer.
    pub async fn ask<T>(
        &self,
        key: &str,
        request: S::Request,
        take: impl FnOnce(S::Reply) -> Option<T>,
    ) -> Result<T, ShardError> {
        let partition = self.partition_of(key).ok_or(ShardError::NotCoordinator)?;
        let reply = self.shard(partition)?.call(request).await?;
        take(reply).ok_or(ShardError::Unavailable)
    }

    /// Asks all coordinators that run here for a list, and puts the lists together.
    ///
    /// # Errors
    /// One does not answer, so the list would have a hole. One that has just ceased to be the coordinator makes none:
    /// whoever leads the partition now lists what is there.
    pub async fn collect<T>(
        &self,
        request: impl Fn() -> S::Request,
        take: impl Fn(S::Reply) -> Option<Vec<T>>,
    ) -> Result<Vec<T>, ShardError> {
        let mut all = Vec::new();
        for shard in self.shards() {
            match shard.call(request()).await {
                Ok(reply) => all.extend(take(reply).ok_or(ShardError::Unavailable)?),
                Err(ShardError::NotCoordinator) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }
}

/// What takes apart a reply of one variant of an enum, for [`Host::ask`].
macro_rules! variant {
    ($reply:ident :: $variant:ident) => {
        |reply| match reply {
            $reply::$variant(content) => Some(content),
            _ => None,
        }
    };
}
pub(crate) use variant;
