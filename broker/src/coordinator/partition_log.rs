//! The log of a coordinator on one of this broker's partitions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use odradek_protocol::ids::{LeaderEpoch, Offset};

use super::{AppendCommit, CommittedBatches, CoordinatorLog, LogFailure};
use crate::partition::{AppendOptions, Partition, PartitionError};
use crate::partitions::log_dir::Room;

/// A partition of a coordinator's topic in one term of this broker's leadership.
pub struct PartitionLog {
    partition: Arc<Partition>,
    epoch: LeaderEpoch,
    commit_timeout: Duration,
}

impl PartitionLog {
    /// The log of `partition`, which this broker leads in the term `epoch`. Appends that take
    /// longer than `commit_timeout` (`offsets.commit.timeout.ms`) are given up, which does not
    /// mean that they do not happen.
    pub fn new(partition: Arc<Partition>, epoch: LeaderEpoch, commit_timeout: Duration) -> Self {
        Self {
            partition,
            epoch,
            commit_timeout,
        }
    }
}

impl fmt::Debug for PartitionLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionLog")
            .field("partition", &self.partition)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl CoordinatorLog for PartitionLog {
    fn append(&self, batch: Bytes) -> AppendCommit {
        let options = AppendOptions::coordinator(self.epoch);
        let commit_timeout = self.commit_timeout;
        let (partition, epoch) = (Arc::clone(&self.partition), self.epoch);
        match self.partition.append(batch, options) {
            Ok(appending) => Box::pin(async move {
                let outcome = appending.committed_within(commit_timeout).await;
                outcome
                    .map(|_| ())
                    .map_err(|error| failure_in(&partition, epoch, &error))
            }),
            Err(error) => {
                tracing::warn!(partition = ?self.partition, %error, "a coordinator cannot write");
                let failure = failure_in(&partition, epoch, &error);
                Box::pin(std::future::ready(Err(failure)))
            }
        }
    }

    fn holds_lease(&self) -> bool {
        self.partition.require_lease().is_ok()
            && self.partition.leadership().epoch() == Some(self.epoch)
    }

    fn epoch(&self) -> LeaderEpoch {
        self.epoch
    }

    fn log_start(&self) -> Offset {
        self.partition.offsets().log_start.offset()
    }

    fn high_watermark(&self) -> Offset {
        self.partition.offsets().high_watermark.offset()
    }

    fn log_end(&self) -> Offset {
        self.partition.offsets().log_end.offset()
    }

    fn in_flight(&self) -> usize {
        self.partition.group().in_flight()
    }

    fn read(&self, from: Offset, max_bytes: usize) -> CommittedBatches<'_> {
        let reader = self.partition.reader();
        let upper = self.high_watermark();
        Box::pin(async move {
            // The disk may be slow, and the runtime must not wait for it.
            let read = tokio::task::spawn_blocking(move || {
                let slice = reader
                    .read(from, max_bytes, upper, true)
                    .map_err(|error| failure_of(&error.into()))?;
                slice.read().map_err(|error| {
                    tracing::error!(%error, "the log of a coordinator cannot be read");
                    LogFailure::Storage
                })
            });
            read.await.unwrap_or(Err(LogFailure::Unavailable))
        })
    }

    fn room(&self) -> Room {
        self.partition.directory().room()
    }

    fn max_batch_bytes(&self) -> usize {
        self.partition.settings().max_message_bytes
    }
}

/// What a failed append means to the coordinator of the term `epoch`. A leader may refuse writes for
/// a while within its term, and take them again: that ends no coordinator.
fn failure_in(partition: &Partition, epoch: LeaderEpoch, error: &PartitionError) -> LogFailure {
    let leads = partition.require_leader().is_ok_and(|now| now == epoch);
    match failure_of(error) {
        LogFailure::NotLeader if leads => LogFailure::Unavailable,
        failure => failure,
    }
}

fn failure_of(error: &PartitionError) -> LogFailure {
    match error {
        PartitionError::NotLeader { .. }
        | PartitionError::NotReady
        | PartitionError::LeaseOver
        | PartitionError::FencedLeaderEpoch { .. }
        | PartitionError::UnknownLeaderEpoch { .. }
        | PartitionError::Deleted => LogFailure::NotLeader,
        PartitionError::Offline(_) | PartitionError::Unreadable(_) => LogFailure::Storage,
        PartitionError::Batch(_)
        | PartitionError::LargerThanSegment { .. }
        | PartitionError::OutOfOrderSequence
        | PartitionError::FencedProducerEpoch
        | PartitionError::FencedBeforeQuestion
        | PartitionError::RefusedBefore
        | PartitionError::OutsideTransaction
        | PartitionError::MarkerInFlight
        | PartitionError::FencedCoordinator
        | PartitionError::Unverified(_)
        | PartitionError::NotInTransaction
        | PartitionError::NotEnoughReplicas { .. }
        | PartitionError::NotEnoughReplicasAfterAppend { .. }
        | PartitionError::Busy
        | PartitionError::TimedOut
        | PartitionError::OutOfDescriptors
        | PartitionError::DiskReserve
        | PartitionError::OffsetOutOfRange(_) => LogFailure::Unavailable,
    }
}
