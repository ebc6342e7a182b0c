//! Compacting the logs of this broker, one after the other, in the background: those that it leads
//! and those that it follows.
//!
//! How fast counts at once when it is changed, everything else from the next round on.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use parking_lot::Mutex;

use super::PartitionManager;
use crate::config::ConfigStore;
use crate::data_metrics;
use crate::partition::Partition;

/// Longest sleep between two questions whether to go on.
const NAP: Duration = Duration::from_millis(100);

/// Bytes that are moved between two looks at free space.
const SPACE_CHECK_BYTES: u64 = 1 << 20;

/// Longest sleep between two looks whether the pause between rounds has become another one.
const PAUSE_LOOK: Duration = Duration::from_secs(1);

impl PartitionManager {
    /// Compacts logs until the process ends.
    pub(super) async fn keep_clean(&self) {
        let config = &self.options.config;
        if !config.load().cleaner.enabled {
            return;
        }
        let throttle = Arc::new(Throttle::new(Arc::clone(config)));
        loop {
            pause(config).await;
            let settings = config.load().cleaner;
            let threads = settings.threads.max(1);
            let map_bytes = settings.map_bytes / threads;
            // What is being copied to another directory waits: the copy would be void.
            let mut partitions = self.all();
            partitions.retain(|partition| {
                !partition.directory().health().is_offline() && self.moving(partition).is_none()
            });
            futures_util::stream::iter(partitions)
                .for_each_concurrent(threads, |partition| {
                    let throttle = Arc::clone(&throttle);
                    async move { clean_one(&partition, map_bytes, throttle).await }
                })
                .await;
        }
    }
}

/// Waits for as long as the settings say at its end.
async fn pause(config: &ConfigStore) {
    let begun = Instant::now();
    while let Some(left) = config
        .load()
        .cleaner
        .backoff
        .checked_sub(begun.elapsed())
        .filter(|left| !left.is_zero())
    {
        tokio::time::sleep(left.min(PAUSE_LOOK)).await;
    }
}

/// Compacts one log if that is due.
async fn clean_one(partition: &Partition, map_bytes: usize, throttle: Arc<Throttle>) {
    let started = Instant::now();
    let directory = Arc::clone(partition.directory());
    let mut unchecked_bytes = SPACE_CHECK_BYTES;
    let pace = Box::new(move |bytes| {
        unchecked_bytes += bytes;
        if unchecked_bytes >= SPACE_CHECK_BYTES {
            unchecked_bytes = 0;
            if !directory.has_room_to_compact() {
                return ControlFlow::Break(());
            }
        }
        throttle.take(bytes)
    });
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
    config: Arc<ConfigStore>,
    /// When what was taken so far is paid off.
    paid_until: Mutex<Instant>,
}

impl Throttle {
    fn new(config: Arc<ConfigStore>) -> Self {
        Self {
            config,
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
        let bytes_per_second = self.config.load().cleaner.bytes_per_second;
        let seconds = bytes as f64 / bytes_per_second.max(1.0);
        Duration::try_from_secs_f64(seconds.min(3600.0)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    fn set(config: &ConfigStore, name: &str, value: &str) {
        let settings = std::iter::once((name.to_owned(), value.to_owned())).collect();
        let set = config.set_dynamic(settings, Settings::new());
        set.expect("it can be set while the broker runs");
    }

    #[test]
    fn a_throttle_spreads_bytes_over_time_at_the_rate_of_the_moment() {
        const RATE: &str = "log.cleaner.io.max.bytes.per.second";
        let config = ConfigStore::defaults();
        let throttle = Throttle::new(Arc::clone(&config));
        assert_eq!(throttle.cost(u64::MAX), Duration::ZERO);
        set(&config, RATE, "1000000");
        let started = Instant::now();
        for _ in 0..30 {
            assert!(throttle.take(10_000).is_continue());
        }
        let elapsed = started.elapsed();
        assert!(elapsed >= Duration::from_millis(150), "{elapsed:?}");
        set(&config, RATE, "2000000");
        assert_eq!(throttle.cost(1_000_000), Duration::from_millis(500));
    }

    #[tokio::test]
    async fn a_pause_ends_when_it_has_become_shorter() {
        const BACKOFF: &str = "log.cleaner.backoff.ms";
        let config = ConfigStore::defaults();
        set(&config, BACKOFF, "3600000");
        let started = Instant::now();
        let paused = {
            let config = Arc::clone(&config);
            tokio::spawn(async move { pause(&config).await })
        };
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!paused.is_finished());
        set(&config, BACKOFF, "10");
        paused.await.expect("no panic");
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}
