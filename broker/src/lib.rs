//! The broker: listeners, dispatch, request handlers and coordinators over Raft groups.

mod blocking;
pub mod broker;
pub mod clock;
pub mod cluster;
pub mod config;
mod connection;
pub mod context;
pub mod coordinator;
#[cfg(test)]
mod coordinators_sim;
pub mod data_dir;
pub mod data_dirs;
pub mod data_metrics;
pub mod descriptors;
pub mod dispatch;
pub mod fetch_plan;
pub mod fetch_service;
pub mod fetch_sessions;
pub mod follower;
pub mod groups;
pub mod handlers;
pub mod http;
mod http_connections;
pub mod leading;
pub mod log_levels;
pub mod memory;
pub mod metadata;
pub mod metrics;
pub mod partition;
pub mod partitions;
pub mod peer;
pub mod raft_stack;
pub mod server;
pub mod shared_map;
#[cfg(test)]
mod sim_support;
pub mod telemetry;
#[cfg(test)]
mod test_random;
pub mod topic_config;
pub mod txn;
pub mod waiters;
