//! Most replicas of a partition are lost for good: Kafka's tool, or the configuration, has it go on with
//! what is left, and brokers that come back follow that.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use compat_tests::batches::{BatchSpec, RecordSpec};
use compat_tests::cluster::{Cluster, NodeNumber};
use compat_tests::kafka::{CLUSTER, CONFIGS, LEADER_ELECTION, TOPICS, Tool};
use compat_tests::requests::{
    Topic, creatable, metadata_of, produce, read_to_end, until_not_retriable,
};
use compat_tests::wire::Wire;
use kafka_protocol::messages::create_topics_request::CreatableReplicaAssignment;
use kafka_protocol::messages::{BrokerId, CreateTopicsRequest};

use crate::wire_cluster_quorum::{BOTH, BROKER, await_brokers, broker_of, prepared};

const PATIENCE: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(200);
const NO_LEADER: i32 = -1;

/// Three brokers, the first of which alone votes on the metadata, and a topic of one partition on all
/// of them.
struct Three {
    cluster: Cluster,
    topic: Topic,
}

impl Three {
    fn start(configs: &[(&str, &str)]) -> Result<Self> {
        let mut cluster = prepared(&[BOTH, BROKER, BROKER], |_| vec![1])?;
        for number in 1..=3 {
            let node = cluster.node(number)?;
            node.set_for_next_start("broker.session.timeout.ms", 3_000)?;
            node.set_for_next_start("odradek.unclean.leader.election.wait.ms", 1_000)?;
            cluster.launch(number)?;
        }
        await_brokers(&mut cluster, 1, &[1, 2, 3])?;
        let assignment = CreatableReplicaAssignment::default()
            .with_partition_index(0)
            .with_broker_ids([2, 3, 1].into_iter().map(BrokerId).collect());
        let request = CreateTopicsRequest::default()
            .with_timeout_ms(20_000)
            .with_topics(vec![
                creatable("kept", -1, configs)
                    .with_replication_factor(-1)
                    .with_assignments(vec![assignment]),
            ]);
        let answer = Wire::connect(broker_of(&mut cluster, 1)?)?.call(7, &request)?;
        let row = answer.topics.first().context("no topic")?;
        ensure!(row.error_code == 0, "error {}", row.error_code);
        let topic = Topic {
            name: "kept".to_owned(),
            id: row.topic_id,
        };
        Ok(Self { cluster, topic })
    }

    fn wire(&mut self, node: NodeNumber) -> Result<Wire> {
        Wire::connect(broker_of(&mut self.cluster, node)?)
    }

    /// What a tool prints, whether it succeeds or not. Node 1 is asked.
    fn tool(&mut self, tool: Tool, arguments: &[&str]) -> Result<String> {
        let bootstrap = broker_of(&mut self.cluster, 1)?.to_string();
        let mut all = arguments.to_vec();
        let at = usize::from(tool == CLUSTER);
        all.splice(at..at, ["--bootstrap-server", bootstrap.as_str()]);
        Ok(tool.run(&all, "")?.both())
    }

    fn elect(&mut self) -> Result<String> {
        let which = ["--topic", "kept", "--partition", "0"];
        let arguments = [&["--election-type", "unclean"][..], &which[..]].concat();
        self.tool(LEADER_ELECTION, &arguments)
    }

    /// Leader, epoch and replicas in sync, as node 1 knows them.
    fn known(&mut self) -> Result<(i32, i32, usize)> {
        let request = metadata_of(&self.topic.name);
        let answer = self.wire(1)?.call(12, &request)?;
        let row = answer.topics.first().context("no topic")?;
        let row = row.partitions.first().context("no partition")?;
        Ok((row.leader_id.0, row.leader_epoch, row.isr_nodes.len()))
    }

    fn until(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self).unwrap_or(false) {
            ensure!(
                Instant::now() < deadline,
                "not in time: {what}\n{}",
                self.cluster.logs()
            );
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn until_led_by(&mut self, leader: i32) -> Result<i32> {
        self.until(
            &format!("led by {leader}"),
            |it| Ok(it.known()?.0 == leader),
        )?;
        Ok(self.known()?.1)
    }

    fn write(&mut self, leader: NodeNumber, values: std::ops::Range<i32>) -> Result<()> {
        let (mut wire, topic) = (self.wire(leader)?, self.topic.clone());
        for value in values {
            let batch = BatchSpec::of(vec![RecordSpec::value(format!("value-{value}"))]).build()?;
            let row = until_not_retriable(
                || produce(&mut wire, &topic, 0, batch.clone()),
                |row| row.error_code,
            )?;
            ensure!(row.error_code == 0, "produce: error {}", row.error_code);
        }
        Ok(())
    }

    /// The values in the log, by offset.
    fn read(&mut self, leader: NodeNumber) -> Result<BTreeMap<i64, String>> {
        let (mut wire, topic) = (self.wire(leader)?, self.topic.clone());
        let records = read_to_end(&mut wire, &topic, 0, 0)?;
        let values = records.into_iter().map(|record| {
            let value = record
                .value
                .map(|value| String::from_utf8_lossy(&value).into());
            (record.offset, value.unwrap_or_default())
        });
        Ok(values.collect())
    }

    /// Kills both other brokers and throws their disks away.
    fn lose_the_others(&mut self) -> Result<()> {
        for node in [2, 3] {
            self.cluster.node(node)?.kill9()?;
        }
        for node in [2, 3] {
            std::fs::remove_dir_all(self.cluster.node(node)?.data_dir())?;
        }
        Ok(())
    }

    fn log_of(&mut self, node: NodeNumber) -> Result<String> {
        let data_dir = self.cluster.node(node)?.data_dir().to_owned();
        Ok(std::fs::read_to_string(
            data_dir.with_file_name("node.log"),
        )?)
    }
}

fn values(range: std::ops::Range<i32>) -> Vec<String> {
    range.map(|value| format!("value-{value}")).collect()
}

#[test]
fn a_partition_two_of_whose_three_disks_are_lost_goes_on_by_kafkas_tool() -> Result<()> {
    let mut three = Three::start(&[("min.insync.replicas", "1")])?;
    let epoch = three.until_led_by(2)?;
    three.write(2, 0..50)?;
    three.until("all in sync", |it| Ok(it.known()?.2 == 3))?;
    let refused = three.elect()?;
    ensure!(
        refused.contains("Valid replica already elected"),
        "{refused}"
    );
    // The other two die, and nobody leads: what the one has is there, and it cannot know what it lacks.
    three.lose_the_others()?;
    three.until("nobody leads", |it| Ok(it.known()?.0 == NO_LEADER))?;
    let rows = three.tool(TOPICS, &["--describe", "--unavailable-partitions"])?;
    ensure!(rows.contains("Topic: kept"), "{rows}");
    three.until("it is elected", |it| {
        let printed = it.elect()?;
        Ok(printed.contains("Successfully completed leader election (UNCLEAN)"))
    })?;
    let later = three.until_led_by(1)?;
    ensure!(later > epoch + 1_000, "epoch {later} after {epoch}");
    assert_eq!(
        three.read(1)?.into_values().collect::<Vec<_>>(),
        values(0..50)
    );
    three.write(1, 50..60)?;
    let log = three.log_of(1)?;
    ensure!(log.contains("unclean election"), "{log}");
    ensure!(log.contains("kept_until"), "{log}");
    let again = three.elect()?;
    ensure!(again.contains("Valid replica already elected"), "{again}");
    // The lost ones get other disks and their replicas back.
    for (node, in_sync) in [(2, 2), (3, 3)] {
        let id = node.to_string();
        let gone = three.tool(CLUSTER, &["unregister", "--id", &id])?;
        ensure!(gone.contains("is no longer registered"), "{gone}");
        three.cluster.launch(node)?;
        // One that is back counts before the other is.
        three.until("in sync again", |it| Ok(it.known()?.2 == in_sync))?;
    }
    await_brokers(&mut three.cluster, 1, &[1, 2, 3])?;
    three.until("all in sync again", |it| Ok(it.known()?.2 == 3))?;
    // And can do without the one that had gone on.
    three.tool(
        LEADER_ELECTION,
        &[
            "--election-type",
            "preferred",
            "--topic",
            "kept",
            "--partition",
            "0",
        ],
    )?;
    three.until_led_by(2)?;
    three.write(2, 60..70)?;
    assert_eq!(
        three.read(2)?.into_values().collect::<Vec<_>>(),
        values(0..70)
    );
    Ok(())
}

#[test]
fn old_replicas_that_come_back_with_their_disks_follow_and_lose_what_was_given_up() -> Result<()> {
    let mut three = Three::start(&[("min.insync.replicas", "1")])?;
    three.until_led_by(2)?;
    three.write(2, 0..20)?;
    three.until("all in sync", |it| Ok(it.known()?.2 == 3))?;
    // Node 1 stands still while the others go on, so that it lacks what they acknowledge.
    three.cluster.node(1)?.pause()?;
    three.write(2, 20..30)?;
    three.cluster.node(2)?.kill9()?;
    three.cluster.node(3)?.kill9()?;
    three.cluster.node(1)?.resume()?;
    three.until("nobody leads", |it| Ok(it.known()?.0 == NO_LEADER))?;
    three.until("it is elected", |it| {
        let printed = it.elect()?;
        Ok(printed.contains("Successfully completed leader election (UNCLEAN)"))
    })?;
    three.until_led_by(1)?;
    let kept: Vec<_> = three.read(1)?.into_values().collect();
    let end = i32::try_from(kept.len())?;
    ensure!((20..30).contains(&end), "{end} were kept");
    assert_eq!(kept, values(0..end));
    three.write(1, 100..110)?;
    let expected = [values(0..end), values(100..110)].concat();
    for node in [2, 3] {
        three.cluster.launch(node)?;
    }
    await_brokers(&mut three.cluster, 1, &[1, 2, 3])?;
    three.until("all in sync again", |it| Ok(it.known()?.2 == 3))?;
    let joined = three.log_of(2)?;
    ensure!(
        joined.contains("this replica joins a new incarnation"),
        "{joined}"
    );
    three.cluster.node(1)?.pause()?;
    let leader = {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let request = metadata_of("kept");
            let answer = three.wire(2)?.call(12, &request)?;
            let row = answer.topics.first().context("no topic")?;
            let leader = row.partitions.first().context("no partition")?.leader_id.0;
            if leader == 2 || leader == 3 {
                break leader;
            }
            ensure!(Instant::now() < deadline, "{}", three.cluster.logs());
            std::thread::sleep(PAUSE);
        }
    };
    let found: Vec<_> = three.read(leader)?.into_values().collect();
    three.cluster.node(1)?.resume()?;
    assert_eq!(found, expected);
    Ok(())
}

#[test]
fn a_partition_goes_on_by_itself_only_where_that_is_configured() -> Result<()> {
    let mut three = Three::start(&[("min.insync.replicas", "1")])?;
    three.until_led_by(2)?;
    three.write(2, 0..20)?;
    three.until("all in sync", |it| Ok(it.known()?.2 == 3))?;
    three.lose_the_others()?;
    three.until("nobody leads", |it| Ok(it.known()?.0 == NO_LEADER))?;
    std::thread::sleep(Duration::from_secs(8));
    assert_eq!(three.known()?.0, NO_LEADER, "it is not configured");
    let printed = three.tool(
        CONFIGS,
        &[
            "--alter",
            "--entity-type",
            "topics",
            "--entity-name",
            "kept",
            "--add-config",
            "unclean.leader.election.enable=true",
        ],
    )?;
    ensure!(printed.contains("Completed updating config"), "{printed}");
    three.until_led_by(1)?;
    assert_eq!(
        three.read(1)?.into_values().collect::<Vec<_>>(),
        values(0..20)
    );
    three.write(1, 20..30)?;
    Ok(())
}
