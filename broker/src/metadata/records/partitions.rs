//! Records about partitions.

use odradek_protocol::codec::{
    DecodeError, Decoder, EncodeError, EncodeTarget, Encoder, TagOutcome, TaggedField, Uuid,
};
use odradek_protocol::ids::{LeaderEpoch, NodeId, PartitionIndex, TopicId};

use super::codec::{
    read_nodes, read_nullable_nodes, read_nullable_uuids, read_uuids, tag, write_nodes, write_uuids,
};

/// A partition as it was created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionRecord {
    /// Topic of the partition.
    pub topic_id: TopicId,
    /// Index in the topic.
    pub partition: PartitionIndex,
    /// Replicas, the preferred leader first.
    pub replicas: Vec<NodeId>,
    /// Replicas in sync.
    pub isr: Vec<NodeId>,
    /// Replicas on their way out.
    pub removing_replicas: Vec<NodeId>,
    /// Replicas on their way in.
    pub adding_replicas: Vec<NodeId>,
    /// The leader, if there is one.
    pub leader: Option<NodeId>,
    /// Epoch of the leader.
    pub leader_epoch: LeaderEpoch,
    /// Number of changes the partition has seen.
    pub partition_epoch: i32,
    /// Log directory of each replica, in the order of `replicas`.
    pub directories: Vec<Uuid>,
}

/// A change of a partition; `None` leaves the field as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionChangeRecord {
    /// Topic of the partition.
    pub topic_id: TopicId,
    /// Index in the topic.
    pub partition: PartitionIndex,
    /// New replicas in sync.
    pub isr: Option<Vec<NodeId>>,
    /// New leader; the inner `None` is "no leader".
    pub leader: Option<Option<NodeId>>,
    /// Epoch of the leader, which is the term of the partition's group. Kafka counts the changes of
    /// leaders instead: without it the epoch rises by one with a new leader.
    pub leader_epoch: Option<LeaderEpoch>,
    /// New replicas.
    pub replicas: Option<Vec<NodeId>>,
    /// New replicas on their way out.
    pub removing_replicas: Option<Vec<NodeId>>,
    /// New replicas on their way in.
    pub adding_replicas: Option<Vec<NodeId>>,
    /// New log directories, in the order of the replicas.
    pub directories: Option<Vec<Uuid>>,
}

impl PartitionRecord {
    pub(super) fn encode<T: EncodeTarget>(
        &self,
        encoder: &mut Encoder<T>,
    ) -> Result<Vec<TaggedField>, EncodeError> {
        encoder.write_i32(self.partition.get())?;
        encoder.write_uuid(self.topic_id.into())?;
        write_nodes(encoder, &self.replicas)?;
        write_nodes(encoder, &self.isr)?;
        write_nodes(encoder, &self.removing_replicas)?;
        write_nodes(encoder, &self.adding_replicas)?;
        encoder.write_i32(self.leader.map_or(NO_LEADER, NodeId::get))?;
        encoder.write_i32(self.leader_epoch.get())?;
        encoder.write_i32(self.partition_epoch)?;
        write_uuids(encoder, &self.directories)?;
        Ok(Vec::new())
    }

    pub(super) fn decode(decoder: &mut Decoder, version: u32) -> Result<Self, DecodeError> {
        let record = Self {
            partition: PartitionIndex::new(decoder.read_i32()?),
            topic_id: decoder.read_uuid()?.into(),
            replicas: read_nodes(decoder)?,
            isr: read_nodes(decoder)?,
            removing_replicas: read_nodes(decoder)?,
            adding_replicas: read_nodes(decoder)?,
            leader: leader(decoder.read_i32()?),
            leader_epoch: LeaderEpoch::new(decoder.read_i32()?),
            partition_epoch: decoder.read_i32()?,
            directories: if version >= 1 {
                read_uuids(decoder)?
            } else {
                Vec::new()
            },
        };
        decoder.read_tagged_fields()?;
        Ok(record)
    }
}

impl PartitionChangeRecord {
    /// A change of that partition that changes nothing yet.
    pub const fn of(topic_id: TopicId, partition: PartitionIndex) -> Self {
        Self {
            topic_id,
            partition,
            isr: None,
            leader: None,
            leader_epoch: None,
            replicas: None,
            removing_replicas: None,
            adding_replicas: None,
            directories: None,
        }
    }

    pub(super) fn encode<T: EncodeTarget>(
        &self,
        encoder: &mut Encoder<T>,
    ) -> Result<Vec<TaggedField>, EncodeError> {
        encoder.write_i32(self.partition.get())?;
        encoder.write_uuid(self.topic_id.into())?;
        let mut tags = Vec::new();
        if let Some(isr) = &self.isr {
            tags.push(tag(0, |encoder| write_nodes(encoder, isr))?);
        }
        if let Some(leader) = self.leader {
            let leader = leader.map_or(NO_LEADER, NodeId::get);
            tags.push(tag(1, |encoder| encoder.write_i32(leader))?);
        }
        for (number, nodes) in [
            (2, &self.replicas),
            (3, &self.removing_replicas),
            (4, &self.adding_replicas),
        ] {
            if let Some(nodes) = nodes {
                tags.push(tag(number, |encoder| write_nodes(encoder, nodes))?);
            }
        }
        if let Some(directories) = &self.directories {
            tags.push(tag(8, |encoder| write_uuids(encoder, directories))?);
        }
        if let Some(epoch) = self.leader_epoch {
            tags.push(tag(LEADER_EPOCH, |encoder| encoder.write_i32(epoch.get()))?);
        }
        Ok(tags)
    }

    pub(super) fn decode(decoder: &mut Decoder) -> Result<Self, DecodeError> {
        let partition = PartitionIndex::new(decoder.read_i32()?);
        let mut record = Self::of(decoder.read_uuid()?.into(), partition);
        decoder.read_tagged_fields_with(|tag, decoder| {
            match tag {
                0 => record.isr = read_nullable_nodes(decoder)?,
                1 => {
                    record.leader = match decoder.read_i32()? {
                        LEADER_UNCHANGED => None,
                        id => Some(leader(id)),
                    }
                }
                2 => record.replicas = read_nullable_nodes(decoder)?,
                3 => record.removing_replicas = read_nullable_nodes(decoder)?,
                4 => record.adding_replicas = read_nullable_nodes(decoder)?,
                8 => record.directories = read_nullable_uuids(decoder)?,
                LEADER_EPOCH => {
                    record.leader_epoch = Some(LeaderEpoch::new(decoder.read_i32()?));
                }
                _ => return Ok(TagOutcome::Retained),
            }
            Ok(TagOutcome::Decoded)
        })?;
        Ok(record)
    }
}

/// Our own field of a partition change: the leader's epoch.
const LEADER_EPOCH: u32 = super::OWN_TAGS;
/// "No leader" in a record.
const NO_LEADER: i32 = -1;
/// "The leader is as before" in a partition change.
const LEADER_UNCHANGED: i32 = -2;

fn leader(id: i32) -> Option<NodeId> {
    (id != NO_LEADER).then(|| NodeId::new(id))
}
