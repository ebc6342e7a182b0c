//! Small clusters for the tests of this room.

use std::sync::Arc;

use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::{LeaderEpoch, NodeId, PartitionIndex, ProducerId, TopicId};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::image::{ConfigResource, MetadataImage};
use super::records::{
    BrokerChangeRecord, BrokerEndpoint, ClusterRecord, ConfigRecord, FeatureLevelRecord,
    MetadataRecord, PartitionChangeRecord, PartitionRecord, ProducerIdsRecord,
    RegisterBrokerRecord, RegisterControllerRecord, SupportedFeature, TopicRecord,
    UnregisterBrokerRecord, VoterRecord,
};
use super::topic_name;

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

/// The id that is `number` sixteen times.
pub const fn topic_id(number: u8) -> TopicId {
    TopicId::from_bytes([number; 16])
}

/// A topic whose id is made of `number`, with the replicas of each of its partitions.
pub fn topic(name: &str, number: u8, partitions: &[&[i32]]) -> Vec<MetadataRecord> {
    let topic_id = topic_id(number);
    let mut records = vec![MetadataRecord::Topic(TopicRecord {
        name: name.to_owned(),
        topic_id,
    })];
    records.extend(
        (0..).zip(partitions).map(|(index, replicas)| {
            MetadataRecord::Partition(partition(topic_id, index, replicas))
        }),
    );
    records
}

/// A new partition: the first of its replicas leads in epoch 0, and all are in sync.
pub fn partition(topic_id: TopicId, index: i32, replicas: &[i32]) -> PartitionRecord {
    PartitionRecord {
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
        begun: None,
    }
}

/// One to four records of any kind that can follow the ones of `image`.
pub fn random_records(rng: &mut StdRng, image: &MetadataImage) -> Vec<MetadataRecord> {
    let topics: Vec<_> = image.topics().map(Arc::clone).collect();
    let topic = topics.choose(rng).cloned();
    let broker = NodeId::new(rng.random_range(1..6));
    let replicas = || -> Vec<NodeId> { nodes(&[1, 2, 3, 4, 5]) };
    match (rng.random_range(0..16), topic) {
        (0..5, _) | (_, None) => random_topic(rng, image),
        (5, Some(topic)) => vec![MetadataRecord::RemoveTopic(topic.id)],
        (6..9, Some(topic)) => {
            let at = rng.random_range(0..topic.partitions.len().max(1));
            let index = PartitionIndex::new(i32::try_from(at).expect("small"));
            let mut change = PartitionChangeRecord::of(topic.id, index);
            change.leader = rng
                .random_bool(0.5)
                .then(|| replicas().choose(rng).copied());
            change.leader_epoch = rng
                .random_bool(0.5)
                .then(|| LeaderEpoch::new(rng.random_range(0..9)));
            change.isr = rng
                .random_bool(0.5)
                .then(|| replicas().split_off(rng.random_range(0..5)));
            change.replicas = rng
                .random_bool(0.3)
                .then(|| replicas().split_off(rng.random_range(0..5)));
            change.adding_replicas = rng.random_bool(0.3).then(|| nodes(&[5]));
            change.removing_replicas = rng.random_bool(0.3).then(Vec::new);
            vec![MetadataRecord::PartitionChange(change)]
        }
        (9, Some(topic)) => random_setting(rng, ConfigResource::topic(&*topic.name)),
        (10, _) => random_setting(rng, ConfigResource::broker(broker)),
        (11, _) => match rng.random_range(0..3) {
            0 => vec![MetadataRecord::UnregisterBroker(UnregisterBrokerRecord {
                broker_id: broker,
                broker_epoch: 1,
            })],
            1 => vec![MetadataRecord::BrokerChange(BrokerChangeRecord {
                broker_id: broker,
                broker_epoch: 1,
                fenced: Some(rng.random()),
                stopping: rng.random(),
            })],
            _ => vec![random_broker(rng, broker)],
        },
        (12, _) => vec![MetadataRecord::FeatureLevel(FeatureLevelRecord {
            name: format!("feature.{}", rng.random_range(0..3)),
            level: rng.random_range(0..3),
        })],
        (13, _) => vec![MetadataRecord::ProducerIds(ProducerIdsRecord {
            broker_id: broker,
            broker_epoch: 1,
            next_producer_id: ProducerId::new(image.next_producer_id().get() + 1_000),
        })],
        (14, _) => vec![random_controller(rng, broker)],
        _ => vec![
            MetadataRecord::NoOp,
            MetadataRecord::Voters(vec![VoterRecord {
                id: broker,
                directory: Uuid::from_bytes(rng.random()),
                endpoints: vec![],
            }]),
            MetadataRecord::Cluster(ClusterRecord {
                cluster_id: "cluster".to_owned(),
                voters: nodes(&[1, 2, 3]),
            }),
        ],
    }
}

fn random_topic(rng: &mut StdRng, image: &MetadataImage) -> Vec<MetadataRecord> {
    // With and without characters that metric names fold together, and names that were there before.
    let name = format!(
        "topic{}{}",
        ["", ".", "_"][rng.random_range(0..3)],
        rng.random_range(0..40)
    );
    let key = topic_name::collision_key(&name);
    if image.topic(&name).is_some() || image.topic_colliding_on(&key).is_some() {
        return vec![MetadataRecord::NoOp];
    }
    let topic_id = TopicId::from_bytes(rng.random());
    let mut records = vec![MetadataRecord::Topic(TopicRecord {
        name: name.clone(),
        topic_id,
    })];
    for index in 0..rng.random_range(1..3) {
        let first = rng.random_range(1..4);
        let mut record = partition(topic_id, index, &[first, first + 1]);
        record.directories = vec![Uuid::from_bytes(rng.random()), Uuid::ZERO];
        records.push(MetadataRecord::Partition(record));
    }
    if rng.random_bool(0.3) {
        records.extend(random_setting(rng, ConfigResource::topic(name)));
    }
    records
}

fn random_setting(rng: &mut StdRng, resource: ConfigResource) -> Vec<MetadataRecord> {
    vec![MetadataRecord::Config(ConfigRecord {
        resource_type: resource.kind.code(),
        resource_name: resource.name,
        name: format!("key.{}", rng.random_range(0..3)),
        value: rng
            .random_bool(0.7)
            .then(|| rng.random_range(0..5).to_string()),
    })]
}

fn random_broker(rng: &mut StdRng, broker_id: NodeId) -> MetadataRecord {
    MetadataRecord::RegisterBroker(RegisterBrokerRecord {
        broker_id,
        incarnation_id: Uuid::from_bytes(rng.random()),
        broker_epoch: 1,
        endpoints: vec![BrokerEndpoint {
            name: "PLAINTEXT".to_owned(),
            host: "host".to_owned(),
            port: rng.random(),
            security_protocol: 0,
        }],
        features: vec![SupportedFeature {
            name: "metadata.version".to_owned(),
            min_level: 1,
            max_level: rng.random_range(1..30),
        }],
        rack: rng.random_bool(0.5).then(|| "rack".to_owned()),
        fenced: rng.random(),
        log_dirs: vec![Uuid::from_bytes(rng.random())],
    })
}

fn random_controller(rng: &mut StdRng, controller_id: NodeId) -> MetadataRecord {
    if rng.random_bool(0.3) {
        return MetadataRecord::UnregisterController(controller_id);
    }
    MetadataRecord::RegisterController(RegisterControllerRecord {
        controller_id,
        incarnation_id: Uuid::from_bytes(rng.random()),
        endpoints: vec![],
        features: vec![],
        directory: Uuid::from_bytes(rng.random()),
    })
}
