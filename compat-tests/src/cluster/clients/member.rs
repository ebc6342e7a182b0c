//! Members of groups of both protocols, which share the partitions of the topic under load and commit offsets for
//! them; and those who ask every node what is committed.
//!
//! Members come and go. Now and then one that has been given a new generation commits with the old one, as a process
//! does that has slept through a rebalance.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::{GroupId, HeartbeatRequest, JoinGroupResponse, LeaveGroupRequest};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::coordinator::{Coordinator, Kind};
use super::holdings::{
    ANSWER_PATIENCE, HEARTBEAT_PAUSE, Holdings, Identity, SESSION_TIMEOUT, fetch_committed,
};
use super::{BACKOFF, Shared};
use crate::cluster::NodeNumber;
use crate::cluster::history::Partition;
use crate::groups::{going_on, join_request, joining, sync_request};
use crate::wire::{Wire, text};

/// Groups whose members are of the classic protocol, and of that of KIP-848.
pub const GROUPS: [&str; 2] = ["classic-members", "consumer-members"];
/// A join is answered when all have joined or their time is up, which is the session timeout.
const JOIN_PATIENCE: Duration = Duration::from_secs(6);
const PROTOCOL: &str = "by-turns";

const ILLEGAL_GENERATION: i16 = 22;
const UNKNOWN_MEMBER_ID: i16 = 25;
const REBALANCE_IN_PROGRESS: i16 = 27;
const MEMBER_ID_REQUIRED: i16 = 79;
const FENCED_MEMBER_EPOCH: i16 = 110;
const STALE_MEMBER_EPOCH: i16 = 113;

/// What both kinds of members do alike.
struct Common {
    shared: Shared,
    group: &'static str,
    rng: StdRng,
    coordinator: Coordinator,
    holdings: Holdings,
    identity: Identity,
    /// Who it was before.
    formerly: Option<Identity>,
    leaves_at: Instant,
}

impl Common {
    fn new(shared: Shared, group: &'static str, classic: bool, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let start = rng.random_range(0..100);
        Self {
            coordinator: Coordinator::of(&shared.addresses, Kind::Group, group, start),
            holdings: Holdings::new(shared.clone(), group, classic),
            shared,
            group,
            identity: Identity {
                member: String::new(),
                generation: -1,
            },
            formerly: None,
            leaves_at: Instant::now() + Duration::from_millis(rng.random_range(2_000..9_000)),
            rng,
        }
    }

    fn is_to_leave(&self) -> bool {
        self.shared.stopping() || Instant::now() >= self.leaves_at
    }

    fn stay_away(&mut self) {
        if !self.shared.stopping() {
            let away = self.rng.random_range(100..1_500);
            std::thread::sleep(Duration::from_millis(away));
        }
        let stays = Duration::from_millis(self.rng.random_range(2_000..9_000));
        self.leaves_at = Instant::now() + stays;
    }

    fn becomes(&mut self, identity: Identity) {
        if identity != self.identity && self.identity.generation >= 0 {
            self.formerly = Some(self.identity.clone());
        }
        self.identity = identity;
    }

    /// Asks and commits for what it holds, and now and then as who it was before; the code of a commit that tells it
    /// of a change.
    fn work(&mut self, version: i16) -> Result<i16> {
        let held = self.holdings.partitions();
        let mut told = 0;
        for partition in held {
            if self.rng.random_bool(0.3) {
                self.holdings.fetch(&mut self.coordinator, partition)?;
            }
            if self.rng.random_bool(0.7) && !self.holdings.is_over() {
                let identity = &self.identity;
                let coordinator = &mut self.coordinator;
                let code = self
                    .holdings
                    .commit(coordinator, version, identity, partition)?;
                if code != 0 {
                    told = code;
                }
            }
        }
        if self.rng.random_bool(0.2)
            && let Some(formerly) = self.formerly.take()
        {
            let partition = self.rng.random_range(0..self.shared.partitions);
            let coordinator = &mut self.coordinator;
            self.holdings
                .commit(coordinator, version, &formerly, partition)?;
        }
        Ok(told)
    }
}

/// What the protocols have each their own way of.
trait Member {
    fn common(&mut self) -> &mut Common;

    /// Hears how things are, and works on what it holds.
    fn round(&mut self) -> Result<()>;

    /// Says that it goes, and lets go of everything.
    fn leave(&mut self);

    /// It has not been heard for so long that others may have what it holds.
    fn lapse(&mut self);
}

/// Comes and goes until told to stop.
fn take_part(mut member: impl Member) -> Result<()> {
    loop {
        if member.common().is_to_leave() {
            member.leave();
            if member.common().shared.stopping() {
                return Ok(());
            }
            member.common().stay_away();
        }
        match member.round() {
            Ok(()) => std::thread::sleep(HEARTBEAT_PAUSE),
            Err(_) => {
                member.common().coordinator.forget();
                std::thread::sleep(BACKOFF);
            }
        }
        if member.common().holdings.is_over() {
            member.lapse();
        }
    }
}

/// A member of the classic protocol.
pub struct ClassicMember {
    common: Common,
    joined: bool,
}

impl ClassicMember {
    /// A member that writes down what it holds and does.
    pub fn new(shared: Shared, seed: u64) -> Self {
        Self {
            common: Common::new(shared, GROUPS[0], true, seed),
            joined: false,
        }
    }

    /// Takes part until told to stop.
    pub fn run(self) -> Result<()> {
        take_part(self)
    }

    fn forget_itself(&mut self) {
        self.joined = false;
        self.common.becomes(Identity {
            member: String::new(),
            generation: -1,
        });
    }

    /// An error code says that something has changed.
    fn told(&mut self, code: i16) -> Result<()> {
        match code {
            REBALANCE_IN_PROGRESS => self.joined = false,
            ILLEGAL_GENERATION => self.joined = false,
            UNKNOWN_MEMBER_ID => self.forget_itself(),
            code => bail!("error {code}"),
        }
        if !self.joined {
            self.common.holdings.let_all_go();
        }
        Ok(())
    }

    fn join(&mut self) -> Result<()> {
        let timeout_ms = i32::try_from(SESSION_TIMEOUT.as_millis())?;
        let member = self.common.identity.member.clone();
        let request = join_request(7, self.common.group, &member, PROTOCOL)
            .with_session_timeout_ms(timeout_ms)
            .with_rebalance_timeout_ms(timeout_ms);
        let coordinator = &mut self.common.coordinator;
        let answer = coordinator.ask(7, &request, JOIN_PATIENCE, |answer| answer.error_code)?;
        match answer.error_code {
            0 => self.sync(&answer),
            MEMBER_ID_REQUIRED => {
                self.common.identity.member = answer.member_id.to_string();
                self.join_again()
            }
            UNKNOWN_MEMBER_ID => {
                self.forget_itself();
                Ok(())
            }
            code => bail!("JoinGroup: error {code}"),
        }
    }

    fn join_again(&mut self) -> Result<()> {
        match self.common.identity.member.is_empty() {
            true => bail!("an empty member id"),
            false => self.join(),
        }
    }

    fn sync(&mut self, joined: &JoinGroupResponse) -> Result<()> {
        let identity = Identity {
            member: joined.member_id.to_string(),
            generation: joined.generation_id,
        };
        let shares = match joined.leader == joined.member_id {
            true => self.deal(joined),
            false => Vec::new(),
        };
        let shares: Vec<(&str, Bytes)> = shares
            .iter()
            .map(|(member, share)| (member.as_str(), share.clone()))
            .collect();
        let request = sync_request(
            5,
            self.common.group,
            identity.generation,
            &identity.member,
            PROTOCOL,
            &shares,
        );
        let sent = self.common.shared.recorder.now();
        let coordinator = &mut self.common.coordinator;
        let answer = coordinator.ask(5, &request, JOIN_PATIENCE, |answer| answer.error_code)?;
        match answer.error_code {
            0 => {
                let partitions = parse_share(&answer.assignment)?;
                self.common.holdings.renewed(sent);
                self.common.becomes(identity.clone());
                self.common.holdings.are(&identity, &partitions);
                self.joined = true;
                Ok(())
            }
            // The next join is as who it is now.
            ILLEGAL_GENERATION | REBALANCE_IN_PROGRESS => {
                self.common.identity.member = identity.member;
                Ok(())
            }
            UNKNOWN_MEMBER_ID => {
                self.forget_itself();
                Ok(())
            }
            code => bail!("SyncGroup: error {code}"),
        }
    }

    /// Deals the partitions out, as the leader of the group.
    fn deal(&self, joined: &JoinGroupResponse) -> Vec<(String, Bytes)> {
        let mut shares: BTreeMap<String, Vec<String>> = joined
            .members
            .iter()
            .map(|member| (member.member_id.to_string(), Vec::new()))
            .collect();
        let members: Vec<String> = shares.keys().cloned().collect();
        for (partition, member) in (0..self.common.shared.partitions).zip(members.iter().cycle()) {
            if let Some(share) = shares.get_mut(member) {
                share.push(partition.to_string());
            }
        }
        let to_bytes = |share: Vec<String>| Bytes::from(share.join(","));
        shares
            .into_iter()
            .map(|(member, share)| (member, to_bytes(share)))
            .collect()
    }
}

impl Member for ClassicMember {
    fn common(&mut self) -> &mut Common {
        &mut self.common
    }

    fn round(&mut self) -> Result<()> {
        if !self.joined {
            self.common.holdings.let_all_go();
            return self.join();
        }
        let sent = self.common.shared.recorder.now();
        let request = HeartbeatRequest::default()
            .with_group_id(GroupId(text(self.common.group)))
            .with_generation_id(self.common.identity.generation)
            .with_member_id(text(&self.common.identity.member));
        let coordinator = &mut self.common.coordinator;
        let answer = coordinator.ask(4, &request, ANSWER_PATIENCE, |answer| answer.error_code)?;
        match answer.error_code {
            0 => self.common.holdings.renewed(sent),
            code => return self.told(code),
        }
        match self.common.work(8)? {
            0 => Ok(()),
            code => self.told(code),
        }
    }

    fn leave(&mut self) {
        self.common.holdings.let_all_go();
        if !self.common.identity.member.is_empty() {
            let member =
                MemberIdentity::default().with_member_id(text(&self.common.identity.member));
            let request = LeaveGroupRequest::default()
                .with_group_id(GroupId(text(self.common.group)))
                .with_members(vec![member]);
            // One that is not heard of any more is thrown out.
            let coordinator = &mut self.common.coordinator;
            let _ = coordinator.ask(4, &request, ANSWER_PATIENCE, |answer| answer.error_code);
        }
        self.forget_itself();
    }

    fn lapse(&mut self) {
        self.common.holdings.let_all_go();
        self.joined = false;
    }
}

fn parse_share(share: &[u8]) -> Result<Vec<Partition>> {
    let share = std::str::from_utf8(share)?;
    let numbers = share.split(',').filter(|number| !number.is_empty());
    numbers.map(|number| Ok(number.parse()?)).collect()
}

/// A member of the protocol of KIP-848.
pub struct ConsumerMember {
    common: Common,
    name: String,
    lives: u32,
}

impl ConsumerMember {
    /// A member with this name that writes down what it holds and does.
    pub fn new(shared: Shared, name: &str, seed: u64) -> Self {
        Self {
            common: Common::new(shared, GROUPS[1], false, seed),
            name: name.to_owned(),
            lives: 0,
        }
    }

    /// Takes part until told to stop.
    pub fn run(self) -> Result<()> {
        take_part(self)
    }

    /// Lets go of everything, and is somebody else from now on.
    fn starts_over(&mut self) {
        self.common.holdings.let_all_go();
        self.common.becomes(Identity {
            member: String::new(),
            generation: -1,
        });
    }

    /// Says everything each time, since the answer before may have been lost.
    fn heartbeat(&mut self) -> Result<()> {
        let identity = self.common.identity.clone();
        let topic = &self.common.shared.topic;
        let mut request = joining(self.common.group, &identity.member, &[&topic.name])
            .with_member_epoch(identity.generation);
        let held = self.common.holdings.partitions();
        if !held.is_empty() {
            request = request.with_topic_partitions(Some(vec![
                TopicPartitions::default()
                    .with_topic_id(topic.id)
                    .with_partitions(held),
            ]));
        }
        let sent = self.common.shared.recorder.now();
        let coordinator = &mut self.common.coordinator;
        let answer = coordinator.ask(1, &request, ANSWER_PATIENCE, |answer| answer.error_code)?;
        match answer.error_code {
            0 => {}
            UNKNOWN_MEMBER_ID | FENCED_MEMBER_EPOCH => {
                self.starts_over();
                return Ok(());
            }
            code => bail!("ConsumerGroupHeartbeat: error {code}"),
        }
        self.common.holdings.renewed(sent);
        let identity = Identity {
            member: identity.member,
            generation: answer.member_epoch,
        };
        self.common.becomes(identity.clone());
        if let Some(assignment) = answer.assignment {
            let topics = assignment.topic_partitions.iter();
            let partitions: Vec<Partition> = topics
                .flat_map(|topic| topic.partitions.iter().copied())
                .collect();
            self.common.holdings.are(&identity, &partitions);
        }
        Ok(())
    }
}

impl Member for ConsumerMember {
    fn common(&mut self) -> &mut Common {
        &mut self.common
    }

    fn round(&mut self) -> Result<()> {
        if self.common.identity.member.is_empty() {
            self.lives += 1;
            self.common.identity = Identity {
                member: format!("{}-{}", self.name, self.lives),
                generation: 0,
            };
        }
        self.heartbeat()?;
        if self.common.identity.generation <= 0 {
            return Ok(());
        }
        match self.common.work(9)? {
            // It hears of it with the next heartbeat.
            0 | STALE_MEMBER_EPOCH => Ok(()),
            UNKNOWN_MEMBER_ID => {
                self.starts_over();
                Ok(())
            }
            code => bail!("OffsetCommit: error {code}"),
        }
    }

    fn leave(&mut self) {
        self.common.holdings.let_all_go();
        if self.common.identity.generation > 0 {
            let request = going_on(self.common.group, &self.common.identity.member, -1);
            let coordinator = &mut self.common.coordinator;
            let _ = coordinator.ask(1, &request, ANSWER_PATIENCE, |answer| answer.error_code);
        }
        self.starts_over();
    }

    fn lapse(&mut self) {
        self.starts_over();
    }
}

/// Asks one node what the groups have committed, whether it coordinates them or not: a node that believes to and does
/// not must not answer.
pub struct Auditor {
    shared: Shared,
    node: NodeNumber,
    address: SocketAddr,
    wire: Option<Wire>,
}

impl Auditor {
    /// An auditor of the node with this index.
    pub fn new(shared: Shared, index: usize, address: SocketAddr) -> Self {
        Self {
            shared,
            node: NodeNumber::try_from(index).unwrap_or(0) + 1,
            address,
            wire: None,
        }
    }

    /// Asks until told to stop.
    pub fn run(mut self) -> Result<()> {
        while !self.shared.stopping() {
            if self.round().is_err() {
                self.wire = None;
            }
            std::thread::sleep(BACKOFF * 3);
        }
        Ok(())
    }

    fn round(&mut self) -> Result<()> {
        const ASK_PATIENCE: Duration = Duration::from_millis(300);
        if self.wire.is_none() {
            self.wire = Some(Wire::connect_within(self.address, ASK_PATIENCE)?);
        }
        let wire = self.wire.as_mut().context("no connection")?;
        let partitions: Vec<Partition> = (0..self.shared.partitions).collect();
        for group in GROUPS {
            fetch_committed(&self.shared, wire, group, &partitions, self.node)?;
        }
        Ok(())
    }
}
