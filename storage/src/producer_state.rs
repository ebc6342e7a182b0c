//! What a partition remembers of its idempotent and transactional producers (KIP-98, KIP-360), as
//! a pure state machine: batches in, verdicts and transaction bounds out.
//!
//! It answers three questions: is this batch new, a repetition, or out of order; where does the
//! first undecided transaction begin (it bounds the last stable offset); which producers may be
//! forgotten. Invariants: at most [`REMEMBERED_BATCHES`] batches per producer, oldest first;
//! `current_txn_first_offset` of a producer is set exactly while its transaction is among the
//! ongoing ones.

use std::collections::{BTreeMap, HashMap, VecDeque};

use odradek_protocol::batch::BatchHeader;
use odradek_protocol::ids::{Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs};
use odradek_protocol::records::RecordWalker;

/// Batches of a producer that are recognized when they come again: as many as a client may have
/// in flight.
pub const REMEMBERED_BATCHES: usize = 5;

/// Who hands a batch in, which decides what is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendOrigin {
    /// A client: epoch and sequence are checked.
    Client,
    /// A coordinator of this broker, which writes without sequence numbers: the epoch is checked.
    Coordinator,
}

/// What is to be done with a batch that is not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is new.
    Accept,
    /// It was appended before, at these offsets, and is answered as it was then.
    Duplicate {
        /// Offset of its first record.
        base_offset: Offset,
        /// Offset of its last record.
        last_offset: Offset,
        /// Largest timestamp it was appended with.
        timestamp: TimestampMs,
    },
}

/// Why a batch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProducerError {
    /// A newer instance of the producer has written (INVALID_PRODUCER_EPOCH).
    #[error("epoch {found} of producer {producer_id} is older than {current}")]
    FencedEpoch {
        /// The producer.
        producer_id: ProducerId,
        /// Epoch of the batch.
        found: ProducerEpoch,
        /// Newest epoch seen.
        current: ProducerEpoch,
    },
    /// A batch before this one is missing (OUT_OF_ORDER_SEQUENCE_NUMBER).
    #[error("sequence {found} of producer {producer_id} after {last}")]
    OutOfOrderSequence {
        /// The producer.
        producer_id: ProducerId,
        /// First sequence number of the batch.
        found: Sequence,
        /// Last sequence number appended, or −1.
        last: Sequence,
    },
    /// A batch outside of a transaction while one of the producer is open (INVALID_TXN_STATE).
    #[error("producer {producer_id} has an open transaction and wrote outside of it")]
    NotInTransaction {
        /// The producer.
        producer_id: ProducerId,
    },
    /// A marker of a transaction coordinator that has been replaced
    /// (TRANSACTION_COORDINATOR_FENCED).
    #[error("coordinator epoch {found} of producer {producer_id} is older than {current}")]
    FencedCoordinator {
        /// The producer.
        producer_id: ProducerId,
        /// Epoch of the marker's coordinator.
        found: i32,
        /// Newest coordinator epoch seen.
        current: i32,
    },
}

/// One batch that is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RememberedBatch {
    /// Sequence number of its last record.
    pub last_sequence: Sequence,
    /// Offset of its last record.
    pub last_offset: Offset,
    /// Offset of its last record minus that of its first.
    pub offset_delta: i32,
    /// Its largest timestamp.
    pub timestamp: TimestampMs,
}

impl RememberedBatch {
    fn of(header: &BatchHeader) -> Self {
        Self {
            last_sequence: header.last_sequence(),
            last_offset: header.last_offset(),
            offset_delta: header.last_offset_delta,
            timestamp: header.max_timestamp,
        }
    }

    /// Sequence number of its first record.
    pub fn first_sequence(&self) -> Sequence {
        // One step back over the wrap: 2³¹ sequence numbers form a circle.
        let first = i64::from(self.last_sequence.get()) - i64::from(self.offset_delta);
        Sequence::new(first.rem_euclid(1 << 31) as i32)
    }

    /// Offset of its first record.
    pub fn base_offset(&self) -> Offset {
        self.last_offset.plus(-i64::from(self.offset_delta))
    }
}

/// What is known of one producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerEntry {
    /// Newest epoch seen.
    pub epoch: ProducerEpoch,
    /// Newest epoch of a transaction coordinator seen in a marker, or −1.
    pub coordinator_epoch: i32,
    /// Timestamp of the last batch or marker.
    pub last_timestamp: TimestampMs,
    /// Where the open transaction begins.
    pub current_txn_first_offset: Option<Offset>,
    /// Whether a marker is all that was ever seen of the producer, as the records before it are
    /// deleted. Its next sequence number cannot be told then.
    pub seen_only_in_marker: bool,
    /// The last batches of this epoch, oldest first.
    pub batches: VecDeque<RememberedBatch>,
}

impl ProducerEntry {
    /// Sequence number of the last record, or −1.
    pub fn last_sequence(&self) -> Sequence {
        self.batches
            .back()
            .map_or(Sequence::NONE, |batch| batch.last_sequence)
    }

    /// Offset of the last data record, or −1.
    pub fn last_offset(&self) -> Offset {
        self.batches
            .back()
            .map_or(Offset::NONE, |batch| batch.last_offset)
    }

    fn raise_epoch(&mut self, epoch: ProducerEpoch) {
        if self.epoch != epoch {
            self.batches.clear();
            self.epoch = epoch;
        }
    }
}

/// How a transaction ended, as its marker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndTxnMarker {
    /// Whether it was aborted rather than committed.
    pub aborted: bool,
    /// Epoch of the coordinator that wrote the marker.
    pub coordinator_epoch: i32,
}

impl EndTxnMarker {
    /// Reads the marker out of a control batch; `None` for control records of another kind.
    pub fn parse(header: &BatchHeader, batch: &[u8]) -> Option<Self> {
        const ABORT: i16 = 0;
        const COMMIT: i16 = 1;
        let record = RecordWalker::of_batch(header, batch).next()?.ok()?;
        let [_, _, kind @ ..] = record.key?.first_chunk::<4>()?;
        let aborted = match i16::from_be_bytes(*kind) {
            ABORT => true,
            COMMIT => false,
            _ => return None,
        };
        let [_, _, coordinator_epoch @ ..] = record.value?.first_chunk::<6>()?;
        Some(Self {
            aborted,
            coordinator_epoch: i32::from_be_bytes(*coordinator_epoch),
        })
    }
}

/// A transaction whose marker has been appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedTxn {
    /// The producer.
    pub producer_id: ProducerId,
    /// Offset of its first record.
    pub first_offset: Offset,
    /// Offset of the marker.
    pub last_offset: Offset,
    /// Whether it was aborted.
    pub aborted: bool,
    /// First offset that is still undecided once this one is, which the transaction index keeps.
    pub last_stable_offset: Offset,
}

/// The state of all producers of a partition, at the end of what has been fed to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProducerStates {
    producers: HashMap<ProducerId, ProducerEntry>,
    /// First offset → producer of the open transactions.
    ongoing: BTreeMap<Offset, ProducerId>,
    /// First → last offset of transactions whose marker is not yet known to be committed, and of what
    /// is held back for such markers ([`ProducerStates::hold_back`]).
    unreplicated: BTreeMap<Offset, Offset>,
}

impl ProducerStates {
    /// Number of producers known.
    pub fn len(&self) -> usize {
        self.producers.len()
    }

    /// Whether no producer is known.
    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }

    /// What is known of a producer.
    pub fn get(&self, producer_id: ProducerId) -> Option<&ProducerEntry> {
        self.producers.get(&producer_id)
    }

    /// All producers, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (ProducerId, &ProducerEntry)> {
        self.producers.iter().map(|(id, entry)| (*id, entry))
    }

    /// Judges a batch that is about to be appended. A producer that is not known may begin with
    /// any sequence number: what was known of it has expired or been deleted.
    pub fn check(
        &self,
        header: &BatchHeader,
        origin: AppendOrigin,
    ) -> Result<Verdict, ProducerError> {
        if !header.has_producer_id() {
            return Ok(Verdict::Accept);
        }
        let producer_id = header.producer_id;
        let Some(entry) = self.producers.get(&producer_id) else {
            return Ok(Verdict::Accept);
        };
        if header.is_control() {
            return Self::check_epoch(entry, header).map(|()| Verdict::Accept);
        }
        if origin == AppendOrigin::Client
            && header.producer_epoch == entry.epoch
            && let Some(batch) = entry.batches.iter().find(|batch| {
                batch.last_sequence == header.last_sequence()
                    && batch.first_sequence() == header.base_sequence
            })
        {
            return Ok(Verdict::Duplicate {
                base_offset: batch.base_offset(),
                last_offset: batch.last_offset,
                timestamp: batch.timestamp,
            });
        }
        Self::check_epoch(entry, header)?;
        if origin == AppendOrigin::Client {
            let last = if header.producer_epoch == entry.epoch {
                entry.last_sequence()
            } else {
                Sequence::NONE
            };
            let in_order = header.base_sequence == last.plus(1)
                || entry.epoch == ProducerEpoch::NONE
                || entry.seen_only_in_marker;
            if !in_order {
                return Err(ProducerError::OutOfOrderSequence {
                    producer_id,
                    found: header.base_sequence,
                    last,
                });
            }
        }
        if entry.current_txn_first_offset.is_some() && !header.is_transactional() {
            return Err(ProducerError::NotInTransaction { producer_id });
        }
        Ok(Verdict::Accept)
    }

    fn check_epoch(entry: &ProducerEntry, header: &BatchHeader) -> Result<(), ProducerError> {
        if header.producer_epoch < entry.epoch {
            return Err(ProducerError::FencedEpoch {
                producer_id: header.producer_id,
                found: header.producer_epoch,
                current: entry.epoch,
            });
        }
        Ok(())
    }

    /// Judges a transaction marker beyond [`ProducerStates::check`]: whether it comes from a
    /// coordinator that has been replaced.
    pub fn check_marker(
        &self,
        producer_id: ProducerId,
        marker: EndTxnMarker,
    ) -> Result<(), ProducerError> {
        match self.producers.get(&producer_id) {
            Some(entry) if entry.coordinator_epoch > marker.coordinator_epoch => {
                Err(ProducerError::FencedCoordinator {
                    producer_id,
                    found: marker.coordinator_epoch,
                    current: entry.coordinator_epoch,
                })
            }
            _ => Ok(()),
        }
    }

    /// Judges a transaction marker that is about to be appended, from whoever writes it. With
    /// `bumps_epoch` its epoch is above that of every batch of the transaction (KIP-890), so one that
    /// is not is late, unless it is the same marker again.
    ///
    /// # Errors
    /// The marker is of an old producer or coordinator.
    pub fn check_end(
        &self,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        marker: EndTxnMarker,
        bumps_epoch: bool,
    ) -> Result<(), ProducerError> {
        let Some(entry) = self.producers.get(&producer_id) else {
            return Ok(());
        };
        let is_late = bumps_epoch
            && epoch == entry.epoch
            && entry.current_txn_first_offset.is_some()
            && epoch.get() != i16::MAX;
        if epoch < entry.epoch || is_late {
            return Err(ProducerError::FencedEpoch {
                producer_id,
                found: epoch,
                current: entry.epoch,
            });
        }
        self.check_marker(producer_id, marker)
    }

    /// Takes account of a batch that has been appended; its header carries its final offsets.
    /// `marker` is what a control batch says. Nothing is refused here: the log has it already.
    pub fn update(
        &mut self,
        header: &BatchHeader,
        marker: Option<EndTxnMarker>,
    ) -> Option<CompletedTxn> {
        if !header.has_producer_id() {
            return None;
        }
        let producer_id = header.producer_id;
        if header.is_control() {
            return marker.and_then(|marker| self.end_txn(header, marker));
        }
        let entry = self
            .producers
            .entry(producer_id)
            .or_insert_with(|| new_entry(header.producer_epoch));
        entry.raise_epoch(header.producer_epoch);
        entry.last_timestamp = header.max_timestamp;
        entry.seen_only_in_marker = false;
        if header.base_sequence.get() >= 0 {
            if entry.batches.len() == REMEMBERED_BATCHES {
                entry.batches.pop_front();
            }
            entry.batches.push_back(RememberedBatch::of(header));
        }
        if header.is_transactional() && entry.current_txn_first_offset.is_none() {
            entry.current_txn_first_offset = Some(header.base_offset);
            self.ongoing.insert(header.base_offset, producer_id);
        }
        None
    }

    fn end_txn(&mut self, header: &BatchHeader, marker: EndTxnMarker) -> Option<CompletedTxn> {
        let entry = self
            .producers
            .entry(header.producer_id)
            .or_insert_with(|| ProducerEntry {
                seen_only_in_marker: true,
                ..new_entry(header.producer_epoch)
            });
        entry.raise_epoch(header.producer_epoch);
        entry.coordinator_epoch = marker.coordinator_epoch;
        entry.last_timestamp = header.max_timestamp;
        // A marker without records before it decides nothing.
        let first_offset = entry.current_txn_first_offset.take()?;
        self.ongoing.remove(&first_offset);
        self.unreplicated.insert(first_offset, header.base_offset);
        Some(CompletedTxn {
            producer_id: header.producer_id,
            first_offset,
            last_offset: header.base_offset,
            aborted: marker.aborted,
            last_stable_offset: self
                .ongoing
                .keys()
                .next()
                .copied()
                .unwrap_or_else(|| header.next_offset()),
        })
    }

    /// First offset of the oldest open transaction.
    pub fn first_undecided_offset(&self) -> Option<Offset> {
        self.ongoing.keys().next().copied()
    }

    /// First offset that read_committed must not pass: of the oldest transaction that is open, or
    /// whose marker is not committed yet.
    pub fn first_unstable_offset(&self) -> Option<Offset> {
        let unreplicated = self.unreplicated.keys().next().copied();
        match (self.first_undecided_offset(), unreplicated) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Notes that everything below `high_watermark` is committed, markers included.
    pub fn on_high_watermark(&mut self, high_watermark: Offset) {
        self.unreplicated.retain(|_, last| *last >= high_watermark);
    }

    /// Has everything from `first` on count as unstable until what is at `last` is committed.
    pub(crate) fn hold_back(&mut self, first: Offset, last: Offset) {
        let until = self.unreplicated.entry(first).or_insert(last);
        *until = last.max(*until);
    }

    /// Goes on holding back what `before` did: the state of the same log before it was cut at
    /// `log_end`. A snapshot does not say which markers below it are not committed.
    pub(crate) fn hold_back_as_before(&mut self, before: &Self, log_end: Offset) {
        for (first, last) in &before.unreplicated {
            self.hold_back(*first, log_end.plus(-1).min(*last));
        }
    }

    /// Notes that everything below `log_start` is gone.
    pub fn on_log_start(&mut self, log_start: Offset) {
        self.unreplicated.retain(|_, last| *last >= log_start);
    }

    /// Forgets producers that have been idle for longer than `expiration_ms`, unless a transaction
    /// of theirs is open. Returns how many went.
    pub fn expire(&mut self, now: TimestampMs, expiration_ms: u64) -> usize {
        let before = self.producers.len();
        let expiration_ms = i64::try_from(expiration_ms).unwrap_or(i64::MAX);
        self.producers.retain(|_, entry| {
            entry.current_txn_first_offset.is_some()
                || now.get().saturating_sub(entry.last_timestamp.get()) < expiration_ms
        });
        before - self.producers.len()
    }

    /// Completes the remembered batches of producers of which a snapshot has kept only the last:
    /// `headers` are some that were appended before, in order.
    pub(crate) fn recall(&mut self, headers: &[BatchHeader]) {
        for header in headers.iter().rev() {
            if !header.has_producer_id() || header.is_control() || header.base_sequence.get() < 0 {
                continue;
            }
            let Some(entry) = self.producers.get_mut(&header.producer_id) else {
                continue;
            };
            let older = entry
                .batches
                .front()
                .is_some_and(|oldest| header.last_offset() < oldest.base_offset());
            if older
                && header.producer_epoch == entry.epoch
                && entry.batches.len() < REMEMBERED_BATCHES
            {
                entry.batches.push_front(RememberedBatch::of(header));
            }
        }
    }

    /// Puts in what a snapshot says of a producer.
    pub(crate) fn restore(&mut self, producer_id: ProducerId, entry: ProducerEntry) {
        if let Some(first_offset) = entry.current_txn_first_offset {
            self.ongoing.insert(first_offset, producer_id);
        }
        self.producers.insert(producer_id, entry);
    }
}

fn new_entry(epoch: ProducerEpoch) -> ProducerEntry {
    ProducerEntry {
        epoch,
        coordinator_epoch: -1,
        last_timestamp: TimestampMs::NONE,
        current_txn_first_offset: None,
        seen_only_in_marker: false,
        batches: VecDeque::new(),
    }
}

#[cfg(test)]
mod tests {
    use odradek_protocol::records::{BatchBuilder, NewRecord};

    use super::*;
    use crate::producer_snapshot;

    const PRODUCER: ProducerId = ProducerId::new(7);

    fn header(offset: i64, epoch: i16, sequence: i32, count: usize, txn: bool) -> BatchHeader {
        let mut builder = BatchBuilder::new()
            .base_offset(Offset::new(offset))
            .producer(PRODUCER, ProducerEpoch::new(epoch), Sequence::new(sequence));
        if txn {
            builder = builder.transactional();
        }
        for _ in 0..count {
            builder.push(NewRecord {
                timestamp: TimestampMs::new(1000 + offset),
                ..NewRecord::default()
            });
        }
        BatchHeader::parse(&builder.build()).unwrap()
    }

    fn end(
        states: &mut ProducerStates,
        offset: i64,
        epoch: i16,
        aborted: bool,
    ) -> Option<CompletedTxn> {
        let mut marker = header(offset, epoch, -1, 1, true);
        marker.attributes = marker.attributes.with_control(true);
        states.update(
            &marker,
            Some(EndTxnMarker {
                aborted,
                coordinator_epoch: 3,
            }),
        )
    }

    fn after(headers: &[BatchHeader]) -> ProducerStates {
        let mut states = ProducerStates::default();
        for header in headers {
            assert_eq!(
                states.check(header, AppendOrigin::Client),
                Ok(Verdict::Accept)
            );
            states.update(header, None);
        }
        states
    }

    fn check(states: &ProducerStates, epoch: i16, sequence: i32) -> Result<Verdict, ProducerError> {
        states.check(
            &header(999, epoch, sequence, 1, false),
            AppendOrigin::Client,
        )
    }

    fn is_out_of_order(result: &Result<Verdict, ProducerError>) -> bool {
        matches!(result, Err(ProducerError::OutOfOrderSequence { .. }))
    }

    #[test]
    fn a_sequence_that_reaches_the_largest_number_goes_on_with_zero() {
        let states = after(&[header(0, 0, i32::MAX - 1, 2, false)]);
        assert_eq!(check(&states, 0, 0), Ok(Verdict::Accept));
        assert!(is_out_of_order(&check(&states, 0, 1)));
        // A batch across the wrap is remembered by its first and last number.
        let wrapped = header(0, 0, i32::MAX, 3, false);
        let states = after(&[wrapped]);
        assert_eq!(
            states.check(&wrapped, AppendOrigin::Client),
            Ok(Verdict::Duplicate {
                base_offset: Offset::new(0),
                last_offset: Offset::new(2),
                timestamp: TimestampMs::new(1000),
            })
        );
        assert_eq!(check(&states, 0, 2), Ok(Verdict::Accept));
    }

    #[test]
    fn the_last_five_batches_are_answered_with_their_offsets_and_no_older_one() {
        let batches: Vec<_> = (0..7)
            .map(|i| header(i * 2, 0, i as i32 * 2, 2, false))
            .collect();
        let states = after(&batches);
        for (index, batch) in batches.iter().enumerate() {
            let verdict = states.check(batch, AppendOrigin::Client);
            if index < 2 {
                assert!(is_out_of_order(&verdict), "batch {index}");
            } else {
                assert!(
                    matches!(verdict, Ok(Verdict::Duplicate { base_offset, .. })
                        if base_offset == batch.base_offset),
                    "batch {index}"
                );
            }
        }
    }

    #[test]
    fn gaps_repetitions_of_parts_and_old_epochs_are_refused() {
        let states = after(&[header(0, 1, 0, 3, false)]);
        assert!(is_out_of_order(&check(&states, 1, 4)));
        assert!(is_out_of_order(&check(&states, 1, 2)));
        assert!(matches!(
            check(&states, 0, 3),
            Err(ProducerError::FencedEpoch { .. })
        ));
        assert_eq!(check(&states, 2, 0), Ok(Verdict::Accept));
        assert!(is_out_of_order(&check(&states, 2, 3)));
    }

    #[test]
    fn a_producer_that_expired_goes_on_with_any_sequence() {
        let mut states = after(&[header(0, 0, 0, 3, false)]);
        assert_eq!(states.expire(TimestampMs::new(1999), 1000), 0);
        assert_eq!(states.expire(TimestampMs::new(2000), 1000), 1);
        assert_eq!(check(&states, 0, 3), Ok(Verdict::Accept));
    }

    #[test]
    fn an_open_transaction_keeps_its_producer_from_expiring() {
        let mut states = after(&[header(0, 0, 0, 3, true)]);
        assert_eq!(states.expire(TimestampMs::new(i64::MAX), 1000), 0);
    }

    #[test]
    fn a_producer_of_which_only_a_marker_is_left_goes_on_with_any_sequence() {
        let mut states = ProducerStates::default();
        assert_eq!(end(&mut states, 40, 0, false), None);
        assert_eq!(check(&states, 0, 17), Ok(Verdict::Accept));
        states.update(&header(41, 0, 17, 1, false), None);
        assert!(is_out_of_order(&check(&states, 0, 20)));
    }

    #[test]
    fn sequences_go_on_over_the_end_of_a_transaction() {
        let mut states = after(&[header(0, 0, 0, 3, true)]);
        end(&mut states, 3, 0, false);
        assert_eq!(check(&states, 0, 3), Ok(Verdict::Accept));
    }

    #[test]
    fn the_stable_offset_waits_for_the_oldest_transaction_and_for_its_marker_to_be_committed() {
        let other = ProducerId::new(8);
        let mut first_of_other = header(5, 0, 0, 2, true);
        first_of_other.producer_id = other;
        let mut states = after(&[header(2, 0, 0, 3, true), first_of_other]);
        assert_eq!(states.first_unstable_offset(), Some(Offset::new(2)));
        let completed = end(&mut states, 7, 0, true).unwrap();
        assert!(completed.aborted);
        assert_eq!(completed.first_offset, Offset::new(2));
        assert_eq!(completed.last_stable_offset, Offset::new(5));
        assert_eq!(states.first_undecided_offset(), Some(Offset::new(5)));
        assert_eq!(states.first_unstable_offset(), Some(Offset::new(2)));
        states.on_high_watermark(Offset::new(7));
        assert_eq!(states.first_unstable_offset(), Some(Offset::new(2)));
        states.on_high_watermark(Offset::new(8));
        assert_eq!(states.first_unstable_offset(), Some(Offset::new(5)));
    }

    #[test]
    fn a_batch_outside_of_the_open_transaction_is_refused() {
        let states = after(&[header(0, 0, 0, 3, true)]);
        assert_eq!(
            check(&states, 0, 3),
            Err(ProducerError::NotInTransaction {
                producer_id: PRODUCER
            })
        );
    }

    #[test]
    fn a_marker_of_a_replaced_coordinator_is_refused() {
        let mut states = after(&[header(0, 0, 0, 3, true)]);
        end(&mut states, 3, 0, false);
        let marker = |coordinator_epoch| EndTxnMarker {
            aborted: false,
            coordinator_epoch,
        };
        assert!(states.check_marker(PRODUCER, marker(2)).is_err());
        assert!(states.check_marker(PRODUCER, marker(3)).is_ok());
    }

    #[test]
    fn a_marker_that_raises_the_epoch_must_be_above_the_open_transaction() {
        let mut states = after(&[header(0, 1, 0, 3, true)]);
        let marker = EndTxnMarker {
            aborted: false,
            coordinator_epoch: 3,
        };
        let check = |states: &ProducerStates, epoch, bumps_epoch| {
            states
                .check_end(PRODUCER, ProducerEpoch::new(epoch), marker, bumps_epoch)
                .is_ok()
        };
        assert!(!check(&states, 0, false));
        assert!(check(&states, 1, false));
        assert!(!check(&states, 1, true));
        assert!(check(&states, 2, true));
        end(&mut states, 3, 2, false);
        assert!(check(&states, 2, true), "the same marker comes again");
        states.update(&header(4, 2, 0, 1, true), None);
        assert!(
            !check(&states, 2, true),
            "it would end the next transaction"
        );
    }

    #[test]
    fn coordinators_write_without_sequence_numbers() {
        let mut offsets = header(0, 0, -1, 2, true);
        let mut states = ProducerStates::default();
        for offset in 0..3 {
            offsets.base_offset = Offset::new(offset * 2);
            assert_eq!(
                states.check(&offsets, AppendOrigin::Coordinator),
                Ok(Verdict::Accept)
            );
            states.update(&offsets, None);
        }
        assert_eq!(states.first_undecided_offset(), Some(Offset::new(0)));
    }

    #[test]
    fn a_snapshot_reads_back_and_the_batches_it_leaves_out_are_recalled() {
        let batches: Vec<_> = (0..6)
            .map(|i| header(i * 2, 0, i as i32 * 2, 2, true))
            .collect();
        let states = after(&batches);
        let bytes = producer_snapshot::encode(&states);
        let mut restored = producer_snapshot::decode(&bytes).unwrap();
        assert_eq!(restored.first_undecided_offset(), Some(Offset::new(0)));
        assert_eq!(restored.get(PRODUCER).unwrap().batches.len(), 1);
        restored.recall(&batches);
        assert_eq!(restored, states);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(producer_snapshot::decode(&damaged).is_err(), "byte {at}");
            assert!(
                producer_snapshot::decode(&bytes[..at]).is_err(),
                "length {at}"
            );
        }
    }
}
