//! CreatePartitions (KIP-195): answered once the new partitions are led, or the sender's time is
//! up.

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::NodeId;
use odradek_protocol::message;
use odradek_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use odradek_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use odradek_protocol::messages::{CreatePartitionsRequest, CreatePartitionsResponse, StrBytes};

use super::Reply;
use super::admin_answers::{Verdict, deadline};
use crate::context::RequestContext;
use crate::metadata::controller::create_partitions::{MorePartitions, create_partitions};
use crate::metadata::led::{Patience, wait_until_led};
use crate::metadata::refusal::Refusal;
use crate::metadata::topics;
use crate::partitions::log_dir::Room;

/// Answers CreatePartitions.
pub async fn handle(
    context: RequestContext,
    request: CreatePartitionsRequest,
) -> Reply<CreatePartitionsResponse> {
    let broker = &context.broker;
    let validate_only = request.validate_only;
    let deadline = deadline(&context, request.timeout_ms).filter(|_| !validate_only);
    let names: Vec<StrBytes> = request
        .topics
        .iter()
        .map(|topic| topic.name.clone())
        .collect();
    let wanted: Vec<_> = request.topics.into_iter().map(more).collect();
    let silent = broker.partitions.silent_nodes();
    let grown = broker.metadata.run_where(Room::Enough, move |image| {
        let (records, outcomes) = create_partitions(image, &wanted, &silent);
        (topics::unless(validate_only, records), outcomes)
    });
    let done = match grown.await {
        Ok(done) => done,
        Err(error) => {
            let verdict = Verdict::from(&error);
            let results = names
                .into_iter()
                .map(|name| result(name, verdict.clone()))
                .collect();
            return Reply::Now(message!(CreatePartitionsResponse { results }));
        }
    };
    let patience = deadline.map(|deadline| Patience::until(broker, deadline));
    let mut results = Vec::with_capacity(done.value.len());
    for (name, outcome) in done.value {
        let verdict = match outcome {
            Ok(grown) => {
                let (id, new) = (grown.topic_id, grown.partitions_before..usize::MAX);
                let led = wait_until_led(broker, done.offset, id, new, patience).await;
                led.map_or_else(Verdict::of, |()| Verdict::OK)
            }
            // Kafka says this one without a sentence.
            Err(Refusal::UnknownTopic) => Verdict {
                code: ErrorCode::UnknownTopicOrPartition.code(),
                message: None,
            },
            Err(refusal) => Verdict::from(&refusal),
        };
        results.push(result(StrBytes::from(name), verdict));
    }
    Reply::Now(message!(CreatePartitionsResponse { results }))
}

fn more(topic: CreatePartitionsTopic) -> MorePartitions {
    let nodes = |ids: Vec<i32>| ids.into_iter().map(NodeId::new).collect();
    MorePartitions {
        name: topic.name.into_string(),
        count: topic.count,
        assignments: topic.assignments.map(|assignments| {
            let replicas = assignments.into_iter().map(|it| nodes(it.broker_ids));
            replicas.collect()
        }),
    }
}

fn result(name: StrBytes, verdict: Verdict) -> CreatePartitionsTopicResult {
    message!(CreatePartitionsTopicResult {
        name,
        error_code: verdict.code,
        error_message: verdict.message,
    })
}
