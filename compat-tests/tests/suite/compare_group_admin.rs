//! DescribeGroups, ListGroups, DeleteGroups and OffsetDelete, compared with Kafka.

use anyhow::Result;
use compat_tests::comparison::compare;
use compat_tests::groups::{Member, committed, offset_commit};
use compat_tests::requests::{create_topic, topic_name};
use compat_tests::wire::text;
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::{
    DeleteGroupsRequest, DescribeGroupsRequest, GroupId, ListGroupsRequest, OffsetDeleteRequest,
};

fn group_ids(names: &[&str]) -> Vec<GroupId> {
    names.iter().map(|name| GroupId(text(name))).collect()
}

#[test]
fn describe_groups() -> Result<()> {
    compare("describe_groups", |probe| {
        create_topic(probe.wire()?, "described-topic", 1, &[])?;
        committed(probe.wire()?, "described", "described-topic", 0)?;
        committed(probe.wire()?, "described-empty", "described-topic", 0)?;
        probe.prepare(
            8,
            &offset_commit(8, "described-empty", -1, "", &[("described-topic", 0, 1)]),
        )?;
        probe.mask("groups[].members[].client_host");
        // Kafka answers coordinator by coordinator.
        probe.sort("groups", "group_id");
        let ask = |names: &[&str]| DescribeGroupsRequest::default().with_groups(group_ids(names));
        let mut member = Member::join(probe.address(), "described", "range")?;
        probe.ask_each("before the sync", |_| ask(&["described"]))?;
        member.sync(&[(&member.id.clone(), b"assigned")])?;
        probe.ask_each("stable, empty, unknown", |_| {
            ask(&["described", "described-empty", "described-nowhere"])
        })?;
        probe.ask_each("no name", |_| ask(&[""]))?;
        probe.ask_each("nothing", |_| ask(&[]))?;
        probe.ask_each("twice", |_| ask(&["described", "described"]))?;
        for version in probe
            .versions::<DescribeGroupsRequest>()
            .filter(|version| *version >= 3)
        {
            let request = ask(&["described"]).with_include_authorized_operations(true);
            probe.ask("with operations", version, &request)?;
        }
        member.leave()?;
        probe.ask_each("after the last has left", |_| ask(&["described"]))
    })
}

#[test]
fn list_groups() -> Result<()> {
    compare("list_groups", |probe| {
        // Other comparisons make groups of their own at the same time: only what comes of the filters is looked at.
        committed(probe.wire()?, "listed", "listed-topic", 0)?;
        let mut member = Member::join(probe.address(), "listed", "range")?;
        member.sync(&[])?;
        for (label, states, types) in [
            ("no filter", &[][..], &[][..]),
            ("stable ones", &["Stable"], &[]),
            ("stable ones, badly spelt", &["sTABLE"], &[]),
            ("dead ones", &["Dead"], &[]),
            ("an unknown state", &["Sleeping"], &[]),
            ("classic ones", &[], &["classic"]),
            ("classic ones, badly spelt", &[], &["ClassiC"]),
            ("share groups", &[], &["share"]),
            ("an unknown type", &[], &["nonsense"]),
        ] {
            for version in probe.versions::<ListGroupsRequest>() {
                let mut request = ListGroupsRequest::default();
                if version >= 4 {
                    request.states_filter = states.iter().map(text).collect();
                }
                if version >= 5 {
                    request.types_filter = types.iter().map(text).collect();
                }
                let answer = probe.prepare(version, &request)?;
                let rows: Vec<_> = answer
                    .groups
                    .iter()
                    .filter(|group| group.group_id.0 == text("listed"))
                    .collect();
                let what = (answer.error_code, &rows);
                probe.note_answer::<ListGroupsRequest>(label, version, what)?;
            }
        }
        Ok(())
    })
}

#[test]
fn delete_groups() -> Result<()> {
    compare("delete_groups", |probe| {
        create_topic(probe.wire()?, "deleted-group-topic", 1, &[])?;
        for version in probe.versions::<DeleteGroupsRequest>() {
            let (empty, busy) = (format!("deleted-v{version}"), format!("busy-v{version}"));
            committed(probe.wire()?, &empty, "deleted-group-topic", 0)?;
            committed(probe.wire()?, &busy, "deleted-group-topic", 0)?;
            probe.prepare(
                8,
                &offset_commit(8, &empty, -1, "", &[("deleted-group-topic", 0, 1)]),
            )?;
            let mut member = Member::join(probe.address(), &busy, "range")?;
            member.sync(&[])?;
            probe.sort("results", "group_id");
            let request =
                |names: &[&str]| DeleteGroupsRequest::default().with_groups_names(group_ids(names));
            probe.ask(
                "empty, busy, unknown",
                version,
                &request(&[&empty, &busy, "deleted-nowhere"]),
            )?;
            probe.ask("again", version, &request(&[&empty]))?;
            probe.ask("no name", version, &request(&[""]))?;
            probe.ask("nothing", version, &request(&[]))?;
            let left = committed(probe.wire()?, &empty, "deleted-group-topic", 0)?;
            probe.note("its offsets are gone", left)?;
        }
        Ok(())
    })
}

#[test]
fn offset_delete() -> Result<()> {
    compare("offset_delete", |probe| {
        create_topic(probe.wire()?, "offset-delete-topic", 2, &[])?;
        let group = "offset-delete";
        committed(probe.wire()?, group, "offset-delete-topic", 0)?;
        let rows = [("offset-delete-topic", 0, 5), ("offset-delete-topic", 1, 6)];
        probe.prepare(8, &offset_commit(8, group, -1, "", &rows))?;
        let request = |group: &str, topic: &str, partitions: &[i32]| {
            let rows = partitions
                .iter()
                .map(|index| OffsetDeleteRequestPartition::default().with_partition_index(*index))
                .collect();
            let topic = OffsetDeleteRequestTopic::default()
                .with_name(topic_name(topic))
                .with_partitions(rows);
            OffsetDeleteRequest::default()
                .with_group_id(GroupId(text(group)))
                .with_topics(vec![topic])
        };
        probe.sort("topics[].partitions", "partition_index");
        probe.ask(
            "one and one too many",
            0,
            &request(group, "offset-delete-topic", &[0, 7]),
        )?;
        probe.ask(
            "a topic that is not there",
            0,
            &request(group, "offset-delete-nowhere", &[0]),
        )?;
        probe.ask(
            "a group that is not there",
            0,
            &request("offset-delete-nobody", "offset-delete-topic", &[0]),
        )?;
        probe.ask("no group", 0, &request("", "offset-delete-topic", &[0]))?;
        for partition in [0, 1] {
            let left = committed(probe.wire()?, group, "offset-delete-topic", partition)?;
            probe.note("what is left", left)?;
        }
        Ok(())
    })
}
