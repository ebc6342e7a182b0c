//! A network of its own for each node: a network namespace with one end of a veth pair, the other end on a bridge in a
//! further namespace that the test process reaches through one more pair.
//!
//! Invariants: no namespace has a name and none is held by a file. Each is held by one idle process that dies with the
//! test process, so the kernel takes namespaces, pairs and bridge away even after a SIGKILL. A cut drops packets of one
//! direction silently where they arrive; what is under way on other links is not touched. The test process reaches
//! every node all the time: clients are never cut off.
//!
//! Absent on purpose: delay. The kernels at hand have no netem; [`super::relay`] delays.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::{Addresses, NodeNumber};
use crate::process::{Process, run};

const PATIENCE: Duration = Duration::from_secs(10);
const BROKER_PORT: u16 = 9092;
const CONTROLLER_PORT: u16 = 9093;
/// Networks that one machine can have at a time: 10.213.0.0/24 to 10.213.249.0/24.
const NETWORKS: u32 = 250;
/// Priority of the rules that drop, before the local table's.
const CUT_PRIORITY: &str = "1";

/// Whether this process may make namespaces and has the tools to wire them.
pub fn are_possible() -> bool {
    static POSSIBLE: OnceLock<bool> = OnceLock::new();
    *POSSIBLE.get_or_init(|| {
        let arguments = ["--net", "--", "ip", "link"].map(str::to_owned);
        rustix::process::geteuid().is_root()
            && run(Path::new("unshare"), &arguments, b"", PATIENCE)
                .is_ok_and(|output| output.success)
    })
}

struct Namespace(Process);

impl Namespace {
    fn new(log: &Path) -> Result<Self> {
        let arguments = ["--net", "--", "sleep", "infinity"].map(str::to_owned);
        let mut holder = Process::start(
            "namespace holder",
            Path::new("unshare"),
            &arguments,
            log,
            |_| {},
        )?;
        let ours = std::fs::read_link("/proc/self/ns/net")?;
        let path = format!("/proc/{}/ns/net", holder.pid());
        let deadline = Instant::now() + PATIENCE;
        while std::fs::read_link(&path).is_ok_and(|theirs| theirs == ours) {
            if let Some(status) = holder.exited()? {
                bail!("no namespace ({status}): {}", holder.log_tail());
            }
            ensure!(Instant::now() < deadline, "no namespace in time");
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(Self(holder))
    }

    fn pid(&self) -> u32 {
        self.0.pid()
    }

    fn enter(&self) -> Vec<String> {
        vec![
            "nsenter".to_owned(),
            format!("--net=/proc/{}/ns/net", self.pid()),
            "--".to_owned(),
        ]
    }

    /// Runs `ip` inside with one command a line.
    fn ip(&self, commands: &str) -> Result<()> {
        self.run(&["ip", "-batch", "-"], commands)
    }

    fn run(&self, command: &[&str], input: &str) -> Result<()> {
        let mut arguments = self.enter().split_off(1);
        arguments.extend(command.iter().map(|&part| part.to_owned()));
        let output = run(Path::new("nsenter"), &arguments, input.as_bytes(), PATIENCE)?;
        ensure!(
            output.success,
            "{command:?} {input} failed: {}",
            output.both()
        );
        Ok(())
    }
}

/// The wired namespaces of a cluster.
pub struct Namespaces {
    nodes: Vec<(NodeNumber, Namespace)>,
    hub: Namespace,
    network: u8,
}

impl Namespaces {
    /// Makes a namespace for each node and wires them. Logs of the holders go to `home`.
    pub fn new(numbers: &[NodeNumber], home: &Path) -> Result<Self> {
        let log = home.join("namespaces.log");
        let hub = Namespace::new(&log)?;
        let network = connect_to_us(&hub)?;
        hub.ip(
            "link set lo up\nlink add br0 type bridge\nlink set br0 up\nlink set up0 master br0\nlink set up0 up\n",
        )?;
        let mut this = Self {
            nodes: Vec::new(),
            hub,
            network,
        };
        for &number in numbers {
            this.add_node(number, &log)?;
        }
        Ok(this)
    }

    fn add_node(&mut self, number: NodeNumber, log: &Path) -> Result<()> {
        let node = Namespace::new(log)?;
        let pid = node.pid();
        self.hub.ip(&format!(
            "link add node{number} type veth peer name eth0 netns {pid}\n\
             link set node{number} master br0\nlink set node{number} up\n"
        ))?;
        // The local table is asked after the rules that cut, not before them.
        node.ip(&format!(
            "link set lo up\naddr add {}/24 dev eth0\nlink set eth0 up\n\
             rule add pref 10 table local\nrule del pref 0\n",
            self.ip_of(number)
        ))?;
        self.nodes.push((number, node));
        Ok(())
    }

    fn ip_of(&self, number: NodeNumber) -> Ipv4Addr {
        let host = u8::try_from(number).unwrap_or(0).wrapping_add(10);
        Ipv4Addr::new(10, 213, self.network, host)
    }

    fn node(&self, number: NodeNumber) -> Result<&Namespace> {
        self.nodes
            .iter()
            .find(|(known, _)| *known == number)
            .map(|(_, namespace)| namespace)
            .with_context(|| format!("no namespace for node {number}"))
    }

    /// Where a node listens, for itself and for all others.
    pub fn addresses(&self, number: NodeNumber) -> Addresses {
        let at = |port| SocketAddr::from((self.ip_of(number), port));
        Addresses {
            broker: at(BROKER_PORT),
            controller: at(CONTROLLER_PORT),
            broker_bind: at(BROKER_PORT),
            controller_bind: at(CONTROLLER_PORT),
        }
    }

    /// What a command must be prefixed with to run on the node's network.
    pub fn enter(&self, number: NodeNumber) -> Result<Vec<String>> {
        Ok(self.node(number)?.enter())
    }

    /// Drops, from now on, what `from` sends to `to`.
    pub fn cut(&self, from: NodeNumber, to: NodeNumber) -> Result<()> {
        let from = self.ip_of(from);
        self.node(to)?.ip(&format!(
            "rule add pref {CUT_PRIORITY} from {from} blackhole\n"
        ))
    }

    /// Undoes [`Self::cut`].
    pub fn join(&self, from: NodeNumber, to: NodeNumber) -> Result<()> {
        let from = self.ip_of(from);
        self.node(to)?.ip(&format!(
            "rule del pref {CUT_PRIORITY} from {from} blackhole\n"
        ))
    }

    /// Limits what the node sends to so many bytes a second; `None` lifts the limit.
    pub fn throttle(&self, number: NodeNumber, bytes_per_second: Option<u64>) -> Result<()> {
        let node = self.node(number)?;
        match bytes_per_second {
            Some(rate) => {
                let rate = format!("{}bit", rate * 8);
                let arguments = ["rate", &rate, "burst", "32kb", "latency", "400ms"];
                let mut command = vec!["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf"];
                command.extend(arguments);
                node.run(&command, "")
            }
            None => node.run(&["tc", "qdisc", "del", "dev", "eth0", "root"], ""),
        }
    }
}

/// Connects the hub to the namespace of this process; the number of the network that was free.
fn connect_to_us(hub: &Namespace) -> Result<u8> {
    let start = std::process::id();
    for step in 0..NETWORKS {
        let number = u8::try_from(start.wrapping_add(step) % NETWORKS)?;
        let link = format!("odk{number}");
        let add = format!(
            "link add {link} type veth peer name up0 netns {}\n",
            hub.pid()
        );
        let output = ip(&add)?;
        if output.success {
            let output = ip(&format!(
                "addr add 10.213.{number}.1/24 dev {link}\nlink set {link} up\n"
            ))?;
            ensure!(output.success, "{link}: {}", output.both());
            return Ok(number);
        }
        ensure!(
            output.both().contains("File exists"),
            "{add} failed: {}",
            output.both()
        );
    }
    bail!("no free network")
}

fn ip(commands: &str) -> Result<crate::process::Output> {
    let arguments = ["-batch", "-"].map(str::to_owned);
    run(Path::new("ip"), &arguments, commands.as_bytes(), PATIENCE)
}
