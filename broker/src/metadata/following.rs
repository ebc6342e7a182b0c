//! Following the metadata log: reading what has been committed, and making the next image of it.
//!
//! `image.next_offset() ≤ high watermark`, but for a replica that has taken over a checkpoint and is still
//! being given the log up to its end: what the checkpoint says is committed elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;
use odradek_protocol::ids::{LogOffsets, NodeId, Offset};
use odradek_raft::{Group, GroupObserver, Leadership};
use odradek_storage::{LogConfig, StorageError};
use tokio::sync::watch;

use super::checkpoint::fetch::Fetcher;
use super::checkpoint::keeper::CheckpointRules;
use super::checkpoint::store::Store;
use super::image::MetadataImage;
use super::replay::{self, ReplayError};
use super::service::MetadataError;
use crate::blocking::blocking;
use crate::clock::Clock;

/// Bytes of the log that are read at a time.
const READ_MAX_BYTES: usize = 1 << 20;

/// Why committed records could not be put into the image.
#[derive(Debug, thiserror::Error)]
pub(super) enum FollowError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error(
        "the log begins at {log_start}, and no checkpoint of what is before can be read: the newest ends at {newest}"
    )]
    Gap { newest: Offset, log_start: Offset },
}

/// The latest image, and how far the log can be followed.
pub(super) struct Published {
    image: ArcSwap<MetadataImage>,
    images: watch::Sender<Arc<MetadataImage>>,
    failure: watch::Sender<Option<Arc<str>>>,
    /// Bytes of the log that have been read.
    log_bytes: AtomicU64,
}

impl Published {
    pub(super) fn new() -> Self {
        let image = Arc::new(MetadataImage::default());
        Self {
            images: watch::Sender::new(Arc::clone(&image)),
            image: ArcSwap::new(image),
            failure: watch::Sender::new(None),
            log_bytes: AtomicU64::new(0),
        }
    }

    pub(super) fn publish(&self, image: Arc<MetadataImage>) {
        self.image.store(Arc::clone(&image));
        self.images.send_replace(image);
    }

    pub(super) fn image(&self) -> Arc<MetadataImage> {
        self.image.load_full()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Arc<MetadataImage>> {
        self.images.subscribe()
    }

    pub(super) fn log_bytes(&self) -> u64 {
        self.log_bytes.load(Ordering::Relaxed)
    }

    /// Waits for an image that contains everything below `offset`.
    pub(super) async fn reached(
        &self,
        offset: Offset,
    ) -> Result<Arc<MetadataImage>, MetadataError> {
        let mut images = self.images.subscribe();
        let mut failure = self.failure.subscribe();
        tokio::select! {
            image = images.wait_for(|image| image.next_offset() >= offset) => match image {
                Ok(image) => Ok(Arc::clone(&image)),
                Err(_) => Err(MetadataError::Stopped),
            },
            failure = failure.wait_for(Option::is_some) => match failure {
                Ok(failure) => Err(match &*failure {
                    Some(cause) => MetadataError::Unreadable(Arc::clone(cause)),
                    None => MetadataError::Stopped,
                }),
                Err(_) => Err(MetadataError::Stopped),
            },
        }
    }
}

/// Tells the following task how far the log is committed, and sees to it that no log is taken over whose
/// beginning is not known here.
pub(super) struct Observer {
    pub(super) committed: watch::Sender<Offset>,
    pub(super) published: Arc<Published>,
    pub(super) fetcher: Arc<Fetcher>,
    pub(super) clock: Arc<dyn Clock>,
}

impl Observer {
    pub(super) fn rose_to(&self, offset: Offset) {
        self.committed
            .send_modify(|committed| *committed = offset.max(*committed));
    }
}

impl GroupObserver for Observer {
    fn on_high_watermark(&self, offsets: LogOffsets) {
        self.committed.send_replace(offsets.high_watermark.offset());
    }

    fn on_leadership(&self, leadership: Leadership) {
        tracing::debug!(?leadership, "leadership of the metadata log");
    }

    fn on_log_start(&self, _: Offset) {}

    fn on_offline(&self, cause: Arc<str>) {
        tracing::error!(%cause, "the metadata log takes no writes any more");
    }

    fn may_begin_at(&self, leader: NodeId, start: Offset) -> BoxFuture<'static, bool> {
        let (fetcher, image) = (Arc::clone(&self.fetcher), self.published.image());
        Box::pin(fetcher.has_until(leader, start, image, self.clock.wall()))
    }
}

/// Nothing of the log may go by its size or age: it goes once a checkpoint has it.
pub(super) fn log_config(rules: &CheckpointRules) -> LogConfig {
    LogConfig {
        segment_bytes: rules.segment_bytes(),
        retention_ms: None,
        retention_bytes: None,
        delete_old_segments: false,
        write_caching: false,
        ..LogConfig::default()
    }
}

/// Makes an image of whatever is committed, until the group is closed.
pub(super) async fn follow(
    group: Arc<Group>,
    store: Arc<Store>,
    published: Arc<Published>,
    mut watermark: watch::Receiver<Offset>,
) {
    loop {
        let committed = *watermark.borrow_and_update();
        if let Err(error) = catch_up(&group, &store, &published, committed).await {
            tracing::error!(%error, "the metadata log cannot be followed");
            published
                .failure
                .send_replace(Some(error.to_string().into()));
            return;
        }
        if watermark.changed().await.is_err() {
            return;
        }
    }
}

async fn catch_up(
    group: &Group,
    store: &Arc<Store>,
    published: &Published,
    committed: Offset,
) -> Result<(), FollowError> {
    let mut image = published.image();
    while image.next_offset() < committed {
        let next = match read_on(group, Arc::clone(&image), committed).await {
            Ok((next, bytes)) => {
                published.log_bytes.fetch_add(bytes, Ordering::Relaxed);
                next
            }
            // The log has been taken over from a leader, and begins behind the image.
            Err(_) if image.next_offset() < begin_of(group) => {
                let newest = image.next_offset();
                let log_start = begin_of(group);
                let found = store.newest().await?;
                let found = found.filter(|found| found.next_offset() >= log_start);
                found.ok_or(FollowError::Gap { newest, log_start })?
            }
            Err(error) => return Err(error),
        };
        if next.next_offset() == image.next_offset() {
            // The watermark is not at the end of a batch that can be read; the next one will be.
            return Ok(());
        }
        image = Arc::new(next);
        published.publish(Arc::clone(&image));
    }
    Ok(())
}

/// Where the log begins: the files may say so a moment before the group does.
fn begin_of(group: &Group) -> Offset {
    let log_start = group.offsets().log_start.offset();
    log_start.max(group.reader().log_start())
}

/// The image after what follows in the log, and how many bytes that was.
async fn read_on(
    group: &Group,
    before: Arc<MetadataImage>,
    committed: Offset,
) -> Result<(MetadataImage, u64), FollowError> {
    let reader = group.reader();
    // The disk is not waited for on the threads that serve clients.
    blocking(move || {
        let mut image = MetadataImage::clone(&before);
        let slice = reader.read(image.next_offset(), READ_MAX_BYTES, committed, true)?;
        let batches = slice.read()?;
        replay::apply_batches(&mut image, &batches)?;
        Ok((image, batches.len() as u64))
    })
    .await
}
