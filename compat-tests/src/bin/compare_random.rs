//! `cargo run --release -p compat-tests --bin compare_random`: plays random requests to a broker and to Apache Kafka 4.4.0, and
//! compares the answers. `--help` says the rest.

use std::time::{Duration, Instant};

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
    /// After so many seconds no session is begun any more.
    #[arg(long)]
    seconds: Option<u64>,
    /// Writes down what was compared if nothing differs, for docs/COMPATIBILITY.md.
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
        until: arguments
            .seconds
            .map(|seconds| begun + Duration::from_secs(seconds)),
    };
    let outcome = compare_at_random(plan, both.ours.address, both.kafka.address)?;
    let elapsed = begun.elapsed();
    eprintln!("{outcome} in {elapsed:?}");
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
    if arguments.write {
        write_results(seed, &outcome, elapsed)?;
    }
    Ok(())
}

fn write_results(seed: u64, outcome: &Outcome, elapsed: Duration) -> Result<()> {
    let requests = outcome.requests();
    let rate = requests / elapsed.as_secs().max(1);
    let mut text = format!(
        "Of the requests that are made up from a seed, {requests} were compared in the last long run, {rate} a second, \
         without a difference that is not listed (`--seed {seed}`).\n",
    );
    for ((api, version), count) in &outcome.compared {
        text.push_str(&format!("{api} {version} {count}\n"));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/results/random.txt");
    Ok(std::fs::write(path, text)?)
}
