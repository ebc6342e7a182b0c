//! What a broker does for the partitions that it leads, beside serving them.
//!
//! - `supervisor`: the task that does it all.
//! - `isr`: which replicas are in sync.
//! - `reassignment`, `mover`: the next step towards the replicas that the metadata wants.
//! - `truth`, `reports`, `metadata_leader`: what is to be told to the metadata leader.
//! - `hand_over`: giving leaderships away.
//! - `changes`, `commits`: which leaderships have changed, and which high watermarks.

pub mod changes;
pub mod commits;
pub mod hand_over;
pub mod isr;
pub mod metadata_leader;
mod mover;
pub mod reassignment;
pub mod reports;
pub mod supervisor;
#[cfg(test)]
pub(crate) mod test_cluster;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod transaction_tests;
mod truth;

pub use changes::LeadershipChanges;
pub use commits::Commits;
pub use hand_over::{HandOverError, give_away, hand_over, hand_over_all};
pub use metadata_leader::{MetadataLeader, ReportError};
pub use supervisor::{Supervisor, SupervisorOptions};
