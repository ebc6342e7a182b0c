//! `__consumer_offsets`: made when the first group asks for its coordinator.

use std::sync::Arc;

use odradek_protocol::ErrorCode;

use super::service::OFFSETS_TOPIC;
use crate::context::BrokerContext;
use crate::coordinator::hosting::Coordinators as _;
use crate::coordinator::topic;
use crate::metadata::controller::create_topics::NewTopic;
use crate::metadata::image::Topic;

/// The topic, which is made if it does not exist; `group` is the one that is asked for.
///
/// # Errors
/// It does not exist and cannot be made now.
pub async fn ensure(broker: &BrokerContext, group: &str) -> Result<Arc<Topic>, ErrorCode> {
    let asked = || new_topic(broker);
    let until_active = |partition| broker.groups.host().wait_until_active(partition);
    topic::ensure(broker, OFFSETS_TOPIC, asked, group, until_active).await
}

fn new_topic(broker: &BrokerContext) -> NewTopic {
    let loaded = broker.config.load();
    let settings = &loaded.groups;
    let config = |key: &str, value: String| (key.to_owned(), Some(value));
    NewTopic {
        name: OFFSETS_TOPIC.to_owned(),
        partitions: settings.offsets_topic_partitions,
        // A node on its own has one replica, whatever is meant for clusters.
        replication_factor: match broker.controllers {
            Some(_) => settings.offsets_topic_replication_factor,
            None => 1,
        },
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
