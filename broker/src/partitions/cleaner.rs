//! Compacting the logs of this broker, one after the other, in the background: those that it leads
//! and those that it follows.
//!
//! Settings may change while it runs: the rate counts at once, also for a log that is being compacted, the
//! others with the next round.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use parking_lot::Mutex;

use super::PartitionManager;
use crate::data_metrics;
use crate::partition::Partition;

/// Longest sleep between two questions whether to go on.
const NAP: Duration = Duration::from_millis(100);

impl PartitionManager {
    /// Compacts logs until the process ends, if it is to compact any.
    pub(super) async fn keep_clean(&self, is_enabled: bool) {
        if !is_enabled {
            return;
        }
        let store = Arc::clone(&self.options.config);
        let rate = move || store.load().cleaner.bytes_per_second;
        let throttle = Arc::new(Throttle::new(rate));
        loop {
            tokio::time::sleep(self.options.config.load().cleaner.backoff).await;
            let config = self.options.config.load().cleaner;
            let threads = config.threads.max(1);
            let map_bytes = config.map_bytes / threads;
            futures_util::stream::iter(self.all())
                .for_each_concurrent(threads, |partition| {
                    let throttle = Arc::clone(&throttle);
                    async move { clean_one(&partition, map_bytes, throttle).await }
                })
                .await;
        }
    }
}

/// Compacts one log if that is due.
async fn clean_one(partition: &Partition, map_bytes: usize, throttle: Arc<Throttle>) {
    let started = Instant::now();
    let pace = Box::new(move |bytes| throttle.take(bytes));
    match partition.compact(map_bytes, pace).await {
        Ok(Some(outcome)) => {
            data_metrics::compacted(&outcome.stats);
            tracing::info!(
                topic = &**partition.topic(),
                partition = partition.index().get(),
                clean_end = outcome.clean_end.get(),
                bytes_before = outcome.stats.bytes_before,
                bytes_after = outcome.stats.bytes_written,
                records_dropped = outcome.stats.records_dropped,
                elapsed_ms = started.elapsed().as_millis() as u64,
                "compacted a log"
            );
        }
        Ok(None) => {}
        Err(error) => {
            data_metrics::compaction_failed();
            tracing::warn!(
                topic = &**partition.topic(),
                partition = partition.index().get(),
                %error,
                "a log could not be compacted; it stays as it is and is tried again"
            );
        }
    }
}

/// Holds the bytes read and written by all compactions to a rate, by making them wait.
struct Throttle {
    bytes_per_second: Box<dyn Fn() -> f64 + Send + Sync>,
    /// When what was taken so far is paid off.
    paid_until: Mutex<Instant>,
}

impl Throttle {
    fn new(bytes_per_second: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        Self {
            bytes_per_second: Box::new(bytes_per_second),
            paid_until: Mutex::new(Instant::now()),
        }
    }

    /// Waits until `bytes` more may be moved.
    fn take(&self, bytes: u64) -> ControlFlow<()> {
        let until = {
            let mut paid_until = self.paid_until.lock();
            let now = Instant::now();
            *paid_until = paid_until.max(now) + self.cost(bytes);
            *paid_until
        };
        // A little debt is carried on, so that small batches do not sleep one by one.
        while let Some(left) = until.checked_duration_since(Instant::now() + NAP) {
            std::thread::sleep(left.min(NAP));
        }
        ControlFlow::Continue(())
    }

    fn cost(&self, bytes: u64) -> Duration {
        let seconds = bytes as f64 / (self.bytes_per_second)().max(1.0);
        Duration::try_from_secs_f64(seconds.min(3600.0)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttle_spreads_bytes_over_time() {
        let throttle = Throttle::new(|| 1_000_000.0);
        let started = Instant::now();
        for _ in 0..30 {
            assert!(throttle.take(10_000).is_continue());
        }
        let elapsed = started.elapsed();
        assert!(elapsed >= Duration::from_millis(150), "{elapsed:?}");
        let free = Throttle::new(|| f64::MAX);
        assert_eq!(free.cost(u64::MAX), Duration::ZERO);
    }

    #[test]
    fn another_rate_counts_from_the_next_bytes_on() {
        let config = crate::config::ConfigStore::defaults();
        let store = Arc::clone(&config);
        let throttle = Throttle::new(move || store.load().cleaner.bytes_per_second);
        assert_eq!(throttle.cost(1_000), Duration::ZERO);
        let rate = (
            "log.cleaner.io.max.bytes.per.second".to_owned(),
            "1000".to_owned(),
        );
        config
            .set_dynamic([rate].into(), Default::default())
            .expect("a rate");
        assert_eq!(throttle.cost(1_000), Duration::from_secs(1));
    }
}
