//! Giving the records of a log to another replica, file by file.
//!
//! The giver takes an [`Export`]: the files that hold everything below an offset, as they are at one
//! moment. They stay readable whatever compaction and retention do to the log meanwhile, so what is
//! copied is of one piece. That matters: of a log that is compacted between two reads, an old value
//! could be copied before and the tombstone that deletes it be missing after.
//!
//! The taker writes an [`Incoming`]: files with a suffix of their own beside those of its log, each
//! batch checked, all of it durable before it is [`Received`]. Then [`Log::adopt`] puts them in the
//! place of the log. From one moment on, the making of a file, the new log counts and the old one
//! does not; an opening that finds that file does the rest ([`finish_adoption`]), and drops what is
//! left of a transfer without it. So a crash at any step leaves the one log or the other.
//!
//! Absent on purpose: the way between the two, pacing, and going on with a transfer that broke off.
//!
//! [`Log::adopt`]: crate::Log::adopt

mod adopt;
mod export;
mod incoming;

use odradek_protocol::ids::Offset;

use crate::error::StorageError;

pub use adopt::{finish_adoption, remove_log};
pub use export::Export;
pub use incoming::{Incoming, Received};

/// Appended to the names of files that are being received.
const INCOMING_SUFFIX: &str = ".incoming";

/// What a file of a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// The batches of a segment.
    Segment {
        /// Its first offset.
        base_offset: Offset,
        /// Offset after its last.
        next_offset: Offset,
    },
    /// The aborted transactions of the segment that comes next, in Kafka's format.
    Aborted,
    /// The state of the producers at the end of the transfer, in Kafka's format.
    Producers,
    /// Where each leader epoch begins, in Kafka's format.
    Epochs,
}

/// A file of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferFile {
    /// What it is.
    pub kind: TransferKind,
    /// Its length in bytes.
    pub len: u64,
}

/// A run of bytes of a file of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which file, counted from 0.
    pub file: u32,
    /// Position of the first byte.
    pub position: u64,
    /// Number of bytes.
    pub len: u32,
}

/// Why nothing can be received.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// What was sent is no log, or another than was announced.
    #[error("what is given is not a log: {0}")]
    Malformed(String),
    /// There is no room for it but what is kept in reserve.
    #[error("{bytes} bytes are given, and the disk has room for {spare} above its reserve")]
    NoRoom {
        /// How many bytes there are.
        bytes: u64,
        /// How many more may be written.
        spare: i64,
    },
    /// It could not be written.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl TransferError {
    fn malformed(what: impl Into<String>) -> Self {
        Self::Malformed(what.into())
    }
}
