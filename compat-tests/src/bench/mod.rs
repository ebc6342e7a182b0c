//! The benchmark: Odradek and Kafka measured in one run, by the same clients, and the ratios.
//!
//! Ours always syncs before it acknowledges; Kafka runs as it comes and once more with
//! `flush.messages=1`. Machines differ and are noisy, so the disk's own limits are measured in the
//! same run and every figure is read as a ratio.

pub mod clients;
pub mod clusters;
pub mod disk;
pub mod groups;
pub mod nodes;
pub mod report;
pub mod spread;
pub mod transactions;
pub mod workloads;
