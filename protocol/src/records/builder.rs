//! Building batches: for coordinators, the metadata log, transaction markers and tests.

use bytes::{BufMut, Bytes, BytesMut};

use super::varint;
use crate::batch::{Attributes, BatchError, BatchHeader, TimestampType, seal};
use crate::compression::{Compression, compress};
use crate::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs};

/// A record to be written.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewRecord<'a> {
    /// Timestamp.
    pub timestamp: TimestampMs,
    /// Key, or `None` for null.
    pub key: Option<&'a [u8]>,
    /// Value, or `None` for null: a tombstone, if the topic is compacted.
    pub value: Option<&'a [u8]>,
    /// Headers, in order; keys may repeat.
    pub headers: &'a [(&'a str, Option<&'a [u8]>)],
}

/// Collects records into one batch. Offset deltas count up from 0.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    header: BatchHeader,
    records: BytesMut,
}

impl Default for BatchBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl BatchBuilder {
    /// An empty batch at offset 0, of no producer, with CreateTime.
    pub fn new() -> Self {
        Self {
            header: BatchHeader {
                base_offset: Offset::ZERO,
                batch_length: 0,
                partition_leader_epoch: LeaderEpoch::NONE,
                crc: 0,
                attributes: Attributes::default(),
                last_offset_delta: -1,
                base_timestamp: TimestampMs::NONE,
                max_timestamp: TimestampMs::NONE,
                producer_id: ProducerId::NONE,
                producer_epoch: ProducerEpoch::NONE,
                base_sequence: Sequence::NONE,
                record_count: 0,
            },
            records: BytesMut::new(),
        }
    }

    /// Sets the offset of the first record.
    pub fn base_offset(mut self, offset: Offset) -> Self {
        self.header.base_offset = offset;
        self
    }

    /// Sets the leader epoch.
    pub fn leader_epoch(mut self, epoch: LeaderEpoch) -> Self {
        self.header.partition_leader_epoch = epoch;
        self
    }

    /// Sets the producer, its epoch, and the sequence number of the first record.
    pub fn producer(
        mut self,
        id: ProducerId,
        epoch: ProducerEpoch,
        base_sequence: Sequence,
    ) -> Self {
        self.header.producer_id = id;
        self.header.producer_epoch = epoch;
        self.header.base_sequence = base_sequence;
        self
    }

    /// Makes the batch part of a transaction.
    pub fn transactional(mut self) -> Self {
        self.header.attributes = self.header.attributes.with_transactional(true);
        self
    }

    /// Makes the batch a control batch.
    pub fn control(mut self) -> Self {
        self.header.attributes = self.header.attributes.with_control(true);
        self
    }

    /// Sets the clock that the timestamps come from.
    pub fn timestamp_type(mut self, timestamp_type: TimestampType) -> Self {
        self.header.attributes = self.header.attributes.with_timestamp_type(timestamp_type);
        self
    }

    /// Adds a record.
    pub fn push(&mut self, record: NewRecord<'_>) {
        let header = &mut self.header;
        if header.record_count == 0 {
            header.base_timestamp = record.timestamp;
            header.max_timestamp = record.timestamp;
        }
        header.max_timestamp = header.max_timestamp.max(record.timestamp);
        header.last_offset_delta += 1;
        header.record_count += 1;
        let timestamp_delta = record
            .timestamp
            .get()
            .wrapping_sub(header.base_timestamp.get());
        put_record(
            &mut self.records,
            timestamp_delta,
            header.last_offset_delta,
            &record,
        );
    }

    /// [`BatchBuilder::push`], for chains.
    pub fn record(mut self, record: NewRecord<'_>) -> Self {
        self.push(record);
        self
    }

    /// Number of records so far.
    pub fn record_count(&self) -> i32 {
        self.header.record_count
    }

    /// Whether there is no record yet.
    pub fn is_empty(&self) -> bool {
        self.header.record_count == 0
    }

    /// Bytes of the batch as it would be without compression.
    pub fn size_in_bytes(&self) -> usize {
        BatchHeader::SIZE + self.records.len()
    }

    /// The uncompressed batch, CRC and all.
    ///
    /// # Panics
    /// If there is no record, or the batch is longer than its length field can say.
    pub fn build(self) -> Bytes {
        let records = self.records;
        finish(self.header, &records)
    }

    /// The batch with its records compressed, CRC and all.
    ///
    /// # Panics
    /// As [`BatchBuilder::build`].
    pub fn build_compressed(mut self, compression: Compression) -> Result<Bytes, BatchError> {
        self.header.attributes = self.header.attributes.with_compression(compression);
        let records = compress(compression, &self.records)?;
        Ok(finish(self.header, &records))
    }
}

fn finish(mut header: BatchHeader, records: &[u8]) -> Bytes {
    assert!(header.record_count > 0, "a batch holds at least one record");
    let size = BatchHeader::SIZE + records.len();
    header.batch_length = i32::try_from(size - BatchHeader::LOG_OVERHEAD)
        .unwrap_or_else(|_| panic!("a batch of {size} bytes"));
    let mut batch = BytesMut::with_capacity(size);
    batch.put_slice(&header.to_bytes());
    batch.put_slice(records);
    seal(&mut batch);
    batch.freeze()
}

fn put_record(out: &mut BytesMut, timestamp_delta: i64, offset_delta: i32, record: &NewRecord<'_>) {
    let headers: usize = record
        .headers
        .iter()
        .map(|(key, value)| nullable_len(Some(key.as_bytes())) + nullable_len(*value))
        .sum();
    let body = 1
        + varint::len(timestamp_delta)
        + varint::len(i64::from(offset_delta))
        + nullable_len(record.key)
        + nullable_len(record.value)
        + varint::len(record.headers.len() as i64)
        + headers;
    out.reserve(varint::len(body as i64) + body);
    varint::put(out, body as i64);
    out.put_u8(0);
    varint::put(out, timestamp_delta);
    varint::put(out, i64::from(offset_delta));
    put_nullable(out, record.key);
    put_nullable(out, record.value);
    varint::put(out, record.headers.len() as i64);
    for (key, value) in record.headers {
        put_nullable(out, Some(key.as_bytes()));
        put_nullable(out, *value);
    }
}

pub(super) fn nullable_len(bytes: Option<&[u8]>) -> usize {
    match bytes {
        Some(bytes) => varint::len(bytes.len() as i64) + bytes.len(),
        None => varint::len(-1),
    }
}

pub(super) fn put_nullable(out: &mut BytesMut, bytes: Option<&[u8]>) {
    match bytes {
        Some(bytes) => {
            varint::put(out, bytes.len() as i64);
            out.put_slice(bytes);
        }
        None => varint::put(out, -1),
    }
}
