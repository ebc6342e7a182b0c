//! All groups of one process.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use odradek_protocol::ids::{NodeId, TimestampMs};
use odradek_storage::LogConfig;
use odradek_storage::disk::Disk;
use odradek_storage::flush::Flusher;
use openraft::{Config, Raft, SnapshotPolicy, StepDownPolicy};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use crate::emptied::{Emptied, Part};
use crate::error::RaftError;
use crate::group::{Group, GroupParts};
use crate::incarnation::Succession;
use crate::journal;
use crate::liveness::{Liveness, PeerState, ProbeTransport};
use crate::log_core::{Clock, Core};
use crate::log_store::LogStore;
use crate::network::{Clients, Network};
use crate::observer::GroupObserver;
use crate::open::{self, OpenedLog};
use crate::partition_fsm::PartitionFsm;
use crate::seldom::Seldom;
use crate::shared::Shared;
use crate::transfer::{TransferLimits, Transfers};
use crate::types::{GroupKey, Incarnation, Membership, Vote, raft_id};
use crate::votes::VoteFile;

/// Groups that [`RaftNode::open_groups`] opens at the same time.
const OPEN_CONCURRENCY: usize = 64;

/// How long a shutdown waits for groups that are being opened, closed or moved.
const SETTLE_LIMIT: Duration = Duration::from_secs(2);
/// How often it looks.
const SETTLE_PERIOD: Duration = Duration::from_millis(5);

/// Marks a data directory whose logs were all closed. Kafka's name for it.
const CLEAN_SHUTDOWN: &str = ".kafka_cleanshutdown";
/// Its content, as Kafka writes it.
const CLEAN_SHUTDOWN_CONTENT: &[u8] = br#"{"version":0,"brokerEpoch":-1}"#;

/// One log directory of the broker.
#[derive(Clone)]
pub struct DataDir {
    /// Where it is; it has to exist.
    pub path: PathBuf,
    /// Makes the files in it durable.
    pub flusher: Arc<Flusher>,
}

/// Periods of the groups' clocks. Long by design: with a failure detector beside them they are
/// only the safety net, and every tick of every group costs.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// A leader without anything to replicate sends a heartbeat this often.
    pub heartbeat_ms: u64,
    /// Shortest time without a leader after which a replica stands for election.
    pub election_min_ms: u64,
    /// Longest such time.
    pub election_max_ms: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat_ms: 10_000,
            election_min_ms: 30_000,
            election_max_ms: 60_000,
        }
    }
}

/// Periods of the failure detector. All nodes must have the same lease.
#[derive(Clone, Copy, Debug)]
pub struct Detection {
    /// A node probes each of the others this often.
    pub probe_every: Duration,
    /// For how long who answers a probe gives no vote against leaders on the node that asked.
    pub lease: Duration,
}

impl Default for Detection {
    fn default() -> Self {
        Self {
            probe_every: Duration::from_millis(100),
            lease: Duration::from_millis(400),
        }
    }
}

/// What a [`RaftNode`] is made of.
pub struct RaftNodeOptions {
    /// This node.
    pub node_id: NodeId,
    /// The disk that all data directories are on.
    pub disk: Arc<dyn Disk>,
    /// The log directories. Without the first nothing can be run; another that cannot be opened is taken
    /// offline.
    pub data_dirs: Vec<DataDir>,
    /// The way to the other nodes.
    pub network: Arc<dyn Network>,
    /// Carries probes to the other nodes. Without it this node takes part in no failure detection:
    /// leaders of groups with other voters never hold a lease, and promise nothing.
    pub probes: Option<Arc<dyn ProbeTransport>>,
    /// How often nodes probe each other, and for how long an answer is a promise.
    pub detection: Detection,
    /// Periods of the groups' clocks.
    pub timing: Timing,
    /// Batches that a group takes before the first of them is committed.
    pub max_in_flight: usize,
    /// Bounds of giving records to other replicas, and taking them from others.
    pub transfers: TransferLimits,
    /// Tells the wall-clock time.
    pub clock: Clock,
}

impl RaftNodeOptions {
    /// Options with the defaults of everything that has one.
    pub fn new(
        node_id: NodeId,
        disk: Arc<dyn Disk>,
        data_dirs: Vec<DataDir>,
        network: Arc<dyn Network>,
    ) -> Self {
        Self {
            node_id,
            disk,
            data_dirs,
            network,
            probes: None,
            detection: Detection::default(),
            timing: Timing::default(),
            max_in_flight: 4096,
            transfers: TransferLimits::default(),
            clock: Arc::new(wall_clock),
        }
    }
}

fn wall_clock() -> TimestampMs {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    TimestampMs::new(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}

/// Which group to open, and how.
#[derive(Clone, Debug)]
pub struct GroupSpec {
    /// The partition.
    pub key: GroupKey,
    /// Its directory, directly below one of the data directories. Made if it does not exist.
    pub dir: PathBuf,
    /// Settings of its log.
    pub log_config: Arc<LogConfig>,
    /// The voters of a new group, the preferred leader first. Ignored when the group exists.
    pub voters: Vec<NodeId>,
    /// Whether a group that does not exist is made with these voters. Otherwise this node waits
    /// to be added by the group's leader; where that counts on it as a voter, it is taken out first.
    pub bootstrap: bool,
    /// How the group's incarnation came from the one before; `None` for a partition's first.
    pub succession: Option<Succession>,
}

pub(crate) struct DataDirState {
    pub(crate) dir: DataDir,
    pub(crate) votes: Arc<VoteFile>,
    /// Every log in the directory was closed by the process that had it before.
    was_closed: bool,
}

impl DataDirState {
    fn open(disk: &Arc<dyn Disk>, dir: &DataDir) -> io::Result<Self> {
        let marker = dir.path.join(CLEAN_SHUTDOWN);
        let was_closed = disk.read_file(&marker, 4096).is_ok();
        if was_closed {
            // Gone for good before anything is written that it would not be true of.
            disk.remove_file(&marker)?;
            disk.sync_dir(&dir.path)?;
        }
        Ok(Self {
            dir: dir.clone(),
            votes: VoteFile::open(disk.clone(), &dir.path, dir.flusher.clone())?,
            was_closed,
        })
    }
}

/// See the module.
pub struct RaftNode {
    options: RaftNodeOptions,
    data_dirs: Vec<DataDirState>,
    config: Arc<Config>,
    groups: Mutex<HashMap<GroupKey, Slot>>,
    liveness: Option<Arc<Liveness>>,
    transfers: Arc<Transfers>,
    housekeeper: mpsc::UnboundedSender<GroupKey>,
    /// Bounds what the log says of appends that are refused.
    refusals: Arc<Seldom<(NodeId, GroupKey)>>,
}

/// What opening a group found of its leadership.
enum Found {
    /// This node is the only voter.
    Alone,
    /// There are others, or this node has no vote.
    Followed {
        /// This node led it when last heard of.
        led_here: bool,
        /// Nobody has ever led it.
        is_new: bool,
    },
}

/// A group, or the place of one that is being opened or closed.
#[derive(Clone)]
enum Slot {
    Busy,
    Open(Arc<Group>),
}

impl RaftNode {
    /// Opens the vote files and starts the housekeeper. Must be called within a tokio runtime.
    pub fn open(options: RaftNodeOptions) -> Result<Arc<Self>, RaftError> {
        let mut data_dirs = Vec::with_capacity(options.data_dirs.len());
        for dir in &options.data_dirs {
            match DataDirState::open(&options.disk, dir) {
                Ok(opened) => data_dirs.push(opened),
                Err(error) if data_dirs.is_empty() => {
                    return Err(RaftError::io(format!("open {}", dir.path.display()), error));
                }
                Err(error) => dir.flusher.health().fail(&error),
            }
        }
        let config = raft_config(&options)?;
        // One entry per group at most: a group asks again only after it has been served.
        let (housekeeper, requests) = mpsc::unbounded_channel();
        let liveness = options
            .probes
            .clone()
            .map(|transport| Liveness::new(options.node_id, options.detection, transport));
        // Milliseconds, with room for as many sessions in each.
        let first_session = (options.clock)().get().unsigned_abs() << 20;
        let node = Arc::new(Self {
            liveness,
            transfers: Transfers::new(options.transfers, first_session),
            options,
            data_dirs,
            config,
            groups: Mutex::default(),
            housekeeper,
            refusals: Arc::default(),
        });
        tokio::spawn(housekeep(Arc::downgrade(&node), requests));
        if let Some(liveness) = &node.liveness {
            liveness.start(&node);
        }
        Ok(node)
    }

    /// This node's id.
    pub fn node_id(&self) -> NodeId {
        self.options.node_id
    }

    pub(crate) fn disk(&self) -> &Arc<dyn Disk> {
        &self.options.disk
    }

    pub(crate) fn now(&self) -> TimestampMs {
        (self.options.clock)()
    }

    pub(crate) fn refusals(&self) -> &Arc<Seldom<(NodeId, GroupKey)>> {
        &self.refusals
    }

    pub(crate) fn liveness(&self) -> Option<&Arc<Liveness>> {
        self.liveness.as_ref()
    }

    /// The nodes that share a group with this one, and whether they answer.
    pub fn peers(&self) -> Vec<PeerState> {
        self.liveness
            .as_ref()
            .map_or_else(Vec::new, |liveness| liveness.peers())
    }

    /// Follows which nodes answer: sent anew whenever one ceases to or does so again. `None`
    /// without a failure detector.
    pub fn subscribe_peers(&self) -> Option<watch::Receiver<Vec<PeerState>>> {
        self.liveness.as_ref().map(|liveness| liveness.subscribe())
    }

    /// A group that is open here.
    pub fn group(&self, key: GroupKey) -> Option<Arc<Group>> {
        match self.groups.lock().get(&key) {
            Some(Slot::Open(group)) => Some(group.clone()),
            _ => None,
        }
    }

    /// All groups that are open here.
    pub fn groups(&self) -> Vec<Arc<Group>> {
        self.groups
            .lock()
            .values()
            .filter_map(|slot| match slot {
                Slot::Open(group) => Some(group.clone()),
                Slot::Busy => None,
            })
            .collect()
    }

    /// Opens a group, or makes it. Returns once its log has been recovered; leadership follows.
    pub async fn open_group(
        &self,
        spec: GroupSpec,
        observer: Arc<dyn GroupObserver>,
    ) -> Result<Arc<Group>, RaftError> {
        let key = spec.key;
        {
            let mut groups = self.groups.lock();
            if groups.contains_key(&key) {
                return Err(RaftError::AlreadyOpen(key));
            }
            groups.insert(key, Slot::Busy);
        }
        let opened = self.start_group(spec, observer).await;
        {
            let mut groups = self.groups.lock();
            match &opened {
                Ok((group, _)) => groups.insert(key, Slot::Open(group.clone())),
                Err(_) => groups.remove(&key),
            };
        }
        let (group, found) = opened?;
        if let (Some(liveness), Found::Followed { led_here, is_new }) = (&self.liveness, found) {
            liveness.members_changed(key);
            liveness.agenda.opened(&group, liveness, led_here, is_new);
        }
        Ok(group)
    }

    /// Opens many groups, several at a time, so that they share their syncs. The results are in
    /// the order of the specs.
    pub async fn open_groups(
        &self,
        specs: Vec<(GroupSpec, Arc<dyn GroupObserver>)>,
    ) -> Vec<Result<Arc<Group>, RaftError>> {
        futures_util::stream::iter(specs)
            .map(|(spec, observer)| self.open_group(spec, observer))
            .buffered(OPEN_CONCURRENCY)
            .collect()
            .await
    }

    async fn start_group(
        &self,
        spec: GroupSpec,
        observer: Arc<dyn GroupObserver>,
    ) -> Result<(Arc<Group>, Found), RaftError> {
        let data_dir = self.data_dir_of(&spec.dir)?;
        let (flusher, votes) = (data_dir.dir.flusher.clone(), data_dir.votes.clone());
        let key = spec.key;
        let dir = spec.dir.clone();
        let me = raft_id(self.options.node_id);
        let shared = Shared::new(
            key,
            me,
            self.options.max_in_flight,
            observer,
            self.liveness.clone(),
        );
        let preference = spec.voters.clone();
        let with_others = !spec.bootstrap || spec.voters != [self.options.node_id];
        let voted_before = votes.get(key).map(|vote| vote.leader_id.term);
        if with_others && voted_before.is_none() {
            self.begin_voting(&votes, key, dir.clone()).await?;
        }
        let left = self.prepare_entry(&votes, &spec, voted_before).await?;
        let bootstraps = spec.bootstrap;
        let opened = {
            let disk = self.options.disk.clone();
            let health = flusher.health().clone();
            let clock = self.options.clock.clone();
            let was_closed = data_dir.was_closed;
            blocking(move || open::open(disk, health, &spec, was_closed, me, clock())).await?
        };
        let OpenedLog {
            log,
            journal,
            map,
            applied,
            log_start,
            high_watermark,
            preferred,
            sole_voter,
            made,
            part,
        } = opened;
        if let Some(left) = left {
            // Its journal says that it takes part in that one no more.
            votes
                .delete(key.in_incarnation(left))
                .await
                .map_err(|error| RaftError::io("forget a vote", error))?;
        }
        shared.raise_log_start(log_start);
        // Transactions that were open when the log was left still are.
        let first_unstable = log
            .reader()
            .with_producers(|producers| producers.first_unstable_offset());
        shared.raise_high_watermark(high_watermark, first_unstable);
        if let Some(applied) = applied {
            shared.set_visible(applied);
        }
        if made && bootstraps && !sole_voter && voted_before.is_some_and(|term| term > 0) {
            // What this replica had stored was counted on when it voted.
            return Err(RaftError::LogLost {
                group: key,
                detail: "it has voted, and there is no log".into(),
            });
        }
        require_vote(&votes, key, map.last_term(), sole_voter.then_some(me))?;
        let vote = votes.get(key);
        if let Some(vote) = &vote {
            shared.vote_found(vote);
        }
        let core = Core::new(
            shared.clone(),
            flusher,
            votes,
            self.options.clock.clone(),
            self.housekeeper.clone(),
            log,
            journal,
            map,
            applied,
        );
        shared.set_reader(core.reader.clone());
        let clients = Clients {
            network: self.options.network.clone(),
            from: self.options.node_id,
            shared: shared.clone(),
        };
        let raft = Raft::new(
            me,
            self.config.clone(),
            clients,
            LogStore::new(core.clone()),
            PartitionFsm::new(core.clone()),
        )
        .await
        .map_err(|fatal| RaftError::Stopped(fatal.to_string().into()))?;
        let found = if sole_voter {
            Found::Alone
        } else {
            Found::Followed {
                led_here: vote.is_some_and(|vote| vote.committed && vote.leader_id.voted_for == me),
                is_new: vote.is_none_or(|vote| vote.leader_id.term == 0),
            }
        };
        // With a failure detector a group that had a leader before waits for its turn.
        let at_once = match found {
            Found::Alone => true,
            Found::Followed { is_new, .. } => preferred && (is_new || self.liveness.is_none()),
        } && part == Part::Whole;
        if at_once {
            raft.trigger()
                .elect(true)
                .await
                .map_err(|fatal| RaftError::Stopped(fatal.to_string().into()))?;
        }
        let group = Group::new(GroupParts {
            shared,
            raft,
            core,
            network: self.options.network.clone(),
            liveness: self.liveness.clone(),
            node: self.options.node_id,
            dir,
            preference,
            emptied: Emptied::new(self.options.disk.clone(), part),
            transfers: self.transfers.clone(),
        });
        Ok((Arc::new(group), found))
    }

    /// Has a replica without a journal that takes part with others begin with a vote for nobody else: from here
    /// on one without a vote has lost it.
    async fn begin_voting(
        &self,
        votes: &Arc<VoteFile>,
        key: GroupKey,
        dir: PathBuf,
    ) -> Result<(), RaftError> {
        let disk = self.options.disk.clone();
        if blocking(move || Ok(open::has_journal(&*disk, &dir))).await? {
            return Ok(());
        }
        votes
            .save(key, Vote::new(0, raft_id(self.options.node_id)))
            .await
            .map_err(|error| RaftError::io("save a vote", error))
    }

    /// Before a replica enters a later incarnation than that of its journal: has it vote in no term of the
    /// new one that comes before its leaders'. Returns the incarnation that it leaves.
    async fn prepare_entry(
        &self,
        votes: &Arc<VoteFile>,
        spec: &GroupSpec,
        voted_before: Option<u64>,
    ) -> Result<Option<Incarnation>, RaftError> {
        let wanted = spec.key.incarnation;
        if wanted == Incarnation::FIRST {
            return Ok(None);
        }
        let (disk, dir) = (self.options.disk.clone(), spec.dir.clone());
        let found = blocking(move || journal::incarnation_in(&*disk, &dir)).await?;
        let Some(found) = found.filter(|found| *found < wanted) else {
            return Ok(None);
        };
        if voted_before.is_none() {
            let vote = Vote::new(wanted.term(), raft_id(self.options.node_id));
            votes
                .save(spec.key, vote)
                .await
                .map_err(|error| RaftError::io("save a vote", error))?;
        }
        Ok(Some(found))
    }

    /// Takes every group in a data directory offline, because that has failed.
    pub fn fail_directory(&self, path: &Path, cause: &str) {
        for group in self.groups() {
            if group.dir().parent() == Some(path) && group.offline_cause().is_none() {
                group.core.fail(cause);
            }
        }
    }

    /// Stops every group and leaves its files as they are, as a crash would: for a data directory
    /// that has failed, and for tests.
    pub async fn abandon(&self) {
        self.stop_probing();
        for group in self.groups() {
            if let Ok(group) = self.take(group.key()) {
                // Nothing is written, so nothing can fail.
                let _ = group.stop(false).await;
                self.groups.lock().remove(&group.key());
            }
        }
    }

    fn stop_probing(&self) {
        if let Some(liveness) = &self.liveness {
            liveness.stop();
        }
    }

    /// The data directory that knows of the last vote in the group, if there is one. A replica without data
    /// is to be opened there: elsewhere it would not know that it has voted.
    pub fn voted_in(&self, key: GroupKey) -> Option<&Path> {
        let votes = self.data_dirs.iter().filter_map(|data_dir| {
            let term = data_dir.votes.get(key)?.leader_id.term;
            Some((term, data_dir.dir.path.as_path()))
        });
        let last = votes.max_by_key(|(term, _)| *term);
        last.map(|(_, path)| path)
    }

    pub(crate) fn data_dir_of(&self, dir: &Path) -> Result<&DataDirState, RaftError> {
        self.data_dirs
            .iter()
            .find(|data_dir| dir.parent() == Some(data_dir.dir.path.as_path()))
            .ok_or_else(|| {
                RaftError::io(
                    format!("open {}", dir.display()),
                    io::Error::new(io::ErrorKind::NotFound, "not below a data directory"),
                )
            })
    }

    /// Stops a group and makes its log durable, down to what the next start needs to be quick.
    pub async fn close_group(&self, key: GroupKey) -> Result<(), RaftError> {
        let group = self.take(key)?;
        let closed = group.stop(true).await;
        self.forget(key);
        closed
    }

    /// Stops a group for good: forgets its votes, and takes its directory out of the way by
    /// renaming it as Kafka does. Returns where the directory is now; the caller removes it.
    pub async fn delete_group(&self, key: GroupKey) -> Result<PathBuf, RaftError> {
        let group = self.take(key)?;
        let renamed = group.delete().await;
        self.forget(key);
        renamed
    }

    /// A group that was taken is open here no more.
    pub(crate) fn forget(&self, key: GroupKey) {
        self.groups.lock().remove(&key);
        if let Some(liveness) = &self.liveness {
            liveness.members_changed(key);
        }
    }

    /// Marks a group's slot as busy and hands the group out.
    pub(crate) fn take(&self, key: GroupKey) -> Result<Arc<Group>, RaftError> {
        let mut groups = self.groups.lock();
        match groups.get(&key) {
            Some(Slot::Open(group)) => {
                let group = group.clone();
                groups.insert(key, Slot::Busy);
                Ok(group)
            }
            _ => Err(RaftError::UnknownGroup(key)),
        }
    }

    /// Waits until no group is being opened, closed or moved, for a while. Returns whether none is.
    async fn settles(&self) -> bool {
        let deadline = tokio::time::Instant::now() + SETTLE_LIMIT;
        loop {
            let is_busy = |slot: &Slot| matches!(slot, Slot::Busy);
            if !self.groups.lock().values().any(is_busy) {
                return true;
            }
            if tokio::time::Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(SETTLE_PERIOD).await;
        }
    }

    /// Closes every group, and marks the data directories of which every log was closed. Failures
    /// are logged; the first is returned.
    pub async fn shutdown(&self) -> Result<(), RaftError> {
        // Of one in between nobody knows whether it will have been closed.
        let is_settled = self.settles().await;
        let results: Vec<_> = futures_util::stream::iter(self.groups())
            .map(|group| async move {
                let closed = self.close_group(group.key()).await;
                if let Err(error) = &closed {
                    tracing::warn!(group = %group.key(), %error, "group not closed cleanly");
                }
                (group.dir().to_path_buf(), closed)
            })
            .buffer_unordered(OPEN_CONCURRENCY)
            .collect()
            .await;
        for data_dir in &self.data_dirs {
            let path = &data_dir.dir.path;
            let all_closed = results
                .iter()
                .all(|(dir, closed)| closed.is_ok() || dir.parent() != Some(path));
            if all_closed && is_settled && !data_dir.dir.flusher.health().is_offline() {
                self.options
                    .disk
                    .replace_file(&path.join(CLEAN_SHUTDOWN), CLEAN_SHUTDOWN_CONTENT)
                    .map_err(|error| {
                        RaftError::io(format!("mark {} as closed", path.display()), error)
                    })?;
            }
        }
        self.stop_probing();
        results.into_iter().try_for_each(|(_, closed)| closed)
    }
}

impl Drop for RaftNode {
    fn drop(&mut self) {
        self.stop_probing();
    }
}

/// Makes sure that the vote of a group is not behind the log that was written under it: its file is lost or damaged
/// then. The only voter, which is told as `alone`, cannot have promised its vote to anybody else; another could
/// vote twice in one term.
fn require_vote(
    votes: &VoteFile,
    key: GroupKey,
    last_term: u64,
    alone: Option<u64>,
) -> Result<(), RaftError> {
    let known = votes.get(key).map(|vote| vote.leader_id.term);
    if known.is_some_and(|term| term >= last_term) {
        return Ok(());
    }
    let Some(me) = alone else {
        return Err(RaftError::VoteLost {
            group: key,
            last_term,
        });
    };
    if last_term > 0 {
        tracing::warn!(group = %key, last_term, "the vote is lost; taken from the log");
        votes.adopt(key, Vote::new(last_term, me));
    }
    Ok(())
}

fn raft_config(options: &RaftNodeOptions) -> Result<Arc<Config>, RaftError> {
    let config = Config {
        cluster_name: "odradek".into(),
        heartbeat_interval: options.timing.heartbeat_ms,
        election_timeout_min: options.timing.election_min_ms,
        election_timeout_max: options.timing.election_max_ms,
        // A restarted leader that went on in its old term would use indexes again that it had
        // used, and lost, before: the replicas would diverge without noticing.
        enable_leader_restore: Some(false),
        enable_pre_vote: Some(true),
        // A follower that comes back with an empty disk, or without the tail that write.caching let
        // it lose, is given the log again. What was committed stays so, and it has no vote that it
        // has forgotten; without this the leader would stop at the first answer that falls back.
        allow_log_reversion: Some(true),
        // A snapshot is taken when the log start has left a segment behind, and stands for just
        // that segment's entries, so all it covers is dropped with it.
        snapshot_policy: SnapshotPolicy::Never,
        // openraft would refuse writes and ask one node to take over, once; if that one is dead,
        // nobody leads. With a failure detector this crate sees to it.
        removed_leader_step_down: match options.probes {
            Some(_) => StepDownPolicy::Never,
            None => StepDownPolicy::After(150),
        },
        max_in_snapshot_log_to_keep: 0,
        // How far behind a replica is says nothing about a log that is the data itself.
        replication_lag_threshold: u64::MAX,
        // Room for what may be in flight and for openraft's own messages besides.
        api_channel_size: Some(options.max_in_flight as u64 + 1024),
        ..Config::default()
    };
    config
        .validate()
        .map(Arc::new)
        .map_err(|error| RaftError::io("configure raft", io::Error::other(error.to_string())))
}

/// Runs something that waits for the disk where it may.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RaftError> + Send + 'static,
) -> Result<T, RaftError> {
    // A runtime of one thread has nobody else to serve meanwhile. Simulations run on one, in virtual time
    // and on simulated disks, and what happens there follows from a seed alone.
    let runtime = tokio::runtime::Handle::current();
    if runtime.runtime_flavor() == tokio::runtime::RuntimeFlavor::CurrentThread {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(RaftError::Stopped(error.to_string().into())),
    }
}

/// Has groups drop what the log start has left behind.
async fn housekeep(
    node: std::sync::Weak<RaftNode>,
    mut requests: mpsc::UnboundedReceiver<GroupKey>,
) {
    while let Some(key) = requests.recv().await {
        let Some(node) = node.upgrade() else { return };
        if let Some(group) = node.group(key) {
            group.drop_old_entries().await;
        }
    }
}

/// The membership of a new group.
pub(crate) fn bootstrap_membership(voters: &[NodeId]) -> Membership {
    let voters: BTreeSet<u64> = voters.iter().map(|node| raft_id(*node)).collect();
    Membership::new_with_defaults(vec![voters], [])
}
