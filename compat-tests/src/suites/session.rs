//! What a suite has while it runs: brokers, directories, and commands that end in time.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Job;
use super::brokers::Running;
use super::expected::{Exceptions, Kind};
use crate::cluster::Product;

/// A run of a suite; threads may share it.
pub struct Session {
    pub(super) product: Product,
    pub(super) brokers: Mutex<Running>,
    pub(super) bootstrap: Vec<String>,
    pub(super) prepared: PathBuf,
    pub(super) work: PathBuf,
    pub(super) logs: PathBuf,
    pub(super) only: Option<Vec<String>>,
    pub(super) exceptions: Exceptions,
    pub(super) deadline: Instant,
}

impl Session {
    /// `127.0.0.1:PORT` of each node, separated by commas.
    pub fn bootstrap(&self) -> String {
        self.bootstrap.join(",")
    }

    /// `127.0.0.1:PORT` of each node.
    pub fn nodes(&self) -> &[String] {
        &self.bootstrap
    }

    /// Whose brokers they are.
    pub fn product(&self) -> Product {
        self.product
    }

    fn brokers(&self) -> MutexGuard<'_, Running> {
        self.brokers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks a node to end, by its `node.id`, and waits for that.
    pub fn stop_node(&self, id: i32) -> Result<()> {
        self.brokers().stop_node(id)
    }

    /// Starts a node that was stopped, with the same settings, and waits until it knows the others that run.
    pub fn start_node(&self, id: i32) -> Result<()> {
        self.brokers().start_node(id)
    }

    /// The file that a node's log goes to.
    pub fn node_log(&self, id: i32) -> PathBuf {
        self.logs.join(format!("broker-{id}.log"))
    }

    /// What [`super::Suite::prepare`] returned. Leave it as it is: it serves the next run too.
    pub fn prepared(&self) -> &Path {
        &self.prepared
    }

    /// An empty directory that is gone after the run.
    pub fn work(&self) -> &Path {
        &self.work
    }

    /// A directory for outputs that people may want to read after the run.
    pub fn logs(&self) -> &Path {
        &self.logs
    }

    /// The tests that shall run, by the names of their results; all of them if this is `None`. A suite that cannot choose
    /// may run more: results that were not asked for are left out.
    pub fn only(&self) -> Option<&[String]> {
        self.only.as_deref()
    }

    /// Whether this test shall run: it is asked for, and not excluded by the suite's list.
    pub fn wants(&self, test: &str) -> bool {
        self.only
            .as_ref()
            .is_none_or(|only| only.iter().any(|name| name == test))
            && !self.excluded().any(|name| name == test)
    }

    /// Tests that the list says must not be run at all.
    pub fn excluded(&self) -> impl Iterator<Item = &str> {
        self.exceptions.names(Kind::Excluded)
    }

    /// How long the session may still last.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// A command whose output goes to `NAME.log` among the logs, which runs in [`Self::work`] and no longer than the session.
    pub fn job(&self, name: &str, program: impl AsRef<Path>) -> Job {
        let log = self.logs.join(format!("{name}.log"));
        Job::new(program.as_ref(), &self.work, &log, self.left())
    }

    /// Writes a file into [`Self::work`]; its path.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.work.join(name);
        std::fs::write(&path, text)?;
        Ok(path)
    }
}
