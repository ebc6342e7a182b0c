//! `cargo run --release -p compat-tests --bin nemesis -- [--seeds A..B] [--nodes 3|5] [--seconds N] [--partitions N]
//! [--disks] [--relays] [--java] [--kafka]`: breaks clusters under load, one for each seed, and judges what their clients saw.
//!
//! `… --bin nemesis -- failover [--rounds N] [--only kill|pause|isolation] [--kafka | --both]`: measures how long a
//! producer waits when its leader fails, and prints the table for `docs/BENCHMARKS.md`.
//!
//! `… --bin nemesis -- leaders N [--kafka | --both]`: kills a node that leads N partitions, and measures how long they
//! take no records.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use compat_tests::cluster::campaign::Campaign;
use compat_tests::cluster::stall::{self, Failure};
use compat_tests::cluster::{Cluster, NetworkKind, Product, many};

struct Arguments {
    failover: bool,
    leaders: Option<i32>,
    seeds: Range<u64>,
    nodes: i32,
    seconds: u64,
    partitions: i32,
    disks: bool,
    java: bool,
    network: NetworkKind,
    products: Vec<Product>,
    rounds: usize,
    failures: Vec<Failure>,
}

impl Arguments {
    fn parse() -> Result<Self> {
        let mut this = Self {
            failover: false,
            leaders: None,
            seeds: 0..10,
            nodes: 3,
            seconds: 30,
            partitions: 3,
            disks: false,
            java: false,
            network: NetworkKind::Any,
            products: vec![Product::Odradek],
            rounds: 20,
            failures: Failure::ALL.to_vec(),
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || {
                arguments
                    .next()
                    .with_context(|| format!("{argument} needs a value"))
            };
            match argument.as_str() {
                "failover" => this.failover = true,
                "leaders" => this.leaders = Some(value()?.parse()?),
                "--seeds" => {
                    let text = value()?;
                    let (first, last) = text.split_once("..").context("--seeds A..B")?;
                    this.seeds = first.parse()?..last.parse()?;
                }
                "--nodes" => this.nodes = value()?.parse()?,
                "--seconds" => this.seconds = value()?.parse()?,
                "--partitions" => this.partitions = value()?.parse()?,
                "--disks" => this.disks = true,
                "--java" => this.java = true,
                "--relays" => this.network = NetworkKind::Relays,
                "--kafka" => this.products = vec![Product::Kafka],
                "--both" => this.products = vec![Product::Odradek, Product::Kafka],
                "--rounds" => this.rounds = value()?.parse()?,
                "--only" => {
                    this.failures = vec![match value()?.as_str() {
                        "kill" => Failure::Kill,
                        "pause" => Failure::Pause,
                        "isolation" => Failure::Isolation,
                        other => bail!("no failure called {other}"),
                    }];
                }
                _ => bail!("unknown argument {argument}"),
            }
        }
        Ok(this)
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse()?;
    if let Some(leaders) = arguments.leaders {
        leaders_at_once(&arguments, leaders)
    } else if arguments.failover {
        failover(&arguments)
    } else {
        campaigns(&arguments)
    }
}

fn failover(arguments: &Arguments) -> Result<()> {
    let mut all = Vec::new();
    for &product in &arguments.products {
        let options = Cluster::options(product, arguments.nodes).network(arguments.network);
        let failures = &arguments.failures;
        all.extend(stall::measure(
            product,
            options,
            failures,
            arguments.rounds,
        )?);
    }
    println!("{}", stall::markdown(&all));
    Ok(())
}

fn leaders_at_once(arguments: &Arguments, leaders: i32) -> Result<()> {
    for &product in &arguments.products {
        let options = Cluster::options(product, arguments.nodes).network(arguments.network);
        let failover = many::measure(options, leaders)?;
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
    for &product in &arguments.products {
        let campaign = Campaign {
            cluster: Cluster::options(product, arguments.nodes).network(arguments.network),
            nodes: arguments.nodes,
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
