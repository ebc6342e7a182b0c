//! Bounds of what goes on between two nodes.

use std::time::Duration;

use odradek_raft::TransferLimits;

use crate::config::BrokerConfig;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerLimits {
    /// Bytes of append requests of one partition that may wait for the follower's answer.
    pub stream_bytes: usize,
    /// The same of all partitions that one node replicates to another.
    pub memory_bytes: usize,
    /// Bytes of large frames that may be in memory before they have arrived whole: of frames that other
    /// nodes send of their own accord, and as many again of answers to this node.
    pub incoming_bytes: usize,
    /// How long a node may stall inside such a frame while others wait for the memory.
    pub stall_limit: Duration,
    /// Bytes that may wait to be sent before nothing more is read from the logs for that node.
    pub queue_bytes: usize,
    /// Partitions that one node may replicate to another.
    pub max_streams: usize,
    /// Requests to one node that may wait for its answer.
    pub max_calls: usize,
    /// Longest frame.
    pub frame_max_bytes: usize,
    /// How long an answer may take unless the caller says otherwise.
    pub request_timeout: Duration,
    /// How long it may take to connect and to be accepted.
    pub connect_timeout: Duration,
    /// Pause after the first failed attempt to connect; it doubles with every further one.
    pub reconnect_backoff: Duration,
    /// Longest such pause.
    pub reconnect_backoff_max: Duration,
    /// `leader.replication.throttled.rate`, in bytes a second.
    pub leader_throttled_rate: u64,
    /// `follower.replication.throttled.rate`, in bytes a second.
    pub follower_throttled_rate: u64,
    /// `odradek.peer.records.rate`, in bytes a second.
    pub records_rate: u64,
    /// Bounds of giving records to other replicas, and of taking them.
    pub transfers: TransferLimits,
}

impl PeerLimits {
    /// What the configuration says.
    pub fn of(config: &BrokerConfig) -> Self {
        config.peers.clone()
    }

    /// Limits with pauses short enough for tests.
    #[cfg(test)]
    pub(super) fn impatient() -> Self {
        Self {
            reconnect_backoff: Duration::from_millis(10),
            reconnect_backoff_max: Duration::from_millis(100),
            ..Self::of(&BrokerConfig::defaults())
        }
    }
}
