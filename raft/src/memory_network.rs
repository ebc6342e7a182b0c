//! A network inside one process, for tests: nodes that can be cut off from each other, one way or
//! both, slowed down, and taken away.
//!
//! A message that meets a cut is lost without a word, as packets are: whoever waits for an answer
//! has to give up by itself. A node that is gone refuses at once. What was sent on one link
//! arrives in order.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use odradek_protocol::ids::{NodeId, Offset};
use openraft::AsyncRuntime;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use crate::liveness::{LeadershipQuery, LeadershipReply, Probe, ProbeReply, ProbeTransport};
use crate::network::{AppendRequests, AppendResults, Link, Network, NetworkError};
use crate::node::RaftNode;
use crate::rpc::{
    AppendRequest, Clearance, RecordsOpened, RecordsRead, RecordsWanted, SnapshotOffer,
    SnapshotReply, TransferReply, TransferRequest, VoteReply, VoteRequest,
};
use crate::types::Runtime;

/// Messages of one stream that may be under way.
const PIPELINE: usize = 64;

/// See the module. Clones are the same network.
#[derive(Clone, Default)]
pub struct MemoryNetwork {
    state: Arc<Mutex<State>>,
    thawed: Arc<Notify>,
}

#[derive(Default)]
struct State {
    nodes: HashMap<NodeId, Weak<RaftNode>>,
    cut: HashSet<(NodeId, NodeId)>,
    delays: HashMap<(NodeId, NodeId), Duration>,
    frozen: HashSet<NodeId>,
    breaks_after: Option<Duration>,
}

impl MemoryNetwork {
    /// A network without nodes, cuts or delays.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a node reachable, in place of an earlier one of the same id.
    pub fn add(&self, node: &Arc<RaftNode>) {
        self.state
            .lock()
            .nodes
            .insert(node.node_id(), Arc::downgrade(node));
    }

    /// Takes a node away: it refuses connections until it is added again.
    pub fn remove(&self, node: NodeId) {
        self.state.lock().nodes.remove(&node);
    }

    /// Loses what is sent from one node to another.
    pub fn cut_one_way(&self, from: NodeId, to: NodeId) {
        self.state.lock().cut.insert((from, to));
    }

    /// Loses what is sent between two nodes.
    pub fn cut(&self, one: NodeId, other: NodeId) {
        self.cut_one_way(one, other);
        self.cut_one_way(other, one);
    }

    /// Holds back what a node sends and is sent until it is thawed, as if its process was stopped.
    pub fn freeze(&self, node: NodeId) {
        self.state.lock().frozen.insert(node);
    }

    /// Lets go of what was held back.
    pub fn thaw(&self, node: NodeId) {
        self.state.lock().frozen.remove(&node);
        self.thawed.notify_waiters();
    }

    /// Has a stream of appends of which something was lost end with an error this long afterwards,
    /// as a connection does. Otherwise it goes on in silence.
    pub fn break_streams_after(&self, limit: Duration) {
        self.state.lock().breaks_after = Some(limit);
    }

    /// Waits as long as it takes to find out that a stream is broken.
    async fn breaks(&self) {
        let limit = self.state.lock().breaks_after;
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    }

    /// Mends every cut.
    pub fn heal(&self) {
        self.state.lock().cut.clear();
    }

    /// Has messages from one node to another take this long.
    pub fn delay(&self, from: NodeId, to: NodeId, delay: Duration) {
        self.state.lock().delays.insert((from, to), delay);
    }

    fn node(&self, id: NodeId) -> Result<Arc<RaftNode>, NetworkError> {
        self.state
            .lock()
            .nodes
            .get(&id)
            .and_then(Weak::upgrade)
            .ok_or(NetworkError::Unreachable(id))
    }

    /// Takes as long as a message takes. Returns whether it arrives.
    async fn passes(&self, from: NodeId, to: NodeId) -> bool {
        let (delay, cut_at_start) = {
            let state = self.state.lock();
            (
                state.delays.get(&(from, to)).copied(),
                state.cut.contains(&(from, to)),
            )
        };
        if let Some(delay) = delay {
            tokio::time::sleep(delay).await;
        }
        loop {
            let thawed = self.thawed.notified();
            {
                let state = self.state.lock();
                if !state.frozen.contains(&from) && !state.frozen.contains(&to) {
                    break;
                }
            }
            thawed.await;
        }
        !cut_at_start && !self.state.lock().cut.contains(&(from, to))
    }

    /// A request and its answer. If either is lost, this never ends.
    async fn call<T, F>(
        self,
        (from, to): (NodeId, NodeId),
        serve: impl FnOnce(Arc<RaftNode>) -> F,
    ) -> Result<T, NetworkError>
    where
        F: Future<Output = Result<T, NetworkError>>,
    {
        if !self.passes(from, to).await {
            return std::future::pending().await;
        }
        let answer = serve(self.node(to)?).await;
        if !self.passes(to, from).await {
            return std::future::pending().await;
        }
        answer
    }
}

impl MemoryNetwork {
    /// Moves requests from the sender to the receiver, or loses them: like a socket, it takes
    /// them from the sender whether or not anybody reads them.
    async fn carry(
        self,
        link: Link,
        mut requests: AppendRequests,
        arrivals: mpsc::Sender<AppendRequest>,
        exhausted: Arc<AtomicBool>,
    ) {
        while let Some(request) = requests.next().await {
            if self.passes(link.from, link.to).await {
                // A receiver that has gone loses it, too.
                let _ = arrivals.send(request).await;
                continue;
            }
            let taken_in_vain = async { while requests.next().await.is_some() {} };
            tokio::select! {
                    biased;
                () = taken_in_vain => break,
                () = self.breaks() => return,
            }
        }
        exhausted.store(true, Ordering::Release);
    }
}

/// Carries a stream's requests until the stream is dropped.
struct Wire(tokio::task::JoinHandle<()>);

impl Drop for Wire {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ProbeTransport for MemoryNetwork {
    fn probe(
        &self,
        to: NodeId,
        probe: Probe,
    ) -> BoxFuture<'static, Result<ProbeReply, NetworkError>> {
        let between = (probe.from, to);
        let serve = move |node: Arc<RaftNode>| async move { Ok(node.serve_probe(probe)) };
        Box::pin(self.clone().call(between, serve))
    }

    fn leadership(
        &self,
        from: NodeId,
        to: NodeId,
        query: LeadershipQuery,
    ) -> BoxFuture<'static, Result<LeadershipReply, NetworkError>> {
        let serve = move |node: Arc<RaftNode>| async move { Ok(node.serve_leadership(query)) };
        Box::pin(self.clone().call((from, to), serve))
    }
}

impl Network for MemoryNetwork {
    fn append_stream(
        &self,
        link: Link,
        requests: AppendRequests,
    ) -> BoxFuture<'static, Result<AppendResults, NetworkError>> {
        let network = self.clone();
        Box::pin(async move {
            let node = network.node(link.to)?;
            let (arrivals, arriving) = mpsc::channel(PIPELINE);
            let exhausted = Arc::new(AtomicBool::new(false));
            let carrier = network
                .clone()
                .carry(link, requests, arrivals, exhausted.clone());
            let wire = Wire(Runtime::spawn(carrier));
            let arriving = futures_util::stream::unfold(arriving, |mut arriving| async move {
                arriving.recv().await.map(|request| (request, arriving))
            });
            let answers = node.serve_append_stream(link.group, arriving.boxed())?;
            drop(node);
            // A receiver that stops before all requests are answered has broken the connection.
            let broken = futures_util::stream::once(async move {
                match exhausted.load(Ordering::Acquire) {
                    true => None,
                    false => Some(Err(NetworkError::Unreachable(link.to))),
                }
            });
            let answers = answers.chain(broken.filter_map(std::future::ready));
            let back = network.clone();
            Ok(answers
                .then(move |answer| {
                    // The wire lasts as long as the answers are wanted.
                    let (back, _) = (back.clone(), &wire);
                    async move {
                        match back.passes(link.to, link.from).await {
                            true => answer,
                            false => {
                                back.breaks().await;
                                Err(NetworkError::Unreachable(link.to))
                            }
                        }
                    }
                })
                .boxed())
        })
    }

    fn vote(
        &self,
        link: Link,
        request: VoteRequest,
        pre_vote: bool,
    ) -> BoxFuture<'static, Result<VoteReply, NetworkError>> {
        Box::pin(
            self.clone()
                .call((link.from, link.to), move |node| async move {
                    node.serve_vote(link.group, request, pre_vote).await
                }),
        )
    }

    fn snapshot(
        &self,
        link: Link,
        offer: SnapshotOffer,
    ) -> BoxFuture<'static, Result<SnapshotReply, NetworkError>> {
        Box::pin(
            self.clone()
                .call((link.from, link.to), move |node| async move {
                    node.serve_snapshot(link.group, offer).await
                }),
        )
    }

    fn transfer_leader(
        &self,
        link: Link,
        request: TransferRequest,
    ) -> BoxFuture<'static, Result<TransferReply, NetworkError>> {
        Box::pin(
            self.clone()
                .call((link.from, link.to), move |node| async move {
                    node.serve_transfer_leader(link.group, request).await
                }),
        )
    }

    fn clearance(&self, link: Link) -> BoxFuture<'static, Result<Clearance, NetworkError>> {
        let serve = move |node: Arc<RaftNode>| async move {
            node.serve_clearance(link.group, link.from).await
        };
        Box::pin(self.clone().call((link.from, link.to), serve))
    }

    fn open_records(
        &self,
        link: Link,
        wanted: RecordsWanted,
    ) -> BoxFuture<'static, Result<RecordsOpened, NetworkError>> {
        let serve = move |node: Arc<RaftNode>| async move {
            node.serve_open_records(link.group, link.from, wanted).await
        };
        Box::pin(self.clone().call((link.from, link.to), serve))
    }

    fn read_records(
        &self,
        link: Link,
        read: RecordsRead,
    ) -> BoxFuture<'static, Result<Option<Bytes>, NetworkError>> {
        let serve = move |node: Arc<RaftNode>| async move {
            node.serve_read_records(link.group, link.from, read).await
        };
        Box::pin(self.clone().call((link.from, link.to), serve))
    }

    fn close_records(&self, link: Link) -> BoxFuture<'static, Result<(), NetworkError>> {
        let serve = move |node: Arc<RaftNode>| async move {
            node.serve_close_records(link.group, link.from)
        };
        Box::pin(self.clone().call((link.from, link.to), serve))
    }

    fn droppable(&self, link: Link) -> BoxFuture<'static, Result<Offset, NetworkError>> {
        let serve = move |node: Arc<RaftNode>| async move { node.serve_droppable(link.group) };
        Box::pin(self.clone().call((link.from, link.to), serve))
    }
}
