//! What every partition of this process stands on: the disk, its flusher, and the node that runs
//! the Raft groups.

use std::io;
use std::sync::Arc;

use odradek_raft::liveness::ProbeTransport;
use odradek_raft::network::{Network, NoNetwork};
use odradek_raft::{DataDir, RaftError, RaftNode, RaftNodeOptions};
use odradek_storage::disk::Disk;
use odradek_storage::flush::{Flusher, FlusherOptions};
use odradek_storage::{LogDirHealth, RealDisk};

use crate::config::BrokerConfig;
use crate::partitions::log_dir::LogDirectory;
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
    /// The log directory.
    pub directory: Arc<LogDirectory>,
    /// The groups.
    pub raft: Arc<RaftNode>,
}

impl RaftStack {
    /// Opens the data directory's groups; `peers` are the other nodes, if there are any. Must be
    /// called within a tokio runtime.
    pub fn open(config: &BrokerConfig, peers: Option<&Arc<Peers>>) -> Result<Self, RaftStackError> {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let health = LogDirHealth::new(&config.data_dir);
        let options = FlusherOptions::default();
        let flusher =
            Flusher::start(&disk, Arc::clone(&health), options).map_err(RaftStackError::Flusher)?;
        let data_dir = DataDir {
            path: config.data_dir.clone(),
            flusher: Arc::new(flusher),
        };
        let peers = peers.map(Peers::network);
        let network: Arc<dyn Network> = match &peers {
            Some(network) => Arc::clone(network) as Arc<dyn Network>,
            None => Arc::new(NoNetwork),
        };
        let mut options =
            RaftNodeOptions::new(config.node_id, Arc::clone(&disk), vec![data_dir], network);
        options.probes = peers.map(|network| network as Arc<dyn ProbeTransport>);
        Ok(Self {
            directory: LogDirectory::new(health),
            raft: RaftNode::open(options)?,
            disk,
        })
    }
}
