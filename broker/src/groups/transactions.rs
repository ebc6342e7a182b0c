//! Offsets that are committed in transactions (KIP-98, KIP-447): the part of the coordinator that
//! stages them, and makes them count when their transaction has been committed.

use odradek_protocol::ids::TimestampMs;
use odradek_storage::producer_state::EndTxnMarker;

use super::coordinator::GroupCoordinator;
use super::error::GroupError;
use super::messages::{GroupEffects, TxnCommitRefusal, TxnCommitRequest};
use super::records::{GroupRecord, OffsetCommit, OffsetKey};
use crate::coordinator::effects::{BatchKind, ProducerIdentity};

impl GroupCoordinator {
    pub(super) fn commit_in_transaction(
        &mut self,
        request: TxnCommitRequest,
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) -> Result<Vec<Vec<Result<(), GroupError>>>, TxnCommitRefusal> {
        let (producer, commit) = (request.producer, request.commit);
        let is_verified = request
            .verified
            .is_some_and(|moment| self.ends().none_since(moment, producer.id));
        if !is_verified && !self.offsets().staged().is_open(producer) {
            return Err(TxnCommitRefusal::Unverified(self.ends().moment()));
        }
        self.check_transactional_commit(&commit)
            .map_err(TxnCommitRefusal::Failed)?;
        if effects.is_scarce {
            return Err(TxnCommitRefusal::Failed(GroupError::NotAvailable));
        }
        let (records, results) = self.to_records(commit, now);
        for record in &records {
            if let GroupRecord::Offset(key, Some(commit)) = record {
                self.stage(producer, key, commit.clone(), now);
            }
        }
        effects.batch = BatchKind::Transactional(producer);
        effects.records.extend(records);
        Ok(results)
    }

    /// Brings a commit in a transaction into the state.
    pub(super) fn stage(
        &mut self,
        producer: ProducerIdentity,
        key: &OffsetKey,
        commit: OffsetCommit,
        now: TimestampMs,
    ) {
        self.ensure_group(&key.group, now);
        self.offsets_mut().stage(producer, key, commit);
    }

    pub(super) fn end_transaction(
        &mut self,
        producer: ProducerIdentity,
        marker: EndTxnMarker,
        effects: &mut GroupEffects,
    ) {
        self.ends_mut().note(producer.id);
        self.offsets_mut()
            .end_transaction(producer.id, !marker.aborted);
        effects.batch = BatchKind::EndMarker(producer, marker);
    }
}
