//! Records of the metadata log, in Apache Kafka's own schemas, so that Kafka's tools read the log.
//!
//! A record is the value of one record of an ordinary batch: frame version, API key and record
//! version as unsigned varints, then the body in the flexible encoding. We write the newest
//! version of each schema that Kafka 4.4 has and read every version from 0 on; tagged fields that
//! a schema gained later are skipped. What Kafka has no field for is a tagged field of our own, from
//! `OWN_TAGS` on, which Kafka's tools pass over: the epoch of a leader, which is the term of the
//! partition's Raft group, which group that is, the directory of a controller, and in records that are otherwise empty the
//! cluster's id with its first voters, the voters since, and, in checkpoints, topics that are gone.
//!
//! Absent on purpose: the records of ZooKeeper migration and of metadata transactions. One command
//! is one batch, and a batch commits whole or not at all.

mod brokers;
mod codec;
mod controllers;
mod partitions;
#[cfg(test)]
mod tests;

use bytes::{Bytes, BytesMut};
use odradek_protocol::codec::{
    DecodeError, DecodeLimits, Decoder, EncodeError, Encoder, StrBytes, TagOutcome, TaggedFields,
    Uuid,
};
use odradek_protocol::ids::{NodeId, ProducerId, TopicId};

pub use brokers::{
    BrokerChangeRecord, BrokerEndpoint, RegisterBrokerRecord, SupportedFeature,
    UnregisterBrokerRecord,
};
use codec::{
    read_nodes, read_uuids, tag, write_nodes, write_nullable_string, write_string, write_uuids,
};
pub use controllers::{RegisterControllerRecord, VoterEndpoint, VoterRecord};
use controllers::{read_voters, write_voters};
pub use partitions::{Begun, PartitionChangeRecord, PartitionRecord};

/// First number of the tagged fields that Kafka does not have.
const OWN_TAGS: u32 = 10_000;
/// The id of a cluster, in an empty record.
const CLUSTER_ID: u32 = OWN_TAGS;
/// The first voters of a cluster, in an empty record.
const FIRST_VOTERS: u32 = OWN_TAGS + 1;
/// The voters from now on, in an empty record.
const VOTERS: u32 = OWN_TAGS + 2;
/// Topics that were deleted before a checkpoint, in an empty record.
const DELETED: u32 = OWN_TAGS + 3;

/// Version of the frame around a record.
const FRAME_VERSION: u32 = 1;

/// Longest record value that is read. Kafka's largest records, registrations, stay far below it.
const MAX_RECORD_BYTES: usize = 1 << 20;

/// One change of the cluster's metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetadataRecord {
    /// A broker process has joined.
    RegisterBroker(RegisterBrokerRecord),
    /// A broker is gone for good.
    UnregisterBroker(UnregisterBrokerRecord),
    /// A controller process is there.
    RegisterController(RegisterControllerRecord),
    /// A controller is gone for good.
    UnregisterController(NodeId),
    /// From here on these are to vote on the metadata; the group's members follow. Kafka says it in
    /// a control record; to its tools this is an empty one.
    Voters(Vec<VoterRecord>),
    /// A broker was fenced, unfenced, or is about to stop.
    BrokerChange(BrokerChangeRecord),
    /// A topic exists; its partitions follow.
    Topic(TopicRecord),
    /// A partition exists.
    Partition(PartitionRecord),
    /// A configuration key was set or deleted.
    Config(ConfigRecord),
    /// A partition changed.
    PartitionChange(PartitionChangeRecord),
    /// A topic is gone, with its partitions and configuration.
    RemoveTopic(TopicId),
    /// A feature was finalized at a level.
    FeatureLevel(FeatureLevelRecord),
    /// A block of producer ids was handed out.
    ProducerIds(ProducerIdsRecord),
    /// The cluster has its name. Among the first records of every log.
    Cluster(ClusterRecord),
    /// These topics are gone, and nothing of them stands in the records before. Only in checkpoints, which
    /// hold no [`MetadataRecord::RemoveTopic`].
    Deleted(Vec<TopicId>),
    /// Nothing changed.
    NoOp,
}

/// Which cluster the log is of. Kafka has no such record; to its tools it is an empty one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterRecord {
    /// Id of the cluster: 22 characters of URL-safe base64.
    pub cluster_id: String,
    /// The voters that the log was begun with.
    pub voters: Vec<NodeId>,
}

/// A topic's name and id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicRecord {
    /// Name of the topic.
    pub name: String,
    /// Its id, never used again for another topic.
    pub topic_id: TopicId,
}

/// A configuration key of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigRecord {
    /// Kafka's number of the resource type.
    pub resource_type: i8,
    /// Name of the resource; empty is the default of all brokers.
    pub resource_name: String,
    /// The key.
    pub name: String,
    /// The value; `None` deletes the key.
    pub value: Option<String>,
}

/// A feature at its finalized level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureLevelRecord {
    /// Name of the feature.
    pub name: String,
    /// The level; 0 switches the feature off.
    pub level: i16,
}

/// A block of producer ids that belongs to one broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerIdsRecord {
    /// The broker that asked.
    pub broker_id: NodeId,
    /// Its registration.
    pub broker_epoch: i64,
    /// First id that is still free.
    pub next_producer_id: ProducerId,
}

/// Why the value of a record is not a metadata record that this version understands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The frame is of another version.
    #[error("metadata record in frame version {0}, expected {FRAME_VERSION}")]
    FrameVersion(u32),
    /// The record is of a kind that this version does not know.
    #[error("unknown metadata record: API key {api_key}, version {version}")]
    Unknown {
        /// Kafka's number of the record type.
        api_key: u32,
        /// Version of the record.
        version: u32,
    },
    /// The bytes do not follow the schema.
    #[error("malformed metadata record: {0}")]
    Malformed(#[from] DecodeError),
}

impl MetadataRecord {
    /// Kafka's number and the version that is written.
    const fn key_and_version(&self) -> (u32, u32) {
        match self {
            Self::RegisterBroker(_) => (0, 4),
            Self::UnregisterBroker(_) => (1, 0),
            Self::Topic(_) => (2, 0),
            Self::Partition(_) => (3, 2),
            Self::Config(_) => (4, 0),
            Self::PartitionChange(_) => (5, 2),
            Self::RemoveTopic(_) => (9, 0),
            Self::FeatureLevel(_) => (12, 0),
            Self::ProducerIds(_) => (15, 0),
            Self::BrokerChange(_) => (17, 2),
            Self::RegisterController(_) => (27, 0),
            Self::UnregisterController(_) => (29, 0),
            Self::Cluster(_) | Self::Voters(_) | Self::Deleted(_) | Self::NoOp => (20, 0),
        }
    }

    /// The value of the log record. Fails only when a string or list is longer than the encoding
    /// can carry.
    pub fn encode(&self) -> Result<Bytes, EncodeError> {
        let mut buffer = BytesMut::with_capacity(96);
        let mut encoder = Encoder::new(&mut buffer);
        let (api_key, version) = self.key_and_version();
        encoder.write_unsigned_varint(FRAME_VERSION)?;
        encoder.write_unsigned_varint(api_key)?;
        encoder.write_unsigned_varint(version)?;
        let tags = match self {
            Self::RegisterBroker(record) => record.encode(&mut encoder)?,
            Self::UnregisterBroker(record) => record.encode(&mut encoder)?,
            Self::BrokerChange(record) => record.encode(&mut encoder)?,
            Self::RegisterController(record) => record.encode(&mut encoder)?,
            Self::UnregisterController(node) => {
                encoder.write_i32(node.get())?;
                Vec::new()
            }
            Self::Voters(voters) => vec![tag(VOTERS, |encoder| write_voters(encoder, voters))?],
            Self::Topic(record) => {
                write_string(&mut encoder, &record.name)?;
                encoder.write_uuid(record.topic_id.into())?;
                Vec::new()
            }
            Self::Partition(record) => record.encode(&mut encoder)?,
            Self::Config(record) => {
                encoder.write_i8(record.resource_type)?;
                write_string(&mut encoder, &record.resource_name)?;
                write_string(&mut encoder, &record.name)?;
                write_nullable_string(&mut encoder, record.value.as_deref())?;
                Vec::new()
            }
            Self::PartitionChange(record) => record.encode(&mut encoder)?,
            Self::RemoveTopic(topic_id) => {
                encoder.write_uuid((*topic_id).into())?;
                Vec::new()
            }
            Self::FeatureLevel(record) => {
                write_string(&mut encoder, &record.name)?;
                encoder.write_i16(record.level)?;
                Vec::new()
            }
            Self::ProducerIds(record) => {
                encoder.write_i32(record.broker_id.get())?;
                encoder.write_i64(record.broker_epoch)?;
                encoder.write_i64(record.next_producer_id.get())?;
                Vec::new()
            }
            Self::Cluster(record) => vec![
                tag(CLUSTER_ID, |encoder| {
                    write_string(encoder, &record.cluster_id)
                })?,
                tag(FIRST_VOTERS, |encoder| write_nodes(encoder, &record.voters))?,
            ],
            Self::Deleted(ids) => {
                let ids: Vec<Uuid> = ids.iter().map(|id| Uuid::from(*id)).collect();
                vec![tag(DELETED, |encoder| write_uuids(encoder, &ids))?]
            }
            Self::NoOp => Vec::new(),
        };
        encoder.write_tagged_fields(&TaggedFields::from_sorted(tags)?)?;
        Ok(buffer.freeze())
    }

    /// Reads the value of a log record.
    pub fn decode(value: Bytes) -> Result<Self, RecordError> {
        let mut limits = DecodeLimits::default();
        limits.max_frame_bytes = MAX_RECORD_BYTES;
        let mut decoder = Decoder::new(value, limits)?;
        let frame_version = decoder.read_unsigned_varint()?;
        if frame_version != FRAME_VERSION {
            return Err(RecordError::FrameVersion(frame_version));
        }
        let api_key = decoder.read_unsigned_varint()?;
        let version = decoder.read_unsigned_varint()?;
        let record = match (api_key, version) {
            (0, 0..=4) => {
                Self::RegisterBroker(RegisterBrokerRecord::decode(&mut decoder, version)?)
            }
            (1, 0) => Self::UnregisterBroker(UnregisterBrokerRecord::decode(&mut decoder)?),
            (17, 0..=2) => Self::BrokerChange(BrokerChangeRecord::decode(&mut decoder)?),
            (2, 0) => {
                let record = TopicRecord {
                    name: decoder.read_compact_string()?.into_string(),
                    topic_id: decoder.read_uuid()?.into(),
                };
                decoder.read_tagged_fields()?;
                Self::Topic(record)
            }
            (3, 0..=2) => Self::Partition(PartitionRecord::decode(&mut decoder, version)?),
            (4, 0) => {
                let record = ConfigRecord {
                    resource_type: decoder.read_i8()?,
                    resource_name: decoder.read_compact_string()?.into_string(),
                    name: decoder.read_compact_string()?.into_string(),
                    value: decoder
                        .read_compact_nullable_string()?
                        .map(StrBytes::into_string),
                };
                decoder.read_tagged_fields()?;
                Self::Config(record)
            }
            (5, 0..=2) => Self::PartitionChange(PartitionChangeRecord::decode(&mut decoder)?),
            (9, 0) => {
                let topic_id = decoder.read_uuid()?.into();
                decoder.read_tagged_fields()?;
                Self::RemoveTopic(topic_id)
            }
            (12, 0) => {
                let record = FeatureLevelRecord {
                    name: decoder.read_compact_string()?.into_string(),
                    level: decoder.read_i16()?,
                };
                decoder.read_tagged_fields()?;
                Self::FeatureLevel(record)
            }
            (15, 0) => {
                let record = ProducerIdsRecord {
                    broker_id: NodeId::new(decoder.read_i32()?),
                    broker_epoch: decoder.read_i64()?,
                    next_producer_id: ProducerId::new(decoder.read_i64()?),
                };
                decoder.read_tagged_fields()?;
                Self::ProducerIds(record)
            }
            (27, 0) => Self::RegisterController(RegisterControllerRecord::decode(&mut decoder)?),
            (29, 0) => {
                let node = NodeId::new(decoder.read_i32()?);
                decoder.read_tagged_fields()?;
                Self::UnregisterController(node)
            }
            (20, 0) => read_no_op(&mut decoder)?,
            _ => return Err(RecordError::Unknown { api_key, version }),
        };
        decoder.finish()?;
        Ok(record)
    }
}

fn read_no_op(decoder: &mut Decoder) -> Result<MetadataRecord, DecodeError> {
    let (mut cluster_id, mut first_voters, mut voters) = (None, Vec::new(), None);
    let mut deleted = None;
    decoder.read_tagged_fields_with(|tag, decoder| {
        match tag {
            CLUSTER_ID => cluster_id = Some(decoder.read_compact_string()?.into_string()),
            FIRST_VOTERS => first_voters = read_nodes(decoder)?,
            VOTERS => voters = Some(read_voters(decoder)?),
            DELETED => deleted = Some(read_uuids(decoder)?),
            _ => return Ok(TagOutcome::Retained),
        }
        Ok(TagOutcome::Decoded)
    })?;
    Ok(match (cluster_id, voters, deleted) {
        (Some(cluster_id), ..) => MetadataRecord::Cluster(ClusterRecord {
            cluster_id,
            voters: first_voters,
        }),
        (None, Some(voters), _) => MetadataRecord::Voters(voters),
        (None, None, Some(deleted)) => {
            MetadataRecord::Deleted(deleted.into_iter().map(TopicId::from).collect())
        }
        (None, None, None) => MetadataRecord::NoOp,
    })
}
