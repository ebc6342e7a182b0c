//! Takes frames off a socket.
//!
//! A waiting connection holds no buffer. The start of a frame is read into a small inbox; one that is
//! longer is then read into memory that is reserved from the broker's budget in steps, each of which is
//! asked for once bytes for it have come. The first is a megabyte as long as there is plenty, so that
//! ordinary frames are copied by the kernel alone. Where memory is short it is 64 KiB, sixteen times that,
//! and from there on four times what the frame had: announcing much gets nobody anything, and memory goes
//! to those who send.
//!
//! While others wait for memory, a frame of which nothing comes gives back what it has not filled, and goes
//! altogether after the stall limit.

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

/// What a frame has memory for at first.
const FIRST_STEP_BYTES: usize = 64 * 1024;

/// Up to this, a frame that fills its memory gets [`STEEP`] times as much, and [`FLAT`] times from there on.
const STEEP_BYTES: usize = 1024 * 1024;
const STEEP: usize = 16;
const FLAT: usize = 4;

/// How long a frame of which nothing comes keeps memory for more than has come while others wait for it.
const GIVE_WAY: Duration = Duration::from_millis(100);

/// How long who has what is kept for one frame at a time may stall while others wait for it.
const FIRST_IN_LINE_STALL: Duration = Duration::from_secs(1);

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
        let mut reservation = self.budget.begin(head.memory_bytes());
        if self.inbox.len() >= LENGTH_PREFIX_BYTES + head.length {
            self.budget.grow(&mut reservation, usize::MAX).await;
        }
        let payload = match self.decoder.decode(&mut self.inbox)? {
            // Copied out, so that whoever keeps a slice of a small frame keeps no more than that.
            FrameEvent::Frame { bytes, .. } => Bytes::copy_from_slice(&bytes),
            FrameEvent::Announced(_) | FrameEvent::Incomplete { .. } => {
                let rest = self.read_rest(head, &mut reservation, &mut progress);
                rest.await?
            }
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

    /// A frame of which nothing has come. A large Produce frame waits until enough of those before it are in
    /// the log: reading ahead of the log takes memory, and what has waited long has left the processor's
    /// cache.
    async fn begin_frame(&self, head: FrameHead, total: usize) -> FrameBuffer {
        let is_produce = ApiKey::from_key(head.api_key) == Some(ApiKey::Produce);
        if !is_produce || !FrameBuffers::keeps(total) {
            return FrameBuffer::single();
        }
        let bytes = total.min(self.max_in_flight_bytes);
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        // The semaphore is never closed; if it were, the frame would not count.
        let room = Arc::clone(&self.room)
            .acquire_many_owned(permits)
            .await
            .ok();
        self.buffers.begin(room)
    }

    async fn read_rest(
        &mut self,
        head: FrameHead,
        reservation: &mut Reservation,
        progress: &mut impl FnMut(usize),
    ) -> Result<Bytes, ReadEnd> {
        let total = LENGTH_PREFIX_BYTES + head.length;
        // What it takes once it is decoded may be a multiple of its bytes.
        let memory_per_byte = (head.memory_bytes() / head.length.max(1)).max(1);
        let mut frame = self.begin_frame(head, total).await;
        // Nobody queues for memory who has nothing to put into it.
        self.stream.readable().await?;
        let mut granted = 0;
        let mut pace = Pace::new(self.stall_limit);
        while frame.bytes.len() < total {
            let come = frame.bytes.len();
            if self.budget.is_contended() && pace.must_end(come) {
                return Err(ReadEnd::Stalled);
            }
            if come >= granted {
                if granted > 0 && !self.has_more().await? {
                    continue;
                }
                let asked_at = Instant::now();
                granted = self
                    .more_memory(reservation, granted, total, memory_per_byte)
                    .await;
                frame.grow(granted);
                frame
                    .bytes
                    .extend_from_slice(&std::mem::take(&mut self.inbox));
                let is_first = reservation.is_first_in_line();
                pace.granted(frame.bytes.len(), asked_at, is_first);
                continue;
            }
            if self.budget.is_contended() && pace.must_give_way(come) {
                reservation.shrink(come.saturating_mul(memory_per_byte));
                frame.shrink();
                granted = come;
                continue;
            }
            match self.read_some(&mut frame.bytes, granted - come).await? {
                None => {}
                Some(0) => return Err(ReadEnd::Truncated),
                Some(read) => {
                    pace.moved();
                    progress(read);
                }
            }
        }
        self.decoder.frame_taken();
        Ok(frame.freeze().slice(LENGTH_PREFIX_BYTES..))
    }

    /// Waits for memory for more of a frame of `total` bytes that has filled the `granted` ones it had.
    /// Returns what it has then.
    async fn more_memory(
        &self,
        reservation: &mut Reservation,
        granted: usize,
        total: usize,
        memory_per_byte: usize,
    ) -> usize {
        let memory_of = |bytes: usize| bytes.saturating_mul(memory_per_byte);
        let most = total.min(STEEP_BYTES);
        let is_plenty = granted == 0 && self.budget.is_ample(reservation, memory_of(most));
        let wanted = match is_plenty {
            true => most,
            false => next_step(granted, total),
        };
        self.budget.grow(reservation, memory_of(wanted)).await;
        match reservation.is_first_in_line() {
            true => total,
            false => wanted,
        }
    }

    /// Reads what the socket has, up to `missing` bytes; 0 at the end of the stream. Returns without
    /// any while others wait for memory, for the pace to be looked at.
    async fn read_some(
        &mut self,
        frame: &mut BytesMut,
        missing: usize,
    ) -> io::Result<Option<usize>> {
        let mut frame = frame.limit(missing);
        tokio::select! {
            biased;
            read = self.stream.read_buf(&mut frame) => Ok(Some(read?)),
            () = contended_for_a_while(self.budget) => Ok(None),
        }
    }

    /// Waits until the peer sends more. False while others wait for memory, for the pace to be looked at.
    async fn has_more(&self) -> io::Result<bool> {
        tokio::select! {
            biased;
            readable = self.stream.readable() => readable.map(|()| true),
            () = contended_for_a_while(self.budget) => Ok(false),
        }
    }
}

async fn contended_for_a_while(budget: &MemoryBudget) {
    budget.until_contended().await;
    tokio::time::sleep(GIVE_WAY).await;
}

/// How fast a frame comes, against how fast it has to come while others wait for memory.
#[derive(Debug)]
struct Pace {
    stall_limit: Duration,
    is_first_in_line: bool,
    begun: Instant,
    /// Part of the time since then in which it waited for memory.
    waited: Duration,
    moved_at: Instant,
    granted_at: Instant,
    bytes_when_granted: usize,
}

impl Pace {
    fn new(stall_limit: Duration) -> Self {
        let now = Instant::now();
        Self {
            stall_limit,
            is_first_in_line: false,
            begun: now,
            waited: Duration::ZERO,
            moved_at: now,
            granted_at: now,
            bytes_when_granted: 0,
        }
    }

    /// Bytes have come.
    fn moved(&mut self) {
        self.moved_at = Instant::now();
    }

    /// There is memory for more, which was asked for at `asked_at`.
    fn granted(&mut self, bytes: usize, asked_at: Instant, is_first_in_line: bool) {
        let now = Instant::now();
        self.waited += now - asked_at;
        self.moved_at = now;
        self.granted_at = now;
        self.bytes_when_granted = bytes;
        if is_first_in_line && !self.is_first_in_line {
            self.is_first_in_line = true;
            self.stall_limit = self.stall_limit.min(FIRST_IN_LINE_STALL);
            self.begun = now;
            self.waited = Duration::ZERO;
        }
    }

    /// Whether a frame of which `bytes` have come is to go. A byte now and then does not entitle anyone to
    /// memory that others wait for.
    fn must_end(&self, bytes: usize) -> bool {
        let sending = self.begun.elapsed().saturating_sub(self.waited);
        self.moved_at.elapsed() > self.stall_limit || sending > self.stall_limit + time_for(bytes)
    }

    /// Whether it is to keep no more memory than for what has come.
    fn must_give_way(&self, bytes: usize) -> bool {
        let come = bytes.saturating_sub(self.bytes_when_granted);
        let is_silent = self.moved_at.elapsed() > GIVE_WAY;
        let is_slow = self.granted_at.elapsed() > GIVE_WAY + time_for(come);
        !self.is_first_in_line && (is_silent || is_slow)
    }
}

/// How long so many bytes may take while others wait for memory.
fn time_for(bytes: usize) -> Duration {
    Duration::from_secs_f64(bytes as f64 / CONTENDED_BYTES_PER_SECOND)
}

/// What a frame of `total` bytes is to have memory for next, after it has filled `granted` bytes.
fn next_step(granted: usize, total: usize) -> usize {
    let next = match granted {
        few if few < STEEP_BYTES => (few * STEEP).clamp(FIRST_STEP_BYTES, STEEP_BYTES),
        many => many.saturating_mul(FLAT),
    };
    next.min(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1 << 20;

    fn steps(total: usize) -> Vec<usize> {
        let mut steps = vec![next_step(0, total)];
        while let Some(last) = steps.last().copied().filter(|last| *last < total) {
            steps.push(next_step(last, total));
        }
        steps
    }

    #[test]
    fn a_frame_gets_memory_in_few_steps_none_of_which_is_far_beyond_what_has_come() {
        assert_eq!(steps(1_000), [1_000]);
        assert_eq!(steps(MB), [64 << 10, MB]);
        assert_eq!(steps(1_000_000), [64 << 10, 1_000_000]);
        assert_eq!(steps(8 * MB), [64 << 10, MB, 4 * MB, 8 * MB]);
        let largest = steps(100 * MB);
        assert_eq!(largest.len(), 6);
        for pair in largest.windows(2) {
            assert!(pair[1] <= pair[0] * STEEP);
        }
    }
}
