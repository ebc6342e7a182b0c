//! Random histories of producers, partitions and coordinators that crash and move, from a seed.
//!
//! The coordinator and the partitions' producer state are the real ones; clients, the network between
//! them and the log of the coordinator are simulated. Replies and markers are lost, markers come
//! twice, and of new clients (KIP-890) even long after they were dealt with. Invariants:
//!
//! - *never half*: a transaction is committed in all its partitions or aborted in all of them;
//! - *an answered end is never undone*: what EndTxn was answered with is what partitions know;
//! - *read_committed sees every committed record once, in order, and no aborted one*;
//! - *nothing hangs*: in the end no partition has an open transaction;
//! - *live = replayed*: a coordinator that reads the log is in the state of the one that wrote it.
//!
//! `ODRADEK_SEED=n` replays one history.

mod clients;
mod invariants;
mod partition;
mod telling;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use odradek_protocol::ids::{ProducerId, TimestampMs, TopicId};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use partition::{End, Partition};

use super::config::CoordinatorConfig;
use super::coordinator::{TxnCoordinator, persistent_view};
use super::messages::{DecidedTxn, TxnEffects, TxnReply, TxnRequest, TxnTimer};
use super::names::{TransactionalId, TxnVersion};
use super::records::TxnRecord;
use crate::coordinator::effects::{Effects, ProducerIdentity, RequestToken};
use crate::coordinator::{LogRecord as _, StateMachine as _};

const PARTITIONS: usize = 3;
const IDS: usize = 2;
const CLIENTS: usize = 3;
const TIMEOUT_MS: i32 = 1_000;

/// One write of a transaction.
#[derive(Clone, Debug)]
struct Write {
    partition: usize,
    sequence: i32,
    value: u64,
    acknowledged: bool,
}

#[derive(Debug, Default)]
struct ClientTxn {
    number: u64,
    added: HashSet<usize>,
    writes: Vec<Write>,
    /// How it is to end, once that is clear.
    ending: Option<bool>,
}

#[derive(Debug)]
struct Client {
    id: TransactionalId,
    producer: Option<ProducerIdentity>,
    sequences: [i32; PARTITIONS],
    txn: Option<ClientTxn>,
}

/// A decided transaction on its way to its partitions.
struct Telling {
    decided: DecidedTxn,
    left: Vec<usize>,
}

type Replies = Vec<(RequestToken, TxnReply)>;

struct World {
    rng: StdRng,
    version: TxnVersion,
    now_ms: i64,
    coordinator: TxnCoordinator,
    coordinator_epoch: i32,
    log: Vec<TxnRecord>,
    /// Written and not committed yet, each with the replies that wait for it.
    pending: VecDeque<(Vec<TxnRecord>, Replies)>,
    replies: HashMap<RequestToken, TxnReply>,
    next_token: u64,
    next_number: u64,
    teller: Option<RequestToken>,
    telling: Vec<Telling>,
    /// Markers that come again, long after they were dealt with.
    late: Vec<(usize, End)>,
    partitions: Vec<Partition>,
    clients: Vec<Client>,
    /// Values of a transaction, in the order in which they were acknowledged.
    acknowledged: BTreeMap<u64, Vec<Write>>,
    /// The transaction of a value.
    txn_of: HashMap<u64, u64>,
    /// What EndTxn was answered with.
    answered: BTreeMap<u64, bool>,
}

fn config() -> CoordinatorConfig {
    CoordinatorConfig {
        // A client that waits is told at once, so that every call of this test returns.
        completion_wait_ms: 0,
        ..CoordinatorConfig::default()
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let version = match rng.random_bool(0.5) {
            true => TxnVersion::V2,
            false => TxnVersion::V0,
        };
        let clients = (0..CLIENTS).map(|number| Client {
            // Two share an id, and fence each other.
            id: TransactionalId::new(&format!("id-{}", number % IDS)),
            producer: None,
            sequences: [0; PARTITIONS],
            txn: None,
        });
        let mut world = Self {
            rng,
            version,
            now_ms: 1_000_000,
            coordinator: TxnCoordinator::new(config(), version),
            coordinator_epoch: 1,
            log: Vec::new(),
            pending: VecDeque::new(),
            replies: HashMap::new(),
            next_token: 0,
            next_number: 0,
            teller: None,
            telling: Vec::new(),
            late: Vec::new(),
            partitions: (0..PARTITIONS).map(|_| Partition::default()).collect(),
            clients: clients.collect(),
            acknowledged: BTreeMap::new(),
            txn_of: HashMap::new(),
            answered: BTreeMap::new(),
        };
        world.event(|coordinator, now, effects| coordinator.loaded(now, effects));
        world
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn event(&mut self, event: impl FnOnce(&mut TxnCoordinator, TimestampMs, &mut TxnEffects)) {
        let mut effects = Effects::default();
        let now = TimestampMs::new(self.now_ms);
        event(&mut self.coordinator, now, &mut effects);
        if effects.records.is_empty() && self.pending.is_empty() {
            self.replies.extend(effects.replies);
        } else {
            self.pending.push_back((effects.records, effects.replies));
        }
    }

    fn ask(&mut self, request: TxnRequest) -> RequestToken {
        let token = RequestToken::new(self.next_token);
        self.next_token += 1;
        self.event(|coordinator, now, effects| coordinator.handle(token, request, now, effects));
        token
    }

    fn commit_all(&mut self) {
        while let Some((records, replies)) = self.pending.pop_front() {
            self.log.extend(records);
            self.replies.extend(replies);
        }
    }

    /// The coordinator dies, with what it had not committed or some of it, and another takes over.
    fn crash(&mut self) {
        let survive = self.rng.random_range(0..=self.pending.len());
        for (records, _lost) in self.pending.drain(..survive) {
            self.log.extend(records);
        }
        self.pending.clear();
        self.load();
    }

    fn load(&mut self) {
        let mut next = TxnCoordinator::new(config(), self.version);
        for record in &self.log {
            let (key, value) = (record.encode_key(), record.encode_value());
            next.replay(Some(&key), value.as_deref(), TimestampMs::new(self.now_ms));
        }
        self.coordinator = next;
        self.coordinator_epoch += 1;
        self.telling.clear();
        self.teller = None;
        self.event(|coordinator, now, effects| coordinator.loaded(now, effects));
    }

    fn require_live_is_replayed(&mut self) {
        self.commit_all();
        let mut replayed = TxnCoordinator::new(config(), self.version);
        for record in &self.log {
            let (key, value) = (record.encode_key(), record.encode_value());
            replayed.replay(Some(&key), value.as_deref(), TimestampMs::new(self.now_ms));
        }
        let strip = |coordinator: &TxnCoordinator| {
            let mut view = persistent_view(coordinator);
            for transaction in view.values_mut().filter(|_| self.version == TxnVersion::V0) {
                // The old schema has no place for these.
                transaction.previous_producer_id = ProducerId::NONE;
                transaction.next_producer_id = ProducerId::NONE;
                for topic in transaction.partitions.values_mut() {
                    topic.id = TopicId::ZERO;
                }
            }
            view
        };
        assert_eq!(
            strip(&self.coordinator),
            strip(&replayed),
            "live = replayed"
        );
    }

    /// A request of a client; `None` if it does not hear the answer.
    fn call(&mut self, request: TxnRequest) -> Option<TxnReply> {
        if self.rng.random_bool(0.03) {
            return None;
        }
        let token = self.ask(request);
        if self.rng.random_bool(0.04) {
            self.crash();
            return None;
        }
        self.commit_all();
        let reply = self.replies.remove(&token);
        reply.filter(|_| !self.rng.random_bool(0.03))
    }

    fn step(&mut self) {
        self.now_ms += self.rng.random_range(0..5);
        match self.rng.random_range(0..100) {
            0..60 => {
                let number = self.rng.random_range(0..CLIENTS);
                self.client_step(number);
            }
            60..90 => self.tell_one(),
            90..94 => self.late_marker(),
            94..96 => {
                self.now_ms += self.rng.random_range(0..2 * i64::from(TIMEOUT_MS));
                self.event(|coordinator, now, effects| {
                    coordinator.timer_fired(TxnTimer::TimedOut, now, effects);
                });
            }
            96..98 => self.commit_all(),
            _ => self.crash(),
        }
    }

    /// Clients stop; everything that is open times out, and every partition is told.
    fn settle(&mut self) {
        self.commit_all();
        self.now_ms += 10 * i64::from(TIMEOUT_MS);
        self.event(|coordinator, now, effects| {
            coordinator.timer_fired(TxnTimer::TimedOut, now, effects);
        });
        self.load_after_commit();
        for _ in 0..10_000 {
            self.tell_one();
            self.commit_all();
            let is_settled = self
                .coordinator
                .iter()
                .all(|(_, known)| !known.state.is_prepared());
            if is_settled {
                while !self.late.is_empty() {
                    self.late_marker();
                }
                return;
            }
        }
        panic!("partitions are not told in the end");
    }

    fn load_after_commit(&mut self) {
        self.commit_all();
        self.load();
    }
}

fn one_history(seed: u64) {
    let mut world = World::new(seed);
    for step in 0..600 {
        world.step();
        if step % 50 == 0 {
            world.require_live_is_replayed();
        }
    }
    world.settle();
    world.check();
}

#[test]
fn random_histories_keep_the_promises_of_transactions() {
    let given = std::env::var("ODRADEK_SEED").ok();
    if let Some(seed) = given.and_then(|seed| seed.parse().ok()) {
        return one_history(seed);
    }
    let count = std::env::var("ODRADEK_HISTORIES")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(300_u64);
    let first = rand::rng().random::<u32>();
    for seed in u64::from(first)..u64::from(first) + count {
        println!("ODRADEK_SEED={seed}");
        one_history(seed);
    }
}
