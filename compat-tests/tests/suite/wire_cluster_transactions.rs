//! Transactions on clusters of three nodes: coordinators, partitions and groups on different nodes, each of which is
//! killed or moved.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use compat_tests::batches::{BatchSpec, RecordSpec, TRANSACTIONAL};
use compat_tests::cluster::NodeNumber;
use compat_tests::cluster::admin::connect;
use compat_tests::cluster::clients::coordinator::{Coordinator, Kind};
use compat_tests::cluster::history::AttemptName;
use compat_tests::groups::offset_fetch;
use compat_tests::requests::{Topic, delete_topic};
use compat_tests::transactions::{TxnProducer, init_request};
use compat_tests::wire::Wire;
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, EndTxnResponse, TxnOffsetCommitResponse,
};

use crate::coordinated::{
    ALL, ANSWER_PATIENCE, PATIENCE, PAUSE, Three, eventually, seed, state_topic,
};

const OUT_OF_ORDER_SEQUENCE_NUMBER: i16 = 45;
const NOT_COORDINATOR: i16 = 16;
const CONCURRENT_TRANSACTIONS: i16 = 51;
const UNSTABLE_OFFSET_COMMIT: i16 = 88;
const INVALID_TXN_STATE: i16 = 48;
const TRANSACTION_ABORTABLE: i16 = 120;
/// What a producer tries again after.
const AGAIN: [i16; 6] = [3, 5, 6, 7, 19, 20];

const SPREAD: [&[NodeNumber]; 3] = [&[1, 2, 3], &[2, 3, 1], &[3, 1, 2]];

fn name(position: i64, number: u32) -> AttemptName {
    AttemptName {
        copier: 0,
        position,
        number,
    }
}

/// A transactional producer that finds its coordinators and leaders, and asks again as every client does.
struct Client {
    transactions: Coordinator,
    group: Coordinator,
    group_name: String,
    producer: TxnProducer,
}

impl Client {
    /// Initializes `id`, and will commit offsets of `group`.
    fn init(three: &Three, id: &str, group: &str) -> Result<Self> {
        let mut this = Self {
            transactions: three.coordinator(Kind::Transaction, id),
            group: three.coordinator(Kind::Group, group),
            group_name: group.to_owned(),
            producer: TxnProducer {
                id: id.to_owned(),
                producer_id: -1,
                epoch: -1,
            },
        };
        this.init_again(60_000)?;
        Ok(this)
    }

    fn init_again(&mut self, timeout_ms: i32) -> Result<()> {
        let request = init_request(&self.producer.id).with_transaction_timeout_ms(timeout_ms);
        let passing = [CONCURRENT_TRANSACTIONS];
        let answer = self
            .transactions
            .ask_until(4, &request, PATIENCE, &passing, |answer| answer.error_code)?;
        ensure!(answer.error_code == 0, "InitProducerId: {answer:?}");
        self.producer.producer_id = answer.producer_id.0;
        self.producer.epoch = answer.producer_epoch;
        Ok(())
    }

    /// AddPartitionsToTxn, as clients before KIP-890 do.
    fn add(&mut self, topic: &Topic, partitions: &[i32]) -> Result<()> {
        let request = self
            .producer
            .add_request(3, &[(&topic.name, partitions)], false);
        let code = |answer: &AddPartitionsToTxnResponse| {
            let topics = answer.results_by_topic_v3_and_below.iter();
            let mut rows = topics.flat_map(|topic| &topic.results_by_partition);
            let failed = rows.find(|row| row.partition_error_code != 0);
            failed.map_or(0, |row| row.partition_error_code)
        };
        let passing = [CONCURRENT_TRANSACTIONS];
        let answer = self
            .transactions
            .ask_until(3, &request, PATIENCE, &passing, code)?;
        ensure!(code(&answer) == 0, "AddPartitionsToTxn: {answer:?}");
        Ok(())
    }

    fn batch(&self, sequence: i32, name: AttemptName) -> Result<bytes::Bytes> {
        let batch = BatchSpec::of(vec![RecordSpec::value(name.value())]);
        let (id, epoch) = (self.producer.producer_id, self.producer.epoch);
        let mut batch = batch.from_producer(id, epoch, sequence);
        batch.attributes |= TRANSACTIONAL;
        batch.build()
    }

    /// Produces once to whoever leads; the error code.
    fn produce_once(
        &self,
        three: &mut Three,
        version: i16,
        (topic, partition): (&Topic, i32),
        sequence: i32,
        name: AttemptName,
    ) -> Result<i16> {
        let batch = self.batch(sequence, name)?;
        let request = self
            .producer
            .produce_request(version, topic, partition, batch);
        let leader = three.leader(topic, partition)?;
        let address = three.cluster.node(leader)?.addresses().broker;
        let mut wire = Wire::connect_within(address, ANSWER_PATIENCE)?;
        let answer = wire.call(version, &request)?;
        let row = answer
            .responses
            .first()
            .and_then(|topic| topic.partition_responses.first());
        Ok(row.context("no row")?.error_code)
    }

    /// Produces until it is taken.
    fn produce(
        &self,
        three: &mut Three,
        version: i16,
        place: (&Topic, i32),
        sequence: i32,
        name: AttemptName,
    ) -> Result<()> {
        eventually("not taken", || {
            match self.produce_once(three, version, place, sequence, name)? {
                0 => Ok(()),
                code => bail!("Produce: error {code}"),
            }
        })
    }

    /// TxnOffsetCommit, which adds the group's partition to the transaction.
    fn commit_offset(&mut self, topic: &Topic, offset: i64) -> Result<()> {
        let request = self
            .producer
            .commit_request(&self.group_name, &topic.name, 0, offset);
        let code = |answer: &TxnOffsetCommitResponse| {
            let mut rows = answer.topics.iter().flat_map(|topic| &topic.partitions);
            rows.next().map_or(-1, |row| row.error_code)
        };
        let passing = [CONCURRENT_TRANSACTIONS];
        let answer = self
            .group
            .ask_until(5, &request, PATIENCE, &passing, code)?;
        ensure!(code(&answer) == 0, "TxnOffsetCommit: {answer:?}");
        Ok(())
    }

    /// Where the group stands, once that is decided.
    fn committed(&mut self, topic: &Topic) -> Result<i64> {
        let request = offset_fetch(7, &self.group_name, Some(&[(&topic.name, &[0])]))
            .with_require_stable(true);
        let code = |answer: &kafka_protocol::messages::OffsetFetchResponse| {
            let row = answer
                .topics
                .first()
                .and_then(|topic| topic.partitions.first());
            match answer.error_code {
                0 => row.map_or(-1, |row| row.error_code),
                code => code,
            }
        };
        let passing = [UNSTABLE_OFFSET_COMMIT];
        let answer = self
            .group
            .ask_until(7, &request, PATIENCE, &passing, code)?;
        ensure!(code(&answer) == 0, "OffsetFetch: {answer:?}");
        Ok(answer.topics[0].partitions[0].committed_offset)
    }

    /// EndTxn until it is answered for good.
    fn end(&mut self, version: i16, committed: bool) -> Result<()> {
        let request = self.producer.end_request(committed);
        let passing = [CONCURRENT_TRANSACTIONS];
        let answer: EndTxnResponse =
            self.transactions
                .ask_until(version, &request, PATIENCE, &passing, |answer| {
                    answer.error_code
                })?;
        ensure!(answer.error_code == 0, "EndTxn: {answer:?}");
        if version >= 5 {
            self.producer.producer_id = answer.producer_id.0;
            self.producer.epoch = answer.producer_epoch;
        }
        Ok(())
    }
}

/// Coordinator of the transaction, of the group and leaders of the partitions on every combination of nodes, with
/// clients from before and since KIP-890.
#[test]
fn markers_and_questions_reach_partitions_and_groups_on_other_nodes() -> Result<()> {
    let mut three = Three::start()?;
    let topic = three.create("spread", &SPREAD)?;
    let mut expected = Vec::new();
    let mut number = 0;
    for transactions in ALL {
        three.coordinate(Kind::Transaction, "traveller", transactions)?;
        for group in ALL {
            three.coordinate(Kind::Group, "travellers", group)?;
            for (version, commits) in [(12, true), (12, false), (11, true), (11, false)] {
                let mut client = Client::init(&three, "traveller", "travellers")?;
                let position = expected.len() as i64;
                let name = name(position, number);
                number += 1;
                if version == 11 {
                    client.add(&topic, &[0, 1, 2])?;
                }
                for partition in 0..3 {
                    client.produce(&mut three, version, (&topic, partition), 0, name)?;
                }
                client.commit_offset(&topic, position + 1)?;
                client.end(if version == 11 { 4 } else { 5 }, commits)?;
                if commits {
                    expected.push(name);
                }
                assert_eq!(client.committed(&topic)?.max(0), expected.len() as i64);
            }
        }
    }
    for partition in 0..3 {
        assert_eq!(three.counted(&topic, partition)?, expected);
    }
    Ok(())
}

#[test]
fn a_coordinator_is_asked_about_many_transactions_at_once_and_no_other_node_answers() -> Result<()>
{
    let mut three = Three::start()?;
    let topic = three.create("asked", &SPREAD)?;
    three.coordinate(Kind::Transaction, "one", 2)?;
    let mut one = Client::init(&three, "one", "askers")?;
    one.produce(&mut three, 12, (&topic, 0), 0, name(0, 0))?;
    // Another id of the same coordinator.
    let other = (0..100)
        .map(|number| format!("other-{number}"))
        .find(|id| {
            crate::coordinated::state_partition(id) == crate::coordinated::state_partition("one")
        })
        .context("no other id")?;
    let mut other = Client::init(&three, &other, "askers")?;
    other.produce(&mut three, 12, (&topic, 1), 0, name(0, 1))?;
    let transactions: Vec<_> = [&one, &other]
        .iter()
        .flat_map(|client| {
            let request = client
                .producer
                .add_request(5, &[("asked", &[0, 1, 2])], true);
            request.transactions
        })
        .collect();
    let request = AddPartitionsToTxnRequest::default().with_transactions(transactions);
    let ask = |three: &mut Three, node| -> Result<Vec<(String, i32, i16)>> {
        let mut wire = Wire::connect(three.cluster.node(node)?.addresses().broker)?;
        let answer = wire.call(5, &request)?;
        let rows = answer.results_by_transaction.iter().flat_map(|result| {
            let topics = result.topic_results.iter();
            let rows = topics.flat_map(|topic| &topic.results_by_partition);
            let id = result.transactional_id.to_string();
            rows.map(move |row| (id.clone(), row.partition_index, row.partition_error_code))
        });
        Ok(rows.collect())
    };
    let row = |client: &Client, partition, code| (client.producer.id.clone(), partition, code);
    const NOT_PART: i16 = TRANSACTION_ABORTABLE;
    let expected = [
        row(&one, 0, 0),
        row(&one, 1, NOT_PART),
        row(&one, 2, NOT_PART),
        row(&other, 0, NOT_PART),
        row(&other, 1, 0),
        row(&other, 2, NOT_PART),
    ];
    assert_eq!(ask(&mut three, 2)?, expected);
    for node in [1, 3] {
        let answers = ask(&mut three, node)?;
        ensure!(
            answers.iter().all(|(_, _, code)| *code == NOT_COORDINATOR),
            "{answers:?}"
        );
    }
    one.end(5, true)?;
    other.end(5, true)?;
    assert_eq!(three.counted(&topic, 0)?, [name(0, 0)]);
    assert_eq!(three.counted(&topic, 1)?, [name(0, 1)]);
    Ok(())
}

/// The leader of the partition asks a coordinator on another node, which says no: nothing of the producer is taken
/// before what was refused.
#[test]
fn what_a_coordinator_elsewhere_does_not_confirm_is_held_back() -> Result<()> {
    let mut three = Three::start()?;
    let topic = three.create("unconfirmed", &[&[1, 2, 3]])?;
    for node in ALL {
        let id = format!("unconfirmed-{node}");
        three.coordinate(Kind::Transaction, &id, node)?;
        let mut client = Client::init(&three, &id, "unconfirmed")?;
        let place = (&topic, 0);
        let once = |client: &Client, three: &mut Three, sequence, name| {
            eventually("only passing errors", || {
                let code = client.produce_once(three, 11, place, sequence, name)?;
                ensure!(!AGAIN.contains(&code), "error {code}");
                Ok(code)
            })
        };
        let (first, second) = (name(node.into(), 0), name(node.into(), 1));
        let code = once(&client, &mut three, 0, first)?;
        assert_eq!(code, TRANSACTION_ABORTABLE);
        client.add(&topic, &[0])?;
        let code = once(&client, &mut three, 1, second)?;
        assert_eq!(code, OUT_OF_ORDER_SEQUENCE_NUMBER);
        assert_eq!(once(&client, &mut three, 0, first)?, 0);
        assert_eq!(once(&client, &mut three, 1, second)?, 0);
        client.end(4, true)?;
        // Until its marker is written the transaction is open at the partition.
        let mut coordinator = connect(&mut three.cluster, node)?;
        client.producer.until_completed(&mut coordinator)?;
        let late = once(&client, &mut three, 2, name(node.into(), 2))?;
        ensure!(
            late == TRANSACTION_ABORTABLE,
            "the transaction is over: error {late}"
        );
    }
    let counted = three.counted(&topic, 0)?;
    let expected: Vec<_> = ALL
        .into_iter()
        .flat_map(|node| [name(node.into(), 0), name(node.into(), 1)])
        .collect();
    assert_eq!(counted, expected);
    Ok(())
}

/// Who is killed once the end of a transaction is answered, while a partition has not been told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Coordinator,
    Leader,
    Both,
}

/// A leader stands still while the transaction is ended, so that its marker is under way when the kill comes.
#[test]
fn an_answered_end_is_carried_out_whoever_is_killed_before_the_markers_are_there() -> Result<()> {
    let mut three = Three::start()?;
    // Node 2 coordinates, 3 leads one partition and 1 the other: with 3 standing still there is a majority.
    let topic = three.create("ended", &[&[3, 2, 1], &[1, 2, 3]])?;
    let mut expected = Vec::new();
    let mut number = 0;
    for victim in [Victim::Coordinator, Victim::Leader, Victim::Both] {
        for commits in [true, false] {
            three.coordinate(Kind::Transaction, "ender", 2)?;
            three.coordinate(Kind::Group, "enders", 1)?;
            three.lead(&topic, 0, 3)?;
            three.lead(&topic, 1, 1)?;
            let mut client = Client::init(&three, "ender", "enders")?;
            let position = expected.len() as i64;
            let mine = name(position, number);
            number += 1;
            for partition in 0..2 {
                client.produce(&mut three, 12, (&topic, partition), 0, mine)?;
            }
            client.commit_offset(&topic, position + 1)?;
            three.cluster.node(3)?.pause()?;
            client.end(5, commits)?;
            eprintln!(
                "{victim:?} dies, {}",
                if commits { "commit" } else { "abort" }
            );
            if victim != Victim::Leader {
                three.kill(2)?;
            }
            match victim {
                Victim::Coordinator => three.cluster.node(3)?.resume()?,
                Victim::Leader | Victim::Both => three.kill(3)?,
            }
            if victim == Victim::Both {
                // One node alone decides nothing.
                std::thread::sleep(Duration::from_millis(500));
                three.make_whole()?;
            }
            if commits {
                expected.push(mine);
            }
            for partition in 0..2 {
                assert_eq!(three.counted(&topic, partition)?, expected, "{victim:?}");
            }
            assert_eq!(client.committed(&topic)?.max(0), expected.len() as i64);
            // The same producer goes on at the new coordinator, in the epoch that it was told.
            let next = name(expected.len() as i64, number);
            number += 1;
            for partition in 0..2 {
                client.produce(&mut three, 12, (&topic, partition), 0, next)?;
            }
            client.commit_offset(&topic, expected.len() as i64 + 1)?;
            client.end(5, true)?;
            expected.push(next);
            three.make_whole()?;
        }
    }
    for partition in 0..2 {
        assert_eq!(three.counted(&topic, partition)?, expected);
    }
    Ok(())
}

/// The end is asked for, the coordinator killed, and the end asked for again at the next one.
#[test]
fn an_end_that_nobody_answered_is_answered_by_the_next_coordinator_and_done_once() -> Result<()> {
    const ROUNDS: u32 = 9;
    let mut three = Three::start()?;
    let topic = three.create("again", &SPREAD)?;
    let mut client = Client::init(&three, "asker", "askers")?;
    let mut expected = Vec::new();
    for round in 0..ROUNDS {
        let version = if round % 2 == 0 { 12 } else { 11 };
        let commits = round % 3 != 2;
        let position = expected.len() as i64;
        let mine = name(position, round);
        // The old protocol goes on in its epoch only within one instance.
        client.init_again(60_000)?;
        if version == 11 {
            client.add(&topic, &[0, 1, 2])?;
        }
        for partition in 0..3 {
            client.produce(&mut three, version, (&topic, partition), 0, mine)?;
        }
        client.commit_offset(&topic, position + 1)?;
        let end_version = if version == 11 { 4 } else { 5 };
        let request = client.producer.end_request(commits);
        client
            .transactions
            .wire(PATIENCE)?
            .send(end_version, &request)?;
        std::thread::sleep(Duration::from_micros(400 * u64::from(round % 4)));
        let node = client.transactions.node().context("no coordinator")?;
        three.kill(node)?;
        client.transactions.forget();
        client.end(end_version, commits)?;
        if commits {
            expected.push(mine);
        }
        assert_eq!(client.committed(&topic)?.max(0), expected.len() as i64);
        for partition in 0..3 {
            assert_eq!(three.counted(&topic, partition)?, expected, "round {round}");
        }
        three.make_whole()?;
    }
    Ok(())
}

/// The producer is gone and its coordinator killed: the next one sees that the time is up.
#[test]
fn a_transaction_that_nobody_ends_is_aborted_by_the_next_coordinator() -> Result<()> {
    let mut three = Three::start()?;
    let topic = three.create("left", &SPREAD)?;
    three.coordinate(Kind::Transaction, "leaver", 1)?;
    let mut client = Client::init(&three, "leaver", "leavers")?;
    client.init_again(2_000)?;
    for partition in 0..3 {
        client.produce(&mut three, 12, (&topic, partition), 0, name(0, 0))?;
    }
    client.commit_offset(&topic, 1)?;
    three.kill(1)?;
    for partition in 0..3 {
        assert_eq!(three.counted(&topic, partition)?, []);
    }
    assert_eq!(client.committed(&topic)?, -1);
    let request = client.producer.end_request(true);
    client.transactions.forget();
    let answer = client.transactions.ask_until(
        5,
        &request,
        PATIENCE,
        &[CONCURRENT_TRANSACTIONS],
        |answer| answer.error_code,
    )?;
    // It is one epoch behind, as after an end of its own whose answer was lost, but what it asks is not what happened.
    assert_eq!(answer.error_code, INVALID_TXN_STATE);
    three.make_whole()
}

/// A topic with a leader on another node than the coordinator is deleted and made again within a transaction.
#[test]
fn a_topic_made_again_elsewhere_gets_no_marker_of_the_old_one() -> Result<()> {
    let mut three = Three::start()?;
    let kept = three.create("kept", &[&[2, 3, 1]])?;
    for node in ALL {
        three.coordinate(Kind::Transaction, "remaker", node)?;
        let old = three.create("remade", &[&[3, 1, 2]])?;
        let mut client = Client::init(&three, "remaker", "remakers")?;
        let mine = name(i64::from(node) - 1, 0);
        for topic in [&kept, &old] {
            client.produce(&mut three, 12, (topic, 0), 0, mine)?;
        }
        delete_topic(&mut connect(&mut three.cluster, node)?, "remade")?;
        let new = three.create("remade", &[&[3, 1, 2]])?;
        client.end(5, true)?;
        let counted = three.counted(&kept, 0)?;
        assert_eq!(counted.last(), Some(&mine));
        let view = three.decided(&new, 0)?;
        assert_eq!((view.end, view.records.len()), (0, 0), "no marker");
        client.produce(&mut three, 12, (&new, 0), 0, name(9, 9))?;
        client.end(5, true)?;
        assert_eq!(three.counted(&new, 0)?, [name(9, 9)]);
        delete_topic(&mut connect(&mut three.cluster, node)?, "remade")?;
    }
    Ok(())
}

/// Leaders of the partitions that are written to move in the middle of transactions, with the coordinators.
#[test]
fn leaders_and_coordinators_move_in_the_middle_of_transactions() -> Result<()> {
    let mut three = Three::start()?;
    let topic = three.create("moving", &SPREAD)?;
    let mut client = Client::init(&three, "mover", "movers")?;
    let mut expected = Vec::new();
    for round in 0..6_u32 {
        let at = |step: usize| ALL[(round as usize + step) % ALL.len()];
        let commits = round % 3 != 2;
        let mine = name(expected.len() as i64, round);
        client.produce(&mut three, 12, (&topic, 0), 0, mine)?;
        three.lead(&topic, 0, at(1))?;
        client.produce(&mut three, 12, (&topic, 1), 0, mine)?;
        three.coordinate(Kind::Transaction, "mover", at(2))?;
        client.produce(&mut three, 12, (&topic, 2), 0, mine)?;
        client.commit_offset(&topic, expected.len() as i64 + 1)?;
        three.coordinate(Kind::Group, "movers", at(0))?;
        three.lead(&topic, 1, at(0))?;
        client.end(5, commits)?;
        if commits {
            expected.push(mine);
        }
        for partition in 0..3 {
            assert_eq!(three.counted(&topic, partition)?, expected, "round {round}");
        }
        assert_eq!(client.committed(&topic)?.max(0), expected.len() as i64);
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Every node is killed in turn while members and producers are at work, whatever it leads and coordinates.
#[test]
fn coordinators_are_killed_under_running_members_and_producers_and_keep_their_word() -> Result<()> {
    const KILLS: usize = 25;
    let mut three = Three::start()?;
    three.under_load(seed()?, |three| {
        for kill in 0..KILLS {
            let kind = [Kind::Group, Kind::Transaction][kill % 2];
            let partition = (kill / 2 % 4) as i32;
            let node = three.leader(&state_topic(kind), partition)?;
            three.kill(node)?;
            std::thread::sleep(Duration::from_millis(100 * (kill as u64 % 4)));
            three.make_whole()?;
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    })
}

/// A node that stands still leads a partition and the group's coordinator when the transaction is ended. Others lead
/// these after a moment, and need not wait for its answer.
#[test]
fn a_node_that_stands_still_does_not_hold_up_the_end_of_a_transaction() -> Result<()> {
    const LONGEST: Duration = Duration::from_secs(10);
    let mut three = Three::start()?;
    let topic = three.create("held-up", &[&[3, 2, 1]])?;
    three.coordinate(Kind::Transaction, "held-up", 2)?;
    three.coordinate(Kind::Group, "held-up", 3)?;
    let mut client = Client::init(&three, "held-up", "held-up")?;
    client.produce(&mut three, 12, (&topic, 0), 0, name(0, 0))?;
    client.commit_offset(&topic, 1)?;
    three.cluster.node(3)?.pause()?;
    let begun = Instant::now();
    client.end(5, true)?;
    assert_eq!(three.counted(&topic, 0)?, [name(0, 0)]);
    client.group.forget();
    assert_eq!(client.committed(&topic)?, 1);
    eprintln!("decided everywhere after {:?}", begun.elapsed());
    ensure!(begun.elapsed() < LONGEST, "{:?}", begun.elapsed());
    // The coordinator of the next transaction stands still when a partition has a question.
    three.make_whole()?;
    three.lead(&topic, 0, 1)?;
    three.coordinate(Kind::Transaction, "held-up", 3)?;
    client.transactions.forget();
    client.add(&topic, &[0])?;
    three.cluster.node(3)?.pause()?;
    let begun = Instant::now();
    client.produce(&mut three, 11, (&topic, 0), 0, name(1, 1))?;
    eprintln!("confirmed after {:?}", begun.elapsed());
    ensure!(begun.elapsed() < LONGEST, "{:?}", begun.elapsed());
    client.end(4, true)?;
    assert_eq!(three.counted(&topic, 0)?, [name(0, 0), name(1, 1)]);
    three.make_whole()
}
