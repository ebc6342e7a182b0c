//! The promises of the runtime, with the group coordinator as the state machine.

use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::ids::{PartitionIndex, TimestampMs, TopicId};

use super::memory_log::MemoryLog;
use super::{LogFailure, Shard, ShardError, ShardOptions};
use crate::clock::ManualClock;
use crate::groups::bench::{Bench, GROUP, protocol};
use crate::groups::config::CoordinatorConfig;
use crate::groups::coordinator::GroupCoordinator;
use crate::groups::error::GroupError;
use crate::groups::messages::{
    CommitPartition, Described, FetchRequest, FetchTopic, GroupReply, GroupRequest, JoinRequest,
    SyncRequest,
};
use crate::groups::names::{GenerationId, GroupId, MemberId, TopicName};
use crate::partitions::log_dir::Room;

fn start(log: &Arc<MemoryLog>, options: ShardOptions) -> Shard<GroupCoordinator> {
    Shard::start(
        || GroupCoordinator::new(CoordinatorConfig::default()),
        Arc::clone(log) as _,
        Arc::new(ManualClock::starting_at(TimestampMs::new(1_000))),
        options,
    )
}

async fn active(log: &Arc<MemoryLog>) -> Shard<GroupCoordinator> {
    let shard = start(log, ShardOptions::default());
    until_active(&shard).await;
    shard
}

async fn until_active(shard: &Shard<GroupCoordinator>) {
    while !shard.is_active() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn commit(partition: i32, offset: i64) -> GroupRequest {
    let outside = GenerationId::new(-1);
    let member = MemberId::new("");
    GroupRequest::Commit(Bench::commit_request(
        &member, outside, "t", partition, offset,
    ))
}

fn fetch(partition: i32) -> GroupRequest {
    GroupRequest::Fetch(FetchRequest {
        require_stable: false,
        group: GroupId::new(GROUP),
        member: None,
        topics: Some(vec![FetchTopic {
            topic: TopicName::new("t"),
            topic_id: TopicId::ZERO,
            partitions: vec![PartitionIndex::new(partition)],
        }]),
    })
}

fn offset_of(reply: Result<GroupReply, ShardError>) -> Option<i64> {
    match reply {
        Ok(GroupReply::Fetch(Ok(topics))) => topics[0].partitions[0]
            .1
            .as_ref()
            .map(|found| found.offset.get()),
        other => panic!("{other:?} answers a fetch"),
    }
}

/// Starts a call, and lets it get as far as it gets.
async fn started(
    shard: &Shard<GroupCoordinator>,
    request: GroupRequest,
) -> tokio::task::JoinHandle<Result<GroupReply, ShardError>> {
    let shard = shard.clone();
    let call = tokio::spawn(async move { shard.call(request).await });
    tokio::time::sleep(Duration::from_millis(1)).await;
    call
}

#[tokio::test(start_paused = true)]
async fn no_reply_leaves_before_what_it_tells_of_is_committed() {
    let log = Arc::new(MemoryLog::new());
    let shard = active(&log).await;
    log.hold();
    let first = started(&shard, commit(0, 10)).await;
    let second = started(&shard, commit(0, 11)).await;
    let read = started(&shard, fetch(0)).await;
    assert!(!first.is_finished() && !second.is_finished() && !read.is_finished());
    log.commit(1);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(first.is_finished());
    assert!(!second.is_finished() && !read.is_finished());
    log.commit(1);
    assert!(second.await.expect("no panic").is_ok());
    assert_eq!(offset_of(read.await.expect("no panic")), Some(11));
}

#[tokio::test(start_paused = true)]
async fn requests_are_refused_until_the_log_has_been_read() {
    let log = Arc::new(MemoryLog::new());
    let shard = active(&log).await;
    assert!(shard.call(commit(0, 7)).await.is_ok());
    drop(shard);
    log.make_unreadable(true);
    let shard = start(&log, ShardOptions::default());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(shard.call(fetch(0)).await, Err(ShardError::Loading));
    assert!(shard.is_loading());
    log.make_unreadable(false);
    until_active(&shard).await;
    assert_eq!(offset_of(shard.call(fetch(0)).await), Some(7));
}

#[tokio::test(start_paused = true)]
async fn who_waits_at_a_coordinator_that_resigns_hears_of_it_at_once() {
    let log = Arc::new(MemoryLog::new());
    let shard = active(&log).await;
    log.hold();
    let waiting = started(&shard, commit(0, 1)).await;
    // A handle is left, as where a request is being handled.
    shard.clone().resign();
    let told = tokio::time::timeout(Duration::from_millis(10), waiting).await;
    let told = told.expect("at once").expect("no panic");
    assert_eq!(told, Err(ShardError::NotCoordinator));
    assert!(!shard.is_active() && !shard.is_loading());
    assert_eq!(shard.call(fetch(0)).await, Err(ShardError::NotCoordinator));
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_is_taken_back_and_one_that_survived_is_not() {
    let log = Arc::new(MemoryLog::new());
    let shard = active(&log).await;
    assert!(shard.call(commit(0, 1)).await.is_ok());
    log.hold();
    let survives = started(&shard, commit(1, 2)).await;
    let lost = started(&shard, commit(0, 3)).await;
    let read = started(&shard, fetch(0)).await;
    log.fail(LogFailure::Unavailable, 1);
    let unavailable = Err(ShardError::Unavailable);
    assert_eq!(survives.await.expect("no panic"), unavailable);
    assert_eq!(lost.await.expect("no panic"), unavailable);
    assert_eq!(read.await.expect("no panic"), unavailable);
    assert_eq!(shard.call(fetch(0)).await, Err(ShardError::Loading));
    log.release();
    until_active(&shard).await;
    assert_eq!(offset_of(shard.call(fetch(0)).await), Some(1));
    assert_eq!(offset_of(shard.call(fetch(1)).await), Some(2));
    assert!(shard.call(commit(0, 4)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_write_of_unknown_fate_is_waited_for_before_anything_is_answered() {
    let log = Arc::new(MemoryLog::new());
    let shard = active(&log).await;
    log.hold();
    let unknown = started(&shard, commit(0, 5)).await;
    log.lose_track();
    assert_eq!(
        unknown.await.expect("no panic"),
        Err(ShardError::Unavailable)
    );
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(shard.call(fetch(0)).await, Err(ShardError::Loading));
    log.release();
    until_active(&shard).await;
    assert_eq!(offset_of(shard.call(fetch(0)).await), Some(5));
}

/// The disk stood still, a commit was given up before it was in the log, and the shard loaded anew
/// without it. When it was written after all, the log said what the state did not: the next coordinator
/// had members taken out that this one had seen come back.
#[tokio::test(start_paused = true)]
async fn a_write_that_is_taken_and_not_in_the_log_yet_is_waited_for_too() {
    let log = Arc::new(MemoryLog::new());
    let shard = active(&log).await;
    log.stall();
    let given_up = shard.call(commit(0, 5)).await;
    assert_eq!(given_up, Err(ShardError::Unavailable));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(shard.call(fetch(0)).await, Err(ShardError::Loading));
    log.go_on();
    until_active(&shard).await;
    assert_eq!(offset_of(shard.call(fetch(0)).await), Some(5));
}

#[tokio::test(start_paused = true)]
async fn a_shard_whose_partition_is_led_elsewhere_ends() {
    let log = Arc::new(MemoryLog::new());
    let shard = active(&log).await;
    log.hold();
    let waiting = started(&shard, commit(0, 1)).await;
    log.fail(LogFailure::NotLeader, 0);
    assert_eq!(
        waiting.await.expect("no panic"),
        Err(ShardError::NotCoordinator)
    );
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(shard.call(fetch(0)).await, Err(ShardError::NotCoordinator));
    assert!(!shard.is_loading() && !shard.is_active());
}

#[tokio::test(start_paused = true)]
async fn a_shard_on_a_failed_disk_ends_while_loading() {
    let log = Arc::new(MemoryLog::new());
    log.refuse(Some(LogFailure::Storage));
    let shard = start(&log, ShardOptions::default());
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(shard.call(fetch(0)).await, Err(ShardError::NotCoordinator));
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_bounded_and_the_rest_is_turned_away() {
    let log = Arc::new(MemoryLog::new());
    let options = ShardOptions {
        mailbox_len: 2,
        max_in_flight: 1,
        ..ShardOptions::default()
    };
    let shard = start(&log, options);
    until_active(&shard).await;
    log.hold();
    let mut calls = Vec::new();
    for offset in 0..3 {
        calls.push(started(&shard, commit(0, offset)).await);
    }
    assert_eq!(shard.call(commit(0, 3)).await, Err(ShardError::Unavailable));
    assert_eq!(log.appends(), 1);
    log.release();
    for call in calls {
        assert!(call.await.expect("no panic").is_ok());
    }
    assert_eq!(offset_of(shard.call(fetch(0)).await), Some(2));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_shard_fails_those_who_wait() {
    let log = Arc::new(MemoryLog::new());
    let shard = active(&log).await;
    let joining = started(&shard, GroupRequest::Join(join_request())).await;
    drop(shard);
    // The call itself holds a handle; the reply comes when the rebalance delay is over.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(joining.is_finished());
}

fn join_request() -> JoinRequest {
    JoinRequest {
        group: GroupId::new(GROUP),
        member: MemberId::new(""),
        instance: None,
        fresh_member: MemberId::new("fresh"),
        client_id: "client".to_owned(),
        client_host: "/127.0.0.1".to_owned(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        protocol_type: "consumer".to_owned(),
        protocols: vec![protocol("range", &["t"])],
        member_id_required: false,
        can_skip_assignment: true,
        reason: String::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn timers_run_on_the_runtimes_clock() {
    let log = Arc::new(MemoryLog::new());
    let shard = active(&log).await;
    let before = tokio::time::Instant::now();
    let reply = shard.call(GroupRequest::Join(join_request())).await;
    let waited = before.elapsed();
    assert!(matches!(reply, Ok(GroupReply::Join(joined)) if joined.error.is_none()));
    assert_eq!(
        waited.as_millis() / 100,
        30,
        "group.initial.rebalance.delay.ms"
    );
}

#[tokio::test(start_paused = true)]
async fn many_records_are_split_into_batches_that_the_log_takes() {
    let log = Arc::new(MemoryLog::with_max_batch_bytes(2_000));
    let shard = active(&log).await;
    let GroupRequest::Commit(mut request) = commit(0, 1) else {
        panic!("not a commit");
    };
    let one = request.topics[0].partitions[0].clone();
    request.topics[0].partitions = (0..1_000)
        .map(|index| CommitPartition {
            partition: PartitionIndex::new(index),
            metadata: "m".repeat(usize::try_from(index % 50).unwrap_or(0)),
            ..one.clone()
        })
        .collect();
    let Ok(GroupReply::Commit(Ok(results))) = shard.call(GroupRequest::Commit(request)).await
    else {
        panic!("not committed");
    };
    assert_eq!(results[0].len(), 1_000);
    assert!(log.appends() > 20, "{}", log.appends());
    drop(shard);
    let shard = active(&log).await;
    assert_eq!(offset_of(shard.call(fetch(999)).await), Some(1));
}

/// Has a member join, and returns what it goes on with.
async fn joined(shard: &Shard<GroupCoordinator>) -> SyncRequest {
    let Ok(GroupReply::Join(joined)) = shard.call(GroupRequest::Join(join_request())).await else {
        panic!("not joined");
    };
    SyncRequest {
        group: GroupId::new(GROUP),
        member: joined.member,
        instance: None,
        generation: joined.generation,
        protocol_type: None,
        protocol: None,
        assignments: Vec::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_survives_a_restart_of_its_coordinator() {
    let log = Arc::new(MemoryLog::new());
    let shard = active(&log).await;
    let sync = joined(&shard).await;
    assert!(matches!(
        shard.call(GroupRequest::Sync(sync.clone())).await,
        Ok(GroupReply::Sync(Ok(_)))
    ));
    drop(shard);
    let shard = active(&log).await;
    assert!(matches!(
        shard.call(GroupRequest::Sync(sync.clone())).await,
        Ok(GroupReply::Sync(Ok(_)))
    ));
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(matches!(
        shard.call(GroupRequest::Sync(sync)).await,
        Ok(GroupReply::Sync(Err(GroupError::UnknownMember)))
    ));
}

/// Offset commits used up what was kept free on the disk, and the log directory went offline.
#[tokio::test(start_paused = true)]
async fn a_shard_on_a_disk_that_is_nearly_full_takes_no_commits_and_goes_on() {
    let log = Arc::new(MemoryLog::new());
    let shard = active(&log).await;
    assert!(shard.call(commit(0, 1)).await.is_ok());
    let join = || GroupRequest::Join(join_request());
    let tombstone = || GroupRequest::Delete(GroupId::new(GROUP));
    let refused = |reply| matches!(reply, Ok(GroupReply::Commit(Err(GroupError::NotAvailable))));
    log.set_room(Room::Scarce);
    let written = log.appends();
    assert!(refused(shard.call(commit(0, 2)).await));
    let joined = shard.call(join()).await;
    assert!(
        matches!(joined, Ok(GroupReply::Join(reply)) if reply.error == Some(GroupError::NotAvailable))
    );
    assert_eq!(log.appends(), written);
    assert_eq!(offset_of(shard.call(fetch(0)).await), Some(1));
    log.set_room(Room::Exhausted);
    for request in [commit(0, 2), join(), tombstone()] {
        assert_eq!(shard.call(request).await, Err(ShardError::Unavailable));
    }
    assert_eq!(offset_of(shard.call(fetch(0)).await), Some(1));
    assert!(shard.is_active(), "it need not load anew");
    log.set_room(Room::Scarce);
    let deleted = shard.call(tombstone()).await;
    assert!(matches!(deleted, Ok(GroupReply::Delete(Ok(())))));
    assert!(log.appends() > written);
    log.set_room(Room::Enough);
    assert!(shard.call(commit(0, 3)).await.is_ok());
    assert_eq!(offset_of(shard.call(fetch(0)).await), Some(3));
}

#[tokio::test(start_paused = true)]
async fn timers_wait_until_there_is_room_to_write_what_comes_of_them() {
    let log = Arc::new(MemoryLog::new());
    let shard = active(&log).await;
    let sync = joined(&shard).await;
    let synced = shard.call(GroupRequest::Sync(sync)).await;
    assert!(matches!(synced, Ok(GroupReply::Sync(Ok(_)))));
    let is_stable = |reply| matches!(reply, Ok(GroupReply::Describe(Described::Classic(group))) if group.state == "Stable");
    let describe = || GroupRequest::Describe(GroupId::new(GROUP));
    let written = log.appends();
    log.set_room(Room::Exhausted);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(is_stable(shard.call(describe()).await));
    assert_eq!(log.appends(), written);
    log.set_room(Room::Scarce);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(
        !is_stable(shard.call(describe()).await),
        "its session is over"
    );
    assert!(log.appends() > written);
}
