//! A leader's lease, giving leadership up, and standing for it.
//!
//! A leader holds its lease while a majority of its voters is trusted
//! ([`crate::failure_detector`]) and each of those has *confirmed* it in the session: it answered,
//! as a follower of this term, something that was sent to it in this group after the session began.
//! From then on a voter leaves this leader only by a vote that breaks its promise, or ends the
//! session, or with this leader's consent.
//!
//! Consent is final within a term: a leader that has given up never holds a lease again until it
//! is elected anew, even if nobody took over. It goes on replicating meanwhile, which needs no
//! lease.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use odradek_protocol::ids::{LeaderEpoch, NodeId};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::error::RaftError;
use crate::group::Group;
use crate::liveness::Liveness;
use crate::network::{Link, NetworkError};
use crate::rpc::{TransferReply, TransferRequest, VoteReply, VoteRequest};
use crate::types::{Vote, epoch_of, node_id, raft_id};

/// How long a leadership may take to be handed over, in all.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before the next attempt.
const TRANSFER_RETRY: Duration = Duration::from_millis(20);

/// What a replica knows beyond its log of who may lead.
#[derive(Default)]
pub(crate) struct LeaseState {
    /// One more than the last term whose leader is known to have given up.
    given_up: AtomicU64,
    /// For each replica the term, and the time of sending, of the newest message that it has
    /// answered as a follower of this leader.
    confirmed: Mutex<HashMap<NodeId, (u64, Instant)>>,
}

impl LeaseState {
    pub(crate) fn give_up(&self, term: u64) {
        self.given_up.fetch_max(term + 1, Ordering::AcqRel);
    }

    pub(crate) fn is_given_up(&self, term: u64) -> bool {
        self.given_up.load(Ordering::Acquire) == term + 1
    }

    /// A message that was sent at `sent` by the leader of `term` has been followed.
    pub(crate) fn confirm(&self, by: NodeId, term: u64, sent: Instant) {
        let mut confirmed = self.confirmed.lock();
        let entry = confirmed.entry(by).or_insert((term, sent));
        *entry = (*entry).max((term, sent));
    }

    /// Whether that replica has answered the leader of that term, as far as this process knows.
    pub(crate) fn has_answered(&self, node: NodeId, term: u64) -> bool {
        let confirmed = self.confirmed.lock();
        confirmed.get(&node).is_some_and(|(of, _)| *of == term)
    }

    fn is_confirmed(&self, by: NodeId, term: u64, since: Instant) -> bool {
        self.confirmed
            .lock()
            .get(&by)
            .is_some_and(|(of, sent)| *of == term && *sent > since)
    }
}

/// Which leader a replica follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// It is the leader of this term itself.
    Leads(u64),
    /// It has followed the leader of this term, and promises concern that one.
    Follows(u64, NodeId),
    /// None: it has last voted in an election of which it does not know the outcome.
    None,
}

/// A group takes no batch while its leadership is handed over. The end of that must not be missed, though whoever wanted
/// it may have gone: a connection that is lost takes what was asked for on it along.
struct Paused<'a> {
    group: &'a Group,
    term: u64,
}

impl<'a> Paused<'a> {
    fn begin(group: &'a Group, term: u64) -> Self {
        group.shared.pause(true);
        Self { group, term }
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        let (group, term) = (self.group, self.term);
        group.shared.pause(false);
        let leads = matches!(group.shared.known(), Known::Leads(known) if known == term);
        if leads
            && group.is_given_up(term)
            && let Some(liveness) = &group.liveness
        {
            liveness.agenda.given_up(group.key(), term);
        }
    }
}

impl Group {
    /// Whether a write or a read that this node answers as the leader is still its to answer: no
    /// other node can have been elected yet. To be asked after the answer has been made and before
    /// it leaves, so that a process that was stopped in between stays silent. That the answer is
    /// of the term that holds the lease, this does not say: [`Group::holds_lease_in`].
    ///
    /// The only voter of a group always holds the lease. Without a failure detector
    /// ([`crate::RaftNodeOptions::probes`]) nobody else does.
    pub fn holds_lease(&self) -> bool {
        self.lease_term().is_some()
    }

    /// [`Group::holds_lease`], for an answer that was begun when this node was the ready leader of
    /// `epoch`: false as well if that term is over, even where this node has been elected again.
    /// Others may have led in between, and what was read meanwhile may lack what they acknowledged.
    pub fn holds_lease_in(&self, epoch: LeaderEpoch) -> bool {
        self.lease_term()
            .is_some_and(|term| epoch_of(term) == epoch)
    }

    /// The term in which this node holds the lease.
    fn lease_term(&self) -> Option<u64> {
        let membership = self.core.members();
        let Known::Leads(term) = self.shared.known() else {
            return None;
        };
        let until = if membership.voters.len() > 1 {
            Some(self.trusted_until(self.liveness.as_deref()?, term, &membership)?)
        } else if membership.voters.contains(&self.node) {
            None
        } else {
            return None;
        };
        // Consent is looked at after trust, and the time last: a voter that was given consent may
        // have voted while its promise still looked good.
        let holds =
            self.shared.has_not_given_up(term) && until.is_none_or(|until| Instant::now() < until);
        holds.then_some(term)
    }

    /// Until when a majority of the voters is trusted and has confirmed.
    fn trusted_until(
        &self,
        liveness: &Liveness,
        term: u64,
        membership: &crate::GroupMembership,
    ) -> Option<Instant> {
        let trusted: HashMap<NodeId, Instant> = liveness
            .trust(&membership.voters)
            .into_iter()
            .filter(|(node, trust)| self.shared.lease.is_confirmed(*node, term, trust.since))
            .map(|(node, trust)| (node, trust.until))
            .collect();
        membership.quorum_until(|voter| {
            if voter == self.node {
                Some(None)
            } else {
                trusted.get(&voter).map(|until| Some(*until))
            }
        })
    }

    /// Whether the lease is held, and by whose promises, for people.
    pub(crate) fn describe_lease(&self) -> String {
        let voters = self.membership().voters;
        let trust = match &self.liveness {
            Some(liveness) => liveness.trust(&voters),
            None => Vec::new(),
        };
        let mut text = format!(
            "lease held: {}, {:?}, given up: {}",
            self.holds_lease(),
            self.shared.known(),
            matches!(self.shared.known(), Known::Leads(term) if self.is_given_up(term)),
        );
        if let Known::Leads(term) = self.shared.known() {
            for (node, trust) in trust {
                let confirmed = self.shared.lease.is_confirmed(node, term, trust.since);
                text += &format!(", promised by {node} (confirmed: {confirmed})");
            }
        }
        text
    }

    /// Whether a voter that is trusted has not yet confirmed this leader in its session.
    pub(crate) fn awaits_confirmation(&self, liveness: &Liveness) -> bool {
        let Known::Leads(term) = self.shared.known() else {
            return false;
        };
        let members = self.core.members();
        liveness
            .trust(&members.voters)
            .iter()
            .any(|(node, trust)| !self.shared.lease.is_confirmed(*node, term, trust.since))
    }

    pub(crate) fn is_given_up(&self, term: u64) -> bool {
        self.shared.lease.is_given_up(term)
    }

    /// Whether the leader that this replica has followed is known to have given up.
    pub(crate) fn follows_nobody(&self) -> bool {
        matches!(self.shared.known(), Known::Follows(term, _) if self.is_given_up(term))
    }

    /// Whether somebody has been elected, or stood for election, after that term.
    pub(crate) fn has_moved_beyond(&self, term: u64) -> bool {
        self.core
            .votes
            .get(self.key())
            .is_some_and(|vote| vote.leader_id.term > term)
    }

    /// The voters, those that the partition prefers as leaders first.
    pub(crate) fn voters_by_preference(&self, voters: &BTreeSet<NodeId>) -> Vec<NodeId> {
        let preferred = self.preference.lock();
        let mut order: Vec<NodeId> = preferred
            .iter()
            .filter(|node| voters.contains(node))
            .copied()
            .collect();
        order.extend(voters.iter().filter(|node| !preferred.contains(node)));
        order
    }

    /// In which order the voters stand for election when there is no leader: at first that in
    /// which they were given when the group was opened.
    pub fn set_preference(&self, order: Vec<NodeId>) {
        *self.preference.lock() = order;
    }

    /// Stands for election unless that breaks a promise.
    pub(crate) async fn stand_for_election(&self, liveness: &Liveness) {
        if !self.may_stand().await {
            return;
        }
        let followed = match self.shared.known() {
            Known::Leads(_) => return,
            Known::None => None,
            Known::Follows(term, leader) => Some((term, leader)),
        };
        let _acting = match followed {
            Some((term, leader)) => {
                let Some(acting) = liveness.may_act(&self.shared, leader, term).await else {
                    return;
                };
                self.lift_lease(term, leader).await;
                acting
            }
            None => None,
        };
        // A group that has stopped has said so.
        let _ = self.raft().trigger().elect(true).await;
    }

    /// Has openraft forget its own lease for the leader of that term, and only for that one.
    async fn lift_lease(&self, term: u64, leader: NodeId) {
        let vote = Vote::new_committed(term, raft_id(leader));
        let to_nobody_here = TransferRequest::new(vote, raft_id(leader), None);
        let _ = self.raft().handle_transfer_leader(to_nobody_here).await;
    }

    /// Answers a candidate. `None` when the group has stopped.
    pub(crate) async fn answer_candidate(
        &self,
        mut request: VoteRequest,
        pre_vote: bool,
    ) -> Option<VoteReply> {
        let candidate = node_id(request.vote.leader_id.voted_for);
        let mut _acting = None;
        if let Some(liveness) = &self.liveness {
            request.leadership_transfer = false;
            match self.shared.known() {
                Known::None => {}
                // openraft asks whether a majority has lately followed this leader, which is
                // beside the point once it has given up.
                Known::Leads(term) => request.leadership_transfer = self.is_given_up(term),
                Known::Follows(term, leader) => {
                    if leader != candidate {
                        match liveness.may_act(&self.shared, leader, term).await {
                            Some(acting) => _acting = acting,
                            None => return Some(self.refuse_vote()),
                        }
                    }
                    self.lift_lease(term, leader).await;
                }
            }
        }
        let reply = if pre_vote {
            self.raft().pre_vote(request).await
        } else {
            self.raft().vote(request).await
        };
        reply.ok()
    }

    pub(crate) fn refuse_vote(&self) -> VoteReply {
        let vote = self.core.votes.get(self.key());
        let vote = vote.unwrap_or_else(|| Vote::new(0, raft_id(self.node)));
        VoteReply::new(vote, self.core.last_log_id(), false)
    }

    /// Answers a leader that asks to be followed by `request.to_node_id()`.
    pub(crate) async fn answer_transfer(&self, request: TransferRequest) -> Option<TransferReply> {
        let from = *request.from_leader();
        if from.committed {
            self.shared.learn_given_up(from.leader_id.term);
        }
        self.raft().handle_transfer_leader(request).await.ok()
    }

    /// Whether this node leads the group in that term no more, and so never will again. A leader
    /// that is handing its leadership over consents to whoever asks.
    pub(crate) fn consents(&self, term: u64) -> bool {
        self.shared.consents(term)
    }

    /// Hands leadership to another voter. No batch is taken meanwhile. Fails if the other does not
    /// answer or does not catch up within two seconds. If it had been asked by then, this node goes
    /// on without a lease and offers its leadership to the other voters.
    pub async fn transfer_leader(&self, to: NodeId) -> Result<(), RaftError> {
        let Known::Leads(term) = self.shared.known() else {
            return Err(self.not_leading());
        };
        if !self.leadership().is_ready_leader() {
            return Err(self.not_leading());
        }
        if to == self.node {
            return Ok(());
        }
        if !self.core.members().voters.contains(&to) || !self.is_reachable(to) {
            return Err(RaftError::TransferFailed { to });
        }
        let _paused = Paused::begin(self, term);
        tokio::time::timeout(TRANSFER_TIMEOUT, self.ask_to_lead(to, term))
            .await
            .unwrap_or(Err(RaftError::TransferFailed { to }))
    }

    /// Asks the other node itself. openraft's own way to do this would first have this node refuse
    /// writes, and if the other is dead, it would refuse them for ever.
    async fn ask_to_lead(&self, to: NodeId, term: u64) -> Result<(), RaftError> {
        let mut leadership = self.subscribe_leadership();
        while leadership.borrow_and_update().is_ready_leader() {
            self.send_transfer(to, term)
                .await
                .map_err(|_| RaftError::TransferFailed { to })?
                .ok();
            // It now stands for election, or lacks entries that are on their way.
            let _ = tokio::time::timeout(TRANSFER_RETRY, leadership.changed()).await;
        }
        Ok(())
    }

    /// Offers a leadership that this node has given up. `None` if the other does not answer.
    pub(crate) async fn offer_leadership(&self, to: NodeId, term: u64) -> Option<TransferReply> {
        let reply = tokio::time::timeout(TRANSFER_TIMEOUT, self.send_transfer(to, term)).await;
        reply.ok()?.ok()
    }

    /// Leads no more in that term.
    pub(crate) async fn cease_to_lead(&self, term: u64) {
        self.shared.cease(term);
        let vote = Vote::new_committed(term, raft_id(self.node));
        // Fails when the group has stopped.
        let _ = self
            .raft()
            .trigger()
            .refresh_server_state(Some(vote), None)
            .await;
    }

    async fn send_transfer(&self, to: NodeId, term: u64) -> Result<TransferReply, NetworkError> {
        let link = Link {
            from: self.node,
            to,
            group: self.key(),
        };
        // Whoever is asked takes it as consent, whether or not its answer comes back.
        self.shared.lease.give_up(term);
        let vote = Vote::new_committed(term, raft_id(self.node));
        // One whose disk has failed cannot send what the other lacks.
        let last = match self.offline_cause() {
            Some(_) => None,
            None => self.core.last_log_id(),
        };
        self.network
            .transfer_leader(link, TransferRequest::new(vote, raft_id(to), last))
            .await
    }

    /// Goes on replicating to a node without waiting for the end of a pause.
    pub(crate) fn resume_replication(&self, to: NodeId) {
        let raft = self.raft().clone();
        tokio::spawn(async move {
            // Fails when the group has stopped.
            let _ = raft.trigger().reset_backoff([raft_id(to)]).await;
        });
    }
}
