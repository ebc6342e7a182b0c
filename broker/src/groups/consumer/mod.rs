//! Consumer groups of the protocol of KIP-848, where the coordinator assigns.
//!
//! A member tells its subscription in its heartbeats and hears its partitions in their answers. A
//! change of the group raises its epoch; a target assignment for that epoch is computed; each member
//! then goes towards it at its own pace (`reconcile`). Members of the classic protocol may be in
//! such a group (`classic_members`) while an application moves from one to the other
//! (`migration`).
//!
//! Everything is pure. What changes a group is its records ([`group`]), the same live as in replay.
//! Regular expressions are looked up outside, for they may take long ([`regexes`]).
//!
//! Absent on purpose: assignors of the user's own, which Kafka loads as Java classes.

pub mod assignment;
pub mod assignors;
#[cfg(test)]
pub(crate) mod bench;
mod classic_members;
mod context;
pub mod group;
mod heartbeat;
#[cfg(test)]
mod history_tests;
pub mod member;
mod migration;
#[cfg(test)]
mod migration_tests;
mod reconcile;
pub mod regexes;
mod settings;
#[cfg(test)]
mod tests;
mod topics;

pub(in crate::groups) use context::Context;
pub use context::Refusal;
pub use group::ConsumerGroup;
pub(in crate::groups) use migration::{downgrades_without, from_classic, to_classic};
pub use settings::{
    ASSIGNMENT_INTERVAL_KEY, BoundedMs, GroupSettings, HEARTBEAT_INTERVAL_KEY, MigrationPolicy,
    SESSION_TIMEOUT_KEY,
};

/// The kind of classic protocol whose members are consumers.
pub(super) const CONSUMER_PROTOCOL_TYPE: &str = "consumer";
