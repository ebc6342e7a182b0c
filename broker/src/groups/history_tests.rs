//! Random histories of one group: clients that join, leave, commit, fall silent and send old
//! requests again, and a coordinator that restarts, all from one seed.
//!
//! The clients are honest: they let go of their partitions before they join anew, when they are
//! told that they lost them, and by themselves once a session has passed since the last heartbeat
//! that was accepted. What must hold then, after every step:
//!
//! - one-owner: no partition has two owners, so whoever stops owning one has let go of it before
//!   another gets it;
//! - new-generation: a partition changes hands only with a higher generation;
//! - no-old-commit: no commit lands that is older than the generation of the partition's owner,
//!   or than a commit that has landed;
//! - replay-is-live: a coordinator built from the log knows what the live one knows;
//! - all-answered: in the end no request is without its answer.
//!
//! A failure prints its seed; `ODRADEK_SEED=… cargo test -p odradek history` replays it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

use super::bench::{Bench, GROUP};
use super::config::CoordinatorConfig;
use super::coordinator::persistent_view;
use super::error::GroupError;
use super::messages::{
    GroupReply, GroupRequest, HeartbeatRequest, JoinReply, LeaveRequest, LeavingMember, SyncReply,
    SyncRequest,
};
use super::names::{GenerationId, GroupId, InstanceId, MemberId};
use crate::coordinator::effects::RequestToken;

const PARTITIONS: u8 = 6;
const SESSION_MS: i64 = 10_000;
/// Not below the session timeout: that is how long a client that hears nothing keeps what it owns.
const REBALANCE_MS: i32 = 12_000;
const STEPS: usize = 400;
const SEEDS: u64 = 150;

#[derive(Debug)]
enum Phase {
    /// Not in the group, or on its way back to it.
    Out,
    Joining(RequestToken),
    /// Has joined; the assignments are there if it leads.
    Joined(Vec<(MemberId, Bytes)>),
    Syncing(RequestToken),
    Member,
}

#[derive(Debug)]
struct Client {
    member: MemberId,
    instance: Option<InstanceId>,
    generation: GenerationId,
    phase: Phase,
    owned: BTreeSet<u8>,
    /// When it lets go by itself.
    lease_until_ms: i64,
    silent: bool,
}

impl Client {
    fn new(instance: Option<InstanceId>) -> Self {
        Self {
            member: MemberId::new(""),
            instance,
            generation: GenerationId::new(-1),
            phase: Phase::Out,
            owned: BTreeSet::new(),
            lease_until_ms: 0,
            silent: false,
        }
    }

    /// Has lost its place; it may come back under its id, or as somebody new.
    fn lose(&mut self, forget_id: bool) {
        self.owned.clear();
        self.phase = Phase::Out;
        if forget_id {
            self.member = MemberId::new("");
        }
    }
}

/// A request that was sent, or is yet to be sent, and may arrive at any time.
#[derive(Clone)]
struct Stray {
    request: GroupRequest,
    commit: Option<(GenerationId, u8)>,
}

struct History {
    rng: StdRng,
    bench: Bench,
    clients: Vec<Client>,
    strays: Vec<Stray>,
    /// Generation of the last commit that landed, by partition.
    landed: BTreeMap<u8, GenerationId>,
    /// Who got each partition last, and in which generation.
    last_owners: BTreeMap<u8, (usize, GenerationId)>,
    next_offset: i64,
    /// Commits that landed, and assignments that members got.
    commits: usize,
    assignments: usize,
    unanswered: BTreeSet<RequestToken>,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let clients = (0..5)
            .map(|index| {
                let is_static = index >= 3 && rng.random_bool(0.5);
                Client::new(is_static.then(|| InstanceId::new(&format!("i{index}"))))
            })
            .collect();
        let config = CoordinatorConfig {
            group_initial_rebalance_delay_ms: *[0, 3_000].choose(&mut rng).unwrap_or(&0),
            ..CoordinatorConfig::default()
        };
        Self {
            rng,
            bench: Bench::with_config(config),
            clients,
            strays: Vec::new(),
            landed: BTreeMap::new(),
            last_owners: BTreeMap::new(),
            next_offset: 0,
            commits: 0,
            assignments: 0,
            unanswered: BTreeSet::new(),
        }
    }

    fn run(mut self) -> (usize, usize) {
        for _ in 0..STEPS {
            self.step();
            self.settle();
            self.go_on();
            self.settle();
            self.check();
        }
        // Nobody does anything any more: everything that waits must end by itself.
        self.bench.advance(1_000_000);
        self.settle();
        let unanswered: Vec<_> = std::mem::take(&mut self.unanswered)
            .into_iter()
            .filter(|token| self.bench.reply(*token).is_none())
            .collect();
        assert!(unanswered.is_empty(), "all-answered: {unanswered:?}");
        (self.commits, self.assignments)
    }

    fn step(&mut self) {
        let index = self.rng.random_range(0..self.clients.len());
        match self.rng.random_range(0..200) {
            0..80 => self.act(index),
            80..120 => self.heartbeat(index),
            120..150 => self.commit(index),
            150..153 => self.leave(index),
            153..159 => self.clients[index].silent ^= true,
            159..162 => self.crash(index),
            162..175 => self.send_stray(),
            175..196 => {
                let ms = self.rng.random_range(1..2_000);
                self.advance(ms);
            }
            196..197 => {
                let ms = self.rng.random_range(10_000..70_000);
                self.advance(ms);
            }
            _ => self.restart(),
        }
    }

    /// Most clients most of the time do what they should.
    fn go_on(&mut self) {
        for index in 0..self.clients.len() {
            let member = matches!(self.clients[index].phase, Phase::Member);
            match member {
                true if self.rng.random_bool(0.15) => self.heartbeat(index),
                false if self.rng.random_bool(0.3) => self.act(index),
                _ => {}
            }
        }
    }

    /// Lets time go by. Replies reach their clients when they are given: a client counts its
    /// session from then on, as the coordinator does.
    fn advance(&mut self, ms: i64) {
        let until_ms = self.bench.now_ms + ms;
        while self.bench.now_ms < until_ms {
            let next_ms = self.bench.next_timer_ms().unwrap_or(ms).max(1);
            self.bench
                .advance(next_ms.min(until_ms - self.bench.now_ms));
            self.settle();
        }
    }

    /// The client does what comes next for it.
    fn act(&mut self, index: usize) {
        if self.clients[index].silent {
            return;
        }
        match std::mem::replace(&mut self.clients[index].phase, Phase::Out) {
            Phase::Out => self.join(index),
            Phase::Joined(assignments) => self.sync(index, assignments),
            // A member joins anew now and then, say because its subscription changed.
            Phase::Member if self.rng.random_bool(0.1) => self.join(index),
            waiting => self.clients[index].phase = waiting,
        }
    }

    fn ask(&mut self, request: GroupRequest) -> RequestToken {
        let token = self.bench.ask(request);
        self.unanswered.insert(token);
        token
    }

    fn reply(&mut self, token: RequestToken) -> Option<GroupReply> {
        let reply = self.bench.reply(token)?;
        self.unanswered.remove(&token);
        Some(reply)
    }

    fn join(&mut self, index: usize) {
        let member = self.clients[index].member.clone();
        let mut request = self.bench.join_request(&member);
        request.session_timeout_ms = SESSION_MS as i32;
        request.rebalance_timeout_ms = REBALANCE_MS;
        let client = &mut self.clients[index];
        client.owned.clear();
        request.instance = client.instance.clone();
        let token = self.ask(GroupRequest::Join(request));
        self.clients[index].phase = Phase::Joining(token);
    }

    fn sync(&mut self, index: usize, assignments: Vec<(MemberId, Bytes)>) {
        let client = &self.clients[index];
        let request = GroupRequest::Sync(SyncRequest {
            group: GroupId::new(GROUP),
            member: client.member.clone(),
            instance: client.instance.clone(),
            generation: client.generation,
            protocol_type: None,
            protocol: None,
            assignments,
        });
        self.strays.push(Stray {
            request: request.clone(),
            commit: None,
        });
        let token = self.ask(request);
        self.clients[index].phase = Phase::Syncing(token);
    }

    fn heartbeat(&mut self, index: usize) {
        let client = &self.clients[index];
        if client.silent || !matches!(client.phase, Phase::Member) {
            return;
        }
        let request = GroupRequest::Heartbeat(HeartbeatRequest {
            group: GroupId::new(GROUP),
            member: client.member.clone(),
            instance: client.instance.clone(),
            generation: client.generation,
        });
        self.strays.push(Stray {
            request: request.clone(),
            commit: None,
        });
        let token = self.ask(request);
        let Some(GroupReply::Heartbeat(result)) = self.reply(token) else {
            panic!("a heartbeat waits");
        };
        let lease_until_ms = self.bench.now_ms + SESSION_MS;
        let client = &mut self.clients[index];
        match result {
            Ok(()) => client.lease_until_ms = lease_until_ms,
            Err(GroupError::RebalanceInProgress) => client.lose(false),
            Err(_) => client.lose(true),
        }
    }

    fn commit(&mut self, index: usize) {
        let client = &self.clients[index];
        if client.silent || !matches!(client.phase, Phase::Member) {
            return;
        }
        let Some(partition) = client.owned.iter().next().copied() else {
            return;
        };
        self.next_offset += 1;
        let mut request = Bench::commit_request(
            &client.member,
            client.generation,
            "topic",
            i32::from(partition),
            self.next_offset,
        );
        request.instance = client.instance.clone();
        let stray = Stray {
            commit: Some((client.generation, partition)),
            request: GroupRequest::Commit(request),
        };
        self.strays.push(stray.clone());
        // Some are held up on the way and arrive later, or twice.
        if self.rng.random_bool(0.8) {
            self.deliver(stray);
        }
    }

    fn send_stray(&mut self) {
        if self.strays.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..self.strays.len());
        let stray = self.strays[at].clone();
        self.deliver(stray);
    }

    fn deliver(&mut self, stray: Stray) {
        let token = self.ask(stray.request);
        let Some((generation, partition)) = stray.commit else {
            return;
        };
        let Some(GroupReply::Commit(result)) = self.reply(token) else {
            panic!("a commit waits");
        };
        if !matches!(result, Ok(rows) if rows[0][0].is_ok()) {
            return;
        }
        let landed = self.landed.entry(partition).or_insert(generation);
        assert!(
            *landed <= generation,
            "no-old-commit: {landed} then {generation}"
        );
        *landed = generation;
        self.commits += 1;
        for client in &self.clients {
            assert!(
                !client.owned.contains(&partition) || client.generation <= generation,
                "no-old-commit: {generation} landed while {client:?} owns {partition}"
            );
        }
    }

    fn leave(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if client.silent || client.member.is_empty() {
            return;
        }
        let request = GroupRequest::Leave(LeaveRequest {
            group: GroupId::new(GROUP),
            members: vec![LeavingMember {
                member: client.member.clone(),
                instance: client.instance.clone(),
                reason: String::new(),
            }],
        });
        client.lose(true);
        self.strays.push(Stray {
            request: request.clone(),
            commit: None,
        });
        self.ask(request);
    }

    /// The process dies, and comes back later without its id.
    fn crash(&mut self, index: usize) {
        self.clients[index].lose(true);
        self.clients[index].silent = self.rng.random_bool(0.5);
    }

    fn restart(&mut self) {
        self.bench.restart();
        self.unanswered.clear();
        for client in &mut self.clients {
            match client.phase {
                // The connection broke: they ask again.
                Phase::Joining(_) | Phase::Syncing(_) => client.lose(false),
                Phase::Out | Phase::Joined(_) | Phase::Member => {}
            }
        }
    }

    /// Clients take notice of the time and of their replies.
    fn settle(&mut self) {
        for index in 0..self.clients.len() {
            let now_ms = self.bench.now_ms;
            let client = &mut self.clients[index];
            if client.lease_until_ms <= now_ms && matches!(client.phase, Phase::Member) {
                client.lose(false);
            }
            match client.phase {
                Phase::Joining(token) => {
                    if let Some(GroupReply::Join(reply)) = self.reply(token) {
                        self.joined(index, reply);
                    }
                }
                Phase::Syncing(token) => {
                    if let Some(GroupReply::Sync(reply)) = self.reply(token) {
                        self.synced(index, reply);
                    }
                }
                Phase::Out | Phase::Joined(_) | Phase::Member => {}
            }
        }
    }

    fn joined(&mut self, index: usize, reply: JoinReply) {
        let now_ms = self.bench.now_ms;
        let client = &mut self.clients[index];
        match reply.error {
            None => {
                client.member = reply.member;
                client.generation = reply.generation;
                client.lease_until_ms = now_ms + SESSION_MS;
                let members: Vec<_> = reply.members.iter().map(|joined| &joined.member).collect();
                let assign = |(at, member): (usize, &&MemberId)| {
                    let mine = (0..PARTITIONS).filter(|p| usize::from(*p) % members.len() == at);
                    ((*member).clone(), mine.collect::<Vec<u8>>().into())
                };
                // A leader whose old assignment stands brings nothing.
                let leads = !reply.skip_assignment;
                let assignments = members.iter().enumerate().filter(|_| leads).map(assign);
                client.phase = Phase::Joined(assignments.collect());
            }
            Some(GroupError::MemberIdRequired) => {
                client.member = reply.member;
                client.phase = Phase::Out;
            }
            Some(GroupError::RebalanceInProgress) => client.lose(false),
            Some(_) => client.lose(true),
        }
    }

    fn synced(&mut self, index: usize, reply: Result<SyncReply, GroupError>) {
        let now_ms = self.bench.now_ms;
        let client = &mut self.clients[index];
        match reply {
            Ok(reply) if client.lease_until_ms > now_ms => {
                client.owned = reply.assignment.iter().copied().collect();
                client.phase = Phase::Member;
                let generation = client.generation;
                self.assignments += 1;
                for partition in client.owned.clone() {
                    let last = self.last_owners.insert(partition, (index, generation));
                    assert!(
                        last.is_none_or(|(owner, old)| owner == index || old < generation),
                        "new-generation: {partition} goes from {last:?} to {index} in {generation}"
                    );
                }
            }
            // It waited for longer than a session, so it does not trust the answer.
            Ok(_) | Err(GroupError::RebalanceInProgress) => client.lose(false),
            Err(_) => client.lose(true),
        }
    }

    fn check(&mut self) {
        let mut owners = BTreeMap::new();
        for (index, client) in self.clients.iter().enumerate() {
            for partition in &client.owned {
                let other = owners.insert(*partition, index);
                assert!(
                    other.is_none(),
                    "one-owner: {partition} belongs to {other:?} and {index}: {:?}",
                    self.clients
                );
            }
        }
        let live = persistent_view(&self.bench.coordinator);
        let mut replayed = persistent_view(&self.bench.replayed());
        for (key, value) in &live {
            let again = replayed.remove(key);
            assert!(again.is_some(), "replay-is-live: {key:?} is missing");
            if value.is_some() {
                assert_eq!(again.as_ref(), Some(value), "replay-is-live: {key:?}");
            }
        }
        assert!(
            replayed.is_empty(),
            "replay-is-live: too much: {replayed:?}"
        );
    }
}

#[test]
fn random_histories_keep_one_owner_and_no_old_commit_and_replay_to_the_same_state() {
    let seeds = match std::env::var("ODRADEK_SEED") {
        Ok(seed) => vec![seed.parse().expect("ODRADEK_SEED is a number")],
        Err(_) => (0..SEEDS).collect(),
    };
    let runs = seeds.len();
    let (mut commits, mut assignments) = (0, 0);
    for seed in seeds {
        println!("ODRADEK_SEED={seed}");
        let (landed, assigned) = History::new(seed).run();
        commits += landed;
        assignments += assigned;
    }
    println!("{runs} histories: {commits} commits landed, {assignments} assignments were given");
    // Histories in which nothing happens would prove nothing.
    assert!(
        commits + assignments > 10 * runs || runs == 1,
        "{commits} {assignments}"
    );
}
