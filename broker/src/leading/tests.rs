use std::time::{Duration, Instant};

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{LeaderEpoch, NodeId, PartitionIndex};

use super::test_cluster::{Cluster, append, eventually};
use super::{hand_over, hand_over_all};
use crate::fetch_plan::{IsolationLevel, ReadLimit};
use crate::fetch_sessions::{FetchKey, FetchTarget, TopicRef};
use crate::metadata::controller::register_broker;
use crate::metadata::controller::unclean_elections::{self, Testimony};
use crate::metadata::image::ConfigResource;
use crate::metadata::records::{ConfigRecord, MetadataRecord};
use crate::metadata::test_support::{nodes, topic, topic_id};
use crate::partition::{OffsetSpec, Partition, Reader};
use crate::partitions::fixture::{batch, producer_batch};
use odradek_protocol::ids::Offset;
use odradek_raft::GroupKey;

fn key(number: u8, index: i32) -> GroupKey {
    GroupKey::new(topic_id(number), PartitionIndex::new(index))
}

fn set_config(cluster: &Cluster, topic: &str, name: &str, value: &str) {
    cluster.change(&[MetadataRecord::Config(ConfigRecord {
        resource_type: ConfigResource::topic(topic).kind.code(),
        resource_name: topic.to_owned(),
        name: name.to_owned(),
        value: Some(value.to_owned()),
    })]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metadata_learns_who_leads_and_who_is_in_sync() {
    let cluster = Cluster::new(3).await;
    cluster.create_topic("orders", 1, &[&[1, 2, 3]]).await;
    let (leader, partition) = cluster.leader(1, 0).await;
    let epoch = partition.require_leader().expect("leads");
    let state = cluster
        .until("the leader is reported", 1, 0, |state| {
            state.leader_epoch == epoch
        })
        .await;
    assert_eq!(state.leader, Some(NodeId::new(leader)));
    assert_eq!(state.isr, nodes(&[1, 2, 3]));
    assert_eq!(cluster.produce(1, 0, batch(3)).await, 0);
    cluster.until_identical(&[1, 2, 3], 1, 0).await;
    // Nothing changes, so nothing is told.
    let calls = cluster.metadata.calls();
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!(cluster.metadata.calls(), calls);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_of_idempotent_producers_survives_the_loss_of_their_leader() {
    let mut cluster = Cluster::new(3).await;
    cluster.create_topic("orders", 1, &[&[1, 2, 3]]).await;
    for sequence in 0..3 {
        let sent = producer_batch(7, 0, sequence * 2, 2);
        assert_eq!(cluster.produce(1, 0, sent).await, i64::from(sequence) * 2);
    }
    let (first, _) = cluster.leader(1, 0).await;
    cluster.kill(first).await;
    let (second, partition) = cluster.leader(1, 0).await;
    assert_ne!(first, second);
    // The last acknowledged batch again, as after a lost answer: its first offset, once.
    assert_eq!(cluster.produce(1, 0, producer_batch(7, 0, 4, 2)).await, 4);
    assert_eq!(partition.offsets().log_end.get(), 6);
    assert_eq!(cluster.produce(1, 0, producer_batch(7, 0, 6, 1)).await, 6);
    let out_of_order = append(&partition, producer_batch(7, 0, 9, 1)).await;
    let code = out_of_order.expect_err("a gap").error_code();
    assert_eq!(code, ErrorCode::OutOfOrderSequenceNumber);
    let epoch = partition.require_leader().expect("leads");
    cluster
        .until("the new leader is reported", 1, 0, |state| {
            state.leader == Some(NodeId::new(second)) && state.leader_epoch == epoch
        })
        .await;
    cluster.register(first, true);
    cluster
        .until("the lost broker leaves the ISR", 1, 0, |state| {
            state.isr.len() == 2
        })
        .await;
    cluster.start(first).await;
    cluster.register(first, false);
    cluster
        .until("it comes back", 1, 0, |state| state.isr.len() == 3)
        .await;
    cluster.until_identical(&[1, 2, 3], 1, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reassignment_moves_every_replica_under_load_and_the_old_data_goes() {
    let cluster = Cluster::new(5).await;
    cluster.create_topic("orders", 1, &[&[1, 2, 3]]).await;
    cluster.produce(1, 0, producer_batch(7, 0, 0, 2)).await;
    cluster.reassign(1, 0, &[4, 5, 2]);
    let mut sequence = 2;
    let done = |cluster: &Cluster| !cluster.state(1, 0).is_reassigning();
    let started = Instant::now();
    while !done(&cluster) {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "{:?}",
            cluster.state(1, 0)
        );
        let sent = producer_batch(7, 0, sequence, 2);
        let offset = cluster.produce(1, 0, sent.clone()).await;
        assert_eq!(offset, i64::from(sequence));
        assert_eq!(cluster.produce(1, 0, sent).await, offset, "sent again");
        sequence += 2;
    }
    let state = cluster.state(1, 0);
    assert_eq!(state.replicas, nodes(&[4, 5, 2]));
    cluster.until_identical(&[2, 4, 5], 1, 0).await;
    for id in [1, 3] {
        eventually("an old replica is gone", || {
            let entries = std::fs::read_dir(cluster.dir(id)).expect("readable");
            let left = entries
                .filter_map(Result::ok)
                .any(|entry| entry.file_name().to_string_lossy().starts_with("orders"));
            (!left).then_some(())
        })
        .await;
    }
    let (leader, partition) = cluster.leader(1, 0).await;
    assert!([2, 4, 5].contains(&leader));
    let voters = partition.group().membership().voters;
    assert_eq!(voters, nodes(&[2, 4, 5]).into_iter().collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reassignment_outlives_the_loss_of_its_leader_and_of_the_metadata() {
    let mut cluster = Cluster::new(4).await;
    cluster.create_topic("orders", 1, &[&[1, 2, 3]]).await;
    cluster.produce(1, 0, batch(5)).await;
    let (leader, _) = cluster.leader(1, 0).await;
    let stays = if leader == 1 { 2 } else { 1 };
    let goes = 6 - leader - stays;
    cluster.metadata.cut_off(true);
    cluster.reassign(1, 0, &[leader, stays, 4]);
    // The new replica learns meanwhile; without the metadata no voter is changed.
    let _ = cluster.replica(4, 1, 0).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    cluster.kill(leader).await;
    cluster.metadata.cut_off(false);
    let state = cluster
        .until("the reassignment is done", 1, 0, |state| {
            !state.is_reassigning()
        })
        .await;
    assert_eq!(state.replicas, nodes(&[leader, stays, 4]));
    eventually("the old replica is gone", || {
        let node = &cluster.nodes[&goes];
        node.partitions
            .get(topic_id(1), PartitionIndex::new(0))
            .is_none()
            .then_some(())
    })
    .await;
    cluster.start(leader).await;
    cluster.produce(1, 0, batch(1)).await;
    cluster.until_identical(&[leader, stays, 4], 1, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reassignment_that_is_withdrawn_leaves_the_replicas_as_they_were() {
    let mut cluster = Cluster::new(4).await;
    cluster.create_topic("orders", 1, &[&[1, 2, 3]]).await;
    cluster.produce(1, 0, batch(5)).await;
    // The new replica's broker is away, so that it never catches up.
    cluster.kill(4).await;
    cluster.reassign(1, 0, &[1, 2, 4]);
    let learner = |partition: &crate::partition::Partition| {
        let members = partition.group().membership();
        members.learners.contains(&NodeId::new(4))
    };
    let (_, partition) = cluster.leader(1, 0).await;
    eventually("it is to learn", || learner(&partition).then_some(())).await;
    cluster.reassign(1, 0, &[1, 2, 3]);
    let state = cluster
        .until("it is withdrawn", 1, 0, |state| !state.is_reassigning())
        .await;
    assert_eq!(state.replicas, nodes(&[1, 2, 3]));
    let (_, partition) = cluster.leader(1, 0).await;
    eventually("nobody learns", || (!learner(&partition)).then_some(())).await;
    cluster.produce(1, 0, batch(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_made_again_while_a_broker_was_away_starts_empty_on_it() {
    let mut cluster = Cluster::new(3).await;
    cluster.create_topic("orders", 1, &[&[1, 2, 3]]).await;
    cluster.produce(1, 0, batch(5)).await;
    cluster.until_identical(&[1, 2, 3], 1, 0).await;
    let (leader, _) = cluster.leader(1, 0).await;
    let away = if leader == 3 { 2 } else { 3 };
    cluster.kill(away).await;
    let mut records = vec![MetadataRecord::RemoveTopic(topic_id(1))];
    records.extend(topic("orders", 2, &[&[1, 2, 3]]));
    cluster.change(&records);
    assert_eq!(cluster.produce(2, 0, batch(2)).await, 0);
    cluster.start(away).await;
    cluster.until_identical(&[1, 2, 3], 2, 0).await;
    assert_eq!(cluster.produce(2, 0, batch(1)).await, 2);
    // Nothing of the old topic is left but what an operator may want to look at.
    let directories = std::fs::read_dir(cluster.dir(away)).expect("readable");
    let names = directories
        .filter_map(Result::ok)
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("orders") && !name.ends_with("-stray"));
    assert_eq!(names.collect::<Vec<_>>(), ["orders-0"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_replicas_than_a_majority_are_waited_for_where_the_topic_asks() {
    let mut cluster = Cluster::new(3).await;
    cluster.create_topic("orders", 1, &[&[1, 2, 3]]).await;
    set_config(&cluster, "orders", "min.insync.replicas", "3");
    cluster.carried_out().await;
    assert_eq!(cluster.produce(1, 0, batch(2)).await, 0);
    let (leader, partition) = cluster.leader(1, 0).await;
    eventually("the replicas are known", || partition.replication()).await;
    let away = if leader == 3 { 2 } else { 3 };
    cluster.kill(away).await;
    // In the log and committed, but one replica that is counted does not have it.
    let waiting = tokio::spawn({
        let partition = partition.clone();
        async move { append(&partition, batch(1)).await }
    });
    eventually("it is committed", || {
        (partition.offsets().high_watermark.get() == 3).then_some(())
    })
    .await;
    assert!(!waiting.is_finished());
    cluster.register(away, true);
    let refused = waiting.await.expect("runs").expect_err("too few");
    assert_eq!(
        refused.error_code(),
        ErrorCode::NotEnoughReplicasAfterAppend
    );
    let refused = append(&partition, batch(1)).await.expect_err("too few");
    assert_eq!(refused.error_code(), ErrorCode::NotEnoughReplicas);
    assert_eq!(partition.offsets().log_end.get(), 3, "nothing was written");
    cluster.start(away).await;
    cluster.register(away, false);
    let offset = cluster.produce(1, 0, batch(1)).await;
    assert_eq!(offset, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_serve_readers_near_them_up_to_what_they_know_to_be_committed() {
    let cluster = Cluster::new(3).await;
    cluster.create_topic("orders", 1, &[&[1, 2, 3]]).await;
    cluster.produce(1, 0, batch(4)).await;
    let (leader, partition) = cluster.leader(1, 0).await;
    let near = if leader == 3 { 2 } else { 3 };
    eventually("the replicas are known", || partition.replication()).await;
    let target = |offset| FetchTarget {
        key: FetchKey {
            topic: TopicRef::Name("orders".into()),
            partition: PartitionIndex::new(0),
        },
        current_leader_epoch: LeaderEpoch::NONE,
        fetch_offset: Offset::new(offset),
        last_fetched_epoch: LeaderEpoch::NONE,
        max_bytes: 1 << 20,
    };
    let all = Some(ReadLimit {
        max_bytes: 1 << 20,
        whole_first_batch: true,
    });
    let reader = Reader {
        takes_followers: true,
        near: nodes(&[near]),
    };
    let isolation = IsolationLevel::ReadUncommitted;
    let answer = eventually("the follower has it", || {
        let answer = partition.fetch(&target(0), isolation, all, &reader);
        (answer.preferred_read_replica == NodeId::new(near)).then_some(answer)
    })
    .await;
    assert!(answer.records.is_empty(), "the leader sends no data then");
    let beyond = partition.fetch(&target(9), isolation, all, &reader);
    assert_eq!(beyond.preferred_read_replica, NodeId::new(-1));

    let follower = cluster.replica(near, 1, 0).await;
    let near_reader = Reader {
        takes_followers: true,
        near: Vec::new(),
    };
    eventually("the follower knows it to be committed", || {
        let answer = follower.fetch(&target(0), isolation, all, &near_reader);
        (answer.error_code == ErrorCode::None && answer.high_watermark.get() == 4)
            .then_some(answer.records.len())
    })
    .await;
    let caught_up = follower.fetch(&target(4), isolation, all, &near_reader);
    assert_eq!(caught_up.error_code, ErrorCode::None);
    let beyond = follower.fetch(&target(5), isolation, all, &near_reader);
    assert_eq!(beyond.error_code, ErrorCode::OffsetOutOfRange);
    // Clients of before KIP-392 can only be sent to the leader.
    let old = follower.fetch(&target(0), isolation, all, &Reader::default());
    assert_eq!(old.error_code, ErrorCode::NotLeaderOrFollower);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_stops_hands_its_leaderships_over_first() {
    let cluster = Cluster::new(3).await;
    let replicas: [&[i32]; 4] = [&[1, 2, 3], &[1, 3, 2], &[2, 1, 3], &[1]];
    cluster.create_topic("orders", 1, &replicas).await;
    for index in 0..4 {
        cluster.leader(1, index).await;
    }
    let partitions = &cluster.nodes[&1].partitions;
    for index in 0..2 {
        let (leader, _) = cluster.leader(1, index).await;
        if leader != 1 {
            let from = &cluster.nodes[&leader].partitions;
            hand_over(from, key(1, index), NodeId::new(1))
                .await
                .expect("handed over");
        }
        eventually("1 leads", || {
            let partition = partitions.get(topic_id(1), PartitionIndex::new(index));
            partition.filter(|partition| partition.leadership().is_ready_leader())
        })
        .await;
    }
    let newest = || cluster.image();
    let left = hand_over_all(partitions, newest, Duration::from_secs(10)).await;
    assert_eq!(
        left, 0,
        "nobody else can lead the one with a single replica"
    );
    for index in 0..3 {
        let (leader, _) = cluster.leader(1, index).await;
        assert_ne!(leader, 1);
    }
    assert_eq!(cluster.leader(1, 3).await.0, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_stops_waits_for_no_others_that_stop_or_are_gone() {
    for others_are_gone in [false, true] {
        let mut cluster = Cluster::new(3).await;
        cluster.create_topic("orders", 1, &[&[1, 2, 3]]).await;
        let (leader, _) = cluster.leader(1, 0).await;
        for other in [1, 2, 3].into_iter().filter(|other| *other != leader) {
            if others_are_gone {
                cluster.kill(other).await;
            } else {
                let image = cluster.image();
                let stops = register_broker::stop_broker(&image, NodeId::new(other), 1, false);
                cluster.change(&stops);
            }
        }
        let partitions = &cluster.nodes[&leader].partitions;
        let begun = Instant::now();
        let newest = || cluster.image();
        let left = hand_over_all(partitions, newest, Duration::from_secs(30)).await;
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert!(left == 1 || others_are_gone, "whom would it lead to");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_leaders_at_once_are_reported_in_few_messages() {
    let cluster = Cluster::new(2).await;
    let replicas: Vec<&[i32]> = vec![&[1]; 300];
    let calls = cluster.metadata.calls();
    cluster.create_topic("orders", 1, &replicas).await;
    eventually("all are reported", || {
        let image = cluster.image();
        let topic = image.topic_by_id(topic_id(1)).expect("exists");
        let led = |epoch: LeaderEpoch| epoch > LeaderEpoch::new(0);
        let all = topic.partitions.iter().all(|state| led(state.leader_epoch));
        all.then_some(())
    })
    .await;
    let calls = cluster.metadata.calls() - calls;
    assert!(calls <= 40, "{calls} messages");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_comes_back_with_an_empty_disk_is_given_the_log_again() {
    let mut cluster = Cluster::new(3).await;
    cluster.create_topic("orders", 1, &[&[1, 2, 3]]).await;
    cluster.produce(1, 0, batch(5)).await;
    let (leader, partition) = cluster.leader(1, 0).await;
    let epoch = partition.require_leader().expect("leads");
    cluster
        .until("the leader is known", 1, 0, |state| {
            state.leader_epoch == epoch
        })
        .await;
    let away = if leader == 3 { 2 } else { 3 };
    cluster.kill(away).await;
    cluster.replace_disk(away);
    cluster.produce(1, 0, batch(2)).await;
    cluster.start(away).await;
    cluster.until_identical(&[1, 2, 3], 1, 0).await;
    assert_eq!(cluster.produce(1, 0, batch(1)).await, 7);
}

/// Too few of the others are there to take it out of the voters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_lost_its_disk_is_out_of_sync_though_it_still_has_a_vote() {
    let mut cluster = Cluster::new(3).await;
    cluster.create_topic("orders", 1, &[&[1, 2, 3]]).await;
    cluster.produce(1, 0, batch(5)).await;
    cluster.until_identical(&[1, 2, 3], 1, 0).await;
    let (leader, partition) = cluster.leader(1, 0).await;
    let epoch = partition.require_leader().expect("leads");
    cluster
        .until("all are in sync", 1, 0, |state| {
            state.leader_epoch == epoch && state.isr.len() == 3
        })
        .await;
    let lost = if leader == 3 { 2 } else { 3 };
    let other = 6 - leader - lost;
    cluster.kill(lost).await;
    cluster.replace_disk(lost);
    cluster.network.cut(NodeId::new(leader), NodeId::new(other));
    let started = Instant::now();
    cluster.start(lost).await;
    cluster
        .until("it is out of sync", 1, 0, |state| {
            !state.isr.contains(&NodeId::new(lost))
        })
        .await;
    let took = started.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    let voters = partition.group().membership().voters;
    assert!(voters.contains(&NodeId::new(lost)), "{voters:?}");
    cluster.network.heal();
    cluster.until_identical(&[1, 2, 3], 1, 0).await;
    cluster
        .until("all are in sync again", 1, 0, |state| state.isr.len() == 3)
        .await;
}

/// What the metadata leader would decide if these nodes were away, and were the ones that had most votes.
fn elect_unclean(cluster: &Cluster, away: [i32; 2], left: &Partition) {
    for id in away {
        let records = register_broker::fence(&cluster.image(), NodeId::new(id), true);
        cluster.change(&records);
    }
    let standing = Testimony::Stands(left.group().standing());
    let left = NodeId::new(6 - away.iter().sum::<i32>());
    let silent = away.map(|id| (NodeId::new(id), Testimony::Silent));
    let heard = silent.into_iter().chain([(left, standing)]).collect();
    let image = cluster.image();
    let index = PartitionIndex::new(0);
    let election = unclean_elections::elect_unclean(&image, topic_id(1), index, &heard);
    let election = election.expect("somebody is left");
    cluster.change(&election.records(&image).expect("as it was"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_without_most_of_its_voters_goes_on_and_they_follow_with_whatever_disk() {
    let mut cluster = Cluster::new(3).await;
    cluster.create_topic("orders", 1, &[&[1, 2, 3]]).await;
    cluster.produce(1, 0, batch(5)).await;
    cluster.until_identical(&[1, 2, 3], 1, 0).await;
    let (_, before) = cluster.leader(1, 0).await;
    let epoch = before.require_leader().expect("leads");
    // Node 3 hears of nothing any more, and the others acknowledge what it will never have.
    let left = cluster.replica(3, 1, 0).await;
    cluster.network.cut(NodeId::new(1), NodeId::new(3));
    cluster.network.cut(NodeId::new(2), NodeId::new(3));
    assert_eq!(cluster.produce(1, 0, batch(2)).await, 5);
    for id in [1, 2] {
        cluster.kill(id).await;
    }
    cluster.replace_disk(2);
    cluster.network.heal();
    elect_unclean(&cluster, [1, 2], &left);
    cluster.carried_out().await;
    let (leader, partition) = cluster.leader(1, 0).await;
    assert_eq!(leader, 3);
    let later = partition.require_leader().expect("leads");
    assert!(later.get() > epoch.get() + 1_000, "{later} after {epoch}");
    // Whoever holds on to the old group finds that it is over.
    assert_eq!(
        append(&left, batch(1)).await.map_err(|it| it.error_code()),
        Err(ErrorCode::NotLeaderOrFollower)
    );
    assert_eq!(cluster.produce(1, 0, batch(3)).await, 5);
    for id in [1, 2] {
        let records = register_broker::fence(&cluster.image(), NodeId::new(id), false);
        cluster.change(&records);
        cluster.start(id).await;
    }
    cluster.until_identical(&[1, 2, 3], 1, 0).await;
    cluster
        .until("all are in sync", 1, 0, |state| state.isr.len() == 3)
        .await;
    assert_eq!(cluster.produce(1, 0, batch(1)).await, 8);
    // And can do without the one that had gone on.
    cluster.kill(3).await;
    assert_eq!(cluster.produce(1, 0, batch(1)).await, 9);
}

/// Lets another task run to its end while this one holds a thread.
fn wait_for<T>(task: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(task))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_is_read_while_another_leads_is_not_told_after_the_return() {
    let cluster = Cluster::new(3).await;
    cluster.create_topic("orders", 1, &[&[1, 2, 3]]).await;
    assert_eq!(cluster.produce(1, 0, batch(3)).await, 0);
    let (first, partition) = cluster.leader(1, 0).await;
    let other = [1, 2, 3].into_iter().find(|id| *id != first).expect("two");
    let there_and_back = async {
        let away = partition.group().transfer_leader(NodeId::new(other));
        away.await.expect("handed over");
        cluster.produce(1, 0, batch(2)).await;
        let second = cluster.replica(other, 1, 0).await;
        let back = second.group().transfer_leader(NodeId::new(first));
        back.await.expect("handed back");
        eventually("it leads again", || partition.require_lease().ok()).await;
    };
    let told = partition.read_as_leader(LeaderEpoch::NONE, |_| {
        let read = partition.offsets().high_watermark.get();
        wait_for(there_and_back);
        Ok(read)
    });
    assert_eq!(
        told.map_err(|error| error.error_code()),
        Err(ErrorCode::NotLeaderOrFollower),
        "it was 3, and is 5"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_leader_that_becomes_ready_while_it_reads_had_better_not_have_begun() {
    let mut cluster = Cluster::new(3).await;
    cluster.create_topic("orders", 1, &[&[1, 2, 3]]).await;
    assert_eq!(cluster.produce(1, 0, batch(3)).await, 0);
    let (first, _) = cluster.leader(1, 0).await;
    // The entry that makes the next leader ready takes a while to be committed.
    for one in 1..=3 {
        for other in 1..=3 {
            let (one, other) = (NodeId::new(one), NodeId::new(other));
            cluster.network.delay(one, other, Duration::from_millis(60));
        }
    }
    cluster.kill(first).await;
    let unready = eventually("a leader that is not ready", || {
        cluster.nodes.values().find_map(|node| {
            let partition = node.partitions.get(topic_id(1), PartitionIndex::new(0))?;
            (partition.require_leader().is_ok() && partition.require_ready_leader().is_err())
                .then_some(partition)
        })
    });
    let partition = tokio::time::timeout(Duration::from_secs(20), unready).await;
    let partition = partition.expect("in time");
    let told = partition.read_as_leader(LeaderEpoch::NONE, |_| {
        wait_for(eventually("it is ready", || {
            partition.require_ready_leader().ok()
        }));
        Ok(())
    });
    assert_eq!(
        told.map_err(|error| error.error_code()),
        Err(ErrorCode::NotLeaderOrFollower)
    );
    let ready = eventually("it is ready", || partition.require_lease().ok());
    ready.await;
    let latest = partition.list_offset(
        OffsetSpec::Latest,
        IsolationLevel::ReadUncommitted,
        LeaderEpoch::NONE,
    );
    assert_eq!(latest.expect("known").offset, Offset::new(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_that_serve_consumers_soon_know_the_end_of_a_burst() {
    let cluster = Cluster::new(3).await;
    cluster.create_topic("orders", 1, &[&[1, 2, 3]]).await;
    cluster.produce(1, 0, batch(1)).await;
    cluster.until_identical(&[1, 2, 3], 1, 0).await;
    let (leader, partition) = cluster.leader(1, 0).await;
    eventually("the leader knows of its replicas", || {
        partition.replication().map(|_| ())
    })
    .await;
    let mut slowest = Duration::ZERO;
    for _ in 0..5 {
        cluster.produce(1, 0, batch(2)).await;
        let committed = Instant::now();
        let end = partition.offsets().high_watermark;
        for id in [1, 2, 3].into_iter().filter(|id| *id != leader) {
            let follower = cluster.replica(id, 1, 0).await;
            eventually("the follower knows", || {
                (follower.offsets().high_watermark >= end).then_some(())
            })
            .await;
        }
        slowest = slowest.max(committed.elapsed());
    }
    // Without being told they know at the second look, half a second to a second later.
    assert!(slowest < Duration::from_millis(400), "{slowest:?}");
}
