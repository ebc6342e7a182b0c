//! Whether a log directory may still be written to.
//!
//! After a failed write or sync the kernel may have dropped the dirty pages, and a second sync
//! would report success for data that is gone. So a failure is final: the directory stays offline
//! until the process ends, and a new one recovers it from what is really on the disk. Running out of
//! descriptors is not such a failure.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::error::StorageError;

/// State of one log directory, shared by all logs and the flusher that write to it.
#[derive(Debug)]
pub struct LogDirHealth {
    path: PathBuf,
    failure: OnceLock<String>,
    /// Something could not be opened for want of descriptors.
    short_of_descriptors: AtomicBool,
    /// Bytes that may be used for what need not be there.
    spare_bytes: AtomicI64,
}

impl LogDirHealth {
    /// A directory that works.
    pub fn new(path: impl Into<PathBuf>) -> Arc<Self> {
        Arc::new(Self {
            path: path.into(),
            failure: OnceLock::new(),
            short_of_descriptors: AtomicBool::new(false),
            spare_bytes: AtomicI64::new(i64::MAX),
        })
    }

    /// The log directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What took the directory offline, if anything has.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Whether the directory is offline.
    pub fn is_offline(&self) -> bool {
        self.failure.get().is_some()
    }

    /// Takes the directory offline for good. The first cause is kept.
    pub fn fail(&self, cause: &dyn fmt::Display) {
        if self.failure.set(cause.to_string()).is_ok() {
            tracing::error!(path = %self.path.display(), %cause, "log directory goes offline");
        }
    }

    /// An error if the directory is offline.
    pub fn check(&self) -> Result<(), StorageError> {
        match self.failure.get() {
            None => Ok(()),
            Some(cause) => Err(StorageError::Offline {
                path: self.path.clone(),
                cause: cause.clone(),
            }),
        }
    }

    /// Takes note that something could not be opened for want of descriptors.
    pub fn note_shortage(&self) {
        self.short_of_descriptors.store(true, Ordering::Relaxed);
    }

    /// Whether that has been so since the last call.
    pub fn take_shortage(&self) -> bool {
        self.short_of_descriptors.swap(false, Ordering::Relaxed)
    }

    /// Tells how many bytes there are above what is kept in reserve; as many as one likes until then.
    pub fn set_spare_bytes(&self, bytes: i64) {
        self.spare_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Bytes above what is kept in reserve, when that was last looked at.
    pub fn spare_bytes(&self) -> i64 {
        self.spare_bytes.load(Ordering::Relaxed)
    }

    /// Passes `result` on, and takes the directory offline if it is a failure. That nothing more can
    /// be opened is none: whatever came before it is done, and it was not tried itself.
    pub(crate) fn guard<T>(&self, result: Result<T, StorageError>) -> Result<T, StorageError> {
        match &result {
            Err(error) if error.is_out_of_descriptors() => self.note_shortage(),
            Err(error) => self.fail(error),
            Ok(_) => {}
        }
        result
    }
}
