//! Kafka's `.snapshot` files: the state of the producers at the offset in the file's name.
//!
//! `version i16 = 1, crc u32 (CRC-32C of what follows), count i32`, then per producer `id i64,
//! epoch i16, last sequence i32, last offset i64, offset delta i32, timestamp i64, coordinator
//! epoch i32, first offset of the open transaction i64`. As in Kafka only the last batch of a
//! producer is kept, so right after a restart a repetition of an older one is out of order.

use std::collections::VecDeque;

use odradek_protocol::ids::{Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs};

use crate::producer_state::{ProducerEntry, ProducerStates, RememberedBatch};

const VERSION: i16 = 1;
const CRC_AT: usize = 2;
const ENTRIES_AT: usize = 6;
const ENTRY_BYTES: usize = 46;

/// Largest snapshot that is read: a million producers.
pub(crate) const MAX_BYTES: usize = 64 << 20;

/// The file's content for `states`.
pub(crate) fn encode(states: &ProducerStates) -> Vec<u8> {
    let mut producers: Vec<_> = states.iter().collect();
    producers.sort_by_key(|(id, _)| *id);
    let mut bytes = Vec::with_capacity(ENTRIES_AT + 4 + producers.len() * ENTRY_BYTES);
    bytes.extend(VERSION.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend((producers.len() as i32).to_be_bytes());
    for (id, entry) in producers {
        let delta = entry.batches.back().map_or(0, |batch| batch.offset_delta);
        let txn = entry.current_txn_first_offset.unwrap_or(Offset::NONE);
        bytes.extend(id.get().to_be_bytes());
        bytes.extend(entry.epoch.get().to_be_bytes());
        bytes.extend(entry.last_sequence().get().to_be_bytes());
        bytes.extend(entry.last_offset().get().to_be_bytes());
        bytes.extend(delta.to_be_bytes());
        bytes.extend(entry.last_timestamp.get().to_be_bytes());
        bytes.extend(entry.coordinator_epoch.to_be_bytes());
        bytes.extend(txn.get().to_be_bytes());
    }
    let crc = crc32c::crc32c(bytes.get(ENTRIES_AT..).unwrap_or_default());
    if let Some(field) = bytes.get_mut(CRC_AT..ENTRIES_AT) {
        field.copy_from_slice(&crc.to_be_bytes());
    }
    bytes
}

/// Reads a file's content; the error says what is wrong with it.
pub(crate) fn decode(bytes: &[u8]) -> Result<ProducerStates, &'static str> {
    const SHORT: &str = "snapshot breaks off";
    let mut rest = bytes;
    if i16::from_be_bytes(take(&mut rest).ok_or(SHORT)?) != VERSION {
        return Err("unknown snapshot version");
    }
    let crc = u32::from_be_bytes(take(&mut rest).ok_or(SHORT)?);
    if crc32c::crc32c(rest) != crc {
        return Err("wrong CRC of a snapshot");
    }
    let count = i32::from_be_bytes(take(&mut rest).ok_or(SHORT)?);
    let mut states = ProducerStates::default();
    for _ in 0..count {
        let (id, entry) = take_entry(&mut rest).ok_or(SHORT)?;
        states.restore(id, entry);
    }
    if rest.is_empty() {
        Ok(states)
    } else {
        Err("bytes left over in a snapshot")
    }
}

fn take_entry(rest: &mut &[u8]) -> Option<(ProducerId, ProducerEntry)> {
    let id = i64::from_be_bytes(take(rest)?);
    let epoch = i16::from_be_bytes(take(rest)?);
    let last_sequence = i32::from_be_bytes(take(rest)?);
    let last_offset = i64::from_be_bytes(take(rest)?);
    let offset_delta = i32::from_be_bytes(take(rest)?);
    let timestamp = TimestampMs::new(i64::from_be_bytes(take(rest)?));
    let coordinator_epoch = i32::from_be_bytes(take(rest)?);
    let txn = i64::from_be_bytes(take(rest)?);
    let mut batches = VecDeque::new();
    if last_offset >= 0 {
        batches.push_back(RememberedBatch {
            last_sequence: Sequence::new(last_sequence),
            last_offset: Offset::new(last_offset),
            offset_delta,
            timestamp,
        });
    }
    Some((
        ProducerId::new(id),
        ProducerEntry {
            epoch: ProducerEpoch::new(epoch),
            coordinator_epoch,
            last_timestamp: timestamp,
            current_txn_first_offset: (txn >= 0).then(|| Offset::new(txn)),
            seen_only_in_marker: false,
            batches,
        },
    ))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*taken)
}
