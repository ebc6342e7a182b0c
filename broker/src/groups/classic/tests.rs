//! The rules of classic groups, one test a rule.

use crate::groups::bench::{Bench, GROUP, protocol};
use crate::groups::config::CoordinatorConfig;
use crate::groups::coordinator::persistent_view;
use crate::groups::error::GroupError;
use crate::groups::member_memory::MemberMemory;
use crate::groups::messages::{GroupReply, GroupRequest, LeaveRequest, LeavingMember, SyncRequest};
use crate::groups::names::{GenerationId, GroupId, InstanceId, MemberId};
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
fn a_full_group_takes_nobody_else() {
    let mut bench = Bench::with_config(CoordinatorConfig {
        group_initial_rebalance_delay_ms: 0,
        group_max_size: 2,
        ..CoordinatorConfig::default()
    });
    let (members, _) = bench.stable_group(2);
    let request = bench.join_request(&nobody());
    let token = bench.ask(GroupRequest::Join(request));
    assert_eq!(
        bench.joined(token).expect("answered").error,
        Some(GroupError::GroupFull)
    );
    let token = bench.rejoin(&members[1]);
    assert_eq!(bench.joined(token).expect("answered").error, None);
}

/// A budget for all groups: what one client fills with subscriptions must not grow for ever.
#[test]
fn members_of_all_groups_together_bring_no_more_than_there_is_memory_for() {
    let memory = MemberMemory::new(100_000);
    let mut bench = Bench::with_config(CoordinatorConfig {
        group_initial_rebalance_delay_ms: 0,
        member_memory: memory.clone(),
        ..CoordinatorConfig::default()
    });
    let with = |bench: &mut Bench, group: &str, bytes: usize| {
        let mut request = bench.join_request(&nobody());
        request.group = GroupId::new(group);
        request.member_id_required = false;
        request.protocols[0].metadata = vec![7; bytes].into();
        let token = bench.ask(GroupRequest::Join(request));
        bench.joined(token).expect("answered")
    };
    let first = with(&mut bench, "first", 60_000);
    assert_eq!(first.error, None);
    let refused = with(&mut bench, "second", 60_000);
    assert_eq!(refused.error, Some(GroupError::NotAvailable));
    assert_eq!(with(&mut bench, "third", 10_000).error, None);
    // An assignment counts as a subscription does.
    let sync = |bytes: usize| {
        GroupRequest::Sync(SyncRequest {
            group: GroupId::new("first"),
            member: first.member.clone(),
            instance: None,
            generation: first.generation,
            protocol_type: None,
            protocol: None,
            assignments: vec![(first.member.clone(), vec![8; bytes].into())],
        })
    };
    let token = bench.ask(sync(60_000));
    assert_eq!(bench.synced(token), Some(Err(GroupError::NotAvailable)));
    let token = bench.ask(sync(10_000));
    assert!(matches!(bench.synced(token), Some(Ok(_))));
    assert!(memory.used() > 80_000);
    // A restart counts what it reads, and members that go give back what they held.
    bench.restart();
    assert!(memory.used() > 70_000, "{}", memory.used());
    bench.advance(600_000);
    assert_eq!(memory.used(), 0);
    assert_eq!(with(&mut bench, "second", 60_000).error, None);
}

/// Ids that are given out and never come back are bounded too.
#[test]
fn ids_that_do_not_come_back_take_no_more_than_there_is_memory_for() {
    let memory = MemberMemory::new(65_536);
    let mut bench = Bench::with_config(CoordinatorConfig {
        member_memory: memory.clone(),
        ..CoordinatorConfig::default()
    });
    let refused = (0..10_000).any(|_| {
        let request = bench.join_request(&nobody());
        let token = bench.ask(GroupRequest::Join(request));
        bench.joined(token).expect("answered").error == Some(GroupError::NotAvailable)
    });
    assert!(refused && memory.used() <= 65_536);
    bench.advance(10_000);
    assert_eq!(memory.used(), 0);
}

#[test]
fn a_lowered_size_makes_a_loaded_group_rebalance_and_the_last_stay_out() {
    let mut bench = Bench::new();
    let (members, _) = bench.stable_group(3);
    bench.config.group_max_size = 2;
    bench.restart();
    assert_eq!(bench.state(), "PreparingRebalance");
    let first = bench.rejoin(&members[1]);
    let second = bench.rejoin(&members[2]);
    let third = bench.rejoin(&members[0]);
    assert_eq!(
        bench.joined(third).expect("answered").error,
        Some(GroupError::GroupFull)
    );
    assert_eq!(bench.joined(first).expect("answered").error, None);
    assert_eq!(bench.joined(second).expect("answered").error, None);
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

#[test]
fn an_assignment_too_large_for_a_record_is_refused_and_nothing_is_written() {
    let mut bench = Bench::new();
    bench.config.max_record_bytes = 512;
    bench.restart();
    let (leader, token) = bench.join_new();
    let generation = bench.joined(token).expect("answered").generation;
    let written = bench.log.len();
    let token = bench.sync(&leader, generation, &[(&leader, &[7; 1_000])]);
    assert_eq!(bench.synced(token), Some(Err(GroupError::RecordTooLarge)));
    assert_eq!(bench.log.len(), written);
    assert_eq!(bench.state(), "PreparingRebalance");
}

#[test]
fn a_member_too_large_for_a_record_is_refused_and_leaves_the_others_alone() {
    let mut bench = Bench::new();
    bench.config.max_record_bytes = 512;
    bench.restart();
    let (members, generation) = bench.stable_group(2);
    let mut request = bench.join_request(&nobody());
    for protocol in &mut request.protocols {
        protocol.metadata = vec![7; 513].into();
    }
    let token = bench.ask(GroupRequest::Join(request));
    let refused = bench.joined(token).expect("answered").error;
    assert_eq!(refused, Some(GroupError::RecordTooLarge));
    assert_eq!(bench.state(), "Stable");
    assert_eq!(bench.heartbeat(&members[0], generation), Ok(()));
}

fn static_join(
    bench: &mut Bench,
    instance: &str,
) -> (MemberId, crate::coordinator::effects::RequestToken) {
    let mut request = bench.join_request(&nobody());
    request.instance = Some(InstanceId::new(instance));
    let fresh = request.fresh_member.clone();
    (fresh, bench.ask(GroupRequest::Join(request)))
}

#[test]
fn a_static_member_that_comes_back_keeps_its_assignment_without_a_rebalance() {
    let mut bench = Bench::new();
    let (old, token) = static_join(&mut bench, "one");
    let generation = bench.joined(token).expect("answered").generation;
    bench.sync(&old, generation, &[(&old, b"mine")]);
    let (new, token) = static_join(&mut bench, "one");
    let joined = bench.joined(token).expect("answered");
    assert_eq!((joined.error, joined.generation), (None, generation));
    assert!(joined.skip_assignment, "the leader must not assign anew");
    assert_eq!(bench.state(), "Stable");
    let token = bench.sync(&new, generation, &[]);
    assert_eq!(
        bench
            .synced(token)
            .expect("answered")
            .expect("no error")
            .assignment,
        &b"mine"[..]
    );
    let view = persistent_view(&bench.coordinator);
    assert_eq!(persistent_view(&bench.replayed()), view);
}

#[test]
fn the_old_holder_of_an_instance_is_fenced() {
    let mut bench = Bench::new();
    let (old, token) = static_join(&mut bench, "one");
    let generation = bench.joined(token).expect("answered").generation;
    bench.sync(&old, generation, &[(&old, b"mine")]);
    static_join(&mut bench, "one");
    let mut commit = Bench::commit_request(&old, generation, "topic", 0, 7);
    commit.instance = Some(InstanceId::new("one"));
    assert_eq!(bench.commit(commit), Err(GroupError::FencedInstance));
    assert_eq!(
        bench.heartbeat(&old, generation),
        Err(GroupError::UnknownMember)
    );
    let mut request = bench.join_request(&old);
    request.instance = Some(InstanceId::new("one"));
    let token = bench.ask(GroupRequest::Join(request));
    assert_eq!(
        bench.joined(token).expect("answered").error,
        Some(GroupError::FencedInstance)
    );
}

#[test]
fn a_static_member_that_comes_back_in_the_middle_of_a_rebalance_fences_the_old_one() {
    let mut bench = Bench::new();
    let (old, token) = static_join(&mut bench, "one");
    let generation = bench.joined(token).expect("answered").generation;
    bench.sync(&old, generation, &[(&old, b"mine")]);
    let (dynamic, _) = bench.join_new();
    let mut rejoin = bench.join_request(&old);
    rejoin.instance = Some(InstanceId::new("one"));
    let waiting = bench.ask(GroupRequest::Join(rejoin));
    let generation = bench.joined(waiting).expect("both are there").generation;
    // The leader asks for its old assignment from version 2 on, in whatever state it comes back.
    let waiting = bench.sync(&dynamic, generation, &[]);
    let (new, token) = static_join(&mut bench, "one");
    assert_eq!(
        bench.synced(waiting).expect("answered"),
        Err(GroupError::RebalanceInProgress)
    );
    bench.rejoin(&dynamic);
    let joined = bench.joined(token).expect("answered");
    assert_eq!((joined.error, joined.leader), (None, new));
    assert_eq!(
        bench.heartbeat(&old, generation),
        Err(GroupError::UnknownMember)
    );
}

#[test]
fn a_static_member_may_be_removed_by_its_instance() {
    let mut bench = Bench::new();
    let (_, token) = static_join(&mut bench, "one");
    bench.joined(token).expect("answered");
    let left = bench.leave_as(&nobody(), Some(InstanceId::new("two")));
    assert_eq!(left, [Err(GroupError::UnknownMember)]);
    let left = bench.leave_as(&nobody(), Some(InstanceId::new("one")));
    assert_eq!(left, [Ok(())]);
    assert_eq!(bench.state(), "Empty");
}

#[test]
fn a_silent_static_member_keeps_its_place_through_a_rebalance_until_its_session_ends() {
    let mut bench = Bench::new();
    let mut request = bench.join_request(&nobody());
    request.instance = Some(InstanceId::new("one"));
    request.session_timeout_ms = 300_000;
    let silent = request.fresh_member.clone();
    let token = bench.ask(GroupRequest::Join(request));
    let generation = bench.joined(token).expect("answered").generation;
    bench.sync(&silent, generation, &[(&silent, b"mine")]);
    let (dynamic, waiting) = bench.join_new();
    bench.advance(60_000);
    let joined = bench.joined(waiting).expect("answered");
    assert_eq!(joined.leader, dynamic, "one who has joined leads");
    assert_eq!(joined.members.len(), 2);
}

/// A member whose answers were lost joined again, was told that everything stands, and asked for its
/// assignment; a moment later it was taken out, because only its heartbeats had counted, and its
/// partitions went to others while it took them for its own.
#[test]
fn a_member_that_joins_again_and_asks_for_its_assignment_has_a_session_from_then_on() {
    let mut bench = Bench::new();
    let (members, generation) = bench.stable_group(2);
    let leader_beats = |bench: &mut Bench| {
        assert_eq!(bench.heartbeat(&members[0], generation), Ok(()));
    };
    bench.advance(9_000);
    leader_beats(&mut bench);
    let token = bench.rejoin(&members[1]);
    let joined = bench.joined(token).expect("everything stands");
    assert_eq!((joined.error, joined.generation), (None, generation));
    bench.advance(5_000);
    leader_beats(&mut bench);
    let token = bench.sync(&members[1], generation, &[]);
    assert!(matches!(bench.synced(token), Some(Ok(_))));
    bench.advance(9_000);
    assert_eq!(bench.heartbeat(&members[1], generation), Ok(()));
}
