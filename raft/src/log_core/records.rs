//! Records that no entry stands for any more: giving them to another replica, and what of another's is
//! beside the log.

use odradek_protocol::ids::Offset;
use odradek_storage::{Export, Incoming, TransferError, TransferFile};

use super::{Core, ReceivedLog};
use crate::error::RaftError;
use crate::types::{LogId, RaftIndex};

impl Core {
    /// The records before the entry after `last`, if that is where entries begin or are about to.
    pub(crate) fn export(&self, last: LogId) -> Result<Option<Export>, RaftError> {
        let state = self.state.lock();
        let purged = state.map.purged();
        let snapshot = [Some(purged), state.snapshot.as_ref()]
            .into_iter()
            .flatten()
            .find(|snapshot| snapshot.last == Some(last));
        match snapshot {
            Some(snapshot) => Ok(state.log.export(snapshot.start_offset)?),
            None => Ok(None),
        }
    }

    /// Whether this log has everything up to an entry that is committed.
    pub(crate) fn has_all_up_to(&self, last: LogId) -> bool {
        let state = self.state.lock();
        state.applied.is_some_and(|applied| applied >= last)
            || state.map.log_id_at(RaftIndex::new(last.index())) == Some(last)
    }

    /// Begins to receive records beside the log. What was received before goes.
    pub(crate) fn begin_incoming(
        &self,
        bounds: (Offset, Offset),
        files: Vec<TransferFile>,
    ) -> Result<Incoming, TransferError> {
        let mut state = self.state.lock();
        state.received = None;
        state.log.begin_incoming(bounds, files)
    }

    /// Removes what is left of a transfer that broke off.
    pub(crate) fn discard_incoming(&self) -> Result<(), RaftError> {
        Ok(self.state.lock().log.discard_incoming()?)
    }

    pub(crate) fn set_received(&self, received: ReceivedLog) {
        self.state.lock().received = Some(received);
    }

    /// Whether the records before the entry after `last`, which begins at `end`, are beside the log.
    pub(crate) fn has_received(&self, last: LogId, end: Offset) -> bool {
        let received = self.state.lock().received;
        received.is_some_and(|received| received.last == last && received.log.end == end)
    }

    /// Removes what was received and is not needed any more.
    pub(crate) fn forget_useless(&self) {
        let mut state = self.state.lock();
        let Some(received) = state.received else {
            return;
        };
        if state
            .applied
            .is_some_and(|applied| applied >= received.last)
        {
            state.received = None;
            if let Err(error) = state.log.discard_incoming() {
                tracing::warn!(group = %self.shared.key(), %error, "files are left of a transfer");
            }
        }
    }
}
