//! Records of `__transaction_state`, in Apache Kafka's own schemas.
//!
//! A key begins with an `i16` that names the kind of record, a value with an `i16` schema version; a
//! null value is a tombstone. Written: `TransactionLogValue` 1 where `transaction.version` is 1 or 2,
//! else 0, as Kafka 4.4 does. Read: both. In version 1 every topic carries a tagged field of our own,
//! the topic's id, which Kafka's readers pass over: a marker must not go to another topic of the
//! same name.
//!
//! Source: `TransactionLogKey` and `TransactionLogValue` of Kafka's transaction coordinator (KIP-98,
//! KIP-890, KIP-915).

use std::collections::{BTreeMap, BTreeSet};

use bytes::{BufMut as _, Bytes, BytesMut};
use odradek_protocol::ids::{PartitionIndex, ProducerEpoch, ProducerId, TimestampMs, TopicId};

use super::names::{TransactionalId, TxnVersion};
use crate::coordinator::LogRecord;
use crate::coordinator::fields::{
    FieldError, Reader, RecordError, length, put_compact_bytes, put_string, put_unsigned_varint,
};
use crate::groups::names::TopicName;

/// Kind number of the one kind of record.
const KIND_TRANSACTION: i16 = 0;
/// Value schema without tagged fields.
const VALUE_PLAIN: i16 = 0;
/// Value schema with them.
const VALUE_FLEXIBLE: i16 = 1;

const TAG_PREVIOUS_PRODUCER_ID: u32 = 0;
const TAG_NEXT_PRODUCER_ID: u32 = 1;
const TAG_CLIENT_VERSION: u32 = 2;
/// Our own, in a topic of a transaction; far above what Kafka is likely to give out.
const TAG_TOPIC_ID: u32 = 10_000;

/// What a transactional id is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TxnState {
    /// No transaction has begun since the producer was initialized.
    Empty,
    /// A transaction is open.
    Ongoing,
    /// It is decided that the transaction is committed; partitions are being told.
    PrepareCommit,
    /// It is decided that the transaction is aborted; partitions are being told.
    PrepareAbort,
    /// The last transaction was committed.
    CompleteCommit,
    /// The last transaction was aborted.
    CompleteAbort,
}

impl TxnState {
    /// Every state, in the order of their numbers in a record.
    pub const ALL: [Self; 6] = [
        Self::Empty,
        Self::Ongoing,
        Self::PrepareCommit,
        Self::PrepareAbort,
        Self::CompleteCommit,
        Self::CompleteAbort,
    ];

    /// The name that tools print.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::Ongoing => "Ongoing",
            Self::PrepareCommit => "PrepareCommit",
            Self::PrepareAbort => "PrepareAbort",
            Self::CompleteCommit => "CompleteCommit",
            Self::CompleteAbort => "CompleteAbort",
        }
    }

    /// Whether the outcome is decided and not every partition is known to know it.
    pub const fn is_prepared(self) -> bool {
        matches!(self, Self::PrepareCommit | Self::PrepareAbort)
    }

    fn number(self) -> i8 {
        match self {
            Self::Empty => 0,
            Self::Ongoing => 1,
            Self::PrepareCommit => 2,
            Self::PrepareAbort => 3,
            Self::CompleteCommit => 4,
            Self::CompleteAbort => 5,
        }
    }

    fn of_number(number: i8) -> Result<Self, RecordError> {
        Self::ALL
            .into_iter()
            .find(|state| state.number() == number)
            .ok_or(RecordError::UnknownState(number))
    }
}

/// A topic's partitions in a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxnTopic {
    /// Id of the topic; zero if it is not known.
    pub id: TopicId,
    /// The partitions.
    pub partitions: BTreeSet<PartitionIndex>,
}

/// The partitions of a transaction.
pub type TxnPartitions = BTreeMap<TopicName, TxnTopic>;

/// What is known of a transactional id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The producer.
    pub producer_id: ProducerId,
    /// The producer id before the last one ran out of epochs, or none.
    pub previous_producer_id: ProducerId,
    /// The producer id that takes over once this transaction is completed, or none.
    pub next_producer_id: ProducerId,
    /// The producer's epoch; none before it has been initialized.
    pub epoch: ProducerEpoch,
    /// The epoch before, with which the producer may ask again; none if nobody may. Not written.
    pub last_epoch: ProducerEpoch,
    /// How long a transaction may stay open.
    pub timeout_ms: i32,
    /// What it is doing.
    pub state: TxnState,
    /// The partitions of the open or decided transaction.
    pub partitions: TxnPartitions,
    /// When the transaction began; none if there is none.
    pub started_at: TimestampMs,
    /// When the state last changed.
    pub updated_at: TimestampMs,
    /// How the client speaks of its transaction.
    pub client_version: TxnVersion,
}

/// One record of the topic; a `None` value is a tombstone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnRecord {
    /// The transactional id.
    pub id: TransactionalId,
    /// What is known of it.
    pub transaction: Option<Transaction>,
    /// The feature's level, which says how the value is written.
    pub version: TxnVersion,
}

impl LogRecord for TxnRecord {
    fn encode_key(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_i16(KIND_TRANSACTION);
        put_string(&mut out, self.id.as_str());
        out.freeze()
    }

    fn encode_value(&self) -> Option<Bytes> {
        let transaction = self.transaction.as_ref()?;
        Some(match self.version {
            TxnVersion::V0 => encode_plain(transaction),
            TxnVersion::V1 | TxnVersion::V2 => encode_flexible(transaction),
        })
    }
}

impl TxnRecord {
    /// Reads a record. `key` and `value` are as they stand in the log. `None` is a kind of record
    /// that this broker does not know.
    ///
    /// # Errors
    /// Every way in which the bytes may be damaged, by cause.
    pub fn decode(
        key: Option<&[u8]>,
        value: Option<&[u8]>,
    ) -> Result<Option<(TransactionalId, Option<Transaction>)>, RecordError> {
        let mut key = Reader::new(key.ok_or(RecordError::NoKey)?);
        if key.i16()? != KIND_TRANSACTION {
            return Ok(None);
        }
        let id = TransactionalId::new(key.string()?);
        Ok(Some((id, value.map(decode_value).transpose()?)))
    }
}

/// An upper bound of the bytes that a transaction takes in the log, without the id.
pub fn size_bound(transaction: &Transaction) -> usize {
    let topics = transaction.partitions.iter();
    100 + topics
        .map(|(name, topic)| 40 + name.as_str().len() + 4 * topic.partitions.len())
        .sum::<usize>()
}

fn encode_plain(transaction: &Transaction) -> Bytes {
    let mut out = BytesMut::with_capacity(size_bound(transaction));
    out.put_i16(VALUE_PLAIN);
    put_head(&mut out, transaction);
    if transaction.state == TxnState::Empty {
        out.put_i32(-1);
    } else {
        out.put_i32(length(transaction.partitions.len()));
        for (name, topic) in &transaction.partitions {
            put_string(&mut out, name.as_str());
            out.put_i32(length(topic.partitions.len()));
            for partition in &topic.partitions {
                out.put_i32(partition.get());
            }
        }
    }
    put_times(&mut out, transaction);
    out.freeze()
}

fn encode_flexible(transaction: &Transaction) -> Bytes {
    let mut out = BytesMut::with_capacity(size_bound(transaction));
    out.put_i16(VALUE_FLEXIBLE);
    put_head(&mut out, transaction);
    if transaction.state == TxnState::Empty {
        put_unsigned_varint(&mut out, 0);
    } else {
        put_compact_length(&mut out, transaction.partitions.len());
        for (name, topic) in &transaction.partitions {
            put_compact_bytes(&mut out, name.as_str().as_bytes());
            put_compact_length(&mut out, topic.partitions.len());
            for partition in &topic.partitions {
                out.put_i32(partition.get());
            }
            if topic.id.is_zero() {
                put_unsigned_varint(&mut out, 0);
            } else {
                put_unsigned_varint(&mut out, 1);
                put_tagged(&mut out, TAG_TOPIC_ID, &topic.id.to_bytes());
            }
        }
    }
    put_times(&mut out, transaction);
    put_tags(&mut out, transaction);
    out.freeze()
}

fn put_head(out: &mut BytesMut, transaction: &Transaction) {
    out.put_i64(transaction.producer_id.get());
    out.put_i16(transaction.epoch.get());
    out.put_i32(transaction.timeout_ms);
    out.put_i8(transaction.state.number());
}

fn put_times(out: &mut BytesMut, transaction: &Transaction) {
    out.put_i64(transaction.updated_at.get());
    out.put_i64(transaction.started_at.get());
}

/// The tagged fields, each left out where it has its default.
fn put_tags(out: &mut BytesMut, transaction: &Transaction) {
    let (previous, next) = (
        transaction.previous_producer_id,
        transaction.next_producer_id,
    );
    let level = transaction.client_version.level();
    let present = [
        previous != ProducerId::NONE,
        next != ProducerId::NONE,
        level != 0,
    ];
    let count = present.iter().filter(|present| **present).count();
    put_unsigned_varint(out, count as u32);
    if previous != ProducerId::NONE {
        put_tagged(out, TAG_PREVIOUS_PRODUCER_ID, &previous.get().to_be_bytes());
    }
    if next != ProducerId::NONE {
        put_tagged(out, TAG_NEXT_PRODUCER_ID, &next.get().to_be_bytes());
    }
    if level != 0 {
        put_tagged(out, TAG_CLIENT_VERSION, &level.to_be_bytes());
    }
}

fn put_tagged(out: &mut BytesMut, tag: u32, bytes: &[u8]) {
    put_unsigned_varint(out, tag);
    put_unsigned_varint(out, bytes.len() as u32);
    out.put_slice(bytes);
}

fn put_compact_length(out: &mut BytesMut, len: usize) {
    put_unsigned_varint(
        out,
        u32::try_from(len).unwrap_or(u32::MAX - 1).saturating_add(1),
    );
}

fn decode_value(bytes: &[u8]) -> Result<Transaction, RecordError> {
    let mut value = Reader::new(bytes);
    let version = value.i16()?;
    if !(VALUE_PLAIN..=VALUE_FLEXIBLE).contains(&version) {
        return Err(RecordError::UnknownVersion(version));
    }
    let flexible = version >= VALUE_FLEXIBLE;
    let mut transaction = Transaction {
        producer_id: ProducerId::new(value.i64()?),
        previous_producer_id: ProducerId::NONE,
        next_producer_id: ProducerId::NONE,
        epoch: ProducerEpoch::new(value.i16()?),
        last_epoch: ProducerEpoch::NONE,
        timeout_ms: value.i32()?,
        state: TxnState::of_number(i8::from_be_bytes(value.array()?))?,
        partitions: decode_partitions(&mut value, flexible)?,
        updated_at: TimestampMs::new(value.i64()?),
        started_at: TimestampMs::new(value.i64()?),
        client_version: TxnVersion::V0,
    };
    if flexible {
        value.tagged_fields(|tag, mut field| {
            match tag {
                TAG_PREVIOUS_PRODUCER_ID => {
                    transaction.previous_producer_id = ProducerId::new(field.i64()?);
                }
                TAG_NEXT_PRODUCER_ID => {
                    transaction.next_producer_id = ProducerId::new(field.i64()?);
                }
                TAG_CLIENT_VERSION => {
                    transaction.client_version = TxnVersion::of_level(field.i16()?);
                }
                _ => {}
            }
            Ok(())
        })?;
    }
    Ok(transaction)
}

fn decode_partitions(value: &mut Reader<'_>, flexible: bool) -> Result<TxnPartitions, RecordError> {
    let mut partitions = TxnPartitions::new();
    let Some(topics) = nullable_count(value, flexible)? else {
        return Ok(partitions);
    };
    for _ in 0..topics {
        let name = TopicName::new(value.string_of(flexible)?);
        let mut topic = TxnTopic::default();
        for _ in 0..value.count_of(flexible)? {
            topic.partitions.insert(PartitionIndex::new(value.i32()?));
        }
        if flexible {
            value.tagged_fields(|tag, mut field| {
                if tag == TAG_TOPIC_ID {
                    topic.id = TopicId::from_bytes(field.array()?);
                }
                Ok(())
            })?;
        }
        partitions.insert(name, topic);
    }
    Ok(partitions)
}

fn nullable_count(value: &mut Reader<'_>, flexible: bool) -> Result<Option<usize>, FieldError> {
    if flexible {
        return value.compact_length();
    }
    match value.i32()? {
        -1 => Ok(None),
        count => usize::try_from(count)
            .map(Some)
            .map_err(|_| FieldError::BadLength),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn ongoing() -> Transaction {
        let topic = TxnTopic {
            id: TopicId::ZERO,
            partitions: [0, 3].map(PartitionIndex::new).into(),
        };
        Transaction {
            producer_id: ProducerId::new(7),
            previous_producer_id: ProducerId::NONE,
            next_producer_id: ProducerId::NONE,
            epoch: ProducerEpoch::new(2),
            last_epoch: ProducerEpoch::NONE,
            timeout_ms: 60_000,
            state: TxnState::Ongoing,
            partitions: [(TopicName::new("top"), topic)].into(),
            started_at: TimestampMs::new(8),
            updated_at: TimestampMs::new(9),
            client_version: TxnVersion::V0,
        }
    }

    fn record(transaction: Option<Transaction>, version: TxnVersion) -> TxnRecord {
        TxnRecord {
            id: TransactionalId::new("tid"),
            transaction,
            version,
        }
    }

    fn round_trip(record: &TxnRecord) {
        let (key, value) = (record.encode_key(), record.encode_value());
        let read = TxnRecord::decode(Some(&key), value.as_deref());
        let expected = (record.id.clone(), record.transaction.clone());
        assert_eq!(read, Ok(Some(expected)));
    }

    #[test]
    fn a_transaction_is_written_in_kafkas_version_0() {
        let record = record(Some(ongoing()), TxnVersion::V0);
        assert_eq!(hex(&record.encode_key()), "00000003746964");
        assert_eq!(
            hex(&record.encode_value().unwrap_or_default()),
            "0000 0000000000000007 0002 0000ea60 01 00000001 0003 746f70 00000002 00000000 00000003 \
             0000000000000009 0000000000000008"
                .replace(' ', "")
        );
        round_trip(&record);
    }

    #[test]
    fn a_transaction_is_written_in_kafkas_version_1_with_what_is_not_default() {
        let transaction = Transaction {
            previous_producer_id: ProducerId::new(5),
            client_version: TxnVersion::V2,
            ..ongoing()
        };
        let record = record(Some(transaction), TxnVersion::V2);
        assert_eq!(
            hex(&record.encode_value().unwrap_or_default()),
            "0001 0000000000000007 0002 0000ea60 01 02 04 746f70 03 00000000 00000003 00 \
             0000000000000009 0000000000000008 02 00 08 0000000000000005 02 02 0002"
                .replace(' ', "")
        );
        round_trip(&record);
    }

    #[test]
    fn the_id_of_a_topic_comes_back_and_an_empty_transaction_has_no_partitions() {
        let mut transaction = ongoing();
        for topic in transaction.partitions.values_mut() {
            topic.id = TopicId::from_bytes([9; 16]);
        }
        transaction.next_producer_id = ProducerId::new(11);
        round_trip(&record(Some(transaction), TxnVersion::V2));
        let empty = Transaction {
            state: TxnState::Empty,
            partitions: TxnPartitions::new(),
            ..ongoing()
        };
        round_trip(&record(Some(empty.clone()), TxnVersion::V0));
        round_trip(&record(Some(empty), TxnVersion::V1));
        round_trip(&record(None, TxnVersion::V2));
    }

    #[test]
    fn the_bound_of_a_size_holds() {
        let mut transaction = ongoing();
        for number in 0..50 {
            let name = TopicName::new(&"t".repeat(number + 1));
            let topic = TxnTopic {
                id: TopicId::from_bytes([1; 16]),
                partitions: (0..20).map(PartitionIndex::new).collect(),
            };
            transaction.partitions.insert(name, topic);
        }
        let bound = size_bound(&transaction);
        for version in [TxnVersion::V0, TxnVersion::V2] {
            let record = record(Some(transaction.clone()), version);
            assert!(record.encode_value().unwrap_or_default().len() <= bound);
        }
    }

    #[test]
    fn damaged_bytes_are_errors_at_every_cut_and_never_a_panic() {
        for version in [TxnVersion::V0, TxnVersion::V2] {
            let record = record(Some(ongoing()), version);
            let key = record.encode_key();
            let value = record.encode_value().unwrap_or_default();
            for cut in 0..value.len() {
                assert!(TxnRecord::decode(Some(&key), Some(&value[..cut])).is_err());
            }
            for cut in 0..key.len() {
                assert!(TxnRecord::decode(Some(&key[..cut]), Some(&value)).is_err());
            }
            for at in 0..value.len() {
                let mut flipped = value.to_vec();
                flipped[at] ^= 0xff;
                let _ = TxnRecord::decode(Some(&key), Some(&flipped));
            }
        }
        assert_eq!(TxnRecord::decode(None, None), Err(RecordError::NoKey));
        assert_eq!(TxnRecord::decode(Some(&[0, 9]), None), Ok(None));
    }
}
