//! What committing an entry does to a partition: the high watermark rises, the log start moves.
//!
//! There is no state to snapshot: the log is the state. A snapshot only says where the log begins
//! once old entries are gone: everything up to the end of a segment that lies below the log
//! start, or may be compacted, is dropped, and a replica that would need it starts with the segment
//! after it. Records that are still readable before that are fetched beside (module `transfer`).
//!
//! Order, on which readers rely: the high watermark is raised before anybody is told that a batch
//! is committed.

use std::io;

use futures_util::{Stream, StreamExt};
use odradek_protocol::ids::Offset;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{EntryPayload, SnapshotMeta};

use crate::entry_map::Purged;
use crate::log_core::CoreHandle;
use crate::rpc::{Snapshot, SnapshotState};
use crate::types::{
    AppendOutcome, AppliedBatch, Command, CommittedLeaderId, LogId, RaftIndex, StoredMembership,
    TypeConfig, term_of,
};
use crate::waiter::CommitWaiter;

/// Applied batches are announced at least this often along a long run of them.
const ANNOUNCE_EVERY: usize = 1024;

/// The state machine of one partition.
pub struct PartitionFsm {
    core: CoreHandle,
}

/// Batches applied and not yet announced.
#[derive(Default)]
struct Applied {
    last: Option<LogId>,
    high_watermark: Option<Offset>,
    waiters: Vec<(CommitWaiter, AppendOutcome)>,
    count: usize,
}

impl PartitionFsm {
    pub(crate) fn new(core: CoreHandle) -> Self {
        Self { core }
    }

    /// An entry that is not a batch is committed, and with it every batch before it.
    fn passes(&self, id: LogId, applied: &mut Applied) {
        applied.last = Some(id);
        let offset = self.core.offset_after(RaftIndex::new(id.index()));
        applied.high_watermark = applied.high_watermark.max(offset);
        self.announce(applied);
    }

    fn announce(&self, applied: &mut Applied) {
        let Applied {
            last,
            high_watermark,
            waiters,
            ..
        } = std::mem::take(applied);
        if let Some(last) = last {
            self.core.set_applied(last);
        }
        if let Some(offset) = high_watermark {
            self.core.raise_high_watermark(offset);
        }
        if let Some(last) = last {
            self.core.set_visible(last);
        }
        for (waiter, outcome) in waiters {
            waiter.committed(outcome);
        }
    }
}

impl RaftStateMachine<TypeConfig> for PartitionFsm {
    type SnapshotData = SnapshotState;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok(self.core.applied_state())
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + Send,
    {
        let mut applied = Applied::default();
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            let id = entry.log_id;
            match entry.payload {
                EntryPayload::Normal(Command::Applied(AppliedBatch { outcome, waiter })) => {
                    applied.last = Some(id);
                    if let Some(outcome) = outcome {
                        applied.high_watermark = Some(outcome.last_offset.plus(1));
                        if let Some(waiter) = waiter {
                            applied.waiters.push((waiter, outcome));
                        }
                    }
                    applied.count += 1;
                    if applied.count >= ANNOUNCE_EVERY {
                        self.announce(&mut applied);
                    }
                }
                EntryPayload::Normal(Command::LogStart(offset)) => {
                    self.passes(id, &mut applied);
                    self.core.move_log_start(offset);
                }
                EntryPayload::Blank => {
                    self.passes(id, &mut applied);
                    self.core
                        .term_is_ready(term_of(&id), RaftIndex::new(id.index()));
                }
                EntryPayload::Membership(membership) => {
                    self.passes(id, &mut applied);
                    self.core.members_committed();
                    self.core.shared.members_changed();
                    self.core.shared.voters_are(&membership);
                }
                EntryPayload::Normal(Command::Batch(_)) => {
                    return Err(io::Error::other("the apply path was given a whole batch"));
                }
            }
            if let Some(responder) = responder {
                self.announce(&mut applied);
                responder.send(());
            }
        }
        self.announce(&mut applied);
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<Builder> {
        let point = self.core.snapshot_point();
        if point.is_none() && !force {
            return None;
        }
        Some(Builder {
            core: self.core.clone(),
            snapshot: point.unwrap_or_else(|| self.core.current_snapshot()),
        })
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder {
            core: self.core.clone(),
            snapshot: self
                .core
                .snapshot_point()
                .unwrap_or_else(|| self.core.current_snapshot()),
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<CommittedLeaderId, u64, ()>,
        snapshot: SnapshotState,
    ) -> io::Result<()> {
        self.core
            .install(Purged {
                last: meta.last_log_id,
                start_offset: snapshot.start_offset,
                log_start: snapshot.log_start,
                membership: meta.last_membership.clone(),
            })
            .await?;
        if let Some(last) = meta.last_log_id {
            self.core.set_visible(last);
        }
        self.core.shared.members_changed();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        let current = self.core.current_snapshot();
        Ok(current.last.is_some().then(|| to_snapshot(current)))
    }
}

/// Builds a snapshot: it is a few numbers, taken when the builder was made.
pub struct Builder {
    core: CoreHandle,
    snapshot: Purged,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = SnapshotState;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        self.core.set_snapshot(self.snapshot.clone());
        Ok(to_snapshot(self.snapshot.clone()))
    }
}

fn to_snapshot(purged: Purged) -> Snapshot {
    Snapshot {
        meta: SnapshotMeta {
            last_log_id: purged.last,
            last_membership: purged.membership,
        },
        snapshot: SnapshotState {
            start_offset: purged.start_offset,
            log_start: purged.log_start,
        },
    }
}
