//! Random histories of one consumer group: members that join, let go late, fall silent, leave, go away
//! and come back, commit, and send old requests again; topics that grow; and a coordinator that
//! restarts, all from one seed.
//!
//! The members are honest: they have only what they were told, and let go of everything once they
//! are fenced, once a session has passed since their last heartbeat that was answered, and once they
//! have not let go of what they should within the rebalance timeout. What must hold after every step, and
//! after every fifth where a replay is needed for it:
//!
//! - one-owner: no partition has two owners;
//! - no-old-commit: no commit lands for a partition that has had another owner since it was sent;
//! - epochs-grow: the group's epoch and the target's never go back, and the target's is not ahead;
//! - replay-is-live: a coordinator built from the log knows what the live one knows;
//! - converges: once nothing happens any more, all partitions are owned and the group is stable.
//!
//! A failure prints its seed; `ODRADEK_SEED=… cargo test -p odradek consumer::history` replays it.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

use super::assignment::Partitions;
use super::bench::{going_on, joining, set_topics, topic_id};
use crate::groups::bench::{Bench, GROUP};
use crate::groups::coordinator::persistent_view;
use crate::groups::error::GroupError;
use crate::groups::messages::{CommitRequest, ConsumerHeartbeatRequest, GroupReply, GroupRequest};
use crate::groups::names::{Epoch, GenerationId, InstanceId, MemberId, TopicName};
use odradek_protocol::ids::PartitionIndex;

const SESSION_MS: i64 = 45_000;
const REBALANCE_MS: i64 = 60_000;
const STEPS: usize = 300;
const SEEDS: u64 = 60;
const TOPICS: [&str; 2] = ["one", "two"];

type Partition = (odradek_protocol::ids::TopicId, PartitionIndex);

#[derive(Debug)]
struct Client {
    name: String,
    instance: Option<InstanceId>,
    topics: Vec<&'static str>,
    /// `None` while it is out of the group.
    epoch: Option<Epoch>,
    owned: Partitions,
    /// What it was told to have, if it has not got there.
    told: Option<Partitions>,
    told_at_ms: i64,
    answered_at_ms: i64,
    is_silent: bool,
    incarnation: u32,
}

impl Client {
    fn id(&self) -> String {
        format!("{}-{}", self.name, self.incarnation)
    }

    fn lose(&mut self) {
        self.epoch = None;
        self.owned = Partitions::default();
        self.told = None;
    }
}

/// A commit that was sent, and may arrive at any time, once or twice.
struct Stray {
    request: CommitRequest,
    partition: Partition,
    sender: usize,
    /// Changes of owners that the partition had seen.
    changes: u64,
}

struct History {
    rng: StdRng,
    bench: Bench,
    clients: Vec<Client>,
    strays: Vec<Stray>,
    /// Who had each partition last, and how often that has changed.
    owners: BTreeMap<Partition, (usize, u64)>,
    counts: [i32; 2],
    epochs: (Epoch, Epoch),
    /// Whether members change what they are subscribed to. Then a member may commit at its epoch
    /// what it has just let go of, as with Kafka.
    resubscribes: bool,
    landed: usize,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let resubscribes = rng.random_bool(0.4);
        let clients = (0..5).map(|index| Client {
            name: format!("c{index}"),
            instance: (index >= 3).then(|| InstanceId::new(&format!("i{index}"))),
            topics: TOPICS.to_vec(),
            epoch: None,
            owned: Partitions::default(),
            told: None,
            told_at_ms: 0,
            answered_at_ms: 0,
            is_silent: false,
            incarnation: 0,
        });
        let history = Self {
            clients: clients.collect(),
            bench: Bench::new(),
            rng,
            strays: Vec::new(),
            owners: BTreeMap::new(),
            counts: [3, 2],
            epochs: (Epoch::FIRST, Epoch::FIRST),
            resubscribes,
            landed: 0,
        };
        history.publish();
        history
    }

    fn publish(&self) {
        let [one, two] = self.counts;
        set_topics(&self.bench, &[("one", 1, one), ("two", 2, two)]);
    }

    fn run(mut self) -> usize {
        for step in 0..STEPS {
            self.step();
            self.check();
            if step % 5 == 0 {
                self.check_replay();
            }
        }
        self.settle_down();
        self.check_replay();
        self.landed
    }

    fn step(&mut self) {
        let index = self.rng.random_range(0..self.clients.len());
        match self.rng.random_range(0..100) {
            0..45 => self.beat(index),
            45..60 => self.let_go(index),
            60..72 => self.send_commit(index),
            72..80 => self.stray_arrives(),
            80..82 => self.leave(index, Epoch::LEAVING),
            82..84 => self.leave(index, Epoch::AWAY),
            84..86 => self.clients[index].is_silent ^= true,
            86..87 => self.crash(index),
            87..88 => self.grow(),
            88..89 => self.resubscribe(index),
            89..91 => self.bench.restart(),
            91..99 => {
                let ms = self.rng.random_range(1..4_000);
                self.advance(ms);
            }
            _ => {
                let ms = self.rng.random_range(10_000..70_000);
                self.advance(ms);
            }
        }
    }

    /// A client lets go by itself when its time is up, before the coordinator thinks so.
    fn advance(&mut self, ms: i64) {
        let until_ms = self.bench.now_ms + ms;
        while self.bench.now_ms < until_ms {
            let due_ms = self.clients.iter().filter_map(Client::due_ms).min();
            let next_ms = due_ms
                .unwrap_or(until_ms)
                .clamp(self.bench.now_ms, until_ms);
            // Up to the moment, but not through it: what is due then the clients do first.
            self.bench.advance(next_ms - self.bench.now_ms);
            let now_ms = self.bench.now_ms;
            for client in &mut self.clients {
                if client.due_ms().is_some_and(|due_ms| due_ms <= now_ms) {
                    client.lose();
                }
            }
            if next_ms == until_ms {
                break;
            }
        }
    }

    fn beat(&mut self, index: usize) {
        if self.clients[index].is_silent {
            return;
        }
        let client = &self.clients[index];
        let mut request = match client.epoch {
            Some(epoch) => {
                let mut request = going_on(&client.id(), epoch.get());
                let is_told = self.rng.random_bool(0.8);
                request.owned = is_told.then(|| client.owned.clone());
                request
            }
            None => joining(&client.id(), &client.topics),
        };
        request.instance = client.instance.clone();
        self.send(index, request);
    }

    fn send(&mut self, index: usize, request: ConsumerHeartbeatRequest) {
        let reply = self.bench.beat(request);
        let now_ms = self.bench.now_ms;
        let client = &mut self.clients[index];
        match reply {
            Ok(reply) => {
                client.epoch = Some(reply.epoch);
                client.answered_at_ms = now_ms;
                if let Some(assignment) = reply.assignment {
                    if client.told.is_none() {
                        client.told_at_ms = now_ms;
                    }
                    client.told = Some(assignment);
                }
            }
            Err(refusal) => {
                client.lose();
                let is_new = matches!(
                    refusal.error,
                    GroupError::FencedMemberEpoch
                        | GroupError::UnknownMember
                        | GroupError::FencedInstance
                );
                if is_new {
                    client.incarnation += 1;
                }
            }
        }
    }

    /// Does what it was told: lets go first, and has the new ones from then on.
    fn let_go(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let Some(told) = client.told.take() else {
            return;
        };
        for partition in told.iter() {
            let changes = match self.owners.get(&partition) {
                Some((owner, changes)) if *owner == index => *changes,
                Some((_, changes)) => changes + 1,
                None => 0,
            };
            self.owners.insert(partition, (index, changes));
        }
        self.clients[index].owned = told;
    }

    fn send_commit(&mut self, index: usize) {
        let client = &self.clients[index];
        let owned: Vec<Partition> = client.owned.iter().collect();
        let (Some(epoch), Some(partition)) = (client.epoch, owned.choose(&mut self.rng)) else {
            return;
        };
        let member = MemberId::new(&client.id());
        let generation = GenerationId::new(epoch.get());
        let name = if partition.0 == topic_id(1) {
            "one"
        } else {
            "two"
        };
        let mut request = Bench::commit_request(&member, generation, name, partition.1.get(), 1);
        request.topics[0].topic_id = partition.0;
        let changes = self
            .owners
            .get(partition)
            .map_or(0, |(_, changes)| *changes);
        self.strays.push(Stray {
            request,
            partition: *partition,
            sender: index,
            changes,
        });
        if self.rng.random_bool(0.7) {
            self.arrives(self.strays.len() - 1);
        }
    }

    fn stray_arrives(&mut self) {
        if !self.strays.is_empty() {
            let at = self.rng.random_range(0..self.strays.len());
            self.arrives(at);
        }
    }

    fn arrives(&mut self, at: usize) {
        let stray = &self.strays[at];
        let (partition, sender, changes) = (stray.partition, stray.sender, stray.changes);
        let request = GroupRequest::Commit(stray.request.clone());
        let token = self.bench.ask(request);
        let Some(GroupReply::Commit(result)) = self.bench.reply(token) else {
            panic!("a commit waits");
        };
        if result.is_err() {
            return;
        }
        self.landed += 1;
        let now = self.owners.get(&partition).copied();
        if !self.resubscribes {
            assert_eq!(now, Some((sender, changes)), "no-old-commit: {partition:?}");
        }
    }

    fn leave(&mut self, index: usize, epoch: Epoch) {
        let client = &self.clients[index];
        if client.epoch.is_none() || (epoch == Epoch::AWAY && client.instance.is_none()) {
            return;
        }
        let mut request = going_on(&client.id(), epoch.get());
        request.instance = client.instance.clone();
        let _ = self.bench.beat(request);
        let client = &mut self.clients[index];
        client.lose();
        client.incarnation += u32::from(epoch == Epoch::AWAY);
    }

    /// The process dies and another takes its place.
    fn crash(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.lose();
        client.incarnation += 1;
    }

    fn grow(&mut self) {
        let at = self.rng.random_range(0..2);
        if self.counts[at] < 8 {
            self.counts[at] += 1;
            self.publish();
        }
    }

    fn resubscribe(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if !self.resubscribes || client.is_silent {
            return;
        }
        client.topics = match client.topics.len() {
            1 => TOPICS.to_vec(),
            _ => vec![TOPICS[self.rng.random_range(0..2)]],
        };
        let Some(epoch) = client.epoch else {
            return;
        };
        let mut request = going_on(&client.id(), epoch.get());
        request.topics = Some(client.topics.iter().map(|t| TopicName::new(t)).collect());
        request.owned = Some(client.owned.clone());
        request.instance = client.instance.clone();
        self.send(index, request);
    }

    fn check(&mut self) {
        let mut owners = BTreeMap::<Partition, &str>::new();
        for client in &self.clients {
            for partition in client.owned.iter() {
                let other = owners.insert(partition, &client.name);
                assert_eq!(other, None, "one-owner: {partition:?} and {}", client.name);
            }
        }
        let group = self.bench.coordinator.groups().next();
        if let Some(group) = group.and_then(|group| group.as_consumer()) {
            let (epoch, target) = (group.epoch(), group.target_epoch());
            assert!(
                epoch >= self.epochs.0 && target >= self.epochs.1,
                "epochs-grow"
            );
            assert!(target <= epoch, "epochs-grow: {target} > {epoch}");
            self.epochs = (epoch, target);
        }
    }

    fn check_replay(&self) {
        assert_eq!(
            persistent_view(&self.bench.coordinator),
            persistent_view(&self.bench.replayed()),
            "replay-is-live"
        );
    }

    fn settle_down(&mut self) {
        for client in &mut self.clients {
            client.is_silent = false;
            client.topics = TOPICS.to_vec();
        }
        for round in 0..200 {
            for index in 0..self.clients.len() {
                if round == 0 {
                    let client = &self.clients[index];
                    let topics = client.topics.iter().map(|t| TopicName::new(t)).collect();
                    if let Some(epoch) = client.epoch {
                        let mut request = going_on(&client.id(), epoch.get());
                        request.topics = Some(topics);
                        request.owned = Some(client.owned.clone());
                        request.instance = client.instance.clone();
                        self.send(index, request);
                    }
                }
                self.let_go(index);
                self.beat(index);
                self.check();
            }
            self.advance(2_000);
        }
        assert_eq!(self.bench.state(), "Stable", "converges: {GROUP}");
        let owned: BTreeSet<Partition> = self
            .clients
            .iter()
            .flat_map(|client| client.owned.iter())
            .collect();
        let all = usize::try_from(self.counts.iter().sum::<i32>()).expect("few");
        assert_eq!(owned.len(), all, "converges");
    }
}

impl Client {
    /// When it lets go by itself.
    fn due_ms(&self) -> Option<i64> {
        self.epoch?;
        let session_ms = self.answered_at_ms + SESSION_MS - 1;
        let must_let_go = self.told.as_ref().is_some_and(|told| {
            self.owned
                .iter()
                .any(|(topic, partition)| !told.contains(topic, partition))
        });
        let rebalance_ms = self.told_at_ms + REBALANCE_MS - 1;
        Some(match must_let_go {
            true => session_ms.min(rebalance_ms),
            false => session_ms,
        })
    }
}

#[test]
fn random_histories_keep_their_promises() {
    let seeds: Vec<u64> = match std::env::var("ODRADEK_SEED") {
        Ok(seed) => vec![seed.parse().expect("a number")],
        Err(_) => (0..SEEDS).collect(),
    };
    let mut landed = 0;
    for seed in seeds {
        let run = std::panic::AssertUnwindSafe(|| History::new(seed).run());
        match std::panic::catch_unwind(run) {
            Ok(commits) => landed += commits,
            Err(panic) => {
                eprintln!("ODRADEK_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(landed > 0, "commits land");
}
