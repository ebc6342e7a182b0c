//! What a shard needs from the log of its partition.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use odradek_protocol::ids::{LeaderEpoch, Offset};
use thiserror::Error;

use crate::partitions::log_dir::Room;

/// Why the log did not do what it was asked.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LogFailure {
    /// Somebody else leads the partition now, or it is gone.
    #[error("the partition is led elsewhere")]
    NotLeader,
    /// The disk has failed; it will not come back by itself.
    #[error("the disk of the partition has failed")]
    Storage,
    /// The write did not go through, or it is not known whether it did.
    #[error("the partition does not take writes at present")]
    Unavailable,
}

impl LogFailure {
    /// Whether there is no point in loading the shard again here.
    pub const fn ends_shard(self) -> bool {
        match self {
            Self::NotLeader | Self::Storage => true,
            Self::Unavailable => false,
        }
    }
}

/// Ends when the batch has committed.
pub type AppendCommit = Pin<Box<dyn Future<Output = Result<(), LogFailure>> + Send + 'static>>;

/// A read of committed batches.
pub type CommittedBatches<'a> =
    Pin<Box<dyn Future<Output = Result<Bytes, LogFailure>> + Send + 'a>>;

/// Most that a batch has around its one record.
const AROUND_A_RECORD_BYTES: usize = 1_024;

/// The log of one partition, led by this broker in one term: once the term is over every append
/// fails, also if this broker leads again later.
pub trait CoordinatorLog: Debug + Send + Sync + 'static {
    /// Enqueues one v2 batch, whose offsets are not yet set. The order of the calls is the order
    /// in the log, whatever becomes of the futures.
    fn append(&self, batch: Bytes) -> AppendCommit;

    /// The term.
    fn epoch(&self) -> LeaderEpoch;

    /// First offset that can be read.
    fn log_start(&self) -> Offset;

    /// Offset after the last committed record. Everything that any earlier leader has
    /// acknowledged is below it.
    fn high_watermark(&self) -> Offset;

    /// Offset after the last record, committed or not.
    fn log_end(&self) -> Offset;

    /// Batches that were taken and whose fate is open, whether or not they are in the log yet and whoever has
    /// stopped waiting for them.
    fn in_flight(&self) -> usize;

    /// Whole committed batches from `from` on, about `max_bytes` of them but at least one if there
    /// is one; the first may begin before `from`. Empty if `from` is the high watermark.
    fn read(&self, from: Offset, max_bytes: usize) -> CommittedBatches<'_>;

    /// Whether what was known of the log just now is still all there is to know: nobody else can
    /// have led it meanwhile. To be asked after an answer is made and before it leaves.
    fn holds_lease(&self) -> bool;

    /// How much room the disk has.
    fn room(&self) -> Room {
        Room::Enough
    }

    /// Largest batch that the log takes, in bytes.
    fn max_batch_bytes(&self) -> usize;

    /// Largest record that it takes: that leaves room for the batch around it.
    fn max_record_bytes(&self) -> usize {
        self.max_batch_bytes().saturating_sub(AROUND_A_RECORD_BYTES)
    }
}
