//! One run of the nemesis: a cluster, a load, a schedule of faults, and the verdict.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::admin::{Placement, placement};
use super::check::{Rule, Violation, check, coordination, count, describe};
use super::clients::coordinator::{Coordinator, Kind};
use super::clients::copier::id_of;
use super::clients::holdings::SESSION_TIMEOUT;
use super::clients::member::GROUPS;
use super::clients::{Coordinated, Load, Shared, create_topic, read_all};
use super::faults::{Fault, Nemesis};
use super::history::History;
use super::schedule::{Setting, Step, deal, schedule};
use super::{Cluster, ClusterOptions, NodeNumber, Product, replicas};
use crate::requests::Topic;

/// How long the cluster may take to be whole once all faults are over.
const HEALING_PATIENCE: Duration = Duration::from_secs(120);
/// What is still on its way to a log when the clients have stopped arrives within this.
const SETTLING: Duration = Duration::from_millis(500);
const TOPIC: &str = "nemesis";
/// What copiers write to.
const COPIES: &str = "nemesis-copies";
/// Topics of coordinators, whose leaders are moved with the others.
const STATE_TOPICS: [&str; 2] = ["__consumer_offsets", "__transaction_state"];
/// How long it may take until the first coordinators are there.
const COORDINATOR_PATIENCE: Duration = Duration::from_secs(60);

/// What a run is made of besides the seed.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The cluster.
    pub cluster: ClusterOptions,
    /// Number of its nodes.
    pub nodes: NodeNumber,
    /// Whether it is on forgetful disks.
    pub disks: bool,
    /// Partitions of the topic under load.
    pub partitions: i32,
    /// Whether Kafka's own clients take part.
    pub java: bool,
    /// How long faults go on.
    pub length: Duration,
}

/// What a run showed.
#[derive(Debug)]
pub struct Verdict {
    /// The seed, to run it again.
    pub seed: u64,
    /// Everything that must not be.
    pub violations: Vec<Violation>,
    /// Records acknowledged.
    pub acknowledged: usize,
    /// Records sent without an acknowledgement.
    pub unknown: usize,
    /// Records read while faults went on.
    pub read: usize,
    /// Answers about latest offsets.
    pub latest: usize,
    /// Transactions whose end was answered.
    pub ended: usize,
    /// Transactions of which nobody heard how they ended.
    pub undecided: usize,
    /// Commits of group members that were acknowledged.
    pub commits: usize,
    /// Times that a member was given a partition.
    pub handed_out: usize,
    /// Faults that happened.
    pub faults: usize,
    /// Idempotent producers that found no way on.
    pub given_up: Vec<String>,
    /// Producers of librdkafka that did not come back from a call.
    pub hung: usize,
    /// How long the cluster took to be in sync after the last fault.
    pub healing: Duration,
    /// How long replicas took to be the same once all was read back.
    pub catching_up: Duration,
}

impl Verdict {
    /// One line for a log.
    pub fn line(&self) -> String {
        let counts: Vec<String> = count(&self.violations)
            .into_iter()
            .map(|(rule, number)| format!("{number} × {rule}"))
            .collect();
        format!(
            "seed {}: {} faults, {} records acknowledged, {} in the dark, {} read, {} latest offsets, {} transactions ended and {} in the dark, {} commits, {} partitions handed out, in sync after {:.1} s and the same {:.1} s later: {}{}{}",
            self.seed,
            self.faults,
            self.acknowledged,
            self.unknown,
            self.read,
            self.latest,
            self.ended,
            self.undecided,
            self.commits,
            self.handed_out,
            self.healing.as_secs_f64(),
            self.catching_up.as_secs_f64(),
            if counts.is_empty() {
                "no violation".to_owned()
            } else {
                counts.join(", ")
            },
            if self.given_up.is_empty() {
                String::new()
            } else {
                format!(" ({} producers started afresh)", self.given_up.len())
            },
            match self.hung {
                0 => String::new(),
                hung => format!(" ({hung} of librdkafka's producers hung)"),
            }
        )
    }

    /// All that is known of the violations.
    pub fn details(&self) -> String {
        let mut text = describe(&self.violations);
        for reason in &self.given_up {
            text.push_str(&format!("    {reason}\n"));
        }
        text
    }
}

impl Campaign {
    /// Runs the schedule of `seed` against a fresh cluster.
    pub fn run(&self, seed: u64) -> Result<Verdict> {
        self.run_steps(seed, &schedule(seed, self.setting()))
    }

    /// Runs one of so many schedules that together have every kind of fault; see [`deal`].
    pub fn run_dealt(&self, seed: u64, hand: usize, hands: usize) -> Result<Verdict> {
        let dealt = deal(seed, self.setting(), hands);
        let steps = dealt.get(hand).context("no such hand")?;
        self.run_steps(seed, steps)
    }

    fn setting(&self) -> Setting {
        Setting {
            nodes: self.nodes,
            partitions: self.partitions,
            disks: self.disks,
            length: self.length,
        }
    }

    /// Runs these steps against a fresh cluster; `seed` decides all else.
    fn run_steps(&self, seed: u64, steps: &[Step]) -> Result<Verdict> {
        let mut cluster = for_members(self.cluster.clone())
            .forgetful_disks(self.disks)
            .start()
            .with_context(|| format!("seed {seed}: start"))?;
        let result = self.run_on(&mut cluster, seed, steps);
        // The logs are long: whoever sees only one end of them is told why all the same.
        result.map_err(|error| {
            let why = format!("seed {seed}: {error:#}");
            anyhow!("{why}\n{}\n{why}", cluster.logs())
        })
    }

    fn run_on(&self, cluster: &mut Cluster, seed: u64, steps: &[Step]) -> Result<Verdict> {
        let copies = i16::try_from(self.nodes.min(3))?;
        let topic = create_topic(
            &cluster.addresses(),
            TOPIC,
            self.partitions,
            copies,
            &[("segment.bytes", "1048576")],
        )?;
        let addresses = cluster.addresses();
        let copies = create_topic(&addresses, COPIES, self.partitions, copies, &[])?;
        await_coordinators(&addresses)?;
        let shared = Shared::new(&addresses, &topic, self.partitions);
        let load = Load::start(&shared, seed, self.java);
        let coordinated = Coordinated::start(&shared, &copies, seed);
        let mut moved = vec![copies.clone()];
        moved.extend(STATE_TOPICS.map(Topic::missing));
        let mut nemesis = Nemesis::new(cluster, &topic, &moved, seed);
        for step in steps {
            std::thread::sleep(step.before);
            cluster.ensure_none_failed(&[])?;
            let at = shared.recorder.now().as_secs_f64();
            match nemesis.begin(cluster, &step.fault) {
                Ok(ongoing) => {
                    let hold = step.hold.as_secs_f64();
                    eprintln!(
                        "  seed {seed} at {at:.1} s: {:?}, {ongoing}, for {hold:.1} s",
                        step.fault
                    );
                    std::thread::sleep(step.hold);
                    cluster.ensure_none_failed(&ongoing.nodes)?;
                    nemesis.end(cluster, &ongoing)?;
                }
                // Whom to move is asked of a controller, which may still be out after the fault before.
                Err(error) if matches!(step.fault, Fault::MoveLeaders | Fault::Reassign) => {
                    eprintln!(
                        "  seed {seed} at {at:.1} s: {:?} did not work out: {error:#}",
                        step.fault
                    );
                }
                Err(error) => return Err(error.context(format!("{:?}", step.fault))),
            }
        }
        let healing = Instant::now();
        cluster.make_whole(HEALING_PATIENCE)?;
        cluster.await_in_sync(HEALING_PATIENCE)?;
        let healing = healing.elapsed();
        load.finish()?;
        let copied = coordinated.finish()?;
        std::thread::sleep(SETTLING);
        let log = read_all(&shared)?;
        cluster.await_in_sync(HEALING_PATIENCE)?;
        cluster.ensure_none_failed(&[])?;
        let mut placements = Vec::new();
        for topic in [&topic, &copies] {
            placements.push((topic.name.clone(), placement(cluster, topic)?));
        }
        let catching_up = await_identical(cluster, &placements)?;
        cluster.terminate()?;
        let history = shared.recorder.history();
        let mut violations = check(&history, &log);
        violations.extend(coordination::check(&history, &copied));
        if cluster.product() == Product::Kafka {
            // It notes the high watermark before it reads, so records committed in between are above it.
            violations.retain(|violation| violation.rule != Rule::AboveHighWatermark);
        }
        violations.extend(compare_replicas(&directories(cluster)?, &placements)?);
        Ok(Verdict {
            seed,
            violations,
            acknowledged: history.acknowledged(),
            unknown: history.unknown(),
            read: history.reads.iter().map(|read| read.records.len()).sum(),
            latest: history.latest.len(),
            ended: ended(&history),
            undecided: history.attempts.len() - ended(&history),
            commits: history
                .commits
                .iter()
                .filter_map(|commit| commit.acknowledged())
                .count(),
            handed_out: history.owned.len(),
            faults: steps.len(),
            given_up: history.given_up,
            hung: history.hung,
            healing,
            catching_up,
        })
    }
}

/// Has a cluster take members whose sessions end soon and who hear of changes at once.
fn for_members(options: ClusterOptions) -> ClusterOptions {
    let session = SESSION_TIMEOUT.as_millis();
    options
        .set("group.min.session.timeout.ms", 1_000)
        .set("group.consumer.min.session.timeout.ms", 1_000)
        .set("group.consumer.session.timeout.ms", session)
        .set("group.consumer.min.heartbeat.interval.ms", 100)
        .set("group.consumer.heartbeat.interval.ms", 150)
        .set("group.consumer.assignment.interval.ms", 100)
}

/// Waits until there are coordinators, which makes their topics.
fn await_coordinators(addresses: &[SocketAddr]) -> Result<()> {
    let copier = id_of(0);
    for (kind, key) in [
        (Kind::Group, GROUPS[0]),
        (Kind::Transaction, copier.as_str()),
    ] {
        let deadline = Instant::now() + COORDINATOR_PATIENCE;
        let mut coordinator = Coordinator::of(addresses, kind, key, 0);
        while let Err(error) = coordinator.locate() {
            ensure!(
                Instant::now() < deadline,
                "no coordinator of {key}: {error:#}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

fn ended(history: &History) -> usize {
    let attempts = history.attempts.iter();
    attempts
        .filter(|attempt| attempt.answered.is_some())
        .count()
}

/// Waits until all replicas have the same records on their disks, since a broker counts as in sync for a while after it
/// was cut off; how long that took. That they never come to be the same is left to the comparison at the end.
fn await_identical(cluster: &mut Cluster, placements: &[(String, Placement)]) -> Result<Duration> {
    let begun = Instant::now();
    let directories = directories(cluster)?;
    while begun.elapsed() < HEALING_PATIENCE {
        // A directory that is about to be renamed or removed is looked at again.
        let found = compare_replicas(&directories, placements);
        if found.is_ok_and(|violations| violations.is_empty()) {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(begun.elapsed())
}

/// Whether all replicas of some topics are the same.
fn compare_replicas(
    directories: &BTreeMap<NodeNumber, PathBuf>,
    placements: &[(String, Placement)],
) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    for (topic, placement) in placements {
        let replicas = replicas::read(directories, topic, placement)?;
        violations.extend(replicas::compare(&replicas));
    }
    Ok(violations)
}

/// Where each node has its data.
fn directories(cluster: &mut Cluster) -> Result<BTreeMap<NodeNumber, PathBuf>> {
    let mut directories = BTreeMap::new();
    for number in cluster.numbers() {
        directories.insert(number, cluster.node(number)?.data_dir().to_owned());
    }
    Ok(directories)
}
