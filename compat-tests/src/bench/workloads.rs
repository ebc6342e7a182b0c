//! What is measured, one function a workload. Each starts from a fresh node, so that no workload
//! sees another's page cache, logs or warm JIT.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;

use super::clients::{java_produce, librdkafka_consume, librdkafka_produce};
use super::disk::{sequential, touch_page_cache};
use super::nodes::{Kind, Node};
use super::report::Report;
use super::spread::Spread;

const PARTITIONS: i32 = 6;
const RECORD_BYTES: u64 = 1024;
/// What the disk is measured with beside a round.
const DISK_SAMPLE_BYTES: u64 = 512 << 20;

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Records of a flat-out run by librdkafka.
    pub flat_out_records: u64,
    /// Seconds of a paced run.
    pub paced_seconds: u64,
    /// Repetitions of flat-out runs.
    pub repetitions: u64,
    /// Leaders of a cluster that are killed under a client; half as many stand still, and are cut off.
    pub kills: usize,
}

/// Start time, and memory of a fresh node.
pub fn start(report: &mut Report, kind: Kind, scale: Scale) -> Result<()> {
    for _ in 0..scale.repetitions {
        let (mut node, elapsed) = kind.start()?;
        report.add(
            "start to first Metadata answer",
            "ms",
            kind,
            elapsed.as_secs_f64() * 1e3,
        );
        sleep(Duration::from_secs(1));
        let resident = node.process().resident_bytes()?;
        report.add("resident, fresh", "MB", kind, resident as f64 / 1e6);
    }
    Ok(())
}

/// librdkafka flat out, in and out.
pub fn librdkafka_flat_out(report: &mut Report, kind: Kind, scale: Scale) -> Result<()> {
    let count = scale.flat_out_records;
    let gigabytes = (count * RECORD_BYTES) as f64 / 1e9;
    let (mut node, _) = kind.start()?;
    let bootstrap = node.bootstrap();
    for round in 0..scale.repetitions {
        let topic = format!("flat-{round}");
        node.create_topic(&topic, PARTITIONS)?;
        touch_page_cache(&std::env::temp_dir(), 2 * count * RECORD_BYTES)?;
        // The disk varies from minute to minute: what it gives is measured beside each round.
        let disk = sequential(&std::env::temp_dir(), DISK_SAMPLE_BYTES)?;
        report.add(
            "the disk, one writer that syncs every 8 MiB",
            "MB/s",
            kind,
            disk,
        );
        let sampler = ResidentSampler::start(node.process().pid());
        let cpu_before = node.process().cpu_time()?;
        let elapsed = librdkafka_produce(&bootstrap, &topic, count)?;
        let cpu = node.process().cpu_time()? - cpu_before;
        report.add(
            "librdkafka produce flat out",
            "MB/s",
            kind,
            gigabytes * 1e3 / elapsed.as_secs_f64(),
        );
        report.add(
            "broker CPU, produce",
            "s/GB",
            kind,
            cpu.as_secs_f64() / gigabytes,
        );
        report.add(
            "resident while producing, highest",
            "MB",
            kind,
            sampler.stop() as f64 / 1e6,
        );

        let cpu_before = node.process().cpu_time()?;
        let elapsed = librdkafka_consume(&bootstrap, &topic, &format!("group-{round}"), count)?;
        let cpu = node.process().cpu_time()? - cpu_before;
        report.add(
            "librdkafka consume flat out",
            "MB/s",
            kind,
            gigabytes * 1e3 / elapsed.as_secs_f64(),
        );
        report.add(
            "broker CPU, consume",
            "s/GB",
            kind,
            cpu.as_secs_f64() / gigabytes,
        );
    }
    Ok(())
}

/// Kafka's own producer at a fixed rate with `linger.ms=0`.
pub fn java_paced(report: &mut Report, kind: Kind, scale: Scale, rate: u64) -> Result<()> {
    let (mut node, _) = kind.start()?;
    node.create_topic("paced", PARTITIONS)?;
    let cpu_before = node.process().cpu_time()?;
    let result = java_produce(
        &node.bootstrap(),
        "paced",
        rate * scale.paced_seconds,
        rate as i64,
    )?;
    let cpu = node.process().cpu_time()? - cpu_before;
    let name = format!("Java producer, {rate} records/s");
    report.add(
        &format!("{name}: rate held"),
        "records/s",
        kind,
        result.records_per_second,
    );
    report.add(&format!("{name}: p50"), "ms", kind, result.p50_ms);
    report.add(&format!("{name}: p95"), "ms", kind, result.p95_ms);
    report.add(&format!("{name}: p99"), "ms", kind, result.p99_ms);
    report.add(&format!("{name}: p99.9"), "ms", kind, result.p999_ms);
    report.add(&format!("{name}: broker CPU"), "s", kind, cpu.as_secs_f64());
    Ok(())
}

/// Kafka's own producer as fast as it can.
pub fn java_flat_out(report: &mut Report, kind: Kind, scale: Scale) -> Result<()> {
    let count = scale.flat_out_records / 2;
    let (mut node, _) = kind.start()?;
    node.create_topic("flat", PARTITIONS)?;
    let cpu_before = node.process().cpu_time()?;
    let result = java_produce(&node.bootstrap(), "flat", count, -1)?;
    let cpu = node.process().cpu_time()? - cpu_before;
    let gigabytes = (count * RECORD_BYTES) as f64 / 1e9;
    let rate = result.records_per_second * RECORD_BYTES as f64 / 1e6;
    report.add("Java producer flat out", "MB/s", kind, rate);
    report.add(
        "Java producer flat out: broker CPU",
        "s/GB",
        kind,
        cpu.as_secs_f64() / gigabytes,
    );
    Ok(())
}

/// 1,000 more partitions: how long they take to create, what they cost when idle.
pub fn many_partitions(report: &mut Report, kind: Kind) -> Result<()> {
    const IDLE: Duration = Duration::from_secs(10);
    let (mut node, _) = kind.start()?;
    let elapsed = node.create_topic("many", 1000)?;
    report.add("1,000 partitions: create", "s", kind, elapsed.as_secs_f64());
    sleep(Duration::from_secs(2));
    let cpu_before = node.process().cpu_time()?;
    sleep(IDLE);
    let cpu = node.process().cpu_time()? - cpu_before;
    report.add(
        "1,000 partitions: idle",
        "cores",
        kind,
        cpu.as_secs_f64() / IDLE.as_secs_f64(),
    );
    report.add(
        "1,000 partitions: resident",
        "MB",
        kind,
        node.process().resident_bytes()? as f64 / 1e6,
    );
    Ok(())
}

/// 10,000 small batches a second over many partitions.
pub fn small_batches(report: &mut Report, kind: Kind, scale: Scale, partitions: i32) -> Result<()> {
    let (mut node, _) = kind.start()?;
    node.create_topic("spread", partitions)?;
    let spread = |node: &Node, seconds| Spread {
        bootstrap: node.bootstrap(),
        topic: "spread".to_owned(),
        partitions,
        batches_per_second: 10_000,
        connections: 4,
        duration: Duration::from_secs(seconds),
    };
    spread(&node, 3).run()?;
    let cpu_before = node.process().cpu_time()?;
    let result = spread(&node, scale.paced_seconds).run()?;
    let cpu = node.process().cpu_time()? - cpu_before;
    let name = format!("10,000 batches/s over {partitions} partitions");
    report.add(
        &format!("{name}: acknowledged"),
        "batches/s",
        kind,
        result.acknowledged_per_second,
    );
    report.add(
        &format!("{name}: p50"),
        "ms",
        kind,
        result.p50.as_secs_f64() * 1e3,
    );
    report.add(
        &format!("{name}: p99"),
        "ms",
        kind,
        result.p99.as_secs_f64() * 1e3,
    );
    report.add(&format!("{name}: broker CPU"), "s", kind, cpu.as_secs_f64());
    Ok(())
}

/// Reads a process's resident memory every 20 ms and keeps the highest.
struct ResidentSampler {
    stop: Arc<AtomicBool>,
    highest: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<()>,
}

impl ResidentSampler {
    fn start(pid: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let highest = Arc::new(AtomicU64::new(0));
        let thread = std::thread::spawn({
            let (stop, highest) = (Arc::clone(&stop), Arc::clone(&highest));
            move || {
                let page_bytes = rustix::param::page_size() as u64;
                while !stop.load(Ordering::Relaxed) {
                    // The second field of statm is the number of resident pages.
                    if let Ok(statm) = std::fs::read_to_string(format!("/proc/{pid}/statm"))
                        && let Some(pages) = statm.split_whitespace().nth(1)
                        && let Ok(pages) = pages.parse::<u64>()
                    {
                        highest.fetch_max(pages * page_bytes, Ordering::Relaxed);
                    }
                    sleep(Duration::from_millis(20));
                }
            }
        });
        Self {
            stop,
            highest,
            thread,
        }
    }

    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        self.highest.load(Ordering::Relaxed)
    }
}
