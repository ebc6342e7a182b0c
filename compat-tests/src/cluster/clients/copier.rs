//! Copiers: transactional producers that commit the offsets of a group with what they write.
//!
//! A copier begins where its group stands. Each of its transactions writes a record to some partitions and brings the
//! group one offset forward. Some are aborted, some are left in the middle, as by a process that dies: the next
//! instance of the copier initializes the transactional id anew and asks its group where it stands. So whatever
//! happens, every position is written in exactly one committed transaction, one after the other.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use kafka_protocol::messages::{
    AddPartitionsToTxnResponse, ProduceResponse, TxnOffsetCommitResponse,
};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::coordinator::{Coordinator, Kind};
use super::{BACKOFF, FINISH_PATIENCE, Router, Shared};
use crate::batches::{BatchSpec, RecordSpec, TRANSACTIONAL};
use crate::cluster::history::{AttemptName, Partition};
use crate::groups::offset_fetch;
use crate::requests::Topic;
use crate::transactions::{TxnProducer, init_request};
use crate::wire::Wire;

/// How long one answer may take before a request is made again.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);

/// What only says "again": leaders, coordinators or replicas are missing for the moment, the leader's disk is full, the
/// last transaction is still being completed, or offsets are not decided yet.
const AGAIN: [i16; 12] = [3, 5, 6, 7, 14, 15, 16, 19, 20, 51, 56, 88];
const DUPLICATE_SEQUENCE_NUMBER: i16 = 46;
/// INVALID_TXN_STATE and TRANSACTION_ABORTABLE: this transaction can only be aborted.
const ABORTABLE: [i16; 2] = [48, 120];

/// How a copier speaks of its transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// It adds partitions by requests, and keeps its epoch, as clients before KIP-890.
    AddsPartitions,
    /// Partitions are added by what it writes, and its epoch changes with every transaction.
    ChangesEpochs,
}

/// Why a transaction was not brought to its end.
#[derive(Debug)]
enum Stop {
    /// It can only be aborted.
    Abort,
    /// The instance is over, as if its process had died.
    Dies,
    /// The instance can do nothing more, which is not in order.
    Stuck(String),
}

/// What one try came to.
type Try<T> = Result<Result<T, i16>>;

/// See the module.
pub struct Copier {
    shared: Shared,
    output: Topic,
    partitions: i32,
    number: u32,
    dialect: Dialect,
    rng: StdRng,
    transactions: Coordinator,
    group: Coordinator,
    router: Router,
    wires: HashMap<Partition, Wire>,
    producer: Option<TxnProducer>,
    sequences: HashMap<Partition, i32>,
    position: i64,
    attempts: u32,
}

/// The transactional id of a copier, which is the name of its group as well.
pub fn id_of(copier: u32) -> String {
    format!("copier-{copier}")
}

/// The partition of the topic under load that copiers commit their position for.
pub const POSITION_PARTITION: Partition = 0;

impl Copier {
    /// A copier with this number that writes to `output` and writes down everything it does.
    pub fn new(
        shared: Shared,
        output: &Topic,
        partitions: i32,
        number: u32,
        dialect: Dialect,
        seed: u64,
    ) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let addresses = &shared.addresses;
        let mut coordinator =
            |kind| Coordinator::of(addresses, kind, &id_of(number), rng.random_range(0..100));
        let (transactions, group) = (coordinator(Kind::Transaction), coordinator(Kind::Group));
        Self {
            router: Router::new(addresses, output, rng.random_range(0..100)),
            output: output.clone(),
            partitions,
            number,
            dialect,
            transactions,
            group,
            rng,
            wires: HashMap::new(),
            producer: None,
            sequences: HashMap::new(),
            position: 0,
            attempts: 0,
            shared,
        }
    }

    /// Copies until told to stop, and leaves nothing open.
    pub fn run(mut self) -> Result<()> {
        let mut deadline = None;
        loop {
            let stop = match self.instance() {
                Ok(()) => return Ok(()),
                Err(stop) => stop,
            };
            if let Stop::Stuck(why) = stop {
                let why = format!("copier {}: {why}", self.number);
                let recorder = &self.shared.recorder;
                recorder.note(|history| history.given_up.push(why));
            }
            if self.shared.stopping() {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + FINISH_PATIENCE);
                if Instant::now() >= deadline {
                    return Ok(());
                }
            }
            std::thread::sleep(BACKOFF);
        }
    }

    /// One instance: until told to stop, or until it dies or gets stuck.
    fn instance(&mut self) -> Result<(), Stop> {
        self.sequences.clear();
        self.producer = Some(self.until("InitProducerId", Self::init)?);
        self.position = self.until("OffsetFetch", Self::fetch_position)?;
        while !self.shared.stopping() {
            self.attempt()?;
            std::thread::sleep(Duration::from_millis(self.rng.random_range(2..25)));
        }
        Ok(())
    }

    /// Tries until there is an answer that says more than "again".
    fn until<T>(
        &mut self,
        what: &str,
        mut step: impl FnMut(&mut Self) -> Try<T>,
    ) -> Result<T, Stop> {
        let deadline = Instant::now() + FINISH_PATIENCE;
        loop {
            let tried = step(self);
            let why = match tried {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(code)) if ABORTABLE.contains(&code) => return Err(Stop::Abort),
                Ok(Err(code)) if !AGAIN.contains(&code) => {
                    return Err(Stop::Stuck(format!("{what}: error {code}")));
                }
                Ok(Err(code)) => format!("error {code}"),
                Err(error) => format!("{error:#}"),
            };
            if Instant::now() >= deadline {
                return Err(Stop::Stuck(format!("{what}: {why}, all the time")));
            }
            std::thread::sleep(BACKOFF);
        }
    }

    fn producer(&self) -> Result<&TxnProducer> {
        self.producer.as_ref().context("not initialized")
    }

    fn init(&mut self) -> Try<TxnProducer> {
        let id = id_of(self.number);
        let request = init_request(&id);
        let answer = self
            .transactions
            .ask(4, &request, ANSWER_PATIENCE, |answer| answer.error_code)?;
        Ok(match answer.error_code {
            0 => Ok(TxnProducer {
                id,
                producer_id: answer.producer_id.0,
                epoch: answer.producer_epoch,
            }),
            code => Err(code),
        })
    }

    fn fetch_position(&mut self) -> Try<i64> {
        position(&mut self.group, &self.shared.topic.name, self.number)
    }

    /// One transaction, to whatever end.
    fn attempt(&mut self) -> Result<(), Stop> {
        let name = AttemptName {
            copier: self.number,
            position: self.position,
            number: self.attempts,
        };
        self.attempts += 1;
        let mut partitions: Vec<Partition> = (0..self.partitions).collect();
        partitions.shuffle(&mut self.rng);
        partitions.truncate(self.rng.random_range(1..=partitions.len()));
        let recorder = self.shared.recorder.clone();
        let index = recorder.attempt_begins(name, partitions.clone());
        let commits = match self.fill(name, &partitions) {
            Ok(()) => self.rng.random_bool(0.8),
            // Which of its batches have arrived it does not know, so that it needs another epoch.
            Err(Stop::Abort) if self.dialect == Dialect::AddsPartitions => return Err(Stop::Dies),
            Err(Stop::Abort) => false,
            Err(stop) => return Err(stop),
        };
        recorder.attempt_asked(index, commits);
        if self.rng.random_bool(0.02) {
            // The question is sent, and nobody waits for the answer.
            let request = self
                .producer()
                .map(|producer| producer.end_request(commits));
            let version = self.end_version();
            if let (Ok(request), Ok(wire)) = (request, self.transactions.wire(ANSWER_PATIENCE)) {
                let _ = wire.send(version, &request);
            }
            self.transactions.forget();
            return Err(Stop::Dies);
        }
        let ended = self.until("EndTxn", |this| this.end(commits));
        let producer = ended.map_err(|stop| match stop {
            // Only whoever has no transaction is told that it cannot be ended.
            Stop::Abort => Stop::Stuck("EndTxn: there is no transaction to end".to_owned()),
            other => other,
        })?;
        recorder.attempt_answered(index);
        if Some(&producer) != self.producer.as_ref() {
            self.sequences.clear();
        }
        self.producer = Some(producer);
        self.position += i64::from(commits);
        Ok(())
    }

    /// Everything of a transaction but its end.
    fn fill(&mut self, name: AttemptName, partitions: &[Partition]) -> Result<(), Stop> {
        for &partition in partitions {
            self.may_die()?;
            if self.dialect == Dialect::AddsPartitions {
                self.until("AddPartitionsToTxn", |this| this.add(partition))?;
            }
            let batch = self
                .batch(name, partition)
                .map_err(|error| Stop::Stuck(format!("{error:#}")))?;
            self.until("Produce", |this| this.produce(partition, &batch))?;
            *self.sequences.entry(partition).or_default() += 1;
        }
        self.may_die()?;
        if self.dialect == Dialect::AddsPartitions {
            self.until("AddOffsetsToTxn", Self::add_offsets)?;
        }
        let position = self.position + 1;
        self.until("TxnOffsetCommit", |this| this.commit_offset(position))?;
        self.may_die()
    }

    fn may_die(&mut self) -> Result<(), Stop> {
        match self.rng.random_bool(0.01) {
            true => Err(Stop::Dies),
            false => Ok(()),
        }
    }

    fn batch(&self, name: AttemptName, partition: Partition) -> Result<Bytes> {
        let producer = self.producer()?;
        let sequence = self.sequences.get(&partition).copied().unwrap_or(0);
        let mut batch = BatchSpec::of(vec![RecordSpec::value(name.value())]).from_producer(
            producer.producer_id,
            producer.epoch,
            sequence,
        );
        batch.attributes |= TRANSACTIONAL;
        batch.build()
    }

    fn add(&mut self, partition: Partition) -> Try<()> {
        let code = |answer: &AddPartitionsToTxnResponse| {
            let topics = answer.results_by_topic_v3_and_below.iter();
            let rows = topics.flat_map(|topic| &topic.results_by_partition);
            first_error(rows.map(|row| row.partition_error_code))
        };
        let topics = [(self.output.name.as_str(), &[partition][..])];
        let request = self.producer()?.add_request(3, &topics, false);
        let answer = self.transactions.ask(3, &request, ANSWER_PATIENCE, code)?;
        Ok(to_try(code(&answer)))
    }

    fn produce(&mut self, partition: Partition, batch: &Bytes) -> Try<()> {
        let version = match self.dialect {
            Dialect::AddsPartitions => 11,
            Dialect::ChangesEpochs => 12,
        };
        let request = self
            .producer()?
            .produce_request(version, &self.output, partition, batch.clone())
            .with_timeout_ms(1_500);
        let answer = self.leader(partition).and_then(|wire| {
            let answer: ProduceResponse = wire.call(version, &request)?;
            Ok(answer)
        });
        let code = match &answer {
            Ok(answer) => {
                let rows = answer.responses.iter();
                let rows = rows.flat_map(|topic| &topic.partition_responses);
                first_error(rows.map(|row| row.error_code))
            }
            Err(_) => -1,
        };
        if code != 0 {
            self.wires.remove(&partition);
        }
        answer?;
        Ok(match code {
            DUPLICATE_SEQUENCE_NUMBER => Ok(()),
            code => to_try(code),
        })
    }

    fn leader(&mut self, partition: Partition) -> Result<&mut Wire> {
        if !self.wires.contains_key(&partition) {
            let wire = self.router.connect(partition, ANSWER_PATIENCE)?;
            self.wires.insert(partition, wire);
        }
        self.wires.get_mut(&partition).context("no connection")
    }

    fn add_offsets(&mut self) -> Try<()> {
        let request = self.producer()?.add_offsets_request(&id_of(self.number));
        let answer = self
            .transactions
            .ask(3, &request, ANSWER_PATIENCE, |answer| answer.error_code)?;
        Ok(to_try(answer.error_code))
    }

    fn commit_offset(&mut self, position: i64) -> Try<()> {
        let version = match self.dialect {
            Dialect::AddsPartitions => 3,
            Dialect::ChangesEpochs => 5,
        };
        let code = |answer: &TxnOffsetCommitResponse| {
            let rows = answer.topics.iter().flat_map(|topic| &topic.partitions);
            first_error(rows.map(|row| row.error_code))
        };
        let (group, topic) = (id_of(self.number), self.shared.topic.name.clone());
        let producer = self.producer()?;
        let request = producer.commit_request(&group, &topic, POSITION_PARTITION, position);
        let answer = self.group.ask(version, &request, ANSWER_PATIENCE, code)?;
        Ok(to_try(code(&answer)))
    }

    fn end_version(&self) -> i16 {
        match self.dialect {
            Dialect::AddsPartitions => 4,
            Dialect::ChangesEpochs => 5,
        }
    }

    fn end(&mut self, commits: bool) -> Try<TxnProducer> {
        let version = self.end_version();
        let producer = self.producer()?.clone();
        let request = producer.end_request(commits);
        let answer = self
            .transactions
            .ask(version, &request, ANSWER_PATIENCE, |answer| {
                answer.error_code
            })?;
        Ok(match (answer.error_code, self.dialect) {
            (0, Dialect::AddsPartitions) => Ok(producer),
            (0, Dialect::ChangesEpochs) => Ok(TxnProducer {
                id: producer.id,
                producer_id: answer.producer_id.0,
                epoch: answer.producer_epoch,
            }),
            (code, _) => Err(code),
        })
    }
}

fn to_try(code: i16) -> Result<(), i16> {
    match code {
        0 => Ok(()),
        code => Err(code),
    }
}

fn first_error(mut codes: impl Iterator<Item = i16>) -> i16 {
    codes.find(|code| *code != 0).unwrap_or(0)
}

/// Where the group of a copier stands, or the error code of the answer; asked once.
pub fn position(group: &mut Coordinator, topic: &str, copier: u32) -> Try<i64> {
    let request = offset_fetch(7, &id_of(copier), Some(&[(topic, &[POSITION_PARTITION])]))
        .with_require_stable(true);
    let answer = group.ask(7, &request, ANSWER_PATIENCE, |answer| answer.error_code)?;
    let row = answer
        .topics
        .first()
        .and_then(|topic| topic.partitions.first());
    let code = match row {
        Some(row) if answer.error_code == 0 => row.error_code,
        _ => answer.error_code,
    };
    Ok(match (code, row) {
        (0, Some(row)) => Ok(row.committed_offset.max(0)),
        (0, None) => Err(-1),
        (code, _) => Err(code),
    })
}
