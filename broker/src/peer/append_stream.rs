//! A stream of appends as the leader sees it.
//!
//! It has no task of its own: whoever asks for the next answer moves the requests along too. With
//! openraft that is the replication task of the group, which is awake then anyway.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::{Stream, StreamExt};
use odradek_raft::network::{AppendRequests, NetworkError};
use odradek_raft::rpc::AppendResult;

use super::conduit::{Answers, Conduit};

/// See the module.
pub(super) struct AppendStream {
    conduit: Arc<Conduit>,
    number: u32,
    /// `None` once there are no more.
    requests: Option<AppendRequests>,
    answers: Answers,
    /// What each unanswered request counts, oldest first.
    charges: VecDeque<usize>,
    /// Their sum.
    under_way: usize,
    /// The other side knows of the end, or is gone.
    settled: bool,
    done: bool,
}

impl AppendStream {
    pub(super) fn new(
        conduit: Arc<Conduit>,
        number: u32,
        answers: Answers,
        requests: AppendRequests,
    ) -> Self {
        Self {
            conduit,
            number,
            requests: Some(requests),
            answers,
            charges: VecDeque::new(),
            under_way: 0,
            settled: false,
            done: false,
        }
    }

    fn unreachable(&self) -> NetworkError {
        NetworkError::Unreachable(self.conduit.to())
    }

    /// Sends requests for as long as there are some and there is room.
    fn send_requests(&mut self, cx: &mut Context<'_>) -> Result<(), NetworkError> {
        while let Some(requests) = &mut self.requests {
            let room = self
                .conduit
                .poll_room(self.number, self.under_way, cx.waker());
            if !room {
                return Ok(());
            }
            match requests.poll_next_unpin(cx) {
                Poll::Ready(Some(request)) => {
                    let charge = self
                        .conduit
                        .append(self.number, &request)
                        .map_err(|error| {
                            tracing::error!(%error, "an append request cannot be sent");
                            self.unreachable()
                        })?;
                    self.charges.push_back(charge);
                    self.under_way += charge;
                }
                Poll::Ready(None) => {
                    self.requests = None;
                    self.conduit.end(self.number);
                }
                Poll::Pending => {
                    self.conduit.pass_room_on();
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn answered(&mut self) {
        if let Some(charge) = self.charges.pop_front() {
            self.under_way -= charge;
            self.conduit.release(charge);
        }
    }
}

impl Stream for AppendStream {
    type Item = Result<AppendResult, NetworkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.done {
            return Poll::Ready(None);
        }
        if let Err(error) = this.send_requests(cx) {
            this.done = true;
            return Poll::Ready(Some(Err(error)));
        }
        if this.requests.is_none() && this.charges.is_empty() {
            this.settled = true;
            this.done = true;
            return Poll::Ready(None);
        }
        match this.answers.poll_next(cx) {
            Poll::Ready(Some(Ok(answer))) => {
                this.answered();
                this.done = answer.is_err();
                Poll::Ready(Some(Ok(answer)))
            }
            Poll::Ready(Some(Err(error))) => {
                this.settled = true;
                this.done = true;
                Poll::Ready(Some(Err(error)))
            }
            // The connection is gone.
            Poll::Ready(None) => {
                this.settled = true;
                this.done = true;
                Poll::Ready(Some(Err(this.unreachable())))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for AppendStream {
    fn drop(&mut self) {
        self.conduit.forget_stream(self.number, !self.settled);
        // Even of nothing: it may have been woken for room that now falls to others.
        self.conduit.release(self.under_way);
    }
}
