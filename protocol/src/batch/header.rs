//! The 61 bytes in front of every batch.

use super::error::BatchError;
use crate::compression::Compression;
use crate::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs};

/// Which clock a batch's timestamps come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TimestampType {
    /// The producer's.
    #[default]
    CreateTime,
    /// The broker's, at the time of the append.
    LogAppendTime,
}

/// The attribute bits of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attributes(i16);

impl Attributes {
    const COMPRESSION_MASK: i16 = 0b111;
    const LOG_APPEND_TIME: i16 = 1 << 3;
    const TRANSACTIONAL: i16 = 1 << 4;
    const CONTROL: i16 = 1 << 5;
    const DELETE_HORIZON: i16 = 1 << 6;

    /// Wraps the bits as they stand in the header.
    pub const fn from_bits(bits: i16) -> Self {
        Self(bits)
    }

    /// The bits as they stand in the header.
    pub const fn bits(self) -> i16 {
        self.0
    }

    /// Id of the compression codec, possibly of none that exists.
    pub const fn compression_id(self) -> u8 {
        (self.0 & Self::COMPRESSION_MASK) as u8
    }

    /// Which clock the timestamps come from.
    pub const fn timestamp_type(self) -> TimestampType {
        if self.0 & Self::LOG_APPEND_TIME == 0 {
            TimestampType::CreateTime
        } else {
            TimestampType::LogAppendTime
        }
    }

    /// Whether the batch is part of a transaction.
    pub const fn is_transactional(self) -> bool {
        self.0 & Self::TRANSACTIONAL != 0
    }

    /// Whether its record is a control record (a transaction marker or a Raft message).
    pub const fn is_control(self) -> bool {
        self.0 & Self::CONTROL != 0
    }

    /// Whether the base timestamp is the time from which tombstones may be dropped (KIP-534).
    pub const fn has_delete_horizon(self) -> bool {
        self.0 & Self::DELETE_HORIZON != 0
    }

    /// The same with another codec.
    pub const fn with_compression(self, compression: Compression) -> Self {
        Self((self.0 & !Self::COMPRESSION_MASK) | compression.id() as i16)
    }

    /// The same with another clock.
    pub const fn with_timestamp_type(self, timestamp_type: TimestampType) -> Self {
        match timestamp_type {
            TimestampType::CreateTime => Self(self.0 & !Self::LOG_APPEND_TIME),
            TimestampType::LogAppendTime => Self(self.0 | Self::LOG_APPEND_TIME),
        }
    }

    /// The same, in a transaction or not.
    pub const fn with_transactional(self, transactional: bool) -> Self {
        if transactional {
            Self(self.0 | Self::TRANSACTIONAL)
        } else {
            Self(self.0 & !Self::TRANSACTIONAL)
        }
    }

    /// The same, with a delete horizon for a base timestamp or not.
    pub const fn with_delete_horizon(self, has_delete_horizon: bool) -> Self {
        if has_delete_horizon {
            Self(self.0 | Self::DELETE_HORIZON)
        } else {
            Self(self.0 & !Self::DELETE_HORIZON)
        }
    }

    /// The same, as a control batch or not.
    pub const fn with_control(self, control: bool) -> Self {
        if control {
            Self(self.0 | Self::CONTROL)
        } else {
            Self(self.0 & !Self::CONTROL)
        }
    }
}

/// The header of a batch, read out of its first 61 bytes.
///
/// Guaranteed by [`BatchHeader::parse`]: magic is 2 and `batch_length ≥ 49`. Everything else is
/// as it stood on the wire or disk until the batch has been validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the first record (before compaction; the records' deltas count from it).
    pub base_offset: Offset,
    /// Bytes from the leader epoch on to the end of the batch.
    pub batch_length: i32,
    /// Term of the leader that appended it.
    pub partition_leader_epoch: LeaderEpoch,
    /// CRC-32C of everything from the attributes on.
    pub crc: u32,
    /// Flags.
    pub attributes: Attributes,
    /// Last offset minus base offset.
    pub last_offset_delta: i32,
    /// What the records' timestamp deltas count from.
    pub base_timestamp: TimestampMs,
    /// Largest timestamp of the batch.
    pub max_timestamp: TimestampMs,
    /// Producer, or [`ProducerId::NONE`].
    pub producer_id: ProducerId,
    /// Its epoch, or [`ProducerEpoch::NONE`].
    pub producer_epoch: ProducerEpoch,
    /// Sequence number of the first record, or [`Sequence::NONE`].
    pub base_sequence: Sequence,
    /// Number of records.
    pub record_count: i32,
}

impl BatchHeader {
    /// Bytes of a header.
    pub const SIZE: usize = 61;
    /// Bytes in front of what `batch_length` counts.
    pub const LOG_OVERHEAD: usize = 12;
    /// The only format that is read or written.
    pub const MAGIC: i8 = 2;

    pub(crate) const BASE_OFFSET_AT: usize = 0;
    pub(crate) const LENGTH_AT: usize = 8;
    pub(crate) const LEADER_EPOCH_AT: usize = 12;
    pub(crate) const MAGIC_AT: usize = 16;
    pub(crate) const CRC_AT: usize = 17;
    pub(crate) const ATTRIBUTES_AT: usize = 21;
    pub(crate) const LAST_OFFSET_DELTA_AT: usize = 23;
    pub(crate) const BASE_TIMESTAMP_AT: usize = 27;
    pub(crate) const MAX_TIMESTAMP_AT: usize = 35;
    pub(crate) const PRODUCER_ID_AT: usize = 43;
    pub(crate) const PRODUCER_EPOCH_AT: usize = 51;
    pub(crate) const BASE_SEQUENCE_AT: usize = 53;
    pub(crate) const RECORD_COUNT_AT: usize = 57;

    /// Reads the header at the front of `bytes`, which may hold less or more than the batch.
    ///
    /// Checks magic and that the length is possible; neither the CRC nor that the batch is whole.
    pub fn parse(bytes: &[u8]) -> Result<Self, BatchError> {
        let Some(header) = bytes.first_chunk::<{ Self::SIZE }>() else {
            return Err(BatchError::NoBatch { len: bytes.len() });
        };
        Self::from_bytes(header)
    }

    /// Reads the header out of exactly its bytes, with the checks of [`BatchHeader::parse`].
    pub fn from_bytes(header: &[u8; Self::SIZE]) -> Result<Self, BatchError> {
        let batch_length = i32::from_be_bytes(field(header, Self::LENGTH_AT));
        let magic = i8::from_be_bytes(field(header, Self::MAGIC_AT));
        match magic {
            Self::MAGIC => {}
            0 | 1 => return Err(BatchError::OldMagic { magic }),
            _ => return Err(BatchError::UnknownMagic { magic }),
        }
        if batch_length < (Self::SIZE - Self::LOG_OVERHEAD) as i32 {
            return Err(BatchError::ImpossibleLength {
                length: batch_length,
            });
        }
        Ok(Self {
            base_offset: Offset::new(i64::from_be_bytes(field(header, Self::BASE_OFFSET_AT))),
            batch_length,
            partition_leader_epoch: LeaderEpoch::new(i32::from_be_bytes(field(
                header,
                Self::LEADER_EPOCH_AT,
            ))),
            crc: u32::from_be_bytes(field(header, Self::CRC_AT)),
            attributes: Attributes::from_bits(i16::from_be_bytes(field(
                header,
                Self::ATTRIBUTES_AT,
            ))),
            last_offset_delta: i32::from_be_bytes(field(header, Self::LAST_OFFSET_DELTA_AT)),
            base_timestamp: TimestampMs::new(i64::from_be_bytes(field(
                header,
                Self::BASE_TIMESTAMP_AT,
            ))),
            max_timestamp: TimestampMs::new(i64::from_be_bytes(field(
                header,
                Self::MAX_TIMESTAMP_AT,
            ))),
            producer_id: ProducerId::new(i64::from_be_bytes(field(header, Self::PRODUCER_ID_AT))),
            producer_epoch: ProducerEpoch::new(i16::from_be_bytes(field(
                header,
                Self::PRODUCER_EPOCH_AT,
            ))),
            base_sequence: Sequence::new(i32::from_be_bytes(field(header, Self::BASE_SEQUENCE_AT))),
            record_count: i32::from_be_bytes(field(header, Self::RECORD_COUNT_AT)),
        })
    }

    /// The 61 bytes of this header.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let mut put = |at: usize, value: &[u8]| {
            for (to, from) in bytes.iter_mut().skip(at).zip(value) {
                *to = *from;
            }
        };
        put(Self::BASE_OFFSET_AT, &self.base_offset.get().to_be_bytes());
        put(Self::LENGTH_AT, &self.batch_length.to_be_bytes());
        put(
            Self::LEADER_EPOCH_AT,
            &self.partition_leader_epoch.get().to_be_bytes(),
        );
        put(Self::MAGIC_AT, &Self::MAGIC.to_be_bytes());
        put(Self::CRC_AT, &self.crc.to_be_bytes());
        put(Self::ATTRIBUTES_AT, &self.attributes.bits().to_be_bytes());
        put(
            Self::LAST_OFFSET_DELTA_AT,
            &self.last_offset_delta.to_be_bytes(),
        );
        put(
            Self::BASE_TIMESTAMP_AT,
            &self.base_timestamp.get().to_be_bytes(),
        );
        put(
            Self::MAX_TIMESTAMP_AT,
            &self.max_timestamp.get().to_be_bytes(),
        );
        put(Self::PRODUCER_ID_AT, &self.producer_id.get().to_be_bytes());
        put(
            Self::PRODUCER_EPOCH_AT,
            &self.producer_epoch.get().to_be_bytes(),
        );
        put(
            Self::BASE_SEQUENCE_AT,
            &self.base_sequence.get().to_be_bytes(),
        );
        put(Self::RECORD_COUNT_AT, &self.record_count.to_be_bytes());
        bytes
    }

    /// Offset of the last record (or where it was, after compaction). Saturates instead of
    /// overflowing on nonsense.
    pub const fn last_offset(&self) -> Offset {
        Offset::new(
            self.base_offset
                .get()
                .saturating_add(self.last_offset_delta as i64),
        )
    }

    /// Offset after the last one.
    pub const fn next_offset(&self) -> Offset {
        Offset::new(self.last_offset().get().saturating_add(1))
    }

    /// Bytes of the whole batch, header included.
    pub const fn size_in_bytes(&self) -> usize {
        Self::LOG_OVERHEAD + self.batch_length as usize
    }

    /// Sequence number of the last record, or [`Sequence::NONE`].
    pub const fn last_sequence(&self) -> Sequence {
        if self.base_sequence.get() < 0 {
            Sequence::NONE
        } else {
            self.base_sequence.plus(self.last_offset_delta)
        }
    }

    /// Whether it comes from an idempotent or transactional producer.
    pub const fn has_producer_id(&self) -> bool {
        self.producer_id.get() > ProducerId::NONE.get()
    }

    /// Whether it is part of a transaction.
    pub const fn is_transactional(&self) -> bool {
        self.attributes.is_transactional()
    }

    /// Whether it is a control batch.
    pub const fn is_control(&self) -> bool {
        self.attributes.is_control()
    }

    /// Which clock its timestamps come from.
    pub const fn timestamp_type(&self) -> TimestampType {
        self.attributes.timestamp_type()
    }

    /// How its records are compressed.
    pub fn compression(&self) -> Result<Compression, BatchError> {
        let id = self.attributes.compression_id();
        Compression::from_id(id).ok_or(BatchError::UnknownCompression { id })
    }
}

/// The `N` bytes at a constant position of a header. The position is checked when compiled, as
/// the optimizer sees both numbers.
#[inline(always)]
fn field<const N: usize>(header: &[u8; BatchHeader::SIZE], at: usize) -> [u8; N] {
    header
        .get(at..)
        .and_then(|rest| rest.first_chunk::<N>())
        .copied()
        .unwrap_or([0; N])
}
