//! Clients that people use: kcat with an old librdkafka, and the `rdkafka` crate with a recent one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use compat_tests::kcat::{consume_all, kcat, produce};
use compat_tests::server::Server;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];

#[test]
fn kcat_reads_back_what_it_wrote_with_every_codec() -> Result<()> {
    let server = Server::start()?;
    let bootstrap = server.bootstrap();
    for codec in CODECS {
        let topic = format!("kcat-{codec}");
        let lines: String = (0..1000).map(|i| format!("key-{i}:value-{i}\n")).collect();
        produce(
            &bootstrap,
            &topic,
            &lines,
            &[
                "-K:", "-z", codec, "-H", "a=1", "-H", "b=2", "-X", "acks=all",
            ],
        )?;
        let read = consume_all(&bootstrap, &topic, "%o %k %s %h\n")?;
        let mut expected: Vec<String> = (0..1000)
            .map(|i| format!("{i} key-{i} value-{i} a=1,b=2"))
            .collect();
        let mut read: Vec<String> = read.lines().map(str::to_owned).collect();
        if read.len() == expected.len() && !read[0].starts_with("0 key-0 ") {
            // More than one partition: offsets say nothing about the keys.
            let strip = |line: &mut String| {
                *line = line
                    .split_once(' ')
                    .map_or(String::new(), |(_, rest)| rest.to_owned())
            };
            expected.iter_mut().for_each(strip);
            read.iter_mut().for_each(strip);
            expected.sort();
            read.sort();
        }
        assert_eq!(read, expected, "{codec}");
    }
    Ok(())
}

#[test]
fn kcat_lists_queries_and_reads_as_a_group() -> Result<()> {
    let server = Server::start()?;
    let bootstrap = server.bootstrap();
    produce(
        &bootstrap,
        "listed",
        "one\ntwo\nthree\n",
        &["-X", "enable.idempotence=true"],
    )?;
    let listed = kcat(&bootstrap, &["-L", "-J"], "")?;
    let listed: serde_json::Value = serde_json::from_str(&listed)?;
    ensure!(
        listed["topics"]
            .as_array()
            .is_some_and(|topics| topics.iter().any(|t| t["topic"] == "listed")),
        "{listed}"
    );
    let queried = kcat(&bootstrap, &["-Q", "-t", "listed:0:-1"], "")?;
    assert_eq!(queried.trim(), "listed [0] offset 3");
    let arguments = [
        "-G",
        "kcat-group",
        "-X",
        "auto.offset.reset=earliest",
        "-c",
        "2",
        "-q",
        "-f",
        "%s\n",
        "listed",
    ];
    assert_eq!(kcat(&bootstrap, &arguments, "")?, "one\ntwo\n");
    // The second reader of the group goes on where the first committed.
    let arguments = [
        "-G",
        "kcat-group",
        "-X",
        "auto.offset.reset=earliest",
        "-c",
        "1",
        "-q",
        "-f",
        "%s\n",
        "listed",
    ];
    assert_eq!(kcat(&bootstrap, &arguments, "")?, "three\n");
    Ok(())
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

fn admin(server: &Server) -> Result<AdminClient<DefaultClientContext>> {
    Ok(ClientConfig::new()
        .set("bootstrap.servers", server.bootstrap())
        .create()?)
}

async fn create(server: &Server, name: &str, partitions: i32) -> Result<()> {
    let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(10)));
    for result in admin(server)?.create_topics(&[topic], &options).await? {
        result.map_err(|(name, code)| anyhow::anyhow!("creating {name}: {code}"))?;
    }
    Ok(())
}

#[test]
fn librdkafka_produces_with_and_without_idempotence_and_reads_back() -> Result<()> {
    let server = Server::start()?;
    runtime()?.block_on(async {
        for idempotent in ["false", "true"] {
            for codec in CODECS {
                let topic = format!("rdkafka-{idempotent}-{codec}");
                create(&server, &topic, 1).await?;
                let producer: FutureProducer = ClientConfig::new()
                    .set("bootstrap.servers", server.bootstrap())
                    .set("enable.idempotence", idempotent)
                    .set("compression.type", codec)
                    .set("linger.ms", "2")
                    .set("acks", "all")
                    .create()?;
                let mut deliveries = Vec::new();
                for i in 0..500 {
                    let (key, value) = (format!("k{i}"), format!("v{i}"));
                    let headers = OwnedHeaders::new().insert(Header {
                        key: "i",
                        value: Some(&key),
                    });
                    let record = FutureRecord::to(&topic)
                        .key(&key)
                        .payload(&value)
                        .headers(headers);
                    deliveries.push(producer.send_result(record).map_err(|(e, _)| e)?);
                }
                for (i, delivery) in deliveries.into_iter().enumerate() {
                    let delivered = delivery.await?.map_err(|(e, _)| e)?;
                    assert_eq!(
                        (delivered.partition, delivered.offset),
                        (0, i64::try_from(i)?)
                    );
                }
                let consumer: BaseConsumer = ClientConfig::new()
                    .set("bootstrap.servers", server.bootstrap())
                    .set("group.id", "unused")
                    .create()?;
                let mut assignment = TopicPartitionList::new();
                assignment.add_partition_offset(&topic, 0, Offset::Beginning)?;
                consumer.assign(&assignment)?;
                for i in 0..500 {
                    let message = consumer
                        .poll(Duration::from_secs(20))
                        .context("nothing came")??;
                    assert_eq!(message.offset(), i);
                    assert_eq!(message.key(), Some(format!("k{i}").as_bytes()));
                    assert_eq!(message.payload(), Some(format!("v{i}").as_bytes()));
                    let headers = message.headers().context("no headers")?;
                    assert_eq!(headers.get(0).value, Some(format!("k{i}").as_bytes()));
                }
                assert_eq!(
                    consumer.fetch_watermarks(&topic, 0, Duration::from_secs(10))?,
                    (0, 500)
                );
            }
        }
        Ok(())
    })
}

fn group_consumer(
    server: &Server,
    group: &str,
    topic: &str,
    strategy: &str,
) -> Result<BaseConsumer> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", server.bootstrap())
        .set("group.id", group)
        .set("auto.offset.reset", "earliest")
        .set("partition.assignment.strategy", strategy)
        .set("session.timeout.ms", "6000")
        .set("heartbeat.interval.ms", "200")
        .create()?;
    consumer.subscribe(&[topic])?;
    Ok(consumer)
}

#[test]
fn librdkafka_group_consumers_share_partitions_and_take_over() -> Result<()> {
    for strategy in ["range,roundrobin", "cooperative-sticky"] {
        let server = Server::start()?;
        runtime()?.block_on(create(&server, "shared", 6))?;
        let lines: String = (0..600).map(|i| format!("{i}:{i}\n")).collect();
        produce(&server.bootstrap(), "shared", &lines, &["-K:"])?;
        let first = group_consumer(&server, "sharers", "shared", strategy)?;
        let second = group_consumer(&server, "sharers", "shared", strategy)?;
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let deadline = Instant::now() + Duration::from_secs(60);
        let owned = |consumer: &BaseConsumer| consumer.assignment().map_or(0, |list| list.count());
        while seen.len() < 600 || owned(&first) != 3 || owned(&second) != 3 {
            ensure!(
                Instant::now() < deadline,
                "{} seen, {} and {} owned",
                seen.len(),
                owned(&first),
                owned(&second)
            );
            for consumer in [&first, &second] {
                while let Some(message) = consumer.poll(Duration::from_millis(20)) {
                    let message = message?;
                    let payload =
                        String::from_utf8_lossy(message.payload().unwrap_or_default()).into_owned();
                    *seen.entry(payload).or_default() += 1;
                }
            }
        }
        match second.commit_consumer_state(rdkafka::consumer::CommitMode::Sync) {
            // The first may have read everything before the second had joined.
            Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::NoOffset)) => {}
            committed => committed?,
        }
        drop(second);
        while owned(&first) != 6 {
            ensure!(
                Instant::now() < deadline,
                "{} owned after the other left",
                owned(&first)
            );
            if let Some(message) = first.poll(Duration::from_millis(20)) {
                message?;
            }
        }
        produce(&server.bootstrap(), "shared", "last:last\n", &["-K:"])?;
        loop {
            ensure!(Instant::now() < deadline, "the last record did not come");
            if let Some(message) = first.poll(Duration::from_millis(100))
                && message?.payload() == Some(b"last")
            {
                break;
            }
        }
    }
    Ok(())
}

#[test]
fn a_static_librdkafka_consumer_comes_back_to_its_partitions_and_fences_its_double() -> Result<()> {
    let server = Server::start()?;
    runtime()?.block_on(create(&server, "static", 4))?;
    let consumer = |instance: &str| -> Result<BaseConsumer> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", server.bootstrap())
            .set("group.id", "statics")
            .set("group.instance.id", instance)
            .set("partition.assignment.strategy", "range")
            // Only a rebalance that nobody should need would take as long.
            .set("session.timeout.ms", "45000")
            .set("heartbeat.interval.ms", "200")
            .create()?;
        consumer.subscribe(&["static"])?;
        Ok(consumer)
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    let owned = |consumer: &BaseConsumer| -> Result<Vec<i32>> {
        let mut partitions: Vec<i32> = consumer
            .assignment()?
            .elements()
            .iter()
            .map(|element| element.partition())
            .collect();
        partitions.sort_unstable();
        Ok(partitions)
    };
    let (first, second) = (consumer("a")?, consumer("b")?);
    while (owned(&first)?, owned(&second)?) != (vec![0, 1], vec![2, 3]) {
        ensure!(Instant::now() < deadline, "no assignment");
        for consumer in [&first, &second] {
            consumer.poll(Duration::from_millis(20)).transpose()?;
        }
    }
    // A static member does not leave when it stops.
    drop(second);
    let second = consumer("b")?;
    while owned(&second)? != [2, 3] {
        ensure!(Instant::now() < deadline, "its place is not there any more");
        assert_eq!(owned(&first)?, [0, 1], "the other was disturbed");
        for consumer in [&first, &second] {
            consumer.poll(Duration::from_millis(20)).transpose()?;
        }
    }
    let double = consumer("b")?;
    let fenced = loop {
        ensure!(Instant::now() < deadline, "two at once");
        double.poll(Duration::from_millis(20)).transpose()?;
        second.poll(Duration::from_millis(20));
        if let Some((code, _)) = second.client().fatal_error() {
            break code;
        }
    };
    assert_eq!(fenced, RDKafkaErrorCode::FencedInstanceId);
    Ok(())
}

#[test]
fn librdkafka_administers_topics_and_configs() -> Result<()> {
    let server = Server::start()?;
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(10)));
    runtime()?.block_on(async {
        let admin = admin(&server)?;
        create(&server, "administered", 2).await?;
        ensure!(
            create(&server, "administered", 2).await.is_err(),
            "created twice"
        );
        for result in admin
            .create_partitions(&[NewPartitions::new("administered", 4)], &options)
            .await?
        {
            result.map_err(|(name, code)| anyhow::anyhow!("{name}: {code}"))?;
        }
        let resource = ResourceSpecifier::Topic("administered");
        let alter = AlterConfig::new(resource).set("retention.ms", "12345");
        for result in admin.alter_configs(&[alter], &options).await? {
            result.map_err(|(name, code)| anyhow::anyhow!("{name:?}: {code}"))?;
        }
        let mut value = None;
        for _ in 0..100 {
            let described = admin.describe_configs(&[resource], &options).await?;
            let config = described
                .into_iter()
                .next()
                .context("no answer")?
                .map_err(|code| anyhow::anyhow!("{code}"))?;
            value = config
                .get("retention.ms")
                .and_then(|entry| entry.value.clone());
            if value.as_deref() == Some("12345") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(value.as_deref(), Some("12345"));
        let metadata = admin
            .inner()
            .fetch_metadata(Some("administered"), Duration::from_secs(10))?;
        assert_eq!(metadata.topics()[0].partitions().len(), 4);
        for result in admin.delete_topics(&["administered"], &options).await? {
            result.map_err(|(name, code)| anyhow::anyhow!("{name}: {code}"))?;
        }
        let metadata = admin
            .inner()
            .fetch_metadata(None, Duration::from_secs(10))?;
        let names: BTreeSet<&str> = metadata.topics().iter().map(|topic| topic.name()).collect();
        ensure!(!names.contains("administered"), "{names:?}");
        Ok(())
    })
}

/// The lines of the README, as they stand but for the address.
#[test]
fn python_runs_what_the_readme_says() -> Result<()> {
    let server = Server::start()?;
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md"))?;
    let script = readme
        .split("```python\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .context("no Python in the README")?
        .replace("127.0.0.1:9092", &server.bootstrap());
    for offsets in [0..1, 1..2] {
        let output = compat_tests::python::run_script(&script)?;
        ensure!(output.success, "{}", output.both());
        let wanted: String = offsets
            .map(|offset| format!("0 {offset} b'order-1' b'paid'\n"))
            .collect();
        assert_eq!(output.stdout, wanted, "{}", output.both());
    }
    Ok(())
}
