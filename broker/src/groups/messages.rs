//! Requests to a group coordinator and its replies, free of versions and of the codec.
//!
//! Handlers translate between these and the wire; what depends on an API version is decided there
//! and stands here as a plain field.

use bytes::Bytes;
use odradek_protocol::ids::{LeaderEpoch, Offset, PartitionIndex, TopicId};
use odradek_storage::producer_state::EndTxnMarker;

use super::consumer::Refusal;
use super::consumer::assignment::Partitions;
use super::consumer::regexes::{Found, Lookup};
use super::error::GroupError;
use super::names::{Epoch, GenerationId, GroupId, InstanceId, MemberId, TopicName};
use super::records::GroupRecord;
use crate::coordinator::effects::{Effects, ProducerIdentity};

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
    /// A member of a consumer group must have let go of partitions.
    Rebalance(GroupId, MemberId),
    /// A classic member of a consumer group must have joined again.
    MemberJoin(GroupId, MemberId),
    /// A classic member of a consumer group must have asked for its assignment.
    MemberSync(GroupId, MemberId),
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
    /// ConsumerGroupHeartbeat.
    ConsumerHeartbeat(ConsumerHeartbeatRequest),
    /// ConsumerGroupDescribe of one group.
    ConsumerDescribe(GroupId),
    /// What the regular expressions of a group match.
    LookedUp(GroupId, Found),
    /// TxnOffsetCommit.
    CommitInTransaction(TxnCommitRequest),
    /// A transaction has ended, of which the marker is to be written into this partition.
    EndTransaction(ProducerIdentity, EndTxnMarker),
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
    Fetch(Result<Vec<FetchedTopic>, GroupError>),
    /// To DescribeGroups.
    Describe(Described),
    /// To ListGroups.
    List(Vec<GroupListing>),
    /// To DeleteGroups.
    Delete(Result<(), GroupError>),
    /// To OffsetDelete: one result a partition, in the order asked.
    DeleteOffsets(Result<Vec<Vec<Result<(), GroupError>>>, GroupError>),
    /// To ConsumerGroupHeartbeat.
    ConsumerHeartbeat(Result<ConsumerHeartbeatReply, Refusal>),
    /// To ConsumerGroupDescribe; `None` if there is no such consumer group.
    ConsumerDescribe(Option<ConsumerGroupDescription>),
    /// What expressions match is taken account of.
    LookedUp,
    /// To TxnOffsetCommit: one result a partition, in the order asked.
    CommitInTransaction(Result<Vec<Vec<Result<(), GroupError>>>, TxnCommitRefusal>),
    /// The marker is written.
    EndTransaction,
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
    /// Whether the version knows of member epochs (from version 9).
    pub knows_epochs: bool,
    /// What to commit.
    pub topics: Vec<CommitTopic>,
}

/// TxnOffsetCommit.
#[derive(Clone, Debug)]
pub struct TxnCommitRequest {
    /// Whose transaction it is.
    pub producer: ProducerIdentity,
    /// What the coordinator of the transaction was asked on account of, once it has said that the
    /// group's partition is part of it.
    pub verified: Option<VerificationMoment>,
    /// The commit.
    pub commit: CommitRequest,
}

/// A moment in the life of a group coordinator, before which the coordinator of a transaction was
/// not asked. What has ended since may be what was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerificationMoment(pub u64);

/// Why a commit in a transaction did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnCommitRefusal {
    /// The request fails.
    Failed(GroupError),
    /// It is not known whether there is such a transaction. The coordinator of transactions is to be
    /// asked, and the request to be made again.
    Unverified(VerificationMoment),
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
    /// The member that asks, and its epoch, if a member asks (from version 9).
    pub member: Option<(MemberId, Epoch)>,
    /// What to fetch; `None` for everything the group has committed.
    pub topics: Option<Vec<FetchTopic>>,
    /// Whether it is to be told where an open transaction may change an offset (KIP-447).
    pub require_stable: bool,
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
    /// Those of them whose offset an open transaction may change, if that was asked for.
    pub unstable: Vec<PartitionIndex>,
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
    /// Name of its kind.
    pub kind: &'static str,
}

/// What DescribeGroups finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Described {
    /// A classic group.
    Classic(GroupDescription),
    /// A group of another kind, which this API does not describe.
    OtherKind,
    /// Nothing.
    Missing,
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

/// ConsumerGroupHeartbeat. What a member leaves out has not changed.
#[derive(Clone, Debug)]
pub struct ConsumerHeartbeatRequest {
    /// The group.
    pub group: GroupId,
    /// The member.
    pub member: MemberId,
    /// Its epoch, or what it is about to do.
    pub epoch: Epoch,
    /// `group.instance.id`, if static.
    pub instance: Option<InstanceId>,
    /// `client.rack`.
    pub rack: Option<String>,
    /// How long the member may take to let go of partitions.
    pub rebalance_timeout_ms: Option<i32>,
    /// Topics by name, in order and none twice.
    pub topics: Option<Vec<TopicName>>,
    /// Topics by a regular expression; empty for none any more.
    pub regex: Option<String>,
    /// The assignor that it prefers, by a name that there is.
    pub assignor: Option<String>,
    /// What the member has.
    pub owned: Option<Partitions>,
    /// `client.id`.
    pub client_id: String,
    /// Address of the client as Java prints it.
    pub client_host: String,
}

impl ConsumerHeartbeatRequest {
    /// Whether the member tells everything, as it does after an error.
    pub fn is_full(&self) -> bool {
        self.rebalance_timeout_ms.is_some()
            && (self.topics.is_some() || self.regex.is_some())
            && self.owned.is_some()
    }
}

/// Answer to ConsumerGroupHeartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerHeartbeatReply {
    /// The member.
    pub member: MemberId,
    /// Its epoch.
    pub epoch: Epoch,
    /// When to send the next.
    pub heartbeat_interval_ms: i32,
    /// What the member has; `None` if it knows.
    pub assignment: Option<Partitions>,
    /// Expressions that the shell is to look up now.
    pub lookup: Option<Lookup>,
}

/// A consumer group in detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerGroupDescription {
    /// Name of its state.
    pub state: &'static str,
    /// Its epoch.
    pub epoch: Epoch,
    /// Epoch of the target assignment.
    pub target_epoch: Epoch,
    /// Name of the assignor that it uses.
    pub assignor: String,
    /// Its members.
    pub members: Vec<ConsumerMemberDescription>,
}

/// A member of a consumer group in detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerMemberDescription {
    /// Its id.
    pub member: MemberId,
    /// Its `group.instance.id`, if static.
    pub instance: Option<InstanceId>,
    /// Its `client.rack`.
    pub rack: Option<String>,
    /// Its epoch.
    pub epoch: Epoch,
    /// Its `client.id`.
    pub client_id: String,
    /// Its address.
    pub client_host: String,
    /// Topics that it named.
    pub topics: Vec<TopicName>,
    /// The regular expression that it is subscribed to.
    pub regex: Option<String>,
    /// What it has and has not let go of.
    pub assigned: Partitions,
    /// What it is meant to have.
    pub target: Partitions,
    /// Whether it speaks the classic protocol.
    pub is_classic: bool,
}
