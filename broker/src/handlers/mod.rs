//! One file per API. A handler takes a decoded request and returns a value; it never touches a
//! socket, so that replies can leave in request order whatever the order they were computed in.

pub mod add_offsets_to_txn;
pub mod add_partitions_to_txn;
pub mod add_raft_voter;
mod admin_answers;
pub mod allocate_producer_ids;
pub mod alter_configs;
pub mod alter_partition_reassignments;
pub mod alter_replica_log_dirs;
pub mod api_versions;
mod commit_rows;
pub mod consumer_group_describe;
pub mod consumer_group_heartbeat;
pub mod create_partitions;
pub mod create_topics;
pub mod delete_groups;
pub mod delete_records;
pub mod delete_topics;
pub mod describe_cluster;
pub mod describe_configs;
pub mod describe_groups;
pub mod describe_log_dirs;
pub mod describe_producers;
pub mod describe_quorum;
pub mod describe_topic_partitions;
pub mod describe_transactions;
pub mod elect_leaders;
pub mod end_txn;
pub mod fetch;
pub mod find_coordinator;
pub mod get_telemetry_subscriptions;
mod group_answers;
pub mod heartbeat;
pub mod incremental_alter_configs;
pub mod init_producer_id;
pub mod join_group;
pub(crate) mod leader_hint;
pub mod leave_group;
pub mod list_config_resources;
pub mod list_groups;
pub mod list_offsets;
pub mod list_partition_reassignments;
pub mod list_transactions;
pub mod metadata;
pub mod offset_commit;
pub mod offset_delete;
pub mod offset_fetch;
pub mod offset_for_leader_epoch;
pub mod produce;
pub mod push_telemetry;
pub mod remove_raft_voter;
pub mod sync_group;
mod telemetry_sender;
mod topic_view;
pub mod txn_offset_commit;
pub mod unregister_broker;
pub mod update_features;
mod voter_change;
pub mod write_txn_markers;

use std::future::Future;
use std::pin::Pin;

/// Most rows of one request that are worked on at a time. A request may have as many as fit into its
/// frame, and the future of a row takes kilobytes.
const ROWS_AT_ONCE: usize = 256;

/// What a handler gives back for a request whose response message is `M`.
pub enum Reply<M> {
    /// The response is complete.
    Now(M),
    /// The request is enqueued: the connection may start its next request, and this response
    /// leaves when the future ends, in request order.
    Later(Pin<Box<dyn Future<Output = M> + Send + 'static>>),
    /// No response is owed (`acks=0`).
    Silent,
    /// The connection must be closed without an answer.
    Close,
}

#[cfg(test)]
mod admin_tests;
