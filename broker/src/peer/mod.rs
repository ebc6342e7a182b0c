//! Nodes among themselves: one connection a pair, direction and purpose, on the listeners of the
//! cluster.
//!
//! - [`message`]: what nodes ask of one another; `odradek_raft::wire` has the bytes of replication.
//! - [`identity`], [`address`], [`limits`], [`error`]: who, where, how much, why not.
//! - `hello`, `frame`, `call`: the bytes of a connection, from its first on.
//! - [`peers`], `link`: the asking side; `conduit`, `asking`, `append_stream`: a connection of it.
//! - [`server`], `known`: the answering side; `answering`, `served`: a connection of it; `admission`: what
//!   who has connected may do.
//! - `outbox`, `mailbox`: what is on its way to a socket, or from one to whom it concerns.
//! - [`network`]: the asking side as the Raft groups see it. [`throttle`]: what holds it back.
//! - [`metrics`]: what is counted.
//!
//! How a node is put together, in this order, for each needs the one before:
//!
//! 1. [`AddressBook`] of the configured voters, [`LocalNode`] of `meta.properties`, [`Peers`] of both;
//! 2. `RaftNode` with [`Peers::network`], which is also its transport of probes;
//! 3. [`PeerServer`] of both, handed to [`crate::server::Server::start`] with listeners of which
//!    those for nodes say so. From here on groups can elect leaders; clients wait;
//! 4. [`PeerServer::set_service`] once requests of other brokers can be answered, and
//!    [`crate::dispatch::DispatcherSlot::fill`] once those of clients can.
//!
//! [`AddressBook::set_registered`] follows the metadata, [`Peers::set_cluster_id`] is called when the
//! cluster's id is learned, and [`Peers::stop`] comes after the server's stop.
//!
//! A node asks on connections that it has made and answers on those that were made to it. Between
//! two nodes there are thus two connections a purpose, and neither side has to agree with the other
//! on who connects.

pub mod address;
mod admission;
mod answering;
mod append_stream;
mod asking;
mod call;
mod conduit;
pub mod error;
mod frame;
mod hello;
pub mod identity;
pub mod kafka_calls;
mod known;
pub mod limits;
mod link;
mod mailbox;
pub mod message;
pub mod metrics;
pub mod network;
mod outbox;
pub mod peers;
mod served;
pub mod server;
#[cfg(test)]
pub(crate) mod tests;
pub mod throttle;

pub use address::{AddressBook, PeerAddress};
pub use error::PeerError;
pub use hello::{PROTOCOL_MAX, PROTOCOL_WITH_INCARNATIONS};
pub use identity::{Caller, LocalNode, PeerIdentity, Purpose};
pub use kafka_calls::ask_broker;
pub use limits::PeerLimits;
pub use link::OwnAddress;
pub use message::{PeerReply, PeerRequest};
pub use network::Network;
pub use peers::Peers;
pub(crate) use server::{Arrival, PeerEnd};
pub use server::{PeerServer, PeerService};
pub use throttle::Throttles;
