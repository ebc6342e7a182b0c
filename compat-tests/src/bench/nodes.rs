//! The brokers that are measured, behind one face.

use std::time::{Duration, Instant};

use anyhow::Result;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;

use crate::broker::Broker;
use crate::kafka::Kafka;
use crate::process::Process;

/// Which broker, and how it treats the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ours: every acknowledgement after fdatasync.
    Odradek,
    /// Kafka as it comes: acknowledged from the page cache.
    Kafka,
    /// Kafka with `flush.messages=1`.
    KafkaFlushing,
}

impl Kind {
    /// As the report calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Odradek => "Odradek",
            Self::Kafka => "Kafka 4.4.0",
            Self::KafkaFlushing => "Kafka, flush.messages=1",
        }
    }

    /// Starts a fresh node; with the time from the start of its process to the first Metadata answer.
    /// Building the binary, which the first start sees to, and formatting Kafka's directory do not count.
    pub fn start(self) -> Result<(Node, Duration)> {
        let mut node = match self {
            Self::Odradek => Node::Odradek(
                Broker::options()
                    .set("auto.create.topics.enable", false)
                    .start()?,
            ),
            Self::Kafka => Node::Kafka(kafka_options().start()?),
            Self::KafkaFlushing => Node::Kafka(
                kafka_options()
                    .set("log.flush.interval.messages", 1)
                    .start()?,
            ),
        };
        let elapsed = node.process().age();
        Ok((node, elapsed))
    }
}

fn kafka_options() -> crate::kafka::KafkaOptions {
    Kafka::options()
        .heap("1g")
        .set("auto.create.topics.enable", false)
}

/// A running node.
pub enum Node {
    /// Ours.
    Odradek(Broker),
    /// Kafka.
    Kafka(Kafka),
}

impl Node {
    /// `host:port` for clients.
    pub fn bootstrap(&self) -> String {
        match self {
            Self::Odradek(broker) => broker.bootstrap(),
            Self::Kafka(kafka) => kafka.bootstrap(),
        }
    }

    /// The process, to be measured.
    pub fn process(&mut self) -> &mut Process {
        match self {
            Self::Odradek(broker) => broker.process(),
            Self::Kafka(kafka) => kafka.process(),
        }
    }

    /// Stops it cleanly and starts it again on the same directory, until its first Metadata answer.
    pub fn restart(&mut self) -> Result<()> {
        match self {
            Self::Odradek(broker) => broker.restart(),
            Self::Kafka(kafka) => {
                kafka.process().terminate(Duration::from_secs(60))?;
                kafka.start_again()
            }
        }
    }

    /// Creates a topic and waits until every partition has a leader; how long that took.
    pub fn create_topic(&mut self, name: &str, partitions: i32) -> Result<Duration> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
            .set("bootstrap.servers", self.bootstrap())
            .create()?;
        let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        let started = Instant::now();
        let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(30)));
        for result in runtime.block_on(admin.create_topics([&topic], &options))? {
            result.map_err(|(topic, code)| anyhow::anyhow!("creating {topic}: {code}"))?;
        }
        loop {
            let metadata = admin
                .inner()
                .fetch_metadata(Some(name), Duration::from_secs(10))?;
            let led = metadata
                .topics()
                .iter()
                .flat_map(|topic| topic.partitions())
                .filter(|partition| partition.leader() >= 0)
                .count();
            if led == partitions as usize {
                return Ok(started.elapsed());
            }
            anyhow::ensure!(
                started.elapsed() < Duration::from_secs(60),
                "only {led} of {partitions} partitions of {name} have a leader after 60 s"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
