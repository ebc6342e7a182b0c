//! The broker: listeners, dispatch, request handlers and coordinators over Raft groups.

pub mod context;
pub mod handlers;
pub mod metadata;
