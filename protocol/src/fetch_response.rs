//! The Fetch response, encoded by hand into chunks.
//!
//! It differs from the generated codec's only in what it does with records: they stay where they
//! are, in memory or in the log's files, and stand between the encoded bytes as chunks of their
//! own. A test holds the bytes equal to the generated codec's at every version.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_wire_core::{EncodeError, StrBytes};

use crate::api::{ApiKey, served_range};
use crate::error::ProtocolError;
use crate::error_code::ErrorCode;
use crate::ids::{CorrelationId, LeaderEpoch, NodeId, Offset, PartitionIndex, ProducerId, TopicId};
use crate::response::{Chunk, FileRegion, Response, put_header, set_length};

/// The records of a partition in a Fetch response.
#[derive(Clone, Debug, Default)]
pub enum RecordsPayload {
    /// Null.
    Null,
    /// No bytes.
    #[default]
    Empty,
    /// Whole batches in memory.
    Bytes(Bytes),
    /// Whole batches in files, in order.
    Regions(Vec<FileRegion>),
}

impl RecordsPayload {
    /// Length in bytes; null counts as none.
    pub fn len(&self) -> usize {
        match self {
            Self::Null | Self::Empty => 0,
            Self::Bytes(bytes) => bytes.len(),
            Self::Regions(regions) => regions.iter().map(|region| region.len).sum(),
        }
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An aborted transaction of a partition (read_committed only).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// Producer of the transaction.
    pub producer_id: ProducerId,
    /// First offset of the transaction.
    pub first_offset: Offset,
}

/// Where a fetcher's log leaves the leader's (v12 and later).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DivergingEpoch {
    /// Largest epoch both may have.
    pub epoch: LeaderEpoch,
    /// Its end offset on the leader.
    pub end_offset: Offset,
}

/// Who leads a partition, for a client that asked the wrong node (v12 and later).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentLeader {
    /// The leader, or −1.
    pub leader_id: NodeId,
    /// Its epoch, or −1.
    pub leader_epoch: LeaderEpoch,
}

/// What a Fetch response says about one partition.
#[derive(Clone, Debug)]
pub struct FetchedPartition {
    /// Index of the partition.
    pub index: PartitionIndex,
    /// Error of this partition.
    pub error_code: ErrorCode,
    /// High watermark, or −1.
    pub high_watermark: Offset,
    /// Last stable offset, or −1.
    pub last_stable_offset: Offset,
    /// Log start offset, or −1 (v5 and later).
    pub log_start_offset: Offset,
    /// Where the logs diverge (v12 and later).
    pub diverging_epoch: Option<DivergingEpoch>,
    /// Who leads the partition (v12 and later).
    pub current_leader: Option<CurrentLeader>,
    /// Aborted transactions in the range of the records; null for read_uncommitted.
    pub aborted_transactions: Option<Vec<AbortedTransaction>>,
    /// Replica to read from instead, or −1 (v11 and later).
    pub preferred_read_replica: NodeId,
    /// The records.
    pub records: RecordsPayload,
}

impl FetchedPartition {
    /// A partition with an error and nothing else to say.
    pub fn failed(index: PartitionIndex, error_code: ErrorCode) -> Self {
        Self {
            index,
            error_code,
            high_watermark: Offset::NONE,
            last_stable_offset: Offset::NONE,
            log_start_offset: Offset::NONE,
            diverging_epoch: None,
            current_leader: None,
            aborted_transactions: None,
            preferred_read_replica: NodeId::new(-1),
            records: RecordsPayload::Empty,
        }
    }
}

/// What a Fetch response says about one topic.
#[derive(Clone, Debug, Default)]
pub struct FetchedTopic {
    /// Name, for versions before 13.
    pub topic: StrBytes,
    /// Id, for version 13 and later.
    pub topic_id: TopicId,
    /// Its partitions.
    pub partitions: Vec<FetchedPartition>,
}

/// Address of a node named as a current leader (v16 and later).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEndpoint {
    /// The node.
    pub node_id: NodeId,
    /// Its host.
    pub host: StrBytes,
    /// Its port.
    pub port: i32,
    /// Its rack, if it has one.
    pub rack: Option<StrBytes>,
}

/// A Fetch response.
#[derive(Clone, Debug, Default)]
pub struct FetchReply {
    /// How long the client is throttled, in milliseconds.
    pub throttle_time_ms: i32,
    /// Error of the whole request (v7 and later).
    pub error_code: ErrorCode,
    /// Fetch session, or 0 (v7 and later).
    pub session_id: i32,
    /// The topics.
    pub topics: Vec<FetchedTopic>,
    /// Addresses of the leaders named in `current_leader`.
    pub node_endpoints: Vec<NodeEndpoint>,
}

impl FetchReply {
    /// Encodes the whole frame: length, response header, body. Fields that `version` does not
    /// have are left out.
    pub fn encode(
        self,
        version: i16,
        correlation_id: CorrelationId,
    ) -> Result<Response, ProtocolError> {
        if !served_range(ApiKey::Fetch.key()).is_some_and(|served| served.answers(version)) {
            return Err(ProtocolError::UnsupportedVersion {
                api: ApiKey::Fetch,
                version,
            });
        }
        let partitions: usize = self.topics.iter().map(|topic| topic.partitions.len()).sum();
        let mut writer = ChunkWriter::new(self.topics.len() * 32 + partitions * 96 + 64);
        let flexible = version >= FIRST_FLEXIBLE;
        put_header(&mut writer.buffer, correlation_id, i16::from(flexible));
        let out = &mut writer.buffer;
        out.put_i32(self.throttle_time_ms);
        if version >= 7 {
            out.put_i16(self.error_code.code());
            out.put_i32(self.session_id);
        }
        put_array_len(out, flexible, Some(self.topics.len()));
        for topic in self.topics {
            put_topic(&mut writer, version, topic)?;
        }
        if flexible {
            put_endpoints(&mut writer.buffer, version, &self.node_endpoints);
        }
        writer.finish()
    }
}

const FIRST_FLEXIBLE: i16 = 12;

/// In-memory records up to this length are copied between the encoded fields: cheaper than a
/// chunk of their own.
const COPY_MAX_BYTES: usize = 512;

/// Encoded fields in one buffer, and the payloads that go in between.
struct ChunkWriter {
    buffer: BytesMut,
    /// Payloads with the length of `buffer` before each.
    payloads: Vec<(usize, Chunk)>,
    payload_bytes: usize,
}

impl ChunkWriter {
    fn new(capacity: usize) -> Self {
        Self {
            buffer: BytesMut::with_capacity(capacity),
            payloads: Vec::new(),
            payload_bytes: 0,
        }
    }

    fn payload(&mut self, chunk: Chunk) {
        if !chunk.is_empty() {
            self.payload_bytes += chunk.len();
            self.payloads.push((self.buffer.len(), chunk));
        }
    }

    fn finish(mut self) -> Result<Response, ProtocolError> {
        set_length(&mut self.buffer, self.payload_bytes)?;
        let mut rest = self.buffer.freeze();
        let mut taken = 0;
        let mut chunks = Vec::with_capacity(self.payloads.len() * 2 + 1);
        for (at, payload) in self.payloads {
            // Several regions in a row have nothing in between.
            if at > taken {
                chunks.push(Chunk::Bytes(rest.split_to(at - taken)));
                taken = at;
            }
            chunks.push(payload);
        }
        if !rest.is_empty() {
            chunks.push(Chunk::Bytes(rest));
        }
        Ok(Response::from_chunks(chunks))
    }
}

fn put_topic(
    writer: &mut ChunkWriter,
    version: i16,
    topic: FetchedTopic,
) -> Result<(), ProtocolError> {
    let flexible = version >= FIRST_FLEXIBLE;
    let out = &mut writer.buffer;
    if version >= 13 {
        out.put_slice(&topic.topic_id.to_bytes());
    } else if flexible {
        put_compact_string(out, &topic.topic);
    } else {
        let len = i16::try_from(topic.topic.len()).map_err(|_| EncodeError::LengthOverflow {
            kind: "string",
            length: topic.topic.len(),
            maximum: i16::MAX as usize,
        })?;
        out.put_i16(len);
        out.put_slice(topic.topic.as_bytes());
    }
    put_array_len(out, flexible, Some(topic.partitions.len()));
    for partition in topic.partitions {
        put_partition(writer, version, partition);
    }
    if flexible {
        writer.buffer.put_u8(0);
    }
    Ok(())
}

fn put_partition(writer: &mut ChunkWriter, version: i16, partition: FetchedPartition) {
    let flexible = version >= FIRST_FLEXIBLE;
    let out = &mut writer.buffer;
    out.put_i32(partition.index.get());
    out.put_i16(partition.error_code.code());
    out.put_i64(partition.high_watermark.get());
    out.put_i64(partition.last_stable_offset.get());
    if version >= 5 {
        out.put_i64(partition.log_start_offset.get());
    }
    let aborted = partition.aborted_transactions;
    put_array_len(out, flexible, aborted.as_ref().map(Vec::len));
    for transaction in aborted.iter().flatten() {
        out.put_i64(transaction.producer_id.get());
        out.put_i64(transaction.first_offset.get());
        if flexible {
            out.put_u8(0);
        }
    }
    if version >= 11 {
        out.put_i32(partition.preferred_read_replica.get());
    }
    put_records(writer, flexible, partition.records);
    if flexible {
        put_partition_tags(
            &mut writer.buffer,
            partition.diverging_epoch,
            partition.current_leader,
        );
    }
}

fn put_records(writer: &mut ChunkWriter, flexible: bool, records: RecordsPayload) {
    let len = match records {
        RecordsPayload::Null => None,
        _ => Some(records.len()),
    };
    // Bytes have the same length prefix as arrays.
    put_array_len(&mut writer.buffer, flexible, len);
    match records {
        RecordsPayload::Null | RecordsPayload::Empty => {}
        RecordsPayload::Bytes(bytes) if bytes.len() <= COPY_MAX_BYTES => {
            writer.buffer.put_slice(&bytes);
        }
        RecordsPayload::Bytes(bytes) => writer.payload(Chunk::Bytes(bytes)),
        RecordsPayload::Regions(regions) => {
            for region in regions {
                writer.payload(Chunk::Region(region));
            }
        }
    }
}

fn put_partition_tags(
    out: &mut BytesMut,
    diverging_epoch: Option<DivergingEpoch>,
    current_leader: Option<CurrentLeader>,
) {
    out.put_u8(u8::from(diverging_epoch.is_some()) + u8::from(current_leader.is_some()));
    // Each: tag, length of the content, content, no tagged fields of its own.
    if let Some(diverging) = diverging_epoch {
        out.put_slice(&[0, 4 + 8 + 1]);
        out.put_i32(diverging.epoch.get());
        out.put_i64(diverging.end_offset.get());
        out.put_u8(0);
    }
    if let Some(leader) = current_leader {
        out.put_slice(&[1, 4 + 4 + 1]);
        out.put_i32(leader.leader_id.get());
        out.put_i32(leader.leader_epoch.get());
        out.put_u8(0);
    }
}

/// The tagged fields of the whole response.
fn put_endpoints(out: &mut BytesMut, version: i16, endpoints: &[NodeEndpoint]) {
    if version < 16 || endpoints.is_empty() {
        out.put_u8(0);
        return;
    }
    let mut content = BytesMut::new();
    put_array_len(&mut content, true, Some(endpoints.len()));
    for endpoint in endpoints {
        content.put_i32(endpoint.node_id.get());
        put_compact_string(&mut content, &endpoint.host);
        content.put_i32(endpoint.port);
        match &endpoint.rack {
            Some(rack) => put_compact_string(&mut content, rack),
            None => content.put_u8(0),
        }
        content.put_u8(0);
    }
    out.put_slice(&[1, 0]);
    put_unsigned_varint(out, content.len());
    out.put_slice(&content);
}

/// Length of an array or of bytes; `None` is null. A length that does not fit makes the whole
/// response too large for its frame, which [`set_length`] refuses.
fn put_array_len(out: &mut BytesMut, flexible: bool, len: Option<usize>) {
    match (flexible, len) {
        (true, Some(len)) => put_unsigned_varint(out, len + 1),
        (true, None) => out.put_u8(0),
        (false, Some(len)) => out.put_i32(i32::try_from(len).unwrap_or(i32::MAX)),
        (false, None) => out.put_i32(-1),
    }
}

fn put_compact_string(out: &mut BytesMut, text: &str) {
    put_unsigned_varint(out, text.len() + 1);
    out.put_slice(text.as_bytes());
}

fn put_unsigned_varint(out: &mut BytesMut, mut value: usize) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

#[cfg(test)]
#[path = "fetch_response_tests.rs"]
mod tests;
