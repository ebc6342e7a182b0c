//! What a producer waits for after its batch has been enqueued.
//!
//! A batch without a producer id is waited for by one request only. A batch with one may be sent
//! again while it is in flight, so its outcome is shared.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::Shared;
use odradek_protocol::ids::TimestampMs;
use odradek_raft::{AppendOutcome, ProposeError};
use tokio::sync::oneshot;

use super::error::PartitionError;
use super::in_flight::Ticket;
use super::{MoreThanMajority, PartitionEvents};

/// The channel on which a group tells the fate of a batch.
pub(crate) type Committed = oneshot::Receiver<Result<AppendOutcome, ProposeError>>;

/// The shared outcome of a batch that may be sent again.
#[derive(Clone, Debug)]
pub struct SharedOutcome(Shared<Committed>);

impl SharedOutcome {
    pub(crate) fn new(committed: Committed) -> Self {
        Self(committed.shared())
    }

    /// Whether it is known that the batch will not be committed by this leader.
    pub(super) fn has_failed(&self) -> bool {
        let outcome = self.0.clone().now_or_never();
        matches!(outcome, Some(Ok(Err(_)) | Err(_)))
    }

    /// Waits for it; `None` if whoever knew is gone.
    #[cfg(test)]
    pub(crate) async fn wait(self) -> Option<Result<AppendOutcome, ProposeError>> {
        self.0.await.ok()
    }
}

impl Ticket for SharedOutcome {
    fn is_settled(&self) -> bool {
        self.0.clone().now_or_never().is_some()
    }
}

#[derive(Debug)]
enum Outcome {
    Pending(Committed),
    Shared(SharedOutcome),
    Known(AppendOutcome),
}

/// A batch that is on its way into the log.
#[derive(Debug)]
pub struct Appending {
    outcome: Outcome,
    appended: Option<oneshot::Receiver<AppendOutcome>>,
    log_append_time: Option<TimestampMs>,
    more_than_majority: Option<MoreThanMajority>,
    events: Arc<PartitionEvents>,
}

impl Appending {
    /// The batch counts as committed only once more replicas than a majority have it.
    pub(super) fn and(mut self, more: Option<MoreThanMajority>) -> Self {
        self.more_than_majority = more;
        self
    }

    pub(super) fn new(
        committed: Committed,
        appended: Option<oneshot::Receiver<AppendOutcome>>,
        log_append_time: Option<TimestampMs>,
        events: Arc<PartitionEvents>,
    ) -> Self {
        Self {
            outcome: Outcome::Pending(committed),
            appended,
            log_append_time,
            more_than_majority: None,
            events,
        }
    }

    pub(super) fn shared(
        outcome: SharedOutcome,
        appended: Option<oneshot::Receiver<AppendOutcome>>,
        log_append_time: Option<TimestampMs>,
        events: Arc<PartitionEvents>,
    ) -> Self {
        Self {
            outcome: Outcome::Shared(outcome),
            appended,
            log_append_time,
            more_than_majority: None,
            events,
        }
    }

    pub(super) fn known(
        outcome: AppendOutcome,
        log_append_time: Option<TimestampMs>,
        events: Arc<PartitionEvents>,
    ) -> Self {
        Self {
            outcome: Outcome::Known(outcome),
            appended: None,
            log_append_time,
            more_than_majority: None,
            events,
        }
    }

    /// The time the broker stamped the records with, on a LogAppendTime topic.
    pub fn log_append_time(&self) -> Option<TimestampMs> {
        self.log_append_time
    }

    /// Waits until a majority, and as many as `min.insync.replicas` says, hold the batch on stable
    /// storage.
    pub async fn committed(self) -> Result<AppendOutcome, PartitionError> {
        let outcome = match self.outcome {
            Outcome::Known(outcome) => Ok(Ok(outcome)),
            Outcome::Pending(committed) => committed.await,
            Outcome::Shared(SharedOutcome(committed)) => committed.await,
        };
        let outcome = match outcome {
            Ok(outcome) => outcome.map_err(|error| self.events.explain(error))?,
            Err(_group_is_gone) => {
                let gone = PartitionError::NotLeader { leader: None };
                return Err(self.events.explain(gone));
            }
        };
        if let Some(more) = &self.more_than_majority {
            let held = more.have(outcome.last_offset.plus(1)).await;
            held.map_err(|error| self.events.explain(error))?;
        }
        Ok(outcome)
    }

    /// Waits until the batch is in the leader's log, which is all that `acks=1` asks for. A batch
    /// that was sent before is waited for until it is committed.
    pub async fn appended(mut self) -> Result<AppendOutcome, PartitionError> {
        match self.appended.take() {
            Some(appended) => match appended.await {
                Ok(outcome) => Ok(outcome),
                Err(_dropped_before_the_append) => self.committed().await,
            },
            None => self.committed().await,
        }
    }

    /// [`Self::committed`] within `limit`.
    pub async fn committed_within(self, limit: Duration) -> Result<AppendOutcome, PartitionError> {
        tokio::time::timeout(limit, self.committed())
            .await
            .unwrap_or(Err(PartitionError::TimedOut))
    }
}
