//! Suites that are written in Go: a module from Go's proxy, its test binaries, and what these print.
//!
//! A result is named as Go names it, `TestX/subtest`. Each test without subtests is a result, and so is a test whose
//! subtests do not explain how it ended: one that failed although none of them did, or was skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Finished, Outcome, Preparation, Session, TestResult};

/// So much of what a test printed is kept.
const DETAIL_BYTES: usize = 4 * 1024;
/// What begins a line of the test framework rather than of a test (`-test.v=test2json`).
const MARK: char = '\u{16}';

/// A package of a module, and the tests of it that are meant.
pub struct Package {
    /// Its directory within the module.
    pub directory: &'static str,
    /// What the names of its results begin with.
    pub prefix: &'static str,
}

impl Package {
    /// One whose results are named as they are.
    pub const fn at(directory: &'static str) -> Self {
        Self {
            directory,
            prefix: "",
        }
    }

    fn binary(&self) -> String {
        match self.directory {
            "." => "root.test".to_owned(),
            directory => format!("{}.test", directory.replace('/', "-")),
        }
    }
}

/// Fetches `module@version` and builds the tests of its packages with `flags`: the directory of the prepared suite, with the
/// module in `source`.
pub fn prepare(
    preparation: &Preparation,
    (name, module, version): (&str, &str, &str),
    flags: &[&str],
    packages: &[Package],
) -> Result<PathBuf> {
    let binaries: Vec<String> = packages.iter().map(Package::binary).collect();
    let recipe = format!("{module}@{version} {flags:?} {binaries:?}");
    preparation.directory(&format!("{name}-{version}"), &recipe, |directory| {
        let source = directory.join("source");
        copy_module(preparation, directory, module, version, &source)?;
        preparation
            .job("go", &source)
            .args(["mod", "tidy"])
            .succeed()?;
        for package in packages {
            preparation
                .job("go", &source)
                .args(["test", "-c", "-vet=off", "-o"])
                .arg(directory.join(package.binary()).display())
                .args(flags)
                .arg(format!("./{}", package.directory))
                .succeed()?;
        }
        Ok(())
    })
}

/// Copies a module out of Go's cache of modules, into which it is fetched.
pub fn copy_module(
    preparation: &Preparation,
    directory: &Path,
    module: &str,
    version: &str,
    to: &Path,
) -> Result<()> {
    let answer = preparation
        .job("go", directory)
        .args(["mod", "download", "-json"])
        .arg(format!("{module}@{version}"))
        .succeed()?;
    // Go says what it fetches before it answers.
    let json = answer.find('{').and_then(|start| answer.get(start..));
    let fetched: Value = serde_json::from_str(json.context("go named no module")?)?;
    let from = fetched["Dir"].as_str().context("go fetched nothing")?;
    std::fs::create_dir_all(to)?;
    let (from, to) = (format!("{from}/."), to.display().to_string());
    let job = |program: &str| preparation.job(program, directory);
    job("cp").args(["-r", &from, &to]).succeed()?;
    // The cache of modules is read-only.
    job("chmod").args(["-R", "u+w", &to]).succeed()?;
    Ok(())
}

/// Runs the tests of the packages that are wanted, package by package; `among` limits them further.
pub fn run(
    session: &Session,
    packages: &[Package],
    among: Option<&[String]>,
    environment: &[(&str, &str)],
) -> Result<Vec<TestResult>> {
    let mut results = Vec::new();
    for package in packages {
        results.extend(run_package(session, package, among, environment)?);
    }
    Ok(results)
}

fn run_package(
    session: &Session,
    package: &Package,
    among: Option<&[String]>,
    environment: &[(&str, &str)],
) -> Result<Vec<TestResult>> {
    // Names of other packages' tests begin with the package.
    let own = |name: &str| {
        let name = name.strip_prefix(package.prefix)?;
        name.starts_with(char::is_uppercase)
            .then(|| name.to_owned())
    };
    let only: Option<BTreeSet<String>> = session.only().map(|only| {
        let names = only.iter().map(String::as_str);
        names.filter_map(own).map(|name| top(&name)).collect()
    });
    let wanted: Option<BTreeSet<String>> = match (only, among) {
        (Some(only), Some(among)) => Some(only.into_iter().filter(|n| among.contains(n)).collect()),
        (only, among) => only.or_else(|| among.map(|names| names.iter().cloned().collect())),
    };
    if wanted.as_ref().is_some_and(BTreeSet::is_empty) {
        return Ok(Vec::new());
    }
    let excluded: Vec<String> = session.excluded().filter_map(own).collect();
    let label = package.binary();
    let mut job = session
        .job(&label, session.prepared().join(&label))
        .directory(&session.prepared().join("source").join(package.directory))
        .args(["-test.v=test2json", "-test.count=1"])
        // The session ends it; should both happen at once, Go's list of what still runs is worth having.
        .arg(format!(
            "-test.timeout={}s",
            session.left().as_secs().saturating_sub(10).max(1)
        ));
    if let Some(wanted) = &wanted {
        job = job.arg(format!("-test.run={}", any_of(wanted.iter())));
    }
    if !excluded.is_empty() {
        job = job.arg(format!("-test.skip={}", skipping(&excluded)));
    }
    for (key, value) in environment {
        job = job.env(key, value);
    }
    let finished = job.run()?;
    let mut results = read(&finished.output, package.prefix);
    ensure!(
        !results.is_empty(),
        "{label} {} and reported no test:\n{}",
        finished.verdict(),
        finished.tail()
    );
    note_bad_end(&finished, &label, &mut results);
    Ok(results)
}

/// A binary that fails although no test of it does has failed somewhere else.
fn note_bad_end(finished: &Finished, label: &str, results: &mut Vec<TestResult>) {
    let explained = results.iter().any(|r| r.outcome == Outcome::Failed);
    if !finished.success && !explained {
        let detail = format!("{}\n{}", finished.verdict(), finished.tail());
        results.push(TestResult::failed(label, detail));
    }
}

fn top(name: &str) -> String {
    name.split('/').next().unwrap_or(name).to_owned()
}

/// The functions in Go files of a directory that are tests.
pub fn tests_in(directory: &Path, is_meant: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if !is_meant(&entry.file_name().to_string_lossy()) {
            continue;
        }
        for line in std::fs::read_to_string(entry.path())?.lines() {
            let rest = line.strip_prefix("func Test").unwrap_or_default();
            if let Some((name, _)) = rest.split_once("(t *testing.T)") {
                names.push(format!("Test{name}"));
            }
        }
    }
    names.sort();
    Ok(names)
}

/// A pattern that matches exactly these names.
fn any_of<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let quoted: Vec<String> = names.map(|name| quote(name)).collect();
    format!("^({})$", quoted.join("|"))
}

/// A pattern for `-test.skip`: alternatives at the top, each with the pattern of its subtest.
fn skipping(names: &[String]) -> String {
    let each: Vec<String> = names
        .iter()
        .map(|name| {
            let parts: Vec<String> = name.split('/').map(|p| format!("^{}$", quote(p))).collect();
            parts.join("/")
        })
        .collect();
    each.join("|")
}

fn quote(text: &str) -> String {
    let mut quoted = String::new();
    for c in text.chars() {
        if c.is_ascii_punctuation() && c != '_' {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted
}

/// What a test binary's output says (`-test.v=test2json`). A test that began and did not end has failed.
fn read(output: &str, prefix: &str) -> Vec<TestResult> {
    let mut ended: BTreeMap<&str, Outcome> = BTreeMap::new();
    let mut begun: BTreeSet<&str> = BTreeSet::new();
    let mut printed: BTreeMap<&str, String> = BTreeMap::new();
    let mut current = "";
    for line in output.lines() {
        let (before, framework) = match line.split_once(MARK) {
            Some((before, after)) => (before, Some(after.trim_start_matches([MARK, ' ']))),
            None => (line, None),
        };
        if !before.is_empty() {
            keep(printed.entry(current).or_default(), before);
        }
        let Some(framework) = framework else {
            continue;
        };
        if let Some(rest) = framework.strip_prefix("=== ") {
            let (verb, name) = rest.split_once(' ').unwrap_or((rest, ""));
            current = name.trim();
            if verb == "RUN" {
                begun.insert(current);
            }
        } else if let Some((outcome, name)) = framework.strip_prefix("--- ").and_then(ending) {
            ended.insert(name, outcome);
            current = name;
        }
    }
    let text = |name: &str| printed.get(name).cloned().unwrap_or_default();
    let of = |name: &str| ended.get(name).copied().unwrap_or(Outcome::Failed);
    let mut results = Vec::new();
    for &name in &begun {
        let inside = format!("{name}/");
        let mut below = begun.iter().filter(|other| other.starts_with(&inside));
        let outcome = of(name);
        let explained = match outcome {
            Outcome::Failed => below.any(|below| of(below) == Outcome::Failed),
            Outcome::Passed => below.next().is_some(),
            Outcome::Skipped => false,
        };
        if explained {
            continue;
        }
        let full = format!("{prefix}{name}");
        results.push(match outcome {
            Outcome::Passed => TestResult::passed(full),
            Outcome::Skipped => TestResult::skipped(full, text(name)),
            Outcome::Failed if ended.contains_key(name) => TestResult::failed(full, text(name)),
            Outcome::Failed => TestResult::failed(full, format!("did not end\n{}", text(name))),
        });
    }
    results
}

/// `PASS: TestX/sub (0.00s)`.
fn ending(line: &str) -> Option<(Outcome, &str)> {
    let (verb, rest) = line.split_once(": ")?;
    let outcome = match verb {
        "PASS" => Outcome::Passed,
        "FAIL" => Outcome::Failed,
        "SKIP" => Outcome::Skipped,
        _ => return None,
    };
    Some((outcome, rest.rsplit_once(" (")?.0))
}

/// Appends a line, and keeps the last [`DETAIL_BYTES`].
fn keep(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
    if text.len() > 2 * DETAIL_BYTES {
        let mut start = text.len() - DETAIL_BYTES;
        while !text.is_char_boundary(start) {
            start += 1;
        }
        text.drain(..start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> String {
        text.replace('^', &MARK.to_string())
    }

    #[test]
    fn leaves_are_results_and_parents_only_where_they_say_more() {
        let output = lines(
            "^=== RUN   TestA\n^=== RUN   TestA/x\n    a_test.go:1: why\n^=== RUN   TestA/y\n\
             ^--- FAIL: TestA (0.01s)\n^    --- FAIL: TestA/x (0.00s)\n^    --- PASS: TestA/y (0.00s)\n\
             ^=== RUN   TestB\n^=== RUN   TestB/x\n^--- FAIL: TestB (0.01s)\n    b_test.go:9: after\n\
             ^    --- PASS: TestB/x (0.00s)\n^=== RUN   TestC\n^--- SKIP: TestC (0.00s)\n    c_test.go:2: not here\n",
        );
        let results = read(&output, "sasl/");
        assert_eq!(
            results,
            [
                TestResult::failed("sasl/TestA/x", "    a_test.go:1: why\n"),
                TestResult::passed("sasl/TestA/y"),
                TestResult::failed("sasl/TestB", "    b_test.go:9: after\n"),
                TestResult::passed("sasl/TestB/x"),
                TestResult::skipped("sasl/TestC", "    c_test.go:2: not here\n"),
            ]
        );
    }

    #[test]
    fn what_did_not_end_has_failed() {
        let output = lines(
            "^=== RUN   TestA\nhalf a line^=== RUN   TestB\n^--- PASS: TestB (1.00s)\npanic: x\n",
        );
        assert_eq!(
            read(&output, ""),
            [
                TestResult::failed("TestA", "did not end\nhalf a line\n"),
                TestResult::passed("TestB"),
            ]
        );
    }

    #[test]
    fn patterns_name_tests_and_nothing_else() {
        assert_eq!(
            any_of(["TestA".to_owned(), "TestB_1".to_owned()].iter()),
            "^(TestA|TestB_1)$"
        );
        assert_eq!(
            skipping(&["TestA/b.c".to_owned(), "TestD".to_owned()]),
            "^TestA$/^b\\.c$|^TestD$"
        );
    }
}
