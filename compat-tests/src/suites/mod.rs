//! Test suites of other projects' clients, run against a fresh broker and held against lists of what may fail.
//!
//! Each suite is one file here with one [`Suite`]: where it comes from and how it is built ([`Preparation`]), what
//! brokers it wants ([`Brokers`]), how it is run and how its output is read, test by test ([`Session`], [`TestResult`]).
//! Its list of exceptions is `suites/NAME.txt` ([`expected`]): a failure or skip that is not listed fails the run, and so
//! does a listed test that passes. [`runner`] puts these together; `src/bin/suites.rs` is its command line.
//!
//! Invariants: nothing is fetched or built inside a session; a session has broker, suite and the loopback interface to
//! itself where namespaces can be made, so port 9092 is free there and everything that was started ends with it; a
//! session ends by itself, whatever its tests do. What is slow to build is in the cache, outside the source tree.
//!
//! Absent on purpose: sources of the suites, and repairs of them beyond what their own settings offer.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

mod brokers;
pub mod expected;
mod franz_go;
mod go;
mod job;
mod kafka_go;
mod kafka_python;
mod kafka_tools;
mod kcat;
mod librdkafka;
mod node_rdkafka;
mod own;
mod preparation;
mod result;
mod rskafka;
pub mod runner;
mod rust_crate;
mod rust_rdkafka;
mod sarama;
mod session;

pub use brokers::{Brokers, NodePlace};
pub use job::{Finished, Job};
pub use preparation::Preparation;
pub use result::{Outcome, TestResult};
pub use session::Session;

/// Every suite, in the order in which they are listed.
pub const ALL: &[&Suite] = &[
    &kcat::SUITE,
    &kafka_tools::SUITE,
    &librdkafka::CLASSIC,
    &librdkafka::ADMIN,
    &librdkafka::CONSUMER,
    &librdkafka::SOCKEM,
    &librdkafka::CLUSTER,
    &librdkafka::NO_AUTO_CREATE,
    &node_rdkafka::SUITE,
    &franz_go::SUITE,
    &kafka_go::SUITE,
    &kafka_python::SUITE,
    &rskafka::SUITE,
    &rust_rdkafka::SUITE,
    &sarama::SUITE,
];

/// Lines of a property file.
pub type Properties = &'static [(&'static str, &'static str)];

/// A suite; make one with `..Suite::PLAIN`.
pub struct Suite {
    /// Its name on the command line, and of its list: `suites/NAME.txt`.
    pub name: &'static str,
    /// What it is and which version, in one line.
    pub about: &'static str,
    /// Its list of exceptions: `include_str!("../../suites/NAME.txt")`.
    pub exceptions: &'static str,
    /// How many brokers, and with which numbers.
    pub brokers: Brokers,
    /// Settings of every node beyond `brokers::BASE`, for Odradek and Kafka.
    pub properties: Properties,
    /// Further settings for Kafka alone (Odradek refuses keys that it does not know).
    pub kafka_properties: Properties,
    /// Settings that depend on the node.
    pub properties_of: fn(&NodePlace) -> Vec<(String, String)>,
    /// Topics that exist before the suite starts, with their partitions.
    pub topics: &'static [(&'static str, i32)],
    /// How long a whole run may take once everything is prepared and the brokers run.
    pub bound: Duration,
    /// At least so many tests must pass in a whole run: a suite that ends early is no success.
    pub at_least: usize,
    /// What of it belongs into the short selection.
    pub short: Short,
    /// How long that may take.
    pub short_bound: Duration,
    /// Fetches and builds, with a network; what it returns is [`Session::prepared`]. Cheap when all is there.
    pub prepare: fn(&Preparation) -> Result<PathBuf>,
    /// Runs it and reads its results. An error means that no judgement is possible.
    pub run: fn(&Session) -> Result<Vec<TestResult>>,
}

/// What of a suite belongs into the short selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    /// Nothing.
    Nothing,
    /// All of it.
    Everything,
    /// These tests.
    Only(&'static [&'static str]),
}

impl Suite {
    /// A suite of nothing, to be completed.
    pub const PLAIN: Self = Self {
        name: "",
        about: "",
        exceptions: "",
        brokers: Brokers::ONE,
        properties: &[],
        kafka_properties: &[],
        properties_of: |_| Vec::new(),
        topics: &[],
        bound: Duration::from_secs(600),
        at_least: 1,
        short: Short::Nothing,
        short_bound: Duration::from_secs(120),
        prepare: |_| Ok(PathBuf::new()),
        run: |_| Ok(Vec::new()),
    };

    /// The suite of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        ALL.iter().copied().find(|suite| suite.name == name)
    }
}
