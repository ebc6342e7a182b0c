//! Every setting with its value, source and synonyms, as DescribeConfigs shows them.

use std::collections::BTreeSet;

use super::key::{ConfigKind, KeySpec, UpdateMode};
use super::spelling;
use super::values::{ConfigSource, Layers, Settings};
use super::{broker_keys, foreign_keys};
use crate::topic_config::{TOPIC_KEYS, TopicDefaults, TopicKey};

/// Broker keys that stand for one value in several units; the first that is set counts.
const FAMILIES: &[&[&str]] = &[
    &[
        "log.retention.ms",
        "log.retention.minutes",
        "log.retention.hours",
    ],
    &["log.roll.ms", "log.roll.hours"],
    &["log.roll.jitter.ms", "log.roll.jitter.hours"],
];

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigEntry {
    /// Name.
    pub name: &'static str,
    /// Value that counts; `None` if it has none or must not be shown.
    pub value: Option<String>,
    /// Type.
    pub kind: ConfigKind,
    /// Where the value comes from.
    pub source: ConfigSource,
    /// Whether it can only be set at a start.
    pub read_only: bool,
    /// Whether its value must not be shown.
    pub sensitive: bool,
    /// Every value that it or a synonym has, the one that counts first.
    pub synonyms: Vec<ConfigSynonym>,
    /// What it does.
    pub doc: &'static str,
}

/// A value of a setting, or of one that stands for it, at one of its sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigSynonym {
    /// Name of the setting.
    pub name: &'static str,
    /// Its value there; `None` if it must not be shown.
    pub value: Option<String>,
    /// The source.
    pub source: ConfigSource,
}

/// Every setting of the broker, in alphabetical order.
pub fn broker_entries(layers: &Layers) -> Vec<ConfigEntry> {
    let mut entries: Vec<ConfigEntry> = broker_keys::all()
        .map(|key| {
            let synonyms = broker_synonyms(layers, key.name);
            entry(
                key,
                layers.get(key.name).map(str::to_owned),
                synonyms,
                key.update == UpdateMode::ReadOnly,
            )
        })
        .collect();
    entries.extend(foreign_entries(layers));
    entries.sort_by_key(|entry| entry.name);
    entries
}

/// Keys that only Kafka gives a meaning to, as far as they were set while the broker ran.
fn foreign_entries(layers: &Layers) -> impl Iterator<Item = ConfigEntry> {
    let set = layers
        .dynamic_broker
        .keys()
        .chain(layers.dynamic_default.keys());
    let names: BTreeSet<&String> = set.collect();
    names
        .into_iter()
        .filter_map(|name| foreign_keys::dynamic(name))
        .map(|key| {
            let synonyms = synonyms_of(layers, &key);
            let value = synonyms.first().and_then(|first| first.value.clone());
            entry(&key, value, synonyms, false)
        })
}

fn synonyms_of(layers: &Layers, key: &KeySpec) -> Vec<ConfigSynonym> {
    layers
        .candidates(key)
        .map(|(source, value)| ConfigSynonym {
            name: key.name,
            value: shown(key, value),
            source,
        })
        .collect()
}

/// Every setting of a topic whose own settings are `own`, in alphabetical order.
pub fn topic_entries(
    layers: &Layers,
    defaults: &TopicDefaults,
    own: &Settings,
) -> Vec<ConfigEntry> {
    TOPIC_KEYS
        .iter()
        .map(|key| topic_entry(key, layers, defaults, own))
        .collect()
}

fn topic_entry(
    key: &TopicKey,
    layers: &Layers,
    defaults: &TopicDefaults,
    own: &Settings,
) -> ConfigEntry {
    let name = key.spec.name;
    let set = own.get(name);
    let mut synonyms: Vec<ConfigSynonym> = set
        .map(|value| ConfigSynonym {
            name,
            value: shown(&key.spec, value),
            source: ConfigSource::DynamicTopic,
        })
        .into_iter()
        .collect();
    if let Some(synonym) = key.synonym {
        synonyms.extend(broker_synonyms(layers, synonym));
    }
    let value = set.map(String::as_str).or_else(|| defaults.get(name));
    entry(&key.spec, value.map(str::to_owned), synonyms, false)
}

/// A setting of a group whose own settings are `own`; `synonym` is the broker's key for all groups.
pub(super) fn group_entry(
    key: &KeySpec,
    synonym: &str,
    layers: &Layers,
    own: &Settings,
) -> ConfigEntry {
    let set = own.get(key.name);
    let mut synonyms: Vec<ConfigSynonym> = set
        .map(|value| ConfigSynonym {
            name: key.name,
            value: shown(key, value),
            source: ConfigSource::DynamicGroup,
        })
        .into_iter()
        .collect();
    synonyms.extend(broker_synonyms(layers, synonym));
    let value = set.map(String::as_str).or_else(|| layers.get(synonym));
    entry(key, value.map(str::to_owned), synonyms, false)
}

/// A setting of a client metrics subscription whose own settings are `own`. What it does not set itself has no
/// synonym, as in Kafka.
pub(super) fn subscription_entry(key: &KeySpec, own: &Settings) -> ConfigEntry {
    let set = own.get(key.name);
    let synonyms = set
        .map(|value| ConfigSynonym {
            name: key.name,
            value: shown(key, value),
            source: ConfigSource::DynamicClientMetrics,
        })
        .into_iter()
        .collect();
    let value = set.map(String::as_str).or(key.default);
    entry(key, value.map(str::to_owned), synonyms, false)
}

fn entry(
    key: &KeySpec,
    value: Option<String>,
    synonyms: Vec<ConfigSynonym>,
    read_only: bool,
) -> ConfigEntry {
    ConfigEntry {
        name: key.name,
        value: value.and_then(|value| shown(key, &value)),
        kind: key.kind,
        source: synonyms
            .first()
            .map_or(ConfigSource::Default, |first| first.source),
        read_only,
        sensitive: key.is_sensitive(),
        synonyms,
        doc: key.doc,
    }
}

fn shown(key: &KeySpec, value: &str) -> Option<String> {
    (!key.is_sensitive()).then(|| value.to_owned())
}

/// The values of a broker key and its family by source and then by name, from its own first value
/// on: what a member of the family says before that does not speak for this key. As Kafka.
fn broker_synonyms(layers: &Layers, name: &str) -> Vec<ConfigSynonym> {
    let alone = [name];
    let family = FAMILIES
        .iter()
        .find(|family| family.contains(&name))
        .copied()
        .unwrap_or(&alone);
    let mut all: Vec<ConfigSynonym> = family
        .iter()
        .filter_map(|member| broker_keys::find(member))
        .flat_map(|key| synonyms_of(layers, key))
        .collect();
    all.sort_by_key(|synonym| synonym.source);
    all.into_iter()
        .skip_while(|synonym| synonym.name != name)
        .collect()
}

/// Why a dynamic setting of a broker is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DynamicConfigError {
    /// There is no such key, or one that does nothing here although it should.
    #[error(
        "Unknown broker config name: {0}{hint}",
        hint = spelling::suggestion(spelling::nearest_dynamic_key(.0))
    )]
    UnknownName(String),
    /// The key can only be set at a start.
    #[error("Cannot update these configs dynamically: {0}")]
    ReadOnly(String),
    /// The key can only be set for one broker.
    #[error(
        "Cannot update these configs at default cluster level, broker id must be specified: {0}"
    )]
    PerBroker(String),
    /// The value is not one that the key takes.
    #[error(transparent)]
    Invalid(#[from] super::key::InvalidValue),
}

/// A key of a broker, with or without an effect here.
pub fn dynamic_key(name: &str) -> Option<KeySpec> {
    let own = broker_keys::find(name).copied();
    own.or_else(|| foreign_keys::dynamic(name))
}

/// Checks a dynamic setting, for one broker or for all, and gives it normalized.
pub fn check_dynamic(
    name: &str,
    value: &str,
    for_all_brokers: bool,
) -> Result<String, DynamicConfigError> {
    let key = dynamic_key(name).ok_or_else(|| DynamicConfigError::UnknownName(name.to_owned()))?;
    match key.update {
        UpdateMode::ReadOnly => return Err(DynamicConfigError::ReadOnly(name.to_owned())),
        UpdateMode::PerBroker if for_all_brokers => {
            return Err(DynamicConfigError::PerBroker(name.to_owned()));
        }
        UpdateMode::PerBroker | UpdateMode::ClusterWide => {}
    }
    Ok(key.normalize(value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(statics: &[(&str, &str)], dynamic_default: &[(&str, &str)]) -> Layers {
        let own = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect()
        };
        Layers {
            statics: own(statics),
            dynamic_default: own(dynamic_default),
            ..Layers::default()
        }
    }

    fn topic(layers: &Layers, own: &[(&str, &str)], name: &str) -> (String, ConfigSource, String) {
        let defaults = TopicDefaults::from_layers(layers).expect("right");
        let own = crate::topic_config::validate(&defaults, own.iter().copied()).expect("right");
        let entry = topic_entries(layers, &defaults, &own)
            .into_iter()
            .find(|entry| entry.name == name)
            .expect("described");
        let synonyms: Vec<String> = entry
            .synonyms
            .iter()
            .map(|synonym| {
                let value = synonym.value.as_deref().unwrap_or("null");
                format!("{:?}:{}={value}", synonym.source, synonym.name)
            })
            .collect();
        (
            entry.value.unwrap_or_default(),
            entry.source,
            synonyms.join(" "),
        )
    }

    #[test]
    fn the_source_of_a_topic_setting_is_that_of_the_value_that_counts() {
        let plain = layers(&[], &[]);
        assert_eq!(
            topic(&plain, &[], "segment.bytes"),
            (
                "1073741824".to_owned(),
                ConfigSource::Default,
                "Default:log.segment.bytes=1073741824".to_owned()
            )
        );
        let set = layers(
            &[("log.segment.bytes", "2000000")],
            &[("log.segment.bytes", "3000000")],
        );
        assert_eq!(
            topic(&set, &[], "segment.bytes"),
            (
                "3000000".to_owned(),
                ConfigSource::DynamicDefaultBroker,
                "DynamicDefaultBroker:log.segment.bytes=3000000 \
                 StaticBroker:log.segment.bytes=2000000 Default:log.segment.bytes=1073741824"
                    .to_owned()
            )
        );
        let (value, source, synonyms) =
            topic(&set, &[("segment.bytes", "4000000")], "segment.bytes");
        assert_eq!(
            (value.as_str(), source),
            ("4000000", ConfigSource::DynamicTopic)
        );
        assert!(synonyms.starts_with("DynamicTopic:segment.bytes=4000000 Dynamic"));
    }

    #[test]
    fn members_of_a_family_speak_only_behind_the_key_itself() {
        let hours = layers(&[("log.retention.hours", "1")], &[]);
        assert_eq!(
            topic(&hours, &[], "retention.ms"),
            ("3600000".to_owned(), ConfigSource::Default, String::new())
        );
        let both = layers(
            &[("log.retention.ms", "5"), ("log.retention.hours", "1")],
            &[],
        );
        assert_eq!(
            topic(&both, &[], "retention.ms"),
            (
                "5".to_owned(),
                ConfigSource::StaticBroker,
                "StaticBroker:log.retention.ms=5 StaticBroker:log.retention.hours=1 \
                 Default:log.retention.hours=168"
                    .to_owned()
            )
        );
    }

    #[test]
    fn a_broker_entry_knows_whether_it_can_be_changed() {
        let entries = broker_entries(&layers(&[("num.partitions", "3")], &[]));
        let find = |name: &str| {
            entries
                .iter()
                .find(|entry| entry.name == name)
                .cloned()
                .expect("described")
        };
        let partitions = find("num.partitions");
        assert_eq!(partitions.source, ConfigSource::StaticBroker);
        assert_eq!(partitions.value.as_deref(), Some("3"));
        assert!(partitions.read_only);
        assert!(!find("log.retention.ms").read_only);
        assert_eq!(find("log.retention.ms").value, None);
        assert!(entries.is_sorted_by_key(|entry| entry.name));
    }

    #[test]
    fn dynamic_settings_are_checked_for_their_scope_and_value() {
        assert_eq!(
            check_dynamic("log.retention.ms", " 5 ", true).as_deref(),
            Ok("5")
        );
        assert!(matches!(
            check_dynamic("num.partitions", "5", false),
            Err(DynamicConfigError::ReadOnly(_))
        ));
        assert!(matches!(
            check_dynamic("retention", "5", false),
            Err(DynamicConfigError::UnknownName(_))
        ));
        assert!(matches!(
            check_dynamic("log.retention.ms", "x", false),
            Err(DynamicConfigError::Invalid(_))
        ));
    }

    #[test]
    fn what_only_kafka_gives_a_meaning_to_is_taken_and_shown() {
        let relogin = "sasl.kerberos.min.time.before.relogin";
        assert_eq!(
            check_dynamic(relogin, "58000", false).as_deref(),
            Ok("58000")
        );
        assert!(matches!(
            check_dynamic(relogin, "58000", true),
            Err(DynamicConfigError::PerBroker(_))
        ));
        assert!(matches!(
            check_dynamic("num.io.threads", "x", true),
            Err(DynamicConfigError::Invalid(_))
        ));
        let entries = broker_entries(&layers(&[], &[("num.io.threads", "9")]));
        let threads = entries.iter().find(|entry| entry.name == "num.io.threads");
        let threads = threads.expect("described");
        assert_eq!(threads.value.as_deref(), Some("9"));
        assert_eq!(threads.source, ConfigSource::DynamicDefaultBroker);
        assert!(!threads.read_only);
        assert!(entries.is_sorted_by_key(|entry| entry.name));
        assert!(!entries.iter().any(|entry| entry.name == relogin));
    }
}
