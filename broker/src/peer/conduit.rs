//! The asking end of one connection: calls that wait for replies, streams of appends, and what is
//! on its way to the socket.
//!
//! Flow control needs no messages of its own. An append request counts against its stream and its
//! connection from the moment it is queued until its answer is there, so the bytes that the
//! follower holds are never more than the limits:
//! - of one stream, `window` is the most; a follower that is slow with one partition slows that
//!   one alone;
//! - of all together, `memory` is; and no stream may have more under way than what is then still
//!   free, so that k slow ones leave one part of k + 1 to the others.
//!
//! A request is taken from the log only when it may go, and then it does, whatever its size: both
//! limits may be passed by one request.

use std::collections::{HashMap, VecDeque};
use std::task::Waker;

use bytes::{Bytes, BytesMut};
use futures_util::task::AtomicWaker;
use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::NodeId;
use odradek_raft::network::NetworkError;
use odradek_raft::rpc::{AppendRequest, AppendResult};
use odradek_raft::seldom::Seldom;
use odradek_raft::wire::{self, Reader, WireError};
use odradek_raft::{GroupKey, wire::Sink};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::PeerError;
use super::call::StreamEnd;
use super::frame::{Frame, HEAD_BYTES, Kind};
use super::mailbox::Mailbox;
use super::outbox::Outbox;

/// What a request takes in memory besides its bytes, roughly.
pub(super) const REQUEST_OVERHEAD_BYTES: usize = 256;

/// What an append request of a frame of `frame_bytes` counts.
pub(super) fn charge(frame_bytes: usize) -> usize {
    frame_bytes + REQUEST_OVERHEAD_BYTES
}

/// How much may be under way on a connection: what both sides agree to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Unanswered bytes of one stream.
    pub(super) window: usize,
    /// Unanswered bytes of all streams.
    pub(super) memory: usize,
    /// Bytes that wait for the socket.
    pub(super) queue: usize,
    /// Unanswered calls.
    pub(super) calls: usize,
    /// Longest frame that this node takes.
    pub(super) frame: usize,
    /// Longest frame that the other node takes.
    pub(super) frame_of_other: usize,
}

/// Streams that are woken when room has come free: more than one, for it may be enough for some.
const WOKEN_AT_ONCE: usize = 4;

/// Answers of one stream.
pub(super) type Answers = Mailbox<Result<AppendResult, NetworkError>>;

/// What the two ends have told each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Introduced {
    /// The other node's process.
    pub(super) incarnation: Uuid,
    /// The version that both speak.
    pub(super) peer_protocol: u16,
    /// Whether this node has named its cluster.
    pub(super) names_cluster: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Conduit {
    to: NodeId,
    introduced: Introduced,
    bounds: Bounds,
    state: Mutex<State>,
    /// The task that moves bytes.
    session: AtomicWaker,
    /// Bounds what the log says of streams that the other end refuses.
    refusals: Seldom<GroupKey>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    outbox: Outbox,
    /// Bytes that the session has taken over and not yet sent.
    sending: usize,
    /// Number of the last call or stream.
    last: u32,
    calls: HashMap<u32, oneshot::Sender<Bytes>>,
    streams: HashMap<u32, Stream>,
    /// Unanswered bytes of all streams.
    under_way: usize,
    /// Streams that wait for room, each once.
    waiting: VecDeque<u32>,
}

#[derive(Debug)]
struct Stream {
    group: GroupKey,
    answers: Answers,
    /// To be woken when there may be room; in `waiting` as long as it is there.
    room: Option<Waker>,
}

impl State {
    fn next_number(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            if !self.calls.contains_key(&self.last) && !self.streams.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    fn queued(&self) -> usize {
        self.outbox.len() + self.sending
    }

    fn has_room(&self, bounds: &Bounds, under_way: usize) -> bool {
        let free = bounds.memory.saturating_sub(self.under_way);
        self.queued() < bounds.queue && under_way < bounds.window.min(free)
    }

    /// Wakes streams that wait for room, the longest waiting first. One that finds none waits
    /// again; one that does not need it lets the next one know.
    fn wake_waiting(&mut self, mut count: usize) {
        while count > 0
            && let Some(number) = self.waiting.pop_front()
        {
            let stream = self.streams.get_mut(&number);
            if let Some(waker) = stream.and_then(|stream| stream.room.take()) {
                waker.wake();
                count -= 1;
            }
        }
    }
}

impl Conduit {
    pub(super) fn new(to: NodeId, introduced: Introduced, bounds: Bounds) -> Self {
        Self {
            to,
            introduced,
            bounds,
            state: Mutex::default(),
            session: AtomicWaker::new(),
            refusals: Seldom::default(),
        }
    }

    /// The node at the other end.
    pub(super) fn to(&self) -> NodeId {
        self.to
    }

    /// How the two ends know each other.
    pub(super) fn introduced(&self) -> &Introduced {
        &self.introduced
    }

    pub(super) fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// The connection is over: nobody waits for an answer any longer.
    pub(super) fn close(&self) {
        let (calls, streams) = {
            let mut state = self.state.lock();
            state.closed = true;
            state.outbox = Outbox::default();
            state.wake_waiting(usize::MAX);
            (
                std::mem::take(&mut state.calls),
                std::mem::take(&mut state.streams),
            )
        };
        drop(calls);
        for stream in streams.into_values() {
            stream.answers.close();
        }
        self.session.wake();
    }

    /// Bytes that wait for the socket.
    pub(super) fn queued_bytes(&self) -> usize {
        self.state.lock().queued()
    }

    /// Bytes of append requests without an answer.
    pub(super) fn unanswered_bytes(&self) -> usize {
        self.state.lock().under_way
    }

    /// Asks, and returns the body of the reply.
    pub(super) async fn call(&self, write: impl FnOnce(&mut BytesMut)) -> Result<Bytes, PeerError> {
        let (number, reply) = {
            let mut state = self.state.lock();
            if state.closed {
                return Err(PeerError::Lost(self.to));
            }
            // Calls that nobody waits for any more are queued all the same.
            if state.calls.len() >= self.bounds.calls || state.queued() >= self.bounds.queue {
                return Err(PeerError::Overloaded(self.to));
            }
            let number = state.next_number();
            state.outbox.put(Kind::Call, number, write);
            let (sender, reply) = oneshot::channel();
            state.calls.insert(number, sender);
            (number, reply)
        };
        self.session.wake();
        let _forget = Forget {
            conduit: self,
            number,
        };
        reply.await.map_err(|_| PeerError::Lost(self.to))
    }

    /// Begins a stream to a group.
    pub(super) fn open(&self, group: GroupKey) -> Result<(u32, Answers), PeerError> {
        let answers = Mailbox::new();
        let number = {
            let mut state = self.state.lock();
            if state.closed {
                return Err(PeerError::Lost(self.to));
            }
            // Streams that are given up and opened again must not pile up before a node that does
            // not read.
            if state.queued() >= 2 * self.bounds.queue {
                return Err(PeerError::Overloaded(self.to));
            }
            let number = state.next_number();
            state
                .outbox
                .put(Kind::Open, number, |out| wire::put_group_key(out, group));
            let stream = Stream {
                group,
                answers: answers.clone(),
                room: None,
            };
            state.streams.insert(number, stream);
            number
        };
        self.session.wake();
        Ok((number, answers))
    }

    /// Whether a stream with `under_way` unanswered bytes may send another request. If not, the
    /// waker hears of it when it is worth asking again.
    pub(super) fn poll_room(&self, number: u32, under_way: usize, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        if state.closed || state.has_room(&self.bounds, under_way) {
            return true;
        }
        // A stream with a full window asks again after its next answer.
        let of_others = under_way < self.bounds.window;
        if of_others && let Some(stream) = state.streams.get_mut(&number) {
            let waits_already = stream.room.replace(waker.clone()).is_some();
            if !waits_already {
                state.waiting.push_back(number);
            }
        }
        false
    }

    /// The stream that was woken has nothing to send: the next one may.
    pub(super) fn pass_room_on(&self) {
        let mut state = self.state.lock();
        if !state.waiting.is_empty() && state.has_room(&self.bounds, 0) {
            state.wake_waiting(1);
        }
    }

    /// Queues a request of a stream and returns what it counts.
    pub(super) fn append(&self, number: u32, request: &AppendRequest) -> Result<usize, WireError> {
        let len = wire::append_request_len(request)?;
        let limit = self.bounds.frame_of_other;
        if len + HEAD_BYTES > limit {
            // It would close the connection of all the others.
            return Err(WireError::Unsendable(format!(
                "of {len} bytes, over the limit of {limit} of node {}",
                self.to
            )));
        }
        let charge = charge(HEAD_BYTES + len);
        {
            let mut state = self.state.lock();
            if !state.closed {
                state.outbox.put_head(Kind::Append, number, len);
                state.outbox.buffer().reserve(len.min(SMALL_REQUEST_BYTES));
                wire::put_append_request(&mut state.outbox, request)?;
            }
            state.under_way += charge;
        }
        self.session.wake();
        Ok(charge)
    }

    /// Says that no request of a stream follows.
    pub(super) fn end(&self, number: u32) {
        self.tell(Kind::End, number);
    }

    /// Forgets a stream; what it had under way counts no longer.
    pub(super) fn forget_stream(&self, number: u32, cancel: bool) {
        let known = self.state.lock().streams.remove(&number).is_some();
        if known && cancel {
            self.tell(Kind::Cancel, number);
        }
    }

    fn tell(&self, kind: Kind, number: u32) {
        {
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            state.outbox.put(kind, number, |_| {});
        }
        self.session.wake();
    }

    /// What `charge` bytes counted for has its answer, or will have none.
    pub(super) fn release(&self, charge: usize) {
        let mut state = self.state.lock();
        state.under_way = state.under_way.saturating_sub(charge);
        state.wake_waiting(WOKEN_AT_ONCE);
    }

    /// Registers the session as the one to be woken when there is something to send.
    pub(super) fn register_session(&self, waker: &Waker) {
        self.session.register(waker);
    }

    /// Takes over what is queued, into an empty outbox. `false` if there is nothing, or the
    /// connection is to be closed.
    pub(super) fn take_queued(&self, sending: &mut Outbox) -> bool {
        let mut state = self.state.lock();
        if state.outbox.len() == 0 {
            return false;
        }
        std::mem::swap(&mut state.outbox, sending);
        state.sending = sending.len();
        true
    }

    /// The session has `left` bytes of what it took over still to send.
    pub(super) fn sent(&self, left: usize) {
        let mut state = self.state.lock();
        state.sending = left;
        if state.outbox.len() + left < self.bounds.queue {
            state.wake_waiting(WOKEN_AT_ONCE);
        }
    }

    /// Hands a frame to the one who waits for it. One that nobody waits for any more is dropped.
    pub(super) fn deliver(&self, frame: Frame) -> Result<(), WireError> {
        let mut reader = Reader::new(frame.body.clone());
        match frame.kind {
            Kind::Reply => {
                if let Some(waiting) = self.state.lock().calls.remove(&frame.number) {
                    // Whoever asked may have given up.
                    let _ = waiting.send(frame.body);
                }
            }
            Kind::Answer => {
                let answer = wire::get_append_result(&mut reader)?;
                reader.end()?;
                if let Some(answers) = self.answers_of(frame.number) {
                    answers.push(Ok(answer));
                }
            }
            Kind::Closed => {
                let end = StreamEnd::get(&mut reader)?;
                let stream = self.state.lock().streams.remove(&frame.number);
                if let Some(Stream { group, answers, .. }) = stream {
                    let node = self.to;
                    answers.push(Err(match end {
                        StreamEnd::NotServed => NetworkError::NotServed { node, group },
                        StreamEnd::Ended | StreamEnd::Damaged | StreamEnd::TooMany => {
                            NetworkError::Unreachable(node)
                        }
                    }));
                    answers.close();
                    if matches!(end, StreamEnd::Damaged | StreamEnd::TooMany)
                        && let Some(left_out) = self.refusals.may_say(group)
                    {
                        tracing::warn!(
                            %node, %group, ?end, left_out, "a replica refuses to be appended to"
                        );
                    }
                }
            }
            Kind::Call | Kind::Open | Kind::Append | Kind::End | Kind::Cancel => {
                return Err(WireError::Malformed(
                    "frame: a question in place of an answer",
                ));
            }
        }
        Ok(())
    }

    fn answers_of(&self, number: u32) -> Option<Answers> {
        let state = self.state.lock();
        state.streams.get(&number).map(|it| it.answers.clone())
    }
}

/// Requests up to about this size are written into memory taken at once.
const SMALL_REQUEST_BYTES: usize = 16 << 10;

/// Takes a call out of the table when nobody waits for its reply any more.
struct Forget<'a> {
    conduit: &'a Conduit,
    number: u32,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.conduit.state.lock().calls.remove(&self.number);
    }
}
