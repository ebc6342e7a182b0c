//! Having a checkpoint from another node, piece by piece, for a replica that its leader can give the log
//! only from there on.
//!
//! The log is taken over only once the checkpoint is durable here: a replica counts for what lies before its
//! log as for what lies in it. Pieces are asked for one after the other, so that one is in memory at a time;
//! what has arrived is checked as a whole before it gets its name. One that is cut off begins anew.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use odradek_protocol::ids::{NodeId, Offset, TimestampMs};
use odradek_storage::disk::OpenMode;
use tokio::sync::watch;

use super::store::{Piece, Store};
use super::{CheckpointError, CheckpointId, put_in_place, read};
use crate::blocking::blocking;
use crate::metadata::image::MetadataImage;

/// How long the leader that offers its log waits for the checkpoint; if that takes longer, the next offer
/// finds it.
const PATIENCE: Duration = Duration::from_millis(100);
/// Largest checkpoint that is fetched.
const MAX_BYTES: u64 = 16 << 30;

/// The way to the checkpoints of other nodes.
pub trait CheckpointSource: Send + Sync + 'static {
    /// Asks `from` for a piece of a checkpoint: of the newest if none is named.
    fn piece(
        &self,
        from: NodeId,
        wanted: Option<CheckpointId>,
        position: u64,
    ) -> BoxFuture<'static, Result<Piece, FetchError>>;
}

/// Nobody has any: a node on its own.
#[derive(Debug)]
pub struct NoSource;

impl CheckpointSource for NoSource {
    fn piece(
        &self,
        from: NodeId,
        _: Option<CheckpointId>,
        _: u64,
    ) -> BoxFuture<'static, Result<Piece, FetchError>> {
        let refused = FetchError::Refused(format!("there is no way to node {from}"));
        Box::pin(std::future::ready(Err(refused)))
    }
}

/// Why a checkpoint could not be had.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The other node does not answer, has no such checkpoint, or does not know what is asked for.
    #[error("{0}")]
    Refused(String),
    /// What it has is older than what is needed.
    #[error("the newest checkpoint ends at {found}, one from {wanted} on is needed")]
    TooOld {
        /// Where it ends.
        found: Offset,
        /// Where it would have to.
        wanted: Offset,
    },
    /// Pieces do not go together.
    #[error("what was sent is no piece of the checkpoint that was asked for")]
    Garbled,
    /// It cannot be written, or is damaged.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

impl From<std::io::Error> for FetchError {
    fn from(error: std::io::Error) -> Self {
        Self::Checkpoint(error.into())
    }
}

/// Fetches one checkpoint at a time.
pub struct Fetcher {
    store: Arc<Store>,
    source: Arc<dyn CheckpointSource>,
    /// Whether one is being fetched.
    running: watch::Sender<bool>,
}

impl Fetcher {
    /// Fetches through `source` into `store`.
    pub fn new(store: Arc<Store>, source: Arc<dyn CheckpointSource>) -> Arc<Self> {
        Arc::new(Self {
            store,
            source,
            running: watch::Sender::new(false),
        })
    }

    /// Sees to it that there is a durable checkpoint that reaches `start`: made of `image` if that does,
    /// otherwise had from `leader`. Returns whether there is one now; if not, it is on its way.
    pub async fn has_until(
        self: Arc<Self>,
        leader: NodeId,
        start: Offset,
        image: Arc<MetadataImage>,
        now: TimestampMs,
    ) -> bool {
        if self.reaches(start).await {
            return true;
        }
        if image.next_offset() >= start {
            return match self.store.write(image, now).await {
                Ok(_) => true,
                Err(error) => {
                    tracing::error!(%error, "a checkpoint of the metadata cannot be written");
                    false
                }
            };
        }
        let mut running = self.running.subscribe();
        if !self.running.send_replace(true) {
            tokio::spawn(Arc::clone(&self).run(leader, start));
        }
        let ended = running.wait_for(|running| !running);
        let in_time = tokio::time::timeout(PATIENCE, ended).await.is_ok();
        in_time && self.reaches(start).await
    }

    async fn reaches(&self, start: Offset) -> bool {
        match self.store.list().await {
            Ok(known) => known.last().is_some_and(|newest| newest.end >= start),
            Err(error) => {
                tracing::error!(%error, "the checkpoints of the metadata cannot be listed");
                false
            }
        }
    }

    async fn run(self: Arc<Self>, leader: NodeId, start: Offset) {
        let _running = Running(Arc::clone(&self));
        match fetch(&self.store, &*self.source, leader, start).await {
            Ok(id) => tracing::info!(%id, %leader, "a checkpoint of the metadata was fetched"),
            Err(error) => {
                tracing::warn!(%leader, %error, "no checkpoint of the metadata could be fetched");
            }
        }
    }
}

/// Says that nothing is fetched any more once it is gone.
struct Running(Arc<Fetcher>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.send_replace(false);
    }
}

/// Fetches the newest checkpoint of `from`, which has to reach `start`; durable on return.
async fn fetch(
    store: &Arc<Store>,
    source: &dyn CheckpointSource,
    from: NodeId,
    start: Offset,
) -> Result<CheckpointId, FetchError> {
    let Piece { id, size, bytes } = source.piece(from, None, 0).await?;
    if id.end < start {
        return Err(FetchError::TooOld {
            found: id.end,
            wanted: start,
        });
    }
    if size > MAX_BYTES {
        return Err(FetchError::Garbled);
    }
    let _writing = store.to_write().await;
    let part = store.dir.join(id.part_name());
    let fetched = take_pieces(store, source, from, Piece { id, size, bytes }).await;
    if fetched.is_err() {
        let (disk, part) = (Arc::clone(&store.disk), part);
        // If it cannot be removed, the next start does it.
        let _ = blocking(move || disk.remove_file(&part)).await;
    }
    fetched
}

async fn take_pieces(
    store: &Arc<Store>,
    source: &dyn CheckpointSource,
    from: NodeId,
    first: Piece,
) -> Result<CheckpointId, FetchError> {
    let Piece { id, size, bytes } = first;
    let part = store.dir.join(id.part_name());
    let file = {
        let (disk, part) = (Arc::clone(&store.disk), part.clone());
        blocking(move || {
            let file = disk.open(&part, OpenMode::Create)?;
            file.set_len(0)?;
            Ok::<_, std::io::Error>(file)
        })
        .await?
    };
    let (mut position, mut next) = (0, bytes);
    loop {
        let count = next.len() as u64;
        if count == 0 || position + count > size {
            return Err(FetchError::Garbled);
        }
        let (out, bytes) = (Arc::clone(&file), next);
        blocking(move || out.write_at(&bytes, position)).await?;
        position += count;
        if position == size {
            break;
        }
        let piece = source.piece(from, Some(id), position).await?;
        if piece.id != id || piece.size != size {
            return Err(FetchError::Garbled);
        }
        next = piece.bytes;
    }
    let store = Arc::clone(store);
    blocking(move || {
        file.sync_data()?;
        drop(file);
        read(&*store.disk, &part, id)?;
        put_in_place(&*store.disk, &store.dir, id)?;
        super::drop_old(&*store.disk, &store.dir)?;
        Ok(id)
    })
    .await
}
