//! `cargo run -p compat-tests --bin suites -- NAME…` runs suites of other projects' clients against a fresh broker;
//! `--all` runs all of them, `--short` what `test.sh` runs of them, `--list` names them.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use compat_tests::cluster::Product;
use compat_tests::suites::runner::{self, Options, Selection};
use compat_tests::suites::{ALL, Short, Suite};

/// Runs test suites of other projects' clients against a fresh broker, and fails on what their lists do not expect.
#[derive(Parser)]
#[command(name = "suites")]
struct Arguments {
    /// Suites to run.
    names: Vec<String>,
    /// Run every suite.
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// Name the suites.
    #[arg(long)]
    list: bool,
    /// Run only the short selection of each.
    #[arg(long, conflicts_with = "only")]
    short: bool,
    /// Run only this test; may be given several times.
    #[arg(long, value_name = "TEST")]
    only: Vec<String>,
    /// Run against Apache Kafka, to see what it fails. Its failures are shown and compared with the same lists.
    #[arg(long)]
    kafka: bool,
    /// How many suites run side by side.
    #[arg(long, default_value_t = 3)]
    jobs: usize,
    /// Say how every test went.
    #[arg(long)]
    verbose: bool,
    /// Hold a session by this order (for the program itself).
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(order) = &arguments.inside {
        return runner::inside(order).map(|()| ExitCode::SUCCESS);
    }
    if arguments.list {
        for suite in ALL {
            println!("{:28} {}", suite.name, suite.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let suites = chosen(&arguments)?;
    let options = Options {
        program: std::env::current_exe()?,
        product: match arguments.kafka {
            true => Product::Kafka,
            false => Product::Odradek,
        },
        jobs: arguments.jobs,
        selection: match (arguments.short, arguments.only.is_empty()) {
            (true, _) => Selection::Short,
            (false, true) => Selection::Whole,
            (false, false) => Selection::Only(arguments.only.clone()),
        },
    };
    let reports = runner::run_all(&suites, &options, |report| {
        if arguments.verbose {
            for result in &report.results {
                println!(
                    "{} {}: {}",
                    report.suite,
                    result.name,
                    result.outcome.name()
                );
            }
        }
        print!("{}", report.text());
    })?;
    let wrong = reports.iter().filter(|r| !r.wrong.is_empty()).count();
    println!("{} suites, {wrong} of them wrong", reports.len());
    Ok(match wrong {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

fn chosen(arguments: &Arguments) -> Result<Vec<&'static Suite>> {
    let every = arguments.all || (arguments.short && arguments.names.is_empty());
    let suites = match every {
        true => ALL
            .iter()
            .copied()
            .filter(|suite| !arguments.short || suite.short != Short::Nothing)
            .collect(),
        false => arguments
            .names
            .iter()
            .map(|name| Suite::find(name).with_context(|| format!("no suite is called {name}")))
            .collect::<Result<Vec<_>>>()?,
    };
    ensure!(!suites.is_empty(), "name suites, or use --all or --list");
    Ok(suites)
}
