//! What of a log is worth compacting: a function of facts, no I/O.
//!
//! Only sealed segments are compacted, and of those only the ones that lie wholly below a bound
//! that the caller gives: nothing that is not committed, that belongs to an undecided transaction,
//! or that Raft may still count batches in. `clean end ≤ end of the plan ≤ bound`.

use odradek_protocol::ids::{Offset, TimestampMs};

/// When a log is compacted, and how. Names and defaults are Kafka's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompactionConfig {
    /// Share of dirty bytes at which compaction is worth its cost
    /// (`min.cleanable.dirty.ratio`).
    pub min_dirty_ratio: f64,
    /// Age below which records are left alone (`min.compaction.lag.ms`).
    pub min_lag_ms: u64,
    /// Age of a dirty record at which compaction is due whatever the ratio
    /// (`max.compaction.lag.ms`).
    pub max_lag_ms: u64,
    /// How long a tombstone stays after the first compaction that sees it
    /// (`delete.retention.ms`).
    pub delete_retention_ms: u64,
}

impl Default for CompactionConfig {
    fn default() -> Self {
        Self {
            min_dirty_ratio: 0.5,
            min_lag_ms: 0,
            max_lag_ms: i64::MAX as u64,
            delete_retention_ms: 24 * 60 * 60 * 1000,
        }
    }
}

/// What is known of a segment without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentFacts {
    /// Its first offset.
    pub base_offset: Offset,
    /// Offset after its last.
    pub next_offset: Offset,
    /// Bytes of its batches.
    pub size_bytes: u64,
    /// Largest timestamp of its records.
    pub max_timestamp: TimestampMs,
}

/// Something to compact.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompactionPlan {
    /// Everything below has been compacted before.
    pub clean_end: Offset,
    /// Base offset of the first segment that is left alone.
    pub end: Offset,
    /// Dirty bytes ÷ all bytes below `end`.
    pub dirty_ratio: f64,
}

/// Decides whether a log should be compacted now, and how far. `sealed` are its segments but for
/// the active one, oldest first; everything below `clean_end` was compacted before.
pub fn plan(
    sealed: &[SegmentFacts],
    clean_end: Offset,
    bound: Offset,
    config: &CompactionConfig,
    now: TimestampMs,
) -> Option<CompactionPlan> {
    let min_lag = i64::try_from(config.min_lag_ms).unwrap_or(i64::MAX);
    let max_lag = i64::try_from(config.max_lag_ms).unwrap_or(i64::MAX);
    let old_enough = |segment: &&SegmentFacts| {
        min_lag == 0 || segment.max_timestamp.get() <= now.get().saturating_sub(min_lag)
    };
    let eligible = sealed
        .iter()
        .take_while(|segment| segment.next_offset <= bound)
        .take_while(old_enough);
    let (mut clean, mut dirty, mut end) = (0_u64, 0_u64, None);
    let mut overdue = false;
    for segment in eligible {
        if segment.next_offset <= clean_end {
            clean += segment.size_bytes;
            continue;
        }
        dirty += segment.size_bytes;
        end = Some(segment.next_offset);
        overdue |= segment.max_timestamp.get() >= 0
            && segment.max_timestamp.get() < now.get().saturating_sub(max_lag);
    }
    let end = end.filter(|_| dirty > 0)?;
    let dirty_ratio = dirty as f64 / (clean + dirty) as f64;
    (overdue || dirty_ratio >= config.min_dirty_ratio).then_some(CompactionPlan {
        clean_end,
        end,
        dirty_ratio,
    })
}

/// Splits segments into runs that become one segment each: consecutive ones whose bytes and offsets
/// fit. A segment that is too large by itself stays alone.
pub(super) fn group(
    segments: &[SegmentFacts],
    segment_bytes: u32,
    largest_distance: u32,
) -> Vec<std::ops::Range<usize>> {
    let mut groups = Vec::new();
    let mut start = 0;
    let mut bytes = 0_u64;
    for (index, segment) in segments.iter().enumerate() {
        let base = segments
            .get(start)
            .map_or(segment.base_offset, |first| first.base_offset);
        let distance = segment.next_offset.get() - base.get();
        let fits = bytes + segment.size_bytes <= u64::from(segment_bytes)
            && distance <= i64::from(largest_distance);
        if index > start && !fits {
            groups.push(start..index);
            start = index;
            bytes = 0;
        }
        bytes += segment.size_bytes;
    }
    if start < segments.len() {
        groups.push(start..segments.len());
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: TimestampMs = TimestampMs::new(1_000_000);

    fn segment(base: i64, next: i64, size_bytes: u64, max_timestamp: i64) -> SegmentFacts {
        SegmentFacts {
            base_offset: Offset::new(base),
            next_offset: Offset::new(next),
            size_bytes,
            max_timestamp: TimestampMs::new(max_timestamp),
        }
    }

    fn three() -> [SegmentFacts; 3] {
        [
            segment(0, 10, 100, 100_000),
            segment(10, 20, 100, 500_000),
            segment(20, 30, 100, 900_000),
        ]
    }

    fn planned(clean_end: i64, bound: i64, config: CompactionConfig) -> Option<(i64, f64)> {
        let plan = plan(
            &three(),
            Offset::new(clean_end),
            Offset::new(bound),
            &config,
            NOW,
        )?;
        Some((plan.end.get(), plan.dirty_ratio))
    }

    #[test]
    fn a_log_is_compacted_from_its_share_of_dirty_bytes_on() {
        let config = CompactionConfig::default();
        assert_eq!(planned(0, 30, config), Some((30, 1.0)));
        assert_eq!(planned(10, 30, config), Some((30, 2.0 / 3.0)));
        assert_eq!(planned(20, 30, config), None);
        assert_eq!(planned(30, 30, config), None);
    }

    #[test]
    fn nothing_at_or_above_the_bound_is_compacted() {
        let config = CompactionConfig::default();
        assert_eq!(planned(0, 29, config), Some((20, 1.0)));
        assert_eq!(planned(0, 9, config), None);
    }

    #[test]
    fn young_segments_and_all_after_them_are_left_alone() {
        let config = CompactionConfig {
            min_lag_ms: 200_000,
            ..CompactionConfig::default()
        };
        assert_eq!(planned(0, 30, config), Some((20, 1.0)));
    }

    #[test]
    fn an_old_dirty_record_makes_compaction_due_whatever_the_ratio() {
        let mut config = CompactionConfig {
            min_dirty_ratio: 1.0,
            max_lag_ms: 600_000,
            ..CompactionConfig::default()
        };
        assert_eq!(planned(10, 30, config), None, "500 s are not yet too old");
        config.max_lag_ms = 400_000;
        assert_eq!(planned(10, 30, config), Some((30, 2.0 / 3.0)));
    }

    #[test]
    fn small_neighbours_become_one_segment() {
        let segments = [
            segment(0, 10, 40, 0),
            segment(10, 20, 40, 0),
            segment(20, 30, 40, 0),
            segment(30, 40, 500, 0),
            segment(40, 1_000, 10, 0),
            segment(1_000, 1_010, 10, 0),
        ];
        assert_eq!(
            group(&segments, 100, 500),
            [0..2, 2..3, 3..4, 4..5, 5..6],
            "by size, then by the distance of offsets"
        );
        assert_eq!(group(&segments, 10_000, 1 << 30).first(), Some(&(0..6)));
        assert!(group(&[], 100, 100).is_empty());
    }
}
