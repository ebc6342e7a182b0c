//! `__consumer_offsets`: made when the first group asks for its coordinator.

use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::ErrorCode;
use odradek_protocol::ids::TopicId;

use super::partitioner::partition_of;
use super::service::OFFSETS_TOPIC;
use crate::config::GroupsConfig;
use crate::context::BrokerContext;
use crate::metadata::controller::create_topics::{CreationRules, NewTopic, create_topics};
use crate::metadata::image::Topic;

/// How long the first question waits for the coordinator that it brought into being. A client
/// that is answered before that only asks again.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// The topic, which is made if it does not exist; `group` is the one that is asked for.
///
/// # Errors
/// It does not exist and cannot be made now.
pub async fn ensure(broker: &BrokerContext, group: &str) -> Result<Arc<Topic>, ErrorCode> {
    if let Some(topic) = broker.metadata.image().topic(OFFSETS_TOPIC) {
        return Ok(Arc::clone(topic));
    }
    let topic = create(broker).await?;
    let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
    let started = broker.groups.wait_until_active(partition_of(group, count));
    // If it takes longer the client hears of it where it joins.
    let _ = tokio::time::timeout(START_TIMEOUT, started).await;
    Ok(topic)
}

async fn create(broker: &BrokerContext) -> Result<Arc<Topic>, ErrorCode> {
    let settings = broker.config.load();
    let rules_of_topics = (settings.num_partitions, settings.default_replication_factor);
    let asked = new_topic(&settings.groups);
    let created = broker.metadata.run(move |image| {
        let mut asked = asked;
        let nodes = i16::try_from(image.brokers().len()).unwrap_or(i16::MAX);
        asked.replication_factor = asked.replication_factor.min(nodes.max(1));
        let rules = CreationRules {
            default_partitions: rules_of_topics.0,
            default_replication_factor: rules_of_topics.1,
            // They are ours, and sound.
            check_configs: &|configs| Ok(configs.clone()),
        };
        create_topics(image, &[asked], &rules, random_topic_id)
    });
    let outcomes = created.await.map_err(|error| {
        tracing::warn!(%error, "{OFFSETS_TOPIC} cannot be made");
        ErrorCode::CoordinatorNotAvailable
    })?;
    // Refused if somebody else was quicker, which is as good.
    for (name, outcome) in outcomes.value {
        if let Err(refusal) = outcome {
            tracing::info!(name, ?refusal, "not made");
        }
    }
    broker
        .metadata
        .image()
        .topic(OFFSETS_TOPIC)
        .map(Arc::clone)
        .ok_or(ErrorCode::CoordinatorNotAvailable)
}

fn new_topic(settings: &GroupsConfig) -> NewTopic {
    let config = |key: &str, value: String| (key.to_owned(), Some(value));
    NewTopic {
        name: OFFSETS_TOPIC.to_owned(),
        partitions: settings.offsets_topic_partitions,
        replication_factor: settings.offsets_topic_replication_factor,
        assignments: Vec::new(),
        configs: vec![
            config("cleanup.policy", "compact".to_owned()),
            config("compression.type", "producer".to_owned()),
            config(
                "segment.bytes",
                settings.offsets_topic_segment_bytes.to_string(),
            ),
        ],
    }
}

/// Never one of the ids that Kafka keeps for itself, the first of which are 0 and 1.
fn random_topic_id() -> TopicId {
    TopicId::from_bytes(rand::random::<u128>().max(1 << 64).to_be_bytes())
}
