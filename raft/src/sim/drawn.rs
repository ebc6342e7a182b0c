//! What the runs have in common in which everything happens at random: a step is drawn, something is done,
//! and some time passes. What is done, and how often, is each run's own.

use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::ids::NodeId;
use rand::Rng;

use super::cluster::Cluster;
use crate::Group;

/// What one step is about.
pub(super) struct Drawn {
    pub(super) one: NodeId,
    pub(super) other: NodeId,
    /// Some replica.
    pub(super) index: usize,
    pub(super) action: u32,
}

/// Beside a lease of 400 ms the usual pauses are short.
const USUAL_PAUSE_MS: u64 = 150;
const LONG_PAUSE_MS: u64 = 900;

impl Cluster {
    /// The next step, and one of `actions` actions.
    pub(super) fn draw(&mut self, actions: u32) -> Drawn {
        let one = self.any_node();
        let other = self.any_node();
        let index = self.random.random_range(0..self.replicas.len());
        let action = self.random.random_range(0..actions);
        self.trace.push(format!("{action} {one} {other} {index}"));
        Drawn {
            one,
            other,
            index,
            action,
        }
    }

    /// Has what one node sends to another take up to `most_ms` from now on.
    pub(super) fn delay(&mut self, one: NodeId, other: NodeId, most_ms: u64) {
        let delay = Duration::from_millis(self.random.random_range(0..most_ms));
        self.network.delay(one, other, delay);
    }

    /// Has a leader hand over to a node. It may be cut off, and then does not take over.
    pub(super) async fn hand_over(&self, to: NodeId) {
        if let Some(leader) = self.leaders().first() {
            let _ = leader.transfer_leader(to).await;
        }
    }

    /// Lets some time pass; with `long_one_in`, a long while once in so many steps.
    pub(super) async fn pause(&mut self, long_one_in: Option<u32>) {
        let is_long = long_one_in.is_some_and(|steps| self.random.random_ratio(1, steps));
        let longest = match is_long {
            true => LONG_PAUSE_MS,
            false => USUAL_PAUSE_MS,
        };
        let pause = self.random.random_range(0..longest);
        self.pass(Duration::from_millis(pause)).await;
    }

    /// The end of a run: everything is mended, and must be as it should. Returns the replicas that take part.
    pub(super) async fn end(&mut self) -> Vec<Arc<Group>> {
        let members = self.settle().await;
        self.what_was_shown_stays();
        self.nothing_is_lost(&members);
        members
    }
}
