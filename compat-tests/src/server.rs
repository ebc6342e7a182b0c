//! The broker that a test speaks to: Odradek, or Kafka in its place.
//!
//! With `ODRADEK_TEST_KAFKA_INSTEAD` set, tests that need nothing but a broker's address run against Apache Kafka. What
//! fails there is wrong in the test.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;

use crate::broker::Broker;
use crate::kafka::Kafka;
use crate::process::Process;
use crate::requests::{Topic, create_topic};
use crate::wire::Wire;

/// Whether Kafka stands in for Odradek.
pub fn kafka_instead() -> bool {
    std::env::var_os("ODRADEK_TEST_KAFKA_INSTEAD").is_some()
}

enum Kind {
    Ours(Broker),
    Kafka(Kafka),
}

/// A running broker.
pub struct Server(Kind);

impl Server {
    /// Starts one with the harness's defaults.
    pub fn start() -> Result<Self> {
        Self::with(&[])
    }

    /// Starts one with further lines of server.properties.
    pub fn with(properties: &[(&str, &str)]) -> Result<Self> {
        Ok(Self(if kafka_instead() {
            Kind::Kafka(
                properties
                    .iter()
                    .fold(Kafka::options(), |o, (key, value)| o.set(key, value))
                    .start()?,
            )
        } else {
            Kind::Ours(
                properties
                    .iter()
                    .fold(Broker::options(), |o, (key, value)| o.set(key, value))
                    .start()?,
            )
        }))
    }

    /// Starts one with the harness's defaults, and connects to it.
    pub fn connected() -> Result<(Self, Wire)> {
        let server = Self::start()?;
        let wire = server.connect()?;
        Ok((server, wire))
    }

    /// The same with a topic.
    pub fn with_topic(
        name: &str,
        partitions: i32,
        configs: &[(&str, &str)],
    ) -> Result<(Self, Wire, Topic)> {
        let (server, mut wire) = Self::connected()?;
        let topic = create_topic(&mut wire, name, partitions, configs)?;
        Ok((server, wire, topic))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        match &self.0 {
            Kind::Ours(broker) => broker.address(),
            Kind::Kafka(kafka) => kafka.address(),
        }
    }

    /// The same as `host:port`, for clients.
    pub fn bootstrap(&self) -> String {
        self.address().to_string()
    }

    /// A new connection to it.
    pub fn connect(&self) -> Result<Wire> {
        Wire::connect(self.address())
    }

    /// Its data directory.
    pub fn data_dir(&self) -> &Path {
        match &self.0 {
            Kind::Ours(broker) => broker.data_dir(),
            Kind::Kafka(kafka) => kafka.data_dir(),
        }
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        match &mut self.0 {
            Kind::Ours(broker) => broker.process(),
            Kind::Kafka(kafka) => kafka.process(),
        }
    }

    /// Ends it with SIGKILL and starts it again on the same directory.
    pub fn kill_and_restart(&mut self) -> Result<()> {
        self.process().kill()?;
        match &mut self.0 {
            Kind::Ours(broker) => broker.start_again(),
            Kind::Kafka(kafka) => kafka.start_again(),
        }
    }

    /// Stops it cleanly and starts it again on the same directory.
    pub fn restart(&mut self) -> Result<()> {
        match &mut self.0 {
            Kind::Ours(broker) => broker.restart(),
            Kind::Kafka(kafka) => {
                kafka
                    .process()
                    .terminate(std::time::Duration::from_secs(60))?;
                kafka.start_again()
            }
        }
    }
}
