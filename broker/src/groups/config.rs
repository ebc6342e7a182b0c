//! Settings of the coordinators, as they use them.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use super::consumer::GroupSettings;
use super::member_memory::MemberMemory;
use crate::config::GroupsConfig;
use crate::metadata::image::MetadataImage;

/// Settings of a coordinator.
#[derive(Clone, Debug)]
pub struct CoordinatorConfig {
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
    /// Largest record that the log takes, in bytes.
    pub max_record_bytes: usize,
    /// `group.consumer.*`.
    pub consumer: GroupSettings,
    /// The cluster's metadata, kept up to date from outside; an event sees what is there when it
    /// begins.
    pub metadata: Arc<ArcSwap<MetadataImage>>,
    /// What the members of all groups may take, whichever coordinator they are with.
    pub member_memory: Arc<MemberMemory>,
}

impl From<&GroupsConfig> for CoordinatorConfig {
    fn from(config: &GroupsConfig) -> Self {
        Self {
            group_min_session_timeout_ms: int_ms(config.min_session_timeout),
            group_max_session_timeout_ms: int_ms(config.max_session_timeout),
            group_initial_rebalance_delay_ms: int_ms(config.initial_rebalance_delay),
            group_max_size: config.max_size,
            offset_metadata_max_bytes: config.offset_metadata_max_bytes,
            offsets_retention_ms: long_ms(config.offsets_retention),
            offsets_retention_check_interval_ms: long_ms(config.offsets_retention_check_interval),
            // The coordinator of a partition takes the bound from its log.
            max_record_bytes: usize::MAX,
            consumer: config.consumer.clone(),
            metadata: Arc::default(),
            member_memory: MemberMemory::new(config.members),
        }
    }
}

fn int_ms(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}

fn long_ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
impl Default for CoordinatorConfig {
    /// Kafka's defaults.
    fn default() -> Self {
        Self {
            group_min_session_timeout_ms: 6_000,
            group_max_session_timeout_ms: 1_800_000,
            group_initial_rebalance_delay_ms: 3_000,
            group_max_size: i32::MAX as usize,
            offset_metadata_max_bytes: 4_096,
            offsets_retention_ms: 7 * 24 * 60 * 60 * 1_000,
            offsets_retention_check_interval_ms: 600_000,
            max_record_bytes: 1_000_000,
            consumer: GroupSettings::default(),
            metadata: Arc::default(),
            member_memory: MemberMemory::for_anybody(usize::MAX),
        }
    }
}
