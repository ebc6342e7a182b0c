//! A queue from a connection to the one who handles a stream.
//!
//! It has no bound of its own: what goes through it is unanswered requests or their answers, and
//! of those there are no more than the limits of a stream and of a connection allow.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::Stream;
use parking_lot::Mutex;

/// See the module. Clones are the same queue.
#[derive(Debug)]
pub(super) struct Mailbox<T>(Arc<Mutex<State<T>>>);

#[derive(Debug)]
struct State<T> {
    queue: VecDeque<T>,
    closed: bool,
    reader: Option<Waker>,
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Mailbox<T> {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            queue: VecDeque::new(),
            closed: false,
            reader: None,
        })))
    }

    /// Puts something in, unless it is closed.
    pub(super) fn push(&self, item: T) {
        let mut state = self.0.lock();
        if state.closed {
            return;
        }
        state.queue.push_back(item);
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Nothing is put in any more. What is in it still comes out.
    pub(super) fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// The next thing, or `None` if it is closed and empty. One reader at a time is woken.
    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.0.lock();
        if let Some(item) = state.queue.pop_front() {
            return Poll::Ready(Some(item));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        match &mut state.reader {
            Some(reader) => reader.clone_from(cx.waker()),
            reader => *reader = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl<T> Stream for Mailbox<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        Mailbox::poll_next(&self, cx)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt};

    use super::*;

    #[tokio::test]
    async fn a_reader_is_woken_and_a_closed_box_is_emptied_first() {
        let mailbox = Mailbox::new();
        let mut reader = mailbox.clone();
        assert!(reader.next().now_or_never().is_none());
        let waiting = tokio::spawn(async move { (reader.next().await, reader) });
        tokio::task::yield_now().await;
        mailbox.push(1);
        let (first, mut reader) = waiting.await.expect("no panic");
        assert_eq!(first, Some(1));
        mailbox.push(2);
        mailbox.close();
        mailbox.push(3);
        assert_eq!(reader.next().await, Some(2));
        assert_eq!(reader.next().await, None);
    }
}
