//! Why a node got no answer from another.

use odradek_protocol::ids::NodeId;
use odradek_raft::wire::WireError;

/// See the module.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PeerError {
    /// Nothing says where the node is.
    #[error("the address of node {0} is not known")]
    NoAddress(NodeId),
    /// There is no connection, and the last attempt to make one failed.
    #[error("node {node} is unreachable: {reason}")]
    Unreachable {
        /// The node.
        node: NodeId,
        /// What the attempt came to.
        reason: String,
    },
    /// The node will not talk to this one.
    #[error("node {node} refuses this node: {reason}")]
    Refused {
        /// The node.
        node: NodeId,
        /// What it says.
        reason: String,
    },
    /// The connection was lost before the answer came: the request may have been carried out.
    #[error("the connection to node {0} was lost before its answer")]
    Lost(NodeId),
    /// No answer came in time: the request may have been carried out.
    #[error("node {0} did not answer in time")]
    Timeout(NodeId),
    /// As many requests as there may be wait for the node's answers.
    #[error("too many requests wait for node {0}")]
    Overloaded(NodeId),
    /// The answer is none to what was asked.
    #[error("node {node} answered what was not asked: {cause}")]
    Answer {
        /// The node.
        node: NodeId,
        /// What is wrong with it.
        cause: WireError,
    },
    /// This node asked itself.
    #[error("this node has no connection to itself")]
    OwnNode,
    /// This node is stopping.
    #[error("this node is stopping")]
    Stopping,
}
