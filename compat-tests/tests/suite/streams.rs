//! Kafka Streams on one node: its own test of many operators, with its own verification.

use std::time::Duration;

use anyhow::{Result, ensure};
use compat_tests::requests::create_topic;
use compat_tests::server::Server;
use compat_tests::streams::{App, PROCESSED, RUNNING, SMOKE_DRIVER, SMOKE_TEST, properties};

const PATIENCE: Duration = Duration::from_secs(90);

/// Topics that the application reads and writes.
const TOPICS: [&str; 15] = [
    "data",
    "fk",
    "echo",
    "max",
    "min",
    "min-suppressed",
    "min-raw",
    "dif",
    "sum",
    "sws-raw",
    "sws-suppressed",
    "cnt",
    "avg",
    "tagg",
    "wcnt",
];

/// One instance is killed while it works, and another goes on; the driver wants every result exactly right. Takes about
/// a minute: half of it the driver sends, and the killed one's transaction has to time out.
#[test]
fn streams_smoke_test_passes_its_own_verification_though_an_instance_is_killed() -> Result<()> {
    let server = Server::start()?;
    let bootstrap = server.bootstrap();
    let mut wire = server.connect()?;
    for topic in TOPICS {
        create_topic(&mut wire, topic, 3, &[])?;
    }
    let home = tempfile::tempdir()?;
    let instance = |name: &str| -> Result<App> {
        let home = home.path().join(name);
        std::fs::create_dir_all(&home)?;
        let file = properties(&home, &bootstrap, &[("commit.interval.ms", "500")])?;
        let file = file.display().to_string();
        App::start(name, SMOKE_TEST, &[&file, "process"], &home)
    };
    let mut first = instance("first")?;
    first.wait_for(RUNNING, PATIENCE)?;
    // Ten keys of 600 values each within 20 seconds.
    let arguments = [bootstrap.as_str(), "10", "600", "20"];
    let mut driver = App::start("driver", SMOKE_DRIVER, &arguments, home.path())?;
    first.wait_for(PROCESSED, PATIENCE)?;
    first.kill9()?;
    let mut second = instance("second")?;
    second.wait_for(RUNNING, PATIENCE)?;
    second.wait_for(PROCESSED, PATIENCE)?;
    ensure!(
        !driver.output().contains("Result Verification"),
        "all was over before the second instance had anything to do"
    );
    driver.finish(PATIENCE * 2)?;
    let said = driver.output();
    for wanted in ["ALL-RECORDS-DELIVERED", "SUCCESS"] {
        ensure!(said.contains(wanted), "no {wanted}\n{}", driver.tail());
    }
    ensure!(!said.contains("PROCESSED-"), "{}", driver.tail());
    second.stop(PATIENCE)?;
    ensure!(
        second.output().contains("SMOKE-TEST-CLIENT-CLOSED"),
        "{}",
        second.tail()
    );
    Ok(())
}
