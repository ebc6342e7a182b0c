//! What the broker's shell does around the coordinators: requests for records, questions to the coordinator of a
//! transaction, and markers, over the network of the simulation.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use odradek_protocol::batch::BatchHeader;
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{LeaderEpoch, NodeId, PartitionIndex, ProducerId, Sequence, TopicId};
use odradek_protocol::records::{BatchBuilder, NewRecord, RecordWalker};
use odradek_storage::producer_state::{AppendOrigin, EndTxnMarker, ProducerStates};

use super::checker::Logged;
use super::log::State;
use super::sabotage::Sabotage;
use super::world::{Place, Process, TOPIC, TOPIC_NUMBER, World, alive};
use crate::clock::Clock as _;
use crate::coordinator::effects::ProducerIdentity;
use crate::coordinator::end_marker;
use crate::groups::error::GroupError;
use crate::groups::messages::TxnCommitRequest;
use crate::groups::names::TopicName;
use crate::groups::service::{OFFSETS_TOPIC, PartitionResults};
use crate::metadata::test_support::topic_id;
use crate::partition::{
    AppendedProducers, Candidate, Judged, PartitionError, SharedOutcome, Told, TxnEnd,
    Verification, appended_verdict,
};
use crate::txn::asking::{Answers, Question, TxnSupport, answer};
use crate::txn::delivery::{self, Leader, Outcome, Ways};
use crate::txn::messages::TopicOfTxn;
use crate::txn::names::TransactionalId;

/// How long an append is waited for.
const APPEND_TIMEOUT: Duration = Duration::from_secs(3);
/// How long another broker is waited for.
const PEER_PATIENCE_MS: i64 = 2_500;
/// What the ids of `__consumer_offsets` are made of.
const OFFSETS_TOPIC_NUMBER: u8 = 8;

struct Appended<'a>(&'a ProducerStates);

impl AppendedProducers for Appended<'_> {
    fn look<T>(&self, read: impl FnOnce(&ProducerStates) -> T) -> T {
        read(self.0)
    }
}

impl World {
    fn require_lead(
        &self,
        state: &State,
        process: &Process,
    ) -> Result<LeaderEpoch, PartitionError> {
        match state.ready_lead() {
            Some(lead) if (lead.node, lead.process) == (process.node, process.number) => {
                Ok(LeaderEpoch::new(lead.term))
            }
            _ => Err(PartitionError::NotLeader { leader: None }),
        }
    }

    /// Checks a batch and enqueues it, as a partition does. `None` if it stands in the log already.
    fn append(
        self: &Arc<Self>,
        process: &Process,
        place: Place,
        batch: &Bytes,
        verification: Verification,
    ) -> Result<Option<SharedOutcome>, PartitionError> {
        let log = &self.logs[&place];
        let mut state = log.state();
        let term = self.require_lead(&state, process)?;
        let header = BatchHeader::parse(batch)?;
        let candidate = Candidate {
            header: &header,
            term,
            verification,
            now: self.dice.clock().wall(),
        };
        let mut ordering = process.orderings[&place].lock();
        let producers = Appended(&state.producers);
        let judged = ordering.judge(candidate, &producers, || {
            appended_verdict(state.producers.check(&header, AppendOrigin::Client))
        })?;
        match judged {
            Judged::New => {}
            Judged::InFlight(first_copy) => return Ok(Some(first_copy)),
            Judged::Appended(_) => return Ok(None),
        }
        let outcome = SharedOutcome::new(log.propose(&mut state, batch.clone()));
        ordering.proposed(&header, outcome.clone());
        let producer = ProducerIdentity {
            id: header.producer_id,
            epoch: header.producer_epoch,
        };
        let what = format!("append to {place:?}");
        self.checker.lock().done_as(producer, self.now_ms(), &what);
        Ok(Some(outcome))
    }

    /// Produce.
    pub(super) async fn produce(
        self: Arc<Self>,
        process: Arc<Process>,
        place: Place,
        batch: Bytes,
        id: TransactionalId,
        support: TxnSupport,
    ) -> Result<(), ErrorCode> {
        let code = |error: PartitionError| error.error_code();
        let verification = match self.sabotage {
            Some(Sabotage::SkipVerification) => Verification::Off,
            _ => Verification::Needed {
                bumps_epoch: support == TxnSupport::AddsPartitions,
            },
        };
        let appended = match self.append(&process, place, &batch, verification) {
            Err(PartitionError::Unverified(asked)) => {
                let Place::Records(index) = place else {
                    return Err(ErrorCode::UnknownServerError);
                };
                let topic = (TOPIC, topic_id(TOPIC_NUMBER), PartitionIndex::new(index));
                let question = question(id, asked.producer, topic, support);
                self.verify(&process, question)
                    .await
                    .map_err(|code| match code {
                        ErrorCode::ConcurrentTransactions
                        | ErrorCode::CoordinatorLoadInProgress
                        | ErrorCode::CoordinatorNotAvailable
                        | ErrorCode::NotCoordinator => ErrorCode::NotEnoughReplicas,
                        other => other,
                    })?;
                let verification = Verification::Done(asked.guard);
                self.append(&process, place, &batch, verification)
            }
            other => other,
        };
        let Some(outcome) = appended.map_err(code)? else {
            return Ok(());
        };
        settled(outcome).await
    }

    /// Asks the coordinator of a transaction about one partition.
    async fn verify(
        self: &Arc<Self>,
        process: &Arc<Process>,
        question: Question,
    ) -> Result<(), ErrorCode> {
        let place = self.coordinator_of_txn(question.id.as_str());
        let verify_only = question.support != TxnSupport::AddsPartitions;
        let node = self.leader_hint(place);
        let answers: Result<Answers, ErrorCode> = match node == process.node {
            true => answer(&process.txns, question, verify_only).await,
            false => {
                let handle = move |there: Arc<Process>| -> BoxFuture<'static, _> {
                    let question = question.clone();
                    Box::pin(async move { answer(&there.txns, question, verify_only).await })
                };
                let asked = self.ask(node, PEER_PATIENCE_MS, handle).await;
                asked.unwrap_or(Err(ErrorCode::CoordinatorNotAvailable))
            }
        };
        let first = answers?.into_iter().flatten().next();
        first.unwrap_or(Err(ErrorCode::CoordinatorNotAvailable))
    }

    /// TxnOffsetCommit.
    pub(super) async fn commit_in_transaction(
        self: Arc<Self>,
        process: Arc<Process>,
        request: TxnCommitRequest,
        id: TransactionalId,
        support: TxnSupport,
    ) -> Result<PartitionResults, ErrorCode> {
        let producer = request.producer;
        let verify = |partition: PartitionIndex| {
            let topic = (OFFSETS_TOPIC, topic_id(OFFSETS_TOPIC_NUMBER), partition);
            let question = question(id.clone(), producer, topic, support);
            self.verify(&process, question)
        };
        process.groups.commit_in_transaction(request, verify).await
    }

    /// The end of a transaction is written into a partition that is led here.
    async fn write_marker(
        self: Arc<Self>,
        process: Arc<Process>,
        place: Place,
        mut end: TxnEnd,
    ) -> Result<(), ErrorCode> {
        match self.sabotage {
            Some(Sabotage::LoseMarkers) => return Err(ErrorCode::NotLeaderOrFollower),
            Some(Sabotage::TwistMarkers) if place == Place::Records(0) => {
                end.marker.aborted ^= true
            }
            _ => {}
        }
        let code = |error: PartitionError| error.error_code();
        let log = &self.logs[&place];
        let outcome = {
            let mut state = log.state();
            let term = self.require_lead(&state, &process).map_err(code)?;
            let mut ordering = process.orderings[&place].lock();
            ordering
                .check_end(end, &Appended(&state.producers))
                .map_err(code)?;
            match place {
                Place::Records(_) => {
                    let told = ordering.told(term, end).map_err(code)?;
                    let now = self.dice.clock().wall();
                    let marker = end_marker::build(end.producer, end.marker, now);
                    match told {
                        Told::Again(Some(outcome)) => Some(outcome),
                        Told::Again(None) | Told::First => {
                            let proposed = log.propose(&mut state, marker);
                            let outcome = SharedOutcome::new(proposed);
                            ordering.proposed_end(end, term, outcome.clone(), now);
                            Some(outcome)
                        }
                    }
                }
                Place::Offsets(_) | Place::Transactions(_) => None,
            }
        };
        self.note(&format!("marker {end:?} in {place:?} by {}", process.node));
        match (outcome, place) {
            (Some(outcome), _) => settled(outcome).await,
            (None, Place::Offsets(index)) => {
                let index = PartitionIndex::new(index);
                let ended = process
                    .groups
                    .end_transaction(index, end.producer, end.marker);
                ended.await.map_err(GroupError::code)
            }
            (None, _) => Err(ErrorCode::UnknownServerError),
        }
    }

    /// A fetch of what is committed, from `from` on: the values, and where to go on.
    pub(super) fn fetch(
        self: &Arc<Self>,
        process: &Process,
        index: i32,
        from: i64,
    ) -> Result<(Vec<u64>, i64), ErrorCode> {
        let place = Place::Records(index);
        let state = self.logs[&place].state();
        let led = self.require_lead(&state, process);
        led.map_err(|error| error.error_code())?;
        let stable = match self.sabotage {
            Some(Sabotage::IgnoreOpen) => state.high_watermark,
            _ => state.last_stable(),
        };
        let log = logged(&state);
        let is_aborted = |at: i64, by: ProducerId| {
            state.aborted.iter().any(|aborted| {
                aborted.producer_id == by
                    && (aborted.first_offset.get()..=aborted.last_offset.get()).contains(&at)
            })
        };
        let given: Vec<u64> = log
            .iter()
            .filter_map(|logged| match *logged {
                Logged::Record {
                    offset,
                    producer,
                    value,
                } if (from..stable).contains(&offset) => {
                    let hidden = self.sabotage != Some(Sabotage::HideAborted)
                        && is_aborted(offset, producer);
                    (!hidden).then_some(value)
                }
                _ => None,
            })
            .collect();
        let high_watermark = state.high_watermark;
        drop(state);
        self.checker
            .lock()
            .fetched(index, &log, stable, &given, high_watermark);
        Ok((given, stable.max(from)))
    }
}

/// What stands in the log of a partition with records.
pub(super) fn logged(state: &State) -> Vec<Logged> {
    let entries = state.entries.iter().map(|entry| {
        let (offset, producer) = (entry.header.base_offset.get(), entry.header.producer_id);
        if entry.header.is_control() {
            let marker = EndTxnMarker::parse(&entry.header, &entry.bytes);
            let committed = marker.is_some_and(|marker| !marker.aborted);
            return Logged::Marker {
                offset,
                producer,
                committed,
            };
        }
        let mut records = RecordWalker::of_batch(&entry.header, &entry.bytes);
        let record = records.next().and_then(Result::ok);
        let value = record.and_then(|record| record.value).expect("a record");
        let value = value.try_into().expect("eight bytes");
        Logged::Record {
            offset,
            producer,
            value: u64::from_be_bytes(value),
        }
    });
    entries.collect()
}

/// A batch of one record.
pub(super) fn batch(producer: ProducerIdentity, sequence: i32, value: u64, world: &World) -> Bytes {
    BatchBuilder::new()
        .producer(producer.id, producer.epoch, Sequence::new(sequence))
        .transactional()
        .record(NewRecord {
            timestamp: world.dice.clock().wall(),
            value: Some(&value.to_be_bytes()),
            ..NewRecord::default()
        })
        .build()
}

async fn settled(outcome: SharedOutcome) -> Result<(), ErrorCode> {
    match tokio::time::timeout(APPEND_TIMEOUT, outcome.wait()).await {
        Ok(Some(Ok(_))) => Ok(()),
        Ok(Some(Err(_)) | None) => Err(ErrorCode::NotLeaderOrFollower),
        Err(_elapsed) => Err(ErrorCode::RequestTimedOut),
    }
}

pub(super) fn topics_of(name: &str, id: TopicId, partition: PartitionIndex) -> Vec<TopicOfTxn> {
    vec![TopicOfTxn {
        name: TopicName::new(name),
        id,
        partitions: vec![partition],
    }]
}

fn question(
    id: TransactionalId,
    producer: ProducerIdentity,
    (name, topic_id, partition): (&str, TopicId, PartitionIndex),
    support: TxnSupport,
) -> Question {
    Question {
        id,
        producer,
        topics: topics_of(name, topic_id, partition),
        support,
    }
}

/// The partition that holds a group's offsets, as AddOffsetsToTxn names it.
pub(super) fn offsets_of(place: Place) -> Vec<TopicOfTxn> {
    let Place::Offsets(index) = place else {
        return Vec::new();
    };
    let id = topic_id(OFFSETS_TOPIC_NUMBER);
    topics_of(OFFSETS_TOPIC, id, PartitionIndex::new(index))
}

fn place_of(place: &delivery::Place) -> Place {
    match place.topic.as_str() {
        OFFSETS_TOPIC => Place::Offsets(place.index.get()),
        _ => Place::Records(place.index.get()),
    }
}

/// How a node reaches the partitions that its transaction coordinators have to tell.
pub(super) struct SimWays {
    pub world: Weak<World>,
    pub node: usize,
    pub process: u64,
}

impl fmt::Debug for SimWays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimWays({})", self.node)
    }
}

impl Ways for SimWays {
    fn leader_of(&self, place: &delivery::Place, _topic: TopicId, _is_old: bool) -> Leader {
        let Some(world) = alive(&self.world) else {
            return Leader::Unknown;
        };
        match world.ready_lead(place_of(place)) {
            Some(lead) if lead.node == self.node => Leader::Here,
            Some(lead) => Leader::At(NodeId::new(lead.node as i32)),
            None => Leader::Unknown,
        }
    }

    fn tell_here(
        &self,
        place: delivery::Place,
        end: TxnEnd,
    ) -> BoxFuture<'static, Result<(), ErrorCode>> {
        let (world, node, number) = (alive(&self.world), self.node, self.process);
        Box::pin(async move {
            let gone = ErrorCode::NotLeaderOrFollower;
            let world = world.ok_or(gone)?;
            let process = world
                .process(node)
                .filter(|process| process.number == number);
            let process = process.ok_or(gone)?;
            world.write_marker(process, place_of(&place), end).await
        })
    }

    fn tell_elsewhere(
        &self,
        node: NodeId,
        markers: Vec<(TxnEnd, Vec<delivery::Place>)>,
    ) -> BoxFuture<'static, Vec<Outcome>> {
        let world = alive(&self.world);
        let node = node.get() as usize;
        Box::pin(async move {
            let Some(world) = world else {
                return Vec::new();
            };
            // A marker of the old kind that comes late can end the next transaction, which no broker can tell:
            // one is carried out while it is waited for, or not at all.
            let (new, old): (Vec<_>, Vec<_>) =
                markers.into_iter().partition(|(end, _)| end.bumps_epoch);
            let mut outcomes = Vec::new();
            if !old.is_empty() {
                let delays = (world.message(), world.message());
                if let (Some(out_ms), Some(back_ms)) = delays {
                    tokio::time::sleep(Duration::from_millis(out_ms)).await;
                    if let Some(process) = world.process(node) {
                        outcomes.extend(write_all(Arc::clone(&world), process, old).await);
                    }
                    tokio::time::sleep(Duration::from_millis(back_ms)).await;
                }
            }
            if !new.is_empty() {
                let there = Arc::clone(&world);
                let handle = move |process: Arc<Process>| -> BoxFuture<'static, _> {
                    Box::pin(write_all(Arc::clone(&there), process, new.clone()))
                };
                let told = world.ask(node, PEER_PATIENCE_MS, handle).await;
                outcomes.extend(told.unwrap_or_default());
            }
            outcomes
        })
    }
}

/// Writes the markers that another broker has sent.
async fn write_all(
    world: Arc<World>,
    process: Arc<Process>,
    markers: Vec<(TxnEnd, Vec<delivery::Place>)>,
) -> Vec<Outcome> {
    let mut all: BTreeMap<_, _> = BTreeMap::new();
    for (end, places) in markers {
        for place in places {
            let writing =
                Arc::clone(&world).write_marker(Arc::clone(&process), place_of(&place), end);
            all.insert((end.producer.id, place), writing);
        }
    }
    let all = all
        .into_iter()
        .map(|((id, place), writing)| async move { (id, place, writing.await) });
    futures_util::future::join_all(all).await
}
