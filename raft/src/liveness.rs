//! Which nodes answer, and what they have promised each other.
//!
//! Nodes that share a group probe each other. A node that answers a probe of another promises it:
//! for the time of a lease, on my own monotonic clock, I give no vote and stand for no election
//! against leaders on you. A leader that has such promises of a majority of its group's voters
//! knows that no other leader has been elected, and may answer reads without asking anybody.
//!
//! [`ProbeTransport`] is what carries probes. [`RaftNode`](crate::RaftNode) has the other end:
//! `serve_probe` and `serve_leadership`.

use futures_util::future::BoxFuture;
use odradek_protocol::ids::NodeId;

use crate::network::NetworkError;
use crate::types::GroupKey;

/// Are you there?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Who asks.
    pub from: NodeId,
    /// A number that the asking process drew when it started.
    pub incarnation: u64,
    /// Counts the probes of that process to this node, from 1.
    pub sequence: u64,
}

/// I am.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeReply {
    /// A number that the answering process drew when it started.
    pub incarnation: u64,
    /// Which promise this answer prolongs; `None` when it promises nothing. Another number than
    /// before says that the last promise had run out, so that votes may have been given since.
    pub promise: Option<u64>,
}

/// Do you still lead this group in this term?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadershipQuery {
    /// The group.
    pub group: GroupKey,
    /// The term in which the asked node was heard of as the leader.
    pub term: u64,
}

/// The answer to a [`LeadershipQuery`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadershipReply {
    /// The asked node leads that group in that term no more and never will again, so promises that
    /// it was given do not concern it.
    pub given_up: bool,
}

/// Carries probes between nodes. A lost probe is not sent again, and nothing waits for it longer
/// than a lease. An implementation that knows that the other end is gone answers with an error at
/// once; that shortens no promise, but the next probe follows sooner.
pub trait ProbeTransport: Send + Sync + 'static {
    /// Asks whether a node is there.
    fn probe(
        &self,
        to: NodeId,
        probe: Probe,
    ) -> BoxFuture<'static, Result<ProbeReply, NetworkError>>;

    /// Asks a node whether it has given up a leadership.
    fn leadership(
        &self,
        from: NodeId,
        to: NodeId,
        query: LeadershipQuery,
    ) -> BoxFuture<'static, Result<LeadershipReply, NetworkError>>;
}
