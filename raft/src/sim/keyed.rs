//! Records with keys, and what of them a compacted log has to show.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use odradek_protocol::batch::{BatchHeader, BatchIter};
use odradek_protocol::ids::{Offset, TimestampMs};
use odradek_protocol::records::{BatchBuilder, NewRecord, RecordWalker};
use odradek_storage::CompactionConfig;
use tokio::sync::oneshot;

use super::Committed;
use crate::{CompactionOutcome, CompactionRequest, Group, Proposal, ProposeError, RaftError};

/// How many keys there are.
const KEYS: u64 = 23;
/// Tombstones stay so long behind the first compaction that sees them.
pub(super) const DELETE_RETENTION_MS: u64 = 2_000;

/// A record: its key, and its value if it has one.
pub(super) type Record = (u64, Option<u64>);

/// The records of a batch, by who it says it is.
pub(super) fn records_of(id: u64) -> Vec<Record> {
    let one = |at: u64| {
        let is_tombstone = (id + at).is_multiple_of(9);
        ((id * 7 + at) % KEYS, (!is_tombstone).then_some(id * 4 + at))
    };
    (0..=id % 3).map(one).collect()
}

fn batch(id: u64) -> Bytes {
    let padding = vec![0; (id % 7 * 40) as usize];
    let mut builder = BatchBuilder::new();
    for (key, value) in records_of(id) {
        let value = value.map(|value| [&value.to_be_bytes()[..], &padding].concat());
        builder.push(NewRecord {
            timestamp: TimestampMs::new(1_700_000_000_000),
            key: Some(&key.to_be_bytes()),
            value: value.as_deref(),
            headers: &[],
        });
    }
    builder.build()
}

pub(super) fn propose(group: &Group, id: u64) -> Result<(Offset, Committed), ProposeError> {
    let batch = batch(id);
    let header = BatchHeader::parse(&batch).unwrap();
    let (committed_tx, committed) = oneshot::channel();
    let offset = group.propose(Proposal {
        batch,
        header,
        appended: None,
        committed: committed_tx,
    })?;
    Ok((offset, committed))
}

/// Appends batches and waits until they are committed.
pub(super) async fn produce(group: &Group, ids: impl Iterator<Item = u64>) {
    for id in ids {
        let (_, committed) = propose(group, id).unwrap();
        committed.await.unwrap().unwrap();
    }
}

/// Compacts as much as may be.
pub(super) async fn compact(
    group: &Group,
    now: TimestampMs,
) -> Result<Option<CompactionOutcome>, RaftError> {
    let request = CompactionRequest {
        config: CompactionConfig {
            min_dirty_ratio: 0.0,
            delete_retention_ms: DELETE_RETENTION_MS,
            ..CompactionConfig::default()
        },
        map_bytes: 1 << 12,
        now,
        pace: Box::new(|_| ControlFlow::Continue(())),
    };
    group.compact(request).await
}

/// Every record between two offsets.
pub(super) fn records(group: &Group, from: Offset, to: Offset) -> BTreeMap<i64, Record> {
    let reader = group.reader();
    let bytes = reader
        .read(from, usize::MAX, to, true)
        .unwrap()
        .read()
        .unwrap();
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes[..8].try_into().unwrap());
    let mut found = BTreeMap::new();
    let mut next = 0;
    for batch in BatchIter::new(&bytes) {
        let batch = batch.unwrap();
        let header = batch.header;
        assert!(header.base_offset.get() >= next, "batches ascend");
        next = header.next_offset().get();
        for record in RecordWalker::of_batch(&header, batch.bytes) {
            let record = record.unwrap();
            let offset = header.base_offset.get() + i64::from(record.offset_delta);
            let record = (number(record.key.unwrap()), record.value.map(number));
            if offset >= from.get() && offset < to.get() {
                found.insert(offset, record);
            }
        }
    }
    found
}

/// The newest record of each key, with its offset; keys whose newest is a tombstone are left out.
pub(super) fn newest(records: &BTreeMap<i64, Record>) -> BTreeMap<u64, (i64, u64)> {
    let mut newest = BTreeMap::new();
    for (offset, (key, value)) in records {
        match value {
            Some(value) => newest.insert(*key, (*offset, *value)),
            None => newest.remove(key),
        };
    }
    newest
}

/// What a reader finds in a replica from its first offset to the end of what is committed.
pub(super) fn state(group: &Group) -> BTreeMap<u64, (i64, u64)> {
    let offsets = group.offsets();
    newest(&records(
        group,
        offsets.log_start.offset(),
        offsets.high_watermark.offset(),
    ))
}
