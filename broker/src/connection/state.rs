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
    is_kept: AtomicBool,
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
            is_kept: AtomicBool::new(false),
            unsent_bytes: AtomicUsize::new(0),
            sent: Notify::new(),
            close: Notify::new(),
        })
    }

    /// Bytes have moved in either direction, or a handler has begun or ended.
    pub(super) fn progressed(&self) {
        let ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_progress_ms.store(ms, Ordering::Relaxed);
    }

    /// From now on silence is no reason to part.
    pub(super) fn keep(&self) {
        self.is_kept.store(true, Ordering::Relaxed);
    }

    /// How long nothing has moved. A request that waits is silence like any other: how long it waits
    /// is the client's choice, and must not be the broker's bound.
    pub(crate) fn idle_for(&self) -> Duration {
        if self.is_kept.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        let last = Duration::from_millis(self.last_progress_ms.load(Ordering::Relaxed));
        self.since.elapsed().saturating_sub(last)
    }

    /// Ends when nothing has moved for `limit`.
    pub(super) async fn idle_past(&self, limit: Duration) {
        while let Some(left) = limit
            .checked_sub(self.idle_for())
            .filter(|left| !left.is_zero())
        {
            tokio::time::sleep(left).await;
        }
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
    async fn only_what_moves_ends_idleness_and_who_is_kept_is_never_idle() {
        let state = ConnectionState::new();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(state.idle_for() >= Duration::from_millis(15));
        let begun = Instant::now();
        state.progressed();
        state.idle_past(Duration::from_millis(30)).await;
        assert!(begun.elapsed() >= Duration::from_millis(25));
        state.keep();
        assert_eq!(state.idle_for(), Duration::ZERO);
    }
}
