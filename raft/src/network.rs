//! How the nodes of a group reach each other.
//!
//! [`Network`] is what a transport has to offer; [`RaftNode`](crate::RaftNode) offers the other
//! end, one `serve_*` method a call. Between the two a transport carries the messages of
//! [`crate::rpc`], keeps the order of an append stream, and answers with a [`NetworkError`] when it
//! cannot.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use odradek_protocol::ids::{NodeId, Offset};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{
    Backoff, NetBackoff, NetSnapshot, NetStreamAppend, NetTransferLeader, NetVote, RPCOption,
    RaftNetworkFactory,
};
use openraft::raft::StreamAppendError;

use crate::liveness::PeerState;
use crate::rpc::{
    AppendRequest, AppendResult, Clearance, RecordsOpened, RecordsRead, RecordsWanted,
    SnapshotOffer, SnapshotReply, SnapshotState, TransferReply, TransferRequest, VoteReply,
    VoteRequest,
};
use crate::shared::Shared;
use crate::types::{GroupKey, TypeConfig, Vote, node_id};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

/// Which group of which node a message is from and for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The sender.
    pub from: NodeId,
    /// The receiver.
    pub to: NodeId,
    /// The group of both.
    pub group: GroupKey,
}

/// Why a message did not get through.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NetworkError {
    /// The other node does not answer.
    #[error("node {0} is unreachable")]
    Unreachable(NodeId),
    /// The other node answers, but does not have the group or has stopped it.
    #[error("node {node} does not serve {group}")]
    NotServed {
        /// The other node.
        node: NodeId,
        /// The group.
        group: GroupKey,
    },
    /// This node has promised not to stand for election for now.
    #[error("this node has promised its vote to the leader")]
    Promised,
    /// No replica in its right mind sends this: what it was sent by is broken.
    #[error("the message cannot be right: {0}")]
    Unsound(&'static str),
}

/// A stream of append requests.
pub type AppendRequests = BoxStream<'static, AppendRequest>;
/// The answers to a stream of append requests, in the order of the requests.
pub type AppendResults = BoxStream<'static, Result<AppendResult, NetworkError>>;

/// A transport between nodes.
pub trait Network: Send + Sync + 'static {
    /// Opens a stream of appends. Requests arrive in order, and answers come back in order; many
    /// may be under way. The answers end after the first that is not a success.
    fn append_stream(
        &self,
        link: Link,
        requests: AppendRequests,
    ) -> BoxFuture<'static, Result<AppendResults, NetworkError>>;

    /// Asks for a vote; with `pre_vote`, only whether it would be given.
    fn vote(
        &self,
        link: Link,
        request: VoteRequest,
        pre_vote: bool,
    ) -> BoxFuture<'static, Result<VoteReply, NetworkError>>;

    /// Tells a replica that is too far behind where the log starts.
    fn snapshot(
        &self,
        link: Link,
        offer: SnapshotOffer,
    ) -> BoxFuture<'static, Result<SnapshotReply, NetworkError>>;

    /// Hands leadership over.
    fn transfer_leader(
        &self,
        link: Link,
        request: TransferRequest,
    ) -> BoxFuture<'static, Result<TransferReply, NetworkError>>;

    /// Asks, for a replica that holds nothing, whether it may take part.
    fn clearance(&self, link: Link) -> BoxFuture<'static, Result<Clearance, NetworkError>>;

    /// Opens the records that a snapshot comes with. What was opened before ends.
    fn open_records(
        &self,
        link: Link,
        wanted: RecordsWanted,
    ) -> BoxFuture<'static, Result<RecordsOpened, NetworkError>>;

    /// Reads a piece of them; `None` if the session has ended. Nothing of it means that the other
    /// node sends nothing for the moment.
    fn read_records(
        &self,
        link: Link,
        read: RecordsRead,
    ) -> BoxFuture<'static, Result<Option<Bytes>, NetworkError>>;

    /// Waits as long as a bound on the rate says after so many bytes of them. There is none unless
    /// the transport has one.
    fn pace_records(&self, _group: GroupKey, _bytes: usize) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Says that no more of them is wanted.
    fn close_records(&self, link: Link) -> BoxFuture<'static, Result<(), NetworkError>>;

    /// Asks the leader below which offset every replica within reach has all entries.
    fn droppable(&self, link: Link) -> BoxFuture<'static, Result<Offset, NetworkError>>;
}

/// The network of a node that is alone.
pub struct NoNetwork;

impl Network for NoNetwork {
    fn append_stream(
        &self,
        link: Link,
        _requests: AppendRequests,
    ) -> BoxFuture<'static, Result<AppendResults, NetworkError>> {
        unreachable_node(link)
    }

    fn vote(
        &self,
        link: Link,
        _request: VoteRequest,
        _pre_vote: bool,
    ) -> BoxFuture<'static, Result<VoteReply, NetworkError>> {
        unreachable_node(link)
    }

    fn snapshot(
        &self,
        link: Link,
        _offer: SnapshotOffer,
    ) -> BoxFuture<'static, Result<SnapshotReply, NetworkError>> {
        unreachable_node(link)
    }

    fn transfer_leader(
        &self,
        link: Link,
        _request: TransferRequest,
    ) -> BoxFuture<'static, Result<TransferReply, NetworkError>> {
        unreachable_node(link)
    }

    fn clearance(&self, link: Link) -> BoxFuture<'static, Result<Clearance, NetworkError>> {
        unreachable_node(link)
    }

    fn open_records(
        &self,
        link: Link,
        _wanted: RecordsWanted,
    ) -> BoxFuture<'static, Result<RecordsOpened, NetworkError>> {
        unreachable_node(link)
    }

    fn read_records(
        &self,
        link: Link,
        _read: RecordsRead,
    ) -> BoxFuture<'static, Result<Option<Bytes>, NetworkError>> {
        unreachable_node(link)
    }

    fn close_records(&self, link: Link) -> BoxFuture<'static, Result<(), NetworkError>> {
        unreachable_node(link)
    }

    fn droppable(&self, link: Link) -> BoxFuture<'static, Result<Offset, NetworkError>> {
        unreachable_node(link)
    }
}

fn unreachable_node<T: Send + 'static>(link: Link) -> BoxFuture<'static, Result<T, NetworkError>> {
    Box::pin(async move { Err(NetworkError::Unreachable(link.to)) })
}

/// Makes openraft's clients for one group.
pub(crate) struct Clients {
    pub(crate) network: Arc<dyn Network>,
    pub(crate) from: NodeId,
    pub(crate) shared: Arc<Shared>,
}

impl RaftNetworkFactory<TypeConfig> for Clients {
    type Network = Client;

    async fn new_client(&mut self, target: u64, _node: &()) -> Client {
        Client {
            network: self.network.clone(),
            link: Link {
                from: self.from,
                to: node_id(target),
                group: self.shared.key(),
            },
            shared: self.shared.clone(),
        }
    }
}

/// openraft's way to one replica of one group.
pub(crate) struct Client {
    network: Arc<dyn Network>,
    link: Link,
    shared: Arc<Shared>,
}

type RpcResult<T> = Result<T, RPCError<TypeConfig>>;

impl Client {
    /// An error while this replica is being rebuilt: it stands for no election.
    fn require_whole(&self) -> RpcResult<()> {
        match self.shared.is_whole() {
            true => Ok(()),
            false => Err(RPCError::Unreachable(Unreachable::new(
                &NetworkError::Promised,
            ))),
        }
    }
}

async fn within<T>(
    option: &RPCOption,
    link: Link,
    call: BoxFuture<'static, Result<T, NetworkError>>,
) -> Result<T, Unreachable<TypeConfig>> {
    match tokio::time::timeout(option.soft_ttl(), call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Unreachable::new(&error)),
        Err(_) => Err(Unreachable::new(&NetworkError::Unreachable(link.to))),
    }
}

impl NetBackoff<TypeConfig> for Client {
    fn backoff(&self) -> Option<Backoff> {
        None
    }
}

impl NetStreamAppend<TypeConfig> for Client {
    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> openraft::base::BoxFuture<
        's,
        RpcResult<openraft::base::BoxStream<'s, RpcResult<AppendResult>>>,
    >
    where
        S: Stream<Item = AppendRequest> + Send + Unpin + 'static,
    {
        let network = self.network.clone();
        let link = self.link;
        let shared = self.shared.clone();
        Box::pin(async move {
            // openraft waits for work inside `input`. A stream that failed before it polled that
            // would be opened again at once, and again, at the cost of two cores.
            let mut input = input.peekable();
            std::pin::Pin::new(&mut input).peek().await;
            let unanswered = Arc::new(Unanswered::default());
            let sent = unanswered.clone();
            let log = shared.clone();
            let leader = shared.clone();
            let input = input.then(move |request| told_what_is_visible(request, leader.clone()));
            let input = input.inspect(move |request: &AppendRequest| {
                let next = request.prev_log_id.as_ref().map_or(0, |id| id.index() + 1);
                sent.requests.lock().push_back(Sent {
                    term: request.vote.leader_id.term,
                    at: Instant::now(),
                    finds_gap: request.entries.is_empty() && next < log.first_index().get(),
                });
            });
            let answers = network
                .append_stream(link, input.boxed())
                .await
                .map_err(|error| RPCError::Unreachable(Unreachable::new(&error)))?;
            let answers = answers_in_time(answers, unanswered, link, shared, option.soft_ttl());
            Ok(Box::pin(answers) as openraft::base::BoxStream<'s, _>)
        })
    }
}

/// What a request tells of commits waits so long for the state machine of this replica.
const VISIBLE_WAIT: Duration = Duration::from_millis(100);

/// Tells a follower of no commit that readers of this replica do not know of. What carries entries
/// does not wait for that: it is followed by a request that tells of their commit.
async fn told_what_is_visible(mut request: AppendRequest, shared: Arc<Shared>) -> AppendRequest {
    let limit = match request.entries.is_empty() {
        true => VISIBLE_WAIT,
        false => Duration::ZERO,
    };
    request.leader_commit = shared.visible(request.leader_commit, limit).await;
    request
}

/// A request of a stream.
struct Sent {
    term: u64,
    at: Instant,
    /// It carries nothing, and what would come next has been dropped from the log.
    finds_gap: bool,
}

/// The requests of a stream that have no answer yet. openraft's own account of this is not exact
/// enough to rest a lease on: of several requests that end at one entry it takes the answer to the
/// first for an answer to all.
#[derive(Default)]
struct Unanswered {
    requests: Mutex<VecDeque<Sent>>,
    /// Requests in a row that found a gap.
    gaps: AtomicUsize,
}

/// After so many requests that found a gap a stream is given up.
const GAPS_MAX: usize = 3;

impl Unanswered {
    /// Takes the answer to the oldest request. Returns whether the stream leads nowhere: what it
    /// was to send has been dropped while it was sending, and openraft would go on asking for it
    /// without end. On an error it looks anew at where the other replica is.
    fn answered(&self, answer: &AppendResult, by: NodeId, shared: &Shared) -> bool {
        let Some(sent) = self.requests.lock().pop_front() else {
            return false;
        };
        if !matches!(answer, Err(StreamAppendError::HigherVote(_))) {
            shared.lease.confirm(by, sent.term, sent.at);
        }
        if let Ok(matched) = answer {
            shared.has_matched(by, *matched);
        }
        if !sent.finds_gap {
            self.gaps.store(0, Ordering::Relaxed);
            return false;
        }
        self.gaps.fetch_add(1, Ordering::Relaxed) + 1 >= GAPS_MAX
    }
}

/// Ends the stream with an error once a request has gone without an answer for `limit`. Without
/// requests there is nothing to wait for: an idle group costs nothing.
fn answers_in_time(
    answers: AppendResults,
    unanswered: Arc<Unanswered>,
    link: Link,
    shared: Arc<Shared>,
    limit: Duration,
) -> impl Stream<Item = RpcResult<AppendResult>> {
    let verdicts = shared.subscribe_peers();
    futures_util::stream::unfold(Some((answers, verdicts)), move |state| {
        let (unanswered, shared) = (unanswered.clone(), shared.clone());
        async move {
            let (mut answers, mut verdicts) = state?;
            loop {
                let answer = tokio::time::timeout(limit, answers.next());
                let answer = tokio::select! {
                    biased;
                    answer = answer => answer,
                    () = died(&mut verdicts, link.to) => {
                        return Some((Err(unreachable_peer(link.to)), None));
                    }
                };
                return match answer {
                    Ok(None) => None,
                    Ok(Some(Ok(answer))) => {
                        if unanswered.answered(&answer, link.to, &shared) {
                            return Some((Err(unreachable_peer(link.to)), None));
                        }
                        Some((Ok(answer), Some((answers, verdicts))))
                    }
                    Ok(Some(Err(error))) => {
                        Some((Err(RPCError::Unreachable(Unreachable::new(&error))), None))
                    }
                    Err(_) if unanswered.requests.lock().is_empty() => continue,
                    Err(_) => Some((Err(unreachable_peer(link.to)), None)),
                };
            }
        }
    })
}

fn unreachable_peer(node: NodeId) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::new(&NetworkError::Unreachable(node)))
}

/// Waits until a node is found to be dead. What was sent to it before may be lost, and would be
/// waited for in vain when it returns.
async fn died(verdicts: &mut Option<watch::Receiver<Vec<PeerState>>>, node: NodeId) {
    let Some(verdicts) = verdicts else {
        return std::future::pending().await;
    };
    while verdicts.changed().await.is_ok() {
        let states = verdicts.borrow_and_update();
        if states.iter().any(|peer| peer.node == node && !peer.alive) {
            return;
        }
    }
    std::future::pending().await
}

impl NetVote<TypeConfig> for Client {
    async fn vote(&mut self, request: VoteRequest, option: RPCOption) -> RpcResult<VoteReply> {
        self.require_whole()?;
        let call = self.network.vote(self.link, request, false);
        Ok(within(&option, self.link, call).await?)
    }

    async fn pre_vote(&mut self, request: VoteRequest, option: RPCOption) -> RpcResult<VoteReply> {
        self.require_whole()?;
        if !self.shared.may_ask_for_votes().await {
            let error = NetworkError::Promised;
            return Err(RPCError::Unreachable(Unreachable::new(&error)));
        }
        let call = self.network.vote(self.link, request, true);
        Ok(within(&option, self.link, call).await?)
    }
}

impl NetSnapshot<TypeConfig> for Client {
    type SnapshotData = SnapshotState;

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: crate::rpc::Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        option: RPCOption,
    ) -> Result<SnapshotReply, StreamingError<TypeConfig>> {
        let call = self
            .network
            .snapshot(self.link, SnapshotOffer { vote, snapshot });
        let cancel = std::pin::pin!(cancel);
        let call = std::pin::pin!(within(&option, self.link, call));
        match futures_util::future::select(cancel, call).await {
            futures_util::future::Either::Left((closed, _)) => Err(closed.into()),
            futures_util::future::Either::Right((answer, _)) => Ok(answer?),
        }
    }
}

impl NetTransferLeader<TypeConfig> for Client {
    async fn transfer_leader(
        &mut self,
        request: TransferRequest,
        option: RPCOption,
    ) -> RpcResult<TransferReply> {
        // A leader that has been left out of the voters hands over by itself.
        self.shared
            .lease
            .give_up(request.from_leader().leader_id.term);
        let call = self.network.transfer_leader(self.link, request);
        Ok(within(&option, self.link, call).await?)
    }
}
