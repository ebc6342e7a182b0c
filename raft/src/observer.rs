//! What a group tells the partition that sits on it.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use odradek_protocol::ids::{LeaderEpoch, LogOffsets, NodeId, Offset};

/// Who leads a group, as this node knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// No leader is known.
    Unknown,
    /// This node leads.
    Leader {
        /// Epoch of its leadership.
        epoch: LeaderEpoch,
        /// Whether the first entry of its term is committed. Only then are writes accepted, and
        /// only then is everything earlier leaders acknowledged below the high watermark.
        ready: bool,
    },
    /// Another node leads, or an election is under way.
    Follower {
        /// The leader, once it has shown itself.
        leader: Option<NodeId>,
        /// Epoch of the election or leadership.
        epoch: LeaderEpoch,
    },
}

impl Leadership {
    /// The epoch, where there is one.
    pub fn epoch(self) -> Option<LeaderEpoch> {
        match self {
            Self::Unknown => None,
            Self::Leader { epoch, .. } | Self::Follower { epoch, .. } => Some(epoch),
        }
    }

    /// Whether this node leads and accepts writes.
    pub fn is_ready_leader(self) -> bool {
        matches!(self, Self::Leader { ready: true, .. })
    }
}

/// Receives what happens to a group, in order. Calls come from the tasks that run the group: they
/// must be quick and must not block or call back into the group.
pub trait GroupObserver: Send + Sync + 'static {
    /// The high watermark rose. The offsets are those after the rise.
    fn on_high_watermark(&self, offsets: LogOffsets);
    /// The leader, or what this node knows of it, changed.
    fn on_leadership(&self, leadership: Leadership);
    /// Everything below `log_start` is gone.
    fn on_log_start(&self, log_start: Offset);
    /// The group takes no writes any more because its disk failed.
    fn on_offline(&self, cause: Arc<str>);
    /// On the leader: a voter has lost its log, and has to be given it again.
    fn on_replica_lost(&self, _node: NodeId) {}
    /// `leader` offers a log that begins at `start`, to a replica whose own ends before. Whether that may be
    /// taken over: for a group whose owner sums the log up elsewhere, once what is below `start` is durable
    /// here. May take a while, and is asked again with every offer.
    fn may_begin_at(&self, _leader: NodeId, _start: Offset) -> BoxFuture<'static, bool> {
        Box::pin(std::future::ready(true))
    }
}

/// An observer that ignores everything.
pub struct NoObserver;

impl GroupObserver for NoObserver {
    fn on_high_watermark(&self, _offsets: LogOffsets) {}
    fn on_leadership(&self, _leadership: Leadership) {}
    fn on_log_start(&self, _log_start: Offset) {}
    fn on_offline(&self, _cause: Arc<str>) {}
}
