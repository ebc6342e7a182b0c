//! kafka-go, the Go client of Segment. It wants a broker that calls itself `localhost:9092`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use super::go::{self, Package};
use super::{NodePlace, Preparation, Session, Short, Suite, TestResult};

const PACKAGES: &[Package] = &[
    Package::at("."),
    Package {
        directory: "sasl",
        prefix: "sasl/",
    },
    Package {
        directory: "topics",
        prefix: "topics/",
    },
];

/// The suite.
pub const SUITE: Suite = Suite {
    name: "kafka-go",
    about: "kafka-go 0.4.51: root package, sasl and topics",
    exceptions: include_str!("../../suites/kafka-go.txt"),
    properties: &[
        ("num.partitions", "1"),
        ("message.max.bytes", "200000000"),
        ("group.initial.rebalance.delay.ms", "3000"),
    ],
    properties_of: advertised,
    bound: Duration::from_secs(9 * 60),
    at_least: 490,
    short: Short::Nothing,
    prepare,
    run,
    ..Suite::PLAIN
};

fn advertised(place: &NodePlace) -> Vec<(String, String)> {
    vec![(
        "advertised.listeners".to_owned(),
        format!("PLAINTEXT://localhost:{}", place.port),
    )]
}

fn prepare(preparation: &Preparation) -> Result<PathBuf> {
    let module = ("kafka-go", "github.com/segmentio/kafka-go", "v0.4.51");
    go::prepare(preparation, module, &[], PACKAGES)
}

fn run(session: &Session) -> Result<Vec<TestResult>> {
    let environment = [
        // The newest version that its conditions know; it is what its authors' own runs say.
        ("KAFKA_VERSION", "3.7.0"),
        ("KAFKA_SKIP_NETTEST", "1"),
    ];
    go::run(session, PACKAGES, None, &environment)
}
