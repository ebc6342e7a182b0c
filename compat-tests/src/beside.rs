//! One Odradek and one Kafka beside each other, for one test at a time, with nothing on either that a clock decides.
//!
//! Each is a cluster of one node with a listener for controllers, so that what is said of the cluster is alike.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::{Context, Result, anyhow};

use crate::cluster::{Cluster, Product};
use crate::groups::coordinator_is_up;
use crate::server::kafka_instead;
use crate::transactions::TxnProducer;
use crate::wire::Wire;

/// What keeps clocks out of it, on both sides.
const SETTINGS: [(&str, &str); 5] = [
    ("log.retention.ms", "-1"),
    // By the times of records, too; and of two segments Kafka never answers with more than one.
    ("log.roll.ms", "9223372036854775807"),
    ("log.retention.check.interval.ms", "86400000"),
    ("log.cleaner.backoff.ms", "86400000"),
    ("group.consumer.assignment.interval.ms", "0"),
];

/// One of the two.
pub struct Node {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its data directory.
    pub data_dir: PathBuf,
    _cluster: Cluster,
}

impl Node {
    fn start(product: Product) -> Result<Self> {
        let mut cluster = SETTINGS
            .iter()
            .fold(Cluster::options(product, 1), |options, (key, value)| {
                options.set(key, value)
            })
            .start()?;
        let node = cluster.node(1)?;
        let (address, data_dir) = (node.addresses().broker, node.data_dir().to_owned());
        wake_coordinators(&mut Wire::connect(address)?)?;
        Ok(Self {
            address,
            data_dir,
            _cluster: cluster,
        })
    }
}

/// The two.
pub struct Beside {
    /// Odradek.
    pub ours: Node,
    /// Kafka.
    pub kafka: Node,
}

/// Waits until every partition of the coordinators' topics has been loaded: as many ids as it takes to meet all.
fn wake_coordinators(wire: &mut Wire) -> Result<()> {
    for number in 0..24 {
        let id = format!("__awake-{number}");
        coordinator_is_up(wire, &id)?;
        TxnProducer::init(wire, &id)?;
    }
    Ok(())
}

/// The two servers of this test process, started when they are first asked for. Whoever has them has them alone.
pub fn beside() -> Result<MutexGuard<'static, Beside>> {
    static BOTH: OnceLock<Result<Mutex<Beside>, String>> = OnceLock::new();
    let start = || -> Result<Mutex<Beside>> {
        let kafka = std::thread::spawn(|| Node::start(Product::Kafka));
        let ours = Node::start(match kafka_instead() {
            true => Product::Kafka,
            false => Product::Odradek,
        })?;
        let kafka = kafka.join().ok().context("Kafka's starter panicked")??;
        Ok(Mutex::new(Beside { ours, kafka }))
    };
    let both = BOTH.get_or_init(|| start().map_err(|e| format!("{e:#}")));
    let both = both.as_ref().map_err(|e| anyhow!(e.clone()))?;
    // A test that failed leaves the servers as they are.
    Ok(both.lock().unwrap_or_else(PoisonError::into_inner))
}
