//! librdkafka's own `test-runner`, built from the sources that the crate `rdkafka-sys` carries.
//!
//! One program, several suites: what the classic and the consumer protocol see of one broker, what sockem (its emulation of
//! bad networks) sees, what needs three brokers, what needs that no topic is created by itself, and the admin test
//! function by function, so that those which need what is not there yet do not hide the others.
//!
//! A test of the program that hangs ends the whole program; what had not ended then is run again without it ([`report`]).
//!
//! Absent on purpose: tests with the client's own mock cluster (`-L`), with issues that the client knows (`-K`: 0028, 0047,
//! 0079), and those that are run by hand (8000, 8001). The quick mode (`-Q`): it runs next to none of the parts of tests.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Brokers, Preparation, Properties, Session, Short, Suite, TestResult};
use report::Verdict;

mod admin;
mod report;

pub use admin::SUITE as ADMIN;

/// What the tests of authorization need of Kafka.
const AUTHORIZER: Properties = &[
    (
        "authorizer.class.name",
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    ),
    ("allow.everyone.if.no.acl.found", "true"),
    ("super.users", "User:ANONYMOUS"),
];

const ONE_BROKER: Properties = &[
    ("broker.rack", "RACK1"),
    (
        "replica.selector.class",
        "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    ),
    // 0113 wants both members in the first generation.
    ("group.initial.rebalance.delay.ms", "3000"),
];

/// Those of a few seconds at most that wait for nothing but the broker.
const SHORT: &[&str] = &[
    "0001_multiobj",
    "0002_unkpart",
    "0003_msgmaxsize",
    "0005_order",
    "0008_reqacks",
    "0012_produce_consume",
    "0013_null_msgs",
    "0014_reconsume_191",
    "0015_offsets_seek",
    "0016_client_swname",
    "0017_compression",
    "0022_consume_batch",
    "0029_assign_offset",
    "0031_get_offsets",
    "0034_offset_reset",
    "0035_api_version",
    "0036_partial_fetch",
    "0041_fetch_max_bytes",
    "0054_offset_time",
    "0059_bsearch",
    "0063_clusterid",
    "0070_null_empty",
    "0073_headers",
    "0085_headers",
    "0090_idempotence",
    "0099_commit_metadata",
    "0112_assign_unknown_part",
];

/// They create topics of three replicas, and are their own suite.
const NEED_THREE_BROKERS: [&str; 3] = ["0098", "0101", "0103"];

const PLAIN: Suite = Suite {
    prepare,
    properties: ONE_BROKER,
    kafka_properties: AUTHORIZER,
    ..Suite::PLAIN
};

/// One broker, classic group protocol.
pub const CLASSIC: Suite = Suite {
    name: "librdkafka",
    about: "librdkafka 2.12.1 test-runner, one broker, classic group protocol",
    exceptions: include_str!("../../../suites/librdkafka.txt"),
    bound: Duration::from_secs(2400),
    at_least: 79,
    short: Short::Only(SHORT),
    short_bound: Duration::from_secs(240),
    run: |session| all_but_clusters(session, &[]),
    ..PLAIN
};

/// One broker, consumer group protocol (KIP-848).
pub const CONSUMER: Suite = Suite {
    name: "librdkafka-consumer",
    about: "librdkafka 2.12.1 test-runner, one broker, consumer group protocol",
    exceptions: include_str!("../../../suites/librdkafka-consumer.txt"),
    bound: Duration::from_secs(2400),
    at_least: 78,
    run: |session| all_but_clusters(session, &[("TEST_CONSUMER_GROUP_PROTOCOL", "consumer")]),
    ..PLAIN
};

/// Bad networks.
pub const SOCKEM: Suite = Suite {
    name: "librdkafka-sockem",
    about: "librdkafka 2.12.1 test-runner, the tests that break connections",
    exceptions: include_str!("../../../suites/librdkafka-sockem.txt"),
    bound: Duration::from_secs(900),
    at_least: 6,
    run: |session| {
        let numbers = ["0049", "0068", "0075", "0076", "0088", "0094"];
        one_by_one(session, &numbers, &["-L", "-K", "-p1"])
    },
    ..PLAIN
};

/// Three brokers.
pub const CLUSTER: Suite = Suite {
    name: "librdkafka-cluster",
    about: "librdkafka 2.12.1 test-runner, the tests that need three brokers",
    exceptions: include_str!("../../../suites/librdkafka-cluster.txt"),
    brokers: Brokers::THREE,
    properties: &[(
        "replica.selector.class",
        "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    )],
    properties_of: |place| vec![("broker.rack".to_owned(), format!("RACK{}", place.id))],
    kafka_properties: &[],
    bound: Duration::from_secs(1500),
    at_least: 3,
    run: |session| one_by_one(session, &NEED_THREE_BROKERS, &["-L", "-E", "-K", "-p1"]),
    ..PLAIN
};

/// Three brokers that create no topics by themselves.
pub const NO_AUTO_CREATE: Suite = Suite {
    name: "librdkafka-noautocreate",
    about: "librdkafka 2.12.1 test-runner, the scenario `noautocreate` on three brokers",
    exceptions: include_str!("../../../suites/librdkafka-noautocreate.txt"),
    brokers: Brokers::THREE,
    properties: &[("auto.create.topics.enable", "false")],
    kafka_properties: &[],
    bound: Duration::from_secs(900),
    at_least: 4,
    run: |session| {
        let flags = ["-L", "-E", "-K", "-p2", "-s", "noautocreate"];
        one_by_one(session, &["0045", "0107", "0111"], &flags)
    },
    ..PLAIN
};

/// The sources of librdkafka, and the version of the crate that carries them.
fn source() -> Result<(PathBuf, String)> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked"])
        .arg("--manifest-path")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .output()
        .context("cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let package = metadata["packages"]
        .as_array()
        .context("no packages")?
        .iter()
        .find(|package| package["name"] == "rdkafka-sys")
        .context("rdkafka-sys is not among the dependencies")?;
    let text = |key: &str| package[key].as_str().with_context(|| format!("no {key}"));
    let manifest = Path::new(text("manifest_path")?);
    let directory = manifest.parent().context("no directory")?;
    Ok((directory.join("librdkafka"), text("version")?.to_owned()))
}

/// Built where it lies: the sources, their objects and the program.
fn prepare(preparation: &Preparation) -> Result<PathBuf> {
    const RECIPE: &str = "ssl zlib zstd rapidjson, no gssapi, no curl; libs, tests, java";
    let (source, version) = source()?;
    let java = crate::kafka::libs()?.join(format!("kafka-clients-{}.jar", crate::kafka::VERSION));
    let name = format!("librdkafka-tests-{version}");
    preparation.directory(&name, RECIPE, |directory| {
        preparation
            .job("cp", directory)
            .arg("-r")
            .arg(format!("{}/.", source.display()))
            .arg(directory.display())
            .succeed()?;
        preparation
            .job("./configure", directory)
            .args(["--disable-gssapi", "--disable-curl", "--disable-lz4-ext"])
            .succeed()?;
        preparation
            .job("make", directory)
            .args(["-j2", "libs"])
            .succeed()?;
        preparation
            .job("make", directory)
            .args(["-j2", "-C", "tests", "build"])
            .succeed()?;
        let sources = [
            "Murmur2Cli",
            "TransactionProducerCli",
            "IncrementalRebalanceCli",
        ];
        preparation
            .job("javac", &directory.join("tests/java"))
            .arg("-classpath")
            .arg(java.display())
            .args(sources.map(|class| format!("{class}.java")))
            .succeed()?;
        Ok(())
    })
}

/// A copy of what the program needs around it, in the session's own directory: it writes there.
fn lay_out(session: &Session) -> Result<PathBuf> {
    let tests = session.work().join("tests");
    if tests.exists() {
        return Ok(tests);
    }
    std::fs::create_dir_all(&tests)?;
    let built = session.prepared();
    for name in ["src", "src-cpp", "mklove", "Makefile.config"] {
        std::os::unix::fs::symlink(built.join(name), session.work().join(name))?;
    }
    for name in [
        "test-runner",
        "Makefile",
        "java",
        "scenarios",
        "fixtures",
        "interceptor_test",
    ] {
        std::os::unix::fs::symlink(built.join("tests").join(name), tests.join(name))?;
    }
    let configuration = format!(
        "metadata.broker.list={}\ntest.topic.random=true\n",
        session.bootstrap()
    );
    std::fs::write(tests.join("test.conf"), configuration)?;
    // What the tests expect of a release of Kafka.
    let kafka = session.work().join("kafka");
    std::fs::create_dir_all(kafka.join("bin"))?;
    std::os::unix::fs::symlink(crate::kafka::libs()?, kafka.join("libs"))?;
    let java = format!(
        "exec java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp \"$CLASSPATH:{}/*\"",
        kafka.join("libs").display()
    );
    for (name, class) in [
        ("kafka-run-class.sh", ""),
        ("kafka-topics.sh", "org.apache.kafka.tools.TopicCommand"),
        ("kafka-acls.sh", "org.apache.kafka.tools.AclCommand"),
    ] {
        let path = kafka.join("bin").join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{java} {class} \"$@\"\n"))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(tests)
}

/// One run of the program: which tests, with which flags and variables, and where its output goes.
struct Launch<'a> {
    log: &'a str,
    numbers: Vec<String>,
    skipped: &'a [&'a str],
    flags: &'a [&'a str],
    environment: &'a [(&'a str, &'a str)],
}

/// Runs the program once; the verdict on each test that it meant to run, and what it printed.
fn launch(session: &Session, launch: &Launch) -> Result<(BTreeMap<String, Verdict>, String)> {
    let tests = lay_out(session)?;
    let report = tests.join("report.json");
    let _ = std::fs::remove_file(&report);
    let mut job = session
        .job(launch.log, "./test-runner")
        .directory(&tests)
        .args(launch.flags.iter())
        .env("LD_LIBRARY_PATH", "../src:../src-cpp")
        .env("RDKAFKA_TEST_CONF", "test.conf")
        .env("TEST_KAFKA_VERSION", format!("{}.0", crate::kafka::VERSION))
        .env("TEST_REPORT", "report.json")
        .env("CI", "true")
        .env("BROKERS", session.bootstrap())
        .env("KAFKA_PATH", session.work().join("kafka").display())
        .env("TESTS_SKIP", launch.skipped.join(","));
    if !launch.numbers.is_empty() {
        job = job.env("TESTS", launch.numbers.join(","));
    }
    for (key, value) in launch.environment {
        job = job.env(key, value);
    }
    let finished = job.run()?;
    let report = std::fs::read_to_string(&report).unwrap_or_default();
    Ok((report::verdicts(&report, &finished.output), finished.output))
}

/// The number in a test's name, by which the program selects.
fn number(test: &str) -> String {
    test.split('_').next().unwrap_or(test).to_owned()
}

/// Runs the program until every test has a verdict; tests that hang do not take others with them.
fn until_judged(session: &Session, first: &Launch) -> Result<Vec<TestResult>> {
    let mut settled: BTreeMap<String, TestResult> = BTreeMap::new();
    let mut numbers = first.numbers.clone();
    for round in 1.. {
        let log = match round {
            1 => first.log.to_owned(),
            _ => format!("{}-{round}", first.log),
        };
        let before = settled.len();
        let mut open = BTreeMap::new();
        let next = Launch {
            log: &log,
            numbers,
            ..*first
        };
        for (name, verdict) in launch(session, &next)?.0 {
            match verdict {
                Verdict::Settled(result) => {
                    settled.entry(name).or_insert(result);
                }
                Verdict::Open(why) => {
                    open.insert(name, why);
                }
            }
        }
        open.retain(|name, _| !settled.contains_key(name));
        numbers = open.keys().map(|name| number(name)).collect();
        numbers.dedup();
        if settled.len() == before || session.left().is_zero() {
            for (name, why) in open {
                settled.insert(name.clone(), TestResult::failed(name, why));
            }
            break;
        }
        if numbers.is_empty() {
            break;
        }
    }
    Ok(settled.into_values().collect())
}

/// The numbers of the tests that are asked for; nothing for all.
fn asked_for(session: &Session) -> Vec<String> {
    let mut numbers: Vec<String> = session
        .only()
        .unwrap_or_default()
        .iter()
        .map(|name| number(name))
        .collect();
    numbers.sort();
    numbers.dedup();
    numbers
}

fn all_but_clusters(session: &Session, environment: &[(&str, &str)]) -> Result<Vec<TestResult>> {
    let mut skipped: Vec<String> = NEED_THREE_BROKERS.map(str::to_owned).to_vec();
    skipped.extend(session.excluded().map(number));
    let skipped: Vec<&str> = skipped.iter().map(String::as_str).collect();
    until_judged(
        session,
        &Launch {
            log: "test-runner",
            numbers: asked_for(session),
            skipped: &skipped,
            flags: &["-L", "-E", "-K", "-p6"],
            environment,
        },
    )
}

/// Each of these in a run of its own.
fn one_by_one(session: &Session, numbers: &[&str], flags: &[&str]) -> Result<Vec<TestResult>> {
    let asked = asked_for(session);
    let mut results = Vec::new();
    for &number in numbers {
        if !asked.is_empty() && !asked.iter().any(|one| one == number) {
            continue;
        }
        results.extend(until_judged(
            session,
            &Launch {
                log: &format!("test-runner-{number}"),
                numbers: vec![number.to_owned()],
                skipped: &[],
                flags,
                environment: &[],
            },
        )?);
    }
    Ok(results)
}
