//! node-rdkafka's end-to-end tests, with the librdkafka that its package carries.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Preparation, Session, Suite, TestResult};

/// The suite.
pub const SUITE: Suite = Suite {
    name: "node-rdkafka",
    about: "node-rdkafka 3.6.1 end-to-end tests (librdkafka 2.12.0)",
    exceptions: include_str!("../../suites/node-rdkafka.txt"),
    // Its transactions rely on the order across a topic that is created by itself.
    properties: &[("num.partitions", "1")],
    topics: &[
        ("test", 1),
        ("test2", 1),
        ("test3", 1),
        ("test4", 1),
        ("test5", 1),
        ("test6", 1),
    ],
    bound: Duration::from_secs(900),
    at_least: 60,
    prepare,
    run,
    ..Suite::PLAIN
};

const PACKAGE: &str = "node-rdkafka@3.6.1";
const TOOLS: [&str; 2] = ["mocha@10.8.2", "node-gyp@11.5.0"];
/// How long one file of tests may take.
const FILE_BOUND: Duration = Duration::from_secs(300);

const FILES: [&str; 6] = [
    "admin",
    "both",
    "consumer",
    "groups",
    "producer",
    "producer-transaction",
];

fn prepare(preparation: &Preparation) -> Result<PathBuf> {
    let recipe = format!(
        "{PACKAGE} {} for {}",
        TOOLS.join(" "),
        node_version(preparation)?
    );
    preparation.directory(&PACKAGE.replace('@', "-"), &recipe, |directory| {
        let packed = preparation
            .job("npm", directory)
            .args(["pack", "--silent", PACKAGE])
            .succeed()?;
        let archive = packed.lines().last().context("npm packed nothing")?;
        preparation
            .job("tar", directory)
            .args(["xzf", archive, "--strip-components=1"])
            .succeed()?;
        // Its own tools for developers are many, and these two of them are used.
        preparation
            .job("npm", directory)
            .args(["pkg", "delete", "devDependencies", "scripts"])
            .succeed()?;
        preparation
            .job("npm", directory)
            .args(["install", "--ignore-scripts"])
            .args(["--no-audit", "--no-fund"])
            .args(TOOLS)
            .succeed()?;
        // One after the other: its makefiles do not say what librdkafka's configuration makes.
        let mut build = preparation
            .job("node_modules/.bin/node-gyp", directory)
            .arg("rebuild");
        if let Some(headers) = headers(preparation)? {
            build = build.arg(format!("--nodedir={}", headers.display()));
        }
        build.succeed().map(drop)
    })
}

fn node_version(preparation: &Preparation) -> Result<String> {
    let job = preparation.job("node", Path::new("/"));
    Ok(job.arg("--version").succeed()?.trim().to_owned())
}

/// Where the interpreter's own headers are, if it came with them.
fn headers(preparation: &Preparation) -> Result<Option<PathBuf>> {
    let job = preparation.job("node", Path::new("/"));
    let program = job.args(["-p", "process.execPath"]).succeed()?;
    let prefix = Path::new(program.trim()).parent().and_then(Path::parent);
    let prefix = prefix.context("node is nowhere")?;
    Ok(prefix
        .join("include/node/node.h")
        .exists()
        .then(|| prefix.to_owned()))
}

fn run(session: &Session) -> Result<Vec<TestResult>> {
    let mut results = Vec::new();
    for file in FILES {
        let asked = session
            .only()
            .is_none_or(|only| only.iter().any(|name| in_file(name, file)));
        if asked {
            results.extend(one(session, file)?);
        }
    }
    Ok(results)
}

fn in_file(name: &str, file: &str) -> bool {
    name.strip_prefix(file)
        .is_some_and(|rest| rest.starts_with(": "))
}

fn one(session: &Session, file: &str) -> Result<Vec<TestResult>> {
    let report = session.work().join(format!("{file}.json"));
    let finished = session
        .job(file, "node_modules/.bin/mocha")
        .directory(session.prepared())
        .args(["--exit", "--timeout", "120000", "--ui", "bdd"])
        .args(["--reporter", "json", "--reporter-option"])
        .arg(format!("output={}", report.display()))
        .arg(format!("e2e/{file}.spec.js"))
        .env("KAFKA_HOST", session.bootstrap())
        .bound(FILE_BOUND)
        .run()?;
    match std::fs::read_to_string(&report) {
        Ok(text) => results(file, &text),
        // It reports at its end only.
        Err(_) => Ok(vec![TestResult::failed(
            format!("{file}: (no report)"),
            format!("{}\n{}", finished.verdict(), finished.tail()),
        )]),
    }
}

/// Reads what mocha's reporter `json` wrote about one file.
fn results(file: &str, report: &str) -> Result<Vec<TestResult>> {
    let report: Value = serde_json::from_str(report).context("mocha's report")?;
    let mut all: Vec<TestResult> = Vec::new();
    for (list, skipped, failed) in [
        ("passes", false, false),
        ("failures", false, true),
        ("pending", true, false),
    ] {
        for test in report[list].as_array().context("a report without lists")? {
            let title = test["fullTitle"].as_str().context("a test without title")?;
            // Titles come twice, and some have blanks at their ends.
            let words: Vec<&str> = title.split_whitespace().collect();
            let name = format!("{file}: {}", words.join(" "));
            let detail = || {
                let error = &test["err"];
                let text = error["stack"].as_str().or(error["message"].as_str());
                text.unwrap_or_default().to_owned()
            };
            all.push(match (failed, skipped) {
                (true, _) => TestResult::failed(name, detail()),
                (_, true) => TestResult::skipped(name, ""),
                _ => TestResult::passed(name),
            });
        }
    }
    Ok(numbered(all))
}

/// Tests of one name are told apart by a number.
fn numbered(mut all: Vec<TestResult>) -> Vec<TestResult> {
    for index in 0..all.len() {
        let same = all[..index]
            .iter()
            .filter(|other| other.name == all[index].name)
            .count();
        if same > 0 {
            all[index].name = format!("{} ({})", all[index].name, same + 1);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_mocha_is_read() {
        let report = r#"{
            "stats": {},
            "tests": [],
            "passes": [{"fullTitle": "Producer  should be fast ", "err": {}}, {"fullTitle": "Producer twice", "err": {}}],
            "failures": [{"fullTitle": "Producer twice", "err": {"message": "m", "stack": "m\n at x"}}],
            "pending": [{"fullTitle": "Producer later", "err": {}}]
        }"#;
        let all = results("producer", report).unwrap();
        assert_eq!(
            all,
            [
                TestResult::passed("producer: Producer should be fast"),
                TestResult::passed("producer: Producer twice"),
                TestResult::failed("producer: Producer twice (2)", "m\n at x"),
                TestResult::skipped("producer: Producer later", ""),
            ]
        );
    }

    #[test]
    fn a_name_tells_its_file() {
        assert!(in_file("producer: Producer twice", "producer"));
        assert!(!in_file("producer-transaction: x", "producer"));
    }
}
