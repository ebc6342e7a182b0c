//! A bound on the connections of the HTTP endpoint: every one is a descriptor, and the log needs
//! those.
//!
//! Whoever holds a connection without using it must not keep a probe out, so a connection ends in
//! two ways besides its own: it has taken no byte of an answer for a while, however much it has
//! sent, or there are as many as there may be and it is the oldest when another one comes. What is
//! asked here takes milliseconds, so a request that is under way is hardly ever cut off by the
//! latter.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, Sleep};

/// A listener that has only so many connections open at a time, and one more for as long as it takes
/// to close the oldest.
#[derive(Debug)]
pub struct BoundedListener {
    listener: TcpListener,
    room: Arc<Semaphore>,
    patience: Duration,
    /// Dropping one closes its connection. Oldest first.
    open: VecDeque<oneshot::Sender<()>>,
}

impl BoundedListener {
    /// At most `most` connections of `listener`, each of which may go on for `patience` without
    /// taking a byte.
    pub fn new(listener: TcpListener, most: usize, patience: Duration) -> Self {
        Self {
            listener,
            room: Arc::new(Semaphore::new(most)),
            patience,
            open: VecDeque::new(),
        }
    }

    async fn place(&mut self) -> Option<OwnedSemaphorePermit> {
        self.open.retain(|connection| !connection.is_closed());
        let place = Arc::clone(&self.room).try_acquire_owned();
        if let Ok(place) = place {
            return Some(place);
        }
        self.open.pop_front();
        // It is closed by nobody; without a permit there would be no bound, and no harm.
        Arc::clone(&self.room).acquire_owned().await.ok()
    }
}

impl Listener for BoundedListener {
    type Io = BoundedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (BoundedStream, SocketAddr) {
        // This one waits by itself when it runs out of descriptors.
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let place = self.place().await;
        let (open, closing) = oneshot::channel();
        self.open.push_back(open);
        let stream = BoundedStream {
            stream,
            patience: self.patience,
            over_at: Box::pin(tokio::time::sleep(self.patience)),
            closing,
            is_over: false,
            _place: place,
        };
        (stream, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection, which gives its place back when it is closed.
#[derive(Debug)]
pub struct BoundedStream {
    stream: TcpStream,
    patience: Duration,
    /// When it has taken nothing for too long.
    over_at: Pin<Box<Sleep>>,
    /// Ends when its place is needed.
    closing: oneshot::Receiver<()>,
    is_over: bool,
    _place: Option<OwnedSemaphorePermit>,
}

impl BoundedStream {
    /// An error once the connection has had its time, and nothing until then.
    fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        if !self.is_over {
            let is_late = self.over_at.as_mut().poll(context).is_ready();
            if !is_late {
                let _ = ready!(Pin::new(&mut self.closing).poll(context));
            }
            self.is_over = true;
        }
        Poll::Ready(io::ErrorKind::TimedOut.into())
    }

    /// What became of a step, or an error instead of waiting beyond the connection's time.
    fn unless_over<T>(
        &mut self,
        context: &mut Context<'_>,
        step: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match step {
            Poll::Pending => self.poll_over(context).map(Err),
            done => done,
        }
    }
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.unless_over(context, read)
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if matches!(written, Poll::Ready(Ok(_))) {
            let over_at = Instant::now() + self.patience;
            self.over_at.as_mut().reset(over_at);
        }
        self.unless_over(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const FOR_EVER: Duration = Duration::from_secs(3600);
    const SOON: Duration = Duration::from_secs(10);
    const MOST: usize = 4;

    async fn serve(patience: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("it has one");
        let listener = BoundedListener::new(listener, MOST, patience);
        let router = Router::new().route("/", get(|| async { "well" }));
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    async fn begin(address: SocketAddr, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(bytes).await.expect("sent");
        stream
    }

    /// What comes until the server closes.
    async fn rest(stream: &mut TcpStream) -> String {
        let mut text = String::new();
        // A reset is an end, too.
        let _ = tokio::time::timeout(SOON, stream.read_to_string(&mut text))
            .await
            .expect("it is closed");
        text
    }

    #[tokio::test]
    async fn a_probe_gets_through_however_many_requests_are_never_finished() {
        let address = serve(FOR_EVER).await;
        let mut half_open = Vec::new();
        for _ in 0..MOST * 3 {
            half_open.push(begin(address, b"GET /").await);
        }
        for _ in 0..3 {
            let request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            let mut probe = begin(address, request).await;
            let answer = rest(&mut probe).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
        }
        for evicted in half_open.iter_mut().take(MOST * 2) {
            assert_eq!(rest(evicted).await, "");
        }
    }

    #[tokio::test]
    async fn who_does_not_take_an_answer_in_time_is_closed() {
        let address = serve(Duration::from_millis(300)).await;
        let mut silent = begin(address, b"").await;
        let mut idle = begin(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        let mut trickling = begin(address, b"GET / HTTP/1.1\r\na: ").await;
        let trickle = tokio::spawn(async move {
            for _ in 0..200 {
                tokio::time::sleep(Duration::from_millis(50)).await;
                if trickling.write_all(b"b").await.is_err() {
                    return true;
                }
            }
            false
        });
        assert_eq!(rest(&mut silent).await, "");
        assert!(rest(&mut idle).await.ends_with("well"));
        assert!(trickle.await.expect("no panic"), "a byte now and then");
    }
}
