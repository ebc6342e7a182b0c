//! Clusters of Odradek's or Kafka's nodes as child processes, each on a network of its own that can be cut.
//!
//! Both products get the same property files, with Kafka's keys of KRaft mode; every node is broker and controller.
//! [`network`] says how nodes reach each other ([`namespaces`] or [`relay`]), [`node`] what can be done to one.
//!
//! What is done to them over time, and what must hold then:
//! - [`faults`] make things fail, in a [`schedule`] drawn from a seed, or as an [`admin`] would;
//! - [`clients`] write and read meanwhile and keep a [`history`];
//! - [`check`] compares the history with what is in the logs at the end, [`replicas`] the logs with each other;
//! - [`campaign`] puts these together; [`stall`] measures how long a client waits when a leader fails, [`many`] when a
//!   thousand fail at once.
//!
//! Invariants: a process, mount or namespace is gone when its value is, and so are the directories, unless
//! `ODRADEK_KEEP_CLUSTERS` is set; everything waits with a deadline.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kafka_protocol::messages::MetadataResponse;
use tempfile::TempDir;

use crate::wire::Wire;

pub mod admin;
pub mod campaign;
pub mod check;
pub mod clients;
pub mod faults;
pub mod history;
pub mod many;
pub mod namespaces;
pub mod network;
pub mod node;
pub mod quiet;
pub mod relay;
pub mod replicas;
pub mod rolling;
pub mod schedule;
pub mod stall;

pub use network::{Addresses, Network, NetworkKind, Slowness};
pub use node::{Doing, Node};

/// A `node.id`.
pub type NodeNumber = i32;

/// How long a cluster may take until all its nodes know each other.
const START_PATIENCE: Duration = Duration::from_secs(90);
/// How long one node may take to answer one question about the cluster.
const ASK_PATIENCE: Duration = Duration::from_secs(2);
/// How long a node may take to end when asked to.
const END_PATIENCE: Duration = Duration::from_secs(60);

/// Whose brokers they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// Ours.
    Odradek,
    /// Apache Kafka.
    Kafka,
}

impl Product {
    /// As reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Odradek => "Odradek",
            Self::Kafka => "Kafka",
        }
    }
}

/// What a cluster is started with.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    product: Product,
    nodes: NodeNumber,
    network: NetworkKind,
    forgetful: bool,
    heap: String,
    properties: BTreeMap<String, String>,
    properties_of_node: BTreeMap<NodeNumber, BTreeMap<String, String>>,
    binary: Option<PathBuf>,
    voters: NodeNumber,
    environment_of_node: BTreeMap<NodeNumber, BTreeMap<String, String>>,
}

impl ClusterOptions {
    /// A cluster of so many nodes.
    pub fn new(product: Product, nodes: NodeNumber) -> Self {
        let mut properties = BTreeMap::new();
        let mut put = |key: &str, value: String| properties.insert(key.to_owned(), value);
        let copies = nodes.min(3);
        put("process.roles", "broker,controller".to_owned());
        put("controller.listener.names", "CONTROLLER".to_owned());
        put("inter.broker.listener.name", "PLAINTEXT".to_owned());
        put(
            "listener.security.protocol.map",
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned(),
        );
        put("auto.create.topics.enable", "false".to_owned());
        put("default.replication.factor", copies.to_string());
        put("min.insync.replicas", (copies / 2 + 1).to_string());
        put("offsets.topic.num.partitions", "4".to_owned());
        put("offsets.topic.replication.factor", copies.to_string());
        put("group.initial.rebalance.delay.ms", "0".to_owned());
        let mut state_topics = vec!["transaction.state.log"];
        if product == Product::Kafka {
            state_topics.push("share.coordinator.state.topic");
        }
        for topic in state_topics {
            put(&format!("{topic}.num.partitions"), "4".to_owned());
            put(&format!("{topic}.replication.factor"), copies.to_string());
            put(&format!("{topic}.min.isr"), (copies / 2 + 1).to_string());
        }
        Self {
            product,
            nodes,
            network: NetworkKind::Any,
            forgetful: false,
            heap: "512m".to_owned(),
            properties,
            properties_of_node: BTreeMap::new(),
            binary: None,
            voters: nodes,
            environment_of_node: BTreeMap::new(),
        }
    }

    /// Only the nodes with the first so many numbers are voters of the metadata.
    pub fn voters(mut self, voters: NodeNumber) -> Self {
        self.voters = voters;
        self
    }

    /// Sets a line of every node's property file.
    pub fn set(mut self, key: &str, value: impl ToString) -> Self {
        self.properties.insert(key.to_owned(), value.to_string());
        self
    }

    /// Sets a line of one node's property file.
    pub fn set_of(mut self, node: NodeNumber, key: &str, value: impl ToString) -> Self {
        self.properties_of_node
            .entry(node)
            .or_default()
            .insert(key.to_owned(), value.to_string());
        self
    }

    /// Sets a variable of one node's environment.
    pub fn environment_of(mut self, node: NodeNumber, key: &str, value: impl ToString) -> Self {
        self.environment_of_node
            .entry(node)
            .or_default()
            .insert(key.to_owned(), value.to_string());
        self
    }

    /// What the network is made of.
    pub fn network(mut self, kind: NetworkKind) -> Self {
        self.network = kind;
        self
    }

    /// Puts the nodes' data on disks that forget what was not synced.
    pub fn forgetful_disks(mut self, forgetful: bool) -> Self {
        self.forgetful = forgetful;
        self
    }

    /// Sets the heap of Kafka's nodes, as in `1g`.
    pub fn heap(mut self, heap: &str) -> Self {
        self.heap = heap.to_owned();
        self
    }

    /// Runs another binary than [`crate::broker::binary`].
    pub fn binary(mut self, path: &Path) -> Self {
        self.binary = Some(path.to_owned());
        self
    }

    /// Makes network, directories and files, and starts nothing.
    pub fn prepare(self) -> Result<Cluster> {
        let home = tempfile::Builder::new()
            .prefix("cluster-")
            .disable_cleanup(std::env::var_os("ODRADEK_KEEP_CLUSTERS").is_some())
            .tempdir()?;
        let numbers: Vec<NodeNumber> = (1..=self.nodes).collect();
        let network = Network::new(self.network, &numbers, home.path())?;
        let binary = match (&self.binary, self.product) {
            (Some(path), _) => path.clone(),
            (None, Product::Odradek) => crate::broker::binary()?,
            (None, Product::Kafka) => PathBuf::new(),
        };
        let mut voters = Vec::new();
        for &number in numbers.iter().filter(|&&number| number <= self.voters) {
            voters.push(format!(
                "{number}@{}",
                network.addresses(number)?.controller
            ));
        }
        let mut nodes = Vec::new();
        for &number in &numbers {
            let addresses = network.addresses(number)?;
            let mut properties = self.properties.clone();
            let mut put = |key: &str, value: String| {
                properties.entry(key.to_owned()).or_insert(value);
            };
            put("node.id", number.to_string());
            put("broker.rack", format!("rack-{number}"));
            put("controller.quorum.voters", voters.join(","));
            put(
                "listeners",
                format!(
                    "PLAINTEXT://{},CONTROLLER://{}",
                    addresses.broker_bind, addresses.controller_bind
                ),
            );
            put(
                "advertised.listeners",
                format!("PLAINTEXT://{}", addresses.broker),
            );
            properties.extend(
                self.properties_of_node
                    .get(&number)
                    .cloned()
                    .unwrap_or_default(),
            );
            nodes.push(Node::new(
                number,
                addresses,
                home.path().join(format!("node-{number}")),
                properties,
                self.forgetful,
            )?);
        }
        let mut cluster = Cluster {
            nodes,
            network,
            options: self,
            binary,
            _home: home,
        };
        if cluster.product() == Product::Kafka {
            cluster.format_kafka()?;
        }
        Ok(cluster)
    }

    /// Starts all nodes and waits until each of them knows all.
    pub fn start(self) -> Result<Cluster> {
        let mut cluster = self.prepare()?;
        for number in cluster.numbers() {
            cluster.launch(number)?;
        }
        cluster.await_members(START_PATIENCE)?;
        Ok(cluster)
    }
}

/// Nodes and the network between them.
pub struct Cluster {
    // Before the network and the home, so that processes end first.
    nodes: Vec<Node>,
    network: Network,
    options: ClusterOptions,
    binary: PathBuf,
    _home: TempDir,
}

impl Cluster {
    /// What a cluster is started with.
    pub fn options(product: Product, nodes: NodeNumber) -> ClusterOptions {
        ClusterOptions::new(product, nodes)
    }

    /// Whose nodes they are.
    pub fn product(&self) -> Product {
        self.options.product
    }

    /// The numbers of all nodes, running or not.
    pub fn numbers(&self) -> Vec<NodeNumber> {
        self.nodes.iter().map(Node::number).collect()
    }

    /// A node.
    pub fn node(&mut self, number: NodeNumber) -> Result<&mut Node> {
        self.nodes
            .iter_mut()
            .find(|node| node.number() == number)
            .with_context(|| format!("no node {number}"))
    }

    /// The network between the nodes.
    pub fn network(&mut self) -> &mut Network {
        &mut self.network
    }

    /// Where clients find the nodes, in the order of their numbers.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes
            .iter()
            .map(|node| node.addresses().broker)
            .collect()
    }

    /// The same as `host:port,…`.
    pub fn bootstrap(&self) -> String {
        let addresses: Vec<String> = self.addresses().iter().map(SocketAddr::to_string).collect();
        addresses.join(",")
    }

    /// Starts a node that does not run, without waiting for it.
    pub fn launch(&mut self, number: NodeNumber) -> Result<()> {
        let node = self
            .nodes
            .iter_mut()
            .find(|node| node.number() == number)
            .with_context(|| format!("no node {number}"))?;
        let nothing = BTreeMap::new();
        let environment = self.options.environment_of_node.get(&number);
        node.launch(
            self.options.product,
            &self.options.heap,
            &self.binary,
            &self.network,
            environment.unwrap_or(&nothing),
        )
    }

    /// Numbers of the nodes that run.
    pub fn running(&mut self) -> Result<Vec<NodeNumber>> {
        let mut running = Vec::new();
        for node in &mut self.nodes {
            if node.doing()? == Doing::Running {
                running.push(node.number());
            }
        }
        Ok(running)
    }

    /// Asks one node what it knows of the cluster.
    pub fn ask(&self, number: NodeNumber) -> Result<MetadataResponse> {
        let node = self
            .nodes
            .iter()
            .find(|node| node.number() == number)
            .with_context(|| format!("no node {number}"))?;
        let mut wire = Wire::connect_within(node.addresses().broker, ASK_PATIENCE)?;
        Ok(wire.metadata_of_everything()?)
    }

    /// Waits until every running node sees every running node, and a controller.
    pub fn await_members(&mut self, patience: Duration) -> Result<()> {
        let running = self.running()?;
        self.await_members_among(&running, patience)
    }

    /// The same for some nodes, whatever the others do.
    pub fn await_members_among(
        &mut self,
        running: &[NodeNumber],
        patience: Duration,
    ) -> Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            self.ensure_none_ended(running)?;
            let mut missing = Vec::new();
            for &number in running {
                match self.ask(number) {
                    Ok(answer)
                        if running
                            .iter()
                            .all(|n| answer.brokers.iter().any(|b| b.node_id.0 == *n))
                            && answer.controller_id.0 >= 0 => {}
                    Ok(answer) => missing.push(format!(
                        "node {number} sees {:?} and controller {}",
                        answer
                            .brokers
                            .iter()
                            .map(|b| b.node_id.0)
                            .collect::<Vec<_>>(),
                        answer.controller_id.0
                    )),
                    Err(error) => missing.push(format!("node {number}: {error:#}")),
                }
            }
            if missing.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!(
                    "no whole cluster within {patience:?}: {}\n{}",
                    missing.join("; "),
                    self.logs()
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn ensure_none_ended(&mut self, numbers: &[NodeNumber]) -> Result<()> {
        for &number in numbers {
            let process = self.node(number)?.process()?;
            if let Some(status) = process.exited()? {
                bail!("node {number} ended with {status}\n{}", process.log_tail());
            }
        }
        Ok(())
    }

    /// Waits until every partition of every topic has a leader and all its replicas are in sync, as every running node
    /// sees it.
    pub fn await_in_sync(&mut self, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            let running = self.running()?;
            self.ensure_none_ended(&running)?;
            let mut behind = None;
            for &number in &running {
                behind = behind.or(match self.ask(number) {
                    Ok(answer) => {
                        first_behind(&answer).map(|what| format!("node {number}: {what}"))
                    }
                    Err(error) => Some(format!("node {number}: {error:#}")),
                });
            }
            let Some(behind) = behind else {
                return Ok(());
            };
            ensure!(
                Instant::now() < deadline,
                "not in sync within {patience:?}: {behind}\n{}",
                self.logs()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Heals the network, lets paused nodes go on and starts those that do not run; waits until all see all.
    pub fn make_whole(&mut self, patience: Duration) -> Result<()> {
        self.network.heal()?;
        for number in self.numbers() {
            match self.node(number)?.doing()? {
                Doing::Running => {}
                Doing::Paused => self.node(number)?.resume()?,
                Doing::Nothing => self.launch(number)?,
            }
        }
        self.await_members(patience)
    }

    /// Stops all nodes cleanly, all at once.
    pub fn terminate(&mut self) -> Result<()> {
        for number in self.running()? {
            let process = self.node(number)?.process()?;
            process.signal(rustix::process::Signal::TERM)?;
        }
        for node in &mut self.nodes {
            if node.doing()? != Doing::Nothing {
                node.process()?.wait(END_PATIENCE)?;
            }
        }
        Ok(())
    }

    /// Refuses what no node may ever do: panic, or end without being asked to.
    pub fn ensure_none_failed(&mut self, may_have_ended: &[NodeNumber]) -> Result<()> {
        for node in &mut self.nodes {
            let number = node.number();
            let ended = node.doing()? == Doing::Nothing;
            let process = node.process()?;
            let text = process.log_text();
            let panicked = text.lines().find(|line| line.contains("panicked at"));
            if let Some(line) = panicked {
                bail!("node {number} panicked: {line}");
            }
            ensure!(
                !ended || may_have_ended.contains(&number),
                "node {number} ended by itself"
            );
        }
        Ok(())
    }

    /// The ends of all nodes' logs.
    pub fn logs(&mut self) -> String {
        let mut text = String::new();
        for node in &mut self.nodes {
            if let Ok(process) = node.process() {
                text.push_str(&process.log_tail());
            }
        }
        text
    }

    /// Gives Kafka's nodes formatted directories: the tool formats the first, and the others differ from it only in
    /// their ids.
    fn format_kafka(&mut self) -> Result<()> {
        const CHECKPOINT: &str = "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint";
        let first = self.nodes.first().context("no node")?;
        crate::kafka::format(&first.property_file())?;
        let checkpoint = std::fs::read(first.data_dir().join(CHECKPOINT)).context(CHECKPOINT)?;
        let meta = std::fs::read_to_string(first.data_dir().join("meta.properties"))?;
        for node in &self.nodes {
            let meta = meta_of(&meta, node.number());
            for (name, bytes) in [
                ("meta.properties", meta.as_bytes()),
                (CHECKPOINT, checkpoint.as_slice()),
            ] {
                let path = node.data_dir().join(name);
                let directory = path.parent().context("no parent")?;
                std::fs::create_dir_all(directory)?;
                std::fs::write(&path, bytes)?;
                std::fs::File::open(&path)?.sync_all()?;
                std::fs::File::open(directory)?.sync_all()?;
            }
            let above = node.data_dir().parent().context("no parent")?;
            std::fs::File::open(above)?.sync_all()?;
        }
        Ok(())
    }
}

/// The first node's `meta.properties` for another node: another node id, and a directory id that differs in one letter.
fn meta_of(first: &str, number: NodeNumber) -> String {
    let letter = char::from(b'A' + u8::try_from(number).unwrap_or(0));
    first
        .lines()
        .map(|line| match line.split_once('=') {
            Some(("node.id", _)) => format!("node.id={number}\n"),
            Some(("directory.id", id)) => format!("directory.id={letter}{}\n", &id[1..]),
            _ => format!("{line}\n"),
        })
        .collect()
}

/// The first partition that has no leader or replicas out of sync.
fn first_behind(answer: &MetadataResponse) -> Option<String> {
    answer.topics.iter().find_map(|topic| {
        let name = topic.name.as_ref().map_or("?", |name| name.0.as_str());
        topic.partitions.iter().find_map(|partition| {
            let whole = partition.leader_id.0 >= 0
                && partition.isr_nodes.len() == partition.replica_nodes.len();
            (!whole).then(|| {
                format!(
                    "{name}-{}: leader {}, replicas {:?}, in sync {:?}",
                    partition.partition_index,
                    partition.leader_id.0,
                    partition.replica_nodes,
                    partition.isr_nodes
                )
            })
        })
    })
}
