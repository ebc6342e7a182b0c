//! Static members of classic groups (`group.instance.id`, KIP-345), compared with Kafka.

use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use compat_tests::comparison::compare;
use compat_tests::groups::{Member, coordinator_is_up, join_request, offset_commit, sync_request};
use compat_tests::requests::create_topic;
use compat_tests::transcript::Probe;
use compat_tests::wire::text;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::{
    DescribeGroupsRequest, GroupId, HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest,
    OffsetCommitRequest, SyncGroupRequest,
};

/// First versions whose requests name an instance.
const JOIN: i16 = 5;
const COMMIT: i16 = 7;

fn join(version: i16, group: &str, id: &str, instance: &str) -> JoinGroupRequest {
    join_request(version, group, id, "range").with_group_instance_id(Some(text(instance)))
}

fn sync(version: i16, group: &str, generation: i32, id: &str, instance: &str) -> SyncGroupRequest {
    let assignments = [(id, Bytes::from_static(b"its place"))];
    sync_request(version, group, generation, id, "range", &assignments)
        .with_group_instance_id(Some(text(instance)))
}

fn heartbeat(group: &str, generation: i32, id: &str, instance: Option<&str>) -> HeartbeatRequest {
    HeartbeatRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_generation_id(generation)
        .with_member_id(text(id))
        .with_group_instance_id(instance.map(text))
}

fn leave(group: &str, members: &[(&str, &str)]) -> LeaveGroupRequest {
    let members = members
        .iter()
        .map(|(id, instance)| {
            MemberIdentity::default()
                .with_member_id(text(id))
                .with_group_instance_id(Some(text(instance)))
        })
        .collect();
    LeaveGroupRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_members(members)
}

fn describe(probe: &mut Probe, group: &str) -> Result<()> {
    let request = DescribeGroupsRequest::default().with_groups(vec![GroupId(text(group))]);
    probe.ask("how the group stands", 6, &request).map(drop)
}

#[test]
fn a_static_member_that_restarts_keeps_its_place_and_fences_its_former_self() -> Result<()> {
    compare(
        "a_static_member_that_restarts_keeps_its_place_and_fences_its_former_self",
        |probe| {
            probe.mask("members[].member_id");
            probe.mask("groups[].members[].client_host");
            let topic = create_topic(probe.wire()?, "static-commits", 1, &[])?;
            probe.remember(&topic);
            for version in probe.versions::<JoinGroupRequest>().filter(|v| *v >= JOIN) {
                let group = &format!("static-v{version}");
                coordinator_is_up(probe.wire()?, group)?;
                let (sync_version, beat_version) = (version.min(5), (version - 2).min(4));
                let answer = probe
                    .ask("join", version, &join(version, group, "", "one"))?
                    .context("no answer")?;
                let (first, generation) = (answer.member_id.to_string(), answer.generation_id);
                probe.note("the instance begins the id", first.starts_with("one-"))?;
                probe.note("leads", answer.leader == answer.member_id)?;
                let request = sync(sync_version, group, generation, &first, "one");
                probe.ask("sync", sync_version, &request)?;
                describe(probe, group)?;

                let answer = probe
                    .ask("restart", version, &join(version, group, "", "one"))?
                    .context("no answer")?;
                let second = answer.member_id.to_string();
                probe.note("another id", second != first && second.starts_with("one-"))?;
                let leader = answer.leader.to_string();
                probe.note(
                    "the leader that is named",
                    (leader == first, leader == second),
                )?;
                let request = sync(sync_version, group, answer.generation_id, &second, "one");
                probe.ask("sync after the restart", sync_version, &request)?;
                let beat =
                    |id: &str, instance| heartbeat(group, answer.generation_id, id, instance);
                probe.ask(
                    "heartbeat after the restart",
                    beat_version,
                    &beat(&second, Some("one")),
                )?;

                // The former self.
                probe.ask("its heartbeat", beat_version, &beat(&first, Some("one")))?;
                probe.ask(
                    "its heartbeat without an instance",
                    beat_version,
                    &beat(&first, None),
                )?;
                let request = sync(sync_version, group, generation, &first, "one");
                probe.ask("its sync", sync_version, &request)?;
                probe.ask("its join", version, &join(version, group, &first, "one"))?;
                for version in probe
                    .versions::<OffsetCommitRequest>()
                    .filter(|v| *v >= COMMIT)
                {
                    for (label, id) in [("its commit", &first), ("a commit", &second)] {
                        let rows = [("static-commits", 0, 5)];
                        let request =
                            offset_commit(version, group, answer.generation_id, id, &rows)
                                .with_group_instance_id(Some(text("one")));
                        probe.ask(label, version, &request)?;
                    }
                }
                probe.ask(
                    "an unknown instance",
                    beat_version,
                    &beat(&second, Some("nobody")),
                )?;
                let request = join(version, group, &second, "nobody");
                probe.ask("join as an unknown instance with an id", version, &request)?;
                describe(probe, group)?;
            }
            Ok(())
        },
    )
}

#[test]
fn static_members_leave_by_their_instances() -> Result<()> {
    compare("static_members_leave_by_their_instances", |probe| {
        probe.mask("groups[].members[].client_host");
        for version in probe.versions::<LeaveGroupRequest>().filter(|v| *v >= 3) {
            let group = &format!("static-leave-v{version}");
            coordinator_is_up(probe.wire()?, group)?;
            let mut member =
                Member::start_static_join(probe.address(), group, "range", "one")?.finish()?;
            member.sync(&[(&member.id.clone(), b"all")])?;
            let mut ask = |label: &str, members: &[(&str, &str)]| -> Result<()> {
                probe.ask(label, version, &leave(group, members)).map(drop)
            };
            ask("an unknown instance", &[("", "nobody")])?;
            ask("another's id", &[("somebody", "one")])?;
            ask("nobody", &[])?;
            ask(
                "by the instance, and once more",
                &[("", "one"), ("", "one")],
            )?;
            describe(probe, group)?;
            probe.note("a heartbeat after that", member.heartbeat()?)?;
            let mut member =
                Member::start_static_join(probe.address(), group, "range", "two")?.finish()?;
            member.sync(&[])?;
            probe.note("leaves with its id", member.leave()?)?;
            describe(probe, group)?;
        }
        Ok(())
    })
}

#[test]
fn a_follower_that_restarts_disturbs_nobody() -> Result<()> {
    compare("a_follower_that_restarts_disturbs_nobody", |probe| {
        let group = "static-pair";
        coordinator_is_up(probe.wire()?, group)?;
        let member = |probe: &Probe, instance: &str| {
            Member::start_static_join(probe.address(), group, "range", instance)
        };
        let mut leader = member(probe, "leader")?.finish()?;
        leader.sync(&[])?;
        let follower = member(probe, "follower")?;
        for _ in 0..200 {
            if leader.heartbeat()? != 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        leader.rejoin()?;
        let mut follower = follower.finish()?;
        let waiting = follower.start_sync()?;
        let (a, b) = (leader.id.clone(), follower.id.clone());
        leader.sync(&[(&a, b"one"), (&b, b"two")])?;
        follower.finish_sync(waiting)?;
        probe.note("generations", (leader.generation, follower.generation))?;
        probe.note("assignments", (&leader.assignment, &follower.assignment))?;

        let mut again = member(probe, "follower")?.finish()?;
        again.sync(&[])?;
        probe.note(
            "the follower's place",
            (again.generation, &again.assignment),
        )?;
        probe.note("the former follower", follower.heartbeat()?)?;
        probe.note("the leader", leader.heartbeat()?)?;
        probe.note("the follower", again.heartbeat()?)?;
        probe.note("leaves", leader.leave()?)
    })
}
