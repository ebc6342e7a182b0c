//! Clusters of three nodes whose coordinators and leaders a test puts where it wants them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use compat_tests::cluster::admin::{
    ask_for_topic, connect_to_any, elect_preferred, placement, reassign,
};
use compat_tests::cluster::check::{Violation, coordination, describe};
use compat_tests::cluster::clients::committed_reader::view_of;
use compat_tests::cluster::clients::coordinator::{Coordinator, Kind};
use compat_tests::cluster::clients::{Coordinated, Router, Shared};
use compat_tests::cluster::history::{AttemptName, CommittedView};
use compat_tests::cluster::{Cluster, ClusterOptions, NodeNumber, Product};
use compat_tests::requests::Topic;
use compat_tests::wire::Wire;

/// How long anything may take that a cluster does by itself.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const PAUSE: Duration = Duration::from_millis(20);
/// How long a leader may take before it is looked for again.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// Partitions of `__consumer_offsets` and of `__transaction_state`.
const STATE_PARTITIONS: i32 = 4;
pub const ALL: [NodeNumber; 3] = [1, 2, 3];

/// Asks until there is an answer.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Err(error) if Instant::now() >= deadline => return Err(error.context(what.to_owned())),
            Err(_) => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
}

/// The topic in which the coordinators of a kind keep their state.
pub fn state_topic(kind: Kind) -> Topic {
    Topic::missing(match kind {
        Kind::Group => "__consumer_offsets",
        Kind::Transaction => "__transaction_state",
    })
}

/// The partition of that topic which a group or a transactional id belongs to: Java's hash of the name decides, as a
/// positive number (`Utils.abs` in Kafka).
pub fn state_partition(key: &str) -> i32 {
    let hash = key.bytes().fold(0_i32, |hash, byte| {
        hash.wrapping_mul(31).wrapping_add(i32::from(byte))
    });
    hash.checked_abs().unwrap_or(0) % STATE_PARTITIONS
}

/// See the module.
pub struct Three {
    pub cluster: Cluster,
}

impl Three {
    /// Members' sessions may be short, and transactions whose time is up are found at once.
    pub fn options() -> ClusterOptions {
        Cluster::options(Product::Odradek, 3)
            .set("group.min.session.timeout.ms", 1_000)
            .set("group.consumer.min.session.timeout.ms", 1_000)
            .set("group.consumer.session.timeout.ms", 3_000)
            .set("group.consumer.min.heartbeat.interval.ms", 100)
            .set("group.consumer.heartbeat.interval.ms", 150)
            .set("group.consumer.assignment.interval.ms", 100)
            .set(
                "transaction.abort.timed.out.transaction.cleanup.interval.ms",
                200,
            )
    }

    pub fn start() -> Result<Self> {
        Ok(Self {
            cluster: Self::options().start()?,
        })
    }

    /// Creates a topic with these replicas, one list a partition, each of which the first of them leads.
    pub fn create(&mut self, name: &str, replicas: &[&[NodeNumber]]) -> Result<Topic> {
        let id = eventually(name, || {
            let mut wire = connect_to_any(&mut self.cluster)?;
            let created = ask_for_topic(&mut wire, name, replicas, -1)?;
            ensure!(created.error_code == 0, "error {}", created.error_code);
            Ok(created.topic_id)
        })?;
        let topic = Topic {
            name: name.to_owned(),
            id,
        };
        for (partition, replicas) in (0..).zip(replicas) {
            let first = *replicas.first().context("no replica")?;
            self.lead(&topic, partition, first)?;
        }
        Ok(topic)
    }

    /// Who leads a partition, as some node knows.
    pub fn leader(&mut self, topic: &Topic, partition: i32) -> Result<NodeNumber> {
        let mut addresses = Vec::new();
        for number in self.cluster.running()? {
            addresses.push(self.cluster.node(number)?.addresses().broker);
        }
        let mut router = Router::new(&addresses, topic, 0);
        let leader = eventually("no leader", || router.leader(partition))?;
        Ok(leader.0)
    }

    /// Has a node lead a partition.
    pub fn lead(&mut self, topic: &Topic, partition: i32, node: NodeNumber) -> Result<()> {
        eventually("another leads", || {
            if self.leader(topic, partition)? == node {
                return Ok(());
            }
            let mut wish = placement(&mut self.cluster, topic)?;
            let replicas = wish.get_mut(&partition).context("no such partition")?;
            let place = replicas.iter().position(|replica| *replica == node);
            replicas.rotate_left(place.context("it has no replica")?);
            let count = i32::try_from(wish.len())?;
            let mut wire = connect_to_any(&mut self.cluster)?;
            reassign(&mut wire, topic, &wish)?;
            elect_preferred(&mut wire, topic, count)?;
            ensure!(self.leader(topic, partition)? == node, "not yet");
            Ok(())
        })
    }

    /// The way to a coordinator.
    pub fn coordinator(&self, kind: Kind, key: &str) -> Coordinator {
        Coordinator::of(&self.cluster.addresses(), kind, key, 0)
    }

    /// Has a node coordinate a group or transactional id.
    pub fn coordinate(&mut self, kind: Kind, key: &str, node: NodeNumber) -> Result<()> {
        let mut coordinator = self.coordinator(kind, key);
        eventually("no coordinator", || coordinator.locate())?;
        self.lead(&state_topic(kind), state_partition(key), node)?;
        let mut coordinator = self.coordinator(kind, key);
        eventually("another coordinates", || {
            for _ in ALL {
                ensure!(coordinator.locate()?.0 == node, "not everybody knows yet");
            }
            Ok(())
        })
    }

    pub fn kill(&mut self, node: NodeNumber) -> Result<()> {
        self.cluster.node(node)?.kill9()
    }

    /// Starts what does not run and lets go on what was paused, and waits until all replicas are in sync.
    pub fn make_whole(&mut self) -> Result<()> {
        self.cluster.make_whole(PATIENCE)?;
        self.cluster.await_in_sync(PATIENCE)
    }

    /// What counts in a partition, once all of it is decided.
    pub fn decided(&mut self, topic: &Topic, partition: i32) -> Result<CommittedView> {
        eventually("undecided", || {
            let leader = self.leader(topic, partition)?;
            // One that has just been stopped still leads by what others know.
            let address = self.cluster.node(leader)?.addresses().broker;
            let mut wire = Wire::connect_within(address, ANSWER_PATIENCE)?;
            let view = view_of(&mut wire, topic, partition)?;
            ensure!(
                view.last_stable == view.end,
                "{}-{partition} is decided up to {} of {}",
                topic.name,
                view.last_stable,
                view.end
            );
            Ok(view)
        })
    }

    /// The names that count in a partition.
    pub fn counted(&mut self, topic: &Topic, partition: i32) -> Result<Vec<AttemptName>> {
        let view = self.decided(topic, partition)?;
        view.records
            .iter()
            .map(|(offset, name)| name.with_context(|| format!("a foreign record at {offset}")))
            .collect()
    }

    /// Has members, copiers and readers at work while `disturb` does something to the cluster, and judges what they
    /// saw. Returns what `disturb` returns.
    pub fn under_load<T>(
        &mut self,
        seed: u64,
        disturb: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let spread: [&[NodeNumber]; 3] = [&[1, 2, 3], &[2, 3, 1], &[3, 1, 2]];
        let topic = self.create("worked-on", &spread)?;
        let output = self.create("copied-to", &spread)?;
        let shared = Shared::new(&self.cluster.addresses(), &topic, 3);
        let coordinated = Coordinated::start(&shared, &output, seed);
        let done = disturb(self)?;
        self.make_whole()?;
        // Everybody has had time to do something in peace.
        std::thread::sleep(Duration::from_secs(1));
        shared.stop();
        let copied = coordinated.finish()?;
        let history = shared.recorder.history();
        let violations = coordination::check(&history, &copied);
        ensure!(violations.is_empty(), "{}", report(seed, &violations));
        ensure!(history.given_up.is_empty(), "{:?}", history.given_up);
        let commits = history.commits.iter().filter_map(|one| one.acknowledged());
        let positions = copied.positions.values().copied();
        let (commits, least) = (commits.count(), positions.min().unwrap_or(0));
        eprintln!(
            "seed {seed}: {commits} commits, {} partitions handed out, copiers stand at {:?}",
            history.owned.len(),
            copied.positions
        );
        ensure!(commits > 0 && least > 0, "nobody got on");
        Ok(done)
    }
}

fn report(seed: u64, violations: &[Violation]) -> String {
    format!("ODRADEK_SEED={seed}\n{}", describe(violations))
}

/// The seed to replay, or a new one.
pub fn seed() -> Result<u64> {
    let seed = match std::env::var("ODRADEK_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => rand::random_range(0..1_000_000),
    };
    eprintln!("ODRADEK_SEED={seed}");
    Ok(seed)
}
