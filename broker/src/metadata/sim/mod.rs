//! The metadata group in virtual time, on simulated disks and an in-memory network, driven by a seed: the
//! real controller, log, images, checkpoints and sessions of five nodes, three of which vote.
//!
//! Nodes are cut off from each other, slowed down, stopped for a while, killed, restarted, and lose what
//! their disks had not synced; brokers register anew with every start, topics come, change and go, leaders
//! are reported, replicas reassigned. Checkpoints are taken every few kilobytes, so that replicas that were
//! away are given one. `checker` says what must hold throughout.
//!
//! Which seeds are run is said by what [`crate::sim_support`] reads.

mod checker;
mod commands;
mod world;

use std::time::Duration;

use rand::Rng;

use crate::sim_support::{PrintOnPanic, seeds, simulate};
use world::World;

/// Things that happen to a world before it is mended.
const STEPS: usize = 150;

async fn step(world: &mut World) {
    let (one, other) = (world.any(), world.any());
    let action = world.random.random_range(0..120);
    world.trace.push(format!("{action} {one} {other}"));
    match action {
        0..60 => world.ask_something(),
        60..65 => world.cut(one, other),
        65..68 => world.cut_one_way(one, other),
        68..78 => world.heal(),
        78..84 => world.slow_down(one, other),
        84..88 => world.kill(one, true).await,
        88..90 => world.kill(one, false).await,
        90..91 => world.kill_all().await,
        91..103 => world.start_node(one).await,
        103..106 => world.hand_over(one).await,
        106..109 => world.network.freeze(world::node_id(one)),
        109..117 => world.network.thaw(world::node_id(one)),
        _ => {}
    }
    let longest = match world.random.random_ratio(1, 6) {
        true => 900,
        false => 120,
    };
    let pause = world.random.random_range(0..longest);
    world.pass(Duration::from_millis(pause)).await;
}

/// What happened, and what it came to.
struct Outcome {
    trace: Vec<String>,
    records: i64,
    acknowledged: usize,
    checkpoints: usize,
    installed: usize,
}

async fn run(seed: u64) -> Outcome {
    let mut world = World::start(seed).await;
    for _ in 0..STEPS {
        step(&mut world).await;
    }
    world.settle().await;
    Outcome {
        records: world.checker.end(),
        acknowledged: world.checker.acknowledged(),
        checkpoints: world.checkpoints_seen(),
        installed: world.checker.jumps(),
        trace: world.trace,
    }
}

#[test]
fn no_answered_change_is_lost_and_all_images_are_the_same_whatever_happens() {
    let (mut installed, mut acknowledged) = (0, 0);
    let seeds = seeds(20);
    for seed in &seeds {
        let said = PrintOnPanic::of(*seed);
        let outcome = simulate(run(*seed));
        said.passed();
        installed += outcome.installed;
        acknowledged += outcome.acknowledged;
        eprintln!(
            "seed {seed}: {} records, {} changes acknowledged, {} checkpoints, {} taken over",
            outcome.records, outcome.acknowledged, outcome.checkpoints, outcome.installed
        );
    }
    let few = 20 * seeds.len();
    assert!(
        acknowledged > few || seeds.len() == 1,
        "hardly anything was carried out"
    );
    assert!(
        seeds.len() < 20 || installed > 0,
        "no replica was ever given a checkpoint"
    );
}

#[test]
fn a_seed_replays_the_same_run() {
    let (first, second) = (simulate(run(3)), simulate(run(3)));
    assert_eq!(first.trace, second.trace);
    assert_eq!(first.records, second.records);
    assert_eq!(first.acknowledged, second.acknowledged);
}
