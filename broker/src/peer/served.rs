//! A stream of appends as the follower's end of a connection sees it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::{AbortHandle, Abortable};
use futures_util::{Stream, StreamExt};
use odradek_raft::GroupKey;
use odradek_raft::network::{AppendResults, NetworkError};
use odradek_raft::rpc::{AppendRequest, AppendResult};

use super::mailbox::Mailbox;

/// A stream as its requests see it.
pub(super) struct Served {
    pub(super) group: GroupKey,
    /// The last term in which the sender was found to be one that may lead the group.
    pub(super) checked: Option<u64>,
    pub(super) requests: Mailbox<AppendRequest>,
    /// What each unanswered request counts, oldest first.
    pub(super) charges: VecDeque<usize>,
    /// No request follows.
    pub(super) complete: bool,
    /// Ends the answers.
    pub(super) abort: AbortHandle,
}

impl Drop for Served {
    fn drop(&mut self) {
        // The group reads no further, and nobody reads its answers.
        self.requests.close();
        self.abort.abort();
    }
}

/// Answers of one stream with its number, and one `None` at their end.
pub(super) struct Numbered {
    pub(super) number: u32,
    pub(super) answers: Option<Abortable<AppendResults>>,
}

impl Stream for Numbered {
    type Item = (u32, Option<Result<AppendResult, NetworkError>>);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let number = self.number;
        let Some(answers) = &mut self.answers else {
            return Poll::Ready(None);
        };
        answers.poll_next_unpin(cx).map(|answer| {
            if answer.is_none() {
                self.answers = None;
            }
            Some((number, answer))
        })
    }
}
