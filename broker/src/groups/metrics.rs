//! Metrics of the group coordinator, declared in one place: `odradek_<subsystem>_<noun>_<unit>[_total]`.
//!
//! None is labelled by group: their number is not bounded.

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

const COORDINATORS: &str = "odradek_groups_coordinators";
const GENERATIONS: &str = "odradek_groups_generations_total";
const COMMITTED_OFFSETS: &str = "odradek_groups_committed_offsets_total";
const LOAD_DURATION: &str = "odradek_groups_load_duration_seconds";
const LOADED_RECORDS: &str = "odradek_groups_loaded_records_total";
const RELOADS: &str = "odradek_groups_failed_writes_total";

/// Tells the recorder what each metric means.
pub fn describe() {
    describe_gauge!(
        COORDINATORS,
        "Partitions of __consumer_offsets whose coordinator runs on this broker."
    );
    describe_counter!(GENERATIONS, "Rebalances of groups that came to an end.");
    describe_counter!(COMMITTED_OFFSETS, "Offsets that were committed.");
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
        RELOADS,
        "Writes of coordinators that failed, after which they loaded anew or ended."
    );
}

pub(super) fn coordinators(count: usize) {
    gauge!(COORDINATORS).set(count as f64);
}

pub(super) fn generation() {
    counter!(GENERATIONS).increment(1);
}

pub(super) fn committed(offsets: usize) {
    counter!(COMMITTED_OFFSETS).increment(offsets as u64);
}

pub(super) fn loaded(records: u64, seconds: f64) {
    histogram!(LOAD_DURATION).record(seconds);
    counter!(LOADED_RECORDS).increment(records);
}

pub(super) fn write_failed() {
    counter!(RELOADS).increment(1);
}
