//! The receiving end of a [`Network`](crate::network::Network).

use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use odradek_protocol::ids::{NodeId, Offset};

use crate::error::RaftError;
use crate::group::Group;
use crate::liveness::{LeadershipQuery, LeadershipReply, Probe, ProbeReply};
use crate::network::{AppendRequests, AppendResults, NetworkError};
use crate::node::{RaftNode, blocking};
use crate::rpc::{
    Clearance, RecordsOpened, RecordsRead, RecordsWanted, SnapshotOffer, SnapshotReply,
    TransferReply, TransferRequest, VoteReply, VoteRequest,
};
use crate::soundness;
use crate::types::{GroupKey, node_id};

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
        let group = self.served(key)?;
        // The first that cannot be right ends the stream, after the answers to those before it.
        let log = Arc::clone(&group);
        let refusals = Arc::clone(self.refusals());
        let requests = requests.take_while(move |request| {
            let checked = log
                .is_of_another(&request.vote)
                .and_then(|()| soundness::append(request))
                .and_then(|()| {
                    let ids = request.entries.iter().map(|entry| entry.log_id);
                    let ids = request.prev_log_id.into_iter().chain(ids);
                    log.agrees(request.vote, ids)
                });
            let sender = node_id(request.vote.leader_id.voted_for);
            if let Err(error) = &checked
                && let Some(left_out) = refusals.may_say((sender, key))
            {
                tracing::error!(
                    group = %key, %sender, %error, %request, left_out, "appends are refused"
                );
            }
            std::future::ready(checked.is_ok())
        });
        if group.is_whole() {
            return Ok(answers(&group, requests.boxed()));
        }
        let answers = async move {
            let mut requests = requests.boxed().peekable();
            let first = std::pin::Pin::new(&mut requests).peek().await;
            let leader = first.map(|request| node_id(request.vote.leader_id.voted_for));
            match leader {
                Some(leader) if !group.takes_entries_of(leader).await => {
                    let refused = Err(stopped(group.node, key));
                    futures_util::stream::iter([refused]).boxed()
                }
                _ => answers(&group, requests.boxed()),
            }
        };
        Ok(futures_util::stream::once(answers).flatten().boxed())
    }

    /// Answers a candidate.
    pub async fn serve_vote(
        &self,
        key: GroupKey,
        request: VoteRequest,
        pre_vote: bool,
    ) -> Result<VoteReply, NetworkError> {
        soundness::vote(&request)?;
        let group = self.served(key)?;
        group.is_of_another(&request.vote)?;
        let candidate = node_id(request.vote.leader_id.voted_for);
        if !group.may_vote_for(candidate, request.last_log_id).await {
            return Ok(group.refuse_vote());
        }
        group
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

    /// Says whether the replica on node `from`, which holds nothing, may take part.
    pub async fn serve_clearance(
        &self,
        key: GroupKey,
        from: NodeId,
    ) -> Result<Clearance, NetworkError> {
        Ok(self.served(key)?.clears(from).await)
    }

    /// Takes over where the leader's log starts.
    pub async fn serve_snapshot(
        &self,
        key: GroupKey,
        offer: SnapshotOffer,
    ) -> Result<SnapshotReply, NetworkError> {
        soundness::snapshot(&offer)?;
        let group = self.served(key)?;
        group.is_of_another(&offer.vote)?;
        let leader = node_id(offer.vote.leader_id.voted_for);
        if !group.takes_entries_of(leader).await {
            return Err(stopped(self.node_id(), key));
        }
        group
            .install(offer)
            .await
            .unwrap_or_else(|| Err(stopped(self.node_id(), key)))
    }

    /// Opens the records that the replica on node `from` wants.
    pub async fn serve_open_records(
        &self,
        key: GroupKey,
        from: NodeId,
        wanted: RecordsWanted,
    ) -> Result<RecordsOpened, NetworkError> {
        let group = self.served(key)?;
        let opened = blocking(move || group.open_records(from, wanted.0)).await;
        opened.map_err(|error| self.cannot_give(key, from, &error))
    }

    /// Reads a piece of what the replica on node `from` has opened; `None` if that has ended.
    pub async fn serve_read_records(
        &self,
        key: GroupKey,
        from: NodeId,
        read: RecordsRead,
    ) -> Result<Option<Bytes>, NetworkError> {
        let read = self.served(key)?.read_records(from, read).await;
        read.map_err(|error| self.cannot_give(key, from, &error))
    }

    fn cannot_give(&self, group: GroupKey, to: NodeId, error: &RaftError) -> NetworkError {
        tracing::warn!(%group, %to, %error, "records cannot be given to another replica");
        stopped(self.node_id(), group)
    }

    /// The replica on node `from` wants no more of what it has opened.
    pub fn serve_close_records(&self, key: GroupKey, from: NodeId) -> Result<(), NetworkError> {
        self.served(key)?.close_records(from);
        Ok(())
    }

    /// Says, on the leader, below which offset every replica within reach has all entries.
    pub fn serve_droppable(&self, key: GroupKey) -> Result<Offset, NetworkError> {
        let group = self.served(key)?;
        let leads = group.leadership().is_ready_leader();
        let held = leads.then(|| group.held_by_all().ok()).flatten();
        held.ok_or_else(|| stopped(self.node_id(), key))
    }

    /// Stands for election at the leader's wish.
    pub async fn serve_transfer_leader(
        &self,
        key: GroupKey,
        request: TransferRequest,
    ) -> Result<TransferReply, NetworkError> {
        soundness::transfer(&request)?;
        let group = self.served(key)?;
        group.is_of_another(request.from_leader())?;
        if !group.may_stand().await {
            return Err(stopped(self.node_id(), key));
        }
        group
            .answer_transfer(request)
            .await
            .ok_or_else(|| stopped(self.node_id(), key))
    }
}

/// What the group answers to appends.
fn answers(group: &Group, requests: AppendRequests) -> AppendResults {
    let (node, key) = (group.node, group.key());
    let answers = group.raft().stream_append(requests);
    answers
        .map(move |answer| answer.map_err(|_| stopped(node, key)))
        .boxed()
}

fn stopped(node: NodeId, group: GroupKey) -> NetworkError {
    NetworkError::NotServed { node, group }
}
