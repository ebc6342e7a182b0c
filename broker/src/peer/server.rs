//! The answering side: connections that other nodes have made.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use odradek_protocol::ids::NodeId;
use odradek_raft::seldom::Seldom;
use odradek_raft::{GroupKey, RaftNode};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::admission::{Admission, Refusals};
use super::answering::{self, Serving};
use super::conduit::Bounds;
use super::frame::Intake;
use super::hello::{ANYBODY, Accepted, Hello, MAX_BYTES, Refusal, Welcome};
use super::known::{KnownPeers, Place};
use super::link;
use super::metrics::{self, ServedConnection, Traffic};
use super::{Caller, PeerIdentity, PeerReply, PeerRequest, Peers};
use crate::memory::MemoryBudget;

/// What the broker answers other nodes. Replication is not among it: that goes to the groups.
pub trait PeerService: Send + Sync + 'static {
    /// Answers a request of another node. Runs as a task of its own; at most
    /// `odradek.peer.requests` at a time for one connection.
    fn serve(&self, from: &Caller, request: PeerRequest) -> BoxFuture<'static, PeerReply>;

    /// Whether this node may connect; the reason if not, which it is told. Asked once a connection, after
    /// cluster id and node id have been found to be right.
    fn admit(&self, node: &PeerIdentity) -> Result<(), String>;

    /// Whether a node is one of the cluster, as far as is known here.
    fn knows(&self, node: NodeId) -> bool;

    /// Whether a node may lead a group, though the replica here knows it for no voter: it may be behind. To
    /// be answered at once; who has to find out says no, and is asked again.
    fn may_lead(&self, node: NodeId, group: GroupKey) -> bool;

    /// Whether a node is one of those that found the cluster, and may not know its name yet.
    fn may_found(&self, node: NodeId) -> bool;
}

/// See the module.
pub struct PeerServer {
    peers: Arc<Peers>,
    raft: Arc<RaftNode>,
    service: OnceLock<Arc<dyn PeerService>>,
    known: KnownPeers,
    /// Memory for large frames of all nodes together.
    incoming: Arc<MemoryBudget>,
    /// Bounds what the log says of nodes that are not let in, by the cause.
    not_let_in: Seldom<&'static str>,
    /// Bounds what it says of messages that are refused.
    refusals: Refusals,
    /// Bounds what it says of connections that are closed.
    closings: Seldom<NodeId>,
}

impl fmt::Debug for PeerServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerServer").finish_non_exhaustive()
    }
}

/// Why a connection of another node ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerEnd {
    #[error("hello: {0}")]
    Hello(odradek_raft::wire::WireError),
    #[error("refused: {0}")]
    Refused(String),
    #[error("socket: {0}")]
    Socket(#[from] std::io::Error),
    #[error("session: {0}")]
    Session(String),
    #[error("a newer connection has taken its place")]
    Replaced,
}

/// What comes with a connection that another node has made.
pub(crate) struct Arrival {
    /// The first frame, without its length.
    pub(crate) hello: Bytes,
    /// What has arrived behind it.
    pub(crate) start: BytesMut,
    pub(crate) address: SocketAddr,
}

impl PeerServer {
    /// Serves the groups of `raft`. `peers` is the same node's asking side.
    pub fn new(peers: Arc<Peers>, raft: Arc<RaftNode>) -> Arc<Self> {
        Arc::new(Self {
            incoming: MemoryBudget::new(peers.limits().incoming_bytes, 0),
            peers,
            raft,
            service: OnceLock::new(),
            known: KnownPeers::default(),
            not_let_in: Seldom::default(),
            refusals: Refusals::default(),
            closings: Seldom::default(),
        })
    }

    /// From now on requests that are not replication are answered too; before, they are told that
    /// the node is busy. The first call counts.
    pub fn set_service(&self, service: Arc<dyn PeerService>) {
        if self.service.set(service).is_err() {
            tracing::error!("a second peer service is ignored");
        }
    }

    /// Whether a request frame, without its length, begins a connection between nodes.
    pub(crate) fn is_hello(frame: &[u8]) -> bool {
        frame.len() <= MAX_BYTES && Hello::is_hello(frame)
    }

    /// Serves a connection to its end.
    pub(crate) async fn serve(&self, mut stream: TcpStream, arrival: Arrival) -> PeerEnd {
        let hello = match Hello::from_frame(arrival.hello) {
            Ok(hello) => hello,
            Err(error) => return PeerEnd::Hello(error),
        };
        if hello.to == ANYBODY {
            return self
                .say_who_is_here(&mut stream, &hello, arrival.address)
                .await;
        }
        let (version, place) = match self.let_in(&hello) {
            Ok(let_in) => let_in,
            Err(refusal) => {
                self.log_refusal(&hello, arrival.address, &refusal);
                let answer = Welcome::Refused(refusal.to_string()).to_frame();
                // It has been refused whether or not it hears of it.
                let _ = stream.write_all(&answer).await;
                return PeerEnd::Refused(refusal.to_string());
            }
        };
        let bounds = self.bounds();
        let answer = self.accepted(version);
        let welcomed = async {
            link::tune(&stream)?;
            stream.write_all(&answer.to_frame()).await
        };
        if let Err(error) = welcomed.await {
            return error.into();
        }
        // Who names no cluster may be anybody, and is no reason to give up other connections.
        if hello.from.cluster_id.is_some() || self.peers.local().cluster_id().is_none() {
            self.peers.seen(&hello.from);
        }
        let (from, purpose) = (hello.from.node_id, hello.purpose);
        tracing::debug!(%from, %purpose, address = %arrival.address, "a node has connected");
        let _counted = ServedConnection::new(purpose);
        let caller = Caller {
            node: from,
            directory_id: hello.from.directory_id.as_str().into(),
            peer_protocol: hello.max,
        };
        let serving = Serving {
            from,
            caller: &caller,
            admission: Admission {
                from,
                cluster_id: hello.from.cluster_id.as_deref(),
                local: self.peers.local(),
                raft: &self.raft,
                service: &self.service,
                refusals: &self.refusals,
            },
            raft: &self.raft,
            service: &self.service,
            throttles: self.peers.throttles(),
            intake: Intake {
                limit: bounds.frame,
                budget: Arc::clone(&self.incoming),
                stall_limit: self.peers.limits().stall_limit,
            },
            bounds,
            max_streams: self.peers.limits().max_streams,
            traffic: &Traffic::new(purpose),
            heard: &|| place.heard.now(),
        };
        let end = tokio::select! {
            end = answering::run(&stream, arrival.start, serving) => end,
            () = place.close.notified() => return PeerEnd::Replaced,
        };
        if end.is_fault()
            && let Some(left_out) = self.closings.may_say(from)
        {
            let address = arrival.address;
            tracing::warn!(
                %from, %purpose, %address, %end, left_out, "a node's connection is closed"
            );
        }
        PeerEnd::Session(end.to_string())
    }

    /// Answers a node that only wants to know who is there.
    async fn say_who_is_here(
        &self,
        stream: &mut TcpStream,
        hello: &Hello,
        address: SocketAddr,
    ) -> PeerEnd {
        let answer = match hello.check(self.peers.local()) {
            Ok(version) => self.accepted(version),
            Err(refusal) => {
                self.log_refusal(hello, address, &refusal);
                Welcome::Refused(refusal.to_string())
            }
        };
        match stream.write_all(&answer.to_frame()).await {
            Ok(()) => PeerEnd::Session("it was told who is here".to_owned()),
            Err(error) => error.into(),
        }
    }

    fn accepted(&self, version: u16) -> Welcome {
        let bounds = self.bounds();
        let least = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        Welcome::Accepted(Accepted {
            version,
            node: PeerIdentity {
                directory_id: String::new(),
                ..self.peers.local().identity()
            },
            window: least(bounds.window),
            memory: least(bounds.memory),
            frame: least(bounds.frame),
        })
    }

    fn let_in(&self, hello: &Hello) -> Result<(u16, Place<'_>), Refusal> {
        let version = hello.check(self.peers.local())?;
        if let Some(service) = self.service.get() {
            service.admit(&hello.from).map_err(Refusal::NotAdmitted)?;
        }
        let place = self.known.enter(&hello.from, hello.purpose)?;
        Ok((version, place))
    }

    fn log_refusal(&self, hello: &Hello, address: SocketAddr, refusal: &Refusal) {
        metrics::refused(refusal.cause());
        // A node that is new looks at its own address, and the asking side says what is wrong if there is anything.
        if matches!(refusal, Refusal::OwnConnection) {
            return;
        }
        if let Some(left_out) = self.not_let_in.may_say(refusal.cause()) {
            let from = hello.from.node_id;
            tracing::warn!(%from, %address, %refusal, left_out, "a node is refused");
        }
    }

    fn bounds(&self) -> Bounds {
        let limits = self.peers.limits();
        Bounds {
            window: limits.stream_bytes,
            memory: limits.memory_bytes,
            queue: limits.queue_bytes,
            calls: limits.max_calls,
            frame: limits.frame_max_bytes,
            frame_of_other: limits.frame_max_bytes,
        }
    }
}
