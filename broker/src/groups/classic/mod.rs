//! Classic consumer groups: the members assign partitions among themselves, the coordinator only
//! carries them through rebalances (KIP-62, KIP-134, KIP-345, KIP-394, KIP-559, KIP-814).
//!
//! A pure state machine. [`ClassicGroup`] is what a group is, `transitions` what happens to it.
//!
//! ```text
//!            join                    all joined or time is up
//! Empty ──────────► PreparingRebalance ──────────► CompletingRebalance
//!   ▲                   ▲        │ nobody is left      │        │ leader sent the assignment
//!   └───────────────────┼────────┘                     │        ▼
//!                       └──────────────────────────────┴───── Stable
//!                          a member joins, leaves or falls silent
//! ```
//!
//! A group that does not exist is Dead; it has no value of this type.
//!
//! Invariants:
//! - the generation grows by one with every completed rebalance and never goes back;
//! - in CompletingRebalance and Stable no member awaits a join, and the leader is a member;
//! - a protocol is chosen only if every member supports it;
//! - a member that was left out of a generation gets no reply that carries it.
//!
//! Every generation that reached Stable or Empty has its record; one that did not is forgotten by
//! a new coordinator, whose members then find their own generation unknown and join again.

mod group;
mod member;
mod subscription;
mod transitions;

#[cfg(test)]
mod tests;

pub use group::{ClassicGroup, OffsetLifetime};
pub(super) use transitions::Context;
