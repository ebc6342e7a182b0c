//! The topics that coordinators keep their state in: made when the first client asks for one.

use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::ErrorCode;
use odradek_protocol::ids::PartitionIndex;

use super::partitioner::partition_of;
use crate::context::BrokerContext;
use crate::metadata::controller::create_topics::NewTopic;
use crate::metadata::image::Topic;
use crate::metadata::topics;

/// How long the first question waits for the coordinator that it brought into being. A client
/// that is answered before that only asks again.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// The topic that `asked` describes, which is made if it does not exist. `until_active` waits for
/// the coordinator on the partition that `id` belongs to.
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
    let started = until_active(partition_of(id, count));
    // If it takes longer the client hears of it with its next request.
    let _ = tokio::time::timeout(START_TIMEOUT, started).await;
    Ok(topic)
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
