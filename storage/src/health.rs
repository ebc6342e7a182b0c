//! Whether a log directory may still be written to.
//!
//! After a failed write or sync the kernel may have dropped the dirty pages, and a second sync
//! would report success for data that is gone. So a failure is final: the directory stays offline
//! until the process ends, and a new one recovers it from what is really on the disk.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::error::StorageError;

/// State of one log directory, shared by all logs and the flusher that write to it.
#[derive(Debug)]
pub struct LogDirHealth {
    path: PathBuf,
    failure: OnceLock<String>,
}

impl LogDirHealth {
    /// A directory that works.
    pub fn new(path: impl Into<PathBuf>) -> Arc<Self> {
        Arc::new(Self {
            path: path.into(),
            failure: OnceLock::new(),
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

    /// Passes `result` on, and takes the directory offline if it is a failure.
    pub(crate) fn guard<T>(&self, result: Result<T, StorageError>) -> Result<T, StorageError> {
        if let Err(error) = &result {
            self.fail(error);
        }
        result
    }
}
