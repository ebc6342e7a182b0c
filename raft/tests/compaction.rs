//! Compaction of a group's log: entries go before records do, and a restart finds the same.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod support;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use odradek_protocol::batch::BatchIter;
use odradek_protocol::ids::{Offset, TimestampMs};
use odradek_protocol::records::{BatchBuilder, NewRecord, RecordWalker};
use odradek_raft::{CompactionOutcome, CompactionRequest, Group};
use odradek_storage::{CompactionConfig, LogConfig};
use support::*;

const NOW: TimestampMs = TimestampMs::new(1_700_000_000_000);

fn keyed(key: &str, value: &str) -> Bytes {
    BatchBuilder::new()
        .record(NewRecord {
            timestamp: NOW,
            key: Some(key.as_bytes()),
            value: Some(value.as_bytes()),
            headers: &[],
        })
        .build()
}

fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 2048,
        compacted: true,
        delete_old_segments: false,
        file_delete_delay_ms: 0,
        ..LogConfig::default()
    }
}

async fn compact(group: &Group) -> Option<CompactionOutcome> {
    let request = CompactionRequest {
        config: CompactionConfig::default(),
        map_bytes: 1 << 16,
        now: NOW,
        pace: Box::new(|_| ControlFlow::Continue(())),
    };
    group.compact(request).await.unwrap()
}

fn newest(group: &Group) -> (usize, BTreeMap<String, String>) {
    let bytes = log_bytes(group);
    let mut count = 0;
    let mut found = BTreeMap::new();
    for batch in BatchIter::new(&bytes) {
        let batch = batch.unwrap();
        for record in RecordWalker::of_batch(&batch.header, batch.bytes) {
            let record = record.unwrap();
            let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
            found.insert(text(record.key), text(record.value));
            count += 1;
        }
    }
    (count, found)
}

#[tokio::test]
async fn what_was_overtaken_goes_and_a_restart_finds_the_rest_at_its_offsets() {
    let dir = tempfile::tempdir().unwrap();
    let mut clean_end = Offset::ZERO;
    let mut expected = BTreeMap::new();
    let mut produced = 0;
    for round in 0..4 {
        let node = lone_node(dir.path());
        let group = open_lone(&node, key(1, 0), dir.path(), config()).await;
        assert_eq!(group.offsets().high_watermark.get(), produced);
        assert_eq!(group.offsets().log_start.get(), 0);
        assert_eq!(newest(&group).1, expected, "round {round}");
        for i in 0..300 {
            let (key, value) = (format!("key-{}", i % 10), format!("{round}-{i}"));
            let outcome = produce(&group, keyed(&key, &value)).await.unwrap();
            assert_eq!(outcome.base_offset, Offset::new(produced));
            expected.insert(key, value);
            produced += 1;
        }
        let outcome = compact(&group).await.unwrap();
        assert!(outcome.clean_end > clean_end);
        assert!(outcome.stats.records_dropped > 200, "{outcome:?}");
        clean_end = outcome.clean_end;
        let (left, found) = newest(&group);
        assert_eq!(found, expected);
        assert!(left < 100, "{left} records are left");
        assert_eq!(compact(&group).await, None);
        if round % 2 == 0 {
            node.shutdown().await.unwrap();
        } else {
            node.abandon().await;
        }
    }
}

#[tokio::test]
async fn retention_and_deletion_go_on_below_and_above_what_was_compacted() {
    let dir = tempfile::tempdir().unwrap();
    let node = lone_node(dir.path());
    let group = open_lone(&node, key(1, 0), dir.path(), config()).await;
    for i in 0..400 {
        let key = format!("key-{}", i % 100);
        produce(&group, keyed(&key, "value")).await.unwrap();
    }
    let outcome = compact(&group).await.unwrap();
    let compacted_end = outcome.clean_end.get();
    for offset in [compacted_end - 40, compacted_end + 10, 400] {
        let offset = Offset::new(offset);
        assert_eq!(group.advance_log_start(offset).await.unwrap(), offset);
        produce(&group, keyed("more", "value")).await.unwrap();
    }
    for _ in 0..200 {
        if group.reader().segment_bases()[0] >= Offset::new(compacted_end) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let left = group.reader().segment_bases();
    assert!(left[0] >= Offset::new(compacted_end), "{left:?}");
    drop(group);
    node.shutdown().await.unwrap();
    let node = lone_node(dir.path());
    let group = open_lone(&node, key(1, 0), dir.path(), config()).await;
    assert_eq!(group.offsets().log_start.get(), 400);
    assert_eq!(group.offsets().high_watermark.get(), 403);
    assert!(newest(&group).0 < 60);
}
