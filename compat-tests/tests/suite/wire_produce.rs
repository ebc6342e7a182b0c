//! Producing, over plain connections.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use compat_tests::batches::{BatchSpec, Codec, RecordSpec};
use compat_tests::broker::Broker;
use compat_tests::groups::{Member, committed};
use compat_tests::requests::{
    Topic, batches_of, create_topic, fetch, init_producer_id, produce, produce_ok, produce_request,
    read_to_end, wait_until_all_answer,
};
use compat_tests::server::{Server, kafka_instead};
use compat_tests::wire::Wire;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::{DeleteRecordsRequest, ProduceRequest};

const NOW: i64 = 1_790_000_000_000;
const CORRUPT_MESSAGE: i16 = 2;
const UNSUPPORTED_FOR_MESSAGE_FORMAT: i16 = 43;
const OUT_OF_ORDER_SEQUENCE_NUMBER: i16 = 45;
const INVALID_RECORD: i16 = 87;
const MESSAGE_TOO_LARGE: i16 = 10;
const UNSUPPORTED_COMPRESSION_TYPE: i16 = 76;

fn now() -> Result<i64> {
    Ok(i64::try_from(
        SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis(),
    )?)
}

#[test]
fn every_codec_and_framing_is_stored_and_read_back() -> Result<()> {
    let (_server, mut wire, topic) = Server::with_topic("codecs", 1, &[])?;
    let codecs: Vec<Codec> = Codec::ALL
        .into_iter()
        .filter(|codec| *codec != Codec::Lz4Linked)
        .collect();
    for codec in &codecs {
        let records = (0..500)
            .map(|i| RecordSpec::keyed(format!("{codec:?}"), format!("value {i}")).at(NOW))
            .collect();
        produce_ok(
            &mut wire,
            &topic,
            0,
            BatchSpec::of(records).compressed(*codec).build()?,
        )?;
    }
    // The test's own codec does not read xerial's framing; what it can read must be what was written.
    let mut next = 0;
    for codec in codecs {
        let data = fetch(&mut wire, &topic, 0, next)?
            .records
            .context("no records")?;
        let batch = *batches_of(&data).first().context("no batch")?;
        next += 500;
        if codec != Codec::SnappyXerial {
            let records = compat_tests::requests::records_of(Some(Bytes::copy_from_slice(batch)))?;
            assert_eq!(records.len(), 500, "{codec:?}");
            for (i, record) in records.iter().enumerate() {
                assert_eq!(record.key.as_deref(), Some(format!("{codec:?}").as_bytes()));
                assert_eq!(
                    record.value.as_deref(),
                    Some(format!("value {i}").as_bytes())
                );
            }
        }
    }
    Ok(())
}

#[test]
fn a_batch_is_stored_byte_for_byte_but_for_offset_and_epoch() -> Result<()> {
    let (_server, mut wire, topic) = Server::with_topic("bytes", 1, &[])?;
    let mut record = RecordSpec::keyed("k", "v").at(NOW);
    record.headers = vec![
        ("twice".to_owned(), Some(Bytes::from_static(b"1"))),
        ("twice".to_owned(), Some(Bytes::from_static(b"2"))),
        ("null".to_owned(), None),
    ];
    for codec in [
        Codec::None,
        Codec::Zstd,
        Codec::SnappyXerial,
        Codec::SnappyRaw,
        Codec::Lz4,
        Codec::Gzip,
    ] {
        let sent = BatchSpec::of(vec![record.clone(), RecordSpec::default().at(NOW)])
            .compressed(codec)
            .build()?;
        let offset = produce_ok(&mut wire, &topic, 0, sent.clone())?;
        let stored = fetch(&mut wire, &topic, 0, offset)?
            .records
            .context("no records")?;
        assert_eq!(stored[..8], offset.to_be_bytes());
        assert_eq!(stored[8..12], sent[8..12], "length");
        assert_eq!(stored[16..], sent[16..], "{codec:?}");
    }
    Ok(())
}

#[test]
fn zstd_needs_the_version_that_brought_it() -> Result<()> {
    let (_server, mut wire, topic) = Server::with_topic("zstd", 1, &[])?;
    let batch = BatchSpec::small(2, NOW).compressed(Codec::Zstd).build()?;
    for version in 3..=9 {
        let answer = wire.call(
            version,
            &produce_request(version, &topic, 0, -1, Some(batch.clone())),
        )?;
        let code = answer
            .responses
            .first()
            .and_then(|t| t.partition_responses.first())
            .context("no row")?
            .error_code;
        assert_eq!(
            code,
            if version < 7 {
                UNSUPPORTED_COMPRESSION_TYPE
            } else {
                0
            },
            "v{version}"
        );
    }
    Ok(())
}

#[test]
fn damaged_batches_are_refused_and_the_connection_lives() -> Result<()> {
    let (_server, mut wire, topic) = Server::with_topic("damaged", 1, &[])?;
    let small = || BatchSpec::small(2, NOW);
    let mut delta = small();
    delta.records[1].offset_delta = Some(5);
    let cases: Vec<(&str, BatchSpec, i16)> = vec![
        (
            "wrong CRC",
            BatchSpec {
                crc_error: 1,
                ..small()
            },
            CORRUPT_MESSAGE,
        ),
        (
            "a record too few",
            {
                BatchSpec {
                    record_count: Some(3),
                    last_offset_delta: Some(2),
                    ..small()
                }
            },
            INVALID_RECORD,
        ),
        (
            "a record too many",
            {
                BatchSpec {
                    record_count: Some(1),
                    last_offset_delta: Some(0),
                    ..small()
                }
            },
            INVALID_RECORD,
        ),
        (
            "trailing bytes",
            BatchSpec {
                trailing: vec![0; 3],
                ..small()
            },
            INVALID_RECORD,
        ),
        (
            "a negative count",
            BatchSpec {
                record_count: Some(-1),
                ..small()
            },
            INVALID_RECORD,
        ),
        (
            "count and last delta apart",
            BatchSpec {
                last_offset_delta: Some(5),
                ..small()
            },
            INVALID_RECORD,
        ),
        ("a bad delta", delta, INVALID_RECORD),
        (
            "magic 3",
            BatchSpec {
                magic: 3,
                ..small()
            },
            CORRUPT_MESSAGE,
        ),
    ];
    for (label, batch, wanted) in cases {
        let answer = produce(&mut wire, &topic, 0, batch.build()?)?;
        assert_eq!(
            (answer.error_code, answer.base_offset),
            (wanted, -1),
            "{label}"
        );
    }
    for magic in [0, 1] {
        let old = compat_tests::batches::old_message(magic, b"old", NOW)?;
        let answer = produce(&mut wire, &topic, 0, old)?;
        ensure!(
            [
                UNSUPPORTED_FOR_MESSAGE_FORMAT,
                INVALID_RECORD,
                CORRUPT_MESSAGE
            ]
            .contains(&answer.error_code)
        );
    }
    assert_eq!(produce_ok(&mut wire, &topic, 0, small().build()?)?, 0);
    Ok(())
}

#[test]
fn a_record_over_the_topics_limit_is_refused() -> Result<()> {
    let (_server, mut wire, topic) =
        Server::with_topic("limited", 1, &[("max.message.bytes", "2000")])?;
    let batch = |size| BatchSpec::of(vec![RecordSpec::value(vec![b'x'; size]).at(NOW)]).build();
    assert_eq!(
        produce(&mut wire, &topic, 0, batch(2000)?)?.error_code,
        MESSAGE_TOO_LARGE
    );
    assert_eq!(produce(&mut wire, &topic, 0, batch(1900)?)?.error_code, 0);
    let compacted = create_topic(&mut wire, "compacted", 1, &[("cleanup.policy", "compact")])?;
    assert_eq!(
        produce(&mut wire, &compacted, 0, BatchSpec::small(1, NOW).build()?)?.error_code,
        INVALID_RECORD
    );
    Ok(())
}

fn sequence(
    wire: &mut Wire,
    topic: &Topic,
    producer: (i64, i16),
    base: i32,
    count: usize,
) -> Result<(i16, i64)> {
    let batch = BatchSpec::small(count, now()?).from_producer(producer.0, producer.1, base);
    let answer = produce(wire, topic, 0, batch.build()?)?;
    Ok((answer.error_code, answer.base_offset))
}

#[test]
fn sequence_numbers_go_round_past_their_largest() -> Result<()> {
    let (_server, mut wire, topic) = Server::with_topic("round", 1, &[])?;
    let producer = init_producer_id(&mut wire)?;
    assert_eq!(
        sequence(&mut wire, &topic, producer, i32::MAX - 1, 2)?,
        (0, 0)
    );
    assert_eq!(sequence(&mut wire, &topic, producer, 0, 2)?, (0, 2));
    assert_eq!(
        sequence(&mut wire, &topic, producer, i32::MAX - 1, 2)?,
        (0, 0),
        "a duplicate"
    );
    let other = init_producer_id(&mut wire)?;
    assert_eq!(
        sequence(&mut wire, &topic, other, i32::MAX, 3)?,
        (0, 4),
        "the end lies inside the batch"
    );
    assert_eq!(sequence(&mut wire, &topic, other, 2, 1)?, (0, 7));
    assert_eq!(
        sequence(&mut wire, &topic, other, 5, 1)?.0,
        OUT_OF_ORDER_SEQUENCE_NUMBER
    );
    Ok(())
}

#[test]
fn five_batches_are_remembered_over_restarts() -> Result<()> {
    let mut broker = Broker::start()?;
    let topic = create_topic(&mut broker.connect()?, "remembered", 1, &[])?;
    let producer = init_producer_id(&mut broker.connect()?)?;
    let mut last = 0;
    for round in 0..4 {
        let mut wire = broker.connect()?;
        wait_until_all_answer(&mut wire, &topic.name, 1)?;
        if round > 0 {
            // All five last batches again: each at its first offset.
            for back in 0..5 {
                let base = last - 2 * back;
                assert_eq!(
                    sequence(&mut wire, &topic, producer, base, 2)?,
                    (0, i64::from(base)),
                    "round {round}"
                );
            }
            last += 2;
        }
        for _ in 0..6 {
            assert_eq!(
                sequence(&mut wire, &topic, producer, last, 2)?,
                (0, i64::from(last)),
                "round {round}"
            );
            last += 2;
        }
        last -= 2;
        assert_eq!(
            sequence(&mut wire, &topic, producer, last + 7, 2)?.0,
            OUT_OF_ORDER_SEQUENCE_NUMBER
        );
        if round % 2 == 0 {
            broker.kill9()?;
            broker.start_again()?;
        } else {
            broker.restart()?;
        }
    }
    Ok(())
}

#[test]
fn producer_ids_are_never_given_twice() -> Result<()> {
    let mut broker = Broker::start()?;
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..4 {
        let mut wire = broker.connect()?;
        for _ in 0..50 {
            let (id, epoch) = init_producer_id(&mut wire)?;
            ensure!(id >= 0 && epoch == 0 && seen.insert(id), "{id} {epoch}");
        }
        if round % 2 == 0 {
            broker.kill9()?;
            broker.start_again()?;
        } else {
            broker.restart()?;
        }
    }
    Ok(())
}

#[test]
fn a_producer_that_was_forgotten_goes_on() -> Result<()> {
    let server = Server::with(&[
        ("producer.id.expiration.ms", "1000"),
        ("producer.id.expiration.check.interval.ms", "200"),
    ])?;
    let mut wire = server.connect()?;
    let topic = create_topic(&mut wire, "forgotten", 1, &[])?;
    let producer = init_producer_id(&mut wire)?;
    assert_eq!(sequence(&mut wire, &topic, producer, 0, 3)?, (0, 0));
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(sequence(&mut wire, &topic, producer, 3, 2)?, (0, 3));
    Ok(())
}

#[test]
fn a_producer_whose_records_were_all_deleted_goes_on() -> Result<()> {
    let (mut server, mut wire, topic) = Server::with_topic("emptied", 1, &[])?;
    let producer = init_producer_id(&mut wire)?;
    assert_eq!(sequence(&mut wire, &topic, producer, 0, 3)?, (0, 0));
    let row = DeleteRecordsPartition::default()
        .with_partition_index(0)
        .with_offset(-1);
    let rows = DeleteRecordsTopic::default()
        .with_name(topic.name())
        .with_partitions(vec![row]);
    wire.call(
        2,
        &DeleteRecordsRequest::default()
            .with_topics(vec![rows])
            .with_timeout_ms(10_000),
    )?;
    assert_eq!(sequence(&mut wire, &topic, producer, 3, 2)?, (0, 3));
    server.restart()?;
    let mut wire = server.connect()?;
    wait_until_all_answer(&mut wire, &topic.name, 1)?;
    assert_eq!(sequence(&mut wire, &topic, producer, 5, 2)?, (0, 5));
    Ok(())
}

#[test]
fn pipelined_idempotent_batches_keep_their_order() -> Result<()> {
    let (_server, mut wire, topic) = Server::with_topic("pipelined", 1, &[])?;
    let producer = init_producer_id(&mut wire)?;
    let mut ids = Vec::new();
    for i in 0..100 {
        let batch = BatchSpec::small(1, NOW)
            .from_producer(producer.0, producer.1, i)
            .build()?;
        ids.push(wire.send(11, &produce_request(11, &topic, 0, -1, Some(batch)))?);
    }
    for (i, id) in ids.into_iter().enumerate() {
        let answer = wire.receive::<ProduceRequest>(11, id)?;
        let row = answer
            .responses
            .first()
            .and_then(|t| t.partition_responses.first())
            .context("no row")?;
        assert_eq!((row.error_code, row.base_offset), (0, i64::try_from(i)?));
    }
    Ok(())
}

#[test]
fn acks_zero_is_never_answered_and_still_stored() -> Result<()> {
    let (_server, mut wire, topic) = Server::with_topic("silent", 1, &[])?;
    for _ in 0..10 {
        wire.send(
            11,
            &produce_request(11, &topic, 0, 0, Some(BatchSpec::small(1, NOW).build()?)),
        )?;
    }
    // The answer to this one is the first thing that comes.
    wire.metadata_of_everything()?;
    assert_eq!(
        produce_ok(&mut wire, &topic, 0, BatchSpec::small(1, NOW).build()?)?,
        10
    );
    Ok(())
}

/// A batch whose few bytes expand to `expanded` zeros.
fn bomb(codec: Codec, expanded: u64) -> Result<Bytes> {
    use std::io::Write;
    let block = vec![0u8; 1024 * 1024];
    let blocks = expanded / (1024 * 1024);
    let payload = match codec {
        Codec::Zstd => {
            let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1)?;
            for _ in 0..blocks {
                encoder.write_all(&block)?;
            }
            encoder.finish()?
        }
        Codec::Gzip => {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            for _ in 0..blocks {
                encoder.write_all(&block)?;
            }
            encoder.finish()?
        }
        Codec::Lz4 => {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
            for _ in 0..blocks {
                encoder.write_all(&block)?;
            }
            encoder.finish()?
        }
        // The announced length alone: 4 GiB less one, and nothing behind it.
        _ => vec![0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0, 0, 0, 0, 0],
    };
    let spec = BatchSpec {
        payload: Some(payload.into()),
        codec,
        ..BatchSpec::small(1, NOW)
    };
    spec.build()
}

#[test]
fn expansion_bombs_are_refused_before_memory_is_taken() -> Result<()> {
    let (mut server, mut wire, topic) =
        Server::with_topic("bombs", 1, &[("max.message.bytes", "20000000")])?;
    produce_ok(
        &mut wire,
        &topic,
        0,
        BatchSpec::small(1, NOW).compressed(Codec::Zstd).build()?,
    )?;
    let before = server.process().peak_resident_bytes()?;
    for (codec, expanded) in [
        (Codec::Zstd, 1 << 30),
        (Codec::Gzip, 1 << 30),
        (Codec::Lz4, 1 << 30),
        (Codec::SnappyRaw, 0),
    ] {
        let bytes = bomb(codec, expanded)?;
        let mut connections = Vec::new();
        for _ in 0..4 {
            let mut wire = server.connect()?;
            let id = wire.send(11, &produce_request(11, &topic, 0, -1, Some(bytes.clone())))?;
            connections.push((wire, id));
        }
        for (mut wire, id) in connections {
            let answer = wire.receive::<ProduceRequest>(11, id)?;
            let row = answer
                .responses
                .first()
                .and_then(|t| t.partition_responses.first())
                .context("no row")?;
            ensure!(
                row.error_code > 0 || kafka_instead(),
                "{codec:?}: error {}",
                row.error_code
            );
        }
    }
    let grown = server
        .process()
        .peak_resident_bytes()?
        .saturating_sub(before);
    ensure!(
        kafka_instead() || grown < 160 << 20,
        "{} MiB more",
        grown >> 20
    );
    assert_eq!(read_to_end(&mut wire, &topic, 0, 0)?.len(), 1);
    Ok(())
}

#[test]
fn log_append_time_is_stamped_and_checked() -> Result<()> {
    let server = Server::with(&[("log.message.timestamp.type", "LogAppendTime")])?;
    let mut wire = server.connect()?;
    let topic = create_topic(&mut wire, "stamped", 1, &[])?;
    for codec in [Codec::None, Codec::Gzip, Codec::Zstd] {
        let before = now()?;
        let answer = produce(
            &mut wire,
            &topic,
            0,
            BatchSpec::small(3, NOW).compressed(codec).build()?,
        )?;
        let stamp = answer.log_append_time_ms;
        ensure!(
            answer.error_code == 0 && (before..=now()?).contains(&stamp),
            "{answer:?}"
        );
        let data = fetch(&mut wire, &topic, 0, answer.base_offset)?
            .records
            .context("no records")?;
        let batch = *batches_of(&data).first().context("no batch")?;
        assert_eq!(batch[22] & 8, 8, "the attribute bit");
        assert_eq!(batch[35..43], stamp.to_be_bytes(), "the largest timestamp");
        assert_eq!(
            batch[17..21],
            crc32c::crc32c(&batch[21..]).to_be_bytes(),
            "the CRC"
        );
    }
    // The coordinator's own topic is not stamped so that it breaks: groups work.
    let mut member = Member::join(server.address(), "stampers", "range")?;
    member.sync(&[])?;
    assert_eq!(member.commit(&[("stamped", 0, 2)])?, [0]);
    assert_eq!(committed(&mut wire, "stampers", "stamped", 0)?.0, 2);
    Ok(())
}

#[test]
fn a_timestamp_far_ahead_is_refused() -> Result<()> {
    let (_server, mut wire, topic) = Server::with_topic("ahead", 1, &[])?;
    let ten_years = 10 * 365 * 86_400_000;
    let answer = produce(
        &mut wire,
        &topic,
        0,
        BatchSpec::small(1, now()? + ten_years).build()?,
    )?;
    const INVALID_TIMESTAMP: i16 = 32;
    assert_eq!(answer.error_code, INVALID_TIMESTAMP);
    Ok(())
}

#[test]
fn a_topic_takes_records_as_soon_as_its_creation_is_answered() -> Result<()> {
    let server = Server::start()?;
    for i in 0..10 {
        let mut wire = server.connect()?;
        let topic = create_topic(&mut wire, &format!("at-once-{i}"), 3, &[])?;
        for partition in 0..3 {
            produce_ok(
                &mut server.connect()?,
                &topic,
                partition,
                BatchSpec::small(1, NOW).build()?,
            )?;
        }
    }
    Ok(())
}

#[test]
fn several_batches_in_one_request_are_stored_together() -> Result<()> {
    let (_server, mut wire, topic) = Server::with_topic("several", 1, &[])?;
    let mut two = BytesMut::new();
    two.put(BatchSpec::small(2, NOW).build()?);
    two.put(BatchSpec::small(3, NOW).build()?);
    let answer = produce(&mut wire, &topic, 0, two.freeze())?;
    // Kafka takes exactly one batch a partition.
    assert_eq!(answer.error_code, INVALID_RECORD);
    assert_eq!(read_to_end(&mut wire, &topic, 0, 0)?.len(), 0);
    Ok(())
}
