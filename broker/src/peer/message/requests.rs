//! The bytes of a question: version, tag, what the kind of question has.

use bytes::{BufMut, BytesMut};
use odradek_protocol::codec::Uuid;
use odradek_raft::wire::{Reader, WireError, put_group_key};

use super::parts::{
    get_checkpoint_id, get_endpoint, get_forward, get_leader_report, get_list, get_node, get_nodes,
    get_optional, get_registration, put_checkpoint_id, put_endpoint, put_forward,
    put_leader_report, put_list, put_nodes, put_optional, put_registration,
};
use super::{Join, LeaderReports, PeerRequest, Stop, VERSION};
use crate::metadata::controller::voters::ControllerRegistration;

pub(super) const FORWARD: u8 = 1;
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
