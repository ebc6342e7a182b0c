//! Removing files in two steps: renamed at once, unlinked later.
//!
//! The rename takes a file out of the log for good, even if the process dies right after; the
//! delay lets readers that still hold an old list of segments finish. Whatever is renamed and not
//! yet unlinked when the process ends, is unlinked at the next opening.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use odradek_protocol::ids::TimestampMs;

use crate::disk::{Disk, with_suffix};
use crate::error::StorageError;
use crate::file_names::DELETED_SUFFIX;

/// Files that wait to be unlinked, oldest first.
#[derive(Debug)]
pub(crate) struct Deletions {
    disk: Arc<dyn Disk>,
    pending: Vec<(PathBuf, TimestampMs)>,
}

impl Deletions {
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        Self {
            disk,
            pending: Vec::new(),
        }
    }

    /// Renames a file, if it exists, to be unlinked at `due`.
    pub fn add(&mut self, path: &Path, due: TimestampMs) -> Result<(), StorageError> {
        let renamed = with_suffix(path, DELETED_SUFFIX);
        match self.disk.rename(path, &renamed) {
            Ok(()) => {
                self.pending.push((renamed, due));
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(StorageError::io("rename", path, error)),
        }
    }

    /// Unlinks what is due. Returns how many files went.
    pub fn run(&mut self, now: TimestampMs) -> Result<usize, StorageError> {
        let (due, pending) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|(_, due)| *due <= now);
        self.pending = pending;
        let due: Vec<(PathBuf, TimestampMs)> = due;
        for (path, _) in &due {
            remove_if_present(self.disk.as_ref(), path)?;
        }
        Ok(due.len())
    }

    /// When the next file is due.
    pub fn next_due(&self) -> Option<TimestampMs> {
        self.pending.iter().map(|(_, due)| *due).min()
    }
}

/// Unlinks a file that may be gone already.
pub(crate) fn remove_if_present(disk: &dyn Disk, path: &Path) -> Result<(), StorageError> {
    match disk.remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StorageError::io("remove", path, error))
        }
        _ => Ok(()),
    }
}
