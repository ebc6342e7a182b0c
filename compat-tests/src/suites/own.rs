//! Suites whose tests are functions here, for programs that bring no tests of their own.

use anyhow::Result;

use super::{Session, TestResult};

/// A test and its name.
pub(super) type Test = (&'static str, fn(&Session) -> Result<()>);

/// Runs those that are wanted, one after the other; one that fails keeps none from running.
pub(super) fn run(session: &Session, tests: &[Test]) -> Vec<TestResult> {
    tests
        .iter()
        .filter(|(name, _)| session.wants(name))
        .map(|(name, test)| match test(session) {
            Ok(()) => TestResult::passed(*name),
            Err(error) => TestResult::failed(*name, format!("{error:#}")),
        })
        .collect()
}
