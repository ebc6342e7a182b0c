//! How many members a group takes, and how much they may bring along.

use super::nobody;
use crate::groups::bench::Bench;
use crate::groups::config::CoordinatorConfig;
use crate::groups::error::GroupError;
use crate::groups::member_memory::MemberMemory;
use crate::groups::messages::{GroupRequest, SyncRequest};
use crate::groups::names::GroupId;

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
    let memory = MemberMemory::for_anybody(100_000);
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
    let memory = MemberMemory::for_anybody(65_536);
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
