//! rskafka, the minimal Rust client of InfluxData.

use std::time::Duration;

use super::rust_crate::{self, Crate};
use super::{Short, Suite};

const TESTS: Crate = Crate {
    name: "rskafka",
    version: "0.6.0",
    update: &["rsasl"],
    targets: &[
        "--features=full",
        "--test=client",
        "--test=consumer",
        "--test=produce_consume",
        "--test=producer",
    ],
};

/// The suite. Of its tests 17 pass without doing anything: those with SASL, SOCKS 5 and a Java client.
pub const SUITE: Suite = Suite {
    name: "rskafka",
    about: "rskafka 0.6.0: client, consumer, producer, produce_consume",
    exceptions: include_str!("../../suites/rskafka.txt"),
    // One of its tests asks for a partition that must not appear.
    properties: &[("auto.create.topics.enable", "false")],
    bound: Duration::from_secs(300),
    at_least: 59,
    short: Short::Nothing,
    prepare: |preparation| rust_crate::prepare(preparation, &TESTS),
    run: |session| {
        let bootstrap = session.bootstrap();
        let environment = [
            ("TEST_INTEGRATION", "1"),
            ("TEST_BROKER_IMPL", "kafka"),
            ("KAFKA_CONNECT", bootstrap.as_str()),
        ];
        rust_crate::run(session, &environment)
    },
    ..Suite::PLAIN
};
