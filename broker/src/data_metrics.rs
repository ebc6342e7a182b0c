//! Metrics of the data path, declared in one place: `odradek_<subsystem>_<noun>_<unit>[_total]`.
//!
//! None is labelled by topic or partition: their number is not bounded.

use metrics::{Counter, Gauge, Unit, counter, describe_counter, describe_gauge, gauge};

const PRODUCE_BYTES: &str = "odradek_produce_received_bytes_total";
const PRODUCE_BATCHES: &str = "odradek_produce_batches_total";
const PRODUCE_RECORDS: &str = "odradek_produce_records_total";
const PRODUCE_REFUSED: &str = "odradek_produce_refused_batches_total";
const PRODUCE_DUPLICATES: &str = "odradek_produce_duplicate_batches_total";
const FETCH_BYTES: &str = "odradek_fetch_sent_bytes_total";
const FETCH_UNPARKED: &str = "odradek_fetch_unparked_requests_total";
const FETCH_PARKED: &str = "odradek_fetch_parked_partitions";
const FETCH_SESSIONS: &str = "odradek_fetch_sessions";
const FETCH_SESSION_PARTITIONS: &str = "odradek_fetch_session_partitions";
const FETCH_SESSION_EVICTIONS: &str = "odradek_fetch_session_evictions_total";
const PARTITIONS: &str = "odradek_partitions_open";
const LEADERS: &str = "odradek_partitions_led";
const UNDER_REPLICATED: &str = "odradek_partitions_under_replicated";
const UNDER_MIN_ISR: &str = "odradek_partitions_under_min_isr";
const AT_MIN_ISR: &str = "odradek_partitions_at_min_isr";
const REASSIGNING: &str = "odradek_partitions_reassigning";
const LOST_REPLICAS: &str = "odradek_partitions_lost_replicas";
const REBUILDING: &str = "odradek_partitions_rebuilding";
const LOG_DIR_FREE: &str = "odradek_log_dir_free_bytes";
const LOG_DIRS_OFFLINE: &str = "odradek_log_dirs_offline";
const LOG_DIRS_RESERVE: &str = "odradek_log_dirs_below_reserve";
const COMPACTION_RUNS: &str = "odradek_compaction_runs_total";
const COMPACTION_FAILURES: &str = "odradek_compaction_failures_total";
const COMPACTION_READ: &str = "odradek_compaction_read_bytes_total";
const COMPACTION_WRITTEN: &str = "odradek_compaction_written_bytes_total";
const COMPACTION_DROPPED: &str = "odradek_compaction_dropped_records_total";

/// Tells the recorder what each metric means.
pub fn describe() {
    describe_counter!(
        PRODUCE_BYTES,
        Unit::Bytes,
        "Bytes of record batches that were taken."
    );
    describe_counter!(PRODUCE_BATCHES, "Record batches that were taken.");
    describe_counter!(PRODUCE_RECORDS, "Records in the batches that were taken.");
    describe_counter!(
        PRODUCE_REFUSED,
        "Record batches that were refused, by error."
    );
    describe_counter!(
        PRODUCE_DUPLICATES,
        "Record batches that were known already and answered as the first time."
    );
    describe_counter!(
        FETCH_BYTES,
        Unit::Bytes,
        "Bytes of record batches given to fetches."
    );
    describe_counter!(
        FETCH_UNPARKED,
        "Fetches answered early for want of room to wait."
    );
    describe_gauge!(FETCH_PARKED, "Partitions at which fetches wait now.");
    describe_gauge!(FETCH_SESSIONS, "Incremental fetch sessions now.");
    describe_gauge!(
        FETCH_SESSION_PARTITIONS,
        "Partitions of all incremental fetch sessions now."
    );
    describe_counter!(
        FETCH_SESSION_EVICTIONS,
        "Incremental fetch sessions that gave way to others."
    );
    describe_gauge!(PARTITIONS, "Partitions open on this broker.");
    describe_gauge!(LEADERS, "Partitions led by this broker.");
    describe_gauge!(
        UNDER_REPLICATED,
        "Partitions led by this broker of which a replica is out of sync."
    );
    describe_gauge!(
        UNDER_MIN_ISR,
        "Partitions led by this broker that take no acks=all: fewer replicas are in sync than \
         min.insync.replicas."
    );
    describe_gauge!(
        AT_MIN_ISR,
        "Partitions led by this broker with no replica in sync to spare."
    );
    describe_gauge!(
        REASSIGNING,
        "Partitions led by this broker whose replicas are being changed."
    );
    describe_gauge!(
        LOST_REPLICAS,
        "Replicas of partitions led by this broker that have lost their log and are not given it \
         yet: they are taken out of the voters first, by a majority of the others."
    );
    describe_gauge!(
        REBUILDING,
        "Replicas on this broker that held nothing when they were opened and have not been given \
         the whole log."
    );
    describe_gauge!(
        LOG_DIR_FREE,
        Unit::Bytes,
        "Free space of a log directory's file system."
    );
    describe_gauge!(
        LOG_DIRS_OFFLINE,
        "Log directories taken offline by a failure."
    );
    describe_gauge!(
        LOG_DIRS_RESERVE,
        "Log directories whose free space is below the reserve."
    );
    describe_counter!(COMPACTION_RUNS, "Compactions of a log that were finished.");
    describe_counter!(COMPACTION_FAILURES, "Compactions of a log that failed.");
    describe_counter!(
        COMPACTION_READ,
        Unit::Bytes,
        "Bytes read by compactions that were finished."
    );
    describe_counter!(
        COMPACTION_WRITTEN,
        Unit::Bytes,
        "Bytes written by compactions that were finished."
    );
    describe_counter!(COMPACTION_DROPPED, "Records dropped by compactions.");
}

/// Handles of what the append path counts.
pub struct AppendMetrics {
    bytes: Counter,
    batches: Counter,
    records: Counter,
    duplicates: Counter,
}

impl Default for AppendMetrics {
    fn default() -> Self {
        Self {
            bytes: counter!(PRODUCE_BYTES),
            batches: counter!(PRODUCE_BATCHES),
            records: counter!(PRODUCE_RECORDS),
            duplicates: counter!(PRODUCE_DUPLICATES),
        }
    }
}

impl AppendMetrics {
    pub(crate) fn taken(&self, bytes: usize, records: i32) {
        self.bytes.increment(bytes as u64);
        self.batches.increment(1);
        self.records.increment(u64::try_from(records).unwrap_or(0));
    }

    pub(crate) fn duplicate(&self) {
        self.duplicates.increment(1);
    }

    pub(crate) fn refused(&self, error: &'static str) {
        counter!(PRODUCE_REFUSED, "error" => error).increment(1);
    }
}

/// Handles of what the fetch path counts.
pub struct FetchMetrics {
    bytes: Counter,
    unparked: Counter,
    parked: Gauge,
    sessions: Gauge,
    session_partitions: Gauge,
    evictions: Counter,
}

impl Default for FetchMetrics {
    fn default() -> Self {
        Self {
            bytes: counter!(FETCH_BYTES),
            unparked: counter!(FETCH_UNPARKED),
            parked: gauge!(FETCH_PARKED),
            sessions: gauge!(FETCH_SESSIONS),
            session_partitions: gauge!(FETCH_SESSION_PARTITIONS),
            evictions: counter!(FETCH_SESSION_EVICTIONS),
        }
    }
}

impl FetchMetrics {
    pub(crate) fn answered(&self, bytes: usize) {
        self.bytes.increment(bytes as u64);
    }

    pub(crate) fn unparked(&self) {
        self.unparked.increment(1);
    }

    pub(crate) fn observe(
        &self,
        sessions: usize,
        session_partitions: usize,
        evictions: u64,
        parked: usize,
    ) {
        self.sessions.set(sessions as f64);
        self.session_partitions.set(session_partitions as f64);
        self.evictions.absolute(evictions);
        self.parked.set(parked as f64);
    }
}

/// Sets the gauges of the partition manager.
pub(crate) fn observe_partitions(open: usize, led: usize) {
    gauge!(PARTITIONS).set(open as f64);
    gauge!(LEADERS).set(led as f64);
}

/// Sets the gauges of what the leader of partitions with several replicas sees of them.
pub(crate) fn observe_replication(
    under_replicated: usize,
    under_min_isr: usize,
    at_min_isr: usize,
    reassigning: usize,
) {
    gauge!(UNDER_REPLICATED).set(under_replicated as f64);
    gauge!(UNDER_MIN_ISR).set(under_min_isr as f64);
    gauge!(AT_MIN_ISR).set(at_min_isr as f64);
    gauge!(REASSIGNING).set(reassigning as f64);
}

/// Sets the gauges of replicas that have lost their log, led from here and held here.
pub(crate) fn observe_lost(lost: usize, rebuilding: usize) {
    gauge!(LOST_REPLICAS).set(lost as f64);
    gauge!(REBUILDING).set(rebuilding as f64);
}

/// Sets the gauge of a log directory's free space.
pub(crate) fn observe_log_dir(path: String, free_bytes: u64) {
    gauge!(LOG_DIR_FREE, "path" => path).set(free_bytes as f64);
}

/// Sets the gauges of all log directories.
pub(crate) fn observe_log_dirs(offline: usize, below_reserve: usize) {
    gauge!(LOG_DIRS_OFFLINE).set(offline as f64);
    gauge!(LOG_DIRS_RESERVE).set(below_reserve as f64);
}

/// Counts a compaction that was finished.
pub(crate) fn compacted(stats: &odradek_storage::CompactionStats) {
    counter!(COMPACTION_RUNS).increment(1);
    counter!(COMPACTION_READ).increment(stats.bytes_read);
    counter!(COMPACTION_WRITTEN).increment(stats.bytes_written);
    counter!(COMPACTION_DROPPED).increment(stats.records_dropped);
}

/// Counts a compaction that failed.
pub(crate) fn compaction_failed() {
    counter!(COMPACTION_FAILURES).increment(1);
}
