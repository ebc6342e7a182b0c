//! How well a led partition is replicated, and what that means to producers and readers.
//!
//! Committed is what a majority of the voters has on stable storage; that is decided below. On top of
//! it stands what Kafka's clients know: the replicas in sync, `min.insync.replicas`, and a replica in
//! a consumer's own rack.
//!
//! Absent on purpose: finding out who is in sync; see `leading`.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use odradek_protocol::ids::{LeaderEpoch, NodeId, Offset};
use odradek_raft::Group;
use tokio::time::Instant;

use super::{Partition, PartitionError};

/// Shortest time between two looks at how far the replicas are: many may wait for the same replica.
const LOOK_PERIOD: Duration = Duration::from_millis(1);
/// Longest time until it is looked whether enough of them are in sync still, of which nobody tells.
const VIEW_LOOK_PERIOD: Duration = Duration::from_millis(100);

/// What the leader of a term last saw of its replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicationView {
    /// The term.
    pub epoch: LeaderEpoch,
    /// Replicas in sync, this leader among them.
    pub in_sync: Vec<NodeId>,
    /// Replicas that the metadata assigns.
    pub replicas: usize,
    /// Replicas that have a vote.
    pub voters: usize,
}

impl ReplicationView {
    /// How many replicas must have a batch before it is acknowledged: `min.insync.replicas`, as far
    /// as there are so many.
    fn required(&self, min_insync_replicas: usize) -> usize {
        min_insync_replicas.min(self.replicas)
    }
}

/// The newest view, shared with those who wait for replicas.
pub(super) type SharedView = Arc<ArcSwapOption<ReplicationView>>;

impl Partition {
    /// Takes over what was seen of the replicas; `None` when this node does not lead, or alone.
    pub fn set_replication(&self, view: Option<ReplicationView>) {
        self.replication.store(view.map(Arc::new));
    }

    /// What was last seen of the replicas.
    pub fn replication(&self) -> Option<Arc<ReplicationView>> {
        self.replication.load_full()
    }

    /// An error if too few replicas are in sync for `acks=all` in the term `epoch`. Otherwise, if
    /// more replicas than a majority must have a batch, what waits for them.
    pub(super) fn require_in_sync(
        &self,
        epoch: LeaderEpoch,
        min_insync_replicas: usize,
    ) -> Result<Option<MoreThanMajority>, PartitionError> {
        if min_insync_replicas <= 1 {
            return Ok(None);
        }
        let view = self.replication.load();
        let Some(view) = view.as_ref().filter(|view| view.epoch == epoch) else {
            return Ok(None);
        };
        let required = view.required(min_insync_replicas);
        let in_sync = view.in_sync.len();
        if in_sync < required {
            return Err(PartitionError::NotEnoughReplicas { in_sync, required });
        }
        let majority = view.voters / 2 + 1;
        Ok((required > majority).then(|| MoreThanMajority {
            group: Arc::clone(&self.group),
            view: Arc::clone(&self.replication),
            epoch,
            required,
        }))
    }

    /// The replica that a consumer at `offset` should rather read from, out of those near it: one
    /// that is in sync and has the offset, the one that has most. `None` leaves it with the leader,
    /// and where this node does not lead.
    pub fn preferred_replica(&self, near: &[NodeId], offset: Offset) -> Option<NodeId> {
        if near.is_empty() || !self.leadership().is_ready_leader() {
            return None;
        }
        let view = self.replication.load();
        let in_sync = &view.as_ref()?.in_sync;
        let progress = self.group.replication().ok()?;
        progress
            .iter()
            .filter(|replica| near.contains(&replica.node) && in_sync.contains(&replica.node))
            .filter(|replica| replica.matched >= offset)
            .max_by_key(|replica| (replica.matched, std::cmp::Reverse(replica.node)))
            .map(|replica| replica.node)
    }
}

/// Waits for more replicas than a majority.
#[derive(Clone)]
pub(super) struct MoreThanMajority {
    group: Arc<Group>,
    view: SharedView,
    epoch: LeaderEpoch,
    required: usize,
}

impl std::fmt::Debug for MoreThanMajority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MoreThanMajority")
            .field("required", &self.required)
            .finish_non_exhaustive()
    }
}

impl MoreThanMajority {
    /// Waits until so many replicas have everything below `end`, which is committed. Gives up when
    /// fewer are in sync.
    pub(super) async fn have(&self, end: Offset) -> Result<(), PartitionError> {
        let mut changes = self.group.subscribe_replication();
        loop {
            let looked_at = Instant::now();
            if self.holders(end) >= self.required {
                return Ok(());
            }
            let view = self.view.load_full();
            let Some(view) = view.filter(|view| view.epoch == self.epoch) else {
                return Err(PartitionError::NotLeader { leader: None });
            };
            let in_sync = view.in_sync.len();
            if in_sync < self.required {
                let required = self.required;
                return Err(PartitionError::NotEnoughReplicasAfterAppend { in_sync, required });
            }
            let until = looked_at + VIEW_LOOK_PERIOD;
            match tokio::time::timeout_at(until, changes.changed()).await {
                Ok(true) => tokio::time::sleep_until(looked_at + LOOK_PERIOD).await,
                // The group has stopped, which the view will say.
                Ok(false) => tokio::time::sleep_until(until).await,
                Err(_) => {}
            }
        }
    }

    fn holders(&self, end: Offset) -> usize {
        let progress = self.group.replication().unwrap_or_default();
        progress
            .iter()
            .filter(|replica| replica.voter && replica.matched >= end)
            .count()
    }
}
