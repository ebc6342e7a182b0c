//! The short selections of the suites of other projects' clients: what of them runs with every other test.
//!
//! All of a suite is run by `cargo run -p compat-tests --bin suites -- NAME`. One test here is one suite, in a program of
//! its own so that no other test loads the machine meanwhile.

#![allow(missing_docs)]

use anyhow::{Context, Result, ensure};
use compat_tests::cluster::Product;
use compat_tests::suites::runner::{Options, Selection, run_all};
use compat_tests::suites::{ALL, Short, Suite, expected::Exceptions};

fn short(name: &str) -> Result<()> {
    let suite = Suite::find(name).context("no such suite")?;
    let options = Options {
        program: env!("CARGO_BIN_EXE_suites").into(),
        product: Product::Odradek,
        jobs: 1,
        selection: Selection::Short,
    };
    let reports = run_all(&[suite], &options, |report| print!("{}", report.text()))?;
    ensure!(reports.len() == 1, "{} reports", reports.len());
    for report in &reports {
        ensure!(report.wrong.is_empty(), "{}", report.text());
    }
    Ok(())
}

macro_rules! short {
    ($($test:ident = $name:literal;)*) => {
        const TESTED: &[&str] = &[$($name),*];
        $(#[test] fn $test() -> Result<()> { short($name) })*
    };
}

short! {
    kcat = "kcat";
    kafka_tools = "kafka-tools";
    librdkafka = "librdkafka";
    kafka_python = "kafka-python";
}

#[test]
fn every_short_selection_has_its_test() {
    let short = ALL.iter().filter(|suite| suite.short != Short::Nothing);
    let short: Vec<&str> = short.map(|suite| suite.name).collect();
    let mut tested = TESTED.to_vec();
    tested.sort_by_key(|name| short.iter().position(|other| other == name));
    assert_eq!(tested, short);
}

#[test]
fn every_list_of_exceptions_can_be_read() -> Result<()> {
    for suite in ALL {
        Exceptions::parse(suite.exceptions).context(suite.name)?;
    }
    Ok(())
}
