//! Which nodes answer, and what they have promised each other.
//!
//! Nodes that share a group probe each other. A node that answers a probe of another promises it:
//! for the time of a lease, on my own monotonic clock, I give no vote and stand for no election
//! against leaders on you. A leader that has such promises of a majority of its group's voters
//! knows that no other leader has been elected, and may answer reads without asking anybody.
//!
//! [`ProbeTransport`] is what carries probes. [`RaftNode`] has the other end:
//! `serve_probe` and `serve_leadership`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use futures_util::future::BoxFuture;
use odradek_protocol::ids::NodeId;
use openraft::AsyncRuntime;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::elections::Agenda;
pub use crate::failure_detector::PeerState;
use crate::failure_detector::{Effect, FailureDetector, Standing, Trust};
use crate::membership::GroupMembership;
use crate::network::NetworkError;
use crate::node::{Detection, RaftNode};
use crate::types::{GroupKey, Runtime};

/// Are you there?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Who asks.
    pub from: NodeId,
    /// A number that the asking process drew when it started.
    pub incarnation: u64,
    /// Counts the probes of that process, from 1.
    pub sequence: u64,
}

/// I am.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeReply {
    /// A number that the answering process drew when it started.
    pub incarnation: u64,
    /// Which promise this answer prolongs; `None` when it promises nothing. Another number than
    /// before says that the last promise had run out, so that votes may have been given since.
    pub promise: Option<u64>,
}

/// Do you still lead this group in this term?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadershipQuery {
    /// The group.
    pub group: GroupKey,
    /// The term in which the asked node was heard of as the leader.
    pub term: u64,
}

/// The answer to a [`LeadershipQuery`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadershipReply {
    /// The asked node leads that group in that term no more and never will again, so promises that
    /// it was given do not concern it.
    pub given_up: bool,
}

/// Carries probes between nodes. A lost probe is not sent again, and nothing waits for it longer
/// than a lease. An implementation that knows that the other end is gone answers with an error at
/// once; that shortens no promise, but the next probe follows sooner.
pub trait ProbeTransport: Send + Sync + 'static {
    /// Asks whether a node is there.
    fn probe(
        &self,
        to: NodeId,
        probe: Probe,
    ) -> BoxFuture<'static, Result<ProbeReply, NetworkError>>;

    /// Asks a node whether it has given up a leadership.
    fn leadership(
        &self,
        from: NodeId,
        to: NodeId,
        query: LeadershipQuery,
    ) -> BoxFuture<'static, Result<LeadershipReply, NetworkError>>;
}

/// The failure detector of one node and what hangs on it. See the module.
pub(crate) struct Liveness {
    pub(crate) me: NodeId,
    pub(crate) detection: Detection,
    pub(crate) transport: Arc<dyn ProbeTransport>,
    pub(crate) agenda: Agenda,
    detector: Mutex<FailureDetector>,
    /// Groups whose members may have changed, or that were opened or closed.
    changed: Mutex<HashSet<GroupKey>>,
    /// Who takes part in the groups that are open here, as of the last look.
    members: Mutex<Members>,
    stopped: AtomicBool,
    wake: Notify,
    peers: watch::Sender<Vec<PeerState>>,
}

/// Who takes part in which groups, and in how many.
#[derive(Default)]
struct Members {
    groups: HashMap<GroupKey, BTreeSet<NodeId>>,
    counts: BTreeMap<NodeId, usize>,
}

impl Members {
    /// Takes down who takes part in a group; `None` if it is not open any more.
    fn set(&mut self, key: GroupKey, membership: Option<GroupMembership>) {
        let now: BTreeSet<NodeId> = membership
            .into_iter()
            .flat_map(|membership| membership.voters.into_iter().chain(membership.learners))
            .collect();
        for node in &now {
            *self.counts.entry(*node).or_default() += 1;
        }
        let before = match now.is_empty() {
            true => self.groups.remove(&key),
            false => self.groups.insert(key, now),
        };
        for node in before.unwrap_or_default() {
            if let Some(count) = self.counts.get_mut(&node) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&node);
                }
            }
        }
    }

    fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.counts.keys().copied()
    }
}

/// While it lives, no promise begins to the node it concerns.
pub(crate) struct Acting<'a> {
    liveness: &'a Liveness,
    against: NodeId,
}

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        self.liveness.detector.lock().acted(self.against);
    }
}

impl Liveness {
    pub(crate) fn new(
        me: NodeId,
        detection: Detection,
        transport: Arc<dyn ProbeTransport>,
    ) -> Arc<Self> {
        // Tells processes of one node apart; need not be secret or follow a seed.
        let incarnation = std::hash::RandomState::new().build_hasher().finish();
        Arc::new(Self {
            me,
            detection,
            transport,
            agenda: Agenda::default(),
            detector: Mutex::new(FailureDetector::new(
                me,
                incarnation,
                detection,
                Instant::now(),
            )),
            changed: Mutex::default(),
            members: Mutex::default(),
            stopped: AtomicBool::new(false),
            wake: Notify::new(),
            peers: watch::Sender::new(Vec::new()),
        })
    }

    /// Probes until the node is gone.
    pub(crate) fn start(self: &Arc<Self>, node: &Arc<RaftNode>) {
        Runtime::spawn(probe(self.clone(), Arc::downgrade(node)));
        Runtime::spawn(crate::elections::run(self.clone(), Arc::downgrade(node)));
    }

    /// Probes nobody any more, and promises nothing.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.wake.notify_one();
        self.agenda.wake_up();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// The members of a group have changed, or it has been opened or closed here.
    pub(crate) fn members_changed(&self, key: GroupKey) {
        self.changed.lock().insert(key);
        self.wake.notify_one();
    }

    /// All other nodes that take part in a group that is open here, if that may be others than before.
    /// Only the groups that have changed are looked at.
    fn members_now(&self, node: &RaftNode) -> Option<BTreeSet<NodeId>> {
        let changed = std::mem::take(&mut *self.changed.lock());
        if changed.is_empty() {
            return None;
        }
        let mut members = self.members.lock();
        for key in changed {
            members.set(key, node.group(key).map(|group| group.membership()));
        }
        Some(members.nodes().filter(|node| *node != self.me).collect())
    }

    pub(crate) fn is_alive(&self, node: NodeId) -> bool {
        self.detector.lock().is_alive(node)
    }

    /// Trust in each of the nodes.
    pub(crate) fn trust(&self, nodes: &BTreeSet<NodeId>) -> Vec<(NodeId, Trust)> {
        let detector = self.detector.lock();
        // Read under the lock, so that the time is not older than what is compared with it.
        let now = Instant::now();
        nodes
            .iter()
            .filter_map(|node| Some((*node, detector.trust(*node, now)?)))
            .collect()
    }

    /// As [`FailureDetector::act_against`].
    pub(crate) fn act_against(&self, node: NodeId) -> Result<Acting<'_>, Instant> {
        let mut detector = self.detector.lock();
        match detector.act_against(node, Instant::now()) {
            Standing::Free => Ok(Acting {
                liveness: self,
                against: node,
            }),
            Standing::Promised(until) => Err(until),
        }
    }

    pub(crate) fn serve_probe(&self, node: &RaftNode, probe: Probe) -> ProbeReply {
        let (reply, effects) = self.detector.lock().probed(probe, Instant::now());
        self.carry_out(node, effects);
        reply
    }

    pub(crate) fn peers(&self) -> Vec<PeerState> {
        self.detector.lock().peers()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Vec<PeerState>> {
        self.peers.subscribe()
    }

    fn carry_out(&self, node: &RaftNode, effects: Vec<Effect>) {
        let mut verdict_changed = false;
        for effect in effects {
            match effect {
                // Sent by the loop that asked for them.
                Effect::Probe(..) => {}
                Effect::Died(peer) => {
                    verdict_changed = true;
                    tracing::warn!(%peer, "node does not answer");
                    self.agenda.leader_is_gone(node, peer, false);
                }
                Effect::Restarted(peer) => {
                    tracing::info!(%peer, "node has been restarted");
                    self.agenda.leader_is_gone(node, peer, true);
                }
                Effect::Returned(peer) => {
                    verdict_changed = true;
                    tracing::info!(%peer, "node answers");
                }
                Effect::SessionBegan(peer) => self.agenda.session_began(node, peer),
            }
        }
        if verdict_changed {
            self.peers.send_replace(self.peers());
        }
    }

    fn send(self: &Arc<Self>, node: &Weak<RaftNode>, to: NodeId, probe: Probe) {
        let (this, node) = (self.clone(), node.clone());
        Runtime::spawn(async move {
            let answer = this.transport.probe(to, probe);
            let Ok(answer) = tokio::time::timeout(this.detection.lease, answer).await else {
                return;
            };
            let effects = match answer {
                Ok(reply) => {
                    let mut detector = this.detector.lock();
                    detector.answered(to, probe.sequence, reply, Instant::now())
                }
                Err(_) => {
                    this.detector.lock().probe_failed(to, Instant::now());
                    this.wake.notify_one();
                    return;
                }
            };
            if let Some(node) = node.upgrade() {
                this.carry_out(&node, effects);
            }
        });
    }
}

async fn probe(liveness: Arc<Liveness>, node: Weak<RaftNode>) {
    loop {
        let woken = liveness.wake.notified();
        let Some(alive) = node.upgrade().filter(|_| !liveness.is_stopped()) else {
            return;
        };
        if let Some(members) = liveness.members_now(&alive) {
            liveness.detector.lock().watch(&members, Instant::now());
            liveness.peers.send_replace(liveness.peers());
        }
        let (effects, next) = {
            let mut detector = liveness.detector.lock();
            let effects = detector.tick(Instant::now());
            (effects, detector.next_tick())
        };
        for effect in &effects {
            if let Effect::Probe(to, probe) = effect {
                liveness.send(&node, *to, *probe);
            }
        }
        liveness.carry_out(&alive, effects);
        drop(alive);
        match next {
            Some(next) => {
                let _ = tokio::time::timeout_at(next, woken).await;
            }
            // Nobody shares a group with this node.
            None => woken.await,
        }
    }
}
