//! The answering end of a connection: calls and append requests come in, answers go out in whatever
//! order they are ready.
//!
//! One task does it all: it takes what has arrived, hands it to the groups, gathers the answers
//! that are ready, and sends them together. Only requests to the broker run as tasks of their own,
//! for they may take long; probes and votes must not wait for them.
//!
//! What bounds it: append requests without an answer by the limits that the other side was told;
//! calls without a reply by `odradek.peer.requests`; large frames that have not arrived whole, and
//! those that ask the broker something until it has answered, by `odradek.peer.incoming.bytes`; answers
//! that wait for the socket by not reading while there are too many.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable, BoxFuture};
use futures_util::stream::{FuturesUnordered, SelectAll};
use odradek_protocol::ids::NodeId;
use odradek_raft::RaftNode;
use odradek_raft::network::NetworkError;
use odradek_raft::rpc::{AppendResult, Signed};
use odradek_raft::wire::{self, Reader, WireError};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::admission::{Admission, Forbidden};
use super::asking::SessionEnd;
use super::call::{self, Call, StreamEnd};
use super::conduit::{Bounds, charge};
use super::frame::{Frame, FrameReader, HEAD_BYTES, Intake, Kind, SMALL_MAX_BYTES};
use super::mailbox::Mailbox;
use super::metrics::Traffic;
use super::outbox::Outbox;
use super::served::{Numbered, Served};
use super::server::PeerService;
use super::{Caller, PeerReply, PeerRequest, Throttles};
use crate::memory::Reservation;

/// A piece of records is held back by a throttle for no longer; then there is nothing in it.
const HELD_BACK_MAX: Duration = Duration::from_secs(4);
/// Frames taken before answers are looked for.
const FRAMES_AT_ONCE: usize = 64;

/// What an answering connection needs.
pub(super) struct Serving<'a> {
    pub(super) from: NodeId,
    /// The same with what it has said of itself.
    pub(super) caller: &'a Caller,
    /// What it may do.
    pub(super) admission: Admission<'a>,
    pub(super) raft: &'a Arc<RaftNode>,
    pub(super) service: &'a OnceLock<Arc<dyn PeerService>>,
    pub(super) throttles: &'a Arc<Throttles>,
    pub(super) bounds: Bounds,
    pub(super) intake: Intake,
    pub(super) max_streams: usize,
    pub(super) traffic: &'a Traffic,
    /// Told whenever something has arrived.
    pub(super) heard: &'a (dyn Fn() + Sync),
}

/// Serves the connection until it ends.
pub(super) async fn run(stream: &TcpStream, start: BytesMut, serving: Serving<'_>) -> SessionEnd {
    let mut session = Session {
        stream,
        frames: FrameReader::new(serving.intake.clone(), start),
        is_known: false,
        serving,
        out: Outbox::default(),
        streams: HashMap::new(),
        answers: SelectAll::new(),
        calls: FuturesUnordered::new(),
        requests: JoinSet::new(),
        under_way: 0,
    };
    std::future::poll_fn(|cx| session.poll(cx)).await
}

struct Session<'a> {
    stream: &'a TcpStream,
    frames: FrameReader,
    /// Whether it has turned out to be one of the cluster.
    is_known: bool,
    serving: Serving<'a>,
    out: Outbox,
    streams: HashMap<u32, Served>,
    answers: SelectAll<Numbered>,
    calls: FuturesUnordered<BoxFuture<'static, (u32, BytesMut)>>,
    requests: JoinSet<(u32, PeerReply)>,
    /// What all unanswered append requests count.
    under_way: usize,
}

impl Session<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<SessionEnd> {
        loop {
            let progress = match self.receive(cx) {
                Ok(received) => self.gather(cx) || received,
                Err(end) => return Poll::Ready(end),
            };
            let was_full = !self.may_receive();
            let traffic = self.serving.traffic;
            let sent = self
                .out
                .poll_send(cx, self.stream, |bytes| traffic.sent(bytes));
            if let Poll::Ready(Err(error)) = sent {
                return Poll::Ready(error.into());
            }
            // Who was not read from for want of room is now, if there is some: nobody else would wake this
            // task for what has arrived already.
            if !progress && (!was_full || !self.may_receive()) {
                return Poll::Pending;
            }
        }
    }

    /// Whether another frame may be taken.
    fn may_receive(&self) -> bool {
        self.out.len() < self.serving.bounds.queue
            && self.calls.len() + self.requests.len() < self.serving.bounds.calls
    }

    fn receive(&mut self, cx: &mut Context<'_>) -> Result<bool, SessionEnd> {
        let mut progress = false;
        for _ in 0..FRAMES_AT_ONCE {
            if !self.may_receive() {
                break;
            }
            self.set_frame_limit();
            let serving = &self.serving;
            let received = |bytes| {
                serving.traffic.received(bytes);
                (serving.heard)();
            };
            match self.frames.poll_next(cx, self.stream, received) {
                Poll::Ready(frame) => self.take(frame?)?,
                Poll::Pending => break,
            }
            progress = true;
        }
        Ok(progress)
    }

    /// Strangers send nothing large.
    fn set_frame_limit(&mut self) {
        if self.is_known {
            return;
        }
        self.is_known = self.serving.admission.is_known();
        let limit = self.serving.bounds.frame;
        self.frames.set_limit(match self.is_known {
            true => limit,
            false => limit.min(SMALL_MAX_BYTES),
        });
    }

    fn take(&mut self, frame: Frame) -> Result<(), SessionEnd> {
        let Frame {
            kind,
            number,
            body,
            reservation,
        } = frame;
        match kind {
            Kind::Call => self.call(number, body, reservation)?,
            Kind::Open => self.open(number, body)?,
            Kind::Append => self.append(number, body)?,
            // Streams that are unknown have been closed, and the news is on its way.
            Kind::End => {
                if let Some(stream) = self.streams.get_mut(&number) {
                    stream.complete = true;
                    stream.requests.close();
                }
            }
            Kind::Cancel => self.forget(number),
            Kind::Reply | Kind::Answer | Kind::Closed => {
                return Err(WireError::Malformed("frame: an answer to nothing").into());
            }
        }
        Ok(())
    }

    fn open(&mut self, number: u32, body: Bytes) -> Result<(), SessionEnd> {
        self.serving.admission.check_cluster()?;
        let mut reader = Reader::new(body);
        let group = reader.group_key()?;
        reader.end()?;
        if self.streams.contains_key(&number) {
            return Err(WireError::Malformed("stream: it is open already").into());
        }
        if self.streams.len() >= self.serving.max_streams {
            self.closed(number, StreamEnd::TooMany);
            return Ok(());
        }
        let requests = Mailbox::new();
        let taken = self.serving.throttles.taking(group, requests.clone());
        let raft = self.serving.raft;
        match raft.serve_append_stream(group, taken.boxed()) {
            Ok(answers) => {
                let (abort, registration) = AbortHandle::new_pair();
                let served = Served {
                    group,
                    checked: None,
                    requests,
                    charges: VecDeque::new(),
                    complete: false,
                    abort,
                };
                self.streams.insert(number, served);
                self.answers.push(Numbered {
                    number,
                    answers: Some(Abortable::new(answers, registration)),
                });
            }
            Err(_) => self.closed(number, StreamEnd::NotServed),
        }
        Ok(())
    }

    fn append(&mut self, number: u32, body: Bytes) -> Result<(), SessionEnd> {
        let charge = charge(HEAD_BYTES + body.len());
        let bounds = self.serving.bounds;
        let Some(stream) = self.streams.get_mut(&number) else {
            return Ok(());
        };
        let mut reader = Reader::new(body);
        let request = match wire::get_append_request(&mut reader) {
            Ok(request) => request,
            Err(WireError::Damaged { index, cause }) => {
                self.serving
                    .admission
                    .say_damaged(stream.group, index, &cause);
                self.forget(number);
                self.closed(number, StreamEnd::Damaged);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        reader.end()?;
        let admission = &self.serving.admission;
        if stream.checked == Some(request.term()) {
            admission.check_name(&request)?;
        } else if admission.may_speak(stream.group, &request)? {
            stream.checked = Some(request.term());
        } else {
            self.forget(number);
            self.closed(number, StreamEnd::NotServed);
            return Ok(());
        }
        // Each limit may be passed by a request or a few, taken at the same moment.
        self.under_way += charge;
        stream.charges.push_back(charge);
        if self.under_way > 2 * bounds.memory.max(bounds.frame) {
            return Err(SessionEnd::OverBudget);
        }
        stream.requests.push(request);
        Ok(())
    }

    fn call(
        &mut self,
        number: u32,
        body: Bytes,
        reservation: Option<Reservation>,
    ) -> Result<(), SessionEnd> {
        let raft = Arc::clone(self.serving.raft);
        let node = raft.node_id();
        let call = Call::get(Reader::new(body))?;
        if self.is_refused(&call)? {
            let refused = Err(NetworkError::Unreachable(node));
            self.out.put(Kind::Reply, number, |out| {
                call::put_reply(out, &refused, wire::put_nothing);
            });
            return Ok(());
        }
        match call {
            Call::Vote {
                group,
                request,
                pre_vote,
            } => self.calls.push(Box::pin(async move {
                let reply = raft.serve_vote(group, request, pre_vote).await;
                reply_bytes(number, &reply, wire::put_vote_reply)
            })),
            Call::Snapshot { group, offer } => self.calls.push(Box::pin(async move {
                let reply = raft.serve_snapshot(group, offer).await;
                reply_bytes(number, &reply, wire::put_snapshot_reply)
            })),
            Call::Transfer { group, request } => self.calls.push(Box::pin(async move {
                let reply = raft.serve_transfer_leader(group, request).await;
                reply_bytes(number, &reply, wire::put_transfer_reply)
            })),
            Call::Probe(probe) if probe.from != self.serving.from => {
                return Err(Forbidden::OfAnother(probe.from).into());
            }
            Call::Probe(probe) => {
                let reply = Ok(raft.serve_probe(probe));
                self.out.put(Kind::Reply, number, |out| {
                    call::put_reply(out, &reply, wire::put_probe_reply);
                });
            }
            Call::Leadership(query) => {
                let reply = Ok(raft.serve_leadership(query));
                self.out.put(Kind::Reply, number, |out| {
                    call::put_reply(out, &reply, wire::put_leadership_reply);
                });
            }
            Call::Clearance(group) => {
                let from = self.serving.from;
                self.calls.push(Box::pin(async move {
                    let reply = raft.serve_clearance(group, from).await;
                    reply_bytes(number, &reply, wire::put_clearance)
                }));
            }
            Call::OpenRecords { group, wanted } => {
                let from = self.serving.from;
                self.calls.push(Box::pin(async move {
                    let reply = raft.serve_open_records(group, from, wanted).await;
                    reply_bytes(number, &reply, wire::put_records_opened)
                }));
            }
            Call::ReadRecords { group, read } => {
                let from = self.serving.from;
                let throttles = Arc::clone(self.serving.throttles);
                self.calls.push(Box::pin(async move {
                    let waiting = throttles.until_may_send(group, from);
                    let read = match tokio::time::timeout(HELD_BACK_MAX, waiting).await {
                        Ok(()) => read,
                        // It is asked for again.
                        Err(_) => read.of_nothing(),
                    };
                    let reply = raft.serve_read_records(group, from, read).await;
                    let bytes = reply.as_ref().ok().and_then(Option::as_ref);
                    throttles.sent(group, from, bytes.map_or(0, Bytes::len));
                    reply_bytes(number, &reply, wire::put_records_piece)
                }));
            }
            Call::CloseRecords(group) => {
                let reply = raft.serve_close_records(group, self.serving.from);
                self.out.put(Kind::Reply, number, |out| {
                    call::put_reply(out, &reply, wire::put_nothing);
                });
            }
            // It may have to read headers from the disk.
            Call::Droppable(group) => self.calls.push(Box::pin(async move {
                let asked = tokio::task::spawn_blocking(move || raft.serve_droppable(group));
                let stopped = |_| Err(NetworkError::NotServed { node, group });
                let reply = asked.await.unwrap_or_else(stopped);
                reply_bytes(number, &reply, wire::put_droppable)
            })),
            Call::Peer(request) => self.request(number, request, reservation),
            Call::Unknown => self.out.put(Kind::Reply, number, call::put_unsupported),
        }
        Ok(())
    }

    /// Whether a call is one that its sender may make later, perhaps, but not now.
    fn is_refused(&self, call: &Call) -> Result<bool, Forbidden> {
        let admission = &self.serving.admission;
        let may = match call {
            Call::Peer(request) => return admission.check_request(request).map(|()| false),
            // Told so whoever asks.
            Call::Unknown => return Ok(false),
            Call::Vote { group, request, .. } => admission.may_speak(*group, request)?,
            Call::Snapshot { group, offer } => admission.may_speak(*group, offer)?,
            Call::Transfer { group, request } => admission.may_speak(*group, request)?,
            Call::OpenRecords { group, .. } => {
                admission.check_cluster()?;
                admission.is_member(*group)
            }
            Call::Probe(_) | Call::Leadership(_) => {
                admission.check_cluster()?;
                admission.is_known()
            }
            Call::Clearance(_)
            | Call::ReadRecords { .. }
            | Call::CloseRecords(_)
            | Call::Droppable(_) => {
                admission.check_cluster()?;
                true
            }
        };
        Ok(!may)
    }

    fn request(&mut self, number: u32, request: PeerRequest, reservation: Option<Reservation>) {
        match self.serving.service.get() {
            Some(service) => {
                let answer = service.serve(self.serving.caller, request);
                self.requests.spawn(async move {
                    let reply = answer.await;
                    // What was asked has been in memory until now.
                    drop(reservation);
                    (number, reply)
                });
            }
            None => self.reply(number, &PeerReply::Busy),
        }
    }

    fn reply(&mut self, number: u32, reply: &PeerReply) {
        self.out.put(Kind::Reply, number, |out| {
            call::put_peer_reply(out, reply);
        });
    }

    /// Queues the answers that are ready.
    fn gather(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progress = false;
        while let Poll::Ready(Some((number, answer))) = self.answers.poll_next_unpin(cx) {
            progress = true;
            self.answer(number, answer);
        }
        while let Poll::Ready(Some((number, reply))) = self.calls.poll_next_unpin(cx) {
            progress = true;
            self.out.put(Kind::Reply, number, |out| out.extend(reply));
        }
        while let Poll::Ready(Some(done)) = self.requests.poll_join_next(cx) {
            progress = true;
            // One that panicked has said so, and its asker gives up in time.
            if let Ok((number, reply)) = done {
                self.reply(number, &reply);
            }
        }
        progress
    }

    fn answer(&mut self, number: u32, answer: Option<Result<AppendResult, NetworkError>>) {
        // Of a stream that is cancelled the end still comes.
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        match answer {
            Some(Ok(answer)) => {
                if let Some(charge) = stream.charges.pop_front() {
                    self.under_way -= charge;
                }
                self.out.put(Kind::Answer, number, |out| {
                    wire::put_append_result(out, &answer);
                });
            }
            Some(Err(_)) => {
                self.forget(number);
                self.closed(number, StreamEnd::NotServed);
            }
            None => {
                let as_agreed = stream.complete && stream.charges.is_empty();
                self.forget(number);
                if !as_agreed {
                    self.closed(number, StreamEnd::Ended);
                }
            }
        }
    }

    fn forget(&mut self, number: u32) {
        if let Some(stream) = self.streams.remove(&number) {
            self.under_way -= stream.charges.iter().sum::<usize>();
        }
    }

    fn closed(&mut self, number: u32, end: StreamEnd) {
        self.out.put(Kind::Closed, number, |out| end.put(out));
    }
}

fn reply_bytes<T>(
    number: u32,
    reply: &Result<T, NetworkError>,
    put: impl FnOnce(&mut BytesMut, &T),
) -> (u32, BytesMut) {
    let mut out = BytesMut::new();
    call::put_reply(&mut out, reply, put);
    (number, out)
}
