//! Runs suites: prepares each, gives it a session, and judges what it reports.
//!
//! A session is a process of its own, this program again with `--inside`, in new namespaces for network, processes and
//! mounts: the suite has port 9092 to itself, and all that it started ends with it. Several run side by side, since the long
//! suites mostly wait. Where namespaces are refused a session is an ordinary process, and one runs at a time.
//!
//! Invariants: everything that needs a network happens before the session; the session is killed when its time and some
//! margin are up, whatever it waits for.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

use super::brokers::Running;
use super::expected::Exceptions;
use super::{Outcome, Preparation, Session, Short, Suite, TestResult};
use crate::cache::cache_directory;
use crate::cluster::Product;
use crate::process::{Process, run};

/// What a session may take beyond the suite's own time: starting and stopping brokers.
const MARGIN: Duration = Duration::from_secs(240);
/// How often a test that has a race of its own is run again.
const RETRIES: usize = 2;
const TOOL_PATIENCE: Duration = Duration::from_secs(10);
/// So many characters of what a failed test says are shown.
const SHOWN: usize = 3000;

/// How suites are run.
#[derive(Clone, Debug)]
pub struct Options {
    /// This program: `suites`.
    pub program: PathBuf,
    /// Whose brokers.
    pub product: Product,
    /// How many sessions run side by side, where namespaces can be made.
    pub jobs: usize,
    /// What is run of each suite.
    pub selection: Selection,
}

/// What is run of a suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All of it.
    Whole,
    /// What its [`Short`] says.
    Short,
    /// These tests.
    Only(Vec<String>),
}

/// What came out of a suite's run.
pub struct Report {
    /// The suite's name.
    pub suite: &'static str,
    /// Its tests.
    pub results: Vec<TestResult>,
    /// What is wrong; nothing if the suite went as its list says.
    pub wrong: Vec<String>,
    /// Tests that passed only when they were run again.
    pub again: Vec<String>,
    /// How long it took, brokers' start and stop included.
    pub took: Duration,
}

impl Report {
    fn broken(suite: &'static Suite, error: &anyhow::Error) -> Self {
        Self {
            suite: suite.name,
            results: Vec::new(),
            wrong: vec![format!("no results: {error:#}")],
            again: Vec::new(),
            took: Duration::ZERO,
        }
    }

    fn count(&self, outcome: Outcome) -> usize {
        let same = self.results.iter().filter(|r| r.outcome == outcome);
        same.count()
    }

    /// The report for people: a line, and what is wrong with what the tests said about it.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}: {} passed, {} failed, {} skipped in {} s: {}\n",
            self.suite,
            self.count(Outcome::Passed),
            self.count(Outcome::Failed),
            self.count(Outcome::Skipped),
            self.took.as_secs(),
            if self.wrong.is_empty() {
                "as listed"
            } else {
                "WRONG"
            },
        );
        for name in &self.again {
            text += &format!("  {name}: passed when it was run again\n");
        }
        for wrong in &self.wrong {
            text += &format!("  {wrong}\n");
            let told = self
                .results
                .iter()
                .filter(|result| wrong.starts_with(&format!("{}: ", result.name)));
            for line in told.flat_map(|result| end(&result.detail).lines()) {
                text += &format!("    | {line}\n");
            }
        }
        text
    }
}

fn end(text: &str) -> &str {
    let mut start = text.len().saturating_sub(SHOWN);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

/// Whether a session can have namespaces of its own.
pub fn isolation_is_possible() -> bool {
    static POSSIBLE: OnceLock<bool> = OnceLock::new();
    *POSSIBLE.get_or_init(|| {
        let mut arguments = isolation();
        arguments.extend(["ip", "link", "set", "lo", "up"].map(str::to_owned));
        rustix::process::geteuid().is_root()
            && run(Path::new("unshare"), &arguments, b"", TOOL_PATIENCE)
                .is_ok_and(|output| output.success)
    })
}

fn isolation() -> Vec<String> {
    let words = [
        "--net",
        "--mount-proc",
        "--pid",
        "--fork",
        "--kill-child",
        "--",
    ];
    words.map(str::to_owned).to_vec()
}

/// Runs these suites; `done` is told each report as it comes.
pub fn run_all(
    suites: &[&'static Suite],
    options: &Options,
    done: impl Fn(&Report) + Sync,
) -> Result<Vec<Report>> {
    if options.product == Product::Odradek {
        // Once, before sessions do it side by side.
        crate::broker::binary()?;
    }
    let mut reports = Vec::new();
    let mut prepared = VecDeque::new();
    for &suite in suites {
        match prepare(suite) {
            Ok(path) => prepared.push_back((suite, path)),
            Err(error) => {
                let report = Report::broken(suite, &error);
                done(&report);
                reports.push(report);
            }
        }
    }
    let queue = Mutex::new(prepared);
    let reports = Mutex::new(reports);
    let jobs = if isolation_is_possible() {
        options.jobs.max(1)
    } else {
        1
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let next = queue
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .pop_front();
                    let Some((suite, path)) = next else { break };
                    let report = judged(suite, &path, options)
                        .unwrap_or_else(|error| Report::broken(suite, &error));
                    done(&report);
                    reports
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(report);
                }
            });
        }
    });
    Ok(reports.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn prepare(suite: &Suite) -> Result<PathBuf> {
    let preparation = Preparation::begin(&logs_of(suite)?)?;
    (suite.prepare)(&preparation)
}

fn logs_of(suite: &Suite) -> Result<PathBuf> {
    Ok(cache_directory()?.join("suites/logs").join(suite.name))
}

fn judged(suite: &'static Suite, prepared: &Path, options: &Options) -> Result<Report> {
    // Another run of the same suite writes to the same logs, and reads results there.
    let running = File::create(logs_of(suite)?.join("lock"))?;
    flock(&running, FlockOperation::LockExclusive)?;
    let started = Instant::now();
    let exceptions = Exceptions::parse(suite.exceptions)?;
    let only = match (&options.selection, suite.short) {
        (Selection::Whole, _) | (Selection::Short, Short::Everything) => None,
        (Selection::Only(names), _) => Some(names.clone()),
        (Selection::Short, Short::Only(names)) => {
            Some(names.iter().map(|&name| name.to_owned()).collect())
        }
        (Selection::Short, Short::Nothing) => bail!("nothing of it is in the short selection"),
    };
    let bound = match options.selection {
        Selection::Short => suite.short_bound,
        _ => suite.bound,
    };
    let mut results = session(suite, prepared, options, only.as_deref(), bound)?;
    let mut again = Vec::new();
    for _ in 0..RETRIES {
        let failed = exceptions.to_retry(&results);
        if failed.is_empty() {
            break;
        }
        for second in session(suite, prepared, options, Some(&failed), bound)? {
            let first = results.iter_mut().find(|first| first.name == second.name);
            let first = first.context("a result that was not asked for")?;
            if second.outcome == Outcome::Passed {
                again.push(second.name.clone());
            }
            *first = second;
        }
    }
    Ok(Report {
        suite: suite.name,
        wrong: what_is_wrong(suite, &exceptions, &results, only.as_deref()),
        results,
        again,
        took: started.elapsed(),
    })
}

fn what_is_wrong(
    suite: &Suite,
    exceptions: &Exceptions,
    results: &[TestResult],
    only: Option<&[String]>,
) -> Vec<String> {
    let mut wrong = exceptions.judge(results, only.is_none());
    for name in only.unwrap_or_default() {
        if !results.iter().any(|result| result.name == *name) {
            wrong.push(format!("{name}: was asked for and not reported"));
        }
    }
    let passed = results.iter().filter(|r| r.outcome == Outcome::Passed);
    let passed = passed.count();
    if only.is_none() && passed < suite.at_least {
        wrong.push(format!(
            "only {passed} passed, of at least {}",
            suite.at_least
        ));
    }
    wrong
}

/// Starts a session in a process of its own and reads what it found.
fn session(
    suite: &Suite,
    prepared: &Path,
    options: &Options,
    only: Option<&[String]>,
    bound: Duration,
) -> Result<Vec<TestResult>> {
    // Without namespaces everybody wants the same ports, also where tests call this side by side.
    static ALONE: Mutex<()> = Mutex::new(());
    let isolated = isolation_is_possible();
    let _alone = (!isolated).then(|| ALONE.lock().unwrap_or_else(PoisonError::into_inner));
    let logs = logs_of(suite)?;
    std::fs::create_dir_all(&logs)?;
    let home = tempfile::Builder::new().prefix("suite-").tempdir()?;
    let order = home.path().join("order.json");
    let answer = home.path().join("answer.json");
    let text = json!({
        "suite": suite.name,
        "kafka": options.product == Product::Kafka,
        "isolated": isolated,
        "prepared": prepared.to_str().context("a path that is no text")?,
        "logs": logs.to_str().context("a path that is no text")?,
        "home": home.path().to_str().context("a path that is no text")?,
        "only": only,
        "bound_s": bound.as_secs(),
        "answer": answer.to_str().context("a path that is no text")?,
    });
    std::fs::write(&order, text.to_string())?;
    let mut arguments = if isolated { isolation() } else { Vec::new() };
    arguments.push(options.program.display().to_string());
    arguments.extend(["--inside".to_owned(), order.display().to_string()]);
    let program = if isolated {
        PathBuf::from("unshare")
    } else {
        PathBuf::from(arguments.remove(0))
    };
    let binary = match options.product {
        Product::Odradek => crate::broker::binary()?,
        Product::Kafka => PathBuf::new(),
    };
    let log = logs.join("session.log");
    let _ = std::fs::remove_file(&log);
    let mut process = Process::start(suite.name, &program, &arguments, &log, |command| {
        command.env("ODRADEK_BIN", binary);
    })?;
    let status = process.wait(bound + MARGIN)?;
    let text = std::fs::read_to_string(&answer)
        .with_context(|| format!("the session ended with {status}\n{}", process.log_tail()))?;
    let answer: Value = serde_json::from_str(&text).context("what the session says")?;
    if let Some(error) = answer["error"].as_str() {
        bail!("{error}");
    }
    let results = answer["results"].as_array().context("no results")?;
    let results = results.iter().map(TestResult::from_json);
    let asked = |result: &Result<TestResult>| {
        result
            .as_ref()
            .is_ok_and(|r| only.is_none_or(|only| only.contains(&r.name)))
    };
    results
        .filter(|result| result.is_err() || asked(result))
        .collect()
}

/// What `--inside ORDER` does: a session's part inside its namespaces.
pub fn inside(order: &Path) -> Result<()> {
    let order: Value = serde_json::from_str(&std::fs::read_to_string(order)?)?;
    let text = |key: &str| order[key].as_str().with_context(|| format!("no {key}"));
    let answer = match hold(&order) {
        Ok(results) => {
            json!({ "results": results.iter().map(TestResult::to_json).collect::<Vec<_>>() })
        }
        Err(error) => json!({ "error": format!("{error:#}") }),
    };
    Ok(std::fs::write(text("answer")?, answer.to_string())?)
}

/// A namespace of mounts begins with a copy of all, and whoever made one of them cannot give it back while a copy stands:
/// those of other tests' disks are let go of.
fn let_go_of_mounts() -> Result<()> {
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let temporary = std::env::temp_dir();
    let targets = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let below = |target: &Path| target.starts_with(&temporary) && target != temporary;
    for target in targets.filter(|target| below(Path::new(target))) {
        let words = ["--lazy", target].map(str::to_owned);
        // One that is gone by now is as good.
        run(Path::new("umount"), &words, b"", TOOL_PATIENCE)?;
    }
    Ok(())
}

fn hold(order: &Value) -> Result<Vec<TestResult>> {
    let text = |key: &str| order[key].as_str().with_context(|| format!("no {key}"));
    let name = text("suite")?;
    let suite = Suite::find(name).with_context(|| format!("no suite is called {name}"))?;
    if order["isolated"] == true {
        let words = ["link", "set", "lo", "up"].map(str::to_owned);
        let output = run(Path::new("ip"), &words, b"", TOOL_PATIENCE)?;
        ensure!(output.success, "no loopback: {}", output.both());
        let_go_of_mounts()?;
    }
    let only = order["only"].as_array().map(|names| {
        let names = names.iter().filter_map(Value::as_str);
        names.map(str::to_owned).collect()
    });
    let product = match order["kafka"] == true {
        true => Product::Kafka,
        false => Product::Odradek,
    };
    // The process that gave the order takes all of it away.
    let home = Path::new(text("home")?);
    let work = home.join("work");
    std::fs::create_dir_all(&work)?;
    let logs = PathBuf::from(text("logs")?);
    let brokers = Running::start(suite, product, &home.join("brokers"), &logs)?;
    let bound = Duration::from_secs(order["bound_s"].as_u64().context("no bound")?);
    let session = Session {
        product,
        bootstrap: brokers.addresses(),
        brokers: Mutex::new(brokers),
        prepared: text("prepared")?.into(),
        work,
        logs,
        only,
        exceptions: Exceptions::parse(suite.exceptions)?,
        deadline: Instant::now() + bound,
    };
    let results = (suite.run)(&session)?;
    let brokers = session.brokers.into_inner();
    brokers.unwrap_or_else(PoisonError::into_inner).stop()?;
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(suite: &Suite, results: &[TestResult], only: Option<&[String]>) -> Vec<String> {
        what_is_wrong(suite, &Exceptions::default(), results, only)
    }

    #[test]
    fn a_suite_that_ends_early_is_no_success() {
        let suite = Suite {
            at_least: 2,
            ..Suite::PLAIN
        };
        let one = [TestResult::passed("one")];
        assert_eq!(wrong(&suite, &one, None), ["only 1 passed, of at least 2"]);
        let two = [TestResult::passed("one"), TestResult::passed("two")];
        assert_eq!(wrong(&suite, &two, None), Vec::<String>::new());
    }

    #[test]
    fn what_was_asked_for_has_to_be_reported() {
        let only = ["one".to_owned(), "two".to_owned()];
        let one = [TestResult::passed("one")];
        assert_eq!(
            wrong(&Suite::PLAIN, &one, Some(&only)),
            ["two: was asked for and not reported"]
        );
    }

    #[test]
    fn a_report_shows_what_a_wrong_test_said() {
        let report = Report {
            suite: "example",
            results: vec![TestResult::failed("one", "expected 1\nnot 2")],
            wrong: vec!["one: fails and is not listed".to_owned()],
            again: Vec::new(),
            took: Duration::from_secs(3),
        };
        assert_eq!(
            report.text(),
            "example: 0 passed, 1 failed, 0 skipped in 3 s: WRONG\n  one: fails and is not listed\n    | expected 1\n    | not 2\n"
        );
    }
}
