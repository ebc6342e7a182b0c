//! How connections end, and how many there may be.

use super::*;

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
