//! The list of exceptions of a suite, and the judgement of a run against it.
//!
//! A line is `KIND NAME  # REASON`, with two blanks before the reason; lines that begin with `#` are for people.
//! - `fails`: fails, and must leave the list once it passes;
//! - `skips`: the suite does not run it as things are; must leave the list once it runs;
//! - `excluded`: is not run at all, because it would end the suite or depends on luck whoever the broker is;
//! - `retried`: has a race of its own; if it fails it is run again alone, and must pass then.
//!
//! The judgement is a pure function; what is unlisted must pass.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};

use super::{Outcome, TestResult};

/// What is different about a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It fails.
    Fails,
    /// The suite skips it.
    Skips,
    /// It is not run.
    Excluded,
    /// It is run again alone if it fails.
    Retried,
}

/// A suite's exceptions, by the names of the tests.
#[derive(Clone, Debug, Default)]
pub struct Exceptions(BTreeMap<String, (Kind, String)>);

impl Exceptions {
    /// Reads a list.
    ///
    /// # Errors
    /// If a line is no exception with a reason, or a test stands there twice.
    pub fn parse(text: &str) -> Result<Self> {
        let mut all = BTreeMap::new();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (left, reason) = line
                .split_once("  # ")
                .with_context(|| format!("{line:?} has no reason"))?;
            let (kind, name) = left
                .split_once(' ')
                .with_context(|| format!("{line:?} names no test"))?;
            let kind = match kind {
                "fails" => Kind::Fails,
                "skips" => Kind::Skips,
                "excluded" => Kind::Excluded,
                "retried" => Kind::Retried,
                other => bail!("{other:?} is no kind of exception"),
            };
            let (name, reason) = (name.trim(), reason.trim());
            ensure!(!reason.is_empty(), "{line:?} has no reason");
            let before = all.insert(name.to_owned(), (kind, reason.to_owned()));
            ensure!(before.is_none(), "{name} is listed twice");
        }
        Ok(Self(all))
    }

    /// The tests of one kind.
    pub fn names(&self, kind: Kind) -> impl Iterator<Item = &str> {
        self.0
            .iter()
            .filter(move |(_, (known, _))| *known == kind)
            .map(|(name, _)| name.as_str())
    }

    fn kind(&self, name: &str) -> Option<Kind> {
        self.0.get(name).map(|(kind, _)| *kind)
    }

    /// Which failed tests are to be run again.
    pub fn to_retry(&self, results: &[TestResult]) -> Vec<String> {
        results
            .iter()
            .filter(|result| {
                result.outcome == Outcome::Failed && self.kind(&result.name) == Some(Kind::Retried)
            })
            .map(|result| result.name.clone())
            .collect()
    }

    /// What is wrong with a run. `whole` says that nothing was selected, so that every listed test should have been seen.
    pub fn judge(&self, results: &[TestResult], whole: bool) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut seen = BTreeSet::new();
        for result in results {
            let name = &result.name;
            if !seen.insert(name.as_str()) {
                wrong.push(format!("{name}: was reported twice"));
            }
            let complaint = match (self.kind(name), result.outcome) {
                (None | Some(Kind::Retried), Outcome::Passed)
                | (Some(Kind::Fails), Outcome::Failed)
                | (Some(Kind::Skips), Outcome::Skipped) => continue,
                (None, Outcome::Failed) => "fails and is not listed",
                (Some(Kind::Retried), Outcome::Failed) => "fails even when it runs again",
                (None | Some(Kind::Retried), Outcome::Skipped) => "is skipped and not listed so",
                (Some(Kind::Fails), Outcome::Passed) => "passes and is listed as failing",
                (Some(Kind::Fails), Outcome::Skipped) => "is skipped and listed as failing",
                (Some(Kind::Skips), Outcome::Passed) => "passes and is listed as skipped",
                (Some(Kind::Skips), Outcome::Failed) => "fails and is listed as skipped",
                (Some(Kind::Excluded), _) => "ran although it is excluded",
            };
            wrong.push(format!("{name}: {complaint}"));
        }
        if whole {
            let unseen = self.0.iter().filter(|(name, (kind, _))| {
                *kind != Kind::Excluded && !seen.contains(name.as_str())
            });
            wrong.extend(unseen.map(|(name, _)| format!("{name}: is listed and was not reported")));
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
# for people
fails a/b c: d  # no TLS
skips skipped  # needs a file
excluded never  # ends the suite

retried racy  # waits one second
";

    fn judged(results: &[TestResult]) -> Vec<String> {
        Exceptions::parse(LIST).unwrap().judge(results, true)
    }

    fn as_listed() -> Vec<TestResult> {
        vec![
            TestResult::failed("a/b c: d", ""),
            TestResult::skipped("skipped", ""),
            TestResult::passed("racy"),
            TestResult::passed("other"),
        ]
    }

    #[test]
    fn a_run_as_listed_is_right() {
        assert_eq!(judged(&as_listed()), Vec::<String>::new());
    }

    #[test]
    fn a_new_failure_and_a_new_skip_are_wrong() {
        let mut results = as_listed();
        results[3] = TestResult::failed("other", "");
        assert_eq!(judged(&results), ["other: fails and is not listed"]);
        results[3] = TestResult::skipped("other", "");
        assert_eq!(judged(&results), ["other: is skipped and not listed so"]);
    }

    #[test]
    fn a_listed_test_that_passes_is_wrong() {
        let mut results = as_listed();
        results[0] = TestResult::passed("a/b c: d");
        results[1] = TestResult::passed("skipped");
        assert_eq!(
            judged(&results),
            [
                "a/b c: d: passes and is listed as failing",
                "skipped: passes and is listed as skipped"
            ]
        );
    }

    #[test]
    fn a_listed_test_that_is_not_reported_is_wrong_in_a_whole_run_only() {
        let results = &as_listed()[1..];
        assert_eq!(
            judged(results),
            ["a/b c: d: is listed and was not reported"]
        );
        let exceptions = Exceptions::parse(LIST).unwrap();
        assert_eq!(exceptions.judge(results, false), Vec::<String>::new());
    }

    #[test]
    fn what_has_a_race_is_run_again_and_must_pass_then() {
        let mut results = as_listed();
        results[2] = TestResult::failed("racy", "");
        let exceptions = Exceptions::parse(LIST).unwrap();
        assert_eq!(exceptions.to_retry(&results), ["racy"]);
        assert_eq!(judged(&results), ["racy: fails even when it runs again"]);
    }

    #[test]
    fn what_is_excluded_must_not_run_and_nothing_is_reported_twice() {
        let mut results = as_listed();
        results.push(TestResult::passed("never"));
        results.push(TestResult::passed("other"));
        assert_eq!(
            judged(&results),
            [
                "never: ran although it is excluded",
                "other: was reported twice"
            ]
        );
    }

    #[test]
    fn a_list_needs_reasons_and_names_each_test_once() {
        for bad in [
            "fails a",
            "fails a # one blank",
            "breaks a  # why",
            "fails a  # x\nskips a  # y",
        ] {
            assert!(Exceptions::parse(bad).is_err(), "{bad}");
        }
    }
}
