//! The broker-wide memory budget for requests and replies.
//!
//! Invariants:
//! - bytes of request frames in memory ≤ `total`: a frame's bytes are reserved, step by step, before they
//!   are read and given back when the request is done;
//! - where memory is short, a frame holds no more than a multiple of what has come of it, so that who
//!   announces much and sends little holds little;
//! - whoever sends gets on: a part of each share is kept for one frame at a time, which gets all that it
//!   still lacks. So frames that have begun never wait for one another in a circle, and those whose senders
//!   have stalled hold up nobody;
//! - frames up to [`SMALL_FRAME_BYTES`] have a share of their own, so that heartbeats, metadata and
//!   fetches are served while produce waits for memory;
//! - once unsent replies reach their limit, only connections without a backlog of their own may
//!   start a request: a client that does not read slows itself and nobody else.
//!
//! A frame that lacks more than the part kept for one is read there all the same, beyond the total: it is
//! read alone, not refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Largest frame that reserves from the share of small frames.
pub const SMALL_FRAME_BYTES: usize = 64 * 1024;

/// Part of the budget that only small frames may use: one eighth.
const SMALL_SHARE: usize = 8;

/// Most that is kept of the share of large frames for one of them: `socket.request.max.bytes` by Kafka's
/// default.
const LARGE_SPARE_BYTES: usize = 100 << 20;

/// The budget. One a process; clones of the `Arc` share it.
#[derive(Debug)]
pub struct MemoryBudget {
    small: Arc<Share>,
    large: Arc<Share>,
    waiting: AtomicUsize,
    contended: Notify,
    reply_bytes: AtomicUsize,
    reply_limit: usize,
}

/// What frames of one kind share.
#[derive(Debug)]
struct Share {
    /// First come, first served.
    pool: Arc<Semaphore>,
    pool_bytes: usize,
    /// One frame at a time has what is kept apart, in the order in which they asked.
    spare: Arc<Semaphore>,
    spare_bytes: usize,
    spare_bytes_in_use: AtomicUsize,
}

/// Request memory reserved for one frame; dropping it gives the bytes back.
#[derive(Debug)]
pub struct Reservation {
    share: Arc<Share>,
    frame_bytes: usize,
    bytes: usize,
    pool: Option<OwnedSemaphorePermit>,
    spare: Option<Spare>,
}

/// What is kept apart in each share, in use.
#[derive(Debug)]
struct Spare {
    share: Arc<Share>,
    bytes: usize,
    _permit: OwnedSemaphorePermit,
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
        let small = request_bytes / SMALL_SHARE;
        Arc::new(Self {
            small: Share::new(small, SMALL_FRAME_BYTES),
            large: Share::new(request_bytes.saturating_sub(small), LARGE_SPARE_BYTES),
            waiting: AtomicUsize::new(0),
            contended: Notify::new(),
            reply_bytes: AtomicUsize::new(0),
            reply_limit: reply_bytes,
        })
    }

    /// A reservation for a frame that takes `frame_bytes` in all, of which it has none yet.
    pub fn begin(&self, frame_bytes: usize) -> Reservation {
        let share = match frame_bytes <= SMALL_FRAME_BYTES {
            true => &self.small,
            false => &self.large,
        };
        Reservation {
            share: Arc::clone(share),
            frame_bytes,
            bytes: 0,
            pool: None,
            spare: None,
        }
    }

    /// Whether half of the share is left beside `bytes` more of this frame, so that it may have them without
    /// having shown that it will fill them.
    pub fn is_ample(&self, reservation: &Reservation, bytes: usize) -> bool {
        let share = &reservation.share;
        share.pool.available_permits() >= (share.pool_bytes / 2).saturating_add(bytes)
    }

    /// Waits until the frame has `bytes`, or all of its bytes, in its share. First come, first served.
    ///
    /// To be called once more of the frame has come than it has memory for: who waits here is next to get
    /// what is kept for one frame at a time.
    pub async fn grow(&self, reservation: &mut Reservation, bytes: usize) {
        let share = Arc::clone(&reservation.share);
        let bytes = bytes.min(reservation.frame_bytes);
        let more = bytes.saturating_sub(reservation.bytes);
        if more == 0 {
            return;
        }
        // More than the pool has nobody gets from it.
        let permits = u32::try_from(more)
            .ok()
            .filter(|_| more <= share.pool_bytes);
        if let Some(permits) = permits
            && let Ok(permit) = Arc::clone(&share.pool).try_acquire_many_owned(permits)
        {
            reservation.take(permit, bytes);
            return;
        }
        let _waiting = CountWhile::new(&self.waiting);
        self.contended.notify_waiters();
        let from_pool = async {
            match permits {
                Some(permits) => {
                    let pool = Arc::clone(&share.pool);
                    pool.acquire_many_owned(permits).await
                }
                None => std::future::pending().await,
            }
        };
        // The semaphores are never closed; if one were, the frame would go uncounted, not unread.
        tokio::select! {
            biased;
            permit = from_pool => {
                if let Ok(permit) = permit {
                    reservation.take(permit, bytes);
                }
            }
            permit = Arc::clone(&share.spare).acquire_owned() => {
                if let Ok(permit) = permit {
                    reservation.take_spare(permit);
                }
            }
        }
    }

    /// Waits until a frame of `bytes` fits into its share and reserves it whole.
    pub async fn reserve(&self, bytes: usize) -> Reservation {
        let mut reservation = self.begin(bytes);
        self.grow(&mut reservation, bytes).await;
        reservation
    }

    /// Whether some connection waits for memory. A peer that holds a reservation and does not send
    /// gives way while this is so, and is cut off in the end.
    pub fn is_contended(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Waits until some connection waits for memory.
    pub async fn until_contended(&self) {
        loop {
            let notified = self.contended.notified();
            if self.is_contended() {
                return;
            }
            notified.await;
        }
    }

    /// Bytes of request frames that may be reserved at once.
    pub fn request_bytes(&self) -> usize {
        self.small.total() + self.large.total()
    }

    /// Bytes of request frames reserved now.
    pub fn request_bytes_in_use(&self) -> usize {
        self.small.in_use() + self.large.in_use()
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

impl Share {
    /// A share of `bytes`, of which half and no more than `most_spare` are for one frame at a time.
    fn new(bytes: usize, most_spare: usize) -> Arc<Self> {
        let bytes = bytes.clamp(2, u32::MAX as usize);
        let spare_bytes = (bytes / 2).min(most_spare);
        let pool_bytes = bytes - spare_bytes;
        Arc::new(Self {
            pool: Arc::new(Semaphore::new(pool_bytes)),
            pool_bytes,
            spare: Arc::new(Semaphore::new(1)),
            spare_bytes,
            spare_bytes_in_use: AtomicUsize::new(0),
        })
    }

    fn total(&self) -> usize {
        self.pool_bytes + self.spare_bytes
    }

    fn in_use(&self) -> usize {
        let of_pool = self
            .pool_bytes
            .saturating_sub(self.pool.available_permits());
        of_pool + self.spare_bytes_in_use.load(Ordering::Relaxed)
    }
}

impl Reservation {
    /// Bytes reserved.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether this frame has what is kept for one at a time: others that wait can get none before its
    /// request is done.
    pub fn is_first_in_line(&self) -> bool {
        self.spare.is_some()
    }

    /// Gives back what the frame has beyond `bytes`. What is kept for one frame at a time stays with it.
    pub fn shrink(&mut self, bytes: usize) {
        let unneeded = self.bytes.saturating_sub(bytes);
        if self.spare.is_none()
            && let Some(held) = &mut self.pool
            && held.split(unneeded).is_some()
        {
            self.bytes -= unneeded;
        }
    }

    fn take(&mut self, permit: OwnedSemaphorePermit, bytes: usize) {
        match &mut self.pool {
            Some(held) => held.merge(permit),
            None => self.pool = Some(permit),
        }
        self.bytes = bytes;
    }

    fn take_spare(&mut self, permit: OwnedSemaphorePermit) {
        let bytes = self.frame_bytes - self.bytes;
        let in_use = &self.share.spare_bytes_in_use;
        in_use.fetch_add(bytes, Ordering::Relaxed);
        self.bytes = self.frame_bytes;
        self.spare = Some(Spare {
            share: Arc::clone(&self.share),
            bytes,
            _permit: permit,
        });
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        let in_use = &self.share.spare_bytes_in_use;
        in_use.fetch_sub(self.bytes, Ordering::Relaxed);
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
        counter.fetch_add(1, Ordering::SeqCst);
        Self(counter)
    }
}

impl Drop for CountWhile<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const MB: usize = 1 << 20;

    #[tokio::test]
    async fn a_large_frame_waits_for_memory_while_small_ones_pass() {
        let budget = MemoryBudget::new(8 * MB, MB);
        let pool = budget.large.pool_bytes;
        let held = budget.reserve(pool).await;
        let first = budget.reserve(MB).now_or_never();
        let first = first.expect("one frame gets what is kept apart");
        assert!(first.is_first_in_line() && !held.is_first_in_line());
        let mut second = Box::pin(budget.reserve(MB));
        assert!((&mut second).now_or_never().is_none());
        assert!(budget.is_contended());
        let small = budget
            .reserve(100)
            .now_or_never()
            .expect("small share is free");
        drop(held);
        let second = second.await;
        assert!(!budget.is_contended());
        assert_eq!(budget.request_bytes_in_use(), 2 * MB + 100);
        drop((small, first, second));
        assert_eq!(budget.request_bytes_in_use(), 0);
    }

    #[tokio::test]
    async fn frames_that_have_begun_never_wait_for_one_another_in_a_circle() {
        let budget = MemoryBudget::new(8 * MB, MB);
        // Half of each frame fills the pool, and none of them can be read to its end from there.
        let count = budget.large.pool_bytes / MB;
        let mut begun: Vec<_> = (0..count).map(|_| budget.begin(2 * MB)).collect();
        for frame in &mut begun {
            budget.grow(frame, MB).await;
        }
        let total = budget.request_bytes();
        for mut frame in begun {
            let growing = budget.grow(&mut frame, 2 * MB).now_or_never();
            growing.expect("the first that asks gets on");
            assert_eq!(frame.bytes(), 2 * MB);
            assert!(budget.request_bytes_in_use() <= total);
        }
        assert_eq!(budget.request_bytes_in_use(), 0);
    }

    #[tokio::test]
    async fn what_is_kept_apart_goes_from_one_to_the_next_in_the_order_of_asking() {
        let budget = MemoryBudget::new(8 * MB, MB);
        let _held = budget.reserve(budget.large.pool_bytes).await;
        let first = budget.reserve(MB).await;
        let mut second = Box::pin(budget.reserve(MB));
        let mut third = Box::pin(budget.reserve(MB));
        assert!((&mut second).now_or_never().is_none());
        assert!((&mut third).now_or_never().is_none());
        drop(first);
        assert!((&mut third).now_or_never().is_none());
        let second = second.now_or_never().expect("its turn");
        drop(second);
        assert!(third.now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_frame_larger_than_the_budget_is_read_alone_instead_of_never() {
        let budget = MemoryBudget::new(MB, MB);
        let held = budget.reserve(100 * MB).now_or_never();
        assert!(held.is_some());
        let mut second = Box::pin(budget.reserve(100 * MB));
        assert!((&mut second).now_or_never().is_none());
        drop(held);
        assert!(second.now_or_never().is_some());
        assert_eq!(budget.request_bytes_in_use(), 0);
    }

    #[tokio::test]
    async fn what_a_frame_gives_back_goes_to_those_who_wait() {
        let budget = MemoryBudget::new(8 * MB, MB);
        let mut stalled = budget.reserve(budget.large.pool_bytes).await;
        let _first = budget.reserve(MB).await;
        let mut waiting = Box::pin(budget.reserve(MB));
        assert!((&mut waiting).now_or_never().is_none());
        stalled.shrink(100);
        assert_eq!(stalled.bytes(), 100);
        assert!(waiting.now_or_never().is_some());
        drop(stalled);
        assert_eq!(budget.request_bytes_in_use(), MB);
    }

    #[tokio::test]
    async fn a_dropped_waiter_leaves_no_trace() {
        let budget = MemoryBudget::new(8 * MB, MB);
        let held = budget.reserve(budget.large.pool_bytes).await;
        let first = budget.reserve(MB).await;
        let mut waiter = Box::pin(budget.reserve(MB));
        assert!((&mut waiter).now_or_never().is_none());
        drop(waiter);
        assert!(!budget.is_contended());
        drop((held, first));
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
