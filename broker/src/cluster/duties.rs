//! What the metadata leader does without being asked: it names a new cluster, has every node follow
//! the metadata and those vote on it that are to, fences brokers that are silent, has leaders go back to first replicas, and partitions that may
//! lose records go on without most of their voters.
//!
//! Level-triggered: every look compares what is with what should be, so that a new leader takes up
//! whatever the one before left.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::ids::{NodeId, PartitionIndex, TopicId};
use odradek_raft::RaftNode;
use odradek_raft::seldom::Seldom;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::sessions::{Change, Registered, Sessions};
use super::unclean::{Electing, Stuck, elect_all};
use crate::config::ConfigStore;
use crate::data_dir;
use crate::leading;
use crate::metadata::controller::elections::{self, HandOver};
use crate::metadata::controller::register_broker::{fence, found_cluster};
use crate::metadata::image::{BrokerRegistration, MetadataImage};
use crate::metadata::records::MetadataRecord;
use crate::metadata::service::MetadataService;
use crate::partitions::PartitionManager;
use crate::peer::{PeerReply, PeerRequest, Peers};

/// Time between two looks.
const LOOK_PERIOD: Duration = Duration::from_millis(250);
/// How long one change of the metadata group's members may take.
const MEMBERSHIP_TIMEOUT: Duration = Duration::from_secs(5);
/// Leaderships that one round of balancing moves.
const BALANCED_AT_ONCE: usize = 500;

/// Time between two looks for partitions that are stuck.
const STUCK_LOOK_PERIOD: Duration = Duration::from_secs(1);

/// What may fail at every look, for as long as its cause lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Trouble {
    Following(NodeId),
    Leaving(NodeId),
    ChangingVoters,
    Fencing(NodeId),
}

/// Which of that was said a while ago.
pub(crate) type Troubles = Seldom<Trouble>;

/// A task that ends with who began it.
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What the duties are done with.
#[derive(Clone)]
pub struct Duties {
    /// The metadata.
    pub metadata: Arc<MetadataService>,
    /// The groups of this process.
    pub raft: Arc<RaftNode>,
    /// The other nodes.
    pub peers: Arc<Peers>,
    /// Settings.
    pub config: Arc<ConfigStore>,
    /// The partitions of this broker.
    pub partitions: Arc<PartitionManager>,
}

impl std::fmt::Debug for Duties {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Duties").finish_non_exhaustive()
    }
}

impl Duties {
    /// Does them whenever this node leads, until it is aborted.
    pub async fn run(self) {
        let mut leadership = self.metadata.group().subscribe_leadership();
        loop {
            let leads = leadership.wait_for(|leadership| leadership.is_ready_leader());
            if leads.await.is_err() {
                return;
            }
            self.lead().await;
        }
    }

    async fn lead(&self) {
        tracing::info!("this node leads the metadata");
        let mut sessions = Sessions::default();
        let troubles = Troubles::default();
        let mut images = self.metadata.subscribe();
        let interval = self.config.load().cluster.imbalance_check_interval;
        let mut balanced = Instant::now();
        let mut stuck = Stuck::default();
        let mut looked = Instant::now();
        let mut electing: Option<AbortOnDrop> = None;
        while self.metadata.is_leading() {
            let image = Arc::clone(&images.borrow_and_update());
            follow_nodes(&self.metadata, &image, &troubles).await;
            let timeout = self.config.load().cluster.session_timeout;
            let (metadata, raft) = (&self.metadata, &self.raft);
            judge_sessions(metadata, raft, timeout, &mut sessions, &image, &troubles).await;
            if self.config.load().cluster.rebalance_leaders && balanced.elapsed() >= interval {
                balanced = Instant::now();
                self.balance(&image);
            }
            if looked.elapsed() >= STUCK_LOOK_PERIOD
                && electing.as_ref().is_none_or(|it| it.0.is_finished())
            {
                looked = Instant::now();
                let config = self.config.load();
                let due = stuck.look(looked, config.replication.unclean_wait, &image, &config);
                electing = (!due.is_empty()).then(|| self.elect_unclean(due));
            }
            // A change is looked at soon, and not more often than it is worth.
            tokio::time::sleep(LOOK_PERIOD / 5).await;
            let _ = tokio::time::timeout(LOOK_PERIOD, images.changed()).await;
        }
        tracing::info!("this node leads the metadata no more");
    }

    /// Has partitions that are stuck, and may lose records, go on.
    fn elect_unclean(&self, due: Vec<(TopicId, PartitionIndex)>) -> AbortOnDrop {
        let duties = self.clone();
        AbortOnDrop(tokio::spawn(async move {
            let electing = Electing {
                metadata: &duties.metadata,
                peers: &duties.peers,
                partitions: &duties.partitions,
            };
            elect_all(electing, due).await;
        }))
    }

    /// Asks the leaders of partitions that others should lead to hand over.
    fn balance(&self, image: &MetadataImage) {
        let wanted = elections::imbalanced(image, BALANCED_AT_ONCE);
        if wanted.is_empty() {
            return;
        }
        tracing::info!(
            partitions = wanted.len(),
            "leaders go back to first replicas"
        );
        let (peers, partitions) = (Arc::clone(&self.peers), Arc::clone(&self.partitions));
        tokio::spawn(async move {
            for hand_over in wanted {
                if let Err(reason) = ask_to_hand_over(&peers, &partitions, hand_over).await {
                    tracing::debug!(group = %hand_over.group, reason, "not handed over");
                }
            }
        });
    }
}

/// Has registered nodes and the voters of the cluster follow the metadata group, and nobody else,
/// and has those vote that are to, once they have caught up.
pub(crate) async fn follow_nodes(
    metadata: &MetadataService,
    image: &MetadataImage,
    troubles: &Troubles,
) {
    let group = metadata.group();
    let members = group.membership();
    let voters = image.voter_ids();
    let mut followers: BTreeSet<NodeId> = image.brokers().map(|(id, _)| id).collect();
    followers.extend(image.controllers().map(|(id, _)| id));
    followers.extend(&voters);
    for node in &followers {
        if members.voters.contains(node) || members.learners.contains(node) {
            continue;
        }
        let adding = tokio::time::timeout(MEMBERSHIP_TIMEOUT, group.add_learner(*node));
        match adding.await {
            Ok(Ok(())) => tracing::info!(%node, "node follows the metadata"),
            Ok(Err(error)) => {
                if let Some(left_out) = troubles.may_say(Trouble::Following(*node)) {
                    tracing::warn!(%node, %error, left_out, "node cannot follow");
                }
            }
            Err(_) => return,
        }
    }
    for node in members.learners.difference(&followers) {
        let removing = tokio::time::timeout(MEMBERSHIP_TIMEOUT, group.remove_learner(*node));
        match removing.await {
            Ok(Ok(())) => tracing::info!(%node, "node follows the metadata no more"),
            Ok(Err(error)) => {
                if let Some(left_out) = troubles.may_say(Trouble::Leaving(*node)) {
                    tracing::warn!(%node, %error, left_out, "learner cannot be removed");
                }
            }
            Err(_) => return,
        }
    }
    // A voter that has been taken out for having lost its log learns before it votes again.
    let caught_up = caught_up(metadata);
    let wanted: BTreeSet<NodeId> = voters
        .into_iter()
        .filter(|node| {
            members.voters.contains(node)
                || (members.learners.contains(node) && caught_up.contains(node))
        })
        .collect();
    if wanted.is_empty() || members.is_settled_on(&wanted) {
        return;
    }
    let changing = tokio::time::timeout(MEMBERSHIP_TIMEOUT, group.change_voters(wanted.clone()));
    match changing.await {
        Ok(Ok(())) => tracing::info!(voters = ?wanted, "the voters on the metadata"),
        Ok(Err(error)) => {
            if let Some(left_out) = troubles.may_say(Trouble::ChangingVoters) {
                tracing::warn!(voters = ?wanted, %error, left_out, "the voters cannot change");
            }
        }
        Err(_) => {}
    }
}

/// Fences brokers that are silent for `timeout`, and takes back those that answer again.
pub(crate) async fn judge_sessions(
    metadata: &MetadataService,
    raft: &RaftNode,
    timeout: Duration,
    sessions: &mut Sessions,
    image: &MetadataImage,
    troubles: &Troubles,
) {
    let own = raft.node_id();
    let answers = raft.peers();
    let brokers = image
        .brokers()
        .filter(|(id, _)| *id != own)
        .map(|(node, broker)| Registered {
            node,
            broker_epoch: broker.broker_epoch,
            fenced: broker.fenced,
            stopping: broker.stopping,
            last_answered: answers
                .iter()
                .find(|peer| peer.node == node)
                .and_then(|peer| peer.last_answered),
        });
    let mut changes = sessions.look(Instant::now(), timeout, brokers);
    // This node hears itself; another leader may have fenced it before.
    let is_away = |broker: &BrokerRegistration| broker.fenced && !broker.stopping;
    if image.broker(own).is_some_and(is_away) {
        changes.push(Change::Unfence(own));
    }
    for change in changes {
        let (node, fenced) = match change {
            Change::Fence(node) => (node, true),
            Change::Unfence(node) => (node, false),
        };
        match metadata
            .run(move |image| (fence(image, node, fenced), ()))
            .await
        {
            Ok(_) if fenced => tracing::warn!(%node, "broker is silent, and fenced"),
            Ok(_) => tracing::info!(%node, "broker is back, and unfenced"),
            Err(error) => {
                if let Some(left_out) = troubles.may_say(Trouble::Fencing(node)) {
                    tracing::warn!(%node, %error, left_out, "broker cannot be fenced or unfenced");
                }
            }
        }
    }
}

/// Replicas that had all of the metadata a moment ago, as its leader knows.
pub fn caught_up(metadata: &MetadataService) -> BTreeSet<NodeId> {
    let progress = match metadata.group().replication() {
        Ok(progress) => progress,
        Err(error) => {
            tracing::warn!(%error, "the progress of the metadata's replicas is not known");
            return BTreeSet::new();
        }
    };
    let end = metadata.group().offsets().high_watermark.offset();
    progress
        .into_iter()
        .filter(|replica| replica.matched >= end)
        .map(|replica| replica.node)
        .collect()
}

/// Has the leader of a partition hand it over, wherever it is.
///
/// # Errors
/// What it, or the way to it, says.
pub async fn ask_to_hand_over(
    peers: &Peers,
    partitions: &PartitionManager,
    wanted: HandOver,
) -> Result<(), String> {
    if wanted.from == peers.local().node_id() {
        let done = leading::hand_over(partitions, wanted.group, wanted.to).await;
        return done.map_err(|error| error.to_string());
    }
    let request = PeerRequest::TransferLeader {
        group: wanted.group,
        to: wanted.to,
    };
    match peers.call(wanted.from, request).await {
        Ok(PeerReply::Done) => Ok(()),
        Ok(PeerReply::Refused { reason }) => Err(reason),
        Ok(other) => Err(format!("node {} answers {other:?}", wanted.from)),
        Err(error) => Err(error.to_string()),
    }
}

/// Gives a new cluster its name, on whichever voter leads first, and returns once there is one. `named`
/// are the records by which the metadata of a new cluster names its voters, if it does.
pub async fn name_cluster(
    metadata: &MetadataService,
    voters: Vec<NodeId>,
    named: Vec<MetadataRecord>,
    known: Option<String>,
) -> String {
    let name = known.unwrap_or_else(data_dir::random_id);
    let mut images = metadata.subscribe();
    let mut leadership = metadata.group().subscribe_leadership();
    loop {
        if let Some(cluster) = images.borrow_and_update().cluster() {
            return cluster.cluster_id.clone();
        }
        if leadership.borrow_and_update().is_ready_leader() {
            let (name, voters, named) = (name.clone(), voters.clone(), named.clone());
            let founded = metadata.run(move |image| {
                let records = found_cluster(image, &name, &voters, &named);
                (records, ())
            });
            if let Err(error) = founded.await {
                tracing::debug!(%error, "the cluster is not named yet");
            }
        }
        let waiting = async {
            tokio::select! {
                _ = images.changed() => {}
                _ = leadership.changed() => {}
            }
        };
        // A command that was refused is tried again.
        let _ = tokio::time::timeout(LOOK_PERIOD, waiting).await;
    }
}
