//! Every black-box test, in one program because linking is what costs time.

#![allow(missing_docs)]

mod clients;
mod compare_cluster;
mod compare_configs;
mod compare_fetch;
mod compare_group_admin;
mod compare_groups;
mod compare_metadata;
mod compare_produce;
mod compare_static_members;
mod compare_topics;
mod dump_log;
mod smoke;
mod tools;
mod wire_cluster;
mod wire_compaction;
mod wire_descriptors;
mod wire_groups;
mod wire_limits;
mod wire_offsets;
mod wire_produce;
mod wire_recovery;
mod wire_start;
mod wire_topics;
mod wire_versions;
mod workspace;
