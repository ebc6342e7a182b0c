//! Metrics about clients' metrics, declared in one place: `odradek_<subsystem>_<noun>_<unit>[_total]`.
//!
//! None is labelled by client: what clients push themselves is in `series`.

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

use super::clients::Refusal;

const CLIENTS: &str = "odradek_telemetry_clients";
const SERIES: &str = "odradek_telemetry_series";
const PUSHES: &str = "odradek_telemetry_pushes_total";
const RECEIVED: &str = "odradek_telemetry_received_bytes_total";
const LEFT_OUT: &str = "odradek_telemetry_samples_left_out_total";

/// Tells the recorder what each metric means.
pub fn describe() {
    describe_gauge!(
        CLIENTS,
        "Client instances that ask for subscriptions or push metrics."
    );
    describe_gauge!(SERIES, "Series of clients' metrics that are shown.");
    describe_counter!(
        PUSHES,
        "Pushes of clients' metrics, by what became of them."
    );
    describe_counter!(
        RECEIVED,
        Unit::Bytes,
        "Bytes of clients' metrics in pushes that were taken, as they came."
    );
    describe_counter!(
        LEFT_OUT,
        "Samples of clients that are not shown: beyond a bound, or of a kind that is not."
    );
}

pub(super) fn held(clients: usize, series: usize) {
    gauge!(CLIENTS).set(clients as f64);
    gauge!(SERIES).set(series as f64);
}

pub(super) fn pushed(outcome: &Result<(), Refusal>, bytes: usize) {
    let result = match outcome {
        Ok(()) => "taken",
        Err(refusal) => refusal.name(),
    };
    counter!(PUSHES, "result" => result).increment(1);
    if outcome.is_ok() {
        counter!(RECEIVED).increment(bytes as u64);
    }
}

pub(super) fn left_out(samples: u64) {
    counter!(LEFT_OUT).increment(samples);
}
