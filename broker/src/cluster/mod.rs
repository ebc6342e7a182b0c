//! What a node does because there are other nodes.
//!
//! - [`quorum`], [`join`]: finding the cluster and getting into it, or founding it.
//! - `auto_join`: a controller that adds itself to the voters.
//! - `checkpoints`: having checkpoints of the metadata from other nodes.
//! - [`controllers`]: asking whoever leads the metadata.
//! - [`service`]: answering other nodes; `members`: which of them belong here.
//! - `hearsay`: who votes on the metadata, by what others say.
//! - [`duties`], [`sessions`]: what the metadata leader does without being asked.
//! - [`unclean`]: elections that may lose records.
//! - `waits`: what a node that has registered waits for.
//! - [`node`]: all of it put together for one process.
//!
//! A node on its own has none of this.

mod auto_join;
mod checkpoints;
pub mod controllers;
pub mod duties;
mod hearsay;
pub mod join;
mod members;
pub mod node;
pub mod quorum;
pub mod service;
pub mod sessions;
pub mod unclean;
mod waits;

pub use controllers::{Controllers, Unanswered};
pub use node::ClusterNode;
pub use service::ClusterService;
