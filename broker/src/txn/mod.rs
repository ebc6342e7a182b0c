//! The transaction coordinator (KIP-98, KIP-360, KIP-890): which producer holds a transactional id,
//! what its transaction has touched, and how it ends.
//!
//! [`transitions`] are the rules of one transactional id, and [`coordinator`] all ids of one partition
//! of `__transaction_state`; they are pure. [`crate::coordinator`] keeps such a state machine alive on
//! top of its partition's log, [`service`] finds the one that an id belongs to, [`attendant`] has it run
//! where its partition is led. What is decided reaches partitions through [`teller`] and [`delivery`];
//! partitions ask whether a transaction is open through [`asking`].
//!
//! Absent on purpose: two-phase commit with an outside coordinator (KIP-939).

pub mod asking;
pub mod attendant;
pub mod config;
pub mod coordinator;
#[cfg(test)]
mod coordinator_tests;
pub mod delivery;
mod elsewhere;
pub mod error;
#[cfg(test)]
mod history_tests;
pub mod markers;
pub mod messages;
pub mod metrics;
pub mod names;
pub mod records;
pub mod service;
pub mod teller;
pub mod topic;
pub mod transitions;

pub use service::Service;
