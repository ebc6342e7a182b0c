//! Sends replies in the order of their requests.
//!
//! A reply that is not ready holds back the ones behind it and nothing else: the reader goes on until
//! its bounds (replies in flight, bytes unsent) stop it. Replies that are ready together leave
//! together.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use odradek_protocol::api::ApiKey;
use odradek_protocol::response::Response;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::send::Outgoing;
use super::state::{ConnectionState, Unsent};
use crate::dispatch::{Outcome, Pending};
use crate::memory::{MemoryBudget, Reservation};
use crate::metrics::ServerMetrics;

/// Ready replies are gathered into one send up to this many bytes.
const GATHER_BYTES: usize = 256 * 1024;

/// The place of one request's reply in the order of replies.
pub(super) enum Slot {
    /// The reply itself.
    Ready(Response, Unsent),
    /// The reply is still being made.
    Pending(PendingReply),
    /// Nothing follows, and the connection closes.
    Close,
}

/// A request whose handler has let the next one start.
pub(super) struct PendingReply {
    pub(super) outcome: Pending<Outcome>,
    pub(super) api_key: ApiKey,
    pub(super) received_at: Instant,
    /// Memory of the request frame; it goes back when the reply is known.
    pub(super) reservation: Reservation,
}

/// Why a writer stopped before its reader did.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteEnd {
    /// The socket or the file of a region failed.
    #[error("cannot send: {0}")]
    Io(#[from] io::Error),
    /// A handler asked for the connection to be closed.
    #[error("closed by the broker")]
    Closed,
}

/// The writing half of a connection.
pub(super) struct ReplyWriter<'a> {
    pub(super) stream: &'a TcpStream,
    pub(super) slots: mpsc::Receiver<Slot>,
    pub(super) state: &'a Arc<ConnectionState>,
    pub(super) budget: &'a Arc<MemoryBudget>,
    pub(super) metrics: &'a ServerMetrics,
}

impl ReplyWriter<'_> {
    /// Sends until the reader is gone and everything owed is sent.
    pub(super) async fn run(mut self) -> Result<(), WriteEnd> {
        let mut batch = Batch::default();
        let mut next = None;
        loop {
            let slot = match next.take() {
                Some(slot) => slot,
                None => match self.slots.recv().await {
                    Some(slot) => slot,
                    None => return Ok(()),
                },
            };
            match slot {
                Slot::Pending(mut pending) => {
                    let outcome = (&mut pending.outcome).await;
                    self.settle(pending, outcome, &mut batch);
                }
                Slot::Ready(response, unsent) => batch.push(response, unsent),
                Slot::Close => batch.close = true,
            }
            next = self.gather(&mut batch);
            let (state, metrics) = (self.state, self.metrics);
            let send = batch.outgoing.send(self.stream, |sent| {
                state.progressed();
                metrics.bytes_sent(sent);
            });
            send.await?;
            batch.unsent.clear();
            if batch.close {
                return Err(WriteEnd::Closed);
            }
        }
    }

    /// Adds what is ready without waiting; returns the first slot that is not.
    fn gather(&mut self, batch: &mut Batch) -> Option<Slot> {
        while !batch.close && batch.outgoing.len() < GATHER_BYTES {
            match self.slots.try_recv().ok()? {
                Slot::Ready(response, unsent) => batch.push(response, unsent),
                Slot::Close => batch.close = true,
                Slot::Pending(mut pending) => match (&mut pending.outcome).now_or_never() {
                    Some(outcome) => self.settle(pending, outcome, batch),
                    None => return Some(Slot::Pending(pending)),
                },
            }
        }
        None
    }

    fn settle(&self, pending: PendingReply, outcome: Outcome, batch: &mut Batch) {
        drop(pending.reservation);
        self.metrics
            .request_done(pending.api_key, pending.received_at);
        match outcome {
            Outcome::Send(response) => {
                let bytes = response.bytes_in_memory();
                let unsent = self.state.count_unsent(self.budget, bytes);
                batch.push(response, unsent);
            }
            Outcome::Silent => {}
            Outcome::Close => batch.close = true,
        }
    }
}

/// Replies that leave together.
#[derive(Default)]
struct Batch {
    outgoing: Outgoing,
    unsent: Vec<Unsent>,
    close: bool,
}

impl Batch {
    fn push(&mut self, response: Response, unsent: Unsent) {
        for chunk in response.into_chunks() {
            self.outgoing.push(chunk);
        }
        self.unsent.push(unsent);
    }
}
