//! What is measured of clusters of three nodes, one function a workload, Odradek and Kafka alike.
//!
//! Every topic has three replicas and wants two in sync. The nodes are on networks of their own on one machine, so that
//! what they send each other costs both products the same.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::clients::{librdkafka_consume, librdkafka_produce};
use super::disk::touch_page_cache;
use super::nodes::Kind;
use super::report::Report;
use super::workloads::Scale;
use crate::cluster::clients::create_topic;
use crate::cluster::stall::{self, Failure};
use crate::cluster::{Cluster, ClusterOptions, NodeNumber, Product, many, rolling};

const NODES: NodeNumber = 3;
const COPIES: i16 = 3;
const PARTITIONS: i32 = 6;
const RECORD_BYTES: u64 = 1024;
const PATIENCE: Duration = Duration::from_secs(180);

fn product(kind: Kind) -> Product {
    match kind {
        Kind::Odradek => Product::Odradek,
        Kind::Kafka | Kind::KafkaFlushing => Product::Kafka,
    }
}

fn options(kind: Kind) -> ClusterOptions {
    Cluster::options(product(kind), NODES).heap("1g")
}

fn cpu(cluster: &mut Cluster) -> Result<Duration> {
    let mut sum = Duration::ZERO;
    for number in cluster.running()? {
        sum += cluster.node(number)?.process()?.cpu_time()?;
    }
    Ok(sum)
}

fn resident(cluster: &mut Cluster) -> Result<u64> {
    let mut sum = 0;
    for number in cluster.running()? {
        sum += cluster.node(number)?.process()?.resident_bytes()?;
    }
    Ok(sum)
}

/// How long a producer waits when its leader fails, in each way.
pub fn stalls(report: &mut Report, kind: Kind, scale: Scale) -> Result<()> {
    for failure in Failure::ALL {
        let rounds = match failure {
            Failure::Kill => scale.kills,
            Failure::Pause | Failure::Isolation => scale.kills.div_ceil(2),
        };
        let measured = stall::measure(product(kind), options(kind), &[failure], rounds)?;
        for stalls in measured {
            let name = format!("leader: {failure}, {rounds} rounds");
            let (median, worst) = (stalls.median(), stalls.worst());
            report.add(&format!("{name}: median"), "s", kind, median.as_secs_f64());
            report.add(&format!("{name}: worst"), "s", kind, worst.as_secs_f64());
        }
    }
    Ok(())
}

/// A node that leads a thousand partitions is killed.
pub fn leaders_at_once(report: &mut Report, kind: Kind, scale: Scale) -> Result<()> {
    for _ in 0..scale.repetitions {
        let failover = many::measure(options(kind), 1_000)?;
        let name = "1,000 leaders killed at once";
        let (first, last) = (failover.first.as_secs_f64(), failover.last.as_secs_f64());
        report.add(&format!("{name}: first partition back"), "s", kind, first);
        report.add(&format!("{name}: last partition back"), "s", kind, last);
    }
    Ok(())
}

/// librdkafka flat out, in and out.
pub fn flat_out(report: &mut Report, kind: Kind, scale: Scale) -> Result<()> {
    let count = scale.flat_out_records / 2;
    let gigabytes = (count * RECORD_BYTES) as f64 / 1e9;
    let mut cluster = options(kind).start()?;
    let bootstrap = cluster.bootstrap();
    for round in 0..scale.repetitions {
        let topic = format!("flat-{round}");
        create_topic(&cluster.addresses(), &topic, PARTITIONS, COPIES, &[])?;
        cluster.await_in_sync(PATIENCE)?;
        touch_page_cache(&std::env::temp_dir(), 4 * count * RECORD_BYTES)?;
        let before = cpu(&mut cluster)?;
        let elapsed = librdkafka_produce(&bootstrap, &topic, count)?;
        // Followers that are behind when the producer has its last answer are part of the price.
        cluster.await_in_sync(PATIENCE)?;
        let used = cpu(&mut cluster)? - before;
        let rate = gigabytes * 1e3 / elapsed.as_secs_f64();
        report.add("three nodes: librdkafka produce", "MB/s", kind, rate);
        report.add(
            "three nodes: CPU of all, produce",
            "s/GB",
            kind,
            used.as_secs_f64() / gigabytes,
        );
        let before = cpu(&mut cluster)?;
        let elapsed = librdkafka_consume(&bootstrap, &topic, &format!("group-{round}"), count)?;
        let used = cpu(&mut cluster)? - before;
        let rate = gigabytes * 1e3 / elapsed.as_secs_f64();
        report.add("three nodes: librdkafka consume", "MB/s", kind, rate);
        report.add(
            "three nodes: CPU of all, consume",
            "s/GB",
            kind,
            used.as_secs_f64() / gigabytes,
        );
    }
    Ok(())
}

/// A broker comes back after the others have taken records without it.
pub fn catch_up(report: &mut Report, kind: Kind, scale: Scale) -> Result<()> {
    const AWAY: NodeNumber = 3;
    let count = scale.flat_out_records / 2;
    let mut cluster = options(kind).start()?;
    let topic = create_topic(&cluster.addresses(), "away", PARTITIONS, COPIES, &[])?;
    cluster.await_in_sync(PATIENCE)?;
    cluster.node(AWAY)?.terminate(PATIENCE)?;
    librdkafka_produce(&cluster.bootstrap(), &topic.name, count)?;
    let directory = cluster.node(AWAY)?.data_dir().to_owned();
    let all = topic_bytes(cluster.node(1)?.data_dir(), &topic.name)?;
    let before = topic_bytes(&directory, &topic.name)?;
    ensure!(all > before, "nothing to catch up with");
    let launched = Instant::now();
    cluster.launch(AWAY)?;
    let (mut begun, mut done) = (None, None);
    while done.is_none() {
        ensure!(launched.elapsed() < PATIENCE, "not caught up in time");
        let now = topic_bytes(&directory, &topic.name)?;
        if now > before {
            begun.get_or_insert_with(Instant::now);
        }
        if now >= all {
            done = Some(Instant::now());
        }
        sleep(Duration::from_millis(10));
    }
    let (begun, done) = begun.zip(done).context("it never began")?;
    cluster.await_members(PATIENCE)?;
    cluster.await_in_sync(PATIENCE)?;
    let rate = (all - before) as f64 / 1e6 / (done - begun).as_secs_f64();
    report.add("a broker that returns catches up", "MB/s", kind, rate);
    report.add(
        "a broker that returns: start to in sync again",
        "s",
        kind,
        launched.elapsed().as_secs_f64(),
    );
    Ok(())
}

/// Bytes of the segments of a topic in a data directory. A segment that goes away meanwhile counts as nothing; bytes
/// that are only reserved count as nothing either, for the size of a file is what has been written.
fn topic_bytes(data: &Path, topic: &str) -> Result<u64> {
    let mut sum = 0;
    let prefix = format!("{topic}-");
    let partitions: Vec<PathBuf> = std::fs::read_dir(data)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
        })
        .collect();
    for partition in partitions {
        let Ok(files) = std::fs::read_dir(partition) else {
            continue;
        };
        for file in files.flatten() {
            let is_log = file.path().extension().is_some_and(|name| name == "log");
            if is_log && let Ok(metadata) = file.metadata() {
                sum += metadata.len();
            }
        }
    }
    Ok(sum)
}

/// A thousand partitions that nobody uses.
pub fn idle(report: &mut Report, kind: Kind, _: Scale) -> Result<()> {
    const IDLE: Duration = Duration::from_secs(20);
    const SETTLING: Duration = Duration::from_secs(10);
    let mut cluster = options(kind).start()?;
    let begun = Instant::now();
    create_topic(&cluster.addresses(), "many", 1_000, COPIES, &[])?;
    cluster.await_in_sync(PATIENCE)?;
    let name = "1,000 partitions × 3";
    let created = begun.elapsed().as_secs_f64();
    report.add(&format!("{name}: created, in sync"), "s", kind, created);
    sleep(SETTLING);
    let before = cpu(&mut cluster)?;
    sleep(IDLE);
    let used = cpu(&mut cluster)? - before;
    report.add(
        &format!("{name}: idle, three nodes together"),
        "cores",
        kind,
        used.as_secs_f64() / IDLE.as_secs_f64(),
    );
    report.add(
        &format!("{name}: resident, three nodes together"),
        "MB",
        kind,
        resident(&mut cluster)? as f64 / 1e6,
    );
    Ok(())
}

/// All nodes are restarted, one after the other, under load.
pub fn rolling_restart(report: &mut Report, kind: Kind, _: Scale) -> Result<()> {
    let mut cluster = options(kind).start()?;
    let topic = create_topic(&cluster.addresses(), "rolling", PARTITIONS, COPIES, &[])?;
    let noticed = rolling::restart_all(&mut cluster, &topic, PARTITIONS)?;
    let name = "rolling restart under load";
    report.add(
        &format!("{name}: errors told to clients"),
        "",
        kind,
        noticed.errors.len() as f64,
    );
    report.add(
        &format!("{name}: records missed or doubled"),
        "",
        kind,
        noticed.missed_or_doubled as f64,
    );
    report.add(
        &format!("{name}: longest delivery"),
        "s",
        kind,
        noticed.longest_delivery.as_secs_f64(),
    );
    report.add(
        &format!("{name}: longest gap at the consumer"),
        "s",
        kind,
        noticed.longest_gap.as_secs_f64(),
    );
    report.add(
        &format!("{name}: all nodes, until in sync"),
        "s",
        kind,
        noticed.took.as_secs_f64(),
    );
    Ok(())
}
