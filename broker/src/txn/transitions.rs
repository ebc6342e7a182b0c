//! What one transactional id may do: the rules of KIP-98, KIP-360, KIP-588 and KIP-890.
//!
//! Pure. Every function takes the transaction as it is and gives the one that is to be; the
//! coordinator writes it and answers once it is committed.
//!
//! Invariants: the epoch of a producer id never falls; no client is given the largest epoch, so that
//! there is always one to fence it with; what is decided is changed by nothing but its completion.

use odradek_protocol::ids::{ProducerEpoch, ProducerId, TimestampMs};

use super::error::TxnError;
use super::messages::{AddRequest, EndRequest, InitRequest, Refusal};
use super::names::TxnVersion;
use super::records::{Transaction, TxnPartitions, TxnState};
use crate::coordinator::effects::ProducerIdentity;

/// The largest epoch that a client is given.
const LAST_EPOCH: i16 = i16::MAX - 1;

impl Transaction {
    /// A transactional id whose producer is not initialized yet.
    pub fn new(producer_id: ProducerId, now: TimestampMs) -> Self {
        Self {
            producer_id,
            previous_producer_id: ProducerId::NONE,
            next_producer_id: ProducerId::NONE,
            epoch: ProducerEpoch::NONE,
            last_epoch: ProducerEpoch::NONE,
            timeout_ms: 0,
            state: TxnState::Empty,
            partitions: TxnPartitions::new(),
            started_at: TimestampMs::NONE,
            updated_at: now,
            client_version: TxnVersion::V0,
        }
    }

    /// The producer, as its batches and markers name it.
    pub const fn producer(&self) -> ProducerIdentity {
        ProducerIdentity {
            id: self.producer_id,
            epoch: self.epoch,
        }
    }

    /// With what the producer goes on once this transaction is completed.
    pub fn producer_after_completion(&self) -> ProducerIdentity {
        if self.client_version.bumps_epoch() && self.next_producer_id != ProducerId::NONE {
            return ProducerIdentity {
                id: self.next_producer_id,
                epoch: ProducerEpoch::new(0),
            };
        }
        self.producer()
    }

    fn is_exhausted(&self) -> bool {
        is_exhausted(self.epoch)
    }

    /// Whether `producer` may ask for a new epoch: nobody has been initialized, it is the producer
    /// as it is, or it was given a new id and has not heard of it.
    pub fn may_go_on(&self, producer: ProducerIdentity) -> bool {
        self.epoch == ProducerEpoch::NONE
            || producer.id == self.producer_id
            || (producer.id == self.previous_producer_id && is_exhausted(producer.epoch))
    }

    /// The producer is initialized, and is the only one from then on. Not while a transaction is
    /// open or being completed.
    pub fn initialized(&self, request: &InitRequest, now: TimestampMs) -> Result<Self, Refusal> {
        let expected = request.expected;
        if !expected.is_none_or(|producer| self.may_go_on(producer)) {
            return Err(TxnError::ProducerFenced.into());
        }
        let mut next = Self {
            previous_producer_id: self.producer_id,
            timeout_ms: request.timeout_ms,
            state: TxnState::Empty,
            partitions: TxnPartitions::new(),
            started_at: TimestampMs::NONE,
            updated_at: now,
            ..self.clone()
        };
        if self.is_exhausted() && expected.is_none_or(|producer| producer.epoch == self.epoch) {
            next.producer_id = request.fresh.ok_or(Refusal::NeedsProducerId)?;
            next.epoch = ProducerEpoch::new(0);
            next.last_epoch = match expected {
                Some(_) => self.epoch,
                None => ProducerEpoch::NONE,
            };
            return Ok(next);
        }
        match expected.map(|producer| producer.epoch) {
            None => {
                next.epoch = after(self.epoch);
                next.last_epoch = ProducerEpoch::NONE;
            }
            Some(epoch) if self.epoch == ProducerEpoch::NONE || epoch == self.epoch => {
                next.epoch = after(self.epoch);
                next.last_epoch = self.epoch;
            }
            // It has asked before and not heard the answer.
            Some(epoch) if epoch == self.last_epoch => {}
            Some(_) => return Err(TxnError::ProducerFenced.into()),
        }
        Ok(next)
    }

    /// The open transaction is aborted because its time is up or its producer starts anew. Whoever
    /// wrote with the old epoch is fenced. `version` is that of the cluster.
    ///
    /// The epoch that fences is the one of the markers, too: since KIP-890 the end of a transaction raises the epoch,
    /// and here that has been done (Kafka raised it twice until KAFKA-19367). Where it does, the producer whose
    /// transaction it was may ask for the new epoch with its old one, as after any end (KIP-588).
    pub fn fenced(&self, version: TxnVersion, now: TimestampMs) -> Self {
        Self {
            state: TxnState::PrepareAbort,
            epoch: after(self.epoch),
            last_epoch: match version.bumps_epoch() {
                true => self.epoch,
                false => ProducerEpoch::NONE,
            },
            next_producer_id: ProducerId::NONE,
            updated_at: now,
            client_version: version,
            ..self.clone()
        }
    }

    /// Whether `producer` may add to the transaction or ask about it.
    pub fn check_producer(&self, producer: ProducerIdentity) -> Result<(), TxnError> {
        if producer.id != self.producer_id {
            Err(TxnError::InvalidProducerIdMapping)
        } else if producer.epoch != self.epoch {
            Err(TxnError::ProducerFenced)
        } else {
            Ok(())
        }
    }

    /// Whether all the partitions are part of the open transaction.
    pub fn has_all(&self, request: &AddRequest) -> bool {
        self.state == TxnState::Ongoing
            && request.topics.iter().all(|asked| {
                self.partitions.get(&asked.name).is_some_and(|known| {
                    known.id == asked.id
                        && asked
                            .partitions
                            .iter()
                            .all(|index| known.partitions.contains(index))
                })
            })
    }

    /// The partitions are part of the transaction, which begins with them if it has not begun.
    pub fn with_partitions(&self, request: &AddRequest, now: TimestampMs) -> Self {
        let mut next = Self {
            state: TxnState::Ongoing,
            updated_at: now,
            client_version: request.client_version,
            ..self.clone()
        };
        if self.state != TxnState::Ongoing {
            next.started_at = self.next_start(now);
            next.partitions = TxnPartitions::new();
        }
        for asked in &request.topics {
            let topic = next.partitions.entry(asked.name.clone()).or_default();
            // Of a topic that was made again meanwhile the newest counts: what was written to the
            // old one is gone.
            topic.id = asked.id;
            topic.partitions.extend(&asked.partitions);
        }
        next
    }

    /// When a transaction begins that begins now: later than the last one of the same epoch, so that the two
    /// are told apart, whatever the clock says.
    fn next_start(&self, now: TimestampMs) -> TimestampMs {
        now.max(TimestampMs::new(self.started_at.get().saturating_add(1)))
    }

    /// Decides the transaction as its producer asks for. `Ok(None)` if it has been decided so
    /// before. Not while it is being completed.
    pub fn ended(&self, request: &EndRequest, now: TimestampMs) -> Result<Option<Self>, Refusal> {
        match request.client_version.bumps_epoch() {
            true => self.ended_with_new_epoch(request, now),
            false => self.ended_with_old_epoch(request, now),
        }
    }

    fn ended_with_old_epoch(
        &self,
        request: &EndRequest,
        now: TimestampMs,
    ) -> Result<Option<Self>, Refusal> {
        self.check_producer(request.producer)?;
        match (self.state, request.committed) {
            (TxnState::Ongoing, _) => self.decided(request, now, false).map(Some),
            (TxnState::CompleteCommit, true) | (TxnState::CompleteAbort, false) => Ok(None),
            _ => Err(TxnError::InvalidState.into()),
        }
    }

    /// A producer that asks again shows it by an epoch that is one behind. One that is not behind
    /// speaks of the next transaction, which may be aborted before anything was written in it.
    fn ended_with_new_epoch(
        &self,
        request: &EndRequest,
        now: TimestampMs,
    ) -> Result<Option<Self>, Refusal> {
        let producer = request.producer;
        let is_completed = matches!(
            self.state,
            TxnState::CompleteCommit | TxnState::CompleteAbort
        );
        let asked_with_last_id = is_completed
            && producer.id == self.previous_producer_id
            && producer.epoch.get() == LAST_EPOCH
            && self.epoch.get() == 0;
        let next_epoch = i32::from(producer.epoch.get()) + 1;
        let asked_with_last_epoch = is_completed && next_epoch == i32::from(self.epoch.get());
        if producer.id != self.producer_id && !asked_with_last_id {
            return Err(TxnError::InvalidProducerIdMapping.into());
        }
        let asks_again = asked_with_last_epoch || asked_with_last_id;
        if producer.epoch != self.epoch && !asks_again {
            return Err(TxnError::ProducerFenced.into());
        }
        match (self.state, request.committed) {
            (TxnState::Ongoing, _) => self.decided(request, now, false).map(Some),
            (TxnState::CompleteCommit, true) | (TxnState::CompleteAbort, false) if asks_again => {
                Ok(None)
            }
            (TxnState::Empty | TxnState::CompleteCommit | TxnState::CompleteAbort, false)
                if !asks_again =>
            {
                self.decided(request, now, true).map(Some)
            }
            _ => Err(TxnError::InvalidState.into()),
        }
    }

    fn decided(
        &self,
        request: &EndRequest,
        now: TimestampMs,
        begins_now: bool,
    ) -> Result<Self, Refusal> {
        let mut next = Self {
            state: match request.committed {
                true => TxnState::PrepareCommit,
                false => TxnState::PrepareAbort,
            },
            updated_at: now,
            client_version: request.client_version,
            next_producer_id: ProducerId::NONE,
            ..self.clone()
        };
        if begins_now {
            next.started_at = self.next_start(now);
            next.partitions = TxnPartitions::new();
        }
        if request.client_version.bumps_epoch() {
            if self.is_exhausted() {
                next.next_producer_id = request.fresh.ok_or(Refusal::NeedsProducerId)?;
            }
            next.epoch = after(self.epoch);
            next.last_epoch = self.epoch;
        }
        Ok(next)
    }

    /// Every partition knows the outcome.
    pub fn completed(&self, now: TimestampMs) -> Self {
        let producer = self.producer_after_completion();
        Self {
            state: match self.state {
                TxnState::PrepareCommit => TxnState::CompleteCommit,
                _ => TxnState::CompleteAbort,
            },
            previous_producer_id: self.producer_id,
            producer_id: producer.id,
            epoch: producer.epoch,
            next_producer_id: ProducerId::NONE,
            partitions: TxnPartitions::new(),
            updated_at: now,
            ..self.clone()
        }
    }

    /// Whether the transaction has been open for longer than it may.
    pub fn is_timed_out(&self, now: TimestampMs) -> bool {
        self.state == TxnState::Ongoing
            && self
                .started_at
                .get()
                .saturating_add(i64::from(self.timeout_ms))
                < now.get()
    }

    /// Whether nobody has used the id for `expiration_ms`.
    pub fn is_expired(&self, now: TimestampMs, expiration_ms: i64) -> bool {
        let is_idle = matches!(
            self.state,
            TxnState::Empty | TxnState::CompleteCommit | TxnState::CompleteAbort
        );
        is_idle && self.updated_at.get().saturating_add(expiration_ms) <= now.get()
    }
}

fn is_exhausted(epoch: ProducerEpoch) -> bool {
    epoch.get() >= LAST_EPOCH
}

/// The next epoch. The largest stays: no client ever has it, so it fences all the same.
fn after(epoch: ProducerEpoch) -> ProducerEpoch {
    ProducerEpoch::new(epoch.get().saturating_add(1))
}
