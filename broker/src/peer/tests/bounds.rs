//! What waits for other nodes is bounded, and one that is slow slows no other.

use super::super::frame::{FrameReader, Intake, Kind};
use super::super::outbox::Outbox;
use super::*;

fn intake() -> Intake {
    Intake {
        limit: 1 << 20,
        budget: MemoryBudget::new(8 << 20, 0),
        stall_limit: Duration::from_secs(5),
    }
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

/// Takes a connection's hello and lets it in.
async fn let_in(stream: &mut TcpStream, window: u32, memory: u32, frame: u32) {
    let length = stream.read_u32().await.expect("a hello");
    let mut hello = vec![0; length as usize];
    stream.read_exact(&mut hello).await.expect("a hello");
    let accepted = Accepted {
        version: 1,
        node: local(2, "two", None).identity(),
        window,
        memory,
        frame,
    };
    let welcome = Welcome::Accepted(accepted).to_frame();
    stream.write_all(&welcome).await.expect("sent");
}

/// A follower that answers every request at once, but none to partition 0.
async fn follower_that_is_slow_with_partition_0(listener: TcpListener) {
    let (mut stream, _) = listener.accept().await.expect("accepted");
    let_in(&mut stream, 400_000, 1_000_000, 1 << 20).await;
    let mut frames = FrameReader::new(intake(), BytesMut::new());
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
    let (peers, listener) = one_and_a_place_for_two(limits()).await;
    let follower = tokio::spawn(follower_that_is_slow_with_partition_0(listener));
    let network = peers.network();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_share_little_memory_and_all_come_to_their_end() {
    let tight = PeerLimits {
        stream_bytes: 30_000,
        memory_bytes: 100_000,
        queue_bytes: 20_000,
        ..limits()
    };
    let (peers, listener) = one_and_a_place_for_two(tight).await;
    let follower = tokio::spawn(follower_that_is_slow_with_partition_0(listener));
    let network = peers.network();
    let mut streams = tokio::task::JoinSet::new();
    for partition in 1..=100 {
        let count = Arc::default();
        let requests = with_pauses(counted(&count, 30, 2_000 * (partition as usize % 8)));
        let answers = network
            .append_stream(link(partition), requests)
            .await
            .expect("open");
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

/// Accepts connections and reads nothing but the hello.
async fn deaf_node(listener: TcpListener) {
    let mut open = Vec::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        let_in(&mut stream, u32::MAX, u32::MAX, 100_000).await;
        open.push(stream);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_node_that_does_not_read_is_bounded() {
    let small = PeerLimits {
        queue_bytes: 100_000,
        ..limits()
    };
    let (peers, listener) = one_and_a_place_for_two(small).await;
    let deaf = tokio::spawn(deaf_node(listener));
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
    // What it would not read at all is not sent, and costs nobody else the connection.
    let too_long = counted(&Arc::default(), 1, 100_000);
    let mut answers = network
        .append_stream(link(1), too_long)
        .await
        .expect("open");
    assert!(matches!(answers.next().await, Some(Err(_))));

    let taken = Arc::new(AtomicUsize::new(0));
    let requests = counted(&taken, 100_000, 20_000);
    let mut answers = network
        .append_stream(link(1), requests)
        .await
        .expect("open");
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

/// A node that asks for much before it reads any answer. Its answers fill this end's queue, and once they
/// have left it has to be read from again: nothing else happens on the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_answers_had_no_room_goes_on_when_they_have_left() {
    const CHUNK: usize = 1_000;
    // Far more than what the sockets of both ends hold, whatever the system's limits are.
    const MOST_CALLS: usize = 20_000_000;
    const REPLY_BYTES: usize = 10;
    let dir = tempfile::tempdir().expect("a directory");
    let small = PeerLimits {
        queue_bytes: 100_000,
        ..limits()
    };
    let it = start_node(2, dir.path(), bind().await, [], small);
    let asking = local(1, "one", Some(CLUSTER));
    let stream = say_hello(&it.address, &asking, 2, Purpose::Control).await;
    let (mut replies, mut calls) = stream.into_split();
    // Of a kind that is not known, which is answered at once.
    let call = [0, 0, 0, 6, 1, 0, 0, 0, 1, 250];
    let written = Arc::new(AtomicUsize::new(0));
    let enough = Arc::new(AtomicBool::new(false));
    let (count, stop) = (Arc::clone(&written), Arc::clone(&enough));
    let mut writing = tokio::spawn(async move {
        let chunk = call.repeat(CHUNK);
        while !stop.load(Ordering::SeqCst) && count.load(Ordering::SeqCst) < MOST_CALLS {
            calls.write_all(&chunk).await.expect("sent");
            count.fetch_add(CHUNK, Ordering::SeqCst);
        }
        calls
    });
    // It is not read from any more once its queue and both sockets are full.
    let mut before = usize::MAX;
    while before != written.load(Ordering::SeqCst) {
        before = written.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(
        before < MOST_CALLS,
        "all of it was read though no answer was taken"
    );
    enough.store(true, Ordering::SeqCst);
    let mut received = 0;
    let mut open = None;
    let mut buffer = vec![0; 1 << 20];
    while open.is_none() || received < written.load(Ordering::SeqCst) * REPLY_BYTES {
        tokio::select! {
            calls = &mut writing, if open.is_none() => open = Some(calls.expect("no panic")),
            read = replies.read(&mut buffer) => {
                let read = read.expect("read");
                assert!(read > 0, "closed");
                received += read;
            }
            () = tokio::time::sleep(Duration::from_secs(10)) => panic!("the connection stands still"),
        }
    }
}
