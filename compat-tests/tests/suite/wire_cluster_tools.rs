//! What Kafka's tools do to the partitions of a cluster: moves with a throttle, elections, what they list, and the
//! procedures of `docs/OPERATIONS.md` for taking a broker out and for replacing one.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use compat_tests::batches::{BatchSpec, RecordSpec};
use compat_tests::cluster::{Cluster, NodeNumber, Product};
use compat_tests::kafka::{
    CLUSTER, CONFIGS, LEADER_ELECTION, METADATA_QUORUM, REASSIGN_PARTITIONS, TOPICS, Tool,
};
use compat_tests::requests::{
    Topic, creatable, list_offset, metadata_of, produce, until_not_retriable,
};
use compat_tests::wire::Wire;
use kafka_protocol::messages::create_topics_request::CreatableReplicaAssignment;
use kafka_protocol::messages::{BrokerId, CreateTopicsRequest};
use tempfile::TempDir;

use crate::wire_cluster_quorum::{
    BOTH, BROKER, await_brokers, await_quorum, broker_of, directory_of, prepared,
};

const PATIENCE: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(200);
const LATEST: i64 = -1;

/// A cluster, and a directory for the tools' files.
struct Tooled {
    cluster: Cluster,
    files: TempDir,
}

impl Tooled {
    fn of(cluster: Cluster) -> Result<Self> {
        Ok(Self {
            cluster,
            files: tempfile::tempdir()?,
        })
    }

    fn file(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.files.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path)
    }

    fn bootstrap(&mut self) -> Result<String> {
        let mut addresses = Vec::new();
        for node in self.cluster.running()? {
            addresses.push(broker_of(&mut self.cluster, node)?.to_string());
        }
        Ok(addresses.join(","))
    }

    /// What a tool prints, whether it succeeds or not.
    fn tool(&mut self, tool: Tool, arguments: &[&str]) -> Result<String> {
        let bootstrap = self.bootstrap()?;
        let mut all = arguments.to_vec();
        // This one has an option of that name for each of its commands, behind the command.
        let at = usize::from(tool == CLUSTER);
        all.splice(at..at, ["--bootstrap-server", bootstrap.as_str()]);
        Ok(tool.run(&all, "")?.both())
    }

    fn create(
        &mut self,
        name: &str,
        replicas: &[&[i32]],
        configs: &[(&str, &str)],
    ) -> Result<Topic> {
        let assignments = (0..)
            .zip(replicas)
            .map(|(index, brokers)| {
                CreatableReplicaAssignment::default()
                    .with_partition_index(index)
                    .with_broker_ids(brokers.iter().copied().map(BrokerId).collect())
            })
            .collect();
        let topic = creatable(name, -1, configs)
            .with_replication_factor(-1)
            .with_assignments(assignments);
        let request = CreateTopicsRequest::default()
            .with_timeout_ms(20_000)
            .with_topics(vec![topic]);
        let running = self.cluster.running()?;
        let first = running.first().copied().context("no node runs")?;
        let answer = Wire::connect(broker_of(&mut self.cluster, first)?)?.call(7, &request)?;
        let row = answer.topics.first().context("no topic")?;
        ensure!(
            row.error_code == 0,
            "{name}: error {} {:?}",
            row.error_code,
            row.error_message
        );
        self.cluster.await_in_sync(PATIENCE)?;
        Ok(Topic {
            name: name.to_owned(),
            id: row.topic_id,
        })
    }

    /// The leader of a partition, once it has one that is not `last`.
    fn leader(&mut self, topic: &Topic, partition: i32, last: NodeNumber) -> Result<NodeNumber> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for node in self.cluster.running()? {
                let asked = broker_of(&mut self.cluster, node)?;
                let answer = Wire::connect(asked)
                    .and_then(|mut wire| Ok(wire.call(12, &metadata_of(&topic.name))?));
                let leader = answer.ok().and_then(|answer| {
                    let row = answer.topics.first()?;
                    let row = row
                        .partitions
                        .iter()
                        .find(|row| row.partition_index == partition)?;
                    Some(row.leader_id.0)
                });
                if let Some(leader) = leader.filter(|leader| *leader >= 0 && *leader != last) {
                    return Ok(leader);
                }
            }
            ensure!(
                Instant::now() < deadline,
                "no leader\n{}",
                self.cluster.logs()
            );
            std::thread::sleep(PAUSE);
        }
    }

    fn write(&mut self, topic: &Topic, partition: i32, batches: usize, bytes: usize) -> Result<()> {
        let leader = self.leader(topic, partition, -1)?;
        let mut wire = Wire::connect(broker_of(&mut self.cluster, leader)?)?;
        let value = "v".repeat(bytes);
        let batch = BatchSpec::of(vec![RecordSpec::value(value.clone())]).build()?;
        for _ in 0..batches {
            let row = until_not_retriable(
                || produce(&mut wire, topic, partition, batch.clone()),
                |row| row.error_code,
            )?;
            ensure!(row.error_code == 0, "produce: error {}", row.error_code);
        }
        Ok(())
    }

    fn end(&mut self, topic: &Topic, partition: i32) -> Result<i64> {
        let leader = self.leader(topic, partition, -1)?;
        let mut wire = Wire::connect(broker_of(&mut self.cluster, leader)?)?;
        Ok(list_offset(&mut wire, topic, partition, LATEST)?.offset)
    }

    /// Runs a tool until it prints `wanted`.
    fn until_printed(&mut self, tool: Tool, arguments: &[&str], wanted: &str) -> Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let printed = self.tool(tool, arguments)?;
            if printed.contains(wanted) {
                return Ok(printed);
            }
            ensure!(
                Instant::now() < deadline,
                "no {wanted:?} in\n{printed}\n{}",
                self.cluster.logs()
            );
            std::thread::sleep(PAUSE);
        }
    }

    fn settings(&mut self, kind: &str, name: &str) -> Result<String> {
        self.tool(
            CONFIGS,
            &["--describe", "--entity-type", kind, "--entity-name", name],
        )
    }
}

fn assignment(topic: &str, replicas: &[&[i32]]) -> String {
    let partitions: Vec<String> = replicas
        .iter()
        .enumerate()
        .map(|(index, replicas)| {
            format!("{{\"topic\":\"{topic}\",\"partition\":{index},\"replicas\":{replicas:?}}}")
        })
        .collect();
    format!(
        "{{\"version\":1,\"partitions\":[{}]}}",
        partitions.join(",")
    )
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is no text")
}

#[test]
fn a_throttled_reassignment_is_listed_cancelled_and_done_again_and_leaves_no_settings() -> Result<()>
{
    let mut cluster = Tooled::of(Cluster::options(Product::Odradek, 4).start()?)?;
    let topic = cluster.create("moved", &[&[1, 2]], &[])?;
    cluster.write(&topic, 0, 80, 100_000)?;
    let file = cluster.file("move.json", &assignment("moved", &[&[3, 4]]))?;
    let file = path(&file)?.to_owned();
    let of = |action: &'static str| ["--reassignment-json-file", &file, action].map(str::to_owned);
    let action = |action: &'static str| -> Vec<String> { of(action).to_vec() };

    // Slow enough that it is under way when it is looked at.
    let mut execute = action("--execute");
    execute.extend(["--throttle".to_owned(), "200000".to_owned()]);
    let execute: Vec<&str> = execute.iter().map(String::as_str).collect();
    let started = cluster.tool(REASSIGN_PARTITIONS, &execute)?;
    ensure!(
        started.contains("Successfully started partition reassignment for moved-0"),
        "{started}"
    );
    let of_topic = cluster.settings("topics", "moved")?;
    for setting in [
        "leader.replication.throttled.replicas=0:1,0:2",
        "follower.replication.throttled.replicas=0:3,0:4",
    ] {
        ensure!(
            of_topic.contains(setting),
            "{setting} is not in\n{of_topic}"
        );
    }
    let of_broker = cluster.settings("brokers", "3")?;
    for key in ["leader", "follower"] {
        let setting = format!("{key}.replication.throttled.rate=200000");
        ensure!(
            of_broker.contains(&setting),
            "{setting} is not in\n{of_broker}"
        );
    }
    let listed = cluster.tool(REASSIGN_PARTITIONS, &["--list"])?;
    ensure!(listed.contains("moved-0: replicas: 3,4,1,2"), "{listed}");
    let verify = action("--verify");
    let verify: Vec<&str> = verify.iter().map(String::as_str).collect();
    let verified = cluster.tool(REASSIGN_PARTITIONS, &verify)?;
    ensure!(
        verified.contains("moved-0 is still in progress"),
        "{verified}"
    );

    let cancel = action("--cancel");
    let cancel: Vec<&str> = cancel.iter().map(String::as_str).collect();
    let cancelled = cluster.tool(REASSIGN_PARTITIONS, &cancel)?;
    ensure!(
        cancelled.contains("Successfully cancelled partition reassignment for: moved-0"),
        "{cancelled}"
    );
    let nothing = "No partition reassignments found.";
    cluster.until_printed(REASSIGN_PARTITIONS, &["--list"], nothing)?;
    for (kind, name) in [("topics", "moved"), ("brokers", "1"), ("brokers", "3")] {
        let left = cluster.settings(kind, name)?;
        ensure!(!left.contains("throttled"), "{left}");
    }
    let again = cluster.tool(REASSIGN_PARTITIONS, &cancel)?;
    ensure!(again.contains("None of the specified partition"), "{again}");

    let mut quickly = action("--execute");
    quickly.extend(["--throttle".to_owned(), "50000000".to_owned()]);
    let quickly: Vec<&str> = quickly.iter().map(String::as_str).collect();
    cluster.tool(REASSIGN_PARTITIONS, &quickly)?;
    let done = "Reassignment of partition moved-0 is completed";
    let verified = cluster.until_printed(REASSIGN_PARTITIONS, &verify, done)?;
    ensure!(
        verified.contains("Clearing topic-level throttles on topic moved"),
        "{verified}"
    );
    for (kind, name) in [("topics", "moved"), ("brokers", "1"), ("brokers", "3")] {
        let left = cluster.settings(kind, name)?;
        ensure!(!left.contains("throttled"), "{left}");
    }
    assert_eq!(cluster.end(&topic, 0)?, 80);
    let leader = cluster.leader(&topic, 0, -1)?;
    ensure!([3, 4].contains(&leader), "{leader} leads");
    Ok(())
}

#[test]
fn elections_in_every_form_have_the_first_replica_lead_or_say_why_not() -> Result<()> {
    let mut cluster = Tooled::of(Cluster::options(Product::Odradek, 3).start()?)?;
    let topic = cluster.create("elected", &[&[1, 2, 3], &[1, 3, 2], &[1, 2, 3]], &[])?;
    let one = |partition: &str| {
        [
            "--election-type",
            "preferred",
            "--topic",
            "elected",
            "--partition",
            partition,
        ]
        .map(str::to_owned)
    };
    let elect = |cluster: &mut Tooled, arguments: &[String]| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        cluster.tool(LEADER_ELECTION, &arguments)
    };
    for partition in 0..3 {
        assert_eq!(cluster.leader(&topic, partition, -1)?, 1);
    }
    let needless = elect(&mut cluster, &one("0"))?;
    ensure!(
        needless.contains("Valid replica already elected for partitions elected-0"),
        "{needless}"
    );

    cluster.cluster.node(1)?.kill9()?;
    for partition in 0..3 {
        cluster.leader(&topic, partition, 1)?;
    }
    let away = elect(&mut cluster, &one("0"))?;
    ensure!(
        away.contains("PreferredLeaderNotAvailableException"),
        "{away}"
    );
    cluster.cluster.launch(1)?;
    cluster.cluster.await_members(PATIENCE)?;
    cluster.cluster.await_in_sync(PATIENCE)?;
    let elected = elect(&mut cluster, &one("0"))?;
    ensure!(
        elected.contains(
            "Successfully completed leader election (PREFERRED) for partitions elected-0"
        ),
        "{elected}"
    );
    assert_eq!(cluster.leader(&topic, 0, -1)?, 1);
    let list = "{\"partitions\":[{\"topic\":\"elected\",\"partition\":1}]}";
    let file = cluster.file("elect.json", list)?;
    let by_file = cluster.tool(
        LEADER_ELECTION,
        &[
            "--election-type",
            "preferred",
            "--path-to-json-file",
            path(&file)?,
        ],
    )?;
    ensure!(by_file.contains("for partitions elected-1"), "{by_file}");
    let all = cluster.tool(
        LEADER_ELECTION,
        &["--election-type", "preferred", "--all-topic-partitions"],
    )?;
    ensure!(all.contains("for partitions elected-2"), "{all}");
    for partition in 0..3 {
        assert_eq!(cluster.leader(&topic, partition, -1)?, 1);
    }
    let unclean = cluster.tool(
        LEADER_ELECTION,
        &[
            "--election-type",
            "unclean",
            "--topic",
            "elected",
            "--partition",
            "0",
        ],
    )?;
    ensure!(
        unclean.contains("Valid replica already elected for partitions elected-0"),
        "{unclean}"
    );
    let unknown = cluster.tool(
        LEADER_ELECTION,
        &[
            "--election-type",
            "preferred",
            "--topic",
            "no-such",
            "--partition",
            "0",
        ],
    )?;
    ensure!(
        unknown.contains("UnknownTopicOrPartitionException"),
        "{unknown}"
    );
    Ok(())
}

#[test]
fn partitions_in_trouble_are_listed_by_their_kind_of_trouble() -> Result<()> {
    let mut cluster = Tooled::of(Cluster::options(Product::Odradek, 5).start()?)?;
    cluster.create("careful", &[&[1, 2, 3]], &[("min.insync.replicas", "3")])?;
    cluster.create("usual", &[&[1, 2, 3]], &[("min.insync.replicas", "2")])?;
    cluster.create("elsewhere", &[&[3, 4, 5]], &[])?;
    let listed = |cluster: &mut Tooled, kind: &str| cluster.tool(TOPICS, &["--describe", kind]);
    let kinds = [
        "--under-replicated-partitions",
        "--under-min-isr-partitions",
        "--at-min-isr-partitions",
        "--unavailable-partitions",
    ];
    for kind in kinds {
        // Three in sync of three that are needed are just enough.
        let rows = listed(&mut cluster, kind)?;
        let expected = kind == "--at-min-isr-partitions";
        ensure!(
            rows.contains("Topic: careful") == expected,
            "{kind}: {rows}"
        );
        ensure!(!rows.contains("Topic: usual"), "{kind}: {rows}");
    }
    cluster.cluster.node(1)?.kill9()?;
    cluster.until_printed(TOPICS, &["--describe", kinds[0]], "Topic: usual")?;
    cluster.until_printed(TOPICS, &["--describe", kinds[0]], "Topic: careful")?;
    let under_min = cluster.until_printed(TOPICS, &["--describe", kinds[1]], "Topic: careful")?;
    ensure!(!under_min.contains("Topic: usual"), "{under_min}");
    let at_min = cluster.until_printed(TOPICS, &["--describe", kinds[2]], "Topic: usual")?;
    ensure!(!at_min.contains("Topic: careful"), "{at_min}");
    let unavailable = listed(&mut cluster, kinds[3])?;
    ensure!(!unavailable.contains("Topic: "), "{unavailable}");
    cluster.cluster.node(2)?.kill9()?;
    for topic in ["careful", "usual"] {
        let row = format!("Topic: {topic}");
        let rows = cluster.until_printed(TOPICS, &["--describe", kinds[3]], &row)?;
        ensure!(!rows.contains("Topic: elsewhere"), "{rows}");
    }
    cluster.cluster.launch(1)?;
    cluster.cluster.launch(2)?;
    cluster.cluster.await_members(PATIENCE)?;
    cluster.cluster.await_in_sync(PATIENCE)?;
    for kind in [kinds[0], kinds[1], kinds[3]] {
        let rows = listed(&mut cluster, kind)?;
        ensure!(!rows.contains("Topic: "), "{kind}: {rows}");
    }
    Ok(())
}

/// The plan that the tool proposes for moving a topic to these brokers.
fn plan(cluster: &mut Tooled, topic: &str, brokers: &str) -> Result<String> {
    let list = format!("{{\"version\":1,\"topics\":[{{\"topic\":\"{topic}\"}}]}}");
    let file = cluster.file("topics.json", &list)?;
    let printed = cluster.tool(
        REASSIGN_PARTITIONS,
        &[
            "--topics-to-move-json-file",
            path(&file)?,
            "--broker-list",
            brokers,
            "--generate",
        ],
    )?;
    let (_, proposed) = printed
        .split_once("Proposed partition reassignment configuration")
        .with_context(|| printed.clone())?;
    let plan = proposed.trim().lines().next();
    plan.map(str::to_owned).context("no plan")
}

#[test]
fn a_broker_is_drained_and_taken_out_and_another_gets_a_new_disk() -> Result<()> {
    let cluster = prepared(&[BOTH, BOTH, BOTH, BROKER], |number| match number {
        1 => vec![1],
        _ => vec![1, 2, 3],
    })?;
    let mut cluster = Tooled::of(cluster)?;
    for number in [2, 3] {
        let node = cluster.cluster.node(number)?;
        node.set_for_next_start("controller.quorum.auto.join.enable", true)?;
    }
    for number in 1..=4 {
        cluster.cluster.launch(number)?;
    }
    await_brokers(&mut cluster.cluster, 1, &[1, 2, 3, 4])?;
    let first = broker_of(&mut cluster.cluster, 1)?;
    await_quorum(&mut cluster.cluster, first, &[1, 2, 3], &[4])?;
    let replicas: &[&[i32]] = &[&[4, 1, 2], &[2, 4, 3], &[3, 1, 4]];
    let topic = cluster.create("kept", replicas, &[("min.insync.replicas", "2")])?;
    for partition in 0..3 {
        cluster.write(&topic, partition, 5, 1_000)?;
    }

    // Drained, stopped, forgotten.
    let plan = plan(&mut cluster, "kept", "1,2,3")?;
    ensure!(plan.contains("\"topic\":\"kept\""), "{plan}");
    let file = cluster.file("drain.json", &plan)?;
    let file = path(&file)?.to_owned();
    cluster.tool(
        REASSIGN_PARTITIONS,
        &["--reassignment-json-file", &file, "--execute"],
    )?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let verify = ["--reassignment-json-file", &file, "--verify"];
        let printed = cluster.tool(REASSIGN_PARTITIONS, &verify)?;
        if printed.matches("is completed").count() == 3 {
            break;
        }
        ensure!(
            Instant::now() < deadline,
            "{printed}\n{}",
            cluster.cluster.logs()
        );
        std::thread::sleep(PAUSE);
    }
    cluster.cluster.node(4)?.terminate(PATIENCE)?;
    let gone = cluster.tool(CLUSTER, &["unregister", "--id", "4"])?;
    ensure!(gone.contains("Broker 4 is no longer registered"), "{gone}");
    let endpoints = cluster.tool(CLUSTER, &["list-endpoints", "--include-fenced-brokers"])?;
    ensure!(endpoints.matches(" broker").count() == 3, "{endpoints}");
    await_quorum(&mut cluster.cluster, first, &[1, 2, 3], &[])?;
    for partition in 0..3 {
        assert_eq!(cluster.end(&topic, partition)?, 5);
    }

    // A broker that is a controller too comes back with an empty disk under its id.
    let lost = directory_of(&mut cluster.cluster, 2)?;
    cluster.cluster.node(2)?.kill9()?;
    let data_dir = cluster.cluster.node(2)?.data_dir().to_owned();
    std::fs::remove_dir_all(&data_dir)?;
    let removed = cluster.tool(
        METADATA_QUORUM,
        &[
            "remove-controller",
            "--controller-id",
            "2",
            "--controller-directory-id",
            &lost,
        ],
    )?;
    ensure!(removed.contains("controller 2"), "{removed}");
    let gone = cluster.tool(CLUSTER, &["unregister", "--id", "2"])?;
    ensure!(gone.contains("Broker 2 is no longer registered"), "{gone}");
    let given_before = given_their_log(&data_dir)?;
    cluster.cluster.launch(2)?;
    await_brokers(&mut cluster.cluster, 1, &[1, 2, 3])?;
    await_quorum(&mut cluster.cluster, first, &[1, 2, 3], &[])?;
    for partition in 0..3 {
        cluster.write(&topic, partition, 1, 1_000)?;
    }
    // Until its leader has heard of it, an emptied replica passes for the one that was there before.
    let deadline = Instant::now() + PATIENCE;
    while given_their_log(&data_dir)? < given_before + 4 {
        ensure!(
            Instant::now() < deadline,
            "not rebuilt\n{}",
            cluster.cluster.logs()
        );
        std::thread::sleep(PAUSE);
    }
    await_in_sync_everywhere(&mut cluster, &topic)?;
    cluster.cluster.node(3)?.kill9()?;
    for partition in 0..3 {
        cluster.leader(&topic, partition, 3)?;
        assert_eq!(cluster.end(&topic, partition)?, 6);
    }
    Ok(())
}

/// How often a node has told that a replica of its own is given its log.
fn given_their_log(data_dir: &Path) -> Result<usize> {
    let log = std::fs::read_to_string(data_dir.with_file_name("node.log"))?;
    Ok(log.matches("a replica is given its log").count())
}

/// Waits until all replicas of a topic are in sync as node 1 sees it.
fn await_in_sync_everywhere(cluster: &mut Tooled, topic: &Topic) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let address = broker_of(&mut cluster.cluster, 1)?;
        let answer = Wire::connect(address)?.call(12, &metadata_of(&topic.name))?;
        let rows = answer.topics.iter().flat_map(|topic| &topic.partitions);
        let behind = rows
            .filter(|row| row.isr_nodes.len() < row.replica_nodes.len())
            .count();
        if behind == 0 {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!("{behind} partitions are behind\n{}", cluster.cluster.logs());
        }
        std::thread::sleep(PAUSE);
    }
}
