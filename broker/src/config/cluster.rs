//! What a node is in its cluster: roles, voters of the metadata quorum, and the listeners that nodes
//! reach one another through.
//!
//! Without a file a node is a cluster of its own: both roles, one voter, no listener but its clients'.
//! With a listener for controllers it is the first of a cluster that may grow.

use std::time::Duration;

use odradek_protocol::ids::NodeId;

use super::broker_config::{millis, refused};
use super::key::InvalidValue;
use super::listeners::{self, Endpoint};
use super::values::Layers;

const VOTERS: &str = "controller.quorum.voters";
const BOOTSTRAP_SERVERS: &str = "controller.quorum.bootstrap.servers";
const ROLES: &str = "process.roles";
const CONTROLLER_LISTENERS: &str = "controller.listener.names";

/// A voter of the metadata quorum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Voter {
    /// `node.id` of the voter.
    pub id: NodeId,
    /// Host of its controller listener.
    pub host: String,
    /// Port of its controller listener.
    pub port: u16,
}

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterConfig {
    /// Whether `process.roles` has `broker`: the node holds partitions and serves clients.
    pub is_broker: bool,
    /// Whether `process.roles` has `controller`: the node is a voter of the metadata quorum.
    pub is_controller: bool,
    /// `controller.quorum.voters`: voters that never change. Empty where the metadata says who votes.
    pub voters: Vec<Voter>,
    /// `controller.quorum.bootstrap.servers`: hosts and ports at which the voters are asked for.
    pub bootstrap_servers: Vec<(String, u16)>,
    /// `controller.quorum.auto.join.enable`.
    pub joins_voters: bool,
    /// Listeners of `controller.listener.names`, if other nodes may come through them.
    pub controller_listeners: Vec<Endpoint>,
    /// Name of the listener through which other nodes reach this broker, in upper case.
    pub inter_broker_listener: String,
    /// `broker.session.timeout.ms`.
    pub session_timeout: Duration,
    /// `controlled.shutdown.enable`.
    pub controlled_shutdown: bool,
    /// `auto.leader.rebalance.enable`.
    pub rebalance_leaders: bool,
    /// `leader.imbalance.check.interval.seconds`.
    pub imbalance_check_interval: Duration,
}

impl ClusterConfig {
    /// Whether there are no other nodes and never will be in this process's life.
    pub fn is_alone(&self) -> bool {
        self.is_broker
            && self.is_controller
            && self.controller_listeners.is_empty()
            && self.bootstrap_servers.is_empty()
            && self.voters.len() <= 1
    }

    /// Whether the voters of the metadata quorum are those that every configuration names.
    pub fn has_fixed_voters(&self) -> bool {
        !self.voters.is_empty()
    }

    /// Whether this node names nobody else, and so makes the cluster if it is in none.
    pub fn names_nobody(&self) -> bool {
        self.voters.len() <= 1 && self.bootstrap_servers.is_empty()
    }

    /// Reads the keys, and checks what they say together. `for_clients` are the listeners that are
    /// not for controllers.
    pub(super) fn from_layers(
        layers: &Layers,
        for_clients: &[Endpoint],
        for_controllers: Vec<Endpoint>,
    ) -> Result<Self, InvalidValue> {
        let node: i32 = layers.required("node.id")?;
        let roles = layers.list(ROLES);
        let is_broker = roles.iter().any(|role| role == "broker");
        let is_controller = roles.iter().any(|role| role == "controller");
        let voters = given_voters(layers)?;
        let bootstrap_servers = bootstrap_servers(layers)?;
        check_roles(layers, node, &voters, &bootstrap_servers)?;
        let is_alone =
            is_broker && is_controller && voters.len() <= 1 && bootstrap_servers.is_empty();
        if is_broker && for_clients.is_empty() {
            return Err(refused(layers, "listeners", "none of them is for clients"));
        }
        if !is_broker && !for_clients.is_empty() {
            return Err(refused(
                layers,
                "listeners",
                "a node without the role broker has no listeners but those of \
                 controller.listener.names",
            ));
        }
        if is_controller && !is_alone && for_controllers.is_empty() {
            return Err(refused(
                layers,
                CONTROLLER_LISTENERS,
                "the other nodes need a listener of a controller to reach it by",
            ));
        }
        let seconds: u64 = layers.required("leader.imbalance.check.interval.seconds")?;
        Ok(Self {
            is_broker,
            is_controller,
            voters,
            bootstrap_servers,
            joins_voters: layers.required("controller.quorum.auto.join.enable")?,
            controller_listeners: if is_controller {
                for_controllers
            } else {
                Vec::new()
            },
            inter_broker_listener: match is_broker {
                true => inter_broker_listener(layers, for_clients)?,
                // What files for brokers and controllers have in common says it too.
                false => String::new(),
            },
            session_timeout: millis(layers, "broker.session.timeout.ms")?,
            controlled_shutdown: layers.required("controlled.shutdown.enable")?,
            rebalance_leaders: layers.required("auto.leader.rebalance.enable")?,
            imbalance_check_interval: Duration::from_secs(seconds),
        })
    }
}

fn given_voters(layers: &Layers) -> Result<Vec<Voter>, InvalidValue> {
    let Some(value) = layers.get(VOTERS) else {
        return Ok(Vec::new());
    };
    let parsed =
        listeners::parse_voters(value).map_err(|reason| refused(layers, VOTERS, reason))?;
    let voters: Vec<Voter> = parsed
        .into_iter()
        .map(|(id, host, port)| Voter {
            id: NodeId::new(id),
            host,
            port,
        })
        .collect();
    for (at, voter) in voters.iter().enumerate() {
        let earlier = voters.iter().take(at);
        let (mut same_id, mut same_address) = (false, false);
        for other in earlier {
            same_id |= other.id == voter.id;
            same_address |= (&other.host, other.port) == (&voter.host, voter.port);
        }
        if same_id {
            let reason = format!("node {} stands twice", voter.id);
            return Err(refused(layers, VOTERS, reason));
        }
        if same_address {
            let reason = format!("{}:{} stands twice", voter.host, voter.port);
            return Err(refused(layers, VOTERS, reason));
        }
    }
    Ok(voters)
}

fn bootstrap_servers(layers: &Layers) -> Result<Vec<(String, u16)>, InvalidValue> {
    layers
        .list(BOOTSTRAP_SERVERS)
        .iter()
        .map(|server| {
            listeners::split_address(server)
                .map_err(|reason| refused(layers, BOOTSTRAP_SERVERS, reason))
        })
        .collect()
}

fn check_roles(
    layers: &Layers,
    node: i32,
    voters: &[Voter],
    bootstrap_servers: &[(String, u16)],
) -> Result<(), InvalidValue> {
    let roles = layers.list(ROLES);
    if roles.is_empty() {
        return Err(refused(layers, ROLES, "a node needs a role"));
    }
    let is_controller = roles.iter().any(|role| role == "controller");
    let is_voter = voters.iter().any(|voter| voter.id.get() == node);
    if is_controller && !voters.is_empty() && !is_voter {
        let reason =
            format!("a node with the role controller must be among the voters: {node}@host:port");
        return Err(refused(layers, VOTERS, reason));
    }
    if !is_controller && is_voter {
        let reason = format!("node {node} is a voter and has not the role controller");
        return Err(refused(layers, ROLES, reason));
    }
    if voters.is_empty() && bootstrap_servers.is_empty() && !is_controller {
        return Err(refused(
            layers,
            ROLES,
            "a node without the role controller needs controller.quorum.bootstrap.servers or \
             controller.quorum.voters, to find the cluster",
        ));
    }
    Ok(())
}

/// The listener that is named; otherwise, as in Kafka, the one of the security protocol's name, and
/// if there is none, the first.
fn inter_broker_listener(
    layers: &Layers,
    for_clients: &[Endpoint],
) -> Result<String, InvalidValue> {
    let name = "inter.broker.listener.name";
    if let Some(wanted) = layers.get(name) {
        return for_clients
            .iter()
            .find(|endpoint| endpoint.name.eq_ignore_ascii_case(wanted))
            .map(|endpoint| endpoint.name.clone())
            .ok_or_else(|| refused(layers, name, "there is no such listener"));
    }
    let protocol = layers.text("security.inter.broker.protocol")?;
    Ok(for_clients
        .iter()
        .find(|endpoint| endpoint.name == protocol)
        .or(for_clients.first())
        .map(|endpoint| endpoint.name.clone())
        .unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::BrokerConfig;
    use super::*;

    fn with(settings: &[(&str, &str)]) -> Result<ClusterConfig, InvalidValue> {
        let mut layers = Layers::default();
        for (name, value) in settings {
            layers
                .statics
                .insert((*name).to_owned(), (*value).to_owned());
        }
        BrokerConfig::from_layers(&layers).map(|config| config.cluster)
    }

    const VOTERS_OF_THREE: (&str, &str) = (VOTERS, "1@a:9093,2@b:9093,3@c:9093");
    const PROTOCOLS: (&str, &str) = (
        "listener.security.protocol.map",
        "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
    );
    const BOTH_LISTENERS: (&str, &str) = ("listeners", "PLAINTEXT://:9092,CONTROLLER://:9093");
    const CONTROLLER: (&str, &str) = (CONTROLLER_LISTENERS, "CONTROLLER");

    #[test]
    fn a_node_without_a_file_is_alone_and_opens_nothing_for_others() {
        let cluster = with(&[]).expect("the defaults");
        assert!(cluster.is_alone() && cluster.is_broker && cluster.is_controller);
        assert!(cluster.controller_listeners.is_empty());
        assert!(!cluster.has_fixed_voters());
    }

    #[test]
    fn a_listener_for_controllers_makes_a_node_the_first_of_several() {
        let fixed = with(&[(VOTERS, "1@h:9093"), BOTH_LISTENERS, CONTROLLER, PROTOCOLS]);
        let fixed = fixed.expect("one voter");
        assert!(!fixed.is_alone() && fixed.has_fixed_voters() && fixed.names_nobody());
        let growing = with(&[BOTH_LISTENERS, CONTROLLER, PROTOCOLS]).expect("no voters");
        assert!(!growing.is_alone() && !growing.has_fixed_voters() && growing.names_nobody());
        assert_eq!(growing.controller_listeners.len(), 1);
        let joining = with(&[
            (BOOTSTRAP_SERVERS, "a:9093,[::1]:9094"),
            BOTH_LISTENERS,
            CONTROLLER,
            PROTOCOLS,
        ]);
        let joining = joining.expect("bootstrap servers");
        assert!(!joining.names_nobody() && !joining.is_alone());
        assert_eq!(joining.bootstrap_servers[1], ("::1".to_owned(), 9094));
        let broker = with(&[(ROLES, "broker"), (BOOTSTRAP_SERVERS, "a:9093")]);
        assert!(broker.expect("a broker").controller_listeners.is_empty());
    }

    #[test]
    fn a_voter_of_three_opens_its_controller_listener() {
        let cluster = with(&[VOTERS_OF_THREE, BOTH_LISTENERS, CONTROLLER, PROTOCOLS]);
        let cluster = cluster.expect("three voters");
        assert!(!cluster.is_alone());
        assert_eq!(cluster.voters.len(), 3);
        assert_eq!(cluster.controller_listeners.len(), 1);
        assert_eq!(cluster.inter_broker_listener, "PLAINTEXT");
    }

    #[test]
    fn each_role_may_stand_alone() {
        let broker = with(&[(ROLES, "broker"), ("node.id", "4"), VOTERS_OF_THREE]);
        let broker = broker.expect("a broker");
        assert!(broker.is_broker && !broker.is_controller && !broker.is_alone());
        let controller = with(&[
            (ROLES, "controller"),
            VOTERS_OF_THREE,
            ("listeners", "CONTROLLER://:9093"),
            ("inter.broker.listener.name", "PLAINTEXT"),
            CONTROLLER,
            PROTOCOLS,
        ]);
        let controller = controller.expect("a controller");
        assert!(!controller.is_broker && controller.controller_listeners.len() == 1);
        let named = with(&[
            (ROLES, "broker"),
            ("node.id", "4"),
            VOTERS_OF_THREE,
            ("listeners", "PLAINTEXT://:9092,INTERNAL://:9094"),
            PROTOCOLS,
            ("inter.broker.listener.name", "internal"),
        ]);
        assert_eq!(
            named
                .map(|cluster| cluster.inter_broker_listener)
                .as_deref(),
            Ok("INTERNAL")
        );
    }

    #[test]
    fn roles_and_voters_that_contradict_each_other_are_refused_with_the_reason() {
        for (settings, key) in [
            (&[(ROLES, "broker")][..], ROLES),
            (&[(ROLES, "")], ROLES),
            (&[(VOTERS, "2@a:1")], VOTERS),
            (&[(VOTERS, "1@a:1,1@b:1")], VOTERS),
            (&[(VOTERS, "1@a:1,2@a:1")], VOTERS),
            (&[VOTERS_OF_THREE], CONTROLLER_LISTENERS),
            (&[(BOOTSTRAP_SERVERS, "a:9093")], CONTROLLER_LISTENERS),
            (&[(BOOTSTRAP_SERVERS, "a")], BOOTSTRAP_SERVERS),
            (&[(ROLES, "broker"), VOTERS_OF_THREE], ROLES),
            (&[(ROLES, "controller")], "listeners"),
            (
                &[
                    (ROLES, "controller"),
                    VOTERS_OF_THREE,
                    BOTH_LISTENERS,
                    CONTROLLER,
                    PROTOCOLS,
                ],
                "listeners",
            ),
        ] {
            let error = with(settings).expect_err(key);
            assert_eq!(error.key, key, "{settings:?}: {error}");
            assert!(error.reason.is_some(), "{error}");
        }
    }
}
