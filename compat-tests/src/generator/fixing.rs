//! What has to agree between the fields of a request, put right after they were chosen one by one.

use std::collections::BTreeSet;

use crate::tree::Node;

/// Puts a message right that was made for an API at a version.
pub fn fix(api: &str, version: i16, message: &mut Node) {
    match api {
        // A topic is named or has an id, not both.
        "DeleteTopics" if version >= 6 => each(message, "topics", name_or_id),
        "Metadata" if version >= 10 => each(message, "topics", name_or_id),
        // Kafka 4.4.0 never answers one that names a resource twice.
        "AlterConfigs" | "IncrementalAlterConfigs" => {
            distinct(message, "resources", &["resource_type", "resource_name"]);
            if mentions_brokers(message) {
                set(message, "validate_only", Node::atom("true"));
            }
        }
        // A member that joins for the second time in one request waits for itself.
        "JoinGroup" => distinct(message, "protocols", &["name"]),
        // Configurations of which each is there once.
        "CreateTopics" => each(message, "topics", |topic| {
            distinct(topic, "configs", &["name"]);
            // Replicas by hand come without numbers of them.
            if matches!(topic.field("assignments"), Some(Node::List(rows)) if !rows.is_empty()) {
                set(topic, "num_partitions", Node::atom("-1"));
                set(topic, "replication_factor", Node::atom("-1"));
            }
        }),
        _ => {}
    }
}

fn name_or_id(topic: &mut Node) {
    let nil = Node::atom(uuid::Uuid::nil().to_string());
    if topic.field("topic_id").is_some_and(|id| *id != nil) {
        set(topic, "name", Node::atom("None"));
    }
}

fn list<'a>(message: &'a mut Node, name: &str) -> Option<&'a mut Vec<Node>> {
    let Node::Struct(fields) = message else {
        return None;
    };
    let (_, value) = fields.iter_mut().find(|(known, _)| known == name)?;
    match value {
        Node::List(items) => Some(items),
        _ => None,
    }
}

fn each(message: &mut Node, name: &str, change: impl FnMut(&mut Node)) {
    if let Some(items) = list(message, name) {
        items.iter_mut().for_each(change);
    }
}

fn set(message: &mut Node, name: &str, value: Node) {
    if let Node::Struct(fields) = message {
        match fields.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => fields.push((name.to_owned(), value)),
        }
    }
}

/// Drops items that have the same `names` as one before.
fn distinct(message: &mut Node, name: &str, names: &[&str]) {
    let mut seen = BTreeSet::new();
    if let Some(items) = list(message, name) {
        items.retain(|item| {
            let key: Vec<String> = names
                .iter()
                .map(|name| item.field(name).map_or_else(String::new, Node::to_string))
                .collect();
            seen.insert(key)
        });
    }
}

/// Whether settings of something else than topics and groups are meant.
fn mentions_brokers(message: &Node) -> bool {
    let Some(Node::List(resources)) = message.field("resources") else {
        return false;
    };
    resources.iter().any(|resource| {
        !matches!(resource.field("resource_type"), Some(Node::Atom(kind)) if kind == "2" || kind == "32")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::fields;

    #[test]
    fn a_resource_is_there_once_and_brokers_are_only_asked() {
        let resource = |kind: &str| {
            fields(&[
                ("resource_type", Node::atom(kind)),
                ("resource_name", Node::text("1")),
            ])
        };
        let mut message = fields(&[
            (
                "resources",
                Node::List(vec![resource("2"), resource("2"), resource("4")]),
            ),
            ("validate_only", Node::atom("false")),
        ]);
        fix("AlterConfigs", 2, &mut message);
        assert_eq!(
            message.to_string(),
            r#"{resources: [{resource_type: 2, resource_name: "1"}, {resource_type: 4, resource_name: "1"}], validate_only: true}"#
        );
    }

    #[test]
    fn a_topic_has_a_name_or_an_id() {
        let topic = |id: &str| fields(&[("name", Node::text("@a")), ("topic_id", Node::atom(id))]);
        let nil = uuid::Uuid::nil().to_string();
        let mut message = fields(&[("topics", Node::List(vec![topic("$id:@a"), topic(&nil)]))]);
        fix("Metadata", 12, &mut message);
        assert_eq!(
            message.to_string(),
            r#"{topics: [{name: None, topic_id: $id:@a}, {name: "@a", topic_id: 00000000-0000-0000-0000-000000000000}]}"#
        );
    }
}
