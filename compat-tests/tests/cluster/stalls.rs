//! How long clients wait when a leader fails, and what they notice of a rolling restart.
//!
//! A time counts only if the machine was the cluster's: a round during which others used much of it is played again.
//! Where others never leave it alone, the bounds are three times as wide.

use std::time::Duration;

use anyhow::{Result, ensure};
use compat_tests::bench::clients::java_produce;
use compat_tests::cluster::clients::create_topic;
use compat_tests::cluster::quiet::Watch;
use compat_tests::cluster::rolling::restart_all;
use compat_tests::cluster::stall::{Failure, one_round};
use compat_tests::cluster::{Cluster, Product};

use crate::alone;

const HEALING_PATIENCE: Duration = Duration::from_secs(120);
/// How much wider the bounds are on a machine that others use.
const WIDENED: u32 = 3;

fn the_wait_is_bounded(failure: Failure, rounds: usize, bound: Duration) -> Result<()> {
    let _alone = alone();
    let mut cluster = Cluster::options(Product::Odradek, 3).start()?;
    let topic = create_topic(&cluster.addresses(), "stall", 1, 3, &[])?;
    let (mut quiet, mut disturbed) = (Vec::new(), Vec::new());
    while quiet.len() < rounds && disturbed.len() < 2 * rounds {
        cluster.await_in_sync(HEALING_PATIENCE)?;
        let watch = Watch::begin(&mut cluster)?;
        let stall = one_round(&mut cluster, &topic, failure)?;
        let others = watch.cores_of_others(&mut cluster)?;
        eprintln!("{failure}: {stall:?}, others used {others:.2} cores");
        if watch.was_quiet(&mut cluster)? {
            quiet.push(stall);
        } else {
            disturbed.push(stall);
        }
        cluster.make_whole(HEALING_PATIENCE)?;
    }
    for stall in &quiet {
        ensure!(*stall <= bound, "{failure}: waited {stall:?}");
    }
    if quiet.len() < rounds {
        for stall in &disturbed {
            ensure!(
                *stall <= bound * WIDENED,
                "{failure}, on a busy machine: waited {stall:?}"
            );
        }
    }
    Ok(())
}

#[test]
fn a_killed_leader_costs_a_second_at_most() -> Result<()> {
    the_wait_is_bounded(Failure::Kill, 5, Duration::from_secs(1))
}

#[test]
fn a_leader_that_stands_still_costs_three_seconds_at_most() -> Result<()> {
    the_wait_is_bounded(Failure::Pause, 3, Duration::from_secs(3))
}

#[test]
fn a_leader_that_is_cut_off_costs_three_seconds_at_most() -> Result<()> {
    the_wait_is_bounded(Failure::Isolation, 3, Duration::from_secs(3))
}

#[test]
fn a_rolling_restart_brings_no_error_to_a_client_that_tries_again() -> Result<()> {
    const PARTITIONS: i32 = 3;
    const RECORDS: u64 = 3_000;
    let _alone = alone();
    let mut cluster = Cluster::options(Product::Odradek, 3).start()?;
    let topic = create_topic(&cluster.addresses(), "rolling", PARTITIONS, 3, &[])?;
    let java_topic = create_topic(&cluster.addresses(), "rolling-java", PARTITIONS, 3, &[])?;
    let bootstrap = cluster.bootstrap();
    let java = std::thread::spawn(move || java_produce(&bootstrap, &java_topic.name, RECORDS, 200));
    let noticed = restart_all(&mut cluster, &topic, PARTITIONS)?;
    eprintln!("{noticed:?}");
    ensure!(noticed.errors.is_empty(), "{:?}", noticed.errors);
    ensure!(noticed.acknowledged > 0, "nothing was acknowledged");
    ensure!(
        noticed.missed_or_doubled == 0,
        "{} records were missed or doubled",
        noticed.missed_or_doubled
    );
    let java = java
        .join()
        .map_err(|_| anyhow::anyhow!("the Java producer's thread panicked"))??;
    eprintln!("{java:?}");
    ensure!(
        java.acknowledged == RECORDS,
        "{} of {RECORDS} records of the Java producer",
        java.acknowledged
    );
    Ok(())
}
