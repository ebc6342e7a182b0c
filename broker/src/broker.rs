//! One broker process put together: services started in the order in which they need one another,
//! and stopped in the reverse.

use std::fmt;
use std::sync::Arc;

use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::{NodeId, TopicId};
use odradek_raft::RaftNode;

use crate::clock::{Clock, SystemClock};
use crate::config::load::Loaded;
use crate::config::{BrokerConfig, ConfigStore};
use crate::context::{AdvertisedEndpoint, BrokerContext, NodeIdentity};
use crate::data_dir::{DataDir, DataDirError};
use crate::dispatch::BrokerDispatcher;
use crate::fetch_service::{FetchLimits, FetchService};
use crate::groups;
use crate::groups::attendant::Attendant;
use crate::groups::config::CoordinatorConfig;
use crate::http::{self, Health, HttpError, HttpServer};
use crate::memory::MemoryBudget;
use crate::metadata::controller::register_broker::{Registration, register_broker};
use crate::metadata::image::MetadataImage;
use crate::metadata::producer_ids::ProducerIds;
use crate::metadata::records::BrokerEndpoint;
use crate::metadata::service::{MetadataError, MetadataOptions, MetadataService};
use crate::metrics::ServerMetrics;
use crate::partitions::{PartitionManager, PartitionManagerOptions};
use crate::raft_stack::{RaftStack, RaftStackError};
use crate::server::{
    BindError, BoundListener, ConnectionLimits, ListenerSpec, Server, ServerOptions,
};

/// Kafka's number of the only security protocol so far.
const SECURITY_PLAINTEXT: i16 = 0;

/// Why a broker does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// A listener cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The metadata log cannot be opened.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The HTTP endpoint cannot be served.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The partitions' groups cannot be run.
    #[error(transparent)]
    Raft(#[from] RaftStackError),
}

/// A running broker.
pub struct Broker {
    context: Arc<BrokerContext>,
    server: Server,
    http: Option<HttpServer>,
    health: Arc<Health>,
    raft: Arc<RaftNode>,
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
        let data_dir = DataDir::open(&config.data_dir, config.node_id)?;
        let listeners = bind_listeners(&config).await?;
        let recorder = match &config.http_listener {
            Some(_) => Some(http::install_recorder()?),
            None => None,
        };
        let budget = MemoryBudget::new(config.request_memory_bytes, config.reply_memory_bytes);
        let health = Arc::new(Health::default());
        let http = match (config.http_listener.clone(), recorder) {
            (Some(address), Some(recorder)) => Some(
                HttpServer::start(address, recorder, Arc::clone(&health), Arc::clone(&budget))
                    .await?,
            ),
            _ => None,
        };
        let options = server_options(&config);
        let coordinators = CoordinatorConfig::from(&config.groups);
        let stack = RaftStack::open(&config)?;
        let raft = Arc::clone(&stack.raft);
        let fetch = FetchService::new(FetchLimits::of(&config));
        let node_id = config.node_id;
        let config = ConfigStore::new(statics, config);
        let clock = SystemClock::shared();
        let partitions = PartitionManager::new(PartitionManagerOptions {
            node_id,
            raft: stack.raft,
            disk: stack.disk,
            directories: vec![stack.directory],
            config: Arc::clone(&config),
            clock: Arc::clone(&clock),
        });
        let metadata = open_metadata(&raft, &config.load(), &data_dir, &listeners, &clock).await?;
        let groups = Arc::new(groups::Service::new(coordinators, Arc::clone(&clock)));
        let attendant = Attendant::new(
            Arc::clone(&groups),
            Arc::clone(&partitions),
            config.load().groups.offsets_commit_timeout,
        );
        tokio::spawn(Arc::clone(&partitions).run(metadata.subscribe()));
        tokio::spawn(attendant.run(metadata.subscribe()));
        let context = Arc::new(BrokerContext {
            producer_ids: ProducerIds::new(Arc::clone(&metadata), node_id),
            metadata,
            groups,
            identity: identity(&config.load(), node_id, &data_dir),
            clock,
            endpoints: listeners.iter().map(endpoint).collect(),
            config,
            partitions,
            fetch: Arc::new(fetch),
        });
        let server = Server::start(
            listeners,
            &options,
            Arc::new(BrokerDispatcher::new(Arc::clone(&context))),
            budget,
            Arc::new(ServerMetrics::new()),
        );
        health.set_ready(true);
        Ok(Self {
            context,
            server,
            http,
            health,
            raft,
            data_dir,
        })
    }

    /// The services, as handlers see them.
    pub fn context(&self) -> &Arc<BrokerContext> {
        &self.context
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
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "not everything could be closed; the next start looks it through");
        }
        drop(self.http);
        drop(self.data_dir);
    }
}

/// Opens the metadata log and registers this process in it.
async fn open_metadata(
    raft: &RaftNode,
    config: &BrokerConfig,
    data_dir: &DataDir,
    listeners: &[BoundListener],
    clock: &Arc<dyn Clock>,
) -> Result<Arc<MetadataService>, MetadataError> {
    let options = MetadataOptions {
        node_id: config.node_id,
        log_dir: config.data_dir.clone(),
        voters: vec![config.node_id],
        clock: Arc::clone(clock),
    };
    let metadata = MetadataService::open(raft, options).await?;
    let registration = Registration {
        broker_id: config.node_id,
        incarnation_id: Uuid::from_bytes(rand::random()),
        endpoints: listeners.iter().map(registered_endpoint).collect(),
        rack: config.rack.clone(),
        log_dirs: TopicId::parse(data_dir.directory_id())
            .map(Uuid::from)
            .into_iter()
            .collect(),
    };
    let register = move |image: &MetadataImage| (register_broker(image, &registration), ());
    metadata.run(register).await?;
    Ok(metadata)
}

fn registered_endpoint(listener: &BoundListener) -> BrokerEndpoint {
    BrokerEndpoint {
        name: listener.name().to_owned(),
        host: listener.advertised_host(),
        port: listener.advertised_port(),
        security_protocol: SECURITY_PLAINTEXT,
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
        limits: ConnectionLimits::of(config),
        max_idle: config.connections_max_idle,
        max_in_flight: config.max_in_flight_requests,
        stop_timeout: config.shutdown_timeout,
    }
}

fn identity(config: &BrokerConfig, node_id: NodeId, data_dir: &DataDir) -> NodeIdentity {
    NodeIdentity {
        node_id,
        cluster_id: data_dir.cluster_id().to_owned(),
        rack: config.rack.clone(),
    }
}

fn endpoint(listener: &BoundListener) -> AdvertisedEndpoint {
    AdvertisedEndpoint {
        listener_name: listener.name().to_owned(),
        host: listener.advertised_host(),
        port: listener.advertised_port(),
    }
}
