//! Log lines that others can bring about as often as they like, or that come again for as long as their
//! cause lasts.
//!
//! Invariants: within a period there is one line about a thing at most, and no more lines in all than
//! the bound, whatever there is to say; memory is bounded by that too. What was left out is counted,
//! and the next line tells how much it was.

use std::collections::HashSet;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Within this time there is one line about a thing.
const PERIOD: Duration = Duration::from_secs(10);
/// Lines about all things in that time.
const MOST: usize = 20;

/// See the module. `K` is what a line is about.
#[derive(Debug)]
pub struct Seldom<K> {
    period: Duration,
    most: usize,
    state: Mutex<State<K>>,
}

#[derive(Debug)]
struct State<K> {
    /// When the period began; `None` before the first line.
    since: Option<Instant>,
    said: HashSet<K>,
    left_out: u64,
}

impl<K> Default for Seldom<K> {
    /// One line about a thing every ten seconds, and twenty about all.
    fn default() -> Self {
        Self::new(PERIOD, MOST)
    }
}

impl<K> Seldom<K> {
    fn new(period: Duration, most: usize) -> Self {
        Self {
            period,
            most,
            state: Mutex::new(State {
                since: None,
                said: HashSet::new(),
                left_out: 0,
            }),
        }
    }
}

impl<K: Eq + Hash> Seldom<K> {
    /// Whether there may be a line about this now, and how many were left out since the last one.
    pub fn may_say(&self, about: K) -> Option<u64> {
        self.may_say_at(about, Instant::now())
    }

    fn may_say_at(&self, about: K, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        let is_over = |since| now.saturating_duration_since(since) >= self.period;
        if state.since.is_none_or(is_over) {
            state.since = Some(now);
            state.said.clear();
        }
        if state.said.len() >= self.most || !state.said.insert(about) {
            state.left_out = state.left_out.saturating_add(1);
            return None;
        }
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_is_said_once_in_a_period_and_not_too_many_of_them() {
        let seldom = Seldom::new(Duration::from_secs(10), 2);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(seldom.may_say_at(1, at(0)), Some(0));
        assert_eq!(seldom.may_say_at(1, at(1)), None);
        assert_eq!(seldom.may_say_at(2, at(2)), Some(1));
        assert_eq!(seldom.may_say_at(3, at(3)), None, "two have been said");
        assert_eq!(seldom.may_say_at(1, at(9)), None);
        assert_eq!(seldom.may_say_at(1, at(10)), Some(2));
        assert_eq!(seldom.may_say_at(3, at(11)), Some(0));
    }
}
