//! Telling those who wait for replicas that one of them may have got on.

use openraft::alias::WatchReceiverOf;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftMetrics;

use crate::group::Group;
use crate::types::TypeConfig;

/// Wakes whoever waits for [`Group::replication`] to say something new. Also wakes for nothing.
pub struct ReplicationChanges(WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>);

impl std::fmt::Debug for ReplicationChanges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplicationChanges").finish_non_exhaustive()
    }
}

impl ReplicationChanges {
    /// Waits until something has changed since the last call; the first may return at once. False if nothing
    /// will change any more.
    pub async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

impl Group {
    /// To be told when [`Self::replication`] may say something new.
    pub fn subscribe_replication(&self) -> ReplicationChanges {
        ReplicationChanges(self.raft().metrics())
    }
}
