//! Tools of Apache Kafka's own distribution, as a user runs them after an upgrade: what they say has to be right in itself.
//!
//! Every tool is compared with Kafka, text by text, in `tests/suite/tools_side_by_side.rs`. What is here sees what no other
//! client in the runner looks at: the finalized features, which are optional fields (tags) of ApiVersions.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Session, Short, Suite, own};
use crate::kafka::{FEATURES, VERIFIABLE_CONSUMER, VERIFIABLE_PRODUCER, libs, records_consumed};

/// The suite.
pub const SUITE: Suite = Suite {
    name: "kafka-tools",
    about: "Apache Kafka 4.4.0: features, verifiable producer and consumer",
    exceptions: include_str!("../../suites/kafka-tools.txt"),
    bound: Duration::from_secs(180),
    at_least: 2,
    short: Short::Everything,
    prepare: |_| {
        libs()?;
        Ok(PathBuf::new())
    },
    run: |session| Ok(own::run(session, &TESTS)),
    ..Suite::PLAIN
};

const TESTS: [own::Test; 2] = [
    ("features", features),
    ("verifiable producer and consumer", verifiable),
];

/// Features without which clients fall back to older ways, and the levels that they have in a new cluster.
const FINALIZED: [(&str, &str); 2] = [("group.version", "1"), ("transaction.version", "2")];
const RECORDS: i64 = 500;

fn features(session: &Session) -> Result<()> {
    let bootstrap = session.bootstrap();
    let said = FEATURES.succeed(&["--bootstrap-server", &bootstrap, "describe"], "")?;
    let levels = finalized(&said);
    for (feature, level) in FINALIZED {
        ensure!(levels.get(feature) == Some(&level), "{feature}:\n{said}");
    }
    Ok(())
}

/// Each feature that is listed, with its finalized level.
fn finalized(said: &str) -> BTreeMap<&str, &str> {
    let after = |line: &'_ str, title: &str| -> Option<usize> {
        line.find(title).map(|at| at + title.len())
    };
    said.lines()
        .filter_map(|line| {
            let feature = line.get(after(line, "Feature: ")?..)?;
            let level = line.get(after(line, "FinalizedVersionLevel: ")?..)?;
            Some((
                feature.split_whitespace().next()?,
                level.split_whitespace().next()?,
            ))
        })
        .collect()
}

fn verifiable(session: &Session) -> Result<()> {
    let bootstrap = session.bootstrap();
    let records = RECORDS.to_string();
    let common = ["--bootstrap-server", &bootstrap, "--topic", "verifiable"];
    let produced = VERIFIABLE_PRODUCER.succeed(
        &[&common[..], &["--max-messages", &records, "--acks", "-1"]].concat(),
        "",
    )?;
    let sum = produced
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find(|line| line["name"] == "tool_data")
        .context("the producer did not sum up")?;
    ensure!(sum["acked"] == RECORDS, "{sum}");
    let options = ["--group-id", "verifiable", "--max-messages", &records];
    let consumed = VERIFIABLE_CONSUMER.succeed(
        &[&common[..], &options[..], &["--reset-policy", "earliest"]].concat(),
        "",
    )?;
    ensure!(records_consumed(&consumed) == RECORDS, "{consumed}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finalized_levels_are_read() {
        let said = "Feature: group.version\tSupportedMinVersion: 0\tSupportedMaxVersion: 1\tFinalizedVersionLevel: 1\tEpoch: 7\n\
                    warning\n\
                    Feature: x.version\tSupportedMinVersion: 0\tSupportedMaxVersion: 1\tFinalizedVersionLevel: 0\tEpoch: 7\n";
        let found: Vec<_> = finalized(said).into_iter().collect();
        assert_eq!(found, [("group.version", "1"), ("x.version", "0")]);
    }
}
