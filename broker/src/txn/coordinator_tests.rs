//! The rules of one transactional id, told as stories.

use std::collections::HashMap;

use odradek_protocol::ids::{PartitionIndex, ProducerEpoch, ProducerId, TimestampMs, TopicId};

use super::config::CoordinatorConfig;
use super::coordinator::{TxnCoordinator, persistent_view};
use super::error::TxnError;
use super::messages::{
    AddRequest, DecidedTxn, EndRequest, InitRequest, ListRequest, MarkersWritten, Refusal,
    TopicOfTxn, TxnEffects, TxnReply, TxnRequest, TxnTimer, VerifyRequest,
};
use super::names::{TransactionalId, TxnVersion};
use super::records::{TxnRecord, TxnState};
use crate::coordinator::effects::{Effects, ProducerIdentity, RequestToken};
use crate::coordinator::{LogRecord as _, StateMachine as _};
use crate::groups::names::TopicName;

const ID: &str = "tid";
const TIMEOUT_MS: i32 = 1_000;

/// A coordinator whose records commit at once.
struct Bench {
    coordinator: TxnCoordinator,
    version: TxnVersion,
    now_ms: i64,
    log: Vec<TxnRecord>,
    replies: HashMap<RequestToken, TxnReply>,
    next_token: u64,
    next_producer_id: i64,
    /// The disk is nearly full.
    is_scarce: bool,
}

impl Bench {
    fn new(version: TxnVersion) -> Self {
        let mut bench = Self {
            coordinator: TxnCoordinator::new(CoordinatorConfig::default(), version),
            version,
            now_ms: 1_000_000,
            log: Vec::new(),
            replies: HashMap::new(),
            next_token: 0,
            next_producer_id: 100,
            is_scarce: false,
        };
        bench.event(|coordinator, now, effects| coordinator.loaded(now, effects));
        bench
    }

    fn event(&mut self, event: impl FnOnce(&mut TxnCoordinator, TimestampMs, &mut TxnEffects)) {
        let mut effects = Effects {
            is_scarce: self.is_scarce,
            ..Effects::default()
        };
        let now = TimestampMs::new(self.now_ms);
        event(&mut self.coordinator, now, &mut effects);
        self.log.extend(effects.records);
        self.replies.extend(effects.replies);
    }

    fn ask(&mut self, request: TxnRequest) -> RequestToken {
        let token = RequestToken::new(self.next_token);
        self.next_token += 1;
        self.event(|coordinator, now, effects| coordinator.handle(token, request, now, effects));
        token
    }

    fn reply(&mut self, request: TxnRequest) -> TxnReply {
        let token = self.ask(request);
        self.replies.remove(&token).expect("answered at once")
    }

    fn fire(&mut self, timer: TxnTimer) {
        self.event(|coordinator, now, effects| coordinator.timer_fired(timer, now, effects));
    }

    /// The coordinator's broker dies and another reads the log.
    fn move_away(&mut self) {
        let live = persistent_view(&self.coordinator);
        let mut next = TxnCoordinator::new(CoordinatorConfig::default(), self.version);
        for record in &self.log {
            let (key, value) = (record.encode_key(), record.encode_value());
            next.replay(Some(&key), value.as_deref(), TimestampMs::new(self.now_ms));
        }
        self.coordinator = next;
        self.event(|coordinator, now, effects| coordinator.loaded(now, effects));
        assert_eq!(persistent_view(&self.coordinator), live, "live = replayed");
    }

    fn init_as(
        &mut self,
        expected: Option<ProducerIdentity>,
    ) -> Result<ProducerIdentity, TxnError> {
        let mut request = InitRequest {
            id: TransactionalId::new(ID),
            timeout_ms: TIMEOUT_MS,
            expected,
            fresh: None,
        };
        loop {
            match self.reply(TxnRequest::Init(request.clone())) {
                TxnReply::Init(Ok(producer)) => return Ok(producer),
                TxnReply::Init(Err(Refusal::Failed(error))) => return Err(error),
                TxnReply::Init(Err(Refusal::NeedsProducerId)) => {
                    assert_eq!(request.fresh, None);
                    request.fresh = Some(ProducerId::new(self.next_producer_id));
                    self.next_producer_id += 1;
                }
                other => panic!("{other:?} answers InitProducerId"),
            }
        }
    }

    fn init(&mut self) -> ProducerIdentity {
        self.init_as(None).expect("initialized")
    }

    fn add_request(&self, producer: ProducerIdentity, partition: i32) -> AddRequest {
        AddRequest {
            id: TransactionalId::new(ID),
            producer,
            topics: vec![topic(partition)],
            client_version: self.version,
        }
    }

    fn add(&mut self, producer: ProducerIdentity, partition: i32) -> Result<(), TxnError> {
        let request = self.add_request(producer, partition);
        match self.reply(TxnRequest::Add(request)) {
            TxnReply::Add(reply) => reply,
            other => panic!("{other:?} answers AddPartitionsToTxn"),
        }
    }

    fn verify(&mut self, producer: ProducerIdentity, partition: i32) -> Result<bool, TxnError> {
        let request = VerifyRequest {
            id: TransactionalId::new(ID),
            producer,
            topics: vec![topic(partition)],
        };
        match self.reply(TxnRequest::Verify(request)) {
            TxnReply::Verify(reply) => reply.map(|parts| parts[0][0]),
            other => panic!("{other:?} answers a question"),
        }
    }

    fn end_request(&self, producer: ProducerIdentity, committed: bool) -> EndRequest {
        EndRequest {
            id: TransactionalId::new(ID),
            producer,
            committed,
            client_version: self.version,
            fresh: None,
        }
    }

    fn end(
        &mut self,
        producer: ProducerIdentity,
        committed: bool,
    ) -> Result<ProducerIdentity, TxnError> {
        let mut request = self.end_request(producer, committed);
        loop {
            match self.reply(TxnRequest::End(request.clone())) {
                TxnReply::End(Ok(producer)) => return Ok(producer),
                TxnReply::End(Err(Refusal::Failed(error))) => return Err(error),
                TxnReply::End(Err(Refusal::NeedsProducerId)) => {
                    assert_eq!(request.fresh, None);
                    request.fresh = Some(ProducerId::new(self.next_producer_id));
                    self.next_producer_id += 1;
                }
                other => panic!("{other:?} answers EndTxn"),
            }
        }
    }

    fn told(&mut self) -> Vec<DecidedTxn> {
        match self.reply(TxnRequest::NextMarkers { anew: true }) {
            TxnReply::Markers(decided) => decided,
            other => panic!("{other:?} answers who tells partitions"),
        }
    }

    /// All partitions are told.
    fn complete(&mut self) -> DecidedTxn {
        let decided = self.told().pop().expect("something to tell");
        let written = MarkersWritten {
            id: decided.id.clone(),
            producer: decided.producer,
            started_at: decided.started_at,
        };
        self.say_written(written);
        decided
    }

    fn say_written(&mut self, written: MarkersWritten) {
        assert_eq!(
            self.reply(TxnRequest::MarkersWritten(vec![written])),
            TxnReply::Done
        );
    }

    fn state(&self) -> TxnState {
        let known = self.coordinator.get(&TransactionalId::new(ID));
        known.expect("known").state
    }
}

fn topic(partition: i32) -> TopicOfTxn {
    TopicOfTxn {
        name: TopicName::new("t"),
        id: TopicId::from_bytes([1; 16]),
        partitions: vec![PartitionIndex::new(partition)],
    }
}

fn producer(id: i64, epoch: i16) -> ProducerIdentity {
    ProducerIdentity {
        id: ProducerId::new(id),
        epoch: ProducerEpoch::new(epoch),
    }
}

#[test]
fn a_transaction_of_an_old_client_keeps_its_epoch_and_is_told_after_it_is_decided() {
    let mut bench = Bench::new(TxnVersion::V0);
    let mine = bench.init();
    assert_eq!(mine, producer(100, 0));
    assert_eq!(bench.verify(mine, 0), Ok(false));
    assert_eq!(bench.add(mine, 0), Ok(()));
    assert_eq!(bench.add(mine, 1), Ok(()));
    assert_eq!(bench.verify(mine, 1), Ok(true));
    assert_eq!(bench.verify(mine, 2), Ok(false));
    assert_eq!(bench.end(mine, true), Ok(mine));
    assert_eq!(bench.state(), TxnState::PrepareCommit);
    assert_eq!(bench.verify(mine, 0), Err(TxnError::ConcurrentTransactions));
    let decided = bench.complete();
    assert!(decided.committed);
    assert_eq!(decided.producer, mine);
    assert_eq!(
        decided
            .partitions
            .values()
            .map(|topic| topic.partitions.len())
            .sum::<usize>(),
        2
    );
    assert_eq!(bench.state(), TxnState::CompleteCommit);
    assert_eq!(bench.end(mine, true), Ok(mine), "asked again");
    assert_eq!(bench.end(mine, false), Err(TxnError::InvalidState));
}

/// The word that all know comes once more, when the same producer's next transaction is decided.
#[test]
fn a_late_word_about_a_transaction_completes_no_later_one_of_the_same_epoch() {
    let mut bench = Bench::new(TxnVersion::V0);
    let mine = bench.init();
    let mut earlier: Vec<DecidedTxn> = Vec::new();
    for _ in 0..3 {
        // All within one tick of the clock.
        assert_eq!(bench.add(mine, 0), Ok(()));
        assert_eq!(bench.end(mine, true), Ok(mine));
        for decided in &earlier {
            bench.say_written(MarkersWritten {
                id: decided.id.clone(),
                producer: decided.producer,
                started_at: decided.started_at,
            });
            assert_eq!(
                bench.state(),
                TxnState::PrepareCommit,
                "its partitions do not know"
            );
        }
        earlier = vec![bench.complete()];
        assert_eq!(bench.state(), TxnState::CompleteCommit);
    }
}

#[test]
fn every_end_raises_the_epoch_of_a_new_client_and_asking_again_is_told_apart() {
    let mut bench = Bench::new(TxnVersion::V2);
    let first = bench.init();
    assert_eq!(
        bench.end(first, true),
        Err(TxnError::InvalidState),
        "nothing to commit"
    );
    assert_eq!(bench.add(first, 0), Ok(()));
    let second = bench.end(first, true).expect("committed");
    assert_eq!(second, producer(100, 1));
    let decided = bench.complete();
    assert_eq!(decided.producer, second, "the marker is above all batches");
    assert_eq!(bench.end(first, true), Ok(second), "asked again");
    assert_eq!(bench.end(first, false), Err(TxnError::InvalidState));
    assert_eq!(bench.end(second, true), Err(TxnError::InvalidState));
    // The next transaction may be aborted before anything is in it.
    let third = bench.end(second, false).expect("aborted");
    assert_eq!(third, producer(100, 2));
    assert!(bench.complete().partitions.is_empty());
    assert_eq!(bench.add(first, 0), Err(TxnError::ProducerFenced));
    assert_eq!(bench.add(third, 0), Ok(()));
}

#[test]
fn requests_wait_for_the_completion_of_the_transaction_before_and_not_for_ever() {
    let mut bench = Bench::new(TxnVersion::V2);
    let first = bench.init();
    bench.add(first, 0).expect("added");
    let second = bench.end(first, true).expect("committed");
    let request = bench.add_request(second, 1);
    let waits = bench.ask(TxnRequest::Add(request.clone()));
    assert_eq!(bench.replies.get(&waits), None);
    bench.complete();
    assert_eq!(bench.replies.remove(&waits), Some(TxnReply::Add(Ok(()))));
    assert_eq!(bench.state(), TxnState::Ongoing);

    let third = bench.end(second, true).expect("committed");
    let request = bench.add_request(third, 1);
    let waits = bench.ask(TxnRequest::Add(request));
    bench.fire(TxnTimer::Waited(TransactionalId::new(ID)));
    let refused = TxnReply::Add(Err(TxnError::ConcurrentTransactions));
    assert_eq!(bench.replies.remove(&waits), Some(refused));
}

#[test]
fn a_new_instance_aborts_what_the_old_one_left_open_and_fences_it() {
    for version in [TxnVersion::V0, TxnVersion::V2] {
        let mut bench = Bench::new(version);
        let old = bench.init();
        bench.add(old, 0).expect("added");
        assert_eq!(bench.init_as(None), Err(TxnError::ConcurrentTransactions));
        let decided = bench.complete();
        assert!(!decided.committed);
        assert_eq!(decided.producer, producer(100, 1));
        let new = bench.init();
        assert_eq!(new, producer(100, 2));
        assert_eq!(bench.add(old, 0), Err(TxnError::ProducerFenced));
        assert_eq!(bench.end(old, true), Err(TxnError::ProducerFenced));
        assert_eq!(bench.init_as(Some(old)), Err(TxnError::ProducerFenced));
    }
}

/// What it had open is aborted first, which raises the epoch already.
#[test]
fn a_producer_that_goes_on_with_a_transaction_open_is_given_the_epoch_of_its_end() {
    let mut bench = Bench::new(TxnVersion::V2);
    let old = bench.init();
    bench.add(old, 0).expect("added");
    assert_eq!(
        bench.init_as(Some(old)),
        Err(TxnError::ConcurrentTransactions)
    );
    assert_eq!(bench.complete().producer, producer(100, 1));
    assert_eq!(bench.init_as(Some(old)), Ok(producer(100, 1)), "asks again");
    assert_eq!(bench.init(), producer(100, 2), "a new instance");
    assert_eq!(bench.init_as(Some(old)), Err(TxnError::ProducerFenced));
}

#[test]
fn a_producer_that_goes_on_after_an_error_is_given_the_same_epoch_if_it_asks_twice() {
    let mut bench = Bench::new(TxnVersion::V0);
    let first = bench.init();
    let second = bench.init_as(Some(first)).expect("goes on");
    assert_eq!(second, producer(100, 1));
    assert_eq!(
        bench.init_as(Some(first)),
        Ok(second),
        "the answer was lost"
    );
    assert_eq!(bench.init(), producer(100, 2), "a new instance");
    assert_eq!(bench.init_as(Some(second)), Err(TxnError::ProducerFenced));
    let stranger = producer(7, 0);
    assert_eq!(bench.init_as(Some(stranger)), Err(TxnError::ProducerFenced));
}

#[test]
fn a_producer_id_that_runs_out_of_epochs_is_followed_by_another() {
    let mut bench = Bench::new(TxnVersion::V0);
    bench.init();
    let mut last = bench.init();
    while last.epoch.get() < i16::MAX - 1 {
        last = bench.init();
        bench.log.clear();
    }
    assert_eq!(last, producer(100, i16::MAX - 1));
    assert_eq!(bench.init(), producer(101, 0));
}

#[test]
fn a_new_client_that_runs_out_of_epochs_goes_on_with_another_id_and_may_ask_again() {
    let mut bench = Bench::new(TxnVersion::V2);
    let mut last = bench.init();
    while last.epoch.get() < i16::MAX - 1 {
        last = bench.init();
        bench.log.clear();
    }
    bench.add(last, 0).expect("added");
    let next = bench.end(last, true).expect("committed");
    assert_eq!(next, producer(101, 0));
    assert_eq!(bench.complete().producer, producer(100, i16::MAX));
    assert_eq!(bench.end(last, true), Ok(next), "asked again");
    assert_eq!(
        bench.init_as(Some(last)),
        Ok(next),
        "it may have missed the answer"
    );
}

#[test]
fn a_transaction_is_aborted_when_its_time_is_up() {
    let mut bench = Bench::new(TxnVersion::V2);
    let mine = bench.init();
    bench.add(mine, 0).expect("added");
    bench.now_ms += i64::from(TIMEOUT_MS);
    bench.fire(TxnTimer::TimedOut);
    assert_eq!(bench.state(), TxnState::Ongoing, "not yet");
    bench.now_ms += 1;
    bench.fire(TxnTimer::TimedOut);
    assert_eq!(bench.state(), TxnState::PrepareAbort);
    bench.complete();
    // One epoch on, as after an end that the client asked for: it is told that this was another one.
    assert_eq!(bench.end(mine, true), Err(TxnError::InvalidState));
    assert_eq!(bench.add(mine, 0), Err(TxnError::ProducerFenced));
}

#[test]
fn what_was_decided_is_told_by_the_next_coordinator_too() {
    let mut bench = Bench::new(TxnVersion::V2);
    let mine = bench.init();
    bench.add(mine, 0).expect("added");
    let next = bench.end(mine, true).expect("committed");
    bench.move_away();
    let decided = bench.complete();
    assert!(decided.committed);
    assert_eq!(decided.producer, next);
    let topic = decided.partitions.values().next().expect("one topic");
    assert_eq!(
        topic.id,
        TopicId::from_bytes([1; 16]),
        "known after a restart"
    );
    bench.move_away();
    assert_eq!(bench.end(mine, true), Ok(next), "asked again");
    let waits = bench.ask(TxnRequest::NextMarkers { anew: true });
    assert_eq!(bench.replies.get(&waits), None, "nothing to tell");
}

#[test]
fn an_id_that_nobody_uses_is_forgotten_and_one_in_use_is_not() {
    let mut bench = Bench::new(TxnVersion::V2);
    let mine = bench.init();
    bench.add(mine, 0).expect("added");
    bench.now_ms += 8 * 24 * 60 * 60 * 1_000;
    bench.fire(TxnTimer::Expired);
    assert_eq!(bench.state(), TxnState::Ongoing);
    bench.end(mine, false).expect("aborted");
    bench.complete();
    bench.fire(TxnTimer::Expired);
    bench.now_ms += 7 * 24 * 60 * 60 * 1_000;
    assert_eq!(bench.state(), TxnState::CompleteAbort);
    bench.fire(TxnTimer::Expired);
    assert_eq!(bench.coordinator.iter().count(), 0);
    bench.move_away();
    assert_eq!(
        bench.end(mine, true),
        Err(TxnError::InvalidProducerIdMapping)
    );
}

#[test]
fn lists_are_filtered_and_unknown_ids_are_refused() {
    let mut bench = Bench::new(TxnVersion::V2);
    assert_eq!(
        bench.add(producer(1, 0), 0),
        Err(TxnError::InvalidProducerIdMapping)
    );
    assert_eq!(
        bench.verify(producer(1, 0), 0),
        Err(TxnError::InvalidProducerIdMapping)
    );
    let mine = bench.init();
    bench.add(mine, 0).expect("added");
    bench.now_ms += 500;
    let listed =
        |bench: &mut Bench, request: ListRequest| match bench.reply(TxnRequest::List(request)) {
            TxnReply::List(listed) => listed.len(),
            other => panic!("{other:?} answers ListTransactions"),
        };
    let any = ListRequest {
        open_for_ms: -1,
        ..ListRequest::default()
    };
    assert_eq!(listed(&mut bench, any.clone()), 1);
    let states = Some(vec![TxnState::Empty]);
    assert_eq!(
        listed(
            &mut bench,
            ListRequest {
                states,
                ..any.clone()
            }
        ),
        0
    );
    let producer_ids = vec![ProducerId::new(5)];
    assert_eq!(
        listed(
            &mut bench,
            ListRequest {
                producer_ids,
                ..any.clone()
            }
        ),
        0
    );
    assert_eq!(
        listed(
            &mut bench,
            ListRequest {
                open_for_ms: 500,
                ..any.clone()
            }
        ),
        0
    );
    assert_eq!(
        listed(
            &mut bench,
            ListRequest {
                open_for_ms: 499,
                ..any
            }
        ),
        1
    );
}

#[test]
fn a_disk_that_is_nearly_full_takes_what_ends_a_transaction_and_nothing_that_begins_one() {
    let mut bench = Bench::new(TxnVersion::V2);
    let open = bench.init();
    assert_eq!(bench.add(open, 0), Ok(()));
    bench.is_scarce = true;
    let written = bench.log.len();
    assert_eq!(bench.add(open, 0), Ok(()), "it is in it already");
    assert_eq!(bench.add(open, 1), Err(TxnError::NotAvailable));
    assert_eq!(bench.log.len(), written);
    let next = bench.end(open, true).expect("ended");
    bench.complete();
    let written = bench.log.len();
    assert_eq!(bench.end(open, true), Ok(next), "asked again");
    assert_eq!(bench.end(next, false), Err(TxnError::NotAvailable));
    assert_eq!(bench.add(next, 0), Err(TxnError::NotAvailable));
    assert_eq!(bench.init_as(None), Err(TxnError::NotAvailable));
    assert_eq!(bench.log.len(), written, "a new epoch is nothing that ends");
    bench.is_scarce = false;
    assert_eq!(bench.add(next, 0), Ok(()));
    bench.is_scarce = true;
    assert_eq!(
        bench.init_as(None),
        Err(TxnError::ConcurrentTransactions),
        "a new instance ends what is open"
    );
    assert!(bench.log.len() > written + 1);
}
