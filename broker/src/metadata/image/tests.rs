//! Images of small clusters.

use odradek_protocol::ids::{LeaderEpoch, PartitionIndex};

use super::super::records::{
    ConfigRecord, FeatureLevelRecord, MetadataRecord, PartitionChangeRecord, ProducerIdsRecord,
    TopicRecord,
};
use super::super::test_support;
use super::*;

fn id(number: u8) -> TopicId {
    TopicId::from_bytes([number; 16])
}

fn topic(name: &str, number: u8) -> MetadataRecord {
    MetadataRecord::Topic(TopicRecord {
        name: name.to_owned(),
        topic_id: id(number),
    })
}

fn partition(number: u8, index: i32) -> MetadataRecord {
    MetadataRecord::Partition(test_support::partition(id(number), index, &[1]))
}

fn config(kind: ResourceKind, name: &str, key: &str, value: Option<&str>) -> MetadataRecord {
    MetadataRecord::Config(ConfigRecord {
        resource_type: kind.code(),
        resource_name: name.to_owned(),
        name: key.to_owned(),
        value: value.map(str::to_owned),
    })
}

fn image(records: &[MetadataRecord]) -> MetadataImage {
    let mut image = MetadataImage::default();
    let next = Offset::new(i64::try_from(records.len()).expect("short"));
    image.apply(records, next).expect("applies");
    image
}

#[test]
fn topics_are_found_by_name_and_by_id() {
    let image = image(&[
        topic("a", 1),
        partition(1, 0),
        partition(1, 1),
        topic("b", 2),
    ]);
    assert_eq!(image.next_offset(), Offset::new(4));
    let a = image.topic("a").expect("exists");
    assert_eq!(a.partitions.len(), 2);
    assert_eq!(image.topic_by_id(id(1)), Some(a));
    assert_eq!(a.replication_factor(), 1);
    assert!(a.partition(PartitionIndex::new(2)).is_none());
    assert!(a.partition(PartitionIndex::new(-1)).is_none());
    let names: Vec<_> = image.topics().map(|topic| &*topic.name).collect();
    assert_eq!(names, ["a", "b"]);
    let names: Vec<_> = image.topics_from("aa").map(|topic| &*topic.name).collect();
    assert_eq!(names, ["b"]);
}

#[test]
fn an_older_image_does_not_see_what_came_after_it() {
    let old = image(&[topic("a", 1), partition(1, 0)]);
    let mut new = old.clone();
    new.apply(
        &[
            partition(1, 1),
            topic("b", 2),
            config(ResourceKind::Topic, "a", "retention.ms", Some("1")),
        ],
        Offset::new(5),
    )
    .expect("applies");
    assert_eq!(old.topic("a").map(|topic| topic.partitions.len()), Some(1));
    assert!(old.topic("b").is_none());
    assert!(old.config(&ConfigResource::topic("a")).is_empty());
    assert_eq!(new.topic("a").map(|topic| topic.partitions.len()), Some(2));
}

#[test]
fn a_removed_topic_takes_its_configuration_with_it_and_frees_its_name() {
    let set = config(ResourceKind::Topic, "a", "retention.ms", Some("1"));
    let mut image = image(&[topic("a", 1), set, partition(1, 0)]);
    image
        .apply(&[MetadataRecord::RemoveTopic(id(1))], Offset::new(4))
        .expect("applies");
    assert!(image.topic("a").is_none());
    assert!(image.topic_by_id(id(1)).is_none());
    assert!(image.has_deleted(id(1)) && !image.has_deleted(id(3)));
    assert!(image.config(&ConfigResource::topic("a")).is_empty());
    image
        .apply(&[topic("a", 3)], Offset::new(5))
        .expect("the name is free");
    assert_eq!(image.topic("a").map(|topic| topic.id), Some(id(3)));
}

#[test]
fn configuration_is_kept_per_resource_and_deleted_key_by_key() {
    let mut image = image(&[
        config(ResourceKind::Broker, "", "log.retention.ms", Some("1")),
        config(ResourceKind::Broker, "1", "log.retention.ms", Some("2")),
    ]);
    let value = |image: &MetadataImage, resource: &ConfigResource| {
        image.config(resource).get("log.retention.ms").cloned()
    };
    assert_eq!(
        value(&image, &ConfigResource::all_brokers()).as_deref(),
        Some("1")
    );
    let broker = ConfigResource::broker(NodeId::new(1));
    assert_eq!(value(&image, &broker).as_deref(), Some("2"));
    image
        .apply(
            &[config(ResourceKind::Broker, "1", "log.retention.ms", None)],
            Offset::new(3),
        )
        .expect("applies");
    assert_eq!(value(&image, &broker), None);
    assert_eq!(image.configured().count(), 1);
}

#[test]
fn a_changed_leader_opens_a_new_epoch_and_any_change_counts() {
    let mut image = image(&[topic("a", 1), partition(1, 0)]);
    let change = PartitionChangeRecord {
        topic_id: id(1),
        partition: PartitionIndex::new(0),
        isr: Some(vec![]),
        leader: None,
        leader_epoch: None,
        replicas: None,
        removing_replicas: None,
        adding_replicas: None,
        directories: None,
        begun: None,
    };
    let to = PartitionChangeRecord {
        leader: Some(None),
        ..change.clone()
    };
    image
        .apply(
            &[
                MetadataRecord::PartitionChange(change),
                MetadataRecord::PartitionChange(to),
            ],
            Offset::new(4),
        )
        .expect("applies");
    let partition = &image.topic("a").expect("exists").partitions[0];
    assert_eq!(partition.leader, None);
    assert!(partition.isr.is_empty());
    assert_eq!(partition.leader_epoch, LeaderEpoch::new(1));
    assert_eq!(partition.partition_epoch, 2);
}

#[test]
fn records_that_cannot_follow_are_errors() {
    for (records, error) in [
        (vec![partition(1, 0)], ImageError::UnknownTopic(id(1))),
        (
            vec![topic("a", 1), partition(1, 1)],
            ImageError::PartitionOutOfOrder {
                topic_id: id(1),
                partition: PartitionIndex::new(1),
                count: 0,
            },
        ),
        (
            vec![topic("a", 1), topic("a", 2)],
            ImageError::TopicExists {
                name: "a".to_owned(),
            },
        ),
        (
            vec![MetadataRecord::RemoveTopic(id(9))],
            ImageError::UnknownTopic(id(9)),
        ),
    ] {
        let mut image = MetadataImage::default();
        assert_eq!(image.apply(&records, Offset::new(1)), Err(error));
    }
}

#[test]
fn producer_ids_and_features_follow_the_log() {
    let image = image(&[
        MetadataRecord::ProducerIds(ProducerIdsRecord {
            broker_id: NodeId::new(1),
            broker_epoch: 1,
            next_producer_id: ProducerId::new(1_000),
        }),
        MetadataRecord::FeatureLevel(FeatureLevelRecord {
            name: "metadata.version".to_owned(),
            level: 33,
        }),
    ]);
    assert_eq!(image.next_producer_id(), ProducerId::new(1_000));
    assert_eq!(image.features().get("metadata.version"), Some(&33));
}
