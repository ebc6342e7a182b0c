//! The broker's configuration keys: the one table of what this broker reads.
//!
//! Names, types, defaults, bounds and update modes are those of Apache Kafka 4.4 wherever Kafka has
//! the key; a key of our own starts with `odradek.`. `docs/CONFIG.md` is generated from this table.
//! Keys that Kafka has and that mean nothing here yet are in `foreign_keys`.

use super::key::Allowed::{Between, Checked, ListOf, OneOf};
use super::key::ConfigKind::{Boolean, Double, Int, List, Long, Short, String as Text};
use super::key::Importance::{High, Low};
use super::key::KeySpec;
use super::key::UpdateMode::ClusterWide;
use super::listeners;
use super::metadata_keys::METADATA;
use super::peer_keys::PEERS;
use super::replication_keys::REPLICATION;
use super::telemetry_keys::TELEMETRY;
use super::transaction_keys::TRANSACTIONS;

/// Values of `compression.type`.
pub(crate) const COMPRESSION_TYPES: &[&str] =
    &["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"];
/// Elements of `cleanup.policy`.
pub(crate) const CLEANUP_POLICIES: &[&str] = &["compact", "delete"];
/// Values of `message.timestamp.type`.
pub(crate) const TIMESTAMP_TYPES: &[&str] = &["CreateTime", "LogAppendTime"];
/// `compression.gzip.level`: −1 is the codec's own default.
pub(crate) fn gzip_level(value: &str) -> Result<(), String> {
    match value.parse::<i32>() {
        Ok(-1 | 1..=9) => Ok(()),
        _ => Err("out of range".to_owned()),
    }
}

/// Headings of `docs/CONFIG.md`, with the keys below each.
pub static SECTIONS: &[(&str, &[KeySpec])] = &[
    ("Node and cluster", NODE),
    ("Listeners and connections", NETWORK),
    ("Memory and limits of requests", REQUESTS),
    ("Topics", TOPICS),
    ("Logs (defaults of topic settings)", LOGS),
    ("Replication", REPLICATION),
    ("Nodes among themselves", PEERS),
    ("Metadata", METADATA),
    ("Producers", PRODUCERS),
    ("Consumer groups and offsets", GROUPS),
    ("Transactions", TRANSACTIONS),
    ("Observability", OBSERVABILITY),
    ("Metrics of clients", TELEMETRY),
];

/// Every key, in the order of [`SECTIONS`].
pub fn all() -> impl Iterator<Item = &'static KeySpec> {
    SECTIONS.iter().flat_map(|(_, keys)| keys.iter())
}

/// The key of this name.
pub fn find(name: &str) -> Option<&'static KeySpec> {
    all().find(|key| key.name == name)
}

static NODE: &[KeySpec] = &[
    KeySpec::new("process.roles", List)
        .default("broker,controller")
        .allowed(ListOf(&["broker", "controller"]))
        .importance(High)
        .doc(
            "Roles of this process: `broker` holds partitions and serves clients, `controller` votes on \
             the cluster's metadata.",
        ),
    KeySpec::new("node.id", Int)
        .default("1")
        .at_least(0)
        .importance(High)
        .doc("Id of this node. A data directory belongs to the node id that first used it."),
    KeySpec::new("broker.rack", Text).doc(
        "Rack of this broker, as told to clients in metadata, so that they can prefer replicas near \
         them.",
    ),
    KeySpec::new("log.dirs", List).importance(High).doc(
        "Directories of the data, one a disk. A new partition goes to the one with the fewest. When it is \
         not set, `log.dir` counts; when neither is, the data is in `./odradek-data`.",
    ),
    KeySpec::new("log.dir", List)
        .default("./odradek-data")
        .importance(High)
        .doc(
            "Directories of the data when `log.dirs` is not set. Kafka's default is `/tmp/kafka-logs`, \
             which a restart of the machine may empty.",
        ),
    KeySpec::new("metadata.log.dir", Text).importance(High).doc(
        "Directory of the cluster's metadata, and of what this node keeps of itself; when it is not set, the \
         first of `log.dirs`. If it fails, the node is of no more use.",
    ),
    KeySpec::new("controller.quorum.voters", List)
        .allowed(Checked(
            listeners::check_voters,
            "a list of `id@host:port`",
        ))
        .importance(High)
        .doc(
            "Voters of the metadata quorum as `id@host:port`, the same list on every node: every node \
             with the role `controller`, with the address of its controller listener. They are fixed: \
             `kraft.version` is 0. Without this key the metadata says who votes, and voters can be added \
             and removed; what this key says then counts for nothing in a cluster whose `kraft.version` \
             has been raised to 1.",
        ),
    KeySpec::new("controller.quorum.bootstrap.servers", List)
        .allowed(Checked(
            listeners::check_servers,
            "a list of `host:port`",
        ))
        .importance(High)
        .doc(
            "Controller listeners, as `host:port`, at which a node asks who votes on the metadata. One \
             that answers is enough. A controller that is in no cluster makes one only if all of them \
             are itself, or if it names neither these nor voters; otherwise it waits until one of them \
             answers, follows the metadata, and votes once it has been added.",
        ),
    KeySpec::new("controller.quorum.auto.join.enable", Boolean)
        .default("false")
        .doc(
            "Whether a controller adds itself to the voters that the metadata names once it has the \
             metadata, as `kafka-metadata-quorum.sh add-controller` would.",
        ),
    KeySpec::new("controller.listener.names", List)
        .importance(High)
        .doc(
            "Listeners by which other nodes reach this controller, and tools with \
             `--bootstrap-controller`. A node with both roles and none of them is a cluster of its own \
             that nobody can join.",
        ),
    KeySpec::new("broker.session.timeout.ms", Int)
        .default("9000")
        .at_least(1)
        .doc(
            "How long the metadata leader goes without an answer to its probes before it fences a \
             broker, which then gets no new replicas. Leaders move long before, by themselves.",
        ),
    KeySpec::new("controlled.shutdown.enable", Boolean)
        .default("true")
        .doc("Whether a broker that is told to stop hands its leaderships over first."),
    KeySpec::new("auto.leader.rebalance.enable", Boolean)
        .default("true")
        .importance(High)
        .doc("Whether leadership goes back to the first replica of a partition by and by."),
    KeySpec::new("leader.imbalance.check.interval.seconds", Long)
        .default("300")
        .at_least(1)
        .importance(High)
        .doc("How often partitions that their first replica does not lead are looked for."),
    KeySpec::new("odradek.shutdown.timeout.ms", Long)
        .default("5000")
        .at_least(0)
        .doc(
            "How long a stop waits for requests in progress, before their connections are closed.",
        ),
];

static NETWORK: &[KeySpec] = &[
    KeySpec::new("listeners", List)
        .default("PLAINTEXT://127.0.0.1:9092")
        .allowed(Checked(
            listeners::check_listeners,
            "a list of `NAME://host:port`, each name once",
        ))
        .importance(High)
        .doc(
            "Addresses to listen on, as `NAME://host:port`. An empty host is every interface; port 0 \
             lets the system choose and logs the choice. Kafka's default, every interface, would put \
             an unsecured broker on the network, so the default here is the loopback address.",
        ),
    KeySpec::new("advertised.listeners", List)
        .allowed(Checked(
            listeners::check_advertised,
            "a list of `NAME://host:port`, each name once, no meta-address",
        ))
        .importance(High)
        .doc(
            "Addresses that clients are told to use, by listener name. When not set, the addresses of \
             `listeners`, with the machine's name for an empty host.",
        ),
    KeySpec::new("listener.security.protocol.map", Text)
        .default("SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT")
        .allowed(Checked(
            listeners::check_protocol_map,
            "a list of `NAME:PROTOCOL`",
        ))
        .importance(Low)
        .doc(
            "Security protocol of each listener name. Only PLAINTEXT is served; a listener with \
             another protocol stops the start.",
        ),
    KeySpec::new("inter.broker.listener.name", Text).doc(
        "Listener for traffic between brokers. When not set, the one named PLAINTEXT; if there is none, \
         the first of `listeners`.",
    ),
    KeySpec::new("security.inter.broker.protocol", Text)
        .default("PLAINTEXT")
        .allowed(OneOf(&["PLAINTEXT"]))
        .doc("Security protocol between brokers. Only PLAINTEXT is served."),
    KeySpec::new("socket.listen.backlog.size", Int)
        .default("50")
        .at_least(1)
        .doc("Connections that the system keeps waiting to be accepted, a listener."),
    KeySpec::new("socket.receive.buffer.bytes", Int)
        .default("-1")
        .at_least(-1)
        .importance(High)
        .doc(
            "SO_RCVBUF of client sockets. −1 leaves it to the system, which then adapts it to how fast \
             the broker reads. Kafka's default, 102400, costs a third of the processor time of flat-out \
             produce: a frame then comes in many small reads.",
        ),
    KeySpec::new("socket.send.buffer.bytes", Int)
        .default("102400")
        .at_least(-1)
        .importance(High)
        .doc("SO_SNDBUF of client sockets. −1 leaves it to the system, which then adapts it."),
    KeySpec::new("socket.request.max.bytes", Int)
        .default("104857600")
        .at_least(1)
        .importance(High)
        .doc(
            "Largest request. A larger one closes its connection before it is read. Requests of APIs \
             that carry no bulk data are held to 16 MiB or to this, whichever is less.",
        ),
    KeySpec::new("max.connections", Int)
        .default("2147483647")
        .at_least(0)
        .update(ClusterWide)
        .doc("Most client connections of the broker. Further ones wait until one closes."),
    KeySpec::new("max.connections.per.ip", Int)
        .default("2147483647")
        .at_least(0)
        .update(ClusterWide)
        .doc("Most client connections from one address. Further ones are closed at once."),
    KeySpec::new("max.connections.per.ip.overrides", Text)
        .default("")
        .allowed(Checked(
            listeners::check_ip_overrides,
            "a list of `address:count`",
        ))
        .update(ClusterWide)
        .doc("Exceptions from `max.connections.per.ip`, as `address:count`."),
    KeySpec::new("connections.max.idle.ms", Long)
        .default("600000")
        .doc(
            "A connection on which nothing has moved for this long is closed, also while a request \
             of it waits. A client that has closed its side is waited for half a minute at most. A \
             negative value never closes.",
        ),
];

static REQUESTS: &[KeySpec] = &[
    KeySpec::new("odradek.request.memory.bytes", Long)
        .default("268435456")
        .at_least(1 << 20)
        .importance(High)
        .doc(
            "Memory for the requests of all connections. A frame is read once its bytes are reserved; \
             until then its connection waits. An eighth is for small frames alone, so that heartbeats \
             pass while produce waits.",
        ),
    KeySpec::new("queued.max.request.bytes", Long)
        .default("-1")
        .doc(
            "When positive and less than `odradek.request.memory.bytes`, this is the memory for \
             requests instead.",
        ),
    KeySpec::new("odradek.reply.memory.bytes", Long)
        .default("67108864")
        .at_least(1 << 20)
        .doc(
            "Memory for replies that clients have not read yet. Once it is used up, a connection with \
             unread replies starts no request; others go on.",
        ),
    KeySpec::new("odradek.connection.max.in.flight.requests", Int)
        .default("64")
        .allowed(Between(1, 10_000))
        .doc(
            "Requests of one connection that may await their replies; the next is not read until one \
             has left.",
        ),
    KeySpec::new("odradek.connection.max.in.flight.bytes", Int)
        .default("16777216")
        .allowed(Between(1, 1 << 30))
        .doc(
            "Bytes of one connection's Produce frames from 64 KiB to 8 MiB that may wait for their place \
             in a log; the next one is not read until there is room. One frame always fits.",
        ),
    KeySpec::new("fetch.max.bytes", Int)
        .default("57671680")
        .at_least(1024)
        .doc("Most bytes of records in the response to a fetch, whatever the client asks for."),
    KeySpec::new("max.incremental.fetch.session.cache.slots", Int)
        .default("1000")
        .at_least(0)
        .doc("Most incremental fetch sessions that are kept."),
    KeySpec::new("odradek.fetch.waiting.partitions", Int)
        .default("1000000")
        .at_least(1)
        .doc(
            "Partitions that all fetches waiting for records may name together. A fetch beyond that \
             is answered at once with what there is.",
        ),
    KeySpec::new("max.request.partition.size.limit", Int)
        .default("2000")
        .at_least(1)
        .doc("Most partitions in the response to a DescribeTopicPartitions request."),
];

static TOPICS: &[KeySpec] = &[
    KeySpec::new("auto.create.topics.enable", Boolean)
        .default("true")
        .importance(High)
        .doc("Whether a client's metadata request for an unknown topic may create it."),
    KeySpec::new("delete.topic.enable", Boolean)
        .default("true")
        .importance(High)
        .doc("Whether topics can be deleted."),
    KeySpec::new("num.partitions", Int)
        .default("1")
        .at_least(1)
        .doc("Partitions of a topic that is created without saying how many."),
    KeySpec::new("default.replication.factor", Int)
        .default("1")
        .at_least(1)
        .doc("Replicas of a topic that is created without saying how many."),
    KeySpec::new("min.insync.replicas", Int)
        .default("1")
        .at_least(1)
        .update(ClusterWide)
        .importance(High)
        .doc("Default of the topic setting of the same name."),
];

static LOGS: &[KeySpec] = &[
    KeySpec::new("message.max.bytes", Int)
        .default("1048588")
        .at_least(0)
        .update(ClusterWide)
        .importance(High)
        .doc("Default of `max.message.bytes`: largest record batch, as it comes."),
    KeySpec::new("max.decompressed.message.bytes", Int)
        .default("2147483639")
        .allowed(Between(1, 2_147_483_639))
        .update(ClusterWide)
        .doc("Default of the topic setting of the same name: most bytes a batch may expand to."),
    KeySpec::new("compression.type", Text)
        .default("producer")
        .allowed(OneOf(COMPRESSION_TYPES))
        .update(ClusterWide)
        .importance(High)
        .doc("Default of the topic setting of the same name."),
    KeySpec::new("compression.gzip.level", Int)
        .default("-1")
        .allowed(Checked(gzip_level, "an integer from 1 to 9, or -1"))
        .update(ClusterWide)
        .doc("Default of the topic setting of the same name."),
    KeySpec::new("compression.lz4.level", Int)
        .default("9")
        .allowed(Between(1, 17))
        .update(ClusterWide)
        .doc("Default of the topic setting of the same name."),
    KeySpec::new("compression.zstd.level", Int)
        .default("3")
        .allowed(Between(-131_072, 22))
        .update(ClusterWide)
        .doc("Default of the topic setting of the same name."),
    KeySpec::new("log.cleanup.policy", List)
        .default("delete")
        .allowed(ListOf(CLEANUP_POLICIES))
        .update(ClusterWide)
        .doc("Default of `cleanup.policy`."),
    KeySpec::new("log.retention.ms", Long)
        .at_least(-1)
        .update(ClusterWide)
        .importance(High)
        .doc(
            "Default of `retention.ms`: age at which records may go. When not set, \
             `log.retention.minutes` counts. −1 keeps them for ever.",
        ),
    KeySpec::new("log.retention.minutes", Int)
        .at_least(-1)
        .importance(High)
        .doc("The same in minutes. When not set, `log.retention.hours` counts."),
    KeySpec::new("log.retention.hours", Int)
        .default("168")
        .at_least(-1)
        .importance(High)
        .doc("The same in hours."),
    KeySpec::new("log.retention.bytes", Long)
        .default("-1")
        .update(ClusterWide)
        .importance(High)
        .doc("Default of `retention.bytes`: size of a partition above which old segments may go."),
    KeySpec::new("log.retention.check.interval.ms", Long)
        .default("300000")
        .at_least(1)
        .doc("How often logs are looked at for records that may go."),
    KeySpec::new("odradek.disk.reserve.bytes", Long)
        .default("268435456")
        .at_least(0)
        .doc(
            "Free space of the data directory's file system below which produce is refused with a \
             retriable error, so that what has been promised can still be kept. At most a twentieth \
             of the file system counts. Below half of it commits, joining a group, transactions and topics are \
             refused, too; below a quarter of it whatever else clients would have written.",
        ),
    KeySpec::new("log.segment.bytes", Int)
        .default("1073741824")
        .at_least(1 << 20)
        .update(ClusterWide)
        .importance(High)
        .doc("Default of `segment.bytes`: size at which a segment is closed."),
    KeySpec::new("log.roll.ms", Long)
        .at_least(1)
        .update(ClusterWide)
        .importance(High)
        .doc(
            "Default of `segment.ms`: age at which a segment is closed. When not set, `log.roll.hours` \
             counts.",
        ),
    KeySpec::new("log.roll.hours", Int)
        .default("168")
        .at_least(1)
        .importance(High)
        .doc("The same in hours."),
    KeySpec::new("log.roll.jitter.ms", Long)
        .at_least(0)
        .update(ClusterWide)
        .importance(High)
        .doc(
            "Default of `segment.jitter.ms`: most time by which a segment closes early, so that not \
             all do at once. When not set, `log.roll.jitter.hours` counts.",
        ),
    KeySpec::new("log.roll.jitter.hours", Int)
        .default("0")
        .at_least(0)
        .importance(High)
        .doc("The same in hours."),
    KeySpec::new("log.index.interval.bytes", Int)
        .default("4096")
        .at_least(0)
        .update(ClusterWide)
        .doc("Default of `index.interval.bytes`: bytes of log between two index entries."),
    KeySpec::new("log.index.size.max.bytes", Int)
        .default("10485760")
        .at_least(4)
        .update(ClusterWide)
        .doc("Default of `segment.index.bytes`: largest index; a full one closes its segment."),
    KeySpec::new("log.segment.delete.delay.ms", Long)
        .default("60000")
        .at_least(0)
        .update(ClusterWide)
        .importance(High)
        .doc("Default of `file.delete.delay.ms`: how long the files of a deleted segment stay."),
    KeySpec::new("log.message.timestamp.type", Text)
        .default("CreateTime")
        .allowed(OneOf(TIMESTAMP_TYPES))
        .update(ClusterWide)
        .doc("Default of `message.timestamp.type`."),
    KeySpec::new("log.message.timestamp.before.max.ms", Long)
        .default("9223372036854775807")
        .at_least(0)
        .update(ClusterWide)
        .doc("Default of `message.timestamp.before.max.ms`."),
    KeySpec::new("log.message.timestamp.after.max.ms", Long)
        .default("3600000")
        .at_least(0)
        .update(ClusterWide)
        .doc("Default of `message.timestamp.after.max.ms`."),
    KeySpec::new("log.preallocate", Boolean)
        .default("false")
        .update(ClusterWide)
        .doc("Default of `preallocate`."),
    KeySpec::new("log.flush.interval.messages", Long)
        .default("9223372036854775807")
        .at_least(1)
        .update(ClusterWide)
        .importance(High)
        .doc(
            "Default of `flush.messages`. Accepted and shown: an acknowledged batch is always on \
             stable storage, whatever this says.",
        ),
    KeySpec::new("log.flush.interval.ms", Long)
        .update(ClusterWide)
        .importance(High)
        .doc("Default of `flush.ms`. Accepted and shown, like `log.flush.interval.messages`."),
    KeySpec::new("unclean.leader.election.enable", Boolean)
        .default("false")
        .update(ClusterWide)
        .importance(High)
        .doc(
            "Default of the topic setting of the same name: whether a partition that has lost most of \
             its voters goes on with one that may lack acknowledged records.",
        ),
    KeySpec::new("log.cleaner.delete.retention.ms", Long)
        .default("86400000")
        .at_least(0)
        .update(ClusterWide)
        .doc("Default of `delete.retention.ms`."),
    KeySpec::new("log.cleaner.min.compaction.lag.ms", Long)
        .default("0")
        .at_least(0)
        .update(ClusterWide)
        .doc("Default of `min.compaction.lag.ms`."),
    KeySpec::new("log.cleaner.max.compaction.lag.ms", Long)
        .default("9223372036854775807")
        .at_least(1)
        .update(ClusterWide)
        .doc("Default of `max.compaction.lag.ms`."),
    KeySpec::new("log.cleaner.min.cleanable.ratio", Double)
        .default("0.5")
        .allowed(super::key::Allowed::BetweenDouble(0.0, 1.0))
        .update(ClusterWide)
        .doc("Default of `min.cleanable.dirty.ratio`."),
    KeySpec::new("log.cleaner.enable", Boolean)
        .default("true")
        .doc("Whether logs of compacted topics are compacted on this broker."),
    KeySpec::new("log.cleaner.threads", Int)
        .default("1")
        .allowed(Between(1, 64))
        .update(ClusterWide)
        .doc("Logs that are compacted at the same time."),
    KeySpec::new("log.cleaner.dedupe.buffer.size", Long)
        .default("134217728")
        .allowed(Between(1_048_576, 1 << 40))
        .update(ClusterWide)
        .doc(
            "Memory for the keys of all logs that are compacted at the same time, in bytes, at 24 \
             bytes a key. A log with more keys is compacted piece by piece.",
        ),
    KeySpec::new("log.cleaner.io.max.bytes.per.second", Double)
        .default("1.7976931348623157E308")
        .allowed(super::key::Allowed::BetweenDouble(0.0, f64::MAX))
        .update(ClusterWide)
        .doc("Most bytes that compaction reads and writes in a second, all logs together."),
    KeySpec::new("log.cleaner.backoff.ms", Long)
        .default("15000")
        .at_least(1)
        .update(ClusterWide)
        .doc("Pause between two looks for logs to compact."),
];

static PRODUCERS: &[KeySpec] = &[
    KeySpec::new("producer.id.expiration.ms", Int)
        .default("86400000")
        .at_least(1)
        .update(ClusterWide)
        .importance(Low)
        .doc("How long a partition remembers an idempotent producer that sends nothing."),
    KeySpec::new("producer.id.expiration.check.interval.ms", Int)
        .default("600000")
        .at_least(1)
        .importance(Low)
        .doc("How often forgotten producers are looked for."),
];

static GROUPS: &[KeySpec] = &[
    KeySpec::new("group.initial.rebalance.delay.ms", Int)
        .default("3000")
        .at_least(0)
        .doc("How long a new group waits for more members before its first rebalance."),
    KeySpec::new("group.min.session.timeout.ms", Int)
        .default("6000")
        .doc("Shortest session timeout that a member may ask for."),
    KeySpec::new("group.max.session.timeout.ms", Int)
        .default("1800000")
        .doc("Longest session timeout that a member may ask for."),
    KeySpec::new("group.max.size", Int)
        .default("2147483647")
        .at_least(1)
        .doc("Most members of a group."),
    KeySpec::new("group.consumer.session.timeout.ms", Int)
        .default("45000")
        .at_least(1)
        .doc("How long a member of a consumer group may be silent, unless its group has its own."),
    KeySpec::new("group.consumer.min.session.timeout.ms", Int)
        .default("45000")
        .at_least(1)
        .doc("Shortest session timeout that a consumer group may be given."),
    KeySpec::new("group.consumer.max.session.timeout.ms", Int)
        .default("60000")
        .at_least(1)
        .doc("Longest session timeout that a consumer group may be given."),
    KeySpec::new("group.consumer.heartbeat.interval.ms", Int)
        .default("5000")
        .at_least(1)
        .doc("How often a member of a consumer group is to be heard of, unless its group has its own."),
    KeySpec::new("group.consumer.min.heartbeat.interval.ms", Int)
        .default("5000")
        .at_least(1)
        .doc("Shortest heartbeat interval that a consumer group may be given."),
    KeySpec::new("group.consumer.max.heartbeat.interval.ms", Int)
        .default("15000")
        .at_least(1)
        .doc("Longest heartbeat interval that a consumer group may be given."),
    KeySpec::new("group.consumer.assignment.interval.ms", Int)
        .default("1000")
        .at_least(0)
        .doc(
            "How long after a consumer group was assigned its partitions it is assigned them anew at \
             the earliest, so that changes which come together make one assignment.",
        ),
    KeySpec::new("group.consumer.min.assignment.interval.ms", Int)
        .default("0")
        .at_least(0)
        .doc("Shortest assignment interval that a consumer group may be given."),
    KeySpec::new("group.consumer.max.assignment.interval.ms", Int)
        .default("15000")
        .at_least(0)
        .doc("Longest assignment interval that a consumer group may be given."),
    KeySpec::new("group.consumer.max.size", Int)
        .default("2147483647")
        .at_least(1)
        .doc("Most members of a consumer group."),
    KeySpec::new("group.consumer.assignors", List)
        .default("uniform,range")
        .doc(
            "The assignors that members of consumer groups may choose from, the first for those who \
             do not. There are `uniform` and `range`.",
        ),
    KeySpec::new("group.consumer.migration.policy", Text)
        .default("bidirectional")
        .doc(
            "Which way a group with members may go between the classic and the consumer protocol: \
             `bidirectional`, `upgrade`, `downgrade` or `disabled`. A group without members may \
             always go.",
        ),
    KeySpec::new("group.consumer.regex.refresh.interval.ms", Int)
        .default("600000")
        .at_least(10_000)
        .doc("How long the topics that a regular expression of a consumer group matched are good for."),
    KeySpec::new("odradek.groups.member.bytes", Long)
        .default("134217728")
        .at_least(65_536)
        .doc(
            "Most bytes that the members of all groups may take together with their names, \
             subscriptions and assignments. A member that brings more gets COORDINATOR_NOT_AVAILABLE, \
             which clients retry.",
        ),
    KeySpec::new("odradek.groups.member.small.bytes", Int)
        .default("16384")
        .at_least(0)
        .doc(
            "Members that take more than this leave the last quarter of `odradek.groups.member.bytes` to those \
             that take no more.",
        ),
    KeySpec::new("odradek.groups.member.host.percent", Int)
        .default("50")
        .allowed(Between(1, 100))
        .doc(
            "Part of `odradek.groups.member.bytes` that members from one address may take together, so that one \
             client does not keep all others from joining.",
        ),
    KeySpec::new("offsets.topic.num.partitions", Int)
        .default("50")
        .at_least(1)
        .importance(High)
        .doc("Partitions of `__consumer_offsets` when it is created; the real number rules later."),
    KeySpec::new("offsets.topic.replication.factor", Short)
        .default("3")
        .at_least(1)
        .importance(High)
        .doc(
            "Replicas of `__consumer_offsets`, but never more than there are nodes when it is \
             created.",
        ),
    KeySpec::new("offsets.topic.segment.bytes", Int)
        .default("104857600")
        .at_least(1 << 20)
        .importance(High)
        .doc("`segment.bytes` of `__consumer_offsets`."),
    KeySpec::new("offsets.retention.minutes", Int)
        .default("10080")
        .at_least(1)
        .importance(High)
        .doc("How long the offsets of a group without members are kept."),
    KeySpec::new("offsets.retention.check.interval.ms", Long)
        .default("600000")
        .at_least(1)
        .importance(High)
        .doc("How often offsets that may go are looked for."),
    KeySpec::new("offset.metadata.max.bytes", Int)
        .default("4096")
        .at_least(0)
        .importance(High)
        .doc("Longest text that may go with a committed offset."),
    KeySpec::new("offsets.commit.timeout.ms", Int)
        .default("5000")
        .at_least(1)
        .importance(High)
        .doc("How long a coordinator waits for its record to be committed before it gives up."),
];

static OBSERVABILITY: &[KeySpec] = &[
    KeySpec::new("odradek.http.listener", Text)
        .default("")
        .allowed(Checked(
            listeners::check_http_listener,
            "`host:port`, or nothing",
        ))
        .doc(
            "Address of `GET /metrics` (Prometheus text), `/healthz` and `/readyz`, as `host:port`. \
             Empty serves none of them, and nothing is counted. There is no authentication: keep it \
             on an address that only the operator reaches.",
        ),
    KeySpec::new("odradek.log.format", Text)
        .default("text")
        .allowed(OneOf(&["text", "json"]))
        .doc(
            "Form of the log on standard error: `text`, or one JSON object a line. The level comes \
             from the environment variable RUST_LOG, `info` by default.",
        ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_defaults_are_allowed() {
        let mut names = std::collections::HashSet::new();
        for key in all() {
            assert!(names.insert(key.name), "{} stands twice", key.name);
            assert!(!key.doc.is_empty(), "{} has no doc", key.name);
            if let Some(default) = key.default {
                assert_eq!(
                    key.normalize(default).as_deref(),
                    Ok(default),
                    "{}",
                    key.name
                );
            }
        }
    }

    #[test]
    fn keys_of_our_own_are_marked_as_such() {
        for key in all() {
            let foreign = super::super::foreign_keys::FOREIGN
                .iter()
                .any(|foreign| foreign.0 == key.name);
            assert!(!foreign, "{} is in both tables", key.name);
        }
    }
}
