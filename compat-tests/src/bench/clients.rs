//! The load generators that are not ours: librdkafka's `rdkafka_performance`, built once from the
//! source that the `rdkafka-sys` crate carries, and Kafka's ProducerPerformance.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::cache::cache_directory;
use crate::kafka;
use crate::process::run;

/// How long one client run may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// The `rdkafka_performance` program, built if it is not in the cache.
pub fn rdkafka_performance() -> Result<PathBuf> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--manifest-path"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .output()?;
    ensure!(output.status.success(), "cargo metadata failed");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let package = metadata["packages"]
        .as_array()
        .context("no packages")?
        .iter()
        .find(|package| package["name"] == "rdkafka-sys")
        .context("rdkafka-sys is not among the dependencies")?;
    let version = package["version"].as_str().context("no version")?;
    let manifest = Path::new(
        package["manifest_path"]
            .as_str()
            .context("no manifest path")?,
    );
    let source = manifest
        .parent()
        .context("no directory")?
        .join("librdkafka");

    let home = cache_directory()?.join(format!("librdkafka-{version}"));
    let program = home.join("examples/rdkafka_performance");
    if program.exists() {
        return Ok(program);
    }
    eprintln!("building rdkafka_performance of rdkafka-sys {version} (about a minute)");
    let building = home.with_extension("building");
    let _ = std::fs::remove_dir_all(&building);
    std::fs::create_dir_all(building.parent().context("no parent")?)?;
    step(Command::new("cp").arg("-r").arg(&source).arg(&building))?;
    step(Command::new("./configure").current_dir(&building).args([
        "--disable-ssl",
        "--disable-gssapi",
        "--disable-curl",
        "--disable-zstd",
        "--disable-lz4-ext",
    ]))?;
    step(
        Command::new("make")
            .current_dir(&building)
            .args(["-j2", "libs"]),
    )?;
    step(Command::new("make").current_dir(&building).args([
        "-C",
        "examples",
        "rdkafka_performance",
    ]))?;
    std::fs::rename(&building, &home)?;
    Ok(program)
}

fn step(command: &mut Command) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} failed:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// Produces `count` records of 1 KiB with `acks=all` as fast as librdkafka can; the time it took.
pub fn librdkafka_produce(bootstrap: &str, topic: &str, count: u64) -> Result<Duration> {
    let count_text = count.to_string();
    // It may have to be built first.
    let program = rdkafka_performance()?;
    let started = Instant::now();
    let output = run(
        &program,
        &[
            "-P",
            "-t",
            topic,
            "-s",
            "1024",
            "-c",
            &count_text,
            "-b",
            bootstrap,
            "-a",
            "-1",
            "-q",
            // The program waits a second for batches to fill, and fills one partition meanwhile, unless told not to.
            "-X",
            "linger.ms=5",
            "-X",
            "sticky.partitioning.linger.ms=0",
        ]
        .map(str::to_owned),
        b"",
        PATIENCE,
    )?;
    let elapsed = started.elapsed();
    ensure!(
        output.success,
        "rdkafka_performance failed:\n{}",
        output.both()
    );
    let text = output.both();
    ensure!(
        text.contains(&format!("{count} messages produced"))
            || text.contains(&format!("{count} messages")),
        "rdkafka_performance did not report {count} messages:\n{text}"
    );
    ensure!(
        !text.contains("delivery failed") || text.contains("0 failed"),
        "failed deliveries:\n{text}"
    );
    Ok(elapsed)
}

/// Reads `count` records from the start as a group of one; the time it took.
pub fn librdkafka_consume(
    bootstrap: &str,
    topic: &str,
    group: &str,
    count: u64,
) -> Result<Duration> {
    let count_text = count.to_string();
    // It may have to be built first.
    let program = rdkafka_performance()?;
    let started = Instant::now();
    let output = run(
        &program,
        &[
            "-G",
            group,
            "-t",
            topic,
            "-c",
            &count_text,
            "-b",
            bootstrap,
            "-q",
            "-X",
            "auto.offset.reset=earliest",
        ]
        .map(str::to_owned),
        b"",
        PATIENCE,
    )?;
    let elapsed = started.elapsed();
    ensure!(
        output.success,
        "rdkafka_performance failed:\n{}",
        output.both()
    );
    Ok(elapsed)
}

/// What ProducerPerformance prints at its end.
#[derive(Clone, Copy, Debug)]
pub struct ProducerPerformance {
    /// Records that were acknowledged.
    pub acknowledged: u64,
    /// Records acknowledged a second.
    pub records_per_second: f64,
    /// Latency percentiles in milliseconds.
    pub p50_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// 99.9th percentile.
    pub p999_ms: f64,
}

/// Runs Kafka's ProducerPerformance with 1 KiB records, `acks=all` and `linger.ms=0`; a negative
/// rate means flat out.
pub fn java_produce(
    bootstrap: &str,
    topic: &str,
    count: u64,
    records_per_second: i64,
) -> Result<ProducerPerformance> {
    let arguments = [
        "-Xmx512m".to_owned(),
        "-cp".to_owned(),
        format!("{}/*", kafka::libs()?.display()),
        "org.apache.kafka.tools.ProducerPerformance".to_owned(),
        "--topic".to_owned(),
        topic.to_owned(),
        "--num-records".to_owned(),
        count.to_string(),
        "--record-size".to_owned(),
        "1024".to_owned(),
        "--throughput".to_owned(),
        records_per_second.to_string(),
        "--producer-props".to_owned(),
        format!("bootstrap.servers={bootstrap}"),
        "acks=all".to_owned(),
        "linger.ms=0".to_owned(),
    ];
    let output = run(Path::new("java"), &arguments, b"", PATIENCE)?;
    ensure!(
        output.success,
        "ProducerPerformance failed:\n{}",
        output.both()
    );
    parse_producer_performance(&output.stdout)
}

fn parse_producer_performance(stdout: &str) -> Result<ProducerPerformance> {
    let line = stdout
        .lines()
        .rev()
        .find(|line| line.contains("50th"))
        .with_context(|| format!("no summary line in:\n{stdout}"))?;
    let number_before = |mark: &str| -> Result<f64> {
        let head = &line[..line
            .find(mark)
            .with_context(|| format!("no '{mark}' in: {line}"))?];
        let word = head
            .split_whitespace()
            .last()
            .with_context(|| format!("no number: {line}"))?;
        word.trim_start_matches('(')
            .parse()
            .with_context(|| format!("not a number in: {line}"))
    };
    let acknowledged = line
        .split_whitespace()
        .next()
        .context("no number of records")?
        .parse()?;
    Ok(ProducerPerformance {
        acknowledged,
        records_per_second: number_before("records/sec")?,
        p50_ms: number_before("ms 50th")?,
        p95_ms: number_before("ms 95th")?,
        p99_ms: number_before("ms 99th")?,
        p999_ms: number_before("ms 99.9th")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_summary_line_of_producer_performance_is_read() {
        let text = "5 records sent, 1.0 records/sec (0.00 MB/sec), 9.9 ms avg latency, 9.0 ms max latency.\n\
            40000 records sent, 1999.8 records/sec (1.95 MB/sec), 0.84 ms avg latency, 230.00 ms max latency, \
            1 ms 50th, 2 ms 95th, 24 ms 99th, 44 ms 99.9th.\n";
        let result = parse_producer_performance(text).unwrap();
        assert_eq!(result.acknowledged, 40_000);
        assert_eq!(result.records_per_second, 1999.8);
        assert_eq!(
            (result.p50_ms, result.p95_ms, result.p99_ms, result.p999_ms),
            (1.0, 2.0, 24.0, 44.0)
        );
    }
}
