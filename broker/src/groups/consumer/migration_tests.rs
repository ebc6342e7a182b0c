//! Groups that go from one protocol to the other with their members, as scripts.

use odradek_protocol::ids::PartitionIndex;

use super::assignment::Partitions;
use super::bench::{going_on, indexes, joining, partitions, set_topics};
use super::settings::MigrationPolicy;
use super::tests::{A_WHILE_MS, check_replay, with_topic};
use crate::groups::bench::{Bench, GROUP};
use crate::groups::config::CoordinatorConfig;
use crate::groups::consumer_protocol::encode_assignment;
use crate::groups::error::GroupError;
use crate::groups::messages::{
    GroupReply, GroupRequest, HeartbeatRequest, JoinReply, JoinRequest, LeaveRequest,
    LeavingMember, MemberProtocol, SyncReply, SyncRequest,
};
use crate::groups::names::{GenerationId, GroupId, InstanceId, MemberId};

/// What a member says that has these partitions of the topic.
fn subscription(owned: &[i32]) -> MemberProtocol {
    let mut metadata = 1_i16.to_be_bytes().to_vec();
    let one_topic = *b"\0\0\0\x01\0\x05topic";
    metadata.extend(one_topic);
    metadata.extend((-1_i32).to_be_bytes());
    metadata.extend(one_topic);
    metadata.extend((owned.len() as i32).to_be_bytes());
    metadata.extend(owned.iter().flat_map(|index| index.to_be_bytes()));
    MemberProtocol {
        name: "range".to_owned(),
        metadata: metadata.into(),
    }
}

fn classic_join(bench: &mut Bench, member: &str) -> JoinReply {
    classic_join_with(bench, member, &[])
}

/// Joins, and says to have these partitions, as cooperative members do.
fn classic_join_with(bench: &mut Bench, member: &str, owned: &[i32]) -> JoinReply {
    let mut request: JoinRequest = bench.join_request(&MemberId::new(member));
    request.protocols = vec![subscription(owned)];
    let token = bench.ask(GroupRequest::Join(request));
    bench.joined(token).unwrap_or_else(|| panic!("has to wait"))
}

fn classic_sync(bench: &mut Bench, reply: &JoinReply) -> Result<SyncReply, GroupError> {
    let token = bench.sync(&reply.member, reply.generation, &[]);
    bench.synced(token).unwrap_or_else(|| panic!("has to wait"))
}

fn classic_beat(bench: &mut Bench, member: &MemberId, generation: i32) -> Result<(), GroupError> {
    bench.heartbeat(member, GenerationId::new(generation))
}

fn assigned(reply: &SyncReply) -> Vec<i32> {
    let read = crate::groups::consumer_protocol::assignment(&reply.assignment);
    let partitions = read.expect("an assignment").partitions;
    let indexes = partitions.iter().flat_map(|(_, indexes)| indexes);
    indexes.map(|index| index.get()).collect()
}

/// The leader of a classic group gives itself these partitions of the topic.
fn assign_to_leader(bench: &mut Bench, joined: &JoinReply, indexes: &[i32]) {
    let indexes = indexes.iter().copied().map(PartitionIndex::new).collect();
    let assignment = encode_assignment(&vec![("topic".into(), indexes)], 0);
    let token = bench.ask(GroupRequest::Sync(SyncRequest {
        group: GroupId::new(GROUP),
        member: joined.member.clone(),
        instance: None,
        generation: joined.generation,
        protocol_type: None,
        protocol: None,
        assignments: vec![(joined.member.clone(), assignment)],
    }));
    bench.synced(token).expect("synced").expect("stable");
}

/// A stable classic group of one member that has both partitions of the topic.
fn classic_group(bench: &mut Bench) -> MemberId {
    let member = classic_join(bench, "").member;
    let joined = classic_join(bench, member.as_str());
    assign_to_leader(bench, &joined, &[0, 1]);
    member
}

fn is_classic(bench: &Bench) -> bool {
    let group = bench.coordinator.groups().next().expect("a group");
    group.as_classic().is_some()
}

#[test]
fn a_classic_group_goes_over_member_by_member_and_back() {
    let mut bench = with_topic(2);
    let classic = classic_group(&mut bench);
    let joined = bench.beat(joining("new", &["topic"])).expect("joins");
    assert_eq!(joined.assignment, Some(Partitions::default()));
    check_replay(&bench);
    assert!(
        bench
            .described()
            .members
            .iter()
            .any(|member| member.is_classic)
    );
    // The classic member is told to join anew, gives up what it had, and gets half.
    let told = classic_beat(&mut bench, &classic, 1);
    assert_eq!(told, Err(GroupError::RebalanceInProgress));
    let rejoined = classic_join(&mut bench, classic.as_str());
    assert_eq!((rejoined.error, rejoined.leader.as_str()), (None, ""));
    let synced = classic_sync(&mut bench, &rejoined).expect("synced");
    assert_eq!(assigned(&synced), [0]);
    let reply = bench
        .beat(going_on("new", joined.epoch.get()))
        .expect("goes on");
    assert_eq!(reply.assignment, Some(partitions(1, &[1])));
    let generation = rejoined.generation.get();
    assert_eq!(classic_beat(&mut bench, &classic, generation), Ok(()));
    check_replay(&bench);
    // Once the consumer has gone only classic members are left.
    bench.beat(going_on("new", -1)).expect("leaves");
    assert_eq!(bench.state(), "PreparingRebalance");
    assert!(is_classic(&bench));
    let joined = classic_join(&mut bench, classic.as_str());
    assert_eq!(joined.leader, classic);
}

#[test]
fn the_last_classic_member_may_leave_a_consumer_group() {
    let mut bench = with_topic(2);
    let classic = classic_group(&mut bench);
    let joined = bench.beat(joining("new", &["topic"])).expect("joins");
    let token = bench.ask(GroupRequest::Leave(LeaveRequest {
        group: GroupId::new(GROUP),
        members: vec![LeavingMember {
            member: classic,
            instance: None,
            reason: String::new(),
        }],
    }));
    assert_eq!(
        bench.reply(token),
        Some(GroupReply::Leave(Ok(vec![Ok(())])))
    );
    bench.advance(A_WHILE_MS);
    let reply = bench
        .beat(going_on("new", joined.epoch.get()))
        .expect("goes on");
    assert_eq!(reply.assignment, Some(partitions(1, &[0, 1])));
    check_replay(&bench);
}

#[test]
fn a_classic_member_that_does_not_come_is_taken_out() {
    let mut bench = with_topic(2);
    let classic = classic_group(&mut bench);
    let joined = bench.beat(joining("new", &["topic"])).expect("joins");
    let mut epoch = joined.epoch.get();
    for _ in 0..13 {
        let _ = bench.heartbeat(&classic, GenerationId::new(1));
        bench.advance(5_000);
        epoch = bench
            .beat(going_on("new", epoch))
            .expect("goes on")
            .epoch
            .get();
    }
    assert_eq!(
        classic_beat(&mut bench, &classic, 1),
        Err(GroupError::UnknownMember)
    );
    assert_eq!(bench.described().members.len(), 1);
}

#[test]
fn the_policy_says_which_way_groups_go() {
    let with = |policy| {
        let mut config = CoordinatorConfig {
            group_initial_rebalance_delay_ms: 0,
            ..CoordinatorConfig::default()
        };
        config.consumer.migration_policy = policy;
        let bench = Bench::with_config(config);
        set_topics(&bench, &[("topic", 1, 2)]);
        bench
    };
    for policy in [MigrationPolicy::Downgrade, MigrationPolicy::Disabled] {
        let mut bench = with(policy);
        classic_group(&mut bench);
        let refused = bench.beat(joining("new", &["topic"])).expect_err("no way");
        assert_eq!(refused.error, GroupError::GroupNotFound);
        assert_eq!(bench.state(), "Stable", "the classic group is as it was");
    }
    let mut bench = with(MigrationPolicy::Disabled);
    bench.beat(joining("a", &["topic"])).expect("joins");
    let refused = classic_join(&mut bench, "");
    assert_eq!(refused.error, Some(GroupError::InconsistentProtocol));
    let mut bench = with(MigrationPolicy::Upgrade);
    let classic = classic_group(&mut bench);
    bench.beat(joining("new", &["topic"])).expect("joins");
    bench.beat(going_on("new", -1)).expect("leaves");
    assert_eq!(bench.described().members.len(), 1, "stays a consumer group");
    let token = bench.ask(GroupRequest::Heartbeat(HeartbeatRequest {
        group: GroupId::new(GROUP),
        member: classic,
        instance: None,
        generation: GenerationId::new(1),
    }));
    assert!(matches!(bench.reply(token), Some(GroupReply::Heartbeat(_))));
}

/// A consumer group that has just become a classic one, whose only member was told of `new` and has not let go
/// of what `new` was meant to get.
fn gone_back_meanwhile(bench: &mut Bench) -> MemberId {
    let classic = classic_group(bench);
    let joined = bench.beat(joining("new", &["topic"])).expect("joins");
    assert_eq!(joined.assignment, Some(Partitions::default()));
    bench.beat(going_on("new", -1)).expect("leaves");
    assert!(is_classic(bench));
    assert_eq!(bench.state(), "PreparingRebalance");
    classic
}

#[test]
fn a_group_that_goes_back_and_over_again_keeps_what_members_have() {
    let mut bench = with_topic(2);
    let classic = gone_back_meanwhile(&mut bench);
    let joined = bench.beat(joining("newer", &["topic"])).expect("joins");
    assert_eq!(joined.assignment, Some(Partitions::default()));
    let rejoined = classic_join(&mut bench, classic.as_str());
    let synced = classic_sync(&mut bench, &rejoined).expect("synced");
    assert_eq!(assigned(&synced).len(), 1);
    let reply = bench.beat(going_on("newer", joined.epoch.get()));
    let got = reply.expect("goes on").assignment.expect("something");
    assert_eq!(got.len(), 1);
    check_replay(&bench);
}

#[test]
fn a_group_that_has_gone_back_rebalances_also_under_its_next_coordinator() {
    let mut bench = with_topic(2);
    let classic = gone_back_meanwhile(&mut bench);
    bench.restart();
    assert_eq!(bench.state(), "PreparingRebalance");
    let joined = classic_join(&mut bench, classic.as_str());
    assert_eq!(joined.leader, classic);
    assign_to_leader(&mut bench, &joined, &[0, 1]);
    bench.restart();
    assert_eq!(bench.state(), "Stable", "that is over");
}

#[test]
fn a_cooperative_member_that_has_yet_to_let_go_is_waited_for_when_its_group_goes_over() {
    // It has been given less than it had, or has said what it has and waits for what it is given.
    for is_given_less in [true, false] {
        let mut bench = with_topic(3);
        let classic = classic_group(&mut bench);
        let joined = classic_join_with(&mut bench, classic.as_str(), &[0, 1]);
        let generation = joined.generation.get();
        if is_given_less {
            assign_to_leader(&mut bench, &joined, &[0]);
        } else {
            // What members had been given is forgotten when a rebalance begins anew.
            let mut request = bench.join_request(&MemberId::new(""));
            request.member_id_required = false;
            request.protocols = vec![subscription(&[])];
            bench.ask(GroupRequest::Join(request));
            assert_eq!(bench.state(), "PreparingRebalance");
        }
        let joined = bench.beat(joining("new", &["topic"])).expect("joins");
        let given = joined.assignment.expect("an assignment");
        assert!(indexes(&given).iter().all(|index| *index == 2), "{given:?}");
        check_replay(&bench);
        let told = classic_beat(&mut bench, &classic, generation);
        assert_eq!(told, Err(GroupError::RebalanceInProgress));
        classic_join_with(&mut bench, classic.as_str(), &[]);
        let reply = bench.beat(going_on("new", joined.epoch.get()));
        reply.expect("goes on");
        let described = bench.described();
        let new = described
            .members
            .iter()
            .find(|one| one.member.as_str() == "new");
        let new = new.expect("the member");
        assert!(!new.target.is_empty());
        assert_eq!(new.assigned, new.target, "it need not wait any more");
    }
}

#[test]
fn a_static_member_that_comes_back_as_a_classic_one_waits_until_others_have_let_go() {
    let mut bench = with_topic(2);
    classic_group(&mut bench);
    let mut request = joining("new", &["topic"]);
    request.instance = Some(InstanceId::new("static"));
    let joined = bench.beat(request).expect("joins");
    assert_eq!(joined.assignment, Some(Partitions::default()));
    let mut request = bench.join_request(&MemberId::new(""));
    request.instance = Some(InstanceId::new("static"));
    request.protocols = vec![subscription(&[])];
    bench.ask(GroupRequest::Join(request));
    assert!(is_classic(&bench));
    assert_eq!(bench.state(), "PreparingRebalance");
}
