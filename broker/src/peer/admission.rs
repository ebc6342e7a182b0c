//! What a node that has connected may do.
//!
//! Nodes are not authenticated: whoever reaches the listener may say that it is any node. What is held
//! here is that a stranger who does not even pretend to be one of the cluster harms nobody, and that
//! nobody speaks for more than the one node that it says to be:
//!
//! - Who names no cluster may ask to join one, and who votes on its metadata. Voters that found the
//!   cluster are the exception until they are registered, for they cannot know its name before.
//! - Appends, votes, snapshots and transfers are in the sender's own name, and the sender is one that
//!   may lead the group: as the group says, or as the metadata says, which may be ahead of the group.
//! - Who is not known to the cluster probes nobody and sends no large frames.
//!
//! Why these and no others is in `docs/decisions/between-nodes.md`.

use std::sync::{Arc, OnceLock};

use odradek_protocol::ids::NodeId;
use odradek_raft::rpc::Signed;
use odradek_raft::seldom::Seldom;
use odradek_raft::{GroupKey, RaftNode};

use super::server::PeerService;
use super::{LocalNode, PeerRequest};

/// What was said a while ago of a node's messages to a group.
pub(super) type Refusals = Seldom<(NodeId, GroupKey)>;

/// What nobody does who belongs here. It ends the connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Forbidden {
    #[error("it does not name this cluster: it may ask to join, and nothing else")]
    NoCluster,
    #[error("it speaks in the name of node {0}")]
    OfAnother(NodeId),
}

/// Who is at the other end of a connection, and by what it is judged.
pub(super) struct Admission<'a> {
    pub(super) from: NodeId,
    /// The cluster that it has named, if it has.
    pub(super) cluster_id: Option<&'a str>,
    pub(super) local: &'a LocalNode,
    pub(super) raft: &'a Arc<RaftNode>,
    pub(super) service: &'a OnceLock<Arc<dyn PeerService>>,
    pub(super) refusals: &'a Refusals,
}

impl Admission<'_> {
    /// Whether it has named this node's cluster. One that has none takes anybody, and so may have let in who
    /// is of another.
    fn is_of_cluster(&self) -> bool {
        match self.local.cluster_id() {
            Some(ours) => self.cluster_id == Some(ours.as_str()),
            None => true,
        }
    }

    /// Whether it may take part in replication at all.
    pub(super) fn check_cluster(&self) -> Result<(), Forbidden> {
        if self.is_of_cluster() {
            return Ok(());
        }
        match self.asked(|service| service.may_found(self.from)) {
            true => Ok(()),
            false => Err(Forbidden::NoCluster),
        }
    }

    /// Whether it may ask this of the broker.
    pub(super) fn check_request(&self, request: &PeerRequest) -> Result<(), Forbidden> {
        let is_for_all = matches!(request, PeerRequest::Join(_) | PeerRequest::Quorum);
        match is_for_all || self.is_of_cluster() {
            true => Ok(()),
            false => Err(Forbidden::NoCluster),
        }
    }

    /// Whether a message is in its own name.
    pub(super) fn check_name(&self, message: &impl Signed) -> Result<(), Forbidden> {
        match message.sender() {
            sender if sender == self.from => Ok(()),
            sender => Err(Forbidden::OfAnother(sender)),
        }
    }

    /// Whether a message of a leader or a candidate, in its own name, is to be taken. One that is not may be
    /// taken later, when this node knows more.
    pub(super) fn may_speak(
        &self,
        group: GroupKey,
        message: &impl Signed,
    ) -> Result<bool, Forbidden> {
        self.check_cluster()?;
        self.check_name(message)?;
        let replica = self.raft.group(group);
        // A group that is not here is said to be not here.
        // Nearly every message is of the leader that is followed, which is cheaper to know than the members.
        let may_lead = replica.is_none_or(|replica| {
            replica.is_led_by(self.from, message.term()) || replica.may_be_led_by(self.from)
        }) || self.asked(|service| service.may_lead(self.from, group));
        if !may_lead && let Some(left_out) = self.refusals.may_say((self.from, group)) {
            let (from, term) = (self.from, message.term());
            tracing::warn!(
                %from, %group, term, left_out,
                "a node that is no voter of the group, as far as is known here, wants to lead it"
            );
        }
        Ok(may_lead)
    }

    /// Says, now and then, that an entry has arrived damaged.
    pub(super) fn say_damaged(&self, group: GroupKey, index: u64, cause: &str) {
        if let Some(left_out) = self.refusals.may_say((self.from, group)) {
            let from = self.from;
            tracing::error!(%from, %group, index, cause, left_out, "an entry has arrived damaged");
        }
    }

    /// Whether it takes part in the group, or may.
    pub(super) fn is_member(&self, group: GroupKey) -> bool {
        let replica = self.raft.group(group);
        replica.is_none_or(|replica| replica.has_member(self.from))
            || self.asked(|service| service.may_lead(self.from, group))
    }

    /// Whether it is one of the cluster, as far as is known here.
    pub(super) fn is_known(&self) -> bool {
        self.check_cluster().is_ok()
            && self
                .service
                .get()
                .is_none_or(|service| service.knows(self.from))
    }

    fn asked(&self, question: impl FnOnce(&dyn PeerService) -> bool) -> bool {
        self.service
            .get()
            .is_some_and(|service| question(&**service))
    }
}
