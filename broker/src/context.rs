//! What a request handler can reach: the broker's shared services and the facts of one request.
//!
//! Nothing here does work; the services own their state.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use odradek_protocol::ids::NodeId;

use crate::clock::Clock;
use crate::cluster::Controllers;
use crate::config::ConfigStore;
use crate::fetch_service::FetchService;
use crate::groups;
use crate::metadata::producer_ids::ProducerIds;
use crate::metadata::service::MetadataService;
use crate::partitions::PartitionManager;
use crate::telemetry::Telemetry;
use crate::txn;
use crate::txn::asking::Asking;
use crate::txn::markers::MarkerWriter;

/// Shared services of one broker process.
#[derive(Debug)]
pub struct BrokerContext {
    /// Who this node is.
    pub identity: NodeIdentity,
    /// Settings; `config.load()` gives those that count now.
    pub config: Arc<ConfigStore>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The cluster's metadata.
    pub metadata: Arc<MetadataService>,
    /// The way to whoever leads the metadata; `None` when there are no other nodes.
    pub controllers: Option<Arc<Controllers>>,
    /// Ids for new producers.
    pub producer_ids: ProducerIds,
    /// Coordinators of the groups that this node is responsible for.
    pub groups: Arc<groups::Service>,
    /// Coordinators of the transactional ids that this node is responsible for.
    pub transactions: Arc<txn::Service>,
    /// The way to the coordinator of a transaction, wherever it is.
    pub txn_asking: Asking,
    /// What writes the ends of transactions into partitions.
    pub markers: MarkerWriter,
    /// Where clients reach this node, a listener each.
    pub endpoints: Vec<AdvertisedEndpoint>,
    /// Where other controllers reach this node, a listener each.
    pub controller_endpoints: Vec<AdvertisedEndpoint>,
    /// The partitions that this broker holds.
    pub partitions: Arc<PartitionManager>,
    /// What all fetches share.
    pub fetch: Arc<FetchService>,
    /// Metrics that clients push.
    pub telemetry: Arc<Telemetry>,
}

/// Where clients reach a node through one of its listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdvertisedEndpoint {
    /// Listener name, such as `PLAINTEXT`.
    pub listener_name: String,
    /// Host to connect to.
    pub host: String,
    /// Port to connect to.
    pub port: u16,
}

/// Who this node is.
#[derive(Debug, Clone)]
pub struct NodeIdentity {
    /// `node.id`.
    pub node_id: NodeId,
    /// Cluster id as printed by Kafka's tools: 22 characters of URL-safe base64.
    pub cluster_id: String,
    /// `broker.rack`, if set.
    pub rack: Option<String>,
}

/// Facts of one client connection, fixed once it is accepted, but for what the client says of its software.
#[derive(Debug)]
pub struct ConnectionInfo {
    /// Address of the client.
    pub peer: SocketAddr,
    /// Name of the listener the client came through, such as `PLAINTEXT`.
    pub listener_name: String,
    /// Host that this listener advertises.
    pub advertised_host: String,
    /// Port that this listener advertises.
    pub advertised_port: u16,
    /// Whether the listener is one of `controller.listener.names`.
    pub is_for_controllers: bool,
    /// What the client's first ApiVersions says of its software (KIP-511), once it has come.
    pub client_software: OnceLock<ClientSoftware>,
}

impl ConnectionInfo {
    /// What stands for a connection where a request has come over none of a client.
    pub(crate) fn of_nobody() -> Self {
        Self {
            peer: ([0, 0, 0, 0], 0).into(),
            listener_name: String::new(),
            advertised_host: String::new(),
            advertised_port: 0,
            is_for_controllers: false,
            client_software: OnceLock::new(),
        }
    }
}

/// The software of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientSoftware {
    /// What it is called, such as `apache-kafka-java`.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// One request on its way through a handler.
#[derive(Debug, Clone)]
pub struct RequestContext {
    /// The broker's services.
    pub broker: Arc<BrokerContext>,
    /// The connection that the request came on.
    pub connection: Arc<ConnectionInfo>,
    /// API key as on the wire; it has a handler.
    pub api_key: i16,
    /// API version as on the wire; it is one that we serve.
    pub api_version: i16,
    /// `client.id` of the sender.
    pub client_id: Option<String>,
    /// When the frame was complete.
    pub received_at: Instant,
}
