//! Requests to a transaction coordinator and its replies, free of API versions and of the codec.

use odradek_protocol::ids::{PartitionIndex, ProducerId, TimestampMs, TopicId};

use super::error::TxnError;
use super::names::{TransactionalId, TxnVersion};
use super::records::{TxnPartitions, TxnRecord, TxnState};
use crate::coordinator::effects::{Effects, ProducerIdentity};
use crate::groups::names::TopicName;

/// Effects of a transaction coordinator.
pub type TxnEffects = Effects<TxnRecord, TxnReply, TxnTimer>;

/// A timer of the transaction coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TxnTimer {
    /// Time to look for transactions that have been open for too long.
    TimedOut,
    /// Time to look for transactional ids that nobody has used for long.
    Expired,
    /// Requests have waited long enough for the completion of this id's transaction.
    Waited(TransactionalId),
}

/// A request to the coordinator of a transactional id.
#[derive(Clone, Debug)]
pub enum TxnRequest {
    /// InitProducerId.
    Init(InitRequest),
    /// AddPartitionsToTxn, AddOffsetsToTxn, or a partition that is written to.
    Add(AddRequest),
    /// Whether partitions are part of the open transaction.
    Verify(VerifyRequest),
    /// EndTxn.
    End(EndRequest),
    /// DescribeTransactions of one id.
    Describe(TransactionalId),
    /// ListTransactions.
    List(ListRequest),
    /// What partitions are to be told. Waits until there is something; asked by one task.
    NextMarkers {
        /// Everything that is not completed is to be told again.
        anew: bool,
    },
    /// All partitions of these transactions have been told.
    MarkersWritten(Vec<MarkersWritten>),
    /// The level of `transaction.version` is now this.
    SetVersion(TxnVersion),
}

/// A reply of the coordinator; the variant is that of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxnReply {
    /// To InitProducerId.
    Init(Result<ProducerIdentity, Refusal>),
    /// To AddPartitionsToTxn.
    Add(Result<(), TxnError>),
    /// Whether each partition is part of the transaction, in the order asked.
    Verify(Result<Vec<Vec<bool>>, TxnError>),
    /// To EndTxn: with what the producer goes on.
    End(Result<ProducerIdentity, Refusal>),
    /// To DescribeTransactions.
    Describe(Option<Description>),
    /// To ListTransactions.
    List(Vec<Listing>),
    /// What partitions are to be told.
    Markers(Vec<DecidedTxn>),
    /// It is taken account of.
    Done,
}

/// Why the coordinator gives no producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request fails.
    Failed(TxnError),
    /// It is to be asked again with a producer id that nobody has had.
    NeedsProducerId,
}

impl From<TxnError> for Refusal {
    fn from(error: TxnError) -> Self {
        Self::Failed(error)
    }
}

/// InitProducerId with a transactional id.
#[derive(Clone, Debug)]
pub struct InitRequest {
    /// The id.
    pub id: TransactionalId,
    /// How long a transaction of this producer may stay open.
    pub timeout_ms: i32,
    /// What the producer was before, if it goes on after an error (KIP-360).
    pub expected: Option<ProducerIdentity>,
    /// A producer id that nobody has had, in case that one is needed.
    pub fresh: Option<ProducerId>,
}

/// Partitions that are to be part of a transaction.
#[derive(Clone, Debug)]
pub struct AddRequest {
    /// The transactional id.
    pub id: TransactionalId,
    /// Whose transaction it is.
    pub producer: ProducerIdentity,
    /// The partitions.
    pub topics: Vec<TopicOfTxn>,
    /// How the client speaks of its transaction.
    pub client_version: TxnVersion,
}

/// Partitions of one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicOfTxn {
    /// Name of the topic.
    pub name: TopicName,
    /// Its id; zero if it is not known.
    pub id: TopicId,
    /// The partitions.
    pub partitions: Vec<PartitionIndex>,
}

/// Partitions of which it is asked whether they are part of a transaction.
#[derive(Clone, Debug)]
pub struct VerifyRequest {
    /// The transactional id.
    pub id: TransactionalId,
    /// Whose transaction it is.
    pub producer: ProducerIdentity,
    /// The partitions.
    pub topics: Vec<TopicOfTxn>,
}

/// EndTxn.
#[derive(Clone, Debug)]
pub struct EndRequest {
    /// The transactional id.
    pub id: TransactionalId,
    /// Whose transaction it is.
    pub producer: ProducerIdentity,
    /// Whether it is committed rather than aborted.
    pub committed: bool,
    /// How the client speaks of its transaction.
    pub client_version: TxnVersion,
    /// A producer id that nobody has had, in case that one is needed.
    pub fresh: Option<ProducerId>,
}

/// A transaction whose outcome is decided and committed to the coordinator's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidedTxn {
    /// The transactional id.
    pub id: TransactionalId,
    /// The producer, as its markers name it.
    pub producer: ProducerIdentity,
    /// The outcome.
    pub committed: bool,
    /// The partitions.
    pub partitions: TxnPartitions,
    /// How the client speaks of its transaction.
    pub client_version: TxnVersion,
    /// When it began: later than any other that the producer has had with this epoch.
    pub started_at: TimestampMs,
}

/// All partitions of a transaction have its marker, or are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkersWritten {
    /// The transactional id.
    pub id: TransactionalId,
    /// The producer, as the markers named it.
    pub producer: ProducerIdentity,
    /// When the transaction began ([`DecidedTxn::started_at`]).
    pub started_at: TimestampMs,
}

/// ListTransactions. An empty list of producer ids filters nothing.
#[derive(Clone, Debug, Default)]
pub struct ListRequest {
    /// States; `None` for any.
    pub states: Option<Vec<TxnState>>,
    /// Producer ids.
    pub producer_ids: Vec<ProducerId>,
    /// How long a transaction must have been open, in milliseconds; negative for any.
    pub open_for_ms: i64,
}

/// A transactional id in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The transactional id.
    pub id: TransactionalId,
    /// Its producer id.
    pub producer_id: ProducerId,
    /// What it is doing.
    pub state: TxnState,
}

/// A transactional id in detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its producer.
    pub producer: ProducerIdentity,
    /// What it is doing.
    pub state: TxnState,
    /// How long a transaction may stay open.
    pub timeout_ms: i32,
    /// When the transaction began; none if there is none.
    pub started_at: TimestampMs,
    /// The partitions of the transaction.
    pub partitions: TxnPartitions,
}
