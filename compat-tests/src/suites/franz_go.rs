//! franz-go, the Go client: its tests of the client against a broker.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use super::go::{self, Package};
use super::{Preparation, Session, Short, Suite, TestResult};

const PACKAGES: &[Package] = &[Package::at("pkg/kgo")];

/// The suite.
pub const SUITE: Suite = Suite {
    name: "franz-go",
    about: "franz-go 1.22.3, pkg/kgo: 50,000 records through groups, transactions and consumer groups",
    exceptions: include_str!("../../suites/franz-go.txt"),
    bound: Duration::from_secs(16 * 60),
    at_least: 515,
    short: Short::Nothing,
    prepare,
    run,
    ..Suite::PLAIN
};

fn prepare(preparation: &Preparation) -> Result<PathBuf> {
    let module = ("franz-go", "github.com/twmb/franz-go", "v1.22.3");
    go::prepare(preparation, module, &[], PACKAGES)
}

fn run(session: &Session) -> Result<Vec<TestResult>> {
    let bootstrap = session.bootstrap();
    let environment = [
        ("KGO_SEEDS", bootstrap.as_str()),
        ("KGO_TEST_RF", "1"),
        ("KGO_TEST_STABLE_FETCH", "true"),
        ("KGO_TEST_RECORDS", "50000"),
    ];
    go::run(session, PACKAGES, None, &environment)
}
