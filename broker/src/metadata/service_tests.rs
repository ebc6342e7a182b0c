//! The service on a real log in a temporary directory.

use std::path::Path;

use odradek_protocol::ids::{TimestampMs, TopicId};
use odradek_raft::network::NoNetwork;
use odradek_raft::{DataDir, RaftNodeOptions};
use odradek_storage::disk::Disk;
use odradek_storage::flush::{Flusher, FlusherOptions};
use odradek_storage::{LogDirHealth, RealDisk};

use super::super::checkpoint::fetch::NoSource;
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
    start_with(dir, CheckpointRules::default()).await
}

type Opened = (
    Arc<RaftNode>,
    Arc<LogDirHealth>,
    Result<Arc<MetadataService>, MetadataError>,
);

async fn open_service(dir: &Path, checkpoints: CheckpointRules) -> Opened {
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
        disk: RealDisk::shared(),
        checkpoints,
        source: Arc::new(NoSource),
    };
    let service = MetadataService::open(&raft, options).await;
    (raft, health, service)
}

async fn start_with(dir: &Path, checkpoints: CheckpointRules) -> Node {
    let (raft, health, service) = open_service(dir, checkpoints).await;
    let service = service.expect("metadata opens");
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

/// Topics made and removed one by one, with a checkpoint every few of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_has_been_written_down_is_short_and_a_start_knows_all_that_it_said() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let often = CheckpointRules {
        bytes_between: 16 << 10,
        interval: None,
    };
    let mut image = Arc::default();
    for round in 0..3_u8 {
        let node = start_with(dir.path(), often).await;
        let found = node.service.image();
        assert_eq!(found, image);
        for number in 0..200_u8 {
            let mut id = [round; 16];
            id[0] = number;
            let name = format!("{}-{number}", "long-name".repeat(12));
            let made = MetadataRecord::Topic(TopicRecord {
                name,
                topic_id: TopicId::from_bytes(id),
            });
            let gone = MetadataRecord::RemoveTopic(TopicId::from_bytes(id));
            for record in [made, gone] {
                let done = node.service.run(|_| (vec![record], ())).await;
                done.expect("carried out");
            }
        }
        let log = node.service.group();
        let is_short =
            || log.offsets().log_start.offset() > Offset::ZERO && log.log_size_bytes() < 64 << 10;
        for _ in 0..500 {
            if is_short() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(
            is_short(),
            "{} bytes from {:?} on",
            log.log_size_bytes(),
            log.offsets()
        );
        let kept = node.service.checkpoints().list().await.expect("listed");
        assert_eq!(kept.len(), 2);
        assert!(log.offsets().log_start.offset() <= kept[0].end);
        image = node.service.image();
        node.raft.shutdown().await.expect("stops");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_checkpoint_costs_a_longer_replay_and_both_a_start() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let often = CheckpointRules {
        bytes_between: 1,
        interval: None,
    };
    let node = start_with(dir.path(), often).await;
    for number in 0..100 {
        let record = topic(&format!("{}-{number}", "long-name".repeat(12)), number);
        let done = node.service.run(|_| (vec![record], ())).await;
        done.expect("carried out");
    }
    let log = node.service.group();
    for _ in 0..500 {
        if log.reader().log_start() > Offset::ZERO {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(log.reader().log_start() > Offset::ZERO);
    let image = node.service.image();
    let mut kept = Vec::new();
    for _ in 0..500 {
        kept = node.service.checkpoints().list().await.expect("listed");
        if kept
            .last()
            .is_some_and(|last| last.end == image.next_offset())
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    node.raft.shutdown().await.expect("stops");
    drop(node);
    let log_dir = dir.path().join(format!("{CLUSTER_METADATA}-0"));
    // The oldest may have been removed since they were listed.
    kept.retain(|id| log_dir.join(id.file_name()).exists());
    for (damaged, id) in kept.iter().rev().enumerate() {
        let path = log_dir.join(id.file_name());
        let mut bytes = std::fs::read(&path).expect("read");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes).expect("written");
        let rare = CheckpointRules::default();
        if damaged == 0 {
            let node = start_with(dir.path(), rare).await;
            assert_eq!(node.service.image(), image);
            node.raft.shutdown().await.expect("stops");
        } else {
            let opened = open_service(dir.path(), rare).await.2;
            let error = opened.expect_err("what is before the log is lost");
            assert!(error.to_string().contains("no checkpoint"), "{error}");
        }
    }
}
