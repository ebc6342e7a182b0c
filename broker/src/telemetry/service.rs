//! The shell around subscriptions and clients: the clock, the lock, and the decoder.
//!
//! Pushes are expanded and decoded one at a time and where nobody else waits, since the work that a small push
//! makes is bounded by `telemetry.max.bytes` alone. Those that wait hold their frames, which are reserved.

use std::sync::Arc;

use bytes::Bytes;
use odradek_protocol::codec::Uuid;
use odradek_protocol::compression::{Compression, decompress_capped};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::clients::{Bounds, Clients, PushHead, Refusal, Sender};
use super::metrics;
use super::otlp::{self, Pushed};
use super::subscriptions::{Subscriptions, Wanted};
use crate::blocking::blocking;
use crate::clock::Clock;
use crate::metadata::image::MetadataImage;

/// Bounds of clients' metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TelemetryLimits {
    /// `telemetry.max.bytes`.
    pub max_bytes: usize,
    /// Of what is remembered.
    pub bounds: Bounds,
}

#[derive(Debug)]
struct State {
    subscriptions: Subscriptions,
    clients: Clients,
}

/// See the module.
#[derive(Debug)]
pub struct Telemetry {
    clock: Arc<dyn Clock>,
    limits: TelemetryLimits,
    state: Mutex<State>,
    decoding: Semaphore,
}

impl Telemetry {
    /// Nobody has been heard of yet.
    pub fn new(limits: TelemetryLimits, clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            limits,
            state: Mutex::new(State {
                subscriptions: Subscriptions::default(),
                clients: Clients::new(limits.bounds),
            }),
            decoding: Semaphore::new(1),
        }
    }

    /// `telemetry.max.bytes`.
    pub fn max_bytes(&self) -> usize {
        self.limits.max_bytes
    }

    /// A client asks what it is to push; one without an id (all zeros) is given one. `sender` makes the sender
    /// out of the id. Returns the id beside what is wanted.
    ///
    /// # Errors
    /// If it asks too early.
    pub fn ask(
        &self,
        image: &MetadataImage,
        asked_as: Uuid,
        sender: impl FnOnce(Uuid) -> Sender,
    ) -> Result<(Uuid, Wanted), Refusal> {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        let State {
            subscriptions,
            clients,
        } = &mut *state;
        subscriptions.follow(image);
        let id = match asked_as.is_zero() {
            true => new_id(clients),
            false => asked_as,
        };
        let wanted = clients.ask(id, sender(id), subscriptions, now)?;
        Ok((id, wanted))
    }

    /// A client pushes metrics, compressed by the codec of that number.
    ///
    /// # Errors
    /// Why they are not taken.
    pub async fn push(
        &self,
        image: &MetadataImage,
        push: Push,
        sender: Sender,
    ) -> Result<(), Refusal> {
        let bytes = push.metrics.len();
        let outcome = self.take(image, push, sender).await;
        metrics::pushed(&outcome, bytes);
        outcome
    }

    async fn take(&self, image: &MetadataImage, push: Push, sender: Sender) -> Result<(), Refusal> {
        let id = push.client_instance_id;
        let codec = u8::try_from(push.compression_type).ok();
        let codec = codec.and_then(Compression::from_id);
        let head = PushHead {
            client_instance_id: id,
            subscription_id: push.subscription_id,
            is_last: push.is_last,
            is_codec_known: codec.is_some(),
            bytes: push.metrics.len(),
        };
        {
            let now = self.clock.monotonic();
            let mut state = self.state.lock();
            let State {
                subscriptions,
                clients,
            } = &mut *state;
            subscriptions.follow(image);
            clients.push(&head, sender, subscriptions, now, self.limits.max_bytes)?;
        }
        let Some(codec) = codec.filter(|_| !push.metrics.is_empty()) else {
            return Ok(());
        };
        let decoded = {
            // Never closed.
            let _turn = self.decoding.acquire().await;
            let limits = self.limits;
            blocking(move || decode(codec, push.metrics, limits)).await
        };
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        match decoded {
            Ok(pushed) => {
                let unfit = state.clients.take(id, &pushed.samples, now);
                drop(state);
                metrics::left_out(pushed.left_out + unfit);
                Ok(())
            }
            Err(reason) => {
                state.clients.was_undecodable(id);
                drop(state);
                tracing::debug!(client_instance_id = ?id, reason, "a push of metrics is refused");
                Err(Refusal::Undecodable)
            }
        }
    }

    /// What clients have pushed, in Prometheus's text, and what is counted of it.
    pub fn page(&self) -> String {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        state.clients.forget_silent(now);
        metrics::held(state.clients.len(), state.clients.series());
        state.clients.page()
    }
}

/// A push, as it comes.
#[derive(Debug)]
pub struct Push {
    /// Who pushes.
    pub client_instance_id: Uuid,
    /// Of which subscription.
    pub subscription_id: i32,
    /// Whether it is the last one.
    pub is_last: bool,
    /// Kafka's number of the codec.
    pub compression_type: i8,
    /// The metrics.
    pub metrics: Bytes,
}

fn new_id(clients: &Clients) -> Uuid {
    loop {
        let mut bytes: [u8; 16] = rand::random();
        // A random UUID of RFC 9562, as Kafka's are.
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        let id = Uuid::from_bytes(bytes);
        if !clients.knows(id) {
            return id;
        }
    }
}

fn decode(codec: Compression, metrics: Bytes, limits: TelemetryLimits) -> Result<Pushed, String> {
    let expanded = match codec {
        Compression::None => metrics,
        _ => decompress_capped(codec, &metrics, limits.max_bytes)
            .map_err(|error| error.to_string())?
            .into(),
    };
    let most = limits.bounds.most_series_of_a_client;
    otlp::decode(expanded, most).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::time::Duration;

    use odradek_protocol::compression::compress;
    use odradek_protocol::ids::TimestampMs;

    use super::super::otlp::{Kind, pushes};
    use super::super::subscriptions::ClientFacts;
    use super::*;
    use crate::clock::ManualClock;
    use crate::context::ConnectionInfo;

    struct Fixture {
        telemetry: Telemetry,
        clock: ManualClock,
        connection: Arc<ConnectionInfo>,
    }

    impl Fixture {
        fn new(max_bytes: usize) -> Self {
            let clock = ManualClock::starting_at(TimestampMs::new(1));
            let bounds = Bounds {
                most_clients: 10,
                most_series: 10,
                most_series_of_a_client: 10,
            };
            let limits = TelemetryLimits { max_bytes, bounds };
            Self {
                telemetry: Telemetry::new(limits, Arc::new(clock.clone())),
                clock,
                connection: Arc::new(ConnectionInfo::of_nobody()),
            }
        }

        fn sender(&self) -> Sender {
            Sender {
                facts: ClientFacts {
                    instance_id: "i".to_owned(),
                    client_id: Some("c".to_owned()),
                    software_name: "unknown".to_owned(),
                    software_version: "unknown".to_owned(),
                    source_address: "127.0.0.1".to_owned(),
                    source_port: "1".to_owned(),
                },
                connection: Arc::downgrade(&self.connection),
            }
        }

        /// Asks for a subscription and pushes `metrics`.
        async fn push(&self, codec: Compression, metrics: Bytes) -> Result<(), Refusal> {
            self.clock.advance(Duration::from_secs(301));
            let image = MetadataImage::default();
            let id = Uuid::from_bytes([7; 16]);
            let (id, wanted) = self
                .telemetry
                .ask(&image, id, |_| self.sender())
                .expect("its interval is up");
            self.clock.advance(Duration::from_millis(1));
            let push = Push {
                client_instance_id: id,
                subscription_id: wanted.subscription_id,
                is_last: false,
                compression_type: codec.id().cast_signed(),
                metrics,
            };
            self.telemetry.push(&image, push, self.sender()).await
        }
    }

    #[tokio::test]
    async fn what_is_pushed_is_shown_however_it_is_compressed() {
        let fixture = Fixture::new(1 << 20);
        let metric = pushes::number("a.total", Kind::Delta { rises: true }, &[], 1);
        let metrics = pushes::push(vec![], vec![metric]);
        for codec in Compression::ALL {
            let packed = compress(*codec, &metrics).expect("compressed");
            assert_eq!(fixture.push(*codec, packed).await, Ok(()));
        }
        let page = fixture.telemetry.page();
        let line = "kafka_client_a_total{client_id=\"c\",client_instance_id=\"i\"} 5\n";
        assert!(page.ends_with(line), "{page}");
    }

    #[tokio::test]
    async fn a_push_that_expands_too_far_or_is_nonsense_is_refused() {
        let fixture = Fixture::new(1_000);
        let zeros = compress(Compression::Zstd, &[0; 100_000]).expect("compressed");
        let refused = Err(Refusal::Undecodable);
        assert!(zeros.len() < 1_000);
        assert_eq!(fixture.push(Compression::Zstd, zeros).await, refused);
        let nonsense = Bytes::from_static(b"nonsense");
        for codec in Compression::ALL {
            assert_eq!(fixture.push(*codec, nonsense.clone()).await, refused);
        }
        let long = Bytes::from(vec![0; 1_001]);
        assert_eq!(
            fixture.push(Compression::None, long).await,
            Err(Refusal::TooLarge)
        );
        assert_eq!(fixture.push(Compression::None, Bytes::new()).await, Ok(()));
        assert_eq!(fixture.telemetry.page(), "");
    }

    #[tokio::test]
    async fn a_new_client_is_given_an_id_of_its_own() {
        let fixture = Fixture::new(1_000);
        let image = MetadataImage::default();
        let ask = || {
            let sender = |_| Sender {
                connection: Weak::new(),
                ..fixture.sender()
            };
            let asked = fixture.telemetry.ask(&image, Uuid::ZERO, sender);
            asked.expect("it is new").0
        };
        let (one, other) = (ask(), ask());
        assert!(!one.is_zero() && one != other);
    }
}
