//! The rules of classic groups, one test a rule.

mod bounds;
mod static_members;

use crate::groups::bench::{Bench, GROUP, protocol};
use crate::groups::config::CoordinatorConfig;
use crate::groups::coordinator::persistent_view;
use crate::groups::error::GroupError;
use crate::groups::messages::{GroupReply, GroupRequest, LeaveRequest, LeavingMember, SyncRequest};
use crate::groups::names::{GenerationId, GroupId, MemberId};
use crate::groups::records::GroupRecord;

fn nobody() -> MemberId {
    MemberId::new("")
}

#[test]
fn a_new_member_is_told_its_id_and_has_to_come_back_with_it() {
    let mut bench = Bench::new();
    let (member, token) = bench.join_new();
    let joined = bench.joined(token).expect("the only member");
    assert_eq!(joined.error, None);
    assert_eq!(joined.generation, GenerationId::new(1));
    assert_eq!(joined.leader, member);
    assert_eq!(joined.member, member);
    assert_eq!(joined.protocol.as_deref(), Some("range"));
    assert_eq!(joined.protocol_type.as_deref(), Some("consumer"));
    assert_eq!(joined.members.len(), 1);
    assert_eq!(bench.state(), "CompletingRebalance");
}

#[test]
fn an_old_client_joins_without_a_second_request() {
    let mut bench = Bench::new();
    let mut request = bench.join_request(&nobody());
    request.member_id_required = false;
    let token = bench.ask(GroupRequest::Join(request));
    assert_eq!(bench.joined(token).expect("answered").error, None);
}

#[test]
fn a_member_id_that_never_comes_back_is_forgotten_after_one_session() {
    let mut bench = Bench::new();
    let request = bench.join_request(&nobody());
    let token = bench.ask(GroupRequest::Join(request));
    let member = bench.joined(token).expect("answered").member;
    bench.advance(10_000);
    let token = bench.rejoin(&member);
    assert_eq!(
        bench.joined(token).expect("answered").error,
        Some(GroupError::UnknownMember)
    );
}

#[test]
fn a_rebalance_waits_for_a_member_that_was_given_an_id() {
    let mut bench = Bench::new();
    let (members, _) = bench.stable_group(1);
    let request = bench.join_request(&nobody());
    bench.ask(GroupRequest::Join(request));
    let token = bench.rejoin(&members[0]);
    assert!(bench.joined(token).is_none());
    bench.advance(10_000);
    assert!(bench.joined(token).is_some());
}

#[test]
fn unknown_groups_members_and_empty_ids_are_refused() {
    let mut bench = Bench::new();
    let token = bench.rejoin(&MemberId::new("stranger"));
    assert_eq!(
        bench.joined(token).expect("answered").error,
        Some(GroupError::UnknownMember)
    );
    assert_eq!(bench.state(), "Dead");
    let mut request = bench.join_request(&nobody());
    request.group = GroupId::new("");
    let token = bench.ask(GroupRequest::Join(request));
    assert_eq!(
        bench.joined(token).expect("answered").error,
        Some(GroupError::InvalidGroupId)
    );
    bench.stable_group(1);
    let token = bench.rejoin(&MemberId::new("stranger"));
    assert_eq!(
        bench.joined(token).expect("answered").error,
        Some(GroupError::UnknownMember)
    );
}

#[test]
fn session_timeouts_outside_the_bounds_are_refused() {
    let mut bench = Bench::new();
    for session_timeout_ms in [5_999, 1_800_001, -1] {
        let mut request = bench.join_request(&nobody());
        request.session_timeout_ms = session_timeout_ms;
        let token = bench.ask(GroupRequest::Join(request));
        assert_eq!(
            bench.joined(token).expect("answered").error,
            Some(GroupError::InvalidSessionTimeout)
        );
    }
}

#[test]
fn an_empty_group_waits_for_latecomers_and_longer_if_some_come() {
    let mut bench = Bench::with_config(CoordinatorConfig::default());
    let (_, first) = bench.join_new();
    bench.advance(2_000);
    let (_, second) = bench.join_new();
    bench.advance(1_000);
    assert!(
        bench.joined(first).is_none(),
        "a newcomer extends the delay"
    );
    bench.advance(3_000);
    let (first, second) = (bench.joined(first), bench.joined(second));
    assert_eq!(first.expect("answered").generation, GenerationId::new(1));
    assert_eq!(second.expect("answered").generation, GenerationId::new(1));
}

#[test]
fn the_initial_delay_ends_with_the_rebalance_timeout_however_many_come() {
    let mut bench = Bench::with_config(CoordinatorConfig::default());
    let (_, first) = bench.join_new();
    let mut waited = 0;
    while bench.joined(first).is_none() {
        bench.join_new();
        bench.advance(1_000);
        waited += 1_000;
        assert!(waited <= 66_000, "{waited}");
    }
    assert!(waited >= 60_000, "{waited}");
}

#[test]
fn the_leader_alone_learns_the_members_and_hands_out_assignments() {
    let mut bench = Bench::new();
    let (leader, _) = bench.join_new();
    let (follower, follower_token) = bench.join_new();
    let leader_token = bench.rejoin(&leader);
    let leading = bench.joined(leader_token).expect("answered");
    let following = bench.joined(follower_token).expect("answered");
    assert_eq!(leading.members.len(), 2);
    assert_eq!(following.members.len(), 0);
    assert_eq!(following.leader, leader);
    assert_eq!(following.generation, leading.generation);
    let follower_sync = bench.sync(&follower, following.generation, &[]);
    assert!(
        bench.synced(follower_sync).is_none(),
        "waits for the leader"
    );
    let leader_sync = bench.sync(
        &leader,
        leading.generation,
        &[(&leader, b"one"), (&follower, b"two")],
    );
    let got = |reply: Option<Result<crate::groups::messages::SyncReply, _>>| {
        reply.expect("answered").expect("no error").assignment
    };
    assert_eq!(got(bench.synced(leader_sync)), &b"one"[..]);
    assert_eq!(got(bench.synced(follower_sync)), &b"two"[..]);
    assert_eq!(bench.state(), "Stable");
}

#[test]
fn a_member_without_partitions_gets_valid_empty_bytes() {
    let mut bench = Bench::new();
    let (leader, token) = bench.join_new();
    let generation = bench.joined(token).expect("answered").generation;
    let token = bench.sync(&leader, generation, &[]);
    let reply = bench.synced(token).expect("answered").expect("no error");
    assert!(reply.assignment.is_empty());
    assert_eq!(bench.heartbeat(&leader, generation), Ok(()));
    let again = bench.sync(&leader, generation, &[]);
    assert!(bench.synced(again).expect("answered").is_ok());
}

#[test]
fn a_member_that_joins_and_never_syncs_is_evicted_at_the_rebalance_timeout() {
    let mut bench = Bench::new();
    let (leader, _) = bench.join_new();
    let (silent, _) = bench.join_new();
    let token = bench.rejoin(&leader);
    let generation = bench.joined(token).expect("answered").generation;
    bench.sync(&leader, generation, &[(&leader, b"x")]);
    assert_eq!(bench.state(), "Stable");
    // Both go on beating, so the session is not what ends the one that does not sync.
    for _ in 0..12 {
        assert_eq!(bench.state(), "Stable");
        assert_eq!(bench.heartbeat(&silent, generation), Ok(()));
        assert_eq!(bench.heartbeat(&leader, generation), Ok(()));
        bench.advance(5_000);
    }
    assert_eq!(bench.state(), "PreparingRebalance");
    assert_eq!(
        bench.heartbeat(&silent, generation),
        Err(GroupError::UnknownMember)
    );
    assert_eq!(
        bench.heartbeat(&leader, generation),
        Err(GroupError::RebalanceInProgress)
    );
}

#[test]
fn a_leader_that_never_syncs_is_evicted_and_another_leads() {
    let mut bench = Bench::new();
    let (leader, _) = bench.join_new();
    let (follower, _) = bench.join_new();
    let token = bench.rejoin(&leader);
    let generation = bench.joined(token).expect("answered").generation;
    let waiting = bench.sync(&follower, generation, &[]);
    for _ in 0..12 {
        assert_eq!(bench.heartbeat(&leader, generation), Ok(()));
        bench.advance(5_000);
    }
    assert_eq!(
        bench.synced(waiting).expect("answered"),
        Err(GroupError::RebalanceInProgress)
    );
    let token = bench.rejoin(&follower);
    assert_eq!(bench.joined(token).expect("answered").leader, follower);
}

#[test]
fn silence_for_a_session_removes_a_member_and_rebalances() {
    let mut bench = Bench::new();
    let (members, generation) = bench.stable_group(2);
    bench.advance(9_000);
    assert_eq!(bench.heartbeat(&members[0], generation), Ok(()));
    bench.advance(1_000);
    assert_eq!(
        bench.heartbeat(&members[0], generation),
        Err(GroupError::RebalanceInProgress)
    );
    assert_eq!(
        bench.heartbeat(&members[1], generation),
        Err(GroupError::UnknownMember)
    );
}

#[test]
fn a_commit_keeps_a_session_alive() {
    let mut bench = Bench::new();
    let (members, generation) = bench.stable_group(1);
    for offset in 0..5 {
        bench.advance(9_000);
        let commit = Bench::commit_request(&members[0], generation, "topic", 0, offset);
        assert_eq!(bench.commit(commit), Ok(()));
    }
    assert_eq!(bench.state(), "Stable");
}

#[test]
fn members_that_do_not_rejoin_in_time_are_left_behind() {
    let mut bench = Bench::new();
    let (members, generation) = bench.stable_group(2);
    let (_, newcomer) = bench.join_new();
    let token = bench.rejoin(&members[0]);
    for _ in 0..12 {
        let _ = bench.heartbeat(&members[1], generation);
        bench.advance(5_000);
    }
    let joined = bench.joined(token).expect("answered");
    assert_eq!(joined.members.len(), 2);
    assert_eq!(joined.generation, generation.next());
    assert!(bench.joined(newcomer).is_some());
    assert_eq!(
        bench.heartbeat(&members[1], generation),
        Err(GroupError::UnknownMember)
    );
}

#[test]
fn a_member_that_waits_for_a_rebalance_need_not_beat() {
    let mut bench = Bench::new();
    let (members, generation) = bench.stable_group(2);
    let token = bench.rejoin(&members[0]);
    for _ in 0..5 {
        bench.advance(9_000);
        let _ = bench.heartbeat(&members[1], generation);
    }
    assert!(bench.joined(token).is_none());
    bench.rejoin(&members[1]);
    assert_eq!(bench.joined(token).expect("answered").error, None);
}

#[test]
fn another_generation_is_refused() {
    let mut bench = Bench::new();
    let (members, generation) = bench.stable_group(1);
    for wrong in [generation.next(), GenerationId::new(generation.get() - 1)] {
        assert_eq!(
            bench.heartbeat(&members[0], wrong),
            Err(GroupError::IllegalGeneration)
        );
        let token = bench.sync(&members[0], wrong, &[]);
        assert_eq!(
            bench.synced(token),
            Some(Err(GroupError::IllegalGeneration))
        );
        let commit = Bench::commit_request(&members[0], wrong, "topic", 0, 7);
        assert_eq!(bench.commit(commit), Err(GroupError::IllegalGeneration));
    }
    assert_eq!(bench.committed("topic", 0), None);
}

#[test]
fn a_follower_that_joins_a_stable_group_unchanged_gets_its_generation_back() {
    let mut bench = Bench::new();
    let (members, generation) = bench.stable_group(2);
    let token = bench.rejoin(&members[1]);
    let joined = bench.joined(token).expect("answered");
    assert_eq!((joined.generation, joined.members.len()), (generation, 0));
    assert_eq!(bench.state(), "Stable");
}

#[test]
fn a_leader_that_joins_a_stable_group_forces_a_rebalance() {
    let mut bench = Bench::new();
    let (members, _) = bench.stable_group(2);
    let token = bench.rejoin(&members[0]);
    assert!(bench.joined(token).is_none());
    assert_eq!(bench.state(), "PreparingRebalance");
}

#[test]
fn a_changed_subscription_forces_a_rebalance() {
    let mut bench = Bench::new();
    let (members, _) = bench.stable_group(2);
    let mut request = bench.join_request(&members[1]);
    request.protocols = vec![protocol("range", &["other"])];
    bench.ask(GroupRequest::Join(request));
    assert_eq!(bench.state(), "PreparingRebalance");
}

#[test]
fn a_repeated_join_while_the_leader_assigns_gets_the_same_answer() {
    let mut bench = Bench::new();
    let (leader, token) = bench.join_new();
    let first = bench.joined(token).expect("answered");
    let token = bench.rejoin(&leader);
    assert_eq!(bench.joined(token).expect("answered"), first);
}

#[test]
fn a_second_request_for_the_same_wait_answers_the_first() {
    let mut bench = Bench::new();
    let (members, _) = bench.stable_group(2);
    let first = bench.rejoin(&members[0]);
    let second = bench.rejoin(&members[0]);
    assert_eq!(
        bench.joined(first).expect("answered").error,
        Some(GroupError::RebalanceInProgress)
    );
    bench.rejoin(&members[1]);
    assert_eq!(bench.joined(second).expect("answered").error, None);
}

#[test]
fn members_without_a_common_protocol_are_refused() {
    let mut bench = Bench::new();
    let (members, _) = bench.stable_group(1);
    let refused = Some(GroupError::InconsistentProtocol);
    let mut other_type = bench.join_request(&nobody());
    other_type.protocol_type = "connect".to_owned();
    let mut other_protocol = bench.join_request(&members[0]);
    other_protocol.protocols = vec![protocol("sticky", &[])];
    let mut none = bench.join_request(&nobody());
    none.protocols.clear();
    for request in [other_type, other_protocol, none] {
        let token = bench.ask(GroupRequest::Join(request));
        assert_eq!(bench.joined(token).expect("answered").error, refused);
    }
}

#[test]
fn a_first_member_without_protocols_makes_no_group() {
    let mut bench = Bench::new();
    let mut request = bench.join_request(&nobody());
    request.protocols.clear();
    let token = bench.ask(GroupRequest::Join(request));
    assert_eq!(
        bench.joined(token).expect("answered").error,
        Some(GroupError::InconsistentProtocol)
    );
    assert_eq!(bench.state(), "Dead");
    assert!(bench.log.is_empty());
}

#[test]
fn the_protocol_that_most_members_prefer_wins() {
    let mut bench = Bench::new();
    let mut join = |names: &[&str]| {
        let mut request = bench.join_request(&nobody());
        request.member_id_required = false;
        request.protocols = names.iter().map(|name| protocol(name, &[])).collect();
        let member = request.fresh_member.clone();
        (member, bench.ask(GroupRequest::Join(request)))
    };
    let (first, _) = join(&["range", "sticky"]);
    join(&["sticky", "range"]);
    let (_, third) = join(&["sticky", "range", "odd", "sticky"]);
    let mut again = bench.join_request(&first);
    again.protocols = vec![protocol("range", &[]), protocol("sticky", &[])];
    bench.ask(GroupRequest::Join(again));
    bench.advance(60_000);
    assert_eq!(
        bench.joined(third).expect("answered").protocol.as_deref(),
        Some("sticky")
    );
}

#[test]
fn a_sync_that_believes_in_another_protocol_is_refused() {
    let mut bench = Bench::new();
    let (members, generation) = bench.stable_group(1);
    for (protocol_type, protocol) in [(Some("connect"), None), (None, Some("sticky"))] {
        let token = bench.ask(GroupRequest::Sync(SyncRequest {
            group: GroupId::new(GROUP),
            member: members[0].clone(),
            instance: None,
            generation,
            protocol_type: protocol_type.map(str::to_owned),
            protocol: protocol.map(str::to_owned),
            assignments: Vec::new(),
        }));
        assert_eq!(
            bench.synced(token),
            Some(Err(GroupError::InconsistentProtocol))
        );
    }
}

#[test]
fn a_sync_during_a_rebalance_is_told_to_join() {
    let mut bench = Bench::new();
    let (members, generation) = bench.stable_group(2);
    bench.rejoin(&members[0]);
    let token = bench.sync(&members[1], generation, &[]);
    assert_eq!(
        bench.synced(token),
        Some(Err(GroupError::RebalanceInProgress))
    );
}

#[test]
fn leaving_rebalances_at_once_and_the_last_one_leaves_an_empty_group() {
    let mut bench = Bench::new();
    let (members, generation) = bench.stable_group(2);
    assert_eq!(bench.leave(&members[0]), [Ok(())]);
    assert_eq!(bench.state(), "PreparingRebalance");
    assert_eq!(bench.leave(&members[0]), [Err(GroupError::UnknownMember)]);
    assert_eq!(bench.leave(&members[1]), [Ok(())]);
    assert_eq!(bench.state(), "Empty");
    let Some(GroupRecord::Group(_, Some(last))) = bench.log.last() else {
        panic!("no record of the empty group");
    };
    assert_eq!(last.generation, generation.next());
    assert!(last.members.is_empty() && last.protocol.is_none() && last.leader.is_none());
    assert_eq!(last.protocol_type, "consumer");
}

#[test]
fn a_batch_of_leaves_is_answered_one_by_one() {
    let mut bench = Bench::new();
    let (members, _) = bench.stable_group(2);
    let leaving = |member: &MemberId| LeavingMember {
        member: member.clone(),
        instance: None,
        reason: "test".to_owned(),
    };
    let token = bench.ask(GroupRequest::Leave(LeaveRequest {
        group: GroupId::new(GROUP),
        members: vec![
            leaving(&members[1]),
            leaving(&MemberId::new("stranger")),
            leaving(&members[0]),
        ],
    }));
    assert_eq!(
        bench.reply(token),
        Some(GroupReply::Leave(Ok(vec![
            Ok(()),
            Err(GroupError::UnknownMember),
            Ok(())
        ])))
    );
    assert_eq!(bench.state(), "Empty");
}

#[test]
fn a_leave_ends_the_wait_of_the_one_who_leaves_and_of_the_rest() {
    let mut bench = Bench::new();
    let (members, _) = bench.stable_group(2);
    let waiting = bench.rejoin(&members[0]);
    assert_eq!(bench.leave(&members[1]), [Ok(())]);
    assert_eq!(bench.joined(waiting).expect("answered").members.len(), 1);
    let (_, newcomer) = bench.join_new();
    assert!(bench.joined(newcomer).is_none());
    let waiting = bench.rejoin(&members[0]);
    assert!(bench.joined(waiting).is_some());
}

#[test]
fn the_records_are_an_empty_group_then_one_for_each_settled_generation() {
    let mut bench = Bench::new();
    let (members, generation) = bench.stable_group(1);
    let generations: Vec<_> = bench
        .log
        .iter()
        .map(|record| match record {
            GroupRecord::Group(_, Some(group)) => (group.generation.get(), group.members.len()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(generations, [(0, 0), (generation.get(), 1)]);
    let Some(GroupRecord::Group(_, Some(last))) = bench.log.last() else {
        panic!("no record");
    };
    assert_eq!(last.leader.as_ref(), Some(&members[0]));
    assert_eq!(last.members[0].assignment, &b"a"[..]);
}

#[test]
fn a_restarted_coordinator_goes_on_with_the_same_generation() {
    let mut bench = Bench::new();
    let (members, generation) = bench.stable_group(2);
    let before = persistent_view(&bench.coordinator);
    bench.restart();
    assert_eq!(persistent_view(&bench.coordinator), before);
    for member in &members {
        assert_eq!(bench.heartbeat(member, generation), Ok(()));
    }
    let token = bench.sync(&members[1], generation, &[]);
    let reply = bench.synced(token).expect("answered").expect("no error");
    assert_eq!(reply.assignment, &b"b"[..]);
    // Whoever does not show up within a session is removed.
    bench.advance(9_000);
    assert_eq!(bench.heartbeat(&members[0], generation), Ok(()));
    bench.advance(1_000);
    assert_eq!(
        bench.heartbeat(&members[1], generation),
        Err(GroupError::UnknownMember)
    );
}
