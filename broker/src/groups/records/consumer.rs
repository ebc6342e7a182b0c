//! Records of consumer groups (KIP-848), as Kafka 4.4 writes them.
//!
//! Each has one value schema, version 0, which is flexible: what was added since stands in tagged
//! fields. The old `ConsumerGroupPartitionMetadata` is read for the sake of its tombstone and never
//! written; the hash of the metadata in the group's own record has taken its place (KIP-1101).
//!
//! Source: the `ConsumerGroup…Key` and `…Value` schemas of Kafka's group coordinator (KIP-848,
//! KIP-1101, KIP-1251).

use bytes::{BufMut as _, Bytes, BytesMut};
use odradek_protocol::ids::{PartitionIndex, TimestampMs, TopicId};

use crate::coordinator::fields::{
    FieldError, Reader, RecordError, put_compact_bytes, put_compact_count,
    put_compact_nullable_string, put_string, put_tagged, put_unsigned_varint,
};
use crate::groups::consumer::assignment::{Owned, Partitions};
use crate::groups::consumer::member::MemberState;
use crate::groups::messages::MemberProtocol;
use crate::groups::names::{Epoch, GroupId, InstanceId, MemberId, TopicName};

const KIND_GROUP: i16 = 3;
const KIND_PARTITION_METADATA: i16 = 4;
const KIND_MEMBER: i16 = 5;
const KIND_TARGET_EPOCH: i16 = 6;
const KIND_TARGET: i16 = 7;
const KIND_CURRENT: i16 = 8;
const KIND_REGEX: i16 = 16;

/// The only value schema of every kind.
const VALUE_VERSION: i16 = 0;
/// The only tagged field that each of the schemas has.
const FIRST_TAG: u32 = 0;

/// The group itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupEpochValue {
    /// The group's epoch.
    pub epoch: Epoch,
    /// Hash over the subscribed topics, as the metadata had them when the epoch was reached.
    pub metadata_hash: i64,
}

/// What a member says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberValue {
    /// `group.instance.id`, if static.
    pub instance: Option<InstanceId>,
    /// `client.rack`.
    pub rack: Option<String>,
    /// `client.id`.
    pub client_id: String,
    /// Address of the client as Java prints it.
    pub client_host: String,
    /// Topics by name, in order.
    pub topics: Vec<TopicName>,
    /// Topics by a regular expression; empty or null for none.
    pub regex: Option<String>,
    /// How long the member may take to let go of partitions.
    pub rebalance_timeout_ms: i32,
    /// The assignor that the member prefers.
    pub assignor: Option<String>,
    /// What a member of the classic protocol brought along.
    pub classic: Option<ClassicMemberValue>,
}

/// What a member of the classic protocol brought along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassicMemberValue {
    /// How long the member may be silent.
    pub session_timeout_ms: i32,
    /// What it supports, the preferred first.
    pub protocols: Vec<MemberProtocol>,
}

/// The epoch of the target assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetEpochValue {
    /// The group's epoch that the assignment was computed for.
    pub epoch: Epoch,
    /// When it was computed; zero if it never was.
    pub computed_at: TimestampMs,
}

/// Where a member stands on its way to its target assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentValue {
    /// The member's epoch.
    pub epoch: Epoch,
    /// The one before, for a member that has not heard of its new one.
    pub previous_epoch: Epoch,
    /// What it waits for, or has to do.
    pub state: MemberState,
    /// What it has.
    pub assigned: Owned,
    /// What it still has and must let go of.
    pub revoking: Owned,
}

/// The topics that a regular expression matched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegexValue {
    /// In order.
    pub topics: Vec<TopicName>,
    /// Offset of the metadata that they were looked for in.
    pub metadata_version: i64,
    /// When.
    pub resolved_at: TimestampMs,
}

/// One record of a consumer group; a `None` value is a tombstone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsumerRecord {
    /// The group.
    Group(Option<GroupEpochValue>),
    /// What older brokers wrote of the subscribed topics; whether it is there is all that counts.
    PartitionMetadata(Option<()>),
    /// A member's subscription.
    Member(MemberId, Option<Box<MemberValue>>),
    /// The epoch of the target assignment.
    TargetEpoch(Option<TargetEpochValue>),
    /// The target assignment of a member.
    Target(MemberId, Option<Partitions>),
    /// The current assignment of a member.
    Current(MemberId, Option<CurrentValue>),
    /// A regular expression and what it matched.
    Regex(String, Option<RegexValue>),
}

impl ConsumerRecord {
    /// Whether the record takes away what its key names.
    pub fn is_tombstone(&self) -> bool {
        match self {
            Self::Group(value) => value.is_none(),
            Self::PartitionMetadata(value) => value.is_none(),
            Self::Member(_, value) => value.is_none(),
            Self::TargetEpoch(value) => value.is_none(),
            Self::Target(_, value) => value.is_none(),
            Self::Current(_, value) => value.is_none(),
            Self::Regex(_, value) => value.is_none(),
        }
    }

    pub(super) fn encode_key(&self, group: &GroupId) -> Bytes {
        let mut out = BytesMut::new();
        let (kind, second) = match self {
            Self::Group(_) => (KIND_GROUP, None),
            Self::PartitionMetadata(_) => (KIND_PARTITION_METADATA, None),
            Self::Member(member, _) => (KIND_MEMBER, Some(member.as_str())),
            Self::TargetEpoch(_) => (KIND_TARGET_EPOCH, None),
            Self::Target(member, _) => (KIND_TARGET, Some(member.as_str())),
            Self::Current(member, _) => (KIND_CURRENT, Some(member.as_str())),
            Self::Regex(regex, _) => (KIND_REGEX, Some(regex.as_str())),
        };
        out.put_i16(kind);
        put_string(&mut out, group.as_str());
        if let Some(second) = second {
            put_string(&mut out, second);
        }
        out.freeze()
    }

    pub(super) fn encode_value(&self) -> Option<Bytes> {
        let mut out = BytesMut::new();
        out.put_i16(VALUE_VERSION);
        match self {
            Self::Group(value) => encode_group(&mut out, value.as_ref()?),
            // Never written but as a tombstone.
            Self::PartitionMetadata(_) => return None,
            Self::Member(_, value) => encode_member(&mut out, value.as_ref()?),
            Self::TargetEpoch(value) => encode_target_epoch(&mut out, value.as_ref()?),
            Self::Target(_, value) => encode_target(&mut out, value.as_ref()?),
            Self::Current(_, value) => encode_current(&mut out, value.as_ref()?),
            Self::Regex(_, value) => encode_regex(&mut out, value.as_ref()?),
        }
        Some(out.freeze())
    }

    /// Reads the rest of a key of `kind`, and its value. `None` if the kind is not one of these.
    pub(super) fn decode(
        kind: i16,
        key: &mut Reader<'_>,
        value: Option<&[u8]>,
    ) -> Result<Option<(GroupId, Self)>, RecordError> {
        if !(KIND_GROUP..=KIND_CURRENT).contains(&kind) && kind != KIND_REGEX {
            return Ok(None);
        }
        let group = GroupId::new(key.string()?);
        let value = value.map(open_value).transpose()?;
        let record = match kind {
            KIND_GROUP => Self::Group(value.map(decode_group).transpose()?),
            KIND_PARTITION_METADATA => Self::PartitionMetadata(value.map(|_| ())),
            KIND_MEMBER => {
                let member = MemberId::new(key.string()?);
                Self::Member(member, value.map(decode_member).transpose()?.map(Box::new))
            }
            KIND_TARGET_EPOCH => Self::TargetEpoch(value.map(decode_target_epoch).transpose()?),
            KIND_TARGET => {
                let member = MemberId::new(key.string()?);
                Self::Target(member, value.map(decode_target).transpose()?)
            }
            KIND_CURRENT => {
                let member = MemberId::new(key.string()?);
                Self::Current(member, value.map(decode_current).transpose()?)
            }
            _ => {
                let regex = key.string()?.to_owned();
                Self::Regex(regex, value.map(decode_regex).transpose()?)
            }
        };
        Ok(Some((group, record)))
    }
}

fn open_value(bytes: &[u8]) -> Result<Reader<'_>, RecordError> {
    let mut value = Reader::new(bytes);
    match value.i16()? {
        VALUE_VERSION => Ok(value),
        other => Err(RecordError::UnknownVersion(other)),
    }
}

fn put_no_tags(out: &mut BytesMut) {
    put_unsigned_varint(out, 0);
}

/// Tagged fields of which there is one, left out where it is the default.
fn put_one_tag(out: &mut BytesMut, present: bool, write: impl FnOnce(&mut BytesMut)) {
    if present {
        put_unsigned_varint(out, 1);
        put_tagged(out, FIRST_TAG, write);
    } else {
        put_no_tags(out);
    }
}

fn encode_group(out: &mut BytesMut, value: &GroupEpochValue) {
    out.put_i32(value.epoch.get());
    put_one_tag(out, value.metadata_hash != 0, |field| {
        field.put_i64(value.metadata_hash);
    });
}

fn decode_group(mut value: Reader<'_>) -> Result<GroupEpochValue, FieldError> {
    let epoch = Epoch::new(value.i32()?);
    let mut metadata_hash = 0;
    value.tagged_fields(|tag, mut field| {
        if tag == FIRST_TAG {
            metadata_hash = field.i64()?;
        }
        Ok(())
    })?;
    Ok(GroupEpochValue {
        epoch,
        metadata_hash,
    })
}

fn encode_member(out: &mut BytesMut, value: &MemberValue) {
    let instance = value.instance.as_ref().map(InstanceId::as_str);
    put_compact_nullable_string(out, instance);
    put_compact_nullable_string(out, value.rack.as_deref());
    put_compact_bytes(out, value.client_id.as_bytes());
    put_compact_bytes(out, value.client_host.as_bytes());
    put_names(out, &value.topics);
    put_compact_nullable_string(out, value.regex.as_deref());
    out.put_i32(value.rebalance_timeout_ms);
    put_compact_nullable_string(out, value.assignor.as_deref());
    put_one_tag(out, value.classic.is_some(), |field| {
        let Some(classic) = &value.classic else {
            return;
        };
        // A nullable structure begins with a sign of whether it is there.
        field.put_i8(1);
        field.put_i32(classic.session_timeout_ms);
        put_compact_count(field, classic.protocols.len());
        for protocol in &classic.protocols {
            put_compact_bytes(field, protocol.name.as_bytes());
            put_compact_bytes(field, &protocol.metadata);
            put_no_tags(field);
        }
        put_no_tags(field);
    });
}

fn decode_member(mut value: Reader<'_>) -> Result<MemberValue, FieldError> {
    let instance = value.nullable_string_of(true)?.map(InstanceId::new);
    let rack = value.nullable_string_of(true)?.map(str::to_owned);
    let client_id = value.string_of(true)?.to_owned();
    let client_host = value.string_of(true)?.to_owned();
    let topics = read_names(&mut value)?;
    let regex = value.nullable_string_of(true)?.map(str::to_owned);
    let rebalance_timeout_ms = value.i32()?;
    let assignor = value.nullable_string_of(true)?.map(str::to_owned);
    let mut classic = None;
    value.tagged_fields(|tag, field| {
        if tag == FIRST_TAG {
            classic = decode_classic(field)?;
        }
        Ok(())
    })?;
    Ok(MemberValue {
        instance,
        rack,
        client_id,
        client_host,
        topics,
        regex,
        rebalance_timeout_ms,
        assignor,
        classic,
    })
}

fn decode_classic(mut field: Reader<'_>) -> Result<Option<ClassicMemberValue>, FieldError> {
    if field.i8()? < 0 {
        return Ok(None);
    }
    let session_timeout_ms = field.i32()?;
    let count = field.count_of(true)?;
    let mut protocols = Vec::new();
    for _ in 0..count {
        let name = field.string_of(true)?.to_owned();
        let metadata = Bytes::copy_from_slice(field.bytes_of(true)?);
        field.tagged_fields(|_, _| Ok(()))?;
        protocols.push(MemberProtocol { name, metadata });
    }
    field.tagged_fields(|_, _| Ok(()))?;
    Ok(Some(ClassicMemberValue {
        session_timeout_ms,
        protocols,
    }))
}

fn encode_target_epoch(out: &mut BytesMut, value: &TargetEpochValue) {
    out.put_i32(value.epoch.get());
    put_one_tag(out, value.computed_at.get() != 0, |field| {
        field.put_i64(value.computed_at.get());
    });
}

fn decode_target_epoch(mut value: Reader<'_>) -> Result<TargetEpochValue, FieldError> {
    let epoch = Epoch::new(value.i32()?);
    let mut computed_at = 0;
    value.tagged_fields(|tag, mut field| {
        if tag == FIRST_TAG {
            computed_at = field.i64()?;
        }
        Ok(())
    })?;
    Ok(TargetEpochValue {
        epoch,
        computed_at: TimestampMs::new(computed_at),
    })
}

fn encode_target(out: &mut BytesMut, value: &Partitions) {
    put_compact_count(out, value.topic_count());
    for (topic, partitions) in value.topics() {
        out.put_slice(&topic.to_bytes());
        put_compact_count(out, partitions.len());
        for partition in partitions {
            out.put_i32(partition.get());
        }
        put_no_tags(out);
    }
    put_no_tags(out);
}

fn decode_target(mut value: Reader<'_>) -> Result<Partitions, FieldError> {
    let count = value.count_of(true)?;
    let mut target = Partitions::default();
    for _ in 0..count {
        let topic = TopicId::from_bytes(value.array()?);
        for _ in 0..value.count_of(true)? {
            target.insert(topic, PartitionIndex::new(value.i32()?));
        }
        value.tagged_fields(|_, _| Ok(()))?;
    }
    value.tagged_fields(|_, _| Ok(()))?;
    Ok(target)
}

fn encode_current(out: &mut BytesMut, value: &CurrentValue) {
    out.put_i32(value.epoch.get());
    out.put_i32(value.previous_epoch.get());
    out.put_i8(value.state.code());
    put_owned(out, &value.assigned);
    put_owned(out, &value.revoking);
    put_no_tags(out);
}

fn put_owned(out: &mut BytesMut, owned: &Owned) {
    put_compact_count(out, owned.topic_count());
    for (topic, partitions) in owned.topics() {
        out.put_slice(&topic.to_bytes());
        put_compact_count(out, partitions.len());
        for partition in partitions.keys() {
            out.put_i32(partition.get());
        }
        put_one_tag(out, true, |field| {
            put_compact_count(field, partitions.len());
            for epoch in partitions.values() {
                field.put_i32(epoch.get());
            }
        });
    }
}

fn decode_current(mut value: Reader<'_>) -> Result<CurrentValue, FieldError> {
    let epoch = Epoch::new(value.i32()?);
    let previous_epoch = Epoch::new(value.i32()?);
    let state = MemberState::from_code(value.i8()?);
    let assigned = read_owned(&mut value, epoch)?;
    let revoking = read_owned(&mut value, epoch)?;
    value.tagged_fields(|_, _| Ok(()))?;
    Ok(CurrentValue {
        epoch,
        previous_epoch,
        state,
        assigned,
        revoking,
    })
}

/// Partitions with the epochs that they were given in. Where an older broker wrote none, the epoch
/// of the member stands in for them.
fn read_owned(value: &mut Reader<'_>, member_epoch: Epoch) -> Result<Owned, FieldError> {
    let fallback = member_epoch.max(Epoch::JOINING);
    let mut owned = Owned::default();
    for _ in 0..value.count_of(true)? {
        let topic = TopicId::from_bytes(value.array()?);
        let mut partitions = Vec::new();
        for _ in 0..value.count_of(true)? {
            partitions.push(PartitionIndex::new(value.i32()?));
        }
        let mut epochs = Vec::new();
        value.tagged_fields(|tag, mut field| {
            if tag == FIRST_TAG {
                for _ in 0..field.compact_length()?.unwrap_or(0) {
                    epochs.push(Epoch::new(field.i32()?));
                }
            }
            Ok(())
        })?;
        let told = epochs.len() == partitions.len();
        for (at, partition) in partitions.into_iter().enumerate() {
            let epoch = epochs.get(at).filter(|_| told).copied();
            owned.insert(topic, partition, epoch.unwrap_or(fallback));
        }
    }
    Ok(owned)
}

fn encode_regex(out: &mut BytesMut, value: &RegexValue) {
    put_names(out, &value.topics);
    out.put_i64(value.metadata_version);
    out.put_i64(value.resolved_at.get());
    put_no_tags(out);
}

fn decode_regex(mut value: Reader<'_>) -> Result<RegexValue, FieldError> {
    let topics = read_names(&mut value)?;
    let metadata_version = value.i64()?;
    let resolved_at = TimestampMs::new(value.i64()?);
    value.tagged_fields(|_, _| Ok(()))?;
    Ok(RegexValue {
        topics,
        metadata_version,
        resolved_at,
    })
}

fn put_names(out: &mut BytesMut, names: &[TopicName]) {
    put_compact_count(out, names.len());
    for name in names {
        put_compact_bytes(out, name.as_str().as_bytes());
    }
}

fn read_names(value: &mut Reader<'_>) -> Result<Vec<TopicName>, FieldError> {
    let mut names = Vec::new();
    for _ in 0..value.count_of(true)? {
        names.push(TopicName::new(value.string_of(true)?));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::LogRecord as _;
    use crate::groups::records::{DecodedRecord, GroupRecord};

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The bytes are those that Kafka 4.4's own classes write for the same record.
    fn check(record: ConsumerRecord, key: &str, value: &str) {
        let record = GroupRecord::Consumer(GroupId::new("g"), record);
        assert_eq!(hex(&record.encode_key()), key);
        let bytes = record.encode_value().expect("a value");
        assert_eq!(hex(&bytes), value);
        assert_eq!(
            GroupRecord::decode(Some(&record.encode_key()), Some(&bytes)),
            Ok(DecodedRecord::Known(record))
        );
    }

    fn topic() -> TopicId {
        TopicId::from_bytes([1; 16])
    }

    #[test]
    fn records_of_a_group_are_kafkas() {
        let value = GroupEpochValue {
            epoch: Epoch::new(7),
            metadata_hash: 0x0102,
        };
        check(
            ConsumerRecord::Group(Some(value)),
            "0003000167",
            "0000000000070100080000000000000102",
        );
        let value = TargetEpochValue {
            epoch: Epoch::new(7),
            computed_at: TimestampMs::new(9),
        };
        check(
            ConsumerRecord::TargetEpoch(Some(value)),
            "0006000167",
            "0000000000070100080000000000000009",
        );
        let value = RegexValue {
            topics: vec![TopicName::new("a"), TopicName::new("b")],
            metadata_version: 3,
            resolved_at: TimestampMs::new(4),
        };
        check(
            ConsumerRecord::Regex("x*".to_owned(), Some(value)),
            "00100001670002782a",
            "000003026102620000000000000003000000000000000400",
        );
    }

    #[test]
    fn records_of_a_member_are_kafkas() {
        let member = || MemberId::new("m");
        let says = MemberValue {
            instance: Some(InstanceId::new("i")),
            rack: None,
            client_id: "c".to_owned(),
            client_host: "/h".to_owned(),
            topics: vec![TopicName::new("a"), TopicName::new("b")],
            regex: Some("x*".to_owned()),
            rebalance_timeout_ms: 300_000,
            assignor: Some("range".to_owned()),
            classic: Some(ClassicMemberValue {
                session_timeout_ms: 9,
                protocols: vec![MemberProtocol {
                    name: "r".to_owned(),
                    metadata: Bytes::from_static(&[1]),
                }],
            }),
        };
        check(
            ConsumerRecord::Member(member(), Some(Box::new(says))),
            "000500016700016d",
            "00000269000263032f68030261026203782a000493e00672616e676501000c010000000902027202010000",
        );
        let target = [0, 2].map(|index| (topic(), PartitionIndex::new(index)));
        check(
            ConsumerRecord::Target(member(), Some(target.into_iter().collect())),
            "000700016700016d",
            "000002010101010101010101010101010101010300000000000000020000",
        );
        let mut at = CurrentValue {
            epoch: Epoch::new(7),
            previous_epoch: Epoch::new(6),
            state: MemberState::UnrevokedPartitions,
            assigned: Owned::default(),
            revoking: Owned::default(),
        };
        for (index, epoch) in [(0, 5), (2, 7)] {
            at.assigned
                .insert(topic(), PartitionIndex::new(index), Epoch::new(epoch));
        }
        at.revoking
            .insert(topic(), PartitionIndex::new(1), Epoch::new(4));
        check(
            ConsumerRecord::Current(member(), Some(at)),
            "000800016700016d",
            "0000000000070000000601020101010101010101010101010101010103000000000000000201000903000\
             000050000000702010101010101010101010101010101010200000001010005020000000400"
                .replace(char::is_whitespace, "")
                .as_str(),
        );
    }

    #[test]
    fn damaged_values_are_errors_by_cause() {
        let key = b"\0\x03\0\x01g";
        for (value, error) in [
            (&b"\0"[..], RecordError::Field(FieldError::Truncated)),
            (b"\0\x01\0\0\0\x07\0", RecordError::UnknownVersion(1)),
            (
                b"\0\0\0\0\0\x07\x01\0\x7f",
                RecordError::Field(FieldError::Truncated),
            ),
        ] {
            assert_eq!(GroupRecord::decode(Some(key), Some(value)), Err(error));
        }
        let key = b"\0\x08\0\x01g\0\x01m";
        let value = b"\0\0\0\0\0\x07\0\0\0\x06\0\xff\xff\xff\xff\x0f";
        let truncated = Err(RecordError::Field(FieldError::Truncated));
        assert_eq!(GroupRecord::decode(Some(key), Some(value)), truncated);
    }
}
