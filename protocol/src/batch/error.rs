//! Why a record batch is refused, and the one map from causes to Kafka's error codes.

use crate::error_code::ErrorCode;

/// What is wrong with one record of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordFault {
    /// Index of the record within its batch, counted from 0: `batch_index` of a Produce response.
    pub index: i32,
    /// The fault.
    pub cause: RecordFaultCause,
}

/// The faults that are answered record by record (KIP-467).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordFaultCause {
    /// A record without a key for a compacted topic.
    #[error("a compacted topic takes no record without a key")]
    NullKey,
    /// A timestamp outside `message.timestamp.before.max.ms` and `message.timestamp.after.max.ms`.
    #[error("timestamp {timestamp} is not within [{earliest}, {latest}]")]
    TimestampOutOfRange {
        /// Milliseconds, as the record says.
        timestamp: i64,
        /// Earliest accepted, in milliseconds.
        earliest: i64,
        /// Latest accepted, in milliseconds.
        latest: i64,
    },
    /// The batch claims to carry the log's own append time.
    #[error("a producer must not set the timestamp type to LogAppendTime")]
    TimestampTypeFromProducer,
}

/// Why a batch is refused or cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// There is no complete batch.
    #[error("no complete record batch in {len} bytes")]
    NoBatch {
        /// Bytes at hand.
        len: usize,
    },
    /// More than one batch where one is allowed.
    #[error("more than one record batch")]
    MoreThanOneBatch,
    /// The length field cannot be right.
    #[error("batch length {length} is impossible")]
    ImpossibleLength {
        /// The field as it stands.
        length: i32,
    },
    /// A magic byte that no version of Kafka has had.
    #[error("magic {magic} is unknown")]
    UnknownMagic {
        /// The byte as it stands.
        magic: i8,
    },
    /// Magic 0 or 1, which are no longer accepted.
    #[error("message format {magic} is no longer supported")]
    OldMagic {
        /// The byte as it stands.
        magic: i8,
    },
    /// The CRC-32C does not match.
    #[error("CRC is {computed:#010x}, the header says {stored:#010x}")]
    WrongCrc {
        /// As computed.
        computed: u32,
        /// As stored.
        stored: u32,
    },
    /// The batch is over `max.message.bytes`.
    #[error("batch of {len} bytes is over the limit of {limit}")]
    TooLarge {
        /// Bytes of the batch.
        len: usize,
        /// `max.message.bytes`.
        limit: usize,
    },
    /// The records expand to more than is allowed.
    #[error("records expand to more than {limit} bytes")]
    ExpandsTooFar {
        /// The limit in bytes.
        limit: usize,
    },
    /// The compressed records cannot be decompressed.
    #[error("records cannot be decompressed: {reason}")]
    Undecompressible {
        /// What the codec says.
        reason: String,
    },
    /// The codec refused to compress.
    #[error("records cannot be compressed: {reason}")]
    Uncompressible {
        /// What the codec says.
        reason: String,
    },
    /// A compression id that stands for nothing.
    #[error("compression id {id} is unknown")]
    UnknownCompression {
        /// The id as it stands.
        id: u8,
    },
    /// The version of the request cannot carry this compression (zstd below Produce v7).
    #[error("this version of the request does not allow zstd")]
    CompressionNotAllowed,
    /// The base offset of a producer's batch is not 0.
    #[error("base offset {base_offset} of a producer's batch is not 0")]
    NonZeroBaseOffset {
        /// As it stands.
        base_offset: i64,
    },
    /// The record count is not positive.
    #[error("record count {count} is not positive")]
    NonPositiveCount {
        /// As it stands.
        count: i32,
    },
    /// Record count and last offset delta contradict each other.
    #[error("last offset delta {last_offset_delta} does not fit {count} records")]
    CountMismatch {
        /// As it stands.
        count: i32,
        /// As it stands.
        last_offset_delta: i32,
    },
    /// A record breaks off, or a length in it is impossible.
    #[error("record {index} is malformed")]
    MalformedRecord {
        /// Index of the record within its batch.
        index: i32,
    },
    /// A record is longer than `max.decompressed.message.bytes`.
    #[error("record {index} expands to {len} bytes, over the limit of {limit}")]
    RecordTooLong {
        /// Index of the record within its batch.
        index: i32,
        /// Bytes that the record announces.
        len: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Bytes stand behind the batch that are no batch.
    #[error("{len} bytes behind the batch")]
    BytesBehindBatch {
        /// How many.
        len: usize,
    },
    /// Bytes are left over after the last record that the header counts.
    #[error("bytes are left over after the last of {count} records")]
    TrailingBytes {
        /// Record count of the header.
        count: i32,
    },
    /// An offset delta is not the record's index.
    #[error("record {index} has offset delta {offset_delta}")]
    WrongOffsetDelta {
        /// Index of the record within its batch.
        index: i32,
        /// As it stands.
        offset_delta: i32,
    },
    /// A client sent a control batch.
    #[error("clients may not write control records")]
    ControlBatch,
    /// A batch with a producer id has no sequence number.
    #[error("sequence number {sequence} with producer id {producer_id}")]
    InvalidSequence {
        /// As it stands.
        producer_id: i64,
        /// As it stands.
        sequence: i32,
    },
    /// Some records are at fault; none of the batch is taken.
    #[error("{total} records of the batch are invalid")]
    InvalidRecords {
        /// Number of records at fault.
        total: usize,
        /// The first of them, bounded in number.
        faults: Vec<RecordFault>,
    },
}

impl BatchError {
    /// The code that Kafka answers for this cause.
    pub fn error_code(&self) -> ErrorCode {
        match self {
            Self::ImpossibleLength { .. } | Self::UnknownMagic { .. } | Self::WrongCrc { .. } => {
                ErrorCode::CorruptMessage
            }
            Self::TooLarge { .. } => ErrorCode::MessageTooLarge,
            Self::CompressionNotAllowed => ErrorCode::UnsupportedCompressionType,
            Self::NoBatch { .. }
            | Self::MoreThanOneBatch
            | Self::OldMagic { .. }
            | Self::ExpandsTooFar { .. }
            | Self::Undecompressible { .. }
            | Self::Uncompressible { .. }
            | Self::UnknownCompression { .. }
            | Self::NonZeroBaseOffset { .. }
            | Self::NonPositiveCount { .. }
            | Self::CountMismatch { .. }
            | Self::MalformedRecord { .. }
            | Self::TrailingBytes { .. }
            | Self::RecordTooLong { .. }
            | Self::BytesBehindBatch { .. }
            | Self::WrongOffsetDelta { .. }
            | Self::ControlBatch
            | Self::InvalidSequence { .. } => ErrorCode::InvalidRecord,
            Self::InvalidRecords { faults, .. } => {
                let timestamps = faults.iter().any(|fault| match fault.cause {
                    RecordFaultCause::NullKey => false,
                    RecordFaultCause::TimestampOutOfRange { .. }
                    | RecordFaultCause::TimestampTypeFromProducer => true,
                });
                if timestamps {
                    ErrorCode::InvalidTimestamp
                } else {
                    ErrorCode::InvalidRecord
                }
            }
        }
    }

    /// The records at fault, for `record_errors` of a Produce response.
    pub fn record_faults(&self) -> &[RecordFault] {
        match self {
            Self::InvalidRecords { faults, .. } => faults,
            _ => &[],
        }
    }
}
