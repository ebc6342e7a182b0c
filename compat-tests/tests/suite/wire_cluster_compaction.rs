//! Compacted partitions of several replicas on real nodes: all of them shrink, and a replica that was away, has lost
//! its directory or is new is given what the others keep of the records.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use compat_tests::batches::{BatchSpec, Codec, RecordSpec};
use compat_tests::cluster::admin::{self, Placement};
use compat_tests::cluster::{Cluster, NodeNumber, Product};
use compat_tests::groups::{committed, offset_commit};
use compat_tests::requests::{
    Topic, creatable, metadata_of, produce, read_to_end, until_not_retriable,
};
use compat_tests::wire::{Wire, text};
use kafka_protocol::messages::create_topics_request::CreatableReplicaAssignment;
use kafka_protocol::messages::{BrokerId, CreateTopicsRequest, FindCoordinatorRequest};

use super::dump_log::{dump, files_ending_in};

const PATIENCE: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(200);
const KEYS: usize = 40;
/// Batches of ten records of 4 kB: more than three segments.
const BATCHES: usize = 100;
/// What a node says when a replica was given records.
const GIVEN: &str = "records that no entry stands for have been received";

/// Newest value of every key, with its offset.
type Newest = BTreeMap<Vec<u8>, (i64, Vec<u8>)>;

struct Compacted {
    cluster: Cluster,
    topic: Topic,
    newest: Newest,
    round: usize,
}

fn noise(seed: usize) -> Vec<u8> {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..4000)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// Bytes of the batches in a partition's directory.
fn log_bytes(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|it| it == "log") {
            // It may be on its way out.
            bytes += entry.metadata().map_or(0, |it| it.len());
        }
    }
    Ok(bytes)
}

impl Compacted {
    /// Four nodes, and a compacted topic on the first three.
    fn start() -> Result<Self> {
        let mut cluster = Cluster::options(Product::Odradek, 4)
            .set("log.cleaner.backoff.ms", 100)
            .set("log.cleaner.min.cleanable.ratio", 0.01)
            .set("odradek.compaction.hold.ms", 2_000)
            .set("offsets.topic.num.partitions", 1)
            .set("offsets.topic.segment.bytes", 1 << 20)
            .start()?;
        let configs = [
            ("cleanup.policy", "compact"),
            ("segment.bytes", "1048576"),
            ("min.cleanable.dirty.ratio", "0.01"),
        ];
        let replicas = CreatableReplicaAssignment::default()
            .with_partition_index(0)
            .with_broker_ids([1, 2, 3].map(BrokerId).to_vec());
        let topic = creatable("compacted", -1, &configs)
            .with_replication_factor(-1)
            .with_assignments(vec![replicas]);
        let request = CreateTopicsRequest::default()
            .with_timeout_ms(20_000)
            .with_topics(vec![topic]);
        let answer = admin::connect_to_any(&mut cluster)?.call(7, &request)?;
        let row = answer.topics.first().context("no topic")?;
        ensure!(row.error_code == 0, "error {}", row.error_code);
        let topic = Topic {
            name: "compacted".to_owned(),
            id: row.topic_id,
        };
        cluster.await_in_sync(PATIENCE)?;
        Ok(Self {
            cluster,
            topic,
            newest: Newest::new(),
            round: 0,
        })
    }

    fn leader(&mut self) -> Result<NodeNumber> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let asked = admin::connect_to_any(&mut self.cluster)
                .and_then(|mut wire| Ok(wire.call(12, &metadata_of(&self.topic.name))?));
            let running = self.cluster.running()?;
            let leader = asked.ok().and_then(|answer| {
                let row = answer.topics.first()?.partitions.first()?;
                Some(row.leader_id.0).filter(|leader| running.contains(leader))
            });
            if let Some(leader) = leader {
                return Ok(leader);
            }
            ensure!(
                Instant::now() < deadline,
                "no leader\n{}",
                self.cluster.logs()
            );
            std::thread::sleep(PAUSE);
        }
    }

    fn wire_to_leader(&mut self) -> Result<Wire> {
        let leader = self.leader()?;
        admin::connect(&mut self.cluster, leader)
    }

    /// Writes every key again, many times.
    fn fill(&mut self) -> Result<()> {
        self.round += 1;
        for batch in 0..BATCHES {
            let codec = [Codec::None, Codec::Zstd, Codec::Gzip][batch % 3];
            let records: Vec<_> = (0..10)
                .map(|i| {
                    let key = format!("key-{}", (batch * 10 + i) % KEYS).into_bytes();
                    (key, noise(self.round * 10_000 + batch * 10 + i))
                })
                .collect();
            let specs = records
                .iter()
                .map(|(key, value)| RecordSpec::keyed(key.clone(), value.clone()))
                .collect();
            let bytes = BatchSpec::of(specs).compressed(codec).build()?;
            let base = self.write(&bytes)?;
            for (offset, (key, value)) in (base..).zip(records) {
                self.newest.insert(key, (offset, value));
            }
        }
        Ok(())
    }

    /// Writes a batch to whoever leads; returns its offset.
    fn write(&mut self, bytes: &bytes::Bytes) -> Result<i64> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let topic = self.topic.clone();
            let answer = self
                .wire_to_leader()
                .and_then(|mut wire| produce(&mut wire, &topic, 0, bytes.clone()));
            if let Ok(answer) = &answer
                && answer.error_code == 0
            {
                return Ok(answer.base_offset);
            }
            ensure!(Instant::now() < deadline, "not written: {answer:?}");
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until the logs of these nodes are small.
    fn await_compacted(&mut self, nodes: &[NodeNumber], limit: u64) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut sizes = Vec::new();
            for &node in nodes {
                let directory = self.cluster.node(node)?.data_dir().join("compacted-0");
                sizes.push((node, log_bytes(&directory)?));
            }
            if sizes.iter().all(|(_, bytes)| *bytes < limit) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{sizes:?}, not below {limit}\n{}",
                self.cluster.logs()
            );
            std::thread::sleep(PAUSE);
        }
    }

    fn times_given(&mut self, node: NodeNumber) -> Result<usize> {
        let text = self.cluster.node(node)?.process()?.log_text();
        Ok(text.matches(GIVEN).count())
    }

    /// Waits until a node was given records more often than `before`. Until a leader has missed it for long, a
    /// replica passes for in sync.
    fn await_given(&mut self, node: NodeNumber, before: usize) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.times_given(node)? <= before {
            ensure!(
                Instant::now() < deadline,
                "node {node} was given nothing\n{}",
                self.cluster.logs()
            );
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn await_in_sync(&mut self) -> Result<()> {
        self.cluster.await_in_sync(PATIENCE)
    }

    /// Has these replicas, the first of which leads.
    fn place(&mut self, replicas: &[NodeNumber]) -> Result<()> {
        let placement: Placement = BTreeMap::from([(0, replicas.to_vec())]);
        let deadline = Instant::now() + PATIENCE;
        let mut wire = admin::connect_to_any(&mut self.cluster)?;
        let refused = admin::reassign(&mut wire, &self.topic, &placement)?;
        ensure!(refused.is_empty(), "{refused:?}");
        loop {
            let moving = admin::reassigning(&mut wire)?;
            if moving == 0 && admin::placement(&mut self.cluster, &self.topic)? == placement {
                break;
            }
            ensure!(
                Instant::now() < deadline,
                "still moving to {replicas:?}\n{}",
                self.cluster.logs()
            );
            std::thread::sleep(PAUSE);
        }
        self.await_in_sync()?;
        while Some(&self.leader()?) != replicas.first() {
            // Refused while it is not in sync yet.
            let _ = admin::elect_preferred(&mut wire, &self.topic, 1);
            ensure!(Instant::now() < deadline, "{replicas:?} do not lead");
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Reads the partition from this node as its leader: the newest value of every key is there, at its offset.
    fn check_as_leader(&mut self, node: NodeNumber, others: &[NodeNumber]) -> Result<()> {
        let replicas: Vec<_> = [&[node], others].concat();
        self.place(&replicas)?;
        let topic = self.topic.clone();
        let mut wire = admin::connect(&mut self.cluster, node)?;
        let left = read_to_end(&mut wire, &topic, 0, 0)?;
        let mut found = Newest::new();
        for record in &left {
            let key = record.key.clone().context("no key")?.to_vec();
            let value = record.value.clone().context("no value")?.to_vec();
            found.insert(key, (record.offset, value));
        }
        ensure!(
            found == self.newest,
            "node {node} shows other values than were written last"
        );
        Ok(())
    }
}

#[test]
fn replicas_that_were_away_or_lost_their_log_or_are_new_are_given_what_is_left() -> Result<()> {
    let mut topic = Compacted::start()?;
    // 400 kB of values are live, and a segment of 1 MiB is not closed.
    let small = 3 << 20;
    topic.fill()?;
    topic.await_compacted(&[1, 2, 3], small)?;

    // Left far behind.
    topic.cluster.node(3)?.kill9()?;
    for _ in 0..3 {
        topic.fill()?;
    }
    topic.await_compacted(&[1, 2], small)?;
    topic.cluster.launch(3)?;
    topic.fill()?;
    topic.await_given(3, 0)?;
    topic.await_in_sync()?;
    topic.await_compacted(&[1, 2, 3], small)?;
    topic.check_as_leader(3, &[1, 2])?;
    topic.check_as_leader(2, &[3, 1])?;
    topic.check_as_leader(1, &[2, 3])?;

    // Its directory is lost.
    let given = topic.times_given(2)?;
    topic.cluster.node(2)?.kill9()?;
    let directory = topic.cluster.node(2)?.data_dir().join("compacted-0");
    std::fs::remove_dir_all(&directory)?;
    topic.cluster.launch(2)?;
    topic.fill()?;
    topic.await_given(2, given)?;
    topic.await_in_sync()?;
    topic.check_as_leader(2, &[3, 1])?;

    // Moved to a new broker, and away from an old one.
    topic.check_as_leader(4, &[2, 1])?;
    topic.await_given(4, 0)?;
    topic.fill()?;
    topic.await_compacted(&[1, 2, 4], small)?;
    topic.check_as_leader(1, &[4, 2])?;

    // Killed all at once.
    for node in 1..=4 {
        topic.cluster.node(node)?.kill9()?;
    }
    topic.cluster.make_whole(PATIENCE)?;
    topic.await_in_sync()?;
    topic.check_as_leader(4, &[1, 2])?;
    topic.check_as_leader(2, &[4, 1])?;
    topic.cluster.ensure_none_failed(&[])?;
    topic.cluster.terminate()?;
    for node in [1, 2, 4] {
        let data_dir = topic.cluster.node(node)?.data_dir().to_owned();
        for suffix in [".log", ".index", ".timeindex", ".txnindex", ".snapshot"] {
            let files = files_ending_in(&data_dir, suffix)?;
            if !files.is_empty() {
                dump(&["--deep-iteration"], &files)?;
            }
        }
    }
    Ok(())
}

#[test]
fn committed_offsets_of_a_cluster_take_no_more_and_more_room() -> Result<()> {
    const COMMITS: i64 = 1_600;
    let mut cluster = Compacted::start()?.cluster;
    let deadline = Instant::now() + PATIENCE;
    let find = FindCoordinatorRequest::default().with_key(text("group"));
    let mut wire = admin::connect_to_any(&mut cluster)?;
    let answer = until_not_retriable(|| Ok(wire.call(3, &find)?), |answer| answer.error_code)?;
    ensure!(answer.error_code == 0, "error {}", answer.error_code);
    let mut wire = admin::connect(&mut cluster, answer.node_id.0)?;
    let note = "n".repeat(4_000);
    for offset in 0..COMMITS {
        let mut request = offset_commit(7, "group", -1, "", &[("compacted", 0, offset)]);
        for row in request.topics.iter_mut().flat_map(|it| &mut it.partitions) {
            row.committed_metadata = Some(text(&note));
        }
        let code = |answer: &kafka_protocol::messages::OffsetCommitResponse| {
            let rows = answer.topics.iter().flat_map(|it| &it.partitions);
            rows.map(|row| row.error_code)
                .find(|code| *code != 0)
                .unwrap_or(0)
        };
        let answer = until_not_retriable(|| Ok(wire.call(7, &request)?), code)?;
        ensure!(code(&answer) == 0, "error {}", code(&answer));
    }
    let holders: Vec<_> = cluster
        .numbers()
        .into_iter()
        .filter(|node| {
            let node = cluster.node(*node);
            node.is_ok_and(|node| node.data_dir().join("__consumer_offsets-0").exists())
        })
        .collect();
    ensure!(holders.len() == 3, "{holders:?}");
    loop {
        let mut sizes = Vec::new();
        for &node in &holders {
            let directory = cluster.node(node)?.data_dir().join("__consumer_offsets-0");
            sizes.push(log_bytes(&directory)?);
        }
        if sizes.iter().all(|bytes| *bytes < 2 << 20) {
            break;
        }
        ensure!(
            Instant::now() < deadline,
            "{COMMITS} commits of 4 kB take {sizes:?}\n{}",
            cluster.logs()
        );
        std::thread::sleep(PAUSE);
    }
    // All the coordinators that come after it know the last of them.
    for node in holders {
        cluster.node(node)?.kill9()?;
        let mut wire = admin::connect_to_any(&mut cluster)?;
        let answer = until_not_retriable(|| Ok(wire.call(3, &find)?), |it| it.error_code)?;
        let leader = answer.node_id.0;
        if leader != node {
            let mut wire = admin::connect(&mut cluster, leader)?;
            let (offset, _) = committed(&mut wire, "group", "compacted", 0)?;
            ensure!(offset == COMMITS - 1, "offset {offset} on node {leader}");
        }
        cluster.launch(node)?;
        cluster.await_members(PATIENCE)?;
        cluster.await_in_sync(PATIENCE)?;
    }
    cluster.terminate()?;
    Ok(())
}
