//! Kafka's command-line tools, what each is asked, and where their answers at Odradek differ from those at Kafka.
//!
//! A test runs the script from its beginning to its end at both, in this order, and compares what is printed and how
//! each command ends. `docs/COMPATIBILITY.md` is made from the same table. `{files}` in an argument is a directory with
//! [`FILES`], `{data}` the server's data directory.

use anyhow::Result;

use crate::batches::BatchSpec;
use crate::groups::find_coordinator;
use crate::kafka::{
    BROKER_API_VERSIONS, CLIENT_METRICS, CLUSTER, CONFIGS, CONSOLE_CONSUMER, CONSOLE_PRODUCER,
    CONSUMER_GROUPS, CONSUMER_PERF_TEST, DELETE_RECORDS, DUMP_LOG, E2E_LATENCY, FEATURES,
    GET_OFFSETS, GROUPS, LEADER_ELECTION, LOG_DIRS, METADATA_QUORUM, PRODUCER_PERF_TEST,
    REASSIGN_PARTITIONS, STREAMS_RESET, TOPICS, TRANSACTIONS, Tool, VERIFIABLE_CONSUMER,
    VERIFIABLE_PRODUCER,
};
use crate::requests::{create_topic, produce_ok};
use crate::transactions::TxnProducer;
use crate::wire::Wire;

/// One command.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// The tool.
    pub tool: Tool,
    /// What it is asked, for people; with the tool's name it is told from all others.
    pub label: &'static str,
    /// Its arguments with spaces between, but for where the server is; `~` is a space in one of them.
    pub arguments: &'static str,
    /// Its standard input.
    pub input: &'static str,
    /// Its lines come in any order.
    pub unordered: bool,
    /// Its numbers are measured.
    pub measured: bool,
    /// Only the lines that have this in them are compared; empty for all.
    pub only: &'static str,
}

const fn ask(tool: Tool, label: &'static str, arguments: &'static str) -> Command {
    Command {
        tool,
        label,
        arguments,
        input: "",
        unordered: false,
        measured: false,
        only: "",
    }
}

/// Commands, one a line: tool, label, arguments, and in brackets how it is run and what is compared.
macro_rules! script {
    ($($tool:ident $label:literal $arguments:literal $([$($how:ident $($what:expr)?),*])?;)*) => {
        &[$({
            #[allow(unused_mut)]
            let mut command = ask($tool, $label, $arguments);
            $($(script!(@ command $how $($what)?);)*)?
            command
        }),*]
    };
    (@ $command:ident unordered) => { $command.unordered = true };
    (@ $command:ident measured) => { $command.measured = true };
    (@ $command:ident only $what:expr) => { $command.only = $what };
    (@ $command:ident fed $what:expr) => { $command.input = $what };
}

/// Commands, and what is done to each server before them that no tool does.
#[derive(Clone, Copy)]
pub struct Chapter {
    /// Done to each server.
    pub prepare: fn(&mut Wire) -> Result<()>,
    /// Run in this order.
    pub commands: &'static [Command],
}

/// Files that commands read: name and content.
pub const FILES: &[(&str, &str)] = &[
    (
        "delete.json",
        r#"{"partitions": [{"topic": "side-talk", "partition": 0, "offset": 2}], "version": 1}"#,
    ),
    (
        "delete-too-much.json",
        r#"{"partitions": [{"topic": "side-talk", "partition": 0, "offset": 2000}], "version": 1}"#,
    ),
    (
        "topics.json",
        r#"{"topics": [{"topic": "side-a"}], "version": 1}"#,
    ),
    (
        "stay.json",
        r#"{"version": 1, "partitions": [{"topic": "side-a", "partition": 0, "replicas": [1]}]}"#,
    ),
    (
        "away.json",
        r#"{"version": 1, "partitions": [{"topic": "side-a", "partition": 0, "replicas": [7]}]}"#,
    ),
    (
        "elect.json",
        r#"{"partitions": [{"topic": "side-a", "partition": 0}, {"topic": "side-a", "partition": 1}]}"#,
    ),
];

/// What differs on purpose, or is not there yet: tool, label, why.
pub const TOOL_DIFFERENCES: &[(&str, &str, &str)] = &[
    (
        "kafka-configs",
        "of a topic: describe all",
        "There are no settings of brokers for tiered storage to fall back to, and `write.caching` is Odradek's own.",
    ),
    (
        "kafka-configs",
        "of a topic: an impossible value",
        "The refusal says what the setting takes.",
    ),
    ("kafka-configs", "of all brokers: describe", ELIGIBLE),
    (
        "kafka-broker-api-versions",
        "all of them",
        "Kafka takes client metrics only with a plugin for them.",
    ),
    ("kafka-features", "describe", FEATURE_LIST),
    (
        "kafka-features",
        "a level that does not exist",
        FEATURE_LIST,
    ),
];

const ELIGIBLE: &str =
    "Kafka sets `min.insync.replicas` for the whole cluster as a part of eligible leader replicas.";
const FEATURE_LIST: &str =
    "A feature is listed once what it promises works, at the levels that there are here.";

const TALK: &str = "h1:v1,h2:v2\tkey-1\tvalue-1\nh1:\tkey-2\tvalue-2\nh1:x\tkey-3\tNULL\n";
fn nothing(_: &mut Wire) -> Result<()> {
    Ok(())
}

/// A transaction that stays open until it is aborted, and one that was committed.
fn transactions(wire: &mut Wire) -> Result<()> {
    find_coordinator(wire, "side-readers")?;
    let topic = create_topic(wire, "side-txn", 1, &[])?;
    let done = TxnProducer::init(wire, "side-done")?;
    done.add(wire, "side-txn", &[0])?;
    let batch = done.batch(0, 2, 1_700_000_000_000)?;
    crate::requests::produce(wire, &topic, 0, batch)?;
    done.end(wire, 3, true)?;
    done.until_completed(wire)?;
    let open = TxnProducer::init(wire, "side-open")?;
    open.add(wire, "side-txn", &[0])
}

fn end_transactions(wire: &mut Wire) -> Result<()> {
    TxnProducer::init(wire, "side-open").map(drop)
}

/// Records of known times.
fn dated(wire: &mut Wire) -> Result<()> {
    let topic = create_topic(wire, "side-dated", 2, &[])?;
    for (partition, count) in [(0, 3), (1, 2)] {
        let batch = BatchSpec::small(count, 1_700_000_000_000).build()?;
        produce_ok(wire, &topic, partition, batch)?;
    }
    Ok(())
}

/// The whole of it.
pub const SCRIPT: &[Chapter] = &[
    Chapter {
        prepare: nothing,
        commands: script! {
            TOPICS "create" "--create --topic side-a --partitions 3 --config retention.ms=3600000";
            TOPICS "create what is there" "--create --topic side-a";
            TOPICS "create if it is not there" "--create --topic side-a --if-not-exists";
            TOPICS "create with too many replicas" "--create --topic side-b --replication-factor 3";
            TOPICS "create with a setting that does not exist" "--create --topic side-b --config no.such.key=1";
            TOPICS "create under an illegal name" "--create --topic side~b";
            TOPICS "create with replicas by hand" "--create --topic side-b --replica-assignment 1,1";
            TOPICS "list" "--list" [only "side-"];
            TOPICS "describe" "--describe --topic side-a";
            TOPICS "describe with overrides" "--describe --topics-with-overrides" [only "side-"];
            TOPICS "describe what is under-replicated" "--describe --under-replicated-partitions";
            TOPICS "describe what is unavailable" "--describe --unavailable-partitions";
            TOPICS "describe what is not there" "--describe --topic side-nowhere";
            TOPICS "more partitions" "--alter --topic side-b --partitions 4";
            TOPICS "fewer partitions" "--alter --topic side-b --partitions 1";
            TOPICS "describe what has grown" "--describe --topic side-b";
            TOPICS "delete" "--delete --topic side-b";
            TOPICS "delete what is not there" "--delete --topic side-nowhere";
            CONFIGS "of a topic: change" "--alter --entity-type topics --entity-name side-a --add-config retention.ms=5000,cleanup.policy=[compact,delete]";
            CONFIGS "of a topic: describe" "--describe --entity-type topics --entity-name side-a";
            CONFIGS "of a topic: take back" "--alter --entity-type topics --entity-name side-a --delete-config retention.ms";
            CONFIGS "of a topic: describe all" "--describe --all --entity-type topics --entity-name side-a" [unordered];
            CONFIGS "of a topic: a key that does not exist" "--alter --entity-type topics --entity-name side-a --add-config no.such.key=1";
            CONFIGS "of a topic: an impossible value" "--alter --entity-type topics --entity-name side-a --add-config retention.ms=soon";
            CONFIGS "of a topic that is not there" "--describe --entity-type topics --entity-name side-nowhere";
            CONFIGS "of a broker: change" "--alter --entity-type brokers --entity-name 1 --add-config max.connections=5000";
            CONFIGS "of a broker: describe" "--describe --entity-type brokers --entity-name 1";
            CONFIGS "of a broker: take back" "--alter --entity-type brokers --entity-name 1 --delete-config max.connections";
            CONFIGS "of a broker: what only a start can change" "--alter --entity-type brokers --entity-name 1 --add-config node.id=2";
            CONFIGS "of all brokers: change" "--alter --entity-type brokers --entity-default --add-config log.retention.ms=86400000";
            CONFIGS "of all brokers: describe" "--describe --entity-type brokers --entity-default";
            CONFIGS "of a broker: describe with the default" "--describe --entity-type brokers --entity-name 1";
            CONFIGS "of all brokers: take back" "--alter --entity-type brokers --entity-default --delete-config log.retention.ms";
            CONFIGS "of a group: change" "--alter --entity-type groups --entity-name side-group --add-config consumer.session.timeout.ms=50000";
            CONFIGS "of a group: describe" "--describe --entity-type groups --entity-name side-group";
            CONFIGS "of a group: an impossible value" "--alter --entity-type groups --entity-name side-group --add-config consumer.session.timeout.ms=1";
            CONFIGS "of a group: take back" "--alter --entity-type groups --entity-name side-group --delete-config consumer.session.timeout.ms";
            CONFIGS "of client metrics: change" "--alter --entity-type client-metrics --entity-name side-metrics --add-config interval.ms=60000,metrics=org.apache.kafka.producer.";
            CONFIGS "of client metrics: describe" "--describe --entity-type client-metrics --entity-name side-metrics";
            CLIENT_METRICS "change" "--alter --name side-metrics --interval 30000 --metrics org.apache.kafka.consumer.";
            CLIENT_METRICS "list" "--list";
            CLIENT_METRICS "describe" "--describe --name side-metrics";
            CLIENT_METRICS "delete" "--delete --name side-metrics";
            TOPICS "create for talk" "--create --topic side-talk --partitions 1";
            CONSOLE_PRODUCER "keys, headers and nulls" "--topic side-talk --compression-codec lz4 --reader-property parse.key=true --reader-property parse.headers=true --reader-property null.marker=NULL" [fed TALK];
            CONSOLE_CONSUMER "all that there is of each" "--topic side-talk --from-beginning --max-messages 3 --group side-readers --timeout-ms 30000 --formatter-property print.key=true --formatter-property print.headers=true --formatter-property print.offset=true --formatter-property print.partition=true --formatter-property print.timestamp=true --formatter-property null.literal=nothing";
            CONSOLE_CONSUMER "one partition from an offset" "--topic side-talk --partition 0 --offset 1 --max-messages 2 --timeout-ms 30000";
            CONSUMER_GROUPS "list" "--list" [only "side-", unordered];
            CONSUMER_GROUPS "list with states" "--list --state" [only "side-", unordered];
            CONSUMER_GROUPS "describe" "--describe --group side-readers";
            CONSUMER_GROUPS "describe members" "--describe --group side-readers --members --verbose";
            CONSUMER_GROUPS "describe state" "--describe --group side-readers --state";
            CONSUMER_GROUPS "describe what is not there" "--describe --group side-nobody";
            CONSUMER_GROUPS "what a reset would do" "--reset-offsets --group side-readers --topic side-talk --to-earliest --dry-run";
            CONSUMER_GROUPS "reset by a shift" "--reset-offsets --group side-readers --topic side-talk --shift-by -2 --execute";
            CONSUMER_GROUPS "reset to an offset" "--reset-offsets --group side-readers --topic side-talk:0 --to-offset 2 --execute";
            CONSUMER_GROUPS "export offsets" "--reset-offsets --group side-readers --topic side-talk --to-current --export --dry-run";
            CONSUMER_GROUPS "reset to a time" "--reset-offsets --group side-readers --topic side-talk --to-datetime 2020-01-01T00:00:00.000 --execute";
            CONSUMER_GROUPS "delete offsets" "--delete-offsets --group side-readers --topic side-talk";
            GROUPS "list" "--list" [only "side-", unordered];
            GROUPS "list of consumer groups" "--list --consumer" [only "side-", unordered];
            CONSUMER_GROUPS "delete" "--delete --group side-readers";
            CONSUMER_GROUPS "delete what is not there" "--delete --group side-nobody";
            GET_OFFSETS "latest" "--topic side-talk --time latest";
        },
    },
    Chapter {
        prepare: dated,
        commands: script! {
            GET_OFFSETS "of several partitions" "--topic side-dated --partitions 0,1";
            GET_OFFSETS "with the largest time" "--topic side-dated --time max-timestamp";
            GET_OFFSETS "at a time" "--topic-partitions side-dated:0 --time 1700000000001";
            GET_OFFSETS "earliest on the local disk" "--topic side-dated --time earliest-local";
            GET_OFFSETS "of what is not there" "--topic side-nowhere";
            DELETE_RECORDS "up to an offset" "--offset-json-file {files}/delete.json";
            DELETE_RECORDS "beyond the end" "--offset-json-file {files}/delete-too-much.json";
            GET_OFFSETS "earliest" "--topic side-talk --time earliest";
            LOG_DIRS "describe" "--describe --topic-list side-dated --broker-list 1";
            DUMP_LOG "records of a segment" "--files {data}/side-dated-0/00000000000000000000.log --print-data-log --deep-iteration";
            DUMP_LOG "a compressed segment" "--files {data}/side-talk-0/00000000000000000000.log" [measured];
            TOPICS "create for measurements" "--create --topic side-perf --partitions 2";
            PRODUCER_PERF_TEST "5,000 records" "--topic side-perf --num-records 5000 --record-size 100 --throughput -1 --command-property acks=all" [measured];
            CONSUMER_PERF_TEST "5,000 records" "--topic side-perf --num-records 5000 --timeout 30000" [measured];
            GET_OFFSETS "how much was produced" "--topic side-perf" [measured];
            E2E_LATENCY "50 records" "--topic side-talk --num-records 50 --producer-acks all --record-size 100" [measured];
            VERIFIABLE_PRODUCER "20 records" "--topic side-dated --max-messages 20 --acks -1 --value-prefix 7 --repeating-keys 5" [only "producer_send_success", unordered];
            VERIFIABLE_CONSUMER "25 records" "--topic side-dated --group-id side-vouchers --reset-policy earliest --max-messages 25" [only "_complete"];
            STREAMS_RESET "what it would do" "--application-id side-vouchers --input-topics side-dated --dry-run";
            STREAMS_RESET "reset" "--application-id side-vouchers --input-topics side-dated";
            STREAMS_RESET "a topic that is not there" "--application-id side-vouchers --input-topics side-nowhere";
            CONSUMER_GROUPS "describe what was reset" "--describe --group side-vouchers" [unordered];
        },
    },
    Chapter {
        prepare: transactions,
        commands: script! {
            TRANSACTIONS "list" "list" [only "side-", unordered];
            TRANSACTIONS "describe" "describe --transactional-id side-done" [measured];
            TRANSACTIONS "describe what is open" "describe --transactional-id side-open" [measured];
            TRANSACTIONS "describe what is not there" "describe --transactional-id side-nobody";
            TRANSACTIONS "describe producers" "describe-producers --topic side-txn --partition 0" [measured];
            TRANSACTIONS "find hanging ones" "find-hanging --broker-id 1";
        },
    },
    Chapter {
        prepare: end_transactions,
        commands: script! {
            REASSIGN_PARTITIONS "generate" "--generate --topics-to-move-json-file {files}/topics.json --broker-list 1";
            REASSIGN_PARTITIONS "execute what is so" "--execute --reassignment-json-file {files}/stay.json";
            REASSIGN_PARTITIONS "verify" "--verify --reassignment-json-file {files}/stay.json";
            REASSIGN_PARTITIONS "execute to a broker that is not there" "--execute --reassignment-json-file {files}/away.json";
            REASSIGN_PARTITIONS "list" "--list";
            REASSIGN_PARTITIONS "cancel" "--cancel --reassignment-json-file {files}/stay.json";
            LEADER_ELECTION "of some" "--election-type preferred --path-to-json-file {files}/elect.json" [unordered];
            LEADER_ELECTION "of what is not there" "--election-type preferred --topic side-nowhere --partition 0";
            LEADER_ELECTION "unclean" "--election-type unclean --topic side-a --partition 0";
            METADATA_QUORUM "status" "describe --status" [measured];
            METADATA_QUORUM "replication" "describe --replication" [measured];
            FEATURES "describe" "describe" [unordered];
            FEATURES "a level that does not exist" "upgrade --feature group.version=9";
            CLUSTER "id" "cluster-id";
            CLUSTER "endpoints" "list-endpoints";
            CLUSTER "unregister what is not there" "unregister --id 7";
            BROKER_API_VERSIONS "all of them" "";
        },
    },
];
