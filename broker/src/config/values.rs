//! The explicit settings of a broker, by where they come from, and what counts in the end.
//!
//! Precedence: a dynamic setting of this broker, a dynamic setting of all brokers, the start's own
//! (file or command line), the default.

use std::collections::BTreeMap;

use super::broker_keys;
use super::key::{InvalidValue, KeySpec, list_elements};

/// Where a value comes from, as DescribeConfigs numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfigSource {
    /// Set for this topic.
    DynamicTopic,
    /// Set while running, for this broker.
    DynamicBroker,
    /// Set while running, for all brokers.
    DynamicDefaultBroker,
    /// Set at the start.
    StaticBroker,
    /// Set nowhere.
    Default,
    /// Set for this client metrics subscription.
    DynamicClientMetrics,
    /// Set for this group.
    DynamicGroup,
}

impl ConfigSource {
    /// The number on the wire.
    pub const fn code(self) -> i8 {
        match self {
            Self::DynamicTopic => 1,
            Self::DynamicBroker => 2,
            Self::DynamicDefaultBroker => 3,
            Self::StaticBroker => 4,
            Self::Default => 5,
            Self::DynamicClientMetrics => 7,
            Self::DynamicGroup => 8,
        }
    }
}

/// Explicit settings, checked and normalized, by key name.
pub type Settings = BTreeMap<String, String>;

/// The settings of a broker in the order of their precedence.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    /// Set while running, for this broker.
    pub dynamic_broker: Settings,
    /// Set while running, for all brokers.
    pub dynamic_default: Settings,
    /// Set at the start.
    pub statics: Settings,
}

impl Layers {
    /// Every value that `key` has anywhere, the one that counts first.
    pub fn candidates<'a>(
        &'a self,
        key: &'a KeySpec,
    ) -> impl Iterator<Item = (ConfigSource, &'a str)> {
        let set = [
            (ConfigSource::DynamicBroker, &self.dynamic_broker),
            (ConfigSource::DynamicDefaultBroker, &self.dynamic_default),
            (ConfigSource::StaticBroker, &self.statics),
        ];
        set.into_iter()
            .filter_map(|(source, settings)| {
                settings.get(key.name).map(|value| (source, value.as_str()))
            })
            .chain(key.default.map(|value| (ConfigSource::Default, value)))
    }

    /// The value of the key `name` that counts, if it has one.
    pub fn get(&self, name: &str) -> Option<&str> {
        let key = broker_keys::find(name)?;
        [&self.dynamic_broker, &self.dynamic_default, &self.statics]
            .into_iter()
            .find_map(|settings| settings.get(name))
            .map(String::as_str)
            .or(key.default)
    }

    pub(super) fn text(&self, name: &str) -> Result<String, InvalidValue> {
        self.get(name)
            .map(str::to_owned)
            .ok_or_else(|| missing(name))
    }

    pub(crate) fn optional<T: std::str::FromStr>(
        &self,
        name: &str,
    ) -> Result<Option<T>, InvalidValue> {
        match self.get(name) {
            Some(value) => match value.parse() {
                Ok(value) => Ok(Some(value)),
                Err(_) => Err(InvalidValue {
                    value: value.to_owned(),
                    ..missing(name)
                }),
            },
            None => Ok(None),
        }
    }

    pub(super) fn required<T: std::str::FromStr>(&self, name: &str) -> Result<T, InvalidValue> {
        self.optional(name)?.ok_or_else(|| missing(name))
    }

    pub(super) fn list(&self, name: &str) -> Vec<String> {
        self.get(name)
            .map(|value| list_elements(value).map(str::to_owned).collect())
            .unwrap_or_default()
    }
}

fn missing(name: &str) -> InvalidValue {
    InvalidValue {
        key: name.to_owned(),
        value: String::new(),
        expected: broker_keys::find(name)
            .map_or_else(|| "a key of the table".to_owned(), KeySpec::expected),
        reason: None,
    }
}
