//! A producer on a plain socket that writes one partition with `acks=all`.
//!
//! The idempotent one sends what is not answered again, in order and as often as it takes, after every error and every
//! lost connection. The other sends everything once: with a connection, or after an error, all that is not answered is
//! left in the dark, and it goes on under another name.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use kafka_protocol::messages::ProduceRequest;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{BACKOFF, FINISH_PATIENCE, Names, Router, Shared};
use crate::batches::{BatchSpec, RecordSpec};
use crate::cluster::history::{Partition, Promise, Recorder, Write};
use crate::requests::{init_producer_id, produce_request};
use crate::wire::Wire;

/// Requests on the way at most; an idempotent producer's state holds five.
const IN_FLIGHT: usize = 5;
/// How long an answer may take before the producer turns to another node.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// How often the oldest request is refused, for another reason than a change of leaders, before the producer starts
/// afresh.
const REFUSALS: u32 = 100;
const PRODUCE_VERSION: i16 = 9;

const DUPLICATE_SEQUENCE_NUMBER: i16 = 46;
const OUT_OF_ORDER_SEQUENCE_NUMBER: i16 = 45;
const UNKNOWN_PRODUCER_ID: i16 = 59;
const INVALID_PRODUCER_EPOCH: i16 = 47;

impl Recorder {
    /// Writes down a write that is about to be sent; the handle is for its acknowledgement.
    pub fn write_begins(&self, partition: Partition, names: Vec<super::Name>) -> usize {
        let invoked = self.now();
        let mut index = 0;
        self.note(|history| {
            index = history.writes.len();
            history.writes.push(Write {
                partition,
                names,
                invoked,
                acknowledged: None,
            });
        });
        index
    }

    /// Writes down its acknowledgement, and the offset if it was told.
    pub fn write_ends(&self, index: usize, base_offset: Option<i64>) {
        let now = self.now();
        self.note(|history| {
            if let Some(write) = history.writes.get_mut(index) {
                write.acknowledged = Some((now, base_offset));
            }
        });
    }
}

struct Waiting {
    batch: Bytes,
    /// Index of the write in the history.
    write: usize,
    /// Of the request that carries it on the present connection.
    correlation_id: Option<i32>,
}

/// One producer of one partition.
pub struct Producer {
    shared: Shared,
    partition: Partition,
    promise: Promise,
    rng: StdRng,
    router: Router,
    names: Names,
    identity: Option<(i64, i16)>,
    next_sequence: i32,
    wire: Option<Wire>,
    waiting: VecDeque<Waiting>,
    refusals: u32,
}

impl Producer {
    /// A producer that writes down everything it does.
    pub fn new(shared: Shared, partition: Partition, promise: Promise, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        Self {
            router: Router::new(&shared.addresses, &shared.topic, rng.random_range(0..100)),
            names: Names::new(&shared.recorder, promise),
            shared,
            partition,
            promise,
            rng,
            identity: None,
            next_sequence: 0,
            wire: None,
            waiting: VecDeque::new(),
            refusals: 0,
        }
    }

    /// Produces until told to stop and all is answered, or given up.
    pub fn run(mut self) -> Result<()> {
        let mut deadline = None;
        loop {
            if self.shared.stopping() {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + FINISH_PATIENCE);
                if self.waiting.is_empty() {
                    return Ok(());
                }
                if Instant::now() >= deadline {
                    self.give_up("no answer, though all faults are over".to_owned());
                    return Ok(());
                }
            }
            if self.round().is_err() {
                self.disconnect();
                std::thread::sleep(BACKOFF);
            }
        }
    }

    /// Sends a burst and waits for all answers; or, on a new connection, what is not answered yet.
    fn round(&mut self) -> Result<()> {
        if self.wire.is_none() {
            if self.promise == Promise::Idempotent && self.identity.is_none() {
                self.identify()?;
            }
            self.wire = Some(self.router.connect(self.partition, ANSWER_PATIENCE)?);
        }
        if !self.shared.stopping() {
            let burst = self.rng.random_range(1..=IN_FLIGHT);
            while self.waiting.len() < burst {
                self.make()?;
            }
        }
        for index in 0..self.waiting.len() {
            self.send(index)?;
        }
        while !self.waiting.is_empty() {
            self.receive()?;
        }
        std::thread::sleep(Duration::from_millis(self.rng.random_range(2..30)));
        Ok(())
    }

    fn identify(&mut self) -> Result<()> {
        let address = self.shared.addresses[self.rng.random_range(0..self.shared.addresses.len())];
        let mut wire = Wire::connect_within(address, ANSWER_PATIENCE)?;
        self.identity = Some(init_producer_id(&mut wire)?);
        self.next_sequence = 0;
        Ok(())
    }

    fn make(&mut self) -> Result<()> {
        let mut names = Vec::new();
        let mut records = Vec::new();
        for _ in 0..self.rng.random_range(1..=4) {
            let name = self.names.next();
            records.push(RecordSpec::value(name.value(self.rng.random_range(0..600))));
            names.push(name);
        }
        let count = i32::try_from(records.len())?;
        let mut batch = BatchSpec::of(records);
        if let Some((id, epoch)) = self.identity {
            batch = batch.from_producer(id, epoch, self.next_sequence);
            self.next_sequence += count;
        }
        let batch = batch.build()?;
        let write = self.shared.recorder.write_begins(self.partition, names);
        self.waiting.push_back(Waiting {
            batch,
            write,
            correlation_id: None,
        });
        Ok(())
    }

    fn send(&mut self, index: usize) -> Result<()> {
        let wire = self.wire.as_mut().context("no connection")?;
        let waiting = self.waiting.get_mut(index).context("nothing to send")?;
        if waiting.correlation_id.is_none() {
            let records = Some(waiting.batch.clone());
            let topic = &self.shared.topic;
            let request = produce_request(PRODUCE_VERSION, topic, self.partition, -1, records)
                .with_timeout_ms(1_500);
            waiting.correlation_id = Some(wire.send(PRODUCE_VERSION, &request)?);
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        let wire = self.wire.as_mut().context("no connection")?;
        let oldest = self.waiting.front().context("nothing was sent")?;
        let correlation_id = oldest.correlation_id.context("it was not sent")?;
        let answer = wire.receive::<ProduceRequest>(PRODUCE_VERSION, correlation_id)?;
        let row = answer
            .responses
            .first()
            .and_then(|topic| topic.partition_responses.first())
            .context("an answer without the partition")?;
        let base_offset = match row.error_code {
            0 => Some(row.base_offset),
            DUPLICATE_SEQUENCE_NUMBER if self.identity.is_some() => None,
            code => return self.refused(code),
        };
        self.shared.recorder.write_ends(oldest.write, base_offset);
        self.waiting.pop_front();
        self.refusals = 0;
        Ok(())
    }

    /// After an error of the oldest request.
    fn refused(&mut self, code: i16) -> Result<()> {
        self.refusals += 1;
        let hopeless = matches!(code, UNKNOWN_PRODUCER_ID | INVALID_PRODUCER_EPOCH)
            || (code == OUT_OF_ORDER_SEQUENCE_NUMBER && self.refusals > REFUSALS);
        if self.promise == Promise::Idempotent && hopeless {
            self.give_up(format!("error {code}"));
            self.start_afresh();
        }
        bail!("produce: error {code}")
    }

    fn give_up(&self, why: String) {
        let (producer, partition) = (self.names.producer, self.partition);
        let why = format!("producer {producer} of partition {partition}: {why}");
        self.shared
            .recorder
            .note(|history| history.given_up.push(why));
    }

    fn disconnect(&mut self) {
        self.wire = None;
        for waiting in &mut self.waiting {
            waiting.correlation_id = None;
        }
        if self.promise != Promise::Idempotent && !self.waiting.is_empty() {
            self.start_afresh();
        }
    }

    /// Leaves what is not answered in the dark and goes on as another producer.
    fn start_afresh(&mut self) {
        self.waiting.clear();
        self.identity = None;
        self.refusals = 0;
        self.names = Names::new(&self.shared.recorder, self.promise);
    }
}
