//! The configuration of a running broker: what it was started with, and what has been set since.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::broker_config::BrokerConfig;
use super::describe::{self, ConfigEntry};
use super::key::InvalidValue;
use super::values::{Layers, Settings};

/// Holds the layers and the values that count. Readers take no lock.
#[derive(Debug)]
pub struct ConfigStore {
    layers: Mutex<Layers>,
    current: ArcSwap<BrokerConfig>,
}

impl ConfigStore {
    /// A store of the settings of a start, all checked.
    pub fn new(statics: Settings, config: BrokerConfig) -> Arc<Self> {
        Arc::new(Self {
            layers: Mutex::new(Layers {
                statics,
                ..Layers::default()
            }),
            current: ArcSwap::from_pointee(config),
        })
    }

    /// A store of nothing but defaults.
    pub fn defaults() -> Arc<Self> {
        Self::new(Settings::new(), BrokerConfig::defaults())
    }

    /// The settings that count now.
    pub fn load(&self) -> Arc<BrokerConfig> {
        self.current.load_full()
    }

    /// Takes the dynamic settings of all brokers and of this one, as the metadata has them. On an
    /// error nothing changes.
    pub fn set_dynamic(
        &self,
        for_all_brokers: Settings,
        for_this_broker: Settings,
    ) -> Result<Arc<BrokerConfig>, InvalidValue> {
        let mut layers = self.layers.lock();
        let next = Layers {
            dynamic_broker: for_this_broker,
            dynamic_default: for_all_brokers,
            statics: layers.statics.clone(),
        };
        let config = Arc::new(BrokerConfig::from_layers(&next)?);
        *layers = next;
        self.current.store(Arc::clone(&config));
        Ok(config)
    }

    /// Every setting of the broker, in alphabetical order.
    pub fn describe_broker(&self) -> Vec<ConfigEntry> {
        describe::broker_entries(&self.layers.lock())
    }

    /// Every setting of a topic whose own settings are `own`, in alphabetical order.
    pub fn describe_topic(&self, own: &Settings) -> Vec<ConfigEntry> {
        let layers = self.layers.lock();
        describe::topic_entries(&layers, &self.load().topic_defaults, own)
    }

    /// Every setting of a group whose own settings are `own`, in alphabetical order.
    pub fn describe_group(&self, own: &Settings) -> Vec<ConfigEntry> {
        super::group_keys::entries(&self.layers.lock(), own)
    }

    /// A copy of the layers, to see what a change of them would give.
    pub fn layers(&self) -> Layers {
        self.layers.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_settings_take_effect_together_or_not_at_all() {
        let store = ConfigStore::defaults();
        let settings = |pairs: &[(&str, &str)]| -> Settings {
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect()
        };
        store
            .set_dynamic(
                settings(&[("log.segment.bytes", "2000000"), ("max.connections", "5")]),
                settings(&[("log.segment.bytes", "3000000")]),
            )
            .expect("they are right");
        assert_eq!(store.load().max_connections, 5);
        assert_eq!(
            store.load().topic_defaults.get("segment.bytes"),
            Some("3000000")
        );
        let refused = store.set_dynamic(settings(&[("max.connections", "x")]), Settings::new());
        assert!(refused.is_err());
        assert_eq!(store.load().max_connections, 5);
    }
}
