//! What a node does because there are other nodes.
//!
//! - [`join`]: getting into the cluster, or founding it.
//! - [`controllers`]: asking whoever leads the metadata.
//! - [`service`]: answering other nodes.
//! - [`duties`], [`sessions`]: what the metadata leader does without being asked.
//! - [`node`]: all of it put together for one process.
//!
//! A node on its own has none of this.

pub mod controllers;
pub mod duties;
pub mod join;
pub mod node;
pub mod service;
pub mod sessions;

pub use controllers::{Controllers, Unanswered};
pub use node::ClusterNode;
pub use service::ClusterService;
