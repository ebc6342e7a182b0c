//! The bodies of calls and of the replies to them.

use bytes::{BufMut, BytesMut};
use odradek_raft::GroupKey;
use odradek_raft::liveness::{LeadershipQuery, Probe};
use odradek_raft::network::NetworkError;
use odradek_raft::rpc::{RecordsRead, RecordsWanted, SnapshotOffer, TransferRequest, VoteRequest};
use odradek_raft::wire::{self, Reader, WireError};

use super::{PeerReply, PeerRequest};

const VOTE: u8 = 1;
const PRE_VOTE: u8 = 2;
const SNAPSHOT: u8 = 3;
const TRANSFER: u8 = 4;
const PEER: u8 = 5;
const PROBE: u8 = 6;
const LEADERSHIP: u8 = 7;
const CLEARANCE: u8 = 8;
const OPEN_RECORDS: u8 = 9;
const READ_RECORDS: u8 = 10;
const CLOSE_RECORDS: u8 = 11;
const DROPPABLE: u8 = 12;

/// A call that has arrived.
pub(super) enum Call {
    Vote {
        group: GroupKey,
        request: VoteRequest,
        pre_vote: bool,
    },
    Snapshot {
        group: GroupKey,
        offer: SnapshotOffer,
    },
    Transfer {
        group: GroupKey,
        request: TransferRequest,
    },
    Probe(Probe),
    Leadership(LeadershipQuery),
    /// Whether the sender's replica, which holds nothing, may take part.
    Clearance(GroupKey),
    /// Records that the sender's replica wants.
    OpenRecords {
        group: GroupKey,
        wanted: RecordsWanted,
    },
    /// A piece of them.
    ReadRecords {
        group: GroupKey,
        read: RecordsRead,
    },
    /// The sender's replica wants no more of them.
    CloseRecords(GroupKey),
    /// Below which offset entries may be dropped.
    Droppable(GroupKey),
    Peer(PeerRequest),
    /// Of a kind that this version does not know.
    Unknown,
}

pub(super) fn put_vote(out: &mut BytesMut, group: GroupKey, request: &VoteRequest, pre_vote: bool) {
    out.put_u8(if pre_vote { PRE_VOTE } else { VOTE });
    wire::put_group_key(out, group);
    wire::put_vote_request(out, request);
}

pub(super) fn put_snapshot(out: &mut BytesMut, group: GroupKey, offer: &SnapshotOffer) {
    out.put_u8(SNAPSHOT);
    wire::put_group_key(out, group);
    wire::put_snapshot_offer(out, offer);
}

pub(super) fn put_transfer(out: &mut BytesMut, group: GroupKey, request: &TransferRequest) {
    out.put_u8(TRANSFER);
    wire::put_group_key(out, group);
    wire::put_transfer_request(out, request);
}

pub(super) fn put_peer(out: &mut BytesMut, request: &PeerRequest) {
    out.put_u8(PEER);
    request.put(out);
}

pub(super) fn put_probe(out: &mut BytesMut, probe: &Probe) {
    out.put_u8(PROBE);
    wire::put_probe(out, probe);
}

pub(super) fn put_leadership(out: &mut BytesMut, query: &LeadershipQuery) {
    out.put_u8(LEADERSHIP);
    wire::put_leadership_query(out, query);
}

pub(super) fn put_clearance(out: &mut BytesMut, group: GroupKey) {
    out.put_u8(CLEARANCE);
    wire::put_group_key(out, group);
}

pub(super) fn put_open_records(out: &mut BytesMut, group: GroupKey, wanted: RecordsWanted) {
    out.put_u8(OPEN_RECORDS);
    wire::put_group_key(out, group);
    wire::put_records_wanted(out, &wanted);
}

pub(super) fn put_read_records(out: &mut BytesMut, group: GroupKey, read: RecordsRead) {
    out.put_u8(READ_RECORDS);
    wire::put_group_key(out, group);
    wire::put_records_read(out, &read);
}

pub(super) fn put_close_records(out: &mut BytesMut, group: GroupKey) {
    out.put_u8(CLOSE_RECORDS);
    wire::put_group_key(out, group);
}

pub(super) fn put_droppable(out: &mut BytesMut, group: GroupKey) {
    out.put_u8(DROPPABLE);
    wire::put_group_key(out, group);
}

impl Call {
    /// Reads a call. Of one that is unknown the rest is not looked at.
    pub(super) fn get(mut reader: Reader) -> Result<Self, WireError> {
        let call = match reader.u8()? {
            kind @ (VOTE | PRE_VOTE) => Self::Vote {
                group: reader.group_key()?,
                request: wire::get_vote_request(&mut reader)?,
                pre_vote: kind == PRE_VOTE,
            },
            SNAPSHOT => Self::Snapshot {
                group: reader.group_key()?,
                offer: wire::get_snapshot_offer(&mut reader)?,
            },
            TRANSFER => Self::Transfer {
                group: reader.group_key()?,
                request: wire::get_transfer_request(&mut reader)?,
            },
            PROBE => Self::Probe(wire::get_probe(&mut reader)?),
            LEADERSHIP => Self::Leadership(wire::get_leadership_query(&mut reader)?),
            CLEARANCE => Self::Clearance(reader.group_key()?),
            OPEN_RECORDS => Self::OpenRecords {
                group: reader.group_key()?,
                wanted: wire::get_records_wanted(&mut reader)?,
            },
            READ_RECORDS => Self::ReadRecords {
                group: reader.group_key()?,
                read: wire::get_records_read(&mut reader)?,
            },
            CLOSE_RECORDS => Self::CloseRecords(reader.group_key()?),
            DROPPABLE => Self::Droppable(reader.group_key()?),
            PEER => match PeerRequest::get(&mut reader)? {
                Some(request) => Self::Peer(request),
                None => return Ok(Self::Unknown),
            },
            _ => return Ok(Self::Unknown),
        };
        reader.end()?;
        Ok(call)
    }
}

const OK: u8 = 0;
const NOT_SERVED: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// What a reply is, before what the group or the broker says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// The answer follows.
    Ok,
    /// The group is not there.
    NotServed,
    /// The call is of a kind that the other node does not know.
    Unsupported,
}

/// Writes the reply of a group.
pub(super) fn put_reply<T>(
    out: &mut BytesMut,
    reply: &Result<T, NetworkError>,
    put: impl FnOnce(&mut BytesMut, &T),
) {
    match reply {
        Ok(reply) => {
            out.put_u8(OK);
            put(out, reply);
        }
        Err(
            NetworkError::NotServed { .. }
            | NetworkError::Unreachable(_)
            | NetworkError::Promised
            | NetworkError::Unsound(_),
        ) => {
            out.put_u8(NOT_SERVED);
        }
    }
}

/// Writes the reply of the broker.
pub(super) fn put_peer_reply(out: &mut BytesMut, reply: &PeerReply) {
    out.put_u8(OK);
    reply.put(out);
}

/// Writes that the call is not known.
pub(super) fn put_unsupported(out: &mut BytesMut) {
    out.put_u8(UNSUPPORTED);
}

/// Reads what comes before the answer.
pub(super) fn get_status(reader: &mut Reader) -> Result<Status, WireError> {
    match reader.u8()? {
        OK => Ok(Status::Ok),
        NOT_SERVED => Ok(Status::NotServed),
        UNSUPPORTED => Ok(Status::Unsupported),
        found => Err(WireError::Unknown {
            what: "status",
            found,
        }),
    }
}

/// Why a stream of appends was closed by the follower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The group has answered all it is going to answer.
    Ended,
    /// The group is not there, or has stopped.
    NotServed,
    /// A batch arrived damaged.
    Damaged,
    /// There are as many streams as may be.
    TooMany,
}

impl StreamEnd {
    const ALL: [Self; 4] = [Self::Ended, Self::NotServed, Self::Damaged, Self::TooMany];

    pub(super) fn put(self, out: &mut BytesMut) {
        out.put_u8(self as u8);
    }

    pub(super) fn get(reader: &mut Reader) -> Result<Self, WireError> {
        let found = reader.u8()?;
        let end = Self::ALL.get(usize::from(found)).copied();
        end.ok_or(WireError::Unknown {
            what: "end of a stream",
            found,
        })
    }
}
