//! A short run of the nemesis. The long one is `cargo run --release -p compat-tests --bin nemesis`.

use std::time::Duration;

use anyhow::{Result, ensure};
use compat_tests::cluster::campaign::{Campaign, Verdict};
use compat_tests::cluster::{Cluster, NetworkKind, NodeNumber, Product};

use crate::alone;

const PARTITIONS: i32 = 3;
/// Clusters over which the kinds of faults are dealt out.
const HANDS: usize = 4;
/// Producers of librdkafka that may not come back from a call in one campaign, which is a fault of librdkafka's (see
/// its copier). More would be no accident.
const MAX_HUNG: usize = 3;

fn seed() -> Result<u64> {
    match std::env::var("ODRADEK_SEED") {
        Ok(seed) => Ok(seed.parse()?),
        Err(_) => Ok(rand::random_range(0..1_000_000)),
    }
}

fn campaign(nodes: NodeNumber, disks: bool, network: NetworkKind) -> Campaign {
    Campaign {
        cluster: Cluster::options(Product::Odradek, nodes).network(network),
        nodes,
        disks,
        partitions: PARTITIONS,
        java: false,
        length: Duration::from_secs(15),
    }
}

fn judge(verdict: &Verdict) -> Result<()> {
    eprintln!("{}", verdict.line());
    ensure!(
        verdict.violations.is_empty(),
        "{}\n{}",
        verdict.line(),
        verdict.details()
    );
    ensure!(
        verdict.given_up.is_empty(),
        "producers that found no way on: {:?}",
        verdict.given_up
    );
    ensure!(
        verdict.hung <= MAX_HUNG,
        "{} of librdkafka's producers hung",
        verdict.hung
    );
    ensure!(verdict.acknowledged > 0, "nothing was acknowledged");
    ensure!(verdict.ended > 0, "no transaction was ended");
    ensure!(verdict.commits > 0, "no member has committed");
    Ok(())
}

/// Each kind of fault happens once, on one of four clusters.
#[test]
fn nothing_is_lost_whatever_happens_to_nodes_networks_and_disks() -> Result<()> {
    let _alone = alone();
    let seed = seed()?;
    for hand in 0..HANDS {
        eprintln!("hand {hand} of seed {seed}");
        judge(&campaign(3, true, NetworkKind::Any).run_dealt(seed, hand, HANDS)?)?;
    }
    Ok(())
}

#[test]
fn nothing_is_lost_on_slow_links() -> Result<()> {
    let _alone = alone();
    judge(&campaign(3, false, NetworkKind::Relays).run(seed()?)?)
}

#[test]
fn nothing_is_lost_among_five_nodes() -> Result<()> {
    let _alone = alone();
    judge(&campaign(5, true, NetworkKind::Any).run(seed()?)?)
}
