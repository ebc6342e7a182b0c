//! The segmented log of a partition, byte for byte as Apache Kafka lays it out.
//!
//! A [`Log`] has one owner, who appends to it; [`LogReader`]s read meanwhile without locks. What is
//! appended becomes durable through a [`flush::Flusher`], which the logs of a log directory share.
//! All I/O goes through [`disk::Disk`], of which there is a real and a simulated one. The bytes on
//! the disk are described in `docs/FORMAT.md`.
//!
//! This crate knows nothing of replication, clients or clocks: the time is always an argument.

pub mod disk;
pub mod file_names;
pub mod flush;
pub mod producer_state;
mod sim_disk;

mod compaction;
mod config;
mod deletion;
mod epoch_cache;
mod error;
mod health;
mod index;
mod log;
mod lookup;
mod producer_snapshot;
mod reader;
mod real_disk;
mod recovery;
mod recovery_point;
mod relocation;
mod retention;
mod scan;
mod segment;
mod sync_file;
mod transfer;
mod trim;
mod txn_index;

pub use compaction::{
    Compacted, Compaction, CompactionConfig, CompactionPlan, CompactionStats, Pace, SegmentFacts,
};
pub use config::LogConfig;
pub use epoch_cache::{EpochCache, EpochEntry};
pub use error::StorageError;
pub use health::LogDirHealth;
pub use log::{Checkpoint, Log, StampedBatch};
pub use lookup::TimestampedOffset;
pub use reader::{BatchRef, HeaderCursor, LogPosition, LogReader, ReadSlice};
pub use real_disk::RealDisk;
pub use recovery::{Cut, OpenHint, RecoveryReport};
pub use relocation::{Relocation, finish_relocation, was_moved};
pub use retention::{SegmentAge, retention_point};
pub use sim_disk::SimDisk;
pub use sync_file::SyncFile;
pub use transfer::{
    Export, Incoming, Piece, Received, TransferError, TransferFile, TransferKind, finish_adoption,
    remove_log,
};
pub use txn_index::AbortedTxn;
