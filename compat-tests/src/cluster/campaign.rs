//! One run of the nemesis: a cluster, a load, a schedule of faults, and the verdict.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::check::{Rule, Violation, check, count, describe};
use super::clients::{Load, Shared, create_topic, read_all};
use super::faults::{Nemesis, Setting, placement, schedule};
use super::history::History;
use super::{Cluster, ClusterOptions, NodeNumber, Product, replicas};

/// How long the cluster may take to be whole once all faults are over.
const HEALING_PATIENCE: Duration = Duration::from_secs(120);
/// What is still on its way to a log when the clients have stopped arrives within this.
const SETTLING: Duration = Duration::from_millis(500);
const TOPIC: &str = "nemesis";

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
    /// Faults that happened.
    pub faults: usize,
    /// Idempotent producers that found no way on.
    pub given_up: Vec<String>,
    /// How long the cluster took to be in sync after the last fault.
    pub healing: Duration,
}

impl Verdict {
    /// One line for a log.
    pub fn line(&self) -> String {
        let counts: Vec<String> = count(&self.violations)
            .into_iter()
            .map(|(rule, number)| format!("{number} × {rule}"))
            .collect();
        format!(
            "seed {}: {} faults, {} records acknowledged, {} in the dark, {} read, {} latest offsets, in sync after {:.1} s: {}{}",
            self.seed,
            self.faults,
            self.acknowledged,
            self.unknown,
            self.read,
            self.latest,
            self.healing.as_secs_f64(),
            if counts.is_empty() {
                "no violation".to_owned()
            } else {
                counts.join(", ")
            },
            if self.given_up.is_empty() {
                String::new()
            } else {
                format!(" ({} producers started afresh)", self.given_up.len())
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
        let mut cluster = self
            .cluster
            .clone()
            .forgetful_disks(self.disks)
            .start()
            .with_context(|| format!("seed {seed}: start"))?;
        let result = self.run_on(&mut cluster, seed);
        result.with_context(|| format!("seed {seed}\n{}", cluster.logs()))
    }

    fn run_on(&self, cluster: &mut Cluster, seed: u64) -> Result<Verdict> {
        let copies = i16::try_from(self.nodes.min(3))?;
        let topic = create_topic(
            &cluster.addresses(),
            TOPIC,
            self.partitions,
            copies,
            &[("segment.bytes", "1048576")],
        )?;
        let shared = Shared::new(&cluster.addresses(), &topic, self.partitions);
        let load = Load::start(&shared, seed);
        let steps = schedule(
            seed,
            Setting {
                nodes: self.nodes,
                partitions: self.partitions,
                disks: self.disks,
                length: self.length,
            },
        );
        let mut nemesis = Nemesis::new(cluster, &topic, self.partitions, seed);
        for step in &steps {
            std::thread::sleep(step.before);
            let at = shared.recorder.now().as_secs_f64();
            match nemesis.begin(cluster, &step.fault) {
                Ok(ongoing) => {
                    let hold = step.hold.as_secs_f64();
                    eprintln!(
                        "  seed {seed} at {at:.1} s: {:?}, {ongoing}, for {hold:.1} s",
                        step.fault
                    );
                    std::thread::sleep(step.hold);
                    nemesis.end(cluster, &ongoing)?;
                }
                // Moving leaders needs a controller, which may still be out after the fault before.
                Err(error) => eprintln!(
                    "  seed {seed} at {at:.1} s: {:?} did not work out: {error:#}",
                    step.fault
                ),
            }
        }
        let healing = Instant::now();
        cluster.make_whole(HEALING_PATIENCE)?;
        cluster.await_in_sync(HEALING_PATIENCE)?;
        let healing = healing.elapsed();
        load.finish()?;
        std::thread::sleep(SETTLING);
        let log = read_all(&shared)?;
        cluster.await_in_sync(HEALING_PATIENCE)?;
        let placement = placement(cluster, &topic)?;
        cluster.terminate()?;
        let history = shared.recorder.history();
        let mut violations = check(&history, &log);
        if cluster.product() == Product::Kafka {
            // It notes the high watermark before it reads, so records committed in between are above it.
            violations.retain(|violation| violation.rule != Rule::AboveHighWatermark);
        }
        let replicas = replicas::read(&directories(cluster)?, TOPIC, &placement)?;
        violations.extend(replicas::compare(&replicas));
        Ok(verdict(seed, steps.len(), &history, violations, healing))
    }
}

/// Where each node has its data.
fn directories(cluster: &mut Cluster) -> Result<BTreeMap<NodeNumber, PathBuf>> {
    let mut directories = BTreeMap::new();
    for number in cluster.numbers() {
        directories.insert(number, cluster.node(number)?.data_dir().to_owned());
    }
    Ok(directories)
}

fn verdict(
    seed: u64,
    faults: usize,
    history: &History,
    violations: Vec<Violation>,
    healing: Duration,
) -> Verdict {
    Verdict {
        seed,
        violations,
        acknowledged: history.acknowledged(),
        unknown: history.unknown(),
        read: history.reads.iter().map(|read| read.records.len()).sum(),
        latest: history.latest.len(),
        faults,
        given_up: history.given_up.clone(),
        healing,
    }
}
