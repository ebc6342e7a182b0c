//! Faults, and how they are made to happen and undone.
//!
//! Which node "the leader" is, is found out when the fault begins, and printed. A fault is undone before the next
//! begins, so that a run shows how the cluster takes one fault after the other rather than how long it can be down.
//! [`super::schedule`] says which come when.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::admin::{self, Placement, connect_to_any, placement};
use super::clients::Router;
use super::clients::coordinator::{Coordinator, Kind};
use super::clients::copier::id_of;
use super::clients::member::GROUPS;
use super::history::Partition;
use super::{Cluster, Doing, NodeNumber, Slowness};
use crate::requests::Topic;

const END_PATIENCE: Duration = Duration::from_secs(60);

/// A node, by number or by what it does when the fault begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// This one.
    Node(NodeNumber),
    /// Whichever leads the partition.
    Leader(Partition),
    /// Whichever leads the metadata.
    Controller,
    /// Whichever coordinates the group with this index.
    GroupCoordinator(usize),
    /// Whichever coordinates the transactions of this copier.
    TransactionCoordinator(u32),
}

/// Something that happens to a cluster and is undone later.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// SIGKILL; undone by a start.
    Kill(Vec<Target>),
    /// SIGKILL to all at once.
    KillAll,
    /// SIGTERM and a start, one node after the other.
    RollingRestart,
    /// SIGSTOP; undone by SIGCONT.
    Pause(Target),
    /// Cut off from all other nodes.
    Isolate(Target),
    /// These nodes and the rest do not see each other.
    Split(Vec<NodeNumber>),
    /// One node sees all, the others only it and their own half.
    Bridge(NodeNumber),
    /// The others do not hear the node.
    Mute(Target),
    /// The node does not hear the others.
    Deaf(Target),
    /// Slow links.
    Slow(Target, Slowness),
    /// SIGKILL with the loss of what was not synced.
    PowerCut(Vec<Target>),
    /// The same for all at once.
    PowerCutAll,
    /// No room on the disk; undone by room and a restart.
    FillDisk(Target),
    /// All leaders move to the next replica.
    MoveLeaders,
    /// Every partition loses a replica, or swaps one where there are nodes without; undone by what it had.
    Reassign,
}

/// A fault that has begun.
pub struct Ongoing {
    /// Who is hit, as it turned out.
    pub nodes: Vec<NodeNumber>,
    undo: Undo,
}

enum Undo {
    Nothing,
    Start,
    Resume,
    Heal,
    Power,
    Disk,
    Replicas(Vec<(Topic, Placement)>),
}

impl fmt::Display for Ongoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nodes {:?}", self.nodes)
    }
}

/// Makes faults happen to a cluster.
pub struct Nemesis {
    /// Topics whose leaders and replicas are moved.
    topics: Vec<Topic>,
    rng: StdRng,
    router: Router,
}

impl Nemesis {
    /// For the topic under load; `seed` decides what power cuts take. Leaders and replicas of the `others` are moved
    /// with its own.
    pub fn new(cluster: &Cluster, topic: &Topic, others: &[Topic], seed: u64) -> Self {
        let mut topics = vec![topic.clone()];
        topics.extend_from_slice(others);
        Self {
            topics,
            rng: StdRng::seed_from_u64(seed),
            router: Router::new(&cluster.addresses(), topic, 0),
        }
    }

    /// The node that is meant; the first where there is no such node now.
    pub fn resolve(&mut self, cluster: &mut Cluster, target: Target) -> NodeNumber {
        let found = match target {
            Target::Node(number) => Some(number),
            Target::Leader(partition) => (0..3).find_map(|_| {
                let (node, _, _) = self.router.leader(partition).ok()?;
                Some(node)
            }),
            Target::Controller => cluster.numbers().into_iter().find_map(|number| {
                let controller = cluster.ask(number).ok()?.controller_id.0;
                (controller > 0).then_some(controller)
            }),
            Target::GroupCoordinator(index) => {
                coordinator(cluster, Kind::Group, GROUPS[index % GROUPS.len()])
            }
            Target::TransactionCoordinator(copier) => {
                coordinator(cluster, Kind::Transaction, &id_of(copier))
            }
        };
        found.unwrap_or(1)
    }

    fn resolve_all(&mut self, cluster: &mut Cluster, targets: &[Target]) -> Vec<NodeNumber> {
        let nodes: BTreeSet<NodeNumber> = targets
            .iter()
            .map(|&target| self.resolve(cluster, target))
            .collect();
        nodes.into_iter().collect()
    }

    /// Makes the fault happen.
    pub fn begin(&mut self, cluster: &mut Cluster, fault: &Fault) -> Result<Ongoing> {
        let all = cluster.numbers();
        let others = |number: NodeNumber| all.iter().copied().filter(move |&n| n != number);
        let (nodes, undo) = match fault {
            Fault::Kill(targets) => {
                let nodes = self.resolve_all(cluster, targets);
                for &number in &nodes {
                    cluster.node(number)?.kill9()?;
                }
                (nodes, Undo::Start)
            }
            Fault::KillAll => {
                for &number in &all {
                    cluster.node(number)?.kill9()?;
                }
                (all.clone(), Undo::Start)
            }
            Fault::RollingRestart => {
                for &number in &all {
                    cluster.node(number)?.terminate(END_PATIENCE)?;
                    cluster.launch(number)?;
                    cluster.await_members(END_PATIENCE)?;
                }
                (all.clone(), Undo::Nothing)
            }
            Fault::Pause(target) => {
                let number = self.resolve(cluster, *target);
                cluster.node(number)?.pause()?;
                (vec![number], Undo::Resume)
            }
            Fault::Isolate(target) => {
                let number = self.resolve(cluster, *target);
                cluster.network().isolate(number)?;
                (vec![number], Undo::Heal)
            }
            Fault::Split(some) => {
                for &one in some {
                    for other in all.iter().filter(|number| !some.contains(number)) {
                        cluster.network().cut_both_ways(one, *other)?;
                    }
                }
                (some.clone(), Undo::Heal)
            }
            Fault::Bridge(middle) => {
                let ends: Vec<NodeNumber> = others(*middle).collect();
                let (left, right) = ends.split_at(ends.len() / 2);
                for &one in left {
                    for &other in right {
                        cluster.network().cut_both_ways(one, other)?;
                    }
                }
                (vec![*middle], Undo::Heal)
            }
            Fault::Mute(target) => {
                let number = self.resolve(cluster, *target);
                for other in others(number) {
                    cluster.network().cut(number, other)?;
                }
                (vec![number], Undo::Heal)
            }
            Fault::Deaf(target) => {
                let number = self.resolve(cluster, *target);
                for other in others(number) {
                    cluster.network().cut(other, number)?;
                }
                (vec![number], Undo::Heal)
            }
            Fault::Slow(target, slowness) => {
                let number = self.resolve(cluster, *target);
                cluster.network().slow_down(number, *slowness)?;
                (vec![number], Undo::Heal)
            }
            Fault::PowerCut(targets) => {
                let nodes = self.resolve_all(cluster, targets);
                for &number in &nodes {
                    cluster.node(number)?.power_off()?;
                }
                (nodes, Undo::Power)
            }
            Fault::PowerCutAll => {
                for &number in &all {
                    cluster.node(number)?.power_off()?;
                }
                (all.clone(), Undo::Power)
            }
            Fault::FillDisk(target) => {
                let number = self.resolve(cluster, *target);
                cluster.node(number)?.fill_disk()?;
                (vec![number], Undo::Disk)
            }
            Fault::MoveLeaders => {
                self.move_leaders(cluster)?;
                (Vec::new(), Undo::Nothing)
            }
            Fault::Reassign => {
                let mut replaced = Vec::new();
                for topic in self.topics.clone() {
                    let Ok(before) = placement(cluster, &topic) else {
                        break;
                    };
                    let mut after = before.clone();
                    for replicas in after.values_mut().filter(|replicas| replicas.len() > 1) {
                        let index = self.rng.random_range(0..replicas.len());
                        let spare = all.iter().find(|number| !replicas.contains(number));
                        if let Some(spare) = spare {
                            replicas[index] = *spare;
                        } else if replicas.len() > 2 {
                            replicas.remove(index);
                        }
                    }
                    // Undone even where only some of it was heard of.
                    let asked = reassign(cluster, &topic, &after);
                    replaced.push((topic, before));
                    if asked.is_err() {
                        break;
                    }
                }
                (Vec::new(), Undo::Replicas(replaced))
            }
        };
        Ok(Ongoing { nodes, undo })
    }

    /// Undoes it. What ended by itself meanwhile, as nodes do whose disk failed, is started again.
    pub fn end(&mut self, cluster: &mut Cluster, ongoing: &Ongoing) -> Result<()> {
        match &ongoing.undo {
            Undo::Nothing => {}
            Undo::Replicas(replaced) => {
                for (topic, before) in replaced {
                    reassign_at_last(cluster, topic, before)?;
                }
            }
            Undo::Heal => cluster.network().heal()?,
            Undo::Start | Undo::Resume => {
                for &number in &ongoing.nodes {
                    match cluster.node(number)?.doing()? {
                        Doing::Nothing => cluster.launch(number)?,
                        Doing::Paused => cluster.node(number)?.resume()?,
                        Doing::Running => {}
                    }
                }
            }
            Undo::Power => {
                for &number in &ongoing.nodes {
                    let seed = self.rng.random();
                    cluster.node(number)?.power_on(seed)?;
                    cluster.launch(number)?;
                }
            }
            Undo::Disk => {
                for &number in &ongoing.nodes {
                    cluster.node(number)?.free_disk()?;
                    cluster.node(number)?.kill9()?;
                    cluster.launch(number)?;
                }
            }
        }
        Ok(())
    }

    /// Makes the second replica of every partition the preferred one and elects it.
    fn move_leaders(&mut self, cluster: &mut Cluster) -> Result<()> {
        for topic in &self.topics {
            let mut after = placement(cluster, topic)?;
            for replicas in after.values_mut() {
                let second = usize::from(replicas.len() > 1);
                replicas.rotate_left(second);
            }
            reassign(cluster, topic, &after)?;
            // A refusal, as in the middle of another change, is no fault of the cluster's.
            let partitions = i32::try_from(after.len())?;
            admin::elect_preferred(&mut connect_to_any(cluster)?, topic, partitions)?;
        }
        Ok(())
    }
}

fn coordinator(cluster: &Cluster, kind: Kind, key: &str) -> Option<NodeNumber> {
    let addresses = cluster.addresses();
    let mut coordinator = Coordinator::of(&addresses, kind, key, 0);
    (0..addresses.len()).find_map(|_| {
        let (node, _) = coordinator.locate().ok()?;
        Some(node)
    })
}

fn reassign(
    cluster: &mut Cluster,
    topic: &Topic,
    placement: &Placement,
) -> Result<Vec<(i16, String)>> {
    admin::reassign(&mut connect_to_any(cluster)?, topic, placement)
}

/// Asks for other replicas until that is taken.
fn reassign_at_last(cluster: &mut Cluster, topic: &Topic, placement: &Placement) -> Result<()> {
    let deadline = Instant::now() + END_PATIENCE;
    loop {
        match reassign(cluster, topic, placement) {
            Ok(refusals) if refusals.is_empty() => return Ok(()),
            other => ensure!(
                Instant::now() < deadline,
                "the replicas cannot be given back: {other:?}"
            ),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
