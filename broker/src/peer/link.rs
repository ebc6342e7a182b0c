//! The way to one other node for one purpose: at most one connection, made when somebody asks.
//!
//! While an attempt runs, who asks waits for what comes of it. After one that failed, and until the
//! backoff is over, who asks is told at once; the backoff ends early when the node connects to this
//! one, or when it has another address.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use odradek_protocol::ids::NodeId;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::asking;
use super::conduit::{Bounds, Conduit, Introduced};
use super::frame::{FrameReader, Intake};
use super::hello::{self, Accepted, Hello, Refusal, Welcome};
use super::metrics::{self, Traffic};
use super::{AddressBook, LocalNode, PeerAddress, PeerError, PeerIdentity, PeerLimits, Purpose};
use crate::memory::MemoryBudget;

/// A connection that has lasted this long was a success, whatever ended it.
const SETTLED_AFTER: Duration = Duration::from_secs(1);
/// Unacknowledged bytes for this long end a connection. The kernel alone would go on for a quarter
/// of an hour, with pauses of minutes, when all that was needed is a new connection.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(3);
/// An idle connection is asked this often whether it still stands.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// What all links of a node share.
pub(super) struct Shared {
    pub(super) local: Arc<LocalNode>,
    pub(super) addresses: Arc<AddressBook>,
    pub(super) limits: PeerLimits,
    /// Memory for large answers.
    pub(super) answers: Arc<MemoryBudget>,
    /// Turns true when the node stops.
    pub(super) stopping: watch::Receiver<bool>,
}

/// See the module.
pub(super) struct Link {
    to: NodeId,
    purpose: Purpose,
    shared: Arc<Shared>,
    traffic: Traffic,
    state: Mutex<State>,
}

/// Who answers at a node's own address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnAddress {
    /// This process.
    LeadsHere,
    /// Another node, which says so.
    LeadsElsewhere(String),
    /// Nobody who could be understood, and why.
    Silent(String),
}

enum State {
    Down(Down),
    /// Closed when the attempt is over.
    Connecting(watch::Receiver<()>),
    /// With what is closed once the link is down.
    Up(Arc<Conduit>, watch::Receiver<()>),
}

#[derive(Default)]
struct Down {
    /// Attempts that failed since the last that did not.
    failures: u32,
    not_before: Option<Instant>,
    /// What the last attempt came to, and where it went.
    last: Option<(PeerError, Vec<PeerAddress>)>,
}

impl Link {
    pub(super) fn new(to: NodeId, purpose: Purpose, shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            to,
            purpose,
            shared,
            traffic: Traffic::new(purpose),
            state: Mutex::new(State::Down(Down::default())),
        })
    }

    pub(super) fn to(&self) -> NodeId {
        self.to
    }

    pub(super) fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// The connection, if there is one now.
    pub(super) fn connected(&self) -> Option<Arc<Conduit>> {
        match &*self.state.lock() {
            State::Up(conduit, _) if !conduit.is_closed() => Some(Arc::clone(conduit)),
            _ => None,
        }
    }

    /// The connection. Makes one if there is none and it is not too early for that.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<Arc<Conduit>, PeerError> {
        loop {
            let mut change = match self.look()? {
                Ok(conduit) => return Ok(conduit),
                Err(change) => change,
            };
            // Nothing is ever sent: it ends when the sender is dropped.
            while change.changed().await.is_ok() {}
        }
    }

    /// The connection, or what to wait for before looking again: the end of an attempt to make
    /// one, begun here if need be.
    fn look(self: &Arc<Self>) -> Result<Result<Arc<Conduit>, watch::Receiver<()>>, PeerError> {
        let mut state = self.state.lock();
        let failures = match &*state {
            State::Up(conduit, down) => {
                if self.is_outdated(conduit) {
                    conduit.close();
                }
                // One that has just been lost is put down by its task, in a moment.
                return Ok(match conduit.is_closed() {
                    false => Ok(Arc::clone(conduit)),
                    true => Err(down.clone()),
                });
            }
            State::Connecting(attempt) => return Ok(Err(attempt.clone())),
            State::Down(down) => {
                if let Some((error, tried)) = &down.last
                    && down.not_before.is_some_and(|until| until > Instant::now())
                    && *tried == self.shared.addresses.addresses(self.to)
                {
                    return Err(error.clone());
                }
                down.failures
            }
        };
        if *self.shared.stopping.borrow() {
            return Err(PeerError::Stopping);
        }
        let (over, attempt) = watch::channel(());
        *state = State::Connecting(attempt.clone());
        drop(state);
        tokio::spawn(Arc::clone(self).run(failures, over));
        Ok(Err(attempt))
    }

    /// The node has connected to this one: it is there, and it is this process.
    pub(super) fn seen(&self, node: &PeerIdentity) {
        let mut state = self.state.lock();
        match &mut *state {
            State::Down(down) => {
                down.failures = 0;
                down.not_before = None;
            }
            State::Up(conduit, _) if conduit.introduced().incarnation != node.incarnation => {
                conduit.close();
            }
            State::Up(..) | State::Connecting(_) => {}
        }
    }

    /// Whether this node belongs to a cluster by now, and has not said so on this connection: the other end
    /// takes it for a stranger.
    fn is_outdated(&self, conduit: &Conduit) -> bool {
        !conduit.introduced().names_cluster && self.shared.local.cluster_id().is_some()
    }

    /// This node has come to belong to a cluster.
    pub(super) fn introduce_again(&self) {
        if let State::Up(conduit, _) = &*self.state.lock()
            && self.is_outdated(conduit)
        {
            conduit.close();
        }
    }

    /// Gives the connection up, if there is one.
    pub(super) fn close(&self) {
        if let State::Up(conduit, _) = &*self.state.lock() {
            conduit.close();
        }
    }

    /// Connects, and keeps the connection going until it ends.
    async fn run(self: Arc<Self>, failures: u32, over: watch::Sender<()>) {
        let mut stopping = self.shared.stopping.clone();
        tokio::select! {
            () = self.run_until_lost(failures, over) => {}
            _ = stopping.wait_for(|stop| *stop) => {
                let state = std::mem::replace(&mut *self.state.lock(), State::Down(Down::default()));
                if let State::Up(conduit, _) = state {
                    conduit.close();
                }
            }
        }
    }

    async fn run_until_lost(&self, failures: u32, over: watch::Sender<()>) {
        let (to, purpose) = (self.to, self.purpose);
        let tried = self.shared.addresses.addresses(to);
        let names_cluster = self.shared.local.cluster_id().is_some();
        let (stream, start, accepted) = match self.attempt(&tried).await {
            Ok(connected) => connected,
            Err(error) => {
                metrics::connect_failed(to, purpose);
                // One warning for an outage, not one an attempt.
                if failures == 0 {
                    tracing::warn!(%to, %purpose, %error, "no connection");
                } else {
                    tracing::debug!(%to, %purpose, %error, failures, "no connection");
                }
                self.put_down(failures.saturating_add(1), Some((error, tried)));
                drop(over);
                return;
            }
        };
        metrics::connected(to, purpose);
        tracing::info!(%to, %purpose, "connected");
        let bounds = self.bounds(&accepted);
        let introduced = Introduced {
            incarnation: accepted.node.incarnation,
            peer_protocol: accepted.version,
            names_cluster,
        };
        let conduit = Arc::new(Conduit::new(to, introduced, bounds));
        let (_down, is_down) = watch::channel(());
        *self.state.lock() = State::Up(Arc::clone(&conduit), is_down);
        drop(over);
        let since = Instant::now();
        let intake = Intake {
            limit: conduit.bounds().frame,
            budget: Arc::clone(&self.shared.answers),
            stall_limit: self.shared.limits.stall_limit,
        };
        let frames = FrameReader::new(intake, start);
        let end = asking::run(&stream, frames, &conduit, &self.traffic).await;
        conduit.close();
        tracing::info!(%to, %purpose, %end, "connection ended");
        if self.is_outdated(&conduit) {
            // It is made again at once, and is then no stranger's.
            self.put_down(0, None);
            return;
        }
        let error = PeerError::Unreachable {
            node: to,
            reason: end.to_string(),
        };
        let failures = match since.elapsed() >= SETTLED_AFTER {
            true => 0,
            false => failures.saturating_add(1),
        };
        self.put_down(failures, Some((error, tried)));
    }

    fn put_down(&self, failures: u32, last: Option<(PeerError, Vec<PeerAddress>)>) {
        let pause = backoff(&self.shared.limits, failures);
        *self.state.lock() = State::Down(Down {
            failures,
            not_before: pause.map(|pause| Instant::now() + pause),
            last,
        });
    }

    fn bounds(&self, accepted: &Accepted) -> Bounds {
        let limits = &self.shared.limits;
        let least = |ours: usize, theirs: u32| ours.min(theirs as usize);
        Bounds {
            window: least(limits.stream_bytes, accepted.window),
            memory: least(limits.memory_bytes, accepted.memory),
            queue: limits.queue_bytes,
            calls: limits.max_calls,
            frame: limits.frame_max_bytes,
            frame_of_other: accepted.frame as usize,
        }
    }

    /// Tries the addresses, each within the time limit.
    async fn attempt(
        &self,
        addresses: &[PeerAddress],
    ) -> Result<(TcpStream, BytesMut, Accepted), PeerError> {
        let mut failure = PeerError::NoAddress(self.to);
        for address in addresses {
            let limit = self.shared.limits.connect_timeout;
            let unreachable = |reason: String| PeerError::Unreachable {
                node: self.to,
                reason: format!("{address}: {reason}"),
            };
            failure = match tokio::time::timeout(limit, self.introduce(address)).await {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(Err(Failure::Io(error))) => unreachable(error.to_string()),
                Ok(Err(Failure::Refused(reason))) => PeerError::Refused {
                    node: self.to,
                    reason: format!("{address}: {reason}"),
                },
                Err(_) => unreachable("no answer in time".to_owned()),
            };
        }
        Err(failure)
    }

    async fn introduce(
        &self,
        address: &PeerAddress,
    ) -> Result<(TcpStream, BytesMut, Accepted), Failure> {
        introduce(&self.shared.local, self.to, self.purpose, address).await
    }
}

/// Says hello to this node's own addresses, which refuse it whoever is there: by what they say it is clear who is.
pub(super) async fn look_at_own_address(shared: &Shared) -> OwnAddress {
    let (local, own) = (&shared.local, shared.local.node_id());
    let here = Refusal::OwnConnection.to_string();
    let mut silent = OwnAddress::Silent("it has no address".to_owned());
    for address in shared.addresses.addresses(own) {
        let limit = shared.limits.connect_timeout;
        let asking = introduce(local, own, Purpose::Control, &address);
        let why = match tokio::time::timeout(limit, asking).await {
            Ok(Err(Failure::Refused(reason))) if reason == here => {
                return OwnAddress::LeadsHere;
            }
            Ok(Err(Failure::Refused(reason))) => {
                return OwnAddress::LeadsElsewhere(format!("{address}: {reason}"));
            }
            Ok(Err(Failure::Io(error))) => error.to_string(),
            Ok(Ok(_)) => "it is let in".to_owned(),
            Err(_) => "no answer in time".to_owned(),
        };
        silent = OwnAddress::Silent(format!("{address}: {why}"));
    }
    silent
}

/// Who is at an address, within `limit`.
pub(super) async fn identify(
    local: &LocalNode,
    address: &PeerAddress,
    limit: Duration,
) -> Result<PeerIdentity, String> {
    let asking = introduce(local, hello::ANYBODY, Purpose::Control, address);
    match tokio::time::timeout(limit, asking).await {
        Ok(Ok((_, _, accepted))) => Ok(accepted.node),
        Ok(Err(Failure::Io(error))) => Err(format!("{address}: {error}")),
        Ok(Err(Failure::Refused(reason))) => Err(format!("{address}: {reason}")),
        Err(_) => Err(format!("{address}: no answer in time")),
    }
}

/// Connects and says hello.
async fn introduce(
    local: &LocalNode,
    to: NodeId,
    purpose: Purpose,
    address: &PeerAddress,
) -> Result<(TcpStream, BytesMut, Accepted), Failure> {
    let mut stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    tune(&stream)?;
    let hello = Hello::new(local, to, purpose);
    stream.write_all(&hello.to_frame()).await?;
    let mut received = BytesMut::new();
    let mut length = None;
    let answer = loop {
        length = match length {
            Some(length) => Some(length),
            None => hello::answer_length(&mut received).map_err(Failure::not_understood)?,
        };
        if let Some(length) = length
            && received.len() >= length
        {
            break received.split_to(length).freeze();
        }
        if stream.read_buf(&mut received).await? == 0 {
            return Err(std::io::Error::other("closed without an answer to the hello").into());
        }
    };
    match Welcome::from_frame(answer).map_err(Failure::not_understood)? {
        Welcome::Accepted(accepted) => match accepted.check(local, to) {
            Ok(()) => Ok((stream, received, accepted)),
            Err(refusal) => Err(Failure::Refused(refusal.to_string())),
        },
        Welcome::Refused(reason) => Err(Failure::Refused(reason)),
    }
}

enum Failure {
    Io(std::io::Error),
    Refused(String),
}

impl Failure {
    fn not_understood(error: odradek_raft::wire::WireError) -> Self {
        Self::Io(std::io::Error::other(error))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// Sets what every connection between nodes has set.
pub(super) fn tune(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE);
    socket.set_tcp_keepalive(&keepalive)
}

/// Pause after so many failures.
fn backoff(limits: &PeerLimits, failures: u32) -> Option<Duration> {
    let doublings = failures.checked_sub(1)?.min(16);
    let pause = limits.reconnect_backoff.saturating_mul(1 << doublings);
    Some(pause.min(limits.reconnect_backoff_max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let limits = PeerLimits {
            reconnect_backoff: Duration::from_millis(50),
            reconnect_backoff_max: Duration::from_secs(1),
            ..PeerLimits::impatient()
        };
        let pause = |failures| backoff(&limits, failures).map(|pause| pause.as_millis());
        assert_eq!(pause(0), None);
        assert_eq!(pause(1), Some(50));
        assert_eq!(pause(2), Some(100));
        assert_eq!(pause(6), Some(1000));
        assert_eq!(pause(u32::MAX), Some(1000));
    }
}
