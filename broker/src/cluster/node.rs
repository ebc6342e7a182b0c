//! The parts that a node among others has, and the order in which they come: the node serves the
//! peer protocol, finds the metadata quorum, founds it, joins it or follows it, registers through its
//! leader, and waits until its own metadata says so. Clients are served after that.

use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::NodeId;
use odradek_raft::RaftNode;
use odradek_storage::disk::Disk;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::auto_join::auto_join;
use super::checkpoints::PeerCheckpoints;
use super::controllers::Controllers;
use super::duties::{Duties, name_cluster};
use super::join::{self, JoinRefused, Joined};
use super::members::Answering;
use super::quorum::{self, Found};
use super::service::{ClusterService, directory_uuid};
use super::waits::{wait_for_metadata, wait_until_unfenced};
use crate::clock::Clock;
use crate::config::BrokerConfig;
use crate::context::BrokerContext;
use crate::data_dir::DataDirError;
use crate::data_dirs::DataDirs;
use crate::leading::{self, Supervisor, SupervisorOptions};
use crate::metadata::controller::register_broker::Registration;
use crate::metadata::controller::voters::{ControllerRegistration, name_this_voter};
use crate::metadata::service::{MetadataError, MetadataOptions, MetadataService};
use crate::metadata::topic_name::CLUSTER_METADATA;
use crate::peer::message::Stop;
use crate::peer::{AddressBook, LocalNode, PeerAddress, PeerReply, PeerRequest, PeerServer, Peers};

/// How long one attempt to reach the metadata leader takes before the log says so.
const ATTEMPT: Duration = Duration::from_secs(5);
/// How long a stop waits for the metadata leader.
const STOP_ATTEMPT: Duration = Duration::from_secs(2);

/// How often a node that stops looks whether anybody is left to hear of it.
const QUORUM_LOOK: Duration = Duration::from_millis(50);

/// After how long without an answer the voters are searched for again.
const SEARCH_AGAIN: Duration = Duration::from_secs(10);

/// Why a node does not get into its cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The cluster does not want it.
    #[error(transparent)]
    Refused(#[from] JoinRefused),
    /// The metadata leader does not register the node.
    #[error("this node is not registered: {0}")]
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
    /// No other node is named, and this one cannot found a cluster.
    #[error(
        "all of controller.quorum.bootstrap.servers lead to this node, which has not the role \
         controller"
    )]
    OnlyItself,
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
    /// Voters that every configuration names; none where the metadata says who votes.
    voters: Vec<NodeId>,
    servers: Vec<PeerAddress>,
}

/// How this node takes part in the metadata.
enum Place {
    /// It makes the log, together with the voters that its configuration names.
    Founder,
    /// It votes, or has voted, in a cluster whose configurations name it.
    Voter,
    /// It is new to a cluster that is there, and does not vote yet.
    Observer { cluster_id: String },
    /// It has the log, or follows it as a broker.
    Follower,
}

impl std::fmt::Debug for ClusterNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterNode")
            .field("voters", &self.voters)
            .finish_non_exhaustive()
    }
}

/// The way to other nodes, which is there before anything else.
pub fn peers(config: &BrokerConfig, data_dir: &DataDirs, incarnation: Uuid) -> Arc<Peers> {
    let local = LocalNode::new(
        config.node_id,
        data_dir.directory_id(),
        incarnation,
        data_dir.cluster_id(),
    );
    let fixed = config.cluster.voters.iter().map(|voter| {
        let address = PeerAddress {
            host: voter.host.clone(),
            port: voter.port,
        };
        (voter.id, address)
    });
    // What the metadata has said counts before what a configuration says.
    let remembered = quorum::remembered(data_dir.path());
    let addresses = if remembered.is_empty() {
        AddressBook::new(fixed)
    } else {
        AddressBook::new(remembered)
    };
    Peers::new(local, Arc::new(addresses), config.peers.clone())
}

impl ClusterNode {
    /// Begins to answer other nodes through `server`.
    pub fn new(config: &BrokerConfig, peers: Arc<Peers>, server: &PeerServer) -> Self {
        let voters: Vec<NodeId> = config.cluster.voters.iter().map(|voter| voter.id).collect();
        let servers = config.cluster.bootstrap_servers.iter();
        let servers: Vec<PeerAddress> = servers
            .map(|(host, port)| PeerAddress {
                host: host.clone(),
                port: *port,
            })
            .collect();
        let service = ClusterService::new(&peers, voters.clone(), servers.clone());
        server.set_service(Arc::new(Answering(Arc::clone(&service))));
        let controllers = Controllers::new(Arc::clone(&peers), Arc::clone(&service));
        Self {
            peers,
            service,
            controllers,
            voters,
            servers,
        }
    }

    /// The way to the metadata leader.
    pub fn controllers(&self) -> &Arc<Controllers> {
        &self.controllers
    }

    /// Opens the metadata log, after it is clear how this node takes part in it. Who founds the
    /// cluster returns once it is there.
    pub async fn open_metadata(
        &self,
        raft: &RaftNode,
        config: &BrokerConfig,
        data_dir: &mut DataDirs,
        controller: &ControllerRegistration,
        clock: &Arc<dyn Clock>,
        disk: &Arc<dyn Disk>,
    ) -> Result<Arc<MetadataService>, ClusterError> {
        let place = self.take_place(config, data_dir).await?;
        let is_founder = matches!(place, Place::Founder);
        let (voters, named) = if config.cluster.has_fixed_voters() {
            (self.voters.clone(), Vec::new())
        } else {
            (vec![config.node_id], name_this_voter(controller))
        };
        let options = MetadataOptions {
            node_id: config.node_id,
            log_dir: config.data_dir.clone(),
            voters: match place {
                Place::Founder | Place::Voter => voters.clone(),
                Place::Observer { .. } | Place::Follower => Vec::new(),
            },
            bootstrap: is_founder,
            clock: Arc::clone(clock),
            disk: Arc::clone(disk),
            checkpoints: config.checkpoints,
            source: Arc::new(PeerCheckpoints(Arc::clone(&self.peers))),
        };
        let metadata = MetadataService::open(raft, options).await?;
        self.service.set_metadata(Arc::clone(&metadata));
        match place {
            Place::Founder | Place::Voter => {
                let known = data_dir.cluster_id().map(str::to_owned);
                let cluster_id = name_cluster(&metadata, voters, named, known).await;
                self.belong_to(data_dir, &cluster_id)?;
            }
            Place::Observer { cluster_id } => self.belong_to(data_dir, &cluster_id)?,
            Place::Follower => {}
        }
        Ok(metadata)
    }

    async fn take_place(
        &self,
        config: &BrokerConfig,
        data_dir: &DataDirs,
    ) -> Result<Place, ClusterError> {
        let is_controller = config.cluster.is_controller;
        let is_fixed = config.cluster.has_fixed_voters();
        if let Some(cluster) = data_dir.cluster_id() {
            let log = data_dir.path().join(format!("{CLUSTER_METADATA}-0"));
            if is_controller && !log.is_dir() {
                return Err(ClusterError::MetadataLost {
                    path: data_dir.path().display().to_string(),
                    cluster: cluster.to_owned(),
                });
            }
            return Ok(match is_controller && is_fixed {
                true => Place::Voter,
                false => Place::Follower,
            });
        }
        let directory = directory_uuid(data_dir.directory_id());
        let place = if is_fixed && is_controller {
            match join::join(&self.peers, &self.voters, directory).await? {
                Joined::Founding => Place::Founder,
                Joined::Invited { cluster_id } => Place::Observer { cluster_id },
            }
        } else if is_fixed {
            Place::Follower
        } else {
            self.find_place(is_controller, directory).await?
        };
        match &place {
            Place::Founder => tracing::info!("this node founds a cluster"),
            Place::Observer { cluster_id } => {
                tracing::info!(cluster_id, "this controller follows the metadata");
            }
            Place::Voter | Place::Follower => {}
        }
        Ok(place)
    }

    /// The same where no configuration names the voters.
    async fn find_place(
        &self,
        is_controller: bool,
        directory: Uuid,
    ) -> Result<Place, ClusterError> {
        if self.servers.is_empty() {
            return Ok(Place::Founder);
        }
        match quorum::find(&self.peers, &self.servers).await {
            Found::NobodyElse if is_controller => Ok(Place::Founder),
            Found::NobodyElse => Err(ClusterError::OnlyItself),
            Found::Voters if is_controller => {
                let cluster_id = self.be_let_in(directory).await?;
                Ok(Place::Observer { cluster_id })
            }
            Found::Voters => Ok(Place::Follower),
        }
    }

    async fn be_let_in(&self, directory: Uuid) -> Result<String, ClusterError> {
        loop {
            let asking = join::ask_in(&self.controllers, directory);
            if let Ok(answer) = tokio::time::timeout(SEARCH_AGAIN, asking).await {
                return Ok(answer?);
            }
            // The voters may be others by now.
            quorum::find(&self.peers, &self.servers).await;
        }
    }

    fn belong_to(&self, data_dir: &mut DataDirs, cluster_id: &str) -> Result<(), ClusterError> {
        data_dir.join_cluster(cluster_id)?;
        self.peers.set_cluster_id(cluster_id);
        Ok(())
    }

    /// Registers this broker and waits until its own metadata says that it is there for clients. A broker
    /// that has never been in the cluster asks to be let in before.
    pub async fn register(
        &self,
        metadata: &MetadataService,
        data_dir: &mut DataDirs,
        registration: Registration,
    ) -> Result<(), ClusterError> {
        if self.peers.local().cluster_id().is_none() {
            let directory = directory_uuid(data_dir.directory_id());
            let cluster_id = self.be_let_in(directory).await?;
            self.belong_to(data_dir, &cluster_id)?;
        }
        let node = registration.broker_id;
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
        wait_for_metadata(metadata, registered.metadata_offset).await?;
        wait_until_unfenced(metadata, node).await;
        Ok(())
    }

    /// Registers this controller and waits until its own metadata says so.
    pub async fn register_controller(
        &self,
        metadata: &MetadataService,
        registration: ControllerRegistration,
    ) -> Result<(), ClusterError> {
        let request = PeerRequest::RegisterController(registration);
        let known = loop {
            match self.controllers.ask(&request, ATTEMPT).await {
                Ok(PeerReply::Committed { metadata_offset }) => break metadata_offset,
                Ok(PeerReply::Refused { reason }) => {
                    return Err(ClusterError::NotRegistered(reason));
                }
                Ok(other) => tracing::warn!(?other, "an unexpected answer to a registration"),
                Err(error) => tracing::info!(%error, "waiting to be registered as a controller"),
            }
        };
        Ok(wait_for_metadata(metadata, known).await?)
    }

    /// Keeps the addresses of other nodes as the metadata has them. A node whose voters no
    /// configuration names asks for them until then.
    pub fn follow_voters(
        &self,
        metadata: &MetadataService,
        data_dir: &DataDirs,
    ) -> Vec<JoinHandle<()>> {
        let addresses = Arc::clone(self.peers.addresses());
        let mut tasks = vec![tokio::spawn(quorum::follow_addresses(
            addresses,
            data_dir.path().to_owned(),
            metadata.subscribe(),
        ))];
        if !self.servers.is_empty() && metadata.image().cluster().is_none() {
            let (peers, servers) = (Arc::clone(&self.peers), self.servers.clone());
            let mut images = metadata.subscribe();
            tasks.push(tokio::spawn(async move {
                let searching = async {
                    loop {
                        quorum::find(&peers, &servers).await;
                        tokio::time::sleep(SEARCH_AGAIN).await;
                    }
                };
                tokio::select! {
                    () = searching => {}
                    _ = images.wait_for(|image| image.cluster().is_some()) => {}
                }
            }));
        }
        tasks
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
        let cluster = &context.config.load().cluster;
        if cluster.is_controller && cluster.joins_voters && !cluster.has_fixed_voters() {
            let controllers = Arc::clone(&self.controllers);
            tasks.push(tokio::spawn(auto_join(Arc::clone(context), controllers)));
        }
        tasks
    }

    /// Leaves in order: says so, hands all leaderships over, goes. Where too few nodes are left for that, it
    /// only goes.
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
            self.tell(context, &stop(false), deadline).await;
            let left = deadline.saturating_duration_since(Instant::now());
            let newest = || context.metadata.image();
            let kept = leading::hand_over_all(&context.partitions, newest, left).await;
            if kept > 0 {
                tracing::warn!(partitions = kept, "led to the end");
            }
            self.tell(context, &stop(true), deadline).await;
        }
        self.hand_metadata_over(context, deadline).await;
    }

    async fn tell(&self, context: &BrokerContext, request: &PeerRequest, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        tokio::select! {
            biased;
            told = self.controllers.ask(request, left.min(STOP_ATTEMPT)) => if let Err(error) = told {
                tracing::warn!(%error, "the metadata leader does not know that this broker stops");
            },
            () = until_nobody_can_lead(context) => {
                tracing::info!("too few controllers are left to take note that this broker stops");
            }
        }
    }

    async fn hand_metadata_over(&self, context: &BrokerContext, deadline: Instant) {
        let group = context.metadata.group();
        let voters = group.membership().voters;
        let image = context.metadata.image();
        let silent = context.partitions.silent_nodes();
        let goes_on = |node: &NodeId| {
            let stops = image.broker(*node).is_some_and(|broker| broker.stopping);
            !stops && !silent.contains(node) && *node != context.identity.node_id
        };
        for to in voters.into_iter().filter(goes_on) {
            if !context.metadata.is_leading() {
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

/// Waits until so few of those who vote on the metadata answer that none of them can lead it.
async fn until_nobody_can_lead(context: &BrokerContext) {
    loop {
        let voters = context.metadata.group().membership().voters;
        let silent = context.partitions.silent_nodes();
        let answering = voters.iter().filter(|node| !silent.contains(node)).count();
        if !voters.is_empty() && answering <= voters.len() / 2 {
            return;
        }
        tokio::time::sleep(QUORUM_LOOK).await;
    }
}
