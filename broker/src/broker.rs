//! One broker process put together: services started in the order in which they need one another,
//! and stopped in the reverse.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::TopicId;
use odradek_raft::RaftNode;
use tokio::task::JoinHandle;

use crate::clock::{Clock, SystemClock};
use crate::config::load::Loaded;
use crate::config::{BrokerConfig, ConfigStore};
use crate::context::{AdvertisedEndpoint, BrokerContext, NodeIdentity};
use crate::data_dir::{ClusterNaming, DataDir, DataDirError};
use crate::descriptors;
use crate::dispatch::{BrokerDispatcher, DispatcherSlot};
use crate::fetch_service::{FetchLimits, FetchService};
use crate::follower::Follower;
use crate::groups;
use crate::groups::attendant::Attendant;
use crate::groups::config::CoordinatorConfig;
use crate::http::{self, Health, HttpError, HttpServer};
use crate::memory::MemoryBudget;
use crate::metadata::controller::register_broker::{Registration, register_broker};
use crate::metadata::producer_ids::ProducerIds;
use crate::metadata::records::BrokerEndpoint;
use crate::metadata::service::{MetadataError, MetadataOptions, MetadataService};
use crate::metrics::ServerMetrics;
use crate::partitions::{HousekeepingOptions, PartitionManager, PartitionManagerOptions};
use crate::raft_stack::{RaftStack, RaftStackError};
use crate::server::{
    Answering, BindError, BoundListener, ConnectionLimits, Connections, ListenerSpec, Server,
    ServerOptions,
};

/// Kafka's number of the security protocol PLAINTEXT.
const PLAINTEXT: i16 = 0;

/// How long a client may stall inside a request while others wait for the memory that it holds.
const STALL_LIMIT: Duration = Duration::from_secs(5);

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
}

/// A running broker.
pub struct Broker {
    context: Arc<BrokerContext>,
    server: Server,
    http: Option<HttpServer>,
    health: Arc<Health>,
    raft: Arc<RaftNode>,
    tasks: [JoinHandle<()>; 3],
    listening: Vec<String>,
    data_dir: DataDir,
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
        let data_dir = DataDir::open(&config.data_dir, config.node_id, ClusterNaming::MadeHere)?;
        let listeners = bind_listeners(&config).await?;
        let endpoints: Vec<_> = listeners.iter().map(endpoint).collect();
        let listening = listeners
            .iter()
            .map(|listener| format!("{}://{}", listener.name(), listener.address()))
            .collect();
        let budget = MemoryBudget::new(config.request_memory_bytes, config.reply_memory_bytes);
        let stack = RaftStack::open(&config)?;
        let health = Arc::new(Health::new(Arc::clone(stack.directory.health())));
        let http = serve_http(&config, &health, &budget).await?;
        let clock = SystemClock::shared();
        let metadata = open_metadata(&config, &stack.raft, &clock).await?;
        register(&metadata, &config, &endpoints, &data_dir).await?;

        let options = server_options(&config);
        let (most_connections, descriptors) = descriptors::most_connections();
        if let Some(descriptors) = descriptors.filter(|_| config.max_connections > most_connections)
        {
            tracing::info!(
                descriptors,
                connections = most_connections,
                "connections are bounded"
            );
        }
        let connections = Connections::at_most(most_connections, ConnectionLimits::of(&config));
        let housekeeping = HousekeepingOptions::of(&config);
        let coordinators = CoordinatorConfig::from(&config.groups);
        let groups = Arc::new(groups::Service::new(coordinators, Arc::clone(&clock)));
        let fetch = Arc::new(FetchService::new(FetchLimits::of(&config)));
        let identity = NodeIdentity {
            node_id: config.node_id,
            cluster_id: data_dir.cluster_id().unwrap_or_default().to_owned(),
            rack: config.rack.clone(),
        };
        let config = ConfigStore::new(statics, config);
        let partitions = PartitionManager::new(PartitionManagerOptions {
            node_id: identity.node_id,
            raft: Arc::clone(&stack.raft),
            disk: stack.disk,
            directories: vec![stack.directory],
            config: Arc::clone(&config),
            clock: Arc::clone(&clock),
        });
        if let Some(http) = &http {
            http.observe(Arc::clone(&partitions), Arc::clone(&fetch));
        }
        let follower = Follower {
            node_id: identity.node_id,
            config: Arc::clone(&config),
            partitions: Arc::clone(&partitions),
            connections: connections.clone(),
        };
        let commit_timeout = config.load().groups.offsets_commit_timeout;
        let attendant =
            Attendant::new(Arc::clone(&groups), Arc::clone(&partitions), commit_timeout);
        let tasks = [
            tokio::spawn(follower.run(metadata.subscribe())),
            tokio::spawn(attendant.run(metadata.subscribe())),
            tokio::spawn(Arc::clone(&partitions).keep_house(housekeeping)),
        ];
        let known = metadata.image().next_offset();
        partitions.wait_until_reconciled(known).await;

        let producer_ids = ProducerIds::new(Arc::clone(&metadata), identity.node_id);
        let context = Arc::new(BrokerContext {
            identity,
            config,
            clock,
            endpoints,
            producer_ids,
            metadata,
            groups,
            partitions,
            fetch,
        });
        let server = Server::start(
            listeners,
            &options,
            &connections,
            Answering {
                dispatcher: DispatcherSlot::filled(Arc::new(BrokerDispatcher::new(Arc::clone(
                    &context,
                )))),
                peers: None,
            },
            budget,
            Arc::new(ServerMetrics::new()),
        );
        health.set_ready(true);
        Ok(Self {
            context,
            server,
            http,
            health,
            raft: stack.raft,
            tasks,
            listening,
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

    /// The data directory.
    pub fn data_dir(&self) -> &DataDir {
        &self.data_dir
    }

    /// Real address of the HTTP endpoint, if it is served.
    pub fn http_address(&self) -> Option<std::net::SocketAddr> {
        self.http.as_ref().map(HttpServer::address)
    }

    /// Stops: no new connections, requests in progress end, logs are closed, the lock goes last.
    pub async fn stop(self) {
        self.health.set_ready(false);
        self.server.stop().await;
        for task in self.tasks {
            task.abort();
            // What it holds, coordinators among it, is gone once it has ended.
            let _ = task.await;
        }
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "not everything could be closed; the next start looks it through");
        }
        drop(self.http);
        drop(self.data_dir);
    }
}

async fn bind_listeners(config: &BrokerConfig) -> Result<Vec<BoundListener>, BindError> {
    let options = server_options(config);
    let mut bound = Vec::new();
    for endpoint in &config.listeners {
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
            serves_nodes: false,
        };
        bound.push(BoundListener::bind(spec, &options).await?);
    }
    Ok(bound)
}

fn server_options(config: &BrokerConfig) -> ServerOptions {
    ServerOptions {
        listen_backlog: config.listen_backlog,
        receive_buffer_bytes: config.socket_receive_buffer_bytes,
        send_buffer_bytes: config.socket_send_buffer_bytes,
        request_max_bytes: config.request_max_bytes,
        max_idle: config.connections_max_idle,
        max_in_flight: config.max_in_flight_requests,
        stall_limit: STALL_LIMIT,
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
) -> Result<Arc<MetadataService>, MetadataError> {
    let options = MetadataOptions {
        node_id: config.node_id,
        log_dir: config.data_dir.clone(),
        voters: vec![config.node_id],
        bootstrap: true,
        clock: Arc::clone(clock),
    };
    let metadata = MetadataService::open(raft, options).await?;
    metadata.wait_until_leading().await?;
    Ok(metadata)
}

/// Tells the cluster of this process.
async fn register(
    metadata: &MetadataService,
    config: &BrokerConfig,
    endpoints: &[AdvertisedEndpoint],
    data_dir: &DataDir,
) -> Result<(), MetadataError> {
    let registration = Registration {
        broker_id: config.node_id,
        incarnation_id: Uuid::from_bytes(rand::random()),
        endpoints: endpoints
            .iter()
            .map(|endpoint| BrokerEndpoint {
                name: endpoint.listener_name.clone(),
                host: endpoint.host.clone(),
                port: endpoint.port,
                security_protocol: PLAINTEXT,
            })
            .collect(),
        rack: config.rack.clone(),
        log_dirs: TopicId::parse(data_dir.directory_id())
            .map(Uuid::from)
            .into_iter()
            .collect(),
        voters: Vec::new(),
    };
    metadata
        .run(move |image| {
            (
                register_broker(image, &registration, 0).unwrap_or_default(),
                (),
            )
        })
        .await?;
    Ok(())
}

fn endpoint(listener: &BoundListener) -> AdvertisedEndpoint {
    AdvertisedEndpoint {
        listener_name: listener.name().to_owned(),
        host: listener.advertised_host(),
        port: listener.advertised_port(),
    }
}
