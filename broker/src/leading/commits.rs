//! Which partitions' high watermarks have risen since somebody last looked, for those who tell their
//! followers.
//!
//! A follower learns how far its log is committed with the next entry or heartbeat. Where consumers
//! read from followers, the last records of a burst would wait for that; so once nothing follows for a
//! moment, the followers are told for its own sake. Elsewhere nothing is noted, and nothing is paid.
//!
//! Memory is bounded by the number of partitions: each stands here at most once.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use odradek_raft::GroupKey;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// See the module.
#[derive(Debug, Default)]
pub struct Commits {
    wanted: AtomicBool,
    keys: Mutex<HashSet<GroupKey>>,
    noted: Notify,
}

impl Commits {
    /// Whether anybody wants to know.
    pub fn want(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// The high watermark of `key` has risen.
    pub fn note(&self, key: GroupKey) {
        if self.wanted.load(Ordering::Relaxed) && self.keys.lock().insert(key) {
            self.noted.notify_one();
        }
    }

    /// Waits until something is noted. Safe to drop; may also return when nothing is.
    pub async fn noted(&self) {
        self.noted.notified().await;
    }

    /// Takes out what is noted.
    pub fn take(&self) -> HashSet<GroupKey> {
        std::mem::take(&mut *self.keys.lock())
    }
}
