//! What is read, and how much of it at a time.

use super::*;

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
