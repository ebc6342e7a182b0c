//! Finding entries in a group's log: those that are not batches in the map, batches by counting from
//! the nearest mark, and the newest ones in memory.

use odradek_protocol::batch::BatchHeader;
use odradek_protocol::ids::Offset;
use odradek_storage::LogReader;

use super::state::{State, Unapplied};
use crate::entry_map::{Location, NonData};
use crate::error::RaftError;
use crate::types::{AppendOutcome, AppliedBatch, Command, Entry, Payload, RaftIndex, log_id};
use crate::waiter::CommitWaiter;

/// A run of entries as the replication path reads them.
pub(crate) enum Piece {
    /// Not a batch: complete.
    Entry(Entry),
    /// `count` batches from `first` on, to be found by skipping `ordinal` batches from `anchor`.
    Batches {
        first: RaftIndex,
        term: u64,
        anchor: Offset,
        ordinal: u64,
        count: u64,
    },
}

impl State {
    /// Offset at which an entry begins, or would.
    pub(super) fn offset_of(&self, index: RaftIndex) -> Result<Offset, RaftError> {
        if index >= self.map.next_index() {
            return Ok(self.map.next_offset());
        }
        if let Some(unapplied) = self.unapplied_at(index) {
            return Ok(unapplied.outcome.base_offset);
        }
        match self.map.locate(index) {
            Location::NonData { offset, .. } => Ok(offset),
            Location::Batch {
                anchor_offset,
                ordinal,
                ..
            } => match ordinal.checked_sub(1) {
                None => Ok(anchor_offset),
                Some(before) => {
                    let header = nth_header(&self.log.reader(), anchor_offset, before)?;
                    Ok(header.next_offset())
                }
            },
            Location::Absent => Err(RaftError::MissingEntry { index: index.get() }),
        }
    }

    pub(super) fn unapplied_at(&self, index: RaftIndex) -> Option<&Unapplied> {
        let at = self
            .unapplied
            .partition_point(|unapplied| unapplied.index < index);
        self.unapplied
            .get(at)
            .filter(|unapplied| unapplied.index == index)
    }

    pub(super) fn head(&self, index: RaftIndex) -> Option<Entry> {
        let (term, payload) = match self.map.locate(index) {
            Location::Absent => return None,
            Location::NonData { term, entry, .. } => (term, payload_of(entry)),
            Location::Batch { term, .. } => {
                let outcome = self.unapplied_at(index).map(|unapplied| unapplied.outcome);
                (term, applied(outcome, None))
            }
        };
        Some(Entry {
            log_id: log_id(term, index.get()),
            payload,
        })
    }

    pub(super) fn take_heads(
        &mut self,
        from: RaftIndex,
        to: RaftIndex,
    ) -> Result<Vec<Entry>, RaftError> {
        let mut heads = Vec::with_capacity((to.get().saturating_sub(from.get())) as usize);
        for index in from.get()..to.get() {
            let index = RaftIndex::new(index);
            let Some(mut entry) = self.head(index) else {
                return Err(RaftError::MissingEntry { index: index.get() });
            };
            while self
                .unapplied
                .front()
                .is_some_and(|unapplied| unapplied.index <= index)
            {
                let taken = self.unapplied.pop_front();
                if let Some(Unapplied {
                    index: at,
                    outcome,
                    waiter,
                }) = taken
                    && at == index
                {
                    entry.payload = applied(Some(outcome), waiter);
                }
            }
            heads.push(entry);
        }
        if let Some(last) = heads.last_mut()
            && let Payload::Normal(Command::Applied(AppliedBatch { outcome: None, .. })) =
                &last.payload
        {
            let outcome = self.stored_outcome(RaftIndex::new(last.log_id.index()))?;
            last.payload = applied(Some(outcome), None);
        }
        Ok(heads)
    }

    /// Where a stored batch lies, from its header.
    pub(super) fn stored_outcome(&self, index: RaftIndex) -> Result<AppendOutcome, RaftError> {
        let Location::Batch {
            anchor_offset,
            ordinal,
            ..
        } = self.map.locate(index)
        else {
            return Err(RaftError::MissingEntry { index: index.get() });
        };
        let header = nth_header(&self.log.reader(), anchor_offset, ordinal)?;
        Ok(AppendOutcome {
            base_offset: header.base_offset,
            last_offset: header.last_offset(),
            leader_epoch: header.partition_leader_epoch,
            log_start: self.map.purged().log_start,
        })
    }

    pub(super) fn plan(&self, from: RaftIndex, to: RaftIndex) -> Vec<Piece> {
        let to = to.min(self.map.next_index());
        let mut pieces = Vec::new();
        for index in from.get()..to.get() {
            let index = RaftIndex::new(index);
            match self.map.locate(index) {
                Location::Absent => break,
                Location::NonData { term, entry, .. } => pieces.push(Piece::Entry(Entry {
                    log_id: log_id(term, index.get()),
                    payload: payload_of(entry),
                })),
                Location::Batch {
                    term,
                    anchor_offset,
                    ordinal,
                } => {
                    if let Some(Piece::Batches { count, .. }) = pieces.last_mut() {
                        *count += 1;
                    } else {
                        pieces.push(Piece::Batches {
                            first: index,
                            term,
                            anchor: anchor_offset,
                            ordinal,
                            count: 1,
                        });
                    }
                }
            }
        }
        pieces
    }
}

/// Header of the batch that is `ordinal` batches after the one at `anchor`.
pub(crate) fn nth_header(
    reader: &LogReader,
    anchor: Offset,
    ordinal: u64,
) -> Result<BatchHeader, RaftError> {
    let mut headers = reader.headers_from(anchor, reader.log_end())?;
    let mut left = ordinal;
    loop {
        let Some(next) = headers.next().transpose()? else {
            return Err(RaftError::MissingBatch { anchor, ordinal });
        };
        match left.checked_sub(1) {
            None => return Ok(next.header),
            Some(fewer) => left = fewer,
        }
    }
}

fn payload_of(entry: &NonData) -> Payload {
    match entry {
        NonData::Blank => Payload::Blank,
        NonData::Membership(membership) => Payload::Membership(membership.clone()),
        NonData::LogStart(offset) => Payload::Normal(Command::LogStart(*offset)),
    }
}

fn applied(outcome: Option<AppendOutcome>, waiter: Option<CommitWaiter>) -> Payload {
    Payload::Normal(Command::Applied(AppliedBatch { outcome, waiter }))
}
