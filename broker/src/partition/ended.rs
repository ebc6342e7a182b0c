//! Transactions that have been ended here, so that an end which is told once more, and late, is not taken
//! for that of the next transaction.
//!
//! A client older than KIP-890 keeps its epoch from one transaction to the next, and a marker carries nothing
//! that says which of them it ends. The coordinator says when the transaction began, which is later for every
//! one of the same epoch. What was told in an earlier term of the leader is not known here: an end that is
//! delayed until the same broker has ceased to lead and leads again is taken as it comes.
//!
//! Invariants: one entry a producer, at most [`MAX_ENDED`]; without room nothing is remembered.

use std::collections::HashMap;

use odradek_protocol::ids::{LeaderEpoch, ProducerEpoch, ProducerId, TimestampMs};

use super::in_flight::SequenceFault;
use super::ticket::SharedOutcome;
use super::transactions::TxnEnd;
use super::{Partition, PartitionError};

/// Producers that are remembered.
const MAX_ENDED: usize = 65_536;
/// How long one is, in milliseconds: longer than a message between brokers is waited for.
const KEPT_MS: i64 = 10 * 60 * 1_000;

#[derive(Debug)]
struct Ended {
    epoch: ProducerEpoch,
    started_at: TimestampMs,
    /// What becomes of the marker; `None` if it is committed.
    outcome: Option<SharedOutcome>,
    told_at: TimestampMs,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Ends {
    term: LeaderEpoch,
    producers: HashMap<ProducerId, Ended>,
}

impl Default for Ends {
    fn default() -> Self {
        Self {
            term: LeaderEpoch::NONE,
            producers: HashMap::new(),
        }
    }
}

/// What an end comes to.
#[derive(Debug)]
pub(crate) enum Told {
    /// It is to be written.
    First,
    /// The same has been told before. What becomes of that; `None` if it is committed.
    Again(Option<SharedOutcome>),
}

impl Ends {
    fn enter(&mut self, term: LeaderEpoch) {
        if self.term != term {
            self.term = term;
            self.producers.clear();
        }
    }

    /// Whether an end was told before in this term.
    ///
    /// # Errors
    /// A later transaction of the producer has been ended since.
    pub(super) fn told(&mut self, term: LeaderEpoch, end: TxnEnd) -> Result<Told, PartitionError> {
        self.enter(term);
        let id = end.producer.id;
        let known = self.producers.get(&id).filter(|known| {
            is_told_apart(end)
                && known.epoch == end.producer.epoch
                && known.started_at >= end.started_at
        });
        let Some(known) = known else {
            return Ok(Told::First);
        };
        if known.started_at > end.started_at {
            return Err(SequenceFault::FencedEpoch.into());
        }
        let has_failed = known
            .outcome
            .as_ref()
            .is_some_and(SharedOutcome::has_failed);
        Ok(match has_failed {
            true => Told::First,
            false => Told::Again(known.outcome.clone()),
        })
    }

    /// An end has been told in this term.
    pub(super) fn note(
        &mut self,
        term: LeaderEpoch,
        end: TxnEnd,
        outcome: Option<SharedOutcome>,
        now: TimestampMs,
    ) {
        let id = end.producer.id;
        let has_room = self.producers.len() < MAX_ENDED || self.producers.contains_key(&id);
        if self.term != term || !is_told_apart(end) || !has_room {
            return;
        }
        let ended = Ended {
            epoch: end.producer.epoch,
            started_at: end.started_at,
            outcome,
            told_at: now,
        };
        self.producers.insert(id, ended);
    }

    /// Drops what was told long ago.
    pub(super) fn sweep(&mut self, now: TimestampMs) {
        self.producers
            .retain(|_, ended| now.get().saturating_sub(ended.told_at.get()) < KEPT_MS);
    }
}

/// Whether it is known which transaction it ends, and the epoch does not say so.
fn is_told_apart(end: TxnEnd) -> bool {
    !end.bumps_epoch && end.started_at != TimestampMs::NONE
}

impl Partition {
    /// Whether a coordinator of this broker, which keeps the partition as its log, is to write the marker
    /// there. It has been written before if not.
    ///
    /// # Errors
    /// The marker is of an old producer or coordinator, or a later transaction has been ended since.
    pub fn check_marker(&self, term: LeaderEpoch, end: TxnEnd) -> Result<bool, PartitionError> {
        let mut ordering = self.ordering.lock();
        ordering.check_end(end, &self.reader())?;
        let told = ordering.told(term, end)?;
        Ok(matches!(told, Told::First))
    }

    /// The coordinator has written the marker, and it is committed.
    pub fn note_marker(&self, term: LeaderEpoch, end: TxnEnd) {
        let now = self.clock.wall();
        self.ordering.lock().ended.note(term, end, None, now);
    }
}
