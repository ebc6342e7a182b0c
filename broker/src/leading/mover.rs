//! Carries out one step of a reassignment: the I/O that `reassignment` decides on.

use std::sync::Arc;
use std::time::Duration;

use odradek_raft::seldom::Seldom;
use odradek_raft::{GroupKey, RaftError};
use tokio::sync::watch;

use super::metadata_leader::{MetadataLeader, ReportError};
use super::reassignment::{Assignment, Step};
use super::truth;
use crate::metadata::image::MetadataImage;
use crate::partition::Partition;

/// How long one step may take. One that is cut off is looked at afresh.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a step came to nothing. The next look takes it up again.
#[derive(Debug, thiserror::Error)]
pub(super) enum MoveError {
    #[error(transparent)]
    Group(#[from] RaftError),
    #[error(transparent)]
    Metadata(#[from] ReportError),
    #[error("the replicas are wanted differently by now")]
    OtherWish,
    #[error("it took longer than {STEP_TIMEOUT:?}")]
    TimedOut,
    #[error("no replica took over")]
    NobodyTookOver,
}

/// One step of one partition.
pub(super) struct Move {
    pub(super) partition: Arc<Partition>,
    pub(super) step: Step,
    /// What the step was decided on.
    pub(super) wish: Assignment,
    pub(super) metadata: Arc<dyn MetadataLeader>,
    pub(super) images: watch::Receiver<Arc<MetadataImage>>,
    /// Bounds what the log says of steps that fail: each is tried again with the next look.
    pub(super) troubles: Arc<Seldom<GroupKey>>,
}

impl Move {
    pub(super) async fn carry_out(self) -> GroupKey {
        let key = self.partition.group().key();
        let (partition, step) = (Arc::clone(&self.partition), self.step.clone());
        let troubles = Arc::clone(&self.troubles);
        let outcome = match tokio::time::timeout(STEP_TIMEOUT, self.try_carry_out()).await {
            Ok(outcome) => outcome,
            Err(_) => Err(MoveError::TimedOut),
        };
        match outcome {
            Ok(()) => tracing::info!(?partition, ?step, "reassignment goes on"),
            Err(error) => {
                if let Some(left_out) = troubles.may_say(key) {
                    tracing::warn!(?partition, ?step, %error, left_out, "reassignment is held up");
                }
            }
        }
        key
    }

    async fn try_carry_out(mut self) -> Result<(), MoveError> {
        let step = self.step.clone();
        let group = Arc::clone(self.partition.group());
        match step {
            Step::Settled | Step::WaitFor(_) => Ok(()),
            Step::AddLearner(node) => Ok(group.add_learner(node).await?),
            Step::RemoveLearner(node) => Ok(group.remove_learner(node).await?),
            Step::ChangeVoters(voters) => {
                self.require_newest_wish().await?;
                Ok(group.change_voters(voters).await?)
            }
            Step::HandOver(candidates) => {
                self.require_newest_wish().await?;
                for node in candidates {
                    if group.transfer_leader(node).await.is_ok() {
                        return Ok(());
                    }
                }
                Err(MoveError::NobodyTookOver)
            }
        }
    }

    /// This broker's metadata may be behind, and the voters may have been changed by what it does
    /// not know yet. They are changed only by what is wanted now.
    async fn require_newest_wish(&mut self) -> Result<(), MoveError> {
        let end = self.metadata.report(Vec::new()).await?;
        let image = self
            .images
            .wait_for(|image| image.next_offset() >= end)
            .await
            .map_err(|_| MoveError::OtherWish)?
            .clone();
        let key = self.partition.group().key();
        let topic = image.topic_by_id(key.topic_id);
        let state = topic.and_then(|topic| topic.partition(key.partition));
        match state {
            Some(state) if truth::assignment(state) == self.wish => Ok(()),
            _ => Err(MoveError::OtherWish),
        }
    }
}
