//! Which partitions' leadership has changed since somebody last looked.
//!
//! Groups report from within their own tasks, so that noting a change must be quick and never waits.
//! Memory is bounded by the number of partitions: each stands here at most once.

use std::collections::HashSet;

use odradek_raft::GroupKey;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::commits::Commits;

/// See the module.
#[derive(Debug, Default)]
pub struct LeadershipChanges {
    /// Which high watermarks have risen.
    pub commits: Commits,
    keys: Mutex<HashSet<GroupKey>>,
    noted: Notify,
}

impl LeadershipChanges {
    /// Something about who leads `key` is different now.
    pub fn note(&self, key: GroupKey) {
        if self.keys.lock().insert(key) {
            self.noted.notify_one();
        }
    }

    /// Waits until something was noted and returns it. Safe to drop: nothing is lost.
    pub async fn take(&self) -> HashSet<GroupKey> {
        loop {
            let keys = std::mem::take(&mut *self.keys.lock());
            if !keys.is_empty() {
                return keys;
            }
            self.noted.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use odradek_protocol::ids::{PartitionIndex, TopicId};

    use super::*;

    #[test]
    fn a_partition_that_changes_often_is_taken_once_and_nothing_is_lost() {
        let changes = LeadershipChanges::default();
        let key =
            |partition| GroupKey::new(TopicId::from_bytes([1; 16]), PartitionIndex::new(partition));
        {
            let mut given_up = Box::pin(changes.take());
            assert!((&mut given_up).now_or_never().is_none());
            changes.note(key(0));
        }
        changes.note(key(0));
        changes.note(key(1));
        let taken = changes.take().now_or_never().expect("at once");
        assert_eq!(taken, HashSet::from([key(0), key(1)]));
        assert!(changes.take().now_or_never().is_none());
    }
}
