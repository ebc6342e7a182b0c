//! Bytes that no node would send.

use rand::Rng as _;

use super::*;
use crate::test_random::seeded;

#[tokio::test]
async fn random_frames_end_a_connection_and_harm_nothing() {
    let mut random = seeded();
    let cluster = Cluster::start().await;
    let groups = cluster.open(0).await;
    let lead = leader(&groups).await;
    produce(&lead, 10).await;
    // All have heard of a leader whose term is above that of the random ones.
    committed(&groups, Offset::new(1)).await;
    let target = cluster.node(2);
    let stranger = local(9, "nine", Some(CLUSTER));
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
    let stranger = local(9, "nine", Some(CLUSTER));
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
        &super::super::hello::API_KEY.to_be_bytes(),
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
