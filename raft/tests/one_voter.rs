//! A group whose only voter is this node: what the single-node broker is made of.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod support;

use std::sync::Arc;

use odradek_protocol::batch::BatchIter;
use odradek_protocol::ids::{Offset, TimestampMs};
use odradek_raft::{Leadership, NoObserver, ProposeError};
use odradek_storage::LogConfig;
use support::*;

#[tokio::test]
async fn a_batch_gets_the_next_offset_and_is_committed_once_durable() {
    let dir = tempfile::tempdir().unwrap();
    let node = lone_node(dir.path());
    let group = open_lone(&node, key(1, 0), dir.path(), LogConfig::default()).await;
    let first = propose(&group, batch(3, b"a")).unwrap();
    let second = propose(&group, batch(1, b"b")).unwrap();
    assert_eq!(first.base_offset, Offset::new(0));
    assert_eq!(second.base_offset, Offset::new(3));
    let appended = first.appended.await.unwrap();
    let committed = first.committed.await.unwrap().unwrap();
    assert_eq!(appended, committed);
    assert_eq!(committed.last_offset, Offset::new(2));
    let committed = second.committed.await.unwrap().unwrap();
    assert_eq!(committed.base_offset, Offset::new(3));
    let offsets = group.offsets();
    assert_eq!(offsets.high_watermark.get(), 4);
    assert_eq!(offsets.last_stable.get(), 4);
    assert_eq!(offsets.log_end.get(), 4);
    let bytes = log_bytes(&group);
    let stored: Vec<_> = BatchIter::new(&bytes)
        .map(|batch| batch.unwrap().header)
        .collect();
    assert_eq!(stored.len(), 2);
    assert_eq!(stored[1].base_offset, Offset::new(3));
    assert_eq!(stored[1].partition_leader_epoch.get(), 1);
    node.shutdown().await.unwrap();
}

#[tokio::test]
async fn everything_is_found_again_after_a_restart_in_a_new_epoch() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..4i64 {
        let node = lone_node(dir.path());
        let group = open_lone(&node, key(1, 0), dir.path(), LogConfig::default()).await;
        assert_eq!(group.offsets().high_watermark.get(), round * 20);
        assert_eq!(
            group.leadership(),
            Leadership::Leader {
                epoch: odradek_protocol::ids::LeaderEpoch::new(round as i32 + 1),
                ready: true
            }
        );
        for _ in 0..10 {
            produce(&group, batch(2, b"value")).await.unwrap();
        }
        if round % 2 == 0 {
            node.shutdown().await.unwrap();
        }
        assert_eq!(group.offsets().high_watermark.get(), round * 20 + 20);
    }
}

#[tokio::test]
async fn segments_roll_and_the_log_start_takes_them_away() {
    let dir = tempfile::tempdir().unwrap();
    let config = LogConfig {
        segment_bytes: 4096,
        file_delete_delay_ms: 0,
        ..LogConfig::default()
    };
    let node = lone_node(dir.path());
    let group = open_lone(&node, key(1, 0), dir.path(), config.clone()).await;
    let tickets: Vec<_> = (0..100)
        .map(|_| propose(&group, batch(1, &[7; 500])).unwrap())
        .collect();
    for (index, ticket) in tickets.into_iter().enumerate() {
        let outcome = ticket.committed.await.unwrap().unwrap();
        assert_eq!(outcome.base_offset, Offset::new(index as i64));
    }
    let segments = group.reader().segment_bases().len();
    assert!(segments > 10, "{segments} segments");
    assert_eq!(
        group.advance_log_start(Offset::new(60)).await.unwrap(),
        Offset::new(60)
    );
    assert_eq!(group.offsets().log_start.get(), 60);
    for _ in 0..200 {
        if group.reader().segment_bases().len() <= segments / 2 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let left = group.reader().segment_bases();
    assert!(left.len() <= segments / 2, "{left:?}");
    produce(&group, batch(1, b"after")).await.unwrap();
    assert!(group.advance_log_start(Offset::new(102)).await.is_err());
    drop(group);
    node.shutdown().await.unwrap();

    let node = lone_node(dir.path());
    let group = open_lone(&node, key(1, 0), dir.path(), config).await;
    assert_eq!(group.offsets().log_start.get(), 60);
    assert_eq!(group.offsets().high_watermark.get(), 101);
    // The active segment goes as well once nothing in it is wanted.
    group.advance_log_start(Offset::new(101)).await.unwrap();
    for _ in 0..200 {
        if group.reader().segment_bases() == [Offset::new(101)] {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(group.reader().segment_bases(), [Offset::new(101)]);
    let outcome = produce(&group, batch(1, b"after")).await.unwrap();
    assert_eq!(outcome.base_offset, Offset::new(101));
    node.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_group_can_be_deleted_and_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let node = lone_node(dir.path());
    let group = open_lone(&node, key(1, 0), dir.path(), LogConfig::default()).await;
    produce(&group, batch(1, b"old")).await.unwrap();
    let old = Arc::clone(&group);
    let renamed = node.delete_group(key(1, 0)).await.unwrap();
    assert!(
        renamed.to_string_lossy().ends_with("-delete"),
        "{renamed:?}"
    );
    assert!(matches!(
        propose(&group, batch(1, b"late")),
        Err(ProposeError::Closed)
    ));
    // Housekeeping goes through groups that were there when it began.
    old.checkpoint().await.unwrap();
    let group = open_lone(&node, key(1, 0), dir.path(), LogConfig::default()).await;
    let outcome = produce(&group, batch(1, b"new")).await.unwrap();
    assert_eq!(outcome.base_offset, Offset::ZERO);
    assert_eq!(outcome.leader_epoch.get(), 1);
    let recovery_point = group_dir(dir.path(), key(1, 0)).join("recovery-point");
    let before = std::fs::read(&recovery_point).ok();
    old.checkpoint().await.unwrap();
    old.run_retention(TimestampMs::new(i64::MAX)).await.unwrap();
    assert_eq!(std::fs::read(&recovery_point).ok(), before);
    group.checkpoint().await.unwrap();
    assert_ne!(std::fs::read(&recovery_point).ok(), before);
    node.shutdown().await.unwrap();
}

/// Ten batches, written, closed and found again as `damage` left the files of the group.
async fn reopened_after(damage: impl Fn(&std::path::Path)) -> (Result<(), String>, bool) {
    let dir = tempfile::tempdir().unwrap();
    let node = lone_node(dir.path());
    let group = open_lone(&node, key(1, 0), dir.path(), LogConfig::default()).await;
    for _ in 0..10 {
        produce(&group, batch(2, b"value")).await.unwrap();
    }
    node.shutdown().await.unwrap();
    let group_dir = group_dir(dir.path(), key(1, 0));
    let segment = group_dir.join("00000000000000000000.log");
    let before = std::fs::read(&segment).unwrap();
    damage(&group_dir);
    let node = lone_node(dir.path());
    let spec = lone_spec(key(1, 0), dir.path(), LogConfig::default());
    let opened = match node.open_group(spec, Arc::new(NoObserver)).await {
        Err(error) => Err(error.to_string()),
        Ok(group) => {
            group.wait_until_ready().await.unwrap();
            assert_eq!(group.offsets().high_watermark.get(), 20);
            produce(&group, batch(1, b"more")).await.unwrap();
            Ok(())
        }
    };
    let after = std::fs::read(&segment).unwrap();
    (opened, after.starts_with(&before))
}

#[tokio::test]
async fn a_lost_or_damaged_journal_is_refused_and_no_acknowledged_record_is_cut() {
    let journal = |dir: &std::path::Path| dir.join("raft.journal");
    let flip = |at: usize| {
        move |dir: &std::path::Path| {
            let mut bytes = std::fs::read(journal(dir)).unwrap();
            let at = at.min(bytes.len() - 1);
            bytes[at] ^= 1;
            std::fs::write(journal(dir), bytes).unwrap();
        }
    };
    for at in [0, 20, 60, 100, usize::MAX] {
        let (opened, intact) = reopened_after(flip(at)).await;
        assert!(intact, "flip at {at}");
        if let Err(error) = opened {
            assert!(error.contains("journal"), "{error}");
        }
    }
    let (opened, intact) = reopened_after(|dir| std::fs::remove_file(journal(dir)).unwrap()).await;
    assert!(opened.is_err() && intact, "removed");
    let (opened, intact) = reopened_after(|dir| std::fs::write(journal(dir), b"").unwrap()).await;
    assert!(opened.is_err() && intact, "empty");
}

#[tokio::test]
async fn the_only_voter_finds_its_term_again_in_the_log_when_its_votes_are_lost() {
    let (opened, intact) = reopened_after(|dir| {
        std::fs::remove_file(dir.parent().unwrap().join("raft.votes")).unwrap();
    })
    .await;
    opened.unwrap();
    assert!(intact);
}
