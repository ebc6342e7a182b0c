//! One client connection: requests in, replies out in the order of the requests.
//!
//! The two halves run in one task. The reader takes a frame, runs its handler and puts the reply,
//! or the promise of one, into a bounded queue; the writer empties the queue in order. What bounds a
//! connection: replies in flight ≤ the queue's length; a frame's memory is reserved before it is
//! read; large Produce frames are not read far ahead of the logs they go to; nothing is read while
//! more than a bounded number of bytes waits for the peer to read.
//!
//! On a listener for other nodes, a first request that is a node's hello turns the connection over to
//! [`crate::peer`], and nothing of the above applies to it any more.
//!
//! How a connection ends: the peer closes, or sends what cannot be understood (earlier replies
//! still leave, as long as they keep coming: see `drain_limit`); the socket fails; nothing moves for
//! `connections.max.idle.ms`, whatever a request waits for; the broker stops (a request that only
//! waits is dropped, others are answered). What has not been answered by then is dropped, and with it
//! the places in which it waited.

pub(crate) mod buffers;
mod reader;
mod send;
pub(crate) mod state;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::error::ProtocolError;
use odradek_protocol::frame::FrameLimits;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::net::tcp::ReadHalf;
use tokio::sync::{mpsc, watch};

use self::buffers::FrameBuffers;
use self::reader::{FrameReader, ReadEnd};
use self::state::ConnectionState;
use self::writer::{PendingReply, ReplyWriter, Slot, WriteEnd};
use crate::context::ConnectionInfo;
use crate::dispatch::{Answer, DispatcherSlot, Outcome};
use crate::memory::MemoryBudget;
use crate::metrics::ServerMetrics;
use crate::peer::{Arrival, PeerEnd, PeerServer};

/// What all connections of a broker share.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionShared {
    pub(crate) dispatcher: DispatcherSlot,
    /// Serves other nodes, on listeners that are for them.
    pub(crate) peers: Option<Arc<PeerServer>>,
    pub(crate) budget: Arc<MemoryBudget>,
    pub(crate) buffers: Arc<FrameBuffers>,
    pub(crate) metrics: Arc<ServerMetrics>,
    pub(crate) limits: FrameLimits,
    /// Most requests of one connection whose replies have not left.
    pub(crate) max_in_flight: usize,
    /// Most bytes of large Produce frames of one connection that are not in their logs yet.
    pub(crate) max_in_flight_bytes: usize,
    /// How long a peer may stall inside a frame while others wait for memory.
    pub(crate) stall_limit: Duration,
    /// How long nothing may move on a connection from which nothing further is read.
    pub(crate) drain_limit: Duration,
    /// Turns true when the broker stops.
    pub(crate) stopping: watch::Receiver<bool>,
}

/// [`ConnectionShared::drain_limit`] of a peer that cannot be answered any more: time for what it has
/// sent, and not for what only waits.
const RESET_DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// How often a socket is looked at that says that it has something, and it is not its end.
const ODD_EVENT_PERIOD: Duration = Duration::from_secs(1);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionEnd {
    #[error(transparent)]
    Read(ReadEnd),
    #[error("request: {0}")]
    Request(ProtocolError),
    #[error(transparent)]
    Write(WriteEnd),
    #[error("another node: {0}")]
    Peer(PeerEnd),
    #[error("closed by the peer before it could be answered")]
    Unanswered,
    #[error("idle")]
    Evicted,
    #[error("the broker stops")]
    Stopping,
}

impl ConnectionEnd {
    /// One word for the metrics.
    pub(crate) fn cause(&self) -> &'static str {
        match self {
            Self::Read(ReadEnd::Closed) | Self::Unanswered => "peer",
            Self::Read(ReadEnd::Truncated) => "truncated",
            Self::Read(ReadEnd::Socket(_)) | Self::Write(WriteEnd::Io(_)) => "socket",
            Self::Read(ReadEnd::Protocol(_)) => "frame",
            Self::Read(ReadEnd::Stalled) => "stalled",
            Self::Request(_) => "request",
            Self::Write(WriteEnd::Closed) => "handler",
            Self::Peer(_) => "node",
            Self::Evicted => "idle",
            Self::Stopping => "stop",
        }
    }
}

/// How the reading half ends.
enum Reading {
    /// Nothing further is read.
    Over(ConnectionEnd),
    /// It is another node that has connected.
    Node(Arrival),
}

/// Serves one connection to its end.
pub(crate) async fn serve(
    mut stream: TcpStream,
    info: Arc<ConnectionInfo>,
    state: Arc<ConnectionState>,
    shared: ConnectionShared,
) -> ConnectionEnd {
    let arrival = match serve_requests(&mut stream, info, &state, &shared).await {
        Reading::Over(end) => return end,
        Reading::Node(arrival) => arrival,
    };
    let Some(peers) = &shared.peers else {
        return ConnectionEnd::Stopping;
    };
    // Between nodes silence is no reason to part.
    state.keep();
    let mut stopping = shared.stopping.clone();
    tokio::select! {
        biased;
        () = state.close_requested() => ConnectionEnd::Evicted,
        _ = stopping.wait_for(|stop| *stop) => ConnectionEnd::Stopping,
        end = peers.serve(stream, arrival) => ConnectionEnd::Peer(end),
    }
}

/// Serves a client to the end of its connection, or finds that it is none.
async fn serve_requests(
    stream: &mut TcpStream,
    info: Arc<ConnectionInfo>,
    state: &Arc<ConnectionState>,
    shared: &ConnectionShared,
) -> Reading {
    let (slots, queued) = mpsc::channel(shared.max_in_flight);
    let (read_half, write_half) = stream.split();
    let socket: &TcpStream = write_half.as_ref();
    let reader = read_requests(read_half, info, state, shared, slots);
    let writer = ReplyWriter {
        stream: socket,
        slots: queued,
        state,
        budget: &shared.budget,
        metrics: &shared.metrics,
    };
    let writer = writer.run();
    // A request that waits keeps the reader from seeing that the peer has gone.
    let gone = peer_gone(socket, state, shared.drain_limit);
    tokio::pin!(reader, writer, gone);
    let read_end = tokio::select! {
        biased;
        () = state.close_requested() => return Reading::Over(ConnectionEnd::Evicted),
        sent = &mut writer => return Reading::Over(match sent {
            Err(end) => ConnectionEnd::Write(end),
            Ok(()) => ConnectionEnd::Stopping,
        }),
        end = &mut reader => match end {
            Reading::Over(end) => end,
            // The first frame: no reply can be under way.
            node @ Reading::Node(_) => return node,
        },
        () = &mut gone => return Reading::Over(ConnectionEnd::Unanswered),
    };
    if matches!(read_end, ConnectionEnd::Read(ReadEnd::Socket(_))) {
        return Reading::Over(read_end);
    }
    // Everything that is owed still leaves, unless it takes too long.
    state.progressed();
    Reading::Over(tokio::select! {
        biased;
        () = state.close_requested() => ConnectionEnd::Evicted,
        sent = &mut writer => match sent {
            Err(WriteEnd::Io(_)) if matches!(read_end, ConnectionEnd::Read(_)) => read_end,
            Err(end) => ConnectionEnd::Write(end),
            Ok(()) => read_end,
        },
        () = &mut gone => read_end,
        () = state.idle_past(shared.drain_limit) => read_end,
    })
}

/// Ends when the peer has closed its side and nothing has moved for `limit` since: who has only shut
/// down its writing side still reads, and who has closed altogether cannot be told from it until
/// something is sent. After a reset there is nobody to answer.
async fn peer_gone(socket: &TcpStream, state: &ConnectionState, limit: Duration) {
    // Not readability: what the peer has sent ahead of its end is not being read while a request
    // waits. This interest includes the end of the stream.
    let end_of_stream = Interest::PRIORITY | Interest::ERROR;
    let is_reset = loop {
        match socket.ready(end_of_stream).await {
            Ok(ready) if ready.is_error() => break true,
            Ok(ready) if ready.is_read_closed() => break false,
            Ok(_) => tokio::time::sleep(ODD_EVENT_PERIOD).await,
            Err(_) => break true,
        }
    };
    state.progressed();
    if !is_reset {
        tokio::select! {
            _ = socket.ready(Interest::ERROR) => {}
            () = state.idle_past(limit) => return,
        }
    }
    state.idle_past(limit.min(RESET_DRAIN_LIMIT)).await;
}

/// The reading half. It owns the queue's sender, so its end is what lets the writer end.
async fn read_requests(
    stream: ReadHalf<'_>,
    info: Arc<ConnectionInfo>,
    state: &Arc<ConnectionState>,
    shared: &ConnectionShared,
    slots: mpsc::Sender<Slot>,
) -> Reading {
    let mut stopping = shared.stopping.clone();
    let mut frames = FrameReader::new(stream, shared);
    let over = Reading::Over;
    let mut is_first = true;
    loop {
        let next = async {
            // A place in the order of replies first: without one the frame is not even read.
            let place = slots.reserve().await.ok();
            state.reply_room(&shared.budget).await;
            let frame = frames.next(|read| {
                state.progressed();
                shared.metrics.bytes_received(read);
            });
            (place, frame.await)
        };
        let (place, frame) = tokio::select! {
            biased;
            _ = stopping.wait_for(|stop| *stop) => return over(ConnectionEnd::Stopping),
            next = next => match next {
                (Some(place), Ok(frame)) => (place, frame),
                (None, _) => return over(ConnectionEnd::Write(WriteEnd::Closed)),
                (_, Err(end)) => return over(ConnectionEnd::Read(end)),
            },
        };
        if std::mem::take(&mut is_first)
            && shared.peers.is_some()
            && PeerServer::is_hello(&frame.payload)
        {
            return Reading::Node(Arrival {
                hello: frame.payload,
                start: frames.into_unread(),
                address: info.peer,
            });
        }
        let dispatcher = tokio::select! {
            biased;
            dispatcher = shared.dispatcher.get() => dispatcher,
            _ = stopping.wait_for(|stop| *stop) => return over(ConnectionEnd::Stopping),
        };
        let received_at = frame.completed_at;
        let accepted = dispatcher.accept(&info, frame.payload, received_at);
        let request = match accepted {
            Ok(request) => request,
            Err(error) => return over(ConnectionEnd::Request(error)),
        };
        let api_key = request.api_key;
        state.progressed();
        let answer = if request.may_wait_long {
            tokio::select! {
                biased;
                answer = request.answer => answer,
                _ = stopping.wait_for(|stop| *stop) => return over(ConnectionEnd::Stopping),
            }
        } else {
            request.answer.await
        };
        state.progressed();
        match answer {
            Ok(Answer::Later(outcome)) => place.send(Slot::Pending(PendingReply {
                outcome,
                api_key,
                received_at,
                reservation: frame.reservation,
            })),
            Ok(Answer::Now(outcome)) => {
                shared.metrics.request_done(api_key, received_at);
                match outcome {
                    Outcome::Send(response) => {
                        let bytes = response.bytes_in_memory();
                        let unsent = state.count_unsent(&shared.budget, bytes);
                        place.send(Slot::Ready(response, unsent));
                    }
                    Outcome::Silent => {}
                    Outcome::Close => {
                        place.send(Slot::Close);
                        return over(ConnectionEnd::Write(WriteEnd::Closed));
                    }
                }
            }
            Err(error) => return over(ConnectionEnd::Request(error)),
        }
    }
}
