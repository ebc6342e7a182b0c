//! Fetches that are parked until one of their partitions has something new.
//!
//! Every partition keeps a [`WaitList`]; a parked fetch is one [`FetchWaiter`] that stands in the
//! lists of all its partitions under the index it has for each. A moved high watermark fires the
//! whole list of its partition once: the waiter learns *which* of its partitions moved, so it looks
//! at those only, and registers there again if it goes on waiting. Nobody polls.
//!
//! Invariants:
//! - a partition changes its offsets before it fires, and a fetch reads the offsets after it has
//!   registered, so that no movement falls between the two;
//! - an index is fired at most once per registration.
//!
//! Leaving is free: a dropped waiter stays in the lists as a dead entry until the list fires or
//! has grown to twice its living entries.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Length below which a list is not searched for dead entries.
const SWEEP_MIN: usize = 8;

/// A parked fetch.
#[derive(Debug, Default)]
pub struct FetchWaiter {
    moved: Mutex<Vec<u32>>,
    notify: Notify,
}

impl FetchWaiter {
    /// A waiter that stands in no list yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Reports that the partition at `index` moved.
    pub fn fire(&self, index: u32) {
        self.moved.lock().push(index);
        self.notify.notify_one();
    }

    /// Waits until some partition has moved and returns the indexes of those that did. Safe to
    /// drop and call again: nothing reported is lost.
    pub async fn moved(&self) -> Vec<u32> {
        loop {
            let moved = std::mem::take(&mut *self.moved.lock());
            if !moved.is_empty() {
                return moved;
            }
            self.notify.notified().await;
        }
    }
}

#[derive(Debug)]
struct Entry {
    waiter: Weak<FetchWaiter>,
    index: u32,
}

/// The fetches parked at one partition.
#[derive(Debug, Default)]
pub struct WaitList {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    list: Vec<Entry>,
    sweep_at: usize,
}

impl WaitList {
    /// Puts `waiter` in the list; it knows this partition as `index`.
    pub fn register(&self, waiter: &Arc<FetchWaiter>, index: u32) {
        let mut entries = self.entries.lock();
        if entries.list.len() >= entries.sweep_at.max(SWEEP_MIN) {
            entries.list.retain(|entry| entry.waiter.strong_count() > 0);
            entries.sweep_at = entries.list.len() * 2;
        }
        entries.list.push(Entry {
            waiter: Arc::downgrade(waiter),
            index,
        });
    }

    /// Tells every parked fetch that this partition moved, and empties the list.
    pub fn fire(&self) {
        let list = {
            let mut entries = self.entries.lock();
            if entries.list.is_empty() {
                return;
            }
            std::mem::take(&mut entries.list)
        };
        for entry in list {
            if let Some(waiter) = entry.waiter.upgrade() {
                waiter.fire(entry.index);
            }
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.entries.lock().list.len()
    }
}

/// How many partitions all parked fetches of the broker may stand at together: the memory of the
/// wait lists is bounded by it.
#[derive(Debug)]
pub struct ParkingSpace {
    used: AtomicUsize,
    capacity: usize,
}

/// A fetch's share of the [`ParkingSpace`]; given back when dropped.
#[derive(Debug)]
pub struct Parked {
    space: Arc<ParkingSpace>,
    partitions: usize,
}

impl ParkingSpace {
    /// Room for `capacity` partitions.
    pub fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicUsize::new(0),
            capacity,
        })
    }

    /// Room for a fetch of `partitions`, or `None` when the broker is full: that fetch is then
    /// answered with what there is. A fetch larger than the whole space is let in when it is alone.
    pub fn enter(self: &Arc<Self>, partitions: usize) -> Option<Parked> {
        let entered = self
            .used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                (used == 0 || used.saturating_add(partitions) <= self.capacity)
                    .then(|| used.saturating_add(partitions))
            });
        entered.ok().map(|_| Parked {
            space: Arc::clone(self),
            partitions,
        })
    }

    /// Partitions that parked fetches stand at now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.space.used.fetch_sub(self.partitions, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn a_waiter_learns_which_of_its_partitions_moved() {
        let (first, second) = (WaitList::default(), WaitList::default());
        let waiter = FetchWaiter::new();
        first.register(&waiter, 0);
        second.register(&waiter, 1);
        assert_eq!(waiter.moved().now_or_never(), None);
        second.fire();
        assert_eq!(waiter.moved().now_or_never(), Some(vec![1]));
    }

    #[test]
    fn a_partition_fires_once_per_registration() {
        let list = WaitList::default();
        let waiter = FetchWaiter::new();
        list.register(&waiter, 4);
        list.fire();
        list.fire();
        assert_eq!(waiter.moved().now_or_never(), Some(vec![4]));
        assert_eq!(waiter.moved().now_or_never(), None);
    }

    #[test]
    fn a_wait_that_was_given_up_loses_no_report() {
        let list = WaitList::default();
        let waiter = FetchWaiter::new();
        list.register(&waiter, 2);
        {
            let mut given_up = Box::pin(waiter.moved());
            assert!((&mut given_up).now_or_never().is_none());
            list.fire();
        }
        assert_eq!(waiter.moved().now_or_never(), Some(vec![2]));
    }

    #[test]
    fn fetches_that_left_do_not_pile_up_at_an_idle_partition() {
        let list = WaitList::default();
        let stays = FetchWaiter::new();
        list.register(&stays, 0);
        for _ in 0..10_000 {
            list.register(&FetchWaiter::new(), 0);
            assert!(list.len() <= SWEEP_MIN);
        }
        list.fire();
        assert_eq!(stays.moved().now_or_never(), Some(vec![0]));
    }

    #[test]
    fn parking_space_is_bounded_and_given_back() {
        let space = ParkingSpace::new(10);
        let large = space.enter(25);
        assert!(large.is_some(), "alone, any fetch may wait");
        assert!(space.enter(1).is_none());
        drop(large);
        let first = space.enter(6);
        assert!(space.enter(5).is_none());
        assert!(space.enter(4).is_some());
        drop(first);
        assert_eq!(space.used(), 0);
    }
}
