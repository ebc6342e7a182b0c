//! Which processes the connections that are served come from.
//!
//! A node id belongs to one process at a time. Another process with the same data directory is the
//! same node after a restart, and what is left of its earlier connections goes. One with another
//! directory is either a node that was rebuilt or a second node with the same id: it is refused for
//! as long as the first is heard from.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use odradek_protocol::ids::NodeId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::hello::Refusal;
use super::{PeerIdentity, Purpose};

/// How long after it was last heard from a process still holds its node id.
const HOLDS_ID_FOR: Duration = Duration::from_secs(3);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct KnownPeers(Mutex<HashMap<NodeId, Known>>);

#[derive(Debug)]
struct Known {
    identity: PeerIdentity,
    heard: Arc<Heard>,
    /// At most one a purpose.
    connections: HashMap<Purpose, Arc<Notify>>,
}

/// When a process was last heard from.
#[derive(Debug)]
pub(super) struct Heard {
    since: Instant,
    at_ms: AtomicU64,
}

impl Heard {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            at_ms: AtomicU64::new(0),
        }
    }

    pub(super) fn now(&self) {
        let ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.at_ms.store(ms, Ordering::Relaxed);
    }

    fn ago(&self) -> Duration {
        let at = Duration::from_millis(self.at_ms.load(Ordering::Relaxed));
        self.since.elapsed().saturating_sub(at)
    }
}

/// A connection's place; dropping it takes it out.
#[derive(Debug)]
pub(super) struct Place<'a> {
    known: &'a KnownPeers,
    node: NodeId,
    purpose: Purpose,
    /// When its process was heard from.
    pub(super) heard: Arc<Heard>,
    /// Told when the connection is to be closed.
    pub(super) close: Arc<Notify>,
}

impl KnownPeers {
    /// Enters a connection, in place of an earlier one of the same node and purpose.
    pub(super) fn enter(
        &self,
        identity: &PeerIdentity,
        purpose: Purpose,
    ) -> Result<Place<'_>, Refusal> {
        let mut all = self.0.lock();
        let node = identity.node_id;
        if let Some(known) = all.get(&node)
            && known.identity.incarnation != identity.incarnation
        {
            let names = |node: &PeerIdentity| node.cluster_id.is_some();
            let (named, was_named) = (names(identity), names(&known.identity));
            let rebuilt = known.identity.directory_id != identity.directory_id;
            let must_wait = (rebuilt && (was_named || !named)) || (was_named && !named);
            if must_wait && known.heard.ago() < HOLDS_ID_FOR {
                return Err(Refusal::SameId(node));
            }
            for connection in known.connections.values() {
                connection.notify_one();
            }
            all.remove(&node);
        }
        let known = all.entry(node).or_insert_with(|| Known {
            identity: identity.clone(),
            heard: Arc::new(Heard::new()),
            connections: HashMap::new(),
        });
        known.heard.now();
        if identity.cluster_id.is_some() {
            known.identity.cluster_id.clone_from(&identity.cluster_id);
        }
        let close = Arc::new(Notify::new());
        if let Some(earlier) = known.connections.insert(purpose, Arc::clone(&close)) {
            earlier.notify_one();
        }
        Ok(Place {
            known: self,
            node,
            purpose,
            heard: Arc::clone(&known.heard),
            close,
        })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut all = self.known.0.lock();
        let Some(known) = all.get_mut(&self.node) else {
            return;
        };
        let is_this = |close: &Arc<Notify>| Arc::ptr_eq(close, &self.close);
        if known.connections.get(&self.purpose).is_some_and(is_this) {
            known.connections.remove(&self.purpose);
        }
        if known.connections.is_empty() {
            all.remove(&self.node);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use odradek_protocol::codec::Uuid;

    use super::*;

    fn identity(incarnation: u8, directory: &str) -> PeerIdentity {
        PeerIdentity {
            node_id: NodeId::new(2),
            cluster_id: None,
            directory_id: directory.to_owned(),
            incarnation: Uuid::from_bytes([incarnation; 16]),
        }
    }

    fn named(incarnation: u8, directory: &str) -> PeerIdentity {
        PeerIdentity {
            cluster_id: Some("cluster".to_owned()),
            ..identity(incarnation, directory)
        }
    }

    fn is_told_to_close(place: &Place<'_>) -> bool {
        place.close.notified().now_or_never().is_some()
    }

    #[test]
    fn a_new_connection_takes_the_place_of_the_old_one_of_its_purpose() {
        let known = KnownPeers::default();
        let node = identity(1, "d");
        let control = known.enter(&node, Purpose::Control).expect("let in");
        let append = known.enter(&node, Purpose::Append).expect("let in");
        let again = known.enter(&node, Purpose::Append).expect("let in");
        assert!(!is_told_to_close(&control) && !is_told_to_close(&again));
        assert!(is_told_to_close(&append));
        drop(append);
        assert_eq!(known.0.lock()[&node.node_id].connections.len(), 2);
        drop((control, again));
        assert!(known.0.lock().is_empty());
    }

    #[test]
    fn a_restarted_node_is_the_same_and_a_second_one_is_not() {
        let known = KnownPeers::default();
        let before = known.enter(&identity(1, "d"), Purpose::Control);
        let before = before.expect("let in");
        let restarted = known.enter(&identity(2, "d"), Purpose::Control);
        let restarted = restarted.expect("let in");
        assert!(is_told_to_close(&before));
        let second = known.enter(&identity(3, "other"), Purpose::Append);
        assert_eq!(second.err(), Some(Refusal::SameId(NodeId::new(2))));
        drop(before);
        // Once nothing of the first is left, its id is free.
        drop(restarted);
        assert!(known.enter(&identity(3, "other"), Purpose::Append).is_ok());
    }

    #[test]
    fn who_names_no_cluster_holds_no_id_against_who_does() {
        let known = KnownPeers::default();
        let stranger = known.enter(&identity(1, "s"), Purpose::Control);
        let stranger = stranger.expect("nobody else has the id");
        let node = known.enter(&named(2, "d"), Purpose::Control);
        let node = node.expect("it names the cluster");
        assert!(is_told_to_close(&stranger));
        drop(stranger);
        for directory in ["s", "d"] {
            let again = known.enter(&identity(3, directory), Purpose::Control);
            assert_eq!(again.err(), Some(Refusal::SameId(NodeId::new(2))));
        }
        assert!(!is_told_to_close(&node));
        // A node that has come to belong to a cluster says so on its next connection.
        let known = KnownPeers::default();
        let before = known.enter(&identity(1, "d"), Purpose::Control);
        let after = known.enter(&named(1, "d"), Purpose::Append);
        let stranger = known.enter(&identity(2, "d"), Purpose::Append);
        assert_eq!(stranger.err(), Some(Refusal::SameId(NodeId::new(2))));
        drop((before, after));
    }
}
