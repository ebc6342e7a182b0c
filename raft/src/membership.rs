//! Who takes part in a group, and changing that.
//!
//! Voters are changed by joint consensus: first the old and the new voters decide together, then
//! the new ones alone. Every step is an entry of the log, so whoever leads next finds the change
//! where it was left; asking for the same voters again finishes it.
//!
//! A new voter has to be a learner first. How far it should have caught up before it becomes a
//! voter is the caller's to decide, by [`Group::replication`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use odradek_protocol::ids::{NodeId, Offset};
use openraft::ChangeMembers;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError};
use tokio::time::Instant;

use crate::error::RaftError;
use crate::group::Group;
use crate::types::{LogId, Membership, RaftIndex, TypeConfig, node_id, raft_id};

/// Pause before asking again while another change is being committed.
const CHANGE_RETRY: Duration = Duration::from_millis(20);
/// How many ends of the log are remembered, to tell how long ago a replica had all of it.
const SAMPLES_MAX: usize = 64;
/// Ends of the log are remembered at most this often.
const SAMPLE_EVERY: Duration = Duration::from_millis(50);

/// Who takes part in a group, as its newest entry about that says. While that entry is not
/// committed it may still be undone by another leader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupMembership {
    /// Everybody who has a vote.
    pub voters: BTreeSet<NodeId>,
    /// Everybody who has the log without a vote.
    pub learners: BTreeSet<NodeId>,
    /// While voters are being changed: those who will have a vote afterwards.
    pub joint: Option<BTreeSet<NodeId>>,
    /// Whether the entry that says so is known to be committed.
    pub committed: bool,
    /// The sets of voters of each of which a majority decides.
    configs: Vec<BTreeSet<NodeId>>,
}

impl GroupMembership {
    pub(crate) fn of(membership: &Membership, committed: bool) -> Self {
        let configs: Vec<BTreeSet<NodeId>> = membership
            .get_joint_config()
            .iter()
            .map(|voters| voters.iter().copied().map(node_id).collect())
            .collect();
        let joint = match configs.as_slice() {
            [_, .., last] => Some(last.clone()),
            _ => None,
        };
        Self {
            voters: membership.voter_ids().map(node_id).collect(),
            learners: membership.learner_ids().map(node_id).collect(),
            joint,
            committed,
            configs,
        }
    }

    /// Whether a node takes part.
    pub fn has(&self, node: NodeId) -> bool {
        self.voters.contains(&node) || self.learners.contains(&node)
    }

    /// The sets of voters of each of which a majority decides.
    pub(crate) fn configs(&self) -> &[BTreeSet<NodeId>] {
        &self.configs
    }

    /// Whether those voters of whom `counts` is true can decide.
    pub(crate) fn is_quorum(&self, counts: impl Fn(NodeId) -> bool) -> bool {
        !self.configs.is_empty()
            && self.configs.iter().all(|voters| {
                let counted = voters.iter().filter(|voter| counts(**voter)).count();
                counted > voters.len() / 2
            })
    }

    /// Whether no majority forms without this node, and none will before it has heard of other voters:
    /// it is one of at most two that decide in the end. While voters are being changed, those who will
    /// have a vote finish that among themselves.
    pub(crate) fn needs(&self, node: NodeId) -> bool {
        let last = self.configs.last();
        last.is_some_and(|voters| voters.contains(&node) && voters.len() <= 2)
    }

    /// Until when a majority lasts, if there is one now: `until` says of each voter whether it
    /// counts, and until when, `None` being for ever.
    pub(crate) fn quorum_until(
        &self,
        until: impl Fn(NodeId) -> Option<Option<Instant>>,
    ) -> Option<Instant> {
        let mut ends = Vec::with_capacity(self.configs.len());
        for voters in &self.configs {
            let mut counted: Vec<_> = voters.iter().filter_map(|voter| until(*voter)).collect();
            // Those that last longest first, and of them as many as are needed.
            counted.sort_by_key(|end| (end.is_some(), std::cmp::Reverse(*end)));
            ends.push(*counted.get(voters.len() / 2)?);
        }
        ends.into_iter().flatten().min()
    }

    /// Whether these voters, and no others, decide, and it is known to be committed.
    pub fn is_settled_on(&self, voters: &BTreeSet<NodeId>) -> bool {
        self.committed && self.joint.is_none() && self.voters == *voters
    }
}

/// What a change of the members comes to next.
enum Next {
    /// Nothing: it is done.
    Done,
    /// Nothing yet.
    Wait,
    /// This.
    Change(ChangeMembers<u64, ()>),
}

/// How far one replica is, as its leader knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaProgress {
    /// The replica.
    pub node: NodeId,
    /// Whether it has a vote.
    pub voter: bool,
    /// Whether what was stored on it is still there, as far as the leader knows. One that has lost its
    /// log does not count as whole before it has been given again what was committed then.
    pub whole: bool,
    /// End of the log that is known to be durable on it.
    pub matched: Offset,
    /// When it last had all that the leader had, as far as the leader knows. The leader's
    /// monotonic clock. Of one that is not whole this was before it lost its log.
    pub last_caught_up: Instant,
}

/// What a leader remembers to tell when its replicas had the whole log. The past of an earlier
/// term does not count.
#[derive(Default)]
pub(crate) struct CatchUp {
    term: u64,
    /// Ends of the log, oldest first.
    samples: VecDeque<(Instant, Option<LogId>)>,
    caught_up: BTreeMap<u64, Instant>,
}

impl CatchUp {
    fn enter_term(&mut self, term: u64) {
        if self.term != term {
            *self = Self {
                term,
                ..Self::default()
            };
        }
    }

    fn sample(&mut self, now: Instant, last: Option<LogId>) {
        let due = self
            .samples
            .back()
            .is_none_or(|(at, _)| now.duration_since(*at) >= SAMPLE_EVERY);
        if due {
            self.samples.push_back((now, last));
        }
        if self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
    }

    /// When a replica that matches up to `matched` last had everything.
    fn caught_up(
        &mut self,
        node: u64,
        matched: Option<LogId>,
        last: Option<LogId>,
        reachable: bool,
        now: Instant,
    ) -> Instant {
        let known = self
            .caught_up
            .entry(node)
            // A leader gives everybody the benefit of the doubt, as Kafka's does.
            .or_insert(now);
        if matched >= last {
            // One that does not answer may be anywhere by now.
            if reachable {
                *known = now;
            }
        } else if let Some((at, _)) = self.samples.iter().rev().find(|(_, end)| *end <= matched) {
            *known = (*known).max(*at);
        }
        *known
    }
}

impl Group {
    /// Who takes part in the group, as this replica knows it.
    pub fn membership(&self) -> GroupMembership {
        GroupMembership::clone(&self.core.members())
    }

    /// Who has a vote, as far as nothing undoes it: by the newest set of voters that decides alone and is
    /// known to be committed. While voters are being changed those of before may still be needed, and whoever
    /// is to join counts for nothing without them; so it is these that are told until the change is complete.
    pub fn settled_voters(&self) -> BTreeSet<NodeId> {
        let (newest, before) = self.core.memberships();
        let in_force = match newest.committed || newest.joint.is_some() {
            true => newest,
            false => before,
        };
        in_force.configs.into_iter().next().unwrap_or_default()
    }

    /// Has a node follow the log without a vote. Returns once that is committed; the node may be
    /// far behind then, or away. Nothing happens if it takes part already.
    pub async fn add_learner(&self, node: NodeId) -> Result<(), RaftError> {
        let add = ChangeMembers::AddNodes(BTreeMap::from([(raft_id(node), ())]));
        self.change(|now| {
            let there = now.voters.contains(&node) || now.learners.contains(&node);
            Ok(match there && now.committed {
                true => Next::Done,
                false => Next::Change(add.clone()),
            })
        })
        .await
    }

    /// Has a learner follow the log no more. Returns once that is committed. Nothing happens if it
    /// does not take part; a voter is refused.
    pub async fn remove_learner(&self, node: NodeId) -> Result<(), RaftError> {
        if self.membership().voters.contains(&node) {
            return Err(RaftError::MembershipRefused(format!(
                "node {node} is a voter; change the voters first"
            )));
        }
        let remove = ChangeMembers::RemoveNodes(BTreeSet::from([raft_id(node)]));
        self.change(|now| {
            let gone = !now.learners.contains(&node);
            Ok(match gone && now.committed {
                true => Next::Done,
                false => Next::Change(remove.clone()),
            })
        })
        .await
    }

    /// Has these nodes decide, and nobody else, by joint consensus. Those that are not voters yet
    /// have to be learners; voters that are left out take no part any more afterwards, and if this
    /// leader is one of them it steps down. Returns once the last step is committed.
    ///
    /// May be called again at any time, on whoever leads: a change that was interrupted by a crash
    /// or a new leader goes on from where it is, and a different set of voters takes its place.
    /// Without a majority of both old and new voters it waits; dropping the future leaves the
    /// change where it is. It also waits for those who become voters to hold something: that of such
    /// a replica nobody counts on more than it has, is then sure (module `emptied`).
    pub async fn change_voters(&self, voters: BTreeSet<NodeId>) -> Result<(), RaftError> {
        if voters.is_empty() {
            return Err(RaftError::MembershipRefused("no voters".into()));
        }
        let ids: BTreeSet<u64> = voters.iter().copied().map(raft_id).collect();
        self.change(|now| {
            if now.is_settled_on(&voters) {
                return Ok(Next::Done);
            }
            if let Some(node) = self.lost_replicas().intersection(&voters).next() {
                return Err(RaftError::MembershipRefused(format!(
                    "node {node} has lost its log and has to be taken out first"
                )));
            }
            // A change in progress that others take the place of is finished first where neither keeps this leader: openraft
            // goes from one pair of sets to the next, and this one would be left out before the last step.
            let others = |joint: &&BTreeSet<NodeId>| {
                **joint != voters && !joint.contains(&self.node) && !voters.contains(&self.node)
            };
            if let Some(joint) = now.joint.as_ref().filter(others) {
                let joint = joint.iter().copied().map(raft_id).collect();
                return Ok(Next::Change(ChangeMembers::ReplaceAllVoters(joint)));
            }
            let holds_something = self.holders();
            let coming = voters.difference(&now.voters);
            Ok(
                match coming.copied().all(|node| holds_something.contains(&node)) {
                    true => Next::Change(ChangeMembers::ReplaceAllVoters(ids.clone())),
                    false => Next::Wait,
                },
            )
        })
        .await
    }

    /// Replicas that have said in this term that they hold some entry.
    fn holders(&self) -> BTreeSet<NodeId> {
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        let replication = metrics.replication.iter().flatten();
        replication
            .filter(|(_, matched)| matched.is_some())
            .map(|(id, _)| node_id(*id))
            .collect()
    }

    /// Asks for the next step until there is none.
    async fn change(
        &self,
        next: impl Fn(&GroupMembership) -> Result<Next, RaftError>,
    ) -> Result<(), RaftError> {
        loop {
            // Looked at first: one that has been left out leads no more, but its change is done.
            let leads = self.leadership().is_ready_leader();
            let membership = self.membership();
            let next = next(&membership)?;
            if matches!(next, Next::Done) {
                return Ok(());
            }
            if !leads || !membership.voters.contains(&self.node) {
                return Err(self.not_leading());
            }
            let Next::Change(step) = next else {
                tokio::time::sleep(CHANGE_RETRY).await;
                continue;
            };
            let keeps_left_out = !matches!(step, ChangeMembers::ReplaceAllVoters(_));
            match self.raft().change_membership(step, keeps_left_out).await {
                Ok(_) => {}
                Err(openraft::errors::RaftError::Fatal(fatal)) => {
                    return Err(RaftError::Stopped(fatal.to_string().into()));
                }
                Err(openraft::errors::RaftError::APIError(error)) => self.judge(error)?,
            }
            // Either it is done, which the next look at the membership says, or another change
            // has to be committed first.
            tokio::time::sleep(CHANGE_RETRY).await;
        }
    }

    /// What a refusal means. Those that pass by themselves are no error.
    fn judge(&self, error: ClientWriteError<TypeConfig>) -> Result<(), RaftError> {
        match error {
            ClientWriteError::ForwardToLeader(_) | ClientWriteError::LogEntryDiscarded(_) => {
                Err(self.not_leading())
            }
            ClientWriteError::ChangeMembershipError(
                ChangeMembershipError::InProgress(_)
                | ChangeMembershipError::UncommittedLeaderLog(_),
            )
            | ClientWriteError::PreconditionFailed(_) => Ok(()),
            ClientWriteError::ChangeMembershipError(
                refused @ (ChangeMembershipError::EmptyMembership(_)
                | ChangeMembershipError::LearnerNotFound(_)
                | ChangeMembershipError::UnsupportedMembershipTransition(_)
                | ChangeMembershipError::NodeMetadataChanged(_)),
            ) => Err(RaftError::MembershipRefused(refused.to_string())),
        }
    }

    /// How far every replica is. Only a leader knows; elsewhere the list is empty. To be asked for
    /// now and then: how long ago a replica had everything is told from what was seen here before.
    pub fn replication(&self) -> Result<Vec<ReplicaProgress>, RaftError> {
        let metrics = self.raft().metrics().borrow_watched().clone();
        let Some(replication) = metrics.replication else {
            return Ok(Vec::new());
        };
        let last = self.core.last_log_id();
        let now = Instant::now();
        let incomplete = self.incomplete_replicas();
        let membership = metrics.membership_config.membership();
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        let mut found = Vec::with_capacity(replication.len());
        let mut catch_up = self.catch_up.lock();
        catch_up.enter_term(metrics.current_term);
        catch_up.sample(now, last);
        for (id, matched) in replication {
            let node = node_id(id);
            let whole = !incomplete.contains(&node);
            // openraft finds out with its next answer.
            let matched = matched.filter(|_| whole);
            let reachable = id == metrics.id || self.is_reachable(node);
            let last_caught_up = catch_up.caught_up(id, matched, last, reachable, now);
            found.push((node, voters.contains(&id), whole, matched, last_caught_up));
        }
        drop(catch_up);
        found
            .into_iter()
            .map(|(node, voter, whole, matched, last_caught_up)| {
                let next = matched.map_or(RaftIndex::ZERO, |id| RaftIndex::new(id.index()).next());
                Ok(ReplicaProgress {
                    node,
                    voter,
                    whole,
                    matched: self.core.end_before(next)?,
                    last_caught_up,
                })
            })
            .collect()
    }

    /// Has this node stand for election, if it has a vote and no leader is known to be at work.
    /// [`Group::subscribe_leadership`] tells how it went.
    pub async fn elect(&self) -> Result<(), RaftError> {
        if !self.may_stand().await {
            return Ok(());
        }
        if let Some(liveness) = &self.liveness {
            self.stand_for_election(liveness).await;
            return Ok(());
        }
        self.raft()
            .trigger()
            .elect(true)
            .await
            .map_err(|fatal| RaftError::Stopped(fatal.to_string().into()))
    }
}
