//! Who sends a request about client metrics.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use odradek_protocol::codec::Uuid;

use crate::context::RequestContext;
use crate::telemetry::clients::Sender;
use crate::telemetry::subscriptions::ClientFacts;

/// What Kafka calls the software of a client that has not said.
const UNKNOWN: &str = "unknown";

/// The sender of a request, whose instance id is `id`.
pub fn sender(context: &RequestContext, id: Uuid) -> Sender {
    let connection = &context.connection;
    let software = connection.client_software.get();
    let said = |said: Option<&String>| said.map_or(UNKNOWN, String::as_str).to_owned();
    Sender {
        facts: ClientFacts {
            instance_id: URL_SAFE_NO_PAD.encode(id.as_bytes()),
            client_id: context.client_id.clone(),
            software_name: said(software.map(|software| &software.name)),
            software_version: said(software.map(|software| &software.version)),
            source_address: connection.peer.ip().to_canonical().to_string(),
            source_port: connection.peer.port().to_string(),
        },
        connection: Arc::downgrade(connection),
    }
}
