//! Settings of the coordinators, as they use them.

use std::time::Duration;

use crate::config::TransactionsConfig;

/// Settings of a coordinator.
#[derive(Clone, Debug)]
pub struct CoordinatorConfig {
    /// `transaction.max.timeout.ms`.
    pub max_timeout_ms: i32,
    /// `transactional.id.expiration.ms`.
    pub id_expiration_ms: i64,
    /// `transaction.abort.timed.out.transaction.cleanup.interval.ms`.
    pub timeout_check_interval_ms: i64,
    /// `transaction.remove.expired.transaction.cleanup.interval.ms`.
    pub expiration_check_interval_ms: i64,
    /// How long a request waits for the completion of the transaction before, in milliseconds.
    pub completion_wait_ms: i64,
    /// Largest record that the log takes, in bytes.
    pub max_record_bytes: usize,
}

/// A client asks again after 20 ms and more; usually completion takes less than a request's way.
const COMPLETION_WAIT_MS: i64 = 500;

impl From<&TransactionsConfig> for CoordinatorConfig {
    fn from(config: &TransactionsConfig) -> Self {
        Self {
            max_timeout_ms: i32::try_from(config.max_timeout.as_millis()).unwrap_or(i32::MAX),
            id_expiration_ms: long_ms(config.id_expiration),
            timeout_check_interval_ms: long_ms(config.timeout_check_interval),
            expiration_check_interval_ms: long_ms(config.expiration_check_interval),
            completion_wait_ms: COMPLETION_WAIT_MS,
            // The coordinator of a partition takes the bound from its log.
            max_record_bytes: usize::MAX,
        }
    }
}

fn long_ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
impl Default for CoordinatorConfig {
    /// Kafka's defaults.
    fn default() -> Self {
        Self {
            max_timeout_ms: 900_000,
            id_expiration_ms: 7 * 24 * 60 * 60 * 1_000,
            timeout_check_interval_ms: 10_000,
            expiration_check_interval_ms: 60 * 60 * 1_000,
            completion_wait_ms: COMPLETION_WAIT_MS,
            max_record_bytes: 1_000_000,
        }
    }
}
