//! Frames between nodes: a length, a kind, the number of a call or stream, a body.
//!
//! Small frames are slices of what one read has brought; a large one is read into memory of its
//! own size. Either way the kernel's copy is the only one of all but the start of a large frame.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::net::TcpStream;

/// Length, kind, number.
pub(super) const HEAD_BYTES: usize = 9;
/// Kind and number: what the length counts besides the body.
const COUNTED_HEAD_BYTES: usize = 5;
/// What one read may bring.
const CHUNK_BYTES: usize = 128 << 10;
/// Room below which a new chunk is taken.
const CHUNK_LEFT_MIN_BYTES: usize = 8 << 10;
/// Frames from this size on are read into memory of their own.
const LARGE_BYTES: usize = 64 << 10;

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) number: u32,
    pub(super) body: Bytes,
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
    limit: usize,
    inbox: BytesMut,
    /// A large frame as far as it has arrived, and its whole length with the prefix.
    large: Option<(BytesMut, usize)>,
}

impl FrameReader {
    /// Takes frames of at most `limit` bytes; `start` has arrived already.
    pub(super) fn new(limit: usize, start: BytesMut) -> Self {
        Self {
            limit,
            inbox: start,
            large: None,
        }
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
            ready!(stream.poll_read_ready(cx))?;
            match self.read(stream) {
                Ok(0) => return Poll::Ready(Err(self.end_of_stream())),
                Ok(bytes) => received(bytes),
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

    fn read(&mut self, stream: &TcpStream) -> io::Result<usize> {
        if let Some((frame, total)) = &mut self.large {
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
        if let Some((frame, total)) = &mut self.large {
            if frame.len() < *total {
                return Ok(None);
            }
            let frame = std::mem::take(frame);
            self.large = None;
            return split(frame).map(Some);
        }
        let Some(prefix) = self.inbox.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*prefix) as usize;
        if length < COUNTED_HEAD_BYTES {
            return Err(FrameEnd::TooShort(length));
        }
        if length > self.limit {
            return Err(FrameEnd::TooLong {
                length,
                limit: self.limit,
            });
        }
        let total = length + 4;
        if self.inbox.len() >= total {
            let frame = self.inbox.split_to(total);
            return split(frame).map(Some);
        }
        if total >= LARGE_BYTES {
            let mut frame = BytesMut::with_capacity(total);
            frame.extend_from_slice(&self.inbox);
            self.inbox.clear();
            self.large = Some((frame, total));
        }
        Ok(None)
    }
}

fn split(frame: BytesMut) -> Result<Frame, FrameEnd> {
    let mut body = frame.freeze();
    let short = |_| FrameEnd::TooShort(0);
    body.try_get_u32().map_err(short)?;
    let byte = body.try_get_u8().map_err(short)?;
    let number = body.try_get_u32().map_err(short)?;
    let kind = Kind::from_byte(byte).ok_or(FrameEnd::UnknownKind(byte))?;
    Ok(Frame { kind, number, body })
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
        let mut reader = FrameReader::new(1 << 20, BytesMut::new());
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
            let mut reader = FrameReader::new(1000, BytesMut::new());
            let end = next(&mut reader, &theirs).await.expect_err("no frame");
            assert_eq!(end.to_string(), reason);
        }
    }
}
