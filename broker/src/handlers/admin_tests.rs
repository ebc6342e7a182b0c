//! The administrative APIs on a whole broker in this process, without a socket in between.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use odradek_protocol::api::{self, ApiKey};
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::CorrelationId;
use odradek_protocol::message;
use odradek_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use odradek_protocol::messages::describe_configs_response::DescribeConfigsResourceResult;
use odradek_protocol::messages::describe_topic_partitions_request::{Cursor, TopicRequest};
use odradek_protocol::messages::metadata_request::MetadataRequestTopic;
use odradek_protocol::messages::{
    AlterConfigsRequest, AlterPartitionReassignmentsRequest, ApiVersionsRequest,
    CreatePartitionsRequest, CreateTopicsRequest, CreateTopicsResponse, DeleteTopicsRequest,
    DescribeClusterRequest, DescribeConfigsRequest, DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest, GetTelemetrySubscriptionsRequest,
    IncrementalAlterConfigsRequest, InitProducerIdRequest, KafkaResponse,
    ListConfigResourcesRequest, MetadataRequest, MetadataResponse, PushTelemetryRequest, StrBytes,
    Uuid, alter_configs_request, create_partitions_request, delete_topics_request,
    describe_configs_request, describe_log_dirs_request, incremental_alter_configs_request,
};
use odradek_protocol::response;
use tempfile::TempDir;

use super::*;
use crate::broker::Broker;
use crate::config::load;
use crate::context::{ConnectionInfo, RequestContext};

/// A broker in a directory of its own.
struct Node {
    broker: Broker,
    dir: TempDir,
}

impl Node {
    async fn start(settings: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self {
            broker: start_in(dir.path(), settings).await,
            dir,
        }
    }

    /// Stops the broker and starts another one on its data.
    async fn restart(self) -> Self {
        self.broker.stop().await;
        Self {
            broker: start_in(self.dir.path(), &[]).await,
            dir: self.dir,
        }
    }

    fn context(&self, api: ApiKey, api_version: i16) -> RequestContext {
        RequestContext {
            broker: Arc::clone(self.broker.context()),
            connection: Arc::new(ConnectionInfo {
                peer: ([127, 0, 0, 1], 40_000).into(),
                listener_name: "PLAINTEXT".to_owned(),
                advertised_host: "localhost".to_owned(),
                advertised_port: 9_092,
                is_for_controllers: false,
                client_software: std::sync::OnceLock::new(),
            }),
            api_key: api.key(),
            api_version,
            client_id: None,
            received_at: Instant::now(),
        }
    }

    /// The newest version of the API.
    fn newest(&self, api: ApiKey) -> RequestContext {
        let served = api::served_range(api.key()).expect("served");
        self.context(api, served.max)
    }

    async fn create(&self, topics: Vec<CreatableTopic>) -> CreateTopicsResponse {
        let request = message!(CreateTopicsRequest {
            topics,
            timeout_ms: 30_000,
        });
        now(create_topics::handle(self.newest(ApiKey::CreateTopics), request).await)
    }

    async fn metadata(
        &self,
        version: i16,
        names: Option<&[&str]>,
        may_create: bool,
    ) -> MetadataResponse {
        let topic = |name: &&str| {
            message!(MetadataRequestTopic {
                name: Some(StrBytes::from(*name)),
            })
        };
        let request = message!(MetadataRequest {
            topics: names.map(|names| names.iter().map(topic).collect()),
            allow_auto_topic_creation: may_create,
        });
        now(metadata::handle(self.context(ApiKey::Metadata, version), request).await)
    }

    /// Names and codes of the topics of a Metadata answer.
    async fn topics(
        &self,
        version: i16,
        names: Option<&[&str]>,
        may_create: bool,
    ) -> Vec<(String, i16)> {
        let answer = self.metadata(version, names, may_create).await;
        let topics = answer.topics.into_iter();
        topics
            .map(|topic| {
                let name = topic.name.map(StrBytes::into_string);
                (name.unwrap_or_default(), topic.error_code)
            })
            .collect()
    }

    /// Settings of a resource, by key.
    async fn configs(
        &self,
        kind: i8,
        name: &str,
    ) -> BTreeMap<String, DescribeConfigsResourceResult> {
        let request = message!(DescribeConfigsRequest {
            resources: vec![message!(
                describe_configs_request::DescribeConfigsResource {
                    resource_type: kind,
                    resource_name: StrBytes::from(name),
                }
            )],
            include_synonyms: true,
        });
        let answer = describe_configs::handle(self.newest(ApiKey::DescribeConfigs), request).await;
        let [result] = <[_; 1]>::try_from(now(answer).results).expect("one result");
        assert_eq!(result.error_code, 0, "{:?}", result.error_message);
        let configs = result.configs.into_iter();
        configs
            .map(|config| (config.name.as_str().to_owned(), config))
            .collect()
    }

    async fn delete(&self, name: &str) -> i16 {
        let request = message!(DeleteTopicsRequest {
            topics: vec![message!(delete_topics_request::DeleteTopicState {
                name: Some(StrBytes::from(name)),
            })],
            timeout_ms: 30_000,
        });
        let answer = delete_topics::handle(self.newest(ApiKey::DeleteTopics), request).await;
        now(answer).responses[0].error_code
    }
}

async fn start_in(dir: &Path, settings: &[&str]) -> Broker {
    let mut overrides = vec![
        "listeners=PLAINTEXT://127.0.0.1:0".to_owned(),
        format!("log.dirs={}", dir.join("data").display()),
        "offsets.topic.num.partitions=2".to_owned(),
    ];
    overrides.extend(settings.iter().map(|setting| (*setting).to_owned()));
    let loaded = load::load(None, &overrides).expect("settings are right");
    Broker::start(loaded).await.expect("starts")
}

fn now<M>(reply: Reply<M>) -> M {
    match reply {
        Reply::Now(message) => message,
        Reply::Later(_) | Reply::Silent | Reply::Close => panic!("not answered at once"),
    }
}

fn topic(name: &str, partitions: i32) -> CreatableTopic {
    message!(CreatableTopic {
        name: StrBytes::from(name),
        num_partitions: partitions,
        replication_factor: 1,
    })
}

fn with_config(mut topic: CreatableTopic, key: &str, value: &str) -> CreatableTopic {
    topic.configs.push(message!(CreatableTopicConfig {
        name: StrBytes::from(key),
        value: Some(StrBytes::from(value)),
    }));
    topic
}

fn idempotent() -> InitProducerIdRequest {
    message!(InitProducerIdRequest {
        transactional_id: None,
    })
}

fn everything() -> DescribeLogDirsRequest {
    message!(DescribeLogDirsRequest { topics: None })
}

fn code(code: ErrorCode) -> i16 {
    code.code()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_created_topic_is_led_when_its_creation_is_answered_and_outlives_a_restart() {
    let node = Node::start(&[]).await;
    let created = node
        .create(vec![with_config(topic("a", 5), "retention.ms", "1000")])
        .await;
    let created = &created.topics[0];
    assert_eq!(created.error_code, 0);
    assert_eq!((created.num_partitions, created.replication_factor), (5, 1));
    let configs = created.configs.as_ref().expect("described");
    let retention = configs
        .iter()
        .find(|config| config.name == StrBytes::from("retention.ms"));
    let retention = retention.expect("described");
    assert_eq!(retention.value, Some(StrBytes::from("1000")));
    assert_eq!(retention.config_source, 1);
    let topic_id = created.topic_id;

    let answer = node.metadata(12, Some(&["a"]), false).await;
    assert_eq!(answer.brokers[0].port, 9_092);
    let seen = &answer.topics[0];
    assert_eq!((seen.error_code, seen.topic_id), (0, topic_id));
    assert!(seen.partitions.iter().all(|partition| {
        partition.error_code == 0 && partition.leader_id == 1 && partition.isr_nodes == [1]
    }));

    let node = node.restart().await;
    let answer = node.metadata(12, None, false).await;
    assert_eq!(answer.topics.len(), 1);
    assert_eq!(answer.topics[0].topic_id, topic_id);
    let configs = node.configs(2, "a").await;
    assert_eq!(configs["retention.ms"].value, Some(StrBytes::from("1000")));
    node.broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_request_creates_what_it_can_and_answers_each_name_for_itself() {
    let node = Node::start(&[]).await;
    node.create(vec![topic("exists", 1)]).await;
    let answer = node
        .create(vec![
            topic("exists", 1),
            topic("twice", 1),
            topic("good", 1),
            topic("twice", 1),
            topic("..", 1),
            with_config(topic("odd", 1), "no.such", "1"),
        ])
        .await;
    let codes: Vec<_> = answer
        .topics
        .iter()
        .map(|topic| (topic.name.as_str(), topic.error_code))
        .collect();
    assert_eq!(
        codes,
        [
            ("exists", code(ErrorCode::TopicAlreadyExists)),
            ("good", 0),
            ("..", code(ErrorCode::InvalidTopicException)),
            ("odd", code(ErrorCode::InvalidConfig)),
            ("twice", code(ErrorCode::InvalidRequest)),
        ]
    );
    assert_eq!(node.topics(12, None, true).await.len(), 2);
    node.broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_of_all_topics_makes_none_and_an_empty_list_asks_for_none() {
    let node = Node::start(&[]).await;
    node.create(vec![topic("a", 1)]).await;
    assert_eq!(node.topics(12, None, true).await, [("a".to_owned(), 0)]);
    assert_eq!(node.topics(0, Some(&[]), true).await, [("a".to_owned(), 0)]);
    assert!(node.topics(1, Some(&[]), true).await.is_empty());
    node.broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_is_made_at_its_first_mention_only_if_client_and_broker_allow_it() {
    let unknown = code(ErrorCode::UnknownTopicOrPartition);
    let node = Node::start(&["num.partitions=3"]).await;
    let first = node.topics(12, Some(&["auto", "a b"]), true).await;
    let invalid = code(ErrorCode::InvalidTopicException);
    assert_eq!(
        first,
        [("auto".to_owned(), unknown), ("a b".to_owned(), invalid)]
    );
    let made = node.metadata(12, Some(&["auto"]), true).await;
    assert_eq!(made.topics[0].error_code, 0);
    assert_eq!(made.topics[0].partitions.len(), 3);
    for _ in 0..2 {
        let refused = node.topics(12, Some(&["never"]), false).await;
        assert_eq!(refused, [("never".to_owned(), unknown)]);
    }
    node.broker.stop().await;

    let node = Node::start(&["auto.create.topics.enable=false"]).await;
    for _ in 0..2 {
        let refused = node.topics(12, Some(&["never"]), true).await;
        assert_eq!(refused, [("never".to_owned(), unknown)]);
    }
    node.broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_made_again_under_its_name_is_another_topic() {
    let node = Node::start(&[]).await;
    let first = node.create(vec![topic("a", 1)]).await.topics[0].topic_id;
    assert_eq!(node.delete("a").await, 0);
    assert_eq!(
        node.delete("a").await,
        code(ErrorCode::UnknownTopicOrPartition)
    );
    let second = node.create(vec![topic("a", 1)]).await.topics[0].topic_id;
    assert_ne!(first, second);
    let by_id = |topic_id: Uuid| {
        message!(MetadataRequest {
            topics: Some(vec![message!(MetadataRequestTopic { topic_id })]),
        })
    };
    let context = || node.context(ApiKey::Metadata, 12);
    let old = now(metadata::handle(context(), by_id(first)).await);
    assert_eq!(old.topics[0].error_code, code(ErrorCode::UnknownTopicId));
    let new = now(metadata::handle(context(), by_id(second)).await);
    assert_eq!(new.topics[0].name, Some(StrBytes::from("a")));
    node.broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_topics_are_not_deleted_they_stay() {
    let node = Node::start(&["delete.topic.enable=false"]).await;
    node.create(vec![topic("a", 1)]).await;
    assert_eq!(
        node.delete("a").await,
        code(ErrorCode::TopicDeletionDisabled)
    );
    assert_eq!(node.topics(12, None, false).await.len(), 1);
    node.broker.stop().await;
}

fn set(kind: i8, name: &str, key: &str, value: &str) -> IncrementalAlterConfigsRequest {
    message!(IncrementalAlterConfigsRequest {
        resources: vec![message!(
            incremental_alter_configs_request::AlterConfigsResource {
                resource_type: kind,
                resource_name: StrBytes::from(name),
                configs: vec![message!(
                    incremental_alter_configs_request::AlterableConfig {
                        name: StrBytes::from(key),
                        value: Some(StrBytes::from(value)),
                    }
                )],
            }
        )],
    })
}

/// Source, value and synonyms' sources of a setting.
fn origin(config: &DescribeConfigsResourceResult) -> (i8, Option<&str>, Vec<i8>) {
    let synonyms = config.synonyms.iter().map(|synonym| synonym.source);
    let value = config.value.as_ref().map(StrBytes::as_str);
    (config.config_source, value, synonyms.collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_source_of_every_value_is_told_apart_from_the_others() {
    let node = Node::start(&["log.segment.bytes=5000000"]).await;
    node.create(vec![topic("t", 1)]).await;
    let alter = async |request| {
        let context = node.newest(ApiKey::IncrementalAlterConfigs);
        let answer = now(incremental_alter_configs::handle(context, request).await);
        assert_eq!(
            answer.responses[0].error_code, 0,
            "{:?}",
            answer.responses[0]
        );
    };
    let segment_bytes = async || node.configs(2, "t").await["segment.bytes"].clone();
    assert_eq!(
        origin(&segment_bytes().await),
        (4, Some("5000000"), vec![4, 5])
    );
    alter(set(4, "", "log.segment.bytes", "6000000")).await;
    assert_eq!(
        origin(&segment_bytes().await),
        (3, Some("6000000"), vec![3, 4, 5])
    );
    alter(set(4, "1", "log.segment.bytes", "7000000")).await;
    assert_eq!(
        origin(&segment_bytes().await),
        (2, Some("7000000"), vec![2, 3, 4, 5])
    );
    alter(set(2, "t", "segment.bytes", "8000000")).await;
    assert_eq!(
        origin(&segment_bytes().await),
        (1, Some("8000000"), vec![1, 2, 3, 4, 5])
    );
    let untouched = &node.configs(2, "t").await["retention.bytes"];
    assert_eq!(origin(untouched), (5, Some("-1"), vec![5]));
    let broker = node.configs(4, "1").await;
    assert_eq!(
        origin(&broker["log.segment.bytes"]),
        (2, Some("7000000"), vec![2, 3, 4, 5])
    );
    assert!(broker["node.id"].read_only && !broker["log.segment.bytes"].read_only);
    let for_all = node.configs(4, "").await;
    assert_eq!(for_all.len(), 1);
    assert_eq!(
        origin(&for_all["log.segment.bytes"]),
        (3, Some("6000000"), vec![3])
    );
    node.broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_old_alter_configs_lets_what_it_does_not_name_fall_back_to_default() {
    let node = Node::start(&[]).await;
    let wanted = with_config(topic("t", 1), "retention.ms", "5");
    let wanted = with_config(wanted, "cleanup.policy", "compact");
    node.create(vec![with_config(wanted, "max.message.bytes", "100000")])
        .await;
    let request = message!(AlterConfigsRequest {
        resources: vec![message!(alter_configs_request::AlterConfigsResource {
            resource_type: 2,
            resource_name: StrBytes::from("t"),
            configs: vec![message!(alter_configs_request::AlterableConfig {
                name: StrBytes::from("retention.ms"),
                value: Some(StrBytes::from("6")),
            })],
        })],
    });
    let answer = alter_configs::handle(node.newest(ApiKey::AlterConfigs), request).await;
    assert_eq!(now(answer).responses[0].error_code, 0);
    let configs = node.configs(2, "t").await;
    assert_eq!(origin(&configs["retention.ms"]).0, 1);
    assert_eq!(
        origin(&configs["cleanup.policy"]),
        (5, Some("delete"), vec![5])
    );
    assert_eq!(origin(&configs["max.message.bytes"]).0, 5);
    node.broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_request_cannot_have_one_resource_described_any_number_of_times() {
    let node = Node::start(&[]).await;
    let names = ["1", "1", "01", "001", "1"];
    let request = message!(DescribeConfigsRequest {
        resources: names
            .into_iter()
            .map(
                |name| message!(describe_configs_request::DescribeConfigsResource {
                    resource_type: 4,
                    resource_name: StrBytes::from(name),
                })
            )
            .collect(),
    });
    let answer = describe_configs::handle(node.newest(ApiKey::DescribeConfigs), request).await;
    let results = now(answer).results;
    assert_eq!(results.len(), names.len());
    assert_eq!(results[0].error_code, 0);
    for result in &results[1..] {
        assert_eq!(result.error_code, code(ErrorCode::InvalidRequest));
        assert!(result.configs.is_empty());
    }
    node.broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_to_reassign_is_answered_with_an_empty_sentence() {
    let node = Node::start(&[]).await;
    let request = AlterPartitionReassignmentsRequest::default();
    let context = node.newest(ApiKey::AlterPartitionReassignments);
    let answer = now(alter_partition_reassignments::handle(context, request).await);
    assert_eq!(answer.error_code, 0);
    assert_eq!(answer.error_message.as_deref(), Some(""));
    node.broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_are_described_page_by_page() {
    let node = Node::start(&[]).await;
    node.create(vec![topic("a", 2), topic("b", 3)]).await;
    let mut cursor = None;
    let mut pages = Vec::new();
    loop {
        let request = message!(DescribeTopicPartitionsRequest {
            topics: ["b", "a", "zzz"]
                .into_iter()
                .map(|name| message!(TopicRequest {
                    name: StrBytes::from(name)
                }))
                .filter(|topic| cursor
                    .as_ref()
                    .is_none_or(|cursor: &Cursor| { topic.name >= cursor.topic_name }))
                .collect(),
            response_partition_limit: 3,
            cursor: cursor.clone(),
        });
        let context = node.newest(ApiKey::DescribeTopicPartitions);
        let answer = now(describe_topic_partitions::handle(context, request).await);
        pages.push(
            answer
                .topics
                .iter()
                .map(|topic| {
                    let name = topic.name.as_ref().map_or("", |name| name.as_str());
                    let indexes = topic.partitions.iter().map(|it| it.partition_index);
                    (name.to_owned(), indexes.collect::<Vec<_>>())
                })
                .collect::<Vec<_>>(),
        );
        cursor = answer.next_cursor.map(|next| {
            message!(Cursor {
                topic_name: next.topic_name,
                partition_index: next.partition_index,
            })
        });
        if cursor.is_none() {
            break;
        }
    }
    let entry = |name: &str, indexes: &[i32]| (name.to_owned(), indexes.to_vec());
    assert_eq!(
        pages,
        [
            vec![entry("a", &[0, 1]), entry("b", &[0])],
            vec![entry("b", &[1, 2]), entry("zzz", &[])],
        ]
    );
    node.broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_producer_id_is_given_out_twice_even_across_a_restart() {
    let node = Node::start(&[]).await;
    let next = async |node: &Node| {
        let context = node.newest(ApiKey::InitProducerId);
        let answer = init_producer_id::handle(context, idempotent()).await;
        let answer = now(answer);
        assert_eq!((answer.error_code, answer.producer_epoch), (0, 0));
        answer.producer_id
    };
    let mut ids = vec![next(&node).await, next(&node).await];
    let node = node.restart().await;
    ids.push(next(&node).await);
    assert!(ids.is_sorted_by(|one, other| one < other), "{ids:?}");
    node.broker.stop().await;
}

/// Every field that an answer sets must be one that its version has, or the connection would be
/// closed for an answer that cannot be encoded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_can_be_encoded_in_every_served_version() {
    let node = Node::start(&[]).await;
    node.create(vec![topic("t", 2)]).await;
    macro_rules! every_version {
        ($($api:ident $handler:path => $request:expr;)*) => {$(
            let served = api::served_range(ApiKey::$api.key()).expect("served");
            for version in served.min..=served.max {
                let context = node.context(ApiKey::$api, version);
                encode(version, now($handler(context, ($request)(version)).await));
            }
        )*};
    }
    every_version! {
        Metadata metadata::handle => |version| message!(MetadataRequest {
            topics: Some(["t", "unknown", "a b"].into_iter().map(|name| {
                message!(MetadataRequestTopic { name: Some(StrBytes::from(name)) })
            }).collect()),
            allow_auto_topic_creation: false,
            include_topic_authorized_operations: version >= 8,
            include_cluster_authorized_operations: (8..=10).contains(&version),
        });
        Metadata metadata::handle => |_| message!(MetadataRequest {
            topics: Some(vec![message!(MetadataRequestTopic {
                topic_id: Uuid::from_bytes([1; 16]),
            })]),
        });
        DescribeCluster describe_cluster::handle => |_| message!(DescribeClusterRequest {
            include_cluster_authorized_operations: true,
            endpoint_type: 1,
        });
        DescribeCluster describe_cluster::handle => |_| message!(DescribeClusterRequest {
            endpoint_type: 2,
        });
        ApiVersions api_versions::handle => |_| message!(ApiVersionsRequest {
            client_software_name: StrBytes::from("test"),
            client_software_version: StrBytes::from("1"),
        });
        CreateTopics create_topics::handle => |version| message!(CreateTopicsRequest {
            topics: vec![topic(&format!("made-{version}"), 1), topic("t", 1)],
            timeout_ms: 30_000,
        });
        CreatePartitions create_partitions::handle => |version| message!(CreatePartitionsRequest {
            topics: vec![
                message!(create_partitions_request::CreatePartitionsTopic {
                    name: StrBytes::from("t"),
                    count: 3 + i32::from(version),
                }),
                message!(create_partitions_request::CreatePartitionsTopic {
                    name: StrBytes::from("unknown"),
                    count: 2,
                }),
            ],
            timeout_ms: 30_000,
        });
        DeleteTopics delete_topics::handle => |version: i16| message!(DeleteTopicsRequest {
            topic_names: ["made-2", "unknown"].into_iter().map(StrBytes::from).collect(),
            topics: vec![message!(delete_topics_request::DeleteTopicState {
                name: Some(StrBytes::from(format!("made-{version}"))),
            })],
            timeout_ms: 30_000,
        });
        DescribeConfigs describe_configs::handle => |_| message!(DescribeConfigsRequest {
            resources: [(2, "t"), (2, "unknown"), (4, "1"), (4, ""), (8, "1"), (16, "s"), (32, "g")]
                .into_iter()
                .map(|(kind, name)| message!(describe_configs_request::DescribeConfigsResource {
                    resource_type: kind,
                    resource_name: StrBytes::from(name),
                }))
                .collect(),
            include_synonyms: true,
            include_documentation: true,
        });
        IncrementalAlterConfigs incremental_alter_configs::handle => |_| {
            set(2, "t", "retention.ms", "9000")
        };
        AlterConfigs alter_configs::handle => |_| message!(AlterConfigsRequest {
            resources: vec![message!(alter_configs_request::AlterConfigsResource {
                resource_type: 2,
                resource_name: StrBytes::from("unknown"),
            })],
        });
        ListConfigResources list_config_resources::handle => |_| {
            ListConfigResourcesRequest::default()
        };
        DescribeLogDirs describe_log_dirs::handle => |_| everything();
        DescribeLogDirs describe_log_dirs::handle => |_| message!(DescribeLogDirsRequest {
            topics: Some(vec![message!(describe_log_dirs_request::DescribableLogDirTopic {
                topic: StrBytes::from("t"),
                partitions: vec![0, 99],
            })]),
        });
        DescribeTopicPartitions describe_topic_partitions::handle => |_| {
            DescribeTopicPartitionsRequest::default()
        };
        GetTelemetrySubscriptions get_telemetry_subscriptions::handle => |_| {
            GetTelemetrySubscriptionsRequest::default()
        };
        PushTelemetry push_telemetry::handle => |_| PushTelemetryRequest::default();
        InitProducerId init_producer_id::handle => |_| idempotent();
        InitProducerId init_producer_id::handle => |_| message!(InitProducerIdRequest {
            transactional_id: Some(StrBytes::from("tx")),
        });
    }
    node.broker.stop().await;
}

fn encode<M: KafkaResponse>(version: i16, message: M) {
    let encoded = response::encode_message(version, CorrelationId::new(1), &message);
    if let Err(error) = encoded {
        panic!("{} version {version}: {error}", M::NAME);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_directories_tell_what_is_in_them_and_their_room() {
    let node = Node::start(&[]).await;
    node.create(vec![topic("b", 2), topic("a", 1)]).await;
    let context = node.newest(ApiKey::DescribeLogDirs);
    let answer = describe_log_dirs::handle(context, everything()).await;
    let answer = now(answer);
    let [directory] = &answer.results[..] else {
        panic!("one directory");
    };
    assert!(Path::new(directory.log_dir.as_str()).is_absolute());
    assert!(0 < directory.usable_bytes && directory.usable_bytes <= directory.total_bytes);
    let topics: Vec<_> = directory
        .topics
        .iter()
        .map(|topic| (topic.name.as_str(), topic.partitions.len()))
        .collect();
    assert_eq!(topics, [("a", 1), ("b", 2)]);
    node.broker.stop().await;
}
