//! The brokers of a suite's run, side by side on the loopback interface: the first one's port is 9092, for which many suites
//! have been written.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use super::Suite;
use crate::cluster::Product;
use crate::process::Process;
use crate::requests::{create_topic, find_topic};
use crate::wire::Wire;

/// Settings that every node gets, whoever's it is. Suites override them.
pub const BASE: &[(&str, &str)] = &[
    ("process.roles", "broker,controller"),
    ("controller.listener.names", "CONTROLLER"),
    ("inter.broker.listener.name", "PLAINTEXT"),
    (
        "listener.security.protocol.map",
        "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    ),
    ("num.partitions", "4"),
    ("auto.create.topics.enable", "true"),
    ("offsets.topic.num.partitions", "4"),
    ("transaction.state.log.num.partitions", "4"),
    ("group.initial.rebalance.delay.ms", "0"),
];
/// The same for Kafka alone.
const BASE_OF_KAFKA: &[(&str, &str)] = &[
    ("group.share.min.record.lock.duration.ms", "1000"),
    ("share.coordinator.state.topic.num.partitions", "4"),
    ("share.coordinator.state.topic.replication.factor", "1"),
    ("share.coordinator.state.topic.min.isr", "1"),
];

const PROPERTIES: &str = "server.properties";
const FIRST_PORT: u16 = 9092;
const FIRST_CONTROLLER_PORT: u16 = 19092;
/// From one node's ports to the next one's.
const STRIDE: u16 = 100;
/// How long the brokers may take to know each other.
const START_PATIENCE: Duration = Duration::from_secs(120);
const END_PATIENCE: Duration = Duration::from_secs(30);

/// How many brokers a suite wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brokers {
    /// How many; with three or more, internal topics have three replicas.
    pub count: u16,
    /// The `node.id` of the first; the others follow.
    pub first_id: i32,
}

impl Brokers {
    /// One, with `node.id` 1.
    pub const ONE: Self = Self {
        count: 1,
        first_id: 1,
    };
    /// Three, with `node.id` 1, 2 and 3.
    pub const THREE: Self = Self {
        count: 3,
        first_id: 1,
    };

    pub(super) fn places(self) -> impl Iterator<Item = NodePlace> {
        (0..self.count).map(move |index| NodePlace {
            id: self.first_id + i32::from(index),
            port: FIRST_PORT + STRIDE * index,
            controller_port: FIRST_CONTROLLER_PORT + STRIDE * index,
        })
    }
}

/// Where a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// Its `node.id`.
    pub id: i32,
    /// Where it listens for clients and brokers, on 127.0.0.1; the next 98 ports are free too.
    pub port: u16,
    /// Where it listens for controllers.
    pub controller_port: u16,
}

impl NodePlace {
    fn address(self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }
}

struct Node {
    place: NodePlace,
    home: PathBuf,
    log: PathBuf,
    process: Process,
    /// The suite asked for its end.
    stopped: bool,
}

/// Running brokers.
pub(super) struct Running {
    nodes: Vec<Node>,
    product: Product,
}

impl Running {
    /// Starts what the suite wants, waits until the brokers know each other, and makes its topics. Their files go to `home`,
    /// their logs to `logs`.
    pub(super) fn start(suite: &Suite, product: Product, home: &Path, logs: &Path) -> Result<Self> {
        let mut this = Self {
            nodes: Vec::new(),
            product,
        };
        for place in suite.brokers.places() {
            for port in [place.port, place.controller_port] {
                TcpListener::bind((Ipv4Addr::LOCALHOST, port)).with_context(|| {
                    format!("port {port} is needed and somebody listens there already")
                })?;
            }
            let home = home.join(place.id.to_string());
            std::fs::create_dir_all(&home)?;
            let properties = properties(suite, product, place, &home);
            let text: String = properties
                .iter()
                .map(|(key, value)| format!("{key}={value}\n"))
                .collect();
            std::fs::write(home.join(PROPERTIES), text)?;
            let log = logs.join(format!("broker-{}.log", place.id));
            let _ = std::fs::remove_file(&log);
            this.nodes.push(Node {
                process: spawn(product, place, &home, &log)?,
                place,
                home,
                log,
                stopped: false,
            });
        }
        this.await_each_other()?;
        this.make_topics(suite.topics)?;
        Ok(this)
    }

    /// Waits until every node that runs knows all that run.
    fn await_each_other(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            self.ensure_alive()?;
            let running = || self.nodes.iter().filter(|node| !node.stopped);
            let wanted = running().count();
            let ready = running().all(|node| {
                Wire::connect(node.place.address())
                    .and_then(|mut wire| Ok(wire.metadata_of_everything()?))
                    .is_ok_and(|metadata| {
                        metadata.brokers.len() >= wanted && metadata.controller_id.0 >= 0
                    })
            });
            if ready {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let tails: Vec<String> = running().map(|node| node.process.log_tail()).collect();
                bail!("the brokers do not answer\n{}", tails.join("\n"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn make_topics(&self, topics: &[(&str, i32)]) -> Result<()> {
        for (index, node) in self.nodes.iter().enumerate() {
            let mut wire = Wire::connect(node.place.address())?;
            for (name, partitions) in topics {
                if index == 0 {
                    create_topic(&mut wire, name, *partitions, &[])?;
                }
                find_topic(&mut wire, name)?;
            }
        }
        Ok(())
    }

    fn node(&mut self, id: i32) -> Result<&mut Node> {
        self.nodes
            .iter_mut()
            .find(|node| node.place.id == id)
            .with_context(|| format!("no node {id}"))
    }

    /// Asks a node to end and waits for that.
    pub(super) fn stop_node(&mut self, id: i32) -> Result<()> {
        let node = self.node(id)?;
        node.stopped = true;
        node.process.signal(Signal::TERM)?;
        node.await_end()
    }

    /// Starts a node that was stopped and waits until it knows those that run.
    pub(super) fn start_node(&mut self, id: i32) -> Result<()> {
        let product = self.product;
        let node = self.node(id)?;
        ensure!(node.stopped, "node {id} runs");
        node.process = spawn(product, node.place, &node.home, &node.log)?;
        node.stopped = false;
        self.await_each_other()
    }

    /// An error, with the end of its log, if a broker has ended that was not asked to.
    pub(super) fn ensure_alive(&mut self) -> Result<()> {
        for node in self.nodes.iter_mut().filter(|node| !node.stopped) {
            if let Some(status) = node.process.exited()? {
                bail!(
                    "broker {} ended with {status}\n{}",
                    node.place.id,
                    node.process.log_tail()
                );
            }
        }
        Ok(())
    }

    /// Asks all of them to end, and wants them to do so well.
    pub(super) fn stop(mut self) -> Result<()> {
        self.ensure_alive()?;
        for node in self.nodes.iter_mut().filter(|node| !node.stopped) {
            node.process.signal(Signal::TERM)?;
        }
        for node in self.nodes.iter_mut().filter(|node| !node.stopped) {
            node.await_end()?;
        }
        Ok(())
    }

    pub(super) fn addresses(&self) -> Vec<String> {
        self.nodes
            .iter()
            .map(|node| node.place.address().to_string())
            .collect()
    }
}

impl Node {
    /// Waits until it ends as it was asked to. A second request would have it end at once, and badly.
    fn await_end(&mut self) -> Result<()> {
        let status = self.process.wait(END_PATIENCE)?;
        // A JVM that was asked to end says so with 143.
        ensure!(
            status.success() || status.code() == Some(143),
            "broker {} stopped with {status}\n{}",
            self.place.id,
            self.process.log_tail()
        );
        Ok(())
    }
}

fn spawn(product: Product, place: NodePlace, home: &Path, log: &Path) -> Result<Process> {
    let (program, arguments) = command(product, &home.join(PROPERTIES))?;
    let name = format!("broker {}", place.id);
    Process::start(&name, &program, &arguments, log, |command| {
        command.current_dir(home);
    })
}

fn command(product: Product, file: &Path) -> Result<(PathBuf, Vec<String>)> {
    let text = file.display().to_string();
    Ok(match product {
        Product::Odradek => (crate::broker::binary()?, vec!["start".to_owned(), text]),
        Product::Kafka => {
            crate::kafka::format(file)?;
            (
                PathBuf::from("java"),
                crate::kafka::broker_arguments("1g", &text)?,
            )
        }
    })
}

fn properties(
    suite: &Suite,
    product: Product,
    place: NodePlace,
    home: &Path,
) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut put = |key: &str, value: String| all.insert(key.to_owned(), value);
    for (key, value) in BASE {
        put(key, (*value).to_owned());
    }
    let copies = if suite.brokers.count < 3 { 1 } else { 3 };
    put("offsets.topic.replication.factor", copies.to_string());
    put(
        "transaction.state.log.replication.factor",
        copies.to_string(),
    );
    put(
        "transaction.state.log.min.isr",
        (copies / 2 + 1).to_string(),
    );
    put("node.id", place.id.to_string());
    let voters: Vec<String> = suite
        .brokers
        .places()
        .map(|place| format!("{}@127.0.0.1:{}", place.id, place.controller_port))
        .collect();
    put("controller.quorum.voters", voters.join(","));
    let broker = format!("PLAINTEXT://127.0.0.1:{}", place.port);
    put(
        "listeners",
        format!("{broker},CONTROLLER://127.0.0.1:{}", place.controller_port),
    );
    put("advertised.listeners", broker);
    put("log.dirs", home.join("data").display().to_string());
    if product == Product::Kafka {
        for (key, value) in BASE_OF_KAFKA {
            put(key, (*value).to_owned());
        }
    }
    for (key, value) in suite.properties {
        put(key, (*value).to_owned());
    }
    if product == Product::Kafka {
        for (key, value) in suite.kafka_properties {
            put(key, (*value).to_owned());
        }
    }
    for (key, value) in (suite.properties_of)(&place) {
        put(&key, value);
    }
    all
}
