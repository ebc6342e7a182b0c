//! The metadata log at work: one Raft group, the image of what has been committed to it, and the
//! queue of commands that change it.
//!
//! One task follows the log, on every node: it reads what has been committed and makes the next
//! image. Another carries out commands, one after the other, on the group's leader alone: it decides
//! on the image of everything before, writes the records as one batch, and answers once they are
//! committed and in the image. A command therefore sees all earlier ones, those of earlier leaders
//! too, and an answer is never taken back.
//!
//! `image.next_offset() ≤ high watermark`; a batch is written only where the image that it was made
//! of ends. Absent on purpose: snapshots of the log; it is replayed from its start.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use odradek_protocol::batch::{BatchError, BatchHeader};
use odradek_protocol::codec::EncodeError;
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{LogOffsets, NodeId, Offset, PartitionIndex, TopicId};
use odradek_raft::{
    Group, GroupKey, GroupObserver, GroupSpec, Leadership, Proposal, ProposeError, RaftError,
    RaftNode,
};
use odradek_storage::{LogConfig, StorageError};

use tokio::sync::{mpsc, oneshot, watch};

use super::image::MetadataImage;
use super::records::MetadataRecord;
use super::replay::{self, ReplayError};
use super::topic_name::CLUSTER_METADATA;
use crate::clock::Clock;

/// Kafka's fixed id of the metadata log's topic: `AAAAAAAAAAAAAAAAAAAAAQ`.
pub const METADATA_TOPIC_ID: TopicId =
    TopicId::from_bytes([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

/// The group of the metadata log.
pub const METADATA_GROUP: GroupKey = GroupKey {
    topic_id: METADATA_TOPIC_ID,
    partition: PartitionIndex::new(0),
};

/// Commands that wait for their turn before callers do.
const QUEUED_COMMANDS: usize = 256;
/// Bytes of the log that are read at a time.
const READ_MAX_BYTES: usize = 1 << 20;

/// How long a command may take. Without a majority it would wait for ever.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// What a service works with.
pub struct MetadataOptions {
    /// This node.
    pub node_id: NodeId,
    /// Directory that gets `__cluster_metadata-0`.
    pub log_dir: PathBuf,
    /// Voters of a new metadata group.
    pub voters: Vec<NodeId>,
    /// Whether a group that does not exist here is made with these voters. Otherwise this node waits
    /// until the group's leader has it take part.
    pub bootstrap: bool,
    /// The time, for the records' timestamps.
    pub clock: Arc<dyn Clock>,
}

/// Why a command was not carried out, or why nobody knows whether it was.
#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    /// The group cannot be opened or does not get a leader.
    #[error("metadata log: {0}")]
    Raft(#[from] RaftError),
    /// The group does not take the records, or does not keep them.
    #[error("metadata log: {0}")]
    Propose(#[from] ProposeError),
    /// A record does not fit its encoding.
    #[error("metadata record: {0}")]
    Encode(#[from] EncodeError),
    /// Our own batch is not sound.
    #[error("metadata batch: {0}")]
    Batch(#[from] BatchError),
    /// The records could not be replayed, so they are not written.
    #[error("the change is not recorded: {0}")]
    NotReplayable(#[from] ReplayError),
    /// What has been committed cannot be read back; the service has stopped.
    #[error("the metadata log cannot be followed: {0}")]
    Unreadable(Arc<str>),
    /// Another node leads the metadata, or none does.
    #[error("this node does not lead the cluster's metadata; the leader is {}", name(*leader))]
    NotController {
        /// Who does, as far as this node knows.
        leader: Option<NodeId>,
    },
    /// It took too long. The change may still be made.
    #[error("the change was not committed in time")]
    TimedOut,
    /// The broker is stopping.
    #[error("the metadata service has stopped")]
    Stopped,
}

fn name(leader: Option<NodeId>) -> String {
    leader.map_or_else(|| "not known".to_owned(), |node| format!("node {node}"))
}

impl MetadataError {
    /// The code that says it on the wire.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Raft(_) | Self::NotController { .. } | Self::Stopped => ErrorCode::NotController,
            Self::TimedOut => ErrorCode::RequestTimedOut,
            Self::Propose(error) => match error {
                ProposeError::Offline(_) => ErrorCode::KafkaStorageError,
                ProposeError::QueueFull { .. } => ErrorCode::RequestTimedOut,
                ProposeError::NotLeader { .. } | ProposeError::NotReady | ProposeError::Closed => {
                    ErrorCode::NotController
                }
                ProposeError::Malformed => ErrorCode::UnknownServerError,
            },
            // A value that is too long for a record, in practice.
            Self::NotReplayable(_) => ErrorCode::InvalidRequest,
            Self::Encode(_) | Self::Batch(_) | Self::Unreadable(_) => ErrorCode::UnknownServerError,
        }
    }
}

/// Why committed records could not be put into the image.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error("the read was given up")]
    Cancelled,
}

/// The outcome of a command that was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done<T> {
    /// What the command computed.
    pub value: T,
    /// Offset that an image must have reached to contain the command's changes.
    pub offset: Offset,
}

type Finish = Box<dyn FnOnce(Result<Offset, MetadataError>) + Send>;
/// Gives the records and whom to tell; given an error, tells it and gives nothing.
type Command = Box<
    dyn FnOnce(Result<&MetadataImage, MetadataError>) -> Option<(Vec<MetadataRecord>, Finish)>
        + Send,
>;

/// The latest image, and how far the log can be followed.
struct Published {
    image: ArcSwap<MetadataImage>,
    images: watch::Sender<Arc<MetadataImage>>,
    failure: watch::Sender<Option<Arc<str>>>,
}

impl Published {
    fn new() -> Self {
        let image = Arc::new(MetadataImage::default());
        Self {
            images: watch::Sender::new(Arc::clone(&image)),
            image: ArcSwap::new(image),
            failure: watch::Sender::new(None),
        }
    }

    fn publish(&self, image: Arc<MetadataImage>) {
        self.image.store(Arc::clone(&image));
        self.images.send_replace(image);
    }

    /// Waits for an image that contains everything below `offset`.
    async fn reached(&self, offset: Offset) -> Result<Arc<MetadataImage>, MetadataError> {
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

/// Tells the following task how far the log is committed.
struct Watermark {
    committed: watch::Sender<Offset>,
}

impl Watermark {
    fn rose_to(&self, offset: Offset) {
        self.committed
            .send_modify(|committed| *committed = offset.max(*committed));
    }
}

impl GroupObserver for Watermark {
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
}

/// The cluster's metadata. See the module.
pub struct MetadataService {
    node: NodeId,
    group: Arc<Group>,
    published: Arc<Published>,
    commands: mpsc::Sender<Command>,
}

impl std::fmt::Debug for MetadataService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetadataService")
            .field("next_offset", &self.image().next_offset())
            .finish_non_exhaustive()
    }
}

impl MetadataService {
    /// Opens the metadata group and starts to follow it. Leadership, and an image that is complete,
    /// come later.
    pub async fn open(
        raft: &RaftNode,
        options: MetadataOptions,
    ) -> Result<Arc<Self>, MetadataError> {
        let (committed, watermark) = watch::channel(Offset::ZERO);
        let spec = GroupSpec {
            key: METADATA_GROUP,
            dir: options.log_dir.join(format!("{CLUSTER_METADATA}-0")),
            log_config: Arc::new(log_config()),
            voters: options.voters,
            bootstrap: options.bootstrap,
        };
        let observer = Arc::new(Watermark { committed });
        let group = raft
            .open_group(spec, Arc::clone(&observer) as Arc<dyn GroupObserver>)
            .await?;
        let published = Arc::new(Published::new());
        let (commands, queue) = mpsc::channel(QUEUED_COMMANDS);
        tokio::spawn(follow(
            Arc::clone(&group),
            Arc::clone(&published),
            watermark,
        ));
        tokio::spawn(carry_out(
            Arc::clone(&group),
            Arc::clone(&published),
            queue,
            options.clock,
        ));
        // A log that is opened where it was closed has no rise to tell of.
        observer.rose_to(group.offsets().high_watermark.offset());
        Ok(Arc::new(Self {
            node: options.node_id,
            group,
            published,
            commands,
        }))
    }

    /// Waits until this node leads the group and its image has all that was committed before.
    pub async fn wait_until_leading(&self) -> Result<(), MetadataError> {
        self.group.wait_until_ready().await?;
        let complete = self.group.offsets().high_watermark.offset();
        self.published.reached(complete).await?;
        Ok(())
    }

    /// Waits for an image that has everything below `offset`.
    pub async fn wait_for(&self, offset: Offset) -> Result<Arc<MetadataImage>, MetadataError> {
        self.published.reached(offset).await
    }

    /// The node that leads the metadata, as far as this one knows.
    pub fn controller(&self) -> Option<NodeId> {
        match self.group.leadership() {
            Leadership::Leader { .. } => Some(self.node),
            Leadership::Follower { leader, .. } => leader,
            Leadership::Unknown => None,
        }
    }

    /// Whether this node leads the metadata and carries out commands.
    pub fn is_leading(&self) -> bool {
        self.group.leadership().is_ready_leader()
    }

    /// The latest image.
    pub fn image(&self) -> Arc<MetadataImage> {
        self.published.image.load_full()
    }

    /// Follows the images. Intermediate ones may be skipped.
    pub fn subscribe(&self) -> watch::Receiver<Arc<MetadataImage>> {
        self.published.images.subscribe()
    }

    /// The group of the metadata log.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// On the leader: decides on the latest image, writes the records if there are any, and returns
    /// the value once they are committed and in the image. Elsewhere an error that names the leader.
    pub async fn run<T: Send + 'static>(
        &self,
        command: impl FnOnce(&MetadataImage) -> (Vec<MetadataRecord>, T) + Send + 'static,
    ) -> Result<Done<T>, MetadataError> {
        let (finished, outcome) = oneshot::channel();
        // A caller that has gone does not want to know.
        let command: Command = Box::new(move |image| match image {
            Ok(image) => {
                let (records, value) = command(image);
                let finish: Finish = Box::new(move |result| {
                    let _ = finished.send(result.map(|offset| Done { value, offset }));
                });
                Some((records, finish))
            }
            Err(error) => {
                let _ = finished.send(Err(error));
                None
            }
        });
        let carried_out = async {
            self.commands
                .send(command)
                .await
                .map_err(|_| MetadataError::Stopped)?;
            outcome.await.map_err(|_| MetadataError::Stopped)?
        };
        tokio::time::timeout(COMMAND_TIMEOUT, carried_out)
            .await
            .unwrap_or(Err(MetadataError::TimedOut))
    }
}

/// Nothing of the log may go: it is the only copy of what it says.
fn log_config() -> LogConfig {
    LogConfig {
        retention_ms: None,
        retention_bytes: None,
        delete_old_segments: false,
        write_caching: false,
        ..LogConfig::default()
    }
}

/// Makes an image of whatever is committed, until the group is closed.
async fn follow(
    group: Arc<Group>,
    published: Arc<Published>,
    mut watermark: watch::Receiver<Offset>,
) {
    loop {
        let committed = *watermark.borrow_and_update();
        if let Err(error) = catch_up(&group, &published, committed).await {
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
    published: &Published,
    committed: Offset,
) -> Result<(), FollowError> {
    let mut image = published.image.load_full();
    while image.next_offset() < committed {
        let (reader, before) = (group.reader(), Arc::clone(&image));
        // The disk is not waited for on the threads that serve clients.
        let read = tokio::task::spawn_blocking(move || {
            let mut image = MetadataImage::clone(&before);
            let slice = reader.read(image.next_offset(), READ_MAX_BYTES, committed, true)?;
            replay::apply_batches(&mut image, &slice.read()?)?;
            Ok::<_, FollowError>(image)
        });
        let next = read.await.map_err(|_| FollowError::Cancelled)??;
        if next.next_offset() == image.next_offset() {
            // The watermark is not at the end of a batch that can be read; the next one will be.
            return Ok(());
        }
        image = Arc::new(next);
        published.publish(Arc::clone(&image));
    }
    Ok(())
}

/// Carries out commands in the order in which they came, until all senders are gone.
async fn carry_out(
    group: Arc<Group>,
    published: Arc<Published>,
    mut queue: mpsc::Receiver<Command>,
    clock: Arc<dyn Clock>,
) {
    while let Some(command) = queue.recv().await {
        let image = match image_to_decide_on(&group, &published).await {
            Ok(image) => image,
            Err(error) => {
                command(Err(error));
                continue;
            }
        };
        let Some((records, finish)) = command(Ok(&image)) else {
            continue;
        };
        if records.is_empty() {
            // Another leader may have changed by now what the answer rests on.
            finish(if group.holds_lease() {
                Ok(image.next_offset())
            } else {
                Err(not_controller(&group))
            });
            continue;
        }
        let result = commit(&group, &published, &image, &records, &*clock).await;
        if let Err(error) = &result {
            tracing::warn!(%error, "metadata could not be changed");
        }
        finish(result);
    }
}

fn not_controller(group: &Group) -> MetadataError {
    let leader = match group.leadership() {
        Leadership::Follower { leader, .. } => leader,
        // It leads, and must not say so.
        Leadership::Leader { .. } | Leadership::Unknown => None,
    };
    MetadataError::NotController { leader }
}

/// The image of everything that is committed, on the leader.
async fn image_to_decide_on(
    group: &Group,
    published: &Published,
) -> Result<Arc<MetadataImage>, MetadataError> {
    if let Some(cause) = group.offline_cause() {
        return Err(ProposeError::Offline(cause).into());
    }
    if !group.leadership().is_ready_leader() {
        return Err(not_controller(group));
    }
    // A leader is ready once all that was committed in earlier terms is below its watermark.
    let complete = group.offsets().high_watermark.offset();
    published.reached(complete).await
}

async fn commit(
    group: &Group,
    published: &Published,
    image: &MetadataImage,
    records: &[MetadataRecord],
    clock: &dyn Clock,
) -> Result<Offset, MetadataError> {
    let batch = replay::encode_batch(records, clock.wall())?;
    let header = BatchHeader::parse(&batch)?;
    replay::check_batch(image, &header, &batch)?;
    let (committed, outcome) = oneshot::channel();
    let proposal = Proposal {
        batch,
        header,
        appended: None,
        committed,
    };
    // If this node has led, lost and regained the lead since the image, records of another leader
    // are in between.
    group.propose_at(proposal, image.next_offset())?;
    let outcome = outcome.await.map_err(|_| MetadataError::Stopped)??;
    let offset = outcome.last_offset.plus(1);
    published.reached(offset).await?;
    Ok(offset)
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
