//! librdkafka's admin test (0081), one function after the other.
//!
//! As a whole it ends at its first failure, and some of its functions need what is not there yet. Each function here is
//! a run of the program of its own, with all the variants that it is called with.

use std::time::Duration;

use anyhow::Result;

use super::{Launch, PLAIN, Verdict, launch};
use crate::suites::{Outcome, Session, Suite, TestResult};

/// Function by function.
pub const SUITE: Suite = Suite {
    name: "librdkafka-admin",
    about: "librdkafka 2.12.1 test-runner, the admin test function by function",
    exceptions: include_str!("../../../suites/librdkafka-admin.txt"),
    // Group after group is begun here, and none of the tests wants to be one of two first members.
    properties: &[],
    bound: Duration::from_secs(900),
    at_least: 18,
    run,
    ..PLAIN
};

/// The functions of 0081, in its order.
const FUNCTIONS: [&str; 23] = [
    "do_test_unclean_destroy",
    "do_test_CreateTopics",
    "do_test_DeleteTopics",
    "do_test_CreatePartitions",
    "do_test_CreateAcls",
    "do_test_DescribeAcls",
    "do_test_DeleteAcls",
    "do_test_AlterConfigs",
    "do_test_IncrementalAlterConfigs",
    "do_test_DescribeConfigs",
    "do_test_DescribeConfigs_groups",
    "do_test_DeleteRecords",
    "do_test_ListConsumerGroups",
    "do_test_DescribeConsumerGroups",
    "do_test_DescribeTopics",
    "do_test_DescribeCluster",
    "do_test_DescribeConsumerGroups_with_authorized_ops",
    "do_test_DeleteGroups",
    "do_test_DeleteConsumerGroupOffsets",
    "do_test_ListOffsets",
    "do_test_AlterConsumerGroupOffsets",
    "do_test_ListConsumerGroupOffsets",
    "do_test_UserScramCredentials",
];

fn run(session: &Session) -> Result<Vec<TestResult>> {
    let wanted = FUNCTIONS.iter().filter(|name| session.wants(name));
    wanted.map(|name| one(session, name)).collect()
}

fn one(session: &Session, function: &str) -> Result<TestResult> {
    // A part of the test is called FUNCTION:LINE, so that this matches no longer name.
    let part = format!("{function}:");
    let (verdicts, output) = launch(
        session,
        &Launch {
            log: &format!("test-runner-{function}"),
            numbers: vec!["0081".to_owned()],
            skipped: &[],
            flags: &["-L", "-E", "-K", "-p1"],
            environment: &[("SUBTESTS", &part)],
        },
    )?;
    let ran = output
        .lines()
        .any(|line| line.contains(&part) && line.contains(": PASS ("));
    Ok(match verdicts.get("0081_admin") {
        Some(Verdict::Settled(whole)) if whole.outcome == Outcome::Passed && ran => {
            TestResult::passed(function)
        }
        Some(Verdict::Settled(whole)) if whole.outcome == Outcome::Passed => {
            TestResult::skipped(function, "none of its variants ran to its end")
        }
        Some(Verdict::Settled(whole)) => TestResult::failed(function, &whole.detail),
        Some(Verdict::Open(why)) => TestResult::failed(function, why),
        None => TestResult::failed(function, "the program did not run the test"),
    })
}
