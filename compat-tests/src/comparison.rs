//! Plays one script to Odradek and to Kafka, and compares the two transcripts.
//!
//! Whatever differs is a failure, unless [`KNOWN`] lists it with its reason; a line of that list that no longer applies
//! is a failure too, and so is a comparison that did not send what [`COMPARED`] says.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result, bail};

use crate::cluster::{Addresses, Cluster, NodeNumber, Product};
use crate::compared::COMPARED;
use crate::kafka::Kafka;
use crate::known::{Differences, KNOWN, Known};
use crate::server::{Server, kafka_instead};
use crate::transcript::{Probe, Served, Step, served_versions};

struct Pair {
    ours: Server,
    kafka: Kafka,
    served: Served,
}

/// One Odradek and one Kafka for all comparisons of a test process.
fn pair() -> Result<&'static Pair> {
    static PAIR: OnceLock<Result<Pair, String>> = OnceLock::new();
    let start = || -> Result<Pair> {
        let kafka = std::thread::spawn(Kafka::start);
        let ours = Server::start()?;
        let kafka = kafka.join().ok().context("Kafka's starter panicked")??;
        let served = served_versions(ours.address())?;
        Ok(Pair {
            ours,
            kafka,
            served,
        })
    };
    PAIR.get_or_init(|| start().map_err(|e| format!("{e:#}")))
        .as_ref()
        .map_err(|e| anyhow::anyhow!(e.clone()))
}

/// Plays `script` to Odradek and to Kafka and fails on every difference that [`KNOWN`] does not list for `case`.
pub fn compare(case: &str, script: impl Fn(&mut Probe) -> Result<()> + Sync) -> Result<()> {
    let pair = pair()?;
    let (ours, kafka) = (pair.ours.address(), pair.kafka.address());
    compare_servers(case, ours, kafka, &pair.served, script)
}

/// As [`compare`], and no two of these at a time: for scripts whose batches are of transactions. Kafka asks a coordinator
/// about the batches of several producers in one request, and words what it makes of the answers as the first of
/// them wants it, whatever the versions of the others.
pub fn compare_in_turn(case: &str, script: impl Fn(&mut Probe) -> Result<()> + Sync) -> Result<()> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    compare(case, script)
}

/// Plays `script` to the first node of each of two clusters, Odradek's and Kafka's, of so many nodes, at
/// the address that `at` chooses.
pub fn compare_clusters(
    case: &str,
    nodes: NodeNumber,
    at: impl Fn(Addresses) -> SocketAddr,
    script: impl Fn(&mut Probe) -> Result<()> + Sync,
) -> Result<()> {
    let start = |product| Cluster::options(product, nodes).start();
    let mut ours = match kafka_instead() {
        true => start(Product::Kafka)?,
        false => start(Product::Odradek)?,
    };
    let mut kafka = start(Product::Kafka)?;
    let address = at(ours.node(1)?.addresses());
    let kafka_address = at(kafka.node(1)?.addresses());
    compare_servers(
        case,
        address,
        kafka_address,
        &served_versions(address)?,
        script,
    )
}

/// Plays `script` to an Odradek and to a Kafka of their own that are started with further lines of server.properties,
/// the latter with a plugin (a source file and what names it).
pub fn compare_with_plugin(
    case: &str,
    properties: &[(&str, &str)],
    (plugin, named_by): (&str, (&str, &str)),
    script: impl Fn(&mut Probe) -> Result<()> + Sync,
) -> Result<()> {
    let start = || {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(plugin);
        let options = Kafka::options().plugin(&source);
        let lines = properties.iter().chain([&named_by]);
        let options = lines.fold(options, |options, (key, value)| options.set(key, value));
        options.start()
    };
    let kafka = start()?;
    if kafka_instead() {
        let other = start()?;
        let address = other.address();
        let served = served_versions(address)?;
        return compare_servers(case, address, kafka.address(), &served, script);
    }
    let ours = Server::with(properties)?;
    let served = served_versions(ours.address())?;
    compare_servers(case, ours.address(), kafka.address(), &served, script)
}

fn compare_servers(
    case: &str,
    ours: SocketAddr,
    kafka: SocketAddr,
    served: &Served,
    script: impl Fn(&mut Probe) -> Result<()> + Sync,
) -> Result<()> {
    let play = |address| -> Result<Probe> {
        let mut probe = Probe::new(address, served.clone());
        script(&mut probe)?;
        Ok(probe)
    };
    let (ours, theirs) = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| play(kafka));
        (play(ours), theirs.join())
    });
    let theirs = theirs
        .ok()
        .context("the script panicked")?
        .context("while Kafka was asked")?;
    let ours = ours.context("while Odradek was asked")?;
    for row in COMPARED.iter().filter(|row| row.case == case) {
        let missing: Vec<i16> = row
            .versions()
            .filter(|version| !ours.sent().contains(&(row.api as i16, *version)))
            .collect();
        if !missing.is_empty() {
            bail!(
                "{case} is listed as comparing {:?} v{missing:?}, and does not",
                row.api
            );
        }
    }
    // Kafka beside itself shows whether a script gets the same answers twice at all.
    let known = if kafka_instead() {
        Vec::new()
    } else {
        KNOWN
            .iter()
            .flat_map(Differences::each)
            .filter(|known| known.case == case)
            .collect()
    };
    let report = report(known, ours.steps(), theirs.steps());
    if !report.is_empty() {
        bail!("{case}: Odradek and Kafka differ\n{report}");
    }
    Ok(())
}

fn report(known: Vec<Known>, ours: &[Step], theirs: &[Step]) -> String {
    let mut applied = vec![false; known.len()];
    let mut report = String::new();
    if ours.len() != theirs.len() {
        let _ = writeln!(
            report,
            "{} answers of Odradek, {} of Kafka",
            ours.len(),
            theirs.len()
        );
    }
    // What differs in the same way at several versions is told once.
    let mut told: Vec<(String, Vec<i16>)> = Vec::new();
    for (ours, theirs) in ours.iter().zip(theirs) {
        for difference in ours.answer.differences(&theirs.answer) {
            let pattern = difference.pattern();
            let listed = known.iter().position(|known| {
                known.api == ours.api
                    && ours.label.starts_with(known.asked)
                    && pattern
                        .strip_prefix(known.path)
                        .is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
            });
            if let Some(applied) = listed.and_then(|index| applied.get_mut(index)) {
                *applied = true;
                continue;
            }
            let text = format!(
                "({}) {}:\n    odradek {}\n    kafka   {}",
                ours.label, difference.path, difference.left, difference.right
            );
            let text = format!("{} {text}", ours.api);
            match told.iter_mut().find(|(known, _)| *known == text) {
                Some((_, versions)) => versions.push(ours.version),
                None => told.push((text, vec![ours.version])),
            }
        }
    }
    for (text, versions) in told {
        let _ = writeln!(report, "v{versions:?} {text}");
    }
    for (known, _) in known.iter().zip(&applied).filter(|(_, applied)| !**applied) {
        let _ = writeln!(
            report,
            "listed as known, but equal: {} ({}) {}",
            known.api, known.asked, known.path
        );
    }
    report
}
