//! Which nodes answer, which promises were given and received: a state machine without a clock.
//!
//! A *promise* is given by answering a probe: for `lease` from the arrival of the probe, the node
//! that answers acts against no leader on the node that asked. Promises of one number follow each
//! other without a gap; after a gap the number is a new one, because in the gap votes may have been
//! given.
//!
//! *Trust* is the other side: an answered probe is trusted for 0.9 of the lease from the moment it
//! was *sent*. Sending comes before arriving, so
//!
//! ```text
//! end of trust = sent + 0.9 × lease  <  arrived + lease = end of the promise
//! ```
//!
//! holds while neither clock runs more than a tenth faster than the other. Nothing else is asked of
//! clocks, and the wall clock is not read at all.
//!
//! A *session* is trust under one promise number, from the moment that number was first heard of.
//! Whether the other node voted against a leader here before the session began is not known; the
//! leader finds out by having an entry or a heartbeat confirmed that it sent after that moment.
//!
//! A node that has just started does not know what it had promised. Until one lease has passed it
//! counts as having promised everybody everything.
//!
//! A node is *dead* when none of its answers has come for a lease. That is an opinion, for
//! elections to be held in time; no safety rests on it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use odradek_protocol::ids::NodeId;
use tokio::time::Instant;

use crate::liveness::{Probe, ProbeReply};
use crate::node::Detection;

/// Probes to one node that may be unanswered; older ones are worth nothing any more.
const OUTSTANDING_MAX: usize = 32;
/// Nodes that are answered without being probed. Node ids are those of the transport, so this only
/// bounds a cluster that keeps changing its ids.
const STRANGERS_MAX: usize = 1024;
/// Pause after a probe that failed at once.
const RETRY: Duration = Duration::from_millis(20);

/// Something for the shell to do or to pass on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Send this probe.
    Probe(NodeId, Probe),
    /// The node has not answered for a lease.
    Died(NodeId),
    /// A node that did not answer does so now.
    Returned(NodeId),
    /// The node has another process than before: it leads nothing that it led.
    Restarted(NodeId),
    /// A session with the node begins.
    SessionBegan(NodeId),
}

/// Whether acting against leaders on a node breaks a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It breaks none, and none is given until [`FailureDetector::acted`].
    Free,
    /// It does, at least until then.
    Promised(Instant),
}

/// Trust in a node's promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trust {
    /// When the session began.
    pub(crate) since: Instant,
    /// When the trust ends unless another answer comes.
    pub(crate) until: Instant,
}

/// What is known of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerState {
    /// The node.
    pub node: NodeId,
    /// Whether it is thought to answer. A node of which nothing is known yet is.
    pub alive: bool,
    /// When its last answer came.
    pub last_answered: Option<Instant>,
}

#[derive(Debug)]
struct Peer {
    /// Since when it is probed; `None` for one that only asks.
    watched_since: Option<Instant>,
    outstanding: VecDeque<(u64, Instant)>,
    next_probe: Instant,
    last_answered: Option<Instant>,
    dead: bool,
    /// The answering process and the number of its promise, and since when that is known.
    session: Option<((u64, u64), Instant)>,
    trusted_until: Option<Instant>,
    incarnation: Option<u64>,
    /// The number of the promise given to it, and its end.
    promise: Option<(u64, Instant)>,
    /// Votes and candidacies against its leaders that are being carried out.
    acting: usize,
}

impl Peer {
    fn new(now: Instant) -> Self {
        Self {
            watched_since: None,
            outstanding: VecDeque::new(),
            next_probe: now,
            last_answered: None,
            dead: false,
            session: None,
            trusted_until: None,
            incarnation: None,
            promise: None,
            acting: 0,
        }
    }

    /// When it counts as dead unless it answers.
    fn dies_at(&self, lease: Duration) -> Option<Instant> {
        let since = self.watched_since?;
        Some(self.last_answered.map_or(since, |at| at.max(since)) + lease)
    }

    /// Notes which process speaks. Returns whether it is another one than before.
    fn is_other_process(&mut self, incarnation: u64) -> bool {
        self.incarnation
            .replace(incarnation)
            .is_some_and(|before| before != incarnation)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct FailureDetector {
    me: NodeId,
    incarnation: u64,
    detection: Detection,
    /// When what an earlier process on this node promised has surely run out.
    unknown_promises_end: Instant,
    /// Number of the next promise that begins.
    next_promise: u64,
    /// Number of the last probe to anybody, so that no answer is taken for that of another probe.
    sequence: u64,
    peers: BTreeMap<NodeId, Peer>,
}

impl FailureDetector {
    /// A detector of a process that has just started and takes `incarnation` for its number.
    pub(crate) fn new(me: NodeId, incarnation: u64, detection: Detection, now: Instant) -> Self {
        Self {
            me,
            incarnation,
            detection,
            unknown_promises_end: now + detection.lease,
            next_promise: 1,
            sequence: 0,
            peers: BTreeMap::new(),
        }
    }

    /// From now on these nodes are probed, and no others.
    pub(crate) fn watch(&mut self, nodes: &BTreeSet<NodeId>, now: Instant) {
        for (node, peer) in &mut self.peers {
            if !nodes.contains(node) {
                peer.watched_since = None;
                peer.dead = false;
            }
        }
        for node in nodes.iter().filter(|node| **node != self.me) {
            let peer = self.peers.entry(*node).or_insert_with(|| Peer::new(now));
            if peer.watched_since.is_none() {
                peer.watched_since = Some(now);
                peer.next_probe = now;
            }
        }
        self.peers.retain(|_, peer| {
            peer.watched_since.is_some()
                || peer.acting > 0
                || peer.promise.is_some_and(|(_, end)| end > now)
        });
    }

    /// Sends the probes that are due and finds out who has died.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Effect> {
        let mut effects = Vec::new();
        let lease = self.detection.lease;
        for (node, peer) in &mut self.peers {
            if peer.watched_since.is_none() {
                continue;
            }
            if now >= peer.next_probe {
                self.sequence += 1;
                peer.next_probe = now + self.detection.probe_every;
                peer.outstanding.push_back((self.sequence, now));
                if peer.outstanding.len() > OUTSTANDING_MAX {
                    peer.outstanding.pop_front();
                }
                let probe = Probe {
                    from: self.me,
                    incarnation: self.incarnation,
                    sequence: self.sequence,
                };
                effects.push(Effect::Probe(*node, probe));
            }
            if !peer.dead && peer.dies_at(lease).is_some_and(|at| now >= at) {
                peer.dead = true;
                effects.push(Effect::Died(*node));
            }
        }
        effects
    }

    /// When [`FailureDetector::tick`] has something to do next.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        self.peers
            .values()
            .filter(|peer| peer.watched_since.is_some())
            .flat_map(|peer| {
                let dies_at = peer.dies_at(self.detection.lease).filter(|_| !peer.dead);
                [Some(peer.next_probe), dies_at]
            })
            .flatten()
            .min()
    }

    /// A probe could not be delivered. The next one follows sooner, and nothing else.
    pub(crate) fn probe_failed(&mut self, node: NodeId, now: Instant) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.next_probe = peer.next_probe.min(now + RETRY);
        }
    }

    /// The answer to a probe came.
    pub(crate) fn answered(
        &mut self,
        node: NodeId,
        sequence: u64,
        reply: ProbeReply,
        now: Instant,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        let trust = self.detection.lease * 9 / 10;
        let Some(peer) = self.peers.get_mut(&node) else {
            return effects;
        };
        let Some(at) = peer
            .outstanding
            .iter()
            .position(|(outstanding, _)| *outstanding == sequence)
        else {
            // An answer to an older probe than one that has been answered.
            return effects;
        };
        let sent = peer.outstanding.drain(..=at).next_back();
        if peer.is_other_process(reply.incarnation) {
            effects.push(Effect::Restarted(node));
        }
        if std::mem::take(&mut peer.dead) || peer.last_answered.is_none() {
            effects.push(Effect::Returned(node));
        }
        peer.last_answered = Some(now);
        match (reply.promise, sent) {
            (Some(promise), Some((_, sent))) => {
                let id = (reply.incarnation, promise);
                if peer.session.is_none_or(|(known, _)| known != id) {
                    peer.session = Some((id, now));
                    effects.push(Effect::SessionBegan(node));
                }
                peer.trusted_until = Some(sent + trust);
            }
            _ => {
                peer.session = None;
                peer.trusted_until = None;
            }
        }
        effects
    }

    /// A probe of another node came: answers it, and so promises.
    pub(crate) fn probed(&mut self, probe: Probe, now: Instant) -> (ProbeReply, Vec<Effect>) {
        let mut effects = Vec::new();
        let mut reply = ProbeReply {
            incarnation: self.incarnation,
            promise: None,
        };
        let known = self.peers.contains_key(&probe.from);
        if probe.from == self.me || (!known && self.peers.len() >= STRANGERS_MAX) {
            return (reply, effects);
        }
        let peer = self
            .peers
            .entry(probe.from)
            .or_insert_with(|| Peer::new(now));
        if peer.is_other_process(probe.incarnation) {
            effects.push(Effect::Restarted(probe.from));
        }
        let end = now + self.detection.lease;
        match &mut peer.promise {
            Some((number, until)) if *until > now => {
                *until = end;
                reply.promise = Some(*number);
            }
            // What is being done now was begun without a promise.
            _ if peer.acting > 0 => {}
            promise => {
                *promise = Some((self.next_promise, end));
                reply.promise = Some(self.next_promise);
                self.next_promise += 1;
            }
        }
        (reply, effects)
    }

    /// Asks whether a vote or a candidacy against leaders on `node` breaks a promise. If it does
    /// not, no promise begins until [`FailureDetector::acted`] says that it has been carried out.
    pub(crate) fn act_against(&mut self, node: NodeId, now: Instant) -> Standing {
        if now < self.unknown_promises_end {
            return Standing::Promised(self.unknown_promises_end);
        }
        let peer = self.peers.entry(node).or_insert_with(|| Peer::new(now));
        match peer.promise {
            Some((_, until)) if until > now => Standing::Promised(until),
            _ => {
                peer.acting += 1;
                Standing::Free
            }
        }
    }

    /// What [`FailureDetector::act_against`] found free has been carried out.
    pub(crate) fn acted(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.acting = peer.acting.saturating_sub(1);
        }
    }

    /// Whether `node` has promised to act against no leader here, and since when without a gap.
    pub(crate) fn trust(&self, node: NodeId, now: Instant) -> Option<Trust> {
        let peer = self.peers.get(&node)?;
        let until = peer.trusted_until.filter(|until| now < *until)?;
        let (_, since) = peer.session?;
        Some(Trust { since, until })
    }

    /// Whether a node is thought to answer.
    pub(crate) fn is_alive(&self, node: NodeId) -> bool {
        node == self.me || self.peers.get(&node).is_none_or(|peer| !peer.dead)
    }

    /// The nodes that are probed.
    pub(crate) fn peers(&self) -> Vec<PeerState> {
        self.peers
            .iter()
            .filter(|(_, peer)| peer.watched_since.is_some())
            .map(|(node, peer)| PeerState {
                node: *node,
                alive: !peer.dead,
                last_answered: peer.last_answered,
            })
            .collect()
    }
}
