//! Which replicas are in sync with their leader: arithmetic only.
//!
//! Kafka's rule: a replica is in sync as long as it has, within `replica.lag.time.max.ms`, held
//! everything that the leader's log held at some moment. When that was, the group tells. One that has lost
//! its log held it in vain: it is out of sync at once.
//!
//! Invariants: the leader is always in sync; only voters are; the order is that of the replicas.
//! Under a new leader, who was in sync under the last one is given the time anew; anybody else has
//! to show first that it has caught up.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use odradek_protocol::ids::NodeId;

/// What the group says of another replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follower {
    /// Which replica.
    pub node: NodeId,
    /// When it last held all that the leader held. Of one that has not been heard of, the moment at
    /// which the leader first asked.
    pub last_caught_up: Instant,
    /// Whether what it held is still there.
    pub whole: bool,
}

/// What one leader has seen of its followers in one term.
#[derive(Clone, Debug)]
pub struct InSync {
    last_look: Instant,
    seen: BTreeMap<NodeId, Seen>,
}

#[derive(Clone, Copy, Debug)]
enum Seen {
    /// It has not been known to hold everything since this moment.
    Behind(Instant),
    CaughtUp(Instant),
}

impl InSync {
    /// For a leader that began to lead at `now`; `before` were in sync under the last one.
    pub fn new(now: Instant, before: &[NodeId]) -> Self {
        let seen = before.iter().map(|node| (*node, Seen::CaughtUp(now)));
        Self {
            last_look: now,
            seen: seen.collect(),
        }
    }

    /// Takes in what the group says of the followers now.
    pub fn look(&mut self, now: Instant, followers: &[Follower]) {
        self.last_look = now;
        self.seen
            .retain(|node, _| followers.iter().any(|follower| follower.node == *node));
        for follower in followers {
            let told = follower.last_caught_up;
            if !follower.whole {
                self.seen.insert(follower.node, Seen::Behind(now));
                continue;
            }
            let seen = self.seen.entry(follower.node).or_insert(Seen::Behind(told));
            match *seen {
                Seen::Behind(since) if told <= since => {}
                Seen::CaughtUp(at) if told <= at => {}
                Seen::Behind(_) | Seen::CaughtUp(_) => *seen = Seen::CaughtUp(told),
            }
        }
    }

    /// The replicas in sync at the last look, out of `voters`. Those that `is_usable` refuses are
    /// not: the cluster has given them up.
    pub fn replicas(
        &self,
        leader: NodeId,
        voters: impl IntoIterator<Item = NodeId>,
        max_lag: Duration,
        is_usable: impl Fn(NodeId) -> bool,
    ) -> Vec<NodeId> {
        voters
            .into_iter()
            .filter(|node| {
                *node == leader || (is_usable(*node) && self.is_caught_up(*node, max_lag))
            })
            .collect()
    }

    /// Whether a replica, voter or not, has caught up within `max_lag`.
    pub fn is_caught_up(&self, node: NodeId, max_lag: Duration) -> bool {
        match self.seen.get(&node) {
            Some(Seen::CaughtUp(at)) => self.last_look.saturating_duration_since(*at) <= max_lag,
            Some(Seen::Behind(_)) | None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAG: Duration = Duration::from_secs(30);

    fn node(id: i32) -> NodeId {
        NodeId::new(id)
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn at(id: i32, last_caught_up: Instant) -> Follower {
        Follower {
            node: node(id),
            last_caught_up,
            whole: true,
        }
    }

    fn in_sync(state: &InSync) -> Vec<i32> {
        state
            .replicas(node(1), [1, 2, 3].map(node), LAG, |_| true)
            .into_iter()
            .map(NodeId::get)
            .collect()
    }

    #[test]
    fn a_replica_is_in_sync_as_long_as_it_caught_up_within_the_lag() {
        let start = Instant::now();
        let mut state = InSync::new(start, &[node(1), node(2), node(3)]);
        let later = start + seconds(60);
        state.look(
            later,
            &[at(2, later - seconds(30)), at(3, later - seconds(31))],
        );
        assert_eq!(in_sync(&state), [1, 2]);
        state.look(later, &[at(2, later), at(3, later)]);
        assert_eq!(in_sync(&state), [1, 2, 3]);
    }

    #[test]
    fn a_new_leader_gives_those_in_sync_under_the_last_one_the_whole_time_and_nobody_else() {
        let start = Instant::now();
        let mut state = InSync::new(start, &[node(2)]);
        let never = [at(2, start), at(3, start)];
        state.look(start + seconds(1), &never);
        assert_eq!(in_sync(&state), [1, 2]);
        state.look(start + seconds(30), &never);
        assert_eq!(in_sync(&state), [1, 2]);
        state.look(start + seconds(31), &never);
        assert_eq!(in_sync(&state), [1]);
        let caught_up = start + seconds(32);
        state.look(start + seconds(40), &[at(2, start), at(3, caught_up)]);
        assert_eq!(in_sync(&state), [1, 3]);
    }

    #[test]
    fn a_new_replica_counts_only_once_it_has_shown_that_it_holds_everything() {
        let start = Instant::now();
        let mut state = InSync::new(start, &[node(2)]);
        let asked = start + seconds(5);
        state.look(asked, &[at(2, asked), at(4, asked)]);
        assert!(!state.is_caught_up(node(4), LAG));
        let shown = start + seconds(6);
        state.look(shown, &[at(2, shown), at(4, shown)]);
        assert!(state.is_caught_up(node(4), Duration::ZERO));
    }

    #[test]
    fn a_replica_that_the_cluster_has_given_up_is_out_of_sync_at_once_and_the_leader_never_is() {
        let start = Instant::now();
        let state = InSync::new(start, &[node(2), node(3)]);
        let usable = |id: NodeId| id != node(2) && id != node(1);
        let left = state.replicas(node(1), [3, 2, 1].map(node), LAG, usable);
        assert_eq!(left, [node(3), node(1)], "in the order of the replicas");
    }

    #[test]
    fn a_replica_that_lost_its_log_is_out_of_sync_until_it_holds_everything_again() {
        let start = Instant::now();
        let mut state = InSync::new(start, &[node(2), node(3)]);
        let lost = |last_caught_up| Follower {
            whole: false,
            ..at(3, last_caught_up)
        };
        let now = start + seconds(1);
        state.look(now, &[at(2, now), at(3, now)]);
        assert_eq!(in_sync(&state), [1, 2, 3]);
        state.look(now, &[at(2, now), lost(now)]);
        assert_eq!(in_sync(&state), [1, 2]);
        let later = now + seconds(1);
        state.look(later, &[at(2, later), at(3, now)]);
        assert_eq!(in_sync(&state), [1, 2], "it held everything before");
        state.look(later, &[at(2, later), at(3, later)]);
        assert_eq!(in_sync(&state), [1, 2, 3]);
    }

    #[test]
    fn what_is_no_follower_any_more_is_forgotten() {
        let start = Instant::now();
        let mut state = InSync::new(start, &[node(2), node(3)]);
        state.look(start + seconds(1), &[at(2, start)]);
        assert!(!state.is_caught_up(node(3), LAG));
    }
}
