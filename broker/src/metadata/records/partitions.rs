//! Records about partitions.

use odradek_protocol::codec::{
    DecodeError, Decoder, EncodeError, EncodeTarget, Encoder, TagOutcome, TaggedField, Uuid,
};
use odradek_protocol::ids::{LeaderEpoch, NodeId, Offset, PartitionIndex, TopicId};
use odradek_raft::{Incarnation, RaftIndex, Succession};

use super::codec::{
    read_nodes, read_nullable_nodes, read_nullable_uuids, read_uuids, tag, write_nodes, write_uuids,
};

/// The group that a partition has now, where it is not the one that it was made with: most voters of
/// that were given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    /// Which of the partition's groups.
    pub incarnation: Incarnation,
    /// How it came from the one before.
    pub succession: Succession,
}

impl Begun {
    fn put<T: EncodeTarget>(&self, encoder: &mut Encoder<T>) -> Result<(), EncodeError> {
        let Succession {
            predecessor,
            founder,
            kept_end,
            log_start,
        } = self.succession;
        encoder.write_u32(self.incarnation.get())?;
        encoder.write_u32(predecessor.get())?;
        encoder.write_i32(founder.get())?;
        // Nobody counts as many entries.
        encoder.write_i64(i64::try_from(kept_end.get()).unwrap_or(i64::MAX))?;
        encoder.write_i64(log_start.get())
    }

    fn get(decoder: &mut Decoder) -> Result<Self, DecodeError> {
        Ok(Self {
            incarnation: Incarnation::new(decoder.read_u32()?),
            succession: Succession {
                predecessor: Incarnation::new(decoder.read_u32()?),
                founder: NodeId::new(decoder.read_i32()?),
                kept_end: RaftIndex::new(u64::try_from(decoder.read_i64()?).unwrap_or(0)),
                log_start: Offset::new(decoder.read_i64()?),
            },
        })
    }
}

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
    /// Its group, if not the one that it was made with.
    pub begun: Option<Begun>,
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
    /// The group that takes the place of the one before.
    pub begun: Option<Begun>,
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
        let begun = self.begun.as_ref();
        begun
            .map(|begun| tag(BEGUN, |encoder| begun.put(encoder)))
            .into_iter()
            .collect()
    }

    pub(super) fn decode(decoder: &mut Decoder, version: u32) -> Result<Self, DecodeError> {
        let mut record = Self {
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
            begun: None,
        };
        decoder.read_tagged_fields_with(|tag, decoder| {
            if tag != BEGUN {
                return Ok(TagOutcome::Retained);
            }
            record.begun = Some(Begun::get(decoder)?);
            Ok(TagOutcome::Decoded)
        })?;
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
            begun: None,
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
        if let Some(begun) = &self.begun {
            tags.push(tag(BEGUN, |encoder| begun.put(encoder))?);
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
                BEGUN => record.begun = Some(Begun::get(decoder)?),
                _ => return Ok(TagOutcome::Retained),
            }
            Ok(TagOutcome::Decoded)
        })?;
        Ok(record)
    }
}

/// Our own field of a partition change: the leader's epoch.
const LEADER_EPOCH: u32 = super::OWN_TAGS;
/// Our own field of a partition and of a change of one: which of its groups it has.
const BEGUN: u32 = super::OWN_TAGS + 1;
/// "No leader" in a record.
const NO_LEADER: i32 = -1;
/// "The leader is as before" in a partition change.
const LEADER_UNCHANGED: i32 = -2;

fn leader(id: i32) -> Option<NodeId> {
    (id != NO_LEADER).then(|| NodeId::new(id))
}
