//! `__transaction_state`: made when the first producer asks for its coordinator.

use std::sync::Arc;

use odradek_protocol::ErrorCode;

use super::service::STATE_TOPIC;
use crate::context::BrokerContext;
use crate::coordinator::hosting::Coordinators as _;
use crate::coordinator::topic;
use crate::metadata::controller::create_topics::NewTopic;
use crate::metadata::image::Topic;

/// The topic, which is made if it does not exist; `id` is the transactional id that is asked for.
///
/// # Errors
/// It does not exist and cannot be made now.
pub async fn ensure(broker: &BrokerContext, id: &str) -> Result<Arc<Topic>, ErrorCode> {
    let asked = || new_topic(broker);
    let until_active = |partition| broker.transactions.host().wait_until_active(partition);
    topic::ensure(broker, STATE_TOPIC, asked, id, until_active).await
}

fn new_topic(broker: &BrokerContext) -> NewTopic {
    let loaded = broker.config.load();
    let settings = &loaded.transactions;
    let config = |key: &str, value: String| (key.to_owned(), Some(value));
    // A node on its own has one replica, whatever is meant for clusters.
    let (replication_factor, min_isr) = match broker.controllers {
        Some(_) => (settings.topic_replication_factor, settings.topic_min_isr),
        None => (1, 1),
    };
    NewTopic {
        name: STATE_TOPIC.to_owned(),
        partitions: settings.topic_partitions,
        replication_factor,
        assignments: Vec::new(),
        configs: vec![
            config("cleanup.policy", "compact".to_owned()),
            config("compression.type", "uncompressed".to_owned()),
            config("min.insync.replicas", min_isr.to_string()),
            config("segment.bytes", settings.topic_segment_bytes.to_string()),
            config("unclean.leader.election.enable", "false".to_owned()),
        ],
    }
}
