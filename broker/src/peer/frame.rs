//! Frames between nodes: a length, a kind, the number of a call or stream, a body.
//!
//! Small frames are slices of what one read has brought; a large one is read into memory of its
//! own size. Either way the kernel's copy is the only one of all but the start of a large frame.
//!
//! The memory of a large frame is reserved from a budget that connections share, before it is taken:
//! a length is soon said. Until then nothing more of the connection is read. Who holds such memory and
//! does not go on is cut off once others wait for it.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use crate::memory::{MemoryBudget, Reservation, SMALL_FRAME_BYTES};

/// Length, kind, number.
pub(super) const HEAD_BYTES: usize = 9;
/// Kind and number: what the length counts besides the body.
const COUNTED_HEAD_BYTES: usize = 5;
/// What one read may bring.
const CHUNK_BYTES: usize = 128 << 10;
/// Room below which a new chunk is taken.
const CHUNK_LEFT_MIN_BYTES: usize = 8 << 10;
/// Frames from this size on, with their length, are read into memory of their own.
const LARGE_BYTES: usize = 64 << 10;
/// Longest frame that is not.
pub(super) const SMALL_MAX_BYTES: usize = LARGE_BYTES - 5;
/// Rate that a large frame must keep up, once the stall limit has passed, while others wait for memory.
const CONTENDED_BYTES_PER_SECOND: f64 = 65_536.0;

/// What a frame is. The asking side sends `Call`, `Open`, `Append`, `End` and `Cancel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A question, of the number by which its answer is known.
    Call,
    /// The answer to a call.
    Reply,
    /// A stream of append requests to a group begins.
    Open,
    /// The next append request of a stream.
    Append,
    /// No request follows; the answers to earlier ones are still wanted.
    End,
    /// No answer is wanted any more.
    Cancel,
    /// The answer to the oldest unanswered request of a stream.
    Answer,
    /// No answer follows, and why.
    Closed,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Call,
        Self::Reply,
        Self::Open,
        Self::Append,
        Self::End,
        Self::Cancel,
        Self::Answer,
        Self::Closed,
    ];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte).checked_sub(1)?).copied()
    }

    fn byte(self) -> u8 {
        self as u8 + 1
    }
}

/// A frame that has arrived.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) number: u32,
    pub(super) body: Bytes,
    /// Memory of a large frame, counted until this is dropped.
    pub(super) reservation: Option<Reservation>,
}

/// How much of frames a reader takes.
#[derive(Debug, Clone)]
pub(super) struct Intake {
    /// Longest frame.
    pub(super) limit: usize,
    /// Memory for large frames, which all connections share.
    pub(super) budget: Arc<MemoryBudget>,
    /// How long a large frame may stand still while others wait for memory.
    pub(super) stall_limit: Duration,
}

/// Why no further frame comes.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameEnd {
    #[error("closed by the other node")]
    Closed,
    #[error("closed by the other node inside a frame")]
    Truncated,
    #[error("socket: {0}")]
    Socket(#[from] io::Error),
    #[error("a frame of {length} bytes is over the limit of {limit}")]
    TooLong { length: usize, limit: usize },
    #[error("a frame of {0} bytes is too short")]
    TooShort(usize),
    #[error("a frame of kind {0}")]
    UnknownKind(u8),
    #[error("stalled inside a frame while others wait for memory")]
    Stalled,
}

/// Writes the head of a frame whose body will be `body_bytes` long.
pub(super) fn put_head(out: &mut BytesMut, kind: Kind, number: u32, body_bytes: usize) {
    out.put_u32((COUNTED_HEAD_BYTES + body_bytes) as u32);
    out.put_u8(kind.byte());
    out.put_u32(number);
}

/// Takes frames off a socket.
#[derive(Debug)]
pub(super) struct FrameReader {
    intake: Intake,
    inbox: BytesMut,
    /// The large frame that is coming.
    large: Option<Large>,
}

/// A large frame before it is there.
enum Large {
    /// Its start is in the inbox, and there is no memory for it so far.
    Waits {
        total: usize,
        reserving: BoxFuture<'static, Reservation>,
    },
    Arrives(Arriving),
}

/// A large frame as far as it has arrived, and its whole length with the prefix.
struct Arriving {
    frame: BytesMut,
    total: usize,
    reservation: Reservation,
    began: Instant,
    progressed: Instant,
    look_again: Pin<Box<Sleep>>,
}

impl fmt::Debug for Large {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waits { total, .. } => write!(f, "Waits({total})"),
            Self::Arrives(it) => write!(f, "Arrives({} of {})", it.frame.len(), it.total),
        }
    }
}

impl Arriving {
    /// Whether it takes memory that others could make more of.
    fn is_too_slow(&self, intake: &Intake) -> bool {
        if !intake.budget.is_contended() {
            return false;
        }
        // A byte now and then does not entitle anyone to memory that others wait for.
        let received = self.frame.len() as f64 / CONTENDED_BYTES_PER_SECOND;
        self.progressed.elapsed() >= intake.stall_limit
            || self.began.elapsed() >= intake.stall_limit + Duration::from_secs_f64(received)
    }
}

impl FrameReader {
    /// Takes frames within `intake`; `start` has arrived already.
    pub(super) fn new(intake: Intake, start: BytesMut) -> Self {
        Self {
            intake,
            inbox: start,
            large: None,
        }
    }

    /// From now on takes frames of at most `limit` bytes.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.intake.limit = limit;
    }

    /// The next frame. `received` hears of the bytes each read has brought.
    pub(super) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        stream: &TcpStream,
        mut received: impl FnMut(usize),
    ) -> Poll<Result<Frame, FrameEnd>> {
        loop {
            if let Some(frame) = self.take()? {
                return Poll::Ready(Ok(frame));
            }
            ready!(self.poll_memory(cx));
            if stream.poll_read_ready(cx)?.is_pending() {
                return self.poll_patience(cx).map(Err);
            }
            match self.read(stream) {
                Ok(0) => return Poll::Ready(Err(self.end_of_stream())),
                Ok(bytes) => {
                    received(bytes);
                    self.progressed()?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    fn end_of_stream(&self) -> FrameEnd {
        if self.inbox.is_empty() && self.large.is_none() {
            FrameEnd::Closed
        } else {
            FrameEnd::Truncated
        }
    }

    /// Has memory for the large frame that has been announced, if one has.
    fn poll_memory(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(Large::Waits { total, reserving }) = &mut self.large else {
            return Poll::Ready(());
        };
        let reservation = ready!(reserving.poll_unpin(cx));
        let total = *total;
        let mut frame = BytesMut::with_capacity(total);
        frame.extend_from_slice(&self.inbox);
        self.inbox.clear();
        let now = Instant::now();
        self.large = Some(Large::Arrives(Arriving {
            frame,
            total,
            reservation,
            began: now,
            progressed: now,
            look_again: Box::pin(tokio::time::sleep(self.intake.stall_limit)),
        }));
        Poll::Ready(())
    }

    /// Waits, inside a large frame, until that has stood still for too long.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<FrameEnd> {
        let Some(Large::Arrives(arriving)) = &mut self.large else {
            return Poll::Pending;
        };
        loop {
            ready!(arriving.look_again.poll_unpin(cx));
            if arriving.is_too_slow(&self.intake) {
                return Poll::Ready(FrameEnd::Stalled);
            }
            let next = Instant::now() + self.intake.stall_limit;
            arriving.look_again.as_mut().reset(next);
        }
    }

    fn progressed(&mut self) -> Result<(), FrameEnd> {
        if let Some(Large::Arrives(arriving)) = &mut self.large {
            if arriving.is_too_slow(&self.intake) {
                return Err(FrameEnd::Stalled);
            }
            arriving.progressed = Instant::now();
        }
        Ok(())
    }

    fn read(&mut self, stream: &TcpStream) -> io::Result<usize> {
        if let Some(Large::Arrives(Arriving { frame, total, .. })) = &mut self.large {
            let missing = *total - frame.len();
            return stream.try_read_buf(&mut (&mut *frame).limit(missing));
        }
        if self.inbox.capacity() - self.inbox.len() < CHUNK_LEFT_MIN_BYTES {
            self.inbox.reserve(CHUNK_BYTES);
        }
        stream.try_read_buf(&mut self.inbox)
    }

    /// A frame that has arrived whole.
    fn take(&mut self) -> Result<Option<Frame>, FrameEnd> {
        match self.large.take() {
            Some(Large::Arrives(arrived)) if arrived.frame.len() == arrived.total => {
                return split(arrived.frame, Some(arrived.reservation)).map(Some);
            }
            Some(large) => {
                self.large = Some(large);
                return Ok(None);
            }
            None => {}
        }
        let Some(prefix) = self.inbox.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*prefix) as usize;
        if length < COUNTED_HEAD_BYTES {
            return Err(FrameEnd::TooShort(length));
        }
        let limit = self.intake.limit;
        if length > limit {
            return Err(FrameEnd::TooLong { length, limit });
        }
        let total = length + 4;
        if self.inbox.len() >= total {
            let frame = self.inbox.split_to(total);
            return split(frame, None).map(Some);
        }
        if total >= LARGE_BYTES {
            let budget = Arc::clone(&self.intake.budget);
            // Of the share for large frames, whatever of it lies in the inbox already.
            let bytes = total.max(SMALL_FRAME_BYTES + 1);
            self.large = Some(Large::Waits {
                total,
                reserving: Box::pin(async move { budget.reserve(bytes).await }),
            });
        }
        Ok(None)
    }
}

fn split(frame: BytesMut, reservation: Option<Reservation>) -> Result<Frame, FrameEnd> {
    let mut body = frame.freeze();
    let short = |_| FrameEnd::TooShort(0);
    body.try_get_u32().map_err(short)?;
    let byte = body.try_get_u8().map_err(short)?;
    let number = body.try_get_u32().map_err(short)?;
    let kind = Kind::from_byte(byte).ok_or(FrameEnd::UnknownKind(byte))?;
    Ok(Frame {
        kind,
        number,
        body,
        reservation,
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    fn frame(kind: Kind, number: u32, body: &[u8]) -> BytesMut {
        let mut out = BytesMut::new();
        put_head(&mut out, kind, number, body.len());
        assert_eq!(out.len(), HEAD_BYTES);
        out.extend_from_slice(body);
        out
    }

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("it has one");
        let (ours, theirs) = tokio::join!(TcpStream::connect(address), listener.accept());
        (ours.expect("connected"), theirs.expect("accepted").0)
    }

    fn intake(limit: usize, budget: &Arc<MemoryBudget>) -> Intake {
        Intake {
            limit,
            budget: Arc::clone(budget),
            stall_limit: Duration::from_millis(100),
        }
    }

    fn reader(limit: usize) -> FrameReader {
        let budget = MemoryBudget::new(8 << 20, 0);
        FrameReader::new(intake(limit, &budget), BytesMut::new())
    }

    async fn next(reader: &mut FrameReader, stream: &TcpStream) -> Result<Frame, FrameEnd> {
        std::future::poll_fn(|cx| reader.poll_next(cx, stream, |_| {})).await
    }

    #[tokio::test]
    async fn frames_of_every_size_arrive_as_sent_whatever_the_packets() {
        let (mut ours, theirs) = pair().await;
        let sizes = [0, 1, 100, 70_000, 5, 300_000, 65_527, 65_528, 0, 1_000_000];
        let sending = tokio::spawn(async move {
            for (number, size) in (0..).zip(sizes) {
                let bytes = frame(Kind::Append, number, &vec![number as u8; size]);
                for piece in bytes.chunks(77_777) {
                    ours.write_all(piece).await.expect("sent");
                }
            }
            ours
        });
        let mut reader = reader(1 << 20);
        for (number, size) in (0..).zip(sizes) {
            let frame = next(&mut reader, &theirs).await.expect("a frame");
            assert_eq!((frame.kind, frame.number), (Kind::Append, number));
            assert!(frame.body == vec![number as u8; size], "frame {number}");
        }
        drop(sending.await);
        let end = next(&mut reader, &theirs).await;
        assert!(matches!(end, Err(FrameEnd::Closed)));
    }

    #[tokio::test]
    async fn impossible_frames_end_the_stream_before_memory_is_taken() {
        let mut unknown = frame(Kind::Call, 1, b"");
        unknown[4] = 99;
        let cases: [(&[u8], &str); 4] = [
            (&[0, 0, 0, 4, 1, 1, 1, 1], "a frame of 4 bytes is too short"),
            (
                &[0xff, 0xff, 0xff, 0xff],
                "a frame of 4294967295 bytes is over the limit of 1000",
            ),
            (&unknown, "a frame of kind 99"),
            (&[0, 0, 0, 9, 1], "closed by the other node inside a frame"),
        ];
        for (bytes, reason) in cases {
            let (mut ours, theirs) = pair().await;
            ours.write_all(bytes).await.expect("sent");
            drop(ours);
            let mut reader = reader(1000);
            let end = next(&mut reader, &theirs).await.expect_err("no frame");
            assert_eq!(end.to_string(), reason);
        }
    }

    /// Frames that are announced and never come, on as many connections as there may be.
    #[tokio::test]
    async fn frames_that_are_announced_take_no_more_memory_than_the_budget_and_wait_for_it() {
        const FRAME: usize = 3 << 20;
        let budget = MemoryBudget::new(8 << 20, 0);
        let mut open = Vec::new();
        let mut readings = tokio::task::JoinSet::new();
        for _ in 0..12 {
            let (mut ours, theirs) = pair().await;
            let head = frame(Kind::Append, 1, &vec![0; FRAME]);
            ours.write_all(&head[..100]).await.expect("sent");
            open.push(ours);
            let mut reader = FrameReader::new(intake(4 << 20, &budget), BytesMut::new());
            readings.spawn(async move { next(&mut reader, &theirs).await });
        }
        while budget.request_bytes_in_use() < 2 * FRAME {
            tokio::task::yield_now().await;
        }
        assert!(budget.request_bytes_in_use() <= 8 << 20);
        // They hold what others wait for, and do not go on.
        while readings.len() > 2 {
            let end = readings.join_next().await.expect("one of them");
            assert!(budget.request_bytes_in_use() <= 8 << 20);
            let end = end.expect("no panic");
            assert!(matches!(end, Err(FrameEnd::Stalled)), "{end:?}");
        }
        // Who is not waited for may take its time, and is taken up where it was.
        for mut ours in open {
            let rest = frame(Kind::Append, 1, &vec![0; FRAME]);
            // Most of them have been closed.
            let _ = ours.write_all(&rest[100..]).await;
        }
        while let Some(end) = readings.join_next().await {
            assert_eq!(end.expect("no panic").expect("a frame").body.len(), FRAME);
        }
        assert_eq!(budget.request_bytes_in_use(), 0);
    }
}
