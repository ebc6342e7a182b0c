//! The APIs of transactions, compared with Kafka.

use anyhow::Result;
use compat_tests::batches::BatchSpec;
use compat_tests::comparison::compare_in_turn;
use compat_tests::groups::{coordinator_is_up, offset_fetch};
use compat_tests::requests::{create_topic, produce_request};
use compat_tests::transactions::{TxnProducer, find_coordinator, init_request};
use compat_tests::transcript::Probe;
use compat_tests::wire::text;
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, DescribeProducersRequest,
    DescribeTransactionsRequest, EndTxnRequest, InitProducerIdRequest, ListTransactionsRequest,
    ProduceRequest, ProducerId, TransactionalId, TxnOffsetCommitRequest, WriteTxnMarkersRequest,
};

const NOW: i64 = 1_700_000_000_000;

fn init(probe: &mut Probe, id: &str) -> Result<TxnProducer> {
    TxnProducer::init(probe.wire()?, id)
}

#[test]
fn init_producer_id_of_transactions() -> Result<()> {
    compare_in_turn("init_producer_id_of_transactions", |probe| {
        probe.mask("producer_id");
        for version in probe.versions::<InitProducerIdRequest>() {
            let id = format!("init-v{version}");
            find_coordinator(probe.wire()?, &id)?;
            // Whoever comes first may find a coordinator that is loading.
            let first = init(probe, &id)?;
            probe.ask("a new instance", version, &init_request(&id))?;
            let timeout = |ms| init_request(&id).with_transaction_timeout_ms(ms);
            probe.ask("no time", version, &timeout(0))?;
            probe.ask("less than no time", version, &timeout(-1))?;
            probe.ask("as much time as there is", version, &timeout(900_000))?;
            probe.ask("more time than there is", version, &timeout(900_001))?;
            probe.ask("an empty id", version, &init_request(""))?;
            if version < 3 {
                continue;
            }
            let known = |producer_id, epoch| {
                init_request(&id)
                    .with_producer_id(ProducerId(producer_id))
                    .with_producer_epoch(epoch)
            };
            let current = init(probe, &id)?;
            let (producer_id, epoch) = (current.producer_id, current.epoch);
            probe.ask("the current instance", version, &known(producer_id, epoch))?;
            probe.ask("which asks again", version, &known(producer_id, epoch))?;
            probe.ask("an old instance", version, &known(producer_id, first.epoch))?;
            probe.ask("one of the future", version, &known(producer_id, epoch + 9))?;
            probe.ask(
                "another producer",
                version,
                &known(producer_id + 100_000, epoch),
            )?;
            probe.ask("an id without an epoch", version, &known(producer_id, -1))?;
            probe.ask("an epoch without an id", version, &known(-1, epoch))?;
        }
        Ok(())
    })
}

#[test]
fn a_transaction_from_begin_to_end() -> Result<()> {
    compare_in_turn("a_transaction_from_begin_to_end", |probe| {
        probe.mask("producer_id");
        create_topic(probe.wire()?, "txn-parts", 3, &[])?;
        for version in probe.versions::<AddPartitionsToTxnRequest>() {
            let id = format!("add-v{version}");
            let mine = init(probe, &id)?;
            let here: &[(&str, &[i32])] = &[("txn-parts", &[0, 1])];
            let mut add = |label: &str, who: &TxnProducer, topics: &[(&str, &[i32])]| {
                let request = who.add_request(version, topics, false);
                probe.ask(label, version, &request).map(drop)
            };
            add("partitions", &mine, here)?;
            add("again", &mine, here)?;
            add("one more", &mine, &[("txn-parts", &[2])])?;
            add(
                "a partition that is not there",
                &mine,
                &[("txn-parts", &[0, 9])],
            )?;
            add("a topic that is not there", &mine, &[("txn-nowhere", &[0])])?;
            add("nothing", &mine, &[])?;
            add("an old epoch", &mine.with_epoch(mine.epoch - 1), here)?;
            add(
                "an epoch of the future",
                &mine.with_epoch(mine.epoch + 1),
                here,
            )?;
            add(
                "another producer",
                &mine.with_producer_id(mine.producer_id + 100_000),
                here,
            )?;
            let stranger = TxnProducer {
                id: "add-stranger".to_owned(),
                ..mine.clone()
            };
            add("an unknown id", &stranger, here)?;
            let nobody = TxnProducer {
                id: String::new(),
                ..mine.clone()
            };
            add("no id", &nobody, here)?;
            if version >= 4 {
                let fresh = init(probe, &format!("verify-v{version}"))?;
                for (label, who) in [
                    ("is it part", &mine),
                    ("is it part of nothing", &fresh),
                    ("is it part of what is unknown", &stranger),
                ] {
                    let request = who.add_request(version, &[("txn-parts", &[0, 1])], true);
                    probe.ask(label, version, &request)?;
                }
            }
            mine.end(probe.wire()?, 4, false)?;
        }
        for version in probe.versions::<EndTxnRequest>() {
            let id = format!("end-v{version}");
            let mine = init(probe, &id)?;
            let mut end = |label: &str, who: &TxnProducer, committed| {
                probe
                    .ask(label, version, &who.end_request(committed))
                    .map(drop)
            };
            end("a commit of nothing", &mine, true)?;
            end("an old epoch", &mine.with_epoch(mine.epoch - 1), true)?;
            end(
                "another producer",
                &mine.with_producer_id(mine.producer_id + 100_000),
                true,
            )?;
            let stranger = TxnProducer {
                id: "end-stranger".to_owned(),
                ..mine.clone()
            };
            end("an unknown id", &stranger, true)?;
            for (committed, label) in [(true, "commit"), (false, "abort")] {
                let mine = init(probe, &id)?;
                mine.add(probe.wire()?, "txn-parts", &[0, 1])?;
                let ask = |probe: &mut Probe, label: &str, committed| {
                    probe
                        .ask(label, version, &mine.end_request(committed))
                        .map(drop)
                };
                ask(probe, label, committed)?;
                mine.until_completed(probe.wire()?)?;
                ask(probe, &format!("{label} again"), committed)?;
                ask(probe, &format!("the opposite of {label}"), !committed)?;
                mine.until_completed(probe.wire()?)?;
            }
        }
        Ok(())
    })
}

#[test]
fn offsets_in_transactions() -> Result<()> {
    compare_in_turn("offsets_in_transactions", |probe| {
        let topic = create_topic(probe.wire()?, "txn-offsets", 2, &[])?;
        probe.remember(&topic);
        for version in probe.versions::<AddOffsetsToTxnRequest>() {
            let mine = init(probe, &format!("add-offsets-v{version}"))?;
            let group = format!("add-offsets-v{version}");
            coordinator_is_up(probe.wire()?, &group)?;
            let mut add = |label: &str, who: &TxnProducer| {
                probe
                    .ask(label, version, &who.add_offsets_request(&group))
                    .map(drop)
            };
            add("a group", &mine)?;
            add("again", &mine)?;
            add("an old epoch", &mine.with_epoch(mine.epoch - 1))?;
            add(
                "another producer",
                &mine.with_producer_id(mine.producer_id + 100_000),
            )?;
            mine.end(probe.wire()?, 4, false)?;
        }
        for version in probe.versions::<TxnOffsetCommitRequest>() {
            let group = format!("txn-commit-v{version}");
            coordinator_is_up(probe.wire()?, &group)?;
            let mine = init(probe, &group)?;
            let ask =
                |probe: &mut Probe, label: &str, who: &TxnProducer, topic, partition, offset| {
                    let request = who.commit_request(&group, topic, partition, offset);
                    probe.ask(label, version, &request).map(drop)
                };
            if version < 5 {
                ask(
                    probe,
                    "before the group is added",
                    &mine,
                    "txn-offsets",
                    0,
                    5,
                )?;
                let added = mine.add_offsets_request(&group);
                probe.prepare(3, &added)?;
            }
            ask(probe, "an offset", &mine, "txn-offsets", 0, 7)?;
            ask(probe, "another one", &mine, "txn-offsets", 0, 8)?;
            ask(
                probe,
                "a partition that is not there",
                &mine,
                "txn-offsets",
                9,
                8,
            )?;
            let old = mine.with_epoch(mine.epoch - 1);
            ask(probe, "an old epoch", &old, "txn-offsets", 0, 9)?;
            let other = mine.with_producer_id(mine.producer_id + 100_000);
            ask(probe, "another producer", &other, "txn-offsets", 0, 9)?;
            let fetch = |probe: &mut Probe, label: &str, stable| {
                let request = offset_fetch(7, &group, Some(&[("txn-offsets", &[0, 1])]));
                let request = request.with_require_stable(stable);
                probe.ask(label, 7, &request).map(drop)
            };
            fetch(probe, "while it is open", false)?;
            fetch(probe, "while it is open, stable", true)?;
            let committed = version % 2 == 0;
            mine.end(probe.wire()?, if version < 5 { 4 } else { 5 }, committed)?;
            fetch(probe, "when it has ended", true)?;
            let member = mine
                .commit_request(&group, "txn-offsets", 0, 9)
                .with_generation_id(3)
                .with_member_id(text("nobody"));
            if version >= 5 {
                let mine = init(probe, &group)?;
                let member = member
                    .with_producer_epoch(mine.epoch)
                    .with_producer_id(ProducerId(mine.producer_id));
                probe.ask("as a member of nothing", version, &member)?;
            }
        }
        Ok(())
    })
}

#[test]
fn produce_in_a_transaction() -> Result<()> {
    compare_in_turn("produce_in_a_transaction", |probe| {
        for version in probe.versions::<ProduceRequest>() {
            let topic = create_topic(probe.wire()?, &format!("txn-produce-v{version}"), 2, &[])?;
            let mine = init(probe, &format!("produce-v{version}"))?;
            let ask = |probe: &mut Probe, label: &str, who: &TxnProducer, sequence| -> Result<()> {
                let request = who.produce_request(version, &topic, 0, who.batch(sequence, 2, NOW)?);
                probe.ask(label, version, &request).map(drop)
            };
            if version < 12 {
                ask(probe, "before the partition is added", &mine, 0)?;
                mine.add(probe.wire()?, topic.name().as_str(), &[0])?;
            }
            ask(probe, "in the transaction", &mine, 0)?;
            ask(probe, "the same again", &mine, 0)?;
            ask(probe, "the next", &mine, 2)?;
            ask(probe, "a gap", &mine, 9)?;
            ask(probe, "an old epoch", &mine.with_epoch(mine.epoch - 1), 4)?;
            let other = mine.with_producer_id(mine.producer_id + 100_000);
            ask(probe, "another producer", &other, 0)?;
            let outside = BatchSpec::small(1, NOW)
                .from_producer(mine.producer_id, mine.epoch, 4)
                .build()?;
            let request = produce_request(version, &topic, 0, -1, Some(outside));
            probe.ask("outside of the transaction", version, &request)?;
            let anonymous = mine.batch(4, 1, NOW)?;
            let request = produce_request(version, &topic, 0, -1, Some(anonymous));
            probe.ask("without the transactional id", version, &request)?;
            mine.end(probe.wire()?, if version < 12 { 4 } else { 5 }, true)?;
            if version < 12 {
                ask(probe, "after the end", &mine, 4)?;
            }
            probe.mask("topics[].partitions[].active_producers[].producer_id");
            probe.mask("topics[].partitions[].active_producers[].coordinator_epoch");
            probe.mask("topics[].partitions[].active_producers[].last_timestamp");
            let asked = TopicRequest::default()
                .with_name(topic.name())
                .with_partition_indexes(vec![0, 1]);
            let request = DescribeProducersRequest::default().with_topics(vec![asked]);
            probe.ask("what is left of it", 0, &request)?;
        }
        Ok(())
    })
}

#[test]
fn write_txn_markers() -> Result<()> {
    compare_in_turn("write_txn_markers", |probe| {
        probe.mask("markers[].producer_id");
        for version in probe.versions::<WriteTxnMarkersRequest>() {
            let name = format!("txn-markers-v{version}");
            let topic = create_topic(probe.wire()?, &name, 2, &[])?;
            let mine = init(probe, &format!("markers-v{version}"))?;
            mine.add(probe.wire()?, &name, &[0])?;
            mine.produce(probe.wire()?, 11, &topic, 0, mine.batch(0, 2, NOW)?)?;
            let ask =
                |probe: &mut Probe, label: &str, who: &TxnProducer, partitions: &[i32], epoch| {
                    let request = who.markers_request(false, &name, partitions, epoch);
                    probe.ask(label, version, &request).map(drop)
                };
            let old = mine.with_epoch(mine.epoch - 1);
            if old.epoch >= 0 {
                ask(probe, "an old epoch", &old, &[0], 10)?;
            }
            ask(probe, "what is not there", &mine, &[9], 10)?;
            ask(probe, "an abort", &mine, &[0], 10)?;
            ask(probe, "again", &mine, &[0], 10)?;
            ask(probe, "an old coordinator", &mine, &[0], 9)?;
            ask(probe, "where nothing was written", &mine, &[1], 10)?;
            ask(probe, "nothing", &mine, &[], 10)?;
        }
        Ok(())
    })
}

#[test]
fn describe_transactions() -> Result<()> {
    compare_in_turn("describe_transactions", |probe| {
        probe.mask("transaction_states[].producer_id");
        probe.mask("transaction_states[].transaction_start_time_ms");
        create_topic(probe.wire()?, "txn-described", 3, &[])?;
        let mine = init(probe, "described-txn")?;
        let ask = |probe: &mut Probe, label: &str, ids: &[&str]| {
            let ids = ids.iter().map(|id| TransactionalId(text(id))).collect();
            let request = DescribeTransactionsRequest::default().with_transactional_ids(ids);
            probe.ask(label, 0, &request).map(drop)
        };
        ask(probe, "an empty one", &["described-txn"])?;
        mine.add(probe.wire()?, "txn-described", &[1])?;
        ask(
            probe,
            "an open one, an unknown one, none",
            &["described-txn", "nowhere", ""],
        )?;
        mine.end(probe.wire()?, 4, true)?;
        ask(
            probe,
            "a completed one, twice",
            &["described-txn", "described-txn"],
        )?;
        ask(probe, "nothing", &[])
    })
}

#[test]
fn list_transactions() -> Result<()> {
    compare_in_turn("list_transactions", |probe| {
        probe.mask("transaction_states[].producer_id");
        create_topic(probe.wire()?, "txn-listed", 1, &[])?;
        let mine = init(probe, "listed-txn")?;
        mine.add(probe.wire()?, "txn-listed", &[0])?;
        // Other comparisons have transactions of their own at the same time.
        let by_id = |states: &[&str]| {
            ListTransactionsRequest::default()
                .with_producer_id_filters(vec![ProducerId(mine.producer_id)])
                .with_state_filters(states.iter().map(text).collect())
        };
        probe.ask_each("an open one", |_| by_id(&[]))?;
        probe.ask_each("by its state", |_| by_id(&["Ongoing"]))?;
        probe.ask_each("by other states", |_| by_id(&["Empty", "CompleteCommit"]))?;
        probe.ask_each("by a state that is never seen", |_| by_id(&["Dead"]))?;
        probe.ask_each("by what is no state", |_| by_id(&["Nonsense"]))?;
        probe.ask_each("by a state and nonsense", |_| {
            by_id(&["Ongoing", "Nonsense"])
        })?;
        for version in probe.versions::<ListTransactionsRequest>() {
            if version >= 1 {
                let request = by_id(&[]).with_duration_filter(3_600_000);
                probe.ask("open for an hour", version, &request)?;
            }
            if version >= 2 {
                for (label, pattern) in [
                    ("by a pattern", "listed-.*"),
                    ("by a part of it", "listed"),
                    ("by nothing", ""),
                    ("by a bad pattern", "("),
                ] {
                    let request = by_id(&[]).with_transactional_id_pattern(Some(text(pattern)));
                    probe.ask(label, version, &request)?;
                }
            }
        }
        mine.end(probe.wire()?, 4, false)?;
        probe.ask_each("a completed one", |_| by_id(&[]))
    })
}
