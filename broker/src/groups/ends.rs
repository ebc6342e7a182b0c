//! Which producers' transactions have ended in one shard lately.
//!
//! A commit in a transaction is taken once the coordinator of transactions was asked about it. If a
//! transaction of the same producer has ended between the question and the commit, it may be the one
//! that was asked about, and the commit would stay staged for ever. Pure.

use std::collections::VecDeque;

use odradek_protocol::ids::{ProducerId, TimestampMs};

use super::messages::VerificationMoment;

/// Ends that are remembered. A question that is older than all of them is asked again.
const REMEMBERED: usize = 4_096;

/// The last ends of transactions.
#[derive(Debug, Default)]
pub struct Ends {
    now: u64,
    ended: VecDeque<(u64, ProducerId)>,
}

impl Ends {
    /// None is remembered; every moment before `now` is too old.
    pub fn beginning_at(now: TimestampMs) -> Self {
        Self {
            // No shard ends a million transactions within a millisecond.
            now: u64::try_from(now.get())
                .unwrap_or(0)
                .saturating_mul(1 << 20),
            ended: VecDeque::new(),
        }
    }

    /// This moment.
    pub const fn moment(&self) -> VerificationMoment {
        VerificationMoment(self.now)
    }

    /// A transaction of this producer ends.
    pub fn note(&mut self, producer_id: ProducerId) {
        self.now += 1;
        if self.ended.len() == REMEMBERED {
            self.ended.pop_front();
        }
        self.ended.push_back((self.now, producer_id));
    }

    /// Whether no transaction of this producer has ended since `moment`, for certain.
    pub fn none_since(&self, moment: VerificationMoment, producer_id: ProducerId) -> bool {
        let first_known = self.now - self.ended.len() as u64;
        moment.0 >= first_known
            && moment.0 <= self.now
            && !self
                .ended
                .iter()
                .rev()
                .take_while(|(at, _)| *at > moment.0)
                .any(|(_, ended)| *ended == producer_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_after_the_question_is_seen_and_one_before_it_is_not() {
        let mut ends = Ends::beginning_at(TimestampMs::new(5));
        let (mine, other) = (ProducerId::new(1), ProducerId::new(2));
        ends.note(mine);
        let asked = ends.moment();
        assert!(ends.none_since(asked, mine));
        ends.note(other);
        assert!(ends.none_since(asked, mine));
        ends.note(mine);
        assert!(!ends.none_since(asked, mine));
        assert!(ends.none_since(ends.moment(), mine));
    }

    #[test]
    fn moments_that_are_too_old_or_of_another_life_are_not_certain() {
        let mut ends = Ends::beginning_at(TimestampMs::new(5));
        let asked = ends.moment();
        for _ in 0..=REMEMBERED {
            ends.note(ProducerId::new(2));
        }
        assert!(!ends.none_since(asked, ProducerId::new(1)));
        let next_life = Ends::beginning_at(TimestampMs::new(6));
        assert!(!next_life.none_since(ends.moment(), ProducerId::new(1)));
    }
}
