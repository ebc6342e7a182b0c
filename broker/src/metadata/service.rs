//! The metadata log at work: one Raft group, the image of what has been committed to it, and the
//! queue of commands that change it.
//!
//! One task follows the log, on every node: it reads what has been committed and makes the next
//! image. Another carries out commands, one after the other, on the group's leader alone: it decides
//! on the image of everything before, writes the records as one batch, and answers once they are
//! committed and in the image. A command therefore sees all earlier ones, those of earlier leaders
//! too, and an answer is never taken back.
//!
//! A batch is written only where the image that it was made of ends. From time to time the image is written
//! down (`checkpoint`), and the log below goes; a start reads the newest checkpoint and replays what follows.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use odradek_protocol::batch::{BatchError, BatchHeader};
use odradek_protocol::codec::EncodeError;
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{LeaderEpoch, NodeId, Offset, PartitionIndex, TopicId};
use odradek_raft::{
    Group, GroupKey, GroupObserver, GroupSpec, Leadership, Proposal, ProposeError, RaftError,
    RaftNode,
};
use odradek_storage::disk::Disk;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::checkpoint::fetch::{CheckpointSource, Fetcher};
use super::checkpoint::keeper::{CheckpointRules, Keeper};
use super::checkpoint::store::Store;
use super::following::{FollowError, Observer, Published, follow, log_config};
use super::image::MetadataImage;
use super::records::MetadataRecord;
use super::replay::{self, ReplayError};
use super::topic_name::CLUSTER_METADATA;
use crate::clock::Clock;
use crate::partitions::log_dir::{LogDirectory, Room};

/// Kafka's fixed id of the metadata log's topic: `AAAAAAAAAAAAAAAAAAAAAQ`.
pub const METADATA_TOPIC_ID: TopicId =
    TopicId::from_bytes([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

/// The group of the metadata log.
pub const METADATA_GROUP: GroupKey = GroupKey::new(METADATA_TOPIC_ID, PartitionIndex::new(0));

/// Commands that wait for their turn before callers do.
const QUEUED_COMMANDS: usize = 256;
/// How long a command may take. Without a majority it would wait for ever.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// What the files of an empty partition take at most.
const NEW_PARTITION_BYTES: usize = 64 * 1024;

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
    /// The disk that `log_dir` is on.
    pub disk: Arc<dyn Disk>,
    /// When a checkpoint is due.
    pub checkpoints: CheckpointRules,
    /// The way to the checkpoints of other nodes.
    pub source: Arc<dyn CheckpointSource>,
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
    /// The checkpoints of the metadata cannot be read.
    #[error("the checkpoints of the metadata: {0}")]
    Checkpoints(#[from] std::io::Error),
    /// What has been committed cannot be read back; the service has stopped.
    #[error("the metadata log cannot be followed: {0}")]
    Unreadable(Arc<str>),
    /// Another node leads the metadata, or none does.
    #[error("this node does not lead the cluster's metadata; the leader is {}", name(*leader))]
    NotController {
        /// Who does, as far as this node knows.
        leader: Option<NodeId>,
    },
    /// The disk of the node that leads the metadata is nearly full.
    #[error("the log directory is below its reserve of free space")]
    DiskReserve,
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
            Self::DiskReserve => ErrorCode::KafkaStorageError,
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
            Self::Encode(_) | Self::Batch(_) | Self::Unreadable(_) | Self::Checkpoints(_) => {
                ErrorCode::UnknownServerError
            }
        }
    }
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

/// The cluster's metadata. See the module.
pub struct MetadataService {
    node: NodeId,
    group: Arc<Group>,
    published: Arc<Published>,
    store: Arc<Store>,
    commands: mpsc::Sender<Command>,
    /// Where its log is, once that is watched for free space.
    directory: OnceLock<Arc<LogDirectory>>,
    _tasks: Tasks,
}

/// What a service does by itself, for as long as it is there.
struct Tasks(Vec<JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
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
        let dir = options.log_dir.join(format!("{CLUSTER_METADATA}-0"));
        let store = Store::new(options.disk, dir.clone());
        let published = Arc::new(Published::new());
        let (committed, watermark) = watch::channel(Offset::ZERO);
        let spec = GroupSpec {
            key: METADATA_GROUP,
            dir,
            log_config: Arc::new(log_config(&options.checkpoints)),
            voters: options.voters,
            bootstrap: options.bootstrap,
            succession: None,
        };
        let observer = Arc::new(Observer {
            committed,
            published: Arc::clone(&published),
            fetcher: Fetcher::new(Arc::clone(&store), options.source),
            clock: Arc::clone(&options.clock),
        });
        let group = raft
            .open_group(spec, Arc::clone(&observer) as Arc<dyn GroupObserver>)
            .await?;
        if let Some(image) = store.open().await? {
            published.publish(Arc::new(image));
        }
        let newest = published.image().next_offset();
        let log_start = group.offsets().log_start.offset();
        if newest < log_start {
            let gap = FollowError::Gap { newest, log_start };
            return Err(MetadataError::Unreadable(gap.to_string().into()));
        }
        let (commands, queue) = mpsc::channel(QUEUED_COMMANDS);
        let following = follow(
            Arc::clone(&group),
            Arc::clone(&store),
            Arc::clone(&published),
            watermark,
        );
        let keeper = Keeper {
            store: Arc::clone(&store),
            group: Arc::clone(&group),
            published: Arc::clone(&published),
            rules: options.checkpoints,
            clock: Arc::clone(&options.clock),
        };
        let carrying_out = carry_out(
            Arc::clone(&group),
            Arc::clone(&published),
            queue,
            options.clock,
        );
        let tasks = Tasks(vec![
            tokio::spawn(following),
            tokio::spawn(keeper.run(newest)),
            tokio::spawn(carrying_out),
        ]);
        // A log that is opened where it was closed has no rise to tell of.
        observer.rose_to(group.offsets().high_watermark.offset());
        Ok(Arc::new(Self {
            node: options.node_id,
            group,
            published,
            store,
            commands,
            directory: OnceLock::new(),
            _tasks: tasks,
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
        self.published.image()
    }

    /// Follows the images. Intermediate ones may be skipped.
    pub fn subscribe(&self) -> watch::Receiver<Arc<MetadataImage>> {
        self.published.subscribe()
    }

    /// The checkpoints of the metadata on this node.
    pub fn checkpoints(&self) -> &Arc<Store> {
        &self.store
    }

    /// The group of the metadata log.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// The log is on `directory`, whose reserve is kept from clients from now on.
    pub fn keep_free_on(&self, directory: Arc<LogDirectory>) {
        let _ = self.directory.set(directory);
    }

    /// [`Self::run`] for a client that has the metadata grow: nothing is written where there is less room than
    /// `needed`, and no partition is made here that there is no room for.
    pub async fn run_where<T: Send + 'static>(
        &self,
        needed: Room,
        command: impl FnOnce(&MetadataImage) -> (Vec<MetadataRecord>, T) + Send + 'static,
    ) -> Result<Done<T>, MetadataError> {
        let (node, directory) = (self.node, self.directory.get().cloned());
        let done = self.run(move |image| {
            let (records, value) = command(image);
            let is_made_here = |record: &&MetadataRecord| {
                matches!(record, MetadataRecord::Partition(made) if made.replicas.contains(&node))
            };
            let made = records.iter().filter(is_made_here).count();
            let bytes = made.saturating_mul(NEW_PARTITION_BYTES);
            let has_room = records.is_empty()
                || directory.is_none_or(|directory| directory.take_room_where(needed, bytes));
            match has_room {
                true => (records, Some(value)),
                false => (Vec::new(), None),
            }
        });
        let Done { value, offset } = done.await?;
        match value {
            Some(value) => Ok(Done { value, offset }),
            None => Err(MetadataError::DiskReserve),
        }
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

/// Carries out commands in the order in which they came, until all senders are gone.
async fn carry_out(
    group: Arc<Group>,
    published: Arc<Published>,
    mut queue: mpsc::Receiver<Command>,
    clock: Arc<dyn Clock>,
) {
    while let Some(command) = queue.recv().await {
        let (epoch, image) = match image_to_decide_on(&group, &published).await {
            Ok(found) => found,
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
            finish(if group.holds_lease_in(epoch) {
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

/// The image of everything that is committed, on the leader, and its epoch.
async fn image_to_decide_on(
    group: &Group,
    published: &Published,
) -> Result<(LeaderEpoch, Arc<MetadataImage>), MetadataError> {
    if let Some(cause) = group.offline_cause() {
        return Err(ProposeError::Offline(cause).into());
    }
    let Leadership::Leader { epoch, ready: true } = group.leadership() else {
        return Err(not_controller(group));
    };
    // A leader is ready once all that was committed in earlier terms is below its watermark.
    let complete = group.offsets().high_watermark.offset();
    Ok((epoch, published.reached(complete).await?))
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
