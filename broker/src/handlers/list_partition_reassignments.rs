//! ListPartitionReassignments (KIP-455): what is on its way.

use odradek_protocol::ids::{NodeId, PartitionIndex};
use odradek_protocol::message;
use odradek_protocol::messages::list_partition_reassignments_response::{
    OngoingPartitionReassignment, OngoingTopicReassignment,
};
use odradek_protocol::messages::{
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse, StrBytes,
};

use super::Reply;
use crate::context::RequestContext;
use crate::metadata::image::Topic;

/// Answers ListPartitionReassignments.
pub async fn handle(
    context: RequestContext,
    request: ListPartitionReassignmentsRequest,
) -> Reply<ListPartitionReassignmentsResponse> {
    let image = context.broker.metadata.image();
    let topics: Vec<OngoingTopicReassignment> = match request.topics {
        None => {
            let mut ids: Vec<_> = image.tally().reassigning().map(|(id, _)| id).collect();
            ids.dedup();
            let mut topics: Vec<_> = ids.iter().filter_map(|id| image.topic_by_id(*id)).collect();
            topics.sort_unstable_by_key(|topic| &topic.name);
            let ongoing = topics
                .into_iter()
                .filter_map(|topic| ongoing(topic, |_| true));
            ongoing.collect()
        }
        Some(asked) => asked
            .iter()
            .filter_map(|asked| {
                let topic = image.topic(&asked.name)?;
                ongoing(topic, |index| {
                    asked.partition_indexes.contains(&index.get())
                })
            })
            .collect(),
    };
    Reply::Now(message!(ListPartitionReassignmentsResponse {
        error_message: None,
        topics,
    }))
}

fn ongoing(
    topic: &Topic,
    is_asked: impl Fn(PartitionIndex) -> bool,
) -> Option<OngoingTopicReassignment> {
    let ids = |nodes: &[NodeId]| nodes.iter().copied().map(NodeId::get).collect();
    let partitions: Vec<_> = topic
        .indexed()
        .filter(|(index, state)| state.is_reassigning() && is_asked(*index))
        .map(|(index, state)| {
            message!(OngoingPartitionReassignment {
                partition_index: index.get(),
                replicas: ids(&state.replicas),
                adding_replicas: ids(&state.adding_replicas),
                removing_replicas: ids(&state.removing_replicas),
            })
        })
        .collect();
    (!partitions.is_empty()).then(|| {
        message!(OngoingTopicReassignment {
            name: StrBytes::from(&*topic.name),
            partitions,
        })
    })
}
