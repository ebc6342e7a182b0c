//! Black-box tests of the `odradek` binary, and what they are made of.
//!
//! A harness starts real brokers on free ports with fresh directories ([`broker`]), starts Apache Kafka the same way
//! ([`kafka`]), and speaks to either through a plain socket with a codec that Odradek does not use ([`wire`],
//! [`batches`]), through kcat ([`kcat`]), through Python ([`python`]) and through Kafka's own command-line tools
//! ([`kafka`], [`streams`]). The same script can be played to both ([`transcript`]) and the answers compared field by field
//! ([`comparison`]); versions that the codec does not know yet go through Kafka's own message definitions ([`schema`]).
//! Clusters of either are started, broken and judged by [`cluster`]. What other projects test their clients with is run
//! by [`suites`].
//!
//! Invariants: nothing here links a crate of Odradek; every wait has a deadline; every process that was started ends
//! with the test that started it, even if that test is killed; a failing test shows the broker's log.

pub mod batches;
pub mod bench;
pub mod beside;
pub mod broker;
pub mod cache;
pub mod cluster;
pub mod compared;
pub mod comparison;
pub mod compatibility;
pub mod fetched;
pub mod forgetful;
pub mod generator;
pub mod groups;
pub mod jar;
pub mod kafka;
pub mod kcat;
pub mod known;
pub mod loss;
pub mod ports;
pub mod power;
pub mod process;
pub mod python;
pub mod requests;
pub mod schema;
pub mod server;
pub mod streams;
pub mod suites;
pub mod tool_script;
pub mod tool_text;
pub mod toolbox;
pub mod transactions;
pub mod transcript;
pub mod tree;
pub mod wire;
