//! Making topics with this broker's settings.

use odradek_protocol::api::ApiKey;
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::TopicId;
use odradek_protocol::message;
use odradek_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use odradek_protocol::messages::{CreateTopicsRequest, CreateTopicsResponse, StrBytes};

use super::config_rules::TableRules;
use super::controller::create_topics::{
    CreationRules, NewTopic, TopicOutcome, create_topics as decide,
};
use super::image::MetadataImage;
use super::records::MetadataRecord;
use super::refusal::Refusal;
use super::service::{Done, MetadataError};
use crate::context::BrokerContext;
use crate::partitions::log_dir::Room;

/// The rules for changes of configuration as this broker's settings stand.
pub fn rules(broker: &BrokerContext) -> TableRules {
    let defaults = broker.config.load().topic_defaults.clone();
    let image = broker.metadata.image();
    let own = broker.identity.node_id;
    let others = image.brokers().map(|(id, _)| id).filter(|id| *id != own);
    TableRules::new(own, others.collect(), broker.config.layers(), defaults)
}

/// Makes topics, or with `validate_only` says what would come of it.
pub async fn create(
    broker: &BrokerContext,
    topics: Vec<NewTopic>,
    validate_only: bool,
) -> Result<Done<Vec<TopicOutcome>>, MetadataError> {
    let config = broker.config.load();
    let rules = rules(broker);
    let silent = broker.partitions.silent_nodes();
    broker
        .metadata
        .run_where(Room::Enough, move |image: &MetadataImage| {
            let rules = CreationRules {
                default_partitions: config.num_partitions,
                default_replication_factor: config.default_replication_factor,
                silent: silent.clone(),
                check_configs: &|settings| rules.check_topic(settings),
            };
            let (records, outcomes) = decide(image, &topics, &rules, random_topic_id);
            (unless(validate_only, records), outcomes)
        })
        .await
}

/// Makes topics through whoever leads the metadata: for topics that the broker itself wants. Returns
/// each with a code once this node knows of them.
pub async fn create_anywhere(
    broker: &BrokerContext,
    topics: Vec<NewTopic>,
) -> Result<Vec<(String, ErrorCode)>, MetadataError> {
    let elsewhere = broker.controllers.as_ref();
    let Some(controllers) = elsewhere.filter(|_| !broker.metadata.is_leading()) else {
        let done = create(broker, topics, false).await?;
        let code = |outcome: &Result<_, Refusal>| match outcome {
            Ok(_) => ErrorCode::None,
            Err(refusal) => refusal.code(),
        };
        let coded = done.value.iter().map(|(name, it)| (name.clone(), code(it)));
        return Ok(coded.collect());
    };
    let request = message!(CreateTopicsRequest {
        topics: topics.into_iter().map(creatable).collect(),
        timeout_ms: 0,
    });
    let answer: CreateTopicsResponse = controllers
        .forward_message(ApiKey::CreateTopics, CREATE_TOPICS_VERSION, &request)
        .await?;
    let coded = answer.topics.into_iter().map(|topic| {
        let code = ErrorCode::from_code(topic.error_code).unwrap_or(ErrorCode::UnknownServerError);
        (topic.name.into_string(), code)
    });
    Ok(coded.collect())
}

/// The version in which topics are asked for on another node.
const CREATE_TOPICS_VERSION: i16 = 7;

fn creatable(topic: NewTopic) -> CreatableTopic {
    let configs = topic.configs.into_iter().map(|(name, value)| {
        message!(CreatableTopicConfig {
            name: StrBytes::from(name),
            value: value.map(StrBytes::from),
        })
    });
    message!(CreatableTopic {
        name: StrBytes::from(topic.name),
        num_partitions: topic.partitions,
        replication_factor: topic.replication_factor,
        configs: configs.collect(),
    })
}

/// The records, or none of them if the request only asks what would be.
pub fn unless(validate_only: bool, records: Vec<MetadataRecord>) -> Vec<MetadataRecord> {
    if validate_only { Vec::new() } else { records }
}

/// An id that no topic has had, by its 122 random bits. Kafka keeps the first ids for itself, and
/// none may look like an option when it is printed for a command line.
pub fn random_topic_id() -> TopicId {
    loop {
        let mut bytes: [u8; 16] = rand::random();
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        let id = TopicId::from_bytes(bytes);
        if !id.to_string().starts_with('-') {
            return id;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_ids_are_random_uuids_that_no_command_line_takes_for_an_option() {
        for _ in 0..1_000 {
            let id = random_topic_id();
            assert_eq!(id.to_bytes()[6] >> 4, 4);
            assert!(!id.to_string().starts_with('-'));
        }
        assert_ne!(random_topic_id(), random_topic_id());
    }
}
