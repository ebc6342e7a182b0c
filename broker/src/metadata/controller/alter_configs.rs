//! Changes of configuration: all keys of a resource at once (the old way), or single keys (KIP-339).

use std::collections::btree_map::Entry;
use std::collections::{HashMap, HashSet};

use super::super::image::{ConfigMap, ConfigResource, MetadataImage, ResourceKind};
use super::super::records::{ConfigRecord, MetadataRecord};
use super::super::refusal::Refusal;
use super::super::topic_name;

/// What a change goes by besides the image.
pub trait ConfigRules {
    /// The default of a key that is a list; `None` if it is no list.
    fn list_default(&self, kind: ResourceKind, key: &str) -> Option<String>;

    /// Checks that the settings of this resource can be changed here, whatever they are.
    fn check_name(&self, resource: &ConfigResource) -> Result<(), Refusal>;

    /// Checks the settings of a topic or of brokers as they would stand, and gives them in the
    /// form in which they are kept.
    fn check(&self, resource: &ConfigResource, settings: &ConfigMap) -> Result<ConfigMap, Refusal>;
}

/// What becomes of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The key gets the value.
    Set,
    /// The key falls back to its default.
    Delete,
    /// The list gets the elements that it does not have.
    Append,
    /// The list loses the elements.
    Subtract,
}

impl Operation {
    /// Reads Kafka's number.
    pub const fn from_code(code: i8) -> Option<Self> {
        match code {
            0 => Some(Self::Set),
            1 => Some(Self::Delete),
            2 => Some(Self::Append),
            3 => Some(Self::Subtract),
            _ => None,
        }
    }
}

/// Changes of one resource, as the request has them.
#[derive(Debug, Clone)]
pub struct ResourceChange<C> {
    /// Kafka's number of the kind.
    pub kind: i8,
    /// Name of the resource.
    pub name: String,
    /// Changes of its keys.
    pub changes: Vec<C>,
}

/// One key and what becomes of it.
#[derive(Debug, Clone)]
pub struct KeyChange {
    /// The key.
    pub key: String,
    /// Kafka's number of the operation.
    pub operation: i8,
    /// The operand.
    pub value: Option<String>,
}

/// One key and its value in a request that names all of them.
#[derive(Debug, Clone)]
pub struct KeyValue {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Option<String>,
}

/// Changes single keys. Each resource is answered for itself, in the order of the request; a
/// refused one is left as it was.
pub fn incremental_alter_configs(
    image: &MetadataImage,
    resources: &[ResourceChange<KeyChange>],
    rules: &dyn ConfigRules,
) -> (Vec<MetadataRecord>, Vec<Result<(), Refusal>>) {
    alter(image, resources, rules, |current, resource, changes| {
        let mut settings = current.clone();
        check_changes(changes)?;
        rules.check_name(resource)?;
        for change in changes {
            apply_change(&mut settings, resource, change, rules)?;
        }
        Ok(settings)
    })
}

/// Replaces all settings of each resource: a key that the request does not name is deleted.
pub fn alter_configs(
    image: &MetadataImage,
    resources: &[ResourceChange<KeyValue>],
    rules: &dyn ConfigRules,
) -> (Vec<MetadataRecord>, Vec<Result<(), Refusal>>) {
    alter(image, resources, rules, |_, _, changes| {
        check_keys(changes.iter().map(|change| change.key.as_str()))?;
        let nulls = changes
            .iter()
            .filter(|change| change.value.is_none())
            .map(|change| change.key.as_str());
        check_nulls(nulls)?;
        Ok(changes
            .iter()
            .filter_map(|change| Some((change.key.clone(), change.value.clone()?)))
            .collect())
    })
}

fn alter<C>(
    image: &MetadataImage,
    resources: &[ResourceChange<C>],
    rules: &dyn ConfigRules,
    wanted: impl Fn(&ConfigMap, &ConfigResource, &[C]) -> Result<ConfigMap, Refusal>,
) -> (Vec<MetadataRecord>, Vec<Result<(), Refusal>>) {
    let mut times: HashMap<(i8, &str), usize> = HashMap::new();
    for resource in resources {
        *times
            .entry((resource.kind, resource.name.as_str()))
            .or_default() += 1;
    }
    let mut records = Vec::new();
    let outcomes = resources
        .iter()
        .map(|change| {
            if times.get(&(change.kind, change.name.as_str())) != Some(&1) {
                return Err(Refusal::DuplicateResource);
            }
            let resource = alterable(change.kind, &change.name)?;
            let current = image.config(&resource);
            let settings = wanted(current, &resource, &change.changes)?;
            check_resource(&resource)?;
            let settings = rules.check(&resource, &settings)?;
            if resource.kind == ResourceKind::Topic && image.topic(&resource.name).is_none() {
                return Err(Refusal::UnknownTopicNamed(resource.name));
            }
            records.extend(difference(&resource, current, &settings));
            Ok(())
        })
        .collect();
    (records, outcomes)
}

/// The resource, if its kind is one whose settings are stored.
fn alterable(kind: i8, name: &str) -> Result<ConfigResource, Refusal> {
    match ResourceKind::from_code(kind) {
        Some(ResourceKind::Group) if name.is_empty() => Err(Refusal::DefaultGroup),
        Some(
            kind @ (ResourceKind::Topic
            | ResourceKind::Broker
            | ResourceKind::ClientMetrics
            | ResourceKind::Group),
        ) => Ok(ConfigResource {
            kind,
            name: name.to_owned(),
        }),
        // Log levels are no settings of the cluster: whoever is to change its own has done so before.
        Some(ResourceKind::BrokerLogger) | None => Err(Refusal::UnknownResourceType(kind)),
    }
}

fn check_resource(resource: &ConfigResource) -> Result<(), Refusal> {
    if resource.kind == ResourceKind::Topic {
        if resource.name.is_empty() {
            return Err(Refusal::DefaultTopic);
        }
        topic_name::validate(&resource.name)?;
    }
    Ok(())
}

/// Refuses changes of which two name one key, or one that sets has no value.
pub fn check_changes(changes: &[KeyChange]) -> Result<(), Refusal> {
    check_keys(changes.iter().map(|change| change.key.as_str()))?;
    let nulls = changes
        .iter()
        .filter(|change| {
            change.value.is_none()
                && Operation::from_code(change.operation) != Some(Operation::Delete)
        })
        .map(|change| change.key.as_str());
    check_nulls(nulls)
}

/// Refuses a key that is named twice.
pub fn check_keys<'a>(keys: impl Iterator<Item = &'a str>) -> Result<(), Refusal> {
    let mut seen = HashSet::new();
    let mut keys = keys;
    if keys.all(|key| seen.insert(key)) {
        Ok(())
    } else {
        Err(Refusal::DuplicateConfigKeys)
    }
}

fn check_nulls<'a>(keys: impl Iterator<Item = &'a str>) -> Result<(), Refusal> {
    let nulls: Vec<&str> = keys.collect();
    if nulls.is_empty() {
        Ok(())
    } else {
        Err(Refusal::NullConfigs(nulls.join(", ")))
    }
}

fn apply_change(
    settings: &mut ConfigMap,
    resource: &ConfigResource,
    change: &KeyChange,
    rules: &dyn ConfigRules,
) -> Result<(), Refusal> {
    let operation = Operation::from_code(change.operation)
        .ok_or(Refusal::UnknownOperation(change.operation))?;
    let operand = change.value.as_deref().unwrap_or_default();
    match operation {
        Operation::Set => {
            settings.insert(change.key.clone(), operand.to_owned());
        }
        Operation::Delete => {
            settings.remove(&change.key);
        }
        Operation::Append | Operation::Subtract => {
            let default = rules
                .list_default(resource.kind, &change.key)
                .ok_or_else(|| Refusal::NotAList {
                    operation: if operation == Operation::Append {
                        "APPEND"
                    } else {
                        "SUBTRACT"
                    },
                    key: change.key.clone(),
                })?;
            let value = match settings.entry(change.key.clone()) {
                Entry::Vacant(vacant) => vacant.insert(default),
                Entry::Occupied(occupied) => occupied.into_mut(),
            };
            let operand: Vec<&str> = elements(operand).collect();
            let mut elements: Vec<&str> = elements(value).collect();
            if operation == Operation::Subtract {
                let unwanted: HashSet<&str> = operand.into_iter().collect();
                elements.retain(|element| !unwanted.contains(element));
            } else {
                let mut present: HashSet<&str> = elements.iter().copied().collect();
                let fresh = operand
                    .into_iter()
                    .filter(|element| present.insert(element));
                elements.extend(fresh);
            }
            *value = elements.join(",");
        }
    }
    Ok(())
}

fn elements(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').filter(|element| !element.is_empty())
}

/// Records that turn `current` into `wanted`. For brokers a key that is set again is written again,
/// as with Kafka, so that whatever it points to is read anew.
fn difference(
    resource: &ConfigResource,
    current: &ConfigMap,
    wanted: &ConfigMap,
) -> Vec<MetadataRecord> {
    let record = |name: &str, value: Option<&str>| {
        MetadataRecord::Config(ConfigRecord {
            resource_type: resource.kind.code(),
            resource_name: resource.name.clone(),
            name: name.to_owned(),
            value: value.map(str::to_owned),
        })
    };
    let mut records: Vec<_> = wanted
        .iter()
        .filter(|(key, value)| {
            current.get(*key) != Some(*value) || resource.kind == ResourceKind::Broker
        })
        .map(|(key, value)| record(key, Some(value)))
        .collect();
    records.extend(
        current
            .keys()
            .filter(|key| !wanted.contains_key(*key))
            .map(|key| record(key, None)),
    );
    records
}

#[cfg(test)]
mod tests {
    use odradek_protocol::error_code::ErrorCode;
    use odradek_protocol::ids::TopicId;

    use super::super::super::records::TopicRecord;
    use super::super::super::test_support::apply;
    use super::*;

    /// Knows three settings of topics and takes every setting of brokers.
    struct Rules;

    impl ConfigRules for Rules {
        fn list_default(&self, _: ResourceKind, key: &str) -> Option<String> {
            (key == "cleanup.policy").then(|| "delete".to_owned())
        }

        fn check_name(&self, resource: &ConfigResource) -> Result<(), Refusal> {
            match resource.kind == ResourceKind::Broker && resource.name == "x" {
                true => Err(Refusal::BrokerNotANumber(resource.name.clone())),
                false => Ok(()),
            }
        }

        fn check(
            &self,
            resource: &ConfigResource,
            settings: &ConfigMap,
        ) -> Result<ConfigMap, Refusal> {
            let known = ["cleanup.policy", "retention.ms", "segment.ms"];
            match settings.keys().find(|key| !known.contains(&key.as_str())) {
                Some(key) if resource.kind == ResourceKind::Topic => Err(Refusal::InvalidConfig(
                    format!("Unknown topic config name: {key}"),
                )),
                _ => Ok(settings.clone()),
            }
        }
    }

    /// A topic `t` with these settings.
    fn image(settings: &[(&str, &str)]) -> MetadataImage {
        let mut image = MetadataImage::default();
        let mut records = vec![MetadataRecord::Topic(TopicRecord {
            name: "t".to_owned(),
            topic_id: TopicId::from_bytes([1; 16]),
        })];
        records.extend(settings.iter().map(|(name, value)| {
            MetadataRecord::Config(ConfigRecord {
                resource_type: 2,
                resource_name: "t".to_owned(),
                name: (*name).to_owned(),
                value: Some((*value).to_owned()),
            })
        }));
        apply(&mut image, &records);
        image
    }

    fn change(key: &str, operation: i8, value: Option<&str>) -> KeyChange {
        KeyChange {
            key: key.to_owned(),
            operation,
            value: value.map(str::to_owned),
        }
    }

    fn of<C>(kind: i8, name: &str, changes: Vec<C>) -> ResourceChange<C> {
        ResourceChange {
            kind,
            name: name.to_owned(),
            changes,
        }
    }

    /// Settings of `t` after the changes, all of which must be taken.
    fn after(image: &MetadataImage, changes: Vec<KeyChange>) -> Vec<(String, String)> {
        let (records, outcomes) = incremental_alter_configs(image, &[of(2, "t", changes)], &Rules);
        assert_eq!(outcomes, [Ok(())]);
        let mut image = image.clone();
        apply(&mut image, &records);
        let settings = image.config(&ConfigResource::topic("t"));
        settings
            .iter()
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    }

    fn pairs(settings: &[(&str, &str)]) -> Vec<(String, String)> {
        settings
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn whose_settings_they_are_is_looked_at_before_what_becomes_of_them() {
        let asked = |name: &str, operation| {
            let change = change("no.list", operation, Some("a"));
            let (_, outcomes) =
                incremental_alter_configs(&image(&[]), &[of(4, name, vec![change])], &Rules);
            let mut outcomes = outcomes.into_iter();
            outcomes
                .next()
                .expect("one")
                .map_err(|refusal| refusal.code())
        };
        assert_eq!(asked("1", 3), Err(ErrorCode::InvalidConfig));
        assert_eq!(asked("x", 3), Err(ErrorCode::InvalidRequest));
        assert_eq!(asked("1", 0), Ok(()));
    }

    #[test]
    fn the_old_way_drops_what_the_request_does_not_name() {
        let before = [
            ("cleanup.policy", "compact"),
            ("retention.ms", "5"),
            ("segment.ms", "7"),
        ];
        let image = image(&before);
        let only = KeyValue {
            key: "retention.ms".to_owned(),
            value: Some("6".to_owned()),
        };
        let (records, outcomes) = alter_configs(&image, &[of(2, "t", vec![only])], &Rules);
        assert_eq!(outcomes, [Ok(())]);
        let mut after = image;
        apply(&mut after, &records);
        let left = after.config(&ConfigResource::topic("t"));
        assert_eq!(left.len(), 1);
        assert_eq!(left.get("retention.ms").map(String::as_str), Some("6"));
    }

    #[test]
    fn single_keys_are_set_and_deleted_and_the_rest_stays() {
        let image = image(&[("retention.ms", "5"), ("segment.ms", "7")]);
        assert_eq!(
            after(
                &image,
                vec![
                    change("retention.ms", 1, None),
                    change("cleanup.policy", 0, Some("compact"))
                ]
            ),
            pairs(&[("cleanup.policy", "compact"), ("segment.ms", "7")])
        );
    }

    #[test]
    fn lists_grow_from_their_default_and_shrink() {
        let append = change("cleanup.policy", 2, Some("compact,delete"));
        assert_eq!(
            after(&image(&[]), vec![append]),
            pairs(&[("cleanup.policy", "delete,compact")])
        );
        let subtract = change("cleanup.policy", 3, Some("delete"));
        assert_eq!(
            after(
                &image(&[("cleanup.policy", "delete,compact")]),
                vec![subtract]
            ),
            pairs(&[("cleanup.policy", "compact")])
        );
    }

    #[test]
    fn a_list_of_very_many_elements_holds_nobody_up() {
        let many: Vec<String> = (0..300_000).map(|number: u32| number.to_string()).collect();
        let many = many.join(",");
        let image = image(&[("cleanup.policy", &many)]);
        for operation in [2, 3] {
            let change = change("cleanup.policy", operation, Some(&many));
            let left = after(&image, vec![change]);
            let expected = if operation == 2 { many.as_str() } else { "" };
            assert!(left == pairs(&[("cleanup.policy", expected)]));
        }
    }

    #[test]
    fn refusals_carry_the_code_and_sentence_of_kafka() {
        for (kind, name, change, code, message) in [
            (
                2,
                "nope",
                change("retention.ms", 0, Some("1")),
                ErrorCode::UnknownTopicOrPartition,
                "The topic 'nope' does not exist.",
            ),
            (
                2,
                "nope",
                change("no.such", 0, Some("1")),
                ErrorCode::InvalidConfig,
                "Unknown topic config name: no.such",
            ),
            (
                2,
                "",
                change("retention.ms", 0, Some("1")),
                ErrorCode::InvalidRequest,
                "Default topic resources are not allowed.",
            ),
            (
                2,
                "a b",
                change("retention.ms", 0, Some("1")),
                ErrorCode::InvalidTopicException,
                "Topic name is invalid: 'a b' contains one or more characters other than ASCII \
                 alphanumerics, '.', '_' and '-'",
            ),
            (
                2,
                "t",
                change("retention.ms", 0, None),
                ErrorCode::InvalidRequest,
                "Null value not supported for : retention.ms",
            ),
            (
                2,
                "t",
                change("retention.ms", 2, Some("1")),
                ErrorCode::InvalidConfig,
                "Can't APPEND to key retention.ms because its type is not LIST.",
            ),
            (
                2,
                "t",
                change("retention.ms", 9, Some("1")),
                ErrorCode::InvalidRequest,
                "Unknown operation type 9",
            ),
            (
                7,
                "x",
                change("retention.ms", 0, Some("1")),
                ErrorCode::InvalidRequest,
                "Unknown resource type 7",
            ),
        ] {
            let resource = of(kind, name, vec![change]);
            let (records, outcomes) = incremental_alter_configs(&image(&[]), &[resource], &Rules);
            assert!(records.is_empty());
            let refusal = outcomes[0].clone().expect_err("refused");
            assert_eq!(
                (refusal.code(), refusal.to_string().as_str()),
                (code, message)
            );
        }
    }

    #[test]
    fn a_resource_or_key_named_twice_is_refused() {
        let set = || change("retention.ms", 0, Some("1"));
        let (records, outcomes) = incremental_alter_configs(
            &image(&[]),
            &[of(2, "t", vec![set()]), of(2, "t", vec![set()])],
            &Rules,
        );
        assert!(records.is_empty());
        assert_eq!(
            outcomes,
            [
                Err(Refusal::DuplicateResource),
                Err(Refusal::DuplicateResource)
            ]
        );
        let (_, outcomes) =
            incremental_alter_configs(&image(&[]), &[of(2, "t", vec![set(), set()])], &Rules);
        assert_eq!(outcomes, [Err(Refusal::DuplicateConfigKeys)]);
    }

    #[test]
    fn an_unchanged_key_is_written_again_for_brokers_only() {
        let set = || vec![change("retention.ms", 0, Some("5"))];
        let resources = [of(2, "t", set()), of(4, "", set())];
        let (records, _) =
            incremental_alter_configs(&image(&[("retention.ms", "5")]), &resources, &Rules);
        assert_eq!(records.len(), 1);
    }
}
