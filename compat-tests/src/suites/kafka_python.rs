//! kafka-python, the Python client: its integration tests, from its source distribution.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Brokers, Outcome, Preparation, Session, Short, Suite, TestResult};

const VERSION: &str = "3.0.12";
const NEEDED: &[&str] = &[
    "pytest>=8,<10",
    "pytest-timeout>=2,<3",
    "pytest-mock>=3,<4",
    "lz4>=4,<5",
    "zstandard<1",
    "python-snappy<1",
    "crc32c>=2,<3",
];
/// The tests' own module of services is not in the distribution; with a broker from outside none of it is used but names.
const SERVICES: &str = "\
class ExternalService:
    def __init__(self, host, port): pass
    def open(self): pass
    def close(self): pass
    stop = close
class SpawnedService: pass
";
/// Those that wait for nothing but the broker, and subscribe to nothing (see `test_kafka_consumer` in the list of exceptions).
const SHORT: &[&str] = &[
    "test/integration/test_admin_integration.py::test_create_delete_topics",
    "test/integration/test_admin_integration.py::test_create_partitions",
    "test/integration/test_admin_integration.py::test_delete_records",
    "test/integration/test_admin_integration.py::test_delete_records_with_errors",
    "test/integration/test_admin_integration.py::test_describe_configs_mixed_resources_returns_configs",
    "test/integration/test_admin_integration.py::test_describe_log_dirs",
    "test/integration/test_admin_integration.py::test_describe_metadata_quorum",
    "test/integration/test_admin_integration.py::test_describe_topic_partitions_pagination",
    "test/integration/test_admin_integration.py::test_elect_leaders",
    "test/integration/test_admin_integration.py::test_list_config_resources",
    "test/integration/test_admin_integration.py::test_list_partition_offsets",
    "test/integration/test_consumer_integration.py::test_kafka_version_infer",
    "test/integration/test_producer_integration.py::test_idempotent_producer",
    "test/integration/test_producer_integration.py::test_kafka_producer_proper_record_metadata[None]",
    "test/integration/test_producer_integration.py::test_kafka_producer_proper_record_metadata[gzip]",
    "test/integration/test_producer_integration.py::test_kafka_producer_proper_record_metadata[lz4]",
    "test/integration/test_producer_integration.py::test_kafka_producer_proper_record_metadata[snappy]",
    "test/integration/test_producer_integration.py::test_kafka_producer_proper_record_metadata[zstd]",
];
/// Writes what becomes of each test.
const REPORTER: &str = include_str!("kafka_python/outcome_report.py");

/// The suite.
pub const SUITE: Suite = Suite {
    name: "kafka-python",
    about: "kafka-python 3.0.12, test/integration",
    exceptions: include_str!("../../suites/kafka-python.txt"),
    // A test assigns replicas to broker 0.
    brokers: Brokers {
        count: 1,
        first_id: 0,
    },
    properties: &[("group.min.session.timeout.ms", "3000")],
    kafka_properties: &[
        (
            "authorizer.class.name",
            "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        ),
        ("allow.everyone.if.no.acl.found", "true"),
    ],
    bound: Duration::from_secs(300),
    at_least: 53,
    short: Short::Only(SHORT),
    short_bound: Duration::from_secs(90),
    prepare,
    run,
    ..Suite::PLAIN
};

fn prepare(preparation: &Preparation) -> Result<PathBuf> {
    let recipe = format!("{VERSION} {NEEDED:?} {SERVICES}");
    preparation.directory(&format!("kafka-python-{VERSION}"), &recipe, |directory| {
        let run = |program: PathBuf, arguments: &[&str]| {
            preparation
                .job(program, directory)
                .args(arguments)
                .succeed()
        };
        let package = format!("kafka-python=={VERSION}");
        run("python3".into(), &["-m", "venv", "venv"])?;
        let python = directory.join("venv/bin/python");
        let download = [
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary=:all:",
        ];
        run(
            python.clone(),
            &[&download[..], &[package.as_str()]].concat(),
        )?;
        let archive = format!("kafka_python-{VERSION}.tar.gz");
        run("tar".into(), &["-xzf", &archive])?;
        let source = directory.join("source");
        std::fs::rename(directory.join(format!("kafka_python-{VERSION}")), &source)?;
        std::fs::write(source.join("test/__init__.py"), "")?;
        std::fs::write(source.join("test/service.py"), SERVICES)?;
        let install = ["-m", "pip", "install", "--quiet", "./source"];
        run(python, &[&install[..], NEEDED].concat())?;
        Ok(())
    })
}

fn run(session: &Session) -> Result<Vec<TestResult>> {
    session.write("outcome_report.py", REPORTER)?;
    let report = session.work().join("report.jsonl");
    let mut job = session
        .job("pytest", session.prepared().join("venv/bin/python"))
        .directory(&session.prepared().join("source"))
        .env("PYTHONPATH", session.work().display())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("REPORT", report.display())
        // Only looked at; nothing is started from there.
        .env("KAFKA_ROOT", session.work().display())
        // The newest version that its conditions know.
        .env("KAFKA_VERSION", "4.3.0")
        .env("KAFKA_URI", format!("kafka://{}", session.bootstrap()))
        .args(["-m", "pytest", "-q", "-o", "addopts=", "--tb=short"])
        .args([
            "-p",
            "no:logging",
            "-p",
            "no:cacheprovider",
            "-p",
            "outcome_report",
        ])
        .arg("--timeout=60");
    for name in session.excluded() {
        job = job.arg(format!("--deselect={name}"));
    }
    job = match session.only() {
        Some(names) => job.args(names),
        None => job.args([
            "test/integration",
            "--ignore=test/integration/test_ssl_integration.py",
        ]),
    };
    let finished = job.run()?;
    let lines = std::fs::read_to_string(&report).unwrap_or_default();
    let results = read(&lines)?;
    ensure!(
        !results.is_empty(),
        "pytest {} and reported no test:\n{}",
        finished.verdict(),
        finished.tail()
    );
    Ok(results)
}

/// What the reporter wrote. A test that began and did not end has failed; so has one whose teardown failed.
fn read(lines: &str) -> Result<Vec<TestResult>> {
    let mut results: BTreeMap<String, TestResult> = BTreeMap::new();
    for line in lines.lines() {
        let (name, outcome, detail): (String, String, String) =
            serde_json::from_str(line).with_context(|| format!("{line:?} is no report"))?;
        let result = match outcome.as_str() {
            "passed" => TestResult::passed(name.clone()),
            "skipped" => TestResult::skipped(name.clone(), detail),
            "begun" => TestResult::failed(name.clone(), "did not end"),
            _ => TestResult::failed(name.clone(), detail),
        };
        let before = results.get(&name);
        let failed =
            before.is_some_and(|r| r.outcome == Outcome::Failed && r.detail != "did not end");
        if !failed {
            results.insert(name, result);
        }
    }
    Ok(results.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_reporter_writes_is_read() {
        let lines = "[\"a\",\"begun\",\"\"]\n[\"b\",\"begun\",\"\"]\n[\"c\",\"begun\",\"\"]\n[\"d\",\"begun\",\"\"]\n\
            [\"a\",\"passed\",\"\"]\n[\"b\",\"skipped\",\"no SASL\"]\n[\"c\",\"passed\",\"\"]\n[\"c\",\"failed\",\"teardown\"]\n";
        assert_eq!(
            read(lines).unwrap(),
            [
                TestResult::passed("a"),
                TestResult::skipped("b", "no SASL"),
                TestResult::failed("c", "teardown"),
                TestResult::failed("d", "did not end"),
            ]
        );
    }
}
