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
//! A *session* is trust under one promise number without a gap, from the moment it began. Whether the
//! other node voted against a leader here before the session began is not known; the leader finds out
//! by having an entry or a heartbeat confirmed that it sent after that moment. Where trust has lapsed
//! it begins anew with the next answer, even if that prolongs the same promise: what vouched for the
//! other node before the lapse is not relied on after it.
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
    /// The answering process and the number of its promise, and since when it has been trusted.
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
                let has_lapsed = peer.trusted_until.is_none_or(|until| until <= now);
                let until = sent + trust;
                peer.trusted_until = Some(until);
                if until <= now {
                    // It came too late for any trust.
                    peer.session = None;
                } else if has_lapsed || peer.session.is_none_or(|(known, _)| known != id) {
                    peer.session = Some((id, now));
                    effects.push(Effect::SessionBegan(node));
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(400);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn node(id: i32) -> NodeId {
        NodeId::new(id)
    }

    fn detector(id: i32, now: Instant) -> FailureDetector {
        let mut detector = FailureDetector::new(node(id), id as u64, Detection::default(), now);
        detector.watch(&BTreeSet::from([node(1), node(2)]), now);
        detector
    }

    fn probe_of(effects: &[Effect]) -> Probe {
        effects
            .iter()
            .find_map(|effect| match effect {
                Effect::Probe(_, probe) => Some(*probe),
                _ => None,
            })
            .unwrap()
    }

    /// One probe of `one` that `other` answers, both at once.
    fn exchange(one: &mut FailureDetector, other: &mut FailureDetector, now: Instant) {
        let probe = probe_of(&one.tick(now));
        let (reply, _) = other.probed(probe, now);
        one.answered(other.me, probe.sequence, reply, now);
    }

    #[test]
    fn trust_ends_before_the_promise_whatever_the_delays() {
        let start = Instant::now();
        for (out, back) in [(0, 0), (10, 300), (300, 10), (150, 150)] {
            let (mut asks, mut answers) = (detector(1, start), detector(2, start));
            let sent = start + LEASE;
            let probe = probe_of(&asks.tick(sent));
            let (reply, _) = answers.probed(probe, sent + ms(out));
            asks.answered(node(2), probe.sequence, reply, sent + ms(out + back));
            for after in 0..1000 {
                let now = sent + ms(out + back + after);
                let trusted = asks.trust(node(2), now).is_some();
                let free = answers.act_against(node(1), now) == Standing::Free;
                answers.acted(node(1));
                assert!(!(trusted && free), "after {after} ms of {out} and {back}");
            }
        }
    }

    #[test]
    fn a_gap_between_promises_begins_another_session() {
        let start = Instant::now();
        let (mut one, mut other) = (detector(1, start), detector(2, start));
        exchange(&mut one, &mut other, start);
        let first = one.trust(node(2), start + ms(1)).unwrap();
        exchange(&mut one, &mut other, start + ms(100));
        assert_eq!(
            one.trust(node(2), start + ms(101)).unwrap().since,
            first.since
        );
        exchange(&mut one, &mut other, start + ms(500));
        assert_eq!(
            one.trust(node(2), start + ms(501)).unwrap().since,
            start + ms(500)
        );
        // So does another process at the other end.
        let mut restarted = FailureDetector::new(node(2), 77, Detection::default(), start);
        exchange(&mut one, &mut restarted, start + ms(600));
        assert_eq!(
            one.trust(node(2), start + ms(601)).unwrap().since,
            start + ms(600)
        );
    }

    /// The answers are lost for a while, the probes are not: the promise goes on, the trust does not.
    #[test]
    fn trust_that_has_lapsed_begins_anew_though_the_promise_is_the_same() {
        let start = Instant::now();
        let (mut one, mut other) = (detector(1, start), detector(2, start));
        exchange(&mut one, &mut other, start);
        assert_eq!(one.trust(node(2), start + ms(1)).unwrap().since, start);
        let mut replies = Vec::new();
        for after in (100..=600).step_by(100) {
            let probe = probe_of(&one.tick(start + ms(after)));
            replies.push((probe, other.probed(probe, start + ms(after)).0));
        }
        assert_eq!(one.trust(node(2), start + ms(601)), None);
        let (probe, reply) = replies[5];
        assert_eq!(reply.promise, replies[0].1.promise, "there was no gap");
        let effects = one.answered(node(2), probe.sequence, reply, start + ms(605));
        assert!(effects.contains(&Effect::SessionBegan(node(2))));
        let trust = one.trust(node(2), start + ms(606)).unwrap();
        assert_eq!(trust.since, start + ms(605));
        // An answer that is prolonged in time leaves the session as it is.
        exchange(&mut one, &mut other, start + ms(700));
        assert_eq!(
            one.trust(node(2), start + ms(701)).unwrap().since,
            trust.since
        );
    }

    #[test]
    fn an_answer_that_comes_too_late_for_trust_begins_no_session() {
        let start = Instant::now();
        let (mut one, mut other) = (detector(1, start), detector(2, start));
        let probe = probe_of(&one.tick(start));
        let (reply, _) = other.probed(probe, start);
        let effects = one.answered(node(2), probe.sequence, reply, start + LEASE);
        assert!(!effects.contains(&Effect::SessionBegan(node(2))));
        assert_eq!(one.trust(node(2), start + LEASE), None);
        let later = start + LEASE + ms(50);
        exchange(&mut one, &mut other, later);
        assert_eq!(one.trust(node(2), later + ms(1)).unwrap().since, later);
    }

    #[test]
    fn no_promise_begins_while_a_vote_against_it_is_being_given() {
        let start = Instant::now();
        let (mut one, mut other) = (detector(1, start), detector(2, start));
        let now = start + LEASE;
        assert_eq!(other.act_against(node(1), now), Standing::Free);
        exchange(&mut one, &mut other, now);
        assert_eq!(one.trust(node(2), now), None);
        assert!(one.is_alive(node(2)), "it answers, and promises nothing");
        other.acted(node(1));
        exchange(&mut one, &mut other, now + ms(100));
        assert!(one.trust(node(2), now + ms(101)).is_some());
    }

    #[test]
    fn a_process_that_has_just_started_keeps_promises_that_it_does_not_know() {
        let start = Instant::now();
        let mut detector = detector(1, start);
        let end = start + LEASE;
        assert_eq!(
            detector.act_against(node(2), start),
            Standing::Promised(end)
        );
        assert_eq!(detector.act_against(node(2), end), Standing::Free);
    }

    #[test]
    fn a_node_dies_after_a_lease_and_no_sooner_if_its_connection_breaks() {
        let start = Instant::now();
        let (mut one, mut other) = (detector(1, start), detector(2, start));
        exchange(&mut one, &mut other, start);
        let mut now = start;
        while now < start + LEASE {
            let effects = one.tick(now);
            assert!(
                !effects.contains(&Effect::Died(node(2))),
                "{:?}",
                now - start
            );
            one.probe_failed(node(2), now);
            let next = one.next_tick().unwrap();
            assert!(next > now && next <= now + ms(100));
            now = next;
        }
        assert_eq!(now, start + LEASE, "neither sooner nor later");
        assert!(one.tick(now).contains(&Effect::Died(node(2))));
        assert!(!one.is_alive(node(2)));
        let probe = probe_of(&one.tick(now + ms(100)));
        let (reply, _) = other.probed(probe, now + ms(100));
        let effects = one.answered(node(2), probe.sequence, reply, now + ms(101));
        assert!(effects.contains(&Effect::Returned(node(2))));
    }

    #[test]
    fn answers_that_come_late_or_twice_change_nothing() {
        let start = Instant::now();
        let (mut one, mut other) = (detector(1, start), detector(2, start));
        let first = probe_of(&one.tick(start));
        let (late, _) = other.probed(first, start);
        exchange(&mut one, &mut other, start + ms(100));
        let trust = one.trust(node(2), start + ms(101));
        for sequence in [first.sequence, first.sequence + 1, 99] {
            assert!(
                one.answered(node(2), sequence, late, start + ms(101))
                    .is_empty()
            );
        }
        assert_eq!(one.trust(node(2), start + ms(101)), trust);
    }

    #[test]
    fn strangers_are_bounded_and_a_single_node_probes_nobody() {
        let start = Instant::now();
        let mut alone = FailureDetector::new(node(1), 1, Detection::default(), start);
        alone.watch(&BTreeSet::from([node(1)]), start);
        assert!(alone.tick(start).is_empty());
        assert_eq!(alone.next_tick(), None);
        for id in 2..3000 {
            let probe = Probe {
                from: node(id),
                incarnation: 1,
                sequence: 1,
            };
            let (reply, _) = alone.probed(probe, start);
            assert_eq!(reply.promise.is_some(), id < 2 + STRANGERS_MAX as i32);
        }
    }
}
