//! A coordinator on a bench: virtual time, a log that is a vector, replies that can be looked at.
//!
//! For tests of the pure part. Every record is taken to be committed at once.

use std::collections::HashMap;

use bytes::Bytes;
use odradek_protocol::ids::{LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicId};

use super::config::CoordinatorConfig;
use super::coordinator::GroupCoordinator;
use super::error::GroupError;
use super::messages::{
    CommitPartition, CommitRequest, CommitTopic, FetchRequest, GroupEffects, GroupReply,
    GroupRequest, GroupTimer, HeartbeatRequest, JoinReply, JoinRequest, LeaveRequest,
    LeavingMember, MemberProtocol, SyncReply, SyncRequest,
};
use super::names::{GenerationId, GroupId, InstanceId, MemberId, TopicName};
use super::records::GroupRecord;
use crate::coordinator::StateMachine as _;
use crate::coordinator::effects::{Effects, RequestToken, TimerChange};
use crate::coordinator::hosting::Coordinators as _;

/// Name of the group in tests that need only one.
pub(crate) const GROUP: &str = "group";

/// A coordinator with all that it needs to live.
pub(crate) struct Bench {
    pub config: CoordinatorConfig,
    pub coordinator: GroupCoordinator,
    pub now_ms: i64,
    /// Everything written so far.
    pub log: Vec<GroupRecord>,
    timers: HashMap<GroupTimer, (i64, u64)>,
    replies: HashMap<RequestToken, GroupReply>,
    next_number: u64,
}

impl Bench {
    pub fn new() -> Self {
        Self::with_config(CoordinatorConfig {
            group_initial_rebalance_delay_ms: 0,
            ..CoordinatorConfig::default()
        })
    }

    pub fn with_config(config: CoordinatorConfig) -> Self {
        let mut bench = Self {
            coordinator: GroupCoordinator::new(config.clone()),
            config,
            now_ms: 1_000_000,
            log: Vec::new(),
            timers: HashMap::new(),
            replies: HashMap::new(),
            next_number: 0,
        };
        bench.event(|coordinator, now, effects| coordinator.loaded(now, effects));
        bench
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn event(&mut self, event: impl FnOnce(&mut GroupCoordinator, TimestampMs, &mut GroupEffects)) {
        let mut effects = Effects::default();
        event(
            &mut self.coordinator,
            TimestampMs::new(self.now_ms),
            &mut effects,
        );
        self.log.extend(effects.records);
        for change in effects.timers {
            match change {
                TimerChange::Set { timer, after_ms } => {
                    let order = self.number();
                    let due = self.now_ms + i64::try_from(after_ms).unwrap_or(i64::MAX / 2);
                    self.timers.insert(timer, (due, order));
                }
                TimerChange::Cancel(timer) => {
                    self.timers.remove(&timer);
                }
            }
        }
        for (token, reply) in effects.replies {
            let earlier = self.replies.insert(token, reply);
            assert!(earlier.is_none(), "{token:?} is answered twice");
        }
    }

    /// Sends a request; the reply is fetched with the token.
    pub fn ask(&mut self, request: GroupRequest) -> RequestToken {
        let token = RequestToken::new(self.number());
        self.event(|coordinator, now, effects| coordinator.handle(token, request, now, effects));
        self.fire_due();
        token
    }

    fn fire_due(&mut self) {
        while let Some((timer, _)) = self
            .timers
            .iter()
            .filter(|(_, (due, _))| *due <= self.now_ms)
            .min_by_key(|(_, order)| **order)
            .map(|(timer, order)| (timer.clone(), *order))
        {
            self.timers.remove(&timer);
            self.event(|coordinator, now, effects| coordinator.timer_fired(timer, now, effects));
        }
    }

    /// When the next timer fires, in milliseconds from now.
    pub fn next_timer_ms(&self) -> Option<i64> {
        let due = self.timers.values().map(|(due, _)| *due).min()?;
        Some(due - self.now_ms)
    }

    /// Lets time go by, firing what comes due at its time.
    pub fn advance(&mut self, ms: i64) {
        let until = self.now_ms + ms;
        while let Some(next) = self
            .next_timer_ms()
            .filter(|next| self.now_ms + next <= until)
        {
            self.now_ms += next.max(0);
            self.fire_due();
        }
        self.now_ms = until;
    }

    /// The coordinator as another broker would build it from the log.
    pub fn replayed(&self) -> GroupCoordinator {
        let mut coordinator = GroupCoordinator::new(self.config.clone());
        for record in &self.log {
            coordinator.apply(record.clone(), TimestampMs::new(self.now_ms));
        }
        coordinator
    }

    /// The broker restarts: what was not written is gone, and nobody is answered any more.
    pub fn restart(&mut self) {
        self.coordinator = self.replayed();
        self.timers.clear();
        self.event(|coordinator, now, effects| coordinator.loaded(now, effects));
    }

    /// Takes the reply to `token`, if there is one.
    pub fn reply(&mut self, token: RequestToken) -> Option<GroupReply> {
        self.replies.remove(&token)
    }

    /// Takes the reply to a join.
    pub fn joined(&mut self, token: RequestToken) -> Option<JoinReply> {
        match self.reply(token)? {
            GroupReply::Join(reply) => Some(reply),
            other => panic!("{other:?} answers a join"),
        }
    }

    /// Takes the reply to a sync.
    pub fn synced(&mut self, token: RequestToken) -> Option<Result<SyncReply, GroupError>> {
        match self.reply(token)? {
            GroupReply::Sync(reply) => Some(reply),
            other => panic!("{other:?} answers a sync"),
        }
    }

    /// A join as a client of today sends it, from `member`, which may be empty.
    pub fn join_request(&mut self, member: &MemberId) -> JoinRequest {
        let number = self.number();
        JoinRequest {
            group: GroupId::new(GROUP),
            member: member.clone(),
            instance: None,
            fresh_member: MemberId::new(&format!("m{number:06}")),
            client_id: "client".to_owned(),
            client_host: "/127.0.0.1".to_owned(),
            session_timeout_ms: 10_000,
            rebalance_timeout_ms: 60_000,
            protocol_type: "consumer".to_owned(),
            protocols: vec![protocol("range", &["topic"])],
            member_id_required: true,
            can_skip_assignment: true,
            reason: String::new(),
        }
    }

    /// Asks for an id, then joins with it.
    pub fn join_new(&mut self) -> (MemberId, RequestToken) {
        let request = self.join_request(&MemberId::new(""));
        self.join_new_as(request)
    }

    /// Asks for an id with `request`, then joins with it.
    pub fn join_new_as(&mut self, mut request: JoinRequest) -> (MemberId, RequestToken) {
        let token = self.ask(GroupRequest::Join(request.clone()));
        let reply = self.joined(token).unwrap_or_else(|| panic!("no id given"));
        assert_eq!(reply.error, Some(GroupError::MemberIdRequired));
        request.member = reply.member.clone();
        (reply.member, self.ask(GroupRequest::Join(request)))
    }

    pub fn rejoin(&mut self, member: &MemberId) -> RequestToken {
        let request = self.join_request(member);
        self.ask(GroupRequest::Join(request))
    }

    pub fn sync(
        &mut self,
        member: &MemberId,
        generation: GenerationId,
        assignments: &[(&MemberId, &'static [u8])],
    ) -> RequestToken {
        self.ask(GroupRequest::Sync(SyncRequest {
            group: GroupId::new(GROUP),
            member: member.clone(),
            instance: None,
            generation,
            protocol_type: Some("consumer".to_owned()),
            protocol: Some("range".to_owned()),
            assignments: assignments
                .iter()
                .map(|(member, bytes)| ((*member).clone(), Bytes::from_static(bytes)))
                .collect(),
        }))
    }

    pub fn heartbeat(
        &mut self,
        member: &MemberId,
        generation: GenerationId,
    ) -> Result<(), GroupError> {
        let token = self.ask(GroupRequest::Heartbeat(HeartbeatRequest {
            group: GroupId::new(GROUP),
            member: member.clone(),
            instance: None,
            generation,
        }));
        match self.reply(token) {
            Some(GroupReply::Heartbeat(reply)) => reply,
            other => panic!("{other:?} answers a heartbeat"),
        }
    }

    pub fn leave(&mut self, member: &MemberId) -> Vec<Result<(), GroupError>> {
        self.leave_as(member, None)
    }

    pub fn leave_as(
        &mut self,
        member: &MemberId,
        instance: Option<InstanceId>,
    ) -> Vec<Result<(), GroupError>> {
        let token = self.ask(GroupRequest::Leave(LeaveRequest {
            group: GroupId::new(GROUP),
            members: vec![LeavingMember {
                member: member.clone(),
                instance,
                reason: String::new(),
            }],
        }));
        match self.reply(token) {
            Some(GroupReply::Leave(Ok(reply))) => reply,
            other => panic!("{other:?} answers a leave"),
        }
    }

    pub fn commit_request(
        member: &MemberId,
        generation: GenerationId,
        topic: &str,
        partition: i32,
        offset: i64,
    ) -> CommitRequest {
        CommitRequest {
            group: GroupId::new(GROUP),
            member: member.clone(),
            instance: None,
            generation,
            retention_ms: None,
            no_such_group: GroupError::GroupNotFound,
            knows_epochs: true,
            topics: vec![CommitTopic {
                topic: TopicName::new(topic),
                topic_id: TopicId::ZERO,
                partitions: vec![CommitPartition {
                    partition: PartitionIndex::new(partition),
                    offset: Offset::new(offset),
                    leader_epoch: LeaderEpoch::new(3),
                    metadata: String::new(),
                }],
            }],
        }
    }

    /// Commits one offset; the result is that of its partition.
    pub fn commit(&mut self, request: CommitRequest) -> Result<(), GroupError> {
        let token = self.ask(GroupRequest::Commit(request));
        match self.reply(token) {
            Some(GroupReply::Commit(Ok(results))) => results[0][0],
            Some(GroupReply::Commit(Err(error))) => Err(error),
            other => panic!("{other:?} answers a commit"),
        }
    }

    /// The offset committed by the group for a partition.
    pub fn committed(&mut self, topic: &str, partition: i32) -> Option<i64> {
        let token = self.ask(GroupRequest::Fetch(FetchRequest {
            require_stable: false,
            group: GroupId::new(GROUP),
            member: None,
            topics: Some(vec![super::messages::FetchTopic {
                topic: TopicName::new(topic),
                topic_id: TopicId::ZERO,
                partitions: vec![PartitionIndex::new(partition)],
            }]),
        }));
        match self.reply(token) {
            Some(GroupReply::Fetch(Ok(topics))) => topics[0].partitions[0]
                .1
                .as_ref()
                .map(|found| found.offset.get()),
            other => panic!("{other:?} answers a fetch"),
        }
    }

    /// Name of the group's state; `Dead` if there is none.
    pub fn state(&self) -> &'static str {
        self.coordinator
            .groups()
            .find(|group| group.listing().group.as_str() == GROUP)
            .map_or("Dead", |group| group.state_name())
    }

    /// A stable group of `count` members, the first of which leads. The assignments are `a`, `b`…
    pub fn stable_group(&mut self, count: usize) -> (Vec<MemberId>, GenerationId) {
        const ASSIGNMENTS: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];
        let (first, mut token) = self.join_new();
        let mut members = vec![first.clone()];
        for _ in 1..count {
            let newcomer = self.join_new().0;
            token = self.rejoin(&first);
            for member in members.iter().skip(1) {
                self.rejoin(member);
            }
            members.push(newcomer);
        }
        let joined = self
            .joined(token)
            .unwrap_or_else(|| panic!("no generation"));
        assert_eq!(joined.leader, first);
        let assignments: Vec<_> = members.iter().zip(ASSIGNMENTS).collect();
        for member in members.iter().skip(1) {
            self.sync(member, joined.generation, &[]);
        }
        self.sync(&first, joined.generation, &assignments);
        assert_eq!(self.state(), "Stable");
        (members, joined.generation)
    }
}

/// A protocol whose metadata is a subscription to `topics`.
pub(crate) fn protocol(name: &str, topics: &[&str]) -> MemberProtocol {
    let mut metadata = vec![0, 1];
    metadata.extend((topics.len() as i32).to_be_bytes());
    for topic in topics {
        metadata.extend((topic.len() as i16).to_be_bytes());
        metadata.extend(topic.as_bytes());
    }
    metadata.extend((-1_i32).to_be_bytes());
    MemberProtocol {
        name: name.to_owned(),
        metadata: Bytes::from(metadata),
    }
}

/// A service whose topic has one partition, coordinated here on a log in memory.
pub(crate) async fn service() -> super::Service {
    let clock = crate::clock::ManualClock::starting_at(TimestampMs::new(1_000));
    let service = super::Service::new(CoordinatorConfig::default(), std::sync::Arc::new(clock));
    service.host().set_partition_count(Some(1));
    let log = crate::coordinator::memory_log::MemoryLog::new();
    service.lead(PartitionIndex::new(0), std::sync::Arc::new(log));
    service
        .host()
        .wait_until_active(PartitionIndex::new(0))
        .await;
    service
}

/// Metadata of these topics: name, id made of one byte, number of partitions.
pub(crate) fn image_of(topics: &[(&str, u8, i32)]) -> crate::metadata::image::MetadataImage {
    use crate::metadata::records::{MetadataRecord, PartitionRecord, TopicRecord};
    let mut records = Vec::new();
    for (name, id, partitions) in topics {
        let topic_id = TopicId::from_bytes([*id; 16]);
        records.push(MetadataRecord::Topic(TopicRecord {
            name: (*name).to_owned(),
            topic_id,
        }));
        records.extend((0..*partitions).map(|index| {
            MetadataRecord::Partition(PartitionRecord {
                topic_id,
                partition: PartitionIndex::new(index),
                replicas: Vec::new(),
                isr: Vec::new(),
                removing_replicas: Vec::new(),
                adding_replicas: Vec::new(),
                leader: None,
                leader_epoch: LeaderEpoch::new(0),
                partition_epoch: 0,
                directories: Vec::new(),
                begun: None,
            })
        }));
    }
    let mut image = crate::metadata::image::MetadataImage::default();
    image
        .apply(&records, Offset::new(1))
        .unwrap_or_else(|error| panic!("{error}"));
    image
}
