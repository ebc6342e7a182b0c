//! DescribeConfigs (KIP-226): settings with their values, and where each value comes from.

use std::collections::HashSet;

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::message;
use odradek_protocol::messages::describe_configs_request::DescribeConfigsResource;
use odradek_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use odradek_protocol::messages::{DescribeConfigsRequest, DescribeConfigsResponse, StrBytes};

use super::Reply;
use crate::config::describe::ConfigEntry;
use crate::config::{ConfigSource, client_metrics_keys};
use crate::context::{BrokerContext, RequestContext};
use crate::log_levels;
use crate::metadata::image::{ConfigResource, MetadataImage, ResourceKind};
use crate::metadata::topic_name;

/// Source of a log level, as the wire numbers it.
const SOURCE_BROKER_LOGGER: i8 = 6;

/// Why a resource is not described.
struct Undescribed {
    code: ErrorCode,
    message: String,
}

impl Undescribed {
    fn invalid(message: impl Into<String>) -> Self {
        Self {
            code: ErrorCode::InvalidRequest,
            message: message.into(),
        }
    }
}

/// Answers DescribeConfigs.
pub async fn handle(
    context: RequestContext,
    request: DescribeConfigsRequest,
) -> Reply<DescribeConfigsResponse> {
    let describer = Describer {
        broker: &context.broker,
        image: &context.broker.metadata.image(),
        with_synonyms: request.include_synonyms,
        with_docs: request.include_documentation,
    };
    let kinds = request.resources.iter().map(|resource| {
        let kind = resource.resource_type;
        ResourceKind::from_code(kind).ok_or(kind)
    });
    let kinds = match kinds.collect::<Result<Vec<_>, i8>>() {
        Ok(kinds) => kinds,
        Err(unknown) => return Reply::Now(refuse_all(request, unknown)),
    };
    let mut seen = HashSet::new();
    let results = request
        .resources
        .into_iter()
        .zip(kinds)
        .map(|(resource, kind)| {
            let is_first = seen.insert((resource.resource_type, resource.resource_name.clone()));
            describer.describe(resource, kind, is_first)
        })
        .collect();
    Reply::Now(message!(DescribeConfigsResponse { results }))
}

/// A kind that does not exist spoils the whole request, as in Kafka.
fn refuse_all(request: DescribeConfigsRequest, unknown: i8) -> DescribeConfigsResponse {
    let reason = StrBytes::from(format!("Unexpected resource type {unknown}"));
    let refused = |resource: DescribeConfigsResource| {
        message!(DescribeConfigsResult {
            error_code: ErrorCode::InvalidRequest.code(),
            error_message: Some(reason.clone()),
            resource_type: resource.resource_type,
            resource_name: resource.resource_name,
        })
    };
    message!(DescribeConfigsResponse {
        results: request.resources.into_iter().map(refused).collect(),
    })
}

struct Describer<'a> {
    broker: &'a BrokerContext,
    image: &'a MetadataImage,
    with_synonyms: bool,
    with_docs: bool,
}

impl Describer<'_> {
    /// A resource that the request has named before is not described again: the answer to a small
    /// request would have no bound.
    fn describe(
        &self,
        resource: DescribeConfigsResource,
        kind: ResourceKind,
        is_first: bool,
    ) -> DescribeConfigsResult {
        let described = if is_first {
            self.configs(kind, resource.resource_name.as_str())
        } else {
            Err(Undescribed::invalid(
                "Each resource must appear at most once.",
            ))
        };
        let (code, message, configs) = match described {
            Ok(configs) => (ErrorCode::None, String::new(), configs),
            Err(error) => (error.code, error.message, Vec::new()),
        };
        message!(DescribeConfigsResult {
            error_code: code.code(),
            error_message: Some(StrBytes::from(message)),
            resource_type: resource.resource_type,
            resource_name: resource.resource_name,
            configs: chosen(configs, resource.configuration_keys.as_deref()),
        })
    }

    fn configs(
        &self,
        kind: ResourceKind,
        name: &str,
    ) -> Result<Vec<DescribeConfigsResourceResult>, Undescribed> {
        match kind {
            ResourceKind::Topic => self.topic(name),
            ResourceKind::Broker => self.broker(name),
            ResourceKind::BrokerLogger => self.broker_logger(name),
            ResourceKind::ClientMetrics if name.is_empty() => Err(Undescribed::invalid(
                "Client metrics subscription name must not be empty",
            )),
            ResourceKind::ClientMetrics => Ok(self.subscription(name)),
            ResourceKind::Group if name.is_empty() => {
                Err(Undescribed::invalid("Group name must not be empty"))
            }
            ResourceKind::Group => Ok(self.group(name)),
        }
    }

    fn topic(&self, name: &str) -> Result<Vec<DescribeConfigsResourceResult>, Undescribed> {
        topic_name::validate(name).map_err(|error| Undescribed {
            code: ErrorCode::InvalidTopicException,
            message: error.to_string(),
        })?;
        if self.image.topic(name).is_none() {
            return Err(Undescribed {
                code: ErrorCode::UnknownTopicOrPartition,
                message: String::new(),
            });
        }
        let own = self.image.config(&ConfigResource::topic(name));
        let entries = self.broker.config.describe_topic(own);
        Ok(entries.into_iter().map(|entry| self.entry(entry)).collect())
    }

    /// A group need not exist.
    fn group(&self, name: &str) -> Vec<DescribeConfigsResourceResult> {
        let own = self.image.config(&ConfigResource {
            kind: ResourceKind::Group,
            name: name.to_owned(),
        });
        let entries = self.broker.config.describe_group(own);
        entries.into_iter().map(|entry| self.entry(entry)).collect()
    }

    /// A subscription need not exist.
    fn subscription(&self, name: &str) -> Vec<DescribeConfigsResourceResult> {
        let own = self.image.config(&ConfigResource {
            kind: ResourceKind::ClientMetrics,
            name: name.to_owned(),
        });
        let entries = client_metrics_keys::entries(own);
        entries.into_iter().map(|entry| self.entry(entry)).collect()
    }

    fn broker(&self, name: &str) -> Result<Vec<DescribeConfigsResourceResult>, Undescribed> {
        let entries = self.broker.config.describe_broker();
        if name.is_empty() {
            // What has been set for all brokers, and nothing that counts for one alone.
            return Ok(entries
                .into_iter()
                .filter_map(for_all_brokers)
                .map(|entry| self.entry(entry))
                .collect());
        }
        self.require_own_id(name, " or empty string, ")?;
        Ok(entries.into_iter().map(|entry| self.entry(entry)).collect())
    }

    fn broker_logger(&self, name: &str) -> Result<Vec<DescribeConfigsResourceResult>, Undescribed> {
        if name.is_empty() {
            return Err(Undescribed::invalid("Broker id must not be empty"));
        }
        self.require_own_id(name, " ")?;
        let levels = log_levels::of_process().all().into_iter();
        let entry = |(logger, level): (String, &'static str)| {
            message!(DescribeConfigsResourceResult {
                name: StrBytes::from(logger),
                value: Some(StrBytes::from(level)),
                config_source: SOURCE_BROKER_LOGGER,
            })
        };
        Ok(levels.map(entry).collect())
    }

    fn require_own_id(&self, name: &str, after_id: &str) -> Result<(), Undescribed> {
        let own = self.broker.identity.node_id;
        let id: i32 = name.parse().map_err(|_| {
            Undescribed::invalid(format!("Broker id must be an integer, but it is: {name}"))
        })?;
        // The number in one spelling only, or one broker could be named in any number of ways.
        if id == own.get() && name == own.to_string() {
            return Ok(());
        }
        Err(Undescribed::invalid(format!(
            "Unexpected broker id, expected {own}{after_id}but received {name}"
        )))
    }

    fn entry(&self, entry: ConfigEntry) -> DescribeConfigsResourceResult {
        let synonyms = if self.with_synonyms {
            entry
                .synonyms
                .into_iter()
                .map(|synonym| {
                    message!(DescribeConfigsSynonym {
                        name: StrBytes::from(synonym.name),
                        value: synonym.value.map(StrBytes::from),
                        source: synonym.source.code(),
                    })
                })
                .collect()
        } else {
            Vec::new()
        };
        message!(DescribeConfigsResourceResult {
            name: StrBytes::from(entry.name),
            value: entry.value.map(StrBytes::from),
            read_only: entry.read_only,
            config_source: entry.source.code(),
            is_sensitive: entry.sensitive,
            synonyms,
            config_type: entry.kind.code(),
            documentation: self.with_docs.then(|| StrBytes::from(entry.doc)),
        })
    }
}

/// The entry as all brokers have it, if it is set for all of them.
fn for_all_brokers(mut entry: ConfigEntry) -> Option<ConfigEntry> {
    let source = ConfigSource::DynamicDefaultBroker;
    entry.synonyms.retain(|synonym| synonym.source == source);
    let value = entry.synonyms.first()?.value.clone();
    entry.value = value;
    entry.source = source;
    Some(entry)
}

/// Those that the request names, or all.
fn chosen(
    configs: Vec<DescribeConfigsResourceResult>,
    keys: Option<&[StrBytes]>,
) -> Vec<DescribeConfigsResourceResult> {
    match keys {
        None | Some([]) => configs,
        Some(keys) => {
            let keys: HashSet<&StrBytes> = keys.iter().collect();
            configs
                .into_iter()
                .filter(|config| keys.contains(&config.name))
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigStore;

    fn settings(key: &str, value: &str) -> crate::config::Settings {
        [(key.to_owned(), value.to_owned())].into()
    }

    #[test]
    fn the_default_of_all_brokers_shows_what_was_set_for_all_of_them_only() {
        let store = ConfigStore::defaults();
        store
            .set_dynamic(
                settings("log.retention.ms", "70000"),
                settings("log.segment.bytes", "2000000"),
            )
            .expect("they are right");
        let shown: Vec<_> = store
            .describe_broker()
            .into_iter()
            .filter_map(for_all_brokers)
            .collect();
        let [entry] = &shown[..] else {
            panic!("one entry, not {shown:?}");
        };
        assert_eq!(entry.name, "log.retention.ms");
        assert_eq!(entry.value.as_deref(), Some("70000"));
        assert_eq!(entry.source, ConfigSource::DynamicDefaultBroker);
        assert_eq!(entry.synonyms.len(), 1);
    }

    #[test]
    fn a_kind_that_does_not_exist_spoils_the_whole_request() {
        let resource = |resource_type| {
            message!(DescribeConfigsResource {
                resource_type,
                resource_name: StrBytes::from("orders"),
            })
        };
        let request = message!(DescribeConfigsRequest {
            resources: vec![resource(2), resource(99)],
        });
        let refused = refuse_all(request, 99).results;
        let codes = refused
            .iter()
            .map(|row| (row.resource_type, row.error_code));
        let invalid = ErrorCode::InvalidRequest.code();
        assert!(codes.eq([(2, invalid), (99, invalid)]));
    }

    #[test]
    fn without_keys_all_settings_are_shown_and_unknown_keys_show_none() {
        let config = |name: &str| {
            message!(DescribeConfigsResourceResult {
                name: StrBytes::from(name),
            })
        };
        let configs = vec![config("a"), config("b")];
        assert_eq!(chosen(configs.clone(), None).len(), 2);
        assert_eq!(chosen(configs.clone(), Some(&[])).len(), 2);
        let keys = [StrBytes::from("b"), StrBytes::from("nope")];
        assert_eq!(chosen(configs, Some(&keys)), [config("b")]);
    }
}
