use std::task::Poll;
use std::time::Duration;

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{LeaderEpoch, Offset, PartitionIndex};

use super::LookupError;
use super::directory;
use super::fixture::{Fixture, START, batch, number, partition_record, topic_id, topic_records};
use crate::fetch_plan::IsolationLevel::ReadUncommitted;
use crate::fetch_sessions::TopicRef;
use crate::metadata::records::MetadataRecord;
use crate::metadata::topic_name::CLUSTER_METADATA;
use crate::partition::{AppendOptions, OffsetSpec, PartitionError, Verification};
use crate::partitions::AlterLogDirError;
use odradek_protocol::batch::BatchOrigin;

const CLIENT: AppendOptions = AppendOptions {
    origin: BatchOrigin::Client,
    zstd_allowed: true,
    wants_append: false,
    wants_in_sync: true,
    epoch: None,
    verification: Verification::Off,
};

async fn produce(fixture: &Fixture, topic: &str, index: i32, count: i32) -> Offset {
    let appending = fixture.partition(topic, index).append(batch(count), CLIENT);
    let outcome = appending.expect("accepted").committed().await;
    outcome.expect("committed").base_offset
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn created_partitions_take_records_and_a_restart_finds_them() {
    let mut fixture = Fixture::new();
    fixture.create_topic("orders", 1, 3).await;
    for index in 0..3 {
        assert_eq!(number(produce(&fixture, "orders", index, 4).await), 0);
        assert_eq!(number(produce(&fixture, "orders", index, 2).await), 4);
    }
    let path = fixture.dir.path().join("orders-1/partition.metadata");
    let content = std::fs::read_to_string(path).expect("written");
    assert_eq!(
        content,
        format!("version: 0\ntopic_id: {}", topic_id(1)),
        "as Kafka writes it"
    );
    let fixture = fixture.restart().await;
    for index in 0..3 {
        let offsets = fixture.partition("orders", index).offsets();
        assert_eq!(offsets.high_watermark.get(), 6);
        assert_eq!(number(produce(&fixture, "orders", index, 1).await), 6);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_made_again_under_its_name_starts_empty_and_its_old_data_goes() {
    let mut fixture = Fixture::new();
    fixture.create_topic("orders", 1, 1).await;
    produce(&fixture, "orders", 0, 5).await;
    let mut records = vec![MetadataRecord::RemoveTopic(topic_id(1))];
    records.extend(topic_records("orders", 2, 1));
    fixture.change(records).await;
    assert_eq!(
        fixture.partition("orders", 0).offsets().log_end.get(),
        0,
        "nothing of the old topic shows"
    );
    assert!(
        fixture
            .manager
            .get(topic_id(1), PartitionIndex::new(0))
            .is_none()
    );
    let by_old_id = fixture
        .manager
        .lookup(&TopicRef::Id(topic_id(1)), PartitionIndex::new(0));
    assert_eq!(by_old_id.err(), Some(LookupError::UnknownTopicId));
    let mut names = Vec::new();
    for _ in 0..100 {
        names = directories(&fixture);
        if names == ["orders-0"] {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(names, ["orders-0"], "the old directory is removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_held_by_someone_survives_the_deletion_of_its_topic_as_deleted() {
    let mut fixture = Fixture::new();
    fixture.create_topic("orders", 1, 1).await;
    let partition = fixture.partition("orders", 0);
    fixture
        .change(vec![MetadataRecord::RemoveTopic(topic_id(1))])
        .await;
    let refused = partition.append(batch(1), CLIENT);
    assert!(matches!(refused.err(), Some(PartitionError::Deleted)));
    let lookup = fixture
        .manager
        .lookup(&TopicRef::Name("orders".into()), PartitionIndex::new(0));
    assert_eq!(lookup.err(), Some(LookupError::UnknownTopicOrPartition));
}

/// What goes on when the topic is deleted under it is answered as what it is. A failed disk would
/// have clients wait, and operators look for a fault that there is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_races_with_a_deletion_hears_of_a_deleted_topic_and_never_of_a_failed_disk() {
    let mut fixture = Fixture::new();
    for number in 1..=20 {
        fixture.create_topic("orders", number, 1).await;
        produce(&fixture, "orders", 0, 5).await;
        let partition = fixture.partition("orders", 0);
        let appending: Vec<_> = (0..5)
            .map(|_| partition.append(batch(1), CLIENT).expect("accepted"))
            .collect();
        let mut deleting = Box::pin(partition.delete_records(Offset::new(3)));
        let early = futures_util::poll!(deleting.as_mut());
        fixture
            .change(vec![MetadataRecord::RemoveTopic(topic_id(number))])
            .await;
        let mut outcomes = vec![match early {
            Poll::Ready(done) => done.map(|_| ()),
            Poll::Pending => deleting.await.map(|_| ()),
        }];
        for one in appending {
            outcomes.push(one.committed().await.map(|_| ()));
        }
        outcomes.push(partition.delete_records(Offset::new(4)).await.map(|_| ()));
        let lookup = OffsetSpec::Timestamp(START);
        let found = partition.list_offset(lookup, ReadUncommitted, LeaderEpoch::NONE);
        outcomes.push(found.map(|_| ()));
        for error in outcomes.into_iter().filter_map(Result::err) {
            assert_eq!(
                error.error_code(),
                ErrorCode::UnknownTopicOrPartition,
                "{error}"
            );
        }
    }
}

/// A group that ends because the broker does is led by nobody here, which is no failed disk either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_whose_group_was_closed_is_not_led_here() {
    let mut fixture = Fixture::new();
    fixture.create_topic("orders", 1, 1).await;
    produce(&fixture, "orders", 0, 5).await;
    let partition = fixture.partition("orders", 0);
    let key = partition.group().key();
    fixture.raft.close_group(key).await.expect("closes");
    let refused = partition.delete_records(Offset::new(3)).await;
    let code = refused.err().map(|error| error.error_code());
    assert_eq!(code, Some(ErrorCode::NotLeaderOrFollower));
    let ready = tokio::time::timeout(Duration::from_secs(5), partition.group().wait_until_ready());
    assert!(ready.await.expect("does not wait for ever").is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_added_to_a_topic_are_opened_beside_the_old_ones() {
    let mut fixture = Fixture::new();
    fixture.create_topic("orders", 1, 1).await;
    produce(&fixture, "orders", 0, 2).await;
    let more = vec![partition_record(topic_id(1), 1)];
    fixture.change(more).await;
    assert_eq!(number(produce(&fixture, "orders", 1, 1).await), 0);
    assert_eq!(number(produce(&fixture, "orders", 0, 1).await), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_topic_configuration_reaches_the_open_partition() {
    let mut fixture = Fixture::new();
    fixture.create_topic("orders", 1, 1).await;
    fixture
        .set_config("orders", "max.message.bytes", "100")
        .await;
    let refused = fixture.partition("orders", 0).append(batch(50), CLIENT);
    assert!(matches!(refused.err(), Some(PartitionError::Batch(_))));
    fixture.set_config("orders", "segment.bytes", "4096").await;
    let partition = fixture.partition("orders", 0);
    assert_eq!(partition.group().log_config().segment_bytes, 4096);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_of_an_unknown_topic_id_is_set_aside_at_the_start() {
    let mut fixture = Fixture::new();
    fixture.create_topic("orders", 1, 1).await;
    fixture.create_topic("gone", 2, 1).await;
    produce(&fixture, "gone", 0, 3).await;
    // The metadata says that the topic was deleted while this broker was down; of another that has
    // a directory here it never knew.
    fixture.raft.shutdown().await.expect("closes");
    let dir = fixture.dir.path().to_path_buf();
    let disk = odradek_storage::RealDisk;
    directory::create(&disk, &dir.join("foreign-0"), topic_id(7)).expect("made");
    std::fs::write(dir.join("foreign-0/00000000000000000000.log"), "x").expect("written");
    std::fs::create_dir(dir.join("half-made-0")).expect("made");
    std::fs::create_dir(dir.join("photos-delete")).expect("made");
    std::fs::create_dir(dir.join(format!("{CLUSTER_METADATA}-0"))).expect("made");
    let fixture = fixture.restart_without(topic_id(2)).await;
    let stray = directory::stray_name("foreign", PartitionIndex::new(0), topic_id(7));
    let names = directories(&fixture);
    let kept = [
        "__cluster_metadata-0",
        stray.as_str(),
        "orders-0",
        "photos-delete",
    ];
    assert_eq!(names, kept);
    assert!(dir.join(stray).join("00000000000000000000.log").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offline_log_directory_refuses_writes_and_goes_on_reading() {
    let mut fixture = Fixture::new();
    fixture.create_topic("orders", 1, 1).await;
    produce(&fixture, "orders", 0, 3).await;
    fixture.health.fail(&"disk on fire");
    let partition = fixture.partition("orders", 0);
    let refused = partition.append(batch(1), CLIENT);
    assert!(matches!(refused.err(), Some(PartitionError::Offline(_))));
    let slice = partition
        .reader()
        .read(Offset::ZERO, 1 << 20, Offset::new(3), true)
        .expect("readable");
    assert!(slice.len > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_partitions_go_where_there_are_fewest_and_a_restart_finds_them_there() {
    let mut fixture = Fixture::with_others(1);
    fixture.create_topic("orders", 1, 3).await;
    fixture.create_topic("payments", 2, 3).await;
    let counts = |fixture: &Fixture| {
        let directories = fixture.manager.directories().iter();
        directories
            .map(|directory| directory.partition_count())
            .collect::<Vec<_>>()
    };
    assert_eq!(counts(&fixture), [3, 3]);
    produce(&fixture, "orders", 1, 3).await;
    let place = |fixture: &Fixture| fixture.partition("orders", 1).group().dir().to_path_buf();
    let before = place(&fixture);
    fixture
        .change(vec![MetadataRecord::RemoveTopic(topic_id(2))])
        .await;
    let fixture = fixture.restart().await;
    assert_eq!(counts(&fixture).iter().sum::<usize>(), 3);
    assert_eq!(place(&fixture), before);
    assert_eq!(
        fixture
            .partition("orders", 1)
            .offsets()
            .high_watermark
            .get(),
        3
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_whose_directory_is_lost_goes_where_this_node_has_voted_in_it() {
    let mut fixture = Fixture::with_others(1);
    fixture.create_topic("orders", 1, 4).await;
    let place = |fixture: &Fixture, index| {
        let partition = fixture.partition("orders", index);
        partition.group().dir().to_path_buf()
    };
    let lost = [0, 1, 2].map(|index| place(&fixture, index));
    fixture.raft.shutdown().await.expect("closes");
    for dir in &lost {
        std::fs::remove_dir_all(dir).expect("removed");
    }
    // By numbers alone the second one would change places.
    let fixture = fixture.restart_as_left().await;
    assert_eq!([0, 1, 2].map(|index| place(&fixture, index)), lost);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moved_partition_is_served_from_its_new_directory_and_its_old_one_goes() {
    let mut fixture = Fixture::with_others(1);
    fixture.create_topic("orders", 1, 1).await;
    produce(&fixture, "orders", 0, 3).await;
    let before = fixture.partition("orders", 0);
    let alter = |path: &std::path::Path| {
        let at = PartitionIndex::new(0);
        fixture.manager.alter_log_dir("orders", at, path)
    };
    assert_eq!(
        alter(std::path::Path::new("/nowhere")),
        Err(AlterLogDirError::UnknownDirectory)
    );
    assert_eq!(alter(fixture.dir.path()), Ok(()), "it is there already");
    assert!(fixture.manager.moving(&before).is_none());
    assert_eq!(alter(fixture.other()), Ok(()));
    let moving = fixture.manager.moving(&before).expect("on its way");
    assert_eq!(moving.target().path(), fixture.other());
    fixture.await_moved("orders", 0).await;
    let refused = before.append(batch(1), CLIENT);
    assert!(matches!(
        refused.err(),
        Some(PartitionError::NotLeader { .. })
    ));
    assert_eq!(number(produce(&fixture, "orders", 0, 1).await), 3);
    let counts: Vec<_> = fixture
        .manager
        .directories()
        .iter()
        .map(|directory| directory.partition_count())
        .collect();
    assert_eq!(counts, [0, 1]);
    let fixture = fixture.restart().await;
    let partition = fixture.partition("orders", 0);
    assert_eq!(partition.directory().path(), fixture.other());
    assert_eq!(partition.offsets().high_watermark.get(), 4);
    assert_eq!(directories(&fixture), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_that_a_stop_has_cut_short_begins_again() {
    let mut fixture = Fixture::with_others(1);
    fixture.create_topic("orders", 1, 1).await;
    produce(&fixture, "orders", 0, 3).await;
    fixture.raft.shutdown().await.expect("closes");
    let name = directory::future_name("orders", PartitionIndex::new(0), 7);
    let future = fixture.other().join(name);
    directory::create(&odradek_storage::RealDisk, &future, topic_id(1)).expect("made");
    std::fs::write(future.join("00000000000000000000.log"), "half").expect("written");
    let fixture = fixture.restart_as_left().await;
    assert!(!future.exists());
    fixture.await_moved("orders", 0).await;
    assert_eq!(number(produce(&fixture, "orders", 0, 1).await), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_moves_while_a_directory_is_offline_and_nothing_is_made_anew_at_the_start() {
    let mut fixture = Fixture::with_others(1);
    fixture.create_topic("orders", 1, 2).await;
    let [first, second] = fixture.manager.directories() else {
        unreachable!("there are two");
    };
    second.health().fail(&"torn off");
    let at = PartitionIndex::new(0);
    let altered = fixture.manager.alter_log_dir("orders", at, first.path());
    assert_eq!(altered, Ok(()), "it is there already");
    for path in [first.path(), second.path()] {
        let altered = fixture
            .manager
            .alter_log_dir("orders", PartitionIndex::new(1), path);
        assert_eq!(altered.unwrap_err(), AlterLogDirError::Offline);
    }
    fixture.raft.shutdown().await.expect_err("one has failed");
    let fixture = fixture.restart_with_failed_others().await;
    let name: std::sync::Arc<str> = "orders".into();
    for (index, is_here) in [(0, true), (1, false)] {
        let found = fixture
            .manager
            .lookup(&TopicRef::Name(name.clone()), PartitionIndex::new(index));
        assert_eq!(found.is_ok(), is_here, "{index}");
        if let Err(error) = found {
            assert_eq!(error.error_code(), ErrorCode::KafkaStorageError);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_below_its_reserve_refuses_produce_until_there_is_room() {
    let mut fixture = Fixture::new();
    fixture.create_topic("orders", 1, 1).await;
    fixture.manager.directories()[0].check_reserve(10, 100);
    let partition = fixture.partition("orders", 0);
    let refused = partition.append(batch(1), CLIENT);
    assert!(matches!(refused.err(), Some(PartitionError::DiskReserve)));
    fixture.manager.directories()[0].check_reserve(1_000, 100);
    assert_eq!(number(produce(&fixture, "orders", 0, 1).await), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconciliation_is_announced_by_metadata_offset() {
    let mut fixture = Fixture::new();
    fixture.create_topic("orders", 1, 1).await;
    let manager = fixture.manager.clone();
    tokio::time::timeout(
        Duration::from_secs(5),
        manager.wait_until_reconciled(Offset::new(2)),
    )
    .await
    .expect("carried out already");
    let waits = tokio::time::timeout(
        Duration::from_millis(50),
        manager.wait_until_reconciled(Offset::new(3)),
    );
    assert!(waits.await.is_err());
}

fn directories(fixture: &Fixture) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(fixture.dir.path())
        .expect("listed")
        .filter_map(Result::ok)
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
