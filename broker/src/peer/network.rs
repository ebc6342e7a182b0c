//! The network of the Raft groups over the connections between nodes: appends on one, everything
//! else on the other.

use std::sync::Arc;

use bytes::BytesMut;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use odradek_raft::network::{AppendRequests, AppendResults, Link, NetworkError};
use odradek_raft::rpc::{
    SnapshotOffer, SnapshotReply, TransferReply, TransferRequest, VoteReply, VoteRequest,
};
use odradek_raft::wire::{self, Reader, WireError};

use super::append_stream::AppendStream;
use super::call::{self, Status};
use super::{Peers, Purpose};

/// See the module.
pub struct Network {
    peers: Arc<Peers>,
}

impl Network {
    pub(super) fn new(peers: Arc<Peers>) -> Arc<Self> {
        Arc::new(Self { peers })
    }

    fn call<T: Send + 'static>(
        &self,
        link: Link,
        write: impl FnOnce(&mut BytesMut) + Send + 'static,
        read: fn(&mut Reader) -> Result<T, WireError>,
    ) -> BoxFuture<'static, Result<T, NetworkError>> {
        let peers = Arc::clone(&self.peers);
        Box::pin(async move {
            let unreachable = || NetworkError::Unreachable(link.to);
            let reply = peers.ask(link.to, write).await.map_err(|error| {
                tracing::debug!(to = %link.to, group = %link.group, %error, "no reply");
                unreachable()
            })?;
            let mut reader = Reader::new(reply);
            let reply = match call::get_status(&mut reader) {
                Ok(Status::Ok) => read(&mut reader),
                Ok(Status::NotServed) => {
                    return Err(NetworkError::NotServed {
                        node: link.to,
                        group: link.group,
                    });
                }
                Ok(Status::Unsupported) => return Err(unreachable()),
                Err(error) => Err(error),
            };
            reply.map_err(|error| {
                tracing::warn!(to = %link.to, group = %link.group, %error, "a reply is malformed");
                unreachable()
            })
        })
    }
}

impl odradek_raft::network::Network for Network {
    fn append_stream(
        &self,
        link: Link,
        requests: AppendRequests,
    ) -> BoxFuture<'static, Result<AppendResults, NetworkError>> {
        let peers = Arc::clone(&self.peers);
        Box::pin(async move {
            let unreachable = |_| NetworkError::Unreachable(link.to);
            let conduit = peers
                .connect(link.to, Purpose::Append)
                .await
                .map_err(unreachable)?;
            let (number, answers) = conduit.open(link.group).map_err(unreachable)?;
            Ok(AppendStream::new(conduit, number, answers, requests).boxed())
        })
    }

    fn vote(
        &self,
        link: Link,
        request: VoteRequest,
        pre_vote: bool,
    ) -> BoxFuture<'static, Result<VoteReply, NetworkError>> {
        self.call(
            link,
            move |out| call::put_vote(out, link.group, &request, pre_vote),
            wire::get_vote_reply,
        )
    }

    fn snapshot(
        &self,
        link: Link,
        offer: SnapshotOffer,
    ) -> BoxFuture<'static, Result<SnapshotReply, NetworkError>> {
        self.call(
            link,
            move |out| call::put_snapshot(out, link.group, &offer),
            wire::get_snapshot_reply,
        )
    }

    fn transfer_leader(
        &self,
        link: Link,
        request: TransferRequest,
    ) -> BoxFuture<'static, Result<TransferReply, NetworkError>> {
        self.call(
            link,
            move |out| call::put_transfer(out, link.group, &request),
            wire::get_transfer_reply,
        )
    }
}
