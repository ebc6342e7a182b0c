//! Partitions of several replicas, over plain connections to clusters of three nodes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use compat_tests::batches::{BatchSpec, RecordSpec};
use compat_tests::cluster::replicas;
use compat_tests::cluster::{Cluster, ClusterOptions, NodeNumber, Product};
use compat_tests::requests::{
    EARLIEST, LATEST, Topic, creatable, delete_topic, fetch, fetch_request, first_partition,
    init_producer_id, list_offset, list_offsets_request, metadata_of, produce, produce_request,
    read_to_end,
};
use compat_tests::wire::{Wire, text};
use kafka_protocol::messages::create_topics_request::CreatableReplicaAssignment;
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::produce_request::TopicProduceData;
use kafka_protocol::messages::{
    BrokerId, CreateTopicsRequest, FetchRequest, InitProducerIdRequest, OffsetForLeaderEpochRequest,
};

/// How long anything may take that a cluster does by itself.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
const NOW: i64 = 1_790_000_000_000;

const OFFSET_OUT_OF_RANGE: i16 = 1;
const NOT_LEADER_OR_FOLLOWER: i16 = 6;
const REQUEST_TIMED_OUT: i16 = 7;
const NOT_ENOUGH_REPLICAS: i16 = 19;
const FENCED_LEADER_EPOCH: i16 = 74;
const UNKNOWN_LEADER_EPOCH: i16 = 75;
const UNKNOWN_TOPIC_ID: i16 = 100;

fn three() -> ClusterOptions {
    Cluster::options(Product::Odradek, 3)
}

fn batch(count: usize) -> Result<Bytes> {
    BatchSpec::small(count, NOW).build()
}

/// What is asked of a cluster again and again.
struct Three {
    cluster: Cluster,
}

impl Three {
    fn start(options: ClusterOptions) -> Result<Self> {
        Ok(Self {
            cluster: options.start()?,
        })
    }

    fn wire(&mut self, node: NodeNumber) -> Result<Wire> {
        Wire::connect(self.cluster.node(node)?.addresses().broker)
    }

    /// A connection to any node that runs.
    fn any(&mut self) -> Result<Wire> {
        let running = self.cluster.running()?;
        let node = running.first().context("no node runs")?;
        self.wire(*node)
    }

    /// Creates a topic with these replicas by way of `node`.
    fn create(&mut self, node: NodeNumber, name: &str, replicas: &[&[i32]]) -> Result<Topic> {
        let assignments = (0..)
            .zip(replicas)
            .map(|(index, brokers)| {
                CreatableReplicaAssignment::default()
                    .with_partition_index(index)
                    .with_broker_ids(brokers.iter().copied().map(BrokerId).collect())
            })
            .collect();
        let topic = creatable(name, -1, &[])
            .with_replication_factor(-1)
            .with_assignments(assignments);
        let request = CreateTopicsRequest::default()
            .with_timeout_ms(20_000)
            .with_topics(vec![topic]);
        let answer = self.wire(node)?.call(7, &request)?;
        let created = answer.topics.first().context("no topic in the answer")?;
        ensure!(
            created.error_code == 0,
            "creating {name}: error {} {:?}",
            created.error_code,
            created.error_message
        );
        Ok(Topic {
            name: name.to_owned(),
            id: created.topic_id,
        })
    }

    /// The leader of a partition and its epoch, by whichever running node knows of the latest, once that takes
    /// requests in it.
    fn leader(&mut self, topic: &Topic, partition: i32) -> Result<(NodeNumber, i32)> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut newest = (-1, -1);
            for node in self.cluster.running()? {
                let Ok(answer) = self.wire(node)?.call(12, &metadata_of(&topic.name)) else {
                    continue;
                };
                let rows = answer
                    .topics
                    .iter()
                    .filter(|row| row.topic_id == topic.id)
                    .flat_map(|row| &row.partitions)
                    .filter(|row| row.partition_index == partition);
                for row in rows {
                    newest = newest.max((row.leader_epoch, row.leader_id.0));
                }
            }
            let (epoch, leader) = newest;
            if leader >= 0 && self.cluster.running()?.contains(&leader) {
                let mut wire = self.wire(leader)?;
                if list_offset(&mut wire, topic, partition, LATEST)
                    .is_ok_and(|row| row.error_code == 0)
                {
                    return Ok((leader, epoch));
                }
            }
            ensure!(
                Instant::now() < deadline,
                "{} {partition} gets no leader\n{}",
                topic.name,
                self.cluster.logs()
            );
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until another node than `last` leads.
    fn other_leader(
        &mut self,
        topic: &Topic,
        partition: i32,
        last: NodeNumber,
    ) -> Result<(NodeNumber, i32)> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (leader, epoch) = self.leader(topic, partition)?;
            if leader != last {
                return Ok((leader, epoch));
            }
            ensure!(Instant::now() < deadline, "{last} still leads");
            std::thread::sleep(PAUSE);
        }
    }

    /// Sends the batch to whoever leads until it is acknowledged, as a client with retries does.
    fn produce(&mut self, topic: &Topic, partition: i32, records: &Bytes) -> Result<i64> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (leader, _) = self.leader(topic, partition)?;
            let mut wire = self.wire(leader)?;
            let answer = produce(&mut wire, topic, partition, records.clone());
            match answer.map(|row| (row.error_code, row.base_offset)) {
                Ok((0, offset)) => return Ok(offset),
                Ok((3 | 5 | 6 | 7 | 19 | 20, _)) | Err(_) => {}
                Ok((code, _)) => bail!("produce: error {code}"),
            }
            ensure!(Instant::now() < deadline, "not acknowledged in time");
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until all replicas are in sync, and compares their files.
    fn require_identical(&mut self, topic: &Topic) -> Result<()> {
        self.cluster.await_in_sync(PATIENCE)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut dirs = BTreeMap::new();
            for number in self.cluster.numbers() {
                dirs.insert(number, self.cluster.node(number)?.data_dir().to_owned());
            }
            let placement = BTreeMap::from([(0, dirs.keys().copied().collect())]);
            let found = replicas::read(&dirs, &topic.name, &placement)?;
            let violations = replicas::compare(&found);
            if violations.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "replicas differ: {violations:?}");
            std::thread::sleep(PAUSE);
        }
    }
}

fn others(node: NodeNumber) -> (NodeNumber, NodeNumber) {
    match node {
        1 => (2, 3),
        2 => (1, 3),
        _ => (1, 2),
    }
}

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

#[test]
fn a_stuck_partition_costs_its_neighbour_no_answer_and_a_retry_is_deduplicated() -> Result<()> {
    let mut three = Three::start(three().set("min.insync.replicas", 1))?;
    let stuck = three.create(1, "stuck", &[&[1, 2]])?;
    let (leader, _) = three.leader(&stuck, 0)?;
    let follower = 3 - leader;
    let healthy = three.create(1, "healthy", &[&[leader]])?;
    three.leader(&healthy, 0)?;
    let (id, epoch) = init_producer_id(&mut three.any()?)?;
    let of_producer = || BatchSpec::small(2, NOW).from_producer(id, epoch, 0).build();
    let mut wire = three.wire(leader)?;
    let mut request = produce_request(11, &stuck, 0, -1, Some(of_producer()?));
    request.timeout_ms = 1_000;
    let second = produce_request(11, &healthy, 0, -1, Some(of_producer()?));
    let more: Vec<TopicProduceData> = second.topic_data;
    request.topic_data.extend(more);
    three.cluster.node(follower)?.pause()?;
    let started = Instant::now();
    let answer = wire.call(11, &request)?;
    let took = started.elapsed();
    three.cluster.node(follower)?.resume()?;
    let rows: Vec<(i16, i64)> = answer
        .responses
        .iter()
        .flat_map(|topic| &topic.partition_responses)
        .map(|row| (row.error_code, row.base_offset))
        .collect();
    assert_eq!(rows, [(REQUEST_TIMED_OUT, -1), (0, 0)]);
    assert!(
        took >= Duration::from_millis(900) && took < Duration::from_millis(2_500),
        "{took:?}"
    );
    assert_eq!(three.produce(&stuck, 0, &of_producer()?)?, 0);
    let (leader, _) = three.leader(&stuck, 0)?;
    let latest = list_offset(&mut three.wire(leader)?, &stuck, 0, LATEST)?;
    assert_eq!(latest.offset, 2, "it is there once");
    Ok(())
}

#[test]
fn an_idempotent_producer_sees_each_batch_once_while_brokers_restart() -> Result<()> {
    let mut three = Three::start(three())?;
    let topic = three.create(1, "rolling", &[&[1, 2, 3]])?;
    let (id, epoch) = init_producer_id(&mut three.any()?)?;
    let mut sequence = 0;
    let mut next = || -> Result<(Bytes, i64)> {
        let records = vec![RecordSpec::value("a"), RecordSpec::value("b")];
        let batch = BatchSpec::of(records).from_producer(id, epoch, sequence);
        let expected = i64::from(sequence);
        sequence += 2;
        Ok((batch.build()?, expected))
    };
    for round in 0..9 {
        let (sent, expected) = next()?;
        assert_eq!(three.produce(&topic, 0, &sent)?, expected);
        let node = round % 3 + 1;
        match round % 2 {
            0 => three.cluster.node(node)?.kill9()?,
            _ => {
                three.cluster.node(node)?.terminate(PATIENCE)?;
            }
        }
        // The last acknowledged batch again, to whoever leads by now.
        assert_eq!(three.produce(&topic, 0, &sent)?, expected);
        let (sent, expected) = next()?;
        assert_eq!(three.produce(&topic, 0, &sent)?, expected);
        three.cluster.launch(node)?;
        three.cluster.await_members(PATIENCE)?;
        assert_eq!(three.produce(&topic, 0, &sent)?, expected);
        three.cluster.await_in_sync(PATIENCE)?;
    }
    three.require_identical(&topic)?;
    let (leader, _) = three.leader(&topic, 0)?;
    let records = read_to_end(&mut three.wire(leader)?, &topic, 0, 0)?;
    assert_eq!(records.len(), 36);
    Ok(())
}

#[test]
fn producer_ids_given_out_while_replicas_are_missing_are_never_given_twice() -> Result<()> {
    let mut three = Three::start(three())?;
    let topic = three.create(1, "short", &[&[1, 2, 3]])?;
    let (leader, _) = three.leader(&topic, 0)?;
    let (one, other) = others(leader);
    let mut wire = three.wire(leader)?;
    three.cluster.node(one)?.kill9()?;
    three.cluster.node(other)?.kill9()?;
    let mut given = Vec::new();
    for _ in 0..5 {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(None)
            .with_transaction_timeout_ms(60_000);
        let answer = wire.call(4, &request)?;
        if answer.error_code == 0 {
            given.push((answer.producer_id.0, answer.producer_epoch));
        }
    }
    let code = produce(&mut wire, &topic, 0, batch(1)?)?.error_code;
    assert!(
        [NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS].contains(&code),
        "{code}"
    );
    three.cluster.launch(one)?;
    three.cluster.launch(other)?;
    three.cluster.await_members(PATIENCE)?;
    for node in [leader, one, other] {
        given.push(init_producer_id(&mut three.wire(node)?)?);
    }
    assert!(given.iter().all(|(_, epoch)| *epoch == 0));
    let count = given.len();
    given.sort_unstable();
    given.dedup();
    assert_eq!(given.len(), count);
    assert_eq!(three.produce(&topic, 0, &batch(1)?)?, 0);
    Ok(())
}
