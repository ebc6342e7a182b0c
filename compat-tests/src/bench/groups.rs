//! What groups cost: commits, rebalances in both protocols, and the time to load committed offsets.
//!
//! Plain connections, so that no client library's own pace is measured. Members of the new protocol send
//! their next heartbeat as soon as the last is answered: the time is the coordinator's.

use std::net::SocketAddr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::{BufMut as _, Bytes, BytesMut};
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::messages::{
    ConsumerGroupHeartbeatRequest, GroupId, HeartbeatRequest, JoinGroupRequest, JoinGroupResponse,
};

use super::nodes::{Kind, Node};
use super::report::Report;
use super::workloads::Scale;
use crate::broker::Broker;
use crate::groups::{
    MEMBER_ID_REQUIRED, committed, find_coordinator, join_request, offset_commit, sync_request,
};
use crate::kafka::Kafka;
use crate::requests::{Topic, create_topic, topic_name};
use crate::wire::{Wire, text};

const TOPIC: &str = "read-by-groups";
const CONNECTIONS: usize = 32;
const MEMBERS: usize = 100;
const PARTITIONS: i32 = 1_000;

/// REBALANCE_IN_PROGRESS, as a heartbeat answers it.
const REBALANCE_IN_PROGRESS: i16 = 27;

const PATIENCE: Duration = Duration::from_secs(120);
/// Offsets that are live when a coordinator loads.
const LIVE_OFFSETS: i32 = 1_000_000;

fn start(kind: Kind) -> Result<Node> {
    let settings = [
        ("offsets.topic.num.partitions", "1"),
        // Long enough for all members of a new group to join at once.
        ("group.initial.rebalance.delay.ms", "1000"),
        ("group.consumer.assignment.interval.ms", "0"),
    ];
    let node = match kind {
        Kind::Odradek => {
            let options = Broker::options().set("auto.create.topics.enable", false);
            let options = settings
                .iter()
                .fold(options, |o, (key, value)| o.set(key, value));
            Node::Odradek(options.start()?)
        }
        Kind::Kafka | Kind::KafkaFlushing => {
            let options = Kafka::options()
                .heap("1g")
                .set("auto.create.topics.enable", false);
            let options = settings
                .iter()
                .fold(options, |o, (key, value)| o.set(key, value));
            let options = match kind {
                Kind::KafkaFlushing => options.set("log.flush.interval.messages", 1),
                Kind::Odradek | Kind::Kafka => options,
            };
            Node::Kafka(options.start()?)
        }
    };
    Ok(node)
}

fn prepared(kind: Kind, partitions: i32) -> Result<(Node, SocketAddr, Topic)> {
    let node = start(kind)?;
    let address: SocketAddr = node.bootstrap().parse()?;
    let mut wire = Wire::connect(address)?;
    wire.set_patience(PATIENCE)?;
    let topic = create_topic(&mut wire, TOPIC, partitions, &[])?;
    find_coordinator(&mut wire, "any")?;
    // All groups have one coordinator: it has loaded once it answers for any of them.
    committed(&mut wire, "any", TOPIC, 0)?;
    Ok((node, address, topic))
}

/// Commits of one group, and of 1,000, by connections that wait for each answer.
pub fn commits(report: &mut Report, kind: Kind, scale: Scale) -> Result<()> {
    for groups in [1, 1_000] {
        let (_node, address, _) = prepared(kind, CONNECTIONS as i32)?;
        let done = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        let seconds = scale.paced_seconds;
        let elapsed = std::thread::scope(|scope| -> Result<Duration> {
            let mut threads = Vec::new();
            for index in 0..CONNECTIONS {
                let (done, stop) = (&done, &stop);
                threads.push(scope.spawn(move || -> Result<()> {
                    let mut wire = Wire::connect(address)?;
                    wire.set_patience(PATIENCE)?;
                    let mut turn = index;
                    while !stop.load(Ordering::Relaxed) {
                        let group = format!("group-{}", turn % groups);
                        turn += CONNECTIONS;
                        let rows = [(TOPIC, index as i32, turn as i64)];
                        let answer = wire.call(9, &offset_commit(9, &group, -1, "", &rows))?;
                        let row = answer
                            .topics
                            .first()
                            .and_then(|topic| topic.partitions.first());
                        ensure!(row.is_some_and(|row| row.error_code == 0), "{answer:?}");
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                }));
            }
            // The first second warms up.
            std::thread::sleep(Duration::from_secs(1));
            done.store(0, Ordering::Relaxed);
            let begun = Instant::now();
            std::thread::sleep(Duration::from_secs(seconds));
            let elapsed = begun.elapsed();
            let count = done.load(Ordering::Relaxed);
            stop.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().ok().context("a client panicked")??;
            }
            done.store(count, Ordering::Relaxed);
            Ok(elapsed)
        })?;
        let rate = done.load(Ordering::Relaxed) as f64 / elapsed.as_secs_f64();
        let name = match groups {
            1 => "offset commits, one group".to_owned(),
            many => format!("offset commits, {many} groups"),
        };
        report.add(&name, "commits/s", kind, rate);
    }
    Ok(())
}

/// A classic group of 100 members, over 1,000 partitions, rebalances because one joins again.
pub fn classic_rebalance(report: &mut Report, kind: Kind, scale: Scale) -> Result<()> {
    let (_node, address, _) = prepared(kind, PARTITIONS)?;
    let mut members: Vec<ClassicMember> = Vec::new();
    for _ in 0..MEMBERS {
        let mut wire = Wire::connect(address)?;
        wire.set_patience(PATIENCE)?;
        let answer = wire.call(7, &classic_join(""))?;
        ensure!(answer.error_code == MEMBER_ID_REQUIRED, "join: {answer:?}");
        members.push(ClassicMember {
            wire,
            id: answer.member_id.to_string(),
        });
    }
    let mut leader = None;
    for round in 0..=scale.repetitions {
        let begun = Instant::now();
        leader = Some(rebalance(&mut members, leader)?);
        // The first makes the group.
        if round > 0 {
            let name = "classic rebalance, 100 members, 1,000 partitions";
            report.add(name, "ms", kind, begun.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(())
}

struct ClassicMember {
    wire: Wire,
    id: String,
}

impl ClassicMember {
    fn heartbeat(&mut self, generation: i32) -> Result<i16> {
        let request = HeartbeatRequest::default()
            .with_group_id(GroupId(text("classic")))
            .with_member_id(text(&self.id))
            .with_generation_id(generation);
        Ok(self.wire.call(4, &request)?.error_code)
    }
}

/// Who leads a classic group.
#[derive(Clone, Copy)]
struct Leader {
    place: usize,
    generation: i32,
}

fn classic_join(id: &str) -> JoinGroupRequest {
    let mut request = join_request(7, "classic", id, "range");
    request.session_timeout_ms = 60_000;
    request.rebalance_timeout_ms = 60_000;
    let mut metadata = BytesMut::new();
    metadata.put_slice(&[0, 0, 0, 0, 0, 1]);
    metadata.put_u16(TOPIC.len() as u16);
    metadata.put_slice(TOPIC.as_bytes());
    metadata.put_i32(-1);
    for protocol in &mut request.protocols {
        protocol.metadata = metadata.clone().freeze();
    }
    request
}

/// One range of the partitions, as the classic protocol carries it.
fn range(member: usize) -> Bytes {
    let size = PARTITIONS as usize / MEMBERS;
    let mut bytes = BytesMut::new();
    bytes.put_slice(&[0, 0, 0, 0, 0, 1]);
    bytes.put_u16(TOPIC.len() as u16);
    bytes.put_slice(TOPIC.as_bytes());
    bytes.put_i32(size as i32);
    for partition in member * size..(member + 1) * size {
        bytes.put_i32(partition as i32);
    }
    bytes.put_i32(-1);
    bytes.freeze()
}

/// All join, the leader of the stable group first, since only it begins a rebalance by joining; its place among them.
fn rebalance(members: &mut [ClassicMember], leader: Option<Leader>) -> Result<Leader> {
    let mut asked: Vec<Option<i32>> = members.iter().map(|_| None).collect();
    if let Some(leader) = leader {
        let member = &mut members[leader.place];
        asked[leader.place] = Some(member.wire.send(7, &classic_join(&member.id))?);
        // A follower that joins before its coordinator has heard of the leader would be told that nothing has changed.
        let other = &mut members[(leader.place + 1) % MEMBERS];
        let begun = Instant::now();
        while other.heartbeat(leader.generation)? != REBALANCE_IN_PROGRESS {
            ensure!(begun.elapsed() < PATIENCE, "no rebalance begins");
        }
    }
    for (member, asked) in members.iter_mut().zip(&mut asked) {
        if asked.is_none() {
            *asked = Some(member.wire.send(7, &classic_join(&member.id))?);
        }
    }
    let mut joined: Vec<JoinGroupResponse> = Vec::new();
    for (member, id) in members.iter_mut().zip(asked.into_iter().flatten()) {
        let answer: JoinGroupResponse = member.wire.receive::<JoinGroupRequest>(7, id)?;
        ensure!(answer.error_code == 0, "join: {answer:?}");
        joined.push(answer);
    }
    let ids: Vec<String> = members.iter().map(|member| member.id.clone()).collect();
    let assignments: Vec<(&str, Bytes)> = ids
        .iter()
        .enumerate()
        .map(|(index, id)| (id.as_str(), range(index)))
        .collect();
    let mut asked = Vec::new();
    for (member, answer) in members.iter_mut().zip(&joined) {
        let leads = *answer.leader == *member.id;
        let brought: &[(&str, Bytes)] = if leads { &assignments } else { &[] };
        let request = sync_request(
            4,
            "classic",
            answer.generation_id,
            &member.id,
            "range",
            brought,
        );
        asked.push(member.wire.send(4, &request)?);
    }
    for (member, id) in members.iter_mut().zip(asked) {
        let answer = member
            .wire
            .receive::<kafka_protocol::messages::SyncGroupRequest>(4, id)?;
        ensure!(
            answer.error_code == 0 && !answer.assignment.is_empty(),
            "sync: {answer:?}"
        );
    }
    let place = members
        .iter()
        .zip(&joined)
        .position(|(member, answer)| *answer.leader == *member.id)
        .context("nobody leads")?;
    let generation = joined[place].generation_id;
    Ok(Leader { place, generation })
}

/// A consumer group of 99 members, over 1,000 partitions, gets one more.
pub fn consumer_rebalance(report: &mut Report, kind: Kind, scale: Scale) -> Result<()> {
    for _ in 0..scale.repetitions {
        let (_node, address, topic) = prepared(kind, PARTITIONS)?;
        let goal = AtomicUsize::new(MEMBERS - 1);
        let settled = AtomicUsize::new(0);
        let begin = Barrier::new(MEMBERS + 1);
        let elapsed = std::thread::scope(|scope| -> Result<Duration> {
            let mut threads = Vec::new();
            for index in 0..MEMBERS {
                let (goal, settled, begin, topic) = (&goal, &settled, &begin, &topic);
                threads.push(scope.spawn(move || -> Result<()> {
                    let joined = ConsumerMember::new(address, index).and_then(|mut member| {
                        if index < MEMBERS - 1 {
                            member.until_share(topic, MEMBERS - 1, goal, settled)?;
                        }
                        Ok(member)
                    });
                    begin.wait();
                    // The count of those that have their share begins anew in between.
                    begin.wait();
                    joined?.until_share(topic, MEMBERS, goal, settled)
                }));
            }
            begin.wait();
            settled.store(0, Ordering::SeqCst);
            goal.store(MEMBERS, Ordering::SeqCst);
            let begun = Instant::now();
            begin.wait();
            for thread in threads {
                thread.join().ok().context("a member panicked")??;
            }
            Ok(begun.elapsed())
        })?;
        let name = "consumer rebalance, 100 members, 1,000 partitions";
        report.add(name, "ms", kind, elapsed.as_secs_f64() * 1e3);
    }
    Ok(())
}

struct ConsumerMember {
    wire: Wire,
    id: String,
    epoch: i32,
    owned: Vec<i32>,
}

impl ConsumerMember {
    fn new(address: SocketAddr, index: usize) -> Result<Self> {
        let mut wire = Wire::connect(address)?;
        wire.set_patience(PATIENCE)?;
        Ok(Self {
            wire,
            id: format!("member-{index:03}"),
            epoch: 0,
            owned: Vec::new(),
        })
    }

    /// Sends heartbeats until every one of `members` has had its share and nobody's has changed.
    fn until_share(
        &mut self,
        topic: &Topic,
        members: usize,
        goal: &AtomicUsize,
        settled: &AtomicUsize,
    ) -> Result<()> {
        let share = PARTITIONS as usize / members;
        let begun = Instant::now();
        let mut is_settled = false;
        loop {
            self.beat(topic)?;
            let has_share = (share..=share + 1).contains(&self.owned.len());
            let counts = goal.load(Ordering::SeqCst) == members;
            if has_share && counts && !is_settled {
                is_settled = true;
                settled.fetch_add(1, Ordering::SeqCst);
            } else if !has_share && is_settled {
                is_settled = false;
                settled.fetch_sub(1, Ordering::SeqCst);
            }
            if settled.load(Ordering::SeqCst) >= members {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < PATIENCE,
                "{} of {share}",
                self.owned.len()
            );
        }
    }

    fn beat(&mut self, topic: &Topic) -> Result<()> {
        let owned = TopicPartitions::default()
            .with_topic_id(topic.id)
            .with_partitions(self.owned.clone());
        let owned = if self.owned.is_empty() {
            Vec::new()
        } else {
            vec![owned]
        };
        let mut request = ConsumerGroupHeartbeatRequest::default()
            .with_group_id(GroupId(text("consumers")))
            .with_member_id(text(&self.id))
            .with_member_epoch(self.epoch)
            .with_subscribed_topic_names(None)
            .with_topic_partitions(Some(owned));
        if self.epoch == 0 {
            request.rebalance_timeout_ms = 60_000;
            request.subscribed_topic_names = Some(vec![topic_name(TOPIC)]);
        }
        let answer = self.wire.call(1, &request)?;
        ensure!(answer.error_code == 0, "heartbeat: {answer:?}");
        self.epoch = answer.member_epoch;
        if let Some(assignment) = answer.assignment {
            let topics = assignment.topic_partitions.into_iter();
            self.owned = topics.flat_map(|topic| topic.partitions).collect();
        }
        Ok(())
    }
}

/// A coordinator with a million live offsets starts again.
pub fn load_offsets(report: &mut Report, kind: Kind, _scale: Scale) -> Result<()> {
    let (mut node, address, _) = prepared(kind, PARTITIONS)?;
    let groups = LIVE_OFFSETS / PARTITIONS;
    let mut wire = Wire::connect(address)?;
    wire.set_patience(PATIENCE)?;
    for group in 0..groups {
        let rows: Vec<_> = (0..PARTITIONS).map(|index| (TOPIC, index, 7)).collect();
        let request = offset_commit(9, &format!("loaded-{group}"), -1, "", &rows);
        let answer = wire.call(9, &request)?;
        let rows = answer.topics.iter().flat_map(|topic| &topic.partitions);
        ensure!(
            rows.into_iter().all(|row| row.error_code == 0),
            "not committed"
        );
    }
    drop(wire);
    node.restart()?;
    let begun = Instant::now();
    let address: SocketAddr = node.bootstrap().parse()?;
    let found = loop {
        let asked = Wire::connect(address).and_then(|mut wire| {
            wire.set_patience(PATIENCE)?;
            committed(&mut wire, "loaded-0", TOPIC, 0)
        });
        match asked {
            Ok(found) => break found,
            Err(error) if begun.elapsed() > PATIENCE => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    ensure!(found.0 == 7, "the offset is {}", found.0);
    report.add(
        "from the first answer after a start to 1 million offsets loaded",
        "s",
        kind,
        begun.elapsed().as_secs_f64(),
    );
    Ok(())
}
