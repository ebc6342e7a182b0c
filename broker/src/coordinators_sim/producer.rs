//! Transactional producers, of the dialect before KIP-890 and of the one since, and their old instances.
//!
//! Every transactional id goes from instance to instance. An instance does as Kafka's clients do: it tries again
//! what may be tried again, aborts what has to be aborted, and ends when it is told that it has been replaced. Of
//! some, something goes on after the next one has begun.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::PartitionIndex;

use super::holding::topics;
use super::shell::{batch, offsets_of, topics_of};
use super::world::{Lost, PARTITIONS, Place, Process, TOPIC, TOPIC_NUMBER, World};
use crate::coordinator::effects::ProducerIdentity;
use crate::groups::error::GroupError;
use crate::groups::messages::{CommitRequest, TxnCommitRequest};
use crate::groups::names::{GenerationId, GroupId, MemberId};
use crate::metadata::test_support::topic_id;
use crate::txn::asking::TxnSupport;
use crate::txn::error::TxnError;
use crate::txn::messages::{AddRequest, EndRequest, InitRequest, TopicOfTxn};
use crate::txn::names::{TransactionalId, TxnVersion};

const PATIENCE_MS: i64 = 4_000;
const TIMEOUT_MS: i32 = 5_000;
/// Group whose offsets producers commit.
pub(super) const GROUP: &str = "copied";

/// A transactional id.
#[derive(Clone, Debug)]
pub(super) struct Producer {
    pub number: usize,
    pub dialect: TxnVersion,
}

/// Why an instance does not go on as it wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The transaction has to be aborted.
    Abort,
    /// The instance is over.
    Over,
}

#[derive(Clone)]
struct Instance {
    world: Arc<World>,
    id: TransactionalId,
    as_started: Producer,
    instance: u64,
    identity: ProducerIdentity,
    sequences: [i32; PARTITIONS as usize],
    /// The transaction, from when it is begun until its end has been answered.
    txn: Option<u64>,
    /// How it is to end, once that has been asked for. From then on it may have ended: a client asks the same
    /// again, and neither writes nor thinks better of it. What it wrote would belong to the next transaction.
    ending: Option<bool>,
    /// Requests that it sends before it stands still.
    left: i64,
}

pub(super) fn id_of(number: usize) -> String {
    format!("id-{number}")
}

/// Plays the instances of an id, one after the other, until the world winds down.
pub(super) async fn play(world: Arc<World>, producer: Producer) {
    while !world.is_winding_down() {
        world.dice.pause(0, 1_500).await;
        let number = world.checker.lock().number();
        let id = TransactionalId::new(&id_of(producer.number));
        let Some(identity) = initialize(&world, &id, producer.number, number).await else {
            continue;
        };
        let mut instance = Instance {
            world: Arc::clone(&world),
            id,
            as_started: producer.clone(),
            instance: number,
            identity,
            sequences: [0; PARTITIONS as usize],
            txn: None,
            ending: None,
            left: world.dice.below(60),
        };
        while !world.is_winding_down() {
            if instance.one_transaction().await.is_err() {
                break;
            }
            world.dice.pause(50, 700).await;
        }
        if instance.left <= 0 {
            // It stands still somewhere on its way, and goes on after the next has begun.
            instance.left = 4;
            tokio::spawn(async move { instance.wake_up().await });
        }
    }
}

/// InitProducerId, until it is answered; `None` if somebody else was quicker.
async fn initialize(
    world: &Arc<World>,
    id: &TransactionalId,
    number: usize,
    instance: u64,
) -> Option<ProducerIdentity> {
    loop {
        let (id, there) = (id.clone(), Arc::clone(world));
        let place = world.coordinator_of_txn(id.as_str());
        let handle = move |process: Arc<Process>| -> BoxFuture<'static, _> {
            let request = InitRequest {
                id: id.clone(),
                timeout_ms: TIMEOUT_MS,
                expected: None,
                fresh: None,
            };
            let world = Arc::clone(&there);
            Box::pin(async move { process.txns.init(request, &*world).await })
        };
        let answer = world
            .ask(world.leader_hint(place), PATIENCE_MS, handle)
            .await;
        world.note(&format!("id-{number}.{instance} begins: {answer:?}"));
        match answer {
            Ok(Ok(identity)) => {
                let now_ms = world.now_ms();
                let mut checker = world.checker.lock();
                checker.is_known_as(number, instance, identity);
                checker.initialized(number, instance, now_ms);
                return Some(identity);
            }
            Ok(Err(TxnError::ProducerFenced | TxnError::InvalidProducerIdMapping)) => return None,
            Ok(Err(_)) | Err(_) => world.dice.pause(20, 200).await,
        }
    }
}

impl Instance {
    fn support(&self) -> TxnSupport {
        match self.as_started.dialect.bumps_epoch() {
            true => TxnSupport::AddsPartitions,
            false => TxnSupport::NewErrors,
        }
    }

    fn adds_itself(&self) -> bool {
        !self.as_started.dialect.bumps_epoch()
    }

    /// Another request; there is an end to them.
    fn spend(&mut self) -> Result<(), Stop> {
        self.left -= i64::from(!self.world.is_calm());
        match self.left <= 0 {
            true => Err(Stop::Over),
            false => Ok(()),
        }
    }

    /// Goes on as if nothing had been, some time later.
    async fn wake_up(mut self) {
        self.world.dice.pause(500, 7_000).await;
        self.world
            .note(&format!("{}.{} wakes up", self.id, self.instance));
        if self.txn.is_some() {
            let commits = self.world.dice.chance(1, 2);
            if self.ending.is_none() && self.world.dice.chance(1, 2) {
                let partition = self.world.dice.below(i64::from(PARTITIONS)) as i32;
                // Whatever becomes of it, it ends what it takes for its transaction.
                let _ = self.write(partition).await;
            }
            let _ = self.end(self.ending.unwrap_or(commits)).await;
        }
        let _ = self.one_transaction().await;
    }

    async fn one_transaction(&mut self) -> Result<(), Stop> {
        let txn = self.world.checker.lock().begin(self.as_started.number);
        (self.txn, self.ending) = (Some(txn), None);
        let written = self.fill().await;
        let commits = match written {
            Ok(()) => self.world.dice.chance(3, 4),
            Err(Stop::Abort) => false,
            Err(Stop::Over) => return Err(Stop::Over),
        };
        self.end(commits).await?;
        // An older client that had to abort cannot know which sequence numbers were taken.
        match written.is_err() && self.adds_itself() {
            true => Err(Stop::Over),
            false => Ok(()),
        }
    }

    async fn fill(&mut self) -> Result<(), Stop> {
        let world = Arc::clone(&self.world);
        let commits_offset = world.dice.chance(1, 2);
        let writes = world.dice.below(4) + i64::from(!commits_offset);
        for _ in 0..writes {
            let partition = world.dice.below(i64::from(PARTITIONS)) as i32;
            self.write(partition).await?;
            world.dice.pause(1, 60).await;
        }
        if commits_offset {
            self.commit_offset().await?;
        }
        Ok(())
    }

    /// What it means to a client that a request fails.
    fn stop_for(&self, code: ErrorCode) -> Option<Stop> {
        match code {
            ErrorCode::InvalidProducerEpoch
            | ErrorCode::ProducerFenced
            | ErrorCode::InvalidProducerIdMapping => Some(Stop::Over),
            ErrorCode::TransactionAbortable
            | ErrorCode::InvalidTxnState
            | ErrorCode::OutOfOrderSequenceNumber
            | ErrorCode::UnknownProducerId => Some(Stop::Abort),
            _ => None,
        }
    }

    /// Asks something that is meant for the transaction of the moment.
    async fn ask<T: Send + 'static>(
        &self,
        node: usize,
        handle: impl Fn(Arc<Process>) -> BoxFuture<'static, T> + Send + Sync + 'static,
    ) -> Result<T, Lost> {
        match self.adds_itself() {
            true => self.world.ask_once(node, PATIENCE_MS, handle).await,
            false => self.world.ask(node, PATIENCE_MS, handle).await,
        }
    }

    async fn add(&mut self, parts: Vec<TopicOfTxn>) -> Result<(), Stop> {
        let world = Arc::clone(&self.world);
        loop {
            self.spend()?;
            let request = AddRequest {
                id: self.id.clone(),
                producer: self.identity,
                topics: parts.clone(),
                client_version: TxnVersion::V0,
            };
            let handle = move |process: Arc<Process>| -> BoxFuture<'static, _> {
                let request = request.clone();
                Box::pin(async move { process.txns.add(request).await })
            };
            let node = world.leader_hint(world.coordinator_of_txn(self.id.as_str()));
            let answer = world.ask(node, PATIENCE_MS, handle).await;
            match answer {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => {
                    if let Some(stop) = self.stop_for(error.code()) {
                        return Err(stop);
                    }
                }
                Err(_) => {}
            }
            world.dice.pause(20, 150).await;
        }
    }

    async fn write(&mut self, partition: i32) -> Result<(), Stop> {
        let world = Arc::clone(&self.world);
        let txn = self.txn.unwrap_or_default();
        if self.adds_itself() {
            let parts = topics_of(
                TOPIC,
                topic_id(TOPIC_NUMBER),
                PartitionIndex::new(partition),
            );
            self.add(parts).await?;
        }
        let value = world.checker.lock().write(txn, partition);
        let sequence = self.sequences[partition as usize];
        let bytes = batch(self.identity, sequence, value, &world);
        let (place, support) = (Place::Records(partition), self.support());
        loop {
            self.spend()?;
            let (id, bytes, there) = (self.id.clone(), bytes.clone(), Arc::clone(&world));
            let handle = move |process: Arc<Process>| -> BoxFuture<'static, _> {
                let producing =
                    Arc::clone(&there).produce(process, place, bytes.clone(), id.clone(), support);
                Box::pin(producing)
            };
            let answer = world
                .ask(world.leader_hint(place), PATIENCE_MS, handle)
                .await;
            world.note(&format!(
                "{}.{} writes {value} of {txn} to {partition}: {answer:?}",
                self.id, self.instance
            ));
            match answer {
                Ok(Ok(())) => {
                    world.checker.lock().written(txn, value);
                    self.sequences[partition as usize] += 1;
                    return Ok(());
                }
                Ok(Err(code)) => {
                    if let Some(stop) = self.stop_for(code) {
                        return Err(stop);
                    }
                }
                Err(_) => {}
            }
            world.dice.pause(20, 150).await;
        }
    }

    async fn commit_offset(&mut self) -> Result<(), Stop> {
        let world = Arc::clone(&self.world);
        let txn = self.txn.unwrap_or_default();
        let place = world.coordinator_of_group(GROUP);
        if self.adds_itself() {
            self.add(offsets_of(place)).await?;
        }
        let support = self.support();
        let producer = self.identity;
        loop {
            self.spend()?;
            let (id, there) = (self.id.clone(), Arc::clone(&world));
            let request = TxnCommitRequest {
                producer,
                verified: None,
                commit: CommitRequest {
                    group: GroupId::new(GROUP),
                    member: MemberId::new(""),
                    instance: None,
                    generation: GenerationId::new(-1),
                    retention_ms: None,
                    no_such_group: GroupError::IllegalGeneration,
                    knows_epochs: true,
                    topics: topics(self.as_started.number as i32, txn),
                },
            };
            let handle = move |process: Arc<Process>| -> BoxFuture<'static, _> {
                let world = Arc::clone(&there);
                let committing =
                    world.commit_in_transaction(process, request.clone(), id.clone(), support);
                Box::pin(committing)
            };
            let asked_ms = world.now_ms();
            let node = world.leader_hint(place);
            let answer = self.ask(node, handle).await;
            world.note(&format!(
                "{}.{} commits the offset of {txn}: {answer:?}",
                self.id, self.instance
            ));
            match answer {
                Ok(Ok(results)) if results[0][0].is_ok() => {
                    let mut checker = world.checker.lock();
                    checker.done_as(producer, asked_ms, "offset commit");
                    checker.offset_written(txn);
                    return Ok(());
                }
                Ok(Ok(_)) | Err(_) => {}
                Ok(Err(code)) => {
                    if let Some(stop) = self.stop_for(code) {
                        return Err(stop);
                    }
                }
            }
            world.dice.pause(20, 150).await;
        }
    }

    async fn end(&mut self, commits: bool) -> Result<(), Stop> {
        let world = Arc::clone(&self.world);
        let txn = self.txn.unwrap_or_default();
        loop {
            self.spend()?;
            self.ending = Some(commits);
            let request = EndRequest {
                id: self.id.clone(),
                producer: self.identity,
                committed: commits,
                client_version: self.as_started.dialect,
                fresh: None,
            };
            let there = Arc::clone(&world);
            let handle = move |process: Arc<Process>| -> BoxFuture<'static, _> {
                let (request, world) = (request.clone(), Arc::clone(&there));
                Box::pin(async move { process.txns.end(request, &*world).await })
            };
            let node = world.leader_hint(world.coordinator_of_txn(self.id.as_str()));
            let asked_ms = world.now_ms();
            let answer = self.ask(node, handle).await;
            world.note(&format!(
                "{}.{} ends {txn}, {commits}: {answer:?}",
                self.id, self.instance
            ));
            match answer {
                Ok(Ok(identity)) => {
                    let mut checker = world.checker.lock();
                    checker.done_as(self.identity, asked_ms, "end");
                    checker.ended(txn, commits, world.now_ms());
                    if identity != self.identity {
                        checker.is_known_as(self.as_started.number, self.instance, identity);
                        self.sequences = [0; PARTITIONS as usize];
                    }
                    self.identity = identity;
                    self.txn = None;
                    return Ok(());
                }
                // It was not begun, or has been ended by somebody else.
                Ok(Err(error)) if self.stop_for(error.code()).is_some() => {
                    return Err(Stop::Over);
                }
                Ok(Err(_)) => {}
                Err(_) => {}
            }
            world.dice.pause(20, 150).await;
        }
    }
}
