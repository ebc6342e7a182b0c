//! Produce (KIP-98, KIP-467, KIP-951): batches into partitions.
//!
//! Two stages: all batches of the request are checked and enqueued in order, then the connection
//! goes on to its next request while this one's answer waits for the batches to be committed
//! (`acks=all`) or appended (`acks=1`). Every partition waits for itself up to the request's
//! timeout, so that a stuck one does not cost the others their answer.
//!
//! Batches of a transaction that is not open in their partition yet are set aside in the first stage,
//! until its coordinator has been asked about all of them at once (KIP-890). From version 12 on they
//! are added to the transaction that way.
//!
//! Versions 0 to 2 are advertised and refused, for the sake of old clients: see `api`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use odradek_protocol::batch::{BatchError, BatchHeader, BatchOrigin, single_batch};
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
use crate::groups::names::TopicName;
use crate::handlers::Reply;
use crate::handlers::leader_hint::{self, BrokerLookup, LeaderHint};
use crate::metadata::topic_name;
use crate::partition::{
    AppendOptions, Appending, Partition, PartitionError, Unverified, Verification,
};
use crate::partitions::{LookupError, PartitionManager};
use crate::txn::asking::{Asking, Question, TxnSupport};
use crate::txn::messages::TopicOfTxn;
use crate::txn::names::TransactionalId;

/// What Kafka's tools that mend internal topics call themselves.
const ADMIN_CLIENT_ID: &str = "__admin_client";
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

/// Who may write where. Coordinators trust what is in their topics, so a record of a client's there would be a
/// commit or the end of a transaction that nobody was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// To all topics but internal ones.
    Client,
    /// To internal ones as well: who names itself as Kafka's tools do that mend them.
    Admin,
}

impl Writer {
    fn of(client_id: Option<&str>) -> Self {
        match client_id {
            Some(ADMIN_CLIENT_ID) => Self::Admin,
            _ => Self::Client,
        }
    }
}

/// Enqueues the batches and answers when they are as safe as the client asked.
pub async fn handle(context: RequestContext, request: ProduceRequest) -> Reply<ProduceResponse> {
    let broker = Arc::clone(&context.broker);
    let version = context.api_version;
    let verifies = broker.config.load().transactions.verifies_partitions;
    let writer = Writer::of(context.client_id.as_deref());
    produce(
        &broker.partitions,
        verifies.then_some(&broker.txn_asking),
        leader_hint::brokers_of(context),
        (version, writer),
        request,
    )
    .await
}

/// `asking` is `None` if batches of transactions are taken without a question.
async fn produce(
    partitions: &Arc<PartitionManager>,
    asking: Option<&Asking>,
    brokers: BrokerLookup,
    (version, writer): (i16, Writer),
    mut request: ProduceRequest,
) -> Reply<ProduceResponse> {
    keep_last_of_each(&mut request);
    let Some(acks) = Acks::from_wire(request.acks) else {
        return Reply::Now(refuse_all(&request, ErrorCode::InvalidRequiredAcks));
    };
    if request.transactional_id.is_none() && has_transactional(&request) {
        let code = ErrorCode::TransactionalIdAuthorizationFailed;
        return match acks {
            Acks::None => Reply::Close,
            Acks::Leader | Acks::All => Reply::Now(refuse_all(&request, code)),
        };
    }
    // Without an id there is nothing of a transaction by now.
    if request.transactional_id.is_some() && has_several_producers(&request, version, partitions) {
        return match acks {
            Acks::None => Reply::Close,
            Acks::Leader | Acks::All => Reply::Now(refuse_several_producers(&request)),
        };
    }
    let deadline = Instant::now() + timeout(request.timeout_ms);
    let support = TxnSupport::of_produce(version);
    let options = AppendOptions {
        origin: BatchOrigin::Client,
        zstd_allowed: version >= FIRST_ZSTD_VERSION,
        wants_append: acks == Acks::Leader,
        wants_in_sync: acks == Acks::All,
        epoch: None,
        verification: match asking {
            Some(_) => Verification::Needed {
                bumps_epoch: support == TxnSupport::AddsPartitions,
            },
            None => Verification::Off,
        },
    };
    let stage = Stage {
        partitions,
        writer,
        options,
        deadline,
    };
    let mut unverified = Vec::new();
    let mut topics = Vec::with_capacity(request.topic_data.len());
    for topic in request.topic_data {
        let reference = topic_ref(&topic, version);
        let mut enqueued = Vec::with_capacity(topic.partition_data.len());
        for data in topic.partition_data {
            let records = data.records.clone();
            let outcome = stage.enqueue(&reference, data.index, data.records).await;
            let (stage, question) = match outcome {
                Ok(taken) => (Ok(taken), None),
                Err(NotTaken::Refused(refusal)) => (Err(refusal), None),
                Err(NotTaken::Unverified(partition, asked)) => {
                    // Until there is an answer.
                    let unknown = Refusal::code(ErrorCode::InvalidTxnState);
                    (Err(unknown), Some((partition, asked)))
                }
            };
            if let Some(((partition, asked), records)) = question.zip(records) {
                unverified.push(SetAside {
                    place: (topics.len(), enqueued.len()),
                    partition,
                    asked,
                    records,
                });
            }
            enqueued.push(Enqueued {
                index: data.index,
                stage,
            });
        }
        let id = TopicId::from(topic.topic_id);
        topics.push((topic.name, id, reference, enqueued));
    }
    if let (Some(asking), Some(id), false) =
        (asking, &request.transactional_id, unverified.is_empty())
    {
        let id = TransactionalId::new(id);
        for (place, outcome) in stage.verify(asking, id, support, unverified).await {
            let row = topics
                .get_mut(place.0)
                .and_then(|(_, _, _, enqueued)| enqueued.get_mut(place.1));
            if let Some(row) = row {
                row.stage = outcome;
            }
        }
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
        let mut references = Vec::with_capacity(topics.len());
        let mut settling = Vec::new();
        let mut responses: Vec<TopicProduceResponse> = Vec::with_capacity(topics.len());
        for (name, id, reference, enqueued) in topics {
            let topic_at = responses.len();
            let rows = enqueued.into_iter().enumerate().map(|(at, row)| {
                let (response, taken) = answer_or_settle(row);
                let taken = taken.map(|taken| ((topic_at, at), taken));
                settling.extend(taken);
                response
            });
            responses.push(message!(TopicProduceResponse {
                partition_responses: rows.collect(),
                name,
                topic_id: id.into(),
            }));
            references.push(reference);
        }
        settle_all(settling, &mut responses, acks, deadline).await;
        for (topic, reference) in responses.iter_mut().zip(&references) {
            for row in &mut topic.partition_responses {
                name_leader(row, &partitions, reference);
            }
        }
        with_endpoints(responses, version, &brokers)
    }))
}

/// A row's answer, if it was not taken; or a row to be filled in, and what it waits for. A request
/// may name any number of partitions that there are not: only what was taken, of which there is no
/// more than there are partitions, gets a future.
fn answer_or_settle(row: Enqueued) -> (PartitionProduceResponse, Option<Taken>) {
    match row.stage {
        Ok(taken) => (
            message!(PartitionProduceResponse {
                index: row.index,
                error_code: ErrorCode::RequestTimedOut.code(),
            }),
            Some(taken),
        ),
        Err(refusal) => (refused(row.index, &refusal), None),
    }
}

/// The second stage of all partitions that were taken.
async fn settle_all(
    taken: Vec<(Place, Taken)>,
    responses: &mut [TopicProduceResponse],
    acks: Acks,
    deadline: Instant,
) {
    let settling = taken
        .into_iter()
        .map(|(place, taken)| async move { (place, settle(taken, acks, deadline).await) });
    for ((topic, row), settled) in join_all(settling).await {
        let row = responses
            .get_mut(topic)
            .and_then(|topic| topic.partition_responses.get_mut(row));
        if let Some(row) = row {
            *row = match settled {
                Ok(kept) => message!(PartitionProduceResponse {
                    index: row.index,
                    base_offset: kept.outcome.base_offset.get(),
                    log_append_time_ms: kept.log_append_time.get(),
                    log_start_offset: kept.outcome.log_start.get(),
                }),
                Err(error) => refused(row.index, &Refusal::new(Cause::Partition(error))),
            };
        }
    }
}

/// A batch that is as safe as the client asked.
struct Kept {
    outcome: AppendOutcome,
    log_append_time: TimestampMs,
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
    writer: Writer,
    options: AppendOptions,
    deadline: Instant,
}

/// Topic and partition of a row, by their places in the request.
type Place = (usize, usize);

type Taken = (Arc<Partition>, Appending);

/// A batch that waits for the answer of a transaction's coordinator.
struct SetAside {
    place: Place,
    partition: Arc<Partition>,
    asked: Unverified,
    records: Bytes,
}

/// Why a batch is not in the log's queue.
enum NotTaken {
    Refused(Refusal),
    /// The coordinator of its transaction has to be asked first.
    Unverified(Arc<Partition>, Unverified),
}

impl From<Refusal> for NotTaken {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Stage<'_> {
    async fn enqueue(
        &self,
        topic: &TopicRef,
        index: i32,
        records: Option<Bytes>,
    ) -> Result<Taken, NotTaken> {
        let partition = self
            .partitions
            .lookup(topic, PartitionIndex::new(index))
            .map_err(|error| Refusal::new(Cause::Lookup(error)))?;
        if self.writer == Writer::Client && topic_name::is_internal(partition.topic()) {
            return Err(Refusal::code(ErrorCode::InvalidTopicException).into());
        }
        let records = records.ok_or_else(|| Refusal::code(ErrorCode::InvalidRecord))?;
        match self.append(&partition, records, self.options).await {
            Ok(appending) => Ok((partition, appending)),
            Err(PartitionError::Unverified(asked)) => Err(NotTaken::Unverified(partition, asked)),
            Err(error) => Err(Refusal::by(&partition, error).into()),
        }
    }

    async fn append(
        &self,
        partition: &Partition,
        records: Bytes,
        options: AppendOptions,
    ) -> Result<Appending, PartitionError> {
        match partition.append(records.clone(), options) {
            // The group holds as much as it may: wait for room rather than refuse, which slows
            // this connection and nobody else.
            Err(PartitionError::Busy) => {
                let appending = partition.append_when_room(records, options);
                timeout_at(self.deadline, appending)
                    .await
                    .unwrap_or(Err(PartitionError::Busy))
            }
            other => other,
        }
    }

    /// Asks the coordinator of the transaction about all batches that were set aside, and enqueues
    /// those that belong to it.
    async fn verify(
        &self,
        asking: &Asking,
        id: TransactionalId,
        support: TxnSupport,
        aside: Vec<SetAside>,
    ) -> Vec<(Place, Result<Taken, Refusal>)> {
        let producer = aside.first().map(|first| first.asked.producer);
        let (Some(producer), true) = (
            producer,
            aside
                .iter()
                .all(|batch| Some(batch.asked.producer) == producer),
        ) else {
            // A topic was made since `has_several_producers`.
            let refused = |batch: SetAside| {
                let code = ErrorCode::InvalidProducerIdMapping;
                (batch.place, Err(Refusal::code(code)))
            };
            return aside.into_iter().map(refused).collect();
        };
        let topics = aside.iter().map(|batch| TopicOfTxn {
            name: TopicName::new(batch.partition.topic()),
            id: batch.partition.topic_id(),
            partitions: vec![batch.partition.index()],
        });
        let question = Question {
            id,
            producer,
            topics: topics.collect(),
            support,
        };
        let answers = asking.ask(question).await.into_iter().flatten();
        let mut outcomes = Vec::with_capacity(aside.len());
        for (batch, answer) in aside.into_iter().zip(answers) {
            let outcome = match answer {
                Err(code) => Err(Refusal::code(verification_code(code))),
                Ok(()) => {
                    let options = AppendOptions {
                        verification: Verification::Done(batch.asked.guard),
                        ..self.options
                    };
                    let appended = self.append(&batch.partition, batch.records, options).await;
                    match appended {
                        Ok(appending) => Ok((batch.partition, appending)),
                        Err(error) => Err(Refusal::by(&batch.partition, error)),
                    }
                }
            };
            outcomes.push((batch.place, outcome));
        }
        outcomes
    }
}

/// What a client is told when the coordinator cannot be asked at present: something after which every
/// client tries again, without looking for another leader first.
fn verification_code(code: ErrorCode) -> ErrorCode {
    match code {
        ErrorCode::ConcurrentTransactions
        | ErrorCode::CoordinatorLoadInProgress
        | ErrorCode::CoordinatorNotAvailable
        | ErrorCode::NotCoordinator => ErrorCode::NotEnoughReplicas,
        other => other,
    }
}

/// Whether a batch says that it is part of a transaction.
fn has_transactional(request: &ProduceRequest) -> bool {
    let mut data = request
        .topic_data
        .iter()
        .flat_map(|topic| &topic.partition_data);
    data.any(|data| {
        data.records.as_ref().is_some_and(|records| {
            BatchHeader::parse(records).is_ok_and(|header| header.is_transactional())
        })
    })
}

/// Whether the batches of transactions, as far as there are partitions for them, are of several producers or of
/// several epochs of one. A transaction has one.
fn has_several_producers(
    request: &ProduceRequest,
    version: i16,
    partitions: &PartitionManager,
) -> bool {
    let mut first = None;
    for topic in &request.topic_data {
        let reference = topic_ref(topic, version);
        for data in &topic.partition_data {
            let Some(Ok(header)) = data.records.as_ref().map(|records| single_batch(records))
            else {
                continue;
            };
            let is_unknown = || {
                let found = partitions.lookup(&reference, PartitionIndex::new(data.index));
                matches!(
                    found,
                    Err(LookupError::UnknownTopicId | LookupError::UnknownTopicOrPartition)
                )
            };
            if !header.is_transactional() || !header.has_producer_id() || is_unknown() {
                continue;
            }
            let producer = (header.producer_id, header.producer_epoch);
            if *first.get_or_insert(producer) != producer {
                return true;
            }
        }
    }
    false
}

fn refuse_several_producers(request: &ProduceRequest) -> ProduceResponse {
    let mut response = refuse_all(request, ErrorCode::InvalidProducerIdMapping);
    let reason = StrBytes::from("Transactional records contained more than one producer ID");
    for row in response
        .responses
        .iter_mut()
        .flat_map(|topic| &mut topic.partition_responses)
    {
        row.error_message = Some(reason.clone());
    }
    response
}

/// The second stage of one partition.
async fn settle(
    (partition, appending): Taken,
    acks: Acks,
    deadline: Instant,
) -> Result<Kept, PartitionError> {
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
    let outcome = settled(&partition, outcome, deadline).await?;
    Ok(Kept {
        outcome,
        log_append_time,
    })
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
    if matches!(refusal.cause, Cause::Code(ErrorCode::InvalidTxnState)) {
        let reason = "The partition is not part of the transaction";
        response.error_message = Some(StrBytes::from(reason));
    }
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
