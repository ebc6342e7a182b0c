//! The log as its owner and its readers see it, on the real disk.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use odradek_protocol::ids::{LeaderEpoch, Offset, TimestampMs};
use odradek_storage::{LogConfig, StampedBatch, StorageError};
use support::{NOW, Rig, batch, marker, producer_batch};

fn small_segments() -> LogConfig {
    LogConfig {
        segment_bytes: 1000,
        index_interval_bytes: 200,
        ..LogConfig::default()
    }
}

#[test]
fn a_fetch_from_inside_a_batch_returns_that_batch_whole() {
    let mut rig = Rig::real(LogConfig::default());
    rig.append(batch(2, 10, 1));
    rig.append(batch(2, 10, 1));
    assert_eq!(rig.read(1, 1 << 20, 4, false), [(0, 2), (2, 4)]);
    assert_eq!(rig.read(3, 1 << 20, 4, false), [(2, 4)]);
}

#[test]
fn a_small_limit_skips_nothing_at_segment_borders() {
    let mut rig = Rig::real(small_segments());
    for i in 0..100 {
        rig.append(batch(1 + i % 3, 60, 1));
    }
    assert!(rig.reader().segment_bases().len() > 10);
    let end = rig.log.next_offset().get();
    for max_bytes in [1, 150, 400, 999, 2500, 1 << 20] {
        let mut next = 0;
        while next < end {
            let read = rig.read(next, max_bytes, end, true);
            assert_eq!(read[0].0, next, "limit {max_bytes}");
            for pair in read.windows(2) {
                assert_eq!(pair[0].1, pair[1].0);
            }
            next = read[read.len() - 1].1;
        }
    }
}

#[test]
fn every_offset_is_found_in_its_batch_across_segments() {
    let mut rig = Rig::real(small_segments());
    for i in 0..60 {
        rig.append(batch(1 + i % 4, 30, 1));
    }
    let end = rig.log.next_offset().get();
    for round in 0..2 {
        for offset in 0..end {
            let (base, next) = rig.read(offset, 1, end, true)[0];
            assert!(
                base <= offset && offset < next,
                "offset {offset} in round {round}"
            );
        }
        rig.restart();
    }
}

#[test]
fn a_batch_over_the_limit_comes_alone_and_only_if_asked_for() {
    let mut rig = Rig::real(LogConfig::default());
    rig.append(batch(1, 5000, 1));
    rig.append(batch(1, 10, 1));
    assert_eq!(rig.read(0, 100, 2, true), [(0, 1)]);
    assert_eq!(rig.read(0, 100, 2, false), []);
    assert_eq!(rig.read(0, 0, 2, true), [(0, 1)]);
}

#[test]
fn nothing_at_or_above_the_upper_bound_is_returned() {
    let mut rig = Rig::real(small_segments());
    for _ in 0..50 {
        rig.append(batch(2, 40, 1));
    }
    for upper in (0..=100).step_by(2) {
        let read = rig.read(0, 1 << 20, upper, true);
        assert_eq!(read.last().map_or(0, |last| last.1), upper);
    }
    // A bound inside a batch excludes the batch.
    assert_eq!(rig.read(0, 1 << 20, 3, true), [(0, 2)]);
}

#[test]
fn an_offset_outside_of_the_log_is_out_of_range() {
    let mut rig = Rig::real(LogConfig::default());
    for _ in 0..3 {
        rig.append(batch(2, 10, 1));
    }
    rig.log.set_log_start(Offset::new(3), NOW).unwrap();
    let reader = rig.reader();
    let read = |offset| reader.read(Offset::new(offset), 100, Offset::new(6), true);
    for offset in [2, 7] {
        assert!(matches!(
            read(offset),
            Err(StorageError::OffsetOutOfRange { .. })
        ));
    }
    assert!(read(6).unwrap().is_empty());
    assert_eq!(read(3).unwrap().base_offset, Offset::new(2));
}

#[test]
fn batches_that_do_not_follow_are_refused_and_leave_no_trace() {
    let mut rig = Rig::real(LogConfig::default());
    rig.epoch = 3;
    rig.append(batch(2, 10, 1));
    let stamped = |base, epoch, bytes| {
        [StampedBatch {
            base_offset: Offset::new(base),
            leader_epoch: LeaderEpoch::new(epoch),
            bytes,
        }]
    };
    assert!(matches!(
        rig.log.append(&stamped(3, 3, batch(1, 1, 1))),
        Err(StorageError::NotNext { .. })
    ));
    assert!(matches!(
        rig.log.append(&stamped(2, 2, batch(1, 1, 1))),
        Err(StorageError::StaleEpoch { .. })
    ));
    let cut = batch(1, 1, 1).slice(..65);
    assert!(matches!(
        rig.log.append(&stamped(2, 3, cut)),
        Err(StorageError::UnusableBatch(_))
    ));
    assert!(!rig.health.is_offline());
    assert_eq!(rig.log.next_offset(), Offset::new(2));
}

#[test]
fn truncation_takes_whole_batches_and_the_log_goes_on_there() {
    let mut rig = Rig::real(small_segments());
    for epoch in 0..40 {
        rig.epoch = epoch / 10;
        rig.append(batch(2, 60, epoch.into()));
    }
    let end = rig.log.truncate_to(Offset::new(31), NOW).unwrap();
    assert_eq!(end, Offset::new(30));
    assert_eq!(rig.log.next_offset(), end);
    assert_eq!(rig.reader().latest_epoch(), Some(LeaderEpoch::new(1)));
    assert_eq!(
        rig.reader()
            .max_timestamp(Offset::ZERO, end)
            .unwrap()
            .unwrap()
            .timestamp,
        TimestampMs::new(14)
    );
    rig.epoch = 7;
    assert_eq!(rig.append(batch(1, 10, 50)), end);
    for _ in 0..2 {
        assert_eq!(rig.read(28, 1 << 20, 31, false), [(28, 30), (30, 31)]);
        assert_eq!(
            rig.reader().end_offset_for_epoch(LeaderEpoch::new(1)),
            Some((LeaderEpoch::new(1), Offset::new(30)))
        );
        rig.reopen();
    }
}

#[test]
fn producers_and_aborted_transactions_survive_restart_crash_and_truncation() {
    let mut rig = Rig::real(small_segments());
    for sequence in 0..10 {
        rig.append(producer_batch(5, 0, sequence * 2, 2, true));
    }
    rig.append(producer_batch(6, 0, 0, 1, true));
    rig.append(marker(5, 0, false));
    rig.append(producer_batch(6, 0, 1, 1, true));
    rig.append(batch(3, 10, 1));
    let state = rig.reader().with_producers(Clone::clone);
    assert_eq!(state.first_undecided_offset(), Some(Offset::new(20)));
    for round in 0..4 {
        let aborted = rig
            .reader()
            .aborted_transactions(Offset::new(0), Offset::new(100))
            .unwrap();
        assert_eq!(aborted.len(), 1, "round {round}");
        assert_eq!(aborted[0].first_offset, Offset::new(0));
        assert_eq!(aborted[0].last_offset, Offset::new(21));
        assert_eq!(aborted[0].last_stable_offset, Offset::new(20));
        rig.reader().with_producers(|producers| {
            assert_eq!(producers.first_undecided_offset(), Some(Offset::new(20)));
            assert_eq!(
                producers
                    .get(odradek_protocol::ids::ProducerId::new(6))
                    .unwrap()
                    .last_offset(),
                Offset::new(22)
            );
        });
        if round % 2 == 0 {
            rig.restart();
        } else {
            rig.reopen();
        }
    }
    rig.log.truncate_to(Offset::new(21), NOW).unwrap();
    rig.reader().with_producers(|producers| {
        assert_eq!(producers.first_undecided_offset(), Some(Offset::new(0)));
    });
    let aborted = rig
        .reader()
        .aborted_transactions(Offset::new(0), Offset::new(100))
        .unwrap();
    assert_eq!(aborted, []);
}

/// A marker that only this replica has may be cut off, and another comes later. Until then its transaction is open.
#[test]
fn a_marker_that_is_not_committed_decides_nothing_over_a_restart_and_a_cut() {
    let unstable = |rig: &Rig| rig.reader().with_producers(|p| p.first_unstable_offset());
    let mut rig = Rig::real(LogConfig::default());
    rig.append(batch(2, 10, 1));
    rig.append(producer_batch(5, 0, 0, 3, true));
    rig.append(batch(4, 10, 1));
    assert_eq!(rig.append(marker(5, 0, false)), Offset::new(9));
    rig.restart();
    let begun = rig.reader().begin_at_high_watermark(Offset::new(7));
    begun.unwrap();
    assert!(unstable(&rig).is_some_and(|first| first <= Offset::new(2)));
    // The snapshot of the restart is at this end, and knows of no open transaction.
    rig.append(batch(1, 10, 1));
    rig.log.truncate_to(Offset::new(10), NOW).unwrap();
    rig.reader().on_high_watermark(Offset::new(9));
    assert!(unstable(&rig).is_some_and(|first| first <= Offset::new(2)));
    rig.log.truncate_to(Offset::new(9), NOW).unwrap();
    rig.reader().on_high_watermark(Offset::new(9));
    assert_eq!(unstable(&rig), Some(Offset::new(2)));
    assert_eq!(rig.append(marker(5, 0, false)), Offset::new(9));
    rig.reader().on_high_watermark(Offset::new(10));
    assert_eq!(unstable(&rig), None);
    rig.append(batch(1, 10, 1));
    rig.restart();
    // No marker is behind it.
    let begun = rig.reader().begin_at_high_watermark(Offset::new(10));
    begun.unwrap();
    assert_eq!(unstable(&rig), None);
}

#[test]
fn a_checkpoint_begun_before_a_cut_does_not_vouch_for_what_came_after_it() {
    let mut rig = Rig::real(LogConfig::default());
    for _ in 0..4 {
        rig.append(batch(2, 10, 1));
    }
    let (checkpoint, target) = rig.log.begin_checkpoint().unwrap();
    target.sync().unwrap();
    rig.log.truncate_to(Offset::new(2), NOW).unwrap();
    for _ in 0..4 {
        rig.append(batch(2, 10, 1));
    }
    rig.log.finish_checkpoint(checkpoint).unwrap();
    assert_eq!(rig.log.recovery_point(), Offset::ZERO);
    let (checkpoint, target) = rig.log.begin_checkpoint().unwrap();
    target.sync().unwrap();
    rig.log.finish_checkpoint(checkpoint).unwrap();
    assert_eq!(rig.log.recovery_point(), Offset::new(10));
    assert!(rig.log.begin_checkpoint().is_none());
}
