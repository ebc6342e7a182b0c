//! One of the two servers in one session: what it has chosen (ids, epochs) and how that is written in requests and
//! answers.
//!
//! A symbol in a request, such as `$pid:@t1`, `$epoch:@t1-1` or `$id:@a`, stands for what the server has said last;
//! before it has said anything, for something that nobody has. In answers the same things become `<pid @t1>`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use bytes::Bytes;
use serde_json::Value;

use super::choices::NOW;
use super::fixing::identity;
use super::world::{PRODUCERS, TOPIC_NAMES};
use crate::batches::{BatchSpec, CONTROL, Codec, RecordSpec, TRANSACTIONAL};
use crate::requests::Topic;
use crate::schema::hexadecimal;
use crate::tree::Node;

/// Times beyond this are the server's own.
const RECENTLY: i64 = 1_750_000_000_000;

/// What never agrees and says nothing.
const MASKED: &[(&str, &str)] = &[
    ("ApiVersions", "api_keys"),
    ("ApiVersions", "supported_features"),
    ("ApiVersions", "finalized_features"),
    ("ApiVersions", "finalized_features_epoch"),
    // Each has its own sentences.
    ("DescribeConfigs", "results[].configs[].documentation"),
    ("DescribeLogDirs", "results[].log_dir"),
    ("DescribeLogDirs", "results[].total_bytes"),
    ("DescribeLogDirs", "results[].usable_bytes"),
    ("DescribeQuorum", "topics[].partitions[].high_watermark"),
    (
        "DescribeQuorum",
        "topics[].partitions[].current_voters[].log_end_offset",
    ),
    (
        "DescribeQuorum",
        "topics[].partitions[].current_voters[].replica_directory_id",
    ),
    (
        "DescribeQuorum",
        "topics[].partitions[].observers[].log_end_offset",
    ),
    (
        "DescribeQuorum",
        "topics[].partitions[].observers[].replica_directory_id",
    ),
    ("DescribeQuorum", "topics[].partitions[].leader_epoch"),
];

/// Lists whose order means something. That of the others is often that of a hash map in Kafka, or of how it groups
/// what was asked; the scripted comparisons look at order where it is kept.
const ORDERED: &[&str] = &[
    "records",
    "api_keys",
    "replica_nodes",
    "isr_nodes",
    "replicas",
    "synonyms",
];

/// Lists that also hold what other sessions have made, and the field that says whose an item is.
const SHARED: &[(&str, &str, &str)] = &[
    ("Metadata", "topics", "name"),
    ("ListGroups", "groups", "group_id"),
    ("ListTransactions", "transaction_states", "transactional_id"),
    ("ListConfigResources", "config_resources", "resource_name"),
    ("DescribeLogDirs", "results[].topics", "name"),
    ("ElectLeaders", "replica_election_results", "topic"),
    ("ListPartitionReassignments", "topics", "name"),
    ("OffsetFetch", "topics", "name"),
];

/// Settings that only one of the two has, with reasons in PROTOCOL.md's words: see `compare_configs`.
const OWN_SETTINGS: [&str; 6] = [
    "write.caching",
    "min.insync.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "remote.copy.lag.bytes",
    "remote.copy.lag.ms",
];

/// The first of the producer ids that stand for what nobody has said yet, behind the one that nobody ever has.
const NOBODYS: i64 = 4242;
/// The id of a topic that is not there: each name has its own, so that no two topics of a request become one.
fn missing_id(name: &str) -> String {
    let place = TOPIC_NAMES.iter().position(|(known, _)| *known == name);
    let number = u128::try_from(place.map_or(0, |place| place + 1)).unwrap_or(0);
    uuid::Uuid::from_u128(Topic::missing("").id.as_u128() + number).to_string()
}

/// The name that stands behind such an id.
fn name_of_missing_id(id: &str) -> Option<&'static str> {
    let known = TOPIC_NAMES.iter().map(|(name, _)| *name);
    known.into_iter().find(|name| missing_id(name) == id)
}

/// One server in one session.
#[derive(Debug)]
pub struct Side {
    prefix: String,
    /// `pid:@t1` to what stands for it on the wire.
    chosen: BTreeMap<String, String>,
    /// The other way round, with every value that there ever was.
    symbols: BTreeMap<String, String>,
    first_epoch: i64,
}

fn is_nobodys(producer: &str) -> bool {
    let last = i64::try_from(PRODUCERS.len()).map_or(NOBODYS, |count| NOBODYS + 1 + count);
    producer
        .parse()
        .is_ok_and(|id: i64| (NOBODYS..=last).contains(&id))
}

fn atom<'a>(message: &'a Node, name: &str) -> Option<&'a str> {
    match message.field(name) {
        Some(Node::Atom(text)) => Some(text),
        _ => None,
    }
}

fn list<'a>(message: &'a Node, name: &str) -> &'a [Node] {
    match message.field(name) {
        Some(Node::List(items)) => items,
        _ => &[],
    }
}

fn list_mut<'a>(message: &'a mut Node, name: &str) -> Option<&'a mut Vec<Node>> {
    match message {
        Node::Struct(fields) => fields.iter_mut().find_map(|(known, value)| match value {
            Node::List(items) if known.as_str() == name => Some(items),
            _ => None,
        }),
        _ => None,
    }
}

/// Makes one of all items of a topic: Kafka begins another wherever what it has read is followed by what it refused.
fn join_topics(responses: &mut Vec<Node>) {
    let mut joined: Vec<Node> = Vec::new();
    for mut topic in std::mem::take(responses) {
        let name = identity(&topic);
        match joined.iter_mut().find(|known| identity(known) == name) {
            Some(known) => {
                if let (Some(all), Some(more)) = (
                    list_mut(known, "partitions"),
                    list_mut(&mut topic, "partitions"),
                ) {
                    all.append(more);
                }
            }
            None => joined.push(topic),
        }
    }
    *responses = joined;
}

/// The checksum of a batch covers the producer's id, which each server chooses; all else that it covers is compared.
fn mask_crc(node: &mut Node) {
    if let Node::Struct(fields) = node
        && fields
            .iter()
            .any(|(name, value)| name == "producer_id" && *value != Node::atom("-1"))
        && let Some((_, crc)) = fields.iter_mut().find(|(name, _)| name == "crc")
    {
        *crc = Node::atom("<crc>");
    }
}

fn unquoted(text: &str) -> &str {
    text.trim_matches('"')
}

impl Side {
    /// A session whose names begin with `prefix`, at a server whose leaders begin with this epoch.
    pub fn new(prefix: &str, first_epoch: i64) -> Self {
        Self {
            prefix: prefix.to_owned(),
            chosen: BTreeMap::new(),
            symbols: BTreeMap::new(),
            first_epoch,
        }
    }

    /// A name with its prefix.
    pub fn name(&self, name: &str) -> String {
        name.replace('@', &self.prefix)
    }

    /// What the server has chosen for a symbol, such as `member:@classic`.
    pub fn chosen(&self, key: &str) -> Option<&str> {
        self.chosen.get(key).map(String::as_str)
    }

    fn choose(&mut self, key: String, value: &str) {
        if !self.symbols.contains_key(value) {
            let before = self.symbols.values().filter(|known| {
                known
                    .split_once('#')
                    .map_or(known.as_str(), |(first, _)| first)
                    == key
            });
            let symbol = match before.count() {
                0 => key.clone(),
                count => format!("{key}#{}", count + 1),
            };
            self.symbols.insert(value.to_owned(), symbol);
        }
        self.chosen.insert(key, value.to_owned());
    }

    /// A request as it is sent.
    pub fn resolved(&self, message: &Node) -> Result<Node> {
        let mut message = message.clone();
        let mut failure = None;
        message.visit(&mut |_, node| {
            let Node::Atom(text) = node else {
                return;
            };
            if let Some(symbol) = text.strip_prefix('$') {
                match self.value(symbol) {
                    Ok(value) => *text = value,
                    Err(error) => failure = Some(error),
                }
            } else if text.starts_with('"') {
                *text = self.name(text);
            }
        });
        failure.map_or(Ok(message), Err)
    }

    fn value(&self, symbol: &str) -> Result<String> {
        if let Some(batch) = symbol.strip_prefix("batch:") {
            let batch = self.batch(&serde_json::from_str(batch)?)?;
            return Ok(hexadecimal(&batch).to_string());
        }
        let at = symbol.rfind(['+', '-']);
        let shift = at.and_then(|at| Some((at, symbol.get(at..)?.parse::<i64>().ok()?)));
        let (key, shift) = match shift {
            Some((at, shift)) => (&symbol[..at], shift),
            None => (symbol, 0),
        };
        let value = match self.chosen.get(key) {
            Some(value) => value.clone(),
            None => self.nothing(key),
        };
        Ok(match value.parse::<i64>() {
            Ok(number) => (number + shift).to_string(),
            Err(_) => value,
        })
    }

    /// What is sent in place of what the server has not said.
    fn nothing(&self, key: &str) -> String {
        match key.split(':').next().unwrap_or_default() {
            "id" => missing_id(key.trim_start_matches("id:")),
            "pid" => {
                let name = key.trim_start_matches("pid:");
                let place = PRODUCERS.iter().position(|known| *known == name);
                let number = place.and_then(|place| i64::try_from(place).ok());
                (NOBODYS + number.map_or(1, |number| number + 2)).to_string()
            }
            "client" | "stranger" => self.stranger(),
            "epoch" => "0".to_owned(),
            "member" => "\"unbound\"".to_owned(),
            "protocol" => "\"range\"".to_owned(),
            "session" => "78".to_owned(),
            "leader" => self.first_epoch.to_string(),
            _ => "1".to_owned(),
        }
    }

    /// The id of a client that asks for its subscription with an id of its own, another one in each session.
    fn stranger(&self) -> String {
        let number = self.prefix.bytes().fold(0_u128, |number, byte| {
            (number << 8 | u128::from(byte)) & 0xffff_ffff_ffff
        });
        uuid::Uuid::from_u128(0xc11e_2700_0000_4000_8000_0000_0000_0000 | number).to_string()
    }

    fn batch(&self, spec: &Value) -> Result<Bytes> {
        let text = |key: &str| spec[key].as_str().context("a batch without that");
        let number = |key: &str| spec[key].as_i64().context("a batch without that");
        let time = NOW + text("time")?.parse::<i64>()?;
        let records = (0..number("count")?).map(|index| {
            let value = format!("value {index} of {}", spec["sequence"]);
            match spec["keys"] == "keyed" {
                true => RecordSpec::keyed(format!("key {index}"), value).at(time + index),
                false => RecordSpec::value(value).at(time + index),
            }
        });
        let codec = match text("codec")? {
            "gzip" => Codec::Gzip,
            "snappy" => Codec::SnappyXerial,
            "lz4" => Codec::Lz4,
            "zstd" => Codec::Zstd,
            _ => Codec::None,
        };
        let mut batch = BatchSpec::of(records.collect()).compressed(codec);
        let producer = text("producer")?;
        if !producer.is_empty() {
            let epoch = format!("epoch:{producer}{}", text("epoch")?);
            batch.producer_id = self.value(&format!("pid:{producer}"))?.parse()?;
            batch.producer_epoch = self.value(&epoch)?.parse()?;
            batch.base_sequence = i32::try_from(number("sequence")?)?;
        }
        if spec["transactional"] == true {
            batch.attributes |= TRANSACTIONAL;
        }
        match text("damage")? {
            "crc" => batch.crc_error = 1,
            "count" => batch.record_count = Some(9),
            "magic" => batch.magic = 1,
            "control" => batch.attributes |= CONTROL,
            "delta" => batch.last_offset_delta = Some(7),
            _ => {}
        }
        let bytes = batch.build()?;
        Ok(match text("damage")? {
            "cut" => bytes.slice(..bytes.len() - 3),
            _ => bytes,
        })
    }

    /// Remembers what an answer to `asked` (with its symbols) says of ids and epochs.
    pub fn learn(&mut self, api: &str, asked: &Node, answer: &Node) {
        let succeeded = atom(answer, "error_code") == Some("0");
        let has_id = |id: &&str| id.len() == 36 && *id != uuid::Uuid::nil().to_string();
        match api {
            "InitProducerId" | "EndTxn" if succeeded => {
                let producer = match atom(asked, "transactional_id") {
                    None | Some("None") => "idempotent",
                    Some(id) => unquoted(id),
                };
                let id = atom(answer, "producer_id").filter(|id| *id != "-1");
                if let (Some(id), Some(epoch)) = (id, atom(answer, "producer_epoch")) {
                    self.choose(format!("pid:{producer}"), id);
                    self.chosen
                        .insert(format!("epoch:{producer}"), epoch.to_owned());
                }
            }
            "JoinGroup" => {
                let group = unquoted(atom(asked, "group_id").unwrap_or_default()).to_owned();
                let wanted = atom(answer, "error_code") == Some("79");
                if (succeeded || wanted)
                    && let Some(member) = atom(answer, "member_id")
                {
                    self.choose(format!("member:{group}"), member);
                }
                if succeeded {
                    for (key, name) in [
                        ("generation", "generation_id"),
                        ("protocol", "protocol_name"),
                    ] {
                        if let Some(value) = atom(answer, name) {
                            self.chosen
                                .insert(format!("{key}:{group}"), value.to_owned());
                        }
                    }
                }
            }
            "ConsumerGroupHeartbeat" if succeeded => {
                let member = unquoted(atom(asked, "member_id").unwrap_or_default());
                if let Some(epoch) = atom(answer, "member_epoch") {
                    self.chosen
                        .insert(format!("member_epoch:{member}"), epoch.to_owned());
                }
            }
            "CreateTopics" | "Metadata" | "DescribeTopicPartitions" => {
                for topic in list(answer, "topics") {
                    let id = atom(topic, "topic_id").filter(has_id);
                    if atom(topic, "error_code") == Some("0")
                        && let (Some(id), Some(name)) = (id, atom(topic, "name"))
                        && let Some(name) = unquoted(name).strip_prefix(&self.prefix)
                    {
                        self.choose(format!("id:@{name}"), id);
                    }
                }
            }
            "Fetch" => self.learn_session(asked, answer, succeeded),
            "GetTelemetrySubscriptions" if succeeded => {
                if let (Some(client), Some(subscription)) = (
                    atom(answer, "client_instance_id"),
                    atom(answer, "subscription_id"),
                ) {
                    self.choose("client".to_owned(), client);
                    self.chosen
                        .insert("subscription".to_owned(), subscription.to_owned());
                }
            }
            _ => {}
        }
    }

    fn learn_session(&mut self, asked: &Node, answer: &Node, succeeded: bool) {
        let Some(session) = atom(answer, "session_id").filter(|id| *id != "0" && succeeded) else {
            return;
        };
        let epoch = match atom(asked, "session_id") {
            Some("$session") if self.chosen("session") == Some(session) => {
                let before = self
                    .chosen("session_epoch")
                    .and_then(|epoch| epoch.parse::<i64>().ok());
                before.unwrap_or(0) + 1
            }
            _ => 1,
        };
        self.choose("session".to_owned(), session);
        self.chosen
            .insert("session_epoch".to_owned(), epoch.to_string());
    }

    /// An answer as it is compared.
    pub fn normalized(&self, api: &str, mut answer: Node) -> Node {
        answer.visit(&mut |path, node| {
            self.drop_what_is_shared(api, path, node);
            mask_crc(node);
            let name = path
                .rsplit('.')
                .next()
                .unwrap_or(path)
                .trim_end_matches("[]");
            if let Node::Atom(text) = node {
                if let Some(symbol) = self.stand_in(name, text) {
                    *text = symbol;
                } else if text.starts_with('"') {
                    *text = text.replace(&self.prefix, "@");
                }
            }
            if MASKED.contains(&(api, path)) {
                *node = Node::atom("<masked>");
            }
        });
        if api == "Fetch"
            && let Some(responses) = list_mut(&mut answer, "responses")
        {
            join_topics(responses);
        }
        answer.visit(&mut |path, node| {
            let name = path.rsplit('.').next().unwrap_or(path);
            if let Node::List(items) = node
                && !ORDERED.contains(&name)
            {
                items.sort_by_cached_key(identity);
            }
        });
        answer
    }

    fn drop_what_is_shared(&self, api: &str, path: &str, node: &mut Node) {
        let Node::List(items) = node else {
            return;
        };
        if let Some((_, _, field)) = SHARED
            .iter()
            .find(|(known, at, _)| (*known, *at) == (api, path))
        {
            items.retain(|item| {
                atom(item, field).is_none_or(|name| !self.is_foreign(unquoted(name)))
            });
        }
        if path.ends_with("configs") {
            items.retain(|item| {
                atom(item, "name").is_none_or(|name| !OWN_SETTINGS.contains(&unquoted(name)))
            });
        }
    }

    /// Whether a name is another session's, or of nobody's session.
    fn is_foreign(&self, name: &str) -> bool {
        if name.starts_with(&self.prefix) {
            return false;
        }
        let number = name.strip_prefix('s').and_then(|rest| rest.split_once('-'));
        name.starts_with("__") || number.is_some_and(|(number, _)| number.parse::<u64>().is_ok())
    }

    /// What is compared in the place of something that the server has chosen.
    fn stand_in(&self, name: &str, text: &str) -> Option<String> {
        let chosen = |kind: &str, other: &str| {
            let known = self
                .symbols
                .get(text)
                .filter(|symbol| symbol.starts_with(kind));
            Some(known.map_or_else(|| other.to_owned(), |symbol| format!("<{symbol}>")))
        };
        match name {
            "port" => Some("<port>".to_owned()),
            "host" | "client_host" if text.len() > 2 => Some("<host>".to_owned()),
            "cluster_id" if text != "None" => Some("<cluster>".to_owned()),
            "topic_id" if text != uuid::Uuid::nil().to_string() => match name_of_missing_id(text) {
                Some(name) => Some(format!("<no id:{name}>")),
                None => chosen("id:", "<an id>"),
            },
            "producer_id" if text != "-1" && !is_nobodys(text) => chosen("pid:", "<a producer>"),
            "client_instance_id" if text == self.stranger() => Some("<a stranger>".to_owned()),
            "client_instance_id" if text != uuid::Uuid::nil().to_string() => {
                chosen("client", "<a client>")
            }
            "subscription_id" if text != "0" => Some("<subscription>".to_owned()),
            "member_id" | "leader"
                if !matches!(
                    unquoted(text),
                    "" | "None" | "m1" | "m2" | "m3" | "nobody" | "unbound"
                ) =>
            {
                chosen("member:", "<a member>")
            }
            "session_id" if text != "0" => chosen("session", "<a session>"),
            "leader_epoch" | "epoch" => {
                let epoch = text.parse::<i64>().ok().filter(|epoch| *epoch >= 0)?;
                Some(format!("<epoch {}>", epoch - self.first_epoch))
            }
            "coordinator_epoch" if text != "-1" => Some("<coordinator epoch>".to_owned()),
            "error_message" | "batch_index_error_message" if text != "None" => {
                Some("<words>".to_owned())
            }
            _ if name.contains("time") => {
                let is_now = text.parse::<i64>().is_ok_and(|time| time > RECENTLY);
                is_now.then(|| "<now>".to_owned())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::fields;

    #[test]
    fn what_a_server_chose_is_sent_back_and_read_back_as_a_symbol() -> Result<()> {
        let mut side = Side::new("s7-", 1);
        let asked = fields(&[("transactional_id", Node::text("@t1"))]);
        let answer = fields(&[
            ("error_code", Node::atom("0")),
            ("producer_id", Node::atom("1001")),
            ("producer_epoch", Node::atom("3")),
        ]);
        side.learn("InitProducerId", &asked, &answer);
        let request = fields(&[
            ("transactional_id", Node::text("@t1")),
            ("producer_id", Node::atom("$pid:@t1")),
            ("producer_epoch", Node::atom("$epoch:@t1-1")),
            ("leader_epoch", Node::atom("$leader+2")),
            ("topic_id", Node::atom("$id:@new")),
        ]);
        assert_eq!(
            side.resolved(&request)?.to_string(),
            "{transactional_id: \"s7-t1\", producer_id: 1001, producer_epoch: 2, leader_epoch: 3, \
             topic_id: 0daddead-beef-4000-8000-000000000005}"
        );
        let read = side.normalized("InitProducerId", answer);
        assert_eq!(
            read.to_string(),
            "{error_code: 0, producer_id: <pid:@t1>, producer_epoch: 3}"
        );
        Ok(())
    }

    #[test]
    fn a_topic_is_there_once_and_checksums_over_ids_that_differ_are_not_compared() {
        let side = Side::new("s7-", 0);
        let topic = |name: &str, index: &str| {
            let partition = fields(&[("partition_index", Node::atom(index))]);
            fields(&[
                ("topic", Node::text(name)),
                ("partitions", Node::List(vec![partition])),
            ])
        };
        let responses = vec![topic("b", "1"), topic("a", "0"), topic("b", "0")];
        let answer = fields(&[("responses", Node::List(responses))]);
        assert_eq!(
            side.normalized("Fetch", answer).to_string(),
            r#"{responses: [{topic: "a", partitions: [{partition_index: 0}]}, {topic: "b", partitions: [{partition_index: 0}, {partition_index: 1}]}]}"#
        );
        let batch = |producer: &str| {
            fields(&[
                ("producer_id", Node::atom(producer)),
                ("crc", Node::atom("7")),
            ])
        };
        let records = Node::List(vec![batch("-1"), batch("4242")]);
        let answer = fields(&[("records", records)]);
        assert_eq!(
            side.normalized("Fetch", answer).to_string(),
            "{records: [{producer_id: -1, crc: 7}, {producer_id: 4242, crc: <crc>}]}"
        );
    }

    #[test]
    fn other_sessions_are_left_out_and_hash_maps_sorted() {
        let side = Side::new("s7-", 0);
        let group = |name: &str| fields(&[("group_id", Node::text(name))]);
        let groups = ["s7-b", "s71-x", "s7-a", "__y"].map(group).to_vec();
        let answer = fields(&[("groups", Node::List(groups))]);
        assert_eq!(
            side.normalized("ListGroups", answer).to_string(),
            r#"{groups: [{group_id: "@a"}, {group_id: "@b"}]}"#
        );
    }
}
