//! Chooses the fields of a request: mostly what makes sense in the session's world, now and then what does not.
//!
//! Atoms that begin with `$` are symbols, which [`super::side`] replaces before the request is sent.

use rand::Rng;
use rand::rngs::StdRng;
use serde_json::json;

use super::world::{
    CHANGING_TOPICS, CLASSIC, CONSUMER, GROUP_SETTINGS, GROUPS, INSTANCE, Joined, PARTITIONS,
    Remembered, SIMPLE, STATIC, TOPIC_NAMES, TOPIC_SETTINGS, TRANSACTIONAL_IDS,
};
use crate::schema::{Leaf, Maker};
use crate::tree::Node;

/// Something with how often it is taken.
type Pool<'a> = &'a [(&'a str, u32)];

/// The time of all records but those that the broker dates.
pub const NOW: i64 = 1_700_000_000_000;

const LIMITS: Pool = &[("1000000", 80), ("1", 8), ("200", 12)];
const OFFSETS: Pool = &[
    ("0", 40),
    ("1", 15),
    ("2", 12),
    ("3", 12),
    ("6", 10),
    ("100", 5),
    ("-1", 4),
    ("-2", 2),
];
const LEADER_EPOCHS: Pool = &[
    ("-1", 70),
    ("$leader", 22),
    ("$leader+1", 5),
    ("$leader+7", 3),
];
const TIMES: Pool = &[
    ("-1", 25),
    ("-2", 20),
    ("-3", 15),
    ("-4", 10),
    ("-5", 5),
    ("0", 5),
    ("1700000000000", 10),
    ("1700000000003", 5),
    ("1900000000000", 5),
];

/// The choices for one request.
pub struct Choices<'a> {
    rng: &'a mut StdRng,
    remembered: &'a mut Remembered,
    api: &'a str,
    version: i16,
    group: String,
    transactional_id: Option<String>,
    topic: String,
    partition: String,
    member: String,
    /// The member says that it begins.
    begins: bool,
    /// The kind of resource whose settings are next, as the protocol numbers them.
    resource: String,
    setting: String,
    with_session: u8,
    producer_given: bool,
}

impl<'a> Choices<'a> {
    /// Choices for a request of an API at a version.
    pub fn new(
        rng: &'a mut StdRng,
        remembered: &'a mut Remembered,
        api: &'a str,
        version: i16,
    ) -> Self {
        let with_session = rng.random_range(0..100);
        Self {
            rng,
            remembered,
            api,
            version,
            group: String::new(),
            transactional_id: None,
            topic: String::new(),
            partition: String::new(),
            member: String::new(),
            begins: false,
            resource: String::new(),
            setting: String::new(),
            with_session,
            producer_given: false,
        }
    }

    /// Whether the request breaks off, and where.
    pub fn cut(&mut self) -> Option<u16> {
        // What is done with a request that has no answer cannot be told from its connection.
        (self.api != "Produce" && self.percent(1)).then(|| self.rng.random_range(0..1000))
    }

    fn percent(&mut self, chance: u32) -> bool {
        self.rng.random_range(0..100) < chance
    }

    fn pick<'p>(&mut self, pool: &[(&'p str, u32)]) -> &'p str {
        let total: u32 = pool.iter().map(|(_, weight)| weight).sum();
        let mut drawn = self.rng.random_range(0..total.max(1));
        for (one, weight) in pool {
            if drawn < *weight {
                return one;
            }
            drawn -= weight;
        }
        ""
    }

    fn atom(&mut self, pool: Pool) -> Node {
        Node::atom(self.pick(pool))
    }

    fn text(&mut self, pool: Pool) -> Node {
        Node::text(self.pick(pool))
    }

    /// Text, or null in so many of a hundred cases.
    fn text_or_null(&mut self, null: u32, pool: Pool) -> Node {
        match self.percent(null) {
            true => Node::atom("None"),
            false => self.text(pool),
        }
    }

    fn topic(&mut self, pool: Pool) -> Node {
        self.topic = self.pick(pool).to_owned();
        Node::text(&self.topic)
    }

    fn topic_id(&mut self) -> Node {
        self.topic = self.pick(TOPIC_NAMES).to_owned();
        Node::atom(format!("$id:{}", self.topic))
    }

    fn group(&mut self, pool: Pool) -> Node {
        self.group = self.pick(pool).to_owned();
        Node::text(&self.group)
    }

    fn transactional(&mut self) -> Node {
        let id = self.pick(TRANSACTIONAL_IDS).to_owned();
        let node = Node::text(&id);
        self.transactional_id = Some(id);
        node
    }

    /// Whose producer id is meant.
    fn producer(&self) -> &str {
        match self.transactional_id.as_deref() {
            None | Some("") => "idempotent",
            Some(id) => id,
        }
    }

    fn producer_id(&mut self) -> Node {
        let own = format!("$pid:{}", self.producer());
        let given = self.pick(&[(own.as_str(), 90), ("$pid:idempotent", 5), ("4242", 5)]);
        Node::atom(given)
    }

    fn producer_epoch(&mut self) -> Node {
        let own = format!("$epoch:{}", self.producer());
        let (older, newer) = (format!("{own}-1"), format!("{own}+1"));
        let pool = [
            (own.as_str(), 90),
            (older.as_str(), 5),
            (newer.as_str(), 3),
            ("-1", 2),
        ];
        Node::atom(self.pick(&pool))
    }

    fn member_id(&mut self) -> Node {
        if self.group == CONSUMER {
            self.member = self
                .pick(&[("m1", 60), ("m2", 30), ("m3", 5), ("", 5)])
                .to_owned();
            return Node::text(&self.member);
        }
        let symbol = format!("$member:{}", self.group);
        let outside = self.group == SIMPLE;
        let (own, none) = if outside { (3, 92) } else { (82, 8) };
        match self.rng.random_range(0..100) {
            at if at < own => Node::atom(symbol),
            at if at < own + none => Node::text(""),
            _ => Node::text("nobody"),
        }
    }

    fn generation(&mut self) -> Node {
        let own = match self.group.as_str() {
            CONSUMER => format!("$member_epoch:{}", self.member),
            group => format!("$generation:{group}"),
        };
        if self.group == SIMPLE {
            return self.atom(&[("-1", 92), ("0", 4), ("3", 4)]);
        }
        let (older, newer) = (format!("{own}-1"), format!("{own}+1"));
        let pool = [
            (own.as_str(), 80),
            (older.as_str(), 6),
            (newer.as_str(), 6),
            ("-1", 8),
        ];
        Node::atom(self.pick(&pool))
    }

    fn group_instance(&mut self) -> Node {
        let pool: Pool = match self.group == STATIC {
            true => &[(INSTANCE, 75), ("None", 15), ("i2", 10)],
            false => &[("None", 95), (INSTANCE, 5)],
        };
        match self.pick(pool) {
            "None" => Node::atom("None"),
            instance => Node::text(instance),
        }
    }

    /// A member's id in JoinGroup: never one that would have to wait for another.
    fn joining_member(&mut self) -> Node {
        let symbol = format!("$member:{}", self.group);
        if self.percent(4) {
            return Node::text("nobody");
        }
        let again = self.group == STATIC && self.percent(30);
        match self.remembered.joined(&self.group) {
            Joined::No => Node::text(""),
            Joined::Once if again => Node::text(""),
            Joined::Once => Node::atom(symbol),
        }
    }

    fn join_group(&mut self, path: &str) -> Option<Node> {
        Some(match path {
            "group_id" => {
                let pool: Pool = match self.version >= 5 {
                    true => &[(CLASSIC, 52), (STATIC, 45), ("", 3)],
                    false => &[(CLASSIC, 97), ("", 3)],
                };
                self.group(pool)
            }
            "session_timeout_ms" => self.atom(&[("60000", 94), ("100", 3), ("100000000", 3)]),
            "rebalance_timeout_ms" => Node::atom("60000"),
            "member_id" => self.joining_member(),
            "group_instance_id" => match self.group == STATIC {
                true => Node::text(INSTANCE),
                false => Node::atom("None"),
            },
            "protocol_type" => self.text(&[("consumer", 95), ("connect", 3), ("", 2)]),
            "protocols[].name" => self.text(&[("range", 60), ("roundrobin", 35), ("", 5)]),
            // Version 0 with one topic, and what is no subscription.
            "protocols[].metadata" => self.atom(&[
                ("0x00000000000100017400000000", 80),
                ("0x00", 10),
                ("0x", 10),
            ]),
            "reason" => self.text_or_null(70, &[("because", 50), ("", 50)]),
            _ => return None,
        })
    }

    fn consumer_heartbeat(&mut self, path: &str) -> Option<Node> {
        Some(match path {
            "group_id" => self.group(&[(CONSUMER, 93), (SIMPLE, 4), ("", 3)]),
            "member_id" => {
                // Before version 1 the coordinator gives an id to whoever has none, and ids decide who gets what.
                let nobody = u32::from(self.version >= 1) * 4;
                let pool = [("m1", 62), ("m2", 30), ("m3", 4), ("", nobody)];
                self.member = self.pick(&pool).to_owned();
                Node::text(&self.member)
            }
            "member_epoch" => {
                let own = format!("$member_epoch:{}", self.member);
                let (older, newer) = (format!("{own}-1"), format!("{own}+1"));
                let pool = [
                    ("0", 35),
                    (own.as_str(), 45),
                    (older.as_str(), 4),
                    (newer.as_str(), 4),
                    ("-1", 9),
                    ("-2", 2),
                    ("-5", 1),
                ];
                let epoch = self.pick(&pool);
                self.begins = epoch == "0";
                Node::atom(epoch)
            }
            "instance_id" => self.text_or_null(97, &[("s1", 1)]),
            "rack_id" => self.text_or_null(85, &[("r1", 90), ("", 10)]),
            "rebalance_timeout_ms" if self.begins => {
                self.atom(&[("60000", 94), ("0", 3), ("-1", 3)])
            }
            "rebalance_timeout_ms" => self.atom(&[("-1", 90), ("60000", 10)]),
            "subscribed_topic_names[]" => self.topic(&[("@a", 50), ("@b", 35), ("@nowhere", 15)]),
            "subscribed_topic_regex" => self.text_or_null(98, &[("[", 1)]),
            "server_assignor" => {
                self.text_or_null(70, &[("range", 50), ("uniform", 40), ("best", 10)])
            }
            "topic_partitions[].topic_id" => {
                self.atom(&[("$id:@a", 60), ("$id:@b", 30), ("$id:@nowhere", 10)])
            }
            _ => return None,
        })
    }

    fn batch(&mut self) -> Node {
        // Kafka never answers a request with null in the place of a batch.
        if self.percent(1) {
            return Node::atom("0x");
        }
        let transactional = self
            .transactional_id
            .as_deref()
            .is_some_and(|id| !id.is_empty());
        let producer = match transactional {
            true if self.percent(92) => self.producer().to_owned(),
            true => String::new(),
            false => self
                .pick(&[("", 55), ("idempotent", 42), ("@t1", 3)])
                .to_owned(),
        };
        let count = self.rng.random_range(1..=3_i64);
        let next = self
            .remembered
            .next_sequence(&producer, &self.topic, &self.partition);
        let sequence = match self.rng.random_range(0..100) {
            0..80 => next,
            80..88 => (next - count).max(0),
            88..95 => 0,
            _ => next + 5,
        };
        if sequence == next {
            let (topic, partition) = (self.topic.clone(), self.partition.clone());
            self.remembered
                .set_next_sequence(&producer, &topic, &partition, next + count);
        }
        let epoch = self.pick(&[("", 92), ("+1", 4), ("-1", 4)]);
        let codec = self.pick(&[
            ("none", 60),
            ("gzip", 10),
            ("snappy", 10),
            ("lz4", 10),
            ("zstd", 10),
        ]);
        let time = self.pick(&[("0", 85), ("5", 10), ("-1700000000001", 5)]);
        let keys = self.pick(&[("keyed", 80), ("null", 20)]);
        let damage = self.pick(&[
            ("", 93),
            ("crc", 2),
            ("count", 1),
            ("magic", 1),
            ("control", 1),
            ("delta", 1),
            ("cut", 1),
        ]);
        let flag = transactional != self.percent(4);
        let batch = json!({
            "producer": producer, "epoch": epoch, "sequence": sequence, "transactional": flag,
            "codec": codec, "count": count, "time": time, "keys": keys, "damage": damage,
        });
        Node::atom(format!("$batch:{batch}"))
    }

    fn produce(&mut self, path: &str) -> Option<Node> {
        Some(match path {
            "transactional_id" => match self.percent(60) {
                true => Node::atom("None"),
                false => self.transactional(),
            },
            // Impossible ones are refused by Kafka after a transaction may have begun with the batch.
            "acks" => match self.transactional_id {
                None => self.atom(&[("-1", 84), ("1", 10), ("0", 4), ("2", 2)]),
                Some(_) => self.atom(&[("-1", 85), ("1", 10), ("0", 5)]),
            },
            "topic_data[].partition_data[].records" => self.batch(),
            _ => return None,
        })
    }

    fn fetch(&mut self, path: &str) -> Option<Node> {
        Some(match path {
            "replica_id" => Node::atom("-1"),
            "max_wait_ms" => Node::atom("0"),
            "min_bytes" => self.atom(&[("0", 40), ("1", 55), ("100000", 5)]),
            "max_bytes" => self.atom(LIMITS),
            "session_id" => match self.with_session {
                0..85 => Node::atom("0"),
                85..97 => Node::atom("$session"),
                _ => Node::atom("77"),
            },
            "session_epoch" => match self.with_session {
                0..65 => Node::atom("-1"),
                65..85 => Node::atom("0"),
                85..95 => Node::atom("$session_epoch"),
                _ => self.atom(&[("-1", 30), ("3", 40), ("0", 30)]),
            },
            "topics[].partitions[].fetch_offset" => self.atom(OFFSETS),
            "topics[].partitions[].partition_max_bytes" => self.atom(LIMITS),
            "topics[].partitions[].last_fetched_epoch" => self.atom(&[("-1", 95), ("$leader", 5)]),
            "rack_id" => self.text(&[("", 90), ("r1", 10)]),
            _ => return None,
        })
    }

    /// Settings and their values.
    fn settings(&mut self, path: &str) -> Option<Node> {
        let settings = match self.resource.as_str() {
            "32" => GROUP_SETTINGS,
            _ => TOPIC_SETTINGS,
        };
        Some(match path {
            "resources[].resource_type" => {
                self.resource = self
                    .pick(&[("2", 84), ("32", 8), ("4", 3), ("0", 2), ("99", 3)])
                    .to_owned();
                Node::atom(&self.resource)
            }
            "resources[].resource_name" => match self.resource.as_str() {
                "32" => self.group(GROUPS),
                "4" => self.text(&[("1", 80), ("7", 10), ("x", 10)]),
                _ => self.topic(TOPIC_NAMES),
            },
            "resources[].configuration_keys[]"
            | "resources[].configs[].name"
            | "topics[].configs[].name" => {
                let at = self.rng.random_range(0..settings.len());
                let (name, _) = settings.get(at)?;
                self.setting = (*name).to_owned();
                Node::text(name)
            }
            "resources[].configs[].value" | "topics[].configs[].value" => {
                let (_, values) = settings.iter().find(|(name, _)| *name == self.setting)?;
                // The first one is a good one.
                let last = if self.percent(60) { 1 } else { values.len() };
                match values.get(self.rng.random_range(0..last)) {
                    Some(value) if self.percent(97) => Node::text(value),
                    _ => Node::atom("None"),
                }
            }
            "resources[].configs[].config_operation" => {
                self.atom(&[("0", 70), ("1", 15), ("2", 8), ("3", 7)])
            }
            "validate_only" => self.atom(&[("false", 80), ("true", 20)]),
            _ => return None,
        })
    }

    fn topics_made(&mut self, path: &str) -> Option<Node> {
        Some(match path {
            "topics[].name" | "topic_names[]" => self.topic(CHANGING_TOPICS),
            "topics[].num_partitions" => self.atom(&[
                ("1", 40),
                ("2", 30),
                ("3", 15),
                ("0", 5),
                ("-1", 6),
                ("-2", 4),
            ]),
            "topics[].replication_factor" => {
                self.atom(&[("1", 80), ("-1", 12), ("0", 3), ("2", 3), ("-2", 2)])
            }
            "topics[].count" => self.atom(&[
                ("2", 25),
                ("3", 30),
                ("4", 25),
                ("1", 10),
                ("0", 5),
                ("-1", 5),
            ]),
            "validate_only" => self.atom(&[("false", 80), ("true", 20)]),
            _ => return None,
        })
    }

    /// What is about the cluster and its nodes; nothing that would change them.
    fn cluster(&mut self, path: &str) -> Option<Node> {
        Some(match path {
            "broker_id" | "voter_id" => self.atom(&[("7", 70), ("-1", 20), ("2147483647", 10)]),
            "cluster_id" => self.text_or_null(60, &[("another", 80), ("", 20)]),
            "voter_directory_id" => self.atom(&[
                ("00000000-0000-0000-0000-000000000000", 30),
                ("$id:@nowhere", 70),
            ]),
            // An empty name ends Kafka's process.
            "listeners[].name" => self.text(&[("CONTROLLER", 80), ("PLAINTEXT", 20)]),
            "listeners[].host" => self.text(&[("127.0.0.1", 90), ("", 10)]),
            "listeners[].port" => self.atom(&[("9", 90), ("0", 10)]),
            "feature_updates[].feature" => {
                self.resource = self
                    .pick(&[
                        ("metadata.version", 30),
                        ("transaction.version", 25),
                        ("group.version", 20),
                        ("no.such.version", 20),
                        ("", 5),
                    ])
                    .to_owned();
                Node::text(&self.resource)
            }
            // What they stand at, or beyond what there is.
            "feature_updates[].max_version_level" => match self.resource.as_str() {
                "metadata.version" => self.atom(&[("33", 60), ("300", 40)]),
                "transaction.version" => self.atom(&[("2", 60), ("30", 40)]),
                _ => self.atom(&[("1", 60), ("30", 30), ("-1", 10)]),
            },
            "feature_updates[].upgrade_type" => {
                self.atom(&[("1", 60), ("2", 15), ("3", 15), ("0", 5), ("9", 5)])
            }
            "feature_updates[].allow_downgrade" => self.atom(&[("false", 70), ("true", 30)]),
            "validate_only" => self.atom(&[("false", 60), ("true", 40)]),
            // Kafka has directories of other names.
            "dirs[].path" => self.text(&[("/nowhere", 90), ("", 10)]),
            "endpoint_type" => self.atom(&[("1", 85), ("2", 8), ("0", 7)]),
            "topics[].topic_name" => self.text(&[("__cluster_metadata", 90), ("@a", 10)]),
            "topics[].partitions[].partition_index" if self.api == "DescribeQuorum" => {
                self.atom(&[("0", 90), ("1", 10)])
            }
            "client_software_name" => self.text(&[("tests", 85), ("not a name", 10), ("", 5)]),
            "client_software_version" => self.text(&[("1.0", 90), ("-", 5), ("", 5)]),
            "node_id" => self.atom(&[("-1", 60), ("1", 30), ("7", 10)]),
            _ => return None,
        })
    }

    /// The metrics of clients; all of them come sooner than is asked for, but for the first.
    fn telemetry(&mut self, path: &str) -> Option<Node> {
        let nil = uuid::Uuid::nil().to_string();
        Some(match path {
            "client_instance_id" if self.api == "PushTelemetry" => {
                self.atom(&[("$client", 85), (nil.as_str(), 5), ("$stranger", 10)])
            }
            "client_instance_id" => {
                self.atom(&[(nil.as_str(), 55), ("$client", 35), ("$stranger", 10)])
            }
            "subscription_id" => self.atom(&[("$subscription", 90), ("7", 10)]),
            "compression_type" => self.atom(&[("0", 80), ("1", 10), ("9", 10)]),
            "metrics" => Node::atom("0x"),
            _ => return None,
        })
    }

    /// What a field of this name holds in most requests.
    fn by_name(&mut self, path: &str, nullable: bool) -> Option<Node> {
        let name = path.rsplit('.').next().unwrap_or(path);
        Some(match name {
            "timeout_ms" => Node::atom("10000"),
            "name" | "topic" | "topic_name" => self.topic(TOPIC_NAMES),
            // Beside a name.
            "topic_id" if matches!(self.api, "Metadata" | "DeleteTopics") && self.percent(60) => {
                Node::atom(uuid::Uuid::nil().to_string())
            }
            "topic_id" => self.topic_id(),
            "partition_index" | "index" | "partition" | "partitions[]" | "partition_indexes[]" => {
                let partition = self.pick(PARTITIONS);
                self.partition = partition.to_owned();
                Node::atom(partition)
            }
            "group_id" | "groups[]" | "group_ids[]" | "groups_names[]" => self.group(GROUPS),
            "member_id" => self.member_id(),
            "generation_id" | "generation_id_or_member_epoch" | "member_epoch" => self.generation(),
            "group_instance_id" => self.group_instance(),
            "transactional_id" | "v3_and_below_transactional_id" | "transactional_ids[]" => {
                self.transactional()
            }
            "producer_id" | "v3_and_below_producer_id" => self.producer_id(),
            "producer_epoch" | "v3_and_below_producer_epoch" => self.producer_epoch(),
            "committed" | "transaction_result" => self.atom(&[("true", 60), ("false", 40)]),
            "coordinator_epoch" => Node::atom("$leader"),
            "verify_only" => self.atom(&[("false", 75), ("true", 25)]),
            "transaction_version" => self.atom(&[("0", 40), ("1", 20), ("2", 40)]),
            "current_leader_epoch" => self.atom(LEADER_EPOCHS),
            "leader_epoch" => self.atom(&[("$leader", 70), ("$leader+3", 15), ("-1", 15)]),
            "replica_id" => Node::atom("-1"),
            "isolation_level" => self.atom(&[("0", 60), ("1", 40)]),
            "timestamp" => self.atom(TIMES),
            "offset" => self.atom(OFFSETS),
            "committed_offset" => {
                self.atom(&[("0", 30), ("1", 30), ("5", 30), ("1000", 8), ("-1", 2)])
            }
            "committed_leader_epoch" => self.atom(&[("-1", 70), ("0", 15), ("5", 15)]),
            "committed_metadata" if nullable && self.percent(20) => Node::atom("None"),
            "committed_metadata" => match self.percent(2) {
                true => Node::text(&"m".repeat(5000)),
                false => self.text(&[("", 50), ("note", 50)]),
            },
            "protocol_type" => self.text_or_null(8, &[("consumer", 95), ("connect", 5)]),
            "protocol_name" => match self.percent(80) {
                true => Node::atom(format!("$protocol:{}", self.group)),
                false => self.text_or_null(50, &[("range", 50), ("roundrobin", 50)]),
            },
            "assignment" => self.atom(&[("0x0102", 80), ("0x", 20)]),
            "reason" => self.text_or_null(70, &[("because", 100)]),
            "key" => self.text(&[("@classic", 40), ("@t1", 40), ("", 20)]),
            "coordinator_keys[]" => self.text(&[("@classic", 40), ("@t1", 50), ("", 10)]),
            "key_type" => self.atom(&[("0", 50), ("1", 45), ("9", 5)]),
            "states_filter[]" => self.text(&[
                ("Stable", 40),
                ("Empty", 40),
                ("stable", 10),
                ("Dead", 5),
                ("Odd", 5),
            ]),
            "types_filter[]" => self.text(&[("classic", 50), ("Consumer", 40), ("odd", 10)]),
            "state_filters[]" => self.text(&[
                ("Ongoing", 50),
                ("Empty", 20),
                ("CompleteCommit", 20),
                ("Odd", 10),
            ]),
            "producer_id_filters[]" => {
                self.atom(&[("$pid:@t1", 60), ("$pid:@t2", 20), ("4242", 20)])
            }
            "duration_filter" => self.atom(&[("-1", 80), ("100000000", 20)]),
            "transactional_id_pattern" => {
                self.text_or_null(60, &[(".*t1", 80), ("[", 10), ("", 10)])
            }
            "election_type" => self.atom(&[("0", 70), ("1", 25), ("5", 5)]),
            "replicas[]" | "broker_ids[]" => self.atom(&[("1", 85), ("2", 15)]),
            "resource_types[]" => {
                self.atom(&[("2", 50), ("4", 20), ("32", 15), ("8", 5), ("99", 10)])
            }
            "response_partition_limit" => {
                self.atom(&[("2000", 70), ("1", 10), ("2", 10), ("0", 5), ("-1", 5)])
            }
            _ => return None,
        })
    }
}

impl Maker for Choices<'_> {
    fn leaf(&mut self, path: &str, leaf: Leaf, nullable: bool) -> Option<Node> {
        let own = match self.api {
            "JoinGroup" => self.join_group(path),
            "ConsumerGroupHeartbeat" => self.consumer_heartbeat(path),
            "Produce" => self.produce(path),
            "Fetch" => self.fetch(path),
            "DescribeConfigs" | "AlterConfigs" | "IncrementalAlterConfigs" => self.settings(path),
            "CreateTopics" => self.topics_made(path).or_else(|| self.settings(path)),
            "DeleteTopics" | "CreatePartitions" => self.topics_made(path),
            "UnregisterBroker" | "AddRaftVoter" | "RemoveRaftVoter" | "UpdateFeatures"
            | "DescribeCluster" | "ApiVersions" | "DescribeQuorum" => self.cluster(path),
            "InitProducerId" => self.init_producer_id(path),
            "GetTelemetrySubscriptions" | "PushTelemetry" => self.telemetry(path),
            _ => None,
        };
        own.or_else(|| self.by_name(path, nullable))
            .or_else(|| (leaf == Leaf::Bool).then(|| self.atom(&[("true", 50), ("false", 50)])))
    }

    fn items(&mut self, path: &str, nullable: bool) -> Option<usize> {
        let null = match (self.api, path) {
            ("ConsumerGroupHeartbeat", _) if self.begins => 3,
            ("ConsumerGroupHeartbeat", _) => 75,
            ("CreatePartitions", _) => 85,
            ("DescribeLogDirs", _) => 10,
            _ => 25,
        };
        if nullable && self.percent(null) {
            return None;
        }
        Some(match (self.api, path) {
            ("ConsumerGroupHeartbeat", "topic_partitions") if self.begins => {
                usize::from(self.percent(4))
            }
            ("CreateTopics", "topics[].assignments") => usize::from(self.percent(8)),
            ("CreateTopics", "topics[].configs") => usize::from(self.percent(35)),
            ("Fetch", "forgotten_topics_data") => {
                usize::from(self.with_session >= 85 && self.percent(20))
            }
            ("DescribeConfigs", "resources[].configuration_keys") => self.rng.random_range(0..4),
            // An empty list means all topics, and those of other sessions are not alike.
            ("DescribeTopicPartitions", "topics") => self.rng.random_range(1..4),
            ("AddRaftVoter", "listeners") => 1,
            // Kafka never answers a request without one.
            ("AddPartitionsToTxn", "transactions") => self.rng.random_range(1..4),
            (_, path) if path.ends_with("filter") || path.ends_with("filters") => {
                usize::from(self.percent(30))
            }
            // Kafka leaves a topic of which nothing is asked out of some answers and not out of others.
            _ => match self.rng.random_range(0..100) {
                0..4 if !path.contains("[]") => 0,
                0..75 => 1,
                75..93 => 2,
                _ => 3,
            },
        })
    }

    fn is_there(&mut self, _: &str) -> bool {
        self.percent(30)
    }
}

impl Choices<'_> {
    fn init_producer_id(&mut self, path: &str) -> Option<Node> {
        Some(match path {
            "transactional_id" if self.percent(30) => Node::atom("None"),
            "transaction_timeout_ms" => {
                self.atom(&[("60000", 92), ("0", 2), ("-1", 3), ("100000000", 3)])
            }
            "producer_id" => {
                self.producer_given = self.percent(30);
                match self.producer_given {
                    true => self.producer_id(),
                    false => Node::atom("-1"),
                }
            }
            "producer_epoch" => match self.producer_given != self.percent(4) {
                true => self.producer_epoch(),
                false => Node::atom("-1"),
            },
            _ => return None,
        })
    }
}
