//! What all fetches of the broker share: their sessions, the space in which they wait, and the
//! limit of one answer.

use std::fmt;
use std::sync::Arc;

use odradek_protocol::fetch_response::FetchedPartition;
use parking_lot::{Mutex, MutexGuard};

use crate::config::BrokerConfig;
use crate::data_metrics::FetchMetrics;
use crate::fetch_sessions::SessionCache;
use crate::waiters::ParkingSpace;

/// See the module.
pub struct FetchService {
    sessions: Mutex<SessionCache>,
    parking: Arc<ParkingSpace>,
    max_bytes: usize,
    metrics: FetchMetrics,
}

impl fmt::Debug for FetchService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchService").finish_non_exhaustive()
    }
}

/// Limits of the fetch service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchLimits {
    /// `fetch.max.bytes`: most bytes of records in one answer.
    pub max_bytes: usize,
    /// `max.incremental.fetch.session.cache.slots`.
    pub session_slots: usize,
    /// Partitions at which all waiting fetches may stand together.
    pub parked_partitions: usize,
}

impl FetchLimits {
    /// The limits that a broker's settings give.
    pub fn of(config: &BrokerConfig) -> Self {
        Self {
            max_bytes: config.fetch_max_bytes,
            session_slots: config.fetch_session_slots,
            parked_partitions: config.fetch_parked_partitions,
        }
    }
}

impl FetchService {
    /// A service without sessions.
    pub fn new(limits: FetchLimits) -> Self {
        Self {
            sessions: Mutex::new(SessionCache::new(limits.session_slots)),
            parking: ParkingSpace::new(limits.parked_partitions),
            max_bytes: limits.max_bytes,
            metrics: FetchMetrics::default(),
        }
    }

    /// The sessions, for the moment of one call.
    pub fn sessions(&self) -> MutexGuard<'_, SessionCache> {
        self.sessions.lock()
    }

    /// Where fetches wait.
    pub fn parking(&self) -> &Arc<ParkingSpace> {
        &self.parking
    }

    /// Most bytes of records in one answer.
    pub fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Counts what an answer carries.
    pub fn count_answer(&self, answers: &[FetchedPartition]) {
        let bytes: usize = answers.iter().map(|answer| answer.records.len()).sum();
        self.metrics.answered(bytes);
    }

    /// Counts a fetch that was answered early because the broker has no room for it to wait.
    pub fn count_unparked(&self) {
        self.metrics.unparked();
    }

    /// Brings the metrics that are read rather than counted up to date.
    pub fn observe(&self) {
        let sessions = self.sessions.lock();
        self.metrics.observe(
            sessions.session_count(),
            sessions.partition_count(),
            sessions.evictions(),
            self.parking.used(),
        );
    }
}
