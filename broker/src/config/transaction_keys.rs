//! Keys of transactions and of the topic that holds their state.

use std::time::Duration;

use super::broker_config::{millis, replication_factor};
use super::key::ConfigKind::{Boolean, Int, Short};
use super::key::Importance::High;
use super::key::UpdateMode::ClusterWide;
use super::key::{InvalidValue, KeySpec};
use super::values::Layers;

pub(super) static TRANSACTIONS: &[KeySpec] = &[
    KeySpec::new("transaction.max.timeout.ms", Int)
        .default("900000")
        .at_least(1)
        .importance(High)
        .doc("Longest time that a producer may let a transaction be open."),
    KeySpec::new("transaction.partition.verification.enable", Boolean)
        .default("true")
        .update(ClusterWide)
        .doc(
            "Whether a partition asks the coordinator if a transaction is open before it takes the \
             first batch of it. Without that a late batch can leave a transaction open for ever.",
        ),
    KeySpec::new("transactional.id.expiration.ms", Int)
        .default("604800000")
        .at_least(1)
        .importance(High)
        .doc("How long the coordinator remembers a transactional id that nobody uses."),
    KeySpec::new("transaction.state.log.num.partitions", Int)
        .default("50")
        .at_least(1)
        .importance(High)
        .doc(
            "Partitions of `__transaction_state` when it is created; the real number rules later.",
        ),
    KeySpec::new("transaction.state.log.replication.factor", Short)
        .default("3")
        .at_least(1)
        .importance(High)
        .doc(
            "Replicas of `__transaction_state`, but never more than there are nodes when it is \
             created.",
        ),
    KeySpec::new("transaction.state.log.min.isr", Int)
        .default("2")
        .at_least(1)
        .importance(High)
        .doc("`min.insync.replicas` of `__transaction_state`; a node on its own makes it 1."),
    KeySpec::new("transaction.state.log.segment.bytes", Int)
        .default("104857600")
        .at_least(1 << 20)
        .importance(High)
        .doc("`segment.bytes` of `__transaction_state`."),
    KeySpec::new("transaction.state.log.load.buffer.size", Int)
        .default("5242880")
        .at_least(1)
        .importance(High)
        .doc("Bytes of `__transaction_state` that are read at a time when a coordinator loads."),
    KeySpec::new(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        Int,
    )
    .default("10000")
    .at_least(1)
    .doc("How often transactions that have been open for too long are looked for."),
    KeySpec::new(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        Int,
    )
    .default("3600000")
    .at_least(1)
    .doc("How often transactional ids that nobody uses are looked for."),
];

/// Settings of transactions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionsConfig {
    /// `transaction.max.timeout.ms`.
    pub max_timeout: Duration,
    /// `transaction.partition.verification.enable`.
    pub verifies_partitions: bool,
    /// `transactional.id.expiration.ms`.
    pub id_expiration: Duration,
    /// `transaction.state.log.num.partitions`.
    pub topic_partitions: i32,
    /// `transaction.state.log.replication.factor`.
    pub topic_replication_factor: i16,
    /// `transaction.state.log.min.isr`.
    pub topic_min_isr: i32,
    /// `transaction.state.log.segment.bytes`.
    pub topic_segment_bytes: i32,
    /// `transaction.state.log.load.buffer.size`.
    pub load_buffer_bytes: usize,
    /// `transaction.abort.timed.out.transaction.cleanup.interval.ms`.
    pub timeout_check_interval: Duration,
    /// `transaction.remove.expired.transaction.cleanup.interval.ms`.
    pub expiration_check_interval: Duration,
}

impl TransactionsConfig {
    pub(super) fn from_layers(layers: &Layers) -> Result<Self, InvalidValue> {
        Ok(Self {
            max_timeout: millis(layers, "transaction.max.timeout.ms")?,
            verifies_partitions: layers.required("transaction.partition.verification.enable")?,
            id_expiration: millis(layers, "transactional.id.expiration.ms")?,
            topic_partitions: layers.required("transaction.state.log.num.partitions")?,
            topic_replication_factor: replication_factor(
                layers,
                "transaction.state.log.replication.factor",
            )?,
            topic_min_isr: layers.required("transaction.state.log.min.isr")?,
            topic_segment_bytes: layers.required("transaction.state.log.segment.bytes")?,
            load_buffer_bytes: layers.required("transaction.state.log.load.buffer.size")?,
            timeout_check_interval: millis(
                layers,
                "transaction.abort.timed.out.transaction.cleanup.interval.ms",
            )?,
            expiration_check_interval: millis(
                layers,
                "transaction.remove.expired.transaction.cleanup.interval.ms",
            )?,
        })
    }
}
