//! The taking side: from an offer to a log that can be adopted.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use odradek_protocol::ids::NodeId;
use odradek_storage::TransferError;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::giving::PIECE_MAX_BYTES;
use crate::error::RaftError;
use crate::group::Group;
use crate::log_core::ReceivedLog;
use crate::network::{Link, NetworkError};
use crate::node::blocking;
use crate::rpc::{RecordsOpened, RecordsRead, RecordsSession, RecordsWanted, SnapshotOffer};
use crate::types::{LogId, node_id};

/// How long the other node may take for an answer. Its rate may be bounded.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// While the next piece has to wait, the session is made to go on this often.
const KEEP_EVERY: Duration = Duration::from_secs(5);
/// How often a piece is asked for before the transfer is given up.
const ATTEMPTS: u32 = 5;
/// Pause between two of these.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Why a transfer came to nothing. The next offer begins another.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("as many partitions as may be are given their records already")]
    Busy,
    #[error("the node that offered them has others by now")]
    Gone,
    #[error("the group has closed")]
    Closed,
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Unusable(#[from] TransferError),
    #[error(transparent)]
    Failed(#[from] RaftError),
}

/// Where the records are that come with an offer.
pub(crate) enum Records {
    /// No record comes with it that is not here.
    NotNeeded,
    /// Beside the log, and stay there for as long as this is held.
    Here(OwnedMutexGuard<()>),
    /// On their way.
    Coming,
}

impl Group {
    pub(crate) fn link_to(&self, to: NodeId) -> Link {
        Link {
            from: self.node,
            to,
            group: self.key(),
        }
    }

    /// Where the records are that come with an offer. If they are not here they are being fetched
    /// from the node that offers them, from now on at the latest.
    pub(crate) fn records_of(self: &Arc<Self>, offer: &SnapshotOffer) -> Records {
        let snapshot = offer.snapshot.snapshot;
        let Some(last) = offer.snapshot.meta.last_log_id else {
            return Records::NotNeeded;
        };
        if snapshot.log_start >= snapshot.start_offset || self.core().has_all_up_to(last) {
            return Records::NotNeeded;
        }
        let Ok(turn) = Arc::clone(&self.receiving).try_lock_owned() else {
            return Records::Coming;
        };
        if self.core().has_received(last, snapshot.start_offset) {
            return Records::Here(turn);
        }
        let group = Arc::clone(self);
        let giver = node_id(offer.vote.leader_id.voted_for);
        tokio::spawn(async move {
            let _turn = turn;
            let begun = Instant::now();
            match group.receive(giver, last).await {
                Ok(bytes) => tracing::info!(
                    group = %group.key(), from = %giver, bytes,
                    elapsed_ms = begun.elapsed().as_millis() as u64,
                    "records that no entry stands for have been received"
                ),
                Err(error @ (Broken::Busy | Broken::Gone | Broken::Closed)) => {
                    tracing::debug!(group = %group.key(), from = %giver, %error, "no records yet");
                }
                Err(error) => tracing::warn!(
                    group = %group.key(), from = %giver, %error,
                    "records could not be received; it is tried again"
                ),
            }
        });
        Records::Coming
    }

    /// Fetches the records below the entry after `last`. Returns how many bytes there were.
    async fn receive(&self, giver: NodeId, last: LogId) -> Result<u64, Broken> {
        let taking = Arc::clone(&self.transfers.taking);
        let _permit = taking.try_acquire_owned().map_err(|_| Broken::Busy)?;
        let link = self.link_to(giver);
        let opening = self.network.open_records(link, RecordsWanted(last));
        let session = match self.answer(link, opening).await? {
            RecordsOpened::Open(session) => session,
            RecordsOpened::Busy => return Err(Broken::Busy),
            RecordsOpened::Gone => return Err(Broken::Gone),
        };
        tracing::info!(
            group = %self.key(), from = %giver, files = session.files.len(), end = %session.end,
            "fetching records that no entry stands for"
        );
        let received = self.receive_all(link, &session, last).await;
        if received.is_err() {
            let core = Arc::clone(self.core());
            blocking(move || core.discard_incoming()).await?;
        }
        // It ends by itself, too.
        let _ = self.answer(link, self.network.close_records(link)).await;
        received
    }

    async fn receive_all(
        &self,
        link: Link,
        session: &RecordsSession,
        last: LogId,
    ) -> Result<u64, Broken> {
        let core = Arc::clone(self.core());
        let (bounds, files) = ((session.log_start, session.end), session.files.clone());
        let mut incoming = blocking(move || Ok(core.begin_incoming(bounds, files))).await??;
        let mut bytes = 0;
        loop {
            let asked = blocking(move || {
                let wanted = incoming.wanted(PIECE_MAX_BYTES);
                Ok(wanted.map(|wanted| (incoming, wanted)))
            });
            let (next, wanted) = asked.await??;
            incoming = next;
            let Some(piece) = wanted else { break };
            let read = RecordsRead {
                session: session.session,
                piece,
            };
            let taken = self.read_piece(link, read).await?;
            bytes += taken.len() as u64;
            let len = taken.len();
            let put = blocking(move || Ok(incoming.take(&taken).map(|()| incoming)));
            incoming = put.await??;
            self.pace(link, read, len).await?;
        }
        let received = blocking(move || Ok(incoming.finish())).await??;
        self.core().set_received(ReceivedLog {
            last,
            log: received,
        });
        Ok(bytes)
    }

    async fn read_piece(&self, link: Link, read: RecordsRead) -> Result<Bytes, Broken> {
        let mut attempt = 1;
        loop {
            match self
                .answer(link, self.network.read_records(link, read))
                .await
            {
                Ok(Some(bytes)) if bytes.is_empty() => tokio::time::sleep(RETRY_PAUSE).await,
                Ok(Some(bytes)) => return Ok(bytes),
                Ok(None) => return Err(Broken::Gone),
                Err(Broken::Network(NetworkError::Unreachable(_))) if attempt < ATTEMPTS => {
                    attempt += 1;
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits as long as the rate is bounded to, and has the session go on meanwhile.
    async fn pace(&self, link: Link, read: RecordsRead, bytes: usize) -> Result<(), Broken> {
        let mut pace = self.network.pace_records(link.group, bytes);
        while tokio::time::timeout(KEEP_EVERY, &mut pace).await.is_err() {
            let keeping = self.network.read_records(link, read.of_nothing());
            self.answer(link, keeping).await?.ok_or(Broken::Gone)?;
        }
        Ok(())
    }

    /// Waits for an answer, unless the group closes.
    async fn answer<T>(
        &self,
        link: Link,
        call: impl Future<Output = Result<T, NetworkError>>,
    ) -> Result<T, Broken> {
        let mut leadership = self.subscribe_leadership();
        let closed = async {
            let _ = leadership.wait_for(|_| self.shared.is_closed()).await;
        };
        tokio::select! {
            biased;
            () = closed => Err(Broken::Closed),
            answer = tokio::time::timeout(ANSWER_TIMEOUT, call) => match answer {
                Ok(answer) => Ok(answer?),
                Err(_) => Err(NetworkError::Unreachable(link.to).into()),
            },
        }
    }

    /// Waits until nothing is received any more, once the group is closed.
    pub(crate) async fn stop_receiving(&self) {
        let _turn = self.receiving.lock().await;
    }
}
