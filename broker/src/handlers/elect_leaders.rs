//! ElectLeaders (KIP-183, KIP-460): the first replicas lead again.
//!
//! The metadata leader asks each partition's leader to hand over, and answers once the metadata says
//! that it has, or the sender's time is up. An unclean election has a partition that has lost most of its
//! voters go on with the replica that has the longest log, whatever `unclean.leader.election.enable`
//! says, as in Kafka; it is answered once that leads, or the time is up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{PartitionIndex, TopicId};
use odradek_protocol::message;
use odradek_protocol::messages::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use odradek_protocol::messages::{ElectLeadersRequest, ElectLeadersResponse, StrBytes};

use super::Reply;
use super::admin_answers::Verdict;
use crate::cluster::duties::ask_to_hand_over;
use crate::cluster::unclean::Electing;
use crate::context::{BrokerContext, RequestContext};
use crate::metadata::controller::elections::{HandOver, elect_preferred};
use crate::metadata::controller::unclean_elections::{NotElected, looks_stuck};
use crate::metadata::image::{MetadataImage, PartitionState};

/// The election of first replicas.
const PREFERRED: i8 = 0;
/// That of whoever is left.
const UNCLEAN: i8 = 1;
/// Version 0 has no other.
const FIRST_TYPED_VERSION: i16 = 1;
/// Partitions that are handed over at a time.
const AT_ONCE: usize = 64;
/// Partitions that one request may name.
const MAX_PARTITIONS: usize = 100_000;

/// What became of a partition.
type Outcome = Result<(), NotElected>;

/// One partition of a request.
struct Asked {
    topic: usize,
    topic_id: Option<TopicId>,
    partition: PartitionIndex,
}

/// Answers ElectLeaders.
pub async fn handle(
    context: RequestContext,
    request: ElectLeadersRequest,
) -> Reply<ElectLeadersResponse> {
    let broker = &context.broker;
    if !broker.metadata.is_leading() {
        return Reply::Now(message!(ElectLeadersResponse {
            error_code: ErrorCode::NotController.code(),
        }));
    }
    let is_preferred = match request.election_type {
        _ if context.api_version < FIRST_TYPED_VERSION => true,
        PREFERRED => true,
        UNCLEAN => false,
        _ => return Reply::Now(refused(&broker.metadata.image(), request)),
    };
    let timeout = u64::try_from(request.timeout_ms).unwrap_or(0);
    let deadline = context.received_at + Duration::from_millis(timeout);
    let image = broker.metadata.image();
    let is_for_all = request.topic_partitions.is_none();
    let (names, asked) = asked(&image, request);
    let outcomes: Vec<(Asked, Outcome)> = futures_util::stream::iter(asked)
        .map(|asked| {
            let image = Arc::clone(&image);
            async move {
                let outcome: Outcome = match asked.topic_id {
                    None => Err(ErrorCode::UnknownTopicOrPartition.into()),
                    Some(id) if is_preferred => {
                        match elect_preferred(&image, id, asked.partition) {
                            Ok(wanted) => match hand_over(broker, wanted, deadline).await {
                                ErrorCode::None => Ok(()),
                                code => Err(code.into()),
                            },
                            Err(code) => Err(code.into()),
                        }
                    }
                    Some(id) => {
                        let electing =
                            elect_unclean(broker, id, asked.partition, deadline, is_for_all);
                        tokio::time::timeout_at(deadline.into(), electing)
                            .await
                            .unwrap_or(Err(ErrorCode::RequestTimedOut.into()))
                    }
                };
                (asked, outcome)
            }
        })
        .buffered(AT_ONCE)
        .collect()
        .await;
    // Who asks for all partitions is not told of those that are as they should be.
    let is_needless = NotElected::Code(ErrorCode::ElectionNotNeeded);
    let rows = outcomes
        .into_iter()
        .filter(|(_, outcome)| !is_for_all || outcome.as_ref().err() != Some(&is_needless))
        .map(|(asked, outcome)| {
            let verdict = match outcome {
                Ok(()) => Verdict::OK,
                Err(error) => Verdict {
                    code: error.code().code(),
                    message: Some(StrBytes::from(error.to_string())),
                },
            };
            (asked, verdict)
        });
    Reply::Now(message!(ElectLeadersResponse {
        replica_election_results: results(names, rows),
    }))
}

/// Topics by `names`, each with its rows: what was asked for, and what became of that.
fn results(
    names: Vec<StrBytes>,
    rows: impl Iterator<Item = (Asked, Verdict)>,
) -> Vec<ReplicaElectionResult> {
    let mut results: Vec<ReplicaElectionResult> = names
        .into_iter()
        .map(|topic| message!(ReplicaElectionResult { topic }))
        .collect();
    for (asked, verdict) in rows {
        if let Some(result) = results.get_mut(asked.topic) {
            let missing = (verdict.code == ErrorCode::UnknownTopicOrPartition.code())
                .then(|| no_such(&result.topic, &asked))
                .map(|words| StrBytes::from(words.as_str()));
            result.partition_result.push(message!(PartitionResult {
                partition_id: asked.partition.get(),
                error_code: verdict.code,
                error_message: missing.or(verdict.message),
            }));
        }
    }
    results
}

/// What Kafka says of a topic or a partition that is not there; its tools print it.
fn no_such(topic: &str, asked: &Asked) -> String {
    match asked.topic_id {
        None => format!("No such topic as {topic}"),
        Some(_) => format!("No such partition as {topic}-{}", asked.partition.get()),
    }
}

/// The answer to an election of no known type.
fn refused(image: &MetadataImage, request: ElectLeadersRequest) -> ElectLeadersResponse {
    let code = ErrorCode::InvalidRequest;
    let reason = format!("Unknown election type {}", request.election_type);
    let (names, asked) = match request.topic_partitions {
        Some(_) => asked(image, request),
        None => (Vec::new(), Vec::new()),
    };
    let rows = asked.into_iter().map(|asked| {
        let verdict = Verdict {
            code: code.code(),
            message: Some(StrBytes::from(reason.as_str())),
        };
        (asked, verdict)
    });
    message!(ElectLeadersResponse {
        error_code: code.code(),
        replica_election_results: results(names, rows),
    })
}

fn asked(image: &MetadataImage, request: ElectLeadersRequest) -> (Vec<StrBytes>, Vec<Asked>) {
    let mut names = Vec::new();
    let mut asked = Vec::new();
    match request.topic_partitions {
        None => {
            for topic in image.topics() {
                asked.extend(topic.indexed().map(|(partition, _)| Asked {
                    topic: names.len(),
                    topic_id: Some(topic.id),
                    partition,
                }));
                names.push(StrBytes::from(&*topic.name));
            }
        }
        Some(topics) => {
            for topic in topics {
                let topic_id = image.topic(&topic.topic).map(|topic| topic.id);
                asked.extend(topic.partitions.into_iter().map(|partition| Asked {
                    topic: names.len(),
                    topic_id,
                    partition: PartitionIndex::new(partition),
                }));
                names.push(topic.topic);
            }
        }
    }
    asked.truncate(MAX_PARTITIONS);
    (names, asked)
}

async fn hand_over(broker: &BrokerContext, wanted: HandOver, deadline: Instant) -> ErrorCode {
    let Some(controllers) = &broker.controllers else {
        return ErrorCode::PreferredLeaderNotAvailable;
    };
    let moved = async {
        let asked = ask_to_hand_over(controllers.peers(), &broker.partitions, wanted).await;
        if let Err(reason) = asked {
            tracing::info!(group = %wanted.group, reason, "leadership is not handed over");
            return ErrorCode::PreferredLeaderNotAvailable;
        }
        let mut images = broker.metadata.subscribe();
        let led = images.wait_for(|image| {
            image
                .topic_by_id(wanted.group.topic_id)
                .and_then(|topic| topic.partition(wanted.group.partition))
                .is_none_or(|state| state.leader == Some(wanted.to))
        });
        match led.await {
            Ok(_) => ErrorCode::None,
            Err(_) => ErrorCode::NotController,
        }
    };
    tokio::time::timeout_at(deadline.into(), moved)
        .await
        .unwrap_or(ErrorCode::RequestTimedOut)
}

async fn elect_unclean(
    broker: &BrokerContext,
    topic_id: TopicId,
    partition: PartitionIndex,
    deadline: Instant,
    is_for_all: bool,
) -> Outcome {
    let image = broker.metadata.image();
    let state = image
        .topic_by_id(topic_id)
        .and_then(|topic| topic.partition(partition));
    let Some(state) = state else {
        return Err(ErrorCode::UnknownTopicOrPartition.into());
    };
    let Some(controllers) = &broker.controllers else {
        // There is nobody else who could have the records.
        return Err(match state.leader {
            Some(_) => ErrorCode::ElectionNotNeeded.into(),
            None => ErrorCode::EligibleLeadersNotAvailable.into(),
        });
    };
    // Who asks for all has those asked that look as if they needed it.
    if is_for_all && !looks_stuck(&image, state) {
        return Err(ErrorCode::ElectionNotNeeded.into());
    }
    let electing = Electing {
        metadata: &broker.metadata,
        peers: controllers.peers(),
        partitions: &broker.partitions,
    };
    electing.elect(topic_id, partition).await?;
    // The election stands in the metadata. Who asked is better off once the partition is led.
    let mut images = broker.metadata.subscribe();
    let led = images.wait_for(|image| {
        let topic = image.topic_by_id(topic_id);
        let state = topic.and_then(|topic| topic.partition(partition));
        state.is_none_or(PartitionState::is_led_in_its_incarnation)
    });
    let soon = deadline.saturating_duration_since(Instant::now()) / 2;
    let _ = tokio::time::timeout(soon, led).await;
    Ok(())
}
