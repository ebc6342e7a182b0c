//! Kafka's own command-line tools against a running broker.

use anyhow::{Context, Result, ensure};
use compat_tests::groups::Member;
use compat_tests::kafka;
use compat_tests::server::Server;

fn lines(text: &str) -> Vec<&str> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect()
}

/// The arguments behind those that say where the broker is.
fn at<'a>(bootstrap: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
    [&["--bootstrap-server", bootstrap][..], arguments].concat()
}

/// Creates a topic with Kafka's own tool.
fn create(bootstrap: &str, topic: &str, partitions: u32) -> Result<()> {
    let partitions = partitions.to_string();
    let arguments = ["--create", "--topic", topic, "--partitions", &partitions];
    kafka::TOPICS.succeed(&at(bootstrap, &arguments), "")?;
    Ok(())
}

#[test]
fn kafka_topics_creates_describes_grows_and_deletes() -> Result<()> {
    let server = Server::start()?;
    let bootstrap = server.bootstrap();
    let topics = |arguments: &[&str]| kafka::TOPICS.run(&at(&bootstrap, arguments), "");
    let created = topics(&[
        "--create",
        "--topic",
        "orders",
        "--partitions",
        "3",
        "--config",
        "retention.ms=3600000",
    ])?;
    ensure!(
        created.success && created.stdout.contains("Created topic orders."),
        "{}",
        created.both()
    );
    let again = topics(&["--create", "--topic", "orders"])?;
    ensure!(
        !again.success && again.both().contains("already exists"),
        "{}",
        again.both()
    );
    let listed = topics(&["--list"])?;
    assert_eq!(lines(&listed.stdout), ["orders"]);
    let described = topics(&["--describe", "--topic", "orders"])?;
    let text = lines(&described.stdout);
    assert_eq!(text.len(), 4, "{}", described.both());
    ensure!(
        text[0].contains("PartitionCount: 3"),
        "{}",
        described.stdout
    );
    ensure!(
        text[0].contains("ReplicationFactor: 1"),
        "{}",
        described.stdout
    );
    ensure!(
        text[0].contains("retention.ms=3600000"),
        "{}",
        described.stdout
    );
    ensure!(
        text[3].contains("Partition: 2") && text[3].contains("Leader: 1"),
        "{}",
        described.stdout
    );
    ensure!(
        text[3].contains("Replicas: 1") && text[3].contains("Isr: 1"),
        "{}",
        described.stdout
    );
    let grown = topics(&["--alter", "--topic", "orders", "--partitions", "5"])?;
    ensure!(grown.success, "{}", grown.both());
    let described = topics(&["--describe", "--topic", "orders"])?;
    ensure!(
        described.stdout.contains("PartitionCount: 5"),
        "{}",
        described.both()
    );
    let unavailable = topics(&["--describe", "--unavailable-partitions"])?;
    ensure!(
        unavailable.success && lines(&unavailable.stdout).is_empty(),
        "{}",
        unavailable.both()
    );
    let deleted = topics(&["--delete", "--topic", "orders"])?;
    ensure!(deleted.success, "{}", deleted.both());
    assert_eq!(lines(&topics(&["--list"])?.stdout), [""; 0]);
    Ok(())
}

#[test]
fn kafka_configs_describes_and_alters() -> Result<()> {
    let server = Server::start()?;
    let bootstrap = server.bootstrap();
    create(&bootstrap, "configured", 1)?;
    let configs = |arguments: &[&str]| kafka::CONFIGS.succeed(&at(&bootstrap, arguments), "");
    let topic = ["--entity-type", "topics", "--entity-name", "configured"];
    let alter = [
        &topic[..],
        &[
            "--alter",
            "--add-config",
            "retention.ms=5000,cleanup.policy=[compact,delete]",
        ],
    ];
    ensure!(configs(&alter.concat())?.contains("Completed updating config"));
    let described = configs(&[&topic[..], &["--describe"]].concat())?;
    ensure!(described.contains("retention.ms=5000"), "{described}");
    ensure!(
        described.contains("cleanup.policy=compact,delete"),
        "{described}"
    );
    ensure!(
        described.contains("DYNAMIC_TOPIC_CONFIG:retention.ms=5000"),
        "{described}"
    );
    configs(&[&topic[..], &["--alter", "--delete-config", "retention.ms"]].concat())?;
    let everything = configs(&[&topic[..], &["--describe", "--all"]].concat())?;
    ensure!(
        everything.contains("retention.ms=604800000"),
        "{everything}"
    );
    let broker = configs(&[
        "--entity-type",
        "brokers",
        "--entity-name",
        "1",
        "--describe",
        "--all",
    ])?;
    ensure!(
        broker.contains("offsets.topic.num.partitions=4"),
        "{broker}"
    );
    Ok(())
}

#[test]
fn console_clients_carry_keys_headers_and_nulls_and_offset_tools_agree() -> Result<()> {
    let server = Server::start()?;
    let bootstrap = server.bootstrap();
    create(&bootstrap, "talk", 1)?;
    let input = "h1:v1,h2:v2\tkey-1\tvalue-1\nh1:\tkey-2\tvalue-2\nh1:x\tkey-3\tNULL\n";
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let arguments = [
            "--bootstrap-server",
            &bootstrap,
            "--topic",
            "talk",
            "--compression-codec",
            codec,
            "--reader-property",
            "parse.key=true",
            "--reader-property",
            "parse.headers=true",
            "--reader-property",
            "null.marker=NULL",
        ];
        kafka::CONSOLE_PRODUCER.succeed(&arguments, input)?;
    }
    let arguments = [
        "--bootstrap-server",
        &bootstrap,
        "--topic",
        "talk",
        "--from-beginning",
        "--max-messages",
        "15",
        "--group",
        "talkers",
        "--timeout-ms",
        "30000",
        "--formatter-property",
        "print.key=true",
        "--formatter-property",
        "print.headers=true",
        "--formatter-property",
        "print.offset=true",
        "--formatter-property",
        "null.literal=nothing",
    ];
    let consumed = kafka::CONSOLE_CONSUMER.succeed(&arguments, "")?;
    let consumed = lines(&consumed);
    assert_eq!(consumed.len(), 15);
    assert_eq!(consumed[0], "Offset:0\th1:v1,h2:v2\tkey-1\tvalue-1");
    assert_eq!(consumed[1], "Offset:1\th1:\tkey-2\tvalue-2");
    assert_eq!(consumed[14], "Offset:14\th1:x\tkey-3\tnothing");

    let offsets = |time: &str| {
        kafka::GET_OFFSETS.succeed(&at(&bootstrap, &["--topic", "talk", "--time", time]), "")
    };
    assert_eq!(offsets("latest")?.trim(), "talk:0:15");
    assert_eq!(offsets("earliest")?.trim(), "talk:0:0");
    assert_eq!(offsets("earliest-local")?.trim(), "talk:0:0");
    ensure!(offsets("max-timestamp")?.trim().starts_with("talk:0:1"));
    let file = tempfile::NamedTempFile::new()?;
    let json = r#"{"partitions": [{"topic": "talk", "partition": 0, "offset": 4}], "version": 1}"#;
    std::fs::write(file.path(), json)?;
    let path = file.path().display().to_string();
    let deleted =
        kafka::DELETE_RECORDS.succeed(&at(&bootstrap, &["--offset-json-file", &path]), "")?;
    ensure!(
        deleted.contains("partition: talk-0") && deleted.contains("low_watermark: 4"),
        "{deleted}"
    );
    assert_eq!(offsets("earliest")?.trim(), "talk:0:4");
    let dirs = kafka::LOG_DIRS.succeed(
        &at(
            &bootstrap,
            &["--describe", "--topic-list", "talk", "--broker-list", "1"],
        ),
        "",
    )?;
    let json = lines(&dirs)
        .into_iter()
        .find(|line| line.starts_with('{'))
        .context("no JSON")?
        .to_owned();
    let json: serde_json::Value = serde_json::from_str(&json)?;
    let partition = &json["brokers"][0]["logDirs"][0]["partitions"][0];
    assert_eq!(partition["partition"], "talk-0", "{json}");
    ensure!(
        partition["size"].as_i64().is_some_and(|size| size > 0),
        "{json}"
    );
    Ok(())
}

#[test]
fn kafka_broker_api_versions_knows_every_api() -> Result<()> {
    let server = Server::start()?;
    let text =
        kafka::BROKER_API_VERSIONS.succeed(&["--bootstrap-server", &server.bootstrap()], "")?;
    ensure!(text.contains("id: 1 rack: null"), "{text}");
    for api in [
        "Produce(0)",
        "Fetch(1)",
        "Metadata(3)",
        "JoinGroup(11)",
        "ApiVersions(18)",
        "InitProducerId(22)",
    ] {
        let line = text
            .lines()
            .find(|line| line.contains(api))
            .with_context(|| format!("no {api} in {text}"))?;
        ensure!(line.contains("usable"), "{line}");
    }
    ensure!(!text.contains("UNKNOWN("), "{text}");
    let id = kafka::CLUSTER.succeed(
        &["cluster-id", "--bootstrap-server", &server.bootstrap()],
        "",
    )?;
    ensure!(id.contains("Cluster ID:"), "{id}");
    Ok(())
}

#[test]
fn performance_tools_move_every_record() -> Result<()> {
    let server = Server::start()?;
    let bootstrap = server.bootstrap();
    create(&bootstrap, "perf", 6)?;
    let produced = kafka::PRODUCER_PERF_TEST.succeed(
        &[
            "--topic",
            "perf",
            "--num-records",
            "50000",
            "--record-size",
            "512",
            "--throughput",
            "-1",
            "--bootstrap-server",
            &bootstrap,
            "--command-property",
            "acks=all",
            "--command-property",
            "compression.type=lz4",
        ],
        "",
    )?;
    ensure!(produced.contains("50000 records sent"), "{produced}");
    let consumed = kafka::CONSUMER_PERF_TEST.succeed(
        &[
            "--topic",
            "perf",
            "--num-records",
            "50000",
            "--bootstrap-server",
            &bootstrap,
            "--timeout",
            "30000",
        ],
        "",
    )?;
    let row = lines(&consumed).pop().context("no row")?.to_owned();
    ensure!(
        row.split(',').any(|field| field.trim() == "50000"),
        "{consumed}"
    );
    let latency = kafka::E2E_LATENCY.succeed(
        &at(
            &bootstrap,
            &[
                "--topic",
                "latency",
                "--num-records",
                "200",
                "--producer-acks",
                "all",
                "--record-size",
                "100",
            ],
        ),
        "",
    )?;
    ensure!(latency.contains("Percentiles: 50th"), "{latency}");
    Ok(())
}

#[test]
fn verifiable_clients_agree_on_what_was_acknowledged() -> Result<()> {
    let server = Server::start()?;
    let bootstrap = server.bootstrap();
    create(&bootstrap, "vouched", 2)?;
    let produced = kafka::VERIFIABLE_PRODUCER.succeed(
        &at(
            &bootstrap,
            &[
                "--topic",
                "vouched",
                "--max-messages",
                "500",
                "--acks",
                "-1",
            ],
        ),
        "",
    )?;
    ensure!(produced.contains(r#""acked":500"#), "{produced}");
    assert_eq!(produced.matches("producer_send_success").count(), 500);
    let consumed = kafka::VERIFIABLE_CONSUMER.succeed(
        &at(
            &bootstrap,
            &[
                "--topic",
                "vouched",
                "--group-id",
                "vouchers",
                "--reset-policy",
                "earliest",
                "--max-messages",
                "500",
            ],
        ),
        "",
    )?;
    assert_eq!(kafka::records_consumed(&consumed), 500, "{consumed}");
    ensure!(
        consumed.contains(r#""name":"offsets_committed""#),
        "{consumed}"
    );
    ensure!(!consumed.contains(r#""success":false"#), "{consumed}");
    Ok(())
}

#[test]
fn kafka_consumer_groups_lists_describes_resets_and_deletes() -> Result<()> {
    let server = Server::start()?;
    let bootstrap = server.bootstrap();
    let groups =
        |arguments: &[&str]| kafka::CONSUMER_GROUPS.succeed(&at(&bootstrap, arguments), "");
    let mut wire = server.connect()?;
    let topic = compat_tests::requests::create_topic(&mut wire, "grouped", 1, &[])?;
    let batch = compat_tests::batches::BatchSpec::small(9, 1_790_000_000_000).build()?;
    compat_tests::requests::produce_ok(&mut wire, &topic, 0, batch)?;
    // Nobody beats for it while the tools start, which takes its time on a busy machine.
    let patient = |request: kafka_protocol::messages::JoinGroupRequest| {
        request.with_session_timeout_ms(120_000)
    };
    let joining = Member::start_join_with(server.address(), "tooled", "range", patient)?;
    let mut member = joining.finish()?;
    // One version, one topic with partition 0, no user data: what a consumer's assignment looks like.
    member.sync(&[(
        &member.id.clone(),
        b"\0\x01\0\0\0\x01\0\x07grouped\0\0\0\x01\0\0\0\0\xff\xff\xff\xff",
    )])?;
    member.commit(&[("grouped", 0, 4)])?;
    assert_eq!(lines(&groups(&["--list"])?), ["tooled"]);
    let described = groups(&["--describe", "--group", "tooled"])?;
    let row = described
        .lines()
        .find(|line| line.contains("grouped"))
        .context("no row")?;
    let fields: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(
        fields[..6],
        ["tooled", "grouped", "0", "4", "9", "5"],
        "{described}"
    );
    ensure!(groups(&["--describe", "--group", "tooled", "--state"])?.contains("Stable"));
    member.leave()?;
    let reset = [
        "--reset-offsets",
        "--group",
        "tooled",
        "--topic",
        "grouped",
        "--to-earliest",
        "--execute",
    ];
    groups(&reset)?;
    assert_eq!(
        compat_tests::groups::committed(&mut wire, "tooled", "grouped", 0)?.0,
        0
    );
    ensure!(groups(&["--delete", "--group", "tooled"])?.contains("successful"));
    assert_eq!(lines(&groups(&["--list"])?), [""; 0]);
    Ok(())
}
