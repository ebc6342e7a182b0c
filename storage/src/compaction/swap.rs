//! Putting a compacted segment in the place of those it was made from, so that a crash at any step
//! leaves the one or the others.
//!
//! The files are written with the suffix `.cleaned` and synced. They are renamed to `.swap`, the
//! log last: from the moment that name is durable the new segment counts. Then the old files are
//! taken away, which is made durable, and the new ones get their names, the log last again. An
//! opening that finds a `.log.swap` does the rest, and drops whatever else has one of the two
//! suffixes. The suffixes are Kafka's.

use std::io;
use std::path::{Path, PathBuf};

use odradek_protocol::ids::Offset;

use crate::deletion::remove_if_present;
use crate::disk::{Disk, DiskEntry, OpenMode, with_suffix};
use crate::error::StorageError;
use crate::file_names::{
    LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, offset_file, parse_offset,
};
use crate::scan::BatchScanner;

/// Appended to the names of files of a segment that is being made.
pub(crate) const CLEANED_SUFFIX: &str = ".cleaned";
/// Appended to the names of files of a segment that is whole and takes the place of others.
pub(crate) const SWAP_SUFFIX: &str = ".swap";

/// What a segment has beside its log. A new one has all three, the last perhaps empty, so that a
/// file of the old segment is never taken for one of the new.
pub(crate) const ALL_BUT_LOG: [&str; 3] =
    [OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX];

/// `<dir>/<offset><suffix><stage>`.
pub(crate) fn staged(dir: &Path, base: Offset, suffix: &str, stage: &str) -> PathBuf {
    with_suffix(&offset_file(dir, base, suffix), stage)
}

/// Renames a segment's files from one stage to the next, as far as they are not there already. The
/// log's new name is durable only after those of the others are.
pub(super) fn rename_all(
    disk: &dyn Disk,
    dir: &Path,
    base: Offset,
    from: &str,
    to: &str,
) -> Result<(), StorageError> {
    for suffix in ALL_BUT_LOG {
        rename(disk, dir, base, suffix, from, to)?;
    }
    sync_dir(disk, dir)?;
    rename(disk, dir, base, LOG_SUFFIX, from, to)?;
    sync_dir(disk, dir)
}

fn rename(
    disk: &dyn Disk,
    dir: &Path,
    base: Offset,
    suffix: &str,
    from: &str,
    to: &str,
) -> Result<(), StorageError> {
    let (from, to) = (
        staged(dir, base, suffix, from),
        staged(dir, base, suffix, to),
    );
    match disk.rename(&from, &to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StorageError::io("rename", &from, error))
        }
        _ => Ok(()),
    }
}

pub(crate) fn sync_dir(disk: &dyn Disk, dir: &Path) -> Result<(), StorageError> {
    disk.sync_dir(dir)
        .map_err(|error| StorageError::io("sync", dir, error))
}

/// Ends what a crash has left of compactions in a partition's directory.
pub(crate) fn finish_swaps(disk: &dyn Disk, dir: &Path) -> Result<(), StorageError> {
    let entries = match disk.list(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(StorageError::io("list", dir, error)),
    };
    let names = || {
        entries
            .iter()
            .filter(|entry| !entry.is_dir)
            .map(|entry| entry.name.as_str())
    };
    if !names().any(|name| name.ends_with(CLEANED_SUFFIX) || name.ends_with(SWAP_SUFFIX)) {
        return Ok(());
    }
    let log_swap = format!("{LOG_SUFFIX}{SWAP_SUFFIX}");
    let whole: Vec<Offset> = names()
        .filter_map(|name| parse_offset(name, &log_swap))
        .collect();
    for base in &whole {
        tracing::info!(dir = %dir.display(), %base, "finishing a compaction that was interrupted");
        take_place(disk, dir, *base, &entries)?;
    }
    for name in names() {
        if !is_of(name, &whole) && (name.ends_with(CLEANED_SUFFIX) || name.ends_with(SWAP_SUFFIX)) {
            remove_if_present(disk, &dir.join(name))?;
        }
    }
    sync_dir(disk, dir)
}

/// Whether this is, or was until just now, a file of one of these whole segments.
fn is_of(name: &str, whole: &[Offset]) -> bool {
    ALL_BUT_LOG.iter().chain([&LOG_SUFFIX]).any(|suffix| {
        parse_offset(name, &format!("{suffix}{SWAP_SUFFIX}"))
            .is_some_and(|base| whole.contains(&base))
    })
}

/// Removes the segments that a whole new one was made from, as far as they overlap with it, and
/// gives it its name. Old segments behind its last batch may stay: what they hold is still true.
fn take_place(
    disk: &dyn Disk,
    dir: &Path,
    base: Offset,
    entries: &[DiskEntry],
) -> Result<(), StorageError> {
    let next = next_offset(disk, dir, base)?;
    let replaced = entries
        .iter()
        .filter_map(|entry| parse_offset(&entry.name, LOG_SUFFIX))
        .filter(|old| *old > base && *old < next);
    for old in replaced {
        for suffix in ALL_BUT_LOG.iter().chain([&LOG_SUFFIX]) {
            remove_if_present(disk, &offset_file(dir, old, suffix))?;
        }
    }
    sync_dir(disk, dir)?;
    rename_all(disk, dir, base, SWAP_SUFFIX, "")
}

fn next_offset(disk: &dyn Disk, dir: &Path, base: Offset) -> Result<Offset, StorageError> {
    let path = staged(dir, base, LOG_SUFFIX, SWAP_SUFFIX);
    let read = |error| StorageError::io("read", &path, error);
    let file = disk.open(&path, OpenMode::Read).map_err(read)?;
    let len = file.len().map_err(read)?;
    let end = u32::try_from(len)
        .map_err(|_| StorageError::corrupt(&path, len, "segment is too large"))?;
    let mut scanner = BatchScanner::headers(file, 0, end);
    let mut next = base;
    loop {
        match scanner.next_header() {
            Ok(Some((header, _))) => next = header.next_offset(),
            Ok(None) => return Ok(next),
            Err(crate::scan::ScanError::Io(error)) => return Err(read(error)),
            Err(crate::scan::ScanError::Malformed { position, what }) => {
                return Err(StorageError::corrupt(&path, u64::from(position), what));
            }
        }
    }
}
