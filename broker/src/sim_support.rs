//! What seeded simulations share: virtual time, which seeds to run, and which one to replay.
//!
//! `ODRADEK_SEED=n` runs that seed alone; `ODRADEK_SIM_SEEDS=n` runs n seeds in place of the usual few, from
//! `ODRADEK_SIM_FIRST` (1) on.

use std::cell::Cell;
use std::time::{Duration, Instant};

use odradek_protocol::ids::TimestampMs;

use crate::clock::Clock;

/// What the wall shows when a simulation begins.
const WALL_AT_START_MS: i64 = 1_700_000_000_000;

/// Runs something on one thread, in virtual time.
pub(crate) fn simulate<T>(run: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(run)
}

/// The number in an environment variable.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

/// The seeds to run: `count` of them unless something else is asked for.
pub(crate) fn seeds(count: u64) -> Vec<u64> {
    if let Some(seed) = number("ODRADEK_SEED") {
        return vec![seed];
    }
    let first = number("ODRADEK_SIM_FIRST").unwrap_or(1);
    let count = number("ODRADEK_SIM_SEEDS").unwrap_or(count);
    (first..first + count).collect()
}

/// Says which seed to replay if a run fails.
pub(crate) struct PrintOnPanic(u64, Cell<bool>);

impl PrintOnPanic {
    /// For the run of this seed.
    pub(crate) fn of(seed: u64) -> Self {
        Self(seed, Cell::new(true))
    }

    /// The run has not failed.
    pub(crate) fn passed(self) {
        self.1.set(false);
    }
}

impl Drop for PrintOnPanic {
    fn drop(&mut self) {
        if self.1.get() {
            eprintln!("replay with ODRADEK_SEED={}", self.0);
        }
    }
}

/// A clock that shows the virtual time of the runtime.
#[derive(Debug, Clone)]
pub(crate) struct VirtualClock {
    began: tokio::time::Instant,
}

impl VirtualClock {
    /// Begins now.
    pub(crate) fn start() -> Self {
        Self {
            began: tokio::time::Instant::now(),
        }
    }

    /// How long it has run, in milliseconds.
    pub(crate) fn elapsed_ms(&self) -> i64 {
        i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// When it shows so many milliseconds.
    pub(crate) fn at_ms(&self, ms: i64) -> tokio::time::Instant {
        self.began + Duration::from_millis(u64::try_from(ms).unwrap_or(0))
    }
}

impl Clock for VirtualClock {
    fn wall(&self) -> TimestampMs {
        TimestampMs::new(WALL_AT_START_MS + self.elapsed_ms())
    }

    fn monotonic(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}
