//! Every black-box test, in one program because linking is what costs time.

#![allow(missing_docs)]

mod compare_configs;
mod compare_fetch;
mod compare_groups;
mod compare_metadata;
mod compare_produce;
mod compare_topics;
mod smoke;
mod tools;
mod workspace;
