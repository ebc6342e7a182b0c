//! Metadata: brokers, topics and who leads their partitions; and the making of topics that a client
//! names for the first time.
//!
//! A topic that is made because of the request is answered with UNKNOWN_TOPIC_OR_PARTITION, as
//! Kafka does: the client asks again and finds it. The answer waits until the topic is led, since not
//! every client takes a partition without a leader for one that it will have in a moment.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::TopicId;
use odradek_protocol::message;
use odradek_protocol::messages::metadata_request::MetadataRequestTopic;
use odradek_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use odradek_protocol::messages::{MetadataRequest, MetadataResponse, StrBytes, Uuid};

use super::admin_answers::{ALL_CLUSTER_OPERATIONS, ALL_TOPIC_OPERATIONS, OPERATIONS_NOT_ASKED};
use super::{Reply, topic_view};
use crate::context::{BrokerContext, RequestContext};
use crate::groups;
use crate::metadata::controller::create_topics::NewTopic;
use crate::metadata::image::{MetadataImage, Topic};
use crate::metadata::led::{Patience, wait_until_led};
use crate::metadata::{topic_name, topics};

/// First version in which no topic is asked for by an empty list, and all by none.
const FIRST_NULLABLE_VERSION: i16 = 1;
/// First version that finds topics by id.
const FIRST_TOPIC_ID_VERSION: i16 = 12;

/// How long an answer waits for the topics that have been made for it.
const LED_TIMEOUT: Duration = Duration::from_secs(5);

/// What is asked for.
enum Asked {
    All,
    Names(Vec<StrBytes>),
    Ids(Vec<TopicId>),
}

/// Answers Metadata.
pub async fn handle(context: RequestContext, request: MetadataRequest) -> Reply<MetadataResponse> {
    let asked = match asked(request.topics.as_deref(), context.api_version) {
        Ok(asked) => asked,
        Err(refused) => return Reply::Now(refused),
    };
    let broker = &context.broker;
    let image = broker.metadata.image();
    let missing = match &asked {
        Asked::Names(names) => names
            .iter()
            .filter(|name| image.topic(name).is_none() && topic_name::validate(name).is_ok())
            .map(|name| name.as_str().to_owned())
            .collect(),
        Asked::All | Asked::Ids(_) => Vec::new(),
    };
    if request.allow_auto_topic_creation
        && !missing.is_empty()
        && broker.config.load().auto_create_topics
    {
        create_missing(broker, missing).await;
    }
    let view = View {
        broker,
        image: &image,
        operations: if request.include_topic_authorized_operations {
            ALL_TOPIC_OPERATIONS
        } else {
            OPERATIONS_NOT_ASKED
        },
    };
    let topics = match asked {
        Asked::All => image.topics().map(|topic| view.topic(topic)).collect(),
        Asked::Names(names) => names.into_iter().map(|name| view.by_name(name)).collect(),
        Asked::Ids(ids) => ids.into_iter().map(|id| view.by_id(id)).collect(),
    };
    let brokers = topic_view::brokers(&context, &image)
        .into_iter()
        .filter(|broker| !broker.is_fenced)
        .map(|broker| {
            message!(MetadataResponseBroker {
                node_id: broker.id,
                host: broker.host,
                port: broker.port,
                rack: broker.rack,
            })
        })
        .collect();
    Reply::Now(message!(MetadataResponse {
        brokers,
        cluster_id: Some(StrBytes::from(broker.identity.cluster_id.as_str())),
        controller_id: topic_view::controller(broker, &image).get(),
        topics,
        cluster_authorized_operations: if request.include_cluster_authorized_operations {
            ALL_CLUSTER_OPERATIONS
        } else {
            OPERATIONS_NOT_ASKED
        },
    }))
}

/// Reads what is asked for, each topic once. The error is the whole answer.
fn asked(topics: Option<&[MetadataRequestTopic]>, version: i16) -> Result<Asked, MetadataResponse> {
    let topics = match topics {
        None => return Ok(Asked::All),
        Some([]) if version < FIRST_NULLABLE_VERSION => return Ok(Asked::All),
        Some(topics) => topics,
    };
    let is_unsound = |topic: &MetadataRequestTopic| {
        let by_id = !topic.topic_id.is_zero();
        (topic.name.is_none() && !by_id) || (by_id && version < FIRST_TOPIC_ID_VERSION)
    };
    if topics.iter().any(is_unsound) {
        return Err(refused(topics));
    }
    if topics.iter().any(|topic| !topic.topic_id.is_zero()) {
        let mut seen = HashSet::new();
        let ids = topics
            .iter()
            .map(|topic| TopicId::from(topic.topic_id))
            .filter(|id| !id.is_zero() && seen.insert(*id))
            .collect();
        return Ok(Asked::Ids(ids));
    }
    let mut seen = HashSet::new();
    let names = topics
        .iter()
        .filter_map(|topic| topic.name.clone())
        .filter(|name| seen.insert(name.clone()))
        .collect();
    Ok(Asked::Names(names))
}

/// The answer to a request that asks for topics in a way that its version does not have.
fn refused(topics: &[MetadataRequestTopic]) -> MetadataResponse {
    let topics = topics
        .iter()
        .map(|topic| {
            message!(MetadataResponseTopic {
                error_code: ErrorCode::InvalidRequest.code(),
                name: Some(topic.name.clone().unwrap_or_default()),
                topic_id: topic.topic_id,
            })
        })
        .collect();
    message!(MetadataResponse {
        controller_id: -1,
        topics,
        error_code: ErrorCode::InvalidRequest.code(),
    })
}

/// Makes topics with the broker's defaults. Whatever becomes of it, the client asks again.
async fn create_missing(broker: &BrokerContext, names: Vec<String>) {
    if names
        .iter()
        .any(|name| name == topic_name::CONSUMER_OFFSETS)
    {
        // It has settings of its own.
        if let Err(error) = groups::topic::ensure(broker, "").await {
            tracing::debug!(?error, "the offsets topic is not made");
        }
    }
    let wanted = names
        .into_iter()
        .filter(|name| !topic_name::is_internal(name))
        .map(|name| NewTopic {
            name,
            partitions: -1,
            replication_factor: -1,
            ..NewTopic::default()
        })
        .collect();
    let outcomes = match topics::create_anywhere(broker, wanted).await {
        Ok(outcomes) => outcomes,
        Err(error) => return tracing::warn!(%error, "topics cannot be made"),
    };
    let image = broker.metadata.image();
    let patience = Some(Patience::until(broker, Instant::now() + LED_TIMEOUT));
    for (name, code) in outcomes {
        match code {
            ErrorCode::None => tracing::info!(name, "topic made because a client named it"),
            code => tracing::debug!(name, ?code, "topic not made"),
        }
        // Somebody else may have been quicker by so little that it is as new.
        if let Some(topic) = image.topic(&name) {
            let (known, all) = (image.next_offset(), 0..usize::MAX);
            if let Err(code) = wait_until_led(broker, known, topic.id, all, patience).await {
                tracing::debug!(name, ?code, "not led yet");
            }
        }
    }
}

struct View<'a> {
    broker: &'a BrokerContext,
    image: &'a MetadataImage,
    operations: i32,
}

impl View<'_> {
    fn topic(&self, topic: &Topic) -> MetadataResponseTopic {
        let partitions = topic_view::partitions(self.broker, self.image, topic, 0, usize::MAX)
            .into_iter()
            .map(|partition| {
                message!(MetadataResponsePartition {
                    error_code: partition.error.code(),
                    partition_index: partition.index,
                    leader_id: partition.leader,
                    leader_epoch: partition.leader_epoch,
                    replica_nodes: partition.replicas,
                    isr_nodes: partition.isr,
                    offline_replicas: partition.offline,
                })
            })
            .collect();
        message!(MetadataResponseTopic {
            name: Some(StrBytes::from(&*topic.name)),
            topic_id: topic.id.into(),
            is_internal: topic.is_internal(),
            partitions,
            topic_authorized_operations: self.operations,
        })
    }

    fn by_name(&self, name: StrBytes) -> MetadataResponseTopic {
        if let Some(topic) = self.image.topic(&name) {
            return self.topic(topic);
        }
        let error = match topic_name::validate(&name) {
            Ok(()) => ErrorCode::UnknownTopicOrPartition,
            Err(_) => ErrorCode::InvalidTopicException,
        };
        message!(MetadataResponseTopic {
            error_code: error.code(),
            is_internal: topic_name::is_internal(&name),
            name: Some(name),
            topic_id: Uuid::ZERO,
            topic_authorized_operations: self.operations,
        })
    }

    fn by_id(&self, id: TopicId) -> MetadataResponseTopic {
        match self.image.topic_by_id(id) {
            Some(topic) => self.topic(topic),
            None => message!(MetadataResponseTopic {
                error_code: ErrorCode::UnknownTopicId.code(),
                name: None,
                topic_id: id.into(),
                topic_authorized_operations: OPERATIONS_NOT_ASKED,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: Option<&str>, id: u8) -> MetadataRequestTopic {
        message!(MetadataRequestTopic {
            name: name.map(StrBytes::from),
            topic_id: Uuid::from_bytes([id; 16]),
        })
    }

    #[test]
    fn an_empty_list_is_all_topics_in_version_0_and_none_from_1_on() {
        assert!(matches!(asked(Some(&[]), 0), Ok(Asked::All)));
        assert!(matches!(asked(Some(&[]), 1), Ok(Asked::Names(names)) if names.is_empty()));
        assert!(matches!(asked(None, 1), Ok(Asked::All)));
    }

    #[test]
    fn a_name_that_is_asked_for_twice_is_answered_once() {
        let topics = [
            topic(Some("a"), 0),
            topic(Some("b"), 0),
            topic(Some("a"), 0),
        ];
        let Ok(Asked::Names(names)) = asked(Some(&topics), 9) else {
            panic!("names");
        };
        assert_eq!(names, [StrBytes::from("a"), StrBytes::from("b")]);
    }

    #[test]
    fn ids_are_taken_from_version_12_on_and_then_names_are_not_looked_at() {
        let topics = [topic(Some("a"), 0), topic(None, 1)];
        assert!(matches!(asked(Some(&topics), 12), Ok(Asked::Ids(ids)) if ids.len() == 1));
        let refused = asked(Some(&topics[1..]), 11).err().expect("refused");
        assert_eq!(refused.controller_id, -1);
        assert_eq!(
            refused.topics[0].error_code,
            ErrorCode::InvalidRequest.code()
        );
        assert_eq!(refused.topics[0].name, Some(StrBytes::default()));
        assert!(asked(Some(&[topic(None, 0)]), 12).is_err());
    }
}
