//! Who votes on the metadata, by what other nodes say: for a node that is behind.
//!
//! A leader of the metadata may have been elected by voters that this node has not heard of, because what
//! says so is in the log that the leader is about to send. If its messages were refused for that, this
//! node could be behind for ever. So the nodes are asked that this one does know of, and those that its
//! configuration names; whom one of them counts among the voters is believed to be one, for a while.
//!
//! Any node can have this one ask, by claiming to lead. So it asks at most once in a while, on
//! connections that it makes itself to addresses that it knows.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use odradek_protocol::ids::NodeId;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::quorum;
use crate::peer::{PeerAddress, PeerReply, PeerRequest, Peers};

/// Time between two rounds of questions.
const PERIOD: Duration = Duration::from_secs(1);
/// How long one node may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Nodes that are asked at a time, and at most in one round.
const ASKED_AT_ONCE: usize = 8;
const ASKED_MAX: usize = 64;
/// For how long what was heard is believed.
const BELIEVED_FOR: Duration = Duration::from_secs(60);

/// See the module.
pub(super) struct Hearsay {
    peers: Arc<Peers>,
    /// `controller.quorum.bootstrap.servers`.
    servers: Vec<PeerAddress>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    began: Option<Instant>,
    is_asking: bool,
    heard: Option<(Instant, BTreeSet<NodeId>)>,
}

impl Hearsay {
    pub(super) fn new(peers: Arc<Peers>, servers: Vec<PeerAddress>) -> Arc<Self> {
        Arc::new(Self {
            peers,
            servers,
            state: Mutex::default(),
        })
    }

    /// Whether some node has said lately that this one votes. If not, others are asked, and it may be so the
    /// next time.
    pub(super) fn is_voter(self: &Arc<Self>, node: NodeId) -> bool {
        let now = Instant::now();
        let mut state = self.state.lock();
        let is_fresh = |at: &Instant| now.saturating_duration_since(*at) < BELIEVED_FOR;
        if let Some((at, voters)) = &state.heard
            && is_fresh(at)
            && voters.contains(&node)
        {
            return true;
        }
        let is_early = state
            .began
            .is_some_and(|began| now.saturating_duration_since(began) < PERIOD);
        if state.is_asking || is_early {
            return false;
        }
        state.is_asking = true;
        state.began = Some(now);
        drop(state);
        tokio::spawn(Arc::clone(self).ask());
        false
    }

    async fn ask(self: Arc<Self>) {
        let own = self.peers.local().node_id();
        let known = self.peers.addresses().nodes();
        let others = known.into_iter().filter(|node| *node != own);
        let heard: BTreeSet<NodeId> = futures_util::stream::iter(others.take(ASKED_MAX))
            .map(|node| self.voters_by(node))
            .buffer_unordered(ASKED_AT_ONCE)
            .flat_map(futures_util::stream::iter)
            .collect()
            .await;
        if heard.is_empty() {
            // Nobody of whom this node knows is there. Those that its configuration names may be.
            for server in &self.servers {
                match quorum::ask(&self.peers, server).await {
                    Ok(_) => break,
                    Err(reason) => tracing::debug!(reason, "the voters are not known there"),
                }
            }
        }
        let mut state = self.state.lock();
        state.is_asking = false;
        if !heard.is_empty() {
            state.heard = Some((Instant::now(), heard));
        }
    }

    async fn voters_by(&self, node: NodeId) -> Vec<NodeId> {
        let asked = self
            .peers
            .call_within(node, PeerRequest::Quorum, ANSWER_TIMEOUT);
        match asked.await {
            Ok(PeerReply::Quorum(voters)) => voters.into_iter().map(|(node, _)| node).collect(),
            Ok(_) | Err(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;
    use odradek_raft::GroupKey;

    use super::*;
    use crate::peer::tests::{bind, limits, local, start_node, until};
    use crate::peer::{AddressBook, Caller, PeerIdentity, PeerService};

    /// Says that nodes 2 and 7 vote.
    struct Informed;

    impl PeerService for Informed {
        fn serve(&self, _from: &Caller, _request: PeerRequest) -> BoxFuture<'static, PeerReply> {
            let voters = [2, 7].map(|id| {
                let host = "h".to_owned();
                (NodeId::new(id), PeerAddress { host, port: 9 })
            });
            std::future::ready(PeerReply::Quorum(voters.to_vec())).boxed()
        }

        fn admit(&self, _node: &PeerIdentity) -> Result<(), String> {
            Ok(())
        }

        fn knows(&self, _node: NodeId) -> bool {
            false
        }

        fn may_lead(&self, _node: NodeId, _group: GroupKey) -> bool {
            false
        }

        fn may_found(&self, _node: NodeId) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn a_leader_of_whom_only_others_know_is_a_voter_once_one_of_them_says_so() {
        let dir = tempfile::tempdir().expect("a directory");
        let two = start_node(2, dir.path(), bind().await, [], limits());
        two.service.set_service(Arc::new(Informed));
        let (known, servers) = (
            [(NodeId::new(2), two.address.clone())],
            [two.address.clone()],
        );
        let seven = NodeId::new(7);
        let book = |known: &[(NodeId, PeerAddress)]| Arc::new(AddressBook::new(known.to_vec()));
        let peers = Peers::new(local(1, "one", None), book(&known), limits());
        let hearsay = Hearsay::new(peers, Vec::new());
        assert!(!hearsay.is_voter(seven), "nobody has been asked");
        until("it is heard", || hearsay.is_voter(seven)).await;
        assert!(!hearsay.is_voter(NodeId::new(8)));

        // All that it knew are gone.
        let peers = Peers::new(local(3, "three", None), book(&[]), limits());
        let hearsay = Hearsay::new(Arc::clone(&peers), servers.to_vec());
        assert!(!hearsay.is_voter(seven));
        until("it is in the book", || peers.addresses().is_voter(seven)).await;
    }
}
