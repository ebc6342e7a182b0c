//! Client metrics (KIP-714), compared with Kafka: subscriptions, who gets which, and what becomes of pushes.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use compat_tests::comparison::compare_with_plugin;
use compat_tests::transcript::Probe;
use compat_tests::wire::text;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::{
    AlterConfigsRequest, DescribeConfigsRequest, GetTelemetrySubscriptionsRequest,
    IncrementalAlterConfigsRequest, ListConfigResourcesRequest, PushTelemetryRequest,
    alter_configs_request,
};
use uuid::Uuid;

const CLIENT_METRICS: i8 = 16;
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

/// An `opentelemetry.proto.metrics.v1.MetricsData` with one empty part.
const METRICS: &[u8] = &[0x0a, 0];

fn compare(case: &str, script: impl Fn(&mut Probe) -> Result<()> + Sync) -> Result<()> {
    let plugin = (
        "kafka/TelemetryPlugin.java",
        ("metric.reporters", "TelemetryPlugin"),
    );
    compare_with_plugin(case, &[("telemetry.max.bytes", "1000")], plugin, script)
}

fn change(name: &str, changes: &[(&str, i8, Option<&str>)]) -> IncrementalAlterConfigsRequest {
    let changes = changes.iter();
    let configs = changes
        .map(|(key, operation, value)| {
            AlterableConfig::default()
                .with_name(text(key))
                .with_config_operation(*operation)
                .with_value(value.map(text))
        })
        .collect();
    let resource = AlterConfigsResource::default()
        .with_resource_type(CLIENT_METRICS)
        .with_resource_name(text(name))
        .with_configs(configs);
    IncrementalAlterConfigsRequest::default().with_resources(vec![resource])
}

fn describe(name: &str) -> DescribeConfigsRequest {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(CLIENT_METRICS)
        .with_resource_name(text(name))
        .with_configuration_keys(None);
    DescribeConfigsRequest::default()
        .with_resources(vec![resource])
        .with_include_synonyms(true)
}

fn list() -> ListConfigResourcesRequest {
    ListConfigResourcesRequest::default().with_resource_types(vec![CLIENT_METRICS])
}

#[test]
fn client_metrics_subscriptions() -> Result<()> {
    compare("client_metrics_subscriptions", |probe| {
        probe.sort("results[].configs", "name");
        probe.sort("config_resources", "resource_name");
        for (label, name, changes) in [
            (
                "all keys",
                "s",
                &[
                    ("metrics", SET, Some("a.,b.")),
                    ("interval.ms", SET, Some("100")),
                    ("match", SET, Some("client_id=x.*, client_source_port=1")),
                ][..],
            ),
            (
                "an interval alone",
                "t",
                &[("interval.ms", SET, Some("3600000"))],
            ),
            ("append", "s", &[("metrics", APPEND, Some("c."))]),
            (
                "append what is there",
                "s",
                &[("metrics", APPEND, Some("c."))],
            ),
            ("subtract", "s", &[("metrics", SUBTRACT, Some("a."))]),
            (
                "append to what is not set",
                "t",
                &[("metrics", APPEND, Some("z."))],
            ),
            (
                "append to a number",
                "s",
                &[("interval.ms", APPEND, Some("1"))],
            ),
            ("too short", "s", &[("interval.ms", SET, Some("99"))]),
            ("too long", "s", &[("interval.ms", SET, Some("3600001"))]),
            ("no number", "s", &[("interval.ms", SET, Some("often"))]),
            ("an unknown key", "s", &[("colour", SET, Some("red"))]),
            ("an unknown key back", "s", &[("colour", DELETE, None)]),
            (
                "an unknown attribute",
                "s",
                &[("match", SET, Some("colour=red"))],
            ),
            ("no attribute", "s", &[("match", SET, Some("red"))]),
            ("no expression", "s", &[("match", SET, Some("client_id="))]),
            (
                "two expressions",
                "s",
                &[("match", SET, Some("client_id=a=b"))],
            ),
            (
                "an open bracket",
                "s",
                &[("match", SET, Some("client_id=("))],
            ),
            ("blanks", "s", &[("metrics", SET, Some(" x. , y."))]),
            ("everything", "s", &[("metrics", SET, Some("*"))]),
            ("nothing", "s", &[("metrics", SET, Some(""))]),
            ("no name", "", &[("metrics", SET, Some("a."))]),
            (
                "keys back",
                "s",
                &[("metrics", DELETE, None), ("match", DELETE, None)],
            ),
            ("the last key back", "s", &[("interval.ms", DELETE, None)]),
        ] {
            probe.ask(label, 1, &change(name, changes))?;
            probe.settle();
            probe.ask(&format!("{label}, s"), 4, &describe("s"))?;
            probe.ask(&format!("{label}, t"), 4, &describe("t"))?;
            probe.ask(&format!("{label}, all"), 1, &list())?;
        }
        probe.ask("no name", 4, &describe(""))?;
        probe.ask(
            "by the first version",
            0,
            &ListConfigResourcesRequest::default(),
        )?;
        let all = alter_configs_request::AlterConfigsResource::default()
            .with_resource_type(CLIENT_METRICS)
            .with_resource_name(text("t"))
            .with_configs(vec![
                alter_configs_request::AlterableConfig::default()
                    .with_name(text("metrics"))
                    .with_value(Some(text("q."))),
            ]);
        let all = AlterConfigsRequest::default().with_resources(vec![all]);
        probe.ask("all at once", 2, &all)?;
        probe.settle();
        probe.ask("all at once, t", 4, &describe("t"))?;
        Ok(())
    })
}

fn id(client: u8) -> Uuid {
    Uuid::from_bytes([client; 16])
}

fn ask(client: Uuid) -> GetTelemetrySubscriptionsRequest {
    GetTelemetrySubscriptionsRequest::default().with_client_instance_id(client)
}

fn push(client: Uuid, subscription_id: i32, metrics: &[u8]) -> PushTelemetryRequest {
    PushTelemetryRequest::default()
        .with_client_instance_id(client)
        .with_subscription_id(subscription_id)
        .with_metrics(Bytes::copy_from_slice(metrics))
}

/// Asks as a client for the first time; the id of its subscription.
fn subscribed(probe: &mut Probe, client: Uuid) -> Result<i32> {
    let answer = probe.ask("a new client", 0, &ask(client))?;
    Ok(answer.context("no subscription")?.subscription_id)
}

fn gzip(metrics: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(metrics)?;
    Ok(encoder.finish()?)
}

#[test]
fn client_metrics_of_clients() -> Result<()> {
    compare("client_metrics_of_clients", |probe| {
        probe.sort("requested_metrics", "");
        subscribed(probe, id(1))?;
        let set = |probe: &mut Probe, key: &str, value: &str| -> Result<()> {
            probe.ask("set", 1, &change("s", &[(key, SET, Some(value))]))?;
            std::thread::sleep(Duration::from_millis(500));
            Ok(())
        };
        set(probe, "metrics", "org.apache.kafka.producer.")?;
        set(probe, "interval.ms", "3600000")?;
        let anonymous = probe.prepare(0, &ask(Uuid::nil()))?;
        let given = format!(
            "given an id: {}, error {}, every {} ms",
            !anonymous.client_instance_id.is_nil(),
            anonymous.error_code,
            anonymous.push_interval_ms
        );
        probe.note_answer::<GetTelemetrySubscriptionsRequest>(
            "a client without an id",
            0,
            given,
        )?;

        let subscription = subscribed(probe, id(2))?;
        probe.ask("again", 0, &ask(id(2)))?;
        probe.ask(
            "of no subscription",
            0,
            &push(id(2), subscription ^ 1, METRICS),
        )?;
        probe.ask("again after that", 0, &ask(id(2)))?;
        probe.ask("too early", 0, &push(id(2), subscription, METRICS))?;
        probe.ask("never asked", 0, &push(id(3), 0, METRICS))?;
        probe.ask("never asked, now", 0, &ask(id(3)))?;
        probe.ask("nobody", 0, &push(Uuid::nil(), subscription, METRICS))?;
        probe.ask(
            "a reserved id",
            0,
            &push(Uuid::from_u128(1), subscription, METRICS),
        )?;

        let mut client = 10;
        for (label, codec, metrics) in [
            ("as it is", 0, METRICS.to_vec()),
            ("nothing", 0, vec![]),
            ("gzip", 1, gzip(METRICS)?),
            ("zstd", 4, zstd::encode_all(METRICS, 3)?),
            ("nonsense", 0, b"nonsense".to_vec()),
            ("gzip of nonsense", 1, gzip(b"nonsense")?),
            ("nonsense as gzip", 1, b"nonsense".to_vec()),
            ("nonsense as zstd", 4, b"nonsense".to_vec()),
            ("too large", 0, vec![0; 1_001]),
            (
                "expands too far",
                4,
                zstd::encode_all(&METRICS.repeat(100_000)[..], 3)?,
            ),
            ("a codec too high", 5, METRICS.to_vec()),
            ("a codec below zero", -1, METRICS.to_vec()),
        ] {
            client += 1;
            let subscription = subscribed(probe, id(client))?;
            let request = push(id(client), subscription, &metrics).with_compression_type(codec);
            probe.ask(label, 0, &request)?;
            probe.ask(&format!("asking after {label}"), 0, &ask(id(client)))?;
        }

        let subscription = subscribed(probe, id(30))?;
        probe.ask("first", 0, &push(id(30), subscription, METRICS))?;
        let last = push(id(30), subscription, METRICS).with_terminating(true);
        probe.ask("last, early", 0, &last)?;
        probe.ask("after the last", 0, &push(id(30), subscription, METRICS))?;
        probe.ask("after that", 0, &push(id(30), subscription, METRICS))?;

        let subscription = subscribed(probe, id(31))?;
        set(probe, "metrics", "*")?;
        probe.ask(
            "of an old subscription",
            0,
            &push(id(31), subscription, METRICS),
        )?;
        let subscription = subscribed(probe, id(31))?;
        probe.ask("of the new one", 0, &push(id(31), subscription, METRICS))?;

        set(probe, "interval.ms", "100")?;
        let subscription = subscribed(probe, id(32))?;
        for _ in 0..3 {
            probe.ask("at its interval", 0, &push(id(32), subscription, METRICS))?;
            std::thread::sleep(Duration::from_millis(150));
        }

        let mut client = 40;
        for pattern in [
            "client_id=odradek-tests",
            "client_id=odradek",
            "client_id=odradek.*,client_software_name=unknown",
            "client_software_version=unknown",
            "client_source_address=127\\.0\\.0\\..*",
            "client_source_port=[0-9]+",
            "client_source_port=0",
            "client_instance_id=[A-Za-z0-9_-]{22}",
        ] {
            set(probe, "match", pattern)?;
            client += 1;
            probe.ask(pattern, 0, &ask(id(client)))?;
        }
        // Kafka knows of a connection the client that it last heard of by it.
        probe.reconnect();
        std::thread::sleep(Duration::from_millis(500));
        probe.ask("known, by another connection", 0, &ask(id(client)))?;
        Ok(())
    })
}
