//! The metadata quorum: voters that come and go, controllers that are nothing else, disks that are lost.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use compat_tests::batches::BatchSpec;
use compat_tests::cluster::{Cluster, NodeNumber, Product};
use compat_tests::kafka::{CLUSTER, FEATURES, METADATA_QUORUM};
use compat_tests::requests::{Topic, create_topic, produce_ok};
use compat_tests::server::Server;
use compat_tests::wire::{Wire, text};
use kafka_protocol::messages::add_raft_voter_request::Listener;
use kafka_protocol::messages::describe_quorum_request::{
    PartitionData as AskedPartition, TopicData as AskedTopic,
};
use kafka_protocol::messages::{
    AddRaftVoterRequest, BrokerId, DescribeClusterRequest, DescribeQuorumRequest,
    RemoveRaftVoterRequest,
};
use uuid::Uuid;

use compat_tests::requests::topic_name;

/// How long anything may take that a cluster does by itself.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) const BOTH: &str = "broker,controller";
const CONTROLLER: &str = "controller";
pub(crate) const BROKER: &str = "broker";

/// Nodes of these roles, the first with the number 1, that find the voters through `servers`; a node
/// that is named there alone founds the cluster.
pub(crate) fn prepared(
    roles: &[&str],
    servers: impl Fn(NodeNumber) -> Vec<NodeNumber>,
) -> Result<Cluster> {
    let count = NodeNumber::try_from(roles.len())?;
    let mut cluster = Cluster::options(Product::Odradek, count)
        .set("controller.quorum.voters", "")
        .set("default.replication.factor", 1)
        .set("min.insync.replicas", 1)
        .prepare()?;
    for (number, role) in (1..).zip(roles) {
        let mut addresses = Vec::new();
        for server in servers(number) {
            addresses.push(controller_of(&mut cluster, server)?.to_string());
        }
        let node = cluster.node(number)?;
        let at = node.addresses();
        let broker = (
            format!("PLAINTEXT://{}", at.broker_bind),
            format!("PLAINTEXT://{}", at.broker),
        );
        let controller = (
            format!("CONTROLLER://{}", at.controller_bind),
            format!("CONTROLLER://{}", at.controller),
        );
        let (listeners, advertised) = match *role {
            BROKER => broker,
            CONTROLLER => controller,
            _ => (
                format!("{},{}", broker.0, controller.0),
                format!("{},{}", broker.1, controller.1),
            ),
        };
        node.set_for_next_start("process.roles", role)?;
        node.set_for_next_start("listeners", listeners)?;
        node.set_for_next_start("advertised.listeners", advertised)?;
        node.set_for_next_start("controller.quorum.bootstrap.servers", addresses.join(","))?;
    }
    Ok(cluster)
}

fn controller_of(cluster: &mut Cluster, number: NodeNumber) -> Result<SocketAddr> {
    Ok(cluster.node(number)?.addresses().controller)
}

pub(crate) fn broker_of(cluster: &mut Cluster, number: NodeNumber) -> Result<SocketAddr> {
    Ok(cluster.node(number)?.addresses().broker)
}

/// Who votes on the metadata, and who only follows it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Quorum {
    leader: NodeNumber,
    voters: BTreeSet<NodeNumber>,
    observers: BTreeSet<NodeNumber>,
}

fn quorum_by(address: SocketAddr) -> Result<Quorum> {
    let partition = AskedPartition::default().with_partition_index(0);
    let topic = AskedTopic::default()
        .with_topic_name(topic_name("__cluster_metadata"))
        .with_partitions(vec![partition]);
    let request = DescribeQuorumRequest::default().with_topics(vec![topic]);
    let answer = Wire::connect_within(address, Duration::from_secs(5))?.call(2, &request)?;
    ensure!(answer.error_code == 0, "error {}", answer.error_code);
    let row = answer
        .topics
        .first()
        .and_then(|topic| topic.partitions.first())
        .context("no partition")?;
    ensure!(row.error_code == 0, "error {}", row.error_code);
    Ok(Quorum {
        leader: row.leader_id.0,
        voters: row
            .current_voters
            .iter()
            .map(|row| row.replica_id.0)
            .collect(),
        observers: row.observers.iter().map(|row| row.replica_id.0).collect(),
    })
}

/// Waits until the node at `address` says that these vote and those follow.
pub(crate) fn await_quorum(
    cluster: &mut Cluster,
    address: SocketAddr,
    voters: &[NodeNumber],
    observers: &[NodeNumber],
) -> Result<Quorum> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = quorum_by(address);
        if let Ok(quorum) = found
            && quorum.voters == voters.iter().copied().collect()
            && quorum.observers == observers.iter().copied().collect()
        {
            return Ok(quorum);
        }
        if Instant::now() >= deadline {
            let found = quorum_by(address);
            bail!(
                "not {voters:?} and {observers:?}: {found:?}\n{}",
                cluster.logs()
            );
        }
        std::thread::sleep(PAUSE);
    }
}

/// Waits until a broker answers and knows these brokers.
pub(crate) fn await_brokers(
    cluster: &mut Cluster,
    asked: NodeNumber,
    brokers: &[NodeNumber],
) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found: Vec<NodeNumber> = cluster
            .ask(asked)
            .map(|answer| {
                answer
                    .brokers
                    .iter()
                    .map(|broker| broker.node_id.0)
                    .collect()
            })
            .unwrap_or_default();
        if brokers.iter().all(|broker| found.contains(broker)) {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{asked} knows of {found:?} only\n{}",
            cluster.logs()
        );
        std::thread::sleep(PAUSE);
    }
}

/// The id of a node's data directory, once it has one.
pub(crate) fn directory_of(cluster: &mut Cluster, number: NodeNumber) -> Result<String> {
    let file = cluster.node(number)?.data_dir().join("meta.properties");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    text.lines()
        .find_map(|line| line.strip_prefix("directory.id="))
        .map(str::to_owned)
        .context("no directory id")
}

fn add_with_tool(cluster: &mut Cluster, number: NodeNumber, by: &[&str]) -> Result<String> {
    let file = cluster.node(number)?.property_file().display().to_string();
    let mut arguments = by.to_vec();
    arguments.extend(["--command-config", &file, "add-controller"]);
    METADATA_QUORUM.succeed(&arguments, "")
}

/// Creates a topic by way of a broker and writes to it, which takes the metadata and its leader.
fn use_cluster(cluster: &mut Cluster, by: NodeNumber, topic: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let address = broker_of(cluster, by)?;
    loop {
        let used = Wire::connect(address).and_then(|mut wire| {
            // An attempt that failed later has made it.
            let made = create_topic(&mut wire, topic, 1, &[]);
            let all = wire.metadata_of_everything()?;
            let row = all.topics.iter().find(|row| {
                row.name
                    .as_ref()
                    .is_some_and(|name| name.0.as_str() == topic)
            });
            let row = row.with_context(|| format!("no topic: {:?}", made.err()))?;
            let leader = row.partitions.first().map(|row| row.leader_id.0);
            let made = Topic {
                name: topic.to_owned(),
                id: row.topic_id,
            };
            let mut wire = Wire::connect(broker_of(cluster, leader.context("no partition")?)?)?;
            produce_ok(&mut wire, &made, 0, BatchSpec::small(1, 0).build()?)?;
            Ok(())
        });
        match used {
            Ok(()) => return Ok(()),
            Err(error) => ensure!(
                Instant::now() < deadline,
                "{topic}: {error:#}\n{}",
                cluster.logs()
            ),
        }
        std::thread::sleep(PAUSE);
    }
}

#[test]
fn a_node_of_its_own_becomes_the_first_of_three_voters_and_is_itself_removed() -> Result<()> {
    let mut cluster = prepared(&[BOTH, BOTH, BOTH], |number| match number {
        1 => vec![],
        _ => vec![1],
    })?;
    cluster.launch(1)?;
    await_brokers(&mut cluster, 1, &[1])?;
    use_cluster(&mut cluster, 1, "alone")?;
    cluster.launch(2)?;
    cluster.launch(3)?;
    await_brokers(&mut cluster, 1, &[1, 2, 3])?;
    let first = broker_of(&mut cluster, 1)?;
    await_quorum(&mut cluster, first, &[1], &[2, 3])?;
    use_cluster(&mut cluster, 2, "of-one-voter")?;

    let bootstrap = first.to_string();
    let told = add_with_tool(&mut cluster, 2, &["--bootstrap-server", &bootstrap])?;
    let directory = directory_of(&mut cluster, 2)?;
    ensure!(
        told.contains(&format!("Added controller 2 with directory id {directory}")),
        "{told}"
    );
    await_quorum(&mut cluster, first, &[1, 2], &[3])?;
    let again = add_with_tool(&mut cluster, 2, &["--bootstrap-server", &bootstrap]);
    let again = format!("{:#}", again.err().context("added twice")?);
    ensure!(again.contains("DuplicateVoterException"), "{again}");
    let controller = controller_of(&mut cluster, 1)?.to_string();
    add_with_tool(&mut cluster, 3, &["--bootstrap-controller", &controller])?;
    let quorum = await_quorum(&mut cluster, first, &[1, 2, 3], &[])?;

    let status = METADATA_QUORUM.succeed(
        &["--bootstrap-server", &bootstrap, "describe", "--status"],
        "",
    )?;
    for number in 1..=3 {
        let directory = directory_of(&mut cluster, number)?;
        let at = controller_of(&mut cluster, number)?;
        let voter = format!(
            "{{\"id\": {number}, \"directoryId\": \"{directory}\", \"endpoints\": [\"CONTROLLER://{at}\"]}}"
        );
        ensure!(status.contains(&voter), "{voter} is not in\n{status}");
    }
    let replication = METADATA_QUORUM.succeed(
        &[
            "--bootstrap-controller",
            &controller,
            "describe",
            "--replication",
        ],
        "",
    )?;
    ensure!(
        replication.matches("Follower").count() == 2,
        "{replication}"
    );

    // A majority of the voters goes on without the one that was first.
    assert_eq!(quorum.leader, 1);
    cluster.node(1)?.kill9()?;
    use_cluster(&mut cluster, 2, "without-the-first")?;
    cluster.launch(1)?;
    await_brokers(&mut cluster, 1, &[1, 2, 3])?;

    // Whoever leads now is removed, answers, and lets another lead.
    let second = broker_of(&mut cluster, 2)?;
    let leader = await_quorum(&mut cluster, second, &[1, 2, 3], &[])?.leader;
    let (asked, other) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    let bootstrap = broker_of(&mut cluster, asked)?;
    let (id, directory) = (leader.to_string(), directory_of(&mut cluster, leader)?);
    let by = bootstrap.to_string();
    METADATA_QUORUM.succeed(
        &[
            "--bootstrap-server",
            &by,
            "remove-controller",
            "--controller-id",
            &id,
            "--controller-directory-id",
            &directory,
        ],
        "",
    )?;
    let left = await_quorum(&mut cluster, bootstrap, &[asked, other], &[leader])?;
    ensure!(left.leader != leader, "{left:?}");
    use_cluster(&mut cluster, leader, "by-who-votes-no-more")?;
    // All at once: they find each other by what they remember.
    for number in 1..=3 {
        cluster.node(number)?.kill9()?;
    }
    for number in 1..=3 {
        cluster.launch(number)?;
    }
    await_brokers(&mut cluster, leader, &[1, 2, 3])?;
    await_quorum(&mut cluster, bootstrap, &[asked, other], &[leader])?;
    use_cluster(&mut cluster, leader, "after-all-were-killed")
}

#[test]
fn three_controllers_and_three_brokers_are_listed_apart_and_a_lost_disk_is_refused() -> Result<()> {
    let roles = [CONTROLLER, CONTROLLER, CONTROLLER, BROKER, BROKER, BROKER];
    let servers = |number: NodeNumber| match number {
        1 => vec![1],
        _ => vec![3, 1],
    };
    let mut cluster = prepared(&roles, servers)?;
    for number in [2, 3] {
        cluster
            .node(number)?
            .set_for_next_start("controller.quorum.auto.join.enable", true)?;
    }
    for number in 1..=6 {
        cluster.launch(number)?;
    }
    for asked in [4, 5, 6] {
        await_brokers(&mut cluster, asked, &[4, 5, 6])?;
    }
    let by_broker = broker_of(&mut cluster, 4)?;
    let by_controller = controller_of(&mut cluster, 2)?;
    await_quorum(&mut cluster, by_broker, &[1, 2, 3], &[4, 5, 6])?;
    await_quorum(&mut cluster, by_controller, &[1, 2, 3], &[4, 5, 6])?;
    use_cluster(&mut cluster, 5, "apart")?;

    let endpoints = |kind: &str, address: SocketAddr| {
        CLUSTER.succeed(&["list-endpoints", kind, &address.to_string()], "")
    };
    let controllers = endpoints("--bootstrap-controller", by_controller)?;
    for number in 1..=3 {
        let port = controller_of(&mut cluster, number)?.port().to_string();
        let is_listed = controllers.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some(&number.to_string())
                && line.contains(&port)
                && line.contains("controller")
        });
        ensure!(is_listed, "{number} is not in\n{controllers}");
    }
    ensure!(controllers.lines().count() == 4, "{controllers}");
    let brokers = endpoints("--bootstrap-server", by_broker)?;
    ensure!(brokers.matches("unfenced").count() == 3, "{brokers}");
    let id = CLUSTER.succeed(
        &[
            "cluster-id",
            "--bootstrap-controller",
            &by_controller.to_string(),
        ],
        "",
    )?;
    ensure!(id.contains("Cluster ID: "), "{id}");
    let features = FEATURES.succeed(
        &[
            "--bootstrap-controller",
            &by_controller.to_string(),
            "describe",
        ],
        "",
    )?;
    let kraft = features.lines().find(|line| line.contains("kraft.version"));
    ensure!(
        kraft.is_some_and(|line| line.contains("FinalizedVersionLevel: 1")),
        "{features}"
    );
    let mismatched = Wire::connect(by_controller)?
        .call(1, &DescribeClusterRequest::default().with_endpoint_type(1))?;
    assert_eq!(mismatched.error_code, 114);

    // A voter whose disk is lost is not the voter any more.
    let lost = directory_of(&mut cluster, 3)?;
    cluster.node(3)?.kill9()?;
    let data_dir = cluster.node(3)?.data_dir().to_owned();
    std::fs::remove_dir_all(&data_dir)?;
    cluster.launch(3)?;
    let status = cluster.node(3)?.process()?.wait(PATIENCE)?;
    ensure!(
        !status.success(),
        "an empty disk passes for the one that was lost"
    );
    let log = cluster.node(3)?.process()?.log_tail();
    // Whoever knew the id of the disk that voted would pass for it.
    ensure!(
        log.contains("remove-controller") && !log.contains(&lost),
        "{log}"
    );
    METADATA_QUORUM.succeed(
        &[
            "--bootstrap-controller",
            &by_controller.to_string(),
            "remove-controller",
            "--controller-id",
            "3",
            "--controller-directory-id",
            &lost,
        ],
        "",
    )?;
    cluster.launch(3)?;
    await_quorum(&mut cluster, by_broker, &[1, 2, 3], &[4, 5, 6])?;
    let found = directory_of(&mut cluster, 3)?;
    ensure!(found != lost, "the new disk has an id of its own");
    cluster.node(1)?.kill9()?;
    use_cluster(&mut cluster, 6, "by-the-new-disk")
}

#[test]
fn voters_of_the_configurations_are_fixed_until_the_metadata_names_them() -> Result<()> {
    let mut cluster = Cluster::options(Product::Odradek, 3).voters(3).start()?;
    let address = broker_of(&mut cluster, 1)?;
    let cluster_id = cluster.ask(1)?.cluster_id.context("no cluster id")?;
    let add = |directory: &str| -> Result<AddRaftVoterRequest> {
        let listener = Listener::default()
            .with_name(text("CONTROLLER"))
            .with_host(text("127.0.0.1"))
            .with_port(9);
        Ok(AddRaftVoterRequest::default()
            .with_cluster_id(Some(cluster_id.clone()))
            .with_timeout_ms(1_000)
            .with_voter_id(BrokerId(3).0)
            .with_voter_directory_id(Uuid::from_bytes([directory.len() as u8; 16]))
            .with_listeners(vec![listener]))
    };
    let mut wire = Wire::connect(address)?;
    assert_eq!(
        wire.call(0, &add("x")?)?.error_code,
        35,
        "kraft.version is 0"
    );
    let bootstrap = address.to_string();
    let raised = FEATURES.succeed(
        &[
            "--bootstrap-server",
            &bootstrap,
            "upgrade",
            "--feature",
            "kraft.version=1",
        ],
        "",
    )?;
    ensure!(
        raised.contains("kraft.version was upgraded to 1"),
        "{raised}"
    );
    let lowered = FEATURES.run(
        &[
            "--bootstrap-server",
            &bootstrap,
            "downgrade",
            "--feature",
            "kraft.version=0",
        ],
        "",
    )?;
    ensure!(
        lowered
            .both()
            .contains("Can't downgrade the version of this feature"),
        "{}",
        lowered.both()
    );
    assert_eq!(wire.call(0, &add("x")?)?.error_code, 126, "it votes");
    let unknown = RemoveRaftVoterRequest::default()
        .with_cluster_id(None)
        .with_voter_id(3)
        .with_voter_directory_id(Uuid::from_bytes([9; 16]));
    assert_eq!(wire.call(0, &unknown)?.error_code, 127);
    let directory = directory_of(&mut cluster, 3)?;
    METADATA_QUORUM.succeed(
        &[
            "--bootstrap-server",
            &bootstrap,
            "remove-controller",
            "--controller-id",
            "3",
            "--controller-directory-id",
            &directory,
        ],
        "",
    )?;
    await_quorum(&mut cluster, address, &[1, 2], &[3])?;
    use_cluster(&mut cluster, 3, "two-voters")?;
    // What its file says counts for nothing any more.
    cluster.node(3)?.kill9()?;
    cluster.launch(3)?;
    cluster.await_members(PATIENCE)?;
    await_quorum(&mut cluster, address, &[1, 2], &[3])?;
    let file = cluster.node(3)?.property_file().display().to_string();
    METADATA_QUORUM.succeed(
        &[
            "--bootstrap-server",
            &bootstrap,
            "--command-config",
            &file,
            "add-controller",
        ],
        "",
    )?;
    await_quorum(&mut cluster, address, &[1, 2, 3], &[]).map(|_| ())
}

#[test]
fn a_node_of_its_own_is_a_voter_that_cannot_be_removed() -> Result<()> {
    let (server, mut wire) = Server::connected()?;
    let partition = AskedPartition::default().with_partition_index(0);
    let topic = AskedTopic::default()
        .with_topic_name(topic_name("__cluster_metadata"))
        .with_partitions(vec![partition]);
    let request = DescribeQuorumRequest::default().with_topics(vec![topic]);
    let answer = wire.call(2, &request)?;
    let voters = answer
        .topics
        .iter()
        .flat_map(|topic| &topic.partitions)
        .flat_map(|row| &row.current_voters);
    let voters: Vec<(i32, Uuid)> = voters
        .map(|voter| (voter.replica_id.0, voter.replica_directory_id))
        .collect();
    let [(id, directory)] = voters[..] else {
        bail!("{voters:?}");
    };
    ensure!(!directory.is_nil(), "it is known by its directory");
    let only = RemoveRaftVoterRequest::default()
        .with_cluster_id(None)
        .with_voter_id(id)
        .with_voter_directory_id(directory);
    assert_eq!(wire.call(0, &only)?.error_code, 127);
    let again = AddRaftVoterRequest::default()
        .with_cluster_id(None)
        .with_timeout_ms(1_000)
        .with_voter_id(id)
        .with_voter_directory_id(directory)
        .with_listeners(vec![
            Listener::default()
                .with_name(text("CONTROLLER"))
                .with_host(text("127.0.0.1"))
                .with_port(9),
        ]);
    assert_eq!(wire.call(0, &again)?.error_code, 126);
    drop(server);
    Ok(())
}
