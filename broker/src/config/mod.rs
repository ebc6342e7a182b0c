//! Configuration of the broker: the table of keys, where values come from, and what counts.
//!
//! `broker_keys` is the table, `load` reads a start's settings against it, `broker_config` is what
//! the code reads, `store` holds both while the broker runs, `describe` shows them and `docs` writes
//! them down. Settings of topics are in `crate::topic_config`.

pub mod broker_config;
pub mod broker_keys;
pub mod client_metrics_keys;
pub mod cluster;
pub mod describe;
pub mod docs;
pub mod foreign_keys;
pub mod group_keys;
pub mod key;
pub mod listeners;
pub mod load;
mod metadata_keys;
mod peer_keys;
pub mod properties;
mod replication_keys;
pub(crate) mod spelling;
pub mod store;
mod telemetry_keys;
mod transaction_keys;
pub mod values;

pub use self::broker_config::{BrokerConfig, GroupsConfig, ReplicationConfig};
pub use self::cluster::{ClusterConfig, Voter};
pub use self::store::ConfigStore;
pub use self::transaction_keys::TransactionsConfig;
pub use self::values::{ConfigSource, Settings};
