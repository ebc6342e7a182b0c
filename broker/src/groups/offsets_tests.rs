//! The rules of committed offsets, one test a rule.

use odradek_protocol::ids::{
    LeaderEpoch, Offset, PartitionIndex, ProducerEpoch, ProducerId, TopicId,
};
use odradek_storage::producer_state::EndTxnMarker;

use super::bench::{Bench, GROUP};
use super::config::CoordinatorConfig;
use super::coordinator::persistent_view;
use super::error::GroupError;
use super::messages::{
    CommitPartition, CommitRequest, CommitTopic, DeleteOffsetsRequest, FetchRequest, FetchTopic,
    GroupReply, GroupRequest, ListRequest, TxnCommitRefusal, TxnCommitRequest,
};
use super::names::{GenerationId, GroupId, MemberId, TopicName};
use super::records::GroupRecord;
use crate::coordinator::effects::ProducerIdentity;

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

fn outside(topic: &str, partition: i32, offset: i64) -> CommitRequest {
    let nobody = MemberId::new("");
    Bench::commit_request(&nobody, GenerationId::new(-1), topic, partition, offset)
}

fn quiet() -> CoordinatorConfig {
    CoordinatorConfig {
        group_initial_rebalance_delay_ms: 0,
        ..CoordinatorConfig::default()
    }
}

#[test]
fn a_commit_from_outside_makes_a_group_that_only_stores_offsets() {
    let mut bench = Bench::new();
    assert_eq!(bench.commit(outside("t", 0, 5)), Ok(()));
    assert_eq!(bench.committed("t", 0), Some(5));
    assert_eq!(bench.state(), "Empty");
    bench.restart();
    assert_eq!(bench.committed("t", 0), Some(5));
    assert_eq!(bench.state(), "Empty");
}

#[test]
fn a_commit_from_outside_is_refused_while_the_group_has_members() {
    let mut bench = Bench::new();
    bench.stable_group(1);
    assert_eq!(
        bench.commit(outside("t", 0, 5)),
        Err(GroupError::UnknownMember)
    );
    assert_eq!(bench.committed("t", 0), None);
}

#[test]
fn a_commit_by_a_member_of_no_group_is_told_so_as_its_version_understands() {
    let mut bench = Bench::new();
    let member = MemberId::new("m");
    let mut request = Bench::commit_request(&member, GenerationId::new(1), "t", 0, 5);
    assert_eq!(
        bench.commit(request.clone()),
        Err(GroupError::GroupNotFound)
    );
    request.no_such_group = GroupError::IllegalGeneration;
    assert_eq!(bench.commit(request), Err(GroupError::IllegalGeneration));
    assert_eq!(bench.state(), "Dead");
}

#[test]
fn members_commit_between_rebalances_and_until_the_next_one_is_over() {
    let mut bench = Bench::new();
    let (members, generation) = bench.stable_group(2);
    let commit = |offset| Bench::commit_request(&members[0], generation, "t", 0, offset);
    assert_eq!(bench.commit(commit(5)), Ok(()));
    bench.rejoin(&members[0]);
    assert_eq!(
        bench.commit(commit(6)),
        Ok(()),
        "a last commit before the partition goes"
    );
    bench.rejoin(&members[1]);
    assert_eq!(bench.commit(commit(7)), Err(GroupError::IllegalGeneration));
    let next = Bench::commit_request(&members[0], generation.next(), "t", 0, 8);
    assert_eq!(bench.commit(next), Err(GroupError::RebalanceInProgress));
    assert_eq!(bench.committed("t", 0), Some(6));
}

#[test]
fn metadata_over_the_limit_fails_its_partition_alone() {
    let mut bench = Bench::new();
    let partition = |index, metadata: &str| CommitPartition {
        partition: PartitionIndex::new(index),
        offset: Offset::new(5),
        leader_epoch: LeaderEpoch::new(2),
        metadata: metadata.to_owned(),
    };
    let mut request = outside("t", 0, 5);
    request.topics[0].partitions = vec![
        partition(0, &"x".repeat(4_096)),
        partition(1, &"x".repeat(4_097)),
        // Two bytes each, one Java character.
        partition(2, &"é".repeat(4_096)),
    ];
    let token = bench.ask(GroupRequest::Commit(request));
    assert_eq!(
        bench.reply(token),
        Some(GroupReply::Commit(Ok(vec![vec![
            Ok(()),
            Err(GroupError::OffsetMetadataTooLarge),
            Ok(())
        ]])))
    );
    assert_eq!(bench.committed("t", 1), None);
}

#[test]
fn results_come_in_the_order_asked_and_epochs_come_back() {
    let mut bench = Bench::new();
    let mut request = outside("z", 0, 1);
    for (name, offset) in [("a", 2), ("m", 3)] {
        request.topics.push(CommitTopic {
            topic: TopicName::new(name),
            ..outside("", 0, offset).topics.remove(0)
        });
    }
    let token = bench.ask(GroupRequest::Commit(request));
    assert_eq!(
        bench.reply(token),
        Some(GroupReply::Commit(Ok(vec![
            vec![Ok(())],
            vec![Ok(())],
            vec![Ok(())]
        ])))
    );
    let wanted = |name: &str| FetchTopic {
        topic: TopicName::new(name),
        topic_id: TopicId::ZERO,
        partitions: vec![PartitionIndex::new(0)],
    };
    let token = bench.ask(GroupRequest::Fetch(FetchRequest {
        require_stable: false,
        group: GroupId::new(GROUP),
        member: None,
        topics: Some(vec![wanted("m"), wanted("nowhere"), wanted("z")]),
    }));
    let Some(GroupReply::Fetch(Ok(topics))) = bench.reply(token) else {
        panic!("not fetched");
    };
    let found: Vec<_> = topics
        .iter()
        .map(|topic| {
            let offset = topic.partitions[0].1.as_ref();
            (
                topic.topic.as_str(),
                offset.map(|found| (found.offset.get(), found.leader_epoch.get())),
            )
        })
        .collect();
    assert_eq!(
        found,
        [("m", Some((3, 3))), ("nowhere", None), ("z", Some((1, 3)))]
    );
}

#[test]
fn everything_committed_is_fetched_in_order_and_an_unknown_group_has_nothing() {
    let mut bench = Bench::new();
    for (topic, partition) in [("b", 1), ("a", 0), ("b", 0)] {
        assert_eq!(bench.commit(outside(topic, partition, 1)), Ok(()));
    }
    let mut fetch_all = |group: &str| {
        let token = bench.ask(GroupRequest::Fetch(FetchRequest {
            require_stable: false,
            group: GroupId::new(group),
            member: None,
            topics: None,
        }));
        let Some(GroupReply::Fetch(Ok(topics))) = bench.reply(token) else {
            panic!("not fetched");
        };
        let rows = topics.into_iter().flat_map(|topic| {
            let name = topic.topic.as_str().to_owned();
            topic
                .partitions
                .into_iter()
                .map(move |(index, _)| (name.clone(), index.get()))
        });
        rows.collect::<Vec<_>>()
    };
    let row = |name: &str, index| (name.to_owned(), index);
    assert_eq!(fetch_all(GROUP), [row("a", 0), row("b", 0), row("b", 1)]);
    assert_eq!(fetch_all("stranger"), []);
}

#[test]
fn an_offset_of_a_topic_with_another_id_is_not_found() {
    let mut bench = Bench::new();
    let mut request = outside("t", 0, 5);
    request.topics[0].topic_id = TopicId::from_bytes([1; 16]);
    assert_eq!(bench.commit(request), Ok(()));
    for (id, expected) in [([0; 16], true), ([1; 16], true), ([2; 16], false)] {
        let token = bench.ask(GroupRequest::Fetch(FetchRequest {
            require_stable: false,
            group: GroupId::new(GROUP),
            member: None,
            topics: Some(vec![FetchTopic {
                topic: TopicName::new("t"),
                topic_id: TopicId::from_bytes(id),
                partitions: vec![PartitionIndex::new(0)],
            }]),
        }));
        let Some(GroupReply::Fetch(Ok(topics))) = bench.reply(token) else {
            panic!("not fetched");
        };
        assert_eq!(topics[0].partitions[0].1.is_some(), expected);
    }
}

#[test]
fn deleting_a_topic_drops_its_offsets_but_not_those_of_its_namesake() {
    let mut bench = Bench::new();
    let (old, new) = (TopicId::from_bytes([1; 16]), TopicId::from_bytes([2; 16]));
    for (partition, id) in [(0, old), (1, new), (2, TopicId::ZERO)] {
        let mut request = outside("t", partition, 5);
        request.topics[0].topic_id = id;
        assert_eq!(bench.commit(request), Ok(()));
    }
    let deleted = vec![(TopicName::new("t"), old), (TopicName::new("u"), new)];
    let token = bench.ask(GroupRequest::TopicsDeleted(deleted));
    assert_eq!(bench.reply(token), Some(GroupReply::TopicsDeleted));
    let left: Vec<_> = (0..3).map(|index| bench.committed("t", index)).collect();
    assert_eq!(left, [None, Some(5), None]);
    bench.restart();
    let left: Vec<_> = (0..3).map(|index| bench.committed("t", index)).collect();
    assert_eq!(left, [None, Some(5), None]);
}

#[test]
fn offsets_of_an_empty_group_expire_from_the_moment_it_became_empty() {
    let mut bench = Bench::with_config(quiet());
    let (members, generation) = bench.stable_group(1);
    let commit = Bench::commit_request(&members[0], generation, "topic", 0, 5);
    assert_eq!(bench.commit(commit), Ok(()));
    for _ in 0..1_500 {
        bench.advance(9_000);
        assert_eq!(bench.heartbeat(&members[0], generation), Ok(()));
    }
    assert_eq!(bench.leave(&members[0]), [Ok(())]);
    bench.advance(7 * DAY_MS - 600_000);
    assert_eq!(
        bench.committed("topic", 0),
        Some(5),
        "not from the commit on"
    );
    bench.advance(1_200_000);
    assert_eq!(bench.committed("topic", 0), None);
    assert_eq!(bench.state(), "Dead", "nothing is left of the group");
    assert!(bench.replayed().groups().next().is_none());
}

#[test]
fn offsets_of_a_group_that_only_stores_them_expire_each_from_its_commit() {
    let mut bench = Bench::with_config(quiet());
    assert_eq!(bench.commit(outside("t", 0, 1)), Ok(()));
    bench.advance(DAY_MS);
    assert_eq!(bench.commit(outside("t", 1, 2)), Ok(()));
    bench.advance(6 * DAY_MS + 600_000);
    assert_eq!(
        (bench.committed("t", 0), bench.committed("t", 1)),
        (None, Some(2))
    );
    bench.advance(DAY_MS);
    assert_eq!((bench.committed("t", 1), bench.state()), (None, "Dead"));
}

#[test]
fn offsets_of_topics_that_a_live_group_reads_do_not_expire_and_others_do() {
    let mut bench = Bench::with_config(CoordinatorConfig {
        offsets_retention_ms: 60_000,
        offsets_retention_check_interval_ms: 10_000,
        ..quiet()
    });
    let (members, generation) = bench.stable_group(1);
    for topic in ["topic", "former"] {
        let commit = Bench::commit_request(&members[0], generation, topic, 0, 5);
        assert_eq!(bench.commit(commit), Ok(()));
    }
    for _ in 0..10 {
        bench.advance(9_000);
        assert_eq!(bench.heartbeat(&members[0], generation), Ok(()));
    }
    assert_eq!(bench.committed("topic", 0), Some(5));
    assert_eq!(bench.committed("former", 0), None);
}

#[test]
fn offsets_of_an_unstable_group_are_kept() {
    let mut bench = Bench::with_config(CoordinatorConfig {
        offsets_retention_ms: 10_000,
        offsets_retention_check_interval_ms: 1_000,
        ..quiet()
    });
    let (members, generation) = bench.stable_group(1);
    let commit = Bench::commit_request(&members[0], generation, "former", 0, 5);
    assert_eq!(bench.commit(commit), Ok(()));
    let (_, waiting) = bench.join_new();
    for _ in 0..5 {
        bench.advance(9_000);
        let _ = bench.heartbeat(&members[0], generation);
        assert_eq!(bench.state(), "PreparingRebalance");
        assert_eq!(bench.committed("former", 0), Some(5));
    }
    assert!(bench.joined(waiting).is_none());
}

#[test]
fn what_an_open_transaction_has_staged_keeps_the_offset_and_its_group_over_expiry() {
    for (has_committed, commits) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut bench = Bench::with_config(quiet());
        if has_committed {
            assert_eq!(bench.commit(outside("t", 0, 5)), Ok(()));
            assert_eq!(bench.commit(outside("t", 1, 6)), Ok(()));
        }
        let producer = ProducerIdentity {
            id: ProducerId::new(7),
            epoch: ProducerEpoch::new(0),
        };
        let mut staged = TxnCommitRequest {
            producer,
            verified: None,
            commit: outside("t", 0, 10),
        };
        let token = bench.ask(GroupRequest::CommitInTransaction(staged.clone()));
        let Some(GroupReply::CommitInTransaction(Err(TxnCommitRefusal::Unverified(moment)))) =
            bench.reply(token)
        else {
            panic!("taken without a question");
        };
        staged.verified = Some(moment);
        let token = bench.ask(GroupRequest::CommitInTransaction(staged));
        assert_eq!(
            bench.reply(token),
            Some(GroupReply::CommitInTransaction(Ok(vec![vec![Ok(())]])))
        );
        bench.advance(30 * DAY_MS);
        assert_eq!(bench.committed("t", 0), has_committed.then_some(5));
        assert_eq!(bench.committed("t", 1), None, "nothing is staged for it");
        assert_eq!(bench.state(), "Empty", "the group stays with it");

        let marker = EndTxnMarker {
            aborted: !commits,
            coordinator_epoch: 0,
        };
        let token = bench.ask(GroupRequest::EndTransaction(producer, marker));
        assert_eq!(bench.reply(token), Some(GroupReply::EndTransaction));
        let left = match commits {
            true => Some(10),
            false => has_committed.then_some(5),
        };
        assert_eq!(bench.committed("t", 0), left);
        bench.advance(8 * DAY_MS);
        assert_eq!((bench.committed("t", 0), bench.state()), (None, "Dead"));
    }
}

#[test]
fn an_old_client_says_itself_how_long_its_offset_is_kept() {
    let mut bench = Bench::with_config(quiet());
    let mut request = outside("t", 0, 5);
    request.retention_ms = Some(30 * DAY_MS);
    assert_eq!(bench.commit(request), Ok(()));
    bench.restart();
    bench.advance(29 * DAY_MS);
    assert_eq!(bench.committed("t", 0), Some(5));
    bench.advance(2 * DAY_MS);
    assert_eq!(bench.committed("t", 0), None);
}

#[test]
fn an_empty_group_is_deleted_with_its_offsets_and_others_are_not() {
    let mut bench = Bench::new();
    let delete = |bench: &mut Bench, group: &str| {
        let token = bench.ask(GroupRequest::Delete(GroupId::new(group)));
        match bench.reply(token) {
            Some(GroupReply::Delete(result)) => result,
            other => panic!("{other:?} answers a deletion"),
        }
    };
    assert_eq!(delete(&mut bench, GROUP), Err(GroupError::GroupNotFound));
    let (members, generation) = bench.stable_group(1);
    let commit = Bench::commit_request(&members[0], generation, "topic", 0, 5);
    assert_eq!(bench.commit(commit), Ok(()));
    assert_eq!(delete(&mut bench, GROUP), Err(GroupError::NonEmptyGroup));
    bench.leave(&members[0]);
    assert_eq!(delete(&mut bench, GROUP), Ok(()));
    assert_eq!((bench.state(), bench.committed("topic", 0)), ("Dead", None));
    assert!(persistent_view(&bench.replayed()).is_empty());
}

#[test]
fn single_offsets_are_deleted_unless_a_member_reads_the_topic() {
    let mut bench = Bench::new();
    let delete = |bench: &mut Bench| {
        let topics = ["topic", "former"];
        let topics = topics.map(|name| (TopicName::new(name), vec![PartitionIndex::new(0)]));
        let token = bench.ask(GroupRequest::DeleteOffsets(DeleteOffsetsRequest {
            group: GroupId::new(GROUP),
            topics: topics.into(),
        }));
        match bench.reply(token) {
            Some(GroupReply::DeleteOffsets(result)) => result,
            other => panic!("{other:?} answers a deletion"),
        }
    };
    assert_eq!(delete(&mut bench), Err(GroupError::GroupNotFound));
    let (members, generation) = bench.stable_group(1);
    for topic in ["topic", "former"] {
        let commit = Bench::commit_request(&members[0], generation, topic, 0, 5);
        assert_eq!(bench.commit(commit), Ok(()));
    }
    let read = vec![Err(GroupError::SubscribedToTopic)];
    assert_eq!(delete(&mut bench), Ok(vec![read, vec![Ok(())]]));
    assert_eq!(bench.committed("topic", 0), Some(5));
    assert_eq!(bench.committed("former", 0), None);
    bench.leave(&members[0]);
    let written = bench.log.len();
    assert_eq!(delete(&mut bench), Ok(vec![vec![Ok(())], vec![Ok(())]]));
    assert_eq!(bench.committed("topic", 0), None);
    assert_eq!(
        bench.log.len(),
        written + 1,
        "no tombstone for what is not there"
    );
    assert!(matches!(
        bench.log.last(),
        Some(GroupRecord::Offset(_, None))
    ));
}

#[test]
fn groups_are_listed_by_state_and_kind_whatever_the_case() {
    let mut bench = Bench::new();
    bench.stable_group(1);
    let mut other = outside("t", 0, 1);
    other.group = GroupId::new("other");
    assert_eq!(bench.commit(other), Ok(()));
    let mut list = |states: &[&str], kinds: &[&str]| {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let token = bench.ask(GroupRequest::List(ListRequest {
            states: owned(states),
            kinds: owned(kinds),
        }));
        let Some(GroupReply::List(groups)) = bench.reply(token) else {
            panic!("not listed");
        };
        let mut names: Vec<_> = groups.iter().map(|group| group.group.to_string()).collect();
        names.sort();
        names
    };
    assert_eq!(list(&[], &[]), ["group", "other"]);
    assert_eq!(list(&["stable"], &[]), ["group"]);
    assert_eq!(list(&["empty", "dead"], &["classic"]), ["other"]);
    assert_eq!(list(&[], &["consumer"]), Vec::<String>::new());
}
