//! The receiving end of a [`Network`](crate::network::Network).

use std::sync::Arc;

use futures_util::StreamExt;
use odradek_protocol::ids::NodeId;

use crate::group::Group;
use crate::liveness::{LeadershipQuery, LeadershipReply, Probe, ProbeReply};
use crate::network::{AppendRequests, AppendResults, NetworkError};
use crate::node::RaftNode;
use crate::rpc::{
    SnapshotOffer, SnapshotReply, TransferReply, TransferRequest, VoteReply, VoteRequest,
};
use crate::types::GroupKey;

impl RaftNode {
    fn served(&self, key: GroupKey) -> Result<Arc<Group>, NetworkError> {
        self.group(key).ok_or(NetworkError::NotServed {
            node: self.node_id(),
            group: key,
        })
    }

    /// Answers a stream of appends, in order.
    pub fn serve_append_stream(
        &self,
        key: GroupKey,
        requests: AppendRequests,
    ) -> Result<AppendResults, NetworkError> {
        let node = self.node_id();
        let answers = self.served(key)?.raft().stream_append(requests);
        Ok(answers
            .map(move |answer| answer.map_err(|_| stopped(node, key)))
            .boxed())
    }

    /// Answers a candidate.
    pub async fn serve_vote(
        &self,
        key: GroupKey,
        request: VoteRequest,
        pre_vote: bool,
    ) -> Result<VoteReply, NetworkError> {
        self.served(key)?
            .answer_candidate(request, pre_vote)
            .await
            .ok_or_else(|| stopped(self.node_id(), key))
    }

    /// Answers a probe.
    pub fn serve_probe(&self, probe: Probe) -> ProbeReply {
        match self.liveness().filter(|liveness| !liveness.is_stopped()) {
            Some(liveness) => liveness.serve_probe(self, probe),
            None => ProbeReply {
                incarnation: 0,
                promise: None,
            },
        }
    }

    /// Says whether this node has given up a leadership. One that it does not hold now it will
    /// never hold again, for no leader goes on in its term after a restart.
    pub fn serve_leadership(&self, query: LeadershipQuery) -> LeadershipReply {
        let given_up = self
            .group(query.group)
            .is_none_or(|group| group.consents(query.term));
        LeadershipReply { given_up }
    }

    /// Takes over where the leader's log starts.
    pub async fn serve_snapshot(
        &self,
        key: GroupKey,
        offer: SnapshotOffer,
    ) -> Result<SnapshotReply, NetworkError> {
        self.served(key)?
            .raft()
            .install_full_snapshot(offer.vote, offer.snapshot)
            .await
            .map_err(|_| stopped(self.node_id(), key))
    }

    /// Stands for election at the leader's wish.
    pub async fn serve_transfer_leader(
        &self,
        key: GroupKey,
        request: TransferRequest,
    ) -> Result<TransferReply, NetworkError> {
        self.served(key)?
            .answer_transfer(request)
            .await
            .ok_or_else(|| stopped(self.node_id(), key))
    }
}

fn stopped(node: NodeId, group: GroupKey) -> NetworkError {
    NetworkError::NotServed { node, group }
}
