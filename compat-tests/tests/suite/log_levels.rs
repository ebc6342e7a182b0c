//! Log levels that are changed while a broker runs (KIP-412), by Kafka's tool and in a cluster.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use compat_tests::broker::Broker;
use compat_tests::cluster::{Cluster, Product};
use compat_tests::kafka::CONFIGS;
use compat_tests::wire::{Wire, text};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::{DescribeConfigsRequest, IncrementalAlterConfigsRequest};

const BROKER: i8 = 4;
const BROKER_LOGGER: i8 = 8;

#[test]
fn kafka_configs_changes_log_levels_while_the_broker_runs() -> Result<()> {
    let mut broker = Broker::start()?;
    let bootstrap = broker.bootstrap();
    let configs = |arguments: &[&str]| {
        let loggers = ["--entity-type", "broker-loggers", "--entity-name", "1"];
        let at = ["--bootstrap-server", bootstrap.as_str()];
        CONFIGS.run(&[&at[..], &loggers, arguments].concat(), "")
    };
    let said = "connection closed";
    ensure!(
        !broker.process().log_text().contains(said),
        "it is said before"
    );
    let altered = configs(&["--alter", "--add-config", "odradek.server=DEBUG"])?;
    ensure!(altered.success, "{}", altered.both());
    let described = configs(&["--describe"])?;
    for expected in [
        "root=INFO",
        "odradek.server=DEBUG",
        "odradek.groups=INFO",
        "openraft=ERROR",
    ] {
        ensure!(
            described.stdout.contains(expected),
            "{expected}: {}",
            described.both()
        );
    }
    ensure!(
        broker.process().log_text().contains(said),
        "{}",
        broker.process().log_tail()
    );
    let refused = configs(&["--alter", "--add-config", "odradek.nowhere=DEBUG"])?;
    ensure!(!refused.success, "{}", refused.both());
    let back = configs(&["--alter", "--delete-config", "odradek.server"])?;
    ensure!(back.success, "{}", back.both());
    let described = configs(&["--describe"])?;
    ensure!(
        described.stdout.contains("odradek.server=INFO"),
        "{}",
        described.both()
    );
    Ok(())
}

fn resource(kind: i8, name: &str, key: &str, value: &str) -> AlterConfigsResource {
    let config = AlterableConfig::default()
        .with_name(text(key))
        .with_value(Some(text(value)));
    AlterConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configs(vec![config])
}

/// A setting of a resource as this node shows it.
fn shown(wire: &mut Wire, kind: i8, name: &str, key: &str) -> Result<String> {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configuration_keys(Some(vec![text(key)]));
    let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
    let answer = wire.call(4, &request)?;
    let result = answer.results.first().context("no result")?;
    ensure!(result.error_code == 0, "{result:?}");
    let config = result.configs.first().context("no such setting")?;
    Ok(config.value.as_deref().unwrap_or_default().to_owned())
}

#[test]
fn every_node_changes_its_own_levels_and_passes_on_what_else_is_asked() -> Result<()> {
    let mut cluster = Cluster::options(Product::Odradek, 3).start()?;
    cluster.await_members(Duration::from_secs(60))?;
    let addresses = cluster.addresses();
    for (node, address) in (1..).zip(&addresses) {
        let mut wire = Wire::connect(*address)?;
        let (name, delay) = (node.to_string(), (50_000 + node).to_string());
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![
            resource(BROKER_LOGGER, &name, "odradek.txn", "DEBUG"),
            resource(BROKER, "", "log.segment.delete.delay.ms", &delay),
            resource(BROKER_LOGGER, "9", "odradek.txn", "DEBUG"),
        ]);
        let answer = wire.call(1, &request)?;
        let codes: Vec<i16> = answer.responses.iter().map(|it| it.error_code).collect();
        const INVALID_REQUEST: i16 = 42;
        assert_eq!(codes, [0, 0, INVALID_REQUEST], "{answer:?}");
        let level = shown(&mut wire, BROKER_LOGGER, &name, "odradek.txn")?;
        assert_eq!(level, "DEBUG");
        for (other, address) in (node + 1..).zip(addresses.iter().skip(node)) {
            let mut wire = Wire::connect(*address)?;
            let level = shown(&mut wire, BROKER_LOGGER, &other.to_string(), "odradek.txn")?;
            assert_eq!(level, "INFO", "node {other}");
        }
        let known = shown(&mut wire, BROKER, "", "log.segment.delete.delay.ms")?;
        assert_eq!(known, delay, "node {node}");
    }
    Ok(())
}
