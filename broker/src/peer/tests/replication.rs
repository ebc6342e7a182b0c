//! Groups that replicate over the connections.

use super::*;

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
    committed(&groups, end).await;
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
    let link = link(9);
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
