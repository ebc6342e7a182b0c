//! What a fetch may read and when it must answer: arithmetic only, no log and no clock.
//!
//! The walk over the partitions of a fetch is `ResponseBudget::next` → read that much →
//! [`ResponseBudget::spend`]. Invariants, as KIP-74 has them:
//! - bytes of all partitions together ≤ `max_bytes`, but for the first batch of the first
//!   partition that has any: that one is sent whole, however large, so that a consumer moves on;
//! - bytes of one partition ≤ its `partition_max_bytes`, with the same exception;
//! - nothing at or above the reader's bound is sent: the high watermark, or the last stable offset
//!   for read_committed.
//!
//! A fetch answers at once when it has `min_bytes`, when a partition has something to say that is
//! not data (an error, a diverging epoch), when it may not wait or when it names no partition.

use odradek_protocol::ids::{LogOffsets, Offset};

/// How far a reader may see (KIP-98).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsolationLevel {
    /// Everything that is committed by the majority.
    ReadUncommitted,
    /// Everything below the first undecided transaction.
    ReadCommitted,
}

impl IsolationLevel {
    /// Reads the wire's byte; everything but 1 is read_uncommitted, as in Kafka's requests before
    /// the field existed.
    pub fn from_wire(level: i8) -> Self {
        if level == 1 {
            Self::ReadCommitted
        } else {
            Self::ReadUncommitted
        }
    }

    /// First offset that the reader may not see.
    pub fn bound(self, offsets: &LogOffsets) -> Offset {
        match self {
            Self::ReadUncommitted => offsets.high_watermark.offset(),
            Self::ReadCommitted => offsets
                .last_stable
                .offset()
                .min(offsets.high_watermark.offset()),
        }
    }
}

/// Where a fetch offset stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// There is something to read below this bound.
    Readable {
        /// First offset that the reader may not see.
        bound: Offset,
    },
    /// The reader has seen everything it may see.
    CaughtUp,
    /// The log does not hold this offset.
    OutOfRange,
}

/// Places `fetch_offset` among the offsets of its partition. An offset between the reader's bound
/// and the log's end is valid and simply has nothing to read yet.
pub fn standing(fetch_offset: Offset, offsets: &LogOffsets, isolation: IsolationLevel) -> Standing {
    let bound = isolation.bound(offsets);
    if fetch_offset < offsets.log_start.offset() || fetch_offset > offsets.log_end.offset() {
        Standing::OutOfRange
    } else if fetch_offset < bound {
        Standing::Readable { bound }
    } else {
        Standing::CaughtUp
    }
}

/// How much may be read from the next partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimit {
    /// Upper bound in bytes.
    pub max_bytes: usize,
    /// Whether the first batch is read even where it alone exceeds the bound.
    pub whole_first_batch: bool,
}

/// The bytes of one response while its partitions are read in order.
#[derive(Clone, Copy, Debug)]
pub struct ResponseBudget {
    remaining_bytes: usize,
    first_batch_due: bool,
}

impl ResponseBudget {
    /// The budget of a response of at most `max_bytes` of records.
    pub fn new(max_bytes: usize) -> Self {
        Self {
            remaining_bytes: max_bytes,
            first_batch_due: true,
        }
    }

    /// What may be read from the next partition; `None` when there is no room left for any.
    pub fn next(&self, partition_max_bytes: usize) -> Option<ReadLimit> {
        let max_bytes = self.remaining_bytes.min(partition_max_bytes);
        (max_bytes > 0 || self.first_batch_due).then_some(ReadLimit {
            max_bytes,
            whole_first_batch: self.first_batch_due,
        })
    }

    /// Takes `bytes` that were read.
    pub fn spend(&mut self, bytes: usize) {
        if bytes > 0 {
            self.first_batch_due = false;
            self.remaining_bytes = self.remaining_bytes.saturating_sub(bytes);
        }
    }
}

/// Whether a fetch has enough to answer. Partitions are known by their index in the fetch.
#[derive(Clone, Debug)]
pub struct Readiness {
    bytes: Vec<usize>,
    total_bytes: usize,
    min_bytes: usize,
    must_answer: bool,
}

impl Readiness {
    /// A fetch of `partitions` that wants `min_bytes` before it answers.
    pub fn new(partitions: usize, min_bytes: usize) -> Self {
        Self {
            bytes: vec![0; partitions],
            total_bytes: 0,
            min_bytes,
            must_answer: partitions == 0,
        }
    }

    /// Notes that the partition at `index` now has `bytes` to give.
    pub fn has_bytes(&mut self, index: usize, bytes: usize) {
        if let Some(known) = self.bytes.get_mut(index) {
            self.total_bytes = self.total_bytes - *known + bytes;
            *known = bytes;
        }
    }

    /// Notes that some partition has something to say that cannot wait.
    pub fn answer_now(&mut self) {
        self.must_answer = true;
    }

    /// Whether the fetch answers now rather than waits.
    pub fn is_satisfied(&self) -> bool {
        self.must_answer || self.total_bytes >= self.min_bytes
    }
}

#[cfg(test)]
mod tests {
    use odradek_protocol::ids::{HighWatermark, LastStableOffset, LogEndOffset, LogStartOffset};
    use rand::Rng;

    use super::*;
    use crate::test_random::seeded;

    fn offsets(start: i64, stable: i64, watermark: i64, end: i64) -> LogOffsets {
        LogOffsets {
            log_start: LogStartOffset::new(Offset::new(start)),
            last_stable: LastStableOffset::new(Offset::new(stable)),
            high_watermark: HighWatermark::new(Offset::new(watermark)),
            log_end: LogEndOffset::new(Offset::new(end)),
        }
    }

    #[test]
    fn read_committed_stops_at_the_last_stable_offset_and_read_uncommitted_at_the_watermark() {
        let at = offsets(5, 10, 20, 30);
        let bound = |offset, isolation| standing(Offset::new(offset), &at, isolation);
        assert_eq!(
            bound(9, IsolationLevel::ReadCommitted),
            Standing::Readable {
                bound: Offset::new(10)
            }
        );
        assert_eq!(bound(10, IsolationLevel::ReadCommitted), Standing::CaughtUp);
        assert_eq!(
            bound(10, IsolationLevel::ReadUncommitted),
            Standing::Readable {
                bound: Offset::new(20)
            }
        );
    }

    #[test]
    fn offsets_below_the_log_start_or_above_the_log_end_are_out_of_range() {
        let at = offsets(5, 10, 20, 30);
        let isolation = IsolationLevel::ReadUncommitted;
        assert_eq!(
            standing(Offset::new(4), &at, isolation),
            Standing::OutOfRange
        );
        assert_eq!(
            standing(Offset::new(31), &at, isolation),
            Standing::OutOfRange
        );
        assert_eq!(
            standing(Offset::new(30), &at, isolation),
            Standing::CaughtUp
        );
        assert_eq!(
            standing(Offset::new(20), &at, isolation),
            Standing::CaughtUp
        );
    }

    #[test]
    fn only_the_first_partition_that_has_data_may_exceed_the_limits() {
        let mut budget = ResponseBudget::new(100);
        assert_eq!(
            budget.next(10),
            Some(ReadLimit {
                max_bytes: 10,
                whole_first_batch: true
            })
        );
        budget.spend(0);
        assert!(budget.next(10).is_some_and(|limit| limit.whole_first_batch));
        budget.spend(60);
        assert_eq!(
            budget.next(1_000),
            Some(ReadLimit {
                max_bytes: 40,
                whole_first_batch: false
            })
        );
        budget.spend(40);
        assert_eq!(budget.next(1_000), None);
    }

    #[test]
    fn a_budget_of_nothing_still_lets_the_first_batch_out() {
        let mut budget = ResponseBudget::new(0);
        assert_eq!(
            budget.next(0),
            Some(ReadLimit {
                max_bytes: 0,
                whole_first_batch: true
            })
        );
        budget.spend(5_000);
        assert_eq!(budget.next(5), None);
    }

    #[test]
    fn a_fetch_waits_for_its_minimum_over_all_partitions() {
        let mut readiness = Readiness::new(3, 100);
        readiness.has_bytes(0, 60);
        readiness.has_bytes(2, 30);
        assert!(!readiness.is_satisfied());
        readiness.has_bytes(2, 40);
        assert!(readiness.is_satisfied());
        let mut with_error = Readiness::new(3, 100);
        with_error.answer_now();
        assert!(with_error.is_satisfied());
        assert!(Readiness::new(0, 100).is_satisfied());
        assert!(Readiness::new(1, 0).is_satisfied());
    }

    /// Random partitions of random batches: the response holds the limits but for one batch.
    #[test]
    fn random_responses_stay_within_the_budget_but_for_one_batch() {
        let mut rng = seeded();
        for _ in 0..2_000 {
            let max_bytes = rng.random_range(0..500);
            let mut budget = ResponseBudget::new(max_bytes);
            let (mut total, mut over_limit_partitions, mut anything_there) = (0, 0, false);
            for _ in 0..rng.random_range(0..8) {
                let partition_max: usize = rng.random_range(0..200);
                let batches: Vec<usize> = (0..rng.random_range(0..5))
                    .map(|_| rng.random_range(61..150))
                    .collect();
                anything_there |= !batches.is_empty();
                let Some(limit) = budget.next(partition_max) else {
                    continue;
                };
                let mut read = 0;
                for batch in batches {
                    if read + batch <= limit.max_bytes || (read == 0 && limit.whole_first_batch) {
                        read += batch;
                    } else {
                        break;
                    }
                }
                over_limit_partitions +=
                    usize::from(read > partition_max || total + read > max_bytes);
                total += read;
                budget.spend(read);
            }
            assert!(over_limit_partitions <= 1);
            assert_eq!(total > 0, anything_there, "a consumer always moves on");
        }
    }
}
