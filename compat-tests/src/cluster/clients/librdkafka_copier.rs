//! A copier (see [`super::copier`]) that is librdkafka's transactional producer.
//!
//! Any failure is the end of a producer, and the next one initializes the id anew. An abort within one would purge what
//! was sent and not acknowledged, and librdkafka 2.12 gives its sequence number to the next record in the same epoch:
//! where the purged one has arrived after all, every broker takes the next for its duplicate, and it is lost.
//!
//! A producer lives on a thread of its own, since librdkafka 2.12 may not come back from a call, whatever time the call
//! is given: `send_offsets_to_transaction` waits on when the group's coordinator goes away in the middle (its issues 5456
//! and 5511). One that has not come back from a call for `HANG_PATIENCE` is left where it is, counted, and followed by
//! another, which fences it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::coordinator::{Coordinator, Kind};
use super::copier::{POSITION_PARTITION, id_of, position};
use super::librdkafka::{print_if_asked, set_debug};
use super::{BACKOFF, FINISH_PATIENCE, Shared};
use crate::cluster::history::{AttemptName, Partition};
use crate::requests::Topic;

/// How long one call of librdkafka's may take before it is made again.
const CALL_PATIENCE: Duration = Duration::from_secs(5);

/// How long after that a producer is left alone that has not come back from it.
const HANG_PATIENCE: Duration = Duration::from_secs(20);

/// Says nothing unless asked to.
struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        print_if_asked(facility, message);
    }

    fn error(&self, _: KafkaError, _: &str) {}
}

impl ConsumerContext for Quiet {}

impl ProducerContext for Quiet {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

/// See the module.
pub struct LibrdkafkaCopier {
    shared: Shared,
    output: Topic,
    partitions: i32,
    number: u32,
    rng: StdRng,
    attempts: Arc<AtomicU32>,
}

/// What becomes of a producer.
enum News {
    /// It has come back from a call.
    Lives,
    /// It was told to stop and has nothing open, or can do nothing more.
    Ended(Result<()>),
}

impl LibrdkafkaCopier {
    /// A copier with this number that writes to `output` and writes down everything it does.
    pub fn new(shared: Shared, output: &Topic, partitions: i32, number: u32, seed: u64) -> Self {
        Self {
            shared,
            output: output.clone(),
            partitions,
            number,
            rng: StdRng::seed_from_u64(seed),
            attempts: Arc::default(),
        }
    }

    /// Copies until told to stop, and leaves nothing open. A producer of librdkafka's that fails for good, or does not
    /// come back, is followed by another.
    pub fn run(mut self) -> Result<()> {
        let mut deadline = None;
        loop {
            match self.one_producer()? {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) => self.note_if_stuck(&error),
                None => {
                    let recorder = &self.shared.recorder;
                    recorder.note(|history| history.hung += 1);
                }
            }
            if self.shared.stopping() {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + FINISH_PATIENCE);
                if Instant::now() >= deadline {
                    bail!("copier {} does not come to its end", self.number);
                }
            }
            std::thread::sleep(BACKOFF);
        }
    }

    /// What came of one producer; `None` if it does not come back.
    fn one_producer(&mut self) -> Result<Option<Result<()>>> {
        let (news, heard) = mpsc::channel();
        let mut instance = Instance {
            group: Coordinator::of(&self.shared.addresses, Kind::Group, &id_of(self.number), 0),
            shared: self.shared.clone(),
            output: self.output.clone(),
            partitions: self.partitions,
            number: self.number,
            rng: StdRng::seed_from_u64(self.rng.random()),
            position: 0,
            attempts: Arc::clone(&self.attempts),
            news: news.clone(),
        };
        std::thread::spawn(move || {
            let ended = instance.run();
            let _ = news.send(News::Ended(ended));
        });
        loop {
            match heard.recv_timeout(CALL_PATIENCE + HANG_PATIENCE) {
                Ok(News::Lives) => {}
                Ok(News::Ended(ended)) => return Ok(Some(ended)),
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("copier {} of librdkafka panicked", self.number)
                }
            }
        }
    }

    /// A producer that is fenced or fails for good makes room for the next one. One that was told again and again to
    /// try again is stuck.
    fn note_if_stuck(&self, error: &anyhow::Error) {
        let is_stuck = match error.downcast_ref::<KafkaError>() {
            Some(KafkaError::Transaction(error)) => error.is_retriable(),
            _ => false,
        };
        if is_stuck {
            let why = format!("copier {} of librdkafka: {error:#}", self.number);
            let recorder = &self.shared.recorder;
            recorder.note(|history| history.given_up.push(why));
        }
    }
}

/// One producer's life.
struct Instance {
    shared: Shared,
    output: Topic,
    partitions: i32,
    number: u32,
    rng: StdRng,
    group: Coordinator,
    position: i64,
    attempts: Arc<AtomicU32>,
    news: Sender<News>,
}

impl Instance {
    fn config(&self) -> ClientConfig {
        let servers: Vec<String> = self
            .shared
            .addresses
            .iter()
            .map(ToString::to_string)
            .collect();
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", servers.join(","))
            .set("socket.timeout.ms", "3000")
            .set("reconnect.backoff.ms", "20")
            .set("reconnect.backoff.max.ms", "200")
            .set("topic.metadata.refresh.interval.ms", "2000");
        set_debug(&mut config);
        config
    }

    /// Copies until told to stop; an error if the producer can do nothing more.
    fn run(&mut self) -> Result<()> {
        let id = id_of(self.number);
        let producer: ThreadedProducer<Quiet> = self
            .config()
            .set("transactional.id", &id)
            .set("transaction.timeout.ms", "60000")
            .set("request.timeout.ms", "2000")
            .set("message.timeout.ms", "30000")
            .set("linger.ms", "1")
            .create_with_context(Quiet)?;
        let consumer: BaseConsumer<Quiet> = self
            .config()
            .set("group.id", &id)
            .set("enable.auto.commit", "false")
            .create_with_context(Quiet)?;
        self.retried(|| producer.init_transactions(CALL_PATIENCE))?;
        self.position = self.stands_at()?;
        while !self.shared.stopping() {
            self.attempt(&producer, &consumer)?;
            std::thread::sleep(Duration::from_millis(self.rng.random_range(5..40)));
        }
        Ok(())
    }

    fn stands_at(&mut self) -> Result<i64> {
        let deadline = Instant::now() + FINISH_PATIENCE;
        loop {
            self.lives()?;
            match position(&mut self.group, &self.shared.topic.name, self.number) {
                Ok(Ok(position)) => return Ok(position),
                other if Instant::now() >= deadline => bail!("OffsetFetch: {other:?}"),
                _ => std::thread::sleep(BACKOFF),
            }
        }
    }

    /// One transaction; an error if the producer can do nothing more.
    fn attempt(
        &mut self,
        producer: &ThreadedProducer<Quiet>,
        consumer: &BaseConsumer<Quiet>,
    ) -> Result<()> {
        let name = AttemptName {
            copier: self.number,
            position: self.position,
            number: self.attempts.fetch_add(1, Ordering::Relaxed),
        };
        let mut partitions: Vec<Partition> = (0..self.partitions).collect();
        partitions.shuffle(&mut self.rng);
        partitions.truncate(self.rng.random_range(1..=partitions.len()));
        let recorder = self.shared.recorder.clone();
        let index = recorder.attempt_begins(name, partitions.clone());
        producer.begin_transaction()?;
        for &partition in &partitions {
            let value = name.value();
            let record: BaseRecord<'_, (), str> = BaseRecord::to(&self.output.name)
                .partition(partition)
                .payload(&value);
            producer.send(record).map_err(|(error, _)| error)?;
        }
        let metadata = consumer.group_metadata().context("no group")?;
        let mut offsets = TopicPartitionList::new();
        let next = Offset::Offset(self.position + 1);
        offsets.add_partition_offset(&self.shared.topic.name, POSITION_PARTITION, next)?;
        self.retried(|| producer.send_offsets_to_transaction(&offsets, &metadata, CALL_PATIENCE))?;
        // Nothing may be left to purge, see the module.
        self.flush(producer)?;
        let commits = self.rng.random_bool(0.8);
        recorder.attempt_asked(index, commits);
        match commits {
            true => self.retried(|| producer.commit_transaction(CALL_PATIENCE))?,
            false => self.retried(|| producer.abort_transaction(CALL_PATIENCE))?,
        }
        recorder.attempt_answered(index);
        self.position += i64::from(commits);
        Ok(())
    }

    /// Says that it is there; an error if nobody waits for it any more.
    fn lives(&self) -> Result<()> {
        let told = self.news.send(News::Lives);
        told.map_err(|_| anyhow!("left for another producer"))
    }

    /// Makes a call again as often as librdkafka says that this may help.
    fn retried(&self, mut call: impl FnMut() -> KafkaResult<()>) -> Result<()> {
        let deadline = Instant::now() + FINISH_PATIENCE;
        loop {
            let called = call();
            self.lives()?;
            match called {
                Err(KafkaError::Transaction(error))
                    if error.is_retriable() && Instant::now() < deadline =>
                {
                    std::thread::sleep(BACKOFF);
                }
                done => return Ok(done?),
            }
        }
    }

    fn flush(&self, producer: &ThreadedProducer<Quiet>) -> Result<()> {
        let deadline = Instant::now() + FINISH_PATIENCE;
        loop {
            let flushed = producer.flush(CALL_PATIENCE);
            self.lives()?;
            match flushed {
                Err(KafkaError::Flush(RDKafkaErrorCode::OperationTimedOut))
                    if Instant::now() < deadline => {}
                done => return Ok(done?),
            }
        }
    }
}
