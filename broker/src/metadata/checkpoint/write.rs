//! Writing an image down.

use std::path::Path;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use odradek_protocol::batch::{BatchHeader, patch_offsets};
use odradek_protocol::ids::{LeaderEpoch, Offset, TimestampMs};
use odradek_protocol::records::{BatchBuilder, NewRecord};
use odradek_storage::disk::{Disk, DiskFile, OpenMode};

use super::{CONTROL_VERSION, CheckpointError, CheckpointId, FOOTER, HEADER, put_in_place};
use crate::metadata::image::MetadataImage;
use crate::metadata::records::MetadataRecord;
use crate::metadata::replay::encode_batch;

/// Records that go into one batch.
const RECORDS_AT_ONCE: usize = 1024;

/// Writes the checkpoint of `image` into `dir`; durable on return. Waits for the disk.
pub fn write(
    disk: &dyn Disk,
    dir: &Path,
    image: &MetadataImage,
    now: TimestampMs,
) -> Result<CheckpointId, CheckpointError> {
    let id = CheckpointId::of(image);
    let file = disk.open(&dir.join(id.part_name()), OpenMode::Create)?;
    file.set_len(0)?;
    let mut out = Out {
        file,
        epoch: id.epoch,
        position: 0,
        offset: Offset::ZERO,
    };
    out.put(control(HEADER, &header(now), now))?;
    let mut records: Vec<MetadataRecord> = Vec::with_capacity(RECORDS_AT_ONCE);
    for record in image.records() {
        records.push(record);
        if records.len() >= RECORDS_AT_ONCE {
            out.put(encode_batch(&records, now)?)?;
            records.clear();
        }
    }
    if !records.is_empty() {
        out.put(encode_batch(&records, now)?)?;
    }
    out.put(control(FOOTER, &footer(), now))?;
    out.file.sync_data()?;
    put_in_place(disk, dir, id)?;
    Ok(id)
}

/// A file that grows by batches.
struct Out {
    file: Arc<dyn DiskFile>,
    epoch: LeaderEpoch,
    position: u64,
    /// Offset of the next record within the checkpoint; it has nothing to do with the log's.
    offset: Offset,
}

impl Out {
    fn put(&mut self, batch: Bytes) -> Result<(), CheckpointError> {
        let header = BatchHeader::parse(&batch).map_err(|cause| CheckpointError::Batch {
            position: self.position,
            cause,
        })?;
        let mut batch = BytesMut::from(batch);
        patch_offsets(&mut batch, self.offset, self.epoch);
        self.file.write_at(&batch, self.position)?;
        self.position += batch.len() as u64;
        self.offset = self.offset.plus(i64::from(header.last_offset_delta) + 1);
        Ok(())
    }
}

fn control(kind: i16, value: &[u8], now: TimestampMs) -> Bytes {
    let mut key = BytesMut::with_capacity(4);
    key.put_i16(CONTROL_VERSION);
    key.put_i16(kind);
    let record = NewRecord {
        timestamp: now,
        key: Some(&key),
        value: Some(value),
        headers: &[],
    };
    BatchBuilder::new().control().record(record).build()
}

/// Kafka's SnapshotHeaderRecord: its version, the time of the last record, no tagged fields.
fn header(now: TimestampMs) -> BytesMut {
    let mut value = BytesMut::with_capacity(11);
    value.put_i16(CONTROL_VERSION);
    value.put_i64(now.get());
    value.put_u8(0);
    value
}

/// Kafka's SnapshotFooterRecord: its version, no tagged fields.
fn footer() -> BytesMut {
    let mut value = BytesMut::with_capacity(3);
    value.put_i16(CONTROL_VERSION);
    value.put_u8(0);
    value
}
