//! Clusters to which everything happens at random, and whose voters are given up now and then although
//! they may be at work: each time some replica begins a new incarnation, and the others hear of it late,
//! or in the middle of a power cut.
//!
//! What must hold is what holds of any cluster (`invariants`), counted from what the newest founder had
//! when it began: nothing that is acknowledged in an incarnation is lost in it, no batch of an earlier
//! one comes in, and in the end all replicas have the same.

use super::cluster::{Cluster, Shape};
use super::drawn::Drawn;
use super::for_seeds;

const THREE: Shape = Shape {
    voters: 3,
    spares: 0,
    detects: true,
    compacts: false,
};

async fn step(cluster: &mut Cluster) {
    let Drawn {
        one,
        other,
        index,
        action,
    } = cluster.draw(100);
    match action {
        0..40 => cluster.produce(),
        40..46 => cluster.network.cut(one, other),
        46..49 => cluster.network.cut_one_way(one, other),
        49..56 => cluster.network.heal(),
        // What was sent in one incarnation arrives in another.
        56..62 => cluster.delay(one, other, 400),
        62..65 => cluster.kill(index, true).await,
        65..73 => cluster.start_replica(index).await,
        73..75 => cluster.advance_log_start(),
        75..78 => cluster.elect_unclean().await,
        78..88 => cluster.learn(index).await,
        88..91 => cluster.learn_and_die(index).await,
        91..98 => cluster.restore_voters(),
        98..99 => cluster.kill_all().await,
        _ => cluster.hand_over(one).await,
    }
    cluster.pause(Some(5)).await;
}

#[test]
fn incarnations_are_never_merged_and_lose_nothing_of_their_own() {
    for_seeds(16, |seed| async move {
        let mut cluster = Cluster::start(seed, THREE).await;
        for _ in 0..120 {
            step(&mut cluster).await;
        }
        let members = cluster.end().await;
        eprintln!(
            "seed {seed}: {} batches shown, {} acknowledged, last group {}",
            cluster.seen.len(),
            cluster.acknowledged.lock().len(),
            members[0].key(),
        );
    });
}
