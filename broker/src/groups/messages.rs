//! Requests to a group coordinator and its replies, free of versions and of the codec.
//!
//! Handlers translate between these and the wire; what depends on an API version is decided there
//! and stands here as a plain field.

use bytes::Bytes;
use odradek_protocol::ids::{LeaderEpoch, Offset, PartitionIndex, TopicId};

use super::effects::Effects;
use super::error::GroupError;
use super::names::{GenerationId, GroupId, InstanceId, MemberId, TopicName};
use super::records::GroupRecord;

/// Effects of a group coordinator.
pub type GroupEffects = Effects<GroupRecord, GroupReply, GroupTimer>;

/// A timer of the group coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GroupTimer {
    /// A member has been silent for too long.
    Session(GroupId, MemberId),
    /// The joining phase of a rebalance is over.
    Join(GroupId),
    /// Every member must have asked for its assignment.
    Sync(GroupId),
    /// Time to look for expired offsets.
    OffsetRetention,
}

/// A request to the coordinator of a group.
#[derive(Clone, Debug)]
pub enum GroupRequest {
    /// JoinGroup.
    Join(JoinRequest),
    /// SyncGroup.
    Sync(SyncRequest),
    /// Heartbeat.
    Heartbeat(HeartbeatRequest),
    /// LeaveGroup.
    Leave(LeaveRequest),
    /// OffsetCommit.
    Commit(CommitRequest),
    /// OffsetFetch of one group.
    Fetch(FetchRequest),
    /// DescribeGroups of one group.
    Describe(GroupId),
    /// ListGroups.
    List(ListRequest),
    /// DeleteGroups of one group.
    Delete(GroupId),
    /// OffsetDelete.
    DeleteOffsets(DeleteOffsetsRequest),
    /// These topics are gone, and with them the offsets committed for them.
    TopicsDeleted(Vec<(TopicName, TopicId)>),
}

/// A reply of the coordinator; the variant is that of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupReply {
    /// To JoinGroup.
    Join(JoinReply),
    /// To SyncGroup.
    Sync(Result<SyncReply, GroupError>),
    /// To Heartbeat.
    Heartbeat(Result<(), GroupError>),
    /// To LeaveGroup: one result a member, in the order asked.
    Leave(Result<Vec<Result<(), GroupError>>, GroupError>),
    /// To OffsetCommit: one result a partition, in the order asked.
    Commit(Result<Vec<Vec<Result<(), GroupError>>>, GroupError>),
    /// To OffsetFetch.
    Fetch(Vec<FetchedTopic>),
    /// To DescribeGroups.
    Describe(Option<GroupDescription>),
    /// To ListGroups.
    List(Vec<GroupListing>),
    /// To DeleteGroups.
    Delete(Result<(), GroupError>),
    /// To OffsetDelete: one result a partition, in the order asked.
    DeleteOffsets(Result<Vec<Vec<Result<(), GroupError>>>, GroupError>),
    /// The deletion of topics is taken account of.
    TopicsDeleted,
}

/// One way of assigning partitions that a member can follow, with what it says to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberProtocol {
    /// Name of the protocol: `range`, `cooperative-sticky`…
    pub name: String,
    /// The member's subscription, opaque to the coordinator.
    pub metadata: Bytes,
}

/// JoinGroup.
#[derive(Clone, Debug)]
pub struct JoinRequest {
    /// The group.
    pub group: GroupId,
    /// The member's id; empty for a new member.
    pub member: MemberId,
    /// `group.instance.id`, if static.
    pub instance: Option<InstanceId>,
    /// Id for the member should it need one. Never given to anybody before.
    pub fresh_member: MemberId,
    /// `client.id`.
    pub client_id: String,
    /// Address of the client as Java prints it.
    pub client_host: String,
    /// How long the member may be silent.
    pub session_timeout_ms: i32,
    /// How long a rebalance waits for the member.
    pub rebalance_timeout_ms: i32,
    /// Kind of protocol: `consumer`, `connect`…
    pub protocol_type: String,
    /// What the member supports, the preferred first.
    pub protocols: Vec<MemberProtocol>,
    /// Whether a new member must join a second time with its id (KIP-394, from version 4).
    pub member_id_required: bool,
    /// Whether the client understands that its assignment stands (KIP-814, from version 9).
    pub can_skip_assignment: bool,
    /// Why the client joins, for the log (KIP-800).
    pub reason: String,
}

/// Answer to JoinGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinReply {
    /// Why it failed, if so.
    pub error: Option<GroupError>,
    /// The generation joined; −1 after an error.
    pub generation: GenerationId,
    /// The group's kind of protocol.
    pub protocol_type: Option<String>,
    /// The protocol chosen.
    pub protocol: Option<String>,
    /// The member that computes the assignment; empty after an error.
    pub leader: MemberId,
    /// The leader need not compute an assignment, the old one stands.
    pub skip_assignment: bool,
    /// The id of the member that asked.
    pub member: MemberId,
    /// All members with their subscriptions; only for the leader.
    pub members: Vec<JoinedMember>,
}

impl JoinReply {
    /// A refusal for the member with id `member`, which may be empty.
    pub fn refused(error: GroupError, member: MemberId) -> Self {
        Self {
            error: Some(error),
            generation: GenerationId::new(-1),
            protocol_type: None,
            protocol: None,
            leader: MemberId::new(""),
            skip_assignment: false,
            member,
            members: Vec::new(),
        }
    }
}

/// A member as its leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedMember {
    /// Its id.
    pub member: MemberId,
    /// Its `group.instance.id`, if static.
    pub instance: Option<InstanceId>,
    /// Its subscription for the chosen protocol.
    pub metadata: Bytes,
}

/// SyncGroup.
#[derive(Clone, Debug)]
pub struct SyncRequest {
    /// The group.
    pub group: GroupId,
    /// The member.
    pub member: MemberId,
    /// `group.instance.id`, if static.
    pub instance: Option<InstanceId>,
    /// The generation the member joined.
    pub generation: GenerationId,
    /// The kind of protocol the member believes in, if it says (from version 5).
    pub protocol_type: Option<String>,
    /// The protocol the member believes in, if it says (from version 5).
    pub protocol: Option<String>,
    /// From the leader: what each member gets.
    pub assignments: Vec<(MemberId, Bytes)>,
}

/// Answer to SyncGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncReply {
    /// The group's kind of protocol.
    pub protocol_type: Option<String>,
    /// The protocol chosen.
    pub protocol: Option<String>,
    /// What the member got; empty bytes are a valid assignment of nothing.
    pub assignment: Bytes,
}

/// Heartbeat.
#[derive(Clone, Debug)]
pub struct HeartbeatRequest {
    /// The group.
    pub group: GroupId,
    /// The member.
    pub member: MemberId,
    /// `group.instance.id`, if static.
    pub instance: Option<InstanceId>,
    /// The generation the member is in.
    pub generation: GenerationId,
}

/// LeaveGroup.
#[derive(Clone, Debug)]
pub struct LeaveRequest {
    /// The group.
    pub group: GroupId,
    /// Who leaves.
    pub members: Vec<LeavingMember>,
}

/// A member that leaves, or is removed by an administrator.
#[derive(Clone, Debug)]
pub struct LeavingMember {
    /// Its id; empty if only the instance is known.
    pub member: MemberId,
    /// Its `group.instance.id`, if static.
    pub instance: Option<InstanceId>,
    /// Why, for the log (KIP-800).
    pub reason: String,
}

/// OffsetCommit.
#[derive(Clone, Debug)]
pub struct CommitRequest {
    /// The group.
    pub group: GroupId,
    /// The member; empty outside a group.
    pub member: MemberId,
    /// `group.instance.id`, if static.
    pub instance: Option<InstanceId>,
    /// The member's generation; −1 outside a group.
    pub generation: GenerationId,
    /// How long to keep the offsets, for clients old enough to say so (versions 2 to 4).
    pub retention_ms: Option<i64>,
    /// What a member of a group that does not exist is told: from version 9 that there is no such
    /// group, before that that its generation is wrong.
    pub no_such_group: GroupError,
    /// What to commit.
    pub topics: Vec<CommitTopic>,
}

/// Offsets of one topic to commit.
#[derive(Clone, Debug)]
pub struct CommitTopic {
    /// Name of the topic, which exists.
    pub topic: TopicName,
    /// Its id.
    pub topic_id: TopicId,
    /// The offsets.
    pub partitions: Vec<CommitPartition>,
}

/// The offset of one partition to commit.
#[derive(Clone, Debug)]
pub struct CommitPartition {
    /// The partition.
    pub partition: PartitionIndex,
    /// Next offset to read.
    pub offset: Offset,
    /// Epoch of the last record read.
    pub leader_epoch: LeaderEpoch,
    /// The client's own words.
    pub metadata: String,
}

/// OffsetFetch of one group.
#[derive(Clone, Debug)]
pub struct FetchRequest {
    /// The group.
    pub group: GroupId,
    /// What to fetch; `None` for everything the group has committed.
    pub topics: Option<Vec<FetchTopic>>,
}

/// Partitions of one topic to fetch.
#[derive(Clone, Debug)]
pub struct FetchTopic {
    /// Name of the topic.
    pub topic: TopicName,
    /// Its id, zero if it is not known. An offset committed under another id is not found.
    pub topic_id: TopicId,
    /// The partitions.
    pub partitions: Vec<PartitionIndex>,
}

/// Offsets of one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedTopic {
    /// Name of the topic.
    pub topic: TopicName,
    /// Each partition asked for, with its offset if there is one.
    pub partitions: Vec<(PartitionIndex, Option<FetchedOffset>)>,
}

/// A committed offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedOffset {
    /// Next offset to read.
    pub offset: Offset,
    /// Epoch of the last record read.
    pub leader_epoch: LeaderEpoch,
    /// The client's own words.
    pub metadata: Box<str>,
}

/// ListGroups. An empty list filters nothing.
#[derive(Clone, Debug, Default)]
pub struct ListRequest {
    /// Names of states, in lower case.
    pub states: Vec<String>,
    /// Names of kinds of group, in lower case.
    pub kinds: Vec<String>,
}

/// A group in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupListing {
    /// The group.
    pub group: GroupId,
    /// Its kind of protocol; empty for a group that only stores offsets.
    pub protocol_type: String,
    /// Name of its state.
    pub state: &'static str,
}

/// A group in detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDescription {
    /// Name of its state.
    pub state: &'static str,
    /// Its kind of protocol; empty for a group that only stores offsets.
    pub protocol_type: String,
    /// The protocol chosen; empty unless stable.
    pub protocol: String,
    /// Its members.
    pub members: Vec<MemberDescription>,
}

/// A member in detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberDescription {
    /// Its id.
    pub member: MemberId,
    /// Its `group.instance.id`, if static.
    pub instance: Option<InstanceId>,
    /// Its `client.id`.
    pub client_id: String,
    /// Its address.
    pub client_host: String,
    /// Its subscription; empty unless the group is stable.
    pub metadata: Bytes,
    /// Its assignment.
    pub assignment: Bytes,
}

/// OffsetDelete.
#[derive(Clone, Debug)]
pub struct DeleteOffsetsRequest {
    /// The group.
    pub group: GroupId,
    /// Topics, which exist, and partitions whose offsets should go.
    pub topics: Vec<(TopicName, Vec<PartitionIndex>)>,
}
