//! Raft groups: every partition is one, and its replicated log *is* the partition's segmented log.
//!
//! - `types`: what a group replicates, in openraft's terms.
//! - `journal`, `entry_map`, `codec`: the entries that are not batches, and the arithmetic that
//!   gives every batch its Raft index.
//! - `votes`: the votes of all groups of a data directory in one file.
//! - `log_core`, `log_store`, `log_reader`, `open`: openraft's log on those.
//! - `partition_fsm`: what committing an entry does: the high watermark and the log start move.
//! - `membership`: who takes part in a group, and changing that.
//! - `progress`: who waits for replicas is told when one has got on.
//! - [`liveness`], `failure_detector`: which nodes answer, and what they have promised each other.
//! - `lease`, `elections`: what leaders and candidates may do by those promises.
//! - `emptied`: replicas that hold nothing, and may have forgotten something.
//! - `incarnation`: a partition's next group, when most voters of the last are given up.
//! - `compaction`: dropping the entries of records, and then what was overtaken of the records.
//! - `transfer`: giving such records to replicas that lack them.
//! - `group`, `node`: one group, and all groups of a process.
//! - `moving`: a group goes to another data directory of its node.
//! - [`network`], [`rpc`], [`wire`], `serve`: how nodes reach each other, and the bytes of it.
//! - `soundness`: what every message satisfies.
//! - [`seldom`]: log lines that others can bring about as often as they like.
//!
//! Absent on purpose: anything about topics or clients, and a network of sockets; the crates above
//! bring those.

mod codec;
mod compaction;
mod elections;
mod emptied;
mod entry_map;
mod error;
mod failure_detector;
mod framing;
mod group;
mod incarnation;
mod journal;
mod lease;
pub mod liveness;
mod log_core;
mod log_reader;
mod log_store;
mod membership;
pub mod memory_network;
mod moving;
pub mod network;
mod node;
mod observer;
mod open;
mod partition_fsm;
mod progress;
pub mod rpc;
pub mod seldom;
mod serve;
mod shared;
#[cfg(test)]
mod sim;
mod soundness;
mod transfer;
mod types;
mod votes;
mod waiter;
pub mod wire;

pub use compaction::{CompactionOutcome, CompactionRequest};
pub use error::{ProposeError, RaftError};
pub use group::{Group, Proposal};
pub use incarnation::{Standing, Succession};
pub use membership::{GroupMembership, ReplicaProgress};
pub use moving::MoveError;
pub use node::{DataDir, Detection, GroupSpec, RaftNode, RaftNodeOptions, Timing};
pub use observer::{GroupObserver, Leadership, NoObserver};
pub use progress::ReplicationChanges;
pub use transfer::TransferLimits;
pub use types::{AppendOutcome, GroupKey, Incarnation, RaftIndex, TypeConfig};
