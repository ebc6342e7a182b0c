//! Requests of Kafka's own protocol that brokers make to each other.

use std::time::Duration;

use bytes::BytesMut;
use odradek_protocol::api::ApiKey;
use odradek_protocol::codec::{DecodeError, DecodeLimits, Decoder, EncodeError};
use odradek_protocol::ids::NodeId;
use odradek_protocol::messages::{ApiVersion, KafkaRequest, KafkaResponse};
use thiserror::Error;

use super::message::Forward;
use super::{PeerError, PeerReply, PeerRequest, Peers};

/// Who a broker is to another.
pub const BROKER_PRINCIPAL: &str = "User:BROKER";

/// Why another broker gave no answer.
#[derive(Debug, Error)]
pub enum BrokerCallError {
    /// It was not reached, or did not answer in time.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// It answered something else.
    #[error("unexpected answer {0:?}")]
    Unexpected(Box<PeerReply>),
    /// The request cannot be written.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The answer cannot be read.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// Asks the broker `to` within `limit`. `api` is the key with the version of request and answer.
///
/// # Errors
/// There is no answer; the request may have been carried out nevertheless.
pub async fn ask_broker<Q: KafkaRequest, S: KafkaResponse>(
    peers: &Peers,
    to: NodeId,
    api: (ApiKey, i16),
    request: &Q,
    limit: Duration,
) -> Result<S, BrokerCallError> {
    let (api_key, version) = (api.0.key(), ApiVersion::new(api.1));
    let mut body = BytesMut::new();
    request.encode_into(&mut body, version)?;
    let request = PeerRequest::Broker(Forward {
        api_key,
        api_version: api.1,
        client_id: None,
        principal: BROKER_PRINCIPAL.to_owned(),
        body: body.freeze(),
    });
    match peers.call_within(to, request, limit).await? {
        PeerReply::Forwarded(forwarded) => {
            let mut limits = DecodeLimits::default();
            limits.max_frame_bytes = forwarded.body.len();
            let mut decoder = Decoder::new(forwarded.body, limits)?;
            Ok(S::decode(&mut decoder, version)?)
        }
        other => Err(BrokerCallError::Unexpected(Box::new(other))),
    }
}
