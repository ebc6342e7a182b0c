//! Members that keep their place by the name of their instance (KIP-345).

use super::nobody;
use crate::coordinator::effects::RequestToken;
use crate::groups::bench::Bench;
use crate::groups::coordinator::persistent_view;
use crate::groups::error::GroupError;
use crate::groups::messages::GroupRequest;
use crate::groups::names::{InstanceId, MemberId};

fn static_join(bench: &mut Bench, instance: &str) -> (MemberId, RequestToken) {
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
