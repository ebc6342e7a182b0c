//! One group: what is proposed to it, what is known about it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use odradek_protocol::batch::BatchHeader;
use odradek_protocol::ids::{LeaderEpoch, LogOffsets, NodeId, Offset, TimestampMs};
use odradek_storage::LogConfig;
use odradek_storage::LogReader;
use openraft::Raft;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, oneshot, watch};

use crate::emptied::{Emptied, Part};
use crate::error::{ProposeError, RaftError};
use crate::liveness::Liveness;
use crate::log_core::CoreHandle;
use crate::membership::CatchUp;
use crate::network::{Network, NetworkError};
use crate::node::blocking;
use crate::observer::Leadership;
use crate::partition_fsm::PartitionFsm;
use crate::rpc::{AppendRequest, SnapshotOffer, SnapshotReply};
use crate::shared::Shared;
use crate::transfer::{Records, Transfers};
use crate::types::{
    AppendOutcome, BatchCommand, Command, CommittedLeaderId, GroupKey, LogId, Stamp, TypeConfig,
    Vote, node_id,
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

/// One replicated log on this node.
pub struct Group {
    pub(crate) shared: Arc<Shared>,
    raft: Raft<TypeConfig, PartitionFsm>,
    pub(crate) core: CoreHandle,
    pub(crate) network: Arc<dyn Network>,
    pub(crate) node: NodeId,
    dir: PathBuf,
    pub(crate) liveness: Option<Arc<Liveness>>,
    /// In which order the voters stand for election.
    pub(crate) preference: Mutex<Vec<NodeId>>,
    /// What is known of the replicas while this node leads.
    pub(crate) catch_up: Mutex<CatchUp>,
    /// What part this replica takes.
    pub(crate) emptied: Emptied,
    /// All transfers of the node.
    pub(crate) transfers: Arc<Transfers>,
    /// Held while records are received, and while what was received is adopted.
    pub(crate) receiving: Arc<AsyncMutex<()>>,
}

/// What a group is made of.
pub(crate) struct GroupParts {
    pub(crate) shared: Arc<Shared>,
    pub(crate) raft: Raft<TypeConfig, PartitionFsm>,
    pub(crate) core: CoreHandle,
    pub(crate) network: Arc<dyn Network>,
    pub(crate) liveness: Option<Arc<Liveness>>,
    pub(crate) node: NodeId,
    pub(crate) dir: PathBuf,
    /// In which order the voters stand for election.
    pub(crate) preference: Vec<NodeId>,
    /// What part this replica takes.
    pub(crate) emptied: Emptied,
    /// All transfers of the node.
    pub(crate) transfers: Arc<Transfers>,
}

impl Group {
    pub(crate) fn new(parts: GroupParts) -> Self {
        let whole = parts.emptied.part() == Part::Whole;
        parts.shared.set_whole(whole);
        parts.raft.runtime_config().elect(whole);
        Self {
            shared: parts.shared,
            raft: parts.raft,
            core: parts.core,
            network: parts.network,
            node: parts.node,
            dir: parts.dir,
            liveness: parts.liveness,
            preference: Mutex::new(parts.preference),
            catch_up: Mutex::default(),
            emptied: parts.emptied,
            transfers: parts.transfers,
            receiving: Arc::default(),
        }
    }

    /// Which group this is.
    pub fn key(&self) -> GroupKey {
        self.shared.key()
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
        self.propose_where(proposal, |_| true)
    }

    /// The same, but only if the batch gets the offset `at`: for whoever has made it out of all that
    /// comes before. Refused as "not ready" if anything else has come in between.
    pub fn propose_at(&self, proposal: Proposal, at: Offset) -> Result<Offset, ProposeError> {
        self.propose_where(proposal, |next| next == at)
    }

    fn propose_where(
        &self,
        proposal: Proposal,
        is_place: impl FnOnce(Offset) -> bool,
    ) -> Result<Offset, ProposeError> {
        let Proposal {
            batch,
            header,
            appended,
            committed,
        } = proposal;
        // Nothing that the log would refuse may become an entry: it could not be taken back.
        let sound = header.last_offset_delta >= 0 && header.size_in_bytes() == batch.len();
        let mut gate = self.shared.gate();
        let refusal = if !sound {
            Some(ProposeError::Malformed)
        } else if !gate.open || gate.paused || self.shared.is_draining(&mut gate) {
            Some(self.shared.refusal())
        } else if !is_place(gate.next_offset) {
            Some(ProposeError::NotReady)
        } else {
            self.shared.queue_full()
        };
        if let Some(refusal) = refusal {
            // Whoever waits for it may have gone.
            let _ = committed.send(Err(refusal.clone()));
            return Err(refusal);
        }
        let base_offset = gate.next_offset;
        let waiter = CommitWaiter::new(self.shared.clone(), gate.term, appended, committed);
        let command = Command::Batch(Box::new(BatchCommand {
            bytes: batch,
            header,
            stamp: Stamp::Foreseen(base_offset),
            waiter: Some(waiter),
        }));
        // openraft's queue takes the entry at the first poll unless it is full, and it has room
        // for more than may be in flight. Tokio's cooperative budget must not make it seem full.
        let write = self.raft.write(command).with_leader(leader_of(gate.term));
        match tokio::task::unconstrained(write.into_future()).now_or_never() {
            Some(Ok(())) => {
                gate.next_offset = base_offset.plus(i64::from(header.last_offset_delta) + 1);
                Ok(base_offset)
            }
            Some(Err(_)) => {
                gate.open = false;
                Err(self.shared.why_dropped())
            }
            None => Err(ProposeError::QueueFull {
                in_flight: self.shared.in_flight(),
            }),
        }
    }

    /// Batches proposed and not yet committed or given up.
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight()
    }

    /// Who leads.
    pub fn leadership(&self) -> Leadership {
        self.shared.leadership()
    }

    /// Follows who leads. Intermediate states may be skipped.
    pub fn subscribe_leadership(&self) -> watch::Receiver<Leadership> {
        self.shared.subscribe_leadership()
    }

    /// Waits until this node leads and takes writes, or the group has stopped.
    pub async fn wait_until_ready(&self) -> Result<LeaderEpoch, RaftError> {
        let mut leadership = self.subscribe_leadership();
        loop {
            if let Some(cause) = self.shared.offline_cause() {
                return Err(RaftError::Stopped(cause));
            }
            if self.shared.is_closed() {
                return Err(RaftError::Closed);
            }
            if let Leadership::Leader { epoch, ready: true } = *leadership.borrow_and_update() {
                return Ok(epoch);
            }
            if leadership.changed().await.is_err() {
                return Err(RaftError::Closed);
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

    /// Has this replica alone forget the records below `offset`, which is not above the high watermark: for
    /// an owner that has summed them up in a durable place of its own, and gives that to replicas that lack
    /// them ([`GroupObserver::may_begin_at`](crate::GroupObserver::may_begin_at)). Files go by whole
    /// segments, soon after.
    pub fn forget_below(&self, offset: Offset) {
        assert!(
            offset <= self.shared.high_watermark(),
            "only what is committed can have been summed up"
        );
        if offset > self.shared.log_start() {
            self.core.move_log_start(offset);
        }
    }

    pub(crate) fn not_leading(&self) -> RaftError {
        match self.shared.why_dropped() {
            ProposeError::Offline(cause) => RaftError::Stopped(cause),
            ProposeError::Closed => RaftError::Closed,
            _ => RaftError::NotLeader {
                leader: self.shared.leader(),
            },
        }
    }

    /// On the leader: moves the log start to where `retention.ms` and `retention.bytes` say.
    /// Returns the new log start if there was anything to do. On any replica: unlinks files that
    /// were deleted long enough ago.
    pub async fn run_retention(&self, now: TimestampMs) -> Result<Option<Offset>, RaftError> {
        self.finish_rebuilding().await;
        self.core.forget_useless();
        let high_watermark = self.shared.high_watermark();
        let point = self.core.with_open_log(|log| {
            log.purge_deleted(now)?;
            log.retention_point(now, high_watermark)
        });
        match point.transpose()?.flatten() {
            Some(offset)
                if self.leadership().is_ready_leader() && offset > self.shared.log_start() =>
            {
                self.advance_log_start(offset).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Makes the indexes durable too and moves the log's recovery point up, so that a start after a
    /// crash has little to read. A group that is closed is left alone.
    pub async fn checkpoint(&self) -> Result<(), RaftError> {
        let begun = self.core.with_open_log(|log| log.begin_checkpoint());
        let Some((checkpoint, target)) = begun.flatten() else {
            return Ok(());
        };
        self.core
            .flush(target)
            .await
            .map_err(|error| RaftError::io("sync the indexes", error))?;
        let core = self.core.clone();
        blocking(
            move || match core.with_open_log(|log| log.finish_checkpoint(checkpoint)) {
                Some(finished) => Ok(finished?),
                None => Ok(()),
            },
        )
        .await
    }

    /// On the leader: has the followers learn now how far the log is committed. Otherwise they learn
    /// it with the next entry or heartbeat.
    pub async fn announce_commit(&self) {
        // Fails only when the group has stopped.
        let _ = self.raft.trigger().heartbeat().await;
    }

    /// Closes the descriptors of files that were not used since the last call.
    pub fn release_idle_files(&self) {
        self.core.release_idle_files();
    }

    /// Has openraft drop the entries before the segment that the log start is in.
    pub(crate) async fn drop_old_entries(&self) {
        self.core.purge_request_taken();
        let prepared = self
            .core
            .roll_for_log_start()
            .and_then(|()| self.core.drop_records_without_entries());
        if prepared.is_err() {
            return;
        }
        if self.core.snapshot_point().is_some() {
            // Fails only when the group has stopped; the next start takes it up again.
            let _ = self.raft.trigger().snapshot().await;
        }
    }

    /// Whether another node is thought to answer.
    pub(crate) fn is_reachable(&self, node: NodeId) -> bool {
        self.liveness
            .as_ref()
            .is_none_or(|liveness| liveness.is_alive(node))
    }

    /// What openraft says of the group, for people.
    pub fn describe(&self) -> String {
        use openraft::async_runtime::watch::WatchReceiver;
        let raft = self.raft.metrics().borrow_watched().to_string();
        let part = self.emptied.part();
        format!("{raft}; {}; {part:?}", self.describe_lease())
    }

    /// The group's log.
    pub(crate) fn core(&self) -> &CoreHandle {
        &self.core
    }

    /// Whether a node may lead the group or stand for it, as far as this replica knows: it is a voter by the
    /// newest entry about that, or by the one before while the newest may still be undone. A replica that
    /// is behind may know neither of a leader that others have elected.
    pub fn may_be_led_by(&self, node: NodeId) -> bool {
        self.core.has_voter(node)
    }

    /// Whether a node leads the group in this term, and this replica has followed it. A leader that has been taken
    /// out of the group goes on until it has handed over, though it is no voter any more.
    pub fn is_led_by(&self, node: NodeId, term: u64) -> bool {
        self.core.votes.get(self.key()).is_some_and(|vote| {
            vote.committed
                && node_id(vote.leader_id.voted_for) == node
                && vote.leader_id.term == term
        })
    }

    /// Whether a node takes part in the group, by the same knowledge.
    pub fn has_member(&self, node: NodeId) -> bool {
        self.core.has_member(node)
    }

    /// An error if a message is of this replica itself, or of who says to be it.
    pub(crate) fn is_of_another(&self, vote: &Vote) -> Result<(), NetworkError> {
        match node_id(vote.leader_id.voted_for) == self.node {
            true => Err(NetworkError::Unsound("it comes from this replica itself")),
            false => Ok(()),
        }
    }

    /// An error if something else is committed here than one of these entries, though the leader that
    /// sends them is none that has been deposed: openraft answers those.
    pub(crate) fn agrees(
        &self,
        leader: Vote,
        ids: impl IntoIterator<Item = LogId>,
    ) -> Result<(), NetworkError> {
        let is_deposed = |vote: Vote| vote.leader_id.term > leader.leader_id.term;
        let contradicts =
            self.core.contradicts(ids) && !self.core.votes.get(self.key()).is_some_and(is_deposed);
        match contradicts {
            true => Err(NetworkError::Unsound("something else is committed here")),
            false => Ok(()),
        }
    }

    /// Takes over where a leader's log starts. `None` when the group has stopped.
    ///
    /// Where this log does not match the snapshot, openraft cuts off all that it does not know to be
    /// committed, and after a restart that is much: it may take two memberships with it, of which it
    /// takes the first for committed, and asserts so. So what conflicts is cut off before, by the
    /// question with which a leader begins to append behind the snapshot.
    ///
    /// Records that come with the offer are fetched first; meanwhile it is not taken.
    pub(crate) async fn install(
        self: &Arc<Self>,
        offer: SnapshotOffer,
    ) -> Option<Result<SnapshotReply, NetworkError>> {
        if let Err(unsound) = self.agrees(offer.vote, offer.snapshot.meta.last_log_id) {
            return Some(Err(unsound));
        }
        let leader = node_id(offer.vote.leader_id.voted_for);
        let state = offer.snapshot.snapshot;
        let start = state.start_offset.max(state.log_start);
        if !self.shared.may_begin_at(leader, start).await {
            return None;
        }
        match self.records_of(&offer) {
            Records::NotNeeded => self.take_offer(offer).await,
            Records::Coming => None,
            Records::Here(turn) => {
                // Goes on to its end though nobody may wait for it any more.
                let group = Arc::clone(self);
                let taking = tokio::spawn(async move {
                    let _turn = turn;
                    group.take_offer(offer).await
                });
                taking.await.ok().flatten()
            }
        }
    }

    async fn take_offer(
        &self,
        offer: SnapshotOffer,
    ) -> Option<Result<SnapshotReply, NetworkError>> {
        let last = offer.snapshot.meta.last_log_id;
        let question = AppendRequest {
            vote: offer.vote,
            prev_log_id: last,
            entries: Vec::new(),
            leader_commit: None,
        };
        self.raft.append_entries(question).await.ok()?;
        let reply = self
            .raft
            .install_full_snapshot(offer.vote, offer.snapshot)
            .await;
        reply.ok().map(Ok)
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
        self.stop_receiving().await;
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
            .delete(self.shared.key())
            .await
            .map_err(|error| RaftError::io("forget a vote", error))?;
        let core = self.core.clone();
        blocking(move || core.mark_deleted()).await
    }
}

fn leader_of(term: u64) -> CommittedLeaderId {
    CommittedLeaderId::new(term)
}
