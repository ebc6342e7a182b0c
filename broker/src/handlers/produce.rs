//! Produce (KIP-98, KIP-467, KIP-951): batches into partitions.
//!
//! Two stages: all batches of the request are checked and enqueued in order, then the connection
//! goes on to its next request while this one's answer waits for the batches to be committed
//! (`acks=all`) or appended (`acks=1`). Every partition waits for itself up to the request's
//! timeout, so that a stuck one does not cost the others their answer.
//!
//! Versions 0 to 2 are advertised and refused, for the sake of old clients: see `api`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use odradek_protocol::batch::{BatchError, BatchOrigin};
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{NodeId, Offset, PartitionIndex, TimestampMs, TopicId};
use odradek_protocol::message;
use odradek_protocol::messages::produce_request::TopicProduceData;
use odradek_protocol::messages::produce_response::{
    BatchIndexAndErrorMessage, LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse,
    TopicProduceResponse,
};
use odradek_protocol::messages::{ProduceRequest, ProduceResponse, StrBytes};
use odradek_raft::AppendOutcome;
use tokio::time::{Instant, timeout_at};

use crate::context::RequestContext;
use crate::fetch_sessions::TopicRef;
use crate::handlers::Reply;
use crate::handlers::leader_hint::{self, BrokerLookup, LeaderHint};
use crate::partition::{AppendOptions, Appending, Partition, PartitionError};
use crate::partitions::{LookupError, PartitionManager};

/// First version whose answer names leaders and their addresses (KIP-951).
const FIRST_LEADER_VERSION: i16 = 10;
/// First version that may carry zstd (KIP-110).
const FIRST_ZSTD_VERSION: i16 = 7;
/// First version that names topics by id (KIP-516).
const FIRST_TOPIC_ID_VERSION: i16 = 13;

/// How often a request that waits looks whether this node may still lead; at the second look that
/// says no it is answered.
const LEASE_LOOK_PERIOD: Duration = Duration::from_millis(500);

/// When a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acks {
    /// Never.
    None,
    /// When the leader has appended.
    Leader,
    /// When a majority has it on stable storage.
    All,
}

impl Acks {
    fn from_wire(acks: i16) -> Option<Self> {
        match acks {
            0 => Some(Self::None),
            1 => Some(Self::Leader),
            -1 => Some(Self::All),
            _ => None,
        }
    }
}

/// One partition of the request after the first stage.
struct Enqueued {
    index: i32,
    stage: Result<(Arc<Partition>, Appending), Refusal>,
}

/// Why a partition's batch was not taken, or was taken and not kept.
struct Refusal {
    cause: Cause,
    /// First readable offset, where the answer carries it.
    log_start: Offset,
}

enum Cause {
    Lookup(LookupError),
    Partition(PartitionError),
    Code(ErrorCode),
}

impl Refusal {
    fn new(cause: Cause) -> Self {
        Self {
            cause,
            log_start: Offset::NONE,
        }
    }

    fn code(code: ErrorCode) -> Self {
        Self::new(Cause::Code(code))
    }

    fn by(partition: &Partition, error: PartitionError) -> Self {
        let log_start = match error.tells_log_start() {
            true => partition.offsets().log_start.offset(),
            false => Offset::NONE,
        };
        Self {
            cause: Cause::Partition(error),
            log_start,
        }
    }

    fn error_code(&self) -> ErrorCode {
        match &self.cause {
            Cause::Lookup(error) => error.error_code(),
            Cause::Partition(error) => error.error_code(),
            Cause::Code(code) => *code,
        }
    }
}

/// Enqueues the batches and answers when they are as safe as the client asked.
pub async fn handle(context: RequestContext, request: ProduceRequest) -> Reply<ProduceResponse> {
    let partitions = Arc::clone(&context.broker.partitions);
    let version = context.api_version;
    produce(
        &partitions,
        leader_hint::brokers_of(context),
        version,
        request,
    )
    .await
}

async fn produce(
    partitions: &Arc<PartitionManager>,
    brokers: BrokerLookup,
    version: i16,
    mut request: ProduceRequest,
) -> Reply<ProduceResponse> {
    keep_last_of_each(&mut request);
    let Some(acks) = Acks::from_wire(request.acks) else {
        return Reply::Now(refuse_all(&request, ErrorCode::InvalidRequiredAcks));
    };
    let deadline = Instant::now() + timeout(request.timeout_ms);
    let transactional = request.transactional_id.is_some();
    let options = AppendOptions {
        origin: BatchOrigin::Client,
        zstd_allowed: version >= FIRST_ZSTD_VERSION,
        wants_append: acks == Acks::Leader,
        wants_in_sync: acks == Acks::All,
        epoch: None,
    };
    let stage = Stage {
        partitions,
        options,
        transactional,
        deadline,
    };
    let mut topics = Vec::with_capacity(request.topic_data.len());
    for topic in request.topic_data {
        let reference = topic_ref(&topic, version);
        let mut enqueued = Vec::with_capacity(topic.partition_data.len());
        for data in topic.partition_data {
            let enqueued_one = stage.enqueue(&reference, data.index, data.records).await;
            enqueued.push(Enqueued {
                index: data.index,
                stage: enqueued_one,
            });
        }
        let id = TopicId::from(topic.topic_id);
        topics.push((topic.name, id, reference, enqueued));
    }
    if acks == Acks::None {
        let refused = topics
            .iter()
            .flat_map(|(_, _, _, enqueued)| enqueued)
            .any(|partition| partition.stage.is_err());
        // The client expects no answer; a closed connection is the only sign there is.
        return if refused { Reply::Close } else { Reply::Silent };
    }
    let partitions = Arc::clone(partitions);
    Reply::Later(Box::pin(async move {
        let topics = topics.into_iter().map(|(name, id, reference, enqueued)| {
            let rows = enqueued
                .into_iter()
                .map(|partition| settle(partition, acks, deadline));
            let rows = join_all(rows);
            let partitions = Arc::clone(&partitions);
            async move {
                let mut rows = rows.await;
                for row in &mut rows {
                    name_leader(row, &partitions, &reference);
                }
                message!(TopicProduceResponse {
                    name,
                    topic_id: id.into(),
                    partition_responses: rows,
                })
            }
        });
        let responses = join_all(topics).await;
        with_endpoints(responses, version, &brokers)
    }))
}

/// The answer, with the addresses of the leaders that it names. Older versions have no room for
/// either (KIP-951): their clients ask for metadata.
fn with_endpoints(
    mut responses: Vec<TopicProduceResponse>,
    version: i16,
    brokers: &BrokerLookup,
) -> ProduceResponse {
    if version >= FIRST_LEADER_VERSION {
        return message!(ProduceResponse {
            node_endpoints: endpoints(&responses, brokers),
            responses,
        });
    }
    for row in responses
        .iter_mut()
        .flat_map(|topic| &mut topic.partition_responses)
    {
        row.current_leader = LeaderIdAndEpoch::default();
    }
    message!(ProduceResponse { responses })
}

/// Of a partition that is named twice the last batch counts, and there is one answer, as in Kafka.
fn keep_last_of_each(request: &mut ProduceRequest) {
    let partitions: usize = request
        .topic_data
        .iter()
        .map(|topic| topic.partition_data.len())
        .sum();
    if partitions < 2 {
        return;
    }
    let mut seen = HashSet::with_capacity(partitions);
    for topic in request.topic_data.iter_mut().rev() {
        let (name, id) = (topic.name.clone(), topic.topic_id);
        let mut kept: Vec<_> = std::mem::take(&mut topic.partition_data)
            .into_iter()
            .rev()
            .filter(|data| seen.insert((name.clone(), id, data.index)))
            .collect();
        kept.reverse();
        topic.partition_data = kept;
    }
}

fn topic_ref(topic: &TopicProduceData, version: i16) -> TopicRef {
    if version >= FIRST_TOPIC_ID_VERSION {
        TopicRef::Id(topic.topic_id.into())
    } else {
        TopicRef::Name(topic.name.as_str().into())
    }
}

fn timeout(timeout_ms: i32) -> Duration {
    Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0))
}

/// What the first stage of all partitions has in common.
struct Stage<'a> {
    partitions: &'a PartitionManager,
    options: AppendOptions,
    transactional: bool,
    deadline: Instant,
}

impl Stage<'_> {
    async fn enqueue(
        &self,
        topic: &TopicRef,
        index: i32,
        records: Option<Bytes>,
    ) -> Result<(Arc<Partition>, Appending), Refusal> {
        let partition = self
            .partitions
            .lookup(topic, PartitionIndex::new(index))
            .map_err(|error| Refusal::new(Cause::Lookup(error)))?;
        let records = records.ok_or_else(|| Refusal::code(ErrorCode::InvalidRecord))?;
        let appending = match partition.append(records.clone(), self.options) {
            Err(PartitionError::UnknownTransaction) if !self.transactional => {
                return Err(Refusal::code(ErrorCode::TransactionalIdAuthorizationFailed));
            }
            // The group holds as much as it may: wait for room rather than refuse, which slows
            // this connection and nobody else.
            Err(PartitionError::Busy) => {
                let appending = partition.append_when_room(records, self.options);
                timeout_at(self.deadline, appending)
                    .await
                    .unwrap_or(Err(PartitionError::Busy))
            }
            other => other,
        };
        match appending {
            Ok(appending) => Ok((partition, appending)),
            Err(error) => Err(Refusal::by(&partition, error)),
        }
    }
}

/// The second stage of one partition.
async fn settle(partition: Enqueued, acks: Acks, deadline: Instant) -> PartitionProduceResponse {
    let index = partition.index;
    let (partition, appending) = match partition.stage {
        Ok(enqueued) => enqueued,
        Err(refusal) => return refused(index, &refusal),
    };
    let log_append_time = appending.log_append_time().unwrap_or(TimestampMs::NONE);
    let outcome = async {
        match acks {
            // That a majority has the batch is true whoever leads by now.
            Acks::All => appending.committed().await,
            Acks::Leader | Acks::None => {
                let outcome = appending.appended().await?;
                partition.require_lease().map(|()| outcome)
            }
        }
    };
    match settled(&partition, outcome, deadline).await {
        Ok(outcome) => message!(PartitionProduceResponse {
            index,
            base_offset: outcome.base_offset.get(),
            log_append_time_ms: log_append_time.get(),
            log_start_offset: outcome.log_start.get(),
        }),
        Err(error) => refused(index, &Refusal::new(Cause::Partition(error))),
    }
}

/// Waits for the outcome of a batch until `deadline`, but no longer than this node may still be the
/// one that brings it about. What becomes of the batch is then not known; a producer that sends it
/// again to another leader with the same sequence is told.
async fn settled(
    partition: &Partition,
    outcome: impl Future<Output = Result<AppendOutcome, PartitionError>>,
    deadline: Instant,
) -> Result<AppendOutcome, PartitionError> {
    let mut outcome = std::pin::pin!(outcome);
    let mut was_cut_off = false;
    loop {
        let next_look = Instant::now() + LEASE_LOOK_PERIOD;
        if let Ok(outcome) = timeout_at(next_look.min(deadline), outcome.as_mut()).await {
            return outcome;
        }
        if next_look >= deadline {
            return Err(PartitionError::TimedOut);
        }
        let is_cut_off = partition.require_lease().is_err();
        if is_cut_off && was_cut_off {
            return Err(PartitionError::LeaseOver);
        }
        was_cut_off = is_cut_off;
    }
}

/// Tells a client that asked the wrong node who leads (KIP-951).
fn name_leader(
    row: &mut PartitionProduceResponse,
    partitions: &PartitionManager,
    topic: &TopicRef,
) {
    if row.error_code != ErrorCode::NotLeaderOrFollower.code() {
        return;
    }
    if let Some(hint) = LeaderHint::of(partitions, topic, PartitionIndex::new(row.index)) {
        row.current_leader = message!(LeaderIdAndEpoch {
            leader_id: hint.leader.get(),
            leader_epoch: hint.epoch.get(),
        });
    }
}

fn refused(index: i32, refusal: &Refusal) -> PartitionProduceResponse {
    let mut response = message!(PartitionProduceResponse {
        index,
        error_code: refusal.error_code().code(),
        base_offset: Offset::NONE.get(),
        log_append_time_ms: TimestampMs::NONE.get(),
        log_start_offset: refusal.log_start.get(),
    });
    if let Cause::Partition(PartitionError::Batch(error)) = &refusal.cause {
        describe_records(error, &mut response);
    }
    response
}

/// Names the records at fault, so that the client can drop those and keep the rest (KIP-467).
fn describe_records(error: &BatchError, response: &mut PartitionProduceResponse) {
    let faults = error.record_faults();
    if faults.is_empty() {
        return;
    }
    response.record_errors = faults
        .iter()
        .map(|fault| {
            message!(BatchIndexAndErrorMessage {
                batch_index: fault.index,
                batch_index_error_message: Some(StrBytes::from(fault.cause.to_string())),
            })
        })
        .collect();
    response.error_message = Some(StrBytes::from(error.to_string()));
}

/// Addresses of the leaders that the answer names.
fn endpoints(responses: &[TopicProduceResponse], brokers: &BrokerLookup) -> Vec<NodeEndpoint> {
    let leaders = responses
        .iter()
        .flat_map(|topic| &topic.partition_responses)
        .map(|row| NodeId::new(row.current_leader.leader_id));
    leader_hint::named(leaders, brokers)
        .into_iter()
        .map(|broker| {
            message!(NodeEndpoint {
                node_id: broker.id,
                host: broker.host,
                port: broker.port,
                rack: broker.rack,
            })
        })
        .collect()
}

fn refuse_all(request: &ProduceRequest, code: ErrorCode) -> ProduceResponse {
    let responses = request.topic_data.iter().map(|topic| {
        let partitions = topic.partition_data.iter();
        message!(TopicProduceResponse {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            partition_responses: partitions
                .map(|data| refused(data.index, &Refusal::code(code)))
                .collect(),
        })
    });
    message!(ProduceResponse {
        responses: responses.collect(),
    })
}

#[cfg(test)]
mod tests;
