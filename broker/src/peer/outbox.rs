//! Frames on their way to one socket.
//!
//! Small things are written behind one another into one buffer, batches are handed over as they
//! are, and everything that is queued leaves in as few system calls as it takes.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use odradek_raft::wire::Sink;
use tokio::net::TcpStream;

use super::frame::{self, HEAD_BYTES, Kind};

/// Most pieces that one system call takes.
const GATHER_SLICES: usize = 64;
/// A buffer of small things that has grown to this is closed, so that it is not moved any more.
const BUFFER_BYTES: usize = 32 << 10;
/// First size of such a buffer.
const BUFFER_MIN_BYTES: usize = 4 << 10;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pieces: VecDeque<Bytes>,
    /// Bytes in `pieces`.
    closed_bytes: usize,
    /// What comes behind the pieces.
    open: BytesMut,
}

impl Outbox {
    /// Bytes that have not been handed to the kernel.
    pub(super) fn len(&self) -> usize {
        self.closed_bytes + self.open.len()
    }

    /// Queues a frame with a small body.
    pub(super) fn put(&mut self, kind: Kind, number: u32, body: impl FnOnce(&mut BytesMut)) {
        self.make_room();
        let start = self.open.len();
        frame::put_head(&mut self.open, kind, number, 0);
        body(&mut self.open);
        let counted = (self.open.len() - start - 4) as u32;
        if let Some(length) = self.open.get_mut(start..start + 4) {
            length.copy_from_slice(&counted.to_be_bytes());
        }
    }

    /// Queues the head of a frame whose body, of `body_bytes`, is put into this [`Sink`] next.
    pub(super) fn put_head(&mut self, kind: Kind, number: u32, body_bytes: usize) {
        self.make_room();
        frame::put_head(&mut self.open, kind, number, body_bytes);
    }

    fn make_room(&mut self) {
        if self.open.len() >= BUFFER_BYTES {
            self.close_buffer();
        }
        if self.open.capacity() - self.open.len() < HEAD_BYTES {
            self.open.reserve(BUFFER_MIN_BYTES);
        }
    }

    fn close_buffer(&mut self) {
        if !self.open.is_empty() {
            let piece = self.open.split().freeze();
            self.closed_bytes += piece.len();
            self.pieces.push_back(piece);
        }
    }

    /// Sends until everything is sent or the socket takes no more; returns the bytes sent.
    pub(super) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        stream: &TcpStream,
        mut sent: impl FnMut(usize),
    ) -> Poll<io::Result<()>> {
        self.close_buffer();
        while !self.pieces.is_empty() {
            ready!(stream.poll_write_ready(cx))?;
            match self.send(stream) {
                Ok(bytes) => {
                    sent(bytes);
                    self.advance(bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn send(&self, stream: &TcpStream) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); GATHER_SLICES];
        let mut used = 0;
        for (slot, piece) in slices.iter_mut().zip(&self.pieces) {
            *slot = IoSlice::new(piece);
            used += 1;
        }
        stream.try_write_vectored(slices.get(..used).unwrap_or_default())
    }

    fn advance(&mut self, mut bytes: usize) {
        self.closed_bytes = self.closed_bytes.saturating_sub(bytes);
        while let Some(front) = self.pieces.front_mut() {
            if bytes < front.len() {
                front.advance(bytes);
                return;
            }
            bytes -= front.len();
            self.pieces.pop_front();
        }
    }
}

impl Sink for Outbox {
    fn buffer(&mut self) -> &mut BytesMut {
        &mut self.open
    }

    fn share(&mut self, bytes: Bytes) {
        self.close_buffer();
        self.closed_bytes += bytes.len();
        self.pieces.push_back(bytes);
    }
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn what_is_queued_arrives_in_order_and_is_counted() {
        let mut outbox = Outbox::default();
        let mut expected = BytesMut::new();
        for number in 0..500u32 {
            let body = vec![number as u8; (number as usize * 37) % 900];
            frame::put_head(&mut expected, Kind::Call, number, body.len());
            expected.put_slice(&body);
            outbox.put(Kind::Call, number, |out| out.put_slice(&body));
            let large = Bytes::from(vec![number as u8; 5_000]);
            frame::put_head(&mut expected, Kind::Append, number, large.len() + 1);
            expected.put_slice(&large);
            expected.put_u8(9);
            outbox.put_head(Kind::Append, number, large.len() + 1);
            outbox.share(large);
            outbox.buffer().put_u8(9);
        }
        assert_eq!(outbox.len(), expected.len());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("it has one");
        let reading = tokio::spawn(async move {
            let mut stream = TcpStream::connect(address).await.expect("connected");
            let mut received = Vec::new();
            stream.read_to_end(&mut received).await.expect("read");
            received
        });
        let (stream, _) = listener.accept().await.expect("accepted");
        let mut counted = 0;
        std::future::poll_fn(|cx| outbox.poll_send(cx, &stream, |sent| counted += sent))
            .await
            .expect("sent");
        drop(stream);
        assert_eq!((counted, outbox.len()), (expected.len(), 0));
        assert!(reading.await.expect("no panic") == expected);
    }
}
