//! Topics, metadata and configurations, over plain connections.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use compat_tests::batches::BatchSpec;
use compat_tests::broker::Broker;
use compat_tests::groups::{committed, coordinator_is_up, offset_commit};
use compat_tests::requests::{
    LATEST, Topic, creatable, create_topic, delete_topic, list_offset, metadata_of, produce_ok,
    topic_name, until_not_retriable,
};
use compat_tests::server::{Server, kafka_instead};
use compat_tests::transactions::TxnProducer;
use compat_tests::wire::{Wire, text};
use kafka_protocol::messages::alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResourceResult;
use kafka_protocol::messages::incremental_alter_configs_request as incremental;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    AlterConfigsRequest, CreatePartitionsRequest, CreateTopicsRequest, DescribeConfigsRequest,
    IncrementalAlterConfigsRequest, MetadataRequest,
};

const NOW: i64 = 1_790_000_000_000;
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const INVALID_TOPIC_EXCEPTION: i16 = 17;
const TOPIC_ALREADY_EXISTS: i16 = 36;
const INVALID_REQUEST: i16 = 42;

fn names(
    wire: &mut Wire,
    version: i16,
    topics: Option<Vec<MetadataRequestTopic>>,
) -> Result<Vec<String>> {
    let answer = wire.call(version, &MetadataRequest::default().with_topics(topics))?;
    let mut names: Vec<String> = answer
        .topics
        .iter()
        .filter_map(|topic| topic.name.as_ref().map(|name| name.to_string()))
        .collect();
    names.sort();
    Ok(names)
}

#[test]
fn metadata_of_all_topics_is_a_null_list_and_creates_nothing() -> Result<()> {
    let (_server, mut wire) = Server::connected()?;
    create_topic(&mut wire, "a", 1, &[])?;
    create_topic(&mut wire, "b", 1, &[])?;
    assert_eq!(
        names(&mut wire, 0, Some(vec![]))?,
        ["a", "b"],
        "at version 0 an empty list is everything"
    );
    for version in 1..=13 {
        assert_eq!(names(&mut wire, version, None)?, ["a", "b"], "v{version}");
        assert_eq!(
            names(&mut wire, version, Some(vec![]))?,
            [""; 0],
            "v{version}"
        );
    }
    Ok(())
}

#[test]
fn topics_are_made_by_asking_only_if_both_sides_allow_it() -> Result<()> {
    let ask = |wire: &mut Wire, name: &str, allow: bool| -> Result<i16> {
        let topic = MetadataRequestTopic::default().with_name(Some(topic_name(name)));
        let request = MetadataRequest::default()
            .with_topics(Some(vec![topic]))
            .with_allow_auto_topic_creation(allow);
        Ok(wire
            .call(9, &request)?
            .topics
            .first()
            .context("no row")?
            .error_code)
    };
    let server = Server::with(&[("num.partitions", "3")])?;
    let mut wire = server.connect()?;
    for _ in 0..3 {
        assert_eq!(
            ask(&mut wire, "unasked", false)?,
            UNKNOWN_TOPIC_OR_PARTITION
        );
    }
    assert_eq!(names(&mut wire, 9, None)?, [""; 0]);
    let code = until_not_retriable(|| ask(&mut wire, "asked", true), |code| *code)?;
    assert_eq!(code, 0);
    assert_eq!(
        wire.call(9, &metadata_of("asked"))?.topics[0]
            .partitions
            .len(),
        3
    );
    assert_eq!(ask(&mut wire, "not/a name", true)?, INVALID_TOPIC_EXCEPTION);
    let server = Server::with(&[("auto.create.topics.enable", "false")])?;
    let mut wire = server.connect()?;
    for _ in 0..3 {
        assert_eq!(ask(&mut wire, "asked", true)?, UNKNOWN_TOPIC_OR_PARTITION);
    }
    assert_eq!(names(&mut wire, 9, None)?, [""; 0]);
    Ok(())
}

#[test]
fn who_asks_again_for_a_topic_that_its_question_made_finds_it_led() -> Result<()> {
    let server = Server::with(&[("num.partitions", "20")])?;
    let mut wire = server.connect()?;
    for round in 0..10 {
        let ask = |wire: &mut Wire| -> Result<_> {
            let topic = MetadataRequestTopic::default()
                .with_name(Some(topic_name(&format!("made-{round}"))));
            let request = MetadataRequest::default()
                .with_topics(Some(vec![topic]))
                .with_allow_auto_topic_creation(true);
            let answer = wire.call(9, &request)?;
            answer.topics.into_iter().next().context("no row")
        };
        let made = ask(&mut wire)?;
        assert_eq!(made.error_code, UNKNOWN_TOPIC_OR_PARTITION);
        let found = if kafka_instead() {
            until_not_retriable(|| ask(&mut wire), |row| row.error_code)?
        } else {
            ask(&mut wire)?
        };
        assert_eq!(found.error_code, 0);
        assert_eq!(found.partitions.len(), 20);
        for row in &found.partitions {
            assert_eq!(row.error_code, 0, "round {round}: {row:?}");
        }
    }
    Ok(())
}

#[test]
fn a_bad_name_is_refused_with_a_reason() -> Result<()> {
    let (_server, mut wire) = Server::connected()?;
    create_topic(&mut wire, "colliding.name", 1, &[])?;
    for name in [
        "",
        ".",
        "..",
        "a/b",
        "a b",
        "näme",
        &"x".repeat(250),
        "colliding_name",
    ] {
        let request = CreateTopicsRequest::default()
            .with_timeout_ms(5000)
            .with_topics(vec![creatable(name, 1, &[])]);
        let answer = wire.call(7, &request)?;
        let row = answer.topics.first().context("no row")?;
        assert_eq!(row.error_code, INVALID_TOPIC_EXCEPTION, "{name}");
        ensure!(
            row.error_message
                .as_ref()
                .is_some_and(|reason| !reason.is_empty()),
            "no reason for {name}"
        );
    }
    let longest = "x".repeat(249);
    create_topic(&mut wire, &longest, 1, &[])?;
    Ok(())
}

#[test]
fn each_topic_of_a_creation_is_answered_for_itself() -> Result<()> {
    let (_server, mut wire) = Server::connected()?;
    create_topic(&mut wire, "there", 1, &[])?;
    let topics = ["there", "twice", "good", "twice"]
        .map(|name| creatable(name, 1, &[]))
        .to_vec();
    let answer = wire.call(
        7,
        &CreateTopicsRequest::default()
            .with_timeout_ms(5000)
            .with_topics(topics),
    )?;
    let mut rows: Vec<(String, i16)> = answer
        .topics
        .iter()
        .map(|row| (row.name.to_string(), row.error_code))
        .collect();
    rows.sort();
    let expected = [
        ("good", 0),
        ("there", TOPIC_ALREADY_EXISTS),
        ("twice", INVALID_REQUEST),
    ];
    assert_eq!(rows, expected.map(|(name, code)| (name.to_owned(), code)));
    Ok(())
}

fn describe(
    wire: &mut Wire,
    kind: i8,
    name: &str,
    key: &str,
) -> Result<DescribeConfigsResourceResult> {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configuration_keys(Some(vec![text(key)]));
    let request = DescribeConfigsRequest::default()
        .with_resources(vec![resource])
        .with_include_synonyms(true);
    let answer = wire.call(4, &request)?;
    let row = answer.results.into_iter().next().context("no row")?;
    ensure!(row.error_code == 0, "error {}", row.error_code);
    row.configs
        .into_iter()
        .next()
        .with_context(|| format!("no {key}"))
}

fn set(wire: &mut Wire, kind: i8, name: &str, key: &str, value: &str) -> Result<()> {
    let config = incremental::AlterableConfig::default()
        .with_name(text(key))
        .with_value(Some(text(value)));
    let resource = incremental::AlterConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configs(vec![config]);
    let answer = wire.call(
        1,
        &IncrementalAlterConfigsRequest::default().with_resources(vec![resource]),
    )?;
    let row = answer.responses.first().context("no row")?;
    ensure!(
        row.error_code == 0,
        "error {} {:?}",
        row.error_code,
        row.error_message
    );
    Ok(())
}

#[test]
fn where_a_configs_value_comes_from_is_told() -> Result<()> {
    const TOPIC: i8 = 2;
    const BROKER: i8 = 4;
    const DYNAMIC_TOPIC: i8 = 1;
    const DYNAMIC_BROKER: i8 = 2;
    const DYNAMIC_DEFAULT_BROKER: i8 = 3;
    const STATIC_BROKER: i8 = 4;
    const DEFAULT: i8 = 5;
    let server = Server::with(&[("log.retention.ms", "7200000")])?;
    let mut wire = server.connect()?;
    create_topic(&mut wire, "sources", 1, &[])?;
    let shown = |wire: &mut Wire, key| -> Result<(String, i8, Vec<i8>)> {
        let config = describe(wire, TOPIC, "sources", key)?;
        let value = config
            .value
            .as_ref()
            .map_or(String::new(), |value| value.to_string());
        Ok((
            value,
            config.config_source,
            config
                .synonyms
                .iter()
                .map(|synonym| synonym.source)
                .collect(),
        ))
    };
    let eventually = |wire: &mut Wire, key, expected: (&str, i8, &[i8])| -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        let expected = (expected.0.to_owned(), expected.1, expected.2.to_vec());
        while shown(wire, key)? != expected && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(shown(wire, key)?, expected);
        Ok(())
    };
    eventually(
        &mut wire,
        "segment.bytes",
        ("1073741824", DEFAULT, &[DEFAULT]),
    )?;
    eventually(
        &mut wire,
        "retention.ms",
        ("7200000", STATIC_BROKER, &[STATIC_BROKER, DEFAULT]),
    )?;
    set(&mut wire, BROKER, "", "log.retention.ms", "5000000")?;
    let sources = &[DYNAMIC_DEFAULT_BROKER, STATIC_BROKER, DEFAULT][..];
    eventually(
        &mut wire,
        "retention.ms",
        ("5000000", DYNAMIC_DEFAULT_BROKER, sources),
    )?;
    set(&mut wire, BROKER, "1", "log.retention.ms", "4000000")?;
    let sources = &[
        DYNAMIC_BROKER,
        DYNAMIC_DEFAULT_BROKER,
        STATIC_BROKER,
        DEFAULT,
    ][..];
    eventually(
        &mut wire,
        "retention.ms",
        ("4000000", DYNAMIC_BROKER, sources),
    )?;
    set(&mut wire, TOPIC, "sources", "retention.ms", "3000000")?;
    let sources = &[
        DYNAMIC_TOPIC,
        DYNAMIC_BROKER,
        DYNAMIC_DEFAULT_BROKER,
        STATIC_BROKER,
        DEFAULT,
    ][..];
    eventually(
        &mut wire,
        "retention.ms",
        ("3000000", DYNAMIC_TOPIC, sources),
    )?;
    let broker = describe(&mut wire, BROKER, "1", "log.retention.ms")?;
    assert_eq!(
        (broker.value.as_deref(), broker.config_source),
        (Some("4000000"), DYNAMIC_BROKER)
    );
    ensure!(
        describe(&mut wire, BROKER, "1", "node.id")?.read_only,
        "node.id can be changed"
    );
    Ok(())
}

#[test]
fn the_old_alter_configs_forgets_what_it_does_not_name() -> Result<()> {
    const TOPIC: i8 = 2;
    let (_server, mut wire) = Server::connected()?;
    let configs = [
        ("retention.ms", "1000"),
        ("max.message.bytes", "5000"),
        ("cleanup.policy", "compact"),
    ];
    create_topic(&mut wire, "old-alter", 1, &configs)?;
    let config = AlterableConfig::default()
        .with_name(text("retention.ms"))
        .with_value(Some(text("2000")));
    let resource = AlterConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(text("old-alter"))
        .with_configs(vec![config]);
    wire.call(
        2,
        &AlterConfigsRequest::default().with_resources(vec![resource]),
    )?;
    std::thread::sleep(Duration::from_millis(200));
    for (key, value, source) in [
        ("retention.ms", "2000", 1),
        ("max.message.bytes", "1048588", 5),
        ("cleanup.policy", "delete", 5),
    ] {
        let config = describe(&mut wire, TOPIC, "old-alter", key)?;
        assert_eq!(
            (config.value.as_deref(), config.config_source),
            (Some(value), source),
            "{key}"
        );
    }
    Ok(())
}

#[test]
fn topics_configs_and_ids_survive_every_kind_of_stop() -> Result<()> {
    let mut broker = Broker::start()?;
    let mut made: Vec<(Topic, i32)> = Vec::new();
    for round in 0..6_i32 {
        let mut wire = broker.connect()?;
        let count = round % 3 + 1;
        let topic = create_topic(
            &mut wire,
            &format!("kept-{round}"),
            count,
            &[("retention.ms", "123456")],
        )?;
        made.push((topic, count));
        create_topic(&mut wire, &format!("dropped-{round}"), 2, &[])?;
        delete_topic(&mut wire, &format!("dropped-{round}"))?;
        set(
            &mut wire,
            2,
            &format!("kept-{round}"),
            "segment.ms",
            "99000",
        )?;
        if round % 2 == 0 {
            broker.kill9()?;
            broker.start_again()?;
        } else {
            broker.restart()?;
        }
        let mut wire = broker.connect()?;
        let answer = wire.call(12, &MetadataRequest::default().with_topics(None))?;
        assert_eq!(answer.topics.len(), made.len(), "round {round}");
        for (topic, count) in &made {
            let row = answer
                .topics
                .iter()
                .find(|row| row.topic_id == topic.id)
                .context("a topic is gone")?;
            assert_eq!(row.name, Some(topic.name()));
            assert_eq!(row.partitions.len(), usize::try_from(*count)?);
            assert_eq!(
                describe(&mut wire, 2, &topic.name, "retention.ms")?
                    .value
                    .as_deref(),
                Some("123456")
            );
            assert_eq!(
                describe(&mut wire, 2, &topic.name, "segment.ms")?
                    .value
                    .as_deref(),
                Some("99000")
            );
        }
    }
    let directories: Vec<String> = std::fs::read_dir(broker.data_dir())?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    ensure!(
        !directories.iter().any(|name| name.starts_with("dropped-")),
        "left over: {directories:?}"
    );
    Ok(())
}

#[test]
fn a_thousand_partitions_cost_the_same_after_every_restart() -> Result<()> {
    let mut broker = Broker::start()?;
    let topic = create_topic(&mut broker.connect()?, "thousand", 1000, &[])?;
    let mut wire = broker.connect()?;
    for partition in (0..1000).step_by(10) {
        produce_ok(
            &mut wire,
            &topic,
            partition,
            BatchSpec::small(1, NOW).build()?,
        )?;
    }
    let files = |broker: &Broker| -> Result<usize> {
        let mut count = 0;
        for directory in std::fs::read_dir(broker.data_dir())? {
            let path = directory?.path();
            count += if path.is_dir() {
                std::fs::read_dir(path)?.count()
            } else {
                1
            };
        }
        Ok(count)
    };
    let mut seen = Vec::new();
    for _ in 0..10 {
        let begun = Instant::now();
        broker.restart()?;
        let started = begun.elapsed();
        let mut wire = broker.connect()?;
        for partition in [0, 500, 990] {
            let row = until_not_retriable(
                || list_offset(&mut wire, &topic, partition, LATEST),
                |row| row.error_code,
            )?;
            assert_eq!(
                (row.error_code, row.offset),
                (0, 1),
                "partition {partition}"
            );
        }
        seen.push((
            files(&broker)?,
            broker.process().open_descriptors()?,
            started,
        ));
    }
    let (first, last) = (seen[1], seen[9]);
    assert_eq!(first.0, last.0, "files: {seen:?}");
    ensure!(last.1 <= first.1 + 20, "descriptors: {seen:?}");
    ensure!(
        last.2 < first.2 * 3 + Duration::from_secs(2),
        "restart and start: {seen:?}"
    );
    Ok(())
}

/// Each group and each transactional id belongs to a partition by the number of partitions: with another number
/// its offsets were not found, and its open transaction hung.
#[test]
fn the_topics_of_coordinators_do_not_grow_under_them() -> Result<()> {
    if kafka_instead() {
        // It takes the request, and the harm comes with the next restart.
        return Ok(());
    }
    let (_server, mut wire, topic) = Server::with_topic("grows", 1, &[])?;
    coordinator_is_up(&mut wire, "grows")?;
    let commit = offset_commit(8, "grows", -1, "", &[("grows", 0, 5)]);
    let answer = wire.call(8, &commit)?;
    assert_eq!(answer.topics[0].partitions[0].error_code, 0);
    let producer = TxnProducer::init(&mut wire, "grows")?;
    producer.produce(&mut wire, 12, &topic, 0, producer.batch(0, 1, NOW)?)?;
    for validate_only in [true, false] {
        let grow = |name: &str| {
            CreatePartitionsTopic::default()
                .with_name(topic_name(name))
                .with_count(51)
                .with_assignments(None)
        };
        let request = CreatePartitionsRequest::default()
            .with_topics(vec![
                grow("__consumer_offsets"),
                grow("__transaction_state"),
            ])
            .with_timeout_ms(10_000)
            .with_validate_only(validate_only);
        let answer = wire.call(3, &request)?;
        for result in &answer.results {
            assert_eq!(result.error_code, INVALID_REQUEST, "{result:?}");
            let message = result.error_message.as_deref().unwrap_or_default();
            ensure!(message.contains("cannot be changed"), "{message}");
        }
        assert_eq!(answer.results.len(), 2);
    }
    assert_eq!(committed(&mut wire, "grows", "grows", 0)?.0, 5);
    producer.end(&mut wire, 5, true)?;
    Ok(())
}
