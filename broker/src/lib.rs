//! The broker: listeners, dispatch, request handlers and coordinators over Raft groups.

pub mod context;
pub mod fetch_plan;
pub mod fetch_sessions;
pub mod handlers;
pub mod metadata;
pub mod partition;
pub mod waiters;
