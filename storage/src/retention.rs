//! Which records may go by age or by size (`retention.ms`, `retention.bytes`).
//!
//! The decision is a pure function of what the segments look like; acting on it is
//! [`Log::set_log_start`]. Only whole segments go, oldest first, and only below the high
//! watermark. The active segment goes like any other: once it has wholly expired, the retention
//! point is the log end, and the caller rolls before it moves the log start.

use odradek_protocol::ids::{Offset, TimestampMs};

use crate::config::LogConfig;
use crate::error::StorageError;
use crate::log::Log;

/// A segment as retention sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentAge {
    /// Offset after its last record.
    pub next_offset: Offset,
    /// Size in bytes.
    pub size: u64,
    /// Time from which its age counts.
    pub newest: TimestampMs,
}

/// Where the log may start, given its segments, oldest first; `None` if nothing may go.
pub fn retention_point(
    config: &LogConfig,
    segments: &[SegmentAge],
    high_watermark: Offset,
    now: TimestampMs,
) -> Option<Offset> {
    if !config.delete_old_segments {
        return None;
    }
    let total: u64 = segments.iter().map(|segment| segment.size).sum();
    let mut surplus = match config.retention_bytes {
        Some(limit) => total.saturating_sub(limit),
        None => 0,
    };
    let mut point = None;
    for segment in segments {
        let expired = config.retention_ms.is_some_and(|limit| {
            let age = now.get().saturating_sub(segment.newest.get());
            age > i64::try_from(limit).unwrap_or(i64::MAX)
        });
        // Size takes a segment only if the rest still fills the allowance.
        let too_much = segment.size > 0 && surplus >= segment.size;
        if segment.size == 0 || segment.next_offset > high_watermark || !(expired || too_much) {
            break;
        }
        surplus = surplus.saturating_sub(segment.size);
        point = Some(segment.next_offset);
    }
    point
}

impl Log {
    /// Where the log may start now by its settings for retention; `None` if nothing may go.
    pub fn retention_point(
        &self,
        now: TimestampMs,
        high_watermark: Offset,
    ) -> Result<Option<Offset>, StorageError> {
        if !self.config.delete_old_segments
            || self.config.retention_ms.is_none() && self.config.retention_bytes.is_none()
        {
            return Ok(None);
        }
        let segments = self.shared.segments.load_full();
        let mut ages = Vec::with_capacity(segments.len());
        for segment in segments.iter() {
            let end = segment.end();
            let mut newest = segment.max_timestamp()?;
            // Without timestamps, or with one from the future that would hold the segment (and all
            // after it) for as long, the age counts from the last write.
            if newest.get() < 0 || newest > now {
                newest = self
                    .disk
                    .modified(segment.log.path())
                    .map_err(|error| StorageError::io("stat", segment.log.path(), error))?
                    .min(now);
            }
            ages.push(SegmentAge {
                next_offset: end.next_offset,
                size: u64::from(end.size),
                newest,
            });
        }
        let point = retention_point(&self.config, &ages, high_watermark, now);
        Ok(point.filter(|offset| *offset > self.log_start()))
    }
}
