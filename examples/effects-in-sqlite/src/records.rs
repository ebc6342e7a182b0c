//! Records as they come from the broker, with the identity that each has for ever.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use uuid::Uuid;

use crate::topic_ids::TopicIds;

/// The most records that are dealt with in one transaction of the database: one sync of the disk for all of them.
const MOST_IN_BATCH: usize = 100;

/// Which record of which topic. A topic that is deleted and made again under its name counts its offsets from 0 again,
/// so its name would not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The topic's id.
    pub topic_id: Uuid,
    /// The partition.
    pub partition: i32,
    /// The record's offset.
    pub offset: i64,
}

/// A record.
#[derive(Clone, Debug)]
pub struct Record {
    /// The topic's name.
    pub topic: String,
    /// Which record it is.
    pub identity: Identity,
    /// Its key, if it has any.
    pub key: Option<Vec<u8>>,
    /// Its value, if it has any.
    pub value: Option<Vec<u8>>,
}

/// Counts how often the partitions of this consumer were changed.
#[derive(Debug, Default)]
pub struct Rebalances {
    count: AtomicU64,
}

impl ClientContext for Rebalances {}

impl ConsumerContext for Rebalances {
    fn post_rebalance(&self, _: &BaseConsumer<Self>, _: &Rebalance<'_>) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

/// The records of a consumer, one after the other.
#[derive(Debug)]
pub struct Records {
    topic_ids: TopicIds,
    rebalances: u64,
}

impl Records {
    /// Of brokers at `bootstrap`: addresses with commas between them.
    pub fn new(bootstrap: &str) -> Self {
        Self {
            topic_ids: TopicIds::new(bootstrap),
            rebalances: 0,
        }
    }

    /// Waits at most `patience` for a record and takes along those that have come, too.
    ///
    /// # Errors
    /// The consumer cannot go on. That brokers are away is no such error.
    pub fn next_batch(
        &mut self,
        consumer: &BaseConsumer<Rebalances>,
        patience: Duration,
    ) -> Result<Vec<Record>> {
        let mut batch = Vec::new();
        let mut wait = patience;
        while batch.len() < MOST_IN_BATCH {
            let message = match consumer.poll(wait) {
                None => break,
                Some(Ok(message)) => message,
                Some(Err(KafkaError::MessageConsumptionFatal(error))) => {
                    bail!("the consumer cannot go on: {error}")
                }
                // Brokers that are away come back.
                Some(Err(error)) => {
                    println!("no record: {error}");
                    break;
                }
            };
            // Partitions that were somebody else's meanwhile may be of another topic by now.
            let rebalances = consumer.context().count.load(Ordering::Relaxed);
            if self.rebalances != rebalances {
                self.rebalances = rebalances;
                self.topic_ids.forget();
            }
            let (topic, partition, offset) =
                (message.topic(), message.partition(), message.offset());
            let identity = Identity {
                topic_id: self.topic_ids.of_record(topic, partition, offset),
                partition,
                offset,
            };
            batch.push(Record {
                topic: topic.to_owned(),
                identity,
                key: message.key().map(<[u8]>::to_vec),
                value: message.payload().map(<[u8]>::to_vec),
            });
            wait = Duration::ZERO;
        }
        Ok(batch)
    }
}
