//! One log directory of the broker: whether it may be written to.
//!
//! Two things stop writes. A failed write or sync takes the directory offline for good, as the
//! storage layer decides. And once free space falls below the configured reserve, produce is
//! refused with a retriable error until there is room again: what is left is kept for what has
//! been promised already (logs being read, coordinators, the metadata log).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};

use odradek_storage::LogDirHealth;

use crate::partition::PartitionError;

/// See the module.
#[derive(Debug)]
pub struct LogDirectory {
    health: Arc<LogDirHealth>,
    below_reserve: AtomicBool,
    /// What may still be produced before free space is looked at again, in bytes.
    room: AtomicI64,
    partitions: AtomicUsize,
}

/// The log directories of this broker, and the health of the one with the metadata.
#[derive(Debug)]
pub struct LogDirectories {
    all: Vec<Arc<LogDirectory>>,
    metadata: Arc<LogDirHealth>,
}

impl LogDirectories {
    /// `all` hold partitions, at least one; `metadata` may be one of theirs.
    pub fn new(all: Vec<Arc<LogDirectory>>, metadata: Arc<LogDirHealth>) -> Arc<Self> {
        Arc::new(Self { all, metadata })
    }

    /// Those that hold partitions, in the order of `log.dirs`.
    pub fn all(&self) -> &[Arc<LogDirectory>] {
        &self.all
    }

    /// Why this broker is of no more use, if it is not: the directory with the metadata has failed, or
    /// every one that holds partitions.
    pub fn failure(&self) -> Option<&str> {
        let mut all = self.all.iter();
        let last = match all.all(|directory| directory.health.is_offline()) {
            true => self.all.last().and_then(|last| last.health.failure()),
            false => None,
        };
        self.metadata.failure().or(last)
    }
}

/// Space of the file system under a log directory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Size of the file system.
    pub total_bytes: u64,
    /// What is left for this process.
    pub usable_bytes: u64,
}

impl LogDirectory {
    /// A log directory whose health is shared with its logs.
    pub fn new(health: Arc<LogDirHealth>) -> Arc<Self> {
        Arc::new(Self {
            health,
            below_reserve: AtomicBool::new(false),
            room: AtomicI64::new(i64::MAX),
            partitions: AtomicUsize::new(0),
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.health.path()
    }

    /// The same as a full path, as clients are told.
    pub fn absolute_path(&self) -> PathBuf {
        std::path::absolute(self.path()).unwrap_or_else(|_| self.path().to_path_buf())
    }

    /// Its health.
    pub fn health(&self) -> &Arc<LogDirHealth> {
        &self.health
    }

    /// An error if it has failed.
    pub fn require_online(&self) -> Result<(), PartitionError> {
        match self.health.failure() {
            Some(cause) => Err(PartitionError::Offline(cause.into())),
            None => Ok(()),
        }
    }

    /// An error if nothing may be produced to it.
    pub fn require_writable(&self) -> Result<(), PartitionError> {
        self.require_online()?;
        if self.is_below_reserve() || self.room.load(Ordering::Relaxed) < 0 {
            return Err(PartitionError::DiskReserve);
        }
        Ok(())
    }

    /// Counts what has been produced, so that a burst does not eat up the reserve between two looks
    /// at free space.
    pub fn take_room(&self, bytes: usize) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.room.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Space of its file system.
    pub fn space(&self) -> io::Result<DiskSpace> {
        let stat = rustix::fs::statvfs(self.path())?;
        Ok(DiskSpace {
            total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            usable_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }

    /// Compares free space with the reserve. Produce is let in again only with an eighth more than
    /// the reserve, so that it does not flap.
    pub fn check_reserve(&self, usable_bytes: u64, reserve_bytes: u64) {
        let room = usable_bytes.saturating_sub(reserve_bytes);
        let room = i64::try_from(room).unwrap_or(i64::MAX);
        self.room.store(room, Ordering::Relaxed);
        self.health.set_spare_bytes(room);
        let was_below = self.below_reserve.load(Ordering::Relaxed);
        let is_below = is_below_reserve(was_below, usable_bytes, reserve_bytes);
        if is_below != was_below {
            self.below_reserve.store(is_below, Ordering::Relaxed);
            let path = self.path().display();
            if is_below {
                tracing::error!(%path, usable_bytes, reserve_bytes, "disk nearly full: produce is refused");
            } else {
                tracing::info!(%path, usable_bytes, "disk has room again: produce is accepted");
            }
        }
    }

    /// Whether produce is refused for want of space.
    pub fn is_below_reserve(&self) -> bool {
        self.below_reserve.load(Ordering::Relaxed)
    }

    /// Number of partitions in it.
    pub fn partition_count(&self) -> usize {
        self.partitions.load(Ordering::Relaxed)
    }

    pub(super) fn partition_added(&self) {
        self.partitions.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn partition_removed(&self) {
        self.partitions.fetch_sub(1, Ordering::Relaxed);
    }
}

fn is_below_reserve(was_below: bool, usable_bytes: u64, reserve_bytes: u64) -> bool {
    let floor = if was_below {
        reserve_bytes.saturating_add(reserve_bytes / 8)
    } else {
        reserve_bytes
    };
    usable_bytes < floor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn produce_is_refused_below_the_reserve_and_let_in_with_some_slack() {
        assert!(!is_below_reserve(false, 800, 800));
        assert!(is_below_reserve(false, 799, 800));
        assert!(is_below_reserve(true, 899, 800));
        assert!(!is_below_reserve(true, 900, 800));
        assert!(!is_below_reserve(false, 0, 0), "a reserve of 0 is none");
    }

    #[test]
    fn a_directory_below_its_reserve_refuses_with_a_retriable_error() {
        let directory = LogDirectory::new(LogDirHealth::new("/nowhere"));
        assert!(directory.require_writable().is_ok());
        directory.check_reserve(10, 100);
        let error = directory.require_writable().unwrap_err();
        assert!(error.error_code().retriable());
        directory.check_reserve(200, 100);
        assert!(directory.require_writable().is_ok());
    }

    #[test]
    fn a_broker_is_of_use_while_its_metadata_and_one_directory_work() {
        let health = ["m", "a", "b"].map(LogDirHealth::new);
        let [metadata, a, b] = &health;
        let own = [a, b].map(|health| LogDirectory::new(Arc::clone(health)));
        let directories = LogDirectories::new(own.to_vec(), Arc::clone(metadata));
        a.fail(&"a sync failed");
        assert_eq!(directories.failure(), None);
        b.fail(&"a write failed");
        assert_eq!(directories.failure(), Some("a write failed"));
        metadata.fail(&"torn off");
        assert_eq!(directories.failure(), Some("torn off"));
    }

    #[test]
    fn a_burst_between_two_looks_at_free_space_stops_at_the_reserve() {
        let directory = LogDirectory::new(LogDirHealth::new("/nowhere"));
        directory.take_room(1 << 40);
        assert!(directory.require_writable().is_ok(), "not looked at yet");
        directory.check_reserve(1_000, 100);
        directory.take_room(900);
        assert!(directory.require_writable().is_ok());
        directory.take_room(1);
        assert!(directory.require_writable().is_err());
        directory.check_reserve(1_000, 100);
        assert!(
            directory.require_writable().is_ok(),
            "it was compressed, or freed"
        );
    }
}
