//! Listeners and the life of connections: accepting, limits, idleness, stopping.
//!
//! Listeners are bound before any log is opened and served when all of them are, so that a port that
//! is taken stops the start early, and clients that connect meanwhile wait in the kernel's queue.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::config::BrokerConfig;
use crate::connection::buffers::FrameBuffers;
use crate::connection::state::ConnectionState;
use crate::connection::{self, ConnectionShared};
use crate::context::ConnectionInfo;
use crate::dispatch::DispatcherSlot;
use crate::memory::MemoryBudget;
use crate::metrics::ServerMetrics;
use crate::peer::PeerServer;

/// Pause after a failed accept: out of descriptors, most likely, and none comes back at once.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Part of the memory for requests that buffers without a frame may take: one eighth.
const IDLE_BUFFERS_SHARE: usize = 8;

/// One address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerSpec {
    /// Listener name, such as `PLAINTEXT`.
    pub name: String,
    /// Host to bind; empty for every interface.
    pub host: String,
    /// Port to bind; 0 lets the system choose.
    pub port: u16,
    /// Host to tell clients; `None` for the bound one.
    pub advertised_host: Option<String>,
    /// Port to tell clients; `None` for the bound one.
    pub advertised_port: Option<u16>,
    /// Whether other nodes may connect here: the controllers' listener and that of the brokers
    /// among themselves.
    pub serves_nodes: bool,
    /// Whether it is one of `controller.listener.names`.
    pub is_for_controllers: bool,
}

/// How many connections there may be. These may change while the server runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// `max.connections`.
    pub total: usize,
    /// `max.connections.per.ip`.
    pub per_ip: usize,
    /// `max.connections.per.ip.overrides`, by address.
    pub per_ip_overrides: HashMap<IpAddr, usize>,
}

impl ConnectionLimits {
    /// What the configuration says.
    pub fn of(config: &BrokerConfig) -> Self {
        Self {
            total: config.max_connections,
            per_ip: config.max_connections_per_ip,
            per_ip_overrides: config.max_connections_per_ip_overrides.clone(),
        }
    }
}

/// What the server needs of the configuration.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// `socket.listen.backlog.size`.
    pub listen_backlog: i32,
    /// `socket.receive.buffer.bytes`; `None` leaves it to the system.
    pub receive_buffer_bytes: Option<usize>,
    /// `socket.send.buffer.bytes`; `None` leaves it to the system.
    pub send_buffer_bytes: Option<usize>,
    /// `socket.request.max.bytes`.
    pub request_max_bytes: usize,
    /// `connections.max.idle.ms`; `None` for never.
    pub max_idle: Option<Duration>,
    /// Most requests of one connection whose replies have not left.
    pub max_in_flight: usize,
    /// Most bytes of large Produce frames of one connection that are not in their logs yet.
    pub max_in_flight_bytes: usize,
    /// How long a peer may stall inside a frame while others wait for the memory that it holds.
    pub stall_limit: Duration,
    /// How long nothing may move on the connection of a client that has closed its side; `max_idle`, if
    /// that is less.
    pub drain_limit: Duration,
    /// How long a stop waits for requests in progress.
    pub stop_timeout: Duration,
}

/// Who answers what comes in.
#[derive(Debug, Clone)]
pub struct Answering {
    /// Answers clients. While it is not there, they are let in and wait.
    pub dispatcher: DispatcherSlot,
    /// Answers other nodes; `None` when there are none.
    pub peers: Option<Arc<PeerServer>>,
}

/// A listener that is bound but not yet served.
#[derive(Debug)]
pub struct BoundListener {
    spec: ListenerSpec,
    listener: TcpListener,
    address: SocketAddr,
}

/// Why a listener cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("listener {name}://{host}:{port} cannot be bound: {cause}")]
pub struct BindError {
    name: String,
    host: String,
    port: u16,
    cause: io::Error,
}

impl BoundListener {
    /// Binds `spec`. Needs a tokio runtime.
    pub async fn bind(spec: ListenerSpec, options: &ServerOptions) -> Result<Self, BindError> {
        match bind(&spec, options).await {
            Ok((listener, address)) => Ok(Self {
                spec,
                listener,
                address,
            }),
            Err(cause) => Err(BindError {
                name: spec.name,
                host: spec.host,
                port: spec.port,
                cause,
            }),
        }
    }

    /// Name of the listener.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// The real address, with the port that the system chose if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Host that clients are told.
    pub fn advertised_host(&self) -> String {
        match &self.spec.advertised_host {
            Some(host) => host.clone(),
            None if self.spec.host.is_empty() => local_host_name(),
            None => self.spec.host.clone(),
        }
    }

    /// Port that clients are told.
    pub fn advertised_port(&self) -> u16 {
        self.spec.advertised_port.unwrap_or(self.address.port())
    }
}

async fn bind(
    spec: &ListenerSpec,
    options: &ServerOptions,
) -> io::Result<(TcpListener, SocketAddr)> {
    let candidates: Vec<SocketAddr> = if spec.host.is_empty() {
        vec![
            SocketAddr::new(IpAddr::from([0u16; 8]), spec.port),
            SocketAddr::new(IpAddr::from([0u8; 4]), spec.port),
        ]
    } else {
        tokio::net::lookup_host((spec.host.as_str(), spec.port))
            .await?
            .collect()
    };
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in candidates {
        match bind_one(address, options) {
            Ok(listener) => {
                let address = listener.local_addr()?;
                return Ok((listener, address));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn bind_one(address: SocketAddr, options: &ServerOptions) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    // Accepted sockets inherit the receive buffer, and only before `listen` does its size still
    // decide the window that is offered.
    if let Some(bytes) = options.receive_buffer_bytes {
        socket.set_recv_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.send_buffer_bytes {
        socket.set_send_buffer_size(bytes)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(options.listen_backlog)?;
    TcpListener::from_std(socket.into())
}

/// Kafka advertises the machine's name for a listener on every interface.
fn local_host_name() -> String {
    let name = rustix::system::uname();
    match name.nodename().to_str() {
        Ok(name) if !name.is_empty() => name.to_owned(),
        _ => "localhost".to_owned(),
    }
}

/// The connections of a server, and how many there may be.
#[derive(Debug, Clone)]
pub struct Connections(Arc<Registry>);

impl Connections {
    /// None yet.
    pub fn new(limits: ConnectionLimits) -> Self {
        Self::at_most(usize::MAX, limits)
    }

    /// None yet, and never more than `most`, whatever the limits.
    pub fn at_most(most: usize, limits: ConnectionLimits) -> Self {
        Self(Arc::new(Registry {
            most,
            limits: ArcSwap::from_pointee(limits),
            open: Mutex::default(),
            room: Notify::new(),
        }))
    }

    /// Changes the limits. Connections that are open stay, whatever the new limits.
    pub fn set_limits(&self, limits: ConnectionLimits) {
        self.0.limits.store(Arc::new(limits));
        self.0.room.notify_waiters();
    }

    /// Connections open now.
    pub fn open(&self) -> usize {
        self.0.open.lock().connections.len()
    }
}

/// Serves bound listeners until it is stopped.
#[derive(Debug)]
pub struct Server {
    accepting: JoinSet<()>,
    sweeper: tokio::task::JoinHandle<()>,
    connections: Connections,
    stop: watch::Sender<bool>,
    stop_timeout: Duration,
}

impl Server {
    /// Starts to accept on every listener.
    pub fn start(
        listeners: Vec<BoundListener>,
        options: &ServerOptions,
        connections: &Connections,
        answering: Answering,
        budget: Arc<MemoryBudget>,
        metrics: Arc<ServerMetrics>,
    ) -> Self {
        let (stop, stopping) = watch::channel(false);
        let registry = Arc::clone(&connections.0);
        let Answering { dispatcher, peers } = answering;
        let buffers = FrameBuffers::new(budget.request_bytes() / IDLE_BUFFERS_SHARE);
        let shared = ConnectionShared {
            dispatcher,
            peers: None,
            budget,
            buffers: Arc::clone(&buffers),
            metrics,
            limits: odradek_protocol::frame::FrameLimits::with_request_max_bytes(
                options.request_max_bytes,
            ),
            max_in_flight: options.max_in_flight.max(1),
            max_in_flight_bytes: options.max_in_flight_bytes.max(1),
            stall_limit: options.stall_limit,
            drain_limit: options.max_idle.map_or(options.drain_limit, |max_idle| {
                max_idle.min(options.drain_limit)
            }),
            stopping,
        };
        let mut accepting = JoinSet::new();
        // Clients must not be able to keep nodes out, where they have listeners apart.
        let apart = listeners.len() > 1;
        for listener in listeners {
            let mut shared = shared.clone();
            if listener.spec.serves_nodes {
                shared.peers.clone_from(&peers);
            }
            let unlimited = apart && shared.peers.is_some();
            let registry = Arc::clone(&registry);
            accepting.spawn(accept_loop(listener, registry, shared, unlimited));
        }
        let sweeper = tokio::spawn(sweep(Arc::clone(&registry), buffers, options.max_idle));
        Self {
            accepting,
            sweeper,
            connections: connections.clone(),
            stop,
            stop_timeout: options.stop_timeout,
        }
    }

    /// Stops accepting, lets requests in progress end, then closes every connection.
    pub async fn stop(mut self) {
        self.accepting.shutdown().await;
        self.stop.send_replace(true);
        let deadline = tokio::time::Instant::now() + self.stop_timeout;
        while self.connections.open() > 0 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let left: Vec<_> = {
            let open = self.connections.0.open.lock();
            open.connections.values().cloned().collect()
        };
        for state in left {
            state.request_close();
        }
        self.sweeper.abort();
    }
}

/// The open connections.
#[derive(Debug)]
struct Registry {
    limits: ArcSwap<ConnectionLimits>,
    /// What the limits may not exceed: see [`crate::descriptors`].
    most: usize,
    open: Mutex<OpenConnections>,
    /// A connection has ended, or the limits have changed.
    room: Notify,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next_id: u64,
    connections: HashMap<u64, Arc<ConnectionState>>,
    per_ip: HashMap<IpAddr, usize>,
}

/// A connection's entry in the registry; dropping it takes the entry out.
#[derive(Debug)]
struct Registration {
    registry: Arc<Registry>,
    id: u64,
    ip: IpAddr,
}

impl Registry {
    /// Waits until the broker may have one more connection.
    async fn room(&self) {
        loop {
            let changed = self.room.notified();
            let open = self.open.lock().connections.len();
            if open < self.limits.load().total.min(self.most) {
                return;
            }
            changed.await;
        }
    }

    /// Enters a connection, or `None` if its address has too many.
    fn register(self: &Arc<Self>, ip: IpAddr, state: Arc<ConnectionState>) -> Option<Registration> {
        let ip = ip.to_canonical();
        let limits = self.limits.load();
        let limit = *limits.per_ip_overrides.get(&ip).unwrap_or(&limits.per_ip);
        let mut open = self.open.lock();
        if open.per_ip.get(&ip).copied().unwrap_or(0) >= limit {
            return None;
        }
        *open.per_ip.entry(ip).or_insert(0) += 1;
        let id = open.next_id;
        open.next_id += 1;
        open.connections.insert(id, state);
        Some(Registration {
            registry: Arc::clone(self),
            id,
            ip,
        })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut open = self.registry.open.lock();
        open.connections.remove(&self.id);
        if let Some(count) = open.per_ip.get_mut(&self.ip) {
            *count -= 1;
            if *count == 0 {
                open.per_ip.remove(&self.ip);
            }
        }
        drop(open);
        self.registry.room.notify_waiters();
    }
}

async fn accept_loop(
    listener: BoundListener,
    registry: Arc<Registry>,
    shared: ConnectionShared,
    unlimited: bool,
) {
    let advertised_host = listener.advertised_host();
    let advertised_port = listener.advertised_port();
    let mut failing = false;
    loop {
        // At the limit new connections wait in the kernel's queue, as they do with Kafka.
        if !unlimited {
            registry.room().await;
        }
        let (stream, peer) = match listener.listener.accept().await {
            Ok(accepted) => {
                failing = false;
                accepted
            }
            Err(error) if is_of_the_peer(&error) => continue,
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(listener = %listener.spec.name, %error, "accepting fails");
                }
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let state = ConnectionState::new();
        let Some(registration) = registry.register(peer.ip(), Arc::clone(&state)) else {
            shared.metrics.connection_refused();
            tracing::debug!(%peer, "refused: too many connections from this address");
            continue;
        };
        let info = Arc::new(ConnectionInfo {
            peer,
            listener_name: listener.spec.name.clone(),
            advertised_host: advertised_host.clone(),
            advertised_port,
            is_for_controllers: listener.spec.is_for_controllers,
            client_software: OnceLock::new(),
        });
        let shared = shared.clone();
        tokio::spawn(async move {
            run_connection(stream, info, state, shared).await;
            drop(registration);
        });
    }
}

/// Whether a connection was gone before it could be accepted.
fn is_of_the_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

async fn run_connection(
    stream: TcpStream,
    info: Arc<ConnectionInfo>,
    state: Arc<ConnectionState>,
    shared: ConnectionShared,
) {
    let peer = info.peer;
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "TCP_NODELAY cannot be set");
    }
    let metrics = Arc::clone(&shared.metrics);
    metrics.connection_opened(&info.listener_name);
    let end = connection::serve(stream, info, state, shared).await;
    metrics.connection_closed(end.cause());
    tracing::debug!(%peer, cause = end.cause(), %end, "connection closed");
}

/// Closes connections on which nothing has moved for `max_idle`, and frees buffers.
async fn sweep(registry: Arc<Registry>, buffers: Arc<FrameBuffers>, max_idle: Option<Duration>) {
    let max_idle = max_idle.unwrap_or(Duration::MAX);
    let period = (max_idle / 4).clamp(Duration::from_millis(10), Duration::from_secs(10));
    loop {
        tokio::time::sleep(period).await;
        buffers.release_idle();
        let idle: Vec<_> = {
            let open = registry.open.lock();
            open.connections
                .values()
                .filter(|state| state.idle_for() >= max_idle)
                .cloned()
                .collect()
        };
        for state in idle {
            state.request_close();
        }
    }
}
