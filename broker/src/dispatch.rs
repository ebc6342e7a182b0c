//! From a frame to the handler of its API and back to bytes.
//!
//! `routes!` is the one table of what is answered: a line an API, naming the handler. The versions
//! come from `odradek_protocol::api`; a test holds the two lists together.
//!
//! A request that cannot be understood has no answer that its sender could understand either, so it
//! closes the connection, as it does with Kafka. The exception is ApiVersions (KIP-511): an unknown
//! version of it is answered in version 0 with the list of what is served.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use odradek_protocol::api::{self, ApiKey};
use odradek_protocol::error::ProtocolError;
use odradek_protocol::header::RequestHeader;
use odradek_protocol::ids::CorrelationId;
use odradek_protocol::messages::{KafkaRequest, KafkaResponse};
use odradek_protocol::response::Response;
use odradek_protocol::{request, response};
use tokio::sync::SetOnce;

use crate::context::{BrokerContext, ConnectionInfo, RequestContext};
use crate::handlers::{self, Reply};
use crate::peer::message::Forward;
use crate::peer::{PeerReply, PeerRequest};

/// A future that the connection owns.
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// What the connection does with a request that a handler has seen.
pub enum Answer {
    /// The outcome is known.
    Now(Outcome),
    /// Start the next request; the outcome follows when its turn comes.
    Later(Pending<Outcome>),
}

/// What a request came to.
pub enum Outcome {
    /// Send this.
    Send(Response),
    /// Send nothing.
    Silent,
    /// Close the connection once earlier replies have left.
    Close,
}

type Route = fn(RequestContext, CorrelationId, Bytes) -> Pending<Result<Answer, ProtocolError>>;

/// One line an API: its key and the handler that answers it.
macro_rules! routes {
    ($($key:ident => $handler:path,)*) => {
        fn route(key: ApiKey) -> Option<Route> {
            match key {
                $(ApiKey::$key => Some(|context, id, body| {
                    Box::pin(answer(context, id, body, $handler))
                }),)*
                _ => None,
            }
        }
    };
}

routes! {
    OffsetCommit => handlers::offset_commit::handle,
    OffsetFetch => handlers::offset_fetch::handle,
    FindCoordinator => handlers::find_coordinator::handle,
    JoinGroup => handlers::join_group::handle,
    Heartbeat => handlers::heartbeat::handle,
    LeaveGroup => handlers::leave_group::handle,
    SyncGroup => handlers::sync_group::handle,
    DescribeGroups => handlers::describe_groups::handle,
    ListGroups => handlers::list_groups::handle,
    DeleteGroups => handlers::delete_groups::handle,
    OffsetDelete => handlers::offset_delete::handle,
    ConsumerGroupHeartbeat => handlers::consumer_group_heartbeat::handle,
    ConsumerGroupDescribe => handlers::consumer_group_describe::handle,
    Produce => handlers::produce::handle,
    Fetch => handlers::fetch::handle,
    ListOffsets => handlers::list_offsets::handle,
    ApiVersions => handlers::api_versions::handle,
    DeleteRecords => handlers::delete_records::handle,
    OffsetForLeaderEpoch => handlers::offset_for_leader_epoch::handle,
    DescribeProducers => handlers::describe_producers::handle,
    Metadata => handlers::metadata::handle,
    CreateTopics => handlers::create_topics::handle,
    DeleteTopics => handlers::delete_topics::handle,
    InitProducerId => handlers::init_producer_id::handle,
    AddPartitionsToTxn => handlers::add_partitions_to_txn::handle,
    AddOffsetsToTxn => handlers::add_offsets_to_txn::handle,
    EndTxn => handlers::end_txn::handle,
    WriteTxnMarkers => handlers::write_txn_markers::handle,
    TxnOffsetCommit => handlers::txn_offset_commit::handle,
    DescribeTransactions => handlers::describe_transactions::handle,
    ListTransactions => handlers::list_transactions::handle,
    DescribeConfigs => handlers::describe_configs::handle,
    AlterConfigs => handlers::alter_configs::handle,
    AlterReplicaLogDirs => handlers::alter_replica_log_dirs::handle,
    DescribeLogDirs => handlers::describe_log_dirs::handle,
    CreatePartitions => handlers::create_partitions::handle,
    IncrementalAlterConfigs => handlers::incremental_alter_configs::handle,
    DescribeCluster => handlers::describe_cluster::handle,
    ListConfigResources => handlers::list_config_resources::handle,
    DescribeTopicPartitions => handlers::describe_topic_partitions::handle,
    ElectLeaders => handlers::elect_leaders::handle,
    AlterPartitionReassignments => handlers::alter_partition_reassignments::handle,
    ListPartitionReassignments => handlers::list_partition_reassignments::handle,
    DescribeQuorum => handlers::describe_quorum::handle,
    UpdateFeatures => handlers::update_features::handle,
    UnregisterBroker => handlers::unregister_broker::handle,
    AddRaftVoter => handlers::add_raft_voter::handle,
    RemoveRaftVoter => handlers::remove_raft_voter::handle,
    GetTelemetrySubscriptions => handlers::get_telemetry_subscriptions::handle,
    PushTelemetry => handlers::push_telemetry::handle,
}

/// A request whose header has been read and whose handler is found but not yet running.
pub struct Request {
    /// The API.
    pub api_key: ApiKey,
    /// Whether it may wait for other clients or for data for longer than a stop of the broker
    /// should take. Such a request is dropped at a stop.
    pub may_wait_long: bool,
    /// Runs the handler. An error closes the connection.
    pub answer: Pending<Result<Answer, ProtocolError>>,
}

/// Finds the handler of a request frame.
pub trait Dispatcher: fmt::Debug + Send + Sync + 'static {
    /// Reads the header of `frame`, which is without its length. An error closes the connection.
    fn accept(
        &self,
        connection: &Arc<ConnectionInfo>,
        frame: Bytes,
        received_at: Instant,
    ) -> Result<Request, ProtocolError>;
}

/// A dispatcher that may not be there yet: other nodes are served from the start on, clients once
/// the broker is ready for them.
#[derive(Debug, Clone, Default)]
pub struct DispatcherSlot(Arc<SetOnce<Arc<dyn Dispatcher>>>);

impl DispatcherSlot {
    /// A slot that is filled from the start.
    pub fn filled(dispatcher: Arc<dyn Dispatcher>) -> Self {
        Self(Arc::new(SetOnce::new_with(Some(dispatcher))))
    }

    /// Has waiting clients served. The first call counts.
    pub fn fill(&self, dispatcher: Arc<dyn Dispatcher>) {
        if self.0.set(dispatcher).is_err() {
            tracing::error!("a second dispatcher is ignored");
        }
    }

    /// The dispatcher, once it is there.
    pub(crate) async fn get(&self) -> &Arc<dyn Dispatcher> {
        self.0.wait().await
    }
}

/// The dispatcher of a broker: the table of this module.
#[derive(Debug)]
pub struct BrokerDispatcher {
    broker: Arc<BrokerContext>,
}

impl BrokerDispatcher {
    /// A dispatcher whose handlers see `broker`.
    pub fn new(broker: Arc<BrokerContext>) -> Self {
        Self { broker }
    }
}

impl Dispatcher for BrokerDispatcher {
    fn accept(
        &self,
        connection: &Arc<ConnectionInfo>,
        mut frame: Bytes,
        received_at: Instant,
    ) -> Result<Request, ProtocolError> {
        let header = RequestHeader::parse(&mut frame)?;
        let (api_key, api_version) = (header.api_key, header.api_version);
        let correlation_id = header.correlation_id;
        let unsupported = || ProtocolError::UnsupportedVersion {
            api: api_key,
            version: api_version,
        };
        let served = api::served_range(api_key.key())
            .filter(|served| !connection.is_for_controllers || served.is_for_controllers())
            .ok_or_else(unsupported)?;
        if !served.answers(api_version) {
            return if api_key == ApiKey::ApiVersions {
                unsupported_api_versions(correlation_id)
            } else {
                Err(unsupported())
            };
        }
        let route = route(api_key).ok_or_else(unsupported)?;
        let context = RequestContext {
            broker: Arc::clone(&self.broker),
            connection: Arc::clone(connection),
            api_key: api_key.key(),
            api_version,
            client_id: header.client_id.map(|id| id.as_str().to_owned()),
            received_at,
        };
        Ok(Request {
            api_key,
            may_wait_long: matches!(
                api_key,
                ApiKey::Fetch | ApiKey::JoinGroup | ApiKey::SyncGroup
            ),
            answer: if is_for_controller(api_key) {
                Box::pin(answer_by_controller(
                    context,
                    correlation_id,
                    api_key,
                    frame,
                    route,
                ))
            } else {
                route(context, correlation_id, frame)
            },
        })
    }
}

/// APIs that change the metadata, which its leader alone does.
const fn is_for_controller(key: ApiKey) -> bool {
    matches!(
        key,
        ApiKey::CreateTopics
            | ApiKey::DeleteTopics
            | ApiKey::CreatePartitions
            | ApiKey::AlterConfigs
            | ApiKey::IncrementalAlterConfigs
            | ApiKey::AlterPartitionReassignments
            | ApiKey::ListPartitionReassignments
            | ApiKey::ElectLeaders
            | ApiKey::DescribeQuorum
            | ApiKey::UpdateFeatures
            | ApiKey::UnregisterBroker
            | ApiKey::AddRaftVoter
            | ApiKey::RemoveRaftVoter
            | ApiKey::AllocateProducerIds
    )
}

/// How long a request looks for the leader of the metadata.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(20);
/// How long an answer waits until this node's own metadata has what it speaks of.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// Answers on the node that leads the metadata, wherever that is.
async fn answer_by_controller(
    context: RequestContext,
    correlation_id: CorrelationId,
    api_key: ApiKey,
    body: Bytes,
    route: Route,
) -> Result<Answer, ProtocolError> {
    let broker = Arc::clone(&context.broker);
    let Some(controllers) = broker
        .controllers
        .as_ref()
        .filter(|_| !broker.metadata.is_leading())
    else {
        return route(context, correlation_id, body).await;
    };
    let version = context.api_version;
    if api_key == ApiKey::IncrementalAlterConfigs
        && handlers::incremental_alter_configs::is_about_log_levels(&body, version)
    {
        return route(context, correlation_id, body).await;
    }
    let request = PeerRequest::Forward(Forward {
        api_key: context.api_key,
        api_version: version,
        client_id: context.client_id.clone(),
        principal: ANONYMOUS.to_owned(),
        body: body.clone(),
    });
    match controllers.ask(&request, FORWARD_TIMEOUT).await {
        Ok(PeerReply::Forwarded(forwarded)) => {
            let known = broker.metadata.wait_for(forwarded.metadata_offset);
            if tokio::time::timeout(CATCH_UP_TIMEOUT, known).await.is_ok() {
                let held = broker
                    .partitions
                    .wait_until_reconciled(forwarded.metadata_offset);
                // Later than that the client asks again.
                let _ = tokio::time::timeout(CATCH_UP_TIMEOUT, held).await;
            }
            let response =
                response::around_body(api_key, version, correlation_id, &forwarded.body)?;
            Ok(Answer::Now(Outcome::Send(response)))
        }
        Ok(other) => {
            tracing::warn!(?other, api = api_key.name(), "not forwarded");
            route(context, correlation_id, body).await
        }
        // The handler says in its own words that this node does not lead the metadata.
        Err(error) => {
            tracing::warn!(%error, api = api_key.name(), "not forwarded");
            route(context, correlation_id, body).await
        }
    }
}

/// Who sends a request as long as nobody has to say who they are.
const ANONYMOUS: &str = "User:ANONYMOUS";

/// Why a forwarded request is not answered.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// It is not for the metadata leader.
    #[error("API {0} is not forwarded")]
    NotForwarded(i16),
    /// It cannot be read, or its answer cannot be written.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The handler gives no answer.
    #[error("no answer")]
    NoAnswer,
}

/// Answers a request that a client sent to another node. Returns the response without its header.
pub async fn answer_forwarded(
    broker: &Arc<BrokerContext>,
    forward: Forward,
) -> Result<Bytes, ForwardError> {
    answer_node(broker, forward, is_for_controller).await
}

/// APIs by which brokers work together for transactions.
const fn is_between_brokers(key: ApiKey) -> bool {
    matches!(key, ApiKey::AddPartitionsToTxn | ApiKey::WriteTxnMarkers)
}

/// Answers a request that another broker makes for itself. Returns the response without its header.
pub async fn answer_broker(
    broker: &Arc<BrokerContext>,
    request: Forward,
) -> Result<Bytes, ForwardError> {
    answer_node(broker, request, is_between_brokers).await
}

async fn answer_node(
    broker: &Arc<BrokerContext>,
    forward: Forward,
    is_allowed: fn(ApiKey) -> bool,
) -> Result<Bytes, ForwardError> {
    let not_forwarded = || ForwardError::NotForwarded(forward.api_key);
    let api_key = ApiKey::from_key(forward.api_key).ok_or_else(not_forwarded)?;
    let (version, id) = (forward.api_version, CorrelationId::new(0));
    let context = RequestContext {
        broker: Arc::clone(broker),
        connection: Arc::new(ConnectionInfo::of_nobody()),
        api_key: forward.api_key,
        api_version: version,
        client_id: forward.client_id.clone(),
        received_at: Instant::now(),
    };
    let answered = if api_key == ApiKey::AllocateProducerIds && is_allowed(api_key) {
        let handler = handlers::allocate_producer_ids::handle;
        answer(context, id, forward.body.clone(), handler).await?
    } else {
        let is_served =
            api::served_range(forward.api_key).is_some_and(|served| served.answers(version));
        let route = route(api_key)
            .filter(|_| is_allowed(api_key) && is_served)
            .ok_or_else(not_forwarded)?;
        route(context, id, forward.body.clone()).await?
    };
    let outcome = match answered {
        Answer::Now(outcome) => outcome,
        Answer::Later(pending) => pending.await,
    };
    let Outcome::Send(response) = outcome else {
        return Err(ForwardError::NoAnswer);
    };
    let frame = response
        .read_to_bytes()
        .map_err(|_| ForwardError::NoAnswer)?;
    response::body_of(api_key, version, frame).ok_or(ForwardError::NoAnswer)
}

fn unsupported_api_versions(correlation_id: CorrelationId) -> Result<Request, ProtocolError> {
    let list = handlers::api_versions::unsupported_version();
    let response = response::encode_message(0, correlation_id, &list)?;
    Ok(Request {
        api_key: ApiKey::ApiVersions,
        may_wait_long: false,
        answer: Box::pin(std::future::ready(Ok(Answer::Now(Outcome::Send(response))))),
    })
}

/// Whether the API has a handler.
pub fn is_routed(key: ApiKey) -> bool {
    route(key).is_some()
}

async fn answer<Q, S, F>(
    context: RequestContext,
    correlation_id: CorrelationId,
    body: Bytes,
    handler: impl FnOnce(RequestContext, Q) -> F,
) -> Result<Answer, ProtocolError>
where
    Q: KafkaRequest,
    S: Encode + 'static,
    F: Future<Output = Reply<S>>,
{
    let version = context.api_version;
    let decoded = request::decode::<Q>(body, version)?;
    let reply = handler(context, decoded).await;
    Ok(match reply {
        Reply::Now(message) => Answer::Now(Outcome::Send(message.encode(version, correlation_id)?)),
        Reply::Later(pending) => Answer::Later(Box::pin(async move {
            match pending.await.encode(version, correlation_id) {
                Ok(response) => Outcome::Send(response),
                Err(error) => {
                    tracing::error!(%error, "a response cannot be encoded");
                    Outcome::Close
                }
            }
        })),
        Reply::Silent => Answer::Now(Outcome::Silent),
        Reply::Close => Answer::Now(Outcome::Close),
    })
}

/// A handler's result that becomes a response frame.
pub trait Encode: Send + Sized {
    /// Encodes the whole frame.
    fn encode(self, version: i16, correlation_id: CorrelationId)
    -> Result<Response, ProtocolError>;
}

impl<M: KafkaResponse + Send> Encode for M {
    fn encode(
        self,
        version: i16,
        correlation_id: CorrelationId,
    ) -> Result<Response, ProtocolError> {
        response::encode_message(version, correlation_id, &self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_what_is_advertised_has_a_handler() {
        for &key in ApiKey::ALL {
            let advertised = api::served_range(key.key()).is_some();
            assert_eq!(is_routed(key), advertised, "{}", key.name());
        }
    }
}
