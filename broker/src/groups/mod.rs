//! The group coordinator: who is in a group, who reads what, and how far they have read.
//!
//! [`classic`] is the state machine of one group of the classic protocol, [`consumer`] that of one of
//! KIP-848's, [`offsets`] the store of committed offsets, and [`coordinator`] all of them for the groups
//! of one partition of `__consumer_offsets`. They are pure.
//! [`crate::coordinator`] keeps such a state machine alive on top of its partition's log; [`service`] finds
//! the one that a group belongs to, and [`attendant`] has it run where its partition is led.

pub mod attendant;
#[cfg(test)]
pub(crate) mod bench;
pub mod classic;
pub mod config;
pub mod consumer;
pub mod consumer_protocol;
pub mod coordinator;
pub mod ends;
pub mod error;
pub mod group;
#[cfg(test)]
mod history_tests;
pub mod member_memory;
pub mod messages;
pub mod metrics;
pub mod names;
pub mod offsets;
#[cfg(test)]
mod offsets_tests;
pub mod records;
pub mod service;
pub mod staged;
pub mod topic;
pub mod transactions;

pub use service::Service;
