//! Bounds of what goes on between two nodes.

use std::time::Duration;

use crate::config::BrokerConfig;

/// See the module.
#[derive(Debug, Clone)]
pub struct PeerLimits {
    /// Bytes of append requests of one partition that may wait for the follower's answer.
    pub stream_bytes: usize,
    /// The same of all partitions that one node replicates to another.
    pub memory_bytes: usize,
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
}

/// What a request may be longer than the batch in it.
const FRAME_ROOM_BYTES: usize = 2 << 20;

impl PeerLimits {
    /// What the configuration says.
    pub fn of(config: &BrokerConfig) -> Self {
        Self {
            stream_bytes: 4 << 20,
            memory_bytes: 64 << 20,
            queue_bytes: 1 << 20,
            max_streams: 100_000,
            max_calls: 1024,
            frame_max_bytes: config.request_max_bytes + FRAME_ROOM_BYTES,
            request_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(2),
            reconnect_backoff: Duration::from_millis(50),
            reconnect_backoff_max: Duration::from_secs(1),
        }
    }
}
