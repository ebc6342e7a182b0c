//! Requests to other nodes, and who may make them.

use super::super::hello::answer_length;
use super::*;

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
    let listener = bind_at(place.port).await;
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
