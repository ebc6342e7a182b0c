//! A partition of a history: its log, and the real producer state.

use std::collections::HashMap;

use odradek_protocol::batch::BatchHeader;
use odradek_protocol::ids::{Offset, ProducerId, Sequence, TimestampMs};
use odradek_protocol::records::{BatchBuilder, NewRecord};
use odradek_storage::producer_state::{
    AppendOrigin, EndTxnMarker, ProducerError, ProducerStates, Verdict,
};

use crate::coordinator::effects::ProducerIdentity;
use crate::coordinator::end_marker;

/// What stands in a partition's log.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entry {
    Record {
        producer: ProducerId,
        value: u64,
    },
    Marker {
        producer: ProducerId,
        committed: bool,
    },
}

#[derive(Default)]
pub(super) struct Partition {
    pub(super) log: Vec<Entry>,
    pub(super) states: ProducerStates,
    /// Markers so far, by producer: what a guard stands for.
    pub(super) ends: HashMap<ProducerId, u64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) producer: ProducerIdentity,
    pub(super) marker: EndTxnMarker,
    pub(super) bumps_epoch: bool,
}

impl Partition {
    pub(super) fn header(&self, batch: BatchBuilder) -> BatchHeader {
        let record = NewRecord {
            timestamp: TimestampMs::new(1),
            ..NewRecord::default()
        };
        let offset = Offset::new(self.log.len() as i64);
        let bytes = batch
            .base_offset(offset)
            .transactional()
            .record(record)
            .build();
        BatchHeader::parse(&bytes).expect("a batch")
    }

    pub(super) fn is_open(&self, producer: ProducerIdentity) -> bool {
        self.states.get(producer.id).is_some_and(|known| {
            known.current_txn_first_offset.is_some() && known.epoch == producer.epoch
        })
    }

    pub(super) fn ends_of(&self, producer: ProducerId) -> u64 {
        self.ends.get(&producer).copied().unwrap_or(0)
    }

    pub(super) fn write(
        &mut self,
        producer: ProducerIdentity,
        sequence: i32,
        value: u64,
    ) -> Result<(), ProducerError> {
        let batch =
            BatchBuilder::new().producer(producer.id, producer.epoch, Sequence::new(sequence));
        let header = self.header(batch);
        if let Verdict::Duplicate { .. } = self.states.check(&header, AppendOrigin::Client)? {
            return Ok(());
        }
        self.log.push(Entry::Record {
            producer: producer.id,
            value,
        });
        self.states.update(&header, None);
        Ok(())
    }

    pub(super) fn end(&mut self, end: End) -> Result<(), ProducerError> {
        let (producer, marker) = (end.producer, end.marker);
        self.states
            .check_end(producer.id, producer.epoch, marker, end.bumps_epoch)?;
        let bytes = end_marker::build(producer, marker, TimestampMs::new(1));
        let mut header = BatchHeader::parse(&bytes).expect("a marker");
        header.base_offset = Offset::new(self.log.len() as i64);
        self.log.push(Entry::Marker {
            producer: producer.id,
            committed: !marker.aborted,
        });
        self.states.update(&header, Some(marker));
        *self.ends.entry(producer.id).or_default() += 1;
        Ok(())
    }
}
