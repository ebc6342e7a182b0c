//! What leaders report of their partitions, taken into the metadata.

use std::collections::HashMap;

use odradek_protocol::ids::{NodeId, PartitionIndex, TopicId};

use super::super::image::{MetadataImage, PartitionState};
use super::super::leader_report::LeaderReport;
use super::super::records::{MetadataRecord, PartitionChangeRecord};

/// Records that bring the metadata to where the reports are. A report of an unknown partition, of a
/// node that is no replica, of another incarnation, of an older epoch than the one known, or of another leader in the same
/// epoch says nothing new; nor does one that tells what is known.
pub fn apply_reports(image: &MetadataImage, reports: &[LeaderReport]) -> Vec<MetadataRecord> {
    // Of several reports of one partition the one of the latest epoch counts, and of those the last.
    let mut latest: HashMap<(TopicId, PartitionIndex), &LeaderReport> = HashMap::new();
    for report in reports {
        let slot = latest
            .entry((report.topic_id, report.partition))
            .or_insert(report);
        if report.epoch >= slot.epoch {
            *slot = report;
        }
    }
    let mut latest: Vec<_> = latest.into_values().collect();
    latest.sort_unstable_by_key(|report| (report.topic_id, report.partition));
    latest
        .into_iter()
        .filter_map(|report| {
            let topic = image.topic_by_id(report.topic_id)?;
            let state = topic.partition(report.partition)?;
            change(state, report).map(MetadataRecord::PartitionChange)
        })
        .collect()
}

fn change(state: &PartitionState, report: &LeaderReport) -> Option<PartitionChangeRecord> {
    let is_stale = report.epoch < state.leader_epoch
        || (report.epoch == state.leader_epoch
            && state.leader.is_some_and(|leader| leader != report.leader));
    // A group whose voters were given up may be at work where the metadata is not known yet.
    let is_other = report.incarnation != state.incarnation();
    if is_stale || is_other || !state.replicas.contains(&report.leader) {
        return None;
    }
    let done = report
        .reassigned
        .as_deref()
        .filter(|replicas| state.is_reassigning() && same_nodes(&state.target_replicas(), replicas))
        .map(|_| state.target_replicas());
    let replicas = done.as_deref().unwrap_or(&state.replicas);
    // In the order of the replicas, as Kafka shows it, and of replicas only.
    let isr: Vec<NodeId> = replicas
        .iter()
        .copied()
        .filter(|id| report.isr.contains(id) || *id == report.leader)
        .collect();
    let leads = state.leader == Some(report.leader) && state.leader_epoch == report.epoch;
    let record = PartitionChangeRecord {
        topic_id: report.topic_id,
        partition: report.partition,
        leader: (!leads).then_some(Some(report.leader)),
        leader_epoch: (!leads).then_some(report.epoch),
        isr: (!same_nodes(&isr, &state.isr)).then_some(isr),
        removing_replicas: done.as_ref().map(|_| Vec::new()),
        adding_replicas: done.as_ref().map(|_| Vec::new()),
        replicas: done,
        directories: None,
        begun: None,
    };
    let says_something =
        record.leader.is_some() || record.isr.is_some() || record.replicas.is_some();
    says_something.then_some(record)
}

/// Whether two lists name the same nodes, in whatever order.
pub fn same_nodes(one: &[NodeId], other: &[NodeId]) -> bool {
    one.len() == other.len() && one.iter().all(|id| other.contains(id))
}

#[cfg(test)]
mod tests {
    use odradek_protocol::ids::{LeaderEpoch, Offset};
    use odradek_raft::{Incarnation, RaftIndex, Succession};

    use super::super::super::records::Begun;
    use super::super::super::test_support::{apply, image_with_brokers, nodes, topic};
    use super::*;

    fn image() -> MetadataImage {
        let mut image = image_with_brokers(&[1, 2, 3]);
        apply(&mut image, &topic("t", 7, &[&[1, 2, 3]]));
        image
    }

    fn report(leader: i32, epoch: i32, isr: &[i32]) -> LeaderReport {
        LeaderReport {
            topic_id: TopicId::from_bytes([7; 16]),
            partition: PartitionIndex::new(0),
            incarnation: Incarnation::FIRST,
            leader: NodeId::new(leader),
            epoch: LeaderEpoch::new(epoch),
            isr: nodes(isr),
            reassigned: None,
        }
    }

    fn state(image: &MetadataImage) -> PartitionState {
        PartitionState::clone(&image.topic("t").expect("exists").partitions[0])
    }

    fn take(image: &mut MetadataImage, reports: &[LeaderReport]) -> usize {
        let records = apply_reports(image, reports);
        apply(image, &records);
        records.len()
    }

    #[test]
    fn a_new_leader_comes_with_the_term_of_its_group() {
        let mut image = image();
        assert_eq!(take(&mut image, &[report(2, 5, &[2, 1])]), 1);
        let state = state(&image);
        assert_eq!(state.leader, Some(NodeId::new(2)));
        assert_eq!(state.leader_epoch, LeaderEpoch::new(5));
        assert_eq!(state.isr, nodes(&[1, 2]));
        assert_eq!(state.partition_epoch, 1);
    }

    #[test]
    fn older_epochs_repetitions_and_strangers_change_nothing() {
        let mut image = image();
        take(&mut image, &[report(2, 5, &[1, 2, 3])]);
        for stale in [
            report(1, 4, &[1]),
            report(3, 5, &[3]),
            report(2, 5, &[3, 2, 1]),
            report(9, 6, &[9]),
        ] {
            assert_eq!(apply_reports(&image, &[stale]), []);
        }
        let elsewhere = LeaderReport {
            partition: PartitionIndex::new(1),
            ..report(1, 9, &[1])
        };
        assert_eq!(apply_reports(&image, &[elsewhere]), []);
    }

    #[test]
    fn a_group_whose_voters_were_given_up_is_not_heard() {
        let mut image = image();
        take(&mut image, &[report(2, 5, &[1, 2, 3])]);
        let begun = Begun {
            incarnation: Incarnation::new(1005),
            succession: Succession {
                predecessor: Incarnation::FIRST,
                founder: NodeId::new(3),
                kept_end: RaftIndex::new(9),
                log_start: Offset::ZERO,
            },
        };
        let elected = PartitionChangeRecord {
            leader: Some(Some(NodeId::new(3))),
            leader_epoch: Some(LeaderEpoch::new(1005)),
            begun: Some(begun),
            ..PartitionChangeRecord::of(TopicId::from_bytes([7; 16]), PartitionIndex::new(0))
        };
        apply(&mut image, &[MetadataRecord::PartitionChange(elected)]);
        // However often it has elected leaders.
        assert_eq!(apply_reports(&image, &[report(2, 9000, &[1, 2])]), []);
        let founder = LeaderReport {
            incarnation: begun.incarnation,
            ..report(3, 1006, &[3])
        };
        assert_eq!(take(&mut image, &[founder]), 1);
        assert_eq!(state(&image).leader_epoch, LeaderEpoch::new(1006));
        assert_eq!(state(&image).incarnation(), begun.incarnation);
    }

    #[test]
    fn of_two_reports_in_one_message_the_later_epoch_counts() {
        let mut image = image();
        let reports = [
            report(3, 6, &[3]),
            report(2, 5, &[2]),
            report(3, 6, &[3, 1]),
        ];
        assert_eq!(take(&mut image, &reports), 1);
        assert_eq!(state(&image).leader, Some(NodeId::new(3)));
        assert_eq!(state(&image).isr, nodes(&[1, 3]));
    }

    #[test]
    fn a_leader_that_was_fenced_is_taken_back_in_its_epoch() {
        let mut image = image();
        take(&mut image, &[report(2, 5, &[1, 2, 3])]);
        let lost = PartitionChangeRecord {
            leader: Some(None),
            leader_epoch: Some(LeaderEpoch::new(5)),
            ..change(&state(&image), &report(1, 6, &[1])).expect("a change")
        };
        apply(&mut image, &[MetadataRecord::PartitionChange(lost)]);
        assert_eq!(state(&image).leader, None);
        assert_eq!(take(&mut image, &[report(2, 5, &[2])]), 1);
        assert_eq!(state(&image).leader, Some(NodeId::new(2)));
    }

    #[test]
    fn a_reassignment_ends_when_the_group_has_the_replicas_that_were_asked_for() {
        let mut image = image();
        let start = PartitionChangeRecord {
            topic_id: TopicId::from_bytes([7; 16]),
            partition: PartitionIndex::new(0),
            isr: None,
            leader: None,
            leader_epoch: None,
            replicas: Some(nodes(&[2, 3, 4, 1])),
            removing_replicas: Some(nodes(&[1])),
            adding_replicas: Some(nodes(&[4])),
            directories: None,
            begun: None,
        };
        apply(&mut image, &[MetadataRecord::PartitionChange(start)]);
        let done = |replicas: &[i32]| LeaderReport {
            reassigned: Some(nodes(replicas)),
            ..report(2, 3, &[1, 2, 3, 4])
        };
        take(&mut image, &[done(&[1, 2, 3])]);
        assert!(state(&image).is_reassigning());
        take(&mut image, &[done(&[4, 3, 2])]);
        let state = state(&image);
        assert!(!state.is_reassigning());
        assert_eq!(state.replicas, nodes(&[2, 3, 4]));
        assert_eq!(state.isr, nodes(&[2, 3, 4]));
    }
}
