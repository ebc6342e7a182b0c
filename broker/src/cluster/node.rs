//! The parts that a node among others has, and the order in which they come: the node serves the
//! peer protocol, joins the metadata quorum or follows it, registers through its leader, and waits
//! until its own metadata says so. Clients are served after that.

use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::NodeId;
use odradek_raft::RaftNode;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::controllers::Controllers;
use super::duties::{Duties, name_cluster};
use super::join::{self, JoinRefused, Joined};
use super::service::{Answering, ClusterService, directory_uuid};
use crate::clock::Clock;
use crate::config::BrokerConfig;
use crate::context::BrokerContext;
use crate::data_dir::{DataDir, DataDirError};
use crate::leading::{self, Supervisor, SupervisorOptions};
use crate::metadata::controller::register_broker::Registration;
use crate::metadata::image::MetadataImage;
use crate::metadata::service::{MetadataError, MetadataOptions, MetadataService};
use crate::metadata::topic_name::CLUSTER_METADATA;
use crate::peer::message::Stop;
use crate::peer::{AddressBook, LocalNode, PeerAddress, PeerReply, PeerRequest, PeerServer, Peers};

/// How long one attempt to reach the metadata leader takes before the log says so.
const ATTEMPT: Duration = Duration::from_secs(5);
/// How long a stop waits for the metadata leader.
const STOP_ATTEMPT: Duration = Duration::from_secs(2);

/// Why a node does not get into its cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The cluster does not want it.
    #[error(transparent)]
    Refused(#[from] JoinRefused),
    /// The metadata leader does not register the broker.
    #[error("this broker is not registered: {0}")]
    NotRegistered(String),
    /// The data directory is of a cluster, and what a voter must not forget is gone from it.
    #[error(
        "{path} belongs to the cluster {cluster}, and the log of its metadata ({CLUSTER_METADATA}-0) \
         is missing: a voter that has forgotten its votes could help to elect two leaders; use an \
         empty directory, after unregistering this node"
    )]
    MetadataLost {
        /// The data directory.
        path: String,
        /// Its cluster.
        cluster: String,
    },
    /// The data directory cannot be made this cluster's.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The metadata cannot be followed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

/// See the module.
pub struct ClusterNode {
    peers: Arc<Peers>,
    service: Arc<ClusterService>,
    controllers: Arc<Controllers>,
    voters: Vec<NodeId>,
}

impl std::fmt::Debug for ClusterNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterNode")
            .field("voters", &self.voters)
            .finish_non_exhaustive()
    }
}

/// The way to other nodes, which is there before anything else.
pub fn peers(config: &BrokerConfig, data_dir: &DataDir, incarnation: Uuid) -> Arc<Peers> {
    let local = LocalNode::new(
        config.node_id,
        data_dir.directory_id(),
        incarnation,
        data_dir.cluster_id(),
    );
    let voters = config.cluster.voters.iter().map(|voter| {
        let address = PeerAddress {
            host: voter.host.clone(),
            port: voter.port,
        };
        (voter.id, address)
    });
    Peers::new(
        local,
        Arc::new(AddressBook::new(voters)),
        config.peers.clone(),
    )
}

impl ClusterNode {
    /// Begins to answer other nodes through `server`.
    pub fn new(config: &BrokerConfig, peers: Arc<Peers>, server: &PeerServer) -> Self {
        let service = ClusterService::new(Arc::clone(peers.local()));
        server.set_service(Arc::new(Answering(Arc::clone(&service))));
        let voters: Vec<NodeId> = config.cluster.voters.iter().map(|voter| voter.id).collect();
        let controllers =
            Controllers::new(Arc::clone(&peers), Arc::clone(&service), voters.clone());
        Self {
            peers,
            service,
            controllers,
            voters,
        }
    }

    /// The way to the metadata leader.
    pub fn controllers(&self) -> &Arc<Controllers> {
        &self.controllers
    }

    /// Opens the metadata log, after it is clear how this node takes part in it. A voter returns once
    /// the cluster is there.
    pub async fn open_metadata(
        &self,
        raft: &RaftNode,
        config: &BrokerConfig,
        data_dir: &mut DataDir,
        clock: &Arc<dyn Clock>,
    ) -> Result<Arc<MetadataService>, ClusterError> {
        let is_voter = config.cluster.is_controller;
        let founding = is_voter && self.take_part(data_dir).await? == Joined::Founding;
        let options = MetadataOptions {
            node_id: config.node_id,
            log_dir: config.data_dir.clone(),
            voters: if is_voter {
                self.voters.clone()
            } else {
                Vec::new()
            },
            bootstrap: founding,
            clock: Arc::clone(clock),
        };
        let metadata = MetadataService::open(raft, options).await?;
        self.service.set_metadata(Arc::clone(&metadata));
        if is_voter {
            let known = data_dir.cluster_id().map(str::to_owned);
            let cluster_id = name_cluster(&metadata, self.voters.clone(), known).await;
            self.belong_to(data_dir, &cluster_id)?;
        }
        Ok(metadata)
    }

    async fn take_part(&self, data_dir: &mut DataDir) -> Result<Joined, ClusterError> {
        if let Some(cluster) = data_dir.cluster_id() {
            let log = data_dir.path().join(format!("{CLUSTER_METADATA}-0"));
            if !log.is_dir() {
                return Err(ClusterError::MetadataLost {
                    path: data_dir.path().display().to_string(),
                    cluster: cluster.to_owned(),
                });
            }
            let cluster_id = cluster.to_owned();
            return Ok(Joined::Invited { cluster_id });
        }
        let directory = directory_uuid(data_dir.directory_id());
        let joined = join::join(&self.peers, &self.voters, directory).await?;
        tracing::info!(?joined, "this node takes part in the metadata quorum");
        Ok(joined)
    }

    fn belong_to(&self, data_dir: &mut DataDir, cluster_id: &str) -> Result<(), ClusterError> {
        data_dir.join_cluster(cluster_id)?;
        self.peers.local().set_cluster_id(cluster_id);
        Ok(())
    }

    /// Registers this broker and waits until its own metadata says so.
    pub async fn register(
        &self,
        metadata: &MetadataService,
        data_dir: &mut DataDir,
        registration: Registration,
    ) -> Result<(), ClusterError> {
        let request = PeerRequest::Register(registration);
        let registered = loop {
            match self.controllers.ask(&request, ATTEMPT).await {
                Ok(PeerReply::Registered(registered)) => break registered,
                Ok(PeerReply::Refused { reason }) => {
                    return Err(ClusterError::NotRegistered(reason));
                }
                Ok(other) => tracing::warn!(?other, "an unexpected answer to a registration"),
                Err(error) => tracing::info!(%error, "waiting to be registered"),
            }
        };
        self.belong_to(data_dir, &registered.cluster_id)?;
        let image = metadata.wait_for(registered.metadata_offset);
        tokio::pin!(image);
        loop {
            match tokio::time::timeout(ATTEMPT, &mut image).await {
                Ok(image) => {
                    image?;
                    return Ok(());
                }
                Err(_) => tracing::info!("waiting for the metadata of the cluster"),
            }
        }
    }

    /// Keeps the addresses of other nodes as the metadata has them.
    pub fn follow_addresses(&self, images: watch::Receiver<Arc<MetadataImage>>) -> JoinHandle<()> {
        let addresses = Arc::clone(self.peers.addresses());
        tokio::spawn(follow_addresses(addresses, images))
    }

    /// Begins what goes on while the broker is there.
    pub fn start_duties(
        &self,
        context: &Arc<BrokerContext>,
        raft: &Arc<RaftNode>,
    ) -> Vec<JoinHandle<()>> {
        self.service.set_broker(Arc::clone(context));
        let supervisor = Supervisor::new(
            SupervisorOptions {
                partitions: Arc::clone(&context.partitions),
                config: Arc::clone(&context.config),
                metadata: Arc::clone(&self.controllers) as Arc<dyn leading::MetadataLeader>,
            },
            context.metadata.subscribe(),
        );
        let mut tasks = vec![tokio::spawn(supervisor.run())];
        if context.config.load().cluster.is_controller {
            let duties = Duties {
                metadata: Arc::clone(&context.metadata),
                raft: Arc::clone(raft),
                peers: Arc::clone(&self.peers),
                config: Arc::clone(&context.config),
                partitions: Arc::clone(&context.partitions),
            };
            tasks.push(tokio::spawn(duties.run()));
        }
        tasks
    }

    /// Leaves in order: says so, hands all leaderships over, goes.
    pub async fn leave(&self, context: &BrokerContext, limit: Duration) {
        let node = context.identity.node_id;
        let image = context.metadata.image();
        let deadline = Instant::now() + limit;
        if let Some(broker) = image.broker(node) {
            let stop = |now| {
                PeerRequest::Stop(Stop {
                    node,
                    broker_epoch: broker.broker_epoch,
                    now,
                })
            };
            self.tell(&stop(false), deadline).await;
            let left = deadline.saturating_duration_since(Instant::now());
            let image = context.metadata.image();
            let kept = leading::hand_over_all(&context.partitions, &image, left).await;
            if kept > 0 {
                tracing::warn!(partitions = kept, "led to the end");
            }
            self.tell(&stop(true), deadline).await;
        }
        self.hand_metadata_over(context, deadline).await;
    }

    async fn tell(&self, request: &PeerRequest, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        if let Err(error) = self.controllers.ask(request, left.min(STOP_ATTEMPT)).await {
            tracing::warn!(%error, "the metadata leader does not know that this broker stops");
        }
    }

    async fn hand_metadata_over(&self, context: &BrokerContext, deadline: Instant) {
        let group = context.metadata.group();
        let voters = group.membership().voters;
        for to in voters {
            if to == context.identity.node_id || !context.metadata.is_leading() {
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match tokio::time::timeout(left, group.transfer_leader(to)).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => tracing::debug!(%to, %error, "the metadata is not handed over"),
                Err(_) => return,
            }
        }
    }

    /// Closes the connections to other nodes.
    pub fn stop(&self) {
        self.peers.stop();
    }
}

async fn follow_addresses(
    addresses: Arc<AddressBook>,
    mut images: watch::Receiver<Arc<MetadataImage>>,
) {
    loop {
        let image = Arc::clone(&images.borrow_and_update());
        // The first endpoint of a registration is the one for other brokers.
        addresses.set_registered(image.brokers().filter_map(|(id, broker)| {
            let endpoint = broker.endpoints.first()?;
            let address = PeerAddress {
                host: endpoint.host.clone(),
                port: endpoint.port,
            };
            Some((id, address))
        }));
        if images.changed().await.is_err() {
            return;
        }
    }
}
