//! The table of topic settings.

use crate::config::broker_keys::{
    CLEANUP_POLICIES, COMPRESSION_TYPES, TIMESTAMP_TYPES, gzip_level,
};
use crate::config::key::Allowed::{Between, BetweenDouble, Checked, ListOf, OneOf};
use crate::config::key::ConfigKind::{Boolean, Double, Int, List, Long, String as Text};
use crate::config::key::{InvalidValue, KeySpec};
use crate::config::values::Layers;
use crate::peer::throttle;

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 3_600_000;

/// One setting of a topic.
#[derive(Debug, Clone, Copy)]
pub struct TopicKey {
    /// Name, type, default, bounds and doc.
    pub spec: KeySpec,
    /// The broker key that stands for it where a topic sets nothing.
    pub synonym: Option<&'static str>,
    /// Broker keys that count when the synonym is not set, with the milliseconds of their unit.
    pub coarser: &'static [(&'static str, i64)],
    /// Whether the setting does what Kafka's does; one that does not is kept and shown.
    pub effective: bool,
}

impl TopicKey {
    const fn new(spec: KeySpec) -> Self {
        Self {
            spec,
            synonym: None,
            coarser: &[],
            effective: true,
        }
    }

    const fn synonym(mut self, name: &'static str) -> Self {
        self.synonym = Some(name);
        self
    }

    const fn coarser(mut self, names: &'static [(&'static str, i64)]) -> Self {
        self.coarser = names;
        self
    }

    const fn kept_only(mut self) -> Self {
        self.effective = false;
        self
    }

    /// The value that counts where a topic sets nothing.
    pub(super) fn default_value(&self, layers: &Layers) -> Result<String, InvalidValue> {
        if let Some(value) = self.synonym.and_then(|name| layers.get(name)) {
            return Ok(value.to_owned());
        }
        for &(name, unit_ms) in self.coarser {
            if let Some(count) = layers.optional::<i64>(name)? {
                // −1 is "for ever" in every unit.
                let millis = if count < 0 { count } else { count * unit_ms };
                return Ok(millis.to_string());
            }
        }
        Ok(self.spec.default.unwrap_or_default().to_owned())
    }
}

/// The setting of this name.
pub fn find(name: &str) -> Option<&'static TopicKey> {
    TOPIC_KEYS.iter().find(|key| key.spec.name == name)
}

/// Every setting, in alphabetical order.
pub static TOPIC_KEYS: &[TopicKey] = &[
    TopicKey::new(
        KeySpec::new("cleanup.policy", List)
            .default("delete")
            .allowed(ListOf(CLEANUP_POLICIES))
            .doc(
                "What becomes of old segments: `delete` drops them by age and size; empty keeps \
                 everything. `compact` keeps the newest record of every key, and records need keys \
                 then; so far only partitions with one replica are compacted.",
            ),
    )
    .synonym("log.cleanup.policy"),
    TopicKey::new(
        KeySpec::new("compression.gzip.level", Int)
            .default("-1")
            .allowed(Checked(gzip_level, "an integer from 1 to 9, or -1"))
            .doc("Level when `compression.type` is `gzip`."),
    )
    .synonym("compression.gzip.level"),
    TopicKey::new(
        KeySpec::new("compression.lz4.level", Int)
            .default("9")
            .allowed(Between(1, 17))
            .doc("Level when `compression.type` is `lz4`. Everything is written at one level."),
    )
    .synonym("compression.lz4.level")
    .kept_only(),
    TopicKey::new(
        KeySpec::new("compression.type", Text)
            .default("producer")
            .allowed(OneOf(COMPRESSION_TYPES))
            .doc("Compression of the stored batches; `producer` keeps what the producer chose."),
    )
    .synonym("compression.type"),
    TopicKey::new(
        KeySpec::new("compression.zstd.level", Int)
            .default("3")
            .allowed(Between(-131_072, 22))
            .doc("Level when `compression.type` is `zstd`."),
    )
    .synonym("compression.zstd.level"),
    TopicKey::new(
        KeySpec::new("delete.retention.ms", Long)
            .default("86400000")
            .at_least(0)
            .doc("How long compaction keeps the marks of deleted keys."),
    )
    .synonym("log.cleaner.delete.retention.ms"),
    TopicKey::new(
        KeySpec::new("errors.deadletterqueue.group.enable", Boolean)
            .default("false")
            .doc("Whether share groups may use the topic for records that they give up."),
    )
    .kept_only(),
    TopicKey::new(
        KeySpec::new("file.delete.delay.ms", Long)
            .default("60000")
            .at_least(0)
            .doc("How long the files of a deleted segment stay."),
    )
    .synonym("log.segment.delete.delay.ms"),
    TopicKey::new(
        KeySpec::new("flush.messages", Long)
            .default("9223372036854775807")
            .at_least(1)
            .doc(
                "Records after which the log is flushed. Every acknowledged record is on stable \
                 storage whatever this says; see `write.caching`.",
            ),
    )
    .synonym("log.flush.interval.messages")
    .kept_only(),
    TopicKey::new(
        KeySpec::new("flush.ms", Long)
            .default("9223372036854775807")
            .at_least(0)
            .doc("Time after which the log is flushed. Like `flush.messages`."),
    )
    .synonym("log.flush.interval.ms")
    .kept_only(),
    TopicKey::new(
        KeySpec::new("follower.replication.throttled.replicas", List)
            .default("")
            .allowed(Checked(
                throttle::check_replicas,
                "`*`, or a list of `partition:broker`",
            ))
            .doc(
                "Replicas that take batches of their leaders at no more than \
                 `follower.replication.throttled.rate`.",
            ),
    ),
    TopicKey::new(
        KeySpec::new("index.interval.bytes", Int)
            .default("4096")
            .at_least(0)
            .doc("Bytes of log between two index entries."),
    )
    .synonym("log.index.interval.bytes"),
    TopicKey::new(
        KeySpec::new("leader.replication.throttled.replicas", List)
            .default("")
            .allowed(Checked(
                throttle::check_replicas,
                "`*`, or a list of `partition:broker`",
            ))
            .doc(
                "Replicas that, while they lead, send to those out of sync at no more than \
                 `leader.replication.throttled.rate`.",
            ),
    ),
    TopicKey::new(
        KeySpec::new("local.retention.bytes", Long)
            .default("-2")
            .at_least(-2)
            .doc("Size kept locally under tiered storage."),
    )
    .kept_only(),
    TopicKey::new(
        KeySpec::new("local.retention.ms", Long)
            .default("-2")
            .at_least(-2)
            .doc("Time kept locally under tiered storage."),
    )
    .kept_only(),
    TopicKey::new(
        KeySpec::new("max.compaction.lag.ms", Long)
            .default("9223372036854775807")
            .at_least(1)
            .doc("Longest time for which a record escapes compaction."),
    )
    .synonym("log.cleaner.max.compaction.lag.ms"),
    TopicKey::new(
        KeySpec::new("max.decompressed.message.bytes", Int)
            .default("2147483639")
            .allowed(Between(1, 2_147_483_639))
            .doc("Most bytes that a record may expand to."),
    )
    .synonym("max.decompressed.message.bytes"),
    TopicKey::new(
        KeySpec::new("max.message.bytes", Int)
            .default("1048588")
            .at_least(0)
            .doc("Largest record batch, as it comes."),
    )
    .synonym("message.max.bytes"),
    TopicKey::new(
        KeySpec::new("message.timestamp.after.max.ms", Long)
            .default("3600000")
            .at_least(0)
            .doc("How far a record's timestamp may lie ahead of the broker's clock."),
    )
    .synonym("log.message.timestamp.after.max.ms"),
    TopicKey::new(
        KeySpec::new("message.timestamp.before.max.ms", Long)
            .default("9223372036854775807")
            .at_least(0)
            .doc("How far a record's timestamp may lie behind the broker's clock."),
    )
    .synonym("log.message.timestamp.before.max.ms"),
    TopicKey::new(
        KeySpec::new("message.timestamp.type", Text)
            .default("CreateTime")
            .allowed(OneOf(TIMESTAMP_TYPES))
            .doc("Whether records carry the producer's time or the broker's time of the append."),
    )
    .synonym("log.message.timestamp.type"),
    TopicKey::new(
        KeySpec::new("min.cleanable.dirty.ratio", Double)
            .default("0.5")
            .allowed(BetweenDouble(0.0, 1.0))
            .doc("Share of uncompacted bytes at which a log is compacted."),
    )
    .synonym("log.cleaner.min.cleanable.ratio"),
    TopicKey::new(
        KeySpec::new("min.compaction.lag.ms", Long)
            .default("0")
            .at_least(0)
            .doc("Shortest time for which a record escapes compaction."),
    )
    .synonym("log.cleaner.min.compaction.lag.ms"),
    TopicKey::new(
        KeySpec::new("min.insync.replicas", Int)
            .default("1")
            .at_least(1)
            .doc(
                "Replicas that must have a batch before `acks=all` answers, if above the majority.",
            ),
    )
    .synonym("min.insync.replicas"),
    TopicKey::new(
        KeySpec::new("preallocate", Boolean)
            .default("false")
            .doc("Whether a segment's file takes its full size at once."),
    )
    .synonym("log.preallocate")
    .kept_only(),
    TopicKey::new(
        KeySpec::new("remote.copy.lag.bytes", Long)
            .default("-1")
            .at_least(-1)
            .doc("Bytes that tiered storage may lag behind."),
    )
    .kept_only(),
    TopicKey::new(
        KeySpec::new("remote.copy.lag.ms", Long)
            .default("0")
            .at_least(-1)
            .doc("Time that tiered storage may lag behind."),
    )
    .kept_only(),
    TopicKey::new(
        KeySpec::new("remote.log.copy.disable", Boolean)
            .default("false")
            .doc("Whether tiered storage takes nothing more."),
    )
    .kept_only(),
    TopicKey::new(
        KeySpec::new("remote.log.delete.on.disable", Boolean)
            .default("false")
            .doc("Whether disabling tiered storage deletes what it holds."),
    )
    .kept_only(),
    TopicKey::new(
        KeySpec::new("remote.storage.enable", Boolean)
            .default("false")
            .allowed(OneOf(&["false"]))
            .doc("Tiered storage. Not available: it must be `false`."),
    ),
    TopicKey::new(
        KeySpec::new("retention.bytes", Long)
            .default("-1")
            .doc("Size of a partition above which old segments are dropped. −1 is no bound."),
    )
    .synonym("log.retention.bytes"),
    TopicKey::new(
        KeySpec::new("retention.ms", Long)
            .default("604800000")
            .at_least(-1)
            .doc("Age at which records are dropped, a segment at a time. −1 keeps them for ever."),
    )
    .synonym("log.retention.ms")
    .coarser(&[
        ("log.retention.minutes", MINUTE_MS),
        ("log.retention.hours", HOUR_MS),
    ]),
    TopicKey::new(
        KeySpec::new("segment.bytes", Int)
            .default("1073741824")
            .at_least(1 << 20)
            .doc("Size at which a segment is closed."),
    )
    .synonym("log.segment.bytes"),
    TopicKey::new(
        KeySpec::new("segment.index.bytes", Int)
            .default("10485760")
            .at_least(4)
            .doc("Largest index; a full one closes its segment."),
    )
    .synonym("log.index.size.max.bytes"),
    TopicKey::new(
        KeySpec::new("segment.jitter.ms", Long)
            .default("0")
            .at_least(0)
            .doc("Most time by which a segment closes early, so that not all do at once."),
    )
    .synonym("log.roll.jitter.ms")
    .coarser(&[("log.roll.jitter.hours", HOUR_MS)]),
    TopicKey::new(
        KeySpec::new("segment.ms", Long)
            .default("604800000")
            .at_least(1)
            .doc("Age at which a segment is closed."),
    )
    .synonym("log.roll.ms")
    .coarser(&[("log.roll.hours", HOUR_MS)]),
    TopicKey::new(
        KeySpec::new("unclean.leader.election.enable", Boolean)
            .default("false")
            .doc(
                "Whether a partition that has been without a leader for \
                 `odradek.unclean.leader.election.wait.ms`, most of its voters being away or having \
                 lost their logs, goes on with the replica that has the longest log. What others have \
                 acknowledged beyond that is lost.",
            ),
    )
    .synonym("unclean.leader.election.enable"),
    TopicKey::new(KeySpec::new("write.caching", Boolean).default("false").doc(
        "Ours. With `true`, `acks=all` answers once a majority holds the batch in memory: \
                 faster, and a power cut of a majority loses acknowledged records.",
    )),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::broker_keys;

    #[test]
    fn settings_are_in_order_documented_and_their_synonyms_exist() {
        assert!(TOPIC_KEYS.is_sorted_by_key(|key| key.spec.name));
        for key in TOPIC_KEYS {
            let default = key.spec.default.expect("every topic setting has a default");
            assert_eq!(key.spec.normalize(default).as_deref(), Ok(default));
            assert!(!key.spec.doc.is_empty());
            let coarser = key.coarser.iter().map(|(name, _)| *name);
            for name in key.synonym.into_iter().chain(coarser) {
                assert!(broker_keys::find(name).is_some(), "{name}");
            }
        }
    }
}
