//! The runtime of coordinators: it keeps pure state machines alive on top of a log.
//!
//! A coordinator is one [`StateMachine`] for each partition of a topic that this broker leads, a
//! [`Shard`]. Before a shard answers anything it replays its partition up to the high watermark.
//! From then on it is the only writer of the partition:
//!
//! 1. a request, or a timer, changes the state at once and yields records and replies;
//! 2. the records go to the log as one batch, in order, without waiting for earlier batches;
//! 3. the replies leave once everything appended so far has committed. A reply without records of
//!    its own waits too, so no reply ever tells of a state that could still be taken back.
//!
//! Invariants: state = replay(log up to the last appended batch), as far as it is written down;
//! replies leave in the order of the commits they wait for; batches in flight ≤
//! [`ShardOptions::max_in_flight`]; requests in the mailbox ≤ [`ShardOptions::mailbox_len`].
//!
//! If an append fails its outcome is unknown: it may still commit. So the speculative state is not
//! repaired but thrown away, every waiting request fails with a retriable error, and the shard
//! loads anew from the log, once everything that it has appended has committed, also what is not in the
//! log yet. A shard whose partition is led elsewhere or whose disk is gone ends.
//!
//! When the disk is nearly full ([`Room`](crate::partitions::log_dir::Room)), a state machine is told to refuse what
//! only adds; when there is no room at all, what may write is refused before it gets there, and no timer fires. So
//! no state has to be thrown away because of that, and whoever only reads is answered.
//!
//! Nothing here knows what a group is: other coordinators bring their own state machine.

pub mod effects;
pub mod end_marker;
pub mod fields;
pub mod host;
pub mod hosting;
mod log;
#[cfg(test)]
pub(crate) mod memory_log;
pub mod metrics;
pub mod partition_log;
pub mod partitioner;
mod replay;
mod shard;
#[cfg(test)]
mod tests;
mod timers;
pub mod topic;

use bytes::Bytes;
use odradek_protocol::ids::TimestampMs;
use odradek_storage::producer_state::EndTxnMarker;
use std::fmt::Debug;
use std::hash::Hash;
use thiserror::Error;

pub use log::{AppendCommit, CommittedBatches, CoordinatorLog, LogFailure};
pub use shard::{Shard, ShardOptions};

use effects::{Effects, ProducerIdentity, RequestToken};

/// A record as a state machine writes it.
pub trait LogRecord {
    /// The key; records with equal keys replace one another.
    fn encode_key(&self) -> Bytes;
    /// The value, `None` for a tombstone.
    fn encode_value(&self) -> Option<Bytes>;
}

/// The effects of a state machine.
pub type EffectsOf<S> =
    Effects<<S as StateMachine>::Record, <S as StateMachine>::Reply, <S as StateMachine>::Timer>;

/// The pure core of a coordinator.
///
/// `now` is wall time, for what is written down. Deadlines are relative and are the shell's.
pub trait StateMachine: Send + 'static {
    /// What can be asked of it.
    type Request: Send + 'static;
    /// What it answers.
    type Reply: Send + 'static;
    /// What it writes.
    type Record: LogRecord;
    /// What it wants to be woken for.
    type Timer: Clone + Debug + Eq + Hash + Send + 'static;

    /// Takes account of a committed record, while loading. What it cannot read it says in the
    /// log and passes over: one damaged record must not take every group of its partition along.
    fn replay(&mut self, key: Option<&[u8]>, value: Option<&[u8]>, now: TimestampMs);

    /// Takes account of a committed record that belongs to a transaction of `producer`, while
    /// loading. Whether it counts is said by [`Self::replay_end`], if the transaction has ended.
    fn replay_in_transaction(
        &mut self,
        producer: ProducerIdentity,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        now: TimestampMs,
    ) {
        let _ = (key, value, now);
        tracing::warn!(?producer, "a record of a transaction is passed over");
    }

    /// Takes account of the end of a transaction of `producer`, while loading.
    fn replay_end(&mut self, producer: ProducerIdentity, marker: EndTxnMarker, now: TimestampMs) {
        let _ = (producer, marker, now);
    }

    /// The log has been replayed; called once before the first request.
    fn loaded(&mut self, now: TimestampMs, effects: &mut EffectsOf<Self>);

    /// Handles a request. It is answered, now or later, exactly once.
    fn handle(
        &mut self,
        token: RequestToken,
        request: Self::Request,
        now: TimestampMs,
        effects: &mut EffectsOf<Self>,
    );

    /// Whether nothing is written for the request, so that it is answered however full the disk is.
    fn only_reads(&self, request: &Self::Request) -> bool;

    /// A timer has fired. It is gone until it is set again.
    fn timer_fired(&mut self, timer: Self::Timer, now: TimestampMs, effects: &mut EffectsOf<Self>);
}

/// Why a shard did not answer.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ShardError {
    /// The log is still being read.
    #[error("the coordinator is loading")]
    Loading,
    /// The partition is led elsewhere, or its disk has failed.
    #[error("this is not the coordinator")]
    NotCoordinator,
    /// Too many requests wait, or a write did not go through. It may or may not have happened.
    #[error("the coordinator is not available")]
    Unavailable,
}
