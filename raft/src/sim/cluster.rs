//! The replicas of one group, and everything that can be done to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use odradek_protocol::ids::{NodeId, Offset};
use odradek_storage::SimDisk;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{eventually, group_spec, open_spec, propose, start_detecting_node, start_node};
use crate::memory_network::MemoryNetwork;
use crate::{AppendOutcome, Group, RaftNode};

/// What a cluster consists of.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Voters of the group when it is made.
    pub(super) voters: i32,
    /// Nodes that have no part in it at first.
    pub(super) spares: i32,
    /// Whether the nodes have failure detectors, and the slow clocks that go with them.
    pub(super) detects: bool,
}

pub(super) struct Replica {
    pub(super) id: i32,
    disk: SimDisk,
    pub(super) node: Option<Arc<RaftNode>>,
    pub(super) group: Option<Arc<Group>>,
}

pub(super) struct Cluster {
    shape: Shape,
    pub(super) network: MemoryNetwork,
    pub(super) replicas: Vec<Replica>,
    pub(super) random: StdRng,
    next_id: u64,
    /// What was acknowledged, and with what.
    pub(super) acknowledged: Arc<Mutex<BTreeMap<u64, AppendOutcome>>>,
    /// What readers have seen: base offset → bytes.
    pub(super) seen: BTreeMap<i64, (u64, Bytes)>,
    /// The highest high watermark that any replica has shown.
    pub(super) highest_watermark: i64,
    pub(super) trace: Vec<String>,
}

impl Cluster {
    pub(super) async fn start(seed: u64, shape: Shape) -> Self {
        let network = MemoryNetwork::new();
        if shape.detects {
            network.break_streams_after(Duration::from_millis(700));
        }
        let mut cluster = Self {
            shape,
            network,
            replicas: (1..=shape.voters + shape.spares)
                .map(|id| Replica {
                    id,
                    disk: SimDisk::new(),
                    node: None,
                    group: None,
                })
                .collect(),
            random: StdRng::seed_from_u64(seed),
            next_id: 1,
            acknowledged: Arc::default(),
            seen: BTreeMap::new(),
            highest_watermark: 0,
            trace: Vec::new(),
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
        replica.group = Some(open_spec(&node, spec).await.unwrap());
        replica.node = Some(node);
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
                let Ok((offset, committed)) = propose(&leader, id) else {
                    continue;
                };
                let acknowledged = self.acknowledged.clone();
                tokio::spawn(async move {
                    if let Ok(Ok(outcome)) = committed.await {
                        assert_eq!(
                            outcome.base_offset, offset,
                            "the offset was foreseen wrongly"
                        );
                        acknowledged.lock().insert(id, outcome);
                    }
                });
            }
        }
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
            ends.iter().all(|offsets| {
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
