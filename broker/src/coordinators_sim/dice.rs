//! The one source of chance and of time of a run. Both depend on the seed alone, as long as whatever happens at
//! the same moment happens in the same order.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::sim_support::VirtualClock;

#[derive(Clone, Debug)]
pub(super) struct Dice {
    random: Arc<Mutex<StdRng>>,
    clock: VirtualClock,
}

impl Dice {
    pub(super) fn of(seed: u64) -> Self {
        Self {
            random: Arc::new(Mutex::new(StdRng::seed_from_u64(seed))),
            clock: VirtualClock::start(),
        }
    }

    pub(super) fn clock(&self) -> &VirtualClock {
        &self.clock
    }

    pub(super) fn now_ms(&self) -> i64 {
        self.clock.elapsed_ms()
    }

    /// A number from 0 to `bound` − 1; 0 if `bound` is 0.
    pub(super) fn below(&self, bound: i64) -> i64 {
        self.random.lock().random_range(0..bound.max(1))
    }

    pub(super) fn index(&self, len: usize) -> usize {
        self.random.lock().random_range(0..len.max(1))
    }

    pub(super) fn chance(&self, of: u32, in_all: u32) -> bool {
        self.random.lock().random_ratio(of, in_all)
    }

    pub(super) async fn pause(&self, from_ms: i64, to_ms: i64) {
        let ms = from_ms + self.below(to_ms - from_ms);
        tokio::time::sleep(Duration::from_millis(ms as u64)).await;
    }
}
