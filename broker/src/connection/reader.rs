//! Takes frames off a socket.
//!
//! A waiting connection holds no buffer. The start of a frame is read into a small inbox; a frame
//! that is longer is then read straight into memory of exactly its size, once that has been
//! reserved from the broker's budget, so that a produced megabyte is copied by the kernel alone.

use std::io;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use odradek_protocol::error::ProtocolError;
use odradek_protocol::frame::{FrameDecoder, FrameEvent, FrameLimits, LENGTH_PREFIX_BYTES};
use tokio::io::AsyncReadExt as _;
use tokio::net::tcp::ReadHalf;

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
    /// A peer that starts a frame and then sends nothing for this long is cut off if another
    /// connection waits for the memory that it holds.
    stall_limit: Duration,
    inbox: BytesMut,
}

impl<'a> FrameReader<'a> {
    pub(super) fn new(
        stream: ReadHalf<'a>,
        limits: FrameLimits,
        budget: &'a MemoryBudget,
        stall_limit: Duration,
    ) -> Self {
        let mut decoder = FrameDecoder::new(limits);
        // A plaintext listener asks nobody who they are.
        decoder.set_authenticated();
        Self {
            stream,
            decoder,
            budget,
            stall_limit,
            inbox: BytesMut::new(),
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
            _ => self.read_rest(head.length, &mut progress).await?,
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

    async fn read_rest(
        &mut self,
        length: usize,
        progress: &mut impl FnMut(usize),
    ) -> Result<Bytes, ReadEnd> {
        let total = LENGTH_PREFIX_BYTES + length;
        let mut frame = BytesMut::with_capacity(total);
        frame.extend_from_slice(&self.inbox);
        self.inbox = BytesMut::new();
        let started = Instant::now();
        loop {
            if let FrameEvent::Frame { bytes, .. } = self.decoder.decode(&mut frame)? {
                return Ok(bytes);
            }
            // A byte now and then does not entitle anyone to memory that others wait for.
            let allowed = self.stall_limit
                + Duration::from_secs_f64(frame.len() as f64 / CONTENDED_BYTES_PER_SECOND);
            if started.elapsed() > allowed && self.budget.is_contended() {
                return Err(ReadEnd::Stalled);
            }
            let missing = total - frame.len();
            let read = self.read_or_stalled(&mut frame, missing).await?;
            if read == 0 {
                return Err(ReadEnd::Truncated);
            }
            progress(read);
        }
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
