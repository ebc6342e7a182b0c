//! The messages between replicas as bytes on a connection: big-endian, in the order of the fields.
//!
//! Invariants: decoding never panics, allocates no more than a small multiple of the bytes at hand,
//! and a batch that is read is a slice of the frame it came in. Encoding copies a batch only if it
//! is small. What was read is what was sent, or the batch's checksum says otherwise. No term above
//! [`MAX_TERM`] is read, nor an index or a node's id that is none.
//!
//! Absent on purpose: versions. The connection's hello has agreed on one before the first message.

mod records;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use odradek_protocol::batch::{BatchHeader, verify_crc};
use odradek_protocol::ids::{NodeId, Offset, PartitionIndex, TopicId};
use openraft::SnapshotMeta;
use openraft::raft::{StreamAppendError, TransferLeaderError};

use crate::codec::{get_log_id, get_membership, put_log_id, put_membership};
use crate::liveness::{LeadershipQuery, LeadershipReply, Probe, ProbeReply};
use crate::rpc::{
    AppendRequest, AppendResult, Clearance, Snapshot, SnapshotOffer, SnapshotReply, SnapshotState,
    TransferReply, TransferRequest, VoteReply, VoteRequest,
};
use crate::types::{
    BatchCommand, Command, Entry, GroupKey, Incarnation, LogId, Membership, Payload, Stamp,
    StoredMembership, Vote, log_id, term_of,
};

pub use records::{
    get_droppable, get_nothing, get_records_opened, get_records_piece, get_records_read,
    get_records_wanted, put_droppable, put_nothing, put_records_opened, put_records_piece,
    put_records_read, put_records_wanted,
};

/// Batches up to this size are copied into the bytes around them: cheaper than a piece of their own.
const COPY_MAX_BYTES: usize = 1024;

const ENTRY_BLANK: u8 = 0;
const ENTRY_MEMBERSHIP: u8 = 1;
const ENTRY_LOG_START: u8 = 2;
const ENTRY_BATCH: u8 = 3;

/// Bytes of an entry before its payload: kind, term, index.
const ENTRY_HEAD_BYTES: usize = 17;

/// Highest term: clients see it as a leader epoch, which has 31 bits. Who holds a vote for a later one
/// could follow no leader any more that a client understands.
pub const MAX_TERM: u64 = i32::MAX as u64;
/// Highest index of an entry; the next one is still a number.
const MAX_INDEX: u64 = i64::MAX as u64;
/// Highest id of a node.
const MAX_NODE: u64 = i32::MAX as u64;

/// Why bytes are no message, or a message has no bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end inside the message.
    #[error("the message breaks off")]
    Truncated,
    /// Bytes follow the message.
    #[error("{bytes} bytes behind the message")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// A number that stands for one of several things stands for none.
    #[error("{what} {found} is unknown")]
    Unknown {
        /// What it should have been.
        what: &'static str,
        /// As it stands.
        found: u8,
    },
    /// A count is larger than the bytes that follow can hold.
    #[error("{count} of {what} cannot follow")]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// As it stands.
        count: u32,
    },
    /// A value that is none of its kind.
    #[error("malformed {0}")]
    Malformed(&'static str),
    /// A batch whose checksum does not fit: damaged where it was stored, or on the way.
    #[error("entry {index}: {cause}")]
    Damaged {
        /// Raft index of the entry.
        index: u64,
        /// What is wrong with it.
        cause: String,
    },
    /// An entry that is never sent.
    #[error("entry {0} cannot be sent")]
    Unsendable(String),
}

/// Takes values off the front of a frame.
#[derive(Debug)]
pub struct Reader {
    rest: Bytes,
}

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $get:ident,)*) => {
        $(
            $(#[$doc])*
            pub fn $name(&mut self) -> Result<$type, WireError> {
                self.rest.$get().map_err(|_| WireError::Truncated)
            }
        )*
    };
}

impl Reader {
    /// Reads `frame` from its start.
    pub fn new(frame: Bytes) -> Self {
        Self { rest: frame }
    }

    numbers! {
        /// A byte.
        u8: u8 = try_get_u8,
        /// Two bytes.
        u16: u16 = try_get_u16,
        /// Two bytes, signed.
        i16: i16 = try_get_i16,
        /// Four bytes.
        u32: u32 = try_get_u32,
        /// Four bytes, signed.
        i32: i32 = try_get_i32,
        /// Eight bytes.
        u64: u64 = try_get_u64,
        /// Eight bytes, signed.
        i64: i64 = try_get_i64,
    }

    /// A byte that is 0 or 1.
    pub fn bool(&mut self) -> Result<bool, WireError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(WireError::Unknown {
                what: "truth value",
                found,
            }),
        }
    }

    /// Sixteen bytes.
    pub fn id(&mut self) -> Result<[u8; 16], WireError> {
        let bytes = self.take(16)?;
        bytes[..].try_into().map_err(|_| WireError::Truncated)
    }

    /// The next `len` bytes, as a slice of the frame.
    pub fn take(&mut self, len: usize) -> Result<Bytes, WireError> {
        if len > self.rest.len() {
            return Err(WireError::Truncated);
        }
        Ok(self.rest.split_to(len))
    }

    /// A count of things of at least `each` bytes that follow.
    pub fn count(&mut self, what: &'static str, each: usize) -> Result<usize, WireError> {
        let count = self.u32()?;
        match usize::try_from(count) {
            Ok(number) if number <= self.rest.len() / each.max(1) => Ok(number),
            _ => Err(WireError::TooMany { what, count }),
        }
    }

    /// As many bytes as the count before them says, as a slice of the frame.
    pub fn bytes(&mut self) -> Result<Bytes, WireError> {
        let len = self.count("bytes", 1)?;
        self.take(len)
    }

    /// A string, written by [`put_string`].
    pub fn string(&mut self) -> Result<String, WireError> {
        let len = usize::from(self.u16()?);
        let bytes = self.take(len)?;
        std::str::from_utf8(&bytes)
            .map(str::to_owned)
            .map_err(|_| WireError::Malformed("string"))
    }

    /// Which group, as [`put_group_key`] wrote it.
    pub fn group_key(&mut self) -> Result<GroupKey, WireError> {
        let topic_id = TopicId::from_bytes(self.id()?);
        let partition = self.i32()?;
        let key = GroupKey::new(topic_id, PartitionIndex::new(partition & !IN_INCARNATION));
        if partition & IN_INCARNATION == 0 {
            return Ok(key);
        }
        match self.u32()? {
            number if number > 0 && u64::from(number) <= MAX_TERM => {
                Ok(key.in_incarnation(Incarnation::new(number)))
            }
            _ => Err(WireError::Malformed("incarnation")),
        }
    }

    /// A term.
    pub fn term(&mut self) -> Result<u64, WireError> {
        self.at_most(MAX_TERM, "term")
    }

    /// The index of an entry.
    pub fn index(&mut self) -> Result<u64, WireError> {
        self.at_most(MAX_INDEX, "index")
    }

    fn at_most(&mut self, most: u64, what: &'static str) -> Result<u64, WireError> {
        match self.u64()? {
            number if number <= most => Ok(number),
            _ => Err(WireError::Malformed(what)),
        }
    }

    /// Bytes that are left.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Whether the message ends where the frame does.
    pub fn end(self) -> Result<(), WireError> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(WireError::Trailing { bytes }),
        }
    }

    /// Reads by a decoder of slices.
    fn slice<T>(
        &mut self,
        what: &'static str,
        read: impl FnOnce(&mut &[u8]) -> Option<T>,
    ) -> Result<T, WireError> {
        let mut rest = &self.rest[..];
        let value = read(&mut rest).ok_or(WireError::Malformed(what))?;
        let left = rest.len();
        self.rest.advance(self.rest.len() - left);
        Ok(value)
    }

    fn log_id(&mut self) -> Result<Option<LogId>, WireError> {
        let id = self.slice("log id", get_log_id)?;
        match id {
            Some(id) if term_of(&id) > MAX_TERM => Err(WireError::Malformed("term")),
            Some(id) if id.index() > MAX_INDEX => Err(WireError::Malformed("index")),
            id => Ok(id),
        }
    }

    fn membership(&mut self) -> Result<Membership, WireError> {
        let membership = self.slice("membership", get_membership)?;
        // Voters are among the nodes.
        let are_nodes = membership.nodes().all(|(id, ())| *id <= MAX_NODE);
        match are_nodes {
            true => Ok(membership),
            false => Err(WireError::Malformed("node id")),
        }
    }

    fn vote(&mut self) -> Result<Vote, WireError> {
        let (term, node) = (self.term()?, self.at_most(MAX_NODE, "node id")?);
        Ok(match self.bool()? {
            true => Vote::new_committed(term, node),
            false => Vote::new(term, node),
        })
    }
}

/// Writes a string of at most 65,535 bytes; what is longer is cut off at a character.
pub fn put_string(out: &mut impl BufMut, text: &str) {
    let mut len = text.len().min(usize::from(u16::MAX));
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    out.put_u16(len as u16);
    out.put_slice(text.as_bytes().get(..len).unwrap_or_default());
}

/// Set in the index of a partition, which is never negative, if its incarnation follows.
pub(crate) const IN_INCARNATION: i32 = i32::MIN;

/// Writes which group. A partition's first incarnation takes no bytes.
pub fn put_group_key(out: &mut impl BufMut, key: GroupKey) {
    out.put_slice(&key.topic_id.to_bytes());
    if key.incarnation == Incarnation::FIRST {
        out.put_i32(key.partition.get());
    } else {
        out.put_i32(key.partition.get() | IN_INCARNATION);
        out.put_u32(key.incarnation.get());
    }
}

fn put_vote(out: &mut BytesMut, vote: &Vote) {
    out.put_u64(vote.leader_id.term);
    out.put_u64(vote.leader_id.voted_for);
    out.put_u8(u8::from(vote.committed));
}

/// Where an append request is written to: small things are copied, batches handed over.
pub trait Sink {
    /// The bytes that are being written.
    fn buffer(&mut self) -> &mut BytesMut;

    /// Puts `bytes` behind what is in the buffer, and what comes into the buffer next behind them.
    fn share(&mut self, bytes: Bytes);
}

impl Sink for BytesMut {
    fn buffer(&mut self) -> &mut BytesMut {
        self
    }

    fn share(&mut self, bytes: Bytes) {
        self.put_slice(&bytes);
    }
}

/// Bytes that an append request takes, or why it cannot be sent.
pub fn append_request_len(request: &AppendRequest) -> Result<usize, WireError> {
    let mut len = 17 + log_id_len(request.prev_log_id) + log_id_len(request.leader_commit) + 4;
    for entry in &request.entries {
        len += ENTRY_HEAD_BYTES;
        len += match &entry.payload {
            Payload::Blank => 0,
            Payload::Membership(membership) => membership_len(membership),
            Payload::Normal(Command::LogStart(_)) => 8,
            Payload::Normal(Command::Batch(batch)) => 4 + batch.bytes.len(),
            Payload::Normal(Command::Applied(_)) => {
                return Err(WireError::Unsendable(entry.to_string()));
            }
        };
    }
    Ok(len)
}

fn log_id_len(id: Option<LogId>) -> usize {
    if id.is_some() { 17 } else { 1 }
}

fn membership_len(membership: &Membership) -> usize {
    let configs = membership.get_joint_config();
    let voters: usize = configs.iter().map(|config| 2 + 8 * config.len()).sum();
    2 + voters + 2 + 8 * membership.nodes().count()
}

/// Writes exactly [`append_request_len`] bytes.
pub fn put_append_request(out: &mut impl Sink, request: &AppendRequest) -> Result<(), WireError> {
    let head = out.buffer();
    put_vote(head, &request.vote);
    put_log_id(head, request.prev_log_id.as_ref());
    put_log_id(head, request.leader_commit.as_ref());
    head.put_u32(request.entries.len() as u32);
    for entry in &request.entries {
        put_entry(out, entry)?;
    }
    Ok(())
}

fn put_entry(out: &mut impl Sink, entry: &Entry) -> Result<(), WireError> {
    let buffer = out.buffer();
    let kind = match &entry.payload {
        Payload::Blank => ENTRY_BLANK,
        Payload::Membership(_) => ENTRY_MEMBERSHIP,
        Payload::Normal(Command::LogStart(_)) => ENTRY_LOG_START,
        Payload::Normal(Command::Batch(_)) => ENTRY_BATCH,
        Payload::Normal(Command::Applied(_)) => {
            return Err(WireError::Unsendable(entry.to_string()));
        }
    };
    buffer.put_u8(kind);
    buffer.put_u64(term_of(&entry.log_id));
    buffer.put_u64(entry.log_id.index());
    match &entry.payload {
        Payload::Membership(membership) => put_membership(buffer, membership),
        Payload::Normal(Command::LogStart(offset)) => buffer.put_i64(offset.get()),
        Payload::Normal(Command::Batch(batch)) => {
            buffer.put_u32(batch.bytes.len() as u32);
            if batch.bytes.len() <= COPY_MAX_BYTES {
                buffer.put_slice(&batch.bytes);
            } else {
                out.share(batch.bytes.clone());
            }
        }
        Payload::Blank | Payload::Normal(Command::Applied(_)) => {}
    }
    Ok(())
}

/// Reads what [`put_append_request`] wrote.
pub fn get_append_request(reader: &mut Reader) -> Result<AppendRequest, WireError> {
    let vote = reader.vote()?;
    let prev_log_id = reader.log_id()?;
    let leader_commit = reader.log_id()?;
    let count = reader.count("entries", ENTRY_HEAD_BYTES)?;
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        entries.push(get_entry(reader)?);
    }
    Ok(AppendRequest {
        vote,
        prev_log_id,
        entries,
        leader_commit,
    })
}

fn get_entry(reader: &mut Reader) -> Result<Entry, WireError> {
    let kind = reader.u8()?;
    let (term, index) = (reader.term()?, reader.index()?);
    let payload = match kind {
        ENTRY_BLANK => Payload::Blank,
        ENTRY_MEMBERSHIP => Payload::Membership(reader.membership()?),
        ENTRY_LOG_START => Payload::Normal(Command::LogStart(Offset::new(reader.i64()?))),
        ENTRY_BATCH => Payload::Normal(Command::Batch(Box::new(get_batch(reader, index)?))),
        found => {
            return Err(WireError::Unknown {
                what: "kind of entry",
                found,
            });
        }
    };
    Ok(Entry {
        log_id: log_id(term, index),
        payload,
    })
}

fn get_batch(reader: &mut Reader, index: u64) -> Result<BatchCommand, WireError> {
    let bytes = reader.bytes()?;
    let damaged = |cause: String| WireError::Damaged { index, cause };
    let header = BatchHeader::parse(&bytes).map_err(|error| damaged(error.to_string()))?;
    if header.size_in_bytes() != bytes.len() || header.last_offset_delta < 0 {
        return Err(damaged("the header does not fit the batch".to_owned()));
    }
    verify_crc(&header, &bytes).map_err(|error| damaged(error.to_string()))?;
    Ok(BatchCommand {
        bytes,
        header,
        stamp: Stamp::Final,
        waiter: None,
    })
}

const APPENDED: u8 = 0;
const CONFLICT: u8 = 1;
const HIGHER_VOTE: u8 = 2;

/// Writes what a follower says.
pub fn put_append_result(out: &mut BytesMut, result: &AppendResult) {
    match result {
        Ok(matching) => {
            out.put_u8(APPENDED);
            put_log_id(out, matching.as_ref());
        }
        Err(StreamAppendError::Conflict(id)) => {
            out.put_u8(CONFLICT);
            put_log_id(out, Some(id));
        }
        Err(StreamAppendError::HigherVote(vote)) => {
            out.put_u8(HIGHER_VOTE);
            put_vote(out, vote);
        }
    }
}

/// Reads what [`put_append_result`] wrote.
pub fn get_append_result(reader: &mut Reader) -> Result<AppendResult, WireError> {
    match reader.u8()? {
        APPENDED => Ok(Ok(reader.log_id()?)),
        CONFLICT => {
            let id = reader.log_id()?.ok_or(WireError::Malformed("log id"))?;
            Ok(Err(StreamAppendError::Conflict(id)))
        }
        HIGHER_VOTE => Ok(Err(StreamAppendError::HigherVote(reader.vote()?))),
        found => Err(WireError::Unknown {
            what: "append result",
            found,
        }),
    }
}

/// Writes a candidate's request.
pub fn put_vote_request(out: &mut BytesMut, request: &VoteRequest) {
    put_vote(out, &request.vote);
    put_log_id(out, request.last_log_id.as_ref());
    out.put_u8(u8::from(request.leadership_transfer));
}

/// Reads what [`put_vote_request`] wrote.
pub fn get_vote_request(reader: &mut Reader) -> Result<VoteRequest, WireError> {
    let mut request = VoteRequest::new(reader.vote()?, reader.log_id()?);
    request.leadership_transfer = reader.bool()?;
    Ok(request)
}

/// Writes the answer to a candidate.
pub fn put_vote_reply(out: &mut BytesMut, reply: &VoteReply) {
    put_vote(out, &reply.vote);
    put_log_id(out, reply.last_log_id.as_ref());
    out.put_u8(u8::from(reply.vote_granted));
}

/// Reads what [`put_vote_reply`] wrote.
pub fn get_vote_reply(reader: &mut Reader) -> Result<VoteReply, WireError> {
    let (vote, last) = (reader.vote()?, reader.log_id()?);
    Ok(VoteReply::new(vote, last, reader.bool()?))
}

/// Writes where a leader's log starts.
pub fn put_snapshot_offer(out: &mut BytesMut, offer: &SnapshotOffer) {
    put_vote(out, &offer.vote);
    let meta = &offer.snapshot.meta;
    put_log_id(out, meta.last_log_id.as_ref());
    put_log_id(out, meta.last_membership.log_id().as_ref());
    put_membership(out, meta.last_membership.membership());
    out.put_i64(offer.snapshot.snapshot.start_offset.get());
    out.put_i64(offer.snapshot.snapshot.log_start.get());
}

/// Reads what [`put_snapshot_offer`] wrote.
pub fn get_snapshot_offer(reader: &mut Reader) -> Result<SnapshotOffer, WireError> {
    let vote = reader.vote()?;
    let last_log_id = reader.log_id()?;
    let membership_id = reader.log_id()?;
    let membership = reader.membership()?;
    let snapshot = SnapshotState {
        start_offset: Offset::new(reader.i64()?),
        log_start: Offset::new(reader.i64()?),
    };
    Ok(SnapshotOffer {
        vote,
        snapshot: Snapshot {
            meta: SnapshotMeta {
                last_log_id,
                last_membership: StoredMembership::new(membership_id, membership),
            },
            snapshot,
        },
    })
}

/// Writes the answer to a snapshot.
pub fn put_snapshot_reply(out: &mut BytesMut, reply: &SnapshotReply) {
    put_vote(out, &reply.vote);
}

/// Reads what [`put_snapshot_reply`] wrote.
pub fn get_snapshot_reply(reader: &mut Reader) -> Result<SnapshotReply, WireError> {
    Ok(SnapshotReply::new(reader.vote()?))
}

/// Writes a leader's wish to be followed.
pub fn put_transfer_request(out: &mut BytesMut, request: &TransferRequest) {
    put_vote(out, request.from_leader());
    out.put_u64(*request.to_node_id());
    put_log_id(out, request.last_log_id());
}

/// Reads what [`put_transfer_request`] wrote.
pub fn get_transfer_request(reader: &mut Reader) -> Result<TransferRequest, WireError> {
    let (vote, to) = (reader.vote()?, reader.at_most(MAX_NODE, "node id")?);
    Ok(TransferRequest::new(vote, to, reader.log_id()?))
}

const TRANSFER_TAKEN: u8 = 0;
const TRANSFER_VOTE_CHANGED: u8 = 1;
const TRANSFER_NOT_FLUSHED: u8 = 2;

/// Writes the answer to that wish.
pub fn put_transfer_reply(out: &mut BytesMut, reply: &TransferReply) {
    match reply {
        Ok(()) => out.put_u8(TRANSFER_TAKEN),
        Err(TransferLeaderError::VoteChanged { expected, actual }) => {
            out.put_u8(TRANSFER_VOTE_CHANGED);
            put_vote(out, expected);
            put_vote(out, actual);
        }
        Err(TransferLeaderError::LogNotFlushed { expected, actual }) => {
            out.put_u8(TRANSFER_NOT_FLUSHED);
            put_log_id(out, expected.as_ref());
            put_log_id(out, actual.as_ref());
        }
    }
}

/// Reads what [`put_transfer_reply`] wrote.
pub fn get_transfer_reply(reader: &mut Reader) -> Result<TransferReply, WireError> {
    Ok(match reader.u8()? {
        TRANSFER_TAKEN => Ok(()),
        TRANSFER_VOTE_CHANGED => Err(TransferLeaderError::VoteChanged {
            expected: reader.vote()?,
            actual: reader.vote()?,
        }),
        TRANSFER_NOT_FLUSHED => Err(TransferLeaderError::LogNotFlushed {
            expected: reader.log_id()?,
            actual: reader.log_id()?,
        }),
        found => {
            return Err(WireError::Unknown {
                what: "answer to a transfer",
                found,
            });
        }
    })
}

/// Writes a probe.
pub fn put_probe(out: &mut BytesMut, probe: &Probe) {
    out.put_i32(probe.from.get());
    out.put_u64(probe.incarnation);
    out.put_u64(probe.sequence);
}

/// Reads what [`put_probe`] wrote.
pub fn get_probe(reader: &mut Reader) -> Result<Probe, WireError> {
    Ok(Probe {
        from: NodeId::new(reader.i32()?),
        incarnation: reader.u64()?,
        sequence: reader.u64()?,
    })
}

/// Writes the answer to a probe.
pub fn put_probe_reply(out: &mut BytesMut, reply: &ProbeReply) {
    out.put_u64(reply.incarnation);
    out.put_u8(u8::from(reply.promise.is_some()));
    out.put_u64(reply.promise.unwrap_or_default());
}

/// Reads what [`put_probe_reply`] wrote.
pub fn get_probe_reply(reader: &mut Reader) -> Result<ProbeReply, WireError> {
    let incarnation = reader.u64()?;
    let promised = reader.bool()?;
    let promise = match (promised, reader.u64()?) {
        (true, promise) => Some(promise),
        (false, 0) => None,
        (false, _) => return Err(WireError::Malformed("promise")),
    };
    Ok(ProbeReply {
        incarnation,
        promise,
    })
}

/// Writes the question for a leadership.
pub fn put_leadership_query(out: &mut BytesMut, query: &LeadershipQuery) {
    put_group_key(out, query.group);
    out.put_u64(query.term);
}

/// Reads what [`put_leadership_query`] wrote.
pub fn get_leadership_query(reader: &mut Reader) -> Result<LeadershipQuery, WireError> {
    Ok(LeadershipQuery {
        group: reader.group_key()?,
        term: reader.term()?,
    })
}

/// Writes the answer to it.
pub fn put_leadership_reply(out: &mut BytesMut, reply: &LeadershipReply) {
    out.put_u8(u8::from(reply.given_up));
}

/// Reads what [`put_leadership_reply`] wrote.
pub fn get_leadership_reply(reader: &mut Reader) -> Result<LeadershipReply, WireError> {
    Ok(LeadershipReply {
        given_up: reader.bool()?,
    })
}

/// Writes whether a replica that holds nothing may take part.
pub fn put_clearance(out: &mut BytesMut, clearance: &Clearance) {
    let until = match clearance {
        Clearance::No => None,
        Clearance::Until(until) => Some(until),
    };
    put_log_id(out, until);
}

/// Reads what [`put_clearance`] wrote.
pub fn get_clearance(reader: &mut Reader) -> Result<Clearance, WireError> {
    let until = reader.log_id()?;
    Ok(until.map_or(Clearance::No, Clearance::Until))
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
