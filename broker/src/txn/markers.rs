//! Writing the end of a transaction into partitions that this broker leads.
//!
//! Most partitions take the marker themselves. Those of `__consumer_offsets` belong to the group
//! coordinator, which keeps staged offsets in memory and so must be the one to write it.

use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{PartitionIndex, ProducerEpoch};

use crate::fetch_sessions::TopicRef;
use crate::groups;
use crate::groups::service::OFFSETS_TOPIC;
use crate::partition::{PartitionError, TxnEnd};
use crate::partitions::PartitionManager;

/// How long a marker waits for a majority. Whoever wrote it tries again.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(15);

/// What a marker is written with.
#[derive(Clone, Debug)]
pub struct MarkerWriter {
    partitions: Arc<PartitionManager>,
    groups: Arc<groups::Service>,
}

impl MarkerWriter {
    /// Writes into `partitions`, and by `groups` where a coordinator keeps its offsets.
    pub fn new(partitions: Arc<PartitionManager>, groups: Arc<groups::Service>) -> Self {
        Self { partitions, groups }
    }

    /// Writes a marker and waits until it is committed.
    ///
    /// # Errors
    /// The code that says why it is not.
    pub async fn write(
        &self,
        topic: &str,
        index: PartitionIndex,
        end: TxnEnd,
    ) -> Result<(), ErrorCode> {
        let reference = TopicRef::Name(topic.into());
        let partition = self
            .partitions
            .lookup(&reference, index)
            .map_err(|error| error.error_code())?;
        // Nobody's transaction.
        if end.producer.epoch < ProducerEpoch::new(0) {
            return Err(ErrorCode::InvalidProducerEpoch);
        }
        let code = |error: PartitionError| error.error_code();
        if topic == OFFSETS_TOPIC {
            let term = partition.require_leader().map_err(code)?;
            if !partition.check_marker(term, end).map_err(code)? {
                return Ok(());
            }
            let ended = self.groups.end_transaction(index, end.producer, end.marker);
            ended.await.map_err(|error| error.code())?;
            partition.note_marker(term, end);
            return Ok(());
        }
        let appending = partition.append_marker(end).map_err(code)?;
        let committed = appending.committed_within(COMMIT_TIMEOUT).await;
        committed.map(|_| ()).map_err(code)
    }
}
