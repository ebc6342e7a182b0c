//! Partitions of several replicas, over plain connections to clusters of three nodes.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use compat_tests::cluster::NodeNumber;
use compat_tests::requests::{
    EARLIEST, LATEST, delete_topic, fetch, fetch_request, first_partition, list_offset,
    list_offsets_request, metadata_of, produce, produce_request, read_to_end,
};
use compat_tests::wire::text;
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::{BrokerId, FetchRequest, OffsetForLeaderEpochRequest};

use super::three::{PATIENCE, PAUSE, Three, batch, others, three};

const OFFSET_OUT_OF_RANGE: i16 = 1;
const NOT_LEADER_OR_FOLLOWER: i16 = 6;
const FENCED_LEADER_EPOCH: i16 = 74;
const UNKNOWN_LEADER_EPOCH: i16 = 75;
const UNKNOWN_TOPIC_ID: i16 = 100;

#[test]
fn a_topic_can_be_produced_to_at_once_by_way_of_another_broker() -> Result<()> {
    let mut three = Three::start(three())?;
    for round in 0..5 {
        let topic = three.create(1, &format!("at-once-{round}"), &[&[2, 3, 1]])?;
        let mut wire = three.wire(2)?;
        let first = produce(&mut wire, &topic, 0, batch(1)?)?.error_code;
        ensure!(
            [0, 3, 5, NOT_LEADER_OR_FOLLOWER].contains(&first),
            "not an error that a client tries again after: {first}"
        );
        let offset = three.produce(&topic, 0, &batch(1)?)?;
        assert_eq!(offset, i64::from(first == 0));
    }
    Ok(())
}

#[test]
fn a_cluster_that_is_stopped_all_at_once_stops_soon_and_has_lost_nothing() -> Result<()> {
    let mut three = Three::start(three())?;
    let replicas: [&[i32]; 3] = [&[1, 2, 3], &[2, 3, 1], &[3, 1, 2]];
    let spread: Vec<&[i32]> = replicas.into_iter().cycle().take(30).collect();
    let topic = three.create(1, "stopped", &spread)?;
    for partition in 0..30 {
        three.produce(&topic, partition, &batch(1)?)?;
    }
    let begun = Instant::now();
    three.cluster.terminate()?;
    let took = begun.elapsed();
    // Nobody waits for others to take over that stop too.
    ensure!(took.as_secs() < 5, "{took:?}\n{}", three.cluster.logs());
    three.cluster.make_whole(PATIENCE)?;
    for partition in 0..30 {
        ensure!(three.produce(&topic, partition, &batch(1)?)? == 1);
    }
    Ok(())
}

/// The brokers and the topics with their replicas, as one node knows them.
fn known(metadata: &kafka_protocol::messages::MetadataResponse) -> Vec<String> {
    let mut known: Vec<String> = metadata
        .brokers
        .iter()
        .map(|broker| format!("{:?} at {}:{}", broker.node_id, &*broker.host, broker.port))
        .collect();
    for topic in &metadata.topics {
        for partition in &topic.partitions {
            known.push(format!(
                "{:?}-{}: {:?}",
                topic.topic_id, partition.partition_index, partition.replica_nodes
            ));
        }
    }
    known.sort();
    known
}

#[test]
fn topics_can_be_made_on_every_broker_after_the_metadata_leader_was_killed() -> Result<()> {
    let mut three = Three::start(three())?;
    three.create(2, "before", &[&[1, 2, 3], &[2, 3, 1], &[3, 1, 2]])?;
    let same_everywhere = |three: &Three, nodes: &[NodeNumber]| -> Result<bool> {
        let mut all = Vec::new();
        for node in nodes {
            all.push(known(&three.cluster.ask(*node)?));
        }
        Ok(all.windows(2).all(|pair| pair[0] == pair[1]))
    };
    let deadline = Instant::now() + PATIENCE;
    while !same_everywhere(&three, &[1, 2, 3])? {
        ensure!(Instant::now() < deadline, "the nodes know different things");
        std::thread::sleep(PAUSE);
    }
    let leader = three.cluster.ask(1)?.controller_id.0;
    ensure!((1..=3).contains(&leader), "no controller: {leader}");
    three.cluster.node(leader)?.kill9()?;
    let (one, other) = others(leader);
    for (node, name) in [(one, "after-one"), (other, "after-other")] {
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = three.create(node, name, &[&[one, other, leader]]) {
            ensure!(Instant::now() < deadline, "{error:#}");
            std::thread::sleep(PAUSE);
        }
    }
    three.cluster.launch(leader)?;
    three.cluster.await_members(PATIENCE)?;
    let deadline = Instant::now() + PATIENCE;
    while !same_everywhere(&three, &[1, 2, 3])? {
        ensure!(Instant::now() < deadline, "the nodes know different things");
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

#[test]
fn a_topic_made_again_while_a_replica_was_away_is_the_new_one_everywhere() -> Result<()> {
    let mut three = Three::start(three())?;
    let old = three.create(1, "again", &[&[1, 2, 3]])?;
    assert_eq!(three.produce(&old, 0, &batch(10)?)?, 0);
    three.require_identical(&old)?;
    let (leader, _) = three.leader(&old, 0)?;
    let (asked, away) = others(leader);
    three.cluster.node(away)?.kill9()?;
    delete_topic(&mut three.wire(asked)?, "again")?;
    let deadline = Instant::now() + PATIENCE;
    let new = loop {
        match three.create(asked, "again", &[&[1, 2, 3]]) {
            Ok(topic) => break topic,
            Err(error) => ensure!(Instant::now() < deadline, "{error:#}"),
        }
        std::thread::sleep(PAUSE);
    };
    assert_ne!(old.id, new.id);
    assert_eq!(three.produce(&new, 0, &batch(2)?)?, 0);
    three.cluster.launch(away)?;
    three.cluster.await_members(PATIENCE)?;
    three.require_identical(&new)?;
    // A consumer that stood at offset 10 of the old topic is told so, whatever it names the topic by.
    let (leader, _) = three.leader(&new, 0)?;
    let mut wire = three.wire(leader)?;
    assert_eq!(
        fetch(&mut wire, &new, 0, 10)?.error_code,
        OFFSET_OUT_OF_RANGE
    );
    let by_id = wire.call(13, &fetch_request(13, &old, &[(0, 10, 1 << 20)]))?;
    assert_eq!(first_partition(by_id)?.error_code, UNKNOWN_TOPIC_ID);
    assert_eq!(read_to_end(&mut wire, &new, 0, 0)?.len(), 2);
    Ok(())
}

#[test]
fn every_fetch_of_a_session_checks_the_leader_epoch() -> Result<()> {
    let mut three = Three::start(three())?;
    let topic = three.create(1, "session", &[&[1, 2, 3]])?;
    three.produce(&topic, 0, &batch(1)?)?;
    let (leader, epoch) = three.leader(&topic, 0)?;
    let mut wire = three.wire(leader)?;
    let mut opening = fetch_request(12, &topic, &[(0, 1, 1 << 20)]);
    opening.session_epoch = 0;
    for row in opening
        .topics
        .iter_mut()
        .flat_map(|row| &mut row.partitions)
    {
        row.current_leader_epoch = epoch;
    }
    let opened = wire.call(12, &opening)?;
    ensure!(opened.session_id != 0, "a session is opened");
    three.cluster.node(leader)?.pause()?;
    three.other_leader(&topic, 0, leader)?;
    three.cluster.node(leader)?.resume()?;
    // The same session, in which nothing is said of the partition any more.
    let deadline = Instant::now() + PATIENCE;
    let mut session_epoch = 1;
    loop {
        let next = FetchRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_max_bytes(1 << 20)
            .with_session_id(opened.session_id)
            .with_session_epoch(session_epoch);
        session_epoch += 1;
        let answer = wire.call(12, &next)?;
        assert_eq!(answer.error_code, 0, "the session goes on");
        let code = answer
            .responses
            .first()
            .and_then(|topic| topic.partitions.first())
            .map(|row| row.error_code);
        match code {
            Some(FENCED_LEADER_EPOCH) => return Ok(()),
            // Until it has heard of the new leader.
            None | Some(0 | NOT_LEADER_OR_FOLLOWER) => {}
            Some(code) => bail!("error {code}"),
        }
        ensure!(
            Instant::now() < deadline,
            "the old epoch is served for ever"
        );
        std::thread::sleep(PAUSE);
    }
}

#[test]
fn epochs_of_all_leaders_are_known_with_their_ends() -> Result<()> {
    let mut three = Three::start(three())?;
    let topic = three.create(1, "epochs", &[&[1, 2, 3]])?;
    let mut ends = Vec::new();
    let mut written = 0;
    for _ in 0..3 {
        three.produce(&topic, 0, &batch(3)?)?;
        written += 3;
        let (leader, epoch) = three.leader(&topic, 0)?;
        ends.push((epoch, written));
        three.cluster.node(leader)?.kill9()?;
        three.other_leader(&topic, 0, leader)?;
        three.cluster.launch(leader)?;
        three.cluster.await_members(PATIENCE)?;
    }
    let (leader, current) = three.leader(&topic, 0)?;
    let mut wire = three.wire(leader)?;
    let mut end_of = |epoch: i32, known: i32| -> Result<(i16, i32, i64)> {
        let asked = OffsetForLeaderPartition::default()
            .with_partition(0)
            .with_current_leader_epoch(known)
            .with_leader_epoch(epoch);
        let request = OffsetForLeaderEpochRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_topics(vec![
                OffsetForLeaderTopic::default()
                    .with_topic(topic.name())
                    .with_partitions(vec![asked]),
            ]);
        let answer = wire.call(4, &request)?;
        let row = answer
            .topics
            .first()
            .and_then(|topic| topic.partitions.first())
            .context("no row")?;
        Ok((row.error_code, row.leader_epoch, row.end_offset))
    };
    for (epoch, end) in ends {
        assert_eq!(end_of(epoch, current)?, (0, epoch, end));
    }
    assert_eq!(end_of(current + 1, current)?, (0, -1, -1));
    assert_eq!(end_of(current, current - 1)?.0, FENCED_LEADER_EPOCH);
    assert_eq!(end_of(current, current + 1)?.0, UNKNOWN_LEADER_EPOCH);

    let mut list = |known: i32| -> Result<(i16, i64, i32)> {
        let mut request = list_offsets_request(9, &topic, 0, EARLIEST);
        for row in request
            .topics
            .iter_mut()
            .flat_map(|row| &mut row.partitions)
        {
            row.current_leader_epoch = known;
        }
        let answer = wire.call(9, &request)?;
        let row = answer
            .topics
            .first()
            .and_then(|topic| topic.partitions.first())
            .context("no row")?;
        Ok((row.error_code, row.offset, row.leader_epoch))
    };
    let (code, offset, epoch) = list(current)?;
    assert_eq!((code, offset), (0, 0));
    assert!(
        epoch < current,
        "the epoch of the record, not of the leader"
    );
    assert_eq!(list(current - 1)?.0, FENCED_LEADER_EPOCH);
    assert_eq!(list(current + 1)?.0, UNKNOWN_LEADER_EPOCH);
    Ok(())
}

#[test]
fn what_a_cut_off_leader_wrote_alone_is_gone_before_anybody_can_read_it() -> Result<()> {
    let mut three = Three::start(three())?;
    let topic = three.create(1, "diverge", &[&[1, 2, 3]])?;
    three.produce(&topic, 0, &batch(2)?)?;
    let (cut_off, _) = three.leader(&topic, 0)?;
    let mut wire = three.wire(cut_off)?;
    three.cluster.network().isolate(cut_off)?;
    // Until its lease is over it appends what nobody else gets.
    let alone = produce_request(11, &topic, 0, 1, Some(batch(5)?));
    for _ in 0..3 {
        let _ = wire.call(11, &alone)?;
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let latest = list_offset(&mut wire, &topic, 0, LATEST)?;
        if latest.error_code != 0 {
            break;
        }
        assert_eq!(latest.offset, 2, "nothing uncommitted shows");
        ensure!(
            Instant::now() < deadline,
            "a cut-off leader answers for ever"
        );
        std::thread::sleep(PAUSE);
    }
    let refused = produce(&mut wire, &topic, 0, batch(1)?)?;
    assert_eq!(refused.error_code, NOT_LEADER_OR_FOLLOWER);
    let still_readable = fetch(&mut wire, &topic, 0, 0)?;
    assert_eq!(still_readable.high_watermark, 2);

    let (other, _) = others(cut_off);
    let deadline = Instant::now() + PATIENCE;
    let after = loop {
        let mut wire = three.wire(other)?;
        let answer = wire.call(12, &metadata_of(&topic.name))?;
        let leader = answer
            .topics
            .iter()
            .flat_map(|row| &row.partitions)
            .map(|row| row.leader_id.0)
            .find(|leader| *leader >= 0 && *leader != cut_off);
        if let Some(leader) = leader {
            let row = produce(&mut three.wire(leader)?, &topic, 0, batch(1)?)?;
            if row.error_code == 0 {
                break row.base_offset;
            }
        }
        ensure!(Instant::now() < deadline, "nobody takes over");
        std::thread::sleep(PAUSE);
    };
    assert_eq!(after, 2, "the place of what was never committed");
    three.cluster.network().heal()?;
    three.require_identical(&topic)?;
    let (leader, _) = three.leader(&topic, 0)?;
    let records = read_to_end(&mut three.wire(leader)?, &topic, 0, 0)?;
    assert_eq!(records.len(), 3);
    Ok(())
}

#[test]
fn followers_serve_consumers_in_their_rack_and_the_leader_sends_them_there() -> Result<()> {
    let selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector";
    let mut three = Three::start(three().set("replica.selector.class", selector))?;
    let topic = three.create(1, "near", &[&[1, 2, 3]])?;
    three.produce(&topic, 0, &batch(3)?)?;
    three.require_identical(&topic)?;
    let (leader, _) = three.leader(&topic, 0)?;
    let (near, far) = others(leader);
    let in_rack = |version: i16, offset: i64| {
        let mut request = fetch_request(version, &topic, &[(0, offset, 1 << 20)]);
        if version >= 11 {
            request.rack_id = text(format!("rack-{near}"));
        }
        request
    };
    let mut wire = three.wire(leader)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let row = first_partition(wire.call(11, &in_rack(11, 0))?)?;
        assert_eq!(row.error_code, 0);
        if row.preferred_read_replica.0 == near {
            let bytes = row.records.map_or(0, |records| records.len());
            assert_eq!(bytes, 0, "the leader names a replica and sends no data");
            break;
        }
        ensure!(Instant::now() < deadline, "no replica is named");
        std::thread::sleep(PAUSE);
    }
    for follower in [near, far] {
        let mut wire = three.wire(follower)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let row = first_partition(wire.call(11, &in_rack(11, 0))?)?;
            assert_eq!(row.error_code, 0, "{follower}");
            assert_eq!(row.preferred_read_replica.0, -1);
            let bytes = row.records.map_or(0, |records| records.len());
            if row.high_watermark == 3 {
                assert!(bytes > 0);
                break;
            }
            ensure!(Instant::now() < deadline, "{follower} knows of nothing");
            std::thread::sleep(PAUSE);
        }
        let beyond = first_partition(wire.call(11, &in_rack(11, 9))?)?;
        assert_eq!(beyond.error_code, OFFSET_OUT_OF_RANGE);
        let old = first_partition(wire.call(10, &in_rack(10, 0))?)?;
        assert_eq!(old.error_code, NOT_LEADER_OR_FOLLOWER);
    }
    Ok(())
}
