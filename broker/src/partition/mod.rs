//! One partition of a topic as the broker serves it: a Raft group plus what producers and fetches
//! need around it.

pub mod in_flight;
