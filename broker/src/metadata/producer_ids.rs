//! The producer ids of this broker: a block at a time from the metadata log, then from memory.

use std::sync::Arc;

use odradek_protocol::ids::{NodeId, ProducerId};
use parking_lot::Mutex;

use super::controller::producer_ids::{ProducerIdBlock, allocate};
use super::service::{MetadataError, MetadataService};

/// Gives every new producer an id of its own. What is left of a block at a stop is never used.
#[derive(Debug)]
pub struct ProducerIds {
    metadata: Arc<MetadataService>,
    broker: NodeId,
    block: Arc<Mutex<ProducerIdBlock>>,
}

impl ProducerIds {
    /// Ids for the producers of `broker`.
    pub fn new(metadata: Arc<MetadataService>, broker: NodeId) -> Self {
        Self {
            metadata,
            broker,
            block: Arc::new(Mutex::new(ProducerIdBlock::EMPTY)),
        }
    }

    /// An id that no producer has had. Waits for a new block when the last one is used up.
    pub async fn next(&self) -> Result<ProducerId, MetadataError> {
        loop {
            if let Some(id) = self.block.lock().take() {
                return Ok(id);
            }
            let (broker, current) = (self.broker, Arc::clone(&self.block));
            let allocated = self.metadata.run(move |image| {
                // Whoever waited for the same block finds it here.
                if current.lock().is_empty() {
                    let (records, block) = allocate(image, broker);
                    (records, Some(block))
                } else {
                    (Vec::new(), None)
                }
            });
            if let Some(mut fresh) = allocated.await?.value {
                let id = fresh.take();
                let mut block = self.block.lock();
                if block.is_empty() {
                    *block = fresh;
                }
                drop(block);
                if let Some(id) = id {
                    return Ok(id);
                }
            }
        }
    }
}
