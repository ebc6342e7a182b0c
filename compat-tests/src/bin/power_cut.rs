//! `cargo run --release -p compat-tests --bin power_cut -- [--rig kill9|forgetful|ext4] [--cuts N]
//! [--seed N] [--kafka | --kafka-flushing]`: makes a broker die under load and counts what it lost.

use anyhow::Result;
use clap::{Parser, ValueEnum};
use compat_tests::power::{Rig, die_repeatedly, kafka_dies_repeatedly};

/// Makes a broker die under load, again and again, and counts the acknowledged records that it lost.
#[derive(Parser)]
struct Arguments {
    /// How it dies, and what it keeps its data on.
    #[arg(long, value_enum, default_value = "forgetful")]
    rig: RigName,
    /// How often.
    #[arg(long, default_value_t = 50)]
    cuts: u32,
    /// Decides what a cut takes; drawn if absent, and printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Has Kafka die, as it comes.
    #[arg(long)]
    kafka: bool,
    /// Has Kafka die with `flush.messages=1`.
    #[arg(long, conflicts_with = "kafka")]
    kafka_flushing: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum RigName {
    /// The process is killed.
    Kill9,
    /// The disk forgets what was not synced.
    Forgetful,
    /// The same under a real ext4.
    Ext4,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let rig = match arguments.rig {
        RigName::Kill9 => Rig::kill9()?,
        RigName::Forgetful => Rig::forgetful()?,
        RigName::Ext4 => Rig::ext4()?,
    };
    let seed = arguments.seed.unwrap_or_else(rand::random);
    let summary = match arguments.kafka || arguments.kafka_flushing {
        false => die_repeatedly(rig, arguments.cuts, seed)?,
        true => kafka_dies_repeatedly(rig, arguments.cuts, seed, arguments.kafka_flushing)?,
    };
    println!(
        "{} of {} acknowledged records lost in {} cuts",
        summary.lost, summary.acknowledged, summary.cuts
    );
    Ok(())
}
