//! How a connection between nodes begins.
//!
//! The first frame is a request in Kafka's framing with an API key that Kafka will not use, so that
//! the listeners of clients and of nodes are the same. The answer accepts, with the version that
//! both speak and how much may be under way, or refuses and says why. Nothing else is sent before
//! the answer is there.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::NodeId;
use odradek_raft::wire::{Reader, WireError, put_string};

use super::identity::{LocalNode, PeerIdentity, Purpose};

/// API key of the request.
pub const API_KEY: i16 = 10_000;
/// Version of the hello itself.
const HELLO_VERSION: i16 = 0;
/// Lowest version of the protocol between nodes that this node speaks.
pub(super) const PROTOCOL_MIN: u16 = 1;
/// Highest such version.
pub const PROTOCOL_MAX: u16 = 2;
/// The version from which on a message may be of another incarnation of a partition than the first.
pub const PROTOCOL_WITH_INCARNATIONS: u16 = 2;
/// Longest hello, and longest answer.
pub(super) const MAX_BYTES: usize = 4096;
/// Correlation id of a hello: there is one.
const CORRELATION: i32 = 0;
const CLIENT_ID: &str = "odradek";
/// Whom a node means to reach that only wants to know who is there: the connection ends with the
/// answer.
pub(super) const ANYBODY: NodeId = NodeId::new(-1);

/// What a node says of itself and of what it wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) min: u16,
    pub(super) max: u16,
    pub(super) from: PeerIdentity,
    /// The node that it means to reach.
    pub(super) to: NodeId,
    pub(super) purpose: Purpose,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Welcome {
    Accepted(Accepted),
    /// For people.
    Refused(String),
}

/// What both sides have agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Accepted {
    pub(super) version: u16,
    pub(super) node: PeerIdentity,
    /// Unanswered bytes of a stream that the node takes.
    pub(super) window: u32,
    /// The same of all streams.
    pub(super) memory: u32,
    /// Longest frame that it takes.
    pub(super) frame: u32,
}

/// Why a node is not let in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("cluster {theirs} is not cluster {ours} of node {node}")]
    OtherCluster {
        theirs: String,
        ours: String,
        node: NodeId,
    },
    #[error("the address meant for node {meant} leads to node {reached}")]
    WrongNode { meant: NodeId, reached: NodeId },
    #[error("the node is connected to itself")]
    OwnConnection,
    #[error("there are two nodes with node.id {0}")]
    SameId(NodeId),
    #[error(
        "protocol versions {theirs_min} to {theirs_max} and {PROTOCOL_MIN} to {PROTOCOL_MAX} have \
         none in common"
    )]
    NoCommonVersion { theirs_min: u16, theirs_max: u16 },
    #[error("{} is the id of no node", .0.get())]
    NoNode(NodeId),
    #[error("{0}")]
    NotAdmitted(String),
}

impl Refusal {
    /// One word for the metrics.
    pub(super) fn cause(&self) -> &'static str {
        match self {
            Self::OtherCluster { .. } => "cluster",
            Self::WrongNode { .. } => "address",
            Self::OwnConnection => "self",
            Self::SameId(_) => "same_id",
            Self::NoCommonVersion { .. } => "version",
            Self::NoNode(_) => "no_node",
            Self::NotAdmitted(_) => "not_admitted",
        }
    }
}

impl Hello {
    pub(super) fn new(local: &LocalNode, to: NodeId, purpose: Purpose) -> Self {
        Self {
            min: PROTOCOL_MIN,
            max: PROTOCOL_MAX,
            from: local.identity(),
            to,
            purpose,
        }
    }

    /// The version to speak, if `local` lets the node in.
    pub(super) fn check(&self, local: &LocalNode) -> Result<u16, Refusal> {
        let version = self.max.min(PROTOCOL_MAX);
        if version < self.min || version < PROTOCOL_MIN {
            return Err(Refusal::NoCommonVersion {
                theirs_min: self.min,
                theirs_max: self.max,
            });
        }
        if self.from.node_id.get() < 0 {
            return Err(Refusal::NoNode(self.from.node_id));
        }
        if self.to == ANYBODY {
            return check_cluster(&self.from, local).map(|()| version);
        }
        if self.from.incarnation == local.incarnation() {
            return Err(Refusal::OwnConnection);
        }
        check_cluster(&self.from, local)?;
        if self.from.node_id == local.node_id() {
            return Err(Refusal::SameId(local.node_id()));
        }
        if self.to != local.node_id() {
            return Err(Refusal::WrongNode {
                meant: self.to,
                reached: local.node_id(),
            });
        }
        Ok(version)
    }

    /// The whole frame.
    pub(super) fn to_frame(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(256);
        out.put_i32(0);
        out.put_i16(API_KEY);
        out.put_i16(HELLO_VERSION);
        out.put_i32(CORRELATION);
        put_string(&mut out, CLIENT_ID);
        out.put_u16(self.min);
        out.put_u16(self.max);
        put_identity(&mut out, &self.from);
        out.put_i32(self.to.get());
        out.put_u8(match self.purpose {
            Purpose::Control => 0,
            Purpose::Append => 1,
            Purpose::Requests => 2,
            Purpose::Records => 3,
        });
        with_length(out)
    }

    /// Whether a request frame, without its length, is a hello.
    pub fn is_hello(frame: &[u8]) -> bool {
        frame.first_chunk() == Some(&API_KEY.to_be_bytes())
    }

    /// Reads a request frame without its length.
    pub(super) fn from_frame(frame: Bytes) -> Result<Self, WireError> {
        let mut reader = Reader::new(frame);
        let (key, version) = (reader.i16()?, reader.i16()?);
        if (key, version) != (API_KEY, HELLO_VERSION) {
            return Err(WireError::Malformed("hello"));
        }
        reader.i32()?;
        reader.string()?;
        let (min, max) = (reader.u16()?, reader.u16()?);
        let from = get_identity(&mut reader)?;
        let to = NodeId::new(reader.i32()?);
        let purpose = match reader.u8()? {
            0 => Purpose::Control,
            1 => Purpose::Append,
            2 => Purpose::Requests,
            3 => Purpose::Records,
            found => {
                return Err(WireError::Unknown {
                    what: "purpose",
                    found,
                });
            }
        };
        // What a later version adds stands behind.
        Ok(Self {
            min,
            max,
            from,
            to,
            purpose,
        })
    }
}

fn check_cluster(theirs: &PeerIdentity, local: &LocalNode) -> Result<(), Refusal> {
    match (&theirs.cluster_id, local.cluster_id()) {
        (Some(theirs), Some(ours)) if *theirs != *ours => Err(Refusal::OtherCluster {
            theirs: theirs.clone(),
            ours: ours.as_ref().clone(),
            node: local.node_id(),
        }),
        _ => Ok(()),
    }
}

impl Accepted {
    /// The asking side's look at the one who answers.
    pub(super) fn check(&self, local: &LocalNode, meant: NodeId) -> Result<(), Refusal> {
        if !(PROTOCOL_MIN..=PROTOCOL_MAX).contains(&self.version) {
            return Err(Refusal::NoCommonVersion {
                theirs_min: self.version,
                theirs_max: self.version,
            });
        }
        check_cluster(&self.node, local)?;
        if meant != ANYBODY && self.node.node_id != meant {
            return Err(Refusal::WrongNode {
                meant,
                reached: self.node.node_id,
            });
        }
        Ok(())
    }
}

const ACCEPTED: u8 = 0;
const REFUSED: u8 = 1;

impl Welcome {
    /// The whole frame.
    pub(super) fn to_frame(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(256);
        out.put_i32(0);
        out.put_i32(CORRELATION);
        match self {
            Self::Accepted(accepted) => {
                out.put_u8(ACCEPTED);
                out.put_u16(accepted.version);
                put_identity(&mut out, &accepted.node);
                out.put_u32(accepted.window);
                out.put_u32(accepted.memory);
                out.put_u32(accepted.frame);
            }
            Self::Refused(reason) => {
                out.put_u8(REFUSED);
                let mut len = reason.len().min(MAX_BYTES / 2);
                while !reason.is_char_boundary(len) {
                    len -= 1;
                }
                put_string(&mut out, reason.get(..len).unwrap_or_default());
            }
        }
        with_length(out)
    }

    /// Reads a response frame without its length.
    pub(super) fn from_frame(frame: Bytes) -> Result<Self, WireError> {
        let mut reader = Reader::new(frame);
        reader.i32()?;
        match reader.u8()? {
            ACCEPTED => Ok(Self::Accepted(Accepted {
                version: reader.u16()?,
                node: get_identity(&mut reader)?,
                window: reader.u32()?,
                memory: reader.u32()?,
                frame: reader.u32()?,
            })),
            REFUSED => Ok(Self::Refused(reader.string()?)),
            found => Err(WireError::Unknown {
                what: "answer to a hello",
                found,
            }),
        }
    }
}

fn with_length(mut frame: BytesMut) -> Bytes {
    let length = (frame.len() - 4) as u32;
    frame.as_mut().put_u32(length);
    frame.freeze()
}

fn put_identity(out: &mut BytesMut, node: &PeerIdentity) {
    out.put_i32(node.node_id.get());
    // No cluster has an empty id.
    put_string(out, node.cluster_id.as_deref().unwrap_or_default());
    put_string(out, &node.directory_id);
    out.put_slice(&node.incarnation.to_bytes());
}

fn get_identity(reader: &mut Reader) -> Result<PeerIdentity, WireError> {
    Ok(PeerIdentity {
        node_id: NodeId::new(reader.i32()?),
        cluster_id: Some(reader.string()?).filter(|id| !id.is_empty()),
        directory_id: reader.string()?,
        incarnation: Uuid::from_bytes(reader.id()?),
    })
}

/// Takes the length off the front of an answer, once it is there. An impossible one is an error.
pub(super) fn answer_length(received: &mut BytesMut) -> Result<Option<usize>, WireError> {
    if received.len() < 4 {
        return Ok(None);
    }
    match usize::try_from(received.get_u32()) {
        Ok(length) if length <= MAX_BYTES => Ok(Some(length)),
        _ => Err(WireError::Malformed("length of an answer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(node: i32, incarnation: u8, cluster: Option<&str>) -> std::sync::Arc<LocalNode> {
        let incarnation = Uuid::from_bytes([incarnation; 16]);
        LocalNode::new(NodeId::new(node), "dir", incarnation, cluster)
    }

    fn hello(node: i32, incarnation: u8, cluster: Option<&str>) -> Hello {
        let from = local(node, incarnation, cluster);
        Hello::new(&from, NodeId::new(1), Purpose::Append)
    }

    #[test]
    fn hello_and_answer_read_back_as_written_and_break_off_as_errors() {
        let sent = hello(2, 2, None);
        let frame = sent.to_frame().slice(4..);
        assert!(Hello::is_hello(&frame));
        for cut in 0..frame.len() {
            assert!(Hello::from_frame(frame.slice(..cut)).is_err());
        }
        assert_eq!(Hello::from_frame(frame), Ok(sent));
        let accepted = Welcome::Accepted(Accepted {
            version: 1,
            node: local(1, 1, Some("c")).identity(),
            window: 1,
            memory: 2,
            frame: 3,
        });
        let refused = Welcome::Refused("no".to_owned());
        for answer in [accepted, refused] {
            let frame = answer.to_frame();
            let mut received = BytesMut::from(&frame[..]);
            assert_eq!(answer_length(&mut received), Ok(Some(frame.len() - 4)));
            let frame = frame.slice(4..);
            for cut in 0..frame.len() {
                assert!(Welcome::from_frame(frame.slice(..cut)).is_err());
            }
            assert_eq!(Welcome::from_frame(frame), Ok(answer));
        }
        let long = Welcome::Refused("ö".repeat(10_000)).to_frame();
        assert!(long.len() <= MAX_BYTES);
        assert!(answer_length(&mut BytesMut::from(&[9, 9, 9, 9][..])).is_err());
    }

    #[test]
    fn who_does_not_belong_here_is_refused_with_the_reason() {
        let here = local(1, 1, Some("ours"));
        let reason = |hello: Hello| hello.check(&here).expect_err("refused").to_string();
        assert_eq!(hello(2, 2, Some("ours")).check(&here), Ok(PROTOCOL_MAX));
        assert_eq!(hello(2, 2, None).check(&here), Ok(PROTOCOL_MAX));
        assert_eq!(
            hello(2, 2, Some("x")).check(&local(1, 1, None)),
            Ok(PROTOCOL_MAX),
            "a node without a cluster takes anybody"
        );
        assert_eq!(
            reason(hello(2, 2, Some("theirs"))),
            "cluster theirs is not cluster ours of node 1"
        );
        assert_eq!(
            reason(hello(1, 2, Some("ours"))),
            "there are two nodes with node.id 1"
        );
        assert_eq!(
            reason(hello(1, 1, Some("ours"))),
            "the node is connected to itself"
        );
        let mut elsewhere = hello(2, 2, None);
        elsewhere.to = NodeId::new(7);
        assert_eq!(
            reason(elsewhere),
            "the address meant for node 7 leads to node 1"
        );
        let mut curious = hello(1, 1, None);
        curious.to = ANYBODY;
        assert_eq!(
            curious.check(&here),
            Ok(PROTOCOL_MAX),
            "who asks may find itself"
        );
        curious.from.cluster_id = Some("theirs".to_owned());
        assert!(curious.check(&here).is_err());
        assert_eq!(reason(hello(-1, 2, None)), "-1 is the id of no node");
        let mut older = hello(2, 2, None);
        (older.min, older.max) = (1, 1);
        assert_eq!(older.check(&here), Ok(1), "in a rolling upgrade");
        let mut newer = hello(2, 2, None);
        (newer.min, newer.max) = (5, 9);
        assert_eq!(
            reason(newer),
            "protocol versions 5 to 9 and 1 to 2 have none in common"
        );
    }
}
