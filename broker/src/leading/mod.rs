//! What a broker does for the partitions that it leads, beside serving them.
//!
//! - `isr`: which replicas are in sync.
//! - `reassignment`: the next step towards the replicas that the metadata wants.
//! - `reports`: what is still to be told to the metadata leader.

pub mod isr;
pub mod reassignment;
pub mod reports;
