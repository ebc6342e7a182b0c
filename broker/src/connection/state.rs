//! What the two halves of a connection and the server share about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::memory::{MemoryBudget, ReplyBytes};

/// Unsent bytes above which a connection starts no further request.
const UNSENT_LIMIT_BYTES: usize = 1024 * 1024;

/// Shared facts of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    since: Instant,
    last_progress_ms: AtomicU64,
    in_handler: AtomicBool,
    unsent_bytes: AtomicUsize,
    sent: Notify,
    close: Notify,
}

/// Bytes of one reply, counted against its connection and the broker until this is dropped.
#[derive(Debug)]
pub(super) struct Unsent {
    state: Arc<ConnectionState>,
    _in_broker: ReplyBytes,
    bytes: usize,
}

impl ConnectionState {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            since: Instant::now(),
            last_progress_ms: AtomicU64::new(0),
            in_handler: AtomicBool::new(false),
            unsent_bytes: AtomicUsize::new(0),
            sent: Notify::new(),
            close: Notify::new(),
        })
    }

    /// Bytes have moved in either direction.
    pub(super) fn progressed(&self) {
        let ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_progress_ms.store(ms, Ordering::Relaxed);
    }

    /// Marks that a handler works, or has ended: a connection that waits for us is not idle.
    pub(super) fn set_in_handler(&self, working: bool) {
        self.in_handler.store(working, Ordering::Relaxed);
        self.progressed();
    }

    /// How long nothing has moved and no handler has worked.
    pub(crate) fn idle_for(&self) -> Duration {
        if self.in_handler.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        let last = Duration::from_millis(self.last_progress_ms.load(Ordering::Relaxed));
        self.since.elapsed().saturating_sub(last)
    }

    /// Asks the connection to close at once.
    pub(crate) fn request_close(&self) {
        self.close.notify_one();
    }

    /// Ends when somebody has asked for the connection to close.
    pub(super) async fn close_requested(&self) {
        self.close.notified().await;
    }

    /// Counts `bytes` of a reply as unsent.
    pub(super) fn count_unsent(
        self: &Arc<Self>,
        budget: &Arc<MemoryBudget>,
        bytes: usize,
    ) -> Unsent {
        self.unsent_bytes.fetch_add(bytes, Ordering::Relaxed);
        Unsent {
            state: Arc::clone(self),
            _in_broker: budget.count_reply(bytes),
            bytes,
        }
    }

    /// Waits until the peer has read enough of its replies for another request to start.
    pub(super) async fn reply_room(&self, budget: &MemoryBudget) {
        loop {
            let sent = self.sent.notified();
            let unsent = self.unsent_bytes.load(Ordering::Relaxed);
            if unsent == 0 || (unsent < UNSENT_LIMIT_BYTES && budget.has_reply_room()) {
                return;
            }
            sent.await;
        }
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        self.state
            .unsent_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
        self.state.sent.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn a_connection_with_unsent_replies_waits_while_one_without_goes_on() {
        let budget = MemoryBudget::new(1 << 20, 1_000);
        let slow = ConnectionState::new();
        let quick = ConnectionState::new();
        let unsent = slow.count_unsent(&budget, 2_000);
        assert!(slow.reply_room(&budget).now_or_never().is_none());
        assert!(quick.reply_room(&budget).now_or_never().is_some());
        drop(unsent);
        assert!(slow.reply_room(&budget).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_handler_at_work_is_not_idleness() {
        let state = ConnectionState::new();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(state.idle_for() >= Duration::from_millis(15));
        state.set_in_handler(true);
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(state.idle_for(), Duration::ZERO);
        state.set_in_handler(false);
        assert!(state.idle_for() < Duration::from_secs(1));
    }
}
