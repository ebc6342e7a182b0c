//! Fetch (KIP-74, KIP-227, KIP-320, KIP-392, KIP-516): records out of partitions.
//!
//! The session says which partitions are read, the plan how much of each, the log gives regions of
//! its files. With too little to say, the fetch parks at its partitions and is woken by those that
//! move; only they are looked at again. The answer is always read afresh at the end.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::error::ProtocolError;
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::fetch_response::{
    CurrentLeader, FetchReply, FetchedPartition, FetchedTopic, NodeEndpoint,
};
use odradek_protocol::ids::{CorrelationId, LeaderEpoch, NodeId, Offset, PartitionIndex};
use odradek_protocol::messages::fetch_request::{FetchTopic, ForgottenTopic};
use odradek_protocol::messages::{FetchRequest, StrBytes};
use odradek_protocol::response::Response;
use tokio::time::{Instant, timeout_at};

use crate::context::RequestContext;
use crate::dispatch::Encode;
use crate::fetch_plan::{IsolationLevel, Readiness, ResponseBudget};
use crate::fetch_service::FetchService;
use crate::fetch_sessions::{
    FetchKey, FetchTarget, Outcome, SessionFault, SessionRequest, TopicRef,
};
use crate::handlers::Reply;
use crate::handlers::leader_hint::{self, BrokerLookup, LeaderHint};
use crate::metadata::image::MetadataImage;
use crate::partition::{Partition, Reader, must_not_wait};
use crate::partitions::PartitionManager;
use crate::waiters::FetchWaiter;

/// First version that says where the client is (KIP-392).
const FIRST_RACK_VERSION: i16 = 11;
/// First version that names topics by id (KIP-516).
const FIRST_TOPIC_ID_VERSION: i16 = 13;
/// First version that carries a fetch session (KIP-227).
const FIRST_SESSION_VERSION: i16 = 7;
/// First version that carries the addresses of leaders (KIP-951).
const FIRST_ENDPOINT_VERSION: i16 = 16;

/// How long a walk over partitions may keep a thread of the runtime. In memory a partition takes
/// about a microsecond.
const INLINE_READ_LIMIT: Duration = Duration::from_millis(2);

/// A Fetch response whose records are still in the log's files.
#[derive(Debug)]
pub struct FetchAnswer(FetchReply);

impl Encode for FetchAnswer {
    fn encode(
        self,
        version: i16,
        correlation_id: CorrelationId,
    ) -> Result<Response, ProtocolError> {
        self.0.encode(version, correlation_id)
    }
}

/// Answers with what there is, or waits until there is enough.
pub async fn handle(context: RequestContext, request: FetchRequest) -> Reply<FetchAnswer> {
    let broker = Arc::clone(&context.broker);
    let version = context.api_version;
    let reader = reader_of(&context, &request);
    let mut answer = fetch(&broker.partitions, &broker.fetch, version, request, reader).await;
    if version >= FIRST_ENDPOINT_VERSION {
        name_leaders(&mut answer.0, &broker.partitions, context);
    }
    Reply::Now(answer)
}

/// Who reads, and which brokers are nearer to it than this one (KIP-392).
fn reader_of(context: &RequestContext, request: &FetchRequest) -> Reader {
    let mut reader = Reader {
        takes_followers: context.api_version >= FIRST_RACK_VERSION,
        near: Vec::new(),
    };
    let rack = request.rack_id.as_str();
    if rack.is_empty() || !context.broker.config.load().replication.rack_aware_reads {
        return reader;
    }
    let listener = &context.connection.listener_name;
    let own = context.broker.identity.node_id;
    reader.near = near(&context.broker.partitions.image(), rack, listener, own);
    reader
}

/// Brokers in `rack` that have the listener, unless `own` is one of them.
fn near(image: &MetadataImage, rack: &str, listener: &str, own: NodeId) -> Vec<NodeId> {
    let near: Vec<NodeId> = image
        .brokers()
        .filter(|(_, broker)| !broker.fenced && broker.rack.as_deref() == Some(rack))
        .filter(|(_, broker)| {
            let mut endpoints = broker.endpoints.iter();
            endpoints.any(|endpoint| endpoint.name == listener)
        })
        .map(|(id, _)| id)
        .collect();
    match near.contains(&own) {
        true => Vec::new(),
        false => near,
    }
}

/// Tells a client that knows the wrong leader or epoch who leads (KIP-951).
fn name_leaders(reply: &mut FetchReply, partitions: &PartitionManager, context: RequestContext) {
    let mut leaders = Vec::new();
    for topic in &mut reply.topics {
        for answer in &mut topic.partitions {
            if !matches!(
                answer.error_code,
                ErrorCode::NotLeaderOrFollower | ErrorCode::FencedLeaderEpoch
            ) {
                continue;
            }
            let hint = LeaderHint::of(partitions, &TopicRef::Id(topic.topic_id), answer.index);
            leaders.extend(hint.map(|hint| hint.leader));
            answer.current_leader = hint.map(|hint| CurrentLeader {
                leader_id: hint.leader,
                leader_epoch: hint.epoch,
            });
        }
    }
    if leaders.is_empty() {
        return;
    }
    let brokers: BrokerLookup = leader_hint::brokers_of(context);
    reply.node_endpoints = leader_hint::named(leaders.into_iter(), &brokers)
        .into_iter()
        .map(|broker| NodeEndpoint {
            node_id: NodeId::new(broker.id),
            host: broker.host,
            port: broker.port,
            rack: broker.rack,
        })
        .collect();
}

async fn fetch(
    partitions: &PartitionManager,
    service: &FetchService,
    version: i16,
    request: FetchRequest,
    reader: Reader,
) -> FetchAnswer {
    let wanted = Wanted::new(&request, service);
    let replica_id = request.replica_id.max(request.replica_state.replica_id);
    let session = session_request(request, version);
    let now = std::time::Instant::now();
    let admitted = service.sessions().begin(session, now);
    let fetch = match admitted {
        Ok(fetch) => fetch,
        Err(fault) => return refused(fault),
    };
    let entries = Entries::resolve(&fetch.targets, partitions, replica_id, reader);
    let answers = wanted.answer(&Arc::new(entries), service).await;
    let outcomes: Vec<Outcome> = answers.iter().map(outcome).collect();
    let now = std::time::Instant::now();
    let selection = service
        .sessions()
        .finish(&fetch, &outcomes, now, rand::random);
    let selection = match selection {
        Ok(selection) => selection,
        Err(fault) => return refused(fault),
    };
    service.count_answer(&answers);
    let included = selection.included;
    let is_included = |at: usize| {
        included
            .as_ref()
            .is_none_or(|included| included.get(at).copied().unwrap_or(true))
    };
    let kept = fetch
        .targets
        .iter()
        .zip(answers)
        .enumerate()
        .filter_map(|(at, (target, answer))| is_included(at).then_some((target, answer)));
    FetchAnswer(FetchReply {
        session_id: selection.session_id,
        topics: by_topic(kept),
        ..FetchReply::default()
    })
}

/// The answer to a request that fits no session: it names none.
fn refused(fault: SessionFault) -> FetchAnswer {
    FetchAnswer(FetchReply {
        error_code: match fault {
            SessionFault::NotFound => ErrorCode::FetchSessionIdNotFound,
            SessionFault::InvalidEpoch => ErrorCode::InvalidFetchSessionEpoch,
            SessionFault::TopicIdMismatch => ErrorCode::FetchSessionTopicIdError,
        },
        ..FetchReply::default()
    })
}

fn session_request(request: FetchRequest, version: i16) -> SessionRequest {
    let uses_topic_ids = version >= FIRST_TOPIC_ID_VERSION;
    let targets = last_of_each(
        request
            .topics
            .iter()
            .flat_map(|topic| targets(topic, uses_topic_ids)),
    );
    let forgotten = request
        .forgotten_topics_data
        .iter()
        .flat_map(|topic| forgotten(topic, uses_topic_ids))
        .collect();
    let (session_id, epoch) = match version {
        FIRST_SESSION_VERSION.. => (request.session_id, request.session_epoch),
        _ => (0, -1),
    };
    SessionRequest {
        session_id,
        epoch,
        uses_topic_ids,
        targets,
        forgotten,
    }
}

/// Of a partition that is named twice the last target counts, in the place of the first.
fn last_of_each(targets: impl Iterator<Item = FetchTarget>) -> Vec<FetchTarget> {
    let mut kept: Vec<FetchTarget> = Vec::new();
    let mut places: HashMap<FetchKey, usize> = HashMap::new();
    for target in targets {
        match places.get(&target.key).and_then(|at| kept.get_mut(*at)) {
            Some(earlier) => *earlier = target,
            None => {
                places.insert(target.key.clone(), kept.len());
                kept.push(target);
            }
        }
    }
    kept
}

fn targets(topic: &FetchTopic, uses_topic_ids: bool) -> impl Iterator<Item = FetchTarget> {
    let reference = match uses_topic_ids {
        true => TopicRef::Id(topic.topic_id.into()),
        false => TopicRef::Name(topic.topic.as_str().into()),
    };
    topic.partitions.iter().map(move |partition| FetchTarget {
        key: FetchKey {
            topic: reference.clone(),
            partition: PartitionIndex::new(partition.partition),
        },
        // Any negative epoch is none at all, in a fetch.
        current_leader_epoch: LeaderEpoch::new(partition.current_leader_epoch.max(-1)),
        fetch_offset: Offset::new(partition.fetch_offset),
        last_fetched_epoch: LeaderEpoch::new(partition.last_fetched_epoch),
        max_bytes: usize::try_from(partition.partition_max_bytes).unwrap_or(0),
    })
}

fn forgotten(topic: &ForgottenTopic, uses_topic_ids: bool) -> impl Iterator<Item = FetchKey> {
    let reference = match uses_topic_ids {
        true => TopicRef::Id(topic.topic_id.into()),
        false => TopicRef::Name(topic.topic.as_str().into()),
    };
    topic.partitions.iter().map(move |partition| FetchKey {
        topic: reference.clone(),
        partition: PartitionIndex::new(*partition),
    })
}

/// The partitions of the fetch with what stands behind their names.
struct Entries {
    targets: Arc<[FetchTarget]>,
    partitions: Vec<Result<Arc<Partition>, ErrorCode>>,
    reader: Reader,
}

impl Entries {
    fn resolve(
        targets: &Arc<[FetchTarget]>,
        partitions: &PartitionManager,
        replica_id: i32,
        reader: Reader,
    ) -> Self {
        let partitions = targets.iter().map(|target| {
            if replica_id >= 0 {
                // Replicas follow through Raft: no replica of ours asks this way.
                return Err(ErrorCode::NotLeaderOrFollower);
            }
            partitions
                .lookup(&target.key.topic, target.key.partition)
                .map_err(|error| error.error_code())
        });
        Self {
            partitions: partitions.collect(),
            targets: Arc::clone(targets),
            reader,
        }
    }

    fn len(&self) -> usize {
        self.targets.len()
    }

    fn get(&self, index: usize) -> Option<(&FetchTarget, &Result<Arc<Partition>, ErrorCode>)> {
        Some((self.targets.get(index)?, self.partitions.get(index)?))
    }

    /// Those that are open here, with their indexes.
    fn open(&self) -> impl Iterator<Item = (u32, &Arc<Partition>)> {
        (0..)
            .zip(&self.partitions)
            .filter_map(|(index, partition)| Some((index, partition.as_ref().ok()?)))
    }
}

/// What the request asks for as a whole.
#[derive(Clone, Copy)]
struct Wanted {
    isolation: IsolationLevel,
    max_bytes: usize,
    min_bytes: usize,
    deadline: Option<Instant>,
}

impl Wanted {
    fn new(request: &FetchRequest, service: &FetchService) -> Self {
        let positive = |bytes: i32| usize::try_from(bytes).unwrap_or(0);
        let max_bytes = positive(request.max_bytes).min(service.max_bytes());
        let max_wait = u64::try_from(request.max_wait_ms).unwrap_or(0);
        Self {
            isolation: IsolationLevel::from_wire(request.isolation_level),
            max_bytes,
            min_bytes: positive(request.min_bytes).min(max_bytes),
            deadline: (max_wait > 0).then(|| Instant::now() + Duration::from_millis(max_wait)),
        }
    }

    async fn answer(self, entries: &Arc<Entries>, service: &FetchService) -> Vec<FetchedPartition> {
        let (answers, mut readiness) = self.read(entries).await;
        if readiness.is_satisfied() {
            return answers;
        }
        let Some(deadline) = self.deadline else {
            return answers;
        };
        let Some(_parked) = service.parking().enter(entries.len()) else {
            service.count_unparked();
            return answers;
        };
        let waiter = FetchWaiter::new();
        for (index, partition) in entries.open() {
            partition.waiters().register(&waiter, index);
        }
        // Whatever moved between the first look and the registration is seen here.
        for (index, partition) in entries.open() {
            let answer = answers.get(index as usize);
            if answer.is_none_or(|answer| has_moved(partition, answer, &entries.reader)) {
                self.look_again(index, entries, &mut readiness);
            }
        }
        drop(answers);
        while !readiness.is_satisfied() {
            let Ok(moved) = timeout_at(deadline, waiter.moved()).await else {
                break;
            };
            for index in moved {
                if let Some((_, Ok(partition))) = entries.get(index as usize) {
                    partition.waiters().register(&waiter, index);
                    self.look_again(index, entries, &mut readiness);
                }
            }
        }
        self.read(entries).await.0
    }

    /// Reads all partitions in order within one budget. What takes long waits for a disk, and goes
    /// on on the blocking pool.
    async fn read(self, entries: &Arc<Entries>) -> (Vec<FetchedPartition>, Readiness) {
        let mut reading = Reading::new(self, Arc::clone(entries));
        if !reading.go_on(Some(INLINE_READ_LIMIT)) {
            let (wanted, entries) = (self, Arc::clone(entries));
            let rest = tokio::task::spawn_blocking(move || {
                reading.go_on(None);
                reading
            });
            reading = rest.await.unwrap_or_else(|error| {
                tracing::error!(%error, "a fetch was cut short");
                Reading::failed(wanted, entries)
            });
        }
        (reading.answers, reading.readiness)
    }

    fn look_again(self, index: u32, entries: &Entries, readiness: &mut Readiness) {
        let index = index as usize;
        let Some((target, Ok(partition))) = entries.get(index) else {
            return;
        };
        let max_bytes = target.max_bytes.min(self.max_bytes);
        match partition.readable_bytes(target, self.isolation, max_bytes, &entries.reader) {
            Some(bytes) => readiness.has_bytes(index, bytes),
            None => readiness.answer_now(),
        }
    }
}

/// One walk over the partitions of a fetch.
struct Reading {
    wanted: Wanted,
    entries: Arc<Entries>,
    budget: ResponseBudget,
    readiness: Readiness,
    answers: Vec<FetchedPartition>,
}

impl Reading {
    fn new(wanted: Wanted, entries: Arc<Entries>) -> Self {
        Self {
            budget: ResponseBudget::new(wanted.max_bytes),
            readiness: Readiness::new(entries.len(), wanted.min_bytes),
            answers: Vec::with_capacity(entries.len()),
            wanted,
            entries,
        }
    }

    /// A walk that came to nothing: every partition answers with an error that can be retried.
    fn failed(wanted: Wanted, entries: Arc<Entries>) -> Self {
        let mut reading = Self::new(wanted, entries);
        reading.readiness.answer_now();
        let targets = reading.entries.targets.iter();
        reading.answers = targets
            .map(|target| {
                FetchedPartition::failed(target.key.partition, ErrorCode::KafkaStorageError)
            })
            .collect();
        reading
    }

    /// Goes on with the walk, for about `limit`; whether it has reached the end.
    fn go_on(&mut self, limit: Option<Duration>) -> bool {
        let started = limit.map(|limit| (Instant::now(), limit));
        while let Some((target, partition)) = self.entries.get(self.answers.len()) {
            let answer = match partition {
                Ok(partition) => {
                    let limit = self.budget.next(target.max_bytes);
                    partition.fetch(target, self.wanted.isolation, limit, &self.entries.reader)
                }
                Err(code) => FetchedPartition {
                    aborted_transactions: Some(Vec::new()),
                    ..FetchedPartition::failed(target.key.partition, *code)
                },
            };
            let bytes = answer.records.len();
            self.budget.spend(bytes);
            self.readiness.has_bytes(self.answers.len(), bytes);
            if must_not_wait(&answer) {
                self.readiness.answer_now();
            }
            self.answers.push(answer);
            if started.is_some_and(|(started, limit)| started.elapsed() > limit) {
                return self.answers.len() == self.entries.len();
            }
        }
        true
    }
}

/// Whether the partition's offsets or leadership are not those of `answer` any more.
fn has_moved(partition: &Partition, answer: &FetchedPartition, reader: &Reader) -> bool {
    let offsets = partition.offsets();
    offsets.high_watermark.offset() != answer.high_watermark
        || offsets.last_stable.offset() != answer.last_stable_offset
        || offsets.log_start.offset() != answer.log_start_offset
        || (!reader.takes_followers && partition.require_leader().is_err())
}

fn outcome(answer: &FetchedPartition) -> Outcome {
    Outcome {
        high_watermark: answer.high_watermark.get(),
        log_start: answer.log_start_offset.get(),
        has_records: !answer.records.is_empty(),
        must_send: must_not_wait(answer),
        is_error: answer.error_code != ErrorCode::None,
    }
}

/// Groups neighbours of one topic.
fn by_topic<'a>(
    answers: impl Iterator<Item = (&'a FetchTarget, FetchedPartition)>,
) -> Vec<FetchedTopic> {
    let mut topics: Vec<FetchedTopic> = Vec::new();
    let mut last: Option<&TopicRef> = None;
    for (target, answer) in answers {
        match topics.last_mut() {
            Some(topic) if last == Some(&target.key.topic) => topic.partitions.push(answer),
            _ => topics.push(new_topic(&target.key.topic, answer)),
        }
        last = Some(&target.key.topic);
    }
    topics
}

fn new_topic(topic: &TopicRef, answer: FetchedPartition) -> FetchedTopic {
    let partitions = vec![answer];
    match topic {
        TopicRef::Name(name) => FetchedTopic {
            topic: StrBytes::from(&**name),
            partitions,
            ..FetchedTopic::default()
        },
        TopicRef::Id(id) => FetchedTopic {
            topic_id: *id,
            partitions,
            ..FetchedTopic::default()
        },
    }
}

#[cfg(test)]
mod tests;
