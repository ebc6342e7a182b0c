//! One log directory of the broker: whether it may be written to.
//!
//! Two things stop writes. A failed write or sync takes the directory offline for good, as the
//! storage layer decides. And once free space falls below the configured reserve, one kind of write after
//! the other is refused with a retriable error until there is room again, so that a disk that is filled
//! takes nothing offline:
//!
//! | free space below | what is refused |
//! |---|---|
//! | the reserve | produce |
//! | half of it ([`Room::Scarce`]) | what makes the logs of coordinators and the metadata grow for clients |
//! | a quarter of it ([`Room::Exhausted`]) | what ends or deletes something, too, before it is begun; compaction |
//! | an eighth of it | every batch, also in the middle of what coordinators have begun |
//!
//! What is left then is kept for what no client asks for: votes, indexes, checkpoints, an old segment's end.
//! Absent on purpose: a follower takes what its leader sends, whatever room it has itself.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};

use odradek_storage::LogDirHealth;
use parking_lot::Mutex;

use crate::partition::PartitionError;

/// The parts of the reserve below which more is refused than above; see the module.
const SCARCE_PART: i64 = 2;
const EXHAUSTED_PART: i64 = 4;
const LAST_PART: i64 = 8;

/// See the module.
#[derive(Debug)]
pub struct LogDirectory {
    health: Arc<LogDirHealth>,
    below_reserve: AtomicBool,
    /// The reserve, in bytes; 0 until free space has been looked at.
    reserve: AtomicI64,
    /// Free space above the reserve by the last look and what was written since, in bytes. Negative below it.
    room: AtomicI64,
    /// What was said last of the room there is.
    told: Mutex<Room>,
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

    /// The one that holds the metadata as well, if any does.
    pub fn with_metadata(&self) -> Option<&Arc<LogDirectory>> {
        let mut all = self.all.iter();
        all.find(|directory| Arc::ptr_eq(&directory.health, &self.metadata))
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

/// How much room a log directory has for what is not produced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    /// For nothing that a client asks for.
    Exhausted,
    /// For what ends or deletes something.
    Scarce,
    /// For everything.
    #[default]
    Enough,
}

impl LogDirectory {
    /// A log directory whose health is shared with its logs.
    pub fn new(health: Arc<LogDirHealth>) -> Arc<Self> {
        Arc::new(Self {
            health,
            below_reserve: AtomicBool::new(false),
            reserve: AtomicI64::new(0),
            room: AtomicI64::new(i64::MAX),
            told: Mutex::default(),
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

    /// How much room there is for what is not produced. A first look that has not been had is no reason to
    /// refuse anything.
    pub fn room(&self) -> Room {
        if self.is_above(EXHAUSTED_PART) {
            match self.is_above(SCARCE_PART) {
                true => Room::Enough,
                false => Room::Scarce,
            }
        } else {
            Room::Exhausted
        }
    }

    /// Whether compaction, which needs room before it gives any, may go on. Looks at free space itself: what it
    /// writes is not counted.
    pub fn has_room_to_compact(&self) -> bool {
        let reserve = self.reserve.load(Ordering::Relaxed);
        let usable = |space: DiskSpace| i64::try_from(space.usable_bytes).unwrap_or(i64::MAX);
        self.space()
            .is_ok_and(|space| usable(space) >= reserve / EXHAUSTED_PART)
    }

    /// An error if not even what coordinators have begun may be written.
    pub fn require_last_room(&self) -> Result<(), PartitionError> {
        self.require_online()?;
        match self.is_above(LAST_PART) {
            true => Ok(()),
            false => Err(PartitionError::DiskReserve),
        }
    }

    /// Whether more is free than that part of the reserve.
    fn is_above(&self, part: i64) -> bool {
        let reserve = self.reserve.load(Ordering::Relaxed);
        let usable = self.room.load(Ordering::Relaxed).saturating_add(reserve);
        usable >= reserve / part
    }

    /// Counts what has been written, so that a burst does not eat up the reserve between two looks
    /// at free space.
    pub fn take_room(&self, bytes: usize) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.room.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether there is as much room as `needed`, and for `bytes` besides; these are counted then.
    pub fn take_room_where(&self, needed: Room, bytes: usize) -> bool {
        if self.room() < needed {
            return false;
        }
        self.take_room(bytes);
        // Nothing more is no reason to look again.
        let fits = bytes == 0 || self.room() == Room::Enough;
        if !fits {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            self.room.fetch_add(bytes, Ordering::Relaxed);
        }
        fits
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
        let signed = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
        let room = signed(usable_bytes).saturating_sub(signed(reserve_bytes));
        self.reserve.store(signed(reserve_bytes), Ordering::Relaxed);
        self.room.store(room, Ordering::Relaxed);
        self.health.set_spare_bytes(room.max(0));
        let now = self.room();
        if std::mem::replace(&mut *self.told.lock(), now) != now {
            let path = self.path().display();
            match now {
                Room::Enough => tracing::info!(%path, usable_bytes, "coordinators write again"),
                Room::Scarce => {
                    tracing::error!(%path, usable_bytes, "disk nearly full: coordinators write only what ends or deletes");
                }
                Room::Exhausted => {
                    tracing::error!(%path, usable_bytes, "disk full: coordinators write nothing");
                }
            }
        }
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

    /// What was kept free was kept from Produce alone: offset commits used it up, and the directory went offline.
    #[test]
    fn what_is_kept_free_is_given_out_step_by_step_and_never_to_its_end() {
        let directory = LogDirectory::new(LogDirHealth::new("/nowhere"));
        assert_eq!(directory.room(), Room::Enough, "not looked at yet");
        for (usable_bytes, room, has_last) in [
            (1_000, Room::Enough, true),
            (400, Room::Enough, true),
            (399, Room::Scarce, true),
            (200, Room::Scarce, true),
            (199, Room::Exhausted, true),
            (100, Room::Exhausted, true),
            (99, Room::Exhausted, false),
            (0, Room::Exhausted, false),
        ] {
            directory.check_reserve(usable_bytes, 800);
            assert_eq!(directory.room(), room, "{usable_bytes}");
            assert_eq!(
                directory.require_last_room().is_ok(),
                has_last,
                "{usable_bytes}"
            );
            assert_eq!(
                directory.require_writable().is_ok(),
                usable_bytes > 800,
                "{usable_bytes}"
            );
        }
        directory.check_reserve(1_000, 800);
        for (written, room) in [
            (600, Room::Enough),
            (200, Room::Scarce),
            (1, Room::Exhausted),
        ] {
            directory.take_room(written);
            assert_eq!(directory.room(), room, "between two looks");
        }
        directory.check_reserve(0, 0);
        assert_eq!(directory.room(), Room::Enough, "a reserve of 0 is none");
        directory.check_reserve(1_000, 800);
        assert!(!directory.take_room_where(Room::Enough, 601));
        assert!(directory.take_room_where(Room::Enough, 600));
        assert!(!directory.take_room_where(Room::Enough, 1));
        assert!(directory.take_room_where(Room::Enough, 0));
        directory.check_reserve(399, 800);
        assert!(!directory.take_room_where(Room::Enough, 0));
        assert!(directory.take_room_where(Room::Scarce, 0));
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
