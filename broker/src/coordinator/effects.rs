//! What a pure coordinator asks its shell to do.
//!
//! A state machine changes its own state at once and describes everything else here: records to
//! append, replies to give, timers to set. The shell promises that no reply leaves before every
//! record appended up to then has committed, so a reply never tells of a state that a crash could
//! take back.

use odradek_protocol::ids::{ProducerEpoch, ProducerId};
use odradek_storage::producer_state::EndTxnMarker;

/// One instance of a transactional producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProducerIdentity {
    /// Its id.
    pub id: ProducerId,
    /// Its epoch.
    pub epoch: ProducerEpoch,
}

/// What kind of batch the records of one event go into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BatchKind {
    /// They count as soon as they are committed.
    #[default]
    Plain,
    /// They count once the transaction of this producer is committed.
    Transactional(ProducerIdentity),
    /// No record, but the marker that ends the transaction of this producer.
    EndMarker(ProducerIdentity, EndTxnMarker),
}

/// Stands for the sender of a request until it is answered. Unique within a shard's lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestToken(u64);

impl RequestToken {
    /// Wraps a number that the shell has not used before.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }
}

/// A change to a timer. Delays are relative, because the shell measures them on a clock that
/// never jumps, unlike the one that stamps records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimerChange<T> {
    /// Fire `timer` after `after_ms` milliseconds, replacing an earlier deadline of the same timer.
    Set {
        /// Which timer.
        timer: T,
        /// Milliseconds from now.
        after_ms: u64,
    },
    /// Do not fire the timer.
    Cancel(T),
}

/// Everything that one event caused. `R` is the record, `P` the reply, `T` the timer.
#[derive(Debug)]
pub struct Effects<R, P, T> {
    /// Records to append, in order.
    pub records: Vec<R>,
    /// What kind of batch they go into.
    pub batch: BatchKind,
    /// Replies to give once everything appended so far has committed.
    pub replies: Vec<(RequestToken, P)>,
    /// Changes to timers, in order.
    pub timers: Vec<TimerChange<T>>,
    /// Said by the shell: the disk is nearly full, and nothing is to be written for a client but what ends or
    /// deletes something.
    pub is_scarce: bool,
}

impl<R, P, T> Default for Effects<R, P, T> {
    fn default() -> Self {
        Self {
            records: Vec::new(),
            batch: BatchKind::Plain,
            replies: Vec::new(),
            timers: Vec::new(),
            is_scarce: false,
        }
    }
}

impl<R, P, T> Effects<R, P, T> {
    /// Answers `token`.
    pub fn reply(&mut self, token: RequestToken, reply: P) {
        self.replies.push((token, reply));
    }

    /// Sets `timer` to fire after `after_ms`; a negative delay is due at once.
    pub fn set_timer(&mut self, timer: T, after_ms: i64) {
        self.timers.push(TimerChange::Set {
            timer,
            after_ms: u64::try_from(after_ms).unwrap_or(0),
        });
    }

    /// Cancels `timer`.
    pub fn cancel_timer(&mut self, timer: T) {
        self.timers.push(TimerChange::Cancel(timer));
    }
}
