//! What those who do not belong to the cluster may do, and what nobody may.

use super::*;
use crate::peer::message::Join;

/// A cluster with a partition that is led, and with what would harm it.
struct Scene {
    cluster: Cluster,
    groups: Vec<Arc<Group>>,
    next: i64,
}

impl Scene {
    async fn set() -> Self {
        let cluster = Cluster::start().await;
        for it in &cluster.nodes {
            it.service.set_service(Arc::new(Waits::default()));
        }
        let groups = cluster.open(0).await;
        let mut scene = Self {
            cluster,
            groups,
            next: 0,
        };
        scene.goes_on().await;
        scene
    }

    /// The same leader goes on in its term, and all follow it.
    async fn goes_on(&mut self) {
        let lead = leader(&self.groups).await;
        let epochs = |groups: &[Arc<Group>]| -> Vec<_> {
            groups.iter().map(|it| it.leadership().epoch()).collect()
        };
        let before = epochs(&self.groups);
        assert_eq!(produce(&lead, 10).await, Offset::new(self.next));
        self.next += 1;
        committed(&self.groups, Offset::new(self.next)).await;
        let after = epochs(&self.groups);
        assert!(
            before
                .iter()
                .zip(&after)
                .all(|(a, b)| self.next == 1 || a == b)
        );
        assert!(after.iter().all(|it| *it == after[0]), "{after:?}");
    }

    fn follower(&self) -> i32 {
        let follows = |group: &&Arc<Group>| !group.leadership().is_ready_leader();
        let at = self
            .groups
            .iter()
            .position(|it| follows(&it))
            .expect("two follow");
        at as i32 + 1
    }

    /// What a follower answers to these frames until it has nothing more to say.
    async fn answer(&self, from: &LocalNode, frames: &[BytesMut]) -> Answer {
        let to = self.follower();
        let address = &self.cluster.node(to).address;
        let mut stream = say_hello(address, from, to, Purpose::Append).await;
        for frame in frames {
            // It may be closed already.
            let _ = stream.write_all(frame).await;
        }
        let mut answer = vec![0; 9];
        let read = tokio::time::timeout(Duration::from_secs(5), stream.read_exact(&mut answer));
        match read.await.expect("closed or answered") {
            Err(_) => Answer::Closed,
            Ok(_) => {
                let length = u32::from_be_bytes(answer[..4].try_into().expect("four"));
                let mut body = vec![0; length as usize - 5];
                stream.read_exact(&mut body).await.expect("the rest of it");
                Answer::Frame(answer[4], body)
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Closed,
    Frame(u8, Vec<u8>),
}

/// A stream is closed: the group is not there, or not for this node.
fn not_served() -> Answer {
    Answer::Frame(8, vec![1])
}

fn open() -> BytesMut {
    let mut body = BytesMut::new();
    wire::put_group_key(&mut body, key(0));
    frame(3, &body)
}

fn append(leader: i32, term: u64) -> BytesMut {
    frame(4, &append_bytes(leader, term, 1, 10))
}

/// A candidate, or a leader that hands over to node 1, of that term.
fn call(kind: u8, node: i32, term: u64) -> BytesMut {
    let mut body = BytesMut::new();
    body.put_u8(kind);
    wire::put_group_key(&mut body, key(0));
    body.put_u64(term);
    body.put_u64(node as u64);
    body.put_u8(u8::from(kind == TRANSFER));
    if kind == TRANSFER {
        body.put_u64(1);
    }
    // Last entry: of that term, far ahead.
    body.put_u8(1);
    body.put_u64(term);
    body.put_u64(1_000);
    if kind != TRANSFER {
        body.put_u8(1);
    }
    frame(1, &body)
}

const VOTE: u8 = 1;
const TRANSFER: u8 = 4;

fn ask(request: &PeerRequest) -> BytesMut {
    let mut body = BytesMut::new();
    super::super::call::put_peer(&mut body, request);
    frame(1, &body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_names_no_cluster_may_ask_to_join_and_nothing_else() {
    let mut scene = Scene::set().await;
    let stranger = local(9, "nine", None);
    for forbidden in [
        vec![open(), append(9, 50)],
        vec![call(VOTE, 9, 50)],
        vec![call(TRANSFER, 9, 50)],
        vec![ask(&wait_request(0))],
    ] {
        assert_eq!(scene.answer(&stranger, &forbidden).await, Answer::Closed);
    }
    let join = PeerRequest::Join(Join {
        directory: Uuid::from_bytes([1; 16]),
        voters: vec![],
    });
    for allowed in [ask(&join), ask(&PeerRequest::Quorum)] {
        let answer = scene.answer(&stranger, &[allowed]).await;
        // It is asked what it cannot answer.
        assert!(matches!(answer, Answer::Frame(2, _)), "{answer:?}");
    }
    scene.goes_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_leads_a_group_in_the_name_of_another_or_without_a_vote_in_it() {
    let mut scene = Scene::set().await;
    let stranger = local(9, "nine", Some(CLUSTER));
    // In the name of a node that does not exist, and of one that does.
    for name in [77, 1, 2, 3] {
        for message in [
            vec![open(), append(name, 50)],
            vec![call(VOTE, name, 50)],
            vec![call(TRANSFER, name, 50)],
        ] {
            assert_eq!(scene.answer(&stranger, &message).await, Answer::Closed);
        }
    }
    // In its own, of a group in which it has no part.
    assert_eq!(
        scene.answer(&stranger, &[open(), append(9, 50)]).await,
        not_served()
    );
    for kind in [VOTE, TRANSFER] {
        let answer = scene.answer(&stranger, &[call(kind, 9, 50)]).await;
        assert_eq!(answer, Answer::Frame(2, vec![1]));
    }
    scene.goes_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_term_that_is_no_leader_epoch_comes_no_further_than_the_wire() {
    let mut scene = Scene::set().await;
    let beyond = i32::MAX as u64 + 1;
    let stranger = local(9, "nine", Some(CLUSTER));
    for message in [
        vec![open(), append(9, beyond)],
        vec![call(VOTE, 9, beyond)],
        vec![call(TRANSFER, 9, u64::MAX)],
    ] {
        assert_eq!(scene.answer(&stranger, &message).await, Answer::Closed);
    }
    scene.goes_on().await;
}

/// Each announces a frame that is as long as frames may be, and sends a byte of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_known_sends_no_large_frame() {
    let scene = Scene::set().await;
    let mut head = BytesMut::new();
    head.put_u32(limits().frame_max_bytes as u32);
    head.put_slice(&[1, 0]);
    for stranger in [local(9, "nine", None), local(9, "nine", Some(CLUSTER))] {
        let answer = scene.answer(&stranger, &[head.clone()]).await;
        assert_eq!(answer, Answer::Closed);
    }
    let small = PeerRequest::Forward(message::Forward {
        api_key: 19,
        api_version: 7,
        client_id: None,
        principal: String::new(),
        body: Bytes::from(vec![0; 60_000]),
    });
    let stranger = local(9, "nine", Some(CLUSTER));
    let answer = scene.answer(&stranger, &[ask(&small)]).await;
    assert!(matches!(answer, Answer::Frame(2, _)), "{answer:?}");
}

#[tokio::test]
async fn a_node_that_has_come_into_a_cluster_says_so_on_new_connections() {
    let cluster = Cluster::start().await;
    let target = cluster.node(2);
    target.service.set_service(Arc::new(Waits::default()));
    let book = AddressBook::new([(node(2), target.address.clone())]);
    let peers = Peers::new(local(5, "five", None), Arc::new(book), limits());
    let refused = peers.call(node(2), wait_request(0)).await;
    assert!(matches!(refused, Err(PeerError::Lost(_))), "{refused:?}");
    // It may ask this, and is connected from now on.
    let asked = async || peers.call(node(2), PeerRequest::Quorum).await;
    let limit = Instant::now() + Duration::from_secs(10);
    while asked().await.is_err() {
        assert!(Instant::now() < limit);
    }
    assert_eq!(peers.protocol_with(node(2)), Some(PROTOCOL_MAX));
    peers.set_cluster_id(CLUSTER);
    let answer = peers.call(node(2), wait_request(0)).await;
    assert_eq!(answer.expect("an answer"), PeerReply::Done);
}

#[tokio::test]
async fn nobody_is_told_of_another_nodes_directory() {
    let cluster = Cluster::start().await;
    let target = cluster.node(2);
    let asking = Peers::new(local(4, "d", None), Arc::default(), limits());
    let told = asking
        .identify(&target.address)
        .await
        .expect("it says who it is");
    assert_eq!(told.node_id, node(2));
    assert_eq!(told.directory_id, "");
}
