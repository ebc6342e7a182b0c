//! What every partition of this process stands on: the disk, its flusher, and the node that runs
//! the Raft groups.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use odradek_raft::liveness::ProbeTransport;
use odradek_raft::network::{Network, NoNetwork};
use odradek_raft::{DataDir, RaftError, RaftNode, RaftNodeOptions};
use odradek_storage::disk::Disk;
use odradek_storage::flush::{Flusher, FlusherOptions};
use odradek_storage::{LogDirHealth, RealDisk};

use crate::config::BrokerConfig;
use crate::data_dir::DataDirError;
use crate::partitions::log_dir::{LogDirectories, LogDirectory};
use crate::peer::Peers;

/// Why the groups cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum RaftStackError {
    /// The threads that make files durable cannot be started.
    #[error("the flusher cannot be started: {0}")]
    Flusher(#[source] io::Error),
    /// The files of the groups cannot be read.
    #[error(transparent)]
    Raft(#[from] RaftError),
}

/// See the module.
pub struct RaftStack {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// The log directories.
    pub directories: Arc<LogDirectories>,
    /// The groups.
    pub raft: Arc<RaftNode>,
}

impl RaftStack {
    /// Opens what the data directories hold of groups, but for those that have failed already; `peers` are the other nodes, if there are any. Must be
    /// called within a tokio runtime.
    pub fn open(
        config: &BrokerConfig,
        failed: &[(PathBuf, DataDirError)],
        peers: Option<&Arc<Peers>>,
    ) -> Result<Self, RaftStackError> {
        let disk = RealDisk::shared();
        let metadata = OpenedDir::of(&config.data_dir)?;
        let mut data_dirs = vec![metadata.data_dir];
        let mut all = Vec::with_capacity(config.log_dirs.len());
        for path in &config.log_dirs {
            let failure = failed.iter().find(|(failed, _)| failed == path);
            let health = if *path == config.data_dir {
                Arc::clone(&metadata.health)
            } else if let Some((_, error)) = failure {
                let health = LogDirHealth::new(path);
                health.fail(error);
                health
            } else {
                let opened = OpenedDir::of(path)?;
                data_dirs.push(opened.data_dir);
                opened.health
            };
            all.push(LogDirectory::new(health));
        }
        let peers = peers.map(Peers::network);
        let network: Arc<dyn Network> = match &peers {
            Some(network) => Arc::clone(network) as Arc<dyn Network>,
            None => Arc::new(NoNetwork),
        };
        let mut options =
            RaftNodeOptions::new(config.node_id, Arc::clone(&disk), data_dirs, network);
        options.transfers = config.peers.transfers;
        options.probes = peers.map(|network| network as Arc<dyn ProbeTransport>);
        Ok(Self {
            directories: LogDirectories::new(all, metadata.health),
            raft: RaftNode::open(options)?,
            disk,
        })
    }
}

/// A log directory of the real disk, and what makes its files durable.
pub(crate) struct OpenedDir {
    pub(crate) health: Arc<LogDirHealth>,
    pub(crate) data_dir: DataDir,
}

impl OpenedDir {
    pub(crate) fn of(path: &Path) -> Result<Self, RaftStackError> {
        let health = LogDirHealth::new(path);
        let flusher = Flusher::start(
            &RealDisk::shared(),
            Arc::clone(&health),
            FlusherOptions::default(),
        )
        .map_err(RaftStackError::Flusher)?;
        let data_dir = DataDir {
            path: path.to_owned(),
            flusher: Arc::new(flusher),
        };
        Ok(Self { health, data_dir })
    }
}
