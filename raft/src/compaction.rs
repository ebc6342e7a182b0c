//! Compaction of a group's log.
//!
//! A Raft index is found by counting batches, so a segment may be compacted only once no entry
//! stands for its batches any more: first the entries are dropped, as they are below the log start,
//! then the records. `log start ≤ compacted records < first entry`.
//!
//! Each replica compacts its own segments, as far as every replica within reach has the entries; one
//! that lacks entries which were dropped is given the records (module `transfer`). So replicas agree
//! on the newest record of every key, and at which offset it is, and not on what else is still there.

use std::ops::ControlFlow;
use std::time::Duration;

use odradek_protocol::ids::{Offset, TimestampMs};
use odradek_storage::{CompactionConfig, CompactionStats};

use crate::error::RaftError;
use crate::group::Group;
use crate::node::blocking;

/// How long to wait for openraft to drop entries, which it does between two other things.
const DROP_PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two looks at whether it has.
const DROP_POLL: Duration = Duration::from_millis(5);

/// What to compact, and with what means.
pub struct CompactionRequest {
    /// When and how.
    pub config: CompactionConfig,
    /// Memory for the map of keys.
    pub map_bytes: usize,
    /// The time.
    pub now: TimestampMs,
    /// Asked again and again with the bytes read and written since; may wait, or end the run. Not
    /// called on a thread that serves clients.
    pub pace: Box<dyn FnMut(u64) -> ControlFlow<()> + Send>,
}

/// What a compaction did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionOutcome {
    /// Where the next one begins.
    pub clean_end: Offset,
    /// Figures.
    pub stats: CompactionStats,
}

impl Group {
    /// Compacts the log if that is due. Returns `None` if it was not, or `pace` ended it.
    pub async fn compact(
        &self,
        request: CompactionRequest,
    ) -> Result<Option<CompactionOutcome>, RaftError> {
        // Only what is durable for good may be compacted.
        self.checkpoint().await?;
        let offsets = self.offsets();
        let stable = offsets.last_stable.offset();
        let due = self.core().with_log(|log| {
            let begun = log.begin_compaction(log.clean_end(), stable, &request.config, request.now);
            begun.map(|begun| begun.map(|compaction| compaction.plan().end))
        })?;
        let Some(end) = due else { return Ok(None) };
        if self.core().first_entry_offset() < end {
            let held = self.droppable_end().await?;
            self.drop_entries_below(end.min(held)).await;
        }
        let bound = stable.min(self.core().first_entry_offset());
        let begun = self.core().with_log(|log| {
            log.begin_compaction(log.clean_end(), bound, &request.config, request.now)
        })?;
        let Some(compaction) = begun else {
            return Ok(None);
        };
        let core = self.core().clone();
        let CompactionRequest {
            map_bytes,
            mut pace,
            now,
            ..
        } = request;
        blocking(move || {
            let mut pace_while_open = |bytes| match core.shared.is_closed() {
                true => ControlFlow::Break(()),
                false => pace(bytes),
            };
            let Some(compacted) = compaction.run(map_bytes, &mut pace_while_open)? else {
                return Ok(None);
            };
            let outcome = CompactionOutcome {
                clean_end: compacted.clean_end,
                stats: compacted.stats,
            };
            let finished = core.with_open_log(|log| log.finish_compaction(compacted, now));
            Ok(finished.transpose()?.map(|()| outcome))
        })
        .await
    }

    async fn drop_entries_below(&self, end: Offset) {
        self.core().allow_compaction_below(end);
        self.drop_old_entries().await;
        let dropped = async {
            while self.core().first_entry_offset() < end && self.core().snapshot_point().is_some() {
                tokio::time::sleep(DROP_POLL).await;
            }
        };
        // What has not been dropped in time is left for the next compaction.
        let _ = tokio::time::timeout(DROP_PATIENCE, dropped).await;
    }
}
