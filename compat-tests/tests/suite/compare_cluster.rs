//! The APIs that administer a cluster, on a node that is one of its own, compared with Kafka.

use anyhow::Result;
use compat_tests::comparison::compare;
use compat_tests::requests::{create_topic, topic_name};
use compat_tests::wire::text;
use kafka_protocol::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use kafka_protocol::messages::describe_quorum_request::{PartitionData, TopicData};
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::list_partition_reassignments_request::ListPartitionReassignmentsTopics;
use kafka_protocol::messages::update_features_request::FeatureUpdateKey;
use kafka_protocol::messages::{
    AlterPartitionReassignmentsRequest, BrokerId, DescribeQuorumRequest, ElectLeadersRequest,
    ListPartitionReassignmentsRequest, UnregisterBrokerRequest, UpdateFeaturesRequest,
};

#[test]
fn elect_leaders() -> Result<()> {
    compare("elect_leaders", |probe| {
        create_topic(probe.wire()?, "elected", 2, &[])?;
        // Kafka's sentences for these codes are not ours.
        probe.mask("replica_election_results[].partition_result[].error_message");
        for (label, topic, partitions) in [
            ("led by the first replica", "elected", vec![0, 1]),
            ("no such partition", "elected", vec![7]),
            ("no such topic", "not-elected", vec![0]),
        ] {
            probe.ask_each(label, |_| {
                let asked = TopicPartitions::default()
                    .with_topic(topic_name(topic))
                    .with_partitions(partitions.clone());
                ElectLeadersRequest::default()
                    .with_topic_partitions(Some(vec![asked]))
                    .with_timeout_ms(5_000)
            })?;
        }
        probe.ask_each("no such type", |version| {
            let asked = TopicPartitions::default()
                .with_topic(topic_name("elected"))
                .with_partitions(vec![0]);
            ElectLeadersRequest::default()
                .with_election_type(if version > 0 { 9 } else { 0 })
                .with_topic_partitions(Some(vec![asked]))
        })
    })
}

fn reassign(topic: &str, partition: i32, replicas: Option<&[i32]>) -> ReassignableTopic {
    ReassignableTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(vec![
            ReassignablePartition::default()
                .with_partition_index(partition)
                .with_replicas(replicas.map(|ids| ids.iter().copied().map(BrokerId).collect())),
        ])
}

#[test]
fn alter_partition_reassignments() -> Result<()> {
    compare("alter_partition_reassignments", |probe| {
        create_topic(probe.wire()?, "moved", 1, &[])?;
        for (label, topic) in [
            ("where it is", reassign("moved", 0, Some(&[1]))),
            (
                "to a broker that is not there",
                reassign("moved", 0, Some(&[9])),
            ),
            ("twice to one broker", reassign("moved", 0, Some(&[1, 1]))),
            ("to nobody", reassign("moved", 0, Some(&[]))),
            ("nothing to cancel", reassign("moved", 0, None)),
            ("no such partition", reassign("moved", 3, Some(&[1]))),
            ("no such topic", reassign("not-moved", 0, Some(&[1]))),
        ] {
            probe.ask_each(label, |_| {
                AlterPartitionReassignmentsRequest::default()
                    .with_topics(vec![topic.clone()])
                    .with_timeout_ms(5_000)
            })?;
        }
        Ok(())
    })
}

#[test]
fn list_partition_reassignments() -> Result<()> {
    compare("list_partition_reassignments", |probe| {
        create_topic(probe.wire()?, "listed", 1, &[])?;
        probe.ask_each("all", |_| {
            ListPartitionReassignmentsRequest::default().with_topics(None)
        })?;
        probe.ask_each("one", |_| {
            let topic = ListPartitionReassignmentsTopics::default()
                .with_name(topic_name("listed"))
                .with_partition_indexes(vec![0]);
            ListPartitionReassignmentsRequest::default().with_topics(Some(vec![topic]))
        })
    })
}

#[test]
fn describe_quorum() -> Result<()> {
    compare("describe_quorum", |probe| {
        // How far the log is, and when, is never the same; a node of its own names no listener for
        // other controllers.
        for field in [
            "high_watermark",
            "leader_epoch",
            "current_voters[].log_end_offset",
            "current_voters[].replica_directory_id",
            "current_voters[].last_fetch_timestamp",
            "current_voters[].last_caught_up_timestamp",
        ] {
            probe.mask(&format!("topics[].partitions[].{field}"));
        }
        probe.mask("nodes");
        let asked = |name: &str, partitions: &[i32]| {
            let rows = partitions
                .iter()
                .map(|index| PartitionData::default().with_partition_index(*index));
            let topic = TopicData::default()
                .with_topic_name(topic_name(name))
                .with_partitions(rows.collect());
            DescribeQuorumRequest::default().with_topics(vec![topic])
        };
        let metadata = "__cluster_metadata";
        probe.ask_each("the metadata", |_| asked(metadata, &[0]))?;
        probe.ask_each("a partition more", |_| asked(metadata, &[0, 1]))?;
        probe.ask_each("another partition", |_| asked(metadata, &[1]))?;
        probe.ask_each("another topic", |_| asked("quorum-nowhere", &[0]))
    })
}

#[test]
fn update_features() -> Result<()> {
    compare("update_features", |probe| {
        probe.mask("error_message");
        probe.mask("results[].error_message");
        for (label, feature, level) in [
            ("no such feature", "no.such.feature", 1),
            ("a level below zero", "metadata.version", -1),
            ("a level beyond the newest", "metadata.version", 999),
            ("transactions of the future", "transaction.version", 9),
            ("a lower level, without saying so", "transaction.version", 1),
        ] {
            probe.ask_each(label, |_| {
                let update = FeatureUpdateKey::default()
                    .with_feature(text(feature))
                    .with_max_version_level(level);
                UpdateFeaturesRequest::default()
                    .with_timeout_ms(5_000)
                    .with_feature_updates(vec![update])
            })?;
        }
        Ok(())
    })
}

#[test]
fn unregister_broker() -> Result<()> {
    compare("unregister_broker", |probe| {
        probe.ask_each("nobody", |_| {
            UnregisterBrokerRequest::default().with_broker_id(BrokerId(77))
        })
    })
}
