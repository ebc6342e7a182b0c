//! The one source of time of the broker's shell, behind a trait so that tests drive it.
//!
//! Pure state machines never ask for the time: the shell reads the clock once an event and passes
//! `now` in. Wall time serves timestamps that leave the process; monotonic time serves deadlines.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use odradek_protocol::ids::TimestampMs;
use parking_lot::Mutex;

/// Tells the time.
pub trait Clock: Debug + Send + Sync + 'static {
    /// Wall time, for timestamps that others see. It may jump.
    fn wall(&self) -> TimestampMs;
    /// Monotonic time, for deadlines. It never goes back.
    fn monotonic(&self) -> Instant;
}

/// The clock of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl SystemClock {
    /// The machine's clock, shared.
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(Self)
    }
}

impl Clock for SystemClock {
    fn wall(&self) -> TimestampMs {
        let millis = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            // A machine whose clock stands before 1970 gets the oldest time there is.
            Err(_) => 0,
        };
        TimestampMs::new(millis)
    }

    fn monotonic(&self) -> Instant {
        Instant::now()
    }
}

/// A clock that stands still until it is told to move. Clones share one time.
#[derive(Debug, Clone)]
pub struct ManualClock {
    time: Arc<Mutex<(TimestampMs, Instant)>>,
}

impl ManualClock {
    /// A clock that shows `wall`.
    pub fn starting_at(wall: TimestampMs) -> Self {
        Self {
            time: Arc::new(Mutex::new((wall, Instant::now()))),
        }
    }

    /// Moves both times forward by `step`.
    pub fn advance(&self, step: Duration) {
        let mut time = self.time.lock();
        let step_ms = i64::try_from(step.as_millis()).unwrap_or(i64::MAX);
        time.0 = TimestampMs::new(time.0.get().saturating_add(step_ms));
        time.1 += step;
    }

    /// Sets the wall time alone, as an operator or NTP would.
    pub fn set_wall(&self, wall: TimestampMs) {
        self.time.lock().0 = wall;
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> TimestampMs {
        self.time.lock().0
    }

    fn monotonic(&self) -> Instant {
        self.time.lock().1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_clock_moves_both_times_together_and_only_when_told() {
        let clock = ManualClock::starting_at(TimestampMs::new(1_000));
        let before = clock.monotonic();
        assert_eq!(clock.wall(), TimestampMs::new(1_000));
        clock.advance(Duration::from_millis(250));
        assert_eq!(clock.wall(), TimestampMs::new(1_250));
        assert_eq!(clock.monotonic() - before, Duration::from_millis(250));
        clock.set_wall(TimestampMs::new(5));
        assert_eq!(clock.monotonic() - before, Duration::from_millis(250));
    }
}
