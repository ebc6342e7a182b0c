//! Raft groups.
