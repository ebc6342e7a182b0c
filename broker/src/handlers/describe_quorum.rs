//! DescribeQuorum (KIP-595, KIP-836, KIP-853): who votes on the metadata, and how far each replica is.
//!
//! A voter is told of once its vote counts whoever else is lost: while voters are being changed, those of
//! before are told, and who is to join is an observer.

use std::collections::BTreeSet;
use std::time::Instant;

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{NodeId, PartitionIndex};
use odradek_protocol::message;
use odradek_protocol::messages::describe_quorum_request::TopicData as AskedTopic;
use odradek_protocol::messages::describe_quorum_response::{
    Listener, Node, PartitionData, ReplicaState, TopicData,
};
use odradek_protocol::messages::{DescribeQuorumRequest, DescribeQuorumResponse, StrBytes, Uuid};

use super::Reply;
use super::admin_answers::Verdict;
use crate::context::{BrokerContext, RequestContext};
use crate::metadata::image::MetadataImage;
use crate::metadata::records::VoterRecord;
use crate::metadata::topic_name::CLUSTER_METADATA;

/// First version that tells the voters' addresses and directories.
const FIRST_NODES_VERSION: i16 = 2;

/// Answers DescribeQuorum.
pub async fn handle(
    context: RequestContext,
    request: DescribeQuorumRequest,
) -> Reply<DescribeQuorumResponse> {
    let broker = &context.broker;
    if !broker.metadata.is_leading() {
        let verdict = Verdict::of(ErrorCode::NotLeaderOrFollower);
        return Reply::Now(message!(DescribeQuorumResponse {
            error_code: verdict.code,
            error_message: verdict.message,
        }));
    }
    let version = context.api_version;
    if !is_of_the_metadata(&request) {
        let topics = request.topics.iter();
        return Reply::Now(message!(DescribeQuorumResponse {
            topics: topics.map(|topic| refused(topic, version)).collect(),
        }));
    }
    let topics = request.topics.iter().map(|topic| {
        message!(TopicData {
            topic_name: topic.topic_name.clone(),
            partitions: vec![quorum(broker, version)],
        })
    });
    Reply::Now(message!(DescribeQuorumResponse {
        topics: topics.collect(),
        nodes: nodes(broker, version),
    }))
}

/// Whether the request names the one partition that there is, and nothing else. Like Kafka, nothing is told of it in
/// answer to any other.
fn is_of_the_metadata(request: &DescribeQuorumRequest) -> bool {
    let [topic] = &request.topics[..] else {
        return false;
    };
    let [partition] = &topic.partitions[..] else {
        return false;
    };
    topic.topic_name.as_str() == CLUSTER_METADATA && partition.partition_index == 0
}

fn refused(asked: &AskedTopic, version: i16) -> TopicData {
    let partitions = asked
        .partitions
        .iter()
        .map(|partition| {
            let index = PartitionIndex::new(partition.partition_index);
            let verdict = Verdict::of(ErrorCode::UnknownTopicOrPartition);
            message!(PartitionData {
                partition_index: index.get(),
                error_code: verdict.code,
                error_message: verdict.message.filter(|_| version >= FIRST_NODES_VERSION),
            })
        })
        .collect();
    message!(TopicData {
        topic_name: asked.topic_name.clone(),
        partitions,
    })
}

fn quorum(broker: &BrokerContext, version: i16) -> PartitionData {
    let group = broker.metadata.group();
    let own = broker.identity.node_id;
    let offsets = group.offsets();
    let members = group.membership();
    let voters = group.settled_voters();
    let all: BTreeSet<NodeId> = members.voters.union(&members.learners).copied().collect();
    let progress = match group.replication() {
        Ok(progress) => progress,
        Err(error) => {
            tracing::warn!(%error, "the progress of the metadata's replicas is not known");
            Vec::new()
        }
    };
    let now = broker.clock.wall().get();
    let image = broker.metadata.image();
    let state = |node: NodeId| {
        let known = progress.iter().find(|replica| replica.node == node);
        let (end, caught_up) = if node == own {
            (offsets.log_end.offset().get(), now)
        } else {
            let ago = known.map(|replica| {
                Instant::now().saturating_duration_since(replica.last_caught_up.into_std())
            });
            let ago_ms = ago.and_then(|ago| i64::try_from(ago.as_millis()).ok());
            (
                known.map_or(-1, |replica| replica.matched.get()),
                ago_ms.map_or(-1, |ago_ms| now.saturating_sub(ago_ms)),
            )
        };
        let directory = directory(&image, node);
        message!(ReplicaState {
            replica_id: node.get(),
            replica_directory_id: if version >= FIRST_NODES_VERSION {
                directory
            } else {
                Uuid::ZERO
            },
            log_end_offset: end,
            last_fetch_timestamp: caught_up,
            last_caught_up_timestamp: caught_up,
        })
    };
    message!(PartitionData {
        leader_id: own.get(),
        leader_epoch: group.leadership().epoch().map_or(-1, |epoch| epoch.get()),
        high_watermark: offsets.high_watermark.offset().get(),
        current_voters: voters.iter().copied().map(state).collect(),
        observers: all.difference(&voters).copied().map(state).collect(),
    })
}

/// Where the voters are reached.
fn nodes(broker: &BrokerContext, version: i16) -> Vec<Node> {
    if version < FIRST_NODES_VERSION {
        return Vec::new();
    }
    let image = broker.metadata.image();
    if image.has_voter_records() {
        return image.voters().iter().map(named_voter).collect();
    }
    let config = broker.config.load();
    let name = config
        .cluster
        .controller_listeners
        .first()
        .map_or_else(|| CONTROLLER.to_owned(), |listener| listener.name.clone());
    config
        .cluster
        .voters
        .iter()
        .map(|voter| {
            let listener = message!(Listener {
                name: StrBytes::from(name.clone()),
                host: StrBytes::from(voter.host.clone()),
                port: voter.port,
            });
            message!(Node {
                node_id: voter.id.get(),
                listeners: vec![listener],
            })
        })
        .collect()
}

fn named_voter(voter: &VoterRecord) -> Node {
    let listeners = voter.endpoints.iter().map(|endpoint| {
        message!(Listener {
            name: StrBytes::from(endpoint.name.as_str()),
            host: StrBytes::from(endpoint.host.as_str()),
            port: endpoint.port,
        })
    });
    message!(Node {
        node_id: voter.id.get(),
        listeners: listeners.collect(),
    })
}

/// The directory of a replica. Voters that the configurations name are known by their ids alone.
fn directory(image: &MetadataImage, node: NodeId) -> Uuid {
    if let Some(voter) = image.voters().iter().find(|voter| voter.id == node) {
        return voter.directory;
    }
    if image.voter_ids().contains(&node) {
        return Uuid::ZERO;
    }
    match image.controller(node) {
        Some(controller) => controller.directory,
        None => image.only_directory(node),
    }
}

/// Name of a controller's listener where this node has none of its own.
const CONTROLLER: &str = "CONTROLLER";
