//! Groups and their offsets, over plain connections.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::{Buf, BufMut, BytesMut};
use compat_tests::broker::Broker;
use compat_tests::groups::{Member, committed, coordinator_is_up, offset_commit, offset_fetch};
use compat_tests::requests::{create_topic, until_not_retriable};
use compat_tests::server::Server;
use kafka_protocol::messages::OffsetCommitRequest;

const UNKNOWN_MEMBER_ID: i16 = 25;
const REBALANCE_IN_PROGRESS: i16 = 27;

#[test]
fn a_member_that_joins_and_never_syncs_is_put_out() -> Result<()> {
    let server = Server::start()?;
    let short = |request: kafka_protocol::messages::JoinGroupRequest| {
        request.with_rebalance_timeout_ms(1500)
    };
    let mut member =
        Member::start_join_with(server.address(), "never-syncs", "range", short)?.finish()?;
    let begun = Instant::now();
    loop {
        match member.heartbeat()? {
            UNKNOWN_MEMBER_ID => break,
            code => ensure!([0, REBALANCE_IN_PROGRESS].contains(&code), "error {code}"),
        }
        ensure!(begun.elapsed() < Duration::from_secs(8), "still a member");
        std::thread::sleep(Duration::from_millis(50));
    }
    ensure!(
        begun.elapsed() > Duration::from_millis(1000),
        "after {:?}",
        begun.elapsed()
    );
    Ok(())
}

#[test]
fn a_member_that_falls_silent_is_put_out_and_the_rest_goes_on() -> Result<()> {
    let server = Server::with(&[("group.min.session.timeout.ms", "500")])?;
    let quick = |request: kafka_protocol::messages::JoinGroupRequest| {
        request
            .with_session_timeout_ms(1000)
            .with_rebalance_timeout_ms(1000)
    };
    let silent = Member::start_join_with(server.address(), "silent", "range", quick)?.finish()?;
    let joining = Member::start_join(server.address(), "silent", "range")?;
    let mut other = joining.finish()?;
    assert_eq!(other.generation, 2);
    ensure!(
        other.is_leader() || other.members.is_empty(),
        "the silent one still leads"
    );
    other.sync(&[])?;
    assert_eq!(other.heartbeat()?, 0);
    drop(silent);
    Ok(())
}

#[test]
fn an_assignment_of_nothing_is_valid() -> Result<()> {
    let server = Server::start()?;
    let mut member = Member::join(server.address(), "nothing", "range")?;
    member.sync(&[(&member.id.clone(), b"")])?;
    assert_eq!(member.assignment.len(), 0);
    assert_eq!(member.heartbeat()?, 0);
    Ok(())
}

#[test]
fn every_committed_row_is_answered_once_in_the_order_asked() -> Result<()> {
    let (_server, mut wire) = Server::connected()?;
    for name in ["z", "a", "m"] {
        create_topic(&mut wire, name, 1, &[])?;
    }
    coordinator_is_up(&mut wire, "rows")?;
    let rows = [("z", 0, 5), ("a", 0, 6), ("m", 0, 7)];
    let with_epochs = |rows: &[(&str, i32, i64)]| {
        let mut request = offset_commit(8, "rows", -1, "", rows);
        for row in request
            .topics
            .iter_mut()
            .flat_map(|topic| &mut topic.partitions)
        {
            row.committed_leader_epoch = 3;
        }
        request
    };
    let answered = |request: &OffsetCommitRequest,
                    wire: &mut compat_tests::wire::Wire|
     -> Result<Vec<(String, i16)>> {
        let answer = until_not_retriable(
            || Ok(wire.call(8, request)?),
            |answer| {
                answer
                    .topics
                    .first()
                    .and_then(|t| t.partitions.first())
                    .map_or(0, |row| row.error_code)
            },
        )?;
        Ok(answer
            .topics
            .iter()
            .map(|t| {
                (
                    t.name.to_string(),
                    t.partitions.first().map_or(-1, |p| p.error_code),
                )
            })
            .collect())
    };
    let owned = |rows: &[(&str, i16)]| {
        rows.iter()
            .map(|(n, c)| ((*n).to_owned(), *c))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        answered(&with_epochs(&rows), &mut wire)?,
        owned(&[("z", 0), ("a", 0), ("m", 0)])
    );
    for (name, _, offset) in rows {
        assert_eq!(committed(&mut wire, "rows", name, 0)?, (offset, 3));
    }
    let rows = [("z", 0, 15), ("nowhere", 0, 6), ("a", 0, 16)];
    let mut codes = answered(&with_epochs(&rows), &mut wire)?;
    codes.sort();
    assert_eq!(codes, owned(&[("a", 0), ("nowhere", 3), ("z", 0)]));
    Ok(())
}

#[test]
fn offset_fetch_answers_for_every_partition_asked() -> Result<()> {
    let (_server, mut wire) = Server::connected()?;
    create_topic(&mut wire, "known", 1, &[])?;
    coordinator_is_up(&mut wire, "asks")?;
    let asked = [("known", &[0, 9][..]), ("unknown", &[0, 1])];
    for group in ["asks", "no-such-group"] {
        committed(&mut wire, group, "known", 0)?;
        for version in 1..=9 {
            let request = offset_fetch(version, group, Some(&asked));
            let answer = until_not_retriable(
                || Ok(wire.call(version, &request)?),
                |answer| {
                    answer
                        .groups
                        .first()
                        .map_or(answer.error_code, |group| group.error_code)
                },
            )?;
            let mut rows = Vec::new();
            for topic in &answer.topics {
                for p in &topic.partitions {
                    rows.push((
                        p.error_code,
                        p.committed_offset,
                        p.committed_leader_epoch,
                        p.metadata.as_deref(),
                    ));
                }
            }
            for topic in answer.groups.iter().flat_map(|group| &group.topics) {
                for p in &topic.partitions {
                    rows.push((
                        p.error_code,
                        p.committed_offset,
                        p.committed_leader_epoch,
                        p.metadata.as_deref(),
                    ));
                }
            }
            assert_eq!(rows, [(0, -1, -1, Some("")); 4], "{group} v{version}");
        }
    }
    Ok(())
}

/// OffsetCommit and OffsetFetch at version 10 name topics by their ids; the bodies are made by hand.
#[test]
fn offsets_are_committed_and_fetched_by_topic_id() -> Result<()> {
    let (_server, mut wire, topic) = Server::with_topic("by-id", 1, &[])?;
    coordinator_is_up(&mut wire, "g")?;
    committed(&mut wire, "g", "by-id", 0)?;
    let mut body = BytesMut::from(&b"\x02g"[..]);
    body.put_i32(-1);
    body.put_slice(&[1, 0, 2]);
    body.put_slice(topic.id.as_bytes());
    body.put_u8(2);
    body.put_i32(0);
    body.put_i64(42);
    body.put_i32(7);
    body.put_slice(b"\x05note\0\0\0");
    wire.send_body(8, 10, 2, &body)?;
    let mut answer = wire.receive_frame()?;
    answer.advance(5 + 4);
    assert_eq!(answer.get_u8(), 2, "one topic");
    assert_eq!(&answer[..16], topic.id.as_bytes());
    answer.advance(16);
    assert_eq!(
        &answer[..],
        [2, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "partition 0, no error"
    );
    assert_eq!(committed(&mut wire, "g", "by-id", 0)?, (42, 7));

    let mut fetch = |id: &[u8]| -> Result<(i64, i16)> {
        let mut body = BytesMut::from(&b"\x02\x02g\0"[..]);
        body.put_i32(-1);
        body.put_u8(2);
        body.put_slice(id);
        body.put_slice(&[2, 0, 0, 0, 0, 0, 0, 0, 0]);
        wire.send_body(9, 10, 2, &body)?;
        let mut answer = wire.receive_frame()?;
        // Header, throttle time, one group "g", one topic and its id, one partition and its index.
        answer.advance(5 + 4 + 1 + 2 + 1 + 16 + 1 + 4);
        let offset = answer.get_i64();
        answer.advance(4);
        let metadata = answer.get_u8();
        answer.advance(usize::from(metadata.saturating_sub(1)));
        Ok((offset, answer.get_i16()))
    };
    assert_eq!(fetch(topic.id.as_bytes())?, (42, 0));
    const UNKNOWN_TOPIC_ID: i16 = 100;
    assert_eq!(fetch(&[9; 16])?, (-1, UNKNOWN_TOPIC_ID));
    Ok(())
}

#[test]
fn the_real_number_of_offset_partitions_rules() -> Result<()> {
    let mut broker = Broker::options()
        .set("offsets.topic.num.partitions", 3)
        .start()?;
    let mut wire = broker.connect()?;
    create_topic(&mut wire, "t", 1, &[])?;
    let groups: Vec<String> = (0..30).map(|i| format!("group-{i}")).collect();
    for (i, group) in groups.iter().enumerate() {
        committed(&mut wire, group, "t", 0)?;
        let request = offset_commit(8, group, -1, "", &[("t", 0, i64::try_from(i)?)]);
        let answer = wire.call(8, &request)?;
        assert_eq!(answer.topics[0].partitions[0].error_code, 0);
    }
    broker.set_for_next_start("offsets.topic.num.partitions", 7);
    broker.restart()?;
    let mut wire = broker.connect()?;
    for (i, group) in groups.iter().enumerate() {
        assert_eq!(
            committed(&mut wire, group, "t", 0)?.0,
            i64::try_from(i)?,
            "{group}"
        );
    }
    let answer = wire.call(
        12,
        &compat_tests::requests::metadata_of("__consumer_offsets"),
    )?;
    assert_eq!(answer.topics[0].partitions.len(), 3);
    ensure!(answer.topics[0].is_internal, "not internal");
    Ok(())
}

#[test]
fn members_and_offsets_survive_a_kill() -> Result<()> {
    let mut broker = Broker::start()?;
    create_topic(&mut broker.connect()?, "kept", 4, &[])?;
    let mut member = Member::join(broker.address(), "keepers", "range")?;
    member.sync(&[(&member.id.clone(), b"the assignment")])?;
    for round in 1..=5 {
        assert_eq!(
            member.commit(&[("kept", 0, round), ("kept", 3, round * 10)])?,
            [0, 0]
        );
        broker.kill9()?;
        broker.start_again()?;
        let mut wire = broker.connect()?;
        assert_eq!(committed(&mut wire, "keepers", "kept", 0)?.0, round);
        assert_eq!(committed(&mut wire, "keepers", "kept", 3)?.0, round * 10);
        // The coordinator knows the member by what is in the log: no rebalance.
        member.reconnect(broker.address())?;
        let code = until_not_retriable(|| member.heartbeat(), |code| *code)?;
        assert_eq!(code, 0, "round {round}");
        member.sync(&[])?;
        assert_eq!(&member.assignment[..], b"the assignment");
    }
    Ok(())
}

#[test]
fn a_static_member_keeps_its_place_over_kills_of_the_broker_and_its_own() -> Result<()> {
    const FENCED_INSTANCE_ID: i16 = 82;
    let mut broker = Broker::start()?;
    let join = |broker: &Broker| {
        Member::start_static_join(broker.address(), "static-keepers", "range", "one")?.finish()
    };
    let mut member = join(&broker)?;
    member.sync(&[(&member.id.clone(), b"the assignment")])?;
    let generation = member.generation;
    for round in 1..=5 {
        broker.kill9()?;
        broker.start_again()?;
        member.reconnect(broker.address())?;
        let mut again = join(&broker)?;
        assert_eq!(again.generation, generation, "round {round}");
        again.sync(&[])?;
        assert_eq!(&again.assignment[..], b"the assignment");
        assert_eq!(member.heartbeat()?, FENCED_INSTANCE_ID, "round {round}");
        member = again;
        assert_eq!(member.heartbeat()?, 0, "round {round}");
    }
    Ok(())
}

#[test]
fn a_commit_is_answered_only_once_it_can_be_fetched() -> Result<()> {
    let (server, mut wire) = Server::connected()?;
    create_topic(&mut wire, "read-own", 1, &[])?;
    committed(&mut wire, "readers", "read-own", 0)?;
    let mut other = server.connect()?;
    for offset in 0..200 {
        let answer = wire.call(
            8,
            &offset_commit(8, "readers", -1, "", &[("read-own", 0, offset)]),
        )?;
        let row = answer
            .topics
            .first()
            .and_then(|topic| topic.partitions.first())
            .context("no row")?;
        assert_eq!(row.error_code, 0);
        assert_eq!(committed(&mut other, "readers", "read-own", 0)?.0, offset);
    }
    Ok(())
}
