//! Checkpoints of the metadata: an image written down as records, so that the log below it can go and a
//! start need not replay it from its beginning.
//!
//! A checkpoint lies beside the log as `<end offset>-<epoch>.checkpoint`, named and made up as Kafka's
//! are (KIP-630): batches of records between two control batches, one that begins it and one that says that
//! it is whole. docs/FORMAT.md has the bytes.
//!
//! It is written under another name, synced, and renamed: a file of the final name is whole or damaged,
//! never torn. Every batch has its checksum, offsets go on from batch to batch, and nothing follows the
//! last: a file that has lost something is not read. The two newest are kept, and the log from the end of
//! the older one on, so that a damaged one costs a longer replay and nothing else.
//!
//! - `write`, `read`: the bytes.
//! - `store`: the checkpoints of one directory, and who may write there.
//! - `keeper`: when one is due, and what goes with it.
//! - `fetch`: having one from another node.

pub mod fetch;
pub mod keeper;
mod read;
pub mod store;
#[cfg(test)]
mod tests;
mod write;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use odradek_protocol::batch::BatchError;
use odradek_protocol::codec::EncodeError;
use odradek_protocol::ids::{LeaderEpoch, Offset};
use odradek_storage::disk::Disk;

use super::image::MetadataImage;
use super::replay::ReplayError;

pub use read::read;
pub use write::write;

/// What the names of all end with.
const SUFFIX: &str = ".checkpoint";
/// What the name of one ends with that is being written.
const PART: &str = ".checkpoint.part";
/// Checkpoints that are kept.
const KEPT: usize = 2;

/// Version of the records that begin and end a checkpoint.
const CONTROL_VERSION: i16 = 0;
/// Kafka's number of the control record that begins one.
const HEADER: i16 = 3;
/// Kafka's number of the control record that ends one.
const FOOTER: i16 = 4;

/// Which checkpoint: that of everything below an offset. Orders by offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointId {
    /// Offset of the first record that is not in it.
    pub end: Offset,
    /// Epoch of the last record that is.
    pub epoch: LeaderEpoch,
}

impl CheckpointId {
    /// The one that an image would become.
    pub fn of(image: &MetadataImage) -> Self {
        Self {
            end: image.next_offset(),
            epoch: image.last_epoch(),
        }
    }

    /// Reads a file name.
    fn parse(name: &str) -> Option<Self> {
        let (end, epoch) = name.strip_suffix(SUFFIX)?.split_once('-')?;
        let id = Self {
            end: Offset::new(end.parse().ok()?),
            epoch: LeaderEpoch::new(epoch.parse().ok()?),
        };
        (id.file_name() == name).then_some(id)
    }

    /// Name of its file.
    pub fn file_name(self) -> String {
        format!("{self}{SUFFIX}")
    }

    /// Name of its file while it is written.
    fn part_name(self) -> String {
        format!("{self}{PART}")
    }
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:020}-{:010}", self.end.get(), self.epoch.get())
    }
}

/// Why a checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The disk fails.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A record does not fit its encoding.
    #[error("metadata record: {0}")]
    Encode(#[from] EncodeError),
    /// A batch is damaged.
    #[error("at byte {position}: {cause}")]
    Batch {
        /// Where the batch begins.
        position: u64,
        /// What is wrong.
        cause: BatchError,
    },
    /// What the records say contradicts itself, or is of no kind that this version knows.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// It is not made up as a checkpoint is.
    #[error("at byte {position}: {what}")]
    Shape {
        /// Where.
        position: u64,
        /// What is wrong.
        what: &'static str,
    },
}

/// The checkpoints in `dir`, the oldest first. Files of other names are passed over.
pub fn list(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<CheckpointId>> {
    let entries = disk.list(dir)?;
    let mut found: Vec<_> = entries
        .iter()
        .filter(|entry| !entry.is_dir)
        .filter_map(|entry| CheckpointId::parse(&entry.name))
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// Removes all checkpoints in `dir` but the newest. Returns those that are left, the oldest first.
pub fn drop_old(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<CheckpointId>> {
    let mut kept = list(disk, dir)?;
    let old = kept.len().saturating_sub(KEPT);
    for id in kept.drain(..old) {
        disk.remove_file(&path(dir, id))?;
    }
    Ok(kept)
}

/// Removes what was begun in `dir` and never finished. Nobody may be writing.
pub fn clear_parts(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    for entry in disk.list(dir)? {
        if !entry.is_dir && entry.name.ends_with(PART) {
            disk.remove_file(&dir.join(entry.name))?;
        }
    }
    Ok(())
}

/// Reads the newest checkpoint in `dir` that can be read. `None` if there is none.
pub fn newest(disk: &dyn Disk, dir: &Path) -> io::Result<Option<MetadataImage>> {
    for id in list(disk, dir)?.into_iter().rev() {
        match read(disk, &path(dir, id), id) {
            Ok(image) => return Ok(Some(image)),
            Err(error) => {
                tracing::error!(%id, %error, "a checkpoint of the metadata cannot be read")
            }
        }
    }
    Ok(None)
}

fn path(dir: &Path, id: CheckpointId) -> PathBuf {
    dir.join(id.file_name())
}

/// Gives a file that is durable its final name, and returns once that is durable.
fn put_in_place(disk: &dyn Disk, dir: &Path, id: CheckpointId) -> io::Result<()> {
    disk.rename(&dir.join(id.part_name()), &path(dir, id))?;
    disk.sync_dir(dir)
}
