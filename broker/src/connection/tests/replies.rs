//! In which order requests begin and replies leave.

use super::*;

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
