//! What a group needs to know of topics: which exist, how many partitions they have, and a hash by
//! which it notices that they have changed.
//!
//! The hash is Kafka's (KIP-1101), XXH3 over the id, the name, the number of partitions and the racks
//! of their replicas: it stands in the group's record, and a coordinator of either kind that takes
//! over finds that nothing has changed.

use std::collections::BTreeSet;

use odradek_protocol::ids::{PartitionIndex, TopicId};
use twox_hash::XxHash3_64;

use crate::groups::names::TopicName;
use crate::metadata::image::{MetadataImage, Topic};

/// First byte of what is hashed of a topic: the version of the rule.
const TOPIC_HASH_VERSION: u8 = 0;

/// The ids of those of `names` that exist.
pub(super) fn ids_of<'a>(
    names: impl IntoIterator<Item = &'a TopicName>,
    image: &MetadataImage,
) -> BTreeSet<TopicId> {
    names
        .into_iter()
        .filter_map(|name| image.topic(name.as_str()))
        .map(|topic| topic.id)
        .collect()
}

/// The indexes of the partitions of a topic; none if it does not exist.
pub(super) fn partitions_of(
    topic: TopicId,
    image: &MetadataImage,
) -> impl Iterator<Item = PartitionIndex> {
    let count = image
        .topic_by_id(topic)
        .map_or(0, |topic| topic.partitions.len());
    (0..i32::try_from(count).unwrap_or(i32::MAX)).map(PartitionIndex::new)
}

/// The hash over the topics `names`, in the order of their names; zero if none exists.
pub(super) fn hash_of<'a>(
    names: impl IntoIterator<Item = &'a TopicName>,
    image: &MetadataImage,
) -> i64 {
    let topics: Vec<_> = names
        .into_iter()
        .filter_map(|name| image.topic(name.as_str()))
        .collect();
    if topics.is_empty() {
        return 0;
    }
    let mut bytes = Vec::with_capacity(topics.len() * 8);
    for topic in topics {
        bytes.extend_from_slice(&hash_of_topic(topic, image).to_le_bytes());
    }
    signed(XxHash3_64::oneshot(&bytes))
}

fn hash_of_topic(topic: &Topic, image: &MetadataImage) -> u64 {
    let mut bytes = vec![TOPIC_HASH_VERSION];
    // The halves of the id as numbers, which are hashed from their lowest byte on.
    for half in topic.id.to_bytes().chunks(8) {
        bytes.extend(half.iter().rev());
    }
    put_text(&mut bytes, &topic.name);
    put_int(&mut bytes, topic.partitions.len());
    for (index, partition) in topic.partitions.iter().enumerate() {
        put_int(&mut bytes, index);
        let brokers = partition.replicas.iter().filter_map(|id| image.broker(*id));
        let mut racks: Vec<&str> = brokers
            .filter_map(|broker| broker.rack.as_deref())
            .collect();
        racks.sort_unstable();
        for rack in racks {
            put_int(&mut bytes, rack.encode_utf16().count());
            put_text(&mut bytes, rack);
        }
    }
    XxHash3_64::oneshot(&bytes)
}

/// Text as Java hashes it: its UTF-16 units, then their number.
fn put_text(bytes: &mut Vec<u8>, text: &str) {
    let mut units = 0;
    for unit in text.encode_utf16() {
        bytes.extend_from_slice(&unit.to_le_bytes());
        units += 1;
    }
    put_int(bytes, units);
}

fn put_int(bytes: &mut Vec<u8>, number: usize) {
    let number = i32::try_from(number).unwrap_or(i32::MAX);
    bytes.extend_from_slice(&number.to_le_bytes());
}

/// The same 64 bits as a signed number, as the record has them.
fn signed(hash: u64) -> i64 {
    i64::from_le_bytes(hash.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::bench::image_of;

    #[test]
    fn nothing_hashes_to_nothing() {
        let image = image_of(&[("a", 1, 2)]);
        assert_eq!(hash_of(&[], &image), 0);
        assert_eq!(hash_of(&[TopicName::new("b")], &image), 0);
    }

    #[test]
    fn text_and_numbers_are_hashed_as_a_jvm_hashes_them() {
        // As the library that Kafka uses prints them.
        let mut bytes = Vec::new();
        put_text(&mut bytes, "ab");
        assert_eq!(XxHash3_64::oneshot(&bytes), 0x7adc_70f7_1a0e_43bf);
        let mut bytes = vec![TOPIC_HASH_VERSION];
        for half in [0x0102_0304_0506_0708_u64, 0x090a_0b0c_0d0e_0f10] {
            bytes.extend_from_slice(&half.to_le_bytes());
        }
        put_text(&mut bytes, "foo");
        put_int(&mut bytes, 2);
        put_int(&mut bytes, 0);
        put_int(&mut bytes, 2);
        put_text(&mut bytes, "r1");
        put_int(&mut bytes, 1);
        assert_eq!(
            signed(XxHash3_64::oneshot(&bytes)),
            5_382_482_066_484_344_319
        );
        let mut bytes = 5_u64.to_le_bytes().to_vec();
        bytes.extend_from_slice(&6_u64.to_le_bytes());
        assert_eq!(
            signed(XxHash3_64::oneshot(&bytes)),
            4_703_856_340_681_081_523
        );
    }

    #[test]
    fn another_partition_is_another_hash() {
        let names = [TopicName::new("a")];
        let before = hash_of(&names, &image_of(&[("a", 1, 2)]));
        assert_eq!(
            before,
            hash_of(&names, &image_of(&[("a", 1, 2), ("b", 2, 1)]))
        );
        assert_ne!(before, hash_of(&names, &image_of(&[("a", 1, 3)])));
        assert_ne!(before, hash_of(&names, &image_of(&[("a", 2, 2)])));
    }
}
