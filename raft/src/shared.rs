//! What the tasks of a group and its users have in common.
//!
//! The gate decides, under one lock, whether a proposal is taken and in which order; everything
//! else is atomics and a watch. `log_start ≤ last_stable ≤ high_watermark`, and none of them ever
//! falls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use odradek_protocol::ids::{
    HighWatermark, LastStableOffset, LogEndOffset, LogOffsets, LogStartOffset, NodeId, Offset,
};
use odradek_storage::LogReader;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::error::ProposeError;
use crate::lease::{Known, LeaseState};
use crate::liveness::{Liveness, PeerState};
use crate::observer::{GroupObserver, Leadership};
use crate::types::{GroupKey, LogId, Membership, RaftIndex, Vote, epoch_of, node_id};

/// Whether proposals are taken.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    pub(crate) term: u64,
    /// This node leads in `term`, and the term's first entry is committed.
    pub(crate) open: bool,
    /// Leadership is being handed over: nothing is taken until that has failed.
    pub(crate) paused: bool,
    /// Offset that the next proposal will get, if it is appended at all.
    pub(crate) next_offset: Offset,
}

/// What a group's tasks and users have in common.
pub(crate) struct Shared {
    key: GroupKey,
    node: u64,
    observer: Arc<dyn GroupObserver>,
    liveness: Option<Arc<Liveness>>,
    pub(crate) lease: LeaseState,
    in_flight: AtomicUsize,
    /// Batches handed to openraft that are not in the log yet. Grows only under the gate's lock.
    queued: AtomicUsize,
    /// One more than the last term in which openraft refused a batch. Those enqueued behind it
    /// must not be appended in its place; nothing is taken until all are out of the queue.
    refused_in: AtomicU64,
    max_in_flight: usize,
    gate: Mutex<Gate>,
    leadership: watch::Sender<Leadership>,
    log_start: AtomicI64,
    last_stable: AtomicI64,
    high_watermark: AtomicI64,
    /// The last entry that is committed and of which readers here know so. Set after the high
    /// watermark.
    visible: watch::Sender<Option<LogId>>,
    /// Tells where the log ends.
    log_end: OnceLock<LogReader>,
    /// Index of the first entry that has not been dropped.
    first_index: AtomicU64,
    offline: OnceLock<Arc<str>>,
    closed: AtomicBool,
    /// Whether this replica is not being rebuilt ([`crate::emptied`]).
    whole: AtomicBool,
    /// On a leader: voters that have lost their log, with the term in which that was heard.
    pub(crate) lost: Mutex<BTreeMap<NodeId, u64>>,
    /// Replicas that held nothing and were cleared here, until they say that they have come so far.
    /// What was known of their progress before is not true of them.
    rebuilding: Mutex<BTreeMap<NodeId, LogId>>,
}

impl Shared {
    pub(crate) fn new(
        key: GroupKey,
        node: u64,
        max_in_flight: usize,
        observer: Arc<dyn GroupObserver>,
        liveness: Option<Arc<Liveness>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            key,
            node,
            observer,
            liveness,
            lease: LeaseState::default(),
            in_flight: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            refused_in: AtomicU64::new(0),
            log_end: OnceLock::new(),
            max_in_flight,
            gate: Mutex::default(),
            leadership: watch::Sender::new(Leadership::Unknown),
            log_start: AtomicI64::new(0),
            last_stable: AtomicI64::new(0),
            high_watermark: AtomicI64::new(0),
            visible: watch::Sender::new(None),
            first_index: AtomicU64::new(0),
            offline: OnceLock::new(),
            closed: AtomicBool::new(false),
            whole: AtomicBool::new(true),
            lost: Mutex::default(),
            rebuilding: Mutex::default(),
        })
    }

    pub(crate) fn set_whole(&self, whole: bool) {
        self.whole.store(whole, Ordering::Release);
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.whole.load(Ordering::Acquire)
    }

    /// A replica that held nothing is given its log again, up to `until` at least.
    pub(crate) fn is_rebuilt_until(&self, node: NodeId, until: LogId) {
        self.rebuilding.lock().insert(node, until);
    }

    /// A replica has said that its log matches the leader's up to `matched`.
    pub(crate) fn has_matched(&self, node: NodeId, matched: Option<LogId>) {
        let mut rebuilding = self.rebuilding.lock();
        if rebuilding
            .get(&node)
            .is_some_and(|until| matched >= Some(*until))
        {
            rebuilding.remove(&node);
        }
    }

    /// Replicas that held nothing, were cleared here, and have not come as far as they have to.
    pub(crate) fn rebuilding(&self) -> BTreeSet<NodeId> {
        self.rebuilding.lock().keys().copied().collect()
    }

    pub(crate) fn observe_lost(&self, node: NodeId) {
        self.observer.on_replica_lost(node);
    }

    /// Locks the gate. Whoever holds it must not wait.
    pub(crate) fn gate(&self) -> parking_lot::MutexGuard<'_, Gate> {
        self.gate.lock()
    }

    /// Stops or resumes taking proposals while leadership is handed over.
    pub(crate) fn pause(&self, paused: bool) {
        self.gate.lock().paused = paused;
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// An error if as many batches are in flight as may be.
    pub(crate) fn queue_full(&self) -> Option<ProposeError> {
        let in_flight = self.in_flight();
        (in_flight >= self.max_in_flight).then_some(ProposeError::QueueFull { in_flight })
    }

    pub(crate) fn leadership(&self) -> Leadership {
        *self.leadership.borrow()
    }

    pub(crate) fn subscribe_leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }

    /// Why a proposal is not taken right now.
    pub(crate) fn refusal(&self) -> ProposeError {
        let works = self.offline.get().is_none() && !self.closed.load(Ordering::Acquire);
        match self.leadership() {
            Leadership::Leader { .. } if works => ProposeError::NotReady,
            _ => self.why_dropped(),
        }
    }

    pub(crate) fn key(&self) -> GroupKey {
        self.key
    }

    /// Has the gate know the log, once it is open.
    pub(crate) fn set_reader(&self, reader: LogReader) {
        // Set once, by whoever makes the group.
        let _ = self.log_end.set(reader);
    }

    pub(crate) fn batch_enters(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.queued.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn batch_appended(&self) {
        self.queued.fetch_sub(1, Ordering::AcqRel);
    }

    /// A batch was dropped before it came into the log: openraft does that when this node leads
    /// no more, but also within a term, when it has not heard from a majority for too long.
    pub(crate) fn batch_refused(&self, term: u64) {
        self.refused_in.fetch_max(term + 1, Ordering::AcqRel);
        self.queued.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether a batch of this term was refused and others are still queued behind it. Once none
    /// is, the next proposal gets the offset at the end of the log again.
    pub(crate) fn is_draining(&self, gate: &mut Gate) -> bool {
        if self.refused_in.load(Ordering::Acquire) != gate.term + 1 {
            return false;
        }
        if self.queued.load(Ordering::Acquire) > 0 {
            return true;
        }
        let Some(reader) = self.log_end.get() else {
            return true;
        };
        self.refused_in.store(0, Ordering::Release);
        gate.next_offset = reader.log_end();
        false
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

    /// Which leader this replica follows.
    pub(crate) fn known(&self) -> Known {
        let gate = self.gate.lock();
        match *self.leadership.borrow() {
            Leadership::Leader { .. } => Known::Leads(gate.term),
            Leadership::Follower {
                leader: Some(leader),
                ..
            } => Known::Follows(gate.term, leader),
            Leadership::Follower { leader: None, .. } | Leadership::Unknown => Known::None,
        }
    }

    /// Whether this node leads in that term, takes writes, and has not given its leadership up or
    /// is about to.
    pub(crate) fn has_not_given_up(&self, term: u64) -> bool {
        let gate = self.gate.lock();
        gate.open && gate.term == term && !gate.paused && !self.lease.is_given_up(term)
    }

    /// See [`crate::Group::consents`].
    pub(crate) fn consents(&self, term: u64) -> bool {
        let gate = self.gate.lock();
        let leads = gate.term == term
            && matches!(*self.leadership.borrow(), Leadership::Leader { .. })
            && self.offline.get().is_none()
            && !self.closed.load(Ordering::Acquire);
        if leads && gate.paused {
            self.lease.give_up(term);
        }
        !leads || self.lease.is_given_up(term)
    }

    /// The leader of that term has said that it has given up.
    pub(crate) fn learn_given_up(&self, term: u64) {
        self.lease.give_up(term);
        let follows = matches!(self.known(), Known::Follows(known, _) if known == term);
        if let (true, Some(liveness)) = (follows, &self.liveness) {
            liveness.agenda.leader_gave_up(self.key);
        }
    }

    /// Whether this replica may ask for votes in advance, as far as its promises go. openraft's
    /// clock asks when nothing has been heard from the leader for long, though its node answers.
    pub(crate) async fn may_ask_for_votes(&self) -> bool {
        let (Some(liveness), Known::Follows(term, leader)) = (&self.liveness, self.known()) else {
            return true;
        };
        liveness.may_act(self, leader, term).await.is_some()
    }

    /// Follows which nodes answer, if there is a failure detector.
    pub(crate) fn subscribe_peers(&self) -> Option<watch::Receiver<Vec<PeerState>>> {
        self.liveness.as_ref().map(|liveness| liveness.subscribe())
    }

    /// A committed entry says who has a vote. A leader that is not among them any more has to see
    /// to it that another takes over.
    pub(crate) fn voters_are(&self, membership: &Membership) {
        let (Some(liveness), Known::Leads(term)) = (&self.liveness, self.known()) else {
            return;
        };
        if !membership.voter_ids().any(|voter| voter == self.node) {
            self.lease.give_up(term);
            liveness.agenda.given_up(self.key, term);
        }
    }

    /// This node leads in that term no more, although it has not heard of a later one.
    pub(crate) fn cease(&self, term: u64) {
        let mut gate = self.gate.lock();
        let leads = matches!(*self.leadership.borrow(), Leadership::Leader { .. });
        if leads && gate.term == term {
            gate.open = false;
            self.announce(Leadership::Follower {
                leader: None,
                epoch: epoch_of(term),
            });
        }
    }

    pub(crate) fn set_first_index(&self, first: RaftIndex) {
        self.first_index.store(first.get(), Ordering::Release);
    }

    pub(crate) fn first_index(&self) -> RaftIndex {
        RaftIndex::new(self.first_index.load(Ordering::Acquire))
    }

    /// The members of the group have changed.
    pub(crate) fn members_changed(&self) {
        if let Some(liveness) = &self.liveness {
            liveness.members_changed(self.key());
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

    /// The vote that was found on the disk. A leader of before the start leads no more: its
    /// followers may have elected another.
    pub(crate) fn vote_found(&self, vote: &Vote) {
        let other = vote.committed && vote.leader_id.voted_for != self.node;
        self.gate.lock().term = vote.leader_id.term;
        self.announce(Leadership::Follower {
            leader: other.then(|| node_id(vote.leader_id.voted_for)),
            epoch: epoch_of(vote.leader_id.term),
        });
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
            if let Some(liveness) = &self.liveness {
                liveness.agenda.leadership_changed(self.key, leadership);
            }
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

    /// Readers here know by now that everything up to `id` is committed.
    pub(crate) fn set_visible(&self, id: LogId) {
        self.visible.send_replace(Some(id));
    }

    /// As much of `commit` as readers here know of. Waits up to `limit` for the rest.
    ///
    /// What others are told of first, a consumer could read from a follower before the leader gives
    /// an offset behind it as the latest.
    pub(crate) async fn visible(&self, commit: Option<LogId>, limit: Duration) -> Option<LogId> {
        let index = |id: &Option<LogId>| id.as_ref().map(LogId::index);
        let reached = |visible: &Option<LogId>| index(visible) >= index(&commit);
        if reached(&self.visible.borrow()) {
            return commit;
        }
        let mut visible = self.visible.subscribe();
        let waited = tokio::time::timeout(limit, visible.wait_for(reached)).await;
        match waited {
            Ok(Ok(_)) => commit,
            _ => *self.visible.borrow(),
        }
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

    /// Asks the owner whether a log that begins at `start` may be taken over.
    pub(crate) fn may_begin_at(&self, leader: NodeId, start: Offset) -> BoxFuture<'static, bool> {
        self.observer.may_begin_at(leader, start)
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
        let led = {
            let mut gate = self.gate.lock();
            gate.open = false;
            let leads = matches!(*self.leadership.borrow(), Leadership::Leader { .. });
            leads.then_some(gate.term)
        };
        let first = self.offline.set(cause.clone()).is_ok();
        if first && let (Some(term), Some(liveness)) = (led, &self.liveness) {
            liveness.agenda.given_up(self.key, term);
        }
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
        // Whoever waits to lead finds out.
        self.leadership.send_modify(|_| {});
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::NoObserver;
    use crate::types::log_id;
    use odradek_protocol::ids::{PartitionIndex, TopicId};

    fn id(index: u64) -> LogId {
        log_id(1, index)
    }

    /// A consumer reads at a follower what the leader does not give as the latest offset yet.
    #[tokio::test(start_paused = true)]
    async fn others_are_told_of_no_commit_before_readers_here() {
        let key = GroupKey::new(TopicId::from_bytes([5; 16]), PartitionIndex::new(0));
        let shared = Shared::new(key, 1, 1, Arc::new(NoObserver), None);
        shared.set_visible(id(5));
        assert_eq!(
            shared.visible(Some(id(4)), Duration::ZERO).await,
            Some(id(4))
        );
        assert_eq!(
            shared.visible(Some(id(7)), Duration::ZERO).await,
            Some(id(5))
        );
        let waits = tokio::spawn({
            let shared = shared.clone();
            async move { shared.visible(Some(id(7)), Duration::from_secs(1)).await }
        });
        tokio::time::sleep(Duration::from_millis(1)).await;
        shared.set_visible(id(7));
        assert_eq!(waits.await.ok().flatten(), Some(id(7)));
    }
}
