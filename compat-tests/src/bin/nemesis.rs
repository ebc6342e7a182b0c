//! `cargo run --release -p compat-tests --bin nemesis`: breaks clusters under load, one for each seed, and judges what their
//! clients saw. `… -- failover` and `… -- leaders N` measure how long failures cost; `--help` says the rest.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};
use compat_tests::cluster::campaign::Campaign;
use compat_tests::cluster::stall::{self, Failure};
use compat_tests::cluster::{Cluster, ClusterOptions, NetworkKind, Product, many};

/// Breaks clusters under load, one for each seed, and judges what their clients saw.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    measurement: Option<Measurement>,
    #[command(flatten)]
    cluster: ClusterArguments,
    /// Seeds `A..B`, each of a cluster and a schedule of its own.
    #[arg(long, value_name = "A..B", default_value = "0..10", value_parser = range)]
    seeds: Range<u64>,
    /// For how long faults go on.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Partitions of the topic under load.
    #[arg(long, default_value_t = 3)]
    partitions: i32,
    /// Has the nodes keep their data on disks that forget what was not synced.
    #[arg(long)]
    disks: bool,
    /// Has Kafka's own producer and consumer take part.
    #[arg(long)]
    java: bool,
}

#[derive(Args)]
struct ClusterArguments {
    /// Nodes of a cluster.
    #[arg(long, default_value_t = 3)]
    nodes: i32,
    /// Connects nodes through relays, also where network namespaces can be made.
    #[arg(long)]
    relays: bool,
    /// Breaks Kafka.
    #[arg(long)]
    kafka: bool,
    /// Breaks one after the other.
    #[arg(long, conflicts_with = "kafka")]
    both: bool,
}

#[derive(Subcommand)]
enum Measurement {
    /// How long a producer waits when its leader fails, as a table for docs/BENCHMARKS.md.
    Failover {
        #[command(flatten)]
        cluster: ClusterArguments,
        /// How often for each failure.
        #[arg(long, default_value_t = 20)]
        rounds: usize,
        /// Only this failure.
        #[arg(long, value_enum)]
        only: Option<FailureName>,
    },
    /// How long partitions take no records when the node that leads them all is killed.
    Leaders {
        #[command(flatten)]
        cluster: ClusterArguments,
        /// How many it leads.
        leaders: i32,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum FailureName {
    Kill,
    Pause,
    Isolation,
}

impl ClusterArguments {
    fn products(&self) -> &'static [Product] {
        match (self.kafka, self.both) {
            (true, _) => &[Product::Kafka],
            (_, true) => &[Product::Odradek, Product::Kafka],
            (false, false) => &[Product::Odradek],
        }
    }

    fn options(&self, product: Product) -> ClusterOptions {
        let network = match self.relays {
            true => NetworkKind::Relays,
            false => NetworkKind::Any,
        };
        Cluster::options(product, self.nodes).network(network)
    }
}

fn range(text: &str) -> Result<Range<u64>> {
    let (first, last) = text.split_once("..").context("it is not A..B")?;
    Ok(first.parse()?..last.parse()?)
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match &arguments.measurement {
        None => campaigns(&arguments),
        Some(Measurement::Failover {
            cluster,
            rounds,
            only,
        }) => failover(cluster, *rounds, *only),
        Some(Measurement::Leaders { cluster, leaders }) => leaders_at_once(cluster, *leaders),
    }
}

fn failover(cluster: &ClusterArguments, rounds: usize, only: Option<FailureName>) -> Result<()> {
    let failures = match only {
        None => Failure::ALL.to_vec(),
        Some(FailureName::Kill) => vec![Failure::Kill],
        Some(FailureName::Pause) => vec![Failure::Pause],
        Some(FailureName::Isolation) => vec![Failure::Isolation],
    };
    let mut all = Vec::new();
    for &product in cluster.products() {
        let options = cluster.options(product);
        all.extend(stall::measure(product, options, &failures, rounds)?);
    }
    println!("{}", stall::markdown(&all));
    Ok(())
}

fn leaders_at_once(cluster: &ClusterArguments, leaders: i32) -> Result<()> {
    for &product in cluster.products() {
        let failover = many::measure(cluster.options(product), leaders)?;
        println!(
            "{}: {} leaders killed at once; the first partition takes records again after {:.2} s, the last after {:.2} s",
            product.name(),
            failover.partitions,
            failover.first.as_secs_f64(),
            failover.last.as_secs_f64()
        );
    }
    Ok(())
}

fn campaigns(arguments: &Arguments) -> Result<()> {
    let mut bad = Vec::new();
    for &product in arguments.cluster.products() {
        let campaign = Campaign {
            cluster: arguments.cluster.options(product),
            nodes: arguments.cluster.nodes,
            disks: arguments.disks,
            partitions: arguments.partitions,
            java: arguments.java,
            length: Duration::from_secs(arguments.seconds),
        };
        for seed in arguments.seeds.clone() {
            match campaign.run(seed) {
                Ok(verdict) => {
                    println!("{}: {}", product.name(), verdict.line());
                    print!("{}", verdict.details());
                    if !verdict.violations.is_empty() {
                        bad.push(seed);
                    }
                }
                Err(error) => {
                    println!("{}: seed {seed} failed: {error:#}", product.name());
                    bad.push(seed);
                }
            }
        }
    }
    ensure!(bad.is_empty(), "seeds that went wrong: {bad:?}");
    Ok(())
}
