//! Kafka Streams' exactly-once test on three nodes, with its own verification.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use compat_tests::cluster::{Cluster, Product};
use compat_tests::requests::creatable;
use compat_tests::streams::{App, EOS_TEST, PROCESSED, RUNNING, properties};
use compat_tests::wire::Wire;
use kafka_protocol::messages::CreateTopicsRequest;

use crate::beside;

const PATIENCE: Duration = Duration::from_secs(120);
const TOPICS: [&str; 7] = ["data", "echo", "min", "sum", "repartition", "max", "cnt"];

fn instance(home: &Path, name: &str, bootstrap: &str) -> Result<App> {
    let home = home.join(name);
    std::fs::create_dir_all(&home)?;
    let file = properties(&home, bootstrap, &[])?.display().to_string();
    App::start(name, EOS_TEST, &[&file, "process-complex"], &home)
}

/// Two instances with an application that reads what it writes; one is killed and comes back, and so does a node of
/// the cluster. Whatever they have committed must be exactly what follows from what they have read.
#[test]
fn streams_eos_test_passes_its_own_verification_though_an_instance_and_a_node_are_killed()
-> Result<()> {
    let _beside = beside();
    let log = "transaction.state.log";
    let mut cluster = Cluster::options(Product::Odradek, 3)
        .set(&format!("{log}.num.partitions"), 4)
        .set(&format!("{log}.replication.factor"), 3)
        .set(&format!("{log}.min.isr"), 2)
        .start()?;
    let bootstrap = cluster.bootstrap();
    let topics = TOPICS.map(|topic| creatable(topic, 3, &[]).with_replication_factor(3));
    let request = CreateTopicsRequest::default()
        .with_timeout_ms(20_000)
        .with_topics(topics.to_vec());
    let answer = Wire::connect(cluster.addresses()[0])?.call(7, &request)?;
    for topic in &answer.topics {
        ensure!(topic.error_code == 0, "{:?}", topic.error_message);
    }
    cluster.await_in_sync(PATIENCE)?;

    let home = tempfile::tempdir()?;
    let home = home.path();
    let file = properties(home, &bootstrap, &[])?.display().to_string();
    let mut driver = App::start("driver", EOS_TEST, &[&file, "run"], home)?;
    let mut one = instance(home, "one", &bootstrap)?;
    one.wait_for(RUNNING, PATIENCE)?;
    one.wait_for(PROCESSED, PATIENCE)?;
    let mut other = instance(home, "other", &bootstrap)?;
    other.wait_for(RUNNING, PATIENCE)?;
    other.wait_for(PROCESSED, PATIENCE)?;

    one.forget();
    other.kill9()?;
    one.wait_for(RUNNING, PATIENCE)?;
    cluster.node(2)?.kill9()?;
    one.wait_for(PROCESSED, PATIENCE)?;
    let mut other = instance(home, "other", &bootstrap)?;
    cluster.launch(2)?;
    cluster.await_members(PATIENCE)?;
    other.wait_for(RUNNING, PATIENCE)?;
    other.wait_for(PROCESSED, PATIENCE)?;

    for app in [&mut one, &mut other] {
        app.stop(PATIENCE)?;
        let said = app.output();
        ensure!(said.contains("EOS-TEST-CLIENT-CLOSED"), "{}", app.tail());
    }
    driver.stop(PATIENCE)?;
    let mut verifier = App::start("verifier", EOS_TEST, &[&file, "verify-complex"], home)?;
    verifier.finish(PATIENCE)?;
    ensure!(
        verifier.output().contains("ALL-RECORDS-DELIVERED"),
        "{}",
        verifier.tail()
    );
    Ok(())
}
