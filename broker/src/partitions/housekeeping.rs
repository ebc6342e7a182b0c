//! What is done to partitions from time to time rather than on request: retention, compaction,
//! forgetting idle producers, watching the disk's free space.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;

use super::PartitionManager;
use super::log_dir::LogDirectory;
use crate::config::BrokerConfig;
use crate::data_metrics;
use crate::partition::Partition;

/// Time between two looks whether a log directory has failed.
const FAILURES_PERIOD: Duration = Duration::from_millis(200);
/// Time between two looks at free space.
const SPACE_PERIOD: Duration = Duration::from_secs(1);
/// Time after which a log's unused files are closed, so that idle partitions hold no descriptors.
const IDLE_FILES_PERIOD: Duration = Duration::from_secs(60);
/// Time between two moves of a log's recovery point, which bounds what is read after a crash.
const CHECKPOINT_PERIOD: Duration = Duration::from_secs(60);
/// Groups whose files are closed at the same time, when descriptors are short.
const RELIEVED_AT_ONCE: usize = 16;
/// The reserve is never more than this part of the file system, so that a small disk can be used.
const RESERVE_SHARE: u64 = 20;

/// How often, and how much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HousekeepingOptions {
    /// `log.retention.check.interval.ms`.
    pub retention_check_interval: Duration,
    /// `producer.id.expiration.check.interval.ms`.
    pub producer_expiration_check_interval: Duration,
    /// Free space that is kept when produce is refused, in bytes; at most a twentieth of the file
    /// system counts.
    pub disk_reserve_bytes: u64,
}

impl HousekeepingOptions {
    /// What the broker's settings say.
    pub fn of(config: &BrokerConfig) -> Self {
        Self {
            retention_check_interval: config.retention_check_interval,
            producer_expiration_check_interval: config.producer_id_expiration_check_interval,
            disk_reserve_bytes: config.disk_reserve_bytes,
        }
    }
}

impl PartitionManager {
    /// Keeps house until the process ends. Run it as a task of its own.
    pub async fn keep_house(self: Arc<Self>, options: HousekeepingOptions) {
        tokio::join!(
            self.keep_clean(),
            self.keep_moving(),
            self.watch_failures(),
            self.look_round(options)
        );
    }

    async fn watch_failures(&self) {
        let mut failures = interval(FAILURES_PERIOD);
        loop {
            failures.tick().await;
            self.leave_failed();
        }
    }

    async fn look_round(&self, options: HousekeepingOptions) {
        let mut space = tokio::time::interval(SPACE_PERIOD);
        let mut idle_files = interval(IDLE_FILES_PERIOD);
        let mut checkpoint = interval(CHECKPOINT_PERIOD);
        let mut retention = interval(options.retention_check_interval);
        let mut producers = interval(options.producer_expiration_check_interval);
        loop {
            tokio::select! {
                _ = space.tick() => {
                    self.watch_space(options.disk_reserve_bytes);
                    self.watch_descriptors().await;
                }
                _ = idle_files.tick() => self.release_idle_files(),
                _ = checkpoint.tick() => self.checkpoint().await,
                _ = retention.tick() => self.run_retention().await,
                _ = producers.tick() => self.expire_producers(),
            }
        }
    }

    /// Takes what is in log directories that have failed offline, so that others lead it: a partition that has
    /// not been written to since knows nothing of it. A node on its own goes on to serve what can be read.
    pub fn leave_failed(&self) {
        if self.options.config.load().cluster.is_alone() {
            return;
        }
        for directory in self.directories() {
            if let Some(cause) = directory.health().failure() {
                self.options.raft.fail_directory(directory.path(), cause);
            }
        }
    }

    /// The partitions whose log directories work.
    fn online(&self) -> impl Iterator<Item = Arc<Partition>> {
        let all = self.all().into_iter();
        all.filter(|partition| !partition.directory().health().is_offline())
    }

    /// Compares the free space of every log directory with the reserve.
    pub fn watch_space(&self, reserve_bytes: u64) {
        for directory in self.directories() {
            match directory.space() {
                Ok(space) => {
                    let reserve = reserve_bytes.min(space.total_bytes / RESERVE_SHARE);
                    directory.check_reserve(space.usable_bytes, reserve);
                }
                Err(error) => {
                    let path = directory.path().display();
                    tracing::warn!(%path, %error, "free space cannot be read");
                }
            }
        }
    }

    /// Lets every partition drop what is past its retention. What is past it, the leader decides;
    /// every replica unlinks its own files.
    pub async fn run_retention(&self) {
        for partition in self.online() {
            if let Err(error) = partition.run_retention().await {
                tracing::warn!(
                    topic = &**partition.topic(),
                    partition = partition.index().get(),
                    %error,
                    "retention could not be carried out"
                );
            }
        }
    }

    /// Moves the recovery points up to where the logs end.
    pub async fn checkpoint(&self) {
        for partition in self.online() {
            if let Err(error) = partition.group().checkpoint().await {
                tracing::warn!(
                    topic = &**partition.topic(),
                    partition = partition.index().get(),
                    %error,
                    "the recovery point could not be moved"
                );
            }
        }
    }

    /// Closes files that were not used since the last call.
    pub fn release_idle_files(&self) {
        for partition in self.all() {
            partition.group().release_idle_files();
        }
    }

    /// When files could not be opened since the last look, closes those that nobody needs now.
    async fn watch_descriptors(&self) {
        let mut short = false;
        for directory in self.directories() {
            short |= directory.health().take_shortage();
        }
        if short {
            tracing::warn!("no file descriptor is left: closing files that are not in use");
            self.relieve_descriptors().await;
        }
    }

    /// Closes the files of all groups. What is not durable keeps its file open, so that is seen to
    /// first. Does nothing while it is being done already.
    pub(super) async fn relieve_descriptors(&self) {
        let Ok(_only_one) = self.relief.try_lock() else {
            return;
        };
        let groups = self.options.raft.groups();
        for group in &groups {
            group.release_idle_files();
        }
        futures_util::stream::iter(groups)
            .for_each_concurrent(RELIEVED_AT_ONCE, |group| async move {
                if let Err(error) = group.checkpoint().await {
                    tracing::debug!(group = %group.key(), %error, "files stay open");
                }
                // The first call finds them just used.
                group.release_idle_files();
                group.release_idle_files();
            })
            .await;
    }

    /// Brings the metrics that are read rather than counted up to date.
    pub fn observe(&self) {
        let partitions = self.all();
        let led = partitions
            .iter()
            .filter(|partition| partition.require_leader().is_ok())
            .count();
        data_metrics::observe_partitions(partitions.len(), led);
        let directories = self.directories();
        let count = |wanted: fn(&LogDirectory) -> bool| {
            directories
                .iter()
                .filter(|directory| wanted(directory))
                .count()
        };
        data_metrics::observe_log_dirs(
            count(|directory| directory.health().is_offline()),
            count(LogDirectory::is_below_reserve),
        );
        for directory in directories {
            if let Ok(space) = directory.space() {
                let path = directory.path().display().to_string();
                data_metrics::observe_log_dir(path, space.usable_bytes);
            }
        }
    }

    /// Forgets producers that have been idle for longer than `producer.id.expiration.ms`.
    pub fn expire_producers(&self) {
        for partition in self.all() {
            partition.expire_producers();
        }
    }
}

fn interval(period: Duration) -> tokio::time::Interval {
    // The first tick of an interval comes at once; the start has enough to do.
    let start = tokio::time::Instant::now() + period;
    let mut interval = tokio::time::interval_at(start, period.max(Duration::from_millis(1)));
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    interval
}
