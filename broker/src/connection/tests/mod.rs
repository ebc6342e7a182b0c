//! In-process tests over real sockets, with a scripted dispatcher in place of the handlers.

mod endings;
mod files;
mod frames;
mod memory;
mod replies;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use odradek_protocol::api::ApiKey;
use odradek_protocol::error::ProtocolError;
use odradek_protocol::response::Response;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::context::ConnectionInfo;
use crate::dispatch::{Answer, Dispatcher, DispatcherSlot, Outcome, Request};
use crate::memory::MemoryBudget;
use crate::metrics::ServerMetrics;
use crate::server::{
    Answering, BoundListener, ConnectionLimits, Connections, ListenerSpec, Server, ServerOptions,
};

/// What a scripted request asks for: its body's first byte.
mod ask {
    /// Echo the correlation id at once.
    pub(super) const NOW: u8 = 0;
    /// Echo it from a promise, after the milliseconds in the second byte.
    pub(super) const LATER: u8 = 1;
    /// Echo it after the milliseconds in the second byte, and hold up the connection.
    pub(super) const WAIT: u8 = 2;
    /// Answer with half a megabyte.
    pub(super) const HUGE: u8 = 3;
    /// Answer nothing.
    pub(super) const SILENT: u8 = 4;
    /// Close.
    pub(super) const CLOSE: u8 = 5;
    /// Wait for a time that no test waits for.
    pub(super) const FOREVER: u8 = 6;
    /// Echo at once, and hold on to the frame as a log does that has not taken it yet.
    pub(super) const HOLD: u8 = 7;
    /// Promise a reply that no test waits for.
    pub(super) const LATER_FOREVER: u8 = 8;
}

#[derive(Debug, Default)]
struct Scripted {
    started: AtomicUsize,
    held: parking_lot::Mutex<Vec<Bytes>>,
}

impl Dispatcher for Scripted {
    fn accept(
        &self,
        _connection: &Arc<ConnectionInfo>,
        frame: Bytes,
        _received_at: Instant,
    ) -> Result<Request, ProtocolError> {
        self.started.fetch_add(1, Ordering::SeqCst);
        let correlation = frame[4..8].to_vec();
        let ask = frame.get(8).copied().unwrap_or(ask::NOW);
        if ask == ask::HOLD {
            self.held.lock().push(frame.slice(8..));
        }
        let pause = Duration::from_millis(u64::from(frame.get(9).copied().unwrap_or(0)));
        let echo = move |extra: usize| {
            let mut reply = BytesMut::new();
            reply.put_u32((4 + extra) as u32);
            reply.put_slice(&correlation);
            reply.put_bytes(7, extra);
            Outcome::Send(Response::from_bytes(reply.freeze()))
        };
        Ok(Request {
            api_key: ApiKey::Metadata,
            may_wait_long: ask == ask::FOREVER,
            answer: Box::pin(async move {
                Ok(match ask {
                    ask::LATER => Answer::Later(Box::pin(async move {
                        tokio::time::sleep(pause).await;
                        echo(0)
                    })),
                    ask::LATER_FOREVER => Answer::Later(Box::pin(async move {
                        tokio::time::sleep(Duration::from_secs(3600)).await;
                        echo(0)
                    })),
                    ask::WAIT => {
                        tokio::time::sleep(pause).await;
                        Answer::Now(echo(0))
                    }
                    ask::HUGE => Answer::Now(echo(512 * 1024)),
                    ask::SILENT => Answer::Now(Outcome::Silent),
                    ask::CLOSE => Answer::Now(Outcome::Close),
                    ask::FOREVER => {
                        tokio::time::sleep(Duration::from_secs(3600)).await;
                        Answer::Now(echo(0))
                    }
                    _ => Answer::Now(echo(0)),
                })
            }),
        })
    }
}

struct Fixture {
    server: Server,
    connections: Connections,
    scripted: Arc<Scripted>,
    budget: Arc<MemoryBudget>,
    address: std::net::SocketAddr,
}

fn limits(total: usize, per_ip: usize) -> ConnectionLimits {
    ConnectionLimits {
        total,
        per_ip,
        per_ip_overrides: Default::default(),
    }
}

fn options() -> ServerOptions {
    ServerOptions {
        listen_backlog: 1024,
        receive_buffer_bytes: None,
        send_buffer_bytes: Some(100 * 1024),
        request_max_bytes: 4 << 20,
        max_idle: None,
        max_in_flight: 8,
        max_in_flight_bytes: 1 << 20,
        stall_limit: Duration::from_secs(60),
        drain_limit: Duration::from_secs(30),
        stop_timeout: Duration::from_secs(5),
    }
}

async fn start(options: ServerOptions) -> Fixture {
    start_with(options, limits(10_000, 10_000), budget()).await
}

async fn start_limited(limits: ConnectionLimits) -> Fixture {
    start_with(options(), limits, budget()).await
}

fn budget() -> Arc<MemoryBudget> {
    MemoryBudget::new(64 << 20, 4 << 20)
}

async fn start_with(
    options: ServerOptions,
    limits: ConnectionLimits,
    budget: Arc<MemoryBudget>,
) -> Fixture {
    let spec = ListenerSpec {
        name: "PLAINTEXT".to_owned(),
        host: "127.0.0.1".to_owned(),
        port: 0,
        advertised_host: None,
        advertised_port: None,
        serves_nodes: false,
        is_for_controllers: false,
    };
    let bound = BoundListener::bind(spec, &options)
        .await
        .expect("port 0 is free");
    let address = bound.address();
    let scripted = Arc::new(Scripted::default());
    let connections = Connections::new(limits);
    let server = Server::start(
        vec![bound],
        &options,
        &connections,
        Answering {
            dispatcher: DispatcherSlot::filled(Arc::clone(&scripted) as Arc<dyn Dispatcher>),
            peers: None,
        },
        Arc::clone(&budget),
        Arc::new(ServerMetrics::new()),
    );
    Fixture {
        server,
        connections,
        scripted,
        budget,
        address,
    }
}

impl Fixture {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address)
            .await
            .expect("the server listens")
    }

    async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !condition(self) {
            assert!(Instant::now() < deadline, "never came: {what}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

fn frame(correlation: i32, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.put_i32(8 + body.len() as i32);
    frame.put_i16(ApiKey::Produce.key());
    frame.put_i16(3);
    frame.put_i32(correlation);
    frame.put_slice(body);
    frame
}

async fn read_reply(stream: &mut TcpStream) -> Option<(i32, usize)> {
    let length = stream.read_u32().await.ok()? as usize;
    let mut reply = vec![0; length];
    stream.read_exact(&mut reply).await.ok()?;
    let correlation = i32::from_be_bytes(reply[..4].try_into().ok()?);
    Some((correlation, length))
}
