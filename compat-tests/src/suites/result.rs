//! How one test of a suite went.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// What became of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ran and found nothing wrong.
    Passed,
    /// It ran and found something wrong, or did not end.
    Failed,
    /// The suite itself did not run it.
    Skipped,
}

impl Outcome {
    /// As reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// One test and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestResult {
    /// As the suite calls it, on one line; what stands in its list of exceptions.
    pub name: String,
    /// What became of it.
    pub outcome: Outcome,
    /// What the suite says about it, for people: the end of its output, or why it was skipped.
    pub detail: String,
}

impl TestResult {
    /// One that passed.
    pub fn passed(name: impl Into<String>) -> Self {
        Self::new(name, Outcome::Passed, "")
    }

    /// One that failed.
    pub fn failed(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(name, Outcome::Failed, detail)
    }

    /// One that the suite skipped.
    pub fn skipped(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(name, Outcome::Skipped, detail)
    }

    fn new(name: impl Into<String>, outcome: Outcome, detail: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            outcome,
            detail: detail.into(),
        }
    }

    pub(super) fn to_json(&self) -> Value {
        json!([self.name, self.outcome.name(), self.detail])
    }

    pub(super) fn from_json(value: &Value) -> Result<Self> {
        let text = |index: usize| value[index].as_str().context("a result that is none");
        let outcome = match text(1)? {
            "passed" => Outcome::Passed,
            "failed" => Outcome::Failed,
            "skipped" => Outcome::Skipped,
            other => bail!("no outcome is called {other}"),
        };
        Ok(Self::new(text(0)?, outcome, text(2)?))
    }
}
