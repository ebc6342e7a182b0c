//! Compacting the logs of this broker, one after the other, in the background.
//!
//! Where a log's last compaction ended is kept in memory, and in the log directory's
//! `cleaner-offset-checkpoint` (Kafka's name and format) for the next start. It is only ever a
//! matter of speed: a log whose entry is lost, or stands for an older topic of the same name, is
//! read again from further ahead or back than need be, and no newest record of a key is dropped.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use odradek_protocol::ids::Offset;
use odradek_raft::GroupKey;
use odradek_storage::disk::Disk;
use parking_lot::Mutex;

use super::PartitionManager;
use crate::config::broker_config::CleanerConfig;
use crate::data_metrics;
use crate::partition::Partition;

/// Kafka's name of the file.
const CHECKPOINT: &str = "cleaner-offset-checkpoint";
/// Largest checkpoint that is read.
const CHECKPOINT_MAX_BYTES: usize = 64 << 20;
/// Longest sleep between two questions whether to go on.
const NAP: Duration = Duration::from_millis(100);

/// Where the last compaction of each log ended.
type CleanEnds = HashMap<GroupKey, Offset>;

impl PartitionManager {
    /// Compacts logs until the process ends.
    pub(super) async fn keep_clean(&self, config: CleanerConfig) {
        if !config.enabled {
            return;
        }
        let throttle = Arc::new(Throttle::new(config.bytes_per_second));
        let mut named = self.load_clean_ends();
        let mut ends = CleanEnds::new();
        loop {
            tokio::time::sleep(config.backoff).await;
            for partition in self.all() {
                let name = (partition.topic().to_string(), partition.index().get());
                if let Some(end) = named.remove(&name) {
                    ends.insert(partition.group().key(), end);
                }
            }
            if self.clean(&config, &throttle, &mut ends).await {
                self.store_clean_ends(&ends);
            }
        }
    }

    /// Looks at every log once. Returns whether any was compacted.
    async fn clean(
        &self,
        config: &CleanerConfig,
        throttle: &Arc<Throttle>,
        ends: &mut CleanEnds,
    ) -> bool {
        let partitions = self.all();
        ends.retain(|key, _| {
            partitions
                .iter()
                .any(|partition| partition.group().key() == *key)
        });
        let map_bytes = config.map_bytes / config.threads.max(1);
        let work: Vec<_> = partitions
            .into_iter()
            .map(|partition| {
                let key = partition.group().key();
                let end = ends.get(&key).copied().unwrap_or(Offset::ZERO);
                (partition, key, end)
            })
            .collect();
        let cleaned: Vec<_> = futures_util::stream::iter(work)
            .map(|(partition, key, end)| async move {
                let reached = clean_one(&partition, end, map_bytes, Arc::clone(throttle)).await;
                reached.map(|reached| (key, reached))
            })
            .buffer_unordered(config.threads.max(1))
            .filter_map(|reached| async move { reached })
            .collect()
            .await;
        let any = !cleaned.is_empty();
        ends.extend(cleaned);
        any
    }

    fn load_clean_ends(&self) -> HashMap<(String, i32), Offset> {
        let mut all = HashMap::new();
        for directory in self.directories() {
            let path = directory.path().join(CHECKPOINT);
            let Ok(content) = self.options.disk.read_file(&path, CHECKPOINT_MAX_BYTES) else {
                // The first start, or nothing was ever compacted.
                continue;
            };
            match parse(&content) {
                Some(ends) => all.extend(ends),
                None => {
                    let path = path.display();
                    tracing::warn!(%path, "unreadable; logs are compacted from their start");
                }
            }
        }
        all
    }

    fn store_clean_ends(&self, ends: &CleanEnds) {
        for directory in self.directories() {
            let here = self.all().into_iter().filter_map(|partition| {
                let is_here = partition.group().dir().parent() == Some(directory.path());
                let end = ends.get(&partition.group().key()).filter(|_| is_here)?;
                Some((partition.topic().to_string(), partition.index().get(), *end))
            });
            let content = format(here.collect());
            store(self.options.disk.as_ref(), directory.path(), &content);
        }
    }
}

/// Compacts one log if that is due. Returns where the next compaction begins.
async fn clean_one(
    partition: &Partition,
    clean_end: Offset,
    map_bytes: usize,
    throttle: Arc<Throttle>,
) -> Option<Offset> {
    let log_end = partition.offsets().log_end.offset();
    let clean_end = if clean_end > log_end {
        Offset::ZERO
    } else {
        clean_end
    };
    let started = Instant::now();
    let pace = Box::new(move |bytes| throttle.take(bytes));
    match partition.compact(clean_end, map_bytes, pace).await {
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
            Some(outcome.clean_end)
        }
        Ok(None) => None,
        Err(error) => {
            data_metrics::compaction_failed();
            tracing::warn!(
                topic = &**partition.topic(),
                partition = partition.index().get(),
                %error,
                "a log could not be compacted; it stays as it is and is tried again"
            );
            None
        }
    }
}

fn store(disk: &dyn Disk, directory: &Path, content: &str) {
    let path = directory.join(CHECKPOINT);
    if let Err(error) = disk.replace_file(&path, content.as_bytes()) {
        tracing::warn!(path = %path.display(), %error, "the checkpoint could not be written");
    }
}

fn format(mut ends: Vec<(String, i32, Offset)>) -> String {
    ends.sort();
    let mut text = format!("0\n{}\n", ends.len());
    for (topic, partition, end) in ends {
        text.push_str(&format!("{topic} {partition} {end}\n"));
    }
    text
}

fn parse(content: &[u8]) -> Option<HashMap<(String, i32), Offset>> {
    let mut lines = std::str::from_utf8(content).ok()?.lines();
    if lines.next()? != "0" {
        return None;
    }
    let count: usize = lines.next()?.parse().ok()?;
    let ends: HashMap<_, _> = lines
        .map(|line| {
            let mut fields = line.split(' ');
            let topic = fields.next()?.to_owned();
            let partition = fields.next()?.parse().ok()?;
            let end = fields.next()?.parse().ok()?;
            Some(((topic, partition), Offset::new(end)))
        })
        .collect::<Option<_>>()?;
    (ends.len() == count).then_some(ends)
}

/// Holds the bytes read and written by all compactions to a rate, by making them wait.
struct Throttle {
    bytes_per_second: f64,
    /// When what was taken so far is paid off.
    paid_until: Mutex<Instant>,
}

impl Throttle {
    fn new(bytes_per_second: f64) -> Self {
        Self {
            bytes_per_second,
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
        let seconds = bytes as f64 / self.bytes_per_second.max(1.0);
        Duration::try_from_secs_f64(seconds.min(3600.0)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checkpoint_reads_back_and_a_damaged_one_is_refused() {
        let ends = vec![
            ("orders".to_owned(), 3, Offset::new(700)),
            ("customers".to_owned(), 0, Offset::new(5)),
        ];
        let text = format(ends);
        assert_eq!(text, "0\n2\ncustomers 0 5\norders 3 700\n");
        let read = parse(text.as_bytes()).unwrap();
        assert_eq!(read[&("orders".to_owned(), 3)], Offset::new(700));
        for damaged in [
            "",
            "1\n0\n",
            "0\n3\na 0 1\n",
            "0\n1\na 0\n",
            "0\n1\na 0 x\n",
        ] {
            assert_eq!(parse(damaged.as_bytes()), None, "{damaged:?}");
        }
    }

    #[test]
    fn a_throttle_spreads_bytes_over_time() {
        let throttle = Throttle::new(1_000_000.0);
        let started = Instant::now();
        for _ in 0..30 {
            assert!(throttle.take(10_000).is_continue());
        }
        let elapsed = started.elapsed();
        assert!(elapsed >= Duration::from_millis(150), "{elapsed:?}");
        let free = Throttle::new(f64::MAX);
        assert_eq!(free.cost(u64::MAX), Duration::ZERO);
    }
}
