//! One broker process put together: services started in the order in which they need one another,
//! and stopped in the reverse.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::codec::Uuid;
use odradek_raft::RaftNode;
use odradek_storage::disk::Disk;
use tokio::task::JoinHandle;

use crate::clock::{Clock, SystemClock};
use crate::cluster::node::ClusterError;
use crate::cluster::service::directory_uuid;
use crate::cluster::{self, ClusterNode};
use crate::config::listeners::Endpoint;
use crate::config::load::Loaded;
use crate::config::{BrokerConfig, ConfigStore};
use crate::context::{AdvertisedEndpoint, BrokerContext, NodeIdentity};
use crate::data_dir::{ClusterNaming, DataDirError};
use crate::data_dirs::DataDirs;
use crate::descriptors;
use crate::dispatch::{BrokerDispatcher, DispatcherSlot};
use crate::fetch_service::{FetchLimits, FetchService};
use crate::follower::Follower;
use crate::groups;
use crate::groups::attendant::Attendant;
use crate::groups::config::CoordinatorConfig;
use crate::http::{self, Health, HttpError, HttpServer};
use crate::memory::MemoryBudget;
use crate::metadata::checkpoint::fetch::NoSource;
use crate::metadata::controller::register_broker::{
    Registrant, Registration, found_cluster, register_broker,
};
use crate::metadata::controller::voters::{ControllerRegistration, name_this_voter};
use crate::metadata::producer_ids::ProducerIds;
use crate::metadata::records::BrokerEndpoint;
use crate::metadata::service::{MetadataError, MetadataOptions, MetadataService};
use crate::metrics::ServerMetrics;
use crate::partitions::log_dir::LogDirectories;
use crate::partitions::{
    HousekeepingOptions, PartitionManager, PartitionManagerOptions, PlacesError, settle_places,
};
use crate::peer::{self, PeerServer};
use crate::raft_stack::{RaftStack, RaftStackError};
use crate::server::{
    Answering, BindError, BoundListener, ConnectionLimits, Connections, ListenerSpec, Server,
    ServerOptions,
};
use crate::telemetry::Telemetry;
use crate::txn;
use crate::txn::asking::Asking;
use crate::txn::delivery::Delivery;
use crate::txn::markers::MarkerWriter;

/// Kafka's number of the security protocol PLAINTEXT.
const PLAINTEXT: i16 = 0;

/// How long a client may stall inside a request while others wait for the memory that it holds.
const STALL_LIMIT: Duration = Duration::from_secs(5);

/// How long nothing may move on the connection of a client that has closed its side. Such a connection
/// counts against `max.connections`, and most of those clients will never read again.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);

/// How often a node of a cluster looks whether its log directories still work.
const HEALTH_PERIOD: Duration = Duration::from_millis(200);

/// Why a broker does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// A listener cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The HTTP endpoint cannot be served.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The partitions' groups cannot be run.
    #[error(transparent)]
    Raft(#[from] RaftStackError),
    /// The metadata log cannot be run.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// It is not clear which of the log directories a partition is in.
    #[error(transparent)]
    Places(#[from] PlacesError),
    /// The cluster cannot be joined.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

/// A running broker.
pub struct Broker {
    context: Arc<BrokerContext>,
    server: Server,
    node: Option<ClusterNode>,
    http: Option<HttpServer>,
    health: Arc<Health>,
    raft: Arc<RaftNode>,
    tasks: Vec<JoinHandle<()>>,
    listening: Vec<String>,
    directories: Arc<LogDirectories>,
    data_dir: DataDirs,
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").finish_non_exhaustive()
    }
}

impl Broker {
    /// Starts a broker with the settings of a start. Needs a tokio runtime.
    pub async fn start(loaded: Loaded) -> Result<Self, StartError> {
        let Loaded {
            statics, config, ..
        } = loaded;
        let naming = if config.cluster.is_alone() {
            ClusterNaming::MadeHere
        } else {
            ClusterNaming::Learned
        };
        let mut data_dir =
            DataDirs::open(&config.data_dir, &config.log_dirs, config.node_id, naming)?;
        let incarnation = Uuid::from_bytes(rand::random());
        let mut listeners = bind_listeners(&config, &config.listeners).await?;
        let endpoints: Vec<_> = listeners.iter().map(endpoint).collect();
        let for_controllers = bind_listeners(&config, &config.cluster.controller_listeners).await?;
        let controller_endpoints: Vec<_> = for_controllers.iter().map(endpoint).collect();
        listeners.extend(for_controllers);
        let listening = listeners
            .iter()
            .map(|listener| format!("{}://{}", listener.name(), listener.address()))
            .collect();
        let budget = MemoryBudget::new(config.request_memory_bytes, config.reply_memory_bytes);
        let peers = (!config.cluster.is_alone())
            .then(|| cluster::node::peers(&config, &data_dir, incarnation));
        let stack = RaftStack::open(&config, data_dir.failed(), peers.as_ref())?;
        let clock = SystemClock::shared();
        let log_dirs = config.log_dirs.iter().map(PathBuf::as_path);
        settle_places(&*stack.disk, log_dirs, clock.wall())?;
        let directories = Arc::clone(&stack.directories);
        let health = Arc::new(Health::new(Arc::clone(&directories)));
        let http = serve_http(&config, &health, &budget).await?;

        // Other nodes are served from here on; clients wait until all is there.
        let peer_server = peers
            .as_ref()
            .map(|peers| PeerServer::new(Arc::clone(peers), Arc::clone(&stack.raft)));
        if let (Some(http), Some(peers)) = (&http, &peers) {
            http.observe_peers(Arc::clone(peers));
        }
        let throttles = peers.as_ref().map(|peers| Arc::clone(peers.throttles()));
        let node = peers
            .zip(peer_server.as_ref())
            .map(|(peers, server)| ClusterNode::new(&config, peers, server));
        let dispatcher = DispatcherSlot::default();
        let connections = connections(&config);
        let server = Server::start(
            listeners,
            &server_options(&config),
            &connections,
            Answering {
                dispatcher: dispatcher.clone(),
                peers: peer_server,
            },
            budget,
            Arc::new(ServerMetrics::new()),
        );
        let registration = registration(&config, &endpoints, &data_dir, incarnation);
        let controller =
            controller_registration(&config, &controller_endpoints, &data_dir, incarnation);
        let mut tasks = Vec::new();
        let metadata = match &node {
            None => {
                let metadata = open_metadata(&config, &stack.raft, &clock, &stack.disk).await?;
                let voters = config.cluster.has_fixed_voters();
                let controller = (!voters).then_some(&controller);
                found_and_register(&metadata, &data_dir, registration, controller).await?;
                metadata
            }
            Some(node) => {
                let metadata = node
                    .open_metadata(
                        &stack.raft,
                        &config,
                        &mut data_dir,
                        &controller,
                        &clock,
                        &stack.disk,
                    )
                    .await?;
                tasks.extend(node.follow_voters(&metadata, &data_dir));
                if config.cluster.is_controller {
                    node.register_controller(&metadata, controller).await?;
                }
                if config.cluster.is_broker {
                    node.register(&metadata, &mut data_dir, registration)
                        .await?;
                }
                metadata
            }
        };

        let housekeeping = HousekeepingOptions::of(&config);
        let coordinators = CoordinatorConfig::from(&config.groups);
        let groups = Arc::new(groups::Service::new(coordinators, Arc::clone(&clock)));
        let fetch = Arc::new(FetchService::new(FetchLimits::of(&config)));
        let identity = NodeIdentity {
            node_id: config.node_id,
            cluster_id: data_dir.cluster_id().unwrap_or_default().to_owned(),
            rack: config.rack.clone(),
        };
        let telemetry = Arc::new(Telemetry::new(config.telemetry, Arc::clone(&clock)));
        let config = ConfigStore::new(statics, config);
        if let Some(directory) = directories.with_metadata() {
            metadata.keep_free_on(Arc::clone(directory));
        }
        let partitions = PartitionManager::new(PartitionManagerOptions {
            node_id: identity.node_id,
            raft: Arc::clone(&stack.raft),
            disk: stack.disk,
            directories: Arc::clone(&directories),
            config: Arc::clone(&config),
            clock: Arc::clone(&clock),
        });
        if let Some(http) = &http {
            http.observe(Arc::clone(&partitions), Arc::clone(&fetch));
            http.observe_telemetry(Arc::clone(&telemetry));
        }
        let follower = Follower {
            node_id: identity.node_id,
            config: Arc::clone(&config),
            partitions: Arc::clone(&partitions),
            connections,
            throttles,
        };
        let commit_timeout = config.load().groups.offsets_commit_timeout;
        let attendant =
            Attendant::new(Arc::clone(&groups), Arc::clone(&partitions), commit_timeout);
        let peers = node
            .as_ref()
            .map(|node| Arc::clone(node.controllers().peers()));
        let markers = MarkerWriter::new(Arc::clone(&partitions), Arc::clone(&groups));
        let delivery = Delivery::new(
            Arc::clone(&metadata),
            Arc::clone(&partitions),
            markers.clone(),
            peers.clone(),
        );
        let transactions = {
            let loaded = config.load();
            let settings = &loaded.transactions;
            Arc::new(txn::Service::new(
                txn::config::CoordinatorConfig::from(settings),
                settings.load_buffer_bytes,
                Arc::clone(&clock),
                Arc::new(delivery),
            ))
        };
        let txn_asking = Asking::new(Arc::clone(&transactions), Arc::clone(&partitions), peers);
        tasks.push(tokio::spawn(txn::attendant::attend(
            Arc::clone(&transactions),
            Arc::clone(&partitions),
            commit_timeout,
            metadata.subscribe(),
        )));
        tasks.push(tokio::spawn(follower.run(metadata.subscribe())));
        tasks.push(tokio::spawn(attendant.run(metadata.subscribe())));
        tasks.push(tokio::spawn(
            Arc::clone(&partitions).keep_house(housekeeping),
        ));
        let known = metadata.image().next_offset();
        partitions.wait_until_reconciled(known).await;
        partitions.wait_until_lone_groups_lead().await;

        let controllers = node.as_ref().map(|node| Arc::clone(node.controllers()));
        let producer_ids =
            ProducerIds::new(Arc::clone(&metadata), controllers.clone(), identity.node_id);
        let context = Arc::new(BrokerContext {
            identity,
            config,
            clock,
            endpoints,
            controller_endpoints,
            controllers,
            producer_ids,
            metadata,
            groups,
            transactions,
            txn_asking,
            markers,
            partitions,
            fetch,
            telemetry,
        });
        if let Some(node) = &node {
            tasks.extend(node.start_duties(&context, &stack.raft));
        }
        dispatcher.fill(Arc::new(BrokerDispatcher::new(Arc::clone(&context))));
        health.set_ready(true);
        Ok(Self {
            context,
            server,
            node,
            http,
            health,
            raft: stack.raft,
            tasks,
            listening,
            directories,
            data_dir,
        })
    }

    /// The services, as handlers see them.
    pub fn context(&self) -> &Arc<BrokerContext> {
        &self.context
    }

    /// Where it listens, as `NAME://address:port` with the real ports.
    pub fn listening(&self) -> &[String] {
        &self.listening
    }

    /// The data directories.
    pub fn data_dir(&self) -> &DataDirs {
        &self.data_dir
    }

    /// Real address of the HTTP endpoint, if it is served.
    pub fn http_address(&self) -> Option<std::net::SocketAddr> {
        self.http.as_ref().map(HttpServer::address)
    }

    /// Waits until this process is of no more use, and returns why: among other nodes, once the directory
    /// with the metadata has failed, or all that hold partitions. What it leads it can neither write to nor give away, and others take over
    /// as soon as it is gone. A node on its own goes on to serve what can be read.
    pub async fn until_useless(&self) -> String {
        if self.node.is_none() {
            return std::future::pending().await;
        }
        loop {
            if let Some(cause) = self.directories.failure() {
                return cause.to_owned();
            }
            tokio::time::sleep(HEALTH_PERIOD).await;
        }
    }

    /// Stops: among other nodes leaderships are handed over first; then no new connections, requests in
    /// progress end, logs are closed, the lock goes last.
    pub async fn stop(self) {
        self.health.set_ready(false);
        let config = self.context.config.load();
        if let Some(node) = self
            .node
            .as_ref()
            .filter(|_| config.cluster.controlled_shutdown)
        {
            let limit = config.replication.controlled_shutdown_timeout;
            node.leave(&self.context, limit).await;
        }
        self.server.stop().await;
        for task in self.tasks {
            task.abort();
            // What it holds, coordinators among it, is gone once it has ended.
            let _ = task.await;
        }
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "not everything could be closed; the next start looks it through");
        }
        if let Some(node) = &self.node {
            node.stop();
        }
        drop(self.http);
        drop(self.data_dir);
    }
}

async fn bind_listeners(
    config: &BrokerConfig,
    wanted: &[Endpoint],
) -> Result<Vec<BoundListener>, BindError> {
    let options = server_options(config);
    let mut bound = Vec::new();
    for endpoint in wanted {
        let advertised = config.advertised.get(&endpoint.name);
        let spec = ListenerSpec {
            name: endpoint.name.clone(),
            host: endpoint.host.clone(),
            port: endpoint.port,
            advertised_host: advertised
                .map(|advertised| advertised.host.clone())
                .filter(|host| !host.is_empty()),
            advertised_port: advertised
                .map(|advertised| advertised.port)
                .filter(|port| *port != 0),
            serves_nodes: !config.cluster.is_alone()
                && (endpoint.name == config.cluster.inter_broker_listener
                    || config.cluster.controller_listeners.contains(endpoint)),
            is_for_controllers: config.cluster.controller_listeners.contains(endpoint),
        };
        bound.push(BoundListener::bind(spec, &options).await?);
    }
    Ok(bound)
}

/// No more connections than there are descriptors for, beside what the logs need.
fn connections(config: &BrokerConfig) -> Connections {
    let (most_connections, descriptors) = descriptors::most_connections();
    if let Some(descriptors) = descriptors.filter(|_| config.max_connections > most_connections) {
        tracing::info!(
            descriptors,
            connections = most_connections,
            "connections are bounded"
        );
    }
    Connections::at_most(most_connections, ConnectionLimits::of(config))
}

fn server_options(config: &BrokerConfig) -> ServerOptions {
    ServerOptions {
        listen_backlog: config.listen_backlog,
        receive_buffer_bytes: config.socket_receive_buffer_bytes,
        send_buffer_bytes: config.socket_send_buffer_bytes,
        request_max_bytes: config.request_max_bytes,
        max_idle: config.connections_max_idle,
        max_in_flight: config.max_in_flight_requests,
        max_in_flight_bytes: config.max_in_flight_bytes,
        stall_limit: STALL_LIMIT,
        drain_limit: DRAIN_LIMIT,
        stop_timeout: config.shutdown_timeout,
    }
}

/// Serves the HTTP endpoint, if there is to be one. Handles of metrics that are made before count
/// nowhere.
async fn serve_http(
    config: &BrokerConfig,
    health: &Arc<Health>,
    budget: &Arc<MemoryBudget>,
) -> Result<Option<HttpServer>, HttpError> {
    let Some(address) = config.http_listener.clone() else {
        return Ok(None);
    };
    let recorder = http::install_recorder()?;
    let (health, budget) = (Arc::clone(health), Arc::clone(budget));
    let server = HttpServer::start(address, recorder, health, budget).await?;
    Ok(Some(server))
}

/// Opens the metadata log, of which this node is the one voter.
async fn open_metadata(
    config: &BrokerConfig,
    raft: &RaftNode,
    clock: &Arc<dyn Clock>,
    disk: &Arc<dyn Disk>,
) -> Result<Arc<MetadataService>, MetadataError> {
    let options = MetadataOptions {
        node_id: config.node_id,
        log_dir: config.data_dir.clone(),
        voters: vec![config.node_id],
        bootstrap: true,
        clock: Arc::clone(clock),
        disk: Arc::clone(disk),
        checkpoints: config.checkpoints,
        source: Arc::new(NoSource),
    };
    let metadata = MetadataService::open(raft, options).await?;
    metadata.wait_until_leading().await?;
    Ok(metadata)
}

/// Registers this process with the metadata of a node on its own, which names the cluster if it has
/// no name yet: one batch.
async fn found_and_register(
    metadata: &MetadataService,
    data_dir: &DataDirs,
    registration: Registration,
    voter: Option<&ControllerRegistration>,
) -> Result<(), StartError> {
    let cluster_id = data_dir.cluster_id().unwrap_or_default().to_owned();
    let voters = vec![registration.broker_id];
    let named = voter.map(name_this_voter).unwrap_or_default();
    let registrant = Registrant {
        peer_protocol: peer::PROTOCOL_MAX,
        is_here: true,
    };
    let done = metadata
        .run(move |image| {
            let mut records = found_cluster(image, &cluster_id, &voters, &named);
            match register_broker(image, &registration, registrant, records.len()) {
                Ok(registered) => {
                    records.extend(registered);
                    (records, Ok(()))
                }
                Err(refusal) => (Vec::new(), Err(refusal)),
            }
        })
        .await?;
    done.value
        .map_err(|refusal| ClusterError::NotRegistered(refusal.to_string()).into())
}

/// What this process tells the cluster of itself, the listener for other brokers first.
fn registration(
    config: &BrokerConfig,
    endpoints: &[AdvertisedEndpoint],
    data_dir: &DataDirs,
    incarnation_id: Uuid,
) -> Registration {
    let mut endpoints = registered(endpoints);
    endpoints.sort_by_key(|endpoint| endpoint.name != config.cluster.inter_broker_listener);
    Registration {
        broker_id: config.node_id,
        incarnation_id,
        endpoints,
        rack: config.rack.clone(),
        log_dirs: data_dir
            .directory_ids()
            .map(directory_uuid)
            .filter(|id| !id.is_zero())
            .collect(),
        voters: if config.cluster.is_controller {
            config.cluster.voters.iter().map(|voter| voter.id).collect()
        } else {
            Vec::new()
        },
    }
}

/// The same of its part in the metadata quorum.
fn controller_registration(
    config: &BrokerConfig,
    endpoints: &[AdvertisedEndpoint],
    data_dir: &DataDirs,
    incarnation_id: Uuid,
) -> ControllerRegistration {
    ControllerRegistration {
        controller_id: config.node_id,
        incarnation_id,
        endpoints: registered(endpoints),
        directory: directory_uuid(data_dir.directory_id()),
        voters: config.cluster.voters.iter().map(|voter| voter.id).collect(),
    }
}

fn registered(endpoints: &[AdvertisedEndpoint]) -> Vec<BrokerEndpoint> {
    endpoints
        .iter()
        .map(|endpoint| BrokerEndpoint {
            name: endpoint.listener_name.clone(),
            host: endpoint.host.clone(),
            port: endpoint.port,
            security_protocol: PLAINTEXT,
        })
        .collect()
}

fn endpoint(listener: &BoundListener) -> AdvertisedEndpoint {
    AdvertisedEndpoint {
        listener_name: listener.name().to_owned(),
        host: listener.advertised_host(),
        port: listener.advertised_port(),
    }
}
