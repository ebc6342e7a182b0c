//! `cargo run --release -p compat-tests --bin bench`: Odradek beside Kafka 4.4.0 on this machine.
//!
//! Kafka's jars are the ones that `./test.sh` fetches; `--help` says the rest.

use anyhow::Result;
use clap::Parser;

use compat_tests::bench::clusters;
use compat_tests::bench::disk;
use compat_tests::bench::groups;
use compat_tests::bench::nodes::Kind;
use compat_tests::bench::report::Report;
use compat_tests::bench::transactions;
use compat_tests::bench::workloads::{self, Scale};

/// Measures Odradek and Apache Kafka 4.4.0 in one run, and prints a table of both with their ratios.
#[derive(Parser)]
struct Arguments {
    /// One round of everything, and less of it.
    #[arg(long)]
    quick: bool,
    /// Keeps the workloads whose name contains this, as in `cluster-`; may be given several times.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Measures Odradek alone.
    #[arg(long)]
    without_kafka: bool,
}

const WHOLE: Scale = Scale {
    flat_out_records: 2_000_000,
    paced_seconds: 20,
    repetitions: 3,
    kills: 20,
};

const QUICK: Scale = Scale {
    flat_out_records: 500_000,
    paced_seconds: 5,
    repetitions: 1,
    kills: 5,
};

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let only = &arguments.only;
    let scale = if arguments.quick { QUICK } else { WHOLE };
    let kinds: &[Kind] = match arguments.without_kafka {
        true => &[Kind::Odradek],
        false => &[Kind::Odradek, Kind::Kafka, Kind::KafkaFlushing],
    };

    type Workload = (&'static str, fn(&mut Report, Kind, Scale) -> Result<()>);
    let all: [Workload; 20] = [
        ("start", workloads::start),
        ("librdkafka", workloads::librdkafka_flat_out),
        ("java-2000", |report, kind, scale| {
            workloads::java_paced(report, kind, scale, 2_000)
        }),
        ("java-20000", |report, kind, scale| {
            workloads::java_paced(report, kind, scale, 20_000)
        }),
        ("java-flat-out", workloads::java_flat_out),
        ("partitions", |report, kind, _| {
            workloads::many_partitions(report, kind)
        }),
        ("spread-100", |report, kind, scale| {
            workloads::small_batches(report, kind, scale, 100)
        }),
        ("spread-1000", |report, kind, scale| {
            workloads::small_batches(report, kind, scale, 1_000)
        }),
        ("cluster-stalls", clusters::stalls),
        ("cluster-leaders", clusters::leaders_at_once),
        ("cluster-produce", clusters::flat_out),
        ("cluster-catch-up", clusters::catch_up),
        ("cluster-idle", clusters::idle),
        ("cluster-rolling", clusters::rolling_restart),
        ("group-commits", groups::commits),
        ("group-classic-rebalance", groups::classic_rebalance),
        ("group-consumer-rebalance", groups::consumer_rebalance),
        ("group-load", groups::load_offsets),
        ("transactions-1", |report, kind, scale| {
            transactions::transactions(report, kind, scale, 1)
        }),
        ("transactions-100", |report, kind, scale| {
            transactions::transactions(report, kind, scale, 100)
        }),
    ];

    let mut report = Report::default();
    note_disk(&mut report, "before the first workload")?;
    for (name, workload) in all {
        if !only.is_empty() && !only.iter().any(|text| name.contains(text.as_str())) {
            continue;
        }
        eprintln!("{name}");
        for &kind in kinds {
            // The flushing Kafka is only of interest where the disk is, and on its own.
            let without_disk =
                matches!(name, "start" | "partitions") || name.starts_with("cluster");
            if kind == Kind::KafkaFlushing && without_disk {
                continue;
            }
            if let Err(error) = workload(&mut report, kind, scale) {
                report.note(format!("{name} on {}: {error:#}", kind.name()));
            }
        }
    }
    note_disk(&mut report, "after the last")?;
    println!("{}", report.markdown());
    Ok(())
}

/// What the disk itself gives; it varies from minute to minute.
fn note_disk(report: &mut Report, when: &str) -> Result<()> {
    let limits = disk::measure(&std::env::temp_dir(), 1 << 30)?;
    report.note(format!(
        "the disk {when}: {:.0} MB/s to one writer that syncs every 8 MiB; fdatasync of 4 KiB: median {:.2} ms, \
         99th percentile {:.2} ms",
        limits.sequential_mb_per_second,
        limits.fdatasync_p50.as_secs_f64() * 1e3,
        limits.fdatasync_p99.as_secs_f64() * 1e3
    ));
    Ok(())
}
