//! Members of consumer groups, played step by step over plain connections.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    ConsumerGroupHeartbeatRequest, FindCoordinatorRequest, GroupId, HeartbeatRequest,
    JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, ListGroupsRequest, OffsetCommitRequest,
    OffsetFetchRequest, SyncGroupRequest,
};
use kafka_protocol::protocol::StrBytes;

use crate::requests::{topic_name, until_not_retriable};
use crate::wire::{Wire, text};

/// The session timeout of every member made here, in milliseconds.
pub const SESSION_TIMEOUT_MS: i32 = 10_000;

const JOIN_VERSION: i16 = 7;
const SYNC_VERSION: i16 = 5;
const HEARTBEAT_VERSION: i16 = 4;
const COMMIT_VERSION: i16 = 8;
/// What a join without a member id is answered.
pub const MEMBER_ID_REQUIRED: i16 = 79;

/// A JoinGroup request of one protocol.
pub fn join_request(
    version: i16,
    group: &str,
    member_id: &str,
    protocol: &str,
) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(text(protocol))
        .with_metadata(Bytes::from_static(b"metadata"));
    let mut request = JoinGroupRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_session_timeout_ms(SESSION_TIMEOUT_MS)
        .with_member_id(text(member_id))
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol]);
    if version >= 1 {
        request.rebalance_timeout_ms = 10_000;
    }
    request
}

/// A SyncGroup request; only a leader's carries assignments.
pub fn sync_request(
    version: i16,
    group: &str,
    generation: i32,
    member_id: &str,
    protocol: &str,
    assignments: &[(&str, Bytes)],
) -> SyncGroupRequest {
    let assignments = assignments
        .iter()
        .map(|(id, assignment)| {
            SyncGroupRequestAssignment::default()
                .with_member_id(text(id))
                .with_assignment(assignment.clone())
        })
        .collect();
    let mut request = SyncGroupRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_generation_id(generation)
        .with_member_id(text(member_id))
        .with_assignments(assignments);
    if version >= 5 {
        request.protocol_type = Some(text("consumer"));
        request.protocol_name = Some(text(protocol));
    }
    request
}

/// An OffsetCommit request with one row for each `(topic, partition, offset)`, topics in the order of `rows`.
pub fn offset_commit(
    version: i16,
    group: &str,
    generation: i32,
    member_id: &str,
    rows: &[(&str, i32, i64)],
) -> OffsetCommitRequest {
    let mut topics: Vec<OffsetCommitRequestTopic> = Vec::new();
    for (name, partition, offset) in rows {
        let row = OffsetCommitRequestPartition::default()
            .with_partition_index(*partition)
            .with_committed_offset(*offset)
            .with_committed_metadata(Some(text("note")));
        match topics
            .iter_mut()
            .find(|topic| topic.name == topic_name(name))
        {
            Some(topic) => topic.partitions.push(row),
            None => topics.push(
                OffsetCommitRequestTopic::default()
                    .with_name(topic_name(name))
                    .with_partitions(vec![row]),
            ),
        }
    }
    let mut request = OffsetCommitRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_generation_id_or_member_epoch(generation)
        .with_member_id(text(member_id))
        .with_topics(topics);
    if version <= 4 {
        request.retention_time_ms = -1;
    }
    request
}

/// An OffsetFetch request for some partitions of some topics, or for everything (from version 2 on).
pub fn offset_fetch(
    version: i16,
    group: &str,
    rows: Option<&[(&str, &[i32])]>,
) -> OffsetFetchRequest {
    let request = OffsetFetchRequest::default();
    if version >= 8 {
        let topics = rows.map(|rows| {
            rows.iter()
                .map(|(name, partitions)| {
                    OffsetFetchRequestTopics::default()
                        .with_name(topic_name(name))
                        .with_partition_indexes(partitions.to_vec())
                })
                .collect()
        });
        let group = OffsetFetchRequestGroup::default()
            .with_group_id(GroupId(text(group)))
            .with_topics(topics);
        return request.with_groups(vec![group]);
    }
    let topics = rows.map(|rows| {
        rows.iter()
            .map(|(name, partitions)| {
                OffsetFetchRequestTopic::default()
                    .with_name(topic_name(name))
                    .with_partition_indexes(partitions.to_vec())
            })
            .collect()
    });
    request
        .with_group_id(GroupId(text(group)))
        .with_topics(topics)
}

/// Waits until the coordinator of a group not only is found but answers. A heartbeat would not tell: while the
/// coordinator loads, members are told to go on.
pub fn coordinator_is_up(wire: &mut Wire, group: &str) -> Result<()> {
    find_coordinator(wire, group)?;
    let fetch = offset_fetch(5, group, Some(&[]));
    until_not_retriable(|| Ok(wire.call(5, &fetch)?), |answer| answer.error_code)?;
    // Answered once all coordinators of this node have read their logs, so that what is asked of other groups is answered
    // as well.
    let list = ListGroupsRequest::default();
    until_not_retriable(|| Ok(wire.call(4, &list)?), |answer| answer.error_code)?;
    Ok(())
}

/// Waits until the coordinator of a group is found, as clients do before all else: on a fresh node that makes its topic.
pub fn find_coordinator(wire: &mut Wire, group: &str) -> Result<()> {
    let request = FindCoordinatorRequest::default().with_key(text(group));
    let answer = until_not_retriable(|| Ok(wire.call(3, &request)?), |answer| answer.error_code)?;
    ensure!(
        answer.error_code == 0,
        "FindCoordinator: error {}",
        answer.error_code
    );
    Ok(())
}

/// The committed offset of one partition (−1 for none) and its leader epoch.
pub fn committed(wire: &mut Wire, group: &str, topic: &str, partition: i32) -> Result<(i64, i32)> {
    find_coordinator(wire, group)?;
    let request = offset_fetch(7, group, Some(&[(topic, &[partition])]));
    let answer = until_not_retriable(|| Ok(wire.call(7, &request)?), |answer| answer.error_code)?;
    ensure!(
        answer.error_code == 0,
        "OffsetFetch: error {}",
        answer.error_code
    );
    let row = answer
        .topics
        .first()
        .and_then(|topic| topic.partitions.first())
        .context("no row")?;
    ensure!(row.error_code == 0, "OffsetFetch: error {}", row.error_code);
    Ok((row.committed_offset, row.committed_leader_epoch))
}

/// A member that has joined.
pub struct Member {
    wire: Wire,
    group: String,
    protocol: String,
    instance: Option<StrBytes>,
    /// Its id.
    pub id: String,
    /// The id of the group's leader.
    pub leader: String,
    /// The generation that it joined.
    pub generation: i32,
    /// All members, if it leads.
    pub members: Vec<JoinGroupResponseMember>,
    /// What the last sync gave it.
    pub assignment: Bytes,
}

/// A member whose JoinGroup request is on its way.
pub struct JoiningMember {
    wire: Wire,
    group: String,
    protocol: String,
    instance: Option<StrBytes>,
    correlation_id: i32,
}

impl JoiningMember {
    /// Waits for the answer to the join.
    pub fn finish(mut self) -> Result<Member> {
        let answer = self
            .wire
            .receive::<JoinGroupRequest>(JOIN_VERSION, self.correlation_id)?;
        ensure!(
            answer.error_code == 0,
            "JoinGroup: error {}",
            answer.error_code
        );
        let mut member = Member {
            wire: self.wire,
            group: self.group,
            protocol: self.protocol,
            instance: self.instance,
            id: String::new(),
            leader: String::new(),
            generation: 0,
            members: Vec::new(),
            assignment: Bytes::new(),
        };
        member.joined(answer);
        Ok(member)
    }

    /// Changes how long the answer may take.
    pub fn set_patience(&mut self, patience: Duration) -> Result<()> {
        self.wire.set_patience(patience)
    }
}

impl Member {
    /// Joins a group and waits until the join is answered.
    pub fn join(address: SocketAddr, group: &str, protocol: &str) -> Result<Self> {
        Self::start_join(address, group, protocol)?.finish()
    }

    /// Asks for a member id and sends the join that uses it.
    pub fn start_join(address: SocketAddr, group: &str, protocol: &str) -> Result<JoiningMember> {
        Self::start_join_with(address, group, protocol, |request| request)
    }

    /// The same with a change to both JoinGroup requests.
    pub fn start_join_with(
        address: SocketAddr,
        group: &str,
        protocol: &str,
        change: impl Fn(JoinGroupRequest) -> JoinGroupRequest,
    ) -> Result<JoiningMember> {
        let mut wire = Wire::connect(address)?;
        find_coordinator(&mut wire, group)?;
        let request = change(join_request(JOIN_VERSION, group, "", protocol));
        let answer = until_not_retriable(
            || Ok(wire.call(JOIN_VERSION, &request)?),
            |answer| answer.error_code,
        )?;
        ensure!(
            answer.error_code == MEMBER_ID_REQUIRED,
            "JoinGroup without an id: error {}",
            answer.error_code
        );
        let request = change(join_request(
            JOIN_VERSION,
            group,
            &answer.member_id,
            protocol,
        ));
        let correlation_id = wire.send(JOIN_VERSION, &request)?;
        Ok(JoiningMember {
            wire,
            group: group.to_owned(),
            protocol: protocol.to_owned(),
            instance: None,
            correlation_id,
        })
    }

    /// Sends the join of a static member (KIP-345), which needs no member id.
    pub fn start_static_join(
        address: SocketAddr,
        group: &str,
        protocol: &str,
        instance: &str,
    ) -> Result<JoiningMember> {
        let mut wire = Wire::connect(address)?;
        // The join is sent once and only its answer waited for, so nobody may still be loading.
        coordinator_is_up(&mut wire, group)?;
        let instance = Some(text(instance));
        let request = join_request(JOIN_VERSION, group, "", protocol)
            .with_group_instance_id(instance.clone());
        let correlation_id = wire.send(JOIN_VERSION, &request)?;
        Ok(JoiningMember {
            wire,
            group: group.to_owned(),
            protocol: protocol.to_owned(),
            instance,
            correlation_id,
        })
    }

    fn joined(&mut self, answer: JoinGroupResponse) {
        self.id = answer.member_id.to_string();
        self.leader = answer.leader.to_string();
        self.generation = answer.generation_id;
        self.members = answer.members;
    }

    /// Goes on over a new connection, as after a restart of the broker.
    pub fn reconnect(&mut self, address: SocketAddr) -> Result<()> {
        self.wire = Wire::connect(address)?;
        Ok(())
    }

    /// Whether it leads the group.
    pub fn is_leader(&self) -> bool {
        self.id == self.leader
    }

    /// Joins again under its id.
    pub fn rejoin(&mut self) -> Result<()> {
        let request = join_request(JOIN_VERSION, &self.group, &self.id, &self.protocol)
            .with_group_instance_id(self.instance.clone());
        let answer = self.wire.call(JOIN_VERSION, &request)?;
        ensure!(
            answer.error_code == 0,
            "JoinGroup: error {}",
            answer.error_code
        );
        self.joined(answer);
        Ok(())
    }

    /// Syncs with assignments for members (a leader) or none (a follower).
    pub fn sync(&mut self, assignments: &[(&str, &'static [u8])]) -> Result<()> {
        let assignments: Vec<_> = assignments
            .iter()
            .map(|(id, bytes)| (*id, Bytes::from_static(bytes)))
            .collect();
        let request = sync_request(
            SYNC_VERSION,
            &self.group,
            self.generation,
            &self.id,
            &self.protocol,
            &assignments,
        )
        .with_group_instance_id(self.instance.clone());
        let correlation_id = self.wire.send(SYNC_VERSION, &request)?;
        self.finish_sync(correlation_id)
    }

    /// Sends a follower's sync without waiting.
    pub fn start_sync(&mut self) -> Result<i32> {
        let request = sync_request(
            SYNC_VERSION,
            &self.group,
            self.generation,
            &self.id,
            &self.protocol,
            &[],
        )
        .with_group_instance_id(self.instance.clone());
        Ok(self.wire.send(SYNC_VERSION, &request)?)
    }

    /// Waits for the answer to [`Self::start_sync`].
    pub fn finish_sync(&mut self, correlation_id: i32) -> Result<()> {
        let answer = self
            .wire
            .receive::<SyncGroupRequest>(SYNC_VERSION, correlation_id)?;
        ensure!(
            answer.error_code == 0,
            "SyncGroup: error {}",
            answer.error_code
        );
        self.assignment = answer.assignment;
        Ok(())
    }

    /// One heartbeat; its error code.
    pub fn heartbeat(&mut self) -> Result<i16> {
        let request = HeartbeatRequest::default()
            .with_group_id(GroupId(text(&self.group)))
            .with_generation_id(self.generation)
            .with_member_id(text(&self.id))
            .with_group_instance_id(self.instance.clone());
        Ok(self.wire.call(HEARTBEAT_VERSION, &request)?.error_code)
    }

    /// Commits offsets; the error codes of the rows.
    pub fn commit(&mut self, rows: &[(&str, i32, i64)]) -> Result<Vec<i16>> {
        let request = offset_commit(COMMIT_VERSION, &self.group, self.generation, &self.id, rows)
            .with_group_instance_id(self.instance.clone());
        let answer = self.wire.call(COMMIT_VERSION, &request)?;
        Ok(answer
            .topics
            .iter()
            .flat_map(|topic| &topic.partitions)
            .map(|row| row.error_code)
            .collect())
    }

    /// Leaves the group; the error code.
    pub fn leave(&mut self) -> Result<i16> {
        let member = MemberIdentity::default()
            .with_member_id(text(&self.id))
            .with_group_instance_id(self.instance.clone());
        let request = LeaveGroupRequest::default()
            .with_group_id(GroupId(text(&self.group)))
            .with_members(vec![member]);
        let answer = self.wire.call(4, &request)?;
        Ok(answer
            .members
            .first()
            .map_or(answer.error_code, |member| member.error_code))
    }
}

/// The first heartbeat of a member of the protocol of KIP-848.
pub fn joining(group: &str, member: &str, topics: &[&str]) -> ConsumerGroupHeartbeatRequest {
    let topics = topics.iter().map(|topic| topic_name(topic)).collect();
    going_on(group, member, 0)
        .with_rebalance_timeout_ms(30_000)
        .with_subscribed_topic_names(Some(topics))
        .with_topic_partitions(Some(Vec::new()))
}

/// A heartbeat of a member of the protocol of KIP-848 that says nothing new.
pub fn going_on(group: &str, member: &str, epoch: i32) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_member_id(text(member))
        .with_member_epoch(epoch)
        .with_instance_id(None)
        .with_rack_id(None)
        .with_subscribed_topic_names(None)
        .with_subscribed_topic_regex(None)
        .with_server_assignor(None)
        .with_topic_partitions(None)
}
