//! The cluster's metadata: what exists, where it lives and how it is configured.
//!
//! The metadata log is the single truth. `records` are its contents, `image` is what they add up
//! to, and the controller turns a command into the records that carry it out, or a refusal. Only
//! `service`, `following` and `checkpoint` do I/O: they write to the log's Raft group, read back what has
//! been committed, and write the image down so that the log need not be kept for ever.

pub mod checkpoint;
pub mod config_rules;
pub mod controller;
pub mod features;
mod following;
pub mod image;
pub mod leader_report;
pub mod led;
pub mod placement;
pub mod producer_ids;
pub mod records;
pub mod refusal;
pub mod replay;
pub mod service;
pub mod tally;
pub mod topic_name;
pub mod topics;

#[cfg(test)]
mod sim;
#[cfg(test)]
pub(crate) mod test_support;
