//! Asking whoever leads the metadata, which may be this node.
//!
//! Nobody knows for sure who leads: the nearest guess is asked, an answer that names another is
//! followed, and otherwise the voters are asked in turn until the time is up.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use odradek_protocol::api::ApiKey;
use odradek_protocol::codec::{DecodeError, DecodeLimits, Decoder};
use odradek_protocol::ids::{NodeId, Offset};
use odradek_protocol::messages::{ApiVersion, KafkaRequest, KafkaResponse};
use tokio::time::Instant;

use super::service::ClusterService;
use crate::leading::{MetadataLeader, ReportError};
use crate::metadata::leader_report::LeaderReport;
use crate::metadata::service::{MetadataError, MetadataService};
use crate::peer::kafka_calls::BROKER_PRINCIPAL;
use crate::peer::message::{Forward, LeaderReports};
use crate::peer::{PeerReply, PeerRequest, Peers};

/// Pause before the next node is asked.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How long one node may take.
const ONE_ANSWER: Duration = Duration::from_secs(15);
/// How long a report may take before it is told anew.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a request of this node's own may take.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(15);

/// Nobody who leads the metadata has answered.
#[derive(Debug, Clone, thiserror::Error)]
#[error("no leader of the metadata has answered in time: {last}")]
pub struct Unanswered {
    /// What the last attempt came to.
    pub last: String,
}

/// See the module.
pub struct Controllers {
    node: NodeId,
    peers: Arc<Peers>,
    service: Arc<ClusterService>,
}

impl fmt::Debug for Controllers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controllers").finish_non_exhaustive()
    }
}

impl Controllers {
    /// The voters are those of whom `peers` knows.
    pub fn new(peers: Arc<Peers>, service: Arc<ClusterService>) -> Arc<Self> {
        Arc::new(Self {
            node: peers.local().node_id(),
            peers,
            service,
        })
    }

    /// The way to other nodes.
    pub fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    /// Has the metadata leader answer, within `limit`. A request may be carried out more than once if
    /// an answer is lost on its way.
    pub async fn ask(
        &self,
        request: &PeerRequest,
        limit: Duration,
    ) -> Result<PeerReply, Unanswered> {
        let deadline = Instant::now() + limit;
        let mut last = String::from("nobody is known to lead it");
        let mut hint = self
            .service
            .metadata()
            .and_then(|metadata| metadata.controller());
        let mut turn = usize::try_from(self.node.get()).unwrap_or(0);
        let mut pause = FIRST_PAUSE;
        loop {
            let to = hint.take().or_else(|| {
                turn = turn.wrapping_add(1);
                let voters = self.peers.addresses().voters();
                voters
                    .get(turn % voters.len().max(1))
                    .map(|(node, _)| *node)
            });
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Unanswered { last });
            }
            if let Some(to) = to {
                match self.ask_one(to, request, left.min(ONE_ANSWER)).await {
                    Ok(PeerReply::NotController { leader }) => {
                        last = format!("node {to} does not lead it");
                        if leader.is_some_and(|leader| leader != to) {
                            hint = leader;
                        }
                    }
                    Ok(PeerReply::Busy) => last = format!("node {to} is busy"),
                    Ok(PeerReply::Unsupported) => last = format!("node {to} cannot answer"),
                    Ok(reply) => return Ok(reply),
                    Err(error) => last = error,
                }
            }
            let pause_now = pause.min(deadline.saturating_duration_since(Instant::now()));
            tokio::time::sleep(pause_now).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            if hint.is_none() {
                hint = self
                    .service
                    .metadata()
                    .and_then(|metadata| metadata.controller())
                    .filter(|leader| Some(*leader) != to);
            }
        }
    }

    async fn ask_one(
        &self,
        to: NodeId,
        request: &PeerRequest,
        limit: Duration,
    ) -> Result<PeerReply, String> {
        if to == self.node {
            let own = self.peers.local().as_caller();
            let answer = self.service.answer(&own, request.clone());
            return tokio::time::timeout(limit, answer)
                .await
                .map_err(|_| format!("node {to} did not answer in time"));
        }
        let answer = self.peers.call_within(to, request.clone(), limit);
        answer.await.map_err(|error| error.to_string())
    }

    /// Has the metadata leader answer a request of Kafka's protocol that this node makes itself.
    ///
    /// # Errors
    /// Nobody who leads the metadata has answered, or not so that it can be read.
    pub async fn forward_message<Q: KafkaRequest, S: KafkaResponse>(
        &self,
        api_key: ApiKey,
        version: i16,
        request: &Q,
    ) -> Result<S, MetadataError> {
        let mut body = BytesMut::new();
        request.encode_into(&mut body, ApiVersion::new(version))?;
        let request = PeerRequest::Forward(Forward {
            api_key: api_key.key(),
            api_version: version,
            client_id: None,
            principal: BROKER_PRINCIPAL.to_owned(),
            body: body.freeze(),
        });
        match self.ask(&request, FORWARD_TIMEOUT).await {
            Ok(PeerReply::Forwarded(forwarded)) => {
                if let Some(metadata) = self.metadata() {
                    metadata.wait_for(forwarded.metadata_offset).await?;
                }
                let mut limits = DecodeLimits::default();
                limits.max_frame_bytes = forwarded.body.len();
                let mut decoder = Decoder::new(forwarded.body, limits).map_err(unreadable)?;
                S::decode(&mut decoder, ApiVersion::new(version)).map_err(unreadable)
            }
            Ok(other) => Err(MetadataError::Unreadable(format!("{other:?}").into())),
            Err(error) => {
                tracing::warn!(%error, api = api_key.name(), "the metadata leader is not reached");
                Err(MetadataError::NotController { leader: None })
            }
        }
    }

    /// The metadata of this node, once it is followed.
    pub fn metadata(&self) -> Option<&Arc<MetadataService>> {
        self.service.metadata()
    }
}

fn unreadable(error: DecodeError) -> MetadataError {
    MetadataError::Unreadable(error.to_string().into())
}

impl MetadataLeader for Controllers {
    fn report(&self, reports: Vec<LeaderReport>) -> BoxFuture<'_, Result<Offset, ReportError>> {
        async move {
            let refused = |reason: &str| ReportError(reason.to_owned());
            let image = self
                .metadata()
                .ok_or_else(|| refused("the metadata is not followed yet"))?
                .image();
            let broker_epoch = image
                .broker(self.node)
                .map(|broker| broker.broker_epoch)
                .ok_or_else(|| refused("this broker is not registered"))?;
            let request = PeerRequest::Report(LeaderReports {
                node: self.node,
                broker_epoch,
                reports,
            });
            match self.ask(&request, REPORT_TIMEOUT).await {
                Ok(PeerReply::Committed { metadata_offset }) => Ok(metadata_offset),
                Ok(PeerReply::Refused { reason }) => Err(ReportError(reason)),
                Ok(other) => Err(ReportError(format!("unexpected answer {other:?}"))),
                Err(error) => Err(ReportError(error.to_string())),
            }
        }
        .boxed()
    }
}
