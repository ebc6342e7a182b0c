//! The topics that coordinators keep their state in: made when the first client asks for one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use odradek_protocol::ErrorCode;
use odradek_protocol::ids::PartitionIndex;
use odradek_raft::Leadership;

use super::partitioner::partition_of;
use crate::context::BrokerContext;
use crate::metadata::controller::create_topics::NewTopic;
use crate::metadata::image::Topic;
use crate::metadata::led::{Patience, wait_until_led};
use crate::metadata::topics;

/// How long the first question waits for the coordinator that it brought into being. A client
/// that is answered before that only asks again.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// The topic that `asked` describes, which is made if it does not exist. Who makes it waits until the
/// partition that `id` belongs to is led and, if this broker leads it, by `until_active` for its
/// coordinator.
///
/// # Errors
/// It does not exist and cannot be made now.
pub async fn ensure<F: Future<Output = ()>>(
    broker: &BrokerContext,
    name: &str,
    asked: impl FnOnce() -> NewTopic,
    id: &str,
    until_active: impl FnOnce(PartitionIndex) -> F,
) -> Result<Arc<Topic>, ErrorCode> {
    if let Some(topic) = broker.metadata.image().topic(name) {
        return Ok(Arc::clone(topic));
    }
    let topic = create(broker, asked()).await?;
    let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
    let partition = partition_of(id, count);
    let started = async {
        wait_until_one_is_led(broker, &topic, partition).await;
        // Whether a coordinator elsewhere has come up is for its own broker to say.
        let here = broker.partitions.get(topic.id, partition);
        if here.is_some_and(|here| matches!(here.leadership(), Leadership::Leader { .. })) {
            until_active(partition).await;
        }
    };
    // If it takes longer the client hears of it with its next request.
    let _ = tokio::time::timeout(START_TIMEOUT, started).await;
    Ok(topic)
}

async fn wait_until_one_is_led(broker: &BrokerContext, topic: &Topic, index: PartitionIndex) {
    let at = usize::try_from(index.get()).unwrap_or_default();
    let known = broker.metadata.image().next_offset();
    let patience = Some(Patience::until(broker, Instant::now() + START_TIMEOUT));
    // Late or not to be had: the client asks again.
    let _ = wait_until_led(broker, known, topic.id, at..at + 1, patience).await;
}

async fn create(broker: &BrokerContext, asked: NewTopic) -> Result<Arc<Topic>, ErrorCode> {
    let name = asked.name.clone();
    let created = topics::create_anywhere(broker, vec![asked]).await;
    let outcomes = created.map_err(|error| {
        tracing::warn!(%error, name, "a coordinator's topic cannot be made");
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
        .topic(&name)
        .map(Arc::clone)
        .ok_or(ErrorCode::CoordinatorNotAvailable)
}
