//! Settings of the group coordinator, with Kafka's keys and defaults.

/// Settings of the group coordinator, each under the name of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupsConfig {
    /// `group.min.session.timeout.ms`.
    pub group_min_session_timeout_ms: i32,
    /// `group.max.session.timeout.ms`.
    pub group_max_session_timeout_ms: i32,
    /// `group.initial.rebalance.delay.ms`: how long an empty group waits for more members after
    /// the first one joined.
    pub group_initial_rebalance_delay_ms: i32,
    /// `group.max.size`, in members.
    pub group_max_size: usize,
    /// `offset.metadata.max.bytes`; like Kafka it counts UTF-16 units.
    pub offset_metadata_max_bytes: usize,
    /// `offsets.retention.minutes`, in milliseconds.
    pub offsets_retention_ms: i64,
    /// `offsets.retention.check.interval.ms`.
    pub offsets_retention_check_interval_ms: i64,
    /// `offsets.load.buffer.size`: bytes to read at a time while loading.
    pub offsets_load_buffer_size: usize,
    /// Requests that may wait for one partition's coordinator.
    pub request_queue_len: usize,
    /// Batches that one partition's coordinator may have appended and not yet committed.
    pub max_in_flight_batches: usize,
    /// Largest record that the log takes, in bytes.
    pub max_record_bytes: usize,
}

impl Default for GroupsConfig {
    fn default() -> Self {
        Self {
            group_min_session_timeout_ms: 6_000,
            group_max_session_timeout_ms: 1_800_000,
            group_initial_rebalance_delay_ms: 3_000,
            group_max_size: i32::MAX as usize,
            offset_metadata_max_bytes: 4_096,
            offsets_retention_ms: 7 * 24 * 60 * 60 * 1_000,
            offsets_retention_check_interval_ms: 600_000,
            offsets_load_buffer_size: 5 * 1024 * 1024,
            request_queue_len: 4_096,
            max_in_flight_batches: 256,
            max_record_bytes: 1_000_000,
        }
    }
}
