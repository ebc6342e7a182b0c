//! Which nodes belong to the cluster and which may lead a group, as far as is known here.
//!
//! The metadata says both. It may lag: of a partition that is told late, for the messages of a leader that
//! is refused come again; of the metadata itself there would be no end to it, so others are asked
//! (`hearsay`).

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use odradek_protocol::ids::NodeId;
use odradek_raft::GroupKey;

use super::service::{ClusterService, directory_uuid};
use crate::metadata::controller::voters::check_directory;
use crate::metadata::image::MetadataImage;
use crate::metadata::service::METADATA_GROUP;
use crate::peer::{Caller, PeerIdentity, PeerReply, PeerRequest, PeerService};

impl ClusterService {
    /// Whether a node is one of the cluster.
    pub(super) fn knows(&self, node: NodeId) -> bool {
        self.addresses.has(node)
            || self
                .metadata()
                .is_some_and(|metadata| is_in(&metadata.image(), node))
            || self.hearsay.is_voter(node)
    }

    fn votes_on_metadata(&self, node: NodeId) -> bool {
        self.addresses.is_voter(node)
            || self
                .metadata()
                .is_some_and(|metadata| metadata.image().voter_ids().contains(&node))
            || self.hearsay.is_voter(node)
    }

    fn may_lead(&self, node: NodeId, group: GroupKey) -> bool {
        if group == METADATA_GROUP {
            return self.votes_on_metadata(node);
        }
        self.metadata()
            .is_some_and(|metadata| may_have_replica(&metadata.image(), node, group))
    }

    fn may_found(&self, node: NodeId) -> bool {
        self.metadata().is_some_and(|metadata| {
            let image = metadata.image();
            let is_registered = image.controller(node).is_some() || image.broker(node).is_some();
            !is_registered && image.voter_ids().contains(&node)
        })
    }
}

fn is_in(image: &MetadataImage, node: NodeId) -> bool {
    image.broker(node).is_some()
        || image.controller(node).is_some()
        || image.voter_ids().contains(&node)
}

/// Whether the metadata gives a node a replica of the partition, or did until a moment ago.
fn may_have_replica(image: &MetadataImage, node: NodeId, group: GroupKey) -> bool {
    let topic = image.topic_by_id(group.topic_id);
    let state = topic.and_then(|topic| topic.partition(group.partition));
    state.is_some_and(|state| {
        state.leader == Some(node)
            || [
                &state.replicas,
                &state.adding_replicas,
                &state.removing_replicas,
                &state.isr,
            ]
            .iter()
            .any(|nodes| nodes.contains(&node))
    })
}

/// [`ClusterService`] on the answering side of the connections between nodes.
#[derive(Debug)]
pub struct Answering(pub Arc<ClusterService>);

impl PeerService for Answering {
    fn serve(&self, from: &Caller, request: PeerRequest) -> BoxFuture<'static, PeerReply> {
        let (service, from) = (Arc::clone(&self.0), from.clone());
        async move { service.answer(&from, request).await }.boxed()
    }

    fn admit(&self, node: &PeerIdentity) -> Result<(), String> {
        let Some(metadata) = self.0.metadata() else {
            return Ok(());
        };
        // One that has never been in the cluster is told by the answer to its first question.
        if node.cluster_id.is_none() {
            return Ok(());
        }
        let image = metadata.image();
        let directory = directory_uuid(&node.directory_id);
        check_directory(&image, node.node_id, directory).map_err(|error| error.to_string())?;
        let known = image.broker(node.node_id);
        let Some(known) = known.filter(|known| !known.log_dirs.is_empty()) else {
            return Ok(());
        };
        if known.log_dirs.contains(&directory) {
            return Ok(());
        }
        Err(format!(
            "node {} is registered with another data directory",
            node.node_id
        ))
    }

    fn knows(&self, node: NodeId) -> bool {
        self.0.knows(node)
    }

    fn may_lead(&self, node: NodeId, group: GroupKey) -> bool {
        self.0.may_lead(node, group)
    }

    fn may_found(&self, node: NodeId) -> bool {
        self.0.may_found(node)
    }
}

#[cfg(test)]
mod tests {
    use odradek_protocol::ids::PartitionIndex;

    use super::*;
    use crate::metadata::records::{MetadataRecord, PartitionChangeRecord};
    use crate::metadata::test_support::{apply, image_with_brokers, nodes, topic, topic_id};

    #[test]
    fn who_has_a_replica_by_the_metadata_may_lead_and_no_other_broker() {
        let mut image = image_with_brokers(&[1, 2, 3, 4]);
        apply(&mut image, &topic("t", 7, &[&[1, 2]]));
        let partition = PartitionIndex::new(0);
        let group = GroupKey::new(topic_id(7), partition);
        let may = |image: &MetadataImage, node| may_have_replica(image, NodeId::new(node), group);
        assert!(may(&image, 1) && may(&image, 2) && !may(&image, 3));
        let moving = PartitionChangeRecord {
            adding_replicas: Some(nodes(&[3])),
            ..PartitionChangeRecord::of(topic_id(7), partition)
        };
        apply(&mut image, &[MetadataRecord::PartitionChange(moving)]);
        assert!(may(&image, 3) && !may(&image, 4));
        assert!(is_in(&image, NodeId::new(4)) && !is_in(&image, NodeId::new(9)));
        let elsewhere = GroupKey::new(topic_id(7), PartitionIndex::new(1));
        assert!(!may_have_replica(&image, NodeId::new(1), elsewhere));
    }
}
