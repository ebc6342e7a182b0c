//! How the partitions of a history come to know what the coordinator has decided.

use odradek_storage::producer_state::{EndTxnMarker, ProducerError};
use rand::Rng as _;

use super::partition::End;
use super::{Telling, World};
use crate::txn::messages::{MarkersWritten, TxnReply, TxnRequest};

impl World {
    /// The teller hears what there is to tell, if there is something.
    pub(super) fn poll_teller(&mut self) {
        let token = match self.teller {
            Some(token) => token,
            None => self.ask(TxnRequest::NextMarkers {
                anew: self.telling.is_empty(),
            }),
        };
        self.teller = Some(token);
        self.commit_all();
        if let Some(TxnReply::Markers(decided)) = self.replies.remove(&token) {
            self.teller = None;
            for decided in decided {
                let left = decided
                    .partitions
                    .values()
                    .flat_map(|topic| &topic.partitions)
                    .map(|index| index.get() as usize)
                    .collect();
                self.telling.push(Telling { decided, left });
            }
        }
    }

    /// One partition is told of one transaction, or its answer is lost, or all of it.
    pub(super) fn tell_one(&mut self) {
        self.poll_teller();
        if self.telling.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..self.telling.len());
        let telling = &mut self.telling[at];
        if let Some(partition) = telling.left.pop() {
            let end = End {
                producer: telling.decided.producer,
                marker: EndTxnMarker {
                    aborted: !telling.decided.committed,
                    coordinator_epoch: self.coordinator_epoch,
                },
                bumps_epoch: telling.decided.client_version.bumps_epoch(),
            };
            let arrives = self.rng.random_bool(0.9);
            if arrives {
                match self.partitions[partition].end(end) {
                    // One of an old epoch has been dealt with before.
                    Ok(()) | Err(ProducerError::FencedEpoch { .. }) => {}
                    Err(error) => panic!("a current coordinator is refused: {error}"),
                }
            }
            if !arrives || self.rng.random_bool(0.1) {
                self.telling[at].left.push(partition);
            }
            if end.bumps_epoch && self.rng.random_bool(0.2) {
                self.late.push((partition, end));
            }
            return;
        }
        let done = self.telling.swap_remove(at).decided;
        let written = MarkersWritten {
            id: done.id,
            producer: done.producer,
            started_at: done.started_at,
        };
        self.ask(TxnRequest::MarkersWritten(vec![written]));
    }

    pub(super) fn late_marker(&mut self) {
        if self.late.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..self.late.len());
        let (partition, end) = self.late.swap_remove(at);
        // Whatever it is told, nobody is there to hear it.
        let _ = self.partitions[partition].end(end);
    }
}
