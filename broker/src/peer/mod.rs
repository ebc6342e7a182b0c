//! Nodes among themselves: one connection a pair, direction and purpose, on the listeners of the
//! cluster.
//!
//! - [`message`]: what nodes ask of one another; `odradek_raft::wire` has the bytes of replication.
//! - [`identity`], [`address`], [`limits`], [`error`]: who, where, how much, why not.
//! - [`peers`]: the asking side. [`network`]: the same as the Raft groups see it.
//! - [`server`]: the answering side.

pub mod address;
pub mod error;
pub mod identity;
pub mod limits;
pub mod message;
pub mod network;
pub mod peers;
pub mod server;

pub use address::{AddressBook, PeerAddress};
pub use error::PeerError;
pub use identity::{LocalNode, PeerIdentity, Purpose};
pub use limits::PeerLimits;
pub use message::{PeerReply, PeerRequest};
pub use network::Network;
pub use peers::Peers;
pub use server::{PeerServer, PeerService};
