//! Log lines that others can bring about as often as they like.
//!
//! Invariants: within a period there is one line about a thing at most, and no more lines in all than
//! the bound, whatever there is to say; memory is bounded by that too. What was left out is counted,
//! and the next line tells how much it was.

use std::collections::HashSet;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

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

impl<K: Eq + Hash> Seldom<K> {
    /// One line about a thing every `period`, and `most` lines about all.
    pub fn new(period: Duration, most: usize) -> Self {
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

    /// Whether there may be a line about this now, and how many were left out since the last one.
    pub fn may_say(&self, about: K, now: Instant) -> Option<u64> {
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
        assert_eq!(seldom.may_say(1, at(0)), Some(0));
        assert_eq!(seldom.may_say(1, at(1)), None);
        assert_eq!(seldom.may_say(2, at(2)), Some(1));
        assert_eq!(seldom.may_say(3, at(3)), None, "two have been said");
        assert_eq!(seldom.may_say(1, at(9)), None);
        assert_eq!(seldom.may_say(1, at(10)), Some(2));
        assert_eq!(seldom.may_say(3, at(11)), Some(0));
    }
}
