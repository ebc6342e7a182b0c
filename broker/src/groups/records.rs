//! Records of `__consumer_offsets`, in Apache Kafka's own schemas.
//!
//! A key begins with an `i16` that names the kind of record, a value with an `i16` schema version;
//! a null value is a tombstone. Written: `OffsetCommitValue` 4 (1 where the commit carries an
//! expiry of its own, which later versions cannot express) and `GroupMetadataValue` 3, as Kafka
//! 4.4 writes them. Read: every version. Kinds of record that this broker does not know are
//! reported as such and left alone.
//!
//! Source: `OffsetCommitKey`, `OffsetCommitValue`, `LegacyOffsetCommitKey`, `GroupMetadataKey` and
//! `GroupMetadataValue` of Kafka's group coordinator (KIP-211, KIP-320, KIP-345, KIP-848).

pub mod consumer;

use bytes::{BufMut as _, Bytes, BytesMut};
use odradek_protocol::ids::{LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicId};

use super::names::{GenerationId, GroupId, InstanceId, MemberId, TopicName};
use crate::coordinator::LogRecord;
use crate::coordinator::fields::{
    Reader, RecordError, length, put_bytes, put_compact_bytes, put_nullable_string, put_string,
    put_unsigned_varint,
};
use consumer::ConsumerRecord;

/// Kind number of an offset commit with the oldest value schema.
const KIND_LEGACY_OFFSET_COMMIT: i16 = 0;
/// Kind number of an offset commit.
const KIND_OFFSET_COMMIT: i16 = 1;
/// Kind number of a classic group.
const KIND_GROUP_METADATA: i16 = 2;

/// Value schema for a commit that says when it expires.
const OFFSET_COMMIT_VALUE_WITH_EXPIRY: i16 = 1;
/// Value schema for every other commit.
const OFFSET_COMMIT_VALUE: i16 = 4;
/// Value schema for groups.
const GROUP_METADATA_VALUE: i16 = 3;
/// First schema version with compact lengths and tagged fields.
const FIRST_FLEXIBLE: i16 = 4;
/// Tag of the topic id in an offset commit.
const TAG_TOPIC_ID: u32 = 0;

/// What an offset commit is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OffsetKey {
    /// The group.
    pub group: GroupId,
    /// The topic.
    pub topic: TopicName,
    /// The partition of the topic.
    pub partition: PartitionIndex,
}

/// A committed offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetCommit {
    /// Next offset that the group will read.
    pub offset: Offset,
    /// Epoch of the last record read; [`LeaderEpoch::NONE`] if the client did not say.
    pub leader_epoch: LeaderEpoch,
    /// The client's own words.
    pub metadata: Box<str>,
    /// When it was committed.
    pub committed_at: TimestampMs,
    /// When it expires, for clients old enough to say so; else [`TimestampMs::NONE`].
    pub expires_at: TimestampMs,
    /// Id of the topic at the time; zero if unknown.
    pub topic_id: TopicId,
}

/// A classic group as it stood after a rebalance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMetadata {
    /// `consumer`, `connect`…; empty before the first member joined.
    pub protocol_type: String,
    /// Number of the rebalance.
    pub generation: GenerationId,
    /// The protocol (assignor) that the members agreed on.
    pub protocol: Option<String>,
    /// The member that computed the assignment.
    pub leader: Option<MemberId>,
    /// When the group came into its state.
    pub state_since: TimestampMs,
    /// The members; none if the group is empty.
    pub members: Vec<MemberMetadata>,
}

/// One member of a classic group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberMetadata {
    /// Id given by the coordinator.
    pub member_id: MemberId,
    /// `group.instance.id`, if static.
    pub instance_id: Option<InstanceId>,
    /// `client.id`.
    pub client_id: String,
    /// Address of the client as Java prints it: `/127.0.0.1`.
    pub client_host: String,
    /// How long a rebalance waits for this member.
    pub rebalance_timeout_ms: i32,
    /// How long the member may be silent.
    pub session_timeout_ms: i32,
    /// The member's metadata for the chosen protocol.
    pub subscription: Bytes,
    /// What the leader assigned to it. Empty is valid and means nothing.
    pub assignment: Bytes,
}

/// One record of the topic; a `None` value is a tombstone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupRecord {
    /// A committed offset.
    Offset(OffsetKey, Option<OffsetCommit>),
    /// A classic group.
    Group(GroupId, Option<GroupMetadata>),
    /// Something of a consumer group.
    Consumer(GroupId, ConsumerRecord),
}

/// What a record from the log turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodedRecord {
    /// A kind that this broker knows.
    Known(GroupRecord),
    /// Another kind, by its number. It is somebody's and stays in the log.
    Unknown(i16),
}

impl LogRecord for GroupRecord {
    fn encode_key(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Self::Consumer(group, record) => return record.encode_key(group),
            Self::Offset(key, _) => {
                out.put_i16(KIND_OFFSET_COMMIT);
                put_string(&mut out, key.group.as_str());
                put_string(&mut out, key.topic.as_str());
                out.put_i32(key.partition.get());
            }
            Self::Group(group, _) => {
                out.put_i16(KIND_GROUP_METADATA);
                put_string(&mut out, group.as_str());
            }
        }
        out.freeze()
    }

    fn encode_value(&self) -> Option<Bytes> {
        match self {
            Self::Offset(_, value) => value.as_ref().map(encode_offset_commit),
            Self::Group(_, value) => value.as_ref().map(encode_group_metadata),
            Self::Consumer(_, record) => record.encode_value(),
        }
    }
}

impl GroupRecord {
    /// Reads a record. `key` and `value` are as they stand in the log.
    ///
    /// # Errors
    /// Every way in which the bytes may be damaged, by cause.
    pub fn decode(key: Option<&[u8]>, value: Option<&[u8]>) -> Result<DecodedRecord, RecordError> {
        let mut key = Reader::new(key.ok_or(RecordError::NoKey)?);
        let record = match key.i16()? {
            KIND_LEGACY_OFFSET_COMMIT | KIND_OFFSET_COMMIT => {
                let offset_key = OffsetKey {
                    group: GroupId::new(key.string()?),
                    topic: TopicName::new(key.string()?),
                    partition: PartitionIndex::new(key.i32()?),
                };
                GroupRecord::Offset(offset_key, value.map(decode_offset_commit).transpose()?)
            }
            KIND_GROUP_METADATA => {
                let group = GroupId::new(key.string()?);
                GroupRecord::Group(group, value.map(decode_group_metadata).transpose()?)
            }
            kind => match ConsumerRecord::decode(kind, &mut key, value)? {
                Some((group, record)) => GroupRecord::Consumer(group, record),
                None => return Ok(DecodedRecord::Unknown(kind)),
            },
        };
        Ok(DecodedRecord::Known(record))
    }
}

fn encode_offset_commit(value: &OffsetCommit) -> Bytes {
    let mut out = BytesMut::with_capacity(40 + value.metadata.len());
    if value.expires_at == TimestampMs::NONE {
        out.put_i16(OFFSET_COMMIT_VALUE);
        out.put_i64(value.offset.get());
        out.put_i32(value.leader_epoch.get());
        put_compact_bytes(&mut out, value.metadata.as_bytes());
        out.put_i64(value.committed_at.get());
        if value.topic_id.is_zero() {
            put_unsigned_varint(&mut out, 0);
        } else {
            put_unsigned_varint(&mut out, 1);
            put_unsigned_varint(&mut out, TAG_TOPIC_ID);
            put_unsigned_varint(&mut out, 16);
            out.put_slice(&value.topic_id.to_bytes());
        }
    } else {
        out.put_i16(OFFSET_COMMIT_VALUE_WITH_EXPIRY);
        out.put_i64(value.offset.get());
        put_string(&mut out, &value.metadata);
        out.put_i64(value.committed_at.get());
        out.put_i64(value.expires_at.get());
    }
    out.freeze()
}

fn decode_offset_commit(bytes: &[u8]) -> Result<OffsetCommit, RecordError> {
    let mut value = Reader::new(bytes);
    let version = value.i16()?;
    if !(0..=OFFSET_COMMIT_VALUE).contains(&version) {
        return Err(RecordError::UnknownVersion(version));
    }
    let flexible = version >= FIRST_FLEXIBLE;
    let offset = Offset::new(value.i64()?);
    let leader_epoch = if version >= 3 {
        LeaderEpoch::new(value.i32()?)
    } else {
        LeaderEpoch::NONE
    };
    let metadata = Box::from(value.string_of(flexible)?);
    let committed_at = TimestampMs::new(value.i64()?);
    let expires_at = if version == OFFSET_COMMIT_VALUE_WITH_EXPIRY {
        TimestampMs::new(value.i64()?)
    } else {
        TimestampMs::NONE
    };
    let mut topic_id = TopicId::ZERO;
    if flexible {
        value.tagged_fields(|tag, mut field| {
            if tag == TAG_TOPIC_ID {
                topic_id = TopicId::from_bytes(field.array()?);
            }
            Ok(())
        })?;
    }
    Ok(OffsetCommit {
        offset,
        leader_epoch,
        metadata,
        committed_at,
        expires_at,
        topic_id,
    })
}

fn encode_group_metadata(value: &GroupMetadata) -> Bytes {
    let mut out = BytesMut::with_capacity(64);
    out.put_i16(GROUP_METADATA_VALUE);
    put_string(&mut out, &value.protocol_type);
    out.put_i32(value.generation.get());
    put_nullable_string(&mut out, value.protocol.as_deref());
    put_nullable_string(&mut out, value.leader.as_ref().map(MemberId::as_str));
    out.put_i64(value.state_since.get());
    out.put_i32(length(value.members.len()));
    for member in &value.members {
        put_string(&mut out, member.member_id.as_str());
        put_nullable_string(
            &mut out,
            member.instance_id.as_ref().map(InstanceId::as_str),
        );
        put_string(&mut out, &member.client_id);
        put_string(&mut out, &member.client_host);
        out.put_i32(member.rebalance_timeout_ms);
        out.put_i32(member.session_timeout_ms);
        put_bytes(&mut out, &member.subscription);
        put_bytes(&mut out, &member.assignment);
    }
    out.freeze()
}

fn decode_group_metadata(bytes: &[u8]) -> Result<GroupMetadata, RecordError> {
    let mut value = Reader::new(bytes);
    let version = value.i16()?;
    if !(0..=FIRST_FLEXIBLE).contains(&version) {
        return Err(RecordError::UnknownVersion(version));
    }
    let flexible = version >= FIRST_FLEXIBLE;
    let protocol_type = value.string_of(flexible)?.to_owned();
    let generation = GenerationId::new(value.i32()?);
    let protocol = value.nullable_string_of(flexible)?.map(str::to_owned);
    let leader = value.nullable_string_of(flexible)?.map(MemberId::new);
    let state_since = if version >= 2 {
        TimestampMs::new(value.i64()?)
    } else {
        TimestampMs::NONE
    };
    let count = value.count_of(flexible)?;
    // No reservation by the count: it is only bounded by the bytes once they have been read.
    let mut members = Vec::new();
    for _ in 0..count {
        members.push(decode_member(&mut value, version, flexible)?);
    }
    if flexible {
        value.tagged_fields(|_, _| Ok(()))?;
    }
    Ok(GroupMetadata {
        protocol_type,
        generation,
        protocol,
        leader,
        state_since,
        members,
    })
}

fn decode_member(
    value: &mut Reader<'_>,
    version: i16,
    flexible: bool,
) -> Result<MemberMetadata, RecordError> {
    let member_id = MemberId::new(value.string_of(flexible)?);
    let instance_id = if version >= 3 {
        value.nullable_string_of(flexible)?.map(InstanceId::new)
    } else {
        None
    };
    let client_id = value.string_of(flexible)?.to_owned();
    let client_host = value.string_of(flexible)?.to_owned();
    let rebalance_timeout_ms = if version >= 1 { value.i32()? } else { -1 };
    let session_timeout_ms = value.i32()?;
    let subscription = Bytes::copy_from_slice(value.bytes_of(flexible)?);
    let assignment = Bytes::copy_from_slice(value.bytes_of(flexible)?);
    if flexible {
        value.tagged_fields(|_, _| Ok(()))?;
    }
    Ok(MemberMetadata {
        member_id,
        instance_id,
        client_id,
        client_host,
        // Before version 1 a member had one timeout for both.
        rebalance_timeout_ms: if rebalance_timeout_ms == -1 {
            session_timeout_ms
        } else {
            rebalance_timeout_ms
        },
        session_timeout_ms,
        subscription,
        assignment,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::fields::FieldError;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn unhex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text
            .bytes()
            .filter(u8::is_ascii_hexdigit)
            .map(|digit| (digit as char).to_digit(16).unwrap_or_default() as u8)
            .collect();
        digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect()
    }

    fn offset_record(commit: OffsetCommit) -> GroupRecord {
        GroupRecord::Offset(
            OffsetKey {
                group: GroupId::new("grp"),
                topic: TopicName::new("top"),
                partition: PartitionIndex::new(7),
            },
            Some(commit),
        )
    }

    fn commit() -> OffsetCommit {
        OffsetCommit {
            offset: Offset::new(100),
            leader_epoch: LeaderEpoch::new(3),
            metadata: Box::from("hi"),
            committed_at: TimestampMs::new(0x0102),
            expires_at: TimestampMs::NONE,
            topic_id: TopicId::ZERO,
        }
    }

    fn group() -> GroupMetadata {
        GroupMetadata {
            protocol_type: "consumer".to_owned(),
            generation: GenerationId::new(5),
            protocol: Some("range".to_owned()),
            leader: Some(MemberId::new("m")),
            state_since: TimestampMs::new(9),
            members: vec![MemberMetadata {
                member_id: MemberId::new("m"),
                instance_id: None,
                client_id: "c".to_owned(),
                client_host: "/h".to_owned(),
                rebalance_timeout_ms: 300_000,
                session_timeout_ms: 10_000,
                subscription: Bytes::from_static(b"\x01"),
                assignment: Bytes::new(),
            }],
        }
    }

    fn round_trip(record: &GroupRecord) {
        let key = record.encode_key();
        let value = record.encode_value();
        assert_eq!(
            GroupRecord::decode(Some(&key), value.as_deref()),
            Ok(DecodedRecord::Known(record.clone()))
        );
    }

    #[test]
    fn offset_commit_bytes_are_kafkas_version_4() {
        let record = offset_record(commit());
        assert_eq!(
            hex(&record.encode_key()),
            "0001 0003 677270 0003 746f70 00000007".replace(' ', "")
        );
        assert_eq!(
            hex(&record.encode_value().unwrap_or_default()),
            "0004 0000000000000064 00000003 03 6869 0000000000000102 00".replace(' ', "")
        );
        round_trip(&record);
    }

    #[test]
    fn offset_commit_carries_the_topic_id_as_tag_0() {
        let record = offset_record(OffsetCommit {
            topic_id: TopicId::from_bytes([0xab; 16]),
            ..commit()
        });
        let value = hex(&record.encode_value().unwrap_or_default());
        assert!(
            value.ends_with(&format!("010010{}", "ab".repeat(16))),
            "{value}"
        );
        round_trip(&record);
    }

    #[test]
    fn offset_commit_with_an_expiry_of_its_own_is_written_as_version_1() {
        let record = offset_record(OffsetCommit {
            leader_epoch: LeaderEpoch::NONE,
            expires_at: TimestampMs::new(0x0304),
            ..commit()
        });
        assert_eq!(
            hex(&record.encode_value().unwrap_or_default()),
            "0001 0000000000000064 0002 6869 0000000000000102 0000000000000304".replace(' ', "")
        );
        round_trip(&record);
    }

    #[test]
    fn offset_commits_of_older_versions_are_read() {
        let key = unhex("0000 0003 677270 0003 746f70 00000007");
        for (value, epoch) in [
            ("0000 0000000000000064 0002 6869 0000000000000102", -1),
            ("0002 0000000000000064 0002 6869 0000000000000102", -1),
            (
                "0003 0000000000000064 00000003 0002 6869 0000000000000102",
                3,
            ),
        ] {
            let expected = offset_record(OffsetCommit {
                leader_epoch: LeaderEpoch::new(epoch),
                ..commit()
            });
            assert_eq!(
                GroupRecord::decode(Some(&key), Some(&unhex(value))),
                Ok(DecodedRecord::Known(expected))
            );
        }
    }

    #[test]
    fn group_bytes_are_kafkas_version_3() {
        let record = GroupRecord::Group(GroupId::new("grp"), Some(group()));
        assert_eq!(hex(&record.encode_key()), "00020003677270");
        assert_eq!(
            hex(&record.encode_value().unwrap_or_default()),
            "0003 0008 636f6e73756d6572 00000005 0005 72616e6765 0001 6d 0000000000000009 00000001 \
             0001 6d ffff 0001 63 0002 2f68 000493e0 00002710 00000001 01 00000000"
                .replace(' ', "")
        );
        round_trip(&record);
    }

    #[test]
    fn groups_of_other_versions_are_read() {
        let key = unhex("0002 0003 677270");
        let version_0 = "0000 0008 636f6e73756d6572 00000005 0005 72616e6765 0001 6d 00000001 \
             0001 6d 0001 63 0002 2f68 00002710 00000001 01 00000000";
        let mut expected = group();
        expected.state_since = TimestampMs::NONE;
        expected.members[0].rebalance_timeout_ms = 10_000;
        assert_eq!(
            GroupRecord::decode(Some(&key), Some(&unhex(version_0))),
            Ok(DecodedRecord::Known(GroupRecord::Group(
                GroupId::new("grp"),
                Some(expected)
            )))
        );
        let version_4 = "0004 09 636f6e73756d6572 00000005 06 72616e6765 02 6d 0000000000000009 02 \
             02 6d 00 02 63 03 2f68 000493e0 00002710 02 01 01 00 00";
        assert_eq!(
            GroupRecord::decode(Some(&key), Some(&unhex(version_4))),
            Ok(DecodedRecord::Known(GroupRecord::Group(
                GroupId::new("grp"),
                Some(group())
            )))
        );
    }

    #[test]
    fn an_empty_group_has_no_protocol_and_no_leader() {
        let record = GroupRecord::Group(
            GroupId::new("g"),
            Some(GroupMetadata {
                protocol_type: String::new(),
                generation: GenerationId::new(0),
                protocol: None,
                leader: None,
                state_since: TimestampMs::new(1),
                members: Vec::new(),
            }),
        );
        assert_eq!(
            hex(&record.encode_value().unwrap_or_default()),
            "0003 0000 00000000 ffff ffff 0000000000000001 00000000".replace(' ', "")
        );
        round_trip(&record);
    }

    #[test]
    fn tombstones_have_a_null_value() {
        round_trip(&GroupRecord::Group(GroupId::new("g"), None));
        let GroupRecord::Offset(key, _) = offset_record(commit()) else {
            return;
        };
        let tombstone = GroupRecord::Offset(key, None);
        assert_eq!(tombstone.encode_value(), None);
        round_trip(&tombstone);
    }

    #[test]
    fn other_kinds_of_record_are_left_alone() {
        // That of a share group.
        let key = unhex("000b 0003 677270");
        assert_eq!(
            GroupRecord::decode(Some(&key), Some(&[0, 0])),
            Ok(DecodedRecord::Unknown(11))
        );
    }

    #[test]
    fn damaged_bytes_are_errors_at_every_cut_and_never_a_panic() {
        for record in [
            offset_record(commit()),
            GroupRecord::Group(GroupId::new("grp"), Some(group())),
        ] {
            let key = record.encode_key();
            let value = record.encode_value().unwrap_or_default();
            for cut in 0..value.len() {
                assert!(GroupRecord::decode(Some(&key), Some(&value[..cut])).is_err());
            }
            for cut in 0..key.len() {
                assert!(GroupRecord::decode(Some(&key[..cut]), Some(&value)).is_err());
            }
            for at in 0..value.len() {
                let mut flipped = value.to_vec();
                flipped[at] ^= 0xff;
                let _ = GroupRecord::decode(Some(&key), Some(&flipped));
            }
        }
        assert_eq!(GroupRecord::decode(None, None), Err(RecordError::NoKey));
    }

    #[test]
    fn a_huge_member_count_reserves_nothing() {
        let key = unhex("0002 0001 67");
        let value = unhex("0003 0000 00000000 ffff ffff 0000000000000001 7fffffff");
        assert_eq!(
            GroupRecord::decode(Some(&key), Some(&value)),
            Err(RecordError::Field(FieldError::Truncated))
        );
    }
}
