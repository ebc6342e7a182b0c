//! Commands on the metadata, as pure functions of an image: what they ask for, the records that
//! carry them out, or the refusal.
//!
//! A function never sees a clock, a disk or another node. Random topic ids and the rules for
//! configuration values come in as arguments, so that a test decides them.

pub mod alter_configs;
pub mod create_partitions;
pub mod create_topics;
pub mod delete_topics;
pub mod elections;
pub mod leader_reports;
pub mod producer_ids;
pub mod reassignments;
pub mod register_broker;
mod registration_rules;
pub mod unclean_elections;
pub mod voters;
