//! PushTelemetry (KIP-714): metrics of a client.

use odradek_protocol::message;
use odradek_protocol::messages::{PushTelemetryRequest, PushTelemetryResponse};

use super::Reply;
use super::telemetry_sender::sender;
use crate::context::RequestContext;
use crate::telemetry::service::Push;

/// Answers PushTelemetry.
pub async fn handle(
    context: RequestContext,
    request: PushTelemetryRequest,
) -> Reply<PushTelemetryResponse> {
    let image = context.broker.metadata.image();
    let sender = sender(&context, request.client_instance_id);
    let push = Push {
        client_instance_id: request.client_instance_id,
        subscription_id: request.subscription_id,
        is_last: request.terminating,
        compression_type: request.compression_type,
        metrics: request.metrics,
    };
    let pushed = context.broker.telemetry.push(&image, push, sender).await;
    Reply::Now(message!(PushTelemetryResponse {
        error_code: pushed.map_or_else(|refusal| refusal.code().code(), |()| 0),
    }))
}
