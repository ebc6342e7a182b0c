//! Fetch, ListOffsets and OffsetForLeaderEpoch, compared with Kafka.

use anyhow::{Context, Result};
use compat_tests::batches::{BatchSpec, Codec, RecordSpec};
use compat_tests::comparison::compare;
use compat_tests::requests::{
    EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, MAX_TIMESTAMP, Topic, create_topic,
    fetch_request, leader_epoch, list_offsets_request, produce_ok,
};
use compat_tests::transcript::Probe;
use kafka_protocol::messages::fetch_request::ForgottenTopic;
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::{
    BrokerId, FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest,
};

const NOW: i64 = 1_790_000_000_000;
const MIB: i32 = 1024 * 1024;

/// Three batches: offsets 0–1, 2–4 (compressed) and 5–9.
fn three_batches(probe: &mut Probe, topic: &Topic) -> Result<()> {
    for batch in [
        BatchSpec::small(2, NOW),
        BatchSpec::small(3, NOW + 1000).compressed(Codec::Zstd),
        BatchSpec::small(5, NOW + 2000),
    ] {
        produce_ok(probe.wire()?, topic, 0, batch.build()?)?;
    }
    Ok(())
}

#[test]
fn fetch_at_every_offset() -> Result<()> {
    compare("fetch_at_every_offset", |probe| {
        let topic = create_topic(probe.wire()?, "fetch-offsets", 1, &[])?;
        three_batches(probe, &topic)?;
        for offset in -1..=11 {
            // Magic 2 with zstd is refused to clients below version 10; each side of that line is asked.
            probe.ask_each(&format!("offset {offset}"), |version| {
                fetch_request(version, &topic, &[(0, offset, MIB)])
            })?;
        }
        Ok(())
    })
}

#[test]
fn fetch_with_small_limits() -> Result<()> {
    compare("fetch_with_small_limits", |probe| {
        let topic = create_topic(probe.wire()?, "fetch-limits", 3, &[])?;
        for partition in [0, 1, 2, 0] {
            let batch = BatchSpec::of(vec![RecordSpec::value(vec![b'x'; 3000]).at(NOW)]).build()?;
            produce_ok(probe.wire()?, &topic, partition, batch)?;
        }
        let all = |max_bytes| [(0, 0, max_bytes), (1, 0, max_bytes), (2, 0, max_bytes)];
        for max_bytes in [0, 1, 3200, 6200, MIB] {
            probe.ask_each(&format!("{max_bytes} a partition"), |version| {
                fetch_request(version, &topic, &all(max_bytes))
            })?;
            probe.ask_each(&format!("{max_bytes} in all"), |version| {
                fetch_request(version, &topic, &all(MIB)).with_max_bytes(max_bytes)
            })?;
        }
        probe.ask_each("the first partition is at its end", |version| {
            fetch_request(version, &topic, &[(0, 2, MIB), (1, 0, 1), (2, 0, 1)])
        })
    })
}

#[test]
fn fetch_from_where_nothing_is() -> Result<()> {
    compare("fetch_from_where_nothing_is", |probe| {
        let topic = create_topic(probe.wire()?, "fetch-empty", 1, &[])?;
        let missing = Topic::missing("fetch-nowhere");
        probe.ask_each("an empty partition", |version| {
            fetch_request(version, &topic, &[(0, 0, MIB)])
        })?;
        probe.ask_each("a missing partition", |version| {
            fetch_request(version, &topic, &[(3, 0, MIB)])
        })?;
        probe.ask_each("a missing topic", |version| {
            fetch_request(version, &missing, &[(0, 0, MIB)])
        })?;
        probe.ask_each("nothing", |version| {
            fetch_request(version, &topic, &[]).with_topics(vec![])
        })?;
        probe.ask_each("a partition twice", |version| {
            fetch_request(version, &topic, &[(0, 0, MIB), (0, 0, MIB)])
        })
    })
}

#[test]
fn fetch_with_leader_epochs() -> Result<()> {
    compare("fetch_with_leader_epochs", |probe| {
        let topic = create_topic(probe.wire()?, "fetch-epochs", 1, &[])?;
        three_batches(probe, &topic)?;
        let now = leader_epoch(probe.wire()?, &topic, 0)?;
        for (label, current, last) in [
            ("the current epoch", now, -1),
            ("the last fetched epoch", -1, now),
            ("both", now, now),
            ("an epoch to come", now + 7, -1),
            ("a last fetched epoch to come", -1, now + 7),
            ("negative ones", -2, -2),
        ] {
            for version in probe
                .versions::<FetchRequest>()
                .filter(|version| *version >= 9)
            {
                let mut request = fetch_request(version, &topic, &[(0, 0, MIB)]);
                for partition in request
                    .topics
                    .iter_mut()
                    .flat_map(|topic| &mut topic.partitions)
                {
                    partition.current_leader_epoch = current;
                    if version >= 12 {
                        partition.last_fetched_epoch = last;
                    }
                }
                probe.ask(label, version, &request)?;
            }
        }
        Ok(())
    })
}

#[test]
fn fetch_read_committed() -> Result<()> {
    compare("fetch_read_committed", |probe| {
        let topic = create_topic(probe.wire()?, "fetch-committed", 1, &[])?;
        three_batches(probe, &topic)?;
        for level in [1, 2, -1] {
            probe.ask_each(&format!("isolation level {level}"), |version| {
                fetch_request(version, &topic, &[(0, 0, MIB)]).with_isolation_level(level)
            })?;
        }
        Ok(())
    })
}

#[test]
fn fetch_sessions() -> Result<()> {
    compare("fetch_sessions", |probe| {
        for version in probe
            .versions::<FetchRequest>()
            .filter(|version| *version >= 7)
        {
            let topic = create_topic(probe.wire()?, &format!("fetch-session-v{version}"), 2, &[])?;
            let batch = BatchSpec::small(2, NOW).build()?;
            produce_ok(probe.wire()?, &topic, 0, batch.clone())?;
            probe.mask("session_id");
            let both = [(0, 0, MIB), (1, 0, MIB)];
            let full = fetch_request(version, &topic, &both).with_session_epoch(0);
            let id = probe
                .ask("begin", version, &full)?
                .context("no answer")?
                .session_id;
            probe.note("there is a session", id != 0)?;
            let next = |epoch, partitions: &[(i32, i64, i32)]| {
                let mut request = fetch_request(version, &topic, partitions);
                if partitions.is_empty() {
                    request.topics.clear();
                }
                request.with_session_id(id).with_session_epoch(epoch)
            };
            let same = |probe: &mut Probe, label, request: &FetchRequest| -> Result<()> {
                let answer = probe.ask(label, version, request)?;
                probe.note(
                    "the same session",
                    answer.is_some_and(|answer| answer.session_id == id),
                )
            };
            same(
                probe,
                "the data again, the offset has not moved",
                &next(1, &[]),
            )?;
            same(probe, "the offset moves on", &next(2, &[(0, 2, MIB)]))?;
            same(probe, "nothing new", &next(3, &[]))?;
            produce_ok(probe.wire()?, &topic, 1, batch.clone())?;
            same(probe, "the other partition has something", &next(4, &[]))?;
            same(probe, "an epoch too old", &next(4, &[]))?;
            same(probe, "an epoch too new", &next(9, &[]))?;
            let mut forget = next(5, &[(0, 0, MIB)]);
            let mut forgotten = ForgottenTopic::default().with_partitions(vec![1]);
            if version >= 13 {
                forgotten.topic_id = topic.id;
            } else {
                forgotten.topic = topic.name();
            }
            forget.forgotten_topics_data = vec![forgotten];
            same(probe, "one partition is forgotten", &forget)?;
            same(probe, "what is left", &next(6, &[]))?;
            same(probe, "an offset out of range", &next(7, &[(0, 99, MIB)]))?;
            same(probe, "which stays in the answers", &next(8, &[]))?;
            same(
                probe,
                "a partition that is not there",
                &next(9, &[(0, 2, MIB), (8, 0, MIB)]),
            )?;
            same(probe, "which stays in the answers, too", &next(10, &[]))?;
            same(probe, "closed", &next(-1, &[(0, 0, MIB)]))?;
            same(probe, "gone", &next(11, &[]))?;
            let unknown = fetch_request(version, &topic, &both)
                .with_session_id(123_456)
                .with_session_epoch(1);
            probe.ask("a session that never was", version, &unknown)?;
        }
        Ok(())
    })
}

#[test]
fn fetch_waits_for_min_bytes_no_longer_than_asked() -> Result<()> {
    compare("fetch_waits_for_min_bytes_no_longer_than_asked", |probe| {
        let topic = create_topic(probe.wire()?, "fetch-wait", 1, &[])?;
        three_batches(probe, &topic)?;
        for (label, offset, min_bytes) in [("at the end", 10, 1), ("some, but too little", 5, MIB)]
        {
            let request = fetch_request(11, &topic, &[(0, offset, MIB)])
                .with_max_wait_ms(300)
                .with_min_bytes(min_bytes);
            let begun = std::time::Instant::now();
            probe.ask(label, 11, &request)?;
            let waited = begun.elapsed().as_millis();
            probe.note(
                "waited for the time that was asked for",
                (290..2000).contains(&waited),
            )?;
        }
        Ok(())
    })
}

#[test]
fn list_offsets() -> Result<()> {
    compare("list_offsets", |probe| {
        let topic = create_topic(probe.wire()?, "list-offsets", 2, &[])?;
        three_batches(probe, &topic)?;
        let spread = (1..=10)
            .map(|i| RecordSpec::value("v").at(NOW + 10_000 + i))
            .collect();
        produce_ok(
            probe.wire()?,
            &topic,
            0,
            BatchSpec::of(spread).compressed(Codec::Gzip).build()?,
        )?;
        let unordered = [10, 30, 20]
            .map(|i| RecordSpec::value("v").at(NOW + 20_000 + i))
            .to_vec();
        produce_ok(probe.wire()?, &topic, 0, BatchSpec::of(unordered).build()?)?;
        for (label, timestamp) in [
            ("latest", LATEST),
            ("earliest", EARLIEST),
            ("max timestamp", MAX_TIMESTAMP),
            ("earliest local", EARLIEST_LOCAL),
            ("latest tiered", LATEST_TIERED),
            ("earliest pending upload", -6),
            ("an unknown negative one", -7),
            ("zero", 0),
            ("the first", NOW),
            ("after the first", NOW + 1),
            ("inside a compressed batch", NOW + 10_005),
            ("inside an unordered batch", NOW + 20_015),
            ("the newest", NOW + 20_030),
            ("past the newest", NOW + 20_031),
        ] {
            probe.ask_each(label, |version| {
                list_offsets_request(version, &topic, 0, timestamp)
            })?;
            probe.ask_each(&format!("{label}, empty"), |version| {
                list_offsets_request(version, &topic, 1, timestamp)
            })?;
        }
        for version in probe
            .versions::<ListOffsetsRequest>()
            .filter(|version| *version >= 2)
        {
            for timestamp in [LATEST, NOW + 1] {
                let request =
                    list_offsets_request(version, &topic, 0, timestamp).with_isolation_level(1);
                probe.ask("read committed", version, &request)?;
            }
        }
        Ok(())
    })
}

#[test]
fn list_offsets_refused() -> Result<()> {
    compare("list_offsets_refused", |probe| {
        let topic = create_topic(probe.wire()?, "list-offsets-refused", 1, &[])?;
        let missing = Topic::missing("list-offsets-nowhere");
        probe.ask_each("a missing topic", |version| {
            list_offsets_request(version, &missing, 0, LATEST)
        })?;
        probe.ask_each("a missing partition", |version| {
            list_offsets_request(version, &topic, 4, LATEST)
        })?;
        probe.ask_each("a partition twice", |version| {
            let mut request = list_offsets_request(version, &topic, 0, LATEST);
            for topic in &mut request.topics {
                topic.partitions.extend(topic.partitions.clone());
            }
            request
        })?;
        probe.ask_each("nothing", |version| {
            list_offsets_request(version, &topic, 0, LATEST).with_topics(vec![])
        })?;
        for replica in [-2, 1, 5] {
            probe.ask_each(&format!("as replica {replica}"), |version| {
                list_offsets_request(version, &topic, 0, LATEST).with_replica_id(BrokerId(replica))
            })?;
        }
        let now = leader_epoch(probe.wire()?, &topic, 0)?;
        for (label, epoch) in [
            ("now", now),
            ("next", now + 1),
            ("to come", now + 7),
            ("negative", -2),
        ] {
            for version in probe
                .versions::<ListOffsetsRequest>()
                .filter(|version| *version >= 4)
            {
                let mut request = list_offsets_request(version, &topic, 0, LATEST);
                for partition in request
                    .topics
                    .iter_mut()
                    .flat_map(|topic| &mut topic.partitions)
                {
                    partition.current_leader_epoch = epoch;
                }
                probe.ask(label, version, &request)?;
            }
        }
        Ok(())
    })
}

#[test]
fn offset_for_leader_epoch() -> Result<()> {
    compare("offset_for_leader_epoch", |probe| {
        let topic = create_topic(probe.wire()?, "epoch-ends", 2, &[])?;
        three_batches(probe, &topic)?;
        let missing = Topic::missing("epoch-ends-nowhere");
        let now = leader_epoch(probe.wire()?, &topic, 0)?;
        for (label, topic, partition, current, wanted) in [
            ("the only epoch", &topic, 0, -1, now),
            ("an epoch to come", &topic, 0, -1, now + 5),
            ("no epoch", &topic, 0, -1, -1),
            ("a right current epoch", &topic, 0, now, now),
            ("a current epoch to come", &topic, 0, now + 5, now),
            ("an empty partition", &topic, 1, -1, now),
            ("a missing partition", &topic, 6, -1, 0),
            ("a missing topic", &missing, 0, -1, 0),
        ] {
            probe.ask_each(label, |version| {
                let row = OffsetForLeaderPartition::default()
                    .with_partition(partition)
                    .with_current_leader_epoch(current)
                    .with_leader_epoch(wanted);
                let rows = OffsetForLeaderTopic::default()
                    .with_topic(topic.name())
                    .with_partitions(vec![row]);
                let mut request = OffsetForLeaderEpochRequest::default().with_topics(vec![rows]);
                if version >= 3 {
                    request.replica_id = BrokerId(-1);
                }
                request
            })?;
        }
        Ok(())
    })
}
