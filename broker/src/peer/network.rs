//! The network of the Raft groups over the connections between nodes: appends on one, everything
//! else on the other.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use odradek_protocol::ids::{NodeId, Offset};
use odradek_raft::GroupKey;
use odradek_raft::liveness::{LeadershipQuery, LeadershipReply, Probe, ProbeReply, ProbeTransport};
use odradek_raft::network::{AppendRequests, AppendResults, Link, NetworkError};
use odradek_raft::rpc::{
    Clearance, RecordsOpened, RecordsRead, RecordsWanted, SnapshotOffer, SnapshotReply,
    TransferReply, TransferRequest, VoteReply, VoteRequest,
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

    /// Asks a node, about a group where it is one that the node may not serve.
    fn call<T: Send + 'static>(
        &self,
        to: NodeId,
        group: Option<GroupKey>,
        write: impl FnOnce(&mut BytesMut) + Send + 'static,
        read: fn(&mut Reader) -> Result<T, WireError>,
    ) -> BoxFuture<'static, Result<T, NetworkError>> {
        self.call_on(Purpose::Control, to, group, write, read)
    }

    fn call_on<T: Send + 'static>(
        &self,
        purpose: Purpose,
        to: NodeId,
        group: Option<GroupKey>,
        write: impl FnOnce(&mut BytesMut) + Send + 'static,
        read: fn(&mut Reader) -> Result<T, WireError>,
    ) -> BoxFuture<'static, Result<T, NetworkError>> {
        let peers = Arc::clone(&self.peers);
        Box::pin(async move {
            let unreachable = || NetworkError::Unreachable(to);
            let reply = peers.ask(to, purpose, write).await.map_err(|error| {
                tracing::debug!(%to, %error, "no reply");
                unreachable()
            })?;
            let mut reader = Reader::new(reply);
            let reply = match (call::get_status(&mut reader), group) {
                (Ok(Status::Ok), _) => read(&mut reader),
                (Ok(Status::NotServed), Some(group)) => {
                    return Err(NetworkError::NotServed { node: to, group });
                }
                (Ok(Status::NotServed | Status::Unsupported), _) => return Err(unreachable()),
                (Err(error), _) => Err(error),
            };
            reply.map_err(|error| {
                tracing::warn!(%to, %error, "a reply is malformed");
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
            let throttles = peers.throttles();
            let requests = throttles.sending(link.group, link.to, requests).boxed();
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
            link.to,
            Some(link.group),
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
            link.to,
            Some(link.group),
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
            link.to,
            Some(link.group),
            move |out| call::put_transfer(out, link.group, &request),
            wire::get_transfer_reply,
        )
    }

    fn clearance(&self, link: Link) -> BoxFuture<'static, Result<Clearance, NetworkError>> {
        self.call(
            link.to,
            Some(link.group),
            move |out| call::put_clearance(out, link.group),
            wire::get_clearance,
        )
    }

    fn open_records(
        &self,
        link: Link,
        wanted: RecordsWanted,
    ) -> BoxFuture<'static, Result<RecordsOpened, NetworkError>> {
        self.call_on(
            Purpose::Records,
            link.to,
            Some(link.group),
            move |out| call::put_open_records(out, link.group, wanted),
            wire::get_records_opened,
        )
    }

    fn read_records(
        &self,
        link: Link,
        read: RecordsRead,
    ) -> BoxFuture<'static, Result<Option<Bytes>, NetworkError>> {
        self.call_on(
            Purpose::Records,
            link.to,
            Some(link.group),
            move |out| call::put_read_records(out, link.group, read),
            wire::get_records_piece,
        )
    }

    fn pace_records(&self, group: GroupKey, bytes: usize) -> BoxFuture<'static, ()> {
        let throttles = Arc::clone(self.peers.throttles());
        Box::pin(async move { throttles.received(group, bytes).await })
    }

    fn close_records(&self, link: Link) -> BoxFuture<'static, Result<(), NetworkError>> {
        self.call_on(
            Purpose::Records,
            link.to,
            Some(link.group),
            move |out| call::put_close_records(out, link.group),
            wire::get_nothing,
        )
    }

    fn droppable(&self, link: Link) -> BoxFuture<'static, Result<Offset, NetworkError>> {
        self.call(
            link.to,
            Some(link.group),
            move |out| call::put_droppable(out, link.group),
            wire::get_droppable,
        )
    }
}

impl ProbeTransport for Network {
    fn probe(
        &self,
        to: NodeId,
        probe: Probe,
    ) -> BoxFuture<'static, Result<ProbeReply, NetworkError>> {
        self.call(
            to,
            None,
            move |out| call::put_probe(out, &probe),
            wire::get_probe_reply,
        )
    }

    fn leadership(
        &self,
        _from: NodeId,
        to: NodeId,
        query: LeadershipQuery,
    ) -> BoxFuture<'static, Result<LeadershipReply, NetworkError>> {
        self.call(
            to,
            None,
            move |out| call::put_leadership(out, &query),
            wire::get_leadership_reply,
        )
    }
}
