//! The control batch that ends a transaction in one partition (KIP-98): one record, whose key says
//! whether the transaction is committed and whose value names the coordinator's epoch.

use bytes::Bytes;
use odradek_protocol::ids::{Sequence, TimestampMs};
use odradek_protocol::records::{BatchBuilder, NewRecord};
use odradek_storage::producer_state::EndTxnMarker;

use super::effects::ProducerIdentity;

/// Builds the marker; its offsets are not yet set.
pub fn build(producer: ProducerIdentity, marker: EndTxnMarker, now: TimestampMs) -> Bytes {
    const VERSION: i16 = 0;
    let kind = i16::from(!marker.aborted);
    let key = [VERSION.to_be_bytes(), kind.to_be_bytes()].concat();
    let epoch = marker.coordinator_epoch.to_be_bytes();
    let value = [&VERSION.to_be_bytes()[..], &epoch].concat();
    BatchBuilder::new()
        .producer(producer.id, producer.epoch, Sequence::NONE)
        .transactional()
        .control()
        .record(NewRecord {
            timestamp: now,
            key: Some(&key),
            value: Some(&value),
            headers: &[],
        })
        .build()
}

#[cfg(test)]
mod tests {
    use odradek_protocol::batch::BatchHeader;
    use odradek_protocol::ids::{ProducerEpoch, ProducerId};

    use super::*;

    #[test]
    fn a_marker_is_read_back_as_it_was_meant() {
        let producer = ProducerIdentity {
            id: ProducerId::new(7),
            epoch: ProducerEpoch::new(3),
        };
        for aborted in [false, true] {
            let marker = EndTxnMarker {
                aborted,
                coordinator_epoch: 11,
            };
            let batch = build(producer, marker, TimestampMs::new(5));
            let header = BatchHeader::parse(&batch).expect("a batch");
            assert!(header.is_control() && header.is_transactional());
            assert_eq!(header.producer_id, producer.id);
            assert_eq!(header.producer_epoch, producer.epoch);
            assert_eq!(EndTxnMarker::parse(&header, &batch), Some(marker));
        }
    }
}
