//! The producer ids of this broker: a block at a time from the metadata log, then from memory.

use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::ids::{NodeId, ProducerId};
use parking_lot::Mutex;

use odradek_protocol::api::ApiKey;
use odradek_protocol::message;
use odradek_protocol::messages::{AllocateProducerIdsRequest, AllocateProducerIdsResponse};

use super::controller::producer_ids::{ProducerIdBlock, allocate};
use super::service::{MetadataError, MetadataService};
use crate::cluster::Controllers;
use crate::partitions::log_dir::Room;

/// Pause after a block was refused.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);

/// Gives every new producer an id of its own. What is left of a block at a stop is never used.
#[derive(Debug)]
pub struct ProducerIds {
    metadata: Arc<MetadataService>,
    controllers: Option<Arc<Controllers>>,
    broker: NodeId,
    block: Arc<Mutex<ProducerIdBlock>>,
    /// Held while a block is asked for, so that many producers at once ask for one.
    asking: tokio::sync::Mutex<()>,
}

impl ProducerIds {
    /// Ids for the producers of `broker`.
    pub fn new(
        metadata: Arc<MetadataService>,
        controllers: Option<Arc<Controllers>>,
        broker: NodeId,
    ) -> Self {
        Self {
            metadata,
            controllers,
            broker,
            block: Arc::new(Mutex::new(ProducerIdBlock::EMPTY)),
            asking: tokio::sync::Mutex::default(),
        }
    }

    /// An id that no producer has had. Waits for a new block when the last one is used up.
    pub async fn next(&self) -> Result<ProducerId, MetadataError> {
        loop {
            if let Some(id) = self.block.lock().take() {
                return Ok(id);
            }
            let _asking = self.asking.lock().await;
            if !self.block.lock().is_empty() {
                continue;
            }
            let Some(mut fresh) = self.allocate().await? else {
                // The leader does not give one at present; it is not asked without a pause.
                tokio::time::sleep(REFUSED_PAUSE).await;
                continue;
            };
            let id = fresh.take();
            *self.block.lock() = fresh;
            if let Some(id) = id {
                return Ok(id);
            }
        }
    }

    /// The next block; none if somebody who waited for the same one has it already.
    async fn allocate(&self) -> Result<Option<ProducerIdBlock>, MetadataError> {
        if let Some(controllers) = &self.controllers
            && !self.metadata.is_leading()
        {
            let request = message!(AllocateProducerIdsRequest {
                broker_id: self.broker.get(),
                broker_epoch: self
                    .metadata
                    .image()
                    .broker(self.broker)
                    .map_or(-1, |broker| broker.broker_epoch),
            });
            let answer: AllocateProducerIdsResponse = controllers
                .forward_message(ApiKey::AllocateProducerIds, 0, &request)
                .await?;
            let refused = answer.error_code != 0;
            let block = ProducerIdBlock::new(answer.producer_id_start, answer.producer_id_len);
            return Ok((!refused).then_some(block));
        }
        let (broker, current) = (self.broker, Arc::clone(&self.block));
        let allocated = self.metadata.run_where(Room::Scarce, move |image| {
            // Whoever waited for the same block finds it here.
            if current.lock().is_empty() {
                let (records, block) = allocate(image, broker);
                (records, Some(block))
            } else {
                (Vec::new(), None)
            }
        });
        Ok(allocated.await?.value)
    }
}
