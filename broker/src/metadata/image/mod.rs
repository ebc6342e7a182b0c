//! What the metadata log adds up to at one offset.
//!
//! An image never changes: applying a batch makes a new one that shares with the old whatever the
//! batch did not touch, so that a reader may hold one for as long as a request takes. What differs
//! between two images of one log is found in proportion to what differs (`changes`): whoever follows the
//! metadata keeps the image that it has carried out, compares the newest with it, and so has the changes of
//! all between merged, however far it is behind.
//!
//! Invariants: the partitions of a topic are `0..n` without a gap; a name has at most one topic;
//! the configuration of a topic is gone with the topic.
//!
//! - `model`: what it is made of.
//! - `apply`: what a record does to it.
//! - `changes`: how two differ.
//! - `dump`: the records that make it.
//! - `deleted`: topics that are gone.

mod apply;
mod changes;
mod deleted;
mod dump;
mod model;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::{LeaderEpoch, NodeId, Offset, ProducerId, TopicId};

use super::features;
use super::records::{ClusterRecord, RegisterControllerRecord, VoterRecord};
use super::tally::Tally;
use crate::shared_map::SharedMap;

pub use apply::ImageError;
pub use changes::{ConfigChange, TopicChange, touched_partitions};
use deleted::Deleted;
pub use model::{
    BrokerRegistration, ConfigMap, ConfigResource, PartitionState, ResourceKind, Topic,
};

/// The cluster's metadata after the records below [`MetadataImage::next_offset`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MetadataImage {
    next_offset: Offset,
    last_epoch: LeaderEpoch,
    topics: SharedMap<Arc<str>, Arc<Topic>>,
    names: SharedMap<TopicId, Arc<str>>,
    /// Names with characters that metric names fold together, by what they fold to.
    collisions: SharedMap<String, Arc<str>>,
    tally: Tally,
    configs: SharedMap<ConfigResource, Arc<ConfigMap>>,
    brokers: Arc<BTreeMap<NodeId, BrokerRegistration>>,
    controllers: Arc<BTreeMap<NodeId, RegisterControllerRecord>>,
    voters: Arc<Vec<VoterRecord>>,
    features: Arc<BTreeMap<String, i16>>,
    next_producer_id: ProducerId,
    cluster: Option<Arc<ClusterRecord>>,
    /// Topics that are gone, the last ones.
    deleted: Deleted,
    no_config: Arc<ConfigMap>,
}

impl MetadataImage {
    /// Whether the log says that the topic of this id was there and was deleted. No id is given
    /// twice, so what is left of it belongs to nobody. Of topics deleted long ago it is not known
    /// any more.
    pub fn has_deleted(&self, topic_id: TopicId) -> bool {
        self.deleted.contains(topic_id)
    }

    /// Offset of the first record that is not in the image.
    pub fn next_offset(&self) -> Offset {
        self.next_offset
    }

    /// Epoch of the last record that is in the image; zero as long as there is none.
    pub fn last_epoch(&self) -> LeaderEpoch {
        self.last_epoch
    }

    /// All topics, in the order of their names.
    pub fn topics(&self) -> impl ExactSizeIterator<Item = &Arc<Topic>> {
        self.topics.values()
    }

    /// Topics whose names are not below `name`, in the order of their names.
    pub fn topics_from<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a Arc<Topic>> {
        self.topics.iter_from(name).map(|(_, topic)| topic)
    }

    /// The topic of that name.
    pub fn topic(&self, name: &str) -> Option<&Arc<Topic>> {
        self.topics.get(name)
    }

    /// The topic of that id.
    pub fn topic_by_id(&self, id: TopicId) -> Option<&Arc<Topic>> {
        self.topics.get(self.names.get(&id)?)
    }

    /// The topic whose name folds to the same metric name as one with this collision key, if names with
    /// characters that are folded do.
    pub fn topic_colliding_on(&self, key: &str) -> Option<&Arc<str>> {
        self.collisions.get(key)
    }

    /// What is counted over all partitions.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Configuration that was set for a resource itself; empty when nothing was.
    pub fn config(&self, resource: &ConfigResource) -> &Arc<ConfigMap> {
        self.configs.get(resource).unwrap_or(&self.no_config)
    }

    /// Resources that have a configuration, in the order of kind and name.
    pub fn configured(&self) -> impl Iterator<Item = (&ConfigResource, &Arc<ConfigMap>)> {
        self.configs.iter()
    }

    /// Resources of one kind that have a configuration, in the order of their names; found without looking at
    /// those of other kinds.
    pub fn configured_of(
        &self,
        kind: ResourceKind,
    ) -> impl Iterator<Item = (&ConfigResource, &Arc<ConfigMap>)> {
        let first = ConfigResource {
            kind,
            name: String::new(),
        };
        let from = self.configs.iter_from(&first);
        from.take_while(move |(resource, _)| resource.kind == kind)
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

    /// Registered controllers, in the order of their ids.
    pub fn controllers(
        &self,
    ) -> impl ExactSizeIterator<Item = (NodeId, &RegisterControllerRecord)> {
        self.controllers.iter().map(|(id, record)| (*id, record))
    }

    /// The registration of a controller.
    pub fn controller(&self, id: NodeId) -> Option<&RegisterControllerRecord> {
        self.controllers.get(&id)
    }

    /// Who is to vote on the metadata, by directories and addresses. Empty as long as the voters are
    /// those that the configurations name: `kraft.version` 0.
    pub fn voters(&self) -> &[VoterRecord] {
        &self.voters
    }

    /// Ids of those who are to vote on the metadata.
    pub fn voter_ids(&self) -> BTreeSet<NodeId> {
        if self.has_voter_records() {
            return self.voters.iter().map(|voter| voter.id).collect();
        }
        self.cluster()
            .map(|cluster| cluster.voters.iter().copied().collect())
            .unwrap_or_default()
    }

    /// Whether the metadata says who votes on it, and not the configurations.
    pub fn has_voter_records(&self) -> bool {
        self.features
            .get(features::KRAFT_VERSION)
            .is_some_and(|level| *level > 0)
    }

    /// First producer id that no broker has been given yet.
    pub fn next_producer_id(&self) -> ProducerId {
        self.next_producer_id
    }
}
