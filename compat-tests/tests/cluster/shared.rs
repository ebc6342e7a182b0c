//! What several of these tests do.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail, ensure};
use compat_tests::batches::BatchSpec;
use compat_tests::cluster::admin::{ask_for_topic, connect, connect_to_any};
use compat_tests::cluster::clients::{Router, read_partition};
use compat_tests::cluster::{Cluster, Doing, NodeNumber};
use compat_tests::requests::{Topic, produce};
use compat_tests::wire::Wire;

/// How long anything may take that a cluster does by itself.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const PAUSE: Duration = Duration::from_millis(50);

/// Creates a topic with these replicas, one list a partition.
pub fn create(cluster: &mut Cluster, name: &str, replicas: &[&[NodeNumber]]) -> Result<Topic> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let created = ask_for_topic(&mut connect_to_any(cluster)?, name, replicas, -1)?;
        if created.error_code == 0 {
            return Ok(Topic {
                name: name.to_owned(),
                id: created.topic_id,
            });
        }
        ensure!(
            Instant::now() < deadline,
            "creating {name}: error {} {:?}",
            created.error_code,
            created.error_message
        );
        std::thread::sleep(PAUSE);
    }
}

/// A connection to the leader of a partition, found through one of the nodes.
pub fn to_leader(
    cluster: &mut Cluster,
    through: &[NodeNumber],
    topic: &Topic,
    partition: i32,
) -> Result<(NodeNumber, Wire)> {
    let mut addresses = Vec::new();
    for &node in through {
        addresses.push(cluster.node(node)?.addresses().broker);
    }
    let mut router = Router::new(&addresses, topic, 0);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let leader = router.leader(partition);
        if let Ok((leader, _, _)) = leader
            && let Ok(wire) = connect(cluster, leader)
        {
            return Ok((leader, wire));
        }
        ensure!(Instant::now() < deadline, "no leader: {leader:?}");
        std::thread::sleep(PAUSE);
    }
}

/// The time, for records that are to stay.
pub fn now_ms() -> Result<i64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(i64::try_from(now.as_millis())?)
}

/// Writes a record through whoever leads until it is acknowledged; its offset.
pub fn write(
    cluster: &mut Cluster,
    through: &[NodeNumber],
    topic: &Topic,
    partition: i32,
) -> Result<i64> {
    let batch = BatchSpec::small(1, now_ms()?).build()?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (_, mut wire) = to_leader(cluster, through, topic, partition)?;
        let answer = produce(&mut wire, topic, partition, batch.clone());
        match answer.map(|row| (row.error_code, row.base_offset)) {
            Ok((0, offset)) => return Ok(offset),
            Ok((3 | 5 | 6 | 7 | 19 | 20, _)) | Err(_) => {}
            Ok((code, _)) => bail!("produce: error {code}"),
        }
        ensure!(Instant::now() < deadline, "not acknowledged in time");
        std::thread::sleep(PAUSE);
    }
}

/// The cluster takes records on all partitions of the topic, and has those that it had.
pub fn serves(
    cluster: &mut Cluster,
    through: &[NodeNumber],
    topic: &Topic,
    partitions: i32,
    records: &mut i64,
) -> Result<()> {
    for partition in 0..partitions {
        let offset = write(cluster, through, topic, partition)?;
        ensure!(
            offset == *records,
            "offset {offset} where {records} was due"
        );
        let (_, mut wire) = to_leader(cluster, through, topic, partition)?;
        let found = read_partition(&mut wire, topic, partition)?;
        ensure!(found.records.len() as i64 == *records + 1, "{found:?}");
    }
    *records += 1;
    Ok(())
}

/// Waits until a node's log says one of these, whether it ends over it or tries again; the whole line.
pub fn says(cluster: &mut Cluster, node: NodeNumber, any_of: &[&str]) -> Result<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = cluster.node(node)?.process()?.log_text();
        let found = text
            .lines()
            .find(|line| any_of.iter().any(|part| line.contains(part)));
        if let Some(line) = found {
            return Ok(line.to_owned());
        }
        ensure!(
            Instant::now() < deadline,
            "node {node} says nothing of {any_of:?}\n{}",
            cluster.logs()
        );
        std::thread::sleep(PAUSE);
    }
}

/// Waits until a node has ended by itself, with an error.
pub fn ends_with_an_error(cluster: &mut Cluster, node: NodeNumber) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while cluster.node(node)?.doing()? != Doing::Nothing {
        ensure!(
            Instant::now() < deadline,
            "node {node} runs on\n{}",
            cluster.logs()
        );
        std::thread::sleep(PAUSE);
    }
    let status = cluster.node(node)?.process()?.exited()?;
    ensure!(
        status.is_some_and(|status| status.code() == Some(1)),
        "node {node} ended with {status:?}"
    );
    Ok(())
}
