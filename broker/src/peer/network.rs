//! The network of the Raft groups over the connections between nodes.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use odradek_protocol::ids::NodeId;
use odradek_raft::network::{AppendRequests, AppendResults, Link, NetworkError};
use odradek_raft::rpc::{
    SnapshotOffer, SnapshotReply, TransferReply, TransferRequest, VoteReply, VoteRequest,
};

use super::Peers;

/// See the module.
pub struct Network {
    peers: Arc<Peers>,
}

impl Network {
    pub(super) fn new(peers: Arc<Peers>) -> Arc<Self> {
        Arc::new(Self { peers })
    }

    fn unreachable<T: Send + 'static>(
        &self,
        to: NodeId,
    ) -> BoxFuture<'static, Result<T, NetworkError>> {
        let _ = &self.peers;
        Box::pin(std::future::ready(Err(NetworkError::Unreachable(to))))
    }
}

impl odradek_raft::network::Network for Network {
    fn append_stream(
        &self,
        link: Link,
        _requests: AppendRequests,
    ) -> BoxFuture<'static, Result<AppendResults, NetworkError>> {
        self.unreachable(link.to)
    }

    fn vote(
        &self,
        link: Link,
        _request: VoteRequest,
        _pre_vote: bool,
    ) -> BoxFuture<'static, Result<VoteReply, NetworkError>> {
        self.unreachable(link.to)
    }

    fn snapshot(
        &self,
        link: Link,
        _offer: SnapshotOffer,
    ) -> BoxFuture<'static, Result<SnapshotReply, NetworkError>> {
        self.unreachable(link.to)
    }

    fn transfer_leader(
        &self,
        link: Link,
        _request: TransferRequest,
    ) -> BoxFuture<'static, Result<TransferReply, NetworkError>> {
        self.unreachable(link.to)
    }
}
