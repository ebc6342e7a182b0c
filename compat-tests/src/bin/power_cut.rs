//! `cargo run --release -p compat-tests --bin power_cut -- [--rig kill9|forgetful|ext4] [--cuts N]
//! [--seed N] [--kafka | --kafka-flushing]`: makes a broker die under load and counts what it lost.

use anyhow::{Context, Result, bail};
use compat_tests::power::{Rig, die_repeatedly, kafka_dies_repeatedly};

fn main() -> Result<()> {
    let (mut rig, mut cuts, mut seed, mut kafka) =
        ("forgetful".to_owned(), 50, rand::random(), None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .with_context(|| format!("{argument} needs a value"))
        };
        match argument.as_str() {
            "--rig" => rig = value()?,
            "--cuts" => cuts = value()?.parse()?,
            "--seed" => seed = value()?.parse()?,
            "--kafka" => kafka = Some(false),
            "--kafka-flushing" => kafka = Some(true),
            _ => bail!("unknown argument {argument}"),
        }
    }
    let rig = match rig.as_str() {
        "kill9" => Rig::kill9()?,
        "forgetful" => Rig::forgetful()?,
        "ext4" => Rig::ext4()?,
        other => bail!("no rig called {other}"),
    };
    let summary = match kafka {
        None => die_repeatedly(rig, cuts, seed)?,
        Some(flush) => kafka_dies_repeatedly(rig, cuts, seed, flush)?,
    };
    println!(
        "{} of {} acknowledged records lost in {} cuts",
        summary.lost, summary.acknowledged, summary.cuts
    );
    Ok(())
}
