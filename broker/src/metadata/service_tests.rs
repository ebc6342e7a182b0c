//! The service on a real log in a temporary directory.

use std::path::Path;

use odradek_protocol::ids::{TimestampMs, TopicId};
use odradek_raft::network::NoNetwork;
use odradek_raft::{DataDir, RaftNodeOptions};
use odradek_storage::disk::Disk;
use odradek_storage::flush::{Flusher, FlusherOptions};
use odradek_storage::{LogDirHealth, RealDisk};

use super::super::controller::producer_ids;
use super::super::records::TopicRecord;
use super::*;
use crate::clock::ManualClock;

const NODE: NodeId = NodeId::new(1);

struct Node {
    raft: Arc<RaftNode>,
    health: Arc<LogDirHealth>,
    service: Arc<MetadataService>,
}

async fn start(dir: &Path) -> Node {
    let disk: Arc<dyn Disk> = RealDisk::shared();
    let health = LogDirHealth::new(dir);
    let flusher = Flusher::start(&disk, Arc::clone(&health), FlusherOptions::default());
    let data_dir = DataDir {
        path: dir.to_path_buf(),
        flusher: Arc::new(flusher.expect("flusher starts")),
    };
    let options = RaftNodeOptions::new(NODE, disk, vec![data_dir], Arc::new(NoNetwork));
    let raft = RaftNode::open(options).expect("raft opens");
    let options = MetadataOptions {
        node_id: NODE,
        log_dir: dir.to_path_buf(),
        voters: vec![NODE],
        bootstrap: true,
        clock: Arc::new(ManualClock::starting_at(TimestampMs::new(1))),
    };
    let service = MetadataService::open(&raft, options)
        .await
        .expect("metadata opens");
    service.wait_until_leading().await.expect("leads");
    Node {
        raft,
        health,
        service,
    }
}

fn topic(name: &str, number: u8) -> MetadataRecord {
    MetadataRecord::Topic(TopicRecord {
        name: name.to_owned(),
        topic_id: TopicId::from_bytes([number; 16]),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_is_answered_once_it_is_in_the_image_and_outlives_a_restart() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = start(dir.path()).await;
    let done = node
        .service
        .run(|_| (vec![topic("a", 1), topic("b", 2)], "made"))
        .await
        .expect("carried out");
    assert_eq!((done.value, done.offset), ("made", Offset::new(2)));
    assert!(node.service.image().topic("b").is_some());
    let nothing = node
        .service
        .run(|image| (vec![], image.topics().len()))
        .await;
    let nothing = nothing.expect("carried out");
    assert_eq!((nothing.value, nothing.offset), (2, Offset::new(2)));
    node.raft.shutdown().await.expect("stops");

    let node = start(dir.path()).await;
    let image = node.service.image();
    assert_eq!(image.topics().len(), 2);
    assert_eq!(image.next_offset(), Offset::new(2));
    let done = node.service.run(|_| (vec![topic("c", 3)], ())).await;
    assert_eq!(done.expect("carried out").offset, Offset::new(3));
    node.raft.shutdown().await.expect("stops");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_at_the_same_time_see_one_another() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = start(dir.path()).await;
    let commands: Vec<_> = (0..40)
        .map(|_| {
            let service = Arc::clone(&node.service);
            tokio::spawn(async move {
                let allocate = |image: &MetadataImage| producer_ids::allocate(image, NODE);
                service.run(allocate).await.expect("carried out").value
            })
        })
        .collect();
    let mut firsts = Vec::new();
    for command in commands {
        let mut block = command.await.expect("runs");
        firsts.extend(block.take().map(|id| id.get()));
    }
    firsts.sort_unstable();
    let expected: Vec<i64> = (0..40).map(|block| block * 1_000).collect();
    assert_eq!(firsts, expected);
    node.raft.shutdown().await.expect("stops");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_could_not_be_replayed_are_never_written() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = start(dir.path()).await;
    let too_long = "x".repeat(2 << 20);
    for record in [
        topic(&too_long, 1),
        MetadataRecord::RemoveTopic(TopicId::ZERO),
    ] {
        let refused = node.service.run(move |_| (vec![record], ())).await;
        let code = refused.expect_err("refused").code();
        assert_eq!(code, ErrorCode::InvalidRequest);
    }
    assert_eq!(node.service.image().next_offset(), Offset::ZERO);
    let done = node.service.run(|_| (vec![topic("a", 1)], ())).await;
    assert_eq!(done.expect("carried out").offset, Offset::new(1));
    node.raft.shutdown().await.expect("stops");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_disk_failed_commands_are_refused_and_the_image_stays() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = start(dir.path()).await;
    let first = node.service.run(|_| (vec![topic("a", 1)], ())).await;
    first.expect("carried out");
    node.health.fail(&"the test says so");
    let refused = node.service.run(|_| (vec![topic("b", 2)], ())).await;
    let code = refused.expect_err("refused").code();
    assert_eq!(code, ErrorCode::KafkaStorageError);
    assert!(node.service.image().topic("b").is_none());
    assert!(node.service.image().topic("a").is_some());
}
