//! What requests are about: how often which API is asked, the names there are and are not, and what the generator
//! remembers of what it has asked so far.
//!
//! `@` in a name stands for the session's own prefix.

use std::collections::BTreeMap;

use crate::tree::Node;

/// How often each API is asked, in parts of the sum.
pub const WEIGHTS: &[(&str, u32)] = &[
    ("Produce", 120),
    ("Fetch", 90),
    ("ListOffsets", 40),
    ("Metadata", 30),
    ("OffsetCommit", 50),
    ("OffsetFetch", 40),
    ("FindCoordinator", 8),
    ("JoinGroup", 40),
    ("Heartbeat", 20),
    ("LeaveGroup", 15),
    ("SyncGroup", 25),
    ("DescribeGroups", 20),
    ("ListGroups", 8),
    ("ApiVersions", 6),
    ("CreateTopics", 20),
    ("DeleteTopics", 8),
    ("DeleteRecords", 15),
    ("InitProducerId", 35),
    ("OffsetForLeaderEpoch", 15),
    ("AddPartitionsToTxn", 35),
    ("AddOffsetsToTxn", 15),
    ("EndTxn", 30),
    ("WriteTxnMarkers", 8),
    ("TxnOffsetCommit", 20),
    ("DescribeConfigs", 15),
    ("AlterConfigs", 6),
    ("AlterReplicaLogDirs", 4),
    ("DescribeLogDirs", 8),
    ("CreatePartitions", 8),
    ("DeleteGroups", 8),
    ("ElectLeaders", 6),
    ("IncrementalAlterConfigs", 15),
    ("AlterPartitionReassignments", 6),
    ("ListPartitionReassignments", 4),
    ("OffsetDelete", 12),
    ("DescribeQuorum", 4),
    ("UpdateFeatures", 4),
    ("DescribeCluster", 4),
    ("DescribeProducers", 15),
    ("UnregisterBroker", 2),
    ("DescribeTransactions", 15),
    ("ListTransactions", 8),
    ("GetTelemetrySubscriptions", 2),
    ("PushTelemetry", 3),
    ("ConsumerGroupHeartbeat", 45),
    ("ConsumerGroupDescribe", 20),
    ("ListConfigResources", 4),
    ("DescribeTopicPartitions", 12),
    ("AddRaftVoter", 3),
    ("RemoveRaftVoter", 3),
];

/// A topic that a session begins with: name, partitions, settings.
pub type TopicOfSession = (&'static str, i32, &'static [(&'static str, &'static str)]);

/// Topics that a session begins with.
pub const TOPICS: [TopicOfSession; 3] = [
    ("@a", 3, &[]),
    ("@b", 1, &[]),
    ("@c", 2, &[("cleanup.policy", "compact")]),
];

/// Topics that requests name.
pub const TOPIC_NAMES: &[(&str, u32)] = &[
    ("@a", 42),
    ("@b", 24),
    ("@c", 12),
    ("@new", 10),
    ("@newer", 4),
    ("@nowhere", 5),
    ("not/a name", 2),
    ("", 1),
    (".", 1),
];

/// Topics that requests make or take away.
pub const CHANGING_TOPICS: &[(&str, u32)] = &[
    ("@new", 50),
    ("@newer", 25),
    ("@c", 8),
    ("@a", 5),
    ("@nowhere", 4),
    ("not/a name", 3),
    ("..", 1),
    ("", 2),
];

/// The classic group whose one member is dynamic.
pub const CLASSIC: &str = "@classic";
/// The classic group whose one member is static.
pub const STATIC: &str = "@static";
/// The group that nobody is a member of.
pub const SIMPLE: &str = "@simple";
/// The consumer group.
pub const CONSUMER: &str = "@consumer";
/// The one static member.
pub const INSTANCE: &str = "i1";

/// Groups that requests name.
pub const GROUPS: &[(&str, u32)] = &[
    (CLASSIC, 30),
    (STATIC, 25),
    (SIMPLE, 18),
    (CONSUMER, 20),
    ("@nobody", 5),
    ("", 2),
];

/// Transactional ids that requests name.
pub const TRANSACTIONAL_IDS: &[(&str, u32)] = &[("@t1", 62), ("@t2", 26), ("@tnone", 8), ("", 4)];

/// All transactional ids that can come to be.
pub const PRODUCERS: [&str; 3] = ["@t1", "@t2", "@tnone"];

/// Partitions.
pub const PARTITIONS: &[(&str, u32)] = &[("0", 60), ("1", 24), ("2", 10), ("7", 4), ("-1", 2)];

/// Settings of topics and values for them, some of which are refused.
pub const TOPIC_SETTINGS: &[(&str, &[&str])] = &[
    ("retention.ms", &["-1", "100000000000", "abc", "-5"]),
    ("retention.bytes", &["-1", "1000000000"]),
    (
        "cleanup.policy",
        &["compact", "delete", "compact,delete", "nonsense"],
    ),
    ("max.message.bytes", &["1000000", "150", "-5", "0"]),
    (
        "message.timestamp.type",
        &["CreateTime", "LogAppendTime", "Never"],
    ),
    (
        "message.timestamp.before.max.ms",
        &["1000", "9223372036854775807", "-1"],
    ),
    ("min.cleanable.dirty.ratio", &["0.5", "1.5", "x"]),
    ("segment.bytes", &["1073741824", "5"]),
    (
        "compression.type",
        &["producer", "uncompressed", "nonsense"],
    ),
    ("unclean.leader.election.enable", &["false", "perhaps"]),
    ("delete.retention.ms", &["1000", "-1"]),
    ("flush.messages", &["1", "0"]),
    ("index.interval.bytes", &["4096", "-1"]),
    ("no.such.setting", &["1"]),
    ("", &["1"]),
];

/// Settings of groups.
pub const GROUP_SETTINGS: &[(&str, &[&str])] = &[
    ("consumer.session.timeout.ms", &["50000", "1", "abc"]),
    ("consumer.heartbeat.interval.ms", &["5000", "100000"]),
    ("no.such.setting", &["1"]),
];

/// How far a group has come, as far as it was asked to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Joined {
    /// Nobody has asked to join.
    #[default]
    No,
    /// Somebody has, or has an id to join with. Another one would make them wait for each other.
    Once,
}

/// What was asked so far, as far as later requests build on it.
#[derive(Debug, Default)]
pub struct Remembered {
    joined: BTreeMap<String, Joined>,
    sequences: BTreeMap<(String, String, String), i64>,
}

fn text_at<'a>(message: &'a Node, name: &str) -> Option<&'a str> {
    match message.field(name) {
        Some(Node::Atom(text)) => Some(text),
        _ => None,
    }
}

/// Quoted, as atoms are that stand for text.
fn quoted(text: &str) -> String {
    format!("{text:?}")
}

impl Remembered {
    /// Whether somebody may have joined a group.
    pub fn joined(&self, group: &str) -> Joined {
        self.joined.get(group).copied().unwrap_or_default()
    }

    /// The sequence number that is next of a producer in a partition.
    pub fn next_sequence(&self, producer: &str, topic: &str, partition: &str) -> i64 {
        let key = (producer.to_owned(), topic.to_owned(), partition.to_owned());
        self.sequences.get(&key).copied().unwrap_or(0)
    }

    /// Sets what is next of a producer in a partition.
    pub fn set_next_sequence(&mut self, producer: &str, topic: &str, partition: &str, next: i64) {
        let key = (producer.to_owned(), topic.to_owned(), partition.to_owned());
        self.sequences.insert(key, next);
    }

    /// Takes note of a request that will be sent.
    pub fn note(&mut self, api: &str, version: i16, message: &Node) {
        match api {
            "JoinGroup" => {
                if let Some(group) = text_at(message, "group_id") {
                    self.joined
                        .insert(group.trim_matches('"').to_owned(), Joined::Once);
                }
            }
            "LeaveGroup" => self.note_leaving(message),
            "InitProducerId" => {
                let id = text_at(message, "transactional_id").unwrap_or("None");
                self.forget_sequences(id);
            }
            // The epoch goes up with the end of each transaction.
            "EndTxn" if version >= 5 => {
                let id = text_at(message, "transactional_id").unwrap_or("None");
                self.forget_sequences(id);
            }
            _ => {}
        }
    }

    fn forget_sequences(&mut self, transactional_id: &str) {
        let producer = match transactional_id {
            "None" => "idempotent",
            id => id.trim_matches('"'),
        };
        self.sequences.retain(|(known, _, _), _| known != producer);
    }

    fn note_leaving(&mut self, message: &Node) {
        let Some(group) =
            text_at(message, "group_id").map(|group| group.trim_matches('"').to_owned())
        else {
            return;
        };
        let symbol = format!("$member:{group}");
        let left = match message.field("members") {
            Some(Node::List(members)) => members.iter().any(|member| {
                let instance = text_at(member, "group_instance_id").unwrap_or("None");
                let id = text_at(member, "member_id").unwrap_or_default();
                match group == STATIC {
                    true => instance == quoted(INSTANCE) && (id == symbol || id == "\"\""),
                    false => instance == "None" && id == symbol,
                }
            }),
            _ => text_at(message, "member_id") == Some(&symbol),
        };
        if left {
            self.joined.remove(&group);
        }
    }
}
