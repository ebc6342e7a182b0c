//! Producers and their batches in clusters whose nodes come and go, over plain connections.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use compat_tests::batches::{BatchSpec, RecordSpec};
use compat_tests::cluster::admin::{self, Placement};
use compat_tests::cluster::{Cluster, NodeNumber, Product};
use compat_tests::requests::{
    LATEST, init_producer_id, list_offset, produce, produce_request, read_to_end,
};
use compat_tests::transactions::init_request;
use compat_tests::wire::text;
use kafka_protocol::messages::produce_request::TopicProduceData;
use kafka_protocol::messages::{FindCoordinatorRequest, InitProducerIdRequest};

use super::three::{PATIENCE, PAUSE, Three, batch, others, three};

const NOW: i64 = 1_790_000_000_000;

const NOT_LEADER_OR_FOLLOWER: i16 = 6;
const REQUEST_TIMED_OUT: i16 = 7;
const NOT_ENOUGH_REPLICAS: i16 = 19;

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

/// Batches of two records of one idempotent producer.
struct Batches {
    producer: (i64, i16),
    sequence: i32,
}

impl Batches {
    fn new(three: &mut Three) -> Result<Self> {
        Ok(Self {
            producer: init_producer_id(&mut three.any()?)?,
            sequence: 0,
        })
    }

    /// The next one, and the offset that it gets.
    fn next(&mut self) -> Result<(Bytes, i64)> {
        let records = vec![RecordSpec::value("a"), RecordSpec::value("b")];
        let (id, epoch) = self.producer;
        let batch = BatchSpec::of(records).from_producer(id, epoch, self.sequence);
        let expected = i64::from(self.sequence);
        self.sequence += 2;
        Ok((batch.build()?, expected))
    }
}

#[test]
fn an_idempotent_producer_sees_each_batch_once_while_brokers_restart() -> Result<()> {
    let mut three = Three::start(three())?;
    let topic = three.create(1, "rolling", &[&[1, 2, 3]])?;
    let mut batches = Batches::new(&mut three)?;
    for round in 0..9 {
        let (sent, expected) = batches.next()?;
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
        let (sent, expected) = batches.next()?;
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
fn an_idempotent_producer_sees_each_batch_once_while_its_partition_moves() -> Result<()> {
    let mut three = Three::start(Cluster::options(Product::Odradek, 4))?;
    let topic = three.create(1, "moving", &[&[1, 2, 3]])?;
    let mut batches = Batches::new(&mut three)?;
    for round in 0..6 {
        let (sent, expected) = batches.next()?;
        assert_eq!(three.produce(&topic, 0, &sent)?, expected);
        // To everybody but who leads.
        let (leader, _) = three.leader(&topic, 0)?;
        let target: Vec<NodeNumber> = (1..=4).filter(|node| *node != leader).collect();
        let wanted = Placement::from([(0, target.clone())]);
        let refused = admin::reassign(&mut three.any()?, &topic, &wanted)?;
        ensure!(refused.is_empty(), "{refused:?}");
        assert_eq!(three.produce(&topic, 0, &sent)?, expected);
        let (sent, expected) = batches.next()?;
        let deadline = Instant::now() + PATIENCE;
        // Sent again and again while replicas come and go and the leader hands over.
        loop {
            assert_eq!(three.produce(&topic, 0, &sent)?, expected);
            let left = admin::reassigning(&mut three.any()?)?;
            if left == 0 && admin::placement(&mut three.cluster, &topic)? == wanted {
                break;
            }
            ensure!(Instant::now() < deadline, "it does not arrive");
        }
        assert_eq!(three.produce(&topic, 0, &sent)?, expected);
        if round % 2 == 1 {
            three.cluster.node(target[0])?.kill9()?;
            assert_eq!(three.produce(&topic, 0, &sent)?, expected);
            three.cluster.launch(target[0])?;
            three.cluster.await_members(PATIENCE)?;
        }
    }
    let (leader, _) = three.leader(&topic, 0)?;
    let records = read_to_end(&mut three.wire(leader)?, &topic, 0, 0)?;
    assert_eq!(records.len(), 24);
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

/// The coordinator of a transactional id, once it has a producer id for it; and the epoch.
fn init_somewhere(three: &mut Three, id: &str) -> Result<(NodeNumber, i16)> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let find = FindCoordinatorRequest::default()
            .with_key(text(id))
            .with_key_type(1);
        let found = three.any()?.call(3, &find)?;
        if found.error_code == 0 && three.cluster.running()?.contains(&found.node_id.0) {
            let mut wire = three.wire(found.node_id.0)?;
            let answer = wire.call(4, &init_request(id))?;
            match answer.error_code {
                0 => return Ok((found.node_id.0, answer.producer_epoch)),
                code => ensure!(RETRIABLE_OF_COORDINATORS.contains(&code), "error {code}"),
            }
        }
        ensure!(Instant::now() < deadline, "no coordinator of {id}");
        std::thread::sleep(PAUSE);
    }
}

/// COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS.
const RETRIABLE_OF_COORDINATORS: [i16; 4] = [14, 15, 16, 51];

#[test]
fn epochs_asked_for_while_replicas_are_missing_are_not_used_up() -> Result<()> {
    const ASKED: i16 = 30;
    let topic = "transaction.state.log";
    let options = three()
        .set(&format!("{topic}.num.partitions"), 1)
        .set(&format!("{topic}.replication.factor"), 3)
        .set(&format!("{topic}.min.isr"), 2);
    let mut three = Three::start(options)?;
    let (coordinator, first) = init_somewhere(&mut three, "short")?;
    three.cluster.await_in_sync(PATIENCE)?;
    let (one, other) = others(coordinator);
    let mut wire = three.wire(coordinator)?;
    three.cluster.node(one)?.kill9()?;
    three.cluster.node(other)?.kill9()?;
    for _ in 0..ASKED {
        let code = wire.call(4, &init_request("short"))?.error_code;
        assert!(RETRIABLE_OF_COORDINATORS.contains(&code), "error {code}");
    }
    three.cluster.launch(one)?;
    three.cluster.launch(other)?;
    three.cluster.await_members(PATIENCE)?;
    let (_, epoch) = init_somewhere(&mut three, "short")?;
    // The very first of them may have been written by a leader that did not know yet that it was alone.
    let used = epoch - first;
    assert!((1..=2).contains(&used), "{used} epochs for one answer");
    Ok(())
}
