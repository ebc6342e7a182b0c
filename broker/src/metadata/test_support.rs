//! Small clusters for the tests of this room.

use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::{NodeId, TopicId};

use super::image::MetadataImage;
use super::records::{MetadataRecord, RegisterBrokerRecord};

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
