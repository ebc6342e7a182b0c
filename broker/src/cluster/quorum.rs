//! How a node finds those that vote on the metadata, where no configuration names them.
//!
//! It asks `controller.quorum.bootstrap.servers`, and remembers what it has heard of last in a file
//! beside its data, so that voters that restart together find each other though none of the servers is
//! among them. Addresses are hints: a wrong one leads to a node that says who it is.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::ids::NodeId;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::listeners;
use crate::metadata::image::MetadataImage;
use crate::metadata::records::VoterRecord;
use crate::peer::{AddressBook, PeerAddress, PeerReply, PeerRequest, Peers};

/// Pause between two rounds.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often the log says what is waited for.
const TOLD_EVERY: Duration = Duration::from_secs(5);
/// How long one server may take to say who votes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// File in the data directory with the voters that were known last: a line each, `id@host:port`.
const VOTERS_FILE: &str = "quorum.voters";

/// What came of asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The voters are in the book of addresses.
    Voters,
    /// Every server is this node itself.
    NobodyElse,
}

/// What a server has come to.
pub(super) enum Told {
    /// The voters are in the book of addresses.
    Voters,
    /// It is this node itself.
    OwnNode,
}

/// Asks the servers in turn until one says who votes, or until all are this node itself.
pub async fn find(peers: &Peers, servers: &[PeerAddress]) -> Found {
    let mut told = Instant::now();
    let mut pause = PAUSE;
    loop {
        let mut own = 0;
        let mut silent = Vec::new();
        for server in servers {
            match ask(peers, server).await {
                Ok(Told::Voters) => return Found::Voters,
                Ok(Told::OwnNode) => own += 1,
                Err(reason) => silent.push(reason),
            }
        }
        if own == servers.len() {
            return Found::NobodyElse;
        }
        if told.elapsed() >= TOLD_EVERY {
            told = Instant::now();
            let why = silent.join("; ");
            tracing::info!(%why, "waiting for one of controller.quorum.bootstrap.servers");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Asks one server who votes.
pub(super) async fn ask(peers: &Peers, server: &PeerAddress) -> Result<Told, String> {
    let node = peers.identify(server).await?;
    let local = peers.local();
    if node.incarnation == local.incarnation() {
        return Ok(Told::OwnNode);
    }
    let id = node.node_id;
    if id == local.node_id() {
        return Err(format!("{server} is another node with node.id {id}"));
    }
    peers.addresses().add_voter(id, server.clone());
    let answer = peers.call_within(id, PeerRequest::Quorum, ANSWER_TIMEOUT);
    match answer.await {
        Ok(PeerReply::Quorum(voters)) if !voters.is_empty() => {
            peers.addresses().set_voters(voters);
            Ok(Told::Voters)
        }
        Ok(_) => Err(format!("node {id} knows of no voters yet")),
        Err(error) => Err(error.to_string()),
    }
}

/// Voters as they were known last; none in a directory that has not been in such a cluster. A file that
/// cannot be read is as good as none: the servers can be asked.
pub fn remembered(data_dir: &Path) -> Vec<(NodeId, PeerAddress)> {
    let text = match fs::read_to_string(data_dir.join(VOTERS_FILE)) {
        Ok(text) => text,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(%error, "the voters that were known last cannot be read");
            }
            return Vec::new();
        }
    };
    let list: Vec<&str> = text.lines().collect();
    match listeners::parse_voters(&list.join(",")) {
        Ok(voters) => voters
            .into_iter()
            .map(|(id, host, port)| (NodeId::new(id), PeerAddress { host, port }))
            .collect(),
        Err(error) => {
            tracing::warn!(error, "the voters that were known last cannot be read");
            Vec::new()
        }
    }
}

fn remember(data_dir: &Path, voters: &BTreeMap<NodeId, PeerAddress>) -> io::Result<()> {
    let new = data_dir.join(format!("{VOTERS_FILE}.new"));
    let mut file = File::create(&new)?;
    for (id, address) in voters {
        writeln!(file, "{id}@{address}")?;
    }
    file.sync_all()?;
    fs::rename(&new, data_dir.join(VOTERS_FILE))?;
    File::open(data_dir)?.sync_all()
}

/// The first listener of each voter.
fn addresses_of(voters: &[VoterRecord]) -> BTreeMap<NodeId, PeerAddress> {
    voters
        .iter()
        .filter_map(|voter| {
            let endpoint = voter.endpoints.first()?;
            let address = PeerAddress {
                host: endpoint.host.clone(),
                port: endpoint.port,
            };
            Some((voter.id, address))
        })
        .collect()
}

/// Keeps the addresses of other nodes as the metadata has them, and remembers the voters.
pub async fn follow_addresses(
    addresses: Arc<AddressBook>,
    data_dir: PathBuf,
    mut images: watch::Receiver<Arc<MetadataImage>>,
) {
    let mut known = BTreeMap::new();
    loop {
        let image = Arc::clone(&images.borrow_and_update());
        addresses.set_registered(registered(&image));
        let voters = addresses_of(image.voters());
        if !voters.is_empty() && voters != known {
            addresses.set_voters(voters.clone());
            known.clone_from(&voters);
            let data_dir = data_dir.clone();
            let written = tokio::task::spawn_blocking(move || remember(&data_dir, &voters)).await;
            if let Ok(Err(error)) = written {
                tracing::warn!(%error, "the voters cannot be remembered");
            }
        }
        if images.changed().await.is_err() {
            return;
        }
    }
}

/// Where the registered nodes are. The first endpoint of a broker is the one for other brokers.
fn registered(image: &MetadataImage) -> BTreeMap<NodeId, PeerAddress> {
    let controllers = image
        .controllers()
        .map(|(id, controller)| (id, controller.endpoints.first()));
    let brokers = image
        .brokers()
        .map(|(id, broker)| (id, broker.endpoints.first()));
    controllers
        .chain(brokers)
        .filter_map(|(id, endpoint)| {
            let endpoint = endpoint?;
            let address = PeerAddress {
                host: endpoint.host.clone(),
                port: endpoint.port,
            };
            Some((id, address))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn voters_are_remembered_and_a_damaged_file_is_as_good_as_none() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(remembered(dir.path()), []);
        let at = |host: &str, port| PeerAddress {
            host: host.to_owned(),
            port,
        };
        let voters = BTreeMap::from([
            (NodeId::new(1), at("a", 9093)),
            (NodeId::new(2), at("::1", 9094)),
        ]);
        for _ in 0..2 {
            remember(dir.path(), &voters).expect("written");
            let read: BTreeMap<_, _> = remembered(dir.path()).into_iter().collect();
            assert_eq!(read, voters);
        }
        fs::write(dir.path().join(VOTERS_FILE), "1@a\n").expect("written");
        assert_eq!(remembered(dir.path()), []);
    }
}
