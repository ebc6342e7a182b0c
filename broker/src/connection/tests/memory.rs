//! Frames that are announced and do not come, or come slowly: whose memory it is then.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{Fixture, ask, frame, limits, options, read_reply, start, start_with};
use crate::memory::MemoryBudget;
use crate::server::ServerOptions;

#[tokio::test]
async fn half_frames_of_killed_clients_leave_no_memory_and_no_connection() {
    let fixture = start(options()).await;
    let mut clients = Vec::new();
    for _ in 0..200 {
        let mut stream = fixture.connect().await;
        let request = frame(1, &vec![0; 200_000]);
        stream.write_all(&request[..50_000]).await.expect("sent");
        clients.push(stream);
    }
    fixture
        .until("memory is reserved for half frames", |fixture| {
            fixture.budget.request_bytes_in_use() > 12 << 20
        })
        .await;
    drop(clients);
    fixture
        .until("all of it came back", |fixture| {
            fixture.budget.request_bytes_in_use() == 0 && fixture.connections.open() == 0
        })
        .await;
}

/// A client that has announced a frame of four megabytes and sends `sent` bytes of it.
async fn stalled(fixture: &Fixture, sent: usize) -> TcpStream {
    let mut stream = fixture.connect().await;
    let large = frame(1, &vec![0; (4 << 20) - 8]);
    stream.write_all(&large[..sent]).await.expect("sent");
    stream
}

/// Forty of those hold up nobody who sends.
async fn forty_that_stall_after(sent: usize) {
    let budget = MemoryBudget::new(32 << 20, 4 << 20);
    let fixture = start_with(options(), limits(100, 100), budget).await;
    let mut stalling = Vec::new();
    for _ in 0..40 {
        stalling.push(stalled(&fixture, sent).await);
    }
    fixture
        .until("all are connected", |fixture| {
            fixture.connections.open() == 40
        })
        .await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    for correlation in 2..7 {
        let mut sending = fixture.connect().await;
        let before = Instant::now();
        let large = frame(correlation, &vec![0; 3 << 20]);
        sending.write_all(&large).await.expect("sent");
        assert_eq!(read_reply(&mut sending).await, Some((correlation, 4)));
        let took = before.elapsed();
        assert!(took < Duration::from_secs(2), "{took:?} after {sent} bytes");
    }
    // The one that was first in line, if any, has to go.
    assert!(fixture.connections.open() >= 39);
    drop(stalling);
    fixture
        .until("all of their memory came back", |fixture| {
            fixture.budget.request_bytes_in_use() == 0
        })
        .await;
}

#[tokio::test]
async fn forty_large_frames_of_which_nothing_comes_hold_up_nobody_who_sends() {
    forty_that_stall_after(12).await;
}

#[tokio::test]
async fn forty_large_frames_that_stall_at_their_start_hold_up_nobody_who_sends() {
    forty_that_stall_after(10_000).await;
}

#[tokio::test]
async fn forty_large_frames_that_stall_further_on_hold_up_nobody_who_sends() {
    // Each gets a megabyte, which is more than there is for all.
    forty_that_stall_after(100_000).await;
}

/// A request that keeps what is kept apart of the memory for large frames, for longer than any test takes.
async fn keep_the_spare(fixture: &Fixture, bytes: usize) -> TcpStream {
    let before = fixture.scripted.started.load(Ordering::SeqCst);
    let mut stream = fixture.connect().await;
    let mut body = vec![0; bytes];
    body[0] = ask::LATER_FOREVER;
    stream.write_all(&frame(9, &body)).await.expect("sent");
    fixture
        .until("it is read although the rest is taken", |fixture| {
            fixture.scripted.started.load(Ordering::SeqCst) > before
        })
        .await;
    stream
}

#[tokio::test]
async fn who_stalls_inside_a_frame_keeps_its_memory_only_until_others_need_it() {
    let options = ServerOptions {
        stall_limit: Duration::from_millis(50),
        ..options()
    };
    let budget = MemoryBudget::new(4 << 20, 4 << 20);
    let fixture = start_with(options, limits(100, 100), budget).await;
    let mut stalling = stalled(&fixture, 1_000_000).await;
    fixture
        .until("its memory is reserved", |fixture| {
            fixture.budget.request_bytes_in_use() >= 1 << 20
        })
        .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(fixture.connections.open(), 1, "nobody needed its memory");

    let _busy = keep_the_spare(&fixture, 2 << 20).await;
    let mut sending = fixture.connect().await;
    sending
        .write_all(&frame(2, &vec![0; 900_000]))
        .await
        .expect("sent");
    assert_eq!(read_reply(&mut sending).await, Some((2, 4)));
    assert_eq!(read_reply(&mut stalling).await, None);
}

#[tokio::test]
async fn who_gave_way_gets_on_when_it_sends_again() {
    let budget = MemoryBudget::new(4 << 20, 4 << 20);
    let fixture = start_with(options(), limits(100, 100), budget).await;
    let mut pausing = fixture.connect().await;
    let large = frame(1, &vec![0; 1_200_000]);
    let (first, rest) = large.split_at(200_000);
    pausing.write_all(first).await.expect("sent");
    fixture
        .until("its memory is reserved", |fixture| {
            fixture.budget.request_bytes_in_use() >= 1 << 20
        })
        .await;
    let _busy = keep_the_spare(&fixture, 2 << 20).await;
    let mut sending = fixture.connect().await;
    let other = frame(2, &vec![0; 900_000]);
    sending.write_all(&other).await.expect("sent");
    assert_eq!(read_reply(&mut sending).await, Some((2, 4)));
    assert_eq!(fixture.connections.open(), 3, "nobody had to go");
    pausing.write_all(rest).await.expect("sent");
    assert_eq!(read_reply(&mut pausing).await, Some((1, 4)));
}

#[tokio::test]
async fn who_is_first_in_line_and_stalls_gives_way_to_the_next() {
    let budget = MemoryBudget::new(256 << 10, 4 << 20);
    let fixture = start_with(options(), limits(100, 100), budget).await;
    // One keeps the pool, as far as frames of a hundred thousand bytes go, the other is first in line.
    let mut busy = fixture.connect().await;
    let mut body = vec![0; 100_000];
    body[0] = ask::LATER_FOREVER;
    busy.write_all(&frame(1, &body)).await.expect("sent");
    fixture
        .until("it has started", |fixture| {
            fixture.scripted.started.load(Ordering::SeqCst) == 1
        })
        .await;
    let mut stalling = stalled(&fixture, 10_000).await;
    fixture
        .until("its memory is reserved", |fixture| {
            fixture.budget.request_bytes_in_use() > 4 << 20
        })
        .await;
    let mut sending = fixture.connect().await;
    let large = frame(2, &vec![0; 100_000]);
    sending.write_all(&large).await.expect("sent");
    let reply = tokio::time::timeout(Duration::from_secs(10), read_reply(&mut sending)).await;
    assert_eq!(reply, Ok(Some((2, 4))));
    assert_eq!(read_reply(&mut stalling).await, None);
}

#[tokio::test]
async fn who_trickles_a_frame_keeps_its_memory_only_until_others_need_it() {
    let options = ServerOptions {
        stall_limit: Duration::from_millis(100),
        ..options()
    };
    let budget = MemoryBudget::new(256 << 10, 4 << 20);
    let fixture = start_with(options, limits(100, 100), budget).await;
    let mut trickling = fixture.connect().await;
    trickling.set_nodelay(true).expect("a socket");
    let large = frame(1, &vec![0; 3 << 20]);
    // More than is read before memory is asked for.
    let start = 10_000;
    trickling.write_all(&large[..start]).await.expect("sent");
    fixture
        .until("its memory is reserved", |fixture| {
            fixture.budget.request_bytes_in_use() > 0
        })
        .await;
    // Never silent for as long as the stall limit, and never done in the time of a test.
    let trickle = tokio::spawn(async move {
        for byte in &large[start..] {
            if trickling.write_all(&[*byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let _busy = keep_the_spare(&fixture, 100_000).await;
    let mut sending = fixture.connect().await;
    sending
        .write_all(&frame(2, &vec![0; 100_000]))
        .await
        .expect("sent");
    let reply = tokio::time::timeout(Duration::from_secs(10), read_reply(&mut sending)).await;
    assert_eq!(reply, Ok(Some((2, 4))));
    trickle.abort();
}
