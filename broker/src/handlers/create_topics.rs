//! CreateTopics: answered once the topics are committed and their partitions are led, or the sender's
//! time is up.

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{NodeId, PartitionIndex};
use odradek_protocol::message;
use odradek_protocol::messages::create_topics_request::CreatableTopic;
use odradek_protocol::messages::create_topics_response::{
    CreatableTopicConfigs, CreatableTopicResult,
};
use odradek_protocol::messages::{CreateTopicsRequest, CreateTopicsResponse, StrBytes};

use super::Reply;
use super::admin_answers::{Verdict, deadline};
use crate::context::{BrokerContext, RequestContext};
use crate::metadata::controller::create_topics::{CreatedTopic, NewTopic};
use crate::metadata::led::{Patience, wait_until_led};
use crate::metadata::topics;

/// First version whose answer describes the topic that was made (KIP-525).
const FIRST_DESCRIBING_VERSION: i16 = 5;
/// First version whose answer has the topic's id.
const FIRST_TOPIC_ID_VERSION: i16 = 7;

/// Answers CreateTopics.
pub async fn handle(
    context: RequestContext,
    request: CreateTopicsRequest,
) -> Reply<CreateTopicsResponse> {
    let broker = &context.broker;
    let names: Vec<StrBytes> = request
        .topics
        .iter()
        .map(|topic| topic.name.clone())
        .collect();
    let wanted = request.topics.into_iter().map(new_topic).collect();
    let created = topics::create(broker, wanted, request.validate_only).await;
    let done = match created {
        Ok(done) => done,
        Err(error) => {
            let verdict = Verdict::from(&error);
            let topics = names
                .into_iter()
                .map(|name| failed(name, verdict.clone()))
                .collect();
            return Reply::Now(message!(CreateTopicsResponse { topics }));
        }
    };
    let patience = deadline(&context, request.timeout_ms)
        .filter(|_| !request.validate_only)
        .map(|deadline| Patience::until(broker, deadline));
    let mut topics = Vec::with_capacity(done.value.len());
    for (name, outcome) in done.value {
        let name = StrBytes::from(name);
        topics.push(match outcome {
            Ok(created) => {
                let (id, all) = (created.topic_id, 0..usize::MAX);
                let led = wait_until_led(broker, done.offset, id, all, patience).await;
                let code = led.err().unwrap_or(ErrorCode::None);
                answer(broker, name, &created, code, context.api_version)
            }
            Err(refusal) => failed(name, Verdict::from(&refusal)),
        });
    }
    Reply::Now(message!(CreateTopicsResponse { topics }))
}

fn new_topic(topic: CreatableTopic) -> NewTopic {
    NewTopic {
        name: topic.name.into_string(),
        partitions: topic.num_partitions,
        replication_factor: topic.replication_factor,
        assignments: topic
            .assignments
            .into_iter()
            .map(|assignment| {
                let replicas = assignment.broker_ids.into_iter().map(NodeId::new);
                (
                    PartitionIndex::new(assignment.partition_index),
                    replicas.collect(),
                )
            })
            .collect(),
        configs: topic
            .configs
            .into_iter()
            .map(|config| {
                let value = config.value.map(StrBytes::into_string);
                (config.name.into_string(), value)
            })
            .collect(),
    }
}

fn answer(
    broker: &BrokerContext,
    name: StrBytes,
    created: &CreatedTopic,
    led: ErrorCode,
    version: i16,
) -> CreatableTopicResult {
    let verdict = Verdict::of(led);
    let mut result = message!(CreatableTopicResult {
        name,
        error_code: verdict.code,
        error_message: verdict.message,
    });
    if version >= FIRST_TOPIC_ID_VERSION {
        result.topic_id = created.topic_id.into();
    }
    if version >= FIRST_DESCRIBING_VERSION {
        result.num_partitions = i32::try_from(created.partitions).unwrap_or(i32::MAX);
        result.replication_factor = i16::try_from(created.replication_factor).unwrap_or(i16::MAX);
        result.configs = Some(configs(broker, created));
    }
    result
}

fn configs(broker: &BrokerContext, created: &CreatedTopic) -> Vec<CreatableTopicConfigs> {
    broker
        .config
        .describe_topic(&created.configs)
        .into_iter()
        .map(|entry| {
            message!(CreatableTopicConfigs {
                name: StrBytes::from(entry.name),
                value: entry.value.map(StrBytes::from),
                read_only: entry.read_only,
                config_source: entry.source.code(),
                is_sensitive: entry.sensitive,
            })
        })
        .collect()
}

fn failed(name: StrBytes, verdict: Verdict) -> CreatableTopicResult {
    message!(CreatableTopicResult {
        name,
        error_code: verdict.code,
        error_message: verdict.message,
        num_partitions: -1,
        replication_factor: -1,
        configs: Some(Vec::new()),
    })
}
