//! The cluster's metadata: what exists, where it lives and how it is configured.
//!
//! The metadata log is the single truth. `records` are its contents, `image` is what they add up
//! to, and the controller turns a command into the records that carry it out, or a refusal. Only
//! `service` does I/O: it writes to the log's Raft group and reads back what has been committed.

pub mod config_rules;
pub mod controller;
pub mod features;
pub mod image;
pub mod leader_report;
pub mod placement;
pub mod producer_ids;
pub mod records;
pub mod refusal;
pub mod replay;
pub mod service;
pub mod topic_name;
pub mod topics;

#[cfg(test)]
pub(crate) mod test_support;
