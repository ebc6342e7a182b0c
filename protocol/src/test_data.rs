//! The cases of `testdata/kafka_batches.txt`, which Apache Kafka wrote (see `GoldenBatches.java`
//! beside it).

use bytes::Bytes;

/// A batch, and what Kafka's validation says to it.
pub(crate) struct KafkaCase {
    pub(crate) name: String,
    pub(crate) version: i16,
    pub(crate) compacted: bool,
    pub(crate) append_time: bool,
    pub(crate) batch: Bytes,
    /// `ok` or the name of an error code.
    pub(crate) answer: String,
    pub(crate) fault_indexes: Vec<i32>,
    pub(crate) max_timestamp: i64,
    /// As it would be appended at offset 1000 in epoch 7.
    pub(crate) appended: Vec<u8>,
}

pub(crate) fn kafka_cases() -> Vec<KafkaCase> {
    let cases: Vec<KafkaCase> = include_str!("../testdata/kafka_batches.txt")
        .lines()
        .map(parse)
        .collect();
    assert!(cases.len() > 80);
    cases
}

pub(crate) fn kafka_case(name: &str) -> KafkaCase {
    kafka_cases()
        .into_iter()
        .find(|case| case.name == name)
        .unwrap_or_else(|| panic!("no case {name}"))
}

fn parse(line: &str) -> KafkaCase {
    let fields: Vec<&str> = line.split(' ').collect();
    let answer = fields[5].to_owned();
    let ok = answer == "ok";
    let detail = fields.get(6).copied().unwrap_or_default();
    KafkaCase {
        name: fields[0].to_owned(),
        version: fields[1].parse().expect("a version"),
        compacted: fields[2] == "compacted",
        append_time: fields[3] == "append",
        batch: unhex(fields[4]).into(),
        fault_indexes: if ok {
            Vec::new()
        } else {
            detail
                .split(',')
                .filter_map(|index| index.parse().ok())
                .collect()
        },
        max_timestamp: if ok {
            detail.parse().expect("a timestamp")
        } else {
            -1
        },
        appended: unhex(fields.get(7).copied().unwrap_or_default()),
        answer,
    }
}

fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex"))
        .collect()
}
