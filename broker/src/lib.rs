//! The broker: listeners, dispatch, request handlers and coordinators over Raft groups.

pub mod broker;
pub mod clock;
pub mod config;
mod connection;
pub mod context;
pub mod data_dir;
pub mod data_metrics;
pub mod dispatch;
pub mod fetch_plan;
pub mod fetch_service;
pub mod fetch_sessions;
pub mod follower;
pub mod groups;
pub mod handlers;
pub mod http;
pub mod leading;
pub mod memory;
pub mod metadata;
pub mod metrics;
pub mod partition;
pub mod partitions;
pub mod peer;
pub mod raft_stack;
pub mod server;
pub mod topic_config;
pub mod waiters;
