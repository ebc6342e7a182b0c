//! Where answers to random requests differ from Kafka's on purpose, each with its reason.
//!
//! `docs/PROTOCOL.md` prints the list, and a test compares the two.

use super::Asked;
use crate::tree::{Difference, Node};

/// One kind of difference.
#[derive(Clone, Copy, Debug)]
pub struct Tolerated {
    /// The API.
    pub api: &'static str,
    /// Where in the answer; everything below it is included.
    pub path: &'static str,
    /// What Odradek has there; empty for anything.
    pub ours: &'static str,
    /// What Kafka has there; empty for anything.
    pub kafka: &'static str,
    /// What the request has in it; empty for any.
    pub asked: &'static str,
    /// The two have gone different ways, so that the rest of the session says nothing.
    pub diverges: bool,
    /// Why.
    pub reason: &'static str,
}

/// Every kind that is known.
pub const TOLERATED: &[Tolerated] = &[
    answer(
        "Produce",
        "responses[].partition_responses[].error_code",
        ["21", ""],
        "acks: 2",
        "Impossible acks are refused before it is looked whether the topic is there.",
    ),
    answer(
        "Produce",
        "responses[].partition_responses[].error_code",
        ["87", ""],
        "\"keys\":\"null\"",
        "What is in a batch is looked at before its producer and its transaction are; either way it is refused.",
    ),
    answer(
        "Produce",
        "responses[].partition_responses[].record_errors",
        ["", ""],
        "\"keys\":\"null\"",
        "What is in a batch is looked at before its producer and its transaction are; either way it is refused.",
    ),
    answer(
        "Produce",
        "responses[].partition_responses[].error_message",
        ["", ""],
        "\"keys\":\"null\"",
        "What is in a batch is looked at before its producer and its transaction are; either way it is refused.",
    ),
    answer(
        "Produce",
        "responses[].partition_responses[].log_start_offset",
        ["", ""],
        "\"keys\":\"null\"",
        "What is in a batch is looked at before its producer and its transaction are; either way it is refused.",
    ),
    answer(
        "DescribeTopicPartitions",
        "topics[]",
        ["", ""],
        "name: \"\"",
        "An empty name is INVALID_TOPIC_EXCEPTION; Kafka lets an exception through as UNKNOWN_SERVER_ERROR.",
    ),
    answer(
        "DescribeConfigs",
        "results[].configs",
        ["", ""],
        "resource_type: 32",
        "Groups have the settings of consumer groups only.",
    ),
];

/// What is answered differently and leaves both as they were.
const fn answer(
    api: &'static str,
    path: &'static str,
    [ours, kafka]: [&'static str; 2],
    asked: &'static str,
    reason: &'static str,
) -> Tolerated {
    Tolerated {
        api,
        path,
        ours,
        kafka,
        asked,
        diverges: false,
        reason,
    }
}

impl Tolerated {
    /// Whether this is what differs in the answers to a request.
    pub fn covers(&self, asked: &Asked, difference: &Difference) -> bool {
        let pattern = difference.pattern();
        let below = pattern
            .strip_prefix(self.path)
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'));
        self.api == asked.api
            && below
            && (self.ours.is_empty() || self.ours == difference.left)
            && (self.kafka.is_empty() || self.kafka == difference.right)
            && (self.asked.is_empty() || asked.message.to_string().contains(self.asked))
    }
}

/// What the comparison of two answers comes to.
#[derive(Debug)]
pub enum Verdict {
    /// They are equal, or differ as is known.
    Equal,
    /// They differ as is known, and what comes after says nothing.
    Parted,
    /// They differ.
    Different(Vec<Difference>),
}

/// Compares the answers to a request.
pub fn judge(asked: &Asked, ours: &Node, kafka: &Node) -> Verdict {
    let mut parted = false;
    let mut unknown = Vec::new();
    for difference in ours.differences(kafka) {
        match TOLERATED
            .iter()
            .find(|known| known.covers(asked, &difference))
        {
            Some(known) => parted |= known.diverges,
            None => unknown.push(difference),
        }
    }
    match (unknown.is_empty(), parted) {
        (false, _) => Verdict::Different(unknown),
        (true, true) => Verdict::Parted,
        (true, false) => Verdict::Equal,
    }
}
