//! The counters.

use std::marker::PhantomData;

use crate::PercentileStats;

/// Bucket `n > 0` counts the values of `n` bits, `2^(n-1) ..= 2^n - 1`; bucket 0 counts zeros.
const BUCKETS: usize = u64::BITS as usize + 1;

/// Counts of values by their power of two. `T` is there for the signature alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram<T = ()> {
    /// None as long as nothing was recorded.
    counts: Option<Box<[u64; BUCKETS]>>,
    data: PhantomData<T>,
}

impl<T> Default for Histogram<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Histogram<T> {
    /// One that has counted nothing and takes no memory yet.
    pub fn new() -> Self {
        Self {
            counts: None,
            data: PhantomData,
        }
    }

    /// Counts one value.
    pub fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    /// Counts a value `count` times.
    pub fn record_n(&mut self, value: u64, count: u64) {
        if count == 0 {
            return;
        }
        let counts = self.counts.get_or_insert_with(|| Box::new([0; BUCKETS]));
        let bucket = &mut counts[bucket_of(value)];
        *bucket = bucket.saturating_add(count);
    }

    /// How many values were counted.
    pub fn total(&self) -> u64 {
        self.buckets()
            .fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// The upper bound of the bucket below which `share` of all values lie, `0.0 ..= 1.0`; 0 if there are none.
    pub fn percentile(&self, share: f64) -> u64 {
        let total = self.total();
        let rank = (total as f64 * share.clamp(0.0, 1.0)).ceil().max(1.0);
        let mut below = 0_u64;
        for (bound, count) in self.buckets() {
            below = below.saturating_add(count);
            if below as f64 >= rank {
                return bound;
            }
        }
        0
    }

    /// The percentiles that openraft prints.
    pub fn percentile_stats(&self) -> PercentileStats {
        PercentileStats {
            samples: self.total(),
            p0_1: self.percentile(0.001),
            p1: self.percentile(0.01),
            p5: self.percentile(0.05),
            p10: self.percentile(0.1),
            p50: self.percentile(0.5),
            p90: self.percentile(0.9),
            p99: self.percentile(0.99),
            p99_9: self.percentile(0.999),
        }
    }

    /// The upper bound and the count of every bucket that is not empty, in ascending order.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts
            .iter()
            .flat_map(|counts| counts.iter().enumerate())
            .filter(|(_, count)| **count > 0)
            .map(|(bucket, count)| (upper_bound(bucket), *count))
    }
}

fn bucket_of(value: u64) -> usize {
    (u64::BITS - value.leading_zeros()) as usize
}

fn upper_bound(bucket: usize) -> u64 {
    match bucket {
        0 => 0,
        bits => u64::MAX >> (u64::BITS as usize - bits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::new();
        values.iter().for_each(|value| histogram.record(*value));
        histogram
    }

    #[test]
    fn every_value_is_counted_in_the_bucket_whose_bounds_hold_it() {
        for value in [0, 1, 2, 3, 4, 7, 8, 1_000, u64::MAX / 2, u64::MAX] {
            let bound = of(&[value]).percentile(0.5);
            assert!(bound >= value && bound / 2 <= value, "{value}: {bound}");
        }
    }

    #[test]
    fn percentiles_of_nothing_are_zero_and_take_no_memory() {
        let histogram = Histogram::<()>::new();
        assert_eq!((histogram.total(), histogram.percentile(0.99)), (0, 0));
        assert!(histogram.counts.is_none());
    }

    #[test]
    fn a_percentile_has_its_share_of_the_values_below_it() {
        let mut histogram = of(&[1; 90]);
        histogram.record_n(100, 9);
        histogram.record(5_000);
        let stats = histogram.percentile_stats();
        assert_eq!((stats.samples, stats.p50, stats.p90), (100, 1, 1));
        assert_eq!((stats.p99, stats.p99_9), (127, 8_191));
    }

    #[test]
    fn counters_stop_at_their_largest_value() {
        let mut histogram = of(&[5]);
        histogram.record_n(5, u64::MAX);
        histogram.record_n(6, 0);
        assert_eq!(histogram.total(), u64::MAX);
        assert_eq!(histogram.percentile(1.0), 7);
    }
}
