//! What a topic's configuration means to its partitions.

use odradek_protocol::batch::{BatchOrigin, TimestampType, ValidationLimits};
use odradek_protocol::compression::Compression;
use odradek_protocol::ids::TimestampMs;
use odradek_protocol::records::ExpansionLimits;
use odradek_storage::{CompactionConfig, LogConfig};

use crate::config::BrokerConfig;
use crate::config::Settings;
use crate::topic_config::{CompressionPolicy, TopicConfig};

/// What producers and readers of one topic are held to, and how its logs are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct PartitionSettings {
    /// `compression.type` and the level that goes with it; `None` keeps whatever the producer
    /// chose.
    pub compression: Option<(Compression, i32)>,
    /// `max.message.bytes`, of a batch.
    pub max_message_bytes: usize,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms`.
    pub timestamp_before_max_ms: i64,
    /// `message.timestamp.after.max.ms`.
    pub timestamp_after_max_ms: i64,
    /// `min.insync.replicas`.
    pub min_insync_replicas: usize,
    /// How the log is kept.
    pub log: LogConfig,
    /// When and how it is compacted, if it is.
    pub compaction: CompactionConfig,
}

impl PartitionSettings {
    /// Settings of a topic whose own settings are `own`. They were checked before they were
    /// stored; should they be unreadable all the same, the broker's defaults count.
    pub fn of_topic(broker: &BrokerConfig, topic: &str, own: &Settings) -> Self {
        let defaults = &broker.topic_defaults;
        let config = TopicConfig::new(defaults, own).or_else(|error| {
            tracing::warn!(topic, %error, "unreadable topic settings, the defaults are used");
            TopicConfig::new(defaults, &Settings::new())
        });
        match config {
            Ok(config) => Self::new(&config, broker),
            Err(error) => unreachable!("defaults are checked when they are read: {error}"),
        }
    }

    fn new(topic: &TopicConfig, broker: &BrokerConfig) -> Self {
        let expiration_ms = broker.producer_id_expiration.as_millis();
        Self {
            compression: match topic.compression {
                CompressionPolicy::Producer => None,
                CompressionPolicy::Fixed(codec, level) => Some((codec, level)),
            },
            max_message_bytes: topic.max_message_bytes,
            timestamp_type: topic.timestamp_type,
            timestamp_before_max_ms: topic.timestamp_before_max_ms,
            timestamp_after_max_ms: topic.timestamp_after_max_ms,
            min_insync_replicas: topic.min_insync_replicas,
            log: LogConfig {
                segment_bytes: topic.segment_bytes,
                segment_ms: match topic.compact {
                    // Only closed segments are compacted.
                    true => topic.segment_ms.min(topic.compaction.max_lag_ms),
                    false => topic.segment_ms,
                },
                segment_jitter_ms: topic.segment_jitter_ms,
                segment_index_bytes: topic.segment_index_bytes,
                index_interval_bytes: topic.index_interval_bytes,
                retention_ms: topic.retention_ms,
                retention_bytes: topic.retention_bytes,
                delete_old_segments: topic.delete,
                compacted: topic.compact,
                file_delete_delay_ms: topic.file_delete_delay_ms,
                producer_id_expiration_ms: u64::try_from(expiration_ms).unwrap_or(u64::MAX),
                max_decompressed_bytes: topic.max_decompressed_message_bytes,
                write_caching: topic.write_caching,
            },
            compaction: topic.compaction,
        }
    }

    /// How far compressed records may expand.
    pub fn expansion(&self) -> ExpansionLimits {
        ExpansionLimits {
            max_record_bytes: self.log.max_decompressed_bytes,
            ..ExpansionLimits::default()
        }
    }

    /// What a batch is validated against at `now`.
    pub fn limits(
        &self,
        origin: BatchOrigin,
        zstd_allowed: bool,
        now: TimestampMs,
    ) -> ValidationLimits {
        ValidationLimits {
            origin,
            max_message_bytes: self.max_message_bytes,
            expansion: self.expansion(),
            compacted: self.log.compacted,
            timestamp_type: self.timestamp_type,
            timestamp_before_max_ms: self.timestamp_before_max_ms,
            timestamp_after_max_ms: self.timestamp_after_max_ms,
            now,
            zstd_allowed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> PartitionSettings {
        let own = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        PartitionSettings::of_topic(&BrokerConfig::defaults(), "orders", &own)
    }

    #[test]
    fn nothing_set_means_kafkas_defaults() {
        let settings = settings(&[]);
        assert_eq!(settings.compression, None);
        assert_eq!(settings.max_message_bytes, 1_048_588);
        let log = LogConfig {
            max_decompressed_bytes: i32::MAX as usize - 8,
            ..LogConfig::default()
        };
        assert_eq!(settings.log, log);
    }

    #[test]
    fn a_codec_that_is_named_replaces_the_producers() {
        let zstd = settings(&[("compression.type", "zstd")]);
        assert_eq!(zstd.compression, Some((Compression::Zstd, 3)));
    }

    #[test]
    fn an_unreadable_value_falls_back_instead_of_stopping_the_broker() {
        assert_eq!(settings(&[("segment.bytes", "lots")]), settings(&[]));
    }
}
