//! One partition of a topic as the broker serves it: a Raft group plus what producers and fetches
//! need around it.
//!
//! An append has two stages. [`Partition::append`] checks leadership, the batch and its producer's
//! sequence, and enqueues the batch with the group, all without waiting; what it returns is waited
//! for separately. The lock that orders the first stage is held from the sequence check to the
//! proposal, so that batches are proposed in the order in which they were checked, and never
//! across an await.
//!
//! Invariants:
//! - log start ≤ last stable ≤ high watermark ≤ log end, as [`LogOffsets`] has them;
//! - offsets change before the partition's waiters are fired;
//! - a duplicate is answered with the offset of its first copy, and only once that is committed.

mod ended;
mod error;
pub mod in_flight;
mod own_commit;
mod prepare;
mod read;
mod refused;
mod replication;
mod settings;
mod ticket;
mod transactions;

use std::fmt;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use odradek_protocol::batch::{BatchHeader, BatchOrigin};
use odradek_protocol::ids::{
    LeaderEpoch, LogOffsets, NodeId, Offset, PartitionIndex, TimestampMs, TopicId,
};
use odradek_raft::{
    AppendOutcome, CompactionOutcome, CompactionRequest, Group, GroupKey, GroupObserver,
    Leadership, Proposal,
};
use odradek_storage::LogReader;
use odradek_storage::producer_state::{self, AppendOrigin, ProducerError};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::clock::Clock;
use crate::data_metrics::AppendMetrics;
use crate::leading::LeadershipChanges;
use crate::partitions::log_dir::LogDirectory;
use crate::waiters::WaitList;

#[cfg(test)]
pub(crate) use ended::Told;
pub use error::PartitionError;
use in_flight::{AppendedVerdict, SequenceFault};
use prepare::PreparedBatch;
pub use read::{FoundOffset, OffsetSpec, Reader, must_not_wait};
pub use replication::ReplicationView;
use replication::{MoreThanMajority, SharedView};
pub use settings::PartitionSettings;
pub use ticket::Appending;
pub(crate) use ticket::SharedOutcome;
#[cfg(test)]
pub(crate) use transactions::AppendedProducers;
pub(crate) use transactions::{Candidate, Judged, Ordering};
pub use transactions::{Guard, TxnEnd, Unverified, Verification};

/// How long a producer waits at most before it looks again whether a full group has room.
const ROOM_CHECK: Duration = Duration::from_millis(10);

/// How a batch is to be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendOptions {
    /// Who sends it.
    pub origin: BatchOrigin,
    /// Whether zstd is allowed (Produce v7 and later).
    pub zstd_allowed: bool,
    /// Whether the caller wants to know of the append itself, before the commit (`acks=1`).
    pub wants_append: bool,
    /// Whether the append counts only if `min.insync.replicas` have it (`acks=all`).
    pub wants_in_sync: bool,
    /// The term in which the append is meant, for callers whose state is of that term only.
    pub epoch: Option<LeaderEpoch>,
    /// What is known of the transaction that the batch belongs to, if it does to one.
    pub verification: Verification,
}

impl AppendOptions {
    /// For a coordinator of this broker that was loaded in the term `epoch`: once the term is
    /// over, its appends fail.
    pub const fn coordinator(epoch: LeaderEpoch) -> Self {
        Self {
            origin: BatchOrigin::Coordinator,
            zstd_allowed: true,
            wants_append: false,
            wants_in_sync: true,
            epoch: Some(epoch),
            verification: Verification::Off,
        }
    }
}

/// A partition that this broker holds a replica of.
pub struct Partition {
    topic: Arc<str>,
    key: GroupKey,
    group: Arc<Group>,
    events: Arc<PartitionEvents>,
    settings: ArcSwap<PartitionSettings>,
    ordering: Mutex<Ordering>,
    replication: SharedView,
    directory: Arc<LogDirectory>,
    clock: Arc<dyn Clock>,
    metrics: Arc<AppendMetrics>,
    alone: bool,
}

/// What a partition is made of.
pub struct PartitionParts {
    /// Name of its topic.
    pub topic: Arc<str>,
    /// Its open group, which reports to `events`.
    pub group: Arc<Group>,
    /// Where the group reports to.
    pub events: Arc<PartitionEvents>,
    /// What its topic's configuration says.
    pub settings: PartitionSettings,
    /// The log directory that holds it.
    pub directory: Arc<LogDirectory>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Where its appends are counted.
    pub metrics: Arc<AppendMetrics>,
    /// Whether this node is a cluster of its own, so that nobody else can ever lead.
    pub alone: bool,
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Partition({}-{})", self.topic, self.key.partition)
    }
}

/// What the group reports, and who waits for it.
#[derive(Debug, Default)]
pub struct PartitionEvents {
    waiters: WaitList,
    offline: OnceLock<Arc<str>>,
    committed: Notify,
    gone: OnceLock<Gone>,
    /// Who is told that the leadership has changed, and of which group.
    leadership: Option<(GroupKey, Arc<LeadershipChanges>)>,
}

/// Why a partition is here no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Its topic has been deleted.
    Deleted,
    /// Other brokers hold it now.
    Released,
    /// Its group has lost most of its voters, and the partition has been given another.
    Superseded,
    /// Its log is in another directory of this broker from now on, and it is opened there.
    Moved,
}

impl PartitionEvents {
    /// Events of the group `key`, whose changes of leadership are noted in `changes`.
    pub fn noted_in(key: GroupKey, changes: Arc<LeadershipChanges>) -> Self {
        Self {
            leadership: Some((key, changes)),
            ..Self::default()
        }
    }

    fn require_here(&self) -> Result<(), PartitionError> {
        match self.gone.get() {
            None => Ok(()),
            Some(Gone::Deleted) => Err(PartitionError::Deleted),
            Some(Gone::Released | Gone::Superseded | Gone::Moved) => {
                Err(PartitionError::NotLeader { leader: None })
            }
        }
    }

    /// What to tell of a failure: nothing that goes wrong while a partition is being taken away, from
    /// a stopped group to a file that is gone, is a fault of its own.
    fn explain(&self, error: impl Into<PartitionError>) -> PartitionError {
        match self.require_here() {
            Ok(()) => error.into(),
            Err(gone) => gone,
        }
    }
}

impl GroupObserver for PartitionEvents {
    fn on_high_watermark(&self, _offsets: LogOffsets) {
        self.waiters.fire();
        self.committed.notify_waiters();
        if let Some((key, changes)) = &self.leadership {
            changes.commits.note(*key);
        }
    }

    fn on_leadership(&self, _leadership: Leadership) {
        self.waiters.fire();
        if let Some((key, changes)) = &self.leadership {
            changes.note(*key);
        }
    }

    fn on_log_start(&self, _log_start: Offset) {
        self.waiters.fire();
    }

    fn on_replica_lost(&self, _node: NodeId) {
        if let Some((key, changes)) = &self.leadership {
            changes.note(*key);
        }
    }

    fn on_offline(&self, cause: Arc<str>) {
        // Only the first cause is of interest; the group reports no second one that matters.
        let _ = self.offline.set(cause);
        self.waiters.fire();
    }
}

impl Partition {
    /// Puts a partition around an open group.
    pub fn new(parts: PartitionParts) -> Self {
        Self {
            key: parts.group.key(),
            topic: parts.topic,
            group: parts.group,
            events: parts.events,
            settings: ArcSwap::from_pointee(parts.settings),
            ordering: Mutex::default(),
            replication: SharedView::default(),
            directory: parts.directory,
            clock: parts.clock,
            metrics: parts.metrics,
            alone: parts.alone,
        }
    }

    /// Name of its topic.
    pub fn topic(&self) -> &Arc<str> {
        &self.topic
    }

    /// Id of its topic.
    pub fn topic_id(&self) -> TopicId {
        self.key.topic_id
    }

    /// Index in its topic.
    pub fn index(&self) -> PartitionIndex {
        self.key.partition
    }

    /// Its Raft group.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// The log directory that holds it.
    pub fn directory(&self) -> &Arc<LogDirectory> {
        &self.directory
    }

    /// The four offsets now.
    pub fn offsets(&self) -> LogOffsets {
        self.group.offsets()
    }

    /// Who leads it.
    pub fn leadership(&self) -> Leadership {
        self.group.leadership()
    }

    /// What its topic's configuration says.
    pub fn settings(&self) -> Arc<PartitionSettings> {
        self.settings.load_full()
    }

    /// Where fetches that wait for this partition stand.
    pub fn waiters(&self) -> &WaitList {
        &self.events.waiters
    }

    /// Reads the log without a lock.
    pub fn reader(&self) -> LogReader {
        self.group.reader()
    }

    /// Has everybody who holds on to the partition find it gone: it is about to be. The first cause
    /// counts.
    pub fn mark_gone(&self, gone: Gone) {
        let _ = self.events.gone.set(gone);
        self.events.waiters.fire();
    }

    /// The leader epoch if this node leads.
    pub fn require_leader(&self) -> Result<LeaderEpoch, PartitionError> {
        self.leading().map(|(epoch, _)| epoch)
    }

    /// The leader epoch if this node leads and everything that earlier leaders acknowledged is known
    /// to be committed.
    pub fn require_ready_leader(&self) -> Result<LeaderEpoch, PartitionError> {
        match self.leading()? {
            (epoch, true) => Ok(epoch),
            (_, false) => Err(PartitionError::NotReady),
        }
    }

    /// The epoch in which this node leads, and whether everything that earlier leaders acknowledged is
    /// known to be committed.
    fn leading(&self) -> Result<(LeaderEpoch, bool), PartitionError> {
        self.events.require_here()?;
        match self.leadership() {
            Leadership::Leader { epoch, ready } => Ok((epoch, ready)),
            Leadership::Follower { leader, .. } => Err(PartitionError::NotLeader { leader }),
            Leadership::Unknown => Err(PartitionError::NotLeader { leader: None }),
        }
    }

    /// An error unless what this node has just said as the leader was its to say: no other can have
    /// been elected meanwhile. To be asked after an answer is made and before it leaves.
    pub fn require_lease(&self) -> Result<(), PartitionError> {
        // A node on its own is not to pay for what it cannot need.
        match self.alone || self.group.holds_lease() {
            true => Ok(()),
            false => Err(PartitionError::LeaseOver),
        }
    }

    /// [`Self::require_lease`], for an answer that was begun as the leader of `epoch`: an error as
    /// well if that term is over, even where this node leads again. Others may have led in between,
    /// and what was read meanwhile may lack what they acknowledged.
    pub fn require_lease_in(&self, epoch: LeaderEpoch) -> Result<(), PartitionError> {
        // The term last: if it is still the same, the lease was that of this term.
        self.require_lease()?;
        match self.require_leader()? == epoch {
            true => Ok(()),
            false => Err(PartitionError::NotLeader { leader: None }),
        }
    }

    /// What `read` makes of the partition, if it is all there is to know: everything that any leader
    /// had acknowledged before the call is below the offsets that `read` sees. A leader that is not
    /// ready may not know yet, one whose lease is over may not know any more.
    ///
    /// `known` is the client's idea of the leader epoch, or [`LeaderEpoch::NONE`]. `read` is told the
    /// leader's.
    pub fn read_as_leader<T>(
        &self,
        known: LeaderEpoch,
        read: impl FnOnce(LeaderEpoch) -> Result<T, PartitionError>,
    ) -> Result<T, PartitionError> {
        // Ready first: what becomes ready while the offsets are read has been read too early.
        let Role::Leader { epoch, ready: true } = self.require_leading(known)? else {
            return Err(PartitionError::NotReady);
        };
        let found = read(epoch)?;
        let held = self.require_lease_in(epoch);
        held.map_err(|error| self.events.explain(error))?;
        Ok(found)
    }

    /// How this node leads, if it does and the client's idea of the leader epoch, unless that is
    /// [`LeaderEpoch::NONE`], is the same (KIP-320).
    fn require_leading(&self, known: LeaderEpoch) -> Result<Role, PartitionError> {
        let (epoch, ready) = self.leading()?;
        compare_epochs(known, epoch)?;
        Ok(Role::Leader { epoch, ready })
    }

    /// `require_leading`, but a follower will do as well: for those who read only what is
    /// committed and may be late.
    pub fn require_replica(&self, known: LeaderEpoch) -> Result<Role, PartitionError> {
        self.events.require_here()?;
        let (role, current) = match self.leadership() {
            Leadership::Leader { epoch, ready } => (Role::Leader { epoch, ready }, epoch),
            Leadership::Follower { epoch, .. } => (Role::Follower, epoch),
            Leadership::Unknown => return Err(PartitionError::NotLeader { leader: None }),
        };
        compare_epochs(known, current)?;
        Ok(role)
    }

    /// Waits until somebody leads: this node and takes writes, or another.
    pub async fn wait_until_led(&self) -> Result<(), PartitionError> {
        let mut leadership = self.group.subscribe_leadership();
        loop {
            if let Some(cause) = self.group.offline_cause() {
                return Err(PartitionError::Offline(cause));
            }
            match *leadership.borrow_and_update() {
                Leadership::Leader { ready: true, .. }
                | Leadership::Follower {
                    leader: Some(_), ..
                } => return Ok(()),
                Leadership::Leader { ready: false, .. }
                | Leadership::Follower { leader: None, .. }
                | Leadership::Unknown => {}
            }
            if leadership.changed().await.is_err() {
                return Err(self
                    .events
                    .explain(PartitionError::NotLeader { leader: None }));
            }
        }
    }

    /// Checks the one batch in `records` and enqueues it. Never waits; see the module.
    pub fn append(
        &self,
        records: Bytes,
        options: AppendOptions,
    ) -> Result<Appending, PartitionError> {
        let appending = self
            .check_and_enqueue(&records, options)
            .map_err(|error| self.events.explain(error));
        match &appending {
            // The caller tries again when there is room.
            Ok(_) | Err(PartitionError::Busy) => {}
            Err(error) => {
                if error.passes() && options.origin == BatchOrigin::Client {
                    self.remember_refused(&records);
                }
                self.metrics.refused(error.error_code().name());
            }
        }
        appending
    }

    /// A batch was refused that its producer will send again.
    fn remember_refused(&self, records: &[u8]) {
        match BatchHeader::parse(records) {
            Ok(header) if header.has_producer_id() => {
                let now = self.clock.wall();
                self.ordering.lock().refused.note(&header, now);
            }
            Ok(_) | Err(_) => {}
        }
    }

    fn check_and_enqueue(
        &self,
        records: &Bytes,
        options: AppendOptions,
    ) -> Result<Appending, PartitionError> {
        let epoch = self.require_writable(options.epoch, options.origin)?;
        let settings = self.settings.load();
        let more_than_majority = match options.wants_in_sync {
            true => self.require_in_sync(epoch, settings.min_insync_replicas)?,
            false => None,
        };
        let prepared = prepare::prepare(
            records.clone(),
            &settings,
            options.origin,
            options.zstd_allowed,
            self.clock.wall(),
        );
        let fitting = prepared
            .map_err(PartitionError::from)
            .and_then(|batch| fitting(batch, settings.log.segment_bytes));
        let batch = match fitting {
            Ok(batch) => batch,
            Err(error) => return Err(self.asked_first(error, records, epoch, &options)),
        };
        let header = batch.header;
        let (appended_sender, appended) = match options.wants_append {
            true => {
                let (sender, receiver) = oneshot::channel();
                (Some(sender), Some(receiver))
            }
            false => (None, None),
        };
        let (committed_sender, committed) = oneshot::channel();
        let proposal = Proposal {
            batch: batch.bytes,
            header,
            appended: appended_sender,
            committed: committed_sender,
        };
        let (size, stamped) = (header.size_in_bytes(), batch.log_append_time);
        let events = Arc::clone(&self.events);
        if !(header.has_producer_id() && options.origin == BatchOrigin::Client) {
            self.group.propose(proposal)?;
            self.count_taken(size, header.record_count);
            return Ok(Appending::new(committed, appended, stamped, events).and(more_than_majority));
        }
        let candidate = Candidate {
            header: &header,
            term: epoch,
            verification: options.verification,
            now: self.clock.wall(),
        };
        let mut ordering = self.ordering.lock();
        let judged =
            ordering.judge(candidate, &self.reader(), || self.appended_verdict(&header))?;
        match judged {
            Judged::New => {}
            Judged::InFlight(first_copy) => {
                self.metrics.duplicate();
                return Ok(
                    Appending::shared(first_copy, None, stamped, events).and(more_than_majority)
                );
            }
            Judged::Appended(place) => {
                self.metrics.duplicate();
                // Kafka answers a duplicate with the timestamp of its first copy.
                let appending = Appending::known(place.outcome, Some(place.timestamp), events);
                return Ok(appending.and(more_than_majority));
            }
        }
        self.group.propose(proposal)?;
        self.count_taken(size, header.record_count);
        let outcome = SharedOutcome::new(committed);
        ordering.proposed(&header, outcome.clone());
        Ok(Appending::shared(outcome, appended, stamped, events).and(more_than_majority))
    }

    /// What a batch that is not acceptable is refused with, or the question that comes before.
    fn asked_first(
        &self,
        error: PartitionError,
        records: &[u8],
        term: LeaderEpoch,
        options: &AppendOptions,
    ) -> PartitionError {
        let header = match BatchHeader::parse(records) {
            Ok(header) if header.has_producer_id() && !error.is_of_the_request() => header,
            _ => return error,
        };
        let candidate = Candidate {
            header: &header,
            term,
            verification: options.verification,
            now: self.clock.wall(),
        };
        let asked = self.ordering.lock().ask_first(candidate, &self.reader());
        asked.err().unwrap_or(error)
    }

    /// [`Self::append`], but waits while the group holds as many batches as it may.
    pub async fn append_when_room(
        &self,
        records: Bytes,
        options: AppendOptions,
    ) -> Result<Appending, PartitionError> {
        loop {
            // Made before the attempt, so that no commit falls between the two.
            let committed = self.events.committed.notified();
            match self.append(records.clone(), options) {
                Err(PartitionError::Busy) => {}
                other => return other,
            }
            // A commit may be told before its place is free: hence the short limit.
            let _ = tokio::time::timeout(ROOM_CHECK, committed).await;
        }
    }

    /// Takes over a changed topic configuration.
    pub fn apply_settings(&self, settings: PartitionSettings) {
        let log_changed = self.settings.load().log != settings.log;
        let log = Arc::new(settings.log.clone());
        self.settings.store(Arc::new(settings));
        if log_changed {
            self.group.set_log_config(log);
        }
    }

    /// Drops what is past the topic's retention, on all replicas. Only the leader decides.
    pub async fn run_retention(&self) -> Result<(), PartitionError> {
        let done = self.group.run_retention(self.clock.wall()).await;
        done.map(|_| ()).map_err(|error| self.events.explain(error))
    }

    /// Compacts the log if the topic is compacted and it is due. `pace` is asked as in
    /// [`CompactionRequest`].
    pub async fn compact(
        &self,
        map_bytes: usize,
        pace: Box<dyn FnMut(u64) -> ControlFlow<()> + Send>,
    ) -> Result<Option<CompactionOutcome>, PartitionError> {
        let (compacted, config) = {
            let settings = self.settings.load();
            (settings.log.compacted, settings.compaction)
        };
        if !compacted {
            return Ok(None);
        }
        let request = CompactionRequest {
            config,
            map_bytes,
            now: self.clock.wall(),
            pace,
        };
        let done = self.group.compact(request).await;
        done.map_err(|error| self.events.explain(error))
    }

    /// Forgets producers that have been idle for too long, and the traces of batches in flight
    /// that have settled.
    pub fn expire_producers(&self) {
        let expiration_ms = self.settings.load().log.producer_id_expiration_ms;
        self.reader()
            .expire_producers(self.clock.wall(), expiration_ms);
        let mut ordering = self.ordering.lock();
        ordering.in_flight.sweep();
        ordering.traces.sweep(self.clock.wall());
        ordering.refused.sweep(self.clock.wall());
        ordering.ended.sweep(self.clock.wall());
    }

    /// Bytes of its log.
    pub fn size_bytes(&self) -> u64 {
        self.reader().size_bytes()
    }

    fn count_taken(&self, bytes: usize, records: i32) {
        self.metrics.taken(bytes, records);
        self.directory.take_room(bytes);
    }

    fn require_writable(
        &self,
        epoch: Option<LeaderEpoch>,
        origin: BatchOrigin,
    ) -> Result<LeaderEpoch, PartitionError> {
        // What an unready leader's log holds may not be committed, so that not even a batch that is
        // already in it can be acknowledged.
        let current = self.require_ready_leader()?;
        if epoch.is_some_and(|wanted| wanted != current) {
            return Err(PartitionError::NotLeader { leader: None });
        }
        if let Some(cause) = self.events.offline.get() {
            return Err(PartitionError::Offline(Arc::clone(cause)));
        }
        match origin {
            // Commits and markers are small, and readers must be able to go on with what is left. Coordinators
            // refuse before it comes to this.
            BatchOrigin::Coordinator => self.directory.require_last_room()?,
            BatchOrigin::Client => self.directory.require_writable()?,
        }
        // A leader that is cut off would take batches that nobody can commit.
        self.require_lease()?;
        Ok(current)
    }

    /// What the log's own producer state says of a batch.
    fn appended_verdict(&self, header: &BatchHeader) -> AppendedVerdict<AppendedPlace> {
        let verdict = self
            .reader()
            .with_producers(|states| states.check(header, AppendOrigin::Client));
        appended_verdict(verdict).map(|found| AppendedPlace {
            outcome: AppendOutcome {
                base_offset: found.base_offset,
                last_offset: found.last_offset,
                leader_epoch: self.leadership().epoch().unwrap_or(LeaderEpoch::NONE),
                log_start: self.offsets().log_start.offset(),
            },
            timestamp: found.timestamp,
        })
    }
}

/// The place of a batch that is in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundBatch {
    pub base_offset: Offset,
    pub last_offset: Offset,
    pub timestamp: TimestampMs,
}

/// The batch, if a segment has room for it.
fn fitting(batch: PreparedBatch, segment_bytes: u32) -> Result<PreparedBatch, PartitionError> {
    let len = batch.bytes.len();
    match u32::try_from(len).is_ok_and(|len| len > segment_bytes) {
        true => Err(PartitionError::LargerThanSegment { len, segment_bytes }),
        false => Ok(batch),
    }
}

/// What the verdict of the log's own producer state means to a batch.
pub(crate) fn appended_verdict(
    verdict: Result<producer_state::Verdict, ProducerError>,
) -> AppendedVerdict<FoundBatch> {
    match verdict {
        Ok(producer_state::Verdict::Accept) => AppendedVerdict::Next,
        Ok(producer_state::Verdict::Duplicate {
            base_offset,
            last_offset,
            timestamp,
        }) => AppendedVerdict::Duplicate(FoundBatch {
            base_offset,
            last_offset,
            timestamp,
        }),
        Err(ProducerError::OutOfOrderSequence { .. }) => {
            AppendedVerdict::Refused(SequenceFault::OutOfOrder)
        }
        Err(ProducerError::FencedEpoch { .. } | ProducerError::FencedCoordinator { .. }) => {
            AppendedVerdict::Refused(SequenceFault::FencedEpoch)
        }
        Err(ProducerError::NotInTransaction { .. }) => {
            AppendedVerdict::Refused(SequenceFault::OutsideTransaction)
        }
    }
}

/// What this node is to a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It leads.
    Leader {
        /// In this epoch.
        epoch: LeaderEpoch,
        /// Whether everything that earlier leaders acknowledged is known to be committed.
        ready: bool,
    },
    /// It follows.
    Follower,
}

fn compare_epochs(known: LeaderEpoch, current: LeaderEpoch) -> Result<(), PartitionError> {
    if known == LeaderEpoch::NONE || known == current {
        Ok(())
    } else if known < current {
        Err(PartitionError::FencedLeaderEpoch { known, current })
    } else {
        Err(PartitionError::UnknownLeaderEpoch { known, current })
    }
}

/// Where a batch that came again stands in the log.
struct AppendedPlace {
    outcome: AppendOutcome,
    timestamp: TimestampMs,
}

#[cfg(test)]
mod tests;
