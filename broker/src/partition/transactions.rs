//! Transactions in one partition: which batches may begin one here, and the markers that end them.
//!
//! A transactional batch of a producer that has no transaction open here is taken only after the
//! coordinator has said that there is one which includes this partition (KIP-890). Between question
//! and append nothing is locked, so the question leaves a trace, the [`Guard`]; a marker wipes it
//! out. A batch whose guard is gone is not taken: it came too late, and would begin a transaction
//! that nobody ends. So does the end of the term in which it was asked: other leaders may have written
//! markers since.
//!
//! Invariants: at most [`MAX_UNVERIFIED`] producers are asked about at a time; a producer's lowest
//! sequence number that was asked about goes first, so that none is skipped when it is refused.

use std::collections::HashMap;

use odradek_protocol::batch::{BatchHeader, BatchOrigin};
use odradek_protocol::ids::{LeaderEpoch, ProducerEpoch, ProducerId, Sequence, TimestampMs};
use odradek_raft::Proposal;
use odradek_storage::LogReader;
use odradek_storage::producer_state::{EndTxnMarker, ProducerStates};
use tokio::sync::oneshot;

use super::ended::{Ends, Told};
use super::in_flight::{
    AppendedVerdict, InFlight, LastInFlight, SequenceFault, SequencedBatch, Verdict,
};
use super::refused::Refused;
use super::ticket::SharedOutcome;
use super::{Appending, Partition, PartitionError};
use crate::coordinator::effects::ProducerIdentity;
use crate::coordinator::end_marker;

/// Producers that may be asked about at a time.
const MAX_UNVERIFIED: usize = 65_536;
/// How long the trace of a question is kept that led to nothing, in milliseconds.
const TRACE_MS: i64 = 10 * 60 * 1_000;

/// Proof that the coordinator was asked about a producer, and that nothing has ended its
/// transaction here since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    term: LeaderEpoch,
    number: u64,
    /// Whether the client raises its epoch with every transaction.
    pub bumps_epoch: bool,
}

/// A batch that may be taken once the coordinator has been asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unverified {
    /// Whose batch it is.
    pub producer: ProducerIdentity,
    /// What the batch is to be handed in with.
    pub guard: Guard,
}

/// How batches of transactions are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    /// They are taken without a question (`transaction.partition.verification.enable=false`).
    Off,
    /// The coordinator has not been asked.
    Needed {
        /// Whether the client raises its epoch with every transaction.
        bumps_epoch: bool,
    },
    /// The coordinator has said that the partition is part of the transaction.
    Done(Guard),
}

/// The end of a transaction, as the coordinator tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxnEnd {
    /// Whose transaction it is.
    pub producer: ProducerIdentity,
    /// How it ended.
    pub marker: EndTxnMarker,
    /// Whether the epoch is above that of every batch of the transaction.
    pub bumps_epoch: bool,
    /// When the transaction began, by its coordinator; none if that does not say so.
    pub started_at: TimestampMs,
}

#[derive(Debug)]
struct Trace {
    epoch: ProducerEpoch,
    lowest: Sequence,
    number: u64,
    asked_at: TimestampMs,
}

/// The questions under way in one term of this broker's leadership, by producer.
#[derive(Debug)]
pub(super) struct Traces {
    term: LeaderEpoch,
    producers: HashMap<ProducerId, Trace>,
    next_number: u64,
}

impl Default for Traces {
    fn default() -> Self {
        Self {
            term: LeaderEpoch::NONE,
            producers: HashMap::new(),
            next_number: 0,
        }
    }
}

impl Traces {
    /// What was asked in an earlier term counts for nothing.
    fn enter(&mut self, term: LeaderEpoch) {
        if self.term != term {
            self.term = term;
            self.producers.clear();
        }
    }

    /// Notes that the coordinator is about to be asked.
    fn ask(
        &mut self,
        header: &BatchHeader,
        bumps_epoch: bool,
        now: TimestampMs,
    ) -> Result<Unverified, PartitionError> {
        let (epoch, sequence) = (header.producer_epoch, header.base_sequence);
        if self.producers.len() >= MAX_UNVERIFIED {
            return Err(PartitionError::Busy);
        }
        let next_number = &mut self.next_number;
        let trace = self.producers.entry(header.producer_id).or_insert_with(|| {
            *next_number += 1;
            Trace {
                epoch,
                lowest: sequence,
                number: *next_number,
                asked_at: now,
            }
        });
        if epoch > trace.epoch {
            (trace.epoch, trace.lowest) = (epoch, sequence);
        } else if epoch == trace.epoch {
            trace.lowest = trace.lowest.min(sequence);
        }
        trace.asked_at = now;
        Ok(Unverified {
            producer: ProducerIdentity {
                id: header.producer_id,
                epoch,
            },
            guard: Guard {
                term: self.term,
                number: trace.number,
                bumps_epoch,
            },
        })
    }

    /// Whether a batch may be appended with `guard`.
    fn check(&self, header: &BatchHeader, guard: Guard) -> Result<(), PartitionError> {
        if guard.term != self.term {
            return Err(PartitionError::NotLeader { leader: None });
        }
        match self.producers.get(&header.producer_id) {
            Some(trace) if trace.number == guard.number => {
                match header.base_sequence > trace.lowest {
                    true => Err(PartitionError::OutOfOrderSequence),
                    false => Ok(()),
                }
            }
            _ => Err(PartitionError::NotInTransaction),
        }
    }

    /// A transaction of the producer has ended. A client that raises its epoch with every transaction may by then
    /// have asked about the next one, whose epoch is that of the marker.
    fn end(&mut self, end: TxnEnd) {
        let (id, epoch) = (end.producer.id, end.producer.epoch);
        let is_of_next =
            |trace: &Trace| trace.epoch > epoch || trace.epoch == epoch && end.bumps_epoch;
        if !self.producers.get(&id).is_some_and(is_of_next) {
            self.forget(id);
        }
    }

    /// The producer's transaction has begun here.
    pub(super) fn forget(&mut self, producer_id: ProducerId) {
        self.producers.remove(&producer_id);
    }

    /// Drops what led to nothing long ago.
    pub(super) fn sweep(&mut self, now: TimestampMs) {
        self.producers
            .retain(|_, trace| now.get().saturating_sub(trace.asked_at.get()) < TRACE_MS);
    }
}

/// The producer state of what is in the log.
pub(crate) trait AppendedProducers {
    /// Looks at it.
    fn look<T>(&self, read: impl FnOnce(&ProducerStates) -> T) -> T;
}

impl AppendedProducers for LogReader {
    fn look<T>(&self, read: impl FnOnce(&ProducerStates) -> T) -> T {
        self.with_producers(read)
    }
}

/// A batch of a producer that is about to be appended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    pub header: &'a BatchHeader,
    /// The term of this broker's leadership.
    pub term: LeaderEpoch,
    pub verification: Verification,
    pub now: TimestampMs,
}

/// What becomes of a batch that is not refused; `D` describes where a duplicate stands.
#[derive(Debug)]
pub(crate) enum Judged<D> {
    /// It is to be proposed, and [`Ordering::proposed`] told.
    New,
    /// Its first copy is in flight.
    InFlight(SharedOutcome),
    /// Its first copy is in the log.
    Appended(D),
}

/// What orders the appends of a partition: what is in flight and what has been asked about, on top of
/// what is in the log. Pure.
#[derive(Debug, Default)]
pub(crate) struct Ordering {
    pub(super) in_flight: InFlight<SharedOutcome>,
    pub(super) traces: Traces,
    pub(super) ended: Ends,
    pub(super) refused: Refused,
}

impl Ordering {
    /// Whether a batch with a producer id may be appended. `appended` is the verdict of the log's own
    /// state.
    pub(crate) fn judge<D>(
        &mut self,
        batch: Candidate<'_>,
        producers: &impl AppendedProducers,
        appended: impl FnOnce() -> AppendedVerdict<D>,
    ) -> Result<Judged<D>, PartitionError> {
        match self.in_flight.check(&sequenced(batch.header), appended) {
            Verdict::Next => {
                self.check_transaction(batch, producers)?;
                // A producer that is not known may begin with any sequence number, but not with this one.
                let has_gap = self.refused.has_gap_before(batch.header, batch.now);
                match has_gap && self.is_unknown(batch.header.producer_id, producers) {
                    true => Err(PartitionError::RefusedBefore),
                    false => Ok(Judged::New),
                }
            }
            Verdict::DuplicateInFlight(first_copy) => {
                self.refused.taken(batch.header);
                Ok(Judged::InFlight(first_copy))
            }
            Verdict::DuplicateAppended(place) => {
                self.refused.taken(batch.header);
                Ok(Judged::Appended(place))
            }
            Verdict::Refused(fault) => {
                self.check_transaction(batch, producers)?;
                let has_gap = fault == SequenceFault::OutOfOrder
                    && self.refused.has_gap_before(batch.header, batch.now);
                Err(match has_gap {
                    true => PartitionError::RefusedBefore,
                    false => fault.into(),
                })
            }
        }
    }

    /// A batch that was judged to be new has been proposed.
    pub(crate) fn proposed(&mut self, header: &BatchHeader, outcome: SharedOutcome) {
        let is_transactional = header.is_transactional();
        if is_transactional {
            self.traces.forget(header.producer_id);
        }
        self.refused.taken(header);
        self.in_flight
            .record(sequenced(header), is_transactional, outcome);
    }

    /// Whether the coordinator has to be asked about a batch that will be refused. As in Kafka that comes first: what
    /// the coordinator says goes before what is wrong with the batch, and its transaction may begin with the question.
    ///
    /// # Errors
    /// It has to be asked.
    pub(crate) fn ask_first(
        &mut self,
        batch: Candidate<'_>,
        producers: &impl AppendedProducers,
    ) -> Result<(), PartitionError> {
        match batch.verification {
            Verification::Needed { .. } => self.check_transaction(batch, producers),
            Verification::Off | Verification::Done(_) => Ok(()),
        }
    }

    /// Whether a transactional batch may be taken as far as its transaction goes.
    fn check_transaction(
        &mut self,
        batch: Candidate<'_>,
        producers: &impl AppendedProducers,
    ) -> Result<(), PartitionError> {
        let header = batch.header;
        self.traces.enter(batch.term);
        if !header.is_transactional() {
            return Ok(());
        }
        let producer = ProducerIdentity {
            id: header.producer_id,
            epoch: header.producer_epoch,
        };
        // As in Kafka that goes before the question, whose answer may be that nobody knows the transactional id.
        if self.has_fenced(producer, producers) {
            return Err(match batch.verification {
                Verification::Needed { .. } => PartitionError::FencedBeforeQuestion,
                Verification::Off | Verification::Done(_) => PartitionError::FencedProducerEpoch,
            });
        }
        if self.is_in_transaction(header, producers) {
            return Ok(());
        }
        match batch.verification {
            Verification::Off => Ok(()),
            Verification::Needed { bumps_epoch } => {
                let asked = self.traces.ask(header, bumps_epoch, batch.now)?;
                Err(PartitionError::Unverified(asked))
            }
            Verification::Done(guard) => {
                self.traces.check(header, guard)?;
                // Such a client begins every transaction with 0, so what came before is missing.
                if guard.bumps_epoch
                    && header.base_sequence.get() != 0
                    && self.is_unknown(header.producer_id, producers)
                {
                    return Err(PartitionError::OutOfOrderSequence);
                }
                Ok(())
            }
        }
    }

    /// Whether nothing is known of a producer here.
    fn is_unknown(&self, id: ProducerId, producers: &impl AppendedProducers) -> bool {
        self.in_flight.last(id).is_none() && producers.look(|states| states.get(id).is_none())
    }

    /// Whether a later epoch of the producer is known here.
    fn has_fenced(&self, producer: ProducerIdentity, producers: &impl AppendedProducers) -> bool {
        let in_flight = self.in_flight.last(producer.id);
        in_flight.is_some_and(|last| last.epoch() > producer.epoch)
            || producers.look(|states| {
                let known = states.get(producer.id);
                known.is_some_and(|known| known.epoch > producer.epoch)
            })
    }

    /// Whether the producer of the batch has a transaction open here, with this epoch.
    fn is_in_transaction(&self, header: &BatchHeader, producers: &impl AppendedProducers) -> bool {
        match self.in_flight.last(header.producer_id) {
            Some(LastInFlight::Marker(_)) => return false,
            Some(LastInFlight::Transactional(epoch)) => return epoch == header.producer_epoch,
            Some(LastInFlight::Plain(_)) | None => {}
        }
        producers.look(|states| {
            states.get(header.producer_id).is_some_and(|known| {
                known.current_txn_first_offset.is_some() && known.epoch == header.producer_epoch
            })
        })
    }

    /// Whether a marker may be written.
    ///
    /// # Errors
    /// The marker is of an old producer or coordinator.
    pub(crate) fn check_end(
        &self,
        end: TxnEnd,
        producers: &impl AppendedProducers,
    ) -> Result<(), PartitionError> {
        let in_flight = self.in_flight.last(end.producer.id);
        if in_flight.is_some_and(|last| last.epoch() > end.producer.epoch) {
            return Err(SequenceFault::FencedEpoch.into());
        }
        if end.bumps_epoch
            && let Some(LastInFlight::Transactional(epoch)) = in_flight
            && epoch == end.producer.epoch
        {
            return Err(SequenceFault::FencedEpoch.into());
        }
        let (producer, marker) = (end.producer, end.marker);
        producers
            .look(|states| states.check_end(producer.id, producer.epoch, marker, end.bumps_epoch))
            .map_err(PartitionError::from)
    }

    /// Whether the same end was told before in this term of the leader.
    ///
    /// # Errors
    /// A later transaction of the producer has been ended since.
    pub(crate) fn told(&mut self, term: LeaderEpoch, end: TxnEnd) -> Result<Told, PartitionError> {
        self.ended.told(term, end)
    }

    /// A marker that was checked has been proposed in this term.
    pub(crate) fn proposed_end(
        &mut self,
        end: TxnEnd,
        term: LeaderEpoch,
        outcome: SharedOutcome,
        now: TimestampMs,
    ) {
        self.ended.note(term, end, Some(outcome.clone()), now);
        self.traces.end(end);
        self.in_flight
            .record_marker(end.producer.id, end.producer.epoch, outcome);
    }
}

fn sequenced(header: &BatchHeader) -> SequencedBatch {
    SequencedBatch {
        producer_id: header.producer_id,
        epoch: header.producer_epoch,
        first: header.base_sequence,
        last: header.last_sequence(),
    }
}

impl Partition {
    /// Whether a later epoch of the producer is known here, so that nothing of it is taken any more.
    pub fn has_fenced(&self, producer: ProducerIdentity) -> bool {
        self.ordering.lock().has_fenced(producer, &self.reader())
    }

    /// Enqueues the marker that ends a transaction of this partition. A marker for a transaction that
    /// has ended before, or has never written here, is written all the same, but for one that is known to
    /// have been written in this term (`partition/ended.rs`): the producer's next transaction may have begun.
    ///
    /// # Errors
    /// The marker is of an old producer or coordinator, a later transaction has been ended since, or it
    /// cannot be written now.
    pub fn append_marker(&self, end: TxnEnd) -> Result<Appending, PartitionError> {
        let epoch = self.require_writable(None, BatchOrigin::Coordinator)?;
        let settings = self.settings.load();
        let more_than_majority = self.require_in_sync(epoch, settings.min_insync_replicas)?;
        let batch = end_marker::build(end.producer, end.marker, self.clock.wall());
        let header = BatchHeader::parse(&batch)?;
        let (committed_sender, committed) = oneshot::channel();
        let mut ordering = self.ordering.lock();
        ordering.check_end(end, &self.reader())?;
        let events = std::sync::Arc::clone(&self.events);
        match ordering.told(epoch, end)? {
            Told::Again(Some(outcome)) => {
                return Ok(Appending::shared(outcome, None, None, events).and(more_than_majority));
            }
            // Only of what a coordinator wrote into its own log it is noted that it is committed, and no marker
            // gets there in this way.
            Told::Again(None) | Told::First => {}
        }
        self.group.propose(Proposal {
            batch,
            header,
            appended: None,
            committed: committed_sender,
        })?;
        self.directory.take_room(header.size_in_bytes());
        let outcome = SharedOutcome::new(committed);
        ordering.proposed_end(end, epoch, outcome.clone(), self.clock.wall());
        Ok(Appending::shared(outcome, None, None, events).and(more_than_majority))
    }
}
