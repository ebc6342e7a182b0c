//! Consumer groups (KIP-848), compared with Kafka.

use std::time::Duration;

use anyhow::{Context, Result};
use compat_tests::comparison::compare;
use compat_tests::groups::{coordinator_is_up, going_on, joining, offset_commit};
use compat_tests::requests::{Topic, create_topic, topic_name};
use compat_tests::transcript::Probe;
use compat_tests::wire::text;
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest, DescribeGroupsRequest, GroupId, JoinGroupRequest, ListGroupsRequest,
    OffsetCommitRequest, OffsetFetchRequest,
};

/// Longer than the assignment interval of both.
const A_WHILE: Duration = Duration::from_millis(1_200);
const HEARTBEAT: i16 = 1;

fn owning(
    group: &str,
    member: &str,
    epoch: i32,
    owned: &[(&Topic, &[i32])],
) -> ConsumerGroupHeartbeatRequest {
    let owned = owned.iter().map(|(topic, partitions)| {
        TopicPartitions::default()
            .with_topic_id(topic.id)
            .with_partitions(partitions.to_vec())
    });
    going_on(group, member, epoch).with_topic_partitions(Some(owned.collect()))
}

fn prepare(probe: &mut Probe) {
    for list in ["assignment", "target_assignment"] {
        let path = format!("groups[].members[].{list}.topic_partitions");
        probe.sort(&path, "topic_name");
    }
    probe.mask("groups[].members[].client_host");
    // Ids are drawn, and what is in a hash map comes in any order.
    probe.mask("groups[].members[].member_id");
    probe.sort(
        "groups[].members",
        "member_epoch,assignment,target_assignment",
    );
    probe.sort("groups[].members[].subscribed_topic_names", "");
    probe.sort("assignment.topic_partitions", "topic_id");
}

fn describe(probe: &mut Probe, group: &str) -> Result<()> {
    let request =
        ConsumerGroupDescribeRequest::default().with_group_ids(vec![GroupId(text(group))]);
    for version in probe.versions::<ConsumerGroupDescribeRequest>() {
        probe.ask("how the group stands", version, &request)?;
    }
    Ok(())
}

fn beat(
    probe: &mut Probe,
    label: &str,
    request: &ConsumerGroupHeartbeatRequest,
) -> Result<ConsumerGroupHeartbeatResponse> {
    probe.ask(label, HEARTBEAT, request)?.context("no answer")
}

#[test]
fn one_consumer_from_join_to_leave() -> Result<()> {
    compare("one_consumer_from_join_to_leave", |probe| {
        prepare(probe);
        let topic = create_topic(probe.wire()?, "consumer-one", 3, &[])?;
        probe.remember(&topic);
        probe.settle();
        for version in probe.versions::<ConsumerGroupHeartbeatRequest>() {
            let group = &format!("consumer-one-v{version}");
            coordinator_is_up(probe.wire()?, group)?;
            let id = if version == 0 { "" } else { "member" };
            let joined = probe.ask("join", version, &joining(group, id, &["consumer-one"]))?;
            let joined = joined.context("no answer")?;
            let id = joined.member_id.context("no id")?.to_string();
            let epoch = joined.member_epoch;
            describe(probe, group)?;
            probe.ask("goes on", version, &going_on(group, &id, epoch))?;
            let owned = [(&topic, &[0, 1, 2][..])];
            probe.ask("owns", version, &owning(group, &id, epoch, &owned))?;
            let full = owning(group, &id, epoch, &owned)
                .with_rebalance_timeout_ms(30_000)
                .with_subscribed_topic_names(Some(vec![topic_name("consumer-one")]));
            probe.ask("says everything", version, &full)?;
            for (label, wrong) in [("too old", epoch - 1), ("too new", epoch + 1)] {
                probe.ask(label, version, &going_on(group, &id, wrong))?;
            }
            probe.ask("leaves", version, &going_on(group, &id, -1))?;
            probe.ask("leaves again", version, &going_on(group, &id, -1))?;
            describe(probe, group)?;
            let list = ListGroupsRequest::default().with_types_filter(vec![text("consumer")]);
            let listed = probe.prepare(5, &list)?;
            let here = listed
                .groups
                .iter()
                .find(|one| one.group_id.as_str() == group);
            probe.note(
                "how it is listed",
                here.map(|one| {
                    (
                        one.group_state.to_string(),
                        one.group_type.to_string(),
                        one.protocol_type.to_string(),
                    )
                }),
            )?;
            let delete =
                DeleteGroupsRequest::default().with_groups_names(vec![GroupId(text(group))]);
            probe.ask("delete the group", 2, &delete)?;
            describe(probe, group)?;
        }
        Ok(())
    })
}

#[test]
fn consumer_group_describe() -> Result<()> {
    compare("consumer_group_describe", |probe| {
        prepare(probe);
        coordinator_is_up(probe.wire()?, "describe-nowhere")?;
        describe(probe, "describe-nowhere")?;
        let group = "describe-consumers";
        let topic = create_topic(probe.wire()?, "describe-consumers", 2, &[])?;
        probe.remember(&topic);
        probe.settle();
        let mut join = joining(group, "a", &["describe-consumers", "nowhere"]);
        join.rack_id = Some(text("r1"));
        join.server_assignor = Some(text("range"));
        beat(probe, "join", &join)?;
        describe(probe, group)?;
        let classic = DescribeGroupsRequest::default().with_groups(vec![GroupId(text(group))]);
        probe.ask_each("as a classic group", |_| classic.clone())
    })
}

#[test]
fn partitions_go_over_once_they_are_let_go() -> Result<()> {
    compare("partitions_go_over_once_they_are_let_go", |probe| {
        prepare(probe);
        let group = "consumers-two";
        let topic = create_topic(probe.wire()?, "consumers-two", 4, &[])?;
        probe.remember(&topic);
        probe.settle();
        coordinator_is_up(probe.wire()?, group)?;
        let mut join = joining(group, "a", &["consumers-two"]);
        join.server_assignor = Some(text("range"));
        beat(probe, "a joins", &join)?;
        std::thread::sleep(A_WHILE);
        join.member_id = text("b");
        let second = beat(probe, "b joins", &join)?;
        describe(probe, group)?;
        let all = [(&topic, &[0, 1, 2, 3][..])];
        let first = beat(probe, "a hears", &owning(group, "a", 2, &all))?;
        describe(probe, group)?;
        beat(
            probe,
            "a has not let go",
            &owning(group, "a", first.member_epoch, &all),
        )?;
        beat(
            probe,
            "b waits",
            &owning(group, "b", second.member_epoch, &[]),
        )?;
        for (label, epoch) in [("a commits", first.member_epoch), ("a at no epoch", 9)] {
            for version in probe.versions::<OffsetCommitRequest>() {
                let rows = [("consumers-two", 0, 5), ("consumers-two", 3, 5)];
                let commit = offset_commit(version, group, epoch, "a", &rows);
                probe.ask(label, version, &commit)?;
            }
        }
        let kept = [(&topic, &[0, 1][..])];
        beat(
            probe,
            "a lets go",
            &owning(group, "a", first.member_epoch, &kept),
        )?;
        beat(
            probe,
            "b gets",
            &owning(group, "b", second.member_epoch, &[]),
        )?;
        describe(probe, group)?;
        let rows = [("kept", 0), ("lost", 3)];
        for (label, partition) in rows {
            let rows = [("consumers-two", partition, 6)];
            let commit = offset_commit(9, group, first.member_epoch, "a", &rows);
            probe.ask(&format!("an old commit of what was {label}"), 9, &commit)?;
        }
        for (member, epoch) in [(Some("a"), 3), (Some("a"), 2), (Some("x"), 3), (None, -1)] {
            let asked = OffsetFetchRequestGroup::default()
                .with_group_id(GroupId(text(group)))
                .with_member_id(member.map(text))
                .with_member_epoch(epoch)
                .with_topics(None);
            let request = OffsetFetchRequest::default().with_groups(vec![asked]);
            probe.ask(&format!("offsets for {member:?} at {epoch}"), 9, &request)?;
        }
        beat(probe, "a leaves", &going_on(group, "a", -1))?;
        std::thread::sleep(A_WHILE);
        beat(
            probe,
            "b gets the rest",
            &owning(group, "b", 3, &[(&topic, &[2, 3])]),
        )?;
        describe(probe, group)
    })
}

#[test]
fn static_consumers_that_go_away_and_come_back() -> Result<()> {
    compare("static_consumers_that_go_away_and_come_back", |probe| {
        prepare(probe);
        let group = "consumers-static";
        let topic = create_topic(probe.wire()?, "consumers-static", 2, &[])?;
        probe.remember(&topic);
        probe.settle();
        coordinator_is_up(probe.wire()?, group)?;
        let with = |mut request: ConsumerGroupHeartbeatRequest| {
            request.instance_id = Some(text("instance"));
            request
        };
        let join = |id: &str| with(joining(group, id, &["consumers-static"]));
        beat(probe, "joins", &join("a"))?;
        describe(probe, group)?;
        beat(probe, "another takes its place", &join("b"))?;
        beat(probe, "it joins again", &join("a"))?;
        beat(probe, "another goes on", &with(going_on(group, "b", 2)))?;
        beat(probe, "goes away", &with(going_on(group, "a", -2)))?;
        describe(probe, group)?;
        beat(probe, "goes on though away", &with(going_on(group, "a", 2)))?;
        beat(probe, "comes back", &join("b"))?;
        describe(probe, group)?;
        beat(probe, "its former self", &with(going_on(group, "a", 2)))?;
        beat(probe, "an unknown instance", &{
            let mut request = going_on(group, "c", 2);
            request.instance_id = Some(text("nobody"));
            request
        })?;
        beat(probe, "leaves for good", &with(going_on(group, "b", -1)))?;
        describe(probe, group)
    })
}

#[test]
fn heartbeats_that_contradict_themselves() -> Result<()> {
    compare("heartbeats_that_contradict_themselves", |probe| {
        prepare(probe);
        let group = "consumers-wrong";
        coordinator_is_up(probe.wire()?, group)?;
        let join = || joining(group, "a", &["nowhere"]);
        type Change = fn(&mut ConsumerGroupHeartbeatRequest);
        let changes: &[(&str, Change)] = &[
            ("no group", |r| r.group_id = GroupId(text(""))),
            ("a blank group", |r| r.group_id = GroupId(text(" "))),
            ("no member", |r| r.member_id = text("")),
            ("an empty instance", |r| r.instance_id = Some(text(""))),
            ("an empty rack", |r| r.rack_id = Some(text(""))),
            ("no timeout", |r| r.rebalance_timeout_ms = -1),
            ("no partitions", |r| r.topic_partitions = None),
            ("no subscription", |r| r.subscribed_topic_names = None),
            ("an unknown assignor", |r| {
                r.server_assignor = Some(text("nobody"))
            }),
            ("away without an instance", |r| r.member_epoch = -2),
            ("epoch -3", |r| r.member_epoch = -3),
            ("epoch 1 of no group", |r| r.member_epoch = 1),
            ("leaves no group", |r| r.member_epoch = -1),
        ];
        for (label, change) in changes {
            let mut request = join();
            change(&mut request);
            for version in probe.versions::<ConsumerGroupHeartbeatRequest>() {
                let made_up = version == 0 && label.starts_with("no member");
                if !made_up {
                    probe.ask(label, version, &request)?;
                }
            }
        }
        for regex in ["(", "*", "a)(b", "[", "(?=a)b", r"(a)\1"] {
            let mut request = join();
            request.subscribed_topic_names = None;
            request.subscribed_topic_regex = Some(text(regex));
            beat(probe, &format!("the expression {regex}"), &request)?;
        }
        describe(probe, group)
    })
}

#[test]
fn subscriptions_by_expression() -> Result<()> {
    compare("subscriptions_by_expression", |probe| {
        prepare(probe);
        let group = "consumers-regex";
        for name in ["regex-one", "regex-two", "other-regex-three"] {
            let topic = create_topic(probe.wire()?, name, 1, &[])?;
            probe.remember(&topic);
        }
        probe.settle();
        coordinator_is_up(probe.wire()?, group)?;
        let mut join = joining(group, "a", &[]);
        join.subscribed_topic_names = None;
        join.subscribed_topic_regex = Some(text("regex-.*"));
        let joined = beat(probe, "joins", &join)?;
        std::thread::sleep(A_WHILE);
        let got = beat(
            probe,
            "what matches",
            &going_on(group, "a", joined.member_epoch),
        )?;
        describe(probe, group)?;
        std::thread::sleep(A_WHILE);
        let mut request = going_on(group, "a", got.member_epoch);
        request.subscribed_topic_regex = Some(text(""));
        request.subscribed_topic_names = Some(vec![topic_name("regex-two")]);
        request.topic_partitions = Some(Vec::new());
        beat(probe, "by name again", &request)?;
        describe(probe, group)
    })
}

#[test]
fn an_empty_consumer_group_and_the_classic_protocol() -> Result<()> {
    compare(
        "an_empty_consumer_group_and_the_classic_protocol",
        |probe| {
            prepare(probe);
            probe.mask("members[].member_id");
            let group = "consumers-then-classic";
            create_topic(probe.wire()?, "consumers-then-classic", 1, &[])?;
            probe.settle();
            coordinator_is_up(probe.wire()?, group)?;
            beat(
                probe,
                "joins",
                &joining(group, "a", &["consumers-then-classic"]),
            )?;
            let metadata = |topic: &str| {
                let mut bytes = vec![0, 0, 0, 0, 0, 1];
                bytes.extend(u16::try_from(topic.len()).unwrap_or(0).to_be_bytes());
                bytes.extend(topic.as_bytes());
                bytes.extend((-1_i32).to_be_bytes());
                bytes
            };
            let classic = |member: &str| -> JoinGroupRequest {
                let mut join = compat_tests::groups::join_request(7, group, member, "range");
                for protocol in &mut join.protocols {
                    protocol.metadata = metadata("consumers-then-classic").into();
                }
                join
            };
            let told = probe.ask("a classic member asks for an id", 7, &classic(""))?;
            let id = told.context("no answer")?.member_id.to_string();
            std::thread::sleep(A_WHILE);
            probe.ask("a classic member joins", 7, &classic(&id))?;
            describe(probe, group)?;
            beat(probe, "leaves", &going_on(group, "a", -1))?;
            describe(probe, group)
        },
    )
}
