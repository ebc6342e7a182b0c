//! Bytes of the records in `raft.journal` (`docs/FORMAT.md`). Decoding never panics and never
//! allocates by an unchecked count.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, BufMut, BytesMut};
use odradek_protocol::ids::Offset;

use crate::entry_map::{Mark, MarkKind, NonData, Pending, Purged};
use crate::types::{Incarnation, LogId, Membership, RaftIndex, StoredMembership, log_id, term_of};

const KIND_BLANK: u8 = 1;
const KIND_MEMBERSHIP: u8 = 2;
const KIND_LOG_START: u8 = 3;
const KIND_SEGMENT_ROLL: u8 = 4;
const KIND_PURGED: u8 = 5;
const KIND_CHECKPOINT: u8 = 6;
const KIND_INCARNATION: u8 = 8;
const KIND_PENDING: u8 = 9;
const KIND_CARRIED_OUT: u8 = 10;
/// "Nothing is to be cut off".
const NO_CUT: i64 = -1;
const PENDING_CUT: u8 = 1;
const PENDING_RESTART: u8 = 2;

/// A record of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// An entry that is not a batch, or an anchor.
    Mark(Mark),
    /// What was dropped; only the first record of a file, or the one after its incarnation.
    Purged(Purged),
    /// Which of the partition's groups the log is of, if not of the first; only the first record of a
    /// file. Earlier versions said here where the segments are to be cut off.
    Incarnation(Incarnation, Option<Offset>),
    /// What is to be done to the segments; only before what was dropped and before all marks.
    Pending(Pending),
    /// It has been done.
    CarriedOut,
}

/// Body of the record that says which incarnation it is.
pub(crate) fn encode_incarnation(incarnation: Incarnation) -> BytesMut {
    let mut out = BytesMut::with_capacity(13);
    out.put_u8(KIND_INCARNATION);
    out.put_u32(incarnation.get());
    out.put_i64(NO_CUT);
    out
}

/// Body of the record that says what is to be done to the segments.
pub(crate) fn encode_pending(pending: Pending) -> BytesMut {
    let mut out = BytesMut::with_capacity(10);
    let (what, offset) = match pending {
        Pending::Cut(offset) => (PENDING_CUT, offset),
        Pending::Restart(offset) => (PENDING_RESTART, offset),
    };
    out.put_u8(KIND_PENDING);
    out.put_u8(what);
    out.put_i64(offset.get());
    out
}

/// Body of the record that says that this has been done.
pub(crate) fn encode_carried_out() -> BytesMut {
    BytesMut::from(&[KIND_CARRIED_OUT][..])
}

/// Body of a mark's record.
pub(crate) fn encode_mark(mark: &Mark) -> BytesMut {
    let mut out = BytesMut::with_capacity(64);
    let kind = match &mark.kind {
        MarkKind::NonData(NonData::Blank) => KIND_BLANK,
        MarkKind::NonData(NonData::Membership(_)) => KIND_MEMBERSHIP,
        MarkKind::NonData(NonData::LogStart(_)) => KIND_LOG_START,
        MarkKind::SegmentRoll => KIND_SEGMENT_ROLL,
        MarkKind::Checkpoint { .. } => KIND_CHECKPOINT,
    };
    out.put_u8(kind);
    out.put_u64(mark.next_index.get());
    out.put_u64(mark.term);
    out.put_i64(mark.offset.get());
    match &mark.kind {
        MarkKind::NonData(NonData::Membership(membership)) => put_membership(&mut out, membership),
        MarkKind::NonData(NonData::LogStart(offset)) => out.put_i64(offset.get()),
        MarkKind::Checkpoint {
            high_watermark,
            committed_end,
        } => {
            out.put_i64(high_watermark.get());
            out.put_u64(committed_end.get());
        }
        MarkKind::NonData(NonData::Blank) | MarkKind::SegmentRoll => {}
    }
    out
}

/// Body of the record of what was dropped.
pub(crate) fn encode_purged(purged: &Purged) -> BytesMut {
    let mut out = BytesMut::with_capacity(64);
    out.put_u8(KIND_PURGED);
    put_log_id(&mut out, purged.last.as_ref());
    out.put_i64(purged.start_offset.get());
    out.put_i64(purged.log_start.get());
    put_log_id(&mut out, purged.membership.log_id().as_ref());
    put_membership(&mut out, purged.membership.membership());
    out
}

/// Reads a record's body; `None` if it is none of ours.
pub(crate) fn decode(mut body: &[u8]) -> Option<Record> {
    let kind = body.try_get_u8().ok()?;
    let record = if kind == KIND_INCARNATION {
        let incarnation = Incarnation::new(body.try_get_u32().ok()?);
        let cut = match body.try_get_i64().ok()? {
            NO_CUT => None,
            offset if offset >= 0 => Some(Offset::new(offset)),
            _ => return None,
        };
        Record::Incarnation(incarnation, cut)
    } else if kind == KIND_PENDING {
        let what = body.try_get_u8().ok()?;
        let offset = Offset::new(body.try_get_i64().ok().filter(|offset| *offset >= 0)?);
        Record::Pending(match what {
            PENDING_CUT => Pending::Cut(offset),
            PENDING_RESTART => Pending::Restart(offset),
            _ => return None,
        })
    } else if kind == KIND_CARRIED_OUT {
        Record::CarriedOut
    } else if kind == KIND_PURGED {
        let last = get_log_id(&mut body)?;
        let start_offset = Offset::new(body.try_get_i64().ok()?);
        let log_start = Offset::new(body.try_get_i64().ok()?);
        let membership_id = get_log_id(&mut body)?;
        let membership = get_membership(&mut body)?;
        Record::Purged(Purged {
            last,
            start_offset,
            log_start,
            membership: StoredMembership::new(membership_id, membership),
        })
    } else {
        let next_index = RaftIndex::new(body.try_get_u64().ok()?);
        let term = body.try_get_u64().ok()?;
        let offset = Offset::new(body.try_get_i64().ok()?);
        let kind = match kind {
            KIND_BLANK => MarkKind::NonData(NonData::Blank),
            KIND_MEMBERSHIP => MarkKind::NonData(NonData::Membership(get_membership(&mut body)?)),
            KIND_LOG_START => {
                MarkKind::NonData(NonData::LogStart(Offset::new(body.try_get_i64().ok()?)))
            }
            KIND_SEGMENT_ROLL => MarkKind::SegmentRoll,
            KIND_CHECKPOINT => MarkKind::Checkpoint {
                high_watermark: Offset::new(body.try_get_i64().ok()?),
                committed_end: RaftIndex::new(body.try_get_u64().ok()?),
            },
            _ => return None,
        };
        Record::Mark(Mark {
            next_index,
            offset,
            term,
            kind,
        })
    };
    body.is_empty().then_some(record)
}

/// Writes a log id that may be none.
pub(crate) fn put_log_id(out: &mut BytesMut, id: Option<&LogId>) {
    match id {
        None => out.put_u8(0),
        Some(id) => {
            out.put_u8(1);
            out.put_u64(term_of(id));
            out.put_u64(id.index());
        }
    }
}

/// Reads what [`put_log_id`] wrote.
#[allow(clippy::option_option)]
pub(crate) fn get_log_id(body: &mut &[u8]) -> Option<Option<LogId>> {
    match body.try_get_u8().ok()? {
        0 => Some(None),
        1 => Some(Some(log_id(
            body.try_get_u64().ok()?,
            body.try_get_u64().ok()?,
        ))),
        _ => None,
    }
}

/// Writes a membership.
pub(crate) fn put_membership(out: &mut BytesMut, membership: &Membership) {
    let configs = membership.get_joint_config();
    out.put_u16(configs.len() as u16);
    for config in configs {
        out.put_u16(config.len() as u16);
        for voter in config {
            out.put_u64(*voter);
        }
    }
    let nodes: Vec<u64> = membership.nodes().map(|(id, ())| *id).collect();
    out.put_u16(nodes.len() as u16);
    for node in nodes {
        out.put_u64(node);
    }
}

/// Reads what [`put_membership`] wrote.
pub(crate) fn get_membership(body: &mut &[u8]) -> Option<Membership> {
    let configs = (0..body.try_get_u16().ok()?)
        .map(|_| get_ids(body))
        .collect::<Option<Vec<_>>>()?;
    let nodes: BTreeMap<u64, ()> = get_ids(body)?.into_iter().map(|id| (id, ())).collect();
    if configs.is_empty() && nodes.is_empty() {
        return Some(Membership::default());
    }
    Membership::new(configs, nodes).ok()
}

fn get_ids(body: &mut &[u8]) -> Option<BTreeSet<u64>> {
    (0..body.try_get_u16().ok()?)
        .map(|_| body.try_get_u64().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Record> {
        let joint = Membership::new_with_defaults(
            vec![BTreeSet::from([1, 2, 3]), BTreeSet::from([2, 3, 4])],
            [9],
        );
        let mark = |kind| {
            Record::Mark(Mark {
                next_index: RaftIndex::new(7),
                offset: Offset::new(1 << 40),
                term: 3,
                kind,
            })
        };
        vec![
            mark(MarkKind::NonData(NonData::Blank)),
            mark(MarkKind::NonData(NonData::Membership(joint.clone()))),
            mark(MarkKind::NonData(NonData::LogStart(Offset::new(5)))),
            mark(MarkKind::SegmentRoll),
            mark(MarkKind::Checkpoint {
                high_watermark: Offset::new(4),
                committed_end: RaftIndex::new(6),
            }),
            Record::Incarnation(Incarnation::new(1005), None),
            Record::Pending(Pending::Cut(Offset::new(3))),
            Record::Pending(Pending::Restart(Offset::new(1 << 40))),
            Record::CarriedOut,
            Record::Purged(Purged::default()),
            Record::Purged(Purged {
                last: Some(log_id(2, 6)),
                start_offset: Offset::new(100),
                log_start: Offset::new(120),
                membership: StoredMembership::new(Some(log_id(1, 0)), joint),
            }),
        ]
    }

    fn encode(record: &Record) -> BytesMut {
        match record {
            Record::Mark(mark) => encode_mark(mark),
            Record::Purged(purged) => encode_purged(purged),
            Record::Incarnation(incarnation, _) => encode_incarnation(*incarnation),
            Record::Pending(pending) => encode_pending(*pending),
            Record::CarriedOut => encode_carried_out(),
        }
    }

    #[test]
    fn records_read_back_as_written() {
        for record in samples() {
            assert_eq!(decode(&encode(&record)), Some(record));
        }
    }

    #[test]
    fn truncated_or_extended_records_are_refused_without_panic() {
        for record in samples() {
            let body = encode(&record);
            for cut in 0..body.len() {
                assert_eq!(decode(&body[..cut]), None, "{record:?} cut at {cut}");
            }
            let mut longer = body.to_vec();
            longer.push(0);
            assert_eq!(decode(&longer), None);
        }
        assert_eq!(decode(&[99; 64]), None);
    }

    #[test]
    fn a_blank_entry_has_these_bytes() {
        let body = encode(&samples()[0]);
        assert_eq!(
            body[..],
            [
                1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 1, 0, 0, 0, 0, 0
            ]
        );
    }
}
