//! The records that make an image: fewer than those that made it, and the same image.

use std::sync::Arc;

use odradek_protocol::ids::{NodeId, PartitionIndex};

use super::super::records::{
    BrokerChangeRecord, ConfigRecord, FeatureLevelRecord, MetadataRecord, PartitionRecord,
    ProducerIdsRecord, RegisterBrokerRecord, TopicRecord,
};
use super::MetadataImage;
use super::model::{BrokerRegistration, PartitionState, Topic};

/// Deleted topics that one record names; it stays far below what a record may be long.
const DELETED_AT_ONCE: usize = 1 << 12;
/// Stands where a record names a broker and none is meant.
const NOBODY: NodeId = NodeId::new(-1);

impl MetadataImage {
    /// Records that make this image, offsets aside, when they are put on top of an empty one in this order.
    pub fn records(&self) -> impl Iterator<Item = MetadataRecord> + '_ {
        let cluster = self.cluster.iter();
        let features = self.features.iter().map(|(name, level)| {
            MetadataRecord::FeatureLevel(FeatureLevelRecord {
                name: name.clone(),
                level: *level,
            })
        });
        let voters = Some(&self.voters)
            .filter(|voters| !voters.is_empty())
            .into_iter();
        let controllers = self.controllers.values().cloned();
        let deleted: Vec<_> = self.deleted.iter().collect();
        let deleted: Vec<_> = deleted.chunks(DELETED_AT_ONCE).map(<[_]>::to_vec).collect();
        cluster
            .map(|cluster| MetadataRecord::Cluster((**cluster).clone()))
            .chain(features)
            .chain(voters.map(|voters| MetadataRecord::Voters(voters.to_vec())))
            .chain(controllers.map(MetadataRecord::RegisterController))
            .chain(
                self.brokers()
                    .flat_map(|(id, broker)| registration(id, broker)),
            )
            .chain(self.topics().flat_map(topic))
            .chain(self.settings())
            .chain(self.producer_ids())
            .chain(deleted.into_iter().map(MetadataRecord::Deleted))
    }

    fn settings(&self) -> impl Iterator<Item = MetadataRecord> + '_ {
        self.configured().flat_map(|(resource, config)| {
            config.iter().map(|(name, value)| {
                MetadataRecord::Config(ConfigRecord {
                    resource_type: resource.kind.code(),
                    resource_name: resource.name.clone(),
                    name: name.clone(),
                    value: Some(value.clone()),
                })
            })
        })
    }

    fn producer_ids(&self) -> Option<MetadataRecord> {
        (self.next_producer_id.get() > 0).then_some(MetadataRecord::ProducerIds(
            ProducerIdsRecord {
                broker_id: NOBODY,
                broker_epoch: -1,
                next_producer_id: self.next_producer_id,
            },
        ))
    }
}

fn registration(broker_id: NodeId, broker: &BrokerRegistration) -> Vec<MetadataRecord> {
    let mut records = vec![MetadataRecord::RegisterBroker(RegisterBrokerRecord {
        broker_id,
        incarnation_id: broker.incarnation_id,
        broker_epoch: broker.broker_epoch,
        endpoints: broker.endpoints.clone(),
        features: broker.features.clone(),
        rack: broker.rack.clone(),
        fenced: broker.fenced,
        log_dirs: broker.log_dirs.clone(),
    })];
    if broker.stopping {
        records.push(MetadataRecord::BrokerChange(BrokerChangeRecord {
            broker_id,
            broker_epoch: broker.broker_epoch,
            fenced: None,
            stopping: true,
        }));
    }
    records
}

fn topic(topic: &Arc<Topic>) -> impl Iterator<Item = MetadataRecord> + '_ {
    let record = MetadataRecord::Topic(TopicRecord {
        name: topic.name.to_string(),
        topic_id: topic.id,
    });
    let partitions = topic.indexed();
    std::iter::once(record).chain(partitions.map(|(index, state)| partition(topic, index, state)))
}

fn partition(topic: &Topic, partition: PartitionIndex, state: &PartitionState) -> MetadataRecord {
    MetadataRecord::Partition(PartitionRecord {
        topic_id: topic.id,
        partition,
        replicas: state.replicas.clone(),
        isr: state.isr.clone(),
        removing_replicas: state.removing_replicas.clone(),
        adding_replicas: state.adding_replicas.clone(),
        leader: state.leader,
        leader_epoch: state.leader_epoch,
        partition_epoch: state.partition_epoch,
        directories: state.directories.clone(),
        begun: state.begun,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::test_support::{apply, random_records};
    use crate::test_random::seeded;

    #[test]
    fn an_image_is_what_its_records_make_also_after_they_were_written_and_read() {
        let mut rng = seeded();
        for _ in 0..20 {
            let mut image = MetadataImage::default();
            for _ in 0..100 {
                let records = random_records(&mut rng, &image);
                apply(&mut image, &records);
            }
            let read: Vec<_> = image
                .records()
                .map(|record| record.encode().expect("short"))
                .map(|bytes| MetadataRecord::decode(bytes).expect("sound"))
                .collect();
            let mut again = MetadataImage::default();
            again.apply(&read, image.next_offset()).expect("applies");
            assert_eq!(again, image);
            assert!(again.records().eq(image.records()));
        }
    }
}
