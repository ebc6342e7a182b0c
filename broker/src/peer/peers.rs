//! The asking side: requests to other nodes.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use odradek_protocol::ids::NodeId;
use odradek_raft::wire::Reader;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::call::{self, Status};
use super::conduit::Conduit;
use super::link::{self, Link, OwnAddress, Shared};
use super::{
    AddressBook, LocalNode, Network, PeerAddress, PeerError, PeerIdentity, PeerLimits, PeerReply,
    PeerRequest, Purpose, Throttles,
};
use crate::memory::MemoryBudget;

/// The other nodes, as this one asks them.
pub struct Peers {
    shared: Arc<Shared>,
    links: Mutex<HashMap<(NodeId, Purpose), Arc<Link>>>,
    throttles: Arc<Throttles>,
    stop: watch::Sender<bool>,
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").finish_non_exhaustive()
    }
}

impl Peers {
    /// Nobody is connected to before somebody is asked.
    pub fn new(
        local: Arc<LocalNode>,
        addresses: Arc<AddressBook>,
        limits: PeerLimits,
    ) -> Arc<Self> {
        let (stop, stopping) = watch::channel(false);
        Arc::new(Self {
            throttles: Throttles::new(local.node_id()),
            shared: Arc::new(Shared {
                local,
                addresses,
                answers: MemoryBudget::new(limits.incoming_bytes, 0),
                limits,
                stopping,
            }),
            links: Mutex::default(),
            stop,
        })
    }

    /// This node.
    pub fn local(&self) -> &Arc<LocalNode> {
        &self.shared.local
    }

    /// Makes the cluster known to which this node belongs, to itself and to those that it has connected
    /// to before; from then on nodes of others are refused.
    pub fn set_cluster_id(&self, cluster_id: &str) {
        self.shared.local.set_cluster_id(cluster_id);
        for link in self.links() {
            link.introduce_again();
        }
    }

    /// The version of the protocol that this node speaks with another one, if they are connected.
    pub fn protocol_with(&self, node: NodeId) -> Option<u16> {
        let links = self.links();
        let to_it = links.iter().filter(|link| link.to() == node);
        let connected = to_it.filter_map(|link| link.connected());
        connected.map(|it| it.introduced().peer_protocol).max()
    }

    /// Where the others are.
    pub fn addresses(&self) -> &Arc<AddressBook> {
        &self.shared.addresses
    }

    /// What holds replication back, to and from other nodes.
    pub fn throttles(&self) -> &Arc<Throttles> {
        &self.throttles
    }

    /// How much may be under way.
    pub fn limits(&self) -> &PeerLimits {
        &self.shared.limits
    }

    /// Who is at an address, within `odradek.peer.connect.timeout.ms`: this node itself, perhaps.
    ///
    /// # Errors
    /// Why nobody says so, for people.
    pub async fn identify(&self, address: &PeerAddress) -> Result<PeerIdentity, String> {
        link::identify(self.local(), address, self.limits().connect_timeout).await
    }

    /// Asks a node, within `odradek.peer.request.timeout.ms`.
    pub async fn call(&self, to: NodeId, request: PeerRequest) -> Result<PeerReply, PeerError> {
        self.call_within(to, request, self.limits().request_timeout)
            .await
    }

    /// Asks a node. No answer within `limit` is [`PeerError::Timeout`].
    pub async fn call_within(
        &self,
        to: NodeId,
        request: PeerRequest,
        limit: Duration,
    ) -> Result<PeerReply, PeerError> {
        let asking = self.ask(to, Purpose::Requests, |out| call::put_peer(out, &request));
        let reply = match tokio::time::timeout(limit, asking).await {
            Ok(reply) => reply?,
            Err(_) => return Err(PeerError::Timeout(to)),
        };
        let mut reader = Reader::new(reply);
        let read = match call::get_status(&mut reader) {
            Ok(Status::Ok) => PeerReply::get(&mut reader),
            Ok(Status::NotServed | Status::Unsupported) => Ok(PeerReply::Unsupported),
            Err(error) => Err(error),
        };
        read.map_err(|cause| PeerError::Answer { node: to, cause })
    }

    /// Makes a call and returns the body of the reply.
    pub(super) async fn ask(
        &self,
        to: NodeId,
        purpose: Purpose,
        write: impl FnOnce(&mut BytesMut),
    ) -> Result<Bytes, PeerError> {
        let conduit = self.connect(to, purpose).await?;
        conduit.call(write).await
    }

    /// The connection to a node for a purpose.
    pub(super) async fn connect(
        &self,
        to: NodeId,
        purpose: Purpose,
    ) -> Result<Arc<Conduit>, PeerError> {
        let link = self.link(to, purpose)?;
        link.connect().await
    }

    fn link(&self, to: NodeId, purpose: Purpose) -> Result<Arc<Link>, PeerError> {
        let shared = &self.shared;
        if to == shared.local.node_id() {
            return Err(PeerError::OwnNode);
        }
        let mut links = self.links.lock();
        if let Some(link) = links.get(&(to, purpose)) {
            return Ok(Arc::clone(link));
        }
        // Only who has an address has a link: there are no more of them than nodes in the cluster.
        if shared.addresses.addresses(to).is_empty() {
            return Err(PeerError::NoAddress(to));
        }
        let link = Link::new(to, purpose, Arc::clone(shared));
        links.insert((to, purpose), Arc::clone(&link));
        Ok(link)
    }

    /// Who answers at the addresses that this node itself is known under.
    pub async fn look_at_own_address(&self) -> OwnAddress {
        link::look_at_own_address(&self.shared).await
    }

    pub(super) fn links(&self) -> Vec<Arc<Link>> {
        self.links.lock().values().cloned().collect()
    }

    /// A node has connected to this one.
    pub(super) fn seen(&self, node: &PeerIdentity) {
        for link in self.links() {
            if link.to() == node.node_id {
                link.seen(node);
            }
        }
    }

    /// Gives up the connections to a node. The next request makes new ones.
    pub fn disconnect(&self, node: NodeId) {
        for link in self.links() {
            if link.to() == node {
                link.close();
            }
        }
    }

    /// The network of this node's Raft groups.
    pub fn network(self: &Arc<Self>) -> Arc<Network> {
        Network::new(Arc::clone(self))
    }

    /// Closes every connection to other nodes; nobody is asked any more.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }
}
