//! Who waits for a batch.
//!
//! The waiter travels with its batch: into the log, where it learns the offset, and on to the
//! commit. Wherever the batch is dropped instead (refused by a leader that no longer leads,
//! truncated by the next one, lost with a disk), dropping the waiter tells why. So nobody waits
//! for ever, whatever path an entry takes.

use std::fmt;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::error::ProposeError;
use crate::shared::Shared;
use crate::types::AppendOutcome;

/// See the module. Counts as one batch in flight while it lives, and as queued until it is in the
/// log.
pub(crate) struct CommitWaiter {
    shared: Arc<Shared>,
    term: u64,
    queued: bool,
    appended: Option<oneshot::Sender<AppendOutcome>>,
    committed: Option<oneshot::Sender<Result<AppendOutcome, ProposeError>>>,
}

impl CommitWaiter {
    /// A waiter for a batch that the leader of `term` is about to enqueue.
    pub(crate) fn new(
        shared: Arc<Shared>,
        term: u64,
        appended: Option<oneshot::Sender<AppendOutcome>>,
        committed: oneshot::Sender<Result<AppendOutcome, ProposeError>>,
    ) -> Self {
        shared.batch_enters();
        Self {
            shared,
            term,
            queued: true,
            appended,
            committed: Some(committed),
        }
    }

    /// Tells that the batch is in the log.
    pub(crate) fn appended(&mut self, outcome: AppendOutcome) {
        self.queued = false;
        self.shared.batch_appended();
        if let Some(appended) = self.appended.take() {
            // Whoever asked may have gone; that is theirs to decide.
            let _ = appended.send(outcome);
        }
    }

    /// Tells that the batch is committed.
    pub(crate) fn committed(mut self, outcome: AppendOutcome) {
        if let Some(committed) = self.committed.take() {
            let _ = committed.send(Ok(outcome));
        }
    }
}

impl Drop for CommitWaiter {
    fn drop(&mut self) {
        self.shared.batch_leaves();
        if self.queued {
            self.shared.batch_refused(self.term);
        }
        if let Some(committed) = self.committed.take() {
            let _ = committed.send(Err(self.shared.why_dropped()));
        }
    }
}

impl fmt::Debug for CommitWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CommitWaiter")
    }
}
