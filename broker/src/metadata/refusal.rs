//! Why the controller does not carry out a command, by cause.
//!
//! The sentences are those that Kafka's clients print and that tools match on, so they follow
//! Kafka's wording; the codes come from one exhaustive map.

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{NodeId, PartitionIndex};

use super::controller::voters::VoterRefusal;
use super::topic_name::InvalidTopicName;

/// Most partitions that one request creates.
pub const MAX_PARTITIONS_PER_REQUEST: usize = 10_000;

/// A command, or a part of one, that is not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request names a topic twice.
    #[error("Duplicate topic name.")]
    DuplicateTopicName,
    /// The request names a topic id twice.
    #[error("Duplicate topic id.")]
    DuplicateTopicId,
    /// The request names one topic by its name and by its id.
    #[error("The provided topic name maps to an ID that was already supplied.")]
    TopicNamedByNameAndId,
    /// Neither a name nor an id.
    #[error("Neither topic name nor id were specified.")]
    NoNameOrId,
    /// A name and an id in one entry.
    #[error("You may not specify both topic name and topic id.")]
    NameAndId,
    /// Topics are not deleted here.
    #[error("Topic deletion is disabled.")]
    DeletionDisabled,
    /// There is no such topic.
    #[error("This server does not host this topic-partition.")]
    UnknownTopic,
    /// There is no such topic, said with its name.
    #[error("The topic '{0}' does not exist.")]
    UnknownTopicNamed(String),
    /// There is no topic of that id.
    #[error("This server does not host this topic ID.")]
    UnknownTopicId,
    /// The topic exists.
    #[error("Topic '{0}' already exists.")]
    TopicExists(String),
    /// The name is not one that a topic can have.
    #[error(transparent)]
    InvalidTopicName(#[from] InvalidTopicName),
    /// The name is the metadata log's.
    #[error("Creation of internal topic {0} is prohibited.")]
    ReservedTopic(String),
    /// The name differs from another in dots and underscores only.
    #[error("Topic '{name}' collides with existing topic: {existing}")]
    NameCollision {
        /// The name asked for.
        name: String,
        /// The topic that has the place.
        existing: String,
    },
    /// More partitions than one request may create.
    #[error("Excessively large number of partitions per request.")]
    TooManyPartitions,
    /// More new partitions than one request may create.
    #[error("Excessively large number of additional partitions per request.")]
    TooManyAdditionalPartitions,
    /// A number of partitions below one.
    #[error("Number of partitions was set to an invalid non-positive value.")]
    PartitionsNotPositive,
    /// A replication factor below one.
    #[error("Replication factor must be larger than 0, or -1 to use the default value.")]
    ReplicationFactorNotPositive,
    /// More replicas than brokers, at the creation of a topic.
    #[error("Unable to replicate the partition {replication_factor} time(s): {cause}")]
    CannotReplicate {
        /// Replicas asked for.
        replication_factor: usize,
        /// Why not.
        cause: Box<Refusal>,
    },
    /// More replicas than brokers.
    #[error(
        "The target replication factor of {replication_factor} cannot be reached because only \
         {brokers} broker(s) are registered or some brokers have all their log directories cordoned."
    )]
    TooFewBrokers {
        /// Replicas asked for.
        replication_factor: usize,
        /// Brokers there are.
        brokers: usize,
    },
    /// No broker can lead.
    #[error("All brokers are currently fenced or have all their log directories cordoned.")]
    NoActiveBroker,
    /// An assignment and a replication factor.
    #[error(
        "A manual partition assignment was specified, but replication factor was not set to -1."
    )]
    AssignmentWithReplicationFactor,
    /// An assignment and a number of partitions.
    #[error("A manual partition assignment was specified, but numPartitions was not set to -1.")]
    AssignmentWithPartitionCount,
    /// A partition assigned twice.
    #[error("Found multiple manual partition assignments for partition {0}")]
    PartitionAssignedTwice(PartitionIndex),
    /// Partitions that do not start at 0 or leave one out.
    #[error("partitions should be a consecutive 0-based integer sequence")]
    AssignmentGap,
    /// A partition without replicas.
    #[error("The manual partition assignment includes an empty replica list.")]
    EmptyAssignment,
    /// A replica on a broker that does not exist.
    #[error(
        "The manual partition assignment includes broker {0}, but no such broker is registered."
    )]
    AssignmentToUnknownBroker(NodeId),
    /// Two replicas on one broker.
    #[error("The manual partition assignment includes the broker {0} more than once.")]
    AssignmentRepeatsBroker(NodeId),
    /// Partitions with different numbers of replicas.
    #[error(
        "The manual partition assignment includes a partition with {found} replica(s), but this is \
         not consistent with previous partitions, which have {expected} replica(s)."
    )]
    UnevenAssignment {
        /// Replicas of this partition.
        found: usize,
        /// Replicas of those before.
        expected: usize,
    },
    /// All replicas are on brokers that cannot lead.
    #[error(
        "All brokers specified in the manual partition assignment for partition {0} are fenced or in \
         controlled shutdown."
    )]
    AssignmentToFencedBrokers(PartitionIndex),
    /// As many partitions as there are.
    #[error("Topic already has {0} partition(s).")]
    SamePartitionCount(usize),
    /// More partitions for a topic that coordinators keep their state in.
    #[error(
        "The number of partitions of the internal topic {0} cannot be changed: each group and each \
         transactional id belongs to a partition by that number, and would lose its offsets or its \
         open transaction."
    )]
    CoordinatorsTopic(String),
    /// Fewer partitions than there are.
    #[error(
        "The topic {topic} currently has {current} partition(s); {asked} would not be an increase."
    )]
    NotAnIncrease {
        /// The topic.
        topic: String,
        /// Partitions it has.
        current: usize,
        /// Partitions asked for.
        asked: i32,
    },
    /// Another number of assignments than new partitions.
    #[error(
        "Attempted to add {additional} additional partition(s), but only {assignments} assignment(s) \
         were specified."
    )]
    AssignmentCount {
        /// New partitions.
        additional: usize,
        /// Assignments given.
        assignments: usize,
    },
    /// Keys of a new topic without a value.
    #[error("Null value not supported for topic configs: {0}")]
    NullTopicConfigs(String),
    /// Keys to set without a value.
    #[error("Null value not supported for : {0}")]
    NullConfigs(String),
    /// A key named twice for one resource.
    #[error("Error due to duplicate config keys")]
    DuplicateConfigKeys,
    /// A resource named twice.
    #[error("Each resource must appear at most once.")]
    DuplicateResource,
    /// A kind of resource that is not altered this way.
    #[error("Unknown resource type {0}")]
    UnknownResourceType(i8),
    /// An incremental operation that does not exist.
    #[error("Unknown operation type {0}")]
    UnknownOperation(i8),
    /// Topics have no default of their own; the brokers' settings are it.
    #[error("Default topic resources are not allowed.")]
    DefaultTopic,
    /// Groups have no default of their own.
    #[error("Default group resources are not allowed.")]
    DefaultGroup,
    /// Appending to something that is no list.
    #[error("Can't {operation} to key {key} because its type is not LIST.")]
    NotAList {
        /// `APPEND` or `SUBTRACT`.
        operation: &'static str,
        /// The key.
        key: String,
    },
    /// A key or value that does not fit the resource.
    #[error("{0}")]
    InvalidConfig(String),
    /// Settings that are asked for in a way that cannot be.
    #[error("{0}")]
    InvalidRequest(String),
    /// A broker's setting that cannot be changed, or not so.
    #[error("{0}")]
    InvalidBrokerConfig(String),
    /// A broker's name that is no number.
    #[error("Node id must be an integer, but it is: {0}")]
    BrokerNotANumber(String),
    /// Another broker's settings.
    #[error("Unexpected broker id, expected {expected}, but received {received}")]
    OtherBroker {
        /// This broker.
        expected: NodeId,
        /// What was asked for.
        received: String,
    },
    /// There is no topic of that name to reassign.
    #[error("Unable to find a topic named {0}.")]
    NoSuchTopic(String),
    /// There is no such partition to reassign.
    #[error("Unable to find partition {topic}:{partition}.")]
    NoSuchPartition {
        /// The topic.
        topic: String,
        /// The partition.
        partition: PartitionIndex,
    },
    /// Nothing is under way that could be cancelled.
    #[error("No partition reassignment is in progress.")]
    NoReassignment,
    /// The number of replicas would change where it must not.
    #[error("The replication factor is changed from {from} to {to}")]
    ReplicationFactorChanges {
        /// Replicas as it is.
        from: usize,
        /// Replicas asked for.
        to: usize,
    },
    /// A broker of this id is registered with another disk. Which one is for nobody to hear who does not have
    /// it: its id is what the disk is known by.
    #[error(
        "broker {node} is registered with another data directory than {directory}: an empty disk must \
         not pass for the one that its replicas were on. To replace the broker for good, stop it, run \
         kafka-cluster.sh unregister --id {node} against another broker, and start this one again; its \
         replicas are then filled from the others"
    )]
    OtherDirectory {
        /// The broker.
        node: NodeId,
        /// Id of the directory that it comes with.
        directory: String,
    },
    /// What a node says of itself cannot be.
    #[error("node {node} cannot be registered: {what}")]
    BadRegistration {
        /// The node.
        node: NodeId,
        /// What is wrong.
        what: String,
    },
    /// The configuration of a node names other voters.
    #[error(
        "controller.quorum.voters of node {node} names {}, and the cluster was begun with {}",
        list(named),
        list(voters)
    )]
    OtherVoters {
        /// The node.
        node: NodeId,
        /// What it names.
        named: Vec<NodeId>,
        /// What the cluster was begun with.
        voters: Vec<NodeId>,
    },
    /// There is no such broker.
    #[error("Broker ID {0} is not currently registered")]
    BrokerNotRegistered(NodeId),
    /// The broker has registered anew since.
    #[error("broker {0} has registered again since")]
    StaleBroker(NodeId),
    /// The voters of the metadata are not what a node or a request takes them for.
    #[error(transparent)]
    Voter(#[from] VoterRefusal),
}

fn list(nodes: &[NodeId]) -> String {
    let names: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    names.join(",")
}

impl Refusal {
    /// The code that says it on the wire.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::DuplicateTopicName
            | Self::DuplicateTopicId
            | Self::TopicNamedByNameAndId
            | Self::NoNameOrId
            | Self::NameAndId
            | Self::ReservedTopic(_)
            | Self::AssignmentWithReplicationFactor
            | Self::AssignmentWithPartitionCount
            | Self::NullConfigs(_)
            | Self::DuplicateConfigKeys
            | Self::DuplicateResource
            | Self::UnknownResourceType(_)
            | Self::UnknownOperation(_)
            | Self::DefaultTopic
            | Self::DefaultGroup
            | Self::CoordinatorsTopic(_)
            | Self::InvalidRequest(_)
            | Self::InvalidBrokerConfig(_)
            | Self::BrokerNotANumber(_)
            | Self::OtherBroker { .. } => ErrorCode::InvalidRequest,
            Self::NoReassignment => ErrorCode::NoReassignmentInProgress,
            Self::Voter(refusal) => refusal.code(),
            Self::OtherDirectory { .. } => ErrorCode::DuplicateBrokerRegistration,
            Self::BadRegistration { .. } => ErrorCode::InvalidRegistration,
            Self::OtherVoters { .. } => ErrorCode::InconsistentVoterSet,
            Self::BrokerNotRegistered(_) => ErrorCode::BrokerIdNotRegistered,
            Self::StaleBroker(_) => ErrorCode::StaleBrokerEpoch,
            Self::DeletionDisabled => ErrorCode::TopicDeletionDisabled,
            Self::UnknownTopic
            | Self::UnknownTopicNamed(_)
            | Self::NoSuchTopic(_)
            | Self::NoSuchPartition { .. } => ErrorCode::UnknownTopicOrPartition,
            Self::UnknownTopicId => ErrorCode::UnknownTopicId,
            Self::TopicExists(_) => ErrorCode::TopicAlreadyExists,
            Self::InvalidTopicName(_) | Self::NameCollision { .. } => {
                ErrorCode::InvalidTopicException
            }
            Self::TooManyPartitions | Self::TooManyAdditionalPartitions => {
                ErrorCode::PolicyViolation
            }
            Self::PartitionsNotPositive
            | Self::SamePartitionCount(_)
            | Self::NotAnIncrease { .. } => ErrorCode::InvalidPartitions,
            Self::ReplicationFactorNotPositive
            | Self::ReplicationFactorChanges { .. }
            | Self::CannotReplicate { .. }
            | Self::TooFewBrokers { .. }
            | Self::NoActiveBroker => ErrorCode::InvalidReplicationFactor,
            Self::PartitionAssignedTwice(_)
            | Self::AssignmentGap
            | Self::EmptyAssignment
            | Self::AssignmentToUnknownBroker(_)
            | Self::AssignmentRepeatsBroker(_)
            | Self::UnevenAssignment { .. }
            | Self::AssignmentToFencedBrokers(_)
            | Self::AssignmentCount { .. } => ErrorCode::InvalidReplicaAssignment,
            Self::NullTopicConfigs(_) | Self::NotAList { .. } | Self::InvalidConfig(_) => {
                ErrorCode::InvalidConfig
            }
        }
    }
}
