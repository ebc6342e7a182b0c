//! Nodes in one process over real sockets.

mod bounds;
mod calls;
mod door;
mod garbage;
mod replication;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use odradek_protocol::batch::BatchHeader;
use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::{NodeId, Offset, PartitionIndex, TimestampMs, TopicId};
use odradek_protocol::records::{BatchBuilder, NewRecord};
use odradek_raft::network::{Link as RaftLink, Network as _, NetworkError};
use odradek_raft::wire::{self, Reader};
use odradek_raft::{
    Group, GroupKey, GroupSpec, NoObserver, Proposal, RaftNode, RaftNodeOptions, Timing,
};
use odradek_storage::LogConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::hello::{Accepted, Hello, Welcome};
use super::*;
use crate::dispatch::DispatcherSlot;
use crate::memory::MemoryBudget;
use crate::metrics::ServerMetrics;
use crate::raft_stack::OpenedDir;
use crate::server::{
    Answering, BoundListener, ConnectionLimits, Connections, ListenerSpec, Server, ServerOptions,
};

const CLUSTER: &str = "cluster";

fn node(id: i32) -> NodeId {
    NodeId::new(id)
}

fn key(partition: i32) -> GroupKey {
    GroupKey::new(TopicId::from_bytes([7; 16]), PartitionIndex::new(partition))
}

pub(crate) fn limits() -> PeerLimits {
    PeerLimits::impatient()
}

fn server_options() -> ServerOptions {
    ServerOptions {
        listen_backlog: 64,
        receive_buffer_bytes: None,
        send_buffer_bytes: None,
        request_max_bytes: 1 << 20,
        max_idle: Some(Duration::from_millis(300)),
        max_in_flight: 8,
        max_in_flight_bytes: 16 << 20,
        stall_limit: Duration::from_secs(5),
        drain_limit: Duration::from_secs(30),
        stop_timeout: Duration::from_secs(1),
    }
}

fn address_of(listener: &BoundListener) -> PeerAddress {
    PeerAddress {
        host: "127.0.0.1".to_owned(),
        port: listener.address().port(),
    }
}

pub(crate) async fn bind() -> BoundListener {
    bind_at(0).await
}

async fn bind_at(port: u16) -> BoundListener {
    let spec = ListenerSpec {
        name: "NODES".to_owned(),
        host: "127.0.0.1".to_owned(),
        port,
        advertised_host: None,
        advertised_port: None,
        serves_nodes: true,
        is_for_controllers: false,
    };
    let bound = BoundListener::bind(spec, &server_options()).await;
    bound.expect("the port is free")
}

/// Node 1 on its own, and what listens where it believes node 2 to be.
async fn one_and_a_place_for_two(limits: PeerLimits) -> (Arc<Peers>, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = PeerAddress {
        host: "127.0.0.1".to_owned(),
        port: listener.local_addr().expect("it has one").port(),
    };
    let book = AddressBook::new([(node(2), address)]);
    let peers = Peers::new(local(1, "one", None), Arc::new(book), limits);
    (peers, listener)
}

/// From node 1 to node 2.
fn link(partition: i32) -> RaftLink {
    RaftLink {
        from: node(1),
        to: node(2),
        group: key(partition),
    }
}

pub(crate) fn local(id: i32, directory: &str, cluster: Option<&str>) -> Arc<LocalNode> {
    let incarnation = Uuid::from_bytes(rand::random());
    LocalNode::new(node(id), directory, incarnation, cluster)
}

/// A node as the broker puts it together.
pub(crate) struct TestNode {
    pub(crate) peers: Arc<Peers>,
    raft: Arc<RaftNode>,
    pub(crate) service: Arc<PeerServer>,
    pub(crate) address: PeerAddress,
    server: Server,
}

fn open_raft(id: i32, path: &Path, peers: &Arc<Peers>) -> Arc<RaftNode> {
    let disk = odradek_storage::RealDisk::shared();
    let OpenedDir { data_dir, .. } = OpenedDir::of(path).expect("flusher starts");
    let mut options = RaftNodeOptions::new(node(id), disk, vec![data_dir], peers.network());
    options.timing = Timing {
        heartbeat_ms: 200,
        election_min_ms: 600,
        election_max_ms: 1200,
    };
    RaftNode::open(options).expect("opened")
}

pub(crate) fn start_node(
    id: i32,
    path: &Path,
    listener: BoundListener,
    addresses: impl IntoIterator<Item = (NodeId, PeerAddress)>,
    limits: PeerLimits,
) -> TestNode {
    let address = address_of(&listener);
    let directory = format!("directory-{id}");
    let peers = Peers::new(
        local(id, &directory, Some(CLUSTER)),
        Arc::new(AddressBook::new(addresses)),
        limits,
    );
    let raft = open_raft(id, path, &peers);
    let service = PeerServer::new(Arc::clone(&peers), Arc::clone(&raft));
    let server = Server::start(
        vec![listener],
        &server_options(),
        &Connections::new(ConnectionLimits {
            total: 100,
            per_ip: 100,
            per_ip_overrides: HashMap::new(),
        }),
        Answering {
            dispatcher: DispatcherSlot::default(),
            peers: Some(Arc::clone(&service)),
        },
        MemoryBudget::new(1 << 20, 1 << 20),
        Arc::new(ServerMetrics::new()),
    );
    TestNode {
        peers,
        raft,
        service,
        address,
        server,
    }
}

/// Three nodes that know each other.
struct Cluster {
    nodes: Vec<TestNode>,
    _dir: tempfile::TempDir,
}

impl Cluster {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut listeners = Vec::new();
        for _ in 0..3 {
            listeners.push(bind().await);
        }
        let addresses: Vec<_> = (1..)
            .map(node)
            .zip(listeners.iter().map(address_of))
            .collect();
        let nodes = (1..)
            .zip(listeners)
            .map(|(id, listener)| {
                let path = dir.path().join(id.to_string());
                std::fs::create_dir(&path).expect("made");
                start_node(id, &path, listener, addresses.clone(), limits())
            })
            .collect();
        Self { nodes, _dir: dir }
    }

    fn node(&self, id: i32) -> &TestNode {
        &self.nodes[id as usize - 1]
    }

    /// The groups of one partition on every node.
    async fn open(&self, partition: i32) -> Vec<Arc<Group>> {
        let mut groups = Vec::new();
        for (id, it) in (1..).zip(&self.nodes) {
            let path = self._dir.path().join(format!("{id}/topic-{partition}"));
            let spec = GroupSpec {
                key: key(partition),
                dir: path,
                log_config: Arc::new(LogConfig::default()),
                voters: (1..=3).map(node).collect(),
                bootstrap: true,
                succession: None,
            };
            let opened = it.raft.open_group(spec, Arc::new(NoObserver)).await;
            groups.push(opened.expect("opened"));
        }
        groups
    }
}

pub(crate) async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(20);
    while !so() {
        assert!(Instant::now() < limit, "not within 20 s: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn leader(groups: &[Arc<Group>]) -> Arc<Group> {
    let ready = |group: &&Arc<Group>| group.leadership().is_ready_leader();
    until("a leader", || groups.iter().any(|group| ready(&group))).await;
    let leader = groups.iter().find(ready);
    Arc::clone(leader.expect("there is one"))
}

/// Waits until all replicas have everything below `end` and know it.
async fn committed(groups: &[Arc<Group>], end: Offset) {
    let has_it = |group: &Arc<Group>| group.offsets().high_watermark.offset() == end;
    until("all replicas have it all", || groups.iter().all(has_it)).await;
}

fn batch(value_bytes: usize) -> Bytes {
    let mut builder = BatchBuilder::new();
    builder.push(NewRecord {
        timestamp: TimestampMs::new(1),
        key: None,
        value: Some(&vec![7; value_bytes]),
        headers: &[],
    });
    builder.build()
}

async fn produce(group: &Group, value_bytes: usize) -> Offset {
    let batch = batch(value_bytes);
    let header = BatchHeader::parse(&batch).expect("a batch");
    let (committed, outcome) = oneshot::channel();
    group
        .propose(Proposal {
            batch,
            header,
            appended: None,
            committed,
        })
        .expect("taken");
    let outcome = tokio::time::timeout(Duration::from_secs(20), outcome).await;
    let outcome = outcome.expect("in time").expect("told").expect("committed");
    outcome.base_offset
}

/// Answers after as many milliseconds as the metadata offset of the request says.
#[derive(Default)]
struct Waits(AtomicUsize);

impl PeerService for Waits {
    fn serve(&self, _from: &Caller, request: PeerRequest) -> BoxFuture<'static, PeerReply> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            let PeerRequest::TransferLeader { group, .. } = request else {
                return PeerReply::Unsupported;
            };
            let pause = Duration::from_millis(group.partition.get() as u64);
            tokio::time::sleep(pause).await;
            PeerReply::Done
        })
    }

    fn admit(&self, node: &PeerIdentity) -> Result<(), String> {
        match node.directory_id.as_str() {
            "unwelcome" => Err("it is not welcome".to_owned()),
            _ => Ok(()),
        }
    }

    fn knows(&self, node: NodeId) -> bool {
        (1..=3).contains(&node.get())
    }

    fn may_lead(&self, _node: NodeId, _group: GroupKey) -> bool {
        false
    }

    fn may_found(&self, _node: NodeId) -> bool {
        false
    }
}

fn wait_request(millis: i32) -> PeerRequest {
    PeerRequest::TransferLeader {
        group: key(millis),
        to: node(1),
    }
}

/// A request with one batch, at the place that follows from `index`.
pub(super) fn append_request(index: u64, value_bytes: usize) -> odradek_raft::rpc::AppendRequest {
    let bytes = append_bytes(1, 1, index, value_bytes);
    wire::get_append_request(&mut Reader::new(bytes.freeze())).expect("well-formed")
}

/// The same as bytes, of a leader of that term.
fn append_bytes(leader: i32, term: u64, index: u64, value_bytes: usize) -> BytesMut {
    let batch = batch(value_bytes);
    let mut bytes = BytesMut::new();
    // Vote: term, node, committed. Before it: nothing. Committed: nothing. One entry.
    bytes.put_u64(term);
    bytes.put_u64(leader as u64);
    bytes.put_slice(&[1, 0, 0]);
    bytes.put_u32(1);
    bytes.put_u8(3);
    bytes.put_u64(term);
    bytes.put_u64(index);
    bytes.put_u32(batch.len() as u32);
    bytes.put_slice(&batch);
    bytes
}

/// A frame of that kind about call or stream 1.
fn frame(kind: u8, body: &[u8]) -> BytesMut {
    let mut frame = BytesMut::new();
    frame.put_u32(5 + body.len() as u32);
    frame.put_u8(kind);
    frame.put_u32(1);
    frame.put_slice(body);
    frame
}

async fn say_hello(
    address: &PeerAddress,
    from: &LocalNode,
    to: i32,
    purpose: Purpose,
) -> TcpStream {
    let mut stream = TcpStream::connect((address.host.as_str(), address.port))
        .await
        .expect("connected");
    let hello = Hello::new(from, node(to), purpose).to_frame();
    stream.write_all(&hello).await.expect("sent");
    let length = stream.read_u32().await.expect("an answer");
    let mut answer = vec![0; length as usize];
    stream.read_exact(&mut answer).await.expect("an answer");
    let welcome = Welcome::from_frame(answer.into()).expect("well-formed");
    assert!(matches!(welcome, Welcome::Accepted(_)), "{welcome:?}");
    stream
}
