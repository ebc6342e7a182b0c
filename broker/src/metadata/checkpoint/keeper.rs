//! Takes checkpoints when they are due, and lets go of the log below.

use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::ids::Offset;
use odradek_raft::Group;
use tokio::time::Instant;

use super::store::Store;
use super::{CheckpointId, KEPT};
use crate::clock::Clock;
use crate::metadata::following::Published;

/// Pause after a checkpoint that could not be written.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Part of the distance between two checkpoints that a segment of the log takes: the log is let go of by
/// whole segments.
const SEGMENTS_BETWEEN: u64 = 4;
/// Shortest segment.
const SEGMENT_MIN_BYTES: u32 = 4 << 10;
/// Longest segment, which is Kafka's default.
const SEGMENT_MAX_BYTES: u32 = 1 << 30;

/// When a checkpoint is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointRules {
    /// `metadata.log.max.record.bytes.between.snapshots`.
    pub bytes_between: u64,
    /// `metadata.log.max.snapshot.interval.ms`; `None` waits for the bytes alone.
    pub interval: Option<Duration>,
}

impl Default for CheckpointRules {
    fn default() -> Self {
        Self {
            bytes_between: 20 << 20,
            interval: Some(Duration::from_secs(60 * 60)),
        }
    }
}

impl CheckpointRules {
    /// How long a segment of the log may be.
    pub fn segment_bytes(&self) -> u32 {
        let part = self.bytes_between / SEGMENTS_BETWEEN;
        let part = u32::try_from(part).unwrap_or(SEGMENT_MAX_BYTES);
        part.clamp(SEGMENT_MIN_BYTES, SEGMENT_MAX_BYTES)
    }
}

/// See the module.
pub(in crate::metadata) struct Keeper {
    pub(in crate::metadata) store: Arc<Store>,
    pub(in crate::metadata) group: Arc<Group>,
    pub(in crate::metadata) published: Arc<Published>,
    pub(in crate::metadata) rules: CheckpointRules,
    pub(in crate::metadata) clock: Arc<dyn Clock>,
}

impl Keeper {
    /// Keeps until there are no more images. `newest` is where the last checkpoint ends.
    pub(in crate::metadata) async fn run(self, mut newest: Offset) {
        let mut images = self.published.subscribe();
        let mut bytes_before = 0;
        let mut due_at = self.due_at(Instant::now());
        let mut not_before = Instant::now();
        loop {
            let image = Arc::clone(&images.borrow_and_update());
            let bytes = self.published.log_bytes();
            let now = Instant::now();
            let is_due = bytes.saturating_sub(bytes_before) >= self.rules.bytes_between
                || due_at.is_some_and(|due| due <= now);
            if is_due && image.next_offset() > newest && now >= not_before {
                let end = image.next_offset();
                match self.store.write(image, self.clock.wall()).await {
                    Ok(kept) => {
                        newest = end;
                        bytes_before = bytes;
                        due_at = self.due_at(Instant::now());
                        self.let_go(&kept).await;
                    }
                    Err(error) => {
                        // Nothing rests on it: the log is still there, and the next one is another file.
                        tracing::error!(%error, "a checkpoint of the metadata cannot be written");
                        not_before = Instant::now() + RETRY_AFTER;
                    }
                }
            } else if due_at.is_some_and(|due| due <= now) {
                due_at = self.due_at(now.max(not_before));
            }
            tokio::select! {
                changed = images.changed() => if changed.is_err() {
                    return;
                },
                () = sleep_until(due_at) => {}
            }
        }
    }

    fn due_at(&self, now: Instant) -> Option<Instant> {
        self.rules.interval.map(|interval| now + interval)
    }

    /// Lets go of the log below the oldest checkpoint that is kept, as far as whole segments go.
    pub(in crate::metadata) async fn let_go(&self, kept: &[CheckpointId]) {
        let [oldest, _, ..] = kept else { return };
        debug_assert!(kept.len() <= KEPT);
        let high_watermark = self.group.offsets().high_watermark.offset();
        if oldest.end <= high_watermark {
            self.group.forget_below(oldest.end);
        }
        if let Some(newest) = kept.last() {
            tracing::info!(%newest, log_start = %self.group.offsets().log_start.offset(),
                "a checkpoint of the metadata was taken");
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
