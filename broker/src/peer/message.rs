//! What nodes ask of one another besides replication, and the bytes of it.
//!
//! A request or an answer starts with [`VERSION`] and a tag. A node that does not know a tag says
//! so ([`PeerReply::Unsupported`]), and the asking node decides what to do without: that is what a
//! rolling upgrade stands on. A field is added at the end of a message together with a version.

mod parts;
mod replies;
mod requests;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::{NodeId, Offset};
use odradek_raft::{GroupKey, Standing};

use super::PeerAddress;
use crate::metadata::checkpoint::CheckpointId;
use crate::metadata::checkpoint::store::Piece;
use crate::metadata::controller::register_broker::Registration;
use crate::metadata::controller::voters::ControllerRegistration;
use crate::metadata::leader_report::LeaderReport;

/// Version of the messages of this module.
pub const VERSION: u8 = 1;

/// A question to another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerRequest {
    /// To the metadata leader: a client's request that only it can answer.
    Forward(Forward),
    /// To the metadata leader: who leads and who follows closely, of partitions led here.
    Report(LeaderReports),
    /// To a partition's leader: hand the leadership over.
    TransferLeader {
        /// The partition.
        group: GroupKey,
        /// Who is to lead it.
        to: NodeId,
    },
    /// To the metadata leader: this process is here.
    Register(Registration),
    /// To any voter: a node that has never been in a cluster wants to be in one.
    Join(Join),
    /// To the metadata leader: a broker wants to stop.
    Stop(Stop),
    /// To the metadata leader: this process may vote on the metadata.
    RegisterController(ControllerRegistration),
    /// To any node: who votes on the metadata, and where are they?
    Quorum,
    /// To a broker: a request of Kafka's protocol that brokers make to each other.
    Broker(Forward),
    /// To a broker: what does its replica of this partition have, whatever the incarnation?
    Standing(GroupKey),
    /// To a node that follows the metadata: a piece of a checkpoint of it.
    Checkpoint {
        /// Which; the newest if none is named.
        wanted: Option<CheckpointId>,
        /// Where the piece begins, in bytes.
        position: u64,
    },
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerReply {
    /// To [`PeerRequest::Forward`] and [`PeerRequest::Broker`].
    Forwarded(Forwarded),
    /// The request was carried out, and there is nothing more to say.
    Done,
    /// To [`PeerRequest::Report`], [`PeerRequest::Stop`] and [`PeerRequest::RegisterController`]: the
    /// metadata says so.
    Committed {
        /// End of the metadata log that includes it.
        metadata_offset: Offset,
    },
    /// To [`PeerRequest::Join`]: the asked node has never been in a cluster either.
    Fresh,
    /// To [`PeerRequest::Join`]: the asked node was told of other voters than the node that asks, and founds no cluster
    /// with it. That is no refusal by a cluster: who asks may have most voters with it.
    Disagrees {
        /// Why, for people.
        reason: String,
    },
    /// To [`PeerRequest::Join`]: the metadata leader knows no earlier node of this id.
    Welcome {
        /// Id of the cluster.
        cluster_id: String,
    },
    /// To [`PeerRequest::Register`].
    Registered(Registered),
    /// To [`PeerRequest::Standing`]; `None` if the broker's replica cannot be opened.
    Standing(Option<Standing>),
    /// To [`PeerRequest::Quorum`].
    Quorum(Vec<(NodeId, PeerAddress)>),
    /// To [`PeerRequest::Checkpoint`].
    Checkpoint(Piece),
    /// This node does not lead the metadata.
    NotController {
        /// Who does, as far as this node knows.
        leader: Option<NodeId>,
    },
    /// This node leads nothing of the kind that was asked for.
    NotLeader {
        /// Who does, as far as this node knows.
        leader: Option<NodeId>,
    },
    /// Refused; asking again changes nothing.
    Refused {
        /// Why, for people.
        reason: String,
    },
    /// Not now: the node is starting, stopping or overloaded.
    Busy,
    /// The node does not know this kind of request.
    Unsupported,
}

/// A request of Kafka's protocol on its way to another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    /// Key of the API.
    pub api_key: i16,
    /// Version of the request and of the answer.
    pub api_version: i16,
    /// `client.id` of the sender.
    pub client_id: Option<String>,
    /// Who the sender is.
    pub principal: String,
    /// The request without its header.
    pub body: Bytes,
}

/// The metadata leader's answer to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forwarded {
    /// The response without its header.
    pub body: Bytes,
    /// End of the metadata log that the answer rests on: who relays it knows at least that much
    /// before it does.
    pub metadata_offset: Offset,
}

/// The answer to a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// Number of the registration.
    pub broker_epoch: i64,
    /// Id of the cluster.
    pub cluster_id: String,
    /// End of the metadata log that includes the registration.
    pub metadata_offset: Offset,
}

/// Facts about partitions that their leaders know first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderReports {
    /// The broker that reports.
    pub node: NodeId,
    /// Number of its registration.
    pub broker_epoch: i64,
    /// A partition each.
    pub reports: Vec<LeaderReport>,
}

/// A node that has never been in a cluster. It keeps out of every vote until it knows that it is not
/// an old node with an empty disk, whose votes are forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    /// Id of its data directory.
    pub directory: Uuid,
    /// The voters that its configuration names.
    pub voters: Vec<NodeId>,
}

/// A broker on its way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// The broker.
    pub node: NodeId,
    /// Number of its registration.
    pub broker_epoch: i64,
    /// Whether it leads nothing any more and goes; otherwise it is about to give its leaderships
    /// away and wants no new ones.
    pub now: bool,
}
