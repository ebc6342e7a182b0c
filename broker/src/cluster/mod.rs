//! What a node does because there are other nodes.
//!
//! - [`quorum`], [`join`]: finding the cluster and getting into it, or founding it.
//! - `auto_join`: a controller that adds itself to the voters.
//! - `checkpoints`: having checkpoints of the metadata from other nodes.
//! - [`controllers`]: asking whoever leads the metadata.
//! - [`service`]: answering other nodes.
//! - [`duties`], [`sessions`]: what the metadata leader does without being asked.
//! - [`unclean`]: elections that may lose records.
//! - [`node`]: all of it put together for one process.
//!
//! A node on its own has none of this.

mod auto_join;
mod checkpoints;
pub mod controllers;
pub mod duties;
pub mod join;
pub mod node;
pub mod quorum;
pub mod service;
pub mod sessions;
pub mod unclean;

pub use controllers::{Controllers, Unanswered};
pub use node::ClusterNode;
pub use service::ClusterService;
