//! The broker-wide memory budget for requests and replies.
//!
//! Invariants:
//! - bytes of request frames in memory ≤ `total`: a frame's bytes are reserved before they are
//!   read and given back when the request is done;
//! - frames up to [`SMALL_FRAME_BYTES`] have a share of their own, so that heartbeats, metadata and
//!   fetches are served while produce waits for memory;
//! - once unsent replies reach their limit, only connections without a backlog of their own may
//!   start a request: a client that does not read slows itself and nobody else.
//!
//! A frame larger than a whole share reserves the whole share: it is read alone, not refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Largest frame that reserves from the share of small frames.
pub const SMALL_FRAME_BYTES: usize = 64 * 1024;

/// Part of the budget that only small frames may use: one eighth.
const SMALL_SHARE: usize = 8;

/// The budget. One a process; clones of the `Arc` share it.
#[derive(Debug)]
pub struct MemoryBudget {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    small_total: usize,
    large_total: usize,
    waiting: AtomicUsize,
    reply_bytes: AtomicUsize,
    reply_limit: usize,
}

/// Reserved request memory; dropping it gives the bytes back.
#[derive(Debug)]
pub struct Reservation {
    _permit: Option<OwnedSemaphorePermit>,
}

/// Bytes of an unsent reply, counted until this is dropped.
#[derive(Debug)]
pub struct ReplyBytes {
    budget: Arc<MemoryBudget>,
    bytes: usize,
}

impl MemoryBudget {
    /// A budget of `request_bytes` for frames and `reply_bytes` for replies that wait to be sent.
    pub fn new(request_bytes: usize, reply_bytes: usize) -> Arc<Self> {
        let small_total = (request_bytes / SMALL_SHARE).clamp(1, u32::MAX as usize);
        let large_total = (request_bytes.saturating_sub(small_total)).clamp(1, u32::MAX as usize);
        Arc::new(Self {
            small: Arc::new(Semaphore::new(small_total)),
            large: Arc::new(Semaphore::new(large_total)),
            small_total,
            large_total,
            waiting: AtomicUsize::new(0),
            reply_bytes: AtomicUsize::new(0),
            reply_limit: reply_bytes,
        })
    }

    /// Waits until a frame of `bytes` fits into its share and reserves it. First come, first served.
    pub async fn reserve(&self, bytes: usize) -> Reservation {
        let (share, total) = if bytes <= SMALL_FRAME_BYTES {
            (&self.small, self.small_total)
        } else {
            (&self.large, self.large_total)
        };
        let permits = u32::try_from(bytes.min(total)).unwrap_or(u32::MAX);
        if let Ok(permit) = Arc::clone(share).try_acquire_many_owned(permits) {
            return Reservation {
                _permit: Some(permit),
            };
        }
        let _waiting = CountWhile::new(&self.waiting);
        // The semaphores are never closed; if one were, the frame would go uncounted, not unread.
        let permit = Arc::clone(share).acquire_many_owned(permits).await.ok();
        Reservation { _permit: permit }
    }

    /// Whether some connection waits for memory. A peer that holds a reservation and does not send
    /// is cut off while this is so.
    pub fn is_contended(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Bytes of request frames that may be reserved at once.
    pub fn request_bytes(&self) -> usize {
        self.small_total + self.large_total
    }

    /// Bytes of request frames reserved now.
    pub fn request_bytes_in_use(&self) -> usize {
        self.request_bytes()
            .saturating_sub(self.small.available_permits() + self.large.available_permits())
    }

    /// Counts a reply that waits to be sent.
    pub fn count_reply(self: &Arc<Self>, bytes: usize) -> ReplyBytes {
        self.reply_bytes.fetch_add(bytes, Ordering::Relaxed);
        ReplyBytes {
            budget: Arc::clone(self),
            bytes,
        }
    }

    /// Bytes of unsent replies now.
    pub fn reply_bytes_in_use(&self) -> usize {
        self.reply_bytes.load(Ordering::Relaxed)
    }

    /// Whether a connection that has unsent replies may still start a request.
    pub fn has_reply_room(&self) -> bool {
        self.reply_bytes_in_use() < self.reply_limit
    }
}

impl Drop for ReplyBytes {
    fn drop(&mut self) {
        self.budget
            .reply_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct CountWhile<'a>(&'a AtomicUsize);

impl<'a> CountWhile<'a> {
    fn new(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(counter)
    }
}

impl Drop for CountWhile<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn a_large_frame_waits_for_memory_while_small_ones_pass() {
        let budget = MemoryBudget::new(8 << 20, 1 << 20);
        let held = budget.reserve(7 << 20).await;
        let mut second = Box::pin(budget.reserve(1 << 20));
        assert!((&mut second).now_or_never().is_none());
        assert!(budget.is_contended());
        let small = budget
            .reserve(100)
            .now_or_never()
            .expect("small share is free");
        drop(held);
        let second = second.await;
        assert!(!budget.is_contended());
        assert_eq!(budget.request_bytes_in_use(), (1 << 20) + 100);
        drop((small, second));
        assert_eq!(budget.request_bytes_in_use(), 0);
    }

    #[tokio::test]
    async fn a_frame_larger_than_the_budget_is_read_alone_instead_of_never() {
        let budget = MemoryBudget::new(1 << 20, 1 << 20);
        let held = budget.reserve(100 << 20).now_or_never();
        assert!(held.is_some());
    }

    #[tokio::test]
    async fn a_dropped_waiter_leaves_no_trace() {
        let budget = MemoryBudget::new(8 << 20, 1 << 20);
        let held = budget.reserve(7 << 20).await;
        let mut waiter = Box::pin(budget.reserve(1 << 20));
        assert!((&mut waiter).now_or_never().is_none());
        drop(waiter);
        assert!(!budget.is_contended());
        drop(held);
        assert_eq!(budget.request_bytes_in_use(), 0);
    }

    #[test]
    fn reply_room_ends_at_the_limit_and_comes_back() {
        let budget = MemoryBudget::new(1 << 20, 1_000);
        let first = budget.count_reply(999);
        assert!(budget.has_reply_room());
        let second = budget.count_reply(1);
        assert!(!budget.has_reply_room());
        drop(first);
        assert!(budget.has_reply_room());
        drop(second);
        assert_eq!(budget.reply_bytes_in_use(), 0);
    }
}
