//! Every black-box test, in one program because linking is what costs time.

#![allow(missing_docs)]

mod clients;
mod compare_cluster;
mod compare_cluster_voters;
mod compare_configs;
mod compare_consumer_groups;
mod compare_fetch;
mod compare_group_admin;
mod compare_groups;
mod compare_metadata;
mod compare_produce;
mod compare_static_members;
mod compare_topics;
mod compare_transactions;
mod consumer_groups;
mod coordinated;
mod dump_log;
mod smoke;
mod streams;
mod three;
mod tools;
mod transactions;
mod wire_cluster;
mod wire_cluster_compaction;
mod wire_cluster_groups;
mod wire_cluster_producers;
mod wire_cluster_quorum;
mod wire_cluster_tools;
mod wire_cluster_transactions;
mod wire_cluster_unclean;
mod wire_compaction;
mod wire_descriptors;
mod wire_groups;
mod wire_limits;
mod wire_offsets;
mod wire_produce;
mod wire_recovery;
mod wire_start;
mod wire_topics;
mod wire_transactions;
mod wire_versions;
mod workspace;
