//! What the metadata log adds up to at one offset.
//!
//! An image never changes: applying a batch makes a new one that shares with the old whatever the
//! batch did not touch, so that a reader may hold one for as long as a request takes.
//!
//! Invariants: the partitions of a topic are `0..n` without a gap; a name has at most one topic;
//! the configuration of a topic is gone with the topic.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::{LeaderEpoch, NodeId, Offset, PartitionIndex, ProducerId, TopicId};

use super::records::{
    BrokerChangeRecord, BrokerEndpoint, ClusterRecord, ConfigRecord, MetadataRecord,
    PartitionChangeRecord, PartitionRecord, SupportedFeature,
};

/// Kinds of things that have a configuration, with Kafka's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKind {
    /// A topic.
    Topic,
    /// A broker, or all brokers when the name is empty.
    Broker,
    /// The log levels of a broker; never stored.
    BrokerLogger,
    /// A client metrics subscription (KIP-714).
    ClientMetrics,
    /// A group.
    Group,
}

impl ResourceKind {
    /// Reads Kafka's number.
    pub const fn from_code(code: i8) -> Option<Self> {
        match code {
            2 => Some(Self::Topic),
            4 => Some(Self::Broker),
            8 => Some(Self::BrokerLogger),
            16 => Some(Self::ClientMetrics),
            32 => Some(Self::Group),
            _ => None,
        }
    }

    /// Kafka's number.
    pub const fn code(self) -> i8 {
        match self {
            Self::Topic => 2,
            Self::Broker => 4,
            Self::BrokerLogger => 8,
            Self::ClientMetrics => 16,
            Self::Group => 32,
        }
    }
}

/// Something that has a configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigResource {
    /// Its kind.
    pub kind: ResourceKind,
    /// Its name; empty is the default of all brokers.
    pub name: String,
}

impl ConfigResource {
    /// The configuration of a topic.
    pub fn topic(name: impl Into<String>) -> Self {
        Self {
            kind: ResourceKind::Topic,
            name: name.into(),
        }
    }

    /// The configuration of one broker.
    pub fn broker(id: NodeId) -> Self {
        Self {
            kind: ResourceKind::Broker,
            name: id.to_string(),
        }
    }

    /// The configuration that all brokers fall back to.
    pub fn all_brokers() -> Self {
        Self {
            kind: ResourceKind::Broker,
            name: String::new(),
        }
    }
}

/// Keys and values of one resource, in the order of the keys.
pub type ConfigMap = BTreeMap<String, String>;

/// A topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// Name.
    pub name: Arc<str>,
    /// Id; another topic of the same name has another id.
    pub id: TopicId,
    /// Partitions, by index.
    pub partitions: Vec<PartitionState>,
}

impl Topic {
    /// The partition of that index.
    pub fn partition(&self, index: PartitionIndex) -> Option<&PartitionState> {
        self.partitions.get(usize::try_from(index.get()).ok()?)
    }

    /// Indexes and partitions, in order.
    pub fn indexed(&self) -> impl Iterator<Item = (PartitionIndex, &PartitionState)> {
        (0..).map(PartitionIndex::new).zip(&self.partitions)
    }

    /// Number of replicas of a partition: that of the first one, as Kafka counts it.
    pub fn replication_factor(&self) -> usize {
        self.partitions
            .first()
            .map_or(0, |partition| partition.replicas.len())
    }

    /// Whether only the broker itself writes to the topic.
    pub fn is_internal(&self) -> bool {
        super::topic_name::is_internal(&self.name)
    }
}

/// A partition as the metadata log knows it. Which replica leads at this moment and in which
/// epoch is known to the partition's own Raft group first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionState {
    /// Replicas, the preferred leader first.
    pub replicas: Vec<NodeId>,
    /// Replicas in sync.
    pub isr: Vec<NodeId>,
    /// Replicas on their way out.
    pub removing_replicas: Vec<NodeId>,
    /// Replicas on their way in.
    pub adding_replicas: Vec<NodeId>,
    /// Leader, if there is one.
    pub leader: Option<NodeId>,
    /// Epoch of the leader.
    pub leader_epoch: LeaderEpoch,
    /// Number of changes the partition has seen.
    pub partition_epoch: i32,
    /// Log directory of each replica, in the order of `replicas`; zero where none was assigned.
    pub directories: Vec<Uuid>,
}

impl PartitionState {
    /// The log directory that a replica was given when it was placed; `None` if it was given none,
    /// or is no replica.
    pub fn directory(&self, node: NodeId) -> Option<Uuid> {
        let at = self.replicas.iter().position(|id| *id == node)?;
        self.directories.get(at).copied().filter(|id| !id.is_zero())
    }

    /// Whether replicas are on their way in or out.
    pub fn is_reassigning(&self) -> bool {
        !self.adding_replicas.is_empty() || !self.removing_replicas.is_empty()
    }

    /// The replicas once none is on its way: what the partition's group is to become.
    pub fn target_replicas(&self) -> Vec<NodeId> {
        self.replicas
            .iter()
            .copied()
            .filter(|id| !self.removing_replicas.contains(id))
            .collect()
    }
}

/// A broker as it registered last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerRegistration {
    /// Identity of the process.
    pub incarnation_id: Uuid,
    /// Number of the registration.
    pub broker_epoch: i64,
    /// Advertised listeners.
    pub endpoints: Vec<BrokerEndpoint>,
    /// Features the broker can work with.
    pub features: Vec<SupportedFeature>,
    /// `broker.rack`.
    pub rack: Option<String>,
    /// Whether the broker may not lead.
    pub fenced: bool,
    /// Whether the broker is about to stop and gives its leaderships away.
    pub stopping: bool,
    /// Ids of its log directories.
    pub log_dirs: Vec<Uuid>,
}

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

/// Deleted topics that are remembered: more than are deleted while a broker is down, and little
/// enough to be carried along.
const MAX_DELETED: usize = 1 << 14;

/// The cluster's metadata after the records below [`MetadataImage::next_offset`].
#[derive(Debug, Clone)]
pub struct MetadataImage {
    next_offset: Offset,
    topics: Arc<BTreeMap<Arc<str>, Arc<Topic>>>,
    names: Arc<HashMap<TopicId, Arc<str>>>,
    configs: Arc<BTreeMap<ConfigResource, Arc<ConfigMap>>>,
    brokers: Arc<BTreeMap<NodeId, BrokerRegistration>>,
    features: Arc<BTreeMap<String, i16>>,
    next_producer_id: ProducerId,
    cluster: Option<Arc<ClusterRecord>>,
    /// Topics that are gone, the last ones.
    deleted: Arc<VecDeque<TopicId>>,
    no_config: Arc<ConfigMap>,
}

impl Default for MetadataImage {
    fn default() -> Self {
        Self {
            next_offset: Offset::ZERO,
            topics: Arc::default(),
            names: Arc::default(),
            configs: Arc::default(),
            brokers: Arc::default(),
            features: Arc::default(),
            next_producer_id: ProducerId::new(0),
            cluster: None,
            deleted: Arc::default(),
            no_config: Arc::default(),
        }
    }
}

impl MetadataImage {
    /// Whether the log says that the topic of this id was there and was deleted. No id is given
    /// twice, so what is left of it belongs to nobody. Of topics deleted long ago it is not known
    /// any more.
    pub fn has_deleted(&self, topic_id: TopicId) -> bool {
        self.deleted.contains(&topic_id)
    }

    /// Offset of the first record that is not in the image.
    pub fn next_offset(&self) -> Offset {
        self.next_offset
    }

    /// All topics, in the order of their names.
    pub fn topics(&self) -> impl ExactSizeIterator<Item = &Arc<Topic>> {
        self.topics.values()
    }

    /// Topics whose names are not below `name`, in the order of their names.
    pub fn topics_from<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a Arc<Topic>> {
        let from = std::ops::Bound::Included(name);
        self.topics
            .range::<str, _>((from, std::ops::Bound::Unbounded))
            .map(|(_, topic)| topic)
    }

    /// The topic of that name.
    pub fn topic(&self, name: &str) -> Option<&Arc<Topic>> {
        self.topics.get(name)
    }

    /// The topic of that id.
    pub fn topic_by_id(&self, id: TopicId) -> Option<&Arc<Topic>> {
        self.topics.get(self.names.get(&id)?)
    }

    /// Configuration that was set for a resource itself; empty when nothing was.
    pub fn config(&self, resource: &ConfigResource) -> &Arc<ConfigMap> {
        self.configs.get(resource).unwrap_or(&self.no_config)
    }

    /// Resources that have a configuration, in the order of kind and name.
    pub fn configured(&self) -> impl Iterator<Item = (&ConfigResource, &Arc<ConfigMap>)> {
        self.configs.iter()
    }

    /// Registered brokers, in the order of their ids.
    pub fn brokers(&self) -> impl ExactSizeIterator<Item = (NodeId, &BrokerRegistration)> {
        self.brokers
            .iter()
            .map(|(id, registration)| (*id, registration))
    }

    /// The registration of a broker.
    pub fn broker(&self, id: NodeId) -> Option<&BrokerRegistration> {
        self.brokers.get(&id)
    }

    /// The only log directory of a broker; zero, which is "not assigned yet", when there is a choice.
    pub fn only_directory(&self, id: NodeId) -> Uuid {
        match self.broker(id).map(|broker| broker.log_dirs.as_slice()) {
            Some([only]) => *only,
            _ => Uuid::ZERO,
        }
    }

    /// Finalized features and their levels.
    pub fn features(&self) -> &BTreeMap<String, i16> {
        &self.features
    }

    /// Which cluster this is, and the voters that its log was begun with.
    pub fn cluster(&self) -> Option<&ClusterRecord> {
        self.cluster.as_deref()
    }

    /// First producer id that no broker has been given yet.
    pub fn next_producer_id(&self) -> ProducerId {
        self.next_producer_id
    }

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
                Arc::make_mut(&mut self.names).insert(record.topic_id, Arc::clone(&name));
                Arc::make_mut(&mut self.topics).insert(name, Arc::new(topic));
            }
            MetadataRecord::Partition(record) => self.add_partition(record)?,
            MetadataRecord::PartitionChange(record) => self.change_partition(record)?,
            MetadataRecord::RemoveTopic(topic_id) => {
                let name = Arc::make_mut(&mut self.names)
                    .remove(topic_id)
                    .ok_or(ImageError::UnknownTopic(*topic_id))?;
                Arc::make_mut(&mut self.topics).remove(&name);
                let resource = ConfigResource::topic(&*name);
                if self.configs.contains_key(&resource) {
                    Arc::make_mut(&mut self.configs).remove(&resource);
                }
                let deleted = Arc::make_mut(&mut self.deleted);
                if deleted.len() >= MAX_DELETED {
                    deleted.pop_front();
                }
                deleted.push_back(*topic_id);
            }
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

    fn topic_mut(&mut self, id: TopicId) -> Result<&mut Topic, ImageError> {
        let name = self.names.get(&id).ok_or(ImageError::UnknownTopic(id))?;
        Arc::make_mut(&mut self.topics)
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
        topic.partitions.push(PartitionState {
            replicas: record.replicas.clone(),
            isr: record.isr.clone(),
            removing_replicas: record.removing_replicas.clone(),
            adding_replicas: record.adding_replicas.clone(),
            leader: record.leader,
            leader_epoch: record.leader_epoch,
            partition_epoch: record.partition_epoch,
            directories: record.directories.clone(),
        });
        Ok(())
    }

    fn change_partition(&mut self, record: &PartitionChangeRecord) -> Result<(), ImageError> {
        let topic = self.topic_mut(record.topic_id)?;
        let count = topic.partitions.len();
        let partition = usize::try_from(record.partition.get())
            .ok()
            .and_then(|index| topic.partitions.get_mut(index))
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
        partition.partition_epoch += 1;
        Ok(())
    }

    fn configure(&mut self, record: &ConfigRecord) -> Result<(), ImageError> {
        let kind = ResourceKind::from_code(record.resource_type)
            .ok_or(ImageError::UnknownResource(record.resource_type))?;
        let resource = ConfigResource {
            kind,
            name: record.resource_name.clone(),
        };
        let configs = Arc::make_mut(&mut self.configs);
        match &record.value {
            Some(value) => {
                let config = configs.entry(resource).or_default();
                Arc::make_mut(config).insert(record.name.clone(), value.clone());
            }
            None => {
                if let Some(config) = configs.get_mut(&resource) {
                    Arc::make_mut(config).remove(&record.name);
                    if config.is_empty() {
                        configs.remove(&resource);
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::records::{FeatureLevelRecord, ProducerIdsRecord, TopicRecord};
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
        MetadataRecord::Partition(PartitionRecord {
            topic_id: id(number),
            partition: PartitionIndex::new(index),
            replicas: vec![NodeId::new(1)],
            isr: vec![NodeId::new(1)],
            removing_replicas: vec![],
            adding_replicas: vec![],
            leader: Some(NodeId::new(1)),
            leader_epoch: LeaderEpoch::new(0),
            partition_epoch: 0,
            directories: vec![],
        })
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
}
