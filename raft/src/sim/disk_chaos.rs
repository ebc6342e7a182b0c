//! Clusters to which everything happens at random, and whose replicas lose their disks now and then: as many
//! at a time as the group can do without, and another only once the last ones hold everything again.
//!
//! What must hold is what holds of any cluster (`invariants`): nothing that was acknowledged or shown is
//! lost, whatever else happens meanwhile.

use std::sync::atomic::Ordering;

use super::cluster::{Cluster, Shape};
use super::drawn::Drawn;
use super::for_seeds;

const THREE: Shape = Shape {
    voters: 3,
    spares: 0,
    detects: true,
    compacts: false,
};
const FIVE: Shape = Shape { voters: 5, ..THREE };
const MOVING: Shape = Shape { spares: 2, ..THREE };
const COMPACTING: Shape = Shape {
    compacts: true,
    ..THREE
};

async fn step(cluster: &mut Cluster, shape: Shape) {
    let Drawn {
        one,
        other,
        index,
        action,
    } = cluster.draw(128);
    match action {
        0..40 => cluster.produce(),
        40..44 => cluster.network.cut(one, other),
        44..47 => cluster.network.cut_one_way(one, other),
        47..56 => cluster.network.heal(),
        56..60 => cluster.delay(one, other, 40),
        60..64 => cluster.kill(index, true).await,
        64..78 => cluster.start_replica(index).await,
        78..81 => cluster.hand_over(one).await,
        81..83 => cluster.advance_log_start(),
        83..86 => cluster.network.freeze(one),
        86..94 => cluster.network.thaw(one),
        94..96 => cluster.kill(index, false).await,
        96 => cluster.kill_all().await,
        97..107 => cluster.lose_disk(index).await,
        107..114 if shape.compacts => cluster.compact(index),
        107..114 if shape.spares > 0 => cluster.change_voters(),
        114..128 if shape.spares == 0 => cluster.restore_voters(),
        _ => {}
    }
    cluster.pause(Some(6)).await;
}

fn survives(shape: Shape, seeds: u64) {
    let steps = if shape.compacts { 300 } else { 160 };
    for_seeds(seeds, |seed| async move {
        let mut cluster = Cluster::start(seed, shape).await;
        for _ in 0..steps {
            step(&mut cluster, shape).await;
        }
        cluster.end().await;
        eprintln!(
            "seed {seed}: {} acknowledged, {} disks lost, {} compactions",
            cluster.acknowledged.lock().len(),
            cluster.disks_lost,
            cluster.compactions.load(Ordering::Relaxed),
        );
    });
}

#[test]
fn three_voters_that_lose_one_disk_at_a_time_lose_no_record() {
    survives(THREE, 16);
}

#[test]
fn five_voters_that_lose_two_disks_at_a_time_lose_no_record() {
    survives(FIVE, 8);
}

#[test]
fn a_group_that_moves_and_loses_disks_loses_no_record() {
    survives(MOVING, 16);
}

#[test]
fn replicas_that_compact_and_lose_disks_keep_the_newest_of_every_key() {
    survives(COMPACTING, 12);
}
