//! ApiVersions, Metadata, DescribeTopicPartitions and DescribeCluster, compared with Kafka.

use anyhow::{Context, Result};
use compat_tests::comparison::compare;
use compat_tests::requests::{Topic, create_topic, topic_name};
use compat_tests::tree::{Node, fields};
use compat_tests::wire::text;
use kafka_protocol::messages::describe_topic_partitions_request::{Cursor, TopicRequest};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    ApiVersionsRequest, DescribeClusterRequest, DescribeTopicPartitionsRequest, MetadataRequest,
};
use uuid::Uuid;

#[test]
fn api_versions() -> Result<()> {
    compare("api_versions", |probe| {
        probe.sort("supported_features", "name");
        probe.sort("finalized_features", "name");
        probe.mask("finalized_features_epoch");
        probe.ask_each("a client that says who it is", |version| {
            let mut request = ApiVersionsRequest::default();
            if version >= 3 {
                request.client_software_name = text("odradek-tests");
                request.client_software_version = text("1.0");
            }
            request
        })?;
        probe.ask_each("a name with illegal characters", |version| {
            let mut request = ApiVersionsRequest::default();
            if version >= 3 {
                request.client_software_name = text("not a name");
                request.client_software_version = text("-");
            }
            request
        })
    })
}

/// From version 5 on a client says which cluster and node it means (KIP-1242).
#[test]
fn api_versions_of_a_cluster_that_is_meant() -> Result<()> {
    compare("api_versions_of_a_cluster_that_is_meant", |probe| {
        probe.mask("api_keys");
        probe.mask("supported_features");
        probe.mask("finalized_features");
        probe.mask("finalized_features_epoch");
        let cluster = probe.wire()?.metadata_of_everything()?.cluster_id;
        let cluster = cluster.context("no cluster id")?.to_string();
        for (label, cluster, node) in [
            ("the right cluster and node", Some(cluster.as_str()), 1),
            ("the right cluster, no node", Some(&cluster), -1),
            ("the right cluster, another node", Some(&cluster), 7),
            ("another cluster, the right node", Some("another"), 1),
            ("another cluster, no node", Some("another"), -1),
            ("another cluster, another node", Some("another"), 7),
            ("an empty cluster, the right node", Some(""), 1),
            ("no cluster, the right node", None, 1),
            ("no cluster, another node", None, 7),
            ("no cluster, an impossible node", None, -2),
        ] {
            let message = fields(&[
                ("client_software_name", Node::text("odradek-tests")),
                ("client_software_version", Node::text("1.0")),
                ("cluster_id", cluster.map_or(Node::atom("None"), Node::text)),
                ("node_id", Node::atom(node.to_string())),
            ]);
            probe.ask_message(label, "ApiVersions", 5, &message)?;
        }
        Ok(())
    })
}

fn by_names(version: i16, names: &[&str]) -> MetadataRequest {
    let topics = names
        .iter()
        .map(|name| MetadataRequestTopic::default().with_name(Some(topic_name(name))))
        .collect();
    let mut request = MetadataRequest::default().with_topics(Some(topics));
    if version >= 4 {
        request.allow_auto_topic_creation = false;
    }
    request
}

#[test]
fn metadata_by_name() -> Result<()> {
    compare("metadata_by_name", |probe| {
        create_topic(probe.wire()?, "metadata-by-name", 3, &[])?;
        create_topic(probe.wire()?, "metadata-by-name-2", 1, &[])?;
        probe.sort("topics", "name");
        probe.ask_each("one", |version| by_names(version, &["metadata-by-name"]))?;
        probe.ask_each("two", |version| {
            by_names(version, &["metadata-by-name", "metadata-by-name-2"])
        })?;
        probe.ask_each("one twice", |version| {
            by_names(version, &["metadata-by-name", "metadata-by-name"])
        })
    })
}

#[test]
fn metadata_of_topics_that_do_not_exist() -> Result<()> {
    compare("metadata_of_topics_that_do_not_exist", |probe| {
        let long = "x".repeat(250);
        probe.sort("topics", "name");
        for name in ["metadata-nowhere", "not/a name", ".", "..", "", &long] {
            for version in probe.versions::<MetadataRequest>() {
                // Before version 4 the broker's default decides, which is to create.
                if version >= 4 || name != "metadata-nowhere" {
                    probe.ask(name, version, &by_names(version, &[name]))?;
                }
            }
        }
        probe.ask_each("no topics at all", |version| {
            // At version 0 an empty list asks for all of them, which other tests change.
            by_names(version, if version == 0 { &["."] } else { &[] })
        })
    })
}

#[test]
fn metadata_by_id() -> Result<()> {
    compare("metadata_by_id", |probe| {
        let topic = create_topic(probe.wire()?, "metadata-by-id", 2, &[])?;
        let missing = Topic::missing("x").id;
        let cases = [
            ("by id", topic.id, None),
            ("by an id that nobody has", missing, None),
            ("by id and name", topic.id, Some("metadata-by-id")),
            ("by neither", Uuid::nil(), None),
        ];
        for (label, id, name) in cases {
            for version in probe
                .versions::<MetadataRequest>()
                .filter(|version| *version >= 10)
            {
                let asked = MetadataRequestTopic::default()
                    .with_topic_id(id)
                    .with_name(name.map(topic_name));
                let request = MetadataRequest::default()
                    .with_topics(Some(vec![asked]))
                    .with_allow_auto_topic_creation(false);
                probe.ask(label, version, &request)?;
            }
        }
        Ok(())
    })
}

#[test]
fn metadata_with_authorized_operations() -> Result<()> {
    compare("metadata_with_authorized_operations", |probe| {
        create_topic(probe.wire()?, "metadata-operations", 1, &[])?;
        for version in probe
            .versions::<MetadataRequest>()
            .filter(|version| *version >= 8)
        {
            let mut request = by_names(version, &["metadata-operations"])
                .with_include_topic_authorized_operations(true);
            if version <= 10 {
                request.include_cluster_authorized_operations = true;
            }
            probe.ask("with operations", version, &request)?;
        }
        Ok(())
    })
}

#[test]
fn describe_topic_partitions() -> Result<()> {
    compare("describe_topic_partitions", |probe| {
        create_topic(probe.wire()?, "describe-partitions-a", 5, &[])?;
        create_topic(probe.wire()?, "describe-partitions-b", 2, &[])?;
        let topic = |name: &str| TopicRequest::default().with_name(topic_name(name));
        let both = || {
            vec![
                topic("describe-partitions-b"),
                topic("describe-partitions-a"),
            ]
        };
        let cursor = |name: &str, index| {
            Some(
                Cursor::default()
                    .with_topic_name(topic_name(name))
                    .with_partition_index(index),
            )
        };
        let request = |topics, limit, cursor| {
            DescribeTopicPartitionsRequest::default()
                .with_topics(topics)
                .with_response_partition_limit(limit)
                .with_cursor(cursor)
        };
        probe.ask_each("two topics", |_| request(both(), 2000, None))?;
        probe.ask_each("a limit inside the first", |_| request(both(), 3, None))?;
        probe.ask_each("a limit inside the second", |_| request(both(), 6, None))?;
        probe.ask_each("from a cursor", |_| {
            request(both(), 2000, cursor("describe-partitions-a", 3))
        })?;
        probe.ask_each("from a cursor in the second", |_| {
            request(both(), 2000, cursor("describe-partitions-b", 1))
        })?;
        probe.ask_each("from a cursor past the end", |_| {
            request(both(), 2000, cursor("describe-partitions-b", 9))
        })?;
        probe.ask_each("from a negative cursor", |_| {
            request(both(), 2000, cursor("describe-partitions-b", -1))
        })?;
        probe.ask_each("a cursor's topic is missing", |_| {
            request(both(), 2000, cursor("describe-partitions-aa", 0))
        })?;
        probe.ask_each("missing and illegal", |_| {
            request(
                vec![topic("describe-nowhere"), topic("not/a name")],
                2000,
                None,
            )
        })?;
        probe.ask_each("one twice", |_| {
            request(
                vec![
                    topic("describe-partitions-b"),
                    topic("describe-partitions-b"),
                ],
                2000,
                None,
            )
        })?;
        probe.ask_each("a limit of zero", |_| request(both(), 0, None))
    })
}

#[test]
fn describe_cluster() -> Result<()> {
    compare("describe_cluster", |probe| {
        for operations in [false, true] {
            probe.ask_each("brokers", |_| {
                DescribeClusterRequest::default()
                    .with_include_cluster_authorized_operations(operations)
            })?;
        }
        for endpoint_type in [0, 2, 3, -1] {
            for version in probe
                .versions::<DescribeClusterRequest>()
                .filter(|version| *version >= 1)
            {
                let request = DescribeClusterRequest::default().with_endpoint_type(endpoint_type);
                probe.ask("another endpoint type", version, &request)?;
            }
        }
        for version in probe
            .versions::<DescribeClusterRequest>()
            .filter(|version| *version >= 2)
        {
            let request = DescribeClusterRequest::default().with_include_fenced_brokers(true);
            probe.ask("with fenced brokers", version, &request)?;
        }
        Ok(())
    })
}
