//! Putting a log that was received in the place of the one that is there, so that a crash at any
//! step leaves the one or the other.
//!
//! Everything of the new log is durable, under names with the suffix `.incoming`, when the file
//! `incoming.whole` is made: from then on the new log counts. The old files go, which is made durable
//! by renaming that file to `incoming.moving`; then the new ones get their names, and the file goes.
//! Each of the two halves may be done again from its beginning. All in one directory, so that a name
//! is never lost on its way from one to another.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use odradek_protocol::ids::{Offset, TimestampMs};

use super::INCOMING_SUFFIX;
use super::incoming::{Received, write_incoming};
use crate::compaction::swap::{CLEANED_SUFFIX, SWAP_SUFFIX, sync_dir};
use crate::deletion::remove_if_present;
use crate::disk::{Disk, OpenMode};
use crate::error::StorageError;
use crate::file_names::{
    COMPACTED_MARKER, DELETED_SUFFIX, LEADER_EPOCH_CHECKPOINT, LOG_SUFFIX, OFFSET_INDEX_SUFFIX,
    RECOVERY_POINT, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, parse_offset,
};
use crate::log::Log;
use crate::recovery::OpenHint;

/// The new log counts; the old one may still be there.
const WHOLE: &str = "incoming.whole";
/// The old log is gone; the new one has some of its names.
const MOVING: &str = "incoming.moving";

impl Log {
    /// Goes on with a log that was received in place of this one, with records readable from
    /// `kept_from` on. `beside` are files of the layer above, by name, that change at the same
    /// moment. Durable on return. Readers go on; those in the middle of the old log may find it gone.
    pub fn adopt(
        &mut self,
        received: Received,
        kept_from: Offset,
        beside: &[(&str, &[u8])],
        now: TimestampMs,
    ) -> Result<(), StorageError> {
        self.check_usable()?;
        let health = self.health.clone();
        health.guard(self.adopt_inner(received, kept_from, beside, now))
    }

    fn adopt_inner(
        &mut self,
        received: Received,
        kept_from: Offset,
        beside: &[(&str, &[u8])],
        now: TimestampMs,
    ) -> Result<(), StorageError> {
        let disk = self.disk.clone();
        for (name, content) in beside {
            write_incoming(disk.as_ref(), &self.dir, Path::new(name), content)?;
        }
        // Before there is anything that says that it counts.
        sync_dir(disk.as_ref(), &self.dir)?;
        for segment in self.shared.segments.load().iter() {
            segment.files().for_each(|file| file.retire());
        }
        self.cuts += 1;
        let path = self.dir.join(WHOLE);
        disk.open(&path, OpenMode::Create)
            .map_err(|error| StorageError::io("create", &path, error))?;
        sync_dir(disk.as_ref(), &self.dir)?;
        finish_adoption(disk.as_ref(), &self.dir)?;
        let hint = OpenHint {
            health: self.health.clone(),
            // All of it has been checked, and is durable.
            clean_shutdown: true,
            log_start: Some(kept_from),
            known_epoch: &|_, _| true,
        };
        let (new, _) = Self::open(disk, &self.dir, self.config.clone(), hint, now)?;
        if new.next_offset() != received.end {
            return Err(StorageError::corrupt(
                &self.dir,
                0,
                format!("it ends at {}, not {}", new.next_offset(), received.end),
            ));
        }
        self.take_over(new);
        Ok(())
    }

    /// Becomes another log of the same directory, for the readers of this one too. The start moves
    /// before the segments do: who reads in between is told that what it asks for is out of range.
    fn take_over(&mut self, new: Self) {
        let Self {
            shared,
            active,
            recovery_point,
            sealed_dirty,
            epochs_dirty,
            clean_end,
            snapshots,
            deletions,
            ..
        } = new;
        self.shared
            .log_start
            .store(shared.log_start().get(), Ordering::Release);
        self.shared.segments.store(shared.segments.load_full());
        *self.shared.epochs.write() = shared.epochs.read().clone();
        *self.shared.producers.lock() = std::mem::take(&mut *shared.producers.lock());
        self.active = active;
        self.recovery_point = recovery_point;
        self.sealed_dirty = sealed_dirty;
        self.epochs_dirty = epochs_dirty;
        self.clean_end = clean_end;
        self.snapshots = snapshots;
        self.deletions = deletions;
    }
}

fn names(disk: &dyn Disk, dir: &Path) -> Result<Vec<String>, StorageError> {
    match disk.list(dir) {
        Ok(entries) => Ok(entries
            .into_iter()
            .filter(|entry| !entry.is_dir)
            .map(|entry| entry.name)
            .collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(StorageError::io("list", dir, error)),
    }
}

/// Ends what a crash has left of a transfer in a partition's directory: the new log takes its place
/// if it counts, and goes if it does not. Returns whether it took its place. To be called before
/// anything else in the directory is looked at.
pub fn finish_adoption(disk: &dyn Disk, dir: &Path) -> Result<bool, StorageError> {
    let found = names(disk, dir)?;
    let has = |name: &str| found.iter().any(|found| found == name);
    if has(WHOLE) {
        remove_log(disk, dir)?;
        rename(disk, dir, WHOLE, MOVING)?;
        sync_dir(disk, dir)?;
    } else if !has(MOVING) {
        discard_incoming(disk, dir)?;
        return Ok(false);
    }
    for name in &found {
        if let Some(own) = name.strip_suffix(INCOMING_SUFFIX) {
            rename(disk, dir, name, own)?;
        }
    }
    sync_dir(disk, dir)?;
    remove_if_present(disk, &dir.join(MOVING))?;
    sync_dir(disk, dir)?;
    Ok(true)
}

fn rename(disk: &dyn Disk, dir: &Path, from: &str, to: &str) -> Result<(), StorageError> {
    let from = dir.join(from);
    disk.rename(&from, &dir.join(to))
        .map_err(|error| StorageError::io("rename", &from, error))
}

/// Removes what was received and does not count.
pub(super) fn discard_incoming(disk: &dyn Disk, dir: &Path) -> Result<(), StorageError> {
    for name in names(disk, dir)? {
        if name.ends_with(INCOMING_SUFFIX) {
            remove_if_present(disk, &dir.join(name))?;
        }
    }
    Ok(())
}

/// Removes the log in a directory, and nothing else that is there. Durable on return. To be called before
/// the log is opened.
pub fn remove_log(disk: &dyn Disk, dir: &Path) -> Result<(), StorageError> {
    for name in names(disk, dir)?.iter().filter(|name| is_of_log(name)) {
        remove_if_present(disk, &dir.join(name))?;
    }
    sync_dir(disk, dir)
}

/// Whether a file belongs to the log in the directory, and not to what is received or to others.
fn is_of_log(name: &str) -> bool {
    let name = [DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX]
        .iter()
        .find_map(|stage| name.strip_suffix(stage))
        .unwrap_or(name);
    let of_offset = [
        LOG_SUFFIX,
        OFFSET_INDEX_SUFFIX,
        TIME_INDEX_SUFFIX,
        TXN_INDEX_SUFFIX,
        SNAPSHOT_SUFFIX,
    ];
    [LEADER_EPOCH_CHECKPOINT, RECOVERY_POINT, COMPACTED_MARKER].contains(&name)
        || of_offset
            .iter()
            .any(|suffix| parse_offset(name, suffix).is_some())
}
