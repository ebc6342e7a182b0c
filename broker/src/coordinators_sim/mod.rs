//! Groups and transactions in virtual time, driven by a seed: the broker's own group coordinators, transaction
//! coordinators, their runtime, what tells partitions the ends of transactions, and the state of producers in
//! partitions, on three brokers.
//!
//! Played are the clients, the network and the replicated logs. Members of both protocols join, beat, commit, leave,
//! stand still, die, and wake up; producers of both dialects write in transactions, commit offsets in them, end
//! them, and go on after they have been replaced. Messages are late, lost, and come twice; leaders lose
//! their terms with what they had not committed, or some of it, and learn of it late; logs stand still; brokers
//! die and come back. [`checker`] has the rules; `rules_tests` breaks something on purpose and sees each of them
//! notice.
//!
//! Which seeds are run is said by what [`crate::sim_support`] reads; `ODRADEK_SIM_TRACE=1` prints what happened.
//!
//! Absent on purpose: connections, versions of requests and the codec; topics that come and go; a marker of the
//! dialect before KIP-890 that is carried out after nobody waits for it any more, which may end the next
//! transaction (docs/GAPS.md).

mod checker;
mod classic;
mod consumer;
mod dice;
mod holding;
mod log;
mod producer;
mod readers;
mod rules_tests;
mod sabotage;
mod shell;
mod world;

use std::sync::Arc;
use std::time::Duration;

use checker::{Counts, Rule};
use classic::Classic;
use consumer::Consumer;
use producer::Producer;
use sabotage::Sabotage;
use world::{NODES, PARTITIONS, Place, World};

use crate::groups::messages::Described;
use crate::groups::names::{GroupId, InstanceId};
use crate::sim_support::{PrintOnPanic, seeds, simulate};
use crate::txn::messages::ListRequest;
use crate::txn::names::TxnVersion;
use crate::txn::records::TxnState;

/// How long things go wrong.
const FAULTS_MS: i64 = 25_000;
/// How long it may take after that until everything is as it should be.
const SETTLED_WITHIN_MS: i64 = 60_000;

/// What a run came to.
#[derive(Debug)]
struct Outcome {
    digest: (u64, u64),
    violations: Vec<(Rule, String)>,
    counts: Counts,
    trace: Vec<String>,
}

/// The clients of a run.
struct Cast {
    groups: Vec<String>,
    ids: usize,
}

fn cast(world: &Arc<World>) -> Cast {
    let dice = &world.dice;
    let kinds = ["eager", "cooperative", "next", "mixed"];
    let first = dice.index(kinds.len());
    let groups = [kinds[first], kinds[(first + 1 + dice.index(3)) % 4]];
    let mut names = Vec::new();
    for group in groups {
        // Names decide which coordinator it is.
        let group_id = format!("{group}-{}", dice.below(3));
        for number in 0..2 + dice.below(2) {
            let name = format!("{group}{number}");
            let is_static = dice.chance(1, 3);
            let instance = is_static.then(|| InstanceId::new(&format!("{name}-static")));
            let is_next = group == "next" || (group == "mixed" && number % 2 == 0);
            if is_next {
                let member = Consumer {
                    group: group_id.clone(),
                    name,
                    instance,
                };
                tokio::spawn(consumer::play(Arc::clone(world), member));
            } else {
                let member = Classic {
                    group: group_id.clone(),
                    name,
                    cooperative: group != "eager",
                    instance,
                };
                tokio::spawn(classic::play(Arc::clone(world), member));
            }
        }
        names.push(group_id);
    }
    let ids = 2;
    for number in 0..ids {
        let dialect = match world.version == TxnVersion::V2 && dice.chance(2, 3) {
            true => TxnVersion::V2,
            false => TxnVersion::V0,
        };
        tokio::spawn(producer::play(
            Arc::clone(world),
            Producer { number, dialect },
        ));
    }
    tokio::spawn(readers::audit(Arc::clone(world), names.clone(), ids));
    tokio::spawn(readers::read(Arc::clone(world)));
    Cast { groups: names, ids }
}

/// Lets things go wrong.
async fn torment(world: &Arc<World>) {
    let places: Vec<Place> = world.logs.keys().copied().collect();
    while world.now_ms() < FAULTS_MS {
        world.dice.pause(50, 900).await;
        let node = world.dice.index(NODES);
        let place = places[world.dice.index(places.len())];
        match world.dice.below(20) {
            0 => world.kill_node(node),
            1..4 => world.start_node(node).await,
            4..8 => world.depose(place),
            8..11 => {
                world.note(&format!("{place:?} stands still"));
                world.logs[&place].stall(world.dice.below(1_500));
            }
            11 => world.logs[&place].stall(world.dice.below(5_000)),
            // What is not committed may get lost.
            12..14 => {
                world.logs[&place].stall(400);
                world.dice.pause(50, 400).await;
                world.depose(place);
            }
            14 => world.lose(world.dice.below(40)),
            15..19 => world.lose(1),
            _ => places.iter().for_each(|place| world.depose(*place)),
        }
    }
}

/// Whether every group is stable and has all its partitions shared out.
async fn is_settled(world: &Arc<World>, cast: &Cast) -> Result<(), String> {
    for group in &cast.groups {
        let place = world.coordinator_of_group(group);
        let lead = world
            .ready_lead(place)
            .ok_or_else(|| format!("{place:?} is not led"))?;
        let process = world.process(lead.node).ok_or("the leader is gone")?;
        let described = process.groups.describe(GroupId::new(group)).await;
        let state = match described.map_err(|error| error.to_string())? {
            Described::Classic(group) => group.state,
            Described::OtherKind => {
                let group = process.groups.describe_consumer(GroupId::new(group)).await;
                group.ok().flatten().map_or("Missing", |group| group.state)
            }
            Described::Missing => "Missing",
        };
        if state != "Stable" {
            return Err(format!("{group} is {state}"));
        }
        for partition in 0..PARTITIONS {
            let holders = world
                .checker
                .lock()
                .holders(group, partition, world.now_ms());
            if holders != 1 {
                return Err(format!("{group}-{partition} is held by {holders}"));
            }
        }
    }
    Ok(())
}

/// Whether no transaction is open.
async fn is_decided(world: &Arc<World>) -> Result<(), String> {
    for (place, log) in &world.logs {
        let lead = log.state().ready_lead();
        let lead = lead.ok_or_else(|| format!("{place:?} is not led"))?;
        let undecided = log.state().producers.first_unstable_offset();
        if let Some(offset) = undecided {
            return Err(format!("{place:?} is undecided from {offset}"));
        }
        if let Place::Transactions(_) = place {
            let process = world.process(lead.node).ok_or("the leader is gone")?;
            let open = ListRequest {
                states: Some(vec![
                    TxnState::Ongoing,
                    TxnState::PrepareCommit,
                    TxnState::PrepareAbort,
                ]),
                open_for_ms: -1,
                ..ListRequest::default()
            };
            let listed = process
                .txns
                .list(&open)
                .await
                .map_err(|error| error.to_string())?;
            if !listed.is_empty() {
                return Err(format!("{place:?} has {listed:?}"));
            }
        }
    }
    Ok(())
}

/// Waits until `look` finds everything as it should be.
async fn wait_for<F: Future<Output = Result<(), String>>>(
    world: &Arc<World>,
    rule: Rule,
    look: impl Fn() -> F,
) {
    let deadline_ms = world.now_ms() + SETTLED_WITHIN_MS;
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let Err(why) = look().await else {
            return;
        };
        if world.now_ms() > deadline_ms {
            return world.violated(rule, why);
        }
    }
}

async fn run(seed: u64, sabotage: Option<Sabotage>, keeps_trace: bool) -> Outcome {
    let world = World::new(seed, sabotage, keeps_trace);
    for node in 0..NODES {
        world.start_node(node).await;
    }
    for place in world.logs.keys() {
        world.elect(*place).await;
    }
    let cast = cast(&world);
    torment(&world).await;
    world.be_calm();
    for node in 0..NODES {
        world.start_node(node).await;
    }
    wait_for(&world, Rule::GroupsSettle, || is_settled(&world, &cast)).await;
    world.wind_down();
    // Zombies wake up at last.
    tokio::time::sleep(Duration::from_secs(9)).await;
    wait_for(&world, Rule::TransactionsEnd, || is_decided(&world)).await;
    wait_for(&world, Rule::GroupsSettle, || is_settled(&world, &cast)).await;
    finish(&world, &cast).await;
    let checker = world.checker.lock();
    Outcome {
        digest: checker.digest(),
        violations: checker.violations().to_vec(),
        counts: checker.counts,
        trace: checker.trace().to_vec(),
    }
}

async fn finish(world: &Arc<World>, cast: &Cast) {
    let mut offsets = Vec::new();
    for number in 0..cast.ids {
        let mut found = None;
        for _ in 0..50 {
            found = readers::offset(world, producer::GROUP, number as i32, true).await;
            if found.is_some() {
                break;
            }
            world.dice.pause(50, 100).await;
        }
        match found {
            Some(found) => offsets.push(found),
            None => {
                world.violated(
                    Rule::TransactionsEnd,
                    format!("the offset of id {number} stays undecided"),
                );
                offsets.push(None);
            }
        }
    }
    let logs: Vec<_> = (0..PARTITIONS)
        .map(|index| shell::logged(&world.logs[&Place::Records(index)].state()))
        .collect();
    world.checker.lock().finish(&logs, &offsets);
}

fn simulated(seed: u64, sabotage: Option<Sabotage>) -> Outcome {
    let keeps_trace = std::env::var_os("ODRADEK_SIM_TRACE").is_some();
    simulate(run(seed, sabotage, keeps_trace))
}

#[test]
fn groups_and_transactions_keep_their_promises_whatever_happens() {
    let seeds = seeds(40);
    let began = std::time::Instant::now();
    let mut total = Counts::default();
    for (done, seed) in (1_u64..).zip(&seeds) {
        let said = PrintOnPanic::of(*seed);
        let outcome = simulated(*seed, None);
        if std::env::var_os("ODRADEK_SIM_TRACE").is_some() {
            outcome.trace.iter().for_each(|line| eprintln!("{line}"));
        }
        assert!(
            outcome.violations.is_empty(),
            "seed {seed}: {:#?}",
            outcome.violations
        );
        said.passed();
        total.add(outcome.counts);
        if done % 100 == 0 || seeds.len() == 1 {
            let minutes = began.elapsed().as_secs_f64() / 60.0;
            eprintln!(
                "{done} seeds, the last {seed}, {:.0} a minute: {total:?}",
                done as f64 / minutes
            );
        }
    }
    assert!(
        seeds.len() < 20 || total.is_something(),
        "hardly anything happened: {total:?}"
    );
}

#[test]
fn a_seed_replays_the_same_run() {
    for seed in [3, 4] {
        let (first, second) = (simulated(seed, None), simulated(seed, None));
        assert_eq!(first.digest, second.digest, "seed {seed}");
    }
}
