//! The crate's errors, by cause.

use std::io;
use std::path::{Path, PathBuf};

use odradek_protocol::ids::{LeaderEpoch, Offset};

/// Why the log could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The operating system refused a file operation.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or directory it was tried on.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// An earlier write or sync in this log directory failed; nothing is written to it any more.
    #[error("log directory {path} is offline: {cause}")]
    Offline {
        /// The log directory.
        path: PathBuf,
        /// The failure that took it offline.
        cause: String,
    },
    /// The log was deleted, as by a topic's end or a move to other brokers.
    #[error("log {path} has been deleted")]
    Deleted {
        /// Where it was.
        path: PathBuf,
    },
    /// The offset lies below the log's start or above its end.
    #[error("offset {requested} is outside of [{log_start}, {log_end}]")]
    OffsetOutOfRange {
        /// The offset that was asked for.
        requested: Offset,
        /// First readable offset.
        log_start: Offset,
        /// Offset of the next record.
        log_end: Offset,
    },
    /// An append that does not follow the log's last record.
    #[error("batch starts at offset {found}, the log ends at {expected}")]
    NotNext {
        /// Where the next batch has to start.
        expected: Offset,
        /// Where it starts.
        found: Offset,
    },
    /// An append of an epoch older than the log's last.
    #[error("batch of leader epoch {found} after one of {last}")]
    StaleEpoch {
        /// Epoch of the log's last batch.
        last: LeaderEpoch,
        /// Epoch of the refused batch.
        found: LeaderEpoch,
    },
    /// The active segment cannot take the batches; the caller has to roll first.
    #[error("the active segment at {base_offset} has no room")]
    SegmentFull {
        /// Base offset of the active segment.
        base_offset: Offset,
    },
    /// Bytes on the disk, or handed in for it, are not what they have to be.
    #[error("{path}: {what} at position {position}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Position in the file, in bytes.
        position: u64,
        /// What is wrong.
        what: String,
    },
    /// A batch that was handed in for appending is not a well-formed v2 batch.
    #[error("unusable batch: {0}")]
    UnusableBatch(String),
}

impl StorageError {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io {
            action,
            path: path.to_path_buf(),
            source,
        }
    }

    pub(crate) fn corrupt(path: &Path, position: u64, what: impl Into<String>) -> Self {
        Self::Corrupt {
            path: path.to_path_buf(),
            position,
            what: what.into(),
        }
    }

    /// Whether the cause is that nothing more can be opened at the moment, so that nothing has been
    /// tried: see [`crate::disk::is_out_of_descriptors`].
    pub fn is_out_of_descriptors(&self) -> bool {
        matches!(self, Self::Io { source, .. } if crate::disk::is_out_of_descriptors(source))
    }

    /// Whether the cause is that a file is not there.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}
