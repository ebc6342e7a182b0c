//! What a topic's configuration means to its logs. Names and defaults are Kafka's; units are in
//! the names.

/// Settings of one log. Changing them never rewrites what is on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// A segment is rolled before it would grow past this (`segment.bytes`).
    pub segment_bytes: u32,
    /// A segment is rolled once its records span more than this (`segment.ms`).
    pub segment_ms: u64,
    /// Largest amount by which a segment's `segment_ms` is shortened, so that logs made together
    /// do not roll together (`segment.jitter.ms`).
    pub segment_jitter_ms: u64,
    /// Size at which an index counts as full (`segment.index.bytes`).
    pub segment_index_bytes: u32,
    /// Log bytes between two index entries (`index.interval.bytes`).
    pub index_interval_bytes: u32,
    /// Age at which records may go; `None` keeps them for ever (`retention.ms`).
    pub retention_ms: Option<u64>,
    /// Size above which the oldest segments may go; `None` is no bound (`retention.bytes`).
    pub retention_bytes: Option<u64>,
    /// Whether old segments are deleted at all (`cleanup.policy` contains `delete`).
    pub delete_old_segments: bool,
    /// Whether batches may have been removed from the middle of the log (`cleanup.policy` contains
    /// `compact`), so that offsets need not be contiguous.
    pub compacted: bool,
    /// How long a deleted segment's files stay, renamed, before they are unlinked
    /// (`file.delete.delay.ms`).
    pub file_delete_delay_ms: u64,
    /// How long an idle producer's state is kept (`producer.id.expiration.ms`).
    pub producer_id_expiration_ms: u64,
    /// Largest size of one record expanded from a compressed batch when looking for a timestamp
    /// (`max.decompressed.message.bytes`).
    pub max_decompressed_bytes: usize,
    /// Whether an append counts as safe once it is in the page cache (`write.caching`).
    pub write_caching: bool,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 1 << 30,
            segment_ms: 7 * 24 * 60 * 60 * 1000,
            segment_jitter_ms: 0,
            segment_index_bytes: 10 << 20,
            index_interval_bytes: 4096,
            retention_ms: Some(7 * 24 * 60 * 60 * 1000),
            retention_bytes: None,
            delete_old_segments: true,
            compacted: false,
            file_delete_delay_ms: 60_000,
            producer_id_expiration_ms: 24 * 60 * 60 * 1000,
            max_decompressed_bytes: 128 << 20,
            write_caching: false,
        }
    }
}
