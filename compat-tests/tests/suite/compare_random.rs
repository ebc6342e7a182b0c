//! Random requests: what they are made of, and the document that counts them. They are compared with Kafka by a command
//! of its own, `cargo run --release -p compat-tests --bin compare_random`.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use compat_tests::compatibility;
use compat_tests::generator::tolerated::TOLERATED;
use compat_tests::generator::{Session, apis_without_choices, messages};
use compat_tests::server::Server;
use compat_tests::transcript::{Served, served_versions};

/// `ODRADEK_WRITE_DOCS` has it written.
#[test]
fn the_compatibility_document_is_what_the_tables_say() -> Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let missing = compatibility::missing_tests(&directory.join("tests/suite"))?;
    ensure!(missing.is_empty(), "there are no such tests: {missing:?}");
    let wanted = compatibility::document(directory)?;
    let path = directory.join("../docs/COMPATIBILITY.md");
    if std::env::var_os("ODRADEK_WRITE_DOCS").is_some() {
        std::fs::write(&path, &wanted)?;
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    ensure!(there == wanted, "run the tests with ODRADEK_WRITE_DOCS=1");
    Ok(())
}

/// A new API needs requests that are made up for it.
#[test]
fn every_advertised_api_has_random_requests() -> Result<()> {
    let server = Server::start()?;
    let served = served_versions(server.address())?;
    assert_eq!(apis_without_choices(&served), [""; 0]);
    Ok(())
}

fn everything() -> Result<Served> {
    let mut served = Served::new();
    for (api, _) in compat_tests::generator::world::WEIGHTS {
        let schema = &messages(api)?.request;
        let versions: Vec<i16> = (0..30)
            .filter(|version| schema.is_valid(*version))
            .collect();
        let (min, max) = (versions.first(), versions.last());
        served.insert(
            schema.api_key(),
            (*min.context("no version")?, *max.context("no version")?),
        );
    }
    Ok(served)
}

#[test]
fn a_seed_makes_the_same_requests_again_and_all_can_be_encoded() -> Result<()> {
    let served = everything()?;
    let mut versions = std::collections::BTreeSet::new();
    for seed in 0..300 {
        let session = Session::new(seed, &served, 40)?;
        assert_eq!(session.steps, Session::new(seed, &served, 40)?.steps);
        let side = compat_tests::generator::side::Side::new("s1-", 0);
        for step in &session.steps {
            let message = side.resolved(&step.message)?;
            let body = messages(&step.api)?.request.encode(&message, step.version);
            body.with_context(|| step.to_string())?;
            versions.insert((step.api.clone(), step.version));
        }
    }
    let all: i32 = served
        .values()
        .map(|(min, max)| i32::from(max - min) + 1)
        .sum();
    assert_eq!(versions.len(), usize::try_from(all)?, "{versions:?}");
    Ok(())
}

/// What differs on purpose says why.
#[test]
fn every_tolerated_difference_has_a_reason() {
    for one in TOLERATED {
        assert!(one.reason.ends_with('.') && !one.path.is_empty(), "{one:?}");
    }
}
