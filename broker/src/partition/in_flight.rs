//! Batches of idempotent producers between their acceptance and their commit (KIP-98, KIP-360).
//!
//! A partition accepts the next batch of a producer before the previous one has reached the log,
//! so the sequence check needs more than the state of the log: it is made against the *appended*
//! state overlaid with what is in flight. A batch that is sent again while its first copy is still
//! in flight shares the ticket of that copy, and so is answered with its offset and only once it
//! is durable.
//!
//! Invariants:
//! - the batches of one producer stand in the order in which they were proposed;
//! - between neighbours of one epoch, `earlier.last + 1 = later.first` (wrapping);
//! - epochs never fall from front to back;
//! - a settled batch is already part of the appended state (or failed), so it may be dropped at
//!   any time; it is dropped when its producer sends again, or by [`InFlight::sweep`].
//!
//! Absent on purpose: a limit of its own. What is in flight is bounded by the proposal queue of
//! the Raft group.

use std::collections::{HashMap, VecDeque};

use odradek_protocol::ids::{ProducerEpoch, ProducerId, Sequence};

/// The part of a batch header that the sequence check looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequencedBatch {
    /// Producer of the batch; never [`ProducerId::NONE`].
    pub producer_id: ProducerId,
    /// Epoch of that producer.
    pub epoch: ProducerEpoch,
    /// Sequence of the first record.
    pub first: Sequence,
    /// Sequence of the last record, wrapped.
    pub last: Sequence,
}

/// Why a batch does not fit behind what its producer sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceFault {
    /// The batch does not continue the producer's sequence.
    OutOfOrder,
    /// A newer instance of the producer has written already.
    FencedEpoch,
    /// The producer has an open transaction and the batch is not part of it.
    OutsideTransaction,
    /// The end of the producer's last transaction is on its way into the log.
    MarkerInFlight,
}

/// What the appended state alone says about a batch; `D` describes where a duplicate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendedVerdict<D> {
    /// It continues the producer's sequence, or the producer is unknown.
    Next,
    /// It is in the log already.
    Duplicate(D),
    /// It does not fit.
    Refused(SequenceFault),
}

impl<D> AppendedVerdict<D> {
    /// The same verdict, with what `describe` makes of the place of a duplicate.
    pub fn map<E>(self, describe: impl FnOnce(D) -> E) -> AppendedVerdict<E> {
        match self {
            Self::Next => AppendedVerdict::Next,
            Self::Duplicate(place) => AppendedVerdict::Duplicate(describe(place)),
            Self::Refused(fault) => AppendedVerdict::Refused(fault),
        }
    }
}

/// What the overlaid state says about a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<T, D> {
    /// Propose it, then [`InFlight::record`] it.
    Next,
    /// Its first copy is in flight under this ticket.
    DuplicateInFlight(T),
    /// Its first copy is in the log.
    DuplicateAppended(D),
    /// It does not fit.
    Refused(SequenceFault),
}

/// The fate of a proposed batch, shared by everyone who waits for it.
pub trait Ticket: Clone {
    /// Whether the batch has committed or failed.
    fn is_settled(&self) -> bool;
}

/// What a producer has in flight last, with its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastInFlight {
    /// A batch outside of any transaction.
    Plain(ProducerEpoch),
    /// A batch of a transaction.
    Transactional(ProducerEpoch),
    /// The end of a transaction.
    Marker(ProducerEpoch),
}

impl LastInFlight {
    /// The epoch.
    pub const fn epoch(self) -> ProducerEpoch {
        match self {
            Self::Plain(epoch) | Self::Transactional(epoch) | Self::Marker(epoch) => epoch,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Transactional,
    Marker,
}

#[derive(Debug)]
struct Batch<T> {
    sequenced: SequencedBatch,
    kind: Kind,
    ticket: T,
}

/// The overlay of one partition.
#[derive(Debug)]
pub struct InFlight<T> {
    producers: HashMap<ProducerId, VecDeque<Batch<T>>>,
}

impl<T> Default for InFlight<T> {
    fn default() -> Self {
        Self {
            producers: HashMap::new(),
        }
    }
}

impl<T: Ticket> InFlight<T> {
    /// Judges `batch`; `appended` is asked for the verdict of the log's own producer state, at
    /// most once and only where it matters.
    pub fn check<D>(
        &mut self,
        batch: &SequencedBatch,
        appended: impl FnOnce() -> AppendedVerdict<D>,
    ) -> Verdict<T, D> {
        self.drop_settled(batch.producer_id);
        let Some(in_flight) = self.producers.get(&batch.producer_id) else {
            return match appended() {
                AppendedVerdict::Next => Verdict::Next,
                AppendedVerdict::Duplicate(place) => Verdict::DuplicateAppended(place),
                AppendedVerdict::Refused(fault) => Verdict::Refused(fault),
            };
        };
        let Some((newest, kind)) = in_flight
            .back()
            .map(|newest| (newest.sequenced, newest.kind))
        else {
            return Verdict::Refused(SequenceFault::OutOfOrder);
        };
        if batch.epoch < newest.epoch {
            return Verdict::Refused(SequenceFault::FencedEpoch);
        }
        if let Some(first_copy) = in_flight.iter().find(|known| known.sequenced == *batch) {
            return Verdict::DuplicateInFlight(first_copy.ticket.clone());
        }
        if kind == Kind::Marker {
            return Verdict::Refused(SequenceFault::MarkerInFlight);
        }
        let expected = if batch.epoch > newest.epoch {
            Sequence::new(0)
        } else {
            newest.last.plus(1)
        };
        if batch.first == expected {
            return Verdict::Next;
        }
        match appended() {
            AppendedVerdict::Duplicate(place) if batch.epoch == newest.epoch => {
                Verdict::DuplicateAppended(place)
            }
            _ => Verdict::Refused(SequenceFault::OutOfOrder),
        }
    }

    /// Remembers a batch that [`Self::check`] let pass and that has been proposed.
    pub fn record(&mut self, batch: SequencedBatch, transactional: bool, ticket: T) {
        let kind = match transactional {
            true => Kind::Transactional,
            false => Kind::Plain,
        };
        self.push(batch, kind, ticket);
    }

    /// Remembers the end of a transaction that has been proposed.
    pub fn record_marker(&mut self, producer_id: ProducerId, epoch: ProducerEpoch, ticket: T) {
        let marker = SequencedBatch {
            producer_id,
            epoch,
            first: Sequence::NONE,
            last: Sequence::NONE,
        };
        self.push(marker, Kind::Marker, ticket);
    }

    fn push(&mut self, sequenced: SequencedBatch, kind: Kind, ticket: T) {
        self.drop_settled(sequenced.producer_id);
        self.producers
            .entry(sequenced.producer_id)
            .or_default()
            .push_back(Batch {
                sequenced,
                kind,
                ticket,
            });
    }

    /// What the producer has in flight last; `None` if everything of it has settled.
    pub fn last(&self, producer_id: ProducerId) -> Option<LastInFlight> {
        let newest = self.producers.get(&producer_id)?.back()?;
        if newest.ticket.is_settled() {
            return None;
        }
        let epoch = newest.sequenced.epoch;
        Some(match newest.kind {
            Kind::Plain => LastInFlight::Plain(epoch),
            Kind::Transactional => LastInFlight::Transactional(epoch),
            Kind::Marker => LastInFlight::Marker(epoch),
        })
    }

    /// Drops what has settled, of every producer.
    pub fn sweep(&mut self) {
        self.producers.retain(|_, batches| {
            while batches
                .front()
                .is_some_and(|oldest| oldest.ticket.is_settled())
            {
                batches.pop_front();
            }
            !batches.is_empty()
        });
    }

    /// Number of producers with a batch in flight (settled ones that were not yet swept count).
    pub fn producer_count(&self) -> usize {
        self.producers.len()
    }

    fn drop_settled(&mut self, producer_id: ProducerId) {
        let Some(batches) = self.producers.get_mut(&producer_id) else {
            return;
        };
        while batches
            .front()
            .is_some_and(|oldest| oldest.ticket.is_settled())
        {
            batches.pop_front();
        }
        if batches.is_empty() {
            self.producers.remove(&producer_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use rand::Rng;
    use rand::rngs::StdRng;

    use super::*;
    use crate::test_random::seeded;

    #[derive(Clone, Debug)]
    struct TestTicket {
        number: u64,
        settled: Rc<Cell<bool>>,
    }

    impl PartialEq for TestTicket {
        fn eq(&self, other: &Self) -> bool {
            self.number == other.number
        }
    }

    impl Ticket for TestTicket {
        fn is_settled(&self) -> bool {
            self.settled.get()
        }
    }

    fn ticket(number: u64) -> TestTicket {
        TestTicket {
            number,
            settled: Rc::new(Cell::new(false)),
        }
    }

    fn batch(epoch: i16, first: i32, count: i32) -> SequencedBatch {
        SequencedBatch {
            producer_id: ProducerId::new(7),
            epoch: ProducerEpoch::new(epoch),
            first: Sequence::new(first),
            last: Sequence::new(first).plus(count - 1),
        }
    }

    fn next<D>() -> AppendedVerdict<D> {
        AppendedVerdict::Next
    }

    #[test]
    fn a_duplicate_of_a_batch_in_flight_shares_the_ticket_of_its_first_copy() {
        let mut overlay = InFlight::default();
        assert_eq!(
            overlay.check(&batch(0, 0, 3), next::<u64>),
            Verdict::Next,
            "an unknown producer may begin anywhere"
        );
        overlay.record(batch(0, 0, 3), false, ticket(1));
        overlay.record(batch(0, 3, 2), false, ticket(2));
        assert_eq!(
            overlay.check(&batch(0, 0, 3), next::<u64>),
            Verdict::DuplicateInFlight(ticket(1))
        );
        assert_eq!(
            overlay.check(&batch(0, 3, 2), next::<u64>),
            Verdict::DuplicateInFlight(ticket(2))
        );
    }

    #[test]
    fn a_gap_behind_a_batch_in_flight_is_out_of_order() {
        let mut overlay = InFlight::default();
        overlay.record(batch(0, 0, 3), false, ticket(1));
        assert_eq!(
            overlay.check(&batch(0, 4, 1), next::<u64>),
            Verdict::Refused(SequenceFault::OutOfOrder)
        );
        assert_eq!(overlay.check(&batch(0, 3, 1), next::<u64>), Verdict::Next);
    }

    #[test]
    fn the_sequence_wraps_to_zero_behind_a_batch_in_flight() {
        let mut overlay = InFlight::default();
        overlay.record(batch(0, i32::MAX - 1, 2), false, ticket(1));
        assert_eq!(overlay.check(&batch(0, 0, 1), next::<u64>), Verdict::Next);
        let mut overlay = InFlight::default();
        overlay.record(batch(0, i32::MAX, 2), false, ticket(1));
        assert_eq!(overlay.check(&batch(0, 1, 1), next::<u64>), Verdict::Next);
    }

    #[test]
    fn a_new_epoch_begins_at_zero_and_fences_the_old_one() {
        let mut overlay = InFlight::default();
        overlay.record(batch(3, 10, 1), false, ticket(1));
        assert_eq!(
            overlay.check(&batch(4, 11, 1), next::<u64>),
            Verdict::Refused(SequenceFault::OutOfOrder)
        );
        assert_eq!(overlay.check(&batch(4, 0, 1), next::<u64>), Verdict::Next);
        overlay.record(batch(4, 0, 1), false, ticket(2));
        assert_eq!(
            overlay.check(&batch(3, 11, 1), next::<u64>),
            Verdict::Refused(SequenceFault::FencedEpoch)
        );
    }

    #[test]
    fn settled_batches_leave_the_overlay_and_the_log_answers_for_them() {
        let mut overlay = InFlight::default();
        let first = ticket(1);
        overlay.record(batch(0, 0, 1), false, first.clone());
        first.settled.set(true);
        assert_eq!(
            overlay.check(&batch(0, 0, 1), || AppendedVerdict::Duplicate(5_u64)),
            Verdict::DuplicateAppended(5)
        );
        assert_eq!(overlay.producer_count(), 0);
        let second = ticket(2);
        overlay.record(batch(0, 1, 1), false, second.clone());
        second.settled.set(true);
        overlay.sweep();
        assert_eq!(overlay.producer_count(), 0);
    }

    /// The log's own producer state as Kafka defines it: last sequence and the last five batches.
    #[derive(Default, Clone)]
    struct LogModel {
        producers: HashMap<ProducerId, (ProducerEpoch, VecDeque<(SequencedBatch, u64)>)>,
    }

    impl LogModel {
        fn check(&self, batch: &SequencedBatch) -> AppendedVerdict<u64> {
            let Some((epoch, batches)) = self.producers.get(&batch.producer_id) else {
                return AppendedVerdict::Next;
            };
            if let Some((_, number)) = batches.iter().find(|(known, _)| known == batch) {
                return AppendedVerdict::Duplicate(*number);
            }
            let last = batches.back().map(|(newest, _)| newest.last);
            if batch.epoch < *epoch {
                AppendedVerdict::Refused(SequenceFault::FencedEpoch)
            } else if batch.epoch > *epoch {
                if batch.first.get() == 0 {
                    AppendedVerdict::Next
                } else {
                    AppendedVerdict::Refused(SequenceFault::OutOfOrder)
                }
            } else if last.map(|last| last.plus(1)) == Some(batch.first) {
                AppendedVerdict::Next
            } else {
                AppendedVerdict::Refused(SequenceFault::OutOfOrder)
            }
        }

        fn append(&mut self, batch: SequencedBatch, number: u64) {
            let (epoch, batches) = self.producers.entry(batch.producer_id).or_default();
            if *epoch != batch.epoch {
                batches.clear();
            }
            *epoch = batch.epoch;
            batches.push_back((batch, number));
            if batches.len() > 5 {
                batches.pop_front();
            }
        }
    }

    /// Whatever is in flight, the overlaid verdict equals that of a log that appends at once.
    #[test]
    fn random_histories_agree_with_a_log_that_appends_at_once() {
        let mut rng = seeded();
        for _ in 0..300 {
            one_random_history(&mut rng);
        }
    }

    fn one_random_history(rng: &mut StdRng) {
        let mut immediate = LogModel::default();
        let mut delayed = LogModel::default();
        let mut overlay: InFlight<TestTicket> = InFlight::default();
        let mut in_flight: VecDeque<(SequencedBatch, TestTicket)> = VecDeque::new();
        let mut sent: Vec<SequencedBatch> = Vec::new();
        let mut number = 0;
        for _ in 0..rng.random_range(1..80) {
            while !in_flight.is_empty() && (in_flight.len() >= 5 || rng.random_bool(0.3)) {
                if let Some((batch, ticket)) = in_flight.pop_front() {
                    delayed.append(batch, ticket.number);
                    ticket.settled.set(true);
                }
            }
            let batch = random_batch(rng, &sent);
            let expected = immediate.check(&batch);
            let verdict = overlay.check(&batch, || delayed.check(&batch));
            match (&verdict, expected) {
                (Verdict::Next, AppendedVerdict::Next) => {
                    number += 1;
                    let ticket = ticket(number);
                    immediate.append(batch, number);
                    overlay.record(batch, false, ticket.clone());
                    in_flight.push_back((batch, ticket));
                    sent.push(batch);
                }
                (Verdict::DuplicateInFlight(ticket), AppendedVerdict::Duplicate(first)) => {
                    assert_eq!(ticket.number, first);
                }
                (Verdict::DuplicateAppended(place), AppendedVerdict::Duplicate(first)) => {
                    assert_eq!(*place, first);
                }
                (Verdict::Refused(fault), AppendedVerdict::Refused(expected)) => {
                    assert_eq!(*fault, expected);
                }
                // The overlay remembers its own batches beside the log's five, so it may still
                // know a duplicate that a log alone has forgotten. It must be a true one.
                (
                    Verdict::DuplicateInFlight(_) | Verdict::DuplicateAppended(_),
                    AppendedVerdict::Refused(SequenceFault::OutOfOrder),
                ) => assert!(sent.contains(&batch)),
                (verdict, expected) => {
                    panic!("{batch:?}: overlay {verdict:?}, immediate log {expected:?}")
                }
            }
        }
    }

    fn random_batch(rng: &mut StdRng, sent: &[SequencedBatch]) -> SequencedBatch {
        let producer_id = ProducerId::new(rng.random_range(1..3));
        let mine: Vec<_> = sent
            .iter()
            .filter(|batch| batch.producer_id == producer_id)
            .collect();
        let count = rng.random_range(1..4);
        let (epoch, first) = match (mine.last(), rng.random_range(0..10)) {
            (None, _) => (0, rng.random_range(0..3)),
            (Some(_), 0..2) => {
                let index = mine.len() - 1 - rng.random_range(0..mine.len().min(6));
                return *mine[index];
            }
            (Some(last), 2) => (last.epoch.get() + 1, 0),
            (Some(last), 3) => (last.epoch.get() - 1, last.last.plus(1).get()),
            (Some(last), 4) => (last.epoch.get(), rng.random_range(0..20)),
            (Some(last), 5) => (last.epoch.get() + 1, 3),
            (Some(last), _) => (last.epoch.get(), last.last.plus(1).get()),
        };
        let first = if mine.is_empty() && rng.random_bool(0.3) {
            i32::MAX - 2
        } else {
            first
        };
        SequencedBatch {
            producer_id,
            epoch: ProducerEpoch::new(epoch),
            first: Sequence::new(first),
            last: Sequence::new(first).plus(count - 1),
        }
    }
}
