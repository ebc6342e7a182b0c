//! What nodes ask of one another besides replication, and the bytes of it.
//!
//! A request or an answer starts with [`VERSION`] and a tag. A node that does not know a tag says
//! so ([`PeerReply::Unsupported`]), and the asking node decides what to do without: that is what a
//! rolling upgrade stands on. A field is added at the end of a message together with a version.

use bytes::{BufMut, Bytes, BytesMut};
use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::{LeaderEpoch, NodeId, Offset};
use odradek_raft::wire::{Reader, WireError, put_group_key, put_string};
use odradek_raft::{GroupKey, Incarnation, RaftIndex, Standing};

use super::PeerAddress;
use crate::metadata::checkpoint::CheckpointId;
use crate::metadata::checkpoint::store::Piece;
use crate::metadata::controller::register_broker::Registration;
use crate::metadata::controller::voters::ControllerRegistration;
use crate::metadata::leader_report::LeaderReport;
use crate::metadata::records::BrokerEndpoint;

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

const FORWARD: u8 = 1;
const REPORT: u8 = 2;
const TRANSFER_LEADER: u8 = 3;
const REGISTER: u8 = 4;
const JOIN: u8 = 5;
const STOP: u8 = 6;
const REGISTER_CONTROLLER: u8 = 7;
const QUORUM: u8 = 8;
const BROKER: u8 = 9;
const STANDING: u8 = 10;
const CHECKPOINT: u8 = 11;

const FORWARDED: u8 = 1;
const DONE: u8 = 2;
const REGISTERED: u8 = 3;
const NOT_CONTROLLER: u8 = 4;
const NOT_LEADER: u8 = 5;
const REFUSED: u8 = 6;
const BUSY: u8 = 7;
const UNSUPPORTED: u8 = 8;
const COMMITTED: u8 = 9;
const FRESH: u8 = 10;
const WELCOME: u8 = 11;
const VOTERS: u8 = 12;
const DISAGREES: u8 = 13;
const STANDS: u8 = 14;
const PIECE: u8 = 15;

impl PeerRequest {
    /// Writes the request.
    pub fn put(&self, out: &mut BytesMut) {
        out.put_u8(VERSION);
        match self {
            Self::Forward(forward) => {
                out.put_u8(FORWARD);
                put_forward(out, forward);
            }
            Self::Broker(request) => {
                out.put_u8(BROKER);
                put_forward(out, request);
            }
            Self::Report(report) => {
                out.put_u8(REPORT);
                out.put_i32(report.node.get());
                out.put_i64(report.broker_epoch);
                put_list(out, &report.reports, put_leader_report);
            }
            Self::TransferLeader { group, to } => {
                out.put_u8(TRANSFER_LEADER);
                put_group_key(out, *group);
                out.put_i32(to.get());
            }
            Self::Register(registration) => {
                out.put_u8(REGISTER);
                put_registration(out, registration);
            }
            Self::Join(join) => {
                out.put_u8(JOIN);
                out.put_slice(&join.directory.to_bytes());
                put_nodes(out, &join.voters);
            }
            Self::Stop(stop) => {
                out.put_u8(STOP);
                out.put_i32(stop.node.get());
                out.put_i64(stop.broker_epoch);
                out.put_u8(u8::from(stop.now));
            }
            Self::RegisterController(registration) => {
                out.put_u8(REGISTER_CONTROLLER);
                out.put_i32(registration.controller_id.get());
                out.put_slice(&registration.incarnation_id.to_bytes());
                put_list(out, &registration.endpoints, put_endpoint);
                out.put_slice(&registration.directory.to_bytes());
                put_nodes(out, &registration.voters);
            }
            Self::Quorum => out.put_u8(QUORUM),
            Self::Standing(group) => {
                out.put_u8(STANDING);
                put_group_key(out, *group);
            }
            Self::Checkpoint { wanted, position } => {
                out.put_u8(CHECKPOINT);
                put_optional(out, *wanted, put_checkpoint_id);
                out.put_u64(*position);
            }
        }
    }

    /// Reads a request; `None` if it is of a kind or version that this node does not know.
    pub fn get(reader: &mut Reader) -> Result<Option<Self>, WireError> {
        if reader.u8()? != VERSION {
            return Ok(None);
        }
        Ok(Some(match reader.u8()? {
            FORWARD => Self::Forward(get_forward(reader)?),
            BROKER => Self::Broker(get_forward(reader)?),
            REPORT => Self::Report(LeaderReports {
                node: get_node(reader)?,
                broker_epoch: reader.i64()?,
                reports: get_list(reader, "reports", 33, get_leader_report)?,
            }),
            TRANSFER_LEADER => Self::TransferLeader {
                group: reader.group_key()?,
                to: get_node(reader)?,
            },
            REGISTER => Self::Register(get_registration(reader)?),
            JOIN => Self::Join(Join {
                directory: Uuid::from_bytes(reader.id()?),
                voters: get_nodes(reader)?,
            }),
            STOP => Self::Stop(Stop {
                node: get_node(reader)?,
                broker_epoch: reader.i64()?,
                now: reader.bool()?,
            }),
            REGISTER_CONTROLLER => Self::RegisterController(ControllerRegistration {
                controller_id: get_node(reader)?,
                incarnation_id: Uuid::from_bytes(reader.id()?),
                endpoints: get_list(reader, "endpoints", 8, get_endpoint)?,
                directory: Uuid::from_bytes(reader.id()?),
                voters: get_nodes(reader)?,
            }),
            QUORUM => Self::Quorum,
            STANDING => Self::Standing(reader.group_key()?),
            CHECKPOINT => Self::Checkpoint {
                wanted: get_optional(reader, get_checkpoint_id)?,
                position: reader.u64()?,
            },
            _ => return Ok(None),
        }))
    }
}

impl PeerReply {
    /// Writes the answer.
    pub fn put(&self, out: &mut BytesMut) {
        out.put_u8(VERSION);
        match self {
            Self::Forwarded(forwarded) => {
                out.put_u8(FORWARDED);
                put_bytes(out, &forwarded.body);
                out.put_i64(forwarded.metadata_offset.get());
            }
            Self::Done => out.put_u8(DONE),
            Self::Committed { metadata_offset } => {
                out.put_u8(COMMITTED);
                out.put_i64(metadata_offset.get());
            }
            Self::Fresh => out.put_u8(FRESH),
            Self::Disagrees { reason } => {
                out.put_u8(DISAGREES);
                put_string(out, reason);
            }
            Self::Welcome { cluster_id } => {
                out.put_u8(WELCOME);
                put_string(out, cluster_id);
            }
            Self::Registered(registered) => {
                out.put_u8(REGISTERED);
                out.put_i64(registered.broker_epoch);
                put_string(out, &registered.cluster_id);
                out.put_i64(registered.metadata_offset.get());
            }
            Self::Quorum(voters) => {
                out.put_u8(VOTERS);
                put_list(out, voters, |out, (node, address)| {
                    out.put_i32(node.get());
                    put_string(out, &address.host);
                    out.put_u16(address.port);
                });
            }
            Self::Standing(standing) => {
                out.put_u8(STANDS);
                put_optional(out, standing.as_ref(), put_standing);
            }
            Self::Checkpoint(piece) => {
                out.put_u8(PIECE);
                put_checkpoint_id(out, piece.id);
                out.put_u64(piece.size);
                put_bytes(out, &piece.bytes);
            }
            Self::NotController { leader } => {
                out.put_u8(NOT_CONTROLLER);
                put_optional(out, *leader, |out, node| out.put_i32(node.get()));
            }
            Self::NotLeader { leader } => {
                out.put_u8(NOT_LEADER);
                put_optional(out, *leader, |out, node| out.put_i32(node.get()));
            }
            Self::Refused { reason } => {
                out.put_u8(REFUSED);
                put_string(out, reason);
            }
            Self::Busy => out.put_u8(BUSY),
            Self::Unsupported => out.put_u8(UNSUPPORTED),
        }
    }

    /// Reads an answer. One that this node does not know is to a question that it did not ask.
    pub fn get(reader: &mut Reader) -> Result<Self, WireError> {
        let unknown = |what, found| Err(WireError::Unknown { what, found });
        match reader.u8()? {
            VERSION => {}
            found => return unknown("version", found),
        }
        Ok(match reader.u8()? {
            FORWARDED => Self::Forwarded(Forwarded {
                body: reader.bytes()?,
                metadata_offset: Offset::new(reader.i64()?),
            }),
            DONE => Self::Done,
            COMMITTED => Self::Committed {
                metadata_offset: Offset::new(reader.i64()?),
            },
            FRESH => Self::Fresh,
            DISAGREES => Self::Disagrees {
                reason: reader.string()?,
            },
            WELCOME => Self::Welcome {
                cluster_id: reader.string()?,
            },
            REGISTERED => Self::Registered(Registered {
                broker_epoch: reader.i64()?,
                cluster_id: reader.string()?,
                metadata_offset: Offset::new(reader.i64()?),
            }),
            VOTERS => Self::Quorum(get_list(reader, "voters", 8, |reader| {
                let node = get_node(reader)?;
                let address = PeerAddress {
                    host: reader.string()?,
                    port: reader.u16()?,
                };
                Ok((node, address))
            })?),
            STANDS => Self::Standing(get_optional(reader, get_standing)?),
            PIECE => Self::Checkpoint(Piece {
                id: get_checkpoint_id(reader)?,
                size: reader.u64()?,
                bytes: reader.bytes()?,
            }),
            NOT_CONTROLLER => Self::NotController {
                leader: get_optional(reader, get_node)?,
            },
            NOT_LEADER => Self::NotLeader {
                leader: get_optional(reader, get_node)?,
            },
            REFUSED => Self::Refused {
                reason: reader.string()?,
            },
            BUSY => Self::Busy,
            UNSUPPORTED => Self::Unsupported,
            found => return unknown("answer", found),
        })
    }
}

fn put_checkpoint_id(out: &mut BytesMut, id: CheckpointId) {
    out.put_i64(id.end.get());
    out.put_i32(id.epoch.get());
}

fn get_checkpoint_id(reader: &mut Reader) -> Result<CheckpointId, WireError> {
    Ok(CheckpointId {
        end: Offset::new(reader.i64()?),
        epoch: LeaderEpoch::new(reader.i32()?),
    })
}

fn put_forward(out: &mut BytesMut, forward: &Forward) {
    out.put_i16(forward.api_key);
    out.put_i16(forward.api_version);
    put_optional(out, forward.client_id.as_deref(), |out, id| {
        put_string(out, id);
    });
    put_string(out, &forward.principal);
    put_bytes(out, &forward.body);
}

fn get_forward(reader: &mut Reader) -> Result<Forward, WireError> {
    Ok(Forward {
        api_key: reader.i16()?,
        api_version: reader.i16()?,
        client_id: get_optional(reader, Reader::string)?,
        principal: reader.string()?,
        body: reader.bytes()?,
    })
}

fn put_leader_report(out: &mut BytesMut, report: &LeaderReport) {
    put_group_key(out, report.group());
    out.put_i32(report.leader.get());
    out.put_i32(report.epoch.get());
    put_nodes(out, &report.isr);
    put_optional(out, report.reassigned.as_deref(), put_nodes);
}

fn get_leader_report(reader: &mut Reader) -> Result<LeaderReport, WireError> {
    let group = reader.group_key()?;
    Ok(LeaderReport {
        topic_id: group.topic_id,
        partition: group.partition,
        incarnation: group.incarnation,
        leader: get_node(reader)?,
        epoch: LeaderEpoch::new(reader.i32()?),
        isr: get_nodes(reader)?,
        reassigned: get_optional(reader, get_nodes)?,
    })
}

fn put_standing(out: &mut BytesMut, standing: &Standing) {
    out.put_u32(standing.incarnation.get());
    out.put_u8(u8::from(standing.is_whole));
    out.put_u8(u8::from(standing.leads));
    out.put_u64(standing.term);
    put_optional(out, standing.last, |out, (term, index)| {
        out.put_u64(term);
        out.put_u64(index.get());
    });
    out.put_u64(standing.committed_end.get());
    out.put_i64(standing.log_start.get());
    out.put_i64(standing.high_watermark.get());
    out.put_i64(standing.log_end.get());
    put_list(out, &standing.voters, |out, voters| {
        let voters: Vec<NodeId> = voters.iter().copied().collect();
        put_nodes(out, &voters);
    });
}

fn get_standing(reader: &mut Reader) -> Result<Standing, WireError> {
    Ok(Standing {
        incarnation: Incarnation::new(reader.u32()?),
        is_whole: reader.bool()?,
        leads: reader.bool()?,
        term: reader.u64()?,
        last: get_optional(reader, |reader| {
            Ok((reader.u64()?, RaftIndex::new(reader.u64()?)))
        })?,
        committed_end: RaftIndex::new(reader.u64()?),
        log_start: Offset::new(reader.i64()?),
        high_watermark: Offset::new(reader.i64()?),
        log_end: Offset::new(reader.i64()?),
        voters: get_list(reader, "sets of voters", 4, |reader| {
            Ok(get_nodes(reader)?.into_iter().collect())
        })?,
    })
}

fn put_registration(out: &mut BytesMut, registration: &Registration) {
    out.put_i32(registration.broker_id.get());
    out.put_slice(&registration.incarnation_id.to_bytes());
    put_list(out, &registration.endpoints, put_endpoint);
    put_optional(out, registration.rack.as_deref(), |out, rack| {
        put_string(out, rack);
    });
    put_list(out, &registration.log_dirs, |out, id| {
        out.put_slice(&id.to_bytes());
    });
    put_nodes(out, &registration.voters);
}

fn put_endpoint(out: &mut BytesMut, endpoint: &BrokerEndpoint) {
    put_string(out, &endpoint.name);
    put_string(out, &endpoint.host);
    out.put_u16(endpoint.port);
    out.put_i16(endpoint.security_protocol);
}

fn get_endpoint(reader: &mut Reader) -> Result<BrokerEndpoint, WireError> {
    Ok(BrokerEndpoint {
        name: reader.string()?,
        host: reader.string()?,
        port: reader.u16()?,
        security_protocol: reader.i16()?,
    })
}

fn get_registration(reader: &mut Reader) -> Result<Registration, WireError> {
    Ok(Registration {
        broker_id: get_node(reader)?,
        incarnation_id: Uuid::from_bytes(reader.id()?),
        endpoints: get_list(reader, "endpoints", 8, get_endpoint)?,
        rack: get_optional(reader, Reader::string)?,
        log_dirs: get_list(reader, "log directories", 16, |reader| {
            Ok(Uuid::from_bytes(reader.id()?))
        })?,
        voters: get_nodes(reader)?,
    })
}

fn put_nodes(out: &mut BytesMut, nodes: &[NodeId]) {
    put_list(out, nodes, |out, node| out.put_i32(node.get()));
}

fn get_nodes(reader: &mut Reader) -> Result<Vec<NodeId>, WireError> {
    get_list(reader, "nodes", 4, get_node)
}

fn get_node(reader: &mut Reader) -> Result<NodeId, WireError> {
    Ok(NodeId::new(reader.i32()?))
}

fn put_bytes(out: &mut BytesMut, bytes: &Bytes) {
    out.put_u32(bytes.len() as u32);
    out.put_slice(bytes);
}

fn put_optional<T>(out: &mut BytesMut, value: Option<T>, put: impl FnOnce(&mut BytesMut, T)) {
    out.put_u8(u8::from(value.is_some()));
    if let Some(value) = value {
        put(out, value);
    }
}

fn get_optional<T>(
    reader: &mut Reader,
    get: impl FnOnce(&mut Reader) -> Result<T, WireError>,
) -> Result<Option<T>, WireError> {
    match reader.bool()? {
        true => get(reader).map(Some),
        false => Ok(None),
    }
}

fn put_list<T>(out: &mut BytesMut, list: &[T], mut put: impl FnMut(&mut BytesMut, &T)) {
    out.put_u32(list.len() as u32);
    for element in list {
        put(out, element);
    }
}

/// Reads a list of elements that take at least `each` bytes.
fn get_list<T>(
    reader: &mut Reader,
    what: &'static str,
    each: usize,
    mut get: impl FnMut(&mut Reader) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    let count = reader.count(what, each)?;
    let mut list = Vec::with_capacity(count);
    for _ in 0..count {
        list.push(get(reader)?);
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use odradek_protocol::ids::{PartitionIndex, TopicId};

    use super::*;

    fn checkpoint_id() -> CheckpointId {
        CheckpointId {
            end: Offset::new(77),
            epoch: LeaderEpoch::new(3),
        }
    }

    fn requests() -> Vec<PeerRequest> {
        let report = LeaderReport {
            topic_id: TopicId::from_bytes([4; 16]),
            partition: PartitionIndex::new(3),
            incarnation: Incarnation::FIRST,
            leader: NodeId::new(1),
            epoch: LeaderEpoch::new(12),
            isr: vec![NodeId::new(1), NodeId::new(2)],
            reassigned: None,
        };
        let done = LeaderReport {
            incarnation: Incarnation::new(1005),
            reassigned: Some(vec![NodeId::new(1), NodeId::new(2), NodeId::new(3)]),
            ..report.clone()
        };
        vec![
            PeerRequest::Forward(Forward {
                api_key: 19,
                api_version: 7,
                client_id: Some("admin".to_owned()),
                principal: "User:ANONYMOUS".to_owned(),
                body: Bytes::from_static(b"body"),
            }),
            PeerRequest::Broker(Forward {
                api_key: 27,
                api_version: 2,
                client_id: None,
                principal: "User:BROKER".to_owned(),
                body: Bytes::from_static(b"markers"),
            }),
            PeerRequest::Report(LeaderReports {
                node: NodeId::new(1),
                broker_epoch: 99,
                reports: vec![report, done],
            }),
            PeerRequest::Join(Join {
                directory: Uuid::from_bytes([3; 16]),
                voters: vec![NodeId::new(1), NodeId::new(2)],
            }),
            PeerRequest::Stop(Stop {
                node: NodeId::new(1),
                broker_epoch: 99,
                now: true,
            }),
            PeerRequest::TransferLeader {
                group: GroupKey::new(TopicId::from_bytes([9; 16]), PartitionIndex::new(0)),
                to: NodeId::new(2),
            },
            PeerRequest::Standing(
                GroupKey::new(TopicId::from_bytes([9; 16]), PartitionIndex::new(2))
                    .in_incarnation(Incarnation::new(7)),
            ),
            PeerRequest::Quorum,
            PeerRequest::Checkpoint {
                wanted: Some(checkpoint_id()),
                position: 1 << 40,
            },
            PeerRequest::RegisterController(ControllerRegistration {
                controller_id: NodeId::new(3),
                incarnation_id: Uuid::from_bytes([1; 16]),
                endpoints: vec![],
                directory: Uuid::from_bytes([2; 16]),
                voters: vec![NodeId::new(1)],
            }),
            PeerRequest::Register(Registration {
                broker_id: NodeId::new(4),
                incarnation_id: Uuid::from_bytes([1; 16]),
                endpoints: vec![BrokerEndpoint {
                    name: "PLAINTEXT".to_owned(),
                    host: "h".to_owned(),
                    port: 9092,
                    security_protocol: 0,
                }],
                rack: Some("r1".to_owned()),
                log_dirs: vec![Uuid::from_bytes([2; 16])],
                voters: vec![NodeId::new(1)],
            }),
        ]
    }

    fn replies() -> Vec<PeerReply> {
        vec![
            PeerReply::Forwarded(Forwarded {
                body: Bytes::from_static(b"answer"),
                metadata_offset: Offset::new(77),
            }),
            PeerReply::Done,
            PeerReply::Committed {
                metadata_offset: Offset::new(8),
            },
            PeerReply::Fresh,
            PeerReply::Disagrees {
                reason: "because".to_owned(),
            },
            PeerReply::Welcome {
                cluster_id: "c".to_owned(),
            },
            PeerReply::Registered(Registered {
                broker_epoch: 5,
                cluster_id: "c".to_owned(),
                metadata_offset: Offset::new(6),
            }),
            PeerReply::Quorum(vec![(
                NodeId::new(1),
                PeerAddress {
                    host: "h".to_owned(),
                    port: 9093,
                },
            )]),
            PeerReply::Standing(None),
            PeerReply::Standing(Some(Standing {
                incarnation: Incarnation::new(1005),
                is_whole: true,
                leads: false,
                term: 1009,
                last: Some((1009, RaftIndex::new(77))),
                committed_end: RaftIndex::new(70),
                log_start: Offset::new(3),
                high_watermark: Offset::new(400),
                log_end: Offset::new(412),
                voters: vec![[1, 2].into_iter().map(NodeId::new).collect()],
            })),
            PeerReply::Checkpoint(Piece {
                id: checkpoint_id(),
                size: 1 << 40,
                bytes: Bytes::from_static(b"piece"),
            }),
            PeerReply::NotController { leader: None },
            PeerReply::NotLeader {
                leader: Some(NodeId::new(3)),
            },
            PeerReply::Refused {
                reason: "because".to_owned(),
            },
            PeerReply::Busy,
            PeerReply::Unsupported,
        ]
    }

    #[test]
    fn messages_read_back_as_written_and_break_off_as_errors() {
        for request in requests() {
            let mut out = BytesMut::new();
            request.put(&mut out);
            let bytes = out.freeze();
            for cut in 0..bytes.len() {
                assert!(PeerRequest::get(&mut Reader::new(bytes.slice(..cut))).is_err());
            }
            let mut reader = Reader::new(bytes);
            assert_eq!(PeerRequest::get(&mut reader), Ok(Some(request)));
            assert_eq!(reader.end(), Ok(()));
        }
        for reply in replies() {
            let mut out = BytesMut::new();
            reply.put(&mut out);
            let bytes = out.freeze();
            for cut in 0..bytes.len() {
                assert!(PeerReply::get(&mut Reader::new(bytes.slice(..cut))).is_err());
            }
            let mut reader = Reader::new(bytes);
            assert_eq!(PeerReply::get(&mut reader), Ok(reply));
            assert_eq!(reader.end(), Ok(()));
        }
    }

    #[test]
    fn a_request_of_the_future_is_unknown_rather_than_malformed() {
        for bytes in [[VERSION, 250], [VERSION + 1, FORWARD]] {
            let mut reader = Reader::new(Bytes::copy_from_slice(&bytes));
            assert_eq!(PeerRequest::get(&mut reader), Ok(None));
        }
    }
}
