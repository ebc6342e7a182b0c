//! The settings that count, as values of their types: what the rest of the broker reads.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use odradek_protocol::ids::NodeId;

use super::cluster::ClusterConfig;
use super::key::InvalidValue;
use super::listeners::{self, Endpoint};
use super::metadata_keys::checkpoint_rules;
use super::replication_keys::RACK_AWARE_SELECTOR;
use super::telemetry_keys::telemetry_limits;
use super::transaction_keys::TransactionsConfig;
use super::values::Layers;
use crate::groups::consumer::assignors::Assignor;
use crate::groups::consumer::{BoundedMs, GroupSettings, MigrationPolicy};
use crate::groups::member_memory::MemberBounds;
use crate::metadata::checkpoint::keeper::CheckpointRules;
use crate::peer::PeerLimits;
use crate::telemetry::TelemetryLimits;
use crate::topic_config::TopicDefaults;

/// A broker registers at most 64 directories, and the metadata may have one of its own.
const MAX_LOG_DIRS: usize = 63;

/// The broker's settings. A new one is made whenever a dynamic setting changes.
#[derive(Debug, Clone, PartialEq)]
pub struct BrokerConfig {
    /// `node.id`.
    pub node_id: NodeId,
    /// Roles, voters, and what nodes need of one another.
    pub cluster: ClusterConfig,
    /// `broker.rack`.
    pub rack: Option<String>,
    /// `metadata.log.dir`, or the first of `log_dirs`: where the metadata is, and what the node keeps of
    /// itself.
    pub data_dir: PathBuf,
    /// `log.dirs`, or `log.dir`: where partitions are.
    pub log_dirs: Vec<PathBuf>,
    /// `listeners`, without those of `controller.listener.names`: the clients'.
    pub listeners: Vec<Endpoint>,
    /// `advertised.listeners`, by listener name.
    pub advertised: HashMap<String, Endpoint>,
    /// `socket.listen.backlog.size`.
    pub listen_backlog: i32,
    /// `socket.receive.buffer.bytes`; `None` leaves it to the system.
    pub socket_receive_buffer_bytes: Option<usize>,
    /// `socket.send.buffer.bytes`; `None` leaves it to the system.
    pub socket_send_buffer_bytes: Option<usize>,
    /// `socket.request.max.bytes`.
    pub request_max_bytes: usize,
    /// `max.connections`.
    pub max_connections: usize,
    /// `max.connections.per.ip`.
    pub max_connections_per_ip: usize,
    /// `max.connections.per.ip.overrides`.
    pub max_connections_per_ip_overrides: HashMap<IpAddr, usize>,
    /// `connections.max.idle.ms`; `None` for never.
    pub connections_max_idle: Option<Duration>,
    /// Memory for request frames in bytes.
    pub request_memory_bytes: usize,
    /// `odradek.reply.memory.bytes`.
    pub reply_memory_bytes: usize,
    /// `odradek.connection.max.in.flight.requests`.
    pub max_in_flight_requests: usize,
    /// `odradek.connection.max.in.flight.bytes`.
    pub max_in_flight_bytes: usize,
    /// `odradek.shutdown.timeout.ms`.
    pub shutdown_timeout: Duration,
    /// `fetch.max.bytes`.
    pub fetch_max_bytes: usize,
    /// `max.incremental.fetch.session.cache.slots`.
    pub fetch_session_slots: usize,
    /// `odradek.fetch.waiting.partitions`.
    pub fetch_parked_partitions: usize,
    /// `max.request.partition.size.limit`.
    pub max_request_partitions: usize,
    /// `auto.create.topics.enable`.
    pub auto_create_topics: bool,
    /// `delete.topic.enable`.
    pub delete_topics: bool,
    /// `num.partitions`.
    pub num_partitions: i32,
    /// `default.replication.factor`.
    pub default_replication_factor: i16,
    /// Topic settings of a topic that sets none.
    pub topic_defaults: TopicDefaults,
    /// `log.retention.check.interval.ms`.
    pub retention_check_interval: Duration,
    /// Settings of compaction.
    pub cleaner: CleanerConfig,
    /// `odradek.disk.reserve.bytes`.
    pub disk_reserve_bytes: u64,
    /// `producer.id.expiration.ms`.
    pub producer_id_expiration: Duration,
    /// `producer.id.expiration.check.interval.ms`.
    pub producer_id_expiration_check_interval: Duration,
    /// Settings of consumer groups and committed offsets.
    pub groups: GroupsConfig,
    /// Settings of transactions.
    pub transactions: TransactionsConfig,
    /// When the metadata is written down.
    pub checkpoints: CheckpointRules,
    /// Settings of the replicas of partitions.
    pub replication: ReplicationConfig,
    /// Bounds of what goes on between nodes.
    pub peers: PeerLimits,
    /// Bounds of clients' metrics.
    pub telemetry: TelemetryLimits,
    /// `odradek.http.listener`: host and port, or `None`.
    pub http_listener: Option<(String, u16)>,
    /// Whether `odradek.log.format` is `json`.
    pub log_as_json: bool,
}

/// Settings of the replicas of partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicationConfig {
    /// `replica.lag.time.max.ms`.
    pub max_lag: Duration,
    /// Whether `replica.selector.class` names the selector that knows racks.
    pub rack_aware_reads: bool,
    /// `odradek.controlled.shutdown.timeout.ms`.
    pub controlled_shutdown_timeout: Duration,
    /// `odradek.leader.report.max.partitions`.
    pub report_partitions: usize,
    /// `odradek.unclean.leader.election.wait.ms`.
    pub unclean_wait: Duration,
}

impl ReplicationConfig {
    fn from_layers(layers: &Layers) -> Result<Self, InvalidValue> {
        let selector: Option<String> = layers.optional("replica.selector.class")?;
        Ok(Self {
            max_lag: millis(layers, "replica.lag.time.max.ms")?,
            rack_aware_reads: selector.is_some_and(|name| name == RACK_AWARE_SELECTOR),
            controlled_shutdown_timeout: millis(layers, "odradek.controlled.shutdown.timeout.ms")?,
            report_partitions: layers.required("odradek.leader.report.max.partitions")?,
            unclean_wait: millis(layers, "odradek.unclean.leader.election.wait.ms")?,
        })
    }
}

/// Settings of compaction on this broker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CleanerConfig {
    /// `log.cleaner.enable`.
    pub enabled: bool,
    /// `log.cleaner.threads`.
    pub threads: usize,
    /// `log.cleaner.dedupe.buffer.size`, for all threads together.
    pub map_bytes: usize,
    /// `log.cleaner.io.max.bytes.per.second`.
    pub bytes_per_second: f64,
    /// `log.cleaner.backoff.ms`.
    pub backoff: Duration,
}

impl CleanerConfig {
    fn from_layers(layers: &Layers) -> Result<Self, InvalidValue> {
        Ok(Self {
            enabled: layers.required("log.cleaner.enable")?,
            threads: layers.required("log.cleaner.threads")?,
            map_bytes: layers.required("log.cleaner.dedupe.buffer.size")?,
            bytes_per_second: layers.required("log.cleaner.io.max.bytes.per.second")?,
            backoff: millis(layers, "log.cleaner.backoff.ms")?,
        })
    }
}

/// Settings of consumer groups and committed offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupsConfig {
    /// `group.initial.rebalance.delay.ms`.
    pub initial_rebalance_delay: Duration,
    /// `group.min.session.timeout.ms`.
    pub min_session_timeout: Duration,
    /// `group.max.session.timeout.ms`.
    pub max_session_timeout: Duration,
    /// `group.max.size`.
    pub max_size: usize,
    /// `group.consumer.*`.
    pub consumer: GroupSettings,
    /// `odradek.groups.member.*`.
    pub members: MemberBounds,
    /// `offsets.topic.num.partitions`.
    pub offsets_topic_partitions: i32,
    /// `offsets.topic.replication.factor`.
    pub offsets_topic_replication_factor: i16,
    /// `offsets.topic.segment.bytes`.
    pub offsets_topic_segment_bytes: i32,
    /// `offsets.retention.minutes`.
    pub offsets_retention: Duration,
    /// `offsets.retention.check.interval.ms`.
    pub offsets_retention_check_interval: Duration,
    /// `offset.metadata.max.bytes`.
    pub offset_metadata_max_bytes: usize,
    /// `offsets.commit.timeout.ms`.
    pub offsets_commit_timeout: Duration,
}

impl BrokerConfig {
    /// Makes the values that count out of the layers, and checks what no key can check alone.
    pub fn from_layers(layers: &Layers) -> Result<Self, InvalidValue> {
        let (listeners, for_controllers) = served_listeners(layers)?;
        let cluster = ClusterConfig::from_layers(layers, &listeners, for_controllers)?;
        let log_dirs = log_dirs(layers)?;
        let config = Self {
            node_id: NodeId::new(layers.required("node.id")?),
            cluster,
            rack: layers.optional("broker.rack")?,
            data_dir: metadata_dir(layers, &log_dirs)?,
            log_dirs,
            advertised: advertised(layers)?,
            listeners,
            listen_backlog: layers.required("socket.listen.backlog.size")?,
            socket_receive_buffer_bytes: unless_negative(layers, "socket.receive.buffer.bytes")?,
            socket_send_buffer_bytes: unless_negative(layers, "socket.send.buffer.bytes")?,
            request_max_bytes: layers.required("socket.request.max.bytes")?,
            max_connections: layers.required("max.connections")?,
            max_connections_per_ip: layers.required("max.connections.per.ip")?,
            max_connections_per_ip_overrides: ip_overrides(layers)?,
            connections_max_idle: unless_negative(layers, "connections.max.idle.ms")?
                .map(Duration::from_millis),
            request_memory_bytes: request_memory_bytes(layers)?,
            reply_memory_bytes: layers.required("odradek.reply.memory.bytes")?,
            max_in_flight_requests: layers.required("odradek.connection.max.in.flight.requests")?,
            max_in_flight_bytes: layers.required("odradek.connection.max.in.flight.bytes")?,
            shutdown_timeout: millis(layers, "odradek.shutdown.timeout.ms")?,
            fetch_max_bytes: layers.required("fetch.max.bytes")?,
            fetch_session_slots: layers.required("max.incremental.fetch.session.cache.slots")?,
            fetch_parked_partitions: layers.required("odradek.fetch.waiting.partitions")?,
            max_request_partitions: layers.required("max.request.partition.size.limit")?,
            auto_create_topics: layers.required("auto.create.topics.enable")?,
            delete_topics: layers.required("delete.topic.enable")?,
            num_partitions: layers.required("num.partitions")?,
            default_replication_factor: replication_factor(layers, "default.replication.factor")?,
            topic_defaults: TopicDefaults::from_layers(layers)?,
            retention_check_interval: millis(layers, "log.retention.check.interval.ms")?,
            cleaner: CleanerConfig::from_layers(layers)?,
            disk_reserve_bytes: layers.required("odradek.disk.reserve.bytes")?,
            producer_id_expiration: millis(layers, "producer.id.expiration.ms")?,
            producer_id_expiration_check_interval: millis(
                layers,
                "producer.id.expiration.check.interval.ms",
            )?,
            groups: GroupsConfig::from_layers(layers)?,
            transactions: TransactionsConfig::from_layers(layers)?,
            checkpoints: checkpoint_rules(layers)?,
            replication: ReplicationConfig::from_layers(layers)?,
            peers: PeerLimits::from_layers(layers)?,
            telemetry: telemetry_limits(layers)?,
            http_listener: http_listener(layers)?,
            log_as_json: layers.text("odradek.log.format")? == "json",
        };
        if config.topic_defaults.get("retention.ms") == Some("0") {
            let set = [
                "log.retention.ms",
                "log.retention.minutes",
                "log.retention.hours",
            ];
            let name = set.iter().find(|name| layers.get(name) == Some("0"));
            return Err(refused(
                layers,
                name.unwrap_or(&"log.retention.ms"),
                "nothing would be kept; -1 keeps records for ever",
            ));
        }
        Ok(config)
    }

    /// The defaults, as tests and documents want them.
    pub fn defaults() -> Self {
        match Self::from_layers(&Layers::default()) {
            Ok(config) => config,
            Err(error) => unreachable!("a test checks the defaults: {error}"),
        }
    }
}

impl GroupsConfig {
    fn from_layers(layers: &Layers) -> Result<Self, InvalidValue> {
        let minutes: u64 = layers.required("offsets.retention.minutes")?;
        let config = Self {
            initial_rebalance_delay: millis(layers, "group.initial.rebalance.delay.ms")?,
            min_session_timeout: millis(layers, "group.min.session.timeout.ms")?,
            max_session_timeout: millis(layers, "group.max.session.timeout.ms")?,
            max_size: layers.required("group.max.size")?,
            consumer: consumer_groups(layers)?,
            members: member_bounds(layers)?,
            offsets_topic_partitions: layers.required("offsets.topic.num.partitions")?,
            offsets_topic_replication_factor: replication_factor(
                layers,
                "offsets.topic.replication.factor",
            )?,
            offsets_topic_segment_bytes: layers.required("offsets.topic.segment.bytes")?,
            offsets_retention: Duration::from_secs(minutes * 60),
            offsets_retention_check_interval: millis(
                layers,
                "offsets.retention.check.interval.ms",
            )?,
            offset_metadata_max_bytes: layers.required("offset.metadata.max.bytes")?,
            offsets_commit_timeout: millis(layers, "offsets.commit.timeout.ms")?,
        };
        if config.min_session_timeout > config.max_session_timeout {
            return Err(refused(
                layers,
                "group.min.session.timeout.ms",
                "it is above group.max.session.timeout.ms",
            ));
        }
        Ok(config)
    }
}

/// `group.consumer.*`, and what they must be together.
fn consumer_groups(layers: &Layers) -> Result<GroupSettings, InvalidValue> {
    let bounded = |what: &str| {
        let key = |bound: &str| format!("group.consumer.{bound}{what}.ms");
        let of = BoundedMs {
            default: layers.required(&key(""))?,
            min: layers.required(&key("min."))?,
            max: layers.required(&key("max."))?,
        };
        if of.min > of.max {
            let reason = format!("it is above {}", key("max."));
            return Err(refused(layers, &key("min."), reason));
        }
        if !(of.min..=of.max).contains(&of.default) {
            let reason = format!("it is not between {} and {}", key("min."), key("max."));
            return Err(refused(layers, &key(""), reason));
        }
        Ok(of)
    };
    let settings = GroupSettings {
        session_timeout_ms: bounded("session.timeout")?,
        heartbeat_interval_ms: bounded("heartbeat.interval")?,
        assignment_interval_ms: bounded("assignment.interval")?,
        max_size: layers.required("group.consumer.max.size")?,
        assignors: assignors(layers)?,
        migration_policy: migration_policy(layers)?,
        regex_refresh_interval_ms: layers.required("group.consumer.regex.refresh.interval.ms")?,
    };
    if settings.heartbeat_interval_ms.default >= settings.session_timeout_ms.default {
        let reason = "it is not below group.consumer.session.timeout.ms";
        return Err(refused(
            layers,
            "group.consumer.heartbeat.interval.ms",
            reason,
        ));
    }
    Ok(settings)
}

fn assignors(layers: &Layers) -> Result<Vec<Assignor>, InvalidValue> {
    const KEY: &str = "group.consumer.assignors";
    let names = layers.text(KEY)?;
    let mut assignors = Vec::new();
    for name in names
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
    {
        match Assignor::from_name(name) {
            Some(assignor) if assignors.contains(&assignor) => {
                return Err(refused(layers, KEY, format!("{name} is named twice")));
            }
            Some(assignor) => assignors.push(assignor),
            None => return Err(refused(layers, KEY, format!("there is no assignor {name}"))),
        }
    }
    match assignors.is_empty() {
        true => Err(refused(layers, KEY, "there must be one")),
        false => Ok(assignors),
    }
}

fn migration_policy(layers: &Layers) -> Result<MigrationPolicy, InvalidValue> {
    const KEY: &str = "group.consumer.migration.policy";
    let name = layers.text(KEY)?;
    MigrationPolicy::from_name(&name).ok_or_else(|| {
        let names = MigrationPolicy::NAMES.join(", ");
        refused(layers, KEY, format!("it is none of {names}"))
    })
}

pub(super) fn refused(layers: &Layers, name: &str, reason: impl Into<String>) -> InvalidValue {
    InvalidValue {
        key: name.to_owned(),
        value: layers.get(name).unwrap_or_default().to_owned(),
        expected: super::broker_keys::find(name)
            .map_or_else(String::new, super::key::KeySpec::expected),
        reason: Some(reason.into()),
    }
}

pub(super) fn millis(layers: &Layers, name: &str) -> Result<Duration, InvalidValue> {
    match layers.required::<i64>(name)?.try_into() {
        Ok(millis) => Ok(Duration::from_millis(millis)),
        Err(_) => Err(refused(layers, name, "a time cannot be negative")),
    }
}

fn unless_negative<T: TryFrom<i64>>(
    layers: &Layers,
    name: &str,
) -> Result<Option<T>, InvalidValue> {
    let number: i64 = layers.required(name)?;
    if number < 0 {
        return Ok(None);
    }
    match T::try_from(number) {
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(refused(layers, name, "it is too large")),
    }
}

pub(super) fn replication_factor(layers: &Layers, name: &str) -> Result<i16, InvalidValue> {
    let factor: i32 = layers.required(name)?;
    i16::try_from(factor).map_err(|_| refused(layers, name, "it is too large"))
}

fn member_bounds(layers: &Layers) -> Result<MemberBounds, InvalidValue> {
    let limit: usize = layers.required("odradek.groups.member.bytes")?;
    let percent: usize = layers.required("odradek.groups.member.host.percent")?;
    Ok(MemberBounds {
        limit,
        small: layers.required("odradek.groups.member.small.bytes")?,
        limit_of_host: limit / 100 * percent + limit % 100 * percent / 100,
    })
}

fn request_memory_bytes(layers: &Layers) -> Result<usize, InvalidValue> {
    let own: usize = layers.required("odradek.request.memory.bytes")?;
    let queued: i64 = layers.required("queued.max.request.bytes")?;
    let request_max: i64 = layers.required("socket.request.max.bytes")?;
    if queued > 0 && queued < request_max {
        return Err(refused(
            layers,
            "queued.max.request.bytes",
            "it must be at least socket.request.max.bytes, or not positive for no limit",
        ));
    }
    Ok(match usize::try_from(queued) {
        Ok(queued) if queued > 0 => own.min(queued),
        _ => own,
    })
}

fn log_dirs(layers: &Layers) -> Result<Vec<PathBuf>, InvalidValue> {
    let name = if layers.get("log.dirs").is_some() {
        "log.dirs"
    } else {
        "log.dir"
    };
    let dirs: Vec<PathBuf> = layers.list(name).into_iter().map(PathBuf::from).collect();
    if dirs.is_empty() {
        return Err(refused(layers, name, "a directory is needed"));
    }
    if dirs.len() > MAX_LOG_DIRS {
        return Err(refused(layers, name, "more than 63 directories"));
    }
    let mut seen = HashSet::new();
    if !dirs.iter().all(|dir| seen.insert(dir)) {
        return Err(refused(layers, name, "a directory is named twice"));
    }
    Ok(dirs)
}

fn metadata_dir(layers: &Layers, log_dirs: &[PathBuf]) -> Result<PathBuf, InvalidValue> {
    let name = "metadata.log.dir";
    match layers.get(name) {
        Some("") => Err(refused(layers, name, "a directory is needed")),
        Some(dir) => Ok(PathBuf::from(dir)),
        None => log_dirs
            .first()
            .cloned()
            .ok_or_else(|| refused(layers, name, "a directory is needed")),
    }
}

fn ip_overrides(layers: &Layers) -> Result<HashMap<IpAddr, usize>, InvalidValue> {
    let name = "max.connections.per.ip.overrides";
    listeners::parse_ip_overrides(&layers.text(name)?)
        .map_err(|reason| refused(layers, name, reason))
}

fn http_listener(layers: &Layers) -> Result<Option<(String, u16)>, InvalidValue> {
    let name = "odradek.http.listener";
    let value = layers.text(name)?;
    if value.is_empty() {
        return Ok(None);
    }
    listeners::split_address(&value)
        .map(Some)
        .map_err(|reason| refused(layers, name, reason))
}

/// The listeners for clients and those for controllers, each with a protocol that is served.
fn served_listeners(layers: &Layers) -> Result<(Vec<Endpoint>, Vec<Endpoint>), InvalidValue> {
    let endpoints = listeners::parse_endpoints(&layers.text("listeners")?)
        .map_err(|reason| refused(layers, "listeners", reason))?;
    let map_name = "listener.security.protocol.map";
    let protocols = listeners::parse_protocol_map(&layers.text(map_name)?)
        .map_err(|reason| refused(layers, map_name, reason))?;
    let for_controllers: Vec<String> = layers
        .list("controller.listener.names")
        .iter()
        .map(|name| name.to_ascii_uppercase())
        .collect();
    let (controllers, clients): (Vec<Endpoint>, Vec<Endpoint>) = endpoints
        .into_iter()
        .partition(|endpoint| for_controllers.contains(&endpoint.name));
    for endpoint in &clients {
        let protocol = protocols.get(&endpoint.name).map(String::as_str);
        check_protocol(layers, endpoint, protocol)?;
    }
    for endpoint in &controllers {
        // As in Kafka, one that the map does not name is PLAINTEXT.
        let protocol = protocols.get(&endpoint.name).map(String::as_str);
        check_protocol(layers, endpoint, protocol.or(Some("PLAINTEXT")))?;
    }
    Ok((clients, controllers))
}

fn check_protocol(
    layers: &Layers,
    endpoint: &Endpoint,
    protocol: Option<&str>,
) -> Result<(), InvalidValue> {
    let name = &endpoint.name;
    let reason = match protocol {
        Some("PLAINTEXT") => return Ok(()),
        Some(other) => format!(
            "{name} is {other} by listener.security.protocol.map, and only PLAINTEXT is served by \
             this version"
        ),
        None => format!("{name} has no protocol in listener.security.protocol.map"),
    };
    Err(refused(layers, "listeners", reason))
}

fn advertised(layers: &Layers) -> Result<HashMap<String, Endpoint>, InvalidValue> {
    let name = "advertised.listeners";
    let Some(value) = layers.get(name) else {
        return Ok(HashMap::new());
    };
    let endpoints =
        listeners::parse_endpoints(value).map_err(|reason| refused(layers, name, reason))?;
    for endpoint in &endpoints {
        let known = listeners::parse_endpoints(&layers.text("listeners")?)
            .is_ok_and(|all| all.iter().any(|one| one.name == endpoint.name));
        if !known {
            return Err(refused(
                layers,
                name,
                format!("listeners has no {}", endpoint.name),
            ));
        }
    }
    Ok(endpoints
        .into_iter()
        .map(|endpoint| (endpoint.name.clone(), endpoint))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(settings: &[(&str, &str)]) -> Result<BrokerConfig, InvalidValue> {
        let mut layers = Layers::default();
        for (name, value) in settings {
            layers
                .statics
                .insert((*name).to_owned(), (*value).to_owned());
        }
        BrokerConfig::from_layers(&layers)
    }

    #[test]
    fn defaults_make_a_node_of_one_on_the_loopback_address() {
        let config = BrokerConfig::defaults();
        assert_eq!(config.node_id, NodeId::new(1));
        assert_eq!(
            config.listeners[0].to_string(),
            "PLAINTEXT://127.0.0.1:9092"
        );
        assert_eq!(config.data_dir, PathBuf::from("./odradek-data"));
        assert_eq!(config.log_dirs, [PathBuf::from("./odradek-data")]);
        assert_eq!(config.request_memory_bytes, 256 << 20);
    }

    #[test]
    fn a_server_properties_of_one_kraft_node_is_understood() {
        let config = with(&[
            ("process.roles", "broker,controller"),
            ("node.id", "7"),
            ("controller.quorum.voters", "7@localhost:9093"),
            ("listeners", "PLAINTEXT://:9092,CONTROLLER://:9093"),
            ("advertised.listeners", "PLAINTEXT://h:1,CONTROLLER://h:2"),
            ("controller.listener.names", "CONTROLLER"),
            (
                "listener.security.protocol.map",
                "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            ),
            ("log.dirs", "/data"),
        ])
        .expect("understood");
        assert_eq!(config.listeners.len(), 1);
        assert_eq!(config.advertised.len(), 2);
        assert_eq!(config.data_dir, PathBuf::from("/data"));
    }

    #[test]
    fn the_metadata_is_in_the_first_log_directory_or_in_one_of_its_own() {
        let config = with(&[("log.dirs", " /a, /b ")]).expect("understood");
        assert_eq!(config.log_dirs, ["/a", "/b"].map(PathBuf::from));
        assert_eq!(config.data_dir, PathBuf::from("/a"));
        let own = with(&[("log.dirs", "/a,/b"), ("metadata.log.dir", "/m")]).expect("understood");
        assert_eq!(own.log_dirs, config.log_dirs);
        assert_eq!(own.data_dir, PathBuf::from("/m"));
    }

    #[test]
    fn what_no_key_can_check_alone_is_refused_with_its_reason() {
        for (settings, key) in [
            (&[("listeners", "SSL://:9092")][..], "listeners"),
            (&[("listeners", "MINE://:9092")], "listeners"),
            (&[("log.dirs", "/a,/b,/a")], "log.dirs"),
            (&[("log.dirs", "")], "log.dirs"),
            (
                &[("advertised.listeners", "OTHER://h:1")],
                "advertised.listeners",
            ),
            (
                &[("queued.max.request.bytes", "1000")],
                "queued.max.request.bytes",
            ),
            (
                &[("group.min.session.timeout.ms", "2000000")],
                "group.min.session.timeout.ms",
            ),
            (
                &[("inter.broker.listener.name", "X")],
                "inter.broker.listener.name",
            ),
        ] {
            let error = with(settings).expect_err(key);
            assert_eq!(error.key, key, "{error}");
            assert!(error.reason.is_some(), "{error}");
        }
    }
}
