//! When this node stands for election, and when it gives its vote.
//!
//! openraft's own clocks are far too slow to notice a dead leader ([`crate::node::Timing`]); the
//! failure detector notices, and what follows is here:
//!
//! - A group without a leader at work is *unsettled*. Its voters that answer take turns in standing
//!   for election, the preferred one first, so that two rarely stand at once. They ask for the
//!   votes in advance (pre-vote): a node that is cut off from a leader that the others follow
//!   changes nothing.
//! - A vote is given, and an election stood for, only if that breaks no promise to the leader that
//!   this replica follows ([`crate::failure_detector`]), or if that leader itself says that it has
//!   given its leadership up. openraft's own lease, which lasts as long as its slow clocks, is
//!   lifted first, for exactly the leader that was looked at.
//! - A leadership that was *given up* without anybody taking it (the node asked to lead fell
//!   silent, or this node's disk failed) is offered to the other voters in turn.
//! - A leader has its lease *confirmed*: by an answer to something it sent in its group after the
//!   session with the voter began.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use odradek_protocol::ids::{LeaderEpoch, NodeId};
use openraft::raft::TransferLeaderError;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::group::Group;
use crate::lease::Known;
use crate::liveness::{Acting, LeadershipQuery, Liveness};
use crate::node::RaftNode;
use crate::observer::Leadership;
use crate::shared::Shared;
use crate::types::GroupKey;

/// Between the turns of two candidates.
const TURN: Duration = Duration::from_millis(250);
/// Longest pause between two turns, once nobody has succeeded for long.
const TURN_MAX: Duration = Duration::from_secs(4);
/// After this a leader looks for the first time whether its lease is confirmed.
const CONFIRM_AFTER: Duration = Duration::from_millis(50);
/// Longest pause between two heartbeats that are to confirm a lease.
const CONFIRM_MAX: Duration = Duration::from_secs(2);
/// Groups that are looked after at the same time.
const CONCURRENCY: usize = 128;
/// How often each voter is offered a leadership that was given up.
const OFFERS_EACH: u32 = 8;

/// Groups that need looking after, each with when.
#[derive(Default)]
pub(crate) struct Agenda {
    lists: Mutex<Lists>,
    wake: Notify,
}

#[derive(Default)]
struct Lists {
    unsettled: HashMap<GroupKey, Unsettled>,
    given_up: HashMap<GroupKey, GivenUp>,
    unconfirmed: HashMap<GroupKey, Unconfirmed>,
}

#[derive(Clone, Copy)]
struct Unsettled {
    due: Instant,
    turns: u32,
    /// The leader of this epoch leads no more although its node answers: it has been restarted.
    stale: Option<LeaderEpoch>,
    /// This node led last, and so most likely has the whole log.
    led_here: bool,
    /// If the leader answers, it is to be asked whether it leads: it is known from before this process
    /// started, or was dead meanwhile.
    asks_leader: bool,
}

#[derive(Clone)]
struct GivenUp {
    due: Instant,
    offers: u32,
    term: u64,
    /// Voters that stand for election, or have been in a later one, and follow this leader no more.
    gone_on: BTreeSet<NodeId>,
}

#[derive(Clone, Copy)]
struct Unconfirmed {
    due: Instant,
    pause: Duration,
}

enum Task {
    Settle(GroupKey, Unsettled),
    Offer(GroupKey, GivenUp),
    Confirm(GroupKey),
}

impl Agenda {
    /// Which leader a group has, or what is known of that, has changed.
    pub(crate) fn leadership_changed(&self, key: GroupKey, leadership: Leadership) {
        let now = Instant::now();
        let mut lists = self.lists.lock();
        match leadership {
            Leadership::Leader { .. } => {
                lists.unsettled.remove(&key);
                let due = now + CONFIRM_AFTER;
                lists.unconfirmed.insert(
                    key,
                    Unconfirmed {
                        due,
                        pause: CONFIRM_AFTER,
                    },
                );
            }
            Leadership::Follower {
                leader: Some(_), ..
            } => {
                lists.unsettled.remove(&key);
                return;
            }
            Leadership::Unknown | Leadership::Follower { leader: None, .. } => {
                // Somebody stands for election, and is given a turn's time.
                lists.unsettled.insert(
                    key,
                    Unsettled {
                        due: now + TURN,
                        turns: 0,
                        stale: None,
                        led_here: false,
                        asks_leader: false,
                    },
                );
            }
        }
        drop(lists);
        self.wake.notify_one();
    }

    /// A group has been opened. `led_here` says that this node was its leader when last heard of,
    /// `is_new` that it has never had one.
    pub(crate) fn opened(&self, group: &Group, liveness: &Liveness, led_here: bool, is_new: bool) {
        let (wait, asks_leader) = match group.leadership() {
            Leadership::Leader { .. } => return,
            Leadership::Follower {
                leader: Some(leader),
                ..
            } if liveness.is_alive(leader) => (TURN, true),
            // The preferred leader of a new group stands at once, without the agenda.
            _ if is_new => (TURN, false),
            _ => (Duration::ZERO, false),
        };
        self.lists.lock().unsettled.insert(
            group.key(),
            Unsettled {
                due: Instant::now() + wait,
                turns: 0,
                stale: None,
                led_here,
                asks_leader,
            },
        );
        self.wake.notify_one();
    }

    /// This node has ceased to lead a group in `term` and nobody has taken over.
    pub(crate) fn given_up(&self, key: GroupKey, term: u64) {
        self.lists.lock().given_up.insert(
            key,
            GivenUp {
                due: Instant::now(),
                offers: 0,
                term,
                gone_on: BTreeSet::new(),
            },
        );
        self.wake.notify_one();
    }

    /// The leader that this replica follows has said that it leads no more. Whoever it asked to
    /// take over is given a turn's time.
    pub(crate) fn leader_gave_up(&self, key: GroupKey) {
        let due = Instant::now() + TURN;
        self.lists.lock().unsettled.entry(key).or_insert(Unsettled {
            due,
            turns: 0,
            stale: None,
            led_here: false,
            asks_leader: false,
        });
        self.wake.notify_one();
    }

    /// `peer` is dead, or has been restarted: what it led is without a leader.
    pub(crate) fn leader_is_gone(&self, node: &RaftNode, peer: NodeId, restarted: bool) {
        let due = Instant::now();
        let mut orphans = Vec::new();
        for group in node.groups() {
            if let Leadership::Follower {
                leader: Some(leader),
                epoch,
            } = group.leadership()
                && leader == peer
            {
                orphans.push((group.key(), restarted.then_some(epoch)));
            }
        }
        let mut lists = self.lists.lock();
        for (key, stale) in orphans {
            lists.unsettled.insert(
                key,
                Unsettled {
                    due,
                    turns: 0,
                    stale,
                    led_here: false,
                    // It may come back, as another process that was never known as one.
                    asks_leader: true,
                },
            );
        }
        drop(lists);
        self.wake.notify_one();
    }

    /// A session with `peer` begins: the leaders here have it confirm their leases, and go on
    /// replicating to it at once.
    pub(crate) fn session_began(&self, node: &RaftNode, peer: NodeId) {
        let due = Instant::now();
        let mut led = Vec::new();
        for group in node.groups() {
            if matches!(group.leadership(), Leadership::Leader { .. })
                && group.membership().has(peer)
            {
                group.resume_replication(peer);
                led.push(group.key());
            }
        }
        let mut lists = self.lists.lock();
        for key in led {
            let pause = CONFIRM_AFTER;
            lists.unconfirmed.insert(key, Unconfirmed { due, pause });
        }
        drop(lists);
        self.wake.notify_one();
    }

    pub(crate) fn wake_up(&self) {
        self.wake.notify_one();
    }

    /// Takes out what is due, and says when the next is. What is taken is put back with a later
    /// time right away, and removed when it turns out to be done.
    fn take_due(&self, now: Instant) -> (Vec<Task>, Option<Instant>) {
        let mut tasks = Vec::new();
        let mut next: Option<Instant> = None;
        let mut lists = self.lists.lock();
        for (key, entry) in &mut lists.unsettled {
            if entry.due <= now {
                tasks.push(Task::Settle(*key, *entry));
                entry.turns += 1;
                entry.due = now + turn_pause(entry.turns);
            }
            next = Some(next.map_or(entry.due, |next| next.min(entry.due)));
        }
        for (key, entry) in &mut lists.given_up {
            if entry.due <= now {
                tasks.push(Task::Offer(*key, entry.clone()));
                entry.offers += 1;
                entry.due = now + turn_pause(entry.offers);
            }
            next = Some(next.map_or(entry.due, |next| next.min(entry.due)));
        }
        for (key, entry) in &mut lists.unconfirmed {
            if entry.due <= now {
                tasks.push(Task::Confirm(*key));
                entry.due = now + entry.pause;
                entry.pause = (entry.pause * 2).min(CONFIRM_MAX);
            }
            next = Some(next.map_or(entry.due, |next| next.min(entry.due)));
        }
        (tasks, next)
    }
}

/// Pause after a turn: short while each of a few voters has had one or two.
fn turn_pause(turns: u32) -> Duration {
    let doublings = turns.saturating_sub(8).div_ceil(2).min(4);
    (TURN * (1 << doublings)).min(TURN_MAX)
}

/// Looks after the agenda until the node is gone.
pub(crate) async fn run(liveness: Arc<Liveness>, node: Weak<RaftNode>) {
    loop {
        let woken = liveness.agenda.wake.notified();
        let Some(alive) = node.upgrade().filter(|_| !liveness.is_stopped()) else {
            return;
        };
        let (tasks, next) = liveness.agenda.take_due(Instant::now());
        futures_util::stream::iter(tasks)
            .for_each_concurrent(CONCURRENCY, |task| work(&liveness, &alive, task))
            .await;
        drop(alive);
        match next {
            Some(next) => {
                let _ = tokio::time::timeout_at(next, woken).await;
            }
            None => woken.await,
        }
    }
}

async fn work(liveness: &Liveness, node: &RaftNode, task: Task) {
    match task {
        Task::Settle(key, entry) => {
            let settled = match node.group(key) {
                Some(group) => settle(liveness, &group, entry).await,
                None => true,
            };
            if settled {
                let mut lists = liveness.agenda.lists.lock();
                // Unless something has happened to it meanwhile.
                if lists
                    .unsettled
                    .get(&key)
                    .is_some_and(|now| now.turns == entry.turns + 1)
                {
                    lists.unsettled.remove(&key);
                }
            }
        }
        Task::Offer(key, entry) => {
            let term = entry.term;
            let offered = match node.group(key) {
                Some(group) => offer(liveness, &group, entry).await,
                None => Offered::Done,
            };
            let mut lists = liveness.agenda.lists.lock();
            match offered {
                Offered::InVain => {}
                Offered::GoneOn(voter) => {
                    let entry = lists.given_up.get_mut(&key);
                    if let Some(entry) = entry.filter(|entry| entry.term == term) {
                        entry.gone_on.insert(voter);
                    }
                }
                Offered::Done => {
                    let entry = lists.given_up.get(&key);
                    if entry.is_some_and(|entry| entry.term == term) {
                        lists.given_up.remove(&key);
                    }
                }
            }
        }
        Task::Confirm(key) => {
            let confirmed = match node.group(key) {
                Some(group) => confirm(liveness, &group).await,
                None => true,
            };
            if confirmed {
                liveness.agenda.lists.lock().unconfirmed.remove(&key);
            }
        }
    }
}

/// Takes this node's turn in an unsettled group, if it is its turn. Returns whether nothing is
/// left to be done.
async fn settle(liveness: &Liveness, group: &Group, entry: Unsettled) -> bool {
    let gone = match group.leadership() {
        Leadership::Leader { .. } => return true,
        Leadership::Follower {
            leader: Some(leader),
            epoch,
        } => {
            let leads = entry.stale != Some(epoch) && !group.follows_nobody();
            if leads && liveness.is_alive(leader) {
                if !entry.asks_leader {
                    return true;
                }
                match liveness.ask_leader(&group.shared, leader).await {
                    Some(true) => {}
                    Some(false) => return true,
                    None => return false,
                }
            }
            Some(leader)
        }
        Leadership::Follower { leader: None, .. } | Leadership::Unknown => None,
    };
    let membership = group.membership();
    let me = liveness.me;
    if !membership.voters.contains(&me) {
        return true;
    }
    let mut candidates: Vec<NodeId> = group.voters_by_preference(&membership.voters);
    candidates.retain(|voter| liveness.is_alive(*voter));
    let alive: BTreeSet<NodeId> = candidates.iter().copied().collect();
    if !membership.is_quorum(|voter| alive.contains(&voter)) {
        return false;
    }
    // Whoever led last has the log.
    let last = if entry.led_here { Some(me) } else { gone };
    if let Some(last) = last
        && let Some(at) = candidates.iter().position(|voter| *voter == last)
    {
        candidates[..=at].rotate_right(1);
    }
    let turn = entry.turns as usize % candidates.len().max(1);
    if candidates.get(turn) == Some(&me) {
        group.stand_for_election(liveness).await;
    }
    false
}

/// What came of an offer.
enum Offered {
    /// Nobody took it.
    InVain,
    /// This voter takes it, or has been in a later election. Others are still to hear of it.
    GoneOn(NodeId),
    /// There is nothing to offer any more, or nobody to offer it to.
    Done,
}

/// Offers a leadership that was given up.
///
/// A voter hears of the election in which another succeeds it. Who is no voter any more hears of one
/// at most if a candidate fails: one with an old log, that takes this node for a voter. So it goes on
/// until every voter has gone on; each is told so at the same time, and takes turns from then on.
async fn offer(liveness: &Liveness, group: &Group, entry: GivenUp) -> Offered {
    let voters = group.membership().voters;
    let has_vote = voters.contains(&liveness.me);
    if has_vote && group.has_moved_beyond(entry.term) {
        return Offered::Done;
    }
    if entry.offers >= OFFERS_EACH * voters.len() as u32 && group.offline_cause().is_some() {
        // Nothing is heard here of how it went.
        return Offered::Done;
    }
    let mut left = group.voters_by_preference(&voters);
    left.retain(|voter| *voter != liveness.me && !entry.gone_on.contains(voter));
    if left.is_empty() && !has_vote {
        return Offered::Done;
    }
    left.retain(|voter| liveness.is_alive(*voter));
    let turn = entry.offers as usize % left.len().max(1);
    let Some(to) = left.get(turn) else {
        return Offered::InVain;
    };
    let reply = group.offer_leadership(*to, entry.term).await;
    if has_vote {
        return Offered::InVain;
    }
    match reply {
        Some(Ok(())) => {
            group.cease_to_lead(entry.term).await;
            Offered::GoneOn(*to)
        }
        Some(Err(TransferLeaderError::VoteChanged { .. })) => Offered::GoneOn(*to),
        Some(Err(TransferLeaderError::LogNotFlushed { .. })) | None => Offered::InVain,
    }
}

/// Has the lease confirmed by those voters that have not done so in their session. Returns whether
/// there are none.
async fn confirm(liveness: &Liveness, group: &Group) -> bool {
    if !matches!(group.leadership(), Leadership::Leader { .. }) {
        return true;
    }
    if !group.awaits_confirmation(liveness) {
        return true;
    }
    // A group that has stopped needs no lease.
    group.raft().trigger().heartbeat().await.is_err()
}

impl Liveness {
    /// Whether this replica may vote or stand against the leader that it follows, as far as its
    /// promises go. Waits for a promise that is about to run out, but not for one that is prolonged
    /// meanwhile. Nothing is promised to the leader's node while the answer is held.
    pub(crate) async fn may_act(
        &self,
        group: &Shared,
        leader: NodeId,
        term: u64,
    ) -> Option<Option<Acting<'_>>> {
        if group.lease.is_given_up(term) {
            return Some(None);
        }
        let until = match self.act_against(leader) {
            Ok(acting) => return Some(Some(acting)),
            Err(until) => until,
        };
        let reply = self.ask(group, leader, term);
        if let Ok(Some(given_up)) = tokio::time::timeout_at(until, reply).await {
            return given_up.then_some(None);
        }
        tokio::time::sleep_until(until).await;
        self.act_against(leader).ok().map(Some)
    }

    /// Asks the leader that a replica follows whether it has given up. `None` if it does not
    /// answer.
    async fn ask_leader(&self, group: &Shared, leader: NodeId) -> Option<bool> {
        let Known::Follows(term, _) = group.known() else {
            return None;
        };
        let reply = self.ask(group, leader, term);
        tokio::time::timeout(self.detection.lease, reply)
            .await
            .ok()?
    }

    async fn ask(&self, group: &Shared, leader: NodeId, term: u64) -> Option<bool> {
        let query = LeadershipQuery {
            group: group.key(),
            term,
        };
        let reply = self.transport.leadership(self.me, leader, query).await;
        let given_up = reply.ok()?.given_up;
        if given_up {
            group.learn_given_up(term);
        }
        Some(given_up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_short_at_first_and_bounded_in_the_end() {
        assert_eq!(turn_pause(1), TURN);
        assert_eq!(turn_pause(8), TURN);
        assert!((1..200).all(|turn| turn_pause(turn) <= turn_pause(turn + 1)));
        assert_eq!(turn_pause(200), TURN_MAX);
    }
}
