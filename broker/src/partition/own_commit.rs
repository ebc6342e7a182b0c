//! Waiting until what was appended is committed, where nobody but this node has to say so.
//!
//! `acks=1` is answered once a batch is in the leader's log, and readers see what is committed. With
//! more voters than one that may be later, as Kafka's high watermark is later. With one it is this
//! node's own sync that is missing, and Kafka, which does not wait for it, shows the record at once:
//! its clients expect that the latest offset counts what they were told is written.

use std::time::Duration;

use tokio::time::Instant;

use super::Partition;
use crate::waiters::FetchWaiter;

impl Partition {
    /// Waits until all that the log held at the call is committed, if this node is the only voter
    /// and leads; not longer than `patience`. Where nothing is missing it does not wait.
    pub async fn wait_for_own_commit(&self, patience: Duration) {
        let end = self.offsets().log_end.get();
        let is_committed = || self.offsets().high_watermark.get() >= end;
        if is_committed() || !self.is_only_voter() {
            return;
        }
        let deadline = Instant::now() + patience;
        let waiter = FetchWaiter::new();
        loop {
            self.waiters().register(&waiter, 0);
            // After the registration, so that no movement is missed.
            if is_committed() || self.require_leader().is_err() {
                return;
            }
            if tokio::time::timeout_at(deadline, waiter.moved())
                .await
                .is_err()
            {
                return;
            }
        }
    }

    fn is_only_voter(&self) -> bool {
        let members = self.group.membership();
        members.joint.is_none() && members.voters.len() == 1
    }
}
