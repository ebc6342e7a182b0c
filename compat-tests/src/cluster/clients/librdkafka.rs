//! librdkafka's idempotent producer on all partitions.
//!
//! `ODRADEK_RDKAFKA_DEBUG` has librdkafka tell what it does, here and where it copies: its `debug` contexts, as in
//! `eos,msg`.

use std::time::Duration;

use anyhow::Result;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer};

use super::{FINISH_PATIENCE, Names, Shared};
use crate::cluster::history::{Promise, Recorder};

const DEBUG: &str = "ODRADEK_RDKAFKA_DEBUG";

/// Has a client tell what it was asked to.
pub(super) fn set_debug(config: &mut ClientConfig) {
    if let Ok(contexts) = std::env::var(DEBUG) {
        config.set("debug", contexts);
    }
}

/// Says nothing unless asked to, since everything is broken on purpose.
pub(super) fn print_if_asked(facility: &str, message: &str) {
    if std::env::var_os(DEBUG).is_some() {
        eprintln!("{facility}: {message}");
    }
}

/// Writes down what librdkafka says of deliveries.
struct Deliveries(Recorder);

impl ClientContext for Deliveries {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        print_if_asked(facility, message);
    }

    fn error(&self, _: KafkaError, _: &str) {}
}

impl ProducerContext for Deliveries {
    /// Index of the write in the history.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, write: usize) {
        if let Ok(message) = result {
            let offset = Some(message.offset()).filter(|offset| *offset >= 0);
            self.0.write_ends(write, offset);
        }
    }
}

/// The producer.
pub struct Producer {
    shared: Shared,
    rng: StdRng,
}

impl Producer {
    /// A producer that writes down everything it does.
    pub fn new(shared: Shared, seed: u64) -> Self {
        Self {
            shared,
            rng: StdRng::seed_from_u64(seed),
        }
    }

    /// Produces until told to stop and all is delivered, or given up. After a fatal error of librdkafka's, which ends
    /// a producer, another one goes on under another name.
    pub fn run(mut self) -> Result<()> {
        while !self.shared.stopping() {
            let producer = self.create()?;
            let mut names = Names::new(&self.shared.recorder, Promise::Idempotent);
            if let Err(error) = self.produce(&producer, &mut names) {
                let what = format!("producer {} of librdkafka: {error}", names.producer);
                self.shared
                    .recorder
                    .note(|history| history.given_up.push(what));
            }
            // What is not delivered by then stays in the dark.
            let _ = producer.flush(FINISH_PATIENCE);
        }
        Ok(())
    }

    fn create(&self) -> Result<ThreadedProducer<Deliveries>> {
        let servers: Vec<String> = self
            .shared
            .addresses
            .iter()
            .map(ToString::to_string)
            .collect();
        let mut config = ClientConfig::new();
        set_debug(&mut config);
        Ok(config
            .set("bootstrap.servers", servers.join(","))
            .set("enable.idempotence", "true")
            .set("linger.ms", "2")
            .set("socket.timeout.ms", "3000")
            .set("request.timeout.ms", "2000")
            .set("reconnect.backoff.ms", "20")
            .set("reconnect.backoff.max.ms", "200")
            .set("topic.metadata.refresh.interval.ms", "2000")
            .set("message.timeout.ms", "120000")
            .create_with_context(Deliveries(self.shared.recorder.clone()))?)
    }

    /// Sends until told to stop, or until librdkafka takes no more.
    fn produce(
        &mut self,
        producer: &ThreadedProducer<Deliveries>,
        names: &mut Names,
    ) -> Result<(), KafkaError> {
        while !self.shared.stopping() {
            for _ in 0..self.rng.random_range(1..8) {
                let partition = self.rng.random_range(0..self.shared.partitions);
                let name = names.next();
                let value = name.value(self.rng.random_range(0..300));
                let write = self.shared.recorder.write_begins(partition, vec![name]);
                let record: BaseRecord<'_, (), str, usize> =
                    BaseRecord::with_opaque_to(&self.shared.topic.name, write)
                        .partition(partition)
                        .payload(&value);
                match producer.send(record) {
                    Ok(()) => {}
                    // A name that was not sent is no loss.
                    Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => break,
                    Err((error, _)) => return Err(error),
                }
            }
            std::thread::sleep(Duration::from_millis(self.rng.random_range(5..40)));
        }
        Ok(())
    }
}
