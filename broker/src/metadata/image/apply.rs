//! What a record does to an image.

use std::sync::Arc;

use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::{LeaderEpoch, Offset, PartitionIndex, TopicId};

use super::super::records::{
    BrokerChangeRecord, ConfigRecord, MetadataRecord, PartitionChangeRecord, PartitionRecord,
};
use super::super::topic_name;
use super::MetadataImage;
use super::model::{BrokerRegistration, ConfigResource, PartitionState, ResourceKind, Topic};

/// A record that cannot follow the ones before it: the log is damaged, or ours is a bug.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The record names a topic that does not exist.
    #[error("metadata record names the unknown topic {0}")]
    UnknownTopic(TopicId),
    /// A topic of this name exists already.
    #[error("metadata record creates topic {name:?} a second time")]
    TopicExists {
        /// Name of the topic.
        name: String,
    },
    /// The record names a partition that does not exist, or creates one out of order.
    #[error("metadata record names partition {partition} of topic {topic_id}, which has {count}")]
    PartitionOutOfOrder {
        /// Topic of the partition.
        topic_id: TopicId,
        /// Index in the record.
        partition: PartitionIndex,
        /// Partitions that the topic has.
        count: usize,
    },
    /// The record configures a kind of resource that this version does not know.
    #[error("metadata record configures an unknown resource type {0}")]
    UnknownResource(i8),
}

impl MetadataImage {
    /// Puts `records` on top of the image; `next_offset` is the offset after the last of them.
    /// After an error the image is of no more use.
    pub fn apply<'a>(
        &mut self,
        records: impl IntoIterator<Item = &'a MetadataRecord>,
        next_offset: Offset,
    ) -> Result<(), ImageError> {
        for record in records {
            self.apply_one(record)?;
        }
        self.next_offset = next_offset;
        Ok(())
    }

    /// Says where the log continues after the image, and which epoch its last record is of.
    pub fn stands_at(&mut self, next_offset: Offset, last_epoch: LeaderEpoch) {
        self.next_offset = next_offset;
        self.last_epoch = last_epoch;
    }

    fn apply_one(&mut self, record: &MetadataRecord) -> Result<(), ImageError> {
        match record {
            MetadataRecord::RegisterBroker(record) => {
                let registration = BrokerRegistration {
                    incarnation_id: record.incarnation_id,
                    broker_epoch: record.broker_epoch,
                    endpoints: record.endpoints.clone(),
                    features: record.features.clone(),
                    rack: record.rack.clone(),
                    fenced: record.fenced,
                    stopping: false,
                    log_dirs: record.log_dirs.clone(),
                };
                Arc::make_mut(&mut self.brokers).insert(record.broker_id, registration);
            }
            MetadataRecord::UnregisterBroker(record) => {
                Arc::make_mut(&mut self.brokers).remove(&record.broker_id);
            }
            MetadataRecord::BrokerChange(record) => self.change_broker(record),
            MetadataRecord::RegisterController(record) => {
                Arc::make_mut(&mut self.controllers).insert(record.controller_id, record.clone());
            }
            MetadataRecord::UnregisterController(node) => {
                Arc::make_mut(&mut self.controllers).remove(node);
            }
            MetadataRecord::Voters(voters) => self.voters = Arc::new(voters.clone()),
            MetadataRecord::Topic(record) => {
                if self.topics.contains_key(record.name.as_str()) {
                    return Err(ImageError::TopicExists {
                        name: record.name.clone(),
                    });
                }
                let name: Arc<str> = record.name.as_str().into();
                let topic = Topic {
                    name: Arc::clone(&name),
                    id: record.topic_id,
                    partitions: Vec::new(),
                };
                if topic_name::has_collision_chars(&name) {
                    let key = topic_name::collision_key(&name).into_owned();
                    self.collisions.insert(key, Arc::clone(&name));
                }
                self.names.insert(record.topic_id, Arc::clone(&name));
                self.topics.insert(name, Arc::new(topic));
            }
            MetadataRecord::Partition(record) => self.add_partition(record)?,
            MetadataRecord::PartitionChange(record) => self.change_partition(record)?,
            MetadataRecord::RemoveTopic(topic_id) => self.remove_topic(*topic_id)?,
            MetadataRecord::Config(record) => self.configure(record)?,
            MetadataRecord::FeatureLevel(record) => {
                let features = Arc::make_mut(&mut self.features);
                if record.level == 0 {
                    features.remove(&record.name);
                } else {
                    features.insert(record.name.clone(), record.level);
                }
            }
            MetadataRecord::ProducerIds(record) => {
                self.next_producer_id = self.next_producer_id.max(record.next_producer_id);
            }
            MetadataRecord::Cluster(record) => self.cluster = Some(Arc::new(record.clone())),
            MetadataRecord::Deleted(ids) => ids.iter().for_each(|id| self.deleted.push(*id)),
            MetadataRecord::NoOp => {}
        }
        Ok(())
    }

    fn change_broker(&mut self, record: &BrokerChangeRecord) {
        let brokers = Arc::make_mut(&mut self.brokers);
        // A change that was meant for an earlier registration says nothing of this one.
        if let Some(broker) = brokers.get_mut(&record.broker_id)
            && broker.broker_epoch == record.broker_epoch
        {
            if let Some(fenced) = record.fenced {
                broker.fenced = fenced;
            }
            broker.stopping |= record.stopping;
        }
    }

    fn remove_topic(&mut self, id: TopicId) -> Result<(), ImageError> {
        let name = self.names.remove(&id).ok_or(ImageError::UnknownTopic(id))?;
        if let Some(topic) = self.topics.remove(&name) {
            for (index, state) in topic.indexed() {
                self.tally.remove(id, index, state);
            }
        }
        if topic_name::has_collision_chars(&name) {
            let key = topic_name::collision_key(&name);
            if self.collisions.get(&*key) == Some(&name) {
                self.collisions.remove(&*key);
            }
        }
        self.configs.remove(&ConfigResource::topic(&*name));
        self.deleted.push(id);
        Ok(())
    }

    fn topic_mut(&mut self, id: TopicId) -> Result<&mut Topic, ImageError> {
        let name = self.names.get(&id).ok_or(ImageError::UnknownTopic(id))?;
        self.topics
            .get_mut(name)
            .map(Arc::make_mut)
            .ok_or(ImageError::UnknownTopic(id))
    }

    fn add_partition(&mut self, record: &PartitionRecord) -> Result<(), ImageError> {
        let topic = self.topic_mut(record.topic_id)?;
        let count = topic.partitions.len();
        if usize::try_from(record.partition.get()) != Ok(count) {
            return Err(ImageError::PartitionOutOfOrder {
                topic_id: record.topic_id,
                partition: record.partition,
                count,
            });
        }
        let state = PartitionState {
            replicas: record.replicas.clone(),
            isr: record.isr.clone(),
            removing_replicas: record.removing_replicas.clone(),
            adding_replicas: record.adding_replicas.clone(),
            leader: record.leader,
            leader_epoch: record.leader_epoch,
            partition_epoch: record.partition_epoch,
            directories: record.directories.clone(),
            begun: record.begun,
        };
        let state = Arc::new(state);
        topic.partitions.push(Arc::clone(&state));
        self.tally.add(record.topic_id, record.partition, &state);
        Ok(())
    }

    fn change_partition(&mut self, record: &PartitionChangeRecord) -> Result<(), ImageError> {
        // Taken out meanwhile: the partition is borrowed from the image.
        let mut tally = std::mem::take(&mut self.tally);
        let topic = self.topic_mut(record.topic_id)?;
        let count = topic.partitions.len();
        let partition = usize::try_from(record.partition.get())
            .ok()
            .and_then(|index| topic.partitions.get_mut(index))
            .map(Arc::make_mut)
            .ok_or(ImageError::PartitionOutOfOrder {
                topic_id: record.topic_id,
                partition: record.partition,
                count,
            })?;
        if let Some(isr) = &record.isr {
            partition.isr.clone_from(isr);
        }
        if let Some(replicas) = &record.replicas {
            let directories = replicas
                .iter()
                .map(|id| partition.directory(*id).unwrap_or(Uuid::ZERO));
            partition.directories = directories.collect();
            tally.replace(&partition.replicas, replicas);
            partition.replicas.clone_from(replicas);
        }
        if let Some(directories) = &record.directories {
            partition.directories.clone_from(directories);
        }
        if let Some(removing) = &record.removing_replicas {
            partition.removing_replicas.clone_from(removing);
        }
        if let Some(adding) = &record.adding_replicas {
            partition.adding_replicas.clone_from(adding);
        }
        if let Some(leader) = record.leader {
            partition.leader = leader;
            if record.leader_epoch.is_none() {
                partition.leader_epoch = LeaderEpoch::new(partition.leader_epoch.get() + 1);
            }
        }
        if let Some(epoch) = record.leader_epoch {
            partition.leader_epoch = epoch;
        }
        if let Some(begun) = record.begun {
            partition.begun = Some(begun);
        }
        partition.partition_epoch += 1;
        tally.judge(record.topic_id, record.partition, partition);
        self.tally = tally;
        Ok(())
    }

    fn configure(&mut self, record: &ConfigRecord) -> Result<(), ImageError> {
        let kind = ResourceKind::from_code(record.resource_type)
            .ok_or(ImageError::UnknownResource(record.resource_type))?;
        let resource = ConfigResource {
            kind,
            name: record.resource_name.clone(),
        };
        let mut config = self.configs.get(&resource).cloned().unwrap_or_default();
        let settings = Arc::make_mut(&mut config);
        match &record.value {
            Some(value) => settings.insert(record.name.clone(), value.clone()),
            None => settings.remove(&record.name),
        };
        if config.is_empty() {
            self.configs.remove(&resource);
        } else {
            self.configs.insert(resource, config);
        }
        Ok(())
    }
}
