//! Reads what `test-runner` says about its tests: its report, and marks in its output where the report is not enough.
//!
//! The report is written at the end, also if the program ends itself because a test hung, but not if it is killed. The
//! marks ("Running test NAME", "Test NAME PASSED") are written whole, whatever other threads print; other lines may be torn.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::suites::TestResult;

/// So many lines after the one that names the failure are told.
const TOLD_LINES: usize = 2;

/// What is known about a test after a run of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passed, failed or skipped itself.
    Settled(TestResult),
    /// The program ended before it did; it may be run again. Says what is known.
    Open(String),
}

/// The verdicts on the tests that the program meant to run, by their names: without those that its arguments left out.
pub fn verdicts(report: &str, output: &str) -> BTreeMap<String, Verdict> {
    let lines: Vec<String> = output.lines().map(without_colours).collect();
    let begun = marked(&lines, "Running test ", " =");
    let passed = marked(&lines, "= Test ", " PASSED");
    let mut all = BTreeMap::new();
    let report: Value = serde_json::from_str(report).unwrap_or_default();
    if let Some(tests) = report["tests"].as_object() {
        for (name, test) in tests.iter().filter(|(name, _)| *name != "<MAIN>") {
            let settled = match test["state"].as_str() {
                Some("PASSED") => TestResult::passed(name),
                Some("FAILED") => TestResult::failed(name, failure(&lines, name)),
                // It skipped itself; what the arguments left out never ran.
                Some("SKIPPED") if begun.contains(name) => {
                    TestResult::skipped(name, skip(&lines, name))
                }
                Some("SKIPPED") => continue,
                _ => {
                    let why = "the program ended before this test did";
                    all.insert(name.clone(), Verdict::Open(why.to_owned()));
                    continue;
                }
            };
            all.insert(name.clone(), Verdict::Settled(settled));
        }
        return all;
    }
    // It was killed.
    for name in begun {
        let failure = failure(&lines, &name);
        let verdict = if passed.contains(&name) {
            Verdict::Settled(TestResult::passed(&name))
        } else if failure.is_empty() {
            Verdict::Open("it did not end in time".to_owned())
        } else {
            Verdict::Settled(TestResult::failed(&name, failure))
        };
        all.insert(name, verdict);
    }
    all
}

/// The words between two marks of a line.
fn marked(lines: &[String], before: &str, after: &str) -> BTreeSet<String> {
    let rest = lines.iter().filter_map(|line| line.split_once(before));
    rest.filter_map(|(_, rest)| rest.split_once(after))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// What the program says where the test fails; nothing if it says nothing.
fn failure(lines: &[String], name: &str) -> String {
    let (alone, part) = (format!("Test \"{name}\""), format!("Test \"{name} ("));
    let at = lines.iter().position(|line| {
        line.starts_with("###") && (line.contains(&alone) || line.contains(&part))
    });
    at.map_or_else(String::new, |at| {
        let end = lines.len().min(at + 1 + TOLD_LINES);
        lines[at..end].join("\n")
    })
}

fn skip(lines: &[String], name: &str) -> String {
    let start = format!("[{name} ");
    let line = lines
        .iter()
        .find(|line| line.starts_with(&start) && line.contains("SKIPPING TEST"));
    line.cloned().unwrap_or_default()
}

fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            characters.find(char::is_ascii_alphabetic);
        } else {
            plain.push(character);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
\u{1b}[36m[0001_multiobj               /  0.000s] ================= Running test 0001_multiobj =================
\u{1b}[0m\u{1b}[36m[0002_unkpart                /  0.000s] ================= Running test 0002_unkpart =================
\u{1b}[0m\u{1b}[36m[0055_producer_latency       /  0.000s] ================= Running test 0055_producer_latency =================
\u{1b}[0m\u{1b}[33m[0055_producer_latency       /  0.000s] WARN: SKIPPING TEST: not on CI
\u{1b}[0m\u{1b}[36m[0099_hangs                  /  0.000s] ================= Running test 0099_hangs =================
\u{1b}[0m\u{1b}[36m[0001_multiobj               /  3.118s] \u{1b}[32m================= Test 0001_multiobj PASSED =================\u{1b}[0m
\u{1b}[0m\u{1b}[36m[0002_unkpart                /  9.000s] TEST FAILURE
\u{1b}[0m\u{1b}[31m### Test \"0002_unkpart (do_test:12)\" failed at 0002-unkpart.c:12:do_test() at now: ###
expected 1, not 2
more
";

    const REPORT: &str = r#"{"tests": {"<MAIN>": {"state": "PASSED"}, "0000_unittests": {"state": "SKIPPED"},
        "0001_multiobj": {"state": "PASSED"}, "0002_unkpart": {"state": "FAILED"},
        "0055_producer_latency": {"state": "SKIPPED"}, "0099_hangs": {"state": "RUNNING"},
        "0100_later": {"state": "DNS"}}}"#;

    fn shown(all: &BTreeMap<String, Verdict>) -> Vec<String> {
        all.iter()
            .map(|(name, verdict)| match verdict {
                Verdict::Settled(result) => format!("{name} {}", result.outcome.name()),
                Verdict::Open(_) => format!("{name} open"),
            })
            .collect()
    }

    #[test]
    fn a_report_tells_which_tests_ran_and_which_are_open() {
        let all = verdicts(REPORT, OUTPUT);
        assert_eq!(
            shown(&all),
            [
                "0001_multiobj passed",
                "0002_unkpart failed",
                "0055_producer_latency skipped",
                "0099_hangs open",
                "0100_later open"
            ]
        );
        let Verdict::Settled(failed) = &all["0002_unkpart"] else {
            panic!("open");
        };
        assert!(failed.detail.contains("expected 1, not 2"), "{failed:?}");
        let Verdict::Settled(skipped) = &all["0055_producer_latency"] else {
            panic!("open");
        };
        assert!(skipped.detail.contains("not on CI"), "{skipped:?}");
    }

    #[test]
    fn without_a_report_the_output_tells() {
        assert_eq!(
            shown(&verdicts("", OUTPUT)),
            [
                "0001_multiobj passed",
                "0002_unkpart failed",
                "0055_producer_latency open",
                "0099_hangs open"
            ]
        );
    }
}
