//! Every metric of the shell, declared in one place: `odradek_<subsystem>_<noun>_<unit>[_total]`.
//!
//! Labels are bounded: API names, causes, listener names. Handles are made once, so that counting
//! a request looks nothing up. Without a recorder (no `odradek.http.listener`) counting is free.

use std::time::Instant;

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};
use odradek_protocol::api::{self, ApiKey};

use crate::memory::MemoryBudget;

/// Histogram of the time from a complete frame to a known reply.
pub const REQUEST_DURATION: &str = "odradek_request_duration_seconds";
const REQUESTS: &str = "odradek_requests_total";
const CONNECTIONS_OPEN: &str = "odradek_connections_open";
const CONNECTIONS_ACCEPTED: &str = "odradek_connections_accepted_total";
const CONNECTIONS_REFUSED: &str = "odradek_connections_refused_total";
const CONNECTIONS_CLOSED: &str = "odradek_connections_closed_total";
const NETWORK_RECEIVED: &str = "odradek_network_received_bytes_total";
const NETWORK_SENT: &str = "odradek_network_sent_bytes_total";
const MEMORY_REQUESTS: &str = "odradek_memory_requests_bytes";
const MEMORY_REPLIES: &str = "odradek_memory_replies_bytes";
const PROCESS_CPU: &str = "odradek_process_cpu_milliseconds_total";
const PROCESS_RESIDENT: &str = "odradek_process_resident_bytes";
const PROCESS_FILES: &str = "odradek_process_open_files";

/// Upper bounds of the request duration histogram's buckets, in seconds.
pub const REQUEST_DURATION_BUCKETS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0,
];

/// Tells the recorder what each metric means.
pub fn describe() {
    describe_histogram!(
        REQUEST_DURATION,
        Unit::Seconds,
        "Time from a complete request frame to its reply being known, by API."
    );
    describe_counter!(REQUESTS, "Requests whose reply is known, by API.");
    describe_gauge!(CONNECTIONS_OPEN, "Client connections open now.");
    describe_counter!(
        CONNECTIONS_ACCEPTED,
        "Client connections accepted, by listener."
    );
    describe_counter!(
        CONNECTIONS_REFUSED,
        "Client connections closed at once because their address had too many."
    );
    describe_counter!(CONNECTIONS_CLOSED, "Client connections ended, by cause.");
    describe_counter!(
        NETWORK_RECEIVED,
        Unit::Bytes,
        "Bytes received from clients."
    );
    describe_counter!(NETWORK_SENT, Unit::Bytes, "Bytes sent to clients.");
    describe_gauge!(
        MEMORY_REQUESTS,
        Unit::Bytes,
        "Memory reserved for request frames."
    );
    describe_gauge!(
        MEMORY_REPLIES,
        Unit::Bytes,
        "Memory of replies that have not been sent."
    );
    describe_counter!(
        PROCESS_CPU,
        Unit::Milliseconds,
        "User and system CPU time of the process."
    );
    describe_gauge!(
        PROCESS_RESIDENT,
        Unit::Bytes,
        "Resident memory of the process."
    );
    describe_gauge!(PROCESS_FILES, "File descriptors open in the process.");
}

/// Handles of what the server counts. Made after the recorder is installed.
pub struct ServerMetrics {
    /// Indexed by API key; keys that are not served have no handle.
    apis: Vec<Option<ApiMetrics>>,
    connections_open: Gauge,
    received: Counter,
    sent: Counter,
}

struct ApiMetrics {
    requests: Counter,
    duration: Histogram,
}

impl std::fmt::Debug for ServerMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerMetrics").finish_non_exhaustive()
    }
}

impl ServerMetrics {
    /// Handles on the recorder that is installed now.
    pub fn new() -> Self {
        let apis = ApiKey::ALL
            .iter()
            .map(|key| {
                api::served_range(key.key()).map(|_| ApiMetrics {
                    requests: counter!(REQUESTS, "api" => key.name()),
                    duration: histogram!(REQUEST_DURATION, "api" => key.name()),
                })
            })
            .collect();
        Self {
            apis,
            connections_open: gauge!(CONNECTIONS_OPEN),
            received: counter!(NETWORK_RECEIVED),
            sent: counter!(NETWORK_SENT),
        }
    }

    pub(crate) fn request_done(&self, api_key: ApiKey, received_at: Instant) {
        let index = usize::try_from(api_key.key()).ok();
        let api = index.and_then(|index| self.apis.get(index));
        if let Some(Some(api)) = api {
            api.requests.increment(1);
            api.duration.record(received_at.elapsed().as_secs_f64());
        }
    }

    pub(crate) fn bytes_received(&self, bytes: usize) {
        self.received.increment(bytes as u64);
    }

    pub(crate) fn bytes_sent(&self, bytes: usize) {
        self.sent.increment(bytes as u64);
    }

    pub(crate) fn connection_opened(&self, listener: &str) {
        self.connections_open.increment(1.0);
        counter!(CONNECTIONS_ACCEPTED, "listener" => listener.to_owned()).increment(1);
    }

    pub(crate) fn connection_refused(&self) {
        counter!(CONNECTIONS_REFUSED).increment(1);
    }

    pub(crate) fn connection_closed(&self, cause: &'static str) {
        self.connections_open.decrement(1.0);
        counter!(CONNECTIONS_CLOSED, "cause" => cause).increment(1);
    }
}

impl Default for ServerMetrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Brings the metrics that are read rather than counted up to date; called at every scrape.
pub fn observe(budget: &MemoryBudget) {
    gauge!(MEMORY_REQUESTS).set(budget.request_bytes_in_use() as f64);
    gauge!(MEMORY_REPLIES).set(budget.reply_bytes_in_use() as f64);
    if let Some(usage) = process_usage() {
        counter!(PROCESS_CPU).absolute(usage.cpu_ms);
        gauge!(PROCESS_RESIDENT).set(usage.resident_bytes as f64);
        gauge!(PROCESS_FILES).set(usage.open_files as f64);
    }
}

struct ProcessUsage {
    cpu_ms: u64,
    resident_bytes: u64,
    open_files: usize,
}

/// Reads `/proc/self`; nothing where there is none.
fn process_usage() -> Option<ProcessUsage> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the process may hold anything; what follows its closing bracket may not.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let ticks = number(11)? + number(12)?;
    let resident_pages = number(21)?;
    Some(ProcessUsage {
        cpu_ms: ticks * 1000 / rustix::param::clock_ticks_per_second().max(1),
        resident_bytes: resident_pages * rustix::param::page_size() as u64,
        open_files: std::fs::read_dir("/proc/self/fd").ok()?.count(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_usage_is_plausible() {
        let usage = process_usage().expect("tests run where there is /proc");
        assert!(usage.resident_bytes > 100_000);
        assert!(usage.open_files >= 3);
    }
}
