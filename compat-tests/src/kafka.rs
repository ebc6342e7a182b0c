//! Apache Kafka 4.4.0: the broker that Odradek's answers are compared with, and its command-line tools.
//!
//! The jars are in `$ODRADEK_KAFKA_LIBS`, or where `test.sh` puts them: `${XDG_CACHE_HOME:-~/.cache}/odradek/kafka-4.4.0/libs`.
//! Those of Kafka Streams and its tests are in `streams-VERSION` beside that, each with clients of its own version.
//! Tools are run as their main classes; the names are Kafka's.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::cache::cache_directory;
use crate::ports::free_port;
use crate::process::{Output, Process, run};
use crate::requests::init_producer_id;
use crate::wire::Wire;

/// The version that is compared with.
pub const VERSION: &str = "4.4.0";

/// How long one tool may run.
const TOOL_PATIENCE: Duration = Duration::from_secs(120);

/// The directory of Kafka's jars.
pub fn libs() -> Result<PathBuf> {
    let path = match std::env::var_os("ODRADEK_KAFKA_LIBS") {
        Some(path) => PathBuf::from(path),
        None => cache_directory()?.join(format!("kafka-{VERSION}/libs")),
    };
    ensure!(
        path.join(format!("kafka-clients-{VERSION}.jar")).exists(),
        "no Kafka {VERSION} jars in {}: run ./test.sh, which fetches them",
        path.display()
    );
    Ok(path)
}

/// The directory of the jars of Kafka Streams of a version, with its tests.
pub fn streams_libs(version: &str) -> Result<PathBuf> {
    let path = libs()?.with_file_name(format!("streams-{version}"));
    ensure!(
        path.join(format!("kafka-streams-{version}-test.jar"))
            .exists(),
        "no tests of Kafka Streams {version} in {}: run ./test.sh, which fetches them",
        path.display()
    );
    Ok(path)
}

/// A tool of Kafka's distribution: what its shell wrapper is called there, and its main class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tool {
    /// The wrapper's name without `.sh`.
    pub name: &'static str,
    class: &'static str,
}

macro_rules! tools {
    ($($constant:ident = $name:literal, $class:literal;)*) => {
        $(#[doc = concat!("`", $name, ".sh`.")] pub const $constant: Tool = Tool { name: $name, class: $class };)*
    };
}

tools! {
    TOPICS = "kafka-topics", "org.apache.kafka.tools.TopicCommand";
    CONFIGS = "kafka-configs", "org.apache.kafka.tools.ConfigCommand";
    GET_OFFSETS = "kafka-get-offsets", "org.apache.kafka.tools.GetOffsetShell";
    DELETE_RECORDS = "kafka-delete-records", "org.apache.kafka.tools.DeleteRecordsCommand";
    LOG_DIRS = "kafka-log-dirs", "org.apache.kafka.tools.LogDirsCommand";
    BROKER_API_VERSIONS = "kafka-broker-api-versions", "org.apache.kafka.tools.BrokerApiVersionsCommand";
    CONSOLE_PRODUCER = "kafka-console-producer", "org.apache.kafka.tools.ConsoleProducer";
    CONSOLE_CONSUMER = "kafka-console-consumer", "org.apache.kafka.tools.consumer.ConsoleConsumer";
    GROUPS = "kafka-groups", "org.apache.kafka.tools.GroupsCommand";
    CONSUMER_GROUPS = "kafka-consumer-groups", "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand";
    PRODUCER_PERF_TEST = "kafka-producer-perf-test", "org.apache.kafka.tools.ProducerPerformance";
    CONSUMER_PERF_TEST = "kafka-consumer-perf-test", "org.apache.kafka.tools.ConsumerPerformance";
    E2E_LATENCY = "kafka-e2e-latency", "org.apache.kafka.tools.EndToEndLatency";
    VERIFIABLE_PRODUCER = "kafka-verifiable-producer", "org.apache.kafka.tools.VerifiableProducer";
    VERIFIABLE_CONSUMER = "kafka-verifiable-consumer", "org.apache.kafka.tools.VerifiableConsumer";
    DUMP_LOG = "kafka-dump-log", "org.apache.kafka.tools.DumpLogSegments";
    TRANSACTIONS = "kafka-transactions", "org.apache.kafka.tools.TransactionsCommand";
    TRANSACTIONAL_MESSAGE_COPIER = "transactional-message-copier", "org.apache.kafka.tools.TransactionalMessageCopier";
    CLUSTER = "kafka-cluster", "org.apache.kafka.tools.ClusterTool";
    METADATA_QUORUM = "kafka-metadata-quorum", "org.apache.kafka.tools.MetadataQuorumCommand";
    FEATURES = "kafka-features", "org.apache.kafka.tools.FeatureCommand";
    REASSIGN_PARTITIONS = "kafka-reassign-partitions", "org.apache.kafka.tools.reassign.ReassignPartitionsCommand";
    LEADER_ELECTION = "kafka-leader-election", "org.apache.kafka.tools.LeaderElectionCommand";
    CLIENT_METRICS = "kafka-client-metrics", "org.apache.kafka.tools.ClientMetricsCommand";
    STORAGE = "kafka-storage", "kafka.tools.StorageTool";
    STREAMS_RESET = "kafka-streams-application-reset", "org.apache.kafka.tools.StreamsResetter";
}

impl Tool {
    /// Its main class.
    pub fn class(self) -> &'static str {
        self.class
    }

    /// Runs the tool to its end.
    pub fn run(self, arguments: &[&str], input: &str) -> Result<Output> {
        let mut all = java_arguments("256m", &libs()?);
        all.push(self.class.to_owned());
        all.extend(arguments.iter().map(|&argument| argument.to_owned()));
        run(Path::new("java"), &all, input.as_bytes(), TOOL_PATIENCE).with_context(|| self.name)
    }

    /// Runs the tool and wants it to succeed; its standard output.
    pub fn succeed(self, arguments: &[&str], input: &str) -> Result<String> {
        let output = self.run(arguments, input)?;
        ensure!(
            output.success,
            "{} {arguments:?} failed:\n{}",
            self.name,
            output.both()
        );
        Ok(output.stdout)
    }

    /// Starts the tool and leaves it running; its output goes to `log`.
    pub fn start(self, arguments: &[&str], log: &Path) -> Result<Process> {
        let mut all = java_arguments("256m", &libs()?);
        all.push(self.class.to_owned());
        all.extend(arguments.iter().map(|&argument| argument.to_owned()));
        Process::start(self.name, Path::new("java"), &all, log, |_| {})
    }
}

/// How many records a `kafka-verifiable-consumer` says that it has consumed.
pub fn records_consumed(output: &str) -> i64 {
    output
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|event| event["name"] == "records_consumed")
        .filter_map(|event| event["count"].as_i64())
        .sum()
}

/// Flags of every JVM: a small heap, the cheap compiler and collector (most tools live for two seconds), these jars, and
/// warnings only from Kafka's logger.
pub(crate) fn java_arguments(heap: &str, jars: &Path) -> Vec<String> {
    let logging = Path::new(env!("CARGO_MANIFEST_DIR")).join("kafka/log4j2.properties");
    vec![
        format!("-Xmx{heap}"),
        "-XX:+UseSerialGC".to_owned(),
        "-XX:TieredStopAtLevel=1".to_owned(),
        "-Xshare:auto".to_owned(),
        format!("-Dlog4j2.configurationFile={}", logging.display()),
        "-cp".to_owned(),
        format!("{}/*", jars.display()),
    ]
}

/// The arguments of `java` that make it a broker with this property file.
pub(crate) fn broker_arguments(heap: &str, properties: &str) -> Result<Vec<String>> {
    let mut arguments = java_arguments(heap, &libs()?);
    // A broker lives long enough to be compiled properly.
    arguments.retain(|argument| {
        !argument.contains("TieredStopAtLevel") && !argument.contains("SerialGC")
    });
    arguments.extend(["kafka.Kafka".to_owned(), properties.to_owned()]);
    Ok(arguments)
}

/// Compiles one source file against Kafka's jars; the directory of the classes.
fn compile(source: &Path, classes: &Path) -> Result<String> {
    let directory = classes.display().to_string();
    let jars = format!("{}/*", libs()?.display());
    let source = source.display().to_string();
    let arguments = ["-d", &directory, "-cp", &jars, "-proc:none", &source].map(str::to_owned);
    let output = run(Path::new("javac"), &arguments, b"", TOOL_PATIENCE)?;
    ensure!(output.success, "javac {source}:\n{}", output.both());
    Ok(directory)
}

/// Formats the data directory of a property file, unless that was done before.
pub(crate) fn format(properties: &Path) -> Result<()> {
    let properties = properties.display().to_string();
    let arguments = [
        "format",
        "-t",
        "MkU3OEVBNTcwNTJENDM2Qg",
        "-c",
        &properties,
        "--ignore-formatted",
    ];
    STORAGE.succeed(&arguments, "")?;
    Ok(())
}

/// What a Kafka node is started with.
#[derive(Clone, Debug)]
pub struct KafkaOptions {
    properties: BTreeMap<String, String>,
    heap: String,
    data_dir: Option<PathBuf>,
    plugin: Option<PathBuf>,
}

impl Default for KafkaOptions {
    fn default() -> Self {
        let mut properties = BTreeMap::new();
        for (key, value) in [
            ("process.roles", "broker,controller"),
            ("node.id", "1"),
            ("controller.listener.names", "CONTROLLER"),
            (
                "listener.security.protocol.map",
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            ),
            ("offsets.topic.num.partitions", "4"),
            ("offsets.topic.replication.factor", "1"),
            ("transaction.state.log.num.partitions", "4"),
            ("transaction.state.log.replication.factor", "1"),
            ("transaction.state.log.min.isr", "1"),
            ("share.coordinator.state.topic.num.partitions", "4"),
            ("share.coordinator.state.topic.replication.factor", "1"),
            ("share.coordinator.state.topic.min.isr", "1"),
            ("group.initial.rebalance.delay.ms", "0"),
        ] {
            properties.insert(key.to_owned(), value.to_owned());
        }
        Self {
            properties,
            heap: "512m".to_owned(),
            data_dir: None,
            plugin: None,
        }
    }
}

impl KafkaOptions {
    /// Sets a line of server.properties.
    pub fn set(mut self, key: &str, value: impl ToString) -> Self {
        self.properties.insert(key.to_owned(), value.to_string());
        self
    }

    /// Sets the JVM's heap, as in `1g`.
    pub fn heap(mut self, heap: &str) -> Self {
        self.heap = heap.to_owned();
        self
    }

    /// Puts the data somewhere else than into the node's own temporary directory.
    pub fn data_dir(mut self, path: &Path) -> Self {
        self.data_dir = Some(path.to_owned());
        self
    }

    /// Compiles a class out of one source file and puts it where the node finds it. What it is for, a property has
    /// to say.
    pub fn plugin(mut self, source: &Path) -> Self {
        self.plugin = Some(source.to_owned());
        self
    }

    /// Formats the directory, starts the node and waits until it answers.
    pub fn start(self) -> Result<Kafka> {
        let home = tempfile::Builder::new().prefix("kafka-test-").tempdir()?;
        let data_dir = self
            .data_dir
            .clone()
            .unwrap_or_else(|| home.path().join("data"));
        let (port, controller_port) = (free_port(), free_port());
        let mut properties = self.properties.clone();
        let mut put =
            |key: &str, value: String| properties.entry(key.to_owned()).or_insert(value).clone();
        put(
            "listeners",
            format!("PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}"),
        );
        put(
            "advertised.listeners",
            format!("PLAINTEXT://127.0.0.1:{port}"),
        );
        put(
            "controller.quorum.voters",
            format!("1@127.0.0.1:{controller_port}"),
        );
        put("log.dirs", data_dir.display().to_string());
        let file = home.path().join("server.properties");
        let text: String = properties
            .iter()
            .map(|(key, value)| format!("{key}={value}\n"))
            .collect();
        std::fs::write(&file, text)?;
        format(&file)?;
        let process = Kafka::spawn(&self, &file.display().to_string(), home.path())?;
        let mut kafka = Kafka {
            process,
            options: self,
            port,
            home,
            data_dir,
        };
        kafka.wait_until_ready()?;
        Ok(kafka)
    }
}

/// A Kafka node as a child process.
pub struct Kafka {
    process: Process,
    options: KafkaOptions,
    port: u16,
    home: TempDir,
    data_dir: PathBuf,
}

impl Kafka {
    /// Starts a node with the harness's defaults.
    pub fn start() -> Result<Self> {
        KafkaOptions::default().start()
    }

    /// What a node is started with, to be changed before it is.
    pub fn options() -> KafkaOptions {
        KafkaOptions::default()
    }

    fn spawn(options: &KafkaOptions, properties: &str, home: &Path) -> Result<Process> {
        let mut arguments = broker_arguments(&options.heap, properties)?;
        if let Some(source) = &options.plugin {
            let classes = compile(source, &home.join("classes"))?;
            if let Some(path) = arguments.iter().position(|argument| argument == "-cp")
                && let Some(path) = arguments.get_mut(path + 1)
            {
                path.push(':');
                path.push_str(&classes);
            }
        }
        Process::start(
            "kafka",
            Path::new("java"),
            &arguments,
            &home.join("kafka.log"),
            |command| {
                command.current_dir(home);
            },
        )
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let patience = Duration::from_secs(90);
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.process.exited()? {
                bail!(
                    "Kafka ended with {status} while it started\n{}",
                    self.process.log_tail()
                );
            }
            let answer = Wire::connect(self.address())
                .and_then(|mut wire| Ok(wire.metadata_of_everything()?));
            match answer {
                Ok(metadata) if !metadata.brokers.is_empty() => break,
                _ if Instant::now() >= deadline => {
                    bail!("no Metadata answer\n{}", self.process.log_tail())
                }
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        // Its first block of producer ids comes from the controller, now and then seconds later than all the rest.
        let mut wire = Wire::connect(self.address())?;
        while init_producer_id(&mut wire).is_err() {
            ensure!(
                Instant::now() < deadline,
                "no producer id\n{}",
                self.process.log_tail()
            );
        }
        Ok(())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The same as `host:port`, for clients.
    pub fn bootstrap(&self) -> String {
        self.address().to_string()
    }

    /// Its data directory (`log.dirs`).
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Ends it at once with SIGKILL.
    pub fn kill9(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Starts it again on the same port and directory and waits until it answers; it must have ended.
    pub fn start_again(&mut self) -> Result<()> {
        let file = self
            .home
            .path()
            .join("server.properties")
            .display()
            .to_string();
        self.process = Self::spawn(&self.options, &file, self.home.path())?;
        self.wait_until_ready()
    }
}
