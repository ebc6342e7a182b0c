//! What a node answers other nodes, besides replication.
//!
//! The parts come one after the other as the node starts; a question that comes before its part is
//! answered as "busy" and asked again.

use std::fmt;
use std::sync::{Arc, OnceLock};

use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::{NodeId, TopicId};

use super::hearsay::Hearsay;
use super::unclean::own_testimony;
use crate::context::BrokerContext;
use crate::dispatch;
use crate::leading::{self, HandOverError};
use crate::metadata::checkpoint::CheckpointId;
use crate::metadata::controller::leader_reports::{apply_reports, same_nodes};
use crate::metadata::controller::register_broker::{
    Registrant, Registration, check_newcomer, register_broker, stop_broker,
};
use crate::metadata::controller::unclean_elections::Testimony;
use crate::metadata::controller::voters::{ControllerRegistration, register_controller};
use crate::metadata::refusal::Refusal;
use crate::metadata::service::{Done, MetadataError, MetadataService};
use crate::peer::message::{Forward, Forwarded, Join, LeaderReports, Registered, Stop};
use crate::peer::{AddressBook, Caller, LocalNode, PeerAddress, PeerReply, PeerRequest, Peers};
use odradek_raft::GroupKey;

/// How long one change of the metadata group's members may take.
const MEMBERSHIP_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(3);

/// See the module.
pub struct ClusterService {
    pub(super) local: Arc<LocalNode>,
    pub(super) addresses: Arc<AddressBook>,
    /// Who votes on the metadata, by what other nodes say.
    pub(super) hearsay: Arc<Hearsay>,
    /// What this node's configuration names; none where it names none.
    voters: Vec<NodeId>,
    metadata: OnceLock<Arc<MetadataService>>,
    broker: OnceLock<Arc<BrokerContext>>,
}

impl fmt::Debug for ClusterService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterService").finish_non_exhaustive()
    }
}

impl ClusterService {
    /// A service that has no parts yet.
    /// `voters` and `servers` are what the configuration names.
    pub fn new(peers: &Arc<Peers>, voters: Vec<NodeId>, servers: Vec<PeerAddress>) -> Arc<Self> {
        Arc::new(Self {
            local: Arc::clone(peers.local()),
            addresses: Arc::clone(peers.addresses()),
            hearsay: Hearsay::new(Arc::clone(peers), servers),
            voters,
            metadata: OnceLock::new(),
            broker: OnceLock::new(),
        })
    }

    /// From now on the metadata is followed. The first call counts.
    pub fn set_metadata(&self, metadata: Arc<MetadataService>) {
        // Set once, by the start.
        let _ = self.metadata.set(metadata);
    }

    /// From now on clients are served. The first call counts.
    pub fn set_broker(&self, broker: Arc<BrokerContext>) {
        // Set once, by the start.
        let _ = self.broker.set(broker);
    }

    /// The metadata, once it is followed.
    pub fn metadata(&self) -> Option<&Arc<MetadataService>> {
        self.metadata.get()
    }

    /// Answers a node, or this node itself.
    pub async fn answer(&self, caller: &Caller, request: PeerRequest) -> PeerReply {
        let from = caller.node;
        if !comes_before_being_known(&request) && from != self.local.node_id() && !self.knows(from)
        {
            // It may have been registered a moment ago, and is asked to come again.
            return PeerReply::Busy;
        }
        match request {
            PeerRequest::Forward(forward) => self.forward(forward).await,
            PeerRequest::Report(reports) if reports.node != from => not_own(from, reports.node),
            PeerRequest::Report(reports) => self.report(reports).await,
            PeerRequest::TransferLeader { group, to } => self.transfer(group, to).await,
            PeerRequest::Register(registration) => self.register(caller, registration).await,
            PeerRequest::Join(join) => self.join(from, join).await,
            PeerRequest::Stop(stop) if stop.node != from => not_own(from, stop.node),
            PeerRequest::Stop(stop) => self.stop(stop).await,
            PeerRequest::RegisterController(registration) => {
                self.register_controller(caller, registration).await
            }
            PeerRequest::Quorum => match self.metadata.get() {
                Some(_) => PeerReply::Quorum(self.addresses.voters()),
                None => PeerReply::Busy,
            },
            PeerRequest::Broker(request) => self.answer_broker(request).await,
            PeerRequest::Standing(group) => match self.broker.get() {
                Some(broker) => match own_testimony(&broker.partitions, group) {
                    Testimony::Stands(standing) => PeerReply::Standing(Some(standing)),
                    Testimony::Nothing => PeerReply::Standing(None),
                    Testimony::Silent => PeerReply::Busy,
                },
                None => PeerReply::Busy,
            },
            PeerRequest::Checkpoint { wanted, position } => self.checkpoint(wanted, position).await,
        }
    }

    async fn checkpoint(&self, wanted: Option<CheckpointId>, position: u64) -> PeerReply {
        let Some(metadata) = self.metadata.get() else {
            return PeerReply::Busy;
        };
        match metadata.checkpoints().piece(wanted, position).await {
            Ok(Some(piece)) => PeerReply::Checkpoint(piece),
            Ok(None) => PeerReply::Refused {
                reason: "there is no such checkpoint of the metadata".to_owned(),
            },
            Err(error) => PeerReply::Refused {
                reason: error.to_string(),
            },
        }
    }

    async fn forward(&self, forward: Forward) -> PeerReply {
        let Some(broker) = self.broker.get() else {
            return PeerReply::Busy;
        };
        if !broker.metadata.is_leading() {
            return not_controller(&broker.metadata);
        }
        match dispatch::answer_forwarded(broker, forward).await {
            Ok(body) => PeerReply::Forwarded(Forwarded {
                body,
                metadata_offset: broker.metadata.image().next_offset(),
            }),
            Err(error) => PeerReply::Refused {
                reason: error.to_string(),
            },
        }
    }

    /// Another broker asks this one, whoever leads the metadata.
    async fn answer_broker(&self, request: Forward) -> PeerReply {
        let Some(broker) = self.broker.get() else {
            return PeerReply::Busy;
        };
        match dispatch::answer_broker(broker, request).await {
            Ok(body) => PeerReply::Forwarded(Forwarded {
                body,
                metadata_offset: broker.metadata.image().next_offset(),
            }),
            Err(error) => PeerReply::Refused {
                reason: error.to_string(),
            },
        }
    }

    async fn report(&self, reports: LeaderReports) -> PeerReply {
        let Some(metadata) = self.metadata.get() else {
            return PeerReply::Busy;
        };
        let taken = metadata.run(move |image| {
            let is_current = image
                .broker(reports.node)
                .is_some_and(|broker| broker.broker_epoch == reports.broker_epoch);
            if is_current {
                (apply_reports(image, &reports.reports), Ok(()))
            } else {
                (Vec::new(), Err(Refusal::StaleBroker(reports.node)))
            }
        });
        committed(metadata, taken.await)
    }

    async fn transfer(&self, group: GroupKey, to: NodeId) -> PeerReply {
        let Some(broker) = self.broker.get() else {
            return PeerReply::Busy;
        };
        match leading::hand_over(&broker.partitions, group, to).await {
            Ok(()) => PeerReply::Done,
            Err(HandOverError::NotLeader { leader }) => PeerReply::NotLeader { leader },
            Err(error @ (HandOverError::NoVoter(_) | HandOverError::Failed(_))) => {
                PeerReply::Refused {
                    reason: error.to_string(),
                }
            }
        }
    }

    async fn register(&self, caller: &Caller, registration: Registration) -> PeerReply {
        let Some(metadata) = self.metadata.get() else {
            return PeerReply::Busy;
        };
        let (from, node) = (caller.node, registration.broker_id);
        if node != from {
            return not_own(from, node);
        }
        let directory = directory_uuid(&caller.directory_id);
        if !registration.log_dirs.is_empty() && !registration.log_dirs.contains(&directory) {
            return PeerReply::Refused {
                reason: format!(
                    "node {from} comes with a data directory that it does not register"
                ),
            };
        }
        let registrant = Registrant {
            peer_protocol: caller.peer_protocol,
            is_here: from == self.local.node_id(),
        };
        let registered = metadata.run(move |image| {
            if image.cluster().is_none() {
                return (Vec::new(), Ok(false));
            }
            match register_broker(image, &registration, registrant, 0) {
                Ok(records) => (records, Ok(true)),
                Err(refusal) => (Vec::new(), Err(refusal)),
            }
        });
        let done = match registered.await {
            Ok(done) => done,
            Err(error) => return failed(metadata, &error),
        };
        match done.value {
            Ok(true) => {}
            // The leader is about to give the cluster its name.
            Ok(false) => return PeerReply::Busy,
            Err(refusal) => {
                tracing::warn!(%node, %refusal, "a broker is not registered");
                return refused(&refusal);
            }
        }
        let image = metadata.image();
        let (Some(cluster), Some(broker)) = (image.cluster(), image.broker(node)) else {
            return PeerReply::Busy;
        };
        tracing::info!(%node, epoch = broker.broker_epoch, "broker registered");
        PeerReply::Registered(Registered {
            broker_epoch: broker.broker_epoch,
            cluster_id: cluster.cluster_id.clone(),
            metadata_offset: done.offset,
        })
    }

    async fn register_controller(
        &self,
        caller: &Caller,
        registration: ControllerRegistration,
    ) -> PeerReply {
        let Some(metadata) = self.metadata.get() else {
            return PeerReply::Busy;
        };
        let (from, node) = (caller.node, registration.controller_id);
        if node != from {
            return not_own(from, node);
        }
        let peer_protocol = caller.peer_protocol;
        if metadata.is_leading() && metadata.image().cluster().is_none() {
            // The leader is about to give the cluster its name.
            return PeerReply::Busy;
        }
        let registered = metadata.run(move |image| {
            match register_controller(image, &registration, peer_protocol) {
                Ok(records) => (records, Ok(())),
                Err(refusal) => (Vec::new(), Err(refusal)),
            }
        });
        let registered = registered.await;
        if let Ok(Done {
            value: Err(refusal),
            ..
        }) = &registered
        {
            tracing::warn!(%node, %refusal, "a controller is not registered");
        }
        committed(metadata, registered)
    }

    /// A node that has never been in a cluster asks. See [`super::join`].
    async fn join(&self, from: NodeId, join: Join) -> PeerReply {
        let known = self.local.cluster_id();
        let Some(metadata) = self.metadata.get() else {
            return match known {
                None => self.fresh(from, &join),
                Some(_) => PeerReply::Busy,
            };
        };
        let is_founded = known.is_some() || metadata.image().cluster().is_some();
        if !is_founded && !metadata.is_leading() {
            return self.fresh(from, &join);
        }
        let asked = join.clone();
        let checked = metadata.run(move |image| {
            let cluster = image.cluster().map(|cluster| cluster.cluster_id.clone());
            let checked = check_newcomer(image, from, asked.directory, &asked.voters);
            (Vec::new(), checked.map(|()| cluster))
        });
        let cluster_id = match checked.await {
            Ok(Done {
                value: Ok(Some(cluster_id)),
                ..
            }) => cluster_id,
            Ok(Done {
                value: Ok(None), ..
            }) => return self.fresh(from, &join),
            Ok(Done {
                value: Err(refusal),
                ..
            }) => return refused(&refusal),
            Err(error) => {
                // The leader decides, whom a node that names other voters may never ask.
                return self
                    .disagreement(from, &join)
                    .unwrap_or_else(|| failed(metadata, &error));
            }
        };
        // It holds nothing, so it must not count among those who have what is committed: it learns
        // first, and votes when it has caught up.
        let group = metadata.group();
        let mut voters = group.membership().voters;
        if voters.remove(&from) {
            let changing = tokio::time::timeout(MEMBERSHIP_TIMEOUT, group.change_voters(voters));
            match changing.await {
                Ok(Ok(())) => tracing::info!(node = %from, "votes again when it has caught up"),
                Ok(Err(error)) => {
                    tracing::warn!(node = %from, %error, "cannot be let in");
                    return PeerReply::Busy;
                }
                Err(_) => return PeerReply::Busy,
            }
        }
        PeerReply::Welcome { cluster_id }
    }

    /// The answer of a node that has never been in a cluster. Whoever names other voters would found another one, and
    /// the two could have leaders at the same time that never hear of each other.
    fn fresh(&self, from: NodeId, join: &Join) -> PeerReply {
        self.disagreement(from, join).unwrap_or(PeerReply::Fresh)
    }

    /// What to say to a node that names other voters than this node's configuration.
    fn disagreement(&self, from: NodeId, join: &Join) -> Option<PeerReply> {
        let both_name = !join.voters.is_empty() && !self.voters.is_empty();
        (both_name && !same_nodes(&join.voters, &self.voters)).then(|| PeerReply::Disagrees {
            reason: format!(
                "node {from} names the voters {:?}, node {} names {:?}",
                numbers(&join.voters),
                self.local.node_id(),
                numbers(&self.voters)
            ),
        })
    }

    async fn stop(&self, stop: Stop) -> PeerReply {
        let Some(metadata) = self.metadata.get() else {
            return PeerReply::Busy;
        };
        let stopped = metadata.run(move |image| {
            let records = stop_broker(image, stop.node, stop.broker_epoch, stop.now);
            (records, Ok(()))
        });
        committed(metadata, stopped.await)
    }
}

/// Whether a node may ask this that is not known to the cluster: what makes it known.
fn comes_before_being_known(request: &PeerRequest) -> bool {
    match request {
        PeerRequest::Join(_)
        | PeerRequest::Quorum
        | PeerRequest::Register(_)
        | PeerRequest::RegisterController(_) => true,
        PeerRequest::Forward(_)
        | PeerRequest::Report(_)
        | PeerRequest::TransferLeader { .. }
        | PeerRequest::Stop(_)
        | PeerRequest::Broker(_)
        | PeerRequest::Standing(_)
        | PeerRequest::Checkpoint { .. } => false,
    }
}

fn not_own(from: NodeId, named: NodeId) -> PeerReply {
    PeerReply::Refused {
        reason: format!("node {from} speaks in the name of node {named}"),
    }
}

fn numbers(nodes: &[NodeId]) -> Vec<i32> {
    nodes.iter().map(|node| node.get()).collect()
}

fn committed(
    metadata: &MetadataService,
    outcome: Result<Done<Result<(), Refusal>>, MetadataError>,
) -> PeerReply {
    match outcome {
        Ok(Done {
            value: Ok(()),
            offset,
        }) => PeerReply::Committed {
            metadata_offset: offset,
        },
        Ok(Done {
            value: Err(refusal),
            ..
        }) => refused(&refusal),
        Err(error) => failed(metadata, &error),
    }
}

fn refused(refusal: &Refusal) -> PeerReply {
    PeerReply::Refused {
        reason: refusal.to_string(),
    }
}

fn failed(metadata: &MetadataService, error: &MetadataError) -> PeerReply {
    match error {
        MetadataError::NotController { leader } => PeerReply::NotController { leader: *leader },
        MetadataError::Propose(_) | MetadataError::Stopped | MetadataError::Raft(_) => {
            not_controller(metadata)
        }
        MetadataError::TimedOut | MetadataError::DiskReserve => PeerReply::Busy,
        MetadataError::Encode(_)
        | MetadataError::Batch(_)
        | MetadataError::NotReplayable(_)
        | MetadataError::Checkpoints(_)
        | MetadataError::Unreadable(_) => PeerReply::Refused {
            reason: error.to_string(),
        },
    }
}

fn not_controller(metadata: &MetadataService) -> PeerReply {
    PeerReply::NotController {
        leader: metadata.controller(),
    }
}

/// The id of a data directory as the metadata has it.
pub(crate) fn directory_uuid(id: &str) -> Uuid {
    TopicId::parse(id).map_or(Uuid::ZERO, Uuid::from)
}
