//! The bytes of an answer: version, tag, what the kind of answer has.

use bytes::{BufMut, BytesMut};
use odradek_protocol::ids::Offset;
use odradek_raft::wire::{Reader, WireError, put_string};

use super::parts::{
    get_checkpoint_id, get_list, get_node, get_optional, get_standing, put_bytes,
    put_checkpoint_id, put_list, put_optional, put_standing,
};
use super::{Forwarded, PeerReply, Registered, VERSION};
use crate::metadata::checkpoint::store::Piece;
use crate::peer::PeerAddress;

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
