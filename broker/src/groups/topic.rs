//! `__consumer_offsets`: made when the first group asks for its coordinator.

use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::ErrorCode;

use super::partitioner::partition_of;
use super::service::OFFSETS_TOPIC;
use crate::config::GroupsConfig;
use crate::context::BrokerContext;
use crate::metadata::controller::create_topics::NewTopic;
use crate::metadata::image::Topic;
use crate::metadata::topics;

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
    let mut asked = new_topic(&broker.config.load().groups);
    if broker.controllers.is_none() {
        // A node on its own has one replica, whatever is meant for clusters.
        asked.replication_factor = 1;
    }
    let created = topics::create_anywhere(broker, vec![asked]).await;
    let outcomes = created.map_err(|error| {
        tracing::warn!(%error, "{OFFSETS_TOPIC} cannot be made");
        ErrorCode::CoordinatorNotAvailable
    })?;
    // Refused if somebody else was quicker, which is as good.
    for (name, code) in outcomes {
        if code != ErrorCode::None {
            tracing::info!(name, ?code, "not made");
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
