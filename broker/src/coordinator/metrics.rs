//! Metrics of the runtime, declared in one place: `odradek_<subsystem>_<noun>_<unit>[_total]`.

use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};

const LOAD_DURATION: &str = "odradek_coordinators_load_duration_seconds";
const LOADED_RECORDS: &str = "odradek_coordinators_loaded_records_total";
const FAILED_WRITES: &str = "odradek_coordinators_failed_writes_total";

/// Tells the recorder what each metric means.
pub fn describe() {
    describe_histogram!(
        LOAD_DURATION,
        Unit::Seconds,
        "Time that a coordinator took to read its log."
    );
    describe_counter!(
        LOADED_RECORDS,
        "Records that coordinators read when they loaded."
    );
    describe_counter!(
        FAILED_WRITES,
        "Writes of coordinators that failed, after which they loaded anew or ended."
    );
}

pub(super) fn loaded(records: u64, seconds: f64) {
    histogram!(LOAD_DURATION).record(seconds);
    counter!(LOADED_RECORDS).increment(records);
}

pub(super) fn write_failed() {
    counter!(FAILED_WRITES).increment(1);
}
