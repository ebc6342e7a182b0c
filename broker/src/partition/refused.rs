//! Batches of idempotent producers that were refused for a reason that passes, so that no batch behind one of them is
//! refused for the gap that it has left.
//!
//! A producer has several batches on their way. Where the first comes to a leader that is not ready yet, and the next a
//! moment later, when it is, the next one is out of order. To a client that may mean that the sequence is lost, and that
//! all it waits for may be sent again under a new epoch (librdkafka does that), though one of them may be in the log
//! already: then its records are there twice. So what comes behind a batch that was refused has to come again, too.
//!
//! Invariants: one entry a producer, at most [`MAX_REFUSED`], the lowest sequence number of its epoch that is still
//! missing; without room nothing is remembered. An entry counts for [`KEPT_MS`], which is for what was on its way
//! together: a producer that has given the batch up is told of the gap after that.
//!
//! Absent on purpose: what this node refused before it had the partition open.

use std::collections::HashMap;

use odradek_protocol::batch::BatchHeader;
use odradek_protocol::ids::{ProducerEpoch, ProducerId, Sequence, TimestampMs};

/// Producers that are remembered.
const MAX_REFUSED: usize = 4_096;
/// How long one is, in milliseconds.
const KEPT_MS: u64 = 2_000;

#[derive(Debug)]
struct Missing {
    epoch: ProducerEpoch,
    first: Sequence,
    refused_at: TimestampMs,
}

impl Missing {
    fn counts(&self, now: TimestampMs) -> bool {
        // Either way: the clock may be set back.
        now.get().abs_diff(self.refused_at.get()) < KEPT_MS
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Refused {
    producers: HashMap<ProducerId, Missing>,
}

impl Refused {
    /// A batch was refused, and will come again.
    pub(super) fn note(&mut self, header: &BatchHeader, now: TimestampMs) {
        let has_room =
            self.producers.len() < MAX_REFUSED || self.producers.contains_key(&header.producer_id);
        if self.has_gap_before(header, now) || !has_room || header.base_sequence.get() < 0 {
            return;
        }
        let missing = Missing {
            epoch: header.producer_epoch,
            first: header.base_sequence,
            refused_at: now,
        };
        self.producers.insert(header.producer_id, missing);
    }

    /// Whether a batch stands behind one that has to come first.
    pub(super) fn has_gap_before(&self, header: &BatchHeader, now: TimestampMs) -> bool {
        let missing = self.producers.get(&header.producer_id);
        missing.is_some_and(|missing| {
            missing.counts(now)
                && missing.epoch == header.producer_epoch
                && precedes(missing.first, header.base_sequence)
        })
    }

    /// A batch has been taken, or is there already.
    pub(super) fn taken(&mut self, header: &BatchHeader) {
        let missing = self.producers.get(&header.producer_id);
        let is_over = missing.is_some_and(|missing| {
            missing.epoch != header.producer_epoch
                || !precedes(header.last_sequence(), missing.first)
        });
        if is_over {
            self.producers.remove(&header.producer_id);
        }
    }

    /// Drops what counts no more.
    pub(super) fn sweep(&mut self, now: TimestampMs) {
        self.producers.retain(|_, missing| missing.counts(now));
    }
}

/// Whether one sequence number comes before another: 2³¹ of them form a circle, half of which lies behind each.
fn precedes(one: Sequence, other: Sequence) -> bool {
    let ahead = (i64::from(other.get()) - i64::from(one.get())).rem_euclid(1 << 31);
    (1..1 << 30).contains(&ahead)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partitions::fixture::producer_batch;

    fn header(epoch: i16, first: i32, count: i32) -> BatchHeader {
        BatchHeader::parse(&producer_batch(9, epoch, first, count)).unwrap()
    }

    const NOW: TimestampMs = TimestampMs::new(1_000_000);
    const LATER: TimestampMs = TimestampMs::new(NOW.get() + KEPT_MS as i64);

    #[test]
    fn what_stands_behind_a_refused_batch_waits_until_that_is_taken_or_forgotten() {
        let mut refused = Refused::default();
        refused.note(&header(0, 4, 2), NOW);
        refused.note(&header(0, 6, 2), NOW);
        assert!(!refused.has_gap_before(&header(0, 4, 2), NOW));
        assert!(refused.has_gap_before(&header(0, 6, 2), NOW));
        assert!(!refused.has_gap_before(&header(1, 6, 2), NOW));
        assert!(!refused.has_gap_before(&header(0, 6, 2), LATER));
        refused.taken(&header(0, 2, 2));
        assert!(
            refused.has_gap_before(&header(0, 6, 2), NOW),
            "it is not that one"
        );
        refused.taken(&header(0, 4, 2));
        assert!(!refused.has_gap_before(&header(0, 6, 2), NOW));
    }

    #[test]
    fn a_lower_sequence_number_and_a_later_epoch_take_the_place() {
        let mut refused = Refused::default();
        refused.note(&header(0, i32::MAX, 1), NOW);
        refused.note(&header(0, i32::MAX - 1, 1), NOW);
        assert!(refused.has_gap_before(&header(0, i32::MAX, 1), NOW));
        assert!(refused.has_gap_before(&header(0, 0, 1), NOW));
        refused.note(&header(1, 3, 1), NOW);
        assert!(!refused.has_gap_before(&header(0, 0, 1), NOW));
        refused.sweep(LATER);
        assert!(refused.producers.is_empty());
    }

    #[test]
    fn a_full_list_takes_no_more() {
        let mut refused = Refused::default();
        for id in 0..MAX_REFUSED as i64 + 1 {
            let batch = producer_batch(id, 0, 0, 1);
            refused.note(&BatchHeader::parse(&batch).unwrap(), NOW);
        }
        assert_eq!(refused.producers.len(), MAX_REFUSED);
    }
}
