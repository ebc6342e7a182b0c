//! A metadata log that is written down and let go of: nodes that were away are given what they missed, and all start
//! again from what they wrote.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use compat_tests::cluster::admin::connect;
use compat_tests::cluster::clients::create_topic;
use compat_tests::cluster::{Cluster, NodeNumber, Product};
use compat_tests::requests::{creatable, delete_topic};
use kafka_protocol::messages::CreateTopicsRequest;

use crate::beside;
use crate::shared::{PATIENCE, PAUSE, serves};

const THREE: [NodeNumber; 3] = [1, 2, 3];
const FOUR: [NodeNumber; 4] = [1, 2, 3, 4];
/// Topics that are made while two nodes are away: enough for several checkpoints.
const TOPICS: usize = 150;

/// Where a node's metadata log begins, and how many checkpoints it has.
fn log_of(directory: &Path) -> Result<(u64, usize)> {
    let (mut start, mut checkpoints) = (u64::MAX, 0);
    for entry in std::fs::read_dir(directory.join("__cluster_metadata-0"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if let Some(base) = name.strip_suffix(".log") {
            start = start.min(base.parse()?);
        }
        checkpoints += usize::from(name.ends_with(".checkpoint"));
    }
    Ok((start, checkpoints))
}

fn topics_at(cluster: &Cluster, node: NodeNumber) -> BTreeSet<String> {
    let Ok(answer) = cluster.ask(node) else {
        return BTreeSet::new();
    };
    let names = answer.topics.iter().filter_map(|topic| topic.name.as_ref());
    names.map(|name| name.0.to_string()).collect()
}

/// A voter and a broker that only follows are away while the log that they would need goes.
#[test]
fn nodes_that_were_away_are_given_a_checkpoint_and_all_start_from_their_own() -> Result<()> {
    let _beside = beside();
    let mut cluster = Cluster::options(Product::Odradek, 4)
        .voters(3)
        .set_of(4, "process.roles", "broker")
        .set("metadata.log.max.record.bytes.between.snapshots", 8_000)
        .prepare()?;
    let broker = cluster.node(4)?;
    let at = broker.addresses();
    broker.set_for_next_start("listeners", format!("PLAINTEXT://{}", at.broker_bind))?;
    broker.set_for_next_start("advertised.listeners", format!("PLAINTEXT://{}", at.broker))?;
    for node in FOUR {
        cluster.launch(node)?;
    }
    cluster.await_members(PATIENCE)?;
    let topic = create_topic(&cluster.addresses(), "kept", 3, 3, &[])?;
    let mut records = 0;
    serves(&mut cluster, &THREE, &topic, 3, &mut records)?;
    for away in [3, 4] {
        cluster.node(away)?.kill9()?;
    }
    let mut wire = connect(&mut cluster, 1)?;
    wire.set_patience(PATIENCE)?;
    let names: Vec<String> = (0..TOPICS)
        .map(|number| format!("{}-{number}", "name".repeat(20)))
        .collect();
    for name in &names {
        let wanted = creatable(name, 1, &[]).with_replication_factor(1);
        let request = CreateTopicsRequest::default()
            .with_timeout_ms(30_000)
            .with_topics(vec![wanted]);
        let answer = wire.call(7, &request)?;
        let codes: Vec<i16> = answer.topics.iter().map(|topic| topic.error_code).collect();
        ensure!(codes == [0], "{answer:?}");
    }
    delete_topic(&mut wire, &names[0])?;
    let deadline = Instant::now() + PATIENCE;
    for node in [1, 2] {
        loop {
            let (start, checkpoints) = log_of(cluster.node(node)?.data_dir())?;
            if start > 0 && checkpoints == 2 {
                break;
            }
            ensure!(
                Instant::now() < deadline,
                "node {node}: from {start} on, {checkpoints}"
            );
            std::thread::sleep(PAUSE);
        }
    }
    let expected: BTreeSet<String> = names[1..]
        .iter()
        .cloned()
        .chain(["kept".to_owned()])
        .collect();
    for back in [3, 4] {
        cluster.launch(back)?;
    }
    know(&mut cluster, &FOUR, &expected)?;
    for node in [3, 4] {
        let (start, checkpoints) = log_of(cluster.node(node)?.data_dir())?;
        ensure!(
            start > 0 && checkpoints > 0,
            "node {node}: from {start} on, {checkpoints}"
        );
    }
    // The one that was away can carry on alone with another, and all can start again.
    cluster.node(1)?.kill9()?;
    serves(&mut cluster, &[2, 3], &topic, 3, &mut records)?;
    delete_topic(&mut connect(&mut cluster, 2)?, &names[1])?;
    cluster.launch(1)?;
    for node in FOUR {
        cluster.node(node)?.kill9()?;
    }
    for node in FOUR {
        cluster.launch(node)?;
    }
    let expected: BTreeSet<String> = names[2..]
        .iter()
        .cloned()
        .chain(["kept".to_owned()])
        .collect();
    know(&mut cluster, &FOUR, &expected)?;
    serves(&mut cluster, &THREE, &topic, 3, &mut records)
}

fn know(cluster: &mut Cluster, nodes: &[NodeNumber], expected: &BTreeSet<String>) -> Result<()> {
    cluster.await_members(PATIENCE)?;
    let deadline = Instant::now() + PATIENCE;
    for &node in nodes {
        loop {
            let known = topics_at(cluster, node);
            if known == *expected {
                break;
            }
            ensure!(
                Instant::now() < deadline,
                "node {node} knows {} topics of {}\n{}",
                known.len(),
                expected.len(),
                cluster.logs()
            );
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}
