//! Settings of a topic: their table, their typed form, and where each value comes from.
//!
//! Names, defaults, bounds and broker synonyms are those of Apache Kafka 4.4; `write.caching` is ours
//! (the name is Redpanda's). A topic's own setting counts before the broker's synonym, and that
//! before the default.

mod keys;

use odradek_protocol::batch::TimestampType;
use odradek_protocol::compression::Compression;
use odradek_storage::CompactionConfig;

pub use self::keys::{TOPIC_KEYS, TopicKey, find};
use crate::config::key::{InvalidValue, list_elements};
use crate::config::spelling;
use crate::config::values::{Layers, Settings};

/// What a batch is compressed with on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompressionPolicy {
    /// As the producer sent it.
    Producer,
    /// With this codec, at this level where the codec has levels.
    Fixed(Compression, i32),
}

/// The settings of one topic that count.
#[derive(Debug, Clone, PartialEq)]
pub struct TopicConfig {
    /// `cleanup.policy` contains `delete`.
    pub delete: bool,
    /// `cleanup.policy` contains `compact`.
    pub compact: bool,
    /// `compression.type` and the level that goes with it.
    pub compression: CompressionPolicy,
    /// `retention.ms`; `None` keeps records whatever their age.
    pub retention_ms: Option<u64>,
    /// `retention.bytes`; `None` keeps records whatever the size.
    pub retention_bytes: Option<u64>,
    /// `segment.bytes`.
    pub segment_bytes: u32,
    /// `segment.ms`.
    pub segment_ms: u64,
    /// `segment.jitter.ms`.
    pub segment_jitter_ms: u64,
    /// `segment.index.bytes`.
    pub segment_index_bytes: u32,
    /// `index.interval.bytes`.
    pub index_interval_bytes: u32,
    /// `file.delete.delay.ms`.
    pub file_delete_delay_ms: u64,
    /// `max.message.bytes`.
    pub max_message_bytes: usize,
    /// `max.decompressed.message.bytes`.
    pub max_decompressed_message_bytes: usize,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms`.
    pub timestamp_before_max_ms: i64,
    /// `message.timestamp.after.max.ms`.
    pub timestamp_after_max_ms: i64,
    /// `min.cleanable.dirty.ratio`, `min.compaction.lag.ms`, `max.compaction.lag.ms` and
    /// `delete.retention.ms`.
    pub compaction: CompactionConfig,
    /// `write.caching`.
    pub write_caching: bool,
    /// `unclean.leader.election.enable`.
    pub unclean_leader_election: bool,
    /// `min.insync.replicas`.
    pub min_insync_replicas: usize,
}

impl TopicConfig {
    /// Settings of a topic with these settings of its own, which [`validate`] has passed.
    pub fn new(defaults: &TopicDefaults, own: &Settings) -> Result<Self, InvalidValue> {
        let read = Reader { defaults, own };
        let policies = read.text("cleanup.policy")?;
        let has = |policy| list_elements(&policies).any(|element| element == policy);
        Ok(Self {
            delete: has("delete"),
            compact: has("compact"),
            compression: read.compression()?,
            retention_ms: read.unless_negative("retention.ms")?,
            retention_bytes: read.unless_negative("retention.bytes")?,
            segment_bytes: read.number("segment.bytes")?,
            segment_ms: read.number("segment.ms")?,
            segment_jitter_ms: read.number("segment.jitter.ms")?,
            segment_index_bytes: read.number("segment.index.bytes")?,
            index_interval_bytes: read.number("index.interval.bytes")?,
            file_delete_delay_ms: read.number("file.delete.delay.ms")?,
            max_message_bytes: read.number("max.message.bytes")?,
            max_decompressed_message_bytes: read.number("max.decompressed.message.bytes")?,
            timestamp_type: match read.text("message.timestamp.type")?.as_str() {
                "LogAppendTime" => TimestampType::LogAppendTime,
                _ => TimestampType::CreateTime,
            },
            timestamp_before_max_ms: read.number("message.timestamp.before.max.ms")?,
            timestamp_after_max_ms: read.number("message.timestamp.after.max.ms")?,
            compaction: CompactionConfig {
                min_dirty_ratio: read.number("min.cleanable.dirty.ratio")?,
                min_lag_ms: read.number("min.compaction.lag.ms")?,
                max_lag_ms: read.number("max.compaction.lag.ms")?,
                delete_retention_ms: read.number("delete.retention.ms")?,
            },
            write_caching: read.number("write.caching")?,
            unclean_leader_election: read.number("unclean.leader.election.enable")?,
            min_insync_replicas: read.number("min.insync.replicas")?,
        })
    }
}

/// What counts for a topic that sets nothing, by the broker's settings of the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicDefaults {
    /// In the order of [`TOPIC_KEYS`].
    values: Vec<String>,
}

impl TopicDefaults {
    pub(crate) fn from_layers(layers: &Layers) -> Result<Self, InvalidValue> {
        let values = TOPIC_KEYS
            .iter()
            .map(|key| {
                let value = key.default_value(layers)?;
                key.spec.normalize(&value)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { values })
    }

    /// The default of the setting `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        let at = TOPIC_KEYS.iter().position(|key| key.spec.name == name)?;
        self.values.get(at).map(String::as_str)
    }
}

/// Why settings of a topic are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopicConfigError {
    /// There is no such setting.
    #[error(
        "Unknown topic config name: {0}{hint}",
        hint = spelling::suggestion(spelling::nearest_topic_key(.0))
    )]
    UnknownName(String),
    /// The value is not one that the setting takes.
    #[error(transparent)]
    Invalid(#[from] InvalidValue),
    /// Two settings contradict each other.
    #[error("{low} must not be larger than {high}")]
    Contradiction {
        /// The one that is too large.
        low: &'static str,
        /// The one that it exceeds.
        high: &'static str,
    },
}

/// Checks all of a topic's own settings, as they stand after a change, and gives them normalized.
pub fn validate<'a>(
    defaults: &TopicDefaults,
    own: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Settings, TopicConfigError> {
    let mut checked = Settings::new();
    for (name, value) in own {
        let key = find(name).ok_or_else(|| TopicConfigError::UnknownName(name.to_owned()))?;
        checked.insert(name.to_owned(), key.spec.normalize(value)?);
    }
    let read = Reader {
        defaults,
        own: &checked,
    };
    let (low, high) = ("min.compaction.lag.ms", "max.compaction.lag.ms");
    if read.number::<i64>(low)? > read.number::<i64>(high)? {
        return Err(TopicConfigError::Contradiction { low, high });
    }
    Ok(checked)
}

struct Reader<'a> {
    defaults: &'a TopicDefaults,
    own: &'a Settings,
}

impl Reader<'_> {
    fn text(&self, name: &str) -> Result<String, InvalidValue> {
        self.own
            .get(name)
            .map(String::as_str)
            .or_else(|| self.defaults.get(name))
            .map(str::to_owned)
            .ok_or_else(|| unreadable(name, ""))
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T, InvalidValue> {
        let text = self.text(name)?;
        text.parse().map_err(|_| unreadable(name, &text))
    }

    fn unless_negative(&self, name: &str) -> Result<Option<u64>, InvalidValue> {
        let number: i64 = self.number(name)?;
        Ok(u64::try_from(number).ok())
    }

    fn compression(&self) -> Result<CompressionPolicy, InvalidValue> {
        let name = self.text("compression.type")?;
        Ok(match name.as_str() {
            "uncompressed" => CompressionPolicy::Fixed(Compression::None, 0),
            "gzip" => {
                CompressionPolicy::Fixed(Compression::Gzip, self.number("compression.gzip.level")?)
            }
            "snappy" => CompressionPolicy::Fixed(Compression::Snappy, 0),
            "lz4" => {
                CompressionPolicy::Fixed(Compression::Lz4, self.number("compression.lz4.level")?)
            }
            "zstd" => {
                CompressionPolicy::Fixed(Compression::Zstd, self.number("compression.zstd.level")?)
            }
            _ => CompressionPolicy::Producer,
        })
    }
}

fn unreadable(name: &str, value: &str) -> InvalidValue {
    InvalidValue {
        key: name.to_owned(),
        value: value.to_owned(),
        expected: find(name)
            .map_or_else(|| "a known setting".to_owned(), |key| key.spec.expected()),
        reason: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults(statics: &[(&str, &str)]) -> TopicDefaults {
        let mut layers = Layers::default();
        for (name, value) in statics {
            layers
                .statics
                .insert((*name).to_owned(), (*value).to_owned());
        }
        TopicDefaults::from_layers(&layers).expect("the settings are right")
    }

    fn config(statics: &[(&str, &str)], own: &[(&str, &str)]) -> TopicConfig {
        let defaults = defaults(statics);
        let own = validate(&defaults, own.iter().copied()).expect("the settings are right");
        TopicConfig::new(&defaults, &own).expect("checked before")
    }

    #[test]
    fn a_topic_without_settings_has_the_defaults_of_kafka() {
        let config = config(&[], &[]);
        assert_eq!(config.retention_ms, Some(604_800_000));
        assert_eq!(config.retention_bytes, None);
        assert_eq!(config.segment_bytes, 1 << 30);
        assert_eq!(config.segment_ms, 604_800_000);
        assert_eq!(config.max_message_bytes, 1_048_588);
        assert_eq!(config.compression, CompressionPolicy::Producer);
        assert!(config.delete && !config.compact && !config.write_caching);
    }

    #[test]
    fn hours_and_minutes_of_the_broker_count_only_where_milliseconds_are_not_set() {
        let hours = &[("log.retention.hours", "2"), ("log.roll.hours", "3")][..];
        assert_eq!(config(hours, &[]).retention_ms, Some(7_200_000));
        assert_eq!(config(hours, &[]).segment_ms, 10_800_000);
        let minutes = &[("log.retention.hours", "2"), ("log.retention.minutes", "1")][..];
        assert_eq!(config(minutes, &[]).retention_ms, Some(60_000));
        let millis = &[("log.retention.minutes", "1"), ("log.retention.ms", "-1")][..];
        assert_eq!(config(millis, &[]).retention_ms, None);
        assert_eq!(
            config(millis, &[("retention.ms", "5")]).retention_ms,
            Some(5)
        );
        let forever = &[("log.retention.hours", "-1")][..];
        assert_eq!(config(forever, &[]).retention_ms, None);
    }

    #[test]
    fn an_empty_cleanup_policy_keeps_everything() {
        let config = config(&[], &[("cleanup.policy", "")]);
        assert!(!config.delete && !config.compact);
    }

    #[test]
    fn unknown_names_wrong_values_and_contradictions_are_told_apart() {
        let defaults = defaults(&[]);
        let refused = |own: &[(&str, &str)]| {
            validate(&defaults, own.iter().copied()).expect_err("it is wrong")
        };
        let unknown = refused(&[("retention.mz", "1")]);
        assert_eq!(
            unknown,
            TopicConfigError::UnknownName("retention.mz".to_owned())
        );
        assert_eq!(
            unknown.to_string(),
            "Unknown topic config name: retention.mz; did you mean retention.ms?"
        );
        assert!(matches!(
            refused(&[("segment.bytes", "1048575")]),
            TopicConfigError::Invalid(_)
        ));
        assert!(matches!(
            refused(&[("cleanup.policy", "shred")]),
            TopicConfigError::Invalid(_)
        ));
        assert!(matches!(
            refused(&[
                ("min.compaction.lag.ms", "10"),
                ("max.compaction.lag.ms", "9")
            ]),
            TopicConfigError::Contradiction { .. }
        ));
    }

    #[test]
    fn compression_levels_go_with_their_codec() {
        let own = &[
            ("compression.type", "zstd"),
            ("compression.zstd.level", "7"),
            ("compression.gzip.level", "1"),
        ];
        assert_eq!(
            config(&[], own).compression,
            CompressionPolicy::Fixed(Compression::Zstd, 7)
        );
    }
}
