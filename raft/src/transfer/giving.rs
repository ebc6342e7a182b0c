//! The giving side: sessions.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use odradek_protocol::ids::{NodeId, Offset};
use odradek_storage::{Export, Piece};
use tokio::time::Instant;

use super::Transfers;
use crate::error::RaftError;
use crate::group::Group;
use crate::node::blocking;
use crate::observer::Leadership;
use crate::rpc::{RecordsOpened, RecordsRead, RecordsSession};
use crate::types::LogId;

/// A session ends when nobody has read it for so long.
const SESSION_IDLE: Duration = Duration::from_secs(30);
/// Largest piece that is read at a time.
pub(super) const PIECE_MAX_BYTES: u32 = 512 << 10;
/// How long the leader may take to say what may be dropped.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Beyond every offset.
const ANY: Offset = Offset::new(i64::MAX);

/// What is given to one replica.
pub(super) struct Session {
    number: u64,
    export: Arc<Export>,
    used: Instant,
}

impl Session {
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.used) >= SESSION_IDLE
    }
}

impl Group {
    /// Opens what is below the entry after `last` for the replica on `node`, in place of what it had
    /// opened before.
    pub(crate) fn open_records(
        &self,
        node: NodeId,
        last: LogId,
    ) -> Result<RecordsOpened, RaftError> {
        let now = Instant::now();
        let transfers = &self.transfers;
        transfers.end_idle(now);
        let key = (self.key(), node);
        {
            let mut sessions = transfers.sessions.lock();
            sessions.remove(&key);
            if sessions.len() >= transfers.limits.giving {
                return Ok(RecordsOpened::Busy);
            }
        }
        let Some(export) = self.core().export(last)? else {
            return Ok(RecordsOpened::Gone);
        };
        let number = transfers.number();
        let opened = RecordsSession {
            session: number,
            log_start: export
                .log_start()
                .max(self.shared.log_start().min(export.end())),
            end: export.end(),
            files: export.files(),
        };
        let session = Session {
            number,
            export: Arc::new(export),
            used: now,
        };
        transfers.sessions.lock().insert(key, session);
        tokio::spawn(end_when_idle(Arc::downgrade(transfers)));
        tracing::info!(group = %self.key(), %node, end = %opened.end, "a replica is given records");
        Ok(RecordsOpened::Open(opened))
    }

    /// Reads a piece; `None` if the session has ended.
    pub(crate) async fn read_records(
        &self,
        node: NodeId,
        read: RecordsRead,
    ) -> Result<Option<Bytes>, RaftError> {
        let export = {
            let mut sessions = self.transfers.sessions.lock();
            let session = sessions.get_mut(&(self.key(), node));
            session
                .filter(|session| session.number == read.session)
                .map(|session| {
                    session.used = Instant::now();
                    Arc::clone(&session.export)
                })
        };
        let Some(export) = export else {
            return Ok(None);
        };
        let piece = Piece {
            len: read.piece.len.min(PIECE_MAX_BYTES),
            ..read.piece
        };
        blocking(move || {
            let bytes = export.read(piece);
            bytes.map_err(|error| RaftError::io("read records for another replica", error))
        })
        .await
    }

    /// The replica on `node` has all that it wanted.
    pub(crate) fn close_records(&self, node: NodeId) {
        self.transfers.sessions.lock().remove(&(self.key(), node));
    }

    /// Below which offset entries may be dropped as far as others that are within reach have still to
    /// be given them: what all of these have. Asks the leader, who knows. See the module on what it is
    /// for.
    pub(crate) async fn droppable_end(&self) -> Result<Offset, RaftError> {
        if !self.is_whole() {
            return Ok(Offset::ZERO);
        }
        let members = self.membership();
        if members.learners.is_empty() && members.voters.iter().all(|voter| *voter == self.node) {
            return Ok(ANY);
        }
        match self.leadership() {
            Leadership::Leader { ready: true, .. } => self.held_by_all(),
            Leadership::Follower {
                leader: Some(leader),
                ..
            } => {
                let link = self.link_to(leader);
                let asked = tokio::time::timeout(ANSWER_TIMEOUT, self.network.droppable(link));
                Ok(asked
                    .await
                    .ok()
                    .and_then(Result::ok)
                    .unwrap_or(Offset::ZERO))
            }
            _ => Ok(Offset::ZERO),
        }
    }

    /// On the leader: below which offset every replica that is within reach has everything. One that
    /// has not been in step for too long is not waited for.
    pub(crate) fn held_by_all(&self) -> Result<Offset, RaftError> {
        let now = Instant::now();
        let hold = self.transfers.hold();
        let held = self.replication()?.into_iter().filter(|replica| {
            replica.node != self.node
                && self.is_reachable(replica.node)
                && now.saturating_duration_since(replica.last_caught_up) < hold
        });
        Ok(held.map(|replica| replica.matched).min().unwrap_or(ANY))
    }
}

/// Ends sessions that nobody reads until there is none left.
async fn end_when_idle(transfers: std::sync::Weak<Transfers>) {
    loop {
        tokio::time::sleep(SESSION_IDLE).await;
        let Some(transfers) = transfers.upgrade() else {
            return;
        };
        transfers.end_idle(Instant::now());
        if transfers.sessions.lock().is_empty() {
            return;
        }
    }
}
