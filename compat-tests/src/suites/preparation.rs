//! What is fetched and built before a suite can run, kept in the cache between runs.
//!
//! Invariants: a directory of the cache is whole or is made again: a file that says so is written last. Only one process
//! prepares at a time.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

use super::Job;
use crate::cache::cache_directory;

/// How long one step may take unless it says less: a large C++ library on a small, busy machine.
const STEP: Duration = Duration::from_secs(1800);
/// Is there once a directory is whole; holds what it was made from.
const WHOLE: &str = ".whole";

/// The cache of the suites, and commands to fill it.
pub struct Preparation {
    root: PathBuf,
    logs: PathBuf,
    // Held as long as this value is.
    _lock: File,
}

impl Preparation {
    /// Waits until no other process prepares anything. `logs` is where the commands' outputs go.
    pub(super) fn begin(logs: &Path) -> Result<Self> {
        let root = cache_directory()?.join("suites");
        std::fs::create_dir_all(&root).with_context(|| root.display().to_string())?;
        std::fs::create_dir_all(logs)?;
        let lock = File::create(root.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        Ok(Self {
            root,
            logs: logs.to_owned(),
            _lock: lock,
        })
    }

    /// The directory `name` of the cache (put the version into the name). If it is not whole, or was made from another
    /// `recipe` (any text that changes when what is built does), it is emptied and given to `make` first.
    pub fn directory(
        &self,
        name: &str,
        recipe: &str,
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let directory = self.root.join(name);
        let whole = directory.join(WHOLE);
        if std::fs::read_to_string(&whole).is_ok_and(|text| text == recipe) {
            return Ok(directory);
        }
        eprintln!("preparing {name}, once");
        if directory.exists() {
            std::fs::remove_dir_all(&directory)?;
        }
        std::fs::create_dir_all(&directory)?;
        make(&directory).with_context(|| format!("preparing {name}"))?;
        std::fs::write(&whole, recipe)?;
        Ok(directory)
    }

    /// A command that runs in `directory`; end it with [`Job::succeed`].
    pub fn job(&self, program: impl AsRef<Path>, directory: &Path) -> Job {
        let program = program.as_ref();
        let name = program
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let log = self.logs.join(format!("prepare-{name}.log"));
        Job::new(program, directory, &log, STEP)
    }
}
