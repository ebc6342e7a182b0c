//! Keys of what goes on between nodes: how much may be under way, how long things may take.

use std::time::Duration;

use odradek_raft::TransferLimits;

use super::broker_config::{millis, refused};
use super::key::Allowed::Between;
use super::key::ConfigKind::{Int, Long};
use super::key::UpdateMode::ClusterWide;
use super::key::{InvalidValue, KeySpec};
use super::values::Layers;
use crate::peer::PeerLimits;

const BACKOFF: &str = "odradek.peer.reconnect.backoff.ms";
const BACKOFF_MAX: &str = "odradek.peer.reconnect.backoff.max.ms";
const INCOMING: &str = "odradek.peer.incoming.bytes";

/// What a frame between nodes may be longer than the largest request of a client.
const FRAME_ROOM_BYTES: usize = 2 << 20;

/// How long a node may stall inside a large frame while others wait for memory, as for clients.
const STALL_LIMIT: Duration = Duration::from_secs(5);

pub(super) static PEERS: &[KeySpec] = &[
    KeySpec::new("odradek.peer.stream.bytes", Int)
        .default("4194304")
        .at_least(1 << 16)
        .doc(
            "Bytes of one partition that may be on their way to a follower and not yet answered. A \
             request that is larger goes alone.",
        ),
    KeySpec::new("odradek.peer.memory.bytes", Int)
        .default("67108864")
        .at_least(1 << 20)
        .doc(
            "The same of all partitions that one node replicates to another: what the follower may \
             have to hold for that leader. A partition takes no more than what is still free, so \
             that some slow ones do not stop the rest. The lower setting of the two nodes counts.",
        ),
    KeySpec::new(INCOMING, Int)
        .default("67108864")
        .at_least(1 << 20)
        .doc(
            "Bytes of large frames (64 KB and more) of other nodes that may be in memory before they have \
             arrived whole, and as many of answers to this node. A frame that is larger than that goes \
             alone. Who stalls inside a frame while others wait is cut off. Nodes that the cluster does \
             not know send no large frames.",
        ),
    KeySpec::new("odradek.peer.queue.bytes", Int)
        .default("1048576")
        .at_least(1 << 16)
        .doc(
            "Bytes that may wait to be sent to a node before nothing more is read from the logs for \
             it.",
        ),
    KeySpec::new("odradek.peer.streams", Int)
        .default("100000")
        .at_least(1)
        .doc("Partitions that another node may replicate to this one."),
    KeySpec::new("odradek.peer.requests", Int)
        .default("1024")
        .allowed(Between(16, 1_000_000))
        .doc(
            "Requests to a node, other than replication, that may wait for its answers; further ones \
             fail at once. As many of another node's are taken.",
        ),
    KeySpec::new("odradek.peer.request.timeout.ms", Long)
        .default("10000")
        .at_least(1)
        .doc("How long a node may take to answer such a request."),
    KeySpec::new("odradek.peer.connect.timeout.ms", Long)
        .default("1000")
        .at_least(1)
        .doc("How long it may take to connect to one address of a node and to be let in."),
    KeySpec::new(BACKOFF, Long)
        .default("50")
        .at_least(1)
        .doc(
            "Pause after a failed attempt to connect to a node; it doubles with every further one, \
             and ends when the node connects to this one.",
        ),
    KeySpec::new(BACKOFF_MAX, Long)
        .default("1000")
        .at_least(1)
        .doc("Longest such pause."),
    KeySpec::new("leader.replication.throttled.rate", Long)
        .default("9223372036854775807")
        .at_least(0)
        .update(ClusterWide)
        .doc(
            "Bytes a second that this broker sends, as a leader, to the replicas that topics name in \
             `leader.replication.throttled.replicas` and that are out of sync.",
        ),
    KeySpec::new("follower.replication.throttled.rate", Long)
        .default("9223372036854775807")
        .at_least(0)
        .update(ClusterWide)
        .doc(
            "Bytes a second that this broker takes, as a follower, of the partitions that topics name \
             in `follower.replication.throttled.replicas`.",
        ),
    KeySpec::new("odradek.peer.records.rate", Long)
        .default("104857600")
        .at_least(1)
        .update(ClusterWide)
        .doc(
            "Bytes a second that this broker takes, of all partitions together, when a replica is given \
             the records of a compacted partition that other replicas keep without log entries.",
        ),
    KeySpec::new("odradek.peer.records.given", Int)
        .default("4")
        .at_least(1)
        .doc(
            "Replicas on other brokers that this one gives such records to at a time. Each holds the \
             segments of a partition open.",
        ),
    KeySpec::new("odradek.peer.records.taken", Int)
        .default("2")
        .at_least(1)
        .doc("Partitions that this broker takes such records of at a time."),
    KeySpec::new("odradek.compaction.hold.ms", Long)
        .default("3600000")
        .at_least(0)
        .doc(
            "A compacted partition keeps what a replica within reach has yet to be given, but not for \
             one that was last in step so long ago: that is given all records anew.",
        ),
];

impl PeerLimits {
    pub(super) fn from_layers(layers: &Layers) -> Result<Self, InvalidValue> {
        let request_max_bytes: usize = layers.required("socket.request.max.bytes")?;
        let limits = Self {
            stream_bytes: layers.required("odradek.peer.stream.bytes")?,
            memory_bytes: layers.required("odradek.peer.memory.bytes")?,
            incoming_bytes: layers.required(INCOMING)?,
            stall_limit: STALL_LIMIT,
            queue_bytes: layers.required("odradek.peer.queue.bytes")?,
            max_streams: layers.required("odradek.peer.streams")?,
            max_calls: layers.required("odradek.peer.requests")?,
            frame_max_bytes: request_max_bytes + FRAME_ROOM_BYTES,
            request_timeout: millis(layers, "odradek.peer.request.timeout.ms")?,
            connect_timeout: millis(layers, "odradek.peer.connect.timeout.ms")?,
            reconnect_backoff: millis(layers, BACKOFF)?,
            reconnect_backoff_max: millis(layers, BACKOFF_MAX)?,
            leader_throttled_rate: layers.required("leader.replication.throttled.rate")?,
            follower_throttled_rate: layers.required("follower.replication.throttled.rate")?,
            records_rate: layers.required("odradek.peer.records.rate")?,
            transfers: TransferLimits {
                giving: layers.required("odradek.peer.records.given")?,
                taking: layers.required("odradek.peer.records.taken")?,
                hold: millis(layers, "odradek.compaction.hold.ms")?,
            },
        };
        if limits.reconnect_backoff > limits.reconnect_backoff_max {
            return Err(refused(
                layers,
                BACKOFF,
                format!("it is above {BACKOFF_MAX}"),
            ));
        }
        Ok(limits)
    }
}
