//! Metrics that clients push (KIP-714): who is to push what, and how it is shown.
//!
//! Operators subscribe to metrics of clients (`kafka-client-metrics.sh`, `kafka-configs.sh --entity-type
//! client-metrics`); the subscriptions stand in the metadata, so every broker knows the same. A client asks a
//! broker what it is to push and how often, and pushes it there as OTLP. What it pushed last is shown on the
//! metrics endpoint, as `kafka_client_...` with the client's id and instance as labels.
//!
//! - `subscriptions`: what operators want of whom.
//! - `clients`: the client instances that were heard of, a pure core: `(request, now) → answer`.
//! - `otlp`: pushed bytes, decoded within bounds.
//! - `series`: the values of a client, and their text.
//! - `service`: the shell with clock, lock and decoder.
//! - `metrics`: what is counted of all that.
//!
//! Invariants: clients remembered ≤ `odradek.telemetry.max.clients`; series of one client ≤
//! `odradek.telemetry.client.max.series`, of all ≤ `odradek.telemetry.max.series`; lengths and number of labels
//! are bounded (`otlp`); a push expands to ≤ `telemetry.max.bytes`, and one is decoded at a time.
//!
//! Absent on purpose: histograms and summaries, which no client of Kafka's pushes (they are counted as left out);
//! jitter of the push interval, which the clients apply themselves.

pub mod clients;
pub mod metrics;
mod otlp;
mod series;
pub mod service;
pub mod subscriptions;

pub use service::{Telemetry, TelemetryLimits};
