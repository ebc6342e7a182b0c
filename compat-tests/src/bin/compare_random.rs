//! `cargo run --release -p compat-tests --bin compare_random`: plays random requests to a broker and to Apache Kafka 4.4.0, and
//! compares the answers. `--help` says the rest.

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use compat_tests::beside::beside;
use compat_tests::generator::run::{Outcome, Plan, compare_at_random};

/// Plays random, well-formed requests to Odradek and to Apache Kafka 4.4.0, and fails where the answers differ for no
/// reason that docs/PROTOCOL.md names. A session that differs is cut down to the requests that it takes.
#[derive(Parser)]
struct Arguments {
    /// Plays a run again, from its first session on; drawn if absent, and printed.
    #[arg(long)]
    seed: Option<u64>,
    /// How many requests are compared.
    #[arg(long, default_value_t = 1_000)]
    requests: u64,
    /// How many sessions go on at a time.
    #[arg(long, default_value_t = 3)]
    sessions: usize,
    /// Writes down what was compared, for docs/COMPATIBILITY.md.
    #[arg(long)]
    write: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let seed = arguments.seed.unwrap_or_else(rand::random);
    eprintln!("--seed {seed} --requests {}", arguments.requests);
    let both = beside()?;
    let begun = Instant::now();
    let plan = Plan {
        seed,
        requests: arguments.requests,
        at_a_time: arguments.sessions,
    };
    let outcome = compare_at_random(plan, both.ours.address, both.kafka.address)?;
    eprintln!("{outcome} in {:?}", begun.elapsed());
    if arguments.write {
        write_results(seed, &outcome)?;
    }
    let reports: Vec<String> = outcome
        .kinds
        .iter()
        .map(|(kind, report)| format!("{kind}\n{report}"))
        .collect();
    ensure!(
        reports.is_empty(),
        "Odradek and Kafka differ\n{}",
        reports.join("\n")
    );
    Ok(())
}

fn write_results(seed: u64, outcome: &Outcome) -> Result<()> {
    let mut text = format!(
        "Of the requests that are made up from a seed, {} were compared in the last long run (`--seed {seed}`).\n",
        outcome.requests()
    );
    for ((api, version), count) in &outcome.compared {
        text.push_str(&format!("{api} {version} {count}\n"));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/results/random.txt");
    Ok(std::fs::write(path, text)?)
}
