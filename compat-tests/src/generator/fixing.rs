//! What has to agree between the fields of a request, put right after they were chosen one by one.

use std::collections::BTreeSet;

use crate::tree::Node;

/// What an item of a list is told from the others by.
pub const NAMES: [&str; 14] = [
    "resource_type",
    "resource_name",
    "name",
    "topic",
    "topic_name",
    "topic_id",
    "partition_index",
    "partition",
    "partition_id",
    "index",
    "group_id",
    "transactional_id",
    "producer_id",
    "feature",
];

/// Puts a message right that was made for an API at a version.
///
/// Nothing is named twice: what Kafka does then depends on the collections that it happens to use, some of which drop
/// what comes twice, and no client asks so.
pub fn fix(api: &str, version: i16, message: &mut Node) {
    message.visit(&mut |_, node| {
        if let Node::List(items) = node {
            let mut seen = BTreeSet::new();
            items.retain(|item| seen.insert(identity(item)));
        }
    });
    match api {
        // A topic is named or has an id, not both.
        "DeleteTopics" if version >= 6 => each(message, "topics", name_or_id),
        "Metadata" if version >= 10 => each(message, "topics", name_or_id),
        // Of two requests for one transaction Kafka carries out either first.
        "AddPartitionsToTxn" => {
            if let Some(transactions) = list(message, "transactions") {
                let mut seen = BTreeSet::new();
                transactions.retain(|one| {
                    let id = one.field("transactional_id").map(Node::to_string);
                    seen.insert(id)
                });
            }
        }
        // Other sessions would feel it.
        "AlterConfigs" | "IncrementalAlterConfigs" if mentions_brokers(message) => {
            set(message, "validate_only", Node::atom("true"));
        }
        "CreateTopics" => each(message, "topics", |topic| {
            // Replicas by hand come without numbers of them.
            if matches!(topic.field("assignments"), Some(Node::List(rows)) if !rows.is_empty()) {
                set(topic, "num_partitions", Node::atom("-1"));
                set(topic, "replication_factor", Node::atom("-1"));
            }
        }),
        _ => {}
    }
}

/// What tells an item from the others of its list.
pub fn identity(item: &Node) -> Vec<String> {
    let fields: Vec<String> = NAMES
        .iter()
        .filter_map(|name| item.field(name).map(Node::to_string))
        .collect();
    match fields.is_empty() {
        true => vec![item.to_string()],
        false => fields,
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
