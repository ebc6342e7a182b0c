//! GetTelemetrySubscriptions (KIP-714): which metrics a client is to push, and how often.

use odradek_protocol::compression::Compression;
use odradek_protocol::message;
use odradek_protocol::messages::{
    GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse, StrBytes,
};

use super::Reply;
use super::telemetry_sender::sender;
use crate::context::RequestContext;

/// What a client chooses from, the best first.
const CODECS: [Compression; 4] = [
    Compression::Zstd,
    Compression::Lz4,
    Compression::Gzip,
    Compression::Snappy,
];

/// Answers GetTelemetrySubscriptions.
pub async fn handle(
    context: RequestContext,
    request: GetTelemetrySubscriptionsRequest,
) -> Reply<GetTelemetrySubscriptionsResponse> {
    let telemetry = &context.broker.telemetry;
    let image = context.broker.metadata.image();
    let asked = telemetry.ask(&image, request.client_instance_id, |id| {
        sender(&context, id)
    });
    Reply::Now(match asked {
        Ok((client_instance_id, wanted)) => message!(GetTelemetrySubscriptionsResponse {
            client_instance_id,
            subscription_id: wanted.subscription_id,
            accepted_compression_types: CODECS
                .iter()
                .map(|codec| codec.id().cast_signed())
                .collect(),
            push_interval_ms: i32::try_from(wanted.interval_ms).unwrap_or(i32::MAX),
            telemetry_max_bytes: i32::try_from(telemetry.max_bytes()).unwrap_or(i32::MAX),
            // As Kafka asks for it, whose clients have seen nothing else.
            delta_temporality: true,
            requested_metrics: wanted.metrics.into_iter().map(StrBytes::from).collect(),
        }),
        Err(refusal) => message!(GetTelemetrySubscriptionsResponse {
            error_code: refusal.code().code(),
        }),
    })
}
