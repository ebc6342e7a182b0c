//! The producers' state of a log that is being opened or cut: the newest usable snapshot, and the
//! batches after it.

use std::sync::Arc;

use odradek_protocol::batch::BatchHeader;
use odradek_protocol::ids::Offset;

use crate::error::StorageError;
use crate::file_names::{SNAPSHOT_SUFFIX, offset_file};
use crate::log::Log;
use crate::producer_snapshot;
use crate::producer_state::{EndTxnMarker, ProducerStates};
use crate::segment::Segment;

/// Offset index entries, counted from the end of a segment, after which batches are looked at for
/// what a producer snapshot leaves out.
const RECALLED_ENTRIES: u32 = 32;

impl Log {
    /// Brings the producers' state up to the log end from the newest usable snapshot. Aborted
    /// transactions that end at `index_from` or after are added to the transaction indexes.
    pub(crate) fn reload_producers(
        &mut self,
        index_from: Option<Offset>,
    ) -> Result<(), StorageError> {
        let log_end = self.next_offset();
        let mut states = ProducerStates::default();
        let mut from = Offset::ZERO;
        while let Some(newest) = self.snapshots.range(..=log_end).next_back().copied() {
            let path = offset_file(&self.dir, newest, SNAPSHOT_SUFFIX);
            let content = self.disk.read_file(&path, producer_snapshot::MAX_BYTES);
            match content
                .map_err(|error| error.to_string())
                .and_then(|content| producer_snapshot::decode(&content).map_err(str::to_string))
            {
                Ok(restored) => {
                    states = restored;
                    from = newest;
                    break;
                }
                Err(reason) => {
                    tracing::warn!(path = %path.display(), reason, "unusable producer snapshot");
                    self.remove_snapshot(newest)?;
                }
            }
        }
        let segments = self.shared.segments.load_full();
        if !states.is_empty() {
            states.recall(&headers_before(&segments, from)?);
        }
        for segment in segments.iter() {
            let end = segment.end();
            if end.next_offset <= from {
                continue;
            }
            if segment.base_offset > from {
                // Each segment has a snapshot at its base, so that those before it can go.
                self.take_snapshot(segment.base_offset, &states)?;
            }
            let start = segment.end_below(from, end)?.size;
            let mut scanner = segment.scan_headers(start, end.size)?;
            while let Some((header, position)) = segment.checked(scanner.next_header())? {
                if !header.has_producer_id() {
                    continue;
                }
                let marker = if header.is_control() {
                    let batch = scanner
                        .read_batch(&header, position)
                        .map_err(|error| StorageError::io("read", segment.log.path(), error))?;
                    EndTxnMarker::parse(&header, &batch)
                } else {
                    None
                };
                let completed = states.update(&header, marker);
                if let Some(txn) = completed
                    && txn.aborted
                    && index_from.is_some_and(|from| txn.last_offset >= from)
                {
                    segment.txn_index.append(txn.into()).map_err(|error| {
                        StorageError::io("write transaction index of", segment.log.path(), error)
                    })?;
                }
            }
        }
        states.on_log_start(self.log_start());
        let mut shared = self.shared.producers.lock();
        states.hold_back_as_before(&shared, log_end);
        *shared = states;
        Ok(())
    }
}

/// Headers of some batches right before `offset`, in order: enough for what producers have in
/// flight, few enough to read at every start.
fn headers_before(
    segments: &[Arc<Segment>],
    offset: Offset,
) -> Result<Vec<BatchHeader>, StorageError> {
    let upto = segments.partition_point(|segment| segment.base_offset < offset);
    let mut headers = Vec::new();
    for segment in segments.iter().take(upto).skip(upto.saturating_sub(2)) {
        let end = segment.end_below(offset, segment.end())?;
        let start = segment
            .offset_index
            .position_of_entry_from_end(RECALLED_ENTRIES)
            .map_err(|error| StorageError::io("read index of", segment.log.path(), error))?;
        let mut scanner = segment.scan_headers(start.min(end.size), end.size)?;
        while let Some((header, _)) = segment.checked(scanner.next_header())? {
            headers.push(header);
        }
    }
    Ok(headers)
}
