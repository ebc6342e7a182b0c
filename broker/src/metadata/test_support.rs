//! Small clusters for the tests of this room.

use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::{LeaderEpoch, NodeId, PartitionIndex, TopicId};

use super::image::MetadataImage;
use super::records::{MetadataRecord, PartitionRecord, RegisterBrokerRecord, TopicRecord};

/// A cluster of these brokers and nothing else.
pub fn image_with_brokers(ids: &[i32]) -> MetadataImage {
    let records: Vec<_> = ids
        .iter()
        .map(|id| {
            MetadataRecord::RegisterBroker(RegisterBrokerRecord {
                broker_id: NodeId::new(*id),
                incarnation_id: Uuid::ZERO,
                broker_epoch: 1,
                endpoints: vec![],
                features: vec![],
                rack: None,
                fenced: false,
                log_dirs: vec![],
            })
        })
        .collect();
    let mut image = MetadataImage::default();
    apply(&mut image, &records);
    image
}

/// Puts `records` on top of `image`.
pub fn apply(image: &mut MetadataImage, records: &[MetadataRecord]) {
    let next = image
        .next_offset()
        .plus(i64::try_from(records.len()).expect("short"));
    image.apply(records, next).expect("applies");
}

/// Topic ids in a fixed order.
pub fn topic_ids() -> impl FnMut() -> TopicId {
    let mut last = 0;
    move || {
        last += 1;
        TopicId::from_bytes([last; 16])
    }
}

/// Ids of nodes.
pub fn nodes(ids: &[i32]) -> Vec<NodeId> {
    ids.iter().copied().map(NodeId::new).collect()
}

/// A topic whose id is `number` sixteen times, with the replicas of each of its partitions; the
/// first one leads in epoch 0 and all are in sync.
pub fn topic(name: &str, number: u8, partitions: &[&[i32]]) -> Vec<MetadataRecord> {
    let topic_id = TopicId::from_bytes([number; 16]);
    let mut records = vec![MetadataRecord::Topic(TopicRecord {
        name: name.to_owned(),
        topic_id,
    })];
    records.extend((0..).zip(partitions).map(|(index, replicas)| {
        MetadataRecord::Partition(PartitionRecord {
            topic_id,
            partition: PartitionIndex::new(index),
            replicas: nodes(replicas),
            isr: nodes(replicas),
            removing_replicas: vec![],
            adding_replicas: vec![],
            leader: replicas.first().copied().map(NodeId::new),
            leader_epoch: LeaderEpoch::new(0),
            partition_epoch: 0,
            directories: vec![],
        })
    }));
    records
}
