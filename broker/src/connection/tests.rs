//! In-process tests over real sockets, with a scripted dispatcher in place of the handlers.

mod memory;

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

#[tokio::test]
async fn replies_leave_in_request_order_whatever_order_they_are_ready_in() {
    let fixture = start(options()).await;
    let mut stream = fixture.connect().await;
    let mut requests = Vec::new();
    for (correlation, body) in [
        (1, [ask::LATER, 80]),
        (2, [ask::LATER, 1]),
        (3, [ask::NOW, 0]),
        (4, [ask::WAIT, 10]),
        (5, [ask::LATER, 20]),
        (6, [ask::NOW, 0]),
    ] {
        requests.extend_from_slice(&frame(correlation, &body));
    }
    stream.write_all(&requests).await.expect("sent");
    for expected in 1..=6 {
        let (correlation, _) = read_reply(&mut stream).await.expect("a reply");
        assert_eq!(correlation, expected);
    }
}

#[tokio::test]
async fn a_request_starts_while_the_reply_before_it_is_still_a_promise() {
    let fixture = start(options()).await;
    let mut stream = fixture.connect().await;
    stream
        .write_all(&frame(1, &[ask::LATER, 200]))
        .await
        .expect("sent");
    stream
        .write_all(&frame(2, &[ask::NOW]))
        .await
        .expect("sent");
    fixture
        .until("both started", |fixture| {
            fixture.scripted.started.load(Ordering::SeqCst) == 2
        })
        .await;
    assert_eq!(read_reply(&mut stream).await, Some((1, 4)));
    assert_eq!(read_reply(&mut stream).await, Some((2, 4)));
}

#[tokio::test]
async fn requests_in_flight_on_one_connection_are_bounded() {
    let fixture = start(options()).await;
    let mut stream = fixture.connect().await;
    for correlation in 0..50 {
        stream
            .write_all(&frame(correlation, &[ask::LATER, 250]))
            .await
            .expect("sent");
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    // The queue, and the one that the writer waits for.
    assert!(fixture.scripted.started.load(Ordering::SeqCst) <= options().max_in_flight + 1);
    drop(stream);
}

#[tokio::test]
async fn large_produce_frames_are_not_read_far_ahead_of_the_log() {
    let fixture = start(options()).await;
    let mut stream = fixture.connect().await;
    let large = options().max_in_flight_bytes / 2 - 16;
    let mut body = vec![0; large];
    body[0] = ask::HOLD;
    let started =
        |count| move |fixture: &Fixture| fixture.scripted.started.load(Ordering::SeqCst) == count;
    for correlation in 0..3 {
        stream
            .write_all(&frame(correlation, &body))
            .await
            .expect("sent");
    }
    fixture.until("two fit", started(2)).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(started(2)(&fixture), "the third waits");
    fixture.scripted.held.lock().clear();
    fixture.until("the third is read", started(3)).await;
    for correlation in 0..3 {
        assert_eq!(read_reply(&mut stream).await, Some((correlation, 4)));
    }
}

#[tokio::test]
async fn silent_requests_take_no_place_among_the_replies() {
    let fixture = start(options()).await;
    let mut stream = fixture.connect().await;
    for correlation in 0..100 {
        stream
            .write_all(&frame(correlation, &[ask::SILENT]))
            .await
            .expect("sent");
    }
    stream
        .write_all(&frame(100, &[ask::NOW]))
        .await
        .expect("sent");
    assert_eq!(read_reply(&mut stream).await, Some((100, 4)));
}

#[tokio::test]
async fn a_handler_that_closes_lets_earlier_replies_leave_first() {
    let fixture = start(options()).await;
    let mut stream = fixture.connect().await;
    stream
        .write_all(&frame(1, &[ask::LATER, 30]))
        .await
        .expect("sent");
    stream
        .write_all(&frame(2, &[ask::CLOSE]))
        .await
        .expect("sent");
    assert_eq!(read_reply(&mut stream).await, Some((1, 4)));
    assert_eq!(read_reply(&mut stream).await, None);
}

#[tokio::test]
async fn clients_that_never_read_are_no_longer_read_from_while_others_are_served() {
    let fixture = start(options()).await;
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut stream = fixture.connect().await;
        for correlation in 0..50 {
            let request = frame(correlation, &[ask::HUGE]);
            stream.write_all(&request).await.expect("sent");
        }
        slow.push(stream);
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let started = fixture.scripted.started.load(Ordering::SeqCst);
    assert!(started < 400, "{started} of 1000 requests were started");
    // The limit, and a reply for each connection that had none.
    let unsent = fixture.budget.reply_bytes_in_use();
    assert!(unsent <= (4 << 20) + 20 * 600 * 1024, "{unsent} bytes wait");

    let mut quick = fixture.connect().await;
    let before = Instant::now();
    for correlation in 0..20 {
        quick
            .write_all(&frame(correlation, &[ask::HUGE]))
            .await
            .expect("sent");
        let reply = read_reply(&mut quick).await;
        assert_eq!(reply, Some((correlation, 4 + 512 * 1024)));
    }
    assert!(before.elapsed() < Duration::from_secs(2));

    drop(slow);
    fixture
        .until("the memory of the slow ones came back", |fixture| {
            fixture.budget.reply_bytes_in_use() == 0 && fixture.connections.open() == 1
        })
        .await;
}

#[tokio::test]
async fn frames_that_cannot_be_close_the_connection_and_nothing_else() {
    let fixture = start(options()).await;
    let mut well_behaved = fixture.connect().await;
    for bad in [
        i32::MAX.to_be_bytes(),
        (-1i32).to_be_bytes(),
        i32::MIN.to_be_bytes(),
        3i32.to_be_bytes(),
        0i32.to_be_bytes(),
        ((4 << 20) + 1i32).to_be_bytes(),
    ] {
        let mut stream = fixture.connect().await;
        stream.write_all(&bad).await.expect("sent");
        stream.write_all(&[0; 8]).await.ok();
        assert_eq!(read_reply(&mut stream).await, None, "{bad:?}");
    }
    assert_eq!(fixture.budget.request_bytes_in_use(), 0);
    well_behaved
        .write_all(&frame(9, &[ask::NOW]))
        .await
        .expect("sent");
    assert_eq!(read_reply(&mut well_behaved).await, Some((9, 4)));
}

#[tokio::test]
async fn a_frame_that_comes_byte_by_byte_is_read_like_any_other() {
    let fixture = start(options()).await;
    let mut stream = fixture.connect().await;
    stream.set_nodelay(true).expect("set");
    for byte in frame(77, &[ask::NOW]) {
        stream.write_all(&[byte]).await.expect("sent");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(read_reply(&mut stream).await, Some((77, 4)));
}

#[tokio::test]
async fn frames_of_all_sizes_follow_one_another_without_a_gap() {
    let fixture = start(options()).await;
    let stream = fixture.connect().await;
    let (mut read_half, mut write_half) = stream.into_split();
    let sizes = [
        1usize,
        4_087,
        4_088,
        4_089,
        8_192,
        65_536,
        1 << 20,
        3,
        100_000,
        2,
    ];
    let sending = tokio::spawn(async move {
        for (correlation, size) in (0i32..).zip(sizes) {
            let request = frame(correlation, &vec![0; size]);
            write_half.write_all(&request).await.expect("sent");
        }
        write_half
    });
    for expected in 0..sizes.len() {
        assert_eq!(read_half.read_u32().await.expect("a reply"), 4);
        let correlation = read_half.read_u32().await.expect("its id");
        assert_eq!(correlation as usize, expected);
    }
    drop(sending.await);
    assert_eq!(fixture.budget.request_bytes_in_use(), 0);
}

#[tokio::test]
async fn idle_connections_are_closed_and_busy_ones_are_not() {
    let fixture = start(ServerOptions {
        max_idle: Some(Duration::from_millis(400)),
        ..options()
    })
    .await;
    let mut idle = fixture.connect().await;
    let mut half = fixture.connect().await;
    half.write_all(&frame(1, &[0; 100])[..20])
        .await
        .expect("sent");
    // Nothing moves while a request waits, and its time is the client's choice.
    let mut parked = fixture.connect().await;
    parked
        .write_all(&frame(2, &[ask::FOREVER]))
        .await
        .expect("sent");
    let mut busy = fixture.connect().await;
    for correlation in 0..12 {
        busy.write_all(&frame(correlation, &[ask::WAIT, 50]))
            .await
            .expect("sent");
        assert_eq!(read_reply(&mut busy).await, Some((correlation, 4)));
    }
    let mut byte = [0; 1];
    assert_eq!(idle.read(&mut byte).await.ok(), Some(0));
    assert!(matches!(half.read(&mut byte).await, Ok(0) | Err(_)));
    let closed = tokio::time::timeout(Duration::from_secs(10), read_reply(&mut parked)).await;
    assert_eq!(closed, Ok(None), "a request that waits is idleness");
}

/// Of clients that are gone, or have shut down their writing side, nothing is kept for longer than
/// the bound.
async fn nothing_is_left_of_who_is_gone_with(owed: &[u8], pipelined: bool) {
    let fixture = start(ServerOptions {
        drain_limit: Duration::from_millis(300),
        ..options()
    })
    .await;
    let mut gone = Vec::new();
    for _ in 0..20 {
        let mut stream = fixture.connect().await;
        stream.write_all(&frame(1, owed)).await.expect("sent");
        if pipelined {
            let behind = frame(2, &[ask::NOW]);
            stream.write_all(&behind).await.expect("sent");
        }
        gone.push(stream);
    }
    fixture
        .until("all have started", |fixture| {
            fixture.scripted.started.load(Ordering::SeqCst) >= 20
        })
        .await;
    drop(gone);
    fixture
        .until("their places are free", |fixture| {
            fixture.connections.open() == 0
        })
        .await;
    assert_eq!(fixture.budget.request_bytes_in_use(), 0);
}

#[tokio::test]
async fn who_closes_while_its_request_waits_keeps_no_place() {
    nothing_is_left_of_who_is_gone_with(&[ask::FOREVER], false).await;
}

#[tokio::test]
async fn who_closes_with_requests_behind_the_one_that_waits_keeps_no_place() {
    nothing_is_left_of_who_is_gone_with(&[ask::FOREVER], true).await;
}

#[tokio::test]
async fn who_closes_while_a_promise_is_owed_keeps_no_place() {
    nothing_is_left_of_who_is_gone_with(&[ask::LATER_FOREVER], false).await;
}

#[tokio::test]
async fn a_reset_ends_what_waits_without_the_time_of_who_may_still_read() {
    let fixture = start(options()).await;
    let mut stream = fixture.connect().await;
    stream
        .write_all(&frame(1, &[ask::FOREVER]))
        .await
        .expect("sent");
    fixture
        .until("it has started", |fixture| {
            fixture.scripted.started.load(Ordering::SeqCst) == 1
        })
        .await;
    stream.set_zero_linger().expect("a socket");
    drop(stream);
    fixture
        .until("its place is free", |fixture| {
            fixture.connections.open() == 0
        })
        .await;
}

#[tokio::test]
async fn who_only_shuts_down_its_writing_side_is_answered_as_long_as_answers_come() {
    let fixture = start(ServerOptions {
        drain_limit: Duration::from_millis(1_000),
        ..options()
    })
    .await;
    let mut stream = fixture.connect().await;
    for correlation in 0..6 {
        stream
            .write_all(&frame(correlation, &[ask::WAIT, 200]))
            .await
            .expect("sent");
    }
    let behind = frame(6, &[ask::LATER, 150]);
    stream.write_all(&behind).await.expect("sent");
    stream.shutdown().await.expect("half closed");
    for correlation in 0..7 {
        assert_eq!(read_reply(&mut stream).await, Some((correlation, 4)));
    }
    assert_eq!(read_reply(&mut stream).await, None);
}

#[tokio::test]
async fn a_thousand_idle_connections_do_not_slow_one_that_works() {
    let fixture = start(options()).await;
    let mut idle = Vec::new();
    for _ in 0..1_000 {
        idle.push(fixture.connect().await);
    }
    fixture
        .until("all are accepted", |fixture| {
            fixture.connections.open() == 1_000
        })
        .await;
    let mut stream = fixture.connect().await;
    let before = Instant::now();
    for correlation in 0..200 {
        stream
            .write_all(&frame(correlation, &[ask::NOW]))
            .await
            .expect("sent");
        assert_eq!(read_reply(&mut stream).await, Some((correlation, 4)));
    }
    assert!(before.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn connections_beyond_the_limit_of_their_address_are_closed_at_once() {
    let fixture = start_limited(limits(10_000, 2)).await;
    let first = fixture.connect().await;
    let _second = fixture.connect().await;
    fixture
        .until("two are in", |fixture| fixture.connections.open() == 2)
        .await;
    let mut third = fixture.connect().await;
    assert_eq!(read_reply(&mut third).await, None);
    drop(first);
    fixture
        .until("one has left", |fixture| fixture.connections.open() == 1)
        .await;
    let mut fourth = fixture.connect().await;
    fourth
        .write_all(&frame(4, &[ask::NOW]))
        .await
        .expect("sent");
    assert_eq!(read_reply(&mut fourth).await, Some((4, 4)));
}

#[tokio::test]
async fn connections_beyond_the_broker_wide_limit_wait_for_a_place() {
    let fixture = start_limited(limits(1, 10_000)).await;
    let first = fixture.connect().await;
    fixture
        .until("one is in", |fixture| fixture.connections.open() == 1)
        .await;
    let mut second = fixture.connect().await;
    second
        .write_all(&frame(2, &[ask::NOW]))
        .await
        .expect("sent");
    let early = tokio::time::timeout(Duration::from_millis(50), second.readable()).await;
    assert!(early.is_err(), "served although the broker is full");
    drop(first);
    assert_eq!(read_reply(&mut second).await, Some((2, 4)));

    let mut third = fixture.connect().await;
    third.write_all(&frame(3, &[ask::NOW])).await.expect("sent");
    let early = tokio::time::timeout(Duration::from_millis(50), third.readable()).await;
    assert!(early.is_err(), "served although the broker is full");
    fixture.connections.set_limits(limits(2, 10_000));
    assert_eq!(read_reply(&mut third).await, Some((3, 4)));
}

#[tokio::test]
async fn a_stop_answers_what_is_in_progress_and_drops_what_only_waits() {
    let fixture = start(options()).await;
    let mut producing = fixture.connect().await;
    producing
        .write_all(&frame(1, &[ask::LATER, 150]))
        .await
        .expect("sent");
    let mut waiting = fixture.connect().await;
    waiting
        .write_all(&frame(2, &[ask::FOREVER]))
        .await
        .expect("sent");
    let mut idle = fixture.connect().await;
    fixture
        .until("both started", |fixture| {
            fixture.scripted.started.load(Ordering::SeqCst) == 2
        })
        .await;
    let address = fixture.address;
    let before = Instant::now();
    fixture.server.stop().await;
    assert!(before.elapsed() < Duration::from_secs(2));
    assert_eq!(read_reply(&mut producing).await, Some((1, 4)));
    assert_eq!(read_reply(&mut waiting).await, None);
    assert_eq!(read_reply(&mut idle).await, None);
    assert!(TcpStream::connect(address).await.is_err());
}

/// A file that may or may not let itself be sent by the kernel.
#[derive(Debug)]
struct FileSource {
    file: std::fs::File,
    sendable: bool,
}

impl odradek_protocol::response::RegionSource for FileSource {
    fn std_file(&self) -> Option<&std::fs::File> {
        self.sendable.then_some(&self.file)
    }

    fn read_exact_at(&self, buffer: &mut [u8], position: u64) -> std::io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, buffer, position)
    }
}

#[tokio::test]
async fn regions_of_files_arrive_whole_between_bytes_however_they_are_sent() {
    use super::send::Outgoing;
    use odradek_protocol::response::{Chunk, FileRegion};
    use std::io::Write as _;

    let contents: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&contents).expect("written");
    for sendable in [true, false] {
        let source = Arc::new(FileSource {
            file: file.try_clone().expect("cloned"),
            sendable,
        });
        let region = |position: usize, len: usize| {
            Chunk::Region(FileRegion {
                source: Arc::clone(&source) as Arc<dyn odradek_protocol::response::RegionSource>,
                position: position as u64,
                len,
            })
        };
        let mut outgoing = Outgoing::default();
        outgoing.push(Chunk::Bytes(Bytes::from_static(b"head")));
        outgoing.push(region(5, 2_000_000));
        outgoing.push(Chunk::Bytes(Bytes::from_static(b"mid")));
        outgoing.push(Chunk::Bytes(Bytes::from_static(b"dle")));
        outgoing.push(region(2_999_999, 1));
        outgoing.push(region(0, 0));
        let mut expected = b"head".to_vec();
        expected.extend_from_slice(&contents[5..2_000_005]);
        expected.extend_from_slice(b"middle");
        expected.push(contents[2_999_999]);
        assert_eq!(outgoing.len(), expected.len());

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("bound");
        let address = listener.local_addr().expect("it has one");
        let reading = tokio::spawn(async move {
            let mut stream = TcpStream::connect(address).await.expect("connected");
            let mut received = Vec::new();
            stream.read_to_end(&mut received).await.expect("read");
            received
        });
        let (stream, _) = listener.accept().await.expect("accepted");
        let mut counted = 0;
        outgoing
            .send(&stream, |sent| counted += sent)
            .await
            .expect("sent");
        drop(stream);
        assert_eq!(counted, expected.len());
        assert_eq!(outgoing.len(), 0);
        let received = reading.await.expect("no panic");
        assert!(received == expected, "sendable: {sendable}");
    }
}

#[tokio::test]
async fn a_file_that_ends_before_its_region_ends_the_connection_instead_of_the_reply() {
    use super::send::Outgoing;
    use odradek_protocol::response::{Chunk, FileRegion};

    for sendable in [true, false] {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(10).expect("sized");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("bound");
        let address = listener.local_addr().expect("it has one");
        let _client = TcpStream::connect(address).await.expect("connected");
        let (stream, _) = listener.accept().await.expect("accepted");
        let mut outgoing = Outgoing::default();
        outgoing.push(Chunk::Region(FileRegion {
            source: Arc::new(FileSource { file, sendable }),
            position: 4,
            len: 100,
        }));
        let error = outgoing.send(&stream, |_| {}).await.expect_err("too short");
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    }
}
