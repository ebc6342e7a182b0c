//! What is still to be told to the metadata leader: the newest truth of every partition, once.
//!
//! A partition's truth waits, is under way, or has been taken and is awaited in the metadata. A newer
//! one takes the place of an older. Memory is bounded by the number of partitions that this broker
//! leads: there is at most one entry of each.

use std::collections::{HashMap, HashSet, VecDeque};

use odradek_protocol::ids::Offset;
use odradek_raft::GroupKey;

use crate::metadata::leader_report::LeaderReport;

/// Length of the queue beyond twice its entries at which it is tidied.
const QUEUE_SLACK: usize = 16;

/// Where a partition's truth stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    UnderWay,
    /// In the metadata below this offset, if it says anything new.
    Taken(Offset),
}

#[derive(Clone, Debug)]
struct Entry {
    report: LeaderReport,
    stage: Stage,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Reports {
    entries: HashMap<GroupKey, Entry>,
    /// Those that wait, the oldest first; others may be among them and are passed over.
    queue: VecDeque<GroupKey>,
}

impl Reports {
    /// The metadata has to be told `report`, unless it is being told so already.
    pub fn tell(&mut self, report: LeaderReport) {
        let key = key_of(&report);
        match self.entries.get_mut(&key) {
            Some(known) if known.report == report => {}
            Some(known) => {
                let waits = known.stage == Stage::Waiting;
                known.report = report;
                known.stage = Stage::Waiting;
                if !waits {
                    self.enqueue(key);
                }
            }
            None => {
                let stage = Stage::Waiting;
                self.entries.insert(key, Entry { report, stage });
                self.enqueue(key);
            }
        }
    }

    fn enqueue(&mut self, key: GroupKey) {
        if self.queue.len() > 2 * self.entries.len() + QUEUE_SLACK {
            // Most of it has been forgotten or told since, or stands there twice.
            let entries = &self.entries;
            let mut kept = HashSet::new();
            self.queue.retain(|key| {
                let waits = entries
                    .get(key)
                    .is_some_and(|entry| entry.stage == Stage::Waiting);
                waits && kept.insert(*key)
            });
        }
        self.queue.push_back(key);
    }

    /// There is nothing to tell of this partition any more: the metadata says what is, or another
    /// node leads.
    pub fn forget(&mut self, key: GroupKey) {
        self.entries.remove(&key);
    }

    /// The next message, of at most `most` reports; empty when there is nothing to tell.
    pub fn next_batch(&mut self, most: usize) -> Vec<LeaderReport> {
        let mut batch = Vec::new();
        while batch.len() < most {
            let Some(key) = self.queue.pop_front() else {
                break;
            };
            if let Some(entry) = self.entries.get_mut(&key)
                && entry.stage == Stage::Waiting
            {
                entry.stage = Stage::UnderWay;
                batch.push(entry.report.clone());
            }
        }
        batch
    }

    /// The metadata leader has taken a message; what it wrote is below `end`.
    pub fn taken(&mut self, batch: &[LeaderReport], end: Offset) {
        for report in batch {
            if let Some(entry) = self.entries.get_mut(&key_of(report))
                && entry.stage == Stage::UnderWay
            {
                entry.stage = Stage::Taken(end);
            }
        }
    }

    /// A message did not get through: it goes again.
    pub fn failed(&mut self, batch: &[LeaderReport]) {
        for report in batch {
            let key = key_of(report);
            if let Some(entry) = self.entries.get_mut(&key)
                && entry.stage == Stage::UnderWay
            {
                entry.stage = Stage::Waiting;
                self.enqueue(key);
            }
        }
    }

    /// This broker knows the metadata below `end`: what was taken before is settled, one way or the
    /// other.
    pub fn metadata_reached(&mut self, end: Offset) {
        self.entries
            .retain(|_, entry| !matches!(entry.stage, Stage::Taken(at) if at <= end));
    }

    /// Whether something waits to be told.
    pub fn is_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Partitions of which something is to be told, is being told or was told lately.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

fn key_of(report: &LeaderReport) -> GroupKey {
    report.group()
}

#[cfg(test)]
mod tests {
    use odradek_protocol::ids::{LeaderEpoch, NodeId, PartitionIndex, TopicId};
    use odradek_raft::Incarnation;

    use super::*;

    fn report(partition: i32, epoch: i32) -> LeaderReport {
        LeaderReport {
            topic_id: TopicId::from_bytes([1; 16]),
            partition: PartitionIndex::new(partition),
            incarnation: Incarnation::FIRST,
            leader: NodeId::new(1),
            epoch: LeaderEpoch::new(epoch),
            isr: vec![NodeId::new(1)],
            reassigned: None,
        }
    }

    #[test]
    fn a_thousand_partitions_go_in_few_messages_and_each_once() {
        let mut reports = Reports::default();
        for partition in 0..1_000 {
            reports.tell(report(partition, 1));
            reports.tell(report(partition, 1));
        }
        assert_eq!(reports.next_batch(600).len(), 600);
        assert_eq!(reports.next_batch(600).len(), 400);
        assert!(reports.next_batch(600).is_empty() && !reports.is_waiting());
    }

    #[test]
    fn a_newer_truth_takes_the_place_of_one_that_waits_or_is_under_way() {
        let mut reports = Reports::default();
        reports.tell(report(0, 1));
        reports.tell(report(0, 2));
        let first = reports.next_batch(10);
        assert_eq!(first, [report(0, 2)]);
        reports.tell(report(0, 3));
        reports.taken(&first, Offset::new(9));
        reports.metadata_reached(Offset::new(9));
        assert_eq!(
            reports.next_batch(10),
            [report(0, 3)],
            "it is still to be told"
        );
    }

    #[test]
    fn what_did_not_get_through_goes_again_unless_it_is_out_of_date() {
        let mut reports = Reports::default();
        reports.tell(report(0, 1));
        reports.tell(report(1, 1));
        let batch = reports.next_batch(10);
        reports.forget(GroupKey::new(
            TopicId::from_bytes([1; 16]),
            PartitionIndex::new(1),
        ));
        reports.failed(&batch);
        assert_eq!(reports.next_batch(10), [report(0, 1)]);
    }

    #[test]
    fn what_was_taken_is_not_told_again_before_the_metadata_has_come() {
        let mut reports = Reports::default();
        reports.tell(report(0, 1));
        let batch = reports.next_batch(10);
        reports.taken(&batch, Offset::new(7));
        reports.metadata_reached(Offset::new(6));
        reports.tell(report(0, 1));
        assert!(!reports.is_waiting());
        reports.metadata_reached(Offset::new(7));
        assert!(reports.is_empty());
        // The metadata did not keep it, and it is still true.
        reports.tell(report(0, 1));
        assert_eq!(reports.next_batch(10).len(), 1);
    }

    #[test]
    fn memory_is_bounded_by_the_number_of_partitions() {
        let mut reports = Reports::default();
        for round in 0..10_000 {
            reports.tell(report(round % 3, round));
            if round % 7 == 0 {
                let batch = reports.next_batch(1);
                reports.failed(&batch);
            }
        }
        assert_eq!(reports.len(), 3);
        for round in 0..10_000 {
            reports.tell(report(round % 3, round));
            reports.forget(key_of(&report(round % 3, 0)));
        }
        assert!(reports.is_empty());
        assert!(reports.queue.len() <= QUEUE_SLACK + 8);
    }
}
