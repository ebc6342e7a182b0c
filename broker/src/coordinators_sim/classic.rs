//! Members of the classic protocol: eager or cooperative, dynamic or static, and their old processes that wake up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::future::BoxFuture;
use odradek_protocol::ids::PartitionIndex;

use super::holding::{Holding, PATIENCE_MS, Standing};
use super::sabotage::Sabotage;
use super::world::{PARTITIONS, Process, REBALANCE_MS, SESSION_MS, TOPIC, World};
use crate::groups::consumer_protocol::{assignment, encode_assignment, subscription};
use crate::groups::error::GroupError;
use crate::groups::messages::{
    HeartbeatRequest, JoinReply, JoinRequest, LeaveRequest, LeavingMember, MemberProtocol,
    SyncRequest,
};
use crate::groups::names::{GenerationId, GroupId, InstanceId, MemberId, TopicName};

/// A member as it is started.
#[derive(Clone, Debug)]
pub(super) struct Classic {
    pub group: String,
    pub name: String,
    pub cooperative: bool,
    pub instance: Option<InstanceId>,
}

/// What a member does next.
enum Next {
    /// Joins under the id that it has.
    Rejoin,
    /// Joins as somebody new.
    Anew,
    /// Its process ends, and another begins.
    Restart,
}

struct Member {
    has: Holding,
    as_started: Classic,
    id: MemberId,
    generation: GenerationId,
}

/// Plays a member for as long as the world is there, one process after the other.
pub(super) async fn play(world: Arc<World>, member: Classic) {
    world.dice.pause(0, 1_500).await;
    loop {
        let (group, instance) = (&member.group, member.instance.as_ref());
        let has = Holding::of_next_process(&world, group, &member.name, instance);
        let mut playing = Member {
            has,
            as_started: member.clone(),
            id: MemberId::new(""),
            generation: GenerationId::new(-1),
        };
        playing.live().await;
        world.dice.pause(1, 800).await;
    }
}

impl Member {
    async fn live(&mut self) {
        loop {
            let next = self.one_generation().await;
            match next {
                Next::Rejoin => {
                    if !self.as_started.cooperative {
                        self.has.let_go_of_all();
                    }
                }
                Next::Anew => {
                    self.has.let_go_of_all();
                    self.id = MemberId::new("");
                }
                Next::Restart => return,
            }
            self.has.pause(20, 120).await;
        }
    }

    fn world(&self) -> Arc<World> {
        Arc::clone(&self.has.world)
    }

    fn standing(&self) -> Standing {
        Standing {
            member: self.id.clone(),
            instance: self.as_started.instance.clone(),
            generation: self.generation.get(),
            knows_epochs: false,
        }
    }

    async fn one_generation(&mut self) -> Next {
        let claimed = self.has.owned.clone();
        let joined = match self.join().await {
            Ok(joined) => joined,
            Err(next) => return next,
        };
        let is_leader = !joined.leader.is_empty() && joined.leader == joined.member;
        let assignments = match is_leader && !joined.skip_assignment {
            true => self.assign(&joined),
            false => Vec::new(),
        };
        let assigned = match self.sync(assignments).await {
            Ok(assigned) => assigned,
            Err(next) => return next,
        };
        if !self.has.is_alive() {
            return Next::Anew;
        }
        // What was lost on the way has been given again, or not.
        self.has.has_lost();
        for partition in self.has.owned.clone().difference(&assigned) {
            self.has.let_go(*partition);
        }
        // Nobody has been given what the group was told that this member has: it says that it has let go, also
        // of what it lost since.
        let is_to_tell = !claimed.is_subset(&assigned);
        for partition in assigned {
            self.has.take(partition);
        }
        match self.as_started.cooperative && is_to_tell {
            true => Next::Rejoin,
            false => self.stay().await,
        }
    }

    async fn join(&mut self) -> Result<JoinReply, Next> {
        let world = self.world();
        let name = match self.as_started.cooperative {
            true => "cooperative-sticky",
            false => "range",
        };
        let request = JoinRequest {
            group: GroupId::new(&self.as_started.group),
            member: self.id.clone(),
            instance: self.as_started.instance.clone(),
            fresh_member: MemberId::new(""),
            client_id: self.as_started.name.clone(),
            client_host: "/127.0.0.1".to_owned(),
            session_timeout_ms: SESSION_MS,
            rebalance_timeout_ms: REBALANCE_MS,
            protocol_type: "consumer".to_owned(),
            protocols: vec![MemberProtocol {
                name: name.to_owned(),
                metadata: encode_subscription(&self.has.owned),
            }],
            member_id_required: true,
            can_skip_assignment: true,
            reason: String::new(),
        };
        let sent_ms = world.now_ms();
        let there = Arc::clone(&world);
        let handle = move |process: Arc<Process>| -> BoxFuture<'static, JoinReply> {
            let mut request = request.clone();
            // Every request that arrives is given an id of its own, by the broker that takes it.
            let fresh = there.checker.lock().number();
            request.fresh_member = MemberId::new(&format!("{}-{fresh}", request.client_id));
            Box::pin(async move { process.groups.join(request).await })
        };
        let place = world.coordinator_of_group(&self.as_started.group);
        let patience_ms = i64::from(REBALANCE_MS) * 2;
        let asked = world.ask_once(world.leader_hint(place), patience_ms, handle);
        let reply = self.has.while_alive(asked).await;
        world.note(&format!("{} joins: {}", self.has.who, summary(&reply)));
        let Ok(reply) = reply else {
            return Err(Next::Rejoin);
        };
        match reply.error {
            None => {
                self.has.alive_at(sent_ms);
                self.id = reply.member.clone();
                self.generation = reply.generation;
                Ok(reply)
            }
            Some(GroupError::MemberIdRequired) => {
                self.id = reply.member;
                Err(Next::Rejoin)
            }
            Some(GroupError::UnknownMember) => Err(Next::Anew),
            Some(GroupError::FencedInstance) => Err(Next::Restart),
            Some(_) => Err(Next::Rejoin),
        }
    }

    async fn sync(&mut self, assignments: Vec<(MemberId, Bytes)>) -> Result<BTreeSet<i32>, Next> {
        let world = self.world();
        let request = SyncRequest {
            group: GroupId::new(&self.as_started.group),
            member: self.id.clone(),
            instance: self.as_started.instance.clone(),
            generation: self.generation,
            protocol_type: None,
            protocol: None,
            assignments,
        };
        let sent_ms = world.now_ms();
        let sabotage = world.sabotage;
        let handle = move |process: Arc<Process>| -> BoxFuture<'static, _> {
            let request = request.clone();
            Box::pin(async move {
                match sabotage {
                    Some(Sabotage::LoseSyncs) => Err(GroupError::NotAvailable),
                    _ => process.groups.sync(request).await,
                }
            })
        };
        let place = world.coordinator_of_group(&self.as_started.group);
        let patience_ms = i64::from(REBALANCE_MS) * 2;
        let asked = world.ask_once(world.leader_hint(place), patience_ms, handle);
        let reply = self.has.while_alive(asked).await;
        let result = reply.as_ref().map(|reply| reply.as_ref().map(|_| ()));
        world.note(&format!(
            "{} syncs {}: {result:?}",
            self.has.who, self.generation
        ));
        match reply {
            Ok(Ok(reply)) => {
                self.has.alive_at(sent_ms);
                let given = assignment(&reply.assignment).expect("an assignment");
                let indexes = given
                    .partitions
                    .into_iter()
                    .flat_map(|(_, indexes)| indexes);
                Ok(match sabotage {
                    Some(Sabotage::ShareAssignments) => (0..PARTITIONS).collect(),
                    _ => indexes.map(PartitionIndex::get).collect(),
                })
            }
            Ok(Err(GroupError::UnknownMember)) => Err(Next::Anew),
            Ok(Err(GroupError::FencedInstance)) => Err(Next::Restart),
            Ok(Err(_)) | Err(_) => Err(Next::Rejoin),
        }
    }

    /// Stays in the group until something else is to be done.
    async fn stay(&mut self) -> Next {
        let world = self.world();
        loop {
            self.has.pause(200, 900).await;
            if self.has.has_lost() || !self.has.is_alive() {
                return Next::Anew;
            }
            if world.dice.chance(1, 2) {
                self.has.commit(&self.standing());
            }
            if !world.is_calm() && world.dice.chance(1, 25) {
                return self.do_something_else().await;
            }
            let sent_ms = world.now_ms();
            let request = HeartbeatRequest {
                group: GroupId::new(&self.as_started.group),
                member: self.id.clone(),
                instance: self.as_started.instance.clone(),
                generation: self.generation,
            };
            let handle = move |process: Arc<Process>| -> BoxFuture<'static, _> {
                let request = request.clone();
                Box::pin(async move { process.groups.heartbeat(request).await })
            };
            let place = world.coordinator_of_group(&self.as_started.group);
            let asked = world.ask_once(world.leader_hint(place), PATIENCE_MS, handle);
            match self.has.while_alive(asked).await {
                Ok(Ok(())) => self.has.alive_at(sent_ms),
                Ok(Err(GroupError::RebalanceInProgress | GroupError::IllegalGeneration)) => {
                    return Next::Rejoin;
                }
                Ok(Err(GroupError::UnknownMember)) => return Next::Anew,
                Ok(Err(GroupError::FencedInstance)) => return Next::Restart,
                // The coordinator is elsewhere, or not there yet.
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }

    /// What members do now and then.
    async fn do_something_else(&mut self) -> Next {
        let world = self.world();
        match world.dice.below(5) {
            // Its subscription has changed, say.
            0 => Next::Rejoin,
            1 => {
                self.leave().await;
                Next::Restart
            }
            // It dies, and with it what it had. Time runs on for the coordinator, and for whoever looks.
            2 => {
                self.has.wake_up_later(1, self.standing());
                Next::Restart
            }
            // It stands still, and goes on as if nothing had been.
            _ => {
                self.has.pause(1_000, 6_000).await;
                self.has.commit(&self.standing());
                self.has.wake_up_later(2, self.standing());
                Next::Rejoin
            }
        }
    }

    async fn leave(&mut self) {
        let world = self.world();
        self.has.let_go_of_all();
        let request = LeaveRequest {
            group: GroupId::new(&self.as_started.group),
            members: vec![LeavingMember {
                member: self.id.clone(),
                instance: self.as_started.instance.clone(),
                reason: String::new(),
            }],
        };
        let handle = move |process: Arc<Process>| -> BoxFuture<'static, _> {
            let request = request.clone();
            Box::pin(async move { process.groups.leave(request).await })
        };
        let place = world.coordinator_of_group(&self.as_started.group);
        // Whether it hears of it or not, it is gone.
        let _ = world
            .ask(world.leader_hint(place), PATIENCE_MS, handle)
            .await;
    }

    /// Shares the partitions out. What a cooperative member has stays with it, but for what it has too much of,
    /// which nobody gets before it has let go of it.
    fn assign(&self, joined: &JoinReply) -> Vec<(MemberId, Bytes)> {
        let mut claimed: BTreeMap<i32, Vec<&MemberId>> = BTreeMap::new();
        for member in &joined.members {
            let said = subscription(&member.metadata).expect("a subscription");
            for index in said.owned.into_iter().flat_map(|(_, indexes)| indexes) {
                claimed.entry(index.get()).or_default().push(&member.member);
            }
        }
        let count = joined.members.len().max(1);
        let most = (PARTITIONS as usize).div_ceil(count);
        let mut given: BTreeMap<&MemberId, Vec<i32>> = BTreeMap::new();
        for member in &joined.members {
            given.insert(&member.member, Vec::new());
        }
        let mut free = Vec::new();
        for partition in 0..PARTITIONS {
            match claimed.get(&partition).map(Vec::as_slice) {
                None => free.push(partition),
                Some([one]) if given[*one].len() < most => {
                    given.entry(*one).or_default().push(partition);
                }
                // More than one says so, or it has too much: whoever it is lets go first.
                Some(_) => {}
            }
        }
        for partition in free {
            let least = given.iter().min_by_key(|(_, partitions)| partitions.len());
            if let Some(member) = least.map(|(member, _)| *member) {
                given.entry(member).or_default().push(partition);
            }
        }
        let encode = |partitions: Vec<i32>| {
            let indexes = partitions.into_iter().map(PartitionIndex::new).collect();
            encode_assignment(&vec![(TopicName::new(TOPIC), indexes)], 1)
        };
        given
            .into_iter()
            .map(|(member, partitions)| (member.clone(), encode(partitions)))
            .collect()
    }
}

fn summary(reply: &Result<JoinReply, super::world::Lost>) -> String {
    match reply {
        Ok(reply) => format!(
            "{:?}, {} in {}, led by {}",
            reply.error, reply.member, reply.generation, reply.leader
        ),
        Err(lost) => format!("{lost:?}"),
    }
}

/// Kafka's `ConsumerProtocolSubscription`, version 1.
fn encode_subscription(owned: &BTreeSet<i32>) -> Bytes {
    let mut out = BytesMut::new();
    let name = |out: &mut BytesMut| {
        out.put_i16(TOPIC.len() as i16);
        out.put_slice(TOPIC.as_bytes());
    };
    out.put_i16(1);
    out.put_i32(1);
    name(&mut out);
    out.put_i32(-1);
    out.put_i32(1);
    name(&mut out);
    out.put_i32(owned.len() as i32);
    for partition in owned {
        out.put_i32(*partition);
    }
    out.freeze()
}
