//! Takes frames off a socket.
//!
//! A waiting connection holds no buffer. The start of a frame is read into a small inbox; a frame
//! that is longer is then read straight into memory of exactly its size, once that has been
//! reserved from the broker's budget, so that a produced megabyte is copied by the kernel alone.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use odradek_protocol::api::ApiKey;
use odradek_protocol::error::ProtocolError;
use odradek_protocol::frame::{FrameDecoder, FrameEvent, FrameHead, LENGTH_PREFIX_BYTES};
use tokio::io::AsyncReadExt as _;
use tokio::net::tcp::ReadHalf;
use tokio::sync::Semaphore;

use super::ConnectionShared;
use super::buffers::{FrameBuffer, FrameBuffers};
use crate::memory::{MemoryBudget, Reservation};

/// Rate that a frame must keep up, once the stall limit has passed, while others wait for memory.
const CONTENDED_BYTES_PER_SECOND: f64 = 65_536.0;

/// Bytes asked of the socket while nothing is known of the next frame.
const INBOX_BYTES: usize = 4 * 1024;

/// Why no further frame comes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadEnd {
    /// The peer closed between two frames.
    #[error("closed by the peer")]
    Closed,
    /// The peer closed inside a frame.
    #[error("closed by the peer inside a frame")]
    Truncated,
    /// The socket failed.
    #[error("socket: {0}")]
    Socket(#[from] io::Error),
    /// The frame is not one that may be read.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The peer held memory that others waited for.
    #[error("stalled inside a frame while others wait for memory")]
    Stalled,
}

/// One whole frame without its length, and the memory reserved for it.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) payload: Bytes,
    pub(super) reservation: Reservation,
    /// When its last byte was read.
    pub(super) completed_at: Instant,
}

/// The reading half of a connection.
#[derive(Debug)]
pub(super) struct FrameReader<'a> {
    stream: ReadHalf<'a>,
    decoder: FrameDecoder,
    budget: &'a MemoryBudget,
    buffers: &'a Arc<FrameBuffers>,
    /// A peer that starts a frame and then sends nothing for this long is cut off if another
    /// connection waits for the memory that it holds.
    stall_limit: Duration,
    inbox: BytesMut,
    /// One permit for each byte of large Produce frames that may await its place in a log.
    room: Arc<Semaphore>,
    max_in_flight_bytes: usize,
}

impl<'a> FrameReader<'a> {
    pub(super) fn new(stream: ReadHalf<'a>, shared: &'a ConnectionShared) -> Self {
        let mut decoder = FrameDecoder::new(shared.limits);
        // A plaintext listener asks nobody who they are.
        decoder.set_authenticated();
        Self {
            stream,
            decoder,
            budget: &shared.budget,
            buffers: &shared.buffers,
            stall_limit: shared.stall_limit,
            inbox: BytesMut::new(),
            room: Arc::new(Semaphore::new(shared.max_in_flight_bytes)),
            max_in_flight_bytes: shared.max_in_flight_bytes,
        }
    }

    /// The next frame. `progress` hears of the bytes each read has brought.
    pub(super) async fn next(&mut self, mut progress: impl FnMut(usize)) -> Result<Frame, ReadEnd> {
        let head = loop {
            match self.decoder.decode(&mut self.inbox)? {
                FrameEvent::Announced(head) => break head,
                FrameEvent::Incomplete { .. } | FrameEvent::Frame { .. } => {}
            }
            let read = self.fill_inbox().await?;
            if read == 0 {
                return Err(if self.inbox.is_empty() {
                    ReadEnd::Closed
                } else {
                    ReadEnd::Truncated
                });
            }
            progress(read);
        };
        let reservation = self.budget.reserve(head.memory_bytes()).await;
        let payload = match self.decoder.decode(&mut self.inbox)? {
            // Copied out, so that whoever keeps a slice of a small frame keeps no more than that.
            FrameEvent::Frame { bytes, .. } => Bytes::copy_from_slice(&bytes),
            _ => self.read_rest(head, &mut progress).await?,
        };
        if self.inbox.is_empty() {
            self.inbox = BytesMut::new();
        }
        Ok(Frame {
            payload,
            reservation,
            completed_at: Instant::now(),
        })
    }

    /// What has arrived behind the last frame.
    pub(super) fn into_unread(self) -> BytesMut {
        self.inbox
    }

    /// Reads what the socket has, up to an inbox; 0 at the end of the stream.
    async fn fill_inbox(&mut self) -> io::Result<usize> {
        // The buffer is there only once there is something to put into it.
        self.stream.readable().await?;
        self.inbox.reserve(INBOX_BYTES);
        let mut inbox = (&mut self.inbox).limit(INBOX_BYTES);
        self.stream.read_buf(&mut inbox).await
    }

    /// Memory for a frame. A large Produce frame waits until enough of those before it are in the
    /// log: reading ahead of the log takes memory, and what has waited long has left the
    /// processor's cache.
    async fn frame_buffer(&self, head: FrameHead, total: usize) -> FrameBuffer {
        let is_produce = ApiKey::from_key(head.api_key) == Some(ApiKey::Produce);
        if !is_produce || !FrameBuffers::keeps(total) {
            return FrameBuffer::single(total);
        }
        let bytes = total.min(self.max_in_flight_bytes);
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        // The semaphore is never closed; if it were, the frame would not count.
        let room = Arc::clone(&self.room)
            .acquire_many_owned(permits)
            .await
            .ok();
        self.buffers.take(total, room)
    }

    async fn read_rest(
        &mut self,
        head: FrameHead,
        progress: &mut impl FnMut(usize),
    ) -> Result<Bytes, ReadEnd> {
        let total = LENGTH_PREFIX_BYTES + head.length;
        let mut frame = self.frame_buffer(head, total).await;
        frame.bytes.extend_from_slice(&self.inbox);
        self.inbox = BytesMut::new();
        let started = Instant::now();
        while frame.bytes.len() < total {
            // A byte now and then does not entitle anyone to memory that others wait for.
            let allowed = self.stall_limit
                + Duration::from_secs_f64(frame.bytes.len() as f64 / CONTENDED_BYTES_PER_SECOND);
            if started.elapsed() > allowed && self.budget.is_contended() {
                return Err(ReadEnd::Stalled);
            }
            let missing = total - frame.bytes.len();
            let read = self.read_or_stalled(&mut frame.bytes, missing).await?;
            if read == 0 {
                return Err(ReadEnd::Truncated);
            }
            progress(read);
        }
        self.decoder.frame_taken();
        Ok(frame.freeze().slice(LENGTH_PREFIX_BYTES..))
    }

    async fn read_or_stalled(
        &mut self,
        frame: &mut BytesMut,
        missing: usize,
    ) -> Result<usize, ReadEnd> {
        loop {
            let mut frame = (&mut *frame).limit(missing);
            let read = self.stream.read_buf(&mut frame);
            match tokio::time::timeout(self.stall_limit, read).await {
                Ok(read) => return Ok(read?),
                Err(_) if self.budget.is_contended() => return Err(ReadEnd::Stalled),
                Err(_) => {}
            }
        }
    }
}
