//! Clusters under faults, and clusters that are set up or used wrongly.
//!
//! - [`campaigns`]: a short run of the nemesis, in which every kind of fault happens once;
//! - [`stalls`]: how long a client waits when a leader fails, and what it notices of a rolling restart;
//! - [`strangers`]: nodes that do not belong, or disagree with the others;
//! - [`wishes`]: topics and reassignments that ask for what cannot be, and very many of them;
//! - [`clocks`]: a node whose clock is wrong;
//! - [`streams`]: an application of Kafka Streams with exactly-once, of which instances are killed, and nodes;
//! - [`checkpoints`]: a metadata log that does not begin at its beginning any more.
//!
//! Every random test prints its seed; `ODRADEK_SEED` replays it. What is timed, and what loads the machine, has it for
//! itself ([`alone`]); the rest may run beside each other ([`beside`]).
#![allow(missing_docs)]

mod campaigns;
mod checkpoints;
mod clocks;
mod shared;
mod stalls;
mod strangers;
mod streams;
mod wishes;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static MACHINE: RwLock<()> = RwLock::new(());

/// Waits until no other test of this program runs, and keeps the others waiting.
fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for those that must be alone.
fn beside() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}
