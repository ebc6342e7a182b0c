//! Who should lead instead of who does: elections by request, and leaders that drift from the first
//! replica of their partitions.
//!
//! Nothing here makes anybody a leader: the partition's group does, at the wish of its leader.

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{NodeId, PartitionIndex, TopicId};
use odradek_raft::GroupKey;

use super::super::image::MetadataImage;
use super::super::placement;

/// A leadership that is to be handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandOver {
    /// The partition.
    pub group: GroupKey,
    /// Who leads.
    pub from: NodeId,
    /// Who is to lead.
    pub to: NodeId,
}

/// What it takes to have the first replica lead.
///
/// # Errors
/// Kafka's code for why nothing is done.
pub fn elect_preferred(
    image: &MetadataImage,
    topic_id: TopicId,
    partition: PartitionIndex,
) -> Result<HandOver, ErrorCode> {
    let topic = image
        .topic_by_id(topic_id)
        .ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let state = topic
        .partition(partition)
        .ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let preferred = state
        .preferred_leader()
        .ok_or(ErrorCode::PreferredLeaderNotAvailable)?;
    match state.leader {
        Some(leader) if leader == preferred => Err(ErrorCode::ElectionNotNeeded),
        Some(from) if placement::is_active(image, preferred) && state.isr.contains(&preferred) => {
            Ok(HandOver {
                group: topic.group_key(partition),
                from,
                to: preferred,
            })
        }
        _ => Err(ErrorCode::PreferredLeaderNotAvailable),
    }
}

/// Partitions that another replica leads than the first, where that one could; at most `most`.
pub fn imbalanced(image: &MetadataImage, most: usize) -> Vec<HandOver> {
    let misled = image.tally().misled();
    misled
        .filter_map(|(topic_id, partition)| elect_preferred(image, topic_id, partition).ok())
        .take(most)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::records::{MetadataRecord, PartitionChangeRecord};
    use super::super::super::test_support::{apply, image_with_brokers, nodes, topic};
    use super::super::register_broker;
    use super::*;

    const TOPIC: TopicId = TopicId::from_bytes([7; 16]);
    const FIRST: PartitionIndex = PartitionIndex::new(0);

    /// Partition 0 is led by 2 where 1 should, partition 1 as it should be.
    fn image() -> MetadataImage {
        let mut image = image_with_brokers(&[1, 2, 3]);
        let mut records = topic("t", 7, &[&[1, 2, 3], &[2, 1, 3]]);
        records.push(MetadataRecord::PartitionChange(PartitionChangeRecord {
            leader: Some(Some(NodeId::new(2))),
            ..PartitionChangeRecord::of(TOPIC, FIRST)
        }));
        apply(&mut image, &records);
        image
    }

    #[test]
    fn the_first_replica_is_to_lead_where_it_can() {
        let image = image();
        let hand_over = elect_preferred(&image, TOPIC, FIRST).expect("needed");
        assert_eq!((hand_over.from.get(), hand_over.to.get()), (2, 1));
        assert_eq!(imbalanced(&image, 10), [hand_over]);
        assert_eq!(imbalanced(&image, 0), []);
        assert_eq!(
            elect_preferred(&image, TOPIC, PartitionIndex::new(1)),
            Err(ErrorCode::ElectionNotNeeded)
        );
        assert_eq!(
            elect_preferred(&image, TOPIC, PartitionIndex::new(2)),
            Err(ErrorCode::UnknownTopicOrPartition)
        );
    }

    #[test]
    fn a_first_replica_that_is_away_or_behind_is_left_alone() {
        let mut behind = image();
        let out = MetadataRecord::PartitionChange(PartitionChangeRecord {
            isr: Some(nodes(&[2, 3])),
            ..PartitionChangeRecord::of(TOPIC, FIRST)
        });
        apply(&mut behind, &[out]);
        let mut away = image();
        let records = register_broker::fence(&away, NodeId::new(1), true);
        apply(&mut away, &records);
        for image in [behind, away] {
            assert_eq!(
                elect_preferred(&image, TOPIC, FIRST),
                Err(ErrorCode::PreferredLeaderNotAvailable)
            );
        }
    }
}
