//! How openraft reads a log.
//!
//! Three readers, three needs. The replication path ([`limited_get_log_entries`]) gets whole
//! batches from the segments, as many as fit [`READ_MAX_BYTES`]. The apply path
//! ([`entries_stream`]) gets entries without payloads: the batches are where they belong already,
//! and in the steady state nothing is read from the disk. openraft's own look at the log on start
//! ([`try_get_log_entries`]) concerns memberships and terms, which are all in memory.
//!
//! [`limited_get_log_entries`]: RaftLogReader::limited_get_log_entries
//! [`entries_stream`]: RaftLogReader::entries_stream
//! [`try_get_log_entries`]: RaftLogReader::try_get_log_entries

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds, RangeInclusive};

use bytes::Bytes;
use futures_util::Stream;
use odradek_protocol::batch::BatchHeader;
use odradek_protocol::ids::Offset;
use odradek_storage::ReadSlice;
use openraft::storage::RaftLogReader;

use crate::error::RaftError;
use crate::log_core::{CoreHandle, Piece, nth_header};
use crate::types::{
    BatchCommand, Command, Entry, LogId, Payload, RaftIndex, Stamp, TypeConfig, Vote, log_id,
};

/// Most bytes of batches read for one append request, unless the first alone is larger.
pub(crate) const READ_MAX_BYTES: usize = 1 << 20;
/// Entries at the end of a log that count as being in the page cache.
const RECENT_ENTRIES: u64 = 256;
/// Entries that the apply path takes at a time.
const APPLY_CHUNK: u64 = 512;

/// Reads the entries of one group.
pub(crate) struct EntryReader {
    core: CoreHandle,
    /// Where the last read ended, so that the next one need not count from the last mark.
    cursor: Option<Cursor>,
}

struct Cursor {
    generation: u64,
    index: RaftIndex,
    offset: Offset,
}

impl EntryReader {
    pub(crate) fn new(core: CoreHandle) -> Self {
        Self { core, cursor: None }
    }

    /// Offset of the batch with index `first`.
    fn offset_of(
        &self,
        generation: u64,
        first: RaftIndex,
        anchor: Offset,
        ordinal: u64,
    ) -> Result<Offset, RaftError> {
        if let Some(cursor) = &self.cursor
            && cursor.generation == generation
            && cursor.index == first
        {
            return Ok(cursor.offset);
        }
        match ordinal.checked_sub(1) {
            None => Ok(anchor),
            Some(before) => Ok(nth_header(&self.core.reader, anchor, before)?.next_offset()),
        }
    }

    async fn read_batches(
        &mut self,
        generation: u64,
        piece: &Piece,
        max_bytes: usize,
        entries: &mut Vec<Entry>,
    ) -> Result<usize, RaftError> {
        let Piece::Batches {
            first,
            term,
            anchor,
            ordinal,
            count,
        } = *piece
        else {
            return Ok(0);
        };
        let from = self.offset_of(generation, first, anchor, ordinal)?;
        let reader = &self.core.reader;
        let slice = reader.read(from, max_bytes, reader.log_end(), entries.is_empty())?;
        let recent = self.core.next_index().get() - first.get() <= RECENT_ENTRIES;
        let bytes = read_slice(slice, recent).await?;
        let mut rest = bytes;
        let mut index = first;
        let mut next = from;
        let mut taken = 0;
        while index.get() < first.get() + count
            && let Some((header, batch)) = split_batch(&mut rest)
        {
            if header.base_offset != next {
                return Err(RaftError::MissingBatch {
                    anchor: from,
                    ordinal: index.get() - first.get(),
                });
            }
            taken += batch.len();
            next = header.next_offset();
            entries.push(Entry {
                log_id: log_id(term, index.get()),
                payload: Payload::Normal(Command::Batch(Box::new(BatchCommand {
                    bytes: batch,
                    header,
                    stamp: Stamp::Final,
                    waiter: None,
                }))),
            });
            index = index.next();
        }
        self.cursor = Some(Cursor {
            generation,
            index,
            offset: next,
        });
        Ok(taken)
    }

    /// Reads entries from `from` on, or none if that one is not there any more: a replica that is
    /// so far behind may be read for while the log is purged, and openraft then sends an empty
    /// request and turns to a snapshot.
    async fn read(&mut self, from: RaftIndex, to: RaftIndex) -> Result<Vec<Entry>, RaftError> {
        let Some((generation, pieces)) = self.core.plan(from, to) else {
            return Ok(Vec::new());
        };
        let mut entries = Vec::new();
        let mut left = READ_MAX_BYTES;
        for piece in pieces {
            if let Piece::Entry(entry) = piece {
                entries.push(entry);
                continue;
            }
            let before = entries.len() as u64;
            let taken = self
                .read_batches(generation, &piece, left, &mut entries)
                .await?;
            left = left.saturating_sub(taken);
            let complete = matches!(piece, Piece::Batches { count, .. }
                if entries.len() as u64 - before == count);
            if !complete {
                break;
            }
        }
        // A truncation in between means that another node leads: nothing read then may be sent.
        if self.core.generation() != generation {
            return Ok(Vec::new());
        }
        Ok(entries)
    }
}

/// Reads at once what was written lately, for it is in the page cache, and the rest on a thread
/// that may wait for the disk.
async fn read_slice(slice: ReadSlice, recent: bool) -> Result<Bytes, RaftError> {
    let read = if recent {
        slice.read()
    } else {
        tokio::task::spawn_blocking(move || slice.read())
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)))
    };
    read.map_err(|error| RaftError::io("read batches", error))
}

/// Takes the first batch off `bytes`, if it is whole.
fn split_batch(bytes: &mut Bytes) -> Option<(BatchHeader, Bytes)> {
    let header = BatchHeader::parse(bytes).ok()?;
    let size = header.size_in_bytes();
    (size <= bytes.len()).then(|| (header, bytes.split_to(size)))
}

fn bounds(range: &impl RangeBounds<u64>) -> (RaftIndex, RaftIndex) {
    let from = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(end) => end.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    (RaftIndex::new(from), RaftIndex::new(to))
}

impl RaftLogReader<TypeConfig> for EntryReader {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<Entry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + Send,
    {
        let (from, to) = bounds(&range);
        Ok(self.core.entry_heads(from, to))
    }

    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = io::Result<Entry>> + Send
    where
        RB: RangeBounds<u64> + Clone + Debug + Send,
    {
        let (from, to) = bounds(&range);
        let core = self.core.clone();
        let mut next = from;
        let mut taken = VecDeque::new();
        futures_util::stream::iter(std::iter::from_fn(move || {
            if taken.is_empty() && next < to {
                let end = RaftIndex::new(to.get().min(next.get() + APPLY_CHUNK));
                match core.take_entry_heads(next, end) {
                    Ok(heads) => taken = heads.into(),
                    Err(error) => return Some(Err(error)),
                }
                next = end;
            }
            taken.pop_front().map(Ok)
        }))
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.core.votes.get(self.core.shared.key()))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.read(RaftIndex::new(start), RaftIndex::new(end))
            .await
            .map_err(io::Error::other)
    }

    async fn get_key_log_ids(&mut self, range: RangeInclusive<LogId>) -> io::Result<Vec<LogId>> {
        Ok(self.core.key_log_ids(*range.start(), *range.end()))
    }
}
