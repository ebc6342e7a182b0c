//! Client metrics (KIP-714): Kafka's tools for subscriptions, and clients that push by themselves.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use compat_tests::broker::Broker;
use compat_tests::kafka;
use compat_tests::ports::free_port;
use compat_tests::requests::create_topic;
use rdkafka::config::ClientConfig;
use rdkafka::producer::{BaseProducer, Producer};

/// How long a client may take to have pushed.
const PATIENCE: Duration = Duration::from_secs(30);
const TOPIC: &str = "measured";

/// A broker with a metrics endpoint, and where that is.
fn start() -> Result<(Broker, String)> {
    let endpoint = format!("127.0.0.1:{}", free_port());
    let broker = Broker::options().set("odradek.http.listener", &endpoint);
    Ok((broker.start()?, endpoint))
}

/// What the endpoint shows.
fn scrape(endpoint: &str) -> Result<String> {
    let mut stream = TcpStream::connect(endpoint)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok(page)
}

/// Waits for a line that begins and goes on so; the last page.
fn wait_for(endpoint: &str, name: &str, within: &[&str]) -> Result<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let page = scrape(endpoint)?;
        let mut lines = page.lines();
        if lines.any(|line| line.starts_with(name) && within.iter().all(|part| line.contains(part)))
        {
            return Ok(page);
        }
        ensure!(
            Instant::now() < deadline,
            "no {name} with {within:?} in\n{page}"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A broker with a topic to write to, and a subscription that asks for something twice a second.
fn subscribed(subscription: &[&str]) -> Result<(Broker, String)> {
    let (broker, endpoint) = start()?;
    create_topic(&mut broker.connect()?, TOPIC, 1, &[])?;
    let often = ["--alter", "--name", "often", "--interval", "500"];
    let bootstrap = broker.bootstrap();
    let arguments = [&often, subscription].concat();
    kafka::CLIENT_METRICS.succeed(&at(&bootstrap, &arguments), "")?;
    Ok((broker, endpoint))
}

fn at<'a>(bootstrap: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
    [&["--bootstrap-server", bootstrap][..], arguments].concat()
}

#[test]
fn kafka_client_metrics_and_kafka_configs_keep_subscriptions() -> Result<()> {
    let (mut broker, _) = start()?;
    let bootstrap = broker.bootstrap();
    let metrics =
        |arguments: &[&str]| kafka::CLIENT_METRICS.succeed(&at(&bootstrap, arguments), "");
    let subscription = ["--name", "of-producers"];
    let alter = [
        "--alter",
        "--metrics",
        "org.apache.kafka.producer.",
        "--interval",
        "5000",
        "--match",
        "client_id=a.*",
    ];
    metrics(&[&subscription[..], &alter].concat())?;
    let described = metrics(&[&subscription[..], &["--describe"]].concat())?;
    for expected in [
        "interval.ms=5000",
        "match=client_id=a.*",
        "metrics=org.apache.kafka.producer.",
    ] {
        ensure!(described.contains(expected), "{expected}: {described}");
    }
    let configs = |arguments: &[&str]| kafka::CONFIGS.run(&at(&bootstrap, arguments), "");
    let entity = [
        "--entity-type",
        "client-metrics",
        "--entity-name",
        "of-producers",
    ];
    let altered = configs(
        &[
            &entity[..],
            &["--alter", "--add-config", "interval.ms=6000"],
        ]
        .concat(),
    )?;
    ensure!(altered.success, "{}", altered.both());
    let refused = configs(&[&entity[..], &["--alter", "--add-config", "interval.ms=6"]].concat())?;
    ensure!(
        !refused.success
            && refused
                .both()
                .contains("interval must be between 100 and 3600000"),
        "{}",
        refused.both()
    );
    // They outlive the broker.
    broker.restart()?;
    let described = configs(&[&entity[..], &["--describe"]].concat())?;
    ensure!(
        described.stdout.contains("interval.ms=6000"),
        "{}",
        described.both()
    );
    ensure!(metrics(&["--list"])?.trim() == "of-producers");
    metrics(&[&subscription[..], &["--delete"]].concat())?;
    ensure!(metrics(&["--list"])?.trim().is_empty());
    Ok(())
}

#[test]
fn kafkas_producer_pushes_what_is_subscribed_to_and_it_is_shown() -> Result<()> {
    let (broker, endpoint) = subscribed(&["--metrics", "*"])?;
    let bootstrap = broker.bootstrap();
    let home = tempfile::tempdir()?;
    let mut producer = kafka::PRODUCER_PERF_TEST.start(
        &[
            "--topic",
            TOPIC,
            "--num-records",
            "1000000",
            "--record-size",
            "100",
            "--throughput",
            "200",
            "--bootstrap-server",
            &bootstrap,
            "--command-property",
            "client.id=measured-producer",
        ],
        &home.path().join("producer.log"),
    )?;
    let of_producer = ["client_id=\"measured-producer\"", "client_instance_id=\""];
    let sent = "kafka_client_producer_record_send_total{";
    let page = wait_for(&endpoint, sent, &of_producer)?;
    ensure!(
        page.contains("\nodradek_telemetry_pushes_total{result=\"taken\"}"),
        "{page}"
    );
    // It says that it is done, and its last values stay for a while.
    producer.terminate(Duration::from_secs(20))?;
    wait_for(&endpoint, sent, &of_producer)?;
    Ok(())
}

#[test]
fn librdkafka_pushes_what_is_subscribed_to_and_it_is_shown() -> Result<()> {
    let (broker, endpoint) = subscribed(&[
        "--metrics",
        "org.apache.kafka.producer.",
        "--match",
        "client_software_name=librdkafka,client_id=measured.*",
    ])?;
    let bootstrap = broker.bootstrap();
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", &bootstrap)
        .set("client.id", "measured-by-librdkafka")
        .create()?;
    let unmeant: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", &bootstrap)
        .set("client.id", "another")
        .create()?;
    for producer in [&producer, &unmeant] {
        let record = rdkafka::producer::BaseRecord::<str, str>::to(TOPIC).payload("x");
        producer.send(record).map_err(|(error, _)| error)?;
        producer.flush(PATIENCE)?;
    }
    let page = wait_for(
        &endpoint,
        "kafka_client_producer_connection_creation_total{",
        &["client_id=\"measured-by-librdkafka\""],
    )?;
    ensure!(!page.contains("client_id=\"another\""), "{page}");
    Ok(())
}
