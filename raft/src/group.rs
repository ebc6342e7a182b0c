//! One group: what is proposed to it, what is known about it.
//!
//! [`Shared`] is what the tasks of the group and its users have in common. The gate decides, under
//! one lock, whether a proposal is taken and in which order; everything else is atomics and a
//! watch. `log_start ≤ last_stable ≤ high_watermark`, and none of them ever falls.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use odradek_protocol::batch::BatchHeader;
use odradek_protocol::ids::{
    HighWatermark, LastStableOffset, LeaderEpoch, LogEndOffset, LogOffsets, LogStartOffset, NodeId,
    Offset, TimestampMs,
};
use odradek_storage::LogConfig;
use odradek_storage::LogReader;
use openraft::Raft;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::error::{ProposeError, RaftError};
use crate::log_core::CoreHandle;
use crate::node::blocking;
use crate::observer::{GroupObserver, Leadership};
use crate::partition_fsm::PartitionFsm;
use crate::types::{
    AppendOutcome, BatchCommand, Command, CommittedLeaderId, GroupKey, TypeConfig, Vote, epoch_of,
    node_id,
};
use crate::waiter::CommitWaiter;

/// A batch for the log.
pub struct Proposal {
    /// One Kafka v2 batch. Its base offset and leader epoch are the log's to set.
    pub batch: Bytes,
    /// The batch's header as parsed and validated by the caller.
    pub header: BatchHeader,
    /// Told once the batch is in the log and has its offset, before it is durable (`acks=1`).
    pub appended: Option<oneshot::Sender<AppendOutcome>>,
    /// Told once the batch is committed: durable on a majority (`acks=all`).
    pub committed: oneshot::Sender<Result<AppendOutcome, ProposeError>>,
}

/// Whether proposals are taken.
#[derive(Debug, Default)]
struct Gate {
    term: u64,
    /// This node leads in `term`, and the term's first entry is committed.
    open: bool,
    /// Offset that the next proposal will get, if it is appended at all.
    next_offset: Offset,
}

/// What a group's tasks and users have in common.
pub(crate) struct Shared {
    key: GroupKey,
    node: u64,
    observer: Arc<dyn GroupObserver>,
    in_flight: AtomicUsize,
    max_in_flight: usize,
    gate: Mutex<Gate>,
    leadership: watch::Sender<Leadership>,
    log_start: AtomicI64,
    last_stable: AtomicI64,
    high_watermark: AtomicI64,
    offline: OnceLock<Arc<str>>,
    closed: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        key: GroupKey,
        node: u64,
        max_in_flight: usize,
        observer: Arc<dyn GroupObserver>,
    ) -> Arc<Self> {
        Arc::new(Self {
            key,
            node,
            observer,
            in_flight: AtomicUsize::new(0),
            max_in_flight,
            gate: Mutex::default(),
            leadership: watch::Sender::new(Leadership::Unknown),
            log_start: AtomicI64::new(0),
            last_stable: AtomicI64::new(0),
            high_watermark: AtomicI64::new(0),
            offline: OnceLock::new(),
            closed: AtomicBool::new(false),
        })
    }

    pub(crate) fn key(&self) -> GroupKey {
        self.key
    }

    pub(crate) fn batch_enters(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn batch_leaves(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// What to tell those whose batch will not be committed here.
    pub(crate) fn why_dropped(&self) -> ProposeError {
        if let Some(cause) = self.offline.get() {
            ProposeError::Offline(cause.clone())
        } else if self.closed.load(Ordering::Acquire) {
            ProposeError::Closed
        } else {
            ProposeError::NotLeader {
                leader: self.leader(),
            }
        }
    }

    /// The leader as far as is known.
    pub(crate) fn leader(&self) -> Option<NodeId> {
        match *self.leadership.borrow() {
            Leadership::Unknown => None,
            Leadership::Leader { .. } => Some(node_id(self.node)),
            Leadership::Follower { leader, .. } => leader,
        }
    }

    /// A vote is about to be saved: if it ends this node's leadership, nothing more is taken.
    pub(crate) fn vote_changes(&self, vote: &Vote) {
        let mut gate = self.gate.lock();
        if !self.is_leading_vote(vote) || vote.leader_id.term != gate.term {
            gate.open = false;
        }
    }

    /// A vote has been saved: it says who leads, or that nobody does yet.
    pub(crate) fn vote_saved(&self, vote: &Vote) {
        let term = vote.leader_id.term;
        let epoch = epoch_of(term);
        let leadership = if self.is_leading_vote(vote) {
            Leadership::Leader {
                epoch,
                ready: false,
            }
        } else {
            Leadership::Follower {
                leader: vote.committed.then(|| node_id(vote.leader_id.voted_for)),
                epoch,
            }
        };
        let mut gate = self.gate.lock();
        gate.term = term;
        gate.open = false;
        self.announce(leadership);
    }

    fn is_leading_vote(&self, vote: &Vote) -> bool {
        vote.committed && vote.leader_id.voted_for == self.node
    }

    /// The blank entry of `term` is committed and applied; the log ends at `log_end`, for no
    /// batch of that term can have been taken yet.
    pub(crate) fn term_is_ready(&self, term: u64, log_end: Offset) {
        let mut gate = self.gate.lock();
        let leads = matches!(
            *self.leadership.borrow(),
            Leadership::Leader { ready: false, .. }
        );
        if leads && gate.term == term {
            gate.open = true;
            gate.next_offset = log_end;
            self.announce(Leadership::Leader {
                epoch: epoch_of(term),
                ready: true,
            });
        }
    }

    /// Called under the gate's lock, which keeps the observer's calls in order.
    fn announce(&self, leadership: Leadership) {
        let changed = self.leadership.send_if_modified(|current| {
            let changed = *current != leadership;
            *current = leadership;
            changed
        });
        if changed {
            self.observer.on_leadership(leadership);
        }
    }

    /// Raises what readers may see, before anybody is told that a batch is committed.
    pub(crate) fn raise_high_watermark(
        &self,
        offset: Offset,
        first_unstable: Option<Offset>,
    ) -> bool {
        let rose = self
            .high_watermark
            .fetch_max(offset.get(), Ordering::AcqRel)
            < offset.get();
        let stable = first_unstable.map_or(offset, |first| first.min(offset));
        self.last_stable.fetch_max(stable.get(), Ordering::AcqRel);
        rose
    }

    /// Moves the first readable offset forward.
    pub(crate) fn raise_log_start(&self, offset: Offset) -> bool {
        let rose = self.log_start.fetch_max(offset.get(), Ordering::AcqRel) < offset.get();
        if rose {
            // Nothing below the log start is undecided or unread any more.
            self.high_watermark
                .fetch_max(offset.get(), Ordering::AcqRel);
            self.last_stable.fetch_max(offset.get(), Ordering::AcqRel);
        }
        rose
    }

    pub(crate) fn observe_high_watermark(&self, log_end: Offset) {
        self.observer.on_high_watermark(self.offsets(log_end));
    }

    pub(crate) fn observe_log_start(&self) {
        self.observer.on_log_start(self.log_start());
    }

    pub(crate) fn log_start(&self) -> Offset {
        Offset::new(self.log_start.load(Ordering::Acquire))
    }

    pub(crate) fn high_watermark(&self) -> Offset {
        Offset::new(self.high_watermark.load(Ordering::Acquire))
    }

    /// Consistent in that the start is read first and the end last, and all of them only rise.
    pub(crate) fn offsets(&self, log_end: Offset) -> LogOffsets {
        let log_start = self.log_start();
        let last_stable = Offset::new(self.last_stable.load(Ordering::Acquire));
        let high_watermark = self.high_watermark();
        LogOffsets {
            log_start: LogStartOffset::new(log_start),
            last_stable: LastStableOffset::new(last_stable.min(high_watermark)),
            high_watermark: HighWatermark::new(high_watermark),
            log_end: LogEndOffset::new(log_end.max(high_watermark)),
        }
    }

    /// The disk failed: nothing is taken, nothing that waits is acknowledged. The first cause is
    /// kept. Returns whether this was the first.
    pub(crate) fn go_offline(&self, cause: &str) -> bool {
        let cause: Arc<str> = cause.into();
        self.gate.lock().open = false;
        let first = self.offline.set(cause.clone()).is_ok();
        if first {
            tracing::error!(group = %self.key, %cause, "group goes offline");
            self.observer.on_offline(cause);
        }
        first
    }

    pub(crate) fn offline_cause(&self) -> Option<Arc<str>> {
        self.offline.get().cloned()
    }

    pub(crate) fn close(&self) {
        self.gate.lock().open = false;
        self.closed.store(true, Ordering::Release);
    }
}

/// One replicated log on this node.
pub struct Group {
    shared: Arc<Shared>,
    raft: Raft<TypeConfig, PartitionFsm>,
    core: CoreHandle,
    dir: PathBuf,
}

impl Group {
    pub(crate) fn new(
        shared: Arc<Shared>,
        raft: Raft<TypeConfig, PartitionFsm>,
        core: CoreHandle,
        dir: PathBuf,
    ) -> Self {
        Self {
            shared,
            raft,
            core,
            dir,
        }
    }

    /// Which group this is.
    pub fn key(&self) -> GroupKey {
        self.shared.key
    }

    /// Directory of the partition.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Hands a batch to the leader's log. Returns at once, with the offset that the batch gets if
    /// it is appended at all: it is, unless this node loses its leadership or its disk first.
    /// Batches are appended in the order of the calls. When the call is refused, `committed` of
    /// the proposal is told so as well.
    pub fn propose(&self, proposal: Proposal) -> Result<Offset, ProposeError> {
        let Proposal {
            batch,
            header,
            appended,
            committed,
        } = proposal;
        // Nothing that the log would refuse may become an entry: it could not be taken back.
        let sound = header.last_offset_delta >= 0 && header.size_in_bytes() == batch.len();
        let records = i64::from(header.last_offset_delta) + 1;
        let waiter = CommitWaiter::new(self.shared.clone(), appended, committed);
        let command = Command::Batch(Box::new(BatchCommand {
            bytes: batch,
            header,
            stamped: false,
            waiter: Some(waiter),
        }));

        if !sound {
            return Err(ProposeError::Malformed);
        }
        let mut gate = self.shared.gate.lock();
        if !gate.open {
            return Err(self.refusal());
        }
        let in_flight = self.shared.in_flight.load(Ordering::Relaxed);
        if in_flight > self.shared.max_in_flight {
            return Err(ProposeError::QueueFull { in_flight });
        }
        // openraft's queue takes the entry at the first poll unless it is full, and it has room
        // for more than may be in flight. Tokio's cooperative budget must not make it seem full.
        let write = self.raft.write(command).with_leader(leader_of(gate.term));
        match tokio::task::unconstrained(write.into_future()).now_or_never() {
            Some(Ok(())) => {
                let base_offset = gate.next_offset;
                gate.next_offset = base_offset.plus(records);
                Ok(base_offset)
            }
            Some(Err(_)) => {
                gate.open = false;
                Err(self.shared.why_dropped())
            }
            None => Err(ProposeError::QueueFull { in_flight }),
        }
    }

    fn refusal(&self) -> ProposeError {
        match *self.shared.leadership.borrow() {
            Leadership::Leader { ready: false, .. }
                if self.shared.offline.get().is_none()
                    && !self.shared.closed.load(Ordering::Acquire) =>
            {
                return ProposeError::NotReady;
            }
            _ => {}
        }
        self.shared.why_dropped()
    }

    /// Batches proposed and not yet committed or given up.
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.load(Ordering::Relaxed)
    }

    /// Who leads.
    pub fn leadership(&self) -> Leadership {
        *self.shared.leadership.borrow()
    }

    /// Follows who leads. Intermediate states may be skipped.
    pub fn subscribe_leadership(&self) -> watch::Receiver<Leadership> {
        self.shared.leadership.subscribe()
    }

    /// Waits until this node leads and takes writes, or the group has stopped.
    pub async fn wait_until_ready(&self) -> Result<LeaderEpoch, RaftError> {
        let mut leadership = self.subscribe_leadership();
        loop {
            if let Some(cause) = self.shared.offline_cause() {
                return Err(RaftError::Stopped(cause));
            }
            if let Leadership::Leader { epoch, ready: true } = *leadership.borrow_and_update() {
                return Ok(epoch);
            }
            if leadership.changed().await.is_err() {
                return Err(RaftError::Stopped("closed".into()));
            }
        }
    }

    /// The four significant offsets.
    pub fn offsets(&self) -> LogOffsets {
        self.shared.offsets(self.core.reader.log_end())
    }

    /// Why the group takes no writes any more, if its disk failed.
    pub fn offline_cause(&self) -> Option<Arc<str>> {
        self.shared.offline_cause()
    }

    /// Reads the log. Its bounds are those of the files; [`Group::offsets`] says what a client
    /// may see.
    pub fn reader(&self) -> LogReader {
        self.core.reader.clone()
    }

    /// Settings of the log.
    pub fn log_config(&self) -> Arc<LogConfig> {
        self.core.with_log(|log| log.config().clone())
    }

    /// Changes the settings of the log, for what is appended from now on.
    pub fn set_log_config(&self, config: Arc<LogConfig>) {
        self.core.with_log(|log| log.set_config(config));
    }

    /// Bytes of the segments.
    pub fn log_size_bytes(&self) -> u64 {
        self.core.reader.size_bytes()
    }

    /// Has every replica forget the records below `offset` (DeleteRecords, retention). Returns the
    /// log start once that is committed and in force here. An offset that is not above the
    /// current log start changes nothing.
    pub async fn advance_log_start(&self, offset: Offset) -> Result<Offset, RaftError> {
        let current = self.shared.log_start();
        let high_watermark = self.shared.high_watermark();
        if !self.leadership().is_ready_leader() {
            return Err(self.not_leading());
        }
        if offset > high_watermark || offset < Offset::ZERO {
            return Err(RaftError::LogStartOutOfRange {
                requested: offset,
                current,
                high_watermark,
            });
        }
        if offset > current {
            self.raft
                .client_write(Command::LogStart(offset))
                .await
                .map_err(|_| self.not_leading())?;
        }
        Ok(self.shared.log_start())
    }

    fn not_leading(&self) -> RaftError {
        match self.shared.why_dropped() {
            ProposeError::Offline(cause) => RaftError::Stopped(cause),
            ProposeError::Closed => RaftError::Stopped("closed".into()),
            _ => RaftError::NotLeader {
                leader: self.shared.leader(),
            },
        }
    }

    /// On the leader: moves the log start to where `retention.ms` and `retention.bytes` say.
    /// Returns the new log start if there was anything to do. On any replica: unlinks files that
    /// were deleted long enough ago.
    pub async fn run_retention(&self, now: TimestampMs) -> Result<Option<Offset>, RaftError> {
        let high_watermark = self.shared.high_watermark();
        let point = self.core.with_log(|log| {
            log.purge_deleted(now)?;
            log.retention_point(now, high_watermark)
        })?;
        match point {
            Some(offset)
                if self.leadership().is_ready_leader() && offset > self.shared.log_start() =>
            {
                self.advance_log_start(offset).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Makes the indexes durable too and moves the log's recovery point up, so that a start after a
    /// crash has little to read.
    pub async fn checkpoint(&self) -> Result<(), RaftError> {
        let Some((checkpoint, target)) = self.core.with_log(|log| log.begin_checkpoint()) else {
            return Ok(());
        };
        self.core
            .flush(target)
            .await
            .map_err(|error| RaftError::io("sync the indexes", error))?;
        let core = self.core.clone();
        blocking(move || Ok(core.with_log(|log| log.finish_checkpoint(checkpoint))?)).await
    }

    /// Closes the descriptors of files that were not used since the last call.
    pub fn release_idle_files(&self) {
        self.core.with_log(|log| log.release_idle_files());
    }

    /// Has openraft drop the entries before the segment that the log start is in.
    pub(crate) async fn drop_old_entries(&self) {
        self.core.purge_request_taken();
        if self.core.roll_for_log_start().is_err() {
            return;
        }
        if self.core.snapshot_point().is_some() {
            // Fails only when the group has stopped; the next start takes it up again.
            let _ = self.raft.trigger().snapshot().await;
        }
    }

    /// openraft's side of the group, for the network.
    pub(crate) fn raft(&self) -> &Raft<TypeConfig, PartitionFsm> {
        &self.raft
    }

    /// Stops the group. With `clean`, its log is made durable so that the next start need not
    /// look for what is missing.
    pub(crate) async fn stop(&self, clean: bool) -> Result<(), RaftError> {
        self.shared.close();
        // An error means that a task of the group has panicked, and has said so.
        let _ = self.raft.shutdown().await;
        self.core.give_up_waiting();
        if !clean {
            return Ok(());
        }
        if let Some(cause) = self.shared.offline_cause() {
            return Err(RaftError::Stopped(cause));
        }
        let core = self.core.clone();
        blocking(move || core.close()).await
    }

    /// Stops the group and takes its directory out of the way.
    pub(crate) async fn delete(&self) -> Result<PathBuf, RaftError> {
        self.stop(false).await?;
        self.core
            .votes
            .delete(self.shared.key)
            .await
            .map_err(|error| RaftError::io("forget a vote", error))?;
        let core = self.core.clone();
        blocking(move || core.mark_deleted()).await
    }
}

fn leader_of(term: u64) -> CommittedLeaderId {
    CommittedLeaderId::new(term)
}
