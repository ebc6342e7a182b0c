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
    Tolerated {
        diverges: true,
        ..answer(
            "JoinGroup",
            "error_code",
            ["23", "23"],
            "",
            "A group that nobody has got into is not there; Kafka lists it as empty and lets it be deleted.",
        )
    },
    answer(
        "AlterConfigs",
        "responses[].error_code",
        ["42", "0"],
        "resource_type: 4,",
        "A broker key that does not exist is refused; Kafka stores it.",
    ),
    answer(
        "AlterConfigs",
        "responses[].error_message",
        ["", "None"],
        "resource_type: 4,",
        "A broker key that does not exist is refused; Kafka stores it.",
    ),
    answer(
        "IncrementalAlterConfigs",
        "responses[].error_code",
        ["42", "0"],
        "resource_type: 4,",
        "A broker key that does not exist is refused; Kafka stores it.",
    ),
    answer(
        "IncrementalAlterConfigs",
        "responses[].error_message",
        ["", "None"],
        "resource_type: 4,",
        "A broker key that does not exist is refused; Kafka stores it.",
    ),
    answer(
        "PushTelemetry",
        "error_code",
        ["89", ""],
        "",
        "A client that comes back by another connection is held to its interval; Kafka forgets it with its connection.",
    ),
    Tolerated {
        diverges: true,
        ..answer(
            "Produce",
            "responses[].partition_responses[].error_code",
            ["0", "45"],
            "",
            "Of a producer that only the end of a transaction is known of, as when its records are deleted, any number is next; Kafka wants 0.",
        )
    },
    answer(
        "Produce",
        "responses[].partition_responses[].base_offset",
        ["", "-1"],
        "",
        "Of a producer that only the end of a transaction is known of, as when its records are deleted, any number is next; Kafka wants 0.",
    ),
    answer(
        "WriteTxnMarkers",
        "markers[].topics[].partitions[].error_code",
        ["", "-1"],
        "",
        "A negative epoch is INVALID_PRODUCER_EPOCH where there is the partition; Kafka lets an exception through as UNKNOWN_SERVER_ERROR.",
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
    answer(
        "DescribeConfigs",
        "results[].configs",
        ["", ""],
        "resource_type: 4,",
        "A broker has the settings that CONFIG.md lists, and ports of its own in them.",
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
    // What is answered alike may leave the two different, too.
    parted |= TOLERATED.iter().any(|known| {
        let field = ours.field(known.path);
        known.diverges && known.api == asked.api && field == Some(&Node::atom(known.ours))
    });
    match (unknown.is_empty(), parted) {
        (false, _) => Verdict::Different(unknown),
        (true, true) => Verdict::Parted,
        (true, false) => Verdict::Equal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::fields;

    #[test]
    fn what_leaves_the_two_different_ends_a_session_though_it_is_answered_alike() {
        let asked = Asked {
            api: "JoinGroup".to_owned(),
            version: 5,
            message: fields(&[]),
            cut: None,
        };
        let answer = |code: &str| fields(&[("error_code", Node::atom(code))]);
        let refused = answer("23");
        assert!(matches!(judge(&asked, &refused, &refused), Verdict::Parted));
        let joined = answer("0");
        assert!(matches!(judge(&asked, &joined, &joined), Verdict::Equal));
        assert!(matches!(
            judge(&asked, &refused, &joined),
            Verdict::Different(_)
        ));
    }
}
