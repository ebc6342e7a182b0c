//! Three voters that are cut off from each other, slowed down, killed and restarted at random.
//!
//! After every step: what a replica shows below its high watermark never changes and is the same
//! on every replica. In the end, with everything mended: nothing that was acknowledged is missing
//! or elsewhere than acknowledged, no offset was given twice, and the replicas are byte-identical.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use odradek_protocol::ids::{NodeId, Offset};
use odradek_storage::SimDisk;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{batches, eventually, for_seeds, open_group, propose, simulate, start_node};
use crate::memory_network::MemoryNetwork;
use crate::{AppendOutcome, Group, RaftNode};

const VOTERS: [i32; 3] = [1, 2, 3];

struct Replica {
    id: i32,
    disk: SimDisk,
    node: Option<Arc<RaftNode>>,
    group: Option<Arc<Group>>,
}

struct Cluster {
    network: MemoryNetwork,
    replicas: Vec<Replica>,
    random: StdRng,
    next_id: u64,
    /// What was acknowledged, and with what.
    acknowledged: Arc<Mutex<BTreeMap<u64, AppendOutcome>>>,
    /// What readers have seen: base offset → bytes.
    seen: BTreeMap<i64, (u64, Bytes)>,
    trace: Vec<String>,
}

impl Cluster {
    async fn start(seed: u64) -> Self {
        let mut cluster = Self {
            network: MemoryNetwork::new(),
            replicas: VOTERS
                .iter()
                .map(|id| Replica {
                    id: *id,
                    disk: SimDisk::new(),
                    node: None,
                    group: None,
                })
                .collect(),
            random: StdRng::seed_from_u64(seed),
            next_id: 1,
            acknowledged: Arc::default(),
            seen: BTreeMap::new(),
            trace: Vec::new(),
        };
        for index in 0..VOTERS.len() {
            cluster.start_replica(index).await;
        }
        cluster
    }

    async fn start_replica(&mut self, index: usize) {
        let replica = &mut self.replicas[index];
        if replica.node.is_some() {
            return;
        }
        let node = start_node(replica.id, &replica.disk, Arc::new(self.network.clone())).unwrap();
        let group = open_group(&node, &VOTERS).await.unwrap();
        self.network.add(&node);
        replica.node = Some(node);
        replica.group = Some(group);
    }

    /// Kills a replica, in the middle of a write if it comes to one soon, and loses what its disk
    /// had not synced.
    async fn kill(&mut self, index: usize) {
        let in_steps = self.random.random_range(1..6);
        let seed = self.random.random();
        let replica = &mut self.replicas[index];
        let Some(node) = replica.node.take() else {
            return;
        };
        replica.disk.stop_at(replica.disk.steps() + in_steps);
        tokio::time::sleep(Duration::from_millis(30)).await;
        self.network.remove(NodeId::new(replica.id));
        replica.disk.stop_at(replica.disk.steps() + 1);
        node.abandon().await;
        replica.group = None;
        replica.disk.power_cut(seed);
    }

    fn leaders(&self) -> Vec<Arc<Group>> {
        self.replicas
            .iter()
            .filter_map(|replica| replica.group.clone())
            .filter(|group| group.leadership().is_ready_leader())
            .collect()
    }

    /// Has every node that takes itself for the leader append some batches.
    fn produce(&mut self) {
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

    async fn step(&mut self) {
        let one = NodeId::new(self.random.random_range(1..=3));
        let other = NodeId::new(self.random.random_range(1..=3));
        let index = self.random.random_range(0..3);
        let action = self.random.random_range(0..100);
        self.trace.push(format!("{action} {one} {other} {index}"));
        match action {
            0..45 => self.produce(),
            45..50 => self.network.cut(one, other),
            50..54 => self.network.cut_one_way(one, other),
            54..64 => self.network.heal(),
            64..70 => {
                let delay = Duration::from_millis(self.random.random_range(0..40));
                self.network.delay(one, other, delay);
            }
            70..74 => self.kill(index).await,
            74..84 => self.start_replica(index).await,
            84..88 => {
                if let Some(leader) = self.leaders().first() {
                    // Both outcomes are fine: the one asked for may be cut off.
                    let _ = leader.transfer_leader(one).await;
                }
            }
            88..90 => self.advance_log_start(),
            _ => {}
        }
        let pause = self.random.random_range(0..150);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        self.look();
    }

    fn advance_log_start(&mut self) {
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

    /// Compares what every replica shows with what was shown before.
    fn look(&mut self) {
        for replica in &self.replicas {
            let Some(group) = &replica.group else {
                continue;
            };
            if group.offline_cause().is_some() {
                continue;
            }
            let offsets = group.offsets();
            let from = offsets.log_start.offset().max(group.reader().log_start());
            let to = offsets
                .high_watermark
                .offset()
                .min(group.reader().log_end());
            // A replica that was behind the log start has nothing to show yet.
            if from > to {
                continue;
            }
            let shown = batches(group, from, to);
            for (base, found) in shown {
                let before = self.seen.entry(base).or_insert_with(|| found.clone());
                assert_eq!(
                    before.0, found.0,
                    "offset {base} on node {} changed its batch",
                    replica.id
                );
                assert_eq!(before.1, found.1, "offset {base} changed its bytes");
            }
        }
    }

    /// Mends everything and waits until all replicas have the same.
    async fn settle(&mut self) {
        self.network.heal();
        for one in VOTERS {
            for other in VOTERS {
                self.network
                    .delay(NodeId::new(one), NodeId::new(other), Duration::ZERO);
            }
        }
        for index in 0..VOTERS.len() {
            let failed = self.replicas[index]
                .group
                .as_ref()
                .is_some_and(|group| group.offline_cause().is_some());
            if failed {
                self.kill(index).await;
            }
            self.start_replica(index).await;
        }
        let groups: Vec<_> = self
            .replicas
            .iter()
            .map(|replica| replica.group.clone().unwrap())
            .collect();
        eventually("a leader that takes writes", &groups, || {
            groups
                .iter()
                .any(|group| group.leadership().is_ready_leader())
        })
        .await;
        self.produce();
        eventually("replicas in step", &groups, || {
            let ends: Vec<_> = groups.iter().map(|group| group.offsets()).collect();
            ends.iter().all(|offsets| {
                offsets.high_watermark.get() == offsets.log_end.get()
                    && offsets.high_watermark == ends[0].high_watermark
                    && offsets.log_start == ends[0].log_start
            })
        })
        .await;
    }

    fn check(&self) {
        let groups: Vec<_> = self
            .replicas
            .iter()
            .map(|replica| replica.group.clone().unwrap())
            .collect();
        let from = groups
            .iter()
            .map(|group| {
                group
                    .reader()
                    .log_start()
                    .max(group.offsets().log_start.offset())
            })
            .max()
            .unwrap();
        let contents: Vec<_> = groups
            .iter()
            .map(|group| batches(group, from, group.reader().log_end()))
            .collect();
        assert_eq!(contents[0], contents[1], "nodes 1 and 2 differ");
        assert_eq!(contents[0], contents[2], "nodes 1 and 3 differ");
        let mut ids = BTreeMap::new();
        for (base, (id, _)) in &self.seen {
            assert_eq!(ids.insert(*id, *base), None, "batch {id} was stored twice");
        }
        for (id, outcome) in self.acknowledged.lock().iter() {
            let base = outcome.base_offset.get();
            if outcome.base_offset < from {
                continue;
            }
            let found = contents[0].get(&base);
            assert_eq!(
                found.map(|(found, _)| found),
                Some(id),
                "batch {id} was acknowledged at {base}"
            );
        }
    }
}

async fn run(seed: u64, steps: usize) -> (Vec<String>, BTreeMap<i64, (u64, Bytes)>, usize) {
    let mut cluster = Cluster::start(seed).await;
    for _ in 0..steps {
        cluster.step().await;
    }
    cluster.settle().await;
    cluster.look();
    cluster.check();
    let acknowledged = cluster.acknowledged.lock().len();
    (cluster.trace, cluster.seen, acknowledged)
}

#[test]
fn nothing_acknowledged_is_lost_and_replicas_agree_whatever_happens() {
    for_seeds(24, |seed| async move {
        let (_, seen, acknowledged) = run(seed, 120).await;
        eprintln!(
            "seed {seed}: {} batches shown, {acknowledged} acknowledged",
            seen.len()
        );
    });
}

#[test]
fn a_seed_replays_the_same_run() {
    let first = simulate(3, run(3, 60));
    let second = simulate(3, run(3, 60));
    assert_eq!(first.0, second.0);
    assert_eq!(first.1, second.1);
    assert_eq!(first.2, second.2);
}
