//! openraft's log storage on a partition's log.
//!
//! A leader's batches get their offsets here and nowhere else. openraft is told that entries are
//! durable once their files are synced, or, with `write.caching`, once they are written.

use std::io;
use std::time::Duration;

use odradek_storage::flush::FlushTarget;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};

use crate::log_core::CoreHandle;
use crate::log_reader::EntryReader;
use crate::types::{Entry, LogId, TypeConfig, Vote};

/// With `write.caching`, batches reach stable storage at most this much later.
const CACHED_FLUSH_AFTER: Duration = Duration::from_millis(100);

/// openraft's log of one group.
pub(crate) struct LogStore {
    core: CoreHandle,
}

impl LogStore {
    pub(crate) fn new(core: CoreHandle) -> Self {
        Self { core }
    }

    fn flush(&self, target: FlushTarget, callback: IOFlushed<TypeConfig>) {
        let core = self.core.clone();
        self.core.flusher.submit(
            target,
            Box::new(move |result| {
                if let Err(error) = &result {
                    core.fail(&error.to_string());
                }
                callback.io_completed(result);
            }),
        );
    }

    /// Has what was written made durable some time later, once for all that is written till then.
    fn flush_later(&self) {
        if !self.core.begin_delayed_flush() {
            return;
        }
        let core = self.core.clone();
        tokio::spawn(async move {
            tokio::time::sleep(CACHED_FLUSH_AFTER).await;
            core.end_delayed_flush();
            // A failure takes the group offline by itself.
            let _ = core.flush(core.flush_target()).await;
        });
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = EntryReader;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let (last_purged_log_id, last_log_id) = self.core.log_state().await?;
        Ok(LogState {
            last_purged_log_id,
            last_log_id,
        })
    }

    async fn get_log_reader(&mut self) -> EntryReader {
        EntryReader::new(self.core.clone())
    }

    /// A vote says that everything this replica acknowledged before it is still there, so that
    /// has to be durable first.
    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.core.shared.vote_changes(vote);
        self.core.flush(self.core.flush_target()).await?;
        let saved = self.core.votes.save(self.core.shared.key(), *vote).await;
        if let Err(error) = &saved {
            self.core.fail(&error.to_string());
        }
        saved?;
        self.core.shared.vote_saved(vote);
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let caching = self.core.append(entries.into_iter().collect()).await?;
        if caching {
            callback.io_completed(Ok(()));
            self.flush_later();
        } else {
            self.flush(self.core.flush_target(), callback);
        }
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> io::Result<()> {
        self.core.truncate_after(last_log_id).await
    }

    async fn purge(&mut self, log_id: LogId) -> io::Result<()> {
        self.core.purge(log_id).await
    }
}
