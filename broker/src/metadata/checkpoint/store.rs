//! The checkpoints of one directory. Whatever is written there is written by one at a time.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use odradek_protocol::ids::TimestampMs;
use odradek_storage::disk::{Disk, OpenMode};
use tokio::sync::{Mutex, MutexGuard};

use super::{CheckpointError, CheckpointId};
use crate::blocking::blocking;
use crate::metadata::image::MetadataImage;

/// Longest piece of a checkpoint that is handed out.
const PIECE_MAX_BYTES: usize = 512 << 10;

/// A piece of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Of which.
    pub id: CheckpointId,
    /// Length of the whole.
    pub size: u64,
    /// Bytes from the position on that was asked for; none at the end alone.
    pub bytes: Bytes,
}

/// See the module.
#[derive(Debug)]
pub struct Store {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) dir: PathBuf,
    writing: Mutex<()>,
}

impl Store {
    /// The checkpoints in `dir`, beside the log that they stand for.
    pub fn new(disk: Arc<dyn Disk>, dir: PathBuf) -> Arc<Self> {
        Arc::new(Self {
            disk,
            dir,
            writing: Mutex::default(),
        })
    }

    /// Waits until nobody else writes.
    pub(super) async fn to_write(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().await
    }

    /// Those that there are, the oldest first.
    pub async fn list(self: &Arc<Self>) -> io::Result<Vec<CheckpointId>> {
        let this = Arc::clone(self);
        blocking(move || super::list(&*this.disk, &this.dir)).await
    }

    /// Removes what was begun and never finished, and reads the newest that can be read.
    pub async fn open(self: &Arc<Self>) -> io::Result<Option<MetadataImage>> {
        let _writing = self.to_write().await;
        let this = Arc::clone(self);
        blocking(move || {
            super::clear_parts(&*this.disk, &this.dir)?;
            super::newest(&*this.disk, &this.dir)
        })
        .await
    }

    /// Reads the newest that can be read.
    pub async fn newest(self: &Arc<Self>) -> io::Result<Option<MetadataImage>> {
        let this = Arc::clone(self);
        blocking(move || super::newest(&*this.disk, &this.dir)).await
    }

    /// Writes the checkpoint of `image`, unless there is one as new. Returns those that are kept, the
    /// oldest first.
    pub async fn write(
        self: &Arc<Self>,
        image: Arc<MetadataImage>,
        now: TimestampMs,
    ) -> Result<Vec<CheckpointId>, CheckpointError> {
        let _writing = self.to_write().await;
        let this = Arc::clone(self);
        blocking(move || {
            let known = super::list(&*this.disk, &this.dir)?;
            let is_newer = |newest: &CheckpointId| newest.end >= image.next_offset();
            if !known.last().is_some_and(is_newer) {
                let written = super::write(&*this.disk, &this.dir, &image, now);
                if written.is_err() {
                    // It must not take the room that may have been wanting.
                    let _ = super::clear_parts(&*this.disk, &this.dir);
                }
                written?;
            }
            Ok(super::drop_old(&*this.disk, &this.dir)?)
        })
        .await
    }

    /// A piece of the checkpoint `wanted`, or of the newest, from `position` on. `None` if there is no such
    /// checkpoint, any more or yet.
    pub async fn piece(
        self: &Arc<Self>,
        wanted: Option<CheckpointId>,
        position: u64,
    ) -> io::Result<Option<Piece>> {
        let this = Arc::clone(self);
        blocking(move || {
            let known = super::list(&*this.disk, &this.dir)?;
            let newest = known.last().copied();
            let Some(id) = wanted.or(newest).filter(|id| known.contains(id)) else {
                return Ok(None);
            };
            let file = this
                .disk
                .open(&super::path(&this.dir, id), OpenMode::Read)?;
            let size = file.len()?;
            let left = usize::try_from(size.saturating_sub(position)).unwrap_or(usize::MAX);
            let mut bytes = vec![0; left.min(PIECE_MAX_BYTES)];
            if !bytes.is_empty() {
                file.read_exact_at(&mut bytes, position)?;
            }
            let bytes = Bytes::from(bytes);
            Ok(Some(Piece { id, size, bytes }))
        })
        .await
    }
}
