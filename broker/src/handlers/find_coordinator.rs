//! FindCoordinator (10): which broker coordinates a group or a transactional id.
//!
//! The first question makes `__consumer_offsets` or `__transaction_state`. From version 4 on several
//! keys are asked at once (KIP-699). There are no share groups yet.

use odradek_protocol::ErrorCode;
use odradek_protocol::messages::find_coordinator_response::Coordinator;
use odradek_protocol::messages::{FindCoordinatorRequest, FindCoordinatorResponse, StrBytes};

use super::leader_hint::LeaderHint;
use super::{Reply, topic_view};
use crate::context::RequestContext;
use crate::coordinator::partitioner::partition_of;
use crate::fetch_sessions::TopicRef;
use crate::metadata::image::Topic;
use crate::{groups, txn};

/// First version that asks for several keys.
const FIRST_WITH_KEYS: i16 = 4;
const KEY_TYPE_GROUP: i8 = 0;
const KEY_TYPE_TRANSACTION: i8 = 1;

/// A broker as a client reaches it.
struct Node {
    id: i32,
    host: String,
    port: i32,
}

/// Answers FindCoordinator.
pub async fn handle(
    context: RequestContext,
    request: FindCoordinatorRequest,
) -> Reply<FindCoordinatorResponse> {
    let mut response = FindCoordinatorResponse::default();
    if context.api_version >= FIRST_WITH_KEYS {
        for key in request.coordinator_keys {
            let found = find(&context, request.key_type, &key).await;
            let mut coordinator = Coordinator::default();
            coordinator.key = key;
            coordinator.error_code = found.as_ref().err().map_or(0, |error| error.code());
            // Kafka says something to what it does not understand only.
            coordinator.error_message = Some(StrBytes::from(match &found {
                Err(ErrorCode::InvalidRequest) => ErrorCode::InvalidRequest.message(),
                Ok(_) | Err(_) => "",
            }));
            let node = found.unwrap_or_else(|_| nobody());
            coordinator.node_id = node.id;
            coordinator.host = StrBytes::from(node.host);
            coordinator.port = node.port;
            response.coordinators.push(coordinator);
        }
        return Reply::Now(response);
    }
    let found = find(&context, request.key_type, &request.key).await;
    let error = found.as_ref().err().copied().unwrap_or(ErrorCode::None);
    response.error_code = error.code();
    // Kafka names success here too.
    response.error_message = Some(StrBytes::from(match error {
        ErrorCode::None => error.name(),
        other => other.message(),
    }));
    let node = found.unwrap_or_else(|_| nobody());
    response.node_id = node.id;
    response.host = StrBytes::from(node.host);
    response.port = node.port;
    Reply::Now(response)
}

fn nobody() -> Node {
    Node {
        id: -1,
        host: String::new(),
        port: -1,
    }
}

/// The leader of the partition of `topic` that `id` belongs to.
fn leader_of(context: &RequestContext, topic: &Topic, id: &str) -> Result<Node, ErrorCode> {
    let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
    let index = partition_of(id, count);
    let (partitions, reference) = (&context.broker.partitions, TopicRef::Id(topic.id));
    let leader = match partitions.state(&reference, index) {
        Some(_) => LeaderHint::of(partitions, &reference, index).map(|hint| hint.leader),
        // The topic has only just been made.
        None => topic.partition(index).and_then(|state| state.leader),
    };
    let leader = leader.ok_or(ErrorCode::CoordinatorNotAvailable)?;
    let image = context.broker.metadata.image();
    let is_own = leader == context.broker.identity.node_id;
    let broker = topic_view::broker(context, &image, leader)
        .filter(|broker| is_own || !broker.is_fenced)
        .ok_or(ErrorCode::CoordinatorNotAvailable)?;
    Ok(Node {
        id: broker.id,
        host: broker.host.as_str().to_owned(),
        port: broker.port,
    })
}

async fn find(context: &RequestContext, key_type: i8, key: &str) -> Result<Node, ErrorCode> {
    match key_type {
        KEY_TYPE_GROUP => {
            let topic = groups::topic::ensure(&context.broker, key).await?;
            leader_of(context, &topic, key)
        }
        KEY_TYPE_TRANSACTION => {
            let topic = txn::topic::ensure(&context.broker, key).await?;
            leader_of(context, &topic, key)
        }
        _ => Err(ErrorCode::InvalidRequest),
    }
}
