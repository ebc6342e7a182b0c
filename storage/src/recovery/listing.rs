//! What is found in a partition's directory, and what in it is left over from before.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use odradek_protocol::ids::Offset;

use crate::deletion::remove_if_present;
use crate::disk::Disk;
use crate::error::StorageError;
use crate::file_names::{
    COMPACTED_MARKER, DELETED_SUFFIX, LEADER_EPOCH_CHECKPOINT, LOG_SUFFIX, OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX, TEMPORARY_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, parse_offset,
};
use crate::segment::SegmentFiles;

/// What a partition's directory holds.
#[derive(Default)]
pub(super) struct Listing {
    pub(super) segments: BTreeMap<Offset, SegmentFiles>,
    pub(super) snapshots: BTreeSet<Offset>,
    pub(super) has_epochs: bool,
    pub(super) was_compacted: bool,
}

pub(super) fn list(disk: &dyn Disk, dir: &Path) -> Result<Listing, StorageError> {
    let entries = match disk.list(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            disk.create_dir_all(dir)
                .map_err(|error| StorageError::io("create", dir, error))?;
            Vec::new()
        }
        Err(error) => return Err(StorageError::io("list", dir, error)),
    };
    let mut listing = Listing::default();
    let mut orphans = Vec::new();
    for entry in entries.iter().filter(|entry| !entry.is_dir) {
        let name = entry.name.as_str();
        if let Some(base) = parse_offset(name, LOG_SUFFIX) {
            listing.segments.entry(base).or_default().log = entry.len;
        } else if let Some(offset) = parse_offset(name, SNAPSHOT_SUFFIX) {
            listing.snapshots.insert(offset);
        } else if name == LEADER_EPOCH_CHECKPOINT {
            listing.has_epochs = true;
        } else if name == COMPACTED_MARKER {
            listing.was_compacted = true;
        } else if name.ends_with(DELETED_SUFFIX) || name.ends_with(TEMPORARY_SUFFIX) {
            remove_if_present(disk, &dir.join(name))?;
        }
    }
    for entry in entries.iter().filter(|entry| !entry.is_dir) {
        for suffix in [OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX] {
            let Some(base) = parse_offset(&entry.name, suffix) else {
                continue;
            };
            match listing.segments.get_mut(&base) {
                Some(files) if suffix == OFFSET_INDEX_SUFFIX => {
                    files.offset_index = Some(entry.len);
                }
                Some(files) if suffix == TIME_INDEX_SUFFIX => files.time_index = Some(entry.len),
                Some(files) => files.txn_index = Some(entry.len),
                None => orphans.push(dir.join(&entry.name)),
            }
        }
    }
    for orphan in orphans {
        remove_if_present(disk, &orphan)?;
    }
    Ok(listing)
}
