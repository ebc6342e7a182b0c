//! What happens in consumer groups, as scripts.

use super::assignment::Partitions;
use super::bench::{going_on, indexes, joining, partitions, set_topics};
use super::regexes::{self, Lookup};
use crate::groups::bench::{Bench, GROUP};
use crate::groups::config::CoordinatorConfig;
use crate::groups::coordinator::persistent_view;
use crate::groups::error::GroupError;
use crate::groups::messages::{CommitRequest, FetchRequest, GroupReply, GroupRequest};
use crate::groups::names::{Epoch, GenerationId, GroupId, InstanceId, MemberId};
use odradek_protocol::ids::TimestampMs;

/// Longer than the assignment interval.
pub(super) const A_WHILE_MS: i64 = 1_500;

pub(super) fn with_topic(count: i32) -> Bench {
    let bench = Bench::new();
    set_topics(&bench, &[("topic", 1, count)]);
    bench
}

pub(super) fn check_replay(bench: &Bench) {
    assert_eq!(
        persistent_view(&bench.coordinator),
        persistent_view(&bench.replayed())
    );
}

#[test]
fn a_lone_member_gets_everything_at_once() {
    let mut bench = with_topic(3);
    let reply = bench.beat(joining("a", &["topic"])).expect("joins");
    assert_eq!((reply.epoch.get(), reply.heartbeat_interval_ms), (2, 5_000));
    assert_eq!(reply.assignment, Some(partitions(1, &[0, 1, 2])));
    assert_eq!(bench.state(), "Stable");
    let again = bench.beat(going_on("a", 2)).expect("goes on");
    assert_eq!(again.assignment, None, "it knows");
    check_replay(&bench);
}

#[test]
fn a_partition_has_one_owner_at_a_time() {
    let mut bench = with_topic(4);
    bench.beat(joining("a", &["topic"])).expect("joins");
    bench.advance(A_WHILE_MS);
    let second = bench.beat(joining("b", &["topic"])).expect("joins");
    assert_eq!(second.epoch.get(), 3);
    assert_eq!(
        second.assignment,
        Some(Partitions::default()),
        "others have it"
    );
    assert_eq!(bench.state(), "Reconciling");
    let all = partitions(1, &[0, 1, 2, 3]);
    assert_eq!(bench.owns("a", 2, all.clone()), (2, Some(vec![0, 1])));
    assert_eq!(
        bench.owns("b", 3, Partitions::default()),
        (3, None),
        "not yet"
    );
    assert_eq!(bench.owns("a", 2, all), (2, None), "has not let go");
    assert_eq!(bench.owns("a", 2, partitions(1, &[0, 1])), (3, None));
    assert_eq!(
        bench.owns("b", 3, Partitions::default()),
        (3, Some(vec![2, 3]))
    );
    assert_eq!(bench.state(), "Stable");
    check_replay(&bench);
}

#[test]
fn members_of_another_epoch_are_fenced_but_for_a_lost_answer() {
    let mut bench = with_topic(2);
    bench.beat(joining("a", &["topic"])).expect("joins");
    for epoch in [1, 3] {
        let mut request = going_on("a", epoch);
        request.owned = Some(partitions(1, &[0, 5]));
        let refused = bench.beat(request).expect_err("another epoch");
        assert_eq!(refused.error, GroupError::FencedMemberEpoch);
    }
    bench.advance(A_WHILE_MS);
    bench.beat(joining("b", &["topic"])).expect("joins");
    bench.owns("a", 2, partitions(1, &[0, 1]));
    bench.owns("a", 2, partitions(1, &[0]));
    // The answer with epoch 3 was lost.
    assert_eq!(bench.owns("a", 2, partitions(1, &[0])), (3, None));
    let unknown = bench.beat(going_on("c", 3)).expect_err("not there");
    assert_eq!(unknown.error, GroupError::UnknownMember);
    let mut bench = Bench::new();
    let missing = bench.beat(going_on("c", 3)).expect_err("no group");
    assert_eq!(missing.error, GroupError::GroupNotFound);
}

#[test]
fn silent_members_and_those_that_keep_what_they_must_not_are_taken_out() {
    let mut bench = with_topic(2);
    bench.beat(joining("a", &["topic"])).expect("joins");
    bench.advance(30_000);
    bench.beat(joining("b", &["topic"])).expect("joins");
    bench.advance(20_000);
    // The session of the first is over.
    assert_eq!(
        bench.owns("b", 3, Partitions::default()),
        (4, Some(vec![0, 1]))
    );
    bench.beat(joining("c", &["topic"])).expect("joins");
    bench.advance(A_WHILE_MS);
    bench.beat(going_on("c", 4)).expect("the assignment is due");
    for _ in 0..6 {
        let kept = bench.owns("b", 4, partitions(1, &[0, 1]));
        assert_eq!(kept.0, 4);
        bench.beat(going_on("c", 5)).expect("goes on");
        bench.advance(9_900);
    }
    bench.advance(1_000);
    let fenced = bench.beat(going_on("b", 4)).expect_err("time is up");
    assert_eq!(fenced.error, GroupError::UnknownMember);
    check_replay(&bench);
}

#[test]
fn a_static_member_that_was_away_comes_back_to_what_it_had() {
    let mut bench = with_topic(2);
    let instance = Some(InstanceId::new("i"));
    let mut join = joining("a", &["topic"]);
    join.instance = instance.clone();
    bench.beat(join.clone()).expect("joins");
    join.member = MemberId::new("b");
    let taken = bench.beat(join.clone()).expect_err("the first is there");
    assert_eq!(taken.error, GroupError::UnreleasedInstance);
    let mut away = going_on("a", -2);
    away.instance = instance.clone();
    assert_eq!(bench.beat(away).expect("goes").epoch, Epoch::AWAY);
    bench.advance(A_WHILE_MS);
    bench.beat(joining("c", &["topic"])).expect("joins");
    let back = bench.beat(join).expect("comes back");
    assert_eq!(back.epoch.get(), 3);
    assert_eq!(back.assignment.as_ref().map(indexes), Some(vec![0]));
    let mut old = going_on("a", 2);
    old.instance = instance;
    let fenced = bench.beat(old).expect_err("its place is taken");
    assert_eq!(fenced.error, GroupError::FencedInstance);
    check_replay(&bench);
}

#[test]
fn a_topic_that_grows_is_seen_with_the_next_heartbeat() {
    let mut bench = with_topic(1);
    bench
        .beat(joining("a", &["topic", "later"]))
        .expect("joins");
    set_topics(&bench, &[("topic", 1, 2), ("later", 2, 1)]);
    bench.advance(A_WHILE_MS);
    let reply = bench.beat(going_on("a", 2)).expect("goes on");
    assert_eq!(reply.epoch.get(), 3);
    assert_eq!(reply.assignment.map(|all| all.len()), Some(3));
    set_topics(&bench, &[("topic", 1, 2)]);
    bench.advance(A_WHILE_MS);
    let reply = bench.beat(going_on("a", 3)).expect("goes on");
    assert_eq!(reply.assignment, Some(partitions(1, &[0, 1])));
    // Metadata that has nothing to do with it.
    set_topics(&bench, &[("topic", 1, 2), ("other", 3, 9)]);
    bench.advance(A_WHILE_MS);
    let written = bench.log.len();
    bench.owns("a", 3, partitions(1, &[0, 1]));
    bench.beat(going_on("a", 4)).expect("goes on");
    let reply = bench.beat(going_on("a", 4)).expect("goes on");
    assert_eq!((reply.epoch.get(), reply.assignment), (4, None));
    assert!(bench.log.len() <= written + 2);
}

fn commit(bench: &mut Bench, request: CommitRequest) -> Result<(), GroupError> {
    let token = bench.ask(GroupRequest::Commit(request));
    match bench.reply(token) {
        Some(GroupReply::Commit(results)) => results.map(|_| ()),
        other => panic!("{other:?} answers a commit"),
    }
}

fn commit_of(member: &str, epoch: i32, partition: i32) -> CommitRequest {
    let (member, epoch) = (MemberId::new(member), GenerationId::new(epoch));
    let mut request = Bench::commit_request(&member, epoch, "topic", partition, 7);
    request.topics[0].topic_id = super::bench::topic_id(1);
    request
}

#[test]
fn a_commit_of_an_old_epoch_lands_only_for_what_was_kept_since() {
    let mut bench = with_topic(2);
    bench.beat(joining("a", &["topic"])).expect("joins");
    assert_eq!(commit(&mut bench, commit_of("a", 2, 0)), Ok(()));
    let newer = commit(&mut bench, commit_of("a", 3, 0));
    assert_eq!(newer, Err(GroupError::StaleMemberEpoch));
    bench.advance(A_WHILE_MS);
    bench.beat(joining("b", &["topic"])).expect("joins");
    bench.owns("a", 2, partitions(1, &[0, 1]));
    assert_eq!(
        commit(&mut bench, commit_of("a", 2, 1)),
        Ok(()),
        "on its way out"
    );
    bench.owns("a", 2, partitions(1, &[0]));
    bench.owns("b", 3, Partitions::default());
    assert_eq!(
        commit(&mut bench, commit_of("a", 2, 0)),
        Ok(()),
        "kept since"
    );
    let lost = commit(&mut bench, commit_of("a", 2, 1));
    assert_eq!(lost, Err(GroupError::StaleMemberEpoch));
    assert_eq!(commit(&mut bench, commit_of("b", 3, 1)), Ok(()));
    let mut old = commit_of("a", 3, 0);
    old.knows_epochs = false;
    assert_eq!(commit(&mut bench, old), Err(GroupError::UnsupportedVersion));
    let stranger = commit(&mut bench, commit_of("x", 3, 0));
    assert_eq!(stranger, Err(GroupError::UnknownMember));
    let outside = commit(&mut bench, commit_of("", -1, 0));
    assert_eq!(outside, Err(GroupError::UnknownMember));
}

#[test]
fn a_member_that_asks_for_offsets_must_be_where_it_says() {
    let mut bench = with_topic(1);
    bench.beat(joining("a", &["topic"])).expect("joins");
    let mut ask = |member: Option<(&str, i32)>| {
        let token = bench.ask(GroupRequest::Fetch(FetchRequest {
            require_stable: false,
            group: GroupId::new(GROUP),
            member: member.map(|(id, epoch)| (MemberId::new(id), Epoch::new(epoch))),
            topics: None,
        }));
        match bench.reply(token) {
            Some(GroupReply::Fetch(found)) => found.map(|_| ()),
            other => panic!("{other:?} answers a fetch"),
        }
    };
    assert_eq!(ask(None), Ok(()));
    assert_eq!(ask(Some(("a", 2))), Ok(()));
    assert_eq!(ask(Some(("a", 1))), Err(GroupError::StaleMemberEpoch));
    assert_eq!(ask(Some(("b", 2))), Err(GroupError::UnknownMember));
}

fn look_up(bench: &mut Bench, lookup: &Lookup) {
    let image = bench.config.metadata.load_full();
    let found = regexes::look_up(lookup, &image, TimestampMs::new(bench.now_ms));
    bench.ask(GroupRequest::LookedUp(GroupId::new(GROUP), found));
}

#[test]
fn expressions_are_looked_up_outside_and_again_when_topics_come() {
    let mut bench = with_topic(2);
    let mut join = joining("a", &[]);
    join.topics = None;
    join.regex = Some("top.*".to_owned());
    let reply = bench.beat(join).expect("joins");
    assert_eq!(reply.assignment, Some(Partitions::default()));
    let lookup = reply.lookup.expect("one is due");
    assert_eq!(
        bench
            .beat(going_on("a", reply.epoch.get()))
            .expect("on")
            .lookup,
        None
    );
    look_up(&mut bench, &lookup);
    bench.advance(A_WHILE_MS);
    let reply = bench
        .beat(going_on("a", reply.epoch.get()))
        .expect("goes on");
    assert_eq!(reply.assignment, Some(partitions(1, &[0, 1])));
    set_topics(&bench, &[("topic", 1, 2), ("topper", 2, 1)]);
    bench.advance(11_000);
    let reply = bench
        .beat(going_on("a", reply.epoch.get()))
        .expect("goes on");
    look_up(&mut bench, &reply.lookup.expect("one is due"));
    bench.advance(A_WHILE_MS);
    let reply = bench
        .beat(going_on("a", reply.epoch.get()))
        .expect("goes on");
    assert_eq!(reply.assignment.map(|all| all.len()), Some(3));
    check_replay(&bench);
    let mut leave = going_on("a", -1);
    leave.owned = None;
    bench.beat(leave).expect("leaves");
    let group = bench.coordinator.groups().next().expect("it is empty");
    assert!(
        group
            .as_consumer()
            .expect("a consumer group")
            .resolved()
            .is_empty()
    );
    check_replay(&bench);
}

#[test]
fn bad_expressions_and_full_groups_change_nothing() {
    let config = CoordinatorConfig {
        consumer: super::GroupSettings {
            max_size: 1,
            ..super::GroupSettings::default()
        },
        ..CoordinatorConfig::default()
    };
    let mut bench = Bench::with_config(config);
    let mut join = joining("a", &[]);
    join.regex = Some("(".to_owned());
    let refused = bench.beat(join).expect_err("no expression");
    assert_eq!(refused.error, GroupError::InvalidRegex);
    assert!(bench.coordinator.groups().next().is_none() && bench.log.is_empty());
    bench.beat(joining("a", &["topic"])).expect("joins");
    let full = bench.beat(joining("b", &["topic"])).expect_err("full");
    assert_eq!(full.error, GroupError::GroupFull);
    bench.beat(joining("a", &["topic"])).expect("is in already");
}

#[test]
fn an_empty_group_may_be_deleted_or_become_a_classic_one() {
    let mut bench = with_topic(1);
    bench.beat(joining("a", &["topic"])).expect("joins");
    let delete = || GroupRequest::Delete(GroupId::new(GROUP));
    let token = bench.ask(delete());
    let refused = Some(GroupReply::Delete(Err(GroupError::NonEmptyGroup)));
    assert_eq!(bench.reply(token), refused);
    bench.beat(going_on("a", -1)).expect("leaves");
    assert_eq!(bench.state(), "Empty");
    let token = bench.ask(delete());
    assert_eq!(bench.reply(token), Some(GroupReply::Delete(Ok(()))));
    assert!(bench.replayed().groups().next().is_none());
    bench.beat(joining("a", &["topic"])).expect("joins");
    bench.beat(going_on("a", -1)).expect("leaves");
    bench.stable_group(1);
    let group = bench.coordinator.groups().next().expect("a group");
    assert!(group.as_classic().is_some());
    check_replay(&bench);
    let replayed = bench.replayed();
    let group = replayed.groups().next().expect("a group");
    assert!(group.as_classic().is_some());
}
