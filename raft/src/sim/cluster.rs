//! The replicas of one group, and everything that can be done to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use odradek_protocol::ids::{NodeId, Offset, TimestampMs};
use odradek_storage::SimDisk;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::keyed::{self, Record};
use super::{
    batches, eventually, group_spec, open_spec, propose, start_detecting_node, start_node,
    virtual_clock,
};
use crate::memory_network::MemoryNetwork;
use crate::{AppendOutcome, Group, GroupSpec, Incarnation, RaftNode, Succession};

/// What a cluster consists of.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Voters of the group when it is made.
    pub(super) voters: i32,
    /// Nodes that have no part in it at first.
    pub(super) spares: i32,
    /// Whether the nodes have failure detectors, and the slow clocks that go with them.
    pub(super) detects: bool,
    /// Whether records have keys, and the replicas compact their logs.
    pub(super) compacts: bool,
}

pub(super) struct Replica {
    pub(super) id: i32,
    disk: SimDisk,
    /// Whether it has lost a disk: from then on it has to be given what it holds.
    replaced: bool,
    /// Whether the group counts it as lost: it has not been given all of it again.
    lost: bool,
    /// What it has heard of the partition's group.
    knows: Option<Begun>,
    pub(super) node: Option<Arc<RaftNode>>,
    pub(super) group: Option<Arc<Group>>,
}

/// A later incarnation, as the metadata would have it.
pub(super) type Begun = (Incarnation, Succession);

pub(super) struct Cluster {
    shape: Shape,
    /// What the metadata says of the partition's group.
    begun: Option<Begun>,
    /// The newest incarnation that has been begun. What others acknowledge is worth nothing.
    current: Arc<Mutex<Incarnation>>,
    pub(super) network: MemoryNetwork,
    pub(super) replicas: Vec<Replica>,
    pub(super) random: StdRng,
    next_id: u64,
    /// What was acknowledged, and with what.
    pub(super) acknowledged: Arc<Mutex<BTreeMap<u64, AppendOutcome>>>,
    /// What readers have seen: base offset → bytes.
    pub(super) seen: BTreeMap<i64, (u64, Bytes)>,
    /// Of a group that compacts: every record that readers have seen, by offset.
    pub(super) history: BTreeMap<i64, Record>,
    clock: Arc<dyn Fn() -> TimestampMs + Send + Sync>,
    /// The highest high watermark that any replica has shown.
    pub(super) highest_watermark: i64,
    pub(super) trace: Vec<String>,
    /// How often logs were compacted, and records given to other replicas.
    pub(super) compactions: Arc<AtomicU64>,
    pub(super) given: u64,
    /// How many disks were taken away.
    pub(super) disks_lost: u64,
}

impl Cluster {
    pub(super) async fn start(seed: u64, shape: Shape) -> Self {
        let network = MemoryNetwork::new();
        if shape.detects {
            network.break_streams_after(Duration::from_millis(700));
        }
        let mut cluster = Self {
            shape,
            begun: None,
            current: Arc::default(),
            network,
            replicas: (1..=shape.voters + shape.spares)
                .map(|id| Replica {
                    id,
                    disk: SimDisk::new(),
                    replaced: false,
                    lost: false,
                    knows: None,
                    node: None,
                    group: None,
                })
                .collect(),
            random: StdRng::seed_from_u64(seed),
            next_id: 1,
            acknowledged: Arc::default(),
            seen: BTreeMap::new(),
            history: BTreeMap::new(),
            clock: virtual_clock(),
            highest_watermark: 0,
            trace: Vec::new(),
            compactions: Arc::default(),
            given: 0,
            disks_lost: 0,
        };
        for index in 0..cluster.replicas.len() {
            cluster.start_replica(index).await;
        }
        cluster
    }

    /// One of the nodes.
    pub(super) fn any_node(&mut self) -> NodeId {
        let count = self.replicas.len() as i32;
        NodeId::new(self.random.random_range(1..=count))
    }

    pub(super) async fn start_replica(&mut self, index: usize) {
        let shape = self.shape;
        let replica = &mut self.replicas[index];
        if replica.node.is_some() {
            return;
        }
        let node = if shape.detects {
            start_detecting_node(replica.id, &replica.disk, &self.network)
        } else {
            start_node(replica.id, &replica.disk, Arc::new(self.network.clone()))
        };
        let node = node.unwrap();
        // Messages arrive before the group is open, too.
        self.network.add(&node);
        let voters: Vec<i32> = (1..=shape.voters).collect();
        let mut spec = group_spec(&voters);
        if replica.id > shape.voters {
            spec.voters.clear();
            spec.bootstrap = false;
        }
        // There has been a leader, as the metadata knows.
        spec.bootstrap &= !replica.replaced;
        enter(&mut spec, replica.knows);
        replica.group = Some(open_spec(&node, spec).await.unwrap());
        replica.node = Some(node);
        self.note_era(index);
    }

    /// Whether a replica takes part in the newest incarnation that has been begun.
    pub(super) fn is_current(&self, group: &Group) -> bool {
        group.key().incarnation == *self.current.lock()
    }

    /// If this replica has just begun a new incarnation: from here on what counts is what it has.
    fn note_era(&mut self, index: usize) {
        let replica = &self.replicas[index];
        let (Some(group), Some((incarnation, succession))) = (&replica.group, self.begun) else {
            return;
        };
        let is_news = *self.current.lock() < incarnation
            && group.key().incarnation == incarnation
            && succession.founder == NodeId::new(replica.id);
        if !is_news {
            return;
        }
        *self.current.lock() = incarnation;
        let (from, to) = (group.offsets().log_start.offset(), group.reader().log_end());
        let kept = batches(group, from.max(group.reader().log_start()), to);
        self.highest_watermark = to.get();
        self.seen.retain(|base, _| *base < from.get());
        let ids: BTreeSet<u64> = kept.values().map(|(id, _)| *id).collect();
        self.seen.retain(|_, (id, _)| !ids.contains(id));
        self.acknowledged.lock().retain(|id, outcome| {
            let base = outcome.base_offset.get();
            base < from.get() || kept.get(&base).is_some_and(|(found, _)| found == id)
        });
        self.seen.extend(kept);
    }

    /// Gives most voters up: some replica that is there begins a new incarnation. Nobody is asked
    /// whether most voters are there; if they are, and are not told, they go on.
    pub(super) async fn elect_unclean(&mut self) {
        let known = self.begun.map_or(Incarnation::FIRST, |(known, _)| known);
        let standings: Vec<_> = self
            .replicas
            .iter()
            .filter_map(|replica| Some((replica.id, replica.group.as_ref()?.standing())))
            .collect();
        let terms = standings.iter().map(|(_, it)| it.term);
        let next = terms.max().unwrap_or(0).max(known.term()) + 40;
        let able: Vec<_> = standings
            .iter()
            .filter(|(_, it)| it.incarnation == known && it.last.is_some())
            .collect();
        if able.is_empty() {
            return;
        }
        let (founder, standing) = able[self.random.random_range(0..able.len())];
        let succession = Succession {
            predecessor: known,
            founder: NodeId::new(*founder),
            kept_end: standing.committed_end,
            log_start: standing.log_start,
        };
        self.begun = Some((Incarnation::new(next as u32), succession));
        let index = *founder as usize - 1;
        self.learn(index).await;
    }

    /// Has a replica hear of the newest incarnation: it leaves the one that it is in. It may be killed
    /// meanwhile.
    pub(super) async fn learn(&mut self, index: usize) {
        let (begun, shape) = (self.begun, self.shape);
        let replica = &mut self.replicas[index];
        if replica.knows == begun {
            return;
        }
        replica.knows = begun;
        let Some(node) = replica.node.clone() else {
            return;
        };
        if let Some(group) = replica.group.take() {
            // One whose disk has failed is not closed cleanly.
            let _ = node.close_group(group.key()).await;
        }
        let voters: Vec<i32> = (1..=shape.voters).collect();
        let mut spec = group_spec(&voters);
        spec.bootstrap = false;
        enter(&mut spec, begun);
        match open_spec(&node, spec).await {
            Ok(group) => {
                self.replicas[index].group = Some(group);
                self.note_era(index);
            }
            Err(error) => {
                self.trace.push(format!("{index} does not enter: {error}"));
                self.kill(index, true).await;
            }
        }
    }

    /// As [`Cluster::learn`], with a power cut somewhere on the way.
    pub(super) async fn learn_and_die(&mut self, index: usize) {
        let steps = self.random.random_range(1..40);
        let replica = &self.replicas[index];
        if replica.node.is_some() {
            replica.disk.stop_at(replica.disk.steps() + steps);
        }
        self.learn(index).await;
        self.kill(index, true).await;
        self.start_replica(index).await;
    }

    /// Has the leader of the newest incarnation take all first voters in again.
    pub(super) fn restore_voters(&mut self) {
        let voters: BTreeSet<NodeId> = (1..=self.shape.voters).map(NodeId::new).collect();
        let leaders = self.leaders();
        let leader = leaders.into_iter().find(|leader| self.is_current(leader));
        if let Some(leader) = leader {
            tokio::spawn(async move {
                for voter in &voters {
                    leader.add_learner(*voter).await?;
                }
                leader.change_voters(voters).await
            });
        }
    }

    /// Kills a replica, in the middle of a write if it comes to one soon. With `power`, what its
    /// disk had not synced is lost.
    pub(super) async fn kill(&mut self, index: usize, power: bool) {
        let in_steps = self.random.random_range(1..6);
        let seed = self.random.random();
        let replica = &mut self.replicas[index];
        let Some(node) = replica.node.take() else {
            return;
        };
        if let Some(group) = &replica.group {
            self.given += group.transfers.opened();
        }
        if power {
            replica.disk.stop_at(replica.disk.steps() + in_steps);
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        self.network.remove(NodeId::new(replica.id));
        if power {
            replica.disk.stop_at(replica.disk.steps() + 1);
        }
        node.abandon().await;
        replica.group = None;
        if power {
            replica.disk.power_cut(seed);
        }
    }

    /// Takes a replica's disk away, if the group can do without it. It comes back with an empty one.
    pub(super) async fn lose_disk(&mut self, index: usize) {
        self.note_whole();
        if !self.can_lose(index) {
            return;
        }
        self.kill(index, false).await;
        let replica = &mut self.replicas[index];
        replica.disk = SimDisk::new();
        replica.replaced = true;
        replica.lost = true;
        self.disks_lost += 1;
    }

    /// Whether so few replicas are without what they held, this one with them, that a majority of the voters
    /// is not, whoever of the members votes next. While voters are being changed nobody loses anything.
    fn can_lose(&self, index: usize) -> bool {
        let Some(leader) = self.leader_with_lease() else {
            return false;
        };
        let members = leader.membership();
        let id = |replica: &Replica| NodeId::new(replica.id);
        let lost = |replica: &&Replica| replica.lost && members.has(id(replica));
        let one = &self.replicas[index];
        let others = self.replicas.iter().filter(lost);
        let gone = others.filter(|replica| replica.id != one.id).count() + 1;
        let is_settled = members.committed && members.joint.is_none();
        is_settled && (!members.has(id(one)) || gone * 2 < members.voters.len())
    }

    /// A replica that lost its disk counts again once it takes its full part, or none at all: who takes it in
    /// knows that it holds nothing.
    fn note_whole(&mut self) {
        let Some(leader) = self.leader_with_lease() else {
            return;
        };
        let members = leader.membership();
        if !members.committed || members.joint.is_some() {
            return;
        }
        for replica in self.replicas.iter_mut().filter(|replica| replica.lost) {
            let node = NodeId::new(replica.id);
            let is_whole = replica.group.as_ref().is_some_and(|group| group.is_whole());
            if !members.has(node) || is_whole && !leader.incomplete_replicas().contains(&node) {
                replica.lost = false;
            }
        }
    }

    fn leader_with_lease(&self) -> Option<Arc<Group>> {
        let groups = self.replicas.iter().filter_map(|it| it.group.clone());
        groups.into_iter().find(|group| group.holds_lease())
    }

    /// Cuts the power of all nodes.
    pub(super) async fn kill_all(&mut self) {
        for replica in self.replicas.iter().filter(|it| it.node.is_some()) {
            replica.disk.stop_at(replica.disk.steps() + 1);
        }
        for index in 0..self.replicas.len() {
            self.kill(index, true).await;
        }
    }

    pub(super) fn leaders(&self) -> Vec<Arc<Group>> {
        self.replicas
            .iter()
            .filter_map(|replica| replica.group.clone())
            .filter(|group| group.leadership().is_ready_leader())
            .collect()
    }

    /// Has every node that takes itself for the leader append some batches.
    pub(super) fn produce(&mut self) {
        for leader in self.leaders() {
            for _ in 0..self.random.random_range(1..8) {
                let id = self.next_id;
                self.next_id += 1;
                let proposed = match self.shape.compacts {
                    true => keyed::propose(&leader, id),
                    false => propose(&leader, id),
                };
                let Ok((offset, committed)) = proposed else {
                    continue;
                };
                let acknowledged = self.acknowledged.clone();
                let (current, incarnation) = (self.current.clone(), leader.key().incarnation);
                tokio::spawn(async move {
                    if let Ok(Ok(outcome)) = committed.await {
                        assert_eq!(
                            outcome.base_offset, offset,
                            "the offset was foreseen wrongly"
                        );
                        if incarnation == *current.lock() {
                            acknowledged.lock().insert(id, outcome);
                        }
                    }
                });
            }
        }
    }

    /// Whether the records have keys.
    pub(super) fn compacts(&self) -> bool {
        self.shape.compacts
    }

    /// Has a replica compact its log.
    pub(super) fn compact(&self, index: usize) {
        let Some(group) = self.replicas[index].group.clone() else {
            return;
        };
        let now = (self.clock)();
        let compactions = Arc::clone(&self.compactions);
        tokio::spawn(async move {
            // It may be killed in the middle.
            if let Ok(Some(_)) = keyed::compact(&group, now).await {
                compactions.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    pub(super) fn advance_log_start(&mut self) {
        let Some(leader) = self.leaders().first().cloned() else {
            return;
        };
        let offsets = leader.offsets();
        let (from, to) = (offsets.log_start.get(), offsets.high_watermark.get());
        let offset = Offset::new(self.random.random_range(from..=to));
        tokio::spawn(async move {
            // Without a majority it waits for ever, and goes with the runtime.
            let _ = leader.advance_log_start(offset).await;
        });
    }

    /// Has a leader take other voters, whatever comes of it.
    pub(super) fn change_voters(&mut self) {
        let count = self.shape.voters as usize;
        let mut voters = BTreeSet::new();
        while voters.len() < count {
            voters.insert(self.any_node());
        }
        let Some(leader) = self.leaders().first().cloned() else {
            return;
        };
        tokio::spawn(async move {
            for voter in &voters {
                leader.add_learner(*voter).await?;
            }
            leader.change_voters(voters).await
        });
    }

    /// Mends the network and starts whatever does not run.
    pub(super) async fn mend(&mut self) {
        self.network.heal();
        let ids: Vec<_> = self.replicas.iter().map(|it| NodeId::new(it.id)).collect();
        for one in &ids {
            self.network.thaw(*one);
            for other in &ids {
                self.network.delay(*one, *other, Duration::ZERO);
            }
        }
        for index in 0..self.replicas.len() {
            let failed = self.replicas[index]
                .group
                .as_ref()
                .is_some_and(|group| group.offline_cause().is_some());
            if failed {
                self.kill(index, true).await;
            }
            self.start_replica(index).await;
            self.learn(index).await;
            self.start_replica(index).await;
        }
        if self.begun.is_some() || self.disks_lost > 0 && self.shape.spares == 0 {
            // Whoever leads takes in those that were given up, or taken out.
            for _ in 0..100 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                self.restore_voters();
                let voters = self
                    .leaders()
                    .first()
                    .map(|it| it.membership().voters.len());
                if voters == Some(self.shape.voters as usize) {
                    break;
                }
            }
        }
    }

    /// Mends everything and waits until all replicas have the same. Returns those that take part.
    pub(super) async fn settle(&mut self) -> Vec<Arc<Group>> {
        self.mend().await;
        let groups = self.groups();
        // A change of voters that was begun is carried to its end, by whoever leads.
        let mut settled = false;
        for _ in 0..400 {
            self.one_serves();
            let leader = groups.iter().find(|group| match self.shape.detects {
                true => group.holds_lease(),
                false => group.leadership().is_ready_leader(),
            });
            if let Some(leader) = leader {
                let membership = leader.membership();
                let voters = membership.joint.unwrap_or(membership.voters);
                let change = leader.change_voters(voters);
                let changed = tokio::time::timeout(Duration::from_secs(2), change).await;
                if matches!(changed, Ok(Ok(()))) && leader.leadership().is_ready_leader() {
                    settled = true;
                    break;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if !settled {
            eventually("a leader whose voters are settled", &groups, || false).await;
        }
        self.produce();
        let leads = |group: &&Arc<Group>| group.leadership().is_ready_leader();
        let mut members = Vec::new();
        eventually("replicas in step", &groups, || {
            let Some(membership) = groups.iter().find(leads).map(|it| it.membership()) else {
                return false;
            };
            members = self
                .replicas
                .iter()
                .filter(|replica| membership.has(NodeId::new(replica.id)))
                .filter_map(|replica| replica.group.clone())
                .collect();
            let ends: Vec<_> = members.iter().map(|group| group.offsets()).collect();
            // One that has only been told where the log starts ends before that.
            let has_it =
                |group: &Arc<Group>| group.reader().log_end() == group.offsets().log_end.offset();
            members.iter().all(has_it)
                && ends.iter().all(|offsets| {
                    offsets.high_watermark.get() == offsets.log_end.get()
                        && offsets.high_watermark == ends[0].high_watermark
                        && offsets.log_start == ends[0].log_start
                })
        })
        .await;
        members
    }

    fn groups(&self) -> Vec<Arc<Group>> {
        self.replicas
            .iter()
            .filter_map(|replica| replica.group.clone())
            .collect()
    }
}

/// Has a replica be opened in the incarnation that it has heard of.
fn enter(spec: &mut GroupSpec, begun: Option<Begun>) {
    if let Some((incarnation, succession)) = begun {
        spec.key = spec.key.in_incarnation(incarnation);
        spec.succession = Some(succession);
        spec.bootstrap = false;
    }
}
