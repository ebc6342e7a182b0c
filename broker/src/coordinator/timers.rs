//! The deadlines of a shard, by timer.
//!
//! Most timers are sessions that move their deadline back with every heartbeat. So a later
//! deadline only notes the new time; the queue entry stays where it is, comes up at the old time,
//! and is then put back. The queue holds at most one live entry a timer.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::Hash;

use tokio::time::Instant;

#[derive(Debug)]
struct Deadline {
    due: Instant,
    /// The queue entry that stands for this timer; others of it are stale.
    entry: u64,
    /// When that entry comes up: `queued ≤ due`.
    queued: Instant,
}

/// The deadlines of a shard.
#[derive(Debug)]
pub(super) struct Timers<T> {
    queue: BinaryHeap<Reverse<(Instant, u64)>>,
    by_entry: HashMap<u64, T>,
    deadlines: HashMap<T, Deadline>,
    next_entry: u64,
}

impl<T: Clone + Eq + Hash> Timers<T> {
    pub fn new() -> Self {
        Self {
            queue: BinaryHeap::new(),
            by_entry: HashMap::new(),
            deadlines: HashMap::new(),
            next_entry: 0,
        }
    }

    /// Makes `timer` fire at `due`, whatever was set before.
    pub fn set(&mut self, timer: T, due: Instant) {
        if let Some(deadline) = self.deadlines.get_mut(&timer)
            && deadline.queued <= due
        {
            deadline.due = due;
            return;
        }
        self.cancel(&timer);
        self.enqueue(timer, due);
    }

    pub fn cancel(&mut self, timer: &T) {
        if let Some(deadline) = self.deadlines.remove(timer) {
            self.by_entry.remove(&deadline.entry);
        }
    }

    /// When to look again: not after the earliest deadline, but possibly before it.
    pub fn next_wakeup(&self) -> Option<Instant> {
        self.queue.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes out one timer that is due at `now`.
    pub fn pop_due(&mut self, now: Instant) -> Option<T> {
        while let Some(Reverse((at, entry))) = self.queue.peek().copied() {
            if at > now {
                return None;
            }
            self.queue.pop();
            let Some(timer) = self.by_entry.remove(&entry) else {
                continue;
            };
            let Some(deadline) = self.deadlines.remove(&timer) else {
                continue;
            };
            if deadline.due <= now {
                return Some(timer);
            }
            self.enqueue(timer, deadline.due);
        }
        None
    }

    fn enqueue(&mut self, timer: T, due: Instant) {
        let entry = self.next_entry;
        self.next_entry += 1;
        self.queue.push(Reverse((due, entry)));
        self.by_entry.insert(entry, timer.clone());
        let deadline = Deadline {
            due,
            entry,
            queued: due,
        };
        self.deadlines.insert(timer, deadline);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn drain(timers: &mut Timers<&'static str>, now: Instant) -> Vec<&'static str> {
        std::iter::from_fn(|| timers.pop_due(now)).collect()
    }

    #[test]
    fn timers_fire_once_in_the_order_of_their_deadlines() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut timers = Timers::new();
        timers.set("late", at(30));
        timers.set("early", at(10));
        assert_eq!(timers.next_wakeup(), Some(at(10)));
        assert_eq!(drain(&mut timers, at(9)), Vec::<&str>::new());
        assert_eq!(drain(&mut timers, at(30)), ["early", "late"]);
        assert_eq!(timers.next_wakeup(), None);
    }

    #[test]
    fn a_deadline_moves_both_ways_and_only_the_last_one_counts() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut timers = Timers::new();
        timers.set("session", at(10));
        timers.set("session", at(50));
        assert!(drain(&mut timers, at(49)).is_empty());
        timers.set("session", at(20));
        assert_eq!(drain(&mut timers, at(20)), ["session"]);
        assert!(drain(&mut timers, at(1_000)).is_empty());
    }

    #[test]
    fn a_cancelled_timer_does_not_fire_and_can_be_set_again() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut timers = Timers::new();
        timers.set("join", at(10));
        timers.cancel(&"join");
        assert!(drain(&mut timers, at(10)).is_empty());
        timers.set("join", at(20));
        assert_eq!(drain(&mut timers, at(20)), ["join"]);
    }

    #[test]
    fn heartbeats_do_not_make_the_queue_grow() {
        let start = Instant::now();
        let mut timers = Timers::new();
        for beat in 0..10_000 {
            timers.set("session", start + Duration::from_millis(1_000 + beat));
            if beat % 100 == 0 {
                assert!(drain(&mut timers, start + Duration::from_millis(beat)).is_empty());
            }
        }
        assert!(timers.queue.len() <= 2, "{}", timers.queue.len());
    }
}
