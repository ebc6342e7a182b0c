//! Produce, InitProducerId and DescribeProducers, compared with Kafka.

use anyhow::Result;
use bytes::{BufMut, Bytes, BytesMut};
use compat_tests::batches::{
    BatchSpec, CONTROL, Codec, LOG_APPEND_TIME, RecordSpec, TRANSACTIONAL, old_message,
};
use compat_tests::comparison::{compare, compare_in_turn};
use compat_tests::groups::find_coordinator;
use compat_tests::requests::{
    Topic, create_topic, find_topic, init_producer_id, produce_ok, produce_request, topic_name,
};
use compat_tests::wire::text;
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::produce_request::PartitionProduceData;
use kafka_protocol::messages::{
    ApiKey, DescribeProducersRequest, InitProducerIdRequest, ProduceRequest, ProducerId,
    TransactionalId,
};

const NOW: i64 = 1_790_000_000_000;

fn small() -> BatchSpec {
    BatchSpec::small(3, NOW)
}

#[test]
fn produce_with_every_codec() -> Result<()> {
    compare("produce_with_every_codec", |probe| {
        for codec in Codec::ALL {
            let topic = create_topic(probe.wire()?, &format!("produce-{codec:?}"), 1, &[])?;
            let batch = small().compressed(codec).build()?;
            probe.ask_each(&format!("{codec:?}"), |version| {
                produce_request(version, &topic, 0, -1, Some(batch.clone()))
            })?;
        }
        Ok(())
    })
}

/// Kafka lists versions 0 to 2 for the negotiation of old clients and answers none of them.
#[test]
fn produce_of_versions_that_are_listed_and_refused() -> Result<()> {
    compare("produce_of_versions_that_are_listed_and_refused", |probe| {
        for version in 0..=2 {
            // acks=all, a time limit, no topics.
            let body = b"\xff\xff\0\0\x27\x10\0\0\0\0";
            probe.ask_refused("nothing", ApiKey::Produce, version, body)?;
        }
        Ok(())
    })
}

#[test]
fn produce_with_every_kind_of_acks() -> Result<()> {
    compare("produce_with_every_kind_of_acks", |probe| {
        let topic = create_topic(probe.wire()?, "produce-acks", 1, &[])?;
        for acks in [-1, 1, 2, -2] {
            let batch = small().build()?;
            probe.ask_each(&format!("acks={acks}"), |version| {
                produce_request(version, &topic, 0, acks, Some(batch.clone()))
            })?;
        }
        Ok(())
    })
}

#[test]
fn produce_to_where_nothing_is() -> Result<()> {
    compare("produce_to_where_nothing_is", |probe| {
        let topic = create_topic(probe.wire()?, "produce-somewhere", 1, &[])?;
        let batch = small().build()?;
        for (label, topic, partition) in [
            (
                "a topic that is not there",
                Topic::missing("produce-nowhere"),
                0,
            ),
            ("an illegal name", Topic::missing("not/a name"), 0),
            ("a partition that is not there", topic.clone(), 5),
            ("a negative partition", topic.clone(), -1),
        ] {
            probe.ask_each(label, |version| {
                produce_request(version, &topic, partition, -1, Some(batch.clone()))
            })?;
        }
        // To null records Kafka gives no answer at all.
        probe.ask_each("empty records", |version| {
            produce_request(version, &topic, 0, -1, Some(Bytes::new()))
        })?;
        probe.ask_each("no topics", |_| {
            ProduceRequest::default()
                .with_acks(-1)
                .with_timeout_ms(1000)
                .with_topic_data(vec![])
        })?;
        probe.ask_each("a partition twice", |version| {
            let mut request = produce_request(version, &topic, 0, -1, Some(batch.clone()));
            for topic in &mut request.topic_data {
                topic.partition_data.push(
                    PartitionProduceData::default()
                        .with_index(0)
                        .with_records(Some(batch.clone())),
                );
            }
            request
        })
    })
}

#[test]
fn produce_to_internal_topics() -> Result<()> {
    compare("produce_to_internal_topics", |probe| {
        find_coordinator(probe.wire()?, "any")?;
        let batch = small().build()?;
        let topic = find_topic(probe.wire()?, "__consumer_offsets")?;
        probe.ask_each("offsets", |version| {
            produce_request(version, &topic, 0, -1, Some(batch.clone()))
        })
    })
}

#[test]
fn produce_of_damaged_batches() -> Result<()> {
    compare("produce_of_damaged_batches", |probe| {
        let topic = create_topic(probe.wire()?, "produce-damaged", 1, &[])?;
        let cut = |bytes: Bytes, by: usize| bytes.slice(..bytes.len() - by);
        let mut cases: Vec<(&str, Bytes)> = vec![
            (
                "wrong CRC",
                BatchSpec {
                    crc_error: 1,
                    ..small()
                }
                .build()?,
            ),
            (
                "count says 2 of 3",
                BatchSpec {
                    record_count: Some(2),
                    ..small()
                }
                .build()?,
            ),
            (
                "count says 4 of 3",
                BatchSpec {
                    record_count: Some(4),
                    ..small()
                }
                .build()?,
            ),
            ("count and delta say 4 of 3", {
                BatchSpec {
                    record_count: Some(4),
                    last_offset_delta: Some(3),
                    ..small()
                }
                .build()?
            }),
            ("count and delta say 2 of 3", {
                BatchSpec {
                    record_count: Some(2),
                    last_offset_delta: Some(1),
                    ..small()
                }
                .build()?
            }),
            (
                "count is zero",
                BatchSpec {
                    record_count: Some(0),
                    ..small()
                }
                .build()?,
            ),
            (
                "count is negative",
                BatchSpec {
                    record_count: Some(-1),
                    ..small()
                }
                .build()?,
            ),
            (
                "count is huge",
                BatchSpec {
                    record_count: Some(i32::MAX),
                    ..small()
                }
                .build()?,
            ),
            (
                "last delta too large",
                BatchSpec {
                    last_offset_delta: Some(7),
                    ..small()
                }
                .build()?,
            ),
            (
                "last delta negative",
                BatchSpec {
                    last_offset_delta: Some(-1),
                    ..small()
                }
                .build()?,
            ),
            (
                "trailing bytes",
                BatchSpec {
                    trailing: vec![0; 5],
                    ..small()
                }
                .build()?,
            ),
            (
                "length too short",
                BatchSpec {
                    length_error: -3,
                    ..small()
                }
                .build()?,
            ),
            (
                "length too long",
                BatchSpec {
                    length_error: 3,
                    ..small()
                }
                .build()?,
            ),
            (
                "length negative",
                BatchSpec {
                    length_error: -1000,
                    ..small()
                }
                .build()?,
            ),
            ("cut in the records", cut(small().build()?, 4)),
            ("cut in the header", small().build()?.slice(..40)),
            ("a few bytes", Bytes::from_static(b"abcdefgh")),
            (
                "magic 3",
                BatchSpec {
                    magic: 3,
                    ..small()
                }
                .build()?,
            ),
            (
                "magic -1",
                BatchSpec {
                    magic: -1,
                    ..small()
                }
                .build()?,
            ),
            (
                "magic 1 on a v2 batch",
                BatchSpec {
                    magic: 1,
                    ..small()
                }
                .build()?,
            ),
            ("message set 0", old_message(0, b"old", NOW)?),
            ("message set 1", old_message(1, b"old", NOW)?),
            (
                "a base offset of its own",
                BatchSpec {
                    base_offset: 77,
                    ..small()
                }
                .build()?,
            ),
            (
                "a leader epoch of its own",
                BatchSpec {
                    leader_epoch: 77,
                    ..small()
                }
                .build()?,
            ),
            (
                "codec 5",
                BatchSpec {
                    attributes: 5,
                    ..small()
                }
                .build()?,
            ),
            (
                "codec 7",
                BatchSpec {
                    attributes: 7,
                    ..small()
                }
                .build()?,
            ),
            (
                "an attribute bit that nobody uses",
                BatchSpec {
                    attributes: 1 << 9,
                    ..small()
                }
                .build()?,
            ),
            (
                "control bit",
                BatchSpec {
                    attributes: CONTROL,
                    ..small()
                }
                .build()?,
            ),
            (
                "transactional without a producer id",
                BatchSpec {
                    attributes: TRANSACTIONAL,
                    ..small()
                }
                .build()?,
            ),
            (
                "log append time set by a client",
                BatchSpec {
                    attributes: LOG_APPEND_TIME,
                    ..small()
                }
                .build()?,
            ),
            (
                "max timestamp wrong",
                BatchSpec {
                    max_timestamp: Some(NOW - 5),
                    ..small()
                }
                .build()?,
            ),
            ("gzip of nonsense", {
                BatchSpec {
                    payload: Some(Bytes::from_static(b"not gzip")),
                    ..small().compressed(Codec::Gzip)
                }
                .build()?
            }),
            ("zstd of nonsense", {
                BatchSpec {
                    payload: Some(Bytes::from_static(b"not zstd")),
                    ..small().compressed(Codec::Zstd)
                }
                .build()?
            }),
            ("lz4 of nonsense", {
                BatchSpec {
                    payload: Some(Bytes::from_static(b"not lz4")),
                    ..small().compressed(Codec::Lz4)
                }
                .build()?
            }),
            ("snappy of nonsense", {
                let payload = Some(Bytes::from_static(b"\xff\xff\xff\xff\xff\xff"));
                BatchSpec {
                    payload,
                    ..small().compressed(Codec::SnappyRaw)
                }
                .build()?
            }),
            (
                "producer id without epoch",
                small().from_producer(1000, -1, 0).build()?,
            ),
            (
                "producer id without sequence",
                small().from_producer(1000, 0, -1).build()?,
            ),
            (
                "sequence without producer id",
                small().from_producer(-1, 0, 0).build()?,
            ),
        ];
        let delta = |index: usize, delta: i64| {
            let mut batch = small();
            if let Some(record) = batch.records.get_mut(index) {
                record.offset_delta = Some(delta);
            }
            batch.build()
        };
        cases.push(("first delta not zero", delta(0, 1)?));
        cases.push(("a delta twice", delta(1, 0)?));
        cases.push(("a delta too large", delta(1, 9)?));
        cases.push(("a delta negative", delta(1, -1)?));
        let mut two = BytesMut::new();
        two.put(small().build()?);
        two.put(small().build()?);
        cases.push(("two batches", two.freeze()));
        let mut compressed = small().compressed(Codec::Gzip);
        compressed.record_count = Some(2);
        compressed.last_offset_delta = Some(1);
        cases.push(("count says 2 of 3, compressed", compressed.build()?));
        let trailing = BatchSpec {
            trailing: vec![0; 5],
            ..small().compressed(Codec::Zstd)
        };
        cases.push(("trailing bytes, compressed", trailing.build()?));
        for (label, batch) in cases {
            probe.ask_each(label, |version| {
                produce_request(version, &topic, 0, -1, Some(batch.clone()))
            })?;
        }
        Ok(())
    })
}

#[test]
fn produce_against_a_topics_limits() -> Result<()> {
    compare("produce_against_a_topics_limits", |probe| {
        let limited = create_topic(
            probe.wire()?,
            "produce-limits",
            1,
            &[
                ("max.message.bytes", "1000"),
                ("message.timestamp.before.max.ms", "3600000"),
                ("message.timestamp.after.max.ms", "3600000"),
            ],
        )?;
        let compacted = create_topic(
            probe.wire()?,
            "produce-compacted",
            1,
            &[("cleanup.policy", "compact")],
        )?;
        let now = i64::try_from(
            std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)?
                .as_millis(),
        )?;
        let at = |timestamp| {
            BatchSpec::of(vec![
                RecordSpec::value("v").at(now),
                RecordSpec::value("v").at(timestamp),
            ])
        };
        let day = 86_400_000;
        for (label, topic, batch) in [
            (
                "too large",
                &limited,
                BatchSpec::of(vec![RecordSpec::value(vec![b'x'; 2000]).at(now)]).build()?,
            ),
            ("too old", &limited, at(now - day).build()?),
            ("too new", &limited, at(now + day).build()?),
            (
                "too new, compressed",
                &limited,
                at(now + day).compressed(Codec::Lz4).build()?,
            ),
            ("in time", &limited, at(now - 1000).build()?),
            (
                "without a timestamp",
                &limited,
                BatchSpec::of(vec![RecordSpec::value("v").at(-1)]).build()?,
            ),
            ("null key", &compacted, small().build()?),
            (
                "null key, compressed",
                &compacted,
                small().compressed(Codec::Gzip).build()?,
            ),
            (
                "with a key",
                &compacted,
                BatchSpec::of(vec![RecordSpec::keyed("k", "v").at(NOW)]).build()?,
            ),
        ] {
            probe.ask_each(label, |version| {
                produce_request(version, topic, 0, -1, Some(batch.clone()))
            })?;
        }
        Ok(())
    })
}

#[test]
fn produce_with_log_append_time() -> Result<()> {
    compare("produce_with_log_append_time", |probe| {
        probe.mask("responses[].partition_responses[].log_append_time_ms");
        let config = [("message.timestamp.type", "LogAppendTime")];
        let topic = create_topic(probe.wire()?, "produce-append-time", 1, &config)?;
        let batch = small().build()?;
        probe.ask_each("stamped", |version| {
            produce_request(version, &topic, 0, -1, Some(batch.clone()))
        })
    })
}

#[test]
fn produce_with_a_transactional_id() -> Result<()> {
    compare_in_turn("produce_with_a_transactional_id", |probe| {
        let topic = create_topic(probe.wire()?, "produce-txn-id", 1, &[])?;
        let batch = small().build()?;
        probe.ask_each("a plain batch", |version| {
            produce_request(version, &topic, 0, -1, Some(batch.clone()))
                .with_transactional_id(Some(TransactionalId(text("nobody"))))
        })
    })
}

#[test]
fn idempotent_producers() -> Result<()> {
    compare("idempotent_producers", |probe| {
        for version in probe.versions::<ProduceRequest>() {
            let topic = create_topic(probe.wire()?, &format!("idempotent-v{version}"), 1, &[])?;
            let (id, epoch) = init_producer_id(probe.wire()?)?;
            let mut ask = |label: &str, id, epoch, sequence, count| -> Result<()> {
                let batch = BatchSpec::small(count, NOW)
                    .from_producer(id, epoch, sequence)
                    .build()?;
                probe
                    .ask(
                        label,
                        version,
                        &produce_request(version, &topic, 0, -1, Some(batch)),
                    )
                    .map(drop)
            };
            ask("first", id, epoch, 0, 2)?;
            for sequence in [2, 4, 6, 8, 10, 12] {
                ask("next", id, epoch, sequence, 2)?;
            }
            ask("the last one again", id, epoch, 12, 2)?;
            ask("the fifth last again", id, epoch, 4, 2)?;
            ask("the sixth last again", id, epoch, 2, 2)?;
            ask("a part of the last again", id, epoch, 13, 1)?;
            ask("a gap", id, epoch, 20, 2)?;
            ask(
                "a new epoch that does not begin at zero",
                id,
                epoch + 1,
                5,
                2,
            )?;
            ask("a new epoch", id, epoch + 1, 0, 2)?;
            ask("the old epoch", id, epoch, 14, 2)?;
            ask("an unknown producer in the middle", id + 100_000, 0, 5, 1)?;
            ask("an unknown producer from the start", id + 200_000, 0, 0, 1)?;
            let mut two = BytesMut::new();
            two.put(
                BatchSpec::small(1, NOW)
                    .from_producer(id, epoch + 1, 2)
                    .build()?,
            );
            two.put(
                BatchSpec::small(1, NOW)
                    .from_producer(id, epoch + 1, 3)
                    .build()?,
            );
            let request = produce_request(version, &topic, 0, -1, Some(two.freeze()));
            probe.ask("two batches of a producer", version, &request)?;
        }
        Ok(())
    })
}

#[test]
fn init_producer_id_without_a_transaction() -> Result<()> {
    compare("init_producer_id_without_a_transaction", |probe| {
        let request = || InitProducerIdRequest::default().with_transactional_id(None);
        probe.ask_each("a new producer", |_| {
            request().with_transaction_timeout_ms(60_000)
        })?;
        probe.ask_each("without a timeout", |_| {
            request().with_transaction_timeout_ms(0)
        })?;
        probe.ask_each("with a negative timeout", |_| {
            request().with_transaction_timeout_ms(-1)
        })?;
        for version in probe
            .versions::<InitProducerIdRequest>()
            .filter(|version| *version >= 3)
        {
            let known = request()
                .with_producer_id(ProducerId(5))
                .with_producer_epoch(3);
            probe.ask("with an id of its own", version, &known)?;
            probe.ask(
                "with an epoch but no id",
                version,
                &request().with_producer_epoch(3),
            )?;
            probe.ask(
                "with an id but no epoch",
                version,
                &request().with_producer_id(ProducerId(5)),
            )?;
        }
        Ok(())
    })
}

#[test]
fn describe_producers() -> Result<()> {
    compare("describe_producers", |probe| {
        let topic = create_topic(probe.wire()?, "describe-producers", 2, &[])?;
        let (id, epoch) = init_producer_id(probe.wire()?)?;
        produce_ok(
            probe.wire()?,
            &topic,
            0,
            small().from_producer(id, epoch, 0).build()?,
        )?;
        produce_ok(probe.wire()?, &topic, 0, small().build()?)?;
        let asked = |name: &str, partitions: &[i32]| {
            TopicRequest::default()
                .with_name(topic_name(name))
                .with_partition_indexes(partitions.to_vec())
        };
        probe.ask_each("two partitions and one too many", |_| {
            DescribeProducersRequest::default()
                .with_topics(vec![asked("describe-producers", &[0, 1, 2])])
        })?;
        probe.ask_each("missing and illegal", |_| {
            DescribeProducersRequest::default().with_topics(vec![
                asked("describe-producers-nowhere", &[0]),
                asked("not/a name", &[0]),
            ])
        })?;
        probe.ask_each("nothing", |_| DescribeProducersRequest::default())
    })
}
