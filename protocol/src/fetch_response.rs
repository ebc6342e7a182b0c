//! The Fetch response, encoded by hand into chunks.
//!
//! It differs from the generated codec's only in what it does with records: they stay where they
//! are, in memory or in the log's files, and stand between the encoded bytes as chunks of their
//! own. A test holds the bytes equal to the generated codec's at every version.

use bytes::Bytes;
use kafka_wire_core::StrBytes;

use crate::error::ProtocolError;
use crate::error_code::ErrorCode;
use crate::ids::{CorrelationId, LeaderEpoch, NodeId, Offset, PartitionIndex, ProducerId, TopicId};
use crate::response::{FileRegion, Response};

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
    /// Encodes the whole frame: length, response header, body.
    pub fn encode(
        self,
        version: i16,
        correlation_id: CorrelationId,
    ) -> Result<Response, ProtocolError> {
        let mut message = kafka_wire::FetchResponse::default();
        message.throttle_time_ms = self.throttle_time_ms;
        message.error_code = self.error_code.code();
        message.session_id = self.session_id;
        crate::response::encode_message(version, correlation_id, &message)
    }
}
