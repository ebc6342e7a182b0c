//! Metrics of the connections between nodes. Labels: the purpose, and for what this node does of
//! its own accord the node it is done to; both are bounded by the cluster.

use metrics::{Counter, Unit, counter, describe_counter, describe_gauge, gauge};
use odradek_protocol::ids::NodeId;

use super::{Peers, Purpose};

const SENT: &str = "odradek_peer_sent_bytes_total";
const RECEIVED: &str = "odradek_peer_received_bytes_total";
const CONNECTED: &str = "odradek_peer_connected_total";
const CONNECT_FAILED: &str = "odradek_peer_connect_failed_total";
const REFUSED: &str = "odradek_peer_refused_total";
const SERVED: &str = "odradek_peer_connections_served";
const QUEUED: &str = "odradek_peer_queued_bytes";
const UNANSWERED: &str = "odradek_peer_unanswered_bytes";
const UP: &str = "odradek_peer_connections_up";

/// Tells the recorder what each metric means.
pub fn describe() {
    describe_counter!(SENT, Unit::Bytes, "Bytes sent to other nodes, by purpose.");
    describe_counter!(
        RECEIVED,
        Unit::Bytes,
        "Bytes received from other nodes, by purpose."
    );
    describe_counter!(
        CONNECTED,
        "Connections made to other nodes, by node and purpose; more than one is a reconnect."
    );
    describe_counter!(
        CONNECT_FAILED,
        "Attempts to connect to other nodes that failed, by node and purpose."
    );
    describe_counter!(REFUSED, "Nodes that were not let in, by cause.");
    describe_gauge!(SERVED, "Connections of other nodes served now, by purpose.");
    describe_gauge!(UP, "Connections to other nodes open now, by purpose.");
    describe_gauge!(
        QUEUED,
        Unit::Bytes,
        "Bytes that wait to be sent to a node, by node and purpose."
    );
    describe_gauge!(
        UNANSWERED,
        Unit::Bytes,
        "Bytes of append requests that a node has not answered, by node."
    );
}

/// Handles of what the connections of one purpose count.
#[derive(Clone)]
pub(super) struct Traffic {
    sent: Counter,
    received: Counter,
}

impl Traffic {
    pub(super) fn new(purpose: Purpose) -> Self {
        Self {
            sent: counter!(SENT, "purpose" => purpose.name()),
            received: counter!(RECEIVED, "purpose" => purpose.name()),
        }
    }

    pub(super) fn sent(&self, bytes: usize) {
        self.sent.increment(bytes as u64);
    }

    pub(super) fn received(&self, bytes: usize) {
        self.received.increment(bytes as u64);
    }
}

pub(super) fn connected(node: NodeId, purpose: Purpose) {
    counter!(CONNECTED, "node" => node.to_string(), "purpose" => purpose.name()).increment(1);
}

pub(super) fn connect_failed(node: NodeId, purpose: Purpose) {
    counter!(CONNECT_FAILED, "node" => node.to_string(), "purpose" => purpose.name()).increment(1);
}

pub(super) fn refused(cause: &'static str) {
    counter!(REFUSED, "cause" => cause).increment(1);
}

/// Counts a connection that is served until this is dropped.
pub(super) struct ServedConnection(Purpose);

impl ServedConnection {
    pub(super) fn new(purpose: Purpose) -> Self {
        gauge!(SERVED, "purpose" => purpose.name()).increment(1.0);
        Self(purpose)
    }
}

impl Drop for ServedConnection {
    fn drop(&mut self) {
        gauge!(SERVED, "purpose" => self.0.name()).decrement(1.0);
    }
}

/// Brings the metrics that are read rather than counted up to date; called at every scrape.
pub fn observe(peers: &Peers) {
    let mut up = Purpose::ALL.map(|purpose| (purpose, 0));
    for link in peers.links() {
        let (node, purpose) = (link.to(), link.purpose());
        let conduit = link.connected();
        if conduit.is_some()
            && let Some((_, count)) = up.iter_mut().find(|(it, _)| *it == purpose)
        {
            *count += 1;
        }
        let queued = conduit.as_ref().map_or(0, |it| it.queued_bytes());
        gauge!(QUEUED, "node" => node.to_string(), "purpose" => purpose.name()).set(queued as f64);
        if purpose == Purpose::Append {
            let unanswered = conduit.as_ref().map_or(0, |it| it.unanswered_bytes());
            gauge!(UNANSWERED, "node" => node.to_string()).set(unanswered as f64);
        }
    }
    for (purpose, count) in up {
        gauge!(UP, "purpose" => purpose.name()).set(f64::from(count));
    }
}
