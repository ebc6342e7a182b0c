//! Keys of the metrics that clients push (KIP-714).

use super::key::ConfigKind::Int;
use super::key::Importance::Low;
use super::key::{InvalidValue, KeySpec};
use super::values::Layers;
use crate::telemetry::TelemetryLimits;
use crate::telemetry::clients::Bounds;

pub(super) static TELEMETRY: &[KeySpec] = &[
    KeySpec::new("telemetry.max.bytes", Int)
        .default("1048576")
        .at_least(1)
        .importance(Low)
        .doc(
            "Largest push of metrics by a client, as it comes and once it is expanded. Pushes are decoded one \
             at a time, which takes up to some thirty times as much memory.",
        ),
    KeySpec::new("odradek.telemetry.max.clients", Int)
        .default("4096")
        .at_least(1)
        .doc(
            "Client instances that are remembered. The one that was heard of longest ago makes room for a new \
             one; its metrics are no longer shown, and it is as good as new when it comes again.",
        ),
    KeySpec::new("odradek.telemetry.max.series", Int)
        .default("20000")
        .at_least(0)
        .doc(
            "Series of clients' metrics that are shown on the metrics endpoint, all together. What does not fit \
             is left out and counted.",
        ),
    KeySpec::new("odradek.telemetry.client.max.series", Int)
        .default("1000")
        .at_least(0)
        .doc("Series of one client instance that are shown, and samples of one push that are looked at."),
];

/// Bounds of clients' metrics.
pub(super) fn telemetry_limits(layers: &Layers) -> Result<TelemetryLimits, InvalidValue> {
    Ok(TelemetryLimits {
        max_bytes: layers.required("telemetry.max.bytes")?,
        bounds: Bounds {
            most_clients: layers.required("odradek.telemetry.max.clients")?,
            most_series: layers.required("odradek.telemetry.max.series")?,
            most_series_of_a_client: layers.required("odradek.telemetry.client.max.series")?,
        },
    })
}
