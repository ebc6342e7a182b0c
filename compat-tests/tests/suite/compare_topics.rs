//! CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords, compared with Kafka.

use anyhow::Result;
use compat_tests::batches::BatchSpec;
use compat_tests::comparison::compare;
use compat_tests::requests::{Topic, creatable, create_topic, produce_ok, topic_name};
use compat_tests::transcript::Probe;
use compat_tests::wire::text;
use kafka_protocol::messages::create_partitions_request::{
    CreatePartitionsAssignment, CreatePartitionsTopic,
};
use kafka_protocol::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig,
};
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::{
    BrokerId, CreatePartitionsRequest, CreateTopicsRequest, DeleteRecordsRequest,
    DeleteTopicsRequest,
};

fn create(topics: Vec<CreatableTopic>, validate_only: bool) -> CreateTopicsRequest {
    CreateTopicsRequest::default()
        .with_topics(topics)
        .with_timeout_ms(10_000)
        .with_validate_only(validate_only)
}

#[test]
fn create_topics() -> Result<()> {
    compare("create_topics", |probe| {
        // The defaults that a topic shows are the broker's; how they are described is compared with DescribeConfigs.
        probe.mask("topics[].configs");
        probe.sort("topics", "name");
        for version in probe.versions::<CreateTopicsRequest>() {
            let name = format!("create-topics-v{version}");
            probe.ask(
                "only validated",
                version,
                &create(vec![creatable(&name, 2, &[])], true),
            )?;
            probe.ask(
                "created",
                version,
                &create(
                    vec![creatable(&name, 2, &[("retention.ms", "1000")])],
                    false,
                ),
            )?;
            probe.ask(
                "exists",
                version,
                &create(vec![creatable(&name, 2, &[])], false),
            )?;
            probe.ask(
                "exists, only validated",
                version,
                &create(vec![creatable(&name, 2, &[])], true),
            )?;
            if version >= 4 {
                let defaults =
                    creatable(&format!("{name}-defaults"), -1, &[]).with_replication_factor(-1);
                probe.ask("defaults", version, &create(vec![defaults], false))?;
            }
            let mixed = vec![
                creatable(&name, 1, &[]),
                creatable(&format!("{name}-twice"), 1, &[]),
                creatable(&format!("{name}-good"), 1, &[]),
                creatable(&format!("{name}-twice"), 1, &[]),
            ];
            probe.ask("existing, twice and good", version, &create(mixed, false))?;
        }
        Ok(())
    })
}

#[test]
fn create_topics_refused() -> Result<()> {
    compare("create_topics_refused", |probe| {
        let long = "y".repeat(250);
        for name in ["", ".", "..", "slash/", "sp ace", "ümlaut", &long] {
            probe.ask_each(name, |_| create(vec![creatable(name, 1, &[])], false))?;
        }
        let name = "create-refused";
        probe.ask_each("no partitions", |_| {
            create(vec![creatable(name, 0, &[])], false)
        })?;
        probe.ask_each("negative partitions", |_| {
            create(vec![creatable(name, -5, &[])], false)
        })?;
        for factor in [0, 2, -2] {
            probe.ask_each(&format!("replication factor {factor}"), |_| {
                create(
                    vec![creatable(name, 1, &[]).with_replication_factor(factor)],
                    false,
                )
            })?;
        }
        for (key, value) in [
            ("no.such.key", "1"),
            ("retention.ms", "soon"),
            ("retention.ms", "-2"),
            ("retention.ms", ""),
            ("cleanup.policy", "shred"),
            ("cleanup.policy", ""),
            ("compression.type", "rar"),
            ("segment.bytes", "13"),
            ("segment.bytes", "9999999999"),
            ("max.message.bytes", "-1"),
            ("min.insync.replicas", "0"),
            ("message.timestamp.type", "Now"),
            ("preallocate", "maybe"),
            ("min.cleanable.dirty.ratio", "1.5"),
            ("delete.retention.ms", "-1"),
            ("flush.messages", "0"),
            ("remote.storage.enable", "true"),
        ] {
            probe.ask_each(&format!("{key}={value}"), |_| {
                create(vec![creatable(name, 1, &[(key, value)])], false)
            })?;
        }
        probe.ask_each("a null value", |_| {
            let config = CreatableTopicConfig::default()
                .with_name(text("retention.ms"))
                .with_value(None);
            create(
                vec![creatable(name, 1, &[]).with_configs(vec![config])],
                false,
            )
        })?;
        probe.ask_each("a key twice", |_| {
            create(
                vec![creatable(
                    name,
                    1,
                    &[("retention.ms", "1"), ("retention.ms", "2")],
                )],
                true,
            )
        })?;
        probe.ask_each("no topics", |_| create(vec![], false))
    })
}

#[test]
fn create_topics_whose_names_collide() -> Result<()> {
    compare("create_topics_whose_names_collide", |probe| {
        create_topic(probe.wire()?, "collide.with_this", 1, &[])?;
        probe.ask_each("a dot for an underscore", |_| {
            create(vec![creatable("collide.with.this", 1, &[])], false)
        })
    })
}

#[test]
fn create_topics_with_assignments() -> Result<()> {
    compare("create_topics_with_assignments", |probe| {
        let assigned = |name: &str, rows: &[(i32, &[i32])]| {
            let assignments = rows
                .iter()
                .map(|(index, brokers)| {
                    CreatableReplicaAssignment::default()
                        .with_partition_index(*index)
                        .with_broker_ids(brokers.iter().map(|id| BrokerId(*id)).collect())
                })
                .collect();
            creatable(name, -1, &[])
                .with_replication_factor(-1)
                .with_assignments(assignments)
        };
        probe.mask("topics[].configs");
        for version in probe.versions::<CreateTopicsRequest>() {
            let name = format!("assigned-v{version}");
            probe.ask(
                "good",
                version,
                &create(vec![assigned(&name, &[(0, &[1]), (1, &[1])])], false),
            )?;
            for (label, rows) in [
                ("a broker that is not there", &[(0, &[7][..])][..]),
                ("a gap", &[(0, &[1][..]), (2, &[1])]),
                ("a partition twice", &[(0, &[1][..]), (0, &[1])]),
                ("no replicas", &[(0, &[][..])]),
                ("a broker twice", &[(0, &[1, 1][..])]),
                ("a negative partition", &[(-1, &[1][..])]),
            ] {
                probe.ask(
                    label,
                    version,
                    &create(vec![assigned(&format!("{name}-bad"), rows)], false),
                )?;
            }
            let counted = assigned(&format!("{name}-bad"), &[(0, &[1])]).with_num_partitions(1);
            probe.ask(
                "with a partition count",
                version,
                &create(vec![counted], false),
            )?;
            let factor = assigned(&format!("{name}-bad"), &[(0, &[1])]).with_replication_factor(1);
            probe.ask(
                "with a replication factor",
                version,
                &create(vec![factor], false),
            )?;
        }
        Ok(())
    })
}

fn delete(version: i16, topics: &[Topic]) -> DeleteTopicsRequest {
    let request = DeleteTopicsRequest::default().with_timeout_ms(10_000);
    if version >= 6 {
        let by_name = |t: &Topic| DeleteTopicState::default().with_name(Some(t.name()));
        request.with_topics(topics.iter().map(by_name).collect())
    } else {
        request.with_topic_names(topics.iter().map(Topic::name).collect())
    }
}

#[test]
fn delete_topics() -> Result<()> {
    compare("delete_topics", |probe| {
        probe.sort("responses", "name");
        for version in probe.versions::<DeleteTopicsRequest>() {
            let topic = create_topic(probe.wire()?, &format!("delete-v{version}"), 2, &[])?;
            let other = create_topic(probe.wire()?, &format!("delete-v{version}-2"), 1, &[])?;
            let missing = Topic::missing("delete-nowhere");
            probe.ask(
                "two and a missing one",
                version,
                &delete(version, &[topic.clone(), missing, other]),
            )?;
            probe.ask("again", version, &delete(version, &[topic]))?;
            probe.ask("none", version, &delete(version, &[]))?;
            probe.ask(
                "an illegal name",
                version,
                &delete(version, &[Topic::missing("not/a name")]),
            )?;
        }
        Ok(())
    })
}

#[test]
fn delete_topics_by_id() -> Result<()> {
    compare("delete_topics_by_id", |probe| {
        for version in probe
            .versions::<DeleteTopicsRequest>()
            .filter(|version| *version >= 6)
        {
            let topic = create_topic(probe.wire()?, "delete-by-id", 1, &[])?;
            let ask =
                |probe: &mut Probe, label: &str, states: Vec<DeleteTopicState>| -> Result<()> {
                    let request = DeleteTopicsRequest::default()
                        .with_timeout_ms(10_000)
                        .with_topics(states);
                    probe.ask(label, version, &request).map(drop)
                };
            let by_id = DeleteTopicState::default()
                .with_name(None)
                .with_topic_id(topic.id);
            let both = DeleteTopicState::default()
                .with_name(Some(topic.name()))
                .with_topic_id(topic.id);
            let missing = DeleteTopicState::default()
                .with_name(None)
                .with_topic_id(Topic::missing("").id);
            ask(probe, "an id that nobody has", vec![missing])?;
            ask(probe, "id and name", vec![both])?;
            ask(
                probe,
                "neither",
                vec![DeleteTopicState::default().with_name(None)],
            )?;
            ask(
                probe,
                "twice in one request",
                vec![by_id.clone(), by_id.clone()],
            )?;
            ask(probe, "by id", vec![by_id.clone()])?;
            ask(probe, "again", vec![by_id])?;
        }
        Ok(())
    })
}

#[test]
fn create_partitions() -> Result<()> {
    compare("create_partitions", |probe| {
        probe.sort("results", "name");
        let grow = |name: &str, count| {
            CreatePartitionsTopic::default()
                .with_name(topic_name(name))
                .with_count(count)
                .with_assignments(None)
        };
        let request = |topics, validate_only| {
            CreatePartitionsRequest::default()
                .with_topics(topics)
                .with_timeout_ms(10_000)
                .with_validate_only(validate_only)
        };
        for version in probe.versions::<CreatePartitionsRequest>() {
            let name = format!("create-partitions-v{version}");
            create_topic(probe.wire()?, &name, 2, &[])?;
            for count in [2, 1, 0, -1] {
                probe.ask(
                    &format!("from 2 to {count}"),
                    version,
                    &request(vec![grow(&name, count)], false),
                )?;
            }
            probe.ask(
                "only validated",
                version,
                &request(vec![grow(&name, 3)], true),
            )?;
            probe.ask("grown", version, &request(vec![grow(&name, 3)], false))?;
            probe.ask(
                "missing",
                version,
                &request(vec![grow("create-partitions-nowhere", 3)], false),
            )?;
            probe.ask(
                "twice",
                version,
                &request(vec![grow(&name, 5), grow(&name, 6)], false),
            )?;
            for (label, brokers) in [
                ("assigned", vec![vec![1]]),
                ("assigned to nobody", vec![vec![9]]),
                ("too many assignments", vec![vec![1], vec![1], vec![1]]),
                ("an empty assignment", vec![vec![]]),
            ] {
                let assignments = brokers.into_iter().map(|ids: Vec<i32>| {
                    CreatePartitionsAssignment::default()
                        .with_broker_ids(ids.into_iter().map(BrokerId).collect())
                });
                let topic = grow(&name, 4).with_assignments(Some(assignments.collect()));
                probe.ask(label, version, &request(vec![topic], label != "assigned"))?;
            }
        }
        Ok(())
    })
}

#[test]
fn delete_records() -> Result<()> {
    compare("delete_records", |probe| {
        for version in probe.versions::<DeleteRecordsRequest>() {
            let topic = create_topic(probe.wire()?, &format!("delete-records-v{version}"), 1, &[])?;
            for _ in 0..5 {
                produce_ok(
                    probe.wire()?,
                    &topic,
                    0,
                    BatchSpec::small(2, 1_700_000_000_000).build()?,
                )?;
            }
            let mut ask_within =
                |label: &str, topic: &Topic, partition, offset, timeout_ms| -> Result<()> {
                    let row = DeleteRecordsPartition::default()
                        .with_partition_index(partition)
                        .with_offset(offset);
                    let rows = DeleteRecordsTopic::default()
                        .with_name(topic.name())
                        .with_partitions(vec![row]);
                    let request = DeleteRecordsRequest::default()
                        .with_topics(vec![rows])
                        .with_timeout_ms(timeout_ms);
                    probe.ask(label, version, &request).map(drop)
                };
            ask_within("to 2 in no time", &topic, 0, 2, 0)?;
            let mut ask = |label: &str, topic: &Topic, partition, offset| -> Result<()> {
                ask_within(label, topic, partition, offset, 10_000)
            };
            ask("to 3", &topic, 0, 3)?;
            ask("back to 1", &topic, 0, 1)?;
            ask("past the end", &topic, 0, 11)?;
            ask("below zero", &topic, 0, -2)?;
            ask("to the high watermark", &topic, 0, -1)?;
            ask("a partition that is not there", &topic, 7, 1)?;
            ask(
                "a topic that is not there",
                &Topic::missing("delete-records-nowhere"),
                0,
                1,
            )?;
        }
        Ok(())
    })
}
