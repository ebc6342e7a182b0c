//! Why a request about a transaction failed, by cause, and the one map from causes to Kafka's error
//! codes.

use odradek_protocol::error_code::ErrorCode;
use thiserror::Error;

/// Cause of a failed request about a transaction.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
pub enum TxnError {
    /// The transactional id is empty, or the request contradicts itself.
    #[error("the request is malformed")]
    InvalidRequest,
    /// The timeout is not positive, or longer than `transaction.max.timeout.ms`.
    #[error("the transaction timeout is not one that this broker allows")]
    InvalidTimeout,
    /// The transactional id is not known, or has another producer id.
    #[error("the producer id is not that of the transactional id")]
    InvalidProducerIdMapping,
    /// A newer instance of the producer has been initialized.
    #[error("a newer producer has taken over")]
    ProducerFenced,
    /// The last transaction is still being completed.
    #[error("the last transaction is still being completed")]
    ConcurrentTransactions,
    /// The transaction is not in a state for this.
    #[error("the transaction is not in a state for this")]
    InvalidState,
    /// The partition is not part of the transaction, which is to be aborted.
    #[error("the partition is not part of the transaction")]
    NotInTransaction,
    /// There is no such transactional id.
    #[error("the transactional id does not exist")]
    NotFound,
    /// The transaction has more partitions than a record can name.
    #[error("the transaction has too many partitions")]
    TooLarge,
    /// A pattern for transactional ids cannot be read.
    #[error("the pattern is not a regular expression")]
    InvalidPattern,
    /// A producer id is needed and there is none at present.
    #[error("no producer id can be given out")]
    NoProducerId,
    /// The log of this id's partition is still being read.
    #[error("the coordinator is loading")]
    Loading,
    /// Another broker coordinates this id, or this one has just stopped to.
    #[error("this is not the coordinator of the transactional id")]
    NotCoordinator,
    /// There is no coordinator at present.
    #[error("the coordinator is not available")]
    NotAvailable,
}

impl TxnError {
    /// The error code that tells a client of this cause.
    pub const fn code(self) -> ErrorCode {
        match self {
            Self::InvalidRequest => ErrorCode::InvalidRequest,
            Self::InvalidTimeout => ErrorCode::InvalidTransactionTimeout,
            Self::InvalidProducerIdMapping => ErrorCode::InvalidProducerIdMapping,
            Self::ProducerFenced => ErrorCode::ProducerFenced,
            Self::ConcurrentTransactions => ErrorCode::ConcurrentTransactions,
            Self::InvalidState => ErrorCode::InvalidTxnState,
            Self::NotInTransaction => ErrorCode::TransactionAbortable,
            Self::NotFound => ErrorCode::TransactionalIdNotFound,
            Self::TooLarge => ErrorCode::UnknownServerError,
            Self::InvalidPattern => ErrorCode::InvalidRegularExpression,
            Self::NoProducerId | Self::Loading => ErrorCode::CoordinatorLoadInProgress,
            Self::NotCoordinator => ErrorCode::NotCoordinator,
            Self::NotAvailable => ErrorCode::CoordinatorNotAvailable,
        }
    }

    /// The code for versions that do not know PRODUCER_FENCED (KIP-588).
    pub const fn code_before_fencing(self) -> ErrorCode {
        match self {
            Self::ProducerFenced => ErrorCode::InvalidProducerEpoch,
            other => other.code(),
        }
    }
}
