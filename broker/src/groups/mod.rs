//! The group coordinator: who is in a group, who reads what, and how far they have read.
//!
//! [`classic`] is the state machine of one group, [`offsets`] the store of committed offsets, and
//! [`coordinator`] both for all groups of one partition of `__consumer_offsets`. They are pure.
//! [`runtime`] keeps such a state machine alive on top of its partition's log; [`service`] finds
//! the one that a group belongs to, and [`attendant`] has it run where its partition is led.

pub mod attendant;
#[cfg(test)]
pub(crate) mod bench;
pub mod classic;
pub mod config;
pub mod coordinator;
pub mod effects;
pub mod error;
#[cfg(test)]
mod history_tests;
pub mod member_memory;
pub mod messages;
pub mod metrics;
pub mod names;
pub mod offsets;
#[cfg(test)]
mod offsets_tests;
pub mod partition_log;
pub mod partitioner;
pub mod records;
pub mod runtime;
pub mod service;
pub mod topic;

pub use service::Service;
