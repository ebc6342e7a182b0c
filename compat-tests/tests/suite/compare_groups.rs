//! FindCoordinator and the classic group protocol, compared with Kafka.

use anyhow::{Context, Result};
use bytes::Bytes;
use compat_tests::comparison::compare;
use compat_tests::groups::{
    Member, committed, coordinator_is_up, join_request, offset_commit, offset_fetch, sync_request,
};
use compat_tests::requests::create_topic;
use compat_tests::wire::text;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::{
    FindCoordinatorRequest, GroupId, HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest,
    OffsetCommitRequest, OffsetFetchRequest, SyncGroupRequest,
};

#[test]
fn find_coordinator() -> Result<()> {
    compare("find_coordinator", |probe| {
        coordinator_is_up(probe.wire()?, "find-coordinator")?;
        compat_tests::transactions::find_coordinator(probe.wire()?, "find-coordinator-txn")?;
        for (label, key, key_type) in [
            ("a group", "find-coordinator", 0),
            ("an empty group", "", 0),
            ("a transactional id", "find-coordinator-txn", 1),
            ("an unknown kind", "find-coordinator", 7),
            ("a negative kind", "find-coordinator", -1),
        ] {
            for version in probe.versions::<FindCoordinatorRequest>() {
                let mut request = FindCoordinatorRequest::default();
                if version >= 1 {
                    request.key_type = key_type;
                }
                if version >= 4 {
                    request.coordinator_keys = vec![text(key), text("another")];
                } else {
                    request.key = text(key);
                }
                probe.ask(label, version, &request)?;
            }
        }
        for version in probe
            .versions::<FindCoordinatorRequest>()
            .filter(|version| *version >= 4)
        {
            probe.ask("no keys", version, &FindCoordinatorRequest::default())?;
        }
        Ok(())
    })
}

#[test]
fn one_member_from_join_to_leave() -> Result<()> {
    compare("one_member_from_join_to_leave", |probe| {
        probe.mask("members[].member_id");
        for version in probe.versions::<JoinGroupRequest>() {
            let group = format!("one-member-v{version}");
            coordinator_is_up(probe.wire()?, &group)?;
            let answer = probe
                .ask("join", version, &join_request(version, &group, "", "range"))?
                .context("no answer")?;
            let id = answer.member_id.to_string();
            probe.note("an id to join with", !id.is_empty())?;
            let answer = probe
                .ask(
                    "join with the id",
                    version,
                    &join_request(version, &group, &id, "range"),
                )?
                .context("no answer")?;
            let (id, generation) = (answer.member_id.to_string(), answer.generation_id);
            probe.note("leads", answer.leader == answer.member_id)?;
            let sync_version = version.min(5);
            let sync = |generation, id: &str, assigned: &'static [u8]| {
                sync_request(
                    sync_version,
                    &group,
                    generation,
                    id,
                    "range",
                    &[(id, Bytes::from_static(assigned))],
                )
            };
            probe.ask(
                "sync in another generation",
                sync_version,
                &sync(generation + 1, &id, b"x"),
            )?;
            probe.ask(
                "sync as nobody",
                sync_version,
                &sync(generation, "nobody", b"x"),
            )?;
            let beat = |generation, id: &str| {
                HeartbeatRequest::default()
                    .with_group_id(GroupId(text(&group)))
                    .with_generation_id(generation)
                    .with_member_id(text(id))
            };
            let beat_version = version.min(4);
            probe.ask(
                "heartbeat before the sync",
                beat_version,
                &beat(generation, &id),
            )?;
            probe.ask("sync", sync_version, &sync(generation, &id, b"assignment"))?;
            probe.ask("sync again", sync_version, &sync(generation, &id, b"other"))?;
            probe.ask("heartbeat", beat_version, &beat(generation, &id))?;
            probe.ask(
                "heartbeat of another generation",
                beat_version,
                &beat(generation + 1, &id),
            )?;
            probe.ask(
                "heartbeat of nobody",
                beat_version,
                &beat(generation, "nobody"),
            )?;
            probe.ask(
                "join again",
                version,
                &join_request(version, &group, &id, "range"),
            )?;
            probe.ask(
                "heartbeat in the old generation",
                beat_version,
                &beat(generation, &id),
            )?;
            let wrong = join_request(version, &group, "no-such-member", "range");
            probe.ask("join with an id that nobody has", version, &wrong)?;
            let leave_version = version.min(5);
            let leave = |ids: &[&str]| {
                let request = LeaveGroupRequest::default().with_group_id(GroupId(text(&group)));
                if leave_version >= 3 {
                    let members = ids
                        .iter()
                        .map(|id| MemberIdentity::default().with_member_id(text(id)));
                    request.with_members(members.collect())
                } else {
                    request.with_member_id(text(ids.first().unwrap_or(&"")))
                }
            };
            probe.ask("nobody leaves", leave_version, &leave(&["nobody"]))?;
            probe.ask("leave", leave_version, &leave(&[&id, "nobody"]))?;
            probe.ask("leave again", leave_version, &leave(&[&id]))?;
            probe.ask("heartbeat after that", beat_version, &beat(generation, &id))?;
        }
        Ok(())
    })
}

#[test]
fn joins_that_are_refused() -> Result<()> {
    compare("joins_that_are_refused", |probe| {
        for version in probe.versions::<JoinGroupRequest>() {
            let group = format!("join-refused-v{version}");
            coordinator_is_up(probe.wire()?, &group)?;
            let good = || join_request(version, &group, "", "range");
            probe.ask(
                "an empty group",
                version,
                &join_request(version, "", "", "range"),
            )?;
            probe.ask(
                "a session too short",
                version,
                &good().with_session_timeout_ms(1),
            )?;
            probe.ask(
                "a session too long",
                version,
                &good().with_session_timeout_ms(100_000_000),
            )?;
            probe.ask("no protocols", version, &good().with_protocols(vec![]))?;
            probe.ask(
                "no protocol type",
                version,
                &good().with_protocol_type(text("")),
            )?;
            let mut member = Member::join(probe.address(), &group, "range")?;
            member.sync(&[])?;
            probe.ask(
                "another protocol type",
                version,
                &good().with_protocol_type(text("connect")),
            )?;
            probe.ask(
                "no common protocol",
                version,
                &join_request(version, &group, "", "sticky"),
            )?;
            let mut none = good();
            none.protocols.clear();
            probe.ask("no protocols, into a group", version, &none)?;
        }
        Ok(())
    })
}

#[test]
fn two_members_rebalance() -> Result<()> {
    compare("two_members_rebalance", |probe| {
        let group = "two-members";
        coordinator_is_up(probe.wire()?, group)?;
        let mut first = Member::join(probe.address(), group, "range")?;
        first.sync(&[(&first.id.clone(), b"everything")])?;
        probe.note("assignment", &first.assignment)?;
        probe.note("beats", first.heartbeat()?)?;
        let second = Member::start_join(probe.address(), group, "range")?;
        // The first learns of the rebalance from a heartbeat.
        let mut code = 0;
        for _ in 0..200 {
            code = first.heartbeat()?;
            if code != 0 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        probe.note("rebalance in progress", code)?;
        first.rejoin()?;
        let mut second = second.finish()?;
        probe.note("generations", (first.generation, second.generation))?;
        probe.note("the first still leads", first.is_leader())?;
        probe.note(
            "only the leader sees the members",
            (first.members.len(), second.members.len()),
        )?;
        probe.note("a heartbeat between join and sync", first.heartbeat()?)?;
        let (a, b) = (first.id.clone(), second.id.clone());
        let waiting = second.start_sync()?;
        first.sync(&[(&a, b"one"), (&b, b"two")])?;
        second.finish_sync(waiting)?;
        probe.note("assignments", (&first.assignment, &second.assignment))?;
        probe.note("beats", (first.heartbeat()?, second.heartbeat()?))?;
        probe.note("commits", second.commit(&[("two-members-topic", 0, 5)])?)?;
        probe.note("leaves", first.leave()?)?;
        probe.note("rebalance in progress", second.heartbeat()?)?;
        second.rejoin()?;
        probe.note("the second leads now", second.is_leader())?;
        probe.note("generation", second.generation)?;
        second.sync(&[])?;
        probe.note("an assignment of nothing", &second.assignment)?;
        Ok(())
    })
}

#[test]
fn offsets_without_a_group_membership() -> Result<()> {
    compare("offsets_without_a_group_membership", |probe| {
        for name in ["offsets-z", "offsets-a", "offsets-m"] {
            let topic = create_topic(probe.wire()?, name, 2, &[])?;
            probe.remember(&topic);
        }
        // Kafka answers the rows that it refuses first.
        probe.sort("topics", "name");
        for version in probe.versions::<OffsetCommitRequest>() {
            let group = format!("plain-offsets-v{version}");
            coordinator_is_up(probe.wire()?, &group)?;
            let rows = [
                ("offsets-z", 0, 5),
                ("offsets-a", 1, 7),
                ("offsets-m", 0, 9),
                ("offsets-a", 0, 8),
            ];
            probe.ask(
                "commit",
                version,
                &offset_commit(version, &group, -1, "", &rows),
            )?;
            let rows = [
                ("offsets-a", 0, 10),
                ("offsets-nowhere", 0, 1),
                ("offsets-m", 5, 1),
                ("offsets-z", 1, -1),
            ];
            probe.ask(
                "some that are not there",
                version,
                &offset_commit(version, &group, -1, "", &rows),
            )?;
            probe.ask(
                "with a generation",
                version,
                &offset_commit(version, &group, 3, "", &rows[..1]),
            )?;
            probe.ask(
                "with a member",
                version,
                &offset_commit(version, &group, -1, "nobody", &rows[..1]),
            )?;
            probe.ask(
                "with both",
                version,
                &offset_commit(version, &group, 3, "nobody", &rows[..1]),
            )?;
            probe.ask(
                "to no group",
                version,
                &offset_commit(version, "", -1, "", &rows[..1]),
            )?;
            probe.ask(
                "nothing",
                version,
                &offset_commit(version, &group, -1, "", &[]),
            )?;
            let mut large = offset_commit(version, &group, -1, "", &rows[..1]);
            for row in large
                .topics
                .iter_mut()
                .flat_map(|topic| &mut topic.partitions)
            {
                row.committed_metadata = Some(text("m".repeat(5000)));
            }
            probe.ask("metadata too large", version, &large)?;
            for row in large
                .topics
                .iter_mut()
                .flat_map(|topic| &mut topic.partitions)
            {
                row.committed_metadata = None;
            }
            probe.ask("null metadata", version, &large)?;
            if version >= 6 {
                for row in large
                    .topics
                    .iter_mut()
                    .flat_map(|topic| &mut topic.partitions)
                {
                    row.committed_leader_epoch = 3;
                }
                probe.ask("with a leader epoch", version, &large)?;
            }
            probe.sort("topics[].partitions", "partition_index");
            probe.ask("what is there", 7, &offset_fetch(7, &group, None))?;
        }
        Ok(())
    })
}

#[test]
fn offset_fetch_of_what_was_never_committed() -> Result<()> {
    compare("offset_fetch_of_what_was_never_committed", |probe| {
        let topic = create_topic(probe.wire()?, "never-committed", 2, &[])?;
        probe.remember(&topic);
        let group = "offset-fetch";
        coordinator_is_up(probe.wire()?, group)?;
        probe.prepare(
            8,
            &offset_commit(8, group, -1, "", &[("never-committed", 0, 5)]),
        )?;
        for version in probe.versions::<OffsetFetchRequest>() {
            let rows = [("never-committed", &[0, 1, 7][..]), ("never-created", &[0])];
            probe.ask(
                "a group",
                version,
                &offset_fetch(version, group, Some(&rows)),
            )?;
            probe.ask(
                "an unknown group",
                version,
                &offset_fetch(version, "no-such-group", Some(&rows)),
            )?;
            probe.ask(
                "an empty group",
                version,
                &offset_fetch(version, "", Some(&rows)),
            )?;
            probe.ask("nothing", version, &offset_fetch(version, group, Some(&[])))?;
            if version >= 2 {
                probe.ask("everything", version, &offset_fetch(version, group, None))?;
                probe.ask(
                    "everything of nobody",
                    version,
                    &offset_fetch(version, "no-such-group", None),
                )?;
            }
            if version >= 7 {
                let stable = offset_fetch(version, group, Some(&rows)).with_require_stable(true);
                probe.ask("only stable", version, &stable)?;
            }
        }
        let row = committed(probe.wire()?, group, "never-committed", 0)?;
        probe.note("committed", row)?;
        Ok(())
    })
}

#[test]
fn commits_of_members() -> Result<()> {
    compare("commits_of_members", |probe| {
        let topic = create_topic(probe.wire()?, "member-commits", 1, &[])?;
        probe.remember(&topic);
        for version in probe.versions::<OffsetCommitRequest>() {
            let group = format!("member-commits-v{version}");
            coordinator_is_up(probe.wire()?, &group)?;
            let mut member = Member::join(probe.address(), &group, "range")?;
            let rows = [("member-commits", 0, 3)];
            let commit =
                |generation, id: &str| offset_commit(version, &group, generation, id, &rows);
            let (generation, id) = (member.generation, member.id.clone());
            probe.ask("before the sync", version, &commit(generation, &id))?;
            member.sync(&[])?;
            probe.ask("as the member", version, &commit(generation, &id))?;
            probe.ask(
                "in another generation",
                version,
                &commit(generation + 1, &id),
            )?;
            probe.ask("as another", version, &commit(generation, "nobody"))?;
            probe.ask(
                "without membership while there are members",
                version,
                &commit(-1, ""),
            )?;
            member.leave()?;
            probe.ask("after leaving", version, &commit(generation, &id))?;
            probe.ask(
                "without membership once it is empty",
                version,
                &commit(-1, ""),
            )?;
        }
        Ok(())
    })
}

#[test]
fn requests_to_groups_that_nobody_joined() -> Result<()> {
    compare("requests_to_groups_that_nobody_joined", |probe| {
        let group = "nobody-joined";
        coordinator_is_up(probe.wire()?, group)?;
        probe.ask_each("heartbeat", |_| {
            HeartbeatRequest::default()
                .with_group_id(GroupId(text(group)))
                .with_generation_id(1)
                .with_member_id(text("nobody"))
        })?;
        for version in probe.versions::<SyncGroupRequest>() {
            probe.ask(
                "sync",
                version,
                &sync_request(version, group, 1, "nobody", "range", &[]),
            )?;
            probe.ask(
                "sync of no group",
                version,
                &sync_request(version, "", 1, "nobody", "range", &[]),
            )?;
        }
        for version in probe.versions::<LeaveGroupRequest>() {
            let request = LeaveGroupRequest::default().with_group_id(GroupId(text(group)));
            let request = if version >= 3 {
                request.with_members(vec![
                    MemberIdentity::default().with_member_id(text("nobody")),
                ])
            } else {
                request.with_member_id(text("nobody"))
            };
            probe.ask("leave", version, &request)?;
        }
        Ok(())
    })
}
