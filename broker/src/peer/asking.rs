//! Moves bytes at the asking end of a connection: what the [`Conduit`] has queued goes out, answers
//! go to those who wait for them.

use std::sync::Arc;
use std::task::{Context, Poll};

use odradek_raft::wire::WireError;
use tokio::net::TcpStream;

use super::admission::Forbidden;
use super::conduit::Conduit;
use super::frame::{FrameEnd, FrameReader};
use super::metrics::Traffic;
use super::outbox::Outbox;

/// Why a connection between nodes ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionEnd {
    #[error(transparent)]
    Frame(#[from] FrameEnd),
    #[error("socket: {0}")]
    Socket(#[from] std::io::Error),
    #[error("malformed: {0}")]
    Malformed(#[from] WireError),
    #[error("more was sent than was agreed on")]
    OverBudget,
    #[error("closed by this node")]
    Closed,
    #[error("not allowed: {0}")]
    Forbidden(#[from] Forbidden),
}

impl SessionEnd {
    /// Whether the other node, or who says to be it, has done what no node does.
    pub(super) fn is_fault(&self) -> bool {
        match self {
            Self::Malformed(_) | Self::OverBudget | Self::Forbidden(_) => true,
            Self::Frame(end) => match end {
                FrameEnd::TooLong { .. }
                | FrameEnd::TooShort(_)
                | FrameEnd::UnknownKind(_)
                | FrameEnd::Stalled => true,
                FrameEnd::Closed | FrameEnd::Truncated | FrameEnd::Socket(_) => false,
            },
            Self::Socket(_) | Self::Closed => false,
        }
    }
}

/// Runs the connection until it ends. The caller closes the conduit then.
pub(super) async fn run(
    stream: &TcpStream,
    frames: FrameReader,
    conduit: &Arc<Conduit>,
    traffic: &Traffic,
) -> SessionEnd {
    let mut session = Session {
        stream,
        conduit,
        traffic,
        frames,
        sending: Outbox::default(),
    };
    std::future::poll_fn(|cx| session.poll(cx)).await
}

struct Session<'a> {
    stream: &'a TcpStream,
    conduit: &'a Conduit,
    traffic: &'a Traffic,
    frames: FrameReader,
    sending: Outbox,
}

impl Session<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<SessionEnd> {
        self.conduit.register_session(cx.waker());
        let moved = self.receive(cx).and_then(|()| self.send(cx));
        match moved {
            Err(end) => Poll::Ready(end),
            Ok(()) if self.conduit.is_closed() => Poll::Ready(SessionEnd::Closed),
            Ok(()) => Poll::Pending,
        }
    }

    fn receive(&mut self, cx: &mut Context<'_>) -> Result<(), SessionEnd> {
        let traffic = self.traffic;
        let received = |bytes| traffic.received(bytes);
        while let Poll::Ready(frame) = self.frames.poll_next(cx, self.stream, received) {
            self.conduit.deliver(frame?)?;
        }
        Ok(())
    }

    fn send(&mut self, cx: &mut Context<'_>) -> Result<(), SessionEnd> {
        let traffic = self.traffic;
        while self.sending.len() > 0 || self.conduit.take_queued(&mut self.sending) {
            let sent = self
                .sending
                .poll_send(cx, self.stream, |bytes| traffic.sent(bytes));
            self.conduit.sent(self.sending.len());
            match sent {
                Poll::Ready(sent) => sent?,
                Poll::Pending => break,
            }
        }
        Ok(())
    }
}
