//! What is told of a histogram.

use std::fmt;

/// Percentiles in the unit of what was recorded; `p99_9` is the 99.9th.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PercentileStats {
    /// How many values were counted.
    pub samples: u64,
    pub p0_1: u64,
    pub p1: u64,
    pub p5: u64,
    pub p10: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
}

impl fmt::Display for PercentileStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "[samples: {}, p50: {}, p90: {}, p99: {}, p99.9: {}]",
            self.samples, self.p50, self.p90, self.p99, self.p99_9
        )
    }
}
