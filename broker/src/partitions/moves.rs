//! Moving partitions from one log directory of this broker to another (KIP-113).
//!
//! One after the other. A log is copied while its partition is served, into a directory whose name ends with
//! `-future`; then the partition is closed, what is missing is copied, the copy takes the log's place, and the
//! partition is opened there ([`odradek_raft::RaftNode::move_group`]). A leader with other replicas hands over
//! before it is closed. A move that fails before the copy counts leaves everything as it was; one that a stop has
//! cut short begins again.
//!
//! What is asked for a partition that is not here yet is remembered until it is, or until this process ends.
//!
//! Absent on purpose: a bound on the rate (`replica.alter.log.dirs.io.max.bytes.per.second`).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{Offset, PartitionIndex, TopicId};
use odradek_raft::MoveError;
use odradek_storage::Relocation;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::index::{LookupError, Slot};
use super::log_dir::LogDirectory;
use super::{PartitionManager, directory, reconcile};
use crate::fetch_sessions::TopicRef;
use crate::leading::give_away;
use crate::partition::{Gone, Partition};

/// Bytes that are copied before a move looks whether it is still wanted.
const STEP_BYTES: u64 = 8 << 20;
/// A copy that lags by less has caught up.
const LAG_BYTES: u64 = 1 << 20;
/// How often a copy is brought up to date and made durable before the partition is closed for the rest.
const ROUNDS_MAX: u32 = 10;
/// Pause before a move whose copy has become void begins again.
const AGAIN: Duration = Duration::from_secs(1);
/// Wishes for partitions that are not here; more are not remembered.
const WISHES_MAX: usize = 10_000;

/// Why a partition is not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AlterLogDirError {
    /// The name of its directory would be too long.
    #[error("the topic name is too long")]
    NameTooLong,
    /// It is none of `log.dirs`.
    #[error("no such log directory")]
    UnknownDirectory,
    /// The directory has failed, or the one that the partition is in, or any other: the partition might be there.
    #[error("a log directory is offline")]
    Offline,
    /// It will be made there, if it ever is.
    #[error("the partition is not on this broker yet")]
    NotHere,
    /// The metadata knows no such partition. It will be made there, if it ever is.
    #[error("no such topic or partition")]
    UnknownPartition,
}

impl AlterLogDirError {
    /// The code that a client gets for this cause.
    pub fn error_code(self) -> ErrorCode {
        match self {
            Self::NameTooLong => ErrorCode::InvalidTopicException,
            Self::UnknownDirectory => ErrorCode::LogDirNotFound,
            Self::Offline => ErrorCode::KafkaStorageError,
            Self::NotHere => ErrorCode::ReplicaNotAvailable,
            Self::UnknownPartition => ErrorCode::UnknownTopicOrPartition,
        }
    }
}

/// A partition that is on its way.
#[derive(Debug)]
pub struct Moving {
    target: Arc<LogDirectory>,
    cancelled: AtomicBool,
    copied_bytes: AtomicU64,
    copied_end: AtomicI64,
}

impl Moving {
    fn to(target: &Arc<LogDirectory>) -> Arc<Self> {
        Arc::new(Self {
            target: Arc::clone(target),
            cancelled: AtomicBool::new(false),
            copied_bytes: AtomicU64::new(0),
            copied_end: AtomicI64::new(0),
        })
    }

    /// Where it goes.
    pub fn target(&self) -> &Arc<LogDirectory> {
        &self.target
    }

    /// Bytes that are there.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Ordering::Relaxed)
    }

    /// Everything below is there.
    pub fn copied_end(&self) -> Offset {
        Offset::new(self.copied_end.load(Ordering::Relaxed))
    }

    fn note(&self, relocation: &Relocation) {
        let bytes = relocation.copied_bytes();
        self.copied_bytes.store(bytes, Ordering::Relaxed);
        let end = relocation.copied_end().get();
        self.copied_end.store(end, Ordering::Relaxed);
    }
}

type PartitionId = (TopicId, PartitionIndex);

/// The moves of this broker, and the wishes for what is not here.
#[derive(Debug, Default)]
pub(super) struct Moves {
    going: Mutex<HashMap<PartitionId, Arc<Moving>>>,
    wishes: Mutex<HashMap<(String, PartitionIndex), Arc<LogDirectory>>>,
    wake: Notify,
}

impl Moves {
    /// Begins a move; one of the same partition to another directory ends.
    pub(super) fn begin(&self, id: PartitionId, target: &Arc<LogDirectory>) {
        let mut going = self.going.lock();
        if let Some(before) = going.get(&id) {
            if Arc::ptr_eq(&before.target, target) {
                return;
            }
            before.cancelled.store(true, Ordering::Relaxed);
        }
        going.insert(id, Moving::to(target));
        drop(going);
        self.wake.notify_one();
    }

    fn cancel(&self, id: PartitionId) {
        if let Some(before) = self.going.lock().remove(&id) {
            before.cancelled.store(true, Ordering::Relaxed);
        }
    }

    fn end(&self, id: PartitionId, moving: &Arc<Moving>) {
        let mut going = self.going.lock();
        if going.get(&id).is_some_and(|now| Arc::ptr_eq(now, moving)) {
            going.remove(&id);
        }
    }

    fn any(&self) -> Option<(PartitionId, Arc<Moving>)> {
        let going = self.going.lock();
        going
            .iter()
            .next()
            .map(|(id, moving)| (*id, Arc::clone(moving)))
    }

    pub(super) fn get(&self, id: PartitionId) -> Option<Arc<Moving>> {
        self.going.lock().get(&id).map(Arc::clone)
    }

    fn wish(&self, topic: &str, index: PartitionIndex, target: &Arc<LogDirectory>) {
        let mut wishes = self.wishes.lock();
        let key = (topic.to_owned(), index);
        if wishes.len() < WISHES_MAX || wishes.contains_key(&key) {
            wishes.insert(key, Arc::clone(target));
        } else {
            tracing::warn!(
                topic,
                partition = index.get(),
                "too many wishes for log directories"
            );
        }
    }

    /// Where a partition that is about to be made is to be.
    pub(super) fn take_wish(
        &self,
        topic: &str,
        index: PartitionIndex,
    ) -> Option<Arc<LogDirectory>> {
        let mut wishes = self.wishes.lock();
        match wishes.is_empty() {
            true => None,
            false => wishes.remove(&(topic.to_owned(), index)),
        }
    }
}

/// What has come of a move that was begun.
enum Ended {
    Done,
    /// Nobody wants it any more, or the partition is gone.
    Unwanted,
    Again,
    Failed(anyhow::Error),
}

impl PartitionManager {
    /// Has a partition's log be in the directory `path`: moves it there if it is elsewhere, remembers it if it is
    /// not here.
    pub fn alter_log_dir(
        &self,
        topic: &str,
        index: PartitionIndex,
        path: &Path,
    ) -> Result<(), AlterLogDirError> {
        if directory::future_name(topic, index, 0).len() > directory::NAME_MAX_BYTES {
            return Err(AlterLogDirError::NameTooLong);
        }
        let mut directories = self.directories().iter();
        let target = directories
            .find(|directory| directory.absolute_path() == path)
            .ok_or(AlterLogDirError::UnknownDirectory)?;
        if target.health().is_offline() {
            return Err(AlterLogDirError::Offline);
        }
        let found = self.lookup(&TopicRef::Name(topic.into()), index);
        let refusal = match found {
            Ok(partition) => return self.begin_move(&partition, target),
            Err(LookupError::Unopenable) => return Err(AlterLogDirError::Offline),
            Err(LookupError::NotHere) => AlterLogDirError::NotHere,
            Err(LookupError::UnknownTopicOrPartition | LookupError::UnknownTopicId) => {
                AlterLogDirError::UnknownPartition
            }
        };
        self.moves.wish(topic, index, target);
        Err(refusal)
    }

    fn begin_move(
        &self,
        partition: &Arc<Partition>,
        target: &Arc<LogDirectory>,
    ) -> Result<(), AlterLogDirError> {
        let id = (partition.topic_id(), partition.index());
        if Arc::ptr_eq(partition.directory(), target) {
            self.moves.cancel(id);
            return Ok(());
        }
        let mut directories = self.directories().iter();
        if directories.any(|directory| directory.health().is_offline()) {
            return Err(AlterLogDirError::Offline);
        }
        self.moves.begin(id, target);
        Ok(())
    }

    /// The move that a partition is on, if it is.
    pub fn moving(&self, partition: &Partition) -> Option<Arc<Moving>> {
        self.moves.get((partition.topic_id(), partition.index()))
    }

    /// Moves partitions until the process ends.
    pub(super) async fn keep_moving(&self) {
        // What was cut short is known before the partitions are open.
        self.wait_until_reconciled(Offset::new(1)).await;
        loop {
            let woken = self.moves.wake.notified();
            let Some((id, moving)) = self.moves.any() else {
                woken.await;
                continue;
            };
            let Some(partition) = self.get(id.0, id.1) else {
                self.moves.end(id, &moving);
                continue;
            };
            let (from, to) = (partition.directory().path(), moving.target.path());
            match self.move_partition(&partition, &moving).await {
                Ended::Done => {
                    tracing::info!(?partition, from = %from.display(), to = %to.display(), "moved");
                }
                Ended::Unwanted => {}
                Ended::Again => {
                    tracing::info!(
                        ?partition,
                        "the log was changed while it was copied: once more"
                    );
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
                Ended::Failed(error) => tracing::error!(
                    ?partition,
                    from = %from.display(),
                    to = %to.display(),
                    error = format!("{error:#}"),
                    "a partition is not moved"
                ),
            }
            self.moves.end(id, &moving);
        }
    }

    fn is_unwanted(&self, partition: &Arc<Partition>, moving: &Moving) -> bool {
        let current = self.get(partition.topic_id(), partition.index());
        moving.cancelled.load(Ordering::Relaxed)
            || current.is_none_or(|current| !Arc::ptr_eq(&current, partition))
    }

    async fn move_partition(&self, partition: &Arc<Partition>, moving: &Arc<Moving>) -> Ended {
        if Arc::ptr_eq(partition.directory(), &moving.target) {
            return Ended::Unwanted;
        }
        let unique = u128::from_be_bytes(rand::random());
        let name = directory::future_name(partition.topic(), partition.index(), unique);
        let future = moving.target.path().join(name);
        let ended = match self.copy(partition, moving, &future).await {
            Ok(Some(relocation)) => self.swap(partition, moving, relocation).await,
            Ok(None) => Ended::Unwanted,
            Err(error) => Ended::Failed(error),
        };
        // Nothing is there once it has got the partition's name.
        self.remove_in_background(future);
        ended
    }

    /// Copies the log until the copy has caught up, about; `None` if nobody wants it any more.
    async fn copy(
        &self,
        partition: &Arc<Partition>,
        moving: &Arc<Moving>,
        future: &Path,
    ) -> anyhow::Result<Option<Relocation>> {
        let (disk, group) = (
            Arc::clone(&self.options.disk),
            Arc::clone(partition.group()),
        );
        let (dir, topic_id) = (future.to_path_buf(), partition.topic_id());
        let mut relocation = tokio::task::spawn_blocking(move || {
            let relocation = group.begin_move(&dir)?;
            // Whose it is, should it be found at the next start.
            directory::create(&*disk, &dir, topic_id)?;
            Ok::<_, anyhow::Error>(relocation)
        })
        .await??;
        let mut rounds = 0;
        loop {
            if self.is_unwanted(partition, moving) {
                return Ok(None);
            }
            let missing = partition.size_bytes().saturating_sub(moving.copied_bytes());
            let spare = moving.target.health().spare_bytes();
            anyhow::ensure!(
                u64::try_from(spare).is_ok_and(|spare| missing <= spare),
                "{missing} bytes are missing, and the disk has room for {spare} above its reserve"
            );
            let copied;
            (relocation, copied) = tokio::task::spawn_blocking(move || {
                let copied = relocation.copy_some(STEP_BYTES)?;
                if copied < LAG_BYTES {
                    relocation.sync()?;
                }
                Ok::<_, anyhow::Error>((relocation, copied))
            })
            .await??;
            moving.note(&relocation);
            if copied < LAG_BYTES {
                rounds += 1;
                if copied == 0 || rounds >= ROUNDS_MAX {
                    return Ok(Some(relocation));
                }
            }
        }
    }

    /// Closes the partition, has the copy take its log's place, and opens it there.
    async fn swap(
        &self,
        partition: &Arc<Partition>,
        moving: &Moving,
        relocation: Relocation,
    ) -> Ended {
        give_away(partition, &self.image(), self.options.node_id).await;
        // Nothing else opens or closes partitions meanwhile.
        let mut inventory = self.inventory.lock().await;
        let Some(inventory) = inventory.as_mut() else {
            return Ended::Unwanted;
        };
        let (topic_id, index) = (partition.topic_id(), partition.index());
        let image = self.image();
        let wanted = reconcile::wanted_of(&image, topic_id, index, self.options.node_id);
        let Some(wanted) = wanted.filter(|_| !self.is_unwanted(partition, moving)) else {
            return Ended::Unwanted;
        };
        if let Some(cause) = partition.directory().health().failure() {
            // What can still be read there is read on.
            return Ended::Failed(anyhow::anyhow!("its log directory has failed: {cause}"));
        }
        let name = directory::name_of(partition.topic(), index);
        let goal = moving.target.path().join(&name);
        if goal.exists() {
            return Ended::Failed(anyhow::anyhow!("{} is there already", goal.display()));
        }
        self.update_index(|index_now| {
            index_now.take(topic_id, index);
        });
        partition.mark_gone(Gone::Moved);
        partition.directory().partition_removed();
        let key = partition.group().key();
        let moved = self.options.raft.move_group(key, relocation, goal.clone());
        let (place, ended) = match moved.await {
            Ok(retired) => {
                if let Some(retired) = retired {
                    self.remove_in_background(retired);
                }
                (goal, Ended::Done)
            }
            Err(MoveError::Void) => (partition.group().dir().to_path_buf(), Ended::Again),
            Err(MoveError::Stayed(error)) => {
                let place = partition.group().dir().to_path_buf();
                (place, Ended::Failed(error.into()))
            }
            Err(MoveError::Unknown(error)) => {
                self.update_index(|index_now| {
                    let topic = partition.topic();
                    index_now.insert(topic_id, topic, index, Slot::Unopenable);
                });
                return Ended::Failed(error.into());
            }
        };
        inventory.insert((topic_id, index), place);
        self.open_all(vec![wanted], inventory, &image, false).await;
        // It may have been led before it could be found.
        self.leadership_changes.note(key);
        self.reopened.send_modify(|times| *times += 1);
        ended
    }

    fn remove_in_background(&self, path: PathBuf) {
        let disk = Arc::clone(&self.options.disk);
        tokio::task::spawn_blocking(move || match disk.remove_dir_all(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "what is left of a move cannot be removed");
            }
            _ => {}
        });
    }
}
