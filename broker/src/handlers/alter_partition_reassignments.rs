//! AlterPartitionReassignments (KIP-455): partitions go to other brokers, or back.

use odradek_protocol::ids::{NodeId, PartitionIndex};
use odradek_protocol::message;
use odradek_protocol::messages::alter_partition_reassignments_response::{
    ReassignablePartitionResponse, ReassignableTopicResponse,
};
use odradek_protocol::messages::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse, StrBytes,
};

use super::Reply;
use super::admin_answers::Verdict;
use crate::context::RequestContext;
use crate::metadata::controller::reassignments::{Reassignment, alter_reassignments};
use crate::metadata::refusal::Refusal;
use crate::partitions::log_dir::Room;

/// Answers AlterPartitionReassignments.
pub async fn handle(
    context: RequestContext,
    request: AlterPartitionReassignmentsRequest,
) -> Reply<AlterPartitionReassignmentsResponse> {
    if request.topics.is_empty() {
        // Nothing is asked, and Kafka's answer says so with an empty sentence.
        return Reply::Now(message!(AlterPartitionReassignmentsResponse {
            allow_replication_factor_change: true,
            error_message: Some(StrBytes::from("")),
        }));
    }
    let may_resize = request.allow_replication_factor_change;
    let wanted: Vec<Reassignment> = request
        .topics
        .iter()
        .flat_map(|topic| {
            topic.partitions.iter().map(|partition| Reassignment {
                topic: topic.name.as_str().to_owned(),
                partition: PartitionIndex::new(partition.partition_index),
                replicas: partition
                    .replicas
                    .as_ref()
                    .map(|ids| ids.iter().copied().map(NodeId::new).collect()),
            })
        })
        .collect();
    let altered = context
        .broker
        .metadata
        .run_where(Room::Scarce, move |image| {
            alter_reassignments(image, &wanted, may_resize)
        });
    let done = match altered.await {
        Ok(done) => done,
        Err(error) => {
            let verdict = Verdict::from(&error);
            return Reply::Now(message!(AlterPartitionReassignmentsResponse {
                allow_replication_factor_change: may_resize,
                error_code: verdict.code,
                error_message: verdict.message,
            }));
        }
    };
    // One outcome for each partition, in the order in which they were asked for.
    let mut outcomes = done.value.iter();
    let responses = request
        .topics
        .into_iter()
        .map(|topic| {
            let partitions = topic.partitions.iter().zip(outcomes.by_ref());
            let partitions = partitions
                .map(|(partition, outcome)| {
                    let mut verdict = Verdict::of_result(outcome);
                    if *outcome == Err(Refusal::NoReassignment) {
                        // Kafka says this one without a sentence.
                        verdict.message = None;
                    }
                    message!(ReassignablePartitionResponse {
                        partition_index: partition.partition_index,
                        error_code: verdict.code,
                        error_message: verdict.message,
                    })
                })
                .collect();
            message!(ReassignableTopicResponse {
                name: topic.name,
                partitions,
            })
        })
        .collect();
    Reply::Now(message!(AlterPartitionReassignmentsResponse {
        allow_replication_factor_change: may_resize,
        error_message: None,
        responses,
    }))
}
