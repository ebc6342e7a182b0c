//! How much of a segment can be relied on by its indexes, without reading all of it.

use odradek_protocol::ids::Offset;

use crate::error::StorageError;
use crate::index::relative;
use crate::producer_state::EndTxnMarker;
use crate::scan::ScanError;
use crate::segment::{Segment, SegmentEnd};
use crate::txn_index::AbortedTxn;

/// Whether the last index entries lie within the segment: all that is looked at when the segment
/// is trusted.
pub(super) fn looks_sane(segment: &Segment) -> Result<bool, StorageError> {
    let end = segment.end();
    let relative_end = relative(segment.base_offset, end.next_offset);
    let offsets = segment
        .offset_index
        .last()
        .is_none_or(|last| last.position < end.size && last.relative_offset < relative_end);
    let last_time = segment
        .time_index
        .last()
        .map_err(|error| StorageError::io("read index of", segment.log.path(), error))?;
    let times = match last_time {
        Some(last) => last.relative_offset < relative_end && last.timestamp.get() >= 0,
        // Every offset entry comes with a time entry, unless no record has a timestamp at all.
        None => segment.offset_index.entries() == 0,
    };
    Ok(offsets && times)
}

/// Where a segment that was closed ends, from the headers after its last index entry; `None` if
/// they are not in order.
pub(super) fn find_tail(segment: &Segment, size: u32) -> Result<Option<SegmentEnd>, StorageError> {
    let last = segment.offset_index.last();
    let start = last.map_or(0, |entry| entry.position);
    if start > size {
        return Ok(None);
    }
    let mut next_offset = segment.base_offset;
    let mut scanner = segment.scan_headers(start, size)?;
    loop {
        match scanner.next_header() {
            Ok(Some((header, position))) => {
                let indexed = last.filter(|_| position == start).is_none_or(|entry| {
                    relative(segment.base_offset, header.last_offset()) == entry.relative_offset
                });
                if !indexed || header.base_offset < next_offset {
                    return Ok(None);
                }
                next_offset = header.next_offset();
            }
            Ok(None) => return Ok(Some(SegmentEnd { next_offset, size })),
            Err(ScanError::Malformed { .. }) => return Ok(None),
            Err(ScanError::Io(error)) => {
                return Err(StorageError::io("read", segment.log.path(), error));
            }
        }
    }
}

/// From where a segment has to be checked.
pub(super) struct Resume {
    /// Entries of the offset index that stay.
    pub(super) offset_entries: u32,
    /// Entries of the time index that stay.
    pub(super) time_entries: u32,
    /// Position of the first batch to check: that of the last offset entry that stays.
    pub(super) position: u32,
    /// Its base offset.
    pub(super) from: Offset,
}

/// Where checking may begin in a segment of which everything below `safe` is durable: at the batch
/// of the last index entry below it, if the entries up to there are as they must be.
pub(super) fn trusted_boundary(
    segment: &Segment,
    size: u32,
    safe: Offset,
) -> Result<Option<Resume>, StorageError> {
    let io = |error| StorageError::io("read index of", segment.log.path(), error);
    let safe = relative(segment.base_offset, safe);
    let offset_entries = segment.offset_index.count_below(safe).map_err(io)?;
    let Some(last) = segment
        .offset_index
        .last_of_sane(offset_entries, size, safe)
        .map_err(io)?
    else {
        return Ok(None);
    };
    let time_entries = segment
        .time_index
        .count_below(last.relative_offset.saturating_add(1))
        .map_err(io)?;
    // As in `looks_sane`: offset entries without any time entry are not to be relied on.
    if time_entries == 0
        || !segment
            .time_index
            .is_sane(time_entries, last.relative_offset.saturating_add(1))
            .map_err(io)?
    {
        return Ok(None);
    }
    let mut scanner = segment.scan_headers(last.position, size)?;
    match scanner.next_header() {
        Ok(Some((header, position)))
            if relative(segment.base_offset, header.last_offset()) == last.relative_offset =>
        {
            Ok(Some(Resume {
                offset_entries,
                time_entries,
                position,
                from: header.base_offset,
            }))
        }
        Ok(_) | Err(ScanError::Malformed { .. }) => Ok(None),
        Err(ScanError::Io(error)) => Err(io(error)),
    }
}

/// How many entries of a segment's transaction index are of abort markers below `from`, whose batch is at `position`.
/// Everything below there is durable, so its entries come first and are whole; of those after them, which may be torn,
/// the first that does not follow ends the list, and only the one before it needs to be looked up in the log.
pub(super) fn trusted_aborted(
    segment: &Segment,
    position: u32,
    from: Offset,
) -> Result<usize, StorageError> {
    let mut entries = segment
        .txn_index
        .read_in_order(segment.base_offset, from)
        .map_err(|error| {
            StorageError::io("read transaction index of", segment.log.path(), error)
        })?;
    while let Some(last) = entries.last() {
        if is_aborted_at(segment, position, last)? {
            break;
        }
        entries.pop();
    }
    Ok(entries.len())
}

/// Whether the batches before `position` have the marker that an entry of the transaction index tells of.
fn is_aborted_at(
    segment: &Segment,
    position: u32,
    entry: &AbortedTxn,
) -> Result<bool, StorageError> {
    let read = |error| StorageError::io("read", segment.log.path(), error);
    let start = segment
        .offset_index
        .position_for(relative(segment.base_offset, entry.last_offset))
        .map_err(read)?;
    let mut scanner = segment.scan_headers(start.min(position), position)?;
    while let Some((header, at)) = segment.checked(scanner.next_header())? {
        if header.last_offset() < entry.last_offset {
            continue;
        }
        if header.base_offset != entry.last_offset
            || header.producer_id != entry.producer_id
            || !header.is_control()
        {
            return Ok(false);
        }
        let batch = scanner.read_batch(&header, at).map_err(read)?;
        return Ok(EndTxnMarker::parse(&header, &batch).is_some_and(|marker| marker.aborted));
    }
    Ok(false)
}
