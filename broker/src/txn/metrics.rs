//! Metrics of the transaction coordinator, declared in one place:
//! `odradek_<subsystem>_<noun>_<unit>[_total]`.
//!
//! None is labelled by transactional id: their number is not bounded.

use metrics::{counter, describe_counter, describe_gauge, gauge};

const COORDINATORS: &str = "odradek_transactions_coordinators";
const ENDED: &str = "odradek_transactions_ended_total";
const MARKERS_LATE: &str = "odradek_transactions_markers_repeated_total";

/// Tells the recorder what each metric means.
pub fn describe() {
    describe_gauge!(
        COORDINATORS,
        "Partitions of __transaction_state whose coordinator runs on this broker."
    );
    describe_counter!(
        ENDED,
        "Transactions that their producers ended, by outcome."
    );
    describe_counter!(
        MARKERS_LATE,
        "Markers that a partition did not take and that were tried again."
    );
}

pub(super) fn coordinators(count: usize) {
    gauge!(COORDINATORS).set(count as f64);
}

pub(super) fn ended(committed: bool) {
    let outcome = if committed { "commit" } else { "abort" };
    counter!(ENDED, "outcome" => outcome).increment(1);
}

pub(super) fn markers_repeated(count: usize) {
    counter!(MARKERS_LATE).increment(count as u64);
}
