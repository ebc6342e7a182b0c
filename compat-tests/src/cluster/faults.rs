//! Faults, and schedules of them drawn from a seed.
//!
//! A schedule is a function of the seed and of what the cluster is like; which node "the leader" is, is found out when
//! the fault begins, and printed. Faults follow each other; each is undone before the next begins, so that a run shows
//! how the cluster takes one fault after the other rather than how long it can be down.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::{AlterPartitionReassignmentsRequest, BrokerId, ElectLeadersRequest};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::clients::Router;
use super::history::Partition;
use super::{Cluster, Doing, NodeNumber, Slowness};
use crate::requests::{Topic, metadata_of};
use crate::wire::Wire;

const ADMIN_PATIENCE: Duration = Duration::from_secs(5);
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

/// A fault at its place in the schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Quiet before it begins.
    pub before: Duration,
    /// What happens.
    pub fault: Fault,
    /// How long it lasts.
    pub hold: Duration,
}

/// What schedules are drawn for.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Number of nodes.
    pub nodes: NodeNumber,
    /// Partitions of the topic under load.
    pub partitions: i32,
    /// Whether the disks can lose power and fill up.
    pub disks: bool,
    /// Faults and quiet together last about this long.
    pub length: Duration,
}

/// The schedule of a seed.
pub fn schedule(seed: u64, setting: Setting) -> Vec<Step> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut steps = Vec::new();
    let mut length = Duration::ZERO;
    while length < setting.length {
        let step = Step {
            before: Duration::from_millis(rng.random_range(300..2_500)),
            fault: fault(&mut rng, setting),
            hold: Duration::from_millis(rng.random_range(200..4_000)),
        };
        length += step.before + step.hold;
        steps.push(step);
    }
    steps
}

fn target(rng: &mut StdRng, setting: Setting) -> Target {
    match rng.random_range(0..4) {
        0 => Target::Controller,
        1 => Target::Node(rng.random_range(1..=setting.nodes)),
        _ => Target::Leader(rng.random_range(0..setting.partitions)),
    }
}

/// One to so many different nodes; more than a minority only now and then.
fn targets(rng: &mut StdRng, setting: Setting) -> Vec<Target> {
    let minority = (setting.nodes - 1) / 2;
    let number = if rng.random_bool(0.2) {
        minority + 1
    } else {
        rng.random_range(1..=minority.max(1))
    };
    (0..number).map(|_| target(rng, setting)).collect()
}

fn fault(rng: &mut StdRng, setting: Setting) -> Fault {
    let kinds = if setting.disks { 18 } else { 14 };
    match rng.random_range(0..kinds) {
        0 | 1 => Fault::Kill(targets(rng, setting)),
        2 => Fault::KillAll,
        3 => Fault::RollingRestart,
        4 | 5 => Fault::Pause(target(rng, setting)),
        6 => Fault::Isolate(target(rng, setting)),
        7 => {
            let number = usize::try_from(setting.nodes / 2).unwrap_or(1).max(1);
            let mut some = BTreeSet::new();
            while some.len() < number {
                some.insert(rng.random_range(1..=setting.nodes));
            }
            Fault::Split(some.into_iter().collect())
        }
        8 => Fault::Bridge(rng.random_range(1..=setting.nodes)),
        9 => Fault::Mute(target(rng, setting)),
        10 => Fault::Deaf(target(rng, setting)),
        11 => {
            let slowness = Slowness {
                delay: Duration::from_millis(rng.random_range(20..300)),
                bytes_per_second: rng.random_range(20_000..200_000),
            };
            Fault::Slow(target(rng, setting), slowness)
        }
        12 => Fault::MoveLeaders,
        13 => Fault::Reassign,
        14 | 15 => Fault::PowerCut(targets(rng, setting)),
        16 => Fault::PowerCutAll,
        _ => Fault::FillDisk(target(rng, setting)),
    }
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
    Replicas(Placement),
}

/// The replicas of each partition, the preferred leader first.
pub type Placement = BTreeMap<Partition, Vec<NodeNumber>>;

impl fmt::Display for Ongoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nodes {:?}", self.nodes)
    }
}

/// Makes faults happen to a cluster.
pub struct Nemesis {
    topic: Topic,
    partitions: i32,
    rng: StdRng,
    router: Router,
}

impl Nemesis {
    /// For the topic under load; `seed` decides what power cuts take.
    pub fn new(cluster: &Cluster, topic: &Topic, partitions: i32, seed: u64) -> Self {
        Self {
            topic: topic.clone(),
            partitions,
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
                let before = placement(cluster, &self.topic)?;
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
                self.reassign(cluster, &after)?;
                (Vec::new(), Undo::Replicas(before))
            }
        };
        Ok(Ongoing { nodes, undo })
    }

    /// Undoes it. What ended by itself meanwhile, as nodes do whose disk failed, is started again.
    pub fn end(&mut self, cluster: &mut Cluster, ongoing: &Ongoing) -> Result<()> {
        match &ongoing.undo {
            Undo::Nothing => {}
            Undo::Replicas(before) => self.reassign_at_last(cluster, before)?,
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
        let mut after = placement(cluster, &self.topic)?;
        for replicas in after.values_mut() {
            let second = usize::from(replicas.len() > 1);
            replicas.rotate_left(second);
        }
        self.reassign(cluster, &after)?;
        let elect = ElectLeadersRequest::default()
            .with_election_type(0)
            .with_timeout_ms(3_000)
            .with_topic_partitions(Some(vec![
                TopicPartitions::default()
                    .with_topic(self.topic.name())
                    .with_partitions((0..self.partitions).collect()),
            ]));
        // A refusal, as in the middle of another change, is no fault of the cluster's.
        connect_to_any(cluster)?.call(2, &elect)?;
        Ok(())
    }

    /// Asks for other replicas; what of it was refused.
    fn reassign(&self, cluster: &mut Cluster, placement: &Placement) -> Result<Vec<i16>> {
        let partitions = placement
            .iter()
            .map(|(&partition, replicas)| {
                let replicas = replicas.iter().map(|&number| BrokerId(number)).collect();
                ReassignablePartition::default()
                    .with_partition_index(partition)
                    .with_replicas(Some(replicas))
            })
            .collect();
        let request = AlterPartitionReassignmentsRequest::default()
            .with_timeout_ms(3_000)
            .with_topics(vec![
                ReassignableTopic::default()
                    .with_name(self.topic.name())
                    .with_partitions(partitions),
            ]);
        let answer = connect_to_any(cluster)?.call(0, &request)?;
        let rows = answer.responses.iter().flat_map(|topic| &topic.partitions);
        Ok(rows
            .map(|row| row.error_code)
            .chain([answer.error_code])
            .filter(|&code| code != 0)
            .collect())
    }

    /// Asks for other replicas until that is taken.
    fn reassign_at_last(&self, cluster: &mut Cluster, placement: &Placement) -> Result<()> {
        let deadline = Instant::now() + END_PATIENCE;
        loop {
            match self.reassign(cluster, placement) {
                Ok(refusals) if refusals.is_empty() => return Ok(()),
                other => ensure!(
                    Instant::now() < deadline,
                    "the replicas cannot be given back: {other:?}"
                ),
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// A connection to a node that runs.
fn connect_to_any(cluster: &mut Cluster) -> Result<Wire> {
    let running = cluster.running()?;
    let number = *running.first().context("no node runs")?;
    let address = cluster.node(number)?.addresses().broker;
    Wire::connect_within(address, ADMIN_PATIENCE)
}

/// The replicas of a topic's partitions, as a node that runs knows them.
pub fn placement(cluster: &mut Cluster, topic: &Topic) -> Result<Placement> {
    let metadata = connect_to_any(cluster)?.call(9, &metadata_of(&topic.name))?;
    Ok(metadata
        .topics
        .iter()
        .flat_map(|topic| &topic.partitions)
        .map(|row| {
            let replicas = row.replica_nodes.iter().map(|node| node.0).collect();
            (row.partition_index, replicas)
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(disks: bool) -> Setting {
        Setting {
            nodes: 3,
            partitions: 4,
            disks,
            length: Duration::from_secs(30),
        }
    }

    #[test]
    fn a_seed_gives_the_same_schedule_again_and_another_seed_another() {
        assert_eq!(schedule(7, setting(true)), schedule(7, setting(true)));
        assert_ne!(schedule(7, setting(true)), schedule(8, setting(true)));
    }

    #[test]
    fn disks_are_left_alone_where_they_cannot_fail() {
        let on_disks = |step: &Step| {
            matches!(
                step.fault,
                Fault::PowerCut(_) | Fault::PowerCutAll | Fault::FillDisk(_)
            )
        };
        let with = |disks| (0..50).flat_map(move |seed| schedule(seed, setting(disks)));
        assert!(!with(false).any(|step| on_disks(&step)));
        assert!(with(true).any(|step| on_disks(&step)));
    }
}
