//! What compaction has to know of transactions while it walks over a log from its start: which
//! batches were aborted and go, and which markers still have something to decide.
//!
//! A marker may only go once nothing of its transaction is left, or a consumer would take aborted
//! records for committed ones. Pure; fed with batches in the order of the log.

use std::collections::{HashMap, HashSet};

use odradek_protocol::batch::BatchHeader;
use odradek_protocol::ids::{Offset, ProducerId};

use crate::producer_state::EndTxnMarker;
use crate::txn_index::AbortedTxn;

/// An aborted transaction that has begun and not ended.
struct Aborting {
    txn: AbortedTxn,
    /// Whether a batch of it was met.
    seen: bool,
}

/// See the module.
pub(super) struct Transactions {
    /// Aborted transactions that have not begun, the last one first.
    to_come: Vec<AbortedTxn>,
    aborting: HashMap<ProducerId, Aborting>,
    /// Producers with batches of a transaction that will be committed, or that is not decided.
    committing: HashSet<ProducerId>,
}

impl Transactions {
    /// For a walk during which these transactions are met.
    pub fn new(mut aborted: Vec<AbortedTxn>) -> Self {
        aborted.sort_by_key(|txn| std::cmp::Reverse(txn.first_offset));
        aborted.dedup();
        Self {
            to_come: aborted,
            aborting: HashMap::new(),
            committing: HashSet::new(),
        }
    }

    fn begin_up_to(&mut self, offset: Offset) {
        while let Some(txn) = self.to_come.pop_if(|txn| txn.first_offset <= offset) {
            self.aborting
                .entry(txn.producer_id)
                .or_insert(Aborting { txn, seen: false });
        }
    }

    /// Takes account of a batch of data. Returns whether it was aborted.
    pub fn on_batch(&mut self, header: &BatchHeader) -> bool {
        self.begin_up_to(header.last_offset());
        if !header.is_transactional() {
            return false;
        }
        match self.aborting.get_mut(&header.producer_id) {
            Some(aborting) => {
                aborting.seen = true;
                true
            }
            None => {
                self.committing.insert(header.producer_id);
                false
            }
        }
    }

    /// Takes account of a marker. Returns whether nothing that it decides is left.
    pub fn on_marker(&mut self, header: &BatchHeader, marker: EndTxnMarker) -> MarkerFate {
        self.begin_up_to(header.last_offset());
        if !marker.aborted {
            return MarkerFate {
                decides_nothing: !self.committing.remove(&header.producer_id),
                aborted: None,
            };
        }
        match self.aborting.remove(&header.producer_id) {
            Some(Aborting { txn, seen: true }) => MarkerFate {
                decides_nothing: false,
                aborted: Some(txn),
            },
            _ => MarkerFate {
                decides_nothing: true,
                aborted: None,
            },
        }
    }
}

/// What becomes of a marker.
pub(super) struct MarkerFate {
    /// Whether there is nothing left of its transaction, so that it may go in time.
    pub decides_nothing: bool,
    /// The aborted transaction that the index of the new segment has to name.
    pub aborted: Option<AbortedTxn>,
}

#[cfg(test)]
mod tests {
    use odradek_protocol::ids::{ProducerEpoch, Sequence};
    use odradek_protocol::records::{BatchBuilder, NewRecord};

    use super::*;

    fn batch(producer: i64, offset: i64) -> BatchHeader {
        let batch = BatchBuilder::new()
            .base_offset(Offset::new(offset))
            .producer(
                ProducerId::new(producer),
                ProducerEpoch::new(0),
                Sequence::new(0),
            )
            .transactional()
            .record(NewRecord::default())
            .build();
        BatchHeader::parse(&batch).unwrap()
    }

    fn aborted(producer: i64, first: i64, last: i64) -> AbortedTxn {
        AbortedTxn {
            producer_id: ProducerId::new(producer),
            first_offset: Offset::new(first),
            last_offset: Offset::new(last),
            last_stable_offset: Offset::new(last + 1),
        }
    }

    fn marker(aborted: bool) -> EndTxnMarker {
        EndTxnMarker {
            aborted,
            coordinator_epoch: 0,
        }
    }

    #[test]
    fn only_the_batches_between_an_aborted_transactions_bounds_are_aborted() {
        let mut txns = Transactions::new(vec![aborted(1, 10, 12), aborted(1, 0, 2)]);
        assert!(txns.on_batch(&batch(1, 0)));
        assert!(!txns.on_batch(&batch(2, 1)));
        assert!(!txns.on_marker(&batch(1, 2), marker(true)).decides_nothing);
        assert!(!txns.on_batch(&batch(1, 5)), "a committed one in between");
        assert!(!txns.on_marker(&batch(1, 6), marker(false)).decides_nothing);
        assert!(txns.on_batch(&batch(1, 10)));
        let fate = txns.on_marker(&batch(1, 12), marker(true));
        assert_eq!(fate.aborted, Some(aborted(1, 10, 12)));
    }

    #[test]
    fn a_marker_without_any_batch_of_its_transaction_decides_nothing() {
        let mut txns = Transactions::new(vec![aborted(1, 0, 2)]);
        assert!(txns.on_marker(&batch(1, 2), marker(true)).decides_nothing);
        assert!(txns.on_marker(&batch(2, 3), marker(false)).decides_nothing);
        assert!(!txns.on_batch(&batch(3, 4)));
        assert!(!txns.on_marker(&batch(3, 5), marker(false)).decides_nothing);
        assert!(txns.on_marker(&batch(3, 6), marker(false)).decides_nothing);
    }
}
