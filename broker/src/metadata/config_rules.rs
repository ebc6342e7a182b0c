//! What the tables of settings say of a change of configuration.

use odradek_protocol::ids::NodeId;

use super::controller::alter_configs::ConfigRules;
use super::image::{ConfigMap, ConfigResource, ResourceKind};
use super::refusal::Refusal;
use crate::config::describe::{self, DynamicConfigError};
use crate::config::key::ConfigKind;
use crate::config::values::Layers;
use crate::config::{BrokerConfig, broker_keys, client_metrics_keys, group_keys};
use crate::topic_config::{self, TopicDefaults};

/// The rules of one broker at one moment.
#[derive(Debug)]
pub struct TableRules {
    node_id: NodeId,
    others: Vec<NodeId>,
    layers: Layers,
    defaults: TopicDefaults,
}

impl TableRules {
    /// Rules of the broker `node_id`, whose settings come from `layers`, and for the brokers `others`
    /// besides.
    pub fn new(
        node_id: NodeId,
        others: Vec<NodeId>,
        layers: Layers,
        defaults: TopicDefaults,
    ) -> Self {
        Self {
            others,
            node_id,
            layers,
            defaults,
        }
    }

    /// Checks the settings of a topic.
    pub fn check_topic(&self, settings: &ConfigMap) -> Result<ConfigMap, String> {
        let pairs = settings
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()));
        topic_config::validate(&self.defaults, pairs).map_err(|error| error.to_string())
    }

    fn check_broker(&self, name: &str, settings: &ConfigMap) -> Result<ConfigMap, Refusal> {
        let for_all = name.is_empty();
        self.check_broker_name(name)?;
        check_scope(settings, for_all)?;
        let checked = settings
            .iter()
            .map(|(key, value)| Ok((key.clone(), describe::check_dynamic(key, value, for_all)?)))
            .collect::<Result<ConfigMap, DynamicConfigError>>()
            .map_err(|error| Refusal::InvalidBrokerConfig(error.to_string()))?;
        let mut layers = self.layers.clone();
        if for_all {
            layers.dynamic_default.clone_from(&checked);
        } else {
            layers.dynamic_broker.clone_from(&checked);
        }
        // What each key may be, all of them together may still not be.
        BrokerConfig::from_layers(&layers)
            .map_err(|error| Refusal::InvalidBrokerConfig(error.to_string()))?;
        Ok(checked)
    }

    /// The name of one broker, or of all if it is empty.
    fn check_broker_name(&self, name: &str) -> Result<(), Refusal> {
        if name.is_empty() {
            return Ok(());
        }
        let id: i32 = name
            .parse()
            .map_err(|_| Refusal::BrokerNotANumber(name.to_owned()))?;
        if id == self.node_id.get() || self.others.contains(&NodeId::new(id)) {
            Ok(())
        } else {
            Err(Refusal::OtherBroker {
                expected: self.node_id,
                received: name.to_owned(),
            })
        }
    }
}

/// Names all keys that cannot be changed in one sentence, as Kafka does.
fn check_scope(settings: &ConfigMap, for_all: bool) -> Result<(), Refusal> {
    use crate::config::key::UpdateMode;
    let with_mode = |mode: UpdateMode| -> Vec<&str> {
        settings
            .keys()
            .map(String::as_str)
            .filter(|key| describe::dynamic_key(key).is_some_and(|spec| spec.update == mode))
            .collect()
    };
    let read_only = with_mode(UpdateMode::ReadOnly);
    if !read_only.is_empty() {
        let message = format!(
            "Cannot update these configs dynamically: [{}]",
            read_only.join(", ")
        );
        return Err(Refusal::InvalidBrokerConfig(message));
    }
    let per_broker = with_mode(UpdateMode::PerBroker);
    if for_all && !per_broker.is_empty() {
        let message = format!(
            "Cannot update these configs at default cluster level, broker id must be specified: [{}]",
            per_broker.join(", ")
        );
        return Err(Refusal::InvalidBrokerConfig(message));
    }
    Ok(())
}

impl ConfigRules for TableRules {
    fn check_name(&self, resource: &ConfigResource) -> Result<(), Refusal> {
        match resource.kind {
            ResourceKind::Broker => self.check_broker_name(&resource.name),
            ResourceKind::Topic
            | ResourceKind::BrokerLogger
            | ResourceKind::ClientMetrics
            | ResourceKind::Group => Ok(()),
        }
    }

    fn list_default(&self, kind: ResourceKind, key: &str) -> Option<String> {
        match kind {
            ResourceKind::Topic => {
                let spec = topic_config::find(key)?.spec;
                let is_list = spec.kind == ConfigKind::List;
                is_list.then(|| self.defaults.get(key).unwrap_or_default().to_owned())
            }
            ResourceKind::Broker => {
                let spec = broker_keys::find(key)?;
                let is_list = spec.kind == ConfigKind::List;
                is_list.then(|| spec.default.unwrap_or_default().to_owned())
            }
            // As at Kafka, the lists of client metrics are only set whole.
            ResourceKind::BrokerLogger | ResourceKind::Group | ResourceKind::ClientMetrics => None,
        }
    }

    fn check(&self, resource: &ConfigResource, settings: &ConfigMap) -> Result<ConfigMap, Refusal> {
        match resource.kind {
            ResourceKind::Topic => self.check_topic(settings).map_err(Refusal::InvalidConfig),
            ResourceKind::Broker => self.check_broker(&resource.name, settings),
            ResourceKind::Group => {
                group_keys::check(&self.layers, settings).map_err(Refusal::InvalidConfig)
            }
            ResourceKind::ClientMetrics => client_metrics_keys::check(&resource.name, settings),
            kind @ ResourceKind::BrokerLogger => Err(Refusal::UnknownResourceType(kind.code())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> TableRules {
        let layers = Layers::default();
        let defaults = BrokerConfig::defaults().topic_defaults;
        TableRules::new(NodeId::new(1), vec![], layers, defaults)
    }

    fn settings(pairs: &[(&str, &str)]) -> ConfigMap {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn broker(name: &str, pairs: &[(&str, &str)]) -> Result<ConfigMap, String> {
        let resource = ConfigResource {
            kind: ResourceKind::Broker,
            name: name.to_owned(),
        };
        let checked = rules().check(&resource, &settings(pairs));
        checked.map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn settings_of_a_topic_are_kept_in_one_form() {
        let checked = rules().check(
            &ConfigResource::topic("t"),
            &settings(&[
                ("cleanup.policy", " compact , delete "),
                ("preallocate", "TRUE"),
            ]),
        );
        assert_eq!(
            checked,
            Ok(settings(&[
                ("cleanup.policy", "compact,delete"),
                ("preallocate", "true")
            ]))
        );
    }

    #[test]
    fn only_dynamic_settings_of_this_broker_can_be_changed() {
        assert!(broker("1", &[("log.retention.ms", "5")]).is_ok());
        assert!(broker("", &[("log.retention.ms", "5")]).is_ok());
        for (name, pairs, message) in [
            (
                "1",
                &[("node.id", "6"), ("log.dirs", "/x")][..],
                "Cannot update these configs dynamically: [log.dirs, node.id]",
            ),
            (
                "2",
                &[("log.retention.ms", "6")],
                "Unexpected broker id, expected 1, but received 2",
            ),
            (
                "x",
                &[("log.retention.ms", "6")],
                "Node id must be an integer, but it is: x",
            ),
            (
                "1",
                &[("no.such", "6")],
                "Unknown broker config name: no.such",
            ),
            (
                "",
                &[("sasl.kerberos.min.time.before.relogin", "6")],
                "Cannot update these configs at default cluster level, broker id must be specified: \
                 [sasl.kerberos.min.time.before.relogin]",
            ),
        ] {
            assert_eq!(broker(name, pairs), Err(message.to_owned()));
        }
        assert!(broker("1", &[("log.retention.ms", "abc")]).is_err());
    }

    #[test]
    fn lists_are_told_from_other_settings() {
        let default = |kind, key| rules().list_default(kind, key);
        assert_eq!(
            default(ResourceKind::Topic, "cleanup.policy").as_deref(),
            Some("delete")
        );
        assert_eq!(default(ResourceKind::Topic, "retention.ms"), None);
        assert_eq!(
            default(ResourceKind::Broker, "log.cleanup.policy").as_deref(),
            Some("delete")
        );
    }
}
