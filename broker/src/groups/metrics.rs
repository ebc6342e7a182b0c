//! Metrics of the group coordinator, declared in one place: `odradek_<subsystem>_<noun>_<unit>[_total]`.
//!
//! None is labelled by group: their number is not bounded.

use metrics::{counter, describe_counter, describe_gauge, gauge};

const COORDINATORS: &str = "odradek_groups_coordinators";
const GENERATIONS: &str = "odradek_groups_generations_total";
const COMMITTED_OFFSETS: &str = "odradek_groups_committed_offsets_total";

/// Tells the recorder what each metric means.
pub fn describe() {
    describe_gauge!(
        COORDINATORS,
        "Partitions of __consumer_offsets whose coordinator runs on this broker."
    );
    describe_counter!(GENERATIONS, "Rebalances of groups that came to an end.");
    describe_counter!(COMMITTED_OFFSETS, "Offsets that were committed.");
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
