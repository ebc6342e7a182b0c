//! Moving a group's log to another data directory of the same node.
//!
//! The copy is made while the group is at work ([`Group::begin_move`]). For the rest the group is closed, and
//! opened again by whoever asks for the move: in its new directory, or in the old one if nothing has come of it.
//!
//! The vote goes along: it is durable in the new directory before the log counts there, and forgotten in the old
//! one after that. Between the two both know it; an opening that finds no data goes where the later vote is.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use odradek_storage::{Relocation, finish_relocation};

use crate::error::RaftError;
use crate::group::Group;
use crate::node::{RaftNode, blocking};
use crate::types::GroupKey;

/// Why a group is not in its new directory.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// It is where it was, and may be opened there.
    #[error("it stays where it was: {0}")]
    Stayed(#[source] RaftError),
    /// It is where it was, for its log was changed in the middle while it was copied; it may be tried again.
    #[error("it stays where it was: its log was changed while it was copied")]
    Void,
    /// The new directory has failed at a moment of which nobody knows whether the log counts there. The next
    /// start does; until then neither may be opened.
    #[error("where it is shows at the next start: {0}")]
    Unknown(#[source] RaftError),
}

impl Group {
    /// Begins to copy the log into a directory that nobody else uses, made anew.
    pub fn begin_move(&self, to: &Path) -> Result<Relocation, RaftError> {
        Ok(self.core.with_log(|log| log.begin_relocation(to))?)
    }

    /// Whether the log has been changed so that a copy of it is worth nothing.
    pub fn makes_void(&self, relocation: &Relocation) -> bool {
        self.core.with_log(|log| relocation.is_void(log))
    }
}

impl RaftNode {
    /// Closes a group whose log has been copied and has the copy take the log's place, in the directory `goal`.
    /// Returns the directory of the old log, which the caller removes. In no case is the group open afterwards.
    pub async fn move_group(
        self: &Arc<Self>,
        key: GroupKey,
        relocation: Relocation,
        goal: PathBuf,
    ) -> Result<Option<PathBuf>, MoveError> {
        let group = self.take(key).map_err(MoveError::Stayed)?;
        let node = Arc::clone(self);
        // Goes on to its end though nobody may wait for it any more.
        let moving = tokio::spawn(async move {
            let moved = node.move_closed(&group, relocation, goal).await;
            node.forget(key);
            moved
        });
        let moved = moving.await;
        moved.unwrap_or_else(|error| {
            let cause = RaftError::Stopped(error.to_string().into());
            Err(MoveError::Unknown(cause))
        })
    }

    async fn move_closed(
        &self,
        group: &Group,
        mut relocation: Relocation,
        goal: PathBuf,
    ) -> Result<Option<PathBuf>, MoveError> {
        let (key, from) = (group.key(), group.dir().to_path_buf());
        group.stop(true).await.map_err(MoveError::Stayed)?;
        let old_dir = self.data_dir_of(&from).map_err(MoveError::Stayed)?;
        let new_dir = self.data_dir_of(&goal).map_err(MoveError::Stayed)?;
        if group.makes_void(&relocation) {
            return Err(MoveError::Void);
        }
        let relocation = blocking(move || {
            relocation.finish()?;
            Ok(relocation)
        })
        .await
        .map_err(MoveError::Stayed)?;
        if let Some(vote) = old_dir.votes.get(key) {
            let saved = new_dir.votes.save(key, vote).await;
            saved.map_err(|error| MoveError::Stayed(RaftError::io("save a vote", error)))?;
        }
        let (disk, now) = (self.disk().clone(), self.now());
        let retired = blocking(move || {
            relocation.take_place(&goal)?;
            // The move is done; what this does not do the next start does.
            let finished = finish_relocation(&*disk, &goal, Some(&from), now);
            Ok(finished)
        })
        .await;
        let finished = match retired {
            Ok(finished) => finished,
            Err(error) => {
                new_dir.dir.flusher.health().fail(&error);
                return Err(MoveError::Unknown(error));
            }
        };
        group.core.with_log(|log| log.mark_moved());
        if let Err(error) = old_dir.votes.delete(key).await {
            tracing::warn!(group = %key, %error, "the vote stays in the directory that the log has left");
        }
        Ok(finished.unwrap_or_else(|error| {
            tracing::warn!(group = %key, %error, "what is left of a moved log goes at the next start");
            None
        }))
    }
}
