//! DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources and DescribeLogDirs, compared with Kafka.

use std::time::Duration;

use anyhow::Result;
use compat_tests::batches::BatchSpec;
use compat_tests::comparison::compare;
use compat_tests::requests::{creatable, create_topic, produce_ok, topic_name};
use compat_tests::transcript::Probe;
use compat_tests::wire::text;
use kafka_protocol::messages::alter_configs_request::{
    AlterConfigsResource as SetResource, AlterableConfig as SetConfig,
};
use kafka_protocol::messages::alter_replica_log_dirs_request::{
    AlterReplicaLogDir, AlterReplicaLogDirTopic,
};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource as ChangeResource, AlterableConfig as ChangeConfig,
};
use kafka_protocol::messages::{
    AlterConfigsRequest, AlterReplicaLogDirsRequest, CreateTopicsRequest, DescribeConfigsRequest,
    DescribeLogDirsRequest, IncrementalAlterConfigsRequest, ListConfigResourcesRequest,
};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const BROKER_LOGGER: i8 = 8;
const CLIENT_METRICS: i8 = 16;
const GROUP: i8 = 32;

const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

fn describe(resource_type: i8, name: &str, keys: Option<&[&str]>) -> DescribeConfigsRequest {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(resource_type)
        .with_resource_name(text(name))
        .with_configuration_keys(keys.map(|keys| keys.iter().map(text).collect()));
    DescribeConfigsRequest::default()
        .with_resources(vec![resource])
        .with_include_synonyms(true)
}

/// Kafka does not know `write.caching`; it sets `min.insync.replicas` for the cluster as a part of eligible leader
/// replicas; and it has broker keys for tiered storage as synonyms, which there is none of here.
fn leave_out_own_keys(probe: &mut Probe, path: &str) {
    for key in [
        "write.caching",
        "min.insync.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "remote.copy.lag.bytes",
        "remote.copy.lag.ms",
    ] {
        probe.leave_out(path, key);
    }
}

fn sort_configs(probe: &mut Probe) {
    probe.sort("results[].configs", "name");
    leave_out_own_keys(probe, "results[].configs");
}

#[test]
fn describe_configs_of_a_topic() -> Result<()> {
    compare("describe_configs_of_a_topic", |probe| {
        sort_configs(probe);
        create_topic(
            probe.wire()?,
            "describe-configs",
            1,
            &[("retention.ms", "1000"), ("cleanup.policy", "compact")],
        )?;
        probe.ask_each("everything", |_| describe(TOPIC, "describe-configs", None))?;
        probe.ask_each("without synonyms", |_| {
            describe(TOPIC, "describe-configs", None).with_include_synonyms(false)
        })?;
        probe.ask_each("two keys and an unknown one", |_| {
            describe(
                TOPIC,
                "describe-configs",
                Some(&["retention.ms", "segment.bytes", "no.such.key"]),
            )
        })?;
        probe.ask_each("no keys", |_| {
            describe(TOPIC, "describe-configs", Some(&[]))
        })?;
        probe.ask_each("missing", |_| {
            describe(TOPIC, "describe-configs-nowhere", None)
        })?;
        probe.ask_each("an illegal name", |_| describe(TOPIC, "not/a name", None))?;
        probe.ask_each("an empty name", |_| describe(TOPIC, "", None))
    })
}

#[test]
fn create_topics_answers_with_the_configs() -> Result<()> {
    compare("create_topics_answers_with_the_configs", |probe| {
        probe.sort("topics[].configs", "name");
        leave_out_own_keys(probe, "topics[].configs");
        for version in probe.versions::<CreateTopicsRequest>() {
            let topic = creatable(
                &format!("configs-v{version}"),
                1,
                &[("retention.ms", "1000")],
            );
            let request = CreateTopicsRequest::default()
                .with_topics(vec![topic])
                .with_timeout_ms(10_000);
            probe.ask("created", version, &request)?;
        }
        Ok(())
    })
}

#[test]
fn describe_configs_documentation_is_there() -> Result<()> {
    compare("describe_configs_documentation_is_there", |probe| {
        create_topic(probe.wire()?, "describe-configs-docs", 1, &[])?;
        for version in probe
            .versions::<DescribeConfigsRequest>()
            .filter(|version| *version >= 3)
        {
            let request =
                describe(TOPIC, "describe-configs-docs", None).with_include_documentation(true);
            let answer = probe.prepare(version, &request)?;
            // The sentences are Kafka's own and not copied; that there is one for each key is what counts.
            let missing: Vec<String> = answer
                .results
                .iter()
                .flat_map(|result| &result.configs)
                .filter(|config| {
                    config
                        .documentation
                        .as_ref()
                        .is_none_or(|text| text.is_empty())
                })
                .map(|config| config.name.to_string())
                .collect();
            probe.note("keys without documentation", missing)?;
        }
        Ok(())
    })
}

#[test]
fn describe_configs_of_a_broker() -> Result<()> {
    compare("describe_configs_of_a_broker", |probe| {
        sort_configs(probe);
        let keys = [
            "log.retention.ms",
            "log.retention.hours",
            "log.segment.bytes",
            "num.partitions",
            "offsets.topic.num.partitions",
            "message.max.bytes",
            "compression.type",
            "auto.create.topics.enable",
            "log.cleanup.policy",
            "group.initial.rebalance.delay.ms",
            "unclean.leader.election.enable",
            "log.message.timestamp.type",
        ];
        for version in probe.versions::<DescribeConfigsRequest>() {
            probe.ask("some keys", version, &describe(BROKER, "1", Some(&keys)))?;
            probe.ask(
                "the cluster's defaults",
                version,
                &describe(BROKER, "", Some(&keys)),
            )?;
            probe.ask("another broker", version, &describe(BROKER, "7", None))?;
            probe.ask("not a number", version, &describe(BROKER, "one", None))?;
        }
        Ok(())
    })
}

#[test]
fn describe_configs_of_other_resources() -> Result<()> {
    compare("describe_configs_of_other_resources", |probe| {
        for resource_type in [0, 1, 3, 99, -1] {
            probe.ask_each(&format!("resource type {resource_type}"), |_| {
                describe(resource_type, "1", None)
            })?;
        }
        probe.ask_each("a group", |_| {
            describe(GROUP, "describe-configs-group", None)
        })?;
        probe.ask_each("client metrics", |_| {
            describe(CLIENT_METRICS, "describe-configs-metrics", None)
        })?;
        probe.ask_each("no resources", |_| DescribeConfigsRequest::default())
    })
}

fn set_all(resource_type: i8, name: &str, configs: &[(&str, Option<&str>)]) -> AlterConfigsRequest {
    let configs = configs
        .iter()
        .map(|(key, value)| {
            SetConfig::default()
                .with_name(text(key))
                .with_value(value.map(text))
        })
        .collect();
    let resource = SetResource::default()
        .with_resource_type(resource_type)
        .with_resource_name(text(name))
        .with_configs(configs);
    AlterConfigsRequest::default().with_resources(vec![resource])
}

#[test]
fn alter_configs_replaces_everything() -> Result<()> {
    compare("alter_configs_replaces_everything", |probe| {
        sort_configs(probe);
        let keys = ["retention.ms", "max.message.bytes", "cleanup.policy"];
        for version in probe.versions::<AlterConfigsRequest>() {
            let name = format!("alter-configs-v{version}");
            create_topic(
                probe.wire()?,
                &name,
                1,
                &[("retention.ms", "1000"), ("max.message.bytes", "5000")],
            )?;
            let one = || set_all(TOPIC, &name, &[("retention.ms", Some("2000"))]);
            probe.ask("only validated", version, &one().with_validate_only(true))?;
            probe.ask("one of two keys", version, &one())?;
            probe.settle();
            probe.ask("now", 4, &describe(TOPIC, &name, Some(&keys)))?;
            probe.ask(
                "an unknown key",
                version,
                &set_all(TOPIC, &name, &[("no.such.key", Some("1"))]),
            )?;
            probe.ask(
                "a bad value",
                version,
                &set_all(TOPIC, &name, &[("retention.ms", Some("x"))]),
            )?;
            probe.ask(
                "a null value",
                version,
                &set_all(TOPIC, &name, &[("retention.ms", None)]),
            )?;
            let twice = set_all(
                TOPIC,
                &name,
                &[("retention.ms", Some("1")), ("retention.ms", Some("2"))],
            );
            probe.ask("a key twice", version, &twice.with_validate_only(true))?;
            probe.ask("nothing", version, &set_all(TOPIC, &name, &[]))?;
            probe.settle();
            probe.ask("now", 4, &describe(TOPIC, &name, Some(&keys)))?;
            probe.ask(
                "missing",
                version,
                &set_all(TOPIC, "alter-configs-nowhere", &[]),
            )?;
            probe.ask("an unknown type", version, &set_all(99, "x", &[]))?;
        }
        Ok(())
    })
}

fn change(
    resource_type: i8,
    name: &str,
    changes: &[(&str, i8, Option<&str>)],
) -> IncrementalAlterConfigsRequest {
    let configs = changes
        .iter()
        .map(|(key, operation, value)| {
            ChangeConfig::default()
                .with_name(text(key))
                .with_config_operation(*operation)
                .with_value(value.map(text))
        })
        .collect();
    let resource = ChangeResource::default()
        .with_resource_type(resource_type)
        .with_resource_name(text(name))
        .with_configs(configs);
    IncrementalAlterConfigsRequest::default().with_resources(vec![resource])
}

#[test]
fn incremental_alter_configs_of_a_topic() -> Result<()> {
    compare("incremental_alter_configs_of_a_topic", |probe| {
        sort_configs(probe);
        let keys = ["retention.ms", "max.message.bytes", "cleanup.policy"];
        for version in probe.versions::<IncrementalAlterConfigsRequest>() {
            let name = format!("incremental-v{version}");
            create_topic(probe.wire()?, &name, 1, &[("max.message.bytes", "5000")])?;
            for (label, changes) in [
                ("set", &[("retention.ms", SET, Some("2000"))][..]),
                ("append", &[("cleanup.policy", APPEND, Some("compact"))]),
                (
                    "append what is there",
                    &[("cleanup.policy", APPEND, Some("compact"))],
                ),
                ("subtract", &[("cleanup.policy", SUBTRACT, Some("delete"))]),
                (
                    "subtract what is not there",
                    &[("cleanup.policy", SUBTRACT, Some("delete"))],
                ),
                ("append to a number", &[("retention.ms", APPEND, Some("1"))]),
                (
                    "append nonsense",
                    &[("cleanup.policy", APPEND, Some("shred"))],
                ),
                ("delete", &[("retention.ms", DELETE, None)]),
                ("delete what is not set", &[("retention.ms", DELETE, None)]),
                ("delete an unknown key", &[("no.such.key", DELETE, None)]),
                ("an unknown key", &[("no.such.key", SET, Some("1"))]),
                ("a bad value", &[("retention.ms", SET, Some("x"))]),
                ("a null value", &[("retention.ms", SET, None)]),
                ("an unknown operation", &[("retention.ms", 9, Some("1"))]),
                (
                    "a key twice",
                    &[
                        ("retention.ms", SET, Some("1")),
                        ("retention.ms", SET, Some("2")),
                    ],
                ),
                (
                    "good and bad",
                    &[
                        ("retention.ms", SET, Some("3000")),
                        ("segment.bytes", SET, Some("1")),
                    ],
                ),
                ("nothing", &[]),
            ] {
                probe.ask(label, version, &change(TOPIC, &name, changes))?;
                probe.settle();
                probe.ask("now", 4, &describe(TOPIC, &name, Some(&keys)))?;
            }
            let validated = change(TOPIC, &name, &[("retention.ms", SET, Some("4000"))])
                .with_validate_only(true);
            probe.ask("only validated", version, &validated)?;
            probe.settle();
            probe.ask("now", 4, &describe(TOPIC, &name, Some(&keys)))?;
            let missing = change(
                TOPIC,
                "incremental-nowhere",
                &[("retention.ms", SET, Some("1"))],
            );
            probe.ask("missing", version, &missing)?;
            probe.ask(
                "an empty name",
                version,
                &change(TOPIC, "", &[("retention.ms", SET, Some("1"))]),
            )?;
            probe.ask(
                "an unknown type",
                version,
                &change(99, "x", &[("retention.ms", SET, Some("1"))]),
            )?;
            let resource = || change(TOPIC, &name, &[("retention.ms", SET, Some("1"))]).resources;
            let twice = resource().into_iter().chain(resource()).collect();
            let twice = IncrementalAlterConfigsRequest::default().with_resources(twice);
            probe.ask("a resource twice", version, &twice)?;
        }
        Ok(())
    })
}

#[test]
fn incremental_alter_configs_of_brokers() -> Result<()> {
    compare("incremental_alter_configs_of_brokers", |probe| {
        sort_configs(probe);
        // A key that no other comparison looks at, because the two brokers are shared by all.
        let keys = ["log.segment.delete.delay.ms", "message.max.bytes"];
        let key = "log.segment.delete.delay.ms";
        for version in probe.versions::<IncrementalAlterConfigsRequest>() {
            for (label, name, changes) in [
                (
                    "the cluster's default",
                    "",
                    &[(key, SET, Some("50000"))][..],
                ),
                ("one broker", "1", &[(key, SET, Some("40000"))]),
                ("one broker back", "1", &[(key, DELETE, None)]),
                ("the cluster's default back", "", &[(key, DELETE, None)]),
                ("a bad value", "1", &[(key, SET, Some("x"))]),
                (
                    "a key that needs a restart",
                    "1",
                    &[("node.id", SET, Some("9"))],
                ),
                (
                    "a static key",
                    "1",
                    &[("offsets.topic.num.partitions", SET, Some("9"))],
                ),
                ("an unknown key", "1", &[("no.such.key", SET, Some("9"))]),
                ("another broker", "7", &[(key, SET, Some("9"))]),
                ("not a number", "one", &[(key, SET, Some("9"))]),
            ] {
                probe.ask(
                    label,
                    version,
                    &change(BROKER, name, changes).with_validate_only(label == "an unknown key"),
                )?;
                // Kafka applies a change of a broker's configuration some time after it has answered.
                std::thread::sleep(Duration::from_millis(300));
                probe.settle();
                probe.ask("now", 4, &describe(BROKER, "1", Some(&keys)))?;
            }
        }
        Ok(())
    })
}

/// Keys that Kafka can change while it runs, as far as there are such keys here, and some that it cannot.
const DYNAMIC_KEYS: &[&str] = &[
    "compression.type",
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.delete.retention.ms",
    "log.cleaner.enable",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio",
    "log.cleaner.min.compaction.lag.ms",
    "log.cleaner.threads",
    "log.cleanup.policy",
    "log.flush.interval.messages",
    "log.flush.interval.ms",
    "log.index.interval.bytes",
    "log.index.size.max.bytes",
    "log.message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms",
    "log.message.timestamp.type",
    "log.preallocate",
    "log.retention.bytes",
    "log.retention.hours",
    "log.retention.ms",
    "log.roll.jitter.ms",
    "log.roll.ms",
    "log.segment.bytes",
    "log.segment.delete.delay.ms",
    "max.connections",
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
    "max.decompressed.message.bytes",
    "message.max.bytes",
    "node.id",
    "num.partitions",
    "producer.id.expiration.ms",
    "telemetry.max.bytes",
    "transaction.partition.verification.enable",
    "unclean.leader.election.enable",
];

#[test]
fn the_same_keys_of_a_broker_can_be_changed_while_it_runs() -> Result<()> {
    compare(
        "the_same_keys_of_a_broker_can_be_changed_while_it_runs",
        |probe| {
            let answer = probe.prepare(4, &describe(BROKER, "1", Some(DYNAMIC_KEYS)))?;
            let configs = answer.results.iter().flat_map(|result| &result.configs);
            let mut keys: Vec<String> = configs
                .map(|config| format!("{} {}", config.name, config.read_only))
                .collect();
            keys.sort();
            probe.note("read-only or not", keys)
        },
    )
}

#[test]
fn settings_of_compaction_are_changed_while_the_broker_runs() -> Result<()> {
    compare(
        "settings_of_compaction_are_changed_while_the_broker_runs",
        |probe| {
            sort_configs(probe);
            let keys = [
                "log.cleaner.threads",
                "log.cleaner.backoff.ms",
                "log.cleaner.io.max.bytes.per.second",
            ];
            for (label, name, changes) in [
                (
                    "for all",
                    "",
                    &[("log.cleaner.threads", SET, Some("2"))][..],
                ),
                (
                    "for one",
                    "1",
                    &[("log.cleaner.backoff.ms", SET, Some("14000"))],
                ),
                ("for both", "1", &[("log.cleaner.threads", SET, Some("1"))]),
                (
                    "a rate",
                    "1",
                    &[(
                        "log.cleaner.io.max.bytes.per.second",
                        SET,
                        Some("1000000.5"),
                    )],
                ),
                ("no number", "1", &[("log.cleaner.threads", SET, Some("x"))]),
                ("none", "1", &[("log.cleaner.enable", SET, Some("false"))]),
                (
                    "back",
                    "1",
                    &[
                        ("log.cleaner.threads", DELETE, None),
                        ("log.cleaner.backoff.ms", DELETE, None),
                        ("log.cleaner.io.max.bytes.per.second", DELETE, None),
                    ],
                ),
                ("back for all", "", &[("log.cleaner.threads", DELETE, None)]),
            ] {
                probe.ask(label, 1, &change(BROKER, name, changes))?;
                // Kafka applies a change of a broker's configuration some time after it has answered.
                std::thread::sleep(Duration::from_millis(300));
                probe.settle();
                probe.ask(
                    &format!("{label}, now"),
                    4,
                    &describe(BROKER, "1", Some(&keys)),
                )?;
                probe.ask(
                    &format!("{label}, for all"),
                    4,
                    &describe(BROKER, "", Some(&keys)),
                )?;
            }
            Ok(())
        },
    )
}

#[test]
fn incremental_alter_configs_of_loggers() -> Result<()> {
    compare("incremental_alter_configs_of_loggers", |probe| {
        let root = || describe(BROKER_LOGGER, "1", Some(&["root"]));
        for version in probe.versions::<IncrementalAlterConfigsRequest>() {
            for (label, name, changes) in [
                ("another level", "1", &[("root", SET, Some("ERROR"))][..]),
                ("back", "1", &[("root", SET, Some("WARN"))]),
                ("in small letters", "1", &[("root", SET, Some("info"))]),
                ("no level", "1", &[("root", SET, Some("LOUD"))]),
                ("off", "1", &[("root", SET, Some("OFF"))]),
                ("nothing", "1", &[("root", SET, None)]),
                ("an unknown logger", "1", &[("no.such", SET, Some("INFO"))]),
                (
                    "an unknown logger beside one that is",
                    "1",
                    &[("root", SET, Some("ERROR")), ("no.such", SET, Some("INFO"))],
                ),
                ("an unknown logger back", "1", &[("no.such", DELETE, None)]),
                ("deleted", "1", &[("root", DELETE, None)]),
                ("appended", "1", &[("root", APPEND, Some("INFO"))]),
                ("subtracted", "1", &[("root", SUBTRACT, Some("INFO"))]),
                ("an unknown operation", "1", &[("root", 9, Some("INFO"))]),
                (
                    "a logger twice",
                    "1",
                    &[("root", SET, Some("INFO")), ("root", SET, Some("WARN"))],
                ),
                ("another node", "7", &[("root", SET, Some("INFO"))]),
                ("no number", "one", &[("root", SET, Some("INFO"))]),
                ("no name", "", &[("root", SET, Some("INFO"))]),
            ] {
                probe.ask(label, version, &change(BROKER_LOGGER, name, changes))?;
                probe.ask(&format!("{label}, now"), 4, &root())?;
            }
            let validated = change(BROKER_LOGGER, "1", &[("root", SET, Some("ERROR"))]);
            probe.ask(
                "only validated",
                version,
                &validated.with_validate_only(true),
            )?;
            probe.ask("only validated, now", 4, &root())?;
            let both = [
                change(BROKER_LOGGER, "1", &[("root", SET, Some("ERROR"))]),
                change(BROKER, "7", &[("message.max.bytes", SET, Some("9"))]),
                change(BROKER_LOGGER, "7", &[("root", SET, Some("WARN"))]),
            ];
            let both = both.into_iter().flat_map(|request| request.resources);
            let both = IncrementalAlterConfigsRequest::default().with_resources(both.collect());
            probe.sort("responses", "resource_type,resource_name,error_code");
            probe.ask("with other resources", version, &both)?;
            probe.ask("with other resources, now", 4, &root())?;
            let back = change(BROKER_LOGGER, "1", &[("root", SET, Some("WARN"))]);
            probe.ask("with other resources, back", version, &back)?;
        }
        let fatal = change(BROKER_LOGGER, "1", &[("root", SET, Some("FATAL"))]);
        probe.ask("fatal", 1, &fatal)?;
        probe.ask("fatal, now", 4, &root())?;
        let back = change(BROKER_LOGGER, "1", &[("root", SET, Some("WARN"))]);
        probe.ask("back", 1, &back)?;
        for version in probe.versions::<AlterConfigsRequest>() {
            let all = set_all(BROKER_LOGGER, "1", &[("root", Some("WARN"))]);
            probe.ask("all at once", version, &all)?;
        }
        Ok(())
    })
}

#[test]
fn list_config_resources() -> Result<()> {
    compare("list_config_resources", |probe| {
        for types in [
            &[BROKER][..],
            &[BROKER_LOGGER],
            &[CLIENT_METRICS],
            &[GROUP],
            &[99],
            &[CLIENT_METRICS, GROUP],
        ] {
            for version in probe.versions::<ListConfigResourcesRequest>() {
                let mut request = ListConfigResourcesRequest::default();
                if version >= 1 {
                    request.resource_types = types.to_vec();
                }
                probe.ask(&format!("{types:?}"), version, &request)?;
            }
        }
        Ok(())
    })
}

#[test]
fn describe_log_dirs() -> Result<()> {
    compare("describe_log_dirs", |probe| {
        probe.mask("results[].log_dir");
        probe.mask("results[].total_bytes");
        probe.mask("results[].usable_bytes");
        let topic = create_topic(probe.wire()?, "describe-log-dirs", 2, &[])?;
        produce_ok(
            probe.wire()?,
            &topic,
            1,
            BatchSpec::small(3, 1_700_000_000_000).build()?,
        )?;
        probe.sort("results[].topics", "name");
        probe.sort("results[].topics[].partitions", "partition_index");
        let asked = |name: &str, partitions: &[i32]| {
            DescribableLogDirTopic::default()
                .with_topic(topic_name(name))
                .with_partitions(partitions.to_vec())
        };
        let request = |topics| DescribeLogDirsRequest::default().with_topics(Some(topics));
        probe.ask_each("one topic", |_| {
            request(vec![asked("describe-log-dirs", &[0, 1])])
        })?;
        probe.ask_each("one partition and one too many", |_| {
            request(vec![asked("describe-log-dirs", &[1, 5])])
        })?;
        probe.ask_each("missing", |_| {
            request(vec![asked("describe-log-dirs-nowhere", &[0])])
        })?;
        probe.ask_each("no topics", |_| request(vec![]))
    })
}

#[test]
fn alter_replica_log_dirs() -> Result<()> {
    compare("alter_replica_log_dirs", |probe| {
        create_topic(probe.wire()?, "alter-log-dirs", 1, &[])?;
        probe.sort("results", "topic_name");
        let into = |path: &str, names: &[&str]| {
            let topic = |name: &&str| {
                AlterReplicaLogDirTopic::default()
                    .with_name(topic_name(name))
                    .with_partitions(vec![0])
            };
            AlterReplicaLogDir::default()
                .with_path(text(path))
                .with_topics(names.iter().map(topic).collect())
        };
        let request = |dirs| AlterReplicaLogDirsRequest::default().with_dirs(dirs);
        probe.ask_each("nothing", |_| request(vec![]))?;
        probe.ask_each("no such directory", |_| {
            request(vec![into(
                "/nowhere",
                &["alter-log-dirs", "alter-log-dirs-nowhere"],
            )])
        })?;
        let long = "t".repeat(240);
        probe.ask_each("too long a name", |_| {
            request(vec![into("/nowhere", &[&long])])
        })
    })
}
