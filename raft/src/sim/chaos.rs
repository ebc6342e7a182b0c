//! Clusters to which everything happens at random.
//!
//! Nodes are cut off from each other, both ways and one way, slowed down, stopped for a while,
//! killed, restarted, and lose what their disks had not synced, one by one and all at once;
//! leadership is handed over, the log start moves, voters are replaced, logs are compacted; and all the while whoever
//! takes itself for the leader is written to. `invariants` says what must hold throughout.
//!
//! `ODRADEK_SIM_SEEDS=n` runs n seeds of each kind of cluster, beginning with `ODRADEK_SIM_FIRST`.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::cluster::{Cluster, Shape};
use super::drawn::Drawn;
use super::{for_seeds, simulate};

/// Three voters whose own clocks notice that a leader is gone.
const CLOCKED: Shape = Shape {
    voters: 3,
    spares: 0,
    detects: false,
    compacts: false,
};
/// Three voters with failure detectors.
const THREE: Shape = Shape {
    detects: true,
    ..CLOCKED
};
/// Five voters with failure detectors.
const FIVE: Shape = Shape { voters: 5, ..THREE };
/// Three voters that change places with two others.
const MOVING: Shape = Shape { spares: 2, ..THREE };
/// The same, of replicas that compact their logs and have to be given records.
const COMPACTING: Shape = Shape {
    compacts: true,
    ..MOVING
};

async fn step(cluster: &mut Cluster, shape: Shape) {
    let Drawn {
        one,
        other,
        index,
        action,
    } = cluster.draw(128);
    match action {
        0..45 => cluster.produce(),
        45..50 => cluster.network.cut(one, other),
        50..54 => cluster.network.cut_one_way(one, other),
        54..64 => cluster.network.heal(),
        64..70 => cluster.delay(one, other, 40),
        70..74 => cluster.kill(index, true).await,
        74..84 => cluster.start_replica(index).await,
        84..88 => cluster.hand_over(one).await,
        88..90 => cluster.advance_log_start(),
        90..100 if shape.compacts => cluster.compact(index),
        100..106 if shape.detects => cluster.network.freeze(one),
        106..116 if shape.detects => cluster.network.thaw(one),
        116..119 if shape.detects => cluster.kill(index, false).await,
        119..120 if shape.detects => cluster.kill_all().await,
        120..128 if shape.spares > 0 => cluster.change_voters(),
        _ => {}
    }
    cluster.pause(shape.detects.then_some(6)).await;
}

/// What was done, what was shown, how many batches were acknowledged; and of a group that compacts,
/// how often that was done, and records were given.
type Outcome = (Vec<String>, BTreeMap<i64, (u64, Bytes)>, usize, [u64; 2]);

async fn run(seed: u64, shape: Shape, steps: usize) -> Outcome {
    let mut cluster = Cluster::start(seed, shape).await;
    for _ in 0..steps {
        step(&mut cluster, shape).await;
    }
    cluster.end().await;
    let acknowledged = cluster.acknowledged.lock().len();
    let nodes = cluster.replicas.iter().filter_map(|it| it.group.as_ref());
    let given = cluster.given + nodes.map(|group| group.transfers.opened()).sum::<u64>();
    let compactions = cluster.compactions.load(Ordering::Relaxed);
    (
        cluster.trace,
        cluster.seen,
        acknowledged,
        [compactions, given],
    )
}

fn survives(shape: Shape, seeds: u64) {
    // As much has to be written to a log that is to be compacted.
    let steps = if shape.compacts { 300 } else { 120 };
    for_seeds(seeds, |seed| async move {
        let (_, seen, acknowledged, [compactions, given]) = run(seed, shape, steps).await;
        if shape.compacts {
            eprintln!(
                "seed {seed}: {acknowledged} acknowledged, {compactions} compactions, records given \
                 {given} times"
            );
            return;
        }
        eprintln!(
            "seed {seed}: {} batches shown, {acknowledged} acknowledged",
            seen.len()
        );
    });
}

#[test]
fn nothing_acknowledged_is_lost_and_replicas_agree_whatever_happens() {
    survives(CLOCKED, 24);
}

#[test]
fn three_voters_with_failure_detectors_lose_nothing_and_one_serves() {
    survives(THREE, 16);
}

#[test]
fn five_voters_with_failure_detectors_lose_nothing_and_one_serves() {
    survives(FIVE, 8);
}

#[test]
fn a_group_that_moves_between_nodes_loses_nothing_and_one_serves() {
    survives(MOVING, 16);
}

#[test]
fn replicas_that_compact_their_logs_agree_on_the_newest_of_every_key_whatever_happens() {
    survives(COMPACTING, 24);
}

#[test]
fn a_seed_replays_the_same_run() {
    for shape in [CLOCKED, MOVING] {
        let first = simulate(3, run(3, shape, 60));
        let second = simulate(3, run(3, shape, 60));
        assert_eq!(first.0, second.0);
        assert_eq!(first.1, second.1);
        assert_eq!(first.2, second.2);
    }
}
