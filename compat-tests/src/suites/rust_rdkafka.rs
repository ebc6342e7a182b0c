//! The `rdkafka` crate, the Rust client over librdkafka. It wants broker 0 on port 9092.

use std::time::Duration;

use super::rust_crate::{self, Crate};
use super::{Brokers, Short, Suite};

const TESTS: Crate = Crate {
    name: "rdkafka",
    version: "0.39.0",
    update: &[],
    targets: &["--tests"],
};

/// The suite.
pub const SUITE: Suite = Suite {
    name: "rust-rdkafka",
    about: "rdkafka 0.39.0 (librdkafka 2.12.1)",
    exceptions: include_str!("../../suites/rust-rdkafka.txt"),
    brokers: Brokers {
        count: 1,
        first_id: 0,
    },
    properties: &[("num.partitions", "3")],
    bound: Duration::from_secs(400),
    at_least: 68,
    short: Short::Nothing,
    prepare: |preparation| rust_crate::prepare(preparation, &TESTS),
    run: |session| {
        let bootstrap = session.bootstrap();
        rust_crate::run(session, &[("KAFKA_HOST", bootstrap.as_str())])
    },
    ..Suite::PLAIN
};
