//! Why a partition could not do what a client asked, and the code that the client gets.

use std::sync::Arc;

use odradek_protocol::batch::BatchError;
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{LeaderEpoch, NodeId, Offset};
use odradek_raft::{ProposeError, RaftError};
use odradek_storage::StorageError;
use odradek_storage::producer_state::ProducerError;

use super::in_flight::SequenceFault;
use super::transactions::Unverified;

/// Failures of a partition, by cause.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PartitionError {
    /// Another node leads the partition, or none does.
    #[error("this node does not lead the partition; the leader is {leader:?}")]
    NotLeader {
        /// The leader, where it is known.
        leader: Option<NodeId>,
    },
    /// This node leads, but its term has not committed anything yet.
    #[error("the leader is not ready yet")]
    NotReady,
    /// This node led, but has not heard from a majority of the replicas for so long that another
    /// may lead by now.
    #[error("the lease of this leader is over")]
    LeaseOver,
    /// Fewer replicas are in sync than must have a batch before it is acknowledged.
    #[error("{in_sync} replicas are in sync, and {required} must be")]
    NotEnoughReplicas {
        /// Replicas in sync, the leader among them.
        in_sync: usize,
        /// `min.insync.replicas`.
        required: usize,
    },
    /// The batch is committed, but fewer replicas are in sync than must have it.
    #[error("{in_sync} replicas are in sync after the append, and {required} must be")]
    NotEnoughReplicasAfterAppend {
        /// Replicas in sync, the leader among them.
        in_sync: usize,
        /// `min.insync.replicas`.
        required: usize,
    },
    /// The client knows an older leader epoch.
    #[error("leader epoch {known} is fenced, the leader's is {current}")]
    FencedLeaderEpoch {
        /// What the client knows.
        known: LeaderEpoch,
        /// What is.
        current: LeaderEpoch,
    },
    /// The client knows a newer leader epoch than this node.
    #[error("leader epoch {known} is not known here, the leader's is {current}")]
    UnknownLeaderEpoch {
        /// What the client knows.
        known: LeaderEpoch,
        /// What is.
        current: LeaderEpoch,
    },
    /// The batch is not acceptable.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The batch does not fit into a segment of the log.
    #[error("batch of {len} bytes is larger than a segment of {segment_bytes} bytes")]
    LargerThanSegment {
        /// Bytes of the batch.
        len: usize,
        /// `segment.bytes`.
        segment_bytes: u32,
    },
    /// The batch does not continue its producer's sequence.
    #[error("the batch does not continue the sequence of its producer")]
    OutOfOrderSequence,
    /// One of its producer that was refused a moment ago has to come first.
    #[error("a batch before this one was refused a moment ago")]
    RefusedBefore,
    /// A newer instance of the producer has written already.
    #[error("the producer's epoch is fenced")]
    FencedProducerEpoch,
    /// The same, of a batch about whose transaction nobody has been asked: Kafka's log does not come to see it.
    #[error("a later epoch of the producer is known")]
    FencedBeforeQuestion,
    /// The producer has an open transaction and the batch is not part of it.
    #[error("the producer has an open transaction and the batch is not part of it")]
    OutsideTransaction,
    /// The end of the producer's last transaction is on its way into the log.
    #[error("the end of the producer's last transaction is on its way into the log")]
    MarkerInFlight,
    /// The marker is of a coordinator that has been replaced.
    #[error("the marker is of a transaction coordinator that has been replaced")]
    FencedCoordinator,
    /// The coordinator has to be asked whether the batch belongs to an open transaction.
    #[error("it is not known whether the batch belongs to an open transaction")]
    Unverified(Unverified),
    /// The batch belongs to no open transaction.
    #[error("the batch belongs to no open transaction")]
    NotInTransaction,
    /// As many batches as may wait to be committed already do.
    #[error("too many batches wait to be committed")]
    Busy,
    /// The log directory failed, and takes no writes until the broker has been restarted.
    #[error("the log directory is offline: {0}")]
    Offline(Arc<str>),
    /// The disk is nearly full, and what is left is kept for what has been promised.
    #[error("the log directory is below its reserve of free space")]
    DiskReserve,
    /// The log does not hold the offset.
    #[error("offset {0} is out of range")]
    OffsetOutOfRange(Offset),
    /// Its topic has been deleted, whatever else came of that.
    #[error("the topic has been deleted")]
    Deleted,
    /// The time that the client gave is up.
    #[error("the request timed out")]
    TimedOut,
    /// No file can be opened at the moment, so that the log cannot be read.
    #[error("no file descriptor is left to read the log with")]
    OutOfDescriptors,
    /// The log could not be read.
    #[error("reading the log failed: {0}")]
    Unreadable(Arc<str>),
}

impl PartitionError {
    /// The code that a client gets for this cause.
    pub fn error_code(&self) -> ErrorCode {
        match self {
            Self::NotLeader { .. }
            | Self::NotReady
            | Self::LeaseOver
            // Clients try again after this one and keep their sequence numbers.
            | Self::RefusedBefore => {
                ErrorCode::NotLeaderOrFollower
            }
            Self::Deleted => ErrorCode::UnknownTopicOrPartition,
            Self::NotEnoughReplicas { .. } => ErrorCode::NotEnoughReplicas,
            Self::NotEnoughReplicasAfterAppend { .. } => ErrorCode::NotEnoughReplicasAfterAppend,
            Self::FencedLeaderEpoch { .. } => ErrorCode::FencedLeaderEpoch,
            Self::UnknownLeaderEpoch { .. } => ErrorCode::UnknownLeaderEpoch,
            Self::Batch(error) => error.error_code(),
            Self::LargerThanSegment { .. } => ErrorCode::RecordListTooLarge,
            Self::OutOfOrderSequence => ErrorCode::OutOfOrderSequenceNumber,
            Self::FencedProducerEpoch | Self::FencedBeforeQuestion => {
                ErrorCode::InvalidProducerEpoch
            }
            Self::OutsideTransaction | Self::Unverified(_) | Self::NotInTransaction => {
                ErrorCode::InvalidTxnState
            }
            // Clients try again after this one without looking for another leader first.
            Self::MarkerInFlight => ErrorCode::NotEnoughReplicas,
            Self::FencedCoordinator => ErrorCode::TransactionCoordinatorFenced,
            Self::Busy | Self::TimedOut => ErrorCode::RequestTimedOut,
            Self::Offline(_) | Self::DiskReserve | Self::OutOfDescriptors | Self::Unreadable(_) => {
                ErrorCode::KafkaStorageError
            }
            Self::OffsetOutOfRange(_) => ErrorCode::OffsetOutOfRange,
        }
    }
}

impl PartitionError {
    /// Whether Kafka's answer to a refused batch carries the log start: it does where the batch was
    /// looked at by the log itself and not found too large or damaged.
    pub fn tells_log_start(&self) -> bool {
        match self {
            Self::OutOfOrderSequence
            | Self::FencedProducerEpoch
            | Self::OutsideTransaction
            | Self::NotInTransaction => true,
            Self::Batch(error) => !matches!(
                error,
                BatchError::NoBatch { .. }
                    | BatchError::MoreThanOneBatch
                    | BatchError::OldMagic { .. }
                    | BatchError::UnknownMagic { .. }
                    | BatchError::ImpossibleLength { .. }
                    | BatchError::WrongCrc { .. }
                    | BatchError::TooLarge { .. }
                    | BatchError::CompressionNotAllowed
            ),
            Self::NotLeader { .. }
            | Self::NotReady
            | Self::LeaseOver
            | Self::RefusedBefore
            | Self::MarkerInFlight
            | Self::FencedBeforeQuestion
            | Self::FencedCoordinator
            | Self::Unverified(_)
            | Self::NotEnoughReplicas { .. }
            | Self::NotEnoughReplicasAfterAppend { .. }
            | Self::LargerThanSegment { .. }
            | Self::FencedLeaderEpoch { .. }
            | Self::UnknownLeaderEpoch { .. }
            | Self::Busy
            | Self::Offline(_)
            | Self::DiskReserve
            | Self::OffsetOutOfRange(_)
            | Self::Deleted
            | Self::TimedOut
            | Self::OutOfDescriptors
            | Self::Unreadable(_) => false,
        }
    }
}

impl PartitionError {
    /// Whether a batch that was refused for it, before anything was done, may be taken a moment later.
    pub fn passes(&self) -> bool {
        matches!(
            self,
            Self::NotLeader { .. }
                | Self::NotReady
                | Self::LeaseOver
                | Self::NotEnoughReplicas { .. }
                | Self::DiskReserve
                | Self::OutOfDescriptors
                | Self::MarkerInFlight
                | Self::RefusedBefore
        )
    }
}

impl PartitionError {
    /// Whether the batch is none that a partition would look at, so that nobody is asked about its transaction either.
    pub fn is_of_the_request(&self) -> bool {
        matches!(
            self,
            Self::Batch(
                BatchError::NoBatch { .. }
                    | BatchError::MoreThanOneBatch
                    | BatchError::BytesBehindBatch { .. }
                    | BatchError::OldMagic { .. }
                    | BatchError::UnknownMagic { .. }
                    | BatchError::ImpossibleLength { .. }
                    | BatchError::CompressionNotAllowed
            )
        )
    }
}

impl From<SequenceFault> for PartitionError {
    fn from(fault: SequenceFault) -> Self {
        match fault {
            SequenceFault::OutOfOrder => Self::OutOfOrderSequence,
            SequenceFault::FencedEpoch => Self::FencedProducerEpoch,
            SequenceFault::OutsideTransaction => Self::OutsideTransaction,
            SequenceFault::MarkerInFlight => Self::MarkerInFlight,
        }
    }
}

impl From<ProducerError> for PartitionError {
    fn from(error: ProducerError) -> Self {
        match error {
            ProducerError::FencedEpoch { .. } => Self::FencedProducerEpoch,
            ProducerError::OutOfOrderSequence { .. } => Self::OutOfOrderSequence,
            ProducerError::NotInTransaction { .. } => Self::OutsideTransaction,
            ProducerError::FencedCoordinator { .. } => Self::FencedCoordinator,
        }
    }
}

impl From<ProposeError> for PartitionError {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::NotLeader { leader } => Self::NotLeader { leader },
            ProposeError::NotReady => Self::NotReady,
            ProposeError::QueueFull { .. } => Self::Busy,
            ProposeError::Offline(cause) => Self::Offline(cause),
            ProposeError::Closed => Self::NotLeader { leader: None },
            ProposeError::Malformed => Self::Batch(BatchError::NoBatch { len: 0 }),
        }
    }
}

impl From<StorageError> for PartitionError {
    fn from(error: StorageError) -> Self {
        if error.is_out_of_descriptors() {
            return Self::OutOfDescriptors;
        }
        match error {
            StorageError::OffsetOutOfRange { requested, .. } => Self::OffsetOutOfRange(requested),
            StorageError::Offline { cause, .. } => Self::Offline(cause.into()),
            StorageError::Deleted { .. } => Self::NotLeader { leader: None },
            StorageError::Io { .. }
            | StorageError::NotNext { .. }
            | StorageError::StaleEpoch { .. }
            | StorageError::SegmentFull { .. }
            | StorageError::Corrupt { .. }
            | StorageError::UnusableBatch(_) => Self::Unreadable(error.to_string().into()),
        }
    }
}

impl From<RaftError> for PartitionError {
    fn from(error: RaftError) -> Self {
        match error {
            RaftError::NotLeader { leader } => Self::NotLeader { leader },
            RaftError::LogStartOutOfRange { requested, .. } => Self::OffsetOutOfRange(requested),
            RaftError::UnknownGroup(_) | RaftError::Closed => Self::NotLeader { leader: None },
            RaftError::Storage(error) => error.into(),
            RaftError::Stopped(cause) => Self::Offline(cause),
            RaftError::Io { .. }
            | RaftError::JournalDamaged { .. }
            | RaftError::VoteLost { .. }
            | RaftError::LogLost { .. }
            | RaftError::LaterIncarnation { .. }
            | RaftError::OtherPredecessor { .. }
            | RaftError::NotContiguous { .. }
            | RaftError::WrongStamp { .. }
            | RaftError::MissingEntry { .. }
            | RaftError::MissingBatch { .. }
            | RaftError::UnusableEntry(_)
            | RaftError::TransferFailed { .. }
            | RaftError::MembershipRefused(_)
            | RaftError::AlreadyOpen(_) => Self::Unreadable(error.to_string().into()),
        }
    }
}
