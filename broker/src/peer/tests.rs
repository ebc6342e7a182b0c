//! Nodes in one process over real sockets.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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
    DataDir, Group, GroupKey, GroupSpec, NoObserver, Proposal, RaftNode, RaftNodeOptions, Timing,
};
use odradek_storage::disk::Disk;
use odradek_storage::flush::{Flusher, FlusherOptions};
use odradek_storage::{LogConfig, LogDirHealth, RealDisk};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::frame::{FrameReader, Kind};
use super::hello::{Accepted, Hello, Welcome, answer_length};
use super::outbox::Outbox;
use super::*;
use crate::dispatch::DispatcherSlot;
use crate::memory::MemoryBudget;
use crate::metrics::ServerMetrics;
use crate::server::{
    Answering, BoundListener, ConnectionLimits, Connections, ListenerSpec, Server, ServerOptions,
};

const CLUSTER: &str = "cluster";

fn node(id: i32) -> NodeId {
    NodeId::new(id)
}

fn key(partition: i32) -> GroupKey {
    GroupKey {
        topic_id: TopicId::from_bytes([7; 16]),
        partition: PartitionIndex::new(partition),
    }
}

fn limits() -> PeerLimits {
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
        stop_timeout: Duration::from_secs(1),
    }
}

fn address_of(listener: &BoundListener) -> PeerAddress {
    PeerAddress {
        host: "127.0.0.1".to_owned(),
        port: listener.address().port(),
    }
}

async fn bind() -> BoundListener {
    let spec = ListenerSpec {
        name: "NODES".to_owned(),
        host: "127.0.0.1".to_owned(),
        port: 0,
        advertised_host: None,
        advertised_port: None,
        serves_nodes: true,
    };
    BoundListener::bind(spec, &server_options())
        .await
        .expect("port 0 is free")
}

fn local(id: i32, directory: &str, cluster: Option<&str>) -> Arc<LocalNode> {
    let incarnation = Uuid::from_bytes(rand::random());
    LocalNode::new(node(id), directory, incarnation, cluster)
}

/// A node as the broker puts it together.
struct TestNode {
    peers: Arc<Peers>,
    raft: Arc<RaftNode>,
    service: Arc<PeerServer>,
    address: PeerAddress,
    server: Server,
}

fn open_raft(id: i32, path: &Path, peers: &Arc<Peers>) -> Arc<RaftNode> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let health = LogDirHealth::new(path);
    let flusher = Flusher::start(&disk, health, FlusherOptions::default()).expect("threads");
    let data_dir = DataDir {
        path: path.to_owned(),
        flusher: Arc::new(flusher),
    };
    let mut options = RaftNodeOptions::new(node(id), disk, vec![data_dir], peers.network());
    options.timing = Timing {
        heartbeat_ms: 200,
        election_min_ms: 600,
        election_max_ms: 1200,
    };
    RaftNode::open(options).expect("opened")
}

fn start_node(
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
            };
            let opened = it.raft.open_group(spec, Arc::new(NoObserver)).await;
            groups.push(opened.expect("opened"));
        }
        groups
    }
}

async fn until(what: &str, mut so: impl FnMut() -> bool) {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_elect_and_replicate_and_make_dropped_connections_again() {
    let cluster = Cluster::start().await;
    let groups = cluster.open(0).await;
    let many = cluster.open(1).await;
    let lead = leader(&groups).await;
    for size in [10, 2_000, 100, 300_000, 0] {
        produce(&lead, size).await;
    }
    let other = leader(&many).await;
    let (one, two) = tokio::join!(produce(&lead, 50), produce(&other, 50));
    assert_eq!((one, two), (Offset::new(5), Offset::ZERO));
    for round in 0..3 {
        for it in &cluster.nodes {
            for id in 1..=3 {
                it.peers.disconnect(node(id));
            }
        }
        let lead = leader(&groups).await;
        assert_eq!(produce(&lead, 1_000).await, Offset::new(6 + round));
    }
    let end = Offset::new(9);
    until("all replicas have it all", || {
        groups
            .iter()
            .all(|group| group.offsets().high_watermark.offset() == end)
    })
    .await;
    let contents = |group: &Group| {
        let slice = group.reader().read(Offset::ZERO, usize::MAX, end, true);
        slice.expect("bounded").read().expect("read")
    };
    let first = contents(&groups[0]);
    assert!(groups.iter().all(|group| contents(group) == first));
    // Longer than connections of clients may be idle.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(
        cluster
            .nodes
            .iter()
            .flat_map(|it| it.peers.links())
            .any(|link| link.connected().is_some())
    );
    for it in cluster.nodes {
        it.peers.stop();
        it.server.stop().await;
        it.raft.shutdown().await.expect("closed");
    }
}

#[tokio::test]
async fn a_group_that_is_not_there_is_said_to_be_not_served() {
    let cluster = Cluster::start().await;
    let network = cluster.node(1).peers.network();
    let link = RaftLink {
        from: node(1),
        to: node(2),
        group: key(9),
    };
    let requests = futures_util::stream::iter([append_request(0, 10)]).chain(
        // The stream is open until the other end closes it.
        futures_util::stream::pending(),
    );
    let mut answers = network
        .append_stream(link, requests.boxed())
        .await
        .expect("connected");
    assert!(matches!(
        answers.next().await,
        Some(Err(NetworkError::NotServed { .. }))
    ));
    assert!(answers.next().await.is_none());
    let nowhere = RaftLink {
        to: node(8),
        ..link
    };
    let refused = network.append_stream(nowhere, futures_util::stream::pending().boxed());
    assert!(matches!(
        refused.await.err(),
        Some(NetworkError::Unreachable(to)) if to == node(8)
    ));
}

/// Answers after as many milliseconds as the metadata offset of the request says.
#[derive(Default)]
struct Waits(AtomicUsize);

impl PeerService for Waits {
    fn serve(&self, _from: NodeId, request: PeerRequest) -> BoxFuture<'static, PeerReply> {
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
}

fn wait_request(millis: i32) -> PeerRequest {
    PeerRequest::TransferLeader {
        group: key(millis),
        to: node(1),
    }
}

#[tokio::test]
async fn requests_are_answered_in_any_order_and_within_their_time() {
    let cluster = Cluster::start().await;
    let asking = Arc::clone(&cluster.node(1).peers);
    let reply = asking.call(node(2), wait_request(0)).await;
    assert_eq!(reply.expect("an answer"), PeerReply::Busy);

    let service = Arc::new(Waits::default());
    cluster
        .node(2)
        .service
        .set_service(Arc::clone(&service) as Arc<dyn PeerService>);
    let slow = tokio::spawn({
        let asking = Arc::clone(&asking);
        async move { asking.call(node(2), wait_request(400)).await }
    });
    until("the slow one is at work", || {
        service.0.load(Ordering::SeqCst) == 1
    })
    .await;
    let before = Instant::now();
    let reply = asking.call(node(2), wait_request(0)).await;
    assert_eq!(reply.expect("an answer"), PeerReply::Done);
    assert!(before.elapsed() < Duration::from_millis(300));
    assert_eq!(
        slow.await.expect("no panic").expect("answer"),
        PeerReply::Done
    );

    let limit = Duration::from_millis(50);
    let late = asking
        .call_within(node(2), wait_request(5_000), limit)
        .await;
    assert!(matches!(late, Err(PeerError::Timeout(_))));
    let own = asking.call(node(1), wait_request(0)).await;
    assert!(matches!(own, Err(PeerError::OwnNode)));
    let lost = tokio::spawn({
        let asking = Arc::clone(&asking);
        async move { asking.call(node(2), wait_request(5_000)).await }
    });
    until("it is at work", || service.0.load(Ordering::SeqCst) == 4).await;
    asking.disconnect(node(2));
    assert!(matches!(
        lost.await.expect("no panic"),
        Err(PeerError::Lost(_))
    ));
}

#[tokio::test]
async fn who_does_not_belong_to_the_cluster_is_refused_and_told_why() {
    let cluster = Cluster::start().await;
    let target = cluster.node(2);
    target.service.set_service(Arc::new(Waits::default()));
    let ask = async |local: Arc<LocalNode>, to: i32| {
        let book = AddressBook::new([(node(to), target.address.clone())]);
        let peers = Peers::new(local, Arc::new(book), limits());
        match peers.call(node(to), wait_request(0)).await {
            Err(PeerError::Refused { reason, .. }) => reason,
            other => panic!("not refused: {other:?}"),
        }
    };
    let reason = ask(local(4, "d", Some("another")), 2).await;
    assert!(
        reason.ends_with("cluster another is not cluster cluster of node 2"),
        "{reason}"
    );
    let reason = ask(local(2, "d", Some(CLUSTER)), 5).await;
    assert!(
        reason.ends_with("there are two nodes with node.id 2"),
        "{reason}"
    );
    let reason = ask(local(4, "d", None), 5).await;
    assert!(
        reason.ends_with("the address meant for node 5 leads to node 2"),
        "{reason}"
    );
    let reason = ask(local(4, "unwelcome", None), 2).await;
    assert!(reason.ends_with("it is not welcome"), "{reason}");

    // A second node 3 while the first is there.
    let first = cluster.node(3);
    assert!(first.peers.call(node(2), wait_request(0)).await.is_ok());
    let reason = ask(local(3, "another", Some(CLUSTER)), 2).await;
    assert!(
        reason.ends_with("there are two nodes with node.id 3"),
        "{reason}"
    );
    assert!(first.peers.call(node(2), wait_request(0)).await.is_ok());

    // Node 2 is told that node 7 is where it is itself.
    target
        .peers
        .addresses()
        .set_registered([(node(7), target.address.clone())]);
    let refused = target.peers.call(node(7), wait_request(0)).await;
    let reason = refused.expect_err("refused").to_string();
    assert!(
        reason.ends_with("the node is connected to itself"),
        "{reason}"
    );
}

/// Ready after a few polls, so that a stream has nothing to send every now and then.
fn with_pauses(
    requests: odradek_raft::network::AppendRequests,
) -> odradek_raft::network::AppendRequests {
    requests
        .then(|request| async move {
            if rand::random::<u8>() < 64 {
                tokio::task::yield_now().await;
            }
            request
        })
        .boxed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_share_little_memory_and_all_come_to_their_end() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = PeerAddress {
        host: "127.0.0.1".to_owned(),
        port: listener.local_addr().expect("it has one").port(),
    };
    let follower = tokio::spawn(follower_that_is_slow_with_partition_0(listener));
    let book = AddressBook::new([(node(2), address)]);
    let tight = PeerLimits {
        stream_bytes: 30_000,
        memory_bytes: 100_000,
        queue_bytes: 20_000,
        ..limits()
    };
    let peers = Peers::new(local(1, "one", None), Arc::new(book), tight);
    let network = peers.network();
    let mut streams = tokio::task::JoinSet::new();
    for partition in 1..=100 {
        let link = RaftLink {
            from: node(1),
            to: node(2),
            group: key(partition),
        };
        let count = Arc::default();
        let requests = with_pauses(counted(&count, 30, 2_000 * (partition as usize % 8)));
        let answers = network.append_stream(link, requests).await.expect("open");
        // Some are given up on the way, with room that they were about to use.
        let wanted = if partition % 5 == 0 { 3 } else { 30 };
        streams.spawn(async move { answers.take(wanted).count().await == wanted });
    }
    let all = async {
        while let Some(complete) = streams.join_next().await {
            assert!(complete.expect("no panic"));
        }
    };
    let done = tokio::time::timeout(Duration::from_secs(30), all).await;
    assert!(done.is_ok(), "some streams are stuck");
    let conduit = peers.links().first().and_then(|link| link.connected());
    assert_eq!(conduit.expect("connected").unanswered_bytes(), 0);
    follower.abort();
}

#[tokio::test]
async fn random_frames_end_a_connection_and_harm_nothing() {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    let seed = match std::env::var("ODRADEK_SEED") {
        Ok(seed) => seed.parse().expect("a number"),
        Err(_) => rand::random::<u64>(),
    };
    println!("replay with ODRADEK_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let cluster = Cluster::start().await;
    let groups = cluster.open(0).await;
    let lead = leader(&groups).await;
    produce(&lead, 10).await;
    // All have heard of a leader whose term is above that of the random ones.
    until("all have the batch", || {
        groups
            .iter()
            .all(|group| group.offsets().high_watermark.offset() == Offset::new(1))
    })
    .await;
    let target = cluster.node(2);
    let stranger = local(9, "nine", None);
    for _ in 0..100 {
        let mut stream = say_hello(&target.address, &stranger, 2, Purpose::Append).await;
        let mut bytes = BytesMut::new();
        for _ in 0..random.random_range(1..20) {
            let mut body = BytesMut::new();
            match random.random_range(0..4) {
                0 => wire::put_group_key(&mut body, key(random.random_range(0..2))),
                1 => {
                    let request = append_request(random.random_range(0..3), 10);
                    wire::put_append_request(&mut body, &request).expect("sendable");
                    // Of a leader whose time is over.
                    body[..8].fill(0);
                }
                2 => body.put_slice(&random.random::<[u8; 30]>()),
                _ => {}
            }
            bytes.put_u32(5 + body.len() as u32);
            bytes.put_u8(random.random_range(1..9));
            bytes.put_u32(random.random_range(0..4));
            bytes.put_slice(&body);
        }
        // It may have been cut off before.
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut rest));
        assert!(
            closed.await.is_ok(),
            "neither closed nor answered to the end"
        );
    }
    assert!(groups.iter().all(|group| group.offline_cause().is_none()));
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_frames_close_their_connection_and_nothing_else() {
    let cluster = Cluster::start().await;
    let groups = cluster.open(0).await;
    let lead = leader(&groups).await;
    produce(&lead, 10).await;
    let links = || -> Vec<_> {
        cluster
            .nodes
            .iter()
            .flat_map(|it| it.peers.links())
            .filter_map(|link| link.connected())
            .collect()
    };
    let before = links();
    let target = cluster.node(2);
    let frame = |kind: u8, body: &[u8]| {
        let mut frame = BytesMut::new();
        frame.put_u32(5 + body.len() as u32);
        frame.put_u8(kind);
        frame.put_u32(1);
        frame.put_slice(body);
        frame
    };
    let open = {
        let mut body = BytesMut::new();
        wire::put_group_key(&mut body, key(0));
        frame(3, &body)
    };
    let garbage = [
        frame(99, b""),
        frame(1, b""),
        frame(1, &[1, 2, 3]),
        frame(3, &[0; 7]),
        frame(2, b"an answer to nothing"),
        BytesMut::from(&[0xff; 64][..]),
        BytesMut::from(&[&open[..], &open[..]].concat()[..]),
        BytesMut::from(&[&open[..], &frame(4, &[1; 30])[..]].concat()[..]),
    ];
    let stranger = local(9, "nine", None);
    for (case, bytes) in garbage.iter().enumerate() {
        let mut stream = say_hello(&target.address, &stranger, 2, Purpose::Append).await;
        stream.write_all(bytes).await.expect("sent");
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut rest));
        // Reset, when it was closed before all was read.
        let _ = closed
            .await
            .unwrap_or_else(|_| panic!("case {case} is not closed"));
    }
    // Not even a hello.
    let mut stream = TcpStream::connect((target.address.host.as_str(), target.address.port))
        .await
        .expect("connected");
    let hello = [
        &[0, 0, 0, 20][..],
        &super::hello::API_KEY.to_be_bytes(),
        &[0xff; 18],
    ]
    .concat();
    stream.write_all(&hello).await.expect("sent");
    assert_eq!(stream.read_u8().await.ok(), None);
    // What is unknown, but may be of a later version, is answered.
    let mut stream = say_hello(&target.address, &stranger, 2, Purpose::Control).await;
    stream
        .write_all(&frame(1, &[77, 1, 2, 3]))
        .await
        .expect("sent");
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).await.expect("answered");
    assert_eq!(reply, [0, 0, 0, 6, 2, 0, 0, 0, 1, 2]);

    assert_eq!(produce(&lead, 10).await, Offset::new(1));
    let after = links();
    assert!(
        before
            .iter()
            .all(|it| after.iter().any(|that| Arc::ptr_eq(it, that)))
    );
}

/// A request with one batch, at the place that follows from `index`.
pub(super) fn append_request(index: u64, value_bytes: usize) -> odradek_raft::rpc::AppendRequest {
    let batch = batch(value_bytes);
    let mut bytes = BytesMut::new();
    // Vote: term, node, committed. Before it: nothing. Committed: nothing. One entry.
    bytes.put_u64(1);
    bytes.put_u64(1);
    bytes.put_slice(&[1, 0, 0]);
    bytes.put_u32(1);
    bytes.put_u8(3);
    bytes.put_u64(1);
    bytes.put_u64(index);
    bytes.put_u32(batch.len() as u32);
    bytes.put_slice(&batch);
    wire::get_append_request(&mut Reader::new(bytes.freeze())).expect("well-formed")
}

/// Says how many requests have been taken of it.
fn counted(
    count: &Arc<AtomicUsize>,
    requests: u64,
    value_bytes: usize,
) -> odradek_raft::network::AppendRequests {
    let count = Arc::clone(count);
    futures_util::stream::iter(0..requests)
        .map(move |index| {
            count.fetch_add(1, Ordering::SeqCst);
            append_request(index, value_bytes)
        })
        .boxed()
}

/// A follower that answers every request at once, but none to partition 0.
async fn follower_that_is_slow_with_partition_0(listener: TcpListener) {
    let (mut stream, _) = listener.accept().await.expect("accepted");
    let length = stream.read_u32().await.expect("a hello");
    let mut hello = vec![0; length as usize];
    stream.read_exact(&mut hello).await.expect("a hello");
    let accepted = Accepted {
        version: 1,
        node: local(2, "two", None).identity(),
        window: 400_000,
        memory: 1_000_000,
        frame: 1 << 20,
    };
    let welcome = Welcome::Accepted(accepted).to_frame();
    stream.write_all(&welcome).await.expect("sent");
    let mut frames = FrameReader::new(1 << 20, BytesMut::new());
    let mut out = Outbox::default();
    let mut slow = Vec::new();
    loop {
        let next = std::future::poll_fn(|cx| frames.poll_next(cx, &stream, |_| {}));
        let Ok(frame) = next.await else { return };
        match frame.kind {
            Kind::Open => {
                let group = Reader::new(frame.body).group_key().expect("a group");
                if group == key(0) {
                    slow.push(frame.number);
                }
            }
            Kind::Append if !slow.contains(&frame.number) => {
                out.put(Kind::Answer, frame.number, |out| {
                    wire::put_append_result(out, &Ok(None));
                });
                std::future::poll_fn(|cx| out.poll_send(cx, &stream, |_| {}))
                    .await
                    .expect("sent");
            }
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_whose_follower_is_slow_slows_no_other() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = PeerAddress {
        host: "127.0.0.1".to_owned(),
        port: listener.local_addr().expect("it has one").port(),
    };
    let follower = tokio::spawn(follower_that_is_slow_with_partition_0(listener));
    let book = AddressBook::new([(node(2), address)]);
    let peers = Peers::new(local(1, "one", None), Arc::new(book), limits());
    let network = peers.network();
    let link = |partition| RaftLink {
        from: node(1),
        to: node(2),
        group: key(partition),
    };
    // Three streams to the slow one: a third of the memory each would leave nothing.
    let mut stuck = Vec::new();
    let taken: Vec<_> = (0..3).map(|_| Arc::new(AtomicUsize::new(0))).collect();
    for count in &taken {
        let requests = counted(count, 1_000, 20_000);
        let mut answers = network
            .append_stream(link(0), requests)
            .await
            .expect("open");
        stuck.push(tokio::spawn(async move { answers.next().await }));
    }
    until("the slow streams are full", || {
        taken.iter().all(|count| count.load(Ordering::SeqCst) > 3)
    })
    .await;
    let count = Arc::new(AtomicUsize::new(0));
    let requests = counted(&count, 500, 20_000);
    let answers = network
        .append_stream(link(1), requests)
        .await
        .expect("open");
    let answered = tokio::time::timeout(Duration::from_secs(20), answers.count()).await;
    assert_eq!(answered, Ok(500));
    let under_way: usize = taken.iter().map(|count| count.load(Ordering::SeqCst)).sum();
    assert!(
        under_way * 20_000 < 1_000_000,
        "{under_way} requests are under way"
    );
    for stream in &stuck {
        assert!(!stream.is_finished());
    }
    // What the slow streams held is free again once they are given up.
    for stream in stuck {
        stream.abort();
        let _ = stream.await;
    }
    let conduit = peers.links().first().and_then(|link| link.connected());
    assert_eq!(conduit.expect("connected").unanswered_bytes(), 0);
    follower.abort();
}

/// Accepts connections and reads nothing but the hello.
async fn deaf_node(listener: TcpListener) {
    let mut open = Vec::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        let length = stream.read_u32().await.expect("a hello");
        let mut hello = vec![0; length as usize];
        stream.read_exact(&mut hello).await.expect("a hello");
        let accepted = Accepted {
            version: 1,
            node: local(2, "two", None).identity(),
            window: u32::MAX,
            memory: u32::MAX,
            frame: 100_000,
        };
        let welcome = Welcome::Accepted(accepted).to_frame();
        stream.write_all(&welcome).await.expect("sent");
        open.push(stream);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_node_that_does_not_read_is_bounded() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = PeerAddress {
        host: "127.0.0.1".to_owned(),
        port: listener.local_addr().expect("it has one").port(),
    };
    let deaf = tokio::spawn(deaf_node(listener));
    let book = AddressBook::new([(node(2), address)]);
    let small = PeerLimits {
        queue_bytes: 100_000,
        ..limits()
    };
    let peers = Peers::new(local(1, "one", None), Arc::new(book), small);
    let request = PeerRequest::Forward(message::Forward {
        api_key: 19,
        api_version: 7,
        client_id: None,
        principal: String::new(),
        body: Bytes::from(vec![0; 20_000]),
    });
    let limit = Duration::from_millis(1);
    let refused = async {
        loop {
            match peers.call_within(node(2), request.clone(), limit).await {
                Err(PeerError::Timeout(_)) => {}
                other => return other,
            }
        }
    };
    let refused = tokio::time::timeout(Duration::from_secs(20), refused).await;
    assert!(matches!(refused, Ok(Err(PeerError::Overloaded(_)))));

    let network = peers.network();
    let link = RaftLink {
        from: node(1),
        to: node(2),
        group: key(1),
    };
    // What it would not read at all is not sent, and costs nobody else the connection.
    let too_long = counted(&Arc::default(), 1, 100_000);
    let mut answers = network.append_stream(link, too_long).await.expect("open");
    assert!(matches!(answers.next().await, Some(Err(_))));

    let taken = Arc::new(AtomicUsize::new(0));
    let requests = counted(&taken, 100_000, 20_000);
    let mut answers = network.append_stream(link, requests).await.expect("open");
    let answer = tokio::time::timeout(Duration::from_millis(500), answers.next());
    assert!(answer.await.is_err(), "nothing can have been answered");
    // The kernel may have taken more of it meanwhile.
    let conduits = peers
        .links()
        .into_iter()
        .filter_map(|link| link.connected());
    let queued: Vec<_> = conduits.map(|it| it.queued_bytes()).collect();
    assert_eq!(queued.len(), 2);
    assert!(queued.iter().all(|bytes| *bytes < 150_000), "{queued:?}");
    assert!(taken.load(Ordering::SeqCst) < 1_000);
    deaf.abort();
}

#[tokio::test]
async fn a_node_that_connects_is_asked_again_without_waiting_for_the_backoff() {
    let dir = tempfile::tempdir().expect("a directory");
    let reserved = bind().await;
    let place = address_of(&reserved);
    drop(reserved);
    let patient = PeerLimits {
        reconnect_backoff: Duration::from_secs(3_600),
        reconnect_backoff_max: Duration::from_secs(3_600),
        ..limits()
    };
    let listener = bind().await;
    let addresses = [(node(1), address_of(&listener)), (node(2), place.clone())];
    let path = |id: i32| {
        let path = dir.path().join(id.to_string());
        std::fs::create_dir(&path).expect("made");
        path
    };
    let one = start_node(1, &path(1), listener, addresses.clone(), patient);
    for _ in 0..2 {
        let failed = one.peers.call(node(2), wait_request(0)).await;
        assert!(matches!(failed, Err(PeerError::Unreachable { .. })));
    }
    let spec = ListenerSpec {
        name: "NODES".to_owned(),
        host: place.host.clone(),
        port: place.port,
        advertised_host: None,
        advertised_port: None,
        serves_nodes: true,
    };
    let listener = BoundListener::bind(spec, &server_options()).await;
    let listener = listener.expect("the port is still free");
    let two = start_node(2, &path(2), listener, addresses, limits());
    let still = one.peers.call(node(2), wait_request(0)).await;
    assert!(matches!(still, Err(PeerError::Unreachable { .. })));
    let asked = two.peers.call(node(1), wait_request(0)).await;
    assert_eq!(asked.expect("an answer"), PeerReply::Busy);
    let asked = one.peers.call(node(2), wait_request(0)).await;
    assert_eq!(asked.expect("an answer"), PeerReply::Busy);
}

#[test]
fn an_answer_of_a_hello_that_is_too_long_is_refused() {
    let mut received = BytesMut::from(&[0, 1, 0, 0][..]);
    assert!(answer_length(&mut received).is_err());
}
