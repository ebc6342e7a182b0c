//! Suites that are tests of a Rust crate: the crate from its registry, its test programs, and what these print.
//!
//! A result is named `PROGRAM::TEST`, where the program is the target's name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Finished, Outcome, Preparation, Session, TestResult};

/// Names and paths of the test programs, one a line.
const PROGRAMS: &str = "programs";

/// A crate whose tests are a suite.
pub struct Crate {
    /// Its name,
    pub name: &'static str,
    /// and its version.
    pub version: &'static str,
    /// Dependencies whose locked version does not build any more.
    pub update: &'static [&'static str],
    /// Arguments of `cargo test` that choose features and targets.
    pub targets: &'static [&'static str],
}

/// Fetches the crate and builds its tests: the directory of the prepared suite, with the crate in `source`.
pub fn prepare(preparation: &Preparation, tests: &Crate) -> Result<PathBuf> {
    let Crate {
        name,
        version,
        update,
        targets,
    } = tests;
    let recipe = format!("{name} {version} {update:?} {targets:?}");
    preparation.directory(&format!("{name}-{version}"), &recipe, |directory| {
        let source = directory.join("source");
        copy_crate(preparation, directory, tests, &source)?;
        let cargo = || preparation.job("cargo", &source);
        for package in *update {
            cargo().args(["update", "-p", package]).succeed()?;
        }
        let built = cargo()
            .args(["test", "--no-run", "--message-format=json"])
            .arg("--target-dir")
            .arg(directory.join("target").display())
            .args(*targets)
            .succeed()?;
        let programs = programs_in(&built);
        ensure!(!programs.is_empty(), "no test program was built");
        let lines: String = programs
            .iter()
            .map(|(name, path)| format!("{name}\t{path}\n"))
            .collect();
        Ok(std::fs::write(directory.join(PROGRAMS), lines)?)
    })
}

/// Copies a crate out of cargo's cache, into which it is fetched as the dependency of an empty package.
fn copy_crate(preparation: &Preparation, directory: &Path, tests: &Crate, to: &Path) -> Result<()> {
    let fetch = directory.join("fetch");
    std::fs::create_dir_all(&fetch)?;
    std::fs::write(fetch.join("lib.rs"), "")?;
    std::fs::write(
        fetch.join("Cargo.toml"),
        format!(
            "[package]\nname = \"fetch\"\nedition = \"2021\"\n[lib]\npath = \"lib.rs\"\n[workspace]\n\
             [dependencies]\n{} = \"={}\"\n",
            tests.name, tests.version
        ),
    )?;
    let answer = preparation
        .job("cargo", &fetch)
        .args(["metadata", "--format-version", "1", "--quiet"])
        .succeed()?;
    let metadata = answer.lines().find(|line| line.starts_with('{'));
    let metadata: Value = serde_json::from_str(metadata.context("no metadata")?)?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let manifest = packages
        .iter()
        .find(|package| package["name"] == tests.name)
        .and_then(|package| package["manifest_path"].as_str())
        .context("the crate was not fetched")?;
    let from = Path::new(manifest).parent().context("no directory")?;
    preparation
        .job("cp", directory)
        .args(["-r", &from.display().to_string(), &to.display().to_string()])
        .succeed()?;
    // It names a compiler that need not be there.
    let toolchain = to.join("rust-toolchain.toml");
    if toolchain.exists() {
        std::fs::remove_file(toolchain)?;
    }
    Ok(())
}

/// Test programs that cargo says it has built, by the names of their targets.
fn programs_in(messages: &str) -> BTreeMap<String, String> {
    messages
        .lines()
        .filter(|line| line.starts_with('{'))
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["profile"]["test"] == true)
        .filter_map(|message| {
            let name = message["target"]["name"].as_str()?.to_owned();
            Some((name, message["executable"].as_str()?.to_owned()))
        })
        .collect()
}

/// Runs the tests that are wanted, program by program.
pub fn run(session: &Session, environment: &[(&str, &str)]) -> Result<Vec<TestResult>> {
    let mut results = Vec::new();
    for line in std::fs::read_to_string(session.prepared().join(PROGRAMS))?.lines() {
        let (name, path) = line.split_once('\t').context("a program without a path")?;
        results.extend(run_program(session, name, path, environment)?);
    }
    Ok(results)
}

fn run_program(
    session: &Session,
    name: &str,
    path: &str,
    environment: &[(&str, &str)],
) -> Result<Vec<TestResult>> {
    let source = session.prepared().join("source");
    let job = |log: &str| session.job(log, path).directory(&source);
    let listed = job(&format!("{name}-list"))
        .args(["--list", "--format", "terse"])
        .succeed()?;
    let tests: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .filter(|test| session.wants(&format!("{name}::{test}")))
        .collect();
    if tests.is_empty() {
        return Ok(Vec::new());
    }
    let mut job = job(name).arg("--exact").args(&tests);
    for (key, value) in environment {
        job = job.env(key, value);
    }
    let finished = job.run()?;
    Ok(read(name, &tests, &finished))
}

/// What became of these tests. One of which nothing is said did not end.
fn read(program: &str, tests: &[&str], finished: &Finished) -> Vec<TestResult> {
    let said = outcomes(&finished.output);
    tests
        .iter()
        .map(|&test| {
            let name = format!("{program}::{test}");
            match said.get(test) {
                Some(Outcome::Passed) => TestResult::passed(name),
                Some(Outcome::Skipped) => TestResult::skipped(name, "ignored"),
                Some(Outcome::Failed) => {
                    TestResult::failed(name, printed_by(test, &finished.output))
                }
                None => TestResult::failed(
                    name,
                    format!(
                        "did not end; the program {}\n{}",
                        finished.verdict(),
                        finished.tail()
                    ),
                ),
            }
        })
        .collect()
}

/// `test NAME ... ok` and the like, wherever in a line: what a test's own threads print comes in between.
fn outcomes(output: &str) -> BTreeMap<&str, Outcome> {
    let mut outcomes = BTreeMap::new();
    for line in output.lines() {
        let Some((left, verdict)) = line.rsplit_once(" ... ") else {
            continue;
        };
        let Some((_, name)) = left.rsplit_once("test ") else {
            continue;
        };
        let outcome = match verdict.split([',', ' ']).next() {
            Some("ok") => Outcome::Passed,
            Some("FAILED") => Outcome::Failed,
            Some("ignored") => Outcome::Skipped,
            _ => continue,
        };
        let name = name.strip_suffix(" - should panic").unwrap_or(name);
        outcomes.insert(name, outcome);
    }
    outcomes
}

/// What a failed test printed, as the framework repeats it at the end.
fn printed_by(test: &str, output: &str) -> String {
    let header = format!("---- {test} stdout ----");
    output
        .lines()
        .skip_while(|line| *line != header)
        .skip(1)
        .take_while(|line| !line.starts_with("---- ") && *line != "failures:")
        .fold(String::new(), |text, line| text + line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
running 5 tests
test a::b ... ok
%3|log of a thread|test c ... FAILED
test d ... ignored, wants TLS
test e - should panic ... ok

failures:

---- c stdout ----
thread 'c' panicked at x.rs:1:2:
why

---- f stdout ----
other
";

    #[test]
    fn outcomes_are_found_between_other_output() {
        let found: Vec<(&str, Outcome)> = outcomes(OUTPUT).into_iter().collect();
        assert_eq!(
            found,
            [
                ("a::b", Outcome::Passed),
                ("c", Outcome::Failed),
                ("d", Outcome::Skipped),
                ("e", Outcome::Passed),
            ]
        );
    }

    #[test]
    fn what_a_failed_test_printed_is_told() {
        assert_eq!(
            printed_by("c", OUTPUT),
            "thread 'c' panicked at x.rs:1:2:\nwhy\n\n"
        );
    }

    #[test]
    fn only_test_programs_are_programs() {
        let messages = "warning: x\n\
            {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"client\"},\"profile\":{\"test\":true},\"executable\":\"/t/client-1\"}\n\
            {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"lib\"},\"profile\":{\"test\":false},\"executable\":null}\n";
        let programs: Vec<_> = programs_in(messages).into_iter().collect();
        assert_eq!(programs, [("client".to_owned(), "/t/client-1".to_owned())]);
    }
}
